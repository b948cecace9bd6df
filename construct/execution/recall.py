"""What calls found out about a layer, for the next call: as long as it holds the very same numbers.

To look a layer over takes longer than a small product: whether content is off, where its heads look, which factor is the
identity, how the input lies.  Numbers may be edited through ``.data`` or from outside torch, which leaves no trace, so what was
found is believed only while every number that it was read from is the same, bit by bit; that is compared in every call.
Only the factor that is not the identity, and the bias, may change: they are read by the call itself.
"""

from collections.abc import Callable
from operator import attrgetter, eq
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from construct.attention import EXECUTIONS, MHSA, RECALLING, blocks_are_usual, memory_format
from construct.encoding import quadratic as encoding
from construct.execution.merging import as_bits, beside_identities
from construct.tokens import TokenGrid
from construct.weights import NAMES

MOST = 64
"""Inputs of so many shapes are remembered of a layer."""
OWN: dict[str, Any] = {}
"""The executions whose calls are remembered, and what runs them: of any other code by that name nothing is known.  Filled in by
:mod:`construct.execution`."""
SHAPE = attrgetter("shape")
LOOKED_AT = ("w_qry", "w_key", "u", "w_key_pos", "v")

Work = Callable[[Tensor], Tensor]
"""What is left to do once everything is known.  It reads the whole factor and the bias as they are when it is called."""


class Known:
    """What one layer is known to be: content off, its heads shifts, one factor the identity.

    Args:
        layer: on the CPU, in float32 or float64.
        whole: the factor that is a head's whole matrix.
    """

    def __init__(self, layer: MHSA, whole: str):
        self.whole, other = whole, "w_out" if whole == "w_val" else "w_val"
        self.names = list(layer._parameters)
        self.tensors = [getattr(layer, name) for name in self.names]
        self.ids, self.lying, self.made_of = list(map(id, self.tensors)), _lying(self.tensors), _made_of(layer)
        identity: Tensor = getattr(layer, other)
        self.dtype = identity.dtype
        self.views = [getattr(layer, name).detach().numpy() for name in LOOKED_AT]
        self.kept = [bytearray(view.tobytes()) for view in self.views]
        for like, view in beside_identities(as_bits(identity), identity.shape[-1], identity.dtype):
            self.kept.append(like)
            self.views.append(view)
        self.calls: dict[Any, tuple[torch.memory_format, Work]] = {}

    def holds(self, layer: MHSA) -> bool:
        """Whether all of it is still so: the same parameters in the same places, and in these the same numbers."""
        now = layer._parameters
        return (
            list(now) == self.names
            and list(map(id, now.values())) == self.ids
            and _lying(self.tensors) == self.lying
            and _made_of(layer) == self.made_of
            and all(map(eq, self.kept, self.views))  # what lies in memory
        )


KNOWN: WeakKeyDictionary[MHSA, Known] = WeakKeyDictionary()


def remember(layer: MHSA, x: Tensor, grid: TokenGrid, w: Tensor, work: Work) -> None:
    """After a call without gradients whose heads were all shifts.

    Args:
        layer: whose call.
        x: (B, D_in, *n).
        grid: of the call.
        w: W_h of the heads.
        work: what was done then.
    """
    held = layer._parameters
    whole = next((name for name in ("w_val", "w_out") if w is held.get(name)), "")
    # A factor in half precision, tensors worked out from others, a grid for a wanted output size: all that is looked over anew.
    if not whole or len(held) != len(NAMES) or type(x) is not Tensor or not all(map(_plain, held.values())):
        return
    if any(getattr(layer, name).dtype != w.dtype for name in ("w_val", "w_out", "b_out")):
        return  # one of them was converted: what was worked with is a copy
    if not _own(layer) or not blocks_are_usual():
        return
    if grid is not TokenGrid.of(layer.geometry, tuple(x.shape[2:])):
        return
    known = KNOWN.get(layer)
    if known is None or known.whole != whole or not known.holds(layer):
        known = KNOWN[layer] = Known(layer, whole)
    if len(known.calls) >= MOST:
        known.calls.clear()
    known.calls[layer._execution, x.shape, x.stride()] = memory_format(x), work


def recall(layer: MHSA, x: Tensor) -> Tensor | None:
    """The call once more, without looking the layer over: (B, D_in, *n) → (B, D_out, *o); None if anything is not as it was."""
    known = KNOWN.get(layer)
    if known is None or type(x) is not Tensor or torch.is_autocast_enabled("cpu"):
        return None
    if not x.is_cpu or x.dtype != known.dtype:
        if known.lying != _lying(known.tensors):  # the layer was converted or moved: its former numbers are let go
            KNOWN.pop(layer, None)
        return None
    call = known.calls.get((layer._execution, x.shape, x.stride()))
    if call is None or not _own(layer):
        return None
    if forward_ad._current_level >= 0:  # derivatives are carried along
        return None
    if not blocks_are_usual():
        return None
    if torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in known.tensors)):
        return None
    if not known.holds(layer):
        KNOWN.pop(layer, None)  # another thread may have been quicker
        return None
    lying, work = call
    return work(x).contiguous(memory_format=lying)


def _own(layer: MHSA) -> bool:
    """Whether the execution in use is one whose calls are remembered."""
    own = OWN.get(layer._execution)
    return own is not None and EXECUTIONS[layer._execution].run is own


def _plain(p: Tensor | None) -> bool:
    return type(p) is Parameter and p.is_cpu and p.dtype in (torch.float32, torch.float64) and p.is_contiguous()


def _lying(tensors: list[Tensor]) -> list[Any]:
    """Where tensors begin in memory, their shapes and whether they are contiguous."""
    return [*map(Tensor.data_ptr, tensors), *map(SHAPE, tensors), *map(Tensor.is_contiguous, tensors)]


def _made_of(layer: MHSA) -> tuple[Any, ...]:
    """What else decides; and the very code, since what is known holds for it."""
    code = type(layer).position_vector, encoding.r, encoding.number
    return layer.geometry, layer.radix, layer._encoding, type(layer), *code


RECALLING.append(recall)
