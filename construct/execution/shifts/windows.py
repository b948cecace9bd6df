"""Where one-hot heads look, and the windows of tokens that blocks of outputs see: zeros where they
lie outside of the input.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from operator import mul

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

    @cached_property
    def numbers(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The same as arguments of an operator, the offsets of all heads one after the other."""
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
        """Heads along each axis and their spacing, if these are a rectangle in row-major order."""
        axes = [sorted(set(axis)) for axis in zip(*self.offsets, strict=True)]
        spacing = tuple((axis[-1] - axis[0]) // max(1, len(axis) - 1) or 1 for axis in axes)
        even = (
            range(axis[0], axis[-1] + 1, apart) for axis, apart in zip(axes, spacing, strict=True)
        )
        return (tuple(map(len, axes)), spacing) if self.offsets == tuple(product(*even)) else None


@dataclass(frozen=True)
class Block:
    """A box of outputs, and the window of tokens that they see.

    Attributes:
        outputs: the outputs.
        shape: how many, along each axis.
        size: the window's length along each axis.
        inside: the part of the window that is input, not zeros.
        source: where in the input that lies.
    """

    outputs: Box
    shape: Ints
    size: Ints
    inside: Box
    source: Box

    def lies_in(self, images: Tensor, at: int) -> bool:
        """Whether the window is a part of the images, in the layout that is wanted."""
        whole = tuple(slice(0, n) for n in self.size)
        return self.inside == whole and is_last(images) == (at == 1)

    def zeros(self, images: Tensor, at: int) -> Tensor:
        """A window (B, C, *size) of zeros, with channels last in memory if ``at`` is 1."""
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

    def head_views(self, window: Tensor, shifts: Shifts) -> Iterator[Tensor]:
        """For each head, the tokens that the outputs see, a strided view: (B, g, C, *size) →
        (B, g, C, *shape).
        """
        for offset in shifts.offsets:
            axes = zip(offset, shifts.least, shifts.step, self.shape, strict=True)
            yield window[
                (
                    ...,
                    *(
                        slice(e - least, e - least + step * (count - 1) + 1, step)
                        for e, least, step, count in axes
                    ),
                )
            ]

    def rectangle_view(self, window: Tensor, shifts: Shifts, rows: bool) -> Tensor:
        """The tokens of a rectangle of heads: (B, g, C, *size) → (B, *shape, *heads, C) if
        ``rows``, else (B, g, *heads, C, *shape).

        ``rows`` requires a single group.
        """
        assert shifts.rectangle is not None
        counts, spacing = shifts.rectangle
        batch, groups, channels = window.shape[:3]
        image, group, channel, *along = window.stride()
        queries = tuple(map(mul, shifts.step, along))
        heads = tuple(map(mul, spacing, along))
        if rows:
            return window.as_strided(
                (batch, *self.shape, *counts, channels), (image, *queries, *heads, channel)
            )
        shape = (batch, groups, *counts, channels, *self.shape)
        return window.as_strided(shape, (image, group, *heads, channel, *queries))


@lru_cache(maxsize=256)
def blocks(shifts: Shifts, queries: int) -> tuple[Block, ...]:
    """An image in blocks of at most so many outputs, or of one: some rows at a time, or a part of
    one row.
    """
    axes = [
        pieces(n, max(1, queries // prod(shifts.output[axis:])))
        for axis, n in enumerate(shifts.output, start=1)
    ]
    planned = []
    for outputs in product(*axes):
        shape = []
        size = []
        inside = []
        source = []
        for part, step, least, reach, n in zip(
            outputs, shifts.step, shifts.least, shifts.reach, shifts.size, strict=True
        ):
            begin = step * part.start + least
            shape.append(part.stop - part.start)
            size.append(step * (shape[-1] - 1) + reach + 1)
            low = min(max(0, -begin), size[-1])
            high = max(low, min(size[-1], n - begin))
            inside.append(slice(low, high))
            source.append(slice(begin + low, begin + high) if high > low else slice(0, 0))
        planned.append(Block(outputs, *map(tuple, (shape, size, inside, source))))
    return tuple(planned)


def is_last(images: Tensor) -> bool:
    """Whether channels are last in memory."""
    return images.stride(1) == 1 < images.shape[1]


def new_images(like: Tensor, channels: int, size: Ints, last: bool) -> Tensor:
    """Uninitialised images (B, channels, *size), with channels last or first in memory."""
    if last:
        return like.new_empty((len(like), *size, channels)).movedim(-1, 1)
    return like.new_empty((len(like), channels, *size))


def filled_images(
    like: Tensor, channels: int, size: Ints, last: bool, bias: Tensor | None
) -> Tensor:
    """The same, filled with the bias (channels,), or with zeros."""
    images = new_images(like, channels, size, last)
    return images.zero_() if bias is None else images.copy_(bias.view(-1, *(1,) * len(size)))
