"""A pickle interpreter that executes nothing: it collects the names in a model file and checks sizes before torch.load.

``torch.load(weights_only=True)`` runs only listed classes, but it trusts every size that a file states.  Here the same
instructions build inert records; each tensor is checked against its storage, each storage against the bytes in the file, and
every nesting against a limit, before torch reads the file.
"""

import io
import itertools
import pickletools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, BinaryIO

from construct.files.archives import Malformed, Truncated
from construct.files.pickle_records import (
    CALLS,
    DTYPES,
    KNOWN,
    STORAGES,
    Container,
    Global,
    Instance,
    Opaque,
    Storage,
    counts,
    fill,
    name_of,
)

MOST_STEPS = 700_000
"""The most instructions of a pickle: a module takes about 150, a tensor 40; walking these, and torch.load, takes 5 s."""
LARGEST_PICKLE = 2**27
"""The most bytes of a model's pickled structure, without its numbers."""
LONGEST_TEXT = 2**26
"""The most bytes of one string."""
DEEPEST, MOST_LEAVES = 500, 10**7
"""Limits on nested lists, tuples and dicts, counted as if nothing were shared."""
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
"""The first two values in a file of torch.save before 1.6."""


class Walker:
    """Interprets every pickle of a file with inert records, as torch's restricted unpickler would.

    Attributes:
        names: all globals that the pickles look up.
        storages: the storages of all tensors, by key, in order of appearance.
        root: the record of the file's content; None if its pickle has no end.
        malformed: the first error; the walk continues after it to collect names.
    """

    def __init__(self, classes: Collection[str] = ()):
        """``classes``: the names of known modules, which must be built as torch.save builds them."""
        self.classes = frozenset(classes)
        self.names: set[str] = set()
        self.storages: dict[str, Storage] = {}
        self.root: Any = None
        self.malformed: Malformed | None = None
        self.expanded = 0
        self.objects: list[Instance] = []

    def walk(self, file: BinaryIO) -> Any:
        """Interpret one pickle; returns the record of its content, or None if it has no end."""
        stream, root = _BoundedFile(file), None
        try:
            root = self._walk(stream)
            if self.malformed is None:
                self._bound([root, *(part for thing in self.objects for part in (thing.arguments, thing.state))])
        except Malformed as error:
            self._note(error)
        except (LookupError, TypeError, ValueError, AttributeError, EOFError):
            if stream.ended:
                self.malformed = Truncated("its pickle has no end")
            self._note(Malformed("its pickle is damaged"))
        return root

    def _note(self, error: Malformed) -> None:
        self.malformed = self.malformed or error

    def _walk(self, stream: "_BoundedFile") -> Any:
        stack: list[Any] = []
        outer: list[list[Any]] = []
        memo: dict[int, Any] = {}
        for step, (opcode, argument, _) in enumerate(itertools.islice(pickletools.genops(stream), MOST_STEPS)):  # type: ignore[arg-type]
            name, before, marked = opcode.name, opcode.stack_before, []
            if (name == "PROTO") != (step == 0) or (name == "PROTO" and argument != 2):
                self._note(Malformed("its pickle is of another protocol than 2"))
            if name not in _KNOWN:
                self._note(Malformed(f"its pickle has the instruction {name}, where torch.save writes none"))
            if name == "MARK":
                outer.append(stack)
                stack = []
                continue
            if pickletools.markobject in before:
                before = before[: before.index(pickletools.markobject)]
                marked, stack = stack, outer.pop()
            operands = [stack.pop() for _ in before][::-1]
            if name == "STOP":
                if stack or outer:
                    self._note(Malformed("its pickle leaves something over"))
                return operands[0]
            if name.endswith("PUT") or name == "MEMOIZE":
                stack += operands
                memo[len(memo) if argument is None else int(argument)] = stack[-1]
            elif name.endswith("GET"):
                stack.append(memo[int(argument)])  # type: ignore[arg-type]
            elif name == "DUP":
                stack += operands * 2
            elif opcode.stack_after:
                try:
                    stack.append(self._result(name, argument, operands, marked))
                except (TypeError, ValueError, AttributeError) as error:  # of operands of any kind
                    self._note(error if isinstance(error, Malformed) else Malformed("its pickle is damaged"))
                    stack.append(Opaque("odd"))
        raise Malformed(f"its pickle has more than {MOST_STEPS} instructions")

    def _result(self, name: str, argument: Any, operands: list[Any], marked: list[Any]) -> Any:
        """The record that an instruction pushes."""
        if name in _ACTS:
            return _ACTS[name](self, *operands, *([marked] if name in ("APPENDS", "SETITEMS") else []))
        if name.startswith("TUPLE"):
            return (*operands, *marked)
        if name in _VALUES:
            return _VALUES[name]
        if name.startswith("EMPTY"):
            return () if name == "EMPTY_TUPLE" else Container(name[6:].lower())
        if name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            return self._global(".".join(operands) if name == "STACK_GLOBAL" else str(argument).replace(" ", "."))
        if isinstance(argument, str):
            if name == "SHORT_BINSTRING" and not argument.isascii():
                raise Malformed("its pickle has a text of Python 2 that is not ASCII")
        return Opaque(name) if argument is None else argument

    def _global(self, name: str) -> Global:
        name = re.sub(r"^__builtin__\.", "builtins.", name)  # as Python 2 called it
        self.names.add(name)
        return Global(name)

    def _new(self, kind: Any, arguments: Any) -> Any:
        name = kind.name if isinstance(kind, Global) else ""
        if not name or name in KNOWN or (name in self.classes and arguments != ()):
            raise Malformed(f"its pickle makes a {name_of(kind)} in another way than torch.save")
        self.objects.append(instance := Instance(name, arguments or None))
        return instance

    def _call(self, function: Any, arguments: Any) -> Any:
        name = function.name if isinstance(function, Global) else ""
        if name in CALLS and isinstance(arguments, tuple):
            return CALLS[name](self, name, *arguments)
        if not name or name in KNOWN or name in self.classes:
            raise Malformed(f"its pickle calls a {name_of(function)}")
        self.objects.append(instance := Instance(name, arguments))
        return instance

    def _fill(self, target: Any, state: Any) -> Any:
        plain = isinstance(state, Container) and state.kind == "dict"
        if isinstance(target, Container) and target.kind == "OrderedDict" and plain:
            if state.items[::2] != ["_metadata"]:  # other attributes could shadow its items
                raise Malformed("a dict has attributes of its own")
            fill(target, "dict", ["__dict__", state])
        elif isinstance(target, Instance) and target.name not in _RECORDS and target.state is None:
            if target.name in self.classes:
                if not plain:
                    raise Malformed(f"the state of a {target.name} is no dict")
                for key, value in state.pairs():  # only nn.TransformerEncoderLayer stores a function, ``activation``
                    if isinstance(value, Global) and value.name not in DTYPES and key != "activation":
                        raise Malformed(f"a {target.name} has {key} of its own")
            target.state = state
        else:
            raise Malformed(f"its pickle gives a state to a {name_of(target)}")
        return target

    def _storage(self, pid: Any) -> Storage:
        if pid[:1] == ("module",):
            raise Malformed("it holds a module as torch.save wrote it before 1.6, with its source code")
        word, kind, key, location, count, *rest = pid
        if word != "storage" or not isinstance(kind, Global) or kind.name not in STORAGES:
            raise Malformed("a tensor has no storage")
        if any(part is not None for part in rest):
            raise Malformed("a storage is a view of another one, as early versions of torch wrote, which is not read")
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and isinstance(location, str)):
            raise Malformed("a storage has an unexpected name")
        if location == "meta":
            raise Malformed("a storage is on the device meta, where torch.load gives it no numbers")
        counts("a storage", (count,))
        storage = self.storages.setdefault(key, Storage(key, count, kind.name))
        if (storage.count, storage.kind) != (count, kind.name):
            raise Malformed(f"storage {key} is described in two ways")
        return storage

    def _bound(self, roots: list[Any]) -> None:
        """Check that no container contains itself, is nested too deep, or has too many leaves."""
        sizes: dict[int, tuple[int, int]] = {}
        stack = [(root, False) for root in reversed(roots)]
        while stack:  # no recursion: records may be nested deep
            record, ready = stack.pop()
            inner = record.items if isinstance(record, Container) else record if isinstance(record, tuple) else ()
            if not inner or (id(record) in sizes and not ready):
                continue
            if not ready:
                sizes[id(record)] = _OPEN
                containers = [x for x in inner if isinstance(x, Container | tuple)]
                if any(sizes.get(id(x)) == _OPEN for x in containers):
                    raise Malformed("a list or dict holds itself")
                stack += [(record, True), *((x, False) for x in containers)]
            else:
                counted = [sizes.get(id(x), _LEAF) if isinstance(x, Container | tuple) else _LEAF for x in inner]
                leaves, depth = sum(n for n, _ in counted), 1 + max(d for _, d in counted)
                if depth > DEEPEST or leaves > MOST_LEAVES:
                    raise Malformed(f"lists or dicts are nested {depth} deep, with {leaves} entries")
                sizes[id(record)] = (leaves, depth)


