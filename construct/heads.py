"""W_val and W_out of each head from the taps of the kernel: W_val^h W_out^h = the tap's matrix (D_in × D_out).

With groups the tap's matrix is block diagonal; only the blocks are stored, as an axis of their own, also for one group.
"""

import torch
from torch import Tensor

from construct.geometry import ConvGeometry


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


def factor(taps: Tensor) -> tuple[Tensor, Tensor]:
    """Factor each tap's matrix as W_val W_out with D_h = min(D_in, D_out) per group, exactly: one factor is the identity.

    Args:
        taps: (heads, groups, D_in/groups, D_out/groups).

    Returns:
        w_val (heads, groups, D_in/groups, D_h) and w_out (heads, groups, D_h, D_out/groups).
    """
    heads, groups, d_in, d_out = taps.shape
    head_dim = min(d_in, d_out)
    identity = torch.eye(head_dim, dtype=taps.dtype, device=taps.device).repeat(heads, groups, 1, 1)
    return (taps.clone(), identity) if d_out <= d_in else (identity, taps.clone())
