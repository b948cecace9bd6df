"""``construct.convert``: a deep copy of a network with every convolution replaced by its attention
layer.
"""

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType, MethodType

from torch import nn

from construct.attention import MHSA
from construct.builder import conv_to_mhsa
from construct.encoding.sharpness import ALPHA
from construct.errors import Refusal, UnsupportedLayer, refuse
from construct.modules.convolutions import geometry_of, is_convolution
from construct.modules.folding import parametrization_names
from construct.modules.rules import Rule, Rules, layers_of_rule, require_agreement
from construct.modules.tied_weights import share_tied, untied_parameters
from construct.modules.traversal import (
    every_function,
    every_module,
    hidden_modules,
    joined,
    name_of,
    substitute,
)
from construct.modules.wrappers import require_whole, unwrapped

log = logging.getLogger(__name__)

Filter = Callable[[nn.Module, str], bool]


def _every_one(module: nn.Module, path: str) -> bool:
    return True


HIDDEN = "held by an object that is not a module, where it is not replaced (make it a submodule, or hold it in a list)"


@dataclass(frozen=True)
class Survey:
    """The convolutions of a network.

    Attributes:
        convertible: path → convolution; each module is listed once, under its first path.
        refused: the convolutions that cannot be converted, with reasons.
        earlier: how many attention layers the network has already.
    """

    convertible: dict[str, nn.Module]
    refused: tuple[Refusal, ...]
    earlier: int

    def remarks(self) -> list[tuple[str, str]]:
        """(path, remark) of every convolution whose weight is parametrized."""
        return [
            (path, f"parametrization folded into its eval-mode weight: {', '.join(names)}")
            for path, conv in self.convertible.items()
            if (names := parametrization_names(conv))
        ]


def survey(
    model: nn.Module, filter_fn: Filter = _every_one, *, closed: Container[int] = ()
) -> Survey:
    """List every convolution of a network that ``filter_fn`` accepts; modules whose ids are in
    ``closed`` are left out, with all that is in them.
    """

    def wanted(module: nn.Module, path: str) -> bool:
        return id(module) not in closed and is_convolution(module) and filter_fn(module, path)

    methods = held_methods(model)
    convertible: dict[str, nn.Module] = {}
    refused: list[Refusal] = []
    earlier = 0
    for path, module in every_module(model, closed):
        earlier += isinstance(module, MHSA)
        try:
            require_whole(module)
            if wanted(module, path):
                geometry_of(module)
                _require_methods(module, methods, MHSA, "attention layers")
                convertible[path] = module
        except UnsupportedLayer as error:
            refused += [replace(row, path=path) for row in error.rows]
    for path, module in hidden_modules(model, closed):
        if wanted(module, path):
            refused.append(Refusal(path, type(module).__name__, HIDDEN))
    return Survey(convertible, tuple(refused), earlier)


Methods = list[tuple[str, object, str]]
"""Bound methods that a network stores: (path, object, name)."""


def held_methods(model: nn.Module) -> Methods:
    """Every bound method that the network stores."""
    return [
        (path, held.__self__, name_of(held))
        for path, held in every_function(model)
        if isinstance(held, MethodType)
    ]


def _require_methods(module: nn.Module, methods: Methods, replacement: object, what: str) -> None:
    """Refuse a module of which the network stores a method that its replacement lacks."""
    for path, holder, name in methods:
        if holder is module and not hasattr(replacement, name):
            refuse(module, f"{path} is its method {name}, which {what} lack")


def layers_from_rules(
    model: nn.Module, rules: Rules, filter_fn: Filter = _every_one
) -> tuple[dict[nn.Module, nn.Module], dict[nn.Module, list[Refusal]]]:
    """Apply the rules to a network: the layers that replace its modules, and the refusals of
    modules whose rule fails.

    Of nested modules with rules, only the outermost is replaced.

    Raises:
        TypeError: the rules do not map classes to functions.
    """
    if not all(isinstance(kind, type) and callable(rule) for kind, rule in rules.items()):
        raise TypeError("rules go from classes to functions, as in {Conv2dSame: function}")
    methods = held_methods(model)
    layers_of: dict[nn.Module, nn.Module] = {}
    refused: dict[nn.Module, list[Refusal]] = {}
    ruled = set[int]()
    for path, module in every_module(model, ruled):
        own = [rules[kind] for kind in type(module).__mro__ if kind in rules]
        if own and filter_fn(module, path):
            ruled.add(id(module))  # so that what is inside is not visited
            try:
                layers_of[module] = _layers_from_rule(module, own[0], methods)
            except ValueError as error:
                reason = Refusal("", type(module).__name__, str(error))
                rows = getattr(error, "rows", (reason,))  # UnsupportedLayer's own
                refused[module] = [replace(row, path=joined(path, row.path)) for row in rows]
    return layers_of, refused


