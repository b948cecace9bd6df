"""Proof steps of Lemma 2: a quadratic score, a unique maximum with gap α, and a softmax squeezed
onto it.

First in d = dims dimensions, then for vectors of symbolic length d.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import sympy

from verify.theory.symbolic.proof import (
    Proof,
    ProofStep,
    argued,
    case_split,
    cited,
    from_assumptions,
    ge,
    gt,
    identity,
    le,
    least_value,
    limits,
    sum_at_most,
)
from verify.theory.symbolic.proof_algebra import linear
from verify.theory.symbolic.proofs_scores import (
    alpha,
    every_sign,
    indexed,
    integers,
    minus,
    norm2,
    on_grid,
    plus,
    refusing_other_types,
    score,
    signs,
    small,
    weights,
)


def score_steps(dims: int) -> list[ProofStep]:
    """Lemma 2, first part: the score is the quadratic −α(‖δ−τ‖² − ‖τ‖²)."""
    delta, tau = integers("delta", dims), integers("tau", dims)
    quadratic = -alpha * (norm2(minus(delta, tau)) - norm2(tau))
    return [identity("v·r_δ = −α(‖δ − τ‖² − ‖τ‖²) for all δ and τ", (score(delta, tau), quadratic))]


def gap_steps(dims: int) -> list[ProofStep | Proof]:
    """Lemma 2, second part: δ = τ is the only maximum among integer shifts, with a gap of exactly
    α.
    """
    delta, tau, n = (integers(name, dims) for name in ("delta", "tau", "n"))
    shift = minus(delta, tau)
    cases = _cases_of_nonzero(n)
    premises = [*every_sign(n), sympy.Not(sympy.And(*signs(n)[1]))]
    units = [
        tuple(sign * int(i == j) for j in range(dims)) for i in range(dims) for sign in (1, -1)
    ]
    nonzero = [
        from_assumptions(
            "n = delta - tau is an integer vector", *(sympy.Q.integer(x) for x in shift)
        ),
        _integer_step(),
        case_split(
            "every other integer shift tau + n scores lower than tau: the maximum is unique",
            premises,
            [(condition, gt(_gap(case, tau), 0)) for condition, case in cases],
        ),
        case_split(
            "every other integer shift scores lower by at least alpha",
            premises,
            [(condition, ge(_gap(case, tau), alpha)) for condition, case in cases],
        ),
        identity(
            "the gap alpha is attained, at each unit vector n",
            *((_gap(unit, tau), alpha) for unit in units),
        ),
    ]
    return [
        identity(
            "score(τ) − score(δ) = α‖n‖² for all δ and τ, with n = δ − τ",
            (score(tau, tau) - score(delta, tau), alpha * norm2(shift)),
        ),
        Proof("so for all n ≠ 0 the gap is ≥ α, and α at unit vectors", tuple(nonzero)),
    ]


def _integer_step() -> ProofStep:
    """The case split: every integer is positive, zero or negative."""
    above = sympy.Symbol("m", integer=True, positive=True)
    below = sympy.Symbol("m", integer=True, negative=True)
    neither = sympy.Symbol("m", integer=True, positive=False, negative=False)
    return from_assumptions(
        "an integer m is 1 + k, 0 or -(1 + k) with an integer k >= 0",
        *(sympy.Q.nonnegative(above - 1), sympy.Q.integer(above - 1)),
        *(sympy.Q.nonnegative(-below - 1), sympy.Q.integer(-below - 1)),
        sympy.Q.zero(neither),
    )


def squeeze_steps(dims: int) -> list[ProofStep | Proof]:
    """Lemma 2, third part, on any grid of T keys: a squeeze argument, with limit 1 at τ and 0
    elsewhere.

    After dividing by the target's exponential, the target's weight is 1/(1+S) and another key's is
    e^{−g}/(1+S), where S sums e^{−g} over the T − 1 other keys, whose gaps g = α‖n‖² are at least α
    by the second part.
    """
    tau, n = integers("tau", dims), integers("n", dims)
    top = sympy.exp(score(tau, tau))
    return [
        identity(
            "the exponential at τ + n is e^(−α‖n‖²) times that at τ, for all n and τ",
            (sympy.exp(score(plus(tau, n), tau)) / top, sympy.exp(-alpha * norm2(n))),
        ),
        *_weight_steps(top),
    ]


def _weight_steps(top: Any) -> list[ProofStep | Proof]:
    """Gaps of at least α imply the limit of the weights, in any dimension; ``top`` is the target's
    exponential.
    """
    others = sympy.Symbol("T", integer=True, positive=True) - 1
    count = sympy.Symbol("N", integer=True, nonnegative=True)
    excess, loss, total, slack = sympy.symbols("s b S c", nonnegative=True)
    # The gap is alpha + s with s >= 0, and e^{-s} = 1 - b with b >= 0 by the step that says so.
    weight = sympy.expand(sympy.exp(-(alpha + excess)))
    weight_by_loss = weight.subs(sympy.exp(-excess), 1 - loss)
    bound = count * sympy.exp(-alpha)
    at_target, least = 1 / (1 + total), 1 / (1 + total + slack)
    lower = least.subs(slack, bound.subs(count, others) - total)
    weigh = [
        identity(
            "so the softmax weight is 1/(1 + S) at the target and e^(-alpha - s)/(1 + S) at a key of gap alpha + s",
            (top / (top + top * total), at_target),
            (top * weight / (top + top * total), weight * at_target),
        )
    ]
    add_up = [
        least_value(
            "b = 1 - e^(-s) is never negative",
            1 - sympy.exp(-excess),
            excess,
            sympy.Interval(0, sympy.oo),
            0,
        ),
        sum_at_most(
            "N keys of gap >= alpha, with e^(-alpha - s) = e^(-alpha) (1 - b), add up to at most N e^(-alpha)",
            *(weight_by_loss, bound, count),
        ),
    ]
    squeeze = [
        from_assumptions(
            "S adds up positive terms, so the target's weight is at most 1, and at least 1/(1 + S + c) for any c >= 0",
            ge(at_target, least),
            le(at_target, 1),
            gt(weight, 0),
        ),
        from_assumptions(
            "every other weight lies between 0 and e^(-alpha)",
            le(weight_by_loss * at_target, sympy.exp(-alpha)),
            gt(weight * at_target, 0),
        ),
    ]
    tend = [
        limits(
            "with S + c = (T - 1) e^(-alpha), the bound over the T - 1 others, the target's lower bound tends to 1",
            *([(lower, 1)], alpha),
        ),
        limits("the upper bound of every other weight tends to 0", [(sympy.exp(-alpha), 0)], alpha),
    ]
    return [
        Proof(
            "the weight is 1/(1 + S) at τ, else e^(−gap)/(1 + S), S = Σ e^(−gap) but at τ",
            tuple(weigh),
        ),
        Proof(
            "for all grids, of T keys, S ≤ (T − 1) e^(−α), as every gap is at least α",
            tuple(add_up),
        ),
        Proof(
            "so 1/(1 + (T − 1) e^(−α)) ≤ weight ≤ 1 at τ, else 0 < weight ≤ e^(−α)", tuple(squeeze)
        ),
        Proof("so for all grids the weight tends to 1 at τ, and to 0 elsewhere", tuple(tend)),
    ]


def grid_steps(dims: int) -> list[ProofStep]:
    """Lemma 2, third part, directly: the limits of all softmax weights over the keys of one small
    grid.
    """
    shape = small(dims, (4,), (3, 3), (2, 2, 2))  # each limit takes sympy about 0.2 s
    positions = list(product(*map(range, shape)))
    expected = []
    for query, target in product(positions, positions):
        tau = minus(target, query)
        soft = weights([score(minus(key, query), tau) for key in positions])
        expected += [
            (weight, int(key == target)) for key, weight in zip(positions, soft, strict=True)
        ]
    statement = f"{on_grid(shape)} all {len(expected)} weights tend to 1 at query + τ or to 0"
    return [limits(statement, expected, alpha)]


class SymbolicVector:
    """A vector of symbolic length d that acts as one component in the code's functions.

    It supports the encoding's operations on a component: addition, negation, multiplication by a
    number, and the product with another vector, x·y = Σ_i x_i y_i as a sympy Sum.
    """

    length = sympy.Symbol("d", integer=True, positive=True)
    index = sympy.Symbol("i", integer=True)

    def __init__(self, component: Any) -> None:
        self.component = component

    @classmethod
    def named(cls, name: str) -> "SymbolicVector":
        """The vector of the integers name[1], …, name[d]."""
        return cls(indexed(name, integer=True)[cls.index])

    def __add__(self, other: "SymbolicVector") -> "SymbolicVector":
        return (
            SymbolicVector(self.component + other.component)
            if isinstance(other, SymbolicVector)
            else NotImplemented
        )

    def __neg__(self) -> "SymbolicVector":
        return SymbolicVector(-self.component)

    def __sub__(self, other: "SymbolicVector") -> "SymbolicVector":
        return self + -other if isinstance(other, SymbolicVector) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, SymbolicVector):
            return sympy.Sum(self.component * other.component, (self.index, 1, self.length))
        return SymbolicVector(self.component * other)

    __rmul__ = __mul__


def any_length_steps() -> list[ProofStep]:
    """Lemma 2 for vectors of symbolic length d: the code's r and v, called with whole vectors as
    `SymbolicVector`.
    """
    delta, tau, n = (SymbolicVector.named(name) for name in ("delta", "tau", "n"))
    at, below, beyond = (
        refusing_other_types(lambda s=s: score((s,), (tau,))) for s in (tau, delta, tau + n)
    )
    shift = delta - tau
    return [
        *_reading_steps(),
        linear(
            "v·r_δ = −α(Σ_i (δ_i − τ_i)² − Σ_i τ_i²) for all d",
            (below, -alpha * (shift * shift - tau * tau)),
        ),
        linear("score(τ) − score(τ + n) = α Σ_i n_i² for all d", (at - beyond, alpha * (n * n))),
        cited("so for all n ≠ 0 the gap is at least α, for all d", "score_gap"),
        cited(
            "so for all grids the weights tend to 1 at the target, to 0 elsewhere", "softmax_limit"
        ),
    ]


def _reading_steps() -> list[ProofStep]:
    """A `SymbolicVector` acts like its components: shown for d up to 4, argued for all others."""
    delta, tau = SymbolicVector.named("delta"), SymbolicVector.named("tau")
    whole = refusing_other_types(lambda: score((delta,), (tau,)))
    written = []
    for dims in (1, 2, 3, 4):
        components = [
            [indexed(name, integer=True)[i] for i in range(1, dims + 1)]
            for name in ("delta", "tau")
        ]
        written.append((whole.subs(SymbolicVector.length, dims).doit(), score(*components)))
    return [
        identity(
            "r and v of a whole vector are those of its components, for d = 1, 2, 3, 4", *written
        ),
        argued(
            "and so for all d: r and v treat each component alike, and their product adds up", whole
        ),
    ]


def _gap(n: Sequence[Any], tau: Sequence[Any]) -> Any:
    return score(tau, tau) - score(plus(tau, n), tau)


def _cases_of_nonzero(n: Sequence[Any]) -> list[tuple[Any, tuple[Any, ...]]]:
    """The cases of n ≠ 0: some component is 1 + k or −(1 + k); the others are any integers."""
    k = sympy.Symbol("k", integer=True, nonnegative=True)
    below, _, above = signs(n)
    cases = []
    for i in range(len(n)):
        cases.append((above[i], (*n[:i], 1 + k, *n[i + 1 :])))
        cases.append((below[i], (*n[:i], -(1 + k), *n[i + 1 :])))
    return cases
