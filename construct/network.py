"""Whole networks: every convolution replaced in a deep copy, sharing kept, all refusals in one error."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from construct.attention import MHSA
from construct.builder import conv_to_mhsa
from construct.errors import Refusal, UnsupportedLayer
from construct.sharpness import ALPHA
from construct.support import geometry_of, is_convolution

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


def survey(model: nn.Module, filter_fn: Filter | None = None) -> Survey:
    """Find every convolution of a network; those that ``filter_fn`` turns down are wanted as they are and not listed."""
    convertible: dict[str, nn.Module] = {}
    refused: list[Refusal] = []
    for path, module in every_module(model):
        if not is_convolution(module) or not (filter_fn is None or filter_fn(module, path)):
            continue
        try:
            geometry_of(module)
        except UnsupportedLayer as error:
            refused += [Refusal(path, row.kind, row.reason) for row in error.rows]
        else:
            convertible[path] = module
    return Survey(convertible, tuple(refused))


def every_module(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module and the first path to it: those that torch registers, then those in plain lists, tuples, sets and dicts.

    torch passes over a module in a plain container (``named_modules`` does not list it), but a forward may well call it.
    """
    found = list(model.named_modules())
    seen = {id(module) for _, module in found}
    for path, module in found:  # grows on the way
        yield path, module
        for name, value in vars(module).items():
            if name in _REGISTERS:
                continue
            for inner_path, inner in _modules_in(f"{path}.{name}" if path else name, value):
                fresh = [(p, m) for p, m in inner.named_modules(prefix=inner_path) if id(m) not in seen]
                seen.update(id(m) for _, m in fresh)
                found += fresh


_REGISTERS = frozenset(vars(nn.Module()))
"""What every module keeps for torch: its children, parameters, hooks."""

_SERIES = (list, tuple, set, frozenset)
_HOLDERS = (nn.Module, dict, *_SERIES)


def _modules_in(path: str, value: object) -> Iterator[tuple[str, nn.Module]]:
    """The modules in a nesting of plain containers, each with its path (``layers[2]``)."""
    stack, seen = [(path, value)], set[int]()
    while stack:  # no recursion, and each container once: it may be deep, or hold itself
        path, value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            yield path, value
        elif isinstance(value, dict):
            stack += [(f"{path}[{key!r}]", x) for key, x in reversed(value.items()) if isinstance(x, _HOLDERS)]
        elif isinstance(value, _SERIES):
            stack += reversed([(f"{path}[{i}]", x) for i, x in enumerate(value) if isinstance(x, _HOLDERS)])


def substitute(model: nn.Module, replacements: Mapping[nn.Module, MHSA]) -> nn.Module:
    """A deep copy of ``model`` in which every reference to a key of ``replacements`` has become its value.

    The copy is told beforehand what each convolution was copied to; so a module used in two places, or held in a list of
    the user's own, is replaced everywhere and stays one module.
    """
    memo: dict[int, object] = {id(conv): layer for conv, layer in replacements.items()}
    return copy.deepcopy(model, memo)


def share_tied(replacements: Mapping[nn.Module, MHSA]) -> None:
    """Let layers whose convolutions share one weight (or bias) share it too, so that they stay tied in training."""
    seen: dict[tuple[object, ...], MHSA] = {}
    for conv, layer in replacements.items():
        g = layer.geometry
        # A parametrized weight is made anew at each look: no parameter, and its id says nothing.
        if "weight" in conv._parameters:
            first = seen.setdefault((id(conv.weight), g.groups, g.transposed), layer)
            order_agrees = first.w_val.shape == layer.w_val.shape and first.v.shape == layer.v.shape
            if first is not layer and order_agrees:
                layer.w_val, layer.w_out = first.w_val, first.w_out
        if conv._parameters.get("bias") is not None:
            layer.b_out = seen.setdefault((id(conv.bias),), layer).b_out


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
        model: any nn.Module, or a bare convolution; it is not changed.
        filter_fn: ``filter_fn(module, path)`` says whether this convolution is to be replaced; by default all are.
        strict: whether a convolution that cannot be converted is an error; otherwise it is left in place and reported to
            the ``construct.network`` log as a warning.
        alpha: the sharpness α of every layer.
        execution: of every layer.

    Returns:
        A deep copy with the replacements.  A module used in two places stays one module; ``requires_grad`` and train or
        eval mode are kept.

    Raises:
        UnsupportedLayer: ``strict``, and some convolutions cannot be converted; its rows list every one of them.
    """
    found = survey(model, filter_fn)
    if found.refused and strict:
        raise UnsupportedLayer(found.refused)
    for row in found.refused:
        log.warning("left unconverted: %s", row)
    replacements = {conv: conv_to_mhsa(conv, alpha=alpha, execution=execution) for conv in found.convertible.values()}
    share_tied(replacements)
    return substitute(model, replacements)
