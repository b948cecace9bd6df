"""Finds and copies every module of a network, also those that ``named_modules`` misses: in plain
containers, bound methods and closures.

A forward may call a module in a plain list, ``self.step = self.conv.forward``, or
``self.step = lambda x: self.conv(x)``.
"""

import copy
import dataclasses
import functools
from collections import deque
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from types import CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer

from construct.errors import describe, refuse

_REGISTERS = frozenset(("_modules", "_parameters", "_buffers", "_compiled_call_impl"))
_REGISTERS |= frozenset(name for name in vars(nn.Module()) if "state_dict" in name)
"""Attributes in which no module is looked for: children are visited before, deepcopy drops the
compiled call, and hooks on a state dict take no part in a call.
"""
_SEQUENCES = (list, tuple, set, frozenset, deque)


def every_module(model: nn.Module, closed: Container[int] = ()) -> Iterator[tuple[str, nn.Module]]:
    """Every module with its first path: first the registered ones, then those reached in other
    ways.

    Modules whose ids are in ``closed`` are not entered.
    """
    visited = {id(None)}  # a child may be None
    roots: list[tuple[str, Any]] = [("", model)]
    for root in roots:  # grows on the way
        stack = [root]
        while stack:  # no recursion: modules may be nested deep
            path, module = stack.pop()
            if id(module) in visited:
                continue
            visited.add(id(module))
            yield path, module
            if id(module) not in closed:
                references = _reached(_attributes(path, module))
                roots += [(name, x) for name, x in references if isinstance(x, nn.Module)]
                children = reversed(module._modules.items())
                stack += [(joined(path, name), child) for name, child in children]


def joined(path: str, name: str) -> str:
    """The path of what a module at a path calls by this name; either may be empty."""
    if path and name:
        return f"{path}.{name}"
    return path or name


MOST_NAMES = 100_000
"""Names of all modules of a network; the checker's reader has the same limit."""


def checked_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """:func:`every_module` of a network from an untrusted file.

    A module in two places has two names, each of which would be in the state dict: 40 modules can
    have 2^40 names.

    Raises:
        ValueError: too many names, a module that contains itself, an ambiguous name, or a value in
            a method's place.
    """
    modules = list(every_module(model))
    for path, module in modules:
        wrong = _wrong_name(module)
        if wrong:
            raise ValueError(f"{path or 'the model'}: {wrong}")
    children = {
        module: [child for child in module._modules.values() if child is not None]
        for _, module in modules
    }
    counts: dict[nn.Module, int] = {}
    try:
        for module in TopologicalSorter(children).static_order():
            counts[module] = 1 + sum(counts[child] for child in children[module])
    except CycleError:
        raise ValueError("a module holds itself") from None
    names = max(counts.values())
    if names > MOST_NAMES:
        raise ValueError(
            f"its modules hold each other, and have {names:.3g} names, more than {MOST_NAMES}"
        )
    return modules


def _wrong_name(module: nn.Module) -> str:
    """Which name of a module's is invalid, ambiguous or a method's, in one clause; empty if none
    is.
    """
    known = {*vars(module)}
    for name in (*module._modules, *module._parameters, *module._buffers):
        if not isinstance(name, str) or not name or "." in name:
            return f"something in it is named {name!r:.60}, as no part of a path is"
        if name in known:
            return f"the name {name!r:.60} is given to two things"
        known.add(name)
    for name, value in vars(module).items():
        if callable(getattr(nn.Module, name, None)) and (
            not callable(value) or isinstance(value, nn.Module)
        ):
            return f"it has {name!r:.60} of its own, which hides a method"
    return ""


def deepcopy_memo(model: nn.Module) -> dict[int, object]:
    """A ``copy.deepcopy`` memo with copies of tensors that torch refuses to copy: non-leaf ones,
    detached, and lazy buffers.

    The older weight_norm leaves a non-leaf tensor behind as ``weight``.
    """
    memo: dict[int, object] = {}
    for _, module in every_module(model):
        for value in (*vars(module).values(), *module._buffers.values()):
            if isinstance(value, UninitializedBuffer):
                memo[id(value)] = UninitializedBuffer(device=value.device, dtype=value.dtype)  # type: ignore[call-arg]
            elif isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return memo


def substitute(
    model: nn.Module,
    replacements: Mapping[nn.Module, nn.Module],
    memo: dict[int, Any] | None = None,
) -> nn.Module:
    """A deep copy of ``model`` in which every reference to a key of ``replacements`` becomes its
    value.

    The deepcopy memo maps each of these modules to its replacement, so a module used twice, or
    stored in a plain list, is replaced everywhere and stays one module.  A stored bound method
    (``self.step = self.conv.forward``) becomes the replacement's; closures over modules are rebuilt
    over the copies.  ``memo`` may be shared by copies of networks with parts in common.

    Raises:
        UnsupportedLayer: something in it cannot be copied, as a lock, an open file or a generator;
            the message has its path.
    """
    memo = {} if memo is None else memo
    others = {id(module): other for module, other in replacements.items()}
    memo |= deepcopy_memo(model) | memo | others
    closures = list[FunctionType]()
    for _, function in every_function(model):
        if isinstance(function, MethodType):
            if id(function.__self__) in others:
                memo[id(function)] = getattr(others[id(function.__self__)], name_of(function))
        elif holds_modules(_items("", function)):
            # deepcopy copies functions by reference, with the original modules in their cells.
            closures.append(function)
            cells = tuple(CellType() for _ in function.__closure__ or ())
            parts = function.__code__, function.__globals__, function.__name__, None, cells
            memo[id(function)] = FunctionType(*parts)
    copied = _deep_copy(model, memo)
    for function in closures:
        _fill(memo[id(function)], function, memo)
    return copied


