"""Soft heads of position-only attention without autograd: one small softmax matrix per axis, applied one after the other.

P^h = P_1^h ⊗ … ⊗ P_d^h (:mod:`construct.execution.axial`) is evaluated for a range of queries of the longest axis at a time.
The factors of that axis are rows of one matrix product; every other axis is a batch of products with one matrix, whose output
is the input of the next.
"""

from math import prod

import torch
from torch import Tensor

from construct.encoding.encodings import Encoding
from construct.execution.blocks import most_queries, pieces, queries_per_block
from construct.execution.shifts.gemm import product
from construct.execution.shifts.workspace import workspace
from construct.tokens import TokenGrid

NEGLIGIBLE = 2.0**-100
"""Entries of a factor below this are set to zero: products with numbers near underflow are many times slower.  The
certificate's bound counts them (:mod:`verify.rounding.model`)."""
FACTOR_BYTES = 2**25
"""The largest factor that is computed as a whole (32 MiB)."""
SCORES_AT_ONCE = 2**16
"""How many entries of factors are computed at a time; a single factor may have more."""
AT_ONCE, AT_ONCE_ON_GPU = 2**22, 2**28
"""Bytes of tokens computed at a time (4 MiB; 256 MiB on a GPU)."""
FactorKey = tuple[float, ...]
"""The components of c that a factor depends on: heads with equal keys share the factor."""


def fits(grid: TokenGrid) -> bool:
    """Whether every factor fits in ``FACTOR_BYTES``."""
    return all(8 * n * queries <= FACTOR_BYTES for n, queries in zip(grid.shape, grid.query_shape, strict=True))


def memory(grid: TokenGrid, heads: int, channels: int, dtype: torch.dtype, gpu: bool, recorded: bool) -> int:
    """Bytes of the factors of ``heads`` heads, and of what is computed at a time; ``channels`` is D_in times the batch size.

    Float64 scores take two terms and their sum for every head, and the shifts and their squares once for all heads.
    If ``recorded``, as for factors that do not fit, only rows of a single factor are held.
    """
    total, size = 0, dtype.itemsize
    for n, queries in zip(grid.shape, grid.query_shape, strict=True):
        entries = n * queries
        if recorded or not fits(grid):
            total += 40 * max(n, min(FACTOR_BYTES // 8, entries))
        else:
            total += 24 * min(heads * entries, max(entries, SCORES_AT_ONCE)) + 16 * entries + heads * entries * size
    if recorded or not fits(grid):
        return total
    first, row = _order(grid)[0], _numbers_per_query(grid, heads, channels)
    total += heads * grid.shape[first] * grid.query_shape[first] * size  # rows of the first axis, copied
    return total + min(grid.query_shape[first], max(1, at_once(dtype, gpu) // max(1, row))) * row * size


def at_once(dtype: torch.dtype, gpu: bool) -> int:
    """How many numbers are computed at a time."""
    return (AT_ONCE_ON_GPU if gpu else AT_ONCE) // dtype.itemsize


def _order(grid: TokenGrid) -> list[int]:
    """The axes, the longest first: heads with equal factors share only the product along the first."""
    return sorted(range(len(grid.shape)), key=grid.shape.__getitem__, reverse=True)


def _numbers_per_query(grid: TokenGrid, heads: int, channels: int) -> int:
    """Numbers computed per query of the first axis: each head's tokens before and after the other axes, and two buffers."""
    widest = prod(max(grid.shape[axis], grid.query_shape[axis]) for axis in _order(grid)[1:])
    return (2 * heads + 2) * channels * widest


def factor_keys(c: Tensor, encoding: Encoding, dims: int) -> list[list[FactorKey]]:
    """For each axis, the key of every head's factor."""
    values = c.tolist()
    return [[tuple(row[p] for p in encoding.components(axis)) for row in values] for axis in range(dims)]


def attended(x: Tensor, w: Tensor, c: Tensor, encoding: Encoding, grid: TokenGrid) -> Tensor:
    """Σ_h P^h X W_h: x (B, D_in, *shape), padded, in the working type, and w (heads, groups, C, D) → (B, *o, groups, D).

    c is float64 (heads, D_p), for an encoding that factorises.
    """
    (batch, total_channels), (heads, groups, channels, width) = x.shape[:2], w.shape
    order = _order(grid)
    shape, queries = ([sizes[axis] for axis in order] for sizes in (grid.shape, grid.query_shape))
    first_axis, *other_axes = (axis + 2 for axis in order)
    tokens = x.permute(first_axis, 0, *other_axes, 1).flatten(1)  # (n_1, B · n_2 … n_d · D_in)
    keys = factor_keys(c, encoding, len(order))
    (rows, number), *others = [_factors(c, encoding, grid, axis, x.dtype, keys[axis]) for axis in order]
    matrices = w.movedim(0, 1).flatten(1, 2)
    lines = batch * prod(queries[1:])
    y = x.new_empty(groups, queries[0] * lines, width)
    fitting = at_once(x.dtype, not x.is_cpu) // max(1, _numbers_per_query(grid, heads, batch * total_channels))
    parts = pieces(queries[0], queries_per_block(fitting, most_queries()))
    buffer = workspace("columns", x, (parts[0].stop if parts else 0) * lines * heads * total_channels)
    for part in parts:
        count = part.stop - part.start
        first = product(rows[:, part].flatten(0, 1), tokens).view(len(rows), count, tokens.shape[1])
        # The heads' tokens are adjacent, like im2col's columns, so that one product sums over the heads.
        columns = buffer[: count * lines * heads * total_channels].view(count * lines, groups, heads, channels)
        for head in range(heads):
            read, leading, trailing = first[number[head]], count * batch, total_channels * prod(shape[1:])
            for n, (factors, which) in zip(shape[1:], others, strict=True):
                trailing //= n
                read = torch.bmm(factors[which[head]].expand(leading, -1, -1), read.view(leading, n, trailing))
                leading *= factors.shape[1]
            columns[:, :, head] = read.view(leading, groups, channels)
        by_group = columns.movedim(1, 0).flatten(2)
        sums = product(by_group[0], matrices[0])[None] if groups == 1 else torch.bmm(by_group, matrices)
        y[:, part.start * lines : part.stop * lines] = sums
    places = [1, *range(3, len(order) + 2)]  # of the axes in y, the longest first; the batch comes second
    back = [places[order.index(axis)] for axis in range(len(order))]
    return y.view(groups, queries[0], batch, *queries[1:], width).permute(2, *back, 0, -1)


def _factors(
    c: Tensor, encoding: Encoding, grid: TokenGrid, axis: int, dtype: torch.dtype, keys: list[FactorKey]
) -> tuple[Tensor, list[int]]:
    """P_i for every distinct key, (K, q_i, n_i), with rows summing to 1; and the number of each head's factor."""
    numbers: dict[FactorKey, int] = {}
    which = [numbers.setdefault(key, len(numbers)) for key in keys]
    heads = [which.index(number) for number in numbers.values()]  # one head per key
    tokens = torch.arange(grid.shape[axis], dtype=torch.float64, device=c.device)
    delta = tokens[None, :] - grid.queries[axis].to(c.device).double()[:, None]
    factors = torch.empty(len(heads), *delta.shape, dtype=dtype, device=c.device)
    for part in pieces(len(heads), max(1, SCORES_AT_ONCE // max(1, delta.numel()))):
        p = torch.softmax(encoding.along(c[heads[part]], delta, axis), dim=2).to(dtype)
        factors[part] = p.masked_fill_(p < NEGLIGIBLE, 0)
    return factors, which
