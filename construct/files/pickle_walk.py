"""A walk along a pickle that carries nothing out, finds all that it names, and refuses what no saved model holds.

``torch.load(weights_only=True)`` looks classes up in a list and runs nothing else, but it takes a file's word for every
size.  Here the same instructions are followed with inert records, and each tensor is held against its storage, each storage
against the bytes that are there, and every nesting against a bound, before torch sees the file.
"""

import io
import itertools
import pickletools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, BinaryIO

from construct.files.archives import Odd, Truncated
from construct.files.pickle_records import (
    CALLS,
    DTYPES,
    KNOWN,
    STORAGES,
    Global,
    Held,
    Made,
    Plain,
    Storage,
    counts,
    named,
    put,
)

MOST_STEPS = 700_000
"""Instructions of a pickle: a module takes about 150, a tensor 40, and to follow this many (and torch once) takes 5 s."""
LARGEST_PICKLE = 2**27
"""Bytes of the pickled structure of a model, without its numbers."""
LONGEST_TEXT = 2**26
"""Bytes of one text."""
DEEPEST, MOST_LEAVES = 500, 10**7
"""Of lists, tuples and dicts inside each other, counted as if nothing were shared."""
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
"""With which a file of torch.save began before 1.6."""


class Walker:
    """Follows every pickle of a file, in the way of torch's restricted reader.

    Attributes:
        names: of everything that the pickles would look up.
        texts: every text in them.
        storages: of all tensors, by key, in the order in which they are named.
        root: the record of what the file holds; None if its pickle has no end.
        odd: the first thing that no saved model holds, or that torch would not read; the walk goes on behind it for the names.
    """

    def __init__(self, classes: Collection[str] = ()):
        """``classes``: the modules that are made as torch.save writes them; of others that are named nothing is known."""
        self.classes = frozenset(classes)
        self.names: set[str] = set()
        self.texts: set[str] = set()
        self.storages: dict[str, Storage] = {}
        self.root: Any = None
        self.odd: Odd | None = None
        self.expanded = 0
        self.objects: list[Made] = []

    def walk(self, file: BinaryIO) -> Any:
        """Follow one pickle; the record of what it describes, or None if it has no end."""
        stream, root = _Within(file), None
        try:
            root = self._walk(stream)
            if self.odd is None:
                self._bound([root, *(part for thing in self.objects for part in (thing.arguments, thing.state))])
        except Odd as odd:
            self._note(odd)
        except (LookupError, TypeError, ValueError, AttributeError, EOFError):
            if stream.ended:
                self.odd = Truncated("its pickle has no end")
            self._note(Odd("its pickle is damaged"))
        return root

    def _note(self, odd: Odd) -> None:
        self.odd = self.odd or odd

    def _walk(self, stream: "_Within") -> Any:
        stack: list[Any] = []
        outer: list[list[Any]] = []
        memo: dict[int, Any] = {}
        for step, (opcode, argument, _) in enumerate(itertools.islice(pickletools.genops(stream), MOST_STEPS)):  # type: ignore[arg-type]
            name, before, marked = opcode.name, opcode.stack_before, []
            if (name == "PROTO") != (step == 0) or (name == "PROTO" and argument != 2):
                self._note(Odd("its pickle is of another protocol than 2"))
            if name not in _KNOWN:
                self._note(Odd(f"its pickle has the instruction {name}, where torch.save writes none"))
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
                    self._note(Odd("its pickle leaves something over"))
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
                    stack.append(self._made(name, argument, operands, marked))
                except (TypeError, ValueError, AttributeError) as error:  # of operands of any kind
                    self._note(error if isinstance(error, Odd) else Odd("its pickle is damaged"))
                    stack.append(Plain("odd"))
        raise Odd(f"its pickle has more than {MOST_STEPS} instructions")

    def _made(self, name: str, argument: Any, operands: list[Any], marked: list[Any]) -> Any:
        """What an instruction puts on the stack."""
        if name in _ACTS:
            return _ACTS[name](self, *operands, *([marked] if name in ("APPENDS", "SETITEMS") else []))
        if name.startswith("TUPLE"):
            return (*operands, *marked)
        if name in _VALUES:
            return _VALUES[name]
        if name.startswith("EMPTY"):
            return () if name == "EMPTY_TUPLE" else Held(name[6:].lower())
        if name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            return self._global(".".join(operands) if name == "STACK_GLOBAL" else str(argument).replace(" ", "."))
        if isinstance(argument, str):
            self.texts.add(argument)
            if name == "SHORT_BINSTRING" and not argument.isascii():
                raise Odd("its pickle has a text of Python 2 that is not ASCII")
        return Plain(name) if argument is None else argument

    def _global(self, name: str) -> Global:
        name = re.sub(r"^__builtin__\.", "builtins.", name)  # as Python 2 called it
        self.names.add(name)
        return Global(name)

    def _new(self, kind: Any, arguments: Any) -> Any:
        name = kind.name if isinstance(kind, Global) else ""
        if not name or name in KNOWN or (name in self.classes and arguments != ()):
            raise Odd(f"its pickle makes a {named(kind)} in another way than torch.save")
        self.objects.append(made := Made(name, arguments or None))
        return made

    def _call(self, function: Any, arguments: Any) -> Any:
        name = function.name if isinstance(function, Global) else ""
        if name in CALLS and isinstance(arguments, tuple):
            return CALLS[name](self, name, *arguments)
        if not name or name in KNOWN or name in self.classes:
            raise Odd(f"its pickle calls a {named(function)}")
        self.objects.append(made := Made(name, arguments))
        return made

    def _fill(self, target: Any, state: Any) -> Any:
        plain = isinstance(state, Held) and state.kind == "dict"
        if isinstance(target, Held) and target.kind == "OrderedDict" and plain:
            if state.items[::2] != ["_metadata"]:  # others might hide its items
                raise Odd("a dict has attributes of its own")
            put(target, "dict", ["__dict__", state])
        elif isinstance(target, Made) and target.name not in _RECORDS and target.state is None:
            if target.name in self.classes:
                if not plain:
                    raise Odd(f"the state of a {target.name} is no dict")
                for key, value in state.pairs():  # one that is called, as in nn.TransformerEncoderLayer
                    if isinstance(value, Global) and value.name not in DTYPES and key != "activation":
                        raise Odd(f"a {target.name} has {key} of its own")
            target.state = state
        else:
            raise Odd(f"its pickle gives a state to a {named(target)}")
        return target

    def _storage(self, pid: Any) -> Storage:
        if pid[:1] == ("module",):
            raise Odd("it holds a module as torch.save wrote it before 1.6, with its source code")
        word, kind, key, location, count, *rest = pid
        if word != "storage" or not isinstance(kind, Global) or kind.name not in STORAGES:
            raise Odd("a tensor has no storage")
        if any(part is not None for part in rest):
            raise Odd("a storage is a view of another one, as early versions of torch wrote, which is not read")
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and isinstance(location, str)):
            raise Odd("a storage has an odd name")
        counts("a storage", (count,))
        storage = self.storages.setdefault(key, Storage(key, count, kind.name))
        if (storage.count, storage.kind) != (count, kind.name):
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
_RECORDS = ("tensor", "odd")
_VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_KNOWN = frozenset(
    "APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT BINUNICODE BUILD EMPTY_DICT EMPTY_LIST EMPTY_SET "
    "EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET LONG_BINPUT MARK NEWFALSE NEWOBJ NEWTRUE NONE PROTO REDUCE SETITEM SETITEMS "
    "SHORT_BINSTRING STOP TUPLE TUPLE1 TUPLE2 TUPLE3".split()
)
"""Of the instructions, those that torch's restricted reader knows."""
_ACTS: Mapping[str, Callable[..., Any]] = {
    "APPEND": lambda _, target, item: put(target, "list", [item]),
    "APPENDS": lambda _, target, items: put(target, "list", items),
    "SETITEM": lambda _, target, *pair: put(target, "dict", list(pair)),
    "SETITEMS": lambda _, target, items: put(target, "dict", items),
    "BUILD": Walker._fill,
    "NEWOBJ": Walker._new,
    "REDUCE": Walker._call,
    "BINPERSID": Walker._storage,
}


