"""Soft heads of position-only attention without autograd: one small softmax matrix for each axis, applied one after the other.

P^h = P_1^h ⊗ … ⊗ P_d^h (:mod:`construct.execution.axial`).  The last axis comes first, as rows; what is left is then always a
batch of products with one matrix, and comes out as the next product reads it.
"""

from math import prod

import torch
from torch import Tensor

from construct.encoding.encodings import Encoding
from construct.execution.kernels.blocks import pieces
from construct.tokens import TokenGrid

NEGLIGIBLE = 2.0**-100
"""Entries of a factor below this are set to zero: products with numbers near the smallest are many times slower.  The
certificate's bound counts them (:mod:`verify.rounding.model`)."""
FACTOR_BYTES = 2**25
"""The largest factor that is made whole (32 MiB)."""
AT_ONCE = 2**16
"""How many entries of factors are computed at a time; a single factor may have more."""
FactorKey = tuple[float, ...]
"""The components of c that a factor depends on: heads with equal ones share it."""


def fits(grid: TokenGrid) -> bool:
    """Whether every factor fits in ``FACTOR_BYTES``."""
    return all(8 * n * len(queries) <= FACTOR_BYTES for n, queries in zip(grid.shape, grid.queries, strict=True))


def memory(grid: TokenGrid, heads: int, size: int, recorded: bool) -> int:
    """Bytes of the factors of so many heads, ``size`` bytes a number, and of what is worked out at a time.

    Of scores in float64 there are two terms and their sum for every head, and for all heads the shifts and their squares.
    ``recorded``: as for factors that do not fit, rows of a single one are held.
    """
    total = 0
    for n, queries in zip(grid.shape, grid.queries, strict=True):
        entries = n * len(queries)
        if recorded or not fits(grid):
            total += 40 * max(n, min(FACTOR_BYTES // 8, entries))
        else:
            total += 24 * min(heads * entries, max(entries, AT_ONCE)) + 16 * entries + heads * entries * size
    return total


def factor_keys(c: Tensor, encoding: Encoding, dims: int) -> list[list[FactorKey]]:
    """The keys of the factors of every head, an axis each."""
    values = c.tolist()
    return [[tuple(row[p] for p in encoding.components(axis)) for row in values] for axis in range(dims)]


def attended(x: Tensor, w: Tensor, c: Tensor, encoding: Encoding, grid: TokenGrid) -> Tensor:
    """Σ_h P^h X W_h: x (B, D_in, *shape), padded, in the working type, and w (heads, groups, C, D) → (B, *o, groups, D).

    c is float64 (heads, D_p), of an encoding that factorises.
    """
    last, (_, groups, channels, width) = len(grid.shape) - 1, w.shape
    batch, queries = len(x), grid.query_shape
    # (n_d, B, n_1, …, n_{d−1}, D_in)
    tokens = x.movedim(1, -1).movedim(last + 1, 0).contiguous()
    head_keys = factor_keys(c, encoding, last + 1)
    factors = [_factors(c, encoding, grid, axis, x.dtype, head_keys[axis]) for axis in range(last + 1)]
    total = x.new_zeros(groups, queries[last] * batch * prod(queries[:last]), width)
    shared: dict[FactorKey, list[int]] = {}
    for head, key in enumerate(head_keys[last]):
        shared.setdefault(key, []).append(head)
    for key, heads in shared.items():
        first = factors[last][key] @ tokens.flatten(1)  # (q_d, B · n_1 … n_{d−1} · D_in)
        for head in heads:
            partial, leading, trailing = first, prod(grid.shape[:last]), groups * channels
            for axis in range(last - 1, -1, -1):
                leading //= grid.shape[axis]
                factor = factors[axis][head_keys[axis][head]]
                lines = partial.view(queries[last] * batch * leading, grid.shape[axis], trailing)
                partial = torch.bmm(factor.expand(len(lines), -1, -1), lines)
                trailing *= queries[axis]
            rows = partial.view(-1, groups, channels)
            if groups == 1:
                total[0].addmm_(rows[:, 0], w[head, 0])
            else:
                total.baddbmm_(rows.transpose(0, 1), w[head])
    y = total.view(groups, queries[last], batch, *queries[:last], width)  # (g, q_d, B, q_1, …, q_{d−1}, D)
    return y.movedim(0, -2).movedim(0, last + 1)  # (q_d, B, q_1, …, g, D), and then q_d behind its neighbours


def _factors(
    c: Tensor, encoding: Encoding, grid: TokenGrid, axis: int, dtype: torch.dtype, head_keys: list[FactorKey]
) -> dict[FactorKey, Tensor]:
    """P_i of every key: (q_i, n_i), rows adding up to 1."""
    keys = torch.arange(grid.shape[axis], dtype=torch.float64, device=c.device)
    delta = keys[None, :] - grid.queries[axis].to(c.device).double()[:, None]
    heads = {key: head for head, key in enumerate(head_keys)}  # one for each key: heads of one key have one factor
    factors: dict[FactorKey, Tensor] = {}
    for part in pieces(len(heads), max(1, AT_ONCE // max(1, delta.numel()))):
        block = [*heads][part]
        p = torch.softmax(encoding.along(c[[heads[key] for key in block]], delta, axis), dim=2).to(dtype)
        factors |= zip(block, p.masked_fill_(p < NEGLIGIBLE, 0).unbind(), strict=True)
    return factors
