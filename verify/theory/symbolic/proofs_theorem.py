"""Proof steps of Theorem 1 after Lemma 2: the limits of the code's attention, Lemma 1 for them, and the rate on any grid."""

import sympy

from verify.theory.symbolic.proof import Proof, ProofStep, from_assumptions, ge, identity, le, limits, sum_at_most
from verify.theory.symbolic.proofs_lemma1 import (
    CHANNELS,
    SymbolicConvolution,
    attention,
    cases,
    convolution,
    one_hot,
    place_steps,
)
from verify.theory.symbolic.proofs_scores import alpha, minus, score, symbols, weights


def theorem_steps(dims: int) -> list[ProofStep | Proof]:
    """With sympy's limits as P^h the layer equals the convolution; then the rate of convergence."""
    case = cases(dims)[0]
    soft = [
        [weights([score(minus(key, query), shift) for key in case.keys]) for query in case.queries]
        for shift in case.shifts
    ]
    hot = [entry for shift in case.shifts for entry in one_hot(case, shift).flat()]
    expected = list(zip((weight for head in soft for row in head for weight in row), hot, strict=True))
    limit_step = limits(f"{case.sides}: {len(expected)} weights of the code tend to one-hot", expected, alpha)
    value = {line.lhs.args[0]: line.rhs for line in limit_step.expressions}
    tends_to = [sympy.Matrix([[value[w] for w in row] for row in head]) for head in soft]
    eye, w = sympy.eye(CHANNELS[1]), case.w
    layer = attention(case, tends_to, w, [eye] * len(w))
    return [
        Proof(
            "so for all grids head j reads X at s·o + dil·j, and the sum is the convolution",
            tuple(place_steps(dims)),
            name="Lemma 1",
        ),
        limit_step,
        identity(
            "on this grid, with these limits, MHSA(X) = Conv(X), each entry, for all X and W",
            *zip(layer.flat(), convolution(case, w).flat(), strict=True),
        ),
        *_rate_steps(case),
    ]


def _rate_steps(case: SymbolicConvolution) -> list[ProofStep | Proof]:
    """On any grid, the difference at finite α is a finite sum of products, each at most a constant times e^{−α}."""
    queries, tokens = len(case.queries), len(case.keys)
    p = [sympy.Matrix(queries, tokens, lambda q, k, h=h: sympy.Symbol(f"P_{h}_{q}_{k}")) for h in range(len(case.taps))]
    w, x, eye = case.w, case.x, sympy.eye(CHANNELS[1])
    hot = [one_hot(case, shift) for shift in case.shifts]
    difference = attention(case, p, w, [eye] * len(w)) - convolution(case, w)
    moved = sympy.zeros(queries, CHANNELS[1])
    for soft, hard, tap in zip(p, hot, w, strict=True):
        moved += (soft - hard) * x * tap
    # |c t| <= C B for |c| <= C, |t| <= B: with c = (a' - a)/2, C = (a' + a)/2, t = (s' - s)/2, B = (s' + s)/2.
    a, a_rest, s, s_rest = sympy.symbols("a a' s s'", nonnegative=True)
    c, size, t, most = (a_rest - a) / 2, (a_rest + a) / 2, (s_rest - s) / 2, (s_rest + s) / 2
    total = sympy.Symbol("S", nonnegative=True)
    keys, heads, constant = sympy.symbols("T N_h C", positive=True)
    count = sympy.Symbol("N", integer=True, nonnegative=True)
    term = sympy.Symbol("t", nonnegative=True)
    rest = sympy.Symbol("r", nonnegative=True)
    terms = [
        from_assumptions("|c t| <= C B where |c| <= C and |t| <= B", le(c * t, size * most), ge(c * t, -size * most)),
        from_assumptions(
            "by Lemma 2 every |P - one-hot| <= S, S the other keys' exponentials over the target's: 1 - 1/(1 + S) <= S at "
            "the target, and s/(1 + S) <= S elsewhere, s one of the terms of S = s + r",
            le(1 - 1 / (1 + total), total),
            le(term / (1 + term + rest), term + rest),
        ),
        sum_at_most(
            "N terms of at most C S each add up to at most N C S", constant * total, count * constant * total, count
        ),
        limits(
            "with S <= (T - 1) e^(-alpha), and N_h T terms of size at most C S: the difference tends to 0, on any grid",
            [(heads * keys * constant * (keys - 1) * sympy.exp(-alpha), 0)],
            alpha,
        ),
    ]
    return [
        identity(
            "on this grid, for all P^h: MHSA(X) − Conv(X) = Σ_h (P^h − one-hot) X W_h",
            *zip(difference.flat(), moved.flat(), strict=True),
        ),
        Proof("for all |X W_h| ≤ C that is ≤ N_h T C (T − 1) e^(−α) → 0", tuple(terms)),
        Proof("a head that leaks ε errs by ≤ 2εM for all |X| ≤ M, and no bound is less", tuple(_finite_steps())),
    ]


def _finite_steps() -> list[ProofStep]:
    """At finite α, a head that leaks ε changes its value by at most 2εM, where |X| ≤ M, and the bound is attained."""
    p = symbols("p", 3, nonnegative=True)
    x = symbols("x", 4)
    leak, bound = sympy.symbols("epsilon M", nonnegative=True)
    low, high = sympy.symbols("l h", nonnegative=True)  # two values from -M + l to M - h
    kept = 1 - sum(p)
    read = kept * x[3] + sum(a * b for a, b in zip(p, x[:3], strict=True))
    moved = sum(a * (b - x[3]) for a, b in zip(p, x[:3], strict=True))
    return [
        identity(
            "what a head reads differs from its target by sum_k p_k (X_k - X_target) over the other keys",
            (read - x[3], moved),
        ),
        from_assumptions(
            "and |X_k - X_target| <= 2M where |X| <= M, so by at most 2 epsilon M if epsilon = sum_k p_k leaks",
            le((bound - high) - (-bound + low), 2 * bound),
            ge((-bound + low) - (bound - high), -2 * bound),
        ),
        identity(
            "which is attained: M at the target, -M elsewhere",
            (
                (read - x[3]).subs(dict(zip(x, (-bound,) * 3 + (bound,), strict=True))).subs(p[0], leak - p[1] - p[2]),
                -2 * leak * bound,
            ),
        ),
    ]
