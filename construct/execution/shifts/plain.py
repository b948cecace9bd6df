"""The three maps in plain operations of any device, for compilers, exports, transforms of ``torch.func`` and forward mode."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from construct.execution.shifts.windows import Ints, Shifts
from construct.execution.transforms import eagerly, jit_traced


def forward(x: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts) -> Tensor:
    """y[o] = b + Σ_h x[s·o + e_h] W_h: x (B, g·C, *n), w (heads, g, C, D), bias (g·D,) → (B, g·D, *o)."""
    tokens, starts = _padded(x, shifts)
    return products([head_view(tokens, start, shifts.step, shifts.output) for start in starts], w, bias)


def adjoint(y: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts) -> Tensor:
    """x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] W_hᵀ: the forward map of outputs with zeros between them, and of flipped offsets."""
    y = stuffed(y, shifts.step)
    flipped = tuple(tuple(-e for e in offset) for offset in shifts.offsets)
    return forward(y, w.mT, bias, Shifts(flipped, (1,) * len(shifts.step), tuple(y.shape[2:]), shifts.size))


def products(views: list[Tensor], w: Tensor, bias: Tensor | None) -> Tensor:
    """b + Σ_h X_h W_h: the tokens of each head (B, g·C, *o) → (B, g·D, *o)."""
    with eagerly() if jit_traced() else nullcontext():  # sizes as numbers
        channels, width = w.shape[2:]
    if channels == width == 1:  # which a compiler fuses into one loop
        ones = (1,) * (views[0].dim() - 2)
        start: Any = 0 if bias is None else bias.view(-1, *ones)
        factors = (matrix.reshape(-1, *ones) for matrix in w.unbind())
        return sum((view * factor for view, factor in zip(views, factors, strict=True)), start=start)
    return product(torch.stack(views, 2) if len(views) > 1 else views[0].unsqueeze(2), w, bias)


def product(columns: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """As :func:`products`, from the tokens of all heads side by side, (B, g·C, heads, *o)."""
    with eagerly() if jit_traced() else nullcontext():  # sizes as numbers
        groups = w.shape[1]
    rows = columns.flatten(1, 2).flatten(2).unflatten(1, (groups, -1))  # (B, g, C·heads, queries)
    y = torch.matmul(w.permute(1, 3, 2, 0).flatten(2), rows).flatten(1, 2)
    if bias is not None:
        y = y + bias[:, None]
    return y.unflatten(2, columns.shape[3:])


def head_view(tokens: Tensor, start: Ints, step: Ints, output: Sequence[Any]) -> Tensor:
    """The tokens start, start + step, … of one head, a strided slice: (B, C, *tokens) → (B, C, *output)."""
    for axis, (first, stride, count) in enumerate(zip(start, step, output, strict=True), start=2):
        tokens = tokens.narrow(axis, first, stride * (count - 1) + 1)
        if stride > 1:
            tokens = tokens[(..., slice(None, None, stride), *(slice(None),) * (tokens.dim() - axis - 1))]
    return tokens


def stuffed(x: Tensor, step: Ints) -> Tensor:
    """step − 1 zeros between neighbours along each axis: (B, C, *n) → (B, C, step·(n − 1) + 1)."""
    for axis, stuff in enumerate(step, start=2):
        if stuff > 1:  # zeros after every input; those after the last are removed
            zeros = (0, 0) * (x.dim() - axis - 1) + (0, stuff - 1)
            x = torch.nn.functional.pad(x.unsqueeze(axis + 1), zeros).flatten(axis, axis + 1)
            x = x.narrow(axis, 0, x.shape[axis] - (stuff - 1))
    return x


def _padded(x: Tensor, shifts: Shifts) -> tuple[Tensor, list[Ints]]:
    """The input, padded with zeros or cropped to what any head sees, and where in it each head's first token lies."""
    axes = range(len(shifts.step))
    low = shifts.least
    high = [least + reach for least, reach in zip(low, shifts.reach, strict=True)]
    ends = [s * (o - 1) + h + 1 for s, o, h in zip(shifts.step, shifts.output, high, strict=True)]
    pads: list[int] = []
    for axis in reversed(axes):
        pads += [max(0, -low[axis]), max(0, ends[axis] - shifts.size[axis])]
    if any(pads):
        x = torch.nn.functional.pad(x, pads)
    for axis in axes:
        x = x.narrow(axis + 2, max(0, low[axis]), ends[axis] - low[axis])
    return x, [tuple(e - least for e, least in zip(offset, low, strict=True)) for offset in shifts.offsets]
