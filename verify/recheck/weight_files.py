"""Reads the layers and tensors of a weight file, with only numpy and the standard library.

- torch.save of a module: a zip whose pickle is walked opcode by opcode.  Nothing is imported and nothing is called: every object
  that pickle would build becomes an inert record, and layers are the records of known classes, by path.
- torch.save of a state dict: the same; its metadata state the geometry of attention layers only.
- torch.save of a checkpoint that contains one of these: that one.
- safetensors, with or without the geometry of its layers as JSON under the key ``geometry`` of the metadata.

Every checksum, length, offset and stride is checked, and any other content is refused in one line.
"""

import json
import math
import os
import re
from collections.abc import Callable
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from verify.recheck.archives import Archive, archive_in
from verify.recheck.checkpoints import TENSORS, geometry_records, may_be_a_kernel, network_in, tensors_of
from verify.recheck.pickles import (
    CLASSES,
    PARAMETER,
    PLAIN,
    STORAGES,
    TENSOR,
    Pickled,
    Rejected,
    Walk,
    counts,
    is_module,
)

GEOMETRY = tuple("in_channels out_channels kernel_size stride padding padding_mode dilation groups".split())
GEOMETRY += ("transposed", "output_padding")
GEOMETRY_VECTORS = ("kernel_size", "stride", "padding", "dilation", "output_padding")
_DTYPE = re.compile(r"torch (b?float|u?int|complex|bool)\w*")
EXECUTIONS = ("auto", "axial", "chunked", "dense", "sdpa")
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
MOST_EXPANDED, LONGEST_HEADER, MOST_MODULES = 2**24, 100_000_000, 100_000

_STORAGES = dict(zip([f"torch {kind}Storage" for kind in ("Half", "BFloat16", "Float", "Double")], BYTES, strict=True))
_SAFETENSORS = dict(zip(("F16", "BF16", "F32", "F64"), BYTES, strict=True))
_WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}
_WIDTHS |= {"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8}
_MODULE = frozenset(  # the attributes of every torch module
    "training _parameters _buffers _modules _non_persistent_buffers_set _is_full_backward_hook _backward_hooks _backward_pre_hooks "
    "_forward_hooks _forward_hooks_with_kwargs _forward_hooks_always_called _forward_pre_hooks _forward_pre_hooks_with_kwargs "
    "_state_dict_hooks _state_dict_pre_hooks _load_state_dict_pre_hooks _load_state_dict_post_hooks".split()
)
_WALK = frozenset(  # methods by which torch traverses a module
    "modules named_modules children named_children parameters named_parameters buffers named_buffers state_dict get_submodule "
    "_named_members".split()
)
_KNOWN = {"MHSA": {*_MODULE, "geometry", "heads", "radix", "_execution"}}
_KNOWN |= {
    kind: {*_MODULE, *GEOMETRY, "_reversed_padding_repeated_twice"} for kind in CLASSES.values() if kind != "MHSA"
}


class StoredTensor(NamedTuple):
    """A tensor in a weight file."""

    dtype: str  # "float32" and so on; another name for a dtype that no layer has
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]  # its bits, row-major, as little-endian unsigned integers


class StoredLayer(NamedTuple):
    """A layer in a weight file."""

    kind: str  # "MHSA", "Conv2d" and so on; "Conv" of unknown dimension; "unknown" for any other class
    geometry: dict[str, Any] | None  # as the file states it, as JSON types; None if it does not
    tensors: dict[str, StoredTensor]  # by name; a convolution's bias may be missing
    pads: list[int] | None = None  # torch's padding of the input, last axis first, if stated


