(** The checker in the mode `sharp`: in floating point every head is exactly one-hot, so the layer equals its limit.

    Statements:
      least_sharp_enough  e^−n < η/2 from the integer [least_sharp] on: 104, 746, 18 and 93 in float32, float64, float16
                          and bfloat16
      check_sharp_sound   if [check_sharp] accepts a format, then for every size that is taken, every image and
                          every output, a float softmax of scores with errors of at most (α − n)/2 is exactly 1 at
                          q + τ and exactly 0 elsewhere, in every head that carries something.  Assumed of exp:
                          it is a nonzero float at 0, and 0 at every float ≤ −n ([sharp_exp]). *)

From Coq Require Import Reals ZArith List Bool Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Lemma2 Layers Geometry Transposed FloatThreshold RoundingTree
  FloatSoftmax.
From Attention Require Import RoundingDyadic CheckFields CheckTaps CheckHeads CheckSame.
Import ListNotations.
Open Scope R_scope.

(** The least integer n with e^−n below half of the smallest float: ⌈(1 − e_min)·52/75⌉, 52/75 just above ln 2. *)
Definition least_sharp (emin : Z) : Z := (- (- (52 * (1 - emin)) / 75))%Z.

Example least_sharp_formats : map least_sharp [-149; -1074; -24; -133]%Z = [104; 746; 18; 93]%Z.
Proof. reflexivity. Qed.

(** [n] is a float of this format. *)
Definition sharp_format (emin prec : Z) : bool :=
  Z.ltb 0 prec && Z.leb emin 0 && Z.ltb (least_sharp emin) (2 ^ prec).

(** The head's α is n or more. *)
Definition sharp_enough (m : attention_layer) (emin : Z) (h : raw_head) : bool :=
  z_le (z_of (least_sharp emin)) (Dyadic (sharpness_read m h) (s_v (scale_of m) + s_key_pos (scale_of m))).

Definition check_sharp (c : convolution) (m : attention_layer) (emin prec : Z) : bool :=
  comparable c m && sharp_format emin prec && forallb (sharp_enough m emin) (kept m).

(** * Soundness *)

Lemma least_sharp_enough emin : (emin <= 0)%Z -> exp (- IZR (least_sharp emin)) < bpow radix2 (emin - 1).
Proof.
  intros He; rewrite bpow_as_exp; apply exp_increasing; destruct ln2_enclosed as [_ L2].
  assert (E : (52 * (1 - emin) <= 75 * least_sharp emin)%Z).
  { unfold least_sharp; assert (D := Z.mul_div_le (- (52 * (1 - emin))) 75 ltac:(lia)); lia. }
  apply IZR_le in E, He; rewrite !mult_IZR, !minus_IZR in *; nra.
Qed.

Lemma least_sharp_positive emin : (emin <= 0)%Z -> 0 < IZR (least_sharp emin).
Proof.
  intros He; apply IZR_lt; unfold least_sharp.
  assert (D := Z.mul_div_le (- (52 * (1 - emin))) 75 ltac:(lia)); lia.
Qed.

(** The meaning of an accepted check. *)
Definition one_hot_heads (c : convolution) (m : attention_layer) (emin prec : Z) : Prop :=
  forall expf sizes X o h (computed P : position -> R),
  let G := tokens m sizes in let q := query_of m sizes o in
  accepts c sizes -> fits m sizes = true -> In o (outputs c sizes) -> In h (kept m) ->
  sharp_exp emin prec (IZR (least_sharp emin)) expf ->
  (forall k, In k G ->
     Rabs (computed k - score (layer_of m) h X q k) <= (alpha_of m h - IZR (least_sharp emin)) / 2) ->
  float_softmax emin prec expf G computed P -> one_hot G P (add q (shift_read m h)).

(** With τ = shift_read m h the attention of every head that carries something is exactly one-hot, at q + τ. *)
Theorem check_sharp_sound c m emin prec : check_sharp c m emin prec = true -> one_hot_heads c m emin prec.
Proof.
  unfold check_sharp, sharp_format; rewrite !andb_true_iff, forallb_forall, Z.ltb_lt, Z.leb_le, Z.ltb_lt.
  intros [[ok [[Hp He] Hn]] F] expf sizes X o h computed P G q A Fit Io Ih Ex D S.
  destruct (comparable_facts c m ok) as (E & _); subst G q; rewrite E in *.
  assert (Pp : Prec_gt_0 prec) by exact Hp; set (n := IZR (least_sharp emin)) in *.
  specialize (F h Ih); apply value_le in F; rewrite value_of in F; fold n in F; fold (alpha_of m h) in F.
  apply (softmax_one_hot_scores emin prec He expf (tokens c sizes) (score (layer_of m) h X (query_of c sizes o))
    computed
    (add (query_of c sizes o) (shift_read m h)) n ((alpha_of m h - n) / 2) P); try assumption.
  - apply (tokens_dims c m ok sizes A).
  - apply (targets_on_tokens c sizes A o Io), (heads_on_shifts c m ok h Ih).
  - apply least_sharp_positive, He.
  - apply generic_format_FLT; exists (Float radix2 (least_sharp emin) 0); cbn [Fnum Fexp].
    + unfold F2R, n; simpl; ring.
    + assert (L := least_sharp_positive emin He); apply lt_IZR in L; rewrite Z.abs_eq by lia; exact Hn.
    + exact He.
  - intros k Ik Nk; replace (n + 2 * ((alpha_of m h - n) / 2)) with (alpha_of m h) by field.
    assert (K := kept_gap c m ok sizes A h X o k Fit Ih Io Ik Nk).
    change (score (with_heads (layer_of m) (kept m))) with (score (layer_of m)) in K; lra.
Qed.
