(** The certificate's figures computed in integers, and what follows when they stay below a bound.

    A layer and its convolution are given as integers times powers of two; positions are integers.  All
    computations are in Z, so [figures] and [check_float] can be extracted.  Statements, for every grid of at most N
    tokens, all floats |X| ≤ B, every query q whose tokens are on the grid, every output channel j,
    and every evaluation of the two in a given order of the products (RoundingLayer.v):
      figures_sound      |fl(MHSA(X)) − fl(Conv(X))| ≤ leak + taps + rounding, the three numbers that [figures] returns
      check_float_sound  if [check_float] accepts the bound T, then |fl(MHSA(X)) − fl(Conv(X))| ≤ T
      final_bound_sound  the bound after one final rounding of both to a lower precision
      check_float_sharp  check_float_sound with λ_h = 0, for heads whose weights come from a float softmax of
                         sharp scores *)

From Coq Require Import Reals ZArith Bool List Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums RoundingTree RoundingDot RoundingHead RoundingTaps RoundingLayer.
From Attention Require Import RoundingWeights FloatSoftmax RoundingDyadic.
Import ListNotations.
Open Scope R_scope.

(** * What is computed *)

(** Both layers.  Head h attends to q + [shift h], within [row_bound h] = λ_h of one-hot. *)
Record float_pair (H : Type) : Type := FloatPair {
  in_channels : nat;
  head_dim : nat;
  out_channels : nat;
  all_heads : list H;
  shift : H -> position;
  row_bound : H -> dyadic;
  w_val : H -> nat -> nat -> dyadic;
  w_out : H -> nat -> nat -> dyadic;
  b_att : nat -> dyadic;
  support_of_kernel : list position;
  kernel : position -> nat -> nat -> dyadic;
  b_conv : nat -> dyadic
}.
Arguments in_channels {H}. Arguments head_dim {H}. Arguments out_channels {H}. Arguments all_heads {H}.
Arguments shift {H}. Arguments row_bound {H}. Arguments w_val {H}. Arguments w_out {H}. Arguments b_att {H}.
Arguments support_of_kernel {H}. Arguments kernel {H}. Arguments b_conv {H}.

(** The format, the order of the products, the number of tokens N and the bound B on the inputs. *)
Record setting : Set := Setting { s_emin : Z; s_prec : Z; s_order : order; s_tokens : Z; s_bound : dyadic }.

Section Computed.
Context {H : Type}.
Variables (s : setting) (p : float_pair H).

Notation channels := (seq 0 (in_channels p)).
Notation dims := (seq 0 (head_dim p)).

Definition z_head (o : head_order) (h : H) (i : nat) : head_column :=
  z_head_column (s_emin s) (s_prec s) o (s_tokens s) (s_bound s) (row_bound p h)
    (map (fun c => w_val p h c i) channels).

(** Every column of every head, computed once for all output channels. *)
Definition head_columns (o : head_order) : list (H * list (nat * head_column)) :=
  map (fun h => (h, map (fun i => (i, z_head o h i)) dims)) (all_heads p).

(** The columns that output channel j reads. *)
Definition columns_read (heads : list (H * list (nat * head_column))) (j : nat) : list (dyadic * head_column) :=
  filter (fun c => negb (z_is_zero (fst c)))
    (flat_map (fun hc => map (fun ic => (w_out p (fst hc) (fst ic) j, snd ic)) (snd hc)) heads).

(** The entries of W_val W_out for output channel j. *)
Definition z_entry (j : nat) (h : H) (c : nat) : entry dyadic :=
  let terms := map (fun i => z_mul (w_val p h c i) (w_out p h i j)) dims in
  let size := z_weight terms in
  Entry (row_bound p h) size (z_dot_bound (s_emin s) (s_prec s) (z_support terms) size).

Definition entries_read (j : nat) : list (entry dyadic) :=
  flat_map (fun h => map (z_entry j h) channels) (all_heads p).