class _Within:
    """A file that is never asked for more than a text may have: a read takes the memory before it knows what is there."""

    def __init__(self, file: BinaryIO):
        self.file, self.ended = file, False

    def read(self, count: int) -> bytes:
        if count > LONGEST_TEXT:
            raise Odd(f"its pickle has a text of {count} bytes")
        data = self.file.read(count)
        self.ended |= len(data) < count
        return data

    def readline(self) -> bytes:
        line = self.file.readline(LONGEST_TEXT)
        self.ended |= not line.endswith(b"\n")
        return line


def walk_bytes(data: bytes, classes: Collection[str]) -> Walker:
    """Walk the one pickle of an archive."""
    walker, file = Walker(classes), io.BytesIO(data)
    walker.root = walker.walk(file)
    if isinstance(walker.odd, Truncated):
        walker.odd = Odd("its pickle has no end")
    elif file.read(1):
        walker._note(Odd("something follows after the end of its pickle"))
    return walker


def walk_legacy(file: BinaryIO, size: int, classes: Collection[str]) -> Walker:
    """Walk the pickles of a file as torch.save wrote them before 1.6, whose numbers follow one after another."""
    walker = Walker(classes)
    file.seek(0)
    head = [walker.walk(file) for _ in range(3)]  # a magic number, the protocol, the system
    walker.root = walker.walk(file)
    if any(part not in (None, right) for part, right in zip(head, (MAGIC, PROTOCOL), strict=False)):
        walker.odd = Odd("a pickle, but not one that torch.save wrote")
    keys = walker.walk(file) if walker.odd is None else None
    if walker.odd is None:
        walker.odd = _misplaced(file, size, walker, keys)
    return walker


def _misplaced(file: BinaryIO, size: int, walker: Walker, keys: Any) -> Odd | None:
    """What is wrong with the storages behind the pickles."""
    listed = keys.items if isinstance(keys, Held) and all(isinstance(key, str) for key in keys.items) else []
    if sorted(listed) != sorted(walker.storages):
        return Odd("its list of storages is not that of its tensors")
    at = file.tell()
    for key in listed:
        file.seek(at)
        count = file.read(8)
        at += 8 + walker.storages[key].bytes
        if at > size:
            return Truncated(f"storage {key} ends at byte {at}, and it has {size}")
        if int.from_bytes(count, "little") != walker.storages[key].count:
            return Odd(f"storage {key} has another number of numbers than its tensors say")
    return Odd("something follows after its last storage") if at < size else None
