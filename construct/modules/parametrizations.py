"""Convolutions whose weight is worked out from other tensors: weight_norm, spectral_norm, orthogonal, pruning and their like.

What is converted is the weight with which the convolution computes in eval mode, worked out anew: the attribute that the older
ways leave on the module may be that of an earlier call.  Nothing of the module is changed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod, PruningContainer
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

TENSORS = ("weight", "bias")


def is_remaking(hook: object) -> bool:
    """Whether a forward pre-hook is torch's own, and does nothing but make the weight (or bias) anew from others."""
    if type(hook) in (WeightNorm, SpectralNorm):
        return True
    own = (PruningContainer, BasePruningMethod)
    return isinstance(hook, own) and all(
        getattr(type(hook), name) is getattr(BasePruningMethod, name) for name in ("__call__", "apply_mask")
    )


def remaking_hooks(conv: nn.Module) -> list[Any]:
    """The forward pre-hooks by which the older weight_norm, spectral_norm and pruning work, in their order."""
    return [hook for hook in conv._forward_pre_hooks.values() if is_remaking(hook)]


def folded(conv: nn.Module) -> tuple[str, ...]:
    """What a convolution's weight and bias are worked out by: ``("weight_norm of weight",)``; empty for an ordinary one."""
    found = []
    for hook in remaking_hooks(conv):
        methods = list(hook) if isinstance(hook, PruningContainer) else [hook]
        name = hook._tensor_name if isinstance(hook, BasePruningMethod) else hook.name
        found += [f"{_spoken(method)} of {name}" for method in methods]
    for name, chain in getattr(conv, "parametrizations", {}).items():
        found += [f"{_spoken(module)} of {name}" for module in chain]
    return tuple(found)


def _spoken(method: object) -> str:
    """The name under which people know it: ``_WeightNorm`` and ``WeightNorm`` are made by ``weight_norm``."""
    kind = type(method).__name__.lstrip("_")
    if isinstance(method, BasePruningMethod):
        return f"pruning ({kind})"
    return {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm", "Orthogonal": "orthogonal"}.get(kind, kind)


@contextmanager
def at_rest(conv: nn.Module) -> Iterator[None]:
    """Put a module into eval mode while it is read: in training, a mere look at a weight under ``spectral_norm`` moves it."""
    modes = [(module, module.training) for module in conv.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def settled(conv: nn.Module) -> Iterator[Any]:
    """The convolution in eval mode with the weight with which it then computes; itself, or a shallow copy of it.

    The tensors know their parameters also where gradients are switched off, so that ``requires_grad`` is that of these.
    """
    hooks = remaking_hooks(conv)
    with at_rest(conv), torch.enable_grad():
        if not hooks:
            yield conv
            return
        copied = type(conv).__new__(type(conv))
        registers = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(conv).items()}
        vars(copied).update(registers)
        for hook in hooks:
            hook(copied, None)
        yield copied


def plain(conv: nn.Module) -> nn.Module:
    """One of torch's own convolutions with the weight that ``conv`` has in eval mode; ``conv`` itself if that is what it is.

    What is certified is this one: no certificate can speak of what works a weight out.
    """
    if not folded(conv):
        return conv
    base = next(cls for cls in type(conv).__mro__ if cls.__module__ == nn.Conv2d.__module__)
    made: Any = object.__new__(base)
    nn.Module.__init__(made)
    registers = vars(made).keys()
    with settled(conv) as still, torch.no_grad():
        for name, value in vars(still).items():
            if name not in registers and not isinstance(value, torch.Tensor):
                setattr(made, name, value)
        for name in TENSORS:
            tensor = getattr(still, name)
            setattr(made, name, None if tensor is None else nn.Parameter(tensor.detach().clone()))
    return made.train(conv.training)


def is_parametrized(conv: nn.Module, name: str) -> bool:
    """Whether ``torch.nn.utils.parametrize`` works this tensor out."""
    return parametrize.is_parametrized(conv, name)
