(** Computed scores of the quadratic encoding, and the whole certificate of a sharp layer.

    v_h = −α(1, −2τ_h) and r_δ = (‖δ‖², δ) are integers times α; with α = 2^a the score v_h·r_δ is computed
    without rounding, in any order, while ‖δ‖² + 2 Σ_i |τ_i δ_i| ≤ 2^p.  Zero content terms may be added to it.
    Statements:
      quadratic_score_exact  then the computed score is −α(‖δ−τ‖² − ‖τ‖²)
      quadratic_gap          and every key scores lower than q + τ by α or more
      sharp_certificate      so [check_float]'s bound T covers every evaluation of layer and convolution:
                             scores, softmax, values, sums; one assumption on the exponential
      float32_exponential    the assumption holds in float32 for α = 1024 and a correctly rounded exponential *)

From Coq Require Import Reals ZArith List Lra Lia.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums Lemma2 FloatThreshold RoundingTree RoundingDot RoundingLayer.
From Attention Require Import FloatSoftmax RoundingDyadic RoundingCheck.
Import ListNotations.
Open Scope R_scope.

(** The terms of v_h·r_δ. *)
Definition score_terms (d : nat) (α : R) (τ δ : position) : list (R * R) :=
  map (fun i => (v_quadratic α τ i, r_quadratic δ i)) (seq 0 (S d)).

(** Σ_i |τ_i δ_i| *)
Fixpoint abs_dot (τ δ : position) : Z :=
  match τ, δ with a :: τ', b :: δ' => (Z.abs (a * b) + abs_dot τ' δ')%Z | _, _ => 0%Z end.

(** Scores of this size are exact. *)
Definition exact_scores (prec : Z) (q τ : position) (G : list position) : Prop :=
  forall k, In k G -> (norm2 (sub k q) + 2 * abs_dot τ (sub k q) <= 2 ^ prec)%Z.

Lemma score_terms_split d α τ δ : score_terms d α τ δ =
  (- α, IZR (norm2 δ)) :: map (fun i => (2 * α * coordinate τ i, coordinate δ i)) (seq 0 d).
Proof. unfold score_terms; simpl; f_equal; rewrite <- seq_shift, map_map; reflexivity. Qed.

Lemma score_terms_exact d α τ δ : exact (score_terms d α τ δ) = dot (S d) (v_quadratic α τ) (r_quadratic δ).
Proof. unfold exact, score_terms, dot, sum_below; apply sum_map. Qed.

Lemma abs_dot_sum τ δ : length τ = length δ ->
  sum_below (length τ) (fun i => Rabs (coordinate τ i * coordinate δ i)) = IZR (abs_dot τ δ).
Proof.
  revert δ; induction τ as [|a τ IH]; intros [|b δ]; simpl length; try lia; intros E; [reflexivity|].
  rewrite sum_below_S; unfold coordinate at 1 2; simpl nth; simpl abs_dot.
  rewrite plus_IZR, abs_IZR, mult_IZR, <- IH by lia; reflexivity.
Qed.

Lemma norm2_IZR_nonneg δ : 0 <= IZR (norm2 δ).
Proof. apply IZR_le, norm2_nonneg. Qed.

Section Scores.
Variables (emin prec a : Z) (d : nat).
Context {prec_positive : Prec_gt_0 prec}.
Hypothesis a_normal : (emin <= a)%Z.

Notation α := (bpow radix2 a).

Lemma score_terms_magnitude τ δ : length τ = d -> length δ = d ->
  magnitude (score_terms d α τ δ) = IZR (norm2 δ + 2 * abs_dot τ δ) * α.
Proof.
  intros Hτ Hδ; rewrite score_terms_split, magnitude_cons; unfold magnitude; rewrite sum_map.
  assert (A := bpow_ge_0 radix2 a).
  rewrite Rabs_mult, Rabs_Ropp, (Rabs_pos_eq α), (Rabs_pos_eq (IZR _)) by (exact A || apply norm2_IZR_nonneg).
  rewrite (sum_ext _ _ (fun i => 2 * α * Rabs (coordinate τ i * coordinate δ i))).
  - rewrite sum_scal; fold (sum_below d (fun i => Rabs (coordinate τ i * coordinate δ i))).
    rewrite <- Hτ, abs_dot_sum by congruence; rewrite plus_IZR, mult_IZR; ring.
  - intros i _; cbn [fst snd]; rewrite !Rabs_mult, (Rabs_pos_eq 2), (Rabs_pos_eq α) by (exact A || lra); ring.
Qed.

Lemma score_terms_multiples τ δ : multiples a (score_terms d α τ δ).
Proof.
  rewrite score_terms_split; constructor; cbn [fst snd].
  - exists (- norm2 δ)%Z; rewrite opp_IZR; ring.
  - apply Forall_forall; intros p I; apply in_map_iff in I; destruct I as (i & <- & _); cbn [fst snd].
    exists (2 * nth i τ 0 * nth i δ 0)%Z; unfold coordinate; rewrite !mult_IZR; ring.
Qed.

(** The computed score is the real one, −α(‖δ−τ‖² − ‖τ‖²). *)
Theorem quadratic_score_exact τ δ s : length τ = d -> length δ = d -> (norm2 δ + 2 * abs_dot τ δ <= 2 ^ prec)%Z ->
  computes emin prec (score_terms d α τ δ) s -> s = dot (S d) (v_quadratic α τ) (r_quadratic δ).
