(** The rounding of a layer whose W_val W_out is formed first: one sum over all heads and input channels.

    z = fl(b_out + Σ_h Σ_c M^h_{c,j} A^h_c), with M^h = fl(W_val^h W_out^h) and A^h = fl(P^h X), each in any order.  That
    is how one-hot heads are evaluated fast: A^h is then X shifted, without rounding.
    Statements, for floats |X| ≤ B on the grid:
      attended_sum            the rounding of the one sum, whatever A^h is, from how far A^h may be off
      shifted_sum             for one-hot heads z is fl(b_out + Σ_h Σ_c M^h_{c,j} X_{q+f(h),c}), which takes no softmax
      weights_first_rounding  |fl(MHSA(X)) − fl(Conv(X))| ≤ leak + taps + rounding
      weights_first_sharp     ≤ taps + rounding, for heads whose weights come from a float softmax of sharp scores
      weights_rounding        an entry of fl(W_val W_out) has the rounding of one dot product of at most n terms
      weights_exact           and none where one factor is the identity *)

From Coq Require Import Reals ZArith List Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums RoundingTree RoundingDot RoundingHead RoundingTaps RoundingLayer.
From Attention Require Import FloatSoftmax.
Import ListNotations.
Open Scope R_scope.

(** An entry of W_val W_out: the head's λ, the sum of the magnitudes of its terms, and a bound on its rounding. *)
Record entry (T : Type) := Entry { entry_leak : T; entry_size : T; entry_error : T }.
Arguments Entry {T}. Arguments entry_leak {T}. Arguments entry_size {T}. Arguments entry_error {T}.

Definition entries {H} (L : layer H) (λ : H -> R) (e : H -> nat -> R) (j : nat) : list (entry R) :=
  flat_map (fun h => map (fun c => Entry (λ h) (magnitude (weight_terms L j h c)) (e h c)) (seq 0 (D_in L))) (heads L).

(** The rounding of the convolution, of the entries and of the attended tokens, and of the one sum. *)
Definition weights_figure (emin prec : Z) (N : nat) (B b_conv : R) (ws : list R) (b_att : R) (es : list (entry R)) : R :=
  let mixed t := mixing emin prec (entry_leak t) N ((1 + entry_leak t) * B) in
  let attended t := (1 + entry_leak t) * B + mixed t in
  dot_bound emin prec (support (b_conv :: ws)) (Rabs b_conv + weight ws * B)
  + sum es (fun t => entry_error t * attended t + entry_size t * mixed t)
  + dot_bound emin prec (support (b_att :: map entry_size es))
      (Rabs b_att + sum es (fun t => (entry_size t + entry_error t) * attended t)).

(** Some evaluation of b_out + Σ_h Σ_c M^h_{c,j} X_{q+f(h),c} returns z, with M^h = fl(W_val^h W_out^h). *)
Definition shifted_computes (emin prec : Z) {H} (L : layer H) (f : H -> position) (X : image) (q : position) (j : nat)
    (z : R) : Prop :=
  exists M : H -> nat -> R,
    (forall h c, In h (heads L) -> (c < D_in L)%nat -> computes emin prec (weight_terms L j h c) (M h c)) /\
    computes emin prec
      ((b_out L j, 1) :: flat_map (fun h => map (fun c => (M h c, X (add q (f h)) c)) (seq 0 (D_in L))) (heads L)) z.

Lemma support_pointwise {A} (f g : A -> R) l : (forall x, In x l -> g x = 0 -> f x = 0) ->
  (support (map f l) <= support (map g l))%nat.
Proof.
  induction l as [|x l IH]; intros E; [apply le_n|]; simpl map; specialize (IH (fun y I => E y (or_intror I))).
  destruct (support_cons (f x) (map f l)) as [F0 F1], (support_cons (g x) (map g l)) as [G0 G1].
  destruct (Req_EM_T (f x) 0) as [Zf|Zf], (Req_EM_T (g x) 0) as [Zg|Zg];
    rewrite ?(F0 Zf), ?(F1 Zf), ?(G0 Zg), ?(G1 Zg); try lia.
  destruct Zf; apply E; [left; reflexivity|exact Zg].
Qed.

Lemma support_flat_map_pointwise {A C} (f g : A -> C -> R) (l : list A) (m : list C) :
  (forall x y, In x l -> In y m -> g x y = 0 -> f x y = 0) ->
  (support (flat_map (fun x => map (f x) m) l) <= support (flat_map (fun x => map (g x) m) l))%nat.
Proof.
  intros E; induction l as [|x l IH]; [apply le_n|]; simpl flat_map; unfold support in *; rewrite !filter_app, !app_length.
  specialize (IH (fun x' y I => E x' y (or_intror I))).
  assert (P := support_pointwise (f x) (g x) m (fun y => E x y (or_introl eq_refl))); unfold support in P; lia.
Qed.

(** The figure of N tokens covers every smaller grid. *)
Lemma weights_figure_monotone emin prec N N' B b ws b' es : (N <= N')%nat -> 0 <= B ->
  (forall t, In t es -> 0 <= entry_leak t /\ 0 <= entry_size t /\ 0 <= entry_error t) ->
  weights_figure emin prec N B b ws b' es <= weights_figure emin prec N' B b ws b' es.
Proof.
  intros HN HB Ht; unfold weights_figure; cbv zeta.
  assert (M : forall t, In t es -> 0 <= (1 + entry_leak t) * B /\
    0 <= mixing emin prec (entry_leak t) N ((1 + entry_leak t) * B)
      <= mixing emin prec (entry_leak t) N' ((1 + entry_leak t) * B)).
  { intros t It; destruct (Ht t It) as (L0 & _); assert (A0 : 0 <= (1 + entry_leak t) * B) by (apply Rmult_le_pos; lra).
    split; [exact A0|split; [apply mixing_nonneg, A0|]]; unfold mixing; destruct (Req_EM_T _ 0); [apply Rle_refl|].
    apply dot_bound_monotone; [exact HN|exact A0|apply Rle_refl]. }
  apply Rplus_le_compat; [apply Rplus_le_compat_l, sum_le|apply dot_bound_monotone; [lia| |apply Rplus_le_compat_l, sum_le]].
  - intros t It; destruct (M t It) as (A0 & M0 & M1), (Ht t It) as (_ & S0 & E0).
    apply Rplus_le_compat; apply Rmult_le_compat_l; lra.
  - apply Rplus_le_le_0_compat; [apply Rabs_pos|]; apply sum_nonneg; intros t It.
    destruct (M t It) as (A0 & M0 & M1), (Ht t It) as (_ & S0 & E0); apply Rmult_le_pos; lra.
  - intros t It; destruct (M t It) as (A0 & M0 & M1), (Ht t It) as (_ & S0 & E0); apply Rmult_le_compat_l; lra.
Qed.

(** * Sizes *)

Section Sizes.
Context {H : Type}.
Variables (L : layer H) (j : nat).

Notation size h c := (magnitude (weight_terms L j h c)).

Lemma sum_entries λ e (g : entry R -> R) : sum (entries L λ e j) g =
  sum (heads L) (fun h => sum (seq 0 (D_in L)) (fun c => g (Entry (λ h) (size h c) (e h c)))).
Proof. unfold entries; rewrite sum_flat_map; apply sum_ext; intros h _; apply sum_map. Qed.

(** By columns or by input channels. *)
Lemma head_size h : sum (seq 0 (D_h L)) (fun i => Rabs (W_out (parameters L h) i j) *
  weight (map (fun c => W_val (parameters L h) c i) (seq 0 (D_in L)))) = sum (seq 0 (D_in L)) (fun c => size h c).
Proof.
  transitivity (sum (seq 0 (D_h L)) (fun i => sum (seq 0 (D_in L)) (fun c =>
    Rabs (W_val (parameters L h) c i * W_out (parameters L h) i j)))).
  - apply sum_ext; intros i _; unfold weight; rewrite sum_map, <- sum_scal; apply sum_ext; intros c _.
    rewrite Rabs_mult; ring.
  - rewrite sum_swap; apply sum_ext; intros c _; unfold magnitude, weight_terms; rewrite sum_map; reflexivity.
Qed.

Lemma sizes_by_columns λ : sum (columns L λ j) (fun c => Rabs (out_weight c) * weight (in_weights c)) =
  sum (heads L) (fun h => sum (seq 0 (D_in L)) (fun c => size h c)).
Proof.
  unfold columns; rewrite sum_flat_map; apply sum_ext; intros h _; rewrite sum_map, <- head_size; reflexivity.
Qed.

Lemma leak_by_entries B λ : leak_figure B (columns L λ j) =
  sum (heads L) (fun h => sum (seq 0 (D_in L)) (fun c => size h c * (λ h * B))).
Proof.
  unfold leak_figure, columns; rewrite sum_flat_map; apply sum_ext; intros h _.
  rewrite sum_map, sum_scal_r, <- head_size, <- sum_scal_r; apply sum_ext; intros i _; cbn [out_weight row_leak in_weights].
  ring.
Qed.

Lemma no_products h c : size h c = 0 -> length (nonzero (weight_terms L j h c)) = O.
Proof.
  rewrite <- magnitude_nonzero; intros S0; assert (NZ : forall p, In p (nonzero (weight_terms L j h c)) ->
    fst p * snd p <> 0).
  { intros p Ip; unfold nonzero in Ip; apply filter_In in Ip; destruct Ip as [_ K].
    destruct (Req_EM_T (fst p * snd p) 0); [discriminate|assumption]. }
  destruct (nonzero (weight_terms L j h c)) as [|[w x] l]; [reflexivity|exfalso].
  assert (P0 := Rabs_pos_lt _ (NZ _ (or_introl eq_refl))); assert (P1 := magnitude_nonneg l).
  rewrite magnitude_cons in S0; cbn [fst snd] in P0; lra.
Qed.

End Sizes.

(** * The entries *)

Section Entries.
Variables emin prec : Z.
Context {prec_positive : Prec_gt_0 prec} {H : Type}.
Variables (L : layer H) (j : nat) (h : H) (c : nat).

Notation terms := (weight_terms L j h c).

Lemma weight_terms_exact : exact terms = carried L j h c.
Proof. unfold weight_terms; rewrite exact_map; reflexivity. Qed.

Theorem weights_rounding n v : (length (nonzero terms) <= n)%nat -> computes emin prec terms v ->
  Rabs (v - exact terms) <= dot_bound emin prec n (magnitude terms).
Proof.
  intros Hn C; eapply Rle_trans; [apply (dot_rounding emin prec _ _ C)|].
  apply dot_bound_monotone; [exact Hn|apply magnitude_nonneg|apply Rle_refl].
Qed.

(** One factor is the identity, the other one of floats. *)
Definition identity_factor : Prop :=
  (forall i, (i < D_h L)%nat ->
     W_out (parameters L h) i j = (if Nat.eqb i j then 1 else 0) /\ float emin prec (W_val (parameters L h) c i)) \/
  (forall i, (i < D_h L)%nat ->
     W_val (parameters L h) c i = (if Nat.eqb c i then 1 else 0) /\ float emin prec (W_out (parameters L h) i j)).

(** At most one product is not zero, and it is a float. *)
Lemma identity_products : identity_factor -> exists k, forall i, (i < D_h L)%nat ->
  let x := W_val (parameters L h) c i * W_out (parameters L h) i j in float emin prec x /\ (i <> k -> x = 0).
Proof.
  intros [E|E]; [exists j|exists c]; intros i Hi; destruct (E i Hi) as [Ei Fi]; cbv zeta; rewrite Ei.
  - destruct (Nat.eqb_spec i j); [rewrite Rmult_1_r|rewrite Rmult_0_r]; split; try assumption; try apply float_0;
      intros; congruence || reflexivity.
  - destruct (Nat.eqb_spec c i); [rewrite Rmult_1_l|rewrite Rmult_0_l]; split; try assumption; try apply float_0;
      intros; congruence || reflexivity.
Qed.

Theorem weights_exact v : identity_factor -> computes emin prec terms v -> v = exact terms.
Proof.
  intros I C; destruct (identity_products I) as [k E].
  set (w := fun i => W_val (parameters L h) c i); set (x := fun i => W_out (parameters L h) i j).
  change terms with (map (fun i => (w i, x i)) (seq 0 (D_h L))) in *; rewrite exact_map.
  assert (Z : forall i, In i (seq 0 (D_h L)) -> i <> k -> w i * x i = 0).
  { intros i Ii; apply in_seq in Ii; apply E; lia. }
  destruct (in_dec Nat.eq_dec k (seq 0 (D_h L))) as [Ik|Nk].
  - assert (Fk : float emin prec (w k * x k)) by (apply in_seq in Ik; apply E; lia).
    rewrite (one_hot_exact emin prec (seq 0 (D_h L)) w x k v (seq_NoDup _ _) Ik Z Fk C).
    symmetry; apply (sum_single _ k (fun i => w i * x i)); [apply seq_NoDup|exact Ik|exact Z].
  - assert (N : nonzero (map (fun i => (w i, x i)) (seq 0 (D_h L))) = []).
    { revert Z Nk; generalize (seq 0 (D_h L)); clear; induction l as [|i l IH]; intros Z Nk; [reflexivity|].
      simpl map; rewrite nonzero_zero; [apply IH|apply Z].
      - intros i' I; apply Z; right; exact I.
      - intros I; apply Nk; right; exact I.
      - left; reflexivity.
      - intros ->; apply Nk; left; reflexivity. }
    assert (D := dot_rounding emin prec _ _ C); rewrite N, exact_map in D; unfold dot_bound in D; simpl INR in D.
    assert (D' : Rabs (v - sum (seq 0 (D_h L)) (fun i => w i * x i)) <= 0) by lra.
    apply Rabs_le_inv in D'; lra.
Qed.

End Entries.

(** * The layer *)

Section Layer.
Variables emin prec : Z.
Context {prec_positive : Prec_gt_0 prec} {H : Type}.
Variables (L : layer H) (f : H -> position) (G Δ : list position) (W : position -> matrix) (b : vector).
Variables (X : image) (q : position) (j : nat) (B : R).
Hypothesis distinct : NoDup G.
Hypothesis kernel_distinct : NoDup Δ.
Hypothesis X_floats : forall k c, In k G -> (c < D_in L)%nat -> float emin prec (X k c) /\ Rabs (X k c) <= B.
Hypothesis kernel_on_grid : forall τ, In τ Δ -> In (add q τ) G.
Hypothesis heads_on_grid : forall h, In h (heads L) -> In (add q (f h)) G.

(** One-hot heads copy tokens. *)
Theorem shifted_sum P z : (forall h, In h (heads L) -> one_hot G (P h) (add q (f h))) ->
  (attend_computes emin prec weights_first L G X P j z <-> shifted_computes emin prec L f X q j z).
Proof.
  intros O.
  assert (copied : forall h c v, In h (heads L) -> (c < D_in L)%nat ->
    computes emin prec (map (fun k => (P h k, X k c)) G) v -> v = X (add q (f h)) c).
  { intros h c v Ih Hc C; destruct (O h Ih) as [O1 O0]; assert (I := heads_on_grid h Ih).
    rewrite (one_hot_exact emin prec G (P h) (fun k => X k c) (add q (f h)) v), O1, Rmult_1_l; try assumption.
    - reflexivity.
    - intros k Ik N; rewrite (O0 k Ik N); ring.
    - rewrite O1, Rmult_1_l; apply X_floats; assumption. }
  split.
  - intros (M & A & HMA & Z); exists M; split; [intros; apply HMA; assumption|].
    replace (flat_map (fun h => map (fun c => (M h c, X (add q (f h)) c)) (seq 0 (D_in L))) (heads L))
      with (flat_map (fun h => map (fun c => (M h c, A h c)) (seq 0 (D_in L))) (heads L)); [exact Z|].
    rewrite !flat_map_concat_map; f_equal; apply map_ext_in; intros h Ih; apply map_ext_in; intros c Ic.
    apply in_seq in Ic; rewrite (copied h c (A h c)) by (assumption || lia || (apply HMA; assumption || lia)); reflexivity.
  - intros (M & HM & Z); exists M, (fun h c => X (add q (f h)) c); split; [|exact Z].
    intros h c Ih Hc; split; [apply HM; assumption|].
    destruct (computes_total emin prec (map (fun k => (P h k, X k c)) G)) as (v & C).
    rewrite <- (copied h c v Ih Hc C); exact C.
Qed.

Variable e : H -> nat -> R.
Hypothesis entry_rounding : forall h c v, In h (heads L) -> (c < D_in L)%nat ->
  computes emin prec (weight_terms L j h c) v -> Rabs (v - exact (weight_terms L j h c)) <= e h c.

Notation ws := (conv_weights (D_in L) Δ W j).
Notation terms := (conv_terms (D_in L) Δ W b X q j).
Notation size h c := (magnitude (weight_terms L j h c)).

(** One sum over all heads and input channels, whatever the heads attend to: A^h_c lies within D_h of x^h_c, |A^h_c| ≤ V_h. *)
Lemma attended_sum (M A x : H -> nat -> R) (D V : H -> R) z :
  (forall h c, In h (heads L) -> (c < D_in L)%nat -> computes emin prec (weight_terms L j h c) (M h c)) ->
  (forall h c, In h (heads L) -> (c < D_in L)%nat -> Rabs (A h c - x h c) <= D h) ->
  (forall h c, In h (heads L) -> (c < D_in L)%nat -> Rabs (A h c) <= V h) ->
  computes emin prec ((b_out L j, 1) :: flat_map (fun h => map (fun c => (M h c, A h c)) (seq 0 (D_in L))) (heads L)) z ->
  Rabs (z - (b_out L j + sum (heads L) (fun h => sum_below (D_in L) (fun c => carried L j h c * x h c)))) <=
  sum (heads L) (fun h => sum_below (D_in L) (fun c => e h c * V h + size h c * D h))
  + dot_bound emin prec (support (b_out L j :: flat_map (fun h => map (fun c => size h c) (seq 0 (D_in L))) (heads L)))
      (Rabs (b_out L j) + sum (heads L) (fun h => sum_below (D_in L) (fun c => (size h c + e h c) * V h))).
Proof.
  intros HM EA BA Z; set (T := fun h c => exact (weight_terms L j h c)).
  assert (EM : forall h c, In h (heads L) -> (c < D_in L)%nat -> Rabs (M h c - T h c) <= e h c).
  { intros h c Ih Hc; apply entry_rounding; [exact Ih|exact Hc|apply HM; assumption]. }
  assert (BT : forall h c, Rabs (T h c) <= size h c) by (intros; apply exact_magnitude).
  assert (BM : forall h c, In h (heads L) -> (c < D_in L)%nat -> Rabs (M h c) <= size h c + e h c).
  { intros h c Ih Hc; specialize (EM h c Ih Hc); specialize (BT h c).
    replace (M h c) with (T h c + (M h c - T h c)) by ring; eapply Rle_trans; [apply Rabs_triang|]; lra. }
  set (l := flat_map (fun h => map (fun c => (M h c, A h c)) (seq 0 (D_in L))) (heads L)) in *.
  set (m := flat_map (fun h => map (fun c => size h c) (seq 0 (D_in L))) (heads L)).
  assert (R := pairs_rounding emin prec _ _ Z).
  assert (Sl : (support (map fst ((b_out L j, 1%R) :: l)) <= support (b_out L j :: m))%nat).
  { simpl map; assert (Q : (support (map fst l) <= support m)%nat).
    { unfold l, m; rewrite !map_flat_map.
      rewrite (flat_map_ext _ (fun h => map (M h) (seq 0 (D_in L)))) by (intros; apply map_map).
      apply support_flat_map_pointwise; intros h c Ih Ic S0; apply in_seq in Ic.
      assert (Dr := dot_rounding emin prec _ _ (HM h c Ih ltac:(lia))).
      rewrite no_products in Dr by exact S0; unfold dot_bound in Dr; simpl INR in Dr; specialize (BT h c).
      unfold T in BT; rewrite S0 in BT.
      assert (D' : Rabs (M h c - exact (weight_terms L j h c)) <= 0) by lra.
      apply Rabs_le_inv in D', BT; lra. }
    destruct (support_cons (b_out L j) (map fst l)) as [F0 F1], (support_cons (b_out L j) m) as [G0 G1].
    cbn [fst]; destruct (Req_EM_T (b_out L j) 0) as [Zb|Zb]; rewrite ?(F0 Zb), ?(F1 Zb), ?(G0 Zb), ?(G1 Zb); lia. }
  assert (Xl : exact ((b_out L j, 1) :: l)
    = b_out L j + sum (heads L) (fun h => sum_below (D_in L) (fun c => M h c * A h c))).
  { rewrite exact_cons, Rmult_1_r; f_equal; unfold l, exact; rewrite sum_flat_map; apply sum_ext; intros h _;
    apply sum_map. }
  assert (Ml : magnitude ((b_out L j, 1) :: l) <= Rabs (b_out L j) + sum (heads L) (fun h =>
    sum_below (D_in L) (fun c => (size h c + e h c) * V h))).
  { rewrite magnitude_cons, Rmult_1_r; apply Rplus_le_compat_l; unfold l, magnitude.
    rewrite sum_flat_map; apply sum_le; intros h Ih; rewrite sum_map; apply sum_le; intros c Ic; apply in_seq in Ic.
    cbn [fst snd]; rewrite Rabs_mult; apply Rmult_le_compat; try apply Rabs_pos; [apply BM|apply BA]; (assumption || lia). }
  assert (Dx : Rabs (exact ((b_out L j, 1) :: l)
      - (b_out L j + sum (heads L) (fun h => sum_below (D_in L) (fun c => carried L j h c * x h c))))
    <= sum (heads L) (fun h => sum_below (D_in L) (fun c => e h c * V h + size h c * D h))).
  { rewrite Xl.
    match goal with |- Rabs (?p + ?a - (?p + ?b)) <= _ => replace (p + a - (p + b)) with (a - b) by ring end.
    rewrite <- sum_minus; eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros h Ih; unfold sum_below.
    rewrite <- sum_minus; eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros c Ic.
    apply in_seq in Ic; rewrite <- weight_terms_exact; fold (T h c).
    replace (M h c * A h c - T h c * x h c) with ((M h c - T h c) * A h c + T h c * (A h c - x h c)) by ring.
    eapply Rle_trans; [apply Rabs_triang|]; rewrite !Rabs_mult.
    apply Rplus_le_compat; apply Rmult_le_compat; try apply Rabs_pos; try apply BT; [apply EM|apply BA|apply EA];
      (assumption || lia). }
  assert (DB := dot_bound_monotone emin prec _ _ _ _ Sl (magnitude_nonneg _) Ml).
  match goal with |- Rabs (z - ?y) <= _ =>
    replace (z - y) with (z - exact ((b_out L j, 1) :: l) + (exact ((b_out L j, 1) :: l) - y)) by ring end.
  eapply Rle_trans; [apply Rabs_triang|]; lra.
Qed.

Section Attention.
Variables (P : H -> position -> R) (λ : H -> R).
Hypothesis rows : forall h, In h (heads L) -> near_one_hot (λ h) G (P h) (add q (f h)).

Notation es := (entries L λ e j).
Notation mixed t := (mixing emin prec (entry_leak t) (length G) ((1 + entry_leak t) * B)).
Notation attended t := ((1 + entry_leak t) * B + mixed t).

Lemma attention_weights_first z : attend_computes emin prec weights_first L G X P j z ->
  Rabs (z - one_hot_layer L f j X q) <= leak_figure B (columns L λ j)
    + sum es (fun t => entry_error t * attended t + entry_size t * mixed t)
    + dot_bound emin prec (support (b_out L j :: map entry_size es))
        (Rabs (b_out L j) + sum es (fun t => (entry_size t + entry_error t) * attended t)).
Proof.
  intros (M & A & HMA & Z).
  set (D := fun h => λ h * B + mixing emin prec (λ h) (length G) ((1 + λ h) * B)).
  assert (EA : forall h c, In h (heads L) -> (c < D_in L)%nat -> Rabs (A h c - X (add q (f h)) c) <= D h).
  { intros h c Ih Hc; apply (attended_rounding emin prec G (P h) (add q (f h)) (λ h) distinct (heads_on_grid h Ih)
      (rows h Ih) (fun k => X k c) B).
    - intros k I; apply X_floats; assumption.
    - apply X_floats; [apply heads_on_grid, Ih|exact Hc].
    - apply HMA; assumption. }
  assert (R := attended_sum M A (fun h c => X (add q (f h)) c) D (fun h => B + D h) z); cbv beta in R.
  rewrite <- one_hot_layer_carried in R; unfold entries at 2; rewrite map_flat_map.
  rewrite (flat_map_ext (fun h => map entry_size _) (fun h => map (fun c => size h c) (seq 0 (D_in L)))) by
    (intros; apply map_map).
  rewrite leak_by_entries, !sum_entries; cbn [entry_leak entry_size entry_error].
  eapply Rle_trans; [apply R; try assumption|].
  - intros; apply HMA; assumption.
  - intros h c Ih Hc; specialize (EA h c Ih Hc); destruct (X_floats (add q (f h)) c) as [_ Bx]; [apply heads_on_grid, Ih|exact Hc|].
    replace (A h c) with (X (add q (f h)) c + (A h c - X (add q (f h)) c)) by ring.
    eapply Rle_trans; [apply Rabs_triang|]; lra.
  - apply Rplus_le_compat; [rewrite <- sum_plus; apply Req_le, sum_ext; intros h _; unfold sum_below; rewrite <- sum_plus;
      apply sum_ext; intros; unfold D; ring|].
    apply Req_le; do 2 f_equal; apply sum_ext; intros h _; apply sum_ext; intros; unfold D; ring.
Qed.

(** |fl(MHSA(X)) − fl(Conv(X))| ≤ leak + taps + rounding. *)
Theorem weights_first_rounding y z : computes emin prec terms y -> attend_computes emin prec weights_first L G X P j z ->
  Rabs (z - y) <= leak_figure B (columns L λ j) + taps_difference L f Δ W b j B
    + weights_figure emin prec (length G) B (b j) ws (b_out L j) es.
Proof.
  intros Cy Cz; assert (R := both_rounding emin prec L f G Δ W b X q j B kernel_distinct X_floats kernel_on_grid
    heads_on_grid _ y z Cy (attention_weights_first z Cz)).
  unfold weights_figure; cbv zeta; lra.
Qed.

End Attention.

(** |fl(MHSA(X)) − fl(Conv(X))| ≤ taps + rounding, for sharp heads. *)
Theorem weights_first_sharp expf g (s P : H -> position -> R) y z : (emin <= 0)%Z -> 0 < g -> float emin prec g ->
  sharp_exp emin prec g expf ->
  (forall h, In h (heads L) -> gap g G (s h) (add q (f h)) /\ float_softmax emin prec expf G (s h) (P h)) ->
  computes emin prec terms y -> attend_computes emin prec weights_first L G X P j z ->
  Rabs (z - y) <= taps_difference L f Δ W b j B
    + weights_figure emin prec (length G) B (b j) ws (b_out L j) (entries L (fun _ => 0) e j).
Proof.
  intros E0 G0 Gf Ex S Cy Cz.
  assert (N := sharp_rows emin prec L f G q distinct heads_on_grid expf g s P E0 G0 Gf Ex S).
  assert (R := weights_first_rounding P (fun _ => 0) N y z Cy Cz); rewrite leak_figure_0 in R; lra.
Qed.

End Layer.
