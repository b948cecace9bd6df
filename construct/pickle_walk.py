"""A walk along a pickle that carries nothing out, and refuses what no saved model holds.

``torch.load(weights_only=True)`` looks classes up in a list and runs nothing else, but it takes a file's word for every
size.  Here the same instructions are followed with inert records, and each tensor is held against its storage, each storage
against the bytes that are there, and every nesting against a bound, before torch sees the file.
"""

import io
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, BinaryIO

MOST_STEPS = 700_000
"""Instructions of a pickle: a module takes about 150, a tensor 40, and to follow this many (twice, and torch once) takes 5 s."""
MOST_EXPANDED = 2**26
"""Elements that tensors may have beyond those that are stored (a stride of 0 repeats them)."""
LONGEST_TEXT = 2**26
"""Bytes of one text."""
DEEPEST, MOST_LEAVES = 500, 10**7
"""Of lists, tuples and dicts inside each other, counted as if nothing were shared."""

WIDTHS = {
    **{"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1},
    **{"Bool": 1, "ComplexDouble": 16, "ComplexFloat": 8},
}
STORAGES = {f"torch.{kind}Storage": width for kind, width in WIDTHS.items()} | {"torch.storage.UntypedStorage": 1}
DTYPES = {
    f"torch.{kind}{bits}" for kind in ("int", "uint", "float", "complex") for bits in (8, 16, 32, 64, 128)
} | {"torch.bool", "torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2"}  # fmt: skip


class Odd(ValueError):
    """The pickle holds what no saved model holds; one clause says what."""


@dataclass(eq=False, slots=True)
class Global:
    """A name that pickle would look up."""

    name: str


@dataclass(eq=False, slots=True)
class Held:
    """A list, dict or set, with what is put in (of a dict, keys and values in turn)."""

    kind: str
    items: list[Any] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Made:
    """An object of a named class, with its state; its content is no part of the container that it lies in."""

    name: str
    state: Any = None


@dataclass(eq=False, slots=True)
class Storage:
    """The numbers of a tensor, elsewhere in the file."""

    key: str
    count: int
    width: int


@dataclass(eq=False, slots=True)
class Plain:
    """A small value of some built-in class: a size, a device, bytes."""

    name: str


class Walker:
    """Follows the instructions that torch's restricted reader knows, and no others."""

    def __init__(self, classes: Collection[str], named: Collection[str] = ()):
        """``classes``: the modules that may be made; ``named``: what the user allows beyond."""
        self.classes, self.named = frozenset(classes), frozenset(named)
        self.storages: dict[str, Storage] = {}
        self.expanded = 0
        self.objects: list[Any] = []

    def walk(self, file: BinaryIO) -> Any:
        """Follow one pickle; the record of what it describes.

        Raises:
            Odd: it holds what no model does.
        """
        try:
            root = self._walk(file)
            self._bound([root, *(thing.state for thing in self.objects)])
        except Odd:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise Odd("its pickle is damaged") from error
        return root

    def _walk(self, file: BinaryIO) -> Any:
        read, stack, outer, memo = file.read, [], [], {}

        def exactly(count: int) -> bytes:
            if count > LONGEST_TEXT:  # to ask a file for that much would take the memory before it is known to be there
                raise Odd(f"its pickle has a text of {count} bytes")
            data = read(count)
            if len(data) != count:
                raise Odd("its pickle ends too early")
            return data

        for _ in range(MOST_STEPS):
            code = exactly(1)
            if code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code in _NUMBERS:
                form = _NUMBERS[code]
                stack.append(struct.unpack(form, exactly(struct.calcsize(form)))[0])
            elif code == b"X":
                stack.append(str(exactly(struct.unpack("<I", exactly(4))[0]), "utf-8", "surrogatepass"))
            elif code in b"U\x8a":  # SHORT_BINSTRING, LONG1
                data = exactly(exactly(1)[0])
                stack.append(data.decode("latin-1") if code == b"U" else int.from_bytes(data, "little", signed=True))
            elif code in b"qr":  # BINPUT, LONG_BINPUT
                memo[exactly(1)[0] if code == b"q" else struct.unpack("<I", exactly(4))[0]] = stack[-1]
            elif code in b"hj":  # BINGET, LONG_BINGET
                stack.append(memo[exactly(1)[0] if code == b"h" else struct.unpack("<I", exactly(4))[0]])
            elif code in b"]})\x8f":
                kinds = {b"]": "list", b"}": "dict", b"\x8f": "set"}
                stack.append(() if code == b")" else Held(kinds[code]))
            elif code == b"(":
                outer.append(stack)
                stack = []
            elif code in b"teu":  # TUPLE, APPENDS, SETITEMS
                items, stack = stack, outer.pop()
                if code == b"t":
                    stack.append(tuple(items))
                else:
                    self._put(stack[-1], items, "list" if code == b"e" else "dict")
            elif code in b"\x85\x86\x87":
                count = code[0] - 0x84
                items = [stack.pop() for _ in range(count)]
                stack.append(tuple(items[::-1]))
            elif code in b"as":  # APPEND, SETITEM
                count = 1 if code == b"a" else 2
                items = [stack.pop() for _ in range(count)][::-1]
                self._put(stack[-1], items, "list" if code == b"a" else "dict")
            elif code == b"c":
                module, name = (file.readline(1000)[:-1].decode() for _ in range(2))
                module = {"__builtin__": "builtins"}.get(module, module)
                stack.append(self._global(f"{module}.{name}"))
            elif code in b"R\x81b":  # REDUCE, NEWOBJ, BUILD
                argument = stack.pop()
                act = {b"R": self._call, b"\x81": self._new, b"b": self._fill}[code]
                stack[-1] = act(stack[-1], argument)
            elif code == b"Q":
                stack[-1] = self._storage(stack[-1])
            elif code == b"\x80":
                if exactly(1) != b"\x02":
                    raise Odd("its pickle is of another protocol than 2")
            elif code == b".":
                if len(stack) != 1 or outer:
                    raise Odd("its pickle leaves something over")
                return stack[0]
            else:
                raise Odd(f"its pickle has the instruction {code!r}, where torch.save writes none")
        raise Odd(f"its pickle has more than {MOST_STEPS} instructions")

    def _put(self, target: Any, items: list[Any], kind: str) -> None:
        if not isinstance(target, Held) or (target.kind != kind and not (kind == "dict" and target.kind in _DICTS)):
            raise Odd(f"its pickle puts items of a {kind} where none is")
        if kind == "dict" and (len(items) % 2 or not all(map(_is_key, items[::2]))):
            raise Odd("a dict has keys that are neither texts nor numbers")
        target.items += items

    def _global(self, name: str) -> Global:
        known = self.classes | self.named | _CALLS.keys() | STORAGES.keys() | DTYPES | {"torch.Tensor"}
        if name not in known:
            raise Odd(f"its pickle names {name}, which is not allowed")
        return Global(name)

    def _new(self, kind: Any, arguments: Any) -> Any:
        name = kind.name if isinstance(kind, Global) else ""
        if name in self.named or (name in self.classes and arguments == ()):
            self.objects.append(made := Made(name, arguments or None))
            return made
        raise Odd(f"its pickle makes {name or 'something'} in an odd way")

    def _call(self, function: Any, arguments: Any) -> Any:
        name = function.name if isinstance(function, Global) else ""
        if name in self.named:
            self.objects.append(made := Made(name, arguments))
            return made
        if name not in _CALLS or not isinstance(arguments, tuple):
            raise Odd(f"its pickle calls {name or 'what is no name'}")
        return _CALLS[name](self, name, *arguments)

    def _fill(self, target: Any, state: Any) -> Any:
        if isinstance(target, Held) and target.kind == "OrderedDict" and isinstance(state, Held):
            target.items += ["__dict__", state]
        elif isinstance(target, Made) and (target.name in self.named or target.name in self.classes):
            if target.name in self.classes and not (isinstance(state, Held) and state.kind == "dict"):
                raise Odd(f"the state of a {target.name} is no dict")
            target.state = (target.state, state)
        else:
            raise Odd("its pickle fills what is no module")
        return target

    def _storage(self, pid: Any) -> Storage:
        word, kind, key, location, count, *rest = pid
        if word != "storage" or not isinstance(kind, Global) or kind.name not in STORAGES or any(rest):
            raise Odd("a tensor has no storage")
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and isinstance(location, str)):
            raise Odd("a storage has an odd name")
        _counts("a storage", (count,))
        storage = self.storages.setdefault(key, Storage(key, count, STORAGES[kind.name]))
        if (storage.count, storage.width) != (count, STORAGES[kind.name]):
            raise Odd(f"storage {key} is described in two ways")
        return storage

    def _bound(self, roots: list[Any]) -> None:
        """Make sure that no container is deep, endless, or of more leaves than one could ever visit."""
        sizes: dict[int, tuple[int, int]] = {}
        for root in roots:
            todo: list[tuple[Any, bool]] = [(root, False)]
            while todo:
                thing, ready = todo.pop()
                inner = thing.items if isinstance(thing, Held) else thing if isinstance(thing, tuple) else ()
                if not inner or (id(thing) in sizes and not ready):
                    continue
                if not ready:
                    sizes[id(thing)] = _OPEN
                    todo.append((thing, True))
                    for x in inner:
                        if isinstance(x, Held | tuple):
                            if sizes.get(id(x)) == _OPEN:
                                raise Odd("a list or dict holds itself")
                            todo.append((x, False))
                else:
                    found = [sizes.get(id(x), _LEAF) if isinstance(x, Held | tuple) else _LEAF for x in inner]
                    leaves, depth = sum(n for n, _ in found), 1 + max(d for _, d in found)
                    if depth > DEEPEST or leaves > MOST_LEAVES:
                        raise Odd(f"lists or dicts are nested {depth} deep, with {leaves} entries")
                    sizes[id(thing)] = (leaves, depth)


