(** The sums that bound the rounding of a layer: linear in the number of its weights.

    For output channel j, the k-th of group u, in integers:
      through  Σ_h Σ_a |W_out^h_{a,j}|·Σ_i |W_val^h_{i,a}|, over the heads, the entries a of their values and the input
               channels i of the group
      outward  Σ_h Σ_a |W_out^h_{a,j}|
      kernel_sums  Σ_t Σ_i |W|, over the kernel positions and the input channels of the group
    Statements:
      through_value, outward_value   these are the sums over the columns of the layer
      kernel_value                   and this is the sum over the taps of the convolution, or more
      support_columns, support_outputs, support_kernel   the most products that are not zero: of a value, of an output of
                                     the layer, of one of the convolution
      support_products, support_entries   and of an entry of W_val W_out, and the most of these that are not zero *)

From Coq Require Import Reals ZArith List Bool Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Lemma2 Layers Geometry Transposed RoundingTree RoundingHead RoundingTaps
  RoundingLayer.
From Attention Require Import RoundingDyadic CheckSparse CheckFields CheckTaps CheckHeads CheckSame.
Import ListNotations.
Open Scope R_scope.

(** * What is computed *)

(** Element by element; beyond the shorter list, the other's elements. *)
Fixpoint join {A : Type} (f : A -> A -> A) (a b : list A) : list A :=
  match a, b with
  | [], _ => b
  | _, [] => a
  | x :: a', y :: b' => f x y :: join f a' b'
  end.

(** Σ_a x_a |row a| *)
Definition abs_product (xs : list Z) (rows : list (list Z)) : list Z :=
  fold_right (fun xr s => if Z.eqb (fst xr) 0 then s else join Z.add (map (fun y => fst xr * Z.abs y)%Z (snd xr)) s) []
    (combine xs rows).
Definition column_sums (rows : list (list Z)) : list Z := abs_product (map (fun _ => 1%Z) rows) rows.

(** A head's sums, a list for every group. *)
Definition head_through (h : raw_head) : list (list Z) :=
  map (fun b => abs_product (column_sums (fst b)) (snd b)) (combine (h_val h) (h_out h)).
Definition head_outward (h : raw_head) : list (list Z) := map column_sums (h_out h).

(** All heads together. *)
Definition over_heads (f : raw_head -> list (list Z)) (hs : list raw_head) : list (list Z) :=
  fold_right (fun h s => join (join Z.add) (f h) s) [] hs.

(** The kernel's, a list for every group; [flip]: the first axis counts input channels. *)
Definition abs_sum (l : list Z) : Z := zsum l Z.abs.
Definition kernel_sums (flip : bool) (w : list (list (list (list Z)))) : list (list Z) :=
  if flip then map (fun b => column_sums (map (map abs_sum) b)) w else map (map (fun rows => zsum rows abs_sum)) w.

Definition entry_of (l : list (list Z)) (u k : nat) : Z := nth k (nth u l []) 0%Z.

(** * Lists *)

Lemma nth_join {A} (f : A -> A -> A) d : (forall x, f d x = x) -> (forall x, f x d = x) ->
  forall a b k, nth k (join f a b) d = f (nth k a d) (nth k b d).
Proof.
  intros F G; induction a as [|x a IH]; intros b k; [destruct k; symmetry; apply F|].
  destruct b as [|y b]; [simpl join; destruct k; symmetry; apply G|]; destruct k as [|k]; simpl; [reflexivity|apply IH].
Qed.

Lemma nth_sum a b k : nth k (join Z.add a b) 0%Z = (nth k a 0 + nth k b 0)%Z.
Proof. apply nth_join; intros; ring. Qed.

Theorem nth_abs_product n xs rows k : (length rows <= n)%nat -> IZR (nth k (abs_product xs rows) 0%Z) =
  sum_below n (fun a => IZR (nth a xs 0%Z) * Rabs (IZR (nth k (nth a rows []) 0%Z))).
Proof.
  revert xs n; induction rows as [|row rows IH]; intros xs n Hn.
  - unfold abs_product; rewrite combine_nil; simpl fold_right.
    rewrite sum_below_zero; [destruct k; reflexivity|]; intros a _; destruct a, k; simpl; rewrite Rabs_R0; ring.
  - destruct xs as [|x xs].
    + rewrite sum_below_zero; [destruct k; reflexivity|]; intros a _; destruct a; simpl; ring.
    + destruct n as [|n]; [simpl in Hn; lia|]; rewrite sum_below_S; cbn [nth].
      rewrite <- IH by (simpl in Hn; lia); unfold abs_product; cbn [combine fold_right fst snd].
      destruct (Z.eqb_spec x 0) as [->|]; [ring|].
      rewrite nth_sum, plus_IZR; f_equal; rewrite <- abs_IZR, <- mult_IZR; f_equal.
      rewrite <- (map_nth (fun y => x * Z.abs y)%Z row 0%Z k); f_equal; simpl; ring.
Qed.

Lemma nth_column_sums n rows k : (length rows <= n)%nat ->
  IZR (nth k (column_sums rows) 0%Z) = sum_below n (fun a => Rabs (IZR (nth k (nth a rows []) 0%Z))).
Proof.
  intros Hn; unfold column_sums; rewrite (nth_abs_product n) by exact Hn; apply sum_below_ext; intros a _.
  destruct (Nat.lt_ge_cases a (length rows)) as [La|La].
  - set (one := fun _ : list Z => 1%Z); rewrite (nth_indep _ 0%Z (one []) ltac:(rewrite map_length; exact La)), map_nth.
    unfold one; ring.
  - rewrite (nth_overflow rows) by exact La; destruct k; simpl; rewrite Rabs_R0; ring.
Qed.

Lemma entry_over_heads f hs u k : entry_of (over_heads f hs) u k = zsum hs (fun h => entry_of (f h) u k).
Proof.
  unfold entry_of; induction hs as [|h hs IH]; [destruct u, k; reflexivity|]; cbn [over_heads fold_right].
  rewrite (nth_join (join Z.add) []), nth_sum by (intros [|]; reflexivity); rewrite zsum_cons, <- IH; reflexivity.
Qed.

(** The absolute sum over some indices is at most that over all. *)
Lemma some_of_abs_sum (l : list nat) row : NoDup l -> sum l (fun n => Rabs (IZR (nth n row 0%Z))) <= IZR (abs_sum row).
Proof.
  intros N; apply Rle_trans with (sum_below (fold_right max 0%nat (map S l)) (fun n => Rabs (IZR (nth n row 0%Z)))).
  - apply sum_incl; [exact N| |intros; apply Rabs_pos]; intros x I; apply in_seq; split; [lia|].
    clear N; induction l as [|y l IH]; [destruct I|]; cbn [map fold_right]; destruct I as [->|I]; [lia|].
    specialize (IH I); lia.
  - generalize (fold_right max 0%nat (map S l)); clear; induction row as [|x row IH]; intros n.
    + rewrite sum_below_zero; [apply Rle_refl|]; intros i _; destruct i; apply Rabs_R0.
    + unfold abs_sum; rewrite zsum_cons, plus_IZR, abs_IZR; specialize (IH (Nat.pred n)); unfold abs_sum in IH.
      destruct n as [|n]; [|rewrite sum_below_S; cbn [nth]; simpl Nat.pred in IH; lra].
      change (sum_below 0 _) with 0; assert (P := Rabs_pos (IZR x)); change (sum_below (Nat.pred 0) _) with 0 in IH; lra.
Qed.

Lemma abs_sum_nonneg row : (0 <= abs_sum row)%Z.
Proof. unfold abs_sum; induction row as [|x row IH]; [discriminate|]; rewrite zsum_cons; lia. Qed.

Lemma abs_sums_below n rows : sum_below n (fun i => IZR (abs_sum (nth i rows []))) <= IZR (zsum rows abs_sum).
Proof.
  revert n; induction rows as [|row rows IH]; intros n.
  - rewrite sum_below_zero; [apply Rle_refl|]; intros i _; destruct i; reflexivity.
  - rewrite zsum_cons, plus_IZR; assert (P := IZR_le _ _ (abs_sum_nonneg row)); destruct n as [|n].
    + specialize (IH 0%nat); change (sum_below 0 _) with 0 in *; lra.
    + rewrite sum_below_S; cbn [nth]; specialize (IH n); lra.
Qed.

(** * Blocks *)

Lemma block_div n u i : (i < n)%nat -> ((u * n + i) / n = u /\ (u * n + i) mod n = i)%nat.
Proof.
  intros Hi; split; [rewrite Nat.add_comm, Nat.div_add, Nat.div_small; lia|].
  rewrite Nat.add_comm, Nat.mod_add, Nat.mod_small; lia.
Qed.

(** A sum in which only one block of n is nonzero. *)
Lemma sum_block g n u F : (u < g)%nat -> (forall i, (i / n)%nat <> u -> F i = 0) ->
  sum_below (g * n) F = sum_below n (fun i => F (u * n + i)%nat).
Proof.
  intros Hu Z; rewrite sum_below_blocks.
  apply (sum_below_single g u (fun w => sum_below n (fun i => F (w * n + i)%nat))); [exact Hu|]; intros w _ Nw.
  apply sum_below_zero; intros i Hi; apply Z; destruct (block_div n w i Hi) as [-> _]; exact Nw.
Qed.

Lemma support_app a b : support (a ++ b) = (support a + support b)%nat.
Proof. unfold support; rewrite filter_app, app_length; reflexivity. Qed.

Lemma support_flat_map {A} (l : list A) g n : (forall x, In x l -> (support (g x) <= n)%nat) ->
  (support (flat_map g l) <= length l * n)%nat.
Proof.
  induction l as [|x l IH]; intros E; [unfold support; simpl; lia|]; simpl flat_map; rewrite support_app; simpl length.
  specialize (IH (fun y I => E y (or_intror I))); specialize (E x (or_introl eq_refl)); lia.
Qed.

Lemma support_le_cons b l n : (support l <= n)%nat -> (support (b :: l) <= S n)%nat.
Proof. destruct (support_cons b l) as [S0 S1]; destruct (Req_dec b 0); intros; [rewrite S0|rewrite S1]; auto; lia. Qed.

Lemma support_map {A} (F : A -> R) l :
  support (map F l) = length (filter (fun x => if Req_EM_T (F x) 0 then false else true) l).
Proof.
  unfold support; induction l as [|x l IH]; [reflexivity|]; simpl; destruct (Req_EM_T (F x) 0); simpl; rewrite IH;
    reflexivity.
Qed.

(** Only one block of n is nonzero. *)
Lemma support_block g n u F : (0 < n)%nat -> (forall i, (i / n)%nat <> u -> F i = 0) ->
  (support (map F (seq 0 (g * n))) <= n)%nat.
Proof.
  intros Hn Z; rewrite support_map; set (l := filter _ _).
  assert (I : incl l (seq (u * n) n)).
  { intros i; unfold l; rewrite filter_In, !in_seq; intros [_ K]; destruct (Req_EM_T (F i) 0) as [|N]; [discriminate|].
    destruct (Nat.eq_dec (i / n) u) as [E|E]; [|apply Z in E; contradiction].
    assert (D := Nat.div_mod i n ltac:(lia)); assert (M := Nat.mod_upper_bound i n ltac:(lia)); nia. }
  apply NoDup_incl_length in I; [rewrite seq_length in I; exact I|apply NoDup_filter, seq_NoDup].
Qed.

(** * The layer *)

Lemma abs_number e z : Rabs (number_of e z) = number_of e (Z.abs z).
Proof. apply (eq_sym (value_abs (Dyadic z e))). Qed.

Lemma number_scaled e z : number_of e z = bpow radix2 e * IZR z.
Proof. unfold number_of, value; simpl; ring. Qed.

(** Kernel positions have different numbers. *)
Lemma taps_numbers c m sizes : comparable c m = true -> accepts c sizes ->
  NoDup (map (fun t => Z.to_nat (number (kernel_size c) t)) (kernel_taps c (units c))).
Proof.
  intros ok A; destruct (comparable_facts c m ok) as (_ & W & _); destruct (taps_shifts c sizes A) as [N _].
  destruct (kernel_at_units c sizes (proj1 A)) as [Et _]; rewrite Et in N; apply NoDup_map_inv in N.
  assert (R := fun t I => in_kernel_taps c W (units c) t (map_length _ _) I).
  revert R N; generalize (kernel_taps c (units c)); intros l R N; induction N as [|t l Nt N IH]; simpl; constructor.
  - intros I; apply in_map_iff in I; destruct I as (t' & E & I'); apply Nt; replace t with t'; [exact I'|].
    assert (Rt := R t (or_introl eq_refl)); assert (Rt' := R t' (or_intror I')).
    apply (number_injective (kernel_size c)); try assumption; apply Z2Nat.inj; try exact E; apply number_range; assumption.
  - apply IH; intros t' I; apply R; right; exact I.
Qed.

Section Layer.
Variables (c : convolution) (m : attention_layer).
Hypothesis ok : comparable c m = true.

Notation L := (with_heads (layer_of m) (kept m)).
Notation dh := (Z.to_nat (head_dim m)).
Notation g := (groups_n c).
Notation "'columns_of' k" := (columns L (fun _ => 0) k) (at level 10).

Lemma block_zero e rows cols x i a : (i / rows <> a / cols)%nat -> blocks_of e rows cols x i a = 0.
Proof. intros N; unfold blocks_of; rewrite (proj2 (Nat.eqb_neq _ _) N); reflexivity. Qed.

Variables (u k : nat).
Hypothesis Hu : (u < g)%nat.
Hypothesis Hk : (k < out_g c)%nat.
Notation j := (u * out_g c + k)%nat.

Let shape h : In h (kept m) -> length (h_val h) = g /\ length (h_out h) = g /\ length (nth u (h_val h) []) = in_g c /\
  length (nth u (h_out h) []) = dh.
Proof.
  intros Ih; destruct (comparable_facts c m ok) as (_ & _ & _ & _ & _ & _ & F); destruct (F h Ih) as (Sv & So & _).
  destruct (shaped_nth _ _ _ _ u Sv Hu) as (Lv & Lu & _), (shaped_nth _ _ _ _ u So Hu) as (Lo & Lu' & _); auto.
Qed.

(** The entry of W_out in the block that reaches the channel. *)
Lemma out_entry h a : (a < dh)%nat ->
  W_out (parameters L h) (u * dh + a) j = number_of (s_out (scale_of m)) (nth k (nth a (nth u (h_out h) []) []) 0%Z).
Proof.
  intros Ha; destruct (same_fields c m ok) as (_ & _ & Fo & _); cbn [parameters with_heads layer_of W_out]; rewrite Fo.
  unfold blocks_of; destruct (block_div dh u a Ha) as [-> ->], (block_div (out_g c) u k Hk) as [-> ->].
  rewrite Nat.eqb_refl; reflexivity.
Qed.

Lemma val_weight h a : In h (kept m) -> (a < dh)%nat ->
  weight (map (fun i => W_val (parameters L h) i (u * dh + a)%nat) (seq 0 (D_in L)))
  = bpow radix2 (s_val (scale_of m)) * IZR (nth a (column_sums (nth u (h_val h) [])) 0%Z).
Proof.
  intros Ih Ha; destruct (same_fields c m ok) as (Fg & Fi & _), (shape h Ih) as (_ & _ & Lv & _).
  rewrite (nth_column_sums (in_g c)) by lia; unfold weight; rewrite sum_map; cbn [D_in with_heads layer_of];
    rewrite Fg, Fi.
  cbn [parameters with_heads layer_of W_val]; rewrite Fi.
  assert (E := block_div dh u a Ha); fold (sum_below (g * in_g c) (fun i =>
    Rabs (blocks_of (s_val (scale_of m)) (in_g c) dh (h_val h) i (u * dh + a)))).
  rewrite (sum_block g (in_g c) u) by (exact Hu || (intros i N; rewrite block_zero, Rabs_R0; [reflexivity|];
    destruct E as [-> _]; exact N)).
  unfold sum_below; rewrite <- sum_scal; apply sum_ext; intros i Ii; apply in_seq in Ii; unfold blocks_of.
  destruct E as [-> ->], (block_div (in_g c) u i ltac:(lia)) as [-> ->]; rewrite Nat.eqb_refl.
  rewrite number_scaled, Rabs_mult, (Rabs_pos_eq (bpow _ _)) by apply bpow_ge_0; reflexivity.
Qed.

(** A sum over the columns of the layer, in one block of each head. *)
Lemma sum_columns_block (F : column R -> R) : (forall cl, out_weight cl = 0 -> F cl = 0) ->
  sum (columns_of j) F = sum (kept m) (fun h => sum_below dh (fun a => F (Column (W_out (parameters L h) (u * dh + a) j) 0
    (map (fun i => W_val (parameters L h) i (u * dh + a)%nat) (seq 0 (D_in L)))))).
Proof.
  intros Z; unfold columns; rewrite sum_flat_map; apply sum_ext; intros h _; rewrite sum_map.
  destruct (same_fields c m ok) as (Fg & _ & Fo & _); cbn [D_h with_heads layer_of]; rewrite Fg.
  apply (sum_block g dh u (fun i => F (Column (W_out (parameters L h) i j) 0 _)) Hu).
  intros i N; apply Z; cbn [out_weight parameters with_heads layer_of W_out]; apply block_zero; rewrite Fo.
  destruct (block_div (out_g c) u k Hk) as [-> _]; exact N.
Qed.

Theorem through_value : sum (columns_of j) (fun cl => Rabs (out_weight cl) * weight (in_weights cl))
  = number_of (s_val (scale_of m) + s_out (scale_of m)) (entry_of (over_heads head_through (kept m)) u k).
Proof.
  rewrite sum_columns_block by (intros cl ->; rewrite Rabs_R0; ring).
  rewrite entry_over_heads, number_scaled, IZR_zsum, <- sum_scal; apply sum_ext; intros h Ih.
  destruct (shape h Ih) as (Lv & Lo & _ & Lu); unfold entry_of, head_through.
  set (one := fun b : list (list Z) * list (list Z) => abs_product (column_sums (fst b)) (snd b)).
  rewrite (nth_indep _ [] (one ([], []))) by (rewrite map_length, combine_length; lia).
  rewrite map_nth, combine_nth by lia; unfold one; cbn [fst snd]; rewrite (nth_abs_product dh) by lia.
  unfold sum_below; rewrite <- sum_scal; apply sum_ext; intros a Ia; apply in_seq in Ia; cbn [out_weight in_weights].
  rewrite out_entry, val_weight by (assumption || lia).
  rewrite number_scaled, Rabs_mult, (Rabs_pos_eq (bpow _ _)), bpow_plus by apply bpow_ge_0; ring.
Qed.

Theorem outward_value : sum (columns_of j) (fun cl => Rabs (out_weight cl))
  = number_of (s_out (scale_of m)) (entry_of (over_heads head_outward (kept m)) u k).
Proof.
  rewrite sum_columns_block by (intros cl ->; apply Rabs_R0).
  rewrite entry_over_heads, number_scaled, IZR_zsum, <- sum_scal; apply sum_ext; intros h Ih.
  destruct (shape h Ih) as (_ & Lo & _ & Lu); unfold entry_of, head_outward.
  rewrite (nth_indep _ [] (column_sums [])) by (rewrite map_length; lia); rewrite map_nth, (nth_column_sums dh) by lia.
  unfold sum_below; rewrite <- sum_scal; apply sum_ext; intros a Ia; apply in_seq in Ia; cbn [out_weight].
  rewrite out_entry, number_scaled, Rabs_mult, (Rabs_pos_eq (bpow _ _)) by (lia || apply bpow_ge_0); reflexivity.
Qed.

(** Entry by entry, the kernel is the tensor's; every kernel position is counted once. *)
Theorem kernel_value sizes : accepts c sizes -> weight (conv_weights (D_in L) (kernel_shifts c) (kernel_at c) j)
  <= number_of (c_weight_scale c) (entry_of (kernel_sums (transposed c) (c_weight c)) u k).
Proof.
  intros A; destruct (same_fields c m ok) as (Fg & Fi & _), (comparable_facts c m ok) as (_ & W & S & _).
  destruct (shaped4_nth _ _ _ _ _ u S Hu) as [Lw _]; rewrite number_scaled.
  set (row := fun i => nth (if transposed c then k else i) (nth (if transposed c then i else k)
    (nth u (c_weight c) []) []) []).
  assert (Ej := block_div (out_g c) u k Hk).
  assert (E : forall t i, (i < in_g c)%nat -> Rabs (tap_matrix c t (u * in_g c + i) j) =
    bpow radix2 (c_weight_scale c) * Rabs (IZR (nth (Z.to_nat (number (kernel_size c) t)) (row i) 0%Z))).
  { intros t i Hi; assert (Ei := block_div (in_g c) u i Hi).
    replace (tap_matrix c t _ _) with (bpow radix2 (c_weight_scale c) *
      IZR (nth (Z.to_nat (number (kernel_size c) t)) (row i) 0%Z));
      [rewrite Rabs_mult, (Rabs_pos_eq (bpow _ _)) by apply bpow_ge_0; reflexivity|].
    unfold tap_matrix, row; destruct (transposed c) eqn:Tr; unfold transposed_block_diagonal, block_diagonal, weight_of,
      entry; rewrite Tr; destruct Ei as [Ei1 Ei2], Ej as [Ej1 Ej2]; rewrite ?Ei1, ?Ej1, ?Ei2, ?Ej2, Nat.eqb_refl,
      ?Ei1, ?Ei2, ?Ej1, ?Ej2, number_scaled; reflexivity. }
  unfold weight, conv_weights, kernel_shifts; rewrite sum_flat_map, sum_map.
  cbn [D_in with_heads layer_of]; rewrite Fg, Fi.
  rewrite (sum_ext _ _ (fun t => sum_below (in_g c) (fun i => bpow radix2 (c_weight_scale c) *
    Rabs (IZR (nth (Z.to_nat (number (kernel_size c) t)) (row i) 0%Z))))).
  - unfold sum_below; rewrite sum_swap, (sum_ext _ _ (fun i => bpow radix2 (c_weight_scale c) *
      sum (map (fun t => Z.to_nat (number (kernel_size c) t)) (kernel_taps c (units c)))
        (fun n => Rabs (IZR (nth n (row i) 0%Z))))) by (intros; rewrite sum_map, sum_scal; reflexivity).
    rewrite sum_scal; apply Rmult_le_compat_l; [apply bpow_ge_0|].
    apply Rle_trans with (sum_below (in_g c) (fun i => IZR (abs_sum (row i)))).
    + apply sum_le; intros i _; apply some_of_abs_sum, (taps_numbers c m sizes ok A).
    + unfold entry_of, kernel_sums, row; destruct (transposed c).
      * set (f := fun b => column_sums (map (map abs_sum) b)).
        rewrite (nth_indep _ [] (f [])) by (rewrite map_length; lia); rewrite map_nth; unfold f.
        destruct (shaped_nth _ _ _ _ 0%nat (proj2 (shaped4_nth _ _ _ _ _ u S Hu)) (proj1 (proj2 (channels_g c W)))) as
          (Lb & _); rewrite (nth_column_sums (in_g c)) by (rewrite map_length; lia).
        apply sum_le; intros i _; set (b := nth u (c_weight c) []).
        rewrite (map_nth (map abs_sum) b [] i : nth i (map (map abs_sum) b) [] = _).
        rewrite (map_nth abs_sum (nth i b []) [] k : nth k (map abs_sum (nth i b [])) 0%Z = _); apply Rle_abs.
      * set (f := fun rows => zsum rows abs_sum); set (b := nth u (c_weight c) []).
        rewrite (map_nth (map f) (c_weight c) [] u : nth u (map (map f) (c_weight c)) [] = _).
        fold b; rewrite (map_nth f b [] k : nth k (map f b) 0%Z = _); apply abs_sums_below.
  - intros t It; rewrite sum_map, (kernel_at_shift c sizes A) by exact It.
    fold (sum_below (groups_n c * in_g c) (fun i => Rabs (tap_matrix c t i j))).
    rewrite (sum_block g (in_g c) u); [apply sum_below_ext; intros i Hi; apply E, Hi|exact Hu|].
    intros i N; unfold tap_matrix; destruct (transposed c); unfold transposed_block_diagonal, block_diagonal;
      destruct Ej as [-> _]; rewrite (proj2 (Nat.eqb_neq _ _) N); apply Rabs_R0.
Qed.

Theorem support_columns cl : In cl (columns_of j) -> (support (in_weights cl) <= in_g c)%nat.
Proof.
  unfold columns; rewrite in_flat_map; intros (h & _ & I); apply in_map_iff in I; destruct I as (i & <- & _).
  destruct (same_fields c m ok) as (Fg & Fi & _), (comparable_facts c m ok) as (_ & W & _).
  cbn [in_weights D_in with_heads layer_of parameters W_val]; rewrite Fg, Fi.
  apply (support_block g (in_g c) (i / dh)); [apply (channels_g c W)|]; intros a N; apply block_zero, N.
Qed.

Theorem support_outputs b : (support (b :: map out_weight (columns_of j)) <= S (length (kept m) * dh))%nat.
Proof.
  apply support_le_cons; unfold columns; rewrite map_flat_map; apply support_flat_map; intros h _; rewrite map_map.
  destruct (same_fields c m ok) as (Fg & _ & Fo & _), (comparable_facts c m ok) as (_ & _ & _ & Hd & _).
  cbn [out_weight D_h with_heads layer_of parameters W_out]; rewrite Fg, Fo.
  apply (support_block g dh u); [exact Hd|]; intros i N; apply block_zero.
  destruct (block_div (out_g c) u k Hk) as [-> _]; exact N.
Qed.

Theorem support_kernel b : (support (b :: conv_weights (D_in L) (kernel_shifts c) (kernel_at c) j)
  <= S (length (kernel_shifts c) * in_g c))%nat.
Proof.
  destruct (same_fields c m ok) as (Fg & Fi & _), (comparable_facts c m ok) as (_ & W & _).
  apply support_le_cons, support_flat_map; intros τ _; cbn [D_in with_heads layer_of]; rewrite Fg, Fi.
  apply (support_block g (in_g c) u); [apply (channels_g c W)|]; intros i N; unfold kernel_at.
  destruct (find _ _) as [t|]; [|reflexivity]; unfold tap_matrix; destruct (transposed c);
    unfold transposed_block_diagonal, block_diagonal; destruct (block_div (out_g c) u k Hk) as [-> _];
    rewrite (proj2 (Nat.eqb_neq _ _) N); reflexivity.
Qed.

Theorem support_products h i : (length (nonzero (weight_terms L j h i)) <= dh)%nat.
Proof.
  eapply Nat.le_trans; [apply nonzero_support|]; destruct (same_fields c m ok) as (Fg & Fi & _).
  destruct (comparable_facts c m ok) as (_ & _ & _ & Hd & _).
  cbn [D_h with_heads layer_of parameters W_val]; rewrite Fg, Fi.
  apply (support_block g dh (i / in_g c)); [exact Hd|]; intros a N; apply block_zero, not_eq_sym, N.
Qed.

Theorem support_entries : (support (flat_map (fun h => map (fun i => magnitude (weight_terms L j h i)) (seq 0 (D_in L)))
  (heads L)) <= length (kept m) * in_g c)%nat.
Proof.
  destruct (same_fields c m ok) as (Fg & Fi & Fo & _), (comparable_facts c m ok) as (_ & W & _).
  apply support_flat_map; intros h _; cbn [D_in with_heads layer_of]; rewrite Fg, Fi.
  apply (support_block g (in_g c) u); [apply (channels_g c W)|]; intros i N.
  unfold magnitude, weight_terms; rewrite sum_map; apply sum_zero; intros a _.
  cbn [fst snd with_heads layer_of parameters W_val W_out]; rewrite Fi, Fo.
  destruct (Nat.eq_dec (a / dh) u) as [E|E].
  - rewrite (block_zero _ _ dh) by (rewrite E; exact N); rewrite Rmult_0_l; apply Rabs_R0.
  - rewrite (block_zero _ dh (out_g c)) by (destruct (block_div (out_g c) u k Hk) as [-> _]; exact E).
    rewrite Rmult_0_r; apply Rabs_R0.
Qed.

End Layer.
