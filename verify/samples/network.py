"""Compares a network with its conversion on given inputs: traces call by call, outputs against a float64 run.

Nothing is claimed about a network for all inputs, because Python code between the layers may inspect numbers.  Each layer is
proved; this module observes that, on these inputs, nothing else differs.
"""

import enum
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from verify.samples.accuracy import Accuracy, accuracy
from verify.samples.sampling import call_with, copies
from verify.samples.trace import Activation, Call, Constant, Number, Trace, TracedLayer, trace


@dataclass(frozen=True)
class CallComparison:
    """The result of comparing the calls of two networks on the same inputs.

    Attributes:
        compared: how many calls of the original were compared on the first input.
        converted: how many of these were convolutions that became attention.
        layers: the paths of all convolutions that were called and became attention, on any input.
        executed: convolution operators that the original executed on the first input.
        left: the same for the converted network.
        difference: the first call that differs, in one clause; None if all calls agree.
        untraced: what the traces do not see of these networks, one clause each.
    """

    compared: int
    converted: int
    layers: tuple[str, ...]
    executed: int
    left: int
    difference: str | None
    untraced: tuple[str, ...]


def traces(network: nn.Module, inputs: Iterable[Any], layers: Mapping[nn.Module, str], seed: int = 0) -> list[Trace]:
    """Run a network in eval mode on each input, always with the same random numbers, and record its calls.

    Args:
        network: receives copies of the inputs.
        inputs: each a tensor, a tuple of arguments, or a mapping of keyword arguments.
        layers: the path of each convolution, or of the attention layer in its place.
        seed: for torch's, numpy's and Python's random numbers.
    """
    runs = []
    for x in inputs:
        with _seeded(seed):
            runs.append(trace(call_with, network, copies(x), layers))
    return runs


