(** The relative encodings in use: which of them express convolutions, and under which hypothesis.

    A head that scores its target higher than every other key by γ is off by (N − 1) e^{−γ} at most,
    whatever the encoding; so an encoding that has such scores for every shift of a kernel expresses it.

    Statements:
      gap_finite       heads with a gap of γ at q + τ_h: the layer is within 2·B·(N − 1) e^{−γ}·Σ|W| of the
                       convolution
      cosine_score     rotary and sinusoidal encodings, r_δ = (cos θ_j δ, sin θ_j δ)_j: a vector v with
                       v·r_δ = α Σ_j cos θ_j (δ − τ), for every τ
      rotary_product   which is the product of a query and a key rotated by their own positions
      cosine_gap       so the gap is α times the least Σ_j (1 − cos θ_j n) over the shifts n ≠ 0 of the grid
      cosine_gap_positive  it is positive on a grid which the slowest frequency does not go round: 1 − cos θ_s at least
      rotary_finite    so on an image no longer than that wave the layer is within 2·B·(N − 1) e^{−α(1 − cos θ_s)}·Σ|W| of any
                       convolution in one dimension
      table_gap        a table with a number for every shift of a window (T5, Swin): α at τ, 0 elsewhere
      table_same       and two shifts with one number score the same: no head tells them apart
      alibi_nearest    a bias −m |δ| (ALiBi), m ≥ 0: of all shifts 0 scores best, by m at least
      alibi_one_tap    with any m some other shift scores as high as τ ≠ 0: no head is sharp there on a grid that has both
      causal_targets   a causal mask keeps every target of a causal kernel *)

From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Leakage Layers Theorem1.
Import ListNotations.
Open Scope R_scope.

(** * Any encoding with a gap *)

Section Gap.
Context {H : Type}.
Variables (d_p d_in d_out : nat) (r_ : position -> vector) (hs : list H) (v_ : H -> vector) (f : H -> position).
Variables (Δ : list position) (W : position -> matrix) (b : vector) (G : list position) (X : image) (q : position).
Variables (j : nat) (B γ : R).
Hypotheses (bijection : Permutation (map f hs) Δ) (keys : NoDup G) (targets : targets_on G q Δ).
Hypotheses (bound : bounded d_in B G X) (channel : (j < d_out)%nat).

Let L : layer H := positional d_p d_in d_out r_ hs v_ (fun h => W (f h)) b.

(** Every head scores its target higher than every other key, by γ. *)
Hypothesis gap : forall h k, In h hs -> In k G -> k <> add q (f h) ->
  γ <= score L h X q (add q (f h)) - score L h X q k.

Theorem gap_finite :
  Rabs (attend L G X q j - conv d_in Δ W b X q j) <= 2 * B * ((INR (length G) - 1) * exp (- γ)) * weight_sum d_in Δ W j.
Proof.
  rewrite <- (heads_conv d_in hs f Δ W b X q j bijection), <- (heads_weight_sum d_in hs f Δ W j bijection).
  assert (T : forall h, In h hs -> In (add q (f h)) G).
  { intros h Ih; apply targets, (Permutation_in _ bijection), in_map, Ih. }
  apply (positional_error d_p d_in d_out r_ hs v_ (fun h => W (f h)) b (fun h => add q (f h))); auto.
  intros h Ih; apply (softmax_gap G (fun k => score L h X q k)); [exact keys|apply T, Ih|].
  intros k Ik D; apply gap; assumption.
Qed.

End Gap.

(** * Rotary and sinusoidal encodings, in one dimension *)

(** r_δ = (cos θ_0 δ, sin θ_0 δ, cos θ_1 δ, …), of 2J numbers. *)
Definition r_cosine (θ : nat -> R) (δ : position) : vector :=
  fun i => if Nat.eqb (i mod 2) 0 then cos (θ (i / 2)%nat * coordinate δ 0) else sin (θ (i / 2)%nat * coordinate δ 0).

