"""Splits a layer's heads on a grid into one-hot heads, with their shifts, and soft heads, from ``v`` and ``w_key_pos`` alone."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from construct.encoding import quadratic
from construct.encoding.encodings import CLASSICAL, LEARNED, Encoding, Parabola, Quadratic
from construct.execution.kernels.windows import Shifts
from construct.execution.protocol import Layer
from construct.execution.transforms import common, eagerly, plain, shared_array, transformed
from construct.heads import shifts_are_distinct
from construct.tokens import TokenGrid

CERTAIN = 746.0
"""A score this far below the maximum gets attention exp(−746), which is 0 in float64."""


@dataclass(frozen=True)
class Plan:
    """Which heads are pure shifts on one grid.

    Attributes:
        sharp: heads that are pure shifts.
        deltas: their shifts δ.
        soft: the other heads.
    """

    sharp: tuple[int, ...]
    deltas: tuple[tuple[int, ...], ...]
    soft: tuple[int, ...]


CACHE_SIZE = 1024
_CACHE: dict[Any, Plan] = {}
"""At most ``CACHE_SIZE`` plans, keyed by everything that they depend on."""


def axial_plan(layer: Layer, grid: TokenGrid) -> Plan | None:
    """The plan, if the attention of every head factorises or is certain to be a shift; else None."""
    if layer.has_content() or type(layer.encoding) not in (*CLASSICAL, *LEARNED):
        return None
    if transformed() and (layer.offsets or common(layer.v) is None or common(layer.w_key_pos) is None):
        return None  # learned tables are not unwrapped, and under vmap each member may look elsewhere
    plan = plan_for(layer, grid)
    return plan if layer.encoding.factorises or not plan.soft else None


def plan_for(layer: Layer, grid: TokenGrid) -> Plan:
    """The plan on this grid, cached by the very numbers of ``v`` and ``w_key_pos``, so never stale."""
    v, w_key_pos, encoding = common(layer.v), common(layer.w_key_pos), layer.encoding
    assert v is not None
    assert w_key_pos is not None
    with nullcontext() if plain() else eagerly():
        bits = _bytes(v), _bytes(w_key_pos)
    # A plan is valid only for this very code.
    code = quadratic.r, quadratic.r_covariance, quadratic.number, type(layer).position_vector
    numbers = (*bits, v.dtype, w_key_pos.dtype, layer.heads, layer.radix, encoding.name, encoding.numbers())
    key = (numbers, grid.box, grid.common_box, grid.step, code)
    plan = _CACHE.get(key)
    if plan is None:
        if len(_CACHE) >= CACHE_SIZE:
            _CACHE.clear()
        c = common(layer.position_vector())
        assert c is not None
        with eagerly():
            plan = _CACHE[key] = _plan(c.cpu().numpy(), encoding, grid)
    return plan


def _bytes(t: Tensor) -> bytes:
    if t.device.type != "cpu" or t.dtype not in (torch.float32, torch.float64):
        t = t.cpu().view(torch.uint8)
    return shared_array(t).tobytes()


@np.errstate(over="ignore", invalid="ignore")  # a head whose scores overflow is not a shift
def _plan(c: np.ndarray, encoding: Encoding, grid: TokenGrid) -> Plan:
    """Find the heads that are certain to be shifts; c is float64 (heads, D_p)."""
    heads, box, common_box = len(c), grid.box, grid.common_box
    axes = [np.arange(least, most + 1, dtype=np.float64) for least, most in box]
    peaks = [np.full(heads, -1)] * len(box)
    if grid.step is None:
        pass  # a shift requires evenly spaced queries
    elif isinstance(encoding, Quadratic):
        # A score takes three operations of relative error 2⁻⁵³, on numbers up to the sum of its terms' magnitudes.
        peaks = [
            _peak(encoding.along(c, n, axis), encoding.along(np.abs(c), np.abs(n), axis) * 2.0**-51)
            for axis, n in enumerate(axes)
        ]
    elif not isinstance(encoding, Parabola) or shifts_are_distinct(encoding.radix, box):
        # One softmax over all shifts of the box: enumerate them.
        r = encoding.r(grid).detach().cpu().numpy()
        at = _peak(c @ r, (np.abs(c) @ np.abs(r).max(axis=1, keepdims=True)) * (len(r) + 2) * 2.0**-53)
        places = np.unravel_index(np.maximum(at, 0), [len(n) for n in axes])
        peaks = [np.where(at < 0, -1, place) for place in places]
    sharp, deltas = [], []
    for head in range(heads):
        delta = tuple(int(at[head]) + least for at, (least, _) in zip(peaks, box, strict=True))
        if all(at[head] >= 0 for at in peaks) and all(
            least <= n <= most for n, (least, most) in zip(delta, common_box, strict=True)
        ):
            sharp.append(head)
            deltas.append(delta)
    soft = sorted({*range(heads)} - {*sharp})
    return Plan(tuple(sharp), tuple(deltas), tuple(soft))


def _peak(scores: np.ndarray, doubt: np.ndarray) -> np.ndarray:
    """The index of each row's maximum if all else gets attention 0 in float64, else −1: (heads, n) → (heads,).

    ``doubt`` (heads, n or 1) bounds the error of each score.
    """
    at = scores.argmax(axis=1)
    rows = np.arange(len(scores))
    least = scores[rows, at] - np.broadcast_to(doubt, scores.shape)[rows, at]
    most = scores + doubt
    most[rows, at] = -np.inf
    with np.errstate(invalid="ignore"):
        certain = least - most.max(axis=1) >= CERTAIN  # False where a score is not a number
    return np.where(certain & np.isfinite(scores).all(axis=1), at, -1)


@dataclass(frozen=True)
class Sight:
    """What the sharp heads read, and at which shifts.

    Attributes:
        shifts: from outputs to the positions that they read.
        padded: whether heads read the padded input, because padding copies inputs; else the input itself, with zeros around.
        stuffed: whether inputs are stuffed with zeros; the shifts then run from inputs to outputs.
    """

    shifts: Shifts
    padded: bool
    stuffed: bool

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, grid: TokenGrid, plan: Plan, size: tuple[int, ...]) -> "Sight":
        """Derive it for an input of spatial size ``size``."""
        affine, padded = grid.affine, False
        stuffed = affine is not None and any(step > 1 for _, step in affine)
        assert grid.step is not None  # else no head is a shift
        if affine is None or (stuffed and any(step > 1 for step in grid.step)):
            affine, padded, stuffed, size = ((0, 1),) * len(size), True, False, grid.shape
        offsets = [
            tuple(q + n - begin for q, n, (begin, _) in zip(grid.first, delta, affine, strict=True))
            for delta in plan.deltas
        ]
        if not stuffed:
            return cls(Shifts(tuple(offsets), grid.step, size, grid.query_shape), padded, False)
        flipped = tuple(tuple(-n for n in offset) for offset in offsets)
        return cls(Shifts(flipped, tuple(step for _, step in affine), grid.query_shape, size), False, True)
