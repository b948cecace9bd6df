"""Our additions on the number and the width of heads, each with the source's sentence that it
extends.
"""

from fractions import Fraction
from functools import reduce

import numpy as np
import sympy
from numpy import ndarray

from verify.theory.literature import equations
from verify.theory.literature.claims_heads import WIDTHS
from verify.theory.literature.judgement import (
    Check,
    Judgement,
    added,
    by_coq,
    by_proof,
    by_steps,
    proved,
)
from verify.theory.literature.shared_checks import PLANE, compares
from verify.theory.symbolic import lemmas, proofs_heads
from verify.theory.symbolic.proof import ProofStep, argued, from_assumptions, gt
from verify.theory.symbolic.proof_positions import Setting, Vector


@added(
    "head-count",
    "Heads that ignore content: K² for K² independent taps, two for both signs at one pair of channels; one blurs.",
    "This is maybe the first explanation why multiple heads are necessary.",
    "blog, last paragraph but two",
)
def head_count() -> Judgement:
    """Proved in Coq for independent taps, by sympy for their rank; open for content attention."""
    blur = np.multiply.outer(equations.integers(1, 3, 2), np.ones((3, 3), dtype=int).astype(object))
    one = spread_attention(PLANE, [1] * 9)
    return proved(
        by_coq("heads_needed", "two_heads_needed"),
        by_proof(lemmas.prove_head_count),
        compares(
            PLANE,
            [one],
            [9 * equations.tap_matrices(blur)[0]],
            blur,
            "a 3×3 blur of 2 → 3 channels, one head",
        ),
    )


def spread_attention(setting: Setting, shares: list[int]) -> ndarray:
    """The attention that gives tap j the fraction shares_j/Σ shares: fractions (Q, T).

    It is the limit β → ∞ of a softmax over positions with score ln(share) at taps with nonzero
    share and −β elsewhere.
    """
    hits = equations.given_heads(setting, setting.shifts)
    total = sum(shares)
    return sum(
        (Fraction(s, total) * hit for s, hit in zip(shares, hits, strict=True)), start=0 * hits[0]
    )


head_width = added(
    "head-width",
    "D_h = min(D_in, D_out) is enough for every kernel.",
    WIDTHS,
    "talk, Lemma 1: Summary",
)(lambda: proved(by_coq("narrow_heads")))


narrow_spread = added(
    "narrow-spread",
    "Heads that spread their attention do with D_h below the rank of a tap: A + B and A + 3B, with heads of width 1.",
)(lambda: proved(by_steps("for A and B of rank 1", proofs_heads.width_steps)))


@added(
    "blurred-windows",
    "Heads uniform over windows of 2R + 1 > 1 pixels make blurred kernels, and no single tap on an unbounded grid.",
)
def blurred_windows() -> Judgement:
    """A combination of windows is a window times a polynomial; in one and two dimensions, ranks
    confirm it.
    """
    rank_pairs = {
        (radius, dims): _ranks_with_windows(radius, dims) for dims in (1, 2) for radius in (1, 2)
    }
    listed = ", ".join(
        f"{alone} and {more} (R = {r}, d = {d})" for (r, d), (alone, more) in rank_pairs.items()
    )
    blur = np.ones((1, 1, 3, 3), dtype=int).astype(object)
    values = [np.array([[9]], dtype=object)]
    return proved(
        by_steps(
            "no finite combination of windows is a single tap",
            _not_a_unit_steps,
            "one unbounded axis",
        ),
        Check(
            f"the windows at the shifts of a kernel of width 3 have rank, without and with a single tap added: {listed}",
            all(
                alone == 3**d and more == alone + 1 for (_, d), (alone, more) in rank_pairs.items()
            ),
        ),
        compares(
            PLANE, [spread_attention(PLANE, [1] * 9)], values, blur, "one window is a 3×3 box blur"
        ),
    )


def window(tau: Vector, radius: int, reach: int) -> ndarray:
    """1 where every |δ_i − τ_i| ≤ R, over the shifts δ of the cube from −reach to reach, flattened."""
    axes = [(np.abs(np.arange(-reach, reach + 1) - t) <= radius).astype(int) for t in tau]
    return reduce(np.multiply.outer, axes).reshape(-1)


def _ranks_with_windows(radius: int, dims: int) -> tuple[int, int]:
    """The rank of the windows at all shifts of a kernel of width 3, without and with a single tap
    added.
    """
    shifts = Setting((3,) * dims, (3,) * dims).shifts
    rows = [window(tau, radius, 1 + radius) for tau in shifts]
    tap = window((0,) * dims, 0, 1 + radius)
    return equations.rank(rows), equations.rank([*rows, tap])


def _not_a_unit_steps() -> list[ProofStep]:
    """A combination of windows is c(z)·(1 + z + … + z^2R): its lowest and highest terms are at
    least 2R apart.
    """
    low = sympy.Symbol("m", integer=True)
    length = sympy.Symbol("L", integer=True, nonnegative=True)
    radius = sympy.Symbol("R", integer=True, positive=True)
    apart = (low + length + 2 * radius) - low
    return [
        argued(
            "the lowest and the highest term of a product of polynomials are products of theirs, and not 0",
            apart,
        ),
        from_assumptions("m and m + L + 2R are two taps, not one", gt(apart, 0)),
    ]
