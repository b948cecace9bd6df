"""Where one-hot heads look, and the windows of tokens that blocks of outputs see: zeros where they
lie outside of the input.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from operator import mul, sub

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from construct.execution.blocks import pieces

Ints = tuple[int, ...]
KEPT_BYTES = 2**23
"""The largest buffer that a thread keeps for a role, for every thread of torch (8 MiB)."""
_KEPT = threading.local()
"""Buffers by role, as attributes."""


@dataclass(frozen=True, eq=False)  # hashed in every call, so by its identity
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

    @property  # a compiler traces no cached one
    def numbers(self) -> Ints:
        """The fields one after the other, as an argument of an operator."""
        return (*sum(self.offsets, ()), *self.step, *self.size, *self.output)

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

    outputs: tuple[slice, ...]
    shape: Ints
    size: Ints
    inside: tuple[slice, ...]
    source: tuple[slice, ...]

    def window(self, images: Tensor, at: int) -> Tensor:
        """The window, (B, C, *n) → (B, C, *size), with channels last in memory if ``at`` is 1."""
        source = images[(..., *self.source)]
        if source.shape[2:] == self.size and is_last(images) == (at == 1):
            return source
        batch, channels = images.shape[:2]
        if at == 1:
            window = workspace("window", images, batch, *self.size, channels).movedim(-1, 1)
        else:
            window = workspace("window", images, batch, channels, *self.size)
        window.zero_()[(..., *self.inside)] = source
        return window

    def head_views(self, window: Tensor, shifts: Shifts) -> Iterator[Tensor]:
        """The tokens of each head, views: (B, g, C, *size) → (B, g, C, *shape)."""
        for offset in shifts.offsets:
            first = map(sub, offset, shifts.least)
            axes = zip(first, shifts.step, self.shape, strict=True)
            yield window[(..., *(slice(e, e + step * (n - 1) + 1, step) for e, step, n in axes))]

    def rectangle_view(self, window: Tensor, shifts: Shifts) -> Tensor:
        """The tokens of a rectangle of heads, a view: (B, g, C, *size) → (B, g, *heads, C, *shape)."""
        assert shifts.rectangle is not None
        counts, spacing = shifts.rectangle
        image, group, channel, *along = window.stride()
        queries = map(mul, shifts.step, along)
        heads = map(mul, spacing, along)
        shape = (*window.shape[:2], *counts, window.shape[2], *self.shape)
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
        along = map(_window, outputs, shifts.step, zip(*shifts.offsets, strict=True), shifts.size)
        planned.append(Block(outputs, *zip(*along, strict=True)))
    return tuple(planned)


def _window(outputs: slice, step: int, offsets: Ints, n: int) -> tuple[int, int, slice, slice]:
    """The shape, size, inside and source of a block along an axis of n inputs."""
    count = outputs.stop - outputs.start
    begin = step * outputs.start + min(offsets)
    size = step * (outputs.stop - 1) + max(offsets) + 1 - begin
    low = min(max(0, -begin), size)
    high = max(low, min(size, n - begin))
    source = slice(begin + low, begin + high) if high > low else slice(0, 0)
    return count, size, slice(low, high), source


def pairs(shifts: Shifts, block: Block, x: Tensor, y: Tensor) -> list[tuple[int, Tensor, Tensor]]:
    """Each head, and views of its tokens in x, (…, *n), and of its outputs, y (heads, …, *shape)."""
    start = tuple(outputs.start for outputs in block.outputs)
    x_first = x.storage_offset()
    y_first = y.storage_offset()
    y_strides = y.stride()
    strides = y_strides[1:]
    return [
        (
            head,
            x.as_strided(shape, x_strides, x_first + token),
            y.as_strided(shape, strides, y_first + output),
        )
        for head, shape, x_strides, token, output in _overlaps(
            shifts, start, block.shape, x.shape[: -len(start)], x.stride(), y_strides
        )
    ]


@lru_cache(maxsize=512)
def _overlaps(
    shifts: Shifts, start: Ints, shape: Ints, leading: Ints, x_strides: Ints, y_strides: Ints
) -> tuple[tuple[int, Ints, Ints, int, int], ...]:
    """Of each head that sees a token: the head, shape and strides of its tokens, and where in memory
    these and the outputs begin.
    """
    dims = len(start)
    x_along = x_strides[-dims:]
    box = start, shape, shifts.step, shifts.size, x_along, y_strides[-dims:]
    tables = []
    for offsets, begin, n, step, size, x_stride, y_stride in zip(
        zip(*shifts.offsets, strict=True), *box, strict=True
    ):
        table = {}
        for e in set(offsets):
            first = max(begin, -(e // step))
            count = min(begin + n, -((e - size) // step)) - first
            table[e] = count, (step * first + e) * x_stride, (first - begin) * y_stride
        tables.append(table)
    strides = (*x_strides[:-dims], *map(mul, shifts.step, x_along))
    planned = []
    for head, offset in enumerate(shifts.offsets):
        axes = (table[e] for table, e in zip(tables, offset, strict=True))
        counts, tokens, outputs = zip(*axes, strict=True)
        if min(counts) > 0:
            output = head * y_strides[0] + sum(outputs)
            planned.append((head, (*leading, *counts), strides, sum(tokens), output))
    return tuple(planned)


def workspace(role: str, like: Tensor, *shape: int) -> Tensor:
    """An uninitialised tensor of the type and device of ``like``, in memory that a thread keeps for
    this role: the system provides new memory page by page, which takes longer than a copy.

    Under a dispatch mode, memory is new all the same: the mode may wrap tensors, or record a graph,
    in which a kept buffer would be a constant.
    """
    size = prod(shape) * like.itemsize
    too_large = size > KEPT_BYTES * torch.get_num_threads()
    if (
        not like.is_cpu
        or too_large
        or type(like) not in (Tensor, Parameter)
        or is_in_torch_dispatch_mode()
    ):
        return like.new_empty(shape)
    buffer = vars(_KEPT).get(role)
    if buffer is None or len(buffer) < size:
        with torch.inference_mode(False):  # an inference tensor could not be written elsewhere
            buffer = vars(_KEPT)[role] = torch.empty(
                max(size, 2**20), dtype=torch.uint8, device="cpu"
            )
    return buffer[:size].view(like.dtype).view(shape)


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
    if bias is None:
        return images.zero_()
    return images.copy_(bias.view(-1, *(1,) * len(size)))


def in_layout(images: Tensor, last: bool) -> Tensor:
    """Images with channels last or first in memory, and no view, which none may change in place."""
    if not last:
        images = images.contiguous()
        if images.shape[1] == 1:  # whose stride says to torch which format follows
            images = images.view(-1).view(images.shape)
        return images.data
    return images.movedim(1, -1).contiguous().movedim(-1, 1).data
