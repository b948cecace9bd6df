(** Theorem 1: a multi-head self-attention layer computes any convolution.

    Statements, for any dimension d, any finite grid G of tokens, any kernel of finite support Δ,
    and every query q all of whose targets q + τ are tokens of G:
      lemma1             under assumption (9) and with W_val W_out = W, the layer is the convolution
      theorem1           there is a layer with |Δ| heads, D_h = D_out and D_p = d + 1 that tends
                         to the convolution as its sharpness α tends to infinity
      theorem1_paper     the same in the paper's dimensions: any D_h, D_out and D_p ≥ d + 1, and the
                         min(D_h, D_out) output channels of the convolution
      narrow_heads       D_h = min(D_in, D_out) is enough: the tap may be in W_val or in W_out
      theorem1_limit     the same for heads numbered by any type, f a bijection onto the kernel's taps
      theorem1_finite    |MHSA(X) − Conv(X)| ≤ 2·B·leak·Σ|W| at channel j, for |X| ≤ B
      theorem1_count     … with leak = (N − 1) e^{−α}
      theorem1_theta     … with leak = 1 − ϑ(α)^{−d}
      theorem1_closed    … with leak = 2 d e^{−α}
      theorem1_uniform   for every ε and B one layer is within ε of the convolution, for every grid
                         of every size and every X with |X| ≤ B
      theorem1_parabola  D_p = 2 is enough in every dimension *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Leakage Layers Limits.
Import ListNotations.
Open Scope R_scope.

(** The absolute sum of the weights into output channel j: Σ_τ Σ_i |W_τ,ij|. *)
Definition weight_sum (d_in : nat) (Δ : list position) (W : position -> matrix) (j : nat) : R :=
  sum Δ (fun τ => column_sum d_in (W τ) j).

(** * One head *)

(** W_val W_out = W(h) for a layer whose W_out is the identity. *)
Lemma value_output_positional {H} d_p d_in d_out r_ (hs : list H) v_ W b h i j : (j < d_out)%nat ->
  value_output (positional d_p d_in d_out r_ hs v_ W b) h i j = W h i j.
Proof. intros Hj; unfold value_output; apply row_times_identity; exact Hj. Qed.

(** Eq. 3 for such a layer. *)
Lemma attend_positional {H} d_p d_in d_out r_ (hs : list H) v_ W b G X q j : (j < d_out)%nat ->
  let L := positional d_p d_in d_out r_ hs v_ W b in
  attend L G X q j =
  b j + sum hs (fun h => row_times d_in (fun i => sum G (fun k => attention L G h X q k * X k i)) (W h) j).
Proof.
  intros Hj L; unfold attend; f_equal; apply sum_ext; intros h _; simpl.
  rewrite row_times_identity by exact Hj; reflexivity.
Qed.

(** For any encoding: if every head leaks at most λ, the layer's error is at most 2·B·λ·Σ|W|. *)
Lemma positional_error {H} d_p d_in d_out r_ (hs : list H) v_ W b (t : H -> position) G X q j B λ :
  (j < d_out)%nat -> bounded d_in B G X -> (forall h, In h hs -> In (t h) G) ->
  let L := positional d_p d_in d_out r_ hs v_ W b in
  (forall h, In h hs -> 1 - attention L G h X q (t h) <= λ) ->
  Rabs (attend L G X q j - (b j + sum hs (fun h => row_times d_in (X (t h)) (W h) j))) <=
  2 * B * λ * sum hs (fun h => column_sum d_in (W h) j).
Proof.
  intros Hj HB T L Hλ; pose proof (layer_error L t G X q j B (fun _ => λ) HB T Hλ) as E.
  cbv beta in E; rewrite (sum_scal (heads L) λ), <- Rmult_assoc in E.
  assert (V : forall h, In h hs -> forall i, value_output L h i j = W h i j).
  { intros h _ i; apply value_output_positional; exact Hj. }
  rewrite <- (sum_ext hs (fun h => column_sum d_in (value_output L h) j) (fun h => column_sum d_in (W h) j)).
  - rewrite <- (sum_ext hs (fun h => row_times d_in (X (t h)) (value_output L h) j)
      (fun h => row_times d_in (X (t h)) (W h) j)); [exact E|].
    intros h Ih; apply sum_ext; intros i _; rewrite (V h Ih); reflexivity.
  - intros h Ih; apply sum_ext; intros i _; rewrite (V h Ih); reflexivity.
Qed.

(** With a bijection f of the heads onto the taps, the heads' sum is the convolution (Eq. 8). *)
Lemma heads_conv {H} d_in (hs : list H) (f : H -> position) Δ W b X q j : Permutation (map f hs) Δ ->
  b j + sum hs (fun h => row_times d_in (X (add q (f h))) (W (f h)) j) = conv d_in Δ W b X q j.
Proof.
  intros P; unfold conv; f_equal; rewrite <- (sum_permutation _ _ _ P), sum_map; reflexivity.
Qed.

(** Lemma 1: under assumption (9), where head h gives its weight P_h(k) = 1 to k = q + f(h) and 0 to the others, and
    W_val^h W_out^h is the tap W(f(h)), the layer is the convolution. *)
Theorem lemma1 {H} d_in d_h (hs : list H) (f : H -> position) (P : H -> position -> R) (V O : H -> matrix) Δ W b G X q j :
  Permutation (map f hs) Δ -> NoDup G -> targets_on G q Δ ->
  (forall h k, In h hs -> In k G -> P h k = if position_eq_dec k (add q (f h)) then 1 else 0) ->
  (forall h i, In h hs -> (i < d_in)%nat -> row_times d_h (V h i) (O h) j = W (f h) i j) ->
  b j + sum hs (fun h => row_times d_h (row_times d_in (fun i => sum G (fun k => P h k * X k i)) (V h)) (O h) j) =
  conv d_in Δ W b X q j.
Proof.
  intros B N T HP HW; rewrite <- (heads_conv d_in hs f Δ W b X q j B); f_equal; apply sum_ext; intros h Ih.
  assert (In (add q (f h)) G) as It by (apply T, (Permutation_in _ B), in_map, Ih).
  rewrite row_times_assoc; apply sum_below_ext; intros i Hi; rewrite (HW h i Ih Hi); f_equal.
  rewrite (sum_single G (add q (f h)) _ N It).
  - rewrite (HP h _ Ih It); destruct (position_eq_dec (add q (f h)) (add q (f h))); [ring|congruence].
  - intros k Ik D; rewrite (HP h k Ih Ik); destruct (position_eq_dec k (add q (f h))); [congruence|ring].
Qed.

Lemma heads_weight_sum {H} d_in (hs : list H) (f : H -> position) Δ W j : Permutation (map f hs) Δ ->
  sum hs (fun h => column_sum d_in (W (f h)) j) = weight_sum d_in Δ W j.
Proof. intros P; unfold weight_sum; rewrite <- (sum_permutation _ _ _ P), sum_map; reflexivity. Qed.

(** Where every head's attention to one token t(h) tends to 1, the layer tends to the sum over heads. *)
Lemma positional_limit {H} d_p d_in d_out r_ (hs : list H) (v_ : R -> H -> vector) W b (t : H -> position) G X q j :
  (j < d_out)%nat -> NoDup G -> (forall h, In h hs -> In (t h) G) ->
  let L := fun α => positional d_p d_in d_out r_ hs (v_ α) W b in
  (forall h, In h hs -> forall k, In k G ->
     is_lim (fun α => attention (L α) G h X q k) p_infty (Finite (if position_eq_dec k (t h) then 1 else 0))) ->
  is_lim (fun α => attend (L α) G X q j) p_infty (b j + sum hs (fun h => row_times d_in (X (t h)) (W h) j)).
Proof.
  intros Hj N T L lim.
  apply (layer_limit L hs d_in W (b j) t); [intros; repeat split| |exact N|exact T|exact lim].
  intros α h i _ _; apply value_output_positional; exact Hj.
Qed.

(** * The construction's heads, with any shifts *)

Section Heads.
Context {H : Type}.
Variables (d d_in d_out : nat) (hs : list H) (f : H -> position) (W : H -> matrix) (b : vector).
Variables (G : list position) (X : image) (q : position) (j : nat).
Hypotheses (f_d : forall h, In h hs -> length (f h) = d).
Hypotheses (G_d : positions d G) (q_d : length q = d) (j_out : (j < d_out)%nat).
Hypothesis target : forall h, In h hs -> In (add q (f h)) G.

Let L α : layer H := construction d d_in d_out α hs f W b.
Let heads_sum : R := b j + sum hs (fun h => row_times d_in (X (add q (f h))) (W h) j).

(** α → ∞: MHSA(X)_q = b + Σ_h X_{q+τ_h} W_h. *)
Theorem heads_limit : is_lim (fun α => attend (L α) G X q j) p_infty heads_sum.
Proof.
  apply (positional_limit (S d) d_in d_out r_quadratic hs (fun α h => v_quadratic α (f h)) W b (fun h => add q (f h)));
    [exact j_out|apply G_d|exact target|].
  intros h Ih k Ik.
  destruct (softmax_limit G (fun α k => score (L α) h X q k) (add q (f h))) as [L1 L0]; [apply G_d|apply target, Ih| |].
  - intros α k' Hα Ik' D; apply target_gap with (G := G); auto; lra.
  - destruct (position_eq_dec k (add q (f h))) as [->|D]; [exact L1|apply L0; assumption].
Qed.

(** Finite α: where every head leaks at most λ, the error is at most 2·B·λ·Σ|W|. *)
Theorem heads_finite α B λ : bounded d_in B G X ->
  (forall h, In h hs -> 1 - attention (L α) G h X q (add q (f h)) <= λ) ->
  Rabs (attend (L α) G X q j - heads_sum) <= 2 * B * λ * sum hs (fun h => column_sum d_in (W h) j).
Proof.
  intros HB Hλ.
  apply (positional_error (S d) d_in d_out r_quadratic hs (fun h => v_quadratic α (f h)) W b (fun h => add q (f h)));
    [exact j_out|exact HB|exact target|exact Hλ].
Qed.

Corollary heads_closed α B : 0 < α -> bounded d_in B G X ->
  Rabs (attend (L α) G X q j - heads_sum) <=
  2 * B * (2 * INR d * exp (- α)) * sum hs (fun h => column_sum d_in (W h) j).
Proof. intros Hα HB; apply heads_finite; [exact HB|]; intros h Ih; apply leak_closed; auto. Qed.

End Heads.

(** * Theorem 1 *)

Section Theorem1.
Context {H : Type}.
Variables (d d_in d_out : nat) (hs : list H) (f : H -> position).
Variables (Δ : list position) (W : position -> matrix) (b : vector).
Variables (G : list position) (X : image) (q : position) (j : nat).
(** The heads stand for the taps, one to one. *)
Hypotheses (Δ_d : positions d Δ) (bijection : Permutation (map f hs) Δ).
Hypotheses (G_d : positions d G) (q_d : length q = d) (targets : targets_on G q Δ) (j_out : (j < d_out)%nat).

Let L α : layer H := construction d d_in d_out α hs f (fun h => W (f h)) b.

Let target h : In h hs -> In (add q (f h)) G.
Proof. intros Ih; apply targets, (Permutation_in _ bijection), in_map, Ih. Qed.

Let length_f h : In h hs -> length (f h) = d.
Proof.
  intros Ih; destruct Δ_d as [_ F]; rewrite Forall_forall in F; apply F, (Permutation_in _ bijection), in_map, Ih.
Qed.

(** The limit α → ∞: MHSA(X)_q = Conv(X)_q. *)
Theorem theorem1_limit : is_lim (fun α => attend (L α) G X q j) p_infty (conv d_in Δ W b X q j).
Proof.
  rewrite <- (heads_conv d_in hs f Δ W b X q j bijection).
  apply (heads_limit d d_in d_out hs f (fun h => W (f h))); assumption.
Qed.

(** Finite α: where every head leaks at most λ, |MHSA(X) − Conv(X)| ≤ 2·B·λ·Σ|W|. *)
Theorem theorem1_finite α B λ : bounded d_in B G X ->
  (forall h, In h hs -> 1 - attention (L α) G h X q (add q (f h)) <= λ) ->
  Rabs (attend (L α) G X q j - conv d_in Δ W b X q j) <= 2 * B * λ * weight_sum d_in Δ W j.
Proof.
  rewrite <- (heads_conv d_in hs f Δ W b X q j bijection), <- (heads_weight_sum d_in hs f Δ W j bijection).
  apply (heads_finite d d_in d_out hs f (fun h => W (f h))); assumption.
Qed.

(** The leak by the number N of tokens, by ϑ, and in closed form. *)
Corollary theorem1_count α B : 0 <= α -> bounded d_in B G X ->
  Rabs (attend (L α) G X q j - conv d_in Δ W b X q j) <=
  2 * B * ((INR (length G) - 1) * exp (- α)) * weight_sum d_in Δ W j.
Proof. intros Hα HB; apply theorem1_finite; [exact HB|]; intros h Ih; apply leak_count; auto. Qed.

Corollary theorem1_theta α B : 0 < α -> bounded d_in B G X ->
  Rabs (attend (L α) G X q j - conv d_in Δ W b X q j) <= 2 * B * (1 - / theta α ^ d) * weight_sum d_in Δ W j.
Proof. intros Hα HB; apply theorem1_finite; [exact HB|]; intros h Ih; apply leak_theta; auto. Qed.

Corollary theorem1_closed α B : 0 < α -> bounded d_in B G X ->
  Rabs (attend (L α) G X q j - conv d_in Δ W b X q j) <= 2 * B * (2 * INR d * exp (- α)) * weight_sum d_in Δ W j.
Proof. intros Hα HB; apply theorem1_finite; [exact HB|]; intros h Ih; apply leak_closed; auto. Qed.

End Theorem1.

(** Theorem 1 of the paper: for every kernel there is a layer (one for every sharpness α) with as many
    heads as taps, D_h = D_out and a relative positional encoding of D_p = d + 1 components, that
    computes the convolution in the limit α → ∞: for every grid, image, query and output channel. *)
Theorem theorem1 d d_in d_out Δ W b : positions d Δ ->
  exists L : R -> layer position,
    (forall α, length (heads (L α)) = length Δ /\ D_in (L α) = d_in /\ D_out (L α) = d_out /\
               D_h (L α) = D_out (L α) /\ D_p (L α) = S d) /\
    forall G X q j, positions d G -> length q = d -> targets_on G q Δ -> (j < d_out)%nat ->
    is_lim (fun α => attend (L α) G X q j) p_infty (conv d_in Δ W b X q j).
Proof.
  intros Δ_d; exists (fun α => construction d d_in d_out α Δ (fun τ => τ) W b); split.
  - intros α; repeat split.
  - intros G X q j G_d q_d T Hj.
    apply (theorem1_limit d d_in d_out Δ (fun τ => τ)); try assumption; rewrite map_id; apply Permutation_refl.
Qed.

(** A sum whose terms are zero from m on. *)
Lemma sum_below_truncate n m f : (m <= n)%nat -> (forall i, (m <= i)%nat -> f i = 0) -> sum_below n f = sum_below m f.
Proof.
  intros Hm Z; unfold sum_below; replace n with (m + (n - m))%nat by lia; rewrite seq_app, sum_app.
  rewrite (sum_zero (seq (0 + m) (n - m))); [ring|]; intros i Hi; apply Z; apply in_seq in Hi; lia.
Qed.

(** The construction in a layer with room to spare: D_p and D_k at least d + 1, any D_h and D_out; the
    first c output channels are the convolution's. *)
Definition roomy (d d_in d_k d_p d_h d_out c : nat) (α : R) (Δ : list position) (W : position -> matrix) (b : vector) :
    layer position := {|
  D_in := d_in; D_k := d_k; D_p := d_p; D_h := d_h; D_out := d_out;
  heads := Δ;
  parameters := fun τ => {|
    W_qry := zero_matrix; W_key := zero_matrix; W_key_pos := identity;
    u := fun _ => 0; v := fun i => if (i <? S d)%nat then v_quadratic α τ i else 0;
    W_val := fun i a => if (a <? c)%nat then W τ i a else 0; W_out := identity |};
  r := fun δ i => if (i <? S d)%nat then r_quadratic δ i else 0;
  b_out := b |}.

(** Theorem 1 in the paper's own dimensions: N_h = |Δ| heads of any dimension D_h, any output dimension
    D_out and any D_p ≥ d + 1 (the paper's 3, in two dimensions) express every convolution of
    min(D_h, D_out) output channels. *)
Theorem theorem1_paper d d_in d_k d_p d_h d_out Δ W b :
  positions d Δ -> (S d <= d_k)%nat -> (S d <= d_p)%nat ->
  exists L : R -> layer position,
    (forall α, length (heads (L α)) = length Δ /\ D_in (L α) = d_in /\ D_k (L α) = d_k /\ D_p (L α) = d_p /\
               D_h (L α) = d_h /\ D_out (L α) = d_out) /\
    forall G X q j, positions d G -> length q = d -> targets_on G q Δ -> (j < Nat.min d_h d_out)%nat ->
    is_lim (fun α => attend (L α) G X q j) p_infty (conv d_in Δ W b X q j).
Proof.
  intros Δ_d Hk Hp; set (c := Nat.min d_h d_out).
  exists (fun α => roomy d d_in d_k d_p d_h d_out c α Δ W b); split; [intros α; repeat split|].
  intros G X q j G_d q_d T Hj.
  apply is_lim_ext with (fun α => attend (construction d d_in c α Δ (fun τ => τ) W b) G X q j).
  2: apply (theorem1_limit d d_in c Δ (fun τ => τ)); try assumption; rewrite map_id; apply Permutation_refl.
  intros α; set (L := roomy d d_in d_k d_p d_h d_out c α Δ W b).
  unfold construction; rewrite attend_positional by exact Hj; rewrite attend_heads; simpl; f_equal.
  apply sum_ext; intros τ _.
  assert (S : forall k, score L τ X q k = dot (S d) (v_quadratic α τ) (r_quadratic (sub k q))).
  { intros k; rewrite read_back by (split; [|left]; reflexivity); unfold dot; rewrite (sum_below_truncate _ (S d)); [|exact Hp|].
    - apply sum_below_ext; intros i Hi; change (D_k L) with d_k; change (W_key_pos (parameters L τ)) with identity.
      rewrite row_times_identity by lia; simpl; rewrite (proj2 (Nat.ltb_lt i (S d))) by exact Hi; reflexivity.
    - intros i Hi; simpl; rewrite (proj2 (Nat.ltb_ge i (S d))) by exact Hi; ring. }
  unfold row_times at 1 2; apply sum_below_ext; intros i _; f_equal.
  - apply sum_ext; intros k Ik; f_equal; apply softmax_ext; [|exact Ik].
    intros k' _; rewrite S, score_positional; reflexivity.
  - unfold value_output; change (W_out (parameters L τ)) with identity; change (D_h L) with d_h.
    rewrite row_times_identity by lia; simpl; rewrite (proj2 (Nat.ltb_lt j c)) by exact Hj; reflexivity.
Qed.

(** The construction with the tap in W_out: W_val = I, W_out = W(τ), D_h = D_in. *)
Definition tap_in_W_out (d d_in d_out : nat) (α : R) (Δ : list position) (W : position -> matrix) (b : vector) :
    layer position := {|
  D_in := d_in; D_k := S d; D_p := S d; D_h := d_in; D_out := d_out;
  heads := Δ;
  parameters := fun τ => {|
    W_qry := zero_matrix; W_key := zero_matrix; W_key_pos := identity;
    u := fun _ => 0; v := v_quadratic α τ;
    W_val := identity; W_out := W τ |};
  r := r_quadratic;
  b_out := b |}.

(** It is the same layer at every α, so that D_h = min(D_in, D_out) is enough for all D_out channels. *)
Theorem narrow_heads d d_in d_out α Δ W b G X q j : (j < d_out)%nat ->
  attend (tap_in_W_out d d_in d_out α Δ W b) G X q j = attend (construction d d_in d_out α Δ (fun τ => τ) W b) G X q j.
Proof.
  intros Hj; rewrite !attend_heads; simpl; f_equal; apply sum_ext; intros τ _; apply sum_below_ext; intros i Hi.
  f_equal; unfold construction; rewrite value_output_positional by exact Hj; unfold value_output; simpl.
  rewrite <- (times_column_identity d_in (fun a => W τ a j) i Hi); reflexivity.
Qed.

(** One layer for all grids: for every ε > 0 and B there is a sharpness from which on the layer is within
    ε of the convolution, whatever the size of the grid, for every X with |X| ≤ B. *)
Theorem theorem1_uniform d d_in d_out Δ W b ε B : positions d Δ -> 0 < ε -> 0 <= B ->
  exists α0, forall α, α0 <= α -> forall G X q j,
    positions d G -> length q = d -> targets_on G q Δ -> (j < d_out)%nat -> bounded d_in B G X ->
    Rabs (attend (construction d d_in d_out α Δ (fun τ => τ) W b) G X q j - conv d_in Δ W b X q j) <= ε.
Proof.
  intros Δ_d Hε HB.
  set (S := sum_below d_out (weight_sum d_in Δ W)); set (C := 1 + 4 * B * INR d * S).
  assert (W0 : forall j, 0 <= weight_sum d_in Δ W j).
  { intros j; unfold weight_sum, column_sum, sum_below; repeat (apply sum_nonneg; intros); apply Rabs_pos. }
  assert (S0 : 0 <= S) by (apply sum_nonneg; intros; apply W0).
  pose proof (pos_INR d) as Hd.
  assert (P1 : 0 <= B * INR d) by (apply Rmult_le_pos; assumption).
  assert (P2 : 0 <= B * INR d * S) by (apply Rmult_le_pos; assumption).
  assert (C0 : 0 < C) by (unfold C; lra).
  exists (Rmax 1 (ln (C / ε))); intros α Hα G X q j G_d q_d T Hj HX.
  pose proof (Rmax_l 1 (ln (C / ε))); pose proof (Rmax_r 1 (ln (C / ε))).
  eapply Rle_trans.
  - apply (theorem1_closed d d_in d_out Δ (fun τ => τ)); try eassumption; [|lra].
    rewrite map_id; apply Permutation_refl.
  - assert (E : exp (- α) <= ε / C).
    { replace (ε / C) with (exp (- ln (C / ε))); [apply exp_monotone; lra|].
      rewrite exp_Ropp, exp_ln by (apply Rdiv_lt_0_compat; assumption); field; lra. }
    assert (Wj : weight_sum d_in Δ W j <= S).
    { unfold S, sum_below; destruct (sum_split (seq 0 d_out) j (weight_sum d_in Δ W)) as (l & _ & ->); [apply in_seq; lia|].
      assert (0 <= sum l (weight_sum d_in Δ W)) by (apply sum_nonneg; intros; apply W0); lra. }
    pose proof (exp_pos (- α)) as E0.
    replace (2 * B * (2 * INR d * exp (- α)) * weight_sum d_in Δ W j) with
      (exp (- α) * (4 * (B * INR d) * weight_sum d_in Δ W j)) by ring.
    apply Rle_trans with (ε / C * C); [|right; field; lra].
    specialize (W0 j); assert (B * INR d * weight_sum d_in Δ W j <= B * INR d * S) by (apply Rmult_le_compat_l; assumption).
    assert (0 <= B * INR d * weight_sum d_in Δ W j) by (apply Rmult_le_pos; assumption).
    apply Rmult_le_compat; try lra; unfold C; lra.
Qed.

(** D_p = 2: with the parabola on a mixed radix number that has room for the grid, the same limit. *)
Theorem theorem1_parabola d d_in d_out Δ W b m G X q j : positions d Δ -> positions d G -> length q = d ->
  targets_on G q Δ -> (j < d_out)%nat ->
  (forall k τ, In k G -> In τ Δ -> room m (sub (sub k q) τ)) ->
  is_lim (fun α => attend (positional 2 d_in d_out (r_parabola m) Δ (v_parabola α m) W b) G X q j)
    p_infty (conv d_in Δ W b X q j).
Proof.
  intros Δ_d G_d q_d T Hj R.
  apply (positional_limit 2 d_in d_out (r_parabola m) Δ (fun α => v_parabola α m) W b (add q));
    [exact Hj|apply G_d|exact T|].
  intros τ Iτ k Ik; destruct Δ_d as [_ Fτ], G_d as [N FG]; rewrite Forall_forall in Fτ, FG.
  destruct (softmax_limit G (fun α k => score (positional 2 d_in d_out (r_parabola m) Δ (v_parabola α m) W b) τ X q k)
    (add q τ)) as [L1 L0]; [exact N|apply T, Iτ| |].
  - intros α k' Hα Ik' D; rewrite !score_positional, (sub_add τ q) by (rewrite (Fτ τ Iτ); congruence).
    apply parabola_score_gap; [lra| |apply R; assumption|].
    + rewrite length_sub, (FG _ Ik'), (Fτ _ Iτ) by (rewrite (FG _ Ik'); congruence); reflexivity.
    + intros E; apply D; rewrite <- E, add_sub by (rewrite (FG _ Ik'); congruence); reflexivity.
  - destruct (position_eq_dec k (add q τ)) as [->|D]; [exact L1|apply L0; assumption].
Qed.
