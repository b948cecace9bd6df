"""What was read from a layer's tensors, kept while they are unchanged: for devices where the host
waits for what it reads.

On a CPU every call compares numbers.  Elsewhere it compares which tensor it is, where its memory is,
and how many in-place changes torch has counted (``_version``).  Fused optimizers are not counted,
so their steps count too; nor is what a training loop writes into ``.data``, so what is learned is
read in every call.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter
from torch.nn.utils import parametrize
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

import construct.tokens as tokens

T = TypeVar("T")

ADDED_HEADS = "construct.modules.added_heads.AddedHeads"
"""The parametrization that tells which rows are frozen; its module imports this one."""

_RESULTS: WeakKeyDictionary[Any, dict[Any, tuple[Any, Tensor, Any]]] = WeakKeyDictionary()
"""For each layer, by name and function: the tensor's state, the tensor itself, and what was read."""
_IDS: set[int] = set()
"""The tensors with a state since ``_STEPS`` was last counted up."""
_STEPS = [0]
"""How often one of them may have changed unseen: by an optimizer, or while it was learned."""


def frozen_rows(layer: Any, name: str) -> Tensor:
    """The layer's tensor of this name, but without heads that were added to learn, which come last
    (:class:`construct.modules.added_heads.AddedHeads`).
    """
    if not hasattr(type(layer), name):  # a plain tensor, whatever stands beside it
        return getattr(layer, name)
    computed: Any = layer._modules.get("parametrizations", ())
    # Another parametrization may change these rows, and so do old ones from torch's cache.
    kinds = [type(by) for by in computed[name]] if name in computed else []
    named = [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]
    if named == [ADDED_HEADS] and not parametrize._cache_enabled:
        kept = computed[name][0].kept
        # rows after those of w_qry belong to heads with content, of which nothing is read
        if name == "w_qry" or len(kept) >= len(frozen_rows(layer, "w_qry")):
            return kept
    return getattr(layer, name)


def once(layer: Any, name: str, function: Callable[..., T], *arguments: Any) -> T:
    """Call ``function`` on :func:`frozen_rows`; where that waits, only if they may have changed."""
    tensor = frozen_rows(layer, name)
    state = state_of(tensor) if tokens.host_waits(tensor.device) else None
    if state is None:
        return function(tensor, *arguments)
    results = _RESULTS.setdefault(layer, {})
    key = name, function, arguments
    entry = results.get(key)
    if entry is None or entry[0] != state:
        entry = results[key] = state, tensor, function(tensor, *arguments)
    return entry[2]


def state_of(tensor: Tensor) -> Any:
    """What differs after a parameter has changed; None if it is learned, or counts no changes."""
    if type(tensor) is not Parameter or is_learned(tensor) or tensor.is_inference():
        return None
    _watch_optimizers()
    _IDS.add(id(tensor))
    # while it exists, no other storage gets this number
    storage = StorageWeakRef(tensor.untyped_storage())
    layout = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_neg()
    return _STEPS[0], id(tensor), storage, tensor._version, layout


def is_learned(tensor: Tensor) -> bool:
    """Whether a tensor is learned; if so, what was read while it was frozen holds no longer."""
    if tensor.requires_grad and id(tensor) in _IDS:
        _invalidate()
    return tensor.requires_grad


def _invalidate() -> None:
    _IDS.clear()
    _STEPS[0] += 1


@cache
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    """Invalidate all states if the step may have changed a tensor that has one."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not _IDS.isdisjoint({id(p) for p in parameters if p.requires_grad or p.grad is not None}):
        _invalidate()
