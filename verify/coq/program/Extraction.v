(** The checker as an OCaml program, which `python -m verify coq build` builds.

    Trusted in addition to Coq's kernel: extraction, OCaml, Zarith for Z and positive (ExtrOcamlZBigInt), bool, list,
    option and pairs as OCaml's (ExtrOcamlBasic), characters and strings as OCaml's (ExtrOcamlNativeString), and the
    four functions below, which replace Coq's own by faster ones. *)

From Coq Require Import ZArith Extraction ExtrOcamlBasic ExtrOcamlNativeString ExtrOcamlZBigInt.
From Attention Require Import CheckText FastText.

(** Division rounds down; by zero it is 0, with the remainder x. *)
Extract Constant Z.div => "(fun x y -> if Z.sign y = 0 then Z.zero else Z.fdiv x y)".
Extract Constant Z.modulo => "(fun x y -> if Z.sign y = 0 then x else Z.sub x (Z.mul y (Z.fdiv x y)))".
(** One character after the other, without copying the string. *)
Extract Constant fold_string => "String.fold_left".
(** A character's number, minus that of 0. *)
Extract Constant value_of_digit => "(fun x -> Big_int_Z.big_int_of_int (Char.code x - 48))".

Extraction "verified.ml" check_text_fast.
