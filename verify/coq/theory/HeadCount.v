(** How many heads a kernel needs, and how many are enough.

    Write A for the kernel unfolded: a row for each tap τ, with the entries of W_τ.  Heads whose attention does
    not depend on the input make A = P M, with the attention P ≥ 0 that they pay to the taps.

    Lower bounds, for images with tokens T and any padding around them:
      heads_needed         N_h ≥ rank A, for any attention P_h that does not depend on the input
      one_more_head        N_h ≥ rank A + 1 where a sum of taps with weights λ ≥ 0 vanishes, as P ≥ 0
      half_space_needed    N_h = rank A only where the nonzero taps lie in an open half-space
      without_content      a layer of Eq. 3 that computes a convolution still does so without its content terms
      heads_needed_layer, one_more_head_layer, half_space_needed_layer   so the same holds for every layer, content included
      heads_needed_error   N_h heads, content included, leave an error of at least σ/(2 √(taps·D_out)) at every
                           sharpness, with σ the singular value N_h + 1 of x W_τ, for any features x
    Upper bounds, for layers of Eq. 3 with a relative encoding by table, in the limit:
      factors_express      A = P M with P ≥ 0 is a layer
      heads_enough         rank A + 1 heads are enough
      heads_enough_half_space   rank A heads are enough where the nonzero taps lie in an open half-space
      two_heads_enough     two heads are enough for a filter of one channel *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Lra Lia Permutation FunctionalExtensionality.
From Attention Require Import Definitions Sums Softmax Lemma2 Layers Limits Theorem1 Exactness.
Import ListNotations.
Open Scope R_scope.

(** The matrices W_τ, τ ∈ Δ, are linearly independent. *)
Definition independent (d_in d_out : nat) (Δ : list position) (W : position -> matrix) : Prop :=
  forall w : position -> R,
  (forall i j, (i < d_in)%nat -> (j < d_out)%nat -> sum Δ (fun τ => w τ * W τ i j) = 0) ->
  forall τ, In τ Δ -> w τ = 0.

(** X is zero outside T, the tokens of the image without its padding. *)
Definition supported (T : list position) (X : image) : Prop := forall k i, ~ In k T -> X k i = 0.

(** The image with the features x at the token k and zeros elsewhere. *)
Definition token_image (k : position) (x : vector) : image := fun k' i => if position_eq_dec k' k then x i else 0.

Lemma token_supported T k x : In k T -> supported T (token_image k x).
Proof. intros I k' i D; unfold token_image; destruct (position_eq_dec k' k); [congruence|reflexivity]. Qed.

Lemma read_token d_in G P k x M j : NoDup G -> In k G ->
  row_times d_in (fun i => sum G (fun k' => P k' * token_image k x k' i)) M j = P k * row_times d_in x M j.
Proof.
  intros N I; unfold row_times, sum_below; rewrite <- sum_scal; apply sum_ext; intros i _.
  rewrite (sum_single G k _ N I).
  - unfold token_image; destruct (position_eq_dec k k); [ring|congruence].
  - intros k' _ D; unfold token_image; destruct (position_eq_dec k' k); [congruence|ring].
Qed.

Lemma conv_token d d_in Δ W b q j τ x : positions d Δ -> length q = d -> In τ Δ ->
  conv d_in Δ W b (token_image (add q τ) x) q j = b j + row_times d_in x (W τ) j.
Proof.
  intros [N F] Hq I; rewrite Forall_forall in F; unfold conv; f_equal; rewrite (sum_single Δ τ _ N I).
  - unfold row_times; apply sum_below_ext; intros i _; unfold token_image; destruct (position_eq_dec _ _); congruence.
  - intros τ' I' D; unfold row_times; apply sum_below_zero; intros i _; unfold token_image.
    destruct (position_eq_dec _ _) as [E|]; [|ring]; exfalso; apply D; apply (add_injective q); [| |exact E];
      rewrite Hq; apply F; assumption.
Qed.

(** The row i of a matrix, read by a unit vector. *)
Lemma row_times_unit n i M j : (i < n)%nat -> row_times n (identity i) M j = M i j.
Proof.
  intros Hi; unfold row_times, identity; rewrite (sum_below_single n i); [rewrite Nat.eqb_refl; ring|exact Hi|].
  intros i' _ D; rewrite (proj2 (Nat.eqb_neq i i')) by congruence; ring.
Qed.

(** ⟨A, y⟩ = Σ_ij A_ij y_ij *)
Definition inner (d_in d_out : nat) (A y : matrix) : R := sum_below d_in (fun i => sum_below d_out (fun j => A i j * y i j)).

Lemma inner_comm d_in d_out A y : inner d_in d_out A y = inner d_in d_out y A.
Proof. apply sum_below_ext; intros i _; apply sum_below_ext; intros; ring. Qed.

Lemma inner_sum {X} d_in d_out A (l : list X) c (B : X -> matrix) y :
  (forall i j, (i < d_in)%nat -> (j < d_out)%nat -> A i j = sum l (fun x => c x * B x i j)) ->
  inner d_in d_out A y = sum l (fun x => c x * inner d_in d_out (B x) y).
Proof.
  intros E; unfold inner, sum_below.
  rewrite (sum_ext l _ (fun x => sum (seq 0 d_in) (fun i => sum (seq 0 d_out) (fun j => c x * B x i j * y i j)))).
  - rewrite (sum_swap l); apply sum_ext; intros i Hi; rewrite (sum_swap l); apply sum_ext; intros j Hj.
    apply in_seq in Hi, Hj; rewrite sum_scal_r; f_equal; apply E; lia.
  - intros x _; rewrite <- sum_scal; apply sum_ext; intros i _; rewrite <- sum_scal; apply sum_ext; intros; ring.
Qed.

