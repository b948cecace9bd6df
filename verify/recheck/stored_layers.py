"""The layers of a weight file: what the library of its format returns.

A safetensors file is read by safetensors, without torch.  Every other file is read by torch's own loader, which defines what
it holds: :mod:`verify.layers.torch_file`, which is imported for such a file alone.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from verify.recheck.strict_input import Rejected, opened, strict_json

TENSORS = ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out", "b_out")
CONVOLUTION = ("weight", "bias")
KINDS = ("MHSA", *(f"Conv{kind}{d}d" for kind in ("", "Transpose") for d in (1, 2, 3)))
"""The classes of layers whose code is known."""
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_SAFETENSORS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


class StoredTensor(NamedTuple):
    """A tensor of a file; ``data`` has the bytes of its numbers, little-endian and row-major."""

    dtype: str
    shape: tuple[int, ...]
    data: Any

    def sha256(self) -> str:
        """The digest that a certificate states: of type and shape as JSON, a zero byte, and the bytes."""
        hashed = hashlib.sha256(json.dumps([self.dtype, [*self.shape]]).encode() + b"\0")
        hashed.update(self.data)
        return hashed.hexdigest()

    def numbers(self) -> np.ndarray:
        """Its numbers in float64, which holds them exactly."""
        bits = np.frombuffer(self.data, f"<u{BYTES[self.dtype]}").reshape(self.shape)
        if self.dtype == "bfloat16":  # the upper half of a float32
            return (bits.astype("<u4") << 16).view("<f4").astype(np.float64)
        return bits.view(f"<f{BYTES[self.dtype]}").astype(np.float64)


class StoredLayer(NamedTuple):
    """A layer of a file: its class, or "Conv" of unknown dimension, or "unknown"; its geometry, None if none is stated."""

    kind: str
    geometry: dict[str, Any] | None
    tensors: dict[str, StoredTensor]

    def digests(self) -> dict[str, str]:
        """The digest of each tensor."""
        return {name: tensor.sha256() for name, tensor in self.tensors.items()}


class StoredLayers(NamedTuple):
    """The layers of a file by path, and notes on how it was read."""

    name: str
    layers: dict[str, StoredLayer]
    notes: tuple[str, ...]

    def find(self, name: str, digests: Mapping[str, str], notes: list[str]) -> StoredLayer:
        """The layer of this name, or else one with exactly these tensors, for wrappers change names; `Rejected` if none."""
        if name in self.layers:
            return self.layers[name]
        for path, layer in self.layers.items():
            if layer.digests() == digests:
                notes.append(f"{self.name}: {name!r} is there as {path!r}, with the same tensors")
                return layer
        hint = "".join(f" ({note})" for note in (FOLDED, *self.notes))
        raise Rejected(f"layer {name!r} is missing in {self.name}, and no other layer there has its tensors{hint}")

    def beside(self, covered: Collection[StoredLayer]) -> list[str]:
        """The paths of layers that are none of these, nor of the same class, geometry and tensors as one of them."""
        known = {id(layer) for layer in covered}
        others = [(path, layer) for path, layer in self.layers.items() if id(layer) not in known]
        alike = [(c.kind, c.geometry, c.digests()) for c in covered if c.geometry is not None] if others else []
        return [path for path, layer in others if (layer.kind, layer.geometry, layer.digests()) not in alike]


VERY_FILE = "not the very file that was certified, but it has the tensors of all these layers"
FOLDED = "of a parametrized layer, it takes a file with the folded weights"


def layers_in(path: str | os.PathLike[str], certified: str | None = None, key: str | None = None) -> StoredLayers:
    """Read a weight file.

    Args:
        path: of the file.
        certified: SHA-256 of the file that was certified, if a certificate names one; of another file, a note says so.
        key: the key of the network in a checkpoint of several.

    Raises:
        Rejected: its library does not read it, or it is ambiguous.
        OSError: it cannot be read.
    """
    with opened(path) as file:
        is_safetensors = file.read(9)[8:] == b"{"
        file.seek(0)
        other = certified not in (None, hashlib.file_digest(file, "sha256").hexdigest())
    name, notes = Path(path).name, [VERY_FILE] if other else []
    try:
        if is_safetensors:
            tensors, stated = _of_safetensors(path)
        else:
            from verify.layers.torch_file import contents  # imports torch

            tensors, stated, remarks = contents(path, key)
            notes += remarks
        return StoredLayers(name, _by_path(tensors, stated), tuple(notes))
    except Exception as error:  # whatever a library raises on a damaged file
        message = str(error) or type(error).__name__
        raise Rejected(f"{name}: {' '.join(message.removeprefix(f'{path}: ').split())}"[:1000]) from None


def _of_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors by name, and kind and geometry of layers by path, as `verify.layers.torch_file.contents` returns them."""
    from safetensors import deserialize, safe_open

    with safe_open(path, framework="numpy") as file:
        stated = strict_json((file.metadata() or {}).get("geometry", "{}").encode(), "the metadata's geometry")
    if not isinstance(stated, dict):
        raise Rejected("the metadata's geometry is no JSON object")
    content = deserialize(Path(path).read_bytes())
    return {
        name: (_SAFETENSORS.get(t["dtype"], t["dtype"]), tuple(t["shape"]), t["data"]) for name, t in content
    }, stated


def _by_path(tensors: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, StoredLayer]:
    """Group tensors named ``<layer>.<tensor>`` into the layers that may be convolutions or attention."""
    groups: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        if not all(name.split(".")):
            raise Rejected(f"a tensor is named {name!r}, which no path is")
        path, _, last = name.rpartition(".")
        groups.setdefault(path, {})[last] = StoredTensor(*tensor)
    known = {tuple(sorted(TENSORS)): "MHSA", ("weight",): "Conv", ("bias", "weight"): "Conv"}
    layers = {}
    for path, group in groups.items():
        geometry = dict(stated.get(path) or {})
        kind, by_names = geometry.pop("kind", None), known.get(tuple(sorted(group)), "unknown")
        geometry.pop("bias", None)  # whether b_out is a parameter or a buffer of zeros
        if kind in KINDS and kind.startswith(by_names):
            layers[path] = StoredLayer(kind, geometry, group)
        # A kernel, parametrized or not, has more than two axes.
        elif "w_key_pos" in group or any(
            len(group[n].shape) > 2 and n.startswith(("weight", "original")) for n in group
        ):
            layers[path] = StoredLayer(by_names if kind is None else "unknown", None, group)
    return layers
