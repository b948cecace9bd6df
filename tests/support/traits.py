"""Named special traits of cases, to show that a run of property tests covered all of them."""

import torch

from verify.strategies import DTYPES, PADDING_MODES, Case


def traits(case: Case) -> dict[str, bool]:
    """Every trait that a case may have, and whether this one has it."""
    conv, x = case.conv, case.x
    d = len(conv.kernel_size)
    size = x.shape[-d:]
    taps = conv.weight[0, 0].numel()
    d_in, d_out = conv.in_channels // conv.groups, conv.out_channels // conv.groups
    given = not isinstance(conv.padding, str)
    batch = x.shape[0] if x.dim() == d + 2 else None
    present = {
        "kernel even": any(k % 2 == 0 for k in conv.kernel_size),
        "kernel rectangular": len(set(conv.kernel_size)) > 1,
        "kernel of one tap": taps == 1,
        "kernel of one tap an axis only": taps > 1 and 1 in conv.kernel_size,
        "stride": any(s > 1 for s in conv.stride),
        "stride per axis": len(set(conv.stride)) > 1,
        "stride above kernel": any(s > k for s, k in zip(conv.stride, conv.kernel_size, strict=True)),
        "dilation": any(dil > 1 for dil in conv.dilation),
        "dilation per axis": len(set(conv.dilation)) > 1,
        "padding 'same'": conv.padding == "same",
        "padding 'same', uneven": conv.padding == "same" and any(n % 2 == 0 for n in conv.kernel_size),
        "padding 'valid'": conv.padding == "valid",
        "padding none": conv.padding == (0,) * d,
        "padding numbers": given and any(conv.padding),
        "padding per axis": given and len(set(conv.padding)) > 1,
        "padding above kernel": given and any(p >= k for p, k in zip(conv.padding, conv.kernel_size, strict=True)),
        "output_padding": any(conv.output_padding),
        "output_padding per axis": len(set(conv.output_padding)) > 1,
        "groups: one": conv.groups == 1,
        "groups: several": conv.groups > 1 and d_in > 1,
        "groups: depthwise": conv.groups > 1 and d_in == d_out == 1,
        "groups: depthwise multiplier": conv.groups > 1 and d_in == 1 and d_out > 1,
        "more outputs than inputs": d_out > d_in,
        "more inputs than outputs": d_in > d_out,
        "bias": conv.bias is not None,
        "no bias": conv.bias is None,
        "unbatched": batch is None,
        "empty batch": batch == 0,
        "batch of several": batch is not None and batch > 1,
        "input not contiguous": not x.is_contiguous(),
        "input expanded": x.dim() == d + 2 and len(x) > 1 and x.stride(0) == 0,
        "input channels_last": d == 2 and batch is not None and _only(x, torch.channels_last),
        "input channels_last_3d": d == 3 and batch is not None and _only(x, torch.channels_last_3d),
        "weight channels_last": not conv.weight.is_contiguous(),
        "heads > 9": taps > 9,
        "channels > 4": conv.in_channels > 4 and conv.out_channels > 4,
        "sides > 8": d > 1 and min(size) > 8,
        "heads > 9, channels > 4 and sides > 8": taps > 9 and conv.in_channels > 4 and min(size) > 8,
    }
    padded = not given or any(conv.padding)
    for flip in (False, True):
        kind = "transposed" if flip else "plain"
        present |= {f"{kind} {n}-D": d == n and conv.transposed == flip for n in (1, 2, 3)}
        present |= {f"{kind} {dtype}": conv.weight.dtype == dtype and conv.transposed == flip for dtype in DTYPES}
    for n in (1, 2, 3):
        present |= {f"{mode} {n}-D": padded and d == n and conv.padding_mode == mode for mode in PADDING_MODES}
    return present


def _only(x: torch.Tensor, memory_format: torch.memory_format) -> bool:
    return x.is_contiguous(memory_format=memory_format) and not x.is_contiguous()
