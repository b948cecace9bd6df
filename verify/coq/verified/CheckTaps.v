(** The checker's taps: what the heads carry, minus the kernel, as one sparse vector of integers.

    The index of input channel i, output channel c of the group, kernel position t is (c·D_in + i)·T + t.
    Statements:
      value_output_blocks  the matrix that a head carries, from the integers of its blocks
      coefs_head, coefs_kernel  what the vectors of a head and of the kernel hold at that index *)

From Coq Require Import Reals ZArith List Bool Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Lemma2 Layers Geometry Transposed RoundingDyadic CheckSparse CheckFields.
Import ListNotations.
Open Scope Z_scope.

(** * What is computed *)

Section Index.
Variables D T : Z.

Definition index (c i t : Z) : Z := (c * D + i) * T + t.

(** The entries of W_val^h W_out^h at kernel position t, times [factor], a vector for each input channel. *)
Definition head_vectors (in_group factor t : Z) (vals outs : list (list (list Z))) : list sparse :=
  flat_map (fun block =>
      let out := map sparse_of (snd (snd block)) in
      map (fun row => map (fun e => (index (fst e) (fst block * in_group + fst row) t, factor * snd e))
                        (row_product (snd row) out))
        (enum 0 (fst (snd block))))
    (enum 0 (List.combine vals outs)).

(** The kernel, times [factor]; [flip]: the first axis counts input channels. *)
Definition kernel_vectors (flip : bool) (in_group factor : Z) (w : list (list (list (list Z)))) : list sparse :=
  flat_map (fun block =>
      map (fun first => flat_map (fun second =>
          map (fun e =>
              (if flip then index (fst second) (fst block * in_group + fst first) (fst e)
               else index (fst first) (fst block * in_group + fst second) (fst e), factor * snd e))
            (sparse_of (snd second)))
        (enum 0 (snd first))) (enum 0 (snd block)))
    (enum 0 w).

End Index.

(** Blocks of the given sizes. *)
Definition shaped (g rows columns : nat) (m : list (list (list Z))) : bool :=
  Nat.eqb (length m) g && forallb (fun b =>
    Nat.eqb (length b) rows && forallb (fun row => Nat.eqb (length row) columns) b) m.
Definition shaped4 (g a b t : nat) (w : list (list (list (list Z)))) : bool :=
  Nat.eqb (length w) g && forallb (shaped a b t) w.

(** * The index *)

Lemma index_injective D T c i t c' i' t' : 0 <= i < D -> 0 <= i' < D -> 0 <= t < T -> 0 <= t' < T ->
  index D T c i t = index D T c' i' t' -> c = c' /\ i = i' /\ t = t'.
