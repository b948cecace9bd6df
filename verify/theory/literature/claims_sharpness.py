"""Claims about the sharpness α: hard attention in floating point, and heads as Gaussians."""

import math

import numpy as np
import sympy
import torch

from verify.theory.literature.judgement import (
    Check,
    Judgement,
    by_coq,
    by_steps,
    claim,
    proved,
    refuted,
)
from verify.theory.literature.torch_layers import attention_for, small_convolution
from verify.theory.symbolic import proof_positions
from verify.theory.symbolic.proof import ProofStep, identity
from verify.theory.symbolic.proofs_scores import alpha as symbolic_alpha
from verify.theory.symbolic.proofs_scores import minus, norm2, reals, score

hard_in_floats = claim(
    "hard-in-floats",
    "In floating point heads of a large α = 2^a are one-hot, if exp is correctly rounded (torch: torch-exponential).",
    r"finite precision arithmetic performs hard attention with sufficiently large enough $\alpha$",
    "talk, Lemma 2: Summary",
)(
    lambda: proved(
        by_coq("softmax_one_hot", "correctly_rounded_exp", "quadratic_score_exact"),
        by_coq("score_gap", "faithful_exp_is_not_enough"),
    )
)


@claim(
    "alpha-46",
    "In float32, α = 46 gives hard attention: 0 on every other pixel.",
    r"finite precision arithmetic performs hard attention with sufficiently large enough $\alpha$. E.g. for Float32, set "
    r"$\alpha \geq 46$.",
    "talk, Lemma 2: Summary",
)
def alpha_46() -> Judgement:
    """At α = 46 the neighbour's weight is far above the smallest number, and the layer leaks."""
    single = torch.finfo(torch.float32)
    smallest = single.tiny * single.eps
    top, weight = two_keys(46)
    leaks = leaked_from_a_bright_pixel(46)
    aside = leaked_from_a_bright_pixel(104)
    derived = math.log(2 / smallest)
    below, above = (two_keys(derived + step)[1] for step in (-0.01, 0.01))
    return refuted(
        Check(
            f"at α = 46 the top weight is {top:g}, a neighbour's {weight:.3g} = e^−46, rounding {single.eps / 2:.0e}",
            top == 1 and 1.0e-20 < weight < 1.1e-20,
        ),
        Check(
            f"a pixel of 1e30 leaks {leaks:.3g} into the head beside it", 1.0e10 < leaks < 1.1e10
        ),
        Check(
            f"float32 goes down to {smallest:.2g} = e^{math.log(smallest):.1f}", smallest < 1e-44
        ),
        stands="at α = 46 the top weight rounds to 1, and among pixels of like size the leak is below rounding; from α = 104 on "
        "every other weight is 0",
        statement="e^−n rounds to 0 in float32 from n = 104 on, and for no smaller n",
        instead=proved(
            by_coq("float32_threshold"),
            Check(
                f"torch: a neighbour's weight is {below:.2g} at α = ln(2/η) − 0.01, and {above:g} at ln(2/η) + 0.01, "
                f"with ln(2/η) = {derived:.3f}",
                below > above == 0,
            ),
            Check(f"at α = 104 a pixel of 1e30 leaks {aside:g}", aside == 0),
        ),
    )


def two_keys(alpha: float) -> tuple[float, float]:
    """The weights of the target and its neighbour, the only two keys, in torch's float32 softmax of
    the code's scores.
    """
    two = np.array([[0], [1]], dtype=object)
    scores = proof_positions.quadratic_scores(two[:1], two, (0,), alpha).astype(float)
    target, beside = torch.softmax(torch.tensor(scores[0], dtype=torch.float32), 0).tolist()
    return target, beside


def leaked_from_a_bright_pixel(alpha: float) -> float:
    """The output of the identity kernel's float32 layer next to a single pixel of 1e30."""
    conv = small_convolution((1, 1), (3, 3), padding=1, bias=False)
    x = torch.zeros(1, 1, 5, 5)
    x[0, 0, 2, 2] = 1e30
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[0, 0, 1, 1] = 1
        return float(attention_for(conv, alpha)(x)[0, 0, 2, 3])


@claim(
    "centre-and-width",
    "A head's shift is the centre of a Gaussian; its α sets the width, which is 1/√(2α).",
    "denote the center and width of attention of each head",
    "talk, Lemma 2: Summary",
)
def centre_and_width() -> Judgement:
    """Proved symbolically for any real τ."""
    return proved(
        by_steps(
            "the ratio of two weights is that of a Gaussian around τ, for any real τ",
            _gaussian_steps,
            "d ≤ 3",
        )
    )


def _gaussian_steps() -> list[ProofStep]:
    ratios = []
    for dims in (1, 2, 3):
        delta, other, tau = (reals(name, dims) for name in ("delta", "epsilon", "tau"))
        exponent = -symbolic_alpha * (norm2(minus(delta, tau)) - norm2(minus(other, tau)))
        ratios.append((score(delta, tau) - score(other, tau), exponent))
    sigma = 1 / sympy.sqrt(2 * symbolic_alpha)
    return [
        identity("score(δ) − score(ε) = −α(‖δ−τ‖² − ‖ε−τ‖²)", *ratios),
        identity("α = 1/(2σ²) for σ = 1/√(2α)", (symbolic_alpha, 1 / (2 * sigma**2))),
    ]
