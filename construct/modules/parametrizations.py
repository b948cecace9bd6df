"""The eval-mode weight of a parametrized convolution: weight_norm, spectral_norm, orthogonal, pruning and other parametrizations.

The weight is recomputed, because the attribute that the older, hook-based methods leave on the module may be stale.  The module
is not changed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod, PruningContainer
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def is_weight_hook(hook: object) -> bool:
    """Whether a forward pre-hook is torch's own, and only recomputes the weight (or bias)."""
    if type(hook) in (WeightNorm, SpectralNorm):
        return True
    own = (PruningContainer, BasePruningMethod)
    return isinstance(hook, own) and all(
        getattr(type(hook), name) is getattr(BasePruningMethod, name) for name in ("__call__", "apply_mask")
    )


def weight_hooks(conv: nn.Module) -> list[Any]:
    """The forward pre-hooks of the older weight_norm, spectral_norm and pruning, in order."""
    return [hook for hook in conv._forward_pre_hooks.values() if is_weight_hook(hook)]


def parametrization_names(conv: nn.Module) -> tuple[str, ...]:
    """The parametrizations of a convolution, in words: ``("weight_norm of weight",)``; empty for a plain one."""
    names = []
    for hook in weight_hooks(conv):
        methods = list(hook) if isinstance(hook, PruningContainer) else [hook]
        name = hook._tensor_name if isinstance(hook, BasePruningMethod) else hook.name
        names += [f"{_display_name(method)} of {name}" for method in methods]
    for name, chain in getattr(conv, "parametrizations", {}).items():
        names += [f"{_display_name(module)} of {name}" for module in chain]
    return tuple(names)


def _display_name(method: object) -> str:
    """The name of torch's function for a parametrization: ``weight_norm`` for ``_WeightNorm`` and ``WeightNorm``."""
    kind = type(method).__name__.lstrip("_")
    if isinstance(method, BasePruningMethod):
        return f"pruning ({kind})"
    return {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm", "Orthogonal": "orthogonal"}.get(kind, kind)


@contextmanager
def eval_mode(conv: nn.Module) -> Iterator[None]:
    """Put a module into eval mode within the block: in training mode, reading a weight under ``spectral_norm`` updates it."""
    modes = [(module, module.training) for module in conv.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def with_effective_weight(conv: nn.Module) -> Iterator[Any]:
    """A convolution in eval mode with its eval-mode weight: the module itself, or a shallow copy of it.

    Gradients are enabled, so that ``requires_grad`` of a computed weight is that of its parameters.  Autocast, which would round
    matrix products to half precision, is off.
    """
    hooks = weight_hooks(conv)
    devices = {tensor.device.type for tensor in (*conv.parameters(), *conv.buffers())}
    device = next(filter(torch.amp.is_autocast_available, devices - {"cpu"}), "cpu")
    with eval_mode(conv), torch.enable_grad(), torch.autocast(device, enabled=False):
        if not hooks:
            yield conv
            return
        copied = type(conv).__new__(type(conv))
        registers = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(conv).items()}
        vars(copied).update(registers)
        for hook in hooks:
            hook(copied, None)
        yield copied


def plain_convolution(conv: nn.Module) -> nn.Module:
    """An unparametrized convolution with the eval-mode weight of ``conv``; ``conv`` itself if it is not parametrized.

    Certificates are about this one: they do not cover how a weight is computed.
    """
    if not parametrization_names(conv):
        return conv
    base = next(cls for cls in type(conv).__mro__ if cls.__module__ == nn.Conv2d.__module__)
    plain: Any = object.__new__(base)
    nn.Module.__init__(plain)
    registers = vars(plain).keys()
    with with_effective_weight(conv) as source, torch.no_grad():
        for name, value in vars(source).items():
            if name not in registers and not isinstance(value, torch.Tensor):
                setattr(plain, name, value)
        for name in ("weight", "bias"):
            tensor = getattr(source, name)
            setattr(plain, name, None if tensor is None else nn.Parameter(tensor.detach().clone()))
    return plain.train(conv.training)
