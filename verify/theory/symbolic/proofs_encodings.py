"""Proof steps on other encodings: d + 1 absolute features suffice, so does D_p = 2 in any dimension; D_p = 1 does not."""

from itertools import permutations, product
from typing import Any

import sympy

from construct.encoding import quadratic
from verify.theory.symbolic.proof import (
    Proof,
    ProofStep,
    argued,
    case_split,
    from_assumptions,
    ge,
    identity,
    le,
)
from verify.theory.symbolic.proof_algebra import ranks
from verify.theory.symbolic.proofs_lemma2 import grid_limits, integer_step, weights_tend
from verify.theory.symbolic.proofs_scores import (
    absolute_score,
    alpha,
    dot,
    every_sign,
    integers,
    minus,
    norm2,
    number,
    on_grid,
    parabola_score,
    plus,
    score,
    signs,
    small,
    symbols,
    weights,
)

_k = sympy.Symbol("k", integer=True, nonnegative=True)


def absolute_steps(dims: int) -> list[ProofStep | Proof]:
    """α(2(q + τ)·k − ‖k‖²) equals −α‖k − q − τ‖² up to a term that the softmax cancels: a dot product of d + 1 features."""
    q, k, other, tau, n = (integers(name, dims) for name in ("q", "k", "l", "tau", "n"))
    a, b, c = sympy.symbols("A B C", real=True)
    target = plus(q, tau)
    keys = list(product(*map(range, small(dims, (4,), (2, 2), (2, 2, 2)))))
    by_dot_product = weights([absolute_score(q, key, tau) for key in keys])
    by_lemma2 = weights([score(minus(key, q), tau) for key in keys])
    # One row per query: the softmax depends only on differences between keys.
    cube = list(product(*map(range, small(dims, (3,), (3, 3), (3, 3, 3)))))
    ones = (1,) * dims
    table = [[absolute_score(p, key, ones) - absolute_score(p, cube[0], ones) for key in cube] for p in cube]
    cancelled = [
        identity(
            "it differs from Lemma 2's v·r_delta by the same amount at any two keys k and l",
            (
                absolute_score(q, k, tau) - score(minus(k, q), tau),
                absolute_score(q, other, tau) - score(minus(other, q), tau),
            ),
        ),
        identity(
            "and the softmax cancels what all keys get",
            (sympy.exp(a + c) / (sympy.exp(a + c) + sympy.exp(b + c)), sympy.exp(a) / (sympy.exp(a) + sympy.exp(b))),
        ),
    ]
    return [
        identity(
            "the dot product of the features is −α‖k − q − τ‖² + α‖q + τ‖² for all q, k and τ",
            (absolute_score(q, k, tau), -alpha * norm2(minus(k, target)) + alpha * norm2(target)),
        ),
        Proof("so for all q, τ it is v·r_δ and what all keys get, which the softmax cancels", tuple(cancelled)),
        identity(
            f"on a grid of {len(keys)} keys both have the same softmax, for all q, τ and α",
            *zip(by_dot_product, by_lemma2, strict=True),
        ),
        identity(
            "the gap is Lemma 2's: at q + τ + n the score is α‖n‖² lower, for all n",
            (absolute_score(q, target, tau) - absolute_score(q, plus(target, n), tau), alpha * norm2(n)),
        ),
        _channels_step(dims),
        ranks(
            f"no fewer features do: {on_grid((3,) * min(dims, 3))} differences have rank {min(dims, 3) + 1}"
            " (α = 1, τ = (1, …, 1))",
            (sympy.Matrix(table).subs(alpha, 1), min(dims, 3) + 1),
        ),
    ]


def _channels_step(dims: int) -> ProofStep:
    """The features are linear in the d + 2 channels (p, ‖p‖², 1) of a token; the 1 serves as bias."""
    p, tau = integers("p", dims), integers("tau", dims)
    token = sympy.Matrix([[*p, norm2(p), 1]])
    zeros, eye = sympy.zeros(dims, 1), sympy.eye(dims)
    w_key = sympy.Matrix.vstack(zeros.row_join(eye), sympy.Matrix([[1, *(0,) * dims]]), sympy.zeros(1, dims + 1))
    bias = sympy.Matrix([[-alpha, *(2 * alpha * t for t in tau)]])
    w_qry = sympy.Matrix.vstack(zeros.row_join(2 * alpha * eye), sympy.zeros(1, dims + 1), bias)
    return identity(
        "for all p the features are linear in a token's channels (p, ‖p‖², 1)",
        *zip(token * w_key, quadratic.absolute_key(p), strict=True),
        *zip(token * w_qry, quadratic.absolute_query(p, tau, alpha), strict=True),
    )


