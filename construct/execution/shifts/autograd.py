"""The three maps with derivatives of any order: those of each are the other two, as each is linear in both of its tensors."""

from typing import Any

import torch
from torch import Tensor

from construct.execution.shifts import maps, plain
from construct.execution.shifts.windows import Shifts, is_last
from construct.execution.transforms import abstract, faked, nonzero, traced, transformed


def shifted(images: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, adjoint: bool = False) -> Tensor:
    """What one-hot heads compute, y[o] = b + Σ_h x[s·o + e_h] W_h, or the adjoint, x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] W_hᵀ.

    Args:
        images: (B, g·C, *n), or (B, g·D, *o) for the adjoint.
        w: (heads, g, C, D), of the images' type.
        bias: (g·D,), or (g·C,) for the adjoint; None for none.
        shifts: where the heads look.
        adjoint: which of the two maps.

    Returns:
        (B, g·D, *o), or (B, g·C, *n) for the adjoint, with channels last in memory where the images have them.
    """
    if _is_hidden(images, w):
        return _plain(images, w, bias, shifts, adjoint)
    last = is_last(images)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (images, w, bias)):
        return ShiftedSum.apply(images, w, bias, shifts, adjoint, last)
    return evaluate(images, w, _unless_zero(bias), shifts, adjoint, last)


def evaluate(images: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, adjoint: bool, last: bool) -> Tensor:
    """As :func:`shifted`, without derivatives; ``last`` asks for channels last in memory."""
    if not images.is_cpu:
        few = max(1, plain.AT_ONCE // plain.image_bytes(shifts, tuple(w.shape), images.itemsize))
        return torch.cat([_plain(part, w, bias, shifts, adjoint) for part in images.split(few)])
    return (maps.adjoint if adjoint else maps.forward)(images, w, bias, shifts, last)


def _plain(images: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, adjoint: bool) -> Tensor:
    return (plain.adjoint if adjoint else plain.forward)(images, w, bias, shifts)


def _unless_zero(bias: Tensor | None) -> Tensor | None:
    """The bias, or None if that is the same."""
    return bias if bias is not None and nonzero(bias) else None


def _is_hidden(*tensors: Tensor) -> bool:
    """Whether a transform or a trace must see plain operations, or tensors have no values."""
    return transformed() or traced() or faked() or abstract(*tensors)


class _Function(torch.autograd.Function):
    """An autograd function whose ``apply`` skips torch's binding of default arguments, slower than a small product."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Like torch's ``apply``, but ``torch.autograd``'s older vmap, which asks for no rule, maps it too: member by member.

        That vmap is behind ``is_grads_batched``, ``vectorize`` and ``check_batched_grad``.
        """
        level = torch._C._vmapmode_increment_nesting() - 1  # type: ignore[attr-defined]
        torch._C._vmapmode_decrement_nesting()  # type: ignore[attr-defined]
        if not level or not any(map(_is_mapped, args)):
            return super(torch.autograd.Function, cls).apply(*args)  # type: ignore[misc]  # what torch calls in the end
        inner = [
            torch._remove_batch_dim(value, level, 1, 0) if _is_mapped(value) else value  # type: ignore[attr-defined]
            for value in args
        ]
        members = next(len(value) for value, arg in zip(inner, args, strict=True) if _is_mapped(arg))
        outputs = []
        for member in range(members):
            pairs = zip(inner, args, strict=True)
            outputs.append(cls.apply(*(value[member] if _is_mapped(arg) else value for value, arg in pairs)))
        return torch._add_batch_dim(torch.stack(outputs), 0, level)  # type: ignore[attr-defined]


def _is_mapped(value: object) -> bool:
    """Whether the older vmap maps over the value."""
    return isinstance(value, Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)  # type: ignore[attr-defined]


class ShiftedSum(_Function):
    """:func:`evaluate` with derivatives."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, adjoint: bool, last: bool
    ) -> Tensor:
        """As :func:`evaluate`."""
        ctx.save_for_backward(images, w)
        ctx.shifts, ctx.adjoint = shifts, adjoint
        return evaluate(images, w, _unless_zero(bias), shifts, adjoint, last)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Compute the gradients of images, w and bias by the other two maps."""
        (gradient,), (images, w), wants = gradients, ctx.saved_tensors, ctx.needs_input_grad
        pair = (gradient, images) if ctx.adjoint else (images, gradient)
        return (
            _images(gradient, w, ctx.shifts, not ctx.adjoint, is_last(images)) if wants[0] else None,
            _weights(*pair, ctx.shifts, w.shape[1]) if wants[1] else None,
            gradient.sum((0, *range(2, gradient.dim()))) if wants[2] else None,
            *(None,) * 3,
        )


class WeightGradient(_Function):
    """:func:`maps.weights` with derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, shifts: Shifts, groups: int) -> Tensor:
        """x (B, g·C, *n), y (B, g·D, *o) → (heads, g, C, D)."""
        ctx.save_for_backward(x, y)
        ctx.shifts = shifts
        return (maps if x.is_cpu else plain).weights(x, y, shifts, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Compute the gradients of x and y by the other two maps."""
        (w,), (x, y), wants = gradients, ctx.saved_tensors, ctx.needs_input_grad
        return (
            _images(y, w, ctx.shifts, True, is_last(x)) if wants[0] else None,
            _images(x, w, ctx.shifts, False, is_last(y)) if wants[1] else None,
            *(None, None),
        )


def _images(images: Tensor, w: Tensor, shifts: Shifts, adjoint: bool, last: bool) -> Tensor:
    if _is_hidden(images, w):
        return _plain(images, w, None, shifts, adjoint)
    return ShiftedSum.apply(images, w, None, shifts, adjoint, last)


def _weights(x: Tensor, y: Tensor, shifts: Shifts, groups: int) -> Tensor:
    if _is_hidden(x, y):
        return plain.weights(x, y, shifts, groups)
    return WeightGradient.apply(x, y, shifts, groups)
