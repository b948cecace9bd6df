"""Torch convolutions and attention layers whose tensors are filled by hand, without the builder.

The claims are thus about ``construct.attention`` as it runs, with v from the code's encoding
functions.
"""

from collections.abc import Sequence
from typing import Any

import torch

from construct import attention as layers
from verify.oracle import GEOMETRY
from verify.theory.symbolic.proof_positions import Setting, head_vector


def small_convolution(
    channels: tuple[int, int],
    kernel: Sequence[int],
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Any:
    """A torch convolution in 1, 2 or 3 dimensions with seeded random weights."""
    kind: Any = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[len(kernel) - 1]
    conv = kind(*channels, tuple(kernel), dtype=dtype, **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return conv


def attention_for(
    conv: Any, alpha: float = 1024.0, radix: Sequence[int] | None = None, key_dim: int | None = None
) -> Any:
    """An attention layer with one head per tap of an ungrouped convolution, W_val = W_j and
    W_out = I.

    The encoding is quadratic, or the parabola if ``radix`` is given.  By default D_k = D_p and
    Ŵ_key = I; with D_k = 1, v = 1 and Ŵ_key is the row v.
    """
    geometry = layers.ConvGeometry(**{name: getattr(conv, name) for name in GEOMETRY})
    shifts = Setting(conv.kernel_size, conv.kernel_size, dilation=conv.dilation).shifts
    vectors = torch.tensor([head_vector(tau, alpha, radix) for tau in shifts], dtype=torch.float64)
    heads, pos_dim = vectors.shape
    key_dim = key_dim or pos_dim
    if key_dim == 1:
        v = torch.ones(heads, 1, dtype=torch.float64)
        w_key_pos = vectors[:, None, :]
    else:
        v = vectors
        w_key_pos = torch.eye(pos_dim, dtype=torch.float64).repeat(heads, 1, 1)
    taps = conv.weight.detach().flatten(2).permute(2, 1, 0)  # (taps, D_in, D_out)
    zero = torch.zeros(heads, conv.in_channels, key_dim, dtype=taps.dtype)
    weights = layers.MHSAWeights(
        w_qry=zero,
        w_key=zero.clone(),
        w_key_pos=w_key_pos,
        u=zero[:, 0].clone(),
        v=v,
        w_val=taps[:, None].clone(),
        w_out=torch.eye(conv.out_channels, dtype=taps.dtype).repeat(heads, 1, 1, 1),
        b_out=taps.new_zeros(conv.out_channels)
        if conv.bias is None
        else conv.bias.detach().clone(),
    )
    return layers.MHSA(geometry, weights, "dense", None if radix is None else tuple(radix))


def pointwise_layer(positions: bool) -> Any:
    """A float64 layer of one head, kernel size 1 and 2 → 2 channels, random numbers in all eight
    tensors: it attends by content, and by position too if ``positions``.
    """
    layer = attention_for(small_convolution((2, 2), (1,), dtype=torch.float64))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for tensor in layer.state_dict().values():
            tensor.normal_(generator=generator)
        layer.w_key_pos *= positions
    return layer