def parabola_steps(dims: int) -> list[ProofStep | Proof]:
    """D_p = 2: the quadratic encoding in one dimension, applied to an injective numbering of the shifts."""
    delta, tau, e = (integers(name, dims) for name in ("delta", "tau", "e"))
    sizes = symbols("m", dims, integer=True, positive=True)
    reach, t = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("N", "t"))
    below, at, above = signs(e)
    premises = [*every_sign(e), sympy.Not(sympy.And(*at))]
    first: list[tuple[Any, Any]] = []
    for i in range(dims):
        rest = symbols("s", dims, integer=True, nonnegative=True)[i + 1 :]
        lowest = tuple(s - (m - 1) for s, m in zip(rest, sizes[i + 1 :], strict=True))
        up = (*(0,) * i, 1 + _k, *lowest)
        down = tuple(-x for x in up)
        first.append((sympy.And(*at[:i], above[i]), ge(number(up, sizes), 1)))
        first.append((sympy.And(*at[:i], below[i]), le(number(down, sizes), -1)))
    shape = small(
        dims, (4,), (2, 3), (2, 1, 3)
    )  # keys of one query differ by less than its sides, so they make a radix
    apart, together = sympy.symbols("n>0,n<0")
    x = sympy.Symbol("x", integer=True)  # the number of the shift tau
    apart_steps = [
        integer_step(),
        identity(
            "if |delta_i|, |tau_i| <= N on an axis of m = 2N + 1 places, then |e_i| <= m - 1",
            ((2 * reach + 1) - 1, 2 * reach),
        ),
        case_split(
            "for radix_i = m_{i+1} … m_d and every |e_i| <= m_i - 1, n(e) >= 1 or n(e) <= -1 unless e = 0, by the sign of the "
            "first component that is not 0; each later one is at worst s - (m - 1) with s >= 0, or the negative of that",
            premises,
            first,
        ),
    ]
    return [
        identity(
            "n is linear: n(δ) − n(τ) = n(e) for all δ and τ, with e = δ − τ",
            (number(delta, sizes) - number(tau, sizes), number(minus(delta, tau), sizes)),
        ),
        Proof("so |n(e)| ≥ 1 for all e ≠ 0, |e_i| < m_i", tuple(apart_steps)),
        identity(
            "the numbers' r and v have D_p = 2: score(τ) − score(δ) = α n(e)² for all δ, τ",
            (
                parabola_score(tau, tau, sizes) - parabola_score(delta, tau, sizes),
                alpha * number(minus(delta, tau), sizes) ** 2,
            ),
        ),
        case_split(
            "so for all other shifts of the box the gap is at least α",
            [apart | together],
            [
                (sign, ge(score((x,), (x,)) - score((x + off,), (x,)), alpha))
                for sign, off in ((apart, 1 + t), (together, -(1 + t)))
            ],
        ),
        weights_tend(sympy.exp(score((x,), (x,)))),
        grid_limits(shape, lambda delta, tau: parabola_score(delta, tau, shape)),
    ]


def one_component_steps() -> list[ProofStep]:
    """D_p = 1: of three shifts, the one whose r lies between those of the others is never the only maximum of c·r."""
    v, w = symbols("v", 3), symbols("W", 3)
    r, c = sympy.Symbol("r"), sympy.Symbol("c")
    low = sympy.Symbol("x", real=True)
    z, s, t = sympy.symbols("z s t", nonnegative=True)
    middle, high = low + s, low + s + t
    plus_, zero, minus_ = sympy.symbols("c>0,c=0,c<0")
    names: list[Any] = ["A", "B", "C"]
    at_most = {pair: sympy.Symbol(f"r_{pair[0]} <= r_{pair[1]}") for pair in permutations(names, 2)}
    comparable = [at_most[x, y] | at_most[y, x] for x, y in (("A", "B"), ("B", "C"), ("A", "C"))]
    cases = []
    for first, second, third in permutations(names):
        order = at_most[first, second] & at_most[second, third]
        cases += [
            (order & plus_, ge(z * high, z * middle)),
            (order & minus_, ge(-z * low, -z * middle)),
            (order & zero, ge(0 * high, 0 * middle)),
        ]
    shift = sympy.Symbol("L", integer=True, positive=True)
    return [
        identity(
            "for all v and Ŵ_key, v^T Ŵ_key r_δ = c r_δ, c one number a head (here D_k = 3)",
            (sum(a * b * r for a, b in zip(v, w, strict=True)), dot(v, w) * r),
        ),
        case_split(
            "for all c and three shifts the one with the middle r is no only maximum",
            [*comparable, plus_ | zero | minus_],
            cases,
        ),
        from_assumptions(
            "the others can: r = δ on −L, …, L and c = ±α, gap ≥ α for all L",
            *(ge(sign * alpha * (sign * shift) - sign * alpha * (sign * (shift - 1 - _k)), alpha) for sign in (1, -1)),
        ),
        argued("so for all kernels of three taps they leave out one, whose token moves Conv(X)", c * r),
    ]
