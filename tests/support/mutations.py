"""What a planted fault is, and the table of all of them; ``mutations_weights`` and ``mutations_code`` fill it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from construct import MHSA, MHSAWeights

HEADED = ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out")


class Inapplicable(Exception):
    """This layer has no room for this fault."""


@dataclass(frozen=True)
class WeightFault:
    """A fault in a layer's numbers or geometry.

    Attributes:
        plant: (convolution, layer, random numbers) → the faulty layer; may change the layer that it is given.
        soft: whether the faulty layer's attention may be neither 0 nor 1, so that exact evaluation has to run it.
        more: so many times as many layers are tried, where few have room for it.
        options: of the convolutions on which it shows.
    """

    plant: Callable[[Any, MHSA, np.random.Generator], MHSA]
    soft: bool = False
    more: int = 1
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CodeFault:
    """A fault in the package: it is there while the layer is built, run and certified."""

    plant: Callable[[pytest.MonkeyPatch], None]
    more: int = 1
    options: dict[str, Any] = field(default_factory=dict)


WEIGHTS: dict[str, WeightFault] = {}
CODE: dict[str, CodeFault] = {}


def weights(name: str, soft: bool = False, more: int = 1, **options: Any) -> Callable:
    """Enter a fault in the weights into the table."""

    def enter(plant: Callable) -> Callable:
        WEIGHTS[name] = WeightFault(plant, soft, more, options)
        return plant

    return enter


def code(name: str, more: int = 1, **options: Any) -> Callable:
    """Enter a fault in the code into the table."""

    def enter(plant: Callable) -> Callable:
        CODE[name] = CodeFault(plant, more, options)
        return plant

    return enter


def with_heads(layer: MHSA, order: list[int], **changes: Tensor) -> MHSA:
    """The layer with these of its heads, in this order."""
    tensors = {name: getattr(layer, name).detach()[order].clone() for name in HEADED} | changes
    return MHSA(layer.geometry, MHSAWeights(**tensors, b_out=layer.b_out.detach()), radix=layer.radix)