def numbers(bits: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers with these bits, as float64, which is exact."""
    if dtype == "bfloat16":
        return (bits.astype("<u4") << 16).view("<f4").astype(np.float64)
    return bits.view(f"<f{BYTES[dtype]}").astype(np.float64)


def opened(path: str | os.PathLike[str]) -> BufferedReader:
    """A file to read.

    Raises:
        Rejected: a pipe or a device, which may have no end.
        OSError: it cannot be read.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise Rejected(f"{path}: is not a regular file")
    return path.open("rb")


def strict_json(text: bytes, what: str) -> Any:
    """Parse JSON that has no repeated keys and only finite numbers; raise `Rejected` otherwise."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError(f"a key stands twice among {', '.join(key for key, _ in pairs)}"[:200])
        for text in (text for pair in pairs for text in pair if isinstance(text, str)):
            text.encode()  # a lone surrogate is not valid text
        return dict(pairs)

    def whole(number: str) -> int:
        if number == "-0":
            raise ValueError("-0 is no whole number")
        return int(number)

    def finite(number: str) -> float:
        if math.isfinite(float(number)):
            return float(number)
        raise ValueError(f"{number[:20]} is no finite number")

    try:
        return json.loads(
            text.decode(), object_pairs_hook=unique, parse_constant=finite, parse_float=finite, parse_int=whole
        )
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{what} is no strict JSON: {error}") from None


def layers_in(file: BinaryIO, what: str) -> dict[str, StoredLayer]:
    """The layers of a weight file by path; `Rejected` if it is malformed.  Keep the file open while tensors are read."""
    file.seek(0)
    try:
        if not file.read(1):
            raise Rejected("the file is empty")
        file.seek(0)
        start = file.read(9)  # a safetensors header's length may look like a pickle's start; then a brace follows
        if start[:1] == b"\x80" and start[1:2] <= b"\x05" and start[8:] != b"{":
            raise Rejected(
                "a pickle, as torch.save wrote before 1.6, which is not rechecked: save it again with torch.save"
            )
        return _torch_layers(file) if start[:4] == b"PK\x03\x04" else _safetensors_layers(file)
    except Exception as error:  # whatever the standard library raises on a damaged file
        message = str(error) if isinstance(error, Rejected) else f"malformed ({type(error).__name__}: {error})"
        raise Rejected(f"{what}: {' '.join(message.split())}") from None


def _by_name(tensors: dict[str, StoredTensor], stated: dict[str, dict[str, Any]]) -> dict[str, StoredLayer]:
    """Group tensors named ``<layer>.<tensor>`` into layers; ``stated`` has the kind and geometry of some."""
    groups: dict[str, dict[str, StoredTensor]] = {path: {} for path in stated}
    for name, tensor in tensors.items():
        path, last = _path_of(name)
        groups.setdefault(path, {})[last] = tensor
    layers = {}
    for path, group in groups.items():
        known = {tuple(sorted(TENSORS)): "MHSA", ("weight",): "Conv", ("bias", "weight"): "Conv"}
        kind = known.get(tuple(sorted(group)), "unknown")
        if path in stated:
            geometry = dict(stated[path])
            claimed = geometry.pop("kind")
            geometry.pop("bias", None)  # whether b_out is a parameter or a buffer of zeros
            if not (claimed in CLASSES.values() and claimed.startswith(kind)):
                raise Rejected(f"{path!r} is said to be {claimed}, its tensors are {sorted(group)}")
            layers[path] = StoredLayer(claimed, geometry, group)
        elif any(may_be_a_kernel(name, tensor.shape) for name, tensor in group.items()):
            layers[path] = StoredLayer(kind, None, group)
    return layers


def _path_of(name: str) -> tuple[str, str]:
    """Split a tensor's name into its layer's path and its name within the layer."""
    if not all(name.split(".")):
        raise Rejected(f"a tensor is named {name!r}, and a path could mean two things")
    path, _, last = name.rpartition(".")
    return path, last


def _safetensors_layers(file: BinaryIO) -> dict[str, StoredLayer]:
    size = file.seek(0, 2)
    file.seek(0)
    first = 8 + int.from_bytes(file.read(8), "little")
    if file.read(1) != b"{" or first > LONGEST_HEADER:
        raise Rejected("neither a zip of torch.save nor safetensors")
    if first > size:
        raise Rejected(f"truncated: its header has {first - 8} bytes, and {size - 8} are there")
    file.seek(8)
    header = strict_json(file.read(first - 8), "the header")
    if not isinstance(header, dict):
        raise Rejected("its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Rejected("its metadata are no texts")
    tensors, spans = {}, []
    for name, entry in header.items():
        dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
        if (
            (len(entry), len(span)) != (3, 2)
            or not counts(shape, span, (math.prod(n or 1 for n in shape),))
            or len(shape) > 32
        ):
            raise Rejected(f"tensor {name!r} has a shape or data_offsets that are no counts, or too large")
        if span[1] - span[0] != math.prod(shape) * _WIDTHS[dtype]:
            raise Rejected(f"tensor {name!r} is not what its dtype, shape and data_offsets say")
        spans.append((span[0], span[1]))
        dtype = str(_SAFETENSORS.get(dtype) or dtype)
        tensors[name] = StoredTensor(dtype, tuple(shape), partial(_read_at, file, first + span[0], tuple(shape), dtype))
    if (needed := max((end for _, end in spans), default=0)) > size - first:
        raise Rejected(f"truncated: its tensors take {needed} bytes, and {size - first} are there")
    if [0, *(end for _, end in sorted(spans))] != [*(begin for begin, _ in sorted(spans)), size - first]:
        raise Rejected("its tensors overlap, leave holes, or do not fill the file to its end")
    stated = strict_json(metadata.get("geometry", "{}").encode(), "the metadata's geometry")
    if not isinstance(stated, dict):
        raise Rejected("the metadata's geometry is no JSON object")
    return _by_name(tensors, stated)


def _read_at(file: BinaryIO, place: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    file.seek(place)
    return np.frombuffer(file.read(math.prod(shape) * BYTES[dtype]), f"<u{BYTES[dtype]}").reshape(shape)


def _torch_layers(file: BinaryIO) -> dict[str, StoredLayer]:
    archive = archive_in(file)
    walk = Walk(archive.read("data.pkl"))
    for key, (kind, count) in walk.storages.items():
        if f"data/{key}" not in archive.records:
            raise Rejected(f"storage {key!r} of {count} numbers is needed, and there is no such record")
        if archive.records[f"data/{key}"].size != count * STORAGES[kind]:
            raise Rejected(f"storage {key!r} does not fit its record: {count} numbers of {kind}")
    stored = [name.removeprefix("data/") for name in archive.records if name.startswith("data/")]
    if unnamed := {*stored} - {*walk.storages}:
        raise Rejected(f"no tensor is in the record data/{min(unnamed)}")
    if ".format_version" in archive.records and not stored == [*walk.storages] == [*map(str, range(len(stored)))]:
        raise Rejected("its storages do not lie where torch works out that they are")
    root = network_in(walk.root)
    if not is_module(root):
        tensors = {name: _tensor(value, archive) for name, value in tensors_of(root).items()}
        records = geometry_records(root)
        whole = [path for path in records if {f"{path}.{name}" if path else name for name in TENSORS} <= tensors.keys()]
        stated = {path: {name: _plain(value) for name, value in records[path].items()} for path in whole}
        return _by_name(tensors, stated)  # metadata may outlive a removed layer
    layers: dict[str, StoredLayer] = {}
    pending: list[tuple[str, Pickled, tuple[int, ...]]] = [("", root, ())]
    layer_by_module: dict[int, StoredLayer | None] = {}
    for _ in range(MOST_MODULES):  # each module under each of its paths, in the order of torch's named_modules
        if not pending:
            break
        path, module, ancestors = pending.pop()
        if id(module) in ancestors:
            continue
        if not is_module(module):
            raise Rejected(f"{path!r} is no module")
        attributes = module.state.entries()
        children = [entry for entry in attributes["_modules"].entries().items() if entry[1] is not None]
        path_modules = (*ancestors, id(module))
        pending += [(f"{path}.{name}" if path else name, child, path_modules) for name, child in reversed(children)]
        if id(module) not in layer_by_module:
            _check_names(path, module, attributes)
            layer_by_module[id(module)] = _layer_of(path, module, attributes, archive)
        if (layer := layer_by_module[id(module)]) is not None:
            layers[path] = layer
    if pending:
        raise Rejected(f"has more than {MOST_MODULES} modules")
    hidden = [f"(not among the modules: {record.kind})" for record in walk.layers if id(record) not in layer_by_module]
    return layers | dict.fromkeys(hidden, StoredLayer("unknown", None, {}))


def _check_names(path: str, module: Pickled, attributes: dict[str, Any]) -> None:
    """Refuse a module's names that shadow another name or a method of its class."""
    names = [name for part in ("_parameters", "_buffers", "_modules") for name in attributes[part].entries()]
    if odd := [name for name in names if not name or "." in name]:
        raise Rejected(f"{path!r} has something named {odd[0]!r}, and a path could mean two things")
    names += attributes
    if len({*names}) != len(names):
        raise Rejected(f"{path!r} gives one name to two things: {max(names, key=names.count)!r}")
    if hiding := _WALK & {*attributes}:
        raise Rejected(f"{path!r} has {min(hiding)} of its own, by which torch would go through it")
    if PLAIN.fullmatch(module.kind):
        for name, value in attributes.items():
            called = isinstance(value, Pickled) and value.kind == "global" and not _DTYPE.fullmatch(value.args)
            if called and name != "activation":  # a function, as in nn.TransformerEncoderLayer
                raise Rejected(f"{path!r} has {name} of its own")


def _layer_of(path: str, module: Pickled, attributes: dict[str, Any], archive: Archive) -> StoredLayer | None:
    """The layer in a module's record, or None if the module is not a layer."""
    held = attributes["_parameters"].entries() | attributes["_buffers"].entries()
    kind = CLASSES.get(module.kind, "unknown")
    if kind == "unknown" and not ({"weight", "w_val"} & set(held) and {"kernel_size", "geometry"} & set(attributes)):
        return None
    tensors = {name: _tensor(value, archive) for name, value in held.items() if value is not None}
    return StoredLayer(kind, None, tensors) if kind == "unknown" else _layer(path, kind, attributes, tensors)


def _layer(path: str, kind: str, attributes: dict[str, Any], tensors: dict[str, StoredTensor]) -> StoredLayer:
    inert = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "geometry")
    for name, value in attributes.items():
        filled = (name == "_modules" or name.startswith("_forward")) and (value.pairs or value.args)
        strange = name not in _KNOWN[kind] or (
            name not in inert and "hooks" not in name and _plain(value) is NotImplemented
        )
        if filled or strange:
            raise Rejected(f"{path!r} has {name.strip('_')} of its own")
    fields, radix = attributes, attributes.get("radix")
    if kind == "MHSA":
        record, fields = attributes["geometry"], attributes["geometry"].state.entries()
        if record.kind != "construct.geometry ConvGeometry" or set(fields) != set(GEOMETRY):
            raise Rejected(f"{path!r} has a geometry of another class, or one with more or fewer fields")
        if any(not isinstance(fields[name], tuple | str) for name in GEOMETRY_VECTORS):
            raise Rejected(f"{path!r} has a geometry whose vectors are no tuples")
        if attributes["heads"] != tensors["v"].shape[0] or attributes["_execution"] not in EXECUTIONS:
            raise Rejected(f"{path!r} has another number of heads than it says, or an execution of its own")
    geometry = {name: _plain(fields[name]) for name in GEOMETRY}
    if any(value is NotImplemented for value in geometry.values()) or not isinstance(geometry["kernel_size"], list):
        raise Rejected(f"{path!r} has a geometry that is not of plain numbers and texts")
    axes = len(geometry["kernel_size"])
    for name in GEOMETRY_VECTORS:  # torch takes a single number, even in a list, for all axes
        value = [geometry[name]] if type(geometry[name]) is int else geometry[name]
        geometry[name] = value * axes if isinstance(value, list) and len(value) == 1 else value
    geometry |= {} if radix is None else {"radix": _plain(radix)}
    return StoredLayer(kind, geometry, tensors, _plain(attributes.get("_reversed_padding_repeated_twice")))


