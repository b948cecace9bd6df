(** Rounding of a dot product, for any order of summation.

    Statements, for any evaluation tree (RoundingTree.v) that adds the terms (w_1, x_1) … (w_n, x_n), where
    n counts the nonzero products:
      dot_rounding   |fl(Σ w_i x_i) − Σ w_i x_i| ≤ n·u·Σ|w_i x_i| + n·η/2·(1 + n·u)
      dot_rounding_multiples  ≤ n·u·Σ|w_i x_i| alone if every product is a multiple of η
      sum_exact      if every product is a multiple of 2^e ≥ η and Σ|w_i x_i| ≤ 2^(p + e), nothing is rounded
      single_exact   if only one product is nonzero, and it is a float, the tree returns it
      one_hot_exact  so attention with one-hot weights returns the value that it attends to
    n·u is the bound of Jeannerod and Rump (SIAM J. Matrix Anal. Appl. 34, 2013), valid for every n; the
    textbook bound is γ_n = n·u/(1 − n·u).  The factor 1 + n·u appears because products that underflowed are
    added up like any other. *)

From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums RoundingTree.
Import ListNotations.
Open Scope R_scope.

(** n·u·A + n·η/2·(1 + n·u), for n terms of magnitude A. *)
Definition dot_bound (emin prec : Z) (n : nat) (A : R) : R :=
  INR n * roundoff prec * A + INR n * half_eta emin * (1 + INR n * roundoff prec).

Section Format.
Variables emin prec : Z.
Context {prec_positive : Prec_gt_0 prec}.

Notation F := (float emin prec).
Notation u := (roundoff prec).
Notation h := (half_eta emin).

(** * The bound of Jeannerod and Rump *)

(** One addition of two partial sums: its own error δ fits in what the factor n1 + n2 leaves free. *)
Lemma addition_step n1 n2 a b s1 s2 v1 v2 δ : 1 <= n1 -> 1 <= n2 -> Rabs s1 <= a -> Rabs s2 <= b ->
  Rabs (v1 - s1) <= n1 * u * a -> Rabs (v2 - s2) <= n2 * u * b ->
  Rabs δ <= Rabs v1 -> Rabs δ <= Rabs v2 -> (1 + u) * Rabs δ <= u * Rabs (v1 + v2) ->
  Rabs (v1 + v2 + δ - (s1 + s2)) <= (n1 + n2) * u * (a + b).