_LEAF, _OPEN = (1, 0), (0, DEEPEST + 1)
_RECORDS = ("tensor", "odd")
_VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_KNOWN = frozenset(
    "APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT BINUNICODE BUILD EMPTY_DICT EMPTY_LIST EMPTY_SET "
    "EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET LONG_BINPUT MARK NEWFALSE NEWOBJ NEWTRUE NONE PROTO REDUCE SETITEM SETITEMS "
    "SHORT_BINSTRING STOP TUPLE TUPLE1 TUPLE2 TUPLE3".split()
)
"""The instructions that torch's restricted unpickler supports."""
_ACTS: Mapping[str, Callable[..., Any]] = {
    "APPEND": lambda _, target, item: fill(target, "list", [item]),
    "APPENDS": lambda _, target, items: fill(target, "list", items),
    "SETITEM": lambda _, target, *pair: fill(target, "dict", list(pair)),
    "SETITEMS": lambda _, target, items: fill(target, "dict", items),
    "BUILD": Walker._fill,
    "NEWOBJ": Walker._new,
    "REDUCE": Walker._call,
    "BINPERSID": Walker._storage,
}


class _BoundedFile:
    """A file with bounded reads: ``read(n)`` allocates n bytes even if the file is shorter."""

    def __init__(self, file: BinaryIO):
        self.file, self.ended = file, False

    def read(self, count: int) -> bytes:
        if count > LONGEST_TEXT:
            raise Malformed(f"its pickle has a text of {count} bytes")
        data = self.file.read(count)
        self.ended |= len(data) < count
        return data

    def readline(self) -> bytes:
        line = self.file.readline(LONGEST_TEXT)
        self.ended |= not line.endswith(b"\n")
        return line


