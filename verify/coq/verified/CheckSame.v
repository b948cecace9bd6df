(** The checker in the mode `same`: the two layers are the same function, in the limit α → ∞.

    Statements:
      taps_difference_read  the vector [difference] holds tap − W at every kernel position and pair of channels
      same_tensors          if [check_same] accepts, taps and biases are the convolution's
      check_same_sound      and for every size that torch accepts, every image and every output, the layer with its v
                            multiplied by α → ∞ tends to the convolution *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Bool Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Softmax Lemma2 Leakage Layers OffLattice Limits Same Geometry Transposed.
From Attention Require RoundingCheck.
From Attention Require Import RoundingTaps RoundingDyadic CheckSparse CheckFields CheckTaps CheckRadix CheckHeads.
Import ListNotations.
Open Scope R_scope.

Section Computed.
Variables (c : convolution) (m : attention_layer).

(** The heads that carry something. *)
Definition kept : list raw_head := filter (fun h => negb (idle h)) (raw_heads m).

Definition head_scale : Z := (s_val (scale_of m) + s_out (scale_of m))%Z.
(** All numbers of taps are integers times this power of two. *)
Definition common_scale : Z := Z.min head_scale (c_weight_scale c).
Definition channels_in : Z := Z.of_nat (groups_n c * in_g c).
Definition positions_of_kernel : nat := Z.to_nat (product (kernel_size c)).

Definition vectors_of (factor : Z) (h : raw_head) : list sparse :=
  match tap_read m h with
  | Some j => head_vectors channels_in (Z.of_nat positions_of_kernel) (Z.of_nat (in_g c)) factor
                (number (kernel_size c) j) (h_val h) (h_out h)
  | None => []
  end.

(** Heads minus kernel. *)
Definition difference : sparse :=
  let factor := (2 ^ (head_scale - common_scale))%Z in
  merge_all (flat_map (vectors_of factor) kept ++
    kernel_vectors channels_in (Z.of_nat positions_of_kernel) (transposed c) (Z.of_nat (in_g c))
      (- 2 ^ (c_weight_scale c - common_scale)) (c_weight c)).

(** |b_out − b| of every output channel. *)
Definition bias_differences : list dyadic :=
  map (fun bb => z_abs (z_sub (Dyadic (fst bb) (s_b (scale_of m))) (Dyadic (snd bb) (c_bias_scale c))))
    (List.combine (raw_b_out m) (c_bias c)).

(** Both layers have the same fields, their tensors have matching shapes, and every head that carries something
    ignores the content and looks at a kernel position; a parabola's radix is large enough for its sizes. *)
Definition comparable : bool :=
  numbered m && equal_geometries m c && well_formed c &&
  shaped4 (groups_n c) (if transposed c then in_g c else out_g c) (if transposed c then out_g c else in_g c)
    positions_of_kernel (c_weight c) &&
  Nat.ltb 0 (Z.to_nat (head_dim m)) &&
  Nat.eqb (length (c_bias c)) (groups_n c * out_g c) && Nat.eqb (length (raw_b_out m)) (groups_n c * out_g c) &&
  forallb (fun h =>
    shaped (groups_n c) (in_g c) (Z.to_nat (head_dim m)) (h_val h) &&
    shaped (groups_n c) (Z.to_nat (head_dim m)) (out_g c) (h_out h) &&
    match tap_read m h with Some _ => true | None => false end) kept.

Definition check_same : bool :=
  comparable && forallb (fun e => Z.eqb (snd e) 0) difference && forallb z_is_zero bias_differences.

End Computed.

(** * Layers without their idle heads *)

Definition with_heads {H} (L : layer H) (hs : list H) : layer H := {|
  D_in := D_in L; D_k := D_k L; D_p := D_p L; D_h := D_h L; D_out := D_out L; heads := hs;
  parameters := parameters L; r := r L; b_out := b_out L |}.

Lemma attend_kept {H} (L : layer H) keep G X q j :
  (forall h, In h (heads L) -> keep h = false -> forall i, value_output L h i j = 0) ->
  attend (with_heads L (filter keep (heads L))) G X q j = attend L G X q j.
Proof.
  intros E; rewrite !attend_heads.
  set (F := fun h => row_times (D_in L) (fun i => sum G (fun k => attention L G h X q k * X k i)) (value_output L h) j).
  change (b_out L j + sum (filter keep (heads L)) F = b_out L j + sum (heads L) F); f_equal.
  apply RoundingCheck.sum_filter; intros h I K; apply sum_below_zero; intros i _; rewrite (E h I K); ring.
Qed.

(** * Soundness *)

Section Sound.
Variables (c : convolution) (m : attention_layer).
Hypothesis ok : comparable c m = true.
Variable sizes : list Z.
Hypothesis A : accepts c sizes.

Notation L := (with_heads (layer_of m) (kept m)).
Notation f := (shift_read m).
Notation code := (coded (a_encoding m)).
Notation ks := (kernel_size c).
Notation T := (positions_of_kernel c).

Lemma comparable_facts : a_geometry m = c_geometry c /\ well_formed c = true /\
  shaped4 (groups_n c) (if transposed c then in_g c else out_g c) (if transposed c then out_g c else in_g c) T
    (c_weight c) = true /\
  (0 < Z.to_nat (head_dim m))%nat /\ length (c_bias c) = (groups_n c * out_g c)%nat /\
  length (raw_b_out m) = (groups_n c * out_g c)%nat /\
  forall h, In h (kept m) ->
    shaped (groups_n c) (in_g c) (Z.to_nat (head_dim m)) (h_val h) = true /\
    shaped (groups_n c) (Z.to_nat (head_dim m)) (out_g c) (h_out h) = true /\ exists j, tap_read m h = Some j.
Proof.
  revert ok; unfold comparable; rewrite !andb_true_iff, forallb_forall, Nat.ltb_lt, !Nat.eqb_eq.
  intros (((((((_ & A1) & A2) & A3) & A4) & A5) & A6) & A7); apply geometry_equal in A1; repeat (split; [assumption|]).
  intros h I; specialize (A7 h I); rewrite !andb_true_iff in A7; destruct A7 as [[B1 B2] B3]; do 2 (split; [assumption|]).
  destruct (tap_read m h) as [j|]; [exists j; reflexivity|discriminate].
Qed.

Lemma same_fields : groups_n m = groups_n c /\ in_g m = in_g c /\ out_g m = out_g c /\ dims m = dims c.
Proof. destruct comparable_facts as (E & _); rewrite E; repeat split. Qed.

(** A head that carries something looks at the shift of the kernel position that was read. *)
Lemma head_looks h : In h (kept m) -> exists j a, tap_read m h = Some j /\ looks m h = Some (a, code (f h)) /\
  In j (kernel_taps c (units c)) /\ shift_of c (units c) j = f h.
Proof.
  destruct comparable_facts as (E & _ & _ & _ & _ & _ & F); intros I; destruct (F h I) as (_ & _ & j & Ej); exists j.
  assert (Ej' := Ej); unfold tap_read in Ej'; unfold shift_read; rewrite Ej.
  destruct (looks m h) as [[a τ]|]; [|discriminate]; exists a; split; [reflexivity|].
  apply find_some in Ej'; destruct Ej' as [I' S]; rewrite E in I', S |- *; split; [|split; [exact I'|reflexivity]].
  destruct (same_position _ τ) as [<-|]; [reflexivity|discriminate].
Qed.

Lemma number_taps j : In j (kernel_taps c (units c)) -> (0 <= number ks j < Z.of_nat T)%Z.
Proof.
  destruct comparable_facts as (_ & W & _); intros I.
  assert (R := number_range ks j (in_kernel_taps c W (units c) j (map_length _ _) I)).
  unfold positions_of_kernel; lia.
Qed.

Lemma factor_value (e e' : Z) z : (e' <= e)%Z -> number_of e' (2 ^ (e - e') * z) = number_of e z.
Proof.
  intros Le; unfold number_of, value; cbn [mantissa exponent]; rewrite Z.mul_comm, <- Z.shiftl_mul_pow2 by lia.
  apply shift_value, Le.
Qed.

Lemma number_of_plus e x y : number_of e (x + y) = number_of e x + number_of e y.
Proof. unfold number_of, value; simpl; rewrite plus_IZR; ring. Qed.

Lemma value_output_with (L : layer raw_head) hs h i k : value_output (with_heads L hs) h i k = value_output L h i k.
Proof. reflexivity. Qed.

Lemma shifts_injective j j' : In j (kernel_taps c (units c)) -> In j' (kernel_taps c (units c)) ->
  shift_of c (units c) j = shift_of c (units c) j' -> j = j'.
Proof.
  destruct (kernel_at_units c sizes (proj1 A)) as [Et Es]; destruct (taps_shifts c sizes A) as [N _].
  rewrite Et, (map_ext _ _ Es) in N; apply map_injective, N.
Qed.

(** The vectors of a head, with their power of two. *)
Lemma head_entry h j i k : In h (kept m) -> In j (kernel_taps c (units c)) ->
  (i < groups_n c * in_g c)%nat -> (k < groups_n c * out_g c)%nat -> (i / in_g c = k / out_g c)%nat ->
  number_of (common_scale c m) (coefs (vectors_of c m (2 ^ (head_scale m - common_scale c m)) h)
     (index (channels_in c) (Z.of_nat T) (Z.of_nat (k mod out_g c)) (Z.of_nat i) (number ks j))) =
  if position_eq_dec (f h) (shift_of c (units c) j) then value_output L h i k else 0.
Proof.
  intros Ih Ij Hi Hk Eg; destruct (head_looks h Ih) as (j0 & a & T0 & L0 & I0 & S0).
  destruct comparable_facts as (E & W & _ & Hd & _ & _ & F); destruct (F h Ih) as (Sv & So & _).
  destruct same_fields as (Fg & Fi & Fo & Fd); destruct (channels_g c W) as (Cg & Ci & Co).
  assert (Hu : (k / out_g c < groups_n c)%nat) by (apply Nat.div_lt_upper_bound; lia).
  assert (Hm : (i mod in_g c < in_g c)%nat) by (apply Nat.mod_upper_bound; lia).
  assert (Ei : i = (k / out_g c * in_g c + i mod in_g c)%nat) by (rewrite <- Eg, Nat.mul_comm; apply Nat.div_mod; lia).
  unfold vectors_of; rewrite T0; rewrite Ei at 1; unfold channels_in.
  rewrite coefs_head; try assumption; try (apply number_taps; assumption);
    try (apply (shaped_nth _ _ _ _ 0%nat Sv); lia); try (apply (shaped_nth _ _ _ _ 0%nat So); lia);
    try (intros u' Hu'; apply (shaped_nth _ _ _ _ u' Sv Hu')).
  assert (N : number ks j0 = number ks j <-> f h = shift_of c (units c) j).
  { rewrite <- S0; split; [intros Ej; f_equal; apply (number_injective ks); try assumption;
      apply (in_kernel_taps c W (units c)); try assumption; apply map_length|].
    intros Es; f_equal; apply shifts_injective; assumption. }
  rewrite value_output_with, value_output_blocks; rewrite ?Fg, ?Fi, ?Fo; try assumption.
  rewrite (proj2 (Nat.eqb_eq _ _) Eg).
  destruct (position_eq_dec (f h) (shift_of c (units c) j)) as [Es|Ns].
  - rewrite (proj2 (Z.eqb_eq _ _)) by tauto; rewrite factor_value by (unfold common_scale; lia); reflexivity.
  - rewrite (proj2 (Z.eqb_neq _ _)) by tauto; apply number_of_0.
Qed.

(** The matrix of a tap, from the integers of the kernel. *)
Lemma tap_entry j i k : In j (kernel_taps c (units c)) ->
  (i < groups_n c * in_g c)%nat -> (k < groups_n c * out_g c)%nat ->
  tap_matrix c j i k = if Nat.eqb (i / in_g c) (k / out_g c) then number_of (common_scale c m)
    (- coefs (kernel_vectors (channels_in c) (Z.of_nat T) (transposed c) (Z.of_nat (in_g c))
       (- 2 ^ (c_weight_scale c - common_scale c m)) (c_weight c))
      (index (channels_in c) (Z.of_nat T) (Z.of_nat (k mod out_g c)) (Z.of_nat i) (number ks j))) else 0.
Proof.
  intros Ij Hi Hk; destruct comparable_facts as (E & W & S & _).
  destruct (channels_g c W) as (Cg & Ci & Co); assert (R := number_taps j Ij).
  assert (Hm : (i mod in_g c < in_g c)%nat) by (apply Nat.mod_upper_bound; lia).
  assert (Hu : (k / out_g c < groups_n c)%nat) by (apply Nat.div_lt_upper_bound; lia).
  assert (Hn : (k mod out_g c < out_g c)%nat) by (apply Nat.mod_upper_bound; lia).
  replace (tap_matrix c j i k) with (if Nat.eqb (i / in_g c) (k / out_g c) then
    number_of (c_weight_scale c) (nth (Z.to_nat (number ks j))
      (nth (if transposed c then k mod out_g c else i mod in_g c)%nat
        (nth (if transposed c then i mod in_g c else k mod out_g c)%nat (nth (k / out_g c) (c_weight c) []) []) []) 0%Z)
    else 0).
  - destruct (Nat.eqb_spec (i / in_g c) (k / out_g c)) as [Eg|]; [|reflexivity].
    assert (Ei : i = (k / out_g c * in_g c + i mod in_g c)%nat) by (rewrite <- Eg, Nat.mul_comm; apply Nat.div_mod;
      lia).
    replace (index (channels_in c) (Z.of_nat T) (Z.of_nat (k mod out_g c)) (Z.of_nat i) (number ks j)) with
      (index (channels_in c) (Z.of_nat T) (Z.of_nat (k mod out_g c)) (Z.of_nat (k / out_g c * in_g c + i mod in_g c))
        (Z.of_nat (Z.to_nat (number ks j)))) by (rewrite <- Ei, Z2Nat.id by lia; reflexivity).
    unfold channels_in.
    rewrite (coefs_kernel (groups_n c) (in_g c) T (transposed c) _ (c_weight c) (out_g c)); try assumption; [|lia].
    rewrite <- (factor_value (c_weight_scale c) (common_scale c m)) by (unfold common_scale; lia); f_equal; ring.
  - unfold tap_matrix; destruct (transposed c) eqn:Tr; unfold transposed_block_diagonal, block_diagonal;
      destruct (Nat.eqb (i / in_g c) (k / out_g c)); try reflexivity; unfold weight_of, entry; rewrite Tr;
        [|reflexivity].
    assert (D1 : ((k / out_g c * in_g c + i mod in_g c) / in_g c = k / out_g c)%nat).
    { rewrite Nat.add_comm, Nat.div_add, (Nat.div_small (i mod in_g c)) by lia; reflexivity. }
    assert (D2 : ((k / out_g c * in_g c + i mod in_g c) mod in_g c = i mod in_g c)%nat).
    { rewrite Nat.add_comm, Nat.mod_add, (Nat.mod_small (i mod in_g c)) by lia; reflexivity. }
    rewrite D1, D2; reflexivity.
Qed.

(** At input channel i and output channel k, [difference] holds the heads' tap minus the kernel's. *)
Theorem taps_difference_read j i k : In j (kernel_taps c (units c)) ->
  (i < groups_n c * in_g c)%nat -> (k < groups_n c * out_g c)%nat ->
  tap L f (shift_of c (units c) j) i k - tap_matrix c j i k =
  if Nat.eqb (i / in_g c) (k / out_g c) then number_of (common_scale c m) (coef (difference c m)
    (index (channels_in c) (Z.of_nat T) (Z.of_nat (k mod out_g c)) (Z.of_nat i) (number ks j))) else 0.
Proof.
  intros Ij Hi Hk; rewrite tap_entry by assumption; unfold tap; cbn [heads with_heads].
  destruct (Nat.eqb_spec (i / in_g c) (k / out_g c)) as [Eg|Ng].
  - unfold difference; cbv zeta; rewrite coef_merge_all, coefs_app, coefs_flat_map, number_of_plus.
    set (ix := index _ _ _ _ _); set (kv := kernel_vectors _ _ _ _ _ _).
    replace (number_of (common_scale c m) (- coefs kv ix)) with (- number_of (common_scale c m) (coefs kv ix)) by
      (unfold number_of, value; simpl; rewrite opp_IZR; ring).
    replace (number_of (common_scale c m) (zsum _ _)) with
      (sum (kept m) (fun h => if position_eq_dec (f h) (shift_of c (units c) j) then value_output L h i k else 0));
        [ring|].
    unfold number_of, value; cbn [mantissa exponent]; rewrite IZR_zsum, <- sum_scal_r; apply sum_ext; intros h Ih.
    symmetry; apply (head_entry h j i k Ih Ij Hi Hk Eg).
  - rewrite Rminus_0_r; apply sum_zero; intros h Ih; destruct (position_eq_dec _ _); [|reflexivity].
    destruct comparable_facts as (E & W & _ & Hd & _ & _ & F); destruct (F h Ih) as (Sv & _).
    destruct same_fields as (Fg & Fi & Fo & Fd).
    rewrite value_output_with, value_output_blocks; rewrite ?Fg, ?Fi, ?Fo; try assumption.
    rewrite (proj2 (Nat.eqb_neq _ _) Ng); reflexivity.
Qed.

(** The convolution as heads would read it, the kernel on the shifts. *)
Definition kernel_at (τ : position) : matrix :=
  match find (fun j => if same_position (shift_of c (units c) j) τ then true else false) (kernel_taps c (units c)) with
  | Some j => tap_matrix c j
  | None => zero_matrix
  end.
Definition kernel_shifts : list position := map (shift_of c (units c)) (kernel_taps c (units c)).

Lemma kernel_at_shift j : In j (kernel_taps c (units c)) -> kernel_at (shift_of c (units c) j) = tap_matrix c j.
Proof.
  intros Ij; unfold kernel_at; destruct (find _ _) as [j'|] eqn:Fj.
  - apply find_some in Fj; destruct Fj as [Ij' S]; destruct (same_position _ _) as [Es|]; [|discriminate].
    rewrite (shifts_injective j' j Ij' Ij Es); reflexivity.
  - apply (find_none _ _ Fj) in Ij; destruct (same_position _ _); [discriminate|congruence].
Qed.

Lemma computes_conv_shifts X o k : (k < groups_n c * out_g c)%nat -> In o (outputs c sizes) ->
  computes_conv c sizes X o k =
  conv (groups_n c * in_g c) kernel_shifts kernel_at (bias_of c) (reads c sizes X) (query_of c sizes o) k.
Proof.
  intros Hk Io; destruct comparable_facts as (_ & W & _); destruct (channels_g c W) as (_ & Ci & _).
  rewrite conv_on_tokens by assumption; unfold conv, kernel_shifts; rewrite sum_map; f_equal.
  destruct (kernel_at_units c sizes (proj1 A)) as [Et Es]; rewrite Et; apply sum_ext; intros j Ij.
  rewrite Es, kernel_at_shift by exact Ij; reflexivity.
Qed.

(** ** Prerequisites of the theorems on layers *)

Lemma kernel_shifts_positions : positions (dims c) kernel_shifts.
Proof.
  destruct comparable_facts as (_ & W & _); destruct (kernel_at_units c sizes (proj1 A)) as [Et Es].
  assert (P := taps_shifts c sizes A); rewrite (axis_count_dims c W sizes (proj1 A)), Et in P.
  unfold kernel_shifts; rewrite <- (map_ext _ _ Es); exact P.
Qed.

Lemma heads_on_shifts h : In h (heads L) -> In (f h) kernel_shifts.
Proof. intros I; destruct (head_looks h I) as (j & a & _ & _ & Ij & <-); apply in_map, Ij. Qed.

Lemma targets_on_tokens o : In o (outputs c sizes) -> targets_on (tokens c sizes) (query_of c sizes o) kernel_shifts.
Proof.
  intros Io τ Iτ; apply in_map_iff in Iτ; destruct Iτ as (j & <- & Ij).
  destruct (kernel_at_units c sizes (proj1 A)) as [Et Es]; rewrite <- Es; apply taps_targets; try assumption.
  rewrite Et; exact Ij.
Qed.

Lemma tokens_dims : positions (dims c) (tokens c sizes).
Proof.
  destruct comparable_facts as (_ & W & _); rewrite <- (axis_count_dims c W sizes (proj1 A)); apply positions_tokens.
Qed.

Lemma query_dims o : In o (outputs c sizes) -> length (query_of c sizes o) = dims c.
Proof.
  intros Io; destruct comparable_facts as (_ & W & _); rewrite <- (axis_count_dims c W sizes (proj1 A)).
  apply length_query_of, Io.
Qed.

(** Every head is free of content, and its score falls off quadratically from its code. *)
Lemma kept_sharp h : In h (heads L) -> content_free L h /\ 0 < alpha_of m h /\
  let w := row_times (D_k L) (v (parameters L h)) (W_key_pos (parameters L h)) in
  let d := code_dims (a_encoding m) (dims c) in
  tilted d (alpha_of m h) (code (f h)) w /\
  (on_lattice m h = true -> forall i, (i < S d)%nat -> w i = v_quadratic (alpha_of m h) (code (f h)) i).
Proof.
  intros I; destruct (head_looks h I) as (j & a & _ & La & _); destruct same_fields as (_ & _ & _ & Fd).
  destruct (head_sharp m h a _ La) as (Cf & Ha & _ & Ev); rewrite Fd in Ev; repeat (split; [assumption|]); exact Ev.
Qed.

Lemma shift_dims h : In h (heads L) -> length (f h) = dims c.
Proof.
  intros I; destruct kernel_shifts_positions as [_ P]; rewrite Forall_forall in P; apply P, heads_on_shifts, I.
Qed.

Lemma kept_falls h X o k : In h (heads L) -> In o (outputs c sizes) -> In k (tokens c sizes) ->
  score L h X (query_of c sizes o) k - score L h X (query_of c sizes o) (add (query_of c sizes o) (f h)) <=
  - alpha_of m h * IZR (norm2 (code (sub k (add (query_of c sizes o) (f h))))).
Proof.
  intros I Io Ik; destruct (kept_sharp h I) as (Cf & _ & Ev & _); set (q := query_of c sizes o) in *.
  assert (Lq : length q = dims c) by apply (query_dims o Io); assert (Lf := shift_dims h I).
  assert (Lt : length (add q (f h)) = dims c) by (rewrite length_add; congruence).
  assert (Lk : length k = dims c) by (destruct tokens_dims as [_ F]; rewrite Forall_forall in F; apply F, Ik).
  set (e := a_encoding m) in *; set (d := code_dims e (dims c)) in *.
  (* the layer of the codes, with the quadratic encoding *)
  set (L' := {| D_in := D_in L; D_k := D_k L; D_p := D_p L; D_h := D_h L; D_out := D_out L; heads := heads L;
    parameters := parameters L; r := r_quadratic; b_out := b_out L |}).
  assert (S : forall t, length t = dims c -> score L h X q t = score L' h X (coded e q) (coded e t)).
  { intros t T; rewrite (read_back L h), (read_back L' h), <- coded_sub by (exact Cf || congruence); reflexivity. }
  rewrite !S, coded_sub by congruence.
  assert (Ca : coded e (add q (f h)) = add (coded e q) (coded e (f h))) by (apply coded_add; congruence).
  rewrite Ca; apply (head_falls L' h d); try (apply length_coded; assumption); try assumption; [|reflexivity].
  cbn [D_p L' with_heads layer_of]; unfold d; do 2 f_equal; apply same_fields.
Qed.

(** Distinct tokens have distinct codes, on inputs that the layer takes. *)
Lemma kept_distinct k t : fits m sizes = true -> In k (tokens c sizes) -> In t (tokens c sizes) -> k <> t ->
  (1 <= norm2 (code (sub k t)))%Z.
Proof.
  intros Fit Ik It N; destruct comparable_facts as (E & _); apply (tokens_distinct m sizes); rewrite ?E; try assumption.
  revert ok; unfold comparable; rewrite !andb_true_iff; tauto.
Qed.

(** Every other token scores lower, by α or more. *)
Lemma kept_gap h X o k : fits m sizes = true -> In h (heads L) -> In o (outputs c sizes) -> In k (tokens c sizes) ->
  k <> add (query_of c sizes o) (f h) ->
  alpha_of m h <=
  score L h X (query_of c sizes o) (add (query_of c sizes o) (f h)) - score L h X (query_of c sizes o) k.
Proof.
  intros Fit Ih Io Ik N; assert (S := kept_falls h X o k Ih Io Ik); destruct (kept_sharp h Ih) as (_ & Ha & _).
  assert (P : (1 <= norm2 (code (sub k (add (query_of c sizes o) (f h)))))%Z).
  { apply kept_distinct; try assumption; apply (targets_on_tokens o Io), heads_on_shifts, Ih. }
  apply IZR_le in P; nra.
Qed.

Lemma kept_best h X o k : fits m sizes = true -> In o (outputs c sizes) -> In h (heads L) -> In k (tokens c sizes) ->
  k <> add (query_of c sizes o) (f h) ->
  score L h X (query_of c sizes o) k < score L h X (query_of c sizes o) (add (query_of c sizes o) (f h)).
Proof.
  intros Fit Io Ih Ik N; assert (S := kept_gap h X o k Fit Ih Io Ik N); destruct (kept_sharp h Ih) as (_ & Ha & _); lra.
Qed.

Lemma attend_L α G X q k : attend (sharpen α L) G X q k = attend (sharpen α (layer_of m)) G X q k.
Proof.
  apply (attend_kept (sharpen α (layer_of m)) (fun h => negb (idle h))); intros h _ K i; apply negb_false_iff in K.
  exact (idle_carries m h i k K).
Qed.

Lemma attend_L1 G X q k : attend L G X q k = attend (layer_of m) G X q k.
Proof.
  apply (attend_kept (layer_of m) (fun h => negb (idle h))); intros h _ K i; apply negb_false_iff in K.
  exact (idle_carries m h i k K).
Qed.

Lemma bias_difference k : (k < groups_n c * out_g c)%nat ->
  value (nth k (bias_differences c m) (z_of 0)) = Rabs (b_out L k - bias_of c k).
Proof.
  intros Hk; destruct comparable_facts as (_ & _ & _ & _ & Lb & La & _); unfold bias_differences.
  set (g := fun bb : Z * Z => z_abs (z_sub (Dyadic (fst bb) (s_b (scale_of m))) (Dyadic (snd bb) (c_bias_scale c)))).
  assert (Lk : (k < length (map g (List.combine (raw_b_out m) (c_bias c))))%nat).
  { rewrite map_length, combine_length; lia. }
  rewrite (nth_indep _ (z_of 0) (g (0, 0)%Z) Lk), map_nth, combine_nth by lia; unfold g; cbn [fst snd].
  rewrite value_abs, value_sub; reflexivity.
Qed.

End Sound.

(** What [check_same] computes: both layers have the same biases, and the same matrix at every shift. *)
Lemma same_tensors c m sizes : check_same c m = true -> accepts c sizes ->
  let L := with_heads (layer_of m) (kept m) in
  (forall k, (k < groups_n c * out_g c)%nat -> b_out L k = bias_of c k) /\
  forall τ i k, In τ (kernel_shifts c) -> (i < groups_n c * in_g c)%nat -> (k < groups_n c * out_g c)%nat ->
    tap L (shift_read m) τ i k = kernel_at c τ i k.
Proof.
  intros Ck A L; unfold check_same in Ck; rewrite !andb_true_iff, !forallb_forall in Ck; destruct Ck as [[ok D] Bd].
  destruct (comparable_facts c m ok) as (_ & _ & _ & _ & Lb & La & _); split.
  - intros k Hk; apply Rminus_diag_uniq; assert (Bk := bias_difference c m ok k Hk).
    assert (Ib : In (nth k (bias_differences c m) (z_of 0)) (bias_differences c m)).
    { apply nth_In; unfold bias_differences; rewrite map_length, combine_length; lia. }
    apply Bd, value_is_zero in Ib; rewrite Ib in Bk; fold L in Bk.
    destruct (Req_dec (b_out L k - bias_of c k) 0) as [|N]; [assumption|apply Rabs_no_R0 in N; congruence].
  - intros τ i k Iτ Hi Hk; apply in_map_iff in Iτ; destruct Iτ as (j & <- & Ij).
    rewrite (kernel_at_shift c sizes A) by exact Ij; apply Rminus_diag_uniq; unfold L.
    rewrite (taps_difference_read c m ok sizes A) by assumption.
    destruct (Nat.eqb _ _); [|reflexivity]; rewrite coef_absent_values; [apply number_of_0|].
    intros l x I; apply Z.eqb_eq, (D (l, x) I).
Qed.

(** If [check_same] accepts, the layer's limit is the convolution: for inputs of every size that torch and the layer
    take, every image X, every output o and channel k.  The layer reads the tokens of its own geometry. *)
Theorem check_same_sound c m : check_same c m = true ->
  forall sizes X o k, accepts c sizes -> fits m sizes = true -> In o (outputs c sizes) ->
  (k < groups_n c * out_g c)%nat ->
  is_lim (fun α => attend (sharpen α (layer_of m)) (tokens m sizes) (reads m sizes X) (query_of m sizes o) k) p_infty
    (computes_conv c sizes X o k).
Proof.
  intros Ck sizes X o k A Fit Io Hk; destruct (same_tensors c m sizes Ck A) as [Z0 Ts].
  assert (ok : comparable c m = true) by (unfold check_same in Ck; rewrite !andb_true_iff in Ck; tauto).
  destruct (comparable_facts c m ok) as (E & _); rewrite E.
  rewrite (computes_conv_shifts c m ok sizes A X o k Hk Io).
  apply is_lim_ext with (fun α => attend (sharpen α (with_heads (layer_of m) (kept m))) (tokens c sizes)
    (reads c sizes X) (query_of c sizes o) k); [intros α; apply attend_L|].
  set (L := with_heads (layer_of m) (kept m)); destruct (same_fields c m ok) as (Fg & Fi & Fo & Fd).
  assert (Ein : D_in L = (groups_n c * in_g c)%nat) by (cbn [L D_in with_heads layer_of]; rewrite Fg, Fi; reflexivity).
  rewrite <- Ein; apply (same_iff L (shift_read m) (dims c) (kernel_shifts c) (kernel_at c) (bias_of c)).
  - apply (kernel_shifts_positions c m ok sizes A).
  - apply (tokens_dims c m ok sizes A).
  - apply (query_dims c m ok sizes A o Io).
  - apply (targets_on_tokens c sizes A o Io).
  - apply (heads_on_shifts c m ok).
  - intros h Ih; apply (kept_sharp c m ok h Ih).
  - intros h X' k'; apply (kept_best c m ok sizes A h X' o k' Fit), Io.
  - split; [apply Z0, Hk|]; intros τ i Iτ Hi; rewrite Ein in Hi; apply Ts; assumption.
Qed.
