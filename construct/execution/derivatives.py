"""The three maps of :mod:`construct.execution.shifted` for autograd: each one's derivatives are the two others.

They take and give images, (B, groups·C, *n), and a bias on the way: a call is a single node, and its gradients lie in memory as
what they belong to.
"""

import torch
from torch import Tensor

from construct.execution import shifted
from construct.execution.layout import Ints, Shifts
from construct.execution.plan import tokens_of


class Forward(torch.autograd.Function):
    """:func:`shifted.forward` with its derivatives, of any order."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx, x: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, dtype: torch.dtype, last: bool
    ) -> Tensor:
        """x (B, groups·C, *n), w (heads, groups, C, D), bias (groups·D,) → (B, groups·D, *o) of ``dtype``.

        ``last``: whether channels are to be last in memory.
        """
        ctx.save_for_backward(x, w)
        ctx.shifts = shifts
        _, groups, _, width = w.shape
        y = _image(x, groups * width, shifts.output, dtype, last)
        shifted.forward(tokens_of(x, groups), w, shifts, tokens_of(y, groups), _added(bias, groups))
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        """By the two other maps."""
        x, w = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            Adjoint.apply(gradient, w, None, ctx.shifts, x.dtype, channels_last(x)) if wants[0] else None,
            Weights.apply(x, gradient, w.shape[1], ctx.shifts, w.dtype) if wants[1] else None,
            _of_bias(gradient) if wants[2] else None,
            None,
            None,
            None,
        )


class Adjoint(torch.autograd.Function):
    """:func:`shifted.adjoint` with its derivatives, of any order."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx, y: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, dtype: torch.dtype, last: bool
    ) -> Tensor:
        """y (B, groups·D, *o), w (heads, groups, C, D), bias (groups·C,) → (B, groups·C, *n) of ``dtype``."""
        ctx.save_for_backward(y, w)
        ctx.shifts = shifts
        _, groups, channels, _ = w.shape
        x = _image(y, groups * channels, shifts.size, dtype, last)
        shifted.adjoint(tokens_of(y, groups), w, shifts, tokens_of(x, groups), _added(bias, groups))
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        """By the two other maps."""
        y, w = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            Forward.apply(gradient, w, None, ctx.shifts, y.dtype, channels_last(y)) if wants[0] else None,
            Weights.apply(gradient, y, w.shape[1], ctx.shifts, w.dtype) if wants[1] else None,
            _of_bias(gradient) if wants[2] else None,
            None,
            None,
            None,
        )


class Weights(torch.autograd.Function):
    """:func:`shifted.weights` with its derivatives, of any order."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor, groups: int, shifts: Shifts, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        """x (B, groups·C, *n), y (B, groups·D, *o) → (heads, groups, C, D) of ``dtype``."""
        ctx.save_for_backward(x, y)
        ctx.shifts = shifts
        return shifted.weights(tokens_of(x, groups), tokens_of(y, groups), shifts, dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        """By the two other maps."""
        x, y = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            Adjoint.apply(y, gradient, None, ctx.shifts, x.dtype, channels_last(x)) if wants[0] else None,
            Forward.apply(x, gradient, None, ctx.shifts, y.dtype, channels_last(y)) if wants[1] else None,
            None,
            None,
            None,
        )


def channels_last(x: Tensor) -> bool:
    """Whether channels of (B, C, *n) are last in memory."""
    return x.stride(1) == 1 and x.shape[1] > 1


def _image(like: Tensor, channels: int, size: Ints, dtype: torch.dtype, last: bool) -> Tensor:
    """Room for as many images as in ``like``: (B, channels, *size)."""
    if last:
        return like.new_empty(len(like), *size, channels, dtype=dtype).movedim(-1, 1)
    return like.new_empty(len(like), channels, *size, dtype=dtype)


def _added(bias: Tensor | None, groups: int) -> Tensor | None:
    return None if bias is None else bias.view(groups, -1)


def _of_bias(gradient: Tensor) -> Tensor:
    return gradient.sum((0, *range(2, gradient.dim())))
