"""Everything that a network holds: modules where torch does not look, and references to their methods.

torch passes over a module in a plain container (``named_modules`` does not list it), but a forward may well call it; and it may
call ``self.step = self.conv.forward``, or ``self.step = lambda x: self.conv(x)``, which are no modules at all.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from types import FunctionType, MappingProxyType, MethodType, SimpleNamespace
from typing import Any

from torch import Tensor, nn

_REGISTERS = frozenset(vars(nn.Module())) | {"_compiled_call_impl"}
"""What every module keeps for torch: its children, parameters, hooks; and what ``compile`` leaves, which no copy gets."""

_SERIES = (list, tuple, set, frozenset)


Instead = Mapping[nn.Module, nn.Module]
"""Modules, and those that are walked in their place, with all that they hold."""


def every_module(model: nn.Module, instead: Instead = MappingProxyType({})) -> Iterator[tuple[str, nn.Module]]:
    """Every module and the first path to it: those that torch registers, then those that are held in another way."""
    seen: set[int] = set()
    found = list(_registered("", model, instead, seen))
    for path, module, inside in found:  # grows on the way
        yield path, module
        for inner_path, inner in _held(path, module):
            if isinstance(inner, nn.Module):
                found += _registered(inner_path, inner, inside, seen)


def _registered(
    path: str, module: nn.Module, instead: Instead, seen: set[int]
) -> Iterator[tuple[str, nn.Module, Instead]]:
    """What ``named_modules`` lists, without those that were seen before; and what is walked instead of what they hold."""
    stack = [(path, module, instead)]
    while stack:  # no recursion: modules may lie deep
        path, module, instead = stack.pop()
        if module in instead:  # once, and not inside of what stands there
            module, instead = instead[module], {}
        if id(module) not in seen:
            seen.add(id(module))
            yield path, module, instead
            children = [(name, child) for name, child in module._modules.items() if child is not None]
            stack += [(f"{path}.{name}" if path else name, child, instead) for name, child in reversed(children)]


MOST_NAMES = 100_000
"""Of the modules of a network, as the checker's reader has it."""


def bounded(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every module, as :func:`every_module` has them, of a network that may mean harm.

    What is held in two places has two names, each of which would stand in the state dict: 40 modules can have 2^40.

    Raises:
        ValueError: they have too many, or a module holds itself, or a name or path could mean two things.
    """
    modules = list(every_module(model))
    for path, module in modules:
        registered = [name for part in (module._modules, module._parameters, module._buffers) for name in part]
        if odd := [name for name in registered if not isinstance(name, str) or not name or "." in name]:
            raise ValueError(f"{path or 'the model'}: something in it is named {odd[0]!r:.60}, as no part of a path is")
        if len({*registered, *vars(module)}) < len(registered) + len(vars(module)):
            twice = next(name for name in registered if registered.count(name) > 1 or name in vars(module))
            raise ValueError(f"{path or 'the model'}: the name {twice!r:.60} is given to two things")
    counts: dict[nn.Module, int] = {}
    above: set[nn.Module] = set()
    stack = [(module, False) for _, module in modules]
    while stack:  # no recursion: modules may lie deep
        module, ready = stack.pop()
        children = [child for child in module._modules.values() if child is not None]
        if ready:
            above.discard(module)
            counts[module] = 1 + sum(counts[child] for child in children)
        elif module in above:
            raise ValueError("a module holds itself")
        elif module not in counts:
            above.add(module)
            stack += [(module, True), *((child, False) for child in children)]
    if (names := max(counts.values())) > MOST_NAMES:
        raise ValueError(f"its modules hold each other, and have {names:.3g} names, more than {MOST_NAMES}")
    return modules


def memo_for(model: nn.Module, instead: Instead = MappingProxyType({})) -> dict[int, object]:
    """What ``copy.deepcopy`` has to be told before it can copy a network.

    An older weight_norm leaves a result of autograd behind as ``weight``, and torch copies leaves only.
    """
    held = (value for _, module in every_module(model, instead) for value in vars(module).values())
    return {id(value): value.detach().clone() for value in held if isinstance(value, Tensor) and not value.is_leaf}


def every_method(
    model: nn.Module, instead: Instead = MappingProxyType({})
) -> Iterator[tuple[str, nn.Module, MethodType]]:
    """Every method that the network holds (``self.step = self.conv.forward``), with its path and the module that it is of."""
    for path, module in every_module(model, instead):
        for inner_path, inner in _held(path, module):
            if isinstance(inner, MethodType) and isinstance(inner.__self__, nn.Module):
                yield inner_path, inner.__self__, inner


def every_closure(model: nn.Module, instead: Instead = MappingProxyType({})) -> Iterator[FunctionType]:
    """Every function that the network holds and in which modules are caught (``self.act = lambda x: self.scale * x``)."""
    for _, module in every_module(model, instead):
        for _, inner in _held("", module):
            if isinstance(inner, FunctionType) and any(holds_modules(value) for _, value in _caught("", inner)):
                yield inner


def holds_modules(value: object) -> bool:
    """Whether there are modules, or functions and methods that may hold some, in a value."""
    return next(_unpacked([("", value)]), None) is not None


def _caught(path: str, function: FunctionType) -> list[tuple[str, object]]:
    """What a function carries with it: the variables around it, and its defaults."""
    values: list[tuple[str, object]] = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values.append((f"{path}.{name}", cell.cell_contents))
        except ValueError:  # not filled yet
            continue
    values += [(f"{path}.__defaults__[{i}]", x) for i, x in enumerate(function.__defaults__ or ())]
    return values + [(f"{path}.{name}", x) for name, x in (function.__kwdefaults__ or {}).items()]


def _held(path: str, module: nn.Module) -> Iterator[tuple[str, object]]:
    """The modules, methods and functions that a module holds otherwise than as its children."""
    stack = [(f"{path}.{name}" if path else name, x) for name, x in vars(module).items() if name not in _REGISTERS]
    seen: set[int] = set()
    while stack:
        found = list(_unpacked(stack))
        stack = []
        for inner_path, value in found:
            if isinstance(value, nn.Module):
                yield inner_path, value
            elif id(value) not in seen:
                seen.add(id(value))
                yield inner_path, value
                if isinstance(value, MethodType):
                    stack.append((f"{inner_path}.__self__", value.__self__))
                elif isinstance(value, FunctionType):
                    stack += _caught(inner_path, value)


def _unpacked(values: list[tuple[str, Any]]) -> Iterator[tuple[str, object]]:
    """The modules, methods and functions in a nesting of plain containers, each with its path (``layers[2]``)."""
    stack, seen = list(reversed(values)), set[int]()
    while stack:  # no recursion, and each container once: it may be deep, or hold itself
        path, value = stack.pop()
        if isinstance(value, nn.Module | MethodType | FunctionType):
            yield path, value
            continue
        inside = _inside(path, value)
        if inside is None or id(value) in seen:
            continue
        seen.add(id(value))
        stack += reversed([(inner, x) for inner, x in inside if not isinstance(x, str | bytes | int | float)])


def _inside(path: str, value: Any) -> list[tuple[str, Any]] | None:
    """What a container holds; None if it is none."""
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", x) for key, x in value.items()]
    if isinstance(value, _SERIES):
        return [(f"{path}[{i}]", x) for i, x in enumerate(value)]
    if isinstance(value, functools.partial):
        return [(path, value.func), (f"{path}.args", value.args), (f"{path}.keywords", value.keywords)]
    if isinstance(value, SimpleNamespace) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return [(f"{path}.{name}", x) for name, x in getattr(value, "__dict__", {}).items()]
    return None
