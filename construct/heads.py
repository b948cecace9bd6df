"""W_val and W_out of each head from the taps of the kernel: W_val^h W_out^h = the tap's matrix (D_in × D_out).

With groups the tap's matrix is block diagonal; only the blocks are stored, as an axis of their own, also for one group.
"""

import logging

import torch
from torch import Tensor

from construct.geometry import ConvGeometry
from construct.rank import NoFactors, rank_factors

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


def factor(taps: Tensor, head_dim: int | str | None = None) -> tuple[Tensor, Tensor]:
    """Factor each tap's matrix as W_val W_out.

    Args:
        taps: (heads, groups, D_in/groups, D_out/groups).
        head_dim: D_h.  None takes min(D_in, D_out) per group, where one factor is the identity: exact.  "rank" takes the
            largest rank of a tap, exactly, where the factors can be stored exactly and the tap is small enough to look for
            them, else min(D_in, D_out), saying in the log which of the two it was.  A number above pads with zeros: exact.
            A number below keeps the largest singular values of every tap: an approximation, whose error a certificate counts
            (``within``).

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
    if isinstance(head_dim, int) and not isinstance(head_dim, bool) and head_dim > 0:
        if head_dim < least:
            return _truncated(taps, head_dim)
        w_val, w_out = factor(taps)
        return (
            torch.nn.functional.pad(w_val, (0, head_dim - least)),
            torch.nn.functional.pad(w_out, (0, 0, 0, head_dim - least)),
        )
    if head_dim is not None:
        raise ValueError(f"head_dim is {head_dim!r}, neither None, 'rank' nor a positive number")
    identity = torch.eye(least, dtype=taps.dtype, device=taps.device).repeat(heads, groups, 1, 1)
    return (taps.clone(), identity) if d_out <= d_in else (identity, taps.clone())


def cut(w_val: Tensor, w_out: Tensor, pieces: int) -> tuple[Tensor, Tensor]:
    """Cut every head into narrower ones at the same shift, which add up to it: W_val W_out = Σ_i W_val[:, i] W_out[i].

    Args:
        w_val: (heads, groups, D_in/groups, pieces·D_h).
        w_out: (heads, groups, pieces·D_h, D_out/groups).
        pieces: how many heads are made of each.

    Returns:
        (heads·pieces, groups, D_in/groups, D_h) and (heads·pieces, groups, D_h, D_out/groups), pieces of one head together.
    """
    columns = w_val.unflatten(3, (pieces, -1)).movedim(3, 1)  # (heads, pieces, groups, in/g, D_h)
    rows = w_out.unflatten(2, (pieces, -1)).movedim(2, 1)  # (heads, pieces, groups, D_h, out/g)
    return columns.flatten(0, 1).contiguous(), rows.flatten(0, 1).contiguous()


def _truncated(taps: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The nearest matrices of this rank (Eckart and Young), the singular values shared evenly between the factors."""
    u, s, vh = torch.linalg.svd(taps.double(), full_matrices=False)
    root = s[..., :rank].sqrt()
    return (u[..., :rank] * root[..., None, :]).to(taps.dtype), (root[..., None] * vh[..., :rank, :]).to(taps.dtype)
