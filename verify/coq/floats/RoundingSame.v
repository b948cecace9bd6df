(** The rounding of a layer whose heads sum to exactly the kernel's taps: a bound from three sums.

    One output channel j, sharp heads (λ_h = 0), n_v and n_o the most products in a value and in the output, and
      C = Σ_τ Σ_c |W_τ|,   M = Σ_h Σ_i |W_out^h_{i,j}|·Σ_c |W_val^h_{c,i}|,   O = Σ_h Σ_i |W_out^h_{i,j}|.
    Where W_val W_out is formed first, n_v is the most products in an entry of it, O is B times the number of its entries
    that are not zero, and n_o that number and one.  The number of tokens does not matter.  Statements:
      same_rounding      |fl(MHSA(X)) − fl(Conv(X))| ≤ [same_figure], for every evaluation of the two, head by head
      same_rounding_shifted  the same where W_val W_out is formed first and X shifted, as runs by default
      one_sum_rounding   and where one factor is the identity: the rounding of two sums, no more
      z_same_value       the value of [z_same], which is computed in integers, is [same_figure] *)

From Coq Require Import Reals ZArith List Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums RoundingTree RoundingDot RoundingHead RoundingTaps RoundingLayer.
From Attention Require Import FloatSoftmax RoundingWeights RoundingDyadic.
Import ListNotations.
Open Scope R_scope.

(** The rounding of the convolution, of the values (times W_out) or of W_val W_out (times X), V, and of the last sum. *)
Definition same_figure (emin prec : Z) (n_conv n_v n_o : nat) (B b C M O : R) : R :=
  let V := INR n_v * roundoff prec * (M * B) + INR n_v * half_eta emin * (1 + INR n_v * roundoff prec) * O in
  dot_bound emin prec n_conv (Rabs b + C * B) + V + dot_bound emin prec n_o (Rabs b + M * B + V).

(** The same in integers. *)
Definition z_same (emin prec n_conv n_v n_o : Z) (B b C M O : dyadic) : dyadic :=
  let nu := Dyadic n_v (- prec) in
  let V := z_add (z_mul nu (z_mul M B)) (z_mul (z_mul (Dyadic n_v (emin - 1)) (z_add (z_of 1) nu)) O) in
  z_add (z_add (z_dot_bound emin prec n_conv (z_add (z_abs b) (z_mul C B))) V)
    (z_dot_bound emin prec n_o (z_add (z_add (z_abs b) (z_mul M B)) V)).

Theorem z_same_value emin prec n_conv n_v n_o B b C M O :
  value (z_same emin prec (Z.of_nat n_conv) (Z.of_nat n_v) (Z.of_nat n_o) B b C M O)
  = same_figure emin prec n_conv n_v n_o (value B) (value b) (value C) (value M) (value O).
Proof.
  unfold z_same, same_figure; cbv zeta.
  rewrite !value_add, !value_dot_bound; repeat rewrite ?value_add, ?value_mul, ?value_abs, ?value_of.
  assert (U : value (Dyadic (Z.of_nat n_v) (- prec)) = INR n_v * roundoff prec).
  { unfold value; simpl; rewrite <- INR_IZR_INZ; reflexivity. }
  assert (E : value (Dyadic (Z.of_nat n_v) (emin - 1)) = INR n_v * half_eta emin).
  { unfold value; simpl; rewrite <- INR_IZR_INZ; reflexivity. }
  rewrite U, E; reflexivity.
Qed.

Section Figure.
Variables emin prec : Z.
Context {prec_positive : Prec_gt_0 prec}.

Lemma same_figure_covers o N n_conv n_v n_o B b ws cols C M O : 0 <= B ->
  (forall c, In c cols -> row_leak c = 0 /\ (support (in_weights c) <= n_v)%nat) ->
  (support (b :: ws) <= n_conv)%nat -> (support (b :: map out_weight cols) <= n_o)%nat ->
  weight ws <= C -> sum cols (fun c => Rabs (out_weight c) * weight (in_weights c)) <= M ->
  sum cols (fun c => Rabs (out_weight c)) <= O ->
  rounding_figure emin prec o N B b ws b cols <= same_figure emin prec n_conv n_v n_o B b C M O.
