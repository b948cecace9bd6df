"""The names that a model file may hold: classes of torch.nn, this project's layer, and what the
user allows.
"""

import contextlib
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from torch import nn

from construct.attention import MHSA
from construct.errors import BadModelFile
from construct.files.isolation import refusing
from construct.geometry import ConvGeometry


@cache
def allowed_classes() -> tuple[type, ...]:
    """The classes that any file may name: the public modules of torch.nn, MHSA and ConvGeometry."""
    classes = {MHSA, ConvGeometry}
    for info in iter_modules(nn.modules.__path__):
        module = import_module(f"torch.nn.modules.{info.name}")
        for name, kind in vars(module).items():
            of_modules = isinstance(kind, type) and issubclass(kind, nn.Module)
            if of_modules and kind.__module__ == module.__name__ and not name.startswith("_"):
                classes.add(kind)
    return tuple(classes)


@cache
def listed() -> Mapping[str, Any]:
    """What any file may name, by full names."""
    return {_name(value): value for value in (*allowed_classes(), *_VALUES)}


_VALUES = (nn.functional.relu, nn.functional.gelu)
"""Functions that torch's own modules store as attributes."""


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
        """Import those of these names that are allowed; with them come the exact names."""
        allowed = dict(self.exact)
        for name in names:
            module, _, last = name.rpartition(".")
            inside = f"{module}.".startswith(tuple(f"{package}." for package in self.packages))
            # importing __main__ would run it
            if name in allowed or not inside or "__main__" in module.split("."):
                continue
            # a module that cannot be imported has no class
            with contextlib.suppress(Exception, SystemExit):
                kind = vars(import_module(module)).get(last)
                # Functions are excluded, and so is whatever the package imports from elsewhere.
                if isinstance(kind, type) and _name(kind) == name:
                    allowed[name] = kind
        if "numpy.dtype" in allowed:  # a dtype is of a class of its own, which no file names
            kinds = vars(import_module("numpy.dtypes"))
            allowed |= {_name(kind): kind for kind in kinds.values() if isinstance(kind, type)}
        return allowed


NOTHING = Allowed()
"""Nothing beyond the allow-list."""


def import_allowed(names: Iterable[str]) -> Allowed:
    """Import what the user allows by name; names from a model file are not imported here.

    Raises:
        BadModelFile: a name cannot be imported, or no model needs it.
    """
    exact = {}
    packages = []
    for name in names:
        # before its import, which may run anything
        if _is_never(name) or name in _FOREIGN or not all(name.split(".")):
            raise BadModelFile(f"{name!r} cannot be allowed", _FORMS)
        with (
            refusing(f"{name!r}: ", "put its package on PYTHONPATH, or save a state dict"),
            # of old names, as numpy.core
            warnings.catch_warnings(action="ignore", category=DeprecationWarning),
        ):
            value = _imported(name)
        foreign = _is_foreign(name)
        if isinstance(value, type) or (callable(value) and not foreign):
            exact[name] = value
        elif isinstance(value, ModuleType) and not foreign:
            packages.append(name)
        else:
            raise BadModelFile(f"{name!r} must be a class", _FORMS)
    return Allowed(exact, tuple(packages))


def _imported(name: str) -> Any:
    """The module of this name, or what the module before its last dot defines."""
    module, _, last = name.rpartition(".")
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name or not module:
            raise
    return getattr(import_module(module), last)


def can_be_allowed(name: str) -> bool:
    """Whether a name is that of something that can be imported and allowed."""
    try:
        return name in import_allowed([name]).exact
    except BadModelFile:
        return False


_FORMS = "name a class as package.module.Class, or the package of your network"
_NEVER = frozenset("__main__ builtins os posix nt sys subprocess importlib runpy pickle".split())
"""Packages from which nothing can be allowed: their functions run arbitrary code."""
_PLAIN = frozenset(
    f"builtins.{kind}"
    for kind in "bool dict float frozenset int list object range slice str tuple".split()
)
"""Classes of builtins that can be allowed."""
_FOREIGN = (sys.stdlib_module_names | {"torch", "construct", "verify"}) - _NEVER
"""Packages of which single classes can be allowed, but not the whole package."""


def _is_foreign(name: str) -> bool:
    return name.partition(".")[0] in _FOREIGN


def _is_never(name: str) -> bool:
    return name.startswith("torch.serialization.") or (
        name.partition(".")[0] in _NEVER and name not in _PLAIN
    )


def allow_options(foreign: Iterable[str]) -> list[str]:
    """The ``--allow`` options that would admit these names; empty if one of them can never be
    allowed.
    """
    options = {}
    for name in foreign:
        module, _, last = name.rpartition(".")
        value = getattr(sys.modules.get(module), last, None)
        function = value is not None and not isinstance(value, type)
        if (
            _is_never(name)
            or not name.isprintable()
            or not module
            or (_is_foreign(name) and function)
        ):
            return []
        # A package admits its classes only; a lower-case initial is taken for a function.
        if last[:1].isupper() and not _is_foreign(name):
            name = name.partition(".")[0]
        options[name] = None
    return list(options)
