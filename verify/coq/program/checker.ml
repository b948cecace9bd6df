(* Reads a file and prints what check_text_fast says of it: exit 0 accepted, with the digests; 1 rejected, with an answer for
   every question; 2 unreadable. *)
let () =
  Gc.set { (Gc.get ()) with Gc.space_overhead = 200 };
  let file = open_in_bin Sys.argv.(1) in
  let text = really_input_string file (in_channel_length file) in
  match Verified.check_text_fast text with
  | Verified.Accepted digests -> print_endline (String.concat " " ("accepted" :: List.map Z.to_string digests))
  | Verified.Rejected answers -> print_endline (String.concat " " ("rejected" :: List.map string_of_bool answers)); exit 1
  | Verified.Unreadable -> print_endline "unreadable"; exit 2
