(** The headline theorems, each under what it is in the paper (Cordonnier, Loukas, Jaggi, ICLR 2020; equations have the
    numbers of the talk by Y. Lau, 2021: Eq. 3 is MHSA, Eq. 6 the score, Eq. 8 the convolution), and the axioms
    that each rests on: axioms.txt lists the axioms allowed, all of them of Coq's own real numbers. *)

From Attention Require Import Definitions Softmax Lemma2 Factorisation Leakage OffLattice Layers Limits Theorem1
  Exactness Encodings HeadCount Same Geometry Patches Transposed Borders NullToken FloatThreshold RoundingDot RoundingHead RoundingTaps
  RoundingLayer RoundingWeights FloatSoftmax RoundingDyadic RoundingCheck RoundingScores RoundingSame FloatSoftmaxError
  RoundingSoft.
From Attention Require CheckHeads CheckSame CheckWithin CheckSharp CheckFloats CheckSoft CheckRefuted CheckText FastText.

(** Lemma 2 *)
(* Lemma 2: v_h·r_δ = −α(‖δ − τ_h‖² − ‖τ_h‖²) for v_h = −α(1, −2τ_h), r_δ = (‖δ‖², δ), in any dimension *)
Print Assumptions lemma2.
(* Lemma 2: the maximal score is at δ = τ_h, and every other shift scores lower by α at least *)
Print Assumptions score_gap.
(* Beyond the paper: D_p = 2 is enough in every dimension (Lemma 2 takes D_p = d + 1) *)
Print Assumptions parabola_score_gap.
(* Beyond the paper: Lemma 2's score from absolute positions, a dot product of d + 1 features *)
Print Assumptions absolute_score.
(* Beyond the paper: the same softmax from absolute positions *)
Print Assumptions absolute_attention.
(* Beyond the paper: D_p = 1 is too few *)
Print Assumptions no_one_component.
(* Beyond the paper: D_p = 1 is too few, said of the softmax *)
Print Assumptions no_one_component_attention.

(** softmax and leakage *)
(* Lemma 1 assumes one-hot attention; softmax never gives it at a finite α *)
Print Assumptions never_one_hot.
(* softmax: a gap of α in the scores leaves at most (N − 1) e^−α to the other keys *)
Print Assumptions softmax_gap.
(* softmax: scores off by ρ move the attention by at most e^2ρ − 1 *)
Print Assumptions softmax_near.
(* softmax: and what leaks grows by at most e^2ρ *)
Print Assumptions leak_perturbed.
(* Lemma 2: lim_{α → ∞} softmax(A_{q,:})_k = 1 if k − q = τ_h, else 0 *)
Print Assumptions softmax_limit.
(* Lemma 2 at finite α: the attention that the others get, by the number of keys *)
Print Assumptions leak_count.
(* Lemma 2 at finite α: the same on any grid, by Jacobi's ϑ(α) = Σ_n e^{−αn²} *)
Print Assumptions leak_theta.
(* Lemma 2 at finite α: ϑ in closed form *)
Print Assumptions theta_closed.
(* Lemma 2 at finite α: at most 2 d e^−α, on any grid *)
Print Assumptions leak_closed.
(* Beyond the paper: τ_h that is no integer shift, as learned heads have *)
Print Assumptions off_lattice_gap.
(* Beyond the paper: what such a head leaks *)
Print Assumptions off_lattice_leak.
(* Beyond the paper: such a head's stored numbers, and how its score falls off *)
Print Assumptions head_falls.
(* Beyond the paper: half-way between two keys no α helps *)
Print Assumptions half_way.

(** Theorem 1 *)
(* Lemma 1: under assumption (9) and with W_val W_out = W(f(h)), MHSA(X) = Conv(X) *)
Print Assumptions lemma1.
(* Theorem 1 (existence): K^d heads, D_h = D_out, D_p = d + 1 express every convolution (Eq. 8) *)
Print Assumptions theorem1.
(* Theorem 1 in its own words: N_h heads of dimension D_h, output D_out, D_p ≥ 3, min(D_h, D_out) output channels *)
Print Assumptions theorem1_paper.
(* Beyond the paper: D_h = min(D_in, D_out) is enough for all D_out channels *)
Print Assumptions narrow_heads.
(* Theorem 1: lim_{α → ∞} MHSA(X)_q = Conv(X)_q, Eq. 3 against Eq. 8 *)
Print Assumptions theorem1_limit.
(* Theorem 1 at finite α: the error is at most 2·B·leak·Σ|W| *)
Print Assumptions theorem1_finite.
(* Theorem 1 with one α for all grids *)
Print Assumptions theorem1_uniform.
(* Theorem 1 with D_p = 2 *)
Print Assumptions theorem1_parabola.
(* Theorem 1 is a limit: with one token that is no tap, heads that carry the taps meet no nonzero kernel exactly *)
Print Assumptions never_exact.
(* That token is needed: where every token is a tap, some kernels are met exactly at a query *)
Print Assumptions exact_by_accident.
(* Beyond the paper: both signs at one pair of channels take two heads, as softmax is positive *)
Print Assumptions two_heads_needed.
(* Theorem 1 takes K^d heads: where attention ignores the input, N_h >= rank of the taps, unfolded *)
Print Assumptions heads_needed.
(* Theorem 1 takes K^d heads: one more where a sum of taps with nonnegative weights vanishes, as softmax is positive *)
Print Assumptions one_more_head.
(* Theorem 1 takes K^d heads: rank many only where the nonzero taps lie in an open half-space *)
Print Assumptions half_space_needed.
(* Eq. 6: a layer that is a convolution still is one without its content terms *)
Print Assumptions without_content.
(* Eq. 6: so content cannot save heads *)
Print Assumptions heads_needed_layer.
(* Eq. 6: nor the one more head *)
Print Assumptions one_more_head_layer.
(* Eq. 6: nor where no open half-space has the taps *)
Print Assumptions half_space_needed_layer.
(* Eq. 6: what fewer heads leave at every sharpness, content included *)
Print Assumptions heads_needed_error.
(* Beyond the paper: nonnegative factors of the taps are heads, in the limit, with a relative encoding by table *)
Print Assumptions factors_express.
(* Beyond the paper: rank + 1 heads are enough *)
Print Assumptions heads_enough.
(* Beyond the paper: rank heads are enough where the taps lie in an open half-space *)
Print Assumptions heads_enough_half_space.
(* Beyond the paper: two heads are enough for any filter of one channel *)
Print Assumptions two_heads_enough.

(** any layer against any convolution *)
(* Eq. 3: hcat of the heads times one W_out is the sum over heads *)
Print Assumptions attend_concatenated.
(* Lemma 1 for any layer: the difference is at most bias + leakage + taps *)
Print Assumptions layer_within.
(* Lemma 1: where taps and bias are equal, only leakage is left *)
Print Assumptions layer_same.
(* Lemma 2's limit for any scores *)
Print Assumptions softmax_sharpen.
(* Lemma 1 and Lemma 2 for any layer: its limit is the convolution with its own taps *)
Print Assumptions sharpen_limit.
(* Lemma 1, both ways: the limit is Conv exactly if taps and bias are the kernel's *)
Print Assumptions same_iff.
(* Lemma 1, both ways: else an image of zeros and at most one 1 shows it *)
Print Assumptions counterexample.
(* Eq. 6 without content: the score is (Ŵ_keyᵀ v)·r_δ, however it is factored *)
Print Assumptions read_back.
(* Lemma 2 read backwards: from stored numbers to τ_h and α *)
Print Assumptions read_back_leak.

(** axis factorisation *)
(* Beyond the paper: softmax factorises over the axes of a rectangular grid *)
Print Assumptions factorisation.
(* Beyond the paper: Lemma 2's score factorises *)
Print Assumptions factorisation_quadratic.
(* Beyond the paper: P^h = P_1^h ⊗ … ⊗ P_d^h, what the fast execution computes *)
Print Assumptions factorisation_attention.
(* Beyond the paper: the attention of a full covariance is no such product *)
Print Assumptions no_factorisation_covariance.
(* Beyond the paper: nor is that of the parabola *)
Print Assumptions no_factorisation_parabola.

(** geometry *)
(* Eq. 8 has no borders; torch's padding modes: every padded token is a pixel or a zero *)
Print Assumptions continued_on_input.
(* Lemma 1 at borders: on the padded grid every q + τ_h is a key *)
Print Assumptions conv_targets.
(* Lemma 1's bijection: distinct kernel positions have distinct shifts *)
Print Assumptions conv_shifts.
(* Eq. 8 with padding, stride, dilation and groups, from torch's documented formula *)
Print Assumptions geometry_conv.
(* Theorem 1 with padding, stride, dilation and groups *)
Print Assumptions geometry_theorem1.
(* Theorem 1 with these at finite α *)
Print Assumptions geometry_closed.
(* Beyond the paper: the attention on the padded grid factorises *)
Print Assumptions geometry_factorises.
(* Eq. 8 with 'same' padding keeps the size *)
Print Assumptions same_size.
(* Δ_K = {−⌊K/2⌋, …, ⌊K/2⌋}^d of Eq. 8: the shifts of an odd kernel *)
Print Assumptions paper_shifts.
(* Beyond the paper: transposed convolutions read a zero-stuffed grid *)
Print Assumptions stuffed_on_input.
(* Beyond the paper: on it every q + τ_h is a key *)
Print Assumptions transposed_targets.
(* Beyond the paper: distinct kernel positions have distinct shifts *)
Print Assumptions transposed_shifts.
(* Beyond the paper: torch's transposed convolution as heads read it *)
Print Assumptions geometry_transposed.
(* Theorem 1 for transposed convolutions *)
Print Assumptions transposed_theorem1.
(* Theorem 1 for transposed convolutions at finite α *)
Print Assumptions transposed_closed.
(* Lemma 2 where q + τ_h is no key: the head looks at the nearest one *)
Print Assumptions off_grid_leak.
(* Theorem 1 without padding tokens is Eq. 8 with replicate padding *)
Print Assumptions border_replicates.
(* And never with zero padding: Lemma 2 as printed is false at borders *)
Print Assumptions border_not_zeros.

(** patches as tokens *)
(* Beyond the paper: cut into patches, as vision transformers see it, a convolution is a convolution over patches *)
Print Assumptions patches_conv.
(* Theorem 1 over patches: the limit *)
Print Assumptions patches_theorem1.
(* Beyond the paper: which taps it takes over patches *)
Print Assumptions patches_fit.
(* Beyond the paper: and which padding *)
Print Assumptions patches_output.
(* Beyond the paper: 2⌈h/P⌉ + 1 on an axis for an odd kernel of 2h + 1 *)
Print Assumptions patches_taps.
(* Beyond the paper: nine heads in two dimensions for every odd kernel up to 2P + 1 *)
Print Assumptions three_taps.

(** without padding tokens *)
(* Beyond the paper: the attention that misses beside a null token, on an image of any size *)
Print Assumptions null_leak.
(* Beyond the paper: with one null token the bare image has zero padding, but for a derived bound *)
Print Assumptions null_token.
(* Beyond the paper: the bound by the number of tokens *)
Print Assumptions null_token_count.
(* Theorem 1 on the bare image with a null token: the limit *)
Print Assumptions null_token_limit.
(* Lemma 1's assumption holds over the reals for sparsemax, from α = 1 on *)
Print Assumptions sparsemax_one_hot.

(** the encodings in use *)
(* Beyond the paper: a gap of γ in the scores is enough, whatever the encoding *)
Print Assumptions gap_finite.
(* Beyond the paper: rotary and sinusoidal encodings have the score α Σ_j cos θ_j (δ − τ) *)
Print Assumptions cosine_score.
(* Beyond the paper: and RoPE's rotated query and key have it *)
Print Assumptions rotary_product.
(* Beyond the paper: its gap *)
Print Assumptions cosine_gap.
(* Beyond the paper: which is positive where the slowest frequency does not go round *)
Print Assumptions cosine_gap_positive.
(* Beyond the paper: so on an image no longer than its wave the layer is near any convolution in one dimension *)
Print Assumptions rotary_finite.
(* Beyond the paper: tables of relative biases (T5, Swin): any kernel whose shifts have entries of their own *)
Print Assumptions table_gap.
(* Beyond the paper: and no other *)
Print Assumptions table_same.
(* Beyond the paper: ALiBi prefers the query itself *)
Print Assumptions alibi_nearest.
(* Beyond the paper: and no head of it is sharp elsewhere *)
Print Assumptions alibi_one_tap.
(* Beyond the paper: causal masks keep the targets of causal kernels *)
Print Assumptions causal_targets.

(** floating point *)
(* The talk's “for Float32, set α ≥ 46”: e^−α is exactly 0 from α = 104 on *)
Print Assumptions float32_threshold.
(* The same in float64: from 746 on *)
Print Assumptions float64_threshold.
(* The same in float16: from 18 on *)
Print Assumptions float16_threshold.
(* The same in bfloat16: from 93 on *)
Print Assumptions bfloat16_threshold.
(* The talk's “finite precision performs hard attention”: when exactly *)
Print Assumptions exp_rounds_to_zero.
(* Not in the paper (Jeannerod and Rump): a dot product in floating point, in any order *)
Print Assumptions dot_rounding.
(* Not in the paper: the same where nothing underflows *)
Print Assumptions dot_rounding_multiples.
(* Not in the paper: small integers are added exactly *)
Print Assumptions sum_exact.
(* Lemma 1's assumption in floating point: a one-hot average is exact *)
Print Assumptions one_hot_exact.
(* Lemma 1's assumption in floating point: a sharp softmax is exactly one-hot *)
Print Assumptions softmax_one_hot.
(* The same where scores are rounded *)
Print Assumptions softmax_one_hot_scores.
(* The same: the one assumption on exp holds of every correctly rounded one *)
Print Assumptions correctly_rounded_exp.
(* The same: and not of every faithfully rounded one *)
Print Assumptions faithful_exp_is_not_enough.
(* softmax in floating point at any α *)
Print Assumptions softmax_rounding.
(* Eq. 3 against Eq. 8: what differing taps contribute *)
Print Assumptions taps_bound.
(* Eq. 3 against Eq. 8 in floating point, head by head: leak + taps + rounding *)
Print Assumptions layer_rounding.
(* The same where W_val W_out is formed first, and all heads are added in one sum *)
Print Assumptions weights_first_rounding.
(* One-hot heads are run so by default: a sum of shifted tokens is what that attention computes *)
Print Assumptions shifted_sum.
(* W_val W_out in floating point: nothing is rounded where one factor is the identity *)
Print Assumptions weights_exact.
(* Theorem 1 in floating point: sharp heads leave taps + rounding *)
Print Assumptions sharp_layer_rounding.
(* The same where W_val W_out is formed first *)
Print Assumptions weights_first_sharp.
(* The same with one last rounding to half precision *)
Print Assumptions final_rounding.
(* Theorem 1 in floating point of equal taps: rounding alone, which three sums over the weights bound *)
Print Assumptions same_rounding.
(* The same of the sum that runs by default, in which there is no softmax *)
Print Assumptions same_rounding_shifted.
(* As Theorem 1's layer is run by default: its rounding is that of one sum of N_h·D_in products and the bias *)
Print Assumptions one_sum_rounding.
(* softmax in floating point of rounded scores *)
Print Assumptions softmax_rounding_scores.
(* As soft heads are run: the weights of one axis, rounded to the layer's format, and 0 below 2^−100 *)
Print Assumptions factor_rounding.
(* P^h X in floating point, one axis of P^h = P_1^h ⊗ … ⊗ P_d^h after another, in any order *)
Print Assumptions contracts_rounding.
(* Eq. 3 and Eq. 6 in floating point with soft heads: against the layer over the reals *)
Print Assumptions soft_rounding.
(* Eq. 3 against Eq. 8 in floating point with soft heads, leakage + taps + rounding; sharp heads copy tokens *)
Print Assumptions soft_within.
(* Eq. 6's weights, as soft heads are run, are as near to a real softmax as that asks *)
Print Assumptions factors_soft_head.
(* Theorem 1 at finite α in floating point, as soft heads are run by default *)
Print Assumptions soft_runs.
(* Eq. 3 and Eq. 6 in floating point with one softmax over all keys, head by head *)
Print Assumptions rows_rounding.
(* softmax in floating point near one-hot *)
Print Assumptions near_one_hot_softmax.
(* The three figures of a certificate, computed in integers *)
Print Assumptions figures_sound.
(* A certificate's bound: accepted means that it holds *)
Print Assumptions check_float_sound.
(* The same with one last rounding *)
Print Assumptions final_bound_sound.
(* The same for sharp heads *)
Print Assumptions check_float_sharp.
(* Lemma 2's score in floating point is exact *)
Print Assumptions quadratic_score_exact.
(* The whole certificate of a sharp layer *)
Print Assumptions sharp_certificate.
(* Its assumption on exp, in float32 at the default α = 1024 *)
Print Assumptions float32_exponential.
(* Its assumption on exp, in float64 at the default α = 1024 *)
Print Assumptions float64_exponential.

(** the verified checker *)
(* Lemma 2 read backwards, in integers *)
Print Assumptions CheckHeads.head_sharp.
(* Theorem 1 with D_p = 2 of a given layer: the parabola's numbers differ for distinct tokens, up to the stated size *)
Print Assumptions CheckRadix.tokens_distinct.
(* Theorem 1 of a given pair: the same function in the limit *)
Print Assumptions CheckSame.check_same_sound.
(* e^−α from above, in integers *)
Print Assumptions CheckWithin.exp_bound_sound.
(* Theorem 1 of a given pair at finite α *)
Print Assumptions CheckWithin.check_within_sound.
(* Lemma 1's assumption of a given pair in floating point: every head is one-hot *)
Print Assumptions CheckSharp.check_sharp_sound.
(* Theorem 1 of a given pair in floating point, with all rounding *)
Print Assumptions CheckFloats.check_floats_sound.
(* The same of the sum that runs by default, without a softmax and without an assumption on exp *)
Print Assumptions CheckFloats.check_shifted_sound.
(* The assumption on exp holds of every correctly rounded one *)
Print Assumptions CheckFloats.floats_exponential.
(* Theorem 1 of a given pair at finite α in floating point, as soft heads are run by default *)
Print Assumptions CheckSoft.check_soft_sound.
(* A given pair is not the same function, in the limit: an exact counterexample *)
Print Assumptions CheckRefuted.check_refuted_sound.
(* Whatever is asked of a pair: accepted means that it holds *)
Print Assumptions CheckText.check_sound.
(* The same of the text that the program reads: this is the theorem of what is run *)
Print Assumptions CheckText.check_text_sound.
(* What is run is a faster function, and the same one *)
Print Assumptions FastText.check_text_fast_is.
