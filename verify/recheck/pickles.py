"""A pickle interpreter that builds inert records: nothing is imported and nothing is called.

It accepts the opcodes of torch.load(weights_only=True), in the protocol that torch.save writes, and only as torch.save uses
them.  Nothing changes a tensor or a storage after it is built, and only torch's own functions that rebuild tensors receive one.
"""

import re
import struct
from dataclasses import dataclass, field, replace
from typing import Any

from verify.verdict import escaped

MOST_OPCODES = 5_000_000
CLASSES = {f"torch.nn.modules.conv {kind}{d}d": f"{kind}{d}d" for kind in ("Conv", "ConvTranspose") for d in (1, 2, 3)}
CLASSES["construct.attention MHSA"] = "MHSA"
PLAIN = re.compile(r"torch\.nn\.modules\.\w+ \w+|construct\.attention MHSA|construct\.geometry ConvGeometry")
"""Classes that known code builds without arguments and then gives a state."""
STORAGES = {"Half": 2, "BFloat16": 2, "Float": 4, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16}
"""Bytes per number of each storage type; types that can have gradients come first."""
_TRAIN = {f"torch {kind}Storage" for kind in STORAGES}
STORAGES |= {"Bool": 1, "Byte": 1, "Char": 1, "Short": 2, "Int": 4, "Long": 8, "QInt8": 1, "QUInt8": 1, "QInt32": 4}
STORAGES = {f"torch {kind}Storage": width for kind, width in STORAGES.items()} | {"torch.storage UntypedStorage": 1}
TENSOR, PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"

_DICTS, _ORDERED = ("dict", "collections OrderedDict"), "collections OrderedDict"
_TORCHS = re.compile(
    r"(torch(\.(_\w+|storage|serialization|nn\.(parameter|functional)))?|_codecs|builtins|__builtin__) .*|collections Counter"
)
"""Names that torch knows; each may be called in one way only, or never."""
_LITERALS = {78: None, 0x88: True, 0x89: False, 41: ()}
_NUMBERS = {75: "<B", 77: "<H", 74: "<i", 71: ">d"}
_EMPTY = {93: "list", 125: "dict", 0x8F: "set"}


class Rejected(ValueError):
    """A file is malformed, or a certificate states something false; the one-line message says what.

    Unprintable characters of the file are escaped.
    """

    def __init__(self, message: str):
        super().__init__(escaped(message))


class NotConfirmed(Rejected):
    """The files are intact, but what the certificate states about them is false."""


@dataclass(eq=False)
class Pickled:
    """The record of an object that pickle would build: ``kind(*args)``, filled with ``pairs``, given ``state``."""

    kind: str
    args: Any = ()
    pairs: list[tuple[Any, Any]] = field(default_factory=list)
    state: Any = None

    def entries(self) -> dict[str, Any]:
        """The content of a dict whose keys are distinct strings."""
        named = {key: value for key, value in self.pairs if type(key) is str}
        if self.kind not in _DICTS or self.args or len(named) != len(self.pairs):
            raise Rejected(f"a {self.kind} where a dict of names belongs")
        return named


def counts(*rows: Any) -> bool:
    """Whether all of these are sequences of nonnegative integers, as sizes are."""
    return all(isinstance(row, list | tuple) and all(type(x) is int and 0 <= x < 2**60 for x in row) for row in rows)


def _other_class(kind: str) -> bool:
    """Whether this names a class other than those of ``_TORCHS`` and OrderedDict."""
    return " " in kind and kind != _ORDERED and not _TORCHS.fullmatch(kind)


def _key(value: Any) -> bool:
    """Whether this can be a dict key."""
    if type(value) is tuple:
        return all(type(part) is not tuple and _key(part) for part in value)
    if isinstance(value, Pickled):
        return value.kind == "global" or _other_class(value.kind)
    return type(value) in (str, int, float, bool, type(None))


def is_module(value: Any) -> bool:
    """Whether this is the record of an nn.Module."""
    state = value.state if isinstance(value, Pickled) and value.kind != "construct.geometry ConvGeometry" else None
    return isinstance(state, Pickled) and any(key == "_modules" for key, _ in state.pairs)