(** Taps: |b_out − b| + B·Σ_τ Σ_c |Σ_{h at τ} W_val^h W_out^h − W_τ|. *)
Definition z_entries (h : H) (j : nat) : list (nat * dyadic) :=
  filter (fun e => negb (z_is_zero (snd e))) (map (fun i => (i, w_out p h i j)) dims).

Definition z_shifts : list position := nodup same_position (support_of_kernel p ++ map (shift p) (all_heads p)).

Definition heads_at (τ : position) : list H :=
  filter (fun h => if same_position (shift p h) τ then true else false) (all_heads p).

Definition z_taps (j : nat) : dyadic :=
  z_add (z_abs (z_sub (b_att p j) (b_conv p j)))
    (z_mul (s_bound s) (z_sum z_shifts (fun τ =>
      let carried := map (fun h => (h, z_entries h j)) (heads_at τ) in
      let in_kernel := if in_dec same_position τ (support_of_kernel p) then true else false in
      z_sum channels (fun c => z_abs (z_sub
        (z_sum carried (fun hw => z_sum (snd hw) (fun e => z_mul (w_val p (fst hw) c (fst e)) (snd e))))
        (if in_kernel then kernel p τ c j else z_of 0)))))).

Definition z_conv_weights (j : nat) : list dyadic :=
  flat_map (fun τ => map (fun c => kernel p τ c j) channels) (support_of_kernel p).

(** Leak, taps and rounding of output channel j. *)
Record figures : Set := Figures { leak_of : dyadic; taps_of : dyadic; rounding_of : dyadic }.

Definition channel_figures : nat -> figures :=
  match s_order s with
  | by_heads o => let heads := head_columns o in fun j =>
      let cols := columns_read heads j in
      Figures (z_leak cols) (z_taps j)
        (z_rounding (s_emin s) (s_prec s) (s_bound s) (b_conv p j) (z_conv_weights j) (b_att p j) cols)
  | weights_first => fun j =>
      let es := entries_read j in
      Figures (z_sum es (fun t => z_mul (entry_size t) (z_mul (entry_leak t) (s_bound s)))) (z_taps j)
        (z_weights (s_emin s) (s_prec s) (s_tokens s) (s_bound s) (b_conv p j) (z_conv_weights j) (b_att p j) es)
  end.

Definition total (f : figures) : dyadic := z_add (z_add (leak_of f) (taps_of f)) (rounding_of f).

(** The figures of every output channel. *)
Definition all_figures : list figures := map channel_figures (seq 0 (out_channels p)).

(** The figures of every output channel sum to at most T, and B is not negative. *)
Definition check_float (T : dyadic) : bool :=
  z_le (z_of 0) (s_bound s) && forallb (fun f => z_le (total f) T) all_figures.

(** The bound T on channel j after one final rounding of both, to the format (e_min, p). *)
Definition final_bound (emin prec : Z) (T : dyadic) (j : nat) : dyadic :=
  z_final emin prec (z_size (s_emin s) (s_prec s) (s_bound s) (b_conv p j) (z_conv_weights j)) T.

End Computed.

(** * The input of the computation *)

(** The layer L, the taps W and the bias b are those of p. *)
Definition represents {H} (p : float_pair H) (L : layer H) (W : position -> matrix) (b : vector) : Prop :=
  D_in L = in_channels p /\ D_h L = head_dim p /\ heads L = all_heads p /\
  (forall j, (j < out_channels p)%nat ->
     b_out L j = value (b_att p j) /\ b j = value (b_conv p j) /\
     (forall h i, In h (all_heads p) -> (i < head_dim p)%nat -> W_out (parameters L h) i j = value (w_out p h i j)) /\
     (forall τ c, In τ (support_of_kernel p) -> (c < in_channels p)%nat -> W τ c j = value (kernel p τ c j))) /\
  (forall h c i, In h (all_heads p) -> (c < in_channels p)%nat -> (i < head_dim p)%nat ->
     W_val (parameters L h) c i = value (w_val p h c i)).