Lemma sum_nonneg_zero {A} (l : list A) f x : (forall x, In x l -> 0 <= f x) -> sum l f = 0 -> In x l -> f x = 0.
Proof.
  intros N E I; destruct (sum_split l x f I) as (l' & Perm & S).
  assert (0 <= sum l' f); [|specialize (N x I); lra].
  apply sum_nonneg; intros x' I'; apply N, (Permutation_in x' (Permutation_sym Perm)); right; exact I'.
Qed.

Lemma inner_self d_in d_out A i j : inner d_in d_out A A = 0 -> (i < d_in)%nat -> (j < d_out)%nat -> A i j = 0.
Proof.
  intros E Hi Hj; apply (sum_nonneg_zero (seq 0 d_in) _ i) in E; [|intros; apply sum_nonneg; intros; apply Rle_0_sqr|apply in_seq; lia].
  apply (sum_nonneg_zero (seq 0 d_out) _ j) in E; [|intros; apply Rle_0_sqr|apply in_seq; lia].
  apply Rmult_integral in E; tauto.
Qed.

(** * Attention that does not depend on the input *)

Section Read.
Context {H : Type}.
Variables (hs : list H) (P : H -> position -> R) (M : H -> matrix) (b b' : vector).
Variables (d d_in d_out : nat) (Δ Δ' G T : list position) (W : position -> matrix) (q : position).
Hypotheses (HΔ : positions d Δ) (HG : positions d G) (Hq : length q = d) (HT : incl T G).
(** Σ_h P^h X M_h = Conv(X) at the query q for every image X, P^h_{q,k} any numbers. *)
Hypothesis equal : forall X j, supported T X -> (j < d_out)%nat ->
  b j + sum hs (fun h => row_times d_in (fun i => sum G (fun k => P h k * X k i)) (M h) j) = conv d_in Δ W b' X q j.

(** On images of one token: A = P M. *)
Lemma taps_read τ i j : In τ Δ -> In (add q τ) T -> (i < d_in)%nat -> (j < d_out)%nat ->
  W τ i j = sum hs (fun h => P h (add q τ) * M h i j).
Proof.
  intros I Iq Hi Hj; assert (B : b j = b' j).
  { pose proof (equal zero_image j) as E; rewrite conv_zero in E; rewrite <- E, (sum_zero hs); [ring| | |exact Hj].
    - intros h _; apply sum_below_zero; intros i' _; rewrite sum_zero; [ring|]; intros; unfold zero_image; ring.
    - intros k i' _; reflexivity. }
  pose proof (equal (token_image (add q τ) (identity i)) j (token_supported _ _ _ Iq) Hj) as E.
  rewrite (conv_token d), row_times_unit, B in E by assumption; apply Rplus_eq_reg_l in E; rewrite <- E.
  apply sum_ext; intros h _; rewrite read_token, row_times_unit by (try assumption; try apply HG; apply HT, Iq); reflexivity.
Qed.

(** N_h ≥ rank A: taps with independent matrices, which read the image, are at most as many as heads. *)
Theorem heads_needed : NoDup Δ' -> incl Δ' Δ -> targets_on T q Δ' -> independent d_in d_out Δ' W ->
  (length Δ' <= length hs)%nat.
Proof.
  intros N I IT ind; destruct (le_lt_dec (length Δ') (length hs)) as [|Few]; [assumption|exfalso].
  destruct (linear_equations position_eq_dec (map (fun h τ => P h (add q τ)) hs) Δ' N) as (w & (τ0 & I0 & N0) & Hw).
  { rewrite map_length; exact Few. }
  apply N0, (ind w); [|exact I0]; intros i j Hi Hj.
  rewrite (sum_ext Δ' _ (fun τ => sum hs (fun h => w τ * P h (add q τ) * M h i j))).
  - rewrite sum_swap, sum_zero; [reflexivity|]; intros h Ih; rewrite sum_scal_r.
    rewrite (Hw (fun τ => P h (add q τ))) by (apply (in_map (fun h τ => P h (add q τ))), Ih); ring.
  - intros τ Iτ; rewrite (taps_read τ i j (I τ Iτ) (IT τ Iτ) Hi Hj), <- sum_scal; apply sum_ext; intros; ring.
Qed.

(** N_h ≥ rank A + 1 if attention is not negative and Σ_τ λ_τ W_τ = 0 with λ ≥ 0, positive at a tap that is not zero:
    no y has ⟨W_τ, y⟩ > 0 for all nonzero taps. *)
Theorem one_more_head (λ : position -> R) τ0 i0 j0 :
  NoDup Δ' -> incl Δ' Δ -> targets_on T q Δ -> independent d_in d_out Δ' W ->
  (forall h τ, In h hs -> In τ Δ -> 0 <= P h (add q τ)) -> (forall τ, In τ Δ -> 0 <= λ τ) ->
  (forall i j, (i < d_in)%nat -> (j < d_out)%nat -> sum Δ (fun τ => λ τ * W τ i j) = 0) ->
  In τ0 Δ -> 0 < λ τ0 -> (i0 < d_in)%nat -> (j0 < d_out)%nat -> W τ0 i0 j0 <> 0 ->
  (length Δ' < length hs)%nat.
Proof.
  intros N I IT ind HP Hλ R0 I0 L0 Hi0 Hj0 W0; destruct (le_lt_dec (length hs) (length Δ')) as [Few|]; [exfalso|assumption].
  (* w on Δ' and μ with Σ_τ w_τ P_h(q+τ) + μ g_h = 0, where g_h = Σ_τ λ_τ P_h(q+τ) *)
  set (g := fun h => sum Δ (fun τ => λ τ * P h (add q τ))).
  set (e := fun h (o : option position) => match o with Some τ => P h (add q τ) | None => g h end).
  assert (dec : forall x y : option position, {x = y} + {x <> y}) by (decide equality; apply position_eq_dec).
  destruct (linear_equations dec (map e hs) (None :: map Some Δ')) as (w & (o & Io & No) & Hw).
  - constructor; [intros A; apply in_map_iff in A; destruct A as (? & A & _); discriminate|].
    apply FinFun.Injective_map_NoDup; [intros ? ? E; congruence|exact N].
  - simpl; rewrite !map_length; lia.
  - assert (Hw' : forall h, In h hs -> sum Δ' (fun τ => w (Some τ) * P h (add q τ)) = - (w None * g h)).
    { intros h Ih; specialize (Hw (e h) (in_map e hs h Ih)); rewrite sum_cons, sum_map in Hw; simpl in Hw; lra. }
    assert (G0 : forall i j, (i < d_in)%nat -> (j < d_out)%nat -> sum hs (fun h => g h * M h i j) = 0).
    { intros i j Hi Hj; rewrite <- (R0 i j Hi Hj); unfold g.
      rewrite (sum_ext hs _ (fun h => sum Δ (fun τ => λ τ * P h (add q τ) * M h i j))) by (intros; rewrite sum_scal_r; reflexivity).
      rewrite sum_swap; apply sum_ext; intros τ Iτ; rewrite (taps_read τ i j Iτ (IT τ Iτ) Hi Hj), <- sum_scal.
      apply sum_ext; intros; ring. }
    assert (Z : forall τ, In τ Δ' -> w (Some τ) = 0).
    { apply (ind (fun τ => w (Some τ))); intros i j Hi Hj.
      rewrite (sum_ext Δ' _ (fun τ => sum hs (fun h => w (Some τ) * P h (add q τ) * M h i j))).
      - rewrite sum_swap, (sum_ext hs _ (fun h => - w None * (g h * M h i j))).
        + rewrite sum_scal, G0 by assumption; ring.
        + intros h Ih; rewrite sum_scal_r, Hw' by exact Ih; ring.
      - intros τ Iτ; rewrite (taps_read τ i j (I τ Iτ) (IT τ (I τ Iτ)) Hi Hj), <- sum_scal; apply sum_ext; intros; ring. }
    assert (Nμ : w None <> 0).
    { destruct o as [τ|]; [|exact No]; exfalso; apply No, Z; destruct Io as [A|A]; [discriminate|].
      apply in_map_iff in A; destruct A as (? & A & ?); congruence. }
    apply W0; rewrite (taps_read τ0 i0 j0 I0 (IT τ0 I0) Hi0 Hj0); apply sum_zero; intros h Ih.
    assert (g h = 0).
    { pose proof (Hw' h Ih) as E; rewrite sum_zero in E by (intros τ Iτ; rewrite (Z τ Iτ); ring).
      assert (w None * g h = 0) as E' by lra; apply Rmult_integral in E'; tauto. }
    assert (P h (add q τ0) = 0) as ->; [|ring].
    destruct (sum_split Δ τ0 (fun τ => λ τ * P h (add q τ)) I0) as (Δ0 & Perm & E); fold (g h) in E.
    assert (0 <= sum Δ0 (fun τ => λ τ * P h (add q τ))).
    { apply sum_nonneg; intros τ Iτ; assert (In τ Δ) by (apply (Permutation_in τ (Permutation_sym Perm)); right; exact Iτ).
      apply Rmult_le_pos; auto. }
    pose proof (HP h τ0 Ih I0); nra.
Qed.

(** rank A heads are enough only where some y has ⟨W_τ, y⟩ > 0 for every tap that is not zero, as attention is not
    negative: one more is needed elsewhere. *)
Theorem half_space_needed : NoDup Δ' -> incl Δ' Δ -> targets_on T q Δ -> independent d_in d_out Δ' W ->
  (forall h τ, In h hs -> In τ Δ -> 0 <= P h (add q τ)) -> (length hs <= length Δ')%nat ->
  exists y, forall τ, In τ Δ ->
    0 < inner d_in d_out (W τ) y \/ forall i j, (i < d_in)%nat -> (j < d_out)%nat -> W τ i j = 0.
Proof.
  intros N I IT ind HP Few.
  (* y = Σ_σ w_σ W_σ over Δ' and s with ⟨M_h, y⟩ = s for every head *)
  set (e := fun h (o : option position) => match o with Some σ => inner d_in d_out (M h) (W σ) | None => - 1 end).
  assert (dec : forall x y : option position, {x = y} + {x <> y}) by (decide equality; apply position_eq_dec).
  destruct (linear_equations dec (map e hs) (None :: map Some Δ')) as (w & (o & Io & No) & Hw).
  { constructor; [intros A; apply in_map_iff in A; destruct A as (? & A & _); discriminate|].
    apply FinFun.Injective_map_NoDup; [intros ? ? E; congruence|exact N]. }
  { simpl; rewrite !map_length; lia. }
  set (s := w None); set (y := fun i j => sum Δ' (fun σ => w (Some σ) * W σ i j)).
  assert (My : forall h, In h hs -> inner d_in d_out (M h) y = s).
  { intros h Ih; specialize (Hw (e h) (in_map e hs h Ih)); rewrite sum_cons, sum_map in Hw; simpl in Hw.
    rewrite inner_comm, (inner_sum d_in d_out y Δ' (fun σ => w (Some σ)) W) by reflexivity.
    rewrite (sum_ext Δ' _ (fun σ => w (Some σ) * inner d_in d_out (M h) (W σ))) by (intros; rewrite inner_comm; reflexivity).
    unfold s; lra. }
  assert (Wy : forall τ, In τ Δ -> inner d_in d_out (W τ) y = s * sum hs (fun h => P h (add q τ))).
  { intros τ Iτ; rewrite (inner_sum d_in d_out (W τ) hs (fun h => P h (add q τ)) M) by (intros; apply taps_read; auto).
    rewrite <- sum_scal; apply sum_ext; intros h Ih; rewrite (My h Ih); ring. }
  assert (s <> 0).
  { intros E; assert (Z : inner d_in d_out y y = 0).
    { rewrite (inner_sum d_in d_out y Δ' (fun σ => w (Some σ)) W) by reflexivity; apply sum_zero; intros σ Iσ.
      rewrite (Wy σ (I σ Iσ)), E; ring. }
    assert (Zw : forall σ, In σ Δ' -> w (Some σ) = 0).
    { apply (ind (fun σ => w (Some σ))); intros i j Hi Hj; apply (inner_self d_in d_out y i j Z Hi Hj). }
    destruct o as [σ|]; [|contradiction]; apply No, Zw; destruct Io as [A|A]; [discriminate|].
    apply in_map_iff in A; destruct A as (? & A & ?); congruence. }
  exists (fun i j => y i j / s); intros τ Iτ.
  assert (E : inner d_in d_out (W τ) (fun i j => y i j / s) = sum hs (fun h => P h (add q τ))).
  { transitivity (inner d_in d_out (W τ) y * / s); [|rewrite (Wy τ Iτ); field; assumption].
    unfold inner, sum_below; rewrite <- sum_scal_r; apply sum_ext; intros i _; rewrite <- sum_scal_r; apply sum_ext.
    intros; unfold Rdiv; ring. }
  rewrite E; destruct (Rlt_dec 0 (sum hs (fun h => P h (add q τ)))) as [|Z]; [left; assumption|right; intros i j Hi Hj].
  assert (Z0 : sum hs (fun h => P h (add q τ)) = 0).
  { assert (0 <= sum hs (fun h => P h (add q τ))) by (apply sum_nonneg; intros; apply HP; assumption); lra. }
  rewrite (taps_read τ i j Iτ (IT τ Iτ) Hi Hj); apply sum_zero; intros h Ih.
  rewrite (sum_nonneg_zero hs (fun h => P h (add q τ)) h (fun h' I' => HP h' τ I' Iτ) Z0 Ih); ring.
Qed.

End Read.

(** * Content *)

Lemma continuity_pt_sum {A} (l : list A) (F : A -> R -> R) t :
  (forall x, In x l -> continuity_pt (F x) t) -> continuity_pt (fun t => sum l (fun x => F x t)) t.
Proof.
  induction l as [|a l IH]; intros E; [apply continuity_pt_const; intros x y; reflexivity|].
  apply (continuity_pt_plus (F a) (fun t => sum l (fun x => F x t))); [apply E; left; reflexivity|].
  apply IH; intros x Ix; apply E; right; exact Ix.
Qed.

Lemma continuity_pt_constant (c t : R) : continuity_pt (fun _ => c) t.
Proof. apply continuity_pt_const; intros x y; reflexivity. Qed.

(** The scores of the image t·X are a polynomial in t. *)
Lemma score_continuous {H} (L : layer H) h X q k t : continuity_pt (fun t => score L h (fun k i => t * X k i) q k) t.
Proof.
  unfold score, dot; set (w := parameters L h).
  assert (I : continuity_pt (fun t => t) t) by (apply derivable_continuous_pt, derivable_pt_id).
  assert (C : forall f g : R -> R, continuity_pt f t -> continuity_pt g t -> continuity_pt (fun t => f t * g t) t)
    by (intros f g; apply continuity_pt_mult).
  assert (Q : forall A (Y : vector) a, continuity_pt (fun t => row_times (D_in L) (fun i => t * Y i) A a) t).
  { intros A Y a; apply (continuity_pt_sum _ (fun i t => t * Y i * A i a)); intros i _.
    apply (C (fun t => t * Y i) (fun _ => A i a)); [|apply continuity_pt_constant].
    apply (C (fun t => t) (fun _ => Y i)); [exact I|apply continuity_pt_constant]. }
  repeat match goal with |- continuity_pt (fun t => @?f t + @?g t) _ => apply (continuity_pt_plus f g) end;
    match goal with |- continuity_pt (fun t => sum_below ?n (@?F t)) _ =>
      apply (continuity_pt_sum (seq 0 n) (fun i t => F t i)) end;
    intros i _;
    match goal with |- continuity_pt (fun t => @?f t * @?g t) _ => apply (C f g) end;
    first [apply Q|apply continuity_pt_constant].
Qed.

Section Content.
Context {H : Type}.
Variables (L : layer H) (b : vector) (d : nat) (Δ Δ' G T : list position) (W : position -> matrix) (q : position).
Hypotheses (HΔ : positions d Δ) (HG : positions d G) (Hq : length q = d) (HT : incl T G).
Hypothesis equal : forall X j, supported T X -> (j < D_out L)%nat -> attend L G X q j = conv (D_in L) Δ W b X q j.

(** Content enters a layer at second order: on the image t·X, divided by t, the layer tends to
    Σ_h P^h(0) X W_val^h W_out^h as t → 0.  So heads that attend as these do on the image 0, whatever the image, compute the
    convolution too. *)
Theorem without_content X j : supported T X -> (j < D_out L)%nat ->
  b_out L j + sum (heads L) (fun h => row_times (D_in L)
    (fun i => sum G (fun k => attention L G h zero_image q k * X k i)) (value_output L h) j) =
  conv (D_in L) Δ W b X q j.
Proof.
  intros SX Hj; unfold conv.
  assert (B : b_out L j = b j).
  { rewrite <- (attend_zero L G q j), <- (conv_zero (D_in L) Δ W b q j); apply equal; [intros k i _; reflexivity|exact Hj]. }
  rewrite B; f_equal.
  set (F := fun t => sum (heads L) (fun h => row_times (D_in L)
    (fun i => sum G (fun k => attention L G h (fun k i => t * X k i) q k * X k i)) (value_output L h) j)).
  set (c := sum Δ (fun τ => row_times (D_in L) (X (add q τ)) (W τ) j)).
  assert (F0 : sum (heads L) (fun h => row_times (D_in L)
    (fun i => sum G (fun k => attention L G h zero_image q k * X k i)) (value_output L h) j) = F 0).
  { unfold F; replace (fun (k : position) (i : nat) => 0 * X k i) with zero_image; [reflexivity|].
    extensionality k; extensionality i; unfold zero_image; ring. }
  rewrite F0; clear F0.
  assert (Ft : forall t, t <> 0 -> F t = c).
  { intros t Ht; apply (Rmult_eq_reg_l t); [|exact Ht].
    assert (ST : supported T (fun k i => t * X k i)) by (intros k i D; rewrite (SX k i D); ring).
    pose proof (equal (fun k i => t * X k i) j ST Hj) as Et; rewrite attend_heads in Et; unfold conv in Et.
    rewrite B in Et; apply Rplus_eq_reg_l in Et; unfold F, c; rewrite <- !sum_scal.
    etransitivity; [|etransitivity; [exact Et|]]; apply sum_ext; intros y _; unfold row_times, sum_below;
      rewrite <- sum_scal; apply sum_ext; intros i _; [|ring].
    rewrite (sum_ext G (fun k => _ * (t * X k i)) (fun k => t * (attention L G y (fun k i => t * X k i) q k * X k i)))
      by (intros; ring).
    rewrite sum_scal; ring. }
  assert (CF : continuity_pt F 0).
  { apply (continuity_pt_sum (heads L) (fun h t => row_times (D_in L)
      (fun i => sum G (fun k => attention L G h (fun k i => t * X k i) q k * X k i)) (value_output L h) j)); intros h _.
    apply (continuity_pt_sum (seq 0 (D_in L)) (fun i t =>
      sum G (fun k => attention L G h (fun k i => t * X k i) q k * X k i) * value_output L h i j)); intros i _.
    apply (continuity_pt_mult (fun t => sum G (fun k => attention L G h (fun k i => t * X k i) q k * X k i)) (fun _ => _));
      [|apply continuity_pt_constant].
    apply (continuity_pt_sum G (fun k t => attention L G h (fun k i => t * X k i) q k * X k i)); intros k Ik.
    apply (continuity_pt_mult (fun t => attention L G h (fun k i => t * X k i) q k) (fun _ => _));
      [|apply continuity_pt_constant].
    assert (S : forall k, continuity_pt (fun t => exp (score L h (fun k i => t * X k i) q k)) 0).
    { intros k'; apply (continuity_pt_comp (fun t => score L h (fun k i => t * X k i) q k') exp);
        [apply score_continuous|apply derivable_continuous_pt, derivable_pt_exp]. }
    apply (continuity_pt_div (fun t => exp (score L h (fun k i => t * X k i) q k))
      (fun t => sum G (fun k' => exp (score L h (fun k i => t * X k i) q k')))); [apply S| |].
    - apply (continuity_pt_sum G (fun k' t => exp (score L h (fun k i => t * X k i) q k'))); intros k' _; apply S.
    - apply Rgt_not_eq, (normaliser_positive G (fun k' => score L h (fun k i => 0 * X k i) q k') k Ik). }
  apply cond_eq; intros ε Hε; destruct (CF ε Hε) as (η & Hη & near).
  specialize (near (η / 2)); simpl in near; unfold R_dist in near; rewrite Ft in near by lra.
  rewrite Rabs_minus_sym; apply near; split; [split; [exact Logic.I|lra]|].
  rewrite Rminus_0_r, Rabs_pos_eq; lra.
Qed.

(** N_h ≥ rank A for every layer of Eq. 3 that computes the convolution at one query. *)
Theorem heads_needed_layer : NoDup Δ' -> incl Δ' Δ -> targets_on T q Δ' -> independent (D_in L) (D_out L) Δ' W ->
  (length Δ' <= length (heads L))%nat.
Proof.
  apply (heads_needed (heads L) (fun h k => attention L G h zero_image q k) (value_output L) (b_out L) b
    d (D_in L) (D_out L) Δ Δ' G T W q HΔ HG Hq HT without_content).
Qed.

(** And N_h ≥ rank A + 1 where a sum of taps with weights λ ≥ 0 vanishes. *)
Theorem one_more_head_layer (λ : position -> R) τ0 i0 j0 :
  NoDup Δ' -> incl Δ' Δ -> targets_on T q Δ -> independent (D_in L) (D_out L) Δ' W -> (forall τ, In τ Δ -> 0 <= λ τ) ->
  (forall i j, (i < D_in L)%nat -> (j < D_out L)%nat -> sum Δ (fun τ => λ τ * W τ i j) = 0) ->
  In τ0 Δ -> 0 < λ τ0 -> (i0 < D_in L)%nat -> (j0 < D_out L)%nat -> W τ0 i0 j0 <> 0 ->
  (length Δ' < length (heads L))%nat.
Proof.
  intros N I IT ind; apply (one_more_head (heads L) (fun h k => attention L G h zero_image q k) (value_output L) (b_out L) b
    d (D_in L) (D_out L) Δ Δ' G T W q HΔ HG Hq HT without_content λ τ0 i0 j0 N I IT ind).
  intros h τ _ Iτ; left; apply softmax_positive, HT, IT, Iτ.
Qed.

Theorem half_space_needed_layer : NoDup Δ' -> incl Δ' Δ -> targets_on T q Δ -> independent (D_in L) (D_out L) Δ' W ->
  (length (heads L) <= length Δ')%nat ->
  exists y, forall τ, In τ Δ ->
    0 < inner (D_in L) (D_out L) (W τ) y \/ forall i j, (i < D_in L)%nat -> (j < D_out L)%nat -> W τ i j = 0.
Proof.
  intros N I IT ind; apply (half_space_needed (heads L) (fun h k => attention L G h zero_image q k) (value_output L) (b_out L) b
    d (D_in L) (D_out L) Δ Δ' G T W q HΔ HG Hq HT without_content N I IT ind).
  intros h τ _ Iτ; left; apply softmax_positive, HT, IT, Iτ.
Qed.

End Content.

(** Cauchy and Schwarz: (Σ_x f(x))² ≤ n Σ_x f(x)². *)
Lemma square_of_sum {A} (l : list A) f : sum l f * sum l f <= INR (length l) * sum l (fun x => f x * f x).
Proof.
  destruct l as [|a l']; [unfold sum; simpl; lra|]; set (l := a :: l').
  assert (Hn : 0 < INR (length l)) by (apply lt_0_INR; simpl; lia); set (n := INR (length l)) in *.
  assert (0 <= sum l (fun x => (n * f x - sum l f) * (n * f x - sum l f))) as S by (apply sum_nonneg; intros; apply Rle_0_sqr).
  rewrite (sum_ext l _ (fun x => n * n * (f x * f x) - 2 * n * sum l f * f x + sum l f * sum l f)) in S by (intros; ring).
  rewrite sum_plus, sum_minus, !sum_scal, sum_const in S; fold n in S.
  assert (0 <= n * (n * sum l (fun x => f x * f x) - sum l f * sum l f)) by lra; nra.
Qed.

(** * The error of fewer heads, at every sharpness *)

(** Content included, hence in every limit: N_h heads are off by at least σ/(2 √(taps·D_out)) at
    some image of at most one token with features at most 1, if σ is at most the singular value N_h + 1 of the matrix
    with the rows x W_τ.  That is said as Courant and Fischer do: N_h + 1 independent vectors e_m of weights for taps, on
    whose span w ↦ Σ_τ w_τ x W_τ stretches by σ at least. *)
Theorem heads_needed_error {H} (L : layer H) b d Δ W G T q x ε σ (e : nat -> position -> R) :
  positions d Δ -> positions d G -> length q = d -> incl T G -> targets_on T q Δ ->
  (forall i, (i < D_in L)%nat -> Rabs (x i) <= 1) -> 0 <= ε ->
  (forall c : nat -> R, (exists m, (m <= length (heads L))%nat /\ c m <> 0) ->
     let w := fun τ => sum_below (S (length (heads L))) (fun m => c m * e m τ) in
     0 < sum Δ (fun τ => w τ * w τ) /\
     σ * σ * sum Δ (fun τ => w τ * w τ) <=
       sum_below (D_out L) (fun j => (sum Δ (fun τ => w τ * row_times (D_in L) x (W τ) j)) ^ 2)) ->
  (forall X j, supported T X -> bounded (D_in L) 1 G X -> (j < D_out L)%nat ->
     Rabs (attend L G X q j - conv (D_in L) Δ W b X q j) <= ε) ->
  σ <= 2 * ε * sqrt (INR (length Δ * D_out L)).
Proof.
  intros HΔ HG Hq HT IT Hx Hε stretch E; set (N := length (heads L)) in *.
  set (p := fun h τ => attention L G h (token_image (add q τ) x) q (add q τ)).
  destruct (linear_equations Nat.eq_dec (map (fun h m => sum Δ (fun τ => e m τ * p h τ)) (heads L)) (seq 0 (S N)))
    as (c & (m & Im & Nm) & Hc).
  { apply seq_NoDup. }
  { rewrite map_length, seq_length; unfold N; lia. }
  destruct (stretch c) as [W0 St]; [exists m; apply in_seq in Im; split; [lia|exact Nm]|].
  set (w := fun τ => sum_below (S N) (fun m => c m * e m τ)) in W0, St.
  set (Q := sum Δ (fun τ => w τ * w τ)) in *.
  assert (Z : forall h, In h (heads L) -> sum Δ (fun τ => w τ * p h τ) = 0).
  { intros h Ih; rewrite <- (Hc _ (in_map (fun h m => sum Δ (fun τ => e m τ * p h τ)) (heads L) h Ih)); unfold w, sum_below.
    rewrite (sum_ext (seq 0 (S N)) _ (fun m => sum Δ (fun τ => c m * e m τ * p h τ)))
      by (intros; rewrite <- sum_scal; apply sum_ext; intros; ring).
    rewrite sum_swap; apply sum_ext; intros; rewrite sum_scal_r; reflexivity. }
  assert (D : forall j, (j < D_out L)%nat -> Rabs (sum Δ (fun τ => w τ * row_times (D_in L) x (W τ) j)) <=
                                      2 * ε * sum Δ (fun τ => Rabs (w τ))).
  { intros j Hj; set (off := fun τ => row_times (D_in L) x (W τ) j - sum (heads L) (fun h => p h τ * row_times (D_in L) x (value_output L h) j)).
    assert (O : forall τ, In τ Δ -> Rabs (off τ) <= 2 * ε).
    { intros τ Iτ; pose proof (E zero_image j) as E0; rewrite attend_zero, conv_zero in E0.
      pose proof (E (token_image (add q τ) x) j (token_supported _ _ _ (IT τ Iτ))) as E1.
      rewrite attend_heads, (conv_token d) in E1 by assumption.
      rewrite (sum_ext (heads L) _ (fun h => p h τ * row_times (D_in L) x (value_output L h) j)) in E1.
      - specialize (E0 ltac:(intros k i _; reflexivity) (zero_bounded _ _) Hj).
        assert (Bx : bounded (D_in L) 1 G (token_image (add q τ) x)).
        { intros k i _ Hi; unfold token_image; destruct (position_eq_dec k (add q τ)); [apply Hx, Hi|rewrite Rabs_R0; lra]. }
        specialize (E1 Bx Hj); unfold off; revert E0 E1; unfold Rabs; repeat destruct (Rcase_abs _); lra.
      - intros h _; apply (read_token _ G (fun k => attention L G h (token_image (add q τ) x) q k)); [apply HG|apply HT, IT, Iτ]. }
    assert (S : sum Δ (fun τ => w τ * row_times (D_in L) x (W τ) j) = sum Δ (fun τ => w τ * off τ)).
    { unfold off; rewrite (sum_ext Δ (fun τ => w τ * (_ - _)) (fun τ => w τ * row_times (D_in L) x (W τ) j -
        sum (heads L) (fun h => w τ * p h τ * row_times (D_in L) x (value_output L h) j))).
      - rewrite sum_minus, sum_swap, (sum_zero (heads L)); [ring|]; intros h Ih; rewrite sum_scal_r, Z by exact Ih; ring.
      - intros τ _; rewrite Rmult_minus_distr_l, <- sum_scal; f_equal; apply sum_ext; intros; ring. }
    rewrite S, <- sum_scal; eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros τ Iτ; rewrite Rabs_mult.
    rewrite Rmult_comm; apply Rmult_le_compat_r; [apply Rabs_pos|apply O, Iτ]. }
  set (s := sum Δ (fun τ => Rabs (w τ))) in D.
  assert (CS : s * s <= INR (length Δ) * Q).
  { unfold s, Q; eapply Rle_trans; [apply square_of_sum|]; right; f_equal; apply sum_ext; intros τ _.
    rewrite <- Rabs_mult; apply Rabs_pos_eq, Rle_0_sqr. }
  assert (s0 : 0 <= s) by (apply sum_nonneg; intros; apply Rabs_pos).
  assert (T1 : σ * σ * Q <= INR (D_out L) * ((2 * ε * s) * (2 * ε * s))).
  { eapply Rle_trans; [exact St|]; rewrite <- (seq_length (D_out L) 0) at 2; rewrite <- sum_const.
    apply sum_le; intros j Hj; apply in_seq in Hj; specialize (D j ltac:(lia)).
    rewrite <- Rsqr_pow2; apply Rabs_le_between in D; apply (neg_pos_Rsqr_le _ (2 * ε * s)); apply D. }
  rewrite mult_INR; set (n := INR (length Δ)) in *; set (o := INR (D_out L)) in *.
  assert (o0 : 0 <= o) by apply pos_INR; assert (n0 : 0 <= n) by apply pos_INR.
  assert (T2 : σ * σ <= 4 * (ε * ε) * (n * o)).
  { apply Rmult_le_reg_r with Q; [exact W0|]; eapply Rle_trans; [exact T1|].
    replace (o * (2 * ε * s * (2 * ε * s))) with (4 * (ε * ε) * o * (s * s)) by ring.
    replace (4 * (ε * ε) * (n * o) * Q) with (4 * (ε * ε) * o * (n * Q)) by ring.
    apply Rmult_le_compat_l; [|exact CS]; apply Rmult_le_pos; [|exact o0]; nra. }
  set (z := sqrt (n * o)); assert (z0 : 0 <= z) by apply sqrt_pos.
  assert (zz : z * z = n * o) by (apply sqrt_sqrt, Rmult_le_pos; assumption); rewrite <- zz in T2.
  destruct (Rle_dec σ (2 * ε * z)) as [|L0]; [assumption|exfalso].
  assert (0 <= 2 * ε * z) by (apply Rmult_le_pos; [lra|exact z0]); nra.
Qed.

(** * Heads that are enough *)

(** The relative encoding by table, D_p = |Δ|: r_δ is the unit vector of the place of δ in Δ, or zero; v holds a score for
    each shift of Δ. *)
Definition r_table (Δ : list position) (δ : position) : vector :=
  fun n => match nth_error Δ n with Some τ => if position_eq_dec δ τ then 1 else 0 | None => 0 end.
Definition v_table (Δ : list position) (s : position -> R) : vector :=
  fun n => match nth_error Δ n with Some τ => s τ | None => 0 end.

(** Scores that share the attention among the taps as p does: α + ln p_τ, or 0 where p_τ = 0. *)
Definition table_score (p : position -> R) (α : R) (τ : position) : R := if Rlt_dec 0 (p τ) then α + ln (p τ) else 0.

Section Table.
Variables (d : nat) (Δ G : list position) (q : position).
Hypotheses (HΔ : positions d Δ) (HG : positions d G) (Hq : length q = d) (HT : targets_on G q Δ).

(** A function of the shift at the token k, 0 where k is no target. *)
Let at_shift (f : position -> R) (k : position) : R := sum Δ (fun τ => if position_eq_dec k (add q τ) then f τ else 0).

Lemma at_target f τ : In τ Δ -> at_shift f (add q τ) = f τ.
Proof.
  destruct HΔ as [N F]; rewrite Forall_forall in F; intros I; unfold at_shift; rewrite (sum_single Δ τ _ N I).
  - destruct (position_eq_dec _ _); [reflexivity|congruence].
  - intros τ' I' D; destruct (position_eq_dec _ _) as [E|]; [|reflexivity]; exfalso; apply D.
    apply (add_injective q); [| |symmetry; exact E]; rewrite Hq; apply F; assumption.
Qed.

Lemma at_other f k : ~ In k (map (add q) Δ) -> at_shift f k = 0.
Proof.
  intros D; apply sum_zero; intros τ I; destruct (position_eq_dec _ _) as [->|]; [|reflexivity].
  exfalso; apply D, in_map, I.
Qed.

Lemma sum_at_targets f y : sum G (fun k => at_shift f k * y k) = sum Δ (fun τ => f τ * y (add q τ)).
Proof.
  unfold at_shift; rewrite (sum_ext G _ (fun k => sum Δ (fun τ => (if position_eq_dec k (add q τ) then f τ else 0) * y k)))
    by (intros; rewrite sum_scal_r; reflexivity).
  rewrite sum_swap; apply sum_ext; intros τ I; rewrite (sum_single G (add q τ)); [|apply HG|apply HT, I|].
  - destruct (position_eq_dec _ _); [reflexivity|congruence].
  - intros k _ D; destruct (position_eq_dec _ _); [congruence|ring].
Qed.

Lemma table_dot s k : In k G -> dot (length Δ) (v_table Δ s) (r_table Δ (sub k q)) = at_shift s k.
Proof.
  destruct HΔ as [_ FΔ], HG as [_ FG]; rewrite Forall_forall in FΔ, FG.
  intros I; unfold dot, at_shift; rewrite sum_as_below; apply sum_below_ext; intros n _; unfold v_table, r_table.
  destruct (nth_error Δ n) as [τ|] eqn:E; [|ring]; apply nth_error_In in E.
  destruct (position_eq_dec (sub k q) τ) as [<-|D]; destruct (position_eq_dec k _) as [E'|D']; try ring.
  - exfalso; apply D'; symmetry; apply add_sub; rewrite Hq; apply FG, I.
  - exfalso; apply D; rewrite E'; apply sub_add; rewrite Hq; apply FΔ, E.
Qed.

(** In the limit a head by table shares its attention as p does. *)
Lemma table_attention p k : (forall τ, In τ Δ -> 0 <= p τ) -> sum Δ p = 1 -> In k G ->
  is_lim (fun α => softmax G (fun k => dot (length Δ) (v_table Δ (table_score p α)) (r_table Δ (sub k q))) k) p_infty (at_shift p k).
Proof.
  intros Hp S I; set (s := fun α k => dot (length Δ) (v_table Δ (table_score p α)) (r_table Δ (sub k q))).
  assert (L : forall k, In k G -> is_lim (fun α => exp (s α k + - α)) p_infty (at_shift p k)).
  { intros k' I'; assert (Z : is_lim (fun α => exp (0 + - α)) p_infty 0).
    { apply is_lim_ext with (2 := is_lim_exp_opp); intros α; f_equal; ring. }
    destruct (in_dec position_eq_dec k' (map (add q) Δ)) as [T|T].
    - apply in_map_iff in T; destruct T as (τ & <- & Iτ); rewrite at_target by exact Iτ.
      destruct (Rlt_dec 0 (p τ)) as [P0|P0].
      + apply is_lim_ext with (fun _ => p τ); [|apply is_lim_const]; intros α; unfold s.
        rewrite table_dot, at_target by assumption; unfold table_score; destruct (Rlt_dec 0 (p τ)); [|contradiction].
        replace (α + ln (p τ) + - α) with (ln (p τ)) by ring; rewrite exp_ln by assumption; reflexivity.
      + replace (p τ) with 0 by (specialize (Hp τ Iτ); lra); apply is_lim_ext with (2 := Z); intros α; unfold s.
        rewrite table_dot, at_target by assumption; unfold table_score; destruct (Rlt_dec 0 (p τ)); [contradiction|reflexivity].
    - rewrite at_other by exact T; apply is_lim_ext with (2 := Z); intros α; unfold s.
      rewrite table_dot, at_other by assumption; reflexivity. }
  apply is_lim_ext with (fun α => exp (s α k + - α) / sum G (fun k => exp (s α k + - α))).
  { intros α; apply (softmax_shift G (s α) (- α) k). }
  assert (E : sum G (at_shift p) = 1).
  { rewrite <- S, (sum_ext G _ (fun k => at_shift p k * 1)), sum_at_targets by (intros; ring); apply sum_ext; intros; ring. }
  replace (Finite (at_shift p k)) with (Rbar_div (at_shift p k) (sum G (at_shift p))) by (rewrite E; simpl; f_equal; field).
  apply is_lim_div; [apply L, I| | |].
  - apply (is_lim_sum G (fun α k => exp (s α k + - α)) (at_shift p)), L.
  - rewrite E; intros A; inversion A; lra.
  - exact Logic.I.
Qed.

End Table.

(** A = P M with P ≥ 0, over the heads hs. *)
Definition nonnegative_factors {H} (d_in d_out : nat) (hs : list H) (p : H -> position -> R) (M : H -> matrix) Δ W : Prop :=
  (forall h τ, In h hs -> In τ Δ -> 0 <= p h τ) /\
  forall τ i j, In τ Δ -> (i < d_in)%nat -> (j < d_out)%nat -> W τ i j = sum hs (fun h => p h τ * M h i j).

(** Layers of Eq. 3 with the heads hs, without content terms, and with the encoding by table, whose limit for α → ∞ is the
    convolution: on every grid that holds the taps of the query. *)
Definition heads_express {H} (d d_in d_out : nat) (hs : list H) Δ W (b : vector) : Prop :=
  exists (v_ : R -> H -> vector) (M : H -> matrix), forall G X q j,
  positions d G -> length q = d -> targets_on G q Δ -> (j < d_out)%nat ->
  is_lim (fun α => attend (positional (length Δ) d_in d_out (r_table Δ) hs (v_ α) M b) G X q j) p_infty
    (conv d_in Δ W b X q j).

(** Nonnegative factors are heads. *)
Theorem factors_express {H} d d_in d_out (hs : list H) p M Δ W b : positions d Δ -> Δ <> [] ->
  nonnegative_factors d_in d_out hs p M Δ W -> heads_express d d_in d_out hs Δ W b.
Proof.
  intros HΔ NE [Hp HW]; destruct Δ as [|τ0 Δ']; [congruence|]; set (Δ := τ0 :: Δ') in *.
  (* each column of P scaled to a sum of 1 *)
  set (S := fun h => sum Δ (p h)).
  set (p1 := fun h τ => if Req_EM_T (S h) 0 then if position_eq_dec τ τ0 then 1 else 0 else p h τ / S h).
  set (M1 := fun h i j => S h * M h i j).
  assert (S0 : forall h, In h hs -> 0 <= S h) by (intros h Ih; apply sum_nonneg; intros; apply Hp; assumption).
  assert (P1 : forall h τ, In h hs -> In τ Δ -> 0 <= p1 h τ).
  { intros h τ Ih Iτ; unfold p1; destruct (Req_EM_T (S h) 0); [destruct (position_eq_dec τ τ0); lra|].
    apply Rmult_le_pos; [apply Hp; assumption|]; left; apply Rinv_0_lt_compat; specialize (S0 h Ih); lra. }
  assert (P2 : forall h, In h hs -> sum Δ (p1 h) = 1).
  { intros h Ih; unfold p1; destruct (Req_EM_T (S h) 0) as [|D].
    - rewrite (sum_single Δ τ0); [|apply HΔ|left; reflexivity|intros τ _ D; destruct (position_eq_dec τ τ0); congruence].
      destruct (position_eq_dec τ0 τ0); [reflexivity|congruence].
    - unfold Rdiv; rewrite sum_scal_r; apply Rinv_r, D. }
  assert (W1 : forall τ i j, In τ Δ -> (i < d_in)%nat -> (j < d_out)%nat -> W τ i j = sum hs (fun h => p1 h τ * M1 h i j)).
  { intros τ i j Iτ Hi Hj; rewrite (HW τ i j Iτ Hi Hj); apply sum_ext; intros h Ih; unfold p1, M1.
    destruct (Req_EM_T (S h) 0) as [E|D]; [|field; exact D]; rewrite E.
    destruct (sum_split Δ τ (p h) Iτ) as (Δ0 & Perm & E'); fold (S h) in E'.
    assert (0 <= sum Δ0 (p h)).
    { apply sum_nonneg; intros τ' I'; apply Hp; [exact Ih|]; apply (Permutation_in τ' (Permutation_sym Perm)); right; exact I'. }
    pose proof (Hp h τ Ih Iτ); replace (p h τ) with 0 by lra; ring. }
  exists (fun α h => v_table Δ (table_score (p1 h) α)), M1; intros G X q j HG Hq HT Hj.
  set (at_shift := fun f k => sum Δ (fun τ => if position_eq_dec k (add q τ) then f τ else 0)).
  replace (conv d_in Δ W b X q j) with
    (b j + sum hs (fun h => row_times d_in (fun i => sum G (fun k => at_shift (p1 h) k * X k i)) (M1 h) j)).
  - assert (C : forall (F : R -> R) (y c : R), is_lim F p_infty y -> is_lim (fun α => F α * c) p_infty (y * c)).
    { intros F y c E; apply (is_lim_scal_r F c p_infty y E). }
    eapply is_lim_ext; [intros α; symmetry; apply attend_positional, Hj|]; cbv zeta.
    apply (is_lim_plus (fun _ => b j) _ p_infty (b j)
      (sum hs (fun h => row_times d_in (fun i => sum G (fun k => at_shift (p1 h) k * X k i)) (M1 h) j)));
      [apply is_lim_const| |reflexivity].
    apply is_lim_sum; intros h Ih; unfold row_times, sum_below.
    apply (is_lim_sum _ (fun α i => _ * M1 h i j)); intros i _; apply C.
    apply (is_lim_sum G (fun α k => _ * X k i)); intros k Ik; apply C.
    eapply is_lim_ext; [|apply (table_attention d Δ G q HΔ HG Hq HT (p1 h) k (fun τ => P1 h τ Ih) (P2 h Ih) Ik)].
    intros α; apply softmax_ext; [|exact Ik]; intros k' _; symmetry.
    apply (score_positional (length Δ) d_in d_out (r_table Δ) hs (fun h => v_table Δ (table_score (p1 h) α)) M1 b h X q k').
  - unfold conv; f_equal.
    rewrite (sum_ext Δ _ (fun τ => sum_below d_in (fun i => sum hs (fun h => p1 h τ * X (add q τ) i * M1 h i j)))).
    + unfold row_times, sum_below; rewrite (sum_swap hs), (sum_swap Δ); apply sum_ext; intros i _.
      rewrite (sum_swap Δ hs); apply sum_ext; intros h _; rewrite sum_scal_r; f_equal.
      apply (sum_at_targets d Δ G q HG HT (p1 h) (fun k => X k i)).
    + intros τ Iτ; apply sum_below_ext; intros i Hi; rewrite (W1 τ i j Iτ Hi Hj), <- sum_scal; apply sum_ext; intros; ring.
Qed.

Section Enough.
Variables (d d_in d_out : nat) (Δ basis : list position) (W : position -> matrix) (b : vector) (c : position -> position -> R).
Hypotheses (HΔ : positions d Δ) (NE : Δ <> []).
(** The taps of a basis span all of them. *)
Hypothesis spans : forall τ i j, In τ Δ -> (i < d_in)%nat -> (j < d_out)%nat ->
  W τ i j = sum basis (fun s => c τ s * W s i j).

(** rank A + 1 heads are enough: one for each tap of the basis, and one for minus their sum. *)
Theorem heads_enough : heads_express d d_in d_out (None :: map Some basis) Δ W b.
Proof.
  set (t := fun τ => sum basis (fun s => Rabs (c τ s))).
  apply (factors_express d d_in d_out (None :: map Some basis)
    (fun o τ => match o with Some s => c τ s + t τ | None => t τ end)
    (fun o i j => match o with Some s => W s i j | None => - sum basis (fun s => W s i j) end)); [exact HΔ|exact NE|split].
  - intros [s|] τ Io _; [|apply sum_nonneg; intros; apply Rabs_pos]; destruct Io as [A|A]; [discriminate|].
    apply in_map_iff in A; destruct A as (s' & E & Is); injection E as ->; unfold t.
    destruct (sum_split basis s (fun s => Rabs (c τ s)) Is) as (l & _ & ->).
    assert (0 <= sum l (fun s => Rabs (c τ s))) by (apply sum_nonneg; intros; apply Rabs_pos).
    pose proof (Rle_abs (- c τ s)) as A; rewrite Rabs_Ropp in A; lra.
  - intros τ i j Iτ Hi Hj; rewrite sum_cons, sum_map, (spans τ i j Iτ Hi Hj).
    rewrite (sum_ext basis (fun s => (c τ s + t τ) * _) (fun s => c τ s * W s i j + t τ * W s i j)) by (intros; ring).
    rewrite sum_plus, sum_scal; ring.
Qed.

(** rank A heads are enough if some y has ⟨W_τ, y⟩ > 0 for every tap that is not zero: the taps, scaled to ⟨W_τ, y⟩ = 1, lie
    in a simplex around those of the basis. *)
Theorem heads_enough_half_space (y : matrix) : (forall s, In s basis -> 0 < inner d_in d_out (W s) y) ->
  (forall τ, In τ Δ -> 0 < inner d_in d_out (W τ) y \/ forall i j, (i < d_in)%nat -> (j < d_out)%nat -> W τ i j = 0) ->
  heads_express d d_in d_out basis Δ W b.
Proof.
  intros Hs Hτ; set (Y := fun τ => inner d_in d_out (W τ) y) in *.
  destruct basis as [|s0 rest] eqn:Eb.
  { apply (factors_express d d_in d_out [] (fun s _ => 0) (fun s => W s)); [exact HΔ|exact NE|split]; [intros ? ? []|].
    intros τ i j Iτ Hi Hj; rewrite (spans τ i j Iτ Hi Hj); reflexivity. }
  rewrite <- Eb in *; set (n := INR (length basis)).
  assert (Hn : 0 < n) by (apply lt_0_INR; rewrite Eb; simpl; lia).
  set (β := fun τ s => c τ s * Y s / Y τ); set (κ := 1 + n * sum Δ (fun τ => sum basis (fun s => Rabs (β τ s)))).
  set (V := fun s i j => W s i j / Y s); set (g := fun i j => sum basis (fun s => V s i j) / n).
  assert (κ_β : forall τ s, In τ Δ -> In s basis -> 1 <= κ /\ 0 <= κ - 1 + n * β τ s).
  { intros τ s Iτ Is; unfold κ; destruct (sum_split Δ τ (fun τ => sum basis (fun s => Rabs (β τ s))) Iτ) as (l & _ & ->).
    destruct (sum_split basis s (fun s => Rabs (β τ s)) Is) as (l' & _ & ->).
    assert (0 <= sum l (fun τ => sum basis (fun s => Rabs (β τ s))))
      by (apply sum_nonneg; intros; apply sum_nonneg; intros; apply Rabs_pos).
    assert (0 <= sum l' (fun s => Rabs (β τ s))) by (apply sum_nonneg; intros; apply Rabs_pos).
    pose proof (Rle_abs (- β τ s)) as A; rewrite Rabs_Ropp in A; pose proof (Rabs_pos (β τ s)); split; nra. }
  apply (factors_express d d_in d_out basis
    (fun s τ => if Rlt_dec 0 (Y τ) then Y τ * ((1 - / κ) / n + β τ s / κ) else 0)
    (fun s i j => κ * V s i j + (1 - κ) * g i j)); [exact HΔ|exact NE|split].
  - intros s τ Is Iτ; destruct (Rlt_dec 0 (Y τ)) as [P0|]; [|lra]; apply Rmult_le_pos; [lra|].
    destruct (κ_β τ s Iτ Is) as [K1 K2].
    replace ((1 - / κ) / n + β τ s / κ) with ((κ - 1 + n * β τ s) * (/ n * / κ)) by (field; lra).
    apply Rmult_le_pos; [exact K2|]; apply Rmult_le_pos; left; apply Rinv_0_lt_compat; lra.
  - intros τ i j Iτ Hi Hj; destruct (Rlt_dec 0 (Y τ)) as [P0|P0].
    2: { destruct (Hτ τ Iτ) as [A|Z]; [contradiction|]; rewrite (Z i j Hi Hj), sum_zero; [reflexivity|]; intros; ring. }
    assert (K1 : 1 <= κ) by (apply (κ_β τ s0 Iτ); rewrite Eb; left; reflexivity).
    assert (B1 : sum basis (β τ) = 1).
    { unfold β, Rdiv; rewrite sum_scal_r; replace (sum basis (fun s => c τ s * Y s)) with (Y τ); [field; lra|].
      unfold Y, inner, sum_below; rewrite (sum_ext basis _ (fun s => sum (seq 0 d_in) (fun i => sum (seq 0 d_out)
        (fun j => c τ s * W s i j * y i j)))).
      - rewrite (sum_swap basis); apply sum_ext; intros i' Hi'; rewrite (sum_swap basis); apply sum_ext; intros j' Hj'.
        apply in_seq in Hi', Hj'; rewrite sum_scal_r; f_equal; apply spans; [exact Iτ|lia|lia].
      - intros s _; rewrite <- sum_scal; apply sum_ext; intros i' _; rewrite <- sum_scal; apply sum_ext; intros; ring. }
    assert (B2 : sum basis (fun s => β τ s * V s i j) * Y τ = W τ i j).
    { rewrite (spans τ i j Iτ Hi Hj), <- sum_scal_r; apply sum_ext; intros s Is; unfold β, V; field.
      split; [apply Rgt_not_eq, Hs, Is|lra]. }
    rewrite <- B2; rewrite (sum_ext basis (fun s => _ * (κ * V s i j + _)) (fun s =>
      Y τ * ((κ - 1) / n) * V s i j + Y τ * (β τ s * V s i j) + (Y τ * (1 - κ) * g i j / κ * β τ s +
      Y τ * (1 - κ) * g i j * ((1 - / κ) / n)))) by (intros; field; lra).
    rewrite !sum_plus, !sum_scal, sum_const, B1; fold n; unfold g; field; lra.
Qed.

End Enough.

(** Two heads are enough for W_τ = w_τ A, so for every filter of one channel: one for each sign. *)
Theorem two_heads_enough d d_in d_out Δ (w : position -> R) (A : matrix) b : positions d Δ -> Δ <> [] ->
  heads_express d d_in d_out [true; false] Δ (fun τ i j => w τ * A i j) b.
Proof.
  intros HΔ NE; apply (factors_express d d_in d_out [true; false]
    (fun sign τ => Rmax 0 (if sign then w τ else - w τ)) (fun sign i j => if sign then A i j else - A i j)); [exact HΔ|exact NE|split].
  - intros; apply Rmax_l.
  - intros τ i j _ _ _; unfold sum; simpl; unfold Rmax; repeat destruct (Rle_dec _ _);
      first [ring|replace (w τ) with 0 by lra; ring|exfalso; lra].
Qed.
