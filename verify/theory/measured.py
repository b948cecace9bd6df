"""What claims quote of docs/learned.md: written by
``python -m examples.learned.results.published write``.
"""

CIFAR_RUNS = "seeds 0, 1, 2"
DIGITS_RUNS = "seeds 0 to 4"
FACTS = (
    "quadratic, learned α and τ (isotropic) (seeds 0, 1, 2): nearer to N_h taps than before: layers 1, 2, 3, 4; "
    "than by sharpening alone: layers 1, 2; than the null: no layer; so before training: no layer; further than "
    "before: layers 5, 6"
)
NEAR_1 = "0.44 → 0.93"
NEAR_6 = "0.33 → 0.22"
PEAK_1 = "0.28 → 0.87"
PEAK_6 = "0.27 → 0.01"
REACH = "2.50 → 2.07, 2.13 → 2.25, 2.39 → 2.78, 2.73 → 3.54, 2.38 → 3.50, 1.86 → 2.23"
WIDTH = "1.00 → 0.29, 1.00 → 0.78, 1.00 → 1.39, 1.00 → 2.16, 1.00 → 4.27, 1.00 → 5.80"
ACCURACY = "62.28 ± 2.05"
DIGITS_PEAK_1 = "0.50 → 0.70"
DIGITS_PEAK_6 = "0.49 → 0.51"
DIGITS_REACH = "1.48 → 1.61 in layer 1 and 1.50 → 1.57 in layer 6"
DIGITS_REACH_LOCAL = "1.01 → 1.14 in layer 1 and 1.01 → 1.54 in layer 6"
