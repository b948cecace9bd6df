"""Splits a layer's heads on a grid into one-hot heads, with their shifts, and soft heads, from
``v`` and ``w_key_pos`` alone.
"""

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import chain
from math import prod
from operator import add, neg, sub
from typing import Any

import numpy as np
import torch
from torch import Tensor

from construct.encoding import quadratic
from construct.encoding.encodings import Encoding, Parabola, Quadratic, shifts_are_distinct
from construct.errors import require
from construct.execution import reads
from construct.execution.shifts.windows import Shifts
from construct.execution.transforms import common, eagerly, readable, shared_array, transformed
from construct.tokens import TokenGrid

CERTAIN = 746.0
"""A score this far below the maximum gets attention exp(−746), which is 0 in float64."""
MOST_PLANS = 256
"""The most plans that are kept; there is no end of input sizes."""

Box = tuple[tuple[int, int], ...]
"""The least and greatest shift along each axis."""


@dataclass(frozen=True)
class Plan:
    """How each head is evaluated on a grid.

    Attributes:
        grid: the grid.
        sharp: heads that are pure shifts.
        deltas: their shifts δ.
        soft: other heads whose attention factorises over the axes.
        others: heads with content, and all else that does not factorise.
        box: the least and greatest shift along each axis that the sharp heads were compared with.
    """

    grid: TokenGrid
    sharp: tuple[int, ...]
    deltas: tuple[tuple[int, ...], ...]
    soft: tuple[int, ...]
    others: tuple[int, ...]
    box: Box

    def on(self, grid: TokenGrid) -> "Plan | None":
        """The same heads on another grid, if all are certain to be shifts there too."""
        if self.soft or self.others or not self.deltas:
            return None
        reached = [(min(axis), max(axis)) for axis in zip(*self.deltas, strict=True)]
        pairs = [*zip(grid.box, self.box, strict=True), *zip(reached, grid.common_box, strict=True)]
        inside = all(low <= least and most <= high for (least, most), (low, high) in pairs)
        return replace(self, grid=grid) if inside else None

    @cached_property
    def starts(self) -> tuple[tuple[int, ...], ...]:
        """For each sharp head, the token that output 0 sees, as one position per axis."""
        return tuple(tuple(map(add, self.grid.first, delta)) for delta in self.deltas)

    @cached_property
    def shifts(self) -> Shifts:
        """From outputs to what the sharp heads read."""
        return shifts_of(self.grid, self.starts)


def shifts_of(grid: TokenGrid, starts: tuple[tuple[int, ...], ...]) -> Shifts:
    """From outputs to inputs, for heads whose tokens for output 0 are ``starts``; to tokens, if
    padding copies inputs; from inputs to outputs in a transposed layer.
    """
    if grid.affine is None:
        return Shifts(starts, grid.step, grid.shape, grid.query_shape)
    origin = [begin for begin, _ in grid.affine]
    offsets = tuple(tuple(map(sub, start, origin)) for start in starts)
    if not grid.stuffed:
        return Shifts(offsets, grid.step, grid.size, grid.query_shape)
    flipped = tuple(tuple(map(neg, offset)) for offset in offsets)
    return Shifts(flipped, grid.stuffing, grid.query_shape, grid.size)


PLANS: dict[tuple[Any, ...], Plan] = {}
"""Plans by the numbers that say where heads look, and the grid; by these numbers alone, the latest."""


def plan_for(layer: Any, grid: TokenGrid) -> Plan:
    """The plan on this grid, cached by the very numbers that say where heads look."""
    encoding = layer.encoding
    content = layer.content_heads()
    # learned tables are not unwrapped, and under vmap each member may look elsewhere
    hidden = transformed() and (
        layer.offsets or common(layer.v) is None or common(layer.w_key_pos) is None
    )
    if hidden or all(content) or encoding is getattr(layer, "own_encoding", None):
        return Plan(grid, (), (), (), tuple(range(layer.heads)), grid.box)
    # A plan is valid only for this very code.
    code = quadratic.r, quadratic.r_covariance, quadratic.number, type(layer).position_vector
    numbers = (reads.once(layer, name, _numbers) for name in ("v", "w_key_pos", *layer.offsets))
    kind = encoding.name, encoding.taps_of, layer.radix
    key = (*chain.from_iterable(numbers), content, *kind, code)
    plan = PLANS.get((key, grid))
    if plan is None:
        on_another = PLANS.get(key)
        plan = None if on_another is None else on_another.on(grid)
        if plan is None:
            c = common(layer.position_vector())
            assert c is not None
            with eagerly():
                plan = _plan(c.cpu().numpy(), np.array(content), encoding, grid)
        if len(PLANS) >= MOST_PLANS - 1:
            PLANS.clear()
        PLANS[key] = PLANS[key, grid] = plan
    return plan


def _numbers(t: Tensor) -> tuple[object, ...]:
    """The bytes, type and shape of the values that all members of a tensor share."""
    values = common(t)
    assert values is not None
    with readable():
        bits = values.cpu().contiguous().view(torch.uint8)
        return shared_array(bits).tobytes(), values.dtype, values.shape


