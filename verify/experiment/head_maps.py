"""Heads as mixtures of convolutions: where each looks, how widely, how much it is swayed by content.

A head whose attention depends on positions alone is a weighted sum of shifts, Σ_δ weight(δ)·(the input moved by δ).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from verify.experiment.windows import Vector, Window

SHOWN = 4
"""As many shifts of a head are listed, the heaviest first."""


@dataclass(frozen=True)
class Head:
    """What the attention of one head showed, averaged over interior queries and random inputs.

    Attributes:
        centre: Σ weight·δ, an axis each; δ is key minus query, in pixels.
        spread: √(Σ weight·‖δ − centre‖²), in pixels.
        peak: the attention that a query gives to its favourite key, on average.
        content: how much other inputs move it: the total variation distance, 0 not at all, 1 completely.
        content_most: the same at its greatest, over queries and over inputs of every size.
        shifts: (δ, weight), the heaviest first.
    """

    centre: tuple[float, ...]
    spread: float
    peak: float
    content: float
    content_most: float
    shifts: tuple[tuple[Vector, float], ...]

    def record(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "centre": list(self.centre),
            "spread": self.spread,
            "peak": self.peak,
            "content": self.content,
            "content_most": self.content_most,
            "shifts": [{"shift": list(shift), "weight": weight} for shift, weight in self.shifts],
        }


def key_grids(window: Window, keys: int) -> list[np.ndarray]:
    """Where the keys may be, in pixels of the input, each (keys, d): every rectangle of so many positions that is likely.

    The pixels themselves, or a padded grid: no wider than the window reads, but where there is a stride, which may go on a
    little beyond the last position read.
    """
    if keys == prod(window.grid):
        return [_positions([range(n) for n in window.grid])]
    axes = []
    for (before, after), s, n in zip(window.padding, window.stride, window.grid, strict=True):
        least, most = max(0, before), max(0, after) + s
        axes.append([range(-b, n + a) for b in range(least + 1) for a in range(most)])
    return [_positions(sides) for sides in product(*axes) if prod(map(len, sides)) == keys]


def _positions(sides: Sequence[range]) -> np.ndarray:
    return np.array(list(product(*sides)))


def look_at(maps: Sequence[np.ndarray], window: Window, kernel: np.ndarray) -> tuple[Head, ...] | None:
    """Summarise the heads.

    Args:
        maps: attention for batches of random inputs, the first of size 1, the others larger: each (B, heads, O, keys).
        window: of the nearest convolution; its interior queries are averaged over, all if there are none.
        kernel: of it, (D, C, *K): where the keys are is told by the taps, for these are what the heads look at.

    Returns:
        The heads; None if one cannot tell where the keys are.
    """
    queries = _positions([range(0, s * m, s) for s, m in zip(window.stride, window.output, strict=True)])
    inside = window.interior() if window.interior().any() else np.ones(len(queries), dtype=bool)
    mean = maps[0][:, :, inside].mean(axis=0)  # (heads, interior queries, keys)
    sized = np.abs(kernel).sum(axis=(0, 1)).reshape(-1)
    ways = [_Shifted(mean, keys, queries[inside]) for keys in key_grids(window, mean.shape[2])]
    shares = [way.on(window, sized) for way in ways]
    if not ways or shares.count(max(shares)) > 1:
        return None
    way = ways[int(np.argmax(shares))]
    swayed = np.stack([_variation(p) for p in maps])  # (batches, heads, O)
    heads = []
    for h, weight in enumerate(way.weights):
        centre = weight @ way.shifts
        spread = float(np.sqrt(weight @ np.square(way.shifts - centre).sum(axis=1)))
        heaviest = [k for k in np.argsort(-weight, kind="stable")[:SHOWN] if weight[k] > 0]
        heads.append(
            Head(
                centre=tuple(float(x) for x in centre),
                spread=spread,
                peak=float(maps[0][:, h, inside].max(axis=-1).mean()),
                content=float(swayed[0, h].mean()),
                content_most=float(swayed[:, h].max()),
                shifts=tuple((tuple(int(x) for x in way.shifts[k]), float(weight[k])) for k in heaviest),
            )
        )
    return tuple(heads)


class _Shifted:
    """Attention by shift, δ = key − query: ``shifts`` (S, d) and ``weights`` (heads, S).

    Args:
        mean: (heads, queries, keys).
        keys: where they are, (keys, d).
        queries: where they are, (queries, d).
    """

    def __init__(self, mean: np.ndarray, keys: np.ndarray, queries: np.ndarray):
        delta = (keys[None] - queries[:, None]).reshape(-1, keys.shape[1])
        self.shifts, place = np.unique(delta, axis=0, return_inverse=True)
        flat = [np.bincount(place.reshape(-1), weights=p.reshape(-1), minlength=len(self.shifts)) for p in mean]
        self.weights = np.stack(flat) / len(queries)

    def on(self, window: Window, sized: np.ndarray) -> float:
        """How much of the attention falls on taps, each counted as far as it is needed."""
        steps = [
            [a + dil * j for j in range(k)]
            for a, dil, k in zip(window.start, window.dilation, window.kernel, strict=True)
        ]
        needed = {tap: size > 0 for tap, size in zip(product(*steps), sized, strict=True)}
        total = self.weights.sum(axis=0)
        on_taps = {tuple(map(int, shift)): min(1.0, w) for shift, w in zip(self.shifts, total, strict=True)}
        return round(sum(on_taps.get(tap, 0.0) for tap, wanted in needed.items() if wanted), 9)


def _variation(p: np.ndarray) -> np.ndarray:
    """½Σ|p − p′| between the maps of consecutive inputs, the greatest of them: (heads, O)."""
    return (np.abs(p[1:] - p[:-1]).sum(axis=3) / 2).max(axis=0, initial=0.0)


def collapsed(heads: Sequence[Head]) -> tuple[tuple[Vector, tuple[int, ...]], ...]:
    """Shifts on which several heads put more than half of their attention, with the numbers of these heads."""
    by_shift: dict[Vector, list[int]] = {}
    for number, head in enumerate(heads):
        if head.shifts and head.shifts[0][1] > 0.5:
            by_shift.setdefault(head.shifts[0][0], []).append(number)
    return tuple((shift, tuple(numbers)) for shift, numbers in by_shift.items() if len(numbers) > 1)
