"""Attention layers as tensors by name, with the record of their geometry beside them: in safetensors, and in a state dict."""

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from construct.attention import MHSA
from construct.errors import BadModelFile, one_line
from construct.files.containers import strict_json
from construct.weights import GEOMETRY, NAMES, MHSAWeights, read_record, record_of


def to_safetensors(model: nn.Module) -> bytes:
    """Every tensor of a network's state dict, with the geometry of its attention layers in the metadata.

    Returns:
        The content of a safetensors file.
    """
    from safetensors.torch import save

    # Tied tensors are written once for each name: the format has no notion of sharing.
    state = {
        name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)
    }  # no extra state
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in state.items()}
    records = {path: record_of(layer.geometry, layer.encoding) for path, layer in attention_in(model).items()}
    return save(tensors, {GEOMETRY: json.dumps(records)})


def attention_in(model: nn.Module) -> dict[str, MHSA]:
    """The attention layers of a network, by every path."""
    return {path: module for path, module in model.named_modules(remove_duplicate=False) if isinstance(module, MHSA)}


def records_in(state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, Any]:
    """What a state dict, or the metadata of a safetensors file, says of the geometry of its attention layers, by their paths.

    Raises:
        BadModelFile: the metadata of a safetensors file are no JSON object.
    """
    if GEOMETRY in metadata:
        try:
            records = strict_json(metadata[GEOMETRY])
        except RecursionError as error:
            raise BadModelFile("its geometry is nested too deep") from error
        except ValueError as error:
            raise BadModelFile(f"its geometry is no JSON: {one_line(error)}") from error
        if not isinstance(records, dict):
            raise BadModelFile("its geometry is no JSON object")
        return records
    kept = getattr(state, "_metadata", None)
    entries = kept.items() if isinstance(kept, Mapping) else ()
    # What is left of a layer whose tensors were taken out is passed over.
    return {
        path: entry[GEOMETRY]
        for path, entry in entries
        if isinstance(entry, Mapping) and GEOMETRY in entry and _named(path, "w_key_pos") in state
    }


def layer_of(path: str, state: Mapping[str, Tensor], record: Any) -> MHSA:
    """The attention layer whose tensors lie under a path.

    Raises:
        BadModelFile: geometry and tensors do not fit together, or a tensor is missing.
    """
    try:
        geometry, encoding = read_record(record, lambda name: state[_named(path, name)])
        weights = MHSAWeights(**{name: state[_named(path, name)].detach().clone() for name in NAMES})
        return MHSA(geometry, weights, encoding=encoding)
    except RecursionError as error:
        raise BadModelFile("its geometry is nested too deep") from error
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        worked_out = any(key.startswith(_named(path, "parametrizations.")) for key in state)
        told = f"no tensor {error}" if isinstance(error, KeyError) else one_line(error)
        hint = (
            " (construct.modules.learning.settle makes plain tensors of those that are worked out)"
            if worked_out
            else ""
        )
        raise BadModelFile(f"its geometry and its tensors do not fit together: {told}{hint}") from error


def layers_of(state: Mapping[str, Tensor], records: Mapping[str, Any]) -> dict[str, MHSA]:
    """Every attention layer of which there is a record, by its path.

    Raises:
        BadModelFile: see :func:`layer_of`.
    """
    return {path: layer_of(path, state, record) for path, record in records.items()}


def as_network(layers: Mapping[str, MHSA]) -> nn.Module:
    """The layer itself if there is just one, without a name; else modules nested as the names say, which hold every layer at its
    place and nothing else: what lies between layers, a file of tensors does not say.

    Raises:
        BadModelFile: a layer lies inside another one.
    """
    if "" in layers:
        if len(layers) > 1:
            raise BadModelFile("an attention layer lies inside another one")
        return layers[""]
    root = nn.Module()
    for path, layer in layers.items():
        place = root
        *outer, last = path.split(".")
        for step in outer:
            inner = place._modules.setdefault(step, nn.Module())
            assert inner is not None
            place = inner
        if last in place._modules or isinstance(place, MHSA):
            raise BadModelFile("an attention layer lies inside another one")
        place._modules[last] = layer  # not add_module: networks hold layers under names that it refuses
    return root


def _named(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
