"""Attention layers to and from safetensors and state dicts: named tensors, and the geometry record
in the metadata.
"""

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from construct.attention import MHSA
from construct.errors import BadModelFile
from construct.files.isolation import refusing
from construct.modules.traversal import joined
from construct.weights import NAMES, MHSAWeights
from construct.weights.record import GEOMETRY, read_record, record_of


def to_safetensors(model: nn.Module) -> bytes:
    """A network's state dict as safetensors bytes, with the geometry of its attention layers in the
    metadata.
    """
    from safetensors.torch import save

    # Tied tensors are written once per name: the format cannot share them.
    tensors = {
        name: value.contiguous().clone()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)  # no extra state
    }
    records = {path: record_of(layer) for path, layer in attention_in(model).items()}
    return save(tensors, {GEOMETRY: json.dumps(records)})


def attention_in(model: nn.Module) -> dict[str, MHSA]:
    """The attention layers of a network, under all of their paths."""
    return {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, MHSA)
    }


def records_in(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The geometry records in a state dict, by layer path."""
    by_path = getattr(state, "_metadata", None)
    if not isinstance(by_path, Mapping):
        return {}
    # Metadata may outlive all tensors of a layer that was removed from the state dict; a part of
    # them is no layer.
    left = {path for path, _, name in (key.rpartition(".") for key in state) if name in NAMES}
    return {
        path: entry[GEOMETRY]
        for path, entry in by_path.items()
        if isinstance(entry, Mapping) and GEOMETRY in entry and path in left
    }


def layer_of(path: str, state: Mapping[str, Tensor], record: Any, **more: Any) -> MHSA:
    """The attention layer whose tensors a state dict holds under a path; ``more`` replaces what the
    record says.

    Raises:
        BadModelFile: geometry and tensors do not fit together, or a tensor is missing.
    """
    remedy = ""
    if any(key.startswith(joined(path, "parametrizations.")) for key in state):
        remedy = "construct.modules.learning.settle makes plain tensors of parametrized ones"

    def tensor(name: str) -> Tensor:
        if joined(path, name) not in state:
            raise ValueError(f"no tensor {joined(path, name)!r}")
        return state[joined(path, name)]

    with refusing("its geometry and its tensors do not fit together: ", remedy):
        arguments = read_record(record, tensor)
        tensors = {name: tensor(name).detach().clone() for name in NAMES}
        if not all(part.is_floating_point() for part in tensors.values()):
            raise ValueError("a tensor is not of floating-point numbers")
        return MHSA(weights=MHSAWeights(**tensors), **{**arguments, **more})


def as_network(layers: Mapping[str, nn.Module]) -> nn.Module:
    """Bare modules nested by path, with the layers as leaves and no forward; a single layer at the
    path "" is returned as it is.

    Raises:
        BadModelFile: a layer's path lies inside another's.
    """
    if layers.keys() == {""}:
        return layers[""]
    root: Any = nn.Module()
    leaves = set(layers.values())
    for path, layer in layers.items():
        parent = root
        *outer, last = path.split(".")
        for name in outer:
            parent = parent._modules.setdefault(name, nn.Module())
            if parent in leaves:
                break
        if not path or last in parent._modules or parent in leaves:
            raise BadModelFile(
                f"the path of the layer {path!r:.80} overlaps that of another one",
                option="give --arch",
            )
        parent._modules[last] = layer  # add_module would refuse some names that files have
    return root
