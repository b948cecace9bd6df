(** Finite sums over lists and integer positions: basic facts for the other files. *)

From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions.
Import ListNotations.
Open Scope R_scope.

(** * Sums *)

Section Sums.
Context {A : Type}.
Implicit Types (l : list A) (f g : A -> R).

Lemma sum_cons a l f : sum (a :: l) f = f a + sum l f.
Proof. reflexivity. Qed.

Lemma sum_ext l f g : (forall x, In x l -> f x = g x) -> sum l f = sum l g.
Proof.
  induction l as [|a l IH]; intros E; [reflexivity|]; rewrite !sum_cons, (E a (or_introl eq_refl)).
  rewrite IH; [reflexivity|]; intros x Hx; apply E; right; exact Hx.
Qed.

Lemma sum_app l l' f : sum (l ++ l') f = sum l f + sum l' f.
Proof. induction l as [|a l IH]; simpl app; [unfold sum; simpl; lra|]; rewrite !sum_cons, IH; lra. Qed.

Lemma sum_plus l f g : sum l (fun x => f x + g x) = sum l f + sum l g.
Proof. induction l as [|a l IH]; [unfold sum; simpl; lra|]; rewrite !sum_cons, IH; lra. Qed.

Lemma sum_minus l f g : sum l (fun x => f x - g x) = sum l f - sum l g.
Proof. induction l as [|a l IH]; [unfold sum; simpl; lra|]; rewrite !sum_cons, IH; lra. Qed.

Lemma sum_scal l c f : sum l (fun x => c * f x) = c * sum l f.
Proof. induction l as [|a l IH]; [unfold sum; simpl; lra|]; rewrite !sum_cons, IH; lra. Qed.

Lemma sum_scal_r l c f : sum l (fun x => f x * c) = sum l f * c.
Proof. induction l as [|a l IH]; [unfold sum; simpl; lra|]; rewrite !sum_cons, IH; lra. Qed.

Lemma sum_zero l f : (forall x, In x l -> f x = 0) -> sum l f = 0.
Proof.
  intros E; induction l as [|a l IH]; [reflexivity|]; rewrite sum_cons, (E a (or_introl eq_refl)), IH; [lra|].
  intros x Hx; apply E; right; exact Hx.
Qed.

Lemma sum_le l f g : (forall x, In x l -> f x <= g x) -> sum l f <= sum l g.
Proof.
  intros E; induction l as [|a l IH]; [apply Rle_refl|]; rewrite !sum_cons; apply Rplus_le_compat.
  - apply E; left; reflexivity.
  - apply IH; intros x Hx; apply E; right; exact Hx.
Qed.

Lemma sum_nonneg l f : (forall x, In x l -> 0 <= f x) -> 0 <= sum l f.
Proof. intros E; rewrite <- (sum_zero l (fun _ => 0)) by reflexivity; apply sum_le; exact E. Qed.

Lemma sum_abs l f : Rabs (sum l f) <= sum l (fun x => Rabs (f x)).
Proof.
  induction l as [|a l IH]; [unfold sum; simpl; rewrite Rabs_R0; lra|]; rewrite !sum_cons.
  eapply Rle_trans; [apply Rabs_triang|]; lra.
Qed.

Lemma sum_const l c : sum l (fun _ => c) = INR (length l) * c.
Proof. induction l as [|a l IH]; [unfold sum; simpl; lra|]; rewrite sum_cons, IH; simpl length; rewrite S_INR; lra. Qed.

Lemma sum_permutation l l' f : Permutation l l' -> sum l f = sum l' f.
Proof.
  induction 1 as [|a l l' _ IH|a b l|l l' l'' _ IH1 _ IH2]; [reflexivity| | |congruence]; rewrite !sum_cons.
  - rewrite IH; reflexivity.
  - lra.
Qed.

(** One summand stands apart. *)
Lemma sum_split l a f : In a l -> exists l', Permutation l (a :: l') /\ sum l f = f a + sum l' f.
Proof.
  intros I; destruct (in_split a l I) as (l1 & l2 & ->).
  exists (l1 ++ l2); split.
  - symmetry; apply Permutation_middle.
  - rewrite (sum_permutation _ (a :: l1 ++ l2)); [reflexivity|]; symmetry; apply Permutation_middle.
Qed.

