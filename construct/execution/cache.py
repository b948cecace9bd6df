"""Cache of prepared calls of each layer, valid while the parameters' bytes are unchanged.

Preparing a call takes longer than a small product: it finds out whether content is off, where the heads look, which factor is
the identity and which kernel is fast.  Edits through ``.data`` or from outside torch leave no trace, so every call compares,
bit by bit, the numbers that it was prepared from.  Only the bias and the factor that is not the identity may change.
"""

from collections.abc import Callable
from operator import attrgetter, eq
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Parameter

from construct.encoding import quadratic
from construct.execution.blocks import most_queries
from construct.execution.byte_cache import BoundedCache
from construct.execution.head_matrices import as_bits, identity_parts
from construct.execution.transforms import faked, plain, shared_array, traced, transformed
from construct.tokens import TokenGrid
from construct.weights import NAMES

MOST_BYTES = 2**20
"""What the prepared calls of one layer keep (1 MiB): one for each shape and memory layout of the input."""
SHAPE = attrgetter("shape")
LOOKED_AT = ("w_qry", "w_key", "u", "w_key_pos", "v")

Run = Callable[[Any, Tensor, TokenGrid], Tensor]
"""How an execution evaluates Eq. 3.  An execution may be any code, so it reuses only its own prepared calls."""
Call = Callable[[Tensor], Tensor]
"""x (B, D_in, *n) → (B, D_out, *o).  It reads the bias and the factor that is not the identity at call time."""


class PreparedCalls:
    """The prepared calls of one layer on the CPU: no content, all heads shifts, one factor ``whole``, the other an identity."""

    def __init__(self, layer: Any, whole: str):
        self.whole, other = whole, "w_out" if whole == "w_val" else "w_val"
        held = tensors_held_by(layer)
        self.names, self.tensors = list(held), list(held.values())
        self.ids, self.memory, self.code = list(map(id, self.tensors)), _memory(self.tensors), _code(layer)
        identity: Tensor = getattr(layer, other)
        self.dtype = identity.dtype
        self.views = [shared_array(getattr(layer, name).detach()) for name in LOOKED_AT]
        self.kept = [bytearray(view.tobytes()) for view in self.views]
        for like, view in identity_parts(as_bits(identity), identity.shape[-1], identity.dtype):
            self.kept.append(like)
            self.views.append(view)
        self.calls = BoundedCache(MOST_BYTES)

    def valid(self, layer: Any) -> bool:
        """Whether the parameters are the same tensors, at the same addresses, with the same numbers."""
        now = tensors_held_by(layer)
        return (
            list(now) == self.names
            and list(map(id, now.values())) == self.ids
            and _memory(self.tensors) == self.memory
            and _code(layer) == self.code
            and all(map(eq, self.kept, self.views))  # compares memory
        )


ENTRIES: WeakKeyDictionary[Any, PreparedCalls] = WeakKeyDictionary()


def keep(layer: Any, run: Run, x: Tensor, grid: TokenGrid, w: Tensor, prepare: Callable[[], Call]) -> None:
    """Cache a call of an execution's ``run``, without gradients, in which all heads are shifts; w are their matrices W_h."""
    held = tensors_held_by(layer)
    whole = next((name for name in ("w_val", "w_out") if w is held.get(name)), "")
    # Never cached: a factor in half precision, tensors computed from others, a grid for a requested output size.
    if not whole or len(held) != len(NAMES) or type(x) is not Tensor or not all(map(_plain, held.values())):
        return
    if any(type(p) is not Parameter for p in layer._parameters.values()):
        return  # put there for this call by functional_call
    if any(getattr(layer, name).dtype != w.dtype for name in ("w_val", "w_out", "b_out")):
        return  # one of them was cast, so the call uses a copy
    if most_queries() is not None or traced() or not plain():
        return
    if grid != TokenGrid.of(layer.geometry, tuple(x.shape[2:])):
        return
    entry = ENTRIES.get(layer)
    if entry is None or entry.whole != whole or not entry.valid(layer):
        entry = ENTRIES[layer] = PreparedCalls(layer, whole)
    entry.calls.keep((run, x.shape, x.stride()), prepare())


def cached(layer: Any, run: Run, x: Tensor) -> Call | None:
    """The prepared call for inputs like x, (B, D_in, *n); None while gradients are recorded, or if anything has changed."""
    entry = ENTRIES.get(layer)
    if entry is None or type(x) is not Tensor or torch.is_autocast_enabled("cpu"):
        return None
    if not x.is_cpu or x.dtype != entry.dtype:
        if entry.memory != _memory(entry.tensors):  # the layer was cast or moved: release its old numbers
            ENTRIES.pop(layer, None)
        return None
    call = entry.calls.get((run, x.shape, x.stride()))
    if call is None or most_queries() is not None or transformed() or faked():
        return None
    if torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in entry.tensors)):
        return None
    if not entry.valid(layer):
        ENTRIES.pop(layer, None)  # another thread may already have removed it
        return None
    return call


def tensors_held_by(layer: Any) -> dict[str, Any]:
    """The tensors of a layer by name: its parameters, and the buffer ``b_out`` of a layer without a bias."""
    return {**layer._parameters, **layer._buffers}


def _plain(p: Tensor | None) -> bool:
    if p is None or type(p) not in (Parameter, Tensor) or p.is_neg():
        return False
    return p.is_cpu and p.dtype in (torch.float32, torch.float64) and p.is_contiguous()


def _memory(tensors: list[Tensor]) -> list[Any]:
    """The tensors' addresses and shapes, whether they are contiguous, and whether the memory holds the negatives."""
    layout = (*map(Tensor.is_contiguous, tensors), *map(Tensor.is_neg, tensors))
    return [*map(Tensor.data_ptr, tensors), *map(SHAPE, tensors), *layout]


def _code(layer: Any) -> tuple[Any, ...]:
    """Everything else that a prepared call depends on: geometry, encoding and the code itself."""
    code = type(layer).position_vector, quadratic.r, quadratic.number
    geometry = tuple(vars(layer.geometry).values())  # an object that was changed in place would still equal itself
    return geometry, layer.radix, layer._encoding, type(layer), *code
