"""Proof steps of the tail bound in `verify.rounding.leakage`, and of the tolerance from which α is derived.

Both bounds compare e^{−αn²} (or e^{−α(n²−2nf)}, |f| ≤ ½) with a geometric series: beyond N, n(n − 1) grows by at least 2(N + 1)
per step, and n² ≥ 1 + 3(n − 1).
"""

from typing import Any

import sympy

from verify.theory.symbolic.proof import (
    Proof,
    ProofStep,
    argued,
    case_split,
    from_assumptions,
    ge,
    identity,
    le,
    least_value,
    sum_at_most,
)
from verify.theory.symbolic.proof_algebra import sum_value
from verify.theory.symbolic.proofs_scores import alpha

count = sympy.Symbol("N", integer=True, nonnegative=True)
_k, _m = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("k", "m"))


def tail_steps() -> list[ProofStep | Proof]:
    """With exponents of at least n(n − 1), the terms beyond N sum to at most 2e^{−αN(N+1)}/(1 − e^{−2α(N+1)})."""
    n = count + 1 + _m
    exponent = count * (count + 1) + 2 * (count + 1) * _m
    y = sympy.Symbol("y", positive=True)
    ratio, x = sympy.Symbol("x", positive=True), 1 / (1 + y)
    place, p = sympy.Symbol("M", integer=True, nonnegative=True), sympy.Symbol("p", real=True)
    excess = sympy.Symbol("s", nonnegative=True)
    zero, above = sympy.symbols("m=0,m>0")
    exponents = [
        identity(
            "beyond N, at n = N + 1 + m, n (n - 1) = N (N + 1) + 2 (N + 1) m + m (m - 1)",
            (n * (n - 1), exponent + _m * (_m - 1)),
        ),
        case_split(
            "with m (m - 1) >= 0 for every integer m >= 0",
            [zero | above],
            [(zero, ge((_m * (_m - 1)).subs(_m, 0), 0)), (above, ge((_m * (_m - 1)).subs(_m, 1 + _k), 0))],
        ),
    ]
    terms = [
        least_value(
            "e^(-s) <= 1 for s >= 0, so a larger exponent weighs less: such a term is at most e^(-alpha N (N + 1)) x^m with "
            "x = e^(-2 alpha (N + 1))",
            *(1 - sympy.exp(-excess), excess, sympy.Interval(0, sympy.oo), 0),
        ),
        least_value(
            "e^p >= 1 + p for p >= 0, so x = 1/(1 + y) with y >= 2 alpha (N + 1) > 0",
            *(sympy.exp(p) - 1 - p, p, sympy.Interval(0, sympy.oo), 0),
        ),
    ]
    series = [
        sum_at_most(
            "the first M powers of x add up to at most (1 - x^M)/(1 - x)",
            *(ratio**place, (1 - ratio**place) / (1 - ratio), place),
        ),
        sum_value("all of them to 1/(1 - x)", (sympy.Sum(x**_m, (_m, 0, sympy.oo)), 1 / (1 - x))),
    ]
    return [
        Proof("n(n − 1) ≥ N(N + 1) + 2(N + 1)m for all N and m ≥ 0, at n = N + 1 + m", tuple(exponents)),
        Proof("so e^(−αn(n−1)) ≤ e^(−αN(N+1)) x^m for all N and m, with x = e^(−2α(N+1)) < 1", tuple(terms)),
        Proof("for all x < 1: 1 + x + x² + … = 1/(1 − x), and no partial sum is more", tuple(series)),
        argued("growing, bounded sums have limits: for all N beyond N lie ≤ 2e^(−αN(N+1))/(1 − x)", beyond()),
    ]


def tolerance_steps() -> list[ProofStep | Proof]:
    """1 − ϑ^{−d} ≤ tolerance from α ≥ max(ln 2, ln(16d/(7·tolerance)))."""
    n, x = 1 + _m, sympy.Symbol("x", nonnegative=True)
    y = 1 / (2 + sympy.Symbol("g", nonnegative=True))  # e^-alpha, at most 1/2
    dims, tolerance = sympy.symbols("d epsilon", positive=True)
    kept = 1 - sympy.Symbol("b", nonnegative=True)
    theta = [
        identity("n^2 = 1 + 3 (n - 1) + m (m - 1) at n = 1 + m", (n**2, 1 + 3 * (n - 1) + _m * (_m - 1))),
        from_assumptions(
            "so theta - 1 <= 2 e^(-alpha)/(1 - e^(-3 alpha)) by the same geometric series, at most (16/7) e^(-alpha) where "
            "e^(-alpha) = 1/(2 + g) <= 1/2",
            le(2 / (1 - y**3), sympy.Rational(16, 7)),
        ),
    ]
    axes = [
        identity(
            "one more axis adds theta^(-d) - theta^(-d-1) = theta^(-d) (1 - 1/theta), theta = 1 + x",
            ((1 + x) ** (-count) - (1 + x) ** (-count - 1), (1 + x) ** (-count) * x / (1 + x)),
        ),
        sum_at_most(
            "which is at most x, as theta^(-d) = 1 - b <= 1: so 1 - theta^(-d) <= d (theta - 1)",
            *(kept * x / (1 + x), count * x, count),
        ),
    ]
    return [
        Proof("ϑ − 1 ≤ 2e^(−α)/(1 − e^(−3α)) ≤ (16/7) e^(−α) for all α ≥ ln 2", tuple(theta)),
        Proof("1 − ϑ^(−d) ≤ d(ϑ − 1) for all d", tuple(axes)),
        identity(
            "so for all ε, d (16/7) e^(−α) = ε at the α that is derived, ln(16d/(7ε))",
            (dims * sympy.Rational(16, 7) * sympy.exp(-sympy.log(16 * dims / (7 * tolerance))), tolerance),
        ),
    ]


def beyond() -> Any:
    """The bound on the terms beyond N, both sides together."""
    return 2 * sympy.exp(-alpha * count * (count + 1)) / (1 - sympy.exp(-2 * alpha * (count + 1)))
