"""Proof steps on other encodings: absolute ones of d + 1 features, D_p = 2 in any dimension, D_p = 1 in none."""

from itertools import permutations, product
from typing import Any

import sympy

from construct.encoding import quadratic as encoding
from verify.theory.symbolic.proof import ProofStep, argued, case_split, from_assumptions, identity, limits
from verify.theory.symbolic.proof_algebra import ranks
from verify.theory.symbolic.proofs_lemma2 import integer_step, weight_steps
from verify.theory.symbolic.proofs_scores import (
    absolute_score,
    alpha,
    dot,
    every_sign,
    integers,
    minus,
    norm2,
    number,
    parabola_score,
    plus,
    score,
    signs,
    symbols,
    weights,
)

_k = sympy.Symbol("k", integer=True, nonnegative=True)


def absolute_steps(dims: int) -> list[ProofStep]:
    """α(2(q + τ)·k − ‖k‖²) is −α‖k − q − τ‖² up to what the softmax cancels: a dot product of d + 1 features."""
    q, k, other, tau, n = (integers(name, dims) for name in ("q", "k", "l", "tau", "n"))
    a, b, c = sympy.symbols("A B C", real=True)
    target = plus(q, tau)
    keys = list(product(*map(range, {1: (4,), 2: (2, 2), 3: (2, 2, 2)}[min(dims, 3)] + (1,) * (dims - 3))))
    by_dot_product = weights([absolute_score(q, key, tau) for key in keys])
    by_lemma2 = weights([score(minus(key, q), tau) for key in keys])
    # One query a row: what the softmax sees are differences between keys.
    cube = list(product(range(3), repeat=min(dims, 3)))
    cube = [(*place, *(0,) * (dims - 3)) for place in cube]
    ones = (1,) * dims
    table = [[absolute_score(p, key, ones) - absolute_score(p, cube[0], ones) for key in cube] for p in cube]
    return [
        identity(
            "the dot product of query and key features is -alpha |k - q - tau|^2 + alpha |q + tau|^2",
            (absolute_score(q, k, tau), -alpha * norm2(minus(k, target)) + alpha * norm2(target)),
        ),
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
        identity(
            f"so both have the same softmax, here over {len(keys)} keys with q, tau and alpha symbols",
            *zip(by_dot_product, by_lemma2, strict=True),
        ),
        identity(
            "the gap is Lemma 2's: the key at q + tau + n scores lower than the one at q + tau by alpha |n|^2",
            (absolute_score(q, target, tau) - absolute_score(q, plus(target, n), tau), alpha * norm2(n)),
        ),
        _channels_step(dims),
        ranks(
            "with the same softmax there is none of fewer features: over 3 places an axis (up to 3 axes), at alpha = 1 and "
            f"tau = (1, …, 1), the differences between keys have rank {min(dims, 3) + 1}",
            (sympy.Matrix(table).subs(alpha, 1), min(dims, 3) + 1),
        ),
    ]


def _channels_step(dims: int) -> ProofStep:
    """The features are linear in the d + 2 channels (p, ‖p‖², 1) of a token; the 1 is only a bias."""
    p, tau = integers("p", dims), integers("tau", dims)
    token = sympy.Matrix([[*p, norm2(p), 1]])
    zeros, eye = sympy.zeros(dims, 1), sympy.eye(dims)
    w_key = sympy.Matrix.vstack(zeros.row_join(eye), sympy.Matrix([[1, *(0,) * dims]]), sympy.zeros(1, dims + 1))
    bias = sympy.Matrix([[-alpha, *(2 * alpha * t for t in tau)]])
    w_qry = sympy.Matrix.vstack(zeros.row_join(2 * alpha * eye), sympy.zeros(1, dims + 1), bias)
    return identity(
        "both features are linear in the channels (p, |p|^2, 1) of a token, where the 1 only makes the query's bias",
        *zip(token * w_key, encoding.absolute_key(p), strict=True),
        *zip(token * w_qry, encoding.absolute_query(p, tau, alpha), strict=True),
    )


