"""A network and its conversion run side by side on the same inputs: the figures of the network as a whole."""

import contextlib
import dataclasses
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from math import isfinite, prod
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from construct.attention import MHSA
from construct.errors import BadModelFile
from construct.files import read_inputs
from construct.plain_text import described, one_line, shown
from construct.room import refused_by_torch, require
from construct.table import NetworkRow


def inputs_for(model: nn.Module, options: Namespace) -> tuple[list[Any], str] | None:
    """The inputs to run a network on, one a call, and what they are; None if the command line says nothing about them."""
    if options.example_inputs is not None:
        return [read_inputs(options.example_inputs)], f"the example inputs in {shown(str(options.example_inputs))}"
    if options.input_size is None:
        return None
    size = "x".join(map(str, options.input_size))
    return seeded_inputs(model, options), f"{options.samples} random inputs of {size}"


def seeded_inputs(model: nn.Module, options: Namespace) -> list[Tensor]:
    """Seeded normal inputs, one a call, in the number format of the network."""
    generator = torch.Generator().manual_seed(options.seed)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    shape = (1, *options.input_size)
    what = f"a run on {options.samples} random inputs of {'x'.join(map(str, options.input_size))}"
    # All of them as float32, and of one at a time a copy and, for the bound, twice its float64.
    require((4 * options.samples + 20) * prod(shape), torch.device("cpu"), what, who="")
    return [torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype) for _ in range(options.samples)]


PER_OUTPUT = 64
"""Bytes that the comparison of one output of a layer takes, most of them for float64 arrays; measured: 50 to 70."""


