"""Named special traits of cases, to show that a run of property tests covered all of them."""

from itertools import product
from math import prod
from typing import Any

import torch

from verify.strategies import DTYPES, PADDING_MODES, Case


def traits(case: Case) -> dict[str, bool]:
    """Every trait that a case may have, and whether this one has it."""
    conv, x = case.conv, case.x
    d = len(conv.kernel_size)
    taps, side = prod(conv.kernel_size), min(x.shape[-d:])
    present = _kernel(conv) | _padding(conv) | _channels(conv) | _input(x, d)
    present |= {
        "weight channels_last": not conv.weight.is_contiguous(),
        "heads > 9": taps > 9,
        "channels > 4": min(conv.in_channels, conv.out_channels) > 4,
        "sides > 8": d > 1 and side > 8,
        "heads > 9, channels > 4 and sides > 8": taps > 9 and conv.in_channels > 4 and side > 8,
    }
    for flip, kind in enumerate(("plain", "transposed")):
        same = conv.transposed == flip
        present |= {f"{kind} {n}-D": d == n and same for n in (1, 2, 3)}
        present |= {f"{kind} {dtype}": conv.weight.dtype == dtype and same for dtype in DTYPES}
    padded = isinstance(conv.padding, str) or any(conv.padding)
    for n, mode in product((1, 2, 3), PADDING_MODES):
        present[f"{mode} {n}-D"] = padded and d == n and conv.padding_mode == mode
    return present


def _kernel(conv: Any) -> dict[str, bool]:
    taps = prod(conv.kernel_size)
    return {
        "kernel even": any(k % 2 == 0 for k in conv.kernel_size),
        "kernel rectangular": len(set(conv.kernel_size)) > 1,
        "kernel of one tap": taps == 1,
        "kernel of one tap an axis only": taps > 1 and 1 in conv.kernel_size,
        "stride": any(s > 1 for s in conv.stride),
        "stride per axis": len(set(conv.stride)) > 1,
        "stride above kernel": any(s > k for s, k in zip(conv.stride, conv.kernel_size, strict=True)),
        "dilation": any(dil > 1 for dil in conv.dilation),
        "dilation per axis": len(set(conv.dilation)) > 1,
        "output_padding": any(conv.output_padding),
        "output_padding per axis": len(set(conv.output_padding)) > 1,
    }


def _padding(conv: Any) -> dict[str, bool]:
    same = conv.padding == "same"
    given = () if isinstance(conv.padding, str) else conv.padding
    return {
        "padding 'same'": same,
        "padding 'same', uneven": same and any(n % 2 == 0 for n in conv.kernel_size),
        "padding 'valid'": conv.padding == "valid",
        "padding none": {*given} == {0},
        "padding numbers": any(given),
        "padding per axis": len(set(given)) > 1,
        "padding above kernel": any(p >= k for p, k in zip(given, conv.kernel_size, strict=False)),
    }


def _channels(conv: Any) -> dict[str, bool]:
    d_in, d_out = conv.in_channels // conv.groups, conv.out_channels // conv.groups
    grouped = conv.groups > 1
    return {
        "groups: one": not grouped,
        "groups: several": grouped and d_in > 1,
        "groups: depthwise": grouped and d_in == d_out == 1,
        "groups: depthwise multiplier": grouped and d_in == 1 and d_out > 1,
        "more outputs than inputs": d_out > d_in,
        "more inputs than outputs": d_in > d_out,
        "bias": conv.bias is not None,
        "no bias": conv.bias is None,
    }


def _input(x: torch.Tensor, d: int) -> dict[str, bool]:
    batch = x.shape[0] if x.dim() == d + 2 else -1
    return {
        "unbatched": batch == -1,
        "empty batch": batch == 0,
        "batch of several": batch > 1,
        "input not contiguous": not x.is_contiguous(),
        "input expanded": batch > 1 and x.stride(0) == 0,
        "input channels_last": (d, x.dim()) == (2, 4) and _only(x, torch.channels_last),
        "input channels_last_3d": (d, x.dim()) == (3, 5) and _only(x, torch.channels_last_3d),
    }


def _only(x: torch.Tensor, memory_format: torch.memory_format) -> bool:
    return x.is_contiguous(memory_format=memory_format) and not x.is_contiguous()
