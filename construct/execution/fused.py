"""Heads whose attention does not factorise over the axes, a block of queries at a time: torch's
``scaled_dot_product_attention`` where there is content.

The terms of Eq. 6 with keys, (X_q W_qry + u) · X_k W_key, are what torch's function multiplies out.
Those with r_δ are its additive bias, from the exact integers δ.  They are evaluated in float64, and
their maximum over the keys, which the softmax cancels, is subtracted before they are rounded to the
working type: so a score is rounded relatively to how far it lies below the best one.  Where the
score is a sum over the axes, so is this maximum, and float64 is needed only for n_1 + … + n_d
numbers a query.

Without content there is one map for all images, and torch's function would form it for each.  So
the softmax is taken once, in float64, as in ``dense``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from construct.encoding.scores import Scores
from construct.execution.blocks import pieces, queries_per_block
from construct.execution.dense import added_up, averaged, values_of
from construct.execution.dense import memory as attention_bytes
from construct.execution.head_matrices import heads_of
from construct.execution.protocol import Layer, working_dtype
from construct.execution.transforms import transformed
from construct.tokens import TokenGrid

BLOCK_BYTES = 2**26
"""The size of a block of scores of all heads (64 MiB); a block has at least one query."""
CACHE_BYTES = 2**23
"""The size of the scores that are differentiated at a time (8 MiB): each step of theirs reads what
the one before has left in the cache.
"""

Bias = Callable[[slice], Tensor]
"""The terms with r_δ for a block of queries: (B or 1, heads, queries, T)."""


def attended(layer: Layer, x: Tensor, grid: TokenGrid, heads: Sequence[int]) -> Tensor:
    """Σ_h P^h X W_val^h W_out^h over these heads: x (B, D_in, *n) → (B, D_out, *o), in the working
    type.

    Attention that takes several blocks, or has fixed positions, is differentiated once: torch's
    kernels have no second derivative.  ``dense`` has all.
    """
    padded = grid.padded(x).to(working_dtype(x.dtype))
    table = None
    if not layer.encoding.factorises:
        table = Scores(layer, padded.flatten(2).mT, grid)
    rows = _queries_per_block(len(x), len(heads), grid, layer.has_content())
    places = query_places(grid.first, grid.step, grid.query_shape, x.device)
    y = attended_from(
        layer,
        padded,
        places,
        heads,
        content=layer.has_content(),
        table=table,
        rows=rows,
    )
    return y.unflatten(2, grid.query_shape)


def query_places(
    first: Sequence[int], step: Sequence[int], output: Sequence[Any], device: torch.device
) -> Tensor:
    """The token position of every output's query, int64 (queries, d)."""
    axes = [
        start + stride * torch.arange(count, device=device)
        for start, stride, count in zip(first, step, output, strict=True)
    ]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)


def attended_from(
    layer: Layer,
    padded: Tensor,
    places: Tensor,
    heads: Sequence[int],
    content: bool,
    table: Scores | None = None,
    rows: int | None = None,
) -> Tensor:
    """As :func:`attended`, in operations that a compiler can trace: (B, D_out, queries).

    Args:
        layer: the layer.
        padded: the tokens, (B, D_in, *shape), in the working type.
        places: the token position of every query, int64 (queries, d).
        heads: which heads.
        content: whether any of them attends to content.
        table: the scores of an encoding that does not factorise.
        rows: queries in a block; all without it.
    """
    tokens = padded.flatten(2).mT
    shape = padded.shape[2:]
    numbers = places[:, 0]
    for axis, n in enumerate(shape[1:], start=1):
        numbers = numbers * n + places[:, axis]
    query = key = asking = None
    if content:
        w_qry, w_key, u = (
            heads_of(t, heads).to(tokens.dtype) for t in (layer.w_qry, layer.w_key, layer.u)
        )
        query = torch.einsum("bqi,hik->bhqk", tokens[:, numbers], w_qry)
        key = torch.einsum("bti,hik->bhtk", tokens, w_key)
        asking = query + u[:, None]
    values = values_of(tokens, heads_of(layer.w_val, heads))
    bias = _bias_of(layer, query, places, shape, heads, table)
    if rows is None:
        averages = _block(asking, key, values, bias, slice(None))
    else:
        blocks = pieces(len(places), rows)
        run: Callable[..., Tensor] = _few_at_a_time
        if len(blocks) > 1:
            run = partial(bounded, run)
        averages = torch.cat([run(asking, key, values, bias, block) for block in blocks], dim=2)
    return added_up(averages, heads_of(layer.w_out, heads)).mT


