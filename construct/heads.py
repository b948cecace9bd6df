"""Lemma 1: the bijection from heads onto kernel positions, and the factors W_val W_out of each position's matrix.

The paper writes f : heads → Δ_K.  Head h attends the key at q + τ_h, and the τ_h are the shifts {dil·j − a : j a kernel
position}, each once; for an odd undilated kernel this set is exactly Δ_K = {−⌊K/2⌋, …, ⌊K/2⌋}^d.

Head h carries W_val^h W_out^h = its tap's matrix (D_in × D_out).  With groups that matrix is block diagonal; only the blocks
are stored, along a separate axis, even for one group.

A tap A of rank r with independent columns A_P factors as A = A_P R.  Elimination over the rationals finds R.  A_P holds stored
numbers, so the factorisation is exact if R's entries can be stored.  Zero rows and columns (pruned channels) are left out
first, which is always exact.
"""

import logging
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import torch
from torch import Tensor

from construct.geometry import ConvGeometry, whole_numbers

# ---- where heads look ------------------------------------------------------------------------------------------------

Shift = tuple[int, ...]


def tap_shifts(geometry: ConvGeometry) -> tuple[Shift, ...]:
    """The shift τ_j = dil·j − a of every tap j, taps in row-major order (the last axis fastest)."""
    return tuple(
        tuple(dil * j - a for j, dil, a in zip(tap, geometry.dilation, geometry.anchor, strict=True))
        for tap in product(*map(range, geometry.kernel_size))
    )


