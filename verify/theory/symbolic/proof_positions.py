"""Positional scores of small grids as arrays of exact numbers, from the code's own encoding.

The numeric counterpart of :mod:`verify.theory.symbolic.proofs_scores`.  The functions of ``construct.encoding.quadratic`` are
looked up at call time, so whatever replaces them is judged.
"""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from construct.encoding import quadratic as encoding


def positions(shape: Sequence[int]) -> np.ndarray:
    """Every position of a grid in row-major order, Python integers, (T, d)."""
    return np.array(list(product(*map(range, shape))), dtype=object).reshape(prod(shape), len(shape))


def differences(queries: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
    """δ = k − q for every query and key, one array (Q, T) a component."""
    return [keys[None, :, axis] - queries[:, None, axis] for axis in range(keys.shape[1])]


def quadratic_scores(queries: np.ndarray, keys: np.ndarray, tau: Sequence[Any], alpha: Any = 1) -> np.ndarray:
    """v·r_δ with the quadratic encoding, (Q, T)."""
    return _dot(encoding.v(tau, alpha), encoding.r(differences(queries, keys)))


def wrapped_scores(query: np.ndarray, sides: Sequence[int], tau: Sequence[Any], alpha: Any = 1) -> np.ndarray:
    """The quadratic scores of one query on a wrapped grid, every δ_i from −⌊n_i/2⌋ on: (T,)."""
    half = np.array([n // 2 for n in sides], dtype=object)
    delta = (positions(sides) - query + half) % np.array(sides, dtype=object) - half
    return quadratic_scores(np.zeros((1, len(sides)), dtype=object), delta, tau, alpha)[0]


def parabola_scores(queries: np.ndarray, keys: np.ndarray, tau: Sequence[Any], radix: Sequence[int]) -> np.ndarray:
    """v·r_n at α = 1 with the shifts numbered, n = n(δ), so that D_p = 2: (Q, T)."""
    number = encoding.number(differences(queries, keys), radix)
    return _dot(encoding.v((encoding.number(tau, radix),), 1), encoding.r((number,)))


def absolute_scores(queries: np.ndarray, keys: np.ndarray, tau: Sequence[Any]) -> np.ndarray:
    """The dot products of query and key features at α = 1, (Q, T), without relative positions."""
    left, right = absolute_features(queries, keys, tau)
    return left @ right.T


def absolute_features(
    queries: np.ndarray, keys: np.ndarray, tau: Sequence[Any], alpha: Any = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The d + 1 features of each query, (Q, d + 1), and of each key, (T, d + 1)."""
    left = [encoding.absolute_query(tuple(q), tau, alpha) for q in queries]
    return np.array(left, dtype=object), np.array([encoding.absolute_key(tuple(k)) for k in keys], dtype=object)


def radix_for(sides: Sequence[int]) -> tuple[int, ...]:
    """The mixed radix that numbers all shifts between positions of a grid: side m has 2m − 1 of them, −(m − 1) to m − 1."""
    return tuple(prod(2 * m - 1 for m in sides[axis + 1 :]) for axis in range(len(sides)))


def head_vector(tau: Sequence[Any], alpha: float, radix: Sequence[int] | None = None) -> list[float]:
    """v of a head that looks at τ, for the quadratic encoding, or the parabola with a radix."""
    centre = tuple(tau) if radix is None else (encoding.number(tau, radix),)
    return [float(component) for component in encoding.v(centre, alpha)]


def code_length(dims: int) -> int:
    """D_p of the quadratic encoding: the number of components of r_δ in d dimensions."""
    return len(encoding.r((1,) * dims))


def _dot(v: Sequence[Any], r: Sequence[Any]) -> np.ndarray:
    return sum((a * b for a, b in zip(v, r, strict=True)), start=np.zeros((), dtype=object))