(** v = α (cos θ_0 τ, sin θ_0 τ, …). *)
Definition v_cosine (θ : nat -> R) (α : R) (τ : position) : vector := fun i => α * r_cosine θ τ i.

Lemma sum_below_scal n c f : sum_below n (fun i => c * f i) = c * sum_below n f.
Proof. apply sum_scal. Qed.

(** The score is α Σ_j cos θ_j (δ − τ). *)
Theorem cosine_score J θ α δ τ :
  dot (J * 2) (v_cosine θ α τ) (r_cosine θ δ) =
  α * sum_below J (fun u => cos (θ u * (coordinate δ 0 - coordinate τ 0))).
Proof.
  unfold dot; rewrite sum_below_blocks, <- sum_below_scal; apply sum_below_ext; intros u Hu.
  unfold sum_below; simpl seq; rewrite !sum_cons; change (sum [] _) with 0; unfold v_cosine, r_cosine.
  assert (E0 : ((u * 2 + 0) mod 2 = 0 /\ (u * 2 + 0) / 2 = u)%nat).
  { split; [rewrite Nat.add_comm, Nat.mod_add by lia; reflexivity|rewrite Nat.div_add_l by lia; simpl; lia]. }
  assert (E1 : ((u * 2 + 1) mod 2 = 1 /\ (u * 2 + 1) / 2 = u)%nat).
  { split; [rewrite Nat.add_comm, Nat.mod_add by lia; reflexivity|rewrite Nat.div_add_l by lia; simpl; lia]. }
  destruct E0 as [-> ->], E1 as [-> ->]; simpl Nat.eqb; cbv iota.
  rewrite Rmult_minus_distr_l, cos_minus; ring.
Qed.

