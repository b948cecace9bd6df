(** A float softmax at finite sharpness: a bound on the distance of its weights from the real softmax.

    The exponential is accurate: |expf(x) − e^x| ≤ ε·e^x + η' at every float x ≤ 0; the differences of scores
    are floats, as those of integer scores are.  N is the number of keys, u the unit roundoff.  Statements:
      softmax_rounding      Σ_k |P_k − softmax(s)_k| ≤ [softmax_error], about (2N + 1)·u + 3ε
      soft_near_one_hot     so P lies within λ = 2·leak + [softmax_error] of one-hot, as layer_rounding requires *)

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
  let θ := sum_error emin prec n ε η' in
  (roundoff prec * (1 + ε + N * η') + ε + θ + N * η') / (1 - θ) + N * half_eta emin.

Section Soft.
Variables emin prec : Z.
Context {prec_positive : Prec_gt_0 prec} {A : Type}.
Variables (expf : R -> R) (G : list A) (s P : A -> R) (ε η' : R).
Hypothesis ε_nonneg : 0 <= ε.
Hypothesis η'_nonneg : 0 <= η'.
Hypothesis accurate : accurate_exp emin prec ε η' expf.
Hypothesis differences : forall k k', In k G -> In k' G -> float emin prec (s k - s k').

Notation u := (roundoff prec).
Notation h := (half_eta emin).
Notation N := (INR (length G)).
Notation θ := (sum_error emin prec (length G) ε η').

Theorem softmax_rounding : θ < 1 -> float_softmax emin prec expf G s P ->
  sum G (fun k => Rabs (P k - softmax G s k)) <= softmax_error emin prec (length G) ε η'.
Proof.
  intros Hθ (m & d & S' & M & (k1 & I1 & E1) & D & C & Q).
  assert (U := @roundoff_positive prec); assert (Hh := @half_eta_positive emin); assert (N0 := pos_INR (length G)).
  set (E := fun k => exp (s k - m)); set (e := fun k => expf (d k)); set (S := sum G E).
  change (map (fun k => (1, expf (d k))) G) with (map (fun k => (1, e k)) G) in C.
  assert (E0 : forall k, 0 < E k) by (intros; apply exp_pos).
  assert (S1 : 1 <= S).
  { destruct (sum_split G k1 E I1) as (G' & _ & EG); unfold S; rewrite EG; unfold E at 1;
    rewrite E1, Rminus_diag_eq, exp_0
      by reflexivity.
    assert (0 <= sum G' E) by (apply sum_nonneg; intros; left; apply E0); lra. }
  assert (A1 : forall k, In k G -> Rabs (e k - E k) <= ε * E k + η').
  { intros k I; assert (Fd : float emin prec (s k - m)) by (rewrite <- E1; apply differences; assumption).
    unfold e; rewrite (rounds_exact _ _ (D k I) Fd); apply accurate; [exact Fd|specialize (M k I); lra]. }
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
  assert (Step : forall k, In k G -> Rabs (P k - softmax G s k) <=
    (u * Rabs (e k)) * / S' + ((ε + θ) * E k + η') * / S' + h).
  { intros k I; assert (Sm : softmax G s k = E k / S).
    { rewrite <- (softmax_shift G s (- m)); reflexivity. }
    assert (R := rounds_error _ _ (Q k I)); change (expf (d k)) with (e k) in R; unfold Rdiv in R;
      rewrite Rabs_mult in R.
    rewrite (Rabs_pos_eq (/ S')) in R by lra.
    assert (T : Rabs (e k / S' - E k / S) <= ((ε + θ) * E k + η') * / S').
    { replace (e k / S' - E k / S) with (((e k - E k) + E k * (S - S') * / S) * / S') by (field; lra).
      rewrite Rabs_mult, (Rabs_pos_eq (/ S')) by lra; apply Rmult_le_compat_r; [lra|].
      eapply Rle_trans; [apply Rabs_triang|]; specialize (A1 k I); specialize (E0 k).
      rewrite !Rabs_mult, (Rabs_pos_eq (E k)), (Rabs_pos_eq (/ S)), (Rabs_minus_sym S S')
        by (try (left; apply Rinv_0_lt_compat); lra).
      assert (Rabs (S' - S) * / S <= θ).
      { apply Rmult_le_reg_r with S; [lra|]; rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra; exact A4. }
      assert (E k * (Rabs (S' - S) * / S) <= E k * θ) by (apply Rmult_le_compat_l; lra); lra. }
    rewrite Sm; replace (P k - E k / S) with (P k - e k * / S' + (e k / S' - E k / S)) by (unfold Rdiv; ring).
    eapply Rle_trans; [apply Rabs_triang|]; lra. }
  eapply Rle_trans; [apply sum_le, Step|]; rewrite !sum_plus, !sum_scal_r, sum_scal, sum_const, NE.
  unfold softmax_error; cbv zeta; apply Rplus_le_compat_r; rewrite <- Rmult_plus_distr_r.
  apply Rmult_le_reg_r with S'; [exact S0|]; rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
  set (c := u * (1 + ε + N * η') + ε + θ + N * η').
  assert (θ0 : 0 <= θ).
  { apply Rmult_le_reg_r with S; [lra|]; rewrite Rmult_0_l; eapply Rle_trans; [apply Rabs_pos|exact A4]. }
  assert (c0 : 0 <= c) by (unfold c; assert (0 <= u * (1 + ε + N * η')) by (apply Rmult_le_pos; lra); lra).
  apply Rle_trans with (c * S).
  - assert (u * sum G (fun k => Rabs (e k)) <= u * ((1 + ε) * S + N * η')) by (apply Rmult_le_compat_l; lra).
    assert (u * (N * η') * 1 <= u * (N * η') * S) by (apply Rmult_le_compat_l; [apply Rmult_le_pos|]; lra).
    assert (N * η' * 1 <= N * η' * S) by (apply Rmult_le_compat_l; assumption).
    unfold c; lra.
  - unfold Rdiv; rewrite Rmult_assoc; apply Rmult_le_compat_l; [exact c0|].
    apply Rmult_le_reg_l with (1 - θ); [lra|]; rewrite <- Rmult_assoc, Rinv_r, Rmult_1_l by lra; lra.
Qed.

End Soft.

(** The weights of a float softmax lie within λ = 2·leak + [softmax_error] of the one-hot row at k0. *)
Theorem soft_near_one_hot emin prec expf (G : list position) s P k0 ε η' : (0 < prec)%Z -> 0 <= ε -> 0 <= η' ->
  accurate_exp emin prec ε η' expf -> (forall k k', In k G -> In k' G -> float emin prec (s k - s k')) ->
  NoDup G -> In k0 G -> sum_error emin prec (length G) ε η' < 1 -> float_softmax emin prec expf G s P ->
  near_one_hot (2 * leak G s k0 + softmax_error emin prec (length G) ε η') G P k0.
Proof.
  intros Hp; intros; assert (Prec_gt_0 prec) by exact Hp; apply near_one_hot_softmax; try assumption.
  apply softmax_rounding with (expf := expf); assumption.
Qed.
