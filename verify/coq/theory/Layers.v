(** Any layer and any convolution: bounds on their difference from the stored numbers.

    The layer may be built in any way.  A head enters only through the matrix W_val W_out that it
    carries, the shift at which it looks, and its leak.

    Statements:
      attend_concatenated   Eq. 3 with the heads concatenated, as the paper writes it, is the same layer
      attend_heads    Eq. 3 with W_val^h W_out^h multiplied first: b_out + Σ_h P^h X (W_val^h W_out^h)
      layer_error     |MHSA(X) − (b_out + Σ_h X_{t(h)} W_val^h W_out^h)| ≤ 2·B·Σ_h leak_h·Σ|W_val^h W_out^h|
      layer_within    |MHSA(X) − Conv(X)| ≤ |b_out − b| + leak + taps: the three summands apart
      layer_same      taps and bias equal: the difference is leak alone
      read_back       a head without content terms scores (Ŵ_keyᵀ v)·r_δ
      read_back_leak  where Ŵ_keyᵀ v = −α(1, −2τ) on quadratic r, the head looks at τ and leaks at most
                      1 − ϑ(α)^{−d} and at most 2 d e^{−α} *)

From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Leakage.
Import ListNotations.
Open Scope R_scope.

(** |X_k,i| ≤ B for every token and input channel. *)
Definition bounded (d_in : nat) (B : R) (G : list position) (X : image) : Prop :=
  forall k i, In k G -> (i < d_in)%nat -> Rabs (X k i) <= B.

(** The query q has all its targets on the grid. *)
Definition targets_on (G : list position) (q : position) (Δ : list position) : Prop :=
  forall τ, In τ Δ -> In (add q τ) G.

