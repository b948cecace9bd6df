"""Shifted tokens as one batch of matrix products, a column of queries each; channels last, no copy for the heads of a run.

With the tokens of a tile laid out in rows of P tokens of C numbers, what the queries of *one column* see by a run of R heads is
a matrix whose rows are R·C numbers long and P·C numbers apart: a legal matrix, though those of neighbouring columns overlap.
All columns together are a batch, so that a run is one call; and no query past the end of a row is worked out.

Everything but the numbers is worked out once for each layout of input and output: a call only follows the :class:`Step` s.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import Tensor

from construct.attention import queries_per_block
from construct.execution.layout import BLOCK, FEW, Ints, Shifts, View, pieces

ROWS = 64
"""Columns of fewer than about this many queries are slower; of more, no faster."""
FEWEST = 12
"""Columns of fewer queries than this are left to other ways."""
LONG = 768
"""Runs are joined up to this many numbers, R·C."""
OUTPUTS = 0.5
"""Outputs that are not more than weights, times this, are not worth another order of the weights."""
CLEARED = 2**15
"""Up to so many numbers are cleared whole, more only where zeros belong."""

Tile = tuple[slice, slice, slice]
"""Images, queries of the first axis, queries of the last axis."""


@dataclass(frozen=True)
class Step:
    """One tile, as views of the input, the tokens, the weights, the outputs of the tile, and the output.

    Attributes:
        zeros: of the tokens, what is to be cleared.
        source: of the input, what is copied.
        into: of the tokens, where to.
        products: for each run, of the tokens (columns, rows, R·C), and of the weights (columns, R·C, D).
        computed: of the outputs of the tile, (columns, rows, D).
        found: the wanted ones of these, (images, *queries, D); None if they are computed where they belong.
        target: of the output, where they belong.
    """

    zeros: tuple[View, ...]
    source: View
    into: View
    products: tuple[tuple[View, View], ...]
    computed: tuple[int, ...]
    found: View | None
    target: View


@dataclass(frozen=True)
class Program:
    """All tiles, and how many numbers their tokens and outputs take; ``order`` is that of the heads, or None for 0, 1, …"""

    order: list[int] | None
    tokens: int
    outputs: int
    steps: tuple[Step, ...]


def program(
    shifts: Shifts, images: int, channels: int, width: int, strides: Ints, into: Ints, same: bool
) -> Program | None:
    """How to compute on an input and an output with these strides (B, *n, C); None where another way is quicker.

    Args:
        shifts: where the heads look.
        images: B.
        channels: C.
        width: D.
        strides: of the input.
        into: of the output.
        same: whether the output is of the type to compute in.
    """
    longest = run_length(channels)
    asked = (
        images,
        channels,
        width,
        strides,
        into,
        same,
        queries_per_block(BLOCK),
        FEWEST,
        FEW,
        ROWS,
        OUTPUTS,
        longest,
    )
    if asked not in shifts.programs:
        suits = len(shifts.step) > 1 and all(s == 1 for s in shifts.step[:-2]) and longest > 1
        found = None
        if suits and same and _in_rows(shifts, images, channels, width, into):
            found = _program(
                _turned(shifts), images, channels, width, (*strides[:1], *strides[2:0:-1], strides[3]), into, True
            )
        elif suits and shifts.reach[-1] > 0 and channels * min(longest, 1 + shifts.reach[-1]) > FEW:
            if images * prod(shifts.output[:-1]) >= FEWEST:
                found = _program(shifts, images, channels, width, strides, into, False)
        shifts.programs[asked] = found
    return shifts.programs[asked]


def _in_rows(shifts: Shifts, images: int, channels: int, width: int, into: Ints) -> bool:
    """Whether with the two axes exchanged, products come out as they lie in the output: rows of queries then are columns."""
    if len(shifts.step) != 2 or not shifts.reach[0] or channels * min(run_length(channels), 1 + shifts.reach[0]) <= FEW:
        return False
    length = shifts.output[1]
    room = _room(shifts, channels, width) // length
    if OUTPUTS * images * prod(shifts.output) < len(shifts.offsets) * channels:
        return False  # the weights, which need another order, are more than the outputs, which need no copy
    return (
        into[1:] == (length * width, width, 1)
        and length >= (FEWEST if images == 1 else ROWS // 2)
        and room >= min(4, FEWEST)
    )


def _turned(shifts: Shifts) -> Shifts:
    offsets = tuple((right, down) for down, right in shifts.offsets)
    return Shifts(offsets, shifts.step[::-1], shifts.size[::-1], shifts.output[::-1])


def _room(shifts: Shifts, channels: int, width: int) -> int:
    return queries_per_block(BLOCK // (channels * shifts.step[-1] * shifts.step[-2] + width))


def _program(
    shifts: Shifts, images: int, channels: int, width: int, strides: Ints, into: Ints, direct: bool
) -> Program:
    runs = _runs(shifts, run_length(channels))
    order = [head for run in runs for head in run]
    steps, tokens, outputs = [], 0, 0
    for tile in _tiles(shifts, images, channels, width, direct):
        steps.append(_step(shifts, runs, tile, channels, width, strides, into, direct))
        tokens = max(tokens, prod(_lengths(shifts, tile)) * channels)
        outputs = max(outputs, 0 if direct else prod(steps[-1].computed))
    return Program(None if order == sorted(order) else order, tokens, outputs, tuple(steps))


def run_length(channels: int) -> int:
    """How many heads a run may have."""
    return max(1, LONG // channels)


def _runs(shifts: Shifts, longest: int) -> list[Ints]:
    """Heads that see tokens in a row, at most so many, all much alike in number."""
    rows: list[list[int]] = []
    for offset, head in sorted((offset, head) for head, offset in enumerate(shifts.offsets)):
        last = shifts.offsets[rows[-1][-1]] if rows else None
        if last is not None and (*last[:-1], last[-1] + 1) == offset:
            rows[-1].append(head)
        else:
            rows.append([head])
    return [tuple(row[part]) for row in rows for part in pieces(len(row), longest)]


def _tiles(shifts: Shifts, images: int, channels: int, width: int, direct: bool) -> Iterator[Tile]:
    """Of about ``ROWS`` queries a column (``direct``: of all), small enough for a core's cache."""
    room = _room(shifts, channels, width)
    row = prod(shifts.output[1:-1]) if len(shifts.step) > 2 else 1
    tall = max(1, min(ROWS, room))
    if direct:
        tall = shifts.output[0]
    for image in pieces(images, max(1, tall // (row * shifts.output[0]))):
        count = image.stop - image.start
        for rows in pieces(shifts.output[0], max(1, tall // (row * count))):
            wide = max(1, room // (count * row * (rows.stop - rows.start)))
            yield from ((image, rows, columns) for columns in pieces(shifts.output[-1], wide))


def _queries(shifts: Shifts, tile: Tile) -> Ints:
    _, rows, columns = tile
    return (rows.stop - rows.start, *shifts.output[1:-1], columns.stop - columns.start)


def _lengths(shifts: Shifts, tile: Tile) -> Ints:
    """Images, and tokens along each axis, that a tile sees."""
    lengths = [
        s * (o - 1) + reach + 1 for s, o, reach in zip(shifts.step, _queries(shifts, tile), shifts.reach, strict=True)
    ]
    lengths[-2] = shifts.step[-2] * ceil(lengths[-2] / shifts.step[-2])
    return (tile[0].stop - tile[0].start, *lengths)


def _step(
    shifts: Shifts, runs: list[Ints], tile: Tile, channels: int, width: int, strides: Ints, into: Ints, direct: bool
) -> Step:
    queries, lengths = _queries(shifts, tile), _lengths(shifts, tile)
    axes = len(queries)
    tokens = (*(prod(lengths[axis + 1 :]) * channels for axis in range(axes + 1)), 1)
    first = (tile[1].start, *(0,) * (axes - 2), tile[2].start)
    shape, start_from, start_to, zeros = [lengths[0]], tile[0].start * strides[0], 0, []
    for axis in range(axes):
        start = shifts.least[axis] + first[axis] * shifts.step[axis]
        begin = min(lengths[axis + 1], max(0, -start))
        end = max(begin, min(lengths[axis + 1], shifts.size[axis] - start))
        for low, high in ((0, begin), (end, lengths[axis + 1])):
            if low < high:
                part = (*lengths[: axis + 1], high - low, *lengths[axis + 2 :], channels)
                zeros.append((part, tokens, low * tokens[axis + 1]))
        shape.append(end - begin)
        start_from += (start + begin) * strides[axis + 1] if end > begin else 0
        start_to += begin * tokens[axis + 1] if end > begin else 0
    if zeros and prod(lengths) * channels <= CLEARED:
        zeros = [((*lengths, channels), tokens, 0)]
    shape.append(channels)
    # Rows of queries, flat over all axes but the last: so many from image to image etc.
    across = (*lengths[:-2], lengths[-2] // shifts.step[-2])
    between = tuple(prod(across[axis + 1 :]) for axis in range(axes))
    rows = 1 + sum((n - 1) * stride for n, stride in zip((lengths[0], *queries[:-1]), between, strict=True))
    count, done, products = queries[-1], 0, []
    for run in runs:
        ahead = [e - least for e, least in zip(shifts.offsets[run[0]], shifts.least, strict=True)]
        seen = sum(n * stride for n, stride in zip(ahead, tokens[1:], strict=False))
        long = len(run) * channels
        view = ((count, rows, long), (shifts.step[-1] * channels, shifts.step[-2] * tokens[-3], 1), seen)
        products.append((view, ((count, long, width), (0, width, 1), done * width)))
        done += long
    wanted: Ints = (lengths[0], *queries, width)
    target: View = (
        wanted,
        into,
        sum(part.start * n for part, n in zip(tile, (into[0], into[1], into[-2]), strict=True)),
    )
    found = (wanted, (*(n * width for n in between), rows * width, 1), 0)
    if direct:
        computed = (count, rows, width)
        target = (computed, (rows * width, width, 1), tile[0].start * into[0] + tile[2].start * rows * width)
    return Step(
        tuple(zeros),
        (tuple(shape), strides, start_from),
        (tuple(shape), tokens, start_to),
        tuple(products),
        (count, rows, width),
        None if direct else found,
        target,
    )


def by_columns(x: Tensor, w: Tensor, todo: Program, out: Tensor, bias: Tensor | None) -> None:
    """y[o] = b + Σ_h x[s·o + e_h] w_h: x (B, *n, C), w (heads, 1, C, D), out (B, *o, D), bias (1, D)."""
    w = (w if todo.order is None else w[todo.order]).contiguous()  # torch orders a turned tensor, and leaves it turned
    tokens, outputs = w.new_empty(todo.tokens), w.new_empty(todo.outputs)
    from_x, from_w, from_out = x.storage_offset(), w.storage_offset(), out.storage_offset()
    for step in todo.steps:
        for zeros in step.zeros:
            tokens.as_strided(*zeros).zero_()
        shape, strides, offset = step.source
        tokens.as_strided(*step.into).copy_(x.as_strided(shape, strides, from_x + offset))
        shape, strides, offset = step.target
        flat = target = out.as_strided(shape, strides, from_out + offset)
        if step.found is not None:
            flat = outputs.as_strided(step.computed, (prod(step.computed[1:]), step.computed[2], 1))
        first = True
        for seen, (shape, strides, offset) in step.products:
            matrix = w.as_strided(shape, strides, from_w + offset)
            if first:
                torch.bmm(tokens.as_strided(*seen), matrix, out=flat)
            else:
                flat.baddbmm_(tokens.as_strided(*seen), matrix)
            first = False
        if step.found is None:
            if bias is not None:
                flat += bias
            continue
        found = outputs.as_strided(*step.found)
        if bias is None:
            target.copy_(found)
        elif target.dtype == found.dtype:
            torch.add(found, bias.expand(found.shape[-2:]).contiguous(), out=target)
        else:
            target.copy_(found.add_(bias))
