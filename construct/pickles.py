"""What a pickle names: the list of classes that a file may hold, and a walk over files that carries nothing out."""

import contextlib
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, BinaryIO

import torch
from torch import nn

from construct.attention import MHSA
from construct.geometry import ConvGeometry

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
def allowing() -> Iterator[frozenset[str]]:
    """Allow our classes to torch's restricted reader; what the caller's program had allowed before stays as it was."""
    before = set(torch.serialization.get_safe_globals())
    kinds = allowed_classes()
    with torch.serialization.safe_globals([kind for kind in kinds if kind not in before]):
        yield frozenset(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)


def foreign_classes(file: BinaryIO, ours: frozenset[str]) -> list[str]:
    """Everything that the file names and that is not allowed, found without loading it."""
    file.seek(0)
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))  # type: ignore[arg-type]
    except Exception:
        # An old file, or a pickle protocol that torch's walk does not know, so torch.load will refuse what is not allowed.
        # Here the names are wanted for the message alone.
        found, _ = names_in(file)
        return sorted(n for n in found - ours - _HARMLESS if not n.startswith(("torch.", "collections.")))


_HARMLESS = frozenset({"_codecs.encode", "builtins.bytearray", "builtins.complex", "builtins.set"})
"""What torch's restricted reader allows by itself, outside of torch and collections."""


def names_in(file: BinaryIO) -> tuple[set[str], set[str]]:
    """Every global and every text that a model file holds, by reading the pickle's instructions; none is carried out."""
    globals_found: set[str] = set()
    texts: set[str] = set()
    with contextlib.suppress(*BROKEN), contextlib.ExitStack() as stack:
        file.seek(0)
        if file.read(4) == ZIP:
            archive = stack.enter_context(zipfile.ZipFile(file))
            record = next(member for member in archive.namelist() if member.endswith("/data.pkl"))
            stream, pickles = stack.enter_context(archive.open(record)), 1
        else:
            file.seek(0)
            stream, pickles = file, 4  # old files: magic number, protocol, system, and then the object
        for _ in range(pickles):
            _walk(stream, globals_found, texts)
    return globals_found, texts


def _walk(stream: Any, globals_found: set[str], texts: set[str]) -> None:
    memo: dict[int, str | None] = {}
    last: str | None = None
    pushed = ["", ""]  # the two texts that STACK_GLOBAL would take
    for opcode, argument, _ in pickletools.genops(stream):
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
