"""Whole networks: every convolution replaced in a deep copy, sharing kept, all refusals in one error."""

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import CellType, FunctionType, MappingProxyType
from typing import Any

from torch import nn

from construct.attention import MHSA
from construct.builder import conv_to_mhsa
from construct.encoding.sharpness import ALPHA
from construct.errors import Refusal, UnsupportedLayer
from construct.modules.convolutions import geometry_of, is_convolution
from construct.modules.parametrizations import folded
from construct.modules.rules import Rule, Rules, disagreement, layers_of_rule, rule_for
from construct.modules.tied_weights import share_tied, untied
from construct.modules.traversal import every_closure, every_method, every_module, holds_modules, memo_for
from construct.modules.wrappers import sharded, unwrapped

log = logging.getLogger(__name__)

Filter = Callable[[nn.Module, str], bool]


@dataclass(frozen=True)
class Survey:
    """What a network holds.

    Attributes:
        convertible: path → convolution, each module once, by the first path that leads to it.
        refused: the convolutions that cannot be converted, each with its reason.
    """

    convertible: dict[str, nn.Module]
    refused: tuple[Refusal, ...]

    def remarks(self) -> list[tuple[str, str]]:
        """(path, remark) of every convolution of which more is converted than a layer."""
        parts = [(path, folded(conv)) for path, conv in self.convertible.items()]
        return [
            (path, f"parametrization folded into its eval-mode weight: {', '.join(names)}")
            for path, names in parts
            if names
        ]


def survey(
    model: nn.Module, filter_fn: Filter | None = None, instead: Mapping[nn.Module, nn.Module] = MappingProxyType({})
) -> Survey:
    """Find every convolution of a network; those that ``filter_fn`` turns down are wanted as they are and not listed.

    ``instead`` holds modules, and what is looked at in their place; of that, ``filter_fn`` is not asked.
    """
    convertible: dict[str, nn.Module] = {}
    refused: list[Refusal] = []
    asked_already = {part for layers in instead.values() for _, part in every_module(layers)}
    for path, module in every_module(model, instead):
        reason = sharded(module)
        if reason is not None:
            refused.append(Refusal(path, type(module).__name__, reason))
        if not is_convolution(module) or not (filter_fn is None or module in asked_already or filter_fn(module, path)):
            continue
        try:
            geometry_of(module)
        except UnsupportedLayer as error:
            refused += [Refusal(path, row.kind, row.reason) for row in error.rows]
        else:
            convertible[path] = module
    held = _held_elsewhere(model, convertible.values(), instead)
    for path in [path for path, conv in convertible.items() if conv in held]:
        conv = convertible.pop(path)
        refused.append(Refusal(path, type(conv).__name__, held[conv]))
    return Survey(convertible, tuple(refused))


def _held_elsewhere(
    model: nn.Module, convolutions: Iterable[nn.Module], instead: Mapping[nn.Module, nn.Module]
) -> dict[nn.Module, str]:
    """The convolutions that are called by a method which an attention layer has not, and what holds it."""
    wanted, held = set(convolutions), dict[nn.Module, str]()
    for path, conv, method in every_method(model, instead):
        if conv in wanted and not hasattr(MHSA, method.__func__.__name__):
            held[conv] = f"{path} is its method {method.__func__.__name__}, which an attention layer has not"
    return held


