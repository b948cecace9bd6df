"""The maps of :mod:`construct.execution.shifts.maps` as torch operators, which a compiler calls as they are on a CPU."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from construct.execution.shifts import maps
from construct.execution.shifts.windows import Ints, Shifts, is_last


@lru_cache(maxsize=1024)
def _shifts(offsets: Ints, step: Ints, size: Ints, output: Ints) -> Shifts:
    dims = len(step)
    heads = (offsets[first : first + dims] for first in range(0, len(offsets), dims))
    return Shifts(tuple(heads), step, size, output)


@torch.library.custom_op("construct::shifted_sum", mutates_args=())
def shifted_sum(
    images: Tensor,
    w: Tensor,
    bias: Tensor | None,
    offsets: Sequence[int],
    step: Sequence[int],
    size: Sequence[int],
    output: Sequence[int],
    adjoint: bool,
    last: bool,
) -> Tensor:
    """:func:`maps.forward` or :func:`maps.adjoint`; the offsets of all heads follow each other."""
    shifts = _shifts(tuple(offsets), tuple(step), tuple(size), tuple(output))
    return (maps.adjoint if adjoint else maps.forward)(images, w, bias, shifts, last)


@shifted_sum.register_fake
def _(
    images: Tensor, w: Tensor, bias: Any, offsets: Any, step: Any, size: Any, output: Any, adjoint: bool, last: bool
) -> Tensor:
    channels, size = (w.shape[2], size) if adjoint else (w.shape[3], output)
    return maps.new_images(images, w.shape[1] * channels, tuple(size), last)


@torch.library.custom_op("construct::shifted_weights", mutates_args=())
def shifted_weights(
    x: Tensor,
    y: Tensor,
    offsets: Sequence[int],
    step: Sequence[int],
    size: Sequence[int],
    output: Sequence[int],
    groups: int,
) -> Tensor:
    """:func:`maps.weights`, contiguous."""
    return maps.weights(x, y, _shifts(tuple(offsets), tuple(step), tuple(size), tuple(output)), groups).contiguous()


@shifted_weights.register_fake
def _(x: Tensor, y: Tensor, offsets: Any, step: Any, size: Any, output: Any, groups: int) -> Tensor:
    return x.new_empty((len(offsets) // len(step), groups, x.shape[1] // groups, y.shape[1] // groups))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, *ctx.rest = inputs
    ctx.save_for_backward(first, second)


def _sum_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    (images, w), wants, (_, *where, adjoint, _) = ctx.saved_tensors, ctx.needs_input_grad, ctx.rest
    pair = (gradient, images) if adjoint else (images, gradient)
    return (
        shifted_sum(gradient, w, None, *where, not adjoint, is_last(images)) if wants[0] else None,
        shifted_weights(*pair, *where, w.shape[1]) if wants[1] else None,
        gradient.sum((0, *range(2, gradient.dim()))) if wants[2] else None,
        *(None,) * 6,
    )


def _weights_backward(ctx: Any, w: Tensor) -> tuple[Any, ...]:
    (x, y), wants, (*where, _) = ctx.saved_tensors, ctx.needs_input_grad, ctx.rest
    return (
        shifted_sum(y, w, None, *where, True, is_last(x)) if wants[0] else None,
        shifted_sum(x, w, None, *where, False, is_last(y)) if wants[1] else None,
        *(None,) * 5,
    )


shifted_sum.register_autograd(_sum_backward, setup_context=_keep)
shifted_weights.register_autograd(_weights_backward, setup_context=_keep)
