(** A float softmax at finite sharpness: a bound on the distance of its weights from the real softmax.

    The exponential is accurate: |expf(x) − e^x| ≤ ε·e^x + η' at every float x ≤ 0.  N is the number of keys, u the
    unit roundoff; each exponential is divided by their sum S, or multiplied by fl(1/S).  Statements:
      softmax_rounding      Σ_k |P_k − softmax(s)_k| ≤ [softmax_error], about (N + 2)·u + 2ε, if the differences of scores
                            are floats, as those of integer scores are
      soft_near_one_hot     so P lies within λ = 2·leak + [softmax_error] of one-hot, as layer_rounding requires
      softmax_rounding_scores   for rounded scores, the same of the softmax of scores that are off by ρ at most
      factor_rounding       and of the weights that run: each rounded to the layer's format, and 0 below 2^−100 *)

From Coq Require Import Reals ZArith List Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Softmax RoundingTree RoundingDot FloatSoftmax RoundingHead RoundingLayer.
Import ListNotations.
Open Scope R_scope.

Definition accurate_exp (emin prec : Z) (ε η' : R) (expf : R -> R) : Prop :=
  forall x, float emin prec x -> x <= 0 -> Rabs (expf x - exp x) <= ε * exp x + η'.

(** The relative error θ of the computed sum of exponentials. *)
Definition sum_error (emin prec : Z) (n : nat) (ε η' : R) : R :=
  let N := INR n in
  ε + N * η' + N * roundoff prec * (1 + ε + N * η') + N * half_eta emin * (1 + N * roundoff prec).

Definition softmax_error (emin prec : Z) (n : nat) (ε η' : R) : R :=
  let N := INR n in
  let u := roundoff prec in
  let θ := sum_error emin prec n ε η' in
  (u * (2 + u) * (1 + ε + N * η') + ε + θ + N * η') / (1 - θ) + N * half_eta emin * (1 + (1 + u) * (1 + ε + N * η')).

(** A softmax as it runs: each exponential is divided by their sum, or multiplied by its rounded reciprocal. *)
Definition softmax_runs (emin prec : Z) {A : Type} (expf : R -> R) (G : list A) (s P : A -> R) : Prop :=
  float_softmax emin prec expf G s P \/ float_softmax_reciprocal emin prec expf G s P.

Section Soft.
Variables emin prec : Z.
Context {prec_positive : Prec_gt_0 prec} {A : Type}.
Variables (expf : R -> R) (G : list A) (s P : A -> R) (ε η' : R).
Hypothesis ε_nonneg : 0 <= ε.
Hypothesis η'_nonneg : 0 <= η'.
Hypothesis accurate : accurate_exp emin prec ε η' expf.

Notation u := (roundoff prec).
Notation h := (half_eta emin).
Notation N := (INR (length G)).
Notation θ := (sum_error emin prec (length G) ε η').

(** p = fl(e/S), or fl(e·fl(1/S)) *)
Definition quotient (e S p : R) : Prop :=
  rounds emin prec (e / S) p \/ exists i, rounds emin prec (1 / S) i /\ rounds emin prec (e * i) p.

Lemma quotient_rounding e S p : 0 < S -> quotient e S p ->
  Rabs (p - e * / S) <= u * (2 + u) * Rabs e * / S + (h * (1 + u) * Rabs e + h).
Proof.
  intros S0 Q; assert (U := @roundoff_positive prec); assert (Hh := @half_eta_positive emin).
  assert (I0 : 0 < / S) by (apply Rinv_0_lt_compat; exact S0); assert (e0 := Rabs_pos e).
  set (a := Rabs e * / S); assert (a0 : 0 <= a) by (apply Rmult_le_pos; lra).
  assert (ua : 0 <= u * a) by (apply Rmult_le_pos; lra); assert (uua : 0 <= u * (u * a)) by (apply Rmult_le_pos; lra).
  assert (he : 0 <= h * Rabs e) by (apply Rmult_le_pos; lra).
  assert (uhe : 0 <= u * (h * Rabs e)) by (apply Rmult_le_pos; lra).
  replace (u * (2 + u) * Rabs e * / S) with (2 * (u * a) + u * (u * a)) by (unfold a; ring).
  replace (h * (1 + u) * Rabs e) with (h * Rabs e + u * (h * Rabs e)) by ring.
  destruct Q as [Q|(i & Qi & Q)]; apply rounds_error in Q; try exact prec_positive.
  - unfold Rdiv in Q; rewrite Rabs_mult, (Rabs_pos_eq (/ S)) in Q by lra; fold a in Q; lra.
  - apply rounds_error in Qi; try exact prec_positive; unfold Rdiv in Qi; rewrite Rmult_1_l, (Rabs_pos_eq (/ S)) in Qi by lra.
    assert (D : Rabs (e * i - e * / S) <= u * a + h * Rabs e).
    { rewrite <- Rmult_minus_distr_l, Rabs_mult; apply (Rmult_le_compat_l (Rabs e)) in Qi; [unfold a; lra|exact e0]. }
    assert (M : Rabs (e * i) <= a + (u * a + h * Rabs e)).
    { replace (e * i) with (e * / S + (e * i - e * / S)) by ring; eapply Rle_trans; [apply Rabs_triang|].
      rewrite Rabs_mult, (Rabs_pos_eq (/ S)) by lra; fold a; lra. }
    apply (Rmult_le_compat_l u) in M; [|lra].
    replace (p - e * / S) with (p - e * i + (e * i - e * / S)) by ring; eapply Rle_trans; [apply Rabs_triang|]; lra.
Qed.

Lemma softmax_quotients : softmax_runs emin prec expf G s P -> exists m d S',
  (forall k, In k G -> s k <= m) /\ (exists k, In k G /\ s k = m) /\ (forall k, In k G -> rounds emin prec (s k - m) (d k)) /\
  computes emin prec (map (fun k => (1, expf (d k))) G) S' /\ (forall k, In k G -> quotient (expf (d k)) S' (P k)).
Proof.
  intros [(m & d & S' & M & E & R & C & Q)|(m & d & S' & i & M & E & R & C & I & Q)];
    exists m, d, S'; do 4 (split; [assumption|]); intros k Ik; [left; apply Q, Ik|right; exists i; split; [exact I|apply Q, Ik]].
Qed.

(** The weights of the scores d, all ≤ 0, of which one is 0. *)
Lemma exponentials_rounding (d : A -> R) S' k1 : In k1 G -> d k1 = 0 -> (forall k, In k G -> float emin prec (d k) /\ d k <= 0) ->
  computes emin prec (map (fun k => (1, expf (d k))) G) S' ->
  (forall k, In k G -> quotient (expf (d k)) S' (P k)) -> θ < 1 ->
  sum G (fun k => Rabs (P k - softmax G d k)) <= softmax_error emin prec (length G) ε η'.
Proof.
  intros I1 E1 D C Q Hθ.
  assert (U := @roundoff_positive prec); assert (Hh := @half_eta_positive emin); assert (N0 := pos_INR (length G)).
  set (E := fun k => exp (d k)); set (e := fun k => expf (d k)); set (S := sum G E).
  change (map (fun k => (1, expf (d k))) G) with (map (fun k => (1, e k)) G) in C.
  assert (E0 : forall k, 0 < E k) by (intros; apply exp_pos).
  assert (S1 : 1 <= S).
  { destruct (sum_split G k1 E I1) as (G' & _ & EG); unfold S; rewrite EG; unfold E at 1;
    rewrite E1, exp_0.
    assert (0 <= sum G' E) by (apply sum_nonneg; intros; left; apply E0); lra. }
  assert (SN : S <= N).
  { rewrite <- (Rmult_1_r N), <- sum_const; apply sum_le; intros k I; rewrite <- exp_0; apply exp_le, D, I. }
  assert (A1 : forall k, In k G -> Rabs (e k - E k) <= ε * E k + η').
  { intros k I; apply accurate; apply D, I. }
  assert (NE : forall c x, sum G (fun k => c * E k + x) = c * S + N * x).
  { intros; unfold S; rewrite sum_plus, sum_scal, sum_const; reflexivity. }
  assert (A2 : sum G (fun k => Rabs (e k - E k)) <= ε * S + N * η').
  { rewrite <- NE; apply sum_le, A1. }
  assert (A3 : sum G (fun k => Rabs (e k)) <= (1 + ε) * S + N * η').
  { rewrite <- NE; apply sum_le; intros k I; specialize (A1 k I); specialize (E0 k).
    replace (e k) with (E k + (e k - E k)) by ring; eapply Rle_trans; [apply Rabs_triang|].
    rewrite (Rabs_pos_eq (E k)) by lra; lra. }
  assert (NH : 0 <= N * η') by (apply Rmult_le_pos; assumption).
  assert (NU : 0 <= N * u) by (apply Rmult_le_pos; lra). assert (Nh : 0 <= N * h) by (apply Rmult_le_pos; lra).
  assert (A4 : Rabs (S' - S) <= θ * S).
  { assert (R := dot_rounding emin prec _ _ C).
    assert (X : exact (map (fun k => (1, e k)) G) = sum G e) by (rewrite exact_map; apply sum_ext; intros; ring).
    assert (Y : magnitude (map (fun k => (1, e k)) G) = sum G (fun k => Rabs (e k))).
    { unfold magnitude; rewrite sum_map; apply sum_ext; intros; cbn [fst snd]; f_equal; ring. }
    assert (L := nonzero_length (map (fun k => (1, e k)) G)); rewrite map_length in L.
    assert (R' := dot_bound_monotone emin prec _ _ _ _ L (magnitude_nonneg _) (Rle_trans _ _ _ (Req_le _ _ Y) A3)).
    rewrite X in R; unfold dot_bound in R, R'.
    assert (T : Rabs (sum G e - S) <= ε * S + N * η').
    { unfold S; rewrite <- sum_minus; eapply Rle_trans; [apply sum_abs|exact A2]. }
    replace (S' - S) with (S' - sum G e + (sum G e - S)) by ring; eapply Rle_trans; [apply Rabs_triang|].
    assert (B1 : N * η' * 1 <= N * η' * S) by (apply Rmult_le_compat_l; assumption).
    assert (B2 : N * u * ((1 + ε) * S + N * η') <= N * u * ((1 + ε + N * η') * S)) by (apply Rmult_le_compat_l; lra).
    assert (B3 : N * h * (1 + N * u) * 1 <= N * h * (1 + N * u) * S).
    { apply Rmult_le_compat_l; [apply Rmult_le_pos; lra|exact S1]. }
    unfold sum_error; cbv zeta; lra. }
  assert (B4 := Rabs_le_inv _ _ A4).
  assert (P1 : 0 < (1 - θ) * S) by (apply Rmult_lt_0_compat; lra).
  assert (S0 : 0 < S') by lra.
  assert (I0 : 0 < / S') by (apply Rinv_0_lt_compat; exact S0).
  assert (Step : forall k, In k G -> Rabs (P k - softmax G d k) <=
    (u * (2 + u) * Rabs (e k)) * / S' + ((ε + θ) * E k + η') * / S' + (h * (1 + u) * Rabs (e k) + h)).
  { intros k I; assert (R := quotient_rounding _ _ _ S0 (Q k I)); change (expf (d k)) with (e k) in R.
    assert (T : Rabs (e k / S' - E k / S) <= ((ε + θ) * E k + η') * / S').
    { replace (e k / S' - E k / S) with (((e k - E k) + E k * (S - S') * / S) * / S') by (field; lra).
      rewrite Rabs_mult, (Rabs_pos_eq (/ S')) by lra; apply Rmult_le_compat_r; [lra|].
      eapply Rle_trans; [apply Rabs_triang|]; specialize (A1 k I); specialize (E0 k).
      rewrite !Rabs_mult, (Rabs_pos_eq (E k)), (Rabs_pos_eq (/ S)), (Rabs_minus_sym S S')
        by (try (left; apply Rinv_0_lt_compat); lra).
      assert (Rabs (S' - S) * / S <= θ).
      { apply Rmult_le_reg_r with S; [lra|]; rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra; exact A4. }
      assert (E k * (Rabs (S' - S) * / S) <= E k * θ) by (apply Rmult_le_compat_l; lra); lra. }
    change (softmax G d k) with (E k / S); replace (P k - E k / S) with (P k - e k * / S' + (e k / S' - E k / S)) by (unfold Rdiv; ring).
    eapply Rle_trans; [apply Rabs_triang|]; lra. }
  eapply Rle_trans; [apply sum_le, Step|]; rewrite !sum_plus, !sum_scal_r, !sum_scal, sum_const, NE.
  assert (U2 : 0 <= u * (2 + u)) by (apply Rmult_le_pos; lra); assert (HU : 0 <= h * (1 + u)) by (apply Rmult_le_pos; lra).
  unfold softmax_error; cbv zeta; apply Rplus_le_compat.
  - rewrite <- Rmult_plus_distr_r.
    apply Rmult_le_reg_r with S'; [exact S0|]; rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
    set (v := u * (2 + u)) in *; set (c := v * (1 + ε + N * η') + ε + θ + N * η').
    assert (θ0 : 0 <= θ).
    { apply Rmult_le_reg_r with S; [lra|]; rewrite Rmult_0_l; eapply Rle_trans; [apply Rabs_pos|exact A4]. }
    assert (c0 : 0 <= c) by (unfold c; assert (0 <= v * (1 + ε + N * η')) by (apply Rmult_le_pos; lra); lra).
    apply Rle_trans with (c * S).
    + assert (v * sum G (fun k => Rabs (e k)) <= v * ((1 + ε) * S + N * η')) by (apply Rmult_le_compat_l; lra).
      assert (v * (N * η') * 1 <= v * (N * η') * S) by (apply Rmult_le_compat_l; [apply Rmult_le_pos|]; lra).
      assert (N * η' * 1 <= N * η' * S) by (apply Rmult_le_compat_l; assumption).
      unfold c; lra.
    + unfold Rdiv; rewrite Rmult_assoc; apply Rmult_le_compat_l; [exact c0|].
      apply Rmult_le_reg_l with (1 - θ); [lra|]; rewrite <- Rmult_assoc, Rinv_r, Rmult_1_l by lra; lra.
  - assert (h * (1 + u) * sum G (fun k => Rabs (e k)) <= h * (1 + u) * (N * (1 + ε + N * η'))); [|lra].
    apply Rmult_le_compat_l; [exact HU|]; eapply Rle_trans; [exact A3|].
    assert ((1 + ε) * S <= (1 + ε) * N) by (apply Rmult_le_compat_l; lra).
    assert (N * η' * 1 <= N * η' * N) by (apply Rmult_le_compat_l; lra); lra.
Qed.

(** Rounded scores s are off by σ from the scores t, and lie within D of each other: their maximum is subtracted, which
    rounds again.  So the softmax is that of scores off by σ + u·D. *)
Theorem softmax_rounding_scores (t : A -> R) σ D : (forall k, In k G -> float emin prec (s k) /\ Rabs (s k - t k) <= σ) ->
  (forall k k', In k G -> In k' G -> s k' - s k <= D) -> θ < 1 -> softmax_runs emin prec expf G s P ->
  exists s', (forall k, In k G -> Rabs (s' k - t k) <= σ + u * D) /\
    sum G (fun k => Rabs (P k - softmax G s' k)) <= softmax_error emin prec (length G) ε η'.
Proof.
  intros T HD Hθ Sm; destruct (softmax_quotients Sm) as (m & d & S' & M & (k1 & I1 & E1) & R & C & Q); assert (U := @roundoff_positive prec).
  exists (fun k => d k + m); split.
  - intros k I; destruct (T k I) as [Fk Tk], (T k1 I1) as [F1 _]; specialize (R k I); rewrite <- E1 in R |- *.
    assert (Fm := generic_format_opp _ _ _ F1).
    assert (E := rounds_sum (s k) (- s k1) (d k) Fk Fm R).
    replace (s k + - s k1) with (- (s k1 - s k)) in E by ring; rewrite Rabs_Ropp, (Rabs_pos_eq (s k1 - s k)) in E.
    2: specialize (M k I); lra.
    specialize (HD k k1 I I1); assert (Dk := Rabs_pos (d k - - (s k1 - s k))).
    assert (u * (s k1 - s k) <= u * D) by (apply Rmult_le_compat_l; lra).
    assert (Rabs (d k - - (s k1 - s k)) <= u * D) by nra.
    replace (d k + s k1 - t k) with (d k - - (s k1 - s k) + (s k - t k)) by ring.
    eapply Rle_trans; [apply Rabs_triang|]; lra.
  - assert (L := softmax_shift G d m).
    rewrite (sum_ext _ _ (fun k => Rabs (P k - softmax G d k))) by (intros; rewrite L; reflexivity).
    apply exponentials_rounding with (S' := S') (k1 := k1); try assumption.
    + specialize (R k1 I1); rewrite E1, Rminus_diag_eq in R by reflexivity; exact (rounds_exact _ _ R (float_0 emin prec)).
    + intros k I; specialize (R k I); split; [exact (rounds_float emin prec _ _ R)|].
      destruct (Rle_lt_or_eq_dec (s k - m) 0 ltac:(specialize (M k I); lra)) as [Lt|E].
      * exact (Rnd_N_pt_monotone _ _ _ _ _ R (rounds_itself emin prec _ (float_0 emin prec)) Lt).
      * rewrite E in R; right; exact (rounds_exact _ _ R (float_0 emin prec)).
Qed.

Theorem softmax_rounding : (forall k k', In k G -> In k' G -> float emin prec (s k - s k')) ->
  θ < 1 -> softmax_runs emin prec expf G s P ->
  sum G (fun k => Rabs (P k - softmax G s k)) <= softmax_error emin prec (length G) ε η'.
Proof.
  intros F Hθ Sm; destruct (softmax_quotients Sm) as (m & d & S' & M & (k1 & I1 & E1) & R & C & Q).
  assert (D : forall k, In k G -> d k = s k + - m).
  { intros k I; apply (rounds_exact _ _ (R k I)); rewrite <- E1; apply F; assumption. }
  rewrite (sum_ext _ _ (fun k => Rabs (P k - softmax G d k))).
  - apply exponentials_rounding with (S' := S') (k1 := k1); try assumption; [rewrite D by exact I1; lra|].
    intros k I; split; [exact (rounds_float emin prec _ _ (R k I))|]; rewrite D by exact I; specialize (M k I); lra.
  - intros k I; rewrite (softmax_ext G d (fun k => s k + - m) k D I), softmax_shift; reflexivity.
Qed.

End Soft.

(** The weights of a float softmax lie within λ = 2·leak + [softmax_error] of the one-hot row at k0. *)
Theorem soft_near_one_hot emin prec expf (G : list position) s P k0 ε η' : (0 < prec)%Z -> 0 <= ε -> 0 <= η' ->
  accurate_exp emin prec ε η' expf -> (forall k k', In k G -> In k' G -> float emin prec (s k - s k')) ->
  NoDup G -> In k0 G -> sum_error emin prec (length G) ε η' < 1 -> softmax_runs emin prec expf G s P ->
  near_one_hot (2 * leak G s k0 + softmax_error emin prec (length G) ε η') G P k0.
Proof.
  intros Hp; intros; assert (Prec_gt_0 prec) by exact Hp; apply near_one_hot_softmax; try assumption.
  apply softmax_rounding with (expf := expf); assumption.
Qed.

(** * The weights that run *)

(** Weights below this may be dropped. *)
Definition negligible : R := bpow radix2 (-100).

(** [factor_computes … p]: the weights p of the keys G from the scores s: a softmax in the format (e', p'), each weight
    rounded to the format (e, p), and 0 in its place where it is negligible. *)
Definition factor_computes (emin' prec' emin prec : Z) {A : Type} (expf : R -> R) (G : list A) (s p : A -> R) : Prop :=
  exists P r, softmax_runs emin' prec' expf G s P /\ (forall k, In k G -> rounds emin prec (P k) (r k)) /\
    forall k, In k G -> p k = r k \/ p k = 0 /\ Rabs (r k) <= negligible.

(** The softmax's error, that of rounding each weight, and what is dropped. *)
Definition factor_error (emin' prec' emin prec : Z) (n : nat) (ε η' : R) : R :=
  let E := softmax_error emin' prec' n ε η' in
  E + roundoff prec * (1 + E) + INR n * (half_eta emin + negligible).

Theorem factor_rounding emin' prec' emin prec {A} expf (G : list A) s p t ε η' σ D : (0 < prec')%Z -> (0 < prec)%Z ->
  G <> [] -> 0 <= ε -> 0 <= η' -> accurate_exp emin' prec' ε η' expf -> sum_error emin' prec' (length G) ε η' < 1 ->
  (forall k, In k G -> float emin' prec' (s k) /\ Rabs (s k - t k) <= σ) ->
  (forall k k', In k G -> In k' G -> s k' - s k <= D) ->
  factor_computes emin' prec' emin prec expf G s p ->
  exists s', (forall k, In k G -> Rabs (s' k - t k) <= σ + roundoff prec' * D) /\
    sum G (fun k => Rabs (p k - softmax G s' k)) <= factor_error emin' prec' emin prec (length G) ε η'.
Proof.
  intros Hp' Hp N E0 H0 Ex Hθ T HD (P & r & S & R & K); assert (Prec_gt_0 prec') by exact Hp'; assert (Prec_gt_0 prec) by exact Hp.
  destruct (softmax_rounding_scores emin' prec' expf G s P ε η' E0 H0 Ex t σ D T HD Hθ S) as (s' & T' & Err).
  exists s'; split; [exact T'|]; set (E := softmax_error _ _ _ _ _) in *; assert (U := @roundoff_positive prec).
  assert (W : sum G (fun k => Rabs (P k)) <= 1 + E).
  { apply Rle_trans with (sum G (softmax G s') + sum G (fun k => Rabs (P k - softmax G s' k)));
      [|rewrite softmax_sum by exact N; lra].
    rewrite <- sum_plus; apply sum_le; intros k I; assert (Q := softmax_positive G s' k I).
    replace (P k) with (softmax G s' k + (P k - softmax G s' k)) at 1 by ring; eapply Rle_trans; [apply Rabs_triang|].
    rewrite (Rabs_pos_eq (softmax G s' k)); lra. }
  unfold factor_error; cbv zeta; fold E.
  apply Rle_trans with (sum G (fun k => Rabs (P k - softmax G s' k) + (roundoff prec * Rabs (P k) +
    (half_eta emin + negligible)))).
  - apply sum_le; intros k I; assert (Rk := rounds_error _ _ (R k I)).
    replace (p k - softmax G s' k) with (P k - softmax G s' k + (r k - P k) + (p k - r k)) by ring.
    assert (T1 := Rabs_triang (P k - softmax G s' k + (r k - P k)) (p k - r k)).
    assert (T2 := Rabs_triang (P k - softmax G s' k) (r k - P k)); assert (N0 : 0 <= negligible) by apply bpow_ge_0.
    assert (Rabs (p k - r k) <= negligible); [|lra].
    destruct (K k I) as [->|[-> B]]; [rewrite Rminus_diag_eq, Rabs_R0 by reflexivity; exact N0|].
    rewrite Rminus_0_l, Rabs_Ropp; exact B.
  - rewrite !sum_plus, sum_scal, !sum_const.
    assert (roundoff prec * sum G (fun k => Rabs (P k)) <= roundoff prec * (1 + E)) by (apply Rmult_le_compat_l; lra).
    lra.
Qed.

(** The score of one axis, c_0·δ² + c_i·δ, in floats. *)
Lemma axis_score_rounding emin prec c0 ci δ s : (0 < prec)%Z ->
  computes emin prec [(c0, IZR (δ * δ)); (ci, IZR δ)] s ->
  Rabs (s - (c0 * IZR (δ * δ) + ci * IZR δ)) <= dot_bound emin prec 2 (Rabs c0 * IZR (δ * δ) + Rabs ci * Rabs (IZR δ)).
Proof.
  intros Hp C; assert (Prec_gt_0 prec) by exact Hp; assert (R := dot_rounding emin prec _ _ C).
  rewrite !exact_cons, !magnitude_cons in R; change (exact []) with 0 in R; change (magnitude []) with 0 in R.
  rewrite !Rabs_mult, (Rabs_pos_eq (IZR (δ * δ))), !Rplus_0_r in R by (apply IZR_le, Z.square_nonneg).
  eapply Rle_trans; [exact R|]; apply dot_bound_monotone; [|  |apply Rle_refl].
  - apply (nonzero_length [(c0, IZR (δ * δ)); (ci, IZR δ)]).
  - assert (P := Rabs_pos c0); assert (P' := Rabs_pos ci); assert (Q := Rabs_pos (IZR δ)).
    apply Rplus_le_le_0_compat; apply Rmult_le_pos; try assumption; apply IZR_le, Z.square_nonneg.
Qed.
