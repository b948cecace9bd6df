"""The interface of an execution: run, memory and cost."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from construct.execution.transforms import is_batched
from construct.tokens import TokenGrid
from construct.weights import NAMES

Layer = Any
"""The attention layer, :class:`construct.attention.MHSA`, which imports this module."""


@dataclass(frozen=True)
class Execution:
    """One way to evaluate Eq. 3: the same function by another route.

    Attributes:
        run: (layer, x (B, D_in, *n) in the layer's type, grid) → outputs (B, D_out, *o), in that
            type or the working type; raises NotEnoughMemory before allocating what does not fit.
        memory: (layer, batch, grid) → bytes that ``run`` allocates beyond its input and the
            parameters.
        meaning: a description in one line.
        cost: (layer, batch, grid) → approximate multiplications of a call.
    """

    run: Callable[[Any, Tensor, TokenGrid], Tensor]
    memory: Callable[[Any, int, TokenGrid], int]
    meaning: str
    cost: Callable[[Any, int, TokenGrid], int]


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of values and products for a layer of ``dtype``: at least float32."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def tensors_of(layer: Layer) -> tuple[Tensor, ...]:
    """Every tensor that a call of the layer may differentiate with respect to."""
    return tuple(getattr(layer, name) for name in (*NAMES, *layer.offsets))


def is_channels_last(x: Tensor) -> bool:
    """Whether channels are last in memory, in the dimensions for which torch has such a format.

    Not by torch's formats: a compiler may map, and then torch answers for one of them alone.
    """
    if x.dim() not in (4, 5) or is_batched(x):
        return False
    return x.movedim(1, -1).is_contiguous() and not x.is_contiguous()
