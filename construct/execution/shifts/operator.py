"""What one-hot heads compute, with derivatives of any order: two functions of torch's autograd, and
two operators for compilers and transforms, which call them as they are.

What torch does around an operator takes longer than a small layer.  The derivatives of each of the
three maps are the other two, as each is linear in both of its tensors.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from construct.execution.shifts import maps
from construct.execution.shifts.windows import Ints, Shifts, is_last, new_images
from construct.execution.transforms import is_batched_by_autograd, plain, sizes_as_numbers


def is_recorded(*tensors: Tensor | None) -> bool:
    """Whether what is computed from these tensors is to be differentiated."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def evaluate(
    images: Tensor, w: Tensor, bias: Tensor | None, shifts: Shifts, adjoint: bool, last: bool
) -> Tensor:
    """:func:`maps.adjoint` or :func:`maps.forward`, as one step where derivatives are recorded."""
    if is_recorded(images, w, bias):
        return _sum(images, w, bias, shifts.numbers, adjoint, last)
    return (maps.adjoint if adjoint else maps.forward)(images, w, bias, shifts, last)


@lru_cache(maxsize=1024)
def _shifts(numbers: Ints, dims: int) -> Shifts:
    """The inverse of :attr:`Shifts.numbers`."""
    firsts = range(0, len(numbers), dims)
    *offsets, step, size, output = (numbers[first : first + dims] for first in firsts)
    return Shifts(tuple(offsets), step, size, output)


def _computed_sum(
    images: Tensor,
    w: Tensor,
    bias: Tensor | None,
    numbers: Sequence[int],
    adjoint: bool,
    last: bool,
) -> Tensor:
    """As :func:`evaluate`; compilers rely on the strides that ``last`` asks for."""
    shifts = _shifts(tuple(numbers), images.dim() - 2)
    return (maps.adjoint if adjoint else maps.forward)(images, w, bias, shifts, last)


shifted_sum = torch.library.custom_op("construct::shifted_sum", _computed_sum, mutates_args=())


@shifted_sum.register_fake
def _(images: Tensor, w: Tensor, bias: Any, numbers: Any, adjoint: bool, last: bool) -> Tensor:
    output = len(numbers) - images.dim() + 2
    if adjoint:
        return new_images(
            images, w.shape[1] * w.shape[2], numbers[2 - images.dim() + output : output], last
        )
    return new_images(images, w.shape[1] * w.shape[3], numbers[output:], last)


def _computed_weights(x: Tensor, y: Tensor, numbers: Sequence[int], groups: int) -> Tensor:
    """:func:`maps.weights` in the order of the product, (g, D, heads, C), which copies nothing."""
    w = maps.weights(x, y, _shifts(tuple(numbers), x.dim() - 2), groups)
    return w.permute(1, 3, 0, 2).contiguous().permute(2, 0, 3, 1).data  # no view


shifted_weights = torch.library.custom_op(
    "construct::shifted_weights", _computed_weights, mutates_args=()
)


@shifted_weights.register_fake
def _(x: Tensor, y: Tensor, numbers: Any, groups: int) -> Tensor:
    heads = len(numbers) // (x.dim() - 2) - 3
    shape = groups, y.shape[1] // groups, heads, x.shape[1] // groups
    return x.new_empty(shape).permute(2, 0, 3, 1)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor | None = None) -> None:
    first, second, *ctx.rest = inputs
    ctx.save_for_backward(first, second)


def _sum_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    images, w = ctx.saved_tensors
    wants = ctx.needs_input_grad
    _, numbers, adjoint, _ = ctx.rest
    pair = (gradient, images) if adjoint else (images, gradient)
    return (
        _sum(gradient, w, None, numbers, not adjoint, is_last(images)) if wants[0] else None,
        _weights(*pair, numbers, w.shape[1]) if wants[1] else None,
        gradient.sum((0, *range(2, gradient.dim()))) if wants[2] else None,
        *(None,) * 3,
    )


