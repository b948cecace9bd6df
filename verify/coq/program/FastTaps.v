(** The check of taps that the program runs: heads and kernel are compared row by row, without the sorted sum of all
    their vectors, [difference].

    Statements:
      same_taps_zero      if rows agree, every number of [difference] is 0; if they do not, [difference] is computed
      check_same_fast_is  so [check_same_fast] is [check_same] *)

From Coq Require Import ZArith List Bool Lia Sorting.Sorted.
From Attention Require Import Definitions Lemma2 RoundingDyadic CheckSparse CheckFields CheckTaps CheckHeads CheckSame.
Import ListNotations.
Open Scope Z_scope.

(** * What is computed *)

(** A row on top of columns, and the n columns of a list of rows. *)
Fixpoint on_top {A : Type} (d : A) (row : list A) (cols : list (list A)) : list (list A) :=
  match cols, row with
  | [], _ => []
  | col :: cols', [] => (d :: col) :: on_top d [] cols'
  | col :: cols', x :: row' => (x :: col) :: on_top d row' cols'
  end.
Definition columns {A : Type} (d : A) (n : nat) (rows : list (list A)) : list (list A) :=
  fold_right (on_top d) (repeat [] n) rows.

(** f·(the number of [v] at k + i) = g·(the i-th number of [l]), and [v] holds no others. *)
Fixpoint agrees (f g k : Z) (v : sparse) (l : list Z) : bool :=
  match l with
  | [] => match v with [] => true | _ => false end
  | y :: l' =>
      match v with
      | (j, x) :: v' => if j =? k then (f * x =? g * y) && agrees f g (k + 1) v' l'
                        else (g * y =? 0) && agrees f g (k + 1) v l'
      | [] => (g * y =? 0) && agrees f g (k + 1) v l'
      end
  end.

(** The sum of the vectors at position t. *)
Fixpoint sum_at (t : Z) (vs : list (Z * sparse)) : sparse :=
  match vs with [] => [] | (s, v) :: vs' => if s =? t then plus v (sum_at t vs') else sum_at t vs' end.

