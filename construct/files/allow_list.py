"""The allow-list of classes for ``torch.load(weights_only=True)``: torch.nn, this project's layer, and what the user allows."""

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
from construct.errors import BadModelFile, describe
from construct.files.archives import Malformed, content, directory, records
from construct.files.pickle_records import KNOWN
from construct.files.pickle_walk import LARGEST_PICKLE, Walker, walk_bytes, walk_legacy
from construct.geometry import ConvGeometry
from construct.modules.traversal import holds_modules

ZIP = b"PK\x03\x04"
"""The first bytes of a zip archive, as torch.save writes it."""


@cache
def allowed_classes() -> tuple[type, ...]:
    """The classes that any file may name: the public modules of torch.nn, MHSA and ConvGeometry."""
    classes: set[type] = {MHSA, ConvGeometry}
    for info in iter_modules(nn.modules.__path__):
        module = import_module(f"torch.nn.modules.{info.name}")
        kinds = {value for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_")}
        classes |= {kind for kind in kinds if issubclass(kind, nn.Module) and kind.__module__ == module.__name__}
    return tuple(classes)


@cache
def _listed() -> dict[str, Any]:
    """The allow-list by full names."""
    return {_name(value): value for value in (*allowed_classes(), *_VALUES)}


@contextlib.contextmanager
def allowing(named: Mapping[str, Any] | None = None) -> Iterator[frozenset[str]]:
    """Add the allow-list, and more globals by their names in a file, to torch's safe globals within the block.

    The caller's own safe globals stay.  Yields the names of the allow-list.
    """
    before = set(torch.serialization.get_safe_globals())
    more = [(value, name) for name, value in {**_listed(), **(named or {})}.items()]
    with torch.serialization.safe_globals([pair for pair in more if pair not in before]):
        yield frozenset(_listed())


_VALUES = (nn.functional.relu, nn.functional.gelu)
"""Functions that torch's own modules store as attributes; reading does not call them."""


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True)
class Allowed:
    """What the user allows beyond the allow-list.

    Attributes:
        exact: classes and functions by their full names.
        packages: every class that they define is allowed.
    """

    exact: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()

    def of(self, names: Iterable[str]) -> dict[str, Any]:
        """Import those of these names that are allowed."""
        allowed = dict(self.exact)
        for name in names:
            module, _, last = name.rpartition(".")
            inside = any(f"{module}.".startswith(f"{package}.") for package in self.packages)
            if name in allowed or not inside or "__main__" in module.split("."):  # importing __main__ would run it
                continue
            with contextlib.suppress(Exception, SystemExit):  # a module that cannot be imported has no class
                kind = vars(import_module(module)).get(last)
                # Functions are excluded, and so is whatever the package imports from elsewhere.
                if isinstance(kind, type) and _name(kind) == name:
                    allowed[name] = kind
        return allowed


def import_allowed(names: Iterable[str]) -> Allowed:
    """Import what the user allows by name; names from a model file are not imported here.

    Raises:
        BadModelFile: a name cannot be imported, or no model needs it.
    """
    exact: dict[str, Any] = {}
    packages: list[str] = []
    for name in names:
        module, _, last = name.rpartition(".")
        top = name.partition(".")[0]
        if top in _NEVER or name.startswith("torch.serialization.") or not all(name.split(".")):
            raise BadModelFile(f"{name!r} cannot be allowed", _FORMS)
        try:
            value = getattr(import_module(module), last, None) if module else None
            if value is None or isinstance(value, ModuleType):
                if top in _FOREIGN and (not module or importlib.util.find_spec(name)):
                    raise BadModelFile(f"{name!r} cannot be allowed as a whole", _FORMS)
                import_module(name)
                packages.append(name)
                continue
        except BadModelFile:
            raise
        except Exception as error:  # the user's package may raise anything
            remedy = "put its package on PYTHONPATH, or save a state dict"
            raise BadModelFile(f"{name!r}: {describe(error)}", remedy) from error
        if not callable(value) or (top in _FOREIGN and not isinstance(value, type)):
            raise BadModelFile(f"{name!r} is no class", _FORMS)
        exact[name] = value
    return Allowed(exact, tuple(packages))


_FORMS = "name a class as package.module.Class, or the package of your network"
_NEVER = frozenset({"__main__", "builtins", "os", "posix", "nt", "sys", "subprocess", "importlib", "runpy", "pickle"})
"""Packages from which nothing can be allowed: their functions run arbitrary code."""
_FOREIGN = (sys.stdlib_module_names | {"torch", "construct", "verify"}) - _NEVER
"""Packages of which single classes can be allowed, but not the whole package."""


def allow_options(foreign: Iterable[str]) -> list[str]:
    """The ``--allow`` options that would admit these names; empty if one of them can never be allowed."""
    options: dict[str, None] = {}
    for name in foreign:
        top, last = name.partition(".")[0], name.rpartition(".")[2]
        if top in _NEVER or name.startswith("torch.serialization.") or not name.isprintable() or "." not in name:
            return []
        # A package admits its classes only; a lower-case initial is taken for a function.
        options[name if top in _FOREIGN or not last[:1].isupper() else top] = None
    return list(options)


def stand_in(name: str) -> type[nn.Module]:
    """An inert class to replace one that is not imported: it keeps a module's children and tensors, and computes nothing.

    Raises:
        Malformed: raised by one of its objects that would lose modules.
    """

    def keep(self: nn.Module, *arguments: object) -> None:
        nn.Module.__init__(self)
        lose(arguments)

    def restore(self: nn.Module, state: object) -> None:
        if isinstance(state, dict) and "_modules" in state:
            nn.Module.__setstate__(self, state)
            if "w_key_pos" in self._parameters:
                raise Malformed(f"a {name} is an attention layer of a class of its own, which takes that class")
        else:
            lose(state)

    def lose(value: object) -> None:
        if holds_modules(value):
            raise Malformed(f"a {name} holds modules in a way of its own, which takes its class")

    return type(name.rpartition(".")[2], (nn.Module,), {"__init__": keep, "__setstate__": restore})


def unlisted_names(walker: Walker, allowed: Collection[str] = ()) -> list[str]:
    """The names in a file that are neither on the allow-list nor in ``allowed``."""
    return sorted(walker.names - _listed().keys() - KNOWN - {*allowed})


def walk_file(file: BinaryIO) -> Walker:
    """Walk the pickles of a torch.save file for its names and records; nothing is executed.

    Raises:
        Malformed: a zip archive that torch.save did not write.
    """
    size = file.seek(0, 2)
    file.seek(0)
    if file.read(4) != ZIP:
        return walk_legacy(file)
    by_name = records(file, *directory(file, size), sums=False)
    pickle = next((record for name, record in by_name.items() if name.endswith(b"/data.pkl")), None)
    if pickle is None or pickle.size > LARGEST_PICKLE:
        raise Malformed("it has no data.pkl, or too large a one")
    return walk_bytes(content(file, pickle))
