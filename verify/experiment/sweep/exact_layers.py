"""Literal exact evaluation of both layers: the ground truth for certificates.

The attention is Eq. 3 with α → ∞: each head takes the key with the highest score, found by
comparing all keys; scores are exact integers.  Tokens and queries are the certifier's
(:mod:`verify.layers.reading`), which tests derive anew.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy import ndarray

from verify.layers.reading import (
    ZERO,
    GridRefused,
    output_size,
    query_places,
    tokens_along,
)
from verify.layers.taps import as_integers
from verify.oracle import Convolution, Geometry, Vector, by_channel, float64, places

_fractions: Any = np.frompyfunc(Fraction, 1, 1)
"""An array of floats as fractions, without rounding."""


class NoValue(Exception):
    """Two keys tie for the highest score of some head and query, or there is no output."""


def convolution(conv: Any, x: ndarray) -> ndarray:
    """The convolution of x (D_in, *size) by its definition, as fractions (D_out, *output)."""
    fields = Convolution.read(conv)
    (w, p), (xs, q) = as_integers(fields.weight), as_integers(x)
    y = replace(fields, weight=w, bias=None)(xs[None])[0]
    return y * Fraction(1, p * q) + by_channel(_fractions(fields.biases), y.ndim - 1)


def attention(layer: Any, x: ndarray) -> ndarray:
    """b_out + Σ_h X[best key] W_val^h W_out^h for x (D_in, *size), as fractions (D_out, *output).

    Raises:
        NoValue: some head has no best key, or there are no queries.
    """
    size = x.shape[1:]
    output, sources = attended_positions(layer, size)
    tokens, q = as_integers(x)
    # 0 is a zero
    tokens = np.concatenate(
        [np.zeros((len(x), 1), dtype=object), tokens.reshape(len(x), -1)], axis=1
    )
    (w_val, r), (w_out, s) = as_integers(float64(layer.w_val)), as_integers(float64(layer.w_out))
    d_in = w_val.shape[2]
    d_out = w_out.shape[3]
    total = np.zeros((layer.groups, d_out, sources.shape[1]), dtype=object)
    for head, source in enumerate(sources):
        values = tokens[:, source].reshape(layer.groups, d_in, -1)
        for g in range(layer.groups):
            total[g] = total[g] + (values[g].T @ w_val[head, g] @ w_out[head, g]).T
    y = total.reshape(-1, *output) * Fraction(1, q * r * s)
    return y + by_channel(_fractions(float64(layer.b_out)), len(size))


def exactly_differ(conv: Any, layer: Any, grid: Vector) -> bool:
    """Whether the layers' exact outputs at α → ∞ differ on large random integers, or one layer has
    no output.

    Both functions are affine, so one such input distinguishes them.
    """
    x = np.random.default_rng(0).integers(-(2**45), 2**45, (conv.in_channels, *grid)).astype(object)
    expected = convolution(conv, x)
    try:
        attended = attention(layer, x)
    except NoValue:
        return True
    return attended.shape != expected.shape or bool((attended != expected).any())


def attended_positions(layer: Any, size: Vector) -> tuple[Vector, ndarray]:
    """The output's size, and where each head looks for each output: int (heads, outputs), 0 a zero,
    i + 1 input position i.

    A head that carries nothing looks at a zero.

    Raises:
        NoValue: some other head has no best key, or there are no queries.
    """
    g = Geometry.read(layer)
    try:
        output = output_size(g, size)
    except GridRefused as error:
        raise NoValue from error
    positions = token_sources(layer, size)
    keys = places(map(range, g.padded(size)))
    queries = places(query_places(g, axis, o).tolist() for axis, o in enumerate(output))
    delta = keys[None] - queries[:, None]  # (queries, keys, d)
    if getattr(layer, "radix", None) is not None:
        delta = (delta * np.array(layer.radix)).sum(axis=2, keepdims=True)
    r = np.concatenate([(delta**2).sum(axis=2, keepdims=True), delta], axis=2)
    sources = []
    idle = [
        not (w_val @ w_out).any()
        for w_val, w_out in zip(float64(layer.w_val), float64(layer.w_out), strict=True)
    ]
    for nothing, v, w_key_pos in zip(idle, float64(layer.v), float64(layer.w_key_pos), strict=True):
        if nothing:  # it adds 0, whatever it attends to
            sources.append(np.zeros(len(queries), dtype=int))
            continue
        (a, _), (b, _) = as_integers(v), as_integers(w_key_pos)
        c = a @ b  # the score's vector, times a positive number
        small = max(abs(int(x)) for x in c) * int(np.abs(r).max(initial=1)) * len(c) < 2**62
        scores = r @ c.astype(np.int64) if small else r.astype(object) @ c
        best = scores.max(axis=1)
        if ((scores == best[:, None]).sum(axis=1) != 1).any():
            raise NoValue
        sources.append(positions[np.argmax(scores == best[:, None], axis=1)])
    return output, np.array(sources).reshape(len(sources), len(queries))


def token_sources(layer: Any, size: Vector) -> ndarray:
    """The content of each token of the padded grid: 0 a zero, i + 1 a copy of input position i; int
    (tokens,), row-major.
    """
    g = Geometry.read(layer)
    copies = places(tokens_along(g, axis, n).tolist() for axis, n in enumerate(size))
    strides = [int(np.prod(size[axis + 1 :])) for axis in range(len(size))]
    return np.where((copies == ZERO).any(axis=1), 0, 1 + (copies * strides).sum(axis=1))
