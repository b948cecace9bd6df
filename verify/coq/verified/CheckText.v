(** The checker as a function of one text: the extracted program, and its theorem.

    The text is decimal integers with spaces or line ends between them, in this order:
      digests              two numbers, of the two weight files: the answer repeats them, and they are compared outside
      questions            their number, one at least, and each question:
                             0 same
                             1 within, then B and T, each as mantissa and exponent
                             2 floats, then the format (e_min, p), B and T
                             3 sharp, then the format
                             4 refuted, then d, the input's d sizes, an output (its place, d numbers, and its channel),
                               an exponent, the number of pixels, and each: channel, place, integer
                             5 shifted, as floats, of the sum that runs by default
                             6 soft, as floats, then d and the d sizes of an input
      the convolution      geometry; exponent and entries of weight; exponent and entries of bias, zeros if none
      the attention layer  geometry; encoding; number of heads, D_k, D_h; exponent and entries of w_qry, w_key, w_key_pos,
                           u, v, w_val, w_out and b_out, one tensor after the other
    Entries are integers, in torch's row-major order; the tensor is these times 2^exponent.  A geometry is
      in_channels out_channels d, kernel_size, stride, dilation (d numbers each),
      padding (0 and d numbers; 1 for 'same';
        2 for 'valid'), padding_mode (0 zeros, 1 reflect, 2 replicate, 3 circular),
      groups, transposed (0 or 1), output_padding (d numbers)
    and an encoding 0, the quadratic one, or 1, the parabola, then its radix and the largest sizes (d numbers each)

    Statements:
      check_text_sound  if [check_text] returns Accepted, the text reads as two layers and questions that all hold of
                        them: they are the same function in the limit; they differ by T at most, over the reals or in
                        floating point with all rounding; every head is one-hot in floating point; they differ on a
                        given input *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Bool Ascii String Lia.
From Attention Require Import Definitions Layers Limits Geometry RoundingDyadic CheckFields CheckSame CheckWithin
  CheckSharp CheckFloats CheckSoft CheckRefuted.
Import ListNotations.

(** * From characters to integers *)

Fixpoint fold_string {A : Type} (f : A -> ascii -> A) (a : A) (s : string) : A :=
  match s with EmptyString => a | String x s' => fold_string f (f a x) s' end.

Local Open Scope char_scope.
Definition digit (x : ascii) : option Z :=
  if Ascii.eqb x "0" then Some 0%Z else if Ascii.eqb x "1" then Some 1%Z else if Ascii.eqb x "2" then Some 2%Z else
  if Ascii.eqb x "3" then Some 3%Z else if Ascii.eqb x "4" then Some 4%Z else if Ascii.eqb x "5" then Some 5%Z else
  if Ascii.eqb x "6" then Some 6%Z else if Ascii.eqb x "7" then Some 7%Z else if Ascii.eqb x "8" then Some 8%Z else
  if Ascii.eqb x "9" then Some 9%Z else None.
Definition blank (x : ascii) : bool := Ascii.eqb x " " || Ascii.eqb x "010".

(** Between numbers; after a minus; inside a number, with its sign; where no number can be read. *)
Inductive lexer : Set :=
| Between (done : list Z) | Minus (done : list Z) | Inside (done : list Z) (negative : bool) (n : Z) | Odd.

Definition lex_step (s : lexer) (x : ascii) : lexer :=
  match s, digit x with
  | Between done, Some d => Inside done false d
  | Between done, None => if blank x then s else if Ascii.eqb x "-" then Minus done else Odd
  | Minus done, Some d => Inside done true d
  | Inside done negative n, Some d => Inside done negative (10 * n + d)
  | Inside done negative n, None => if blank x then Between ((if negative then - n else n)%Z :: done) else Odd
  | _, _ => Odd
  end.

Definition numbers_of (s : string) : option (list Z) :=
  match lex_step (fold_string lex_step (Between []) s) " " with Between done => Some (rev_append done []) | _ => None
    end.
Local Close Scope char_scope.

(** * From integers to layers *)

Definition reader (A : Type) : Type := list Z -> option (A * list Z).
Definition return_ {A} (a : A) : reader A := fun l => Some (a, l).
Definition bind {A C} (p : reader A) (k : A -> reader C) : reader C :=
  fun l => match p l with Some (a, l') => k a l' | None => None end.
Notation "x <- p ; q" := (bind p (fun x => q)) (at level 60, p at next level, right associativity).
Definition fail {A} : reader A := fun _ => None.
Definition number : reader Z := fun l => match l with [] => None | x :: l' => Some (x, l') end.
Fixpoint many {A} (n : nat) (p : reader A) : reader (list A) :=
  match n with O => return_ [] | S n' => x <- p; xs <- many n' p; return_ (x :: xs) end.

Definition read_padding (d : nat) : reader padding :=
  kind <- number;
  match kind with
  | 0%Z => p <- many d number; return_ (integers p)
  | 1%Z => return_ same
  | 2%Z => return_ valid
  | _ => fail
  end.
Definition read_mode : reader padding_mode :=
  m <- number;
  match m with
  | 0%Z => return_ zeros | 1%Z => return_ reflect | 2%Z => return_ replicate | 3%Z => return_ circular | _ => fail
  end.
Definition read_flag : reader bool :=
  b <- number; match b with 0%Z => return_ false | 1%Z => return_ true | _ => fail end.

(** 'same' and 'valid' that pad alike on both sides are read as the numbers that they stand for; what torch refuses,
    'same' with a stride and either of a transposed convolution, is left for [well_formed] to refuse. *)
Definition plain_padding (ks ss ds : list Z) (t : bool) (p : padding) : padding :=
  match p with
  | integers _ => p
  | _ =>
      let l := pads p ks ds in
      let legal := match p with same => forallb (Z.eqb 1) ss | _ => true end in
      if negb t && legal && forallb (fun x => Z.eqb (fst x) (snd x)) l then integers (map fst l) else p
  end.

Lemma plain_padding_pads ks ss ds t p : pads (plain_padding ks ss ds t p) ks ds = pads p ks ds.
Proof.
  destruct p as [l| |]; [reflexivity| |]; unfold plain_padding; cbv zeta;
    destruct (negb t && _ && _)%bool eqn:E; try reflexivity; rewrite !andb_true_iff in E; destruct E as [_ E].
  - revert ds E; induction ks as [|k ks IH]; intros [|d ds] E; simpl in *; try reflexivity.
    rewrite andb_true_iff, Z.eqb_eq in E; destruct E as [E F]; rewrite IH by exact F; f_equal; unfold same_pads;
      f_equal.
    exact E.
  - revert ds E; induction ks as [|k ks IH]; intros [|d ds] E; simpl in *; try reflexivity.
    rewrite IH by exact E; reflexivity.
Qed.

Definition read_geometry : reader geometry :=
  i <- number; o <- number; n <- number;
  let d := Z.to_nat n in
  ks <- many d number; ss <- many d number; ds <- many d number;
  p <- read_padding d; m <- read_mode; g <- number; t <- read_flag; e <- many d number;
  return_ {| in_channels := i; out_channels := o; kernel_size := ks; stride_of := ss; dilation_of := ds;
             padding_of := plain_padding ks ss ds t p; mode_of := m; groups := g; transposed := t;
             output_paddings := e |}.

(** A tensor of the given shape. *)
Definition row (n : nat) : reader (list Z) := many n number.
Definition rows (m n : nat) : reader (list (list Z)) := many m (row n).
Definition blocks (g m n : nat) : reader (list (list (list Z))) := many g (rows m n).

Definition read_convolution : reader convolution :=
  g <- read_geometry;
  let taps := positions_of_kernel {| c_geometry := g; c_weight_scale := 0; c_weight := []; c_bias_scale := 0;
    c_bias := [] |} in
  ws <- number;
  w <- many (groups_n g) (if transposed g then blocks (in_g g) (out_g g) taps else blocks (out_g g) (in_g g) taps);
  bs <- number; b <- row (groups_n g * out_g g);
  return_ {| c_geometry := g; c_weight_scale := ws; c_weight := w; c_bias_scale := bs; c_bias := b |}.

(** The heads from the seven tensors that have a head axis. *)
Fixpoint heads_of (q k p : list (list (list Z))) (us vs : list (list Z)) (val out : list (list (list (list Z)))) :
  list raw_head :=
  match q, k, p, us, vs, val, out with
  | q1 :: q', k1 :: k', p1 :: p', u1 :: us', v1 :: vs', a1 :: val', o1 :: out' =>
      {| h_qry := q1; h_key := k1; h_key_pos := p1; h_u := u1; h_v := v1; h_val := a1; h_out := o1 |}
        :: heads_of q' k' p' us' vs' val' out'
  | _, _, _, _, _, _, _ => []
  end.

Definition read_encoding (d : nat) : reader encoding :=
  kind <- number;
  match kind with
  | 0%Z => return_ quadratic
  | 1%Z => radix <- many d number; largest <- many d number; return_ (parabola radix largest)
  | _ => fail
  end.

Definition read_attention : reader attention_layer :=
  g <- read_geometry; e <- read_encoding (dims g); n <- number; dk <- number; dh <- number;
  let h := Z.to_nat n in let d_k := Z.to_nat dk in let d_h := Z.to_nat dh in let d_in := (groups_n g * in_g g)%nat in
  sq <- number; q <- many h (rows d_in d_k);
  sk <- number; k <- many h (rows d_in d_k);
  sp <- number; p <- many h (rows d_k (S (code_dims e (dims g))));
  su <- number; us <- many h (row d_k);
  sv <- number; vs <- many h (row d_k);
  sa <- number; val <- many h (blocks (groups_n g) (in_g g) d_h);
  so <- number; out <- many h (blocks (groups_n g) d_h (out_g g));
  sb <- number; b <- row (groups_n g * out_g g);
  return_ {| a_geometry := g; a_encoding := e; key_dim := dk; head_dim := dh;
             scale_of := {| s_qry := sq; s_key := sk; s_key_pos := sp; s_u := su; s_v := sv; s_val := sa; s_out := so;
               s_b := sb |};
             raw_heads := heads_of q k p us vs val out; raw_b_out := b |}.

(** The questions: the same function; a difference of at most T for |X| ≤ B, over the reals or in floating point, there in
    every order or in that of the sum that runs by default, of one-hot heads or, up to the given sizes, of any; heads that
    are one-hot in floating point; an output that differs on a given input, in the limit. *)
Inductive question : Set :=
| the_same | within (B T : dyadic) | floats (emin prec : Z) (B T : dyadic) | sharp (emin prec : Z)
| shifted (emin prec : Z) (B T : dyadic) | soft (emin prec : Z) (B T : dyadic) (sizes : list Z)
| refuted (sizes : list Z) (o : position) (j : nat) (e : Z) (l : list pixel).

Definition read_question : reader question :=
  mode <- number;
  match mode with
  | 0%Z => return_ the_same
  | 1%Z => bm <- number; be <- number; tm <- number; te <- number; return_ (within (Dyadic bm be) (Dyadic tm te))
  | 2%Z =>
      e <- number; p <- number; bm <- number; be <- number; tm <- number; te <- number;
      return_ (floats e p (Dyadic bm be) (Dyadic tm te))
  | 3%Z => e <- number; p <- number; return_ (sharp e p)
  | 5%Z =>
      e <- number; p <- number; bm <- number; be <- number; tm <- number; te <- number;
      return_ (shifted e p (Dyadic bm be) (Dyadic tm te))
  | 6%Z =>
      e <- number; p <- number; bm <- number; be <- number; tm <- number; te <- number;
      d <- number; sizes <- many (Z.to_nat d) number; return_ (soft e p (Dyadic bm be) (Dyadic tm te) sizes)
  | 4%Z =>
      d <- number; let d := Z.to_nat d in
      sizes <- many d number; o <- many d number; j <- number; e <- number; n <- number;
      l <- many (Z.to_nat n) (i <- number; p <- many d number; x <- number; return_ (Pixel (Z.to_nat i) p x));
      return_ (refuted sizes o (Z.to_nat j) e l)
  | _ => fail
  end.

Definition read_all : reader (list Z * list question * convolution * attention_layer) :=
  d <- many 2 number; n <- number; qs <- many (Z.to_nat n) read_question;
  c <- read_convolution; m <- read_attention; return_ (d, qs, c, m).

(** The digests, questions and layers of a text; nothing may be left over. *)
Definition read_text (s : string) : option (list Z * list question * convolution * attention_layer) :=
  match numbers_of s with
  | Some l => match read_all l with Some (r, []) => Some r | _ => None end
  | None => None
  end.

(** Rejected says which questions hold. *)
Inductive verdict : Set := Accepted (digests : list Z) | Rejected (answers : list bool) | Unreadable.

(** Whether a question holds, given the answer of [check_same], which three of them need. *)
Definition check (same : bool) (q : question) (c : convolution) (m : attention_layer) : bool :=
  match q with
  | the_same => same
  | within B T => check_within c m B T
  | floats e p B T => same && check_floats c m e p B T
  | sharp e p => check_sharp c m e p
  | shifted e p B T => same && check_shifted c m e p B T
  | soft e p B T sizes => check_soft c m e p sizes B T
  | refuted sizes o j e l => check_refuted c m sizes o j e l
  end.
Definition asks_same (q : question) : bool := match q with the_same | floats _ _ _ _ | shifted _ _ _ _ => true | _ => false end.

Definition check_text (s : string) : verdict :=
  match read_text s with
  | Some (digests, qs, c, m) =>
      let same := existsb asks_same qs && check_same c m in
      let answers := map (fun q => check same q c m) qs in
      match qs with
      | [] => Unreadable
      | _ => if forallb (fun a => a) answers then Accepted digests else Rejected answers
      end
  | None => Unreadable
  end.

(** * Soundness *)

Open Scope R_scope.

(** The meaning of an accepted question, for inputs of every size that torch and the layer take, every output o and channel j:
    with the parabola, up to the sizes of the text; soft, up to those of the question. *)
Definition answered (q : question) (c : convolution) (m : attention_layer) : Prop :=
  match q with
  | the_same =>
      forall sizes X o j, accepts c sizes -> fits m sizes = true -> In o (outputs c sizes) ->
      (j < groups_n c * out_g c)%nat ->
      is_lim (fun α => attend (sharpen α (layer_of m)) (tokens m sizes) (reads m sizes X) (query_of m sizes o) j)
        p_infty
        (computes_conv c sizes X o j)
  | within B T =>
      forall sizes X o j, accepts c sizes -> fits m sizes = true -> In o (outputs c sizes) ->
      (j < groups_n c * out_g c)%nat ->
      bounded (groups_n c * in_g c) (value B) (pixels c sizes) X ->
      Rabs (attend (layer_of m) (tokens m sizes) (reads m sizes X) (query_of m sizes o) j - computes_conv c sizes X o
        j) <= value T
  | floats e p B T => floats_within c m e p B T /\ shifted_within c m e p B T
  | sharp e p => one_hot_heads c m e p
  | shifted e p B T => shifted_within c m e p B T
  | soft e p B T sizes => soft_runs_within c m e p sizes B T
  | refuted sizes o j e l => differ c m sizes o j e l
  end.

Theorem check_sound same q c m : (same = true -> check_same c m = true) -> check same q c m = true -> answered q c m.
Proof.
  intros S; destruct q as [|B T|e p B T|e p|e p B T|e p B T sizes|sizes o j e l]; intros E.
  - intros sizes X o j A Fit Io Hj; exact (check_same_sound c m (S E) sizes X o j A Fit Io Hj).
  - intros sizes X o j A Fit Io Hj HX; exact (check_within_sound c m B T E sizes X o j A Fit HX Io Hj).
  - apply andb_prop in E; destruct E as [Es Ef]; split; [exact (check_floats_sound c m e p B T (S Es) Ef)|].
    apply (check_shifted_sound c m e p B T (S Es)); unfold check_floats in Ef; apply andb_prop in Ef; apply Ef.
  - exact (check_sharp_sound c m e p E).
  - apply andb_prop in E; exact (check_shifted_sound c m e p B T (S (proj1 E)) (proj2 E)).
  - exact (check_soft_sound c m e p sizes B T E).
  - exact (check_refuted_sound c m sizes o j e l E).
Qed.

Theorem check_text_sound s digests : check_text s = Accepted digests ->
  exists qs c m, read_text s = Some (digests, qs, c, m) /\ qs <> [] /\ forall q, In q qs -> answered q c m.
Proof.
  unfold check_text; destruct (read_text s) as [[[[d qs] c] m]|]; [|discriminate].
  destruct qs as [|q0 qs]; [discriminate|]; set (l := q0 :: qs) in *.
  destruct (forallb _ _) eqn:E; [|discriminate]; intros D; injection D as ->; exists l, c, m.
  split; [reflexivity|]; split; [discriminate|]; intros q I; set (same := existsb _ _ && _) in *.
  apply (check_sound same); [unfold same; rewrite andb_true_iff; tauto|].
  rewrite forallb_forall in E; apply E; apply (in_map (fun q => check same q c m)), I.
Qed.
