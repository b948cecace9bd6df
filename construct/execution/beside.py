"""W's gradient where heads look in a rectangle: tokens laid beside each other once, one product for each distance down.

Every query of a block has a row of its own, in which lie the tokens that it sees along the last axis.  The heads at one
distance down see whole such rows, a fixed number of rows further on; so the tokens are copied as often as there are distances
along, not once a head, and the gradients of the outputs are read as they lie.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import torch
from torch import Tensor

from construct.attention import queries_per_block
from construct.execution.layout import BLOCK, Ints, Shifts, pieces
from construct.execution.scratch import Scratch


@dataclass(frozen=True)
class Rectangle:
    """Where the heads look.

    Attributes:
        order: the heads, by their distance down, and by that along.
        down: the distances down, increasing.
        along: the distances along, increasing, one after the other.
        rows: queries of the first axis in a block, at most.
    """

    order: tuple[int, ...]
    down: Ints
    along: Ints
    rows: int


def rectangle(shifts: Shifts, channels: int, width: int) -> Rectangle | None:
    """The heads as a rectangle, if they are one."""
    return _rectangle(shifts, channels, width, queries_per_block(BLOCK))


@lru_cache(maxsize=1024)
def _rectangle(shifts: Shifts, channels: int, width: int, most: int) -> Rectangle | None:
    if len(shifts.step) != 2:
        return None
    down, along = (tuple(sorted({offset[axis] for offset in shifts.offsets})) for axis in (0, 1))
    if len(down) * len(along) != len(shifts.offsets) or len(set(shifts.offsets)) < len(shifts.offsets):
        return None
    if along != tuple(range(along[0], along[-1] + 1)):
        return None
    order = tuple(sorted(range(len(shifts.offsets)), key=lambda head: shifts.offsets[head]))
    row = shifts.step[0] * channels * (shifts.output[1] * len(along) + _length(shifts, along))
    return Rectangle(order, down, along, min(most, max(1, BLOCK // (row + shifts.output[1] * width))))


def _length(shifts: Shifts, along: Ints) -> int:
    """Tokens of a line that queries see."""
    return shifts.step[1] * (shifts.output[1] - 1) + len(along)


def weights(x: Tensor, y: Tensor, shifts: Shifts, todo: Rectangle, dtype: torch.dtype) -> Tensor:
    """w_h = Σ_o x[s·o + e_h]ᵀ y[o].

    Args:
        x: (B, *n, C).
        y: (B, *o, D).
        shifts: where the heads look.
        todo: from :func:`rectangle`.
        dtype: to compute in.

    Returns:
        (heads, C, D).
    """
    channels, width = x.shape[-1], y.shape[-1]
    total = x.new_empty(len(todo.down), len(todo.along) * channels, width, dtype=dtype)
    scratch, step, queries, first = Scratch(total), shifts.step[0], shifts.output[1], True
    for image, given in zip(x, y, strict=True):
        for part in pieces(shifts.output[0], todo.rows):
            count = part.stop - part.start
            lines = ceil((step * (count - 1) + todo.down[-1] - todo.down[0] + 1) / step)
            seen = _beside(image, shifts, todo, step * part.start + todo.down[0], lines, scratch)
            pulled = given[part].to(dtype).reshape(-1, width)
            for number, down in enumerate(todo.down):
                plane, above = (down - todo.down[0]) % step, (down - todo.down[0]) // step
                rows = seen[plane, above * queries : (above + count) * queries]
                total[number].addmm_(rows.mT, pulled, beta=0 if first else 1)  # 0: whatever was there is not read
            first = False
    flat = total.view(-1, channels, width)
    if todo.order == tuple(range(len(flat))):
        return flat
    found = torch.empty_like(flat)
    found[list(todo.order)] = flat
    return found


def _beside(x: Tensor, shifts: Shifts, todo: Rectangle, first: int, lines: int, scratch: Scratch) -> Tensor:
    """The lines of x (*n, C) from ``first`` on: (step, lines·queries, along·C), zeros where there is no input."""
    step, channels, queries = shifts.step[0], x.shape[-1], shifts.output[1]
    length, start = _length(shifts, todo.along), todo.along[0]
    above = min(lines * step, max(0, -first))
    below = max(above, min(lines * step, shifts.size[0] - first))
    before = min(length, max(0, -start))
    behind = max(before, min(length, shifts.size[1] - start))
    tokens = scratch.zeroed((above, below, before, behind), lines * step, length, channels)
    if above < below and before < behind:
        tokens[above:below, before:behind] = x[first + above : first + below, start + before : start + behind]
    seen = scratch("beside", step, lines, queries, len(todo.along) * channels)
    line, pace = length * channels, shifts.step[1] * channels
    seen.copy_(tokens.as_strided(seen.shape, (line, step * line, pace, 1), tokens.storage_offset()))
    return seen.view(step, lines * queries, -1)
