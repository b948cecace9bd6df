"""Proof steps of the Kronecker factorisation: quadratic attention is a product of one small matrix an axis."""

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from typing import Any

import sympy

from verify.theory.symbolic.proof import ProofStep, identity
from verify.theory.symbolic.proof_algebra import linear, ranks
from verify.theory.symbolic.proofs_scores import (
    alpha,
    integers,
    minus,
    norm2,
    parabola_score,
    reals,
    score,
    sums_by_axis,
    weights,
)


def factorisation_steps(dims: int) -> list[ProofStep]:
    """P = P_1 ⊗ … ⊗ P_d for every α and every real τ; not so for a full covariance or the parabola."""
    tau, delta = reals("tau", dims), integers("delta", dims)
    shape = {1: (4,), 2: (3, 2), 3: (2, 2, 2)}[min(dims, 3)] + (1,) * (dims - 3)
    lifted = score(delta, tau) - alpha * norm2(tau)
    # On one axis the paper's quadratic as it is written, not taken from the code.
    axis_scores = [-alpha * (x - t) ** 2 for x, t in zip(delta, tau, strict=True)]
    whole = _attention(shape, lambda d: score(d, tau))
    axes = [
        _attention((side,), lambda d, x=x, own=own: own.subs(x, d[0]))
        for side, x, own in zip(shape, delta, axis_scores, strict=True)
    ]
    rows = [axis.row(q) for axis in axes if axis.shape[1] > 1 for q in range(axis.shape[0])]
    return [
        identity(
            "up to alpha |tau|^2, which every key gets, the score is a sum over the axes of -alpha (delta_i - tau_i)^2",
            (lifted, sum(axis_scores)),
        ),
        linear(
            "so on a rectangular grid of any size the normaliser is a product Z_1 … Z_d of one sum an axis",
            *sums_by_axis(
                sympy.exp(sympy.expand(lifted)),
                [(x, sympy.exp(own)) for x, own in zip(delta, axis_scores, strict=True)],
            ),
        ),
        identity(
            f"on {'x'.join(map(str, shape))} keys, for symbolic alpha and real tau, P of the code's scores is the Kronecker "
            "product of the softmax of -alpha (delta_i - tau_i)^2 on each axis, entry by entry",
            *zip(whole.flat(), _kronecker(axes).flat(), strict=True),
        ),
        identity("each of these has rows that add up to 1", *((sum(row), sympy.Integer(1)) for row in rows)),
    ]


def no_factorisation_steps() -> list[ProofStep]:
    """At α = ln 2, on 2×2 keys, the attention of the query (0, 0): an outer product exactly if it factorises."""
    a_1, a_2, b_1, b_2 = sympy.symbols("a_1 a_2 b_1 b_2", positive=True)
    outer = sympy.Matrix([a_1, a_2]) * sympy.Matrix([[b_1, b_2]])
    here = (0, 0)
    return [
        ranks("one query's row of a Kronecker product is an outer product over the axes: of rank 1", (outer, 1)),
        ranks("the quadratic encoding's is, here at alpha = ln 2", (_row(lambda d: score(d, here)), 1)),
        ranks(
            "a full covariance has no such factors: with score -alpha (d_1^2 + d_1 d_2 + d_2^2) the rank is 2",
            (_row(lambda d: -alpha * (d[0] ** 2 + d[0] * d[1] + d[1] ** 2)), 2),
        ),
        ranks(
            "nor has the parabola, the code's r and v on the number n(delta)",
            (_row(lambda d: parabola_score(d, here, (2, 2))), 2),
        ),
    ]


def _attention(shape: Sequence[int], scored: Callable[[tuple[int, ...]], Any]) -> sympy.Matrix:
    """The softmax over all keys of a grid, for every query of it."""
    positions = list(product(*map(range, shape)))
    return sympy.Matrix([weights([scored(minus(key, query)) for key in positions]) for query in positions])


def _row(scored: Callable[[tuple[int, ...]], Any]) -> sympy.Matrix:
    """The attention of the query (0, 0) on 2×2 keys at α = ln 2, as a 2×2 matrix of rational numbers."""
    keys = list(product(range(2), repeat=2))
    return sympy.Matrix(2, 2, [weight.subs(alpha, sympy.log(2)) for weight in weights([scored(key) for key in keys])])


def _kronecker(axes: Sequence[Any]) -> Any:
    return reduce(sympy.kronecker_product, axes)