# a head whose scores overflow is not a shift
@np.errstate(divide="ignore", over="ignore", invalid="ignore")
def _plan(c: np.ndarray, content: np.ndarray, encoding: Encoding, grid: TokenGrid) -> Plan:
    """Find the heads that are shifts; c (heads, D_p), and ``content`` (heads,), whose depend on it."""
    boxes = [grid.box]
    shifts = c.shape[1] * prod(grid.box_shape)
    if isinstance(encoding, Quadratic):
        reach = [1 << max(-low, high, 0).bit_length() for low, high in grid.box]
        boxes.append(tuple((-n, n) for n in reach))  # a larger box serves more grids
        shifts = sum(grid.box_shape)
    require(16 * shifts, torch.device("cpu"), f"planning attention over {grid.token_count} keys")
    low, high = np.array(grid.common_box).T
    certain = content
    while boxes:
        box = boxes.pop()
        deltas, certain = _peaks(c, encoding, grid, box)
        certain &= ~content & ((low <= deltas) & (deltas <= high)).all(axis=1)
        if (certain | content).all():
            break
    soft = ~certain & ~content & encoding.factorises
    sharp, softer, others = (
        tuple(np.flatnonzero(of).tolist()) for of in (certain, soft, ~certain & ~soft)
    )
    return Plan(grid, sharp, tuple(map(tuple, deltas[certain].tolist())), softer, others, box)


def _peaks(
    c: np.ndarray, encoding: Encoding, grid: TokenGrid, box: Box
) -> tuple[np.ndarray, np.ndarray]:
    """Each head's best shift in a box, (heads, d), and whether no other gets attention in float64."""
    least = [low for low, _ in box]
    axes = [np.arange(low, high + 1.0) for low, high in box]
    if isinstance(encoding, Quadratic):
        peaks = [
            _peak_of_parabola(c[:, 0], c[:, axis], along) for axis, along in enumerate(axes, 1)
        ]
        places, sure = zip(*peaks, strict=True)
        certain = np.logical_and.reduce(sure)
    elif isinstance(encoding, Parabola) and not shifts_are_distinct(encoding.radix, box):
        # its numbers may be too large for float64
        places = [np.zeros(len(c), dtype=np.int64)] * len(least)
        certain = np.zeros(len(c), dtype=bool)
    elif isinstance(encoding, Parabola):
        weighted = [weight * along for weight, along in zip(encoding.radix, axes, strict=True)]
        numbers = reduce(np.add.outer, weighted).ravel()
        at, certain = _peak_of_parabola(c[:, 0], c[:, 1], numbers)
        places = np.unravel_index(at, grid.box_shape)
    else:  # one softmax over all shifts of the box: enumerate them
        r = encoding.r(grid).detach().cpu().numpy()
        doubt = (np.abs(c) @ np.abs(r).max(axis=1, keepdims=True)) * (len(r) + 2) * 2.0**-53
        at, certain = _peak(np.arange(r.shape[1]), c @ r, doubt)
        places = np.unravel_index(at, grid.box_shape)
    return np.stack(places, axis=1) + least, certain


def _peak_of_parabola(
    square: np.ndarray, linear: np.ndarray, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`_peak`, for scores c_0 n² + c_1 n (heads,) of increasing integers n, ``numbers``.

    A score takes three operations of relative error 2⁻⁵³, on numbers up to the sum of its terms'
    magnitudes.  So the greatest that it can be is again a parabola, on either side of n = 0.  If
    that opens downwards, its greatest value besides the peak's lies next to its vertex, to 0 or to
    an end; else at an end, or next to the peak, which is one.  So few candidates are enough,
    however many integers there are.
    """
    count = len(numbers)
    targets = np.stack([linear / (-2 * square), 0 * linear], axis=1)
    before = np.searchsorted(numbers, targets, side="right") - 1  # the last up to each target
    near = (before[:, :, None] + np.arange(-2, 4)).reshape(len(square), -1)
    ends = np.broadcast_to([0, 1, count - 2, count - 1], (len(square), 4))
    places = np.concatenate([near, ends], axis=1).clip(0, count - 1)
    squares, linears = quadratic.r((numbers[places],))
    terms = square[:, None] * squares, linear[:, None] * linears
    size = np.abs(terms[0]) + np.abs(terms[1])
    return _peak(places, terms[0] + terms[1], size * 2.0**-51)


def _peak(
    places: np.ndarray, scores: np.ndarray, doubt: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The place of each row's greatest score, and whether no other gets attention in float64, for
    scores (heads, n) of places (heads, n) or (n,), with errors up to ``doubt`` (heads, n or 1).
    """
    doubt = np.broadcast_to(doubt, scores.shape)
    rows = np.arange(len(scores))
    first = scores.argmax(axis=1)
    at = np.broadcast_to(places, scores.shape)[rows, first]
    others = np.where(places == at[:, None], -np.inf, scores + doubt)
    # False where a score is not a number
    certain = scores[rows, first] - doubt[rows, first] - others.max(axis=1) >= CERTAIN
    return at, certain & np.isfinite(scores).all(axis=1)
