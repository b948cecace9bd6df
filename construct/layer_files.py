"""Attention layers in a safetensors file: their tensors by name, and their geometry as JSON in the metadata."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from construct.attention import MHSA
from construct.containers import strict_json
from construct.errors import BadModelFile
from construct.geometry import ConvGeometry
from construct.positions import CLASSICAL, Covariance, Encoding, Relative
from construct.weights import NAMES, MHSAWeights

GEOMETRY = "geometry"
"""The key of the metadata of a safetensors file under which the geometry of its layers stands, as JSON."""


def to_safetensors(model: nn.Module) -> bytes:
    """Every tensor of a network's state dict, with the geometry of its attention layers in the metadata.

    Returns:
        The content of a safetensors file.
    """
    from safetensors.torch import save

    layers = {path: module for path, module in model.named_modules(remove_duplicate=False) if isinstance(module, MHSA)}
    # Tied tensors are written once for each name: the format has no notion of sharing.
    state = {
        name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)
    }  # no extra state
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in state.items()}
    return save(tensors, {GEOMETRY: json.dumps({path: stated(layer) for path, layer in layers.items()})})


def stated(layer: MHSA) -> dict[str, Any]:
    """What has to be known of a layer beside its tensors, in JSON's types."""
    geometry = {"kind": "MHSA", **asdict(layer.geometry)}
    if layer.encoding.name not in CLASSICAL:
        return geometry | {"encoding": layer.encoding.name}
    return geometry if layer.radix is None else geometry | {"radix": list(layer.radix)}


def encoding_of(name: object, dims: int, offsets: Callable[[str], Any]) -> Encoding | None:
    """The encoding that a layer states beside its radix; None for none.

    Args:
        name: as stated.
        dims: d.
        offsets: gives the table of this name.

    Raises:
        ValueError: there is no such encoding.
    """
    if name is None:
        return None
    if name == Covariance.name:
        return Covariance()
    if name != Relative.name:
        raise ValueError(f"no encoding {name!r}")
    return Relative(tuple(offsets(f"offsets_{axis}") for axis in range(1, dims + 1)))


def layers_of(tensors: dict[str, Tensor], metadata: str) -> nn.Module:
    """The attention layers of a safetensors file, from :func:`to_safetensors`.

    Args:
        tensors: by name.
        metadata: the JSON of its geometry.

    Returns:
        The layer itself if the file holds just one, without a name; else modules nested as the names say, which hold every
        attention layer at its place (and nothing else: what lies between layers, a file of tensors does not say).

    Raises:
        BadModelFile: geometry and tensors do not fit together.
    """
    try:
        root = nn.Module()
        for path, fields in strict_json(metadata).items():
            fields = dict(fields)
            if fields.pop("kind") != "MHSA":
                raise ValueError(f"{path!r} is no attention layer")
            radix, name = fields.pop("radix", None), fields.pop("encoding", None)
            for key, value in fields.items():
                fields[key] = tuple(value) if isinstance(value, list) else value

            def stored(key: str, path: str = path) -> Tensor:
                return tensors[f"{path}.{key}" if path else key]

            own = {key: stored(key) for key in NAMES}
            geometry = ConvGeometry(**fields)
            layer = MHSA(
                geometry,
                MHSAWeights(**own),
                radix=None if radix is None else tuple(radix),
                encoding=encoding_of(name, geometry.dims, stored),
            )
            if not path:
                return layer
            place = root
            *outer, last = path.split(".")
            for step in outer:
                inner = place._modules.setdefault(step, nn.Module())
                assert inner is not None
                place = inner
            place._modules[last] = layer  # not add_module: networks hold layers under names that it refuses
    except RecursionError as error:
        raise BadModelFile("its geometry is nested too deep") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadModelFile(f"its geometry and its tensors do not fit together: {error}") from error
    return root
