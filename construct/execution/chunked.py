"""The numbers of ``dense`` in bounded memory: one head and one block of queries at a time."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from construct.attention import EXECUTIONS, MHSA, Execution, Scores, queries_per_block, working_dtype
from construct.execution.memory import of_offsets, operands, products
from construct.room import require
from construct.tokens import TokenGrid

BLOCK_BYTES = 2**25
"""Aim for blocks of attention of this size (32 MiB); a block is never less than one query."""


def run(layer: MHSA, x: Tensor, grid: TokenGrid) -> Tensor:
    """MHSA(X) = b_out + Σ_h P^h X W_val^h W_out^h; x (B, D_in, *n) → (B, D_out, *o).

    Raises:
        NotEnoughMemory: not even one head and one block fit.
    """
    require(
        memory(layer, len(x), grid),
        x.device,
        f"chunked attention over {grid.asked} queries and {grid.keys} keys",
    )
    tokens = grid.gather(x).to(working_dtype(x.dtype))
    scores, w_val, w_out = Scores(layer, tokens, grid), layer.w_val, layer.w_out
    step = _queries_per_block(layer, len(tokens), grid)
    blocks = [slice(start, start + step) for start in range(0, grid.asked, step)]
    totals = [layer.b_out.to(tokens.dtype)] * len(blocks)
    for head in range(layer.heads):
        # For all blocks at once, but not while gradients are recorded: those would keep the values of every head.
        values = None if torch.is_grad_enabled() else values_of(tokens, w_val[head])
        for number, queries in enumerate(blocks):
            seen = bounded(one_head, w_val[head], w_out[head], scores, slice(head, head + 1), queries, values)
            totals[number] = totals[number] + seen
        del values
    return torch.cat(totals, dim=1).transpose(1, 2).unflatten(2, grid.query_shape)


def values_of(tokens: Tensor, w_val: Tensor) -> Tensor:
    """X W_val^h: tokens (B, T, D_in) and w_val (groups, in/groups, D_h) → (B, T, groups, D_h)."""
    return torch.einsum("btgi,gie->btge", tokens.unflatten(2, (len(w_val), -1)), w_val.to(tokens.dtype))


def one_head(
    w_val: Tensor, w_out: Tensor, scores: Scores, head: slice, queries: slice, values: Tensor | None
) -> Tensor:
    """P^h X W_val^h W_out^h for a block of queries, (B, queries, D_out); ``values`` is X W_val^h if it is known already."""
    x = scores.tokens
    probabilities = torch.softmax(scores(queries, head), dim=-1)[:, 0].to(x.dtype)  # (b or 1, q, t)
    if values is None:
        values = values_of(x, w_val)
    if len(probabilities) == 1:  # one map for the whole batch
        attended = torch.einsum("qt,btge->bqge", probabilities[0], values)
    else:
        attended = torch.einsum("bqt,btge->bqge", probabilities, values)
    return torch.einsum("bqge,geo->bqgo", attended, w_out.to(x.dtype)).flatten(2)


def bounded(function: Callable[..., Tensor], *args: object) -> Tensor:
    """Call; while gradients are recorded keep no attention map for them but work it out again in the backward pass."""
    if torch.is_grad_enabled():
        result = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(result, Tensor)
        return result
    return function(*args)


def _queries_per_block(layer: MHSA, batch: int, grid: TokenGrid) -> int:
    maps = max(1, batch) if layer.has_content() else 1
    return queries_per_block(min(grid.asked, BLOCK_BYTES // (8 * maps * grid.keys)))


def memory(layer: MHSA, batch: int, grid: TokenGrid) -> int:
    """Bytes of one block of one head, the values of that head, the table of scores and the output."""
    size = 8 if layer.w_val.dtype == torch.float64 else 4
    content = layer.has_content()
    rows = _queries_per_block(layer, batch, grid)
    block = (batch if content else 1) * rows * grid.keys * (8 + 8 + size + (8 if content else 0)) + 8 * rows * grid.keys
    table = 8 * (layer.heads + layer.w_key_pos.shape[2]) * grid.box_size
    values = 2 * batch * (grid.keys + rows) * layer.groups * layer.w_val.shape[3] * size
    output = 2 * batch * (grid.asked + rows) * layer.out_channels * size
    beside = of_offsets(layer, batch if content else 1, rows, 1, grid)
    total = block + table + beside + values + output + operands(layer, batch, rows, grid.keys, 1)
    # Without gradients, W_val is laid out anew before there are scores, and that is gone by then.
    before = 0 if torch.is_grad_enabled() else 2 * layer.w_val[0].numel() * size
    first = values + output + before + 2 * batch * grid.keys * layer.in_channels * size
    return max(total - before, first)


EXECUTIONS["chunked"] = Execution(run, memory, "the same numbers, a head and a block of queries at a time", products)
