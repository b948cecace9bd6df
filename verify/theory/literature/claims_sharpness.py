"""Claims on the sharpness α: its effect at finite values, and the printed threshold for float32."""

import math
from typing import Any

import numpy as np
import torch

from verify.rounding.leakage import leakage_on_lattice
from verify.theory.literature import equations
from verify.theory.literature.judgement import Check, Judgement, by_steps, claim, corrected, proved, refuted
from verify.theory.literature.torch_layers import attention_for, small_convolution
from verify.theory.symbolic import proof_positions, proofs_lemma2
from verify.theory.symbolic.proof import ProofStep, identity
from verify.theory.symbolic.proofs_scores import alpha as symbolic_alpha
from verify.theory.symbolic.proofs_scores import minus, norm2, reals, score

SIDE = 9


def middle_row(tau: tuple[Any, ...], alpha: Any, side: int = SIDE) -> np.ndarray:
    """The scores of a query in the middle of a square grid, for a head that looks at τ: (T,)."""
    middle = np.array([[side // 2] * len(tau)], dtype=object)
    return proof_positions.quadratic_scores(middle, proof_positions.positions((side,) * len(tau)), tau, alpha)[0]


def _window() -> np.ndarray:
    """The keys within one step of the middle, the shifts of a 3×3 kernel: bool (T,)."""
    near = np.abs(proof_positions.positions((SIDE, SIDE)).astype(int) - SIDE // 2) <= 1
    return np.all(near, axis=1)


@claim(
    "centre-and-width",
    "paper, the quadratic encoding (Eq. 9)",
    "A head's shift is the centre of where it looks, and its α the width: a Gaussian, before the weights are normalised.",
)
def centre_and_width() -> Judgement:
    """Symbolically for any real τ; and read back from the softmax."""

    def steps() -> list[ProofStep]:
        delta, other, tau = (reals(name, 2) for name in ("delta", "epsilon", "tau"))
        exponent = -symbolic_alpha * (norm2(minus(delta, tau)) - norm2(minus(other, tau)))
        return [
            identity("score(δ) − score(ε) = −α(‖δ−τ‖² − ‖ε−τ‖²)", (score(delta, tau) - score(other, tau), exponent))
        ]

    tau, alpha = (0.3, -1.2), 0.7
    weights = equations.softmax(middle_row(tau, alpha).astype(float))
    shifts = proof_positions.positions((SIDE, SIDE)).astype(float) - SIDE // 2
    gaussian = np.exp(-alpha * ((shifts - tau) ** 2).sum(axis=1))
    worst = float(np.abs(weights * gaussian.sum() / gaussian - 1).max())
    return proved(
        by_steps("the ratio of two weights is that of a Gaussian around τ, for any real τ", steps),
        Check(f"τ = {tau}, α = {alpha}: {len(weights)} weights agree with the Gaussian to {worst:.0e}", worst < 1e-11),
    )


@claim(
    "exponential-decay",
    "paper, remark after Theorem 1's proof",
    "As α grows the attention on all other pixels falls exponentially.",
)
def exponential_decay() -> Judgement:
    """Symbolically; and the leaked weight enclosed in intervals, over e^{−α}."""
    checks = []
    for alpha in (8, 16, 32):
        weights = equations.enclosed_softmax(middle_row((0, 0), alpha, side=5))
        others = sum(sorted(weights, key=lambda weight: weight.a)[:-1], start=equations.iv.mpf(0))
        leaked, bound = float((others / equations.iv.exp(-alpha)).b), leakage_on_lattice(alpha, 2) / math.exp(-alpha)
        holds = abs(leaked - 4) < 0.02 and leaked <= bound * (1 + 1e-9)
        checks.append(Check(f"α = {alpha}: {leaked:.4f}·e^−α leaks in 2-D, bound {bound:.4f}·e^−α", holds))
    return proved(
        by_steps("every other weight lies between 0 and e^−α", lambda: proofs_lemma2.squeeze_steps(2)),
        *checks,
    )


@claim(
    "alpha-46",
    "paper, remark on finite precision; talk",
    "In float32, α = 46 already gives hard attention, since the smallest positive number is about 10^−45.",
)
def alpha_46() -> Judgement:
    """At α = 46 the neighbour's weight is far above the smallest number, and the layer leaks."""
    single = torch.finfo(torch.float32)
    smallest = single.tiny * single.eps
    weight = neighbour(46)
    leaks, aside = leaked_from_a_bright_pixel(46), leaked_from_a_bright_pixel(104)
    low, high = 46.0, 200.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if neighbour(middle) == 0 else (middle, high)
    derived = math.log(2 / smallest)
    return refuted(
        Check(
            f"the smallest positive float32 is {smallest:.2g} = e^{math.log(smallest):.1f}, not e^−46", smallest < 1e-44
        ),
        Check(f"at α = 46 a neighbour weighs {weight:.3g} = e^−46", 1.0e-20 < weight < 1.1e-20),
        Check(f"a pixel of 1e30 leaks {leaks:.3g} into the head beside it", 1.0e10 < leaks < 1.1e10),
        instead=corrected(
            "in float32, α ≥ 104 gives hard attention; the threshold is ln(2/η), with η the smallest positive number",
            Check(
                f"the neighbour's weight is 0 from α = {high:.3f} on, ln(2/η) = {derived:.3f}",
                abs(high - derived) < 0.01,
            ),
            Check(f"at α = 104 a pixel of 1e30 leaks {aside:g}", aside == 0),
            Check(f"104 is above it by {104 - derived:.3f}", 0 <= 104 - derived < 1),
        ),
    )


def neighbour(alpha: float) -> float:
    """The weight of the key beside the target among two, in torch's float32 softmax of the code's scores."""
    two = np.array([[0], [1]], dtype=object)
    scores = proof_positions.quadratic_scores(two[:1], two, (0,), alpha).astype(float)
    return float(torch.softmax(torch.tensor(scores[0], dtype=torch.float32), 0)[1])


def leaked_from_a_bright_pixel(alpha: float) -> float:
    """The output of the identity kernel's float32 layer beside a single pixel of 1e30."""
    conv = small_convolution((1, 1), (3, 3), padding=1, bias=False)
    x = torch.zeros(1, 1, 5, 5)
    x[0, 0, 2, 2] = 1e30
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[0, 0, 1, 1] = 1
        return float(attention_for(conv, alpha)(x)[0, 0, 2, 3])


@claim(
    "lemma-2-sum",
    "talk, the proof of Lemma 2",
    "The softmax of a head is normalised by a sum over the shifts of the kernel.",
)
def lemma_2_sum() -> Judgement:
    """The sum runs over all keys; over the kernel's shifts alone the weights would add up to more than 1."""
    tau, alpha, inside = (1, 1), 1, _window()
    weights = equations.softmax(middle_row(tau, alpha).astype(float))
    total, kernel = float(weights.sum()), float(weights[inside].sum())
    limits = [equations.sharp(row) for row in (middle_row(tau, 1), middle_row(tau, 1)[inside])]
    at_target = [int(limit.max()) for limit in limits]
    bounds = [1 / (1 - leakage_on_lattice(a, 2)) for a in (1, 4)]
    sums = [float(1 / equations.softmax(middle_row((0, 0), a).astype(float)).max()) for a in (1, 4)]
    return refuted(
        Check(f"over all {SIDE * SIDE} keys the layer's weights add up to {total:.6f}", abs(total - 1) < 1e-12),
        Check(
            f"divided by the sum over the 9 shifts of Δ_K instead, they add up to {total / kernel:.3f} (α = 1, τ = (1, 1))",
            total / kernel > 1.1,
        ),
        instead=corrected(
            "it is normalised by the sum over all keys; the limit is one-hot all the same, and relative to the target's "
            "exponential the sum stays below ϑ(α)^d on a grid of any size",
            Check(
                f"the limit at the target is {at_target[0]} over all keys, {at_target[1]} over Δ_K", at_target == [1, 1]
            ),
            *(
                Check(f"α = {a}: the sum is {s:.4f}, ϑ(α)² = {b:.4f}", s <= b * (1 + 1e-9))
                for a, s, b in zip((1, 4), sums, bounds, strict=True)
            ),
        ),
    )


CLAIMS = (centre_and_width, exponential_decay, alpha_46, lemma_2_sum)
