(** The geometry of a convolution as torch documents it, as a statement about tokens.

    Source: torch.nn.Conv1d, Conv2d, Conv3d and torch.nn.functional.pad (fields kernel_size, stride,
    padding, padding_mode, dilation, groups).  Transposed convolutions are in Transposed.v.

    Statements, for any number of axes and any legal fields:
      continued_on_input   padding reads the input: every padded token holds an input pixel or zero
      conv_targets         on the padded grid every query finds all its targets: q + τ_j is a token
      conv_shifts          distinct taps have distinct shifts
      geometry_conv        the convolution by torch's formula, with padding, stride, dilation and groups,
                           is b + Σ_j X̃_{q+τ_j} W_j, q the query of the output, τ_j = dil·j − a
      geometry_theorem1    so the construction on the padded grid tends to it
      geometry_closed      with error at most 2·B·(2 d e^{−α})·Σ|W| at finite α
      geometry_factorises  its attention is the product of the axes' attentions
      same_size            padding='same' with stride 1 keeps the size of the input
      paper_shifts         an odd undilated kernel has the paper's Δ_K, −⌊K/2⌋ … ⌊K/2⌋ on every axis *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Factorisation Leakage Layers Theorem1.
Import ListNotations.
Open Scope R_scope.

(** * The fields *)

(** One axis: torch's kernel_size, stride, dilation; padding before and after the input (an integer
    padding pads both alike; 'valid' is 0; for 'same' see [same_pads]); the size of the input. *)
Record axis := {
  kernel : Z;
  stride : Z;
  dilation : Z;
  before : Z;
  after : Z;
  size : Z
}.

