"""One channel a group: every head multiplies what it sees by one number a channel, y[o] = b + Σ_h x[s·o + e_h]·w_h.

There is no matrix to multiply by; what costs time is reading the tokens once a head.  So a block of queries is as large as a
core's cache holds, and every head adds its part to the whole block, channels last.  Many channels are a long enough inner
loop: the input is then read where it lies, and a head only adds to the queries that see a token.  Few channels are joined,
as many neighbouring queries as make a loop long enough, over tokens that are laid out with the zeros around.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from construct.attention import queries_per_block
from construct.execution.layout import Ints, Shifts, View, Way, blocks, cut
from construct.execution.scratch import Scratch

BLOCK = 2**18
"""Outputs in a block, in numbers: with the tokens, about what a core's second cache holds."""
LONG = 2**11
"""Channels are repeated up to this many numbers, if they are fewer than half of it."""
MANY = 2**4
"""From so many channels on, they are a long enough loop by themselves."""


@dataclass(frozen=True)
class Step:
    """One block.

    Attributes:
        images, rows: its queries; rows along the first axis.
        beside: how many neighbouring queries share an inner loop.
        whole: whether the first head sees a token for every query.
        taps: for each head that sees any, its number, the queries, and the tokens that they see, as views.
    """

    images: slice
    rows: slice
    beside: int
    whole: bool
    taps: tuple[tuple[int, View, View], ...]


