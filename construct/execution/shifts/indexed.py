"""The three maps in few operations, for devices on which starting one takes longer than a small
product, such as GPUs.

The tokens of all heads are gathered by one index, and multiplied by all matrices at once, a block
of images or outputs at a time. Nothing is scattered, so that results are deterministic, and no
shape depends on a value, so that a graph can record the operations.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from operator import add

import torch
from torch import Tensor
from torch.nn.functional import pad

from construct.execution.blocks import pieces
from construct.execution.shifts.maps import new_images
from construct.execution.shifts.plain import places
from construct.execution.shifts.windows import Box, Ints, Shifts

AT_ONCE = 2**28
"""Bytes of the tokens of all heads at a time (256 MiB); those of a single output may be more."""


def forward(x: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, last: bool) -> Tensor:
    """y[o] = b + Σ_h x[s·o + e_h] W_h: x (B, g·C, *n), w (heads, g, C, D), bias (g·D,) →
    (B, g·D, *o).
    """
    return _forward(x, w, bias, shifts, (1,) * len(shifts.step), last)


def adjoint(y: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, last: bool) -> Tensor:
    """x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] W_hᵀ: the forward map of outputs with zeros between
    them, and of flipped offsets.
    """
    stuffed = tuple(step * (n - 1) + 1 for step, n in zip(shifts.step, shifts.output, strict=True))
    flipped = tuple(tuple(-e for e in offset) for offset in shifts.offsets)
    ones = (1,) * len(shifts.step)
    return _forward(y, w.mT, bias, Shifts(flipped, ones, stuffed, shifts.size), shifts.step, last)


def weights(x: Tensor, y: Tensor, shifts: Shifts, groups: int) -> Tensor:
    """W_h = Σ_o x[s·o + e_h]ᵀ y[o]: x (B, g·C, *n), y (B, g·D, *o) → (heads, g, C, D)."""
    heads = len(shifts.offsets)
    channels = x.shape[1] // groups
    width = y.shape[1] // groups
    total = x.new_zeros(groups, channels * heads, width)
    for few, box, columns in _columns(x, shifts, (1,) * len(shifts.step)):
        outputs = y[(few, slice(None), *box)].transpose(0, 1).reshape(groups, width, -1)
        total.baddbmm_(columns.reshape(*total.shape[:2], -1), outputs.mT)
    return total.unflatten(1, (channels, heads)).permute(2, 0, 1, 3)


def _forward(
    x: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, stuffing: Ints, last: bool
) -> Tensor:
    """As :func:`forward`, for inputs with ``stuffing`` − 1 zeros between neighbours along each
    axis.
    """
    heads, groups, channels, width = w.shape
    out = new_images(x, groups * width, shifts.output, last)
    matrix = w.permute(1, 3, 2, 0).reshape(groups, width, channels * heads)
    for few, box, columns in _columns(x, shifts, stuffing):
        target = out[(few, slice(None), *box)]
        y = torch.bmm(matrix, columns.reshape(groups, channels * heads, -1))
        y = y.view(groups * width, len(target), *target.shape[2:]).transpose(0, 1)
        if bias is None:
            target.copy_(y)
        else:
            torch.add(y, bias.view(-1, *(1,) * len(box)), out=target)
    return out


def _columns(x: Tensor, shifts: Shifts, stuffing: Ints) -> Iterator[tuple[slice, Box, Tensor]]:
    """In blocks, which images and outputs, and the tokens that all heads see from there,
    (g·C, heads, images, *outputs).
    """
    tokens, origin = _tokens(x.contiguous(), shifts, stuffing)
    tokens = tokens.transpose(0, 1)
    images, index = _index(shifts, len(x), origin, x.device)
    fitting = max(1, AT_ONCE // max(1, x.itemsize * x.shape[1] * len(shifts.offsets)))
    for few in pieces(len(x), max(1, fitting // max(1, prod(shifts.output)))):
        for box in _boxes(shifts.output, fitting):
            if shifts.pointwise:
                yield few, box, tokens[(slice(None), few, *box)].unsqueeze(1)
                continue
            axes = enumerate(zip(index, box, strict=True), start=2)
            read = [
                place.narrow(axis, part.start, part.stop - part.start)
                for axis, (place, part) in axes
            ]
            yield few, box, tokens[(slice(None), images[few], *read)]


def _boxes(output: Ints, fitting: int) -> Iterator[Box]:
    """Boxes of at most so many outputs, or of one."""
    if not output:
        yield ()
        return
    rest = prod(output[1:])
    for piece in pieces(output[0], max(1, fitting // max(1, rest))):
        for others in _boxes(output[1:], max(1, fitting // (piece.stop - piece.start))):
            yield piece, *others


def _tokens(x: Tensor, shifts: Shifts, stuffing: Ints) -> tuple[Tensor, Ints]:
    """The input with zeros between neighbours, and around it as far as any head sees; and where
    input 0 is in that.
    """
    pads = list[int]()
    origin = list[int]()
    outputs = zip(shifts.least, shifts.reach, shifts.step, shifts.output, strict=True)
    ends = [step * (output - 1) + least + reach + 1 for least, reach, step, output in outputs]
    for least, end, n, stuff in zip(shifts.least, ends, x.shape[2:], stuffing, strict=True):
        before = max(0, -(least // stuff))
        after = max(0, -((stuff * n - end) // stuff))
        pads = [0, stuff - 1, before, after, *pads]
        origin.append(stuff * before)
    if any(pads):
        shape = [size for n in x.shape[2:] for size in (n, 1)]
        x = pad(x.view(*x.shape[:2], *shape), pads)
        x = x.view(
            *x.shape[:2],
            *(n * stuff for n, stuff in zip(x.shape[2::2], x.shape[3::2], strict=True)),
        )
    return x, tuple(origin)


@lru_cache(maxsize=512)
@torch.inference_mode(False)
def _index(
    shifts: Shifts, images: int, origin: Ints, device: torch.device
) -> tuple[Tensor, list[Tensor]]:
    """The images' numbers; and for each axis, the tokens that heads see.  All for broadcasting over
    (heads, images, *outputs).
    """
    starts = [tuple(map(add, origin, offset)) for offset in shifts.offsets]
    batch = torch.arange(images, device=device).view(-1, *(1,) * len(origin))
    return batch, [
        place.unsqueeze(1) for place in places(starts, shifts.step, shifts.output, device)
    ]
