"""Where one-hot heads look, and the windows of tokens that blocks of outputs see: zeros where they
lie outside of the input.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from operator import add, mul

from torch import Tensor

from construct.execution.blocks import pieces
from construct.execution.shifts.workspace import workspace

Ints = tuple[int, ...]
Box = tuple[slice, ...]


@dataclass(frozen=True)
class Shifts:
    """Where one-hot heads look: output o sees input position s·o + e_h, or zeros where that lies
    outside.

    Attributes:
        offsets: e_h for each head, one number per axis.
        step: s, one number per axis.
        size: spatial size of the input, *n.
        output: spatial size of the output, *o.
    """

    offsets: tuple[Ints, ...]
    step: Ints
    size: Ints
    output: Ints

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.offsets, self.step, self.size, self.output))

    @cached_property
    def numbers(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The same as arguments of an operator: the offsets of all heads one after the other, step,
        size and output.
        """
        return sum(self.offsets, ()), self.step, self.size, self.output

    @cached_property
    def pointwise(self) -> bool:
        """Whether there is one head, and every output sees the input at its own position."""
        return (
            self.offsets == ((0,) * len(self.step),)
            and set(self.step) == {1}
            and self.output == self.size
        )

    @cached_property
    def least(self) -> Ints:
        """The least offset on each axis."""
        return tuple(map(min, zip(*self.offsets, strict=True)))

    @cached_property
    def reach(self) -> Ints:
        """The greatest offset minus the least on each axis."""
        return tuple(max(axis) - min(axis) for axis in zip(*self.offsets, strict=True))

    @cached_property
    def flipped(self) -> "Shifts":
        """The same pairs from the input's side, heads in reverse: output o is put at s·o, with zeros
        between; it sees s·o + e_h, so t is seen by t − e_h.
        """
        offsets = tuple(tuple(-e for e in offset) for offset in reversed(self.offsets))
        axes = zip(self.step, self.output, strict=True)
        stuffed = tuple(step * (n - 1) + 1 for step, n in axes)
        return Shifts(offsets, (1,) * len(self.step), stuffed, self.size)

    @cached_property
    def rectangle(self) -> tuple[Ints, Ints] | None:
        """Heads along each axis and their spacing, if they form a rectangle in row-major order;
        else None.
        """
        axes = [sorted(set(axis)) for axis in zip(*self.offsets, strict=True)]
        spacing = tuple((axis[-1] - axis[0]) // max(1, len(axis) - 1) or 1 for axis in axes)
        even = (
            range(axis[0], axis[-1] + 1, apart) for axis, apart in zip(axes, spacing, strict=True)
        )
        return (tuple(map(len, axes)), spacing) if self.offsets == tuple(product(*even)) else None

    @cached_property
    def adjacent(self) -> int:
        """How many consecutive heads look at adjacent tokens of a row."""
        return (
            self.rectangle[0][-1]
            if self.rectangle is not None and self.rectangle[1][-1] == 1
            else 1
        )


@dataclass(frozen=True)
class Block:
    """Rows of outputs, along the first axis, and the window of tokens that they see.

    Attributes:
        start: the input position where the window begins, maybe outside of the input.
        size: the window's length along each axis.
        inside: the part of the window that is input, not zeros.
        source: where in the input that lies.
        parts: the outputs, in boxes that are multiplied one after the other.
    """

    start: Ints
    size: Ints
    inside: Box
    source: Box
    parts: tuple[Box, ...]

    def lies_in(self, images: Tensor, at: int) -> bool:
        """Whether the window is a part of the images, in the layout that is wanted."""
        whole = all(
            part.stop - part.start == n for part, n in zip(self.inside, self.size, strict=True)
        )
        return whole and is_last(images) == (at == 1)

    def zeros(self, images: Tensor, at: int) -> Tensor:
        """A window (B, C, *size) of zeros, with channels last in memory if tokens are rows
        (``at`` 1), else first.
        """
        batch, channels = images.shape[:2]
        if at == 1:
            return workspace("window", images, batch, *self.size, channels).zero_().movedim(-1, 1)
        return workspace("window", images, batch, channels, *self.size).zero_()

    def window(self, images: Tensor, at: int) -> Tensor:
        """The window of images (B, C, *n): (B, C, *size), a copy or a part of them."""
        source = images[(slice(None), slice(None), *self.source)]
        if self.lies_in(images, at):
            return source
        window = self.zeros(images, at)
        window[(slice(None), slice(None), *self.inside)] = source
        return window

    def head_views(self, window: Tensor, part: Box, shifts: Shifts) -> Iterator[Tensor]:
        """For each head, the tokens that the outputs of a part see, a strided view:
        (B, g, C, *size) → (B, g, C, *part).
        """
        starts = self._first(part, shifts)
        steps = shifts.step
        spans = [
            step * (queries.stop - queries.start - 1) + 1
            for step, queries in zip(steps, part, strict=True)
        ]
        for offset in shifts.offsets:
            axes = zip(starts, offset, spans, steps, strict=True)
            yield window[
                (..., *(slice(start + e, start + e + span, step) for start, e, span, step in axes))
            ]

    def rectangle_view(self, window: Tensor, part: Box, shifts: Shifts, rows: bool) -> Tensor:
        """The tokens of a rectangle of heads: (B, g, C, *size) → (B, *part, *heads, C) if ``rows``,
        else (B, g, *heads, C, *part).

        ``rows`` requires a single group.
        """
        assert shifts.rectangle is not None
        counts, spacing = shifts.rectangle
        box = tuple(queries.stop - queries.start for queries in part)
        image, group, channel, *along = window.stride()
        first = map(add, self._first(part, shifts), shifts.offsets[0])
        place = window.storage_offset() + sum(map(mul, first, along))
        queries = tuple(map(mul, shifts.step, along))
        heads = tuple(map(mul, spacing, along))
        batch, groups, channels = window.shape[:3]
        if rows:
            return window.as_strided(
                (batch, *box, *counts, channels), (image, *queries, *heads, channel), place
            )
        shape = (batch, groups, *counts, channels, *box)
        return window.as_strided(shape, (image, group, *heads, channel, *queries), place)

    def _first(self, part: Box, shifts: Shifts) -> Ints:
        """The place in the window that the first output of a part sees at offset 0."""
        axes = zip(shifts.step, part, self.start, strict=True)
        return tuple(step * queries.start - begin for step, queries, begin in axes)


@lru_cache(maxsize=256)
def blocks(shifts: Shifts, queries: int) -> tuple[Block, ...]:
    """An image in blocks of at least as many rows of outputs as heads reach, and in parts of some
    ``queries``.
    """
    row = prod(shifts.output[1:])
    planned = []
    for rows in pieces(shifts.output[0], max(shifts.reach[0] // shifts.step[0], queries // row, 1)):
        counts = (rows.stop - rows.start, *shifts.output[1:])
        start = (shifts.step[0] * rows.start + shifts.least[0], *shifts.least[1:])
        size = []
        inside = []
        source = []
        for begin, count, step, reach, n in zip(
            start, counts, shifts.step, shifts.reach, shifts.size, strict=True
        ):
            size.append(step * (count - 1) + reach + 1)
            low = min(max(0, -begin), size[-1])
            high = max(low, min(size[-1], n - begin))
            inside.append(slice(low, high))
            source.append(slice(begin + low, begin + high) if high > low else slice(0, 0))
        planned.append(
            Block(
                start,
                tuple(size),
                tuple(inside),
                tuple(source),
                tuple(_parts(shifts, rows, queries)),
            )
        )
    return tuple(planned)


def _parts(shifts: Shifts, rows: slice, queries: int) -> Iterator[Box]:
    """Some rows at a time; or of one row at a time, ranges of the second axis."""
    others = tuple(slice(0, n) for n in shifts.output[1:])
    row = prod(shifts.output[1:])
    if row <= queries or not others:
        for piece in pieces(rows.stop - rows.start, max(1, queries // row)):
            yield slice(rows.start + piece.start, rows.start + piece.stop), *others
        return
    for number in range(rows.start, rows.stop):
        for columns in pieces(shifts.output[1], max(1, queries // prod(shifts.output[2:]))):
            yield slice(number, number + 1), columns, *others[1:]


def is_last(images: Tensor) -> bool:
    """Whether channels are last in memory."""
    return images.stride(1) == 1 < images.shape[1]
