"""Attention probabilities from a layer's own softmax, by head, query and token."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from construct.attention import MHSA
from verify.layers.reading import (
    input_spans,
    output_size,
    query_places,
    token_count,
)
from verify.oracle import Geometry, Sides, Vector

MOST_NUMBERS = 2**25
"""The most probabilities to hold, eight bytes each: a quarter of a gigabyte."""
TOKENS = {1: 13, 2: 7, 3: 5}
"""The default number of tokens along an axis, by dimension."""


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer on one input.

    Attributes:
        probabilities: (heads, queries, tokens), float64, from ``MHSA.attention_probabilities``.
        outputs, tokens: the spatial size of the output, with one query per position, and of the
            padded grid.
        places: per axis, the query token of each output.
        inside: per axis, the first and last token that are not padding.
        content: whether the attention depends on the input.
    """

    probabilities: ndarray
    outputs: Vector
    tokens: Vector
    places: tuple[ndarray, ...]
    inside: Sides
    content: bool

    def query(self, position: Vector) -> Vector:
        """The query token of an output."""
        return tuple(int(place[o]) for place, o in zip(self.places, position, strict=True))

    def map(self, head: int, position: Vector) -> ndarray:
        """The attention of a head for an output, over the padded grid."""
        return self.probabilities[head, np.ravel_multi_index(position, self.outputs)].reshape(
            self.tokens
        )

    def require_query(self, position: Vector) -> None:
        """Raise a ValueError unless the output has this position."""
        if position not in np.ndindex(*self.outputs):
            raise ValueError(
                f"the query {position} must be a position of an output of size {self.outputs}"
            )

    @property
    def scope(self) -> str:
        """The inputs that have this attention, for a title."""
        return "for one input, on which it depends" if self.content else "the same for every input"

    def middle(self) -> Vector:
        """The middle output."""
        return tuple(o // 2 for o in self.outputs)


def attention_of(
    layer: MHSA,
    x: torch.Tensor | None = None,
    grid: Vector | None = None,
    alpha: float | None = None,
    larger: int = 1,
) -> LayerAttention:
    """Compute the attention of a layer on one input.

    Args:
        layer: a layer in 1, 2 or 3 dimensions.
        x: an input (1, D_in, *size), for attention that depends on content; random by default.
        grid: the spatial size of the input, if ``x`` is not given.
        alpha: scale every v so that the softest head has this sharpness.
        larger: a factor on the default grid.

    Raises:
        TypeError: this is not an attention layer of this project.
        ValueError: the grid is invalid, the attention is too large to draw, or the heads have no
            sharpness to change.
    """
    if not isinstance(layer, MHSA):
        raise TypeError(
            f"the layer must be an attention layer of this project, not a {type(layer).__name__}"
        )
    g = Geometry.read(layer)
    if g.dims not in TOKENS:
        raise ValueError(f"attention in {g.dims} dimensions is not drawn")
    if x is not None:
        size = tuple(x.shape[2:])
    else:
        size = drawn_size(g, larger * TOKENS[g.dims], None) if grid is None else grid
    outputs = output_size(g, size)
    tokens = token_count(g, size)
    if layer.heads * prod(outputs) * tokens > MOST_NUMBERS:
        raise ValueError(
            f"{layer.heads} heads, {prod(outputs)} queries and {tokens} tokens are too many to draw"
        )
    if alpha is not None:
        layer = _softened(layer, alpha)
    if x is None:
        x = noise(layer, size)
    with torch.no_grad():
        content = layer.has_content()
        probabilities = layer.attention_probabilities(x[:1].to(layer.w_val))[0].cpu().numpy()
    return LayerAttention(
        probabilities,
        outputs,
        g.padded(size),
        tuple(np.asarray(query_places(g, axis, o)) for axis, o in enumerate(outputs)),
        input_spans(g, size),
        content,
    )


def noise(layer: MHSA, size: Vector) -> torch.Tensor:
    """A random input of a spatial size, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, layer.in_channels, *size, generator=generator, device="cpu")


def drawn_size(g: Geometry, tokens: int, most: Sequence[int] | None) -> Vector:
    """The spatial size of a small input: about ``tokens`` per axis, with room for five outputs, or
    two if far apart.
    """
    size = []
    for axis, (pads, span, s) in enumerate(zip(g.pads, g.spans, g.stride, strict=True)):
        if g.transposed:
            size.append(max(-(-(tokens - 2 * g.margins[axis][0]) // s), 3))
        else:
            room = span + 1 + 4 * s
            # for example a patch embedding, whose tokens would be too small to see
            if room > 2 * tokens:
                room = span + 1 + s
            size.append(max(max(tokens, room) - sum(pads), *(p + 1 for p in pads), 3))
    return (
        tuple(size) if most is None else tuple(min(n, m) for n, m in zip(size, most, strict=True))
    )


def _softened(layer: MHSA, alpha: float) -> MHSA:
    own = float(layer.centres()[0].min())
    if not (alpha > 0 and own > 0 and np.isfinite(alpha)):
        raise ValueError(f"the sharpness of this layer, {own:g}, cannot be made {alpha:g}")
    softened: Any = copy.deepcopy(layer)
    with torch.no_grad():
        softened.v.copy_(softened.v.double() * (alpha / own))
    return softened
