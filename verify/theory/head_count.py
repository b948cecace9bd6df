"""The least number of heads for a kernel, exactly, with a certificate that is checked apart.

Let A be the kernel unfolded, a row for each tap.  In the limit, N_h heads whose attention ignores
the content compute A = P M: P ≥ 0 is the attention that they pay to the taps, M their matrices.
The least N_h is rank A if some y has ⟨A_τ, y⟩ > 0 for every nonzero tap τ, else rank A + 1 (in Coq:
``heads_needed``, ``half_space_needed``, ``heads_enough``, ``heads_enough_half_space``).  The criss-cross
method decides, in rationals.  All is computed from A Aᵀ, as A and A Aᵀ have the same relations
between rows.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import Any

import numpy as np
from numpy import ndarray
from sympy import QQ
from sympy.polys.matrices import DomainMatrix

from verify.layers.fields import read_convolution
from verify.layers.taps import as_integers

PRIMES = (2**61 - 1, 2**89 - 1, 2**127 - 1)
"""Rows that are independent modulo a prime are independent; the other way round not always."""
MOST_WORK = 5_000_000
"""The most taps · rank² · bits of a number, for taps that are dependent: about half a minute."""


@dataclass(frozen=True, eq=False)
class HeadCount:
    """The least number of heads, and why neither fewer nor more are needed.

    Taps are those of the kernel in row-major order; all numbers are fractions.
    ``construct.mixed_heads(conv, count.attention, count.mixture)`` is the layer.

    Attributes:
        heads: the least number of heads whose attention ignores the content, in the limit.
        basis: taps with independent matrices, as many as the rank of the unfolded kernel: no fewer
            heads are enough.
        relation: None; or weights λ ≥ 0 for the taps with Σ_τ λ_τ W_τ = 0, positive at a nonzero
            tap: as attention is not negative, one head more is needed.
        attention: P, (heads, taps): so many heads are enough; each row sums to 1.
        mixture: (heads, taps): head h carries the matrix Σ_τ mixture[h, τ] W_τ.
    """

    heads: int
    basis: tuple[int, ...]
    relation: ndarray | None
    attention: ndarray
    mixture: ndarray

    def __str__(self) -> str:
        rank = f"the rank of the {self.attention.shape[1]} taps is {len(self.basis)}"
        if self.relation is None:
            return f"heads: {self.heads}; {rank}, and those that are not zero lie in an open half-space"
        return f"heads: {self.heads}; {rank}, and they lie in no open half-space"

    def check(self, conv: Any) -> None:
        """Check the certificate against a convolution, by products of fractions alone.

        Raises:
            ValueError: it does not show that this kernel needs so many heads and no more.
        """
        self._check(_gram(conv))

    def _check(self, gram: ndarray) -> None:
        if not (self._enough(gram) and self._needed(gram)):
            raise ValueError("heads_needed: the certificate is not one for this kernel")

    def _enough(self, gram: ndarray) -> bool:
        """P M = A with P ≥ 0."""
        if not self.attention.shape == self.mixture.shape == (self.heads, len(gram)):
            return False
        shared = (self.attention >= 0).all() and (self.attention.sum(axis=1) == 1).all()
        attention, one = as_integers(self.attention)  # for fast products
        mixture, unit = as_integers(self.mixture)
        return bool(shared and (attention.T @ (mixture @ gram) == one * unit * gram).all())

    def _needed(self, gram: ndarray) -> bool:
        """The basis is independent, and the relation vanishes."""
        basis = list(self.basis)
        if len(_independent(gram[np.ix_(basis, basis)])) < len(basis):
            return False
        if self.relation is None:
            return self.heads == len(basis)
        vanishes = not (self.relation @ gram).any()
        positive = (self.relation >= 0).all() and self.relation @ gram.diagonal() > 0
        return bool(vanishes and positive and self.heads == len(basis) + 1)


def heads_needed(conv: Any) -> HeadCount:
    """The least number of heads that compute a convolution, if attention ignores the content.

    The number is exact, for the stored weights and attention in the limit; ``prune`` or round a
    kernel that is of low rank only nearly.  With content, no fewer are enough at finite α.

    Args:
        conv: an ``nn.Conv1d`` … ``nn.ConvTranspose3d``, weight ``(D_out, D_in/groups, *K)``.

    Raises:
        ValueError: it is no such convolution, its weight is not finite, or the fractions would take
            minutes.

    >>> import torch, verify
    >>> conv = torch.nn.Conv2d(1, 1, 5)
    >>> _ = torch.nn.init.dirac_(conv.weight).data.sub_(0.125)
    >>> print(verify.heads_needed(conv))
    heads: 2; the rank of the 25 taps is 1, and they lie in no open half-space
    """
    gram = _gram(conv)
    basis = _independent(gram)
    taps = np.flatnonzero(gram.diagonal())
    bits = gram.max().bit_length()
    if len(basis) < taps.size and len(gram) * len(basis) ** 2 * bits > MOST_WORK:
        raise ValueError(
            f"heads_needed: the fractions for {taps.size} taps of rank {len(basis)} take minutes; "
            "ask about coarser numbers, fewer taps or fewer channels"
        )
    independent = _coordinates(gram, basis, taps)
    exchanged = [*basis]
    coordinates, relation = _half_space(independent, exchanged, taps)
    if relation is None:
        shares, mixture = _around(coordinates, exchanged, taps)
    else:
        shares, mixture = _with_one_more(independent, basis)
    totals = shares.sum(axis=0)[:, None]
    count = HeadCount(len(mixture), tuple(basis), relation, shares.T / totals, mixture * totals)
    count._check(gram)
    return count


def _gram(conv: Any) -> ndarray:
    """A Aᵀ times a positive number, in integers without a common divisor: (taps, taps)."""
    weight = read_convolution(conv).weight
    rows, _ = as_integers(weight.reshape(weight.shape[0] * weight.shape[1], -1).T)
    gram = rows @ rows.T
    return gram // (gcd(*gram.flat) or 1)


def _independent(gram: ndarray) -> list[int]:
    """Rows that are independent: as many as some prime shows."""
    shown: list[int] = []
    for prime in PRIMES:
        shown = max(shown, _independent_modulo(gram, prime), key=len)
        if len(shown) == np.count_nonzero(gram.diagonal()):
            break
    return shown


def _independent_modulo(gram: ndarray, prime: int) -> list[int]:
    """Independent rows, each time the one farthest from the span of those before, in floating
    point: so the others are combinations with small coefficients.
    """
    rows = gram % prime
    far = (gram / gram.max(initial=1)).astype(float)
    basis = []
    while rows.any():
        n = int(np.where(rows.any(axis=1), far.diagonal(), -1).argmax())
        basis.append(n)
        far -= np.outer(far[n], far[n]) / max(far[n, n], 1e-14)
        column = rows[:, np.flatnonzero(rows[n])[0]]
        rows = (rows - np.outer(column * pow(column[n], -1, prime), rows[n])) % prime
    return basis


def _coordinates(gram: ndarray, basis: list[int], taps: ndarray) -> ndarray:
    """Each tap as a combination of the basis: fractions (taps, rank)."""
    if len(basis) == len(taps):
        coordinates = np.full((len(gram), len(basis)), Fraction(0))
        coordinates[basis, range(len(basis))] = Fraction(1)
        return coordinates
    rows = DomainMatrix.from_list(gram[basis].tolist(), QQ)
    solution = rows.extract(range(len(basis)), basis).lu_solve(rows).to_list_flat()
    return np.array([*map(_fraction, solution)]).reshape(len(basis), -1).T


def _fraction(x: Any) -> Fraction:
    return Fraction(int(x.numerator), int(x.denominator))


def _half_space(
    coordinates: ndarray, basis: list[int], taps: ndarray
) -> tuple[ndarray, ndarray | None]:
    """Exchange taps of the basis until its dual y, with ⟨A_τ, y⟩ = 1 on the basis, has ⟨A_τ, y⟩ ≥ 1
    for all of ``taps``; or a relation with weights ≥ 0, if no y has that.

    This is the criss-cross method: the tap with the least number below 1 enters, and the one with
    the least number that raises it leaves, so it ends.
    """
    while True:
        below = taps[coordinates[taps].sum(axis=1) < 1]
        if below.size == 0:
            return coordinates, None
        row = coordinates[below[0]]
        rising = [n for n in range(len(basis)) if row[n] > 0]
        if not rising:
            relation = np.full(len(coordinates), Fraction(0))
            relation[basis] = -row
            relation[below[0]] += 1
            return coordinates, relation
        leaving = min(rising, key=lambda n: basis[n])
        column = coordinates[:, leaving] / row[leaving]
        coordinates = coordinates - np.outer(column, row)
        coordinates[:, leaving] = column
        basis[leaving] = int(below[0])


def _around(coordinates: ndarray, basis: list[int], taps: ndarray) -> tuple[ndarray, ndarray]:
    """rank A heads: the taps, scaled to ⟨A_τ, y⟩ = 1, lie in the basis's simplex, blown up about its
    centre.  Shares (taps, heads) and mixture (heads, taps).
    """
    rank = len(basis)
    sums = coordinates.sum(axis=1)[:, None]  # ⟨A_τ, y⟩
    least = (coordinates[taps] / sums[taps]).min(initial=Fraction(0))
    factor = 1 - rank * least
    shares = coordinates / factor + sums * (1 - 1 / factor) / max(rank, 1)
    mixture = np.full((rank, len(coordinates)), Fraction(0))
    mixture[:, basis] = (1 - factor) / max(rank, 1)
    mixture[range(rank), basis] += factor
    return shares, mixture


def _with_one_more(coordinates: ndarray, basis: list[int]) -> tuple[ndarray, ndarray]:
    """rank A + 1 heads: one for each tap of the basis, and one for minus their sum."""
    rank = len(basis)
    added = -coordinates.min(axis=1, initial=0)[:, None]
    mixture = np.full((rank + 1, len(coordinates)), Fraction(0))
    mixture[range(rank), basis] = Fraction(1)
    mixture[rank, basis] = Fraction(-1)
    return np.hstack([coordinates + added, added]), mixture