def _layers_from_rule(module: nn.Module, rule: Rule, methods: Methods) -> nn.Module:
    """The layers of a module's rule, judged; ``methods`` are all that the network stores.

    Raises:
        UnsupportedLayer: a convolution among them cannot be converted.
        ValueError: the rule fails, or its layers are no substitute for the module.
    """
    layers = layers_of_rule(module, rule)
    inner = survey(layers)
    if inner.refused:
        raise UnsupportedLayer(inner.refused)
    if not inner.convertible:
        raise ValueError("the layers of its rule hold no convolution")
    _require_methods(module, methods, layers, "the layers of its rule")
    require_agreement(module, rule, layers)
    return layers


def convert(
    model: nn.Module,
    *,
    filter_fn: Filter | None = None,
    rules: Rules = MappingProxyType({}),
    strict: bool = True,
    alpha: float = ALPHA,
    execution: str = "auto",
) -> nn.Module:
    """Replace every convolution of a network by the attention layer that computes the same function
    (Theorem 1).

    >>> import torch, construct
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU())
    >>> [type(module).__name__ for module in construct.convert(net)]
    ['MHSA', 'ReLU']

    A rule states the torch layers that a class of your own computes:

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
        model: any nn.Module, or a bare convolution; it is not changed.  Wrappers of torch.compile
            and DataParallel are removed.
        filter_fn: ``filter_fn(module, path)`` says whether to replace this convolution, or this
            module with a rule; by default all are replaced.
        rules: class → function.  ``function(module)`` returns torch layers that compute the same as
            a module of that class; they replace it, and their convolutions are converted.  The rule
            of a module's class applies, or that of its nearest base; modules inside it are left to
            the rule.  Every rule is tested on a float64 copy with float64 samples of several sizes,
            so the function is called three times.  Padding that depends on the input's size is refused:
            no geometry has it.
        strict: raise for convolutions that cannot be converted; otherwise leave them in place and
            log a warning to ``construct.network``.
        alpha: the sharpness α of every layer.
        execution: the execution of every layer.

    Returns:
        A deep copy with the replacements.  Shared modules stay shared; ``requires_grad`` and train
        or eval mode are kept. Parametrized and pruned weights are folded into their eval-mode
        values; the ``construct.network`` log says so, and names tied weights that are no longer
        tied.

    Raises:
        UnsupportedLayer: with ``strict``: convolutions that cannot be converted, or rules that
            samples refute; ``rows`` lists all of them.  Or the network holds something that cannot
            be copied, as a lock.
        TypeError: ``model`` is not a module, or ``rules`` do not map classes to functions.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"convert takes an nn.Module, not {type(model).__name__} (construct.load reads a file)"
        )
    accepted = filter_fn or _every_one
    model, wrappers = unwrapped(model)
    layers_of, failed = layers_from_rules(model, rules, accepted)
    memo: dict[int, object] = {}
    copies = {module: substitute(layers, {}, memo) for module, layers in layers_of.items()}
    if layers_of:
        model = substitute(model, copies, memo)
    ruled = {part for layers in copies.values() for _, part in every_module(layers)}
    convolutions = survey(
        model,
        lambda module, path: module in ruled or accepted(module, path),
        closed={id(memo.get(id(module), module)) for module in failed},
    )
    refused = (*convolutions.refused, *chain(*failed.values()))
    if refused and strict:
        raise UnsupportedLayer(refused)
    for row in refused:
        log.warning("left unconverted: %s", row)
    replacements = {
        conv: conv_to_mhsa(conv, alpha=alpha, execution=execution)
        for conv in convolutions.convertible.values()
    }
    converted, remarks = replaced(model, convolutions, replacements)
    for path, remark in (*wrappers, *remarks):
        log.warning("%s", ": ".join(filter(None, (path, remark))))
    return converted


def replaced(
    model: nn.Module, convolutions: Survey, layers: Mapping[nn.Module, MHSA]
) -> tuple[nn.Module, list[tuple[str, str]]]:
    """A copy of a network with these layers in place of its convolutions, tied where these are; and
    (path, remark) on what it does not keep.
    """
    share_tied(layers)
    remarks = [*convolutions.remarks(), *untied_parameters(model, layers)]
    return substitute(model, layers), remarks


def remarks_on(model: nn.Module) -> list[tuple[str, str]]:
    """(path, remark) on the mode in which a network is compared."""
    random = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
    if not any(isinstance(module, random) and module.training for module in model.modules()):
        return []
    what = "in training mode: compared in eval mode"
    return [("", f"{what}; batch normalisation and dropout are as they were")]
