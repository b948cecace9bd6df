"""How the tokens of a block of queries are laid out, so that what a head sees is a strided view.

The tokens are laid out channels last, in planes by their residue modulo the stride.  There the tokens of consecutive queries
lie at a fixed distance from each other over the *whole* block, so that every product is one matrix product on a strided view;
queries past the end of a row are worked out too, and dropped.  Heads whose shifts follow each other on the last axis form a run
and share a product: R tokens in a row are R·C numbers in a row.  Rows of such a view overlap, which no matrix product takes,
unless every m-th query is taken at a time, with m·s ≥ R.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, prod
from typing import Any

from torch import Tensor

from construct.attention import queries_per_block
from construct.execution.scratch import Scratch

Ints = tuple[int, ...]
View = tuple[Ints, Ints, int]
"""Shape, strides and offset."""
Way = Callable[[Tensor, Tensor, Tensor | None], None]
"""(x, out, bias): y[o] = b + Σ_h x[s·o + e_h] w_h, with the weights and shifts that it was made for.  Of contiguous weights it
holds views and no copies: it goes by what they are when it is called."""

BLOCK = 2**19
"""Numbers in a block's tokens and outputs together: 2 MiB of float32, about what a core's second cache holds."""
RUN = 384
"""Runs are joined up to this many numbers, R·C: longer rows make no product faster."""
FEW = 32
"""Up to so many numbers a run, tokens are copied side by side for one product over all heads."""
SMALL = 2**17
"""So they are if the copy is no larger than this many numbers."""


@dataclass(frozen=True)
class Shifts:
    """Where the heads look.

    Attributes:
        offsets: a head each, e_h: the input position that output 0 sees, an axis each; may lie outside the input.
        step: s, an axis each.
        size: spatial size of the input, *n.
        output: spatial size of the output, *o.
    """

    offsets: tuple[Ints, ...]
    step: Ints
    size: Ints
    output: Ints

    @cached_property
    def kept(self) -> dict[tuple[int, ...], "Layout"]:
        """Layouts made for these shifts."""
        return {}

    @cached_property
    def programs(self) -> dict[tuple[Any, ...], Any]:
        """What :mod:`construct.execution.columns` worked out for these shifts."""
        return {}

    @cached_property
    def least(self) -> Ints:
        """The least offset on each axis."""
        return tuple(min(axis) for axis in zip(*self.offsets, strict=True))

    @cached_property
    def reach(self) -> Ints:
        """The greatest offset less the least, an axis each."""
        return tuple(max(axis) - min(axis) for axis in zip(*self.offsets, strict=True))


@dataclass(frozen=True)
class Run:
    """Heads that look at tokens in a row: their numbers, the plane, and the flat token that query 0 sees first."""

    heads: Ints
    plane: int
    token: int


class Layout:
    """The tokens of one block of queries: planes by residue, flat.

    Args:
        shifts: where the heads look.
        images: in the block.
        rows: queries of the block along the first axis.
        split_last: residues on the last axis too (then no runs), as depthwise products want it.
        longest: tokens a run may have.
    """

    def __init__(self, shifts: Shifts, images: int, rows: int, split_last: bool, longest: int):
        self.shifts, self.images = shifts, images
        self.kept: dict[Ints, list[tuple[Run, View, View]]] = {}
        dims = len(shifts.step)
        self.split = tuple(s if axis < dims - 1 or split_last else 1 for axis, s in enumerate(shifts.step))
        self.ahead = shifts.step[-1] // self.split[-1]  # tokens from one query to the next
        self.queries = (rows, *shifts.output[1:])
        # Queries that a plane has room for, an axis each; on an axis that is not split, its tokens are more by ``ahead``.
        self.room = tuple(
            ceil((s * (o - 1) + reach + 1) / s)
            for o, s, reach in zip(self.queries, shifts.step, shifts.reach, strict=True)
        )
        shape = (images, *self.room)
        self.strides = tuple(
            prod(shape[axis + 1 :]) for axis in range(dims + 1)
        )  # in queries, from image to image etc.
        self.wanted = 1 + sum((n - 1) * stride for n, stride in zip((images, *self.queries), self.strides, strict=True))
        self.plane_tokens = prod(shape) * self.ahead
        self.planes: list[Ints] = []
        self.runs = self._runs(longest)
        self.longest = max(len(run.heads) for run in self.runs)
        self.every = ceil(self.longest / self.ahead)
        self.computed = ceil(self.wanted / self.every) * self.every
        # The last view begins at query every − 1 and ends where query computed − 1 sees its run's last token.
        seen = max(run.plane * self.plane_tokens + run.token + len(run.heads) for run in self.runs)
        self.tokens = max(len(self.planes) * self.plane_tokens, seen + (self.computed - 1) * self.ahead)

    def _runs(self, longest: int) -> list[Run]:
        places = []
        for head, offset in enumerate(self.shifts.offsets):
            ahead = [e - least for e, least in zip(offset, self.shifts.least, strict=True)]
            residue = tuple(t % s for t, s in zip(ahead, self.split, strict=True))
            steps = [t // s for t, s in zip(ahead, self.split, strict=True)]
            token = steps[-1] + self.ahead * sum(
                n * stride for n, stride in zip(steps[:-1], self.strides[1:-1], strict=True)
            )
            places.append((residue, token, head))
        runs: list[Run] = []
        for residue, token, head in sorted(places):
            if residue not in self.planes:
                self.planes.append(residue)
            plane, last = self.planes.index(residue), runs[-1] if runs else None
            if last and (last.plane, last.token + len(last.heads)) == (plane, token) and len(last.heads) < longest:
                runs[-1] = replace(last, heads=(*last.heads, head))
            else:
                runs.append(Run((head,), plane, token))
        return runs

    def fill(self, scratch: Scratch, x: Tensor, first: int) -> Tensor:
        """Lay out the tokens of x (images, *n, groups, C) that the block from row ``first`` on sees.

        Args:
            scratch: where buffers come from.
            x: the images of the block.
            first: its first row.

        Returns:
            (groups, tokens, C)
        """
        places = self._places(first)
        into = tuple(place and tuple(axis for axis, _ in place) for place in places)
        lengths = (*self.room[:-1], self.room[-1] * self.ahead)
        if self.tokens == self.plane_tokens and into == (tuple((0, length) for length in lengths),):
            buffer = scratch("tokens", x.shape[-2], self.tokens, x.shape[-1])  # no place for zeros
            scratch.filled = object()
        else:
            buffer = scratch.zeroed((self, into), x.shape[-2], self.tokens, x.shape[-1])
        groups, _, channels = buffer.shape
        for number, place in enumerate(places):
            if place is not None:
                plane = buffer[:, number * self.plane_tokens : (number + 1) * self.plane_tokens]
                tokens = plane.view(groups, self.images, *lengths, channels)
                source = (slice(None), *(slice(start, stop, step) for _, (start, stop, step) in place))
                tokens[(slice(None), slice(None), *(slice(*into) for into, _ in place))] = x[source].movedim(-2, 0)
        return buffer

    def _places(self, first: int) -> tuple[tuple[tuple[Ints, Ints], ...] | None, ...]:
        """For each plane and axis, which of its tokens are of the input, and which of the input; None: zeros only."""
        places = []
        shifts = self.shifts
        lengths = (*self.room[:-1], self.room[-1] * self.ahead)
        for residue in self.planes:
            place = []
            for axis, (length, step) in enumerate(zip(lengths, self.split, strict=True)):
                start = shifts.least[axis] + residue[axis] + (first * shifts.step[0] if axis == 0 else 0)
                begin = max(0, ceil(-start / step))
                end = min(length, ceil((shifts.size[axis] - start) / step))
                place.append(((begin, end), (start + step * begin, start + step * (end - 1) + 1, step)))
            places.append(tuple(place) if all(begin < end for (begin, end), _ in place) else None)
        return tuple(places)

    def few(self, channels: int) -> bool:
        """Whether products are so narrow, or so few, that one product over all heads is worth a copy of the tokens."""
        copied = self.images * prod(self.queries) * len(self.shifts.offsets) * channels
        if channels * self.longest <= FEW or self.computed < 16 * self.every:
            return True
        return copied <= SMALL and len(self.runs) > 1

    def in_order(self, groups: int) -> bool:
        """Whether what is computed are the wanted outputs, all and in their order, with nothing between them."""
        return groups == 1 and self.every == 1 and self.room[1:] == self.queries[1:] and self._no_rows_between()

    def _no_rows_between(self) -> bool:
        return self.room[0] == self.queries[0] or self.images == 1

    def outputs(self, flat: Tensor) -> Tensor:
        """The wanted rows of the flat outputs (groups, computed, D), as (images, *queries, groups, D)."""
        groups, _, width = flat.shape
        stride = flat.stride()
        return flat.as_strided(
            (self.images, *self.queries, groups, width),
            (*(n * stride[1] for n in self.strides), stride[0], stride[2]),
            flat.storage_offset(),
        )

    def products(self, groups: int, channels: int, width: int) -> list[tuple[Run, View, View]]:
        """What each product reads and adds to: a run, its view of the tokens, and that of the outputs.

        Views are shapes, strides and offsets, made once.  Tokens are (groups, tokens, C), outputs (groups, computed, D); a view
        is (groups, computed/every, R·C) or (groups, computed/every, D), without the first axis for one group, because products
        of two axes are quicker.
        """
        asked = (groups, channels, width)
        if asked not in self.kept:
            found: list[tuple[Run, View, View]] = []
            count = self.computed // self.every
            for run in self.runs:
                for start in range(self.every):
                    token = run.plane * self.plane_tokens + run.token + start * self.ahead
                    seen = (
                        (groups, count, len(run.heads) * channels),
                        (self.tokens * channels, self.every * self.ahead * channels, 1),
                        token * channels,
                    )
                    into = ((groups, count, width), (self.computed * width, self.every * width, 1), start * width)
                    if groups == 1:
                        seen, into = ((v[0][1:], v[1][1:], v[2]) for v in (seen, into))
                    found.append((run, seen, into))
            self.kept[asked] = found
        return self.kept[asked]


def run_length(channels: int) -> int:
    """How many heads a run may have."""
    return max(1, RUN // channels)


def laid_out(shifts: Shifts, images: int, rows: int, split_last: bool, longest: int) -> Layout:
    """As :class:`Layout`; worked out once."""
    asked = (images, rows, split_last, longest)
    if asked not in shifts.kept:
        shifts.kept[asked] = Layout(shifts, *asked)
    return shifts.kept[asked]


def blocks(shifts: Shifts, images: int, queries: int) -> Iterator[tuple[slice, slice]]:
    """Images and rows of blocks of about so many queries, all much alike; whole images together where they are small."""
    length, row = shifts.output[0], max(1, prod(shifts.output[1:]))
    queries = queries_per_block(queries)
    together = max(1, queries // (row * length))
    for image in pieces(images, together):
        yield from ((image, rows) for rows in pieces(length, max(1, queries // row)))


def room_for(shifts: Shifts, groups: int, channels: int, width: int, alone: bool) -> int:
    """How many queries of a block keep its tokens and outputs within ``BLOCK`` numbers."""
    if alone:
        return max(1, BLOCK // (2 * groups))
    return max(1, BLOCK // (groups * (channels * min(prod(shifts.step), len(shifts.offsets)) + width)))


@lru_cache(maxsize=256)
def pieces(length: int, most: int) -> tuple[slice, ...]:
    """0 … length in equal pieces of at most so many, but for one."""
    count = ceil(length / most)
    size = ceil(length / count)
    return tuple(slice(start, min(length, start + size)) for start in range(0, length, size))


def cut(x: Tensor, part: slice, axis: int = 0) -> Tensor:
    """A part of x along an axis; x itself where that is all of it."""
    length = part.stop - part.start
    return x if length == x.shape[axis] else x.narrow(axis, part.start, length)


@lru_cache(maxsize=1024)
def through(shifts: Shifts, residue: Ints) -> tuple[Ints, Shifts]:
    """The heads that outputs send back to inputs t ≡ residue modulo the stride, and where those see outputs from.

    In the order of what they see, so that runs need no other order of the weights.
    """
    sent = [
        (tuple((r - e) // s for r, e, s in zip(residue, offset, shifts.step, strict=True)), head)
        for head, offset in enumerate(shifts.offsets)
        if all((r - e) % s == 0 for r, e, s in zip(residue, offset, shifts.step, strict=True))
    ]
    sent.sort()
    size = tuple(len(range(r, n, s)) for r, n, s in zip(residue, shifts.size, shifts.step, strict=True))
    seen = Shifts(tuple(offset for offset, _ in sent), (1,) * len(residue), shifts.output, size)
    return tuple(head for _, head in sent), seen
