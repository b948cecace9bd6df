"""Soft heads of position-only attention without autograd: one small softmax matrix for each axis, applied one after the other.

P^h = P_1^h ⊗ … ⊗ P_d^h (:mod:`construct.execution.axial`), evaluated for a range of queries of the first axis at a time.  Its
factors are rows of one matrix product; along every other axis it is a batch of products with one matrix, and what comes out is
what the next product reads.
"""

from math import prod

import torch
from torch import Tensor

from construct.encoding.encodings import Encoding
from construct.execution.kernels import gemm
from construct.execution.kernels.blocks import at_once, most_queries, pieces, queries_per_block
from construct.execution.kernels.workspace import Workspace
from construct.tokens import TokenGrid

NEGLIGIBLE = 2.0**-100
"""Entries of a factor below this are set to zero: products with numbers near the smallest are many times slower.  The
certificate's bound counts them (:mod:`verify.rounding.model`)."""
FACTOR_BYTES = 2**25
"""The largest factor that is made whole (32 MiB)."""
SCORES_AT_ONCE = 2**16
"""How many entries of factors are computed at a time; a single factor may have more."""
FactorKey = tuple[float, ...]
"""The components of c that a factor depends on: heads with equal ones share it."""


def fits(grid: TokenGrid) -> bool:
    """Whether every factor fits in ``FACTOR_BYTES``."""
    return all(8 * n * len(queries) <= FACTOR_BYTES for n, queries in zip(grid.shape, grid.queries, strict=True))


def memory(grid: TokenGrid, heads: int, channels: int, dtype: torch.dtype, gpu: bool, recorded: bool) -> int:
    """Bytes of the factors of so many heads, and of what is computed at a time; ``channels``: D_in of all images.

    Of scores in float64 there are two terms and their sum for every head, and for all heads the shifts and their squares.
    ``recorded``: as for factors that do not fit, rows of a single one are held.
    """
    total, size = 0, dtype.itemsize
    for n, queries in zip(grid.shape, grid.queries, strict=True):
        entries = n * len(queries)
        if recorded or not fits(grid):
            total += 40 * max(n, min(FACTOR_BYTES // 8, entries))
        else:
            total += 24 * min(heads * entries, max(entries, SCORES_AT_ONCE)) + 16 * entries + heads * entries * size
    if recorded or not fits(grid):
        return total
    total += heads * grid.shape[0] * grid.query_shape[0] * size  # rows of the first axis, copied
    row = _numbers(grid, heads, channels)
    return total + min(grid.query_shape[0], max(1, at_once(dtype, gpu) // max(1, row))) * row * size


def _numbers(grid: TokenGrid, heads: int, channels: int) -> int:
    """Numbers computed for one query of the first axis: what each head reads, before and after the other axes; and two between."""
    widest = prod(max(n, len(queries)) for n, queries in zip(grid.shape[1:], grid.queries[1:], strict=True))
    return (2 * heads + 2) * channels * widest


def factor_keys(c: Tensor, encoding: Encoding, dims: int) -> list[list[FactorKey]]:
    """The keys of the factors of every head, an axis each."""
    values = c.tolist()
    return [[tuple(row[p] for p in encoding.components(axis)) for row in values] for axis in range(dims)]


def attended(x: Tensor, w: Tensor, c: Tensor, encoding: Encoding, grid: TokenGrid) -> Tensor:
    """Σ_h P^h X W_h: x (B, D_in, *shape), padded, in the working type, and w (heads, groups, C, D) → (B, *o, groups, D).

    c is float64 (heads, D_p), of an encoding that factorises.
    """
    (batch, total_channels), (heads, groups, channels, width), queries = x.shape[:2], w.shape, grid.query_shape
    tokens = x.movedim(1, -1).movedim(1, 0).flatten(1)  # (n_1, B · n_2 … n_d · D_in)
    keys = factor_keys(c, encoding, len(queries))
    (rows, number), *others = [_factors(c, encoding, grid, axis, x.dtype, keys[axis]) for axis in range(len(queries))]
    matrices, onednn = w.movedim(0, 1).flatten(1, 2), gemm.uses_onednn(x.dtype, x.device)
    lines = batch * prod(queries[1:])
    y = x.new_empty(groups, queries[0] * lines, width)
    numbers = at_once(x.dtype, not x.is_cpu) // max(1, _numbers(grid, heads, batch * total_channels))
    parts = pieces(queries[0], queries_per_block(numbers, most_queries()))
    with Workspace(x, (parts[0].stop if parts else 0) * lines * heads * total_channels) as (buffer,):
        for part in parts:
            count = part.stop - part.start
            first = gemm.product(rows[:, part].flatten(0, 1), tokens, None, None, onednn).view(
                len(rows), count, tokens.shape[1]
            )
            # What the heads read stands side by side, as columns do in im2col, so that their sum is one product.
            columns = buffer[: count * lines * heads * total_channels].view(count * lines, groups, heads, channels)
            for head in range(heads):
                read, leading, trailing = first[number[head]], count * batch, total_channels * prod(grid.shape[1:])
                for n, (factors, which) in zip(grid.shape[1:], others, strict=True):
                    trailing //= n
                    read = torch.bmm(factors[which[head]].expand(leading, -1, -1), read.view(leading, n, trailing))
                    leading *= factors.shape[1]
                columns[:, :, head] = read.view(leading, groups, channels)
            out = y[:, part.start * lines : part.stop * lines]
            gemm.products([columns.movedim(1, 0).flatten(2)], [matrices], None, out, onednn)
    return y.view(groups, queries[0], batch, *queries[1:], width).movedim(0, -2).movedim(0, 1)


def _factors(
    c: Tensor, encoding: Encoding, grid: TokenGrid, axis: int, dtype: torch.dtype, keys: list[FactorKey]
) -> tuple[Tensor, list[int]]:
    """P_i of every distinct key, (K, q_i, n_i), rows adding up to 1; and which of them is each head's."""
    numbers: dict[FactorKey, int] = {}
    which = [numbers.setdefault(key, len(numbers)) for key in keys]
    heads = [which.index(number) for number in numbers.values()]  # one for each key
    tokens = torch.arange(grid.shape[axis], dtype=torch.float64, device=c.device)
    delta = tokens[None, :] - grid.queries[axis].to(c.device).double()[:, None]
    factors = torch.empty(len(heads), *delta.shape, dtype=dtype, device=c.device)
    for part in pieces(len(heads), max(1, SCORES_AT_ONCE // max(1, delta.numel()))):
        p = torch.softmax(encoding.along(c[heads[part]], delta, axis), dim=2).to(dtype)
        factors[part] = p.masked_fill_(p < NEGLIGIBLE, 0)
    return factors, which
