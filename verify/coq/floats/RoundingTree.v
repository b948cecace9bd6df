(** Evaluation trees of rounded operations, and the error of one operation.

    Unit roundoff u = 2^−p; an operation that underflows errs by at most η/2 = 2^(e_min − 1).  An evaluation
    tree has rounded products fl(w·x), fused products fl(w·x + t) and rounded sums fl(s + t); each operation
    rounds to nearest, with any tie rule.  Zero products are not counted: they may be added anywhere, or
    left out.  Statements:
      rounds_split      an operation is exact but for a relative error u/(1 + u), after its exact result
                        was moved by η/2 at most
      rounds_error      |fl(x) − x| ≤ u·|x| + η/2
      rounds_multiple   an operation whose exact result is a multiple of η does not underflow
      rounds_sum        a sum of two floats has the relative error u/(1 + u): it does not underflow
      evaluation_float  a tree returns a float
      computes_total    every list of terms has a value that some tree returns *)

From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Flocq Require Import Core Relative Plus_error.
From Attention Require Import Definitions Sums.
Import ListNotations.
Open Scope R_scope.

(** * Formats *)

(** x is a float of the format (e_min, p): m·2^e with |m| < 2^p, e ≥ e_min. *)
Definition float (emin prec : Z) (x : R) : Prop := generic_format radix2 (FLT_exp emin prec) x.

(** f is a float nearest to x, so an operation with exact result x may return it under some tie rule. *)
Definition rounds (emin prec : Z) (x f : R) : Prop := Rnd_N_pt (float emin prec) x f.

Definition roundoff (prec : Z) : R := bpow radix2 (- prec).
(** η/2 *)
Definition half_eta (emin : Z) : R := bpow radix2 (emin - 1).

(** * Evaluation trees *)

Inductive tree : Type :=
  | Product (w x : R)
  | Fused (w x : R) (t : tree)
  | Sum (s t : tree).

(** The terms (w, x) that a tree adds up. *)
Fixpoint terms (t : tree) : list (R * R) :=
  match t with
  | Product w x => [(w, x)]
  | Fused w x t => (w, x) :: terms t
  | Sum s t => terms s ++ terms t
  end.

(** The tree may return v. *)
Inductive evaluates (emin prec : Z) : tree -> R -> Prop :=
  | evaluates_product w x v : rounds emin prec (w * x) v -> evaluates emin prec (Product w x) v
  | evaluates_fused w x t a v :
      evaluates emin prec t a -> rounds emin prec (w * x + a) v -> evaluates emin prec (Fused w x t) v
  | evaluates_sum s t a b v :
      evaluates emin prec s a -> evaluates emin prec t b -> rounds emin prec (a + b) v ->
      evaluates emin prec (Sum s t) v.

(** Σ w·x and Σ |w·x| *)
Definition exact (l : list (R * R)) : R := sum l (fun p => fst p * snd p).
Definition magnitude (l : list (R * R)) : R := sum l (fun p => Rabs (fst p * snd p)).

(** The terms whose product is not zero. *)
Definition nonzero (l : list (R * R)) : list (R * R) :=
  filter (fun p => if Req_EM_T (fst p * snd p) 0 then false else true) l.

(** The tree adds the terms l, in any order and grouping, with or without the zero products. *)
Definition adds (t : tree) (l : list (R * R)) : Prop := Permutation (nonzero (terms t)) (nonzero l).

(** Some tree that adds the terms l returns v. *)
Definition computes (emin prec : Z) (l : list (R * R)) (v : R) : Prop :=
  exists t, adds t l /\ evaluates emin prec t v.

(** * Zero products *)

Lemma exact_nonzero l : exact (nonzero l) = exact l.
Proof.
  induction l as [|[w x] l IH]; [reflexivity|]; unfold nonzero, exact in *; simpl filter; cbn [fst snd].
  destruct (Req_EM_T (w * x) 0) as [E|E]; rewrite ?sum_cons, IH; cbn [fst snd]; lra.
Qed.

Lemma magnitude_nonzero l : magnitude (nonzero l) = magnitude l.
Proof.
  induction l as [|[w x] l IH]; [reflexivity|]; unfold nonzero, magnitude in *; simpl filter; cbn [fst snd].
  destruct (Req_EM_T (w * x) 0) as [E|E]; rewrite ?sum_cons, IH; cbn [fst snd]; [rewrite E, Rabs_R0|]; lra.
Qed.

