"""The three maps of :mod:`construct.execution.shifted` for autograd: each one's derivatives are the two others."""

import torch
from torch import Tensor

from construct.execution import shifted
from construct.execution.layout import Shifts


class Forward(torch.autograd.Function):
    """:func:`shifted.forward` with its derivatives, of any order."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, shifts: Shifts, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        """x (B, *n, groups, C), w (heads, groups, C, D) → (B, *o, groups, D) of ``dtype``."""
        ctx.save_for_backward(x, w)
        ctx.shifts = shifts
        y = x.new_empty(len(x), *shifts.output, w.shape[1], w.shape[3], dtype=dtype)
        shifted.forward(x, w, shifts, y)
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        """By the two other maps."""
        x, w = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            Adjoint.apply(gradient, w, ctx.shifts, x.dtype) if wants[0] else None,
            Weights.apply(x, gradient, ctx.shifts, w.dtype) if wants[1] else None,
            None,
            None,
        )


class Adjoint(torch.autograd.Function):
    """:func:`shifted.adjoint` with its derivatives, of any order."""

    @staticmethod
    def forward(ctx, y: Tensor, w: Tensor, shifts: Shifts, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        """y (B, *o, groups, D), w (heads, groups, C, D) → (B, *n, groups, C) of ``dtype``."""
        ctx.save_for_backward(y, w)
        ctx.shifts = shifts
        x = y.new_empty(len(y), *shifts.size, w.shape[1], w.shape[2], dtype=dtype)
        shifted.adjoint(y, w, shifts, x)
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        """By the two other maps."""
        y, w = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            Forward.apply(gradient, w, ctx.shifts, y.dtype) if wants[0] else None,
            Weights.apply(gradient, y, ctx.shifts, w.dtype) if wants[1] else None,
            None,
            None,
        )


class Weights(torch.autograd.Function):
    """:func:`shifted.weights` with its derivatives, of any order."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor, shifts: Shifts, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        """x (B, *n, groups, C), y (B, *o, groups, D) → (heads, groups, C, D) of ``dtype``."""
        ctx.save_for_backward(x, y)
        ctx.shifts = shifts
        return shifted.weights(x, y, shifts, dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        """By the two other maps."""
        x, y = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            Adjoint.apply(y, gradient, ctx.shifts, x.dtype) if wants[0] else None,
            Forward.apply(x, gradient, ctx.shifts, y.dtype) if wants[1] else None,
            None,
            None,
        )
