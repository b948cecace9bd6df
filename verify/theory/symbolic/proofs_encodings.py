"""Proof steps on other encodings: the code's d + 1 absolute features, and its numbers of shifts,
for D_p = 2 in any dimension.

What follows from the scores is stated in Coq, which also has that D_p = 1 is not enough
(``no_one_component_attention``).
"""

from itertools import product

import sympy

from construct.encoding import quadratic
from verify.theory.symbolic.proof import ProofStep, cited, identity
from verify.theory.symbolic.proof_algebra import ranks
from verify.theory.symbolic.proofs_scores import (
    absolute_score,
    alpha,
    integers,
    minus,
    norm2,
    number,
    on_grid,
    plus,
    score,
    small,
    symbols,
)


def absolute_steps(dims: int) -> list[ProofStep]:
    """α(2(q + τ)·k − ‖k‖²) equals −α‖k − q − τ‖² up to a term that the softmax cancels: a dot
    product of d + 1 features.
    """
    q, k, tau = (integers(name, dims) for name in ("q", "k", "tau"))
    target = plus(q, tau)
    # One row per query: the softmax depends only on differences between keys.
    cube = list(product(*map(range, small(dims, (3,), (3, 3), (3, 3, 3)))))
    ones = (1,) * dims
    table = [
        [absolute_score(p, key, ones) - absolute_score(p, cube[0], ones) for key in cube]
        for p in cube
    ]
    return [
        identity(
            "the dot product of the features is −α‖k − q − τ‖² + α‖q + τ‖² for all q, k and τ",
            (absolute_score(q, k, tau), -alpha * norm2(minus(k, target)) + alpha * norm2(target)),
        ),
        identity(
            "so it is v·r_δ and α(‖q + τ‖² − ‖τ‖²), which is the same for all keys",
            (
                absolute_score(q, k, tau),
                score(minus(k, q), tau) + alpha * (norm2(target) - norm2(tau)),
            ),
        ),
        cited("so for all q, τ and on all grids it has Lemma 2's softmax", "absolute_attention"),
        _channels_step(dims),
        ranks(
            f"no fewer features do: {on_grid((3,) * min(dims, 3))} differences have rank {min(dims, 3) + 1}"
            " (α = 1, τ = (1, …, 1))",
            (sympy.Matrix(table).subs(alpha, 1), min(dims, 3) + 1),
        ),
    ]


def _channels_step(dims: int) -> ProofStep:
    """The features are linear in the d + 2 channels (p, ‖p‖², 1) of a token; the 1 serves as bias."""
    p = integers("p", dims)
    tau = integers("tau", dims)
    token = sympy.Matrix([[*p, norm2(p), 1]])
    zeros = sympy.zeros(dims, 1)
    eye = sympy.eye(dims)
    w_key = sympy.Matrix.vstack(
        zeros.row_join(eye), sympy.Matrix([[1, *(0,) * dims]]), sympy.zeros(1, dims + 1)
    )
    bias = sympy.Matrix([[-alpha, *(2 * alpha * t for t in tau)]])
    w_qry = sympy.Matrix.vstack(zeros.row_join(2 * alpha * eye), sympy.zeros(1, dims + 1), bias)
    return identity(
        "for all p the features are linear in a token's channels (p, ‖p‖², 1)",
        *zip(token * w_key, quadratic.absolute_key(p), strict=True),
        *zip(token * w_qry, quadratic.absolute_query(p, tau, alpha), strict=True),
    )


def parabola_steps(dims: int) -> list[ProofStep]:
    """D_p = 2: the quadratic encoding in one dimension, applied to an injective numbering of the
    shifts.
    """
    delta, tau = (integers(name, dims) for name in ("delta", "tau"))
    sizes = symbols("m", dims, integer=True, positive=True)
    mixed = [
        sum(x * sympy.Mul(*sizes[i + 1 :]) for i, x in enumerate(shift)) for shift in (delta, tau)
    ]
    numbers = [number(shift, sizes) for shift in (delta, tau)]
    score_of_numbers = score(numbers[:1], numbers[1:])
    return [
        identity(
            "n(δ) = Σ_i δ_i m_{i+1} … m_d for all δ, of a box of sides m_i",
            (numbers[0], mixed[0]),
        ),
        identity(
            "the numbers' r and v have D_p = 2: v·r = −α(n(δ)² − 2n(τ)n(δ)) for all δ, τ",
            (score_of_numbers, -alpha * (mixed[0] ** 2 - 2 * mixed[1] * mixed[0])),
        ),
        cited("so for all other shifts of the box the gap is at least α", "parabola_score_gap"),
        cited(
            "so for all grids the weights tend to 1 at the target, to 0 elsewhere", "softmax_limit"
        ),
    ]
