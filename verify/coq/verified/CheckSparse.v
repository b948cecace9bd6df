(** Sparse vectors of integers, with which the checker computes.

    A sparse vector is a list of pairs (index, number); numbers at one index add up, and the order does not matter
    to its meaning, [coef].  The program keeps the indices ascending, which makes sums fast.
    Statements:
      coef_row_product    [row_product] is a row vector times a matrix of sparse rows
      coef_merge_all  [merge_all] adds up any number of sparse vectors *)

From Coq Require Import Reals ZArith List Lia Lra.
From Attention Require Import Definitions Sums.
Import ListNotations.
Open Scope Z_scope.

Notation sparse := (list (Z * Z)).

(** The number at index k; the sum of such numbers over several vectors. *)
Fixpoint coef (v : sparse) (k : Z) : Z :=
  match v with [] => 0 | (l, x) :: v' => (if l =? k then x else 0) + coef v' k end.
Definition zsum {A : Type} (l : list A) (f : A -> Z) : Z := fold_right (fun x s => f x + s) 0 l.
Definition coefs (vs : list sparse) (k : Z) : Z := zsum vs (fun v => coef v k).

(** Elements with their numbers n, n + 1, … *)
Fixpoint enum {A : Type} (n : Z) (l : list A) : list (Z * A) :=
  match l with [] => [] | x :: l' => (n, x) :: enum (n + 1) l' end.

Definition sparse_of (l : list Z) : sparse := filter (fun e => negb (snd e =? 0)) (enum 0 l).
Definition scale (c : Z) (v : sparse) : sparse := map (fun e => (fst e, c * snd e)) v.
Definition rekey (f : Z -> Z) (v : sparse) : sparse := map (fun e => (f (fst e), snd e)) v.
Definition absolute (v : sparse) : sparse := map (fun e => (fst e, Z.abs (snd e))) v.

(** The sum of two vectors with ascending indices. *)
Fixpoint plus (a b : sparse) {struct a} : sparse :=
  (fix right (b : sparse) : sparse :=
    match a, b with
    | [], _ => b
    | _, [] => a
    | (k, x) :: a', (l, y) :: b' =>
        match k ?= l with
        | Lt => (k, x) :: plus a' b
        | Eq => (k, x + y) :: plus a' b'
        | Gt => (l, y) :: right b'
        end
    end) b.

(** Σ_a x_a (row a) *)
Fixpoint row_product (xs : list Z) (rows : list sparse) : sparse :=
  match xs, rows with
  | x :: xs', row :: rows' => let s := row_product xs' rows' in if x =? 0 then s else plus (scale x row) s
  | _, _ => []
  end.

(** The sum of two long vectors, without a deep stack; [done] is the finished part, in reverse. *)
Fixpoint merge (a b done : sparse) {struct a} : sparse :=
  (fix right (b done : sparse) {struct b} : sparse :=
    match a, b with
    | [], _ => rev_append done b
    | _, [] => rev_append done a
    | (k, x) :: a', (l, y) :: b' =>
        match k ?= l with
        | Lt => merge a' b ((k, x) :: done)
        | Eq => merge a' b' ((k, x + y) :: done)
        | Gt => right b' ((l, y) :: done)
        end
    end) b done.

Fixpoint merge_pairs (vs : list sparse) : list sparse :=
  match vs with a :: b :: vs' => merge a b [] :: merge_pairs vs' | _ => vs end.
Fixpoint merge_times (n : nat) (vs : list sparse) : sparse :=
  match vs, n with
  | [], _ => []
  | [v], _ => v
  | _, S n' => merge_times n' (merge_pairs vs)
  | _, O => concat vs
  end.
(** More than 2^64 vectors would be concatenated, not merged. *)
Definition merge_all (vs : list sparse) : sparse := merge_times 64 vs.

(** * Sums of integers *)

Lemma zsum_cons {A} (a : A) l f : zsum (a :: l) f = f a + zsum l f.
Proof. reflexivity. Qed.

Lemma zsum_ext {A} (l : list A) f g : (forall x, In x l -> f x = g x) -> zsum l f = zsum l g.
Proof.
  induction l as [|a l IH]; intros E; [reflexivity|]; rewrite !zsum_cons, (E a (or_introl eq_refl)), IH; [reflexivity|].
  intros x I; apply E; right; exact I.
Qed.

