"""Eq. 6: the attention scores of query and key tokens, four terms per head."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from construct.tokens import TokenGrid


class Scores:
    """The scores A of Eq. 6 for one call, by blocks of queries; tokens X are (B, T, D_in), in the
    working type.
    """

    def __init__(self, layer: Any, tokens: Tensor, grid: TokenGrid):
        self.tokens = tokens
        self.key_codes = grid.key_codes
        self.query_codes = grid.query_codes
        self.query_tokens = grid.query_tokens
        # Kept from the forward pass: a backward pass that recomputes the scores needs these very
        # tensors, though ``torch.func.functional_call`` may have replaced them in the layer by
        # then.
        self.w_qry = layer.w_qry
        self.w_key = layer.w_key
        self.w_key_pos = layer.w_key_pos
        self.u = layer.u
        self.r = layer.encoding.r(grid).to(layer.v.device)  # (D_p, box)
        # vᵀ Ŵ_key r_δ for every shift δ that occurs: one table (heads, box) for all pairs of tokens
        self.table = layer.position_vector() @ self.r
        self.content = layer.has_content()

    def __call__(self, queries: slice = slice(None)) -> Tensor:
        """The scores of a block of queries, float64 (B, heads, queries, T); B is 1 if no term
        depends on the content.
        """
        if not self.content:
            return self.of_positions(queries)
        tokens = self.tokens
        asking = tokens[:, self.query_tokens[queries].to(tokens.device)]
        query = torch.einsum("bqi,hik->bhqk", asking, self.w_qry.to(tokens.dtype))
        key = torch.einsum("bti,hik->bhtk", tokens, self.w_key.to(tokens.dtype))
        total = self.of_positions(queries, query=query)
        total = total + torch.einsum("bhqk,bhtk->bhqt", query, key)  # X_q W_qry W_keyᵀ X_kᵀ
        # uᵀ W_keyᵀ X_kᵀ
        return total + torch.einsum("hk,bhtk->bht", self.u.to(key.dtype), key)[:, :, None, :]

    def of_positions(
        self,
        queries: slice,
        heads: Sequence[int] | slice = slice(None),
        query: Tensor | None = None,
    ) -> Tensor:
        """The two terms with r_δ for a block of queries and some heads, float64
        (B or 1, heads, queries, T).

        ``query`` is X_q W_qry of the block, (B, heads, queries, D_k); without it, the term that
        depends on it is left out.
        """
        # (queries, T)
        delta = (self.query_codes[queries, None] + self.key_codes[None, :]).to(self.table.device)
        total = self.table[heads][None, :, delta]  # vᵀ Ŵ_key r_δ
        if query is None:
            return total
        w_key_pos = self.w_key_pos[heads].double()
        places = torch.einsum("bhqk,hkp->bhqp", query.double(), w_key_pos)
        # X_q W_qry Ŵ_key r_δ, one component at a time for memory's sake
        for p, component in enumerate(self.r):
            total = total + places[..., p, None] * component[delta]
        return total
