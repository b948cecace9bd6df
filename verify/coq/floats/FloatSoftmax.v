(** A float softmax over sharp scores is exactly one-hot.

    The softmax of scores s_k: the row maximum m is subtracted, fl(s_k − m); an exponential of the machine,
    [expf], is applied; the sum S of the results is formed in any order (RoundingTree.v), and each is divided
    by S.  Statements, for a key k0 that scores higher than every other by a float g > 0 or more:
      softmax_one_hot            the weight of k0 is exactly 1 and every other exactly 0, if expf(0) is a
                                 nonzero float and expf is 0 at every float ≤ −g: the only assumption on expf
      softmax_one_hot_scores     the same for scores computed within δ of scores with the gap g + 2δ
      softmax_one_hot_reciprocal the same where each result is multiplied by fl(1/S), if expf(0) = 1
      correctly_rounded_exp      a correctly rounded exponential satisfies the assumption where e^−g < η/2
      faithful_exp_is_not_enough a faithfully rounded one may be nonzero everywhere
      float32_one_hot and kin    one-hot from α = 104 (float64 746, float16 18, bfloat16 93), exp correctly rounded
    Not covered: fused attention that divides only after the values are summed, or that rescales by a
    running maximum. *)

From Coq Require Import Reals ZArith List Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums FloatThreshold RoundingTree RoundingDot.
Import ListNotations.
Open Scope R_scope.

(** [float_softmax … expf G s P]: the weights P_k of the keys G, computed from the scores s_k. *)
Definition float_softmax (emin prec : Z) {A : Type} (expf : R -> R) (G : list A) (s P : A -> R) : Prop :=
  exists m d S,
    (forall k, In k G -> s k <= m) /\ (exists k, In k G /\ s k = m) /\
    (forall k, In k G -> rounds emin prec (s k - m) (d k)) /\
    computes emin prec (map (fun k => (1, expf (d k))) G) S /\
    (forall k, In k G -> rounds emin prec (expf (d k) / S) (P k)).

(** The same with one division: P_k = fl(expf(d_k)·fl(1/S)). *)
Definition float_softmax_reciprocal (emin prec : Z) {A : Type} (expf : R -> R) (G : list A) (s P : A -> R) : Prop :=
  exists m d S inverse,
    (forall k, In k G -> s k <= m) /\ (exists k, In k G /\ s k = m) /\
    (forall k, In k G -> rounds emin prec (s k - m) (d k)) /\
    computes emin prec (map (fun k => (1, expf (d k))) G) S /\
    rounds emin prec (1 / S) inverse /\
    (forall k, In k G -> rounds emin prec (expf (d k) * inverse) (P k)).

(** expf(0) is a nonzero float, and expf is 0 at every float ≤ −g. *)
Definition sharp_exp (emin prec : Z) (g : R) (expf : R -> R) : Prop :=
  float emin prec (expf 0) /\ expf 0 <> 0 /\ (forall x, float emin prec x -> x <= - g -> expf x = 0).

(** k0 scores higher than every other key of G by g or more. *)
Definition gap {A : Type} (g : R) (G : list A) (s : A -> R) (k0 : A) : Prop :=
  forall k, In k G -> k <> k0 -> s k <= s k0 - g.

Definition one_hot {A : Type} (G : list A) (P : A -> R) (k0 : A) : Prop :=
  P k0 = 1 /\ (forall k, In k G -> k <> k0 -> P k = 0).

(** The float nearest to e^x, whatever the tie rule. *)
Definition correctly_rounded (emin prec : Z) (expf : R -> R) : Prop :=
  forall x, float emin prec x -> rounds emin prec (exp x) (expf x).

(** One of the two floats around e^x. *)
Definition faithfully_rounded (emin prec : Z) (expf : R -> R) : Prop :=
  forall x, float emin prec x ->
  Rnd_DN_pt (float emin prec) (exp x) (expf x) \/ Rnd_UP_pt (float emin prec) (exp x) (expf x).

Section Format.
Variables emin prec : Z.
Context {prec_positive : Prec_gt_0 prec}.
Hypothesis emin_negative : (emin <= 0)%Z.

Notation F := (float emin prec).

Lemma float_1 : F 1.
Proof. change 1 with (bpow radix2 0); apply generic_format_FLT_bpow; assumption. Qed.

(** * One-hot *)

Section Row.
Context {A : Type}.
Variables (expf : R -> R) (G : list A) (s : A -> R) (k0 : A) (g : R).
Hypothesis distinct : NoDup G.
Hypothesis k0_key : In k0 G.
Hypothesis g_positive : 0 < g.
Hypothesis g_float : F g.
Hypothesis expf_sharp : sharp_exp emin prec g expf.
Hypothesis s_gap : gap g G s k0.