def bijection(shifts: Sequence[Shift], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """The bijection of Lemma 1: head h carries tap ``order[h]``, by default tap h, and attends the shift of that tap.

    Raises:
        ValueError: ``order`` is not a permutation of all taps, or two taps have the same shift.
    """
    order = whole_numbers(range(len(shifts)) if order is None else order)
    if order is None or sorted(order) != list(range(len(shifts))):
        raise ValueError(f"the order of heads is not a permutation of 0 … {len(shifts) - 1}")
    if len(set(shifts)) != len(shifts):
        raise ValueError("two heads look at the same shift: no bijection")
    return order


# ---- the parabola: shifts of a bounded box as single numbers --------------------------------------------------------------


def balanced_radix(geometry: ConvGeometry, alpha: float) -> tuple[int, ...]:
    """The mixed radix of the parabola encoding: it numbers the largest box of shifts whose scores are exact in float64.

    Every axis takes −N … N, so radix_i = (2N + 1)^{d−1−i}.  Intermediate scores are at most 3αn² in size, with n at most
    ((2N + 1)^d − 1)/2; so N is the largest with 3αn² ≤ 2^53.  In one dimension the number is the shift itself.

    Raises:
        ValueError: the kernel's own shifts do not fit into that box.
    """
    widest = math.isqrt(int(2**53 / (3 * alpha)))  # the largest number n
    side = int((2 * widest + 1) ** (1 / geometry.dims)) + 2
    while side % 2 == 0 or side**geometry.dims > 2 * widest + 1:
        side -= 1
    most = side // 2
    if any(abs(t) > most for shift in tap_shifts(geometry) for t in shift):
        raise ValueError(f"at α = {alpha} the parabola numbers shifts up to {most}, and this kernel reaches farther")
    return tuple(side ** (geometry.dims - 1 - axis) for axis in range(geometry.dims))


def shift_of_number(number: int, radix: Shift) -> Shift:
    """The shift with this number; all components but the first lie in the balanced range of their axis."""
    shift: list[int] = []
    for outer, weight in zip(reversed(radix[:-1]), reversed(radix[1:]), strict=True):
        base = outer // weight
        digit = (number // weight + base // 2) % base - base // 2
        shift.append(digit)
        number -= digit * weight
    return (number // radix[0], *reversed(shift))


def shifts_are_distinct(radix: Shift, box: Sequence[tuple[int, int]]) -> bool:
    """Whether all shifts of the box have different numbers, exact in float64, from which the shifts can be read back."""
    widest = [max(-least, most, 0) for least, most in box]
    if radix[-1] != 1 or min(radix) < 1 or sum(weight * n for weight, n in zip(radix, widest, strict=True)) > 2**53:
        return False
    return all(
        outer % weight == 0 and n <= (outer // weight - 1) // 2
        for outer, weight, n in zip(radix[:-1], radix[1:], widest[1:], strict=True)
    )


def require_distinct(radix: Shift | None, box: Sequence[tuple[int, int]]) -> None:
    """Check that a radix, if any, numbers all shifts of a box differently.

    Raises:
        ValueError: two shifts would share a number.
    """
    if radix is not None and not shifts_are_distinct(radix, box):
        raise ValueError(f"MHSA: the parabola of radix {radix} cannot number the shifts {box} of this input")


# ---- what heads carry ------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)


def tap_matrices(weight: Tensor, geometry: ConvGeometry) -> Tensor:
    """The matrix of every tap, taps in row-major order.

    Args:
        weight: the kernel as torch stores it, (D_out, D_in/groups, *K), or transposed (D_in, D_out/groups, *K).
        geometry: of the convolution.

    Returns:
        (taps, groups, D_in/groups, D_out/groups), contiguous.  A transposed kernel is flipped: attention correlates on
        the zero-stuffed grid, and a transposed convolution convolves there.
    """
    spatial = tuple(range(2, weight.dim()))
    if geometry.transposed:
        blocks = weight.flip(spatial).unflatten(0, (geometry.groups, -1))  # (g, in/g, out/g, *K)
    else:
        blocks = weight.unflatten(0, (geometry.groups, -1)).transpose(1, 2)  # (g, in/g, out/g, *K)
    return blocks.flatten(3).movedim(-1, 0).contiguous()


def kernel_of_taps(taps: Tensor, geometry: ConvGeometry) -> Tensor:
    """Assemble the kernel, as torch stores it, from its taps' matrices: the inverse of :func:`tap_matrices`; contiguous."""
    blocks = taps.movedim(0, -1).unflatten(-1, geometry.kernel_size)  # (g, in/g, out/g, *K)
    if geometry.transposed:
        return blocks.flip(tuple(range(3, blocks.dim()))).flatten(0, 1).contiguous()
    return blocks.transpose(1, 2).flatten(0, 1).contiguous()


def factor(taps: Tensor, head_dim: int | str | None = None) -> tuple[Tensor, Tensor]:
    """Factor each tap's matrix as W_val W_out.

    Args:
        taps: (heads, groups, D_in/groups, D_out/groups).
        head_dim: D_h.  None means min(D_in, D_out) per group; one factor is then the identity, so this is exact.  "rank" means
            the largest rank of a tap, if exact factors can be stored and the taps are small enough for elimination; else
            min(D_in, D_out), and the log says why.  A larger number pads with zeros, which is exact.  A smaller number keeps the
            largest singular values of every tap: an approximation, whose error a certificate bounds (``within``).

    Returns:
        w_val (heads, groups, D_in/groups, D_h) and w_out (heads, groups, D_h, D_out/groups).

    Raises:
        ValueError: ``head_dim`` is neither None, "rank" nor a positive number.
    """
    heads, groups, d_in, d_out = taps.shape
    least = min(d_in, d_out)
    if head_dim == "rank":
        try:
            return rank_factors(taps)
        except NoFactors as reason:
            log.warning("%s; D_h stays %d", reason, least)
        head_dim = None
    number = whole_numbers([head_dim])
    if number is not None and number[0] > 0:
        head_dim = number[0]
        if head_dim < least:
            return _truncated(taps, head_dim)
        w_val, w_out = factor(taps)
        more = head_dim - least
        return torch.nn.functional.pad(w_val, (0, more)), torch.nn.functional.pad(w_out, (0, 0, 0, more))
    if head_dim is not None:
        raise ValueError(f"head_dim is {head_dim!r}, neither None, 'rank' nor a positive number")
    identity = torch.eye(least, dtype=taps.dtype, device=taps.device).repeat(heads, groups, 1, 1)
    return (taps.clone(), identity) if d_out <= d_in else (identity, taps.clone())


def split_heads(w_val: Tensor, w_out: Tensor, pieces: int) -> tuple[Tensor, Tensor]:
    """Split every head into ``pieces`` narrower heads at the same shift that sum to it: W_val W_out = Σ_i W_val[:, i] W_out[i].

    The pieces of a head are adjacent: (heads, groups, D_in/groups, pieces·D_h) → (heads·pieces, groups, D_in/groups, D_h).
    """
    columns = w_val.unflatten(3, (pieces, -1)).movedim(3, 1)  # (heads, pieces, groups, in/g, D_h)
    rows = w_out.unflatten(2, (pieces, -1)).movedim(2, 1)  # (heads, pieces, groups, D_h, out/g)
    return columns.flatten(0, 1).contiguous(), rows.flatten(0, 1).contiguous()


def _truncated(taps: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors of the nearest matrices of this rank (Eckart and Young); each gets the square roots of the singular values."""
    u, s, vh = torch.linalg.svd(taps.double(), full_matrices=False)
    root = s[..., :rank].sqrt()
    return (u[..., :rank] * root[..., None, :]).to(taps.dtype), (root[..., None] * vh[..., :rank, :]).to(taps.dtype)


# ---- factors at the exact rank ---------------------------------------------------------------------------------------

LARGEST_ELIMINATED = 48
"""The largest side of a matrix that is eliminated over the rationals; larger taps only lose zero rows and columns."""


class NoFactors(ValueError):
    """No exact factors of lower rank are available; the message says why."""


def rank_factors(taps: Tensor) -> tuple[Tensor, Tensor]:
    """Factor as :func:`factor` does, with D_h = the largest exact rank and W_val W_out = tap exactly.

    Raises:
        NoFactors: some tap's factors cannot be stored, or the tap is too large.
    """
    heads, groups, d_in, d_out = taps.shape
    exact = taps.detach().cpu().double().numpy()
    pairs = [_factors(tap, taps.dtype) for tap in exact.reshape(-1, d_in, d_out)]
    head_dim = max(1, *(a.shape[1] for a, _ in pairs)) if pairs else 1
    w_val, w_out = np.zeros((len(pairs), d_in, head_dim)), np.zeros((len(pairs), head_dim, d_out))
    for n, (a, b) in enumerate(pairs):
        w_val[n, :, : a.shape[1]], w_out[n, : b.shape[0]] = a, b
    return (
        torch.from_numpy(w_val).to(taps).reshape(heads, groups, d_in, head_dim),
        torch.from_numpy(w_out).to(taps).reshape(heads, groups, head_dim, d_out),
    )


def _factors(tap: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.flatnonzero(tap.any(axis=1)), np.flatnonzero(tap.any(axis=0))
    core = tap[np.ix_(rows, columns)]
    if core.size == 0 or _surely_full_rank(core):
        inner = (core, np.eye(len(columns))) if len(columns) <= len(rows) else (np.eye(len(rows)), core)
    elif max(core.shape) > LARGEST_ELIMINATED:
        sides = "x".join(map(str, core.shape))
        most = f"{LARGEST_ELIMINATED}x{LARGEST_ELIMINATED}"
        raise NoFactors(f"exact factors of lower rank were not looked for, as a tap of {sides} is beyond {most}")
    else:
        inner = _eliminated(core, dtype)
        if inner is None:
            transposed = _eliminated(core.T, dtype)
            inner = None if transposed is None else (transposed[1].T, transposed[0].T)
        if inner is None:
            what = "no exact factors of lower rank, made of its own columns or rows"
            raise NoFactors(f"a tap has {what}, that {dtype} can store")
    a, b = np.zeros((len(tap), inner[0].shape[1])), np.zeros((inner[1].shape[0], tap.shape[1]))
    a[rows], b[:, columns] = inner
    return a, b


def _surely_full_rank(core: np.ndarray) -> bool:
    """Whether the smallest singular value is far above its rounding error."""
    values = np.linalg.svd(core, compute_uv=False)
    return bool(values[-1] > 1e-9 * values[0] * max(core.shape))


def _eliminated(core: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray] | None:
    """(A_P, R) with A = A_P R, R the reduced row echelon form over the rationals; None if an entry of R cannot be stored."""
    from sympy import QQ  # heavy, and used only for ``head_dim="rank"``
    from sympy.polys.matrices import DomainMatrix

    exact = [[QQ(*x.as_integer_ratio()) for x in row] for row in core.tolist()]
    echelon, pivots = DomainMatrix(exact, core.shape, QQ).rref()
    rows = [[Fraction(int(QQ.numer(x)), int(QQ.denom(x))) for x in row] for row in echelon.to_list()[: len(pivots)]]
    try:
        reduced = np.array(rows, dtype=np.float64)
    except OverflowError:
        return None
    if torch.from_numpy(reduced).to(dtype).double().tolist() != rows:  # Fraction == float is exact
        return None
    return core[:, list(pivots)], reduced
