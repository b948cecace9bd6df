"""Compares a network with its conversion on given inputs.

Nothing is claimed about a network for all inputs, because Python code between the layers may
inspect numbers.  Each layer is proved; this module observes that, on these inputs, nothing else
differs.  For that the converted network runs with *stand-ins*: attention layers that return what
their convolutions compute.  If nothing but these layers was changed, it then calls the same layers
in the same order on the same inputs, and returns the original's numbers, bit for bit.  Threads,
scripts, ``vmap``, numpy and code that inspects its modules show in these numbers, so nothing
between the layers is recorded.
"""

import dataclasses
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from verify.samples.accuracy import Accuracy, accuracy
from verify.samples.comparison import bits, same_bits
from verify.samples.sampling import called, watching


@dataclass(frozen=True)
class Run:
    """One run of a network.

    Attributes:
        layers: the path of each call of a converted layer.
        record: (description, value) of the input of each of these calls, and of each value that the
            network returns.
        outputs: the tensors that it returns.
        elsewhere: how many of these calls came from other threads.
        convolutions: how many convolution operators torch executed in this thread.
        narrowed: the first operator that made fewer bits of float64 numbers; empty if none did.
    """

    layers: tuple[str, ...]
    record: tuple[tuple[str, Any], ...]
    outputs: tuple[Tensor, ...]
    elsewhere: int
    convolutions: int
    narrowed: str


@dataclass(frozen=True)
class CallComparison:
    """The result of comparing two networks on the same inputs.

    Attributes:
        compared: how many inputs of layers and returned values were compared, on the first input; 0
            if they vary by themselves.
        converted: how many calls of converted layers there were, on the first input.
        layers: the paths of all converted layers that were called, on any input.
        executed: convolution operators that the original executed on the first input; in other
            threads, calls of converted layers.
        left: the same for the converted network; None if it did not run.
        difference: the first difference, in one clause; None if there is none.
        untraced: what was not compared, one clause each.
    """

    compared: int
    converted: int
    layers: tuple[str, ...]
    executed: int
    left: int | None
    difference: str | None
    untraced: tuple[str, ...]


WIDE = (torch.float64, torch.complex128)


