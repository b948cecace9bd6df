(** The function that the program runs: [check_text] with a faster lexer, a faster reader of rows, and
    [check_same_fast].

    Statement:
      check_text_fast_is  [check_text_fast] is [check_text], so [check_text_sound] holds of it *)

From Coq Require Import ZArith List Bool Ascii Strings.Byte String FunctionalExtensionality.
From Attention Require Import CheckFields CheckSame CheckText FastTaps.
Import ListNotations.

(** * From characters to integers *)

(** What a character may be. *)
Inductive kind : Set := Digit | Blank | Dash | Other.
Definition kind_of (x : ascii) : kind :=
  match byte_of_ascii x with
  | x30 | x31 | x32 | x33 | x34 | x35 | x36 | x37 | x38 | x39 => Digit
  | x20 | x0a => Blank
  | x2d => Dash
  | _ => Other
  end.

(** A constant, which the program computes once. *)
Definition ten : Z := 10.
Definition value_of_digit (x : ascii) : Z := Z.of_N (N_of_ascii x) - 48.

Definition lex_step_fast (s : lexer) (x : ascii) : lexer :=
  match s with
  | Inside done negative n =>
      match kind_of x with
      | Digit => Inside done negative (ten * n + value_of_digit x)
      | Blank => Between ((if negative then - n else n)%Z :: done)
      | _ => Odd
      end
  | Between done =>
      match kind_of x with
      | Digit => Inside done false (value_of_digit x) | Blank => s | Dash => Minus done | Other => Odd
      end
  | Minus done => match kind_of x with Digit => Inside done true (value_of_digit x) | _ => Odd end
  | Odd => Odd
  end.

Definition numbers_of_fast (s : string) : option (list Z) :=
  match lex_step_fast (fold_string lex_step_fast (Between []) s) " " with
  | Between done => Some (rev_append done []) | _ => None
  end.

(** * From integers to layers *)

(** The first n numbers before [done], in reverse, and what is left. *)
Fixpoint take (n : nat) (done l : list Z) : option (list Z * list Z) :=
  match n with
  | O => Some (rev_append done [], l)
  | S n' => match l with [] => None | x :: l' => take n' (x :: done) l' end
  end.

(** What [read_convolution] and [read_attention] are, for any way to read a row. *)
Section Reading.
Variable row : nat -> reader (list Z).

Definition blocks_by (g m n : nat) : reader (list (list (list Z))) := many g (many m (row n)).

Definition read_convolution_by : reader convolution :=
  g <- read_geometry;
  let taps := positions_of_kernel {| c_geometry := g; c_weight_scale := 0; c_weight := []; c_bias_scale := 0;
    c_bias := [] |} in
  ws <- number;
  w <- many (groups_n g) (if transposed g then blocks_by (in_g g) (out_g g) taps
    else blocks_by (out_g g) (in_g g) taps);
  bs <- number; b <- row (groups_n g * out_g g);
  return_ {| c_geometry := g; c_weight_scale := ws; c_weight := w; c_bias_scale := bs; c_bias := b |}.

Definition read_attention_by : reader attention_layer :=
  g <- read_geometry; e <- read_encoding (dims g); n <- number; dk <- number; dh <- number;
  let h := Z.to_nat n in let d_k := Z.to_nat dk in let d_h := Z.to_nat dh in let d_in := (groups_n g * in_g g)%nat in
  sq <- number; q <- many h (many d_in (row d_k));
  sk <- number; k <- many h (many d_in (row d_k));
  sp <- number; p <- many h (many d_k (row (S (code_dims e (dims g)))));
  su <- number; us <- many h (row d_k);
  sv <- number; vs <- many h (row d_k);
  sa <- number; val <- many h (blocks_by (groups_n g) (in_g g) d_h);
  so <- number; out <- many h (blocks_by (groups_n g) d_h (out_g g));
  sb <- number; b <- row (groups_n g * out_g g);
  return_ {| a_geometry := g; a_encoding := e; key_dim := dk; head_dim := dh;
             scale_of := {| s_qry := sq; s_key := sk; s_key_pos := sp; s_u := su; s_v := sv; s_val := sa; s_out := so;
               s_b := sb |};
             raw_heads := heads_of q k p us vs val out; raw_b_out := b |}.

Definition read_all_by : reader (list Z * list question * convolution * attention_layer) :=
  d <- many 2 number; n <- number; qs <- many (Z.to_nat n) read_question;
  c <- read_convolution_by; m <- read_attention_by; return_ (d, qs, c, m).

End Reading.

Definition row_fast (n : nat) : reader (list Z) := take n [].

Definition read_text_fast (s : string) : option (list Z * list question * convolution * attention_layer) :=
  match numbers_of_fast s with
  | Some l => match read_all_by row_fast l with Some (r, []) => Some r | _ => None end
  | None => None
  end.

Definition check_text_fast (s : string) : verdict :=
  match read_text_fast s with
  | Some (digests, qs, c, m) =>
      let same := existsb asks_same qs && check_same_fast c m in
      let answers := map (fun q => check same q c m) qs in
      match qs with
      | [] => Unreadable
      | _ => if forallb (fun a => a) answers then Accepted digests else Rejected answers
      end
  | None => Unreadable
  end.

(** * Nothing else changes *)

Lemma lex_step_fast_is s x : lex_step_fast s x = lex_step s x.
Proof. destruct x as [[] [] [] [] [] [] [] []]; destruct s; reflexivity. Qed.

Lemma fold_string_ext {A} (f g : A -> ascii -> A) s : (forall a x, f a x = g a x) ->
  forall a, fold_string f a s = fold_string g a s.
Proof. intros E; induction s as [|x s IH]; intros a; simpl; [reflexivity|]; rewrite E; apply IH. Qed.

Lemma numbers_of_fast_is s : numbers_of_fast s = numbers_of s.
Proof.
  unfold numbers_of_fast, numbers_of; rewrite (fold_string_ext _ lex_step s lex_step_fast_is), lex_step_fast_is.
  reflexivity.
Qed.

Lemma take_many n : forall done l,
  take n done l = match many n number l with Some (xs, l') => Some (rev_append done xs, l') | None => None end.
Proof.
  induction n as [|n IH]; intros done [|x l]; cbn; try reflexivity; rewrite IH; unfold bind, return_.
  destruct (many n number l) as [[xs l']|]; reflexivity.
Qed.

Lemma row_fast_is : row_fast = row.
Proof.
  extensionality n; extensionality l; unfold row_fast, row; rewrite take_many.
  destruct (many n number l) as [[xs l']|]; reflexivity.
Qed.

Theorem check_text_fast_is s : check_text_fast s = check_text s.
Proof.
  unfold check_text_fast, check_text, read_text_fast, read_text; rewrite numbers_of_fast_is, row_fast_is.
  change (read_all_by row) with read_all; destruct (numbers_of s) as [l|]; [|reflexivity].
  destruct (read_all l) as [[[[[d qs] c] m] []]|]; try reflexivity; rewrite check_same_fast_is; reflexivity.
Qed.
