(** The headline theorems of the mathematics and the axioms that each rests on: axioms.txt lists the
    axioms allowed, all of them of Coq's own real numbers. *)

From Attention Require Import Definitions Lemma2 Softmax Factorisation Leakage Theorem1 Exactness Geometry Transposed.

Print Assumptions lemma2.
Print Assumptions score_gap.
Print Assumptions parabola_score_gap.
Print Assumptions absolute_score.
Print Assumptions absolute_attention.
Print Assumptions no_one_component.
Print Assumptions no_one_component_attention.
Print Assumptions two_heads_needed.
Print Assumptions never_one_hot.
Print Assumptions softmax_gap.
Print Assumptions softmax_limit.
Print Assumptions leak_count.
Print Assumptions leak_theta.
Print Assumptions theta_closed.
Print Assumptions leak_closed.
Print Assumptions theorem1.
Print Assumptions theorem1_limit.
Print Assumptions theorem1_finite.
Print Assumptions theorem1_uniform.
Print Assumptions theorem1_parabola.
Print Assumptions never_exact.
Print Assumptions exact_by_accident.
Print Assumptions factorisation.
Print Assumptions factorisation_quadratic.
Print Assumptions factorisation_attention.
Print Assumptions continued_on_input.
Print Assumptions conv_targets.
Print Assumptions geometry_conv.
Print Assumptions geometry_theorem1.
Print Assumptions geometry_closed.
Print Assumptions geometry_transposed.
Print Assumptions transposed_theorem1.
Print Assumptions transposed_closed.
