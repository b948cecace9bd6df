"""What a pickle names: the list of classes that a file may hold, and a walk over files that carries nothing out."""

import contextlib
import itertools
import pickletools
import re
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, BinaryIO

import torch
from torch import nn

from construct.attention import MHSA
from construct.errors import BadModelFile
from construct.geometry import ConvGeometry
from construct.pickle_walk import KNOWN, LONGEST_TEXT, MOST_STEPS
from construct.plain_text import described, shown

ZIP = b"PK\x03\x04"
"""How an archive of torch.save begins."""

BROKEN = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, ValueError, OSError, LookupError)
"""What the readers of the standard library make of a damaged file."""


@cache
def allowed_classes() -> tuple[type, ...]:
    """The exact classes that a file may name: the public modules of torch.nn and this project's own layer."""
    found: set[type] = set()
    for info in iter_modules(nn.modules.__path__):
        module = import_module(f"torch.nn.modules.{info.name}")
        found |= {
            value
            for name, value in vars(module).items()
            if isinstance(value, type)
            and issubclass(value, nn.Module)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        }
    return (*sorted(found, key=lambda kind: kind.__qualname__), MHSA, ConvGeometry)


@contextlib.contextmanager
def allowing(named: Mapping[str, Any] | None = None) -> Iterator[frozenset[str]]:
    """Allow our classes to torch's restricted reader; what the caller's program had allowed before stays as it was.

    Args:
        named: more, by the name that a file has for it.

    Yields:
        The names of our classes.
    """
    before = set(torch.serialization.get_safe_globals())
    kinds = {_name(kind): kind for kind in (*allowed_classes(), *_VALUES)}
    more = [(thing, name) for name, thing in ({name: kind for name, kind in kinds.items()} | dict(named or {})).items()]
    with torch.serialization.safe_globals([pair for pair in more if pair not in before]):
        yield frozenset(kinds)


_VALUES = (nn.functional.relu, nn.functional.gelu)
"""Functions that torch's own modules keep as attributes; a file can name them, and nothing calls them in reading."""


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def imported(names: Iterable[str]) -> dict[str, Any]:
    """What the user allows by name.  This imports the user's own packages, and nothing that stands in a model file alone.

    Raises:
        BadModelFile: a name leads nowhere, or to what no model needs.
    """
    found: dict[str, Any] = {}
    for name in names:
        module, _, last = name.rpartition(".")
        if not module or module.split(".")[0] in _NEVER:
            raise BadModelFile(f"{shown(name)}: cannot be allowed (name a class as package.module.Class)")
        try:
            found[name] = getattr(import_module(module), last)
        except Exception as error:  # the user's package may raise anything
            raise BadModelFile(
                f"{shown(name)}: {described(error)} (put its package on PYTHONPATH, or save a state dict)"
            ) from error
        if not callable(found[name]):
            raise BadModelFile(f"{shown(name)}: is no class (name a class as package.module.Class)")
    return found


_NEVER = frozenset({"__main__", "builtins", "os", "posix", "nt", "sys", "subprocess", "importlib", "runpy", "pickle"})
"""Packages from which nothing can be allowed: they run whatever they are told."""


def foreign_names(file: BinaryIO, ours: Collection[str]) -> list[str]:
    """Everything that the file names and that is not allowed, found without loading it."""
    found, _ = names_in(file)
    return sorted(found - frozenset(ours) - KNOWN)


def names_in(file: BinaryIO) -> tuple[set[str], set[str]]:
    """Every global and every text that a model file holds, by reading the pickle's instructions; none is carried out."""
    globals_found: set[str] = set()
    texts: set[str] = set()
    with contextlib.suppress(*BROKEN), contextlib.ExitStack() as stack:
        file.seek(0)
        if file.read(4) == ZIP:
            archive = stack.enter_context(zipfile.ZipFile(file))
            record = next(member for member in archive.namelist() if member.endswith("/data.pkl"))
            stream, pickles = _Within(stack.enter_context(archive.open(record))), 1  # type: ignore[arg-type]
        else:
            file.seek(0)
            stream, pickles = _Within(file), 4  # old files: magic number, protocol, system, and then the object
        for _ in range(pickles):
            _walk(stream, globals_found, texts)
    return globals_found, texts


class _Within:
    """A file that is never asked for more than a text may have: a read takes the memory before it knows what is there."""

    def __init__(self, file: BinaryIO):
        self.file = file

    def read(self, count: int) -> bytes:
        if count > LONGEST_TEXT:
            raise EOFError
        return self.file.read(count)

    def readline(self) -> bytes:
        return self.file.readline(LONGEST_TEXT)


def _walk(stream: Any, globals_found: set[str], texts: set[str]) -> None:
    memo: dict[int, str | None] = {}
    last: str | None = None
    pushed = ["", ""]  # the two texts that STACK_GLOBAL would take
    for opcode, argument, _ in itertools.islice(pickletools.genops(stream), MOST_STEPS):
        if opcode.name in ("GLOBAL", "INST"):
            name = str(argument).replace(" ", ".")
            globals_found.add(re.sub(r"^__builtin__\.", "builtins.", name))  # as Python 2 called it
        elif opcode.name == "STACK_GLOBAL":
            globals_found.add(".".join(pushed))
        if opcode.name == "MEMOIZE":
            memo[len(memo)] = last
        elif opcode.name.endswith("PUT"):
            memo[int(argument)] = last  # type: ignore[arg-type]
        elif opcode.name.endswith("GET"):
            last = memo.get(int(argument))  # type: ignore[arg-type]
            pushed = [pushed[1], last] if last is not None else pushed
        elif isinstance(argument, str) and opcode.name not in ("GLOBAL", "INST"):
            last = argument
            texts.add(last)
            pushed = [pushed[1], last]
        else:
            last = None
