(** Rounding of one attention head, with weights near one-hot, values in either order.

    One column of one head: the keys G, float weights P_k, floats X_{k,c} with |X_{k,c}| ≤ B, the column
    w_c of W_val.  P lies within λ of the one-hot row that attends to k0: Σ_k |P_k − [k = k0]| ≤ λ; λ = 0
    where the float softmax is one-hot (FloatSoftmax.v).  Each sum is any evaluation tree (RoundingTree.v).
    The values may be formed first, fl(Σ_k P_k·fl(X_k w)), or after the attention, fl(fl(Σ_k P_k X_k)·w).
    Statements:
      attended_rounding  fl(Σ_k P_k x_k) differs from x_k0 by λ·M and the rounding of one dot product; equal if λ = 0
      head_rounds        either order differs from X_k0·w by the leak λ·B·Σ|w| and the rounding [head_rounding] *)

From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums RoundingTree RoundingDot.
Import ListNotations.
Open Scope R_scope.

(** The order of the two products in P X W_val. *)
Inductive head_order : Set := values_first | attended_first.

(** The number of nonzero weights, and Σ|w|. *)
Definition support (w : list R) : nat := length (filter (fun x => if Req_EM_T x 0 then false else true) w).
Definition weight (w : list R) : R := sum w Rabs.

(** 1 at k0, 0 elsewhere. *)
Definition unit_row (k0 k : position) : R := if position_eq_dec k k0 then 1 else 0.

(** Σ_k |P_k − [k = k0]| ≤ λ *)
Definition near_one_hot (λ : R) (G : list position) (P : position -> R) (k0 : position) : Prop :=
  sum G (fun k => Rabs (P k - unit_row k0 k)) <= λ.

Section Format.
Variables emin prec : Z.
Context {prec_positive : Prec_gt_0 prec}.

Notation F := (float emin prec).
Notation dot_bound := (dot_bound emin prec).
Notation computes := (computes emin prec).

(** [head_computes o d_in G X P w v]: some evaluation of the column returns v. *)
Definition head_computes (o : head_order) (d_in : nat) (G : list position) (X : image) (P : position -> R)
    (w : vector) (v : R) : Prop :=
  match o with
  | values_first => exists V : position -> R,
      (forall k, In k G -> computes (map (fun c => (w c, X k c)) (seq 0 d_in)) (V k)) /\
      computes (map (fun k => (P k, V k)) G) v
  | attended_first => exists A : vector,
      (forall c, (c < d_in)%nat -> computes (map (fun k => (P k, X k c)) G) (A c)) /\
      computes (map (fun c => (w c, A c)) (seq 0 d_in)) v
  end.

(** The rounding of the sum over N keys, for Σ_k |P_k x_k| ≤ A: zero if only one key is attended. *)
Definition mixing (λ : R) (N : nat) (A : R) : R := if Req_EM_T λ 0 then 0 else dot_bound N A.

(** The rounding of a column w, apart from the leak. *)
Definition head_rounding (o : head_order) (N : nat) (B λ : R) (w : list R) : R :=
  match o with
  | values_first =>
      let E := dot_bound (support w) (weight w * B) in
      (1 + λ) * E + mixing λ N ((1 + λ) * (weight w * B + E))
  | attended_first =>
      let E := mixing λ N ((1 + λ) * B) in
      weight w * E + dot_bound (support w) (weight w * ((1 + λ) * B + E))
  end.

(** * A dot product of weights and bounded numbers *)

Lemma weight_nonneg w : 0 <= weight w.
Proof. apply sum_nonneg; intros; apply Rabs_pos. Qed.

Lemma support_cons x w : (x = 0 -> support (x :: w) = support w) /\ (x <> 0 -> support (x :: w) = S (support w)).
Proof. unfold support; simpl; destruct (Req_EM_T x 0); split; intros; simpl; congruence. Qed.

Lemma support_length w : (support w <= length w)%nat.
Proof.
  induction w as [|x w IH]; [unfold support; simpl; lia|]; destruct (support_cons x w) as [S0 S1].
  destruct (Req_EM_T x 0) as [Z|Z]; [rewrite S0 by exact Z|rewrite S1 by exact Z]; simpl; lia.
