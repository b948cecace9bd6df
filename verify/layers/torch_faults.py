"""Convolutions for which torch 2.13's own kernels are known to crash the process, or to compute
wrong sums (docs/numerics.md).
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from verify.layers.reading import ZERO, input_at, tap_place
from verify.oracle import Geometry

KNOWN = (
    "torch 2.13 gives wrong float32 sums with channels-last strides, one input channel, a stride along the width alone and "
    "outputs one wide (AVX-512), and may crash where along an axis all outputs read padding alone, or in 16 bit where a stride "
    "leaves one output"
)
"""The classes below, for a certificate's assumption."""

_OLDER = (
    "SSE41",
    "AVX",
    "AVX2",
    "AVX2_VNNI",
    "AVX2_VNNI_2",
    "AVX512_CORE",
    "AVX512_CORE_VNNI",
    "AVX512_CORE_BF16",
)
"""Values of ``ONEDNN_MAX_CPU_ISA`` that leave out AVX512-FP16 and AMX."""


def crashes_along(g: Geometry, dtype: torch.dtype, axis: int, n: int) -> bool:
    """Whether ``n`` inputs along an axis may crash torch, in some memory layout, on some processor.

    Seen where all outputs read padded zeros alone (in float32: along the last axis); and in 16 bit
    where a stride leaves a single output.
    """
    if dtype == torch.float32:
        return not g.transposed and axis == g.dims - 1 and _reads_padding_alone(g, axis, n)
    return dtype != torch.float64 and (_leaves_one(g, axis, n) or _reads_padding_alone(g, axis, n))


def wrong_along(g: Geometry, dtype: torch.dtype, axis: int, n: int) -> bool:
    """Whether ``n`` inputs along an axis may give wrong sums in torch's float32 convolution, in
    some memory layout.

    Seen with AVX-512, one input channel, and a stride that leaves outputs one wide, but none along
    the axis before.
    """
    wide = axis == g.dims - 1 and set(g.stride[-2:-1]) <= {1}
    return wide and dtype == torch.float32 and g.in_channels == 1 and _leaves_one(g, axis, n)


def may_crash(conv: Any, size: Sequence[int]) -> bool:
    """Whether torch's convolution may crash this process on contiguous inputs of a size, with this
    processor and weight layout.
    """
    g = Geometry.read(conv)
    weight = conv.weight
    if weight.device.type != "cpu" or not any(
        crashes_along(g, weight.dtype, axis, n) for axis, n in enumerate(size)
    ):
        return False
    if weight.dtype == torch.float32:
        return weight.stride() != torch.empty(weight.shape, device="meta").stride()
    features = getattr(torch.cpu, "get_capabilities", dict)()  # torch before 2.11 does not say
    newer = not features or any(features.get(name) for name in ("avx512_fp16", "amx_tile"))
    return newer and os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() not in _OLDER


def _leaves_one(g: Geometry, axis: int, n: int) -> bool:
    """Whether ``n`` inputs along an axis have a single output because of the stride."""
    strided = not g.transposed and g.stride[axis] > 1 and g.kernel_size[axis] > 1
    return strided and g.outputs_along(axis, n) == 1


def _reads_padding_alone(g: Geometry, axis: int, n: int) -> bool:
    """Whether no output reads any of ``n`` inputs along an axis, but padded or stuffed zeros alone."""
    # on longer inputs, some output reads an input
    n = min(n, sum(g.pads[axis]) + g.spans[axis] + g.stride[axis] + 2)
    outputs = np.arange(g.outputs_along(axis, n))
    places = tap_place(g, axis, np.arange(g.kernel_size[axis])[:, None], outputs)
    return bool((input_at(g, axis, n, places) == ZERO).all())