(** The absolute sum of a matrix's entries in column j: Σ_i |M_ij|. *)
Definition column_sum (d_in : nat) (M : matrix) (j : nat) : R := sum_below d_in (fun i => Rabs (M i j)).

(** The matrix W_val^h W_out^h. *)
Definition value_output {H} (L : layer H) (h : H) : matrix :=
  fun i => row_times (D_h L) (W_val (parameters L h) i) (W_out (parameters L h)).

(** The matrix that the layer has at shift τ: the sum over the heads that look there. *)
Definition tap {H} (L : layer H) (f : H -> position) (τ : position) : matrix :=
  fun i j => sum (heads L) (fun h => if position_eq_dec (f h) τ then value_output L h i j else 0).

(** * Eq. 3, head by head *)

(** (x A) B = x (A B) *)
Lemma row_times_assoc n m x A B j :
  row_times m (row_times n x A) B j = row_times n x (fun i => row_times m (A i) B) j.
Proof.
  unfold row_times, sum_below.
  rewrite (sum_ext (seq 0 m) _ (fun a => sum (seq 0 n) (fun i => x i * (A i a * B a j)))).
  - rewrite sum_swap; apply sum_ext; intros i _; apply sum_scal.
  - intros a _; rewrite <- sum_scal_r; apply sum_ext; intros; ring.
Qed.

(** MHSA(X) = b_out + Σ_h P^h X (W_val^h W_out^h) *)
Lemma attend_heads {H} (L : layer H) G X q j :
  attend L G X q j =
  b_out L j + sum (heads L) (fun h =>
    row_times (D_in L) (fun i => sum G (fun k => attention L G h X q k * X k i)) (value_output L h) j).
Proof. unfold attend; f_equal; apply sum_ext; intros h _; apply row_times_assoc. Qed.

(** Eq. 3 as the paper writes it: the heads' results side by side, hcat_h(P^h X W_val^h), a row vector of
    N_h·D_h entries, times one matrix W_out, the heads' W_out^h on top of each other. *)
Definition hcat {H} (hs : list H) (d_h : nat) (x : H -> vector) : vector :=
  fun a => match nth_error hs (a / d_h) with Some h => x h (a mod d_h)%nat | None => 0 end.
Definition vcat {H} (hs : list H) (d_h : nat) (A : H -> matrix) : matrix :=
  fun a j => match nth_error hs (a / d_h) with Some h => A h (a mod d_h)%nat j | None => 0 end.

(** MHSA(X) = hcat_h(P^h X W_val^h) W_out + b_out *)
Theorem attend_concatenated {H} (L : layer H) G X q j : (0 < D_h L)%nat ->
  attend L G X q j =
  b_out L j + row_times (length (heads L) * D_h L)
    (hcat (heads L) (D_h L) (fun h =>
       row_times (D_in L) (fun i => sum G (fun k => attention L G h X q k * X k i)) (W_val (parameters L h))))
    (vcat (heads L) (D_h L) (fun h => W_out (parameters L h))) j.
Proof.
  intros Hh; unfold attend; f_equal; unfold row_times at 3; rewrite sum_below_blocks.
  assert (D : forall n a, (a < D_h L)%nat -> ((n * D_h L + a) / D_h L = n /\ (n * D_h L + a) mod D_h L = a)%nat).
  { intros n a Ha; rewrite Nat.add_comm, Nat.div_add, Nat.mod_add, Nat.div_small, Nat.mod_small; lia. }
  rewrite sum_as_below; apply sum_below_ext; intros n _.
  destruct (nth_error (heads L) n) as [h|] eqn:E.
  - apply sum_below_ext; intros a Ha; unfold hcat, vcat; destruct (D n a Ha) as [-> ->]; rewrite E; reflexivity.
  - symmetry; apply sum_below_zero; intros a Ha; unfold hcat; destruct (D n a Ha) as [-> _]; rewrite E; ring.
Qed.

(** Attention that leaks moves a bounded value by at most 2·B·leak. *)
Lemma attended_error {A} (G : list A) s k0 (x : A -> R) B : In k0 G -> (forall k, In k G -> Rabs (x k) <= B) ->
  Rabs (sum G (fun k => softmax G s k * x k) - x k0) <= 2 * B * leak G s k0.
Proof.
  intros I HB; destruct (sum_split G k0 (fun k => softmax G s k * x k) I) as (G' & P & ->).
  assert (In' : forall k, In k G' -> In k G) by (intros k Hk; apply (Permutation_in k (Permutation_sym P)); right; exact Hk).
  replace (softmax G s k0 * x k0 + sum G' (fun k => softmax G s k * x k) - x k0) with
    (sum G' (fun k => softmax G s k * x k) + - (leak G s k0 * x k0)) by (unfold leak; ring).
  eapply Rle_trans; [apply Rabs_triang|]; rewrite Rabs_Ropp, Rabs_mult, (Rabs_pos_eq (leak G s k0)) by (apply leak_nonneg, I).
  pose proof (leak_nonneg G s k0 I); pose proof (HB k0 I).
  assert (Rabs (sum G' (fun k => softmax G s k * x k)) <= leak G s k0 * B); [|nra].
  eapply Rle_trans; [apply sum_abs|]; rewrite (leak_others _ _ _ _ P), <- sum_scal_r; apply sum_le; intros k Hk.
  pose proof (softmax_positive G s k (In' k Hk)); rewrite Rabs_mult, Rabs_pos_eq by lra.
  apply Rmult_le_compat_l; [lra|]; apply HB, In', Hk.
Qed.

(** * The difference *)

(** A matrix applied to a vector that is off by at most c in every entry is off by at most c·Σ|M|. *)
Lemma row_times_error d_in (x y : vector) (M : matrix) j c : (forall i, (i < d_in)%nat -> Rabs (x i - y i) <= c) ->
  Rabs (row_times d_in x M j - row_times d_in y M j) <= c * column_sum d_in M j.
Proof.
  intros E; unfold row_times, column_sum, sum_below; rewrite <- sum_minus, <- sum_scal.
  eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros i Hi; apply in_seq in Hi.
  rewrite <- Rmult_minus_distr_r, Rabs_mult; apply Rmult_le_compat_r; [apply Rabs_pos|apply E; lia].
Qed.

(** What the heads read at the tokens t(h) that they look at, up to leakage. *)
Theorem layer_error {H} (L : layer H) (t : H -> position) G X q j B (λ : H -> R) :
  bounded (D_in L) B G X -> (forall h, In h (heads L) -> In (t h) G) ->
  (forall h, In h (heads L) -> 1 - attention L G h X q (t h) <= λ h) ->
  Rabs (attend L G X q j -
        (b_out L j + sum (heads L) (fun h => row_times (D_in L) (X (t h)) (value_output L h) j))) <=
  2 * B * sum (heads L) (fun h => λ h * column_sum (D_in L) (value_output L h) j).
Proof.
  intros HB T Hλ; rewrite attend_heads.
  match goal with |- Rabs (?b + ?x - (?b + ?y)) <= _ => replace (b + x - (b + y)) with (x - y) by ring end.
  rewrite <- sum_minus, <- sum_scal; eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros h Ih.
  rewrite <- Rmult_assoc; apply row_times_error; intros i Hi.
  eapply Rle_trans; [apply (attended_error G _ (t h) (fun k => X k i) B (T h Ih))|].
  - intros k Ik; apply HB; [exact Ik|exact Hi].
  - apply Rmult_le_compat_l; [|apply Hλ, Ih].
    assert (0 <= B); [|lra]; eapply Rle_trans; [apply Rabs_pos|apply (HB _ i (T h Ih) Hi)].
Qed.

(** Heads at one shift add up: Σ_h X_{q+τ_h} W_val^h W_out^h = Σ_τ X_{q+τ} (tap at τ). *)
Lemma heads_as_taps {H} (L : layer H) (f : H -> position) Δ X q j : NoDup Δ ->
  (forall h, In h (heads L) -> In (f h) Δ) ->
  sum (heads L) (fun h => row_times (D_in L) (X (add q (f h))) (value_output L h) j) =
  sum Δ (fun τ => row_times (D_in L) (X (add q τ)) (tap L f τ) j).
Proof.
  intros N I; transitivity (sum (heads L) (fun h => sum Δ (fun τ =>
    if position_eq_dec (f h) τ then row_times (D_in L) (X (add q τ)) (value_output L h) j else 0))).
  - apply sum_ext; intros h Ih; rewrite (sum_single Δ (f h) _ N (I h Ih)).
    + destruct (position_eq_dec (f h) (f h)); [reflexivity|congruence].
    + intros τ _ D; destruct (position_eq_dec (f h) τ); [congruence|reflexivity].
  - rewrite sum_swap; apply sum_ext; intros τ _; unfold row_times, tap, sum_below.
    rewrite (sum_ext (seq 0 (D_in L)) _ (fun i => sum (heads L) (fun h =>
      X (add q τ) i * (if position_eq_dec (f h) τ then value_output L h i j else 0)))) by (intros; symmetry; apply sum_scal).
    rewrite <- sum_swap; apply sum_ext; intros h _; destruct (position_eq_dec (f h) τ); [reflexivity|].
    symmetry; apply sum_zero; intros; ring.
Qed.

(** A kernel may be written on a larger support, with W_τ = 0 at the shifts that it lacks. *)
Lemma conv_larger_support d_in Δ Δ' W b X q j : NoDup Δ -> NoDup Δ' -> incl Δ Δ' ->
  (forall τ i, In τ Δ' -> ~ In τ Δ -> W τ i j = 0) -> conv d_in Δ' W b X q j = conv d_in Δ W b X q j.
Proof.
  intros N N' I Z; unfold conv; f_equal.
  assert (F : forall l, NoDup l -> incl l Δ' -> exists l', Permutation Δ' (l ++ l')).
  { clear -N'; induction l as [|τ l IH]; intros Nl Il; [exists Δ'; apply Permutation_refl|].
    inversion Nl; subst; destruct IH as [l' P]; [assumption|intros x Hx; apply Il; right; exact Hx|].
    assert (It : In τ l').
    { assert (In τ (l ++ l')) as Iτ by (apply (Permutation_in τ P), Il; left; reflexivity).
      apply in_app_or in Iτ; tauto. }
    destruct (in_split τ l' It) as (l1 & l2 & ->); exists (l1 ++ l2); rewrite P, app_assoc.
    rewrite <- Permutation_middle, app_assoc; apply Permutation_refl. }
  destruct (F Δ N I) as [l' P]; rewrite (sum_permutation _ _ _ P), sum_app.
  rewrite (sum_zero l'); [ring|]; intros τ Iτ; apply sum_below_zero; intros i _; rewrite Z; [ring| |].
  - apply (Permutation_in τ (Permutation_sym P)), in_or_app; right; exact Iτ.
  - intros Iτ'; apply (Permutation_NoDup P) in N'; destruct (in_split τ l' Iτ) as (l1 & l2 & ->).
    rewrite app_assoc in N'; apply NoDup_remove_2 in N'; apply N'.
    apply in_or_app; left; apply in_or_app; left; exact Iτ'.
Qed.

(** Any layer against any convolution whose support Δ holds all shifts that heads look at (write
    W_τ = 0 where the kernel has no tap): difference ≤ bias + leak + taps. *)
Theorem layer_within {H} (L : layer H) (f : H -> position) Δ W b G X q j B (λ : H -> R) :
  NoDup Δ -> (forall h, In h (heads L) -> In (f h) Δ) -> targets_on G q Δ -> bounded (D_in L) B G X ->
  (forall h, In h (heads L) -> 1 - attention L G h X q (add q (f h)) <= λ h) ->
  Rabs (attend L G X q j - conv (D_in L) Δ W b X q j) <=
  Rabs (b_out L j - b j) +
  2 * B * sum (heads L) (fun h => λ h * column_sum (D_in L) (value_output L h) j) +
  B * sum Δ (fun τ => column_sum (D_in L) (fun i j' => tap L f τ i j' - W τ i j') j).
Proof.
  intros N I T HB Hλ.
  pose proof (layer_error L (fun h => add q (f h)) G X q j B λ HB (fun h Ih => T _ (I h Ih)) Hλ) as E.
  cbv beta in E; rewrite (heads_as_taps L f Δ X q j N I) in E.
  set (heads_sum := sum Δ _) in E; unfold conv; set (conv_sum := sum Δ _).
  replace (attend L G X q j - (b j + conv_sum)) with
    ((b_out L j - b j) + (attend L G X q j - (b_out L j + heads_sum)) + (heads_sum - conv_sum)) by ring.
  eapply Rle_trans; [apply Rabs_triang|]; apply Rplus_le_compat.
  - eapply Rle_trans; [apply Rabs_triang|]; apply Rplus_le_compat_l; exact E.
  - unfold heads_sum, conv_sum; rewrite <- sum_minus, <- sum_scal; eapply Rle_trans; [apply sum_abs|]; apply sum_le.
    intros τ Iτ; unfold row_times, column_sum, sum_below; rewrite <- sum_minus, <- sum_scal.
    eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros i Hi; apply in_seq in Hi.
    rewrite <- Rmult_minus_distr_l, Rabs_mult; apply Rmult_le_compat_r; [apply Rabs_pos|].
    apply HB; [apply T, Iτ|lia].
Qed.

(** The heads at every shift sum to the tap there, and b_out is the bias: the difference is leak alone. *)
Corollary layer_same {H} (L : layer H) (f : H -> position) Δ W b G X q j B (λ : H -> R) :
  NoDup Δ -> (forall h, In h (heads L) -> In (f h) Δ) -> targets_on G q Δ -> bounded (D_in L) B G X ->
  (forall h, In h (heads L) -> 1 - attention L G h X q (add q (f h)) <= λ h) ->
  b_out L j = b j -> (forall τ i, In τ Δ -> (i < D_in L)%nat -> tap L f τ i j = W τ i j) ->
  Rabs (attend L G X q j - conv (D_in L) Δ W b X q j) <=
  2 * B * sum (heads L) (fun h => λ h * column_sum (D_in L) (value_output L h) j).
Proof.
  intros N I T HB Hλ Eb EW; pose proof (layer_within L f Δ W b G X q j B λ N I T HB Hλ) as E.
  rewrite Eb, (Rminus_diag_eq (b j)), Rabs_R0 in E by reflexivity.
  rewrite (sum_zero Δ (fun τ => column_sum _ (fun i j' => _ - _) j)) in E; [lra|].
  intros τ Iτ; unfold column_sum; apply sum_below_zero; intros i Hi.
  rewrite EW, Rminus_diag_eq, Rabs_R0 by auto; reflexivity.
Qed.

(** * Where a stored head looks *)

(** Eq. 6 with W_qry = 0, and u = 0 or W_key = 0: the score is (Ŵ_keyᵀ v)·r_δ. *)
Theorem read_back {H} (L : layer H) h X q k : content_free L h ->
  score L h X q k =
  dot (D_p L) (row_times (D_k L) (v (parameters L h)) (W_key_pos (parameters L h))) (r L (sub k q)).
Proof.
  intros C; assert (Q := proj1 C); unfold score, dot.
  rewrite !(sum_below_zero (D_k L) (fun i => row_times _ _ (W_qry _) i * _)).
  2, 3: intros i _; unfold row_times; rewrite sum_below_zero; [ring|]; intros; rewrite Q; ring.
  rewrite (content_free_u L h (X k) C).
  rewrite !Rplus_0_l; unfold times_column, row_times, sum_below.
  rewrite (sum_ext (seq 0 (D_k L)) _ (fun a => sum (seq 0 (D_p L)) (fun i =>
    v (parameters L h) a * W_key_pos (parameters L h) a i * r L (sub k q) i))).
  - rewrite sum_swap; apply sum_ext; intros i _; apply sum_scal_r.
  - intros a _; rewrite <- sum_scal; apply sum_ext; intros; ring.
Qed.

(** The stored numbers of a quadratic head, however they are factored into v and Ŵ_key: if they give
    −α(1, −2τ), then the head looks at τ, with the leakage of Leakage.v. *)
Theorem read_back_leak {H} (L : layer H) h d α τ G X q : content_free L h -> 0 < α ->
  D_p L = S d -> (forall δ, r L δ = r_quadratic δ) ->
  (forall i, (i < S d)%nat ->
     row_times (D_k L) (v (parameters L h)) (W_key_pos (parameters L h)) i = v_quadratic α τ i) ->
  positions d G -> length q = d -> length τ = d -> In (add q τ) G ->
  1 - attention L G h X q (add q τ) <= 1 - / theta α ^ d /\
  1 - attention L G h X q (add q τ) <= 2 * INR d * exp (- α).
Proof.
  intros C Hα Ep Er Ev G_d q_d τ_d T.
  assert (S : forall k, score L h X q k = dot (S d) (v_quadratic α τ) (r_quadratic (sub k q))).
  { intros k; rewrite read_back, Ep, Er by exact C; apply sum_below_ext; intros i Hi; rewrite Ev by exact Hi; reflexivity. }
  assert (falls : forall k, In k G -> score L h X q k - score L h X q (add q τ) <= - α * IZR (norm2 (sub k (add q τ)))).
  { intros k Ik; destruct G_d as [_ F]; rewrite Forall_forall in F; pose proof (F k Ik); pose proof (F _ T).
    rewrite !S, !lemma2 by (try assumption; rewrite length_sub; congruence).
    rewrite !sub_sub, norm2_sub_diag by congruence; lra. }
  split.
  - apply (quadratic_theta d G (fun k => score L h X q k)); assumption.
  - apply (quadratic_closed d G (fun k => score L h X q k)); assumption.
Qed.