def _fill(copied: Any, function: FunctionType, memo: dict[int, Any]) -> None:
    """Fill the cells and defaults of a copied function: modules are copied, everything else is kept
    by reference.
    """

    def counterpart(value: Any) -> Any:
        if holds_modules(value):
            return copy.deepcopy(value, memo)
        return value

    for cell, other in zip(function.__closure__ or (), copied.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            other.cell_contents = counterpart(cell.cell_contents)
    keywords = function.__kwdefaults__ or {}
    copied.__defaults__ = tuple(map(counterpart, function.__defaults__ or ()))
    copied.__kwdefaults__ = {name: counterpart(value) for name, value in keywords.items()}
    functools.update_wrapper(copied, function)
    del copied.__wrapped__


def _deep_copy(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """``copy.deepcopy``, of inner modules before outer ones, so that deep nesting needs no deep
    recursion.
    """
    for path, module in reversed(list(every_module(model, memo))):
        try:
            copied = copy.deepcopy(module, memo)
        except MemoryError:
            raise
        except Exception as error:  # copies run the network's own code
            place, value = _not_copied(path, module)
            reason = f"it cannot be copied ({describe(error)}); leave it out in the module's __getstate__ and make it anew in "
            refuse(value, reason + "its __setstate__", place)
        if copied is module and memo.get(id(module)) is not module:
            reason = "it cannot be copied: a copy of it is the module itself (change its __deepcopy__ or __reduce__)"
            refuse(module, reason, path)
    return copy.deepcopy(model, memo)


def _not_copied(path: str, module: nn.Module) -> tuple[str, object]:
    """The attribute that cannot be copied, with its path; the module itself if each alone can."""
    known = deepcopy_memo(module) | {id(inner): inner for _, inner in every_module(module)}
    for name, value in (vars(module) | module._parameters | module._buffers).items():
        if name not in _REGISTERS:
            try:
                copy.deepcopy(value, dict(known))
            except Exception:
                return joined(path, name), value
    return path, module


def hidden_modules(
    model: nn.Module, closed: Container[int] = ()
) -> Iterator[tuple[str, nn.Module]]:
    """The modules that :func:`every_module` does not find but ``copy.deepcopy`` does, inside
    objects of any class.

    Yields the path of the attribute that reaches one, and the module.
    """
    walked = list(every_module(model, closed))
    memo = deepcopy_memo(model)
    for _, module in walked:
        known = module, *module._parameters.values(), *module._buffers.values()
        memo |= {id(value): value for value in known}
    memo[id(memo)] = copied = list[Any]()  # where deepcopy keeps alive what it copies
    for path, holder in walked:
        attributes = [] if id(holder) in closed else _attributes(path, holder)
        for attribute, value in attributes:
            before = len(copied)
            with suppress(Exception):  # the network's own copy fails too, or leaves this out
                copy.deepcopy(value, memo)
            for module in copied[before:]:
                if isinstance(module, nn.Module):
                    yield attribute, module


def every_function(model: nn.Module) -> Iterator[tuple[str, MethodType | FunctionType]]:
    """Every bound method and every function that the network stores, with its path
    (``self.step = self.conv.forward``, ``self.act = lambda x: self.scale * x``).
    """
    for path, module in every_module(model):
        for inner_path, inner in _reached(_attributes(path, module)):
            if not isinstance(inner, nn.Module):
                yield inner_path, inner


def name_of(method: MethodType) -> str:
    """The name of a bound method; if it binds a callable without a name, that callable's type."""
    return getattr(method.__func__, "__name__", type(method.__func__).__name__)


def holds_modules(value: object) -> bool:
    """Whether a value contains modules, or functions and methods that may reach some."""
    return next(_reached([("", value)]), None) is not None


def _attributes(path: str, module: nn.Module) -> list[tuple[str, Any]]:
    """What a module holds other than its children and tensors, with paths."""
    return [(joined(path, name), x) for name, x in vars(module).items() if name not in _REGISTERS]


def _reached(values: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The modules, methods and functions in nested plain containers, with paths (``layers[2]``),
    and what the functions reach.
    """
    stack = values[::-1]
    visited = set[int]()
    while stack:  # no recursion, and each container once: it may be deep, or hold itself
        path, value = stack.pop()
        if isinstance(value, nn.Module):
            yield path, value
        elif id(value) not in visited and not isinstance(value, str | bytes | int | float):
            visited.add(id(value))
            if isinstance(value, MethodType | FunctionType):
                yield path, value
            stack += reversed(_items(path, value))


def _items(path: str, value: Any) -> list[tuple[str, Any]]:
    """The items of a plain container, the module of a method, or what a function closes over, with
    paths; none of the rest.
    """
    if isinstance(value, MethodType):
        return [(f"{path}.__self__", value.__self__)]
    if isinstance(value, FunctionType):
        values = [
            (f"{path}.__defaults__", value.__defaults__),
            (f"{path}.__kwdefaults__", value.__kwdefaults__),
        ]
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                values.append((f"{path}.{name}", cell.cell_contents))
        return values
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", x) for key, x in value.items()]
    if isinstance(value, _SEQUENCES):
        return [(f"{path}[{i}]", x) for i, x in enumerate(value)]
    if isinstance(value, functools.partial):
        return [
            (path, value.func),
            (f"{path}.args", value.args),
            (f"{path}.keywords", value.keywords),
        ]
    if isinstance(value, SimpleNamespace) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    ):
        return [(f"{path}.{name}", x) for name, x in getattr(value, "__dict__", {}).items()]
    return []
