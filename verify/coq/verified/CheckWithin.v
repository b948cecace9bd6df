(** The checker in the mode `within T`: finite sharpness, taps and biases that may differ, heads that look at no tap.

    A stray head, whose shift is no kernel position, or which has none, counts with all that it carries: whatever it attends
    to, its attention is an average of tokens.

    Statements:
      exp_bound_sound     an upper bound on e^{−α}, in integers
      check_within_sound  if [check_within] accepts B and T, then for every size that is taken, every image with
                          |X| ≤ B and every output, |MHSA(X) − Conv(X)| ≤ T: bias + leakage + taps, over the reals *)

From Coq Require Import Reals ZArith List Bool Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Softmax Lemma2 Leakage Layers Geometry Transposed.
From Attention Require RoundingCheck.
From Attention Require Import RoundingTaps RoundingDyadic CheckSparse CheckFields CheckTaps CheckRadix CheckHeads CheckSame.
Import ListNotations.
Open Scope R_scope.

(** * An upper bound on e^{−α} *)

Fixpoint squared (n : nat) (x : dyadic) : dyadic :=
  match n with O => x | S n' => let y := squared n' x in round_up 256 (z_mul y y) end.

(** With y = α/2^80: e^{−y} ≤ 1 − y + y², squared eighty times; the excess is about α²·2^−81. *)
Definition exp_bound (α : dyadic) : dyadic :=
  let y := Dyadic (mantissa α) (exponent α - 80) in squared 80 (z_add (z_sub (z_of 1) y) (z_mul y y)).

Theorem exp_bound_sound α : 0 <= value α -> exp (- value α) <= value (exp_bound α).
Proof.
  intros Hα; unfold exp_bound; set (y := Dyadic (mantissa α) (exponent α - 80)).
  assert (Ey : value α = 2 ^ 80 * value y).
  { unfold y, value; cbn [mantissa exponent]; unfold Z.sub; rewrite bpow_plus;
    change (bpow radix2 (- (80))) with (/ IZR (2 ^ 80)).
    rewrite (pow_IZR 2 80); change (2 ^ Z.of_nat 80)%Z with (2 ^ 80)%Z; field; apply IZR_neq; discriminate. }
  assert (Hy : 0 <= value y) by (assert (0 < 2 ^ 80) by (apply pow_lt; lra); nra).
  rewrite Ey; clear Ey Hα; generalize 80%nat; intros n; induction n as [|n IH].
  - cbn [squared pow]; rewrite value_add, value_sub, value_of, value_mul, Rmult_1_l; set (z := value y) in *.
    assert (E := exp_ineq1_le z); assert (P := exp_pos z); rewrite exp_Ropp.
    apply Rmult_le_reg_l with (exp z); [exact P|]; rewrite Rinv_r by lra.
    apply Rle_trans with ((1 + z) * (1 - z + z * z)); [|apply Rmult_le_compat_r; nra].
    replace ((1 + z) * (1 - z + z * z)) with (1 + z * z * z) by ring.
    assert (0 <= z * z * z) by (apply Rmult_le_pos; [nra|exact Hy]); lra.
  - cbn [squared]; eapply Rle_trans; [|apply round_up_le]; rewrite value_mul.
    replace (- (2 ^ S n * value y)) with (- (2 ^ n * value y) + - (2 ^ n * value y)) by (simpl; ring).
    rewrite exp_plus; apply Rmult_le_compat; try (left; apply exp_pos); exact IH.
Qed.

(** * What is computed *)

Section Computed.
Variables (c : convolution) (m : attention_layer) (B : dyadic).

(** The output channel that an index belongs to, for t kernel positions, D input channels, n of them and o output
    channels in a group. *)
Definition channel_by (t D n o x : Z) : Z := let y := (x / t)%Z in ((y mod D) / n * o + y / D)%Z.
Definition channel : Z -> Z :=
  channel_by (Z.of_nat (positions_of_kernel c)) (channels_in c) (Z.of_nat (in_g c)) (Z.of_nat (out_g c)).

