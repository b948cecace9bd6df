"""Proof steps of the Kronecker factorisation: quadratic attention is a product of one small matrix
per axis.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import sympy

from verify.theory.symbolic.proof import ProofStep, cited, identity
from verify.theory.symbolic.proof_algebra import ranks
from verify.theory.symbolic.proofs_scores import (
    alpha,
    integers,
    norm2,
    parabola_score,
    reals,
    score,
    weights,
)


def factorisation_steps(dims: int) -> list[ProofStep]:
    """P = P_1 ⊗ … ⊗ P_d for every α and every real τ, but not for a full covariance or the
    parabola.
    """
    tau = reals("tau", dims)
    delta = integers("delta", dims)
    # On one axis, the paper's quadratic as printed, not the code's.
    axis_scores = [-alpha * (x - t) ** 2 for x, t in zip(delta, tau, strict=True)]
    return [
        identity(
            "score(δ) − α‖τ‖² = −Σ_i α(δ_i − τ_i)² for all δ and all real τ; every key gets α‖τ‖²",
            (score(delta, tau) - alpha * norm2(tau), sum(axis_scores)),
        ),
        cited("so for all rectangular grids P = P_1 ⊗ … ⊗ P_d", "factorisation_quadratic"),
    ]


def no_factorisation_steps() -> list[ProofStep]:
    """The attention of query (0, 0) on 2×2 keys at α = ln 2 is an outer product if and only if it
    factorises.
    """
    a_1, a_2, b_1, b_2 = sympy.symbols("a_1 a_2 b_1 b_2", positive=True)
    outer = sympy.Matrix([a_1, a_2]) * sympy.Matrix([[b_1, b_2]])
    here = (0, 0)
    return [
        ranks(
            "for all factors one query's row of a Kronecker product on a 2×2 grid is of rank 1",
            (outer, 1),
        ),
        ranks(
            "on a 2×2 grid at α = ln 2 the quadratic encoding's is",
            (_row(lambda d: score(d, here)), 1),
        ),
        ranks(
            "a full covariance's is not: on that grid the score −α(δ_1² + δ_1 δ_2 + δ_2²) has rank 2",
            (_row(lambda d: -alpha * (d[0] ** 2 + d[0] * d[1] + d[1] ** 2)), 2),
        ),
        ranks(
            "nor is the parabola's, on that grid: its rank is 2",
            (_row(lambda d: parabola_score(d, here, (2, 2))), 2),
        ),
    ]


def _row(scored: Callable[[tuple[int, ...]], Any]) -> sympy.Matrix:
    """The attention of query (0, 0) on 2×2 keys at α = ln 2, as a 2×2 matrix of rationals."""
    keys = list(product(range(2), repeat=2))
    return sympy.Matrix(
        2,
        2,
        [weight.subs(alpha, sympy.log(2)) for weight in weights([scored(key) for key in keys])],
    )