(** The common part: expf(d_k0) = expf(0), all others are 0, so S = expf(0). *)
Lemma row_sum m d S : (forall k, In k G -> s k <= m) -> (exists k, In k G /\ s k = m) ->
  (forall k, In k G -> rounds emin prec (s k - m) (d k)) ->
  computes emin prec (map (fun k => (1, expf (d k))) G) S ->
  d k0 = 0 /\ (forall k, In k G -> k <> k0 -> expf (d k) = 0) /\ S = expf 0.
Proof.
  intros M (k1 & I1 & E1) D C.
  assert (m = s k0) as ->.
  { assert (L := M k0 k0_key); destruct (Req_dec (s k0) m) as [E|E]; [auto|exfalso].
    assert (k1 <> k0) as Hk by congruence; specialize (s_gap k1 I1 Hk); lra. }
  assert (D0 : d k0 = 0).
  { specialize (D k0 k0_key); rewrite Rminus_diag_eq in D by reflexivity;
    exact (rounds_exact _ _ D (float_0 emin prec)). }
  assert (Z : forall k, In k G -> k <> k0 -> expf (d k) = 0).
  { intros k I N; apply expf_sharp; [exact (rounds_float emin prec _ _ (D k I))|].
    assert (L := s_gap k I N); specialize (D k I).
    destruct (Rle_lt_or_eq_dec (s k - s k0) (- g) ltac:(lra)) as [L'|E].
    - exact (Rnd_N_pt_monotone F _ _ _ _ D (rounds_itself emin prec _ (generic_format_opp _ _ _ g_float)) L').
    - rewrite E in D; right; exact (rounds_exact _ _ D (generic_format_opp _ _ _ g_float)). }
  repeat split; [exact D0|exact Z|].
  rewrite <- (Rmult_1_l (expf 0)), <- D0.
  apply (one_hot_exact emin prec G (fun _ => 1) (fun k => expf (d k))); try assumption.
  - intros k I N; rewrite Z by assumption; ring.
  - rewrite D0, Rmult_1_l; apply expf_sharp.
Qed.

(** The weight of k0 is exactly 1, every other exactly 0. *)
Theorem softmax_one_hot P : float_softmax emin prec expf G s P -> one_hot G P k0.
Proof.
  intros (m & d & S & M & E & D & C & Q); destruct (row_sum m d S M E D C) as (D0 & Z & ->).
  assert (N := proj1 (proj2 expf_sharp)); split.
  - specialize (Q k0 k0_key); rewrite D0 in Q; unfold Rdiv in Q; rewrite Rinv_r in Q by exact N.
    exact (rounds_exact _ _ Q float_1).
  - intros k I Hk; specialize (Q k I); rewrite (Z k I Hk) in Q; unfold Rdiv in Q; rewrite Rmult_0_l in Q.
    exact (rounds_exact _ _ Q (float_0 emin prec)).
Qed.

(** With fl(1/S), which is 1 if expf(0) = 1. *)
Theorem softmax_one_hot_reciprocal P : expf 0 = 1 ->
  float_softmax_reciprocal emin prec expf G s P -> one_hot G P k0.
Proof.
  intros E1 (m & d & S & i & M & E & D & C & I1 & Q); destruct (row_sum m d S M E D C) as (D0 & Z & ->).
  rewrite E1 in I1; replace (1 / 1) with 1 in I1 by field; apply rounds_exact in I1; [subst i|exact float_1]; split.
  - specialize (Q k0 k0_key); rewrite D0, E1, Rmult_1_l in Q; exact (rounds_exact _ _ Q float_1).
  - intros k I Hk; specialize (Q k I); rewrite (Z k I Hk), Rmult_0_l in Q.
    exact (rounds_exact _ _ Q (float_0 emin prec)).
Qed.

End Row.

(** Scores computed within δ of real scores with the gap g + 2δ. *)
Theorem softmax_one_hot_scores {A} (expf : R -> R) (G : list A) (s computed : A -> R) k0 g δ P :
  NoDup G -> In k0 G -> 0 < g -> F g -> sharp_exp emin prec g expf ->
  gap (g + 2 * δ) G s k0 -> (forall k, In k G -> Rabs (computed k - s k) <= δ) ->
  float_softmax emin prec expf G computed P -> one_hot G P k0.
Proof.
  intros N I G0 Fg X L D; apply (softmax_one_hot expf G computed k0 g); try assumption.
  intros k Ik Hk; specialize (L k Ik Hk); assert (Dk := Rabs_le_inv _ _ (D k Ik)).
  assert (D0 := Rabs_le_inv _ _ (D k0 I)); lra.
Qed.

(** * The exponential *)

(** A positive real below η/2 rounds to 0 under every tie rule. *)
Lemma rounds_to_zero x f : 0 < x -> x < half_eta emin -> rounds emin prec x f -> f = 0.
Proof.
  intros X0 X [Ff N]; specialize (N 0 (float_0 emin prec)).
  replace (0 - x) with (- x) in N by ring; rewrite Rabs_Ropp, (Rabs_pos_eq x) in N by lra; apply Rabs_le_inv in N.
  destruct (FLT_format_generic radix2 emin prec f Ff) as [y Ey _ He]; destruct (Z.eq_dec (Fnum y) 0) as [Z0|Z0].
  - rewrite Ey; unfold F2R; rewrite Z0; ring.
  - exfalso; assert (B : bpow radix2 emin <= Rabs f).
    { rewrite Ey; unfold F2R; rewrite Rabs_mult, (Rabs_pos_eq (bpow _ _)) by apply bpow_ge_0.
      apply Rle_trans with (bpow radix2 (Fexp y)); [apply bpow_le, He|].
      rewrite <- (Rmult_1_l (bpow radix2 (Fexp y))) at 1; apply Rmult_le_compat_r; [apply bpow_ge_0|].
      rewrite <- abs_IZR; apply IZR_le; lia. }
    replace emin with (1 + (emin - 1))%Z in B by ring; rewrite bpow_plus in B; change (bpow radix2 1) with 2 in B.
    unfold half_eta in X; rewrite (Rabs_pos_eq f) in B by lra; lra.
Qed.

(** A correctly rounded exponential satisfies the assumption for every g with e^−g < η/2. *)
Theorem correctly_rounded_exp g expf : correctly_rounded emin prec expf -> exp (- g) < half_eta emin ->
  sharp_exp emin prec g expf.
Proof.
  intros C G; assert (E1 : expf 0 = 1).
  { specialize (C 0 (float_0 emin prec)); rewrite exp_0 in C; exact (rounds_exact _ _ C float_1). }
  repeat split; rewrite ?E1; [exact float_1|lra|].
  intros x Fx L; apply (rounds_to_zero (exp x)); [apply exp_pos| |exact (C x Fx)].
  apply Rle_lt_trans with (exp (- g)); [|exact G]; destruct L as [L|L]; [left; apply exp_increasing; exact L|right;
    congruence].
Qed.

(** Rounding upward is faithful, and never returns 0. *)
Theorem faithful_exp_is_not_enough : exists expf, faithfully_rounded emin prec expf /\ forall x, expf x <> 0.
Proof.
  exists (fun x => round radix2 (FLT_exp emin prec) Zceil (exp x)); split.
  - intros x _; right; apply round_UP_pt, FLT_exp_valid; exact prec_positive.
  - intros x E; assert (U := round_UP_pt radix2 (FLT_exp emin prec) (exp x)); destruct U as (_ & L & _).
    rewrite E in L; assert (P := exp_pos x); lra.
Qed.

End Format.

(** * The number formats *)

(** A gap of α ≥ 104, itself a float, and a correctly rounded exponential: the float32 softmax is one-hot. *)
Theorem float32_one_hot {A} expf (G : list A) s k0 α P : NoDup G -> In k0 G -> correctly_rounded (-149) 24 expf ->
  104 <= α -> float (-149) 24 α -> gap α G s k0 -> float_softmax (-149) 24 expf G s P -> one_hot G P k0.
Proof.
  intros N I C L Fα S; assert (Prec_gt_0 24) by easy; apply (softmax_one_hot (-149) 24 ltac:(lia) expf G s k0 α);
    try assumption; [lra|].
  apply correctly_rounded_exp; try easy; apply float32_below, L.
Qed.

Theorem float64_one_hot {A} expf (G : list A) s k0 α P : NoDup G -> In k0 G -> correctly_rounded (-1074) 53 expf ->
  746 <= α -> float (-1074) 53 α -> gap α G s k0 -> float_softmax (-1074) 53 expf G s P -> one_hot G P k0.
Proof.
  intros N I C L Fα S; assert (Prec_gt_0 53) by easy; apply (softmax_one_hot (-1074) 53 ltac:(lia) expf G s k0 α);
    try assumption; [lra|].
  apply correctly_rounded_exp; try easy; apply float64_below, L.
Qed.

Theorem float16_one_hot {A} expf (G : list A) s k0 α P : NoDup G -> In k0 G -> correctly_rounded (-24) 11 expf ->
  18 <= α -> float (-24) 11 α -> gap α G s k0 -> float_softmax (-24) 11 expf G s P -> one_hot G P k0.
Proof.
  intros N I C L Fα S; assert (Prec_gt_0 11) by easy; apply (softmax_one_hot (-24) 11 ltac:(lia) expf G s k0 α);
    try assumption; [lra|].
  apply correctly_rounded_exp; try easy; apply float16_below, L.
Qed.

Theorem bfloat16_one_hot {A} expf (G : list A) s k0 α P : NoDup G -> In k0 G -> correctly_rounded (-133) 8 expf ->
  93 <= α -> float (-133) 8 α -> gap α G s k0 -> float_softmax (-133) 8 expf G s P -> one_hot G P k0.
Proof.
  intros N I C L Fα S; assert (Prec_gt_0 8) by easy; apply (softmax_one_hot (-133) 8 ltac:(lia) expf G s k0 α);
    try assumption; [lra|].
  apply correctly_rounded_exp; try easy; apply bfloat16_below, L.
Qed.
