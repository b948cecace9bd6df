"""Cache of prepared calls of each layer, valid while the parameters are unchanged.

Edits through ``.data`` or from outside torch leave no trace, so on a CPU every call compares, number
by number, what it was prepared from; elsewhere :mod:`construct.execution.reads` says what is
compared.  Only the bias and the factor that is not the identity may change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class PreparedCalls:
    """The prepared calls of one layer without content, whose heads are all shifts.

    Attributes:
        plan: where they look.
        whole: the factor that is the matrix of each head, as the other is the identity.
        layout, kept: what the calls depend on; ``now`` returns what ``kept`` must still be.
        tensors: the layer's tensors, whose ids are not reused while they exist.
        read: those whose numbers may not change.
        calls: the calls, by :func:`_kind`.
    """

    plan: Plan
    whole: str
    layout: list[Any]
    tensors: list[Tensor]
    read: list[Tensor]
    kept: Sequence[Any]
    now: Callable[[], Sequence[Any]]
    calls: dict[Any, Call] = field(default_factory=dict)


ENTRIES: WeakKeyDictionary[Any, PreparedCalls] = WeakKeyDictionary()


def known(layer: Any, x: Tensor) -> PreparedCalls | None:
    """The prepared calls for inputs like x; None if what they were prepared from changed or learns."""
    entry = ENTRIES.get(layer)
    if entry is None or not _usual(x) or torch.is_autocast_enabled(x.device.type):
        return None
    if torch.is_grad_enabled() and any(t.requires_grad for t in entry.read):
        return None
    if _layout(layer) != entry.layout or entry.kept != entry.now():
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
    """Cache a call of an execution's ``run`` of shifts by plan; w are their matrices W_h."""
    if plan.grid != TokenGrid.of(layer.geometry, tuple(x.shape[2:])) or not _usual(x):
        return
    entry = entry or _prepared(layer, plan, w)
    if entry is None:
        return
    if len(entry.calls) >= MOST_CALLS:
        entry.calls.clear()
    entry.calls[_kind(run, x)] = call


def _prepared(layer: Any, plan: Plan, w: Tensor) -> PreparedCalls | None:
    """A new entry; None if no factor is w, or one of the layer's tensors is computed or cast."""
    held = _held(layer)
    whole = [name for name in ("w_val", "w_out") if w is held.get(name)]
    if not whole or not _as_stored(layer, w.dtype):
        return None
    read = [held[name] for name in (*POSITIONAL, *{"w_val", "w_out"}.difference(whole))]
    if tokens.host_waits(w.device):

        def now() -> Sequence[Any]:
            return [reads.state_of(tensor) for tensor in read]

        kept = now()
        if None in kept:
            return None
    else:
        *positional, identity = (shared_array(tensor.detach()) for tensor in read)
        # a bytearray compares itself with memory
        pairs = [(bytearray(view), view) for view in positional]
        kept, views = zip(*pairs, *identity_parts(identity), strict=True)

        def now() -> Sequence[Any]:
            return views

    entry = PreparedCalls(plan, whole[0], _layout(layer), [*held.values()], read, kept, now)
    ENTRIES[layer] = entry
    return entry


def _as_stored(layer: Any, dtype: torch.dtype) -> bool:
    """Whether all tensors are the layer's own, and the sum's are not cast."""
    held = _held(layer)
    return held.keys() == {*NAMES} and all(
        # functional_call puts tensors in the place of parameters
        type(t) is (Parameter if name in layer._parameters else Tensor)
        and t.dtype in (torch.float32, torch.float64)
        and (t.dtype == dtype or name not in ("w_val", "w_out", "b_out"))
        and t.is_contiguous()
        and not t.is_neg()
        for name, t in held.items()
    )


def _kind(run: Run, x: Tensor) -> tuple[Any, ...]:
    return run, x.shape, x.stride(), x.dtype, x.device


def _held(layer: Any) -> dict[str, Any]:
    """The tensors of a layer by name; ``b_out`` of a layer without a bias is a buffer."""
    return {**layer._buffers, **layer._parameters}


def _usual(x: Tensor) -> bool:
    """Whether operators run normally on x, on blocks of any size."""
    return type(x) is Tensor and most_queries() is None and plain()


def _layout(layer: Any) -> list[Any]:
    """All that a prepared call depends on besides numbers."""
    memory = [
        (name, id(t), t.data_ptr(), t.shape, t.is_contiguous(), t.is_neg())
        for name, t in _held(layer).items()
    ]
    # a call takes it before a radix
    own = "own_encoding" in vars(layer) or "own_encoding" in layer._modules
    code = own, type(layer), type(layer).position_vector, quadratic.r, quadratic.number
    # An object that was changed in place would still equal itself.
    return [memory, tuple(vars(layer.geometry).values()), layer.radix, layer._encoding, *code]
