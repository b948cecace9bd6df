"""What a stride sends back, all residues in one batch of products: x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] w_hᵀ.

Tokens t of one residue modulo the stride are seen by the same heads, and what these see y by is a window that moves by one from
token to token.  Each residue has a window of its own, but all of them lie among the windows of one grid, the longest along each
axis: those are laid out once, (windows, tokens·D), and multiplied by the matrices of each residue, zeros where it has no head.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import torch
from torch import Tensor, constant_pad_nd

from construct.attention import queries_per_block
from construct.execution.layout import Ints, Shifts, cut, pieces, through

WASTE = 2.0
"""Up to so many times the products that are needed are worth fewer steps, ..."""
WASTED = 2**24
"""... as long as those in vain are no more than this many multiplications."""
BLOCK = 2**18
"""Numbers of windows that are laid out at a time: 1 MiB of float32, which stays in a core's cache."""
LEAST = 2**7
"""Fewer windows than this are not worth laying out the weights anew."""
NARROW = 16
"""Fewer channels than this are no rows of a product."""

Box = tuple[slice, ...]


@dataclass(frozen=True)
class Block:
    """Some windows: where their tokens lie, and where what is made of them belongs.

    Attributes:
        count: how many along each axis.
        slots: for each token of a window, those of all windows, in y with zeros around.
        parts: for each residue that has any of them, its number, what is wanted of the products, and where among the tokens.
    """

    count: Ints
    slots: tuple[Box, ...]
    parts: tuple[tuple[int, Box, Box], ...]


@dataclass(frozen=True)
class Windows:
    """The windows of y, and what each residue makes of them.

    Attributes:
        pads: zeros around y, as torch takes them: from the last axis, which is that of channels.
        start: of y with these, the first token of the first window, an axis each.
        count: how many windows, an axis each.
        length: tokens of a window, an axis each.
        first: for each residue, the residue, its first window, and how many follow, an axis each.
        places: of each head, among the tokens of the windows of all residues; those of heads that see nothing are left out.
        heads: which have places; in order.
        needed: pairs of a token that is found and a head that it is seen by; made are as many as windows times ``made``.
    """

    pads: Ints
    start: Ints
    count: Ints
    length: Ints
    first: tuple[tuple[Ints, Ints, Ints], ...]
    places: Ints
    heads: Ints
    needed: int

    @property
    def slots(self) -> int:
        """Tokens of a window."""
        return prod(self.length)

    @property
    def made(self) -> int:
        """Matrices of all residues, zeros among them."""
        return len(self.first) * self.slots


def windows(shifts: Shifts, images: int, channels: int, width: int) -> Windows | None:
    """The windows, if there is more than one residue and this way is quick.

    Args:
        shifts: where the heads look.
        images: B.
        channels: of the tokens that are found.
        width: of y.
    """
    found = _windows(shifts)
    if found is None:
        return None
    many, products = images * prod(found.count), prod(found.count) * found.made
    vain = images * (products - found.needed) * channels * width
    return found if many >= LEAST and products <= WASTE * found.needed and vain <= WASTED else None


@lru_cache(maxsize=1024)
def _windows(shifts: Shifts) -> Windows | None:
    seen = [(residue, *through(shifts, residue)) for residue in product(*map(range, shifts.step))]
    seen = [(residue, heads, there) for residue, heads, there in seen if min(there.output) > 0]
    looking = [there for _, heads, there in seen if heads]
    if len(seen) < 2 or not looking or 0 in shifts.output:
        return None
    if any(len(set(there.offsets)) < len(there.offsets) for there in looking):
        return None  # two heads at one place
    start = tuple(map(min, zip(*(there.least for there in looking), strict=True)))
    length = tuple(1 + max(axis) for axis in zip(*(there.reach for there in looking), strict=True))
    residues, places = [], dict[int, int]()
    for number, (residue, heads, there) in enumerate(seen):
        least = there.least if heads else start
        residues.append((residue, tuple(n - m for n, m in zip(least, start, strict=True)), there.output))
        for head, offset in zip(heads, there.offsets, strict=True):
            place = number
            for e, low, n in zip(offset, least, length, strict=True):
                place = place * n + e - low
            places[head] = place
    count = tuple(max(first[axis] + n[axis] for _, first, n in residues) for axis in range(len(start)))
    pads = [0, 0]
    for begin, n, along, size in reversed([*zip(start, count, length, shifts.output, strict=True)]):
        pads += [max(0, -begin), max(0, begin + n + along - 1 - size)]
    heads = tuple(sorted(places))
    ahead = tuple(max(0, begin) for begin in start)
    needed = sum(len(heads) * prod(there.output) for _, heads, there in seen)
    return Windows(
        tuple(pads), ahead, count, length, tuple(residues), tuple(places[head] for head in heads), heads, needed
    )


