(** The checker's input: the raw fields of a convolution and of an attention layer, and their meaning.

    A tensor is a list of lists of integers in torch's order, and a power of two that multiplies them all; every
    tensor of floats has this form.  Definitions (the checker's theorems are stated in these alone):
      geometry        the fields of a torch convolution; the attention layer states its own
      convolution     weight and bias; [computes_conv] is the function that torch documents
      attention_layer the eight tensors; [layer_of] is the layer of Eq. 3 and 6, [reads] its tokens
    Statements:
      conv_on_tokens  the convolution is b + Σ_j X̃_{q+τ_j} W_j on the tokens that its own fields give, transposed or
        not *)

From Coq Require Import Reals ZArith List Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Lemma2 Factorisation Layers Geometry Transposed RoundingDyadic.
Import ListNotations.
Open Scope R_scope.

(** m·2^e *)
Definition number_of (e m : Z) : R := value (Dyadic m e).

(** * Geometry *)

Record geometry : Set := {
  in_channels : Z;
  out_channels : Z;
  kernel_size : list Z;
  stride_of : list Z;
  dilation_of : list Z;
  padding_of : padding;
  mode_of : padding_mode;
  groups : Z;
  transposed : bool;
  output_paddings : list Z
}.

(** The channels of a group, the dimension d. *)
Definition groups_n (g : geometry) : nat := Z.to_nat (groups g).
Definition in_g (g : geometry) : nat := Z.to_nat (in_channels g / groups g).
Definition out_g (g : geometry) : nat := Z.to_nat (out_channels g / groups g).
Definition dims (g : geometry) : nat := length (kernel_size g).

(** The axes for an input of the given sizes. *)
Definition axes (g : geometry) (sizes : list Z) : list axis :=
  axes_of (kernel_size g) (stride_of g) (dilation_of g) (padding_of g) sizes.
Definition taxes (g : geometry) (sizes : list Z) : list taxis :=
  map (fun ae => {| base := fst ae; output_padding := snd ae |}) (combine (axes g sizes) (output_paddings g)).

(** torch takes an input of these sizes. *)
Definition accepts (g : geometry) (sizes : list Z) : Prop :=
  length sizes = dims g /\
  if transposed g then Forall (fun a => transposed_legal a) (taxes g sizes) else Forall (legal (mode_of g)) (axes g
    sizes).

(** Input pixels, outputs, tokens; what a token holds; the query of an output. *)
Definition pixels (g : geometry) (sizes : list Z) : list position :=
  if transposed g then transposed_input (taxes g sizes) else input_grid (axes g sizes).
Definition outputs (g : geometry) (sizes : list Z) : list position :=
  if transposed g then transposed_output (taxes g sizes) else output_grid (axes g sizes).
Definition tokens (g : geometry) (sizes : list Z) : list position :=
  if transposed g then stuffed_grid (taxes g sizes) else token_grid (axes g sizes).
Definition reads (g : geometry) (sizes : list Z) (X : image) : image :=
  if transposed g then stuffed (taxes g sizes) X else padded (mode_of g) (axes g sizes) X.
Definition query_of (g : geometry) (sizes : list Z) (o : position) : position :=
  if transposed g then transposed_query (taxes g sizes) o else query (axes g sizes) o.

(** The kernel positions, and the shift of each. *)
Definition kernel_taps (g : geometry) (sizes : list Z) : list position :=
  if transposed g then transposed_taps (taxes g sizes) else taps (axes g sizes).
Definition shift_of (g : geometry) (sizes : list Z) (j : position) : position :=
  if transposed g then transposed_shift (taxes g sizes) j else shift (axes g sizes) j.

(** * The convolution *)

(** The weight is read in torch's order, (D_out, D_in/groups, *K), transposed (D_in, D_out/groups, *K), its first axis
  cut
    into the groups, the kernel positions in row-major order. *)
Record convolution : Set := {
  c_geometry :> geometry;
  c_weight_scale : Z;
  c_weight : list (list (list (list Z)));
  c_bias_scale : Z;
  c_bias : list Z
}.

(** weight[channel i of the first axis, channel j of the second, kernel position t] *)
Definition entry (w : list (list (list (list Z)))) (per_group : nat) (i j : nat) (t : Z) : Z :=
  nth (Z.to_nat t) (nth j (nth (i mod per_group) (nth (i / per_group) w []) []) []) 0%Z.

Definition weight_of (c : convolution) (i j : nat) (p : position) : R :=
  number_of (c_weight_scale c)
    (entry (c_weight c) (if transposed c then in_g c else out_g c) i j (number (kernel_size c) p)).
Definition bias_of (c : convolution) : vector := fun j => number_of (c_bias_scale c) (nth j (c_bias c) 0%Z).

(** Output o, channel j, of the convolution. *)
Definition computes_conv (c : convolution) (sizes : list Z) (X : image) (o : position) (j : nat) : R :=
  if transposed c
  then torch_conv_transposed (taxes c sizes) (in_g c) (out_g c) (weight_of c) (bias_of c) X o j
  else torch_conv (mode_of c) (axes c sizes) (in_g c) (out_g c) (weight_of c) (bias_of c) X o j.

(** * The attention layer *)

(** One head's tensors: W_qry, W_key (D_in, D_k); Ŵ_key (D_k, D_p); u, v (D_k); W_val (groups, D_in/groups, D_h);
    W_out (groups, D_h, D_out/groups): the blocks on the diagonals of both. *)
Record raw_head : Set := {
  h_qry : list (list Z);
  h_key : list (list Z);
  h_key_pos : list (list Z);
  h_u : list Z;
  h_v : list Z;
  h_val : list (list (list Z));
  h_out : list (list (list Z))
}.

(** The powers of two of the eight tensors. *)
Record scales : Set := {
  s_qry : Z; s_key : Z; s_key_pos : Z; s_u : Z; s_v : Z; s_val : Z; s_out : Z; s_b : Z
}.

(** The relative encoding: the quadratic one, or the parabola of this radix, whose layer takes inputs of up to these
    sizes. *)
Inductive encoding : Set := quadratic | parabola (radix largest : list Z).

Record attention_layer : Set := {
  a_geometry :> geometry;
  a_encoding : encoding;
  key_dim : Z;
  head_dim : Z;
  scale_of : scales;
  raw_heads : list raw_head;
  raw_b_out : list Z
}.

Definition matrix_of (e : Z) (m : list (list Z)) : matrix := fun i a => number_of e (nth a (nth i m []) 0%Z).
Definition vector_of (e : Z) (x : list Z) : vector := fun i => number_of e (nth i x 0%Z).
(** The block diagonal matrix of blocks of [rows] × [columns]. *)
Definition blocks_of (e : Z) (rows columns : nat) (m : list (list (list Z))) : matrix := fun i a =>
  if Nat.eqb (i / rows) (a / columns)
  then number_of e (nth (a mod columns) (nth (i mod rows) (nth (a / columns) m []) []) 0%Z) else 0.

(** r_δ = (‖x‖², x) of x = δ, with D_p = d + 1, or of the number x = Σ radix_i δ_i, with D_p = 2. *)
Definition coded (e : encoding) (δ : position) : position :=
  match e with quadratic => δ | parabola radix _ => [dotZ radix δ] end.
Definition code_dims (e : encoding) (d : nat) : nat := match e with quadratic => d | parabola _ _ => 1 end.

(** The layer takes an input of these sizes: of any, but for the parabola. *)
Fixpoint at_most (sizes largest : list Z) : bool :=
  match sizes, largest with
  | [], [] => true | n :: sizes', l :: largest' => Z.leb n l && at_most sizes' largest' | _, _ => false
  end.
Definition fits (m : attention_layer) (sizes : list Z) : bool :=
  match a_encoding m with quadratic => true | parabola _ largest => at_most sizes largest end.

(** The layer of Eq. 3 and 6. *)
Definition layer_of (m : attention_layer) : layer raw_head := {|
  D_in := groups_n m * in_g m;
  D_k := Z.to_nat (key_dim m);
  D_p := S (code_dims (a_encoding m) (dims m));
  D_h := groups_n m * Z.to_nat (head_dim m);
  D_out := groups_n m * out_g m;
  heads := raw_heads m;
  parameters := fun h => let s := scale_of m in {|
    W_qry := matrix_of (s_qry s) (h_qry h);
    W_key := matrix_of (s_key s) (h_key h);
    W_key_pos := matrix_of (s_key_pos s) (h_key_pos h);
    u := vector_of (s_u s) (h_u h);
    v := vector_of (s_v s) (h_v h);
    W_val := blocks_of (s_val s) (in_g m) (Z.to_nat (head_dim m)) (h_val h);
    W_out := blocks_of (s_out s) (Z.to_nat (head_dim m)) (out_g m) (h_out h) |};
  r := fun δ => r_quadratic (coded (a_encoding m) δ);
  b_out := vector_of (s_b (scale_of m)) (raw_b_out m) |}.

(** * The convolution on its tokens *)

(** The D_in × D_out matrix of a tap. *)
Definition tap_matrix (c : convolution) (j : position) : matrix :=
  if transposed c then transposed_block_diagonal (in_g c) (out_g c) (weight_of c) j
  else block_diagonal (in_g c) (out_g c) (weight_of c) j.

Theorem conv_on_tokens (c : convolution) sizes X o j : accepts c sizes -> (0 < in_g c)%nat -> (j < groups_n c * out_g
  c)%nat ->
  In o (outputs c sizes) ->
  computes_conv c sizes X o j = bias_of c j + sum (kernel_taps c sizes) (fun t =>
    row_times (groups_n c * in_g c) (reads c sizes X (add (query_of c sizes o) (shift_of c sizes t))) (tap_matrix c t)
      j).
Proof.
  unfold accepts, computes_conv, outputs, kernel_taps, reads, query_of, shift_of, tap_matrix.
  destruct (transposed c); intros [_ A] Hi Hj Io.
  - apply geometry_transposed; assumption.
  - apply geometry_conv; assumption.
Qed.

(** * The same of both kinds of convolution *)

Lemma length_taxes g sizes : length (output_paddings g) = dims g -> length (axes g sizes) = dims g ->
  length (taxes g sizes) = dims g /\ map base (taxes g sizes) = axes g sizes.
Proof.
  unfold taxes; generalize (output_paddings g), (axes g sizes), (dims g); intros e a n; revert e n.
  induction a as [|x a IH]; intros [|y e] [|n]; simpl; try lia; intros E F; [split; reflexivity|].
  destruct (IH e n); try lia; split; congruence.
Qed.

Definition axis_count (g : geometry) (sizes : list Z) : nat :=
  if transposed g then length (taxes g sizes) else length (axes g sizes).

Lemma taps_targets g sizes o t : accepts g sizes -> In o (outputs g sizes) -> In t (kernel_taps g sizes) ->
  In (add (query_of g sizes o) (shift_of g sizes t)) (tokens g sizes).
Proof.
  unfold accepts, outputs, kernel_taps, query_of, shift_of, tokens; destruct (transposed g); intros [_ A] Io It.
  - apply transposed_targets; assumption.
  - apply (conv_targets (mode_of g)); assumption.
Qed.

Lemma taps_shifts g sizes : accepts g sizes ->
  positions (axis_count g sizes) (map (shift_of g sizes) (kernel_taps g sizes)).
Proof.
  unfold accepts, kernel_taps, shift_of, axis_count; destruct (transposed g); intros [_ A].
  - apply transposed_shifts, A.
  - apply (conv_shifts (mode_of g)), A.
Qed.

Lemma positions_tokens g sizes : positions (axis_count g sizes) (tokens g sizes).
Proof.
  unfold tokens, axis_count; destruct (transposed g); [apply positions_transposed|apply positions_ranges].
Qed.

Lemma length_query_of g sizes o : In o (outputs g sizes) -> length (query_of g sizes o) = axis_count g sizes.
Proof.
  unfold outputs, query_of, axis_count; destruct (transposed g); intros Io.
  - destruct (positions_transposed transposed_size (taxes g sizes)) as [_ F]; rewrite Forall_forall in F.
    apply length_transposed_query, F, Io.
  - destruct (positions_ranges out_size (axes g sizes)) as [_ F]; rewrite Forall_forall in F.
    apply length_query, F, Io.
Qed.

Lemma reads_bounded g sizes d_in B X : accepts g sizes -> 0 <= B ->
  bounded d_in B (pixels g sizes) X -> bounded d_in B (tokens g sizes) (reads g sizes X).
Proof.
  unfold accepts, pixels, tokens, reads; destruct (transposed g); intros [_ A] HB HX.
  - intros t i It Hi; unfold stuffed; destruct (stuffed_at _ t) as [p|] eqn:St; [|rewrite Rabs_R0; exact HB].
    apply HX; [|exact Hi]; apply (stuffed_on_input _ t); [|exact St].
    destruct (positions_transposed (fun a => transposed_size a + span a)%Z (taxes g sizes)) as [_ F].
    rewrite Forall_forall in F; apply F, It.
  - apply padded_bounded; assumption.
Qed.
