(** Integers times powers of two, in which the rounding figures are computed without any real number.

    Every float is such a number, and so are u = 2^−p and η/2, so the figures of RoundingLayer.v are
    computed exactly.  Statements:
      z_rounding_value  the value of [z_rounding] is [rounding_figure]
      z_weights_value   the value of [z_weights] is [weights_figure]
      z_leak_value      the value of [z_leak] is [leak_figure]
      round_up_le       [round_up] shortens a number to about k bits, rounding up *)

From Coq Require Import Reals ZArith List Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums RoundingTree RoundingDot RoundingHead RoundingLayer RoundingWeights.
Import ListNotations.
Open Scope R_scope.

(** * Arithmetic *)

Record dyadic : Set := Dyadic { mantissa : Z; exponent : Z }.

(** The number that a dyadic stands for: m·2^e. *)
Definition value (x : dyadic) : R := IZR (mantissa x) * bpow radix2 (exponent x).

Definition z_of (n : Z) : dyadic := Dyadic n 0.
Definition z_is_zero (x : dyadic) : bool := Z.eqb (mantissa x) 0.
Definition z_abs (x : dyadic) : dyadic := Dyadic (Z.abs (mantissa x)) (exponent x).
Definition z_mul (x y : dyadic) : dyadic := Dyadic (mantissa x * mantissa y) (exponent x + exponent y).
Definition z_add (x y : dyadic) : dyadic :=
  if z_is_zero x then y else if z_is_zero y then x else
  let e := Z.min (exponent x) (exponent y) in
  Dyadic (Z.shiftl (mantissa x) (exponent x - e) + Z.shiftl (mantissa y) (exponent y - e)) e.
Definition z_sub (x y : dyadic) : dyadic := z_add x (Dyadic (- mantissa y) (exponent y)).
Definition z_le (x y : dyadic) : bool := Z.leb 0 (mantissa (z_sub y x)).
Definition z_sum {A : Type} (l : list A) (f : A -> dyadic) : dyadic := fold_right (fun x s => z_add (f x) s) (z_of 0) l.

(** The least multiple of 2^(e + bits − k) above m·2^e, for m of more than k bits. *)
Definition round_up (k : Z) (x : dyadic) : dyadic :=
  let s := (Z.log2 (Z.abs (mantissa x)) - k)%Z in
  if Z.leb s 0 then x else Dyadic (Z.shiftr (mantissa x) s + 1) (exponent x + s).

(** * The figures *)

Definition z_support (w : list dyadic) : Z := fold_right (fun x n => if z_is_zero x then n else Z.succ n) 0%Z w.
Definition z_weight (w : list dyadic) : dyadic := z_sum w z_abs.

Section Format.
Variables emin prec : Z.

(** n·u·A + n·η/2·(1 + n·u) *)
Definition z_dot_bound (n : Z) (A : dyadic) : dyadic :=
  let nu := Dyadic n (- prec) in
  z_add (z_mul nu A) (z_mul (Dyadic n (emin - 1)) (z_add (z_of 1) nu)).

Definition z_mixing (λ : dyadic) (N : Z) (A : dyadic) : dyadic := if z_is_zero λ then z_of 0 else z_dot_bound N A.

(** What the bound needs from a column of W_val, for every output channel: B·Σ|w|, λ and the rounding. *)
Record head_column : Set := HeadColumn { h_size : dyadic; h_leak : dyadic; h_rounding : dyadic }.

Definition z_head_column (o : head_order) (N : Z) (B λ : dyadic) (w : list dyadic) : head_column :=
  let S := z_weight w in
  let n := z_support w in
  let l1 := z_add (z_of 1) λ in
  HeadColumn (z_mul S B) λ
    match o with
    | values_first =>
        let E := z_dot_bound n (z_mul S B) in
        z_add (z_mul l1 E) (z_mixing λ N (z_mul l1 (z_add (z_mul S B) E)))
    | attended_first =>
        let E := z_mixing λ N (z_mul l1 B) in
        z_add (z_mul S E) (z_dot_bound n (z_mul S (z_add (z_mul l1 B) E)))
    end.

