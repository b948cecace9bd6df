"""Statistics of attention maps: centre, spread and content dependence of each head.

A head whose attention depends only on positions is a weighted sum of shifts, Σ_δ
weight(δ)·(the input moved by δ).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray

from verify.experiment.receptive_fields import ReceptiveField, Vector
from verify.oracle import places

SHOWN = 4
"""Shifts listed for each head, heaviest first."""


@dataclass(frozen=True)
class Head:
    """The attention of one head, averaged over interior queries and random inputs.

    Attributes:
        centre: Σ weight·δ, one per axis; δ is key minus query, in pixels.
        spread: √(Σ weight·‖δ − centre‖²), in pixels.
        peak: the mean of the largest attention weight of a query.
        content: the mean total variation distance between inputs: 0 for no dependence on content, 1
            for disjoint attention.
        content_most: its maximum over queries and over inputs of every size.
        shifts: (δ, weight), heaviest first.
    """

    centre: tuple[float, ...]
    spread: float
    peak: float
    content: float
    content_most: float
    shifts: tuple[tuple[Vector, float], ...]

    def record(self) -> dict[str, Any]:
        """The statistics as JSON types."""
        shifts = [{"shift": shift, "weight": weight} for shift, weight in self.shifts]
        return {**vars(self), "shifts": shifts}


def key_grids(field: ReceptiveField, keys: int) -> list[ndarray]:
    """Candidate positions of the keys in pixels of the input, each (keys, d): rectangles of that
    many positions.

    Either the pixels themselves, or a padded grid no wider than what the receptive field reads;
    with a stride it may extend slightly beyond the last position read.
    """
    if keys == prod(field.grid):
        return [places([range(n) for n in field.grid])]
    axes = []
    for (before, after), s, n in zip(field.padding, field.stride, field.grid, strict=True):
        least = max(0, before)
        most = max(0, after) + s
        axes.append([range(-b, n + a) for b in range(least + 1) for a in range(most)])
    return [places(sides) for sides in product(*axes) if prod(map(len, sides)) == keys]


def summarise_heads(
    maps: Sequence[ndarray], field: ReceptiveField, kernel: ndarray
) -> tuple[Head, ...] | None:
    """Summarise the heads.

    Args:
        maps: attention for batches of random inputs, the first of size 1, the others larger; each
            (B, heads, O, keys).
        field: the receptive field of the nearest convolution; averages are over its interior
            queries, or all if it has none.
        kernel: (D, C, *K) of that convolution; its taps determine the keys' positions, because
            heads look at taps.

    Returns:
        The heads; None if the positions of the keys are ambiguous.
    """
    queries = places([range(0, s * m, s) for s, m in zip(field.stride, field.output, strict=True)])
    inside = field.interior_or_all()
    mean = maps[0][:, :, inside].mean(axis=0)  # (heads, interior queries, keys)
    sized = np.abs(kernel).sum(axis=(0, 1)).reshape(-1)
    placements = [
        _by_shift(mean, keys, queries[inside]) for keys in key_grids(field, mean.shape[2])
    ]
    shares = [_share_on_taps(*placed, field, sized) for placed in placements]
    if not placements or shares.count(max(shares)) > 1:
        return None
    shifts, weights = placements[int(np.argmax(shares))]
    # The largest ½Σ|p − p′| between the maps of consecutive inputs: (batches, heads, O).
    apart = np.stack([np.abs(np.diff(p, axis=0)).sum(axis=3) for p in maps])
    variation = apart.max(axis=1, initial=0.0) / 2
    heads = []
    for h, weight in enumerate(weights):
        centre = weight @ shifts
        spread = float(np.sqrt(weight @ np.square(shifts - centre).sum(axis=1)))
        heaviest = [k for k in np.argsort(-weight, kind="stable")[:SHOWN] if weight[k] > 0]
        heads.append(
            Head(
                centre=tuple(centre.tolist()),
                spread=spread,
                peak=float(maps[0][:, h, inside].max(axis=-1).mean()),
                content=float(variation[0, h].mean()),
                content_most=float(variation[:, h].max()),
                shifts=tuple((tuple(shifts[k].tolist()), float(weight[k])) for k in heaviest),
            )
        )
    return tuple(heads)


def _by_shift(mean: ndarray, keys: ndarray, queries: ndarray) -> tuple[ndarray, ndarray]:
    """Mean attention (heads, queries, keys) by shift: δ = key − query, (S, d), and its weight in
    each head, (heads, S).
    """
    delta = (keys[None] - queries[:, None]).reshape(-1, keys.shape[1])
    shifts, place = np.unique(delta, axis=0, return_inverse=True)
    flat = [
        np.bincount(place.reshape(-1), weights=p.reshape(-1), minlength=len(shifts)) for p in mean
    ]
    return shifts, np.stack(flat) / len(queries)


def _share_on_taps(
    shifts: ndarray, weights: ndarray, field: ReceptiveField, sized: ndarray
) -> float:
    """The attention that falls on taps with nonzero weights, at most 1 per tap."""
    steps = [
        [a + dil * j for j in range(k)]
        for a, dil, k in zip(field.start, field.dilation, field.kernel, strict=True)
    ]
    taps = {tap for tap, size in zip(product(*steps), sized, strict=True) if size > 0}
    shares = zip(shifts.tolist(), weights.sum(axis=0), strict=True)
    return round(sum(min(1.0, weight) for shift, weight in shares if tuple(shift) in taps), 9)
