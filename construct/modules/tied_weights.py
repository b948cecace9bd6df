"""Tied weights: keeps them tied between attention layers where possible, and reports those that are
not.
"""

from collections.abc import Mapping

import torch
from torch import nn

from construct.attention import MHSA
from construct.modules.traversal import every_module, joined


def share_tied(replacements: Mapping[nn.Module, MHSA]) -> None:
    """Tie the layers of convolutions that share a weight or bias, so that they stay tied in
    training.
    """
    first_layer: dict[tuple[object, ...], MHSA] = {}
    for conv, layer in replacements.items():
        g = layer.geometry
        weight = ("weight", ("w_val", "w_out"), g.groups, g.transposed)
        for name, tensors, *layout in (weight, ("bias", ("b_out",))):
            # A parametrized weight is recomputed at each access: its id identifies nothing.
            parameter = conv._parameters.get(name)
            if parameter is None:
                continue
            first = first_layer.setdefault((id(parameter), *layout), layer)
            own = [getattr(first, tensor) for tensor in tensors]
            # A file may hold different values for weights that its network ties.
            if all(map(torch.equal, own, [getattr(layer, tensor) for tensor in tensors])):
                for tensor, value in zip(tensors, own, strict=True):
                    setattr(layer, tensor, value)


def untied_parameters(
    model: nn.Module, replacements: Mapping[nn.Module, MHSA]
) -> list[tuple[str, str]]:
    """(path, remark) for every parameter that was tied in the original and is not after conversion
    and :func:`share_tied`.

    A transposed convolution stores its kernel with channels exchanged, and groups are stored as
    blocks: attention layers cannot share these with layers of another kind.
    """
    owners: dict[int, list[tuple[str, int]]] = {}
    """parameter → (path, id of what replaces it: an attention tensor, or the layer of a parametrized
    convolution) for every use.
    """
    layers = {part: layer for conv, layer in replacements.items() for part in conv.modules()}
    for path, module in every_module(model):
        layer = layers.get(module)
        targets = {}
        if layer is not None:
            targets = {"weight": id(layer.w_val), "bias": id(layer.b_out)}
        for name, parameter in module._parameters.items():
            if parameter is not None:
                use = (joined(path, name), targets.get(name, id(layer)))
                owners.setdefault(id(parameter), []).append(use)
    remarks = []
    for (first, target), *others in owners.values():
        apart = [other for other, its_target in others if its_target != target]
        if apart:
            path, _, name = first.rpartition(".")
            more = f" and {len(apart) - 1} more" * (len(apart) > 1)
            remark = f"{name} was shared with {apart[0]}{more}, and is no longer: both start from its value"
            remarks.append((path, remark))
    return remarks


def paths_of(model: nn.Module, first: str, module: nn.Module) -> list[str]:
    """All paths of a module in its network, ``first`` first."""
    paths = [path for path, other in model.named_modules(remove_duplicate=False) if other is module]
    return list(dict.fromkeys([first, *paths]))
