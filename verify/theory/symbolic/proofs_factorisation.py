"""Proof steps of the Kronecker factorisation: quadratic attention is a product of one small matrix per axis."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import sympy

from verify.theory.symbolic.proof import Proof, ProofStep, identity
from verify.theory.symbolic.proof_algebra import linear, ranks
from verify.theory.symbolic.proofs_scores import (
    alpha,
    integers,
    minus,
    norm2,
    on_grid,
    parabola_score,
    reals,
    score,
    small,
    sums_by_axis,
    weights,
)


def factorisation_steps(dims: int) -> list[ProofStep | Proof]:
    """P = P_1 ⊗ … ⊗ P_d for every α and every real τ, but not for a full covariance or the parabola."""
    tau, delta = reals("tau", dims), integers("delta", dims)
    shape = small(dims, (4,), (3, 2), (2, 2, 2))
    lifted = score(delta, tau) - alpha * norm2(tau)
    # On one axis, the paper's quadratic as printed, not the code's.
    axis_scores = [-alpha * (x - t) ** 2 for x, t in zip(delta, tau, strict=True)]
    whole = _attention(shape, lambda d: score(d, tau))
    axes = [
        _attention((side,), lambda d, x=x, own=own: own.subs(x, d[0]))
        for side, x, own in zip(shape, delta, axis_scores, strict=True)
    ]
    kronecker: Any = sympy.kronecker_product(*axes)
    rows = [axis.row(q) for axis in axes if axis.shape[1] > 1 for q in range(axis.shape[0])]
    factors = [
        identity(
            f"on {'×'.join(map(str, shape))} keys, for symbolic alpha and real tau, P of the code's scores is the Kronecker "
            "product of the softmax of -alpha (delta_i - tau_i)^2 on each axis, entry by entry",
            *zip(whole.flat(), kronecker.flat(), strict=True),
        ),
        identity("each of these has rows that add up to 1", *((sum(row), sympy.Integer(1)) for row in rows)),
    ]
    return [
        identity(
            "score(δ) − α‖τ‖² = −Σ_i α(δ_i − τ_i)² for all δ and all real τ; every key gets α‖τ‖²",
            (lifted, sum(axis_scores)),
        ),
        linear(
            "so for all rectangular grids the normaliser is Z_1 … Z_d, one sum an axis",
            *sums_by_axis(
                sympy.exp(sympy.expand(lifted)),
                [(x, sympy.exp(own)) for x, own in zip(delta, axis_scores, strict=True)],
            ),
        ),
        Proof(f"{on_grid(shape)} P = P_1 ⊗ … ⊗ P_d, each entry, for all α, τ; rows add up to 1", tuple(factors)),
    ]


def no_factorisation_steps() -> list[ProofStep]:
    """The attention of query (0, 0) on 2×2 keys at α = ln 2 is an outer product if and only if it factorises."""
    a_1, a_2, b_1, b_2 = sympy.symbols("a_1 a_2 b_1 b_2", positive=True)
    outer = sympy.Matrix([a_1, a_2]) * sympy.Matrix([[b_1, b_2]])
    here = (0, 0)
    return [
        ranks("for all factors one query's row of a Kronecker product on a 2×2 grid is of rank 1", (outer, 1)),
        ranks("on a 2×2 grid at α = ln 2 the quadratic encoding's is", (_row(lambda d: score(d, here)), 1)),
        ranks(
            "a full covariance's is not: on that grid the score −α(δ_1² + δ_1 δ_2 + δ_2²) has rank 2",
            (_row(lambda d: -alpha * (d[0] ** 2 + d[0] * d[1] + d[1] ** 2)), 2),
        ),
        ranks(
            "nor is the parabola's, on that grid: its rank is 2", (_row(lambda d: parabola_score(d, here, (2, 2))), 2)
        ),
    ]


def _attention(shape: Sequence[int], scored: Callable[[tuple[int, ...]], Any]) -> sympy.Matrix:
    """The softmax over all keys of a grid, for each of its queries."""
    positions = list(product(*map(range, shape)))
    return sympy.Matrix([weights([scored(minus(key, query)) for key in positions]) for query in positions])


def _row(scored: Callable[[tuple[int, ...]], Any]) -> sympy.Matrix:
    """The attention of query (0, 0) on 2×2 keys at α = ln 2, as a 2×2 matrix of rationals."""
    keys = list(product(range(2), repeat=2))
    return sympy.Matrix(2, 2, [weight.subs(alpha, sympy.log(2)) for weight in weights([scored(key) for key in keys])])
