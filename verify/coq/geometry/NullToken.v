(** Without padding tokens: one null token whose value is zero, an attention sink, is zero padding.

    Beside the tokens of the bare image every query sees one key more.  Its value is zero, and its score
    is that of the head's target less α/2, whether the target q + τ_h is a token or not.  Where it is a
    token, it wins; where it is not, every token scores lower than the null token, and the head reads zero.

    Statements:
      null_leak        the attention that misses is at most λ(α) = e^{α/2} (ϑ(α)^d − 1) + e^{−α/2}, on an
                       image of any size; and at most N e^{−α/2}, N its number of tokens
      null_token       on the bare image, layer and zero-padded convolution differ by 2·B·λ(α)·Σ|W| at most
      null_token_count and by 2·B·N e^{−α/2}·Σ|W|
      null_token_limit so the layer tends to the convolution

    And in place of softmax:
      sparsemax_one_hot  sparsemax (the nearest point of the simplex) is one-hot from a gap of 1 on; so with
                         α ≥ 1 assumption (9) of Lemma 1 holds over the reals *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Factorisation Leakage Layers Theorem1 Geometry Borders.
Import ListNotations.
Open Scope R_scope.

(** * The layer *)

(** The keys of a query: the null token, and the tokens of the image. *)
Definition with_null (G : list position) : list (option position) := None :: map Some G.

(** Scores of these keys, for a head that looks at the shift τ: the null token's is that of q + τ less α/2. *)
Definition null_score {H} (L : layer H) (α : R) (h : H) (τ : position) (X : image) (q : position)
    (k : option position) : R :=
  match k with Some k => score L h X q k | None => score L h X q (add q τ) - α / 2 end.

(** Eq. 3 with the null token, whose value is zero; head h looks at f(h). *)
Definition attend_null {H} (L : layer H) (α : R) (f : H -> position) (G : list position) (X : image)
    (q : position) (j : nat) : R :=
  b_out L j + sum (heads L) (fun h =>
    let attended := fun i => sum G (fun k =>
      softmax (with_null G) (null_score L α h (f h) X q) (Some k) * X k i) in
    row_times (D_h L) (row_times (D_in L) attended (W_val (parameters L h))) (W_out (parameters L h)) j).

(** What a head reads: its target's features, or zero where the target is no token. *)
Definition read_or_zero (G : list position) (X : image) (t : position) : vector :=
  fun i => if in_dec position_eq_dec t G then X t i else 0.

Definition null_leakage (α : R) (d : nat) : R := exp (α / 2) * (theta α ^ d - 1) + exp (- (α / 2)).

(** * One head *)

Section Head.
Variables (d d_in d_out : nat) (H : Type) (hs : list H) (f : H -> position) (W : H -> matrix) (b : vector).
Variables (G : list position) (X : image) (q : position) (h : H) (α : R).
Hypotheses (G_d : positions d G) (q_d : length q = d) (f_d : length (f h) = d) (sharp : 0 < α).

Let L : layer H := construction d d_in d_out α hs f W b.
Let t : position := add q (f h).
Let s : option position -> R := null_score L α h (f h) X q.
(** The key that the head means. *)
Let aim : option position := if in_dec position_eq_dec t G then Some t else None.

Let length_t : length t = d.
Proof. unfold t; rewrite length_add; [exact q_d|rewrite q_d, f_d; reflexivity]. Qed.

Let length_G k : In k G -> length k = d.
Proof. destruct G_d as [_ F]; rewrite Forall_forall in F; apply F. Qed.

Lemma score_fall k : In k G -> score L h X q k - score L h X q t = - α * IZR (norm2 (sub k t)).
Proof.
  intros I; unfold L, t; rewrite !score_construction by (auto; apply length_t).
  rewrite norm2_sub_diag; lra.
Qed.

Lemma aim_in : In aim (with_null G).
Proof. unfold aim, with_null; destruct (in_dec _ t G); [right; apply in_map; assumption|left; reflexivity]. Qed.

Lemma NoDup_with_null : NoDup (with_null G).
Proof.
  unfold with_null; constructor; [rewrite in_map_iff; intros (k & E & _); discriminate|].
  apply FinFun.Injective_map_NoDup; [intros x y E; congruence|apply G_d].
Qed.

(** Every other key scores lower by α/2 or more. *)
Lemma null_gap k : In k (with_null G) -> k <> aim -> α / 2 <= s aim - s k.
Proof.
  unfold aim, s; destruct (in_dec position_eq_dec t G) as [It|N]; intros [<-|I] D; try congruence; cbn [null_score].
  - fold t; lra.
  - apply in_map_iff in I; destruct I as (k' & <- & I); pose proof (score_fall k' I) as E.
    assert (1 <= IZR (norm2 (sub k' t))); [|cbn [null_score]; fold t; nra].
    apply IZR_le, norm2_sub_positive; [rewrite length_t; apply length_G, I|congruence].
  - apply in_map_iff in I; destruct I as (k' & <- & I); pose proof (score_fall k' I) as E.
    assert (1 <= IZR (norm2 (sub k' t))); [|cbn [null_score]; fold t; nra].
    apply IZR_le, norm2_sub_positive; [rewrite length_t; apply length_G, I|congruence].
Qed.

Lemma null_leak_count : leak (with_null G) s aim <= INR (length G) * exp (- (α / 2)).
Proof.
  pose proof (softmax_gap (with_null G) s aim (α / 2) NoDup_with_null aim_in null_gap) as B.
  unfold with_null in *; simpl length in B; rewrite map_length, S_INR in B.
  replace (INR (length G) + 1 - 1) with (INR (length G)) in B by ring; exact B.
Qed.

Lemma exp_half_ge_1 : 1 <= exp (α / 2).
Proof. rewrite <- exp_0; apply exp_monotone; lra. Qed.

(** The same on an image of any size. *)
Theorem null_leak : leak (with_null G) s aim <= null_leakage α d.
Proof.
  apply leak_le; [exact aim_in|]; unfold with_null; rewrite sum_cons, sum_map.
  pose proof exp_half_ge_1 as E1; pose proof (exp_pos (- (α / 2))) as E2.
  assert (T1 : 1 <= theta α ^ d).
  { apply pow_R1_Rle, theta_ge_1, sharp. }
  unfold null_leakage, aim; destruct (in_dec position_eq_dec t G) as [It|N].
  - unfold s at 1 2; cbn [null_score]; fold t.
    replace (score L h X q t - α / 2 - score L h X q t) with (- (α / 2)) by ring.
    rewrite (sum_ext G _ (fun k => exp (- α * IZR (norm2 (sub k t))))).
    + pose proof (grid_sum_le_theta d α t G sharp G_d length_t); nra.
    + intros k Ik; unfold s; cbn [null_score]; f_equal; apply score_fall, Ik.
  - replace (s None - s None) with 0 by ring; rewrite exp_0.
    rewrite (sum_ext G _ (fun k => exp (α / 2) * exp (- α * IZR (norm2 (sub k t))))).
    + rewrite sum_scal.
      assert (P : positions d (t :: G)).
      { destruct G_d as [N' F]; split; constructor; auto; apply length_t. }
      pose proof (grid_sum_le_theta d α t (t :: G) sharp P length_t) as B; rewrite sum_cons in B.
      rewrite norm2_sub_diag, Rmult_0_r, exp_0 in B; nra.
    + intros k Ik; rewrite <- exp_plus; f_equal; unfold s; cbn [null_score]; fold t.
      pose proof (score_fall k Ik); lra.
Qed.

(** What the head reads, up to what leaks. *)
Lemma null_read i B λ : (forall k, In k G -> Rabs (X k i) <= B) -> 0 <= B -> leak (with_null G) s aim <= λ ->
  Rabs (sum G (fun k => softmax (with_null G) s (Some k) * X k i) - read_or_zero G X t i) <= 2 * B * λ.
Proof.
  intros HB B0 Hλ; set (x := fun k : option position => match k with Some k => X k i | None => 0 end).
  assert (E : sum (with_null G) (fun k => softmax (with_null G) s k * x k) =
    sum G (fun k => softmax (with_null G) s (Some k) * X k i)).
  { unfold with_null at 1; rewrite sum_cons, sum_map; unfold x at 1; rewrite Rmult_0_r, Rplus_0_l; reflexivity. }
  rewrite <- E; replace (read_or_zero G X t i) with (x aim).
  - eapply Rle_trans; [apply (attended_error (with_null G) s aim x B aim_in)|].
    + intros [k|] I; unfold x; [|rewrite Rabs_R0; exact B0].
      destruct I as [I|I]; [discriminate|]; apply in_map_iff in I; destruct I as (k' & E' & I); injection E' as ->; auto.
    + apply Rmult_le_compat_l; [lra|exact Hλ].
  - unfold x, aim, read_or_zero; destruct (in_dec position_eq_dec t G); reflexivity.
Qed.

End Head.

(** * The layer of torch's convolution *)

Section Layer.
Variables (axes : list axis) (g in_g out_g : nat).
Variables (weight : nat -> nat -> position -> R) (bias : vector) (X : image) (o : position) (c : nat).
Hypotheses (fields : Forall (legal zeros) axes) (channels : (0 < in_g)%nat) (channel : (c < g * out_g)%nat).
Hypothesis output : In o (output_grid axes).

(** The layer on the bare image, with the null token. *)
Definition null_layer (α : R) : R :=
  attend_null (conv_layer axes g in_g out_g weight bias α) α (shift axes) (input_grid axes) X (input_query axes o) c.

Let Σw : R := sum (taps axes) (fun j => column_sum (g * in_g) (block_diagonal in_g out_g weight j) c).

Let length_o : length o = length axes.
Proof. destruct (positions_ranges out_size axes) as [_ F]; rewrite Forall_forall in F; apply F, output. Qed.

Let length_tap j : In j (taps axes) -> length j = length axes.
Proof. destruct (positions_ranges kernel axes) as [_ F]; rewrite Forall_forall in F; apply F. Qed.

Let length_q : length (input_query axes o) = length axes.
Proof.
  unfold input_query; rewrite length_sub; [apply length_query, length_o|]; rewrite map_length; apply length_query, length_o.
Qed.

(** Zero padding reads the token, or zero where there is none. *)
Lemma continued_zeros p : length p = length axes ->
  padded zeros axes X p = read_or_zero (input_grid axes) X (sub p (map before axes)).
Proof.
  intros E; unfold padded, read_or_zero.
  assert (C : continued zeros axes p = if in_dec position_eq_dec (sub p (map before axes)) (input_grid axes)
    then Some (sub p (map before axes)) else None).
  { clear - E; revert p E; unfold input_grid; induction axes as [|a axes' IH]; intros [|z p]; simpl length; try lia; intros E.
    - cbn [continued map sub box]; destruct (in_dec position_eq_dec [] [[]]) as [|N]; [reflexivity|destruct N; left; reflexivity].
    - cbn [continued]; rewrite IH by lia; cbn [sub map continued_axis]; clear IH.
      destruct (in_dec _ (sub p (map before axes')) _) as [I|N], (in_dec _ (_ :: _) _) as [I'|N'];
        try (apply in_box in I'; inversion I' as [|? ? ? ? R' B']; subst; apply in_range in R'); try (exfalso; apply N, in_box, B').
      + destruct (Z.leb_spec 0 (z - before a)), (Z.ltb_spec (z - before a) (size a)); simpl; reflexivity || lia.
      + destruct (Z.leb_spec 0 (z - before a)), (Z.ltb_spec (z - before a) (size a)); simpl; try reflexivity.
        exfalso; apply N', in_box; constructor; [apply in_range; lia|apply in_box, I].
      + destruct (_ && _)%bool; reflexivity. }
  rewrite C; apply FunctionalExtensionality.functional_extensionality; intros i.
  destruct (in_dec _ _ _); reflexivity.
Qed.

Lemma null_layer_error α B λ : 0 < α -> 0 <= B -> bounded (g * in_g) B (input_grid axes) X ->
  (forall j, In j (taps axes) -> forall G t s aim, G = input_grid axes -> t = add (input_query axes o) (shift axes j) ->
    s = null_score (conv_layer axes g in_g out_g weight bias α) α j (shift axes j) X (input_query axes o) ->
    aim = (if in_dec position_eq_dec t G then Some t else None) -> leak (with_null G) s aim <= λ) ->
  Rabs (null_layer α - torch_conv zeros axes in_g out_g weight bias X o c) <= 2 * B * λ * Σw.
Proof.
  intros Hα HB HX Hλ; rewrite (geometry_conv zeros axes g) by assumption; unfold null_layer, attend_null.
  match goal with |- Rabs (?b + ?x - (?b' + ?y)) <= _ =>
    change b with b'; replace (b' + x - (b' + y)) with (x - y) by ring end.
  unfold Σw; change (heads _) with (taps axes); rewrite <- sum_minus, <- sum_scal.
  eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros j Ij.
  pose proof (length_tap j Ij) as Lj; pose proof (length_shift axes j Lj) as Ls.
  change (W_val _) with (block_diagonal in_g out_g weight j); change (W_out _) with identity.
  change (D_h _) with (g * out_g)%nat; change (D_in _) with (g * in_g)%nat.
  rewrite row_times_identity by exact channel; apply row_times_error; intros i Hi.
  rewrite query_shift, continued_zeros by (apply length_read; [exact length_o|exact Lj]).
  rewrite <- input_query_shift by (exact length_o || exact Lj).
  apply (null_read (length axes) (g * in_g) (g * out_g) _ (taps axes) (shift axes) (block_diagonal in_g out_g weight) bias);
    auto; try apply positions_ranges.
  apply (Hλ j Ij _ (add (input_query axes o) (shift axes j))); reflexivity.
Qed.

(** Finite α: the error does not grow with the image. *)
Theorem null_token α B : 0 < α -> 0 <= B -> bounded (g * in_g) B (input_grid axes) X ->
  Rabs (null_layer α - torch_conv zeros axes in_g out_g weight bias X o c) <= 2 * B * null_leakage α (length axes) * Σw.
Proof.
  intros Hα HB HX; apply null_layer_error; try assumption; intros j Ij G t s aim -> -> -> ->.
  apply (null_leak (length axes) (g * in_g) (g * out_g) _ (taps axes) (shift axes)); auto; [apply positions_ranges|].
  apply length_shift, length_tap, Ij.
Qed.

(** Finite α, by the number of tokens. *)
Theorem null_token_count α B : 0 < α -> 0 <= B -> bounded (g * in_g) B (input_grid axes) X ->
  Rabs (null_layer α - torch_conv zeros axes in_g out_g weight bias X o c) <=
  2 * B * (INR (length (input_grid axes)) * exp (- (α / 2))) * Σw.
Proof.
  intros Hα HB HX; apply null_layer_error; try assumption; intros j Ij G t s aim -> -> -> ->.
  apply (null_leak_count (length axes) (g * in_g) (g * out_g) _ (taps axes) (shift axes)); auto; [apply positions_ranges|].
  apply length_shift, length_tap, Ij.
Qed.

(** α → ∞: on the bare image with the null token the construction computes the zero-padded convolution. *)
Theorem null_token_limit B : 0 <= B -> bounded (g * in_g) B (input_grid axes) X ->
  is_lim null_layer p_infty (torch_conv zeros axes in_g out_g weight bias X o c).
Proof.
  intros HB HX; set (y := torch_conv zeros axes in_g out_g weight bias X o c).
  set (K := 2 * B * INR (length (input_grid axes)) * Σw).
  assert (E : is_lim (fun α => exp (- (α / 2))) p_infty 0).
  { apply (is_lim_comp (fun y => exp (- y)) (fun α => α / 2) p_infty 0 p_infty);
      [exact is_lim_exp_opp| |exists 0; intros; discriminate].
    intros Q [M HM]; exists (2 * M); intros α Hα; apply HM; lra. }
  assert (P : is_lim (fun α => K * exp (- (α / 2))) p_infty 0).
  { replace (Finite 0) with (Rbar_mult K 0) by (simpl; f_equal; ring); apply (is_lim_scal_l _ K p_infty 0), E. }
  assert (D : is_lim (fun α => null_layer α - y) p_infty 0).
  { apply (is_lim_le_le_loc (fun α => - (K * exp (- (α / 2)))) (fun α => K * exp (- (α / 2)))).
    - exists 0; intros α Hα; pose proof (null_token_count α B Hα HB HX) as N; fold y in N.
      apply Rabs_le_between in N; unfold K; split; lra.
    - replace (Finite 0) with (Rbar_opp 0) by (simpl; f_equal; ring); apply is_lim_opp, P.
    - exact P. }
  apply is_lim_ext with (fun α => (null_layer α - y) + y); [intros; ring|].
  replace (Finite y) with (Finite (0 + y)) by (f_equal; ring).
  apply (is_lim_plus' _ (fun _ => y)); [exact D|apply is_lim_const].
Qed.

End Layer.

(** * sparsemax *)

(** The sum of squared distances that sparsemax minimises over weights p. *)
Definition squared_distance {A} (G : list A) (p z : A -> R) : R := sum G (fun k => (p k - z k) * (p k - z k)).

(** With a gap of at least 1 the one-hot weights are nearest to the scores, and the only ones: sparsemax is one-hot. *)
Theorem sparsemax_one_hot {A} (G : list A) (z p e : A -> R) k0 : NoDup G -> In k0 G ->
  (forall k, In k G -> k <> k0 -> 1 <= z k0 - z k) ->
  (forall k, In k G -> 0 <= p k) -> sum G p = 1 ->
  e k0 = 1 -> (forall k, In k G -> k <> k0 -> e k = 0) ->
  squared_distance G e z + (1 - p k0) * (1 - p k0) <= squared_distance G p z.
Proof.
  intros N I gap nonneg total E1 E0; unfold squared_distance.
  destruct (sum_split G k0 (fun k => (e k - z k) * (e k - z k)) I) as (G' & P & ->).
  rewrite (sum_permutation _ _ (fun k => (p k - z k) * (p k - z k)) P), sum_cons.
  rewrite (sum_permutation _ _ p P), sum_cons in total.
  assert (D : forall k, In k G' -> In k G /\ k <> k0).
  { intros k Ik; split; [apply (Permutation_in k (Permutation_sym P)); right; exact Ik|].
    intros ->; apply (Permutation_NoDup P) in N; inversion N; contradiction. }
  assert (S : sum G' (fun k => (e k - z k) * (e k - z k)) + 2 * (1 - z k0) * sum G' p <=
    sum G' (fun k => (p k - z k) * (p k - z k))).
  { rewrite <- sum_scal, <- sum_plus; apply sum_le; intros k Ik; destruct (D k Ik) as [Ik' Dk].
    rewrite (E0 k Ik' Dk); pose proof (gap k Ik' Dk); pose proof (nonneg k Ik'); nra. }
  rewrite E1; nra.
Qed.
