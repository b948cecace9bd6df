"""W_h = W_val^h W_out^h, the one matrix of a head whose attention is known; free where one factor is the identity.

A layer made from a convolution has the tap in one factor and the identity in the other.  That is looked up in every call,
and not remembered: weights may have been edited since, through ``.data`` or from outside torch, which leaves no trace.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

INTEGERS = {2: np.int16, 4: np.int32, 8: np.int64}
COPIED = 2**18
"""Up to so many bytes, a copy that is compared as a whole is quicker than counting."""


def is_identity(blocks: Tensor) -> bool:
    """Whether every matrix of (heads, groups, n, n) is the identity, bit for bit; one pass at the speed of memory."""
    *_, rows, columns = blocks.shape
    if rows != columns or not blocks.numel():
        return False
    if blocks.device.type != "cpu" or not blocks.is_contiguous():
        return torch.equal(blocks, torch.eye(rows, dtype=blocks.dtype, device=blocks.device).expand_as(blocks))
    plain = blocks.detach() if blocks.element_size() > 2 else blocks.detach().view(torch.int16)
    bits = plain.numpy().view(INTEGERS[blocks.element_size()]).reshape(-1, rows * rows)
    if bits[0, 0] != _one(blocks.dtype):
        return False
    if bits.nbytes <= COPIED:
        return bits.tobytes() == _identities(len(bits), rows, blocks.dtype)
    if (bits[:, :: rows + 1] != _one(blocks.dtype)).any():
        return False
    return int(np.count_nonzero(bits)) == len(bits) * rows  # so many are on the diagonals, and no others


@lru_cache(maxsize=64)
def _identities(count: int, rows: int, dtype: torch.dtype) -> bytes:
    """So many identities, as they lie in memory."""
    return torch.eye(rows, dtype=dtype).view(torch.uint8).numpy().tobytes() * count


@lru_cache
def _one(dtype: torch.dtype) -> int:
    """The bits of the number 1."""
    one = torch.ones(1, dtype=dtype)
    return int(one.view(torch.uint8).numpy().view(INTEGERS[one.element_size()])[0])


class Merge(torch.autograd.Function):
    """W_val W_out for every head and group, with derivatives of any order."""

    @staticmethod
    def forward(ctx, w_val: Tensor, w_out: Tensor) -> Tensor:  # type: ignore[override]
        """w_val (heads, groups, C, D_h), w_out (heads, groups, D_h, D) → (heads, groups, C, D)."""
        ctx.save_for_backward(w_val, w_out)
        return merged(w_val, w_out).clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        """dW_val = dW W_outᵀ and dW_out = W_valᵀ dW."""
        w_val, w_out = ctx.saved_tensors
        wants = ctx.needs_input_grad
        if torch.is_grad_enabled():  # differentiated once more
            return gradient @ w_out.mT if wants[0] else None, w_val.mT @ gradient if wants[1] else None
        return (
            (gradient if is_identity(w_out) else gradient @ w_out.mT) if wants[0] else None,
            (gradient if is_identity(w_val) else w_val.mT @ gradient) if wants[1] else None,
        )


def merged(w_val: Tensor, w_out: Tensor) -> Tensor:
    """The product without derivatives; one of the factors itself where the other is the identity."""
    if is_identity(w_out):
        return w_val
    return w_out if is_identity(w_val) else w_val @ w_out
