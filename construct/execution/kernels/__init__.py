"""Kernels of one-hot heads, and the one place that chooses among them."""

from collections.abc import Callable
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from construct.execution.kernels.adjoint import Polyphase, fill
from construct.execution.kernels.blocks import most_queries
from construct.execution.kernels.depthwise import Depthwise
from construct.execution.kernels.gemm import uses_onednn
from construct.execution.kernels.gemm_scatter import GemmScatter
from construct.execution.kernels.im2col_gemm import Im2colGemm
from construct.execution.kernels.pointwise import Pointwise
from construct.execution.kernels.problem import ADJOINT, FORWARD, WEIGHTS, Kernel, Problem, Task, layout_of
from construct.execution.kernels.windows import FIRST, LAST, OTHER, Ints, Shifts, strides_of

KERNELS: tuple[Kernel, ...] = (Pointwise(), Depthwise(), GemmScatter(), Im2colGemm())
"""The kernels, in order of preference."""


def select(problem: Problem) -> Task:
    """The task of the first kernel that accepts the problem."""
    for kernel in KERNELS:
        task = kernel.plan(problem)
        if task is not None:
            return task
    return Polyphase(problem, select)  # an adjoint: kernels are selected for its phases instead


Call = Callable[[Tensor, Tensor | None], Tensor]
"""(images, bias or None) → images."""


@lru_cache(maxsize=4096)
def _planned(
    kind: str,
    shifts: Shifts,
    w_shape: Ints,
    images: int,
    dtype: torch.dtype,
    x_layout: str,
    y_layout: str,
    onednn: bool,
    most: int | None,
    gpu: bool,
) -> Task:
    heads, groups, channels, width = w_shape
    numbers = tuple(range(heads))
    return select(
        Problem(kind, shifts, numbers, images, groups, channels, width, dtype, x_layout, y_layout, onednn, most, gpu)
    )


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
    batch, wanted = images.shape[0], OTHER if dtype != w.dtype else LAST if last else FIRST
    layouts = layout_of(images, w.dtype), wanted
    task = None
    if heads and batch:
        x_layout, y_layout = reversed(layouts) if kind == ADJOINT else layouts
        onednn, gpu = uses_onednn(w.dtype, w.device), not w.is_cpu
        task = _planned(kind, shifts, w.shape, batch, w.dtype, x_layout, y_layout, onednn, most_queries(), gpu)
        if wanted != OTHER:
            return lambda images, bias: task.run(images, w, bias, None)
    image, *along, channel = strides_of(LAST if last else FIRST, depth, size)

    def call(images: Tensor, bias: Tensor | None) -> Tensor:
        out = images.new_empty_strided((batch, depth, *size), (image, channel, *along), dtype=dtype)
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
    layouts, onednn = (layout_of(x, dtype), layout_of(y, dtype)), uses_onednn(dtype, x.device)
    task = _planned(WEIGHTS, shifts, shape, x.shape[0], dtype, *layouts, onednn, most_queries(), not x.is_cpu)
    return task.run(x, y, None, None)


@lru_cache(maxsize=4096)
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
    onednn, gpu = uses_onednn(dtype, device), device.type != "cpu"
    tasks = [_planned(kind, shifts, w_shape, images, dtype, x, y, onednn, most, gpu) for x in layouts for y in layouts]
    return max(task.workspace for task in tasks)


__all__ = ["ADJOINT", "FORWARD", "KERNELS", "WEIGHTS", "Call", "prepare", "select", "weights", "workspace_of"]
