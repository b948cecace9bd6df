(** The whole certificate of a sharp layer, from its raw fields: taps, biases and rounding, in floating point.

    Statement:
      check_floats_sound  if [check_floats] accepts T for a format, a bound B and a number of tokens, then every float
                          evaluation of the layer (scores, softmax, values, sums) and every float evaluation of the
                          convolution differ by T at most: for inputs of every size that torch accepts with so many
                          tokens, all floats |X| ≤ B, every output and channel.
      floats_exponential  the exponential that it assumes is any that is correctly rounded
    Assumed: the exponential is 0 at −α and below (FloatSoftmax.v); the scores on the grid are exact (RoundingScores.v);
    heads that carry only zeros are left out; the effects that RoundingLayer.v lists as outside. *)

From Coq Require Import Reals ZArith List Bool Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Softmax Lemma2 Layers Geometry Transposed.
From Attention Require Import RoundingTree RoundingDot RoundingHead RoundingTaps RoundingLayer FloatSoftmax
  RoundingDyadic.
From Attention Require RoundingCheck RoundingScores.
From Attention Require Import CheckSparse CheckFields CheckTaps CheckHeads CheckSame CheckSharp.
Import ListNotations.
Open Scope R_scope.

Section Computed.
Variables (c : convolution) (m : attention_layer).

Definition block_entry (e : Z) (rows columns : nat) (x : list (list (list Z))) (i a : nat) : dyadic :=
  if Nat.eqb (i / rows) (a / columns)
  then Dyadic (nth (a mod columns) (nth (i mod rows) (nth (a / columns) x []) []) 0%Z) e else z_of 0.