def walk_bytes(data: bytes, classes: Collection[str] = ()) -> Walker:
    """Walk the single pickle of a zip archive."""
    walker, file = Walker(classes), io.BytesIO(data)
    walker.root = walker.walk(file)
    if isinstance(walker.malformed, Truncated):
        walker.malformed = Malformed("its pickle has no end")
    elif file.read(1):
        walker._note(Malformed("something follows after the end of its pickle"))
    return walker


def walk_legacy(file: BinaryIO, classes: Collection[str] = ()) -> Walker:
    """Walk the pickles of a file of torch.save before 1.6, in which the storages follow the pickles."""
    walker, size = Walker(classes), file.seek(0, 2)
    file.seek(0)
    head = [walker.walk(file) for _ in range(3)]  # a magic number, the protocol, the system
    walker.root = walker.walk(file)
    if any(part not in (None, right) for part, right in zip(head, (MAGIC, PROTOCOL), strict=False)):
        walker.malformed = Malformed("a pickle, but not one that torch.save wrote")
    keys = walker.walk(file) if walker.malformed is None else None
    if walker.malformed is None:
        walker.malformed = _storage_error(file, size, walker, keys)
    return walker


def _storage_error(file: BinaryIO, size: int, walker: Walker, keys: Any) -> Malformed | None:
    """What is wrong with the storages after the pickles, if anything."""
    listed = keys.items if isinstance(keys, Container) and all(isinstance(key, str) for key in keys.items) else []
    if sorted(listed) != sorted(walker.storages):
        return Malformed("its list of storages is not that of its tensors")
    at = file.tell()
    for key in listed:
        file.seek(at)
        count = file.read(8)
        at += 8 + walker.storages[key].bytes
        if at > size:
            return Truncated(f"storage {key} ends at byte {at}, and it has {size}")
        if int.from_bytes(count, "little") != walker.storages[key].count:
            return Malformed(f"storage {key} has another number of numbers than its tensors say")
    return Malformed("something follows after its last storage") if at < size else None
