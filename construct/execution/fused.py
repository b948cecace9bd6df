"""Heads whose attention does not factorise over the axes, a block of queries at a time: torch's
``scaled_dot_product_attention`` where there is content.

The terms of Eq. 6 with keys, (X_q W_qry + u) · X_k W_key, are what torch's function multiplies out.
Those with r_δ are its additive bias, in float64 from the exact integers δ, less their maximum over
the keys, which the softmax cancels: so a score is rounded relatively to how far it lies below the
best one.  Both are sums over the axes, of n_1 + … + n_d numbers a query.

Where the score is no such sum, and without content (then one map serves all images), the scores and
their softmax are those of ``dense``.
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
from construct.execution import dense
from construct.execution.blocks import pieces, queries_per_block
from construct.execution.head_matrices import heads_of
from construct.execution.transforms import transformed
from construct.tokens import TokenGrid

BLOCK_BYTES = 2**26
"""The size of a block of scores of all heads (64 MiB); a block has at least one query."""
CACHE_BYTES = 2**23
"""The same where gradients are recorded (8 MiB), whose steps read each other's results."""

Block = Callable[..., Tensor]
"""P^h X W_val^h for a slice of the queries; further tensors are arguments for :func:`bounded`."""


def attended(layer: Any, x: Tensor, grid: TokenGrid, heads: Sequence[int]) -> Tensor:
    """Σ_h P^h X W_val^h W_out^h over these heads: x (B, D_in, *n) → (B, D_out, *o), in the working
    type.

    Attention that takes several blocks, or has fixed positions, is differentiated once: torch's
    kernels have no second derivative.  ``dense`` has all.
    """
    padded = grid.padded(x).to(dense.working_dtype(x.dtype))
    block: Block
    if layer.encoding.factorises and layer.has_content():
        layer.encoding.require_covered(grid)
        places = query_places(grid.first, grid.step, grid.query_shape, x.device)
        block = averages_of(layer, padded, places, heads)
    else:
        tokens = padded.flatten(2).mT
        scores = Scores(layer, tokens, grid, list(heads))
        block = partial(_by_scores, scores, dense.values_of(tokens, heads_of(layer.w_val, heads)))
    rows = fitting = queries_at_once(layer, len(x), grid, len(heads))
    if torch.is_grad_enabled():
        rows = queries_at_once(layer, len(x), grid, len(heads), CACHE_BYTES)
    if fitting < grid.query_count:
        block = partial(bounded, block)
    learned = layer.encoding.tensors()
    averages = [block(part, *learned) for part in pieces(grid.query_count, rows)]
    y = dense.added_up(torch.cat(averages, dim=2), heads_of(layer.w_out, heads))
    return y.mT.unflatten(2, grid.query_shape)


def query_places(
    first: Sequence[int], step: Sequence[int], output: Sequence[Any], device: torch.device
) -> Tensor:
    """The token position of every output's query, int64 (queries, d)."""
    axes = [
        start + stride * torch.arange(count, device=device)
        for start, stride, count in zip(first, step, output, strict=True)
    ]
    return torch.cartesian_prod(*axes).view(-1, len(axes))


def averages_of(layer: Any, padded: Tensor, places: Tensor, heads: Sequence[int]) -> Block:
    """What heads with content average over the keys, in operations that a compiler can trace: of
    padded tokens, (B, D_in, *shape), and the positions of queries, int64 (queries, d).
    """
    tokens = padded.flatten(2).mT
    shape = padded.shape[2:]
    encoding = layer.encoding
    w_qry, w_key, u = (
        heads_of(t, heads).to(tokens.dtype) for t in (layer.w_qry, layer.w_key, layer.u)
    )
    query = torch.einsum("biq,hik->bhqk", padded[(..., *places.unbind(1))], w_qry)
    key = torch.einsum("bti,hik->bhtk", tokens, w_key)
    asking = query + u[:, None]
    values = dense.values_of(tokens, heads_of(layer.w_val, heads))
    # (vᵀ + X_q W_qry) Ŵ_key, for each query: (B, heads, queries, D_p)
    vectors = query.double() @ heads_of(layer.w_key_pos, heads).double()
    vectors = vectors + heads_of(layer.position_vector(), heads)[:, None]

    def block(queries: slice, *_: Tensor) -> Tensor:
        bias = _bias(encoding, vectors[:, :, queries], places[queries], shape, tokens.dtype)
        return _by_content(asking[:, :, queries], key, values, bias)

    return block


def _bias(
    encoding: Any, vectors: Tensor, places: Tensor, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Vectors (B, heads, queries, D_p) times r_δ, less the maximum: (B, heads, queries, T)."""
    total: Any = 0
    for axis, n in enumerate(shape):
        keys = torch.arange(n, device=places.device)
        delta = (keys - places[:, axis, None]).double()  # (queries, n)
        scores = encoding.along(vectors, delta, axis)
        scores = (scores - scores.detach().amax(-1, keepdim=True)).to(dtype)
        along = [1] * len(shape)
        along[axis] = n
        total = total + scores.unflatten(-1, along)
    return total.flatten(-len(shape))


def _by_content(asking: Tensor, key: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """P^h X W_val^h from X_q W_qry + u, X_k W_key, (B, heads, T, D_k), and the terms with r_δ."""
    # A transform has rules for plain operations, not for the fused kernels, which give no gradient
    # of the bias either.
    if not torch.compiler.is_compiling() and (transformed() or bias.requires_grad):
        return dense.averaged(torch.softmax(asking @ key.mT + bias, dim=-1), values)
    flat = values.flatten(3)
    width = max(asking.shape[3], flat.shape[3])

    def widened(t: Tensor) -> Tensor:  # torch's fused kernels want one head size
        return pad(t, (0, width - t.shape[3]))

    averages = scaled_dot_product_attention(
        widened(asking), widened(key), widened(flat), attn_mask=bias, scale=1.0
    )
    return averages[..., : prod(values.shape[3:])].unflatten(3, values.shape[3:])


def _by_scores(scores: Scores, values: Tensor, queries: slice, *_: Tensor) -> Tensor:
    """P^h X W_val^h as in ``dense``."""
    return dense.averaged(torch.softmax(scores(queries), dim=-1).to(values.dtype), values)


def bounded(function: Callable[..., Tensor], *args: object) -> Tensor:
    """Call ``function``; while gradients are recorded, checkpoint it, so that no map is saved.

    Torch refuses to compute with arguments that were changed in place since.
    """
    if torch.is_grad_enabled() and not transformed():  # torch.func has no hooks for saved tensors
        result = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(result, Tensor)
        return result
    return function(*args)


def queries_at_once(
    layer: Any, batch: int, grid: TokenGrid, heads: int, most: int = BLOCK_BYTES
) -> int:
    """How many queries have scores of at most so many bytes."""
    images = max(1, batch) if layer.has_content() else 1
    return queries_per_block(min(grid.query_count, most // (8 * images * heads * grid.token_count)))
