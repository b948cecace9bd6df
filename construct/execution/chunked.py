"""``dense`` in bounded memory: the same numbers, one block of queries at a time, of one head or of several small ones."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from construct.encoding.scores import Scores
from construct.errors import require
from construct.execution.blocks import most_queries, queries_per_block
from construct.execution.dense import added_up, averaged, multiplications, of_block, of_values, values_of
from construct.execution.protocol import Execution, Layer, working_dtype
from construct.execution.transforms import transformed
from construct.tokens import TokenGrid

BLOCK_BYTES = 2**25
"""The target size of a block of attention (32 MiB); a block has at least one query of one head."""
HEADS_BYTES = 2**20
"""Heads are evaluated together up to this size (1 MiB); larger ones are no slower one by one."""


def run(layer: Layer, x: Tensor, grid: TokenGrid) -> Tensor:
    """MHSA(X) = b_out + Σ_h P^h X W_val^h W_out^h; x (B, D_in, *n) → (B, D_out, *o).

    Raises:
        NotEnoughMemory: not even one head and one block fit.
    """
    content = layer.has_content()
    needed = partial(_needed, layer, len(x), grid, content)
    together = heads_per_block(layer, needed)
    what = f"chunked attention over {grid.query_count} queries and {grid.token_count} keys"
    require(needed(together), x.device, what)
    tokens = grid.gather(x).to(working_dtype(x.dtype))
    scores, w_val, w_out = Scores(layer, tokens, grid), layer.w_val, layer.w_out
    step = _queries_per_block(len(tokens), grid, content)
    blocks = [slice(start, start + step) for start in range(0, grid.query_count, step)]
    totals = [layer.b_out.to(tokens.dtype)] * len(blocks)
    for heads in blocks_of_heads(layer, together):
        # Computed once for all blocks, but not while gradients are recorded: they would save every head's values.
        values = None if torch.is_grad_enabled() else values_of(tokens, w_val[heads])
        for number, queries in enumerate(blocks):
            part = bounded(some_heads, w_val[heads], w_out[heads], scores, heads, queries, values)
            totals[number] = totals[number] + part
        del values
    return torch.cat(totals, dim=1).transpose(1, 2).unflatten(2, grid.query_shape)


def heads_per_block(layer: Layer, needed: Callable[[int], int]) -> int:
    """How many heads are evaluated at once: as many as fit in ``HEADS_BYTES``, or fewer inside ``smaller_blocks``.

    ``needed(n)`` is the number of bytes that n heads take.
    """
    fitting = HEADS_BYTES // max(1, needed(2) - needed(1))
    # Inside smaller_blocks, small layers take several blocks too, of unequal lengths.
    most = layer.heads if most_queries() is None else (layer.heads + 1) // 2
    return max(1, min(fitting, most))


def blocks_of_heads(layer: Layer, together: int) -> list[slice]:
    """All heads in order, ``together`` at a time."""
    return [slice(start, start + together) for start in range(0, layer.heads, together)]


def some_heads(
    w_val: Tensor, w_out: Tensor, scores: Scores, heads: slice, queries: slice, values: Tensor | None
) -> Tensor:
    """Σ_h P^h X W_val^h W_out^h over a block of heads, for a block of queries: (B, queries, D_out).

    The weights are those of these heads, the scores those of all; ``values`` is X W_val^h if already computed.
    """
    x = scores.tokens
    probabilities = torch.softmax(scores(queries, heads), dim=-1).to(x.dtype)  # (b or 1, h, q, t)
    return added_up(averaged(probabilities, values_of(x, w_val) if values is None else values), w_out)


def bounded(function: Callable[..., Tensor], *args: object) -> Tensor:
    """Call ``function``; while gradients are recorded, checkpoint it, so that no attention map is saved."""
    if torch.is_grad_enabled() and not transformed():  # torch.func has no hooks for saved tensors
        result = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(result, Tensor)
        return result
    return function(*args)


def _queries_per_block(batch: int, grid: TokenGrid, content: bool) -> int:
    maps = max(1, batch) if content else 1
    return queries_per_block(min(grid.query_count, BLOCK_BYTES // (8 * maps * grid.token_count)), most_queries())


def memory(layer: Layer, batch: int, grid: TokenGrid) -> int:
    """Bytes of one block, the values of its heads, the table of scores and the output."""
    needed = partial(_needed, layer, batch, grid, layer.has_content())
    return needed(heads_per_block(layer, needed))


def _needed(layer: Layer, batch: int, grid: TokenGrid, content: bool, heads: int) -> int:
    """As :func:`memory`, with ``heads`` heads at once."""
    size = working_dtype(layer.w_val.dtype).itemsize
    rows = _queries_per_block(batch, grid, content)
    output = 2 * batch * (grid.query_count + rows) * layer.out_channels * size
    # Without gradients, W_val is copied before the scores are computed, and that copy is freed by then.
    before = 0 if torch.is_grad_enabled() else 2 * heads * layer.w_val[0].numel() * size
    tokens = 2 * batch * grid.token_count * layer.in_channels * size
    first = of_values(layer, batch, grid.token_count + rows, heads) + before + tokens
    return max(of_block(layer, batch, rows, heads, grid, content) - before, first) + output


_MEANING = "the same numbers, a block of queries at a time, of one head, or of several small ones"
EXECUTION = Execution(run, memory, _MEANING, multiplications)
