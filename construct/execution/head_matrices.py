"""The matrix W_h = W_val^h W_out^h of every head, without a product where one factor is the
identity, as in a layer made from a convolution.

On a CPU every call checks that; elsewhere only a frozen factor counts as the identity.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import construct.tokens as tokens
from construct.execution import reads
from construct.execution.transforms import shared_array, sizes_as_numbers, transformed

AT_ONCE = 2**16
"""Bytes compared at a time, so that the identities stay in a core's cache; a matrix may have more."""


def is_identity(blocks: Tensor, heads: Sequence[int] = ()) -> bool:
    """Whether every matrix of (heads, groups, n, n), or of some heads, is the identity; bit for bit
    on a CPU.
    """
    blocks = heads_of(blocks, heads) if heads else blocks
    rows, columns = blocks.shape[-2:]
    if rows != columns or not blocks.numel():
        return False
    if blocks.device.type != "cpu" or blocks.dtype == torch.bfloat16:
        return torch.equal(
            blocks, torch.eye(rows, dtype=blocks.dtype, device=blocks.device).expand_as(blocks)
        )
    return all(like == part for like, part in identity_parts(shared_array(blocks.detach())))


def identity_parts(matrices: np.ndarray) -> Iterator[tuple[bytearray, np.ndarray]]:
    """The bytes of identities, which compare themselves with memory, and parts of the matrices."""
    rows = matrices.shape[-1]
    flat = matrices.reshape(-1, rows * rows)
    most = max(1, AT_ONCE // flat[:1].nbytes)
    for start in range(0, len(flat), most):
        part = flat[start : start + most]
        yield _identities(len(part), rows, part.dtype), part


@lru_cache(maxsize=32)
def _identities(count: int, rows: int, dtype: Any) -> bytearray:
    return bytearray(np.eye(rows, dtype=dtype).tobytes() * count)


def heads_of(t: Tensor, heads: Sequence[int]) -> Tensor:
    """The rows (heads, …) of these heads; t itself if they are all."""
    if not heads or heads[-1] - heads[0] + 1 > len(heads):
        return t[list(heads)]
    with sizes_as_numbers():
        all_heads = len(heads) == t.shape[0]
    return t if all_heads else t[heads[0] : heads[-1] + 1]


def whole_factor(layer: Any, heads: tuple[int, ...]) -> str:
    """The factor, "w_val" or "w_out", whose other one is the identity in these heads; or ""."""
    for whole, other in (("w_val", "w_out"), ("w_out", "w_val")):
        factor = getattr(layer, other)
        known = not tokens.host_waits(factor.device) or reads.state_of(factor) is not None
        if known and reads.once(layer, other, is_identity, heads):
            return whole
    return ""


class Merge(torch.autograd.Function):
    """W_val W_out of which one is the identity, with derivatives of any order."""

    @staticmethod
    def forward(ctx, w_val: Tensor, w_out: Tensor, whole: str):  # type: ignore[override]
        """The factor named ``whole``."""
        ctx.save_for_backward(w_val, w_out)
        ctx.whole = whole
        # torch turns an input that is returned unchanged into a view
        return w_val if whole == "w_val" else w_out

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        """dW_val = dW W_outᵀ and dW_out = W_valᵀ dW."""
        w_val, w_out = ctx.saved_tensors
        gradients = [gradient, gradient, None]
        again = torch.is_grad_enabled()  # to be differentiated again
        if again or ctx.whole != "w_val":
            gradients[0] = gradient @ w_out.mT if ctx.needs_input_grad[0] else None
        if again or ctx.whole != "w_out":
            gradients[1] = w_val.mT @ gradient if ctx.needs_input_grad[1] else None
        return tuple(gradients)


def merged(
    layer: Any,
    dtype: torch.dtype | None = None,
    heads: tuple[int, ...] | None = None,
    whole: str | None = None,
) -> Tensor:
    """W_val W_out of these heads, or all, (heads, groups, C, D): the factor ``whole`` itself, if the
    other is the identity; which one is read, unless it is given.
    """
    dtype = dtype or layer.w_val.dtype
    heads = tuple(range(layer.heads)) if heads is None else heads
    if whole is None:
        whole = "" if transformed() else whole_factor(layer, heads)
    if whole:
        identity = layer.w_out if whole == "w_val" else layer.w_val
        if not (torch.is_grad_enabled() and identity.requires_grad):
            return heads_of(getattr(layer, whole), heads).to(dtype)
    w_val, w_out = (heads_of(t, heads).to(dtype) for t in (layer.w_val, layer.w_out))
    if not whole:
        return w_val @ w_out
    product: Any = Merge.apply(w_val, w_out, whole)
    return product
