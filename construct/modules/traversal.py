"""Finds every module of a network, also those that ``named_modules`` misses: in plain containers,
bound methods and closures.

A forward may call a module in a plain list, ``self.step = self.conv.forward``, or
``self.step = lambda x: self.conv(x)``.
"""

import copy
import dataclasses
import functools
from collections import deque
from collections.abc import Container, Iterator
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, cast

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
    visited: set[int] = set()
    queue = list(_registered("", model, closed, visited))
    for path, module in queue:  # grows on the way
        yield path, module
        for inner_path, inner in _references(path, module):
            if isinstance(inner, nn.Module) and id(module) not in closed:
                queue += _registered(inner_path, inner, closed, visited)


def _registered(
    path: str, module: nn.Module, closed: Container[int], visited: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    """The modules of ``named_modules`` that were not visited before."""
    stack = [(path, module)]
    while stack:  # no recursion: modules may be nested deep
        path, module = stack.pop()
        if id(module) in visited:
            continue
        visited.add(id(module))
        yield path, module
        if id(module) not in closed:
            children = [
                (name, child) for name, child in module._modules.items() if child is not None
            ]
            stack += [(joined(path, name), child) for name, child in reversed(children)]


def joined(path: str, name: str) -> str:
    """The path of what a module at a path calls by this name."""
    return ".".join(filter(None, (path, name)))


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
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
        for buffer in module._buffers.values():
            if isinstance(buffer, UninitializedBuffer):
                memo[id(buffer)] = UninitializedBuffer(device=buffer.device, dtype=buffer.dtype)  # type: ignore[call-arg]
    return memo


def deep_copy(model: nn.Module, memo: dict[int, object] | None = None) -> nn.Module:
    """A deep copy of a network, with ``memo`` (by default :func:`deepcopy_memo`'s) for
    ``copy.deepcopy``; what is in it is not copied.

    Inner modules are copied before outer ones, so that deep nesting needs no deep recursion.

    Raises:
        UnsupportedLayer: something in it cannot be copied, as a lock, an open file or a generator;
            the message has its path.
    """
    memo = deepcopy_memo(model) if memo is None else memo
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
    return cast(nn.Module, copy.deepcopy(model, memo))


def _not_copied(path: str, module: nn.Module) -> tuple[str, object]:
    """The attribute that cannot be copied, with its path; the module itself if each alone can."""
    known = deepcopy_memo(module) | {id(inner): inner for _, inner in every_module(module)}
    for name, value in [
        *vars(module).items(),
        *module._parameters.items(),
        *module._buffers.items(),
    ]:
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
    known = [module for _, module in walked]
    tensors = [
        t for module in known for t in (*module._parameters.values(), *module._buffers.values())
    ]
    memo = deepcopy_memo(model) | {id(value): value for value in (*known, *tensors)}
    memo[id(memo)] = copied = list[Any]()  # where deepcopy keeps alive what it copies
    for path, holder in walked:
        for name, value in vars(holder).items():
            if name in _REGISTERS or id(holder) in closed:
                continue
            before = len(copied)
            with suppress(Exception):  # the network's own copy fails too, or leaves this out
                copy.deepcopy(value, memo)
            for module in copied[before:]:
                if isinstance(module, nn.Module):
                    yield joined(path, name), module


def every_method(model: nn.Module) -> Iterator[tuple[str, nn.Module, MethodType]]:
    """Every bound method that the network stores (``self.step = self.conv.forward``), with its path
    and its module.
    """
    for path, module in every_module(model):
        for inner_path, inner in _references(path, module):
            if isinstance(inner, MethodType) and isinstance(inner.__self__, nn.Module):
                yield inner_path, inner.__self__, inner


def name_of(method: MethodType) -> str:
    """The name of a bound method; if it binds a callable without a name, that callable's type."""
    return getattr(method.__func__, "__name__", type(method.__func__).__name__)


def every_closure(model: nn.Module) -> Iterator[FunctionType]:
    """Every function that the network stores and that closes over modules
    (``self.act = lambda x: self.scale * x``).
    """
    for _, module in every_module(model):
        for _, inner in _references("", module):
            if isinstance(inner, FunctionType) and holds_modules(_closure_values("", inner)):
                yield inner


def holds_modules(value: object) -> bool:
    """Whether a value contains modules, or functions and methods that may reach some."""
    return next(_reached([("", value)]), None) is not None


def _closure_values(path: str, function: FunctionType) -> list[tuple[str, object]]:
    """A function's closure cells and defaults, with paths."""
    values: list[tuple[str, object]] = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values.append((f"{path}.{name}", cell.cell_contents))
        except ValueError:  # an empty cell
            continue
    values += [(f"{path}.__defaults__[{i}]", x) for i, x in enumerate(function.__defaults__ or ())]
    return values + [(f"{path}.{name}", x) for name, x in (function.__kwdefaults__ or {}).items()]


def _references(path: str, module: nn.Module) -> Iterator[tuple[str, object]]:
    """The modules, methods and functions that a module reaches other than as its children."""
    return _reached(
        [(joined(path, name), x) for name, x in vars(module).items() if name not in _REGISTERS]
    )


def _reached(values: list[tuple[str, Any]]) -> Iterator[tuple[str, object]]:
    """The modules, methods and functions in nested plain containers, with paths (``layers[2]``);
    then what the functions reach.
    """
    stack = values[::-1]
    inside_functions = list[tuple[str, Any]]()
    visited = set[int]()
    while stack:  # no recursion, and each container once: it may be deep, or hold itself
        path, value = stack.pop()
        if isinstance(value, nn.Module):
            yield path, value
        elif id(value) not in visited and not isinstance(value, str | bytes | int | float):
            visited.add(id(value))
            if isinstance(value, MethodType | FunctionType):
                yield path, value
                inside_functions += _items(path, value)
            else:
                stack += reversed(_items(path, value))
        if not stack:
            stack = inside_functions[::-1]
            inside_functions = []


def _items(path: str, value: Any) -> list[tuple[str, Any]]:
    """The items of a plain container, the module of a method, or what a function closes over, with
    paths; none of the rest.
    """
    if isinstance(value, MethodType):
        return [(f"{path}.__self__", value.__self__)]
    if isinstance(value, FunctionType):
        return _closure_values(path, value)
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
