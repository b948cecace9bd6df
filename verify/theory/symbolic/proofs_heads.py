"""Proof steps of the lower bound on the number of heads: input-independent attention is Σ_h P_h ⊗
W_h, of rank ≤ N_h.

Coq has it for independent taps (``heads_needed``); here for any taps, by their rank.

Unfolded as (query, key) × (input channel, output channel), the layer is Σ_h vec(P_h) vec(W_h)ᵀ and
the convolution Σ_j vec(S_j) vec(W_j)ᵀ, with S_j the shift matrix of tap j.  Layers equal for all
inputs are equal as matrices, so equal in rank.
"""

from collections.abc import Sequence
from itertools import product

import sympy

from verify.theory.symbolic.proof import Proof, ProofStep, argued, cited, ge, identity
from verify.theory.symbolic.proof_algebra import ranks
from verify.theory.symbolic.proofs_scores import symbols


def head_count_steps() -> list[ProofStep | Proof]:
    """The bound, taps that count less, kernels that need more heads, and what narrower heads can
    do.
    """
    return [
        Proof(
            "unfolded, the layer is Σ_h vec(P_h) vec(W_h)^T, here 2 heads, 2 queries, 3 keys",
            tuple(_unfolding_steps()),
        ),
        argued(
            "for all sizes its rank is ≤ N_h, and, for independent shift matrices, the taps'",
            ge(sympy.Symbol("N_h"), sympy.Function("rank")(sympy.Symbol("W_taps"))),
        ),
        cited("for all independent taps one head a tap is needed", "heads_needed"),
        ranks(
            "on a grid of 2 tokens, circular, only 2 of 3 taps count; of 1 token, zero padding, 1",
            (_shift_columns([[(q + tau) % 2 for tau in (-1, 0, 1)] for q in range(2)], 2), 2),
            (_shift_columns([[tau if tau == 0 else None for tau in (-1, 0, 1)]], 1), 1),
        ),
        cited("for all kernels of both signs at one pair of channels, two are", "two_heads_needed"),
        Proof(
            "for all A, B of rank 1: A + B, A + 3B need D_h = 2 one-hot, D_h = 1 spread",
            tuple(width_steps()),
        ),
    ]


def _unfolding_steps() -> list[ProofStep]:
    """The unfolding, for 2 queries, 3 keys, 2 → 2 channels and 2 heads, all symbolic."""
    p = [sympy.Matrix(2, 3, symbols(f"P{h}", 6)) for h in (1, 2)]
    w = [sympy.Matrix(2, 2, symbols(f"W{h}", 4)) for h in (1, 2)]
    x = sympy.Matrix(3, 2, symbols("x", 6))
    output = sympy.zeros(2, 2)
    flat = sympy.zeros(4, 6)
    for attention, tap in zip(p, w, strict=True):
        output += attention * x * tap
        flat += sympy.kronecker_product(attention, tap.T)
    unfolded = [
        flat[2 * q + o, 2 * k + i]
        for q, k in product(range(2), range(3))
        for i, o in product(range(2), repeat=2)
    ]
    columns = sympy.Matrix.hstack(*(sympy.Matrix(attention.flat()) for attention in p))
    rows = sympy.Matrix.vstack(*(sympy.Matrix([tap.flat()]) for tap in w))
    return [
        identity(
            "sum_h P_h X W_h is the matrix sum_h P_h (x) W_h^T applied to X, read row by row",
            *zip(output.flat(), (flat * sympy.Matrix(x.flat())).flat(), strict=True),
        ),
        identity(
            "its entries, arranged as (query, key) x (input, output channel), are the columns P_h times the rows W_h",
            *zip(unfolded, (columns * rows).flat(), strict=True),
        ),
    ]


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


def _shift_columns(read: Sequence[Sequence[int | None]], tokens: int) -> sympy.Matrix:
    """vec(S_j) as columns: ``read[q][j]`` is the token that tap j reads for query q, None where it
    reads padding.
    """
    taps = range(len(read[0]))
    return sympy.Matrix([[int(row[j] == k) for j in taps] for row in read for k in range(tokens)])
