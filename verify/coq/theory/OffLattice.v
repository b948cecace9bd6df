(** A head whose shift is not an integer vector: where it looks, and its leak.

    Let t = q + τ be the target, τ real, n the nearest token (every coordinate rounded) and f = t − n,
    |f_i| ≤ 1/2.

    Statements:
      off_lattice_gap    every other token scores lower than n by α(1 − 2 max|f_i|) or more
      off_lattice_leak   the leak past n is at most 1 − Π_i 1/ϑ(α, f_i) on any grid, with
                         ϑ(α, f) = 1 + Σ_{m≥1} (e^{−α(m²−2mf)} + e^{−α(m²+2mf)})
      head_falls         the score of a head with −α'(1, −2τ) + (0, ρ), |ρ_i| ≤ α' − α, falls off from τ as if it had α
      half_way           where another token is as near as n (f_i = 1/2), n has at most half of the
                         attention, for every α *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Factorisation Leakage Layers.
Import ListNotations.
Open Scope R_scope.

(** * ϑ off the lattice *)

Definition side_term (α f : R) (m : nat) : R := exp (- α * (INR (S m) * INR (S m) - 2 * INR (S m) * f)).
Definition theta_off (α f : R) : R := 1 + Series (fun m => side_term α f m + side_term α (- f) m).

(** e^{−α((m+1)²−2(m+1)f)} ≤ e^{−αm}, |f| ≤ 1/2 *)
Lemma side_term_geometric α f m : 0 < α -> Rabs f <= 1 / 2 -> 0 <= side_term α f m <= exp (- α) ^ m.
Proof.
  intros Hα Hf; unfold side_term; split; [left; apply exp_pos|].
  replace (exp (- α) ^ m) with (exp (- α * INR m)).
  - apply exp_monotone; rewrite S_INR; pose proof (pos_INR m) as Hm; apply Rabs_le_between in Hf.
    assert (INR m <= (INR m + 1) * (INR m + 1) - 2 * (INR m + 1) * f) by nra; nra.
  - induction m as [|m IH]; [simpl; rewrite Rmult_0_r; apply exp_0|].
    rewrite S_INR, Rmult_plus_distr_l, exp_plus, IH, Rmult_1_r; simpl; ring.
Qed.

Lemma ex_theta_off α f : 0 < α -> Rabs f <= 1 / 2 -> ex_series (fun m => side_term α f m + side_term α (- f) m).
Proof.
  intros Hα Hf; assert (E : forall g, Rabs g <= 1 / 2 -> ex_series (side_term α g)).
  { intros g Hg; apply (ex_series_le (side_term α g) (fun m => exp (- α) ^ m)).
    - intros m; change (norm (side_term α g m)) with (Rabs (side_term α g m)).
      destruct (side_term_geometric α g m Hα Hg); rewrite Rabs_pos_eq; assumption.
    - apply ex_series_geom; rewrite Rabs_pos_eq; [apply exp_opp_lt_1, Hα|left; apply exp_pos]. }
  apply (ex_series_plus (side_term α f) (side_term α (- f))); apply E; [|rewrite Rabs_Ropp]; exact Hf.
Qed.

(** One axis weighs at most ϑ(α, f), the nearest coordinate c counting 1. *)
Lemma axis_sum_le_theta_off α f M c : 0 < α -> Rabs f <= 1 / 2 ->
  sum (axis_around M c) (fun x => exp (- α * ((IZR x - IZR c) * (IZR x - IZR c) - 2 * (IZR x - IZR c) * f))) <=
  theta_off α f.
Proof.
  intros Hα Hf; unfold axis_around; rewrite sum_cons, sum_flat_map, (Rminus_diag_eq (IZR c)) by reflexivity.
  replace (- α * (0 * 0 - 2 * 0 * f)) with 0 by ring; rewrite exp_0; unfold theta_off; apply Rplus_le_compat_l.
  rewrite (sum_ext _ _ (fun m => side_term α f m + side_term α (- f) m)).
  - apply (partial_sum_le M (fun m => side_term α f m + side_term α (- f) m)); [|apply ex_theta_off; assumption].
    intros m; apply Rplus_le_le_0_compat; left; apply exp_pos.
  - intros m _; unfold side_term; rewrite !sum_cons; change (sum [] _) with 0.
    rewrite plus_IZR, minus_IZR, <- INR_IZR_INZ, Rplus_0_r; f_equal; f_equal; ring.
Qed.

(** Π_i ϑ(α, f_i) *)
Fixpoint theta_product (α : R) (f : list R) : R :=
  match f with [] => 1 | f1 :: f' => theta_off α f1 * theta_product α f' end.

(** Σ_i m_i² − 2 m_i f_i, by which the square of the distance exceeds that of the nearest token, m = k − n. *)
Fixpoint excess (m : position) (f : list R) : R :=
  match m, f with x :: m', f1 :: f' => (IZR x * IZR x - 2 * IZR x * f1) + excess m' f' | _, _ => 0 end.

Lemma excess_distance k c f : length k = length c -> length f = length c ->
  let t := map (fun p => IZR (fst p) + snd p) (combine c f) in
  distance2 k t = distance2 c t + excess (sub k c) f.
Proof.
  revert k f; induction c as [|y c IH]; intros [|x k] [|f1 f]; simpl length; try lia; intros E E' t;
    [unfold t; simpl; ring|]; unfold t; cbn [combine map distance2 sub excess fst snd].
  rewrite (IH k f) by lia; rewrite minus_IZR; ring.
Qed.

(** The score of each axis, −α(m² − 2 m f_i) at x = c_i + m. *)
Definition off_scores (α : R) (c : position) (f : list R) : list (Z -> R) :=
  map (fun p x => - α * ((IZR x - IZR (fst p)) * (IZR x - IZR (fst p)) - 2 * (IZR x - IZR (fst p)) * snd p)) (combine c f).

Lemma axis_sum_off α c f k : length k = length c -> length f = length c ->
  axis_sum (off_scores α c f) k = - α * excess (sub k c) f.
Proof.
  revert k f; induction c as [|y c IH]; intros [|x k] [|f1 f]; simpl length; try lia; intros E E'; [simpl; ring|].
  unfold off_scores; cbn [combine map axis_sum sub excess fst snd]; fold (off_scores α c f).
  rewrite IH by lia; rewrite minus_IZR; ring.
Qed.

Section OffLattice.
Variables (G : list position) (n : position) (f : list R) (α : R).
Hypotheses (G_d : positions (length n) G) (n_on : In n G) (f_d : length f = length n) (Hα : 0 < α).
Hypothesis nearest : Forall (fun f1 => Rabs f1 <= 1 / 2) f.
(** The target t = n + f, a vector of real coordinates, and the score of Lemma 2 for it. *)
Let t : list R := map (fun p => IZR (fst p) + snd p) (combine n f).
Let s (k : position) : R := - α * distance2 k t.

Let length_G k : In k G -> length k = length n.
Proof. destruct G_d as [_ F]; rewrite Forall_forall in F; apply F. Qed.

Lemma score_excess k : In k G -> s k - s n = - α * excess (sub k n) f.
Proof. intros I; unfold s, t; rewrite (excess_distance k n f) by (try apply length_G; assumption); ring. Qed.

(** Every other token scores lower by α(1 − 2μ) or more, μ a bound of all |f_i|. *)
Theorem off_lattice_gap μ k : Forall (fun f1 => Rabs f1 <= μ) f -> μ <= 1 / 2 -> In k G -> k <> n ->
  α * (1 - 2 * μ) <= s n - s k.
Proof.
  intros Hμ Hμ' I D; pose proof (score_excess k I) as E.
  assert (B : 1 - 2 * μ <= excess (sub k n) f); [|nra].
  pose proof (length_G k I) as Lk; clear E I Hα nearest G_d n_on t s length_G.
  assert (Sq : forall (x : Z) f1, Rabs f1 <= μ -> 0 <= IZR x * IZR x - 2 * IZR x * f1 /\
                 (x <> 0%Z -> 1 - 2 * μ <= IZR x * IZR x - 2 * IZR x * f1)).
  { intros x f1 Hf; apply Rabs_le_between in Hf.
    destruct (Z.lt_trichotomy x 0) as [X|[->|X]].
    - assert (IZR x <= -1) by (apply IZR_le; lia); split; [|intros _]; nra.
    - split; [nra|congruence].
    - assert (1 <= IZR x) by (apply IZR_le; lia); split; [|intros _]; nra. }
  assert (P : forall k n f, length k = length n -> length f = length n -> Forall (fun f1 => Rabs f1 <= μ) f ->
    0 <= excess (sub k n) f).
  { clear -Sq; induction k as [|x k IH]; intros [|y n] [|f1 f]; simpl length; try lia; intros E E' F; [simpl; lra|].
    inversion F; subst; cbn [sub excess]; destruct (Sq (x - y)%Z f1); [assumption|].
    specialize (IH n f ltac:(lia) ltac:(lia) ltac:(assumption)); lra. }
  revert k f n D Lk f_d Hμ; induction k as [|x k IH]; intros [|f1 f] [|y n] D; simpl length; try lia; intros Lk Lf F; [congruence|].
  inversion F; subst; cbn [sub excess]; destruct (Sq (x - y)%Z f1) as [S0 S1]; [assumption|].
  destruct (Z.eq_dec x y) as [->|Dx].
  - assert (1 - 2 * μ <= excess (sub k n) f); [|lra]; apply IH; [congruence|lia|lia|assumption].
  - specialize (S1 ltac:(lia)); pose proof (P k n f ltac:(lia) ltac:(lia) ltac:(assumption)); lra.
Qed.

(** The leak past the nearest token is at most 1 − Π_i 1/ϑ(α, f_i), on any grid. *)
Theorem off_lattice_leak : leak G s n <= 1 - / theta_product α f.
Proof.
  unfold leak; rewrite softmax_inverse; apply Rplus_le_compat_l, Ropp_le_contravar, Rinv_le_contravar.
  - apply sum_positive; [intros E; rewrite E in n_on; destruct n_on|]; intros; apply exp_pos.
  - destruct G_d as [N F]; destruct (in_box_around n G F) as [M I].
    rewrite (sum_ext G _ (fun k => exp (axis_sum (off_scores α n f) k))).
    + eapply Rle_trans; [apply (sum_incl _ _ _ N I); intros; left; apply exp_pos|].
      rewrite normaliser_box by (unfold off_scores; rewrite !map_length, combine_length; lia).
      clear I N F s t length_G n_on G_d; revert f_d nearest.
      generalize f as f'; induction n as [|c n' IH]; intros [|f1 f'] E B; simpl in E; try lia; [apply Rle_refl|].
      inversion B as [|? ? B1 B2]; subst; unfold off_scores; cbn [map combine normalisers theta_product fst snd].
      fold (off_scores α n' f'); apply Rmult_le_compat.
      * apply sum_nonneg; intros; left; apply exp_pos.
      * rewrite <- normaliser_box by (unfold off_scores; rewrite !map_length, combine_length; lia).
        apply sum_nonneg; intros; left; apply exp_pos.
      * apply axis_sum_le_theta_off; assumption.
      * apply IH; [lia|exact B2].
    + intros k Ik; rewrite score_excess, axis_sum_off by (try apply length_G; assumption); reflexivity.
Qed.

(** Another token k as near to the target as n (at f_i = 1/2, k = n + e_i): n has at most half of the
    attention, however sharp. *)
Theorem half_way k : In k G -> k <> n -> excess (sub k n) f = 0 -> softmax G s n <= 1 / 2.
Proof.
  intros I D E; pose proof (score_excess k I) as S; rewrite E in S.
  destruct (Rle_dec (softmax G s n) (1 / 2)) as [|B]; [assumption|exfalso].
  pose proof (majority_scores_best G s n k n_on I ltac:(congruence) ltac:(lra)); lra.
Qed.

End OffLattice.

(** * Stored numbers *)

(** w = −α'(1, −2τ) + (0, ρ) with |ρ_i| ≤ α' − α: the score falls off from τ like that of −α(1, −2τ), or faster. *)
Definition tilted (d : nat) (α : R) (τ : position) (w : vector) : Prop :=
  exists α' ρ, (forall i, (i < S d)%nat -> w i = v_quadratic α' τ i + ρ i) /\ ρ O = 0 /\
    forall i, (i < d)%nat -> Rabs (ρ (S i)) <= α' - α.

