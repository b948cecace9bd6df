(** Soft heads as they run: attention axis by axis, whose weights are floats that need not be one-hot.

    On a rectangular grid P^h = P_1^h ⊗ … ⊗ P_d^h (Factorisation.v), so P^h X takes a sum over the keys of one axis after
    another, in any order of the axes, each sum in any order of its terms.  The weights p_i of axis i, at one query, lie
    within η_i of those of a real softmax in sum: FloatSoftmaxError.v says how far.  Statements:
      contracts_total     there is such an evaluation
      contracts_rounding  for |X| ≤ B the attended value errs by at most [axes_error], which is
                          Π_i (1 + η_i)(1 + n_i·u)·(B + underflow) − B, n_i the keys of axis i
      soft_rounding       the computed layer is Eq. 6's to within the rounding and the error of the scores
      soft_within         and the computed convolution to within leakage, taps and rounding; sharp heads copy tokens
      factors_soft_head   the weights that run are as near to a real softmax as that asks
      soft_runs           the same of the weights that run, from an exponential right to ε and the rounding of scores
      rows_rounding       the same of one softmax over all keys, with P X W_val in either order, head by head *)

From Coq Require Import Reals ZArith List Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Softmax Lemma2 Factorisation Layers RoundingTree RoundingDot RoundingHead
  RoundingTaps RoundingLayer RoundingWeights FloatSoftmax FloatSoftmaxError.
Import ListNotations.
Open Scope R_scope.

(** * Averages over a rectangular grid *)

(** Σ_{k ∈ box} Π_i q_i(k_i) x(k) *)
Fixpoint average (axes : list (list Z)) (qs : list (Z -> R)) (x : position -> R) : R :=
  match axes, qs with
  | G :: axes', q :: qs' => sum G (fun k => q k * average axes' qs' (fun k' => x (k :: k')))
  | _, _ => x []
  end.

(** The position p with another coordinate k before its i-th one. *)
Definition insert (i : nat) (k : Z) (p : position) : position := firstn i p ++ k :: skipn i p.

(** [contracts … axes ps x v]: some evaluation of Σ_k Π_i p_i(k_i) x(k) returns v: the sum over one axis comes last, and
    what it adds up is evaluated so along the others. *)
