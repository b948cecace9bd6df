"""The table of planted faults that test samples and certificates, and the convolutions on which samples must detect one.

Faults of hard heads are those of the sweep; here are faults of soft heads; `faults_code` adds those in the code.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from construct import MHSA
from verify.experiment.sweep import faults
from verify.experiment.sweep.faults import one_head
from verify.strategies import numbers

GEOMETRIES: dict[str, Callable[[], nn.Module]] = {
    "1-D": lambda: nn.Conv1d(3, 4, 5, padding=2),
    "2-D": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "3-D": lambda: nn.Conv3d(2, 3, 3, padding=1),
    "even": lambda: nn.Conv2d(2, 3, (2, 4), padding=1),
    "strided": lambda: nn.Conv2d(3, 2, 3, padding=1, stride=2),
    "dilated": lambda: nn.Conv2d(2, 3, 3, padding=(2, 1), dilation=2),
    "grouped": lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2),
    "depthwise": lambda: nn.Conv1d(4, 4, 3, padding=1, groups=4),
    "same": lambda: nn.Conv1d(3, 2, 4, padding="same"),
    "reflect": lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
    "replicate": lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"),
    "circular": lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
    "transposed": lambda: nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1),
    "transposed 1-D": lambda: nn.ConvTranspose1d(2, 3, 4, stride=3, dilation=2),
    "bare": lambda: nn.Conv2d(3, 3, 3, bias=False),
}
ALL = tuple(GEOMETRIES)
ZEROS = ("1-D", "2-D", "3-D", "even", "strided", "dilated", "grouped", "depthwise", "same")
BIASED = tuple(name for name in ALL if name != "bare")
TRANSPOSED = ("transposed", "transposed 1-D")
SYMMETRIC = tuple(name for name in ALL if name not in ("even", "same", "transposed 1-D"))
"""Geometries whose set of shifts is symmetric."""


@dataclass(frozen=True)
class Fault:
    """A fault in a layer, or in the code that builds and runs it.

    Attributes:
        plant: in a layer: (convolution, layer, random generator) → the faulty layer, possibly the given one.  In the code:
            (monkeypatch) → None; the fault is present while the layer is built, run and judged.
        in_code: whether the fault is in the code.
        built: whether the layer is built before the code is patched.
        shown_on: the geometries on which samples must detect it; none if it may hide in rounding.
        soft: whether the faulty layer's attention may be neither 0 nor 1, so that exact evaluation has to run it.
        more: a factor on the number of layers tried, for a fault that few layers admit.
        options: options of the convolutions on which certificates must detect it.
    """

    plant: Callable[..., Any]
    in_code: bool
    built: bool = False
    shown_on: tuple[str, ...] = ()
    soft: bool = False
    more: int = 1
    options: dict[str, Any] = field(default_factory=dict)


FIELDS = ("built", "shown_on", "soft", "more")


def fault(plant: Callable[..., Any], in_code: bool, settings: dict[str, Any]) -> Fault:
    """A fault; settings that are not its fields are options of the convolutions."""
    fields = {key: value for key, value in settings.items() if key in FIELDS}
    options = {key: value for key, value in settings.items() if key not in FIELDS}
    return Fault(plant, in_code, **fields, options=options)


def convolution_and_inputs(name: str, seed: int, integers: bool) -> tuple[Any, Tensor]:
    """A float32 convolution of this geometry without gradients, and two inputs, of small integers or normal samples."""
    generator = torch.Generator().manual_seed(seed)
    conv: Any = GEOMETRIES[name]().requires_grad_(False)
    for tensor in conv.parameters():
        tensor.copy_(numbers(tensor.shape, tensor.dtype, integers, generator))
    x = numbers((2, conv.in_channels, *[7, 6, 5][: conv.weight.dim() - 2]), torch.float32, integers, generator)
    return conv, x


def _content(layer: MHSA, rng: np.random.Generator, *names: str) -> None:
    for name in names:
        w = getattr(layer, name)
        w.data = torch.from_numpy(rng.normal(size=w.shape)).to(w.dtype) * 1000


def _softly_off_the_lattice(layer: MHSA, rng: np.random.Generator) -> None:
    layer.v.data[one_head(layer, rng), 1:] *= 1 + 0.3 / 1024
    layer.v.data /= 64
    layer.v.data[one_head(layer, rng), 1] += 2 * 16 * 0.4


SOFT: dict[str, Callable[[MHSA, np.random.Generator], Any]] = {
    "halfway between two keys": lambda layer, rng: layer.v.data[one_head(layer, rng), 1].add_(1024.0),
    "softly off the lattice": _softly_off_the_lattice,
    "α negative": lambda layer, rng: layer.v.data[one_head(layer, rng)].mul_(-1),
    "α negative, τ kept": lambda layer, rng: layer.v.data[:, 0].mul_(-1),
    "one head soft": lambda layer, rng: layer.v.data[one_head(layer, rng)].mul_(2.0**-9),
    "all heads soft": lambda layer, rng: layer.v.data.mul_(2.0**-8),
    "α tiny": lambda layer, rng: layer.v.data.mul_(1e-9),
    "no positions": lambda layer, rng: getattr(layer, str(rng.choice(["v", "w_key_pos"]))).data.zero_(),
    "encoding of the keys swapped": lambda layer, rng: layer.w_key_pos.data.copy_(layer.w_key_pos.data.roll(1, 1)),
    "encoding of the keys negated": lambda layer, rng: layer.w_key_pos.data[
        one_head(layer, rng), :, int(rng.integers(1, layer.v.shape[1]))
    ].mul_(-1),
    "queries ask for keys": lambda layer, rng: _content(layer, rng, "w_qry", "w_key"),
    "queries ask for positions": lambda layer, rng: _content(layer, rng, "w_qry"),
    "heads prefer some keys": lambda layer, rng: _content(layer, rng, "u", "w_key"),
}
"""Each changes a layer in place."""


def _in_place(change: Callable[[MHSA, np.random.Generator], Any], conv: Any, layer: MHSA, rng: np.random.Generator):
    change(layer, rng)
    return layer


SETTINGS: dict[str, dict[str, Any]] = {
    "two heads at one shift": {"shown_on": ALL},
    "shifts negated": {"shown_on": SYMMETRIC},
    "shifts mirrored on one axis": {"more": 2},
    "axes of the shifts swapped": {"dims": [2, 3]},
    "another padding": {"paddings": ["numbers"]},
    "padding same for none": {"more": 5, "paddings": ["none"], "transposed": [False]},
    "another padding mode": {"transposed": [False], "paddings": ["numbers", "same"]},
    "another dilation": {"more": 2},
    "another output padding": {"more": 2, "transposed": [True]},
    "stride and padding of two axes swapped": {"more": 4, "dims": [2, 3]},
    "transposed for plain": {"padding_modes": ["zeros"], "paddings": ["none", "numbers"]},
    "kernel flipped on every axis": {"shown_on": ALL},
    "kernel flipped on one axis": {"more": 2},
    "kernel axes swapped": {"more": 3, "dims": [2, 3]},
    "inputs and outputs of the taps swapped": {"more": 3, "channels": ["dense", "grouped"]},
    "values of two heads swapped": {"shown_on": ALL},
    "a tap that is not there": {"more": 2},
    "a tap scaled": {"shown_on": ALL},
    "input channels swapped": {"channels": ["dense", "grouped"]},
    "output channels swapped": {
        "shown_on": tuple(name for name in ALL if name != "depthwise"),
        "channels": ["dense", "grouped", "multiplier"],
    },
    "groups swapped": {"shown_on": ("grouped", "depthwise"), "channels": ["grouped", "depthwise", "multiplier"]},
    "stored in half precision": {"integers": [False], "dtypes": [torch.float32, torch.float64]},
    "rescaled until it underflows": {"integers": [False], "dtypes": [torch.float32]},
    "head dimension truncated": {"more": 2, "channels": ["dense", "grouped"]},
    "a bias dropped": {"shown_on": BIASED, "bias": [True]},
    "a bias one ulp off": {"bias": [True]},
    "a bias where there is none": {"bias": [False]},
    "a head dropped": {"more": 2},
    "a head silenced": {"shown_on": ALL},
    "a head off the kernel": {"more": 2},
    "all heads soft": {"shown_on": ALL},
    "encoding of the keys negated": {"more": 2},
}
"""What `Fault` says of a fault beside its function, where that is not the default; options of convolutions too."""

_CHANGES = {name: partial(faults.planted, change) for name, change in faults.FAULTS.items()}
_CHANGES |= {name: partial(_in_place, change) for name, change in SOFT.items()}
IN_LAYERS = {n: fault(plant, False, SETTINGS.get(n, {}) | {"soft": n in SOFT}) for n, plant in _CHANGES.items()}
"""Faults in stored numbers."""
