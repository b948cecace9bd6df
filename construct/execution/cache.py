"""Cache of prepared calls of each layer, valid while the parameters' bytes are unchanged.

Preparing a call takes longer than a small product: is content off, where do the heads look, which factor is the identity, which
kernel is quick?  Edits through ``.data`` or from outside torch leave no trace, so every call compares the numbers that the
prepared call was made from, bit by bit.  Only the factor that is not the identity, and the bias, may change: the call reads them.
"""

from collections.abc import Callable
from operator import attrgetter, eq
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Parameter

from construct.encoding import quadratic
from construct.execution.head_matrices import as_bits, identity_parts
from construct.execution.kernels.blocks import most_queries
from construct.execution.transforms import faked, plain, traced, transformed
from construct.tokens import TokenGrid
from construct.weights import NAMES

MOST = 64
"""Calls that are kept of a layer: one for each shape and memory layout of inputs."""
SHAPE = attrgetter("shape")
LOOKED_AT = ("w_qry", "w_key", "u", "w_key_pos", "v")

Run = Callable[[Any, Tensor, TokenGrid], Tensor]
"""How an execution evaluates Eq. 3.  Calls that one made are of no use to another, which may be any code."""
Call = Callable[[Tensor], Tensor]
"""x (B, D_in, *n) → (B, D_out, *o).  It reads the whole factor and the bias as they are when it is called."""


class PreparedCalls:
    """The prepared calls of one layer on the CPU: content off, its heads shifts, ``whole`` the factor beside an identity."""

    def __init__(self, layer: Any, whole: str):
        self.whole, other = whole, "w_out" if whole == "w_val" else "w_val"
        self.names = list(layer._parameters)
        self.tensors = [getattr(layer, name) for name in self.names]
        self.ids, self.memory, self.code = list(map(id, self.tensors)), _memory(self.tensors), _code(layer)
        identity: Tensor = getattr(layer, other)
        self.dtype = identity.dtype
        self.views = [getattr(layer, name).detach().numpy() for name in LOOKED_AT]
        self.kept = [bytearray(view.tobytes()) for view in self.views]
        for like, view in identity_parts(as_bits(identity), identity.shape[-1], identity.dtype):
            self.kept.append(like)
            self.views.append(view)
        self.calls: dict[Any, Call] = {}

    def valid(self, layer: Any) -> bool:
        """Whether the parameters are the same, in the same places, with the same numbers."""
        now = layer._parameters
        return (
            list(now) == self.names
            and list(map(id, now.values())) == self.ids
            and _memory(self.tensors) == self.memory
            and _code(layer) == self.code
            and all(map(eq, self.kept, self.views))  # what lies in memory
        )


ENTRIES: WeakKeyDictionary[Any, PreparedCalls] = WeakKeyDictionary()


def keep(layer: Any, run: Run, x: Tensor, grid: TokenGrid, w: Tensor, call: Call) -> None:
    """Keep a call of an execution's ``run``, without gradients, whose heads were all shifts; w are their matrices W_h."""
    held = layer._parameters
    whole = next((name for name in ("w_val", "w_out") if w is held.get(name)), "")
    # A factor in half precision, tensors worked out from others, a grid for a wanted output size: never kept.
    if not whole or len(held) != len(NAMES) or type(x) is not Tensor or not all(map(_plain, held.values())):
        return
    if any(getattr(layer, name).dtype != w.dtype for name in ("w_val", "w_out", "b_out")):
        return  # one of them was converted: what was worked with is a copy
    if most_queries() is not None or traced() or not plain():
        return
    if grid is not TokenGrid.of(layer.geometry, tuple(x.shape[2:])):
        return
    entry = ENTRIES.get(layer)
    if entry is None or entry.whole != whole or not entry.valid(layer):
        entry = ENTRIES[layer] = PreparedCalls(layer, whole)
    if len(entry.calls) >= MOST:
        entry.calls.clear()
    entry.calls[run, x.shape, x.stride()] = call


def cached(layer: Any, run: Run, x: Tensor) -> Call | None:
    """The prepared call for an input like this one, (B, D_in, *n), if nothing is recorded; None if anything is not as it was."""
    entry = ENTRIES.get(layer)
    if entry is None or type(x) is not Tensor or torch.is_autocast_enabled("cpu"):
        return None
    if not x.is_cpu or x.dtype != entry.dtype:
        if entry.memory != _memory(entry.tensors):  # the layer was converted or moved: its former numbers are let go
            ENTRIES.pop(layer, None)
        return None
    call = entry.calls.get((run, x.shape, x.stride()))
    if call is None or most_queries() is not None or transformed() or faked():
        return None
    if torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in entry.tensors)):
        return None
    if not entry.valid(layer):
        ENTRIES.pop(layer, None)  # another thread may have been quicker
        return None
    return call


def _plain(p: Tensor | None) -> bool:
    if type(p) is not Parameter or p.is_neg():
        return False
    return p.is_cpu and p.dtype in (torch.float32, torch.float64) and p.is_contiguous()


def _memory(tensors: list[Tensor]) -> list[Any]:
    """Where tensors begin in memory, their shapes, whether they are contiguous, and whether the memory holds the negatives."""
    layout = (*map(Tensor.is_contiguous, tensors), *map(Tensor.is_neg, tensors))
    return [*map(Tensor.data_ptr, tensors), *map(SHAPE, tensors), *layout]


def _code(layer: Any) -> tuple[Any, ...]:
    """What else decides; and the very code, since a prepared call holds for it."""
    code = type(layer).position_vector, quadratic.r, quadratic.number
    geometry = tuple(vars(layer.geometry).values())  # an object that was changed in place would still equal itself
    return geometry, layer.radix, layer._encoding, type(layer), *code