(** Leak and rounding of one output channel: the columns with their entries of W_out. *)
Definition z_leak (cols : list (dyadic * head_column)) : dyadic :=
  z_sum cols (fun c => z_mul (z_abs (fst c)) (z_mul (h_leak (snd c)) (h_size (snd c)))).

Definition z_rounding (B b_conv : dyadic) (ws : list dyadic) (b_att : dyadic)
    (cols : list (dyadic * head_column)) : dyadic :=
  z_add (z_add
    (z_dot_bound (z_support (b_conv :: ws)) (z_add (z_abs b_conv) (z_mul (z_weight ws) B)))
    (z_sum cols (fun c => z_mul (z_abs (fst c)) (h_rounding (snd c)))))
    (z_dot_bound (z_support (b_att :: map fst cols))
      (z_add (z_abs b_att) (z_sum cols (fun c => z_mul (z_abs (fst c))
        (z_add (z_mul (z_add (z_of 1) (h_leak (snd c))) (h_size (snd c))) (h_rounding (snd c))))))).

(** The rounding where W_val W_out is formed first. *)
Definition z_weights (N : Z) (B b_conv : dyadic) (ws : list dyadic) (b_att : dyadic) (es : list (entry dyadic)) : dyadic :=
  let most t := z_mul (z_add (z_of 1) (entry_leak t)) B in
  let mixed t := z_mixing (entry_leak t) N (most t) in
  let attended t := z_add (most t) (mixed t) in
  z_add (z_add
    (z_dot_bound (z_support (b_conv :: ws)) (z_add (z_abs b_conv) (z_mul (z_weight ws) B)))
    (z_sum es (fun t => z_add (z_mul (entry_error t) (attended t)) (z_mul (entry_size t) (mixed t)))))
    (z_dot_bound (z_support (b_att :: map entry_size es))
      (z_add (z_abs b_att) (z_sum es (fun t => z_mul (z_add (entry_size t) (entry_error t)) (attended t))))).

Definition z_size (B b_conv : dyadic) (ws : list dyadic) : dyadic :=
  let A := z_add (z_abs b_conv) (z_mul (z_weight ws) B) in
  z_add A (z_dot_bound (z_support (b_conv :: ws)) A).

Definition z_final (M T : dyadic) : dyadic :=
  let u := Dyadic 1 (- prec) in
  let h := Dyadic 1 (emin - 1) in
  z_add (z_add T (z_add (z_mul u M) h)) (z_add (z_mul u (z_add M T)) h).

End Format.

(** * The values *)

Lemma value_of n : value (z_of n) = IZR n.
Proof. unfold value, z_of; simpl; ring. Qed.

Lemma value_mul x y : value (z_mul x y) = value x * value y.
Proof. unfold value, z_mul; simpl; rewrite mult_IZR, bpow_plus; ring. Qed.

Lemma value_abs x : value (z_abs x) = Rabs (value x).
Proof. unfold value, z_abs; simpl; rewrite Rabs_mult, abs_IZR, (Rabs_pos_eq (bpow _ _)) by apply bpow_ge_0;
  reflexivity. Qed.

Lemma value_is_zero x : z_is_zero x = true <-> value x = 0.
Proof.
  unfold z_is_zero, value; rewrite Z.eqb_eq; split; [intros ->; ring|]; intros E.
  apply Rmult_integral in E; destruct E as [E|E]; [apply eq_IZR, E|]; assert (P := bpow_gt_0 radix2 (exponent x)); lra.
Qed.

Lemma value_nonzero x : z_is_zero x = false -> value x <> 0.
Proof. intros E Z; apply value_is_zero in Z; congruence. Qed.

