(** Patches as tokens, as vision transformers see an image: a convolution of pixels is a convolution of
    patches, with fewer taps and more channels; so Theorem 1 gives attention over patches.

    A patch of P_1 × … × P_d pixels is a token; its channels are the pixels' channels, the offset in the
    patch running fastest and row-major, as in torch.nn.functional.pixel_unshuffle.

    Statements, for zero and circular padding, any number of axes, strides that divide the patch, any
    dilation and groups:
      patches_conv         cutting the output of the convolution into patches is the convolution over
                           patches, with the reshuffled kernel, of the patches of the input
      patches_theorem1     so the construction over patches tends to the convolution of the pixels
      patches_fit          the taps that the convolution over patches needs, from the fields
      patches_output       and the padding with which it has every output
      patches_taps         2⌈h/P⌉ + 1 taps on an axis for an odd kernel of 2h + 1 pixels with the same size
      three_taps           so three on an axis for every odd kernel up to 2P + 1: nine heads in two dimensions *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Lra Lia.
From Attention Require Import Definitions Sums Factorisation Theorem1 Geometry.
Import ListNotations.
Open Scope R_scope.

(** * Patches of an image *)

(** How many pixels a patch has; the n-th offset in it, row-major; the pixel at the offset u of patch t. *)
Fixpoint volume (sizes : list Z) : nat :=
  match sizes with [] => 1%nat | p :: sizes' => (Z.to_nat p * volume sizes')%nat end.
Fixpoint offset (sizes : list Z) (n : nat) : position :=
  match sizes with
  | [] => []
  | _ :: sizes' => Z.of_nat (n / volume sizes') :: offset sizes' (n mod volume sizes')
  end.
Fixpoint pixel (sizes : list Z) (t u : position) : position :=
  match sizes, t, u with
  | p :: sizes', x :: t', y :: u' => (p * x + y)%Z :: pixel sizes' t' u'
  | _, _, _ => []
  end.

(** The patches of an image as tokens: channel c·volume + n is channel c of the pixel at the n-th offset. *)
Definition patches (sizes : list Z) (X : image) : image :=
  fun t c => X (pixel sizes t (offset sizes (c mod volume sizes))) (c / volume sizes)%nat.

Example patches_example : map (offset [2; 3]%Z) [0; 1; 2; 3; 4; 5]%nat =
  [[0; 0]; [0; 1]; [0; 2]; [1; 0]; [1; 1]; [1; 2]]%Z.
Proof. reflexivity. Qed.

(** * The convolution over patches *)

(** One axis: the convolution of pixels, the convolution over patches, the pixels of a patch, and which
    output patch of the latter is the first one. *)
Record patching := {
  pixels : axis;
  tokens : axis;
  patch : Z;
  first : Z
}.

(** The outputs of a patch. *)
Definition out_patch (e : patching) : Z := (patch e / stride (pixels e))%Z.

(** The stride divides the patch, the patch divides the input, and every pixel that an output of a patch
    reads lies in a patch that is a tap: floor((s·r + dil·j − p) / P) is its shift. *)
Definition fits (e : patching) : Prop :=
  (1 <= patch e /\ 1 <= stride (pixels e) /\ patch e = out_patch e * stride (pixels e) /\
   size (pixels e) = patch e * size (tokens e) /\ 1 <= size (tokens e) /\
   stride (tokens e) = 1 /\ 1 <= dilation (tokens e) /\
   forall r j, 0 <= r < out_patch e -> 0 <= j < kernel (pixels e) ->
     exists y, 0 <= y < kernel (tokens e) /\
     (stride (pixels e) * r + dilation (pixels e) * j - before (pixels e)) / patch e =
     first e + dilation (tokens e) * y - before (tokens e))%Z.

