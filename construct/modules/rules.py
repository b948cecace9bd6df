"""Rules: torch layers that a user states to be what a class of his own computes, and the samples by which that is judged.

A sample can refute a rule and never prove it.  Those here are chosen for what goes wrong: sizes of every residue modulo the
stride, below and above the reach of the kernel, and of different sides, so that padding which depends on the size shows.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from construct.errors import described
from construct.geometry import ConvGeometry
from construct.modules.convolutions import geometry_of, hooked, is_convolution
from construct.modules.parametrizations import at_rest, plain
from construct.modules.traversal import every_module, memo_for

Rule = Callable[[Any], nn.Module]
Rules = Mapping[type[nn.Module], Rule]
"""Class → a function from a module of that class to torch layers that compute the same."""

BATCH = 2
MOST_RESIDUES = 16
"""Of sizes modulo the stride; of a longer stride that many are tried, from 0 to the last."""
SLACK = 256
"""Unit roundoffs of float64, of Σ|w||x|, that working a weight out may take beyond those of the sums."""
OWN_SLACK = 64
"""Unit roundoffs of the layer's own format that its weights may have been worked out with."""


def rule_for(module: nn.Module, rules: Rules) -> Rule | None:
    """The rule for a module's class, or for the nearest of its bases that has one."""
    return next((rules[kind] for kind in type(module).__mro__ if kind in rules), None)


