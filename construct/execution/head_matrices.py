"""The matrix W_h = W_val^h W_out^h of every head, without a product where one factor is the identity.

A layer made from a convolution has the tap in one factor and the identity in the other.  Every call checks that, since edits
of weights through ``.data`` or from outside torch leave no trace.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from construct.execution.transforms import shared_array, transformed

AT_ONCE = 2**16
"""Bytes compared at a time, few enough for the identities to stay in a core's cache."""


def is_identity(blocks: Tensor) -> bool:
    """Whether every matrix of (heads, groups, n, n) is the identity, bit for bit; one pass at memory speed."""
    *_, rows, columns = blocks.shape
    if rows != columns or not blocks.numel():
        return False
    if blocks.device.type != "cpu" or not blocks.is_contiguous():
        return torch.equal(blocks, torch.eye(rows, dtype=blocks.dtype, device=blocks.device).expand_as(blocks))
    return all(like == part for like, part in identity_parts(as_bits(blocks), rows, blocks.dtype))


def as_bits(blocks: Tensor) -> np.ndarray:
    """View contiguous matrices as a numpy array, (heads·groups, n²); as integers if numpy lacks the dtype."""
    plain = blocks.detach() if blocks.dtype != torch.bfloat16 else blocks.detach().view(torch.int16)
    return shared_array(plain).reshape(-1, blocks.shape[-2] * blocks.shape[-1])


def identity_parts(bits: np.ndarray, rows: int, dtype: torch.dtype) -> Iterator[tuple[bytearray, np.ndarray]]:
    """Pair each part of the matrices with the bytes of identities: a bytearray compares itself with memory, without a copy.

    Small identities are compared several at a time.  A large one is n − 1 times a one and n zeros, then a one: as many of
    these periods are compared at a time as stay in a core's cache, then the rest.
    """
    if 2 * bits[:1].nbytes > AT_ONCE:
        period = rows + 1
        times = max(1, min(rows - 1, AT_ONCE // (period * bits.itemsize)))
        like, end = _ones(times, period, dtype), (rows - 1) // times * times * period
        for matrix in bits:
            yield from ((like, part) for part in matrix[:end].reshape(-1, times * period))
            yield like[: (len(matrix) - end) * bits.itemsize], matrix[end:]
        return
    count = min(len(bits), max(1, AT_ONCE // max(1, bits[:1].nbytes)))
    like, whole = _identities(count, rows, dtype), len(bits) // count * count
    yield from ((like, part) for part in bits[:whole].reshape(-1, count * rows * rows))
    if whole < len(bits):
        yield like[: bits[whole:].nbytes], bits[whole:]


@lru_cache(maxsize=32)
def _identities(count: int, rows: int, dtype: torch.dtype) -> bytearray:
    """The bytes of ``count`` identity matrices."""
    return bytearray(torch.eye(rows, dtype=dtype, device="cpu").view(torch.uint8).numpy().tobytes() * count)


@lru_cache(maxsize=32)
def _ones(times: int, period: int, dtype: torch.dtype) -> bytearray:
    """The bytes of a one followed by zeros, ``period`` numbers in all, repeated ``times`` times."""
    numbers = torch.zeros(times, period, dtype=dtype, device="cpu")
    numbers[:, 0] = 1
    return bytearray(numbers.view(torch.uint8).numpy().tobytes())


class Merge(torch.autograd.Function):
    """W_val W_out for every head and group, with derivatives of any order."""

    @staticmethod
    def forward(ctx, w_val: Tensor, w_out: Tensor) -> Tensor:  # type: ignore[override]
        """w_val (heads, groups, C, D_h), w_out (heads, groups, D_h, D) → (heads, groups, C, D)."""
        ctx.save_for_backward(w_val, w_out)
        # torch turns an input that is returned unchanged into a view
        return w_val if is_identity(w_out) else w_out if is_identity(w_val) else w_val @ w_out

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        """dW_val = dW W_outᵀ and dW_out = W_valᵀ dW."""
        w_val, w_out = ctx.saved_tensors
        wants = ctx.needs_input_grad
        if torch.is_grad_enabled():  # to be differentiated again
            return gradient @ w_out.mT if wants[0] else None, w_val.mT @ gradient if wants[1] else None
        return (
            (gradient if is_identity(w_out) else gradient @ w_out.mT) if wants[0] else None,
            (gradient if is_identity(w_val) else w_val.mT @ gradient) if wants[1] else None,
        )


def merged(w_val: Tensor, w_out: Tensor) -> Tensor:
    """W_val W_out for every head and group, (heads, groups, C, D); a factor itself if the other is the identity.

    While gradients are recorded, this shortcut is taken only if the identity needs none.
    """
    if transformed():
        return w_val @ w_out
    recorded = torch.is_grad_enabled() and (w_val.requires_grad or w_out.requires_grad)
    for whole, other in ((w_val, w_out), (w_out, w_val)):
        if not (recorded and other.requires_grad) and is_identity(other):
            return whole
    both = Merge.apply(w_val, w_out) if recorded else w_val @ w_out
    assert isinstance(both, Tensor)
    return both
