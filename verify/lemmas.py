"""The lemmas of the paper, proved by sympy about the code that runs.

Nothing here restates the encoding: sympy calls ``construct.encoding.r`` and ``construct.encoding.v`` with symbols,
looked up at call time, and reasons about what they return.  Break a sign there and the proof raises `ProofFailed`.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import product
from operator import add
from typing import Any

import sympy

from construct import encoding
from verify.proof import (
    Proof,
    ProofFailed,
    Step,
    case_split,
    from_assumptions,
    identity,
    least_value,
    limits,
    sum_at_most,
)

_GRIDS = {1: (4,), 2: (3, 3), 3: (2, 2, 2)}  # one limit takes sympy about 0.2 s

_alpha = sympy.Symbol("alpha", positive=True)


def prove_lemma2(dims: int) -> Proof:
    """Prove Lemma 2 for the encoding as coded, in d = dims dimensions, for every integer shift τ and every α > 0.

    Lemma 2: v·r_δ = −α(‖δ−τ‖² − ‖τ‖²), so among integer shifts the score is largest at δ = τ and nowhere else, by a gap
    of exactly α, and as α → ∞ the softmax over the keys puts weight 1 on the key at q + τ.

    Args:
        dims: the number d ≥ 1 of spatial dimensions.

    Returns:
        The proof: its steps, how each was discharged, and the expressions.

    Raises:
        ValueError: dims is no integer ≥ 1.
        ProofFailed: a step does not hold for the encoding as it is coded.
    """
    if not isinstance(dims, int) or isinstance(dims, bool) or dims < 1:
        raise ValueError(f"dims must be an integer of at least 1, got {dims!r}")
    claim = (
        f"Lemma 2 (d = {dims}): with r and v of construct.encoding, every integer shift tau and every alpha > 0, "
        "attention tends to one-hot on the key at query + tau as alpha grows"
    )
    steps = (*score_steps(dims), *gap_steps(dims), *squeeze_steps(dims), *grid_steps(dims))
    return Proof(claim, steps)


def score(delta: Sequence[Any], tau: Sequence[Any]) -> Any:
    """The positional score v·r_δ of Lemma 2, from the two functions that the layer calls."""
    r, v = encoding.r(delta), encoding.v(tau, _alpha)
    if not len(r) == len(v) == len(delta) + 1:
        raise ProofFailed("r and v have D_p = d + 1 components", (len(r), len(v)), "but they have")
    return sympy.sympify(sum(a * b for a, b in zip(v, r, strict=True)))


def score_steps(dims: int) -> list[Step]:
    """Lemma 2, first part: the score is the quadratic −α(‖δ−τ‖² − ‖τ‖²)."""
    delta, tau = _integers("delta", dims), _integers("tau", dims)
    quadratic = -_alpha * (_norm2(_minus(delta, tau)) - _norm2(tau))
    return [identity("v·r_delta = -alpha (|delta - tau|^2 - |tau|^2)", (score(delta, tau), quadratic))]


def gap_steps(dims: int) -> list[Step]:
    """Lemma 2, second part: δ = τ is the only maximum among integer shifts, by a gap of exactly α."""
    delta, tau, n = (_integers(name, dims) for name in ("delta", "tau", "n"))
    shift = _minus(delta, tau)
    above = sympy.Symbol("m", integer=True, positive=True)
    below = sympy.Symbol("m", integer=True, negative=True)
    neither = sympy.Symbol("m", integer=True, positive=False, negative=False)
    cases = _cases_of_nonzero(n)
    premises = [sympy.Or(*branches) for branches in zip(*_signs(n), strict=True)]
    premises.append(sympy.Not(sympy.And(*_signs(n)[1])))
    units = [tuple(sign * int(i == j) for j in range(dims)) for i in range(dims) for sign in (1, -1)]
    return [
        identity(
            "score(tau) - score(delta) = alpha |n|^2 with n = delta - tau",
            (score(tau, tau) - score(delta, tau), _alpha * _norm2(shift)),
        ),
        from_assumptions("n = delta - tau is an integer vector", *(sympy.Q.integer(x) for x in shift)),
        from_assumptions(
            "an integer m is 1 + k, 0 or -(1 + k) with an integer k >= 0",
            *(sympy.Q.nonnegative(above - 1), sympy.Q.integer(above - 1)),
            *(sympy.Q.nonnegative(-below - 1), sympy.Q.integer(-below - 1)),
            sympy.Q.zero(neither),
        ),
        case_split(
            "every other integer shift tau + n scores lower than tau: the maximum is unique",
            premises,
            [(condition, sympy.Gt(_gap(case, tau), 0, evaluate=False)) for condition, case in cases],
        ),
        case_split(
            "every other integer shift scores lower by at least alpha",
            premises,
            [(condition, sympy.Ge(_gap(case, tau), _alpha, evaluate=False)) for condition, case in cases],
        ),
        identity("the gap alpha is attained, at each unit vector n", *((_gap(unit, tau), _alpha) for unit in units)),
    ]


def squeeze_steps(dims: int) -> list[Step]:
    """Lemma 2, third part, on any grid of T keys: the softmax weights are squeezed, to 1 at τ and to 0 elsewhere.

    With the target's exponential divided out, the target's weight is 1/(1+S) and another key's e^{−g}/(1+S), where S
    sums e^{−g} over the T − 1 other keys, whose gaps g = α‖n‖² are at least α by the second part.
    """
    tau, n = _integers("tau", dims), _integers("n", dims)
    others = sympy.Symbol("T", integer=True, positive=True) - 1
    count = sympy.Symbol("N", integer=True, nonnegative=True)
    excess, loss, total, slack = sympy.symbols("s b S c", nonnegative=True)
    # The gap is alpha + s with s >= 0, and e^{-s} = 1 - b with b >= 0 by the step that says so.
    weight = sympy.expand(sympy.exp(-(_alpha + excess)))
    weight_by_loss = weight.subs(sympy.exp(-excess), 1 - loss)
    bound = count * sympy.exp(-_alpha)
    top = sympy.exp(score(tau, tau))
    at_target, least = 1 / (1 + total), 1 / (1 + total + slack)
    lower = least.subs(slack, bound.subs(count, others) - total)
    return [
        identity(
            "each key's exponential over the target's is e^(-alpha |n|^2)",
            (sympy.exp(score(_plus(tau, n), tau)) / top, sympy.exp(-_alpha * _norm2(n))),
        ),
        identity(
            "so the softmax weight is 1/(1 + S) at the target and e^(-alpha - s)/(1 + S) at a key of gap alpha + s",
            (top / (top + top * total), at_target),
            (top * weight / (top + top * total), weight * at_target),
        ),
        least_value("b = 1 - e^(-s) is never negative", 1 - sympy.exp(-excess), excess, sympy.Interval(0, sympy.oo), 0),
        sum_at_most(
            "N keys of gap >= alpha, with e^(-alpha - s) = e^(-alpha) (1 - b), add up to at most N e^(-alpha)",
            *(weight_by_loss, bound, count),
        ),
        from_assumptions(
            "S adds up positive terms, so the target's weight is at most 1, and at least 1/(1 + S + c) for any c >= 0",
            sympy.Ge(at_target, least, evaluate=False),
            sympy.Le(at_target, 1, evaluate=False),
            sympy.Gt(weight, 0, evaluate=False),
        ),
        from_assumptions(
            "every other weight lies between 0 and e^(-alpha)",
            sympy.Le(weight_by_loss * at_target, sympy.exp(-_alpha), evaluate=False),
            sympy.Gt(weight * at_target, 0, evaluate=False),
        ),
        limits(
            "with S + c = (T - 1) e^(-alpha), the bound over the T - 1 others, the target's lower bound tends to 1",
            *([(lower, 1)], _alpha),
        ),
        limits("the upper bound of every other weight tends to 0", [(sympy.exp(-_alpha), 0)], _alpha),
    ]


def grid_steps(dims: int) -> list[Step]:
    """Lemma 2, third part, directly: the limits of all softmax weights, over all keys of one small grid.

    Beyond three dimensions the further axes have one key each, so that the grid stays small.
    """
    shape = (*_GRIDS[min(dims, 3)], *(1 for _ in range(dims - 3)))
    positions = list(product(*(range(size) for size in shape)))
    expected = []
    for query, target in product(positions, positions):
        tau = _minus(target, query)
        scores = [score(_minus(key, query), tau) for key in positions]
        for key, own in zip(positions, scores, strict=True):
            # The softmax weight e^own / sum_j e^score_j, its numerator divided out.
            weight = 1 / reduce(add, (sympy.exp(sympy.expand(other - own)) for other in scores))
            expected.append((weight, int(key == target)))
    statement = (
        f"on a grid of {'x'.join(map(str, shape))} keys, for every query and every tau that stays on it, all "
        f"{len(expected)} weights tend to 1 at the key query + tau and to 0 elsewhere"
    )
    return [limits(statement, expected, _alpha)]


def _gap(n: Sequence[Any], tau: Sequence[Any]) -> Any:
    return score(tau, tau) - score(_plus(tau, n), tau)


def _cases_of_nonzero(n: Sequence[Any]) -> list[tuple[Any, tuple[Any, ...]]]:
    """A vector n other than 0 has a component that is 1 + k or −(1 + k); the others stay any integers."""
    k = sympy.Symbol("k", integer=True, nonnegative=True)
    below, _, above = _signs(n)
    cases = []
    for i in range(len(n)):
        cases.append((above[i], (*n[:i], 1 + k, *n[i + 1 :])))
        cases.append((below[i], (*n[:i], -(1 + k), *n[i + 1 :])))
    return cases


def _signs(n: Sequence[Any]) -> tuple[list[sympy.Symbol], ...]:
    """For each component, three propositions: it is below, at, above zero."""
    return tuple([sympy.Symbol(f"{x} {sign} 0") for x in n] for sign in ("<", "=", ">"))


def _integers(name: str, dims: int) -> tuple[sympy.Symbol, ...]:
    return tuple(sympy.Symbol(f"{name}_{axis}", integer=True) for axis in range(1, dims + 1))


def _norm2(x: Sequence[Any]) -> Any:
    return sum(component**2 for component in x)


def _plus(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _minus(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(x - y for x, y in zip(a, b, strict=True))
