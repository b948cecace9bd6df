"""What a distance says of a layer only where it is less: the same distance of heads that look
elsewhere.

*Sharp*: heads of the same sharpness and W_h at random centres, on the same tokens.  A sharp head
near an integer shift is a tap by the theorem, and one between two shifts a mixture of a few, so
that sharpening alone lowers the distance: only one below this null says that centres are nearer to
the lattice than chance puts them.  *Orders*: the same layer with the queries and the keys of each
head in random orders, so attention of the same spectrum, entropy and W_h, but without a grid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, factorial, log
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
import torch

from construct import MHSA
from construct.encoding.encodings import Covariance, Quadratic

T = TypeVar("T")
DRAWS = 299
"""How often centres are drawn for the null of sharp heads."""
ORDERS = 19
"""How often orders are drawn."""
CERTAIN = 0.05
"""The probability that random centres give any layer of a row a label, of either side."""
SIDES = ("nearer", "further")
Name = Sequence[int | str]
"""What a layer's draws are named by, such as variant, seed and number of the layer: others have
other draws.
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
    heads: Gaussians,
    grid: tuple[int, int],
    pads: Sequence[tuple[int, int]] = ((0, 0), (0, 0)),
    queries: np.ndarray | None = None,
) -> np.ndarray:
    """Softmax over keys of −(k − q − τ)ᵀ A (k − q − τ) (Eq. 10 to 14 of the talk), as ``maps_of``
    has it.

    Args:
        heads: A and τ.
        grid: the grid of the tokens.
        pads: padding tokens before and after each axis, which heads attend to, and which are then
            left out.
        queries: bool (tokens,), the queries that count; by default all.

    Returns:
        From these queries to keys, (heads, queries, tokens).
    """
    places = np.stack(np.unravel_index(np.arange(grid[0] * grid[1]), grid))
    if queries is not None:
        places = places[:, queries]
    # (heads, queries, keys) of an axis
    down, right = (
        np.arange(-before, n + after) - place[:, None] - tau[:, None, None]
        for n, (before, after), place, tau in zip(grid, pads, places, heads.tau.T, strict=True)
    )
    (a, b), (_, d) = heads.forms[..., None, None].transpose(1, 2, 0, 3, 4)
    scores = -(a * down**2)[..., None] - (d * right**2)[:, :, None]
    scores -= (2 * b * down)[..., None] * right[:, :, None]
    exponentials = np.exp(scores - scores.max((2, 3), keepdims=True))
    p = exponentials / exponentials.sum((2, 3), keepdims=True)
    inside = tuple(slice(before, before + n) for n, (before, _) in zip(grid, pads, strict=True))
    return p[..., *inside].reshape(*p.shape[:2], -1)


def in_random_orders(p: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The same attention, (heads, tokens, tokens), with the queries and the keys of every head in
    random orders.
    """
    orders = [(random.permutation(p.shape[1]), random.permutation(p.shape[2])) for _ in p]
    return np.stack([head[np.ix_(*order)] for head, order in zip(p, orders, strict=True)])


def drawn(distance: Callable[[np.random.Generator], T], draws: int, name: Name) -> list[T]:
    """The distance of every draw, of other draws for every name."""
    random = np.random.default_rng(
        [part if isinstance(part, int) else crc32(part.encode()) for part in name]
    )
    return [distance(random) for _ in range(draws)]


def pooled(chances: Sequence[float]) -> float:
    """The probability that the product of as many uniform numbers is as small (Fisher's method).

    >>> pooled([0.3]), round(pooled([0.1, 0.1]), 3)
    (0.3, 0.056)
    """
    t = -sum(map(log, chances))
    return exp(-t) * sum(t**n / factorial(n) for n in range(len(chances)))


def verdict(runs: Sequence[dict[str, Any]], layer: int) -> tuple[str, float]:
    """Whether a layer, from 0, is called "nearer" or "further" than random centres, or neither, "";
    and the chance of that, or of being as near, over the seeds of its runs together.
    """
    near, far = (
        pooled([run["layers"][layer][f"anywhere_sharp_{side}"] for run in runs]) for side in SIDES
    )
    most = CERTAIN / len(runs[0]["layers"]) / len(SIDES)
    if near <= most:
        return SIDES[0], near
    return (SIDES[1], far) if far <= most else ("", near)