(** The kernel's entry at a kernel position. *)
Definition kernel_entry (j : position) (i k : nat) : dyadic :=
  if Nat.eqb (i / in_g c) (k / out_g c) then
    Dyadic (let t := number (kernel_size c) j in
      if transposed c then entry (c_weight c) (in_g c) (k / out_g c * in_g c + i mod in_g c) (k mod out_g c) t
      else entry (c_weight c) (out_g c) k (i mod in_g c) t) (c_weight_scale c)
  else z_of 0.

(** Both layers as RoundingCheck.v takes them, every head one-hot. *)
Definition pair_of : RoundingCheck.float_pair raw_head := RoundingCheck.FloatPair raw_head
  (groups_n c * in_g c) (groups_n c * Z.to_nat (head_dim m)) (groups_n c * out_g c)
  (kept m) (shift_read m) (fun _ => z_of 0)
  (fun h => block_entry (s_val (scale_of m)) (in_g c) (Z.to_nat (head_dim m)) (h_val h))
  (fun h => block_entry (s_out (scale_of m)) (Z.to_nat (head_dim m)) (out_g c) (h_out h))
  (fun j => Dyadic (nth j (raw_b_out m) 0%Z) (s_b (scale_of m)))
  (kernel_shifts c)
  (fun τ => match find (fun j => if same_position (shift_of c (units c) j) τ then true else false) (kernel_taps c
    (units c)) with
            | Some j => kernel_entry j
            | None => fun _ _ => z_of 0
            end)
  (fun j => Dyadic (nth j (c_bias c) 0%Z) (c_bias_scale c)).

(** log2 of the heads' integer at 2^(s_v + s_key_pos). *)
Definition sharp_exponent : Z := match kept m with h :: _ => Z.log2 (sharpness_read m h) | [] => 0%Z end.

(** α = 2^(a + s_v + s_key_pos) of every head, and τ is whole. *)
Definition check_floats (s : RoundingCheck.setting) (a : Z) (T : dyadic) : bool :=
  comparable c m && Z.leb 0 a && forallb (fun h => Z.eqb (sharpness_read m h) (2 ^ a) && on_lattice m h) (kept m) &&
  Z.leb (RoundingCheck.s_emin s) (a + (s_v (scale_of m) + s_key_pos (scale_of m))) &&
  sharp_format (RoundingCheck.s_emin s) (RoundingCheck.s_prec s) &&
  forallb (sharp_enough m (RoundingCheck.s_emin s)) (kept m) && RoundingCheck.check_float s pair_of T.

End Computed.

Section Sound.
Variables (c : convolution) (m : attention_layer).
Hypothesis ok : comparable c m = true.

Lemma value_block e rows columns x i a : value (block_entry e rows columns x i a) = blocks_of e rows columns x i a.
Proof. unfold block_entry, blocks_of; destruct (Nat.eqb _ _); [reflexivity|apply value_of]. Qed.

Lemma value_kernel_entry j i k : value (kernel_entry c j i k) = tap_matrix c j i k.
Proof.
  unfold kernel_entry, tap_matrix; destruct (transposed c) eqn:Tr; unfold transposed_block_diagonal, block_diagonal;
    destruct (Nat.eqb (i / in_g c) (k / out_g c)); try apply value_of; unfold weight_of; rewrite Tr; reflexivity.
Qed.

Theorem pair_represents :
  RoundingCheck.represents (pair_of c m) (with_heads (layer_of m) (kept m)) (kernel_at c) (bias_of c).
Proof.
  destruct (same_fields c m ok) as (Fg & Fi & Fo & Fd); repeat split.
  - cbn; rewrite Fg, Fi; reflexivity.
  - cbn; rewrite Fg; reflexivity.
  - intros h i _ _; cbn; rewrite value_block, Fo; reflexivity.
  - intros τ i _ _; cbn; unfold kernel_at; destruct (find _ _); [symmetry; apply value_kernel_entry|symmetry;
    apply value_of].
  - intros h i k _ _ _; cbn; rewrite value_block, Fi; reflexivity.
Qed.

End Sound.

(** What an accepted check means: the statement in full. *)
Definition floats_within (c : convolution) (m : attention_layer) (s : RoundingCheck.setting) (a : Z) (T : dyadic) :
  Prop :=
  let α := bpow radix2 (a + (s_v (scale_of m) + s_key_pos (scale_of m))) in
  let emin := RoundingCheck.s_emin s in let prec := RoundingCheck.s_prec s in
  let L := with_heads (layer_of m) (kept m) in
  forall expf sizes X o j (scores P : raw_head -> position -> R) y z,
  let G := tokens c sizes in let q := query_of c sizes o in
  accepts c sizes -> In o (outputs c sizes) -> (j < groups_n c * out_g c)%nat ->
  (Z.of_nat (length G) <= RoundingCheck.s_tokens s)%Z ->
  (forall k i, In k G -> (i < groups_n c * in_g c)%nat ->
     float emin prec (reads c sizes X k i) /\ Rabs (reads c sizes X k i) <= value (RoundingCheck.s_bound s)) ->
  sharp_exp emin prec α expf ->
  (forall h, In h (kept m) -> RoundingScores.exact_scores prec q (shift_read m h) G) ->
  (* the evaluations *)
  (forall h, In h (kept m) ->
     (forall k, In k G -> computes emin prec (RoundingScores.score_terms (dims c) α (shift_read m h) (sub k q))
       (scores h k)) /\
     float_softmax emin prec expf G (scores h) (P h)) ->
  computes emin prec (conv_terms (groups_n c * in_g c) (kernel_shifts c) (kernel_at c) (bias_of c) (reads c sizes X) q
    j) y ->
  attend_computes emin prec (RoundingCheck.s_order s) L G (reads c sizes X) P j z ->
  (* what the tensors give is −α(1, −2τ); the exact convolution is torch's *)
  (forall h, In h (kept m) -> forall i, (i < S (dims c))%nat ->
     row_times (D_k L) (v (parameters L h)) (W_key_pos (parameters L h)) i = v_quadratic α (shift_read m h) i) /\
  conv (groups_n c * in_g c) (kernel_shifts c) (kernel_at c) (bias_of c) (reads c sizes X) q j = computes_conv c sizes
    X o j /\
  Rabs (z - y) <= value T.

Theorem check_floats_sound c m s a T : check_floats c m s a T = true -> floats_within c m s a T.
Proof.
  intros E; cbv beta delta [floats_within];
    intros α emin prec L expf sizes X o j scores P y z G q A Io Hj Ht HX Ex Es Ev Cy Cz.
  unfold check_floats, sharp_format in E; rewrite !andb_true_iff, !forallb_forall in E.
  destruct E as ((((((ok & Ca) & Cs) & Cn) & ((Cp & Ce) & _)) & _) & Cf).
  apply Z.leb_le in Ca, Ce, Cn; apply Z.ltb_lt in Cp.
  destruct (same_fields c m ok) as (Fg & Fi & Fo & Fd).
  split; [|split].
  - intros h Ih; specialize (Cs h Ih); apply andb_prop in Cs; destruct Cs as [Cs Cl]; apply Z.eqb_eq in Cs.
    replace α with (alpha_of m h); [apply (kept_sharp c m ok h Ih), Cl|].
    unfold alpha_of, number_of, value; cbn [mantissa exponent]; unfold α; rewrite Cs, (bpow_plus radix2 a); f_equal;
      change 2%Z with (radix_val radix2); apply IZR_Zpower, Ca.
  - symmetry; apply (computes_conv_shifts c m ok sizes A X o j Hj Io).
  - apply (RoundingScores.sharp_certificate s (pair_of c m) L (kernel_at c) (bias_of c)
      (a + (s_v (scale_of m) + s_key_pos (scale_of m))) (dims c) expf G (reads c sizes X) q scores P T j y z);
        try assumption.
    + apply pair_represents, ok.
    + apply (tokens_dims c m ok sizes A).
    + apply (query_dims c m ok sizes A o Io).
    + apply (kernel_shifts_positions c m ok sizes A).
    + apply (targets_on_tokens c sizes A o Io).
    + intros h Ih; destruct (kept_sharp c m ok h Ih) as (_ & _ & Lf & _); split; [exact Lf|]; split; [|split].
      * apply (targets_on_tokens c sizes A o Io), (heads_on_shifts c m ok h Ih).
      * apply Es, Ih.
      * reflexivity.
    + replace (D_in L) with (groups_n c * in_g c)%nat by (cbn; rewrite Fg, Fi; reflexivity); exact Cy.
Qed.

(** What it assumes of the exponential holds of every one that is correctly rounded, if the check accepts a layer with a
    head that carries something. *)
Theorem floats_exponential c m s a T expf : check_floats c m s a T = true -> kept m <> [] ->
  let emin := RoundingCheck.s_emin s in let prec := RoundingCheck.s_prec s in
  correctly_rounded emin prec expf ->
  sharp_exp emin prec (bpow radix2 (a + (s_v (scale_of m) + s_key_pos (scale_of m)))) expf.
Proof.
  intros E K emin prec Ex; unfold check_floats, sharp_format in E; rewrite !andb_true_iff, !forallb_forall in E.
  destruct E as ((((((_ & Ca) & Cs) & _) & ((Cp & Ce) & _)) & Cq) & _).
  apply Z.leb_le in Ca, Ce; apply Z.ltb_lt in Cp; assert (Pp : Prec_gt_0 prec) by exact Cp.
  destruct (kept m) as [|h hs]; [congruence|]; specialize (Cs h (or_introl eq_refl));
    specialize (Cq h (or_introl eq_refl)).
  apply andb_prop in Cs; destruct Cs as [Cs _]; apply Z.eqb_eq in Cs; apply value_le in Cq; rewrite value_of in Cq;
    unfold value in Cq; cbn [mantissa exponent] in Cq.
  rewrite Cs in Cq; change (2 ^ a)%Z with (radix2 ^ a)%Z in Cq; rewrite IZR_Zpower, <- bpow_plus in Cq by exact Ca.
  apply correctly_rounded_exp; try assumption.
  eapply Rle_lt_trans; [|apply least_sharp_enough, Ce]; apply exp_monotone; fold emin in Cq; lra.
Qed.
