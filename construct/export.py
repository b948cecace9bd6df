"""Converted networks in the formats that people use: safetensors, ``.pt2`` and ONNX.

A ``.pt2`` or ONNX file holds plain tensor operations, and runs without this project: each head is a strided slice of the
padded tokens times its matrix.  Where the heads look is frozen in it.
"""

import copy
import io
import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from construct.attention import MHSA
from construct.errors import BadModelFile
from construct.execution.traced import FROZEN, freeze
from construct.geometry import ConvGeometry
from construct.network import every_module
from construct.weights import NAMES, MHSAWeights

GEOMETRY = "geometry"
"""The key of the metadata of a safetensors file under which the geometry of its layers stands, as JSON."""


def to_safetensors(model: nn.Module) -> bytes:
    """Every tensor of a network's state dict, with the geometry of its attention layers in the metadata.

    Returns:
        The content of a safetensors file.
    """
    from safetensors.torch import save

    layers = {path: module for path, module in model.named_modules() if isinstance(module, MHSA)}
    # Tied tensors are written once for each name: the format has no notion of sharing.
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in model.state_dict().items()}
    return save(tensors, {GEOMETRY: json.dumps({path: stated(layer) for path, layer in layers.items()})})


def stated(layer: MHSA) -> dict[str, Any]:
    """What has to be known of a layer beside its tensors, in JSON's types."""
    geometry = {"kind": "MHSA", **asdict(layer.geometry)}
    return geometry if layer.radix is None else geometry | {"radix": list(layer.radix)}


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
        for path, fields in json.loads(metadata).items():
            fields = dict(fields)
            if fields.pop("kind") != "MHSA":
                raise ValueError(f"{path!r} is no attention layer")
            radix = fields.pop("radix", None)
            for name, value in fields.items():
                fields[name] = tuple(value) if isinstance(value, list) else value
            own = {name: tensors[f"{path}.{name}" if path else name] for name in NAMES}
            layer = MHSA(ConvGeometry(**fields), MHSAWeights(**own), radix=None if radix is None else tuple(radix))
            if not path:
                return layer
            place = root
            *outer, last = path.split(".")
            for name in outer:
                if name not in dict(place.named_children()):
                    place.add_module(name, nn.Module())
                place = place.get_submodule(name)
            place.add_module(last, layer)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadModelFile(f"its geometry and its tensors do not fit together: {error}") from error
    return root


def frozen_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode, every attention layer of which knows where its heads look.

    Raises:
        ValueError: some layer cannot be traced; its path is named.
    """
    found = copy.deepcopy(model).eval().requires_grad_(False)
    for path, module in every_module(found):
        if isinstance(module, MHSA):
            try:
                setattr(module, FROZEN, freeze(module))
            except ValueError as error:
                raise ValueError(f"{path or 'the layer'}: {error}") from None
    return found


def exported(model: nn.Module, input_size: Sequence[int]) -> tuple[torch.export.ExportedProgram, tuple[str, ...]]:
    """The network as a program of plain tensor operations, for any batch and any spatial size that it allows.

    Args:
        model: a converted network that takes one tensor.
        input_size: C, S_1 … S_d of an example.

    Returns:
        The program, and the axes of its input that had to stay as in the example ("batch", "axis 1", …).

    Raises:
        ValueError: some layer cannot be traced, or the network itself cannot be.
    """
    network = frozen_copy(model)
    dtype = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
    example = torch.ones(2, *input_size, dtype=dtype)
    free = torch.export.Dim.AUTO
    try:
        with warnings.catch_warnings(), torch.no_grad(), _quiet():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                network, (example,), dynamic_shapes=({0: free, **dict.fromkeys(range(2, example.dim()), free)},)
            )
    except Exception as error:  # whatever the tracer meets in a user's network
        first = str(error).strip().split("\n")[0]
        raise ValueError(f"the network cannot be exported: {first}") from error
    own = program.graph_signature.user_inputs
    (taken,) = (node for node in program.graph.nodes if node.op == "placeholder" and node.name in own)
    shape = taken.meta["val"].shape
    names = ["batch", "channels", *(f"axis {axis}" for axis in range(1, len(shape) - 1))]
    # An axis that the network fixes is a number, or a symbol that was found to be one.
    fixed = [isinstance(n, int) or n.node.expr.is_number for n in shape]
    static = tuple(name for name, is_fixed in zip(names, fixed, strict=True) if is_fixed and name != "channels")
    return program, static


class _quiet:
    """Keeps the tracer's own log from the terminal."""

    def __enter__(self) -> None:
        self.level = logging.getLogger("torch").level
        logging.getLogger("torch").setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("torch").setLevel(self.level)


def to_pt2(model: nn.Module, input_size: Sequence[int]) -> tuple[bytes, tuple[str, ...]]:
    """The content of a ``.pt2`` file, which ``torch.export.load`` reads without this project; and the axes that are fixed.

    Raises:
        ValueError: as :func:`exported`.
    """
    program, static = exported(model, input_size)
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, stream)
    return stream.getvalue(), static


def to_onnx(model: nn.Module, input_size: Sequence[int]) -> tuple[bytes, tuple[str, ...]]:
    """The content of an ONNX file, and the axes that are fixed.

    Raises:
        ValueError: as :func:`exported`; or a package is missing.
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ValueError(f"ONNX needs {' and '.join(missing)} (pip install onnx onnxscript)")
    program, static = exported(model, input_size)
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        made = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
    assert made is not None
    stream = io.BytesIO()
    made.save(stream)  # type: ignore[arg-type]
    return stream.getvalue(), static
