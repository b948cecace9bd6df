"""Position-only attention at about the cost of the convolution: the softmax factorised over the
axes.

The quadratic score is a sum over axes, c·r_δ = Σ_i (c_0 δ_i² + c_i δ_i), and so is a learned
relative one: its exponential is a product, and over a rectangular grid the normaliser is one too,

    P^h = P_1^h ⊗ … ⊗ P_d^h,     P_i^h[q, k] = softmax over k of c_0 (k − q)² + c_i (k − q)

Each call decides head by head, from the current numbers (:mod:`construct.execution.plan`): rows
that are one-hot at one shift copy tokens (:mod:`construct.execution.shifts`), others are multiplied
by one factor after the other, and what does not factorise, content above all, is
:mod:`construct.execution.fused`'s.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from construct.encoding.encoding import Encoding
from construct.errors import require
from construct.execution import dense, fused
from construct.execution.blocks import pieces, queries_per_block
from construct.execution.cache import Call, keep, known
from construct.execution.head_matrices import heads_of, merged
from construct.execution.plan import Plan, plan_for
from construct.execution.shifts.maps import queries_at_once
from construct.execution.shifts.operator import evaluate, sliced
from construct.execution.shifts.windows import Shifts
from construct.execution.transforms import is_channels_last, plain
from construct.tokens import TokenGrid

NEGLIGIBLE = 2.0**-100
"""Entries of a factor below this are set to zero: products near underflow are many times slower.
The certificate's bound counts them (:mod:`verify.rounding.model`).
"""
BLOCK_BYTES = 2**22
"""Bytes of tokens, and of factors, that are computed at a time (4 MiB)."""


def run(layer: Any, x: Tensor, grid: TokenGrid) -> Tensor:
    """Eq. 3: x (B, D_in, *n) → (B, D_out, *o).

    Raises:
        NotEnoughMemory: the call does not fit in memory.
    """
    what = f"axial attention of {layer.heads} heads over {grid.query_count} queries and {grid.token_count} keys"
    entry = known(layer, x)
    on_grid = None if entry is None else entry.plan.on(grid)
    plan = on_grid or plan_for(layer, grid)
    dtype = dense.working_dtype(x.dtype)
    require(memory(layer, len(x), grid, plan), x.device, what)
    b_out = layer.b_out.to(dtype)
    w = getattr(layer, entry.whole) if entry and on_grid else merged(layer, dtype, plan.sharp)
    call = _sharp(plan, w, b_out, is_channels_last(x))
    if plan.sharp:
        y = call(x.to(dtype))
    else:
        y = b_out.view(-1, *(1,) * len(grid.shape))
    if plan.soft:
        c = heads_of(layer.position_vector().to(x.device), plan.soft)
        soft = merged(layer, dtype, plan.soft)
        y = y + _softly(grid.padded(x).to(dtype), soft, c, layer.encoding, grid)
    if plan.others:
        y = y + fused.attended(layer, x, grid, plan.others)
    if plan.soft or plan.others:
        return y
    positioned = _with_positions(layer, y)
    if positioned is y:  # while positions are learned, a call that is kept is never taken
        keep(entry, layer, run, x, plan, w, call)
    return positioned


def _with_positions(layer: Any, y: Tensor) -> Tensor:
    """The output y, with gradients 0 instead of None for what says where heads look."""
    tables = [getattr(layer, name) for name in layer.offsets]
    learned = any(t.requires_grad for t in (layer.v, layer.w_key_pos, *tables))
    if not (learned and torch.is_grad_enabled()):
        return y
    zero = layer.position_vector().sum() + sum(table.double().sum() for table in tables)
    return y + (0 * zero).to(y.dtype)


def _sharp(plan: Plan, w: Tensor, b_out: Tensor, last: bool) -> Call:
    """What the sharp heads add up to, of inputs in the type of their matrices w."""
    grid = plan.grid
    if not plain():
        on_tokens = Shifts(plan.starts, grid.step, grid.shape, grid.query_shape)
        return lambda x: sliced(grid.padded(x), w, b_out, on_tokens)
    shifts = plan.shifts
    adjoint = grid.stuffed
    is_padded = grid.affine is None

    def call(x: Tensor) -> Tensor:
        images = grid.padded(x) if is_padded else x
        matrices = w.mT if adjoint else w
        return evaluate(images, matrices, b_out, shifts, adjoint, last)

    return call


def _softly(x: Tensor, w: Tensor, c: Tensor, encoding: Encoding, grid: TokenGrid) -> Tensor:
    """Σ_h P^h X W_h of soft heads: x (B, D_in, *shape), w (heads, groups, C, D), c (heads, D_p)."""
    longest, *others = _longest_first(grid)
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

    a_query = _soft_bytes(grid, len(w), len(x) * x.shape[1], x.element_size())[0]
    most = queries_per_block(max(1, BLOCK_BYTES // a_query))
    parts = pieces(grid.query_shape[longest], most)
    blocks = [fused.bounded(block, part, x, w, *encoding.tensors()) for part in parts]
    return torch.cat(blocks, dim=longest + 2)


def _factors(
    c: Tensor, encoding: Encoding, grid: TokenGrid, axis: int, queries: slice, dtype: torch.dtype
) -> Tensor:
    """Rows of P_i, (heads, q_i, n_i), which sum to 1."""
    keys = torch.arange(grid.shape[axis], dtype=torch.float64, device=c.device)
    delta = keys[None, :] - grid.queries[axis][queries].to(c.device).double()[:, None]
    p = torch.softmax(encoding.along(c[:, None], delta, axis), dim=2).to(dtype)
    return p.masked_fill(p < NEGLIGIBLE, 0)


def _longest_first(grid: TokenGrid) -> list[int]:
    """The axes, the longest first."""
    return sorted(range(len(grid.shape)), key=grid.shape.__getitem__, reverse=True)


def _soft_bytes(grid: TokenGrid, heads: int, channels: int, size: int) -> tuple[int, int]:
    """Bytes for a query of the longest axis, and for the factors along the other axes."""
    longest, *others = _longest_first(grid)
    axes = [(grid.shape[axis], grid.query_shape[axis]) for axis in others]
    widest = prod(map(max, axes))
    a_query = 4 * heads * (channels * widest * size + 8 * grid.shape[longest])
    return a_query, 40 * heads * sum(map(prod, axes))


def memory(layer: Any, batch: int, grid: TokenGrid, plan: Plan | None = None) -> int:
    """A generous bound on the bytes of weights, tokens and outputs; the plan is the grid's."""
    plan = plan or plan_for(layer, grid)
    heads, groups, channels, head_dim = layer.w_val.shape
    width = layer.w_out.shape[3]
    size = dense.working_dtype(layer.w_val.dtype).itemsize
    weights = heads * groups * (2 * channels * width + head_dim * (channels + width))
    inputs = batch * grid.token_count * layer.in_channels
    outputs = batch * grid.query_count * layer.out_channels
    total = size * (weights + 2 * inputs + 5 * outputs) + 32 * sum(grid.shape)
    if plan.sharp:
        columns = len(plan.sharp) * groups * max(channels, width, 1)
        places = batch * max(grid.query_count, prod(grid.size))
        total += 3 * size * columns * min(places, queries_at_once(columns, layer.v.device))
    if plan.soft:
        a_query, factors = _soft_bytes(grid, len(plan.soft), batch * layer.in_channels, size)
        total += factors + 4 * max(BLOCK_BYTES, a_query)
    if plan.others:
        rows = fused.queries_at_once(layer, batch, grid, len(plan.others))
        total += dense.memory(layer, batch, grid, len(plan.others), rows)
    return total


def cost(layer: Any, batch: int, grid: TokenGrid) -> int:
    """Multiplications by matrices, by soft heads' factors, and of attention over all pairs."""
    plan = plan_for(layer, grid)
    _, groups, channels, _ = layer.w_val.shape
    merged_heads = len(plan.sharp) + len(plan.soft)
    total = batch * merged_heads * grid.query_count * groups * channels * layer.w_out.shape[3]
    if plan.others:
        total += dense.cost(layer, batch, grid, len(plan.others))
    done = 1
    left = grid.token_count
    for n, queries in zip(grid.shape, grid.query_shape, strict=True):
        left //= n
        done *= queries
        total += len(plan.soft) * batch * done * n * left * layer.in_channels
    return total


_MEANING = "shifts and factors where attention factorises, at about a convolution's cost; else in blocks of queries"
EXECUTION = dense.Execution(run, memory, _MEANING, cost)
