"""Faulty encodings and executions; and the proofs about the correct ones, each computed once."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest

from construct.attention import EXECUTIONS
from construct.encoding import quadratic
from verify.theory.symbolic import lemmas
from verify.theory.symbolic.proof import Proof

right_r, right_v = quadratic.r, quadratic.v


def negated_at(i, vector):
    return tuple(-x if j == i else x for j, x in enumerate(vector))


WRONG_ENCODINGS = {
    "v negated": {"v": lambda tau, alpha: tuple(-x for x in right_v(tau, alpha))},
    "v without the 2": {"v": lambda tau, alpha: (-alpha, *(alpha * x for x in tau))},
    "v with +2 tau": {"v": lambda tau, alpha: (-alpha, *(-2 * alpha * x for x in tau))},
    "v with one component negated": {"v": lambda tau, alpha: negated_at(1, right_v(tau, alpha))},
    "v with the norm negated": {"v": lambda tau, alpha: negated_at(0, right_v(tau, alpha))},
    "v with sharpness on the norm only": {"v": lambda tau, alpha: (-alpha, *(2 * x for x in tau))},
    "v off by one": {"v": lambda tau, alpha: right_v([x + 1 for x in tau], alpha)},
    "r without the square": {"r": lambda delta: (sum(delta), *delta)},
    "r with a cube": {"r": lambda delta: (sum(x**3 for x in delta), *delta)},
    "r with the 1-norm": {"r": lambda delta: (sum(abs(x) for x in delta), *delta)},
    "r without one axis in the norm": {"r": lambda delta: (sum(x * x for x in delta[:-1]), *delta)},
    "r with one component negated": {"r": lambda delta: negated_at(1, right_r(delta))},
    "r with key and query exchanged": {"r": lambda delta: right_r([-x for x in delta])},
    "r with the norm last": {"r": lambda delta: (*delta, sum(x * x for x in delta))},
    "r with a component missing": {"r": lambda delta: right_r(delta)[:-1]},
    "r and v both with a component missing": {
        "r": lambda delta: right_r(delta)[:-1],
        "v": lambda tau, alpha: right_v(tau, alpha)[:-1],
    },
    "r all zeros": {"r": lambda delta: tuple(0 * x for x in right_r(delta))},
}
"""Each replaces r or v by a wrong version that no part of the proof of Lemma 2 may accept."""

WRONG_FROM_TWO_AXES = {
    "v with the axes reversed": {"v": lambda tau, alpha: right_v(tau[::-1], alpha)},
    "r with the axes reversed": {"r": lambda delta: right_r(delta[::-1])},
    "r with one axis doubled": {"r": lambda delta: right_r((delta[0], delta[0], *delta[2:]))},
}
"""More of them, for two or more axes: with one axis there is nothing to exchange."""


def break_encoding(patch: pytest.MonkeyPatch, functions: dict) -> None:
    for name, function in functions.items():
        patch.setattr(quadratic, name, function)


def break_execution(patch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]) -> None:
    """Make an execution run ``wrong``, called with the correct run and then (layer, x, grid)."""
    right = EXECUTIONS[name]
    patch.setitem(EXECUTIONS, name, replace(right, run=partial(wrong, right.run)))


PROOFS = {name: prove for name, prove in vars(lemmas).items() if name.startswith("prove_")}


@cache
def as_coded(name: str, *dims: int) -> Proof:
    """One of these proofs, shared by tests that only read its result."""
    return PROOFS[name](*dims)