(** torch's padding_mode. *)
Inductive padding_mode := zeros | reflect | replicate | circular.

(** dil (K − 1), from the first tap to the last, and the anchor a = dil ⌊(K − 1)/2⌋. *)
Definition span (a : axis) : Z := (dilation a * (kernel a - 1))%Z.
Definition anchor (a : axis) : Z := (dilation a * ((kernel a - 1) / 2))%Z.

(** padding='same': the span, halved; the odd pixel comes after. *)
Definition same_pads (kernel dilation : Z) : Z * Z :=
  let s := (dilation * (kernel - 1))%Z in ((s / 2)%Z, (s - s / 2)%Z).

(** torch's padding field: an integer for each axis, or 'same', or 'valid'. *)
Inductive padding := integers (p : list Z) | same | valid.

Fixpoint pads (p : padding) (kernel_size dilation : list Z) : list (Z * Z) :=
  match p, kernel_size, dilation with
  | integers (x :: p'), _ :: ks, _ :: ds => (x, x) :: pads (integers p') ks ds
  | same, k :: ks, d :: ds => same_pads k d :: pads same ks ds
  | valid, _ :: ks, _ :: ds => (0%Z, 0%Z) :: pads valid ks ds
  | _, _, _ => []
  end.

Fixpoint zip_axes (kernel_size stride dilation : list Z) (pads : list (Z * Z)) (sizes : list Z) : list axis :=
  match kernel_size, stride, dilation, pads, sizes with
  | k :: ks, s :: ss, d :: ds, (p, p') :: ps, n :: ns =>
      {| kernel := k; stride := s; dilation := d; before := p; after := p'; size := n |} :: zip_axes ks ss ds ps ns
  | _, _, _, _, _ => []
  end.

(** The axes of torch's raw fields, for an input of the given sizes. *)
Definition axes_of (kernel_size stride dilation : list Z) (p : padding) (sizes : list Z) : list axis :=
  zip_axes kernel_size stride dilation (pads p kernel_size dilation) sizes.

(** The size of the output: ⌊(n + pads − dil (K − 1) − 1) / s⌋ + 1. *)
Definition out_size (a : axis) : Z := ((size a + before a + after a - span a - 1) / stride a + 1)%Z.

(** What torch accepts: reflect pads by less than the input, circular by no more than it. *)
Definition legal (m : padding_mode) (a : axis) : Prop :=
  (1 <= kernel a /\ 1 <= stride a /\ 1 <= dilation a /\ 0 <= before a /\ 0 <= after a /\ 1 <= size a /\
   match m with
   | reflect => before a <= size a - 1 /\ after a <= size a - 1
   | circular => before a <= size a /\ after a <= size a
   | _ => True
   end)%Z.

(** 0, 1, …, n − 1 *)
Definition range (n : Z) : list Z := map Z.of_nat (seq 0 (Z.to_nat n)).

Definition input_grid (axes : list axis) : list position := box (map (fun a => range (size a)) axes).
Definition taps (axes : list axis) : list position := box (map (fun a => range (kernel a)) axes).
Definition output_grid (axes : list axis) : list position := box (map (fun a => range (out_size a)) axes).
(** The tokens: the positions of the padded input. *)
Definition token_grid (axes : list axis) : list position :=
  box (map (fun a => range (size a + before a + after a)) axes).

(** * The convolution, from torch's documentation *)

(** torch.nn.functional.pad on one axis: which input pixel stands at z (0 is the first pixel of the
    input, pads have z < 0 or z ≥ n); None is a zero. *)
Definition continued_axis (m : padding_mode) (n z : Z) : option Z :=
  match m with
  | zeros => if ((0 <=? z)%Z && (z <? n)%Z)%bool then Some z else None
  | reflect => Some (if z <? 0 then - z else if n <=? z then 2 * (n - 1) - z else z)%Z
  | replicate => Some (Z.max 0 (Z.min z (n - 1)))
  | circular => Some (z mod n)%Z
  end.

(** Four pixels, padded by two on either side. *)
Example zeros_example : map (continued_axis zeros 4) [-2; -1; 0; 1; 2; 3; 4; 5]%Z =
  [None; None; Some 0; Some 1; Some 2; Some 3; None; None]%Z.
Proof. reflexivity. Qed.
Example reflect_example : map (continued_axis reflect 4) [-2; -1; 0; 1; 2; 3; 4; 5]%Z = map Some [2; 1; 0; 1; 2; 3; 2; 1]%Z.
Proof. reflexivity. Qed.
Example replicate_example : map (continued_axis replicate 4) [-2; -1; 0; 1; 2; 3; 4; 5]%Z = map Some [0; 0; 0; 1; 2; 3; 3; 3]%Z.
Proof. reflexivity. Qed.
Example circular_example : map (continued_axis circular 4) [-2; -1; 0; 1; 2; 3; 4; 5]%Z = map Some [2; 3; 0; 1; 2; 3; 0; 1]%Z.
Proof. reflexivity. Qed.

(** The input pixel at the position t of the padded input. *)
Fixpoint continued (m : padding_mode) (axes : list axis) (t : position) : option position :=
  match axes, t with
  | a :: axes', z :: t' =>
      match continued_axis m (size a) (z - before a), continued m axes' t' with
      | Some x, Some p => Some (x :: p)
      | _, _ => None
      end
  | _, _ => Some []
  end.

(** X̃, the padded input. *)
Definition padded (m : padding_mode) (axes : list axis) (X : image) : image :=
  fun t i => match continued m axes t with Some p => X p i | None => 0 end.

(** s·o + dil·j: where tap j of output o reads the padded input. *)
Fixpoint read (axes : list axis) (o j : position) : position :=
  match axes, o, j with
  | a :: axes', x :: o', y :: j' => (stride a * x + dilation a * y)%Z :: read axes' o' j'
  | _, _, _ => []
  end.

(** Groups: output channel c belongs to group ⌊c / out_g⌋, which reads input channels
    ⌊c / out_g⌋·in_g + i for i < in_g, in_g and out_g the channels of a group on either side.
    out[c] at o = bias[c] + Σ_j Σ_{i < in_g} X̃[s·o + dil·j, channel i of c's group] weight[c, i, j]. *)
Definition torch_conv (m : padding_mode) (axes : list axis) (in_g out_g : nat)
    (weight : nat -> nat -> position -> R) (bias : vector) (X : image) (o : position) (c : nat) : R :=
  bias c + sum (taps axes) (fun j => sum_below in_g (fun i =>
    padded m axes X (read axes o j) (c / out_g * in_g + i)%nat * weight c i j)).

(** * The same as tokens *)

(** The query of output o is the token s·o + a; the head of tap j looks at τ_j = dil·j − a. *)
Fixpoint query (axes : list axis) (o : position) : position :=
  match axes, o with a :: axes', x :: o' => (stride a * x + anchor a)%Z :: query axes' o' | _, _ => [] end.
Fixpoint shift (axes : list axis) (j : position) : position :=
  match axes, j with a :: axes', y :: j' => (dilation a * y - anchor a)%Z :: shift axes' j' | _, _ => [] end.

(** The D_in × D_out matrix of tap j: block diagonal, a block for each group. *)
Definition block_diagonal (in_g out_g : nat) (weight : nat -> nat -> position -> R) (j : position) : matrix :=
  fun i c => if Nat.eqb (i / in_g) (c / out_g) then weight c (i mod in_g)%nat j else 0.

(** * Proofs: axes and grids *)

Lemma in_range n x : In x (range n) <-> (0 <= x < n)%Z.
Proof.
  unfold range; rewrite in_map_iff; split.
  - intros (i & <- & I); apply in_seq in I; lia.
  - intros B; exists (Z.to_nat x); split; [lia|apply in_seq; lia].
Qed.

Lemma NoDup_range n : NoDup (range n).
Proof. apply FinFun.Injective_map_NoDup; [intros x y; lia|apply seq_NoDup]. Qed.

Lemma in_box_ranges (F : axis -> Z) axes p :
  In p (box (map (fun a => range (F a)) axes)) <-> Forall2 (fun x a => (0 <= x < F a)%Z) p axes.
Proof.
  rewrite in_box; revert p; induction axes as [|a axes IH]; intros p; simpl; split; intros A;
    inversion A; subst; constructor; try (apply in_range; assumption); apply IH; assumption.
Qed.

Lemma positions_ranges (F : axis -> Z) axes : positions (length axes) (box (map (fun a => range (F a)) axes)).
Proof.
  rewrite <- (map_length (fun a => range (F a)) axes); apply positions_box, Forall_forall; intros G I.
  apply in_map_iff in I; destruct I as (a & <- & _); apply NoDup_range.
Qed.

Lemma length_query axes o : length o = length axes -> length (query axes o) = length axes.
Proof. revert o; induction axes as [|a axes IH]; intros [|x o]; simpl; try lia; intros E; rewrite IH; lia. Qed.

Lemma length_shift axes j : length j = length axes -> length (shift axes j) = length axes.
Proof. revert j; induction axes as [|a axes IH]; intros [|y j]; simpl; try lia; intros E; rewrite IH; lia. Qed.

(** q + τ_j = s·o + dil·j *)
Lemma query_shift axes o j : add (query axes o) (shift axes j) = read axes o j.
Proof.
  revert o j; induction axes as [|a axes IH]; intros [|x o] [|y j]; simpl; try reflexivity; rewrite IH; f_equal; lia.
Qed.

(** Every padded token holds a zero (mode zeros alone) or a pixel of the input. *)
Theorem continued_on_input m axes t : Forall (legal m) axes -> In t (token_grid axes) ->
  match continued m axes t with Some p => In p (input_grid axes) | None => m = zeros end.
Proof.
  unfold token_grid, input_grid; rewrite in_box_ranges.
  intros LA A; revert LA; induction A as [|z a t axes Hz _ IH]; intros LA; [simpl; left; reflexivity|].
  inversion LA as [|? ? La LA']; subst; specialize (IH LA'); cbn [continued].
  assert (B : match continued_axis m (size a) (z - before a) with Some x => (0 <= x < size a)%Z | None => m = zeros end).
  { destruct La as (_ & _ & _ & Hb & Ha & Hn & Hm); destruct m; unfold continued_axis.
    - destruct (Z.leb_spec 0 (z - before a)), (Z.ltb_spec (z - before a) (size a)); simpl; lia || reflexivity.
    - destruct (Z.ltb_spec (z - before a) 0); [lia|]; destruct (Z.leb_spec (size a) (z - before a)); lia.
    - lia.
    - apply Z.mod_pos_bound; lia. }
  destruct (continued_axis m (size a) (z - before a)) as [x|]; [|exact B].
  destruct (continued m axes t) as [p|]; [|exact IH].
  apply in_box_ranges; constructor; [exact B|apply in_box_ranges in IH; exact IH].
Qed.

(** A bound of the input bounds the padded input. *)
Lemma padded_bounded m axes d_in B X : Forall (legal m) axes -> 0 <= B ->
  bounded d_in B (input_grid axes) X -> bounded d_in B (token_grid axes) (padded m axes X).
Proof.
  intros LA HB HX t i It Hi; unfold padded; pose proof (continued_on_input m axes t LA It) as C.
  destruct (continued m axes t) as [p|]; [apply HX; assumption|rewrite Rabs_R0; exact HB].
Qed.

(** The output's queries and all their targets are tokens of the padded grid. *)
Theorem conv_targets m axes o j : Forall (legal m) axes -> In o (output_grid axes) -> In j (taps axes) ->
  In (add (query axes o) (shift axes j)) (token_grid axes).
Proof.
  unfold output_grid, taps, token_grid; rewrite query_shift, !in_box_ranges; intros LA A.
  revert LA j; induction A as [|x a o axes Hx _ IH]; intros LA j Ij; inversion Ij as [|y ? j' ? Hy Ij']; subst;
    simpl; [constructor|]; inversion LA as [|? ? La LA']; subst; constructor; [|apply IH; assumption].
  destruct La as (Hk & Hs & Hd & Hb & Ha & Hn & _); unfold out_size, span in Hx.
  set (l := (size a + before a + after a - dilation a * (kernel a - 1) - 1)%Z) in *.
  assert (stride a * x <= l)%Z by (apply Z.le_trans with (stride a * (l / stride a))%Z;
    [apply Z.mul_le_mono_nonneg_l|apply Z.mul_div_le]; lia).
  assert (0 <= dilation a * y <= dilation a * (kernel a - 1))%Z by
    (split; [apply Z.mul_nonneg_nonneg|apply Z.mul_le_mono_nonneg_l]; lia).
  assert (0 <= stride a * x)%Z by (apply Z.mul_nonneg_nonneg; lia); unfold l in *; lia.
Qed.

Lemma conv_query m axes o : Forall (legal m) axes -> In o (output_grid axes) -> In (query axes o) (token_grid axes).
Proof.
  unfold output_grid, token_grid; rewrite !in_box_ranges; intros LA A; revert LA.
  induction A as [|x a o axes Hx _ IH]; intros LA; simpl; constructor; inversion LA as [|? ? La LA']; subst; [|apply IH, LA'].
  destruct La as (Hk & Hs & Hd & Hb & Ha & Hn & _); unfold out_size, span in Hx; unfold anchor.
  set (l := (size a + before a + after a - dilation a * (kernel a - 1) - 1)%Z) in *.
  assert (stride a * x <= l)%Z by (apply Z.le_trans with (stride a * (l / stride a))%Z;
    [apply Z.mul_le_mono_nonneg_l|apply Z.mul_div_le]; lia).
  assert (0 <= (kernel a - 1) / 2 <= kernel a - 1)%Z.
  { split; [apply Z.div_pos; lia|apply Z.div_le_upper_bound; lia]. }
  assert (0 <= dilation a * ((kernel a - 1) / 2) <= dilation a * (kernel a - 1))%Z by
    (split; [apply Z.mul_nonneg_nonneg|apply Z.mul_le_mono_nonneg_l]; lia).
  assert (0 <= stride a * x)%Z by (apply Z.mul_nonneg_nonneg; lia); unfold l in *; lia.
Qed.

(** Distinct taps have distinct shifts. *)
Theorem conv_shifts m axes : Forall (legal m) axes -> positions (length axes) (map (shift axes) (taps axes)).
Proof.
  intros LA; destruct (positions_ranges kernel axes) as [N F]; fold (taps axes) in N, F; split.
  - assert (I : forall j j', length j = length axes -> length j' = length axes ->
      shift axes j = shift axes j' -> j = j').
    { clear N F; induction LA as [|a axes La _ IH]; intros [|y j] [|y' j']; simpl; try lia; intros E E' S; [reflexivity|].
      injection S as S1 S2; f_equal; [|apply IH; [lia|lia|exact S2]].
      destruct La as (_ & _ & Hd & _); apply Z.mul_reg_l with (dilation a); lia. }
    clear LA; induction N as [|j l Hj N IH]; simpl; [constructor|]; inversion F; subst; constructor; [|auto].
    rewrite in_map_iff; intros (j' & S & Ij'); apply I in S; [subst; contradiction| |assumption].
    rewrite Forall_forall in *; auto.
  - rewrite Forall_forall in *; intros τ I; apply in_map_iff in I; destruct I as (j & <- & Ij).
    apply length_shift, F, Ij.
Qed.

(** * Proofs: groups *)

(** The block diagonal matrix of a tap does what torch's groups do. *)
Lemma row_times_block_diagonal g in_g out_g weight j x c : (0 < in_g)%nat -> (c < g * out_g)%nat ->
  row_times (g * in_g) x (block_diagonal in_g out_g weight j) c =
  sum_below in_g (fun i => x (c / out_g * in_g + i)%nat * weight c i j).
Proof.
  intros Hin Hc; unfold row_times; rewrite sum_below_blocks.
  assert (Hu : (c / out_g < g)%nat) by (apply Nat.div_lt_upper_bound; lia).
  assert (D : forall u i, (i < in_g)%nat -> ((u * in_g + i) / in_g = u /\ (u * in_g + i) mod in_g = i)%nat).
  { intros u i Hi; split.
    - rewrite Nat.add_comm, Nat.div_add, Nat.div_small; lia.
    - rewrite Nat.add_comm, Nat.mod_add, Nat.mod_small; lia. }
  rewrite (sum_below_single g (c / out_g)); [|exact Hu|].
  - apply sum_below_ext; intros i Hi; unfold block_diagonal; destruct (D (c / out_g)%nat i Hi) as [-> ->].
    rewrite Nat.eqb_refl; reflexivity.
  - intros u _ Du; apply sum_below_zero; intros i Hi; unfold block_diagonal; destruct (D u i Hi) as [-> _].
    rewrite (proj2 (Nat.eqb_neq _ _) Du); ring.
Qed.

(** * The theorems *)

(** torch's convolution, with padding, stride, dilation and g groups, is what heads read that look at
    τ_j = dil·j − a from the query s·o + a of the padded grid: b + Σ_j X̃_{q+τ_j} W_j. *)
Theorem geometry_conv m axes g in_g out_g weight bias X o c : (0 < in_g)%nat -> (c < g * out_g)%nat ->
  torch_conv m axes in_g out_g weight bias X o c =
  bias c + sum (taps axes) (fun j =>
    row_times (g * in_g) (padded m axes X (add (query axes o) (shift axes j))) (block_diagonal in_g out_g weight j) c).
Proof.
  intros Hin Hc; unfold torch_conv; f_equal; apply sum_ext; intros j _.
  rewrite row_times_block_diagonal, query_shift by assumption; reflexivity.
Qed.

(** The construction for torch's convolution: a head for each tap, D_p = d + 1. *)
Definition conv_layer (axes : list axis) (g in_g out_g : nat) weight bias (α : R) : layer position :=
  construction (length axes) (g * in_g) (g * out_g) α (taps axes) (shift axes) (block_diagonal in_g out_g weight) bias.

Section Layer.
Variables (m : padding_mode) (axes : list axis) (g in_g out_g : nat).
Variables (weight : nat -> nat -> position -> R) (bias : vector) (X : image) (o : position) (c : nat).
Hypotheses (fields : Forall (legal m) axes) (channels : (0 < in_g)%nat) (channel : (c < g * out_g)%nat).
Hypothesis output : In o (output_grid axes).

Let length_taps j : In j (taps axes) -> length (shift axes j) = length axes.
Proof.
  intros Ij; apply length_shift; destruct (positions_ranges kernel axes) as [_ F]; rewrite Forall_forall in F.
  apply F, Ij.
Qed.

Let length_output : length (query axes o) = length axes.
Proof.
  apply length_query; destruct (positions_ranges out_size axes) as [_ F]; rewrite Forall_forall in F.
  apply F, output.
Qed.

(** α → ∞: the layer on the padded grid computes torch's convolution. *)
Theorem geometry_theorem1 :
  is_lim (fun α => attend (conv_layer axes g in_g out_g weight bias α) (token_grid axes) (padded m axes X) (query axes o) c)
    p_infty (torch_conv m axes in_g out_g weight bias X o c).
Proof.
  rewrite (geometry_conv m axes g) by assumption.
  apply (heads_limit (length axes)); try assumption; [apply positions_ranges|].
  intros j Ij; apply (conv_targets m); assumption.
Qed.

(** Finite α: the error is at most 2·B·(2 d e^{−α})·Σ|W| for |X| ≤ B, whatever the size of the input. *)
Theorem geometry_closed α B : 0 < α -> 0 <= B -> bounded (g * in_g) B (input_grid axes) X ->
  Rabs (attend (conv_layer axes g in_g out_g weight bias α) (token_grid axes) (padded m axes X) (query axes o) c -
        torch_conv m axes in_g out_g weight bias X o c) <=
  2 * B * (2 * INR (length axes) * exp (- α)) *
  sum (taps axes) (fun j => column_sum (g * in_g) (block_diagonal in_g out_g weight j) c).
Proof.
  intros Hα HB HX; rewrite (geometry_conv m axes g) by assumption.
  apply (heads_closed (length axes)); try assumption; [apply positions_ranges| |apply padded_bounded; assumption].
  intros j Ij; apply (conv_targets m); assumption.
Qed.

(** Its attention is a product over the axes of the padded grid, at every α: what the fast execution computes. *)
Theorem geometry_factorises α j k : In j (taps axes) -> In k (token_grid axes) ->
  attention (conv_layer axes g in_g out_g weight bias α) (token_grid axes) j (padded m axes X) (query axes o) k =
  axis_softmaxes (map (fun a => range (size a + before a + after a)) axes)
    (axis_scores α (map IZR (add (query axes o) (shift axes j)))) k.
Proof.
  intros Ij Ik; apply factorisation_attention; [apply map_length|exact length_output|apply length_taps, Ij|exact Ik].
Qed.

End Layer.

(** padding='same' with stride 1 keeps the size of the input. *)
Theorem same_size k d n : (let '(p, p') := same_pads k d in
  out_size {| kernel := k; stride := 1; dilation := d; before := p; after := p'; size := n |} = n)%Z.
Proof.
  unfold same_pads, out_size, span; simpl; rewrite Z.div_1_r; ring.
Qed.

(** An odd undilated kernel of size K = 2r + 1 has on every axis the paper's shifts −r, …, r. *)
Theorem paper_shifts a half y : kernel a = (2 * half + 1)%Z -> dilation a = 1%Z ->
  (In y (map (fun z => dilation a * z - anchor a) (range (kernel a))) <-> - half <= y <= half)%Z.
Proof.
  intros K D; unfold anchor; rewrite K, D; replace (2 * half + 1 - 1)%Z with (half * 2)%Z by ring.
  rewrite Z.div_mul, in_map_iff by lia; split.
  - intros (z & <- & I); apply in_range in I; lia.
  - intros B; exists (y + half)%Z; split; [lia|apply in_range; lia].
Qed.
