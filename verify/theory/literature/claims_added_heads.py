"""Our additions on the number and the width of heads, each with the source's sentence that it
extends.
"""

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
    by_steps,
    proved,
)
from verify.theory.symbolic.proof import ProofStep, argued, from_assumptions, gt, identity
from verify.theory.symbolic.proof_algebra import ranks
from verify.theory.symbolic.proof_positions import Setting, Vector
from verify.theory.symbolic.proofs_scores import symbols

head_count = added(
    "head-count",
    "K² heads for K² independent taps, content or not; two for both signs at one pair of channels; one blurs.",
    "This is maybe the first explanation why multiple heads are necessary.",
    "blog, last paragraph but two",
)(
    lambda: proved(
        by_coq("heads_needed_layer", "two_heads_needed"), by_coq("heads_enough_half_space")
    )
)


fewer_heads = added(
    "fewer-heads",
    "N_h heads, with content too, err by at least σ_{N_h+1}/(2√(K² D_out)) at every α, σ of one input channel's taps.",
)(lambda: proved(by_coq("heads_needed_error")))


least_heads = added(
    "least-heads",
    "Attention that ignores content takes rank A heads, or one more if no open half-space has its taps ≠ 0, as α → ∞.",
)(
    lambda: proved(
        by_coq("half_space_needed", "heads_enough", "heads_enough_half_space", "two_heads_enough")
    )
)


head_width = added(
    "head-width",
    "D_h = min(D_in, D_out) is enough for every kernel.",
    WIDTHS,
    "talk, Lemma 1: Summary",
)(lambda: proved(by_coq("narrow_heads")))


def width_steps() -> list[ProofStep]:
    """Two heads of rank 1 that spread their attention give two taps of rank 2."""
    left, right, other, another = (sympy.Matrix(symbols(name, 2)) for name in ("f", "g", "h", "l"))
    a = left * right.T
    b = other * another.T
    half = sympy.Rational(1, 2)
    quarter = sympy.Rational(1, 4)
    taps = [half * (2 * a) + quarter * (4 * b), half * (2 * a) + (1 - quarter) * (4 * b)]
    return [
        ranks(
            "one-hot heads need D_h >= the rank of each tap: A + B and A + 3B, A and B of rank 1, have rank 2",
            (a + b, 2),
            (a + 3 * b, 2),
        ),
        identity(
            "heads that spread do with less: 2A with attention (1/2, 1/2) and 4B with (1/4, 3/4), both of rank 1, make both taps",
            *zip(
                [*taps[0].flat(), *taps[1].flat()],
                [*(a + b).flat(), *(a + 3 * b).flat()],
                strict=True,
            ),
        ),
    ]


narrow_spread = added(
    "narrow-spread",
    "Heads that spread their attention do with D_h below the rank of a tap: A + B and A + 3B, with heads of width 1.",
)(lambda: proved(by_steps("for A and B of rank 1", width_steps)))


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
        by_coq("factors_express"),
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
