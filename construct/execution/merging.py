"""W_h = W_val^h W_out^h, the one matrix of a head whose attention is known; free where one factor is the identity.

A layer made from a convolution has the tap in one factor and the identity in the other.  That is looked up in every call,
and not remembered: weights may have been edited since, through ``.data`` or from outside torch, which leaves no trace.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

AT_ONCE = 2**18
"""Bytes of identities that are compared at a time, as they lie: small enough to stay in a core's cache."""
LARGE = 2**22
"""Bytes from which on no identity is kept to compare with."""


def is_identity(blocks: Tensor) -> bool:
    """Whether every matrix of (heads, groups, n, n) is the identity, bit for bit; one pass at the speed of memory."""
    *_, rows, columns = blocks.shape
    if rows != columns or not blocks.numel():
        return False
    if blocks.device.type != "cpu" or not blocks.is_contiguous():
        return torch.equal(blocks, torch.eye(rows, dtype=blocks.dtype, device=blocks.device).expand_as(blocks))
    return are_identities(as_bits(blocks), rows, blocks.dtype)


def as_bits(blocks: Tensor) -> np.ndarray:
    """The very memory of contiguous matrices, (heads·groups, n²), of integers where numpy does not know the numbers."""
    plain = blocks.detach() if blocks.dtype != torch.bfloat16 else blocks.detach().view(torch.int16)
    return plain.numpy().reshape(-1, blocks.shape[-2] * blocks.shape[-1])


def are_identities(bits: np.ndarray, rows: int, dtype: torch.dtype) -> bool:
    """Whether matrices in memory are identities of so many rows and of this type, bit for bit.

    A bytearray compares itself with whatever another object holds in memory.
    """
    if bits.itemsize * rows * rows > LARGE:  # row by row: zeros with a one among them, seen from one place further each
        line, size = _line(rows, dtype), bits.itemsize
        starts = range(size * (rows - 1), -1, -size)
        return all(
            line[start : start + size * rows] == row
            for matrix in bits.reshape(-1, rows, rows)
            for start, row in zip(starts, matrix, strict=True)
        )
    count = min(len(bits), max(1, AT_ONCE // (bits.itemsize * rows * rows)))
    like, whole = _identities(count, rows, dtype), len(bits) // count * count
    if not all(like == part for part in bits[:whole].reshape(-1, count * rows * rows)):
        return False
    rest = bits[whole:]
    return not len(rest) or like[: rest.nbytes] == rest


@lru_cache(maxsize=32)
def _identities(count: int, rows: int, dtype: torch.dtype) -> bytearray:
    """So many identities, as they lie in memory."""
    return bytearray(torch.eye(rows, dtype=dtype).view(torch.uint8).numpy().tobytes() * count)


@lru_cache(maxsize=32)
def _line(rows: int, dtype: torch.dtype) -> bytearray:
    """The row in the middle of an identity of 2·rows − 1."""
    line = torch.zeros(2 * rows - 1, dtype=dtype)
    line[rows - 1] = 1
    return bytearray(line.view(torch.uint8).numpy().tobytes())


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
