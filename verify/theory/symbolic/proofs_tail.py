"""Proof steps of the tail bound in `verify.rounding.leakage`: e^{−αn²}, or e^{−α(n²−2nf)} with
|f| ≤ ½, by a geometric series.

Beyond N, n(n − 1) grows by at least 2(N + 1) per step.
"""

import sympy

from verify.theory.symbolic.proof import (
    Proof,
    ProofStep,
    argued,
    from_assumptions,
    ge,
    identity,
    least_value,
)
from verify.theory.symbolic.proof_algebra import sum_value
from verify.theory.symbolic.proofs_scores import alpha

count = sympy.Symbol("N", integer=True, nonnegative=True)
_k, _m = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("k", "m"))


def tail_steps() -> list[ProofStep | Proof]:
    """With exponents of at least n(n − 1), the terms beyond N sum to at most 2e^{−αN(N+1)}/(1 −
    e^{−2α(N+1)}).
    """
    n = count + 1 + _m
    exponent = count * (count + 1) + 2 * (count + 1) * _m
    beyond = 2 * sympy.exp(-alpha * count * (count + 1)) / (1 - sympy.exp(-2 * alpha * (count + 1)))
    x = 1 / (1 + sympy.Symbol("y", positive=True))
    p = sympy.Symbol("p", real=True)
    exponents = [
        identity(
            "beyond N, at n = N + 1 + m, n (n - 1) = N (N + 1) + 2 (N + 1) m + m (m - 1)",
            (n * (n - 1), exponent + _m * (_m - 1)),
        ),
        from_assumptions(
            "with m (m - 1) >= 0 at m = 0 and at m = 1 + k: for every integer m >= 0",
            *(ge((_m * (_m - 1)).subs(_m, value), 0) for value in (0, 1 + _k)),
        ),
    ]
    term = least_value(
        "e^p >= 1 + p for p >= 0, so a larger exponent weighs less: such a term is at most e^(-alpha N (N + 1)) x^m with "
        "x = e^(-2 alpha (N + 1)), which is 1/(1 + y) for a y > 0",
        *(sympy.exp(p) - 1 - p, p, sympy.Interval(0, sympy.oo), 0),
    )
    return [
        Proof(
            "n(n − 1) ≥ N(N + 1) + 2(N + 1)m for all N and m ≥ 0, at n = N + 1 + m",
            tuple(exponents),
        ),
        Proof(
            "so e^(−αn(n−1)) ≤ e^(−αN(N+1)) x^m for all N and m, with x = e^(−2α(N+1)) < 1",
            (term,),
        ),
        sum_value(
            "for all x < 1: 1 + x + x² + … = 1/(1 − x)",
            (sympy.Sum(x**_m, (_m, 0, sympy.oo)), 1 / (1 - x)),
        ),
        argued(
            "terms no greater add up to no more: for all N beyond N lie ≤ 2e^(−αN(N+1))/(1 − x)",
            beyond,
        ),
    ]