(** Output r of a patch reads with tap j the pixel that tap y over patches has at the offset u. *)
Fixpoint reads_at (es : list patching) (r j y u : position) : bool :=
  match es, r, j, y, u with
  | e :: es', r0 :: r', j0 :: j', y0 :: y', u0 :: u' =>
      ((stride (pixels e) * r0 + dilation (pixels e) * j0 - before (pixels e) =?
        patch e * (first e + dilation (tokens e) * y0 - before (tokens e)) + u0)%Z && reads_at es' r' j' y' u')%bool
  | [], [], [], [], [] => true
  | _, _, _, _, _ => false
  end.

(** The kernel over patches is the kernel, reshuffled: tap y, from pixel i of the patch read to pixel c of
    the patch written. *)
Definition patch_weight (es : list patching) (weight : nat -> nat -> position -> R) : nat -> nat -> position -> R :=
  fun c i y =>
    let vi := volume (map patch es) in
    let vo := volume (map out_patch es) in
    sum (taps (map pixels es)) (fun j =>
      if reads_at es (offset (map out_patch es) (c mod vo)) j y (offset (map patch es) (i mod vi))
      then weight (c / vo)%nat (i / vi)%nat j else 0).

(** * Proofs *)

Lemma volume_positive sizes : Forall (fun p => 1 <= p)%Z sizes -> (0 < volume sizes)%nat.
Proof. induction 1; simpl; [lia|]; apply Nat.mul_pos_pos; lia. Qed.

Lemma offset_in sizes n : Forall (fun p => 1 <= p)%Z sizes -> (n < volume sizes)%nat ->
  In (offset sizes n) (box (map range sizes)).
Proof.
  intros F; revert n; induction F as [|p sizes Hp F IH]; intros n Hn; apply in_box; simpl; constructor.
  - apply in_range; split; [lia|]; apply Z2Nat.inj_lt; [lia|lia|]; rewrite Nat2Z.id.
    apply Nat.div_lt_upper_bound; [pose proof (volume_positive sizes F); lia|simpl in Hn; lia].
  - apply in_box, IH, Nat.mod_upper_bound; pose proof (volume_positive sizes F); lia.
Qed.

(** A sum over the numbers of offsets is a sum over offsets. *)
Lemma sum_offsets sizes (F : position -> R) : Forall (fun p => 1 <= p)%Z sizes ->
  sum_below (volume sizes) (fun n => F (offset sizes n)) = sum (box (map range sizes)) F.
Proof.
  intros G; revert F; induction G as [|p sizes Hp G IH]; intros F.
  - unfold sum_below; simpl; reflexivity.
  - cbn [volume map box]; rewrite sum_below_blocks, sum_flat_map; unfold range at 1; rewrite sum_map.
    apply sum_below_ext; intros u _; rewrite sum_map, <- IH; apply sum_below_ext; intros i Hi.
    cbn [offset]; pose proof (volume_positive sizes G).
    rewrite Nat.div_add_l, Nat.div_small, Nat.add_0_r by lia; f_equal; f_equal.
    rewrite Nat.add_comm, Nat.mod_add, Nat.mod_small by lia; reflexivity.
Qed.

Definition within (F : patching -> Z) (p : position) (es : list patching) : Prop :=
  Forall2 (fun x e => 0 <= x < F e)%Z p es.

Lemma in_ranges (F : patching -> Z) es p : In p (box (map range (map F es))) <-> within F p es.
Proof.
  unfold within; rewrite map_map, in_box; revert p; induction es as [|e es IH]; intros p; simpl; split; intros A;
    inversion A; subst; constructor; try (apply in_range; assumption); apply IH; assumption.
Qed.

Lemma in_taps (f : patching -> axis) es p : In p (taps (map f es)) <-> within (fun e => kernel (f e)) p es.
Proof. unfold taps; rewrite map_map, <- in_ranges, map_map; reflexivity. Qed.

(** Every pair of an output and a tap reads at one tap over patches and one offset. *)
Lemma place es r j : Forall fits es -> within out_patch r es -> within (fun e => kernel (pixels e)) j es ->
  exists y u, within (fun e => kernel (tokens e)) y es /\ within patch u es /\
    forall y' u', within (fun e => kernel (tokens e)) y' es -> within patch u' es ->
      (reads_at es r j y' u' = true <-> y' = y /\ u' = u).
Proof.
  intros F; revert r j; induction F as [|e es Fe F IH]; intros r j R J.
  - inversion R; inversion J; subst; exists [], []; split; [constructor|split; [constructor|]].
    intros y' u' Y U; inversion Y; inversion U; simpl; tauto.
  - inversion R as [|r0 ? r' ? R0 R']; inversion J as [|j0 ? j' ? J0 J']; subst.
    destruct (IH r' j' R' J') as (y & u & Y & U & only).
    destruct Fe as (P & _ & _ & _ & _ & _ & D & covers); destruct (covers r0 j0 R0 J0) as (y0 & Y0 & E).
    set (z := (stride (pixels e) * r0 + dilation (pixels e) * j0 - before (pixels e))%Z) in *.
    pose proof (Z.mod_pos_bound z (patch e)) as B; pose proof (Z.div_mod z (patch e)) as M.
    exists (y0 :: y), (z mod patch e :: u)%Z; split; [constructor; assumption|split; [constructor; [lia|assumption]|]].
    intros y' u' Y' U'; inversion Y' as [|y1 ? y2 ? Y1 Y2]; inversion U' as [|u1 ? u2 ? U1 U2]; subst.
    simpl; fold z; rewrite Bool.andb_true_iff, Z.eqb_eq, (only y2 u2 Y2 U2); split.
    + intros (Z1 & -> & ->).
      assert (Q : (z / patch e = first e + dilation (tokens e) * y1 - before (tokens e))%Z).
      { symmetry; apply (Z.div_unique z (patch e) _ u1); [left; lia|exact Z1]. }
      assert (y1 = y0) as -> by (apply (Z.mul_reg_l _ _ (dilation (tokens e))); lia).
      split; [reflexivity|]; f_equal; rewrite E in M; lia.
    + intros (A & C); injection A as -> ->; injection C as -> ->; split; [|split; reflexivity].
      rewrite <- E; lia.
Qed.

(** What is cut into patches is padded patch by patch. *)
Lemma continued_axis_patch m n p z u : (m = zeros \/ m = circular) -> (1 <= p)%Z -> (1 <= n)%Z -> (0 <= u < p)%Z ->
  continued_axis m (p * n) (p * z + u) = option_map (fun x => p * x + u)%Z (continued_axis m n z).
Proof.
  intros [->| ->] P N U; unfold continued_axis.
  - destruct (Z.leb_spec 0 z), (Z.ltb_spec z n), (Z.leb_spec 0 (p * z + u)), (Z.ltb_spec (p * z + u) (p * n));
      simpl; try reflexivity; exfalso; nia.
  - simpl; f_equal; rewrite Z.rem_mul_r by lia.
    rewrite Z.add_comm, (Z.mul_comm p z), Z.div_add_l, (Z.div_small u p), Z.add_0_r by lia.
    f_equal; rewrite Z.add_comm, Z.mod_add, Z.mod_small; lia.
Qed.

Lemma continued_patch m es t r j y u : (m = zeros \/ m = circular) -> Forall fits es -> length t = length es ->
  within patch u es -> reads_at es r j y u = true ->
  continued m (map pixels es) (read (map pixels es) (pixel (map out_patch es) t r) j) =
  option_map (fun p => pixel (map patch es) p u)
    (continued m (map tokens es) (read (map tokens es) (add t (map first es)) y)).
Proof.
  intros M F; revert t r j y u; induction F as [|e es Fe F IH]; intros t r j y u T U A.
  - reflexivity.
  - destruct t as [|x t], r as [|r0 r], j as [|j0 j], y as [|y0 y], u as [|u0 u]; try discriminate.
    inversion U as [|? ? ? ? U0 U']; subst.
    simpl in A; apply Bool.andb_true_iff in A; destruct A as [A0 A']; apply Z.eqb_eq in A0.
    specialize (IH t r j y u ltac:(simpl in T; lia) U' A').
    destruct Fe as (P & S & O & N & N1 & S1 & _); simpl; rewrite IH, N.
    assert (K : (stride (pixels e) * (out_patch e * x + r0) + dilation (pixels e) * j0 - before (pixels e) =
      patch e * (stride (tokens e) * (x + first e) + dilation (tokens e) * y0 - before (tokens e)) + u0)%Z).
    { assert (Px : (patch e * x = out_patch e * stride (pixels e) * x)%Z) by (f_equal; exact O); rewrite S1; nia. }
    rewrite K.
    rewrite continued_axis_patch by assumption.
    destruct (continued_axis m (size (tokens e)) _) as [z|]; [|reflexivity]; simpl.
    destruct (continued m (map tokens es) _); reflexivity.
Qed.

Lemma div_mod_block a v n : (n < v)%nat -> ((a * v + n) / v = a /\ (a * v + n) mod v = n)%nat.
Proof.
  intros H; split.
  - rewrite Nat.div_add_l, Nat.div_small by lia; lia.
  - rewrite Nat.add_comm, Nat.mod_add, Nat.mod_small by lia; reflexivity.
Qed.

(** * The theorems *)

Section Patches.
Variables (m : padding_mode) (es : list patching) (g in_g out_g : nat).
Variables (weight : nat -> nat -> position -> R) (bias : vector) (X : image) (t : position).
Hypotheses (mode : m = zeros \/ m = circular) (cut : Forall fits es) (output : length t = length es).

Let Ps := map patch es.
Let Qs := map out_patch es.

Let patch_positive : Forall (fun p => 1 <= p)%Z Ps.
Proof. apply Forall_map, (Forall_impl _ (P := fits)); [|exact cut]; intros e (H & _); exact H. Qed.

Let out_patch_positive : Forall (fun p => 1 <= p)%Z Qs.
Proof.
  apply Forall_map, (Forall_impl _ (P := fits)); [|exact cut]; intros e (H & S & O & _).
  destruct (Z_lt_le_dec (out_patch e) 1); nia.
Qed.

(** The convolution, cut into patches of its output, is the convolution over patches. *)
Theorem patches_conv c :
  patches Qs (fun o => torch_conv m (map pixels es) in_g out_g weight bias X o) t c =
  torch_conv m (map tokens es) (in_g * volume Ps) (out_g * volume Qs) (patch_weight es weight)
    (fun c' => bias (c' / volume Qs)%nat) (patches Ps X) (add t (map first es)) c.
Proof.
  pose proof (volume_positive Ps patch_positive) as VP; pose proof (volume_positive Qs out_patch_positive) as VQ.
  unfold patches at 1, torch_conv; f_equal.
  set (r := offset Qs (c mod volume Qs)); set (c0 := (c / volume Qs)%nat).
  replace (c / (out_g * volume Qs))%nat with (c0 / out_g)%nat.
  2: { unfold c0; destruct (Nat.eq_dec out_g 0) as [Z0|]; [rewrite Z0; reflexivity|].
       rewrite Nat.div_div by lia; f_equal; ring. }
  set (G := (c0 / out_g * in_g)%nat).
  assert (R : within out_patch r es) by (apply in_ranges, offset_in; [exact out_patch_positive|]; apply Nat.mod_upper_bound; fold Qs; lia).
  (* the sum over taps y, channels i and offsets n, with the sum over j outside *)
  transitivity (sum (taps (map pixels es)) (fun j => sum_below in_g (fun i =>
    sum (taps (map tokens es)) (fun y => sum (box (map range Ps)) (fun u =>
      (if reads_at es r j y u then weight c0 i j else 0) *
      match continued m (map tokens es) (read (map tokens es) (add t (map first es)) y) with
      | Some p => X (pixel Ps p u) (G + i)%nat
      | None => 0
      end))))).
  - apply sum_ext; intros j Ij; apply sum_below_ext; intros i Hi; apply in_taps in Ij.
    destruct (place es r j cut R Ij) as (y & u & Y & U & only).
    rewrite (sum_single _ y); [rewrite (sum_single _ u)| | |].
    + rewrite (proj2 (only y u Y U)) by (split; reflexivity).
      unfold padded, Qs; rewrite (continued_patch m es t r j y u mode cut output U) by (apply only; auto).
      destruct (continued m (map tokens es) _); cbn [option_map]; unfold G, Ps; ring.
    + apply positions_box, Forall_forall; intros l Il; apply in_map_iff in Il; destruct Il as (n & <- & _); apply NoDup_range.
    + apply in_ranges, U.
    + intros u' Iu N; apply in_ranges in Iu; destruct (reads_at es r j y u') eqn:A; [|ring].
      apply only in A; [|assumption|assumption]; destruct A; congruence.
    + apply positions_ranges.
    + apply in_taps, Y.
    + intros y' Iy N; apply in_taps in Iy; apply sum_zero; intros u' Iu; apply in_ranges in Iu.
      destruct (reads_at es r j y' u') eqn:A; [|ring]; apply only in A; [|assumption|assumption]; destruct A; congruence.
  - transitivity (sum (taps (map tokens es)) (fun y => sum_below in_g (fun i => sum (taps (map pixels es)) (fun j =>
      sum (box (map range Ps)) (fun u =>
      (if reads_at es r j y u then weight c0 i j else 0) *
      match continued m (map tokens es) (read (map tokens es) (add t (map first es)) y) with
      | Some p => X (pixel Ps p u) (G + i)%nat
      | None => 0
      end))))).
    + unfold sum_below; rewrite sum_swap; symmetry; rewrite sum_swap; apply sum_ext; intros i _.
      rewrite sum_swap; reflexivity.
    + apply sum_ext; intros y _; rewrite sum_below_blocks; apply sum_below_ext; intros i Hi.
      rewrite sum_swap, <- sum_offsets by exact patch_positive; apply sum_below_ext; intros n Hn.
      rewrite sum_scal_r; unfold padded, patch_weight; fold Ps Qs; fold c0 r.
      destruct (div_mod_block i (volume Ps) n Hn) as [-> ->].
      rewrite Rmult_comm; f_equal.
      destruct (continued m (map tokens es) _) as [p|]; [|reflexivity]; unfold patches.
      replace (c0 / out_g * (in_g * volume Ps) + (i * volume Ps + n))%nat with ((G + i) * volume Ps + n)%nat
        by (unfold G; ring).
      destruct (div_mod_block (G + i) (volume Ps) n Hn) as [-> ->]; reflexivity.
Qed.

(** α → ∞: attention over patches computes the convolution of the pixels. *)
Theorem patches_theorem1 c : Forall (legal m) (map tokens es) -> (0 < in_g)%nat -> (c < g * (out_g * volume Qs))%nat ->
  In (add t (map first es)) (output_grid (map tokens es)) ->
  is_lim (fun α => attend
      (conv_layer (map tokens es) g (in_g * volume Ps) (out_g * volume Qs) (patch_weight es weight)
        (fun c' => bias (c' / volume Qs)%nat) α)
      (token_grid (map tokens es)) (padded m (map tokens es) (patches Ps X))
      (query (map tokens es) (add t (map first es))) c)
    p_infty (patches Qs (fun o => torch_conv m (map pixels es) in_g out_g weight bias X o) t c).
