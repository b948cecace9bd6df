"""What all heads see, gathered token by token, and one matrix product for all of them.

The tokens are numbered, and a row of zeros behind them stands for what heads see outside.  The numbers of what the heads see from
each query are worked out once; a call gathers the tokens by them, (queries, heads·C), and multiplies by the W_h below each other.
Any shifts, steps and axes will do.  Every token is copied once a head, a block at a time, but in few steps: this is quick where
tokens are few, and where products outweigh the copies, for outputs have many channels or large products are the quickest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor, constant_pad_nd

from construct.attention import queries_per_block
from construct.execution import products
from construct.execution.layout import Shifts, cut, pieces
from construct.execution.scratch import Workspace

NUMBERED = 2**15
"""Up to so many tokens are gathered by numbers that are kept, 4 bytes each; an image that needs more is left to other ways."""
TOKENS = 2**20
"""Up to so many numbers of the input are copied at a time; an image that has more is left to other ways."""
GATHERED = 2**18
"""Numbers that are gathered at a time: 1 MiB of float32, which stays in a core's cache."""
LEAST = 2**8
"""Queries that are gathered at a time at the least: every product reads all weights."""
FEW = 2**17
"""Calls that gather up to so many numbers are quick, ..."""
WIDE = (256, 512)
"""... and outputs of so many channels, where one product makes them all, or several."""

HEAVY = (2**20, 32)
"""So many numbers are gathered at a time for large products, of tokens of so many channels at the least."""


@dataclass(frozen=True)
class Gathering:
    """What to gather.

    Attributes:
        images: at a time, at most.
        tokens: of an image.
        numbers: of the tokens that the heads see from the queries of these images, int32 (images·queries, heads); that of the
            zeros is images·tokens.
        outside: whether zeros are seen.
        rows: queries of a product, at most.
    """

    images: int
    tokens: int
    numbers: np.ndarray
    outside: bool
    rows: int

    def of(self, images: int, device: torch.device) -> Tensor:
        """The numbers for so many images."""
        numbers = torch.from_numpy(self.numbers)
        queries = len(numbers) // self.images
        return cut(numbers, slice(0, images * queries)).to(device)


def wide(shifts: Shifts, images: int, channels: int, width: int) -> Gathering | None:
    """What to gather, if this way is quick because of wide outputs.

    Args:
        shifts: where the heads look.
        images: B.
        channels: C.
        width: D.
    """
    return _possible(shifts, images, channels) if _is_wide(shifts, images, width) else None


def _is_wide(shifts: Shifts, images: int, width: int) -> bool:
    return width >= WIDE[images * prod(shifts.output) > LEAST]


def few(shifts: Shifts, images: int, channels: int) -> Gathering | None:
    """What to gather, if this way is quick because of few tokens; arguments as for :func:`wide`."""
    gathered = images * prod(shifts.output) * len(shifts.offsets) * channels
    return _possible(shifts, images, channels) if gathered <= FEW else None


def heavy(shifts: Shifts, images: int, channels: int, width: int) -> Gathering | None:
    """What to gather, if this way is quick because of large products, of oneDNN; arguments as for :func:`wide`."""
    heads, (most, least) = len(shifts.offsets), HEAVY
    if channels < least or not products.heavy(images * prod(shifts.output), heads * channels, width):
        return None
    return _possible(shifts, images, channels, most)


def for_weights(shifts: Shifts, images: int, channels: int, width: int) -> Gathering | None:
    """What to gather for :func:`weights`, if this way is quick: also if all is gathered at once, or if queries skip tokens."""
    gathered = images * prod(shifts.output) * len(shifts.offsets) * channels
    quick = _is_wide(shifts, images, width) or gathered <= max(FEW, GATHERED) or max(shifts.step) > 1
    return _possible(shifts, images, channels) if quick else None