Proof.
  intros N1 N2 S1 S2 V1 V2 D1 D2 D; assert (U := @roundoff_positive prec); assert (U1 := roundoff_le_1 prec).
  assert (A : 0 <= a) by (eapply Rle_trans; [apply Rabs_pos|exact S1]).
  assert (B : 0 <= b) by (eapply Rle_trans; [apply Rabs_pos|exact S2]).
  assert (W1 : Rabs v1 <= a + n1 * u * a).
  { replace v1 with (s1 + (v1 - s1)) by ring; eapply Rle_trans; [apply Rabs_triang|lra]. }
  assert (W2 : Rabs v2 <= b + n2 * u * b).
  { replace v2 with (s2 + (v2 - s2)) by ring; eapply Rle_trans; [apply Rabs_triang|lra]. }
  assert (W := Rabs_triang v1 v2).
  assert (G : Rabs δ <= n2 * u * a + n1 * u * b).
  { assert (UA : 0 <= u * a) by (apply Rmult_le_pos; lra). assert (UB : 0 <= u * b) by (apply Rmult_le_pos; lra).
    assert (P1 : 0 <= (n1 - 1) * (u * b)) by (apply Rmult_le_pos; lra).
    assert (P2 : 0 <= (n2 - 1) * (u * a)) by (apply Rmult_le_pos; lra).
    assert (LA : u * a <= a) by nra. assert (LB : u * b <= b) by nra.
    destruct (Rle_or_lt b (u * a)) as [C|C].
    { assert ((n2 - 1) * (u * b) <= (n2 - 1) * (u * a)) by (apply Rmult_le_compat_l; [lra|]; apply Rmult_le_compat_l;
      lra).
      lra. }
    destruct (Rle_or_lt a (u * b)) as [C'|C'].
    { assert ((n1 - 1) * (u * a) <= (n1 - 1) * (u * b)) by (apply Rmult_le_compat_l; [lra|]; apply Rmult_le_compat_l;
      lra).
      lra. }
    assert (Q1 : (n1 - 1) * (u * a) <= (n1 - 1) * b) by (apply Rmult_le_compat_l; lra).
    assert (Q2 : (n2 - 1) * (u * b) <= (n2 - 1) * a) by (apply Rmult_le_compat_l; lra).
    apply Rmult_le_reg_l with (1 + u); [lra|]; eapply Rle_trans; [exact D|].
    apply Rle_trans with (u * (a + b + n1 * u * a + n2 * u * b)); [apply Rmult_le_compat_l; lra|].
    replace ((1 + u) * (n2 * u * a + n1 * u * b)) with (u * ((1 + u) * (n2 * a + n1 * b))) by ring.
    apply Rmult_le_compat_l; lra. }
  replace (v1 + v2 + δ - (s1 + s2)) with (v1 - s1 + (v2 - s2) + δ) by ring.
  assert (T := Rabs_triang (v1 - s1 + (v2 - s2)) δ); assert (T' := Rabs_triang (v1 - s1) (v2 - s2)).
  replace ((n1 + n2) * u * (a + b)) with (n1 * u * a + n2 * u * b + (n2 * u * a + n1 * u * b)) by ring; lra.
Qed.

(** A fused product p + v with one rounding δ. *)
Lemma fused_step n p b s v δ : 0 <= n -> Rabs s <= b -> Rabs (v - s) <= n * u * b ->
  Rabs δ <= Rabs p -> Rabs δ <= u * Rabs (p + v) ->
  Rabs (p + v + δ - (p + s)) <= (n + 1) * u * (Rabs p + b).
Proof.
  intros N S V D1 D2; assert (U := @roundoff_positive prec).
  assert (B : 0 <= b) by (eapply Rle_trans; [apply Rabs_pos|exact S]). assert (A := Rabs_pos p).
  assert (W : Rabs v <= b + n * u * b).
  { replace v with (s + (v - s)) by ring; eapply Rle_trans; [apply Rabs_triang|lra]. }
  assert (T := Rabs_triang p v).
  assert (UA : 0 <= u * Rabs p) by (apply Rmult_le_pos; lra). assert (UB : 0 <= u * b) by (apply Rmult_le_pos; lra).
  assert (NA : 0 <= n * (u * Rabs p)) by (apply Rmult_le_pos; lra).
  assert (G : Rabs δ <= n * u * Rabs p + u * Rabs p + u * b).
  { destruct (Rle_or_lt (u * b) (Rabs p)) as [C|C]; [|lra].
    eapply Rle_trans; [exact D2|]; apply Rle_trans with (u * (Rabs p + b + n * (u * b))); [apply Rmult_le_compat_l;
      lra|].
    assert (n * (u * b) <= n * Rabs p) by (apply Rmult_le_compat_l; lra).
    replace (n * u * Rabs p + u * Rabs p + u * b) with (u * (Rabs p + b + n * Rabs p)) by ring.
    apply Rmult_le_compat_l; lra. }
  replace (p + v + δ - (p + s)) with (v - s + δ) by ring.
  eapply Rle_trans; [apply Rabs_triang|].
  replace ((n + 1) * u * (Rabs p + b)) with (n * u * b + (n * u * Rabs p + u * Rabs p + u * b)) by ring; lra.
Qed.

(** * A whole tree *)

(** v = Σ q_i within n·u·Σ|q_i|, where the q_i are the products, each moved by η/2 at most: s' = Σ q_i, a = Σ |q_i|. *)
Definition evaluation_step (η2 : R) (l : list (R * R)) (v : R) : Prop :=
  let n := INR (length (nonzero l)) in
  exists s' a, Rabs s' <= a /\ Rabs (s' - exact l) <= n * η2 /\ a <= magnitude l + n * η2 /\ Rabs (v - s') <= n * u * a.

(** Rounding a product, to which a float may be added, underflows by η2 at most. *)
Definition underflows (η2 x : R) : Prop := forall a f, F a -> rounds emin prec (x + a) f ->
  exists x', Rabs (x' - (x + a)) <= η2 /\ rounds emin prec x' f /\ (1 + u) * Rabs (f - x') <= u * Rabs x'.

