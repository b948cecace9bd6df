(** What heads that carry the taps do not compute exactly at finite sharpness, and what they do by accident.

    Statements:
      attended_taps       a head's attention on the taps adds up to less than 1, if one token is no tap
      never_exact         on a grid with a token that is no tap, heads that carry the taps and attend by
                          position, with any encoding, never compute a nonzero kernel exactly
      never_exact_construction   so the construction computes no nonzero kernel at any α
      two_heads_needed    a kernel with a positive and a negative weight needs two heads: one head
                          differs from it by at least half the smaller weight, even in any limit
      exact_by_accident   the token that is no tap is needed: where every token is a tap, some nonzero
                          kernel is computed exactly at that query, at every α: the attention
                          weights are a stochastic matrix, which has the eigenvalue 1 *)

From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Layers Theorem1.
Import ListNotations.
Open Scope R_scope.

(** The image that is 1 at token k, channel i, and 0 elsewhere. *)
Definition unit_image (k : position) (i : nat) : image :=
  fun k' i' => if position_eq_dec k' k then if Nat.eq_dec i' i then 1 else 0 else 0.
Definition zero_image : image := fun _ _ => 0.

(** Heads on the image 1 at k1: each head's attention to k1 times its value matrix. *)
Lemma attend_unit {H} (L : layer H) G q j k1 i1 : NoDup G -> In k1 G -> (i1 < D_in L)%nat ->
  attend L G (unit_image k1 i1) q j =
  b_out L j + sum (heads L) (fun h => attention L G h (unit_image k1 i1) q k1 * value_output L h i1 j).
Proof.
  intros N I Hi; rewrite attend_heads; f_equal; apply sum_ext; intros h _.
  unfold row_times at 1; rewrite (sum_below_single (D_in L) i1); [|exact Hi|].
  - rewrite (sum_single G k1 _ N I).
    + unfold unit_image at 2; destruct (position_eq_dec k1 k1); [|congruence].
      destruct (Nat.eq_dec i1 i1); [ring|congruence].
    + intros k _ D; unfold unit_image at 2; destruct (position_eq_dec k k1); [congruence|ring].
  - intros i _ D; rewrite sum_zero; [ring|]; intros k _; unfold unit_image at 2.
    destruct (Nat.eq_dec i i1); [congruence|]; destruct (position_eq_dec k k1); ring.
Qed.

Lemma unit_bounded d_in G k1 i1 : bounded d_in 1 G (unit_image k1 i1).
Proof.
  intros k i _ _; unfold unit_image; destruct (position_eq_dec k k1); [destruct (Nat.eq_dec i i1)|];
    rewrite ?Rabs_R0, ?Rabs_R1; lra.
Qed.

Lemma zero_bounded d_in G : bounded d_in 1 G zero_image.
Proof. intros k i _ _; unfold zero_image; rewrite Rabs_R0; lra. Qed.

Lemma attend_zero {H} (L : layer H) G q j : attend L G zero_image q j = b_out L j.
Proof.
  unfold attend; rewrite (sum_zero (heads L)); [ring|]; intros h _; unfold row_times.
  apply sum_below_zero; intros a _; rewrite sum_below_zero; [ring|]; intros i _.
  rewrite sum_zero; [ring|]; intros; unfold zero_image; ring.
Qed.

Lemma conv_zero d_in Δ W b q j : conv d_in Δ W b zero_image q j = b j.
Proof.
  unfold conv; rewrite sum_zero; [ring|]; intros τ _; apply sum_below_zero; intros; unfold zero_image; ring.
Qed.

(** A kernel on the image 1 at q + τ0: its weight at τ0. *)
Lemma conv_unit d d_in Δ W b q j τ0 i0 : positions d Δ -> length q = d -> In τ0 Δ -> (i0 < d_in)%nat ->
  conv d_in Δ W b (unit_image (add q τ0) i0) q j = b j + W τ0 i0 j.
Proof.
  intros [N F] Hq I Hi; rewrite Forall_forall in F; unfold conv; f_equal; rewrite (sum_single Δ τ0 _ N I).
  - unfold row_times; rewrite (sum_below_single d_in i0); [|exact Hi|].
    + unfold unit_image; destruct (position_eq_dec _ _); [|congruence]; destruct (Nat.eq_dec i0 i0); [ring|congruence].
    + intros i _ D; unfold unit_image; destruct (position_eq_dec _ _); [|ring]; destruct (Nat.eq_dec i i0); [congruence|ring].
  - intros τ Iτ D; unfold row_times; apply sum_below_zero; intros i _; unfold unit_image.
    destruct (position_eq_dec _ _) as [E|]; [|ring]; exfalso; apply D; apply (add_injective q); [| |exact E].
    + rewrite Hq; apply F, Iτ.
    + rewrite Hq; apply F, I.
Qed.

(** * Never exact *)

(** Softmax weights on the taps at q add up to less than 1: the spare token has some. *)
Lemma attended_taps d Δ G q s spare : positions d Δ -> length q = d -> targets_on G q Δ ->
  In spare G -> (forall τ, In τ Δ -> add q τ <> spare) -> sum Δ (fun τ => softmax G s (add q τ)) < 1.
Proof.
  intros [N F] Hq T I D; rewrite Forall_forall in F.
  destruct (sum_split G spare (softmax G s) I) as (G' & P & E).
  rewrite softmax_sum in E by (intros ->; destruct I); pose proof (softmax_positive G s spare I) as Q.
  assert (sum (map (add q) Δ) (softmax G s) <= sum G' (softmax G s)); [|rewrite sum_map in *; lra].
  apply sum_incl.
  - clear - N F Hq; induction N as [|τ Δ A N IH]; simpl; constructor.
    + intros B; apply in_map_iff in B; destruct B as (τ' & B & I); apply A.
      rewrite <- (add_injective q τ' τ); [exact I| | |exact B]; rewrite Hq; apply F; simpl; tauto.
    + apply IH; intros; apply F; right; assumption.
  - intros k Ik; apply in_map_iff in Ik; destruct Ik as (τ & <- & Iτ).
    destruct (Permutation_in _ P (T τ Iτ)) as [A|A]; [destruct (D τ Iτ (eq_sym A))|exact A].
  - intros k; left; apply Rdiv_lt_0_compat; [apply exp_pos|apply (normaliser_positive _ _ spare I)].
Qed.

(** A grid with a token that is no tap, heads that carry the taps W_τ and attend by position alone, with any
    encoding: if W is not zero into output channel j, the two outputs differ on some image of zeros and
    at most one 1.  Equality would give |W_δ| <= Σ_τ P_τ(q + δ) |W_τ|, and so
    Σ_δ |W_δ| <= Σ_τ (Σ_δ P_τ(q + δ)) |W_τ| < Σ_τ |W_τ|. *)
Theorem never_exact d d_p d_in d_out r_ v_ Δ W b b' G q i0 j τ0 spare :
  positions d Δ -> positions d G -> length q = d -> targets_on G q Δ ->
  In spare G -> (forall τ, In τ Δ -> add q τ <> spare) ->
  (i0 < d_in)%nat -> (j < d_out)%nat -> In τ0 Δ -> W τ0 i0 j <> 0 ->
  exists X, bounded d_in 1 G X /\ attend (positional d_p d_in d_out r_ Δ v_ W b') G X q j <> conv d_in Δ W b X q j.
Proof.
  intros HΔ [N _] Hq T I D Hi Hj I0 HW; set (L := positional d_p d_in d_out r_ Δ v_ W b').
  destruct (Req_dec (b' j) (b j)) as [Eb|Nb].
  2: { exists zero_image; split; [apply zero_bounded|]; rewrite attend_zero, conv_zero; exact Nb. }
  set (P := fun τ => softmax G (fun k => dot d_p (v_ τ) (r_ (sub k q)))).
  set (read := fun δ => sum Δ (fun τ => P τ (add q δ) * W τ i0 j)).
  assert (U : forall δ, In δ Δ -> attend L G (unit_image (add q δ) i0) q j = b' j + read δ).
  { intros δ Iδ; rewrite attend_unit by (try assumption; apply T, Iδ); change (b_out L) with b'; f_equal; unfold read.
    apply sum_ext; intros τ _; f_equal.
    - apply softmax_ext; [|apply T, Iδ]; intros; apply score_positional.
    - apply row_times_identity, Hj. }
  destruct (Forall_Exists_dec (fun δ => read δ = W δ i0 j) (fun δ => Req_EM_T (read δ) (W δ i0 j)) Δ) as [A|A].
  2: { apply Exists_exists in A; destruct A as (δ & Iδ & A); exists (unit_image (add q δ) i0); split; [apply unit_bounded|].
       rewrite U, (conv_unit d) by assumption; lra. }
  exfalso; rewrite Forall_forall in A; set (w := fun τ => Rabs (W τ i0 j)); set (share := fun τ => sum Δ (fun δ => P τ (add q δ))).
  assert (S : forall τ, share τ < 1) by (intros; apply (attended_taps d Δ G q _ spare); assumption).
  assert (B : sum Δ w <= sum Δ (fun τ => share τ * w τ)).
  { rewrite (sum_ext Δ (fun τ => share τ * w τ) (fun τ => sum Δ (fun δ => P τ (add q δ) * w τ))), sum_swap
      by (intros; unfold share; rewrite sum_scal_r; reflexivity).
    apply sum_le; intros δ Iδ; unfold w at 1; rewrite <- (A δ Iδ); eapply Rle_trans; [apply sum_abs|].
    apply sum_le; intros τ _; rewrite Rabs_mult, (Rabs_pos_eq (P τ _)); [apply Rle_refl|].
    left; apply softmax_positive, T, Iδ. }
  assert (M : forall τ, 0 <= (1 - share τ) * w τ)
    by (intros τ; apply Rmult_le_pos; [specialize (S τ); lra|apply Rabs_pos]).
  assert (0 < (1 - share τ0) * w τ0) by (apply Rmult_lt_0_compat; [specialize (S τ0); lra|apply Rabs_pos_lt, HW]).
  destruct (sum_split Δ τ0 (fun τ => (1 - share τ) * w τ) I0) as (Δ' & _ & E).
  assert (0 <= sum Δ' (fun τ => (1 - share τ) * w τ)) by (apply sum_nonneg; intros; apply M).
  rewrite (sum_ext Δ _ (fun τ => w τ - share τ * w τ)), sum_minus in E by (intros; ring); lra.
Qed.

(** So the construction computes no nonzero kernel at any finite α. *)
Corollary never_exact_construction d d_in d_out α Δ W b b' G q i0 j τ0 spare :
  positions d Δ -> positions d G -> length q = d -> targets_on G q Δ ->
  In spare G -> (forall τ, In τ Δ -> add q τ <> spare) ->
  (i0 < d_in)%nat -> (j < d_out)%nat -> In τ0 Δ -> W τ0 i0 j <> 0 ->
  exists X, bounded d_in 1 G X /\
    attend (construction d d_in d_out α Δ (fun τ => τ) W b') G X q j <> conv d_in Δ W b X q j.
Proof. apply never_exact. Qed.

(** * Two heads for both signs *)

(** A kernel with W_τ1 > 0 > W_τ2 at one pair of channels: one head, whatever its scores, is off by more
    than ε on one of three images, for every ε below half of both weights. *)
Theorem two_heads_needed {H} (L : layer H) h d Δ W b G q i0 j τ1 τ2 ε :
  heads L = [h] -> positions d Δ -> positions d G -> length q = d -> targets_on G q Δ -> (i0 < D_in L)%nat ->
  In τ1 Δ -> In τ2 Δ -> 2 * ε <= W τ1 i0 j -> 2 * ε <= - W τ2 i0 j -> 0 < W τ1 i0 j -> W τ2 i0 j < 0 ->
  exists X, bounded (D_in L) 1 G X /\ ~ Rabs (attend L G X q j - conv (D_in L) Δ W b X q j) < ε.
Proof.
  intros E HΔ [N F] Hq T Hi I1 I2 E1 E2 P1 P2.
  set (error := fun X => Rabs (attend L G X q j - conv (D_in L) Δ W b X q j)).
  destruct (Rlt_dec (error zero_image) ε) as [A0|]; [|exists zero_image; split; [apply zero_bounded|assumption]].
  set (X1 := unit_image (add q τ1) i0); set (X2 := unit_image (add q τ2) i0).
  destruct (Rlt_dec (error X1) ε) as [A1|]; [|exists X1; split; [apply unit_bounded|assumption]].
  destruct (Rlt_dec (error X2) ε) as [A2|]; [|exists X2; split; [apply unit_bounded|assumption]].
  exfalso; unfold error, X1, X2 in A0, A1, A2; rewrite attend_zero, conv_zero in A0.
  rewrite attend_unit, E in A1, A2 by (try assumption; apply T; assumption).
  unfold sum in A1, A2; simpl fold_right in A1, A2; rewrite Rplus_0_r in A1, A2.
  rewrite (conv_unit d) in A1, A2 by assumption.
  pose proof (softmax_positive G (fun k => score L h X1 q k) _ (T _ I1)) as Q1.
  pose proof (softmax_positive G (fun k => score L h X2 q k) _ (T _ I2)) as Q2.
  unfold attention in A1, A2; unfold X1, X2 in Q1, Q2.
  set (p1 := softmax _ _ _) in A1, Q1; set (p2 := softmax _ _ _) in A2, Q2; set (m := value_output L h i0 j) in *.
  apply Rabs_def2 in A0, A1, A2; assert (0 < p1 * m) by lra; assert (p2 * m < 0) by lra.
  destruct (Rle_dec m 0); nra.
Qed.

(** * Exact by accident *)

(** Fewer homogeneous linear equations than unknowns have a solution other than zero. *)
Lemma linear_equations {A} (dec : forall x y : A, {x = y} + {x <> y}) (equations : list (A -> R)) :
  forall l : list A, NoDup l -> (length equations < length l)%nat ->
  exists w : A -> R, (exists x, In x l /\ w x <> 0) /\ forall e, In e equations -> sum l (fun x => w x * e x) = 0.
Proof.
  remember (length equations) as n eqn:Hn; revert equations Hn; induction n as [|n IH]; intros equations Hn l N Hl.
  - destruct equations; [|discriminate]; destruct l as [|a l]; [simpl in Hl; lia|].
    exists (fun _ => 1); split; [exists a; split; [left; reflexivity|lra]|intros e []].
  - destruct equations as [|e0 equations]; [discriminate|]; simpl in Hn.
    destruct (existsb (fun x => if Req_EM_T (e0 x) 0 then false else true) l) eqn:Ex.
    + apply existsb_exists in Ex; destruct Ex as (x0 & I0 & E0); destruct (Req_EM_T (e0 x0) 0) as [|E0']; [discriminate|].
      clear E0; destruct (in_split x0 l I0) as (l1 & l2 & ->).
      apply NoDup_remove in N; destruct N as [N N0]; set (l' := l1 ++ l2) in *.
      assert (S : forall g, sum (l1 ++ x0 :: l2) g = g x0 + sum l' g).
      { intros g; rewrite (sum_permutation (l1 ++ x0 :: l2) (x0 :: l')); [reflexivity|]; symmetry; apply Permutation_middle. }
      destruct (IH (map (fun e x => e x - e x0 / e0 x0 * e0 x) equations)) with (l := l') as (w & (x & Ix & Nx) & Hw).
      * rewrite map_length; lia.
      * exact N.
      * unfold l'; rewrite app_length in *; simpl in Hl; lia.
      * set (c := - sum l' (fun x => w x * e0 x) / e0 x0).
        exists (fun x => if dec x x0 then c else w x); split.
        { exists x; split; [|destruct (dec x x0) as [->|]; [contradiction|exact Nx]].
          unfold l' in Ix; apply in_app_or in Ix; apply in_or_app; simpl; tauto. }
        assert (S' : forall e, sum (l1 ++ x0 :: l2) (fun x => (if dec x x0 then c else w x) * e x) =
                               c * e x0 + sum l' (fun x => w x * e x)).
        { intros e; rewrite S; destruct (dec x0 x0); [|congruence]; f_equal; apply sum_ext; intros y Iy.
          destruct (dec y x0) as [->|]; [contradiction|reflexivity]. }
        intros e [<-|Ie]; rewrite S'; [unfold c; field; exact E0'|].
        specialize (Hw _ (in_map _ _ _ Ie)); cbv beta in Hw.
        rewrite (sum_ext l' _ (fun x => w x * e x - e x0 / e0 x0 * (w x * e0 x))) in Hw by (intros; ring).
        rewrite sum_minus, sum_scal in Hw; unfold c; rewrite <- Hw; field; exact E0'.
    + assert (Z : forall x, In x l -> e0 x = 0).
      { intros x Ix; destruct (Req_EM_T (e0 x) 0) as [E|E] eqn:D; [exact E|]; exfalso.
        assert (T : existsb (fun x => if Req_EM_T (e0 x) 0 then false else true) l = true); [|congruence].
        apply existsb_exists; exists x; split; [exact Ix|]; rewrite D; reflexivity. }
      destruct (IH equations) with (l := l) as (w & Hx & Hw); [lia|exact N|lia|].
      exists w; split; [exact Hx|]; intros e [<-|Ie]; [|apply Hw, Ie].
      apply sum_zero; intros x Ix; rewrite (Z x Ix); ring.
Qed.

(** A stochastic matrix P (rows add up to 1) has a fixed row vector w ≠ 0: w P = w. *)
Lemma stochastic_fixed_vector {A} (dec : forall x y : A, {x = y} + {x <> y}) (l : list A) (P : A -> A -> R) :
  NoDup l -> l <> [] -> (forall x, In x l -> sum l (P x) = 1) ->
  exists w : A -> R, (exists x, In x l /\ w x <> 0) /\ forall y, In y l -> sum l (fun x => w x * P x y) = w y.
Proof.
  intros N NE HP; destruct l as [|a l]; [congruence|]; set (all := a :: l) in *.
  set (unit := fun y x : A => if dec x y then 1 else 0).
  assert (U : forall (w : A -> R) y, In y all -> sum all (fun x => w x * (P x y - unit y x)) =
                                     sum all (fun x => w x * P x y) - w y).
  { intros w y Iy; rewrite (sum_ext all _ (fun x => w x * P x y - w x * unit y x)) by (intros; ring).
    rewrite sum_minus, (sum_single all y (fun x => w x * unit y x) N Iy); unfold unit.
    - destruct (dec y y); [ring|congruence].
    - intros x _ D; destruct (dec x y); [congruence|ring]. }
  destruct (linear_equations dec (map (fun y x => P x y - unit y x) l) all N) as (w & Hx & Hw).
  { rewrite map_length; simpl; lia. }
  exists w; split; [exact Hx|].
  assert (Hl : forall y, In y l -> sum all (fun x => w x * P x y) - w y = 0).
  { intros y Iy; rewrite <- U by (right; exact Iy); apply (Hw (fun x => P x y - unit y x)).
    apply (in_map (fun y x => P x y - unit y x)), Iy. }
  assert (Total : sum all (fun y => sum all (fun x => w x * P x y) - w y) = 0).
  { rewrite sum_minus, sum_swap, (sum_ext all (fun x => sum all (fun y => w x * P x y)) w); [ring|].
    intros x Ix; rewrite sum_scal, HP by exact Ix; ring. }
  intros y [<-|Iy]; [|specialize (Hl y Iy); lra].
  unfold all in Total at 1; rewrite sum_cons, (sum_zero l) in Total by exact Hl; lra.
Qed.

(** Where every token of the grid is a tap at the query q, some kernel W_τ = w_τ M with w ≠ 0, M any
    matrix, is computed exactly at q, for every image: at every α. *)
Theorem exact_by_accident d d_in d_out α Δ (M : matrix) b G q :
  positions d Δ -> Δ <> [] -> positions d G -> length q = d -> Permutation (map (add q) Δ) G ->
  exists w : position -> R, (exists τ, In τ Δ /\ w τ <> 0) /\
  let W := fun τ i j => w τ * M i j in
  forall X j, (j < d_out)%nat ->
  attend (construction d d_in d_out α Δ (fun τ => τ) W b) G X q j = conv d_in Δ W b X q j.
Proof.
  intros [N F] NE G_d Hq every.
  set (L := construction d d_in d_out α Δ (fun τ => τ) (fun _ => M) b).
  set (P := fun τ τ' => attention L G τ zero_image q (add q τ')).
  assert (Each : forall g, sum G g = sum Δ (fun τ => g (add q τ))).
  { intros g; rewrite <- (sum_permutation _ _ _ every), sum_map; reflexivity. }
  destruct (stochastic_fixed_vector position_eq_dec Δ P N NE) as (w & Hw & fixed).
  { intros τ _; unfold P; rewrite <- (Each (fun k => attention L G τ zero_image q k)); apply softmax_sum.
    intros EG; rewrite EG in every; apply Permutation_sym, Permutation_nil, map_eq_nil in every; contradiction. }
  exists w; split; [exact Hw|]; intros W X j Hj; unfold construction; rewrite attend_positional by exact Hj.
  unfold conv; f_equal.
  (* both are Σ_τ w_τ (X_{q+τ} M)_j *)
  set (y := fun k => row_times d_in (X k) M j).
  transitivity (sum Δ (fun τ => sum Δ (fun τ' => w τ * P τ τ' * y (add q τ')))).
  - apply sum_ext; intros τ _; unfold P.
    rewrite <- (Each (fun k => w τ * attention L G τ zero_image q k * y k)).
    unfold y, row_times, sum_below, W.
    rewrite (sum_ext G _ (fun k => sum (seq 0 d_in) (fun i => attention L G τ zero_image q k * X k i * (w τ * M i j)))).
    + rewrite sum_swap; apply sum_ext; intros i _; rewrite <- sum_scal_r; apply sum_ext; intros k Ik; f_equal; f_equal.
      apply softmax_ext; [|exact Ik]; intros; unfold L, construction; rewrite !score_positional; reflexivity.
    + intros k _; rewrite <- sum_scal; apply sum_ext; intros; ring.
  - rewrite sum_swap; apply sum_ext; intros τ' I'; rewrite sum_scal_r, fixed by exact I'.
    unfold y, W, row_times, sum_below; rewrite <- sum_scal; apply sum_ext; intros; ring.
Qed.
