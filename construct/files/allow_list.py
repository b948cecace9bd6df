"""What a pickle may name: the list of classes that a file may hold, and what the user allows beside them."""

import contextlib
import importlib.util
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, BinaryIO

import torch
from torch import nn

from construct.attention import MHSA
from construct.errors import BadModelFile, described
from construct.files.archives import Odd, content, directory, records
from construct.files.pickle_records import KNOWN
from construct.files.pickle_walk import LARGEST_PICKLE, Walker, walk_bytes, walk_legacy
from construct.geometry import ConvGeometry

ZIP = b"PK\x03\x04"
"""How an archive of torch.save begins."""


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


@dataclass(frozen=True)
class Allowed:
    """What the user allows beside our classes.

    Attributes:
        exact: classes and functions by their whole names.
        packages: all of whose own classes are allowed.
    """

    exact: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()

    def of(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of these names that are allowed, with what they lead to."""
        allowed = dict(self.exact)
        for name in names:
            module, _, last = name.rpartition(".")
            inside = any(f"{module}.".startswith(f"{package}.") for package in self.packages)
            if name in allowed or not inside or "__main__" in module.split("."):  # which a package would run
                continue
            with contextlib.suppress(Exception, SystemExit):  # a module that cannot be imported has no class
                kind = vars(import_module(module)).get(last)
                # No function, and nothing that the package has from elsewhere: it may reach anything there is.
                if isinstance(kind, type) and _name(kind) == name:
                    allowed[name] = kind
        return allowed


def imported(names: Iterable[str]) -> Allowed:
    """What the user allows by name.  This imports the user's own packages, and nothing that stands in a model file alone.

    Raises:
        BadModelFile: a name leads nowhere, or to what no model needs.
    """
    exact: dict[str, Any] = {}
    packages: list[str] = []
    for name in names:
        module, _, last = name.rpartition(".")
        top = name.partition(".")[0]
        if top in _NEVER or name.startswith("torch.serialization.") or not all(name.split(".")):
            raise BadModelFile(f"{name!r} cannot be allowed ({_FORMS})")
        try:
            thing = getattr(import_module(module), last, None) if module else None
            if thing is None or isinstance(thing, ModuleType):
                if top in _FOREIGN and (not module or importlib.util.find_spec(name)):
                    raise BadModelFile(f"{name!r} cannot be allowed as a whole ({_FORMS})")
                import_module(name)
                packages.append(name)
                continue
        except BadModelFile:
            raise
        except Exception as error:  # the user's package may raise anything
            raise BadModelFile(
                f"{name!r}: {described(error)} (put its package on PYTHONPATH, or save a state dict)"
            ) from error
        if not callable(thing) or (top in _FOREIGN and not isinstance(thing, type)):
            raise BadModelFile(f"{name!r} is no class ({_FORMS})")
        exact[name] = thing
    return Allowed(exact, tuple(packages))


_FORMS = "name a class as package.module.Class, or the package of your network"
_NEVER = frozenset({"__main__", "builtins", "os", "posix", "nt", "sys", "subprocess", "importlib", "runpy", "pickle"})
"""Packages from which nothing can be allowed: they run whatever they are told."""
_FOREIGN = (sys.stdlib_module_names | {"torch", "construct", "verify"}) - _NEVER
"""Packages of which single classes can be allowed, but not everything: no user wrote them for one network."""


def allow_options(foreign: Iterable[str]) -> list[str]:
    """What to ``--allow`` so that these names might be read; nothing if one of them can never be allowed."""
    options: dict[str, None] = {}
    for name in foreign:
        top, last = name.partition(".")[0], name.rpartition(".")[2]
        if top in _NEVER or name.startswith("torch.serialization.") or not name.isprintable() or "." not in name:
            return []
        # Of a package, classes alone are let in; functions have small initials.
        options[name if top in _FOREIGN or not last[:1].isupper() else top] = None
    return list(options)


def foreign(walker: Walker, ours: Collection[str]) -> list[str]:
    """Everything that a file names and that is not allowed."""
    return sorted(walker.names - frozenset(ours) - KNOWN)


def walked(file: BinaryIO) -> Walker:
    """Walk the pickles of a file of torch.save for what it names and holds; nothing is carried out.

    Raises:
        Odd: it is an archive, and not one that torch.save wrote.
    """
    size = file.seek(0, 2)
    file.seek(0)
    if file.read(4) != ZIP:
        return walk_legacy(file, size, ())
    by_name = records(file, *directory(file, size), sums=False)
    pickle = next((record for name, record in by_name.items() if name.endswith(b"/data.pkl")), None)
    if pickle is None or pickle.size > LARGEST_PICKLE:
        raise Odd("it has no data.pkl, or too large a one")
    return walk_bytes(content(file, pickle), ())
