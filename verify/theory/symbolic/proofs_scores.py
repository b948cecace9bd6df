"""Symbolic positional scores from the code's own encoding, their softmax, and helpers for sympy
symbols.

The functions of ``construct.encoding.quadratic`` are looked up at call time, so the proofs also
judge replacements of them.
"""

from collections.abc import Sequence
from typing import Any

import sympy

from construct.encoding import quadratic
from verify.oracle import Vector
from verify.theory.symbolic.proof import ProofFailed

alpha = sympy.Symbol("alpha", positive=True)


def score(delta: Sequence[Any], tau: Sequence[Any]) -> Any:
    """The positional score v·r_δ of Lemma 2, from the two functions that the layer calls."""
    r = quadratic.r(delta)
    v = quadratic.v(tau, alpha)
    if not len(r) == len(v) == len(delta) + 1:
        raise ProofFailed("r and v have D_p = d + 1 components", (len(r), len(v)), "but they have")
    return dot(v, r)


def number(delta: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """n(δ) of the parabola, in the mixed radix radix_i = Π_{j>i} sizes_j."""
    radix = [sympy.Mul(*sizes[axis + 1 :]) for axis in range(len(sizes))]
    return sympy.sympify(quadratic.number(delta, radix))


def absolute_score(query: Sequence[Any], key: Sequence[Any], tau: Sequence[Any]) -> Any:
    """The absolute encoding's score: the dot product of a query's and a key's d + 1 features."""
    left = quadratic.absolute_query(query, tau, alpha)
    right = quadratic.absolute_key(key)
    if not len(left) == len(right) == len(key) + 1:
        raise ProofFailed(
            "query and key have d + 1 features", (len(left), len(right)), "but they have"
        )
    return dot(left, right)


def weights(scores: Sequence[Any]) -> list[Any]:
    """The softmax of scores, e^own / Σ_j e^score_j, divided through by the numerator."""
    return [
        1 / sympy.Add(*(sympy.exp(sympy.expand(other - own)) for other in scores)) for own in scores
    ]


def symbols(name: str, dims: int, **assumptions: Any) -> tuple[sympy.Symbol, ...]:
    """One symbol per axis: name_1, …, name_d."""
    return sympy.symbols(f"{name}_1:{dims + 1}", **assumptions)


def integers(name: str, dims: int) -> tuple[sympy.Symbol, ...]:
    """A vector of d integers."""
    return symbols(name, dims, integer=True)


def reals(name: str, dims: int) -> tuple[sympy.Symbol, ...]:
    """A vector of d real numbers."""
    return symbols(name, dims, real=True)


def small(dims: int, *sides: Vector) -> Vector:
    """Side lengths small enough for sympy, given for one, two and three dimensions; further axes
    have length 1.
    """
    return sides[min(dims, 3) - 1] + (1,) * (dims - 3)


def on_grid(shape: Sequence[int]) -> str:
    """The grid of an instance in words: "on a 3×3 grid"."""
    return (
        f"on a {'×'.join(map(str, shape))} grid" if len(shape) > 1 else f"on a grid of {shape[0]}"
    )


indexed: Any = sympy.IndexedBase
"""A family of symbols, name[i]."""


def dot(a: Sequence[Any], b: Sequence[Any]) -> Any:
    """a·b."""
    return sympy.sympify(sum(x * y for x, y in zip(a, b, strict=True)))


def norm2(x: Sequence[Any]) -> Any:
    """‖x‖²."""
    return sum(component**2 for component in x)


def plus(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """a + b."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def minus(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """a − b."""
    return tuple(x - y for x, y in zip(a, b, strict=True))
