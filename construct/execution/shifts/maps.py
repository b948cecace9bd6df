"""The three maps of one-hot heads: im2col, one GEMM, and col2im for the adjoint, in blocks that fit
into a processor's cache.

With X, the tokens that all heads see side by side, and Y, the outputs:

    forward    Y = X W          adjoint    X = Y Wᵀ, added back head by head          weights    W = Xᵀ Y

Tokens are the rows of X if images have channels last in memory.  With channels first all products
are transposed.  No query is multiplied but those of the block, so NaN and infinity of images reach
what sees them and nothing else; those of a kernel may reach zeros of the padding, too.

On a GPU, where starting an operation takes longer than a small product, blocks are larger, and the
adjoint is a forward map: nothing is added head by head, or in an order that is not fixed.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

import construct.tokens as tokens
from construct.execution.blocks import queries_per_block
from construct.execution.shifts.depthwise import depthwise, depthwise_weights
from construct.execution.shifts.gemm import product
from construct.execution.shifts.windows import (
    Block,
    Ints,
    Shifts,
    blocks,
    filled_images,
    is_last,
    new_images,
    workspace,
)

AT_ONCE = 2**20
"""Numbers of X at a time, for every thread (4 MiB in float32)."""
AT_ONCE_ELSEWHERE = 2**26
"""The same where it takes long to start an operation (256 MiB)."""
MOST_WIDER = 2
MIN_FLIPPED = 2**2
"""Up to so many outputs a channel, and from so many queries an output, the adjoint of stride 1 is
faster as a forward map.
"""
MIN_QUERIES = 2**8
"""Queries at a time, at least: every product reads all weights.  Smaller images are multiplied
together.
"""


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
        return depthwise(x, w, bias, shifts, last, adjoint=False)
    matrix, out = w.transpose(0, 1).flatten(1, 2), None  # (g, heads·C, D)
    for at, few, images, block in _blocks(x, w.shape, shifts, last):
        columns = _columns(images, block, shifts, at, groups)
        y = _as_images(_times(columns, matrix, bias, at), block, at)
        if y.shape == (len(x), groups * width, *shifts.output) and last == (at == 1):
            # torch forbids in-place changes of a view that an autograd function returns
            return y.data
        if out is None:
            out = new_images(x, groups * width, shifts.output, last)
        out[few][(..., *block.outputs)] = y
    assert out is not None
    return out


def adjoint(y: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, last: bool) -> Tensor:
    """x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] W_hᵀ: y (B, g·D, *o), w (heads, g, C, D), bias
    (g·C,) → (B, g·C, *n).

    ``last`` as for :func:`forward`.
    """
    heads, groups, channels, width = w.shape
    few = width <= MOST_WIDER * channels and prod(shifts.output) >= MIN_FLIPPED * width
    if (few and max(shifts.step) == 1) or shifts.pointwise or tokens.host_waits(y.device):
        w = w.flip(0) if heads > 1 else w
        return forward(_stuffed(y, shifts), w.mT, bias, shifts.flipped, last)
    out = filled_images(y, groups * channels, shifts.size, last, bias)
    if not (y.numel() and out.numel() and heads):
        return out
    if _adds_in_place(y, groups, channels, width):
        return depthwise(y, w, bias, shifts, last, adjoint=True)
    matrix = w.transpose(0, 1).flatten(1, 2).mT  # (g, D, heads·C)
    for at, few, given, block in _blocks(y, w.shape, shifts, last):
        whole = out[few]
        place = whole[(..., *block.source)]
        window = place if block.lies_in(whole, at) else block.zeros(whole, at)
        columns = _times(_outputs(given, block, at, groups), matrix, None, at)
        sums = _as_images(columns, block, at).unflatten(1, (groups, heads, channels)).unbind(2)
        by_group = window.unflatten(1, (groups, channels))
        for target, addend in zip(block.head_views(by_group, shifts), sums, strict=True):
            target.add_(addend)
        del columns, sums, addend  # before the next ones take as much memory
        if window is not place:
            place.add_(window[(..., *block.inside)])
    return out


def weights(x: Tensor, y: Tensor, shifts: Shifts, groups: int) -> Tensor:
    """W_h = Σ_o x[s·o + e_h]ᵀ y[o]: x (B, g·C, *n), y (B, g·D, *o) → (heads, g, C, D)."""
    shape = (len(shifts.offsets), groups, x.shape[1] // groups, y.shape[1] // groups)
    if not (x.numel() and y.numel() and shape[0]):
        return x.new_zeros(shape)
    if _adds_in_place(x, *shape[1:]):
        return depthwise_weights(x, y, shifts)
    total: Tensor | None = None
    for at, few, images, block in _blocks(x, shape, shifts, is_last(x)):
        columns = _columns(images, block, shifts, at, groups)
        outputs = _outputs(y[few], block, at, groups)
        if at == 1:
            both = product(outputs.mT, columns)[None]  # (1, D, heads·C)
        elif groups == 1 == len(columns):
            both = product(outputs[0, 0], columns[0, 0].mT)[None]
        else:
            both = torch.matmul(outputs, columns.mT).sum(0)
        total = both if total is None else total.add_(both)
    assert total is not None
    return total.mT.unflatten(1, (shape[0], shape[2])).transpose(0, 1)


def _blocks(
    x: Tensor, w_shape: Ints, shifts: Shifts, last: bool
) -> Iterator[tuple[int, slice, Tensor, Block]]:
    """The axis of tokens in matrices, 1 for rows or 2 for columns; which images; these images; and
    a block of outputs.
    """
    small = len(x) > 1 and prod(x.shape[2:]) < MIN_QUERIES
    at = 1 if (last or small) and w_shape[1] == 1 else 2
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
            yield at, few, images, block


def _columns(images: Tensor, block: Block, shifts: Shifts, at: int, groups: int) -> Tensor:
    """im2col, the tokens of all heads side by side: (B, g·C, *n) → (B·M, heads·C), or
    (B, g, heads·C, M).
    """
    if shifts.pointwise:
        return _outputs(images, block, at, groups)
    window = block.window(images, at).unflatten(1, (groups, -1))
    whole = shifts.rectangle is not None
    views = [block.rectangle_view(window, shifts)] if whole else [*block.head_views(window, shifts)]
    if at == 1:  # (B, *shape, 1, …, C)
        dims = len(block.shape)
        views = [view.movedim([*range(-dims, 0)], [*range(1, dims + 1)]) for view in views]
    if not whole:
        view = torch.stack(views, -2 if at == 1 else 2)
    elif len(shifts.offsets) > 1:
        view = workspace("columns", window, *views[0].shape).copy_(views[0])
    else:
        (view,) = views
    width = len(shifts.offsets) * window.shape[2]
    return view.reshape(-1, width) if at == 1 else view.reshape(*window.shape[:2], width, -1)


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
