"""Files of torch.save, read by ``torch.load(weights_only=True)``: what it returns is what a file
holds.

Before it, zipfile and torch's own reader say what an archive unpacks to, whether its checksums are
right (torch ignores them), and which names are in its pickle.  ``weights_only=True`` *calls* what
it may name.  So a class of torch.nn or ours leads to a subclass that cannot be called, and gets its
own class back afterwards.  Any other name leads to a :class:`StandIn`: nothing is imported for it.

Known of torch 2.13 (``constraints.txt``): of the names that torch always allows, those of
``_UNBOUNDED`` allocate whatever a file says, so no file may hold them; and torch hashes the keys of
dicts, which never ends, or ends the process, if they are nested tuples.  Files are not mapped into
memory: one that is overwritten later would change the network, or end the process.
"""

import io
import math
import re
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from mmap import ACCESS_READ, mmap
from pickletools import genops
from traceback import walk_tb
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch._weights_only_unpickler import (
    _get_allowed_globals,
    _get_user_allowed_globals,
    get_globals_in_pkl,
)

from construct.errors import BadModelFile, describe, one_line
from construct.files.allowed import Allowed, listed
from construct.files.archives import (
    AGAIN,
    ALONE,
    LARGEST_PICKLE,
    LARGEST_RATIO,
    RESAVE,
    SLACK,
    too_large,
)

MOST_WORK = 2**30
_WORK_WITHOUT_NAMES = 24
"""The most of pickled bytes times the names in them, in all attempts: torch lists the names again
for each object.
"""
_UNBOUNDED = (b"\nbytearray\n", b"\n_rebuild_device_tensor_from_cpu_tensor\n")
_LOCK = threading.RLock()
"""torch's safe globals are those of all threads; a class that the user allows may read files
itself.
"""


class StandIn(nn.Module):
    """An object of a class that is not imported: it keeps a module's children and tensors, and
    computes nothing.
    """

    lost = True
    """Whether arguments, or a state that is no module's, were dropped; modules may have been in
    them.
    """

    def __init__(self, *arguments: object, **named: object) -> None:
        """Does nothing: most stand for no module, and what makes one takes a kilobyte."""

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict) and "_modules" in state:
            super().__setstate__(state)
            self.__dict__["lost"] = False

    def __getattr__(self, name: str) -> Any:
        if "_modules" not in vars(self):
            nn.Module.__init__(self)
            return getattr(self, name)
        return super().__getattr__(name)


class StandInTensor(Tensor):
    """A tensor of a subclass that is not imported."""


def is_module(value: object) -> bool:
    """Whether a value is a module, and not another object for which something stands in."""
    restored = isinstance(value, nn.Module) and "_modules" in vars(value)
    return restored and not (isinstance(value, StandIn) and value.lost)


@dataclass
class Loaded:
    """What torch.load made of a file.

    Attributes:
        content: None if there is a ``failure``.
        foreign: the names in the file that nothing allows; stand-ins took their places.
        modules: every module and stand-in that was made, but those of the user's classes.
        replaced: functions and containers that stand for others, by id: the object, and how to make
            the other.
        most_bytes: the most bytes of the tensors in it.
    """

    content: Any = None
    failure: BadModelFile | None = None
    foreign: tuple[str, ...] = ()
    modules: list[nn.Module] = field(default_factory=list)
    replaced: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    most_bytes: float = math.inf

    def put_back(self, module: nn.Module) -> None:
        """Put functions and containers of the user's classes back where they are attributes of a
        module.
        """
        for name, value in list(vars(module).items()):
            if id(value) in self.replaced:
                module.__dict__[name] = self.replaced[id(value)][1]()


# ---- reading -------------------------------------------------------------------------------------