@contextlib.contextmanager
def within_room(pairs: Mapping[str, tuple[nn.Module, MHSA]]) -> Iterator[None]:
    """While active, a convolution whose outputs could not be compared is refused by its shapes alone, before it is run."""

    def judge(path: str, layer: MHSA) -> Callable[..., None]:
        def judged(conv: nn.Module, args: Any, kwargs: Any) -> None:
            x = args[0] if args else kwargs.get("input")
            if not isinstance(x, Tensor) or x.dim() <= layer.geometry.dims:
                return  # the convolution itself says what is wrong
            size = layer.geometry.output_size(x.shape[-layer.geometry.dims :])
            batch = x.shape[0] if x.dim() == layer.geometry.dims + 2 else 1
            outputs = batch * layer.out_channels * prod(max(0, n) for n in size)
            shape = "x".join(map(str, (layer.out_channels, *size)))
            require(PER_OUTPUT * outputs, x.device, f"comparing an output of {shape}", f"{path or 'the layer'}: ")

        return judged

    handles = []
    try:
        for path, (conv, layer) in pairs.items():
            handles.append(conv.register_forward_pre_hook(judge(shown(path), layer), with_kwargs=True, prepend=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def outputs_and_calls(
    model: nn.Module,
    inputs: list[Any],
    call: Callable[[nn.Module, Any], Any],
    calls: ModuleType,
    options: Namespace,
    converted: bool = False,
) -> tuple[list[Tensor], int]:
    """What a network returns on all inputs, and how many convolutions it executes on the first.

    Args:
        model: the network; ``converted``: of one that ran on these inputs.
        inputs: for each call.
        call: a network on an input.
        calls: :mod:`verify.calls`.
        options: of the command.
        converted: see ``model``.

    Raises:
        BadModelFile: it does not run.
        NotEnoughMemory: there is too little for it.
    """
    outputs: list[Any] = []
    try:
        counts = calls.convolution_calls(lambda: outputs.append(call(model, inputs[0])))
        outputs += [call(model, x) for x in inputs[1:]]
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # whatever a network makes of an input that does not suit it
        if (memory := refused_by_torch(error)) is not None:
            raise memory from error
        name = shown(str(options.model))
        if converted:
            raise BadModelFile(
                f"{name}: converted, the network does not run any more: {described(error)} "
                "(its forward may use more of a convolution than a call of it: change that)"
            ) from error
        what, hint = "the example inputs", "a tensor, a tuple of arguments, or a dict of keyword arguments"
        if options.example_inputs is None:
            what = f"an input of size {' '.join(map(str, options.input_size))}"
            hint = "another --input-size, or --example-inputs, or neither: then every layer is checked alone"
        raise BadModelFile(f"{name}: the network does not run on {what}: {described(error)} (give {hint})") from error
    return list(_tensors(outputs)), sum(count for operator, count in counts.items() if "conv" in operator)


@contextlib.contextmanager
def counting(pairs: Mapping[str, tuple[nn.Module, MHSA]]) -> Iterator[dict[str, int]]:
    """While active, count the calls of every attention layer, by its path."""
    counts = dict.fromkeys(pairs, 0)

    def counter(path: str) -> Callable[..., None]:
        def counted(*_: Any) -> None:
            counts[path] += 1

        return counted

    handles = [layer.register_forward_pre_hook(counter(path)) for path, (_, layer) in pairs.items()]
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


def same_way(
    before: list[Tensor], after: list[Tensor], calls: Mapping[str, tuple[int, int]], options: Namespace
) -> None:
    """Make sure that a network takes the same way when it is converted: the same layers are called, the same sizes come out.

    Args:
        before: what the network returned.
        after: what its conversion returned.
        calls: of every layer, in both.
        options: of the command.

    Raises:
        BadModelFile: it does not, as where a forward asks of what class its layers are.
    """
    ours, theirs = ([tuple(y.shape) for y in outputs] for outputs in (before, after))
    other = [(path, *both) for path, both in calls.items() if both[0] != both[1]]
    if not other and ours == theirs:
        return
    told = f"returns tensors of sizes {theirs}, not {ours}"
    if other:
        path, called, again = other[0]
        told = f"calls {shown(path) or 'its layer'} {again} times, not {called}"
    raise BadModelFile(
        f"{shown(str(options.model))}: converted, the network {one_line(told, 300)} "
        "(its forward may ask for the class of a layer, or depend on the last bit of an activation: change that)"
    )


def _tensors(output: Any) -> Iterator[Tensor]:
    """Every tensor in what a network returns."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _tensors(list(output.values()))
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        yield from _tensors([getattr(output, field.name) for field in dataclasses.fields(output)])
    elif isinstance(output, list | tuple):
        for part in output:
            yield from _tensors(part)


def network_row(
    before: tuple[list[Tensor], int],
    after: tuple[list[Tensor], int],
    size: tuple[int, ...] | None,
    told: str,
    bounds: tuple[Any, ...],
) -> NetworkRow:
    """The difference of what two networks returned, beside the bounds on it."""
    found = [
        (a.detach().double().flatten(), b.detach().double().flatten()) for a, b in zip(before[0], after[0], strict=True)
    ]
    difference = relative = None
    if found and sum(len(a) for a, _ in found):
        expected, seen = (torch.cat(side) for side in zip(*found, strict=True))
        difference = float(torch.where(expected == seen, 0.0, (expected - seen).abs()).max())
        largest = float(expected.abs().max())
        relative = difference / largest if largest else difference
    return NetworkRow(size, told, difference, relative, before[1], after[1], bounds)


def end_to_end(
    propagation: ModuleType,
    networks: tuple[nn.Module, nn.Module],
    inputs: list[Any],
    pairs: dict[str, tuple[nn.Module, Any]],
    making: Callable[[str, Any], Any],
) -> tuple[Any, ...]:
    """Two bounds on the network's difference: for these very inputs, and, if they are tensors, for all inputs no larger.

    Layers are certified by ``making`` when the run meets them, so that certificates speak of the very numbers that are run.
    """
    if any(isinstance(x, Mapping) for x in inputs):
        return ()
    alike = all(isinstance(x, Tensor) and x.is_floating_point() and x.numel() and len(x) == 1 for x in inputs)
    largest = max(float(x.abs().max()) for x in inputs) if alike else 0.0
    try:
        if largest and isfinite(largest):
            return propagation.both_cases(*networks, inputs, largest, pairs, making=making)
        return (propagation.propagate(*networks, inputs, pairs, making=making),)
    except ValueError as error:
        raise BadModelFile(
            f"no bound for the given inputs: {one_line(error)} (give others, or --no-certify)"
        ) from error
