"""The table of planted faults, filled by the modules of faults and used to test both samples and certificates.

Also the convolutions on which samples must detect a fault.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from construct import MHSA, MHSAWeights
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

HEADED = ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out")


class Inapplicable(Exception):
    """A fault cannot be planted in a layer."""


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


FAULTS: dict[str, Fault] = {}
FIELDS = ("built", "shown_on", "soft", "more")


def _enter(name: str, plant: Callable[..., Any], in_code: bool, settings: dict[str, Any]) -> None:
    """Enter a fault into the table; settings that are not its fields are options of the convolutions."""
    assert name not in FAULTS, name
    fields = {key: value for key, value in settings.items() if key in FIELDS}
    options = {key: value for key, value in settings.items() if key not in FIELDS}
    FAULTS[name] = Fault(plant, in_code, **fields, options=options)


def weight_fault(name: str, **settings: Any) -> Callable[[Callable[..., Any]], None]:
    """Decorator that enters a fault in a layer's numbers or geometry; a change that returns None was made in place."""

    def enter(change: Callable[..., Any]) -> None:
        def plant(conv: Any, layer: MHSA, rng: np.random.Generator) -> MHSA:
            other = change(conv, layer, rng)
            return layer if other is None else other

        _enter(name, plant, False, settings)

    return enter


def code_fault(name: str, **settings: Any) -> Callable[[Callable[..., Any]], None]:
    """Decorator that enters a fault in the code."""
    return lambda plant: _enter(name, plant, True, settings)


def convolution_and_inputs(name: str, seed: int, integers: bool) -> tuple[Any, Tensor]:
    """A float32 convolution of this geometry without gradients, and two inputs, of small integers or normal samples."""
    generator = torch.Generator().manual_seed(seed)
    conv: Any = GEOMETRIES[name]().requires_grad_(False)
    for tensor in conv.parameters():
        tensor.copy_(numbers(tensor.shape, tensor.dtype, integers, generator))
    x = numbers((2, conv.in_channels, *[7, 6, 5][: conv.weight.dim() - 2]), torch.float32, integers, generator)
    return conv, x


def with_heads(layer: MHSA, order: list[int], **changes: Tensor) -> MHSA:
    """The layer with only these heads, in this order."""
    tensors = {name: getattr(layer, name).detach()[order].clone() for name in HEADED} | changes
    return MHSA(layer.geometry, MHSAWeights(**tensors, b_out=layer.b_out.detach()), radix=layer.radix)


def two_heads(layer: MHSA, rng: np.random.Generator) -> tuple[int, int]:
    """Two random heads of the layer."""
    if layer.heads < 2:
        raise Inapplicable
    first, second = rng.choice(layer.heads, 2, replace=False)
    return int(first), int(second)


def one_head(layer: MHSA, rng: np.random.Generator) -> int:
    """A random head of the layer."""
    return int(rng.integers(layer.heads))
