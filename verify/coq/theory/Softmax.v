(** Softmax over a finite list of keys: its limit, and why it is never one-hot.

    Statements, for a duplicate-free list of keys G and k0 ∈ G:
      softmax_sum      the weights add up to 1
      softmax_shift    adding one number to all scores changes no weight
      never_one_hot    with two keys or more no weight is 1 (and none is 0)
      softmax_gap      if every other key scores lower than k0 by α or more, the weight of k0 is
                       at least 1 − (N − 1) e^{−α}, N the number of keys
      softmax_near     scores that are off by ρ at most move the weights by e^{2ρ} − 1 in all
      softmax_limit    if the scores depend on α and the gap is at least α, then for α → ∞ the
                       weight of k0 tends to 1 and every other weight to 0 *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals List Lra Lia Permutation.
From Attention Require Import Definitions Sums.
Import ListNotations.
Open Scope R_scope.

Lemma exp_monotone x y : x <= y -> exp x <= exp y.
Proof. intros [L| ->]; [left; apply exp_increasing, L|apply Rle_refl]. Qed.

Section Softmax.
Context {A : Type}.
Implicit Types (G : list A) (s : A -> R) (k : A).

(** The share of the attention that does not go to the target k0. *)
Definition leak G s k0 : R := 1 - softmax G s k0.

Lemma normaliser_positive G s k : In k G -> 0 < sum G (fun k' => exp (s k')).
Proof. intros I; apply sum_positive; [intros ->; destruct I|]; intros; apply exp_pos. Qed.

Theorem softmax_positive G s k : In k G -> 0 < softmax G s k.
Proof. intros I; apply Rdiv_lt_0_compat; [apply exp_pos|apply (normaliser_positive _ _ k I)]. Qed.

Theorem softmax_sum G s : G <> [] -> sum G (softmax G s) = 1.
Proof.
  intros N; unfold softmax, Rdiv; rewrite sum_scal_r; apply Rinv_r, Rgt_not_eq.
  apply sum_positive; [exact N|]; intros; apply exp_pos.
Qed.

Lemma softmax_ext G s s' k : (forall k', In k' G -> s k' = s' k') -> In k G -> softmax G s k = softmax G s' k.
Proof.
  intros E I; unfold softmax; rewrite (E k I), (sum_ext G _ (fun k' => exp (s' k'))); [reflexivity|].
  intros k' I'; rewrite (E k' I'); reflexivity.
Qed.

(** softmax(s + c) = softmax(s) *)
Theorem softmax_shift G s c k : softmax G (fun k' => s k' + c) k = softmax G s k.
Proof.
  unfold softmax; rewrite exp_plus; rewrite (sum_ext G _ (fun k' => exp (s k') * exp c)) by (intros; apply exp_plus).
  rewrite sum_scal_r; pose proof (exp_pos c) as Hc.
  destruct (Req_dec (sum G (fun k' => exp (s k'))) 0) as [E|E].
  - rewrite E; unfold Rdiv; rewrite Rmult_0_l, Rinv_0; lra.
  - field; split; lra.
Qed.

(** The weight of k0 is 1 / Σ_k e^{s(k) − s(k0)}. *)
Lemma softmax_inverse G s k0 : softmax G s k0 = / sum G (fun k => exp (s k - s k0)).
Proof.
  rewrite <- (softmax_shift G s (- s k0)); unfold softmax, Rdiv; rewrite Rplus_opp_r, exp_0, Rmult_1_l; reflexivity.
Qed.

