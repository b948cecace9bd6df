(** How many heads a kernel needs.

    Statements:
      heads_needed      where the attention does not depend on the input, a kernel whose taps are linearly
                        independent matrices needs as many heads as taps: for any weights P_h at all, so
                        for softmax at every α and for its limit
      heads_needed_layer   the same for a layer of Eq. 3 without content terms *)

From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Layers Exactness.
Import ListNotations.
Open Scope R_scope.

(** The matrices W_τ, τ ∈ Δ, are linearly independent. *)
Definition independent (d_in d_out : nat) (Δ : list position) (W : position -> matrix) : Prop :=
  forall w : position -> R,
  (forall i j, (i < d_in)%nat -> (j < d_out)%nat -> sum Δ (fun τ => w τ * W τ i j) = 0) ->
  forall τ, In τ Δ -> w τ = 0.

(** Σ_h P^h X M_h = Conv(X) at the query q for every image X, P^h_{q,k} any numbers: then |Δ| ≤ N_h. *)
Theorem heads_needed {H} (hs : list H) (P : H -> position -> R) (M : H -> matrix) (b b' : vector)
    d d_in d_out Δ W G q : positions d Δ -> positions d G -> length q = d -> targets_on G q Δ ->
  independent d_in d_out Δ W ->
  (forall X j, (j < d_out)%nat ->
    b j + sum hs (fun h => row_times d_in (fun i => sum G (fun k => P h k * X k i)) (M h) j) = conv d_in Δ W b' X q j) ->
  (length Δ <= length hs)%nat.
Proof.
  intros HΔ [N F] Hq T ind E; destruct (le_lt_dec (length Δ) (length hs)) as [|Few]; [assumption|exfalso].
  assert (B : forall j, (j < d_out)%nat -> b j = b' j).
  { intros j Hj; specialize (E zero_image j Hj); rewrite conv_zero in E; rewrite <- E, (sum_zero hs); [ring|].
    intros h _; apply sum_below_zero; intros i _; rewrite sum_zero; [ring|]; intros; unfold zero_image; ring. }
  (* on the image 1 at the token q + τ, channel i: W_τ = Σ_h P^h_{q+τ} M_h *)
  assert (S : forall τ i j, In τ Δ -> (i < d_in)%nat -> (j < d_out)%nat ->
    W τ i j = sum hs (fun h => P h (add q τ) * M h i j)).
  { intros τ i j Iτ Hi Hj; specialize (E (unit_image (add q τ) i) j Hj).
    rewrite (conv_unit d) in E by assumption; rewrite B in E by exact Hj.
    apply (Rplus_eq_reg_l (b' j)); rewrite <- E; f_equal; apply sum_ext; intros h _; unfold row_times.
    rewrite (sum_below_single d_in i); [|exact Hi|].
    - f_equal; rewrite (sum_single G (add q τ)); [|exact N|apply T, Iτ|].
      + unfold unit_image; destruct (position_eq_dec _ _); [|congruence]; destruct (Nat.eq_dec i i); [ring|congruence].
      + intros k _ D; unfold unit_image; destruct (position_eq_dec k (add q τ)); [congruence|ring].
    - intros i' _ D; rewrite sum_zero; [ring|]; intros k _; unfold unit_image.
      destruct (Nat.eq_dec i' i); [congruence|]; destruct (position_eq_dec k (add q τ)); ring. }
  destruct (linear_equations position_eq_dec (map (fun h τ => P h (add q τ)) hs) Δ) as (w & (τ0 & I0 & N0) & Hw).
  - apply HΔ.
  - rewrite map_length; exact Few.
  - apply N0, (ind w); [|exact I0]; intros i j Hi Hj.
    rewrite (sum_ext Δ _ (fun τ => sum hs (fun h => w τ * P h (add q τ) * M h i j))).
    + rewrite sum_swap, sum_zero; [reflexivity|]; intros h Ih; rewrite sum_scal_r.
      rewrite (Hw (fun τ => P h (add q τ))) by (apply (in_map (fun h τ => P h (add q τ))), Ih); ring.
    + intros τ Iτ; rewrite (S τ i j Iτ Hi Hj), <- sum_scal; apply sum_ext; intros; ring.
Qed.

(** A layer whose heads have no content terms and that computes a convolution at one query, for every
    image, has as many heads as the convolution has taps, if these are linearly independent. *)
Corollary heads_needed_layer {H} (L : layer H) b d Δ W G q : positions d Δ -> positions d G -> length q = d ->
  targets_on G q Δ -> (forall h, In h (heads L) -> content_free L h) -> independent (D_in L) (D_out L) Δ W ->
  (forall X j, (j < D_out L)%nat -> attend L G X q j = conv (D_in L) Δ W b X q j) ->
  (length Δ <= length (heads L))%nat.
Proof.
  intros HΔ HG Hq T C ind E.
  apply (heads_needed (heads L) (fun h k => attention L G h zero_image q k) (value_output L) (b_out L) b
    d (D_in L) (D_out L) Δ W G q HΔ HG Hq T ind).
  intros X j Hj; rewrite <- E, attend_heads by exact Hj; f_equal; apply sum_ext; intros h Ih.
  apply sum_ext; intros i _; f_equal; apply sum_ext; intros k Ik; f_equal.
  apply softmax_ext; [|exact Ik]; intros k' _; rewrite !read_back by (apply C, Ih); reflexivity.
Qed.