Lemma nonzero_zero w x l : w * x = 0 -> nonzero ((w, x) :: l) = nonzero l.
Proof. intros Z; unfold nonzero; simpl; destruct (Req_EM_T (w * x) 0); [reflexivity|contradiction]. Qed.

Lemma nonzero_cons w x l : w * x <> 0 -> nonzero ((w, x) :: l) = (w, x) :: nonzero l.
Proof. intros Z; unfold nonzero; simpl; destruct (Req_EM_T (w * x) 0); [contradiction|reflexivity]. Qed.

Lemma exact_cons w x l : exact ((w, x) :: l) = w * x + exact l.
Proof. reflexivity. Qed.

Lemma magnitude_cons w x l : magnitude ((w, x) :: l) = Rabs (w * x) + magnitude l.
Proof. reflexivity. Qed.

Lemma exact_app l l' : exact (l ++ l') = exact l + exact l'.
Proof. apply sum_app. Qed.

Lemma magnitude_app l l' : magnitude (l ++ l') = magnitude l + magnitude l'.
Proof. apply sum_app. Qed.

Lemma nonzero_app l l' : nonzero (l ++ l') = nonzero l ++ nonzero l'.
Proof. apply filter_app. Qed.

Lemma nonzero_length l : (length (nonzero l) <= length l)%nat.
Proof.
  induction l as [|[w x] l IH]; [simpl; lia|]; unfold nonzero in *; simpl; destruct (Req_EM_T (w * x) 0); simpl; lia.
Qed.

Lemma adds_exact t l : adds t l -> exact (terms t) = exact l.
Proof. intros P; rewrite <- exact_nonzero, <- (exact_nonzero l); apply sum_permutation, P. Qed.

Lemma adds_magnitude t l : adds t l -> magnitude (terms t) = magnitude l.
Proof. intros P; rewrite <- magnitude_nonzero, <- (magnitude_nonzero l); apply sum_permutation, P. Qed.

Lemma exact_magnitude l : Rabs (exact l) <= magnitude l.
Proof. apply sum_abs. Qed.

Lemma magnitude_nonneg l : 0 <= magnitude l.
Proof. apply sum_nonneg; intros; apply Rabs_pos. Qed.

(** * One operation *)

Section Format.
Variables emin prec : Z.
Context {prec_positive : Prec_gt_0 prec}.

Notation F := (float emin prec).
Notation u := (roundoff prec).
Notation h := (half_eta emin).

Lemma roundoff_positive : 0 < u.
Proof. apply bpow_gt_0. Qed.

Lemma roundoff_le_1 : u <= 1.
Proof. unfold roundoff; change 1 with (bpow radix2 0); apply bpow_le; unfold Prec_gt_0 in prec_positive; lia. Qed.

Lemma half_eta_positive : 0 < h.
Proof. apply bpow_gt_0. Qed.

Lemma u_ro_roundoff : u_ro radix2 prec = u.
Proof.
  unfold u_ro, roundoff; replace (- prec + 1)%Z with (1 + - prec)%Z by ring.
  rewrite bpow_plus; change (bpow radix2 1) with 2; lra.
Qed.

Lemma rounds_float x f : rounds emin prec x f -> F f.
Proof. intros [H _]; exact H. Qed.

Lemma rounds_exact x f : rounds emin prec x f -> F x -> f = x.
Proof. intros H Fx; exact (Rnd_N_pt_idempotent F x f H Fx). Qed.

Lemma rounds_itself x : F x -> rounds emin prec x x.
Proof. intros Fx; exact (Rnd_N_pt_refl F x Fx). Qed.

(** Some float is nearest. *)
Lemma rounds_total x : exists f, rounds emin prec x f.
Proof. exists (round radix2 (FLT_exp emin prec) ZnearestE x); apply round_N_pt, FLT_exp_valid, prec_positive. Qed.

Lemma float_0 : F 0.
Proof. apply generic_format_0. Qed.

(** Underflow split off: f is the result, with relative error u/(1 + u), for an exact operand x' within η/2 of x. *)
Lemma rounds_split x f : rounds emin prec x f ->
  exists x', Rabs (x' - x) <= h /\ rounds emin prec x' f /\ (1 + u) * Rabs (f - x') <= u * Rabs x' /\ (F x -> x' = x).