def layers_of_rule(module: nn.Module, rule: Rule) -> nn.Module:
    """The layers that a rule states for a module; those that it made anew are in the module's mode.

    Raises:
        ValueError: the rule fails or makes no module, or the module has hooks.
    """
    for part in module.modules():
        reason = hooked(part)
        if reason is not None:
            raise ValueError(reason)
    try:
        with at_rest(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
            layers = rule(module)
    except Exception as error:  # whatever a user's code raises
        raise ValueError(f"its rule fails: {described(error)}") from error
    if not isinstance(layers, nn.Module):
        raise ValueError(f"its rule gives a {type(layers).__name__}, not an nn.Module")
    wanted, given = ({(p.dtype, p.device) for p in part.parameters()} for part in (module, layers))
    if not given <= wanted:
        (dtype, device), *_ = given - wanted
        raise ValueError(f"the layers of its rule have weights that are {dtype} on {device}, and it has none such")
    own = {id(part) for part in module.modules()}
    for part in layers.modules():
        if id(part) not in own:
            part.training = module.training
    return layers


@torch.random.fork_rng(devices=[])
@torch.no_grad()
def disagreement(module: nn.Module, rule: Rule, layers: nn.Module) -> str | None:
    """Why the layers of a rule are not what a module computes; None if no sample shows a difference.

    All run in float64 and in eval mode, on copies.  What the rule makes of the float64 copy is held to the rounding of float64, so
    that no difference hides in that of the module's own format; the layers themselves, whose weights may have been rounded to that
    format, to a few of its units.

    Args:
        module: of the user's class.
        rule: which made ``layers`` of it.
        layers: with one convolution at least, all of which can be converted.

    Returns:
        One clause, with the size of the input and the difference.
    """
    generator = torch.Generator().manual_seed(0)
    geometries = [geometry_of(conv) for conv in _convolutions(layers)]
    try:
        exact = in_float64(module)
        with _float64_by_default():
            again = in_float64(rule(in_float64(module)))
        own = in_float64(layers)
    except Exception as error:  # whatever a user's code raises
        return f"its rule fails on a float64 copy of it: {described(error)}"
    formats = {p.dtype for p in module.parameters() if p.dtype.is_floating_point}
    coarsest = max((torch.finfo(dtype).eps for dtype in formats), default=2.0**-52)
    device = next((p.device for p in exact.parameters()), None)
    own_slack = OWN_SLACK * coarsest / 2 if coarsest > 2.0**-52 else 0.0
    candidates, magnitudes = ((again, 0.0), (own, own_slack)), _magnitudes(again)
    terms = 2 * sum(g.in_channels // g.groups * g.taps + 1 for g in geometries)
    ran, failure = 0, "there are none"
    for size in sizes(geometries):
        x = torch.randn(BATCH, geometries[0].in_channels, *size, generator=generator, dtype=torch.float64).to(device)
        try:
            expected = exact(x.clone())
        except Exception as error:
            failure = described(error)
            continue
        ran += not isinstance(expected, Tensor) or expected.numel() > 0
        for part, slack in candidates:
            reason = _difference(part, x, expected, magnitudes, (terms + SLACK) * 2.0**-53 + slack)
            if reason is not None:
                return f"its rule gives another function: on an input of size {' x '.join(map(str, size))} {reason}"
    shape = " x ".join(map(str, (geometries[0].in_channels, *size)))
    return None if ran > 1 else f"its rule cannot be judged, for it runs on no inputs like {shape}: {failure}"


def _difference(part: nn.Module, x: Tensor, expected: Any, magnitudes: nn.Module, relative: float) -> str | None:
    """What shows in one call that layers are another function: a difference of more than ``relative`` of Σ|w||x|."""
    try:
        found = part(x.clone())
    except Exception as error:
        return f"the layers of the rule fail: {described(error)}"
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        return f"it returns a {type(expected).__name__} and the layers of the rule a {type(found).__name__}, not two tensors"
    if expected.shape != found.shape:
        return f"its output is {tuple(expected.shape)} and that of the rule's layers {tuple(found.shape)}"
    difference = (expected - found).abs()
    # Of a channel the largest: between convolutions there may be layers for which |w| and |x| give no bound.
    others = [axis for axis in range(expected.dim()) if axis != 1]
    bound = relative * (magnitudes(x.abs()).abs() + expected.abs()).amax(others, keepdim=True).expand_as(expected)
    if bool((difference <= bound).all()):  # a NaN fails
        return None
    worst = int((difference - bound).nan_to_num(torch.inf).argmax())
    return (
        f"the outputs differ by {difference.view(-1)[worst]:.3g}, where rounding explains {bound.flatten()[worst]:.3g}"
    )


def sizes(geometries: Sequence[ConvGeometry]) -> list[tuple[int, ...]]:
    """Spatial sizes of inputs on which layers one after the other are judged; their axes are of different lengths."""
    dims = geometries[0].dims
    alike = [g for g in geometries if g.dims == dims]
    reach = [1 + sum(g.span[axis] for g in alike) for axis in range(dims)]
    stride = max(2, *(prod(g.query_stride[axis] for g in alike) for axis in range(dims)))
    count = min(stride, MOST_RESIDUES)
    residues = sorted({round(i * (stride - 1) / (count - 1)) for i in range(count)})
    pads = [
        sum(abs(n) for g in alike for n in g.pads[axis]) for axis in range(dims)
    ]  # so many may be needed, or cropped
    found = [
        tuple(n + pad + rest + axis for axis, (n, pad) in enumerate(zip(reach, pads, strict=True)))
        for rest in (*residues, stride + 7)
    ]
    found += [tuple(most + axis for axis, most in enumerate(small)) for small in (reach, [(n + 1) // 2 for n in reach])]
    return list(dict.fromkeys(found))


def in_float64(module: nn.Module) -> nn.Module:
    """A copy in float64 and in eval mode."""
    return copy.deepcopy(module, memo_for(module)).double().eval()


def _convolutions(layers: nn.Module) -> list[nn.Module]:
    return [module for _, module in every_module(layers) if is_convolution(module)]


def _magnitudes(layers: nn.Module) -> nn.Module:
    """The same layers with |w| for w: of |x| they make Σ|w||x|."""
    memo = memo_for(layers)
    for conv in _convolutions(layers):
        memo[id(conv)] = absolute = copy.deepcopy(plain(conv))
        for parameter in absolute.parameters():
            parameter.abs_()
    return copy.deepcopy(layers, memo)


@contextmanager
def _float64_by_default() -> Iterator[None]:
    """So that a layer that a rule makes anew takes the numbers of a float64 copy as they are."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
