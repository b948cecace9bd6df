"""The tokens of a stock attention: content and centred positions, (content, p_1, …, p_d, ‖p‖², [1])."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from construct.encoding import quadratic
from construct.errors import require
from construct.geometry import ConvGeometry, vector
from construct.tokens import TokenGrid


class NoStockForm(ValueError):
    """Why scores have no stock form, or no kernel can be read from one."""


@dataclass(frozen=True)
class TokenLayout:
    """The tokens of a stock attention, for inputs of one size.

    Attributes:
        geometry: the geometry of the convolution.
        padded: the tokens of the padded input.
        dtype: of tokens, projections and scores.
        bias: whether the projections have biases; without them the constant 1 is one more channel.
        null: whether one null token stands for all padding tokens.
    """

    geometry: ConvGeometry
    padded: TokenGrid
    dtype: torch.dtype
    bias: bool
    null: bool

    @classmethod
    def of(cls, attention: Any, geometry: ConvGeometry, grid: Any) -> "TokenLayout":
        """The tokens that an attention takes for inputs of spatial size ``grid``; see
        :func:`padded_grid`.
        """
        return cls(
            geometry,
            padded_grid(geometry, grid),
            attention.out_proj.weight.dtype,
            attention.in_proj_bias is not None,
            attention.add_zero_attn,
        )

    @cached_property
    def grid(self) -> TokenGrid:
        """The tokens: beside a null token, those of the image alone, with the same queries.

        Raises:
            NoStockForm: beside a null token, tokens are copies, or zeros between inputs, or a query
                is a padding token.
        """
        grid = self.padded
        if not self.null:
            return grid
        if grid.affine is None or grid.stuffed or min(map(min, grid.pads)) < 0:
            raise NoStockForm(
                "a null token stands for zeros around the input, and for nothing else"
            )
        first = tuple(q - before for q, (before, _) in zip(grid.first, grid.pads, strict=True))
        bare = replace(grid, pads=((0, 0),) * len(first), first=first)
        if not stays_on(bare, [0] * len(first)):
            raise NoStockForm(
                "the query of some output is a padding token, and without these it has none"
            )
        return bare

    @property
    def channels(self) -> int:
        """Channels of content, positions and the constant 1, if it is one."""
        return self.geometry.in_channels + self.geometry.dims + 2 - self.bias

    @property
    def terms(self) -> int:
        """Products in a score: d + 1, and one more beside a null token."""
        return self.geometry.dims + 1 + self.null

    @property
    def reach(self) -> tuple[int, ...]:
        """K, the largest centred coordinate of a token on each axis."""
        return tuple(n // 2 for n in self.grid.shape)

    def buffers(self) -> dict[str, Tensor]:
        """The buffers of a :class:`~construct.stock.layer.StockAttention`, on the CPU."""
        size = self.grid.size
        centred = np.indices(self.grid.shape, float).reshape(len(size), -1)
        centred -= np.reshape(self.reach, (-1, 1))
        square, *p = quadratic.absolute_key([*centred])
        one = [np.ones_like(square)] * (not self.bias)
        positions = np.stack([*p, square, *one], axis=1)
        numbers = torch.arange(1, prod(size) + 1, device="cpu").view(1, 1, *size)
        return {
            "positions": torch.from_numpy(positions).to(self.dtype),
            "sources": self.grid.gather(numbers).flatten(),
            "query_tokens": self.grid.query_tokens,
        }


def stays_on(grid: TokenGrid, tau: Sequence[Any]) -> bool:
    """Whether every query has a key at the shift τ."""
    axes = zip(tau, grid.common_box, strict=True)
    return all(least <= t <= most for t, (least, most) in axes)


def padded_grid(geometry: ConvGeometry, grid: Any) -> TokenGrid:
    """The tokens of a padded input of spatial size ``grid``.

    Raises:
        ValueError: this geometry accepts no input of size ``grid``.
        NotEnoughMemory: even the token numbers would not fit.
    """
    size = vector("MHSA: grid", grid, geometry.dims, least=1)
    try:
        padded = TokenGrid.of(geometry, size)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    # positions, sources, intermediate tensors
    tokens = 8 * (6 + 3 * geometry.dims) * padded.token_count
    require(
        32 * sum(padded.shape + padded.query_shape) + tokens,
        torch.device("cpu"),
        f"numbering the padded grid of an input of size {grid}",
    )
    return padded
