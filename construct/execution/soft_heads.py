"""Soft heads of position-only attention: one small softmax matrix per axis, applied one after the
other.

P^h = P_1^h ⊗ … ⊗ P_d^h (:mod:`construct.execution.axial`) is evaluated for a block of queries along
the longest axis at a time.
"""

from math import prod

import torch
from torch import Tensor

from construct.encoding.encoding import Encoding
from construct.execution.blocks import pieces, queries_per_block
from construct.execution.fused import bounded
from construct.tokens import TokenGrid

NEGLIGIBLE = 2.0**-100
"""Entries of a factor below this are set to zero: products near underflow are many times slower.
The certificate's bound counts them (:mod:`verify.rounding.model`).
"""
BLOCK_BYTES = 2**22
"""Bytes of tokens, and of factors, that are computed at a time (4 MiB)."""


def attended(x: Tensor, w: Tensor, c: Tensor, encoding: Encoding, grid: TokenGrid) -> Tensor:
    """Σ_h P^h X W_h: x (B, D_in, *shape), padded, in the working type, and w
    (heads, groups, C, D) → (B, groups · D, *o).

    c is float64 (heads, D_p), for an encoding that factorises.
    """
    longest, *others = _order(grid)
    factors = {axis: _factors(c, encoding, grid, axis, slice(None), x.dtype) for axis in others}

    def block(queries: slice, x: Tensor, w: Tensor, *_: Tensor) -> Tensor:
        rows = _factors(c, encoding, grid, longest, queries, x.dtype)
        read = x[None]  # (1 or heads, B, D_in, *shape)
        for axis, factor in ((longest, rows), *factors.items()):
            read = read.movedim(axis + 3, -1)
            read = torch.einsum("h...k,hqk->h...q", read, factor).movedim(-1, axis + 3)
        return torch.einsum("hbgi...,hgio->bgo...", read.unflatten(2, w.shape[1:3]), w).flatten(
            1, 2
        )

    a_query = _bytes_per_query(grid, len(w), x.shape[0] * x.shape[1], x.element_size())
    most = queries_per_block(max(1, BLOCK_BYTES // a_query))
    parts = pieces(grid.query_shape[longest], most)
    blocks = [bounded(block, part, x, w, *encoding.tensors()) for part in parts]
    return torch.cat(blocks, dim=longest + 2)


def _factors(
    c: Tensor, encoding: Encoding, grid: TokenGrid, axis: int, queries: slice, dtype: torch.dtype
) -> Tensor:
    """Rows of P_i, (heads, q_i, n_i), which sum to 1."""
    keys = torch.arange(grid.shape[axis], dtype=torch.float64, device=c.device)
    delta = keys[None, :] - grid.queries[axis][queries].to(c.device).double()[:, None]
    p = torch.softmax(encoding.along(c[:, None], delta, axis), dim=2).to(dtype)
    return p.masked_fill(p < NEGLIGIBLE, 0)


def _order(grid: TokenGrid) -> list[int]:
    """The axes, the longest first."""
    return sorted(range(len(grid.shape)), key=grid.shape.__getitem__, reverse=True)


def _bytes_per_query(grid: TokenGrid, heads: int, channels: int, size: int) -> int:
    """Bytes computed per query of the longest axis: the heads' tokens along the other axes, and its
    row of each head's factor.
    """
    longest, *others = _order(grid)
    widest = prod(max(grid.shape[axis], grid.query_shape[axis]) for axis in others)
    return 4 * heads * (channels * widest * size + 8 * grid.shape[longest])


def memory(grid: TokenGrid, heads: int, channels: int, size: int) -> int:
    """A bound on the bytes of the factors of ``heads`` heads and of a block; ``channels`` is
    B · D_in.
    """
    factors = sum(heads * grid.shape[axis] * grid.query_shape[axis] for axis in _order(grid)[1:])
    return 40 * factors + 4 * max(BLOCK_BYTES, _bytes_per_query(grid, heads, channels, size))