@lru_cache(maxsize=1024)
def _blocks(todo: Windows, step: Ints, rows: int) -> tuple[Block, ...]:
    """All windows, so many along the first axis at a time."""
    found = []
    for some in pieces(todo.count[0], rows):
        count = (some.stop - some.start, *todo.count[1:])
        slots = []
        for ahead in product(*map(range, todo.length)):
            begin = [n + m for n, m in zip(todo.start, ahead, strict=True)]
            slots.append(_box((begin[0] + some.start, *begin[1:]), count))
        parts = []
        for number, (residue, first, n) in enumerate(todo.first):
            low, high = max(some.start, first[0]), min(some.stop, first[0] + n[0])
            if low < high:
                size = (high - low, *n[1:])
                starts = ((low - first[0]) * step[0] + residue[0], *residue[1:])
                place = (slice(b, b + s * (m - 1) + 1, s) for b, s, m in zip(starts, step, size, strict=True))
                parts.append((number, _box((low - some.start, *first[1:]), size), tuple(place)))
        found.append(Block(count, tuple(slots), tuple(parts)))
    return tuple(found)


def _box(begin: Ints, size: Ints) -> Box:
    return tuple(slice(n, n + m) for n, m in zip(begin, size, strict=True))


def _rows(todo: Windows, width: int) -> int:
    """Windows of the first axis that are laid out at a time."""
    return queries_per_block(max(1, BLOCK // (prod(todo.count[1:]) * todo.slots * width)))


def memory(todo: Windows, output: Ints, images: int, channels: int, width: int) -> int:
    """Numbers that :func:`by_residues` holds besides its arguments: y, once more with zeros around, windows, products, weights.

    Args:
        todo: from :func:`windows`.
        output: the spatial size of y.
        images: B.
        channels: C.
        width: D.
    """
    zeros = zip(reversed(todo.pads[2::2]), reversed(todo.pads[3::2]), strict=True)
    around = prod(before + n + after for n, (before, after) in zip(output, zeros, strict=True))
    rows = min(_rows(todo, width), todo.count[0]) * prod(todo.count[1:])
    return (
        2 * images * around * width
        + rows * (todo.slots * width + len(todo.first) * channels)
        + todo.made * width * channels
    )


def by_residues(y: Tensor, w: Tensor, todo: Windows, step: Ints, out: Tensor, bias: Tensor | None) -> None:
    """The sum above, into ``out``.

    Args:
        y: (B, *o, D), any strides, any dtype.
        w: w_hᵀ of all heads, (heads, D, C), in the dtype to compute in.
        todo: from :func:`windows`.
        step: s.
        out: (B, *n, C), any strides, any dtype.
        bias: (1, C).
    """
    _, width, channels = w.shape
    around = constant_pad_nd(y.to(w.dtype), todo.pads)
    matrices = _matrices(w, todo)
    blocks = _blocks(todo, step, _rows(todo, width))
    most, residues = prod(blocks[0].count), len(todo.first)
    buffer, outputs = w.new_empty(most, todo.slots * width), w.new_empty(residues * most * channels)
    first = out.stride(-1) > 1 and channels >= NARROW  # products then are made as they are to lie in the output
    for tokens, targets in zip(around, out, strict=True):
        for block in blocks:
            count = prod(block.count)
            seen, flat = cut(buffer, slice(0, count)), outputs[: residues * count * channels]
            laid_out = seen.view(*block.count, todo.slots, width)
            for slot, box in enumerate(block.slots):
                laid_out[..., slot, :] = tokens[box]
            every = seen.expand(residues, -1, -1)
            if first:
                found = torch.bmm(matrices.mT, every.mT, out=flat.view(residues, channels, count)).mT
            else:
                found = torch.bmm(every, matrices, out=flat.view(residues, count, channels))
            found = found.unflatten(1, block.count)
            for part, wanted, place in block.parts:
                products, target = found[part][wanted], targets[place]
                if bias is not None and target.dtype == products.dtype:
                    torch.add(products, bias, out=target)
                else:
                    target.copy_(products if bias is None else products.add_(bias))


def _matrices(w: Tensor, todo: Windows) -> Tensor:
    """The w_hᵀ of each residue's window below each other, zeros where no head looks: (residues, tokens·D, C)."""
    some = w if len(todo.heads) == len(w) else w[list(todo.heads)]
    matrices = (w.new_empty if todo.made == len(todo.heads) else w.new_zeros)(todo.made, *w.shape[1:])
    matrices.index_copy_(0, torch.tensor(todo.places, device=w.device), some)
    return matrices.view(len(todo.first), -1, w.shape[2])
