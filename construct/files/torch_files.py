"""Files of torch.save, read by ``torch.load(weights_only=True)``: what it returns is what a file holds.

Before it, zipfile and torch's own reader say what an archive unpacks to, whether its checksums are right (torch ignores
them), and which names are in its pickle.  ``weights_only=True`` *calls* what it may name.  So a class of torch.nn or ours
leads to a subclass that cannot be called, and gets its own class back afterwards.  Any other name leads to a
:class:`StandIn`: nothing is imported for it.

Known of torch 2.13 (``constraints.txt``): of the names that torch always allows, those of ``_UNBOUNDED`` allocate whatever a
file says, so no file may hold them; and torch hashes the keys of dicts, which takes long if they are nested tuples.  Files
are not mapped into memory: one that is overwritten later would change the network, or end the process.
"""

import io
import pickle
import re
import threading
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from typing import Any, BinaryIO

import torch
from torch import nn
from torch._weights_only_unpickler import _get_allowed_globals

from construct.errors import BadModelFile, one_line
from construct.files.allowed import Allowed, listed

ZIP = b"PK\x03\x04"
"""The first bytes of a zip archive, as torch.save writes it."""
LARGEST_PICKLE = 2**22
"""The most bytes of a model's pickled structure, without its numbers: torch reads them in about 5 s."""
LARGEST_RATIO, SLACK = 20, 2**22
"""An archive may unpack to so many times its own size, and a little more."""
_FOLDER = 0x10
"""The flag of a folder: of such a record torch returns memory that it has not filled."""
_UNBOUNDED = (b"\nbytearray\n", b"\n_rebuild_device_tensor_from_cpu_tensor\n")
_LOCK = threading.RLock()
"""torch's safe globals are those of all threads; a class that the user allows may read files itself."""


class StandIn(nn.Module):
    """An object of a class that is not imported: it keeps a module's children and tensors, and computes nothing."""

    lost = True
    """Whether arguments, or a state that is no module's, were dropped; modules may have been in them."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict) and "_modules" in state:
            super().__setstate__(state)
            self.__dict__["lost"] = False


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
        replaced: functions and containers that stand for others, by id: the object, and how to make the other.
    """

    content: Any = None
    failure: BadModelFile | None = None
    foreign: tuple[str, ...] = ()
    modules: list[nn.Module] = field(default_factory=list)
    replaced: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def put_back(self, module: nn.Module) -> None:
        """Put functions and containers of the user's classes back where they are attributes of a module."""
        for name, value in list(vars(module).items()):
            if id(value) in self.replaced:
                module.__dict__[name] = self.replaced[id(value)][1]()


# ---- the archive -----------------------------------------------------------------------------------------------------

_AGAIN = "copy or download it again"
_RESAVE = "save the model again with torch.save"


def check_archive(file: BinaryIO) -> tuple[str, tuple[str, ...]]:
    """Check what a zip archive unpacks to, and its checksums; returns "torch.save" or "pt2", and notes.

    Raises:
        BadModelFile: it is truncated, damaged, a bomb, or no model file.
    """
    size = file.seek(0, io.SEEK_END)
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        raise BadModelFile("the file is truncated: the end of the archive is missing", _AGAIN) from error
    except Exception as error:  # of any numbers in its directory
        raise BadModelFile(f"the archive is malformed: {one_line(error)}", _RESAVE) from error
    names = archive.namelist()
    if any(name.endswith("/constants.pkl") for name in names):
        raise BadModelFile("a TorchScript archive", "re-save as the nn.Module itself, or its state dict")
    _check_unpacked(size, [entry.file_size for entry in archive.infolist()])
    if any(name.endswith(("/archive_format", "/serialized_exported_program.json")) for name in names):
        return "pt2", ()
    if any(entry.external_attr & _FOLDER and entry.file_size for entry in archive.infolist()):
        raise BadModelFile("a malformed archive: a record is said to be a folder, and torch would not read it", _RESAVE)
    pickles = [name for name in names if name.lower().replace("\\", "/").endswith("/data.pkl")]
    if not pickles:
        raise BadModelFile("a zip archive, but not a model file", "give a file that torch.save wrote")
    if len(pickles) > 1:
        raise BadModelFile("a malformed archive: it holds two pickles that could be meant", _RESAVE)
    try:
        notes = _check_sums(archive)
        file.seek(0)
        reader = torch._C.PyTorchFileReader(file)
        _check_unpacked(size, [reader.get_record_size(name) for name in reader.get_all_records()])
        pickled = reader.get_record_size("data.pkl")
    except BadModelFile:
        raise
    except Exception as error:  # zipfile and torch raise anything
        raise BadModelFile(f"the archive is malformed: {one_line(error, 200)}", _RESAVE) from error
    if pickled > LARGEST_PICKLE:
        what = f"its pickle has {pickled} bytes, and at most {LARGEST_PICKLE} are read"
        raise BadModelFile(what, "save the state dict alone")
    return "torch.save", notes