def in_float64(inputs: Iterable[Any]) -> list[Any]:
    """Inputs with every floating-point tensor converted to float64, which is exact."""

    def widened(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    return [tree_map(widened, x) for x in inputs]


def compare_calls(original: Sequence[Trace], converted: Sequence[Trace]) -> CallComparison:
    """Compare the calls of two networks that ran on the same inputs."""
    compared = [compare_traces(*pair) for pair in zip(original, converted, strict=True)]
    called = [[call.function.path for call in run.calls if isinstance(call.function, TracedLayer)] for run in original]
    layers = [[path for path in paths if path in run.layers] for paths, run in zip(called, original, strict=True)]
    return CallComparison(
        compared=compared[0][2] if compared else 0,
        converted=len(layers[0]) if layers else 0,
        layers=tuple(dict.fromkeys(path for paths in layers for path in paths)),
        executed=original[0].convolutions if original else 0,
        left=converted[0].convolutions if converted else 0,
        difference=next((difference for difference, *_ in compared if difference is not None), None),
        untraced=tuple(dict.fromkeys(what for _, untraced, _ in compared for what in untraced)),
    )


WIDE = (torch.float64, torch.complex128)


def why_no_float64(original: Sequence[Trace], reference: Sequence[Trace]) -> str:
    """Why a network's float64 run cannot serve as reference for the original; empty if it can."""
    if all(t.dtype in WIDE for run in original for t in run.outputs if t.is_floating_point() or t.is_complex()):
        return "the network computes in float64 itself"
    for ours, exact in zip(original, reference, strict=True):
        if [(call.path, call.name) for call in ours.calls] != [(call.path, call.name) for call in exact.calls]:
            return "the network makes other calls in float64"
        if [t.shape for t in ours.outputs] != [t.shape for t in exact.outputs]:
            return "the network returns other sizes in float64"
        if any(bool((t.isfinite() & ~e.isfinite()).any()) for t, e in zip(ours.outputs, exact.outputs, strict=True)):
            return "the float64 run has outputs that are not finite where the original's are"
        for call in exact.calls:
            for _, dtype in call.results:
                if (dtype.is_floating_point or dtype.is_complex) and dtype not in WIDE:
                    return f"{call.name} makes {str(dtype).removeprefix('torch.')} of float64"
    return ""


def compare_numbers(
    original: Sequence[Trace],
    converted: Sequence[Trace],
    reference: Sequence[Trace] | None,
    no_float64: str = "",
    leaking: bool = False,
) -> Accuracy | None:
    """Compare the outputs of two networks with a float64 run of the original.

    Args:
        original: the original's runs.
        converted: the converted network's runs on the same inputs.
        reference: the original's runs in float64; None if it does not run.
        no_float64: why it does not.
        leaking: whether heads leak attention by choice, so that the networks may differ by more than rounding.

    Returns:
        None if the networks return different sizes.
    """
    shapes = [[[(t.shape, t.dtype) for t in run.outputs] for run in runs] for runs in (original, converted)]
    if shapes[0] != shapes[1]:
        return None
    if reference is not None:
        no_float64 = why_no_float64(original, reference)
    ours, theirs = [run.outputs for run in original], [run.outputs for run in converted]
    exact = None if reference is None or no_float64 else [run.outputs for run in reference]
    return accuracy(ours, theirs, exact, no_float64, leaking)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's, numpy's and Python's random numbers; restore their states afterwards."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002  what a network may use
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002


_PLAIN = frozenset(
    {bool, int, float, complex, str, bytes, range, type(None), type(...), Activation, Constant, Number, torch.Size}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)

# ---- comparing two traces ---------------------------------------------------------------------------------------------------


def compare_traces(ours: Trace, theirs: Trace) -> tuple[str | None, list[str], int]:
    """Compare two traces call by call.

    Args:
        ours: the original's trace.
        theirs: the converted network's trace.

    Returns:
        The first difference, in one clause, or None if all calls, arguments and returned values agree; what the traces do not
        see, one clause each; and how many calls were compared.
    """
    untraced, most = [*ours.untraced, *theirs.untraced], len(ours.calls)
    for number, (a, b) in enumerate(zip(ours.calls, theirs.calls, strict=False), start=1):
        for x, y in zip(a.arguments, b.arguments, strict=False):
            if _is_unknown(x, y):
                untraced.append(f"a tensor of unknown origin goes into {a.name}")
            if not (_is_plain(x) and _is_plain(y)):
                untraced.append(f"an object of class {type(x).__name__} goes into {a.name}")
        what = _call_difference(a, b)
        if what is not None and a.bypassed_layer is not None:
            # Calling a stored method of the layer does not call the layer.
            layer = a.bypassed_layer or "the layer"
            untraced.append(f"{a.name} runs {layer} without calling it; what follows is not compared")
            return None, untraced, number - 1
        if what is not None:
            return f"call {number} of {most}, {a.name}: {what}", untraced, most
    if len(ours.calls) != len(theirs.calls):
        longer, who = (ours, "original") if len(ours.calls) > len(theirs.calls) else (theirs, "converted network")
        fewer = min(len(ours.calls), len(theirs.calls))
        return f"after {fewer} calls, the {who} alone goes on, with {longer.calls[fewer].name}", untraced, most
    if len(ours.returned) != len(theirs.returned):
        what = f"the original returns {len(ours.returned)} values, the converted network {len(theirs.returned)}"
        return what, untraced, most
    for place, (a, b) in enumerate(zip(ours.returned, theirs.returned, strict=True)):
        if _is_unknown(a, b):
            untraced.append("a tensor of unknown origin is returned")
        if (what := _argument_difference(a, b)) is not None:
            return f"returned value {place}: {what}", untraced, most
    return None, untraced, most


def _is_unknown(x: Any, y: Any) -> bool:
    """Whether either is a tensor of unknown origin; a tensor shared by both networks existed before they ran."""
    constants = [value for value in (x, y) if isinstance(value, Constant)]
    if len(constants) == 2 and constants[0].tensor is constants[1].tensor:
        return False
    return any(not constant.known for constant in constants)


def _is_plain(value: Any) -> bool:
    """Whether this is plain data; an object of another class may run its own Python code, or hide state."""
    if type(value) is slice:
        return all(map(_is_plain, (value.start, value.stop, value.step)))
    if isinstance(value, np.ndarray):
        return value.dtype != object
    return (
        type(value) in _PLAIN or isinstance(value, type | enum.Enum | np.generic) or hasattr(type(value), "__members__")
    )


def _call_difference(a: Call, b: Call) -> str | None:
    if a.path != b.path or not _same_function(a.function, b.function):
        return f"the converted network calls {b.name}"
    if a.structure != b.structure:
        return "it is given other arguments"
    for x, y in zip(a.arguments, b.arguments, strict=True):
        if (what := _argument_difference(x, y)) is not None:
            return what
    if a.results != b.results:
        shown = [[(tuple(shape), str(dtype).removeprefix("torch.")) for shape, dtype in c.results] for c in (a, b)]
        return f"it returns {shown[1]}, in the original {shown[0]}"
    return None


def _same_function(f: Any, g: Any) -> bool:
    return f == g or (type(f) is type(g) and getattr(f, "__qualname__", 0) == getattr(g, "__qualname__", 1))


def _argument_difference(x: Any, y: Any) -> str | None:
    if isinstance(x, Number) and isinstance(y, Number) and x.origins & y.origins:
        return None
    x, y = (value.value if isinstance(value, Number) else value for value in (x, y))
    if isinstance(x, Constant) and isinstance(y, Constant):
        if (x.tensor.shape, x.tensor.dtype) == (y.tensor.shape, y.tensor.dtype):
            known = (x.known and y.known) or x.tensor is y.tensor  # shared tensors may change between the runs
            return "a constant goes in that differs from the original's" if known and not _same_numbers(x, y) else None
    elif _same_value(x, y):
        return None
    return f"{_shown(y)} goes in, in the original {_shown(x)}"


def _same_value(x: Any, y: Any) -> bool:
    if x is y or type(x) is not type(y):
        return x is y
    if isinstance(x, np.ndarray):
        return x.dtype == y.dtype and np.array_equal(x, y)
    if isinstance(x, float | complex | slice):  # −0 differs from 0, NaN is itself
        return repr(x) == repr(y)
    try:
        return type(x).__eq__ is object.__eq__ or bool(x == y)  # without their own equality: copies of one object
    except Exception:  # from the network's own class
        return False


def _same_numbers(x: Constant, y: Constant) -> bool:
    if x.copy is not None and y.copy is not None:
        return _equal(x.copy, y.copy)
    return x.digest == y.digest if x.digest and y.digest else _equal(x.tensor, y.tensor)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether all numbers are equal, with NaN equal to NaN."""
    same = torch.eq(a, b)
    return bool((same | ((a != a) & (b != b))).all())


def _shown(value: Any) -> str:
    if isinstance(value, Activation):
        return "an input" if value.call == 0 else f"the result of call {value.call}"
    if isinstance(value, Constant):
        return f"a constant of shape {tuple(value.tensor.shape)}, {str(value.tensor.dtype).removeprefix('torch.')}"
    return repr(value)[:60]
