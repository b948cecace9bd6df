(** The difference due to taps: the layer with one-hot heads compared with the convolution, over the reals.

    Head h attends to q + f(h) and carries the matrix W_val^h W_out^h; heads at the same shift sum to its tap.
    Statement, for output channel j and inputs |X| ≤ B:
      taps_bound  |b_out + Σ_h X_{q+f(h)} W_val^h W_out^h − Conv(X)_q| ≤ |b_out − b| + B·Σ_τ Σ_c |Σ_{f(h)=τ} … − W_τ|,
                  where τ runs over the kernel's support and the shifts of the heads, and W_τ = 0 off the support *)

From Coq Require Import Reals ZArith List Lra Lia.
From Attention Require Import Definitions Sums.
Import ListNotations.
Open Scope R_scope.

(** Equality of positions, as a program that Coq's kernel can run. *)
Definition same_position (p q : position) : {p = q} + {p <> q} := list_eq_dec Z.eq_dec p q.

Section Taps.
Context {H : Type}.
Variables (L : layer H) (f : H -> position) (Δ : list position) (W : position -> matrix) (b : vector) (j : nat).

(** The (c, j) entry of W_val^h W_out^h. *)
Definition carried (h : H) (c : nat) : R :=
  sum_below (D_h L) (fun i => W_val (parameters L h) c i * W_out (parameters L h) i j).

(** The sum of the heads at τ, and the convolution's tap there. *)
Definition head_tap (τ : position) (c : nat) : R :=
  sum (heads L) (fun h => if same_position (f h) τ then carried h c else 0).
Definition kernel_tap (τ : position) (c : nat) : R := if in_dec same_position τ Δ then W τ c j else 0.

(** The shifts that a head or the kernel reads. *)
Definition shifts : list position := nodup same_position (Δ ++ map f (heads L)).

Definition taps_difference (B : R) : R :=
  Rabs (b_out L j - b j)
  + B * sum shifts (fun τ => sum_below (D_in L) (fun c => Rabs (head_tap τ c - kernel_tap τ c))).

(** The layer whose heads are one-hot. *)
Definition one_hot_layer (X : image) (q : position) : R :=
  b_out L j + sum (heads L) (fun h => sum_below (D_h L) (fun i =>
    W_out (parameters L h) i j * row_times (D_in L) (X (add q (f h))) (W_val (parameters L h)) i)).

Lemma in_shifts_kernel τ : In τ Δ -> In τ shifts.
Proof. intros I; apply nodup_In, in_or_app; left; exact I. Qed.

Lemma in_shifts_head h : In h (heads L) -> In (f h) shifts.
Proof. intros I; apply nodup_In, in_or_app; right; apply in_map, I. Qed.

Lemma one_hot_layer_carried X q : one_hot_layer X q =
  b_out L j + sum (heads L) (fun h => sum_below (D_in L) (fun c => carried h c * X (add q (f h)) c)).
Proof.
  unfold one_hot_layer; f_equal; apply sum_ext; intros h _; unfold sum_below, carried, row_times, sum_below.
  transitivity (sum (seq 0 (D_h L)) (fun i => sum (seq 0 (D_in L)) (fun c =>
    W_val (parameters L h) c i * W_out (parameters L h) i j * X (add q (f h)) c))).
  - apply sum_ext; intros i _; rewrite <- sum_scal; apply sum_ext; intros; ring.
  - rewrite sum_swap; apply sum_ext; intros c _; apply sum_scal_r.
Qed.

Lemma one_hot_layer_taps X q :
  one_hot_layer X q = b_out L j + sum shifts (fun τ => sum_below (D_in L) (fun c => head_tap τ c * X (add q τ) c)).
Proof.
  rewrite one_hot_layer_carried; f_equal.
  transitivity (sum (heads L) (fun h => sum shifts (fun τ =>
    if same_position (f h) τ then sum_below (D_in L) (fun c => carried h c * X (add q τ) c) else 0))).
  - apply sum_ext; intros h I; symmetry; rewrite (sum_single shifts (f h)).
    + destruct (same_position (f h) (f h)); congruence.
    + apply NoDup_nodup.
    + apply in_shifts_head, I.
    + intros τ _ N; destruct (same_position (f h) τ); congruence.
  - rewrite sum_swap; apply sum_ext; intros τ _; unfold sum_below, head_tap.
    transitivity (sum (heads L) (fun h => sum (seq 0 (D_in L)) (fun c =>
      (if same_position (f h) τ then carried h c else 0) * X (add q τ) c))).
    + apply sum_ext; intros h _; destruct (same_position (f h) τ); [reflexivity|].
      symmetry; apply sum_zero; intros; ring.
    + rewrite sum_swap; apply sum_ext; intros c _; apply sum_scal_r.
Qed.

Lemma sum_restrict (l l' : list position) (g : position -> R) : NoDup l -> NoDup l' -> incl l l' ->
  sum l' (fun τ => if in_dec same_position τ l then g τ else 0) = sum l g.
Proof.
  intros N N' I; transitivity (sum l' (fun τ => sum l (fun σ => if same_position σ τ then g σ else 0))).
  - apply sum_ext; intros τ _; destruct (in_dec same_position τ l) as [Iτ|Iτ].
    + rewrite (sum_single l τ); [destruct (same_position τ τ); congruence|exact N|exact Iτ|].
      intros σ _ D; destruct (same_position σ τ); congruence.
    + symmetry; apply sum_zero; intros σ Iσ; destruct (same_position σ τ); [subst; contradiction|reflexivity].
  - rewrite sum_swap; apply sum_ext; intros σ Iσ; rewrite (sum_single l' σ); [|exact N'|apply I, Iσ|].
    + destruct (same_position σ σ); congruence.
    + intros τ _ D; destruct (same_position σ τ); congruence.
Qed.

Lemma conv_taps X q : NoDup Δ ->
  conv (D_in L) Δ W b X q j = b j + sum shifts (fun τ => sum_below (D_in L) (fun c => kernel_tap τ c * X (add q τ) c)).
Proof.
  intros N; unfold conv; f_equal; rewrite <- (sum_restrict Δ shifts) by
    (try exact N; try apply NoDup_nodup; intros τ; apply in_shifts_kernel).
  apply sum_ext; intros τ _; unfold kernel_tap, row_times; destruct (in_dec same_position τ Δ).
  - apply sum_ext; intros; ring.
  - symmetry; apply sum_zero; intros; ring.
Qed.

Theorem taps_bound X q B : NoDup Δ ->
  (forall τ c, In τ shifts -> (c < D_in L)%nat -> Rabs (X (add q τ) c) <= B) ->
  Rabs (one_hot_layer X q - conv (D_in L) Δ W b X q j) <= taps_difference B.
Proof.
  intros N HX; rewrite one_hot_layer_taps, conv_taps by exact N; unfold taps_difference.
  match goal with |- Rabs (?p + ?x - (?r + ?y)) <= _ => replace (p + x - (r + y)) with (p - r + (x - y)) by ring end.
  eapply Rle_trans; [apply Rabs_triang|]; apply Rplus_le_compat_l.
  rewrite <- sum_minus, <- sum_scal; eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros τ Iτ.
  unfold sum_below; rewrite <- sum_minus, <- sum_scal; eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros c Ic.
  replace (head_tap τ c * X (add q τ) c - kernel_tap τ c * X (add q τ) c)
    with (X (add q τ) c * (head_tap τ c - kernel_tap τ c)) by ring.
  rewrite Rabs_mult; apply Rmult_le_compat_r; [apply Rabs_pos|]; apply HX; [exact Iτ|]; apply in_seq in Ic; lia.
Qed.

End Taps.