(** Σ_i |W_val^h W_out^h| of a head and Σ_τ Σ_i |tap − W_τ| by output channel, before their powers of two. *)
Definition sums_by (key : Z -> Z) (vs : list sparse) : sparse := merge_all (map (fun v => rekey key (absolute v)) vs).
Definition singles_by (key : Z -> Z) (v : sparse) : sparse :=
  merge_all (map (fun e => [(key (fst e), Z.abs (snd e))]) (filter (fun e => negb (Z.eqb (snd e) 0)) v)).
Definition head_sum (h : raw_head) : sparse := sums_by channel (vectors_of c m 1 h).
Definition tap_sums : sparse := singles_by channel (difference c m).

(** min(2 d e^{−α}, 1) of a head; d is 1 for the parabola. *)
Definition leak_sharp (h : raw_head) : dyadic :=
  z_mul (z_of (2 * Z.of_nat (code_dims (a_encoding m) (dims c))))
    (exp_bound (Dyadic (sharpness_read m h) (s_v (scale_of m) + s_key_pos (scale_of m)))).
Definition leak_bound (h : raw_head) : dyadic := let l := leak_sharp h in if z_le l (z_of 1) then l else z_of 1.

(** |b_out − b| + 2·B·Σ_h leak_h·Σ|W_val^h W_out^h| + B·Σ|tap − W| of every output channel, and B times what is [carried]. *)
Definition bounds (carried : Z -> dyadic) : list dyadic :=
  let heads := map (fun h => (leak_bound h, head_sum h)) (kept m) in
  let leaked k := z_sum heads (fun h => z_mul (fst h) (Dyadic (coef (snd h) k) (head_scale m))) in
  let taps := tap_sums in
  map (fun kb => z_add (z_add (z_add (snd kb) (z_mul (z_mul (z_of 2) B) (leaked (fst kb))))
                   (z_mul B (Dyadic (coef taps (fst kb)) (common_scale c m)))) (z_mul B (carried (fst kb))))
    (enum 0 (bias_differences c m)).

End Computed.

Section Strays.
Variables (c : convolution) (m : attention_layer).

(** Heads that carry nothing or look at a tap, and the layer of these; the others. *)
Definition settles (h : raw_head) : bool := idle h || match tap_read m h with Some _ => true | None => false end.
Definition settled : attention_layer := {|
  a_geometry := a_geometry m; a_encoding := a_encoding m; key_dim := key_dim m; head_dim := head_dim m; scale_of := scale_of m;
  raw_heads := filter settles (raw_heads m); raw_b_out := raw_b_out m |}.
Definition strays : list raw_head := filter (fun h => negb (settles h)) (raw_heads m).

Definition stray_shaped (h : raw_head) : bool :=
  Nat.ltb 0 (positions_of_kernel c) && shaped (groups_n c) (in_g c) (Z.to_nat (head_dim m)) (h_val h) &&
  shaped (groups_n c) (Z.to_nat (head_dim m)) (out_g c) (h_out h).

(** Σ_i |W_val^h W_out^h| of a head by output channel, before its power of two, as if it stood at kernel position t. *)
Definition carried_sum (t : Z) (h : raw_head) : sparse :=
  sums_by (channel c) (head_vectors (channels_in c) (Z.of_nat (positions_of_kernel c)) (Z.of_nat (in_g c)) 1 t
    (h_val h) (h_out h)).

Definition check_within (B T : dyadic) : bool :=
  let sums := map (carried_sum 0) strays in
  let carried k := z_sum sums (fun s => Dyadic (coef s k) (head_scale m)) in
  comparable c settled && z_le (z_of 0) B && forallb stray_shaped strays &&
  forallb (fun b => z_le b T) (bounds c settled B carried).

End Strays.

(** * Soundness *)

Section Sound.
Variables (c : convolution) (m : attention_layer).
Hypothesis ok : comparable c m = true.
Variable sizes : list Z.
Hypotheses (A : accepts c sizes) (Fit : fits m sizes = true).

Notation L := (with_heads (layer_of m) (kept m)).
Notation f := (shift_read m).
Notation ks := (kernel_size c).
Notation T := (positions_of_kernel c).
Notation ix := (index (channels_in c) (Z.of_nat T)).