Lemma coordinate_sub x y i : length x = length y -> coordinate (sub x y) i = coordinate x i - coordinate y i.
Proof.
  unfold coordinate; revert y i; induction x as [|a x IH]; intros [|b y] [|i]; simpl; try lia; intros E; try lra.
  - rewrite minus_IZR; reflexivity.
  - apply IH; lia.
Qed.

(** Σ_i ρ_i x_i ≤ μ‖x‖² for integers x_i. *)
Lemma tilt_bound μ x ρ : (forall i, (i < length x)%nat -> Rabs (ρ i) <= μ) ->
  sum_below (length x) (fun i => ρ i * coordinate x i) <= μ * IZR (norm2 x).
Proof.
  revert ρ; induction x as [|a x IH]; intros ρ B; [unfold sum_below; simpl; lra|].
  simpl length; rewrite sum_below_S; simpl norm2; rewrite plus_IZR, Rmult_plus_distr_l; apply Rplus_le_compat.
  - unfold coordinate; simpl nth; assert (B0 := B O ltac:(simpl; lia)).
    assert (A : Rabs (IZR a) <= IZR (a * a)) by (rewrite <- abs_IZR; apply IZR_le; nia).
    apply Rle_trans with (Rabs (ρ O) * Rabs (IZR a)); [rewrite <- Rabs_mult; apply Rle_abs|].
    apply Rmult_le_compat; try apply Rabs_pos; assumption.
  - apply (IH (fun i => ρ (S i))); intros i Hi; apply B; simpl; lia.