def _possible(shifts: Shifts, images: int, channels: int, gathered: int = GATHERED) -> Gathering | None:
    heads, queries, tokens = len(shifts.offsets), prod(shifts.output), prod(shifts.size)
    if heads * max(shifts.step) < 2 or not images * queries or queries * heads > NUMBERED or tokens * channels > TOKENS:
        return None
    most = min(NUMBERED // (queries * heads), TOKENS // max(1, tokens * channels))
    rows = queries_per_block(max(LEAST, gathered // (heads * max(1, channels))))
    return _gathering(shifts, max(1, min(images, most)), rows)


@lru_cache(maxsize=256)
def _gathering(shifts: Shifts, images: int, rows: int) -> Gathering:
    axes, tokens, heads = len(shifts.step), prod(shifts.size), len(shifts.offsets)
    number, within = np.zeros((), np.int64), np.array(True)
    for axis, (step, size, output) in enumerate(zip(shifts.step, shifts.size, shifts.output, strict=True)):
        seen = step * np.arange(output)[:, None] + np.array([offset[axis] for offset in shifts.offsets])  # (o, heads)
        seen = seen.reshape(*(1,) * axis, output, *(1,) * (axes - 1 - axis), heads)
        number, within = number * size + seen, within & (seen >= 0) & (seen < size)
    first = tokens * np.arange(images).reshape(-1, *(1,) * (axes + 1))
    numbers = np.where(within, number + first, images * tokens).reshape(-1, heads)
    return Gathering(images, tokens, numbers.astype(np.int32), not bool(within.all()), rows)


def memory(shifts: Shifts, images: int, todo: Gathering, channels: int, width: int) -> int:
    """Numbers that :func:`by_gathering` and :func:`weights` hold besides their arguments."""
    heads, queries = todo.numbers.shape[1], min(images, todo.images) * prod(shifts.output)
    rows = min(todo.rows, queries)
    return (todo.images * todo.tokens + 1 + rows * heads) * channels + (queries + rows) * width


def at_once(todo: Gathering, images: int, matrix: Tensor) -> Callable[[Tensor, Tensor | None], Tensor] | None:
    """As :func:`by_gathering` for tokens that lie in order, in as few steps as there can be; None if a product is not enough.

    Returns:
        From x (B, *n, C), contiguous, and bias (1, D) to the outputs one below the other, (B·queries, D).
    """
    if images != todo.images or len(todo.numbers) > todo.rows:
        return None
    channels = len(matrix) // todo.numbers.shape[1]
    numbers, zeros = todo.of(images, matrix.device), matrix.new_zeros(1, channels)

    def way(x: Tensor, bias: Tensor | None) -> Tensor:
        tokens = x.view(-1, channels)
        if todo.outside:
            tokens = torch.cat((tokens, zeros))
        with Workspace(matrix, numbers.numel(), channels) as beside:
            return products.times(_gathered(tokens, numbers, beside), matrix, bias)

    return way


def by_gathering(x: Tensor, matrix: Tensor, todo: Gathering, out: Tensor, bias: Tensor | None) -> None:
    """y[o] = b + Σ_h x[s·o + e_h] w_h.

    Args:
        x: (B, *n, C), any strides, any dtype.
        matrix: the w_h below each other, (heads·C, D), in the dtype to compute in.
        todo: from :func:`wide`, :func:`few` or :func:`heavy`.
        out: (B, *o, D), any strides, any dtype.
        bias: (1, D).
    """
    with Workspace(matrix, min(todo.rows, len(todo.numbers)) * todo.numbers.shape[1], x.shape[-1]) as beside:
        for part in pieces(len(x), todo.images):
            _some_images(cut(x, part), matrix, todo, beside, cut(out, part), bias)


def _some_images(x: Tensor, matrix: Tensor, todo: Gathering, beside: Tensor, out: Tensor, bias: Tensor | None) -> None:
    """At most so many as are gathered at a time; what this takes beside its arguments is gone when the next begin."""
    numbers, tokens = todo.of(len(x), x.device), _below_each_other(x, todo, matrix)
    there = out.is_contiguous() and out.dtype == matrix.dtype
    found = out.view(-1, matrix.shape[1]) if there else matrix.new_empty(len(numbers), matrix.shape[1])
    for rows in pieces(len(numbers), todo.rows):
        seen = _gathered(tokens, cut(numbers, rows), beside)
        products.times_into(seen, matrix, bias, cut(found, rows))
    if not there:
        out.copy_(found.view(out.shape))


def weights(x: Tensor, y: Tensor, todo: Gathering, dtype: torch.dtype) -> Tensor:
    """w_h = Σ_o x[s·o + e_h]ᵀ y[o].

    Args:
        x: (B, *n, C).
        y: (B, *o, D).
        todo: from :func:`for_weights`.
        dtype: to compute in.

    Returns:
        (heads, C, D).
    """
    heads, channels, width = todo.numbers.shape[1], x.shape[-1], y.shape[-1]
    if len(x) == todo.images and len(todo.numbers) <= min(todo.rows, products.SHORT):
        like = x.new_empty(0, dtype=dtype)
        numbers = todo.of(len(x), x.device)
        with Workspace(like, numbers.numel(), channels) as beside:
            seen = _gathered(_below_each_other(x, todo, like), numbers, beside)
            return products.turned(seen, y.to(dtype).reshape(-1, width)).view(heads, channels, width)
    total = x.new_empty(heads * channels, width, dtype=dtype)
    first = True
    with Workspace(total, min(todo.rows, len(todo.numbers)) * heads, channels) as beside:
        for part in pieces(len(x), todo.images):
            numbers, tokens = todo.of(part.stop - part.start, x.device), _below_each_other(cut(x, part), todo, total)
            pulled = cut(y, part).to(dtype).reshape(-1, width)
            for rows in pieces(len(numbers), todo.rows):
                seen = _gathered(tokens, cut(numbers, rows), beside)
                total.addmm_(seen.mT, cut(pulled, rows), beta=0 if first else 1)
                first = False
    return total.view(heads, channels, width)


def _gathered(tokens: Tensor, numbers: Tensor, beside: Tensor) -> Tensor:
    """The tokens (…, C) of these numbers (queries, heads), beside each other in that buffer: (queries, heads·C)."""
    chosen = cut(beside, slice(0, numbers.numel()))
    torch.index_select(tokens, 0, numbers.view(-1), out=chosen)
    return chosen.view(len(numbers), -1)


def _below_each_other(x: Tensor, todo: Gathering, like: Tensor) -> Tensor:
    """The tokens of some images (B, *n, C), and zeros behind them if they are seen: (…, C)."""
    channels, count = x.shape[-1], len(x) * todo.tokens
    if x.is_contiguous() and x.dtype == like.dtype:
        flat = x.view(-1, channels)
        return constant_pad_nd(flat, (0, 0, 0, todo.images * todo.tokens + 1 - count)) if todo.outside else flat
    tokens = like.new_empty(todo.images * todo.tokens + 1, channels)
    tokens[:count].view(x.shape).copy_(x)
    tokens[-1].zero_()
    return tokens