(** * Sums without their zeros *)

Lemma sum_filter {A} (l : list A) (keep : A -> bool) f : (forall x, In x l -> keep x = false -> f x = 0) ->
  sum (filter keep l) f = sum l f.
Proof.
  induction l as [|a l IH]; intros E; [reflexivity|]; simpl; destruct (keep a) eqn:K; rewrite ?sum_cons, IH.
  - reflexivity.
  - intros x I; apply E; right; exact I.
  - rewrite (E a (or_introl eq_refl) K); lra.
  - intros x I; apply E; right; exact I.
Qed.

Lemma support_filter (l : list (dyadic * head_column)) b :
  z_support (b :: map fst (filter (fun c => negb (z_is_zero (fst c))) l)) = z_support (b :: map fst l).
Proof.
  assert (E : z_support (map fst (filter (fun c => negb (z_is_zero (fst c))) l)) = z_support (map fst l)).
  { induction l as [|[w h] l IH]; [reflexivity|]; simpl; destruct (z_is_zero w) eqn:Z; simpl; rewrite ?Z, IH;
    reflexivity. }
  change (z_support (b :: ?w)) with (if z_is_zero b then z_support w else Z.succ (z_support w)); simpl; rewrite E;
    reflexivity.
Qed.

Lemma leak_filter l : value (z_leak (filter (fun c => negb (z_is_zero (fst c))) l)) = value (z_leak l).
Proof.
  unfold z_leak; rewrite !value_sum; apply sum_filter; intros c _ K; apply negb_false_iff, value_is_zero in K.
  rewrite value_mul, value_abs, K, Rabs_R0; ring.
Qed.