(** One block: [ts], [vals] and [outs] of every head, and the kernel's block; n input channels, T kernel positions. *)
Definition block_agrees (f g : Z) (n T : nat) (flip : bool) (ts : list Z) (vals outs : list (list (list Z)))
    (w : list (list (list Z))) : bool :=
  let outs := map (map sparse_of) outs in
  forallb (fun inputs =>
      let products := map (fun p => row_product (fst p) (snd p)) (List.combine (fst inputs) outs) in
      let at_taps := List.combine ts products in
      forallb (fun tap => agrees f g 0 (sum_at (fst tap) at_taps) (snd tap)) (enum 0 (columns 0 T (snd inputs))))
    (List.combine (columns [] n vals) (if flip then w else columns [] n w)).

(** The number of a head's kernel position. *)
Definition position_read (c : convolution) (m : attention_layer) (h : raw_head) : Z :=
  match tap_read m h with Some j => number (kernel_size c) j | None => -1 end.

Definition same_taps (c : convolution) (m : attention_layer) : bool :=
  let f := 2 ^ (head_scale m - common_scale c m) in
  let g := 2 ^ (c_weight_scale c - common_scale c m) in
  let heads := kept m in
  let ts := map (position_read c m) heads in
  (Z.of_nat (length heads + 1) * Z.of_nat (groups_n c) * Z.of_nat (in_g c + out_g c) <=? 2 ^ 64) &&
  forallb (fun block => block_agrees f g (in_g c) (positions_of_kernel c) (transposed c) ts
      (fst (fst block)) (snd (fst block)) (snd block))
    (List.combine (List.combine (columns [] (groups_n c) (map h_val heads)) (columns [] (groups_n c) (map h_out heads)))
      (c_weight c)).

Definition check_same_fast (c : convolution) (m : attention_layer) : bool :=
  comparable c m && (same_taps c m || forallb (fun e => snd e =? 0) (difference c m)) &&
  forallb z_is_zero (bias_differences c m).

(** * Columns and rows *)

Lemma length_columns {A} (d : A) n rows : length (columns d n rows) = n.
Proof.
  assert (L : forall row cols, length (on_top d row cols) = length cols).
  { intros row cols; revert row; induction cols as [|col cols IH]; intros [|x row]; simpl; congruence. }
  induction rows as [|row rows IH]; [apply repeat_length|simpl; rewrite L; exact IH].
Qed.

Lemma nth_columns {A} (d : A) n rows i : (i < n)%nat -> nth i (columns d n rows) [] = map (fun row => nth i row d) rows.
Proof.
  intros Hi; induction rows as [|row rows IH]; simpl.
  - clear; revert i; induction n as [|n IH]; intros [|i]; simpl; auto.
  - rewrite <- IH; assert (Hc : (i < length (columns d n rows))%nat) by (rewrite length_columns; exact Hi).
    revert Hc; fold (columns d n rows); generalize (columns d n rows); clear; intros cols; revert row i.
    induction cols as [|col cols IH]; intros row [|i] Hc; simpl in Hc; try lia; destruct row as [|x row]; simpl;
      try reflexivity; rewrite IH by lia; [destruct i|]; reflexivity.
Qed.

Lemma combine_map {A B C} (f : A -> B) (g : A -> C) l : List.combine (map f l) (map g l) = map (fun x => (f x, g x)) l.
Proof. induction l as [|x l IH]; simpl; [reflexivity|rewrite IH; reflexivity]. Qed.

Lemma zsum_map {A B} (f : A -> B) l g : zsum (map f l) g = zsum l (fun x => g (f x)).
Proof. induction l as [|x l IH]; [reflexivity|]; cbn [map]; rewrite !zsum_cons, IH; reflexivity. Qed.

(** The element of a checked combination. *)
Lemma forallb_combine {A B} (p : A * B -> bool) (l : list A) (l' : list B) i a b : length l = length l' ->
  forallb p (List.combine l l') = true -> (i < length l)%nat -> p (nth i l a, nth i l' b) = true.
Proof.
  intros E F Hi; rewrite forallb_forall in F; rewrite <- combine_nth by exact E; apply F, nth_In.
  rewrite combine_length; lia.
Qed.

Lemma agrees_spec f g v l k : agrees f g k v l = true ->
  (forall j x, In (j, x) v -> k <= j) /\
  forall i, (i < length l)%nat -> f * coef v (k + Z.of_nat i) = g * nth i l 0.
Proof.
  revert v k; induction l as [|y l IH]; intros v k E; cbn [agrees] in E.
  - destruct v; [|discriminate]; split; [intros j x []|simpl; lia].
  - assert (Skip : (g * y =? 0) = true -> agrees f g (k + 1) v l = true -> (forall j x, In (j, x) v -> k <= j) /\
      forall i, (i < length (y :: l))%nat -> f * coef v (k + Z.of_nat i) = g * nth i (y :: l) 0).
    { intros E1 E2; apply Z.eqb_eq in E1; destruct (IH _ _ E2) as [K V]; split.
      - intros j x I; specialize (K j x I); lia.
      - intros [|i] Hi; simpl in Hi.
        + rewrite coef_absent; [simpl; lia|]; intros j x I; specialize (K j x I); lia.
        + replace (k + Z.of_nat (S i)) with (k + 1 + Z.of_nat i) by lia; apply V; lia. }
    destruct v as [|[j x] v]; [apply andb_prop in E; apply Skip; apply E|].
    destruct (Z.eqb_spec j k) as [->|N]; [|apply andb_prop in E; apply Skip; apply E].
    apply andb_prop in E; destruct E as [E1 E2]; apply Z.eqb_eq in E1; destruct (IH _ _ E2) as [K V]; split.
    + intros j x' [F|I]; [injection F; lia|specialize (K j x' I); lia].
    + intros [|i] Hi; simpl in Hi; cbn [coef].
      * rewrite (proj2 (Z.eqb_eq _ _)), coef_absent; [simpl; lia| |lia]; intros j x' I; specialize (K j x' I); lia.
      * rewrite (proj2 (Z.eqb_neq _ _)) by lia; rewrite Z.add_0_l.
        replace (k + Z.of_nat (S i)) with (k + 1 + Z.of_nat i) by lia; apply V; lia.
Qed.

Lemma coef_sum_at t vs k : coef (sum_at t vs) k = zsum vs (fun v => if fst v =? t then coef (snd v) k else 0).
Proof.
  induction vs as [|[s v] vs IH]; [reflexivity|]; cbn [sum_at]; rewrite zsum_cons; cbn [fst snd].
  destruct (s =? t); [rewrite coef_plus|]; rewrite IH; ring.
Qed.

(** Every number of a block that agrees. *)
Lemma block_agrees_spec {H} f g n T flip (hs : list H) (ts : H -> Z) (vals outs : H -> list (list Z)) w i c t :
  block_agrees f g n T flip (map ts hs) (map vals hs) (map outs hs) w = true -> (flip = true -> length w = n) ->
  (i < n)%nat -> (c < if flip then length (nth i w []) else length w)%nat -> (t < T)%nat ->
  f * zsum hs (fun h => if ts h =? Z.of_nat t
    then coef (row_product (nth i (vals h) []) (map sparse_of (outs h))) (Z.of_nat c) else 0) =
  g * nth t (nth (if flip then c else i) (nth (if flip then i else c) w []) []) 0.
