(** When a layer is the same function as a convolution, and an input that shows when it is not.

    Statements, for a layer without content terms whose head h has its strictly best key at q + f(h), and a
    kernel whose support holds all shifts that heads look at (W_τ = 0 where it has no tap):
      same_iff         in the limit α → ∞ the layer computes the convolution at q, for every image, exactly
                       if its taps are the kernel's and its b_out the bias
      counterexample   where a tap or the bias differs, one of the images of zeros and at most one 1 shows it *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Layers Limits Theorem1 Exactness.
Import ListNotations.
Open Scope R_scope.

(** Two kernels on one support that agree on the image 0 and the images of one 1 have equal taps and biases. *)
Lemma conv_determines d d_in Δ W W' b b' q j : positions d Δ -> length q = d ->
  (forall X, conv d_in Δ W b X q j = conv d_in Δ W' b' X q j) ->
  b j = b' j /\ forall τ i, In τ Δ -> (i < d_in)%nat -> W τ i j = W' τ i j.
Proof.
  intros HΔ Hq E; assert (B : b j = b' j) by (specialize (E zero_image); rewrite !conv_zero in E; exact E).
  split; [exact B|]; intros τ i Iτ Hi; specialize (E (unit_image (add q τ) i)).
  rewrite !(conv_unit d) in E by assumption; lra.
Qed.

Section Same.
Context {H : Type} (L : layer H) (f : H -> position) (d : nat) (Δ : list position) (W : position -> matrix) (b : vector).
Variables (G : list position) (q : position) (j : nat).
Hypotheses (Δ_d : positions d Δ) (N : NoDup G) (q_d : length q = d) (T : targets_on G q Δ).
Hypotheses (looks : forall h, In h (heads L) -> In (f h) Δ) (C : forall h, In h (heads L) -> content_free L h).
Hypothesis best : forall h X k, In h (heads L) -> In k G -> k <> add q (f h) ->
  score L h X q k < score L h X q (add q (f h)).

(** The layer's limit is the convolution for every image, exactly if taps and bias are equal. *)
Theorem same_iff :
  (forall X, is_lim (fun α => attend (sharpen α L) G X q j) p_infty (conv (D_in L) Δ W b X q j)) <->
  (b_out L j = b j /\ forall τ i, In τ Δ -> (i < D_in L)%nat -> tap L f τ i j = W τ i j).
Proof.
  assert (lim : forall X, is_lim (fun α => attend (sharpen α L) G X q j) p_infty
                            (conv (D_in L) Δ (tap L f) (b_out L) X q j)).
  { intros X; apply sharpen_limit; try assumption; [apply Δ_d|]; intros; apply best; assumption. }
  split.
  - intros E; apply (conv_determines d (D_in L) Δ (tap L f) W (b_out L) b q j Δ_d q_d); intros X.
    pose proof (is_lim_unique _ _ _ (lim X)) as U; rewrite (is_lim_unique _ _ _ (E X)) in U.
    injection U; intros ->; reflexivity.
  - intros [Eb EW] X; replace (conv (D_in L) Δ W b X q j) with (conv (D_in L) Δ (tap L f) (b_out L) X q j); [apply lim|].
    unfold conv; rewrite Eb; f_equal; apply sum_ext; intros τ Iτ; apply sum_below_ext; intros i Hi.
    rewrite EW by assumption; reflexivity.
Qed.

(** Where a tap differs, the image 1 at q + τ, channel i, or the image 0, has two different outputs. *)
Theorem counterexample τ i : In τ Δ -> (i < D_in L)%nat -> tap L f τ i j <> W τ i j ->
  exists X, (X = zero_image \/ X = unit_image (add q τ) i) /\
    exists y : R, is_lim (fun α => attend (sharpen α L) G X q j) p_infty y /\ y <> conv (D_in L) Δ W b X q j.
Proof.
  intros Iτ Hi D.
  assert (lim : forall X, is_lim (fun α => attend (sharpen α L) G X q j) p_infty
                            (conv (D_in L) Δ (tap L f) (b_out L) X q j)).
  { intros X; apply sharpen_limit; try assumption; [apply Δ_d|]; intros; apply best; assumption. }
  destruct (Req_dec (b_out L j) (b j)) as [E|E].
  - exists (unit_image (add q τ) i); split; [right; reflexivity|]; eexists; split; [apply lim|].
    rewrite !(conv_unit d) by assumption; lra.
  - exists zero_image; split; [left; reflexivity|]; eexists; split; [apply lim|]; rewrite !conv_zero; exact E.
Qed.

End Same.
