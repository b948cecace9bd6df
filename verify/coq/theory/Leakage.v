(** Leakage: by how much a head at finite sharpness α misses the token that it looks at.

    Statements, for a head of the construction whose target q + τ_h is on the grid G of N tokens,
    and for 1 − P its leak, P the attention to the target:
      leak_count     1 − P ≤ (N − 1) e^{−α}
      leak_theta     1 − P ≤ 1 − ϑ(α)^{−d} on any grid, ϑ(α) = 1 + 2 Σ_{n≥1} e^{−αn²}
      theta_closed   ϑ(α) ≤ (1 + e^{−α}) / (1 − e^{−α})
      leak_closed    1 − P ≤ 2 d e^{−α} on any grid: it does not grow with the image
      leak_limit     for α → ∞ the attention to the target tends to 1 *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Lra Lia.
From Attention Require Import Definitions Sums Softmax Lemma2 Factorisation.
Import ListNotations.
Open Scope R_scope.

(** * ϑ *)

(** ϑ(α) = 1 + 2 Σ_{n≥1} e^{−αn²} *)
Definition theta_term (α : R) (n : nat) : R := exp (- α * (INR (S n) * INR (S n))).
Definition theta (α : R) : R := 1 + 2 * Series (theta_term α).

Lemma exp_opp_lt_1 α : 0 < α -> exp (- α) < 1.
Proof. intros Hα; rewrite <- exp_0; apply exp_increasing; lra. Qed.

(** e^{−α(n+1)²} ≤ e^{−α(n+1)} *)
Lemma theta_term_geometric α n : 0 < α -> 0 <= theta_term α n <= exp (- α) * exp (- α) ^ n.
Proof.
  intros Hα; unfold theta_term; split; [left; apply exp_pos|].
  replace (exp (- α) * exp (- α) ^ n) with (exp (- α * INR (S n))).
  - assert (1 <= INR (S n)) by (rewrite S_INR; pose proof (pos_INR n); lra).
    apply exp_monotone; assert (0 <= INR (S n) * INR (S n) - INR (S n)) by nra; nra.
  - change (exp (- α) * exp (- α) ^ n) with (exp (- α) ^ S n).
    induction (S n) as [|m IH]; [simpl; rewrite Rmult_0_r; apply exp_0|].
    rewrite S_INR, Rmult_plus_distr_l, exp_plus, IH, Rmult_1_r; simpl; ring.
Qed.

Lemma ex_series_geometric α : 0 < α -> ex_series (fun n => exp (- α) * exp (- α) ^ n).
Proof.
  intros Hα; apply (ex_series_scal_l (exp (- α)) (fun n => exp (- α) ^ n)), ex_series_geom.
  rewrite Rabs_pos_eq; [apply exp_opp_lt_1, Hα|left; apply exp_pos].
Qed.

Lemma ex_theta α : 0 < α -> ex_series (theta_term α).
Proof.
  intros Hα; apply (ex_series_le (theta_term α) (fun n => exp (- α) * exp (- α) ^ n)); [|apply ex_series_geometric, Hα].
  intros n; change (norm (theta_term α n)) with (Rabs (theta_term α n)).
  destruct (theta_term_geometric α n Hα); rewrite Rabs_pos_eq; assumption.
Qed.

(** ϑ(α) ≤ (1 + e^{−α}) / (1 − e^{−α}): the squares n² are bounded from below by n. *)
Theorem theta_closed α : 0 < α -> theta α <= (1 + exp (- α)) / (1 - exp (- α)).
Proof.
  intros Hα; pose proof (exp_opp_lt_1 α Hα); pose proof (exp_pos (- α)).
  assert (B : Series (theta_term α) <= Series (fun n => exp (- α) * exp (- α) ^ n)).
  { apply Series_le; [intros n; apply theta_term_geometric, Hα|apply ex_series_geometric, Hα]. }
  rewrite Series_scal_l, Series_geom in B by (rewrite Rabs_pos_eq; lra).
  unfold theta; replace ((1 + exp (- α)) / (1 - exp (- α))) with (1 + 2 * (exp (- α) * / (1 - exp (- α)))) by (field; lra).
  lra.
Qed.

(** A partial sum of nonnegative terms is at most the series. *)
Lemma partial_sum_le M : forall a, (forall n, 0 <= a n) -> ex_series a -> sum_below M a <= Series a.
Proof.
  induction M as [|M IH]; intros a P E.
  - unfold sum_below, sum; simpl; replace 0 with (Series (fun n => 0 * a n)) by (rewrite Series_scal_l; ring).
    apply Series_le; [|exact E]; intros n; specialize (P n); lra.
  - rewrite sum_below_S, Series_incr_1 by exact E; apply Rplus_le_compat_l, IH; [intros; apply P|].
    apply ex_series_incr_1 in E; exact E.
Qed.

Lemma theta_ge_1 α : 0 < α -> 1 <= theta α.
Proof.
  intros Hα; unfold theta; pose proof (partial_sum_le 0 (theta_term α)) as P.
  unfold sum_below, sum in P; simpl in P.
  assert (0 <= Series (theta_term α)); [|lra].
  apply P; [intros; apply theta_term_geometric, Hα|apply ex_theta, Hα].
Qed.

(** * A whole grid weighs at most ϑ^d *)

(** The coordinates c − M, …, c + M of one axis. *)
Definition axis_around (M : nat) (c : Z) : list Z :=
  c :: flat_map (fun n => [(c + Z.of_nat (S n))%Z; (c - Z.of_nat (S n))%Z]) (seq 0 M).

Lemma axis_sum_le_theta α M c : 0 < α ->
  sum (axis_around M c) (fun x => exp (- α * ((IZR x - IZR c) * (IZR x - IZR c)))) <= theta α.
Proof.
  intros Hα; unfold axis_around; rewrite sum_cons, sum_flat_map, Rminus_diag_eq by reflexivity.
  rewrite Rmult_0_l, Rmult_0_r, exp_0; unfold theta; apply Rplus_le_compat_l.
  rewrite (sum_ext _ _ (fun n => 2 * theta_term α n)).
  - rewrite sum_scal; apply Rmult_le_compat_l; [lra|]; apply partial_sum_le.
    + intros; apply theta_term_geometric, Hα.
    + apply ex_theta, Hα.
  - intros n _; unfold theta_term; rewrite !sum_cons; change (sum [] _) with 0; rewrite plus_IZR, minus_IZR, <- INR_IZR_INZ.
    replace ((IZR c + INR (S n) - IZR c) * (IZR c + INR (S n) - IZR c)) with (INR (S n) * INR (S n)) by ring.
    replace ((IZR c - INR (S n) - IZR c) * (IZR c - INR (S n) - IZR c)) with (INR (S n) * INR (S n)) by ring.
    ring.
Qed.

Lemma in_axis_around M c x : (Z.abs (x - c) <= Z.of_nat M)%Z -> In x (axis_around M c).
Proof.
  intros B; unfold axis_around; destruct (Z.eq_dec x c) as [->|D]; [left; reflexivity|right].
  apply in_flat_map; exists (Z.to_nat (Z.abs (x - c)) - 1)%nat; split; [apply in_seq; lia|simpl]; lia.
Qed.

(** Every finite set of positions lies in a box around c. *)
Lemma in_box_around c G : Forall (fun k => length k = length c) G ->
  exists M, incl G (box (map (axis_around M) c)).
Proof.
  intros F; assert (B : exists M, forall k, In k G -> (norm2 (sub k c) <= Z.of_nat M)%Z).
  { clear F; induction G as [|k G [M IH]]; [exists O; intros k []|].
    exists (M + Z.to_nat (norm2 (sub k c)))%nat; pose proof (norm2_nonneg (sub k c)).
    intros k' [<-|I]; [lia|]; specialize (IH k' I); lia. }
  destruct B as [M B]; exists M; intros k I; apply in_box.
  rewrite Forall_forall in F; specialize (F k I); specialize (B k I); clear I.
  revert k F B; induction c as [|x c IH]; intros [|y k]; simpl length; try lia; intros F B; simpl map; constructor.
  - cbn [sub norm2] in B; pose proof (norm2_nonneg (sub k c)); apply in_axis_around.
    set (e := (y - x)%Z) in *; assert (Z.abs e <= e * e)%Z by (destruct (Z.abs_spec e) as [[? ->]|[? ->]]; nia); lia.
  - apply IH; [lia|]; cbn [sub norm2] in B; pose proof (Z.square_nonneg (y - x)); lia.
