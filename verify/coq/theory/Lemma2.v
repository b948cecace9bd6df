(** Lemma 2: a relative positional encoding with which a head looks at one shift.

    Statements:
      lemma2                       v·r_δ = −α(‖δ−τ‖² − ‖τ‖²)
      score_gap                    at every other integer shift the score is lower by α or more
      parabola_score               with r_δ = (n(δ)², n(δ)): v·r_δ = −α((n(δ)−n(τ))² − n(τ)²)
      parabola_score_gap           D_p = 2 has the same gap in every dimension
      absolute_score               the same score is a dot product of d + 1 features of the query
                                   and of the key, up to a term of the query alone
      absolute_attention           and so the same attention
      no_one_component             D_p = 1: no three heads have their best keys at three tokens
      no_one_component_attention   nor do three heads give three tokens more than half each *)

From Coq Require Import Reals ZArith List Lra Lia.
From Attention Require Import Definitions Sums.
From Attention Require Softmax.
Import ListNotations.
Open Scope R_scope.

(** * The quadratic encoding *)

(** Lemma 2: v_h·r_δ = −α(‖δ−τ_h‖² − ‖τ_h‖²), for v_h = −α(1, −2τ_h) and r_δ = (‖δ‖², δ). *)
Theorem lemma2 d α δ τ : length δ = d -> length τ = d ->
  dot (S d) (v_quadratic α τ) (r_quadratic δ) = - α * (IZR (norm2 (sub δ τ)) - IZR (norm2 τ)).
Proof.
  intros Hδ Hτ; unfold dot; rewrite sum_below_S; simpl v_quadratic; simpl r_quadratic.
  rewrite (sum_below_ext _ _ (fun i => 2 * α * (coordinate τ i * coordinate δ i))) by (intros; ring).
  unfold sum_below; rewrite sum_scal; fold (sum_below d (fun i => coordinate τ i * coordinate δ i)).
  rewrite <- Hτ, sum_coordinates, norm2_sub by congruence.
  rewrite plus_IZR, minus_IZR, mult_IZR, (dotZ_comm τ δ); ring.
Qed.

(** The score of a layer that has v_h·r_δ alone: Eq. 6 with W_qry = W_key = 0, u = 0, Ŵ_key = I. *)
Lemma score_positional {H} d_p d_in d_out r_ (hs : list H) v_ W b h X q k :
  score (positional d_p d_in d_out r_ hs v_ W b) h X q k = dot d_p (v_ h) (r_ (sub k q)).
Proof.
  assert (Z : forall x i, row_times d_in x zero_matrix i = 0).
  { intros; apply sum_below_zero; intros; unfold zero_matrix; ring. }
  unfold score; simpl; unfold dot.
  rewrite !(sum_below_zero d_p (fun i => row_times d_in _ _ i * _)) by (intros; rewrite Z; ring).
  rewrite (sum_below_zero d_p (fun i => 0 * _)) by (intros; ring).
  rewrite !Rplus_0_l; apply sum_below_ext; intros i Hi; rewrite times_column_identity by exact Hi; reflexivity.
Qed.

(** The score of the construction: −α(‖k−q−τ_h‖² − ‖τ_h‖²). *)
Lemma score_construction {H} d d_in d_out α (hs : list H) f W b h X q k :
  length q = d -> length k = d -> length (f h) = d ->
  score (construction d d_in d_out α hs f W b) h X q k =
  - α * (IZR (norm2 (sub k (add q (f h)))) - IZR (norm2 (f h))).
Proof.
  intros Hq Hk Hf; unfold construction; rewrite score_positional, lemma2.
  - rewrite sub_sub by congruence; reflexivity.
  - rewrite length_sub by congruence; exact Hk.
  - exact Hf.
Qed.

(** The shift τ scores best, and every other integer shift lower by α or more. *)
Theorem score_gap d α δ τ : 0 <= α -> length δ = d -> length τ = d -> δ <> τ ->
  α <= dot (S d) (v_quadratic α τ) (r_quadratic τ) - dot (S d) (v_quadratic α τ) (r_quadratic δ).
Proof.
  intros Hα Hδ Hτ D; rewrite !lemma2 by assumption; rewrite norm2_sub_diag.
  assert (B : 1 <= IZR (norm2 (sub δ τ))); [|nra].
  apply IZR_le, norm2_sub_positive; congruence.
Qed.

(** * The parabola: D_p = 2 in every dimension *)