Lemma zsum_zero {A} (l : list A) f : (forall x, In x l -> f x = 0) -> zsum l f = 0.
Proof.
  induction l as [|a l IH]; intros E; [reflexivity|]; rewrite zsum_cons, (E a (or_introl eq_refl)), IH; [reflexivity|].
  intros x I; apply E; right; exact I.
Qed.

Lemma zsum_app {A} (l l' : list A) f : zsum (l ++ l') f = zsum l f + zsum l' f.
Proof. induction l as [|a l IH]; [reflexivity|]; simpl app; rewrite !zsum_cons, IH; ring. Qed.

Lemma IZR_zsum {A} (l : list A) f : IZR (zsum l f) = sum l (fun x => IZR (f x)).
Proof. induction l as [|a l IH]; [reflexivity|]; rewrite zsum_cons, plus_IZR, IH; reflexivity. Qed.

(** A sum over numbered elements with one summand that is not zero. *)
Lemma zsum_enum {A} (l : list A) (f : Z * A -> Z) n k d : (k < length l)%nat ->
  (forall m x, In (m, x) (enum n l) -> m <> n + Z.of_nat k -> f (m, x) = 0) ->
  zsum (enum n l) f = f (n + Z.of_nat k, nth k l d).
Proof.
  revert n k; induction l as [|a l IH]; intros n k Hk E; simpl in Hk; [lia|]; cbn [enum]; rewrite zsum_cons.
  assert (above : forall m x n', In (m, x) (enum n' l) -> n' <= m).
  { clear; induction l as [|b l IH]; intros m x n'; simpl; [tauto|]; intros [F|I]; [injection F; lia|].
    specialize (IH _ _ _ I); lia. }
  destruct k as [|k].
  - rewrite zsum_zero; [simpl; replace (n + 0) with n by ring; ring|].
    intros [m x] I; apply E; [right; exact I|]; apply above in I; simpl; lia.
  - rewrite (E n a) by (simpl; auto; lia); rewrite (IH (n + 1) k); [|lia|].
    + simpl nth; replace (n + 1 + Z.of_nat k) with (n + Z.of_nat (S k)) by lia; ring.
    + intros m x I D; apply E; [right; exact I|lia].
Qed.

Lemma in_enum {A} (l : list A) n m x : In (m, x) (enum n l) -> n <= m < n + Z.of_nat (length l) /\ In x l.
Proof.
  revert n; induction l as [|a l IH]; intros n; simpl; [tauto|]; intros [E|I].
  - injection E; intros <- <-; split; [lia|left; reflexivity].
  - destruct (IH _ I); split; [lia|right; assumption].
Qed.

(** * The meaning of the operations *)

Lemma coef_app a b k : coef (a ++ b) k = coef a k + coef b k.
Proof. induction a as [|[l x] a IH]; simpl; [reflexivity|]; rewrite IH; ring. Qed.

Lemma coef_rev_append a b k : coef (rev_append a b) k = coef a k + coef b k.
Proof. revert b; induction a as [|[l x] a IH]; intros b; simpl; [reflexivity|]; rewrite IH; simpl; ring. Qed.

Lemma coef_absent v k : (forall l x, In (l, x) v -> l <> k) -> coef v k = 0.
Proof.
  induction v as [|[l x] v IH]; intros E; [reflexivity|]; simpl.
  rewrite (proj2 (Z.eqb_neq l k)), IH; [reflexivity| |apply (E l x); left; reflexivity].
  intros l' x' I; apply (E l' x'); right; exact I.
Qed.

Lemma coef_absent_values v k : (forall l x, In (l, x) v -> x = 0) -> coef v k = 0.
Proof.
  induction v as [|[l x] v IH]; intros E; [reflexivity|]; simpl; rewrite (E l x) by (left; reflexivity).
  rewrite IH; [destruct (l =? k); reflexivity|]; intros l' x' I; apply (E l' x'); right; exact I.
Qed.

Lemma coef_scale c v k : coef (scale c v) k = c * coef v k.
Proof. induction v as [|[l x] v IH]; simpl; [ring|]; rewrite IH; destruct (l =? k); ring. Qed.