Proof.
  unfold index; intros Hi Hi' Ht Ht' E.
  assert (E1 : c * D + i = c' * D + i').
  { transitivity (((c * D + i) * T + t) / T); [apply (Z.div_unique _ T _ t); [left; lia|ring]|].
    rewrite E; symmetry; apply (Z.div_unique _ T _ t'); [left; lia|ring]. }
  assert (c = c').
  { transitivity ((c * D + i) / D); [apply (Z.div_unique _ D _ i); [left; lia|ring]|].
    rewrite E1; symmetry; apply (Z.div_unique _ D _ i'); [left; lia|ring]. }
  subst c'; lia.
Qed.

(** u·n + i counts the channels of all groups. *)
Lemma channel_injective n u i u' i' : 0 <= i < n -> 0 <= i' < n -> u * n + i = u' * n + i' -> u = u' /\ i = i'.
Proof.
  intros H H' E; assert (u = u'); [|lia].
  transitivity ((u * n + i) / n); [apply (Z.div_unique _ n _ i); [left; lia|ring]|].
  rewrite E; symmetry; apply (Z.div_unique _ n _ i'); [left; lia|ring].
Qed.

Lemma channel_range n g u i : 0 <= i < n -> 0 <= u < g -> 0 <= u * n + i < g * n.
Proof. intros; split; [nia|]; assert (u * n + i < (u + 1) * n) by lia; nia. Qed.

Lemma shaped_nth g rows columns m u : shaped g rows columns m = true -> (u < g)%nat ->
  length m = g /\ length (nth u m []) = rows /\
  forall i, (i < rows)%nat -> length (nth i (nth u m []) []) = columns.
Proof.
  unfold shaped; rewrite andb_true_iff, Nat.eqb_eq, forallb_forall; intros [E F] Hu.
  assert (I : In (nth u m []) m) by (apply nth_In; lia).
  specialize (F _ I); rewrite andb_true_iff, Nat.eqb_eq, forallb_forall in F; destruct F as [F1 F2].
  repeat split; try assumption; intros i Hi; apply Nat.eqb_eq, F2, nth_In; lia.
Qed.

Lemma shaped4_nth g a b t w u : shaped4 g a b t w = true -> (u < g)%nat ->
  length w = g /\ shaped a b t (nth u w []) = true.
Proof.
  unfold shaped4; rewrite andb_true_iff, Nat.eqb_eq, forallb_forall; intros [E F] Hu; split; [exact E|].
  apply F, nth_In; lia.
Qed.

(** * What the vectors hold *)

Section Vectors.
Variables (g n T : nat).
Notation D := (Z.of_nat (g * n)).
Notation ix := (index D (Z.of_nat T)).

Lemma coef_keyed (key : Z -> Z) factor v c : (forall l x, In (l, x) v -> key l = key c -> l = c) ->
  coef (map (fun e => (key (fst e), factor * snd e)) v) (key c) = factor * coef v c.
Proof.
  intros J; rewrite <- coef_scale, <- (coef_rekey key (scale factor v) c).
  - unfold rekey, scale; rewrite map_map; reflexivity.
  - intros l x I; unfold scale in I; apply in_map_iff in I; destruct I as ([l' x'] & E & I); injection E; intros _ <-.
    apply (J l' x'), I.
Qed.

Theorem coefs_head factor t vals outs u i c t' : length vals = g -> length outs = g ->
  (forall u, (u < g)%nat -> length (nth u vals []) = n) ->
  (u < g)%nat -> (i < n)%nat -> 0 <= t < Z.of_nat T -> 0 <= t' < Z.of_nat T ->
  coefs (head_vectors D (Z.of_nat T) (Z.of_nat n) factor t vals outs) (ix c (Z.of_nat (u * n + i)) t') =
  if t =? t' then factor * coef (row_product (nth i (nth u vals []) []) (map sparse_of (nth u outs []))) c else 0.
Proof.
  intros Lv Lo Ln Hu Hi Ht Ht'; unfold head_vectors; rewrite coefs_flat_map.
  assert (Lc : length (List.combine vals outs) = g) by (rewrite combine_length; lia).
  assert (K : forall b : Z * (list (list Z) * list (list Z)), In b (enum 0 (List.combine vals outs)) ->
    0 <= fst b < Z.of_nat g /\ length (fst (snd b)) = n).
  { intros [m [x y]] I; apply in_enum in I; cbn [fst snd]; rewrite Lc in I; destruct I as [B I].
    split; [lia|]; apply in_combine_l in I; destruct (In_nth _ _ [] I) as (k & Hk & <-); apply Ln; lia. }
  rewrite (zsum_enum _ _ 0 u ([], [])); [|lia|].
  - cbn [fst snd]; rewrite combine_nth by lia; cbn [fst snd]; rewrite coefs_map.
    rewrite (zsum_enum _ _ 0 i []); [|rewrite Ln; lia|].
    + cbn [fst snd]; replace ((0 + Z.of_nat u) * Z.of_nat n + (0 + Z.of_nat i)) with (Z.of_nat (u * n + i)) by lia.
      assert (R := channel_range (Z.of_nat n) (Z.of_nat g) (Z.of_nat u) (Z.of_nat i)).
      destruct (Z.eqb_spec t t') as [->|N].
      * apply (coef_keyed (fun c => ix c (Z.of_nat (u * n + i)) t')); intros l x _ E.
        apply index_injective in E; [tauto|lia|lia|lia|lia].
      * apply coef_absent; intros l x I; apply in_map_iff in I; destruct I as ([l' x'] & E & _); injection E as <- _.
        intros E; apply index_injective in E; [tauto|lia|lia|lia|lia].
    + intros m x I Dm; apply coef_absent; intros l y J; apply in_map_iff in J; destruct J as ([l' y'] & E & _).
      cbn [fst snd] in E; injection E as <- _; apply in_enum in I; rewrite Ln in I by exact Hu.
      assert (R := channel_range (Z.of_nat n) (Z.of_nat g) (Z.of_nat u) (Z.of_nat i)).
      assert (R' := channel_range (Z.of_nat n) (Z.of_nat g) (Z.of_nat u) m).
      intros E; apply index_injective in E; [|lia|lia|lia|lia]; lia.
  - intros m x I Dm; specialize (K _ I); cbn [fst snd] in K; apply coefs_absent; intros v l y Iv Iy.
    apply in_map_iff in Iv; destruct Iv as ([r row] & <- & Ir); cbn [fst snd] in Iy.
    apply in_map_iff in Iy; destruct Iy as ([l' y'] & E & _); injection E as <- _; apply in_enum in Ir.
    cbn [fst snd] in Ir; assert (R := channel_range (Z.of_nat n) (Z.of_nat g) (Z.of_nat u) (Z.of_nat i)).
    assert (R' := channel_range (Z.of_nat n) (Z.of_nat g) m r); cbn [fst snd].
    intros E; apply index_injective in E; [|lia|lia|lia|lia]; destruct E as (_ & E & _).
    rewrite Nat2Z.inj_add, Nat2Z.inj_mul in E; apply channel_injective in E; lia.
Qed.

(** The number at group u, places a and b, kernel position t. *)
Theorem coefs_kernel (flip : bool) factor w out u i c t : 
  shaped4 g (if flip then n else out) (if flip then out else n) T w = true ->
  (u < g)%nat -> (i < n)%nat -> (c < out)%nat -> (t < T)%nat ->
  coefs (kernel_vectors D (Z.of_nat T) flip (Z.of_nat n) factor w) (ix (Z.of_nat c) (Z.of_nat (u * n + i)) (Z.of_nat
    t)) =
  factor * nth t (nth (if flip then c else i) (nth (if flip then i else c) (nth u w []) []) []) 0.
Proof.
  intros S Hu Hi Hc Ht; unfold kernel_vectors; rewrite coefs_flat_map.
  destruct (shaped4_nth _ _ _ _ _ u S Hu) as [Lw Su].
  set (a := if flip then i else c); set (b := if flip then c else i).
  set (na := if flip then n else out) in *; set (nb := if flip then out else n) in *.
  set (key := fun u a b t => if flip then ix b (u * Z.of_nat n + a) t else ix a (u * Z.of_nat n + b) t).
  assert (Ha : (a < na)%nat) by (unfold a, na; destruct flip; assumption).
  assert (Hb : (b < nb)%nat) by (unfold b, nb; destruct flip; assumption).
  assert (Ek : ix (Z.of_nat c) (Z.of_nat (u * n + i)) (Z.of_nat t) = key (Z.of_nat u) (Z.of_nat a) (Z.of_nat b)
    (Z.of_nat t)).
  { unfold key, a, b; destruct flip; f_equal; lia. }
  assert (J : forall u' a' b' t', 0 <= u' < Z.of_nat g -> 0 <= a' < Z.of_nat na -> 0 <= b' < Z.of_nat nb ->
    0 <= t' < Z.of_nat T -> key u' a' b' t' = key (Z.of_nat u) (Z.of_nat a) (Z.of_nat b) (Z.of_nat t) ->
    u' = Z.of_nat u /\ a' = Z.of_nat a /\ b' = Z.of_nat b /\ t' = Z.of_nat t).
  { intros u' a' b' t' U A B T' E; unfold key in E.
    assert (R := channel_range (Z.of_nat n) (Z.of_nat g)).
    destruct flip; unfold a, b, na, nb in *; apply index_injective in E; try lia;
      try (rewrite Nat2Z.inj_mul; apply R; lia); destruct E as (E1 & E2 & E3); apply channel_injective in E2; lia. }
  rewrite Ek; clear Ek; fold (key (Z.of_nat u) (Z.of_nat a) (Z.of_nat b) (Z.of_nat t)).
  destruct (shaped_nth _ _ _ _ a Su Ha) as (La & Lb & Lt); specialize (Lt b Hb).
  assert (Bw : forall u' f, In (u', f) (enum 0 w) -> 0 <= u' < Z.of_nat g /\ shaped na nb T f = true).
  { intros u' f I; apply in_enum in I; destruct I as [B I]; split; [lia|].
    unfold shaped4 in S; apply andb_prop in S; destruct S as [_ S]; rewrite forallb_forall in S; apply S, I. }
  assert (Bf : forall f, shaped na nb T f = true -> forall a' s, In (a', s) (enum 0 f) -> 0 <= a' < Z.of_nat na /\
    length s = nb /\ forall b' ts, In (b', ts) (enum 0 s) -> 0 <= b' < Z.of_nat nb /\ length ts = T).
  { intros f Sf a' s I; unfold shaped in Sf; apply andb_prop in Sf; destruct Sf as [E1 E2]; apply Nat.eqb_eq in E1.
    rewrite forallb_forall in E2; apply in_enum in I; destruct I as [B I]; specialize (E2 _ I).
    apply andb_prop in E2; destruct E2 as [E2 E3]; apply Nat.eqb_eq in E2; rewrite forallb_forall in E3.
    split; [lia|split; [exact E2|]]; intros b' ts I'; apply in_enum in I'; destruct I' as [B' I'].
    split; [lia|]; apply Nat.eqb_eq, E3, I'. }
  assert (Bt : forall ts t' x, In (t', x) (sparse_of ts) -> 0 <= t' < Z.of_nat (length ts)).
  { intros ts t' x I; unfold sparse_of in I; apply filter_In in I; destruct I as [I _]; apply in_enum in I; lia. }
  rewrite (zsum_enum _ _ 0 u []); [|lia|].
  2:{ intros u' f I Du; destruct (Bw _ _ I) as [U Sf]; apply coefs_absent; intros v l y Iv Iy; cbn [fst snd] in *.
      apply in_map_iff in Iv; destruct Iv as ([a' s] & <- & Ia); destruct (Bf _ Sf _ _ Ia) as (A & _ & Bs).
      cbn [fst snd] in Iy; apply in_flat_map in Iy; destruct Iy as ([b' ts] & Ib & Iy); destruct (Bs _ _ Ib) as [B Et].
      apply in_map_iff in Iy; destruct Iy as ([t' x] & E & It); apply Bt in It; cbn [fst snd] in E, It.
      rewrite Et in It; injection E as <- _; intros E; apply (J u' a' b' t') in E; [lia|lia|lia|lia|lia]. }
  cbn [fst snd]; rewrite coefs_map, (zsum_enum _ _ 0 a []); [|lia|].
  2:{ intros a' s Ia Da; destruct (Bf _ Su _ _ Ia) as (A & _ & Bs); apply coef_absent; intros l y Iy;
    cbn [fst snd] in *.
      apply in_flat_map in Iy; destruct Iy as ([b' ts] & Ib & Iy); destruct (Bs _ _ Ib) as [B Et].
      apply in_map_iff in Iy; destruct Iy as ([t' x] & E & It); apply Bt in It; cbn [fst snd] in E, It.
      rewrite Et in It; injection E as <- _; intros E; apply (J (0 + Z.of_nat u) a' b' t') in E; lia. }
  assert (Ia : In (0 + Z.of_nat a, nth a (nth u w []) []) (enum 0 (nth u w []))).
  { clear -Ha La; revert La Ha; generalize (nth u w []), na, a, 0; intros l; induction l as [|x l IH]; intros m k z;
      simpl; [lia|]; intros <- Hk; destruct k as [|k]; [left; f_equal; lia|right].
    replace (z + Z.of_nat (S k)) with (z + 1 + Z.of_nat k) by lia; apply (IH (length l)); lia. }
  destruct (Bf _ Su _ _ Ia) as (_ & Ls & Bs).
  cbn [fst snd]; rewrite coef_flat_map, (zsum_enum _ _ 0 b []); [|lia|].
  2:{ intros b' ts Ib Db; destruct (Bs _ _ Ib) as [B Et]; apply coef_absent; intros l y Iy; cbn [fst snd] in *.
      apply in_map_iff in Iy; destruct Iy as ([t' x] & E & It); apply Bt in It; cbn [fst snd] in E, It.
      rewrite Et in It; injection E as <- _; intros E; apply (J (0 + Z.of_nat u) (0 + Z.of_nat a) b' t') in E; lia. }
  cbn [fst snd]; rewrite <- coef_sparse_of.
  apply (coef_keyed (fun t => key (0 + Z.of_nat u) (0 + Z.of_nat a) (0 + Z.of_nat b) t)).
  intros t' x It E; apply Bt in It; rewrite Lt in It;
    apply (J (0 + Z.of_nat u) (0 + Z.of_nat a) (0 + Z.of_nat b)) in E; lia.
Qed.

End Vectors.

(** * The matrix that a head carries *)

Open Scope R_scope.

Lemma number_of_times e e' x y : number_of e x * number_of e' y = number_of (e + e') (x * y).
Proof. unfold number_of, value; simpl; rewrite mult_IZR, bpow_plus; ring. Qed.

Theorem value_output_blocks (m : attention_layer) h i j : let g := groups_n m in let dh := Z.to_nat (head_dim m) in
  shaped g (in_g m) dh (h_val h) = true -> (0 < dh)%nat -> (i < g * in_g m)%nat -> (j < g * out_g m)%nat ->
  value_output (layer_of m) h i j =
  if Nat.eqb (i / in_g m) (j / out_g m)
  then number_of (s_val (scale_of m) + s_out (scale_of m))
         (coef (row_product (nth (i mod in_g m) (nth (j / out_g m) (h_val h) []) [])
                  (map sparse_of (nth (j / out_g m) (h_out h) []))) (Z.of_nat (j mod out_g m)))
  else 0.
Proof.
  intros g dh S Hd Hi Hj; unfold value_output; cbn [D_h layer_of parameters W_val W_out]; fold g dh.
  assert (Ho : (out_g m <> 0)%nat) by (intros E; rewrite E in Hj; lia).
  assert (Hin : (in_g m <> 0)%nat) by (intros E; rewrite E in Hi; lia).
  assert (Hu : (j / out_g m < g)%nat) by (apply Nat.div_lt_upper_bound; lia).
  change (blocks_of (s_out (scale_of m)) dh (out_g m) (h_out h)) with
    (block_diagonal dh (out_g m) (fun c a (_ : position) => number_of (s_out (scale_of m))
      (nth (c mod out_g m) (nth a (nth (c / out_g m) (h_out h) []) []) 0%Z)) []).
  rewrite row_times_block_diagonal by assumption; unfold blocks_of.
  destruct (shaped_nth _ _ _ _ (j / out_g m)%nat S Hu) as (_ & _ & Lr).
  assert (Hm : (i mod in_g m < in_g m)%nat) by (apply Nat.mod_upper_bound; exact Hin).
  assert (Db : forall a, (a < dh)%nat -> ((j / out_g m * dh + a) / dh = j / out_g m /\ (j / out_g m * dh + a) mod dh =
    a)%nat).
  { intros a Ha; rewrite Nat.add_comm, Nat.div_add, Nat.mod_add, Nat.div_small, Nat.mod_small; lia. }
  destruct (Nat.eqb_spec (i / in_g m) (j / out_g m)) as [Eu|Nu].
  - unfold number_of at 3, value; simpl mantissa; simpl exponent; rewrite coef_row_product, (Lr _ Hm).
    unfold sum_below; rewrite <- sum_scal_r; apply sum_ext; intros a Ia; apply in_seq in Ia.
    destruct (Db a) as [-> ->]; [lia|]; rewrite Eu, Nat.eqb_refl, number_of_times; unfold number_of, value; simpl.
    rewrite mult_IZR; do 3 f_equal.
    change (@nil (Z * Z)) with (sparse_of []); rewrite map_nth, coef_sparse_of; reflexivity.
  - apply sum_below_zero; intros a Ha; destruct (Db a Ha) as [-> _]; rewrite (proj2 (Nat.eqb_neq _ _) Nu); ring.
Qed.
