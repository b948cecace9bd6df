"""Kernels of one-hot heads, and the one place that chooses among them."""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from construct.execution.kernels import batched_gemm, depthwise, gemm_scatter, im2col_gemm, pointwise
from construct.execution.kernels.adjoint import Polyphase, fill
from construct.execution.kernels.blocks import most_queries
from construct.execution.kernels.byte_cache import bounded_cache
from construct.execution.kernels.gemm import uses_onednn
from construct.execution.kernels.problem import ADJOINT, FORWARD, WEIGHTS, Kernel, Problem, Task, layout_of, new_images
from construct.execution.kernels.windows import FIRST, LAST, OTHER, Ints, Shifts

KERNELS: dict[str, Kernel] = {
    "pointwise": pointwise.plan,
    "depthwise": depthwise.plan,
    "gemm_scatter": gemm_scatter.plan,
    "batched_gemm": batched_gemm.plan,
    "im2col_gemm": im2col_gemm.plan,
}
"""The kernels by name, in order of preference."""


@bounded_cache
def select(problem: Problem) -> Task:
    """The task of the first kernel that accepts the problem."""
    for plan in KERNELS.values():
        task = plan(problem)
        if task is not None:
            return task
    return Polyphase(problem, select)  # an adjoint: kernels are selected for its phases instead


def _select(
    kind: str,
    shifts: Shifts,
    w_shape: Ints,
    images: int,
    dtype: torch.dtype,
    device: torch.device,
    x_layout: str,
    y_layout: str,
    most: int | None,
) -> Task:
    """The task for all heads, on a device."""
    heads, groups, channels, width = w_shape
    numbers, onednn, gpu = tuple(range(heads)), uses_onednn(dtype, device), device.type != "cpu"
    return select(
        Problem(kind, shifts, numbers, images, groups, channels, width, dtype, x_layout, y_layout, onednn, most, gpu)
    )


Call = Callable[[Tensor, Tensor | None], Tensor]
"""(images, bias or None) → images."""


def prepare(kind: str, images: Tensor, w: Tensor, shifts: Shifts, dtype: torch.dtype, last: bool) -> Call:
    """Prepare one of two maps for images like these.

        FORWARD    y[o] = b + Σ_h x[s·o + e_h] w_h
        ADJOINT    x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] w_hᵀ

    Args:
        kind: FORWARD or ADJOINT.
        images: x (B, groups·C, *n), or y (B, groups·D, *o) for the adjoint.
        w: (heads, groups, C, D), in the type to compute in.
        shifts: where the heads look.
        dtype: of the result.
        last: whether the result has channels last in memory.

    Returns:
        A function of images of this shape, strides and type, and of the bias.  It reads w at call time.
    """
    heads, groups, channels, width = w.shape
    size, depth = (shifts.size, groups * channels) if kind == ADJOINT else (shifts.output, groups * width)
    batch, layout = images.shape[0], LAST if last else FIRST
    layouts = layout_of(images, w.dtype), OTHER if dtype != w.dtype else layout
    task = None
    if heads and batch and 0 not in shifts.size + shifts.output:
        x_layout, y_layout = reversed(layouts) if kind == ADJOINT else layouts
        task = _select(kind, shifts, w.shape, batch, w.dtype, w.device, x_layout, y_layout, most_queries())
        if dtype == w.dtype:
            return lambda images, bias: task.run(images, w, bias, None)

    def call(images: Tensor, bias: Tensor | None) -> Tensor:
        out = new_images(images, batch, depth, size, layout, dtype)
        if task is None:
            fill(out, bias)
            return out
        return task.run(images, w, bias, out)

    return call


def weights(x: Tensor, y: Tensor, shifts: Shifts, groups: int, dtype: torch.dtype) -> Tensor:
    """w_h = Σ_o x[s·o + e_h]ᵀ y[o]: x (B, groups·C, *n), y (B, groups·D, *o) → (heads, groups, C, D), computed in ``dtype``."""
    shape = (len(shifts.offsets), groups, x.shape[1] // groups, y.shape[1] // groups)
    if not (x.numel() and y.numel() and shape[0]):
        return x.new_zeros(shape, dtype=dtype)
    layouts = layout_of(x, dtype), layout_of(y, dtype)
    task = _select(WEIGHTS, shifts, shape, x.shape[0], dtype, x.device, *layouts, most_queries())
    return task.run(x, y, None, None)


def workspace_of(
    kind: str,
    shifts: Shifts,
    w_shape: Ints,
    images: int,
    dtype: torch.dtype,
    stored: torch.dtype,
    device: torch.device,
    most: int | None,
) -> int:
    """Bytes that a call on images of type ``stored`` takes besides its arguments, whatever their memory layout."""
    layouts = (FIRST, LAST, OTHER) if stored == dtype else (OTHER,)
    if not prod(w_shape) or not images or 0 in shifts.output or 0 in shifts.size:
        return 0
    return max(
        _select(kind, shifts, w_shape, images, dtype, device, x, y, most).workspace for x in layouts for y in layouts
    )


__all__ = ["ADJOINT", "FORWARD", "KERNELS", "WEIGHTS", "Call", "prepare", "select", "weights", "workspace_of"]