Proof.
  intros L I C O; rewrite patches_conv; apply geometry_theorem1; try assumption.
  apply Nat.mul_pos_pos; [exact I|]; apply volume_positive, patch_positive.
Qed.

End Patches.

(** * The fields of the convolution over patches *)

(** ⌈p/P⌉: how many patches before its own the first output of a patch reads. *)
Definition patches_before (e : patching) : Z := (- ((- before (pixels e)) / patch e))%Z.

(** The kernel over patches: from ⌈p/P⌉ patches before to ⌊(P − s + dil (K − 1) − p)/P⌋ after; or the kernel's own
    taps, where the patch divides dilation and padding. *)
Theorem patches_fit e :
  (1 <= patch e -> 1 <= stride (pixels e) -> patch e = out_patch e * stride (pixels e) ->
   size (pixels e) = patch e * size (tokens e) -> 1 <= size (tokens e) -> stride (tokens e) = 1 ->
   1 <= dilation (pixels e) -> before (tokens e) = first e + patches_before e ->
   (dilation (tokens e) = 1 /\
    kernel (tokens e) = patches_before e + (patch e - stride (pixels e) + span (pixels e) - before (pixels e)) / patch e + 1) \/
   (dilation (pixels e) = patch e * dilation (tokens e) /\ before (pixels e) = patch e * patches_before e /\
    kernel (tokens e) = kernel (pixels e)) ->
   fits e)%Z.