def stated_by_rules(
    model: nn.Module, rules: Rules, filter_fn: Filter | None
) -> tuple[dict[nn.Module, nn.Module], dict[nn.Module, tuple[Refusal, ...]]]:
    """The torch layers that rules state for modules of a network, and why others of these modules are left as they are.

    Of modules inside each other the outermost counts: what is inside of it is its rule's affair.
    """
    found: dict[nn.Module, Rule] = {}
    for path, module in every_module(model):
        rule = rule_for(module, rules)
        if rule is not None and (filter_fn is None or filter_fn(module, path)):
            found[module] = rule
    marks = {module: nn.Identity() for module in found}
    marked: dict[nn.Module, nn.Module] = {mark: module for module, mark in marks.items()}
    methods = [(module, method.__func__.__name__) for _, module, method in every_method(model)]
    stated: dict[nn.Module, nn.Module] = {}
    refused: dict[nn.Module, tuple[Refusal, ...]] = {}
    for path, mark in every_module(model, marks):  # which stops at the outermost
        if mark not in marked:
            continue
        module = marked[mark]
        try:
            layers = layers_of_rule(module, found[module])
            inside = survey(layers)
            lacking = [name for holder, name in methods if holder is module and not hasattr(layers, name)]
            if inside.refused:
                prefix = f"{path}." if path else ""
                rows = [Refusal(f"{prefix}{row.path}", row.kind, row.reason) for row in inside.refused]
                raise UnsupportedLayer(rows)
            if not inside.convertible:
                raise ValueError("the layers of its rule hold no convolution")
            if lacking:
                raise ValueError(f"the network holds its method {lacking[0]}, which the layers of its rule have not")
            reason = disagreement(module, found[module], layers)
            if reason is not None:
                raise ValueError(reason)
            stated[module] = layers
        except UnsupportedLayer as error:
            refused[module] = error.rows
        except ValueError as error:
            refused[module] = (Refusal(path, type(module).__name__, str(error)),)
    return stated, refused


def substitute(
    model: nn.Module,
    replacements: Mapping[nn.Module, nn.Module],
    instead: Mapping[nn.Module, nn.Module] = MappingProxyType({}),
) -> nn.Module:
    """A deep copy of ``model`` in which every reference to a key of ``replacements`` has become its value.

    The copy is told beforehand what each convolution was copied to; so a module used in two places, or held in a list of
    the user's own, is replaced everywhere and stays one module.  A method of it that is held (``self.step =
    self.conv.forward``) becomes that of the value; a function in which modules of the network are caught becomes one in which
    the copies are.  A key of ``instead`` becomes a copy of its value, in which ``replacements`` are made too.
    """
    memo = memo_for(model, instead) | {id(conv): layer for conv, layer in replacements.items()}
    methods = [(module, method) for _, module, method in every_method(model, instead)]
    memo |= {
        id(method): getattr(replacements[module], method.__func__.__name__)
        for module, method in methods
        if module in replacements
    }
    functions = {id(function): function for function in every_closure(model, instead)}
    for key, function in functions.items():  # torch's copy would have the very same functions, with the original inside
        cells = tuple(CellType() for _ in function.__closure__ or ())
        memo[key] = FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
    for module, layers in instead.items():
        memo[id(module)] = copy.deepcopy(layers, memo)
    memo |= {
        id(method): getattr(memo[id(module)], method.__func__.__name__)
        for module, method in methods
        if module in instead
    }
    converted = copy.deepcopy(model, memo)
    for key, function in functions.items():
        _fill(memo[key], function, memo)
    return converted


def _fill(copied: Any, function: FunctionType, memo: dict[int, object]) -> None:
    """Give the copy of a function what the function carries: modules as they were copied, everything else as it is."""

    def counterpart(value: Any) -> Any:
        return copy.deepcopy(value, memo) if holds_modules(value) else value

    for cell, other in zip(function.__closure__ or (), copied.__closure__ or (), strict=True):
        with suppress(ValueError):  # of a variable that has no value yet
            other.cell_contents = counterpart(cell.cell_contents)
    if function.__defaults__ is not None:
        copied.__defaults__ = tuple(map(counterpart, function.__defaults__))
    if function.__kwdefaults__ is not None:
        copied.__kwdefaults__ = {name: counterpart(value) for name, value in function.__kwdefaults__.items()}
    copied.__qualname__, copied.__doc__, copied.__module__ = (
        function.__qualname__,
        function.__doc__,
        function.__module__,
    )
    vars(copied).update(vars(function))