(** The number n(δ) = Σ_i radix_i δ_i of a shift in mixed radix, radix_i = Π_{j>i} m_j. *)
Fixpoint product (m : list Z) : Z := match m with [] => 1%Z | a :: m' => (a * product m')%Z end.
Fixpoint number (m : list Z) (δ : position) : Z :=
  match m, δ with _ :: m', x :: δ' => (x * product m' + number m' δ')%Z | _, _ => 0%Z end.

Definition r_parabola (m : list Z) (δ : position) : vector :=
  fun i => match i with O => IZR (number m δ) * IZR (number m δ) | _ => IZR (number m δ) end.
Definition v_parabola (α : R) (m : list Z) (τ : position) : vector :=
  fun i => match i with O => - α | _ => 2 * α * IZR (number m τ) end.

(** The axes have room for e: |e_i| ≤ m_i − 1 on every axis. *)
Definition room (m : list Z) (e : position) : Prop := Forall2 (fun a x => (Z.abs x <= a - 1)%Z) m e.

Lemma number_bound m e : room m e -> (1 <= product m /\ Z.abs (number m e) <= product m - 1)%Z.
Proof. induction 1 as [|a x m e Hx _ IH]; simpl; [lia|]; nia. Qed.

Lemma number_zero m e : room m e -> number m e = 0%Z -> Forall (fun x => x = 0%Z) e.
Proof.
  induction 1 as [|a x m e Hx He IH]; simpl; [constructor|]; intros E.
  pose proof (number_bound m e He) as [B1 B2].
  assert (x = 0%Z) by nia; subst x; constructor; [reflexivity|]; apply IH; lia.
Qed.

Lemma number_sub m p q : length p = length q -> number m (sub p q) = (number m p - number m q)%Z.
Proof.
  revert p q; induction m as [|a m IH]; intros p q E; [reflexivity|].
  destruct p as [|x p], q as [|y q]; simpl in E; try lia; [reflexivity|].
  cbn [number sub]; rewrite IH by lia; ring.
Qed.

Lemma zeros_equal p q : length p = length q -> Forall (fun x => x = 0%Z) (sub p q) -> p = q.
Proof.
  revert q; induction p as [|x p IH]; intros [|y q]; simpl; try lia; intros E F; [reflexivity|].
  inversion F; subst; f_equal; [lia|apply IH; [lia|assumption]].
Qed.

(** With r_δ = (n(δ)², n(δ)) and v = −α(1, −2n(τ)): v·r_δ = −α((n(δ)−n(τ))² − n(τ)²). *)
Theorem parabola_score α m δ τ :
  dot 2 (v_parabola α m τ) (r_parabola m δ) =
  - α * (IZR ((number m δ - number m τ) * (number m δ - number m τ)) - IZR (number m τ * number m τ)).
Proof.
  unfold dot, sum_below, sum; simpl; rewrite !mult_IZR, !minus_IZR; ring.
Qed.

(** D_p = 2: where the axes have room for δ − τ, every other shift scores lower by α or more. *)
Theorem parabola_score_gap α m δ τ : 0 <= α -> length δ = length τ -> room m (sub δ τ) -> δ <> τ ->
  α <= dot 2 (v_parabola α m τ) (r_parabola m τ) - dot 2 (v_parabola α m τ) (r_parabola m δ).
Proof.
  intros Hα E B D; rewrite !parabola_score.
  set (n := (number m δ - number m τ)%Z); replace ((number m τ - number m τ) * _)%Z with 0%Z by ring.
  assert (N : n <> 0%Z).
  { unfold n; rewrite <- number_sub by exact E; intros Z; apply D, zeros_equal; [exact E|].
    apply (number_zero m); assumption. }
  assert (1 <= IZR (n * n)) by (apply IZR_le; nia); nra.
Qed.

(** * Absolute positions *)

(** d + 1 features of the query and of the key: −α(1, −2(q+τ)) and (‖k‖², k). *)
Definition absolute_query (α : R) (τ q : position) : vector := v_quadratic α (add q τ).
Definition absolute_key (k : position) : vector := r_quadratic k.

(** −α‖k−q−τ‖² = α(2(q+τ)·k − ‖k‖²) − α‖q+τ‖²: the score of Lemma 2 is a dot product of d + 1
    features of query and key, up to a term that softmax cancels. *)
Theorem absolute_score d α q k τ : length q = d -> length k = d -> length τ = d ->
  dot (S d) (v_quadratic α τ) (r_quadratic (sub k q)) =
  dot (S d) (absolute_query α τ q) (absolute_key k) + α * (IZR (norm2 τ) - IZR (norm2 (add q τ))).
Proof.
  intros Hq Hk Hτ; unfold absolute_query, absolute_key; rewrite !lemma2; try assumption.
  - rewrite sub_sub by congruence; ring.
  - rewrite length_add by congruence; exact Hq.
  - rewrite length_sub by congruence; exact Hk.
Qed.

(** Both scores give the same attention, on every grid. *)
Theorem absolute_attention d α G q k τ : positions d G -> In k G -> length q = d -> length τ = d ->
  softmax G (fun k' => dot (S d) (v_quadratic α τ) (r_quadratic (sub k' q))) k =
  softmax G (fun k' => dot (S d) (absolute_query α τ q) (absolute_key k')) k.
