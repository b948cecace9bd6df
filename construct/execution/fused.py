"""Attention that does not factorise, a block of queries at a time: torch's
``scaled_dot_product_attention`` where there is content.

The terms of Eq. 6 with keys, (X_q W_qry + u) · X_k W_key, are what torch's function multiplies out.
Those with r_δ are its additive bias.  They are evaluated in float64 from the exact integers δ, and
their maximum over the keys, which the softmax cancels, is subtracted before they are rounded to the
working type: so a score is rounded relatively to how far it lies below the best one.

Without content there is one map for all images, and torch's function would form it for each.  So
the softmax is taken once, in float64, as in ``dense``.
"""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from construct.encoding.scores import Scores
from construct.errors import require
from construct.execution.blocks import queries_per_block
from construct.execution.dense import added_up, averaged, values_of
from construct.execution.dense import memory as attention_bytes
from construct.execution.protocol import Layer, working_dtype
from construct.execution.transforms import transformed
from construct.tokens import TokenGrid

BLOCK_BYTES = 2**26
"""The size of a block of scores of all heads (64 MiB); a block has at least one query."""


def run(layer: Layer, x: Tensor, grid: TokenGrid) -> Tensor:
    """MHSA(X) = b_out + Σ_h P^h X W_val^h W_out^h; x (B, D_in, *n) → (B, D_out, *o).

    With content it is differentiable once where torch takes its fused kernel, which has no second
    derivative; ``dense`` has all.

    Raises:
        NotEnoughMemory: not even one block fits.
    """
    what = (
        f"attention over {grid.query_count} queries and {grid.token_count} keys, a block at a time,"
    )
    require(memory(layer, len(x), grid), x.device, what)
    tokens = grid.gather(x).to(working_dtype(x.dtype))
    scores, values = Scores(layer, tokens, grid), values_of(tokens, layer.w_val)
    query, key = scores.projected() if scores.content else (None, None)
    step = _queries_per_block(len(tokens), layer.heads, grid, scores.content)
    blocks = [slice(start, start + step) for start in range(0, grid.query_count, step)]
    inside = scores.u, scores.w_key_pos  # torch notices changes in place of arguments alone
    attended = [
        bounded(_attended, scores, query, key, values, queries, *inside) for queries in blocks
    ]
    y = layer.b_out.to(tokens.dtype) + added_up(torch.cat(attended, dim=2), layer.w_out)
    return y.transpose(1, 2).unflatten(2, grid.query_shape)


def _attended(
    scores: Scores,
    query: Tensor | None,
    key: Tensor | None,
    values: Tensor,
    queries: slice,
    *_: Tensor,
) -> Tensor:
    """P^h X W_val^h for a block of queries: (B, heads, queries, groups, D_h).

    ``query`` (B, heads, queries, D_k) and ``key`` (B, heads, T, D_k) are those of all queries; None
    without content.
    """
    if query is None or key is None:
        return averaged(
            torch.softmax(scores.of_positions(queries), dim=-1).to(values.dtype), values
        )
    query = query[:, :, queries]
    bias = scores.of_positions(queries, query)
    bias = (bias - bias.detach().amax(-1, keepdim=True)).to(values.dtype)
    asking: Tensor = query + scores.u[:, None].to(query.dtype)
    if transformed():  # which has rules for plain operations, not for the fused kernels
        return averaged(torch.softmax(asking @ key.mT + bias, dim=-1), values)
    flat = values.flatten(3)
    width = max(asking.shape[3], flat.shape[3])

    def widened(t: Tensor) -> Tensor:  # torch's fused kernels want one head size
        return pad(t, (0, width - t.shape[3]))

    attended = scaled_dot_product_attention(
        widened(asking), widened(key), widened(flat), attn_mask=bias, scale=1.0
    )
    return attended[..., : prod(values.shape[3:])].unflatten(3, values.shape[3:])


def bounded(function: Callable[..., Tensor], *args: object) -> Tensor:
    """Call ``function``; while gradients are recorded, checkpoint it, so that no attention map is
    saved.
    """
    if torch.is_grad_enabled() and not transformed():  # torch.func has no hooks for saved tensors
        result = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(result, Tensor)
        return result
    return function(*args)


def _queries_per_block(batch: int, heads: int, grid: TokenGrid, content: bool) -> int:
    row = 8 * heads * grid.token_count * (max(1, batch) if content else 1)
    return queries_per_block(min(grid.query_count, BLOCK_BYTES // row))


def memory(layer: Layer, batch: int, grid: TokenGrid) -> int:
    """Bytes of one block, the values of all heads, the table of scores and the output."""
    rows = _queries_per_block(batch, layer.heads, grid, layer.has_content())
    return attention_bytes(layer, batch, grid, rows)