(** The input channels of output channel k's group. *)
Definition group_channels (k : nat) : list nat :=
  filter (fun i => Nat.eqb (i / in_g c) (k / out_g c)) (seq 0 (groups_n c * in_g c)).

Lemma channel_index i k t : (i < groups_n c * in_g c)%nat -> (i / in_g c = k / out_g c)%nat -> (0 <= t < Z.of_nat T)%Z
  ->
  (0 < out_g c)%nat -> channel c (ix (Z.of_nat (k mod out_g c)) (Z.of_nat i) t) = Z.of_nat k.
Proof.
  intros Hi Eg Ht Ho; unfold channel, channel_by, index; cbv zeta.
  set (D := channels_in c); assert (HD : D = Z.of_nat (groups_n c * in_g c)) by reflexivity.
  set (kc := Z.of_nat (k mod out_g c)).
  assert (E1 : (((kc * D + Z.of_nat i) * Z.of_nat T + t) / Z.of_nat T = kc * D + Z.of_nat i)%Z).
  { symmetry; apply (Z.div_unique _ _ _ t); [left; lia|ring]. }
  rewrite E1.
  assert (E2 : ((kc * D + Z.of_nat i) / D = kc)%Z) by (symmetry; apply (Z.div_unique _ _ _ (Z.of_nat i)); [left;
    lia|ring]).
  assert (E3 : ((kc * D + Z.of_nat i) mod D = Z.of_nat i)%Z) by (symmetry; apply (Z.mod_unique _ _ kc); [left;
    lia|ring]).
  rewrite E2, E3, <- Nat2Z.inj_div, Eg; unfold kc; rewrite <- Nat2Z.inj_mul, <- Nat2Z.inj_add; f_equal.
  rewrite (Nat.div_mod k (out_g c)) at 3 by lia; lia.
Qed.

Lemma group_sum k (F : nat -> R) : (forall i, (i < groups_n c * in_g c)%nat -> (i / in_g c <> k / out_g c)%nat -> F i
  = 0) ->
  sum_below (groups_n c * in_g c) F = sum (group_channels k) F.
Proof.
  intros E; unfold group_channels; rewrite RoundingCheck.sum_filter; [reflexivity|].
  intros i Ii N; apply in_seq in Ii; apply E; [lia|]; apply Nat.eqb_neq, N.
Qed.

Lemma in_group i k : In i (group_channels k) -> (i < groups_n c * in_g c)%nat /\ (i / in_g c = k / out_g c)%nat.
Proof. intros I; apply filter_In in I; destruct I as [I E]; apply in_seq in I; apply Nat.eqb_eq in E; split;
  [lia|exact E]. Qed.

Lemma Rabs_number e z : Rabs (number_of e z) = number_of e (Z.abs z).
Proof. unfold number_of; apply eq_sym, (value_abs (Dyadic z e)). Qed.

Lemma number_of_sum {X} e (l : list X) g : sum l (fun x => number_of e (g x)) = number_of e (zsum l g).
Proof. unfold number_of, value; cbn [mantissa exponent]; rewrite IZR_zsum; apply sum_scal_r. Qed.

Lemma number_of_le e x y : (x <= y)%Z -> number_of e x <= number_of e y.
Proof. intros E; unfold number_of, value; apply Rmult_le_compat_r; [apply bpow_ge_0|apply IZR_le, E]. Qed.

(** Σ_i |W_val^h W_out^h| of output channel k, for any head. *)
Lemma carried_sum_sound t h k : (0 <= t < Z.of_nat T)%Z ->
  shaped (groups_n c) (in_g c) (Z.to_nat (head_dim m)) (h_val h) = true ->
  shaped (groups_n c) (Z.to_nat (head_dim m)) (out_g c) (h_out h) = true -> (k < groups_n c * out_g c)%nat ->
  column_sum (groups_n c * in_g c) (value_output L h) k <=
  number_of (head_scale m) (coef (carried_sum c t h) (Z.of_nat k)).
Proof.
  intros Rt Sv So Hk; unfold carried_sum, sums_by; rewrite coef_merge_all; set (vs := head_vectors _ _ _ 1 t _ _).
  destruct (comparable_facts c m ok) as (E & W & _ & Hd & _).
  destruct (same_fields c m ok) as (Fg & Fi & Fo & Fd); destruct (channels_g c W) as (Cg & Ci & Co).
  assert (Hu : (k / out_g c < groups_n c)%nat) by (apply Nat.div_lt_upper_bound; lia).
  assert (V : forall i, (i < groups_n c * in_g c)%nat -> value_output L h i k = if Nat.eqb (i / in_g c) (k / out_g c)
    then number_of (head_scale m) (coefs vs (ix (Z.of_nat (k mod out_g c)) (Z.of_nat i) t)) else 0).
  { intros i Hi; rewrite value_output_with, value_output_blocks; rewrite ?Fg, ?Fi, ?Fo; try assumption.
    destruct (Nat.eqb_spec (i / in_g c) (k / out_g c)) as [Eg|]; [|reflexivity].
    assert (Hm : (i mod in_g c < in_g c)%nat) by (apply Nat.mod_upper_bound; lia).
    assert (Ei : i = (k / out_g c * in_g c + i mod in_g c)%nat) by (rewrite <- Eg, Nat.mul_comm; apply Nat.div_mod;
      lia).
    unfold vs; rewrite Ei at 2; unfold channels_in.
    rewrite coefs_head; try assumption; try (apply Rt);
      try (apply (shaped_nth _ _ _ _ 0%nat Sv); lia); try (apply (shaped_nth _ _ _ _ 0%nat So); lia);
      try (intros u' Hu'; apply (shaped_nth _ _ _ _ u' Sv Hu')).
    rewrite Z.eqb_refl, Z.mul_1_l; reflexivity. }
  unfold column_sum; rewrite (group_sum k).
  - rewrite (sum_ext _ _ (fun i => number_of (head_scale m) (Z.abs (coefs vs
      (ix (Z.of_nat (k mod out_g c)) (Z.of_nat i) t))))).
    + rewrite number_of_sum; apply number_of_le.
      set (key := fun i => ix (Z.of_nat (k mod out_g c)) (Z.of_nat i) t).
      assert (M : forall l, zsum l (fun i => Z.abs (coefs vs (key i))) =
        zsum (map key l) (fun s => Z.abs (coefs vs s))).
      { induction l as [|i l IH]; [reflexivity|]; cbn [map]; rewrite !zsum_cons, IH; reflexivity. }
      rewrite M; apply channel_sums_le.
      * assert (P := NoDup_pairs (fun (_ : unit) i => key i) [tt] (group_channels k)); cbn [flat_map] in P.
        rewrite app_nil_r in P; apply P; [constructor; [intros []|constructor]|apply NoDup_filter, seq_NoDup|].
        intros [] i [] i' _ Ii _ Ii' Ek; split; [reflexivity|]; apply in_group in Ii, Ii'.
        unfold key in Ek; apply index_injective in Ek;
          unfold channels_in; lia.
      * intros s Is; apply in_map_iff in Is; destruct Is as (i & <- & Ii); apply in_group in Ii.
        apply channel_index; try tauto; apply Rt.
    + intros i Ii; apply in_group in Ii; destruct Ii as [Hi Eg]; rewrite V by exact Hi.
      rewrite (proj2 (Nat.eqb_eq _ _) Eg); apply Rabs_number.
  - intros i Hi Ng; rewrite V by exact Hi; rewrite (proj2 (Nat.eqb_neq _ _) Ng); apply Rabs_R0.
Qed.

Lemma head_sum_sound h k : In h (heads L) -> (k < groups_n c * out_g c)%nat ->
  column_sum (groups_n c * in_g c) (value_output L h) k <=
  number_of (head_scale m) (coef (head_sum c m h) (Z.of_nat k)).
Proof.
  intros Ih Hk; cbn [heads with_heads] in Ih; destruct (comparable_facts c m ok) as (_ & _ & _ & _ & _ & _ & F).
  destruct (F h Ih) as (Sv & So & _), (head_looks c m ok h Ih) as (j & a & T0 & _ & I0 & _).
  assert (S := carried_sum_sound (number ks j) h k (number_taps c m ok j I0) Sv So Hk).
  unfold carried_sum in S; unfold head_sum, vectors_of; rewrite T0; exact S.
Qed.

(** Σ_τ Σ_i |tap − W_τ| of output channel k. *)
Lemma tap_sums_sound k : (k < groups_n c * out_g c)%nat ->
  sum (kernel_shifts c) (fun τ => column_sum (groups_n c * in_g c) (fun i j' => tap L f τ i j' - kernel_at c τ i j')
    k) <=
  number_of (common_scale c m) (coef (tap_sums c m) (Z.of_nat k)).
Proof.
  intros Hk; destruct (comparable_facts c m ok) as (E & W & _); destruct (channels_g c W) as (Cg & Ci & Co).
  unfold kernel_shifts; rewrite sum_map.
  set (key := fun j i => ix (Z.of_nat (k mod out_g c)) (Z.of_nat i) (number ks j)).
  rewrite (sum_ext _ _ (fun j => number_of (common_scale c m) (zsum (map (key j) (group_channels k))
    (fun s => Z.abs (coef (difference c m) s))))).
  - rewrite number_of_sum; apply number_of_le.
    apply Z.le_trans with (coef (rekey (channel c) (absolute (difference c m))) (Z.of_nat k)).
    + apply Z.le_trans with (zsum (flat_map (fun j => map (key j) (group_channels k)) (kernel_taps c (units c)))
        (fun s => Z.abs (coef (difference c m) s))).
      * clear; induction (kernel_taps c (units c)) as [|j l IH]; [apply Z.le_refl|]; cbn [flat_map].
        rewrite zsum_cons, zsum_app; lia.
      * apply channel_sum_le.
        -- apply NoDup_pairs.
           ++ destruct (kernel_shifts_positions c m ok sizes A) as [N _]; unfold kernel_shifts in N.
              apply NoDup_map_inv in N; exact N.
           ++ apply NoDup_filter, seq_NoDup.
           ++ intros j i j' i' Ij Ii Ij' Ii' Ek; apply in_group in Ii, Ii'.
              assert (R := number_taps c m ok j Ij); assert (R' := number_taps c m ok j' Ij').
              unfold key in Ek; apply index_injective in Ek; try (unfold channels_in; lia).
              destruct Ek as (_ & Ei & En); split; [|lia].
              apply (number_injective ks); [| |exact En]; apply (in_kernel_taps c W (units c)); try assumption;
                apply map_length.
        -- intros s Is; apply in_flat_map in Is; destruct Is as (j & Ij & Is); apply in_map_iff in Is.
           destruct Is as (i & <- & Ii); apply in_group in Ii; apply channel_index; try tauto;
             apply (number_taps c m ok j Ij).
    + unfold tap_sums, singles_by; rewrite coef_merge_all; apply Z.eq_le_incl; generalize (difference c m); clear.
      intros s; induction s as [|[l x] v IH]; [reflexivity|]; cbn [absolute rekey map filter fst snd coef].
      destruct (Z.eqb_spec x 0) as [->|]; cbn [negb map]; fold (absolute v) (rekey (channel c) (absolute v)).
      * rewrite IH; destruct (channel c l =? _)%Z; reflexivity.
      * rewrite coefs_cons, IH; cbn [coef fst snd]; ring.
  - intros j Ij; unfold column_sum; rewrite (group_sum k).
    + rewrite <- (number_of_sum (common_scale c m)), sum_map; apply sum_ext; intros i Ii; apply in_group in Ii;
      destruct Ii as [Hi Eg].
      rewrite (kernel_at_shift c sizes A) by exact Ij; rewrite (taps_difference_read c m ok sizes A) by assumption.
      rewrite (proj2 (Nat.eqb_eq _ _) Eg); apply Rabs_number.
    + intros i Hi Ng; rewrite (kernel_at_shift c sizes A) by exact Ij.
      rewrite (taps_difference_read c m ok sizes A) by assumption; rewrite (proj2 (Nat.eqb_neq _ _) Ng); apply Rabs_R0.
Qed.

(** Every head that carries something leaks at most [leak_sharp]: as much as on the grid of the codes. *)
Lemma leak_sharp_sound h X o : In h (heads L) -> In o (outputs c sizes) ->
  1 - attention L (tokens c sizes) h X (query_of c sizes o) (add (query_of c sizes o) (f h)) <=
  value (leak_sharp c m h).
Proof.
  intros Ih Io; destruct (kept_sharp c m ok h Ih) as (_ & Ha & _); assert (Fl := kept_falls c m ok sizes A h X o).
  assert (It := targets_on_tokens c sizes A o Io _ (heads_on_shifts c m ok h Ih)).
  destruct (tokens_dims c m ok sizes A) as [N P]; rewrite Forall_forall in P.
  set (t := add (query_of c sizes o) (f h)) in *; set (G := tokens c sizes) in *; set (code := coded (a_encoding m)) in *.
  set (d := code_dims (a_encoding m) (dims c)); set (s := fun k => score L h X (query_of c sizes o) k) in *.
  set (s' := fun k => - alpha_of m h * IZR (norm2 (sub k (code t)))).
  assert (Pd : positions d (map code G)).
  { split; [apply NoDup_codes; [exact N|]|rewrite Forall_forall; intros x I; apply in_map_iff in I;
      destruct I as (k & <- & Ik); apply length_coded, P, Ik].
    intros k k' Ik Ik' E; destruct (position_eq_dec k k') as [|D]; [assumption|]; exfalso.
    assert (B := kept_distinct c m ok sizes A k k' Fit Ik Ik' D); rewrite coded_sub in B by
      (rewrite (P k Ik), (P k' Ik'); reflexivity); fold code in B; rewrite E, norm2_sub_diag in B; lia. }
  assert (Q := quadratic_closed d (map code G) s' (code t) (alpha_of m h) Pd (in_map code _ _ It)).
  eapply Rle_trans; [|eapply Rle_trans; [apply Q; [intros k _|exact Ha]|]].
  - change (leak G s t <= leak (map code G) s' (code t)); unfold leak; rewrite !softmax_inverse, sum_map.
    apply Rplus_le_compat_l, Ropp_le_contravar, Rinv_le_contravar.
    + apply sum_positive; [intros E; rewrite E in It; destruct It|]; intros; apply exp_pos.
    + apply sum_le; intros k Ik; apply exp_monotone; unfold s'; rewrite norm2_sub_diag.
      specialize (Fl k Ih Io Ik); unfold code in Fl; rewrite coded_sub in Fl by (rewrite (P k Ik), (P t It); reflexivity).
      fold code in Fl; unfold s in *; lra.
  - unfold s'; rewrite norm2_sub_diag; lra.
  - unfold leak_sharp; rewrite value_mul, value_of, mult_IZR, <- INR_IZR_INZ; fold d.
    apply Rmult_le_compat_l; [assert (P0 := pos_INR d); lra|]; apply exp_bound_sound; left; exact Ha.
Qed.

(** And at most [leak_bound]. *)
Lemma leak_bound_sound h X o : In h (heads L) -> In o (outputs c sizes) ->
  1 - attention L (tokens c sizes) h X (query_of c sizes o) (add (query_of c sizes o) (f h)) <=
  value (leak_bound c m h).
Proof.
  intros Ih Io; unfold leak_bound; cbv zeta; destruct (z_le _ _); [apply leak_sharp_sound; assumption|].
  rewrite value_of; assert (P : 0 < attention L (tokens c sizes) h X (query_of c sizes o)
    (add (query_of c sizes o) (f h))); [|lra].
  apply softmax_positive, (targets_on_tokens c sizes A o Io), (heads_on_shifts c m ok h Ih).
Qed.

Lemma leak_bound_nonneg h : In h (heads L) -> 0 <= value (leak_bound c m h).
Proof.
  intros Ih; destruct (kept_sharp c m ok h Ih) as (_ & Ha & _); unfold leak_bound; cbv zeta.
  destruct (z_le _ _); [|rewrite value_of; apply IZR_le; lia].
  unfold leak_sharp; rewrite value_mul, value_of; apply Rmult_le_pos; [apply IZR_le; lia|].
  eapply Rle_trans; [left; apply exp_pos|apply exp_bound_sound; left; exact Ha].
Qed.

(** The layer that has no stray heads. *)
Lemma bounds_sound B carried X o k : 0 <= value B -> bounded (groups_n c * in_g c) (value B) (pixels c sizes) X ->
  In o (outputs c sizes) -> (k < groups_n c * out_g c)%nat ->
  exists b, In b (bounds c m B carried) /\
  Rabs (attend (layer_of m) (tokens c sizes) (reads c sizes X) (query_of c sizes o) k - computes_conv c sizes X o k)
    + value B * value (carried (Z.of_nat k)) <= value b.
Proof.
  intros HB HX Io Hk; destruct (comparable_facts c m ok) as (E & W & _ & _ & Lb & La & _).
  assert (Ik : In (Z.of_nat k, nth k (bias_differences c m) (z_of 0)) (enum 0 (bias_differences c m))).
  { apply (in_enum_nth _ 0); unfold bias_differences; rewrite map_length, combine_length; lia. }
  eexists; split; [unfold bounds; cbv zeta; apply (in_map _ _ _ Ik)|]; cbn [fst snd].
  rewrite !value_add, !value_mul, value_of, (bias_difference c m ok k Hk); apply Rplus_le_compat_r.
  rewrite (computes_conv_shifts c m ok sizes A X o k Hk Io), <- attend_L1.
  destruct (same_fields c m ok) as (Fg & Fi & Fo & Fd).
  assert (Ein : D_in L = (groups_n c * in_g c)%nat) by (cbn [D_in with_heads layer_of]; rewrite Fg, Fi; reflexivity).
  assert (XB : bounded (D_in L) (value B) (tokens c sizes) (reads c sizes X)) by
    (rewrite Ein; apply reads_bounded; assumption).
  rewrite <- Ein; eapply Rle_trans; [apply (layer_within L (shift_read m) (kernel_shifts c) (kernel_at c) (bias_of c)
    (tokens c sizes) (reads c sizes X) (query_of c sizes o) k (value B) (fun h => value (leak_bound c m h)))|].
  - apply (kernel_shifts_positions c m ok sizes A).
  - apply (heads_on_shifts c m ok).
  - apply (targets_on_tokens c sizes A o Io).
  - exact XB.
  - intros h Ih; apply leak_bound_sound; assumption.
  - rewrite Ein, value_sum, sum_map; cbn [fst snd].
    assert (TS := tap_sums_sound k Hk); unfold number_of in TS.
    apply Rplus_le_compat; [apply Rplus_le_compat|].
    + apply Rle_refl.
    + apply Rmult_le_compat_l; [lra|]; apply sum_le; intros h Ih; rewrite value_mul.
      apply Rmult_le_compat_l; [apply (leak_bound_nonneg h Ih)|apply (head_sum_sound h k Ih Hk)].
    + apply Rmult_le_compat_l; [exact HB|exact TS].
Qed.

End Sound.

(** A head's output is at most B times what it carries, whatever it attends to. *)
Lemma head_output_bounded {H} (L : layer H) h G X q k B : 0 <= B -> bounded (D_in L) B G X ->
  Rabs (row_times (D_in L) (fun i => sum G (fun t => attention L G h X q t * X t i)) (value_output L h) k) <=
  B * column_sum (D_in L) (value_output L h) k.
Proof.
  intros B0 HX; set (a := fun i => sum G _).
  assert (Z : row_times (D_in L) (fun _ => 0) (value_output L h) k = 0) by (apply sum_below_zero; intros; ring).
  rewrite <- (Rminus_0_r (row_times _ _ _ _)), <- Z; apply row_times_error; intros i Hi; rewrite Rminus_0_r; unfold a.
  destruct G as [|t0 G0]; [change (sum [] _) with 0; rewrite Rabs_R0; exact B0|]; set (G := t0 :: G0) in *.
  rewrite <- (Rmult_1_l B), <- (softmax_sum G (fun t => score L h X q t)), <- sum_scal_r by discriminate.
  eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros t It.
  assert (P := softmax_positive G (fun t => score L h X q t) t It); unfold attention; rewrite Rabs_mult, Rabs_pos_eq by lra.
  apply Rmult_le_compat_l; [lra|apply HX; assumption].
Qed.

Lemma sum_partition {A} (keep : A -> bool) l f :
  sum l f = sum (filter keep l) f + sum (filter (fun x => negb (keep x)) l) f.
Proof.
  induction l as [|x l IH]; [unfold sum; simpl; ring|]; simpl filter; destruct (keep x); simpl negb; cbn [sum] in *;
    rewrite !sum_cons, IH; ring.
Qed.

(** If [check_within] accepts, the two differ by T at most: for inputs of every size that torch and the layer take,
    every image with |X| ≤ B, every output o and channel k.  The layer reads the tokens of its own geometry. *)
Theorem check_within_sound c m B T : check_within c m B T = true ->
  forall sizes X o k, accepts c sizes -> fits m sizes = true -> bounded (groups_n c * in_g c) (value B) (pixels c sizes) X ->
  In o (outputs c sizes) -> (k < groups_n c * out_g c)%nat ->
  Rabs (attend (layer_of m) (tokens m sizes) (reads m sizes X) (query_of m sizes o) k - computes_conv c sizes X o k)
    <= value T.
Proof.
  unfold check_within; cbv zeta; rewrite !andb_true_iff, !forallb_forall; intros [[[ok HB] Sh] Hb] sizes X o k A Fit HX Io Hk.
  apply value_le in HB; rewrite value_of in HB; set (s := settled m) in *.
  destruct (comparable_facts c s ok) as (E & W & _); assert (Em : a_geometry m = c_geometry c) by exact E; rewrite Em.
  set (carried := fun k => z_sum _ _) in Hb.
  destruct (bounds_sound c s ok sizes A Fit B carried X o k HB HX Io Hk) as (b & Ib & R).
  specialize (Hb b Ib); apply value_le in Hb; eapply Rle_trans; [|exact Hb]; eapply Rle_trans; [|exact R].
  set (G := tokens c sizes) in *; set (Y := reads c sizes X) in *; set (q := query_of c sizes o) in *.
  destruct (same_fields c s ok) as (Fg & Fi & Fo & Fd).
  assert (Ein : D_in (layer_of m) = (groups_n c * in_g c)%nat) by (cbn [D_in layer_of]; rewrite Em; reflexivity).
  assert (XB : bounded (D_in (layer_of m)) (value B) G Y) by (rewrite Ein; apply reads_bounded; assumption).
  set (F := fun h => row_times (D_in (layer_of m)) (fun i => sum G (fun t => attention (layer_of m) G h Y q t * Y t i))
    (value_output (layer_of m) h) k).
  assert (S : attend (layer_of m) G Y q k = attend (layer_of s) G Y q k + sum (strays m) F).
  { rewrite !attend_heads; cbn [heads layer_of]; rewrite (sum_partition (settles m) (raw_heads m)).
    rewrite Rplus_assoc; reflexivity. }
  rewrite S; match goal with |- Rabs (?x + ?y - ?z) <= _ => replace (x + y - z) with (x - z + y) by ring end.
  eapply Rle_trans; [apply Rabs_triang|]; apply Rplus_le_compat_l.
  unfold carried; rewrite value_sum, sum_map, <- sum_scal; eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros h Ih.
  specialize (Sh h Ih); unfold stray_shaped in Sh; rewrite !andb_true_iff, Nat.ltb_lt in Sh; destruct Sh as [[Tp Sv] So].
  unfold F; eapply Rle_trans; [apply head_output_bounded; [exact HB|exact XB]|]; rewrite Ein.
  apply Rmult_le_compat_l; [exact HB|exact (carried_sum_sound c s ok 0 h k ltac:(lia) Sv So Hk)].
Qed.