Proof.
  intros [_ G_d] I Hq Hτ; rewrite Forall_forall in G_d.
  rewrite <- (Softmax.softmax_shift G (fun k' => dot (S d) (absolute_query α τ q) (absolute_key k'))
    (α * (IZR (norm2 τ) - IZR (norm2 (add q τ))))).
  apply Softmax.softmax_ext; [|exact I]; intros k' I'; apply absolute_score; auto.
Qed.

(** * One component is too few *)

(** The score of head h depends on positions alone: W_qry = 0, and u = 0 or W_key = 0. *)
Definition content_free {H} (L : layer H) (h : H) : Prop :=
  (forall i j, W_qry (parameters L h) i j = 0) /\
  ((forall i, u (parameters L h) i = 0) \/ (forall i j, W_key (parameters L h) i j = 0)).

Lemma content_free_u {H} (L : layer H) h (x : vector) : content_free L h ->
  sum_below (D_k L) (fun i => u (parameters L h) i * row_times (D_in L) x (W_key (parameters L h)) i) = 0.
Proof.
  intros [_ [U|K]]; apply sum_below_zero; intros i _; [rewrite U; ring|].
  unfold row_times; rewrite sum_below_zero; [ring|]; intros; rewrite K; ring.
Qed.

(** The token k scores strictly better than k' for query q in head h. *)
Definition prefers {H} (L : layer H) (X : image) (q : position) (h : H) (k k' : position) : Prop :=
  score L h X q k' < score L h X q k.

Lemma score_one_component {H} (L : layer H) h : D_p L = 1%nat -> content_free L h ->
  exists c, forall X q k, score L h X q k = c * r L (sub k q) O.
Proof.
  intros E C; assert (Q := proj1 C); exists (dot (D_k L) (v (parameters L h)) (fun i => W_key_pos (parameters L h) i O)).
  intros X q k; unfold score; rewrite E; unfold dot.
  rewrite !(sum_below_zero (D_k L) (fun i => row_times _ _ (W_qry _) i * _)).
  2, 3: intros i _; unfold row_times; rewrite sum_below_zero; [ring|]; intros; rewrite Q; ring.
  rewrite (content_free_u L h (X k) C).
  rewrite !Rplus_0_l; unfold sum_below; rewrite <- sum_scal_r; apply sum_ext; intros i _.
  unfold times_column, sum_below, sum; simpl; ring.
Qed.

Lemma same_sign c x y : c * y < c * x -> 0 < c /\ y < x \/ c < 0 /\ x < y.
Proof.
  intros L; destruct (Rtotal_order c 0) as [N|[->|P]]; [right|lra|left]; split; try assumption.
  - apply Rmult_lt_reg_l with (- c); lra.
  - apply Rmult_lt_reg_l with c; assumption.
Qed.

(** D_p = 1: three content-free heads cannot each have its best key at another one of three tokens,
    whatever the encoding r and the vectors v_h: c·r_δ has one largest and one smallest value. *)
Theorem no_one_component {H} (L : layer H) h1 h2 h3 : D_p L = 1%nat ->
  content_free L h1 -> content_free L h2 -> content_free L h3 ->
  forall X q k1 k2 k3,
  ~ (prefers L X q h1 k1 k2 /\ prefers L X q h1 k1 k3 /\
     prefers L X q h2 k2 k1 /\ prefers L X q h2 k2 k3 /\
     prefers L X q h3 k3 k1 /\ prefers L X q h3 k3 k2).
Proof.
  intros E F1 F2 F3 X q k1 k2 k3; unfold prefers.
  destruct (score_one_component L h1 E F1) as [c1 S1], (score_one_component L h2 E F2) as [c2 S2],
    (score_one_component L h3 E F3) as [c3 S3].
  rewrite !S1, !S2, !S3; generalize (r L (sub k1 q) O) (r L (sub k2 q) O) (r L (sub k3 q) O); intros x1 x2 x3.
  intros (A12 & A13 & A21 & A23 & A31 & A32).
  apply same_sign in A12, A13, A21, A23, A31, A32; lra.
Qed.

(** So three heads cannot give three tokens more than half of their attention each, at any α. *)
Theorem no_one_component_attention {H} (L : layer H) h1 h2 h3 : D_p L = 1%nat ->
  content_free L h1 -> content_free L h2 -> content_free L h3 ->
  forall G X q k1 k2 k3, NoDup [k1; k2; k3] -> In k1 G -> In k2 G -> In k3 G ->
  ~ (1 / 2 < attention L G h1 X q k1 /\ 1 / 2 < attention L G h2 X q k2 /\ 1 / 2 < attention L G h3 X q k3).
Proof.
  intros E F1 F2 F3 G X q k1 k2 k3 N I1 I2 I3 (A1 & A2 & A3).
  inversion N as [|? ? N1 N']; inversion N' as [|? ? N2 _]; subst; simpl in N1, N2.
  apply (no_one_component L h1 h2 h3 E F1 F2 F3 X q k1 k2 k3); unfold prefers, attention in *.
  repeat split; apply (Softmax.majority_scores_best G); intuition congruence.
Qed.