class _Operators(TorchDispatchMode):
    """Dispatch mode: counts convolutions, and notes the first operator that makes fewer bits of
    float64 numbers.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled, but to find that out torch would import its compiler, which
        takes seconds.
        """
        return False

    convolutions = 0
    narrowed = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Execute the operator and note it."""
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if re.search("conv(?!ert)", name):
            self.convolutions += 1
        if isinstance(result, Tensor) and result.is_floating_point() and result.dtype not in WIDE:
            if any(isinstance(value, Tensor) and value.dtype in WIDE for value in args):
                self.narrowed = (
                    self.narrowed
                    or f"{name} makes {str(result.dtype).removeprefix('torch.')} of float64"
                )
        return result


def runs(
    network: nn.Module, inputs: Iterable[Any], layers: Mapping[str, nn.Module], seed: int = 0
) -> list[Run]:
    """Run a network without gradients on each input, always with the same random numbers.

    Args:
        network: receives copies of the inputs.
        inputs: each a tensor, a tuple of arguments, or a mapping of keyword arguments.
        layers: path → convolution of the network, or the layer in its place.
        seed: for torch's, numpy's and Python's random numbers.
    """
    return [_run(network, x, layers, seed) for x in inputs]


def _run(network: nn.Module, x: Any, layers: Mapping[str, nn.Module], seed: int) -> Run:
    paths: list[str] = []
    threads: list[int] = []
    record: list[tuple[str, Any]] = []

    def see(path: str, value: Tensor) -> None:
        paths.append(path)
        threads.append(get_ident())
        record.append((f"the input of the layer {path or '(the model)'}", _checksum(value)))

    with _seeded(seed), torch.no_grad(), watching(layers, see), _Operators() as operators:
        returned = _leaves(called(network, x))
    record += [(f"returned value {place}", value) for place, value in enumerate(returned)]
    outputs = tuple(value for value in returned if isinstance(value, Tensor))
    elsewhere = len(threads) - threads.count(get_ident())
    return Run(
        tuple(paths), tuple(record), outputs, elsewhere, operators.convolutions, operators.narrowed
    )


def compare_calls(
    original: Sequence[Run],
    standing_in: Sequence[Run],
    converted: Sequence[Run],
    repeated: Callable[[], Sequence[Run]],
) -> CallComparison:
    """Compare the runs of the original, of the converted network with stand-ins, and of the
    converted network as it is.

    ``repeated`` runs another copy of the original: numbers that differ there too say nothing about
    the conversion.  Without runs of the converted network nothing is compared.
    """
    first = original[0]
    layers = tuple(dict.fromkeys(path for run in original for path in run.layers))
    executed = first.convolutions + first.elsewhere
    if not converted:
        return CallComparison(0, len(first.layers), layers, executed, None, None, ())
    left = converted[0].convolutions
    calls = len(first.layers)
    compared = len(first.record)
    difference = _difference(original, standing_in)
    if difference is not None:
        difference += " (while each layer returns its convolution's numbers)"
    elif [run.layers for run in original] != [run.layers for run in converted]:
        difference = "on its own numbers it calls other layers"
    untraced = []
    if difference is not None and (unsteady := _difference(original, repeated())) is not None:
        untraced = [f"the original does not repeat itself: {unsteady}"]
        compared = 0
        difference = None
    untraced += _untraced(first, executed - left)
    return CallComparison(
        compared, calls, layers, executed, left, difference, tuple(dict.fromkeys(untraced))
    )


def _untraced(first: Run, became: int) -> Iterator[str]:
    """What a run does not show, where so many convolutions became attention."""
    calls = len(first.layers)
    if became > calls:
        yield (
            f"{became - calls} of {became} convolutions that became attention, in no call of a layer that was seen: they are in "
            "transforms of torch.func, or of a method that the network has stored"
        )
    if first.elsewhere:
        yield "other threads call layers: what else they do is seen in the results alone, and not counted"
    for name, x in first.record[:calls]:
        if x is None:
            yield f"{name} is within a transform of torch.func"
    for _, value in first.record[calls:]:
        if not isinstance(value, PLAIN):
            yield f"the output holds an object of class {type(value).__name__}, which is not looked into"
    if not first.outputs:
        yield "the output has no tensor in it"


def compare_numbers(
    original: Sequence[Run],
    converted: Sequence[Run],
    reference: Sequence[Run] | None,
    no_float64: str = "",
    leaking: bool = False,
) -> Accuracy | None:
    """:func:`accuracy` of runs on the same inputs, ``reference`` in float64; None if the networks
    return different sizes.
    """
    if reference is not None:
        no_float64 = next(filter(None, map(_why_no_float64, original, reference)), "")
    ours, theirs, exact = (
        [t for run in side or () for t in run.outputs] for side in (original, converted, reference)
    )
    if [(t.shape, t.dtype) for t in ours] != [(t.shape, t.dtype) for t in theirs]:
        return None
    truth = None if reference is None or no_float64 else exact
    return accuracy(ours, theirs, truth, no_float64, leaking)


def _why_no_float64(ours: Run, exact: Run) -> str:
    """Why a float64 run cannot serve as reference for the original's; empty if it can."""
    if all(t.dtype in WIDE for t in ours.outputs if t.is_floating_point() or t.is_complex()):
        return "the network computes in float64 itself"
    if (ours.layers, [t.shape for t in ours.outputs]) != (
        exact.layers,
        [t.shape for t in exact.outputs],
    ):
        return "the network calls other layers in float64, or returns other sizes"
    if any(
        bool((t.isfinite() & ~e.isfinite()).any())
        for t, e in zip(ours.outputs, exact.outputs, strict=True)
    ):
        return "the float64 run has outputs that are not finite where the original's are"
    return exact.narrowed


def in_float64(inputs: Iterable[Any]) -> list[Any]:
    """Inputs with every floating-point tensor converted to float64, which is exact."""
    return [
        tree_map(lambda v: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v, x)
        for x in inputs
    ]


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


def _checksum(x: Tensor) -> tuple[Any, ...] | None:
    """Shape and sum of bits, in no order; None for a tensor whose numbers cannot be read."""
    with _disable_current_modes():
        if is_functorch_wrapped_tensor(x):  # by vmap, jvp or grad of torch.func
            return None
        return tuple(x.shape), int(bits(x).sum())


PLAIN = Tensor | bool | int | float | complex | str | None


def _leaves(value: Any) -> list[Any]:
    """The values in nested containers, in order."""
    if isinstance(value, Mapping):
        value = list(value.items())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if not isinstance(value, list | tuple):
        return [value]
    return [leaf for item in value for leaf in _leaves(item)]


def _difference(ours: Sequence[Run], theirs: Sequence[Run]) -> str | None:
    """The first difference of runs on the same inputs, in one clause; objects of unknown classes
    are left out.
    """
    nothing: Any = ("nothing more", None)
    for a, b in zip(ours, theirs, strict=True):
        for (name, x), (other, y) in zip_longest(a.record, b.record, fillvalue=nothing):
            if name != other:
                return f"{other}, in the original {name}"
            if isinstance(x, PLAIN | tuple) and _shown(x) != _shown(y):
                return f"{name}: {_shown(y)}, in the original {_shown(x)}"
            if (isinstance(x, Tensor) and not same_bits(x, y)) or (isinstance(x, tuple) and x != y):
                return f"{name}: other numbers than in the original"
    return None


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple):
        return str(value[0])
    return repr(value)[:60]
