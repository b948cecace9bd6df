"""Detects ``torch.func`` transforms, forward-mode derivatives, fake and meta tensors, and tracing.

Where heads look is read from the values of ``v`` and ``w_key_pos``.  A transform wraps these
values, and a fake tensor has none.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

_functorch = torch._C._functorch  # type: ignore[attr-defined]
_MODES = torch._C._TorchDispatchModeKey


def transformed() -> bool:
    """Whether a ``torch.func`` transform or forward-mode differentiation is active."""
    return _functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


def traced() -> bool:
    """Whether a graph is being recorded, by a compiler, ``torch.jit.trace`` or ``make_fx``."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._get_dispatch_mode(_MODES.PROXY) is not None
    )


def faked() -> bool:
    """Whether a fake-tensor mode is active, except under a compiler."""
    return (
        not torch.compiler.is_compiling() and torch._C._get_dispatch_mode(_MODES.FAKE) is not None
    )


def abstract(*tensors: Tensor) -> bool:
    """Whether any of these tensors has a shape but no values: fake, or on the meta device."""
    if torch.compiler.is_compiling():
        return False  # the compiler's tensors stand for real ones
    return any(t.device.type == "meta" or isinstance(_unwrapped(t)[0], FakeTensor) for t in tensors)


def plain() -> bool:
    """Whether operators run normally, without a transform, a fake mode or a trace but a compiler's."""
    return torch.compiler.is_compiling() or not (transformed() or traced() or faked())


@contextmanager
def eagerly() -> Iterator[None]:
    """Without traces, fake modes and transforms: results have values, and sizes are ints."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[arg-type]
    try:
        with torch._C._DisableFuncTorch(), _disable_current_modes():
            yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[arg-type]


def sizes_as_numbers() -> AbstractContextManager[None]:
    """Sizes that are read within the block are ints, also where ``torch.jit.trace`` records."""
    recording = not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None
    return eagerly() if recording else nullcontext()


def numbers(t: Tensor) -> Tensor:
    """A tensor's values without the wrappers of ``torch.func``; mapped axes come first."""
    if plain():
        return t.detach()
    t, axes = _unwrapped(t)
    with eagerly():
        t = t.detach()
        for place, axis in enumerate(axes):
            t = t.movedim(axis + place, place)
        return t


def _unwrapped(t: Tensor) -> tuple[Tensor, list[int]]:
    """The tensor inside all ``torch.func`` wrappers, and the axes that they map over."""
    axes: list[int] = []
    while _functorch.is_functorch_wrapped_tensor(t):
        if _functorch.is_batchedtensor(t):
            axes.insert(0, _functorch.maybe_get_bdim(t))
        t = _functorch.get_unwrapped(t)
    return t, axes


def is_batched(t: Tensor) -> bool:
    """Whether ``torch.func.vmap`` maps over a tensor."""
    return not torch.compiler.is_compiling() and bool(_unwrapped(t)[1])


def is_channels_last(x: Tensor) -> bool:
    """Whether channels are last in memory, in the dimensions for which torch has such a format.

    Not by torch's formats: a compiler may map, and then torch answers for one of them alone.
    """
    if x.dim() not in (4, 5) or is_batched(x):
        return False
    return x.movedim(1, -1).is_contiguous() and not x.is_contiguous()


def is_batched_by_autograd(t: Tensor) -> bool:
    """Whether a tensor is several gradients at once (``is_grads_batched``), by torch's older vmap."""
    return _functorch.is_legacy_batchedtensor(t)


def shared_array(t: Tensor) -> np.ndarray:
    """The very memory of a tensor on the CPU that records nothing.

    After ``numpy()`` torch never resizes the storage again, which is how FSDP frees parameters.
    """
    if torch.compiler.is_compiling():
        return t.numpy()  # a compiler knows this one alone
    return np.from_dlpack(t.resolve_neg())  # type: ignore[arg-type]  # dlpack drops a sign kept apart


def readable() -> AbstractContextManager[None]:
    """Values of tensors can be read within the block."""
    return nullcontext() if plain() else eagerly()


def nonzero_heads(t: Tensor) -> np.ndarray:
    """Whether any value of each head is nonzero: t (heads, …) → bool (heads,)."""
    values = numbers(t)
    mapped = values.dim() - t.dim()
    with readable():
        return np.array(values.movedim(mapped, 0).flatten(1).any(1).tolist())


def common(t: Tensor) -> Tensor | None:
    """The values that all members of a mapped tensor share; None if they differ."""
    values = numbers(t)
    with readable():
        while values.dim() > t.dim():
            if not len(values) or not values.eq(values[:1]).all():
                return None
            values = values[0]
    return values