Lemma coef_rekey f v k : (forall l x, In (l, x) v -> f l = f k -> l = k) -> coef (rekey f v) (f k) = coef v k.
Proof.
  induction v as [|[l x] v IH]; intros E; [reflexivity|]; simpl; rewrite IH by (intros l' x' I; apply (E l' x');
    right; exact I).
  destruct (Z.eqb_spec l k) as [->|D]; [rewrite Z.eqb_refl; reflexivity|].
  rewrite (proj2 (Z.eqb_neq _ _)); [reflexivity|]; intros F; apply D, (E l x); [left; reflexivity|exact F].
Qed.

Lemma coef_enum n l k : coef (enum n l) (n + Z.of_nat k) = nth k l 0.
Proof.
  revert n k; induction l as [|x l IH]; intros n k; simpl; [destruct k; reflexivity|].
  destruct k as [|k]; simpl.
  - rewrite (proj2 (Z.eqb_eq _ _)) by lia; rewrite coef_absent; [ring|].
    intros m y I; apply in_enum in I; lia.
  - rewrite (proj2 (Z.eqb_neq _ _)) by lia; replace (n + Z.pos (Pos.of_succ_nat k)) with (n + 1 + Z.of_nat k) by lia.
    rewrite IH; ring.
Qed.

Lemma coef_sparse_of l k : coef (sparse_of l) (Z.of_nat k) = nth k l 0.
Proof.
  unfold sparse_of; rewrite <- (coef_enum 0 l k); simpl Z.add; induction (enum 0 l) as [|[m x] v IH]; [reflexivity|].
  simpl; destruct (Z.eqb_spec x 0) as [->|]; simpl; rewrite IH; [destruct (m =? _); reflexivity|reflexivity].
Qed.

Lemma coef_plus a b k : coef (plus a b) k = coef a k + coef b k.
Proof.
  revert b; induction a as [|[m x] a IH]; [intros [|[l y] b]; reflexivity|].
  induction b as [|[l y] b IHb]; [simpl; ring|]; cbn [plus]; destruct (Z.compare_spec m l) as [->| |].
  - cbn [coef]; rewrite IH; destruct (l =? k); ring.
  - cbn [coef]; rewrite IH; simpl; ring.
  - change (coef ((l, y) :: plus ((m, x) :: a) b) k = coef ((m, x) :: a) k + coef ((l, y) :: b) k).
    cbn [coef] in *; rewrite IHb; ring.
Qed.

Lemma coef_merge a b done k : coef (merge a b done) k = coef a k + coef b k + coef done k.
Proof.
  revert b done; induction a as [|[m x] a IH].
  - intros [|[l y] b] done; cbn [merge]; rewrite coef_rev_append; simpl; ring.
  - induction b as [|[l y] b IHb]; intros done; [cbn [merge]; rewrite coef_rev_append; simpl; ring|].
    cbn [merge]; destruct (Z.compare_spec m l) as [->| |].
    + rewrite IH; cbn [coef]; destruct (l =? k); ring.
    + rewrite IH; cbn [coef]; ring.
    + change (coef (merge ((m, x) :: a) b ((l, y) :: done)) k = coef ((m, x) :: a) k + coef ((l, y) :: b) k + coef
      done k).
      rewrite IHb; cbn [coef]; ring.
Qed.

Lemma coefs_cons v vs k : coefs (v :: vs) k = coef v k + coefs vs k.
Proof. reflexivity. Qed.

Lemma coefs_app vs ws k : coefs (vs ++ ws) k = coefs vs k + coefs ws k.
Proof. apply zsum_app. Qed.

Theorem coef_merge_all vs k : coef (merge_all vs) k = coefs vs k.
Proof.
  unfold merge_all; generalize 64%nat; intros n; revert vs; induction n as [|n IH]; intros vs.
  - destruct vs as [|a [|b vs]]; [reflexivity|unfold coefs; simpl; ring|].
    cbn [merge_times]; generalize (a :: b :: vs); clear; intros vs; induction vs as [|v vs IH]; [reflexivity|].
    cbn [concat]; rewrite coef_app, IH; reflexivity.
  - assert (P : forall m vs, (length vs <= m)%nat -> coefs (merge_pairs vs) k = coefs vs k).
    { clear; induction m as [|m IH]; intros [|a [|b vs]] Hm; simpl in Hm; try reflexivity; try lia.
      cbn [merge_pairs]; rewrite !coefs_cons, coef_merge, IH by lia; simpl; ring. }
    destruct vs as [|a [|b vs]]; [reflexivity|unfold coefs; simpl; ring|].
    cbn [merge_times]; rewrite IH, (P (length (a :: b :: vs))); reflexivity.
