"""Proof steps of the two leakage bounds: the weight outside the nearest key, on and off the integer lattice.

    on the lattice:   leaked = 1 − ϑ(α)^{−d},                      ϑ(α) = 1 + 2 Σ_{n≥1} e^{−αn²}
    off the lattice:  leaked ≤ 1 − Π_i 1/(1 + s(α, f_i)),          s(α, f) = Σ_{n≥1} (e^{−α(n²−2nf)} + e^{−α(n²+2nf)})

The weights are exponentials of the code's own scores, so both are about `construct.encoding.quadratic`.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import sympy

from verify.theory.symbolic.proof import Proof, ProofStep, case_split, from_assumptions, ge, identity, le, limits
from verify.theory.symbolic.proof_algebra import linear
from verify.theory.symbolic.proofs_lemma2 import integer_step
from verify.theory.symbolic.proofs_scores import (
    alpha,
    dot,
    every_sign,
    integers,
    minus,
    norm2,
    plus,
    reals,
    score,
    signs,
    sums_by_axis,
    weights,
)
from verify.theory.symbolic.proofs_tail import beyond, count, tail_steps, tolerance_steps

_HALF = sympy.Rational(1, 2)
_k, _m = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("k", "m"))
_g, _p = sympy.symbols("g p", nonnegative=True)


def on_lattice_steps() -> list[ProofStep | Proof]:
    """The bound for an integer shift τ, where query + τ is a key."""
    taus, ns = ({dims: integers(name, dims) for dims in (1, 2, 3)} for name in ("tau", "n"))
    at_least = 1 + _m  # n
    relative = [
        identity(
            "the key at tau + n has e^(-alpha |n|^2) times the target's exponential, in 1, 2 and 3 dimensions",
            *((_relative(ns[dims], taus[dims]), sympy.exp(-alpha * norm2(ns[dims]))) for dims in taus),
        ),
        identity("that is the same at n and at -n", (_relative((-ns[1][0],), taus[1]), _relative(ns[1], taus[1]))),
    ]
    return [
        Proof("the exponential at τ ± n is e^(−α‖n‖²) times the one at τ, for all n, d = 1, 2, 3", tuple(relative)),
        _product_step({dims: (ns[dims], taus[dims], (sympy.Integer(0),) * dims) for dims in taus}),
        identity(
            "here to (1 + 2Σ_{n≤N} e^(−αn²))^d on {−N, …, N}^d, N = 4 − d",
            *((_window(4 - dims, tau), _theta(4 - dims) ** dims) for dims, tau in taus.items()),
        ),
        _leaks(),
        from_assumptions("n² ≥ n(n − 1) for all n ≥ 1", ge(at_least**2, at_least * (at_least - 1))),
        *tail_steps(),
        limits(
            "so as α grows ϑ tends to 1 and the leakage 1 − ϑ^(−d) to 0, by that for N = 1",
            [(2 * sympy.exp(-alpha) + beyond().subs(count, 1), 0)],
            alpha,
        ),
        *tolerance_steps(),
    ]


def off_lattice_steps() -> list[ProofStep | Proof]:
    """The bound for τ = t + f, where t is the nearest key and every |f_i| ≤ ½."""
    ts, ns = ({dims: integers(name, dims) for dims in (1, 2, 3)} for name in ("t", "n"))
    fs = {dims: reals("f", dims) for dims in ts}
    (t,), (f,) = ts[1], fs[1]
    m, nearer = 1 + _m, sympy.Symbol("h", positive=True)
    pairs = [sympy.exp(-alpha * (j**2 - 2 * j * f)) + sympy.exp(-alpha * (j**2 + 2 * j * f)) for j in (1, 2, 3)]
    relative = [
        identity(
            "with tau = t + f the key at t + n scores lower than the key at t by alpha (|n - f|^2 - |f|^2)",
            *((_gap(ns[d], ts[d], fs[d]), alpha * (norm2(minus(ns[d], fs[d])) - norm2(fs[d]))) for d in ts),
        ),
        identity(
            "so its exponential is e^(-alpha sum_i (n_i^2 - 2 n_i f_i)) times that of the key at t",
            *((_relative(ns[d], ts[d], fs[d]), sympy.exp(-alpha * (norm2(ns[d]) - 2 * dot(ns[d], fs[d])))) for d in ts),
        ),
    ]
    on_axis = [
        identity(
            "on an axis the keys up to N = 3 away add up to 1 + sum_n (e^(-alpha (n^2 - 2 n f)) + e^(-alpha (n^2 + 2 n f)))",
            (sum(_relative((j,), (t,), (f,)) for j in range(-3, 4)), 1 + sum(pairs)),
        ),
        identity(
            "on the lattice, f = 0, that is 1 + 2 sum_n e^(-alpha n^2)",
            *((pair.subs(f, 0), 2 * sympy.exp(-alpha * j**2)) for j, pair in enumerate(pairs, 1)),
        ),
    ]
    return [
        Proof("the key t + n scores α(‖n − f‖² − ‖f‖²) lower than the key t, for all n and f", tuple(relative)),
        Proof("so by at least α(1 − 2 max|f_i|), attained, for all n ≠ 0", tuple(_gap_steps(t))),
        _product_step({d: (ns[d], ts[d], fs[d]) for d in ts}),
        Proof("on an axis 1 + Σ_n (e^(−α(n² − 2nf)) + e^(−α(n² + 2nf))), here for n ≤ 3 and all f", tuple(on_axis)),
        _leaks(),
        from_assumptions(
            "n² ± 2nf ≥ n(n − 1) for all n ≥ 1 and |f| ≤ 1/2",
            ge(m**2 - 2 * m * (_HALF - _g), m * (m - 1)),
            ge(m**2 + 2 * m * _p, m * (m - 1)),
        ),
        Proof(
            "so for all N the terms beyond N have the bound of the lattice",
            tuple(tail_steps()),
            name="as on the lattice",
        ),
        limits(
            "so for all |f| < 1/2 the leakage tends to 0 as α grows",
            [(sympy.exp(-alpha * nearer) + sympy.exp(-alpha * (1 + 2 * _p)) + beyond().subs(count, 1), 0)],
            alpha,
        ),
        Proof("at |f| = 1/2, if two keys tie, 1/2 leaks or more", tuple(_tie_steps(t))),
    ]


def _gap_steps(t: Any) -> list[ProofStep]:
    """The gap to the nearest key is α(1 − 2|f|), on the axis where |f| is largest."""
    n = sympy.Symbol("n")
    below, at, above = (sign[0] for sign in signs((n,)))
    left, right = sympy.symbols("f<0,f>=0")
    premises = [*every_sign((n,)), left | right]
    ns, fs, ts = integers("n", 3), reals("f", 3), integers("t", 3)
    each = [_gap((x,), (y,), (z,)) for x, y, z in zip(ns, ts, fs, strict=True)]
    cases = [
        (above & right, _gap((1 + _k,), (t,), (_HALF - _g,)), 2 * _g),
        (below & left, _gap((-(1 + _k),), (t,), (_g - _HALF,)), 2 * _g),
        (above & left, _gap((1 + _k,), (t,), (-_p,)), 1 - 2 * _p),
        (below & right, _gap((-(1 + _k),), (t,), (_p,)), 1 - 2 * _p),
    ]
    return [
        identity(
            "the gaps of the axes add up",
            *((_gap(ns[:d], ts[:d], fs[:d]), sum(each[:d])) for d in (2, 3)),
        ),
        integer_step(),
        case_split(
            "on an axis with n != 0 the gap is at least alpha (1 - 2|f|): |f| = 1/2 - g where n and f have one sign, else |f| = p",
            [*premises, sympy.Not(at)],
            [(condition, ge(gap, alpha * value)) for condition, gap, value in cases],
        ),
        case_split(
            "and never negative where |f| <= 1/2, so the other axes take nothing away",
            premises,
            [
                *((condition, ge(gap, 0)) for condition, gap, _ in cases),
                (at, ge(_gap((sympy.Integer(0),), (t,), (_p,)), 0)),
            ],
        ),
        identity(
            "alpha (1 - 2|f|) is attained, by the next key on the side of tau",
            (_gap((1,), (t,), (_HALF - _g,)), 2 * alpha * _g),
            (_gap((-1,), (t,), (_g - _HALF,)), 2 * alpha * _g),
        ),
    ]


def _product_step(shapes: dict[int, tuple[Sequence[Any], Sequence[Any], Sequence[Any]]]) -> ProofStep:
    """The exact sum over a box is a product over the axes, by summing over one axis after another."""
    equations = []
    for n, t, f in shapes.values():
        factors = [sympy.exp(-alpha * (x**2 - 2 * x * y)) for x, y in zip(n, f, strict=True)]
        equations += sums_by_axis(_relative(n, t, f), list(zip(n, factors, strict=True)))
    return linear("for all boxes of keys the exponentials add up to Z_1 … Z_d, one sum an axis", *equations)


def _leaks() -> Proof:
    """From sums of exponentials to the leaked weight; missing keys only reduce it."""
    total, more = sympy.symbols("S c", nonnegative=True)
    a, b = (1 + sympy.Symbol(name, nonnegative=True) for name in ("s_1", "s_2"))
    steps = (
        identity(
            "the nearest key keeps 1/(1 + S), so S/(1 + S) leaks, S the others",
            (1 - 1 / (1 + total), total / (1 + total)),
        ),
        from_assumptions(
            "keys that are missing leak less: S/(1 + S) grows with S",
            le(total / (1 + total), (total + more) / (1 + total + more)),
        ),
        from_assumptions(
            "and so does 1 - 1/(A B) with each of its factors, which are at least 1",
            le(1 - 1 / (a * b), 1 - 1 / ((a + more) * b)),
        ),
    )
    return Proof("S/(1 + S) leaks, S = Z_1 … Z_d − 1; less for all smaller S or Z_i", steps)


def _tie_steps(t: Any) -> list[ProofStep]:
    """At f = ½ half the weight leaks, at any sharpness."""
    rest = sympy.Symbol("S", nonnegative=True)
    keys = [t + j for j in range(-2, 4)]
    nearest = weights([score((key,), (t + _HALF,)) for key in keys])[2]
    return [
        identity(
            "at f = 1/2 the two nearest keys score the same", (score((t,), (t + _HALF,)), score((t + 1,), (t + _HALF,)))
        ),
        from_assumptions(
            "so at least half leaks past either, for every alpha: 1 - 1/(2 + S) >= 1/2", ge(1 - 1 / (2 + rest), _HALF)
        ),
        limits("and exactly half in the limit, here of 6 keys", [(1 - nearest, _HALF)], alpha),
    ]


def _theta(last: int) -> Any:
    return 1 + 2 * sum(sympy.exp(-alpha * n**2) for n in range(1, last + 1))


def _window(last: int, tau: Sequence[Any]) -> Any:
    return sum(_relative(n, tau) for n in product(range(-last, last + 1), repeat=len(tau)))


def _relative(n: Sequence[Any], t: Sequence[Any], f: Sequence[Any] | None = None) -> Any:
    """The exponential for the key at t + n divided by that for the key at t, for a head that looks at t + f."""
    return sympy.exp(sympy.expand(-_gap(n, t, (sympy.Integer(0),) * len(t) if f is None else f)))


def _gap(n: Sequence[Any], t: Sequence[Any], f: Sequence[Any]) -> Any:
    """The score of the key at t minus that of the key at t + n, for a head that looks at t + f."""
    tau = plus(t, f)
    return score(t, tau) - score(plus(t, n), tau)
