"""Which parametrizations of a convolution are folded into its weight, and the plain convolution
with that weight.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod, PruningContainer

from construct.modules.parametrizations import effective_weight, weight_hooks


def parametrization_names(conv: nn.Module) -> tuple[str, ...]:
    """The parametrizations of a convolution, in words: ``("WeightNorm of weight",)``; empty for a
    plain one.
    """
    parts = list[tuple[object, str]]()
    for hook in weight_hooks(conv):
        methods = list(hook) if isinstance(hook, PruningContainer) else [hook]
        name = hook._tensor_name if isinstance(hook, BasePruningMethod) else hook.name
        parts += [(method, name) for method in methods]
    for name, chain in getattr(conv, "parametrizations", {}).items():
        parts += [(module, name) for module in chain]
    # torch's own are called _WeightNorm, too
    return tuple(f"{type(part).__name__.lstrip('_')} of {name}" for part, name in parts)


def plain_convolution(conv: nn.Module) -> nn.Module:
    """An unparametrized convolution with the eval-mode weight of ``conv``; ``conv`` itself if it is
    not parametrized.

    Certificates are about this one: they do not cover how a weight is computed.
    """
    if not parametrization_names(conv):
        return conv
    base = next(cls for cls in type(conv).__mro__ if cls.__module__ == nn.Conv2d.__module__)
    plain: Any = object.__new__(base)
    nn.Module.__init__(plain)
    registers = vars(plain).keys()
    for name, value in vars(conv).items():
        if name not in registers and not isinstance(value, torch.Tensor):
            setattr(plain, name, value)
    for name, tensor in zip(("weight", "bias"), effective_weight(conv), strict=True):
        setattr(plain, name, None if tensor is None else nn.Parameter(tensor.detach().clone()))
    return plain.train(conv.training)