Qed.

(** (x A)_k for the row x of n entries and the sparse rows of A. *)
Theorem coef_row_product xs rows k :
  IZR (coef (row_product xs rows) k) = sum_below (length xs) (fun a => (IZR (nth a xs 0%Z) * IZR (coef (nth a rows [])
    k))%R).
Proof.
  revert rows; induction xs as [|x xs IH]; intros rows; [reflexivity|]; simpl length; rewrite sum_below_S.
  destruct rows as [|row rows].
  - rewrite sum_below_zero by (intros; destruct i; simpl; ring); simpl; ring.
  - cbn [row_product nth]; rewrite <- IH; destruct (Z.eqb_spec x 0) as [->|]; [ring|].
    rewrite coef_plus, coef_scale, plus_IZR, mult_IZR; ring.
Qed.

Lemma coef_flat_map {A} (l : list A) f k : coef (flat_map f l) k = zsum l (fun x => coef (f x) k).
Proof. induction l as [|a l IH]; [reflexivity|]; simpl flat_map; rewrite coef_app, IH; reflexivity. Qed.

Lemma coefs_map {A} (l : list A) f k : coefs (map f l) k = zsum l (fun x => coef (f x) k).
Proof. induction l as [|a l IH]; [reflexivity|]; simpl map; rewrite coefs_cons, IH; reflexivity. Qed.

Lemma coefs_flat_map {A} (l : list A) f k : coefs (flat_map f l) k = zsum l (fun x => coefs (f x) k).
Proof. induction l as [|a l IH]; [reflexivity|]; simpl flat_map; rewrite coefs_app, IH; reflexivity. Qed.

Lemma coefs_absent vs k : (forall v l x, In v vs -> In (l, x) v -> l <> k) -> coefs vs k = 0.
Proof. intros E; apply zsum_zero; intros v I; apply coef_absent; intros l x; apply E, I. Qed.

Lemma in_enum_nth {A} (l : list A) n k d : (k < length l)%nat -> In (n + Z.of_nat k, nth k l d) (enum n l).
Proof.
  revert n k; induction l as [|a l IH]; intros n k Hk; simpl in Hk; [lia|]; destruct k as [|k]; simpl.
  - left; f_equal; lia.
  - right; replace (n + Z.pos (Pos.of_succ_nat k)) with (n + 1 + Z.of_nat k) by lia; apply IH; lia.
Qed.

(** * Absolute sums *)

Lemma zsum_le {A} (l : list A) f g : (forall x, In x l -> f x <= g x) -> zsum l f <= zsum l g.
Proof.
  induction l as [|a l IH]; intros E; [apply Z.le_refl|]; rewrite !zsum_cons; apply Z.add_le_mono; [apply E; left;
    reflexivity|].
  apply IH; intros x I; apply E; right; exact I.
Qed.

Lemma count_le (S : list Z) l : NoDup S -> zsum S (fun s => if l =? s then 1 else 0) <= 1.
Proof.
  induction 1 as [|s S N _ IH]; [discriminate|]; rewrite zsum_cons; destruct (Z.eqb_spec l s) as [->|D]; [|exact IH].
  rewrite zsum_zero; [discriminate|]; intros s' I; destruct (Z.eqb_spec s s') as [->|]; [contradiction|reflexivity].
Qed.