Lemma shift_value m e e' : (e' <= e)%Z -> IZR (Z.shiftl m (e - e')) * bpow radix2 e' = IZR m * bpow radix2 e.
Proof.
  intros L; rewrite Z.shiftl_mul_pow2, mult_IZR by lia; change (2 ^ (e - e'))%Z with (radix2 ^ (e - e'))%Z.
  rewrite IZR_Zpower by lia; rewrite Rmult_assoc, <- bpow_plus; do 2 f_equal; lia.
Qed.

Lemma value_add x y : value (z_add x y) = value x + value y.
Proof.
  unfold z_add; destruct (z_is_zero x) eqn:X; [apply value_is_zero in X; lra|].
  destruct (z_is_zero y) eqn:Y; [apply value_is_zero in Y; lra|].
  unfold value; simpl; rewrite plus_IZR, Rmult_plus_distr_r, !shift_value by lia; reflexivity.
Qed.

Lemma value_sub x y : value (z_sub x y) = value x - value y.
Proof. unfold z_sub; rewrite value_add; unfold value; simpl; rewrite opp_IZR; ring. Qed.

Lemma value_sum {A} (l : list A) f : value (z_sum l f) = sum l (fun x => value (f x)).
Proof. induction l as [|a l IH]; [apply value_of|]; simpl; rewrite value_add, IH; reflexivity. Qed.

Lemma value_le x y : z_le x y = true -> value x <= value y.
Proof.
  unfold z_le; rewrite Z.leb_le; intros L; apply IZR_le in L.
  assert (V := value_sub y x); unfold value at 1 in V.
  assert (0 <= IZR (mantissa (z_sub y x)) * bpow radix2 (exponent (z_sub y x))) by (apply Rmult_le_pos;
    [exact L|apply bpow_ge_0]).
  lra.
Qed.

Theorem round_up_le k x : value x <= value (round_up k x).
Proof.
  unfold round_up; set (s := (Z.log2 (Z.abs (mantissa x)) - k)%Z); destruct (Z.leb_spec s 0) as [L|L];
    [apply Rle_refl|].
  unfold value; simpl; rewrite (Z.add_comm (exponent x)), bpow_plus, <- Rmult_assoc.
  apply Rmult_le_compat_r; [apply bpow_ge_0|]; rewrite <- IZR_Zpower by lia; rewrite <- mult_IZR; apply IZR_le.
  rewrite Z.shiftr_div_pow2 by lia; change (radix2 ^ s)%Z with (2 ^ s)%Z.
  assert (P : (0 < 2 ^ s)%Z) by (apply Z.pow_pos_nonneg; lia).
  assert (D := Z.div_mod (mantissa x) (2 ^ s) ltac:(lia)); assert (M := Z.mod_pos_bound (mantissa x) (2 ^ s) P); lia.
Qed.

Lemma value_support w : z_support w = Z.of_nat (support (map value w)).
Proof.
  induction w as [|x w IH]; [reflexivity|]; simpl; destruct (support_cons (value x) (map value w)) as [S0 S1].
  destruct (z_is_zero x) eqn:E.
  - apply value_is_zero in E; rewrite S0 by exact E; exact IH.
  - apply value_nonzero in E; rewrite S1 by exact E; rewrite IH; lia.
Qed.

Lemma value_weight w : value (z_weight w) = weight (map value w).
Proof. unfold z_weight, weight; rewrite value_sum, sum_map; apply sum_ext; intros; apply value_abs. Qed.

Section Values.
Variables emin prec : Z.

Lemma value_dot_bound n A : value (z_dot_bound emin prec (Z.of_nat n) A) = dot_bound emin prec n (value A).
Proof.
  unfold z_dot_bound, dot_bound; rewrite value_add, !value_mul, value_add, value_of.
  unfold value at 1 3 4; simpl; rewrite <- INR_IZR_INZ; unfold roundoff, half_eta; ring.
Qed.

Lemma value_mixing λ N A : value (z_mixing emin prec λ (Z.of_nat N) A) = mixing emin prec (value λ) N (value A).
Proof.
  unfold z_mixing, mixing; destruct (z_is_zero λ) eqn:E, (Req_EM_T (value λ) 0) as [Z|Z].
  - apply value_of.
  - apply value_is_zero in E; contradiction.
  - apply value_nonzero in E; contradiction.
  - apply value_dot_bound.
Qed.

(** The column c of weights with its entry of W_out is what [cz] was computed from. *)
Definition computed_from (o : head_order) (N : nat) (B : dyadic) (c : column dyadic) : dyadic * head_column :=
  (out_weight c, z_head_column emin prec o (Z.of_nat N) B (row_leak c) (in_weights c)).

Definition value_column (c : column dyadic) : column R :=
  Column (value (out_weight c)) (value (row_leak c)) (map value (in_weights c)).

Lemma value_head_rounding o N B λ w :
  value (h_rounding (z_head_column emin prec o (Z.of_nat N) B λ w))
  = head_rounding emin prec o N (value B) (value λ) (map value w).
Proof.
  destruct o; simpl; rewrite value_support, value_add, !value_mul, ?value_add, ?value_mixing, ?value_mul, ?value_add,
    ?value_dot_bound,
    ?value_mul, ?value_add, ?value_mixing, ?value_mul, ?value_add, ?value_of, ?value_weight; reflexivity.
Qed.

Theorem z_leak_value o N B cols :
  value (z_leak (map (computed_from o N B) cols)) = leak_figure (value B) (map value_column cols).
Proof.
  unfold z_leak, leak_figure; rewrite value_sum, !sum_map; apply sum_ext; intros c _; simpl.
  rewrite !value_mul, value_abs, value_weight; reflexivity.
Qed.

Theorem z_rounding_value o N B b_conv ws b_att cols :
  value (z_rounding emin prec B b_conv ws b_att (map (computed_from o N B) cols))
  = rounding_figure emin prec o N (value B) (value b_conv) (map value ws) (value b_att) (map value_column cols).
Proof.
  unfold z_rounding, rounding_figure; cbv zeta.
  assert (Es : map fst (map (computed_from o N B) cols) = map out_weight cols) by apply map_map.
  rewrite Es, !value_add, !value_support, !value_dot_bound, !value_add, value_mul, !value_abs, value_weight,
    !value_sum, !sum_map.
  assert (Eo : map value (b_att :: map out_weight cols) = value b_att :: map out_weight (map value_column cols)).
  { simpl; f_equal; rewrite !map_map; reflexivity. }
  rewrite Eo; simpl (map value (b_conv :: ws)); f_equal; [f_equal|do 2 f_equal]; apply sum_ext; intros c _;
    cbn [fst snd computed_from];
    rewrite ?value_mul, ?value_add, ?value_mul, ?value_add, ?value_of, value_abs, value_head_rounding; [reflexivity|].
  simpl; rewrite value_mul, value_weight; reflexivity.
Qed.

Definition value_entry (t : entry dyadic) : entry R :=
  Entry (value (entry_leak t)) (value (entry_size t)) (value (entry_error t)).

Theorem z_weights_value N B b_conv ws b_att es :
  value (z_weights emin prec (Z.of_nat N) B b_conv ws b_att es)
  = weights_figure emin prec N (value B) (value b_conv) (map value ws) (value b_att) (map value_entry es).
Proof.
  unfold z_weights, weights_figure; cbv zeta.
  rewrite !value_add, !value_support, !value_dot_bound, !value_add, value_mul, !value_abs, value_weight, !value_sum, !sum_map.
  assert (Eo : map value (b_att :: map entry_size es) = value b_att :: map entry_size (map value_entry es)).
  { simpl; f_equal; rewrite !map_map; reflexivity. }
  rewrite Eo; simpl (map value (b_conv :: ws)); f_equal; [f_equal|do 2 f_equal]; apply sum_ext; intros t _;
    cbn [value_entry entry_leak entry_size entry_error];
    repeat rewrite ?value_add, ?value_mul, ?value_mixing, ?value_of; reflexivity.
Qed.

Lemma z_size_value B b_conv ws :
  value (z_size emin prec B b_conv ws) = size_figure emin prec (value B) (value b_conv) (map value ws).
Proof.
  unfold z_size, size_figure; cbv zeta; rewrite value_support, value_add, value_dot_bound, value_add, value_mul,
    value_abs, value_weight.
  reflexivity.
Qed.

Lemma z_final_value M T : value (z_final emin prec M T) = final_figure emin prec (value M) (value T).
Proof.
  unfold z_final, final_figure; cbv zeta; rewrite !value_add, !value_mul, value_add.
  unfold value at 2 4 5 8; simpl; unfold roundoff, half_eta; ring.
Qed.

End Values.