Proof.
  intros H; destruct (relative_error_N_FLT'_ex radix2 emin prec prec_positive (fun z => negb (Z.even z)) x)
    as (eps & eta & Beps & Beta & Z0 & E).
  assert (N := proj2 H (round radix2 (FLT_exp emin prec) ZnearestE x)
    (generic_format_round radix2 (FLT_exp emin prec) ZnearestE x)); fold ZnearestE in E; rewrite E in N.
  assert (U := roundoff_positive); rewrite u_ro_roundoff in Beps.
  replace (/ 2 * bpow radix2 emin) with h in Beta.
  2: { unfold half_eta; unfold Zminus; rewrite bpow_plus; change (bpow radix2 (- (1))) with (/ 2); ring. }
  destruct (Rmult_integral _ _ Z0) as [Z1|Z1]; subst.
  - exists f; repeat split.
    + replace (x * (1 + 0) + eta - x) with eta in N by ring; lra.
    + exact (rounds_float x f H).
    + intros; rewrite Rminus_diag_eq, Rabs_R0 by reflexivity; apply Rabs_pos.
    + rewrite Rminus_diag_eq, Rabs_R0 by reflexivity; assert (A := Rabs_pos f); nra.
    + apply rounds_exact, H.
  - exists x; repeat split; try apply H.
    + rewrite Rminus_diag_eq, Rabs_R0 by reflexivity; left; apply half_eta_positive.
    + replace (x * (1 + eps) + 0 - x) with (eps * x) in N by ring; rewrite Rabs_mult in N.
      assert (A := Rabs_pos x); replace (u * Rabs x) with ((1 + u) * (u / (1 + u) * Rabs x)) by (field; lra).
      apply Rmult_le_compat_l; [lra|]; eapply Rle_trans; [exact N|]; apply Rmult_le_compat_r; assumption.
Qed.

(** |fl(x) − x| ≤ u·|x| + η/2 *)
Lemma rounds_error x f : rounds emin prec x f -> Rabs (f - x) <= u * Rabs x + h.
Proof.
  intros H; assert (U := roundoff_positive); assert (A := Rabs_pos x); assert (Hh := half_eta_positive).
  destruct (relative_error_N_FLT'_ex radix2 emin prec prec_positive (fun z => negb (Z.even z)) x)
    as (eps & eta & Beps & Beta & _ & Ex); rewrite u_ro_roundoff in Beps.
  assert (N := proj2 H (round radix2 (FLT_exp emin prec) ZnearestE x)
    (generic_format_round radix2 (FLT_exp emin prec) ZnearestE x)); fold ZnearestE in Ex; rewrite Ex in N.
  replace (x * (1 + eps) + eta - x) with (eps * x + eta) in N by ring.
  assert (T := Rabs_triang (eps * x) eta); rewrite Rabs_mult in T.
  assert (V : u / (1 + u) <= u).
  { apply Rmult_le_reg_r with (1 + u); [lra|]; unfold Rdiv; rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
    assert (0 <= u * u) by (apply Rmult_le_pos; lra); lra. }
  assert (Rabs eps * Rabs x <= u * Rabs x) by (apply Rmult_le_compat_r; lra).
  replace (/ 2 * bpow radix2 emin) with h in Beta; [lra|].
  unfold half_eta, Zminus; rewrite bpow_plus; change (bpow radix2 (- (1))) with (/ 2); ring.
Qed.

(** m·2^e is a float for |m| ≤ 2^p and e ≥ e_min. *)
Lemma float_multiple m e : (emin <= e)%Z -> Rabs (IZR m * bpow radix2 e) <= bpow radix2 (prec + e) ->
  F (IZR m * bpow radix2 e).
Proof.
  intros He; rewrite Rabs_mult, (Rabs_pos_eq (bpow radix2 e)), bpow_plus by apply bpow_ge_0; intros B.
  apply Rmult_le_reg_r in B; [|apply bpow_gt_0]; rewrite <- abs_IZR in B.
  assert (Hp : (0 <= prec)%Z) by (unfold Prec_gt_0 in prec_positive; lia); rewrite <- IZR_Zpower in B by exact Hp;
    apply le_IZR in B.
  destruct (Z.eq_dec (Z.abs m) (radix2 ^ prec)) as [E|E].
  - assert (Fp : F (bpow radix2 (prec + e))) by (apply generic_format_FLT_bpow; [exact prec_positive|lia]).
    rewrite bpow_plus, <- IZR_Zpower, <- E in Fp by exact Hp.
    destruct (Z.abs_eq_or_opp m) as [A|A]; rewrite A in Fp; [exact Fp|].
    apply generic_format_opp in Fp; rewrite opp_IZR in Fp.
    replace (IZR m * bpow radix2 e) with (- (- IZR m * bpow radix2 e)) by ring; exact Fp.
  - apply generic_format_FLT; exists (Float radix2 m e); [reflexivity| |exact He]; simpl; simpl in B, E; lia.
Qed.

(** A multiple of η does not underflow. *)
Lemma rounds_multiple m f : rounds emin prec (IZR m * bpow radix2 emin) f ->
  (1 + u) * Rabs (f - IZR m * bpow radix2 emin) <= u * Rabs (IZR m * bpow radix2 emin).
Proof.
  intros H; assert (U := roundoff_positive); set (x := IZR m * bpow radix2 emin) in *; assert (A := Rabs_pos x).
  destruct (Rle_or_lt (bpow radix2 (emin + prec - 1)) (Rabs x)) as [L|L].
  - destruct (relative_error_N_FLX'_ex radix2 prec prec_positive (fun z => negb (Z.even z)) x) as (eps & B & E).
    assert (N := proj2 H (round radix2 (FLT_exp emin prec) ZnearestE x)
      (generic_format_round radix2 (FLT_exp emin prec) ZnearestE x)).
    rewrite round_FLT_FLX in N by exact L; fold ZnearestE in E; rewrite E in N; rewrite u_ro_roundoff in B.
    replace (x * (1 + eps) - x) with (eps * x) in N by ring; rewrite Rabs_mult in N.
    replace (u * Rabs x) with ((1 + u) * (u / (1 + u) * Rabs x)) by (field; lra).
    apply Rmult_le_compat_l; [lra|]; eapply Rle_trans; [exact N|]; apply Rmult_le_compat_r; assumption.
  - rewrite (rounds_exact x f H), Rminus_diag_eq, Rabs_R0 by
      (reflexivity || (apply float_multiple; [lia|]; left; eapply Rlt_le_trans; [exact L|]; apply bpow_le; lia)).
    nra.
Qed.

(** The sum of two floats does not underflow. *)
Lemma rounds_sum a b f : F a -> F b -> rounds emin prec (a + b) f -> (1 + u) * Rabs (f - (a + b)) <= u * Rabs (a + b).
Proof.
  intros Fa Fb H; destruct (FLT_plus_error_N_ex radix2 emin prec (fun z => negb (Z.even z)) a b Fa Fb)
    as (eps & B & E).
  assert (N := proj2 H (round radix2 (FLT_exp emin prec) ZnearestE (a + b))
    (generic_format_round radix2 (FLT_exp emin prec) ZnearestE (a + b))); fold ZnearestE in E; rewrite E in N.
  assert (U := roundoff_positive); rewrite u_ro_roundoff in B.
  replace ((a + b) * (1 + eps) - (a + b)) with (eps * (a + b)) in N by ring; rewrite Rabs_mult in N.
  assert (A := Rabs_pos (a + b)); replace (u * Rabs (a + b)) with ((1 + u) * (u / (1 + u) * Rabs (a + b))) by (field;
    lra).
  apply Rmult_le_compat_l; [lra|]; eapply Rle_trans; [exact N|]; apply Rmult_le_compat_r; assumption.
Qed.

Lemma evaluation_float t v : evaluates emin prec t v -> F v.
Proof. destruct 1; eapply rounds_float; eassumption. Qed.

Lemma evaluation_total t : exists v, evaluates emin prec t v.
Proof.
  induction t as [w x|w x t (a & E)|s (a & E) t (b & E')].
  - destruct (rounds_total (w * x)) as (v & H); exists v; constructor; exact H.
  - destruct (rounds_total (w * x + a)) as (v & H); exists v; econstructor; eassumption.
  - destruct (rounds_total (a + b)) as (v & H); exists v; econstructor; eassumption.
Qed.

Lemma computes_total l : exists v, computes emin prec l v.
Proof.
  pose (t := fold_right (fun p t => Fused (fst p) (snd p) t) (Product 0 0) l).
  destruct (evaluation_total t) as (v & E); exists v, t; split; [|exact E]; unfold adds, t; clear.
  induction l as [|[w x] l IH]; cbn [fold_right terms fst snd].
  - rewrite nonzero_zero by lra; apply Permutation_refl.
  - destruct (Req_EM_T (w * x) 0) as [Z|Z]; [rewrite !nonzero_zero by exact Z; exact IH|].
    rewrite !nonzero_cons by exact Z; apply perm_skip, IH.
Qed.

End Format.

Arguments roundoff_positive {prec}. Arguments half_eta_positive {emin}.
Arguments rounds_exact {emin prec}. Arguments rounds_split {emin prec prec_positive}.
Arguments rounds_error {emin prec prec_positive}. Arguments rounds_sum {emin prec prec_positive}.
Arguments evaluation_float {emin prec}.