(** Over distinct indices of one channel, the absolute numbers sum to at most that channel's sum. *)
Theorem channel_sum_le (chan : Z -> Z) v S k : NoDup S -> (forall s, In s S -> chan s = k) ->
  zsum S (fun s => Z.abs (coef v s)) <= coef (rekey chan (absolute v)) k.
Proof.
  intros N C; induction v as [|[l x] v IH]; [simpl; rewrite zsum_zero; [apply Z.le_refl|reflexivity]|];
    cbn [coef absolute rekey map fst snd].
  apply Z.le_trans with (zsum S (fun s => if l =? s then Z.abs x else 0) + zsum S (fun s => Z.abs (coef v s))).
  - clear; induction S as [|s S IHS]; [discriminate|]; rewrite !zsum_cons; destruct (l =? s); lia.
  - apply Z.add_le_mono; [|exact IH].
    apply Z.le_trans with (Z.abs x * zsum S (fun s => if l =? s then 1 else 0)).
    + clear; induction S as [|s S IHS]; [simpl; lia|]; rewrite !zsum_cons; destruct (l =? s); lia.
    + destruct (Z.eqb_spec (chan l) k) as [E|D].
      * pose proof (count_le S l N); nia.
      * rewrite zsum_zero; [lia|]; intros s I; destruct (Z.eqb_spec l s) as [->|]; [|reflexivity]; exfalso;
        apply D, C, I.
Qed.

Lemma coef_concat vs k : coef (concat vs) k = coefs vs k.
Proof. induction vs as [|v vs IH]; [reflexivity|]; cbn [concat]; rewrite coef_app, coefs_cons, IH; reflexivity. Qed.

(** The same for a list of vectors. *)
Corollary channel_sums_le (chan : Z -> Z) vs S k : NoDup S -> (forall s, In s S -> chan s = k) ->
  zsum S (fun s => Z.abs (coefs vs s)) <= coefs (map (fun v => rekey chan (absolute v)) vs) k.
Proof.
  intros N C; replace (coefs (map (fun v => rekey chan (absolute v)) vs) k) with (coef (rekey chan (absolute (concat
    vs))) k).
  - rewrite (zsum_ext S _ (fun s => Z.abs (coef (concat vs) s))) by (intros; rewrite coef_concat; reflexivity).
    apply channel_sum_le; assumption.
  - clear; induction vs as [|v vs IH]; [reflexivity|]; cbn [concat map]; rewrite coefs_cons, <- IH.
    unfold rekey, absolute; rewrite !map_app, coef_app; reflexivity.
Qed.

Lemma NoDup_pairs {A B} (f : A -> B -> Z) l m : NoDup l -> NoDup m ->
  (forall a b a' b', In a l -> In b m -> In a' l -> In b' m -> f a b = f a' b' -> a = a' /\ b = b') ->
  NoDup (flat_map (fun a => map (f a) m) l).
Proof.
  induction 1 as [|a l Na Nl IH]; intros Nm E; [constructor|]; cbn [flat_map].
  assert (App : forall x y : list Z, NoDup x -> NoDup y -> (forall p, In p x -> ~ In p y) -> NoDup (x ++ y)).
  { clear; induction x as [|p x IHx]; intros y Nx Ny D; [exact Ny|]; inversion Nx; subst; simpl; constructor.
    - rewrite in_app_iff; intros [|I]; [contradiction|apply (D p (or_introl eq_refl) I)].
    - apply IHx; [assumption|exact Ny|]; intros p' Ip'; apply D; right; exact Ip'. }
  apply App.
  - assert (Ea : forall b b', In b m -> In b' m -> f a b = f a b' -> b = b').
    { intros b b' I I' F; apply (E a b a b') in F; [apply F|left; reflexivity|exact I|left; reflexivity|exact I']. }
    clear -Nm Ea; induction Nm as [|b m Nb Nm IH]; simpl; constructor.
    + intros I; apply in_map_iff in I; destruct I as (b' & F & I'); apply Nb; rewrite (Ea b b'); simpl; auto.
    + apply IH; intros x x' I I'; apply Ea; right; assumption.
  - apply IH; [exact Nm|]; intros x b x' b' I1 I2 I3 I4; apply E; auto; right; assumption.
  - intros p I I'; apply in_map_iff in I; destruct I as (b & <- & Ib).
    apply in_flat_map in I'; destruct I' as (a' & Ia' & I'); apply in_map_iff in I'; destruct I' as (b' & F & Ib').
    apply (E a' b' a b) in F; [|right; exact Ia'|exact Ib'|left; reflexivity|exact Ib]; destruct F as [-> _];
      contradiction.
Qed.

Lemma map_injective {A B} (g : A -> B) l x y : NoDup (map g l) -> In x l -> In y l -> g x = g y -> x = y.
Proof.
  induction l as [|a l IH]; simpl; [tauto|]; intros N; inversion N; subst; intros [->|Ix] [->|Iy] E; try reflexivity.
  - exfalso; match goal with H : ~ In _ _ |- _ => apply H; rewrite E; apply in_map, Iy end.
  - exfalso; match goal with H : ~ In _ _ |- _ => apply H; rewrite <- E; apply in_map, Ix end.
  - apply IH; assumption.
Qed.
