"""Conversion rules for custom classes: a function that returns equivalent torch layers, and a test
of it on samples.

Samples can refute a rule but never prove it.  Their sizes cover every residue modulo the stride,
lie below and above the reach of the kernel, and differ between axes, so that padding which depends
on the size shows.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from construct.errors import describe
from construct.geometry import ConvGeometry
from construct.modules.convolutions import check_hooks, geometry_of, is_convolution
from construct.modules.folding import plain_convolution
from construct.modules.parametrizations import eval_mode
from construct.modules.traversal import every_module, substitute

Rule = Callable[[Any], nn.Module]
Rules = Mapping[type[nn.Module], Rule]
"""Class → function from a module of that class to equivalent torch layers."""

BATCH = 2
MOST_RESIDUES = 16
"""How many sizes modulo the stride are tried."""
SLACK = 256
"""Allowance for computing a parametrized weight, in unit roundoffs of float64 relative to Σ|w||x|.
"""
OWN_SLACK = 64
"""The same, in unit roundoffs of the layer's own dtype."""


def layers_of_rule(module: nn.Module, rule: Rule) -> nn.Module:
    """The layers that a rule returns for a module; new ones get the module's mode.

    Raises:
        ValueError: the rule fails, returns no module or changes the given one, or that has hooks.
    """
    for part in module.modules():
        check_hooks(part)
    copied = substitute(module, {})
    _applied(rule, copied, " on a copy of it")
    if not _same_tensors(copied, module):
        raise ValueError("its rule changes the module that it is given: let it change a copy")
    layers = _applied(rule, module)
    if not isinstance(layers, nn.Module):
        raise ValueError(f"its rule gives a {type(layers).__name__}, not an nn.Module")
    expected, actual = (
        {(p.dtype, p.device) for p in part.parameters()} for part in (module, layers)
    )
    if more := actual - expected:
        dtype, device = more.pop()
        what = f"weights that are {dtype} on {device}, and the module has none of these"
        raise ValueError(f"the layers of its rule have {what}")
    for part in {*layers.modules()} - {*module.modules()}:
        part.training = module.training
    return layers


def _applied(rule: Rule, module: nn.Module, which: str = "") -> Any:
    try:
        with eval_mode(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
            return rule(module)
    except Exception as error:  # a user's code may raise anything
        raise ValueError(f"its rule fails{which}: {describe(error)}") from error


def _same_tensors(*modules: nn.Module) -> bool:
    """Whether two modules have the same parameters and buffers."""
    ours, theirs = ([*module.parameters(), *module.buffers()] for module in modules)
    return len(ours) == len(theirs) and all(
        a.is_meta or (a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num()))
        for a, b in zip(ours, theirs, strict=True)
    )


