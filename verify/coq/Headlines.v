(** The headline theorems and the axioms that each rests on: axioms.txt lists the
    axioms allowed, all of them of Coq's own real numbers. *)

From Attention Require Import Definitions Softmax Lemma2 Factorisation Leakage OffLattice Layers Limits Theorem1
  Exactness HeadCount Same Geometry Transposed Borders FloatThreshold RoundingDot RoundingHead RoundingTaps
    RoundingLayer
  FloatSoftmax RoundingDyadic RoundingCheck RoundingScores FloatSoftmaxError.
From Attention Require CheckHeads CheckSame CheckWithin CheckFloats CheckText.

(** Lemma 2 *)
Print Assumptions lemma2.
Print Assumptions score_gap.
Print Assumptions parabola_score_gap.
Print Assumptions absolute_score.
Print Assumptions absolute_attention.
Print Assumptions no_one_component.
Print Assumptions no_one_component_attention.

(** softmax and leakage *)
Print Assumptions never_one_hot.
Print Assumptions softmax_gap.
Print Assumptions softmax_limit.
Print Assumptions leak_count.
Print Assumptions leak_theta.
Print Assumptions theta_closed.
Print Assumptions leak_closed.
Print Assumptions off_lattice_gap.
Print Assumptions off_lattice_leak.
Print Assumptions half_way.

(** Theorem 1 *)
Print Assumptions theorem1.
Print Assumptions theorem1_paper.
Print Assumptions narrow_heads.
Print Assumptions theorem1_limit.
Print Assumptions theorem1_finite.
Print Assumptions theorem1_uniform.
Print Assumptions theorem1_parabola.
Print Assumptions never_exact.
Print Assumptions exact_by_accident.
Print Assumptions two_heads_needed.
Print Assumptions heads_needed.
Print Assumptions heads_needed_layer.

(** any layer against any convolution *)
Print Assumptions attend_concatenated.
Print Assumptions layer_within.
Print Assumptions layer_same.
Print Assumptions softmax_sharpen.
Print Assumptions sharpen_limit.
Print Assumptions same_iff.
Print Assumptions counterexample.
Print Assumptions read_back.
Print Assumptions read_back_leak.

(** axis factorisation *)
Print Assumptions factorisation.
Print Assumptions factorisation_quadratic.
Print Assumptions factorisation_attention.

(** geometry *)
Print Assumptions continued_on_input.
Print Assumptions conv_targets.
Print Assumptions conv_shifts.
Print Assumptions geometry_conv.
Print Assumptions geometry_theorem1.
Print Assumptions geometry_closed.
Print Assumptions geometry_factorises.
Print Assumptions same_size.
Print Assumptions paper_shifts.
Print Assumptions stuffed_on_input.
Print Assumptions transposed_targets.
Print Assumptions transposed_shifts.
Print Assumptions geometry_transposed.
Print Assumptions transposed_theorem1.
Print Assumptions transposed_closed.
Print Assumptions off_grid_leak.
Print Assumptions border_replicates.
Print Assumptions border_not_zeros.

(** floating point *)
Print Assumptions float32_threshold.
Print Assumptions float64_threshold.
Print Assumptions float16_threshold.
Print Assumptions bfloat16_threshold.
Print Assumptions exp_rounds_to_zero.
Print Assumptions dot_rounding.
Print Assumptions dot_rounding_multiples.
Print Assumptions sum_exact.
Print Assumptions one_hot_exact.
Print Assumptions softmax_one_hot.
Print Assumptions softmax_one_hot_scores.
Print Assumptions correctly_rounded_exp.
Print Assumptions faithful_exp_is_not_enough.
Print Assumptions softmax_rounding.
Print Assumptions taps_bound.
Print Assumptions layer_rounding.
Print Assumptions sharp_layer_rounding.
Print Assumptions final_rounding.
Print Assumptions near_one_hot_softmax.
Print Assumptions figures_sound.
Print Assumptions check_float_sound.
Print Assumptions final_bound_sound.
Print Assumptions check_float_sharp.
Print Assumptions quadratic_score_exact.
Print Assumptions sharp_certificate.
Print Assumptions float32_exponential.
Print Assumptions float64_exponential.

(** the verified checker *)
Print Assumptions CheckHeads.head_sharp.
Print Assumptions CheckSame.check_same_sound.
Print Assumptions CheckWithin.exp_bound_sound.
Print Assumptions CheckWithin.check_within_sound.
Print Assumptions CheckFloats.check_floats_sound.
Print Assumptions CheckText.check_sound.
Print Assumptions CheckText.check_text_sound.
