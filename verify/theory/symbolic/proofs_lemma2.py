"""Proof steps of Lemma 2: a quadratic score, and a unique maximum with gap α.

What follows from the gap is cited from Coq.

First in d = dims dimensions, then for vectors of symbolic length d.
"""

from itertools import product
from typing import Any

import sympy

from verify.theory.symbolic.proof import (
    Proof,
    ProofStep,
    argued,
    cited,
    identity,
    limits,
)
from verify.theory.symbolic.proof_algebra import linear
from verify.theory.symbolic.proofs_scores import (
    alpha,
    indexed,
    integers,
    minus,
    norm2,
    on_grid,
    plus,
    refusing_other_types,
    score,
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
    α; so the softmax tends to one-hot.
    """
    delta, tau = integers("delta", dims), integers("tau", dims)
    units = [
        tuple(sign * int(i == j) for j in range(dims)) for i in range(dims) for sign in (1, -1)
    ]
    at_target = score(tau, tau)
    return [
        identity(
            "score(τ) − score(δ) = α‖n‖² for all δ and τ, with n = δ − τ",
            (at_target - score(delta, tau), alpha * norm2(minus(delta, tau))),
        ),
        identity(
            "the gap is α at each unit vector n",
            *((at_target - score(plus(tau, unit), tau), alpha) for unit in units),
        ),
        cited("and for all other n ≠ 0 at least α", "score_gap"),
        cited(
            "so for all grids the weights tend to 1 at the target, to 0 elsewhere", "softmax_limit"
        ),
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
