"""Autograd functions for the three maps of :mod:`construct.execution.kernels`: the derivatives of each are the other two.

They map images (B, groups·C, *n) to images and add the bias, so a call is a single node; gradients have the memory format of their
tensors.  All three are linear in each of their tensors, which is all that forward-mode derivatives need.
"""

from typing import Any

import torch
from torch import Tensor

from construct.execution import kernels
from construct.execution.kernels.windows import Shifts
from construct.execution.transforms import abstract, faked, is_batched, nonzero, transformed


class _Function(torch.autograd.Function):
    """An autograd function whose ``apply`` skips torch's binding of default arguments, slower than a small product."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Like torch's ``apply``, but ``torch.autograd``'s older vmap, which asks for no rule, maps it too."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)
        level = _older_vmap()
        if level and any(map(_is_mapped, args)):
            axes = [0 if _is_mapped(value) else None for value in args]
            inputs = tuple(
                value if axis is None else torch._remove_batch_dim(value, level, 1, 0)  # type: ignore[attr-defined]
                for value, axis in zip(args, axes, strict=True)
            )
            members = next(len(value) for value, axis in zip(inputs, axes, strict=True) if axis == 0)
            return torch._add_batch_dim(_each(cls, members, axes, inputs)[0], 0, level)  # type: ignore[attr-defined]
        return super(torch.autograd.Function, cls).apply(*args)  # type: ignore[misc]  # what torch calls in the end


class ShiftedSum(_Function):
    """FORWARD or ADJOINT of :func:`kernels.prepare`, with derivatives of any order."""

    @staticmethod
    def forward(
        images: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, adjoint: bool, dtype: torch.dtype, last: bool
    ) -> Tensor:
        """Images (B, groups·C, *n), w (heads, groups, C, D), bias (groups·D,) → (B, groups·D, *o).

        For the adjoint, C and D are swapped (but not in w), and so are n and o.

        ``dtype`` is that of the result; ``last`` asks for channels last in memory.
        """
        if faked() or abstract(images, w):
            channels, size = w.shape[1] * w.shape[2 if adjoint else 3], shifts.size if adjoint else shifts.output
            shape = (len(images), *size, channels) if last else (len(images), channels, *size)
            out = images.new_empty(shape, dtype=dtype)
            return out.movedim(-1, 1) if last else out
        kind = kernels.ADJOINT if adjoint else kernels.FORWARD
        return kernels.prepare(kind, images, w, shifts, dtype, last)(
            images, bias if bias is not None and nonzero(bias) else None
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the tensors for reverse and forward mode."""
        images, w, _, *ctx.rest = inputs
        ctx.save_for_backward(images, w)
        ctx.save_for_forward(images, w)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Compute the gradients of images, w and bias by the other two maps."""
        (gradient,), (images, w), wants = gradients, ctx.saved_tensors, ctx.needs_input_grad
        shifts, adjoint, *_ = ctx.rest
        x, y = (gradient, images) if adjoint else (images, gradient)
        back = (shifts, not adjoint, images.dtype, channels_last(images))
        return (
            ShiftedSum.apply(gradient, w, None, *back) if wants[0] else None,
            WeightGradient.apply(x, y, w.shape[1], shifts, w.dtype) if wants[1] else None,
            gradient.sum((0, *range(2, gradient.dim()))) if wants[2] else None,
            *(None,) * 4,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """d(map(x, w) + b) = map(dx, w) + map(x, dw) + db; torch passes zeros for a tensor without a tangent."""
        images, w = ctx.saved_tensors
        d_images, d_w, d_bias, *_ = tangents
        total: Any = ShiftedSum.apply(d_images, w, d_bias, *ctx.rest)
        return total + ShiftedSum.apply(images, d_w, None, *ctx.rest)

    @staticmethod
    def vmap(info: Any, axes: Any, *inputs: Any) -> tuple[Tensor, int]:
        """One call for the images of all members; one call per member if each has its own weights."""
        if any(axis is not None for axis in axes[1:]):
            return _each(ShiftedSum, info.batch_size, axes, inputs)
        images = inputs[0].movedim(axes[0], 0)
        out: Any = ShiftedSum.apply(images.flatten(0, 1), *inputs[1:])
        return out.unflatten(0, images.shape[:2]), 0


class WeightGradient(_Function):
    """:func:`kernels.weights`, with derivatives of any order."""

    @staticmethod
    def forward(x: Tensor, y: Tensor, groups: int, shifts: Shifts, dtype: torch.dtype) -> Tensor:
        """x (B, groups·C, *n), y (B, groups·D, *o) → (heads, groups, C, D) of ``dtype``."""
        if faked() or abstract(x, y):
            shape = len(shifts.offsets), groups, x.shape[1] // groups, y.shape[1] // groups
            return x.new_empty(shape, dtype=dtype)
        return kernels.weights(x, y, shifts, groups, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the tensors for reverse and forward mode."""
        x, y, *ctx.rest = inputs
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Compute the gradients of x and y by the other two maps."""
        (w,), (x, y), wants, shifts = gradients, ctx.saved_tensors, ctx.needs_input_grad, ctx.rest[1]
        return (
            ShiftedSum.apply(y, w, None, shifts, True, x.dtype, channels_last(x)) if wants[0] else None,
            ShiftedSum.apply(x, w, None, shifts, False, y.dtype, channels_last(y)) if wants[1] else None,
            *(None,) * 3,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """d weights(x, y) = weights(dx, y) + weights(x, dy)."""
        (x, y), (dx, dy) = ctx.saved_tensors, tangents[:2]
        total: Any = WeightGradient.apply(dx, y, *ctx.rest)
        return total + WeightGradient.apply(x, dy, *ctx.rest)

    @staticmethod
    def vmap(info: Any, axes: Any, *inputs: Any) -> tuple[Tensor, int]:
        """One call per member."""
        return _each(WeightGradient, info.batch_size, axes, inputs)


def shifted(
    images: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, adjoint: bool, dtype: torch.dtype, last: bool
) -> Tensor:
    """Call :meth:`ShiftedSum.forward`; create an autograd node only where one is needed, as that takes time."""
    recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (images, w, bias))
    call = ShiftedSum.apply if recorded or transformed() else ShiftedSum.forward
    out = call(images, w, bias, shifts, adjoint, dtype, last)
    assert isinstance(out, Tensor)
    return out


def channels_last(x: Tensor) -> bool:
    """Whether the channels of (B, C, *n) are last in memory."""
    return not is_batched(x) and x.stride(1) == 1 and x.shape[1] > 1


def _older_vmap() -> int:
    """How many of ``torch.autograd``'s vmaps are active: ``is_grads_batched``, ``vectorize`` and ``check_batched_grad``."""
    level = torch._C._vmapmode_increment_nesting() - 1  # type: ignore[attr-defined]
    torch._C._vmapmode_decrement_nesting()  # type: ignore[attr-defined]
    return level


def _is_mapped(value: object) -> bool:
    """Whether such a vmap maps over the value."""
    return isinstance(value, Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)  # type: ignore[attr-defined]


def _each(function: Any, members: int, axes: Any, inputs: tuple[Any, ...]) -> tuple[Tensor, int]:
    """One call per member of a vmapped call, in which some inputs have a mapped axis."""
    outputs = []
    for member in range(members):
        own = (value if axis is None else value.select(axis, member) for value, axis in zip(inputs, axes, strict=True))
        outputs.append(function.apply(*own))
    return torch.stack(outputs), 0
