"""Shifted tokens of few channels: what the heads of one row see side by side, and all rows of heads in one matrix product.

For each distance along the last axis that heads look, the tokens are laid out once, channels as rows.  What the queries of a row
see by heads at one distance down is then a matrix with these rows, and that of the next distance down lies right below it: all
heads together see one matrix.  The tokens are laid out as often as there are distances along the last axis, not once a head.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from construct.attention import queries_per_block
from construct.execution.layout import BLOCK, Ints, Shifts, pieces

NARROW = 48
"""Up to so many numbers of the channels at all distances along the last axis."""
SHORTEST = 24
"""Rows of fewer queries are left to other ways."""


@dataclass(frozen=True)
class Stack:
    """Where the heads look, as a rectangle.

    Attributes:
        order: the heads by their distance down, and by that along.
        down: the least distance down, and how many there are.
        along: the distances along.
        rows: queries of the first axis in a block, at most.
    """

    order: list[int]
    down: tuple[int, int]
    along: Ints
    rows: int


def stack(shifts: Shifts, channels: int, width: int) -> Stack | None:
    """The heads as a rectangle, if they are one and this way is quick."""
    if len(shifts.step) != 2 or shifts.output[1] < SHORTEST:
        return None
    down, along = (sorted({offset[axis] for offset in shifts.offsets}) for axis in (0, 1))
    if channels * len(along) > NARROW or len(down) * len(along) != len(shifts.offsets) or len(shifts.offsets) < 2:
        return None
    if down != list(range(down[0], down[-1] + 1)) or len(set(shifts.offsets)) < len(shifts.offsets):
        return None
    order = sorted(range(len(shifts.offsets)), key=lambda head: shifts.offsets[head])
    row = shifts.output[1] * (shifts.step[0] * channels * len(along) + width)
    return Stack(order, (down[0], len(down)), tuple(along), queries_per_block(max(1, BLOCK // row)))


def memory(shifts: Shifts, todo: Stack, channels: int, width: int) -> int:
    """Numbers that :func:`in_one` holds."""
    rows = min(todo.rows, shifts.output[0])
    seen = shifts.step[0] * (rows - 1) + todo.down[1]
    return shifts.output[1] * (seen * channels * len(todo.along) + rows * width) + width * channels * len(todo.order)


def blocks(images: int, rows: int, most: int) -> Iterator[tuple[int, slice]]:
    """Images and rows, one after the other."""
    for image in range(images):
        yield from ((image, part) for part in pieces(rows, most))


def fill(buffer: Tensor, x: Tensor, shifts: Shifts, todo: Stack, first: int) -> None:
    """Lay out the tokens of x (*n, C) from row ``first`` on: buffer (rows, along, C, queries)."""
    lines, _, _, length = buffer.shape
    above = min(lines, max(0, -first))
    below = max(above, min(lines, shifts.size[0] - first))
    if above:
        buffer[:above].zero_()
    if below < lines:
        buffer[below:].zero_()
    if above == below:
        return
    inside, step = buffer[above:below], shifts.step[1]
    for number, start in enumerate(todo.along):
        begin = min(length, max(0, -(start // step)))
        end = max(begin, min(length, -((start - shifts.size[1]) // step)))
        place = inside[:, number]
        if begin:
            place[..., :begin].zero_()
        if end < length:
            place[..., end:].zero_()
        if begin < end:
            source = x[first + above : first + below, start + begin * step : start + (end - 1) * step + 1 : step]
            (place[..., begin:end] if end - begin < length else place).copy_(source.mT)


def in_one(x: Tensor, w: Tensor, shifts: Shifts, todo: Stack, out: Tensor, bias: Tensor | None) -> None:
    """y[o] = b + Σ_h x[s·o + e_h] w_h: x (B, *n, C), w (heads, 1, C, D), out (B, *o, D), bias (1, D)."""
    channels, width = w.shape[2:]
    matrix = w[todo.order].reshape(-1, width)  # (down·along·C, D)
    slots, length, step = len(todo.along) * channels, shifts.output[1], shifts.step[0]
    most = min(todo.rows, shifts.output[0])
    tokens = w.new_empty((step * (most - 1) + todo.down[1]) * slots * length)
    outputs = w.new_empty(most * length * width)
    last = out.stride(3) == 1 and width > 1
    for image, rows in blocks(len(x), shifts.output[0], todo.rows):
        count = rows.stop - rows.start
        lines = step * (count - 1) + todo.down[1]
        buffer = tokens[: lines * slots * length].view(lines, len(todo.along), channels, length)
        fill(buffer, x[image], shifts, todo, step * rows.start + todo.down[0])
        seen = buffer.as_strided((count, len(matrix), length), (step * slots * length, length, 1), 0)
        target = out[image, rows]  # (rows, queries, D)
        if last:
            flat = outputs[: count * length * width].view(count, length, width)
            direct = target.is_contiguous() and target.dtype == w.dtype
            found = torch.bmm(seen.mT, matrix.expand(count, -1, -1), out=target if direct else flat)
            if direct:
                if bias is not None:
                    target += bias
                continue
        else:
            flat = outputs[: count * length * width].view(count, width, length)
            found = torch.bmm(matrix.mT.expand(count, -1, -1), seen, out=flat).mT
        if bias is not None and target.dtype == found.dtype:
            torch.add(found, bias, out=target)
        else:
            target.copy_(found if bias is None else found.add_(bias))
