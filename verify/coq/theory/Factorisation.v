(** Axis factorisation, on which the fast execution of a quadratic layer rests.

    Statements, for a rectangular grid (the product of d lists of coordinates):
      factorisation             if the score is a sum over axes, s(k) = Σ_i s_i(k_i), then softmax
                                over the grid is the product of the axes' softmaxes
      factorisation_quadratic   so it is for s(k) = −α‖k−q−τ‖², any real α and any real τ
      factorisation_attention   and for every head of the construction: P^h = P_1^h ⊗ … ⊗ P_d^h
      no_factorisation          not so where the score is not additive on a rectangle of keys, as with a full
                                covariance or the parabola *)

From Coq Require Import Reals ZArith List Lra Lia.
From Attention Require Import Definitions Sums Softmax Lemma2.
Import ListNotations.
Open Scope R_scope.

(** * Rectangular grids *)

(** All positions with their i-th coordinate on the i-th axis, the last axis fastest. *)
Fixpoint box (axes : list (list Z)) : list position :=
  match axes with [] => [[]] | G :: axes' => flat_map (fun x => map (cons x) (box axes')) G end.

Lemma in_box axes k : In k (box axes) <-> Forall2 (fun x G => In x G) k axes.
Proof.
  revert k; induction axes as [|G axes IH]; intros k; simpl.
  - split; [intros [<-|[]]; constructor|intros F; inversion F; left; reflexivity].
  - rewrite in_flat_map; split.
    + intros (x & Hx & Hk); apply in_map_iff in Hk; destruct Hk as (k' & <- & Hk').
      constructor; [exact Hx|apply IH; exact Hk'].
    + intros F; inversion F as [|x ? k' ? Hx Hk']; subst; exists x; split; [exact Hx|].
      apply in_map, IH; exact Hk'.
Qed.

Lemma length_in_box axes k : In k (box axes) -> length k = length axes.
Proof. rewrite in_box; induction 1; simpl; congruence. Qed.

Lemma NoDup_box axes : Forall (@NoDup Z) axes -> NoDup (box axes).
Proof.
  induction 1 as [|G axes HG _ IH]; simpl; [constructor; [intros []|constructor]|].
  induction HG as [|x G Hx HG IHG]; simpl; [constructor|].
  assert (App : forall l l' : list position, NoDup l -> NoDup l' -> (forall p, In p l -> ~ In p l') -> NoDup (l ++ l')).
  { induction l as [|p l IHl]; intros l' Nl Nl' D; [exact Nl'|]; inversion Nl; subst; simpl; constructor.
    - rewrite in_app_iff; intros [|I]; [contradiction|apply (D p (or_introl eq_refl) I)].
    - apply IHl; [assumption|exact Nl'|]; intros p' Ip'; apply D; right; exact Ip'. }
  apply App; [apply FinFun.Injective_map_NoDup; [intros p p'; congruence|exact IH]|exact IHG|].
  intros p Ip I'; apply in_map_iff in Ip; destruct Ip as (p' & <- & _).
  apply in_flat_map in I'; destruct I' as (x' & Hx' & I'); apply in_map_iff in I'.
  destruct I' as (p'' & E & _); congruence.
Qed.

(** A rectangular grid is a grid. *)
Lemma positions_box axes : Forall (@NoDup Z) axes -> positions (length axes) (box axes).
Proof.
  intros N; split; [apply NoDup_box; exact N|]; apply Forall_forall; intros k I; apply length_in_box; exact I.
Qed.

(** * Scores that are sums over axes *)

(** Σ_i s_i(k_i) *)
Fixpoint axis_sum (s : list (Z -> R)) (k : position) : R :=
  match s, k with s1 :: s', x :: k' => s1 x + axis_sum s' k' | _, _ => 0 end.

(** Π_i Σ_{x on axis i} e^{s_i(x)} *)
Fixpoint normalisers (axes : list (list Z)) (s : list (Z -> R)) : R :=
  match axes, s with G :: axes', s1 :: s' => sum G (fun x => exp (s1 x)) * normalisers axes' s' | _, _ => 1 end.

(** Π_i softmax over axis i of s_i, at k_i *)
Fixpoint axis_softmaxes (axes : list (list Z)) (s : list (Z -> R)) (k : position) : R :=
  match axes, s, k with
  | G :: axes', s1 :: s', x :: k' => softmax G s1 x * axis_softmaxes axes' s' k'
  | _, _, _ => 1
  end.

(** Over a rectangular grid the normaliser is the product of the axes' normalisers. *)
Lemma normaliser_box axes s : length s = length axes ->
  sum (box axes) (fun k => exp (axis_sum s k)) = normalisers axes s.
Proof.
  revert s; induction axes as [|G axes IH]; intros [|s1 s]; simpl; try lia; intros E.
  - unfold sum; simpl; rewrite exp_0; ring.
  - rewrite sum_flat_map, <- sum_scal_r; apply sum_ext; intros x _.
    rewrite sum_map, <- (IH s), <- sum_scal by lia; apply sum_ext; intros k _.
    cbn [axis_sum]; apply exp_plus.
Qed.

(** softmax of a sum over axes, on a rectangular grid, is the product of the axes' softmaxes. *)
Theorem factorisation axes s k : length s = length axes -> In k (box axes) ->
  softmax (box axes) (axis_sum s) k = axis_softmaxes axes s k.
Proof.
  intros E I; unfold softmax; rewrite normaliser_box by exact E; apply in_box in I; revert s E.
  induction I as [|x G k axes Hx Hk IH]; intros [|s1 s]; simpl length; try lia; intros E.
  - simpl; rewrite exp_0; field.
  - cbn [axis_sum normalisers axis_softmaxes]; rewrite <- IH by lia; rewrite exp_plus; unfold softmax.
    pose proof (normaliser_positive G s1 x Hx).
    assert (normalisers axes s <> 0).
    { rewrite <- normaliser_box by lia; apply Rgt_not_eq, (normaliser_positive _ _ k), in_box, Hk. }
    field; split; [assumption|lra].
Qed.

(** The quadratic score of one axis, −α(x−q_i−τ_i)², and of all axes, for a target q+τ of real
    coordinates: −α‖k−q−τ‖². *)
Definition axis_scores (α : R) (target : list R) : list (Z -> R) :=
  map (fun t x => - α * ((IZR x - t) * (IZR x - t))) target.

(** ‖k − t‖² for a target t of real coordinates. *)
Fixpoint distance2 (k : position) (t : list R) : R :=
  match k, t with x :: k', t1 :: t' => (IZR x - t1) * (IZR x - t1) + distance2 k' t' | _, _ => 0 end.

Lemma axis_sum_quadratic α t k : axis_sum (axis_scores α t) k = - α * distance2 k t.
Proof. revert k; induction t as [|t1 t IH]; intros [|x k]; simpl; try ring; unfold axis_scores in IH; rewrite IH; ring. Qed.

(** For every real α and every real target the quadratic score factorises. *)
Theorem factorisation_quadratic axes α target k : length target = length axes -> In k (box axes) ->
  softmax (box axes) (fun k' => - α * distance2 k' target) k = axis_softmaxes axes (axis_scores α target) k.
Proof.
  intros E I; rewrite <- factorisation by (unfold axis_scores; rewrite ?map_length; assumption).
  apply softmax_ext; [|exact I]; intros; symmetry; apply axis_sum_quadratic.
Qed.

Lemma distance2_norm2 k c : length k = length c -> distance2 k (map IZR c) = IZR (norm2 (sub k c)).
Proof.
  revert c; induction k as [|x k IH]; intros [|y c]; simpl length; try lia; intros E; [reflexivity|].
  cbn [distance2 map norm2 sub]; rewrite IH by lia; rewrite plus_IZR, mult_IZR, minus_IZR; ring.
Qed.

(** The attention of every head of the construction, on a rectangular grid, is the product of d
    attentions, one an axis: P^h = P_1^h ⊗ … ⊗ P_d^h. *)
Theorem factorisation_attention {H} d d_in d_out α (hs : list H) f W b h X axes q k :
  length axes = d -> length q = d -> length (f h) = d -> In k (box axes) ->
  attention (construction d d_in d_out α hs f W b) (box axes) h X q k =
  axis_softmaxes axes (axis_scores α (map IZR (add q (f h)))) k.
Proof.
  intros Ha Hq Hf I; rewrite <- factorisation_quadratic; [|rewrite map_length, length_add; congruence|exact I].
  unfold attention; rewrite <- (softmax_shift _ (fun k' => - α * distance2 k' _) (α * IZR (norm2 (f h)))).
  apply softmax_ext; [|exact I]; intros k' I'; apply length_in_box in I'.
  rewrite (score_construction d) by congruence.
  rewrite distance2_norm2 by (rewrite length_add; congruence); ring.
Qed.

(** A score that is not additive on a rectangle of four keys gives no such product. *)
Theorem no_factorisation (G : list position) (s : position -> R) x x' y y' :
  In [x; y] G -> In [x; y'] G -> In [x'; y] G -> In [x'; y'] G ->
  s [x; y] + s [x'; y'] <> s [x; y'] + s [x'; y] ->
  ~ exists f g : Z -> R, forall a b, In [a; b] G -> softmax G s [a; b] = f a * g b.
Proof.
  intros I1 I2 I3 I4 D (f & g & E); apply D, exp_inv; rewrite !exp_plus.
  pose proof (normaliser_positive G s _ I1) as Z; unfold softmax in E; set (z := sum G (fun k => exp (s k))) in *.
  assert (P : forall a b, In [a; b] G -> exp (s [a; b]) = f a * g b * z) by (intros; rewrite <- E by assumption; field; lra).
  rewrite !P by assumption; ring.
Qed.

(** So neither a full covariance's attention nor the parabola's is a product of one attention an axis. *)
Corollary no_factorisation_covariance (G : list position) α : α <> 0 ->
  In [0; 0]%Z G -> In [0; 1]%Z G -> In [1; 0]%Z G -> In [1; 1]%Z G ->
  ~ exists f g : Z -> R, forall a b, In [a; b] G ->
  softmax G (fun k => - α * (coordinate k 0 * coordinate k 0 + coordinate k 0 * coordinate k 1 + coordinate k 1 * coordinate k 1))
    [a; b] = f a * g b.
Proof.
  intros Hα I1 I2 I3 I4; apply (no_factorisation G _ 0%Z 1%Z 0%Z 1%Z); try assumption; unfold coordinate; simpl.
  intros E; apply Hα; lra.
Qed.

Corollary no_factorisation_parabola (G : list position) α m1 m2 : α <> 0 -> m2 <> 0%Z ->
  In [0; 0]%Z G -> In [0; 1]%Z G -> In [1; 0]%Z G -> In [1; 1]%Z G ->
  ~ exists f g : Z -> R, forall a b, In [a; b] G ->
  softmax G (fun k => dot 2 (v_parabola α [m1; m2] [0; 0]%Z) (r_parabola [m1; m2] k)) [a; b] = f a * g b.
Proof.
  intros Hα Hm I1 I2 I3 I4; apply (no_factorisation G _ 0%Z 1%Z 0%Z 1%Z); try assumption; rewrite !parabola_score.
  cbn [number product]; rewrite ?mult_IZR, ?minus_IZR, ?plus_IZR, ?mult_IZR; intros E; assert (α * IZR m2 = 0) as A by lra.
  apply Rmult_integral in A; destruct A as [A|A]; [contradiction|]; apply Hm, eq_IZR, A.
Qed.