(** Rotation of the pair (x, y) by an angle; its product is RoPE's. *)
Definition rotated (angle : R) (p : R * R) : R * R :=
  (fst p * cos angle - snd p * sin angle, fst p * sin angle + snd p * cos angle).
Definition pair_product (p p' : R * R) : R := fst p * fst p' + snd p * snd p'.

(** A query (cos θτ, sin θτ) and a key (1, 0), each rotated by its own position m and n, have the product cos θ(n − m − τ). *)
Theorem rotary_product θ τ m n :
  pair_product (rotated (θ * m) (cos (θ * τ), sin (θ * τ))) (rotated (θ * n) (1, 0)) = cos (θ * (n - m - τ)).
Proof.
  unfold pair_product, rotated; simpl.
  replace (θ * (n - m - τ)) with (θ * n - (θ * m + θ * τ)) by ring.
  rewrite cos_minus, cos_plus, sin_plus; ring.
Qed.

(** The gap of the score at τ is α times the least Σ_j (1 − cos θ_j n). *)
Theorem cosine_gap J θ α g δ τ : 0 <= α ->
  g <= sum_below J (fun u => 1 - cos (θ u * (coordinate δ 0 - coordinate τ 0))) ->
  α * g <= dot (J * 2) (v_cosine θ α τ) (r_cosine θ τ) - dot (J * 2) (v_cosine θ α τ) (r_cosine θ δ).
Proof.
  intros Hα Hg; rewrite !cosine_score, <- Rmult_minus_distr_l; apply Rmult_le_compat_l; [exact Hα|].
  eapply Rle_trans; [exact Hg|]; unfold sum_below; rewrite <- sum_minus; apply Req_le, sum_ext; intros u _.
  replace (coordinate τ 0 - coordinate τ 0) with 0 by ring; rewrite Rmult_0_r, cos_0; reflexivity.
Qed.

(** That is positive on a grid which the slowest frequency does not go round: 1 − cos θ at least. *)
Theorem cosine_gap_positive J θ s n : (s < J)%nat -> 0 < θ s <= PI -> n <> 0%Z ->
  θ s * (Rabs (IZR n) + 1) <= 2 * PI ->
  0 < 1 - cos (θ s) <= sum_below J (fun j => 1 - cos (θ j * IZR n)).
Proof.
  intros Hs [θ0 θπ] Hn round; split.
  - rewrite <- cos_0 at 1; pose proof (cos_decreasing_1 0 (θ s)); lra.
  - assert (N : 1 <= Rabs (IZR n)) by (rewrite <- abs_IZR; apply IZR_le; lia).
    assert (T : cos (θ s * IZR n) <= cos (θ s)).
    { replace (cos (θ s * IZR n)) with (cos (θ s * Rabs (IZR n))).
      - destruct (Rle_dec (θ s * Rabs (IZR n)) PI) as [L|L].
        + apply cos_decr_1; nra.
        + replace (cos (θ s * Rabs (IZR n))) with (cos (2 * PI - θ s * Rabs (IZR n))).
          * apply cos_decr_1; nra.
          * rewrite cos_minus, cos_2PI, sin_2PI; ring.
      - unfold Rabs; destruct (Rcase_abs (IZR n)); [|reflexivity].
        rewrite <- cos_neg; f_equal; ring. }
    apply Rle_trans with (1 - cos (θ s * IZR n)); [lra|].
    unfold sum_below; destruct (sum_split (seq 0 J) s (fun j => 1 - cos (θ j * IZR n))) as (l & _ & ->).
    + apply in_seq; lia.
    + assert (0 <= sum l (fun j => 1 - cos (θ j * IZR n))); [|lra].
      apply sum_nonneg; intros j _; pose proof (COS_bound (θ j * IZR n)); lra.
Qed.

(** So such a layer is near every convolution in one dimension: an image no longer than the slowest frequency's wave. *)
Section Rotary.
Context {H : Type}.
Variables (J d_in d_out s : nat) (θ : nat -> R) (α : R) (hs : list H) (f : H -> position).
Variables (Δ : list position) (W : position -> matrix) (b : vector) (G : list position) (X : image) (q : position).
Variables (j : nat) (B : R).
Hypotheses (bijection : Permutation (map f hs) Δ) (keys : NoDup G) (targets : targets_on G q Δ).
Hypotheses (bound : bounded d_in B G X) (channel : (j < d_out)%nat).
Hypothesis one_dimension : forall p, In p (q :: Δ ++ G) -> length p = 1%nat.
Hypotheses (sharp : 0 <= α) (slow : (s < J)%nat) (wave : 0 < θ s <= PI).
Hypothesis span : forall k k', In k G -> In k' G -> θ s * (Rabs (coordinate k 0 - coordinate k' 0) + 1) <= 2 * PI.

Theorem rotary_finite :
  Rabs (attend (positional (J * 2) d_in d_out (r_cosine θ) hs (fun h => v_cosine θ α (f h)) (fun h => W (f h)) b) G X q j
    - conv d_in Δ W b X q j) <=
  2 * B * ((INR (length G) - 1) * exp (- (α * (1 - cos (θ s))))) * weight_sum d_in Δ W j.
Proof.
  apply gap_finite; try assumption; intros h k Ih Ik D; rewrite !score_positional.
  assert (It : In (add q (f h)) G) by (apply targets, (Permutation_in _ bijection), in_map, Ih).
  pose proof (span _ _ Ik It) as P.
  assert (F : length (f h) = 1%nat).
  { apply one_dimension; right; apply in_or_app; left; apply (Permutation_in _ bijection), in_map, Ih. }
  assert (K : length k = 1%nat) by (apply one_dimension; right; apply in_or_app; right; exact Ik).
  assert (Q : length q = 1%nat) by (apply one_dimension; left; reflexivity).
  destruct q as [|a [|]], k as [|x [|]], (f h) as [|t [|]]; try discriminate.
  assert (N : (x - a - t <> 0)%Z) by (intros E; apply D; simpl; f_equal; lia).
  replace (sub (add [a] [t]) [a]) with [t] by (simpl; f_equal; lia).
  apply cosine_gap; [exact sharp|]; unfold coordinate in *; simpl in *.
  replace (IZR (x - a) - IZR t) with (IZR (x - a - t)) by (rewrite (minus_IZR (x - a) t); reflexivity).
  apply (cosine_gap_positive J θ s (x - a - t)); try assumption.
  replace (IZR (x - a - t)) with (IZR x - IZR (a + t)) by (rewrite <- minus_IZR; f_equal; lia); exact P.
Qed.

End Rotary.

(** * Tables of relative biases *)

(** The number of a shift: buckets, or one for each shift of a window. *)
Definition table_score (bucket : position -> nat) (entries : nat -> R) (δ : position) : R := entries (bucket δ).

(** α at τ's entry, 0 at all others. *)
Definition one_entry (bucket : position -> nat) (α : R) (τ : position) : nat -> R :=
  fun n => if Nat.eqb n (bucket τ) then α else 0.

(** A shift of another bucket than τ's scores lower by α; so a table expresses any kernel in whose window no two shifts
    share a bucket, on a grid all of whose shifts lie in it. *)
Theorem table_gap bucket α δ τ : bucket δ <> bucket τ ->
  table_score bucket (one_entry bucket α τ) τ - table_score bucket (one_entry bucket α τ) δ = α.
Proof.
  intros D; unfold table_score, one_entry; rewrite Nat.eqb_refl, (proj2 (Nat.eqb_neq _ _) D); ring.
Qed.

(** And two shifts of one bucket score the same, whatever the entries: no head tells them apart. *)
Theorem table_same bucket entries δ τ : bucket δ = bucket τ ->
  table_score bucket entries δ = table_score bucket entries τ.
Proof. unfold table_score; intros ->; reflexivity. Qed.

(** * A bias that falls with the distance *)

(** ALiBi: −m |δ|. *)
Definition alibi_score (m : R) (δ : Z) : R := - m * Rabs (IZR δ).

Theorem alibi_nearest m δ : 0 <= m -> δ <> 0%Z -> m <= alibi_score m 0 - alibi_score m δ.
Proof.
  intros Hm D; unfold alibi_score; rewrite Rabs_R0, <- abs_IZR.
  assert (1 <= IZR (Z.abs δ)) by (apply IZR_le; lia); nra.
Qed.

(** Another shift scores at least as high as τ ≠ 0: with a slope m ≥ 0 the query itself, with m < 0 the shift −τ. *)
Theorem alibi_one_tap m τ : τ <> 0%Z -> exists δ, δ <> τ /\ alibi_score m τ <= alibi_score m δ.
Proof.
  intros D; destruct (Rle_dec 0 m) as [Hm|Hm].
  - exists 0%Z; split; [congruence|]; pose proof (alibi_nearest m τ Hm D); lra.
  - exists (- τ)%Z; split; [lia|]; unfold alibi_score; rewrite opp_IZR, Rabs_Ropp; lra.
Qed.

(** * Causal masks *)

(** Keys after the query are masked: the kept keys of a grid in one dimension. *)
Definition causal_keys (G : list position) (q : position) : list position :=
  filter (fun k => Z.leb (hd 0%Z k) (hd 0%Z q)) G.

(** A causal kernel looks at no later position: a mask keeps its targets. *)
Theorem causal_targets G q Δ : (forall τ, In τ Δ -> (hd 0 τ <= 0)%Z) ->
  Forall (fun τ => length τ = length q) Δ -> targets_on G q Δ -> targets_on (causal_keys G q) q Δ.
Proof.
  intros C F T τ I; unfold causal_keys; apply filter_In; split; [apply T, I|].
  rewrite Forall_forall in F; pose proof (F τ I) as E; pose proof (C τ I); apply Z.leb_le.
  destruct q as [|a q], τ as [|x τ]; simpl in *; lia.
Qed.