Proof.
  intros P S O N N1 S1 D B shape; unfold fits.
  assert (D1 : (1 <= dilation (tokens e))%Z) by (destruct shape as [(E & _)|(E & _)]; nia).
  repeat (split; [assumption|]); intros r j R J.
  assert (SR : (0 <= stride (pixels e) * r <= patch e - stride (pixels e))%Z) by nia.
  destruct shape as [(E & K)|(E & F & K)].
  - exists ((stride (pixels e) * r + dilation (pixels e) * j - before (pixels e)) / patch e + patches_before e)%Z.
    rewrite E, K, B; unfold patches_before, span in *; split; [split|lia].
    + assert (M : ((- before (pixels e)) / patch e <=
        (stride (pixels e) * r + dilation (pixels e) * j - before (pixels e)) / patch e)%Z) by (apply Z.div_le_mono; nia); lia.
    + assert (M : ((stride (pixels e) * r + dilation (pixels e) * j - before (pixels e)) / patch e <=
        (patch e - stride (pixels e) + dilation (pixels e) * (kernel (pixels e) - 1) - before (pixels e)) / patch e)%Z)
        by (apply Z.div_le_mono; nia); lia.
  - exists j; rewrite B, K; split; [exact J|].
    replace (stride (pixels e) * r + dilation (pixels e) * j - before (pixels e))%Z
      with ((dilation (tokens e) * j - patches_before e) * patch e + stride (pixels e) * r)%Z by (rewrite E; nia).
    rewrite Z.div_add_l, Z.div_small by lia; lia.
