"""What few queries send back, head by head: x[s·o + e_h] += y[o] w_hᵀ, added where the head looked.

Any other way needs the w_hᵀ below each other in memory.  To lay them out so takes long where weights outnumber tokens, as in the
last layers of a network; here they are read as they lie, and what a product makes is added while a core's cache holds it.
"""

from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from construct.execution.layout import Ints, Shifts

FEW = 2
"""Up to so many times as many queries as channels of y are few."""
NARROW = 32
"""Fewer channels than this are left to other ways."""

Box = tuple[slice, ...]


def suits(shifts: Shifts, images: int, w: Tensor) -> bool:
    """Whether this way is quick, for w (heads, 1, C, D), and images of y."""
    *_, channels, width = w.shape
    few = 0 < images * prod(shifts.output) <= FEW * width
    return few and min(channels, width) >= NARROW and len(w) > 1 and w.is_contiguous()


def by_spreading(y: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None) -> None:
    """x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] w_hᵀ.

    Args:
        y: (B, *o, D), any strides, any dtype.
        w: (heads, C, D), in the dtype to compute in.
        shifts: where the heads look.
        out: (B, *n, C), any strides, any dtype.
        bias: (1, C).
    """
    _, channels, width = w.shape
    there = out.is_contiguous() and out.dtype == w.dtype
    tokens = out if there else w.new_empty(out.shape)
    tokens.copy_(bias.expand_as(tokens)) if bias is not None else tokens.zero_()
    rows = y.to(w.dtype).reshape(-1, width)
    found = w.new_empty(*y.shape[:-1], channels)
    for matrix, (queries, places) in zip(w.unbind(), _places(shifts), strict=True):
        if queries is not None:
            torch.mm(rows, matrix.mT, out=found.view(-1, channels))
            tokens[places].add_(found[queries])
    if not there:
        out.copy_(tokens)


@lru_cache(maxsize=256)
def _places(shifts: Shifts) -> tuple[tuple[Box | None, Box], ...]:
    """For each head, the queries that see a token, None if there is no such, and these tokens."""
    return tuple(_place(shifts, offset) for offset in shifts.offsets)


def _place(shifts: Shifts, offset: Ints) -> tuple[Box | None, Box]:
    queries, places = [slice(None)], [slice(None)]
    for start, step, size, output in zip(offset, shifts.step, shifts.size, shifts.output, strict=True):
        first, end = max(0, -(start // step)), min(output, -((start - size) // step))
        if first >= end:
            return None, ()
        queries.append(slice(first, end))
        places.append(slice(start + first * step, start + (end - 1) * step + 1, step))
    return tuple(queries), tuple(places)