Proof.
  intros E Lw Hi Hc Ht; unfold block_agrees in E; cbv zeta in E.
  set (ws := if flip then w else columns [] n w) in E.
  assert (Lws : length ws = n) by (unfold ws; destruct flip; [apply Lw; reflexivity|apply length_columns]).
  apply (forallb_combine _ _ _ i [] []) in E; [|rewrite length_columns, Lws; reflexivity
    |rewrite length_columns; exact Hi].
  cbn [fst snd] in E; rewrite nth_columns in E by exact Hi.
  rewrite !map_map, combine_map, map_map, combine_map in E; cbn [fst snd] in E.
  rewrite forallb_forall in E; specialize (E _ (in_enum_nth _ 0 t [] ltac:(rewrite length_columns; exact Ht))).
  cbn [fst snd] in E; rewrite nth_columns in E by exact Ht; apply agrees_spec in E; destruct E as [_ E].
  assert (Ew : nth i ws [] = if flip then nth i w [] else map (fun rows => nth i rows []) w).
  { unfold ws; destruct flip; [reflexivity|apply nth_columns, Hi]. }
  specialize (E c); rewrite map_length, Ew in E.
  assert (Lc : (c < length (if flip then nth i w [] else map (fun rows => nth i rows []) w))%nat).
  { destruct flip; rewrite ?map_length; exact Hc. }
  specialize (E Lc); rewrite coef_sum_at, zsum_map in E; cbn [fst snd] in E; rewrite !Z.add_0_l in E.
  rewrite E; f_equal.
  destruct flip.
  - rewrite (nth_indep _ 0 (nth t [] 0)) by (rewrite map_length; exact Hc); apply (map_nth (fun row => nth t row 0)).
  - rewrite map_map, (nth_indep _ 0 (nth t (nth i [] []) 0)) by (rewrite map_length; exact Hc).
    apply (map_nth (fun rows => nth t (nth i rows []) 0)).
Qed.

(** * Ascending vectors *)

Definition below (a b : Z * Z) : Prop := fst a < fst b.
Notation ascending := (StronglySorted below).

Lemma ascending_coef v k x : ascending v -> In (k, x) v -> coef v k = x.
Proof.
  induction 1 as [|[j y] v S IH F]; [intros []|]; rewrite Forall_forall in F; cbn [coef]; intros [E|I].
  - injection E; intros -> ->; rewrite Z.eqb_refl, coef_absent; [ring|].
    intros l z I; specialize (F _ I); unfold below in F; simpl in F; lia.
  - assert (B := F _ I); unfold below in B; simpl in B.
    rewrite (proj2 (Z.eqb_neq _ _)), IH by (assumption || lia); ring.
Qed.

Lemma ascending_map (f : Z * Z -> Z * Z) v : ascending v ->
  (forall a b, In a v -> In b v -> below a b -> below (f a) (f b)) -> ascending (map f v).
Proof.
  induction 1 as [|e v S IH F]; intros M; simpl; constructor.
  - apply IH; intros a b Ia Ib; apply M; right; assumption.
  - rewrite Forall_forall in *; intros b Ib; apply in_map_iff in Ib; destruct Ib as (a & <- & Ia).
    apply M; [left; reflexivity|right; exact Ia|apply F, Ia].
Qed.

Lemma ascending_app a b : ascending a -> ascending b -> (forall x y, In x a -> In y b -> below x y) ->
  ascending (a ++ b).
Proof.
  induction 1 as [|e a S IH F]; intros Sb B; [exact Sb|]; simpl; constructor.
  - apply IH; [exact Sb|]; intros x y Ix; apply B; right; exact Ix.
  - rewrite Forall_forall in *; intros y Iy; apply in_app_or in Iy; destruct Iy as [Iy|Iy]; [apply F, Iy|].
    apply B; [left; reflexivity|exact Iy].
Qed.

Lemma ascending_sparse_of l : ascending (sparse_of l).
Proof.
  unfold sparse_of; generalize 0 at 2; induction l as [|x l IH]; intros n; simpl; [constructor|].
  assert (F : Forall (below (n, x)) (filter (fun e => negb (snd e =? 0)) (enum (n + 1) l))).
  { rewrite Forall_forall; intros [j y] I; apply filter_In in I; destruct I as [I _]; apply in_enum in I.
    unfold below; simpl; lia. }
  destruct (negb (x =? 0)); [constructor; [apply IH|exact F]|apply IH].
Qed.

(** The indices of a sum are those of its summands. *)
Lemma keys_plus (P : Z -> Prop) a b : (forall j x, In (j, x) a -> P j) -> (forall j x, In (j, x) b -> P j) ->
  forall j x, In (j, x) (plus a b) -> P j.
