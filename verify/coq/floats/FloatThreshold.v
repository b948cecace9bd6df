(** The sharpness α from which the softmax weight e^−α underflows to exactly zero, for each number format.

    A format has a precision p and a least exponent e_min: its floats are the m·2^e with |m| < 2^p and
    e ≥ e_min (Flocq's FLT).  η = 2^e_min is the smallest subnormal.  ○ rounds to nearest, and every tie
    rule is covered: a theorem that has [choice] holds for each.  Statements:
      exp_rounds_to_zero   ○(e^x) = 0 exactly where e^x < η/2
      float32_threshold    float32:  ○(e^−n) = 0 exactly from n = 104
      float64_threshold    float64:  from n = 746
      float16_threshold    float16:  from n = 18
      bfloat16_threshold   bfloat16: from n = 93
      …_sharpness          the same for every real α from the threshold on, integer or not *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith Lra Lia.
From Flocq Require Import Core.
Open Scope R_scope.

(** ○(x): the float nearest to x in the format (e_min, p). *)
Definition nearest (choice : Z -> bool) (emin prec : Z) (x : R) : R :=
  round radix2 (FLT_exp emin prec) (Znearest choice) x.

(** * ln 2 to four digits *)

Lemma exp_above x : 0 < x -> 1 + x + x * x / 2 < exp x.
Proof.
  intros Hx; destruct (MVT_cor2 (fun y => exp y - (1 + y + y * y / 2)) (fun y => exp y - (1 + y)) 0 x Hx)
    as (c & E & Hc).
  - intros c _; apply is_derive_Reals; auto_derive; [exact I|lra].
  - assert (1 + c < exp c) by (apply exp_ineq1; lra).
    assert (0 < (exp c - (1 + c)) * (x - 0)) by (apply Rmult_lt_0_compat; lra).
    rewrite exp_0 in E; lra.
Qed.

(** (1 − y/2) e^y < 1 + y/2: Padé's approximant is above e^y. *)
Lemma exp_below x : 0 < x -> (1 - x / 2) * exp x < 1 + x / 2.
Proof.
  intros Hx.
  destruct (MVT_cor2 (fun y => 1 + y / 2 - (1 - y / 2) * exp y) (fun y => (1 - (1 - y) * exp y) / 2) 0 x Hx)
    as (c & E & Hc).
  - intros c _; apply is_derive_Reals; auto_derive; [exact I|lra].
  - assert (D : (1 - c) * exp c < exp (- c) * exp c).
    { apply Rmult_lt_compat_r; [apply exp_pos|]; assert (1 + - c < exp (- c)) by (apply exp_ineq1; lra); lra. }
    rewrite <- exp_plus, Rplus_opp_l, exp_0 in D.
    assert (0 < (1 - (1 - c) * exp c) / 2 * (x - 0)) by (apply Rmult_lt_0_compat; lra).
    rewrite exp_0 in E; lra.
Qed.

Lemma exp_times n x : exp (INR n * x) = exp x ^ n.
Proof.
  induction n as [|n IH]; [simpl; rewrite Rmult_0_l; apply exp_0|].
  rewrite S_INR, Rmult_plus_distr_r, Rmult_1_l, exp_plus, IH; simpl; ring.
Qed.

(** 0.69302 < ln 2 < 0.69334, from e^x = (e^{x/32})^32. *)
Lemma ln2_enclosed : 149 / 215 < ln 2 < 52 / 75.
Proof.
  rewrite <- (ln_exp (149 / 215)), <- (ln_exp (52 / 75)).
  split; apply ln_increasing; try apply exp_pos; try lra.
  - replace (149 / 215) with (INR 32 * (149 / 6880)) by (simpl; lra); rewrite exp_times.
    assert (B := exp_below (149 / 6880) ltac:(lra)).
    assert (P := exp_pos (149 / 6880)).
    apply Rle_lt_trans with ((13909 / 13611) ^ 32); [apply pow_incr|]; lra.
  - replace (52 / 75) with (INR 64 * (13 / 1200)) by (simpl; lra); rewrite exp_times.
    assert (B := exp_above (13 / 1200) ltac:(lra)).
    apply Rlt_le_trans with ((1 + 13 / 1200 + 13 / 1200 * (13 / 1200) / 2) ^ 64); [lra|apply pow_incr; lra].
Qed.

(** * The thresholds *)

(** ○(e^x) = 0 exactly where e^x lies below η/2, provided that it is not η/2 itself. *)
Theorem exp_rounds_to_zero choice emin prec x : (0 < prec)%Z -> exp x <> bpow radix2 (emin - 1) ->
  (nearest choice emin prec (exp x) = 0 <-> exp x < bpow radix2 (emin - 1)).
Proof.
  intros Hp Hx; assert (Prec_gt_0 prec) by exact Hp; assert (P := exp_pos x); split.
  - intros Z0; destruct (Rlt_or_le (exp x) (bpow radix2 (emin - 1))) as [L|[L|L]]; [exact L| |congruence].
    exfalso; destruct (round_N_pt radix2 (FLT_exp emin prec) choice (exp x)) as (_ & N).
    fold (nearest choice emin prec (exp x)) in N; rewrite Z0 in N.
    specialize (N (bpow radix2 emin) (generic_format_FLT_bpow radix2 emin prec emin ltac:(lia))).
    replace emin with (1 + (emin - 1))%Z in N at 1 by lia; rewrite bpow_plus in N; change (bpow radix2 1) with 2 in N.
    assert (B := bpow_gt_0 radix2 (emin - 1)); revert N; unfold Rabs; destruct (Rcase_abs _), (Rcase_abs _); lra.
  - intros L; unfold nearest; apply round_N_small_pos with (ex := mag radix2 (exp x)).
    + destruct (mag radix2 (exp x)) as (e & B); simpl; rewrite (Rabs_pos_eq (exp x)) in B by lra; apply B;
      apply Rgt_not_eq, P.
    + assert (mag radix2 (exp x) <= emin - 1)%Z; [|unfold FLT_exp; lia].
      apply mag_le_bpow; [apply Rgt_not_eq, P|]; rewrite Rabs_pos_eq; lra.
Qed.

(** 2^e as a power of e. *)
Lemma bpow_as_exp e : bpow radix2 e = exp (IZR e * ln 2).
Proof. exact (bpow_exp radix2 e). Qed.

Section Threshold.
Variables (emin prec n0 : Z).
Hypothesis prec_positive : (0 < prec)%Z.
(** n0 is the least integer above (1 − e_min) ln 2 = −ln(η/2). *)
Hypothesis below : IZR (n0 - 1) < IZR (1 - emin) * ln 2.
Hypothesis above : IZR (1 - emin) * ln 2 < IZR n0.

Let half : IZR (emin - 1) * ln 2 = - (IZR (1 - emin) * ln 2).
Proof. rewrite !minus_IZR; ring. Qed.

Lemma below_half_eta α : IZR n0 <= α -> exp (- α) < bpow radix2 (emin - 1).
Proof. intros H; rewrite bpow_as_exp, half; apply exp_increasing; lra. Qed.

Lemma sharpness choice α : IZR n0 <= α -> nearest choice emin prec (exp (- α)) = 0.
Proof.
  intros H; assert (L := below_half_eta α H).
  apply exp_rounds_to_zero; [exact prec_positive| |exact L]; apply Rlt_not_eq; exact L.
Qed.

Lemma threshold choice n : nearest choice emin prec (exp (- IZR n)) = 0 <-> (n0 <= n)%Z.
Proof.
  split; [|intros H; apply sharpness, IZR_le, H].
  intros Z0; destruct (Z_le_gt_dec n0 n) as [H|H]; [exact H|exfalso].
  assert (IZR n <= IZR (n0 - 1)) by (apply IZR_le; lia).
  assert (L : bpow radix2 (emin - 1) < exp (- IZR n)) by (rewrite bpow_as_exp, half; apply exp_increasing; lra).
  apply exp_rounds_to_zero in Z0; [lra|exact prec_positive|apply Rgt_not_eq; exact L].
Qed.
End Threshold.

Ltac by_ln2 := assert (L := ln2_enclosed); try lia; simpl Z.sub; lra.

(** e^−α < η/2 from the threshold on. *)
Lemma float32_below α : 104 <= α -> exp (- α) < bpow radix2 (-149 - 1).
Proof. apply (below_half_eta (-149) 104); by_ln2. Qed.

Lemma float64_below α : 746 <= α -> exp (- α) < bpow radix2 (-1074 - 1).
Proof. apply (below_half_eta (-1074) 746); by_ln2. Qed.

Lemma float16_below α : 18 <= α -> exp (- α) < bpow radix2 (-24 - 1).
Proof. apply (below_half_eta (-24) 18); by_ln2. Qed.

Lemma bfloat16_below α : 93 <= α -> exp (- α) < bpow radix2 (-133 - 1).
Proof. apply (below_half_eta (-133) 93); by_ln2. Qed.

(** float32 (p = 24, η = 2^−149). *)
Theorem float32_threshold choice n : nearest choice (-149) 24 (exp (- IZR n)) = 0 <-> (104 <= n)%Z.
Proof. apply threshold; by_ln2. Qed.

Theorem float32_sharpness choice α : 104 <= α -> nearest choice (-149) 24 (exp (- α)) = 0.
Proof. apply (sharpness (-149) 24 104); by_ln2. Qed.

(** float64 (p = 53, η = 2^−1074). *)
Theorem float64_threshold choice n : nearest choice (-1074) 53 (exp (- IZR n)) = 0 <-> (746 <= n)%Z.
Proof. apply threshold; by_ln2. Qed.

Theorem float64_sharpness choice α : 746 <= α -> nearest choice (-1074) 53 (exp (- α)) = 0.
Proof. apply (sharpness (-1074) 53 746); by_ln2. Qed.

(** float16 (p = 11, η = 2^−24). *)
Theorem float16_threshold choice n : nearest choice (-24) 11 (exp (- IZR n)) = 0 <-> (18 <= n)%Z.
Proof. apply threshold; by_ln2. Qed.

Theorem float16_sharpness choice α : 18 <= α -> nearest choice (-24) 11 (exp (- α)) = 0.
Proof. apply (sharpness (-24) 11 18); by_ln2. Qed.

(** bfloat16 (p = 8, η = 2^−133). *)
Theorem bfloat16_threshold choice n : nearest choice (-133) 8 (exp (- IZR n)) = 0 <-> (93 <= n)%Z.
Proof. apply threshold; by_ln2. Qed.

Theorem bfloat16_sharpness choice α : 93 <= α -> nearest choice (-133) 8 (exp (- α)) = 0.
Proof. apply (sharpness (-133) 8 93); by_ln2. Qed.
