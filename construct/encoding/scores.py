"""Eq. 6: the attention scores of query and key tokens, four terms per head."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from construct.tokens import TokenGrid


class Scores:
    """The scores A of Eq. 6 of some heads for one call, by blocks of queries; tokens X are
    (B, T, D_in), in the working type.
    """

    def __init__(
        self,
        layer: Any,
        tokens: Tensor,
        grid: TokenGrid,
        heads: Sequence[int] | slice = slice(None),
    ):
        self.grid = grid
        self.r = layer.encoding.r(grid).to(layer.v.device)  # (D_p, box)
        # vᵀ Ŵ_key r_δ for every shift δ that occurs: one table (heads, box) for all pairs of tokens
        self.table = layer.position_vector()[heads] @ self.r
        self.content = layer.has_content()
        if self.content:
            w_qry, w_key, u = (
                t[heads].to(tokens.dtype) for t in (layer.w_qry, layer.w_key, layer.u)
            )
            asking = tokens[:, grid.query_tokens.to(tokens.device)]
            query = torch.einsum("bqi,hik->bhqk", asking, w_qry)  # X_q W_qry
            self.query = query + u[:, None]
            self.key = torch.einsum("bti,hik->bhtk", tokens, w_key)  # X_k W_key
            self.vectors = query.double() @ layer.w_key_pos[heads].double()  # X_q W_qry Ŵ_key

    def __call__(self, queries: slice = slice(None)) -> Tensor:
        """The scores of a block of queries, float64 (B, heads, queries, T); B is 1 if no term
        depends on the content.
        """
        delta = self.grid.codes(queries).to(self.table.device)  # (queries, T)
        total = self.table[None, :, delta]  # vᵀ Ŵ_key r_δ
        if not self.content:
            return total
        # X_q W_qry Ŵ_key r_δ, one component at a time for memory's sake
        for p, component in enumerate(self.r):
            total = total + self.vectors[:, :, queries, p, None] * component[delta]
        # (X_q W_qry + uᵀ) W_keyᵀ X_kᵀ
        return total + self.query[:, :, queries] @ self.key.mT
