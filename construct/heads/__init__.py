"""Lemma 1: the bijection from heads onto kernel positions, and the factors W_val W_out of each
position's matrix.

The paper writes f : heads → Δ_K.  Head h attends the key at q + τ_h, and the τ_h are the shifts
{dil·j − a : j a kernel position}, each once; for an odd undilated kernel this set is exactly
Δ_K = {−⌊K/2⌋, …, ⌊K/2⌋}^d.

Head h carries W_val^h W_out^h = its tap's matrix (D_in × D_out).  With groups that matrix is block
diagonal; only the blocks are stored, along a separate axis, even for one group.

Factors of lower rank are found in ``construct/heads/rank.py``.
"""

import logging
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from construct.geometry import ConvGeometry, positive_number, whole_numbers

# ---- where heads look ----------------------------------------------------------------------------

Shift = tuple[int, ...]


def tap_shifts(geometry: ConvGeometry) -> tuple[Shift, ...]:
    """The shift τ_j = dil·j − a of every tap j, taps in row-major order (the last axis fastest)."""
    return tuple(
        tuple(
            dil * j - a for j, dil, a in zip(tap, geometry.dilation, geometry.anchor, strict=True)
        )
        for tap in product(*map(range, geometry.kernel_size))
    )


def bijection(shifts: Sequence[Shift], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """The bijection of Lemma 1: head h carries tap ``order[h]``, by default tap h, and attends the
    shift of that tap.

    Raises:
        ValueError: ``order`` is not a permutation of all taps, or two taps have the same shift.
    """
    every = range(len(shifts))
    taps = tuple(every) if order is None else whole_numbers(order)
    if taps is None or sorted(taps) != [*every]:
        raise ValueError(f"the order of heads is not a permutation of 0 … {len(shifts) - 1}")
    if len(set(shifts)) != len(shifts):
        raise ValueError("two heads look at the same shift: no bijection")
    return taps


# ---- what heads carry ----------------------------------------------------------------------------

log = logging.getLogger(__name__)


def tap_matrices(weight: Tensor, geometry: ConvGeometry) -> Tensor:
    """The matrix of every tap, taps in row-major order.

    Args:
        weight: the kernel as torch stores it, ``(D_out, D_in/groups, *K)``, or transposed
            ``(D_in, D_out/groups, *K)``.
        geometry: of the convolution.

    Returns:
        (taps, groups, D_in/groups, D_out/groups), contiguous.  A transposed kernel is flipped, as
        attention correlates on the zero-stuffed grid, and a transposed convolution convolves there.
    """
    spatial = tuple(range(2, weight.dim()))
    if geometry.transposed:
        blocks = weight.flip(spatial).unflatten(0, (geometry.groups, -1))  # (g, in/g, out/g, *K)
    else:
        blocks = weight.unflatten(0, (geometry.groups, -1)).transpose(1, 2)  # (g, in/g, out/g, *K)
    return blocks.flatten(3).movedim(-1, 0).contiguous()


def kernel_of_taps(taps: Tensor, geometry: ConvGeometry) -> Tensor:
    """Assemble the kernel, as torch stores it, from its taps' matrices: the inverse of
    :func:`tap_matrices`; contiguous.
    """
    blocks = taps.movedim(0, -1).unflatten(-1, geometry.kernel_size)  # (g, in/g, out/g, *K)
    if geometry.transposed:
        return blocks.flip(tuple(range(3, blocks.dim()))).flatten(0, 1).contiguous()
    return blocks.transpose(1, 2).flatten(0, 1).contiguous()


def factor(taps: Tensor, head_dim: int | str | None = None) -> tuple[Tensor, Tensor]:
    """Factor each tap's matrix as W_val W_out.

    Args:
        taps: (heads, groups, D_in/groups, D_out/groups).
        head_dim: D_h.  None means min(D_in, D_out) per group; one factor is then the identity, so
            this is exact.  "rank" means the largest rank of a tap, if exact factors can be stored
            and the taps are small enough for elimination; else min(D_in, D_out), and the log says
            why.  A larger number pads with zeros, which is exact.  A smaller number keeps the
            largest singular values of every tap: an approximation, whose error a certificate bounds
            (``within``).

    Returns:
        w_val (heads, groups, D_in/groups, D_h) and w_out (heads, groups, D_h, D_out/groups).

    Raises:
        ValueError: ``head_dim`` is neither None, "rank" nor a positive number.
    """
    if head_dim == "rank":
        from construct.heads.rank import NoFactors, rank_factors

        try:
            return rank_factors(taps)
        except NoFactors as reason:
            log.warning("%s; D_h stays %d", reason, min(taps.shape[2:]))
            head_dim = None
    w_val, w_out = _tap_and_identity(taps)
    if head_dim is None:
        return w_val, w_out
    width = positive_number(head_dim)
    if width is None:
        raise ValueError(f"head_dim is {head_dim!r}, neither None, 'rank' nor a positive number")
    more = width - w_val.shape[3]
    if more < 0:  # the nearest matrices of this rank (Eckart and Young)
        u, s, vh = torch.linalg.svd(taps.double(), full_matrices=False)
        root = s[..., :width].sqrt()
        w_val = u[..., :width] * root[..., None, :]
        w_out = root[..., None] * vh[..., :width, :]
        return w_val.to(taps.dtype), w_out.to(taps.dtype)
    return torch.nn.functional.pad(w_val, (0, more)), torch.nn.functional.pad(
        w_out, (0, 0, 0, more)
    )


def _tap_and_identity(taps: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of width min(D_in, D_out), of which one is the tap itself."""
    heads, groups, d_in, d_out = taps.shape
    identity = torch.eye(min(d_in, d_out), dtype=taps.dtype, device=taps.device).repeat(
        heads, groups, 1, 1
    )
    if d_out <= d_in:
        return taps.clone(), identity
    return identity, taps.clone()


def split_heads(w_val: Tensor, w_out: Tensor, pieces: int) -> tuple[Tensor, Tensor]:
    """Split every head into ``pieces`` narrower heads at the same shift that sum to it: W_val
    W_out = Σ_i W_val[:, i] W_out[i].

    The pieces of a head are adjacent: (heads, groups, D_in/groups, pieces·D_h) → (heads·pieces,
    groups, D_in/groups, D_h).
    """
    columns = w_val.unflatten(3, (pieces, -1)).movedim(3, 1)  # (heads, pieces, groups, in/g, D_h)
    rows = w_out.unflatten(2, (pieces, -1)).movedim(2, 1)  # (heads, pieces, groups, D_h, out/g)
    return columns.flatten(0, 1).contiguous(), rows.flatten(0, 1).contiguous()