Qed.

Lemma nonzero_support {A} (l : list A) (w x : A -> R) :
  (length (nonzero (map (fun k => (w k, x k)) l)) <= support (map w l))%nat.
Proof.
  induction l as [|k l IH]; [simpl; lia|]; simpl map; destruct (support_cons (w k) (map w l)) as [S0 S1].
  destruct (Req_EM_T (w k) 0) as [Z|Z]; [rewrite S0 by exact Z|rewrite S1 by exact Z].
  - rewrite nonzero_zero by (rewrite Z; ring); exact IH.
  - destruct (Req_EM_T (w k * x k) 0) as [Z'|Z']; [rewrite nonzero_zero by exact Z'|rewrite nonzero_cons by exact Z'];
    simpl; lia.
Qed.

Lemma exact_map {A} (l : list A) (w x : A -> R) : exact (map (fun k => (w k, x k)) l) = sum l (fun k => w k * x k).
Proof. unfold exact; rewrite sum_map; reflexivity. Qed.

Lemma magnitude_map {A} (l : list A) (w x : A -> R) M : (forall k, In k l -> Rabs (x k) <= M) ->
  magnitude (map (fun k => (w k, x k)) l) <= weight (map w l) * M.
Proof.
  intros B; unfold magnitude, weight; rewrite !sum_map, <- sum_scal_r; apply sum_le; intros k I; cbn [fst snd].
  rewrite Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|apply B, I].
Qed.

Lemma weighted_rounding {A} (l : list A) (w x : A -> R) M v : (forall k, In k l -> Rabs (x k) <= M) ->
  computes (map (fun k => (w k, x k)) l) v ->
  Rabs (v - sum l (fun k => w k * x k)) <= dot_bound (support (map w l)) (weight (map w l) * M).
Proof.
  intros B C; rewrite <- exact_map; eapply Rle_trans; [exact (dot_rounding emin prec _ _ C)|].
  apply dot_bound_monotone; [apply nonzero_support|apply magnitude_nonneg|apply magnitude_map, B].
Qed.

Lemma weighted_sum {A} (l : list A) (w x : A -> R) M : (forall k, In k l -> Rabs (x k) <= M) ->
  Rabs (sum l (fun k => w k * x k)) <= weight (map w l) * M.
Proof.
  intros B; rewrite <- exact_map; eapply Rle_trans; [apply exact_magnitude|apply magnitude_map, B].
Qed.

(** * The sum over keys *)

Section Head.
Variables (G : list position) (P : position -> R) (k0 : position) (λ : R).
Hypothesis distinct : NoDup G.
Hypothesis k0_key : In k0 G.
Hypothesis row : near_one_hot λ G P k0.

Lemma leak_bound_nonneg : 0 <= λ.
Proof. eapply Rle_trans; [|exact row]; apply sum_nonneg; intros; apply Rabs_pos. Qed.

Lemma unit_row_sum (x : position -> R) : sum G (fun k => unit_row k0 k * x k) = x k0.
Proof.
  rewrite (sum_single G k0); unfold unit_row; try assumption.
  - destruct (position_eq_dec k0 k0); [ring|congruence].
  - intros k _ N; destruct (position_eq_dec k k0); [congruence|ring].
Qed.

Lemma row_weight : weight (map P G) <= 1 + λ.
Proof.
  unfold weight; rewrite sum_map; assert (U := unit_row_sum (fun _ => 1)); cbv beta in U.
  apply Rle_trans with (sum G (fun k => unit_row k0 k * 1) + sum G (fun k => Rabs (P k - unit_row k0 k))).
  2: { rewrite U; assert (R := row); unfold near_one_hot in R; lra. }
  rewrite <- sum_plus; apply sum_le; intros k _.
  replace (P k) with (unit_row k0 k + (P k - unit_row k0 k)) at 1 by ring; eapply Rle_trans; [apply Rabs_triang|].
  unfold unit_row at 1 3; destruct (position_eq_dec k k0); rewrite ?Rabs_R0, ?Rabs_R1; lra.
Qed.