Proof.
  intros HB Hc Nc No Wc HM HO; unfold rounding_figure, same_figure; cbv zeta.
  assert (U := @roundoff_positive prec); assert (Hh := @half_eta_positive emin); assert (Pn := pos_INR n_v).
  assert (Pw := fun c : column R => Rabs_pos (out_weight c)).
  assert (Pi := fun c : column R => weight_nonneg (in_weights c)).
  set (M' := sum cols (fun c => Rabs (out_weight c) * weight (in_weights c))) in *.
  set (O' := sum cols (fun c => Rabs (out_weight c))) in *.
  assert (M0 : 0 <= M') by (apply sum_nonneg; intros; apply Rmult_le_pos; auto).
  assert (O0 : 0 <= O') by (apply sum_nonneg; intros; auto).
  assert (MB : 0 <= M' * B <= M * B) by (split; [apply Rmult_le_pos|apply Rmult_le_compat_r]; assumption).
  assert (WB : 0 <= weight ws * B <= C * B).
  { split; [apply Rmult_le_pos; [apply weight_nonneg|]|apply Rmult_le_compat_r]; assumption. }
  assert (nu : 0 <= INR n_v * roundoff prec) by (apply Rmult_le_pos; lra).
  assert (nh : 0 <= INR n_v * half_eta emin * (1 + INR n_v * roundoff prec)).
  { apply Rmult_le_pos; [apply Rmult_le_pos|]; lra. }
  set (V := INR n_v * roundoff prec * (M * B) + INR n_v * half_eta emin * (1 + INR n_v * roundoff prec) * O).
  assert (E : forall c, In c cols ->
    0 <= head_rounding emin prec o N B (row_leak c) (in_weights c) <= dot_bound emin prec n_v (weight (in_weights c) * B)).
  { intros c Ic; destruct (Hc c Ic) as [-> Nv].
    assert (W : 0 <= weight (in_weights c) * B) by (apply Rmult_le_pos; auto).
    replace (head_rounding _ _ _ _ _ _ _) with (dot_bound emin prec (support (in_weights c)) (weight (in_weights c) * B)).
    - split; [apply dot_bound_nonneg, W|apply dot_bound_monotone; [exact Nv|exact W|apply Rle_refl]].
    - unfold head_rounding, mixing; destruct (Req_EM_T 0 0); [|congruence]; cbv zeta; destruct o; [ring|].
      rewrite Rmult_0_r, Rplus_0_l; f_equal; ring. }
  assert (HV : sum cols (fun c => Rabs (out_weight c) * head_rounding emin prec o N B (row_leak c) (in_weights c)) <= V).
  { apply Rle_trans with (INR n_v * roundoff prec * (M' * B)
      + INR n_v * half_eta emin * (1 + INR n_v * roundoff prec) * O').
    - unfold M', O'; rewrite <- sum_scal_r, <- !sum_scal, <- sum_plus; apply sum_le; intros c Ic.
      eapply Rle_trans; [apply Rmult_le_compat_l; [apply Pw|apply E, Ic]|]; unfold dot_bound; lra.
    - unfold V; apply Rplus_le_compat; apply Rmult_le_compat_l; try assumption; apply MB. }
  assert (Ab := Rabs_pos b); destruct MB, WB.
  assert (A0 : sum cols (fun c => Rabs (out_weight c) * ((1 + row_leak c) * (weight (in_weights c) * B)
      + head_rounding emin prec o N B (row_leak c) (in_weights c))) <= M * B + V).
  { apply Rle_trans with (M' * B
      + sum cols (fun c => Rabs (out_weight c) * head_rounding emin prec o N B (row_leak c) (in_weights c))); [|lra].
    unfold M'; rewrite <- sum_scal_r, <- sum_plus; apply Req_le, sum_ext; intros c Ic.
    destruct (Hc c Ic) as [-> _]; ring. }
  apply Rplus_le_compat; [apply Rplus_le_compat; [|exact HV]|]; apply dot_bound_monotone; try assumption; try lra.
  apply Rplus_le_le_0_compat; [exact Ab|]; apply sum_nonneg; intros c Ic; apply Rmult_le_pos; [apply Pw|].
  destruct (E c Ic) as [E0 _]; apply Rplus_le_le_0_compat; [|exact E0]; destruct (Hc c Ic) as [-> _].
  rewrite Rplus_0_r, Rmult_1_l; apply Rmult_le_pos; auto.
Qed.

(** The entry's rounding is that of n_m products, or zero with all of them. *)
Definition entry_bound (n_m : nat) (size : R) : R := if Req_EM_T size 0 then 0 else dot_bound emin prec n_m size.

Lemma sum_entry_bound n_m es : sum es (fun t => entry_bound n_m (entry_size t)) =
  INR n_m * roundoff prec * sum es entry_size
  + INR (support (map entry_size es)) * (INR n_m * half_eta emin * (1 + INR n_m * roundoff prec)).
Proof.
  induction es as [|t es IH]; [unfold sum, support; simpl; ring|]; rewrite !sum_cons, IH; simpl map.
  unfold entry_bound, dot_bound; destruct (support_cons (entry_size t) (map entry_size es)) as [S0 S1].
  destruct (Req_EM_T (entry_size t) 0) as [Z|Z]; [rewrite (S0 Z), Z|rewrite (S1 Z), S_INR]; ring.
Qed.

Lemma same_figure_covers_entries N n_conv n_m n B b ws es C M : 0 <= B ->
  (forall t, In t es -> entry_leak t = 0 /\ 0 <= entry_size t /\ entry_error t = entry_bound n_m (entry_size t)) ->
  (support (b :: ws) <= n_conv)%nat -> (support (map entry_size es) <= n)%nat ->
  weight ws <= C -> sum es entry_size <= M ->
  weights_figure emin prec N B b ws b es <= same_figure emin prec n_conv n_m (S n) B b C M (INR n * B).
Proof.
  intros HB Ht Nc Nn Wc HM; unfold weights_figure, same_figure; cbv zeta.
  assert (U := @roundoff_positive prec); assert (Hh := @half_eta_positive emin); assert (Pn := pos_INR n_m).
  assert (nu : 0 <= INR n_m * roundoff prec) by (apply Rmult_le_pos; lra).
  assert (nh : 0 <= INR n_m * half_eta emin * (1 + INR n_m * roundoff prec)).
  { apply Rmult_le_pos; [apply Rmult_le_pos|]; lra. }
  set (V := INR n_m * roundoff prec * (M * B)
    + INR n_m * half_eta emin * (1 + INR n_m * roundoff prec) * (INR n * B)).
  assert (M0 : 0 <= sum es entry_size) by (apply sum_nonneg; intros t It; apply Ht, It).
  assert (E0 : forall t, In t es -> 0 <= entry_error t).
  { intros t It; destruct (Ht t It) as (_ & S0 & ->); unfold entry_bound; destruct (Req_EM_T _ 0);
      [lra|apply dot_bound_nonneg, S0]. }
  assert (Err : 0 <= sum es entry_error <= INR n_m * roundoff prec * M
    + INR n * (INR n_m * half_eta emin * (1 + INR n_m * roundoff prec))).
  { split; [apply sum_nonneg, E0|].
    rewrite (sum_ext es entry_error (fun t => entry_bound n_m (entry_size t))) by (intros t It; apply Ht, It).
    rewrite sum_entry_bound; apply Rplus_le_compat; [apply Rmult_le_compat_l; assumption|].
    apply Rmult_le_compat_r; [exact nh|apply le_INR, Nn]. }
  assert (mixed : forall t, In t es ->
    mixing emin prec (entry_leak t) N ((1 + entry_leak t) * B) = 0 /\ (1 + entry_leak t) * B = B).
  { intros t It; destruct (Ht t It) as (-> & _); split; [|ring]; unfold mixing; destruct (Req_EM_T 0 0); congruence. }
  assert (HV : sum es (fun t => entry_error t * ((1 + entry_leak t) * B
      + mixing emin prec (entry_leak t) N ((1 + entry_leak t) * B))
    + entry_size t * mixing emin prec (entry_leak t) N ((1 + entry_leak t) * B)) <= V).
  { rewrite (sum_ext es _ (fun t => entry_error t * B)) by
      (intros t It; destruct (mixed t It) as [-> ->]; ring).
    rewrite sum_scal_r; eapply Rle_trans; [apply Rmult_le_compat_r; [exact HB|apply Err]|]; unfold V; lra. }
  assert (WB : 0 <= weight ws * B <= C * B).
  { split; [apply Rmult_le_pos; [apply weight_nonneg|]|apply Rmult_le_compat_r]; assumption. }
  assert (HS : sum es (fun t => (entry_size t + entry_error t) * ((1 + entry_leak t) * B
      + mixing emin prec (entry_leak t) N ((1 + entry_leak t) * B))) = sum es entry_size * B + sum es entry_error * B).
  { rewrite <- !sum_scal_r, <- sum_plus; apply sum_ext; intros t It; destruct (mixed t It) as [-> ->]; ring. }
  rewrite HS; assert (Ab := Rabs_pos b); destruct WB.
  assert (sum es entry_size * B <= M * B) by (apply Rmult_le_compat_r; assumption).
  assert (0 <= sum es entry_size * B) by (apply Rmult_le_pos; assumption).
  assert (0 <= sum es entry_error * B <= V).
  { split; [apply Rmult_le_pos; [apply Err|assumption]|].
    eapply Rle_trans; [apply Rmult_le_compat_r; [exact HB|apply Err]|]; unfold V; lra. }
  apply Rplus_le_compat; [apply Rplus_le_compat; [|exact HV]|]; apply dot_bound_monotone; try assumption; try lra.
  destruct (support_cons b (map entry_size es)) as [S0 S1]; destruct (Req_dec b 0); [rewrite S0|rewrite S1]; auto; lia.
Qed.

End Figure.

Section Layer.
Context {H : Type}.
Variables (L : layer H) (f : H -> position) (Δ : list position) (W : position -> matrix) (b : vector) (j : nat).
Hypothesis distinct_taps : NoDup Δ.
Hypothesis heads_on_taps : forall h, In h (heads L) -> In (f h) Δ.
Hypothesis same_taps : forall τ c, In τ Δ -> (c < D_in L)%nat -> head_tap L f j τ c = W τ c j.
Hypothesis same_bias : b_out L j = b j.

Notation cols := (columns L (fun _ => 0) j).
Notation ws := (conv_weights (D_in L) Δ W j).

Lemma taps_difference_0 B : taps_difference L f Δ W b j B = 0.
Proof.
  unfold taps_difference; rewrite same_bias, Rminus_diag_eq, Rabs_R0, Rplus_0_l by reflexivity.
  rewrite sum_zero; [ring|]; intros τ Iτ; apply sum_below_zero; intros c Hc.
  assert (I : In τ Δ).
  { apply nodup_In, in_app_or in Iτ; destruct Iτ as [I|I]; [exact I|].
    apply in_map_iff in I; destruct I as (h & <- & Ih); apply heads_on_taps, Ih. }
  unfold kernel_tap; destruct (in_dec same_position τ Δ); [|contradiction].
  rewrite same_taps, Rminus_diag_eq by (assumption || reflexivity); apply Rabs_R0.
Qed.

(** |fl(MHSA(X)) − fl(Conv(X))| ≤ [same_figure]: the computed scores of every head have their maximum at q + f(h), a float
    g > 0 or more above every other, where the exponential is 0. *)
Theorem same_rounding emin prec o n_conv n_v n_o B C M O expf g (G : list position) X q (s P : H -> position -> R) y z :
  (0 < prec)%Z -> (emin <= 0)%Z -> 0 <= B ->
  (* what the sums are, or more *)
  (forall c, In c cols -> (support (in_weights c) <= n_v)%nat) -> (support (b j :: ws) <= n_conv)%nat ->
  (support (b j :: map out_weight cols) <= n_o)%nat -> weight ws <= C ->
  sum cols (fun c => Rabs (out_weight c) * weight (in_weights c)) <= M -> sum cols (fun c => Rabs (out_weight c)) <= O ->
  (* the grid and the input *)
  NoDup G -> (forall τ, In τ Δ -> In (add q τ) G) ->
  (forall k c, In k G -> (c < D_in L)%nat -> float emin prec (X k c) /\ Rabs (X k c) <= B) ->
  (* the evaluations *)
  0 < g -> float emin prec g -> sharp_exp emin prec g expf ->
  (forall h, In h (heads L) -> gap g G (s h) (add q (f h)) /\ float_softmax emin prec expf G (s h) (P h)) ->
  computes emin prec (conv_terms (D_in L) Δ W b X q j) y -> attend_computes emin prec (by_heads o) L G X P j z ->
  Rabs (z - y) <= same_figure emin prec n_conv n_v n_o B (b j) C M O.
Proof.
  intros Hp He HB Nv Nc No HC HM HO NG Kg HX Hg Gf Ex Sh Cy Cz; assert (Pp : Prec_gt_0 prec) by exact Hp.
  assert (Hg' : forall h, In h (heads L) -> In (add q (f h)) G) by (intros h Ih; apply Kg, heads_on_taps, Ih).
  eapply Rle_trans; [exact (sharp_layer_rounding emin prec L f G Δ W b X q j B NG distinct_taps HB HX Kg Hg' o expf g s P
    y z He Hg Gf Ex Sh Cy Cz)|].
  rewrite taps_difference_0, Rplus_0_l, same_bias; apply same_figure_covers; try assumption.
  intros c Ic; split; [|apply Nv, Ic]; unfold columns in Ic; apply in_flat_map in Ic; destruct Ic as (h & _ & Ic).
    apply in_map_iff in Ic; destruct Ic as (i & <- & _); reflexivity.
Qed.

(** The sum that runs, W_val W_out formed first and X shifted, with n_m products in an entry of W_val W_out and n entries
    that are not zero.  There is no softmax in it. *)
Theorem same_rounding_shifted emin prec n_conv n_m n B C M (G : list position) X q y z :
  (0 < prec)%Z -> 0 <= B ->
  (* what the sums are, or more *)
  (forall h c v, In h (heads L) -> (c < D_in L)%nat -> computes emin prec (weight_terms L j h c) v ->
     Rabs (v - exact (weight_terms L j h c)) <= dot_bound emin prec n_m (magnitude (weight_terms L j h c))) ->
  (support (b j :: ws) <= n_conv)%nat ->
  (support (flat_map (fun h => map (fun c => magnitude (weight_terms L j h c)) (seq 0 (D_in L))) (heads L)) <= n)%nat ->
  weight ws <= C -> sum cols (fun c => Rabs (out_weight c) * weight (in_weights c)) <= M ->
  (* the grid and the input *)
  NoDup G -> (forall τ, In τ Δ -> In (add q τ) G) ->
  (forall k c, In k G -> (c < D_in L)%nat -> float emin prec (X k c) /\ Rabs (X k c) <= B) ->
  (* the evaluations *)
  computes emin prec (conv_terms (D_in L) Δ W b X q j) y -> shifted_computes emin prec L f X q j z ->
  Rabs (z - y) <= same_figure emin prec n_conv n_m (S n) B (b j) C M (INR n * B).
Proof.
  intros Hp HB Nm Nc Nn HC HM NG Kg HX Cy Cz; assert (Pp : Prec_gt_0 prec) by exact Hp.
  assert (Hg : forall h, In h (heads L) -> In (add q (f h)) G) by (intros h Ih; apply Kg, heads_on_taps, Ih).
  set (e := fun h c => entry_bound emin prec n_m (magnitude (weight_terms L j h c))).
  assert (En : forall h c v, In h (heads L) -> (c < D_in L)%nat -> computes emin prec (weight_terms L j h c) v ->
    Rabs (v - exact (weight_terms L j h c)) <= e h c).
  { intros h c v Ih Hc Cv; unfold e, entry_bound; destruct (Req_EM_T _ 0) as [Z|Z]; [|apply Nm; assumption].
    assert (D := dot_rounding emin prec _ _ Cv); rewrite Z, no_products in D by exact Z;
    unfold dot_bound in D; simpl INR in D; lra. }
  set (P := fun h => unit_row (add q (f h))).
  assert (O : forall h, In h (heads L) -> one_hot G (P h) (add q (f h))).
  { intros h Ih; unfold P, unit_row; split; [destruct (position_eq_dec _ _); congruence|].
    intros k _ N; destruct (position_eq_dec k _); congruence. }
  assert (R := weights_first_rounding emin prec L f G Δ W b X q j B NG distinct_taps HX Kg Hg e En P (fun _ => 0)
    (fun h Ih => one_hot_near G (P h) _ (O h Ih)) y z Cy
    (proj2 (shifted_sum emin prec L f G X q j B NG HX Hg P z O) Cz)).
  rewrite leak_figure_0, taps_difference_0, !Rplus_0_l, same_bias in R.
  eapply Rle_trans; [exact R|]; apply same_figure_covers_entries; try assumption.
  - intros t It; unfold entries in It; apply in_flat_map in It; destruct It as (h & _ & It); apply in_map_iff in It.
    destruct It as (c & <- & _); cbn [entry_leak entry_size entry_error]; split; [reflexivity|split; [|reflexivity]].
    apply magnitude_nonneg.
  - unfold entries; rewrite map_flat_map; eapply Nat.le_trans; [|exact Nn]; apply Nat.eq_le_incl; f_equal.
    apply flat_map_ext; intros h; apply map_map.
  - rewrite sizes_by_columns in HM; rewrite sum_entries; exact HM.
Qed.

(** Where in every head one factor is the identity, and the other of floats, only two sums round. *)
Corollary one_sum_rounding emin prec n_conv n B C M (G : list position) X q y z :
  (0 < prec)%Z -> 0 <= B ->
  (forall h c, In h (heads L) -> (c < D_in L)%nat -> identity_factor emin prec L j h c) ->
  (support (b j :: ws) <= n_conv)%nat ->
  (support (flat_map (fun h => map (fun c => magnitude (weight_terms L j h c)) (seq 0 (D_in L))) (heads L)) <= n)%nat ->
  weight ws <= C -> sum cols (fun c => Rabs (out_weight c) * weight (in_weights c)) <= M ->
  NoDup G -> (forall τ, In τ Δ -> In (add q τ) G) ->
  (forall k c, In k G -> (c < D_in L)%nat -> float emin prec (X k c) /\ Rabs (X k c) <= B) ->
  computes emin prec (conv_terms (D_in L) Δ W b X q j) y -> shifted_computes emin prec L f X q j z ->
  Rabs (z - y) <= dot_bound emin prec n_conv (Rabs (b j) + C * B) + dot_bound emin prec (S n) (Rabs (b j) + M * B).
Proof.
  intros Hp HB Id Nc Nn HC HM NG Kg HX Cy Cz; assert (Pp : Prec_gt_0 prec) by exact Hp.
  assert (R : Rabs (z - y) <= same_figure emin prec n_conv 0 (S n) B (b j) C M (INR n * B)).
  { apply (same_rounding_shifted emin prec n_conv 0 n B C M G X q y z); try assumption.
    intros h c v Ih Hc Cv; rewrite (weights_exact emin prec L j h c v (Id h c Ih Hc) Cv).
    rewrite Rminus_diag_eq, Rabs_R0 by reflexivity; apply dot_bound_nonneg, magnitude_nonneg. }
  unfold same_figure in R; simpl (INR 0) in R; cbv zeta in R; rewrite !Rmult_0_l, !Rplus_0_r in R; exact R.
Qed.

End Layer.