Qed.

(** Σ_{k ∈ G} e^{−α‖k−c‖²} ≤ ϑ(α)^d on any grid. *)
Lemma grid_sum_le_theta d α c G : 0 < α -> positions d G -> length c = d ->
  sum G (fun k => exp (- α * IZR (norm2 (sub k c)))) <= theta α ^ d.
Proof.
  intros Hα [N F] Hc; destruct (in_box_around c G) as [M I]; [rewrite Hc; exact F|].
  eapply Rle_trans; [apply (sum_incl _ _ _ N I); intros; left; apply exp_pos|].
  rewrite (sum_ext _ _ (fun k => exp (axis_sum (axis_scores α (map IZR c)) k))).
  - rewrite normaliser_box by (unfold axis_scores; rewrite !map_length; reflexivity); clear I N F G.
    subst d; induction c as [|x c IH]; [apply Rle_refl|].
    unfold axis_scores; cbn [map normalisers length pow]; apply Rmult_le_compat; [| |apply axis_sum_le_theta, Hα|exact IH].
    + apply sum_nonneg; intros; left; apply exp_pos.
    + unfold axis_scores in *; rewrite <- normaliser_box by (rewrite !map_length; reflexivity).
      apply sum_nonneg; intros; left; apply exp_pos.
  - intros k Ik; apply length_in_box in Ik; rewrite map_length in Ik.
    rewrite axis_sum_quadratic, distance2_norm2 by exact Ik; reflexivity.
