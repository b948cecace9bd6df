"""The part of an attention layer that depends on the shift alone: the means that its nearest
convolutions have as taps.
"""

import numpy as np

EXACT = 1e-14
"""A share of the squared norm that is no more than rounding."""


class Shifts:
    """The mean map of a layer, projected onto every shift δ = key − query.

    Args:
        p: attention from the queries that count to keys, (heads, queries, tokens).
        w: the matrices of the heads, (heads, C, D).
        grid: the grid of the tokens.
        queries: bool (tokens,), the queries that count; by default all.

    Attributes:
        shifts: every shift between a query and a key, int (S, 2).
        weights: the mean attention of each head at each shift, over the queries that have such a
            key: (heads, S).  The tap of the nearest convolution at δ is Σ_h weights[h, δ] W_h.
        explained: the part of ‖A‖² that each tap explains, (S,).
        total: ‖A‖².
    """

    def __init__(
        self, p: np.ndarray, w: np.ndarray, grid: tuple[int, int], queries: np.ndarray | None = None
    ):
        places = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), -1).reshape(-1, 2)
        queries = np.ones(len(places), dtype=bool) if queries is None else queries
        gram = np.einsum("hcd,gcd->hg", w, w)
        self.total = float(np.einsum("hoi,hg,goi->", p, gram, p, optimize=True))
        least, span = 1 - np.array(grid), 2 * grid[1] - 1
        delta = (places[None] - places[queries][:, None]).reshape(-1, 2) - least
        which = delta[:, 0] * span + delta[:, 1]
        counts = np.bincount(which)
        occurs = np.flatnonzero(counts)
        self.shifts = np.stack(np.divmod(occurs, span), 1) + least
        sums = np.stack([np.bincount(which, weights=head.reshape(-1))[occurs] for head in p])
        self.weights = sums / counts[occurs]
        self.explained = np.einsum("hs,hg,gs->s", sums, gram, self.weights, optimize=True)
        self.far = max(grid)

    def distance_of_square(self, size: int | None) -> float:
        """The distance to the nearest convolution with ``size`` taps along each axis; None for all
        shifts.
        """
        reach = self.far if size is None else size // 2
        return self._distance(self.explained[np.abs(self.shifts).max(1) <= reach])

    def distance_anywhere(self, taps: int) -> float:
        """The distance to the nearest convolution with so many taps, at whatever shifts are best."""
        return self._distance(np.sort(self.explained)[::-1][:taps])

    def _distance(self, explained: np.ndarray) -> float:
        left = 1 - explained.sum() / self.total if self.total else 0.0
        return float(np.sqrt(left)) if left > EXACT else 0.0

    def kernel(self, size: int, w: np.ndarray) -> np.ndarray:
        """The kernel of the nearest convolution of ``size`` × ``size`` taps in torch's layout:
        (D, C, size, size).
        """
        kernel = np.zeros((w.shape[2], w.shape[1], size, size))
        reach = size // 2
        for place, shift in enumerate(self.shifts):
            if np.abs(shift).max() <= reach:
                row, column = shift + reach
                kernel[:, :, row, column] = np.einsum("h,hcd->dc", self.weights[:, place], w)
        return kernel
