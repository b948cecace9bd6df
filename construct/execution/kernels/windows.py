"""Where one-hot heads look: offsets into the input, which of them lie inside it, and heads that share one strided view."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

from construct.execution.kernels.byte_cache import bounded_cache

Ints = tuple[int, ...]
View = tuple[Ints, Ints, int]
"""Shape, strides and offset of a strided view."""
Box = tuple[slice, ...]
FIRST, LAST, OTHER = "channels first", "channels last", "other"
"""Memory layouts of a batch of images: without gaps and in the type to compute in, or any other."""


@lru_cache(maxsize=1024)
def strides_of(layout: str, channels: int, size: Ints) -> Ints:
    """Strides of images without gaps: from image to image, along each axis, and from channel to channel."""
    every = prod(size)
    between = tuple(prod(size[axis + 1 :]) for axis in range(len(size)))
    if layout == FIRST:
        return channels * every, *between, every
    return channels * every, *(channels * n for n in between), 1


@dataclass(frozen=True)
class Shifts:
    """Where one-hot heads look: output o sees input position s·o + e_h, or zeros where that lies outside.

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
    def least(self) -> Ints:
        """The least offset on each axis."""
        return tuple(min(axis) for axis in zip(*self.offsets, strict=True))

    @cached_property
    def reach(self) -> Ints:
        """The greatest offset minus the least on each axis."""
        return tuple(max(axis) - min(axis) for axis in zip(*self.offsets, strict=True))

    @cached_property
    def identity(self) -> bool:
        """Whether there is one head, and every output sees the input at its own position."""
        return self.offsets == ((0,) * len(self.step),) and set(self.step) == {1} and self.output == self.size

    def window(self, box: Box) -> tuple[Ints, Ints, tuple[tuple[int, int], ...]]:
        """The window that a box of outputs sees, per axis: where it begins, its length, and which part lies inside the input."""
        starts = tuple(s * part.start + e for s, part, e in zip(self.step, box, self.least, strict=True))
        lengths = tuple(
            s * (part.stop - part.start - 1) + reach + 1
            for s, part, reach in zip(self.step, box, self.reach, strict=True)
        )
        return starts, lengths, tuple(map(clip, starts, (1,) * len(starts), lengths, self.size))

    @cached_property
    def inside(self) -> bool:
        """Whether no head looks outside of the input."""
        ends = (s * (o - 1) + 1 for s, o in zip(self.step, self.output, strict=True))
        return all(
            least >= 0 and least + reach + end <= size
            for least, reach, end, size in zip(self.least, self.reach, ends, self.size, strict=True)
        )

    def flipped(self) -> "Shifts":
        """For stride 1, the same pairs seen from the input: output o sees o + e_h, so input t is seen by t − e_h."""
        return Shifts(tuple(tuple(-e for e in offset) for offset in self.offsets), self.step, self.output, self.size)


@dataclass(frozen=True)
class Window:
    """The tokens that a box of outputs sees, with their zero padding, to be copied into a buffer.

    Attributes:
        start: the input position of the first one.
        numbers: how many numbers they have.
        strides: their strides in the buffer, (images, *axes, channels).
        inside: the part of the buffer that is input, not padding.
        source: where that part lies in the input.
        zeros: a key of the zero padding, the same for windows of which the same places are padding; None if it has none.
    """

    start: Ints
    numbers: int
    strides: Ints
    inside: View
    source: Box
    zeros: object

    @classmethod
    def of(cls, shifts: Shifts, box: Box, images: int, channels: int, layout: str, axes: Ints = ()) -> "Window":
        """The window of a box in some images, in this memory layout, with the axes in this order, by default as they are."""
        start, lengths, clips = shifts.window(box)
        axes = axes or tuple(range(len(lengths)))
        image, *along, channel = strides_of(layout, channels, tuple(lengths[axis] for axis in axes))
        strides = (image, *(along[axes.index(axis)] for axis in range(len(axes))), channel)
        real = tuple(high - low for low, high in clips)
        first = sum(low * n for (low, _), n in zip(clips, strides[1:], strict=False))
        return cls(
            start,
            images * channels * prod(lengths),
            strides,
            ((images, *real, channels), strides, first),
            tuple(slice(at + low, at + high) for at, (low, high) in zip(start, clips, strict=True)),
            (lengths, clips) if real != lengths else None,
        )


def clip(start: int, step: int, count: int, size: int) -> tuple[int, int]:
    """Which of ``count`` positions start, start + step, … lie in 0 … size − 1: the number of the first, and of the last plus 1.

    Both are in 0 … count, and equal if there are none.

    >>> clip(-3, 2, 5, 4)  # of −3, −1, 1, 3, 5
    (2, 4)
    """
    low = min(count, max(0, -(start // step)))
    return low, max(low, min(count, -((start - size) // step)))


def phases(step: Ints, size: Ints) -> dict[Ints, tuple[Box, Ints]]:
    """Polyphase decomposition: for each residue r of positions modulo the stride, a slice and a count of them per axis.

    Residues without positions are left out.

    >>> phases((2,), (3,))
    {(0,): ((slice(0, None, 2),), (2,)), (1,): ((slice(1, None, 2),), (1,))}
    """
    parts = {}
    for phase in product(*map(range, step)):
        counts = tuple(len(range(r, n, s)) for r, n, s in zip(phase, size, step, strict=True))
        if all(counts):
            parts[phase] = tuple(slice(r, None, s) for r, s in zip(phase, step, strict=True)), counts
    return parts


@dataclass(frozen=True)
class Run:
    """Heads at evenly spaced offsets, in this order: one strided view of the tokens serves them all.

    Attributes:
        head: the number of the first one, in the order of offsets.
        offset: where it looks.
        counts: heads along each axis.
        steps: their spacing along each axis.
    """

    head: int
    offset: Ints
    counts: Ints
    steps: Ints


@bounded_cache
def runs_of(offsets: tuple[Ints, ...], whole: bool) -> tuple[Run, ...]:
    """All heads, sorted by offset, in runs along the last axis; with ``whole``, in one run if they form a rectangle."""
    offsets = tuple(sorted(offsets))
    rectangle = _rectangle(offsets) if whole else None
    if rectangle is not None:
        return (rectangle,)
    runs: list[Run] = []
    for head, offset in enumerate(offsets):
        last = runs[-1] if runs else None
        if last is not None and last.offset[:-1] == offset[:-1]:
            count, step = last.counts[-1], offset[-1] - offsets[head - 1][-1]
            if step and (count == 1 or step == last.steps[-1]):
                ones = (1,) * (len(offset) - 1)
                runs[-1] = Run(last.head, last.offset, (*ones, count + 1), (*ones, step))
                continue
        runs.append(Run(head, offset, (1,) * len(offset), (1,) * len(offset)))
    return tuple(runs)


def _rectangle(offsets: tuple[Ints, ...]) -> Run | None:
    """The heads as one run, if they form a rectangle, evenly spaced along every axis; else None."""
    axes = [sorted(set(axis)) for axis in zip(*offsets, strict=True)]
    if prod(map(len, axes)) != len(offsets) or len(set(offsets)) < len(offsets):
        return None
    steps = tuple(axis[1] - axis[0] if len(axis) > 1 else 1 for axis in axes)
    if any(axis != list(range(axis[0], axis[-1] + 1, step)) for axis, step in zip(axes, steps, strict=True)):
        return None
    return Run(0, offsets[0], tuple(map(len, axes)), steps)
