"""The eval-mode weight of a parametrized convolution: weight_norm, spectral_norm, orthogonal,
pruning and other parametrizations.

The weight is recomputed, because the attribute that the older, hook-based methods leave on the
module may be stale.  The module is not changed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def is_weight_hook(hook: object) -> bool:
    """Whether a forward pre-hook is torch's own, and only recomputes the weight (or bias)."""
    if type(hook) in (WeightNorm, SpectralNorm):
        return True
    return isinstance(hook, BasePruningMethod) and all(
        getattr(type(hook), name) is getattr(BasePruningMethod, name)
        for name in ("__call__", "apply_mask")
    )


def weight_hooks(conv: nn.Module) -> list[Any]:
    """The forward pre-hooks of the older weight_norm, spectral_norm and pruning, in order."""
    return [hook for hook in conv._forward_pre_hooks.values() if is_weight_hook(hook)]


@contextmanager
def eval_mode(conv: nn.Module) -> Iterator[None]:
    """Put a module into eval mode within the block: in training mode, reading a weight under
    ``spectral_norm`` updates it.
    """
    modes = [(module, module.training) for module in conv.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def effective_weight(conv: nn.Module, calls: int = 1) -> tuple[Any, Any]:
    """The weight and the bias (or None) with which this many calls in eval mode end.

    Gradients are enabled, so that ``requires_grad`` of a computed weight is that of its parameters.
    Autocast, which would round matrix products to half precision, is off.
    """
    hooks = weight_hooks(conv)
    devices = {tensor.device.type for tensor in (*conv.parameters(), *conv.buffers())}
    device = next(filter(torch.amp.is_autocast_available, devices - {"cpu"}), "cpu")
    called: Any = conv
    with eval_mode(conv), torch.enable_grad(), torch.autocast(device, enabled=False):
        if hooks:  # which write to a shallow copy
            called = type(conv).__new__(type(conv))
            vars(called).update(vars(conv), _buffers=dict(conv._buffers))
        for hook in hooks * calls:
            hook(called, None)
        return called.weight, called.bias
