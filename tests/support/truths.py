"""What layers are held against: the oracle in exact integers, the oracle beyond float64, and Eq. 3 and 6 as plain loops."""

import copy
import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch

from construct import MHSA, ConvGeometry, MHSAWeights
from verify.layers.fields import Attention
from verify.oracle import Convolution
from verify.rounding.elements import absolute_kernel, attention_bound, convolution_bound, read_fields, size_of


def batched(conv: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with a batch axis, which unbatched ones lack."""
    rank = conv.weight.dim()
    return [t if t.dim() == rank else t[None] for t in tensors]


def exact(conv: Any, x: torch.Tensor) -> torch.Tensor:
    """The convolution of integers, in integers, as float64 (which holds every integer below 2^53)."""
    fields = Convolution.read(conv)
    assert np.array_equal(fields.weight, fields.weight.round())
    bias = None if fields.bias is None else fields.bias.astype(np.int64)
    whole = replace(fields, weight=fields.weight.astype(np.int64), bias=bias)
    (numbers,) = batched(conv, x)
    y = whole(numbers.double().numpy().astype(np.int64))
    assert y.dtype == np.int64
    assert not y.size or np.abs(y).max() < 2**53
    return torch.from_numpy(y.astype(np.float64)).reshape(*x.shape[: x.dim() - conv.weight.dim() + 1], *y.shape[1:])


def excess(conv: Any, layer: Any, x: torch.Tensor, output: torch.Tensor) -> float:
    """The greatest |layer − convolution|/bound, the convolution evaluated beyond float64 and its own error allowed for.

    At most 1 if the layer computes the convolution; infinite where a bound of zero is missed, not a number if an output is.
    """
    fields = Convolution.read(conv)
    bias = None if fields.bias is None else fields.bias.astype(np.longdouble)
    x, output = batched(conv, x, output)
    truth = replace(fields, weight=fields.weight.astype(np.longdouble), bias=bias)(
        x.double().numpy().astype(np.longdouble)
    )
    precision = float(np.finfo(np.longdouble).eps / np.finfo(np.float64).eps)
    own = convolution_bound(copy.deepcopy(conv).double(), x.double()) * precision
    bound = sharp_bound(layer, conv, x) + own
    error = np.abs(output.detach().double().numpy() - truth).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(error == 0, 0.0, error / bound).max(initial=0.0))


def sharp_bound(layer: Any, conv: Any, x: torch.Tensor) -> np.ndarray:
    """Elementwise: how far the fully sharp layer may be from its exact value."""
    attention = Attention.read(layer)
    carried = replace(read_fields(conv, x), weight=absolute_kernel(attention), bias=attention.b_out)
    return attention_bound(attention, x, size_of(carried, x))


def permuted(layer: MHSA, order: list[int]) -> MHSA:
    """The same layer with its heads in another order: the seven tensors that have a head axis, permuted alone."""
    names = ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out")
    tensors = {name: getattr(layer, name).detach()[order] for name in names}
    return MHSA(layer.geometry, MHSAWeights(**tensors, b_out=layer.b_out.detach()), layer.execution, layer.radix)


def random_layer(
    geometry: ConvGeometry,
    heads: int = 3,
    head_dim: int = 2,
    key_dim: int = 0,
    seed: int = 0,
    dtype: Any = torch.float64,
    encoding: Any = None,
) -> MHSA:
    """A layer in which every parameter is random: heads anywhere, off the lattice, soft, with content.

    ``key_dim`` is D_k, by default above D_p; positions get as much weight as content.  ``encoding`` is the quadratic one
    unless another is given.
    """
    generator = torch.Generator().manual_seed(seed)
    g, d_p = geometry.groups, geometry.dims + 1 if encoding is None else encoding.pos_dim(geometry.dims)
    d_k = key_dim or d_p + 2

    def normal(*shape: int) -> torch.Tensor:
        return (0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)

    weights = MHSAWeights(
        w_qry=normal(heads, geometry.in_channels, d_k),
        w_key=normal(heads, geometry.in_channels, d_k),
        w_key_pos=normal(heads, d_k, d_p),
        u=normal(heads, d_k),
        v=normal(heads, d_k),
        w_val=normal(heads, g, geometry.in_channels // g, head_dim),
        w_out=normal(heads, g, head_dim, geometry.out_channels // g),
        b_out=normal(geometry.out_channels),
    )
    return MHSA(geometry, weights, encoding=encoding)


def paper(layer: Any, x: torch.Tensor) -> np.ndarray:
    """Eq. 3 and 6, literally: loops over batch, head, query and key in float64, on tokens padded by numpy.

    Args:
        layer: raw fields only: the eight tensors and what a convolution says of itself.
        x: (B, D_in, *size).

    Returns:
        (B, D_out, *output).
    """
    w = {name: tensor.detach().double().numpy() for name, tensor in layer.named_parameters()}
    images = _padded(layer, x.detach().double().numpy())
    grid, d = images.shape[2:], len(layer.kernel_size)
    anchor = [dil * ((k - 1) // 2) for k, dil in zip(layer.kernel_size, layer.dilation, strict=True)]
    span = [dil * (k - 1) for k, dil in zip(layer.kernel_size, layer.dilation, strict=True)]
    stride = (1,) * d if layer.transposed else layer.stride
    output = [(n - reach - 1) // s + 1 for n, reach, s in zip(grid, span, stride, strict=True)]
    keys = list(product(*map(range, grid)))
    y = np.zeros((len(images), layer.out_channels, *output))
    for image, out in zip(images, y, strict=True):
        tokens = {k: image[(slice(None), *k)] for k in keys}
        for o in product(*map(range, output)):
            q = tuple(s * i + a for s, i, a in zip(stride, o, anchor, strict=True))
            total = w["b_out"].copy()
            for h in range(len(w["v"])):
                query = tokens[q] @ w["w_qry"][h]
                scores = []
                for k in keys:
                    delta = [b - a for a, b in zip(q, k, strict=True)]
                    place = w["w_key_pos"][h] @ np.array([sum(x * x for x in delta), *delta], dtype=float)
                    key = tokens[k] @ w["w_key"][h]
                    scores.append(query @ key + query @ place + w["u"][h] @ key + w["v"][h] @ place)
                weights = [math.exp(score - max(scores)) for score in scores]
                mean = np.sum([p * tokens[k] for p, k in zip(weights, keys, strict=True)], axis=0) / math.fsum(weights)
                blocks = mean.reshape(layer.groups, -1)
                heads = [blocks[g] @ w["w_val"][h, g] @ w["w_out"][h, g] for g in range(layer.groups)]
                total += np.concatenate(heads)
            out[(slice(None), *o)] = total
    return y


def _padded(layer: Any, x: np.ndarray) -> np.ndarray:
    """The tokens as an image: padded, and for a transposed layer stuffed with zeros first."""
    spans = [dil * (k - 1) for k, dil in zip(layer.kernel_size, layer.dilation, strict=True)]
    if not layer.transposed:
        if layer.padding == "same":
            pads = [(span // 2, span - span // 2) for span in spans]
        else:
            pads = [(0, 0) if layer.padding == "valid" else (p, p) for p in layer.padding]
        modes: dict[str, Any] = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
        return np.pad(x, [(0, 0), (0, 0), *pads], mode=modes[layer.padding_mode])
    stuffed = np.zeros((*x.shape[:2], *(s * (n - 1) + 1 for s, n in zip(layer.stride, x.shape[2:], strict=True))))
    stuffed[(..., *(slice(None, None, s) for s in layer.stride))] = x
    for axis, (span, p, extra) in enumerate(zip(spans, layer.padding, layer.output_padding, strict=True), start=2):
        widths = [(0, 0)] * x.ndim
        widths[axis] = (max(0, span - p), max(0, span - p + extra))
        stuffed = np.pad(stuffed, widths)
        first, last = max(0, p - span), stuffed.shape[axis] - max(0, p - span - extra)
        stuffed = np.take(stuffed, range(first, last), axis=axis)
    return stuffed
