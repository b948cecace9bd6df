"""The paper's equations as written: all scores (Eq. 6), one softmax, all heads at once (Eq. 3)."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from construct.encoding.scores import Scores
from construct.errors import require
from construct.tokens import TokenGrid


@dataclass(frozen=True)
class Execution:
    """One way to evaluate Eq. 3: the same function by another route.

    Attributes:
        run: (layer, x (B, D_in, *n) in the layer's type, grid) → outputs (B, D_out, *o), in that
            type or the working type; raises NotEnoughMemory before allocating what does not fit.
        memory: (layer, batch, grid) → bytes that ``run`` allocates beyond its input and the
            parameters.
        meaning: a description in one line.
        cost: (layer, batch, grid) → approximate multiplications of a call.
    """

    run: Callable[[Any, Tensor, TokenGrid], Tensor]
    memory: Callable[[Any, int, TokenGrid], int]
    meaning: str
    cost: Callable[[Any, int, TokenGrid], int]


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of values and products for a layer of ``dtype``: at least float32."""
    return dtype if dtype.itemsize >= 4 else torch.float32


SCORE_BYTES = 40
"""A bound on what a score takes: itself, its softmax and temporaries, in float64."""


def run(layer: Any, x: Tensor, grid: TokenGrid) -> Tensor:
    """MHSA(X) = b_out + Σ_h P^h X W_val^h W_out^h; x (B, D_in, *n) → (B, D_out, *o).

    Raises:
        NotEnoughMemory: the attention maps do not fit.
    """
    what = f"dense attention of {layer.heads} heads, {grid.query_count} queries and {grid.token_count} keys"
    require(memory(layer, len(x), grid), x.device, what)
    tokens = grid.gather(x).to(working_dtype(x.dtype))
    # (b or 1, h, q, t)
    probabilities = torch.softmax(Scores(layer, tokens, grid)(), dim=-1).to(tokens.dtype)
    attended = averaged(probabilities, values_of(tokens, layer.w_val))
    y = layer.b_out.to(tokens.dtype) + added_up(attended, layer.w_out)
    return y.transpose(1, 2).unflatten(2, grid.query_shape)


def values_of(tokens: Tensor, w_val: Tensor) -> Tensor:
    """X W_val^h: tokens (B, T, D_in) and w_val (heads, groups, in/groups, D_h) →
    (B, heads, T, groups, D_h).
    """
    return torch.einsum(
        "btgi,hgie->bhtge", tokens.unflatten(2, (w_val.shape[1], -1)), w_val.to(tokens.dtype)
    )


def averaged(probabilities: Tensor, values: Tensor) -> Tensor:
    """P^h X W_val^h: (B or 1, heads, queries, T) and (B, heads, T, groups, D_h) → (B, heads,
    queries, groups, D_h).
    """
    return torch.einsum("bhqt,bhtge->bhqge", probabilities, values)


def added_up(attended: Tensor, w_out: Tensor) -> Tensor:
    """Σ_h attended_h W_out^h: (B, heads, queries, groups, D_h) and w_out (heads, groups, D_h,
    out/groups) → (B, queries, D_out).
    """
    return torch.einsum("bhqge,hgeo->bqgo", attended, w_out.to(attended.dtype)).flatten(2)


def memory(layer: Any, batch: int, grid: TokenGrid, heads: int = 0, rows: int = 0) -> int:
    """A generous bound on the bytes of so many heads, ``rows`` queries at a time; by default all."""
    heads = heads or layer.heads
    rows = rows or grid.query_count
    images = batch if layer.has_content() else 1
    keys = grid.token_count
    key_dim, pos_dim = layer.w_key_pos.shape[1:]
    maps = SCORE_BYTES * (images * heads + 1) * rows * keys
    width = layer.groups * layer.w_val.shape[3] + 2 * key_dim + 2 * pos_dim
    channels = 2 * (layer.in_channels + layer.out_channels)
    tokens = 16 * batch * (keys + grid.query_count) * (heads * width + channels)
    weights = 16 * sum(t.numel() for t in layer.parameters())
    return maps + tokens + weights + 8 * (heads + 4 * pos_dim) * prod(grid.box_shape)


def cost(layer: Any, batch: int, grid: TokenGrid, heads: int = 0) -> int:
    """Multiplications of so many heads, by default all, and of their content scores."""
    _, groups, channels, head_dim = layer.w_val.shape
    queries = grid.query_count
    tokens = grid.token_count
    width = layer.w_out.shape[3]
    each = groups * head_dim * (tokens * channels + queries * tokens + queries * width)
    if layer.has_content():
        key_dim = layer.w_key_pos.shape[1]
        each += key_dim * (queries * tokens + (queries + tokens) * layer.in_channels)
    return batch * (heads or layer.heads) * each


EXECUTION = Execution(
    run, memory, "the paper's equations as they stand; O(T²) time and memory", cost
)
