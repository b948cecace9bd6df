"""The checker's reader: layers and their numbers from a weight file, with numpy and the standard library alone.

- torch.save of a module: a zip whose pickle is walked opcode by opcode.  Nothing is looked up and nothing is called: what
  pickle would have imported, made or filled becomes an inert record, and layers are found by their path among the records.
- torch.save of a state dict: the same; its metadata state the geometry of attention layers, and of nothing else.
- torch.save of a checkpoint that holds one of these beside other things: that one.
- safetensors, with the geometry of its layers as JSON under the key ``geometry`` of the metadata, or without.

Every checksum, length, offset and stride is checked, and whatever is odd is refused in one line.
"""

import json
import math
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from verify.opcodes import CLASSES, Made, Rejected, walk
from verify.unwrapping import geometry_records, is_module, network_in, tensors_of

TENSORS = ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out", "b_out")
GEOMETRY = tuple("in_channels out_channels kernel_size stride padding padding_mode dilation groups".split())
GEOMETRY += ("transposed", "output_padding")
GEOMETRY_VECTORS = ("kernel_size", "stride", "padding", "dilation", "output_padding")
EXECUTIONS = ("auto", "axial", "chunked", "dense", "sdpa")
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
MOST_EXPANDED, LONGEST_HEADER, MOST_MODULES = 2**24, 100_000_000, 100_000