def parabola_steps(dims: int) -> list[ProofStep]:
    """D_p = 2: the quadratic encoding of one axis, on an injective numbering of the shifts."""
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
        first.append((sympy.And(*at[:i], above[i]), sympy.Ge(number(up, sizes), 1, evaluate=False)))
        first.append((sympy.And(*at[:i], below[i]), sympy.Le(number(down, sizes), -1, evaluate=False)))
    apart, together = sympy.symbols("n>0,n<0")
    x = sympy.Symbol("x", integer=True)  # the number of tau
    return [
        identity(
            "n is linear: n(delta) - n(tau) = n(e) with e = delta - tau",
            (number(delta, sizes) - number(tau, sizes), number(minus(delta, tau), sizes)),
        ),
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
        identity(
            "r and v of the numbers have 2 components, and score(tau) - score(delta) = alpha n(e)^2",
            (
                parabola_score(tau, tau, sizes) - parabola_score(delta, tau, sizes),
                alpha * number(minus(delta, tau), sizes) ** 2,
            ),
        ),
        case_split(
            "so every other shift scores lower by at least alpha: its number is off by 1 + t or -(1 + t)",
            [apart | together],
            [
                (sign, sympy.Ge(score((x,), (x,)) - score((x + off,), (x,)), alpha, evaluate=False))
                for sign, off in ((apart, 1 + t), (together, -(1 + t)))
            ],
        ),
        *weight_steps(sympy.exp(score((x,), (x,)))),
        _parabola_limits(dims),
    ]


def _parabola_limits(dims: int) -> ProofStep:
    """The keys of one query differ by less than the grid's own sides, so these sides will do for the radix."""
    shape = {1: (4,), 2: (2, 3), 3: (2, 1, 3)}[min(dims, 3)] + (1,) * (dims - 3)
    positions = list(product(*map(range, shape)))
    expected = []
    for query, target in product(positions, positions):
        tau = minus(target, query)
        soft = weights([parabola_score(minus(key, query), tau, shape) for key in positions])
        expected += [(weight, int(key == target)) for key, weight in zip(positions, soft, strict=True)]
    return limits(
        f"on {'x'.join(map(str, shape))} keys, with the sides for m, all {len(expected)} weights tend to 1 at query + tau "
        "and to 0 elsewhere",
        expected,
        alpha,
    )


def one_component_steps() -> list[ProofStep]:
    """D_p = 1: of three shifts, the one whose r lies between the others is never the only maximum of c·r."""
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
            (order & plus_, sympy.Ge(z * high, z * middle, evaluate=False)),
            (order & minus_, sympy.Ge(-z * low, -z * middle, evaluate=False)),
            (order & zero, sympy.Ge(0 * high, 0 * middle, evaluate=False)),
        ]
    shift = sympy.Symbol("L", integer=True, positive=True)
    return [
        identity(
            "with D_p = 1 the position term v^T Ŵ_key r_delta is c r_delta, c one number a head (here D_k = 3)",
            (sum(a * b * r for a, b in zip(v, w, strict=True)), dot(v, w) * r),
        ),
        case_split(
            "of any three shifts, one has r between the other two, and whatever the sign of c = z, -z or 0, one of those two "
            "scores at least as high: no c makes it the only maximum",
            [*comparable, plus_ | zero | minus_],
            cases,
        ),
        from_assumptions(
            "the other two can be: with r = delta on -L, …, L and c = ±alpha the ends lead by at least alpha",
            *(
                sympy.Ge(
                    sign * alpha * (sign * shift) - sign * alpha * (sign * (shift - 1 - _k)), alpha, evaluate=False
                )
                for sign in (1, -1)
            ),
        ),
        argued(
            "so heads that each attend one key attend at most two shifts, and leave out a tap of any kernel of three: its third "
            "token moves the convolution's output, and theirs not (heads that spread their attention are not covered)",
            c * r,
        ),
    ]