Qed.

(** The score of such a head falls off quadratically from q + τ. *)
Theorem head_falls {H} (L : layer H) h d α τ X q k : content_free L h -> D_p L = S d ->
  (forall δ, r L δ = r_quadratic δ) ->
  tilted d α τ (row_times (D_k L) (v (parameters L h)) (W_key_pos (parameters L h))) ->
  length q = d -> length τ = d -> length k = d ->
  score L h X q k - score L h X q (add q τ) <= - α * IZR (norm2 (sub k (add q τ))).
Proof.
  intros C Ep Er (α' & ρ & Ev & E0 & Bρ) q_d τ_d k_d.
  assert (S : forall k, score L h X q k = dot (S d) (v_quadratic α' τ) (r_quadratic (sub k q)) +
    sum_below d (fun i => ρ (S i) * coordinate (sub k q) i)).
  { intros k'; rewrite read_back, Ep, Er by exact C; unfold dot; rewrite !sum_below_S.
    rewrite Ev, E0 by lia; cbn [r_quadratic v_quadratic]; rewrite Rplus_0_r, Rplus_assoc; f_equal.
    unfold sum_below; rewrite <- sum_plus; apply sum_ext; intros i Hi; apply in_seq in Hi.
    rewrite Ev by lia; cbn [v_quadratic]; ring. }
  assert (Lt : length (add q τ) = d) by (rewrite length_add; congruence).
  rewrite !S, !lemma2 by (try assumption; rewrite length_sub; congruence).
  rewrite !sub_sub, norm2_sub_diag by congruence.
  assert (D : sum_below d (fun i => ρ (Datatypes.S i) * coordinate (sub k q) i) -
    sum_below d (fun i => ρ (Datatypes.S i) * coordinate (sub (add q τ) q) i) =
    sum_below d (fun i => ρ (Datatypes.S i) * coordinate (sub k (add q τ)) i)).
  { unfold sum_below; rewrite <- sum_minus; apply sum_ext; intros i Hi; apply in_seq in Hi.
    rewrite <- Rmult_minus_distr_l; f_equal; rewrite <- sub_sub by congruence.
    rewrite (coordinate_sub (sub k q) τ), (sub_add τ q) by (rewrite ?length_sub; congruence); reflexivity. }
  assert (T := tilt_bound (α' - α) (sub k (add q τ)) (fun i => ρ (Datatypes.S i))).
  rewrite length_sub in T by congruence; rewrite k_d in T; specialize (T Bρ); lra.
Qed.
