(** The checker in the mode `soft`: heads at finite sharpness, on and off the lattice, as they run in floating point.

    Leakage is Lemma 2's, its sums over the other keys written out in integers: where c = −α(1, −2τ), a key at the
    distance m from the nearest one on axis i weighs e^{−αm² + r_i m}, r_i the rest of c_i.  Rounding is that of
    RoundingSoft.v: the errors of scores and of an axis's weights grow with the size of the input, so the question
    states the largest.

    Statements:
      softmaxes_bound       a head gives its nearest key at least 1/P of its attention, P computed in integers
      attended_error_sound  the error of an attended value, axis by axis, for so many tokens on each axis or fewer
      check_soft_sound      if [check_soft] accepts B and T for a format and sizes, then every float evaluation of the
                            layer as it runs by default (each head attends axis by axis, in any order, or copies the
                            token at q + τ; W_val W_out first; one sum) and every float evaluation of the convolution
                            differ by T at most: leakage + taps + rounding, for inputs of these sizes or smaller, all
                            floats |X| ≤ B, every output and channel
    Assumed: the softmax runs in float64, and its exponential errs by two units in the last place at most, or by four
    halves of the least float ([exp_accurate]); nothing overflows; heads that carry only zeros are left out. *)

From Coq Require Import Reals ZArith List Bool Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Softmax Lemma2 Factorisation Leakage Layers Geometry Transposed.
From Attention Require Import RoundingTree RoundingDot RoundingHead RoundingTaps RoundingLayer RoundingWeights
  FloatSoftmax FloatSoftmaxError RoundingSoft RoundingSame RoundingDyadic.
From Attention Require Import CheckSparse CheckFields CheckTaps CheckHeads CheckSame CheckWithin CheckSums CheckFloats.
Import ListNotations.
Open Scope R_scope.

(** * Leakage *)

(** m·2^e from above as an integer times 2^−bits. *)
Definition z_fixed (bits : Z) (x : dyadic) : Z :=
  let s := (exponent x + bits)%Z in
  if Z.leb 0 s then Z.shiftl (mantissa x) s else (Z.shiftr (mantissa x) (- s) + 1)%Z.

(** A constant, which the program computes once. *)
Definition unit_256 : Z := 2 ^ 256.

(** x^(2^n) from above, in multiples of 2^−256. *)
Fixpoint powers (n : nat) (x : Z) : Z :=
  match n with O => x | S n' => let y := powers n' x in (y * y / unit_256 + 1)%Z end.