Proof.
  revert b; induction a as [|[k x] a IH]; intros b Pa; [destruct b; auto|].
  induction b as [|[l y] b IHb]; intros Pb j z; [exact (Pa j z)|]; cbn [plus].
  assert (Pa' : forall j x, In (j, x) a -> P j) by (intros j' x' I; apply (Pa j' x'); right; exact I).
  assert (Pb' : forall j x, In (j, x) b -> P j) by (intros j' x' I; apply (Pb j' x'); right; exact I).
  destruct (Z.compare_spec k l) as [->| |].
  - intros [E|I]; [injection E; intros _ <-; apply (Pb l y); left; reflexivity|exact (IH b Pa' Pb' j z I)].
  - intros [E|I]; [injection E; intros _ <-; apply (Pa k x); left; reflexivity|exact (IH _ Pa' Pb j z I)].
  - intros [E|I]; [injection E; intros _ <-; apply (Pb l y); left; reflexivity|exact (IHb Pb' j z I)].
Qed.

Lemma ascending_plus a b : ascending a -> ascending b -> ascending (plus a b).
Proof.
  intros Sa; revert b; induction Sa as [|[k x] a Sa IH Fa]; intros b Sb; [destruct b; exact Sb|].
  rewrite Forall_forall in Fa.
  induction Sb as [|[l y] b Sb IHb Fb]; [constructor; [exact Sa|rewrite Forall_forall; exact Fa]|]; cbn [plus].
  assert (SB : ascending ((l, y) :: b)) by (constructor; assumption); rewrite Forall_forall in Fb.
  unfold below in *; cbn [fst] in *.
  assert (Ka : forall j z, In (j, z) a -> k < j) by (intros j z I; apply (Fa (j, z) I)).
  assert (Kb : forall j z, In (j, z) b -> l < j) by (intros j z I; apply (Fb (j, z) I)).
  destruct (Z.compare_spec k l) as [->|L|L].
  - constructor; [apply IH, Sb|]; rewrite Forall_forall; intros [j z] I.
    exact (keys_plus (fun j => l < j) a b Ka Kb j z I).
  - constructor; [apply IH, SB|]; rewrite Forall_forall; intros [j z] I.
    apply (keys_plus (fun j => k < j) a ((l, y) :: b)) in I; [exact I|exact Ka|].
    intros j' z' [E|I']; [injection E; lia|specialize (Kb _ _ I'); lia].
  - constructor; [exact IHb|]; rewrite Forall_forall; intros [j z] I.
    apply (keys_plus (fun j => l < j) ((k, x) :: a) b) in I; [exact I| |exact Kb].
    intros j' z' [E|I']; [injection E; lia|specialize (Ka _ _ I'); lia].
Qed.

Lemma merge_plus a b done : merge a b done = rev_append done (plus a b).
Proof.
  revert b done; induction a as [|[k x] a IH]; intros b done; [destruct b; reflexivity|].
  revert done; induction b as [|[l y] b IHb]; intros done; [reflexivity|]; cbn [merge plus].
  destruct (k ?= l); [apply (IH b ((k, x + y) :: done))|apply (IH ((l, y) :: b) ((k, x) :: done))|apply IHb].
Qed.

Lemma ascending_row_product xs rows : Forall ascending rows -> ascending (row_product xs rows).
Proof.
  revert rows; induction xs as [|x xs IH]; intros [|row rows] F; simpl; try constructor; inversion F; subst.
  destruct (x =? 0); [apply IH; assumption|]; apply ascending_plus; [|apply IH; assumption].
  apply ascending_map; [assumption|]; intros a b _ _ B; exact B.
Qed.

Lemma keys_row_product (P : Z -> Prop) xs rows : (forall row j x, In row rows -> In (j, x) row -> P j) ->
  forall j x, In (j, x) (row_product xs rows) -> P j.
Proof.
  revert rows; induction xs as [|x xs IH]; intros [|row rows] Pr j y; simpl; try tauto.
  assert (Pr' : forall row j x, In row rows -> In (j, x) row -> P j).
  { intros r j' x' I; apply (Pr r j' x'); right; exact I. }
  destruct (x =? 0); [apply IH, Pr'|]; apply keys_plus; [|apply IH, Pr'].
  intros j' x' I; apply in_map_iff in I; destruct I as ([j0 x0] & E & I); injection E; intros _ <-.
  apply (Pr row j0 x0); [left; reflexivity|exact I].
Qed.

(** The sum of up to 2^64 ascending vectors, and where its indices come from. *)
Lemma merge_pairs_facts (P : Z -> Prop) vs : Forall ascending vs -> (forall v j x, In v vs -> In (j, x) v -> P j) ->
  Forall ascending (merge_pairs vs) /\ (forall v j x, In v (merge_pairs vs) -> In (j, x) v -> P j) /\
  (2 * length (merge_pairs vs) <= S (length vs))%nat.
Proof.
  assert (G : forall n vs, (length vs <= n)%nat -> Forall ascending vs ->
    (forall v j x, In v vs -> In (j, x) v -> P j) ->
    Forall ascending (merge_pairs vs) /\ (forall v j x, In v (merge_pairs vs) -> In (j, x) v -> P j) /\
    (2 * length (merge_pairs vs) <= S (length vs))%nat); [|apply (G (length vs)); reflexivity].
  clear; induction n as [|n IH]; intros [|a [|b vs]] L F K; simpl in L; try lia;
    try (repeat split; [exact F|exact K|simpl; lia]).
  inversion F as [|? ? Fa F']; inversion F' as [|? ? Fb F'']; subst.
  destruct (IH vs ltac:(lia) F'') as (A1 & A2 & A3); [intros v j x I; apply K; do 2 right; exact I|].
  cbn [merge_pairs]; rewrite merge_plus; cbn [rev_append]; repeat split; [|intros v j x [<-|I]|simpl in *; lia].
  - constructor; [apply ascending_plus; assumption|exact A1].
  - apply keys_plus; intros j' x'; apply K; simpl; tauto.
  - apply A2, I.
Qed.

Lemma merge_all_facts (P : Z -> Prop) vs : Z.of_nat (length vs) <= 2 ^ 64 -> Forall ascending vs ->
  (forall v j x, In v vs -> In (j, x) v -> P j) ->
  ascending (merge_all vs) /\ forall j x, In (j, x) (merge_all vs) -> P j.
Proof.
  unfold merge_all; change 64 with (Z.of_nat 64) at 1; generalize 64%nat; intros n; revert vs.
  induction n as [|n IH]; intros vs L F K; destruct vs as [|a [|b vs]]; cbn [merge_times]; try (simpl in L; lia);
    try (split; [constructor|intros j x []]; fail);
    try (inversion F; subst; split; [assumption|intros j x; apply K; left; reflexivity]; fail).
  destruct (merge_pairs_facts P (a :: b :: vs) F K) as (A1 & A2 & A3); apply IH; try assumption.
  rewrite Nat2Z.inj_succ, Z.pow_succ_r in L by lia; lia.
Qed.

(** * The indices of the checker's vectors *)

Section Vectors.
Variables (g n T out : nat).
Notation D := (Z.of_nat (g * n)).
Notation ix := (index D (Z.of_nat T)).

(** An index within the sizes. *)
Definition indexed (k : Z) : Prop := exists u i c t, (u < g)%nat /\ (i < n)%nat /\ (c < out)%nat /\ (t < T)%nat /\
  k = ix (Z.of_nat c) (Z.of_nat (u * n + i)) (Z.of_nat t).

Let good (v : sparse) : Prop := ascending v /\ forall j x, In (j, x) v -> indexed j.

Lemma in_enum_number {A} (l : list A) m x : In (m, x) (enum 0 l) ->
  exists k, m = Z.of_nat k /\ (k < length l)%nat /\ In x l.
Proof.
  intros I; apply in_enum in I; destruct I as [B I]; exists (Z.to_nat m); rewrite Z2Nat.id by lia.
  split; [reflexivity|split; [lia|exact I]].
Qed.

Lemma in_sparse_of l j x : In (j, x) (sparse_of l) -> exists k, j = Z.of_nat k /\ (k < length l)%nat.
Proof.
  unfold sparse_of; intros I; apply filter_In in I; destruct I as [I _]; apply in_enum_number in I.
  destruct I as (k & E & Hk & _); exists k; auto.
Qed.

Lemma shaped_in rows cols m : shaped g rows cols m = true -> length m = g /\
  forall b, In b m -> length b = rows /\ forall row, In row b -> length row = cols.
Proof.
  unfold shaped; rewrite andb_true_iff, Nat.eqb_eq, forallb_forall; intros [E F]; split; [exact E|]; intros b Ib.
  specialize (F b Ib); rewrite andb_true_iff, Nat.eqb_eq, forallb_forall in F; destruct F as [F1 F2].
  split; [exact F1|]; intros row Ir; apply Nat.eqb_eq, F2, Ir.
Qed.

(** An ascending vector from ascending ones under ascending keys. *)
Lemma ascending_flat_map {A} (F : Z * A -> sparse) l : forall m,
  (forall e, In e (enum m l) -> ascending (F e)) ->
  (forall e e' x y, In e (enum m l) -> In e' (enum m l) -> fst e < fst e' -> In x (F e) -> In y (F e') -> below x y) ->
  ascending (flat_map F (enum m l)).
Proof.
  induction l as [|a l IH]; intros m S B; simpl; [constructor|]; apply ascending_app.
  - apply S; left; reflexivity.
  - apply IH; [intros e I; apply S; right; exact I|]; intros e e' x y I I'; apply B; right; assumption.
  - intros x y Ix Iy; apply in_flat_map in Iy; destruct Iy as ([m' a'] & Ia & Iy).
    apply (B (m, a) (m', a') x y); try assumption; [left; reflexivity|right; exact Ia|].
    apply in_enum in Ia; simpl; lia.
Qed.

Lemma head_vectors_good factor t dh vals outs v : (t < T)%nat ->
  shaped g n dh vals = true -> shaped g dh out outs = true ->
  In v (head_vectors D (Z.of_nat T) (Z.of_nat n) factor (Z.of_nat t) vals outs) -> good v.
Proof.
  intros Ht Sv So Iv; destruct (shaped_in _ _ _ Sv) as [Lv Fv], (shaped_in _ _ _ So) as [Lo Fo].
  unfold head_vectors in Iv; apply in_flat_map in Iv; destruct Iv as ([u' [val o]] & Ib & Iv).
  apply in_enum_number in Ib; destruct Ib as (u & -> & Hu & Ib); rewrite combine_length in Hu; cbn [fst snd] in Iv.
  destruct (Fv val (in_combine_l _ _ _ _ Ib)) as [Lb _], (Fo o (in_combine_r _ _ _ _ Ib)) as [_ Lr].
  apply in_map_iff in Iv; destruct Iv as ([i' xs] & <- & Ii).
  apply in_enum_number in Ii; destruct Ii as (i & -> & Hi & _).
  cbn [fst snd]; split.
  - apply ascending_map; [apply ascending_row_product, Forall_map, Forall_forall; intros; apply ascending_sparse_of|].
    intros a b _ _ B; unfold below, index in *; cbn [fst]; assert (1 <= D) by nia; assert (1 <= Z.of_nat T) by lia.
    apply Z.add_lt_mono_r, Zmult_lt_compat_r, Z.add_lt_mono_r, Zmult_lt_compat_r; lia.
  - intros j x Ij; apply in_map_iff in Ij; destruct Ij as ([c' y] & E & Ic); injection E; intros _ <-; cbn [fst].
    apply (keys_row_product (fun j => exists c, j = Z.of_nat c /\ (c < out)%nat)) in Ic.
    + destruct Ic as (c & -> & Hc); exists u, i, c, t; repeat (split; [assumption || lia|]); f_equal; lia.
    + intros row j' x' Ir Ij; apply in_map_iff in Ir; destruct Ir as (r & <- & Ir); rewrite <- (Lr r Ir).
      apply (in_sparse_of _ _ _ Ij).
Qed.

Lemma kernel_vectors_good (flip : bool) factor w v :
  shaped4 g (if flip then n else out) (if flip then out else n) T w = true ->
  In v (kernel_vectors D (Z.of_nat T) flip (Z.of_nat n) factor w) -> good v.
Proof.
  unfold shaped4; rewrite andb_true_iff, Nat.eqb_eq, forallb_forall; intros [Lw Fw] Iv.
  unfold kernel_vectors in Iv; apply in_flat_map in Iv; destruct Iv as ([u' b] & Ib & Iv).
  apply in_enum_number in Ib; destruct Ib as (u & -> & Hu & Ib); cbn [fst snd] in Iv; specialize (Fw b Ib).
  unfold shaped in Fw; rewrite andb_true_iff, Nat.eqb_eq, forallb_forall in Fw; destruct Fw as [Lb Fb].
  apply in_map_iff in Iv; destruct Iv as ([a' rows] & <- & Ia).
  apply in_enum_number in Ia; destruct Ia as (a & -> & Ha & Ir); cbn [fst snd]; specialize (Fb rows Ir).
  rewrite andb_true_iff, Nat.eqb_eq, forallb_forall in Fb; destruct Fb as [Lr Fr].
  assert (K : forall b' row, In (b', row) (enum 0 rows) ->
    exists k, b' = Z.of_nat k /\ (k < length rows)%nat /\ length row = T).
  { intros b' row I; apply in_enum_number in I; destruct I as (k & E & Hk & I); exists k; repeat split; try assumption.
    apply Nat.eqb_eq, Fr, I. }
  split.
  - apply ascending_flat_map.
    + intros [b' row] I; destruct (K _ _ I) as (k & -> & _ & _); cbn [fst snd].
      apply ascending_map; [apply ascending_sparse_of|]; intros x y _ _ B; unfold below, index in *; cbn [fst snd].
      destruct flip; lia.
    + intros [b1 row1] [b2 row2] x y I1 I2 B Ix Iy; cbn [fst snd] in *.
      destruct (K _ _ I1) as (k1 & -> & H1 & L1), (K _ _ I2) as (k2 & -> & H2 & L2).
      apply in_map_iff in Ix, Iy; destruct Ix as ([t1 x1] & <- & J1), Iy as ([t2 x2] & <- & J2).
      apply in_sparse_of in J1, J2; destruct J1 as (m1 & -> & M1), J2 as (m2 & -> & M2).
      rewrite L1 in M1; rewrite L2 in M2.
      unfold below, index; cbn [fst snd]; destruct flip; [|nia].
      assert (Z.of_nat k1 * D + D <= Z.of_nat k2 * D) by nia; assert (1 <= D) by nia; nia.
  - intros j x Ij; apply in_flat_map in Ij; destruct Ij as ([b' row] & Ib' & Ij).
    destruct (K _ _ Ib') as (k & -> & Hk & Lt).
    cbn [fst snd] in Ij; apply in_map_iff in Ij; destruct Ij as ([t' y] & E & It); injection E; intros _ <-; cbn [fst].
    apply in_sparse_of in It; destruct It as (t & -> & Ht); rewrite Lt in Ht.
    destruct flip; [exists u, a, k, t|exists u, k, a, t]; repeat (split; [lia|]); f_equal; lia.
Qed.

Lemma length_flat_map_le {A B} (F : A -> list B) b l : (forall x, In x l -> (length (F x) <= b)%nat) ->
  (length (flat_map F l) <= length l * b)%nat.
Proof.
  induction l as [|x l IH]; intros E; [simpl; lia|]; simpl; rewrite app_length.
  specialize (IH (fun y I => E y (or_intror I))); specialize (E x (or_introl eq_refl)); lia.
Qed.

Lemma length_enum {A} (l : list A) m : length (enum m l) = length l.
Proof. revert m; induction l as [|x l IH]; intros m; simpl; [reflexivity|rewrite IH; reflexivity]. Qed.

End Vectors.

(** * Both checks are the same *)

Section Same.
Variables (c : convolution) (m : attention_layer).
Hypothesis ok : comparable c m = true.

Notation T := (positions_of_kernel c).
Notation g := (groups_n c).
Notation n := (in_g c).
Notation scale_f := (2 ^ (head_scale m - common_scale c m)).
Notation vectors := (flat_map (vectors_of c m scale_f) (kept m) ++
  kernel_vectors (channels_in c) (Z.of_nat T) (transposed c) (Z.of_nat n) (- 2 ^ (c_weight_scale c - common_scale c m))
    (c_weight c)).

(** The position that was read of a head. *)
Lemma position_in_range h : In h (kept m) -> exists j t, tap_read m h = Some j /\ (t < T)%nat /\
  position_read c m h = Z.of_nat t /\ number (kernel_size c) j = Z.of_nat t.
Proof.
  intros I; destruct (head_looks c m ok h I) as (j & _ & E & _ & Ij & _); assert (R := number_taps c m ok j Ij).
  exists j, (Z.to_nat (number (kernel_size c) j)); unfold position_read; rewrite E, Z2Nat.id by lia; repeat split; lia.
Qed.

Lemma vectors_good v : In v vectors -> ascending v /\ forall j x, In (j, x) v -> indexed g n T (out_g c) j.
Proof.
  destruct (comparable_facts c m ok) as (_ & _ & S & _ & _ & _ & F); intros I; apply in_app_or in I.
  destruct I as [I|I].
  - apply in_flat_map in I; destruct I as (h & Ih & I); destruct (F h Ih) as (Sv & So & _).
    destruct (position_in_range h Ih) as (j & t & E & Ht & _ & Ej); unfold vectors_of in I; rewrite E, Ej in I.
    exact (head_vectors_good g n T (out_g c) _ t _ _ _ v Ht Sv So I).
  - exact (kernel_vectors_good g n T (out_g c) _ _ _ v S I).
Qed.

Lemma vectors_count : Z.of_nat (length vectors) <= Z.of_nat (length (kept m) + 1) * Z.of_nat g * Z.of_nat (n + out_g c).
Proof.
  destruct (comparable_facts c m ok) as (_ & _ & S & _ & _ & _ & F); rewrite app_length.
  assert (A : (length (flat_map (vectors_of c m scale_f) (kept m)) <= length (kept m) * (g * n))%nat).
  { apply length_flat_map_le; intros h Ih; destruct (F h Ih) as (Sv & _); apply shaped_in in Sv; destruct Sv as [Lv Fv].
    unfold vectors_of; destruct (tap_read m h) as [j|]; [|simpl; lia]; unfold head_vectors.
    eapply Nat.le_trans; [apply (length_flat_map_le _ n)|rewrite length_enum, combine_length; nia].
    intros [u [val o]] I; apply in_enum_number in I; destruct I as (_ & _ & _ & I); rewrite map_length, length_enum.
    cbn [fst snd]; rewrite (proj1 (Fv val (in_combine_l _ _ _ _ I))); reflexivity. }
  assert (B : (length (kernel_vectors (channels_in c) (Z.of_nat T) (transposed c) (Z.of_nat n)
    (- 2 ^ (c_weight_scale c - common_scale c m)) (c_weight c)) <= g * (n + out_g c))%nat).
  { unfold shaped4 in S; rewrite andb_true_iff, Nat.eqb_eq, forallb_forall in S; destruct S as [Lw Fw].
    unfold kernel_vectors; eapply Nat.le_trans; [apply (length_flat_map_le _ (n + out_g c))|rewrite length_enum; nia].
    intros [u b] I; apply in_enum_number in I; destruct I as (_ & _ & _ & I); rewrite map_length, length_enum.
    cbn [snd]; specialize (Fw b I); unfold shaped in Fw; apply andb_prop in Fw; destruct Fw as [Lb _].
    apply Nat.eqb_eq in Lb; rewrite Lb; destruct (transposed c); lia. }
  nia.
Qed.

Theorem same_taps_zero : same_taps c m = true -> forallb (fun e => snd e =? 0) (difference c m) = true.
Proof.
  unfold same_taps; cbv zeta; rewrite andb_true_iff, Z.leb_le; intros [Count Blocks]; assert (Few := vectors_count).
  destruct (comparable_facts c m ok) as (_ & W & S & Hd & _ & _ & F).
  destruct (merge_all_facts (indexed g n T (out_g c)) vectors ltac:(lia)) as [Asc Keys].
  - apply Forall_forall; intros v I; apply (vectors_good v I).
  - intros v j x I; apply (vectors_good v I).
  - apply forallb_forall; intros [k x] I; cbn [snd]; apply Z.eqb_eq.
    unfold difference in I; cbv zeta in I.
    rewrite <- (ascending_coef _ k x Asc I), coef_merge_all, coefs_app, coefs_flat_map.
    destruct (Keys k x I) as (u & i & o & t & Hu & Hi & Ho & Ht & ->); clear I Asc Keys.
    destruct (shaped4_nth _ _ _ _ _ u S Hu) as [Lw Sw].
    assert (Su := shaped_nth _ _ _ _ (if transposed c then i else o) Sw ltac:(destruct (transposed c); assumption)).
    destruct Su as (Lu & Lr & _).
    apply (forallb_combine _ _ _ u ([], []) []) in Blocks; [|rewrite combine_length, !length_columns; lia|
      rewrite combine_length, !length_columns; lia].
    rewrite combine_nth in Blocks by (rewrite !length_columns; reflexivity); cbn [fst snd] in Blocks.
    rewrite !nth_columns, !map_map in Blocks by exact Hu.
    apply (block_agrees_spec _ _ _ _ _ _ _ _ _ _ i o t) in Blocks; try assumption.
    + unfold channels_in; rewrite (coefs_kernel g n T (transposed c) _ (c_weight c) (out_g c)) by assumption.
      rewrite Z.mul_opp_l, <- Blocks; clear Blocks.
      rewrite (zsum_ext (kept m) _ (fun h => scale_f * (if position_read c m h =? Z.of_nat t
        then coef (row_product (nth i (nth u (h_val h) []) []) (map sparse_of (nth u (h_out h) []))) (Z.of_nat o)
        else 0))).
      * generalize (kept m); intros l; induction l as [|h l IH]; [unfold zsum; simpl; ring|].
        rewrite !zsum_cons, Z.mul_add_distr_l; lia.
      * intros h Ih; destruct (F h Ih) as (Sv & So & _), (position_in_range h Ih) as (j & t' & E & Ht' & Ep & Ej).
        unfold vectors_of; rewrite E, Ej, Ep; unfold channels_in.
        destruct (shaped_nth _ _ _ _ u Sv Hu) as (Lv & _ & _), (shaped_nth _ _ _ _ u So Hu) as (Lo & _ & _).
        rewrite coefs_head; try assumption; try lia.
        -- destruct (Z.of_nat t' =? Z.of_nat t); ring.
        -- intros u' Hu'; apply (shaped_nth _ _ _ _ u' Sv Hu').
    + intros Tr; rewrite Tr in Lu; exact Lu.
    + destruct (transposed c); lia.
Qed.

End Same.

Theorem check_same_fast_is c m : check_same_fast c m = check_same c m.
Proof.
  unfold check_same_fast, check_same; destruct (comparable c m) eqn:ok; [|reflexivity]; f_equal; f_equal.
  destruct (same_taps c m) eqn:E; [|reflexivity]; rewrite (same_taps_zero c m ok E); reflexivity.
Qed.