@torch.random.fork_rng(devices=[])
@torch.no_grad()
def require_agreement(module: nn.Module, rule: Rule, layers: nn.Module) -> None:
    """Check on samples that a module and the layers of its rule compute the same.

    Everything runs in float64 and eval mode, on copies.  The layers that the rule returns for the
    float64 copy must agree up to float64 rounding, so that the module's own dtype hides no
    difference.  The layers themselves, with weights that may have been rounded to that dtype, must
    agree up to a few of its units.  At least one of the layers is a convolution, all are
    convertible.

    Raises:
        ValueError: a sample shows a difference, or none can be run.
    """
    geometries = [geometry_of(conv) for conv in _convolutions(layers)]
    default = torch.get_default_dtype()
    try:
        exact = in_float64(module)
        own = in_float64(layers)
        # new layers of a rule keep float64 weights unrounded
        torch.set_default_dtype(torch.float64)
        exact_layers = in_float64(rule(in_float64(module)))
    except Exception as error:  # a user's code may raise anything
        raise ValueError(f"its rule fails on a float64 copy of it: {describe(error)}") from error
    finally:
        torch.set_default_dtype(default)
    magnitudes = _magnitudes(exact_layers)
    terms = 2 * sum(g.in_channels // g.groups * g.taps + 1 for g in geometries)
    relative = (terms + SLACK) * 2.0**-53
    # Weights may have been rounded to the dtype of the module.
    units = [torch.finfo(p.dtype).eps / 2 for p in module.parameters() if p.is_floating_point()]
    candidates = ((exact_layers, relative), (own, relative + OWN_SLACK * max(units, default=0.0)))
    generator = torch.Generator().manual_seed(0)
    ran = 0
    failure = "there are none"
    for size in sizes(geometries):
        shape = (BATCH, geometries[0].in_channels, *size)
        x = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        x = x.to(next(exact_layers.parameters(), x))
        try:
            expected = exact(x.clone())
        except Exception as error:
            failure = describe(error)
            continue
        ran += not isinstance(expected, Tensor) or expected.numel() > 0
        for part, allowance in candidates:
            reason = _difference(part, x, expected, magnitudes, allowance)
            if reason is not None:
                where = f"on an input of size {' x '.join(map(str, size))}"
                raise ValueError(f"its rule gives another function: {where} {reason}")
    if ran <= 1:
        tried = " x ".join(map(str, shape[1:]))
        what = f"its rule cannot be judged, for it runs on no inputs like {tried}"
        raise ValueError(f"{what}: {failure}")


def _difference(
    part: nn.Module,
    x: Tensor,
    expected: Any,
    magnitudes: nn.Module,
    relative: float,
) -> str | None:
    """A difference of more than ``relative`` times Σ|w||x| in one call, as a clause; None if there
    is none.
    """
    try:
        actual = part(x.clone())
    except Exception as error:
        return f"the layers of the rule fail: {describe(error)}"
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        return f"it returns a {type(expected).__name__} and the layers of the rule a {type(actual).__name__}, not two tensors"
    if expected.shape != actual.shape:
        return f"its output is {tuple(expected.shape)} and that of the rule's layers {tuple(actual.shape)}"
    difference = (expected - actual).abs()
    # The maximum per channel: for layers between convolutions, |w| and |x| give no elementwise
    # bound.
    others = [axis for axis in range(expected.dim()) if axis != 1]
    bound = relative * (magnitudes(x.abs()).abs() + expected.abs()).amax(
        others, keepdim=True
    ).expand_as(expected)
    if bool((difference <= bound).all()):  # False for NaN
        return None
    worst = int((difference - bound).nan_to_num(torch.inf).argmax())
    return f"the outputs differ by {difference.view(-1)[worst]:.3g}, where rounding explains {bound.flatten()[worst]:.3g}"


def sizes(geometries: Sequence[ConvGeometry]) -> list[tuple[int, ...]]:
    """Spatial input sizes on which a chain of layers is tested; their axes have different lengths."""
    dims = geometries[0].dims
    chain = [g for g in geometries if g.dims == dims]
    stride = max(2, *(prod(g.query_stride[axis] for g in chain) for axis in range(dims)))
    count = min(stride, MOST_RESIDUES)
    residues = sorted({round(i * (stride - 1) / (count - 1)) for i in range(count)})
    lengths = []
    for axis in range(dims):
        reach = axis + 1 + sum(g.span[axis] for g in chain)
        padded = reach + sum(abs(n) for g in chain for n in g.pads[axis])
        longer = [padded + rest for rest in (*residues, stride + 7)]
        lengths.append([*longer, reach, (reach - axis + 1) // 2 + axis])
    return list(dict.fromkeys(zip(*lengths, strict=True)))


def in_float64(module: nn.Module) -> nn.Module:
    """A float64 copy in eval mode."""
    return substitute(module, {}).double().eval()


def _convolutions(layers: nn.Module) -> list[nn.Module]:
    return [module for _, module in every_module(layers) if is_convolution(module)]


def _magnitudes(layers: nn.Module) -> nn.Module:
    """A copy of the layers with |w| for w, which maps |x| to Σ|w||x|."""
    absolute = {conv: copy.deepcopy(plain_convolution(conv)) for conv in _convolutions(layers)}
    for conv in absolute.values():
        for parameter in conv.parameters():
            parameter.abs_()
    return substitute(layers, absolute)