(** Attention over the reals differs from x_k0 by at most λ·M. *)
Lemma attended_leak (x : position -> R) M : (forall k, In k G -> Rabs (x k) <= M) ->
  Rabs (sum G (fun k => P k * x k) - x k0) <= λ * M.
Proof.
  intros B; assert (M0 : 0 <= M) by (eapply Rle_trans; [apply Rabs_pos|apply (B k0 k0_key)]).
  rewrite <- (unit_row_sum x), <- sum_minus; eapply Rle_trans; [apply sum_abs|].
  apply Rle_trans with (sum G (fun k => Rabs (P k - unit_row k0 k)) * M); [|apply Rmult_le_compat_r; assumption].
  rewrite <- sum_scal_r; apply sum_le; intros k I.
  replace (P k * x k - unit_row k0 k * x k) with ((P k - unit_row k0 k) * x k) by ring.
  rewrite Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|apply B, I].
Qed.

Lemma row_one_hot : λ = 0 -> forall k, In k G -> P k = unit_row k0 k.
Proof.
  intros L k I; destruct (sum_split G k (fun k => Rabs (P k - unit_row k0 k)) I) as (G' & _ & E).
  assert (R := row); unfold near_one_hot in R; rewrite E, L in R.
  assert (0 <= sum G' (fun k => Rabs (P k - unit_row k0 k))) by (apply sum_nonneg; intros; apply Rabs_pos).
  assert (A := Rabs_pos (P k - unit_row k0 k)); assert (D : Rabs (P k - unit_row k0 k) <= 0) by lra.
  apply Rabs_le_inv in D; lra.
Qed.

(** fl(Σ_k P_k x_k), for floats x_k. *)
Lemma attended_rounding (x : position -> R) M v : (forall k, In k G -> Rabs (x k) <= M) -> F (x k0) ->
  computes (map (fun k => (P k, x k)) G) v ->
  Rabs (v - x k0) <= λ * M + mixing λ (length G) ((1 + λ) * M).
Proof.
  intros B Fx C; unfold mixing; destruct (Req_EM_T λ 0) as [L|L].
  - assert (P0 : P k0 = 1).
    { rewrite (row_one_hot L k0 k0_key); unfold unit_row; destruct (position_eq_dec k0 k0); congruence. }
    rewrite (one_hot_exact emin prec G P x k0 v); try assumption.
    + rewrite P0, L, Rmult_1_l, Rminus_diag_eq, Rabs_R0 by reflexivity; lra.
    + intros k I N; rewrite (row_one_hot L k I); unfold unit_row; destruct (position_eq_dec k k0); [congruence|ring].
    + rewrite P0, Rmult_1_l; exact Fx.
  - replace (v - x k0) with (sum G (fun k => P k * x k) - x k0 + (v - sum G (fun k => P k * x k))) by ring.
    eapply Rle_trans; [apply Rabs_triang|]; apply Rplus_le_compat; [apply attended_leak, B|].
    eapply Rle_trans; [apply (weighted_rounding G P x M v B C)|].
    assert (M0 : 0 <= M) by (eapply Rle_trans; [apply Rabs_pos|apply (B k0 k0_key)]).
    apply dot_bound_monotone.
    + eapply Nat.le_trans; [apply support_length|rewrite map_length; lia].
    + apply Rmult_le_pos; [apply weight_nonneg|exact M0].
    + apply Rmult_le_compat_r; [exact M0|apply row_weight].
Qed.

Lemma mixing_nonneg N A : 0 <= A -> 0 <= mixing λ N A.
Proof. intros; unfold mixing; destruct (Req_EM_T λ 0); [lra|]; apply dot_bound_nonneg; assumption. Qed.

(** * A column of the head *)

(** The computed value equals Σ_c X_{k0,c} w_c, that of the attended token, up to leak and rounding. *)
Theorem head_rounds o d_in X (w : vector) B v : 0 <= B ->
  (forall k c, In k G -> (c < d_in)%nat -> F (X k c) /\ Rabs (X k c) <= B) ->
  head_computes o d_in G X P w v ->
  let ws := map w (seq 0 d_in) in
  Rabs (v - row_times d_in (X k0) (fun c _ => w c) O) <= λ * (weight ws * B) + head_rounding o (length G) B λ ws.
Proof.
  intros B0 HX C ws; assert (L := leak_bound_nonneg); assert (W := weight_nonneg ws).
  assert (XB : forall k c, In k G -> In c (seq 0 d_in) -> Rabs (X k c) <= B).
  { intros k c I Ic; apply in_seq in Ic; apply HX; [exact I|lia]. }
  assert (V0 : row_times d_in (X k0) (fun c _ => w c) O = sum (seq 0 d_in) (fun c => w c * X k0 c)).
  { unfold row_times, sum_below; apply sum_ext; intros; ring. }
  rewrite V0; destruct o; destruct C as (A & CA & C); unfold head_rounding.
  - (* values first *)
    set (E := dot_bound (support ws) (weight ws * B)).
    assert (EV : forall k, In k G -> Rabs (A k - sum (seq 0 d_in) (fun c => w c * X k c)) <= E).
    { intros k I; apply weighted_rounding; [intros c Ic; apply XB; assumption|apply CA, I]. }
    assert (AV : forall k, In k G -> Rabs (A k) <= weight ws * B + E).
    { intros k I; assert (T := weighted_sum (seq 0 d_in) w (X k) B (fun c => XB k c I)).
      replace (A k) with (sum (seq 0 d_in) (fun c => w c * X k c) + (A k - sum (seq 0 d_in) (fun c => w c * X k c))) by
        ring.
      eapply Rle_trans; [apply Rabs_triang|apply Rplus_le_compat; [exact T|apply EV, I]]. }
    assert (FA : F (A k0)) by (destruct (CA k0 k0_key) as (t & _ & Ev); exact (evaluation_float t _ Ev)).
    assert (R := attended_rounding A (weight ws * B + E) v AV FA C); specialize (EV k0 k0_key).
    replace (v - sum (seq 0 d_in) (fun c => w c * X k0 c))
      with (v - A k0 + (A k0 - sum (seq 0 d_in) (fun c => w c * X k0 c))) by ring.
    eapply Rle_trans; [apply Rabs_triang|]; lra.
  - (* attended first *)
    set (E := mixing λ (length G) ((1 + λ) * B)).
    assert (E0 : 0 <= E) by (apply mixing_nonneg, Rmult_le_pos; lra).
    assert (EA : forall c, In c (seq 0 d_in) -> Rabs (A c - X k0 c) <= λ * B + E).
    { intros c Ic; assert (Hc := Ic); apply in_seq in Hc; apply (attended_rounding (fun k => X k c)).
      - intros k I; apply XB; assumption.
      - apply HX; [exact k0_key|lia].
      - apply CA; lia. }
    assert (AA : forall c, In c (seq 0 d_in) -> Rabs (A c) <= (1 + λ) * B + E).
    { intros c Ic; replace (A c) with (X k0 c + (A c - X k0 c)) by ring; eapply Rle_trans; [apply Rabs_triang|].
      assert (T := XB k0 c k0_key Ic); specialize (EA c Ic); lra. }
    assert (R := weighted_rounding (seq 0 d_in) w A _ v AA C).
    assert (D : Rabs (sum (seq 0 d_in) (fun c => w c * (A c - X k0 c))) <= weight ws * (λ * B + E)).
    { apply (weighted_sum (seq 0 d_in) w (fun c => A c - X k0 c)), EA. }
    assert (D' : sum (seq 0 d_in) (fun c => w c * (A c - X k0 c))
      = sum (seq 0 d_in) (fun c => w c * A c) - sum (seq 0 d_in) (fun c => w c * X k0 c)).
    { rewrite <- sum_minus; apply sum_ext; intros; ring. }
    rewrite D' in D; fold ws in R.
    replace (v - sum (seq 0 d_in) (fun c => w c * X k0 c))
      with (v - sum (seq 0 d_in) (fun c => w c * A c)
            + (sum (seq 0 d_in) (fun c => w c * A c) - sum (seq 0 d_in) (fun c => w c * X k0 c))) by ring.
    eapply Rle_trans; [apply Rabs_triang|]; lra.
Qed.

End Head.
End Format.
