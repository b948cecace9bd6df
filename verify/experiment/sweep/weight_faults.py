"""Planted faults in an attention layer's value and output matrices, and in its list of heads."""

import copy
from typing import Any

import torch
from torch import Tensor

from construct import MHSA, conv_to_mhsa
from verify.experiment.sweep.faults import ALL, BIASED, Inapplicable, one_head, two_heads, weight_fault, with_heads


def carrier(layer: MHSA) -> Tensor:
    """The factor that holds the taps rather than the identity."""
    return layer.w_val if layer.w_out.shape[3] <= layer.w_val.shape[2] else layer.w_out


def rebuilt(conv: Any, kernel: Tensor) -> MHSA:
    """The attention layer for the convolution with another kernel of the same size."""
    other = copy.deepcopy(conv)
    other.weight.data = kernel.contiguous()
    return conv_to_mhsa(other)


# ---- the kernel ---------------------------------------------------------------------------------


def flip_kernel(layer: MHSA) -> None:
    """Make the head at each tap carry the opposite tap."""
    for tensor in (layer.w_val, layer.w_out):
        tensor.data = tensor.data.flip(0)


@weight_fault("kernel flipped on every axis", shown_on=ALL)
def _(conv, layer, rng):
    flip_kernel(layer)


@weight_fault("kernel flipped on one axis", more=2)
def _(conv, layer, rng):
    return rebuilt(conv, conv.weight.detach().flip(int(rng.integers(2, conv.weight.dim()))))


@weight_fault("kernel axes swapped", more=3, dims=[2, 3])
def _(conv, layer, rng):
    if conv.weight.dim() < 4 or conv.kernel_size[0] != conv.kernel_size[1]:
        raise Inapplicable
    return rebuilt(conv, conv.weight.detach().transpose(2, 3))


@weight_fault("inputs and outputs of the taps swapped", more=3, channels=["dense", "grouped"])
def _(conv, layer, rng):
    product = layer.w_val @ layer.w_out
    if product.shape[2] != product.shape[3]:
        raise Inapplicable
    with torch.no_grad():
        carrier(layer).copy_(product.transpose(2, 3))


@weight_fault("values of two heads swapped", shown_on=ALL)
def _(conv, layer, rng):
    first, second = two_heads(layer, rng)
    with torch.no_grad():
        for w in (layer.w_val, layer.w_out):
            w[[first, second]] = w[[second, first]]


@weight_fault("values moved on by one head")
def _(conv, layer, rng):
    return with_heads(layer, list(range(layer.heads)), w_val=layer.w_val.roll(1, 0), w_out=layer.w_out.roll(1, 0))


@weight_fault("a tap one ulp off")
def _(conv, layer, rng):
    flat = carrier(layer).data.view(-1)
    at = int(rng.integers(len(flat)))
    flat[at] = torch.nextafter(flat[at], torch.zeros_like(flat[at]) if flat[at] else flat[at] + 1)


@weight_fault("a tap that is not there", more=2)
def _(conv, layer, rng):
    flat = carrier(layer).data.view(-1)
    flat[int(rng.integers(len(flat)))] += 2.0**-4


@weight_fault("a tap scaled", shown_on=ALL)
def _(conv, layer, rng):
    layer.w_val.data[-1] *= 1.25


@weight_fault("a sign")
def _(conv, layer, rng):
    layer.w_val.data[one_head(layer, rng)] *= -1


@weight_fault("noise in W_out")
def _(conv, layer, rng):
    noise = 1 + torch.from_numpy(rng.normal(size=layer.w_out.shape)) * 0.01
    layer.w_out.data = (layer.w_out.data.double() * noise).to(layer.w_out.dtype)


@weight_fault("input channels swapped", channels=["dense", "grouped"])
def _(conv, layer, rng):
    layer.w_val.data = layer.w_val.data.roll(1, 2)


@weight_fault(
    "output channels swapped",
    shown_on=tuple(name for name in ALL if name != "depthwise"),
    channels=["dense", "grouped", "multiplier"],
)
def _(conv, layer, rng):
    layer.w_out.data = layer.w_out.data.roll(1, 3)


@weight_fault("groups swapped", shown_on=("grouped", "depthwise"), channels=["grouped", "depthwise", "multiplier"])
def _(conv, layer, rng):
    for w in (layer.w_val, layer.w_out):
        w.data = w.data.roll(1, 1)


@weight_fault("stored in half precision", integers=[False], dtypes=[torch.float32, torch.float64])
def _(conv, layer, rng):
    layer.w_val.data = layer.w_val.data.bfloat16().to(layer.w_val.dtype)
    layer.w_out.data = layer.w_out.data.bfloat16().to(layer.w_out.dtype)


@weight_fault("rescaled until it underflows", integers=[False], dtypes=[torch.float32])
def _(conv, layer, rng):
    taps = carrier(layer)
    taps.data = taps.data * 2.0**-140 * 2.0**40  # the first product keeps about nine bits
    other = layer.w_out if taps is layer.w_val else layer.w_val
    other.data = other.data * 2.0**100


@weight_fault("head dimension truncated", more=2, channels=["dense", "grouped"])
def _(conv, layer, rng):
    if layer.w_val.shape[3] < 2:
        raise Inapplicable
    return conv_to_mhsa(conv, head_dim=layer.w_val.shape[3] - 1)


@weight_fault("a bias dropped", shown_on=BIASED, bias=[True])
def _(conv, layer, rng):
    layer.b_out.data[int(rng.integers(len(layer.b_out)))] = 0


@weight_fault("a bias one ulp off", bias=[True])
def _(conv, layer, rng):
    layer.b_out.data *= 1 + 2 * torch.finfo(layer.b_out.dtype).eps


@weight_fault("a bias twice as large")
def _(conv, layer, rng):
    layer.b_out.data[0] += max(float(layer.b_out.data[0].abs()), torch.finfo(layer.b_out.dtype).tiny)


@weight_fault("a bias where there is none", bias=[False])
def _(conv, layer, rng):
    layer.b_out.data[int(rng.integers(len(layer.b_out)))] = 2.0**-20


# ---- heads -----------------------------------------------------------------------------------------------------------------


@weight_fault("a head dropped", more=2)
def _(conv, layer, rng):
    if layer.heads < 2:
        raise Inapplicable
    gone = one_head(layer, rng)
    return with_heads(layer, [h for h in range(layer.heads) if h != gone])


@weight_fault("a head twice")
def _(conv, layer, rng):
    return with_heads(layer, [*range(layer.heads), one_head(layer, rng)])


@weight_fault("a head silenced", shown_on=ALL)
def _(conv, layer, rng):
    getattr(layer, str(rng.choice(["w_val", "w_out"]))).data[one_head(layer, rng)] = 0


@weight_fault("a head off the kernel", more=2)
def _(conv, layer, rng):
    other = with_heads(layer, [*range(layer.heads), one_head(layer, rng)])
    reach = max(layer.geometry.span) + 1
    other.v.data[-1, 1:] = -2 * other.v.data[-1, 0] * reach * int(rng.choice([1, -1]))
    return other


@weight_fault("two heads that cancel, at two shifts")
def _(conv, layer, rng):
    first, second = two_heads(layer, rng)
    other = with_heads(layer, [*range(layer.heads), first, first])
    other.w_val.data[-1] *= -1
    other.v.data[-1] = layer.v.data[second]
    return other