Proof.
  intros Hτ Hδ L C; rewrite <- score_terms_exact; apply (sum_exact emin prec a); try assumption.
  - apply score_terms_multiples.
  - rewrite score_terms_magnitude, bpow_plus by assumption; apply Rmult_le_compat_r; [apply bpow_ge_0|].
    rewrite <- IZR_Zpower by (unfold Prec_gt_0 in prec_positive; lia); apply IZR_le; exact L.
Qed.

(** Every key scores lower than q + τ by α or more. *)
Theorem quadratic_gap G q τ s : positions d G -> length q = d -> length τ = d -> In (add q τ) G ->
  exact_scores prec q τ G -> (forall k, In k G -> computes emin prec (score_terms d α τ (sub k q)) (s k)) ->
  gap α G s (add q τ).
Proof.
  intros [N D] Hq Hτ I L C k Ik Hk; rewrite Forall_forall in D.
  assert (E : forall k', In k' G -> s k' = dot (S d) (v_quadratic α τ) (r_quadratic (sub k' q))).
  { intros k' I'; apply quadratic_score_exact; try assumption; [|apply L, I'|apply C, I'].
    rewrite length_sub by (rewrite D by exact I'; congruence); apply D, I'. }
  rewrite (E k Ik), (E _ I), sub_add by congruence.
  assert (Lk : length (sub k q) = d) by (rewrite length_sub by (rewrite D by exact Ik; congruence); apply D, Ik).
  assert (Sg := score_gap d α (sub k q) τ (bpow_ge_0 radix2 a) Lk Hτ); apply Rplus_le_reg_l with (r := α).
  enough (sub k q <> τ) as Hne by (specialize (Sg Hne); lra).
  intros Ek; apply Hk; rewrite <- Ek, add_sub by (rewrite D by exact Ik; congruence); reflexivity.
Qed.

End Scores.

(** * The whole certificate *)

(** Every evaluation of the attention (scores, softmax, values, sums) and every evaluation of the convolution
    differ by T at most, in every output channel j, if [check_float] accepts T with λ_h = 0. *)
Theorem sharp_certificate {H} (s : setting) (p : float_pair H) (L : layer H) (W : position -> matrix) (b : vector)
    (a : Z) (d : nat) (expf : R -> R) (G : list position) (X : image) (q : position)
    (scores P : H -> position -> R) (T : dyadic) (j : nat) (y z : R) :
  represents p L W b ->
  (* the format, the exponential and the sharpness α = 2^a *)
  (0 < s_prec s)%Z -> (s_emin s <= 0)%Z -> (s_emin s <= a)%Z ->
  sharp_exp (s_emin s) (s_prec s) (bpow radix2 a) expf ->
  (* the grid, the query, the input *)
  positions d G -> length q = d -> (Z.of_nat (length G) <= s_tokens s)%Z ->
  (forall k c, In k G -> (c < in_channels p)%nat ->
     float (s_emin s) (s_prec s) (X k c) /\ Rabs (X k c) <= value (s_bound s)) ->
  NoDup (support_of_kernel p) -> (forall τ, In τ (support_of_kernel p) -> In (add q τ) G) ->
  (forall h, In h (all_heads p) -> length (shift p h) = d /\ In (add q (shift p h)) G /\
     exact_scores (s_prec s) q (shift p h) G /\ mantissa (row_bound p h) = 0%Z) ->
  (* the evaluations *)
  (forall h, In h (all_heads p) ->
     (forall k, In k G -> computes (s_emin s) (s_prec s)
        (score_terms d (bpow radix2 a) (shift p h) (sub k q)) (scores h k)) /\
     float_softmax (s_emin s) (s_prec s) expf G (scores h) (P h)) ->
  computes (s_emin s) (s_prec s) (conv_terms (D_in L) (support_of_kernel p) W b X q j) y ->
  attend_computes (s_emin s) (s_prec s) (s_order s) L G X P j z ->
  (* the check *)
  check_float s p T = true -> (j < out_channels p)%nat ->
  Rabs (z - y) <= value T.
Proof.
  intros Rp Hp He Ha Ex Gd Hq Ht HX Nk Kg Hh Ev Cy Cz Ck Hj; assert (Pp : Prec_gt_0 (s_prec s)) by exact Hp.
  apply (check_float_sharp s p L W b Rp G X q P Hp Ht (proj1 Gd) Nk HX Kg) with (expf := expf) (g := bpow radix2 a)
    (scores := scores) (j := j); try assumption.
  - intros h Ih; apply Hh, Ih.
  - apply bpow_gt_0.
  - apply generic_format_FLT_bpow; assumption.
  - intros h Ih; destruct (Hh h Ih) as (Lτ & I & Le & Z), (Ev h Ih) as (Sc & Sf); repeat split; try assumption.
    apply (quadratic_gap (s_emin s) (s_prec s) a d); assumption.
Qed.

(** float32 with the default α = 1024 = 2^10 and a correctly rounded exponential satisfies what
    [sharp_certificate] asks of the exponential. *)
Theorem float32_exponential expf : correctly_rounded (-149) 24 expf -> sharp_exp (-149) 24 (bpow radix2 10) expf.
Proof.
  intros C; assert (Prec_gt_0 24) by easy; apply correctly_rounded_exp; try easy.
  apply float32_below; simpl; lra.
Qed.

Theorem float64_exponential expf : correctly_rounded (-1074) 53 expf -> sharp_exp (-1074) 53 (bpow radix2 10) expf.
Proof.
  intros C; assert (Prec_gt_0 53) by easy; apply correctly_rounded_exp; try easy.
  apply float64_below; simpl; lra.
Qed.
