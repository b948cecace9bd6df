"""Weights that several modules share: they stay shared where attention layers can share them, and else it is said."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import nn

from construct.attention import MHSA
from construct.modules.parametrizations import folded
from construct.modules.traversal import Instead, every_module


def share_tied(replacements: Mapping[nn.Module, MHSA]) -> None:
    """Let layers whose convolutions share one weight (or bias) share it too, so that they stay tied in training."""
    seen: dict[tuple[object, ...], MHSA] = {}
    for conv, layer in replacements.items():
        g = layer.geometry
        # A parametrized weight is made anew at each look: no parameter, and its id says nothing.
        if "weight" in conv._parameters:
            first = seen.setdefault((id(conv.weight), g.groups, g.transposed), layer)
            order_agrees = first.v.shape == layer.v.shape
            if first is not layer and order_agrees and _equal(first, layer, "w_val", "w_out"):
                layer.w_val, layer.w_out = first.w_val, first.w_out
        if conv._parameters.get("bias") is not None:
            first = seen.setdefault((id(conv.bias),), layer)
            if _equal(first, layer, "b_out"):
                layer.b_out = first.b_out


def _equal(first: MHSA, second: MHSA, *names: str) -> bool:
    """Whether they have the same numbers now; of a file, those that were tied in the network may have come apart."""
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in names)


def untied(
    model: nn.Module, replacements: Mapping[nn.Module, MHSA], instead: Instead = MappingProxyType({})
) -> list[tuple[str, str]]:
    """(path, remark) for every parameter that modules of the original share and those of its conversion do not.

    A transposed convolution stores its kernel with the channels exchanged, and groups are stored as blocks: an attention
    layer cannot share these with others of another kind.  After :func:`share_tied`.
    """
    owners: dict[int, list[tuple[str, int]]] = {}
    """parameter → every (where, what it becomes)."""
    inside: set[int] = set()
    for path, module in every_module(model, instead):
        layer = replacements.get(module)
        if layer is None and id(module) in inside:  # a parametrization, told of with its convolution
            continue
        if layer is not None and folded(module):
            inside.update(id(part) for part in module.modules())
            found = [(name, p, id(layer)) for name, p in module.named_parameters(remove_duplicate=False)]
        else:
            own = {} if layer is None else {"weight": id(layer.w_val), "bias": id(layer.b_out)}
            found = [(name, p, own.get(name, 0)) for name, p in module._parameters.items() if p is not None]
        for name, parameter, becomes in found:
            owners.setdefault(id(parameter), []).append((f"{path}.{name}" if path else name, becomes))
    remarks = []
    for (first, target), *others in owners.values():
        apart = [where for where, other in others if other != target]
        if apart:
            path, _, name = first.rpartition(".")
            more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
            remarks.append(
                (path, f"{name} was shared with {apart[0]}{more}, and is no longer: both start from its value")
            )
    return remarks


def names_of(model: nn.Module, first: str, module: nn.Module) -> list[str]:
    """Every name that a module has in its network, the one by which it is known first."""
    found = [path for path, other in model.named_modules(remove_duplicate=False) if other is module]
    return list(dict.fromkeys([first, *found]))
