"""The runs of a network and of its conversion, on the same inputs."""

import contextlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from construct.attention import MHSA
from construct.command.terminal import Phases
from construct.errors import BadModelFile, described, refused_by_torch, require, shown
from construct.files.reading import read_inputs
from construct.modules.traversal import every_module
from construct.network import substitute
from verify.samples.network import in_float64, traces
from verify.samples.sampling import LayerCheck, comparing, evaluating
from verify.samples.trace import Trace


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


class Runs(NamedTuple):
    """What the runs of a network and of its conversion showed.

    Attributes:
        checks: path → what the samples showed of a layer.
        original: its trace on each input.
        converted: the same of the conversion.
        reference: the same of the original in float64; None where it does not run.
        no_float64: why it does not.
        inputs: what they are, in words.
    """

    checks: dict[str, LayerCheck]
    original: list[Trace]
    converted: list[Trace]
    reference: list[Trace] | None
    no_float64: str
    inputs: str


def run_both(
    model: nn.Module,
    converted: nn.Module,
    pairs: Mapping[str, tuple[nn.Module, MHSA]],
    inputs: list[Any],
    told: str,
    options: Namespace,
    progress: Phases,
) -> Runs:
    """Run the original, its conversion, and a float64 copy of the original on the same inputs, each from its first state.

    Args:
        model: the original.
        converted: a conversion that has not been run.
        pairs: path → (convolution in ``model``, attention layer in ``converted``).
        inputs: for each call.
        told: what they are.
        options: of the command.
        progress: of the command.

    Raises:
        BadModelFile: a network does not run.
        NotEnoughMemory: there is too little for it.
    """
    if not all(bool(t.isfinite().all()) for t in tree_leaves(inputs) if isinstance(t, Tensor)):
        raise BadModelFile(f"{told}: have numbers that are not finite (give others)")
    exact, no_float64 = _float64_copy(model)
    convolutions = {conv: path for path, (conv, _) in pairs.items()}
    layers: dict[nn.Module, str] = {layer: path for path, (_, layer) in pairs.items()}
    where = f"the network's activations on {told}" + (f" (seed {options.seed})" if options.input_size else "")

    def run(subject: nn.Module, given: list[Any], named: Mapping[nn.Module, str], changed: bool = False) -> Any:
        try:
            return traces(subject, given, named, options.seed)
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:  # whatever a network makes of an input that does not suit it
            if (memory := refused_by_torch(error)) is not None:
                raise memory from error
            raise _does_not_run(error, changed, options) from error

    with evaluating(model, converted, *([exact] if exact else [])), within_room(pairs):
        progress.begin("checking", len(pairs) * len(inputs))
        with comparing(pairs, where, progress.advance) as checks:
            before = run(model, inputs, convolutions)
        progress.begin("running the converted network")
        after = run(converted, inputs, layers, changed=True)
        reference = None
        if exact is not None:
            progress.begin("running in float64")
            try:
                twins = dict(every_module(exact))
                named = {twins[path]: path for path in pairs}
                reference = traces(exact, in_float64(inputs), named, options.seed)
            except (Exception, SystemExit) as error:
                memory = refused_by_torch(error)
                no_float64 = f"the network does not run in float64: {memory or described(error)}"
    return Runs(checks, before, after, reference, no_float64, told)


def _float64_copy(model: nn.Module) -> tuple[nn.Module | None, str]:
    """A copy of a network in float64, which holds each of its numbers exactly; or why there is none."""
    held = sum(8 * t.numel() for t in (*model.parameters(), *model.buffers()))
    try:
        require(held, torch.device("cpu"), "a copy of the network in float64", who="")
        copied = substitute(model, {}).double()
    except Exception as error:  # what a network makes of being copied and cast
        return None, f"the network cannot be had in float64: {described(error)}"
    for _, module in every_module(copied):
        for name, value in vars(module).items():  # tensors that torch does not know of
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(module, name, value.double())
    return copied, ""


def _does_not_run(error: BaseException, changed: bool, options: Namespace) -> BadModelFile:
    name = shown(str(options.model))
    if changed:
        return BadModelFile(
            f"{name}: converted, the network does not run any more: {described(error)} "
            "(its forward may use more of a convolution than a call of it: change that)"
        )
    what, hint = "the example inputs", "a tensor, a tuple of arguments, or a dict of keyword arguments"
    if options.example_inputs is None:
        what = f"an input of size {' '.join(map(str, options.input_size))}"
        hint = "another --input-size, or --example-inputs, or neither: then every layer is checked alone"
    return BadModelFile(f"{name}: the network does not run on {what}: {described(error)} (give {hint})")
