"""What a distance says of a layer only where it is less: the same distance of heads that look
elsewhere.

*Sharp*: heads of the same sharpness and W_h at random centres, on the same tokens.  A sharp head
that attends by position is a tap of a convolution by the theorem, whatever was learned, so that
only a distance below this null says that centres moved to the lattice.  A convolution in the place
of attention is measured as one-hot heads over padding tokens, which are taps wherever they look:
its null is 0 up to ties, and says nothing.  *Orders*: the same layer with the queries and the keys
of each head in random orders, so attention of the same spectrum, entropy and W_h, but without a
grid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from construct import MHSA
from construct.encoding.encodings import Covariance, Quadratic

T = TypeVar("T")
DRAWS = 19
"""The number of random draws of a null.  One more draw would be the least of all with a probability
of 1 in 20.
"""


@dataclass(frozen=True)
class Gaussians:
    """Heads whose score at the shift δ = key − query is −(δ − τ)ᵀ A (δ − τ) up to a constant.

    Attributes:
        forms: A, which is α·I or Σ⁻¹/2, float64 (heads, 2, 2).
        tau: τ in tokens, float64 (heads, 2).
    """

    forms: np.ndarray
    tau: np.ndarray

    @classmethod
    def of(cls, layer: MHSA) -> "Gaussians | None":
        """The heads of a layer; None if they are no Gaussians."""
        if layer.encoding.name == Quadratic.name:
            forms = layer.centres()[0].cpu()[:, None, None] * torch.eye(2)
        elif layer.encoding.name == Covariance.name:
            forms = -Covariance.form(layer.position_vector().detach())[0]
        else:
            return None
        return cls(*(t.detach().double().cpu().numpy() for t in (forms, layer.centres()[1])))

    @property
    def alpha(self) -> np.ndarray:
        """The sharpness α, that of a circle as large as the ellipse if A is not α·I: √det A,
        (heads,).
        """
        return np.sqrt(np.linalg.det(self.forms))


def gaussian_attention(
    heads: Gaussians, grid: tuple[int, int], pads: Sequence[tuple[int, int]] = ((0, 0), (0, 0))
) -> np.ndarray:
    """Softmax over keys of −(k − q − τ)ᵀ A (k − q − τ) (Eq. 10 to 14 of the talk), as ``maps_of``
    has it.

    Args:
        heads: A and τ.
        grid: the grid of the tokens.
        pads: padding tokens before and after each axis, which heads attend to, and which are then
            left out.

    Returns:
        From queries to keys, (heads, tokens, tokens).
    """
    # (heads, queries, keys) of an axis
    down, right = (
        np.arange(-before, n + after) - np.arange(n)[:, None] - tau[:, None, None]
        for n, (before, after), tau in zip(grid, pads, heads.tau.T, strict=True)
    )
    (a, b), (_, d) = heads.forms[..., None, None].transpose(1, 2, 0, 3, 4)
    scores = -(a * down**2)[:, :, None, :, None] - (d * right**2)[:, None, :, None, :]
    scores -= (2 * b * down)[:, :, None, :, None] * right[:, None, :, None, :]
    exponentials = np.exp(scores - scores.max((3, 4), keepdims=True))
    p = exponentials / exponentials.sum((3, 4), keepdims=True)
    inside = tuple(slice(before, before + n) for n, (before, _) in zip(grid, pads, strict=True))
    tokens = grid[0] * grid[1]
    return p[..., *inside].reshape(len(p), tokens, tokens)


def in_random_orders(p: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The same attention, (heads, tokens, tokens), with the queries and the keys of every head in
    random orders.
    """
    orders = [(random.permutation(p.shape[1]), random.permutation(p.shape[2])) for _ in p]
    return np.stack([head[np.ix_(*order)] for head, order in zip(p, orders, strict=True)])


def drawn(distance: Callable[[np.random.Generator], T]) -> list[T]:
    """The distance of every draw, the same draws for every layer."""
    random = np.random.default_rng(0)
    return [distance(random) for _ in range(DRAWS)]