Lemma rounding_filter emin prec B b ws b' l :
  value (z_rounding emin prec B b ws b' (filter (fun c => negb (z_is_zero (fst c))) l))
  = value (z_rounding emin prec B b ws b' l).
Proof.
  assert (E : forall g, value (z_sum (filter (fun c : dyadic * head_column => negb (z_is_zero (fst c))) l)
      (fun c => z_mul (z_abs (fst c)) (g (snd c)))) = value (z_sum l (fun c => z_mul (z_abs (fst c)) (g (snd c))))).
  { intros g; rewrite !value_sum; apply sum_filter; intros c _ K; apply negb_false_iff, value_is_zero in K.
    rewrite value_mul, value_abs, K, Rabs_R0; ring. }
  unfold z_rounding; rewrite support_filter, !value_add, (E h_rounding); f_equal.
  rewrite !value_support, !value_dot_bound, !value_add.
  rewrite (E (fun h => z_add (z_mul (z_add (z_of 1) (h_leak h)) (h_size h)) (h_rounding h))); reflexivity.
Qed.

(** * Soundness *)

Section Sound.
Context {H : Type}.
Variables (s : setting) (p : float_pair H) (L : layer H) (W : position -> matrix) (b : vector).
Hypothesis same : represents p L W b.

Notation B := (value (s_bound s)).
Notation λ := (fun h => value (row_bound p h)).
Notation Δ := (support_of_kernel p).

Let in_L : D_in L = in_channels p.
Proof. apply same. Qed.
Let h_L : D_h L = head_dim p.
Proof. apply same. Qed.
Let heads_L : heads L = all_heads p.
Proof. apply same. Qed.

(** The columns of channel j as dyadics. *)
Let z_cols (j : nat) : list (column dyadic) :=
  flat_map (fun h => map (fun i => Column (w_out p h i j) (row_bound p h)
    (map (fun c => w_val p h c i) (seq 0 (in_channels p)))) (seq 0 (head_dim p))) (all_heads p).

Lemma z_cols_value j : (j < out_channels p)%nat -> map value_column (z_cols j) = columns L λ j.
Proof.
  intros Hj; destruct same as (_ & _ & _ & Sj & Sv); destruct (Sj j Hj) as (_ & _ & So & _).
  unfold z_cols, columns; rewrite map_flat_map, heads_L, h_L, in_L.
  assert (E : forall hs, incl hs (all_heads p) ->
    flat_map (fun h => map value_column (map (fun i => Column (w_out p h i j) (row_bound p h)
      (map (fun c => w_val p h c i) (seq 0 (in_channels p)))) (seq 0 (head_dim p)))) hs
    = flat_map (fun h => map (fun i => Column (W_out (parameters L h) i j) (value (row_bound p h))
      (map (fun c => W_val (parameters L h) c i) (seq 0 (in_channels p)))) (seq 0 (head_dim p))) hs).
  { induction hs as [|h hs IH]; intros I; [reflexivity|]; simpl flat_map; rewrite IH by (intros x Ix; apply I; right;
    exact Ix).
    f_equal; rewrite map_map; apply map_ext_in; intros i Ii; apply in_seq in Ii; unfold value_column; simpl.
    assert (Ih : In h (all_heads p)) by (apply I; left; reflexivity).
    rewrite So by (assumption || lia); f_equal; rewrite map_map; apply map_ext_in; intros c Ic; apply in_seq in Ic.
    rewrite Sv by (assumption || lia); reflexivity. }
  apply E, incl_refl.
Qed.

Lemma columns_read_cols o N j : s_tokens s = Z.of_nat N ->
  columns_read p (head_columns s p o) j = filter (fun c => negb (z_is_zero (fst c)))
    (map (computed_from (s_emin s) (s_prec s) o N (s_bound s)) (z_cols j)).
Proof.
  intros HN; unfold columns_read, head_columns, z_cols; f_equal; rewrite map_flat_map.
  rewrite flat_map_concat_map, map_map, <- flat_map_concat_map; apply flat_map_ext; intros h; cbn [fst snd].
  rewrite !map_map; apply map_ext; intros i; unfold computed_from, z_head; cbn; rewrite HN; reflexivity.
Qed.

(** The rounding of an entry of W_val W_out: that of one dot product of its terms. *)
Let entry_error_of j h c : R := dot_bound (s_emin s) (s_prec s) (support (map (fun t => fst t * snd t)
  (weight_terms L j h c))) (magnitude (weight_terms L j h c)).

Lemma entries_read_value j : (j < out_channels p)%nat ->
  map value_entry (entries_read s p j) = entries L λ (entry_error_of j) j.
Proof.
  intros Hj; destruct same as (_ & _ & _ & Sj & Sv); destruct (Sj j Hj) as (_ & _ & So & _).
  unfold entries_read, entries; rewrite map_flat_map, heads_L, in_L.
  rewrite !flat_map_concat_map; f_equal; apply map_ext_in; intros h Ih; rewrite map_map; apply map_ext_in; intros c Ic.
  apply in_seq in Ic; unfold z_entry, value_entry, entry_error_of; cbn [entry_leak entry_size entry_error].
  assert (E : map value (map (fun i => z_mul (w_val p h c i) (w_out p h i j)) (seq 0 (head_dim p)))
    = map (fun t => fst t * snd t) (weight_terms L j h c)).
  { unfold weight_terms; rewrite h_L, !map_map; apply map_ext_in; intros i Ii; apply in_seq in Ii; cbn [fst snd].
    rewrite value_mul, So, Sv by (assumption || lia); reflexivity. }
  rewrite value_support, value_dot_bound, value_weight, E.
  assert (Ew : weight (map (fun t : R * R => fst t * snd t) (weight_terms L j h c)) = magnitude (weight_terms L j h c)).
  { unfold weight, magnitude; apply sum_map. }
  rewrite Ew; reflexivity.
Qed.

Lemma z_taps_value j : (j < out_channels p)%nat ->
  value (z_taps s p j) = taps_difference L (shift p) Δ W b j B.
Proof.
  intros Hj; destruct same as (_ & _ & _ & Sj & Sv); destruct (Sj j Hj) as (Sb & Sc & So & Sk).
  unfold z_taps, taps_difference; rewrite value_add, value_abs, value_sub, value_mul, value_sum, Sb, Sc; do 2 f_equal.
  unfold shifts; rewrite heads_L; fold (z_shifts p); apply sum_ext; intros τ _; cbv zeta.
  unfold sum_below; rewrite value_sum, in_L; apply sum_ext; intros c Ic; apply in_seq in Ic.
  rewrite value_abs, value_sub, value_sum, sum_map; do 2 f_equal.
  - unfold head_tap, heads_at; rewrite heads_L.
    rewrite <- (sum_filter (all_heads p) (fun h => if same_position (shift p h) τ then true else false)).
    + apply sum_ext; intros h Ih; apply filter_In in Ih; destruct Ih as [Ih T].
      destruct (same_position (shift p h) τ); [|discriminate]; cbn [fst snd]; rewrite value_sum.
      unfold carried, sum_below, z_entries; rewrite h_L; rewrite sum_filter.
      * rewrite sum_map; apply sum_ext; intros i Ii; apply in_seq in Ii; cbn [fst snd].
        rewrite value_mul, So, Sv by (assumption || lia); reflexivity.
      * intros entry _ K; apply negb_false_iff, value_is_zero in K; rewrite value_mul, K; ring.
    + intros h _ T; destruct (same_position (shift p h) τ); [discriminate|reflexivity].
  - unfold kernel_tap; destruct (in_dec same_position τ Δ); [symmetry; apply Sk; [assumption|lia]|apply value_of].
Qed.

Lemma z_conv_weights_value j : (j < out_channels p)%nat -> map value (z_conv_weights p j) = conv_weights (D_in L) Δ W j.
Proof.
  intros Hj; destruct same as (_ & _ & _ & Sj & _); destruct (Sj j Hj) as (_ & _ & _ & Sk).
  unfold z_conv_weights, conv_weights; rewrite map_flat_map, in_L.
  assert (E : forall l, incl l Δ ->
    flat_map (fun τ => map value (map (fun c => kernel p τ c j) (seq 0 (in_channels p)))) l
    = flat_map (fun τ => map (fun c => W τ c j) (seq 0 (in_channels p))) l).
  { induction l as [|τ l IH]; intros I; [reflexivity|]; simpl flat_map; rewrite IH by (intros x Ix; apply I; right;
    exact Ix).
    f_equal; rewrite map_map; apply map_ext_in; intros c Ic; apply in_seq in Ic; symmetry; apply Sk; [apply I; left;
      reflexivity|lia]. }
  apply E, incl_refl.
Qed.

Variables (G : list position) (X : image) (q : position) (P : H -> position -> R).
Hypothesis prec_positive : (0 < s_prec s)%Z.
Hypothesis tokens : (Z.of_nat (length G) <= s_tokens s)%Z.
Hypothesis distinct : NoDup G.
Hypothesis kernel_distinct : NoDup Δ.
Hypothesis X_floats : forall k c, In k G -> (c < in_channels p)%nat ->
  float (s_emin s) (s_prec s) (X k c) /\ Rabs (X k c) <= B.
Hypothesis kernel_on_grid : forall τ, In τ Δ -> In (add q τ) G.
Hypothesis heads_on_grid : forall h, In h (all_heads p) -> In (add q (shift p h)) G.

Section Rows.
Hypothesis rows : forall h, In h (all_heads p) -> near_one_hot (value (row_bound p h)) G (P h) (add q (shift p h)).

(** |fl(MHSA(X)) − fl(Conv(X))| ≤ leak + taps + rounding, as computed. *)
Theorem figures_sound j y z : 0 <= B -> (j < out_channels p)%nat ->
  computes (s_emin s) (s_prec s) (conv_terms (D_in L) Δ W b X q j) y ->
  attend_computes (s_emin s) (s_prec s) (s_order s) L G X P j z ->
  let f := channel_figures s p j in
  Rabs (z - y) <= value (leak_of f) + value (taps_of f) + value (rounding_of f).
Proof.
  intros B_nonneg Hj Cy Cz f; subst f; unfold channel_figures.
  assert (Pp : Prec_gt_0 (s_prec s)) by exact prec_positive.
  set (N := Z.to_nat (s_tokens s)); assert (HN : s_tokens s = Z.of_nat N) by (unfold N; lia).
  assert (Q := same); destruct Q as (_ & _ & _ & Sj & _); destruct (Sj j Hj) as (Sb & Sc & _ & _).
  assert (X' : forall k c, In k G -> (c < D_in L)%nat -> float (s_emin s) (s_prec s) (X k c) /\ Rabs (X k c) <= B).
  { intros k c; rewrite in_L; apply X_floats. }
  assert (heads' : forall h, In h (heads L) -> In (add q (shift p h)) G) by (rewrite heads_L; exact heads_on_grid).
  assert (rows' : forall h, In h (heads L) -> near_one_hot (value (row_bound p h)) G (P h) (add q (shift p h))).
  { rewrite heads_L; exact rows. }
  assert (λ0 : forall h, In h (heads L) -> 0 <= λ h).
  { intros h Ih; exact (leak_bound_nonneg G (P h) _ _ (rows' h Ih)). }
  destruct (s_order s) as [o|]; cbv zeta; cbn [leak_of taps_of rounding_of].
  - rewrite (columns_read_cols o N j HN), leak_filter, rounding_filter, z_leak_value, z_rounding_value, z_taps_value by
      exact Hj.
    rewrite z_cols_value, z_conv_weights_value, <- Sb, <- Sc by exact Hj.
    assert (R := layer_rounding (s_emin s) (s_prec s) L (shift p) G Δ W b X q j B distinct kernel_distinct B_nonneg X'
      kernel_on_grid heads' o P λ rows' y z Cy Cz).
    eapply Rle_trans; [exact R|]; apply Rplus_le_compat_l, rounding_figure_monotone; [lia|exact B_nonneg|].
    intros c Ic; unfold columns in Ic; apply in_flat_map in Ic; destruct Ic as (h & Ih & Ic); apply in_map_iff in Ic.
    destruct Ic as (i & <- & _); apply λ0, Ih.
  - assert (E := entries_read_value j Hj).
    assert (En : forall h c v, In h (heads L) -> (c < D_in L)%nat ->
      computes (s_emin s) (s_prec s) (weight_terms L j h c) v ->
      Rabs (v - exact (weight_terms L j h c)) <= entry_error_of j h c).
    { intros h c v _ _; apply (weights_rounding (s_emin s) (s_prec s)); unfold nonzero, support.
      generalize (weight_terms L j h c); induction l as [|t l IH]; [apply le_n|]; simpl; destruct (Req_EM_T (fst t * snd t) 0); simpl; lia. }
    rewrite HN, z_weights_value, z_taps_value, E, z_conv_weights_value, <- Sb, <- Sc by exact Hj.
    assert (R := weights_first_rounding (s_emin s) (s_prec s) L (shift p) G Δ W b X q j B distinct kernel_distinct X'
      kernel_on_grid heads' _ En P λ rows' y z Cy Cz).
    replace (value (z_sum _ _)) with (leak_figure B (columns L λ j)).
    + eapply Rle_trans; [exact R|]; apply Rplus_le_compat_l, weights_figure_monotone; [lia|exact B_nonneg|].
      intros t It; unfold entries in It; apply in_flat_map in It; destruct It as (h & Ih & It); apply in_map_iff in It.
      destruct It as (c & <- & _); cbn [entry_leak entry_size entry_error].
      assert (M := magnitude_nonneg (weight_terms L j h c)); split; [apply λ0, Ih|split; [exact M|apply dot_bound_nonneg, M]].
    + rewrite leak_by_entries.
      transitivity (sum (entries L λ (entry_error_of j) j) (fun t => entry_size t * (entry_leak t * B))).
      * rewrite sum_entries; reflexivity.
      * rewrite <- E, sum_map, value_sum; apply sum_ext; intros t _; rewrite !value_mul; reflexivity.
Qed.

(** If [check_float] accepts T, then |fl(MHSA(X)) − fl(Conv(X))| ≤ T in every output channel. *)
Theorem check_float_sound T j y z : check_float s p T = true -> (j < out_channels p)%nat ->
  computes (s_emin s) (s_prec s) (conv_terms (D_in L) Δ W b X q j) y ->
  attend_computes (s_emin s) (s_prec s) (s_order s) L G X P j z ->
  Rabs (z - y) <= value T.
Proof.
  unfold check_float; rewrite andb_true_iff, forallb_forall; intros [A0 A] Hj Cy Cz.
  apply value_le in A0; rewrite value_of in A0; eapply Rle_trans; [exact (figures_sound j y z A0 Hj Cy Cz)|].
  specialize (A (channel_figures s p j)); rewrite <- !value_add; apply value_le, A.
  unfold all_figures; apply in_map, in_seq; lia.
Qed.

End Rows.

(** After one final rounding of both to a lower precision. *)
Theorem final_bound_sound emin' prec' T j y z y' z' : 0 <= B -> (0 < prec')%Z -> Rabs (z - y) <= value T ->
  (j < out_channels p)%nat -> computes (s_emin s) (s_prec s) (conv_terms (D_in L) Δ W b X q j) y ->
  rounds emin' prec' y y' -> rounds emin' prec' z z' ->
  Rabs (z' - y') <= value (final_bound s p emin' prec' T j).
Proof.
  intros B0 Hp D Hj Cy; unfold final_bound; rewrite z_final_value, z_size_value, z_conv_weights_value by exact Hj.
  apply final_rounding; [exact Hp|exact D|]; destruct same as (_ & _ & _ & Sj & _);
    destruct (Sj j Hj) as (_ & Sc & _ & _).
  rewrite <- Sc; assert (Pp : Prec_gt_0 (s_prec s)) by exact prec_positive.
  apply (conv_size (s_emin s) (s_prec s) L G Δ W b X q j B); try assumption.
  intros k c; rewrite in_L; apply X_floats.
Qed.

(** The same for sharp heads: λ_h = 0, and the computed scores of every head have their maximum at q + f(h),
    a float g > 0 or more above every other, where the exponential is 0 (FloatSoftmax.v). *)
Theorem check_float_sharp expf g (scores : H -> position -> R) T j y z :
  (s_emin s <= 0)%Z -> 0 < g -> float (s_emin s) (s_prec s) g -> sharp_exp (s_emin s) (s_prec s) g expf ->
  (forall h, In h (all_heads p) -> mantissa (row_bound p h) = 0%Z /\ gap g G (scores h) (add q (shift p h)) /\
     float_softmax (s_emin s) (s_prec s) expf G (scores h) (P h)) ->
  check_float s p T = true -> (j < out_channels p)%nat ->
  computes (s_emin s) (s_prec s) (conv_terms (D_in L) Δ W b X q j) y ->
  attend_computes (s_emin s) (s_prec s) (s_order s) L G X P j z ->
  Rabs (z - y) <= value T.
Proof.
  intros E0 G0 Gf Ex Sh; apply check_float_sound; intros h Ih; destruct (Sh h Ih) as (Z & Sg & Sf).
  replace (value (row_bound p h)) with 0 by (unfold value; rewrite Z; ring); apply one_hot_near.
  assert (Pp : Prec_gt_0 (s_prec s)) by exact prec_positive.
  exact (softmax_one_hot _ _ E0 expf G (scores h) _ g distinct (heads_on_grid h Ih) G0 Gf Ex Sg (P h) Sf).
Qed.

End Sound.
