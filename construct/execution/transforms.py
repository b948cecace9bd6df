"""Detects ``torch.func`` transforms, forward-mode derivatives, fake and meta tensors, and tracing.

Where heads look is read off the numbers of ``v`` and ``w_key_pos``.  A transform wraps these numbers, and a fake tensor has none.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

_functorch = torch._C._functorch  # type: ignore[attr-defined]
_MODES = torch._C._TorchDispatchModeKey


def transformed() -> bool:
    """Whether a transform of ``torch.func`` is at work, or derivatives are carried forward."""
    return _functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


def traced() -> bool:
    """Whether a graph of operators is being recorded: by a compiler, ``torch.export``, ``torch.jit.trace`` or ``make_fx``."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._get_dispatch_mode(_MODES.PROXY) is not None
    )


def jit_traced() -> bool:
    """Whether ``torch.jit.trace`` is recording: sizes are then tensors."""
    return not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None


def faked() -> bool:
    """Whether all that operators make is fake."""
    return not torch.compiler.is_compiling() and torch._C._get_dispatch_mode(_MODES.FAKE) is not None


def abstract(*tensors: Tensor) -> bool:
    """Whether any of these has a shape and no numbers: fake, or on the meta device."""
    if torch.compiler.is_compiling():
        return False  # its tensors stand for ones with numbers
    return any(t.device.type == "meta" or isinstance(_unwrapped(t)[0], FakeTensor) for t in tensors)


def plain() -> bool:
    """Whether operators run as they are: no transform, forward derivative, fake mode or trace but a compiler's is active."""
    return torch.compiler.is_compiling() or not (transformed() or traced() or faked())


@contextmanager
def eagerly() -> Iterator[None]:
    """Switch traces, fake modes and transforms off within the block: results have numbers, and sizes are ints."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[arg-type]
    try:
        with torch._C._DisableFuncTorch(), _disable_current_modes():
            yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[arg-type]


def numbers(t: Tensor) -> Tensor:
    """A tensor's numbers without the wrappers of ``torch.func``; mapped axes come first."""
    if plain():
        return t.detach()
    t, axes = _unwrapped(t)
    with eagerly():
        t = t.detach()
        for place, axis in enumerate(axes):
            t = t.movedim(axis + place, place)
        return t


def _unwrapped(t: Tensor) -> tuple[Tensor, list[int]]:
    """What is in all wrappers of ``torch.func``; and from the innermost on, which of the axes left each of them maps over."""
    axes: list[int] = []
    while _functorch.is_functorch_wrapped_tensor(t):
        if _functorch.is_batchedtensor(t):
            axes.insert(0, _functorch.maybe_get_bdim(t))
        t = _functorch.get_unwrapped(t)
    return t, axes


def is_batched(t: Tensor) -> bool:
    """Whether ``torch.func.vmap`` maps over it."""
    return not torch.compiler.is_compiling() and bool(_unwrapped(t)[1])


def nonzero(t: Tensor) -> bool:
    """Whether any number is not zero; asked in every call, and numpy is the quickest to tell."""
    t = numbers(t)
    with nullcontext() if plain() else eagerly():
        if t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64):
            return bool(t.numpy().any())
        return bool(t.any())


def common(t: Tensor) -> Tensor | None:
    """The numbers that all members of a mapped tensor share; None if they differ."""
    values, dims = numbers(t), t.dim()
    if values.dim() > dims:
        with eagerly():
            while values.dim() > dims:
                if not len(values) or not values.eq(values[:1]).all():
                    return None
                values = values[0]
    return values
