"""The interface of a kernel: a function from a Problem (shapes, layouts, dtypes) to a Task (workspace and run)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from construct.execution.kernels.blocks import at_once
from construct.execution.kernels.windows import FIRST, LAST, OTHER, Ints, Shifts, View, Window, strides_of

FORWARD, ADJOINT, WEIGHTS = "forward", "adjoint", "weights"
"""The three maps; each is linear in both of its arguments, and its derivatives are the other two:

    forward(x, w)    y[o]  = Σ_h x[s·o + e_h] w_h
    adjoint(y, w)    x[t]  = Σ_{h, o: s·o + e_h = t} y[o] w_hᵀ
    weights(x, y)    w_h   = Σ_o x[s·o + e_h]ᵀ y[o]
"""


@dataclass(frozen=True)
class Problem:
    """One of the three maps for given shapes, layouts and types.

    Attributes:
        kind: FORWARD, ADJOINT or WEIGHTS.
        shifts: where the heads look.
        heads: each head's index into the weights.
        images: B.
        groups: the number of channel groups.
        channels: C, the channels of x in each group.
        width: D, the channels of y in each group.
        dtype: the type to compute in.
        x_layout: the memory layout of x, the input or the adjoint's result.
        y_layout: the memory layout of y.
        onednn: whether oneDNN multiplies matrices of this type on this device.
        most: the most queries per block; None for any number.
        gpu: whether it runs on anything but a CPU, where a call costs more than memory.
    """

    kind: str
    shifts: Shifts
    heads: Ints
    images: int
    groups: int
    channels: int
    width: int
    dtype: torch.dtype
    x_layout: str
    y_layout: str
    onednn: bool
    most: int | None
    gpu: bool = False

    @property
    def at_once(self) -> int:
        """How many numbers are copied or computed at a time."""
        return at_once(self.dtype, self.gpu)

    def new(self, like: Tensor) -> Tensor:
        """An uninitialised tensor for the result, of the type to compute in."""
        if self.kind == WEIGHTS:
            return like.new_empty((len(self.heads), self.groups, self.channels, self.width), dtype=self.dtype)
        channels, size, layout = self.width, self.shifts.output, self.y_layout
        if self.kind == ADJOINT:
            channels, size, layout = self.channels, self.shifts.size, self.x_layout
        return new_images(like, self.images, self.groups * channels, size, layout, self.dtype)

    def as_images(self, matrix: Tensor) -> Tensor:
        """The outputs of a forward, as images, from the matrix of their tokens (B·queries, D)."""
        images = matrix.view(self.images, *self.shifts.output, -1).movedim(-1, 1)
        return images.data  # no view: torch forbids in-place changes of a view that an autograd function returns


class Task(Protocol):
    """A planned computation, for inputs and outputs of the problem's shapes and layouts."""

    workspace: int
    """Bytes that ``run`` takes besides its arguments and its result."""

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """Compute the map.

        Args:
            first: x (B, groups·C, *n), or y (B, groups·D, *o) for the adjoint: images, of any strides and type.
            second: w (heads, groups, C, D) in the type to compute in, or y for the gradient of the weights.
            bias: (groups·D,), or (groups·C,) for the adjoint; None for none.
            out: y or x to write to, if its layout in the problem is ``OTHER``; else None, for a new one.

        Returns:
            ``out``, or the new y, x or w.
        """
        ...


Kernel = Callable[[Problem], Task | None]
"""Plans a task; None if the kernel does not support the shapes, or another one was measured to be faster."""


def layout_of(images: Tensor, dtype: torch.dtype) -> str:
    """The memory layout of (B, C, *n)."""
    if images.dtype != dtype:
        return OTHER
    if images.is_contiguous():
        return FIRST
    return LAST if images.stride(1) == 1 and images.movedim(1, -1).is_contiguous() else OTHER


def new_images(like: Tensor, images: int, channels: int, size: Ints, layout: str, dtype: torch.dtype) -> Tensor:
    """Uninitialised images (B, C, *n) without gaps, of the device and class of ``like``."""
    image, *along, channel = strides_of(layout, channels, size)
    return like.new_empty_strided((images, channels, *size), (image, channel, *along), dtype=dtype)


def at(tensor: Tensor, view: View, start: int = 0) -> Tensor:
    """A strided view of a tensor's storage, starting ``start`` numbers after its first."""
    shape, strides, offset = view
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset + start)


def read_window(x: Tensor, window: Window, buffer: Tensor, before: object) -> None:
    """Copy the window of x (B, C, *n) into a buffer; ``before`` is the key of the zero padding that it already has."""
    if window.zeros is not None and window.zeros != before:
        buffer[: window.numbers].zero_()
    at(buffer, window.inside).copy_(x.movedim(1, -1)[(slice(None), *window.source)])


def stacked(w: Tensor, heads: Sequence[int], transposed: bool = False) -> Tensor:
    """The stacked matrices of some heads: w (heads, groups, C, D) → (groups, heads·C, D).

    A view if the heads are adjacent, and one copy if they are evenly spaced; else copied head by head, several times faster than
    at once if w is a transposed view.
    ``transposed`` gives (groups, D, heads·C) instead, contiguous.
    """
    _, groups, channels, width = w.shape
    count, first = len(heads), heads[0]
    step = heads[1] - first if count > 1 else 1
    if (
        groups == 1
        and step > 0
        and tuple(heads) == tuple(range(first, first + count * step, step))
        and w.is_contiguous()
    ):
        matrix = w[first : first + count * step : step].reshape(1, count * channels, width)
        return matrix.mT.contiguous() if transposed else matrix
    if transposed:
        out = w.new_empty(groups, width, count, channels)
        for place, head in enumerate(heads):
            out[:, :, place].copy_(w[head].mT)
        return out.view(groups, width, count * channels)
    out = w.new_empty(groups, count, channels, width)
    for place, head in enumerate(heads):
        if groups == 1:
            out[0, place].copy_(w[head, 0])  # 2-D: torch transposes these fast
        else:
            out[:, place].copy_(w[head])
    return out.view(groups, count * channels, width)