Qed.

(** * The leak of a head whose score falls off quadratically *)

Section Quadratic.
Variables (d : nat) (G : list position) (s : position -> R) (t : position) (α : R).
Hypotheses (G_d : positions d G) (target : In t G).
(** Away from the target t the score falls by α‖k − t‖² or more. *)
Hypothesis falls : forall k, In k G -> s k - s t <= - α * IZR (norm2 (sub k t)).

Let length_G k : In k G -> length k = d.
Proof. destruct G_d as [_ F]; rewrite Forall_forall in F; apply F. Qed.

(** Every other key scores lower by α or more. *)
Lemma quadratic_gap k : 0 <= α -> In k G -> k <> t -> α <= s t - s k.
Proof.
  intros Hα I D; specialize (falls k I).
  assert (1 <= IZR (norm2 (sub k t))); [|nra].
  apply IZR_le, norm2_sub_positive; [|exact D]; rewrite !length_G by assumption; reflexivity.
Qed.

Lemma quadratic_count : 0 <= α -> leak G s t <= (INR (length G) - 1) * exp (- α).
Proof. intros Hα; apply softmax_gap; [apply G_d|exact target|]; intros; apply quadratic_gap; assumption. Qed.

Lemma quadratic_theta : 0 < α -> leak G s t <= 1 - / theta α ^ d.
Proof.
  intros Hα; unfold leak; rewrite softmax_inverse; apply Rplus_le_compat_l, Ropp_le_contravar.
  apply Rinv_le_contravar.
  - apply sum_positive; [intros E; rewrite E in target; destruct target|]; intros; apply exp_pos.
  - eapply Rle_trans; [|apply (grid_sum_le_theta d α t G Hα G_d), length_G, target].
    apply sum_le; intros k I; apply exp_monotone, falls, I.
Qed.