(** A sum with one nonzero summand, over a list without duplicates. *)
Lemma sum_single l a f : NoDup l -> In a l -> (forall x, In x l -> x <> a -> f x = 0) -> sum l f = f a.
Proof.
  intros N I E; destruct (sum_split l a f I) as (l' & P & ->).
  rewrite sum_zero; [lra|]; intros x Hx; apply E.
  - apply (Permutation_in x (Permutation_sym P)); right; exact Hx.
  - intros ->; apply (Permutation_NoDup P) in N; inversion N; contradiction.
Qed.

Lemma sum_positive l f : l <> [] -> (forall x, In x l -> 0 < f x) -> 0 < sum l f.
Proof.
  destruct l as [|a l]; [congruence|]; intros _ E; rewrite sum_cons.
  assert (0 < f a) by (apply E; left; reflexivity).
  assert (0 <= sum l f); [|lra]; apply sum_nonneg; intros x Hx; left; apply E; right; exact Hx.
Qed.

(** Over fewer elements the sum of nonnegative numbers is smaller. *)
Lemma sum_incl l l' f : NoDup l -> incl l l' -> (forall x, 0 <= f x) -> sum l f <= sum l' f.
Proof.
  revert l'; induction l as [|a l IH]; intros l' N I E.
  - apply sum_nonneg; intros; apply E.
  - destruct (sum_split l' a f) as (m & P & ->); [apply I; left; reflexivity|].
    rewrite sum_cons; apply Rplus_le_compat_l; apply IH; [inversion N; assumption| |exact E].
    intros x Hx; assert (Hx' : In x (a :: m)) by (apply (Permutation_in x P), I; right; exact Hx).
    destruct Hx' as [<-|Hx']; [inversion N; contradiction|exact Hx'].
Qed.

End Sums.

Lemma sum_map {A B} (m : list B) (g : B -> A) (f : A -> R) : sum (map g m) f = sum m (fun y => f (g y)).
Proof. induction m as [|b m IH]; [reflexivity|]; simpl map; rewrite !sum_cons, IH; reflexivity. Qed.

Lemma sum_flat_map {A B} (m : list B) (g : B -> list A) (f : A -> R) :
  sum (flat_map g m) f = sum m (fun y => sum (g y) f).
Proof. induction m as [|b m IH]; [reflexivity|]; simpl flat_map; rewrite sum_app, sum_cons, IH; reflexivity. Qed.

Lemma sum_swap {A B} (l : list A) (m : list B) (f : A -> B -> R) :
  sum l (fun x => sum m (fun y => f x y)) = sum m (fun y => sum l (fun x => f x y)).
Proof.
  induction l as [|a l IH].
  - transitivity 0; [reflexivity|]; symmetry; apply sum_zero; reflexivity.
  - rewrite sum_cons, IH, <- sum_plus; reflexivity.
Qed.

Lemma sum_below_S n f : sum_below (S n) f = f O + sum_below n (fun i => f (S i)).
Proof. unfold sum_below; simpl seq; rewrite sum_cons, <- seq_shift, sum_map; reflexivity. Qed.

Lemma sum_below_ext n f g : (forall i, (i < n)%nat -> f i = g i) -> sum_below n f = sum_below n g.
Proof. intros E; apply sum_ext; intros i Hi; apply E; apply in_seq in Hi; lia. Qed.

Lemma sum_below_zero n f : (forall i, (i < n)%nat -> f i = 0) -> sum_below n f = 0.
Proof. intros E; apply sum_zero; intros i Hi; apply E; apply in_seq in Hi; lia. Qed.

Lemma sum_below_le n f g : (forall i, (i < n)%nat -> f i <= g i) -> sum_below n f <= sum_below n g.
Proof. intros E; apply sum_le; intros i Hi; apply E; apply in_seq in Hi; lia. Qed.

Lemma sum_below_single n a f : (a < n)%nat -> (forall i, (i < n)%nat -> i <> a -> f i = 0) -> sum_below n f = f a.
Proof.
  intros Ha E; apply sum_single; [apply seq_NoDup|apply in_seq; lia|].
  intros i Hi; apply E; apply in_seq in Hi; lia.
Qed.

(** Σ_{i < g·m} f(i) = Σ_{u < g} Σ_{i < m} f(u·m + i) *)
Lemma sum_below_blocks g m f : sum_below (g * m) f = sum_below g (fun u => sum_below m (fun i => f (u * m + i)%nat)).
Proof.
  revert f; induction g as [|g IH]; intros f; [reflexivity|].
  rewrite sum_below_S; simpl Nat.mul; unfold sum_below at 1; rewrite seq_app, sum_app; f_equal.
  replace (seq (0 + m) (g * m)) with (map (fun i => (m + i)%nat) (seq 0 (g * m))).
  - rewrite sum_map; fold (sum_below (g * m) (fun i => f (m + i)%nat)); rewrite IH.
    apply sum_below_ext; intros u _; apply sum_below_ext; intros i _; f_equal; lia.
  - generalize (g * m)%nat 0%nat; intros n; induction n as [|n IHn]; intros s; simpl; [reflexivity|].
    rewrite IHn; f_equal; lia.
Qed.

(** A sum over a list, by index. *)
Lemma sum_as_below {A} (l : list A) (f : A -> R) :
  sum l f = sum_below (length l) (fun n => match nth_error l n with Some x => f x | None => 0 end).
Proof. induction l as [|a l IH]; [reflexivity|]; simpl length; rewrite sum_cons, sum_below_S, IH; reflexivity. Qed.

(** x I = x and I y = y. *)
Lemma row_times_identity n x j : (j < n)%nat -> row_times n x identity j = x j.
Proof.
  intros Hj; unfold row_times, identity; rewrite (sum_below_single n j); [rewrite Nat.eqb_refl; lra|exact Hj|].
  intros i _ Hi; apply Nat.eqb_neq in Hi; rewrite Hi; lra.
Qed.

Lemma times_column_identity n y i : (i < n)%nat -> times_column n identity y i = y i.
Proof.
  intros Hi; unfold times_column, identity; rewrite (sum_below_single n i); [rewrite Nat.eqb_refl; lra|exact Hi|].
  intros j _ Hj; rewrite (proj2 (Nat.eqb_neq i j)) by congruence; lra.
Qed.

(** * Positions *)

Lemma length_add p q : length p = length q -> length (add p q) = length p.
Proof. revert q; induction p as [|a p IH]; intros [|b q]; simpl; try lia; intros E; rewrite IH; lia. Qed.

Lemma length_sub p q : length p = length q -> length (sub p q) = length p.
Proof. revert q; induction p as [|a p IH]; intros [|b q]; simpl; try lia; intros E; rewrite IH; lia. Qed.

Lemma add_sub p q : length p = length q -> add q (sub p q) = p.
Proof.
  revert q; induction p as [|a p IH]; intros [|b q]; simpl; try lia; intros E; [reflexivity|].
  rewrite IH by lia; f_equal; lia.
Qed.

Lemma sub_add p q : length p = length q -> sub (add q p) q = p.
Proof.
  revert q; induction p as [|a p IH]; intros [|b q]; simpl; try lia; intros E; [reflexivity|].
  rewrite IH by lia; f_equal; lia.
Qed.

Lemma add_injective q p p' : length p = length q -> length p' = length q -> add q p = add q p' -> p = p'.
Proof. intros E E' H; rewrite <- (sub_add p q), <- (sub_add p' q), H by assumption; reflexivity. Qed.

(** (k − q) − τ = k − (q + τ) *)
Lemma sub_sub k q t : length q = length t -> sub (sub k q) t = sub k (add q t).
Proof.
  revert q t; induction k as [|a k IH]; intros [|b q] [|c t]; simpl; try lia; intros E; try reflexivity.
  rewrite IH by lia; f_equal; lia.
Qed.

Lemma norm2_nonneg p : (0 <= norm2 p)%Z.
Proof. induction p as [|a p IH]; simpl; nia. Qed.

Lemma norm2_sub_positive p q : length p = length q -> p <> q -> (1 <= norm2 (sub p q))%Z.
Proof.
  revert q; induction p as [|a p IH]; intros [|b q]; simpl; try lia; intros E N; [congruence|].
  destruct (Z.eq_dec a b) as [->|D].
  - assert (1 <= norm2 (sub p q))%Z; [apply IH; [lia|congruence]|nia].
  - assert (0 <= norm2 (sub p q))%Z by apply norm2_nonneg; nia.
Qed.

Lemma norm2_sub_diag p : norm2 (sub p p) = 0%Z.
Proof. induction p as [|a p IH]; simpl; [reflexivity|]; rewrite IH; lia. Qed.

(** ‖p − q‖² = ‖p‖² − 2 p·q + ‖q‖² *)
Lemma norm2_sub p q : length p = length q -> norm2 (sub p q) = (norm2 p - 2 * dotZ p q + norm2 q)%Z.
Proof.
  revert q; induction p as [|a p IH]; intros [|b q]; simpl length; try lia; intros E; [reflexivity|].
  cbn [norm2 sub dotZ]; rewrite IH by lia; ring.
Qed.

Lemma dotZ_comm p q : dotZ p q = dotZ q p.
Proof. revert q; induction p as [|a p IH]; intros [|b q]; simpl; try reflexivity; rewrite IH; lia. Qed.

(** Σ_{i<d} p_i q_i = p·q *)
Lemma sum_coordinates p q : length p = length q ->
  sum_below (length p) (fun i => coordinate p i * coordinate q i) = IZR (dotZ p q).
Proof.
  revert q; induction p as [|a p IH]; intros [|b q]; simpl length; try lia; intros E; [reflexivity|].
  rewrite sum_below_S; unfold coordinate at 1 2; simpl nth; simpl dotZ.
  rewrite plus_IZR, mult_IZR, <- IH by lia; reflexivity.
Qed.

Lemma position_eq_dec (p q : position) : {p = q} + {p <> q}.
Proof. apply list_eq_dec, Z.eq_dec. Qed.