(** e^{−x} from above, for x ≥ 0, as CheckWithin.v's [exp_bound], but by faster integers: no less than e^−128. *)
Definition exp_up (x : dyadic) : dyadic :=
  let x := if z_le (z_of 128) x then z_of 128 else x in
  let y := Dyadic (mantissa x) (exponent x - 80) in
  Dyadic (powers 80 (z_fixed 256 (z_add (z_sub (z_of 1) y) (z_mul y y)))) (-256).

(** Σ_m e^{−(a·m² − r·m)·2^e} from above over an axis of n keys, m ≠ 0 the distance from the nearest one: M terms on
    either side, and the rest, of which each is at most e^{−a·M(M+1)·2^e}. *)
Definition axis_excess (e a r n : Z) : dyadic :=
  let M := Z.min (Z.min n 1024) (1 + Z.sqrt (Z.shiftl 128 (- e) / a)) in
  z_add
    (z_sum (seq 0 (Z.to_nat M)) (fun i => let m := Z.of_nat (S i) in
      z_add (exp_up (Dyadic (a * (m * m) - r * m) e)) (exp_up (Dyadic (a * (m * m) + r * m) e))))
    (if Z.ltb M n then z_mul (z_of n) (exp_up (Dyadic (a * (M * (M + 1))) e)) else z_of 0).

(** x / p from above, for p > 0. *)
Definition z_quotient (x p : dyadic) : dyadic :=
  let k := (Z.log2 (mantissa p) + 64)%Z in
  Dyadic (Z.shiftl (mantissa x) k / mantissa p + 1) (exponent x - exponent p - k).

(** Π_i (1 + x_i), by the axes' numbers of keys and remainders of c_i. *)
Definition normaliser (e a : Z) (rs ns : list Z) : dyadic :=
  fold_right (fun rn P => z_mul (z_add (z_of 1) (axis_excess e a (fst rn) (snd rn))) P) (z_of 1) (combine rs ns).

Lemma z_fixed_le bits x : value x <= number_of (- bits) (z_fixed bits x).
Proof.
  unfold z_fixed, number_of; set (s := (exponent x + bits)%Z); destruct (Z.leb_spec 0 s) as [L|L].
  - unfold value; cbn [mantissa exponent]; replace s with (exponent x - - bits)%Z by (unfold s; ring).
    rewrite shift_value by (unfold s in L; lia); apply Rle_refl.
  - replace (Dyadic (Z.shiftr (mantissa x) (- s) + 1) (- bits))
      with (Dyadic (Z.shiftr (mantissa x) (- s) + 1) (exponent x + - s)) by (f_equal; unfold s; ring).
    unfold value; cbn [mantissa exponent]; rewrite (Z.add_comm (exponent x)), bpow_plus, <- Rmult_assoc.
    apply Rmult_le_compat_r; [apply bpow_ge_0|]; rewrite <- IZR_Zpower by lia; rewrite <- mult_IZR; apply IZR_le.
    rewrite Z.shiftr_div_pow2 by lia; change (radix2 ^ - s)%Z with (2 ^ - s)%Z.
    assert (P : (0 < 2 ^ - s)%Z) by (apply Z.pow_pos_nonneg; lia).
    assert (D := Z.div_mod (mantissa x) (2 ^ - s) ltac:(lia)); assert (M := Z.mod_pos_bound (mantissa x) (2 ^ - s) P);
      nia.
Qed.

Lemma powers_sound n x y : exp (- y) <= number_of (-256) x -> exp (- (2 ^ n * y)) <= number_of (-256) (powers n x).
Proof.
  intros E; induction n as [|n IH]; [rewrite pow_O, Rmult_1_l; exact E|].
  replace (- (2 ^ S n * y)) with (- (2 ^ n * y) + - (2 ^ n * y)) by (simpl; ring); rewrite exp_plus; cbn [powers].
  set (p := powers n x) in *; apply Rle_trans with (number_of (-256) p * number_of (-256) p).
  - apply Rmult_le_compat; try (left; apply exp_pos); exact IH.
  - rewrite number_of_times; unfold number_of, value; cbn [mantissa exponent].
    assert (U : (0 < unit_256)%Z) by reflexivity; assert (D := Z.div_mod (p * p) unit_256 ltac:(lia)).
    assert (M := Z.mod_pos_bound (p * p) unit_256 U); assert (L : (p * p <= (p * p / unit_256 + 1) * unit_256)%Z)
      by lia.
    apply IZR_le in L; rewrite (mult_IZR _ unit_256) in L.
    assert (B : IZR unit_256 = bpow radix2 256) by (rewrite <- IZR_Zpower by discriminate; reflexivity).
    rewrite B in L; apply (Rmult_le_compat_r (bpow radix2 (-256 + -256))) in L; [|apply bpow_ge_0].
    rewrite Rmult_assoc, <- bpow_plus in L; exact L.
Qed.

Lemma exp_up_sound x : 0 <= value x -> exp (- value x) <= value (exp_up x).
Proof.
  intros Hx; unfold exp_up; set (x' := if z_le (z_of 128) x then z_of 128 else x).
  assert (X : 0 <= value x' <= value x).
  { unfold x'; destruct (z_le (z_of 128) x) eqn:E; [|lra]; apply value_le in E; rewrite value_of in *; lra. }
  apply Rle_trans with (exp (- value x')); [apply exp_le; lra|]; cbv zeta;
    set (y := Dyadic (mantissa x') (exponent x' - 80)).
  assert (Ey : value x' = 2 ^ 80 * value y).
  { unfold y, value; cbn [mantissa exponent]; unfold Z.sub; rewrite bpow_plus;
    change (bpow radix2 (- (80))) with (/ IZR (2 ^ 80)).
    rewrite (pow_IZR 2 80); change (2 ^ Z.of_nat 80)%Z with (2 ^ 80)%Z; field; apply IZR_neq; discriminate. }
  assert (Hy : 0 <= value y) by (assert (0 < 2 ^ 80) by (apply pow_lt; lra); nra).
  rewrite Ey; apply powers_sound; eapply Rle_trans; [|apply (z_fixed_le 256)].
  rewrite value_add, value_sub, value_of, value_mul; set (z := value y) in *.
  assert (E := exp_ineq1_le z); assert (P := exp_pos z); rewrite exp_Ropp.
  apply Rmult_le_reg_l with (exp z); [exact P|]; rewrite Rinv_r by lra.
  apply Rle_trans with ((1 + z) * (1 - z + z * z)); [|apply Rmult_le_compat_r; nra].
  replace ((1 + z) * (1 - z + z * z)) with (1 + z * z * z) by ring.
  assert (0 <= z * z * z) by (apply Rmult_le_pos; [nra|exact Hy]); lra.
Qed.

Lemma z_quotient_sound x p : (0 < mantissa p)%Z -> value x / value p <= value (z_quotient x p).
Proof.
  intros Hp; unfold z_quotient; set (k := (Z.log2 (mantissa p) + 64)%Z).
  assert (K : (0 <= k)%Z) by (unfold k; assert (L := Z.log2_nonneg (mantissa p)); lia).
  assert (P := IZR_lt _ _ Hp); assert (D := Z.div_mod (Z.shiftl (mantissa x) k) (mantissa p) ltac:(lia)).
  assert (R := Z.mod_pos_bound (Z.shiftl (mantissa x) k) (mantissa p) Hp); set (y := (_ / mantissa p)%Z) in *.
  assert (L : (Z.shiftl (mantissa x) k <= mantissa p * (y + 1))%Z) by lia.
  apply IZR_le in L; rewrite Z.shiftl_mul_pow2, !mult_IZR in L by exact K.
  change (2 ^ k)%Z with (radix2 ^ k)%Z in L; rewrite IZR_Zpower in L by exact K.
  unfold value; cbn [mantissa exponent]; unfold Z.sub; rewrite !bpow_plus, !bpow_opp.
  assert (B0 := bpow_gt_0 radix2 (exponent x)); assert (B1 := bpow_gt_0 radix2 (exponent p));
    assert (B2 := bpow_gt_0 radix2 k).
  assert (Q : IZR (mantissa x) / IZR (mantissa p) <= IZR (y + 1) * / bpow radix2 k).
  { apply Rmult_le_reg_r with (bpow radix2 k); [exact B2|]; rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
    apply Rmult_le_reg_r with (IZR (mantissa p)); [exact P|].
    replace (IZR (mantissa x) / IZR (mantissa p) * bpow radix2 k * IZR (mantissa p)) with (IZR (mantissa x)
      * bpow radix2 k)
      by (field; lra); lra. }
  replace (IZR (mantissa x) * bpow radix2 (exponent x) / (IZR (mantissa p) * bpow radix2 (exponent p)))
    with (IZR (mantissa x) / IZR (mantissa p) * (bpow radix2 (exponent x) * / bpow radix2 (exponent p))) by (field;
      lra).
  replace (IZR (y + 1) * (bpow radix2 (exponent x) * / bpow radix2 (exponent p) * / bpow radix2 k))
    with (IZR (y + 1) * / bpow radix2 k * (bpow radix2 (exponent x) * / bpow radix2 (exponent p))) by ring.
  apply Rmult_le_compat_r; [|exact Q]; apply Rmult_le_pos; [lra|left; apply Rinv_0_lt_compat, B1].
Qed.

Lemma number_nonneg e z : (0 <= z)%Z -> 0 <= number_of e z.
Proof. intros Hz; unfold number_of, value; cbn [mantissa exponent]; apply Rmult_le_pos;
  [apply IZR_le, Hz|apply bpow_ge_0]. Qed.

(** The keys of one axis. *)
Lemma axis_excess_sound e a r n n' k0 : (n <= n')%Z -> (0 <= k0 < n)%Z -> (Z.abs r <= a)%Z ->
  sum (range n) (fun k => exp (- number_of e (a * ((k - k0) * (k - k0)) - r * (k - k0)))) <= 1 +
    value (axis_excess e a r n').
Proof.
  intros Hn Hk Hr; unfold axis_excess; set (M := Z.min _ _).
  set (g := fun k => exp (- number_of e (a * ((k - k0) * (k - k0)) - r * (k - k0)))).
  assert (M0 : (0 <= M)%Z).
  { unfold M; assert (Q := Z.sqrt_nonneg (Z.shiftl 128 (- e) / a)); lia. }
  set (near := fun k => Z.leb (Z.abs (k - k0)) M).
  assert (N : NoDup (range n)) by (unfold range; apply FinFun.Injective_map_NoDup; [intros x y; lia|apply seq_NoDup]).
  rewrite (sum_partition near (range n)), value_add, <- Rplus_assoc; apply Rplus_le_compat.
  - eapply Rle_trans; [apply (sum_incl _ (axis_around (Z.to_nat M) k0))|].
    + apply NoDup_filter, N.
    + intros k I; apply filter_In in I; destruct I as [_ I]; apply Z.leb_le in I; apply in_axis_around; lia.
    + intros; left; apply exp_pos.
    + unfold axis_around; rewrite sum_cons, sum_flat_map, value_sum; apply Rplus_le_compat.
      * unfold g; replace (a * ((k0 - k0) * (k0 - k0)) - r * (k0 - k0))%Z with 0%Z by ring.
        rewrite number_of_0, Ropp_0, exp_0; apply Rle_refl.
      * apply sum_le; intros i _; rewrite value_add, !sum_cons; change (sum [] g) with 0; rewrite Rplus_0_r.
        set (m := Z.of_nat (S i)); assert (Hm : (1 <= m)%Z) by (unfold m; lia).
        assert (S0 : forall x, (Z.abs x <= a)%Z -> (0 <= a * (m * m) - x * m)%Z) by (intros; nia).
        unfold g; apply Rplus_le_compat.
        -- replace (k0 + m - k0)%Z with m by ring; apply (exp_up_sound (Dyadic _ e)), number_nonneg, S0, Hr.
        -- replace (k0 - m - k0)%Z with (- m)%Z by ring.
           replace (a * (- m * - m) - r * - m)%Z with (a * (m * m) + r * m)%Z by ring.
           apply (exp_up_sound (Dyadic _ e)), number_nonneg; specialize (S0 (- r)%Z ltac:(lia)); lia.
  - destruct (Z.ltb_spec M n') as [L|L].
    + rewrite value_mul, value_of; set (far := filter _ _); apply Rle_trans with (INR (length far)
      * value (exp_up (Dyadic (a * (M * (M + 1))) e))).
      * rewrite <- sum_const; apply sum_le; intros k I; unfold far in I; apply filter_In in I; destruct I as [_ I].
        apply negb_true_iff, Z.leb_gt in I; unfold g.
        assert (T : (a * (M * (M + 1)) <= a * ((k - k0) * (k - k0)) - r * (k - k0))%Z).
        { set (y := (k - k0)%Z) in *; assert (a * (M * (M + 1)) <= a * (Z.abs y * (Z.abs y - 1)))%Z by
            (apply Z.mul_le_mono_nonneg_l; nia).
          assert (r * y <= a * Z.abs y)%Z by (destruct (Z.abs_spec y) as [[? ->]|[? ->]]; nia).
          assert (Z.abs y * Z.abs y = y * y)%Z by (destruct (Z.abs_spec y) as [[? ->]|[? ->]]; ring); nia. }
        apply (number_of_le e) in T; eapply Rle_trans; [|apply exp_up_sound, number_nonneg; nia].
        apply exp_le; unfold number_of at 2 in T; unfold number_of in *; lra.
      * apply Rmult_le_compat_r.
        -- eapply Rle_trans; [left; apply exp_pos|apply exp_up_sound, number_nonneg; nia].
        -- rewrite INR_IZR_INZ; apply IZR_le; apply Z.le_trans with (Z.of_nat (length (range n))).
           ++ unfold far; apply inj_le; clear; induction (range n) as [|x l IH]; simpl; [lia|]; destruct (negb _);
             simpl; lia.
           ++ unfold range; rewrite map_length, seq_length; lia.
    + rewrite value_of; apply Req_le, sum_zero; intros k I; exfalso; apply filter_In in I; destruct I as [I F].
      apply in_range in I; apply negb_true_iff, Z.leb_gt in F; lia.
Qed.

(** A head's softmax on every axis. *)
Lemma softmaxes_bound e a ns : forall (c : vector) q τ rs ns', Forall2 Z.le ns ns' ->
  Forall2 (fun x n => 0 <= x < n)%Z (add q τ) ns -> length q = length ns -> length τ = length ns ->
    length rs = length ns ->
  c O = number_of e (- a) ->
  (forall i, (i < length ns)%nat -> c (S i) = number_of e (2 * a * nth i τ 0 + nth i rs 0)%Z) ->
  Forall (fun r => Z.abs r <= a)%Z rs ->
  1 <= value (normaliser e a rs ns') /\
  / value (normaliser e a rs ns') <= axis_softmaxes (map range ns) (axis_terms c q) (add q τ).
Proof.
  induction ns as [|n ns IH]; intros c q τ rs ns' Hn Hq Lq Lτ Lr C0 Ci Hr; inversion Hn as [|? n' ? ns0 Hn1 Hn2]; subst.
  - destruct q; [|discriminate]; destruct rs; [|discriminate]; cbn; rewrite value_of, Rinv_1; split; apply Rle_refl.
  - destruct q as [|q1 q]; [discriminate|]; destruct τ as [|τ1 τ]; [discriminate|]; destruct rs as [|r1 rs];
    [discriminate|].
    injection Lq as Lq; injection Lτ as Lτ; injection Lr as Lr; inversion Hr as [|? ? R1 R2]; subst.
    cbn [add] in Hq; inversion Hq as [|? ? ? ? Q1 Q2]; subst.
    destruct (IH (fun i => match i with O => c O | S i' => c (S (S i')) end) q τ rs ns0) as [P1 P2]; try assumption.
    { intros i Hi; apply (Ci (S i)); simpl; lia. }
    unfold normaliser in *; cbn [combine fold_right fst snd]; fold (normaliser e a rs ns0) in *;
      rewrite value_mul, value_add, value_of.
    assert (X := axis_excess_sound e a r1 n n' (q1 + τ1) Hn1 Q1 R1); set (x := value (axis_excess e a r1 n')) in *.
    cbn [map axis_terms add axis_softmaxes]; rewrite softmax_inverse.
    set (t := fun x => c 0%nat * IZR ((x - q1) * (x - q1)) + c 1%nat * IZR (x - q1)).
    assert (T : forall k, t k - t (q1 + τ1)%Z = - number_of e (a * ((k - (q1 + τ1)) * (k - (q1 + τ1)))
      - r1 * (k - (q1 + τ1)))).
    { intros k; assert (C1 := Ci O ltac:(simpl; lia)); cbn [nth] in C1; unfold t; rewrite C0, C1;
      unfold number_of, value;
        cbn [mantissa exponent].
      repeat rewrite ?minus_IZR, ?plus_IZR, ?mult_IZR, ?opp_IZR; ring. }
    rewrite (sum_ext _ _ (fun k => exp (- number_of e (a * ((k - (q1 + τ1)) * (k - (q1 + τ1))) - r1 * (k - (q1 +
      τ1))))))
      by (intros; f_equal; apply T).
    set (S := sum (range n) _) in *.
    assert (S1 : 1 <= S).
    { unfold S; destruct (sum_split (range n) (q1 + τ1)%Z (fun k => exp (- number_of e (a * ((k - (q1 + τ1))
      * (k - (q1 + τ1))) - r1 * (k - (q1 + τ1))))))
        as (l & _ & ->); [apply in_range, Q1|].
      replace (a * ((q1 + τ1 - (q1 + τ1)) * (q1 + τ1 - (q1 + τ1))) - r1 * (q1 + τ1 - (q1 + τ1)))%Z with 0%Z by ring.
      rewrite number_of_0, Ropp_0, exp_0; match goal with |- 1 <= 1 + ?s => assert (0 <= s) by
        (apply sum_nonneg; intros; left; apply exp_pos) end; lra. }
    split; [nra|]; rewrite Rinv_mult; apply Rmult_le_compat; try (left; apply Rinv_0_lt_compat; lra).
    + apply Rinv_le_contravar; lra.
    + exact P2.
Qed.

(** * Scores *)

(** They and the softmax run in float64.  Its exponential errs by two units in the last place, or four halves of the
    least. *)
Definition wide_emin : Z := -1074.
Definition wide_prec : Z := 53.
Definition exp_relative : dyadic := Dyadic 4 (- wide_prec).
Definition exp_absolute : dyadic := Dyadic 4 (wide_emin - 1).
Definition exp_accurate : (R -> R) -> Prop :=
  accurate_exp wide_emin wide_prec (value exp_relative) (value exp_absolute).

Notation wide_dot := (z_dot_bound wide_emin wide_prec).

(** The weights that run on the axes Ks, for c as computed: a softmax of c_0·δ² + c_i·δ on each, in floats. *)
Fixpoint weights_run (emin prec : Z) (expf : R -> R) (c : vector) (q : position) (Ks : list (list Z))
  (ps : list (Z -> R)) : Prop :=
  match q, Ks, ps with
  | [], [], [] => True
  | q1 :: q', K :: Ks', p :: ps' =>
      (exists s, (forall k, In k K ->
         computes wide_emin wide_prec [(c O, IZR ((k - q1) * (k - q1))); (c 1%nat, IZR (k - q1))] (s k)) /\
       factor_computes wide_emin wide_prec emin prec expf K s p) /\
      weights_run emin prec expf (fun i => match i with O => c O | S i' => c (S (S i')) end) q' Ks' ps'
  | _, _, _ => False
  end.

(** Rounding and size of a score, from errors E0 and E1 of c_0 and c_i, and their sizes C0 and C1, for |δ| ≤ n. *)
Definition score_size (n : Z) (C0 C1 : dyadic) : dyadic := z_add (z_mul C0 (z_of (n * n))) (z_mul C1 (z_of n)).
Definition score_error (n : Z) (E0 E1 C0 C1 : dyadic) : dyadic :=
  z_add (score_size n E0 E1) (wide_dot 2 (score_size n C0 C1)).

#[local] Instance wide_positive : Prec_gt_0 wide_prec.
Proof. reflexivity. Qed.

Lemma score_axis n E0 E1 C0 C1 c0 c1 d0 d1 δ s : (Z.abs δ <= n)%Z ->
  Rabs (d0 - c0) <= value E0 -> Rabs (d1 - c1) <= value E1 -> Rabs d0 <= value C0 -> Rabs d1 <= value C1 ->
  computes wide_emin wide_prec [(d0, IZR (δ * δ)); (d1, IZR δ)] s ->
  float wide_emin wide_prec s /\ Rabs (s - (c0 * IZR (δ * δ) + c1 * IZR δ)) <= value (score_error n E0 E1 C0 C1) /\
  Rabs s <= value (score_size n C0 C1) + value (score_error n E0 E1 C0 C1).
Proof.
  intros Hδ H0 H1 K0 K1 C.
  assert (n0 : (0 <= n)%Z) by lia.
  assert (D : 0 <= IZR (δ * δ) <= IZR (n * n)).
  { split; apply IZR_le; [apply Z.square_nonneg|destruct (Z.abs_spec δ) as [[? E]|[? E]]; rewrite E in Hδ; nia]. }
  assert (D1 : Rabs (IZR δ) <= IZR n) by (rewrite <- abs_IZR; apply IZR_le, Hδ).
  assert (A0 := Rabs_pos (IZR δ)); assert (A1 := Rabs_pos d0); assert (A2 := Rabs_pos d1).
  assert (A3 := Rabs_pos (d0 - c0)); assert (A4 := Rabs_pos (d1 - c1)).
  assert (R := axis_score_rounding wide_emin wide_prec d0 d1 δ s wide_positive C).
  assert (S : Rabs d0 * IZR (δ * δ) + Rabs d1 * Rabs (IZR δ) <= value (score_size n C0 C1)).
  { unfold score_size; rewrite value_add, !value_mul, !value_of; apply Rplus_le_compat; apply Rmult_le_compat; lra. }
  assert (S' : Rabs (d0 - c0) * IZR (δ * δ) + Rabs (d1 - c1) * Rabs (IZR δ) <= value (score_size n E0 E1)).
  { unfold score_size; rewrite value_add, !value_mul, !value_of; apply Rplus_le_compat; apply Rmult_le_compat; lra. }
  assert (Z0 : 0 <= Rabs d0 * IZR (δ * δ) + Rabs d1 * Rabs (IZR δ)) by
    (apply Rplus_le_le_0_compat; apply Rmult_le_pos; lra).
  assert (B := dot_bound_monotone wide_emin wide_prec _ _ _ _ (le_n 2) Z0 S).
  assert (E : Rabs (s - (c0 * IZR (δ * δ) + c1 * IZR δ)) <= value (score_error n E0 E1 C0 C1)).
  { unfold score_error; rewrite value_add, (value_dot_bound wide_emin wide_prec 2).
    replace (s - (c0 * IZR (δ * δ) + c1 * IZR δ)) with
      ((d0 - c0) * IZR (δ * δ) + (d1 - c1) * IZR δ + (s - (d0 * IZR (δ * δ) + d1 * IZR δ))) by ring.
    eapply Rle_trans; [apply Rabs_triang|]; apply Rplus_le_compat; [|lra].
    eapply Rle_trans; [apply Rabs_triang|]; rewrite !Rabs_mult, (Rabs_pos_eq (IZR (δ * δ))) by apply D; exact S'. }
  split; [|split; [exact E|]].
  - destruct C as (t & _ & T); eapply evaluation_float, T.
  - replace s with (d0 * IZR (δ * δ) + d1 * IZR δ + (s - (d0 * IZR (δ * δ) + d1 * IZR δ))) by ring.
    eapply Rle_trans; [apply Rabs_triang|]; apply Rplus_le_compat.
    + eapply Rle_trans; [apply Rabs_triang|]; rewrite !Rabs_mult, (Rabs_pos_eq (IZR (δ * δ))) by apply D; exact S.
    + unfold score_error; rewrite value_add, (value_dot_bound wide_emin wide_prec 2).
      assert (0 <= value (score_size n E0 E1)); [|lra]; eapply Rle_trans; [|exact S'].
      apply Rplus_le_le_0_compat; apply Rmult_le_pos; lra.
Qed.

(** So these weights are those of scores with such errors. *)
Lemma weights_factors emin prec expf n E0 E1 C0 C1 Ks : forall (c d : vector) q ps,
  Forall2 (fun x K => K <> [] /\ forall k, In k K -> (Z.abs (k - x) <= n)%Z) q Ks ->
  Rabs (d O - c O) <= value E0 -> Rabs (d O) <= value C0 ->
  (forall i, (i < length Ks)%nat -> Rabs (d (S i) - c (S i)) <= value E1 /\ Rabs (d (S i)) <= value C1) ->
  weights_run emin prec expf d q Ks ps ->
  factors emin prec wide_emin wide_prec expf (value (score_error n E0 E1 C0 C1))
    (2 * (value (score_size n C0 C1) + value (score_error n E0 E1 C0 C1))) Ks (axis_terms c q) ps.
Proof.
  induction Ks as [|K Ks IH]; intros c d q ps F H0 K0 H1 W; inversion F as [|x ? q' ? [N B] F']; subst;
    cbn [weights_run] in W;
    destruct ps as [|p ps]; try contradiction; [constructor|].
  destruct W as [(s & Hs & P) W]; destruct (H1 O ltac:(simpl; lia)) as [H10 K10].
  assert (Sc : forall k, In k K -> _) by (intros k I; exact (score_axis n E0 E1 C0 C1 (c O) (c 1%nat) (d O) (d 1%nat)
    (k - x) (s k)
    (B k I) H0 H10 K0 K10 (Hs k I))).
  cbn [axis_terms]; apply factors_axis with (s := s); [exact N| | |exact P|].
  - intros k I; destruct (Sc k I) as (Fl & Er & _); split; assumption.
  - intros k k' I I'; destruct (Sc k I) as (_ & _ & A), (Sc k' I') as (_ & _ & A'); apply Rabs_le_inv in A, A'; lra.
  - apply (IH _ (fun i => match i with O => d O | S i' => d (S (S i')) end)); try assumption.
    intros i Hi; apply (H1 (S i)); simpl; lia.
Qed.

(** * The weights' errors *)

(** Those of FloatSoftmaxError.v from above, for n keys or fewer; [sum_ok]: the sum of exponentials errs by half at
    most. *)
Definition z_sum_error (n : Z) : dyadic :=
  let lost := z_mul (z_of n) exp_absolute in
  let one := z_add (z_add (z_of 1) exp_relative) lost in
  z_add (z_add (z_add exp_relative lost) (z_mul (Dyadic n (- wide_prec)) one))
    (z_mul (Dyadic n (wide_emin - 1)) (z_add (z_of 1) (Dyadic n (- wide_prec)))).
Definition sum_ok (n : Z) : bool := z_le (z_mul (z_of 2) (z_sum_error n)) (z_of 1).
Definition z_softmax_error (n : Z) : dyadic :=
  let u := Dyadic 1 (- wide_prec) in
  let lost := z_mul (z_of n) exp_absolute in
  let one := z_add (z_add (z_of 1) exp_relative) lost in
  let θ := z_sum_error n in
  z_add (z_mul (z_add (z_add (z_add (z_mul (z_mul u (z_add (z_of 2) u)) one) exp_relative) θ) lost)
      (z_add (z_of 1) (z_mul (z_of 2) θ)))
    (z_mul (Dyadic n (wide_emin - 1)) (z_add (z_of 1) (z_mul (z_add (z_of 1) u) one))).
Definition z_factor_error (emin prec n : Z) : dyadic :=
  let E := z_softmax_error n in
  z_add (z_add E (z_mul (Dyadic 1 (- prec)) (z_add (z_of 1) E)))
    (z_mul (z_of n) (z_add (Dyadic 1 (emin - 1)) (Dyadic 1 (-100)))).
Definition z_growth (emin prec n : Z) : dyadic :=
  round_up 256 (z_mul (z_add (z_of 1) (z_factor_error emin prec n)) (z_add (z_of 1) (Dyadic n (- prec)))).
Definition z_lost (emin prec n : Z) : dyadic := z_mul (Dyadic n (emin - 1)) (z_add (z_of 1) (Dyadic n (- prec))).

(** Σ_k P_k X_k errs by so much, axis by axis, for |X| ≤ B. *)
Definition attended_error (emin prec : Z) (ns : list Z) (B : dyadic) : dyadic :=
  z_sub (z_mul (fold_right (fun n P => z_mul (z_growth emin prec n) P) (z_of 1) ns)
    (z_add B (z_sum ns (z_lost emin prec)))) B.

Lemma scaled n e : value (Dyadic n e) = IZR n * bpow radix2 e.
Proof. reflexivity. Qed.

Ltac values := repeat rewrite ?value_add, ?value_sub, ?value_mul, ?value_of, ?scaled.

Section Errors.
Variables (n : nat) (n' : Z).
Hypothesis n_le : (Z.of_nat n <= n')%Z.

Notation ε := (value exp_relative).
Notation η' := (value exp_absolute).
Notation u := (roundoff wide_prec).
Notation h := (half_eta wide_emin).

Let N_le : 0 <= INR n <= IZR n'.
Proof. split; [apply pos_INR|rewrite INR_IZR_INZ; apply IZR_le, n_le]. Qed.
Let ε_0 : 0 <= ε.
Proof. apply Rmult_le_pos; [simpl; lra|apply bpow_ge_0]. Qed.
Let η_0 : 0 <= η'.
Proof. apply Rmult_le_pos; [simpl; lra|apply bpow_ge_0]. Qed.
Let u_0 : 0 <= u.
Proof. apply bpow_ge_0. Qed.
Let h_0 : 0 <= h.
Proof. apply bpow_ge_0. Qed.

(** Products and sums of nonnegative numbers grow with them. *)
Ltac grow := repeat first [assumption | lra | apply Rplus_le_compat | apply Rplus_le_le_0_compat | apply
  Rmult_le_compat | apply Rmult_le_pos].

Lemma z_sum_error_sound : 0 <= sum_error wide_emin wide_prec n ε η' <= value (z_sum_error n').
Proof.
  unfold sum_error, z_sum_error; cbv zeta; values.
  change (bpow radix2 (- wide_prec)) with u; change (bpow radix2 (wide_emin - 1)) with h; destruct N_le.
  split; grow.
Qed.

Lemma z_softmax_error_sound : sum_ok n' = true -> sum_error wide_emin wide_prec n ε η' < 1 /\
  0 <= softmax_error wide_emin wide_prec n ε η' <= value (z_softmax_error n').
Proof.
  intros Ok; apply value_le in Ok; rewrite value_mul, !value_of in Ok; destruct z_sum_error_sound as [θ0 θ1].
  set (θ := sum_error _ _ _ _ _) in *; set (θ' := value (z_sum_error n')) in *; split; [lra|].
  assert (Q : 0 < / (1 - θ) <= 1 + 2 * θ').
  { split; [apply Rinv_0_lt_compat; lra|]; apply Rmult_le_reg_l with (1 - θ); [lra|]; rewrite Rinv_r by lra.
    assert (0 <= θ' * (1 - 2 * θ)) by (apply Rmult_le_pos; lra); lra. }
  destruct N_le; unfold softmax_error, z_softmax_error; cbv zeta; values; fold θ; fold θ'.
  change (bpow radix2 (- wide_prec)) with u; change (bpow radix2 (wide_emin - 1)) with h; unfold Rdiv.
  split; grow.
Qed.

Variables emin prec : Z.

Lemma z_factor_error_sound : sum_ok n' = true ->
  0 <= factor_error wide_emin wide_prec emin prec n ε η' <= value (z_factor_error emin prec n').
Proof.
  intros Ok; destruct (z_softmax_error_sound Ok) as [_ [E0 E1]].
  assert (U : 0 <= roundoff prec) by apply bpow_ge_0; assert (Hh : 0 <= half_eta emin) by apply bpow_ge_0.
  assert (Ng : 0 <= negligible) by apply bpow_ge_0; destruct N_le.
  unfold factor_error, z_factor_error; cbv zeta; values; rewrite !Rmult_1_l.
  change (bpow radix2 (- prec)) with (roundoff prec); change (bpow radix2 (emin - 1)) with (half_eta emin).
  change (bpow radix2 (-100)) with negligible; split; grow.
Qed.

Lemma z_growth_sound : sum_ok n' = true ->
  1 <= growth prec n (factor_error wide_emin wide_prec emin prec n ε η') <= value (z_growth emin prec n').
Proof.
  intros Ok; destruct (z_factor_error_sound Ok) as [E0 E1]; assert (U : 0 <= roundoff prec) by apply bpow_ge_0;
    destruct N_le.
  unfold growth, z_growth; split.
  - assert (0 <= INR n * roundoff prec) by grow; nra.
  - eapply Rle_trans; [|apply round_up_le]; values; change (bpow radix2 (- prec)) with (roundoff prec); grow.
Qed.

Lemma z_lost_sound : 0 <= lost emin prec n <= value (z_lost emin prec n').
Proof.
  assert (U : 0 <= roundoff prec) by apply bpow_ge_0; assert (Hh : 0 <= half_eta emin) by apply bpow_ge_0;
    destruct N_le.
  unfold lost, z_lost; values; change (bpow radix2 (- prec)) with (roundoff prec).
  change (bpow radix2 (emin - 1)) with (half_eta emin); split; grow.
Qed.

End Errors.

Lemma attended_error_sound emin prec Ks ns B : Forall2 (fun K n => Z.of_nat (length K) <= n)%Z Ks ns ->
  forallb sum_ok ns = true -> 0 <= value B ->
  0 <= axes_error emin prec Ks (factor_errors emin prec Ks wide_emin wide_prec (value exp_relative)
    (value exp_absolute)) (value B)
    <= value (attended_error emin prec ns B).
Proof.
  intros F Ok HB; unfold axes_error, attended_error, factor_errors; rewrite value_sub, value_mul, value_add, value_sum.
  set (err := fun K : list Z => factor_error _ _ _ _ (length K) _ _).
  assert (G : 1 <= growths prec Ks (map err Ks) <= value (fold_right (fun n P => z_mul (z_growth emin prec n) P)
    (z_of 1) ns) /\
    0 <= sum Ks (fun K => lost emin prec (length K)) <= sum ns (fun n => value (z_lost emin prec n))).
  { clear HB; induction F as [|K n Ks ns Hn F IH]; cbn [map growths fold_right].
    - rewrite value_of; change (sum [] _) with 0; change (@sum Z [] _) with 0; repeat split; lra.
    - cbn [forallb] in Ok; apply andb_prop in Ok; destruct Ok as [O1 O2]; destruct (IH O2) as [[G0 G1] [L0 L1]].
      rewrite value_mul, !sum_cons; destruct (z_growth_sound (length K) n Hn emin prec O1) as [g0 g1];
        fold (err K) in g0, g1.
      destruct (z_lost_sound (length K) n Hn emin prec) as [l0 l1];
      repeat split; try nra; apply Rmult_le_compat; lra. }
  destruct G as [[G0 G1] [L0 L1]]; split; [nra|]; apply Rplus_le_compat_r; apply Rmult_le_compat; lra.
Qed.

(** * The tokens of every smaller input *)

(** The numbers of tokens on the axes. *)
Definition token_sizes (g : geometry) (sizes : list Z) : list Z :=
  if transposed g then map (fun a : taxis => transposed_size a + span a)%Z (taxes g sizes)
  else map (fun a => size a + before a + after a)%Z (axes g sizes).

Lemma tokens_box g sizes : tokens g sizes = box (map range (token_sizes g sizes)).
Proof. unfold tokens, token_sizes; destruct (transposed g); unfold stuffed_grid, token_grid; rewrite map_map;
  reflexivity. Qed.

Lemma token_sizes_monotone g sizes sizes' : accepts g sizes -> Forall2 Z.le sizes sizes' ->
  Forall2 Z.le (token_sizes g sizes) (token_sizes g sizes').
Proof.
  intros [_ A] F.
  set (le_axis := fun a b : axis => kernel a = kernel b /\ stride a = stride b /\ dilation a = dilation b /\
    before a = before b /\
    after a = after b /\ (size a <= size b)%Z).
  assert (L : Forall2 le_axis (axes g sizes) (axes g sizes')).
  { unfold axes, axes_of; clear A; generalize (pads (padding_of g) (kernel_size g) (dilation_of g)).
    generalize (stride_of g), (dilation_of g), (kernel_size g); revert sizes' F; induction sizes as [|n ns IH];
      intros sizes' F ss ds ks ps;
      inversion F; subst; destruct ks as [|k ks], ss as [|s ss], ds as [|d ds], ps as [|[p p'] ps];
      try apply Forall2_nil; simpl; constructor.
    - repeat split; assumption.
    - apply IH; assumption. }
  unfold token_sizes; destruct (transposed g).
  - unfold taxes in *; revert A; generalize (output_paddings g); induction L as [|a b as' bs (K & S & D & P & Q & Z)
    L IH];
      intros [|e es] A; try apply Forall2_nil; simpl; inversion A as [|? ? A1 A2]; subst; constructor.
    + unfold transposed_size, span; simpl; rewrite K, S, D, P, Q in *; destruct A1 as (_ & S1 & _); simpl in S1;
      rewrite S in S1.
      nia.
    + apply IH, A2.
  - clear A; induction L as [|a b as' bs (K & S & D & P & Q & Z) L IH]; simpl; constructor; [lia|exact IH].
Qed.

Lemma in_tokens g sizes p : In p (tokens g sizes) -> Forall2 (fun x n => 0 <= x < n)%Z p (token_sizes g sizes).
Proof.
  rewrite tokens_box, in_box; generalize (token_sizes g sizes); intros l; revert p; induction l as [|n l IH];
    intros p F;
    inversion F; subst; constructor; [apply in_range; assumption|apply IH; assumption].
Qed.

(** * Heads *)

(** e^y ≤ 1 + y + 2y² for 0 ≤ y ≤ 1/2 *)
Lemma exp_little y : 0 <= y <= 1 / 2 -> exp y <= 1 + y + 2 * (y * y).
Proof.
  intros Hy; assert (E := exp_ineq1_le (- y)); assert (P := exp_pos (- y)).
  apply Rmult_le_reg_r with (exp (- y)); [exact P|]; rewrite <- exp_plus, Rplus_opp_r, exp_0.
  apply Rle_trans with ((1 + y + 2 * (y * y)) * (1 + - y)); [|apply Rmult_le_compat_l; nra].
  replace ((1 + y + 2 * (y * y)) * (1 + - y)) with (1 + y * y * (1 - 2 * y)) by ring.
  assert (0 <= y * y * (1 - 2 * y)) by (apply Rmult_le_pos; nra); lra.
Qed.

Section Head.
Variables (m : attention_layer) (h : raw_head).

Definition c_scale : Z := (s_v (scale_of m) + s_key_pos (scale_of m))%Z.
(** v_a·Ŵ_{a,i}, of which c_i is the sum. *)
Definition products (i : nat) : list Z :=
  map (fun a => nth a (h_v h) 0 * nth i (nth a (h_key_pos h) []) 0)%Z (seq 0 (Z.to_nat (key_dim m))).
Definition c_read (i : nat) : Z := zsum (products i) (fun x => x).

(** The computed c_i: how far it may be off, and its size. *)
Definition c_error (i : nat) : dyadic :=
  wide_dot (Z.of_nat (length (filter (fun x => negb (Z.eqb x 0)) (products i))))
    (Dyadic (zsum (products i) Z.abs) c_scale).
Definition c_size (i : nat) : dyadic := z_add (Dyadic (zsum (products i) Z.abs) c_scale) (c_error i).
Definition over_axes (f : nat -> dyadic) : dyadic := z_sum (seq 0 (dims m)) (fun i => f (S i)).

(** 2ρ, ρ the errors of all axes' scores together, where |δ| ≤ n. *)
Definition score_shift (n : Z) : dyadic :=
  let error := score_error n (c_error 0) (over_axes c_error) (c_size 0) (over_axes c_size) in
  let size := score_size n (c_size 0) (over_axes c_size) in
  z_mul (z_of (2 * Z.of_nat (dims m)))
    (z_add error (z_mul (Dyadic 1 (- wide_prec)) (z_mul (z_of 2) (z_add size error)))).

(** How far c_i is from that of the nearest integer shift. *)
Definition rests : list Z :=
  map (fun i => c_read (S i) + 2 * c_read 0 * nth i (shift_read m h) 0)%Z (seq 0 (dims m)).

Definition head_ok (n : Z) : bool :=
  forallb (fun r => Z.leb (Z.abs r) (- c_read 0)) rests && z_le (z_mul (z_of 2) (score_shift n)) (z_of 1).

(** What the head leaks on axes of ns tokens at most, and e^2ρ times that. *)
Definition soft_leak (ns : list Z) : dyadic :=
  let P := normaliser c_scale (- c_read 0) rests ns in z_quotient (z_sub P (z_of 1)) P.
Definition run_leak (n : Z) (ns : list Z) : Z :=
  let y := score_shift n in
  z_fixed 128 (z_mul (z_add (z_add (z_of 1) y) (z_mul (z_of 2) (z_mul y y))) (soft_leak ns)).

Notation w := (row_times (D_k (layer_of m)) (v (parameters (layer_of m) h)) (W_key_pos (parameters (layer_of m) h))).
Notation terms i := (map (fun a => (v (parameters (layer_of m) h) a, W_key_pos (parameters (layer_of m) h) a i))
  (seq 0 (D_k (layer_of m)))).

(** The computed c, for a product of v and Ŵ_key in any order. *)
Definition c_runs (d : vector) : Prop :=
  forall i, (i < S (dims m))%nat -> computes wide_emin wide_prec (terms i) (d i).

Lemma term_value a i : v (parameters (layer_of m) h) a * W_key_pos (parameters (layer_of m) h) a i =
  number_of c_scale (nth a (h_v h) 0 * nth i (nth a (h_key_pos h) []) 0)%Z.
Proof. cbn [parameters layer_of v W_key_pos]; unfold vector_of, matrix_of; rewrite number_of_times; reflexivity. Qed.

Lemma c_value i : w i = number_of c_scale (c_read i).
Proof.
  unfold c_read, products, number_of, value; cbn [mantissa exponent]; rewrite IZR_zsum, sum_map, <- sum_scal_r.
  apply sum_ext; intros a _; apply term_value.
Qed.

Lemma c_runs_error d i : c_runs d -> (i < S (dims m))%nat ->
  Rabs (d i - w i) <= value (c_error i) /\ Rabs (d i) <= value (c_size i).
Proof.
  intros C Hi; assert (R := dot_rounding wide_emin wide_prec _ _ (C i Hi)).
  assert (X : exact (terms i) = w i) by (rewrite exact_map; reflexivity).
  assert (Y : magnitude (terms i) = value (Dyadic (zsum (products i) Z.abs) c_scale)).
  { unfold magnitude; rewrite sum_map; unfold value; cbn [mantissa exponent]; unfold products;
    rewrite IZR_zsum, sum_map, <- sum_scal_r.
    apply sum_ext; intros a _; cbn [fst snd]; rewrite term_value; apply abs_number. }
  assert (N : (length (nonzero (terms i)) <= length (filter (fun x => negb (Z.eqb x 0)) (products i)))%nat).
  { unfold products; cbn [D_k layer_of]; generalize (seq 0 (Z.to_nat (key_dim m))); intros l; induction l as [|a l IH];
    [apply le_n|].
    cbn [map filter]; destruct (Z.eqb_spec (nth a (h_v h) 0 * nth i (nth a (h_key_pos h) []) 0)%Z 0) as [E|E];
      cbn [negb].
    - rewrite nonzero_zero; [exact IH|]; rewrite term_value, E; apply number_of_0.
    - unfold nonzero in *; cbn [filter fst snd]; destruct (Req_EM_T _ _); cbn [length]; lia. }
  assert (E : Rabs (d i - w i) <= value (c_error i)).
  { rewrite <- X; eapply Rle_trans; [exact R|]; unfold c_error; rewrite value_dot_bound, <- Y.
    apply dot_bound_monotone; [exact N|apply magnitude_nonneg|apply Rle_refl]. }
  split; [exact E|]; unfold c_size; rewrite value_add, <- Y; replace (d i) with (w i + (d i - w i)) by ring.
  eapply Rle_trans; [apply Rabs_triang|]; apply Rplus_le_compat; [|exact E]; rewrite <- X; apply exact_magnitude.
Qed.

Lemma over_axes_le f i : (forall j, 0 <= value (f j)) -> (i < dims m)%nat -> value (f (S i)) <= value (over_axes f).
Proof.
  intros P Hi; unfold over_axes; rewrite value_sum; destruct (sum_split (seq 0 (dims m)) i (fun i => value (f (S i))))
    as (l & _ & ->);
    [apply in_seq; lia|]; assert (0 <= sum l (fun i => value (f (S i)))) by (apply sum_nonneg; intros; apply P); lra.
Qed.

Lemma c_error_nonneg i : 0 <= value (c_error i).
Proof.
  unfold c_error; rewrite value_dot_bound; apply dot_bound_nonneg; apply (number_nonneg c_scale).
  generalize (products i); intros l; induction l as [|x l IH]; [discriminate|]; rewrite zsum_cons; lia.
Qed.

Lemma c_size_nonneg i : 0 <= value (c_size i).
Proof.
  unfold c_size; rewrite value_add; assert (E := c_error_nonneg i); apply Rplus_le_le_0_compat; [|exact E].
  apply (number_nonneg c_scale); generalize (products i); intros l; induction l as [|x l IH]; [discriminate|];
    rewrite zsum_cons; lia.
Qed.

(** The axes' scores add up to the head's but for half of [score_shift]. *)
Lemma run_factors emin prec expf d n q Ks ps : c_runs d -> length Ks = dims m ->
  Forall2 (fun x K => K <> [] /\ forall k, In k K -> (Z.abs (k - x) <= n)%Z) q Ks ->
  weights_run emin prec expf d q Ks ps ->
  let σ := value (score_error n (c_error 0) (over_axes c_error) (c_size 0) (over_axes c_size)) in
  factors emin prec wide_emin wide_prec expf σ (2 * (value (score_size n (c_size 0) (over_axes c_size)) + σ))
    Ks (axis_terms w q) ps.
Proof.
  intros C LK F W; destruct (c_runs_error d 0 C ltac:(lia)) as [E0 S0].
  apply (weights_factors emin prec expf n) with (d := d); try assumption.
  intros i Hi; rewrite LK in Hi; destruct (c_runs_error d (S i) C ltac:(lia)) as [E1 S1]; split.
  - eapply Rle_trans; [exact E1|]; apply (over_axes_le c_error); [apply c_error_nonneg|exact Hi].
  - eapply Rle_trans; [exact S1|]; apply (over_axes_le c_size); [apply c_size_nonneg|exact Hi].
Qed.

Lemma length_axis_terms c q : length (axis_terms c q) = length q.
Proof. revert c; induction q as [|x q IH]; intros c; simpl; [|rewrite IH]; reflexivity. Qed.

(** What leaks. *)
Lemma soft_leak_sound X q n ns ns' : a_encoding m = quadratic -> content_free (layer_of m) h -> head_ok n = true ->
  length (shift_read m h) = dims m ->
  length ns = dims m -> length q = dims m -> Forall2 Z.le ns ns' -> Forall2 (fun x n => 0 <=
    x < n)%Z (add q (shift_read m h)) ns ->
  1 - attention (layer_of m) (box (map range ns)) h X q (add q (shift_read m h)) <= value (soft_leak ns').
Proof.
  intros Eq Cf Ok Lτ Ln Lq Hn Hq; unfold head_ok in Ok; apply andb_prop in Ok; destruct Ok as [Ok _].
  set (τ := shift_read m h) in *; set (G := box (map range ns)).
  assert (It : In (add q τ) G).
  { unfold G; apply in_box; revert Hq; clear; generalize (add q τ); intros p; induction 1; simpl; constructor;
      [apply in_range; assumption|assumption]. }
  assert (E : attention (layer_of m) G h X q (add q τ) = axis_softmaxes (map range ns) (axis_terms w q) (add q τ)).
  { unfold attention; rewrite (softmax_ext G _ (axis_sum (axis_terms w q)));
      [|intros k I; apply length_in_box in I; rewrite map_length in I|exact It].
    - apply factorisation; [|exact It]; rewrite map_length, length_axis_terms; congruence.
    - rewrite read_back, axis_terms_score by (assumption || congruence); cbn [D_p r layer_of]; rewrite Eq, Lq;
      reflexivity. }
  destruct (softmaxes_bound c_scale (- c_read 0) ns w q τ rests ns') as [P1 P2]; try assumption.
  - congruence.
  - congruence.
  - unfold rests; rewrite map_length, seq_length; congruence.
  - rewrite c_value; f_equal; ring.
  - intros i Hi; rewrite c_value; f_equal; unfold rests; fold τ.
    set (F := fun i => (c_read (S i) + 2 * c_read 0 * nth i τ 0)%Z).
    rewrite (nth_indep (map F (seq 0 (dims m))) 0%Z (F O)) by (rewrite map_length, seq_length; lia);
      rewrite map_nth, seq_nth by lia; unfold F; rewrite Nat.add_0_l; ring.
  - rewrite Forall_forall; rewrite forallb_forall in Ok; intros r I; apply Z.leb_le, Ok, I.
  - rewrite E; unfold soft_leak; set (P := normaliser _ _ _ _) in *.
    assert (P0 : (0 < mantissa P)%Z).
    { apply lt_IZR; unfold value in P1; assert (B := bpow_gt_0 radix2 (exponent P)).
      apply Rmult_lt_reg_r with (bpow radix2 (exponent P)); [exact B|]; lra. }
    eapply Rle_trans; [|apply z_quotient_sound, P0]; rewrite value_sub, value_of.
    replace ((value P - 1) / value P) with (1 - / value P) by (field; lra); lra.
Qed.

Lemma run_leak_sound n ns λ : head_ok n = true -> 0 <= value (score_shift n) -> 0 <= λ -> λ <= value (soft_leak ns) ->
  exp (value (score_shift n)) * λ <= number_of (-128) (run_leak n ns).
Proof.
  intros Ok Y L0 L; unfold head_ok in Ok; apply andb_prop in Ok; destruct Ok as [_ Ok]; apply value_le in Ok.
  rewrite value_mul, !value_of in Ok; unfold run_leak; eapply Rle_trans; [|apply (z_fixed_le 128)]; values.
  apply Rmult_le_compat; [left; apply exp_pos|exact L0| |exact L]; apply exp_little; lra.
Qed.

Lemma score_shift_value n : value (score_shift n) =
  let σ := value (score_error n (c_error 0) (over_axes c_error) (c_size 0) (over_axes c_size)) in
  2 * (INR (dims m) * (σ + roundoff wide_prec * (2 * (value (score_size n (c_size 0) (over_axes c_size)) + σ)))).
Proof.
  unfold score_shift; cbv zeta; values; rewrite mult_IZR, <- INR_IZR_INZ;
    change (bpow radix2 (- wide_prec)) with (roundoff wide_prec); ring.
Qed.

Lemma score_shift_nonneg n : (0 <= n)%Z -> 0 <= value (score_shift n).
Proof.
  intros Hn; rewrite score_shift_value; cbv zeta.
  assert (Z : forall f, (forall i, 0 <= value (f i)) -> 0 <= value (over_axes f)).
  { intros f F; unfold over_axes; rewrite value_sum; apply sum_nonneg; intros; apply F. }
  assert (S : forall C0 C1, 0 <= value C0 -> 0 <= value C1 -> 0 <= value (score_size n C0 C1)).
  { intros C0 C1 H0 H1; unfold score_size; values; assert (P := IZR_le _ _ Hn);
    assert (P' := IZR_le _ _ (Z.square_nonneg n)).
    apply Rplus_le_le_0_compat; apply Rmult_le_pos; assumption. }
  assert (S0 := S _ _ (c_error_nonneg 0) (Z _ c_error_nonneg)); assert (S1 :=
    S _ _ (c_size_nonneg 0) (Z _ c_size_nonneg)).
  assert (S2 : 0 <= value (score_error n (c_error 0) (over_axes c_error) (c_size 0) (over_axes c_size))).
  { unfold score_error; rewrite value_add, (value_dot_bound wide_emin wide_prec 2); apply Rplus_le_le_0_compat;
    [exact S0|].
    apply dot_bound_nonneg, S1. }
  assert (U := @roundoff_positive wide_prec); assert (D := pos_INR (dims m)).
  repeat apply Rmult_le_pos; try lra; apply Rplus_le_le_0_compat; [exact S2|]; repeat apply Rmult_le_pos; lra.
Qed.

End Head.

(** * The figure *)

(** Rounding of n entries of W_val W_out, with n_w products each, whose sizes add up to M. *)
Definition entries_figure (emin prec : Z) (n_w n : nat) (M : R) : R :=
  INR n_w * roundoff prec * M + INR n * (INR n_w * half_eta emin * (1 + INR n_w * roundoff prec)).

Lemma soft_figure_covers {H} emin prec (L : layer H) j n_w n B (Eh : H -> R) E M A : (0 < prec)%Z -> 0 <= B ->
  0 <= E -> (forall h, In h (heads L) -> 0 <= Eh h <= E) ->
  (support (flat_map (fun h => map (fun c => magnitude (weight_terms L j h c)) (seq 0 (D_in L))) (heads L)) <= n)%nat ->
  sum (heads L) (fun h => sum_below (D_in L) (fun c => magnitude (weight_terms L j h c))) <= M ->
  sum (heads L) (fun h => Eh h * sum_below (D_in L) (fun c => magnitude (weight_terms L j h c))) <= A ->
  soft_figure emin prec L j B (fun h c => entry_bound emin prec n_w (magnitude (weight_terms L j h c))) Eh Eh <=
  entries_figure emin prec n_w n M * (B + E) + A
    + dot_bound emin prec (S n) (Rabs (b_out L j) + (M + entries_figure emin prec n_w n M) * (B + E)).
Proof.
  intros Hp HB E0 HE Nn HM HA; assert (Pp : Prec_gt_0 prec) by exact Hp; unfold soft_figure.
  set (size := fun h c => magnitude (weight_terms L j h c)) in *; set (e :=
    fun h c => entry_bound emin prec n_w (size h c)).
  assert (S0 : forall h c, 0 <= size h c) by (intros; apply magnitude_nonneg).
  assert (e0 : forall h c, 0 <= e h c).
  { intros; unfold e, entry_bound; destruct (Req_EM_T _ 0); [lra|apply dot_bound_nonneg, S0]. }
  set (V := entries_figure emin prec n_w n M).
  assert (U := @roundoff_positive prec); assert (Hh := @half_eta_positive emin); assert (Pn := pos_INR n_w).
  assert (nu : 0 <= INR n_w * roundoff prec) by (apply Rmult_le_pos; lra).
  assert (nh : 0 <= INR n_w * half_eta emin * (1 + INR n_w * roundoff prec)).
  { apply Rmult_le_pos; [apply Rmult_le_pos|]; lra. }
  assert (He : sum (heads L) (fun h => sum_below (D_in L) (e h)) <= V).
  { assert (Q := sum_entry_bound emin prec n_w (entries L (fun _ => 0) e j)); rewrite !sum_entries in Q;
    cbn [entry_size] in Q.
    change (sum (heads L) (fun h => sum_below (D_in L) (e h)) = INR n_w * roundoff prec * sum (heads L)
      (fun h => sum_below (D_in L) (size h))
      + INR (support (map entry_size (entries L (fun _ => 0) e j))) * (INR n_w * half_eta emin * (1 +
        INR n_w * roundoff prec))) in Q.
    rewrite Q; unfold V, entries_figure; apply Rplus_le_compat; [apply Rmult_le_compat_l; assumption|].
    apply Rmult_le_compat_r; [exact nh|]; apply le_INR; eapply Nat.le_trans; [|exact Nn].
    unfold entries; rewrite map_flat_map; apply Nat.eq_le_incl; f_equal; apply flat_map_ext; intros h; apply map_map. }
  assert (M0 : 0 <= sum (heads L) (fun h => sum_below (D_in L) (size h))) by
    (apply sum_nonneg; intros; apply sum_nonneg; intros; apply S0).
  assert (V0 : 0 <= sum (heads L) (fun h => sum_below (D_in L) (e h))) by
    (apply sum_nonneg; intros; apply sum_nonneg; intros; apply e0).
  assert (HV : sum (heads L) (fun h => sum_below (D_in L) (fun c => e h c * (B + Eh h) + size h c * Eh h)) <=
    V * (B + E) + A).
  { apply Rle_trans with (sum (heads L) (fun h => sum_below (D_in L) (e h)) * (B + E) +
      sum (heads L) (fun h => Eh h * sum_below (D_in L) (size h))).
    - rewrite <- sum_scal_r, <- sum_plus; apply sum_le; intros h Ih; unfold sum_below.
      rewrite <- sum_scal_r, <- sum_scal, <- sum_plus; apply sum_le; intros k _; destruct (HE h Ih).
      apply Rplus_le_compat; [apply Rmult_le_compat_l; [apply e0|lra]|rewrite Rmult_comm; apply Rle_refl].
    - apply Rplus_le_compat; [apply Rmult_le_compat_r; [lra|exact He]|exact HA]. }
  assert (HS : 0 <= sum (heads L) (fun h => sum_below (D_in L) (fun c => (size h c + e h c) * (B + Eh h))) <= (M + V)
    * (B + E)).
  { split; [apply sum_nonneg; intros h Ih; apply sum_nonneg; intros k _; destruct (HE h Ih); apply Rmult_le_pos;
      [apply Rplus_le_le_0_compat; [apply S0|apply e0]|lra]|].
    apply Rle_trans with ((sum (heads L) (fun h => sum_below (D_in L) (size h)) + sum (heads L)
      (fun h => sum_below (D_in L) (e h))) * (B + E)).
    - rewrite <- sum_plus, <- sum_scal_r; apply sum_le; intros h Ih; unfold sum_below;
      rewrite <- sum_plus, <- sum_scal_r.
      apply sum_le; intros k _; destruct (HE h Ih); apply Rmult_le_compat_l; [apply Rplus_le_le_0_compat;
        [apply S0|apply e0]|lra].
    - apply Rmult_le_compat_r; [lra|apply Rplus_le_compat; assumption]. }
  assert (Ab := Rabs_pos (b_out L j)); apply Rplus_le_compat; [exact HV|]; apply dot_bound_monotone;
    [|exact (Rplus_le_le_0_compat _ _ Ab (proj1 HS))|exact (Rplus_le_compat_l _ _ _ (proj2 HS))].
  apply support_le_cons, Nn.
Qed.

Section Computed.
Variables (c : convolution) (m : attention_layer) (emin prec : Z) (sizes : list Z) (B T : dyadic).

Definition reach : Z := (fold_right Z.max 1 (token_sizes c sizes) - 1)%Z.

(** Heads as sharp as this run as shifts: they copy the token at q + τ, which a softmax would give all its attention. *)
Definition copies (h : raw_head) : bool := z_le (z_of 1000) (Dyadic (sharpness_read m h) (c_scale m)).
Definition softs : list raw_head := filter (fun h => negb (copies h)) (kept m).
Definition soft_error : dyadic :=
  match softs with [] => z_of 0 | _ => round_up 64 (attended_error emin prec (token_sizes c sizes) B) end.

(** Leakage, taps, and the rounding of both layers, of every output channel, are at most T together. *)
Definition check_parts : bool :=
  let ns := token_sizes c sizes in
  let E := soft_error in
  let most := z_add B E in
  let leaks := over_heads (fun h => let l := run_leak m h reach ns in map (map (Z.mul l)) (head_through h)) softs in
  let softly := over_heads head_through softs in
  let through := over_heads head_through (kept m) in
  let kernel := kernel_sums (transposed c) (c_weight c) in
  let taps := tap_sums c m in
  let n_w := Z.of_nat (n_weights m) in
  let n := Z.of_nat (n_entries c m) in
  let nu := Dyadic n_w (- prec) in
  let underflow := z_mul (z_of n) (z_mul (Dyadic n_w (emin - 1)) (z_add (z_of 1) nu)) in
  forallb (fun u =>
    let D := nth u leaks [] in
    let A := nth u softly [] in
    let M := nth u through [] in
    let C := nth u kernel [] in
    forallb (fun k =>
      let j := (u * out_g c + k)%nat in
      let b := Dyadic (nth j (c_bias c) 0%Z) (c_bias_scale c) in
      let b' := Dyadic (nth j (raw_b_out m) 0%Z) (s_b (scale_of m)) in
      let M_k := Dyadic (nth k M 0%Z) (head_scale m) in
      let V := z_add (z_mul nu M_k) underflow in
      let leak := z_mul (z_mul (z_of 2) B) (Dyadic (nth k D 0%Z) (-128 + head_scale m)) in
      let difference := z_add (z_abs (z_sub b' b)) (z_mul B (Dyadic (coef taps (Z.of_nat j)) (common_scale c m))) in
      let theirs := z_dot_bound emin prec (Z.of_nat (n_conv c))
        (z_add (z_abs b) (z_mul (Dyadic (nth k C 0%Z) (c_weight_scale c)) B)) in
      let ours := z_add (z_add (z_mul V most) (z_mul (Dyadic (nth k A 0%Z) (head_scale m)) E))
        (z_dot_bound emin prec (Z.of_nat (S (n_entries c m))) (z_add (z_abs b') (z_mul (z_add M_k V) most))) in
      z_le (z_add (z_add (z_add leak difference) theirs) ours) T)
    (seq 0 (out_g c))) (seq 0 (groups_n c)).

(** Some kernel position has the shift 0, so that queries are tokens; sizes of 0 or less would say nothing. *)
Definition check_soft : bool :=
  match a_encoding m with quadratic => true | _ => false end && Nat.eqb (length sizes) (dims c) && forallb (Z.ltb 0)
    sizes && comparable c m && Z.ltb 0 prec &&
  z_le (z_of 0) B && existsb (forallb (Z.eqb 0)) (kernel_shifts c) &&
  forallb sum_ok (token_sizes c sizes) && forallb (fun h => head_ok m h reach) (kept m) && check_parts.

(** The meaning of an accepted check, for inputs of these sizes or smaller: heads for which [soft] holds attend axis by
    axis, as Eq. 6 asks, and the others copy the token at q + τ_h, as the sharp ones do; any choice of these will do. *)
Definition soft_runs_within : Prop :=
  let L := with_heads (layer_of m) (kept m) in
  forall expf sizes' X o j soft (d : raw_head -> vector) (ps : raw_head -> list (Z -> R)) y z,
  let G := tokens c sizes' in let q := query_of c sizes' o in let Ks := map range (token_sizes c sizes') in
  accepts c sizes' -> Forall2 Z.le sizes' sizes -> In o (outputs c sizes') -> (j < groups_n c * out_g c)%nat ->
  (forall k i, In k G -> (i < groups_n c * in_g c)%nat ->
     float emin prec (reads c sizes' X k i) /\ Rabs (reads c sizes' X k i) <= value B) ->
  exp_accurate expf ->
  (* the evaluations *)
  (forall h, In h (kept m) -> copies h = true -> soft h = false) ->
  (forall h, In h (kept m) -> soft h = true -> c_runs m h (d h) /\ weights_run emin prec expf (d h) q Ks (ps h)) ->
  computes emin prec (conv_terms (groups_n c * in_g c) (kernel_shifts c) (kernel_at c) (bias_of c) (reads c sizes' X) q
    j) y ->
  soft_computes emin prec L Ks (reads c sizes' X) q j soft (shift_read m) ps z ->
  (* the exact convolution is torch's *)
  conv (groups_n c * in_g c) (kernel_shifts c) (kernel_at c) (bias_of c) (reads c sizes' X) q j = computes_conv c sizes'
    X o j /\
  Rabs (z - y) <= value T.

(** A head's own sum over its columns. *)
Lemma through_head h u k : comparable c m = true -> In h (kept m) -> (u < groups_n c)%nat -> (k < out_g c)%nat ->
  let L := with_heads (layer_of m) (kept m) in
  sum_below (D_in L) (fun i => magnitude (weight_terms L (u * out_g c + k) h i)) =
  number_of (head_scale m) (entry_of (head_through h) u k).
Proof.
  intros ok Ih Hu Hk L.
  set (m1 := {| a_geometry := a_geometry m; a_encoding := a_encoding m; key_dim := key_dim m; head_dim := head_dim m;
    scale_of := scale_of m;
    raw_heads := [h]; raw_b_out := raw_b_out m |}).
  assert (K : kept m1 = [h]).
  { unfold kept in *; apply filter_In in Ih; destruct Ih as [_ Ih]; cbn [raw_heads m1 filter]; rewrite Ih;
    reflexivity. }
  assert (ok1 : comparable c m1 = true).
  { unfold comparable in *; rewrite K; rewrite !andb_true_iff in ok |- *; destruct ok as [ok F]; split; [exact ok|].
    rewrite forallb_forall in F; cbn [forallb]; rewrite andb_true_r; exact (F h Ih). }
  assert (Q := through_value c m1 ok1 u k Hu Hk); rewrite K, sizes_by_columns in Q; cbn [heads with_heads] in Q.
  rewrite entry_over_heads, sum_cons in Q; change (sum [] _) with 0 in Q; rewrite Rplus_0_r in Q;
    cbn [zsum fold_right] in Q.
  rewrite Z.add_0_r in Q; exact Q.
Qed.

(** Taps and biases, where heads look at kernel positions only. *)
Lemma taps_difference_sound sizes' u k : comparable c m = true -> accepts c sizes' -> 0 <= value B ->
  (u < groups_n c)%nat -> (k < out_g c)%nat ->
  let j := (u * out_g c + k)%nat in
  taps_difference (with_heads (layer_of m) (kept m)) (shift_read m) (kernel_shifts c) (kernel_at c) (bias_of c)
    j (value B) <=
  Rabs (number_of (s_b (scale_of m)) (nth j (raw_b_out m) 0%Z) - number_of (c_bias_scale c) (nth j (c_bias c) 0%Z))
  + value B * number_of (common_scale c m) (coef (tap_sums c m) (Z.of_nat j)).
Proof.
  intros ok A HB Hu Hk j; assert (Hj : (j < groups_n c * out_g c)%nat) by (unfold j; nia).
  destruct (same_fields c m ok) as (Fg & Fi & _); destruct (kernel_shifts_positions c m ok sizes' A) as [N _].
  set (L := with_heads (layer_of m) (kept m)); unfold taps_difference; apply Rplus_le_compat; [apply Rle_refl|].
  apply Rmult_le_compat_l; [exact HB|]; eapply Rle_trans; [|apply (tap_sums_sound c m ok sizes' A j Hj)].
  eapply Rle_trans; [apply (sum_incl _ (kernel_shifts c))|].
  - apply NoDup_nodup.
  - intros τ I; apply nodup_In, in_app_or in I; destruct I as [I|I]; [exact I|]; apply in_map_iff in I;
    destruct I as (h & <- & Ih).
    apply (heads_on_shifts c m ok), Ih.
  - intros; apply sum_nonneg; intros; apply Rabs_pos.
  - apply Req_le, sum_ext; intros τ I; unfold column_sum.
    replace (D_in L) with (groups_n c * in_g c)%nat by (cbn; rewrite Fg, Fi; reflexivity).
    apply sum_below_ext; intros i _; unfold kernel_tap; destruct (in_dec _ _ _); [|contradiction]; do 2 f_equal.
    unfold head_tap, tap; apply sum_ext; intros h _; destruct (same_position _ _), (position_eq_dec _ _);
      congruence || reflexivity.
Qed.

End Computed.

Lemma entry_scaled l x u k : entry_of (map (map (Z.mul l)) x) u k = (l * entry_of x u k)%Z.
Proof.
  unfold entry_of; rewrite (map_nth (map (Z.mul l)) x [] u : nth u (map (map (Z.mul l)) x) [] = _).
  rewrite <- (map_nth (Z.mul l) (nth u x []) 0%Z k); f_equal; ring.
Qed.

Lemma add_zeros q τ : length q = length τ -> forallb (Z.eqb 0) τ = true -> add q τ = q.
Proof.
  revert τ; induction q as [|x q IH]; intros [|t τ]; simpl; try discriminate; [reflexivity|]; intros L E.
  destruct t; try discriminate; rewrite IH by (congruence || exact E); f_equal; ring.
Qed.

Section Sound.
Variables (c : convolution) (m : attention_layer) (emin prec : Z) (sizes : list Z) (B T : dyadic).

Lemma reach_le n : In n (token_sizes c sizes) -> (n - 1 <= reach c sizes)%Z.
Proof.
  unfold reach; induction (token_sizes c sizes) as [|x l IH]; [intros []|]; cbn [fold_right]; intros [->|I]; [lia|].
  specialize (IH I); lia.
Qed.

(** One channel. *)
Lemma check_parts_channel u k : check_parts c m emin prec sizes B T = true -> (u < groups_n c)%nat ->
  (k < out_g c)%nat ->
  let j := (u * out_g c + k)%nat in
  let E := value (soft_error c m emin prec sizes B) in
  let A := number_of (head_scale m) (entry_of (over_heads head_through (softs m)) u k) in
  let M := number_of (head_scale m) (entry_of (over_heads head_through (kept m)) u k) in
  let b := bias_of c j in
  let b' := number_of (s_b (scale_of m)) (nth j (raw_b_out m) 0%Z) in
  let V := entries_figure emin prec (n_weights m) (n_entries c m) M in
  2 * value B * number_of (-128 + head_scale m) (zsum (softs m) (fun h =>
      run_leak m h (reach c sizes) (token_sizes c sizes) * entry_of (head_through h) u k)%Z)
  + (Rabs (b' - b) + value B * number_of (common_scale c m) (coef (tap_sums c m) (Z.of_nat j)))
  + dot_bound emin prec (n_conv c) (Rabs b + number_of (c_weight_scale c) (entry_of (kernel_sums (transposed c)
    (c_weight c)) u k) * value B)
  + (V * (value B + E) + A * E + dot_bound emin prec (S (n_entries c m)) (Rabs b' + (M + V) * (value B + E))) <=
    value T.
Proof.
  intros P Hu Hk j E A M b b' V; unfold check_parts in P; cbv zeta in P; rewrite forallb_forall in P.
  specialize (P u ltac:(apply in_seq; lia)); rewrite forallb_forall in P; specialize (P k ltac:(apply in_seq; lia)).
  apply value_le in P; fold j in P.
  set (scaled := fun h => map (map (Z.mul (run_leak m h (reach c sizes) (token_sizes c sizes)))) (head_through h)) in P.
  change (nth k (nth u (over_heads scaled (softs m)) []) 0%Z) with (entry_of (over_heads scaled (softs m)) u k) in P.
  rewrite entry_over_heads in P; unfold scaled in P.
  rewrite (zsum_ext (softs m) _ (fun h => run_leak m h (reach c sizes) (token_sizes c sizes) * entry_of (head_through h)
    u k)%Z) in P
    by (intros; apply entry_scaled).
  eapply Rle_trans; [|exact P]; apply Req_le; symmetry.
  rewrite !value_add, !value_dot_bound; repeat rewrite ?value_add, ?value_mul, ?value_abs, ?value_sub, ?value_of.
  assert (U : value (Dyadic (Z.of_nat (n_weights m)) (- prec)) = INR (n_weights m) * roundoff prec).
  { unfold value; simpl; rewrite <- INR_IZR_INZ; reflexivity. }
  assert (H : value (Dyadic (Z.of_nat (n_weights m)) (emin - 1)) = INR (n_weights m) * half_eta emin).
  { unfold value; simpl; rewrite <- INR_IZR_INZ; reflexivity. }
  rewrite U, H, <- INR_IZR_INZ; reflexivity.
Qed.

Theorem check_soft_sound : check_soft c m emin prec sizes B T = true -> soft_runs_within c m emin prec sizes B T.
Proof.
  intros Ck; cbv beta delta [soft_runs_within]; intros L expf sizes' X o j soft d ps y z G q Ks A Hs Io Hj HX Ex
    Hc Ev Cy Cz.
  unfold check_soft in Ck; rewrite !andb_true_iff, existsb_exists in Ck.
  destruct Ck as (((((((((Cq & _) & _) & ok) & Cp) & Cb) & (τ0 & I0 & Z0)) & Cs) & Ch) & Cc);
    rewrite forallb_forall in Ch.
  apply Z.ltb_lt in Cp; apply value_le in Cb; rewrite value_of in Cb; assert (Pp : Prec_gt_0 prec) by exact Cp.
  destruct (same_fields c m ok) as (Fg & Fi & Fo & Fd); destruct (comparable_facts c m ok) as (Eg & W & _).
  destruct (channels_g c W) as (_ & _ & Hog); assert (Eq : a_encoding m = quadratic) by (destruct (a_encoding m);
    congruence).
  split; [symmetry; apply (computes_conv_shifts c m ok sizes' A X o j Hj Io)|].
  set (ns := token_sizes c sizes) in *; set (ns' := token_sizes c sizes') in *.
  assert (Hn : Forall2 Z.le ns' ns) by (apply token_sizes_monotone; assumption).
  assert (Lq : length q = dims c) by (apply (query_dims c m ok sizes' A o Io)).
  assert (Kg : targets_on G q (kernel_shifts c)) by (apply (targets_on_tokens c sizes' A o Io)).
  assert (Ib : forall p, In p G -> Forall2 (fun x n => 0 <= x < n)%Z p ns') by (intros; apply in_tokens; assumption).
  assert (Iq : Forall2 (fun x n => 0 <= x < n)%Z q ns').
  { apply Ib; rewrite <- (add_zeros q τ0); [apply Kg, I0| |exact Z0].
    destruct (kernel_shifts_positions c m ok sizes' A) as [_ F]; rewrite Forall_forall in F; rewrite (F _ I0);
      exact Lq. }
  assert (Ln : length ns' = dims c) by (rewrite <- Lq; symmetry; revert Iq; clear; induction 1; simpl; congruence).
  assert (Eb : G = box Ks) by apply tokens_box.
  assert (Reach : Forall2 (fun x K => K <> [] /\ forall k, In k K -> (Z.abs (k - x) <= reach c sizes)%Z) q Ks).
  { assert (R := reach_le); fold ns in R; unfold Ks; fold ns'; set (r := reach c sizes) in *.
    clearbody q ns ns' r; clear - Hn R Iq; revert q r R Iq.
    induction Hn as [|n n' l l' Hn1 _ IH]; intros q r R Iq; inversion Iq as [|x ? q' ? B1 Iq']; subst; simpl;
      constructor.
    - split; [intros E; assert (I := proj2 (in_range n x) B1); rewrite E in I; destruct I|].
      intros k Ik; apply in_range in Ik; specialize (R n' (or_introl eq_refl)); lia.
    - apply IH; [intros; apply R; right; assumption|exact Iq']. }
  assert (Short : Forall2 (fun K n => Z.of_nat (length K) <= n)%Z Ks ns).
  { unfold Ks; fold ns'; clearbody q ns ns'; clear - Hn Iq; revert q Iq; induction Hn as [|n n' l l' Hn1 _ IH];
    intros q Iq;
      inversion Iq as [|x ? q' ? B1 Iq']; subst; simpl; constructor; [unfold range; rewrite map_length, seq_length;
        lia|apply (IH _ Iq')]. }
  set (u := (j / out_g c)%nat); set (k := (j mod out_g c)%nat).
  assert (Hu : (u < groups_n c)%nat) by (apply Nat.div_lt_upper_bound; lia).
  assert (Hk : (k < out_g c)%nat) by (apply Nat.mod_upper_bound; lia).
  assert (Ej : j = (u * out_g c + k)%nat) by (unfold u, k; rewrite Nat.mul_comm; apply Nat.div_mod; lia).
  assert (Th : forall h, In h (kept m) -> sum_below (D_in L) (fun i => magnitude (weight_terms L j h i)) =
    number_of (head_scale m) (entry_of (head_through h) u k)).
  { intros h Ih; rewrite Ej; exact (through_head c m h u k ok Ih Hu Hk). }
  assert (Ein : D_in L = (groups_n c * in_g c)%nat) by (cbn; rewrite Fg, Fi; reflexivity).
  destruct (attended_error_sound emin prec Ks ns B Short Cs Cb) as [E0 E1].
  set (η := factor_errors _ _ _ _ _ _ _) in *; set (E := value (soft_error c m emin prec sizes B)).
  assert (Softs : forall h, In h (kept m) -> soft h = true -> In h (softs m)).
  { intros h Ih Sh; apply filter_In; split; [exact Ih|]; destruct (copies m h) eqn:Co; [|reflexivity].
    rewrite (Hc h Ih Co) in Sh; discriminate. }
  assert (E2 : 0 <= E /\ forall h, In h (kept m) -> soft h = true -> axes_error emin prec Ks η (value B) <= E).
  { assert (E3 : axes_error emin prec Ks η (value B) <= value (round_up 64 (attended_error emin prec ns B))) by
      (eapply Rle_trans; [exact E1|apply round_up_le]).
    unfold E, soft_error; fold ns; destruct (softs m) as [|h0 hs]; [|split; [lra|intros; exact E3]].
    rewrite value_of; split; [apply Rle_refl|]; intros h Ih Sh; destruct (Softs h Ih Sh). }
  assert (Part : forall F : raw_head -> R, (forall h, soft h = false -> F h = 0) -> sum (kept m) F = sum (softs m) F).
  { intros F F0; symmetry; apply RoundingCheck.sum_filter; intros h Ih Co; apply F0, (Hc h Ih), negb_false_iff, Co. }
  (* every head *)
  assert (Hd : forall h, In h (kept m) -> content_free L h /\ length (shift_read m h) = dims m /\
    0 <= 1 - attention L G h (reads c sizes' X) q (add q (shift_read m h)) <= value (soft_leak m h ns)).
  { intros h Ih; destruct (kept_sharp c m ok h Ih) as (Cf & _); assert (Lf := shift_dims c m ok sizes' A h Ih); split;
    [exact Cf|]; split; [congruence|].
    assert (It : In (add q (shift_read m h)) G) by (apply Kg, (heads_on_shifts c m ok), Ih).
    split; [apply (leak_nonneg G (fun t => score L h (reads c sizes' X) q t) _ It)|].
    rewrite Eb; apply (soft_leak_sound m h (reads c sizes' X) q (reach c sizes) ns' ns); try assumption.
    - apply Ch, Ih.
    - congruence.
    - congruence.
    - congruence.
    - apply Ib, It. }
  assert (Shift : forall h, 0 <= value (score_shift m h (reach c sizes))).
  { intros h; apply score_shift_nonneg; unfold reach; clear; induction (token_sizes c sizes) as [|x l IH];
    cbn [fold_right]; lia. }
  assert (Rl : forall h, In h (kept m) -> exp (value (score_shift m h (reach c sizes))) * value (soft_leak m h ns) <=
    number_of (-128) (run_leak m h (reach c sizes) ns)).
  { intros h Ih; destruct (Hd h Ih) as (_ & _ & L0 & L1); apply run_leak_sound;
    [apply Ch, Ih|apply Shift|lra|apply Rle_refl]. }
  set (e := fun h i => entry_bound emin prec (n_weights m) (magnitude (weight_terms L j h i))).
  assert (En : forall h i v, In h (heads L) -> (i < D_in L)%nat -> computes emin prec (weight_terms L j h i) v ->
    Rabs (v - exact (weight_terms L j h i)) <= e h i).
  { intros h i v Ih Hi Cv; unfold e, entry_bound; destruct (Req_EM_T _ 0) as [Z|Z].
    - assert (D := dot_rounding emin prec _ _ Cv); rewrite Z, no_products in D by exact Z;
        unfold dot_bound in D; simpl INR in D; lra.
    - apply (weights_rounding emin prec); [|exact Cv]; rewrite Ej; apply (support_products c m ok u k). }
  rewrite <- Ein in Cy.
  assert (R := soft_within emin prec L Ks (reads c sizes' X) q j (value B)
    (fun k' i Ik Hi => proj2 (HX k' i (eq_ind_r (fun l => In k' l) Ik Eb) (eq_ind _ (fun n => (i < n)%nat) Hi _ Ein)))
    e En ps (fun _ => η) (fun h => value (score_shift m h (reach c sizes)) / 2) soft (shift_read m)
    (fun h => value (soft_leak m h ns)) (kernel_shifts c) (kernel_at c) (bias_of c)
    (proj1 (kernel_shifts_positions c m ok sizes' A))).
  assert (R' := fun H1 H2 H3 H4 => R H1 H2 H3 H4 y z Cy Cz); clear R.
  eapply Rle_trans; [apply R'|clear R'].
  - intros k' i Ik Hi; rewrite <- Eb in Ik; rewrite Ein in Hi; apply (HX k' i Ik Hi).
  - rewrite <- Eb; exact Kg.
  - intros h Ih; rewrite <- Eb; apply Kg, (heads_on_shifts c m ok), Ih.
  - intros h Ih Sh; destruct (Hd h Ih) as (Cf & Lf & _ & Lk), (Ev h Ih Sh) as [Cr Wr]; split; [|rewrite <- Eb;
    exact Lk].
    assert (F := run_factors m h emin prec expf (d h) (reach c sizes) q Ks (ps h) Cr
      ltac:(unfold Ks; rewrite map_length; fold ns'; congruence) Reach Wr); cbv zeta in F.
    rewrite score_shift_value; cbv zeta; set (σ := value (score_error _ _ _ _ _)) in *.
    match goal with |- soft_head _ _ _ _ _ _ _ (2 * ?x / 2) => replace (2 * x / 2) with x by field end.
    replace (INR (dims m)) with (INR (length Ks)) by (f_equal; unfold Ks; rewrite map_length; fold ns'; congruence).
    apply (factors_soft_head emin prec L Ks (reads c sizes' X) q wide_emin wide_prec expf); try assumption.
    + reflexivity.
    + simpl; apply Rmult_le_pos; [simpl; lra|apply bpow_ge_0].
    + simpl; apply Rmult_le_pos; [simpl; lra|apply bpow_ge_0].
    + intros K IK; assert (Q : exists n, In n ns /\ (Z.of_nat (length K) <= n)%Z).
      { revert Short IK; clear; induction 1 as [|K0 n Ks ns H _ IH]; intros [].
        - subst; exists n; split; [left; reflexivity|exact H].
        - destruct IH as (n' & I & H'); [assumption|]; exists n'; split; [right; exact I|exact H']. }
      destruct Q as (n & In_n & Hn'); rewrite forallb_forall in Cs; apply (z_softmax_error_sound (length K)
        n Hn' (Cs n In_n)).
    + cbn [D_p with_heads layer_of L]; rewrite Eq; cbn [code_dims]; congruence.
    + intros; cbn [r with_heads layer_of L]; rewrite Eq; reflexivity.
    + unfold Ks; rewrite map_length; fold ns'; congruence.
  - assert (P := check_parts_channel u k Cc Hu Hk); cbv zeta in P; fold ns in P; fold E in P; rewrite <- Ej in P.
    eapply Rle_trans; [|exact P]; apply Rplus_le_compat; [apply Rplus_le_compat; [apply Rplus_le_compat|]|].
    + apply Rmult_le_compat_l; [lra|].
      assert (N : number_of (-128 + head_scale m)
          (zsum (softs m) (fun h => run_leak m h (reach c sizes) ns * entry_of (head_through h) u k)%Z) =
        sum (softs m) (fun h => number_of (-128) (run_leak m h (reach c sizes) ns) *
          number_of (head_scale m) (entry_of (head_through h) u k))).
      { rewrite <- number_of_sum; apply sum_ext; intros h _; symmetry; apply number_of_times. }
      cbn [heads with_heads L]; rewrite N, Part by (intros h Sh; unfold head_leak; rewrite Sh; ring).
      apply sum_le; intros h Ih; apply filter_In in Ih; destruct Ih as [Ih _]; rewrite (Th h Ih).
      apply Rmult_le_compat_r.
      * rewrite <- (Th h Ih); apply sum_nonneg; intros; apply magnitude_nonneg.
      * eapply Rle_trans; [|apply (Rl h Ih)]; unfold head_leak; destruct (soft h).
        -- replace (2 * (value (score_shift m h (reach c sizes)) / 2)) with (value (score_shift m h (reach c sizes)))
             by field; apply Rle_refl.
        -- destruct (Hd h Ih) as (_ & _ & L0 & L1); apply Rmult_le_pos; [left; apply exp_pos|lra].
    + rewrite Ej; apply (taps_difference_sound c m B sizes' u k ok A Cb Hu Hk).
    + apply dot_bound_monotone.
      * rewrite Ej; apply (support_kernel c m ok u k Hk).
      * apply Rplus_le_le_0_compat; [apply Rabs_pos|apply Rmult_le_pos; [apply weight_nonneg|exact Cb]].
      * apply Rplus_le_compat_l, Rmult_le_compat_r; [exact Cb|]; rewrite Ej;
        apply (kernel_value c m ok u k Hu Hk sizes' A).
    + apply soft_figure_covers; try assumption.
      * apply E2.
      * intros h Ih; unfold head_error; destruct (soft h) eqn:Sh; [split; [exact E0|apply (proj2 E2 h Ih Sh)]|].
        split; [apply Rle_refl|apply E2].
      * rewrite Ej; apply (support_entries c m ok u k Hk).
      * rewrite entry_over_heads, <- number_of_sum; apply Req_le, sum_ext; intros h Ih; apply (Th h Ih).
      * cbn [heads with_heads L]; rewrite Part by (intros h Sh; unfold head_error; rewrite Sh; ring).
        rewrite entry_over_heads, <- number_of_sum, <- sum_scal_r; apply sum_le; intros h Ih.
        apply filter_In in Ih; destruct Ih as [Ih _]; rewrite (Th h Ih), Rmult_comm; apply Rmult_le_compat_l.
        -- rewrite <- (Th h Ih); apply sum_nonneg; intros; apply magnitude_nonneg.
        -- unfold head_error; destruct (soft h) eqn:Sh; [apply (proj2 E2 h Ih Sh)|apply E2].
Qed.

End Sound.
