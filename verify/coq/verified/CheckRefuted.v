(** The checker in the mode `refuted`: an input on which the two layers differ, in the limit α → ∞.

    It receives the sizes of an input, an output, a channel, and the nonzero pixels, as integers times one power of
    two.  Statement:
      check_refuted_sound  if [check_refuted] accepts, torch and the layer take these sizes, the output is one, and
                           there the layer with its v multiplied by α → ∞ tends to another number than the convolution's *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Bool Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Lemma2 Layers Limits Geometry Transposed.
From Attention Require Import RoundingTaps RoundingDyadic CheckSparse CheckFields CheckTaps CheckHeads CheckSame CheckSums.
Import ListNotations.
Open Scope R_scope.

(** * What is computed *)

(** A pixel of the input: its channel, its place, an integer. *)
Record pixel : Set := Pixel { p_channel : nat; p_place : position; p_value : Z }.

Definition number_at (l : list pixel) (p : position) (i : nat) : Z :=
  zsum l (fun x => if Nat.eqb (p_channel x) i then if same_position (p_place x) p then p_value x else 0%Z else 0%Z).
(** The image; pixels given twice add up. *)
Definition image_of (e : Z) (l : list pixel) : image := fun p i => number_of e (number_at l p i).

Definition legal_axis (m : padding_mode) (a : axis) : bool :=
  Z.leb 1 (kernel a) && Z.leb 1 (stride a) && Z.leb 1 (dilation a) && Z.leb 0 (before a) && Z.leb 0 (after a) &&
  Z.leb 1 (size a) &&
  match m with
  | reflect => Z.leb (before a) (size a - 1) && Z.leb (after a) (size a - 1)
  | circular => Z.leb (before a) (size a) && Z.leb (after a) (size a)
  | _ => true
  end.
Definition legal_taxis (a : taxis) : bool :=
  Z.leb 1 (kernel a) && Z.leb 1 (stride a) && Z.leb 1 (dilation a) && Z.leb 1 (size a).
Definition takes (g : geometry) (sizes : list Z) : bool :=
  Nat.eqb (length sizes) (dims g) &&
  if transposed g then forallb legal_taxis (taxes g sizes) else forallb (legal_axis (mode_of g)) (axes g sizes).

(** The pixel that a token holds. *)
Definition source (g : geometry) (sizes : list Z) (t : position) : option position :=
  if transposed g then stuffed_at (taxes g sizes) t else continued (mode_of g) (axes g sizes) t.

Section Computed.
Variables (c : convolution) (m : attention_layer) (sizes : list Z) (o : position) (j : nat) (e : Z) (l : list pixel).

Notation u := (j / out_g c)%nat.
Notation channel i := (u * in_g c + i)%nat.

(** The layer's taps minus the kernel's, applied to the image. *)
Definition taps_gap : Z :=
  let d := difference c m in
  zsum (kernel_taps c (units c)) (fun t =>
    match source c sizes (add (query_of c sizes o) (shift_of c (units c) t)) with
    | Some p => zsum (seq 0 (in_g c)) (fun i =>
        let x := number_at l p (channel i) in
        if Z.eqb x 0 then 0 else x * coef d (index (channels_in c) (Z.of_nat (positions_of_kernel c))
          (Z.of_nat (j mod out_g c)) (Z.of_nat (channel i)) (number (kernel_size c) t)))%Z
    | None => 0%Z
    end).

(** The layer's limit minus the convolution. *)
Definition gap_of_outputs : dyadic :=
  z_add (z_sub (Dyadic (nth j (raw_b_out m) 0%Z) (s_b (scale_of m))) (Dyadic (nth j (c_bias c) 0%Z) (c_bias_scale c)))
    (Dyadic taps_gap (e + common_scale c m)).

Definition check_refuted : bool :=
  comparable c m && takes c sizes && fits m sizes &&
  existsb (fun p => if same_position p o then true else false) (outputs c sizes) && Nat.ltb j (groups_n c * out_g c) && negb (z_is_zero gap_of_outputs).

(** The meaning of an accepted check. *)
Definition differ : Prop :=
  accepts c sizes /\ fits m sizes = true /\ In o (outputs c sizes) /\ (j < groups_n c * out_g c)%nat /\ exists y : R,
  is_lim (fun α => attend (sharpen α (layer_of m)) (tokens m sizes) (reads m sizes (image_of e l)) (query_of m sizes o) j)
    p_infty y /\ y <> computes_conv c sizes (image_of e l) o j.

(** * Soundness *)

Lemma takes_accepts g : takes g sizes = true -> accepts g sizes.
Proof.
  unfold takes, accepts; rewrite andb_true_iff, Nat.eqb_eq; intros [E F]; split; [exact E|].
  destruct (transposed g); apply Forall_forall; intros a I; rewrite forallb_forall in F; specialize (F a I).
  - unfold legal_taxis in F; rewrite !andb_true_iff, !Z.leb_le in F; unfold transposed_legal; tauto.
  - unfold legal_axis in F; rewrite !andb_true_iff, !Z.leb_le in F; unfold legal.
    destruct F as [(((((F1 & F2) & F3) & F4) & F5) & F6) F7]; repeat (split; [assumption|]).
    destruct (mode_of g); try exact I; rewrite ?andb_true_iff, ?Z.leb_le in F7; tauto.
Qed.

Lemma reads_source g t i : reads g sizes (image_of e l) t i =
  match source g sizes t with Some p => number_of e (number_at l p i) | None => 0 end.
Proof. unfold reads, source, stuffed, padded; destruct (transposed g); reflexivity. Qed.

Notation L := (with_heads (layer_of m) (kept m)).
Notation X := (reads c sizes (image_of e l)).
Notation q := (query_of c sizes o).

Lemma gap_value : comparable c m = true -> accepts c sizes -> In o (outputs c sizes) -> (j < groups_n c * out_g c)%nat ->
  conv (D_in L) (kernel_shifts c) (tap L (shift_read m)) (b_out L) X q j - computes_conv c sizes (image_of e l) o j
  = value gap_of_outputs.
Proof.
  intros ok A Io Hj; destruct (same_fields c m ok) as (Fg & Fi & _), (comparable_facts c m ok) as (_ & W & _).
  destruct (channels_g c W) as (_ & _ & Ho); rewrite (computes_conv_shifts c m ok sizes A _ o j Hj Io).
  assert (Hu : (u < groups_n c)%nat) by (apply Nat.div_lt_upper_bound; lia).
  cbn [D_in with_heads layer_of]; rewrite Fg, Fi; unfold gap_of_outputs; rewrite value_add, value_sub; unfold conv.
  match goal with |- ?p + ?x - (?r + ?y) = _ => replace (p + x - (r + y)) with (p - r + (x - y)) by ring end.
  f_equal; rewrite <- sum_minus; unfold kernel_shifts; rewrite sum_map.
  change (value (Dyadic taps_gap ?s)) with (number_of s taps_gap); rewrite number_scaled; unfold taps_gap.
  rewrite IZR_zsum, <- sum_scal; apply sum_ext; intros t It; unfold row_times.
  unfold sum_below; rewrite <- sum_minus; fold (sum_below (groups_n c * in_g c)).
  set (p := add q (shift_of c (units c) t)).
  transitivity (sum_below (groups_n c * in_g c) (fun i => X p i * (if Nat.eqb (i / in_g c) u then
    number_of (common_scale c m) (coef (difference c m) (index (channels_in c) (Z.of_nat (positions_of_kernel c))
      (Z.of_nat (j mod out_g c)) (Z.of_nat i) (number (kernel_size c) t))) else 0))).
  - apply sum_ext; intros i Ii; apply in_seq in Ii; rewrite (kernel_at_shift c sizes A) by exact It.
    rewrite <- (taps_difference_read c m ok sizes A t i j) by (assumption || lia); ring.
  - rewrite (sum_block (groups_n c) (in_g c) u) by (exact Hu || (intros i N; rewrite (proj2 (Nat.eqb_neq _ _) N); ring)).
    fold p; destruct (source c sizes p) as [s|] eqn:Es.
    + rewrite IZR_zsum, <- sum_scal; apply sum_ext; intros i Ii; apply in_seq in Ii.
      rewrite (proj1 (block_div (in_g c) u i ltac:(lia))), Nat.eqb_refl, reads_source, Es, number_of_times, number_scaled.
      cbv zeta; destruct (Z.eqb_spec (number_at l s (channel i)) 0) as [->|]; [rewrite Z.mul_0_l|]; reflexivity.
    + rewrite Rmult_0_r; apply sum_below_zero; intros i _; rewrite reads_source, Es; ring.
Qed.

Theorem check_refuted_sound : check_refuted = true -> differ.
Proof.
  unfold check_refuted; rewrite !andb_true_iff, existsb_exists, Nat.ltb_lt, negb_true_iff.
  intros [[[[[ok Tk] Fit] (p & Io & Ep)] Hj] Z]; destruct (same_position p o) as [->|]; [|discriminate].
  assert (A := takes_accepts c Tk); destruct (comparable_facts c m ok) as (E & _); unfold differ; rewrite E.
  repeat (split; [assumption|]).
  exists (conv (D_in L) (kernel_shifts c) (tap L (shift_read m)) (b_out L) X q j); split.
  - apply is_lim_ext with (fun α => attend (sharpen α L) (tokens c sizes) X q j); [intros α; apply attend_L|].
    apply (sharpen_limit L).
    + apply (kernel_shifts_positions c m ok sizes A).
    + apply (tokens_dims c m ok sizes A).
    + apply (targets_on_tokens c sizes A o Io).
    + apply (heads_on_shifts c m ok).
    + intros h Ih; apply (kept_sharp c m ok h Ih).
    + intros h k; apply (kept_best c m ok sizes A h X o k Fit Io).
  - intros D; apply value_nonzero in Z; rewrite <- gap_value in Z by assumption; lra.
Qed.

End Computed.
