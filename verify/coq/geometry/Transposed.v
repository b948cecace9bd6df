(** Transposed convolution: zero-stuffing the input, then attention.

    Source: torch.nn.ConvTranspose1d, ConvTranspose2d, ConvTranspose3d (fields kernel_size, stride, padding,
    output_padding, dilation, groups): every input pixel i adds its value, times W_j, to the output
    at s·i + dil·j − padding.

    Statements, for any number of axes and any legal fields:
      transposed_targets     on the stuffed grid every query finds all its targets
      stuffed_on_input       every token holds an input pixel or zero
      transposed_shifts      distinct taps have distinct shifts
      geometry_transposed    torch's formula is b + Σ_j X̃_{q+τ_j} W_j on the zero-stuffed grid,
                             q = o + a the query of output o and τ_j = dil·(K − 1 − j) − a
      transposed_theorem1    so the construction on that grid tends to it
      transposed_closed      with error at most 2·B·(2 d e^{−α})·Σ|W| at finite α *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Factorisation Leakage Layers Theorem1 Geometry.
Import ListNotations.
Open Scope R_scope.

(** * The fields *)

(** The fields of Geometry.v, with torch's output_padding; before and after are torch's padding, which
    here crops the output; an integer padding has before = after. *)
Record taxis := {
  base :> axis;
  output_padding : Z
}.

(** The size of the output: (n − 1) s − before − after + dil (K − 1) + output_padding + 1. *)
Definition transposed_size (a : taxis) : Z :=
  (stride a * (size a - 1) - before a - after a + span a + output_padding a + 1)%Z.

Definition transposed_legal (a : taxis) : Prop :=
  (1 <= kernel a /\ 1 <= stride a /\ 1 <= dilation a /\ 1 <= size a)%Z.

Definition transposed_input (axes : list taxis) : list position := box (map (fun a => range (size (base a))) axes).
Definition transposed_taps (axes : list taxis) : list position := box (map (fun a => range (kernel (base a))) axes).
Definition transposed_output (axes : list taxis) : list position := box (map (fun a => range (transposed_size a)) axes).
(** The tokens: one for each position that some output reads. *)
Definition stuffed_grid (axes : list taxis) : list position :=
  box (map (fun a => range (transposed_size a + span (base a))) axes).

(** * The transposed convolution, from torch's documentation *)

(** s·i + dil·j − padding: the output to which input pixel i adds through tap j. *)
Fixpoint written (axes : list taxis) (i j : position) : position :=
  match axes, i, j with
  | a :: axes', x :: i', y :: j' => (stride a * x + dilation a * y - before a)%Z :: written axes' i' j'
  | _, _, _ => []
  end.

(** out[c] at o = bias[c] + the sum, over all input pixels p and taps j with s·p + dil·j − padding = o, of
    Σ_{i < in_g} X_p[channel i of c's group] weight[that channel, c mod out_g, j].  torch stores the weight as
    (in_channels, out_channels / groups, kernel). *)
Definition torch_conv_transposed (axes : list taxis) (in_g out_g : nat) (weight : nat -> nat -> position -> R)
    (bias : vector) (X : image) (o : position) (c : nat) : R :=
  bias c + sum (transposed_input axes) (fun p => sum (transposed_taps axes) (fun j =>
    if position_eq_dec (written axes p j) o
    then sum_below in_g (fun i =>
      X p (c / out_g * in_g + i)%nat * weight (c / out_g * in_g + i)%nat (c mod out_g)%nat j)
    else 0)).

(** * The same as tokens *)

(** Zero-stuffing on one axis: the token at z holds input pixel (z − span + padding) / s, or a zero where
    that is not the number of a pixel. *)
Definition stuffed_axis (a : taxis) (z : Z) : option Z :=
  let y := (z - (span a - before a))%Z in
  if ((y mod stride a =? 0)%Z && ((0 <=? y / stride a)%Z && (y / stride a <? size a)%Z))%bool
  then Some (y / stride a)%Z else None.

Fixpoint stuffed_at (axes : list taxis) (t : position) : option position :=
  match axes, t with
  | a :: axes', z :: t' =>
      match stuffed_axis a z, stuffed_at axes' t' with Some x, Some p => Some (x :: p) | _, _ => None end
  | _, _ => Some []
  end.

(** X̃, the zero-stuffed input. *)
Definition stuffed (axes : list taxis) (X : image) : image :=
  fun t i => match stuffed_at axes t with Some p => X p i | None => 0 end.

(** The query of output o is the token o + a; the head of tap j looks at τ_j = dil·(K − 1 − j) − a, the
    shift of the flipped kernel. *)
Fixpoint transposed_query (axes : list taxis) (o : position) : position :=
  match axes, o with a :: axes', x :: o' => (x + anchor a)%Z :: transposed_query axes' o' | _, _ => [] end.
Fixpoint transposed_shift (axes : list taxis) (j : position) : position :=
  match axes, j with
  | a :: axes', y :: j' => (dilation a * (kernel a - 1 - y) - anchor a)%Z :: transposed_shift axes' j'
  | _, _ => []
  end.

(** The D_in × D_out matrix of tap j: block diagonal, a block for each group. *)
Definition transposed_block_diagonal (in_g out_g : nat) (weight : nat -> nat -> position -> R) : position -> matrix :=
  block_diagonal in_g out_g (fun c i j => weight (c / out_g * in_g + i)%nat (c mod out_g)%nat j).

(** * Proofs *)

Lemma in_box_transposed (F : taxis -> Z) axes p :
  In p (box (map (fun a => range (F a)) axes)) <-> Forall2 (fun x a => (0 <= x < F a)%Z) p axes.
Proof.
  rewrite in_box; revert p; induction axes as [|a axes IH]; intros p; simpl; split; intros A;
    inversion A; subst; constructor; try (apply in_range; assumption); apply IH; assumption.
Qed.

Lemma positions_transposed (F : taxis -> Z) axes : positions (length axes) (box (map (fun a => range (F a)) axes)).
Proof.
  rewrite <- (map_length (fun a => range (F a)) axes); apply positions_box, Forall_forall; intros G I.
  apply in_map_iff in I; destruct I as (a & <- & _); apply NoDup_range.
Qed.

Lemma length_transposed_query axes o : length o = length axes -> length (transposed_query axes o) = length axes.
Proof. revert o; induction axes as [|a axes IH]; intros [|x o]; simpl; try lia; intros E; rewrite IH; lia. Qed.

Lemma length_transposed_shift axes j : length j = length axes -> length (transposed_shift axes j) = length axes.
Proof. revert j; induction axes as [|a axes IH]; intros [|y j]; simpl; try lia; intros E; rewrite IH; lia. Qed.

(** Every output's query finds all its targets on the stuffed grid. *)
Theorem transposed_targets axes o j : Forall transposed_legal axes -> In o (transposed_output axes) ->
  In j (transposed_taps axes) -> In (add (transposed_query axes o) (transposed_shift axes j)) (stuffed_grid axes).
Proof.
  unfold transposed_output, transposed_taps, stuffed_grid; rewrite !in_box_transposed; intros LA A.
  revert LA j; induction A as [|x a o axes Hx _ IH]; intros LA j Ij; inversion Ij as [|y ? j' ? Hy Ij']; subst;
    simpl; [constructor|]; inversion LA as [|? ? La LA']; subst; constructor; [|apply IH; assumption].
  destruct La as (Hk & Hs & Hd & Hn); unfold span.
  assert (0 <= dilation a * (kernel a - 1 - y) <= dilation a * (kernel a - 1))%Z by
    (split; [apply Z.mul_nonneg_nonneg|apply Z.mul_le_mono_nonneg_l]; lia).
  lia.
Qed.

(** Distinct taps have distinct shifts. *)
Theorem transposed_shifts axes : Forall transposed_legal axes ->
  positions (length axes) (map (transposed_shift axes) (transposed_taps axes)).
Proof.
  intros LA; destruct (positions_transposed (fun a => kernel a) axes) as [N F]; fold (transposed_taps axes) in N, F; split.
  - assert (I : forall j j', length j = length axes -> length j' = length axes ->
      transposed_shift axes j = transposed_shift axes j' -> j = j').
    { clear N F; induction LA as [|a axes La _ IH]; intros [|y j] [|y' j']; simpl; try lia; intros E E' S; [reflexivity|].
      injection S as S1 S2; f_equal; [|apply IH; [lia|lia|exact S2]].
      destruct La as (_ & _ & Hd & _).
      assert (kernel a - 1 - y = kernel a - 1 - y')%Z by (apply Z.mul_reg_l with (dilation a); lia); lia. }
    clear LA; induction N as [|j l Hj N IH]; simpl; [constructor|]; inversion F; subst; constructor; [|auto].
    rewrite in_map_iff; intros (j' & S & Ij'); apply I in S; [subst; contradiction| |assumption].
    rewrite Forall_forall in *; auto.
  - rewrite Forall_forall in *; intros τ I; apply in_map_iff in I; destruct I as (j & <- & Ij).
    apply length_transposed_shift, F, Ij.
Qed.

(** Every token holds a pixel of the input or a zero. *)
Theorem stuffed_on_input axes t p : length t = length axes -> stuffed_at axes t = Some p -> In p (transposed_input axes).
Proof.
  unfold transposed_input; rewrite in_box_transposed; revert t p.
  induction axes as [|a axes IH]; intros [|z t] p; simpl length; try lia; intros E; cbn [stuffed_at].
  - intros S; injection S as <-; constructor.
  - destruct (stuffed_axis a z) as [x|] eqn:Sx; [|discriminate]; destruct (stuffed_at axes t) as [p'|] eqn:Sp; [|discriminate].
    intros S; injection S as <-; constructor; [|apply (IH t); [lia|exact Sp]].
    unfold stuffed_axis in Sx; set (y := ((z - (span a - before a)) / stride a)%Z) in *.
    destruct (_ && ((0 <=? y)%Z && _))%bool eqn:B; [|discriminate]; injection Sx as <-.
    apply andb_prop in B; destruct B as [_ B]; apply andb_prop in B; lia.
Qed.

(** The target of tap j holds pixel x exactly if x is a pixel and adds to output o through j. *)
Lemma stuffed_written_axis a o y x : transposed_legal a ->
  stuffed_axis a (o + anchor a + (dilation a * (kernel a - 1 - y) - anchor a)) = Some x <->
  (0 <= x < size a)%Z /\ (stride a * x + dilation a * y - before a = o)%Z.
Proof.
  intros (Hk & Hs & Hd & Hn); unfold stuffed_axis, span.
  replace (o + anchor a + (dilation a * (kernel a - 1 - y) - anchor a) - (dilation a * (kernel a - 1) - before a))%Z
    with (o + before a - dilation a * y)%Z by ring.
  set (z := (o + before a - dilation a * y)%Z).
  pose proof (Z.div_mod z (stride a)) as DM; split.
  - destruct (Z.eqb_spec (z mod stride a) 0) as [E|]; [|discriminate]; simpl.
    destruct (Z.leb_spec 0 (z / stride a)); [|discriminate]; simpl.
    destruct (Z.ltb_spec (z / stride a) (size a)); [|discriminate].
    intros S; injection S as <-; split; [lia|]; unfold z in *; lia.
  - intros [Hx E]; assert (Hz : z = (x * stride a)%Z) by (unfold z; lia).
    rewrite Hz, Z.mod_mul, Z.div_mul by lia; simpl.
    destruct (Z.leb_spec 0 x); [|lia]; destruct (Z.ltb_spec x (size a)); [reflexivity|lia].
Qed.

Lemma stuffed_written axes o j p : Forall transposed_legal axes -> length o = length axes -> length j = length axes ->
  stuffed_at axes (add (transposed_query axes o) (transposed_shift axes j)) = Some p <->
  In p (transposed_input axes) /\ written axes p j = o.
Proof.
  unfold transposed_input; rewrite in_box_transposed; intros LA; revert o j p.
  induction LA as [|a axes La LA IH]; intros [|x o] [|y j] p; simpl length; try lia; intros Eo Ej.
  - simpl; split; [intros S; injection S as <-; repeat constructor|intros [F _]; inversion F; reflexivity].
  - cbn [transposed_query transposed_shift add stuffed_at].
    pose proof (fun v => stuffed_written_axis a x y v La) as Sa; split.
    + destruct (stuffed_axis a _) as [v|]; [|discriminate].
      destruct (stuffed_at axes _) as [p'|] eqn:Sp; [|discriminate].
      intros S; injection S as <-; destruct (Sa v) as [Sv _]; destruct (Sv eq_refl) as [V1 V2].
      apply IH in Sp; try lia; destruct Sp as [P1 P2]; split; [constructor; assumption|].
      cbn [written]; rewrite V2, P2; reflexivity.
    + intros [A E]; inversion A as [|v ? p' ? V1 P1]; subst; cbn [written] in E; injection E as V2 P2.
      rewrite (proj2 (Sa v) (conj V1 V2)), (proj2 (IH o j p' ltac:(lia) ltac:(lia)) (conj P1 P2)); reflexivity.
Qed.

(** Σ_p [p adds to o through j] F(p) = F of the pixel at the target of tap j, or 0. *)
Lemma sum_written axes o j (F : position -> R) :
  Forall transposed_legal axes -> length o = length axes -> length j = length axes ->
  sum (transposed_input axes) (fun p => if position_eq_dec (written axes p j) o then F p else 0) =
  match stuffed_at axes (add (transposed_query axes o) (transposed_shift axes j)) with Some p => F p | None => 0 end.
Proof.
  intros LA Eo Ej; pose proof (fun p => stuffed_written axes o j p LA Eo Ej) as S.
  destruct (stuffed_at axes _) as [p0|].
  - destruct (proj1 (S p0) eq_refl) as [I0 E0]; rewrite (sum_single _ p0); [| |exact I0|].
    + destruct (position_eq_dec (written axes p0 j) o); [reflexivity|congruence].
    + apply positions_transposed.
    + intros p Ip D; destruct (position_eq_dec (written axes p j) o) as [E|]; [|reflexivity].
      pose proof (proj2 (S p) (conj Ip E)); congruence.
  - apply sum_zero; intros p Ip; destruct (position_eq_dec (written axes p j) o) as [E|]; [|reflexivity].
    pose proof (proj2 (S p) (conj Ip E)); discriminate.
Qed.

(** torch's transposed convolution is what heads read that look at τ_j = dil·(K − 1 − j) − a from the query
    o + a of the zero-stuffed grid: b + Σ_j X̃_{q+τ_j} W_j. *)
Theorem geometry_transposed axes g in_g out_g weight bias X o c : Forall transposed_legal axes ->
  (0 < in_g)%nat -> (c < g * out_g)%nat -> In o (transposed_output axes) ->
  torch_conv_transposed axes in_g out_g weight bias X o c =
  bias c + sum (transposed_taps axes) (fun j =>
    row_times (g * in_g) (stuffed axes X (add (transposed_query axes o) (transposed_shift axes j)))
      (transposed_block_diagonal in_g out_g weight j) c).
Proof.
  intros LA Hin Hc Io; unfold torch_conv_transposed; f_equal; rewrite sum_swap; apply sum_ext; intros j Ij.
  assert (Lo : length o = length axes).
  { destruct (positions_transposed transposed_size axes) as [_ F]; rewrite Forall_forall in F; apply F, Io. }
  assert (Lj : length j = length axes).
  { destruct (positions_transposed (fun a => kernel a) axes) as [_ F]; rewrite Forall_forall in F; apply F, Ij. }
  rewrite (sum_written axes o j (fun p => sum_below in_g (fun i =>
    X p (c / out_g * in_g + i)%nat * weight (c / out_g * in_g + i)%nat (c mod out_g)%nat j))) by assumption.
  unfold transposed_block_diagonal; rewrite row_times_block_diagonal by assumption; unfold stuffed.
  destruct (stuffed_at axes _); [reflexivity|]; symmetry; apply sum_below_zero; intros; ring.
Qed.

(** The construction for torch's transposed convolution: a head for each tap, D_p = d + 1. *)
Definition transposed_layer (axes : list taxis) (g in_g out_g : nat) weight bias (α : R) : layer position :=
  construction (length axes) (g * in_g) (g * out_g) α (transposed_taps axes) (transposed_shift axes)
    (transposed_block_diagonal in_g out_g weight) bias.

Section Layer.
Variables (axes : list taxis) (g in_g out_g : nat) (weight : nat -> nat -> position -> R) (bias : vector).
Variables (X : image) (o : position) (c : nat).
Hypotheses (fields : Forall transposed_legal axes) (channels : (0 < in_g)%nat) (channel : (c < g * out_g)%nat).
Hypothesis output : In o (transposed_output axes).

Let length_taps j : In j (transposed_taps axes) -> length (transposed_shift axes j) = length axes.
Proof.
  intros Ij; apply length_transposed_shift; destruct (positions_transposed (fun a => kernel a) axes) as [_ F].
  rewrite Forall_forall in F; apply F, Ij.
Qed.

Let length_output : length (transposed_query axes o) = length axes.
Proof.
  apply length_transposed_query; destruct (positions_transposed transposed_size axes) as [_ F].
  rewrite Forall_forall in F; apply F, output.
Qed.

(** α → ∞: the layer on the zero-stuffed grid computes torch's transposed convolution. *)
Theorem transposed_theorem1 :
  is_lim (fun α => attend (transposed_layer axes g in_g out_g weight bias α) (stuffed_grid axes) (stuffed axes X)
                     (transposed_query axes o) c)
    p_infty (torch_conv_transposed axes in_g out_g weight bias X o c).
Proof.
  rewrite (geometry_transposed axes g) by assumption.
  apply (heads_limit (length axes)); try assumption; [apply positions_transposed|].
  intros j Ij; apply transposed_targets; assumption.
Qed.

(** Finite α: the error is at most 2·B·(2 d e^{−α})·Σ|W| for |X| ≤ B, whatever the size of the input. *)
Theorem transposed_closed α B : 0 < α -> 0 <= B -> bounded (g * in_g) B (transposed_input axes) X ->
  Rabs (attend (transposed_layer axes g in_g out_g weight bias α) (stuffed_grid axes) (stuffed axes X)
          (transposed_query axes o) c -
        torch_conv_transposed axes in_g out_g weight bias X o c) <=
  2 * B * (2 * INR (length axes) * exp (- α)) *
  sum (transposed_taps axes) (fun j => column_sum (g * in_g) (transposed_block_diagonal in_g out_g weight j) c).
Proof.
  intros Hα HB HX; rewrite (geometry_transposed axes g) by assumption.
  apply (heads_closed (length axes)); try assumption; [apply positions_transposed| |].
  - intros j Ij; apply transposed_targets; assumption.
  - intros t i It Hi; unfold stuffed; destruct (stuffed_at axes t) as [p|] eqn:St; [|rewrite Rabs_R0; exact HB].
    apply HX; [|exact Hi]; apply (stuffed_on_input axes t); [|exact St].
    destruct (positions_transposed (fun a => transposed_size a + span a)%Z axes) as [_ F]; rewrite Forall_forall in F.
    apply F, It.
Qed.

End Layer.
