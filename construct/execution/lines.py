"""One axis, channels as rows: what a head sees is a matrix as it lies, from another column on.

With a single axis and one query a token, the tokens (C, n) that a head sees are those of its neighbour, a column further.  So
nothing is laid out anew: each head is a product W_hᵀ (D, C) with these columns, added to the outputs (D, o) as they lie.
"""

import torch
from torch import Tensor

from construct.attention import queries_per_block
from construct.execution.layout import BLOCK, Shifts, pieces
from construct.execution.scratch import Scratch

LEAST = 16
"""Fewer channels are left to ways with one product for all heads."""


def suits(shifts: Shifts, channels: int, width: int) -> bool:
    """Whether this way is quick: one axis, a query for every token, and enough channels."""
    return shifts.step == (1,) and min(channels, width) >= LEAST


def columns_at_once(channels: int, width: int) -> int:
    """Queries of a block."""
    return queries_per_block(max(1, BLOCK // (channels + width)))


def memory(shifts: Shifts, channels: int, width: int) -> int:
    """Numbers that :func:`by_lines` holds besides its arguments."""
    queries = min(columns_at_once(channels, width), shifts.output[0])
    return channels * (queries + shifts.reach[0]) + width * queries


def by_lines(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None) -> None:
    """y[o] = b + Σ_h x[o + e_h] w_h.

    Args:
        x: (B, n, C), any strides, any dtype.
        w: (heads, 1, C, D), in the dtype to compute in.
        shifts: where the heads look.
        out: (B, o, D), any strides, any dtype.
        bias: (1, D).
    """
    channels, width = w.shape[2:]
    matrices, scratch = w[:, 0].mT.unbind(), Scratch(w)
    (least,), (reach,), (n,) = shifts.least, shifts.reach, shifts.size
    for image, target in zip(x.mT, out.mT, strict=True):
        for part in pieces(shifts.output[0], columns_at_once(channels, width)):
            count, first = part.stop - part.start, part.start + least
            length = count + reach
            begin = min(length, max(0, -first))
            end = max(begin, min(length, n - first))
            if (begin, end) == (0, length) and image.stride(1) == 1 and image.dtype == w.dtype:
                tokens = image[:, first : first + length]
            else:
                tokens = scratch.zeroed((begin, end), channels, length)
                if begin < end:
                    tokens[:, begin:end] = image[:, first + begin : first + end]
            here = target[:, part]
            there = here.stride(1) == 1 and here.dtype == w.dtype
            found = here if there else scratch("outputs", width, count)
            for head, (offset,) in enumerate(shifts.offsets):
                seen = tokens[:, offset - least : offset - least + count]
                if head:
                    found.addmm_(matrices[head], seen)
                else:
                    torch.mm(matrices[head], seen, out=found)
            if bias is not None:
                found += bias.mT
            if not there:
                here.copy_(found)
