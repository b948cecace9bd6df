"""Proof steps of the two leakage bounds: the weight outside the nearest key, on and off the integer
lattice.

    on the lattice:   leaked = 1 − ϑ(α)^{−d},                      ϑ(α) = 1 + 2 Σ_{n≥1} e^{−αn²}
    off the lattice:  leaked ≤ 1 − Π_i 1/(1 + s(α, f_i)),          s(α, f) = Σ_{n≥1} (e^{−α(n²−2nf)} + e^{−α(n²+2nf)})

The scores are the code's own, `construct.encoding.quadratic`; the bounds follow from them by Coq.
Here is also what Coq does not have: the tail bound by which `verify.rounding.leakage` encloses the
sums, and the α of `construct.encoding.sharpness`.
"""

import sympy

from verify.theory.symbolic.proof import Proof, ProofStep, cited, from_assumptions, ge, identity
from verify.theory.symbolic.proofs_scores import alpha, integers, minus, norm2, plus, reals, score
from verify.theory.symbolic.proofs_tail import tail_steps

_DIMS = (1, 2, 3)
_HALF = sympy.Rational(1, 2)
_n = 1 + sympy.Symbol("m", integer=True, nonnegative=True)


def on_lattice_steps() -> list[ProofStep | Proof]:
    """The bound for an integer shift τ, where query + τ is a key."""
    gaps = []
    for dims in _DIMS:
        tau = integers("tau", dims)
        n = integers("n", dims)
        gaps.append((score(tau, tau) - score(plus(tau, n), tau), alpha * norm2(n)))
    dims, tolerance = sympy.symbols("d epsilon", positive=True)
    derived = sympy.log(16 * dims / (7 * tolerance))
    return [
        identity(
            "the key at τ + n scores α‖n‖² lower than the key at τ, for all n, d = 1, 2, 3", *gaps
        ),
        cited("so for all grids at most 1 − ϑ^(−d) leaks", "leak_theta"),
        from_assumptions("n² ≥ n(n − 1) for all n ≥ 1", ge(_n**2, _n * (_n - 1))),
        *tail_steps(),
        cited("for all α > 0 and on all grids at most 2d e^(−α) leaks", "leak_closed"),
        identity(
            "for all ε, 2d e^(−α) = 7ε/8 at the α that is derived, ln(16d/(7ε))",
            (2 * dims * sympy.exp(-derived), sympy.Rational(7, 8) * tolerance),
        ),
    ]


def off_lattice_steps() -> list[ProofStep | Proof]:
    """The bound for τ = t + f, where t is the nearest key and every |f_i| ≤ ½."""
    gaps = []
    for dims in _DIMS:
        t = integers("t", dims)
        n = integers("n", dims)
        f = reals("f", dims)
        tau = plus(t, f)
        gaps.append(
            (score(t, tau) - score(plus(t, n), tau), alpha * (norm2(minus(n, f)) - norm2(f)))
        )
    less, other = sympy.symbols("g p", nonnegative=True)
    return [
        identity(
            "the key t + n scores α(‖n − f‖² − ‖f‖²) lower than the key t, for all n and f", *gaps
        ),
        cited("so by at least α(1 − 2 max|f_i|), for all n ≠ 0", "off_lattice_gap"),
        cited("so for all grids at most 1 − Π_i 1/(1 + s(f_i)) leaks", "off_lattice_leak"),
        from_assumptions(
            "n² ± 2nf ≥ n(n − 1) for all n ≥ 1 and |f| ≤ 1/2",
            ge(_n**2 - 2 * _n * (_HALF - less), _n * (_n - 1)),
            ge(_n**2 + 2 * _n * other, _n * (_n - 1)),
        ),
        Proof(
            "so for all N the terms beyond N have the bound of the lattice",
            tuple(tail_steps()),
            name="as on the lattice",
        ),
        cited("at |f| = 1/2, if two keys tie, 1/2 leaks or more", "half_way"),
    ]
