"""Faster attention for training on many tokens: what a layer computes, up to rounding, in the dtype
of its input.

``MHSA``'s own executions keep scores in float64 and look for sharp heads, as converted convolutions
have them; heads that learn are soft and need neither.  Three kinds of layers have a faster way:

* where position attention factorises, P^h = P_1^h ⊗ P_2^h, the sum over heads and rows is one
  product;
* position attention that does not factorise is one map for all pictures, and the sum over heads and
  keys is one product;
* the score of content and learned rows r_δ = (e_1[δ_1], e_2[δ_2]) is a dot product, which torch's
  fused kernel accepts:

      (X_q W_qry + u)·(X_k W_key) + Σ_i (X_q W_qry + v) Ŵ_key,i e_i[k_i − q_i],

  because in the second term each axis has one number for every row or column of keys: Q holds these
  numbers, and K selects the key's.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad, scaled_dot_product_attention

from construct import MHSA
from construct.encoding.scores import Scores
from construct.execution.head_matrices import merged
from construct.tokens import TokenGrid


def quick(layer: MHSA) -> Callable[[MHSA, Tensor], Tensor] | None:
    """The faster way to run a layer of stride 1 on images; None if there is none."""
    if (
        layer.groups > 1
        or layer.geometry.dims != 2
        or set(layer.geometry.stride) != {1}
        or layer.geometry.transposed
    ):
        return None
    if not layer.w_key.requires_grad:
        return None if layer.has_content() else by_axes if layer.encoding.factorises else by_map
    positions = bool(layer.offsets) or not layer.w_key_pos.any()
    return with_content if positions and layer.geometry.kernel_size == (1, 1) else None


def by_axes(layer: MHSA, x: Tensor) -> Tensor:
    """Position-only attention that factorises: (B, D_in, rows, columns) →
    (B, D_out, rows, columns).

    Pictures are the last axis but one until the end, so that every product has large matrices, and
    none needs a copy. Probabilities below ε² vanish next to the 1 of their row, and are left out:
    they lead to subnormal numbers, which some processors multiply many times more slowly.
    """
    grid, c, factors = TokenGrid.of(layer.geometry, tuple(x.shape[2:])), layer.position_vector(), []
    for axis, (n, (before, _)) in enumerate(zip(x.shape[2:], layer.geometry.pads, strict=True)):
        keys = torch.arange(grid.shape[axis], device=x.device, dtype=torch.float64)
        delta = keys - grid.queries[axis].to(keys)[:, None]
        # padding is zero
        p = torch.softmax(layer.encoding.along(c[:, None], delta, axis), dim=2)[
            ..., before : before + n
        ]
        factors.append(p.masked_fill(p < torch.finfo(x.dtype).eps ** 2, 0).to(x.dtype))
    down, across = factors  # (heads, queries, keys)
    tokens = x.permute(2, 3, 0, 1).flatten(0, 2)
    weights = merged(layer)[:, 0]
    # (heads, rows · columns · B, D_out)
    values = torch.bmm(tokens.expand(len(weights), -1, -1), weights)
    # (heads, rows, columns, B · D_out)
    attended = across[:, None] @ values.view(len(across), *x.shape[2:], -1)
    y = down.movedim(0, 1).flatten(1) @ attended.flatten(0, 1).flatten(1)
    return (
        y.view(down.shape[1], across.shape[1], len(x), -1).permute(2, 3, 0, 1)
        + layer.b_out[:, None, None]
    )


def by_map(layer: MHSA, x: Tensor) -> Tensor:
    """Position-only attention that does not factorise, one map for all pictures: shapes as for
    :func:`by_axes`.
    """
    grid = TokenGrid.of(layer.geometry, tuple(x.shape[2:]))
    tokens = grid.gather(x)  # (B, T, D_in)
    p = torch.softmax(Scores(layer, tokens, grid)()[0], 2).to(x.dtype)  # (heads, queries, T)
    weights = merged(layer)[:, 0]
    # (heads, T · B, D_out)
    values = torch.bmm(tokens.movedim(0, 1).flatten(0, 1).expand(len(p), -1, -1), weights)
    # (queries, B · D_out)
    y = p.movedim(0, 1).flatten(1) @ values.view(p.shape[0] * p.shape[2], -1)
    return y.view(*x.shape[2:], len(x), -1).permute(2, 3, 0, 1) + layer.b_out[:, None, None]


def with_content(layer: MHSA, x: Tensor) -> Tensor:
    """Content attention, with learned rows for positions or without positions: shapes as for
    :func:`by_axes`.
    """
    grid, tokens = x.shape[2:], x.flatten(2).mT
    asked, key = (torch.einsum("bti,hik->bhtk", tokens, w) for w in (layer.w_qry, layer.w_key))
    queries, keys = [asked + layer.u[:, None]], [key]
    if layer.offsets:
        tables = [getattr(layer, name) for name in layer.offsets]
        scored = (asked + layer.v[:, None]) @ layer.w_key_pos
        places = torch.unravel_index(torch.arange(grid.numel(), device=x.device), grid)
        for table, part, at, n in zip(
            tables, scored.split([t.shape[1] for t in tables], 3), places, grid, strict=True
        ):
            # (queries, n, width)
            rows = table[torch.arange(n, device=x.device) - at[:, None] + len(table) // 2]
            queries.append(torch.einsum("bhtw,tnw->bhtn", part, rows))
            keys.append(one_hot(at, n).to(x.dtype).expand(*key.shape[:3], n))
    values = torch.einsum("bti,hie->bhte", tokens, layer.w_val[:, 0])
    q, k = torch.cat(queries, 3), torch.cat(keys, 3)
    size = max(q.shape[3], values.shape[3])  # equal for all, or torch builds a T × T map
    q, k, v = (pad(t, (0, size - t.shape[3])) for t in (q, k, values))
    attended = scaled_dot_product_attention(q, k, v, scale=1.0)[..., : values.shape[3]]
    y = torch.einsum("bhte,heo->bto", attended, layer.w_out[:, 0]) + layer.b_out
    return y.mT.unflatten(2, grid)