def _bias_of(
    layer: Layer,
    query: Tensor | None,
    places: Tensor,
    shape: Sequence[int],
    heads: Sequence[int],
    table: Scores | None,
) -> Bias:
    """The terms with r_δ; ``query`` is X_q W_qry of all queries, None without content."""
    if table is not None:
        return partial(_from_table, table, query, heads)
    vectors = heads_of(layer.position_vector(), heads)[None, :, None]
    vectors = vectors.expand(-1, -1, places.shape[0], -1)  # (1, heads, queries, D_p)
    if query is not None:  # (vᵀ + X_q W_qry) Ŵ_key, for each query: (B, heads, queries, D_p)
        w_key_pos = heads_of(layer.w_key_pos, heads).double()
        vectors = vectors + torch.einsum("bhqk,hkp->bhqp", query.double(), w_key_pos)
    dtype = torch.float64 if query is None else query.dtype
    return partial(_by_axes, layer.encoding, vectors, places, shape, dtype)


def _by_axes(
    encoding: Any,
    vectors: Tensor,
    places: Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    queries: slice,
) -> Tensor:
    """The products of vectors (B or 1, heads, queries, D_p) with r_δ, less their maximum over the
    keys: (B or 1, heads, queries, T), for a block of queries.
    """
    vectors = vectors[:, :, queries]
    total: Any = 0
    for axis, n in enumerate(shape):
        keys = torch.arange(n, device=places.device)
        delta = (keys - places[queries, axis, None]).double()  # (queries, n)
        scores = encoding.along(vectors, delta, axis)
        scores = (scores - scores.detach().amax(-1, keepdim=True)).to(dtype)
        ones = (1,) * axis, (1,) * (len(shape) - 1 - axis)
        total = total + scores.reshape(*scores.shape[:-1], *ones[0], n, *ones[1])
    return total.flatten(-len(shape))


def _from_table(
    scores: Scores, query: Tensor | None, heads: Sequence[int], queries: slice
) -> Tensor:
    """As :func:`_by_axes`, for any encoding, looked up for every pair of tokens."""
    bias = scores.of_positions(
        queries, list(heads), None if query is None else query[:, :, queries]
    )
    if query is None:
        return bias
    return (bias - bias.detach().amax(-1, keepdim=True)).to(query.dtype)


def _few_at_a_time(
    asking: Tensor | None, key: Tensor | None, values: Tensor, bias: Bias, queries: slice
) -> Tensor:
    """As :func:`_block`; where attention to content is differentiated, in pieces that fit into the
    cache.
    """
    if asking is None or key is None or not torch.is_grad_enabled():
        return _block(asking, key, values, bias, queries)
    row = asking.shape[0] * asking.shape[1] * key.shape[2] * key.itemsize
    parts = []
    for part in pieces(queries.stop - queries.start, max(1, CACHE_BYTES // max(1, row))):
        piece = slice(queries.start + part.start, queries.start + part.stop)
        parts.append(_block(asking, key, values, bias, piece))
    return torch.cat(parts, dim=2)


def _block(
    asking: Tensor | None, key: Tensor | None, values: Tensor, bias: Bias, queries: slice
) -> Tensor:
    """P^h X W_val^h for a block of queries: (B, heads, queries, groups, D_h).

    ``asking`` is X_q W_qry + u, (B, heads, queries, D_k), and ``key`` X_k W_key, (B, heads, T,
    D_k); None without content.
    """
    scores = bias(queries)
    if asking is None or key is None:
        return averaged(torch.softmax(scores, dim=-1).to(values.dtype), values)
    asking = asking[:, :, queries]
    # A transform has rules for plain operations, not for the fused kernels, which give no gradient
    # of the bias either.
    if not torch.compiler.is_compiling() and (transformed() or scores.requires_grad):
        return averaged(torch.softmax(asking @ key.mT + scores, dim=-1), values)
    flat = values.flatten(3)
    width = max(asking.shape[3], flat.shape[3])

    def widened(t: Tensor) -> Tensor:  # torch's fused kernels want one head size
        return pad(t, (0, width - t.shape[3]))

    averages = scaled_dot_product_attention(
        widened(asking), widened(key), widened(flat), attn_mask=scores, scale=1.0
    )
    return averages[..., : prod(values.shape[3:])].unflatten(3, values.shape[3:])


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


def memory(layer: Layer, batch: int, grid: TokenGrid, heads: int) -> int:
    """Bytes of one block, the values of so many heads, the scores by axis and the output."""
    content = layer.has_content()
    rows = _queries_per_block(batch, heads, grid, content)
    if not (content and layer.encoding.factorises):
        return attention_bytes(layer, batch, grid, heads, rows)
    by_axis = 48 * batch * heads * rows * sum(grid.shape)
    size = 3 * working_dtype(layer.w_val.dtype).itemsize
    return attention_bytes(layer, batch, grid, heads, rows, size) + by_axis
