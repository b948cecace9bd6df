"""What a pickle of torch.save makes, as inert records, each held to what the file has for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from construct.files.archives import Odd

MOST_EXPANDED = 2**26
"""Elements that tensors may have beyond those that are stored (a stride of 0 repeats them)."""

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
class Held:
    """A list, dict or set, with what is put in (of a dict, keys and values in turn)."""

    kind: str
    items: list[Any] = field(default_factory=list)
    keys: set[Any] = field(default_factory=set)

    def pairs(self) -> list[tuple[Any, Any]]:
        """The keys and values of a dict."""
        return list(zip(self.items[::2], self.items[1::2], strict=True))


@dataclass(eq=False, slots=True)
class Made:
    """An object of a named class, with its arguments and its state; its content is no part of the container that it lies in."""

    name: str
    arguments: Any = None
    state: Any = None


@dataclass(eq=False, slots=True)
class Storage:
    """The numbers of a tensor, elsewhere in the file."""

    key: str
    count: int
    kind: str

    @property
    def bytes(self) -> int:
        """How many it takes."""
        return self.count * STORAGES[self.kind]


@dataclass(eq=False, slots=True)
class Plain:
    """A small value of some built-in class: a size, a device, bytes."""

    name: str


_DICTS = ("dict", "OrderedDict", "Counter")


def put(target: Any, kind: str, items: list[Any]) -> Any:
    """Put items into a list, or keys and values in turn into a dict; the target.

    Raises:
        Odd: it is none, or no such keys can be, or one is there already.
    """
    if not isinstance(target, Held) or (target.kind != kind and not (kind == "dict" and target.kind in _DICTS)):
        raise Odd(f"its pickle puts items of a {kind} into a {named(target)}, which torch does not read")
    if kind == "dict" and (len(items) % 2 or not all(map(is_key, items[::2]))):
        raise Odd("a dict has keys that are neither texts nor numbers")
    if kind == "dict":
        target.keys.update(items[::2])
        if 2 * len(target.keys) != len(target.items) + len(items):
            raise Odd("a dict is given one key twice")
    target.items += items
    return target


def named(thing: object) -> str:
    """The name of a record, or its class."""
    return getattr(thing, "name", None) or getattr(thing, "kind", None) or type(thing).__name__


def is_key(key: object) -> bool:
    """Whether this may be a key of a dict, or in a set."""
    if type(key) is tuple:
        return len(key) <= 16 and all(type(part) in (str, int, bool) for part in key)
    return key is None or type(key) in (str, int, float, bool, Plain, Global)


def counts(what: str, *rows: Any) -> None:
    """Make sure that these are tuples of counts, as sizes are.

    Raises:
        Odd: they are not.
    """
    for row in rows:
        if not isinstance(row, tuple) or len(row) > 32 or not all(type(n) is int and 0 <= n < 2**60 for n in row):
            raise Odd(f"{what} has a size, stride or offset that is no count")


def _tensor(walker: Any, name: str, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Made:
    if not isinstance(storage, Storage):
        raise Odd("a tensor has no storage")
    size = size.items[0] if isinstance(size, Held) and size.kind == "size" else size
    counts("a tensor", (offset,), size, stride)
    if len(size) != len(stride):
        raise Odd("a tensor has another number of strides than of axes")
    dtypes = [x for x in rest if isinstance(x, Global)]  # of _v3, whose storages are bytes
    scale = max((_width(dtype.name) for dtype in dtypes), default=1)
    stored = storage.count // scale
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 not in size and last >= stored:
        raise Odd(f"a tensor of shape {size} reaches beyond its storage of {stored} numbers")
    walker.expanded += max(0, prod(size) - stored)
    if walker.expanded > MOST_EXPANDED:
        raise Odd(f"a tensor of shape {size} has {prod(size):.3g} numbers, and only {stored} are stored")
    return Made("tensor", rest)


def _width(dtype: str) -> int:
    digits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
    return int(digits) // 8 if dtype in DTYPES and digits else 1


def _on_meta(walker: Any, name: str, dtype: Any, size: Any, stride: Any, *rest: Any) -> Made:
    size = size.items[0] if isinstance(size, Held) and size.kind == "size" else size
    counts("a tensor", size, stride)
    return Made("tensor", rest)


def _parameter(walker: Any, name: str, data: Any, *rest: Any) -> Made:
    if not (isinstance(data, Made) and data.name == "tensor"):
        raise Odd("a parameter is no tensor")
    for state in rest[2:]:  # attributes; to set that of the name "real" is to set every number
        if not (isinstance(state, Held) and state.kind == "dict") or any(
            not isinstance(key, str) or hasattr(torch.Tensor, key) for key in state.items[::2]
        ):
            raise Odd("a parameter has an attribute that every tensor has")
    return Made("tensor", rest)


def _held(kind: str) -> Callable[..., Held]:
    def make(walker: Any, name: str, *arguments: Any) -> Held:
        if len(arguments) > 1 or not all(isinstance(x, Held) for x in arguments):
            raise Odd(f"its pickle makes a {kind} in an odd way")
        items = [item for held in arguments for item in held.items]
        if kind == "OrderedDict":  # of Python 2: a list of lists, a key and a value each
            if not all(isinstance(pair, Held) and pair.kind == "list" and len(pair.items) == 2 for pair in items):
                raise Odd(f"its pickle makes a {kind} in an odd way")
            items = [part for pair in items for part in pair.items]
        if kind != "set":
            return put(Held(kind), "dict", items)
        if not all(map(is_key, items)):
            raise Odd("a set has items that are neither texts nor numbers")
        return Held(kind, items)

    return make


def _size(walker: Any, name: str, size: Any) -> Held:
    counts("a size", size)
    return Held("size", [size])


def _plain(walker: Any, name: str, *arguments: Any) -> Any:
    ints = sum(type(x) is int for x in arguments) if name == "builtins.bytearray" else 0  # an int would be a length
    if ints or len(arguments) > 2 or not all(type(x) in (str, int, float, Plain) for x in arguments):
        raise Odd(f"its pickle calls {name} in an odd way")
    return Plain(name)


def _unused(walker: Any, name: str, *arguments: Any) -> Any:
    kind = {"q": "quantised", "s": "sparse", "n": "nested"}[name.removeprefix("torch._utils._rebuild_")[0]]
    raise Odd(f"it holds {kind} tensors, which are not read")


CALLS: Mapping[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch._utils._rebuild_meta_tensor_no_storage": _on_meta,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_qtensor": _unused,
    "torch._utils._rebuild_sparse_tensor": _unused,
    "torch._utils._rebuild_nested_tensor": _unused,
    "collections.OrderedDict": _held("OrderedDict"),
    "collections.Counter": _held("Counter"),
    "builtins.set": _held("set"),
    "torch.Size": _size,
    **dict.fromkeys(
        ("torch.device", "torch.serialization._get_layout", "_codecs.encode", "builtins.bytearray", "builtins.complex"),
        _plain,
    ),
}

KNOWN = frozenset({*CALLS, *STORAGES, *DTYPES, "torch.Tensor"})
"""Everything that a model file may name beside its classes."""