class Walk:
    """Interpret a pickle into records.

    Attributes:
        root: the record of the whole object.
        layers: the records of all convolutions and attention layers.
        storages: type and size of every storage by key, in the order of first mention.
    """

    def __init__(self, pickle: bytes):
        self._pickle, self._at = pickle, 2
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._to_unknown: list[Any] = []
        self._keys: dict[int, tuple[Pickled, set[Any]]] = {}  # keeps the dict alive, so that its id stays unique
        self.layers: list[Pickled] = []
        self.storages: dict[str, tuple[str, int]] = {}
        if pickle[:2] != b"\x80\2":
            raise Rejected("the pickle is not of protocol 2, as torch.save writes it")
        for _ in range(MOST_OPCODES):
            (code,) = self._take(1)
            if code == 46:  # STOP
                break
            self._step(code)
        else:
            raise Rejected(f"the pickle has more than {MOST_OPCODES} opcodes")
        if len(self._stack) != 1 or self._outer or self._at != len(pickle):
            raise Rejected("the pickle leaves something over, or something follows it")
        self.root = self._stack[0]
        self._check_unknown()

    def _take(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._pickle):
            raise Rejected("the pickle has no end")
        return self._pickle[self._at - count : self._at]

    def _line(self) -> str:
        return self._take(self._pickle.index(b"\n", self._at) + 1 - self._at)[:-1].decode()

    def _step(self, code: int) -> None:
        stack = self._stack
        if code in _LITERALS:
            stack.append(_LITERALS[code])
        elif code in _NUMBERS:
            stack.append(struct.unpack(_NUMBERS[code], self._take(struct.calcsize(_NUMBERS[code])))[0])
        elif code in (88, 85):  # BINUNICODE, SHORT_BINSTRING
            length = int.from_bytes(self._take(4 if code == 88 else 1), "little")
            stack.append(self._take(length).decode("utf-8", "surrogatepass" if code == 88 else "strict"))
        elif code == 0x8A:  # LONG1
            stack.append(int.from_bytes(self._take(self._take(1)[0]), "little", signed=True))
        elif code in _EMPTY:
            stack.append(Pickled(_EMPTY[code]))
        elif code == 99:  # GLOBAL
            stack.append(Pickled("global", f"{self._line()} {self._line()}"))  # never looked up
        elif code in (113, 114):  # BINPUT, LONG_BINPUT
            self._memo[int.from_bytes(self._take(1 if code == 113 else 4), "little")] = stack[-1]
        elif code in (104, 106):  # BINGET, LONG_BINGET
            stack.append(self._memo[int.from_bytes(self._take(1 if code == 104 else 4), "little")])
        elif code == 40:  # MARK
            self._outer.append(stack)
            self._stack = []
        elif code in (116, 101, 117):  # TUPLE, APPENDS, SETITEMS
            self._stack = self._outer.pop()
            self._stack.append(tuple(stack)) if code == 116 else self._put(self._stack[-1], stack, code == 117)
        elif code in (0x85, 0x86, 0x87, 97, 115):  # TUPLE1 to TUPLE3, APPEND, SETITEM
            count = {97: 1, 115: 2}.get(code, code - 0x84)
            items = [stack.pop() for _ in range(count)][::-1]
            stack.append(tuple(items)) if code > 0x84 else self._put(stack[-1], items, code == 115)
        elif code == 81:  # BINPERSID
            stack.append(self._storage(stack.pop()))
        elif code in (82, 0x81):  # REDUCE, NEWOBJ
            args = stack.pop()
            stack.append(self._called(stack.pop(), args, code == 82))
        elif code == 98:  # BUILD
            state = stack.pop()
            self._fill(stack[-1], state)
        else:
            raise Rejected(f"the pickle has the opcode {code:#x} at {self._at - 1}, where torch.save writes none")

    def _put(self, target: Any, items: list[Any], by_key: bool) -> None:
        if (target.kind not in _DICTS) if by_key else (target.kind != "list"):
            self._give(target, items)
        if by_key and not all(map(_key, items[::2])):
            raise Rejected("a dict has a key that is none")
        if by_key:
            _, keys = self._keys.setdefault(id(target), (target, set()))
            keys.update(items[::2])
            if len(keys) != len(target.pairs) + len(items) // 2:
                raise Rejected("a dict is given one key twice")
        target.pairs += zip(items[::2], items[1::2], strict=True) if by_key else ((item, 0) for item in items)

    def _give(self, target: Pickled, items: Any) -> None:
        """Note the values that an object of an unknown class receives."""
        if PLAIN.fullmatch(target.kind) or not _other_class(target.kind):
            raise Rejected(
                f"the pickle puts an item into a {target.kind}, or gives it a state, which torch.save does not"
            )
        self._to_unknown.append(items)

    def _storage(self, described: Any) -> Pickled:
        word, kind, key, location, count = described
        if word != "storage" or type(kind) is not Pickled or kind.args not in STORAGES or type(location) is not str:
            raise Rejected("a tensor has no storage, or one of a type that is not known")
        if location == "meta":
            raise Rejected("a storage is on the device meta, where torch.load gives it no numbers")
        if type(key) is not str or not (key.isascii() and key.isdigit()) or not counts((count,)):
            raise Rejected(f"a storage has an unexpected name or size, {key!r:.60}")
        if self.storages.setdefault(key, (kind.args, count)) != (kind.args, count):
            raise Rejected(f"storage {key!r} is described in two ways, of which torch takes the first")
        return Pickled("storage", described)

    def _called(self, function: Any, args: Any, reduced: bool) -> Pickled:
        kind = function.args if isinstance(function, Pickled) and function.kind == "global" else ""
        if not kind or type(args) is not tuple:
            raise Rejected("the pickle calls what is no name")
        known = False
        if PLAIN.fullmatch(kind) or kind == _ORDERED:
            known = not args and reduced == (kind == _ORDERED)
        elif kind == TENSOR:
            known = reduced and self._rebuilds(*args)
        elif kind == PARAMETER:
            data, trains, hooks = args
            known = reduced and data.kind == TENSOR and data.state is None and self._trains(data.args[0], trains, hooks)
        elif _TORCHS.fullmatch(kind):
            known = reduced and _makes_a_value(kind.replace("__builtin__", "builtins"), args)
        else:
            self._to_unknown.append((kind, args))
            known = True
        if not known:
            raise Rejected(f"the pickle makes {kind.replace(' ', '.')!r} in another way than torch.save")
        new = Pickled(kind, args)
        self.layers += [new] if kind in CLASSES else []
        return new

    def _rebuilds(
        self, storage: Any, offset: Any, shape: Any, strides: Any, trains: Any, hooks: Any, *more: Any
    ) -> bool:
        if (
            storage.kind != "storage"
            or not counts(shape, strides, (offset,))
            or len(shape) > 32
            or more not in ((), (None,))
        ):
            raise Rejected("a tensor has no storage, or metadata, or a shape, strides or offset that are no counts")
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if 0 not in shape and last >= storage.args[4]:
            raise Rejected(
                f"a tensor of shape {shape} does not fit storage {storage.args[2]!r} of {storage.args[4]} numbers"
            )
        return self._trains(storage, trains, hooks)

    def _trains(self, storage: Pickled, trains: Any, hooks: Any) -> bool:
        return type(trains) is bool and not (trains and storage.args[1].args not in _TRAIN) and hooks.kind == _ORDERED

    def _fill(self, target: Any, state: Any) -> None:
        if target.state is not None:
            raise Rejected(f"the pickle gives a {target.kind} two states")
        # Pickle, too, copies the dict's present items.
        target.state = replace(state, pairs=[*state.pairs]) if isinstance(state, Pickled) else state
        if target.kind == _ORDERED:
            if [key for key, _ in state.pairs] != ["_metadata"]:
                raise Rejected("a dict has attributes of its own, which may hide its items")
        elif not PLAIN.fullmatch(target.kind):
            self._give(target, None if is_module(target) else state)

    def _check_unknown(self) -> None:
        """Refuse tensors passed to unknown code, which might change their numbers."""
        pending, visited = [*self._to_unknown], set[int]()
        while pending:
            value = pending.pop()
            if not isinstance(value, Pickled | tuple | list) or id(value) in visited:
                continue
            visited.add(id(value))
            if isinstance(value, Pickled) and value.kind == "storage":
                raise Rejected("the pickle gives a tensor to a function or an object that is not known")
            pending += (value.args, value.state, *value.pairs) if isinstance(value, Pickled) else value


def _makes_a_value(kind: str, args: tuple[Any, ...]) -> bool:
    """Whether this is how torch.save writes bytes, sets and similar values, from plain arguments."""
    types = [type(x) for x in args]
    if kind == "_codecs encode":
        return types == [str, str] and args[1] == "latin1" and all(ord(letter) < 256 for letter in args[0])
    if kind == "builtins set":
        return (
            len(args) == 1
            and args[0].kind == "list"
            and all(_key(x) and not isinstance(x, Pickled) for x, _ in args[0].pairs)
        )
    if kind == "builtins complex":
        return types == [float, float]
    if kind == "builtins bytearray":
        return types == [str, str] and args[1] == "latin-1" and all(ord(letter) < 256 for letter in args[0])
    if kind == "collections Counter":
        return len(args) == 1 and args[0].kind == "dict" and all(type(count) is int for _, count in args[0].pairs)
    if kind == "torch Size":
        return len(args) == 1 and type(args[0]) is tuple and counts(args[0])
    if kind == "torch device":
        return types in ([str], [str, int]) and args[0] in ("cpu", "cuda", "mps", "xpu", "meta")
    return kind == "torch.serialization _get_layout" and args == ("torch.strided",)