def _check_unpacked(size: int, sizes: Iterable[int]) -> None:
    if (unpacked := sum(sizes)) > LARGEST_RATIO * size + SLACK:
        raise BadModelFile(f"a compressed archive of {size} bytes that unpacks to {unpacked}", _RESAVE)


def _check_sums(archive: zipfile.ZipFile) -> tuple[str, ...]:
    if not any(entry.CRC for entry in archive.infolist()):
        return ("it was written without checksums, so nobody can tell whether it is whole",)
    if (bad := archive.testzip()) is not None:
        record = one_line(bad.partition("/")[2], 60)
        raise BadModelFile(f"CRC mismatch in {record}: the file has changed since it was written", _AGAIN)
    return ()


# ---- reading ---------------------------------------------------------------------------------------------------------


def load(file: BinaryIO, allowed: Allowed) -> Loaded:
    """Read a file of torch.save; of what it names, only what the user allows is imported or run."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    archive = file.read(4) == ZIP
    file.seek(0)
    names, scanned = set[str](), False
    if archive:
        data: Any = torch._C.PyTorchFileReader(file).get_record("data.pkl")
        with suppress(Exception):  # it has no end, or another protocol
            file.seek(0)
            names |= {*torch.serialization.get_unsafe_globals_in_checkpoint(file)}  # type: ignore[arg-type]
            scanned = True
    else:
        data = mmap(file.fileno(), 0, access=ACCESS_READ)
        file = data  # a file would allocate as much as a text is said to have
    if unbounded := [name for name in _UNBOUNDED if data.find(name) >= 0]:
        what = f"its pickle names {unbounded[0].decode().strip()}, which allocates as much as a file says"
        return Loaded(failure=BadModelFile(what, "save the state dict alone"))
    containers = dict[str, type]()
    while True:
        attempt = _Attempt(allowed, names, containers, size)
        try:
            return attempt.load(file)
        except MemoryError:
            raise
        except Exception as error:
            if attempt.learns(str(error)):
                continue
            rest = file.read(1)
            file.seek(0)
            named = attempt.foreign if scanned else _names_in(io.BytesIO(data) if archive else file, allowed)
            failure = _failure(error, data, not archive and not rest)
            return Loaded(failure=failure, foreign=tuple(sorted(named)))


def _failure(error: Exception, data: Any, ended: bool) -> BadModelFile:
    """Why torch did not read a file; ``ended`` says that it came to the end of the file."""
    if isinstance(error, BadModelFile):
        return error
    text = str(error).partition("WeightsUnpickler error:")[2] or str(error)
    text = text.partition("\n\nCheck the documentation")[0]
    if "magic number" in text or "protocol version" in text:
        return BadModelFile("a pickle, but not a model file that torch.save wrote", _RESAVE)
    if "Unsupported operand" in text and data[:2] != b"\x80\x02":
        protocol = f"protocol {data[1]}" if data[:1] == b"\x80" else "protocol 0 or 1"
        what = f"its pickle is of {protocol}, and without running code torch reads only protocol 2"
        advice = "save it with torch.save and without pickle_protocol; or, if you know who made it,"
        return BadModelFile(what, f"{advice} trust=True", option=f"{advice} --trust")
    if ended or "unexpected EOF" in text:
        return BadModelFile("the file is truncated: its pickle or a storage has no end", _AGAIN)
    reason = type(error).__name__ if "weights_only" in text else one_line(text, 200)
    return BadModelFile(f"not a model that can be read safely: torch says {reason or type(error).__name__}", _RESAVE)


class _Attempt:
    """One call of torch.load, with a value for each name in the file that torch does not allow by itself.

    torch adds items only to plain lists and dicts, so ``containers`` says for which classes one of these must stand.
    """

    def __init__(self, allowed: Allowed, names: set[str], containers: dict[str, type], size: int):
        self.names, self.containers, self.free = names, containers, LARGEST_RATIO * size + SLACK
        self.things: list[Any] = []
        self.replaced: dict[int, tuple[Any, Any]] = {}
        self.kinds: dict[type, type] = {}
        named = allowed.of(names - listed().keys())
        self.foreign = names - listed().keys() - named.keys()
        self.values = {**named}
        self.values |= {name: self._guarded(listed()[name]) for name in names & listed().keys()}
        self.values |= {name: self._stand_in(name) for name in self.foreign}
        self.values |= {name: self._container(name, kind, named.get(name)) for name, kind in containers.items()}

    def load(self, file: BinaryIO) -> Loaded:
        file.seek(0)
        with _LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old protocols
            before = set(torch.serialization.get_safe_globals())
            pairs: list[Any] = [(value, name) for name, value in self.values.items() if (value, name) not in before]
            with torch.serialization.safe_globals(pairs):
                content = torch.load(file, map_location=self._placed, weights_only=True)
        for thing in self.things:
            if type(thing) in self.kinds:
                object.__setattr__(thing, "__class__", self.kinds[type(thing)])
        modules = [thing for thing in self.things if isinstance(thing, nn.Module)]
        return Loaded(content, None, tuple(sorted(self.foreign)), modules, self.replaced)

    def learns(self, message: str) -> bool:
        """Whether torch's message names something that another attempt can provide."""
        if match := re.search(r"GLOBAL (\S+) was not an allowed global", message):
            name = match[1] if "." in match[1] else f"builtins.{match[1]}"  # as torch leaves it out
            known = name in self.names
            self.names.add(name)
            return not known
        if match := re.search(r"Can only (append|extend|SETITEM).*but got <class '([^']*)'>", message, re.DOTALL):
            known = match[2] in self.containers or match[2] not in self.values
            self.containers[match[2]] = OrderedDict if match[1] == "SETITEM" else list
            return not known
        return False

    def _placed(self, storage: Any, location: str) -> Any:
        """Leave a storage on the CPU; all storages together are no larger than the file says."""
        self.free -= storage.nbytes()
        if self.free < 0:
            raise BadModelFile("its tensors need more bytes than the file has", _RESAVE)
        return storage

    def _guarded(self, kind: Any) -> Any:
        """A subclass of a listed class, or something in place of a listed function, that cannot be called."""
        attempt, what = self, f"its pickle calls {kind.__module__}.{kind.__qualname__}, as torch.save never does"

        def refuse(*_: object, **__: object) -> Any:
            raise BadModelFile(what, _RESAVE)

        def new(cls: type, *arguments: object) -> Any:
            if arguments:
                refuse()
            attempt.things.append(thing := object.__new__(cls))
            return thing

        if not isinstance(kind, type):
            self.replaced[id(refuse)] = refuse, lambda: kind
            return refuse
        guard = type(kind.__name__, (kind,), {"__new__": new, "__init__": refuse, "__module__": kind.__module__})
        self.kinds[guard] = kind
        return guard

    def _stand_in(self, name: str) -> Any:
        if name == "builtins.getattr":  # of a class that is stood in for
            return lambda thing, *_: thing
        things = self.things

        def new(cls: type, *_: object, **__: object) -> Any:
            things.append(thing := object.__new__(cls))
            StandIn.__init__(thing)
            return thing

        module, _, last = name.replace("\0", "").rpartition(".")
        return type(last, (StandIn,), {"__new__": new, "__module__": module})

    def _container(self, name: str, plain: type, kind: Any) -> type:
        """In place of a class with items: makes plain lists or dicts; ``kind`` is the class itself if the user allows it."""
        replaced = self.replaced

        def new(cls: type, *arguments: Any) -> Any:
            items = plain()

            def build() -> Any:
                thing = kind(*arguments) if arguments else kind.__new__(kind)
                (thing.extend if plain is list else thing.update)(items)
                return thing

            if kind is not None:
                replaced[id(items)] = items, build
            return items

        module, _, last = name.replace("\0", "").rpartition(".")
        return type(last, (), {"__new__": new, "__module__": module})


class _Anything:
    """An object that is not built, in the search for a name."""

    def __init__(self, *_: object, **__: object):
        pass

    __setitem__ = append = extend = __setstate__ = __init__


def _names_in(file: BinaryIO, allowed: Allowed) -> set[str]:
    """The names in pickles that nothing allows, where torch cannot list them; nothing is imported or called."""
    names = set[str]()

    class Search(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            names.add(f"{module.replace('__builtin__', 'builtins')}.{name}")
            return _Anything

        def persistent_load(self, pid: object) -> Any:
            return _Anything  # a module's class, or a storage

    with suppress(Exception):  # where the pickle breaks
        for _ in range(4):  # a magic number, the protocol, the system, the content
            Search(file).load()
    return names - _get_allowed_globals().keys() - listed().keys() - allowed.of(names).keys()