Lemma quadratic_closed : 0 < α -> leak G s t <= 2 * INR d * exp (- α).
Proof.
  intros Hα; eapply Rle_trans; [apply quadratic_theta, Hα|].
  pose proof (exp_opp_lt_1 α Hα); pose proof (exp_pos (- α)) as P; pose proof (theta_closed α Hα) as T.
  pose proof (theta_ge_1 α Hα); set (e := exp (- α)) in *.
  (* 1/ϑ ≥ (1−e)/(1+e) ≥ 1 − 2e, and powers by Bernoulli's inequality *)
  assert (B : 1 - 2 * e <= / theta α).
  { apply Rle_trans with (/ ((1 + e) / (1 - e))).
    - replace (/ ((1 + e) / (1 - e))) with ((1 - e) / (1 + e)) by (field; lra).
      apply Rmult_le_reg_r with (1 + e); [lra|]; unfold Rdiv; rewrite Rmult_assoc, Rinv_l by lra; nra.
    - apply Rinv_le_contravar; lra. }
  assert (I1 : 0 < / theta α <= 1).
  { split; [apply Rinv_0_lt_compat; lra|]; rewrite <- Rinv_1; apply Rinv_le_contravar; lra. }
  rewrite <- pow_inv; clear - B I1 P; set (x := / theta α) in *.
  assert (1 - INR d * (2 * e) <= x ^ d); [|nra].
  induction d as [|m IH]; [simpl; lra|].
  rewrite S_INR; simpl pow; pose proof (pos_INR m).
  assert (0 <= x ^ m) by (apply pow_le; lra); assert (x ^ m <= 1) by (rewrite <- (pow1 m); apply pow_incr; lra); nra.
Qed.

End Quadratic.

(** * The leak of a head of the construction *)

Section Leak.
Context {H : Type} (d d_in d_out : nat) (hs : list H) (f : H -> position) (W : H -> matrix) (b : vector).
Variables (G : list position) (h : H) (X : image) (q : position).
Hypotheses (G_d : positions d G) (q_d : length q = d) (h_d : length (f h) = d).
(** The target q + τ_h is a token of the grid: padding is made of real tokens. *)
Hypothesis target : In (add q (f h)) G.

Let L α : layer H := construction d d_in d_out α hs f W b.

Lemma score_below_target α k : In k G ->
  score (L α) h X q k - score (L α) h X q (add q (f h)) <= - α * IZR (norm2 (sub k (add q (f h)))).
Proof.
  intros I; destruct G_d as [_ F]; rewrite Forall_forall in F.
  unfold L; rewrite !score_construction by auto; rewrite norm2_sub_diag; lra.
Qed.

Lemma target_gap α k : 0 <= α -> In k G -> k <> add q (f h) ->
  α <= score (L α) h X q (add q (f h)) - score (L α) h X q k.
Proof. apply (quadratic_gap d G); [exact G_d|exact target|]; intros; apply score_below_target; assumption. Qed.

(** The leak is at most (N − 1) e^{−α}. *)
Theorem leak_count α : 0 <= α ->
  1 - attention (L α) G h X q (add q (f h)) <= (INR (length G) - 1) * exp (- α).
Proof. apply (quadratic_count d G (fun k => score (L α) h X q k)); auto; intros; apply score_below_target; assumption. Qed.

(** The leak is at most 1 − ϑ(α)^{−d}, on any grid. *)
Theorem leak_theta α : 0 < α ->
  1 - attention (L α) G h X q (add q (f h)) <= 1 - / theta α ^ d.
Proof. apply (quadratic_theta d G (fun k => score (L α) h X q k)); auto; intros; apply score_below_target; assumption. Qed.

(** The leak is at most 2 d e^{−α}, on any grid. *)
Theorem leak_closed α : 0 < α ->
  1 - attention (L α) G h X q (add q (f h)) <= 2 * INR d * exp (- α).
Proof. apply (quadratic_closed d G (fun k => score (L α) h X q k)); auto; intros; apply score_below_target; assumption. Qed.

(** α → ∞: all attention goes to the target. *)
Theorem leak_limit : is_lim (fun α => attention (L α) G h X q (add q (f h))) p_infty 1.
Proof.
  apply (softmax_limit G (fun α k => score (L α) h X q k) (add q (f h))); [apply G_d|exact target|].
  intros α k Hα I D; apply target_gap; [lra|exact I|exact D].
Qed.

End Leak.
