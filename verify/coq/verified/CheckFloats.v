(** The whole certificate of a sharp layer, from its raw fields, in floating point.

    Statement:
      check_floats_sound  if [check_same] accepts, so that taps and biases are equal, and [check_floats] accepts T for a
                          format and a bound B, then every float evaluation of the layer (scores, softmax, values, sums, with
                          P X W_val in either order and then W_out, or W_val W_out formed first) and every float evaluation
                          of the convolution differ by T at most: for inputs of every size that torch accepts, all floats
                          |X| ≤ B, every output and channel.
      check_shifted_sound if [check_same] and [check_shifted] accept, T bounds the sum that runs by default, which has no
                          softmax: M = fl(W_val W_out), and then fl(b_out + Σ_h X_{q+τ_h} M^h); every α and τ will do
      floats_exponential  the exponential that it assumes is any that is correctly rounded
    Assumed, but for the sum that runs: the exponential is 0 at −α and below (FloatSoftmax.v); the scores on the grid are
    exact (RoundingScores.v).  Assumed for all: heads that carry only zeros are left out; none of the effects that
    RoundingLayer.v lists as not covered. *)

From Coq Require Import Reals ZArith List Bool Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Softmax Lemma2 Layers Geometry.
From Attention Require Import RoundingTree RoundingHead RoundingTaps RoundingLayer RoundingWeights FloatSoftmax RoundingDyadic
  RoundingSame.
From Attention Require RoundingScores.
From Attention Require Import CheckFields CheckTaps CheckHeads CheckSame CheckSharp CheckSums.
Import ListNotations.
Open Scope R_scope.

Section Computed.
Variables (c : convolution) (m : attention_layer) (emin prec : Z) (B T : dyadic).

(** The most products in an output of the convolution, in a value, in an output of the layer. *)
Definition n_conv : nat := S (length (kernel_shifts c) * in_g c).
Definition n_values : nat := in_g c.
Definition n_outputs : nat := S (length (kept m) * Z.to_nat (head_dim m)).
(** The most products in an entry of W_val W_out, and the most of these entries that an output reads. *)
Definition n_weights : nat := Z.to_nat (head_dim m).
Definition n_entries : nat := length (kept m) * in_g c.

(** The rounding of every output channel is at most T, head by head and with W_val W_out formed first. *)
Definition check_rounding : bool :=
  let through := over_heads head_through (kept m) in
  let outward := over_heads head_outward (kept m) in
  let kernel := kernel_sums (transposed c) (c_weight c) in
  let figure := z_same emin prec (Z.of_nat n_conv) in
  let by_head := figure (Z.of_nat n_values) (Z.of_nat n_outputs) B in
  let weights := figure (Z.of_nat n_weights) (Z.of_nat (S n_entries)) B in
  let entries := z_mul (z_of (Z.of_nat n_entries)) B in
  forallb (fun u =>
    let M := nth u through [] in
    let O := nth u outward [] in
    let C := nth u kernel [] in
    forallb (fun k =>
      let b := Dyadic (nth (u * out_g c + k) (c_bias c) 0%Z) (c_bias_scale c) in
      let C_k := Dyadic (nth k C 0%Z) (c_weight_scale c) in
      let M_k := Dyadic (nth k M 0%Z) (s_val (scale_of m) + s_out (scale_of m)) in
      z_le (by_head b C_k M_k (Dyadic (nth k O 0%Z) (s_out (scale_of m)))) T && z_le (weights b C_k M_k entries) T)
    (seq 0 (out_g c))) (seq 0 (groups_n c)).

Definition check_shifted : bool := Z.ltb 0 prec && z_le (z_of 0) B && check_rounding.

