(* Reads a file and prints what check_text says of it: exit 0 accepted, 1 rejected, 2 unreadable. *)
let () =
  let file = open_in_bin Sys.argv.(1) in
  let text = really_input_string file (in_channel_length file) in
  match Verified.check_text text with
  | Verified.Accepted -> print_endline "accepted"
  | Verified.Rejected -> print_endline "rejected"; exit 1
  | Verified.Unreadable -> print_endline "unreadable"; exit 2