@lru_cache(maxsize=1024)
def joined(queries: int, step: int, channels: int) -> int:
    """How many neighbouring queries share an inner loop: they see neighbouring tokens, and divide a row evenly.

    Args:
        queries: of a block, along the last axis.
        step: from one query to the next.
        channels: C.
    """
    if step > 1 or channels >= MANY:
        return 1
    most = max(1, min(queries, LONG // channels))
    return next(n for n in range(most, 0, -1) if queries % n == 0)


def room(channels: int) -> int:
    """Queries of a block."""
    return max(1, BLOCK // channels)


def in_place(shifts: Shifts, channels: int, last: bool, same: bool) -> bool:
    """Whether the input is read where it lies.

    Args:
        shifts: where the heads look.
        channels: C.
        last: whether channels are last in memory.
        same: whether the input is of the type to compute in.
    """
    return last and same and (channels >= MANY or max(shifts.step) > 1)


def depthwise(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None) -> None:
    """y[o] = b + Σ_h x[s·o + e_h]·w_h, into ``out``.

    Args:
        x: (B, *n, C), any strides, any dtype.
        w: (heads, C), in the dtype to compute in.
        shifts: where the heads look.
        out: (B, *o, C), any strides, any dtype.
        bias: (C,).
    """
    way_by_channel(x, w, shifts, out)(x, out, bias)


def way_by_channel(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor) -> Way:
    """How to compute :func:`depthwise`, for inputs and outputs of the shapes, strides and types of these: (x, out, bias)."""
    channels, by_head = w.shape[1], w.unbind()
    there = in_place(shifts, channels, x.stride(-1) == 1, x.dtype == w.dtype)
    ends = out.dtype == w.dtype and out.stride(-1) == 1 and out.stride(-2) == channels
    places = x.stride() if there else None, out.stride() if ends else None
    steps = _steps(shifts, len(x), channels, queries_per_block(room(channels)), *places)

    def way(x: Tensor, out: Tensor, bias: Tensor | None) -> None:
        scratch = Scratch(w)
        tiles = {1: (by_head, bias)}
        for step in steps:
            target = cut(cut(out, step.images), step.rows, 1)
            found = target if ends else scratch("outputs", *target.shape)
            images = cut(x, step.images)
            tokens = images if there else _laid_out(images, shifts, step.rows, scratch)
            if step.beside not in tiles:
                again = w.repeat(1, step.beside).unbind(), None if bias is None else bias.repeat(step.beside)
                tiles[step.beside] = again
            factors, start = tiles[step.beside]
            if not step.whole:
                found.zero_() if bias is None else found.copy_(bias.expand_as(found))
            at, into, begun = tokens.storage_offset(), found.storage_offset(), not step.whole
            for head, (shape, strides, offset), (_, pace, ahead) in step.taps:
                part, seen = found.as_strided(shape, strides, into + offset), tokens.as_strided(shape, pace, at + ahead)
                if begun:
                    part.addcmul_(seen, factors[head])
                elif start is None:
                    torch.mul(seen, factors[head], out=part)
                else:
                    torch.addcmul(start, seen, factors[head], out=part)
                begun = True
            if not ends:
                target.copy_(found)

    return way


def memory(shifts: Shifts, images: int, channels: int, cast: bool, last: bool) -> int:
    """Numbers that :func:`depthwise` holds besides its arguments.

    Args:
        shifts: where the heads look.
        images: B.
        channels: C.
        cast: whether input and output are of another type than that to compute in.
        last: whether channels are last in memory, in input and output.
    """
    if in_place(shifts, channels, last, not cast):
        return 0
    most = 0
    for part, rows in blocks(shifts, images, room(channels)):
        queries = (rows.stop - rows.start, *shifts.output[1:])
        tile = (len(shifts.offsets) + 1) * channels * joined(queries[-1], shifts.step[-1], channels)
        most = max(most, tile + (part.stop - part.start) * (prod(_lengths(shifts, rows)) + prod(queries)) * channels)
    return most


def _lengths(shifts: Shifts, rows: slice) -> Ints:
    """Tokens along each axis that a block sees."""
    queries = (rows.stop - rows.start, *shifts.output[1:])
    return tuple(s * (o - 1) + reach + 1 for s, o, reach in zip(shifts.step, queries, shifts.reach, strict=True))


def _first(shifts: Shifts, rows: slice) -> Ints:
    """Where the first token lies that a block sees, zeros around the input included."""
    ahead = (rows.start, *(0 for _ in shifts.step[1:]))
    return tuple(least + s * n for least, s, n in zip(shifts.least, shifts.step, ahead, strict=True))


def _laid_out(x: Tensor, shifts: Shifts, rows: slice, scratch: Scratch) -> Tensor:
    """The tokens that a block sees, channels last and with zeros around the input: (images, *lengths, C)."""
    into, source = [], []
    lengths = _lengths(shifts, rows)
    for at, length, n in zip(_first(shifts, rows), lengths, shifts.size, strict=True):
        begin = min(length, max(0, -at))
        end = max(begin, min(length, n - at))
        into.append(slice(begin, end))
        source.append(slice(at + begin, at + end) if begin < end else slice(0, 0))
    tokens = scratch.zeroed(tuple((part.start, part.stop) for part in into), len(x), *lengths, x.shape[-1])
    tokens[(slice(None), *into)] = x[(slice(None), *source)]
    return tokens


@lru_cache(maxsize=1024)
def _steps(
    shifts: Shifts, images: int, channels: int, most: int, strides: Ints | None, into: Ints | None
) -> tuple[Step, ...]:
    """The blocks of a call.

    Args:
        shifts: where the heads look.
        images: B.
        channels: C.
        most: queries of a block.
        strides: of the input, where it is read as it lies; None where the tokens of a block are laid out.
        into: of the output, where it is written to; None for a buffer of the block's outputs.
    """
    steps = []
    for part, rows in blocks(shifts, images, most):
        count, queries = part.stop - part.start, (rows.stop - rows.start, *shifts.output[1:])
        lengths = shifts.size if strides else _lengths(shifts, rows)
        first = (0,) * len(queries) if strides else _first(shifts, rows)
        beside = 1 if strides else joined(queries[-1], shifts.step[-1], channels)
        tokens, found = strides or _packed(lengths, channels), into or _packed(queries, channels)
        taps = []
        for head, offset in enumerate(shifts.offsets):
            box = _box(offset, shifts.step, rows, queries, first, lengths)
            if box is not None:
                taps.append((box, head, offset))
        taps.sort(key=lambda tap: [high - low for low, high in tap[0]] != list(queries))
        whole = bool(taps) and [high - low for low, high in taps[0][0]] == list(queries)
        views = []
        for box, head, offset in taps:
            shape = (count, *(high - low for low, high in box))
            ahead = [s * low + e - at for (low, _), s, e, at in zip(box, shifts.step, offset, first, strict=True)]
            behind = [low - (rows.start if axis == 0 else 0) for axis, (low, _) in enumerate(box)]
            seen = (tokens[0], *(s * n for s, n in zip(shifts.step, tokens[1:], strict=False)))
            here = _view(
                shape, found[:-1], sum(n * by for n, by in zip(behind, found[1:], strict=False)), channels, beside
            )
            there = _view(shape, seen, sum(n * by for n, by in zip(ahead, tokens[1:], strict=False)), channels, beside)
            views.append((head, here, there))
        steps.append(Step(part, rows, beside, whole, tuple(views)))
    return tuple(steps)


def _packed(lengths: Ints, channels: int) -> Ints:
    """The strides of (images, *lengths, C) without gaps."""
    return (*(prod(lengths[axis:]) * channels for axis in range(len(lengths) + 1)), 1)


def _view(shape: Ints, strides: Ints, offset: int, channels: int, beside: int) -> View:
    """(images, *queries) of C numbers each, so many neighbouring queries joined."""
    return (
        (*shape[:-1], shape[-1] // beside, beside * channels),
        (*strides[:-1], strides[-1] * beside, 1),
        offset,
    )


def _box(
    offset: Ints, step: Ints, rows: slice, queries: Ints, first: Ints, lengths: Ints
) -> list[tuple[int, int]] | None:
    """Which queries of a block see a token, from and to on each axis; None if none does.

    Args:
        offset: where the head looks.
        step: from one query to the next.
        rows: queries of the block along the first axis.
        queries: of the block.
        first: where the first token lies.
        lengths: tokens along each axis.
    """
    box = []
    for axis, (e, s, count, at, n) in enumerate(zip(offset, step, queries, first, lengths, strict=True)):
        low = rows.start if axis == 0 else 0
        least, most = max(low, -((e - at) // s)), min(low + count, (n - 1 + at - e) // s + 1)  # at ≤ s·o + e < at + n
        if least >= most:
            return None
        box.append((least, most))
    return box
