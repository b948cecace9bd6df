"""Proof steps of the lower bound on the number of heads: input-independent attention is Σ_h P_h ⊗ W_h, of rank ≤ N_h.

Unfolded as (query, key) × (input channel, output channel), the layer is Σ_h vec(P_h) vec(W_h)ᵀ and the convolution
Σ_j vec(S_j) vec(W_j)ᵀ, with S_j the shift matrix of tap j.  Layers equal for all inputs are equal as matrices, so equal in rank.
"""

from collections.abc import Sequence
from itertools import permutations, product
from typing import Any

import sympy

from verify.theory.symbolic.proof import Proof, ProofStep, argued, case_split, ge, gt, identity, lt
from verify.theory.symbolic.proof_algebra import ranks
from verify.theory.symbolic.proofs_scores import symbols

_KERNEL = sympy.Matrix([[1, 2, 0, 1], [0, 1, 3, 1], [2, 0, 1, 1]])  # 3 taps, each 2×2, unfolded


def head_count_steps() -> list[ProofStep | Proof]:
    """The bound, a kernel that attains it, one that needs more heads, and what narrower heads can do."""
    return [
        Proof(
            "unfolded, the layer is Σ_h vec(P_h) vec(W_h)^T, here 2 heads, 2 queries, 3 keys", tuple(_unfolding_steps())
        ),
        *_rank_steps(),
        Proof("the kernel (a, −b), for all a, b > 0, has rank 1 but needs two heads", tuple(_sign_steps())),
        Proof("for all A, B of rank 1: A + B, A + 3B need D_h = 2 one-hot, D_h = 1 spread", tuple(width_steps())),
    ]


def _unfolding_steps() -> list[ProofStep]:
    """The unfolding, for 2 queries, 3 keys, 2 → 2 channels and 2 heads, all symbolic."""
    p = [sympy.Matrix(2, 3, symbols(f"P{h}", 6)) for h in (1, 2)]
    w = [sympy.Matrix(2, 2, symbols(f"W{h}", 4)) for h in (1, 2)]
    x = sympy.Matrix(3, 2, symbols("x", 6))
    output, flat = sympy.zeros(2, 2), sympy.zeros(4, 6)
    for attention, tap in zip(p, w, strict=True):
        output += attention * x * tap
        flat += sympy.kronecker_product(attention, tap.T)
    unfolded = [
        flat[2 * q + o, 2 * k + i] for q, k in product(range(2), range(3)) for i, o in product(range(2), repeat=2)
    ]
    columns = sympy.Matrix.hstack(*(sympy.Matrix(attention.flat()) for attention in p))
    rows = sympy.Matrix.vstack(*(sympy.Matrix([tap.flat()]) for tap in w))
    thin, wide = sympy.Matrix(3, 2, symbols("a", 6)), sympy.Matrix(2, 3, symbols("b", 6))
    return [
        identity(
            "sum_h P_h X W_h is the matrix sum_h P_h (x) W_h^T applied to X, read row by row",
            *zip(output.flat(), (flat * sympy.Matrix(x.flat())).flat(), strict=True),
        ),
        identity(
            "its entries, arranged as (query, key) x (input, output channel), are the columns P_h times the rows W_h",
            *zip(unfolded, (columns * rows).flat(), strict=True),
        ),
        identity(
            "of which every minor of order N_h + 1 vanishes: here of order 3 for 2 heads",
            (_minor(thin * wide), sympy.Integer(0)),
        ),
    ]


def _rank_steps() -> list[ProofStep | Proof]:
    """The ranks for a kernel of 3 taps on 5 tokens."""
    shifts = _shift_columns([[q + tau for tau in range(3)] for q in range(3)], 5)
    three = [
        ranks("the shift matrices of 3 taps, for 3 queries on 5 tokens, are independent", (shifts, 3)),
        ranks(
            "three taps of 2 -> 2 channels, unfolded, have rank 3: one of integers, and one of symbols (all but special ones)",
            (_KERNEL, 3),
            (sympy.Matrix(3, 4, symbols("w", 12)), 3),
        ),
        ranks(
            "and so has that convolution, unfolded: two heads cannot make it, Theorem 1's three can",
            (shifts * _KERNEL, 3),
        ),
    ]
    return [
        Proof("on a grid of 5 tokens: 3 taps of 2 → 2 channels have rank 3, and so need three heads", tuple(three)),
        argued(
            "for all sizes its rank is ≤ N_h, and, for independent shift matrices, the taps'",
            ge(sympy.Symbol("N_h"), sympy.Function("rank")(sympy.Symbol("W_taps"))),
        ),
        ranks(
            "on a grid of 2 tokens, circular, only 2 of 3 taps count; of 1 token, zero padding, 1",
            (_shift_columns([[(q + tau) % 2 for tau in (-1, 0, 1)] for q in range(2)], 2), 2),
            (_shift_columns([[tau if tau == 0 else None for tau in (-1, 0, 1)]], 1), 1),
        ),
    ]


def _sign_steps() -> list[ProofStep]:
    """A 1 → 1 kernel (a, −b) has rank 1 but needs two heads."""
    a, b = sympy.symbols("a b", positive=True)
    p, q, z = sympy.symbols("p q z", nonnegative=True)
    x, y = sympy.symbols("x y")
    up, down = sympy.symbols("w>=0,w<=0")
    values, one_hot, tokens = sympy.Matrix([[a, -b]]), sympy.eye(2), sympy.Matrix([x, y])
    return [
        ranks("the kernel (a, -b) of one channel, a, b > 0, has rank 1", (values.T, 1)),
        case_split(
            "but one head gives p w X_1 + q w X_2 with p, q >= 0, and misses -b for w = z >= 0, and a for w = -z <= 0",
            [up | down],
            [(up, gt(q * z, -b)), (down, lt(p * -z, a))],
        ),
        identity("two heads do it, one a tap", ((values * one_hot * tokens)[0], a * x - b * y)),
    ]


def width_steps() -> list[ProofStep]:
    """Two heads of rank 1 that spread their attention give two taps of rank 2."""
    left, right, other, another = (sympy.Matrix(symbols(name, 2)) for name in ("f", "g", "h", "l"))
    a, b = left * right.T, other * another.T
    half, quarter = sympy.Rational(1, 2), sympy.Rational(1, 4)
    taps = [half * (2 * a) + quarter * (4 * b), half * (2 * a) + (1 - quarter) * (4 * b)]
    return [
        ranks(
            "one-hot heads need D_h >= the rank of each tap: A + B and A + 3B, A and B of rank 1, have rank 2",
            (a + b, 2),
            (a + 3 * b, 2),
        ),
        identity(
            "heads that spread do with less: 2A with attention (1/2, 1/2) and 4B with (1/4, 3/4), both of rank 1, make both taps",
            *zip([*taps[0].flat(), *taps[1].flat()], [*(a + b).flat(), *(a + 3 * b).flat()], strict=True),
        ),
    ]


def _shift_columns(read: Sequence[Sequence[int | None]], tokens: int) -> sympy.Matrix:
    """vec(S_j) as columns: ``read[q][j]`` is the token that tap j reads for query q, None where it reads padding."""
    taps = range(len(read[0]))
    return sympy.Matrix([[int(row[j] == k) for j in taps] for row in read for k in range(tokens)])


def _minor(matrix: Any) -> Any:
    """The determinant by Leibniz' formula, unsimplified."""
    size = range(matrix.shape[0])
    return sum(
        sympy.LeviCivita(*order) * sympy.Mul(*(matrix[i, j] for i, j in zip(size, order, strict=True)))
        for order in permutations(size)
    )