Inductive contracts (emin prec : Z) : list (list Z) -> list (Z -> R) -> (position -> R) -> R -> Prop :=
  | contracts_none x : contracts emin prec [] [] x (x [])
  | contracts_axis before G after ps p ps' x A v : length ps = length before ->
      (forall k, In k G -> contracts emin prec (before ++ after) (ps ++ ps') (fun k' => x (insert (length before) k k')) (A k)) ->
      computes emin prec (map (fun k => (p k, A k)) G) v ->
      contracts emin prec (before ++ G :: after) (ps ++ p :: ps') x v.

(** The real softmaxes of the axes, for scores s_i. *)
Definition softmaxes (axes : list (list Z)) (ss : list (Z -> R)) : list (Z -> R) :=
  map (fun Gs => softmax (fst Gs) (snd Gs)) (combine axes ss).

(** The weights p_i are within η_i ≥ 0 of q_i in sum, and q_i are weights: ≥ 0, and 1 in sum. *)
Inductive near_rows : list (list Z) -> list (Z -> R) -> list (Z -> R) -> list R -> Prop :=
  | near_none : near_rows [] [] [] []
  | near_axis G p q η axes ps qs ηs : (forall k, In k G -> 0 <= q k) -> sum G q = 1 ->
      sum G (fun k => Rabs (p k - q k)) <= η -> near_rows axes ps qs ηs ->
      near_rows (G :: axes) (p :: ps) (q :: qs) (η :: ηs).

(** The factor by which a sum over n keys with weights within η can grow, and what underflows in it. *)
Definition growth (prec : Z) (n : nat) (η : R) : R := (1 + η) * (1 + INR n * roundoff prec).
Definition lost (emin prec : Z) (n : nat) : R := INR n * half_eta emin * (1 + INR n * roundoff prec).

Fixpoint growths (prec : Z) (axes : list (list Z)) (ηs : list R) : R :=
  match axes, ηs with G :: axes', η :: ηs' => growth prec (length G) η * growths prec axes' ηs' | _, _ => 1 end.

Definition axes_error (emin prec : Z) (axes : list (list Z)) (ηs : list R) (B : R) : R :=
  growths prec axes ηs * (B + sum axes (fun G => lost emin prec (length G))) - B.

Lemma average_insert before G after qs q qs' x : length qs = length before ->
  average (before ++ G :: after) (qs ++ q :: qs') x =
  sum G (fun k => q k * average (before ++ after) (qs ++ qs') (fun k' => x (insert (length before) k k'))).
Proof.
  revert qs x; induction before as [|G1 before IH]; intros [|q1 qs] x E; try discriminate; [reflexivity|].
  cbn [app average length]; injection E as E.
  transitivity (sum G1 (fun k1 => sum G (fun k => q1 k1 * (q k * average (before ++ after) (qs ++ qs')
    (fun k' => x (k1 :: insert (length before) k k')))))).
  - apply sum_ext; intros k1 _; rewrite sum_scal, IH by exact E; reflexivity.
  - rewrite sum_swap; apply sum_ext; intros k _; rewrite <- sum_scal; apply sum_ext; intros k1 _.
    change (fun k' => x (k1 :: insert (length before) k k')) with
      (fun k' => x (insert (S (length before)) k (k1 :: k'))); ring.
Qed.

Lemma in_box_insert before G after k p : In k G -> In p (box (before ++ after)) ->
  In (insert (length before) k p) (box (before ++ G :: after)).
Proof.
  rewrite !in_box; intros I; revert p; induction before as [|G1 before IH]; intros p F; cbn [app length] in *.
  - constructor; assumption.
  - inversion F; subst; unfold insert; cbn [firstn skipn app]; constructor; [assumption|]; apply IH; assumption.
Qed.

Lemma near_rows_split before G after ps p ps' qs ηs : length ps = length before ->
  near_rows (before ++ G :: after) (ps ++ p :: ps') qs ηs ->
  exists qs1 q qs2 η1 η η2, qs = qs1 ++ q :: qs2 /\ ηs = η1 ++ η :: η2 /\ length qs1 = length before /\
    length η1 = length before /\ near_rows (before ++ after) (ps ++ ps') (qs1 ++ qs2) (η1 ++ η2) /\
    (forall k, In k G -> 0 <= q k) /\ sum G q = 1 /\ sum G (fun k => Rabs (p k - q k)) <= η.
Proof.
  revert ps qs ηs; induction before as [|G1 before IH]; intros [|p1 ps] qs ηs E N; try discriminate; cbn [app] in N.
  - inversion N as [|? ? q η ? ? qs2 η2]; subst; exists [], q, qs2, [], η, η2.
    do 4 (split; [reflexivity|]); repeat (split; [assumption|]); assumption.
  - injection E as E; inversion N as [|? ? q0 η0 ? ? qs0 ηs0]; subst.
    match goal with N0 : near_rows (before ++ _) _ _ _ |- _ =>
      destruct (IH ps _ _ E N0) as (qs1 & q' & qs2 & η1 & η' & η2 & -> & -> & L & L' & N' & Q) end.
    exists (q0 :: qs1), q', qs2, (η0 :: η1), η', η2; cbn [length app]; rewrite L, L'.
    do 4 (split; [reflexivity|]); split; [constructor; assumption|exact Q].
Qed.

Lemma average_box axes ss x : length ss = length axes ->
  average axes (softmaxes axes ss) x = sum (box axes) (fun k => softmax (box axes) (axis_sum ss) k * x k).
Proof.
  intros E; transitivity (sum (box axes) (fun k => axis_softmaxes axes ss k * x k)).
  - revert ss x E; induction axes as [|G axes IH]; intros [|s ss] x E; try discriminate.
    + unfold sum; simpl; ring.
    + injection E as E; unfold softmaxes; cbn [combine map average box fst snd]; fold (softmaxes axes ss).
      rewrite sum_flat_map; apply sum_ext; intros k _; rewrite sum_map, IH, <- sum_scal by exact E.
      apply sum_ext; intros k' _; cbn [axis_softmaxes]; ring.
  - apply sum_ext; intros k I; rewrite factorisation by assumption; reflexivity.
Qed.

(** * The attended value *)

Section Format.
Variables emin prec : Z.
Context {prec_positive : Prec_gt_0 prec}.

Notation u := (roundoff prec).
Notation h := (half_eta emin).

Lemma growth_ge_1 n η : 0 <= η -> 1 <= growth prec n η.
Proof.
  intros Hη; assert (U := @roundoff_positive prec); assert (N := pos_INR n); unfold growth.
  assert (0 <= INR n * u) by (apply Rmult_le_pos; lra); nra.
Qed.

Lemma lost_nonneg n : 0 <= lost emin prec n.
Proof.
  assert (U := @roundoff_positive prec); assert (Hh := @half_eta_positive emin); assert (N := pos_INR n); unfold lost.
  assert (0 <= INR n * u) by (apply Rmult_le_pos; lra).
  apply Rmult_le_pos; [apply Rmult_le_pos; lra|lra].
Qed.

Lemma growths_insert before G after η1 η η2 : length η1 = length before ->
  growths prec (before ++ G :: after) (η1 ++ η :: η2) =
  growth prec (length G) η * growths prec (before ++ after) (η1 ++ η2).
Proof.
  revert η1; induction before as [|G1 before IH]; intros [|η1 ηs] E; try discriminate; [reflexivity|].
  injection E as E; cbn [app growths]; rewrite IH by exact E; ring.
Qed.

Lemma near_rows_growths axes ps qs ηs : near_rows axes ps qs ηs -> 1 <= growths prec axes ηs.
Proof.
  induction 1 as [|G p q η axes ps qs ηs Q0 Q1 Qp _ IH]; [apply Rle_refl|]; cbn [growths].
  assert (Hη : 0 <= η) by (eapply Rle_trans; [|exact Qp]; apply sum_nonneg; intros; apply Rabs_pos).
  assert (Gr := growth_ge_1 (length G) η Hη); nra.
Qed.

(** Weights within η of q in sum, values within E of a, |a| ≤ B: one sum. *)
Lemma row_rounding {A} (G : list A) (p q x a : A -> R) η B E v : (forall k, In k G -> 0 <= q k) -> sum G q = 1 ->
  sum G (fun k => Rabs (p k - q k)) <= η ->
  (forall k, In k G -> Rabs (x k - a k) <= E) -> (forall k, In k G -> Rabs (a k) <= B) ->
  computes emin prec (map (fun k => (p k, x k)) G) v ->
  Rabs (v - sum G (fun k => q k * a k)) <= growth prec (length G) η * (B + E) + lost emin prec (length G) - B /\
  Rabs (sum G (fun k => q k * a k)) <= B.
Proof.
  intros Q0 Q1 Qp Hx Ha C.
  assert (X : forall k, In k G -> Rabs (x k) <= B + E).
  { intros k I; replace (x k) with (a k + (x k - a k)) by ring; eapply Rle_trans; [apply Rabs_triang|].
    specialize (Hx k I); specialize (Ha k I); lra. }
  assert (G0 : exists k, In k G).
  { destruct G as [|k G']; [unfold sum in Q1; simpl in Q1; lra|exists k; left; reflexivity]. }
  destruct G0 as [k0 I0].
  assert (V0 : 0 <= B + E) by (eapply Rle_trans; [apply Rabs_pos|apply (X k0 I0)]).
  assert (E0 : 0 <= E) by (eapply Rle_trans; [apply Rabs_pos|apply (Hx k0 I0)]).
  assert (W : weight (map p G) <= 1 + η).
  { unfold weight; rewrite sum_map; apply Rle_trans with (sum G q + sum G (fun k => Rabs (p k - q k))); [|lra].
    rewrite <- sum_plus; apply sum_le; intros k I; replace (p k) with (q k + (p k - q k)) at 1 by ring.
    eapply Rle_trans; [apply Rabs_triang|]; rewrite (Rabs_pos_eq (q k)) by (apply Q0, I); lra. }
  assert (S : forall c, sum G (fun k => q k * c) = c) by (intros; rewrite sum_scal_r, Q1; ring).
  split.
  2: { rewrite <- (S B); eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros k I; specialize (Q0 k I).
       rewrite Rabs_mult, Rabs_pos_eq by exact Q0; apply Rmult_le_compat_l; [exact Q0|apply Ha, I]. }
  assert (R := weighted_rounding emin prec G p x (B + E) v X C).
  assert (D : Rabs (sum G (fun k => p k * x k) - sum G (fun k => q k * a k)) <= η * (B + E) + E).
  { rewrite <- sum_minus; eapply Rle_trans; [apply sum_abs|].
    apply Rle_trans with (sum G (fun k => Rabs (p k - q k) * (B + E) + q k * E)).
    - apply sum_le; intros k I; replace (p k * x k - q k * a k) with ((p k - q k) * x k + q k * (x k - a k)) by ring.
      eapply Rle_trans; [apply Rabs_triang|]; rewrite !Rabs_mult, (Rabs_pos_eq (q k)) by (apply Q0, I).
      apply Rplus_le_compat; apply Rmult_le_compat_l; try apply Rabs_pos; [apply X, I|apply Q0, I|apply Hx, I].
    - rewrite sum_plus, sum_scal_r, S; apply Rplus_le_compat_r, Rmult_le_compat_r; assumption. }
  assert (DB := dot_bound_monotone emin prec (support (map p G)) (length G) (weight (map p G) * (B + E))
    ((1 + η) * (B + E)) ltac:(eapply Nat.le_trans; [apply support_length|rewrite map_length; lia])
    ltac:(apply Rmult_le_pos; [apply weight_nonneg|exact V0]) ltac:(apply Rmult_le_compat_r; assumption)).
  replace (v - sum G (fun k => q k * a k)) with (v - sum G (fun k => p k * x k)
    + (sum G (fun k => p k * x k) - sum G (fun k => q k * a k))) by ring.
  eapply Rle_trans; [apply Rabs_triang|]; unfold growth, lost, RoundingDot.dot_bound in *; lra.
Qed.

(** Axis after axis. *)
Theorem contracts_rounding axes ps qs ηs x B v : contracts emin prec axes ps x v -> near_rows axes ps qs ηs ->
  (forall k, In k (box axes) -> Rabs (x k) <= B) ->
  Rabs (v - average axes qs x) <= axes_error emin prec axes ηs B /\ Rabs (average axes qs x) <= B.
Proof.
  intros C; revert qs ηs; induction C as [x|before G after ps p ps' x A v Lp Cs IH C]; intros qs ηs N HB.
  - inversion N; subst; unfold axes_error; cbn [average growths]; change (sum [] _) with 0.
    rewrite Rminus_diag_eq, Rabs_R0 by reflexivity; split; [lra|apply HB; left; reflexivity].
  - destruct (near_rows_split _ _ _ _ _ _ _ _ Lp N) as (qs1 & q & qs2 & η1 & η & η2 & -> & -> & Lq & Lη & N' & Q0 & Q1 & Qp).
    rewrite average_insert by exact Lq.
    destruct (row_rounding G p q A (fun k => average (before ++ after) (qs1 ++ qs2)
      (fun k' => x (insert (length before) k k'))) η B (axes_error emin prec (before ++ after) (η1 ++ η2) B) v)
      as [R R']; try assumption.
    1, 2: intros k I; apply (IH k I _ _ N'); intros k' I'; apply HB, in_box_insert; assumption.
    split; [|exact R']; eapply Rle_trans; [exact R|]; unfold axes_error; rewrite growths_insert by exact Lη.
    rewrite !sum_app, sum_cons; set (g := growths prec (before ++ after) (η1 ++ η2)).
    set (t := sum before _); set (t' := sum after _); assert (T := lost_nonneg (length G)).
    assert (Hη : 0 <= η) by (eapply Rle_trans; [|exact Qp]; apply sum_nonneg; intros; apply Rabs_pos).
    assert (g1 := growth_ge_1 (length G) η Hη); assert (g2 : 1 <= g) by (eapply near_rows_growths, N').
    assert (1 * lost emin prec (length G) <= growth prec (length G) η * g * lost emin prec (length G)).
    { apply Rmult_le_compat_r; [exact T|nra]. }
    lra.
Qed.

(** There is such an evaluation: the first axis last. *)
Lemma contracts_total axes ps x : length ps = length axes -> exists v, contracts emin prec axes ps x v.
Proof.
  revert ps x; induction axes as [|G axes IH]; intros [|p ps] x E; try discriminate; [eexists; constructor|].
  injection E as E; assert (F : exists A : Z -> R, forall k, contracts emin prec axes ps (fun k' => x (k :: k')) (A k) \/ ~ In k G).
  { induction G as [|k0 G (A & FA)]; [exists (fun _ => 0); right; intros []|].
    destruct (IH ps (fun k' => x (k0 :: k')) E) as (v0 & C0); exists (fun k => if Z.eq_dec k k0 then v0 else A k); intros k.
    destruct (Z.eq_dec k k0) as [->|D]; [left; exact C0|]; destruct (FA k) as [C|N]; [left; exact C|right; intros [I|I]].
    - apply D; symmetry; exact I.
    - exact (N I). }
  destruct F as (A & FA), (computes_total emin prec (map (fun k => (p k, A k)) G)) as (v & C); exists v.
  apply (contracts_axis emin prec [] G axes [] p ps x A v eq_refl); [|exact C].
  intros k I; destruct (FA k) as [Ck|N]; [exact Ck|contradiction].
Qed.

(** Of the real softmaxes of scores ss that are off by ρ in sum, from those of s. *)
Lemma softmax_average axes ss s ρ x B : length ss = length axes -> box axes <> [] ->
  (forall k, In k (box axes) -> Rabs (axis_sum ss k - s k) <= ρ) -> (forall k, In k (box axes) -> Rabs (x k) <= B) ->
  Rabs (average axes (softmaxes axes ss) x - sum (box axes) (fun k => softmax (box axes) s k * x k)) <=
  (exp (2 * ρ) - 1) * B.
Proof.
  intros E N S HB; rewrite average_box, <- sum_minus by exact E; eapply Rle_trans; [apply sum_abs|].
  assert (D := softmax_near (box axes) s (axis_sum ss) ρ N S).
  assert (B0 : 0 <= B).
  { destruct (box axes) as [|k G]; [congruence|]; eapply Rle_trans; [apply Rabs_pos|apply (HB k); left; reflexivity]. }
  eapply Rle_trans; [|apply Rmult_le_compat_r; [exact B0|exact D]]; rewrite <- sum_scal_r; apply sum_le; intros k I.
  rewrite <- Rmult_minus_distr_r, Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|apply HB, I].
Qed.

(** * The layer *)

Section Layer.
Context {H : Type}.
Variables (L : layer H) (axes : list (list Z)) (X : image) (q : position) (j : nat) (B : R).

Notation G := (box axes).
Notation size h c := (magnitude (weight_terms L j h c)).

Hypothesis B_bounds : forall k c, In k G -> (c < D_in L)%nat -> Rabs (X k c) <= B.

(** The entries of W_val W_out are formed first, and have errors of at most e. *)
Variable e : H -> nat -> R.
Hypothesis entry_rounding : forall h c v, In h (heads L) -> (c < D_in L)%nat ->
  computes emin prec (weight_terms L j h c) v -> Rabs (v - exact (weight_terms L j h c)) <= e h c.

(** The weights ps of a head on the axes: each within η of the softmax of scores, which add up to the head's own score
    but for ρ. *)
Definition soft_head (h : H) (ps : list (Z -> R)) (ηs : list R) (ρ : R) : Prop :=
  exists ss, length ss = length axes /\ near_rows axes ps (softmaxes axes ss) ηs /\
    forall k, In k G -> Rabs (axis_sum ss k - score L h X q k) <= ρ.

(** Some evaluation of row q, channel j, returns z: the heads for which [soft] holds attend axis by axis, the others copy
    the token at q + f(h). *)
Definition soft_computes (soft : H -> bool) (f : H -> position) (ps : H -> list (Z -> R)) (z : R) : Prop :=
  exists M A : H -> nat -> R,
    (forall h c, In h (heads L) -> (c < D_in L)%nat -> computes emin prec (weight_terms L j h c) (M h c) /\
       if soft h then contracts emin prec axes (ps h) (fun k => X k c) (A h c) else A h c = X (add q (f h)) c) /\
    computes emin prec
      ((b_out L j, 1) :: flat_map (fun h => map (fun c => (M h c, A h c)) (seq 0 (D_in L))) (heads L)) z.

(** Rounding: the heads' errors E and D times what they carry, the entries' errors, and the one sum. *)
Definition soft_figure (E D : H -> R) : R :=
  sum (heads L) (fun h => sum_below (D_in L) (fun c => e h c * (B + E h) + size h c * D h))
  + dot_bound emin prec (support (b_out L j :: flat_map (fun h => map (fun c => size h c) (seq 0 (D_in L))) (heads L)))
      (Rabs (b_out L j) + sum (heads L) (fun h => sum_below (D_in L) (fun c => (size h c + e h c) * (B + E h)))).

(** Eq. 3 by the entries of W_val W_out. *)
Lemma attend_carried : attend L G X q j = b_out L j + sum (heads L) (fun h => sum_below (D_in L) (fun c =>
  carried L j h c * sum G (fun k => attention L G h X q k * X k c))).
Proof. rewrite attend_heads; f_equal; apply sum_ext; intros h _; apply sum_below_ext; intros; apply Rmult_comm. Qed.

Section Soft.
Variables (ps : H -> list (Z -> R)) (ηs : H -> list R) (ρ : H -> R).

Notation E h := (axes_error emin prec axes (ηs h) B).

Lemma soft_attended h c A : soft_head h (ps h) (ηs h) (ρ h) -> (c < D_in L)%nat -> box axes <> [] ->
  contracts emin prec axes (ps h) (fun k => X k c) A ->
  exists a, Rabs (A - a) <= E h /\ Rabs a <= B /\
    Rabs (a - sum G (fun k => attention L G h X q k * X k c)) <= (exp (2 * ρ h) - 1) * B /\
    exists s, (forall k, In k G -> Rabs (s k - score L h X q k) <= ρ h) /\ a = sum G (fun k => softmax G s k * X k c).
Proof.
  intros (ss & Ls & N & S) Hc G0 C; assert (HB : forall k, In k G -> Rabs (X k c) <= B) by (intros; apply B_bounds; assumption).
  destruct (contracts_rounding _ _ _ _ _ _ _ C N HB) as [R R'].
  exists (average axes (softmaxes axes ss) (fun k => X k c)); repeat (split; [assumption|]); split.
  - exact (softmax_average axes ss (fun k => score L h X q k) (ρ h) (fun k => X k c) B Ls G0 S HB).
  - exists (axis_sum ss); split; [exact S|apply average_box, Ls].
Qed.

(** |fl(MHSA(X)) − MHSA(X)| against Eq. 3 and Eq. 6, where all heads are soft. *)
Theorem soft_rounding f z : G <> [] -> (forall h, In h (heads L) -> soft_head h (ps h) (ηs h) (ρ h)) ->
  soft_computes (fun _ => true) f ps z ->
  Rabs (z - attend L G X q j) <= soft_figure (fun h => E h) (fun h => E h + (exp (2 * ρ h) - 1) * B).
Proof.
  intros G0 HS (M & A & HMA & Z); rewrite attend_carried.
  assert (Ex := fun h c Ih Hc => soft_attended h c (A h c) (HS h Ih) Hc G0 (proj2 (HMA h c Ih Hc))).
  refine (attended_sum emin prec L j e entry_rounding M A (fun h c => sum G (fun k => attention L G h X q k * X k c))
    (fun h => E h + (exp (2 * ρ h) - 1) * B) (fun h => B + E h) z _ _ _ Z).
  - intros h c Ih Hc; apply HMA; assumption.
  - intros h c Ih Hc; destruct (Ex h c Ih Hc) as (a & R & _ & R2 & _).
    replace (A h c - _) with (A h c - a + (a - sum G (fun k => attention L G h X q k * X k c))) by ring.
    eapply Rle_trans; [apply Rabs_triang|]; lra.
  - intros h c Ih Hc; destruct (Ex h c Ih Hc) as (a & R & R1 & _).
    replace (A h c) with (a + (A h c - a)) by ring; eapply Rle_trans; [apply Rabs_triang|]; lra.
Qed.

(** Against the convolution: heads look at q + f(h), where the soft ones give all but λ_h of the attention. *)
Section Within.
Variables (soft : H -> bool) (f : H -> position) (λ : H -> R) (Δ : list position) (W : position -> matrix) (b : vector).
Hypothesis kernel_distinct : NoDup Δ.
Hypothesis X_floats : forall k c, In k G -> (c < D_in L)%nat -> float emin prec (X k c).
Hypothesis kernel_on_grid : forall τ, In τ Δ -> In (add q τ) G.
Hypothesis heads_on_grid : forall h, In h (heads L) -> In (add q (f h)) G.
Hypothesis leaks : forall h, In h (heads L) -> soft h = true ->
  soft_head h (ps h) (ηs h) (ρ h) /\ 1 - attention L G h X q (add q (f h)) <= λ h.

Definition head_error (h : H) : R := if soft h then E h else 0.
Definition head_leak (h : H) : R := if soft h then exp (2 * ρ h) * λ h else 0.

(** |fl(MHSA(X)) − fl(Conv(X))| ≤ leakage + taps + rounding of the convolution + rounding of the attention. *)
Theorem soft_within y z : computes emin prec (conv_terms (D_in L) Δ W b X q j) y -> soft_computes soft f ps z ->
  Rabs (z - y) <=
    2 * B * sum (heads L) (fun h => head_leak h * sum_below (D_in L) (fun c => size h c))
    + taps_difference L f Δ W b j B
    + dot_bound emin prec (support (b j :: conv_weights (D_in L) Δ W j)) (Rabs (b j) + weight (conv_weights (D_in L) Δ W j) * B)
    + soft_figure head_error head_error.
Proof.
  intros Cy (M & A & HMA & Z).
  assert (Ex : forall h c, In h (heads L) -> (c < D_in L)%nat ->
    Rabs (A h c - X (add q (f h)) c) <= head_error h + 2 * B * head_leak h /\ Rabs (A h c) <= B + head_error h).
  { intros h c Ih Hc; assert (I := heads_on_grid h Ih); destruct (HMA h c Ih Hc) as [_ C].
    assert (Bx := B_bounds _ c I Hc); unfold head_error, head_leak; destruct (soft h) eqn:Sh.
    - destruct (leaks h Ih Sh) as [HS Lk]; assert (G0 : G <> []) by (intros E0; rewrite E0 in I; destruct I).
      destruct (soft_attended h c (A h c) HS Hc G0 C) as (a & R & R1 & _ & s & Ss & ->).
      set (a := sum G _) in *.
      assert (D : Rabs (a - X (add q (f h)) c) <= 2 * B * leak G s (add q (f h))).
      { apply (attended_error G s (add q (f h)) (fun k => X k c) B I); intros; apply B_bounds; assumption. }
      assert (P := leak_perturbed G (fun k => score L h X q k) s (ρ h) (add q (f h)) I Ss).
      assert (P' : exp (2 * ρ h) * leak G (fun k => score L h X q k) (add q (f h)) <= exp (2 * ρ h) * λ h).
      { apply Rmult_le_compat_l; [left; apply exp_pos|exact Lk]. }
      assert (B0 : 0 <= B) by (eapply Rle_trans; [apply Rabs_pos|exact Bx]).
      assert (2 * B * leak G s (add q (f h)) <= 2 * B * (exp (2 * ρ h) * λ h)) by (apply Rmult_le_compat_l; lra).
      split.
      + replace (A h c - X (add q (f h)) c) with (A h c - a + (a - X (add q (f h)) c)) by ring.
        eapply Rle_trans; [apply Rabs_triang|]; lra.
      + replace (A h c) with (a + (A h c - a)) by ring; eapply Rle_trans; [apply Rabs_triang|]; lra.
    - rewrite C, Rminus_diag_eq, Rabs_R0 by reflexivity; split; lra. }
  assert (R := attended_sum emin prec L j e entry_rounding M A (fun h c => X (add q (f h)) c)
    (fun h => head_error h + 2 * B * head_leak h) (fun h => B + head_error h) z
    (fun h c Ih Hc => proj1 (HMA h c Ih Hc)) (fun h c Ih Hc => proj1 (Ex h c Ih Hc)) (fun h c Ih Hc => proj2 (Ex h c Ih Hc)) Z).
  cbv beta in R; rewrite <- one_hot_layer_carried in R.
  assert (S : sum (heads L) (fun h => sum_below (D_in L) (fun c => e h c * (B + head_error h) +
      size h c * (head_error h + 2 * B * head_leak h))) =
    sum (heads L) (fun h => sum_below (D_in L) (fun c => e h c * (B + head_error h) + size h c * head_error h))
    + 2 * B * sum (heads L) (fun h => head_leak h * sum_below (D_in L) (fun c => size h c))).
  { rewrite <- sum_scal, <- sum_plus; apply sum_ext; intros h _; unfold sum_below.
    rewrite <- !sum_scal, <- sum_plus; apply sum_ext; intros; ring. }
  rewrite S in R; assert (T := both_rounding emin prec L f G Δ W b X q j B kernel_distinct
    (fun k c Ik Hc => conj (X_floats k c Ik Hc) (B_bounds k c Ik Hc)) kernel_on_grid heads_on_grid _ y z Cy R).
  unfold soft_figure; lra.
Qed.

End Within.
End Soft.

(** * The weights that run *)

(** The score of every axis, c_0·(x − q_i)² + c_i·(x − q_i), for a query at q. *)
Fixpoint axis_terms (c : vector) (q : position) : list (Z -> R) :=
  match q with
  | [] => []
  | q1 :: q' => (fun x => c O * IZR ((x - q1) * (x - q1)) + c 1%nat * IZR (x - q1))
                :: axis_terms (fun i => match i with O => c O | S i' => c (S (S i')) end) q'
  end.

Lemma axis_terms_score c p k : length k = length p ->
  axis_sum (axis_terms c p) k = dot (S (length p)) c (r_quadratic (sub k p)).
Proof.
  revert c k; induction p as [|p1 p IH]; intros c [|k1 k] E; try discriminate.
  - cbn; unfold dot, sum_below, sum; simpl; ring.
  - injection E as E; cbn [axis_terms axis_sum]; rewrite IH by exact E; unfold dot; cbn [length]; rewrite !sum_below_S.
    pose (rest := sum_below (length p) (fun i => c (S (S i)) * coordinate (sub k p) i)).
    change (sum_below (length p) _) with rest; change (sum_below (length p) _) with rest.
    cbn [r_quadratic sub norm2]; unfold coordinate; cbn [nth]; rewrite plus_IZR; ring.
Qed.

(** [factors … axes ts ps]: the weights ps that run (FloatSoftmaxError.v), for scores off by σ at most from ts, and within
    D of each other on every axis. *)
Inductive factors (emin' prec' : Z) (expf : R -> R) (σ D : R) : list (list Z) -> list (Z -> R) -> list (Z -> R) -> Prop :=
  | factors_none : factors emin' prec' expf σ D [] [] []
  | factors_axis K t s p axes ts ps : K <> [] ->
      (forall k, In k K -> float emin' prec' (s k) /\ Rabs (s k - t k) <= σ) ->
      (forall k k', In k K -> In k' K -> s k' - s k <= D) ->
      factor_computes emin' prec' emin prec expf K s p -> factors emin' prec' expf σ D axes ts ps ->
      factors emin' prec' expf σ D (K :: axes) (t :: ts) (p :: ps).

(** η_i of every axis. *)
Definition factor_errors (emin' prec' : Z) (ε η' : R) : list R :=
  map (fun K : list Z => factor_error emin' prec' emin prec (length K) ε η') axes.

(** They are those of a soft head: ρ is d·(σ + u'·D). *)
Theorem factors_soft_head emin' prec' expf ε η' σ D h ps : (0 < prec')%Z -> 0 <= ε -> 0 <= η' ->
  accurate_exp emin' prec' ε η' expf -> (forall K, In K axes -> sum_error emin' prec' (length K) ε η' < 1) ->
  content_free L h -> D_p L = S (length q) -> (forall δ, r L δ = r_quadratic δ) -> length q = length axes ->
  factors emin' prec' expf σ D axes
    (axis_terms (row_times (D_k L) (v (parameters L h)) (W_key_pos (parameters L h))) q) ps ->
  soft_head h ps (factor_errors emin' prec' ε η') (INR (length axes) * (σ + roundoff prec' * D)).
Proof.
  intros Hp E0 H0 Ex Hθ C Ep Er Lq F; unfold soft_head, factor_errors.
  set (ts := axis_terms _ q) in F.
  assert (T : forall k, In k G -> axis_sum ts k = score L h X q k).
  { intros k I; apply length_in_box in I; unfold ts; rewrite axis_terms_score by congruence.
    rewrite read_back, Ep, Er by exact C; reflexivity. }
  enough (exists ss, length ss = length axes /\ near_rows axes ps (softmaxes axes ss)
      (map (fun K : list Z => factor_error emin' prec' emin prec (length K) ε η') axes) /\
      forall k, In k G -> Rabs (axis_sum ss k - axis_sum ts k) <= INR (length axes) * (σ + roundoff prec' * D))
    as (ss & Ls & N & S).
  { exists ss; split; [exact Ls|split; [exact N|]]; intros k I; rewrite <- T by exact I; apply S, I. }
  clear T; revert Hθ; clearbody ts; clear - F Hp E0 H0 Ex prec_positive.
  induction F as [|K t s p axes ts ps K0 Ts HD Fc F IH]; intros Hθ.
  - exists []; split; [reflexivity|split; [constructor|]]; intros k _; simpl; rewrite Rminus_diag_eq, Rabs_R0 by reflexivity.
    lra.
  - destruct IH as (ss & Ls & N & S); [intros; apply Hθ; right; assumption|].
    destruct (factor_rounding emin' prec' emin prec expf K s p t ε η' σ D Hp prec_positive K0 E0 H0 Ex
      (Hθ K (or_introl eq_refl)) Ts HD Fc) as (s' & T' & Err).
    exists (s' :: ss); split; [simpl; congruence|]; split.
    + unfold softmaxes; cbn [combine map fst snd]; constructor; try assumption.
      * intros k I; left; apply softmax_positive, I.
      * apply softmax_sum, K0.
    + intros k I; apply in_box in I; inversion I as [|k1 ? k' ? I1 I']; subst; apply in_box in I'.
      specialize (S k' I'); specialize (T' k1 I1); cbn [axis_sum length]; rewrite S_INR.
      replace (s' k1 + axis_sum ss k' - (t k1 + axis_sum ts k')) with (s' k1 - t k1 + (axis_sum ss k' - axis_sum ts k')) by ring.
      eapply Rle_trans; [apply Rabs_triang|]; lra.
Qed.

(** So the code that runs, at its own sharpness, is within this of the computed convolution, for inputs of this size. *)
Theorem soft_runs emin' prec' expf ε η' σ D soft f λ Δ W b ps y z : (0 < prec')%Z -> 0 <= ε -> 0 <= η' ->
  accurate_exp emin' prec' ε η' expf -> (forall K, In K axes -> sum_error emin' prec' (length K) ε η' < 1) ->
  D_p L = S (length q) -> (forall δ, r L δ = r_quadratic δ) -> length q = length axes ->
  NoDup Δ -> (forall k c, In k G -> (c < D_in L)%nat -> float emin prec (X k c)) ->
  (forall τ, In τ Δ -> In (add q τ) G) -> (forall h, In h (heads L) -> In (add q (f h)) G) ->
  (forall h, In h (heads L) -> soft h = true -> content_free L h /\ 1 - attention L G h X q (add q (f h)) <= λ h /\
     factors emin' prec' expf σ D axes
       (axis_terms (row_times (D_k L) (v (parameters L h)) (W_key_pos (parameters L h))) q) (ps h)) ->
  computes emin prec (conv_terms (D_in L) Δ W b X q j) y -> soft_computes soft f ps z ->
  let E := axes_error emin prec axes (factor_errors emin' prec' ε η') B in
  let ρ := INR (length axes) * (σ + roundoff prec' * D) in
  Rabs (z - y) <=
    2 * B * sum (heads L) (fun h => (if soft h then exp (2 * ρ) * λ h else 0) * sum_below (D_in L) (fun c => size h c))
    + taps_difference L f Δ W b j B
    + dot_bound emin prec (support (b j :: conv_weights (D_in L) Δ W j)) (Rabs (b j) + weight (conv_weights (D_in L) Δ W j) * B)
    + soft_figure (fun h => if soft h then E else 0) (fun h => if soft h then E else 0).
Proof.
  intros Hp E0 H0 Ex Hθ Ep Er Lq NΔ Xf KG HG Hs Cy Cz E ρ.
  apply (soft_within ps (fun _ => factor_errors emin' prec' ε η') (fun _ => ρ) soft f λ Δ W b NΔ Xf KG HG); [|exact Cy|exact Cz].
  intros h Ih Sh; destruct (Hs h Ih Sh) as (C & Lk & F); split; [|exact Lk].
  apply (factors_soft_head emin' prec' expf); assumption.
Qed.

End Layer.

(** * One softmax over all keys, head by head *)

(** The error of Σ_k P_k X_k w for a row P within η of a real one, in either order. *)
Definition row_head_error (o : head_order) (N : nat) (B η : R) (w : list R) : R :=
  match o with
  | values_first =>
      let E := dot_bound emin prec (support w) (weight w * B) in
      growth prec N η * (weight w * B + E) + lost emin prec N - weight w * B
  | attended_first =>
      let E := growth prec N η * B + lost emin prec N - B in
      weight w * E + dot_bound emin prec (support w) (weight w * (B + E))
  end.

Lemma row_head_rounding o d_in (K : list position) (X : image) (P Q : position -> R) (w : vector) B η y :
  (forall k, In k K -> 0 <= Q k) -> sum K Q = 1 -> sum K (fun k => Rabs (P k - Q k)) <= η ->
  (forall k c, In k K -> (c < d_in)%nat -> Rabs (X k c) <= B) -> 0 <= B -> head_computes emin prec o d_in K X P w y ->
  let ws := map w (seq 0 d_in) in
  Rabs (y - sum (seq 0 d_in) (fun c => w c * sum K (fun k => Q k * X k c))) <= row_head_error o (length K) B η ws /\
  Rabs (sum (seq 0 d_in) (fun c => w c * sum K (fun k => Q k * X k c))) <= weight ws * B.
Proof.
  intros Q0 Q1 QP HX B0 C ws.
  assert (XB : forall k c, In k K -> In c (seq 0 d_in) -> Rabs (X k c) <= B) by (intros k c I Ic; apply in_seq in Ic; apply HX;
    [exact I|lia]).
  assert (S : forall c, sum K (fun k => Q k * c) = c) by (intros; rewrite sum_scal_r, Q1; ring).
  assert (QX : forall c, In c (seq 0 d_in) -> Rabs (sum K (fun k => Q k * X k c)) <= B).
  { intros c Ic; rewrite <- (S B); eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros k I; specialize (Q0 k I).
    rewrite Rabs_mult, Rabs_pos_eq by exact Q0; apply Rmult_le_compat_l; [exact Q0|apply XB; assumption]. }
  split; [|apply weighted_sum, QX]; destruct o; destruct C as (A & CA & C); unfold row_head_error; cbv zeta.
  - replace (sum (seq 0 d_in) (fun c => w c * sum K (fun k => Q k * X k c)))
      with (sum K (fun k => Q k * sum (seq 0 d_in) (fun c => w c * X k c))).
    + apply (row_rounding K P Q A _ η _ _ y Q0 Q1 QP); [| |exact C]; intros k I.
      * apply (weighted_rounding emin prec); [intros c Ic; apply XB; assumption|apply CA, I].
      * apply weighted_sum; intros c Ic; apply XB; assumption.
    + rewrite (sum_ext K _ (fun k => sum (seq 0 d_in) (fun c => Q k * (w c * X k c)))) by (intros; rewrite sum_scal; reflexivity).
      rewrite sum_swap; apply sum_ext; intros c _; rewrite <- sum_scal; apply sum_ext; intros; ring.
  - set (E := growth prec (length K) η * B + lost emin prec (length K) - B).
    assert (EA : forall c, In c (seq 0 d_in) -> Rabs (A c - sum K (fun k => Q k * X k c)) <= E).
    { intros c Ic; destruct (row_rounding K P Q (fun k => X k c) (fun k => X k c) η B 0 (A c) Q0 Q1 QP) as [R _].
      - intros; rewrite Rminus_diag_eq, Rabs_R0 by reflexivity; apply Rle_refl.
      - intros k I; apply XB; assumption.
      - apply in_seq in Ic; apply CA; lia.
      - rewrite Rplus_0_r in R; exact R. }
    assert (AA : forall c, In c (seq 0 d_in) -> Rabs (A c) <= B + E).
    { intros c Ic; replace (A c) with (sum K (fun k => Q k * X k c) + (A c - sum K (fun k => Q k * X k c))) by ring.
      eapply Rle_trans; [apply Rabs_triang|]; specialize (EA c Ic); specialize (QX c Ic); lra. }
    assert (R := weighted_rounding emin prec (seq 0 d_in) w A _ y AA C).
    assert (D := weighted_sum (seq 0 d_in) w (fun c => A c - sum K (fun k => Q k * X k c)) E EA).
    rewrite (sum_ext _ _ (fun c => w c * A c - w c * sum K (fun k => Q k * X k c))), sum_minus in D by (intros; ring).
    fold ws in R, D.
    match goal with |- Rabs (y - ?x) <= _ =>
      replace (y - x) with (y - sum (seq 0 d_in) (fun c => w c * A c) + (sum (seq 0 d_in) (fun c => w c * A c) - x)) by ring end.
    eapply Rle_trans; [apply Rabs_triang|]; lra.
Qed.

(** |fl(MHSA(X)) − MHSA(X)| against Eq. 3 and Eq. 6: any grid, and row P^h within η_h of the softmax of scores that are off
    by ρ_h at most. *)
Theorem rows_rounding {H} (L : layer H) o (K : list position) (X : image) q j B (P : H -> position -> R) (η ρ : H -> R) z :
  K <> [] -> (forall k c, In k K -> (c < D_in L)%nat -> Rabs (X k c) <= B) -> 0 <= B ->
  (forall h, In h (heads L) -> exists s, (forall k, In k K -> Rabs (s k - score L h X q k) <= ρ h) /\
     sum K (fun k => Rabs (P h k - softmax K s k)) <= η h) ->
  attend_computes emin prec (by_heads o) L K X P j z ->
  let col h i := map (fun c => W_val (parameters L h) c i) (seq 0 (D_in L)) in
  let err h i := row_head_error o (length K) B (η h) (col h i) in
  let over f := sum (heads L) (fun h => sum_below (D_h L) (fun i => Rabs (W_out (parameters L h) i j) * f h i)) in
  Rabs (z - attend L K X q j) <=
    over (fun h i => err h i + (exp (2 * ρ h) - 1) * (weight (col h i) * B))
    + dot_bound emin prec
        (support (b_out L j :: flat_map (fun h => map (fun i => W_out (parameters L h) i j) (seq 0 (D_h L))) (heads L)))
        (Rabs (b_out L j) + over (fun h i => weight (col h i) * B + err h i)).
Proof.
  intros K0 HX B0 HP (C & HC & Z) col err over.
  set (a := fun h c => sum K (fun k => attention L K h X q k * X k c)).
  set (x := fun h i => sum (seq 0 (D_in L)) (fun c => W_val (parameters L h) c i * a h c)).
  assert (Ex : forall h i, In h (heads L) -> (i < D_h L)%nat ->
    Rabs (C h i - x h i) <= err h i + (exp (2 * ρ h) - 1) * (weight (col h i) * B) /\
    Rabs (C h i) <= weight (col h i) * B + err h i).
  { intros h i Ih Hi; destruct (HP h Ih) as (s & Ss & Sp).
    destruct (row_head_rounding o (D_in L) K X (P h) (softmax K s) (fun c => W_val (parameters L h) c i) B (η h) (C h i))
      as [R R']; try assumption.
    - intros k I; left; apply softmax_positive, I.
    - apply softmax_sum, K0.
    - apply HC; assumption.
    - fold (col h i) in R, R'; fold (err h i) in R.
      set (y := sum (seq 0 (D_in L)) (fun c => W_val (parameters L h) c i * sum K (fun k => softmax K s k * X k c))) in *.
      assert (D : Rabs (y - x h i) <= weight (col h i) * ((exp (2 * ρ h) - 1) * B)).
      { unfold y, x; rewrite <- sum_minus.
        rewrite (sum_ext _ _ (fun c => W_val (parameters L h) c i * (sum K (fun k => softmax K s k * X k c) - a h c)))
          by (intros; ring).
        apply weighted_sum; intros c Ic; apply in_seq in Ic; unfold a; rewrite <- sum_minus.
        eapply Rle_trans; [apply sum_abs|].
        eapply Rle_trans; [|apply Rmult_le_compat_r; [exact B0|exact (softmax_near K _ s (ρ h) K0 Ss)]].
        rewrite <- sum_scal_r; apply sum_le; intros k I; unfold attention.
        rewrite <- Rmult_minus_distr_r, Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|apply HX; [exact I|lia]]. }
      split.
      + replace (C h i - x h i) with (C h i - y + (y - x h i)) by ring; eapply Rle_trans; [apply Rabs_triang|]; lra.
      + replace (C h i) with (y + (C h i - y)) by ring; eapply Rle_trans; [apply Rabs_triang|]; lra. }
  assert (At : attend L K X q j = b_out L j + sum (heads L) (fun h => sum_below (D_h L) (fun i =>
    W_out (parameters L h) i j * x h i))).
  { unfold attend; f_equal; apply sum_ext; intros h _; unfold row_times at 1; apply sum_below_ext; intros i _.
    unfold row_times, x, a; rewrite Rmult_comm; f_equal; unfold sum_below; apply sum_ext; intros; ring. }
  rewrite At; assert (R := pairs_rounding emin prec _ _ Z).
  set (l := flat_map (fun h => map (fun i => (W_out (parameters L h) i j, C h i)) (seq 0 (D_h L))) (heads L)) in *.
  assert (Wl : map fst ((b_out L j, 1) :: l) = b_out L j :: flat_map (fun h => map (fun i => W_out (parameters L h) i j)
    (seq 0 (D_h L))) (heads L)).
  { simpl map; f_equal; unfold l; rewrite map_flat_map; apply flat_map_ext; intros h; apply map_map. }
  rewrite Wl in R.
  assert (Ml : magnitude ((b_out L j, 1) :: l) <= Rabs (b_out L j) + over (fun h i => weight (col h i) * B + err h i)).
  { rewrite magnitude_cons, Rmult_1_r; apply Rplus_le_compat_l; unfold l, magnitude, over; rewrite sum_flat_map.
    apply sum_le; intros h Ih; rewrite sum_map; apply sum_le; intros i Ii; apply in_seq in Ii; cbn [fst snd].
    rewrite Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|]; apply (Ex h i Ih ltac:(lia)). }
  assert (D : Rabs (exact ((b_out L j, 1) :: l) - (b_out L j + sum (heads L) (fun h => sum_below (D_h L) (fun i =>
      W_out (parameters L h) i j * x h i)))) <= over (fun h i => err h i + (exp (2 * ρ h) - 1) * (weight (col h i) * B))).
  { rewrite exact_cons, Rmult_1_r; unfold l, exact, over; rewrite sum_flat_map.
    match goal with |- Rabs (?p + ?a - (?p + ?b)) <= _ => replace (p + a - (p + b)) with (a - b) by ring end.
    rewrite <- sum_minus; eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros h Ih; rewrite sum_map; unfold sum_below.
    rewrite <- sum_minus; eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros i Ii; apply in_seq in Ii; cbn [fst snd].
    rewrite <- Rmult_minus_distr_l, Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|]; apply (Ex h i Ih ltac:(lia)). }
  assert (DB := dot_bound_monotone emin prec _ _ _ _ (Nat.le_refl (support (b_out L j :: flat_map (fun h =>
    map (fun i => W_out (parameters L h) i j) (seq 0 (D_h L))) (heads L)))) (magnitude_nonneg _) Ml).
  match goal with |- Rabs (z - ?y) <= _ =>
    replace (z - y) with (z - exact ((b_out L j, 1) :: l) + (exact ((b_out L j, 1) :: l) - y)) by ring end.
  eapply Rle_trans; [apply Rabs_triang|]; lra.
Qed.

End Format.
