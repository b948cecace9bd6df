"""Whole networks: every convolution replaced in a deep copy, sharing kept, all refusals in one error."""

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

from torch import nn

from construct.attention import MHSA
from construct.builder import conv_to_mhsa
from construct.errors import Refusal, UnsupportedLayer
from construct.folding import folded
from construct.sharpness import ALPHA
from construct.support import geometry_of, is_convolution
from construct.ties import share_tied, untied
from construct.walk import every_closure, every_method, every_module, holds_modules, memo_for
from construct.wrappers import sharded, unwrapped

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


def survey(model: nn.Module, filter_fn: Filter | None = None) -> Survey:
    """Find every convolution of a network; those that ``filter_fn`` turns down are wanted as they are and not listed."""
    convertible: dict[str, nn.Module] = {}
    refused: list[Refusal] = []
    for path, module in every_module(model):
        reason = sharded(module)
        if reason is not None:
            refused.append(Refusal(path, type(module).__name__, reason))
        if not is_convolution(module) or not (filter_fn is None or filter_fn(module, path)):
            continue
        try:
            geometry_of(module)
        except UnsupportedLayer as error:
            refused += [Refusal(path, row.kind, row.reason) for row in error.rows]
        else:
            convertible[path] = module
    held = _held_elsewhere(model, convertible.values())
    for path in [path for path, conv in convertible.items() if conv in held]:
        conv = convertible.pop(path)
        refused.append(Refusal(path, type(conv).__name__, held[conv]))
    return Survey(convertible, tuple(refused))


def _held_elsewhere(model: nn.Module, convolutions: Iterable[nn.Module]) -> dict[nn.Module, str]:
    """The convolutions that are called by a method which an attention layer has not, and what holds it."""
    wanted, held = set(convolutions), dict[nn.Module, str]()
    for path, conv, method in every_method(model):
        if conv in wanted and not hasattr(MHSA, method.__func__.__name__):
            held[conv] = f"{path} is its method {method.__func__.__name__}, which an attention layer has not"
    return held


def substitute(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """A deep copy of ``model`` in which every reference to a key of ``replacements`` has become its value.

    The copy is told beforehand what each convolution was copied to; so a module used in two places, or held in a list of
    the user's own, is replaced everywhere and stays one module.  A method of it that is held (``self.step =
    self.conv.forward``) becomes that of the value; a function in which modules of the network are caught becomes one in which
    the copies are.
    """
    memo = memo_for(model) | {id(conv): layer for conv, layer in replacements.items()}
    for _, module, method in every_method(model):
        if module in replacements:
            memo[id(method)] = getattr(replacements[module], method.__func__.__name__)
    functions = {id(function): function for function in every_closure(model)}
    for key, function in functions.items():  # torch's copy would have the very same functions, with the original inside
        cells = tuple(CellType() for _ in function.__closure__ or ())
        memo[key] = FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
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
    strict: bool = True,
    alpha: float = ALPHA,
    execution: str = "auto",
) -> nn.Module:
    """Replace every convolution of a network by the attention layer that computes the same function (Theorem 1).

    Args:
        model: any nn.Module, or a bare convolution; it is not changed.  What torch.compile or DataParallel put around a
            network is taken off.
        filter_fn: ``filter_fn(module, path)`` says whether this convolution is to be replaced; by default all are.
        strict: whether a convolution that cannot be converted is an error; otherwise it is left in place and reported to
            the ``construct.network`` log as a warning.
        alpha: the sharpness α of every layer.
        execution: of every layer.

    Returns:
        A deep copy with the replacements.  A module used in two places stays one module; ``requires_grad`` and train or
        eval mode are kept.  What is converted is the function in eval mode: a parametrized or pruned weight is folded into the
        one with which it computes then, and this is said in the ``construct.network`` log, as are ties that come undone.

    Raises:
        UnsupportedLayer: ``strict``, and some convolutions cannot be converted; its rows list every one of them.
    """
    model, wrappers = unwrapped(model)
    found = survey(model, filter_fn)
    if found.refused and strict:
        raise UnsupportedLayer(found.refused)
    for row in found.refused:
        log.warning("left unconverted: %s", row)
    replacements = {conv: conv_to_mhsa(conv, alpha=alpha, execution=execution) for conv in found.convertible.values()}
    share_tied(replacements)
    taken = [(path, f"{kind} taken off") for path, kind in wrappers]
    for path, remark in [*taken, *found.remarks(), *untied(model, replacements)]:
        log.warning("%s", f"{path}: {remark}" if path else remark)
    return substitute(model, replacements)


def remarks_on(model: nn.Module, wrappers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(path, remark) about the network: the wrappers taken off, and what its mode means for a comparison."""
    remarks = [(path, f"{kind} taken off; put it around the converted network again") for path, kind in wrappers]
    random = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
    if any(isinstance(module, random) and module.training for module in model.modules()):
        remarks.append(
            ("", "in training mode: compared in eval mode; batch normalisation and dropout are as they were")
        )
    return remarks