def load(file: BinaryIO, archive: bool, allowed: Allowed) -> Loaded:
    """Read a file of torch.save, as it is or was before 1.6; of what it names, only what the user
    allows is imported or run.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if archive:
        data: Any = torch._C.PyTorchFileReader(file).get_record("data.pkl")
        pickles = 1
    else:
        data = mmap(file.fileno(), 0, access=ACCESS_READ)
        file = data  # a file would allocate as much as a text is said to have
        pickles = 5  # a number, a version, the system, the content, the keys of storages
    for name in _UNBOUNDED:
        if data.find(name) >= 0:
            what = (
                f"its pickle names {name.decode().strip()}, which allocates as much as a file says"
            )
            return Loaded(failure=BadModelFile(what, ALONE))
    with _LOCK:  # what another thread allows meanwhile is not allowed here
        named, length, broken = _scan(data[: LARGEST_PICKLE + 1], pickles)
    if length > LARGEST_PICKLE:
        return Loaded(failure=too_large(length))
    names: dict[str, type] = dict.fromkeys(named, StandIn)
    loaded = Loaded()
    work = 0
    while True:
        work += length * (len(names) + _WORK_WITHOUT_NAMES)
        if work > MOST_WORK:
            what = f"its pickle of {length} bytes names {len(names)} classes and more, which takes long to read"
            loaded.failure = BadModelFile(what, ALONE)
            return loaded
        attempt = _Attempt(allowed, names, LARGEST_RATIO * size + SLACK)
        loaded = attempt.loaded
        try:
            attempt.load(file)
        except MemoryError:
            raise
        except Exception as error:
            if broken is None and attempt.learns(error):
                continue
            if not _FOREIGN_BUILT.search(str(error)):
                at_end = not archive and not file.read(1)
                loaded.failure = _failure(error, broken, data, at_end)
        return loaded


def _scan(head: bytes, pickles: int) -> tuple[set[str], int, Exception | None]:
    """The names in pickles that torch does not allow, the length of the pickles, and what torch
    cannot read of them.
    """
    stream = io.BytesIO(head)
    names = set()
    broken = None
    try:
        for _ in range(pickles):
            names |= get_globals_in_pkl(stream)
    except Exception as error:  # it has no end, or another protocol
        broken = error
        names |= {*_names_in(head, pickles)}
    known = _get_allowed_globals().keys() | _get_user_allowed_globals().keys()
    return names - known, stream.tell(), broken


def _names_in(head: bytes, pickles: int) -> Iterator[str]:
    """The names in pickles that torch does not read, up to where they break; for messages alone."""
    stream = io.BytesIO(head[: 2**20])  # the names stand early; all 16 MiB take seconds, and 1 GB
    texts, memo = [""], dict[Any, str]()
    with suppress(Exception):
        for code, value, _ in chain.from_iterable(genops(stream) for _ in range(pickles)):
            if code.name in ("GLOBAL", "INST"):
                yield str(value).replace(" ", ".").replace("__builtin__", "builtins")
            elif code.name == "STACK_GLOBAL":
                yield ".".join(texts[-2:])
            elif code.name == "PROTO":
                memo = {}
            elif code.name == "MEMOIZE":
                memo[len(memo)] = texts[-1]
            elif code.name in ("BINGET", "LONG_BINGET"):
                texts.append(memo.get(value, ""))  # older protocols number it otherwise
            elif isinstance(value, str):
                texts.append(value)


_FOREIGN_BUILT = re.compile(r"Can only build Tensor.*but got <class '(\w+\.[^']*)'>", re.DOTALL)
_FILLED = re.compile(r"Can only (append|extend|SETITEM).*but got <class '([^']*)'>", re.DOTALL)


def _failure(
    error: Exception,
    broken: Exception | None,
    data: Any,
    at_end: bool,
) -> BadModelFile:
    """Why torch did not read a file; ``at_end`` says that it came to the end of the file."""
    if isinstance(error, BadModelFile):
        return error
    text = describe(error.__context__ or error)  # without torch's advice to load it unsafely
    if "magic number" in text:
        return BadModelFile("a pickle, but not a model file that torch.save wrote", RESAVE)
    if "persistent_load of storage" in text:
        what = "a whole module in the format before torch 1.6, of which torch reads only state dicts without running code"
        return _or_trusted(what, "save it again in a current format")
    if broken is not None and "not an allowed global" in text:
        text = describe(broken)
    if "Unsupported operand" in text and data[:2] != b"\x80\x02":
        return _other_protocol(data)
    if at_end or "unexpected EOF" in text or isinstance(broken, EOFError):
        return BadModelFile("the file is truncated: its pickle or a storage has no end", AGAIN)
    if "but got <class 'list'>" in text:
        text = "a list of a class of its own has attributes, too"
    what = f"not a model that can be read safely: torch says {one_line(text, 200)}"
    return BadModelFile(what, ALONE)


def _other_protocol(data: Any) -> BadModelFile:
    """The error for a pickle of another protocol than torch reads."""
    protocol = "protocol 0 or 1"
    if data[:1] == b"\x80":
        protocol = f"protocol {data[1]}"
    what = f"its pickle is of {protocol}, and without running code torch reads only protocol 2"
    advice = "save it with torch.save and without pickle_protocol"
    if data.find(b"P('storage'") >= 0:  # protocol 0, of which torch reads nothing
        return BadModelFile(what, advice)
    return _or_trusted(what, advice)


def _or_trusted(what: str, advice: str) -> BadModelFile:
    advice = f"{advice}; or, if you know who made it,"
    return BadModelFile(what, f"{advice} trust=True", option=f"{advice} --trust")


class _Attempt:
    """One call of torch.load, with a value for each of the names in the file that torch does not
    allow by itself.

    torch adds items only to plain lists and dicts, and makes subclasses of tensors only of tensors.
    Of a class that is not imported, only a failed call tells that.

    Args:
        allowed: what the user allows.
        names: the names in the file, and what each stands for if it is not imported: a StandIn, or a
            list, an OrderedDict or a StandInTensor, as failed calls tell.
        most_bytes: the most bytes of all storages together.
    """

    def __init__(self, allowed: Allowed, names: dict[str, type], most_bytes: int):
        self.names = names
        self.free = most_bytes
        self.things = []
        self.kinds = {}
        unlisted = names.keys() - listed().keys()
        named = allowed.of(unlisted)
        foreign = tuple(sorted(unlisted - named.keys()))
        self.loaded = Loaded(foreign=foreign, most_bytes=most_bytes)
        self.values: dict[str, Any] = {**named}
        for name, kind in names.items():
            if kind in (list, OrderedDict):
                self.values[name] = self._container(name, kind, named.get(name))
            elif name in listed():
                self.values[name] = self._guarded(name, listed()[name])
            elif name not in named:
                self.values[name] = self._stand_in(name, kind)

    def load(self, file: BinaryIO) -> None:
        """Call torch.load, and give the objects that it makes their own classes."""
        file.seek(0)
        with _LOCK, warnings.catch_warnings(action="ignore"):  # about old protocols
            pairs: Any = {(value, name) for name, value in self.values.items()}
            pairs -= {*torch.serialization.get_safe_globals()}
            with torch.serialization.safe_globals([*pairs]):
                content = torch.load(file, map_location=self._placed, weights_only=True)
        for thing in self.things:
            if type(thing) in self.kinds:
                object.__setattr__(thing, "__class__", self.kinds[type(thing)])
        self.loaded.content = content
        self.loaded.modules = [thing for thing in self.things if isinstance(thing, nn.Module)]

    def learns(self, error: Exception) -> bool:
        """Whether torch's error says something of a class that another attempt can heed."""
        before = {**self.names}
        message = str(error)
        if built := _FOREIGN_BUILT.search(message):  # by a function that the user allows
            self.names.setdefault(built[1], StandIn)
        elif filled := _FILLED.search(message):
            if filled[2] in self.values and self.names.get(filled[2], StandIn) is StandIn:
                self.names[filled[2]] = OrderedDict if filled[1] == "SETITEM" else list
        elif "Creating a Tensor subclass" in message:
            (*_, (frame, _)) = walk_tb(error.__traceback__)
            for name in self.loaded.foreign:
                if self.values[name] is frame.f_locals.get("new_type"):
                    self.names[name] = StandInTensor
        return self.names != before

    def _placed(self, storage: Any, location: str) -> Any:
        """Leave a storage on the CPU; all storages together are no larger than the file says."""
        self.free -= storage.nbytes()
        if self.free < 0:
            raise BadModelFile("its tensors need more bytes than the file has", RESAVE)
        return storage

    def _guarded(self, name: str, kind: Any) -> Any:
        """A subclass of a listed class, or something in place of a listed function, that cannot be
        called.
        """

        def refuse(*_: object, **__: object) -> Any:
            raise BadModelFile(f"its pickle calls {name}, as torch.save never does", RESAVE)

        def new(cls: type, *arguments: object) -> Any:
            if arguments:
                refuse()
            return self._kept(cls)

        if not isinstance(kind, type):
            self.loaded.replaced[id(refuse)] = refuse, lambda: kind
            return refuse
        guard: Any = _named(name, kind, __new__=new, __init__=refuse)
        if issubclass(kind, nn.RNNBase):

            def restore(thing: Any, state: dict[str, Any]) -> None:
                # torch would name the weights of each
                if state.get("num_layers", 0) > len(state["_parameters"]):
                    raise BadModelFile("it holds recurrent layers without their weights", RESAVE)
                kind.__setstate__(thing, state)

            guard.__setstate__ = restore
        self.kinds[guard] = kind
        return guard

    def _stand_in(self, name: str, kind: type) -> Any:
        if name == "builtins.getattr":  # of a class that is stood in for
            return lambda thing, *_: thing
        if kind is StandInTensor:
            return _named(name, kind)
        return _named(name, StandIn, __new__=lambda cls, *_, **__: self._kept(cls))

    def _kept(self, cls: type) -> Any:
        self.things.append(thing := object.__new__(cls))
        return thing

    def _container(self, name: str, plain: type, kind: Any) -> type:
        """In place of a class with items: makes plain lists or dicts; ``kind`` is the class itself
        if the user allows it.
        """

        def new(cls: type, *arguments: Any) -> Any:
            items = plain()

            def build() -> Any:
                thing = kind(*arguments) if arguments else kind.__new__(kind)
                for item in items:
                    if plain is list:
                        thing.append(item)
                    else:
                        thing[item] = items[item]
                if state := getattr(items, "__dict__", None):
                    getattr(thing, "__setstate__", vars(thing).update)(state)
                return thing

            if kind is not None:
                self.loaded.replaced[id(items)] = items, build
            return items

        return _named(name, __new__=new)


def _named(name: str, *bases: type, **members: Any) -> type:
    """A class with the name of one that is not imported."""
    module, _, last = name.replace("\0", "").rpartition(".")
    return type(last, bases, {"__module__": module, **members})
