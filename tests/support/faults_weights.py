"""Planted faults in the numbers and in the stated geometry of an attention layer."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from construct import MHSA, conv_to_mhsa
from construct import heads as shifts
from construct.encoding import quadratic as encoding
from faults import ALL, BIASED, SYMMETRIC, Inapplicable, weights, with_heads


def two(layer: MHSA, rng: np.random.Generator) -> tuple[int, int]:
    if layer.heads < 2:
        raise Inapplicable
    first, second = rng.choice(layer.heads, 2, replace=False)
    return int(first), int(second)


def one(layer: MHSA, rng: np.random.Generator) -> int:
    return int(rng.integers(layer.heads))


def carrier(conv: Any, layer: MHSA) -> Tensor:
    """The factor that holds the taps, not the identity."""
    return layer.w_val if layer.w_out.shape[3] <= layer.w_val.shape[2] else layer.w_out


def rebuilt(conv: Any, kernel: Tensor) -> MHSA:
    """The layer of the convolution with another kernel."""
    other = type(conv)(
        conv.in_channels,
        conv.out_channels,
        tuple(kernel.shape[2:]),
        stride=conv.stride,
        padding=conv.padding,
        dilation=conv.dilation,
        groups=conv.groups,
        bias=conv.bias is not None,
        padding_mode=conv.padding_mode,
        **({"output_padding": conv.output_padding} if conv.transposed else {}),
    ).to(conv.weight.dtype)
    other.load_state_dict({**conv.state_dict(), "weight": kernel})
    return conv_to_mhsa(other)


def geometry(layer: MHSA, **changes: Any) -> MHSA:
    try:
        layer.geometry = replace(layer.geometry, **changes)
    except ValueError:
        raise Inapplicable from None
    return layer


def bumped(values: tuple[int, ...], rng: np.random.Generator, least: int) -> tuple[int, ...]:
    """One entry changed by one."""
    axis = int(rng.integers(len(values)))
    step = int(rng.choice([1, -1])) if values[axis] > least else 1
    return tuple(n + step * (i == axis) for i, n in enumerate(values))


# ---- faults in the numbers: the kernel ---------------------------------------------------------------------------------


def flip_kernel(layer: MHSA) -> None:
    """The head at each tap carries the tap opposite."""
    for tensor in (layer.w_val, layer.w_out):
        tensor.data = tensor.data.flip(0)


@weights("kernel flipped on every axis", shown_on=ALL)
def _(conv, layer, rng):
    flip_kernel(layer)
    return layer


@weights("kernel flipped on one axis", more=2)
def _(conv, layer, rng):
    return rebuilt(conv, conv.weight.detach().flip(int(rng.integers(2, conv.weight.dim()))))


@weights("kernel axes swapped", more=3, dims=[2, 3])
def _(conv, layer, rng):
    if conv.kernel_size[0] != conv.kernel_size[1]:
        raise Inapplicable
    return rebuilt(conv, conv.weight.detach().transpose(2, 3))


@weights("inputs and outputs of the taps swapped", more=3, channels=["dense", "grouped"])
def _(conv, layer, rng):
    product = layer.w_val @ layer.w_out
    if product.shape[2] != product.shape[3]:
        raise Inapplicable
    with torch.no_grad():
        carrier(conv, layer).copy_(product.transpose(2, 3))
    return layer


@weights("values of two heads swapped", shown_on=ALL)
def _(conv, layer, rng):
    first, second = two(layer, rng)
    with torch.no_grad():
        for w in (layer.w_val, layer.w_out):
            w[[first, second]] = w[[second, first]]
    return layer


@weights("values moved on by one head")
def _(conv, layer, rng):
    return with_heads(layer, list(range(layer.heads)), w_val=layer.w_val.roll(1, 0), w_out=layer.w_out.roll(1, 0))


@weights("a tap one ulp off")
def _(conv, layer, rng):
    flat = carrier(conv, layer).data.view(-1)
    at = int(rng.integers(len(flat)))
    flat[at] = torch.nextafter(flat[at], torch.zeros_like(flat[at]) if flat[at] else flat[at] + 1)
    return layer


@weights("a tap that is not there", more=2)
def _(conv, layer, rng):
    flat = carrier(conv, layer).data.view(-1)
    flat[int(rng.integers(len(flat)))] += 2.0**-4
    return layer


@weights("a tap scaled", shown_on=ALL)
def _(conv, layer, rng):
    layer.w_val.data[-1] *= 1.25
    return layer


@weights("a sign")
def _(conv, layer, rng):
    layer.w_val.data[one(layer, rng)] *= -1
    return layer


@weights("noise in W_out")
def _(conv, layer, rng):
    noise = 1 + torch.from_numpy(rng.normal(size=layer.w_out.shape)) * 0.01
    layer.w_out.data = (layer.w_out.data.double() * noise).to(layer.w_out.dtype)
    return layer


@weights("input channels swapped", channels=["dense", "grouped"])
def _(conv, layer, rng):
    layer.w_val.data = layer.w_val.data.roll(1, 2)
    return layer


@weights(
    "output channels swapped",
    shown_on=tuple(name for name in ALL if name != "depthwise"),
    channels=["dense", "grouped", "multiplier"],
)
def _(conv, layer, rng):
    layer.w_out.data = layer.w_out.data.roll(1, 3)
    return layer


@weights("groups swapped", shown_on=("grouped", "depthwise"), channels=["grouped", "depthwise", "multiplier"])
def _(conv, layer, rng):
    for w in (layer.w_val, layer.w_out):
        w.data = w.data.roll(1, 1)
    return layer


@weights("stored in half precision", integers=[False], dtypes=[torch.float32, torch.float64])
def _(conv, layer, rng):
    layer.w_val.data = layer.w_val.data.bfloat16().to(layer.w_val.dtype)
    layer.w_out.data = layer.w_out.data.bfloat16().to(layer.w_out.dtype)
    return layer


@weights("rescaled until it underflows", integers=[False], dtypes=[torch.float32])
def _(conv, layer, rng):
    taps = carrier(conv, layer)
    taps.data = taps.data * 2.0**-140 * 2.0**40  # the first product keeps nine bits or so
    other = layer.w_out if taps is layer.w_val else layer.w_val
    other.data = other.data * 2.0**100
    return layer


@weights("head dimension truncated", more=2, channels=["dense", "grouped"])
def _(conv, layer, rng):
    if layer.w_val.shape[3] < 2:
        raise Inapplicable
    return conv_to_mhsa(conv, head_dim=layer.w_val.shape[3] - 1)


@weights("a bias dropped", shown_on=BIASED, bias=[True])
def _(conv, layer, rng):
    layer.b_out.data[int(rng.integers(len(layer.b_out)))] = 0
    return layer


@weights("a bias one ulp off", bias=[True])
def _(conv, layer, rng):
    layer.b_out.data *= 1 + 2 * torch.finfo(layer.b_out.dtype).eps
    return layer


@weights("a bias twice as large")
def _(conv, layer, rng):
    layer.b_out.data[0] += max(float(layer.b_out.data[0].abs()), torch.finfo(layer.b_out.dtype).tiny)
    return layer


@weights("a bias where there is none", bias=[False])
def _(conv, layer, rng):
    layer.b_out.data[int(rng.integers(len(layer.b_out)))] = 2.0**-20
    return layer


# ---- where heads look ----------------------------------------------------------------------------------------------------


@weights("one head looks one further")
def _(conv, layer, rng):
    layer.v.data[one(layer, rng), 1 + int(rng.integers(layer.v.shape[1] - 1))] += 2 * 1024.0 * int(rng.choice([1, -1]))
    return layer


@weights("two heads at one shift", shown_on=ALL)
def _(conv, layer, rng):
    first, second = two(layer, rng)
    layer.v.data[first] = layer.v.data[second]
    return layer


@weights("all heads look one further")
def _(conv, layer, rng):
    layer.v.data[:, 1:] += 2 * 1024.0
    return layer


@weights("heads one anchor off")
def _(conv, layer, rng):
    """Every head looks one position further, as from another query; those of the last tap look off the kernel."""
    steps = 1.0 if layer.radix is None else float(layer.radix[-1])
    layer.v.data[:, -1] -= 2 * steps * layer.v.data[:, 0]
    return layer


@weights("the dilation forgotten")
def _(conv, layer, rng):
    layer.v.data[:, 1:] *= 2
    return layer


@weights("shifts negated", shown_on=SYMMETRIC)
def _(conv, layer, rng):
    layer.v.data[:, 1:] *= -1
    return layer


@weights("shifts mirrored on one axis", more=2)
def _(conv, layer, rng):
    layer.v.data[:, 1 + int(rng.integers(layer.v.shape[1] - 1))] *= -1
    return layer


@weights("axes of the shifts swapped", dims=[2, 3])
def _(conv, layer, rng):
    layer.v.data[:, [1, 2]] = layer.v.data[:, [2, 1]]
    return layer


@weights("halfway between two keys", soft=True)
def _(conv, layer, rng):
    layer.v.data[one(layer, rng), 1] += 1024.0
    return layer


@weights("softly off the lattice", soft=True)
def _(conv, layer, rng):
    layer.v.data[one(layer, rng), 1:] *= 1 + 0.3 / 1024
    layer.v.data /= 64
    layer.v.data[one(layer, rng), 1] += 2 * 16 * 0.4
    return layer


@weights("α negative", soft=True)
def _(conv, layer, rng):
    layer.v.data[one(layer, rng)] *= -1
    return layer


@weights("α negative, τ kept", soft=True)
def _(conv, layer, rng):
    layer.v.data[:, 0] *= -1
    return layer


@weights("one head soft", soft=True)
def _(conv, layer, rng):
    layer.v.data[one(layer, rng)] *= 2.0**-9
    return layer


@weights("all heads soft", soft=True, shown_on=ALL)
def _(conv, layer, rng):
    layer.v.data *= 2.0**-8
    return layer


@weights("α tiny", soft=True)
def _(conv, layer, rng):
    layer.v.data *= 1e-9
    return layer


@weights("no positions", soft=True)
def _(conv, layer, rng):
    getattr(layer, str(rng.choice(["v", "w_key_pos"]))).data.zero_()
    return layer


@weights("encoding of the keys swapped", soft=True)
def _(conv, layer, rng):
    layer.w_key_pos.data = layer.w_key_pos.data.roll(1, 1)
    return layer


@weights("encoding of the keys negated", more=2, soft=True)
def _(conv, layer, rng):
    layer.w_key_pos.data[one(layer, rng), :, int(rng.integers(1, layer.v.shape[1]))] *= -1
    return layer


@weights("positions of two heads swapped")
def _(conv, layer, rng):
    first, second = two(layer, rng)
    layer.v.data[[first, second]] = layer.v.data[[second, first]]
    return layer


@weights("a radix that aliases", soft=True, more=2, dims=[2, 3])
def _(conv, layer, rng):
    layer = conv_to_mhsa(conv, encoding="parabola", alpha=32.0)
    side = max(conv.kernel_size) * max(conv.dilation) // 2 * 2 - 1
    layer.radix = tuple(max(1, side) ** (len(conv.kernel_size) - 1 - axis) for axis in range(len(conv.kernel_size)))
    tau = [encoding.number(shift, layer.radix) for shift in shifts.tap_shifts(layer.geometry)]
    layer.v.data = torch.tensor([encoding.v((t,), 32.0) for t in tau], dtype=layer.v.dtype)
    layer.execution = "dense"
    layer.encoded = lambda grid: (encoding.number(grid.shifts(), layer.radix),)  # type: ignore[method-assign,arg-type]
    return layer


@weights("numbers of the parabola one off")
def _(conv, layer, rng):
    layer = conv_to_mhsa(conv, encoding="parabola")
    layer.v.data[one(layer, rng), 1] += 2 * 1024.0
    return layer


# ---- heads -----------------------------------------------------------------------------------------------------------------


@weights("a head dropped", more=2)
def _(conv, layer, rng):
    gone, kept = one(layer, rng), layer.heads
    return with_heads(layer, [h for h in range(kept) if h != gone]) if kept > 1 else _raise()


def _raise() -> MHSA:
    raise Inapplicable


@weights("a head twice")
def _(conv, layer, rng):
    return with_heads(layer, [*range(layer.heads), one(layer, rng)])


@weights("a head silenced", shown_on=ALL)
def _(conv, layer, rng):
    getattr(layer, str(rng.choice(["w_val", "w_out"]))).data[one(layer, rng)] = 0
    return layer


@weights("a head off the kernel", more=2)
def _(conv, layer, rng):
    other = with_heads(layer, [*range(layer.heads), one(layer, rng)])
    reach = max(layer.geometry.span) + 1
    other.v.data[-1, 1:] = -2 * other.v.data[-1, 0] * reach * int(rng.choice([1, -1]))
    return other


@weights("two heads that cancel, at two shifts")
def _(conv, layer, rng):
    first, second = two(layer, rng)
    other = with_heads(layer, [*range(layer.heads), first, first])
    other.w_val.data[-1] *= -1
    other.v.data[-1] = layer.v.data[second]
    return other


# ---- content ---------------------------------------------------------------------------------------------------------------


def _content(layer: MHSA, rng: np.random.Generator, *names: str) -> MHSA:
    for name in names:
        w = getattr(layer, name)
        w.data = torch.from_numpy(rng.normal(size=w.shape)).to(w.dtype) * 1000
    return layer


@weights("queries ask for keys", soft=True)
def _(conv, layer, rng):
    return _content(layer, rng, "w_qry", "w_key")


@weights("queries ask for positions", soft=True)
def _(conv, layer, rng):
    return _content(layer, rng, "w_qry")


@weights("heads prefer some keys", soft=True)
def _(conv, layer, rng):
    return _content(layer, rng, "u", "w_key")


# ---- the stated geometry -----------------------------------------------------------------------------------------------------


@weights("another stride")
def _(conv, layer, rng):
    return geometry(layer, stride=bumped(layer.stride, rng, 1))


@weights("another padding", paddings=["numbers"])
def _(conv, layer, rng):
    return geometry(layer, padding=bumped(layer.padding, rng, 0))


@weights("padding 'same' for none", more=5, paddings=["none"], transposed=[False])
def _(conv, layer, rng):
    return geometry(layer, padding="same")


@weights("another padding mode", transposed=[False], paddings=["numbers", "same"])
def _(conv, layer, rng):
    modes = [mode for mode in ("zeros", "reflect", "replicate", "circular") if mode != layer.padding_mode]
    return geometry(layer, padding_mode=str(rng.choice(modes)))


@weights("another dilation", more=2)
def _(conv, layer, rng):
    return geometry(layer, dilation=bumped(layer.dilation, rng, 1))


@weights("another output padding", more=2, transposed=[True])
def _(conv, layer, rng):
    return geometry(layer, output_padding=bumped(layer.output_padding, rng, 0))


@weights("stride and padding of two axes swapped", more=4, dims=[2, 3])
def _(conv, layer, rng):
    padding = layer.padding if isinstance(layer.padding, str) else layer.padding[::-1]
    return geometry(layer, stride=layer.stride[::-1], padding=padding)


@weights("transposed for plain", padding_modes=["zeros"], paddings=["none", "numbers"])
def _(conv, layer, rng):
    return geometry(layer, transposed=not layer.transposed, output_padding=(0,) * len(layer.kernel_size))


@weights("a kernel one larger")
def _(conv, layer, rng):
    return geometry(layer, kernel_size=bumped(layer.kernel_size, rng, 1))
