"""The layers of a weight file: what the library of its format returns.

A safetensors file is read by safetensors, without torch.  Every other file is read by torch's own
loader, which defines what it holds: :mod:`verify.layers.torch_file`, which is imported for such a
file alone.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from verify.recheck.strict_input import AnyPath, Record, Rejected, opened, sha256_of, strict_json

TENSORS = ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out", "b_out")
CONVOLUTION = ("weight", "bias")
KINDS = ("MHSA", *(f"Conv{kind}{d}d" for kind in ("", "Transpose") for d in (1, 2, 3)))
"""The classes of layers whose code is known."""
_KINDS_BY_NAMES = {
    frozenset(TENSORS): "MHSA",
    frozenset(CONVOLUTION): "Conv",
    frozenset(CONVOLUTION[:1]): "Conv",
}
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_SAFETENSORS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


class StoredTensor(NamedTuple):
    """A tensor of a file; ``data`` has the bytes of its numbers, little-endian and row-major."""

    dtype: str
    shape: tuple[int, ...]
    data: Any

    def sha256(self) -> str:
        """The digest that a certificate states: of type and shape as JSON, a zero byte, and the
        bytes.
        """
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
    """A layer of a file: its class, or "Conv" of unknown dimension, or "unknown"; its geometry,
    None if none is stated.
    """

    kind: str
    geometry: Record | None
    tensors: dict[str, StoredTensor]

    def fits(self, geometry: Any, digests: Mapping[str, str]) -> bool:
        """Whether its tensors are these, and its geometry, if the file states one."""
        return self.geometry in (None, geometry) and self.digests() == digests

    def digests(self) -> dict[str, str]:
        """The digest of each tensor."""
        return {name: tensor.sha256() for name, tensor in self.tensors.items()}


class StoredLayers(NamedTuple):
    """The layers of a file by path, and notes on how it was read."""

    name: str
    layers: dict[str, StoredLayer]
    notes: tuple[str, ...]

    def named(
        self, stated: Mapping[str, tuple[Any, Any]], notes: list[str]
    ) -> Mapping[str, StoredLayer]:
        """The layers under the certified names; or all of them below one path, or in wrappers,
        exactly as they are stated.

        Args:
            stated: geometry and digests of each layer.
            notes: one is added if the names are others.

        Raises:
            Rejected: there are none.
        """
        missing = next((name for name in stated if name not in self.layers), None)
        if missing is None:
            return self.layers
        bare = {
            ".".join(part for part in path.split(".") if part not in WRAPPERS): path
            for path in self.layers
        }
        for parent in _parents(missing, bare):
            layers = self._below(parent, bare, stated)
            if layers is not None:
                path = bare[f"{parent}.{missing}".strip(".")]
                notes.append(f"{self.name}: {missing!r} is there as {path!r}, and so on")
                return layers
        hint = "".join(f" ({note})" for note in (RENAMED, *self.notes) if note != VERY_FILE)
        raise Rejected(
            f"layer {missing!r} is missing in {self.name}, and no other names there fit its tensors{hint}"
        )

    def _below(
        self, parent: str, bare: Mapping[str, str], stated: Mapping[str, tuple[Any, Any]]
    ) -> dict[str, StoredLayer] | None:
        """The layers below a path under the certified names, if all are there as they are stated."""
        layers = {}
        for name, facts in stated.items():
            path = bare.get(f"{parent}.{name}".strip("."))
            if path is None or not self.layers[path].fits(*facts):
                return None
            layers[name] = self.layers[path]
        return layers

    def beside(self, covered: Collection[StoredLayer]) -> list[str]:
        """The paths of layers that are none of these, nor of the same class, geometry and tensors
        as one of them.
        """
        known = {id(layer) for layer in covered}
        others = [(path, layer) for path, layer in self.layers.items() if id(layer) not in known]
        alike = (
            [(c.kind, c.geometry, c.digests()) for c in covered if c.geometry is not None]
            if others
            else []
        )
        return [
            path
            for path, layer in others
            if (layer.kind, layer.geometry, layer.digests()) not in alike
        ]


def _parents(name: str, paths: Collection[str]) -> list[str]:
    """The paths under which a layer of this name stands, shortest first."""
    end = f".{name}" if name else ""
    parents = {path.removesuffix(name).strip(".") for path in paths if f".{path}".endswith(end)}
    return sorted(parents, key=len)


VERY_FILE = "not the very file that was certified, but it has the tensors of all these layers"
WRAPPERS = ("module", "_orig_mod")  # of DataParallel and torch.compile
RENAMED = "of a parametrized layer, or a network that renames what it loads, it takes the network's state dict, folded"


def layers_in(path: AnyPath, certified: str | None = None, key: str | None = None) -> StoredLayers:
    """Read a weight file.

    Args:
        path: of the file.
        certified: SHA-256 of the file that was certified, if a certificate names one; of another
            file, a note says so.
        key: the key of the network in a checkpoint of several.

    Raises:
        Rejected: its library does not read it, or it is ambiguous.
        OSError: it cannot be read.
    """
    with opened(path) as file:
        start = file.read(9)
    name = Path(path).name
    notes = [VERY_FILE] * (certified not in (None, sha256_of(path)))
    try:
        if start[8:] == b"{" and not start.startswith(b"PK\3\4"):  # as the project's reader decides
            if key is not None:
                raise Rejected("a safetensors file has one network, and no key")
            groups, stated = _of_safetensors(path)
        else:
            from verify.layers.torch_file import contents  # imports torch

            groups, stated, remarks = contents(path, key)
            notes += remarks
        return StoredLayers(name, _layers(groups, stated), tuple(notes))
    except Exception as error:  # whatever a library raises on a damaged file
        message = str(error) or type(error).__name__
        raise Rejected(
            f"{name}: {' '.join(message.removeprefix(f'{path}: ').split())}"[:1000]
        ) from None


def _of_safetensors(path: AnyPath) -> tuple[dict[str, Record], Record]:
    """Tensors, and kind and geometry, by the path of their layer, as
    `verify.layers.torch_file.contents` returns them.
    """
    from safetensors import deserialize

    data = Path(path).read_bytes()
    groups: dict[str, Record] = {}
    for name, tensor in deserialize(data):
        if not all(name.split(".")):
            raise Rejected(f"a tensor is named {name!r}, which no path is")
        of, _, last = name.rpartition(".")
        dtype = _SAFETENSORS.get(tensor["dtype"], tensor["dtype"])
        groups.setdefault(of, {})[last] = (dtype, tuple(tensor["shape"]), tensor["data"])
    length = int.from_bytes(data[:8], "little")
    # the library takes a key that stands twice
    header = strict_json(data[8 : 8 + length], "the header")
    stated = strict_json(
        header.get("__metadata__", {}).get("geometry", "{}").encode(), "the metadata's geometry"
    )
    if not isinstance(stated, dict):
        raise Rejected("the metadata's geometry must be a JSON object")
    return groups, stated


def _layers(
    groups: Mapping[str, Mapping[str, Any]], stated: Mapping[str, Any]
) -> dict[str, StoredLayer]:
    """Those groups of tensors that may be convolutions or attention."""
    layers = {}
    for path, tensors in groups.items():
        group = {name: StoredTensor(*tensor) for name, tensor in tensors.items()}
        kind, geometry = _kind_of(path, stated)
        by_names = _KINDS_BY_NAMES.get(frozenset(group), "unknown")
        if kind in KINDS and kind.startswith(by_names):
            layers[path] = StoredLayer(kind, geometry, group)
        elif "w_key_pos" in group or _may_be_a_kernel(group, kind):
            layers[path] = StoredLayer("unknown" if kind else by_names, None, group)
    return layers


def _kind_of(path: str, stated: Mapping[str, Any]) -> tuple[str | None, Record]:
    """Kind and geometry that a file states of a layer."""
    if path not in stated:
        return None, {}
    record = stated[path]
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise Rejected(f"what it states of {path!r} must be the geometry of a layer")
    # Of a bias it only says whether b_out is a parameter or a buffer of zeros.
    return record["kind"], {
        name: value for name, value in record.items() if name not in ("kind", "bias")
    }


def _may_be_a_kernel(group: Mapping[str, StoredTensor], kind: str | None) -> bool:
    """Whether a tensor has a kernel's name, parametrized or not, and more than two axes; a
    LayerNorm's has, but its bias, too.
    """
    kernels = [
        name
        for name, t in group.items()
        if len(t.shape) > 2 and name.startswith(("weight", "original"))
    ]
    norm = (
        kind is None
        and {*group} == {"weight", "bias"}
        and group["bias"].shape == group["weight"].shape
    )
    return bool(kernels) and not norm