Lemma underflows_half_eta x : underflows h x.
Proof. intros a f _ H; destruct (rounds_split _ _ H) as (x' & D & R & E & _); exists x'; auto. Qed.

Lemma underflows_multiple m : underflows 0 (IZR m * bpow radix2 emin).
Proof.
  intros a f Fa H; destruct (FLT_format_generic radix2 emin prec a Fa) as [y Ey _ He].
  assert (E : IZR m * bpow radix2 emin + a = IZR (m + Fnum y * 2 ^ (Fexp y - emin)) * bpow radix2 emin).
  { rewrite Ey, plus_IZR, mult_IZR; unfold F2R; change (2 ^ (Fexp y - emin))%Z with (radix2 ^ (Fexp y - emin))%Z.
    rewrite IZR_Zpower, Rmult_plus_distr_r, Rmult_assoc, <- bpow_plus by lia; do 3 f_equal; lia. }
  exists (IZR m * bpow radix2 emin + a); rewrite Rminus_diag_eq, Rabs_R0 by reflexivity; repeat split; try apply H;
    [lra|].
  rewrite E in *; apply (rounds_multiple emin prec); exact H.
Qed.

Lemma nothing_computed η2 l v : evaluation_step η2 l v -> length (nonzero l) = O -> v = 0.
Proof.
  intros (s' & a & S & E & A & V) N; rewrite N in *; simpl INR in *.
  rewrite <- magnitude_nonzero in A; destruct (nonzero l); [|discriminate]; unfold magnitude, sum in A; simpl in A.
  apply Rabs_le_inv in S; apply Rabs_le_inv in V; rewrite !Rmult_0_l in *; lra.
Qed.

Lemma evaluation_steps η2 t v : 0 <= η2 -> (forall p, In p (terms t) -> underflows η2 (fst p * snd p)) ->
  evaluates emin prec t v -> evaluation_step η2 (terms t) v.
Proof.
  intros Hh Hu E0; assert (U := @roundoff_positive prec); revert Hu.
  induction E0 as [w x v H|w x t a v E IH H|s t a b v E1 IH1 E2 IH2 H]; intros Hu; unfold evaluation_step.
  - (* a rounded product *)
    assert (H' := H); rewrite <- (Rplus_0_r (w * x)) in H'.
    destruct (Hu (w, x) (or_introl eq_refl) 0 v (float_0 emin prec) H') as (q & Q & _ & D).
    cbn [fst snd] in Q; rewrite Rplus_0_r in Q; simpl terms; rewrite exact_cons, magnitude_cons.
    change (exact []) with 0; change (magnitude []) with 0.
    destruct (Req_EM_T (w * x) 0) as [Z|Z]; [rewrite (nonzero_zero w x _ Z)|rewrite (nonzero_cons w x _ Z)]; simpl INR.
    + exists 0, 0; rewrite (rounds_exact _ _ H), Z by (rewrite Z; apply float_0).
      rewrite ?Rplus_0_r, ?Rminus_0_r, ?Rabs_R0; repeat split; lra.
    + exists q, (Rabs q); assert (T := Rabs_triang (w * x) (q - w * x));
      replace (w * x + (q - w * x)) with q in T by ring.
      replace (q - (w * x + 0)) with (q - w * x) by ring; assert (P := Rabs_pos (v - q)); repeat split; nra.
  - (* a fused product *)
    destruct IH as (s' & b & S & Q & B & V); [intros p I; apply Hu; right; exact I|];
      assert (Fa := evaluation_float _ _ E).
    destruct (Hu (w, x) (or_introl eq_refl) a v Fa H) as (z & Z & Rz & D); cbn [fst snd] in Z.
    simpl terms; rewrite exact_cons, magnitude_cons; destruct (Req_EM_T (w * x) 0) as [Zero|Nonzero].
    + assert (v = a) as ->.
      { apply rounds_exact in H; rewrite Zero, Rplus_0_l in *; assumption. }
      rewrite (nonzero_zero w x _ Zero), Zero, Rabs_R0, !Rplus_0_l; exists s', b; auto.
    + rewrite (nonzero_cons w x _ Nonzero); simpl length; rewrite S_INR.
      set (n := INR (length (nonzero (terms t)))) in *; set (p := z - a).
      assert (N : 0 <= n) by apply pos_INR.
      assert (T := Rabs_triang (w * x) (p - w * x)); replace (w * x + (p - w * x)) with p in T by ring.
      assert (Pz : Rabs (p - w * x) <= η2) by (replace (p - w * x) with (z - (w * x + a)) by (unfold p; ring); exact Z).
      exists (p + s'), (Rabs p + b); repeat split.
      * eapply Rle_trans; [apply Rabs_triang|lra].
      * replace (p + s' - (w * x + exact (terms t))) with (p - w * x + (s' - exact (terms t))) by ring.
        eapply Rle_trans; [apply Rabs_triang|]; lra.
      * lra.
      * replace (v - (p + s')) with (p + a + (v - z) - (p + s')) by (unfold p; ring).
        apply fused_step; try assumption.
        -- eapply Rle_trans; [apply (proj2 Rz a Fa)|]; replace (a - z) with (- p) by (unfold p; ring).
           rewrite Rabs_Ropp; lra.
        -- replace (p + a) with z by (unfold p; ring); assert (P := Rabs_pos (v - z)); nra.
  - (* a rounded sum *)
    assert (Fa := evaluation_float _ _ E1); assert (Fb := evaluation_float _ _ E2).
    specialize (IH1 (fun p I => Hu p (in_or_app _ _ _ (or_introl I)))).
    specialize (IH2 (fun p I => Hu p (in_or_app _ _ _ (or_intror I)))).
    assert (Za := nothing_computed _ _ _ IH1); assert (Zb := nothing_computed _ _ _ IH2).
    destruct IH1 as (s1 & a1 & S1 & Q1 & A1 & V1), IH2 as (s2 & a2 & S2 & Q2 & A2 & V2).
    simpl terms; rewrite nonzero_app, app_length, plus_INR, exact_app, magnitude_app.
    set (n1 := INR (length (nonzero (terms s)))) in *; set (n2 := INR (length (nonzero (terms t)))) in *.
    exists (s1 + s2), (a1 + a2); repeat split.
    + eapply Rle_trans; [apply Rabs_triang|lra].
    + match goal with |- Rabs (s1 + s2 - (?x + ?y)) <= _ => replace (s1 + s2 - (x + y)) with (s1 - x + (s2 - y)) by
      ring end.
      eapply Rle_trans; [apply Rabs_triang|lra].
    + lra.
    + assert (H1 : forall k, 1 <= INR (S k)) by (intros k; rewrite S_INR; assert (P := pos_INR k); lra).
      assert (P1 : 0 <= a1) by (eapply Rle_trans; [apply Rabs_pos|exact S1]).
      assert (P2 : 0 <= a2) by (eapply Rle_trans; [apply Rabs_pos|exact S2]).
      destruct (length (nonzero (terms s))) as [|m1] eqn:M1; [|destruct (length (nonzero (terms t))) as [|m2] eqn:M2].
      * rewrite (Za eq_refl), Rplus_0_l in H; rewrite (rounds_exact _ _ H Fb), (Za eq_refl) in *; simpl in n1; subst n1.
        assert (s1 = 0) by (apply Rabs_le_inv in V1; lra); subst s1; rewrite !Rplus_0_l.
        eapply Rle_trans; [exact V2|]; apply Rmult_le_compat_l; [apply Rmult_le_pos; [apply pos_INR|lra]|lra].
      * rewrite (Zb eq_refl), Rplus_0_r in H; rewrite (rounds_exact _ _ H Fa), (Zb eq_refl) in *; simpl in n2; subst n2.
        assert (s2 = 0) by (apply Rabs_le_inv in V2; lra); subst s2; rewrite !Rplus_0_r.
        eapply Rle_trans; [exact V1|]; apply Rmult_le_compat_l; [apply Rmult_le_pos; [apply pos_INR|lra]|lra].
      * replace (v - (s1 + s2)) with (a + b + (v - (a + b)) - (s1 + s2)) by ring.
        apply addition_step; try assumption; try apply H1.
        -- eapply Rle_trans; [apply (proj2 H b Fb)|]; replace (b - (a + b)) with (- a) by ring; rewrite Rabs_Ropp; lra.
        -- eapply Rle_trans; [apply (proj2 H a Fa)|]; replace (a - (a + b)) with (- b) by ring; rewrite Rabs_Ropp; lra.
        -- apply (rounds_sum (emin := emin)); assumption.
Qed.

Lemma dot_rounding_by η2 l v : 0 <= η2 -> (forall t, adds t l -> forall p, In p (terms t) ->
  underflows η2 (fst p * snd p)) ->
  computes emin prec l v -> let n := INR (length (nonzero l)) in
  Rabs (v - exact l) <= n * u * magnitude l + n * η2 * (1 + n * u).
Proof.
  intros Hh Hu (t & P & E); destruct (evaluation_steps η2 t v Hh (Hu t P) E) as (s' & a & S & Q & A & V).
  rewrite (adds_exact t l P), (adds_magnitude t l P), (Permutation_length P) in *.
  set (n := INR (length (nonzero l))) in *; cbv zeta.
  replace (v - exact l) with (v - s' + (s' - exact l)) by ring; eapply Rle_trans; [apply Rabs_triang|].
  assert (n * u * a <= n * u * (magnitude l + n * η2)); [|lra].
  apply Rmult_le_compat_l; [apply Rmult_le_pos; [apply pos_INR|left; apply roundoff_positive]|exact A].
Qed.

(** |fl(Σ w_i x_i) − Σ w_i x_i| ≤ n·u·Σ|w_i x_i| + n·η/2·(1 + n·u), n the number of nonzero products. *)
Theorem dot_rounding l v : computes emin prec l v ->
  Rabs (v - exact l) <= dot_bound emin prec (length (nonzero l)) (magnitude l).
Proof.
  intros C; apply (dot_rounding_by h l v); [left; apply half_eta_positive| |exact C].
  intros; apply underflows_half_eta.
Qed.

Lemma dot_bound_monotone n n' A A' : (n <= n')%nat -> 0 <= A -> A <= A' ->
  dot_bound emin prec n A <= dot_bound emin prec n' A'.
Proof.
  intros N A0 AA; apply le_INR in N; assert (P := pos_INR n); assert (U := @roundoff_positive prec);
    assert (Hh := @half_eta_positive emin).
  unfold dot_bound; apply Rplus_le_compat; apply Rmult_le_compat; try lra; try nra; apply Rmult_le_pos; lra.
Qed.

Lemma dot_bound_nonneg n A : 0 <= A -> 0 <= dot_bound emin prec n A.
Proof.
  intros A0; assert (N := pos_INR n); assert (U := @roundoff_positive prec); assert (Hh := @half_eta_positive emin).
  assert (0 <= INR n * u) by (apply Rmult_le_pos; lra); assert (0 <= INR n * h) by (apply Rmult_le_pos; lra).
  unfold dot_bound; assert (0 <= INR n * u * A) by (apply Rmult_le_pos; lra).
  assert (0 <= INR n * h * (1 + INR n * u)) by (apply Rmult_le_pos; lra); lra.
Qed.

Lemma nonzero_steps t v : evaluates emin prec t v -> evaluation_step h (terms t) v.
Proof. apply evaluation_steps; [left; apply half_eta_positive|intros; apply underflows_half_eta]. Qed.

(** One nonzero product that is a float, among zeros. *)
Theorem single_exact l w x v : nonzero l = [(w, x)] -> F (w * x) -> computes emin prec l v -> v = w * x.
Proof.
  intros Nl Fx (t & P & E); unfold adds in P; rewrite Nl in P; apply Permutation_sym, Permutation_length_1_inv in P;
    clear l Nl.
  induction E as [w' x' v H|w' x' t a v E IH H|s t a b v E1 IH1 E2 IH2 H]; simpl terms in P.
  - destruct (Req_EM_T (w' * x') 0) as [Z|Z]; [rewrite nonzero_zero in P by exact Z; discriminate|].
    rewrite nonzero_cons in P by exact Z; injection P as <- <-; exact (rounds_exact _ _ H Fx).
  - destruct (Req_EM_T (w' * x') 0) as [Z|Z].
    + rewrite nonzero_zero in P by exact Z; rewrite Z, Rplus_0_l, (IH P) in H; exact (rounds_exact _ _ H Fx).
    + rewrite nonzero_cons in P by exact Z; injection P as <- <- P.
      rewrite (nothing_computed _ _ _ (nonzero_steps t a E)), Rplus_0_r in H by (rewrite P; reflexivity).
      exact (rounds_exact _ _ H Fx).
  - rewrite nonzero_app in P; destruct (app_eq_unit _ _ P) as [[P1 P2]|[P1 P2]].
    + rewrite (nothing_computed _ _ _ (nonzero_steps s a E1)), Rplus_0_l, (IH2 P2) in H by (rewrite P1; reflexivity).
      exact (rounds_exact _ _ H Fx).
    + rewrite (nothing_computed _ _ _ (nonzero_steps t b E2)), Rplus_0_r, (IH1 P1) in H by (rewrite P2; reflexivity).
      exact (rounds_exact _ _ H Fx).
Qed.

(** A sum over keys G of which k0 alone has a product that is not zero: attention with one-hot weights. *)
Theorem one_hot_exact {A} (G : list A) (w x : A -> R) k0 v : NoDup G -> In k0 G ->
  (forall k, In k G -> k <> k0 -> w k * x k = 0) -> F (w k0 * x k0) ->
  computes emin prec (map (fun k => (w k, x k)) G) v -> v = w k0 * x k0.
Proof.
  intros N I Z Fx C.
  assert (None : forall G', (forall k, In k G' -> w k * x k = 0) -> nonzero (map (fun k => (w k, x k)) G') = []).
  { induction G' as [|k G' IH]; intros Z'; [reflexivity|]; simpl map; rewrite nonzero_zero by (apply Z'; left;
    reflexivity).
    apply IH; intros k' I'; apply Z'; right; exact I'. }
  destruct (Req_EM_T (w k0 * x k0) 0) as [E|E].
  - destruct C as (t & P & V); rewrite E; apply (nothing_computed _ _ _ (nonzero_steps t v V)).
    unfold adds in P; rewrite None in P; [apply Permutation_length in P; exact P|].
    intros k Ik; destruct (Req_EM_T (w k * x k) 0) as [Zk|Zk]; [exact Zk|].
    apply Z; [exact Ik|]; intros ->; contradiction.
  - apply (single_exact (map (fun k => (w k, x k)) G)); [|exact Fx|exact C].
    clear C; induction G as [|k G IH]; [destruct I|]; simpl map; inversion N as [|? ? Nk N']; subst;
      destruct I as [->|I].
    + rewrite nonzero_cons by exact E; rewrite None; [reflexivity|]; intros k Ik; apply Z; [right; exact Ik|].
      intros ->; contradiction.
    + rewrite nonzero_zero by (apply Z; [left; reflexivity|intros ->; contradiction]).
      apply IH; try assumption; intros k' Ik; apply Z; right; exact Ik.
Qed.

(** * Integers *)

Definition multiples (e : Z) (l : list (R * R)) : Prop :=
  Forall (fun p => exists m, fst p * snd p = IZR m * bpow radix2 e) l.

Lemma exact_multiple e l : multiples e l -> exists m, exact l = IZR m * bpow radix2 e.
Proof.
  induction 1 as [|p l (m & E) _ (m' & E')]; [exists 0%Z; unfold exact, sum; simpl; ring|].
  exists (m + m')%Z; unfold exact in *; rewrite sum_cons, E, E', plus_IZR; ring.
Qed.

Lemma float_exact e l : (emin <= e)%Z -> multiples e l -> magnitude l <= bpow radix2 (prec + e) -> F (exact l).
Proof.
  intros He M B; destruct (exact_multiple e l M) as (m & E); rewrite E; apply (float_multiple emin prec); [exact He|].
  rewrite <- E; eapply Rle_trans; [apply exact_magnitude|exact B].
Qed.

Lemma multiples_terms e t l : adds t l -> multiples e l -> multiples e (terms t).
Proof.
  intros P M; assert (G : multiples e (nonzero (terms t))).
  { apply (Permutation_Forall (Permutation_sym P)), incl_Forall with l; [|exact M].
    intros p; unfold nonzero; rewrite filter_In; tauto. }
  apply Forall_forall; intros p I; destruct (Req_EM_T (fst p * snd p) 0) as [Z|Z]; [exists 0%Z; rewrite Z; ring|].
  apply (proj1 (Forall_forall _ _) G); apply filter_In; destruct (Req_EM_T (fst p * snd p) 0); tauto.
Qed.

(** Jeannerod and Rump's bound alone: where every product is a multiple of η, nothing underflows. *)
Theorem dot_rounding_multiples l v : multiples emin l -> computes emin prec l v ->
  Rabs (v - exact l) <= INR (length (nonzero l)) * u * magnitude l.
Proof.
  intros M C; assert (R := dot_rounding_by 0 l v (Rle_refl 0)); cbv zeta in R; eapply Rle_trans; [apply R;
    [|exact C]|lra].
  intros t P p I; apply (multiples_terms emin t l P) in M; apply (proj1 (Forall_forall _ _) M) in I.
  destruct I as (m & ->); apply underflows_multiple.
Qed.

(** Products that are multiples of 2^e ≥ η, with Σ|w_i||x_i| ≤ 2^(p + e), are added without any rounding, in
    every order; for integers (e = 0): up to 2^24 in float32, 2^53 in float64, 2^11 in float16, 2^8 in bfloat16. *)
Theorem sum_exact e l v : (emin <= e)%Z -> multiples e l -> magnitude l <= bpow radix2 (prec + e) ->
  computes emin prec l v -> v = exact l.
Proof.
  intros He M B (t & P & E); rewrite <- (adds_exact t l P); rewrite <- (adds_magnitude t l P) in B.
  assert (M' := multiples_terms e t l P M).
  clear P M l; revert M' B; induction E as [w x v H|w x t a v E IH H|s t a b v E1 IH1 E2 IH2 H]; simpl terms;
    intros M B;
    assert (Fx := float_exact e _ He M B).
  - apply (rounds_exact (emin := emin) (prec := prec)); [|exact Fx]; rewrite exact_cons, Rplus_0_r; exact H.
  - rewrite magnitude_cons in B; assert (P := Rabs_pos (w * x)); inversion M; subst.
    rewrite IH in H by (assumption || lra); exact (rounds_exact _ _ H Fx).
  - rewrite magnitude_app in B; assert (P1 := magnitude_nonneg (terms s)); assert (P2 := magnitude_nonneg (terms t)).
    apply Forall_app in M; destruct M; rewrite IH1, IH2, <- exact_app in H by (assumption || lra).
    exact (rounds_exact _ _ H Fx).
Qed.

End Format.
