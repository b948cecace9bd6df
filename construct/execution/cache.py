"""Cache of prepared calls of each layer, valid while the parameters are unchanged.

Preparing a call takes longer than a small product: it finds out whether content is off, where the heads look and which factor is
the identity.  Edits through ``.data`` or from outside torch leave no trace, so on a CPU every call compares, number by number,
what it was prepared from; elsewhere :mod:`construct.execution.reads` says what is compared.  Only the bias and the factor that is
not the identity may change.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Parameter

import construct.tokens as tokens
from construct.encoding import quadratic
from construct.execution import reads
from construct.execution.blocks import most_queries
from construct.execution.byte_cache import BoundedCache
from construct.execution.head_matrices import identity_parts
from construct.execution.transforms import faked, plain, shared_array, traced, transformed
from construct.tokens import TokenGrid
from construct.weights import NAMES

MOST_BYTES = 2**20
"""What the prepared calls of one layer keep (1 MiB): one for each shape and memory layout of the input."""
POSITIONAL = ("w_qry", "w_key", "u", "w_key_pos", "v")

Run = Callable[[Any, Tensor, TokenGrid], Tensor]
"""How an execution evaluates Eq. 3.  An execution may be any code, so it reuses only its own prepared calls."""
Call = Callable[[Tensor], Tensor]
"""x (B, D_in, *n) → (B, D_out, *o).  It reads the bias and the factor that is not the identity at call time."""


class PreparedCalls:
    """The prepared calls of one layer: no content, all heads shifts, one factor ``whole``, the other an identity."""

    def __init__(self, layer: Any, whole: str):
        self.whole, held = whole, tensors_held_by(layer)
        self.ids, self.code = _ids(held), _code(layer)
        self.tensors = list(held.values())
        self.memory = _memory(self.tensors)
        self.read: list[Tensor] = [held[name] for name in (*POSITIONAL, "w_out" if whole == "w_val" else "w_val")]
        self.dtype, self.device = self.read[-1].dtype, self.read[-1].device
        self.waits = tokens.host_waits(self.device)
        self.states = [reads.state_of(tensor) for tensor in self.read] if self.waits else []
        arrays = [] if self.waits else [shared_array(tensor.detach()) for tensor in self.read]
        pairs = [(bytearray(view), view) for view in arrays[:-1]]  # a bytearray compares itself with memory
        pairs += [pair for matrices in arrays[-1:] for pair in identity_parts(matrices)]
        self.kept, self.views = [kept for kept, _ in pairs], [view for _, view in pairs]
        self.calls = BoundedCache(MOST_BYTES)

    def valid(self, layer: Any) -> bool:
        """Whether the parameters are the same tensors, at the same addresses, with the same numbers."""
        if (
            _ids(tensors_held_by(layer)) != self.ids
            or _memory(self.tensors) != self.memory
            or _code(layer) != self.code
        ):
            return False
        if self.waits:
            return None not in self.states and self.states == [reads.state_of(tensor) for tensor in self.read]
        return self.kept == self.views


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
    if entry is None or type(x) is not Tensor:
        return None
    if x.device != entry.device or x.dtype != entry.dtype:
        if entry.memory != _memory(entry.tensors):  # the layer was cast or moved: release its old numbers
            ENTRIES.pop(layer, None)
        return None
    call = entry.calls.get((run, x.shape, x.stride()))
    if (
        call is None
        or most_queries() is not None
        or transformed()
        or faked()
        or torch.is_autocast_enabled(x.device.type)
    ):
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
    return p.dtype in (torch.float32, torch.float64) and p.is_contiguous()


def _ids(tensors: dict[str, Any]) -> list[tuple[str, int]]:
    return [(name, id(tensor)) for name, tensor in tensors.items()]


def _memory(tensors: list[Tensor]) -> list[tuple[Any, ...]]:
    """The tensors' addresses and shapes, whether they are contiguous, and whether the memory holds the negatives."""
    return [(t.data_ptr(), t.shape, t.is_contiguous(), t.is_neg()) for t in tensors]


def _code(layer: Any) -> tuple[Any, ...]:
    """Everything else that a prepared call depends on: geometry, encoding and the code itself."""
    code = type(layer).position_vector, quadratic.r, quadratic.number
    geometry = tuple(vars(layer.geometry).values())  # an object that was changed in place would still equal itself
    return geometry, layer.radix, layer._encoding, type(layer), *code