def _plain(value: Any) -> Any:
    """A value as a JSON type, or a flat list of such values; NotImplemented for any other."""
    if isinstance(value, tuple) or (isinstance(value, Pickled) and value.kind == "list"):
        items = [*value] if isinstance(value, tuple) else [item for item, _ in value.pairs]
        return items if all(type(item) in (int, bool, str) for item in items) else NotImplemented
    return value if type(value) in (int, float, bool, str, type(None)) else NotImplemented


def _tensor(record: Any, archive: Archive) -> StoredTensor:
    """The tensor that torch._utils would rebuild from a record."""
    data = record.args[0] if record.kind == PARAMETER else record
    if data.kind != TENSOR:
        raise Rejected(f"a {record.kind} where a plain tensor or parameter belongs")
    storage, offset, shape, strides, _, hooks, *_ = data.args
    _, kind, key, _, count = storage.args
    if hooks.pairs or (record is not data and record.args[2].pairs):
        raise Rejected("a tensor has hooks")
    if math.prod(shape) > max(count, MOST_EXPANDED):
        raise Rejected(f"a tensor of shape {shape} is of {count} numbers repeated")
    dtype = str(_STORAGES.get(kind.args) or kind.args)

    def read() -> np.ndarray:
        if dtype not in BYTES:
            raise Rejected(f"a tensor is of {dtype}")
        whole = np.frombuffer(archive.read(f"data/{key}"), f"<u{BYTES[dtype]}")[offset:]
        steps = [step * BYTES[dtype] for step in strides]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(whole, shape, steps)).reshape(shape)

    return StoredTensor(dtype, shape, read)