def _weights_backward(ctx: Any, w: Tensor) -> tuple[Any, ...]:
    x, y = ctx.saved_tensors
    wants = ctx.needs_input_grad
    numbers, _ = ctx.rest
    return (
        _sum(y, w, None, numbers, True, is_last(x)) if wants[0] else None,
        _sum(x, w, None, numbers, False, is_last(y)) if wants[1] else None,
        *(None,) * 2,
    )


def _differentiated(operator: Any, computed: Any, gradients: Any) -> Any:
    """The function ``computed`` with derivatives; the operator, for compilers, transforms, and
    several gradients at once.
    """
    operator.register_autograd(gradients, setup_context=_keep)

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            _keep(ctx, inputs)
            return computed(*inputs)

        backward = staticmethod(gradients)

    def call(*inputs: Any) -> Any:
        batched = any(map(is_batched_by_autograd, inputs[:2]))
        if torch.compiler.is_compiling() or not plain() or batched:
            return operator(*inputs)
        return Eager.apply(*inputs)

    return call


_sum = _differentiated(shifted_sum, _computed_sum, _sum_backward)
_weights = _differentiated(shifted_weights, _computed_weights, _weights_backward)


# ---- in plain operations -------------------------------------------------------------------------
# For exports, transforms of torch.func, forward mode, and compilers that see a depthwise layer or a
# GPU.


def sliced(tokens: Tensor, w: Tensor, bias: Tensor, shifts: Shifts) -> Tensor:
    """b + Σ_h X_h W_h: tokens (B, g·C, *tokens), w (heads, g, C, D), bias (g·D,) → (B, g·D, *o),
    if no head looks outside of the tokens.
    """
    views = [_head_view(tokens, start, shifts) for start in shifts.offsets]
    with sizes_as_numbers():
        channels, width = w.shape[2:]
    if channels == width == 1:  # which a compiler fuses into one loop
        channel = (..., *(None,) * len(shifts.step))
        return sum(map(torch.mul, views, w.flatten(1)[channel].unbind()), start=bias[channel])
    return product(torch.stack(views, 2), w, bias)


def gathered(tokens: Tensor, w: Tensor, bias: Tensor, shifts: Shifts) -> Tensor:
    """As :func:`sliced`, by one index for all heads: a program as long for two as for a thousand."""
    starts = torch.tensor(shifts.offsets, device=tokens.device)
    dims = len(shifts.step)
    index: list[Any] = [...]
    for axis, (step, count) in enumerate(zip(shifts.step, shifts.output, strict=True)):
        queries = step * torch.arange(count, device=tokens.device)
        queries = queries.view(-1, *(1,) * (dims - 1 - axis))
        index.append(starts[:, axis].view(-1, *(1,) * dims) + queries)
    return product(tokens[tuple(index)], w, bias)


def product(columns: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """b + Σ_h X_h W_h: columns (B, g·C, heads, *o), w (heads, g, C, D) → (B, g·D, *o)."""
    with sizes_as_numbers():
        groups = w.shape[1]
    rows = columns.flatten(1, 2).flatten(2).unflatten(1, (groups, -1))  # (B, g, C·heads, queries)
    y = torch.matmul(w.permute(1, 3, 2, 0).flatten(2), rows).flatten(1, 2)
    return (y + bias[:, None]).unflatten(2, columns.shape[3:])


def _head_view(tokens: Tensor, start: Ints, shifts: Shifts) -> Tensor:
    """The tokens of a head, a strided slice: (B, C, *tokens) → (B, C, *o)."""
    axes = zip(start, shifts.step, shifts.output, strict=True)
    for axis, (first, step, count) in enumerate(axes, start=2):
        tokens = tokens.narrow(axis, first, step * (count - 1) + 1)
        if step > 1:
            after = (slice(None),) * (tokens.dim() - axis - 1)
            tokens = tokens[(..., slice(None, None, step), *after)]
    return tokens
