"""Cache of prepared calls of each layer, valid while the parameters are unchanged.

Edits through ``.data`` or from outside torch leave no trace, so on a CPU every call compares, number
by number, what it was prepared from; elsewhere :mod:`construct.execution.reads` says what is
compared.  Only the bias and the factor that is not the identity may change.
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
from construct.execution.head_matrices import identity_parts
from construct.execution.plan import Plan
from construct.execution.transforms import plain, shared_array
from construct.tokens import TokenGrid
from construct.weights import NAMES

MOST_CALLS = 64
"""The most prepared calls of one layer: one for each shape and memory layout of the input."""
POSITIONAL = ("w_qry", "w_key", "u", "w_key_pos", "v")

Run = Callable[[Any, Tensor, TokenGrid], Tensor]
"""How an execution evaluates Eq. 3: any code, which reuses only its own prepared calls."""
Call = Callable[[Tensor], Tensor]
"""x (B, D_in, *n) → (B, D_out, *o).  It reads what may change at call time."""


class PreparedCalls:
    """The prepared calls of one layer: no content, all heads shifts by a plan, one factor ``whole``,
    the other an identity.
    """

    def __init__(self, layer: Any, plan: Plan, whole: str):
        held = tensors_held_by(layer)
        self.plan = plan
        self.whole = whole
        self.layout = _layout(layer)
        self.tensors = list(held.values())
        self.read: list[Tensor] = [
            held[name] for name in (*POSITIONAL, "w_out" if whole == "w_val" else "w_val")
        ]
        self.calls: dict[Any, Call] = {}
        self.waits = tokens.host_waits(self.read[-1].device)
        if self.waits:
            self.states = [reads.state_of(tensor) for tensor in self.read]
        else:
            *positional, matrices = (shared_array(tensor.detach()) for tensor in self.read)
            # a bytearray compares itself with memory
            pairs = [(bytearray(view), view) for view in positional]
            self.kept, self.views = zip(*pairs, *identity_parts(matrices), strict=True)

    def valid(self, layer: Any) -> bool:
        """Whether the parameters are the same tensors, in the same memory, with the same numbers."""
        if _layout(layer) != self.layout:
            return False
        if self.waits:
            return None not in self.states and self.states == [
                reads.state_of(tensor) for tensor in self.read
            ]
        return self.kept == self.views

    def differs(self, x: Tensor) -> bool:
        """Whether a call with x computes in another type, or differentiates what was read."""
        if torch.is_autocast_enabled(x.device.type):
            return True
        return torch.is_grad_enabled() and any(t.requires_grad for t in self.read)


ENTRIES: WeakKeyDictionary[Any, PreparedCalls] = WeakKeyDictionary()


def known(layer: Any, x: Tensor) -> PreparedCalls | None:
    """The prepared calls for inputs like x; None if what they were prepared from changed or learns."""
    entry = ENTRIES.get(layer)
    if entry is None or type(x) is not Tensor or not _usual() or entry.differs(x):
        return None
    if not entry.valid(layer):
        ENTRIES.pop(layer, None)  # another thread may already have removed it
        return None
    return entry


def cached(layer: Any, run: Run, x: Tensor) -> Call | None:
    """The prepared call for inputs of the shape and layout of x, if there is one."""
    entry = known(layer, x)
    return None if entry is None else entry.calls.get(_kind(run, x))


def keep(
    entry: PreparedCalls | None, layer: Any, run: Run, x: Tensor, plan: Plan, w: Tensor, call: Call
) -> None:
    """Cache a call of an execution's ``run`` in which all heads are shifts; w are their matrices
    W_h.
    """
    if plan.grid != TokenGrid.of(layer.geometry, tuple(x.shape[2:])):
        return
    if entry is None:
        whole = _factor_read_in_place(layer, w)
        if not whole or type(x) is not Tensor or not _usual():
            return
        entry = ENTRIES[layer] = PreparedCalls(layer, plan, whole)
    if len(entry.calls) >= MOST_CALLS:
        entry.calls.clear()
    entry.calls[_kind(run, x)] = call


def _kind(run: Run, x: Tensor) -> tuple[Any, ...]:
    return run, x.shape, x.stride(), x.dtype, x.device


def tensors_held_by(layer: Any) -> dict[str, Any]:
    """The tensors of a layer by name; ``b_out`` of a layer without a bias is a buffer."""
    return {**layer._buffers, **layer._parameters}


def _usual() -> bool:
    """Whether operators run normally, on blocks of any size."""
    return most_queries() is None and plain()


def _factor_read_in_place(layer: Any, w: Tensor) -> str:
    """The factor that is w, if all tensors of the layer are read where they are; "" if w, or any
    other, is computed from them.
    """
    held = tensors_held_by(layer)
    if held.keys() != {*NAMES} or not all(map(_plain, held.values())):
        return ""
    if any(type(p) is not Parameter for p in layer._parameters.values()):
        return ""  # put there for this call by functional_call
    if any(held[name].dtype != w.dtype for name in ("w_val", "w_out", "b_out")):
        return ""  # one of them was cast, so the call uses a copy
    return next((name for name in ("w_val", "w_out") if w is held[name]), "")


def _plain(p: Tensor | None) -> bool:
    if p is None or type(p) not in (Parameter, Tensor) or p.is_neg():
        return False
    return p.dtype in (torch.float32, torch.float64) and p.is_contiguous()


def _layout(layer: Any) -> list[Any]:
    """All that a prepared call depends on besides numbers."""
    held = tensors_held_by(layer).items()
    memory = [
        (name, id(t), t.data_ptr(), t.shape, t.is_contiguous(), t.is_neg()) for name, t in held
    ]
    # a call takes it before a radix
    own = "own_encoding" in vars(layer) or "own_encoding" in layer._modules
    code = own, type(layer), type(layer).position_vector, quadratic.r, quadratic.number
    # An object that was changed in place would still equal itself.
    return [memory, tuple(vars(layer.geometry).values()), layer.radix, layer._encoding, *code]