def convert(
    model: nn.Module,
    *,
    filter_fn: Filter | None = None,
    rules: Rules = MappingProxyType({}),
    strict: bool = True,
    alpha: float = ALPHA,
    execution: str = "auto",
) -> nn.Module:
    """Replace every convolution of a network by the attention layer that computes the same function (Theorem 1).

    >>> import torch, construct
    >>> class Causal(torch.nn.Conv1d):
    ...     def forward(self, x):
    ...         return super().forward(torch.nn.functional.pad(x, (self.kernel_size[0] - 1, 0)))
    >>> def layers(module):
    ...     conv = torch.nn.Conv1d(module.in_channels, module.out_channels, module.kernel_size)
    ...     conv.load_state_dict(module.state_dict())
    ...     return torch.nn.Sequential(torch.nn.ConstantPad1d((module.kernel_size[0] - 1, 0), 0.0), conv)
    >>> net = construct.convert(torch.nn.Sequential(Causal(2, 4, 3)), rules={Causal: layers})
    >>> [type(part).__name__ for part in net[0]]
    ['ConstantPad1d', 'MHSA']

    Args:
        model: any nn.Module, or a bare convolution; it is not changed.  What torch.compile or DataParallel put around a
            network is taken off.
        filter_fn: ``filter_fn(module, path)`` says whether this convolution, or module with a rule, is to be replaced; by
            default all are.
        rules: class → function.  ``function(module)`` gives torch layers that compute what a module of that class does; they
            take its place, and their convolutions are converted as any others.  A module goes by the rule of its own class, or of
            the nearest base that has one; modules inside of it are its rule's affair.  What is stated is judged on samples, of
            several sizes, in float64, which takes a second call of the function, with a float64 copy.  So padding that depends on
            the size of the input, which no layer with a fixed geometry has, is refused.
        strict: whether a convolution that cannot be converted is an error; otherwise it is left in place and reported to
            the ``construct.network`` log as a warning.
        alpha: the sharpness α of every layer.
        execution: of every layer.

    Returns:
        A deep copy with the replacements.  A module used in two places stays one module; ``requires_grad`` and train or
        eval mode are kept.  What is converted is the function in eval mode: a parametrized or pruned weight is folded into the
        one with which it computes then, and this is said in the ``construct.network`` log, as are ties that come undone.

    Raises:
        UnsupportedLayer: ``strict``, and some convolutions cannot be converted, or samples refute what a rule states; its rows
            list every one of them.
        TypeError: ``rules`` do not go from classes to functions.
    """
    if not all(isinstance(kind, type) and callable(rule) for kind, rule in rules.items()):
        raise TypeError("rules go from classes to functions, as in {Conv2dSame: function}")
    model, wrappers = unwrapped(model)
    instead, left = stated_by_rules(model, rules, filter_fn) if rules else ({}, {})
    found = survey(model, filter_fn, instead | {module: nn.Identity() for module in left})
    refused = (*found.refused, *(row for rows in left.values() for row in rows))
    if refused and strict:
        raise UnsupportedLayer(refused)
    for row in refused:
        log.warning("left unconverted: %s", row)
    replacements = {conv: conv_to_mhsa(conv, alpha=alpha, execution=execution) for conv in found.convertible.values()}
    share_tied(replacements)
    taken = [(path, f"{kind} taken off") for path, kind in wrappers]
    for path, remark in [*taken, *found.remarks(), *untied(model, replacements, instead)]:
        log.warning("%s", f"{path}: {remark}" if path else remark)
    return substitute(model, replacements, instead)


def remarks_on(model: nn.Module, wrappers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(path, remark) about the network: the wrappers taken off, and what its mode means for a comparison."""
    remarks = [(path, f"{kind} taken off; put it around the converted network again") for path, kind in wrappers]
    random = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
    if any(isinstance(module, random) and module.training for module in model.modules()):
        remarks.append(
            ("", "in training mode: compared in eval mode; batch normalisation and dropout are as they were")
        )
    return remarks
