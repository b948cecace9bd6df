"""Runs a network, its conversion and a float64 copy on the same inputs, and records their calls."""

import contextlib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from construct.attention import MHSA
from construct.command.terminal import Phases
from construct.errors import BadModelFile, describe, out_of_memory_error, printable, require
from construct.files.reading import read_inputs
from construct.modules.traversal import every_module
from construct.network import substitute
from verify.samples.network import in_float64, traces
from verify.samples.sampling import LayerCheck, comparing, evaluating
from verify.samples.trace import Trace


def inputs_for(model: nn.Module, options: Namespace) -> tuple[list[Any], str] | None:
    """The inputs of a network, one per call, and their description; None if the command line gives none.

    They are read from a file, or normal, seeded, in the dtype of the network.
    """
    if options.example_inputs is not None:
        return [read_inputs(options.example_inputs)], f"the example inputs in {printable(options.example_inputs)}"
    if options.input_size is None:
        return None
    what = f"{options.samples} random inputs of {'x'.join(map(str, options.input_size))}"
    shape, generator = (1, *options.input_size), torch.Generator().manual_seed(options.seed)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    # All inputs in float32, and for one at a time a copy and, for the bound, two in float64.
    require((4 * options.samples + 20) * prod(shape), torch.device("cpu"), f"a run on {what}", who="")
    x = [torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype) for _ in range(options.samples)]
    return x, what


PER_OUTPUT = 64
"""Bytes for comparing one output of a layer, mostly float64 arrays; measured: 50 to 70."""


@contextlib.contextmanager
def refusing_large_outputs(pairs: Mapping[str, tuple[nn.Module, MHSA]]) -> Iterator[None]:
    """Within the block, check before each convolution runs that its outputs can be compared in memory."""

    def check_memory(path: str, layer: MHSA, conv: nn.Module, args: Any, kwargs: Any) -> None:
        x = args[0] if args else kwargs.get("input")
        if not isinstance(x, Tensor) or x.dim() <= layer.geometry.dims:
            return  # the convolution raises
        size = layer.geometry.output_size(x.shape[-layer.geometry.dims :])
        batch = x.shape[0] if x.dim() == layer.geometry.dims + 2 else 1
        outputs = batch * layer.out_channels * prod(max(0, n) for n in size)
        shape = "x".join(map(str, (layer.out_channels, *size)))
        require(PER_OUTPUT * outputs, x.device, f"comparing an output of {shape}", f"{path or 'the layer'}: ")

    with contextlib.ExitStack() as handles:
        for path, (conv, layer) in pairs.items():
            hook = partial(check_memory, printable(path), layer)
            handles.callback(conv.register_forward_pre_hook(hook, with_kwargs=True, prepend=True).remove)
        yield


class Runs(NamedTuple):
    """The traces of a network, its conversion and a float64 copy, and the check of every layer.

    Attributes:
        checks: path → check of a layer.
        original: trace of the original on each input.
        converted: traces of the conversion.
        reference: traces of the original in float64; None if that does not run.
        no_float64: why it does not run in float64.
        inputs: description of the inputs.
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
    description: str,
    options: Namespace,
    progress: Phases,
) -> Runs:
    """Run the original, its conversion, and a float64 copy of the original on the same inputs, each from its initial state.

    ``pairs`` has path → (convolution in ``model``, attention layer in ``converted``); ``inputs`` are one per call.

    Raises:
        BadModelFile: a network does not run.
        NotEnoughMemory: a run does not fit in memory.
    """
    if not all(bool(t.isfinite().all()) for t in tree_leaves(inputs) if isinstance(t, Tensor)):
        raise BadModelFile(f"{description}: have numbers that are not finite (give others)")
    exact, no_float64 = _float64_copy(model)
    convolutions = {conv: path for path, (conv, _) in pairs.items()}
    layers: dict[nn.Module, str] = {layer: path for path, (_, layer) in pairs.items()}
    where = f"the network's activations on {description}" + (f" (seed {options.seed})" if options.input_size else "")

    def run(network: nn.Module, names: Mapping[nn.Module, str], is_converted: bool = False) -> Any:
        try:
            return traces(network, inputs, names, options.seed)
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:  # a network may raise anything on an input that it does not accept
            if (memory := out_of_memory_error(error)) is not None:
                raise memory from error
            raise _does_not_run(error, is_converted, options) from error

    with evaluating(model, converted, *([exact] if exact else [])), refusing_large_outputs(pairs):
        progress.begin("checking", len(pairs) * len(inputs))
        with comparing(pairs, where, progress.advance) as checks:
            original = run(model, convolutions)
        progress.begin("running the converted network")
        conversion = run(converted, layers, is_converted=True)
        reference = None
        if exact is not None:
            progress.begin("running in float64")
            try:
                copies = dict(every_module(exact))
                names = {copies[path]: path for path in pairs}
                reference = traces(exact, in_float64(inputs), names, options.seed)
            except (Exception, SystemExit) as error:
                memory = out_of_memory_error(error)
                no_float64 = f"the network does not run in float64: {memory or describe(error)}"
    return Runs(checks, original, conversion, reference, no_float64, description)


def _float64_copy(model: nn.Module) -> tuple[nn.Module | None, str]:
    """An exact copy of a network in float64; or None and the reason."""
    size = sum(8 * t.numel() for t in (*model.parameters(), *model.buffers()))
    try:
        require(size, torch.device("cpu"), "a copy of the network in float64", who="")
        copied = substitute(model, {}).double()
    except Exception as error:  # a network may raise anything on copies and casts
        return None, f"the network cannot be had in float64: {describe(error)}"
    for _, module in every_module(copied):
        for name, value in vars(module).items():  # tensors that are not buffers
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(module, name, value.double())
    return copied, ""


def _does_not_run(error: BaseException, is_converted: bool, options: Namespace) -> BadModelFile:
    name = printable(options.model)
    if is_converted:
        what = f"{name}: converted, the network does not run any more: {describe(error)}"
        return BadModelFile(what, "its forward may use more of a convolution than a call of it: change that")
    what, hint = "the example inputs", "a tensor, a tuple of arguments, or a dict of keyword arguments"
    if options.example_inputs is None:
        what = f"an input of size {' '.join(map(str, options.input_size))}"
        hint = "another --input-size, or --example-inputs"
        if options.format not in ("pt2", "onnx"):  # which take an example
            hint += ", or neither: then every layer is checked alone"
    return BadModelFile(f"{name}: the network does not run on {what}: {describe(error)}", f"give {hint}")
