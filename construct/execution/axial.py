"""Position-only attention at about the cost of the convolution: the softmax factorised over the axes.

The quadratic score is a sum over axes, c·r_δ = Σ_i (c_0 δ_i² + c_i δ_i), so its exponential is a product, and over a
rectangular grid the normaliser is one too:

    P^h = P_1^h ⊗ … ⊗ P_d^h,     P_i^h[q, k] = softmax over k of c_0 (k − q)² + c_i (k − q)

for every c, sharp or soft, on or off the lattice.  (A learned relative encoding factorises too: each axis has its own
components.)  Heads are evaluated in two ways:

* a head whose rows are all one-hot at the same shift δ copies tokens: :mod:`construct.execution.shifts`;
* any other head multiplies by its factors, axis by axis; heads with a common factor share that product.

Each call decides by the scores, that is by the current ``v`` and ``w_key_pos``.  Content, and soft heads of the parabola or
the covariance, do not factorise: ``chunked`` evaluates these layers, and ``MHSA.explain`` says so.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from construct.encoding.encodings import Encoding
from construct.errors import require
from construct.execution import chunked, soft_heads
from construct.execution.blocks import most_queries, queries_per_block
from construct.execution.byte_cache import bounded_cache
from construct.execution.cache import Call, Run, keep
from construct.execution.chunked import bounded
from construct.execution.dense import multiplications
from construct.execution.head_matrices import merged
from construct.execution.plan import Plan, Sight, axial_plan
from construct.execution.protocol import Execution, Layer, memory_format, working_dtype
from construct.execution.shifts.autograd import evaluate, shifted
from construct.execution.shifts.maps import workspace_bytes
from construct.execution.shifts.plain import AT_ONCE, image_bytes
from construct.execution.soft_heads import FACTOR_BYTES, NEGLIGIBLE, factor_keys
from construct.execution.transforms import numbers, shared_array, transformed
from construct.tokens import TokenGrid


def run(layer: Layer, x: Tensor, grid: TokenGrid) -> Tensor:
    """Eq. 3: x (B, D_in, *n) → (B, D_out, *o).

    Raises:
        NotEnoughMemory: the call does not fit in memory.
    """
    plan = axial_plan(layer, grid)
    return chunked.run(layer, x, grid) if plan is None else run_plan(layer, x, grid, plan, run)


def run_plan(layer: Layer, x: Tensor, grid: TokenGrid, plan: Plan, owner: Run) -> Tensor:
    """As :func:`run`, with a given plan, for the execution whose ``run`` is ``owner``."""
    what = f"axial attention of {layer.heads} heads over {grid.query_count} queries and {grid.token_count} keys"
    require(memory_of(layer, len(x), grid, plan), x.device, what)
    dtype = working_dtype(x.dtype)
    w, b_out = merged(layer.w_val.to(dtype), layer.w_out.to(dtype)), layer.b_out.to(dtype)
    positional = [layer.v, layer.w_key_pos, *(getattr(layer, name) for name in layer.offsets)]
    learned = torch.is_grad_enabled() and any(t.requires_grad for t in positional)
    recorded = transformed() or (torch.is_grad_enabled() and any(t.requires_grad for t in (x, w, b_out, *positional)))
    if plan.sharp:
        sight = Sight.of(grid, plan)
        images, matrices = grid.padded(x) if sight.padded else x, _of(w, plan.sharp)
        y = shifted(
            images.to(dtype), matrices.mT if sight.stuffed else matrices, b_out, sight.shifts, adjoint=sight.stuffed
        )
        if learned:
            zero = layer.position_vector()[list(plan.sharp)].sum() + sum(t.double().sum() for t in positional[2:])
            y = y + 0 * zero.to(dtype)  # so their gradients are 0 instead of None
        if not (recorded or plan.soft):
            keep(layer, owner, x, grid, w, lambda: _prepared(grid, sight, w.detach(), b_out.detach(), memory_format(x)))
    else:
        y = b_out.view(-1, *(1,) * len(grid.shape))
    if not plan.soft:
        return y
    tokens = grid.padded(x).to(dtype)
    if not recorded and soft_heads.fits(grid):
        c = layer.position_vector().detach()[list(plan.soft)].to(x.device)
        attended = soft_heads.attended(tokens, _of(w, plan.soft), c, layer.encoding, grid)
    else:
        attended = _attended(layer, tokens, grid, plan.soft, w)
    return y + attended.movedim((-2, -1), (1, 2)).flatten(1, 2)


def _prepared(grid: TokenGrid, sight: Sight, w: Tensor, b_out: Tensor, form: torch.memory_format) -> Call:
    """The call on a CPU, if all heads are shifts and no gradient is recorded; it reads w and b_out."""
    array, zeros = shared_array(b_out), bytearray(b_out.nbytes)
    matrices = w.mT if sight.stuffed else w

    def run(x: Tensor) -> Tensor:
        images = grid.padded(x) if sight.padded else x
        bias = None if zeros == array else b_out
        return evaluate(images, matrices, bias, sight.shifts, sight.stuffed, form != torch.contiguous_format)

    return run


def _attended(layer: Layer, x: Tensor, grid: TokenGrid, heads: tuple[int, ...], w: Tensor) -> Tensor:
    """Σ_h P^h X W_h over heads that are not shifts: x (B, D_in, *shape), padded → (B, *o, groups, D)."""
    c, encoding = layer.position_vector()[list(heads)], layer.encoding
    head_keys: list[Any] = [heads] * len(grid.shape)  # while c is learned, heads share no factors
    if not (torch.is_grad_enabled() and c.requires_grad):  # heads with a common factor share its product
        head_keys = factor_keys(numbers(c), encoding, len(grid.shape))

    def attend(x: Tensor, members: list[int], axis: int) -> Tensor:
        if axis == len(grid.shape):
            total = torch.stack([w[heads[member]] for member in members]).sum(0)
            rows = x.unflatten(1, (len(total), -1)).movedim((1, 2), (0, -1))  # (groups, B, *o, C)
            return torch.bmm(rows.flatten(1, -2), total).unflatten(1, rows.shape[1:-1]).movedim(0, -2)
        shared: dict[object, list[int]] = {}
        for member in members:
            shared.setdefault(head_keys[axis][member], []).append(member)
        y = None
        for group in shared.values():  # summed one by one, as there may be many
            tokens = _along(x, c[group[0] : group[0] + 1], encoding, grid, axis)
            y = attend(tokens, group, axis + 1) if y is None else y + attend(tokens, group, axis + 1)
        assert y is not None
        return y

    return attend(x, list(range(len(heads))), 0)


def _along(x: Tensor, c: Tensor, encoding: Encoding, grid: TokenGrid, axis: int) -> Tensor:
    """P_i X along one spatial axis of (B, C, …, n_i, …), a block of queries at a time."""
    keys = torch.arange(grid.shape[axis], dtype=torch.float64, device=x.device)
    queries = grid.queries[axis].to(x.device).double()
    rows = queries_per_block(FACTOR_BYTES // (8 * len(keys)), most_queries())
    blocks = [
        bounded(_factor_times, x, c, encoding, keys, queries[start : start + rows], axis)
        for start in range(0, len(queries), rows)
    ]
    return torch.cat(blocks, axis + 2) if len(blocks) > 1 else blocks[0]


def _factor_times(x: Tensor, c: Tensor, encoding: Encoding, keys: Tensor, queries: Tensor, axis: int) -> Tensor:
    """Multiply a block of rows of P_i by X along the axis."""
    p = torch.softmax(encoding.along(c.to(x.device), keys[None, :] - queries[:, None], axis)[0], dim=1).to(x.dtype)
    axis += 2
    p = p.masked_fill(p < NEGLIGIBLE, 0)
    attended = numbers(p).ne(0).any(0).nonzero()  # a sharp head attends few keys from these queries
    least, most = (int(attended[0]), int(attended[-1]) + 1) if len(attended) else (0, len(keys))
    near = x.narrow(axis, least, most - least).movedim(axis, 0)
    y = (p[:, least:most] @ near.flatten(1)).unflatten(1, near.shape[1:])
    return y.movedim(0, axis)


def _of(w: Tensor, heads: tuple[int, ...]) -> Tensor:
    """The matrices of these heads; w itself if they are all."""
    return w if heads == tuple(range(len(w))) else w[list(heads)]


def memory(layer: Layer, batch: int, grid: TokenGrid) -> int:
    """Bytes of the merged weights, a block of tokens and outputs, the output, and the extra memory of padding and soft heads."""
    plan = axial_plan(layer, grid)
    return chunked.memory(layer, batch, grid) if plan is None else memory_of(layer, batch, grid, plan)


def memory_of(layer: Layer, batch: int, grid: TokenGrid, plan: Plan) -> int:
    """As :func:`memory`, with a given plan."""
    recorded = torch.is_grad_enabled() and any(p.requires_grad for p in layer.parameters())
    learned = recorded and any(t.requires_grad for t in (layer.v, layer.w_key_pos))
    shape = (*layer.w_val.shape, layer.w_out.shape[3])
    return _memory(shape, layer.w_val.dtype, layer.w_val.device, recorded, learned, batch, grid, plan, most_queries())


@bounded_cache
def _memory(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    recorded: bool,
    learned: bool,
    batch: int,
    grid: TokenGrid,
    plan: Plan,
    most: int | None,
) -> int:
    heads, groups, channels, head_dim, width = shape
    size, stored = working_dtype(dtype).itemsize, dtype.itemsize
    total = 2 * heads * groups * channels * width * size  # the merged weights and a reordered copy
    if size != stored:
        total += heads * groups * head_dim * (channels + width) * size
    outputs, inputs = batch * grid.query_count * groups * width, batch * grid.token_count * groups * channels
    total += outputs * (size * (2 if learned or plan.soft or size != stored else 1) + (stored if size != stored else 0))
    if plan.sharp:
        sight = Sight.of(grid, plan)
        ends = (width, channels) if sight.stuffed else (channels, width)
        shape = (len(plan.sharp), groups, *ends)
        if device.type == "cpu":
            total += workspace_bytes(sight.shifts, shape, batch, size, most)
        else:
            image = image_bytes(sight.shifts, shape, size)
            total += 3 * max(image, min(batch * image, AT_ONCE))
        if size != stored:
            total += inputs * size
    if plan.soft:
        total += (2 + len(grid.shape)) * batch * max(grid.token_count, grid.query_count) * groups * channels * size
        total += (1 + len(grid.shape)) * outputs * size
        total += 8 * heads * (len(grid.shape) + 2) ** 2  # c and the factors of its product
        computed = working_dtype(dtype)
        total += soft_heads.memory(
            grid, len(plan.soft), batch * groups * channels, computed, device.type != "cpu", recorded
        )
        if recorded:  # each head's tokens are saved after every axis
            axes = range(1, len(grid.shape) + 1)
            saved = sum(prod((*grid.query_shape[:axis], *grid.shape[axis:])) for axis in axes)
            total += len(plan.soft) * batch * saved * groups * channels * size
    elif grid.affine is None:
        total += 2 * inputs * stored + 32 * sum(grid.shape)
    return total


def cost(layer: Layer, batch: int, grid: TokenGrid) -> int:
    """Multiplications: one matrix per query and head, plus the soft heads' factors along each axis in turn."""
    plan = axial_plan(layer, grid)
    if plan is None:
        return multiplications(layer, batch, grid)
    heads, groups, channels, _ = layer.w_val.shape
    total = batch * heads * grid.query_count * groups * channels * layer.w_out.shape[3]
    done, left = 1, grid.token_count
    for n, queries in zip(grid.shape, grid.query_shape, strict=True):
        left //= n
        done *= queries
        total += len(plan.soft) * batch * done * n * left * layer.in_channels
    return total


EXECUTION = Execution(run, memory, "the softmax factorised over the axes: exact, at about a convolution's cost", cost)
