"""CHECKED: runs a layer and its convolution on samples, and compares each difference with its
rounding bound.

Comparing whole networks is a weak test (normalisation hides much), so each layer is judged alone:
on the activations that reach it inside the network, or on generated inputs.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from verify.layers.reparametrized import evaluating
from verify.oracle import Geometry, Unreadable, Vector, greatest, largest
from verify.rounding.elements import OffTheKernel, convolution_bound, difference_bound
from verify.rounding.soft_heads import one_hot, soft_heads_bound
from verify.samples.comparison import Discrepancy, of_errors, ratios, subtracted
from verify.samples.reference import deviation
from verify.verdict import Verdict, from_above


@dataclass(frozen=True)
class LayerCheck:
    """The result of running one layer on samples.

    Attributes:
        discrepancy: that of the call with the largest |difference|.
        interior: the largest |difference|, over all calls, where no padding is read.
        border: the same where padding is read.
        bound: the rounding bound where the difference is largest.
        ratio: the largest |difference|/bound anywhere; at most 1 for equality up to rounding.
        calls: how many calls were compared.
        grid: the largest spatial size of an input, per axis.
        largest_input: the largest |x| of any call.
        verdict: CHECKED, REFUTED or UNDECIDED.
        by_channel: the largest |difference| of each output channel, over all calls, float64
            (D_out,).
        largest_output: the largest |output| of the convolution in any call.
        convolution_off: whether an error of torch's own convolution exceeded what rounding
            explains.
    """

    discrepancy: Discrepancy
    interior: float
    border: float
    bound: float
    ratio: float
    calls: int
    grid: Vector
    largest_input: float
    verdict: Verdict
    by_channel: ndarray
    largest_output: float
    convolution_off: bool = False

    def merged(self, other: "LayerCheck") -> "LayerCheck":
        """Merge the records of two sets of calls of one layer: the worse of each figure and of the
        verdicts.
        """
        severity = {"REFUTED": 2, "UNDECIDED": 1, "CHECKED": 0}
        worse = max(self, other, key=lambda check: severity[check.verdict.name])
        wider = max(
            self, other, key=lambda check: np.nan_to_num(check.discrepancy.max_abs, nan=np.inf)
        )
        return replace(
            wider,
            interior=_greater(self.interior, other.interior),
            border=_greater(self.border, other.border),
            ratio=_greater(self.ratio, other.ratio),
            calls=self.calls + other.calls,
            grid=tuple(max(sides) for sides in zip(self.grid, other.grid, strict=True)),
            largest_input=_greater(self.largest_input, other.largest_input),
            verdict=worse.verdict,
            by_channel=np.maximum(self.by_channel, other.by_channel),
            largest_output=_greater(self.largest_output, other.largest_output),
            convolution_off=self.convolution_off or other.convolution_off,
        )


def _greater(a: float, b: float) -> float:
    """The greater of two; not a number if either is none."""
    return float(np.maximum(a, b))


def check_call(conv: Any, layer: Any, x: Tensor, what: str, **call: Any) -> LayerCheck:
    """Compare one call of a convolution and its attention layer on ``x``, batched or not, and judge
    it.

    ``what`` describes the input in the verdict's sentence; ``call`` holds further arguments
    (``output_size``).

    >>> import construct
    >>> conv = nn.Conv1d(2, 3, 5)
    >>> check_call(conv, construct.conv_to_mhsa(conv), torch.ones(1, 2, 8), "ones").verdict.name
    'CHECKED'
    """
    with torch.no_grad():
        return check_outputs(conv, layer, x, conv(x, **call), layer(x, **call), what)


def check_outputs(
    conv: Any,
    layer: Any,
    x: Tensor,
    expected: Tensor,
    attended: Tensor,
    what: str,
) -> LayerCheck:
    """:func:`check_call` for outputs that have been computed already."""
    x, a, b, error = subtracted(conv, x, expected, attended)
    difference = of_errors(conv, x, expected.dtype, a, b, error)
    record = partial(
        LayerCheck,
        discrepancy=difference,
        interior=difference.interior,
        border=difference.border,
        calls=1,
        grid=tuple(x.shape[2:]),
        largest_input=largest(x),
        by_channel=error.max(axis=(0, *range(2, error.ndim)), initial=0.0),
        largest_output=greatest(np.abs(a)),
    )
    outputs = a.shape[2:]
    try:
        bound, soft = _allowed(conv, layer, x, outputs, error)
    except Unreadable as unknown:
        verdict = Verdict("UNDECIDED", str(unknown))
        return record(bound=math.nan, ratio=math.nan, verdict=verdict)
    relative = ratios(error, bound)
    ratio = greatest(relative)
    at_worst = float(bound[difference.worst]) if difference.worst else 0.0
    off = False
    name = "UNDECIDED"
    if not np.isfinite(a).all() or not (soft or np.isfinite(bound).all()):
        sentence = f"the outputs or the bound are not finite on {what}"
    elif not ratio <= 1:  # written so that NaN fails
        share = convolution_bound(conv, x, outputs)
        worst = deviation(conv, x, a, b, bound, share, ~(relative <= 1))
        given = f"the convolution gives {worst.convolution!r} and the attention {worst.attention!r}"
        sentence = f"{soft}at {worst.index} {given} on {what}: "
        sentence += f"a difference of {error[worst.index]:.3g} where rounding explains {bound[worst.index]:.3g}; {worst.sentence}"
        off = worst.convolution_off
        if worst.refutes:
            name = "REFUTED"
    elif soft:
        most = from_above(difference.max_abs)
        sentence = f"{soft}the outputs differ by at most {most} on {what}, as rounding may"
    else:
        name = "CHECKED"
        sentence = f"{difference.compared} outputs agree within rounding on {what}"
    verdict = Verdict(name, sentence)
    return record(bound=at_worst, ratio=ratio, verdict=verdict, convolution_off=off)


def _allowed(
    conv: Any, layer: Any, x: Tensor, outputs: Vector, error: ndarray
) -> tuple[ndarray, str]:
    """How far rounding may move each output; and why that is the wide bound of soft heads, if it is.

    Raises:
        Unreadable: the layer cannot be read.
    """
    try:
        bound = difference_bound(conv, layer, x, outputs)
    except OffTheKernel as reason:  # only the sizes of its terms are known
        return soft_heads_bound(layer, conv, x, outputs), f"{reason}, and "
    if not greatest(ratios(error, bound)) <= 1 and not one_hot(layer):
        # Soft attention also rounds in sums over all keys, which that bound does not cover.
        wide = soft_heads_bound(layer, conv, x, outputs)
        if greatest(ratios(error, wide)) <= 1:
            return wide, "attention is shared among keys, and "
    return bound, ""


def generated_inputs(conv: Any, samples: int, seed: int, size: Vector = ()) -> Tensor:
    """Seeded normal inputs for one convolution, (samples, D_in, *size), large enough for outputs
    that read no padding.

    ``size`` is the minimum spatial size.
    """
    generator = torch.Generator().manual_seed(seed)
    count, channels, *least = generated_shape(conv, samples)
    shape = (count, channels, *map(max, least, size or least))
    x = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return x.to(dtype=conv.weight.dtype, device=conv.weight.device)


def generated_shape(conv: Any, samples: int) -> Vector:
    """The shape of :func:`generated_inputs`, known before anything is allocated."""
    g = Geometry.read(conv)
    size = []
    for axis, (span, (before, after), s) in enumerate(zip(g.spans, g.pads, g.stride, strict=True)):
        if g.transposed:
            # One output needs s·(n − 1) ≥ 2p − span, and one that reads no padding
            # s·(n − 1) ≥ span; plus two more inputs.
            least = -(-max(span, before + after - span) // s) + 3
        else:
            least = max(span + 1 + 2 * s, before + 1, after + 1)
        size.append(least + axis)  # sides differ, so swapped axes show
    return (samples, g.in_channels, *size)


def called(model: nn.Module, x: Any) -> Any:
    """Call a network with a tensor, a tuple of arguments, or a mapping of keyword arguments: copies
    of the tensors, because it may change them.
    """
    x = tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, x)
    if isinstance(x, tuple):
        return model(*x)
    if isinstance(x, Mapping):
        return model(**x)
    return model(x)


@contextmanager
def watching(layers: Mapping[str, nn.Module], see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """While active, call ``see`` with path and input before each call of these layers."""
    with ExitStack() as stack:
        for path, layer in layers.items():

            def hook(_: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
                see(path, args[0] if args else kwargs["input"])

            stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


@contextmanager
def comparing(
    called: Mapping[str, nn.Module],
    pairs: Mapping[str, tuple[nn.Module, nn.Module]],
    what: str,
    progress: Callable[[str], None] = lambda path: None,
) -> Iterator[dict[str, LayerCheck]]:
    """While active, compare a convolution and its attention layer on the activations of every call
    of a module.

    Args:
        called: path → module of the network that runs.
        pairs: path → (convolution, its attention layer), which that run does not change if they are
            others.
        what: a description of the inputs, for the verdicts.
        progress: called with a layer's path after each comparison.

    Yields:
        A record for each layer called so far, updated with each call.  Calls within a transform of
        ``torch.func``, or on an empty batch, are left out.
    """
    checks: dict[str, LayerCheck] = {}

    def hook(path: str, conv: Any, layer: nn.Module) -> Callable[..., None]:
        def compared(module: nn.Module, args: Any, kwargs: Any, _: Any) -> None:
            call = dict(zip(("input", "output_size"), args, strict=False)) | kwargs
            x = call.pop("input")
            where = what
            # A transform of torch.func hides its numbers; an empty batch has none.
            if is_functorch_wrapped_tensor(x) or not x.numel():
                return
            # a claim about a layer holds in its own format
            if torch.is_autocast_enabled(x.device.type):
                x = x.to(conv.weight.dtype)
                where = f"{what}, without the network's autocast"
            with _disable_current_modes(), torch.autocast(x.device.type, enabled=False):
                # a call would compare again
                expected = (conv.forward if conv is module else conv)(x, **call)
                check = check_outputs(conv, layer, x, expected, layer(x, **call), where)
            checks[path] = checks[path].merged(check) if path in checks else check
            progress(path)

        return compared

    with ExitStack() as stack:
        for path, module in called.items():
            handle = module.register_forward_hook(hook(path, *pairs[path]), with_kwargs=True)
            stack.callback(handle.remove)
        yield checks


def check_on_activations(
    model: nn.Module,
    pairs: Mapping[str, tuple[nn.Module, nn.Module]],
    inputs: Iterable[Any],
    what: str,
) -> dict[str, LayerCheck]:
    """Run a network, and at each call of a convolution run its attention layer on the same
    activations.

    Args:
        model: the original network; it runs in eval mode, and its modes are restored.
        pairs: path → (convolution inside ``model``, its attention layer).
        inputs: one per call: a tensor, a tuple of arguments, or a mapping of keyword arguments.
        what: a description of the inputs, for the verdicts.

    Returns:
        A record for each layer that the network called.
    """
    layers = (layer for _, layer in pairs.values())
    convolutions = {path: conv for path, (conv, _) in pairs.items()}
    with (
        evaluating(model, *layers),
        torch.no_grad(),
        comparing(convolutions, pairs, what) as checks,
    ):
        for x in inputs:
            called(model, x)
    return checks
