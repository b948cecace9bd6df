"""Planted faults in where the heads of an attention layer look, and in its stated geometry."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from construct import MHSA, conv_to_mhsa
from verify.experiment.sweep.faults import ALL, SYMMETRIC, Inapplicable, one_head, two_heads, weight_fault
from verify.oracle import PADDING_MODES


def geometry(layer: MHSA, **changes: Any) -> MHSA:
    """The layer with a changed stated geometry."""
    try:
        layer.geometry = replace(layer.geometry, **changes)
    except ValueError:
        raise Inapplicable from None
    return layer


def bumped(values: tuple[int, ...], rng: np.random.Generator, least: int) -> tuple[int, ...]:
    """The values with one entry changed by one."""
    axis = int(rng.integers(len(values)))
    step = int(rng.choice([1, -1])) if values[axis] > least else 1
    return tuple(n + step * (i == axis) for i, n in enumerate(values))


# ---- where heads look ----------------------------------------------------------------------------------------------------


@weight_fault("one head looks one further")
def _(conv, layer, rng):
    layer.v.data[one_head(layer, rng), 1 + int(rng.integers(layer.v.shape[1] - 1))] += (
        2 * 1024.0 * int(rng.choice([1, -1]))
    )


@weight_fault("two heads at one shift", shown_on=ALL)
def _(conv, layer, rng):
    first, second = two_heads(layer, rng)
    layer.v.data[first] = layer.v.data[second]


@weight_fault("all heads look one further")
def _(conv, layer, rng):
    layer.v.data[:, 1:] += 2 * 1024.0


@weight_fault("heads one anchor off")
def _(conv, layer, rng):
    """Every head looks one position further, as if from another query; heads of the last tap look off the kernel."""
    steps = 1.0 if layer.radix is None else float(layer.radix[-1])
    layer.v.data[:, -1] -= 2 * steps * layer.v.data[:, 0]


@weight_fault("the dilation forgotten")
def _(conv, layer, rng):
    layer.v.data[:, 1:] *= 2


@weight_fault("shifts negated", shown_on=SYMMETRIC)
def _(conv, layer, rng):
    layer.v.data[:, 1:] *= -1


@weight_fault("shifts mirrored on one axis", more=2)
def _(conv, layer, rng):
    layer.v.data[:, 1 + int(rng.integers(layer.v.shape[1] - 1))] *= -1


@weight_fault("axes of the shifts swapped", dims=[2, 3])
def _(conv, layer, rng):
    if layer.v.shape[1] < 3:
        raise Inapplicable
    layer.v.data[:, [1, 2]] = layer.v.data[:, [2, 1]]


@weight_fault("halfway between two keys", soft=True)
def _(conv, layer, rng):
    layer.v.data[one_head(layer, rng), 1] += 1024.0


@weight_fault("softly off the lattice", soft=True)
def _(conv, layer, rng):
    layer.v.data[one_head(layer, rng), 1:] *= 1 + 0.3 / 1024
    layer.v.data /= 64
    layer.v.data[one_head(layer, rng), 1] += 2 * 16 * 0.4


@weight_fault("α negative", soft=True)
def _(conv, layer, rng):
    layer.v.data[one_head(layer, rng)] *= -1


@weight_fault("α negative, τ kept", soft=True)
def _(conv, layer, rng):
    layer.v.data[:, 0] *= -1


@weight_fault("one head soft", soft=True)
def _(conv, layer, rng):
    layer.v.data[one_head(layer, rng)] *= 2.0**-9


@weight_fault("all heads soft", soft=True, shown_on=ALL)
def _(conv, layer, rng):
    layer.v.data *= 2.0**-8


@weight_fault("α tiny", soft=True)
def _(conv, layer, rng):
    layer.v.data *= 1e-9


@weight_fault("no positions", soft=True)
def _(conv, layer, rng):
    getattr(layer, str(rng.choice(["v", "w_key_pos"]))).data.zero_()


@weight_fault("encoding of the keys swapped", soft=True)
def _(conv, layer, rng):
    layer.w_key_pos.data = layer.w_key_pos.data.roll(1, 1)


@weight_fault("encoding of the keys negated", more=2, soft=True)
def _(conv, layer, rng):
    layer.w_key_pos.data[one_head(layer, rng), :, int(rng.integers(1, layer.v.shape[1]))] *= -1


@weight_fault("positions of two heads swapped")
def _(conv, layer, rng):
    first, second = two_heads(layer, rng)
    layer.v.data[[first, second]] = layer.v.data[[second, first]]


@weight_fault("numbers of the parabola one off")
def _(conv, layer, rng):
    layer = conv_to_mhsa(conv, encoding="parabola")
    layer.v.data[one_head(layer, rng), 1] += 2 * 1024.0
    return layer


# ---- content ---------------------------------------------------------------------------------------------------------------


def _content(layer: MHSA, rng: np.random.Generator, *names: str) -> MHSA:
    for name in names:
        w = getattr(layer, name)
        w.data = torch.from_numpy(rng.normal(size=w.shape)).to(w.dtype) * 1000
    return layer


@weight_fault("queries ask for keys", soft=True)
def _(conv, layer, rng):
    return _content(layer, rng, "w_qry", "w_key")


@weight_fault("queries ask for positions", soft=True)
def _(conv, layer, rng):
    return _content(layer, rng, "w_qry")


@weight_fault("heads prefer some keys", soft=True)
def _(conv, layer, rng):
    return _content(layer, rng, "u", "w_key")


# ---- the stated geometry -----------------------------------------------------------------------------------------------------


@weight_fault("another stride")
def _(conv, layer, rng):
    return geometry(layer, stride=bumped(layer.stride, rng, 1))


@weight_fault("another padding", paddings=["numbers"])
def _(conv, layer, rng):
    if isinstance(layer.padding, str):
        raise Inapplicable
    return geometry(layer, padding=bumped(layer.padding, rng, 0))


@weight_fault("padding 'same' for none", more=5, paddings=["none"], transposed=[False])
def _(conv, layer, rng):
    return geometry(layer, padding="same")


@weight_fault("another padding mode", transposed=[False], paddings=["numbers", "same"])
def _(conv, layer, rng):
    modes = [mode for mode in PADDING_MODES if mode != layer.padding_mode]
    return geometry(layer, padding_mode=str(rng.choice(modes)))


@weight_fault("another dilation", more=2)
def _(conv, layer, rng):
    return geometry(layer, dilation=bumped(layer.dilation, rng, 1))


@weight_fault("another output padding", more=2, transposed=[True])
def _(conv, layer, rng):
    return geometry(layer, output_padding=bumped(layer.output_padding, rng, 0))


@weight_fault("stride and padding of two axes swapped", more=4, dims=[2, 3])
def _(conv, layer, rng):
    padding = layer.padding if isinstance(layer.padding, str) else layer.padding[::-1]
    return geometry(layer, stride=layer.stride[::-1], padding=padding)


@weight_fault("transposed for plain", padding_modes=["zeros"], paddings=["none", "numbers"])
def _(conv, layer, rng):
    return geometry(layer, transposed=not layer.transposed, output_padding=(0,) * len(layer.kernel_size))


@weight_fault("a kernel one larger")
def _(conv, layer, rng):
    return geometry(layer, kernel_size=bumped(layer.kernel_size, rng, 1))