_STORAGES = dict(zip([f"torch {kind}Storage" for kind in ("Half", "BFloat16", "Float", "Double")], BYTES, strict=True))
_SAFETENSORS = dict(zip(("F16", "BF16", "F32", "F64"), BYTES, strict=True))
_WIDTHS = {f"{kind}{bits}": bits // 8 for kind in ("I", "U", "F", "BF", "C") for bits in (8, 16, 32, 64)}
_WIDTHS |= {"BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}
_MODULE = frozenset(  # what every module of torch holds
    "training _parameters _buffers _modules _non_persistent_buffers_set _is_full_backward_hook _backward_hooks _backward_pre_hooks "
    "_forward_hooks _forward_hooks_with_kwargs _forward_hooks_always_called _forward_pre_hooks _forward_pre_hooks_with_kwargs "
    "_state_dict_hooks _state_dict_pre_hooks _load_state_dict_pre_hooks _load_state_dict_post_hooks".split()
)
_KNOWN = {"MHSA": {*_MODULE, "geometry", "heads", "radix", "_execution"}}
_KNOWN |= {
    kind: {*_MODULE, *GEOMETRY, "_reversed_padding_repeated_twice"} for kind in CLASSES.values() if kind != "MHSA"
}


class Stored(NamedTuple):
    """A tensor in a file."""

    dtype: str  # "float32" and so on; another name for a format that no layer has
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]  # its bits, row-major, as little-endian unsigned integers of the format's width


class Layer(NamedTuple):
    """A layer in a file."""

    kind: str  # "MHSA", "Conv2d" and so on; "Conv" where nothing says of which dimension; "unknown" for another class
    geometry: dict[str, Any] | None  # as the layer states it, in JSON's types; None where the file says nothing of it
    tensors: dict[str, Stored]  # by name; a convolution's bias may be missing
    pads: list[int] | None = None  # what torch would pad the input by, last axis first, where a convolution says so


def numbers(bits: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers that such bits stand for, as float64, which holds them exactly."""
    if dtype == "bfloat16":
        return (bits.astype("<u4") << 16).view("<f4").astype(np.float64)
    return bits.view(f"<f{BYTES[dtype]}").astype(np.float64)


def strict_json(text: bytes, what: str) -> Any:
    """Read JSON in which no key is repeated and every number is finite; else raise `Rejected`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError(f"a key stands twice among {', '.join(key for key, _ in pairs)}"[:200])
        return dict(pairs)

    def finite(number: str) -> float:
        if math.isfinite(float(number)):
            return float(number)
        raise ValueError(f"{number[:20]} is no finite number")

    try:
        return json.loads(text.decode(), object_pairs_hook=unique, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{what} is no strict JSON: {error}") from None


def layers_in(file: BinaryIO, what: str) -> dict[str, Layer]:
    """The layers of a weight file by their path; `Rejected` if it is odd.  It has to stay open while tensors are read."""
    file.seek(0)
    try:
        start = file.read(9)  # the length of a safetensors header may begin as a pickle does; then a brace follows
        if start[:1] == b"\x80" and start[1:2] <= b"\x05" and start[8:] != b"{":
            raise Rejected(
                "a pickle, as torch.save wrote before 1.6, which is not rechecked: save it again with torch.save"
            )
        return _torch_layers(file) if start[:4] == b"PK\x03\x04" else _safetensors_layers(file)
    except Exception as error:  # whatever a damaged file makes of the standard library's readers
        told = str(error) if isinstance(error, Rejected) else f"damaged or odd ({type(error).__name__}: {error})"
        raise Rejected(f"{what}: {told}") from None


def _by_name(tensors: dict[str, Stored], stated: dict[str, dict[str, Any]]) -> dict[str, Layer]:
    """Layers of tensors named ``<layer>.<tensor>``; ``stated`` holds the geometry of some, beside their ``kind``."""
    groups: dict[str, dict[str, Stored]] = {path: {} for path in stated}
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        groups.setdefault(path, {})[last] = tensor
    layers = {}
    for path, group in groups.items():
        known = {tuple(sorted(TENSORS)): "MHSA", ("weight",): "Conv", ("bias", "weight"): "Conv"}
        kind = known.get(tuple(sorted(group)), "unknown")
        if path in stated:
            geometry = dict(stated[path])
            claimed = geometry.pop("kind")
            if not (claimed in CLASSES.values() and claimed.startswith(kind)):
                raise Rejected(f"{path!r} is said to be {claimed}, its tensors are {sorted(group)}")
            layers[path] = Layer(claimed, geometry, group)
        elif kind == "MHSA" or _may_be_a_kernel(group):
            layers[path] = Layer(kind, None, group)
    return layers


def _may_be_a_kernel(group: dict[str, Stored]) -> bool:
    """Whether these are of a convolution or an attention layer, under the names of a parametrization, too."""
    return "w_key_pos" in group or any(
        len(tensor.shape) > 2 and name.startswith(("weight", "original")) for name, tensor in group.items()
    )


def _counts(*values: Any) -> bool:
    return all(isinstance(row, list | tuple) and all(type(x) is int and 0 <= x < 2**60 for x in row) for row in values)


def _safetensors_layers(file: BinaryIO) -> dict[str, Layer]:
    size = file.seek(0, 2)
    file.seek(0)
    first = 8 + int.from_bytes(file.read(8), "little")
    if first > min(LONGEST_HEADER, size):
        raise Rejected("neither a zip of torch.save nor safetensors, or truncated")
    header = strict_json(file.read(first - 8), "the header")
    if not isinstance(header, dict):
        raise Rejected("its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    tensors, spans = {}, []
    for name, entry in header.items():
        dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
        if len(entry) != 3 or not _counts(shape, span) or span[1] - span[0] != math.prod(shape) * _WIDTHS[dtype]:
            raise Rejected(f"tensor {name!r} is not what its dtype, shape and data_offsets say")
        spans.append((span[0], span[1]))
        dtype = str(_SAFETENSORS.get(dtype) or dtype)
        tensors[name] = Stored(dtype, tuple(shape), partial(_read_at, file, first + span[0], tuple(shape), dtype))
    if [0, *(end for _, end in sorted(spans))] != [*(begin for begin, _ in sorted(spans)), size - first]:
        raise Rejected("its tensors overlap, or leave holes, or the file is truncated")
    stated = strict_json(metadata.get("geometry", "{}").encode(), "the metadata's geometry")
    if not isinstance(stated, dict):
        raise Rejected("the metadata's geometry is no JSON object")
    return _by_name(tensors, stated)


def _read_at(file: BinaryIO, place: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    file.seek(place)
    return np.frombuffer(file.read(math.prod(shape) * BYTES[dtype]), f"<u{BYTES[dtype]}").reshape(shape)


def _torch_layers(file: BinaryIO) -> dict[str, Layer]:
    archive = zipfile.ZipFile(file)
    names, members = archive.namelist(), archive.infolist()
    end = file.seek(-22, 2)
    if archive.comment or file.read(4) != b"PK\5\6" or min((m.header_offset for m in members), default=end) > 0:
        raise Rejected("something lies before or behind the zip, where another reader may find another one")
    if len({name.casefold() for name in names}) != len(names) or any(
        m.compress_type or m.flag_bits & 1 or not m.compress_size == m.file_size <= end for m in members
    ):
        raise Rejected("the zip repeats a name (torch takes DATA for data), or is compressed or encrypted")
    if (damaged := archive.testzip()) is not None:
        raise Rejected(f"CRC mismatch in {damaged!r}: the file has changed since it was written")
    pickles = [name for name in names if name.endswith(("/data.pkl", "/constants.pkl"))]
    folder = pickles[0].removesuffix("data.pkl") if len(pickles) == 1 else ""
    if not folder.endswith("/") or not all(name.startswith(folder) for name in names):
        raise Rejected(
            "not what torch.save writes of a module or a state dict: records in one folder, one pickle among them"
        )
    if f"{folder}byteorder" in names and archive.read(f"{folder}byteorder") != b"little":
        raise Rejected("not little-endian")
    root, described = walk(archive.read(pickles[0]))
    root = network_in(root)
    if not is_module(root):
        tensors = {name: _tensor(value, archive, folder) for name, value in tensors_of(root).items()}
        records = geometry_records(root)
        whole = [path for path in records if {f"{path}.{name}" if path else name for name in TENSORS} <= tensors.keys()]
        stated = {path: {name: _plain(value) for name, value in records[path].items()} for path in whole}
        return _by_name(tensors, stated)  # of a layer that was taken out, metadata may be left
    layers: dict[str, Layer] = {}
    todo: list[tuple[str, Made, tuple[int, ...]]] = [("", root, ())]
    read: dict[int, Layer | None] = {}
    for _ in range(MOST_MODULES):  # every module under each of its paths, in the order of torch's named_modules
        if not todo:
            break
        path, module, above = todo.pop()
        if id(module) in above:
            continue
        attributes = module.state.entries()
        children = [entry for entry in attributes["_modules"].entries().items() if entry[1] is not None]
        inside = (*above, id(module))
        todo += [(f"{path}.{name}" if path else name, child, inside) for name, child in reversed(children)]
        if id(module) not in read:
            read[id(module)] = _layer_of(path, module, attributes, archive, folder)
        if (layer := read[id(module)]) is not None:
            layers[path] = layer
    if todo:
        raise Rejected(f"has more than {MOST_MODULES} modules")
    hidden = [f"(not among the modules: {record.kind})" for record in described if id(record) not in read]
    return layers | dict.fromkeys(hidden, Layer("unknown", None, {}))


def _layer_of(
    path: str, module: Made, attributes: dict[str, Any], archive: zipfile.ZipFile, folder: str
) -> Layer | None:
    """The layer that a module is; None if it is none."""
    held = attributes["_buffers"].entries() | attributes["_parameters"].entries()
    kind = CLASSES.get(module.kind, "unknown")
    if kind == "unknown" and not ({"weight", "w_val"} & set(held) and {"kernel_size", "geometry"} & set(attributes)):
        return None
    tensors = {name: _tensor(value, archive, folder) for name, value in held.items() if value is not None}
    return Layer(kind, None, tensors) if kind == "unknown" else _layer(path, kind, attributes, tensors)


def _layer(path: str, kind: str, attributes: dict[str, Any], tensors: dict[str, Stored]) -> Layer:
    inert = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "geometry")
    registered = [name for part in ("_parameters", "_buffers", "_modules") for name in attributes[part].entries()]
    if len(set(registered)) != len(registered):
        raise Rejected(f"{path!r} registers a name twice")
    for name, value in attributes.items():
        filled = (name == "_modules" or name.startswith("_forward")) and (value.pairs or value.args)
        strange = name not in _KNOWN[kind] or (
            name not in inert and "hooks" not in name and _plain(value) is NotImplemented
        )
        if filled or strange:
            raise Rejected(f"{path!r} has {name.strip('_')} of its own")
    source, radix = attributes, attributes.get("radix")
    if kind == "MHSA":
        made, source = attributes["geometry"], attributes["geometry"].state.entries()
        if made.kind != "construct.geometry ConvGeometry" or set(source) != set(GEOMETRY):
            raise Rejected(f"{path!r} has a geometry of another class, or one with more or fewer fields")
        if any(not isinstance(source[name], tuple | str) for name in GEOMETRY_VECTORS):
            raise Rejected(f"{path!r} has a geometry whose vectors are no tuples")
        if attributes["heads"] != tensors["v"].shape[0] or attributes["_execution"] not in EXECUTIONS:
            raise Rejected(f"{path!r} has another number of heads than it says, or an execution of its own")
    geometry = {name: _plain(source[name]) for name in GEOMETRY}
    axes = len(geometry["kernel_size"]) if isinstance(geometry["kernel_size"], list) else 0
    for name in GEOMETRY_VECTORS:  # torch reads one number, also one in a list, for all axes
        value = [geometry[name]] if type(geometry[name]) is int else geometry[name]
        geometry[name] = value * axes if isinstance(value, list) and len(value) == 1 else value
    geometry |= {} if radix is None else {"radix": _plain(radix)}
    return Layer(kind, geometry, tensors, _plain(attributes.get("_reversed_padding_repeated_twice")))


def _plain(value: Any) -> Any:
    """A value in JSON's types; NotImplemented if it is none, nor a flat sequence of such."""
    if isinstance(value, tuple) or (isinstance(value, Made) and value.kind == "list"):
        items = [*value] if isinstance(value, tuple) else [item for item, _ in value.pairs]
        return items if all(type(item) in (int, bool, str) for item in items) else NotImplemented
    return value if type(value) in (int, float, bool, str, type(None)) else NotImplemented


def _tensor(record: Any, archive: zipfile.ZipFile, folder: str) -> Stored:
    """What torch._utils would rebuild from these arguments."""
    data = record.args[0] if record.kind == "torch._utils _rebuild_parameter" else record
    if data.kind != "torch._utils _rebuild_tensor_v2" or any((record.state, record.pairs, data.state, data.pairs)):
        raise Rejected(f"a {record.kind} of a {data.kind} where a plain tensor or parameter belongs")
    storage, offset, shape, strides, _, hooks, *metadata = data.args
    word, kind, key, _, count = storage.args
    if (storage.kind, word, kind.kind) != ("storage", "storage", "global") or any(metadata) or (hooks and hooks.pairs):
        raise Rejected("a tensor has no storage, or hooks, or metadata")
    if not _counts(shape, strides, (offset, count)) or math.prod(shape) > max(count, MOST_EXPANDED):
        raise Rejected("a tensor's shape, strides or offset are no counts, or too large")
    dtype = str(_STORAGES.get(kind.args) or kind.args)
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))

    def read() -> np.ndarray:
        record = f"{folder}data/{key}"
        there = record in archive.NameToInfo
        raw = archive.read(record) if there else b""
        if not there or dtype not in BYTES or len(raw) != count * BYTES[dtype] or (0 not in shape and last >= count):
            raise Rejected(f"the tensor of {dtype} in record {key} does not fit its storage")
        whole = np.frombuffer(raw, f"<u{BYTES[dtype]}")[offset:]
        steps = [step * BYTES[dtype] for step in strides]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(whole, shape, steps)).reshape(shape)

    return Stored(dtype, shape, read)