Lemma leak_nonneg G s k0 : In k0 G -> 0 <= leak G s k0.
Proof.
  intros I; unfold leak; rewrite softmax_inverse.
  destruct (sum_split G k0 (fun k => exp (s k - s k0)) I) as (G' & _ & ->).
  rewrite (Rminus_diag_eq (s k0)), exp_0 by reflexivity.
  assert (0 <= sum G' (fun k => exp (s k - s k0))) by (apply sum_nonneg; intros; left; apply exp_pos).
  assert (/ (1 + sum G' (fun k => exp (s k - s k0))) <= / 1) by (apply Rinv_le_contravar; lra); lra.
Qed.

(** leak = Σ over the other keys of their weights, written with the other keys G'. *)
Lemma leak_others G s k0 G' : Permutation G (k0 :: G') -> leak G s k0 = sum G' (softmax G s).
Proof.
  intros P; assert (N : G <> []) by (intros ->; apply Permutation_nil in P; discriminate).
  pose proof (softmax_sum G s N) as E; rewrite (sum_permutation G _ _ P), sum_cons in E; unfold leak; lra.
Qed.

(** With two keys or more no weight is 1: softmax is never one-hot at finite scores. *)
Theorem never_one_hot G s k0 k1 : In k0 G -> In k1 G -> k0 <> k1 -> softmax G s k0 < 1.
Proof.
  intros I0 I1 D; destruct (sum_split G k0 (softmax G s) I0) as (G' & P & E).
  rewrite softmax_sum in E by (intros ->; destruct I0).
  assert (I : In k1 G') by (destruct (Permutation_in k1 P I1) as [->|I]; [congruence|exact I]).
  destruct (sum_split G' k1 (softmax G s) I) as (G'' & P' & E').
  assert (0 < softmax G s k1) by (apply softmax_positive; exact I1).
  assert (0 <= sum G'' (softmax G s)); [|lra].
  apply sum_nonneg; intros k Hk; left; apply softmax_positive.
  apply (Permutation_in k (Permutation_sym P)); right; apply (Permutation_in k (Permutation_sym P')); right; exact Hk.
Qed.

(** A key with more than half of the attention scores strictly better than every other. *)
Lemma majority_scores_best G s k0 k1 : In k0 G -> In k1 G -> k0 <> k1 -> 1 / 2 < softmax G s k0 -> s k1 < s k0.
Proof.
  intros I0 I1 D M; destruct (sum_split G k0 (softmax G s) I0) as (G' & P & E).
  rewrite softmax_sum in E by (intros ->; destruct I0).
  assert (I : In k1 G') by (destruct (Permutation_in k1 P I1) as [->|I]; [congruence|exact I]).
  destruct (sum_split G' k1 (softmax G s) I) as (G'' & P' & E').
  assert (0 <= sum G'' (softmax G s)).
  { apply sum_nonneg; intros k Hk; left; apply softmax_positive.
    apply (Permutation_in k (Permutation_sym P)); right; apply (Permutation_in k (Permutation_sym P')); right; exact Hk. }
  assert (L : softmax G s k1 < softmax G s k0) by lra.
  apply exp_lt_inv; unfold softmax, Rdiv in L; apply Rmult_lt_reg_r in L; [exact L|].
  apply Rinv_0_lt_compat, (normaliser_positive G s k0 I0).
Qed.

(** If Σ_{k ≠ k0} e^{s(k) − s(k0)} is at most x, then the leak is at most x. *)
Lemma leak_le G s k0 x : In k0 G -> sum G (fun k => exp (s k - s k0)) <= 1 + x -> leak G s k0 <= x.
Proof.
  intros I B; unfold leak; rewrite softmax_inverse.
  assert (Z1 : 1 <= sum G (fun k => exp (s k - s k0))).
  { destruct (sum_split G k0 (fun k => exp (s k - s k0)) I) as (G' & _ & ->).
    rewrite (Rminus_diag_eq (s k0)), exp_0 by reflexivity.
    assert (0 <= sum G' (fun k => exp (s k - s k0))) by (apply sum_nonneg; intros; left; apply exp_pos); lra. }
  assert (L : / (1 + x) <= / sum G (fun k => exp (s k - s k0))) by (apply Rinv_le_contravar; lra).
  assert (M : 1 - x <= / (1 + x)); [|lra].
  apply Rmult_le_reg_r with (1 + x); [lra|]; rewrite Rinv_l by lra; nra.
Qed.

(** Scores that are off by ρ at most change every weight by a factor of at most e^{2ρ}. *)
Lemma softmax_perturbed G s s' ρ k : (forall k', In k' G -> Rabs (s' k' - s k') <= ρ) -> In k G ->
  softmax G s' k <= exp (2 * ρ) * softmax G s k.
Proof.
  intros E I; assert (Z := normaliser_positive G s k I); assert (Z' := normaliser_positive G s' k I).
  unfold softmax; apply Rle_trans with (exp ρ * exp (s k) / sum G (fun k' => exp (- ρ) * exp (s k'))).
  - unfold Rdiv; apply Rmult_le_compat; [left; apply exp_pos|left; apply Rinv_0_lt_compat, Z'| |].
    + rewrite <- exp_plus; apply exp_monotone; assert (D := proj1 (Rabs_le_between _ _) (E k I)); lra.
    + apply Rinv_le_contravar; [rewrite sum_scal; apply Rmult_lt_0_compat; [apply exp_pos|exact Z]|].
      apply sum_le; intros k' I'; rewrite <- exp_plus; apply exp_monotone; assert (D := proj1 (Rabs_le_between _ _) (E k' I')); lra.
  - rewrite sum_scal, exp_Ropp; replace (2 * ρ) with (ρ + ρ) by ring; rewrite exp_plus; assert (P := exp_pos ρ).
    right; field; split; lra.
Qed.

(** So all weights together change by at most e^{2ρ} − 1, *)
Theorem softmax_near G s s' ρ : G <> [] -> (forall k, In k G -> Rabs (s' k - s k) <= ρ) ->
  sum G (fun k => Rabs (softmax G s' k - softmax G s k)) <= exp (2 * ρ) - 1.
Proof.
  intros N E; apply Rle_trans with ((exp (2 * ρ) - 1) * sum G (softmax G s)); [|rewrite (softmax_sum G s N); lra].
  rewrite <- sum_scal; apply sum_le; intros k I.
  assert (U := softmax_perturbed G s s' ρ k E I).
  assert (L : softmax G s k <= exp (2 * ρ) * softmax G s' k).
  { apply softmax_perturbed; [|exact I]; intros k' I'; rewrite Rabs_minus_sym; apply E, I'. }
  assert (P := softmax_positive G s k I); assert (P' := softmax_positive G s' k I).
  assert (R0 : 0 <= ρ) by (eapply Rle_trans; [apply Rabs_pos|apply (E k I)]).
  assert (X1 : 1 <= exp (2 * ρ)) by (rewrite <- exp_0; apply exp_monotone; lra).
  apply Rabs_le; split; [|lra]; destruct (Rle_or_lt (softmax G s k) (softmax G s' k)) as [D|D].
  - assert (0 <= (exp (2 * ρ) - 1) * softmax G s k) by (apply Rmult_le_pos; lra); lra.
  - assert ((exp (2 * ρ) - 1) * softmax G s' k <= (exp (2 * ρ) - 1) * softmax G s k) by (apply Rmult_le_compat_l; lra); lra.
Qed.

(** and the leak grows by the same factor at most. *)
Theorem leak_perturbed G s s' ρ k0 : In k0 G -> (forall k, In k G -> Rabs (s' k - s k) <= ρ) ->
  leak G s' k0 <= exp (2 * ρ) * leak G s k0.
Proof.
  intros I E; destruct (sum_split G k0 (softmax G s) I) as (G' & P & _).
  rewrite (leak_others G s' k0 G' P), (leak_others G s k0 G' P), <- sum_scal; apply sum_le; intros k Ik.
  apply softmax_perturbed; [exact E|]; apply (Permutation_in k (Permutation_sym P)); right; exact Ik.
Qed.

(** Every other key scores lower by α or more: the leak is at most (N − 1) e^{−α}. *)
Theorem softmax_gap G s k0 α : NoDup G -> In k0 G ->
  (forall k, In k G -> k <> k0 -> α <= s k0 - s k) -> leak G s k0 <= (INR (length G) - 1) * exp (- α).
Proof.
  intros N I gap; apply leak_le; [exact I|].
  destruct (sum_split G k0 (fun k => exp (s k - s k0)) I) as (G' & P & ->).
  rewrite (Rminus_diag_eq (s k0)), exp_0 by reflexivity; apply Rplus_le_compat_l.
  assert (E : length G = S (length G')) by (rewrite (Permutation_length P); reflexivity).
  rewrite E, S_INR; replace (INR (length G') + 1 - 1) with (INR (length G')) by ring.
  rewrite <- sum_const; apply sum_le; intros k Hk.
  assert (D : k <> k0).
  { intros ->; apply (Permutation_NoDup P) in N; inversion N; contradiction. }
  assert (gap' := gap k (Permutation_in k (Permutation_sym P) (or_intror Hk)) D).
  apply exp_monotone; lra.
Qed.

(** e^{−α} tends to 0. *)
Lemma is_lim_exp_opp : is_lim (fun α => exp (- α)) p_infty 0.
Proof.
  apply (is_lim_comp exp (fun α => - α) p_infty 0 m_infty); [exact is_lim_exp_m| |exists 0; intros; discriminate].
  apply (is_lim_opp (fun α => α) p_infty p_infty), is_lim_id.
Qed.

(** α → ∞: softmax tends to one-hot at the key that scores best. *)
Theorem softmax_limit G (s : R -> A -> R) k0 : NoDup G -> In k0 G ->
  (forall α k, 0 < α -> In k G -> k <> k0 -> α <= s α k0 - s α k) ->
  is_lim (fun α => softmax G (s α) k0) p_infty 1 /\
  forall k, In k G -> k <> k0 -> is_lim (fun α => softmax G (s α) k) p_infty 0.
Proof.
  intros N I gap.
  assert (L : is_lim (fun α => (INR (length G) - 1) * exp (- α)) p_infty 0).
  { replace (Finite 0) with (Rbar_mult (INR (length G) - 1) 0) by (simpl; f_equal; ring).
    apply (is_lim_scal_l (fun α => exp (- α))), is_lim_exp_opp. }
  assert (bound : forall α, 0 < α -> leak G (s α) k0 <= (INR (length G) - 1) * exp (- α)).
  { intros α Hα; apply softmax_gap; [exact N|exact I|intros; apply gap; assumption]. }
  split; [|intros k Hk D].
  - apply (is_lim_le_le_loc (fun α => 1 - (INR (length G) - 1) * exp (- α)) (fun _ => 1)).
    + exists 0; intros α Hα; pose proof (bound α Hα); pose proof (leak_nonneg G (s α) k0 I); unfold leak in *; lra.
    + replace (Finite 1) with (Rbar_minus 1 0) by (simpl; f_equal; ring).
      apply is_lim_minus with (Finite 1) (Finite 0); [apply is_lim_const|exact L|reflexivity].
    + apply is_lim_const.
  - apply (is_lim_le_le_loc (fun _ => 0) (fun α => (INR (length G) - 1) * exp (- α))); [|apply is_lim_const|exact L].
    exists 0; intros α Hα; split; [left; apply softmax_positive; exact Hk|].
    eapply Rle_trans; [|apply (bound α Hα)].
    destruct (sum_split G k0 (fun _ => 0) I) as (G' & P & _); rewrite (leak_others _ _ _ _ P).
    assert (I' : In k G') by (destruct (Permutation_in k P Hk) as [->|]; [congruence|assumption]).
    destruct (sum_split G' k (softmax G (s α)) I') as (G'' & P' & ->).
    assert (0 <= sum G'' (softmax G (s α))); [|lra].
    apply sum_nonneg; intros k' Hk'; left; apply softmax_positive.
    apply (Permutation_in k' (Permutation_sym P)); right; apply (Permutation_in k' (Permutation_sym P')); right; exact Hk'.
Qed.

End Softmax.
