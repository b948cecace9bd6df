"""Soft heads of position-only attention: one small softmax matrix per axis, applied one after the
other.

P^h = P_1^h ⊗ … ⊗ P_d^h (:mod:`construct.execution.axial`) is evaluated for a block of queries along
the longest axis at a time. The factors of that axis are rows of one matrix product; every other
axis is a batch of products with one matrix, whose output is the input of the next.
"""

from math import prod

import torch
from torch import Tensor

from construct.encoding.encoding import Encoding
from construct.execution.blocks import pieces, queries_per_block
from construct.execution.fused import bounded
from construct.execution.shifts.gemm import product
from construct.execution.transforms import numbers, plain
from construct.tokens import TokenGrid

NEGLIGIBLE = 2.0**-100
"""Entries of a factor below this are set to zero: products with numbers near underflow are many
times slower.  The certificate's bound counts them (:mod:`verify.rounding.model`).
"""
BLOCK_BYTES = 2**22
"""Bytes of tokens, and of factors, that are computed at a time (4 MiB)."""


def attended(x: Tensor, w: Tensor, c: Tensor, encoding: Encoding, grid: TokenGrid) -> Tensor:
    """Σ_h P^h X W_h: x (B, D_in, *shape), padded, in the working type, and w
    (heads, groups, C, D) → (B, groups · D, *o).

    c is float64 (heads, D_p), for an encoding that factorises.
    """
    first, *others = order = _order(grid)
    numbers_of = [_shared(c, encoding, axis) for axis in order]
    factors = [
        _factors(c[heads], encoding, grid, axis, slice(None), x.dtype)
        for axis, (heads, _) in zip(others, numbers_of[1:], strict=True)
    ]
    which = [number for _, number in numbers_of]
    # (n_1, B, n_2, …, n_d, D_in)
    tokens = x.permute(first + 2, 0, *(axis + 2 for axis in others), 1)
    a_query = _bytes_per_query(grid, len(w), x.shape[0] * x.shape[1], x.element_size())
    rows = queries_per_block(max(1, BLOCK_BYTES // max(1, a_query)))
    leading = c[numbers_of[0][0]]
    blocks = [
        bounded(_block, tokens, w, leading, factors, which, encoding, grid, part)
        for part in pieces(grid.query_shape[first], rows)
    ]
    y = torch.cat(blocks) if len(blocks) > 1 else blocks[0]  # (q_1, B, q_2, …, q_d, groups · D)
    places = [order.index(axis) for axis in range(len(order))]
    return y.permute(1, y.dim() - 1, *(place + (place > 0) for place in places))


def _block(
    tokens: Tensor,
    w: Tensor,
    c: Tensor,
    factors: list[Tensor],
    which: list[list[int]],
    encoding: Encoding,
    grid: TokenGrid,
    queries: slice,
) -> Tensor:
    """:func:`attended` for a block of queries of the longest axis: (q, B, q_2, …, q_d, groups · D)."""
    heads, groups, channels, _ = w.shape
    batch, *shape = tokens.shape[1:-1]
    rows = _factors(c, encoding, grid, _order(grid)[0], queries, tokens.dtype)
    if tokens.is_cpu:  # a sharp head attends few keys from these queries
        met = numbers(rows).ne(0).flatten(0, -2).any(0).nonzero()
        near = slice(int(met[0]), int(met[-1]) + 1) if len(met) else slice(0, len(tokens))
        rows = rows[..., near]
        tokens = tokens[near]
    count = rows.shape[1]
    first = _product(rows.flatten(0, 1), tokens.flatten(1)).unflatten(0, rows.shape[:2])
    columns = []
    for head in range(heads):
        read = first[which[0][head]]
        leading = count * batch
        trailing = prod(tokens.shape[2:])
        for n, factor, number in zip(shape, factors, which[1:], strict=True):
            trailing //= n
            read = torch.bmm(
                factor[number[head]].expand(leading, -1, -1), read.reshape(leading, n, trailing)
            )
            leading *= factor.shape[1]
        columns.append(read.reshape(leading, groups, channels))
    # the heads' tokens side by side: one product sums over them
    by_group = torch.stack(columns, 2).movedim(1, 0).flatten(2)
    matrices = w.movedim(0, 1).flatten(1, 2)
    y = _product(by_group[0], matrices[0])[None] if groups == 1 else torch.bmm(by_group, matrices)
    return (
        y.movedim(0, 1)
        .flatten(1)
        .unflatten(0, (count, batch, *(factor.shape[1] for factor in factors)))
    )


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b, by the faster library where nothing is differentiated or transformed: oneDNN's product
    has no derivative.
    """
    recorded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return a @ b if recorded or not plain() else product(a, b)


def _shared(c: Tensor, encoding: Encoding, axis: int) -> tuple[list[int], list[int]]:
    """One head for every distinct factor of an axis, and the number of each head's factor; while c
    is learned, each has its own.
    """
    if not plain() or (torch.is_grad_enabled() and c.requires_grad):
        return [*range(len(c))], [*range(len(c))]
    distinct: dict[tuple[float, ...], int] = {}
    rows = c[:, encoding.components(axis)].tolist()
    which = [distinct.setdefault(tuple(row), len(distinct)) for row in rows]
    return [which.index(number) for number in range(len(distinct))], which


def _factors(
    c: Tensor, encoding: Encoding, grid: TokenGrid, axis: int, queries: slice, dtype: torch.dtype
) -> Tensor:
    """Rows of P_i, (heads, q_i, n_i), which sum to 1."""
    keys = torch.arange(grid.shape[axis], dtype=torch.float64, device=c.device)
    delta = keys[None, :] - grid.queries[axis][queries].to(c.device).double()[:, None]
    p = torch.softmax(encoding.along(c[:, None], delta, axis), dim=2).to(dtype)
    return p.masked_fill(p < NEGLIGIBLE, 0)


def _order(grid: TokenGrid) -> list[int]:
    """The axes, the longest first: heads with equal factors share only the product along the first."""
    return sorted(range(len(grid.shape)), key=grid.shape.__getitem__, reverse=True)


def _bytes_per_query(grid: TokenGrid, heads: int, channels: int, size: int) -> int:
    """Bytes computed per query of the longest axis: the heads' tokens along the other axes, and its
    row of each head's factor.
    """
    widest = prod(max(grid.shape[axis], grid.query_shape[axis]) for axis in _order(grid)[1:])
    return 3 * heads * (channels * widest * size + 8 * max(grid.shape))


def memory(grid: TokenGrid, heads: int, channels: int, size: int) -> int:
    """A bound on the bytes of the factors of ``heads`` heads and of a block; ``channels`` is
    B · D_in.
    """
    factors = sum(heads * grid.shape[axis] * grid.query_shape[axis] for axis in _order(grid)[1:])
    a_query = _bytes_per_query(grid, heads, channels, size)
    return 40 * factors + 2 * min(max(BLOCK_BYTES, a_query), max(grid.query_shape) * a_query)
