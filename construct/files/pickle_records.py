"""Inert records of the objects in a pickle of torch.save; making one checks its sizes, keys and arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from construct.files.archives import Malformed

MOST_EXPANDED = 2**26
"""The most elements of all tensors beyond those stored (a stride of 0 repeats them)."""

WIDTHS = {
    **{"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1},
    **{"Bool": 1, "ComplexDouble": 16, "ComplexFloat": 8},
}
STORAGES = {f"torch.{kind}Storage": width for kind, width in WIDTHS.items()} | {"torch.storage.UntypedStorage": 1}
DTYPES = {
    f"torch.{kind}{bits}" for kind in ("int", "uint", "float", "complex") for bits in (8, 16, 32, 64, 128)
} | {"torch.bool", "torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2"}  # fmt: skip


@dataclass(eq=False, slots=True)
class Global:
    """A name that pickle would look up."""

    name: str


@dataclass(eq=False, slots=True)
class Container:
    """A list, dict or set with its items (for a dict, keys and values in turn)."""

    kind: str
    items: list[Any] = field(default_factory=list)
    keys: set[Any] = field(default_factory=set)

    def pairs(self) -> list[tuple[Any, Any]]:
        """The keys and values of a dict."""
        return list(zip(self.items[::2], self.items[1::2], strict=True))


@dataclass(eq=False, slots=True)
class Instance:
    """An object of a named class, with its constructor arguments and its state."""

    name: str
    arguments: Any = None
    state: Any = None


@dataclass(eq=False, slots=True)
class Storage:
    """The storage of a tensor; its bytes lie elsewhere in the file."""

    key: str
    count: int
    kind: str

    @property
    def bytes(self) -> int:
        """Its size in bytes."""
        return self.count * STORAGES[self.kind]


@dataclass(eq=False, slots=True)
class Opaque:
    """A value whose content does not matter: a device, a layout, bytes."""

    name: str


_DICTS = ("dict", "OrderedDict", "Counter")


def fill(target: Any, kind: str, items: list[Any]) -> Any:
    """Append items to a list, or insert keys and values (in turn) into a dict; returns the target.

    Raises:
        Malformed: the target is not such a container, or a key is invalid or a duplicate.
    """
    if not isinstance(target, Container) or (target.kind != kind and not (kind == "dict" and target.kind in _DICTS)):
        raise Malformed(f"its pickle puts items of a {kind} into a {name_of(target)}, which torch does not read")
    if kind == "dict" and (len(items) % 2 or not all(map(is_key, items[::2]))):
        raise Malformed("a dict has keys that are neither texts nor numbers")
    if kind == "dict":
        target.keys.update(items[::2])
        if 2 * len(target.keys) != len(target.items) + len(items):
            raise Malformed("a dict is given one key twice")
    target.items += items
    return target


def name_of(thing: object) -> str:
    """The name of a record, or of its class."""
    return getattr(thing, "name", None) or getattr(thing, "kind", None) or type(thing).__name__


def is_key(key: object) -> bool:
    """Whether this may be a key of a dict or an item of a set."""
    if type(key) is tuple:
        return len(key) <= 16 and all(type(part) in (str, int, bool) for part in key)
    return key is None or type(key) in (str, int, float, bool, Opaque, Global)


def counts(what: str, *rows: Any) -> None:
    """Check that these are tuples of counts, as sizes and strides are.

    Raises:
        Malformed: they are not.
    """
    for row in rows:
        if not isinstance(row, tuple) or len(row) > 32 or not all(type(n) is int and 0 <= n < 2**60 for n in row):
            raise Malformed(f"{what} has a size, stride or offset that is no count")


def _tensor(walker: Any, name: str, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Instance:
    if not isinstance(storage, Storage):
        raise Malformed("a tensor has no storage")
    size = size.items[0] if isinstance(size, Container) and size.kind == "size" else size
    counts("a tensor", (offset,), size, stride)
    if len(size) != len(stride):
        raise Malformed("a tensor has another number of strides than of axes")
    dtypes = [x for x in rest if isinstance(x, Global)]  # from _v3, whose storages are bytes
    scale = max((_width(dtype.name) for dtype in dtypes), default=1)
    stored = storage.count // scale
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 not in size and last >= stored:
        raise Malformed(f"a tensor of shape {size} reaches beyond its storage of {stored} numbers")
    walker.expanded += max(0, prod(size) - stored)
    if walker.expanded > MOST_EXPANDED:
        raise Malformed(f"a tensor of shape {size} has {prod(size):.3g} numbers, and only {stored} are stored")
    return Instance("tensor", rest)


def _width(dtype: str) -> int:
    digits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
    return int(digits) // 8 if dtype in DTYPES and digits else 1


def _on_meta(walker: Any, name: str, dtype: Any, size: Any, stride: Any, *rest: Any) -> Instance:
    size = size.items[0] if isinstance(size, Container) and size.kind == "size" else size
    counts("a tensor", size, stride)
    return Instance("tensor", rest)


def _parameter(walker: Any, name: str, data: Any, *rest: Any) -> Instance:
    if not (isinstance(data, Instance) and data.name == "tensor"):
        raise Malformed("a parameter is no tensor")
    for state in rest[2:]:  # attributes; setting ``real`` would overwrite every number
        if not (isinstance(state, Container) and state.kind == "dict") or any(
            not isinstance(key, str) or hasattr(torch.Tensor, key) for key in state.items[::2]
        ):
            raise Malformed("a parameter has an attribute that every tensor has")
    return Instance("tensor", rest)


def _container(walker: Any, name: str, *arguments: Any) -> Container:
    kind = name.rpartition(".")[2]
    if len(arguments) > 1 or not all(isinstance(x, Container) for x in arguments):
        raise Malformed(f"its pickle makes a {kind} with unexpected arguments")
    items = [item for container in arguments for item in container.items]
    if kind == "OrderedDict":  # from Python 2: a list of [key, value] lists
        if not all(isinstance(pair, Container) and pair.kind == "list" and len(pair.items) == 2 for pair in items):
            raise Malformed(f"its pickle makes a {kind} with unexpected arguments")
        items = [part for pair in items for part in pair.items]
    if kind != "set":
        return fill(Container(kind), "dict", items)
    if not all(map(is_key, items)):
        raise Malformed("a set has items that are neither texts nor numbers")
    return Container(kind, items)


def _size(walker: Any, name: str, size: Any) -> Container:
    counts("a size", size)
    return Container("size", [size])


def _opaque(walker: Any, name: str, *arguments: Any) -> Any:
    ints = sum(type(x) is int for x in arguments) if name == "builtins.bytearray" else 0  # an int would be a length
    if ints or len(arguments) > 2 or not all(type(x) in (str, int, float, Opaque) for x in arguments):
        raise Malformed(f"its pickle calls {name} with unexpected arguments")
    return Opaque(name)


def _refused(walker: Any, name: str, *arguments: Any) -> Any:
    kind = {"q": "quantised", "s": "sparse", "n": "nested"}[name.removeprefix("torch._utils._rebuild_")[0]]
    raise Malformed(f"it holds {kind} tensors, which are not read: make plain ones of them")


CALLS: Mapping[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch._utils._rebuild_meta_tensor_no_storage": _on_meta,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_qtensor": _refused,
    "torch._utils._rebuild_sparse_tensor": _refused,
    "torch._utils._rebuild_nested_tensor": _refused,
    "collections.OrderedDict": _container,
    "collections.Counter": _container,
    "builtins.set": _container,
    "torch.Size": _size,
    **dict.fromkeys(
        ("torch.device", "torch.serialization._get_layout", "_codecs.encode", "builtins.bytearray", "builtins.complex"),
        _opaque,
    ),
}

KNOWN = frozenset({*CALLS, *STORAGES, *DTYPES, "torch.Tensor"})
"""All names that a model file may use besides its classes."""
