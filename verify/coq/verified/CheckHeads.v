(** The checker's heads and geometry: both layers have the same fields, and where each head looks.

    Where a head looks is read from c = Ŵ_keyᵀ v alone: −c_0 is α, and c_i / 2α is the shift τ, or its number if the
    encoding is the parabola, of which the same holds with the number as a vector of one entry.  If τ is not an integer
    vector, the head looks at the nearest one, n, and is as sharp as a head there with α(1 − 2 max|τ_i − n_i|).
    Statements:
      geometry_equal    the fields are compared verbatim
      kernel_at_units   the kernel positions and their shifts do not depend on the size of the input
      head_sharp        a head that the checker reads has no content term, and c = −α(1, −2τ) up to the distance of
                        its shift from an integer vector: OffLattice.v's [tilted] *)

From Coq Require Import Reals ZArith List Bool Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Softmax Lemma2 Factorisation Leakage Layers OffLattice Geometry
  Transposed.
From Attention Require Import RoundingTaps RoundingDyadic CheckSparse CheckFields CheckTaps CheckRadix.
Import ListNotations.
Open Scope Z_scope.

(** * What is computed *)

Fixpoint equal_lists (a b : list Z) : bool :=
  match a, b with [], [] => true | x :: a', y :: b' => (x =? y) && equal_lists a' b' | _, _ => false end.

Definition equal_paddings (p p' : padding) : bool :=
  match p, p' with integers a, integers b => equal_lists a b | same, same => true | valid, valid => true | _, _ =>
    false end.

Definition equal_modes (m m' : padding_mode) : bool :=
  match m, m' with
  | zeros, zeros => true | reflect, reflect => true | replicate, replicate => true | circular, circular => true
  | _, _ => false
  end.

Definition equal_geometries (g h : geometry) : bool :=
  (in_channels g =? in_channels h) && (out_channels g =? out_channels h) &&
  equal_lists (kernel_size g) (kernel_size h) && equal_lists (stride_of g) (stride_of h) &&
  equal_lists (dilation_of g) (dilation_of h) && equal_paddings (padding_of g) (padding_of h) &&
  equal_modes (mode_of g) (mode_of h) && (groups g =? groups h) && Bool.eqb (transposed g) (transposed h) &&
  equal_lists (output_paddings g) (output_paddings h).

(** The fields do not contradict each other. *)
Definition well_formed (g : geometry) : bool :=
  (0 <? groups g) && (0 <? in_channels g) && (0 <? out_channels g) &&
  (in_channels g mod groups g =? 0) && (out_channels g mod groups g =? 0) &&
  (Nat.ltb 0 (dims g)) && forallb (fun k => 0 <? k) (kernel_size g) &&
  (Nat.eqb (length (stride_of g)) (dims g)) && (Nat.eqb (length (dilation_of g)) (dims g)) &&
  (Nat.eqb (length (output_paddings g)) (dims g)) &&
  match padding_of g with
  | integers p => Nat.eqb (length p) (dims g)
  | same => negb (transposed g) && forallb (fun s => s =? 1) (stride_of g)
  | valid => negb (transposed g)
  end &&
  (if transposed g then equal_modes (mode_of g) zeros else forallb (fun e => e =? 0) (output_paddings g)).

(** The kernel positions do not depend on the size: one pixel an axis. *)
Definition units (g : geometry) : list Z := map (fun _ => 1) (kernel_size g).

Definition all_zero (m : list (list Z)) : bool := forallb (forallb (fun x => x =? 0)) m.
(** The head carries nothing, so it may look anywhere. *)
Definition idle (h : raw_head) : bool := forallb all_zero (h_val h) || forallb all_zero (h_out h).

(** c = Ŵ_keyᵀ v *)
Definition read_back_of (d : nat) (h : raw_head) : list Z :=
  let c := row_product (h_v h) (map sparse_of (h_key_pos h)) in map (fun i => coef c (Z.of_nat i)) (seq 0 (S d)).

(** The content terms of Eq. 6 are zero. *)
Definition no_content (h : raw_head) : bool :=
  all_zero (h_qry h) && (forallb (fun x => x =? 0) (h_u h) || all_zero (h_key h)).

(** The integer nearest to τ_i, from c_i = 2α·τ_i, and the remainder of c_i; the largest such remainder. *)
Definition nearest_shift (a x : Z) : Z := (x + a) / (2 * a).
Definition rest_of (a x : Z) : Z := x - 2 * a * nearest_shift a x.
Definition largest_rest (a : Z) (c : list Z) : Z := fold_right Z.max 0 (map (fun x => Z.abs (rest_of a x)) c).

(** Sharpness and the shift's code, where c = −α(1, −2τ) and the content terms are zero: α minus the largest remainder,
    which must be positive, as an integer times 2^(s_v + s_key_pos), and the integer vector nearest to τ. *)
Definition looks (m : attention_layer) (h : raw_head) : option (Z * position) :=
  match read_back_of (code_dims (a_encoding m) (dims m)) h with
  | [] => None
  | c0 :: c =>
      let a := (- c0 - largest_rest (- c0) c)%Z in
      if (0 <? a) && no_content h && Nat.eqb (length (h_v h)) (Z.to_nat (key_dim m))
      then Some (a, map (nearest_shift (- c0)) c) else None
  end.

(** τ is an integer vector. *)
Definition on_lattice (m : attention_layer) (h : raw_head) : bool :=
  match read_back_of (code_dims (a_encoding m) (dims m)) h with
  | [] => false | c0 :: c => largest_rest (- c0) c =? 0
  end.

(** α·2^−(s_v + s_key_pos) *)
Definition sharpness_read (m : attention_layer) (h : raw_head) : Z :=
  match looks m h with Some (a, _) => a | None => 0 end.

(** The kernel position at whose shift a head looks. *)
Definition tap_read (m : attention_layer) (h : raw_head) : option position :=
  match looks m h with
  | Some (_, τ) =>
      find (fun j => if same_position (coded (a_encoding m) (shift_of m (units m) j)) τ then true else false)
        (kernel_taps m (units m))
  | None => None
  end.
Definition shift_read (m : attention_layer) (h : raw_head) : position :=
  match tap_read m h with Some j => shift_of m (units m) j | None => [] end.

(** * Geometry *)

Lemma lists_equal a b : equal_lists a b = true -> a = b.
Proof.
  revert b; induction a as [|x a IH]; intros [|y b]; simpl; try congruence; intros E.
  apply andb_prop in E; destruct E as [E F]; apply Z.eqb_eq in E; rewrite E, (IH b F); reflexivity.
Qed.

Lemma paddings_equal p p' : equal_paddings p p' = true -> p = p'.
Proof. destruct p, p'; simpl; try congruence; intros E; f_equal; apply lists_equal, E. Qed.

Lemma modes_equal m m' : equal_modes m m' = true -> m = m'.
Proof. destruct m, m'; simpl; congruence. Qed.

Theorem geometry_equal g h : equal_geometries g h = true -> g = h.
Proof.
  unfold equal_geometries; rewrite !andb_true_iff;
    intros (((((((((A1 & A2) & A3) & A4) & A5) & A6) & A7) & A8) & A9) & A10).
  apply Z.eqb_eq in A1, A2, A8; apply lists_equal in A3, A4, A5, A10; apply paddings_equal in A6;
    apply modes_equal in A7.
  apply eqb_prop in A9; destruct g, h; simpl in *; congruence.
Qed.

(** The fields that kernel positions depend on. *)
Definition same_kernel (a b : axis) : Prop := kernel a = kernel b /\ dilation a = dilation b.

Lemma axes_units g sizes : length sizes = dims g -> Forall2 same_kernel (axes g sizes) (axes g (units g)).
Proof.
  unfold axes, axes_of, units, dims; generalize (pads (padding_of g) (kernel_size g) (dilation_of g));
    generalize (stride_of g), (dilation_of g).
  generalize (kernel_size g); intros ks; revert sizes; induction ks as [|k ks IH]; intros [|n ns] ss ds ps E;
    simpl in E; try lia.
  - constructor.
  - destruct ss as [|s ss], ds as [|d ds], ps as [|[p p'] ps]; simpl; try constructor; [split; reflexivity|].
    apply IH; lia.
Qed.

Lemma shift_same_kernel a b : Forall2 same_kernel a b -> forall j, shift a j = shift b j.
Proof.
  induction 1 as [|x y a b [K D] _ IH]; intros [|t j]; simpl; try reflexivity; unfold anchor; rewrite K, D, IH;
    reflexivity.
Qed.

Lemma taps_same_kernel a b : Forall2 same_kernel a b -> map (fun x => range (kernel x)) a = map (fun x => range
  (kernel x)) b.
Proof. induction 1 as [|x y a b [K D] _ IH]; simpl; [reflexivity|]; rewrite K, IH; reflexivity. Qed.

Lemma taxes_same_kernel (e : list Z) a b : Forall2 same_kernel a b ->
  Forall2 (fun x y : taxis => same_kernel x y)
    (map (fun ae => {| base := fst ae; output_padding := snd ae |}) (List.combine a e))
    (map (fun ae => {| base := fst ae; output_padding := snd ae |}) (List.combine b e)).
Proof. intros F; revert e; induction F; intros [|y' e]; simpl; constructor; [assumption|apply IHF]. Qed.

Theorem kernel_at_units g sizes : length sizes = dims g ->
  kernel_taps g sizes = kernel_taps g (units g) /\ forall j, shift_of g sizes j = shift_of g (units g) j.
Proof.
  intros E; assert (F := axes_units g sizes E); unfold kernel_taps, shift_of, taxes; destruct (transposed g).
  - assert (T := taxes_same_kernel (output_paddings g) _ _ F); split.
    + unfold transposed_taps; f_equal; revert T; clear; induction 1 as [|x y a b [K D] _ IH]; simpl; [reflexivity|].
      rewrite K, IH; reflexivity.
    + revert T; clear; induction 1 as [|x y a b [K D] _ IH]; intros [|t j]; simpl; try reflexivity.
      unfold anchor; rewrite K, D, IH; reflexivity.
  - split; [unfold taps; f_equal; apply taps_same_kernel, F|apply shift_same_kernel, F].
Qed.

(** ** What well formed fields give *)

Section WellFormed.
Variable g : geometry.
Hypothesis W : well_formed g = true.

Lemma well_formed_fields : 0 < groups g /\ 0 < in_channels g /\ 0 < out_channels g /\
  in_channels g mod groups g = 0 /\ out_channels g mod groups g = 0 /\ (0 < dims g)%nat /\
  length (stride_of g) = dims g /\ length (dilation_of g) = dims g /\ length (output_paddings g) = dims g /\
  length (pads (padding_of g) (kernel_size g) (dilation_of g)) = dims g.
Proof.
  revert W; unfold well_formed; rewrite !andb_true_iff, !Z.ltb_lt, !Z.eqb_eq, Nat.ltb_lt, !Nat.eqb_eq.
  intros (((((((((((A1 & A2) & A3) & A4) & A5) & A6) & _) & A7) & A8) & A9) & A10) & _); repeat split; try assumption.
  assert (P : forall p ks ds, match p with integers l => length l = length ks | _ => True end -> length ds = length ks
    ->
    length (pads p ks ds) = length ks).
  { intros p; destruct p as [l| |].
    - induction l as [|x l IH]; intros [|k ks] [|d ds]; simpl; try lia; intros E F; rewrite IH; lia.
    - intros ks; induction ks as [|k ks IH]; intros [|d ds]; simpl; try lia; intros _ F; rewrite IH;
      [reflexivity|exact I|lia].
    - intros ks; induction ks as [|k ks IH]; intros [|d ds]; simpl; try lia; intros _ F; rewrite IH;
      [reflexivity|exact I|lia]. }
  apply P; [destruct (padding_of g); [apply Nat.eqb_eq, A10|exact I|exact I]|exact A8].
Qed.

Lemma axes_kernels sizes : length sizes = dims g -> map kernel (axes g sizes) = kernel_size g /\ length (axes g sizes)
  = dims g.
Proof.
  destruct well_formed_fields as (_ & _ & _ & _ & _ & _ & Ls & Ld & _ & Lp); revert Ls Ld Lp;
    unfold axes, axes_of, dims.
  generalize (pads (padding_of g) (kernel_size g) (dilation_of g)); generalize (stride_of g), (dilation_of g).
  generalize (kernel_size g); intros ks; revert sizes; induction ks as [|k ks IH];
    intros [|n ns] [|s ss] [|d ds] [|[p p'] ps]; simpl; try lia; intros Ls Ld Lp E; [split; reflexivity|].
  destruct (IH ns ss ds ps); try lia; split; [f_equal; assumption|lia].
Qed.

Lemma axis_count_dims sizes : length sizes = dims g -> axis_count g sizes = dims g.
Proof.
  intros E; destruct (axes_kernels sizes E) as [_ L]; unfold axis_count; destruct (transposed g); [|exact L].
  apply length_taxes; [apply well_formed_fields|exact L].
Qed.

Lemma in_kernel_taps sizes j : length sizes = dims g -> In j (kernel_taps g sizes) ->
  Forall2 (fun x k => 0 <= x < k) j (kernel_size g).
Proof.
  intros E; destruct (axes_kernels sizes E) as [K L]; unfold kernel_taps; destruct (transposed g).
  - unfold transposed_taps; rewrite in_box_transposed; intros F; rewrite <- K.
    destruct (length_taxes g sizes) as [_ Eb]; [apply well_formed_fields|exact L|].
    rewrite <- Eb, map_map; revert F; generalize (taxes g sizes); intros a; revert j; clear.
    induction a as [|x a IH]; intros j F; inversion F; subst; simpl; constructor; [assumption|apply IH; assumption].
  - unfold taps; rewrite in_box_ranges; intros F; rewrite <- K; revert F; generalize (axes g sizes); intros a;
    revert j; clear.
    induction a as [|x a IH]; intros j F; inversion F; subst; simpl; constructor; [assumption|apply IH; assumption].
Qed.

Lemma channels_g : (0 < groups_n g)%nat /\ (0 < in_g g)%nat /\ (0 < out_g g)%nat.
Proof.
  destruct well_formed_fields as (G & I & O & Mi & Mo & _); unfold groups_n, in_g, out_g.
  assert (0 < in_channels g / groups g) by (apply Z.mod_divide in Mi; [|lia]; destruct Mi as [z Ez];
    rewrite Ez, Z.div_mul by lia; nia).
  assert (0 < out_channels g / groups g) by (apply Z.mod_divide in Mo; [|lia]; destruct Mo as [z Ez];
    rewrite Ez, Z.div_mul by lia; nia).
  lia.
Qed.

End WellFormed.

(** The row-major number of a kernel position. *)
Lemma number_range ks j : Forall2 (fun x k => 0 <= x < k) j ks -> 0 <= number ks j < product ks.
Proof. induction 1 as [|x k j ks Hx _ IH]; simpl; [lia|]; nia. Qed.

Lemma number_injective ks j j' : Forall2 (fun x k => 0 <= x < k) j ks -> Forall2 (fun x k => 0 <= x < k) j' ks ->
  number ks j = number ks j' -> j = j'.
Proof.
  intros F F'; assert (L : length j = length j').
  { assert (P : forall l m, Forall2 (fun x k => 0 <= x < k) l m -> length l = length m) by (clear; induction 1; simpl;
    congruence).
    rewrite (P _ _ F), (P _ _ F'); reflexivity. }
  intros E.
  apply zeros_equal; [exact L|]; apply (number_zero ks); [|rewrite number_sub by exact L; lia].
  clear E L; revert j' F'; induction F as [|x k j ks Hx _ IH]; intros j' F'; inversion F'; subst; simpl; constructor;
    [lia|].
  apply IH; assumption.
Qed.

(** * Heads *)

Open Scope R_scope.

Lemma all_zero_nth m i a : all_zero m = true -> nth a (nth i m []) 0%Z = 0%Z.
Proof.
  unfold all_zero; rewrite forallb_forall; intros F; destruct (nth_in_or_default i m []) as [I| ->]; [|destruct a;
    reflexivity].
  specialize (F _ I); rewrite forallb_forall in F; destruct (nth_in_or_default a (nth i m []) 0%Z) as [J|];
    [|assumption].
  apply Z.eqb_eq, F, J.
Qed.

Lemma number_of_0 e : number_of e 0 = 0.
Proof. unfold number_of, value; simpl; ring. Qed.

Lemma idle_carries (m : attention_layer) h i j : idle h = true -> value_output (layer_of m) h i j = 0.
Proof.
  assert (Z0 : forall e rows columns x a b, forallb all_zero x = true -> blocks_of e rows columns x a b = 0).
  { intros e rows columns x a b F; unfold blocks_of; destruct (Nat.eqb _ _); [|reflexivity].
    rewrite forallb_forall in F; destruct (nth_in_or_default (b / columns) x []) as [I|E].
    - rewrite all_zero_nth by (apply F, I); apply number_of_0.
    - rewrite E; destruct (a mod rows)%nat, (b mod columns)%nat; apply number_of_0. }
  unfold idle; rewrite orb_true_iff; intros [E|E]; unfold value_output, row_times; apply sum_below_zero; intros a _;
    cbn [parameters layer_of W_val W_out]; rewrite (Z0 _ _ _ _ _ _ E); ring.
Qed.

(** α of a head, as a real. *)
Definition alpha_of (m : attention_layer) (h : raw_head) : R :=
  number_of (s_v (scale_of m) + s_key_pos (scale_of m)) (sharpness_read m h).

Lemma largest_rest_le a c x : In x c -> (Z.abs (rest_of a x) <= largest_rest a c)%Z.
Proof.
  unfold largest_rest; induction c as [|y c IH]; [intros []|]; cbn [map fold_right]; intros [->|I]; [lia|].
  specialize (IH I); lia.
Qed.

Lemma largest_rest_nonneg a c : (0 <= largest_rest a c)%Z.
Proof. unfold largest_rest; induction c as [|y c IH]; cbn [map fold_right]; lia. Qed.

Theorem head_sharp (m : attention_layer) h a τ : looks m h = Some (a, τ) ->
  let w := row_times (D_k (layer_of m)) (v (parameters (layer_of m) h)) (W_key_pos (parameters (layer_of m) h)) in
  let d := code_dims (a_encoding m) (dims m) in
  content_free (layer_of m) h /\ 0 < alpha_of m h /\ length τ = d /\ tilted d (alpha_of m h) τ w /\
  (on_lattice m h = true -> forall i, (i < S d)%nat -> w i = v_quadratic (alpha_of m h) τ i).
Proof.
  unfold alpha_of, sharpness_read, on_lattice; intros E; cbv zeta; rewrite E; unfold looks in E.
  set (d := code_dims (a_encoding m) (dims m)) in *.
  destruct (read_back_of d h) as [|c0 c] eqn:R; [discriminate|]; cbv zeta in E.
  destruct (_ && _)%bool eqn:B in E; [|discriminate]; injection E as <- <-.
  unfold no_content in B; rewrite !andb_true_iff, orb_true_iff in B; destruct B as ((B0 & B1 & B2) & B3).
  apply Z.ltb_lt in B0; apply Nat.eqb_eq in B3; set (e := (s_v (scale_of m) + s_key_pos (scale_of m))%Z).
  assert (Lc : length (c0 :: c) = S d) by (rewrite <- R; unfold read_back_of; rewrite map_length;
    apply seq_length).
  assert (C : forall i, (i < S d)%nat ->
    row_times (D_k (layer_of m)) (v (parameters (layer_of m) h)) (W_key_pos (parameters (layer_of m) h)) i =
    number_of e (nth i (c0 :: c) 0%Z)).
  { intros i Hi; rewrite <- R; unfold read_back_of; cbv zeta.
    set (p := row_product _ _); set (coefs_p := fun n => coef p (Z.of_nat n)).
    assert (Ln : nth i (map coefs_p (seq 0 (S d))) 0%Z = coefs_p i).
    { assert (Li : (i < length (map coefs_p (seq 0 (S d))))%nat) by (rewrite map_length, seq_length; exact Hi).
      rewrite (nth_indep _ 0%Z (coefs_p 0%nat) Li), map_nth, seq_nth by exact Hi; reflexivity. }
    fold coefs_p; rewrite Ln; unfold coefs_p, p.
    unfold number_of at 1, value; simpl mantissa; simpl exponent; rewrite coef_row_product, B3.
    cbn [D_k layer_of parameters v W_key_pos]; unfold row_times, sum_below; rewrite <- sum_scal_r.
    apply sum_ext; intros x _; unfold vector_of, matrix_of; rewrite number_of_times; unfold number_of, value; simpl.
    rewrite mult_IZR; do 3 f_equal.
    change (@nil (Z * Z)) with (sparse_of []); rewrite map_nth, coef_sparse_of; reflexivity. }
  assert (P := largest_rest_nonneg (- c0) c).
  assert (S0 : forall i, (i < d)%nat -> number_of e (nth i c 0%Z) =
    2 * number_of e (- c0) * coordinate (map (nearest_shift (- c0)) c) i + number_of e (rest_of (- c0) (nth i c 0%Z))).
  { intros i Hi; unfold coordinate; assert (Li : (i < length (map (nearest_shift (- c0)) c))%nat) by
      (rewrite map_length; simpl in Lc; lia).
    rewrite (nth_indep _ 0%Z (nearest_shift (- c0) 0%Z) Li), map_nth; unfold rest_of, number_of, value.
    cbn [mantissa exponent]; rewrite minus_IZR, !mult_IZR; ring. }
  assert (In_c : forall i, (i < d)%nat -> In (nth i c 0%Z) c) by (intros i Hi; apply nth_In; simpl in Lc; lia).
  split; [|split; [|split; [|split]]].
  - cbn [parameters layer_of W_qry W_key u]; unfold content_free; cbn [parameters layer_of W_qry W_key u];
      unfold matrix_of, vector_of; split; [|destruct B2 as [B2|B2]; [left|right]].
    + intros i j; rewrite all_zero_nth by exact B1; apply number_of_0.
    + intros i; replace (nth i (h_u h) 0%Z) with 0%Z; [apply number_of_0|]; symmetry.
      destruct (nth_in_or_default i (h_u h) 0%Z) as [I|]; [|assumption]; rewrite forallb_forall in B2;
        apply Z.eqb_eq, B2, I.
    + intros i j; rewrite all_zero_nth by exact B2; apply number_of_0.
  - unfold number_of, value; simpl; apply Rmult_lt_0_compat; [apply IZR_lt; exact B0|apply bpow_gt_0].
  - rewrite map_length; simpl in Lc; lia.
  - exists (number_of e (- c0)),
      (fun i => match i with O => 0 | S i' => number_of e (rest_of (- c0) (nth i' c 0%Z)) end).
    split; [|split; [reflexivity|]].
    + intros [|i] Hi; rewrite C by exact Hi; cbn [nth v_quadratic].
      * unfold number_of, value; cbn [mantissa exponent]; rewrite opp_IZR; ring.
      * rewrite S0 by lia; reflexivity.
    + intros i Hi; assert (L := largest_rest_le (- c0) c _ (In_c i Hi)).
      unfold number_of, value; cbn [mantissa exponent].
      rewrite Rabs_mult, (Rabs_pos_eq (bpow _ _)), <- Rmult_minus_distr_r by apply bpow_ge_0.
      apply Rmult_le_compat_r; [apply bpow_ge_0|]; rewrite <- abs_IZR, <- minus_IZR; apply IZR_le; lia.
  - rewrite Z.eqb_eq; intros Z0; replace (- c0 - largest_rest (- c0) c)%Z with (- c0)%Z by lia.
    intros [|i] Hi; rewrite C by exact Hi; cbn [nth v_quadratic].
    + unfold number_of, value; cbn [mantissa exponent]; rewrite opp_IZR; ring.
    + rewrite S0 by lia; assert (L := largest_rest_le (- c0) c _ (In_c i ltac:(lia))).
      replace (rest_of (- c0) (nth i c 0%Z)) with 0%Z by lia; rewrite number_of_0; ring.
Qed.