Qed.

(** Output Q·t + r of the pixels lies in output patch t + first, if the padding after is large enough. *)
Theorem patches_output e t r :
  (fits e -> 0 <= first e -> 0 <= t -> 0 <= r -> before (tokens e) = first e + patches_before e ->
   span (tokens e) - patches_before e + 1 +
     (before (pixels e) + after (pixels e) - span (pixels e) - 1) / patch e <= after (tokens e) ->
   out_patch e * t + r < out_size (pixels e) ->
   0 <= t + first e < out_size (tokens e))%Z.
Proof.
  intros (P & S & O & N & N1 & S1 & _) F T R B A L; split; [lia|].
  unfold out_size in *; rewrite S1, Z.div_1_r, B.
  set (l := (before (pixels e) + after (pixels e) - span (pixels e) - 1)%Z) in *.
  replace (size (pixels e) + before (pixels e) + after (pixels e) - span (pixels e) - 1)%Z
    with (patch e * size (tokens e) + l)%Z in L by (unfold l; lia).
  assert (M := Z.mul_div_le (patch e * size (tokens e) + l) (stride (pixels e)) ltac:(lia)).
  assert (Pt : (patch e * t = out_patch e * stride (pixels e) * t)%Z) by (f_equal; exact O).
  assert (H : (patch e * (t - size (tokens e)) <= l)%Z) by nia.
  assert (H' : (t - size (tokens e) <= l / patch e)%Z) by (apply Z.div_le_lower_bound; lia); lia.
Qed.

(** An odd kernel of 2h + 1 pixels that keeps the size takes 2⌈h/P⌉ + 1 taps over patches. *)
Theorem patches_taps e h : (1 <= patch e -> 0 <= h -> stride (pixels e) = 1 -> dilation (pixels e) = 1 ->
  kernel (pixels e) = 2 * h + 1 -> before (pixels e) = h ->
  patches_before e + (patch e - stride (pixels e) + span (pixels e) - before (pixels e)) / patch e + 1 =
  2 * - (- h / patch e) + 1)%Z.
Proof.
  intros P H S D K B; unfold patches_before, span; rewrite S, D, K, B.
  replace (patch e - 1 + 1 * (2 * h + 1 - 1) - h)%Z with (patch e - 1 + h)%Z by lia.
  enough (E : ((patch e - 1 + h) / patch e = - (- h / patch e))%Z) by lia.
  pose proof (Z.div_mod (- h) (patch e) ltac:(lia)); pose proof (Z.mod_pos_bound (- h) (patch e) ltac:(lia)).
  symmetry; apply (Z.div_unique _ _ _ (patch e - 1 - (- h) mod patch e)); lia.
Qed.

(** Three taps on every axis, nine heads in two dimensions, are enough for every odd kernel up to 2P + 1. *)
Theorem three_taps e h : (1 <= h <= patch e -> stride (pixels e) = 1 -> dilation (pixels e) = 1 ->
  kernel (pixels e) = 2 * h + 1 -> before (pixels e) = h ->
  patches_before e + (patch e - stride (pixels e) + span (pixels e) - before (pixels e)) / patch e + 1 = 3)%Z.
Proof.
  intros H S D K B; rewrite (patches_taps e h) by lia.
  enough (E : (- h / patch e = -1)%Z) by lia; symmetry; apply (Z.div_unique _ _ _ (patch e - h)); lia.
Qed.