_LEAF, _OPEN = (1, 0), (0, DEEPEST + 1)
_DICTS = ("dict", "OrderedDict", "Counter")
_CONSTANTS = {b"N": None, b"\x88": True, b"\x89": False}
_NUMBERS = {b"J": "<i", b"K": "<B", b"M": "<H", b"G": ">d"}


def _is_key(key: object) -> bool:
    if type(key) is tuple:
        return len(key) <= 16 and all(type(part) in (str, int, bool) for part in key)
    return key is None or type(key) in (str, int, float, bool, Plain, Global)


def _counts(what: str, *rows: Any) -> None:
    for row in rows:
        if not isinstance(row, tuple) or len(row) > 32 or not all(type(n) is int and 0 <= n < 2**60 for n in row):
            raise Odd(f"{what} has a size, stride or offset that is no count")


def _tensor(walker: Walker, name: str, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Made:
    if not isinstance(storage, Storage):
        raise Odd("a tensor has no storage")
    size = size.items[0] if isinstance(size, Held) and size.kind == "size" else size
    _counts("a tensor", (offset,), size, stride)
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


def _on_meta(walker: Walker, name: str, dtype: Any, size: Any, stride: Any, *rest: Any) -> Made:
    size = size.items[0] if isinstance(size, Held) and size.kind == "size" else size
    _counts("a tensor", size, stride)
    return Made("tensor", rest)


def _parameter(walker: Walker, name: str, data: Any, *rest: Any) -> Made:
    if not (isinstance(data, Made) and data.name == "tensor"):
        raise Odd("a parameter is no tensor")
    return Made("tensor", rest)


def _held(kind: str) -> Callable[..., Held]:
    def make(walker: Walker, name: str, *arguments: Any) -> Held:
        if arguments and not (len(arguments) == 1 and kind != "OrderedDict" and isinstance(arguments[0], Held)):
            raise Odd(f"its pickle makes a {kind} in an odd way")
        items = list(arguments[0].items) if arguments else []
        if not all(map(_is_key, items[::2] if kind == "Counter" else items)):
            raise Odd(f"a {kind} has keys that are neither texts nor numbers")
        return Held(kind, items)

    return make


def _size(walker: Walker, name: str, size: Any) -> Held:
    _counts("a size", size)
    return Held("size", [size])


def _plain(walker: Walker, name: str, *arguments: Any) -> Any:
    ints = sum(type(x) is int for x in arguments) if name == "builtins.bytearray" else 0  # an int would be a length
    if ints or len(arguments) > 2 or not all(type(x) in (str, int, float, Plain) for x in arguments):
        raise Odd(f"its pickle calls {name} in an odd way")
    return Plain(name)


def _unused(walker: Walker, name: str, *arguments: Any) -> Any:
    kind = {"q": "quantised", "s": "sparse", "n": "nested"}[name.removeprefix("torch._utils._rebuild_")[0]]
    raise Odd(f"it holds {kind} tensors, which are not read")


_CALLS: Mapping[str, Callable[..., Any]] = {
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

KNOWN = frozenset({*_CALLS, *STORAGES, *DTYPES, "torch.Tensor"})
"""Everything that a model file may name beside its classes."""


def walk_bytes(data: bytes, classes: Collection[str], named: Collection[str] = ()) -> Walker:
    """Walk the one pickle of an archive."""
    walker, file = Walker(classes, named), io.BytesIO(data)
    walker.walk(file)
    if file.read(1):
        raise Odd("something follows after the end of its pickle")
    return walker


def walk_legacy(file: BinaryIO, size: int, classes: Collection[str], named: Collection[str] = ()) -> Walker:
    """Walk the pickles of a file as torch.save wrote them before 1.6, whose numbers follow one after another."""
    for _ in range(3):  # a magic number, the protocol, the system
        Walker(()).walk(file)
    walker = Walker(classes, named)
    walker.walk(file)
    keys = Walker(()).walk(file)
    found = sorted(keys.items) if isinstance(keys, Held) and all(isinstance(k, str) for k in keys.items) else None
    if found != sorted(walker.storages):
        raise Odd("its list of storages is not that of its tensors")
    needed = sum(storage.count * storage.width + 8 for storage in walker.storages.values())
    if file.tell() + needed != size:
        raise Odd(f"its storages need {needed} bytes, and {size - file.tell()} are there")
    return walker