(** log2 of the heads' integer at 2^(s_v + s_key_pos). *)
Definition sharp_exponent : Z := match kept m with h :: _ => Z.log2 (sharpness_read m h) | [] => 0%Z end.

(** α of every head, if they are equal. *)
Definition alpha_exponent : Z := sharp_exponent + (s_v (scale_of m) + s_key_pos (scale_of m)).

(** The encoding is quadratic, α = 2^alpha_exponent of every head, and τ is whole. *)
Definition check_floats : bool :=
  match a_encoding m with quadratic => true | _ => false end && Z.leb 0 sharp_exponent &&
  forallb (fun h => Z.eqb (sharpness_read m h) (2 ^ sharp_exponent) && on_lattice m h) (kept m) &&
  Z.leb emin alpha_exponent && sharp_format emin prec && forallb (sharp_enough m emin) (kept m) && check_shifted.

(** The meaning of an accepted check, in full. *)
Definition floats_within : Prop :=
  let α := bpow radix2 alpha_exponent in
  let L := with_heads (layer_of m) (kept m) in
  forall order expf sizes X o j (scores P : raw_head -> position -> R) y z,
  let G := tokens c sizes in let q := query_of c sizes o in
  accepts c sizes -> In o (outputs c sizes) -> (j < groups_n c * out_g c)%nat ->
  (forall k i, In k G -> (i < groups_n c * in_g c)%nat ->
     float emin prec (reads c sizes X k i) /\ Rabs (reads c sizes X k i) <= value B) ->
  sharp_exp emin prec α expf ->
  (forall h, In h (kept m) -> RoundingScores.exact_scores prec q (shift_read m h) G) ->
  (* the evaluations *)
  (forall h, In h (kept m) ->
     (forall k, In k G -> computes emin prec (RoundingScores.score_terms (dims c) α (shift_read m h) (sub k q))
       (scores h k)) /\
     float_softmax emin prec expf G (scores h) (P h)) ->
  computes emin prec (conv_terms (groups_n c * in_g c) (kernel_shifts c) (kernel_at c) (bias_of c) (reads c sizes X) q
    j) y ->
  attend_computes emin prec order L G (reads c sizes X) P j z ->
  (* what the tensors give is −α(1, −2τ); the exact convolution is torch's *)
  (forall h, In h (kept m) -> forall i, (i < S (dims c))%nat ->
     row_times (D_k L) (v (parameters L h)) (W_key_pos (parameters L h)) i = v_quadratic α (shift_read m h) i) /\
  conv (groups_n c * in_g c) (kernel_shifts c) (kernel_at c) (bias_of c) (reads c sizes X) q j = computes_conv c sizes
    X o j /\
  Rabs (z - y) <= value T.

(** The same of the sum that runs by default, of shifted tokens, in which there is no softmax. *)
Definition shifted_within : Prop :=
  forall sizes X o j y z,
  let G := tokens c sizes in let q := query_of c sizes o in
  accepts c sizes -> fits m sizes = true -> In o (outputs c sizes) -> (j < groups_n c * out_g c)%nat ->
  (forall k i, In k G -> (i < groups_n c * in_g c)%nat ->
     float emin prec (reads c sizes X k i) /\ Rabs (reads c sizes X k i) <= value B) ->
  computes emin prec (conv_terms (groups_n c * in_g c) (kernel_shifts c) (kernel_at c) (bias_of c) (reads c sizes X) q
    j) y ->
  shifted_computes emin prec (with_heads (layer_of m) (kept m)) (shift_read m) (reads c sizes X) q j z ->
  (* the exact convolution is torch's *)
  conv (groups_n c * in_g c) (kernel_shifts c) (kernel_at c) (bias_of c) (reads c sizes X) q j = computes_conv c sizes
    X o j /\
  Rabs (z - y) <= value T.

(** The bounds of one channel. *)
Lemma check_rounding_channel u k : check_rounding = true -> (u < groups_n c)%nat -> (k < out_g c)%nat ->
  let b := bias_of c (u * out_g c + k) in
  let C := number_of (c_weight_scale c) (entry_of (kernel_sums (transposed c) (c_weight c)) u k) in
  let M := number_of (s_val (scale_of m) + s_out (scale_of m)) (entry_of (over_heads head_through (kept m)) u k) in
  let O := number_of (s_out (scale_of m)) (entry_of (over_heads head_outward (kept m)) u k) in
  same_figure emin prec n_conv n_values n_outputs (value B) b C M O <= value T /\
  same_figure emin prec n_conv n_weights (S n_entries) (value B) b C M (INR n_entries * value B) <= value T.
Proof.
  intros E Hu Hk; unfold check_rounding in E; cbv zeta in E; rewrite forallb_forall in E.
  specialize (E u ltac:(apply in_seq; lia)); rewrite forallb_forall in E; specialize (E k ltac:(apply in_seq; lia)).
  apply andb_prop in E; destruct E as [E1 E2]; apply value_le in E1, E2; rewrite z_same_value in E1, E2.
  rewrite value_mul, value_of, <- INR_IZR_INZ in E2; exact (conj E1 E2).
Qed.

Lemma tap_by_tap sizes j : check_same c m = true -> accepts c sizes -> (j < groups_n c * out_g c)%nat ->
  forall τ i, In τ (kernel_shifts c) -> (i < groups_n c * in_g c)%nat ->
  head_tap (with_heads (layer_of m) (kept m)) (shift_read m) j τ i = kernel_at c τ i j.
Proof.
  intros Cs A Hj τ i Iτ Hi; destruct (same_tensors c m sizes Cs A) as [_ St]; rewrite <- St by assumption.
  unfold head_tap, tap; apply sum_ext; intros h _.
  destruct (same_position _ _), (position_eq_dec _ _); congruence || reflexivity.
Qed.

Theorem check_shifted_sound : check_same c m = true -> check_shifted = true -> shifted_within.
Proof.
  intros Cs E sizes X o j y z G q A _ Io Hj HX Cy Cz.
  assert (ok : comparable c m = true) by (unfold check_same in Cs; rewrite !andb_true_iff in Cs; tauto).
  split; [symmetry; apply (computes_conv_shifts c m ok sizes A X o j Hj Io)|].
  unfold check_shifted in E; rewrite !andb_true_iff in E; destruct E as [[Cp Cb] Cr]; apply Z.ltb_lt in Cp; apply value_le in Cb; rewrite value_of in Cb; assert (Pp : Prec_gt_0 prec) by exact Cp.
  destruct (same_fields c m ok) as (Fg & Fi & _ & _), (same_tensors c m sizes Cs A) as [Sb _].
  set (L := with_heads (layer_of m) (kept m)) in *.
  assert (Ein : D_in L = (groups_n c * in_g c)%nat) by (cbn; rewrite Fg, Fi; reflexivity).
  destruct (comparable_facts c m ok) as (_ & W & _); destruct (channels_g c W) as (_ & _ & Hog).
  set (u := (j / out_g c)%nat); set (k := (j mod out_g c)%nat).
  assert (Hu : (u < groups_n c)%nat) by (apply Nat.div_lt_upper_bound; lia).
  assert (Hk : (k < out_g c)%nat) by (apply Nat.mod_upper_bound; lia).
  assert (Ej : j = (u * out_g c + k)%nat) by (unfold u, k; rewrite Nat.mul_comm; apply Nat.div_mod; lia).
  destruct (check_rounding_channel u k Cr Hu Hk) as [_ T2]; rewrite <- Ej in T2; eapply Rle_trans; [|exact T2].
  apply (same_rounding_shifted L (shift_read m) (kernel_shifts c) (kernel_at c) (bias_of c) j) with
    (G := G) (X := reads c sizes X) (q := q); rewrite ?Ein; try assumption.
  - apply (kernel_shifts_positions c m ok sizes A).
  - apply (heads_on_shifts c m ok).
  - intros τ i; apply (tap_by_tap sizes j Cs A Hj).
  - apply Sb, Hj.
  - intros h i v _ _; apply (weights_rounding emin prec); rewrite Ej; apply (support_products c m ok u k).
  - rewrite <- Ein, Ej; apply (support_kernel c m ok u k Hk).
  - rewrite <- Ein, Ej; apply (support_entries c m ok u k Hk).
  - rewrite <- Ein, Ej; apply (kernel_value c m ok u k Hu Hk sizes A).
  - rewrite Ej; apply Req_le, (through_value c m ok u k Hu Hk).
  - apply (tokens_dims c m ok sizes A).
  - apply (targets_on_tokens c sizes A o Io).
Qed.

Theorem check_floats_sound : check_same c m = true -> check_floats = true -> floats_within.
Proof.
  intros Cs E; cbv beta delta [floats_within];
    intros α L order expf sizes X o j scores P y z G q A Io Hj HX Ex Es Ev Cy Cz.
  assert (ok : comparable c m = true) by (unfold check_same in Cs; rewrite !andb_true_iff in Cs; tauto).
  unfold check_floats, sharp_format in E; rewrite !andb_true_iff, !forallb_forall in E.
  destruct E as ((((((Cq & Ca) & Ch) & Cn) & ((Cp & Ce) & _)) & _) & E0).
  assert (Eq : a_encoding m = quadratic) by (destruct (a_encoding m); congruence).
  assert (E1 := E0); unfold check_shifted in E1; rewrite !andb_true_iff in E1; destruct E1 as [[_ Cb] Cr].
  apply Z.leb_le in Ca, Ce, Cn; apply Z.ltb_lt in Cp; apply value_le in Cb; rewrite value_of in Cb.
  destruct (same_fields c m ok) as (Fg & Fi & Fo & Fd), (same_tensors c m sizes Cs A) as [Sb St].
  assert (Pp : Prec_gt_0 prec) by exact Cp.
  assert (Kg := targets_on_tokens c sizes A o Io); assert (Kh := heads_on_shifts c m ok).
  assert (Ein : D_in L = (groups_n c * in_g c)%nat) by (cbn; rewrite Fg, Fi; reflexivity).
  split; [|split].
  - intros h Ih; specialize (Ch h Ih); apply andb_prop in Ch; destruct Ch as [Ch Cl]; apply Z.eqb_eq in Ch.
    replace α with (alpha_of m h);
      [assert (K := proj2 (proj2 (proj2 (kept_sharp c m ok h Ih))) Cl); rewrite Eq in K; exact K|].
    unfold alpha_of, number_of, value; cbn [mantissa exponent]; unfold α, alpha_exponent.
    rewrite Ch, (bpow_plus radix2 sharp_exponent); f_equal; change 2%Z with (radix_val radix2); apply IZR_Zpower, Ca.
  - symmetry; apply (computes_conv_shifts c m ok sizes A X o j Hj Io).
  - destruct (comparable_facts c m ok) as (_ & W & _); destruct (channels_g c W) as (_ & _ & Hog).
    set (u := (j / out_g c)%nat); set (k := (j mod out_g c)%nat).
    assert (Hu : (u < groups_n c)%nat) by (apply Nat.div_lt_upper_bound; lia).
    assert (Hk : (k < out_g c)%nat) by (apply Nat.mod_upper_bound; lia).
    assert (Ej : j = (u * out_g c + k)%nat) by (unfold u, k; rewrite Nat.mul_comm; apply Nat.div_mod; lia).
    assert (Sh : forall h, In h (kept m) ->
      gap α G (scores h) (add q (shift_read m h)) /\ float_softmax emin prec expf G (scores h) (P h)).
    { intros h Ih; destruct (Ev h Ih) as [Sc Sf]; assert (Lf := shift_dims c m ok sizes A h Ih); split; [|exact Sf].
      apply (RoundingScores.quadratic_gap emin prec alpha_exponent (dims c) Cn G q (shift_read m h) (scores h));
        try assumption.
      - apply (tokens_dims c m ok sizes A).
      - apply (query_dims c m ok sizes A o Io).
      - apply Kg, Kh, Ih.
      - apply Es, Ih. }
    destruct (check_rounding_channel u k Cr Hu Hk) as [T1 _]; rewrite <- Ej in T1.
    destruct order as [o'|].
    + eapply Rle_trans; [|exact T1]; apply (same_rounding L (shift_read m) (kernel_shifts c) (kernel_at c) (bias_of c) j) with (o := o') (expf := expf)
        (g := α) (G := G) (X := reads c sizes X) (q := q) (s := scores) (P := P); rewrite ?Ein; try assumption.
      * apply (kernel_shifts_positions c m ok sizes A).
      * apply (tap_by_tap sizes j Cs A Hj).
      * apply Sb, Hj.
      * rewrite Ej; apply (support_columns c m ok u k).
      * rewrite <- Ein, Ej; apply (support_kernel c m ok u k Hk).
      * rewrite Ej; apply (support_outputs c m ok u k Hk).
      * rewrite <- Ein, Ej; apply (kernel_value c m ok u k Hu Hk sizes A).
      * rewrite Ej; apply Req_le, (through_value c m ok u k Hu Hk).
      * rewrite Ej; apply Req_le, (outward_value c m ok u k Hu Hk).
      * apply (tokens_dims c m ok sizes A).
      * apply bpow_gt_0.
      * apply generic_format_FLT_bpow; assumption.
    + apply (check_shifted_sound Cs E0 sizes X o j y z A ltac:(unfold fits; rewrite Eq; reflexivity) Io Hj HX Cy).
      apply (shifted_sum emin prec L (shift_read m) G (reads c sizes X) q j (value B)) with (P := P); try assumption.
      * apply (tokens_dims c m ok sizes A).
      * rewrite Ein; exact HX.
      * intros h Ih; apply Kg, Kh, Ih.
      * intros h Ih; destruct (Sh h Ih) as [Sg Sf]; apply (softmax_one_hot emin prec Ce expf G (scores h) _ α);
          try assumption; [apply (tokens_dims c m ok sizes A)|apply Kg, Kh, Ih|apply bpow_gt_0|].
        apply generic_format_FLT_bpow; assumption.
Qed.

(** What it assumes of the exponential holds of every one that is correctly rounded, if the check accepts a layer with a
    head that carries something. *)
Theorem floats_exponential expf : check_floats = true -> kept m <> [] -> correctly_rounded emin prec expf ->
  sharp_exp emin prec (bpow radix2 alpha_exponent) expf.
Proof.
  intros E K Ex; unfold check_floats, sharp_format in E; rewrite !andb_true_iff, !forallb_forall in E.
  destruct E as ((((((_ & Ca) & Ch) & _) & ((Cp & Ce) & _)) & Cq) & _); unfold alpha_exponent.
  set (a := sharp_exponent) in *; clearbody a.
  apply Z.leb_le in Ca, Ce; apply Z.ltb_lt in Cp; assert (Pp : Prec_gt_0 prec) by exact Cp.
  destruct (kept m) as [|h hs]; [congruence|]; specialize (Ch h (or_introl eq_refl)); specialize (Cq h (or_introl eq_refl)).
  apply andb_prop in Ch; destruct Ch as [Ch _]; apply Z.eqb_eq in Ch; apply value_le in Cq; rewrite value_of in Cq;
    unfold value in Cq; cbn [mantissa exponent] in Cq.
  rewrite Ch in Cq; change (2 ^ a)%Z with (radix2 ^ a)%Z in Cq; rewrite IZR_Zpower, <- bpow_plus in Cq by exact Ca.
  apply correctly_rounded_exp; try assumption.
  eapply Rle_lt_trans; [|apply least_sharp_enough, Ce]; apply exp_monotone; lra.
Qed.

End Computed.
