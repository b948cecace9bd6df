"""Planted faults in an attention layer: its values, its heads, where they look, and its stated
geometry.

Each is a function of the convolution, its layer and a random generator; one that returns nothing
changed the layer in place.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from construct.attention import MHSA
from construct.builder import conv_to_mhsa
from construct.weights import MHSAWeights
from verify.layers.fields import TENSORS
from verify.oracle import PADDING_MODES, Vector

Change = Callable[[Any, MHSA, np.random.Generator], MHSA | None]


class Inapplicable(Exception):
    """A fault cannot be planted in a layer."""


def with_heads(layer: MHSA, order: list[int], **changes: Tensor) -> MHSA:
    """The layer with only these heads, in this order."""
    tensors = {
        name: getattr(layer, name).detach()[order].clone() for name in TENSORS[:-1]
    } | changes
    return MHSA(
        layer.geometry, MHSAWeights(**tensors, b_out=layer.b_out.detach()), radix=layer.radix
    )


def two_heads(layer: MHSA, rng: np.random.Generator) -> tuple[int, int]:
    """Two random heads of the layer."""
    if layer.heads < 2:
        raise Inapplicable
    first, second = rng.choice(layer.heads, 2, replace=False)
    return int(first), int(second)


def one_head(layer: MHSA, rng: np.random.Generator) -> int:
    """A random head of the layer."""
    return int(rng.integers(layer.heads))


def geometry(layer: MHSA, **changes: Any) -> MHSA:
    """The layer with a changed stated geometry."""
    try:
        layer.geometry = replace(layer.geometry, **changes)
    except ValueError:
        raise Inapplicable from None
    return layer


def bumped(values: Vector, rng: np.random.Generator, least: int) -> Vector:
    """The values with one entry changed by one."""
    axis = int(rng.integers(len(values)))
    step = int(rng.choice([1, -1])) if values[axis] > least else 1
    return tuple(n + step * (i == axis) for i, n in enumerate(values))


def carrier(layer: MHSA) -> Tensor:
    """The factor that holds the taps rather than the identity."""
    return layer.w_val if layer.w_out.shape[3] <= layer.w_val.shape[2] else layer.w_out


def rebuilt(conv: Any, kernel: Tensor) -> MHSA:
    """The attention layer for the convolution with another kernel of the same size."""
    other = copy.deepcopy(conv)
    other.weight.data = kernel.contiguous()
    return conv_to_mhsa(other)


# ---- the kernel ----------------------------------------------------------------------------------


def _kernel_flipped_on_every_axis(conv, layer, rng):
    for w in (layer.w_val, layer.w_out):
        w.data = w.data.flip(0)


def _kernel_flipped_on_one_axis(conv, layer, rng):
    return rebuilt(conv, conv.weight.detach().flip(int(rng.integers(2, conv.weight.dim()))))


def _kernel_axes_swapped(conv, layer, rng):
    if conv.weight.dim() < 4 or conv.kernel_size[0] != conv.kernel_size[1]:
        raise Inapplicable
    return rebuilt(conv, conv.weight.detach().transpose(2, 3))


def _inputs_and_outputs_of_the_taps_swapped(conv, layer, rng):
    product = layer.w_val @ layer.w_out
    if product.shape[2] != product.shape[3]:
        raise Inapplicable
    with torch.no_grad():
        carrier(layer).copy_(product.transpose(2, 3))


def _values_of_two_heads_swapped(conv, layer, rng):
    first, second = two_heads(layer, rng)
    with torch.no_grad():
        for w in (layer.w_val, layer.w_out):
            w[[first, second]] = w[[second, first]]


def _values_moved_on_by_one_head(conv, layer, rng):
    return with_heads(
        layer, list(range(layer.heads)), w_val=layer.w_val.roll(1, 0), w_out=layer.w_out.roll(1, 0)
    )


def _a_tap_one_ulp_off(conv, layer, rng):
    flat = carrier(layer).data.view(-1)
    at = int(rng.integers(len(flat)))
    flat[at] = torch.nextafter(flat[at], torch.zeros_like(flat[at]) if flat[at] else flat[at] + 1)


def _a_tap_that_is_not_there(conv, layer, rng):
    flat = carrier(layer).data.view(-1)
    flat[int(rng.integers(len(flat)))] += 2.0**-4


def _a_tap_scaled(conv, layer, rng):
    layer.w_val.data[-1] *= 1.25


def _a_sign(conv, layer, rng):
    layer.w_val.data[one_head(layer, rng)] *= -1


def _noise_in_w_out(conv, layer, rng):
    noise = 1 + torch.from_numpy(rng.normal(size=layer.w_out.shape)) * 0.01
    layer.w_out.data = (layer.w_out.data.double() * noise).to(layer.w_out.dtype)


def _input_channels_swapped(conv, layer, rng):
    layer.w_val.data = layer.w_val.data.roll(1, 2)


def _output_channels_swapped(conv, layer, rng):
    layer.w_out.data = layer.w_out.data.roll(1, 3)


def _groups_swapped(conv, layer, rng):
    for w in (layer.w_val, layer.w_out):
        w.data = w.data.roll(1, 1)


def _stored_in_half_precision(conv, layer, rng):
    layer.w_val.data = layer.w_val.data.bfloat16().to(layer.w_val.dtype)
    layer.w_out.data = layer.w_out.data.bfloat16().to(layer.w_out.dtype)


def _rescaled_until_it_underflows(conv, layer, rng):
    taps = carrier(layer)
    taps.data = taps.data * 2.0**-140 * 2.0**40  # the first product keeps about nine bits
    other = layer.w_out if taps is layer.w_val else layer.w_val
    other.data = other.data * 2.0**100


def _head_dimension_truncated(conv, layer, rng):
    if layer.w_val.shape[3] < 2:
        raise Inapplicable
    return conv_to_mhsa(conv, head_dim=layer.w_val.shape[3] - 1)


def _a_bias_dropped(conv, layer, rng):
    layer.b_out.data[int(rng.integers(len(layer.b_out)))] = 0


def _a_bias_one_ulp_off(conv, layer, rng):
    layer.b_out.data *= 1 + 2 * torch.finfo(layer.b_out.dtype).eps


def _a_bias_twice_as_large(conv, layer, rng):
    layer.b_out.data[0] += max(
        float(layer.b_out.data[0].abs()), torch.finfo(layer.b_out.dtype).tiny
    )


def _a_bias_where_there_is_none(conv, layer, rng):
    layer.b_out.data[int(rng.integers(len(layer.b_out)))] = 2.0**-20


# ---- heads ---------------------------------------------------------------------------------------


def _a_head_dropped(conv, layer, rng):
    if layer.heads < 2:
        raise Inapplicable
    gone = one_head(layer, rng)
    return with_heads(layer, [h for h in range(layer.heads) if h != gone])


def _a_head_twice(conv, layer, rng):
    return with_heads(layer, [*range(layer.heads), one_head(layer, rng)])


def _a_head_silenced(conv, layer, rng):
    getattr(layer, str(rng.choice(["w_val", "w_out"]))).data[one_head(layer, rng)] = 0


def _a_head_off_the_kernel(conv, layer, rng):
    other = with_heads(layer, [*range(layer.heads), one_head(layer, rng)])
    reach = max(layer.geometry.span) + 1
    other.v.data[-1, 1:] = -2 * other.v.data[-1, 0] * reach * int(rng.choice([1, -1]))
    return other


def _two_heads_that_cancel_at_two_shifts(conv, layer, rng):
    first, second = two_heads(layer, rng)
    other = with_heads(layer, [*range(layer.heads), first, first])
    other.w_val.data[-1] *= -1
    other.v.data[-1] = layer.v.data[second]
    return other


# ---- where heads look ----------------------------------------------------------------------------


def _one_head_looks_one_further(conv, layer, rng):
    layer.v.data[one_head(layer, rng), 1 + int(rng.integers(layer.v.shape[1] - 1))] += (
        2 * 1024.0 * int(rng.choice([1, -1]))
    )


def _two_heads_at_one_shift(conv, layer, rng):
    first, second = two_heads(layer, rng)
    layer.v.data[first] = layer.v.data[second]


def _all_heads_look_one_further(conv, layer, rng):
    layer.v.data[:, 1:] += 2 * 1024.0


def _heads_one_anchor_off(conv, layer, rng):
    """Every head looks one position further, as if from another query; heads of the last tap look
    off the kernel.
    """
    steps = 1.0 if layer.radix is None else float(layer.radix[-1])
    layer.v.data[:, -1] -= 2 * steps * layer.v.data[:, 0]


def _the_dilation_forgotten(conv, layer, rng):
    layer.v.data[:, 1:] *= 2


def _shifts_negated(conv, layer, rng):
    layer.v.data[:, 1:] *= -1


def _shifts_mirrored_on_one_axis(conv, layer, rng):
    layer.v.data[:, 1 + int(rng.integers(layer.v.shape[1] - 1))] *= -1


def _axes_of_the_shifts_swapped(conv, layer, rng):
    if layer.v.shape[1] < 3:
        raise Inapplicable
    layer.v.data[:, [1, 2]] = layer.v.data[:, [2, 1]]


def _positions_of_two_heads_swapped(conv, layer, rng):
    first, second = two_heads(layer, rng)
    layer.v.data[[first, second]] = layer.v.data[[second, first]]


def _numbers_of_the_parabola_one_off(conv, layer, rng):
    layer = conv_to_mhsa(conv, encoding="parabola")
    layer.v.data[one_head(layer, rng), 1] += 2 * 1024.0
    return layer


# ---- the stated geometry -------------------------------------------------------------------------


def _another(field: str, least: int) -> Change:
    """The fault that one number of this field is another, from ``least`` on."""

    def change(conv, layer, rng):
        values = getattr(layer, field)
        if isinstance(values, str):
            raise Inapplicable
        return geometry(layer, **{field: bumped(values, rng, least)})

    change.__name__ = f"another_{field}"
    return change


def _padding_same_for_none(conv, layer, rng):
    return geometry(layer, padding="same")


def _another_padding_mode(conv, layer, rng):
    modes = [mode for mode in PADDING_MODES if mode != layer.padding_mode]
    return geometry(layer, padding_mode=str(rng.choice(modes)))


def _stride_and_padding_of_two_axes_swapped(conv, layer, rng):
    padding = layer.padding if isinstance(layer.padding, str) else layer.padding[::-1]
    return geometry(layer, stride=layer.stride[::-1], padding=padding)


def _transposed_for_plain(conv, layer, rng):
    return geometry(
        layer, transposed=not layer.transposed, output_padding=(0,) * len(layer.kernel_size)
    )


_CHANGES = (
    _one_head_looks_one_further,
    _two_heads_at_one_shift,
    _all_heads_look_one_further,
    _heads_one_anchor_off,
    _the_dilation_forgotten,
    _shifts_negated,
    _shifts_mirrored_on_one_axis,
    _axes_of_the_shifts_swapped,
    _positions_of_two_heads_swapped,
    _numbers_of_the_parabola_one_off,
    _another("stride", 1),
    _another("padding", 0),
    _padding_same_for_none,
    _another_padding_mode,
    _another("dilation", 1),
    _another("output_padding", 0),
    _stride_and_padding_of_two_axes_swapped,
    _transposed_for_plain,
    _another("kernel_size", 1),
    _kernel_flipped_on_every_axis,
    _kernel_flipped_on_one_axis,
    _kernel_axes_swapped,
    _inputs_and_outputs_of_the_taps_swapped,
    _values_of_two_heads_swapped,
    _values_moved_on_by_one_head,
    _a_tap_one_ulp_off,
    _a_tap_that_is_not_there,
    _a_tap_scaled,
    _a_sign,
    _noise_in_w_out,
    _input_channels_swapped,
    _output_channels_swapped,
    _groups_swapped,
    _stored_in_half_precision,
    _rescaled_until_it_underflows,
    _head_dimension_truncated,
    _a_bias_dropped,
    _a_bias_one_ulp_off,
    _a_bias_twice_as_large,
    _a_bias_where_there_is_none,
    _a_head_dropped,
    _a_head_twice,
    _a_head_silenced,
    _a_head_off_the_kernel,
    _two_heads_that_cancel_at_two_shifts,
)
FAULTS = {change.__name__.replace("_", " ").strip(): change for change in _CHANGES}
"""Each fault by the name of its function."""
