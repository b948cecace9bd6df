"""Calls in which tensors are not what they seem: under ``torch.func``, with forward-mode derivatives, fake, meta, or traced.

Where heads look is read off the numbers of ``v`` and ``w_key_pos``.  A transform wraps these numbers, and a fake tensor has none.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._C import _functorch
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad


def transformed() -> bool:
    """Whether a transform of ``torch.func`` is at work, or derivatives are carried forward."""
    return _functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


def numbers(t: Tensor) -> Tensor:
    """A tensor's numbers without the wrappers of ``torch.func``; mapped axes come first."""
    while _functorch.is_functorch_wrapped_tensor(t):
        inner = _functorch.get_unwrapped(t)
        t = inner.movedim(_functorch.maybe_get_bdim(t), 0) if _functorch.is_batchedtensor(t) else inner
    return t.detach()


def plain() -> bool:
    """Whether calls are ordinary ones: nothing is transformed, derived forward, faked or recorded."""
    modes, keys = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey
    return not transformed() and not traced() and modes(keys.FAKE) is None


def nonzero(t: Tensor) -> bool:
    """Whether any number is not zero; asked in every call, and numpy is the quickest to tell."""
    t = numbers(t)
    if t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64):
        return bool(t.numpy().any())
    return bool(t.any())


def common(t: Tensor) -> Tensor | None:
    """The numbers that all members of a mapped tensor share; None if they differ."""
    plain, dims = numbers(t), t.dim()
    while plain.dim() > dims:
        if not len(plain) or not plain.eq(plain[:1]).all():
            return None
        plain = plain[0]
    return plain


def is_batched(t: Tensor) -> bool:
    """Whether ``torch.func.vmap`` maps over it, under whatever other wrappers."""
    while _functorch.is_functorch_wrapped_tensor(t):
        if _functorch.is_batchedtensor(t):
            return True
        t = _functorch.get_unwrapped(t)
    return False


def abstract(*tensors: Tensor) -> bool:
    """Whether any of these has a shape and no numbers: fake, or on the meta device; or all that is made will be fake."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return True
    return any(isinstance(numbers(t), FakeTensor) or t.device.type == "meta" for t in tensors)


def traced() -> bool:
    """Whether a graph of operators is being recorded: by a compiler, ``torch.export``, ``torch.jit.trace`` or ``make_fx``."""
    proxies = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or proxies is not None


@contextmanager
def unrecorded() -> Iterator[None]:
    """Within, ``torch.jit.trace`` records nothing: shapes are numbers, and may be asked about without a warning."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[arg-type]
