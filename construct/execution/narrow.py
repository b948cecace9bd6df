"""Outputs of few channels: every product first, once a token, and then sums of what the heads see.

A matrix with a few columns makes slow products, and what the heads see overlaps: here all w_h are the rows of one matrix, which
meets each token once; what comes out, an image for each head and output channel, is added up where the head looked.

    x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] w_hᵀ
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import torch
from torch import Tensor

from construct.attention import queries_per_block
from construct.execution.layout import Ints, Shifts, pieces
from construct.execution.scratch import Scratch

FEW = ((12, 2), (32, 10))
"""Fewer channels than the first number are few, if what they are made from has so many times as many as the second says."""
LEAST = 3 * 2**12
"""Images of fewer numbers than this are not worth a step a head."""
UNEVEN = (64, 2**15)
"""So many channels, out of as many at least, are few where residues are seen by different numbers of heads, so that other ways make
products in vain; images then have so many numbers at least."""
BLOCK = 2**20
"""Numbers that are made at a time: 4 MiB of float32; fewer take more steps than a core's cache is worth.  Where a row of queries
makes four times as many, ..."""
HEADS = 2**10
"""... or where there are more heads than this, a step each, it is left to other ways."""

Box = tuple[slice, ...]


@dataclass(frozen=True)
class Part:
    """What one head adds to the tokens of one residue.

    Attributes:
        head: its number.
        residue: of the tokens that it sees, modulo the stride.
        first: of the queries along the first axis, the first one that sees a token; ``last`` comes behind the last one.
        last: see ``first``.
        ahead: from a query to the token that it sees, among those of the residue, along the first axis.
        queries: that see a token, along the other axes.
        places: of these tokens, along the other axes.
    """

    head: int
    residue: Ints
    first: int
    last: int
    ahead: int
    queries: Box
    places: Box


def suits(shifts: Shifts, channels: int, width: int) -> bool:
    """Whether this way is quick for the sum above: C channels out of D = ``width``."""
    heads, residues, numbers = len(shifts.offsets), prod(shifts.step), prod(shifts.output) * width
    if heads > HEADS or heads * channels * prod(shifts.output[1:]) > 4 * BLOCK:
        return False
    if heads > residues and heads % residues and 0 < channels <= UNEVEN[0] <= width and numbers >= UNEVEN[1]:
        return True
    return numbers >= LEAST and few(heads, channels, width)


def few(heads: int, channels: int, width: int) -> bool:
    """Whether C channels out of D = ``width`` are few."""
    return heads > 1 and any(0 < channels < most and times * channels <= width for most, times in FEW)


def sees(shifts: Shifts, channels: int, width: int) -> bool:
    """Whether this way is quick for y[o] = b + Σ_h x[s·o + e_h] w_h: D = ``width`` channels out of C, and no stride."""
    return max(shifts.step) == 1 and suits(turned(shifts), width, channels)


@lru_cache(maxsize=1024)
def turned(shifts: Shifts) -> Shifts:
    """Shifts of stride 1, as seen from the input: what query o sees of token t = o + e_h, that token sends to o = t − e_h."""
    return Shifts(
        tuple(tuple(-e for e in offset) for offset in shifts.offsets), shifts.step, shifts.output, shifts.size
    )


def memory(shifts: Shifts, channels: int, width: int) -> int:
    """Numbers that :func:`by_sums` holds besides its arguments: the matrix, a block of products, an image, and tokens in order."""
    row, rows = prod(shifts.output[1:]), _rows(shifts, channels)
    heads = len(shifts.offsets)
    planes = sum(prod(size) for size in _planes(shifts).values())
    return heads * channels * width + rows * row * (heads * channels + width) + channels * planes


def by_sums(y: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None) -> None:
    """The sum above, into ``out``.

    Args:
        y: (B, *o, D), any strides, any dtype.
        w: (heads, C, D), in the dtype to compute in.
        shifts: where the heads look.
        out: (B, *n, C), any strides, any dtype.
        bias: (1, C).
    """
    heads, channels, width = w.shape
    matrix, scratch = w.reshape(-1, width), Scratch(w)
    planes = {residue: w.new_empty(channels, *size) for residue, size in _planes(shifts).items()}
    for seen, found in zip(y, out.movedim(-1, 1), strict=True):
        for plane in planes.values():
            plane.zero_()
        for rows in pieces(shifts.output[0], _rows(shifts, channels)):
            made = _products(matrix, seen[rows], scratch).view(heads, channels, -1, *shifts.output[1:])
            for part in _parts(shifts):
                first, last = max(rows.start, part.first), min(rows.stop, part.last)
                if first < last:
                    there = (slice(None), slice(first + part.ahead, last + part.ahead), *part.places)
                    queries = (slice(None), slice(first - rows.start, last - rows.start), *part.queries)
                    planes[part.residue][there] += made[part.head][queries]
        for residue, plane in planes.items():
            target = found[(slice(None), *(slice(r, None, s) for r, s in zip(residue, shifts.step, strict=True)))]
            if bias is None:
                target.copy_(plane)
            else:
                target.copy_(plane.add_(bias.view(-1, *(1,) * len(residue))))


def _products(matrix: Tensor, tokens: Tensor, scratch: Scratch) -> Tensor:
    """Of (heads·C, D) and some tokens (*, D), as images; what is copied for it is gone when the next are made."""
    seen = tokens.to(matrix.dtype).flatten(0, -2)
    return torch.mm(matrix, seen.mT, out=scratch("made", len(matrix), len(seen)))


def _rows(shifts: Shifts, channels: int) -> int:
    """Queries along the first axis whose products are made at a time."""
    row = len(shifts.offsets) * channels * max(1, prod(shifts.output[1:]))
    return max(1, min(shifts.output[0], queries_per_block(max(1, BLOCK // row))))


@lru_cache(maxsize=1024)
def _planes(shifts: Shifts) -> dict[Ints, Ints]:
    """For each residue of tokens modulo the stride, how many tokens it has, an axis each."""
    sizes = {
        residue: tuple(len(range(r, n, s)) for r, n, s in zip(residue, shifts.size, shifts.step, strict=True))
        for residue in product(*map(range, shifts.step))
    }
    return {residue: size for residue, size in sizes.items() if prod(size)}


@lru_cache(maxsize=256)
def _parts(shifts: Shifts) -> tuple[Part, ...]:
    """What every head adds; those that see nothing are left out."""
    found = []
    for head, offset in enumerate(shifts.offsets):
        residue = tuple(e % s for e, s in zip(offset, shifts.step, strict=True))
        if residue not in _planes(shifts):
            continue
        ahead = [e // s for e, s in zip(offset, shifts.step, strict=True)]
        ends = [*zip(ahead, _planes(shifts)[residue], shifts.output, strict=True)]
        bounds = [(max(0, -n), min(o, size - n)) for n, size, o in ends]
        if all(first < last for first, last in bounds):
            others = [*zip(bounds, ahead, strict=True)][1:]
            queries = tuple(slice(first, last) for (first, last), _ in others)
            places = tuple(slice(first + n, last + n) for (first, last), n in others)
            found.append(Part(head, residue, *bounds[0], ahead[0], queries, places))
    return tuple(found)
