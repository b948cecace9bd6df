"""The three maps of one-hot heads: im2col, one GEMM, and col2im for the adjoint, in blocks that fit
into a processor's cache.

With X, the tokens that all heads see side by side, and Y, the outputs:

    forward    Y = X W          adjoint    X = Y Wᵀ, added back head by head          weights    W = Xᵀ Y

Tokens are the rows of X if images have channels last in memory; else all products are transposed.
No query is multiplied but those of the block: NaN and infinity of images reach what sees them and
nothing else.  On a GPU nothing is added head by head, or in an order that is not fixed.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

import construct.tokens as tokens
from construct.execution.blocks import queries_per_block
from construct.execution.shifts.gemm import product
from construct.execution.shifts.windows import (
    Block,
    Ints,
    Shifts,
    blocks,
    filled_images,
    in_layout,
    is_last,
    new_images,
    pairs,
    workspace,
)

AT_ONCE = 2**20
"""Numbers of X at a time, for every thread (4 MiB in float32)."""
AT_ONCE_ELSEWHERE = 2**26
"""The same where it takes long to start an operation (256 MiB)."""
MOST_WIDER = 2
MIN_FLIPPED = 2**2
"""The adjoint of stride 1 is a forward map up to so many outputs a channel, from so many queries an
output: it is faster there.
"""
MIN_ROW = 2**4
"""Queries of a row from which depthwise layers have channels first; a shorter row makes no loop."""
MIN_QUERIES = 2**8
"""Queries at a time, at least, of several small images: every product reads all weights."""


def queries_at_once(columns: int, device: torch.device) -> int:
    """About how many queries are multiplied at a time, if heads see so many numbers from each."""
    most = AT_ONCE_ELSEWHERE if tokens.host_waits(device) else AT_ONCE * torch.get_num_threads()
    return max(MIN_QUERIES, most // columns)


def forward(x: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, last: bool) -> Tensor:
    """y[o] = b + Σ_h x[s·o + e_h] W_h: x (B, g·C, *n), w (heads, g, C, D), bias (g·D,) →
    (B, g·D, *o).

    ``last`` asks for a result with channels last in memory, else first.
    """
    _, groups, channels, width = w.shape
    if not (x.numel() and prod(shifts.output) and w.numel()):
        return filled_images(x, groups * width, shifts.output, last, bias)
    if _adds_in_place(x, groups, channels, width):
        return _depthwise(x, w, bias, shifts, last, back=False)
    matrix = w.transpose(0, 1).flatten(1, 2)  # (g, heads·C, D)
    at = _axis(x, groups, last)
    out: Tensor | None = None
    for few, images, block in _blocks(x, w.shape, shifts, at):
        columns = _columns(images, block, shifts, at, groups)
        y = _as_images(_times(columns, matrix, bias, at), block, at)
        if y.shape == (len(x), groups * width, *shifts.output):
            return in_layout(y, last)
        if out is None:
            out = new_images(x, groups * width, shifts.output, last)
        out[(few, ..., *block.outputs)] = y
    assert out is not None
    return in_layout(out, last)


def adjoint(y: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, last: bool) -> Tensor:
    """x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] W_hᵀ: y (B, g·D, *o), w (heads, g, C, D), bias
    (g·C,) → (B, g·C, *n).

    ``last`` as for :func:`forward`.
    """
    heads, groups, channels, width = w.shape
    narrow = width <= MOST_WIDER * channels and prod(shifts.output) >= MIN_FLIPPED * width
    flat = (narrow and max(shifts.step) == 1) or shifts.pointwise
    if flat or not (y.numel() and w.numel()) or tokens.host_waits(y.device):
        w = w.flip(0) if heads > 1 else w
        return forward(_stuffed(y, shifts), w.mT, bias, shifts.flipped, last)
    if _adds_in_place(y, groups, channels, width):
        return _depthwise(y, w, bias, shifts, last, back=True)
    matrix = w.transpose(0, 1).flatten(1, 2).mT  # (g, D, heads·C)
    at = _axis(y, groups, last)
    out = filled_images(y, groups * channels, shifts.size, at == 1, bias)
    for few, given, block in _blocks(y, w.shape, shifts, at):
        columns = _times(_outputs(given, block, at, groups), matrix, None, at)
        sums = _as_images(columns, block, at).unflatten(1, (groups, heads, channels)).movedim(2, 0)
        x = out[few].unflatten(1, (groups, channels))
        for _, keys, addend in pairs(shifts, block, x, sums):
            keys.add_(addend)
        columns = sums = addend = None  # before the next ones take as much memory
    return in_layout(out, last)


def weights(x: Tensor, y: Tensor, shifts: Shifts, groups: int) -> Tensor:
    """W_h = Σ_o x[s·o + e_h]ᵀ y[o]: x (B, g·C, *n), y (B, g·D, *o) → (heads, g, C, D)."""
    shape = (len(shifts.offsets), groups, x.shape[1] // groups, y.shape[1] // groups)
    if not (x.numel() and y.numel() and shape[0]):
        return x.new_zeros(shape)
    if _adds_in_place(x, *shape[1:]):
        sums = x.new_zeros(shape[0], x.shape[1])
        for head, keys, queries in _in_place(shifts, x, y):
            sums[head] += (keys * queries).sum((0, *range(2, x.dim())))
        return sums[:, :, None, None]
    at = _axis(x, groups, is_last(x))
    total: Tensor | None = None
    for few, images, block in _blocks(x, shape, shifts, at):
        columns = _columns(images, block, shifts, at, groups)
        outputs = _outputs(y[few], block, at, groups)
        if at == 1:
            both = product(outputs.mT, columns)[None]  # (1, D, heads·C)
        elif groups == 1 == len(columns):
            both = product(outputs[0, 0], columns[0, 0].mT)[None]
        else:
            both = torch.einsum("bgdm,bgkm->gdk", outputs, columns)
        total = both if total is None else total.add_(both)
    assert total is not None
    return total.mT.unflatten(1, (shape[0], shape[2])).transpose(0, 1)


def _axis(images: Tensor, groups: int, last: bool) -> int:
    """The axis of tokens in matrices: 1 for rows, or 2 for columns."""
    small = len(images) > 1 and prod(images.shape[2:]) < MIN_QUERIES
    return 1 if (last or small) and groups == 1 else 2


def _blocks(
    x: Tensor, w_shape: Ints, shifts: Shifts, at: int
) -> Iterator[tuple[slice, Tensor, Block]]:
    """Which images, these images, and a block of outputs."""
    if shifts.pointwise:  # tokens are read in place
        queries = len(x) * prod(shifts.output)
    else:
        queries = queries_per_block(queries_at_once(prod(w_shape[:3]), x.device))
    planned = blocks(shifts, queries)
    alone = len(planned) > 1 or (at == 2 and not tokens.host_waits(x.device))
    together = 1 if alone else max(1, queries // prod(shifts.output))
    for first in range(0, len(x), together):
        few = slice(first, first + together)
        images = x[few]
        for block in planned:
            yield few, images, block


def _columns(images: Tensor, block: Block, shifts: Shifts, at: int, groups: int) -> Tensor:
    """im2col: (B, g·C, *n) → (B·M, heads·C), or (B, g, heads·C, M)."""
    if shifts.pointwise:
        return _outputs(images, block, at, groups)
    window = block.window(images, at).unflatten(1, (groups, -1))
    dims = len(block.shape)

    def ordered(view: Tensor) -> Tensor:  # (B, *shape, g, …, C) if tokens are rows
        if at == 1:
            return view.movedim([*range(-dims, 0)], [*range(1, dims + 1)])
        return view

    if shifts.rectangle is None:
        views = [ordered(view) for view in block.head_views(window, shifts)]
        shape = [*views[0].shape]
        shape.insert(-1 if at == 1 else 2, len(views))
        columns = workspace("columns", window, *shape)
        view = torch.stack(views, -2 if at == 1 else 2, out=columns)
    else:
        view = ordered(block.rectangle_view(window, shifts))
        if len(shifts.offsets) > 1:
            view = workspace("columns", view, *view.shape).copy_(view)
    width = len(shifts.offsets) * window.shape[2]
    if at == 1:
        return view.reshape(-1, width)
    return view.reshape(*window.shape[:2], width, -1)


def _outputs(images: Tensor, block: Block, at: int, groups: int) -> Tensor:
    """The outputs of a block, of images (B, g·D, *o): (B·M, D), or (B, g, D, M)."""
    outputs = images[(..., *block.outputs)]
    if at == 1:
        return outputs.movedim(1, -1).reshape(-1, images.shape[1])
    return outputs.flatten(2).unflatten(1, (groups, -1))


def _as_images(outputs: Tensor, block: Block, at: int) -> Tensor:
    """The outputs of a block, (B·M, D) or (B, g, D, M), as images (B, g·D, *shape)."""
    if at == 1:
        return outputs.reshape(-1, *block.shape, outputs.shape[1]).movedim(-1, 1)
    return outputs.reshape(len(outputs), -1, *block.shape)


def _times(columns: Tensor, matrix: Tensor, bias: Tensor | None, at: int) -> Tensor:
    """(B·M, K) or (B, g, K, M), times (g, K, N) → (B·M, N) or (B, g, N, M)."""
    if at == 1:
        return product(columns, matrix[0], bias)
    if len(matrix) == 1 == len(columns):
        y = product(matrix[0].mT, columns[0, 0])[None, None]
    else:
        y = torch.matmul(matrix.mT, columns)
    return y if bias is None else y.add_(bias.view(len(matrix), -1, 1))


def _stuffed(y: Tensor, shifts: Shifts) -> Tensor:
    """Outputs with zeros between them, where they see inputs at some distance from each other."""
    if max(shifts.step) == 1:
        return y
    stuffed = y.new_zeros(*y.shape[:2], *shifts.flipped.size)
    stuffed[(..., *(slice(None, None, step) for step in shifts.step))] = y
    return stuffed


def _adds_in_place(x: Tensor, groups: int, channels: int, width: int) -> bool:
    """Whether groups of one channel are added in place, head by head."""
    return channels == width == 1 < groups and not tokens.host_waits(x.device)


def _depthwise(
    images: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, last: bool, back: bool
) -> Tensor:
    """The forward map of groups of one channel, or the adjoint, without products of matrices."""
    rows = last or shifts.output[-1] < MIN_ROW
    images = in_layout(images, rows) if rows else images
    out = filled_images(images, images.shape[1], shifts.size if back else shifts.output, rows, bias)
    factors = w.reshape(len(w), -1, *(1,) * len(shifts.step)).unbind()
    for head, keys, queries in _in_place(shifts, *((out, images) if back else (images, out))):
        if back:
            keys.addcmul_(queries, factors[head])
        else:
            queries.addcmul_(keys, factors[head])
    return in_layout(out, last)


def _in_place(shifts: Shifts, x: Tensor, y: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """As :func:`pairs`, so many outputs at a time that they stay in a core's cache."""
    for block in blocks(shifts, queries_per_block(AT_ONCE // 4 // prod(x.shape[:2]))):
        outputs = y[(..., *block.outputs)]
        yield from pairs(shifts, block, x, outputs.expand(len(shifts.offsets), *outputs.shape))
