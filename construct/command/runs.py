"""Runs copies of a network, its conversion and a float64 copy on the same inputs."""

import contextlib
from argparse import Namespace
from collections.abc import Container, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from construct.attention import MHSA
from construct.command.report import Pairs
from construct.command.terminal import Phases
from construct.errors import BadModelFile, describe, out_of_memory_error, printable, require
from construct.modules.traversal import every_module, joined, substitute
from verify.samples.comparison import same_bits
from verify.samples.network import CallComparison, Run, compare_calls, in_float64, runs
from verify.samples.sampling import LayerCheck, comparing, evaluating

PER_OUTPUT = 64
"""Bytes for comparing one output of a layer, mostly float64 arrays; measured: 50 to 70."""


@contextlib.contextmanager
def refusing_large_outputs(pairs: Pairs) -> Iterator[None]:
    """Within the block, check before each convolution runs that its outputs can be compared in
    memory.
    """

    def check_memory(path: str, layer: MHSA, conv: nn.Module, args: Any, kwargs: Any) -> None:
        x, *_ = (*args, kwargs.get("input"))
        dims = layer.geometry.dims
        if not isinstance(x, Tensor) or x.dim() <= dims:
            return  # the convolution raises
        size = layer.geometry.output_size(x.shape[-dims:])
        batch = prod(x.shape[: -dims - 1])  # 1 for an unbatched input
        outputs = batch * layer.out_channels * prod(max(0, n) for n in size)
        shape = "x".join(map(str, (layer.out_channels, *size)))
        require(
            PER_OUTPUT * outputs,
            x.device,
            f"comparing an output of {shape}",
            f"{path or 'the layer'}: ",
        )

    with contextlib.ExitStack() as handles:
        for path, (conv, layer) in pairs.items():
            hook = partial(check_memory, printable(path), layer)
            handles.callback(
                conv.register_forward_pre_hook(hook, with_kwargs=True, prepend=True).remove
            )
        yield


def stand_in(layer: MHSA, conv: nn.Module) -> nn.Module:
    """A copy of an attention layer that computes its convolution; that is not among its modules, as
    a network may count these.
    """
    copied = substitute(layer, {})
    vars(copied)["forward"] = substitute(conv, {}).eval().__call__
    return copied


class Runs(NamedTuple):
    """The runs of a network, its conversion and a float64 copy, and what they show.

    Attributes:
        checks: path → check of a layer.
        calls: the comparison of the original with the converted network.
        original: runs of the original, one on each input.
        converted: runs of the conversion; none if it does not run, where ``calls`` has another
            difference already.
        reference: runs of the original in float64; None if that does not run.
        no_float64: why it does not run in float64.
        inputs: description of the inputs.
    """

    checks: dict[str, LayerCheck]
    calls: CallComparison
    original: list[Run]
    converted: list[Run]
    reference: list[Run] | None
    no_float64: str
    inputs: str


def run_both(
    model: nn.Module,
    converted: nn.Module,
    pairs: Pairs,
    inputs: list[Any],
    description: str,
    options: Namespace,
    progress: Phases,
) -> Runs:
    """Run the original, its conversion, with stand-ins and as it is, and the original in float64,
    all on the same inputs.

    Copies of the networks run, each from the initial state, so that no run changes what is
    certified or written. ``pairs`` has path → (convolution in ``model``, attention layer in
    ``converted``); ``inputs`` are one per call.

    Raises:
        BadModelFile: a network does not run.
        NotEnoughMemory: a run does not fit in memory.
    """
    where = f"the network's activations on {description}"
    if options.input_size:
        where += f" (seed {options.seed})"
    refused = _inputs_refused(options)

    def run(network: nn.Module, inputs: list[Any] = inputs) -> list[Run]:
        return runs(network.eval(), inputs, _modules_at(pairs, network), options.seed)

    @_explained(*refused)
    def run_again() -> list[Run]:
        return run(substitute(model, {}))

    with evaluating(*chain(*pairs.values())):
        progress.begin("checking", len(pairs) * len(inputs))
        copied = substitute(model, {})
        convolutions = _modules_at(pairs, copied)
        limits = {path: (conv, pairs[path][1]) for path, conv in convolutions.items()}
        with (
            _explained(*refused),
            refusing_large_outputs(limits),
            comparing(convolutions, pairs, where, progress.advance) as checks,
        ):
            original = run(copied)
        changes = _changes(model, copied, pairs)
        progress.begin("running the converted network")
        standing_in = conversion = list[Run]()
        try:
            with _explained(f"{printable(options.model)}: {NOT_CONVERTED}", MORE_THAN_A_CALL):
                copied = substitute(
                    converted, {layer: stand_in(layer, conv) for conv, layer in pairs.values()}
                )
                standing_in = run(copied)
                copied = substitute(converted, {})
                conversion = run(copied)
            changes = changes or _changes(converted, copied, pairs)
        except BadModelFile as error:
            if not changes:
                raise
            changes += f"; converted, it does not run: {describe(error.__cause__ or error)}"
        calls = compare_calls(original, standing_in, conversion, run_again)
        if changes:
            calls = replace(calls, difference=changes)
        progress.begin("running in float64")
        reference = None
        no_float64 = ""
        try:
            reference = run(_float64_copy(model), in_float64(inputs))
        except (Exception, SystemExit) as error:
            reason = out_of_memory_error(error) or describe(error)
            no_float64 = f"the network does not run in float64: {reason}"
    return Runs(checks, calls, original, conversion, reference, no_float64, description)


NOT_CONVERTED = "converted, the network does not run any more"
MORE_THAN_A_CALL = "its forward may use more of a convolution than a call of it: change that"


def _modules_at(paths: Container[str], network: nn.Module) -> dict[str, nn.Module]:
    return {path: module for path, module in every_module(network) if path in paths}


@contextlib.contextmanager
def _explained(what: str, remedy: str) -> Iterator[None]:
    """Explain why a network does not run; it may raise anything on an input that it does not
    accept.
    """
    try:
        yield
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        memory = out_of_memory_error(error)
        raise memory or BadModelFile(f"{what}: {describe(error)}", remedy) from error


def _inputs_refused(options: Namespace) -> tuple[str, str]:
    """That a network does not run on the inputs of the command line, and which others to give."""
    what = "the example inputs"
    hint = "a tensor, a tuple of arguments, or a dict of keyword arguments"
    if options.example_inputs is None:
        what = f"an input of size {' '.join(map(str, options.input_size))}"
        hint = "another --input-size, or --example-inputs"
        if options.format not in ("pt2", "onnx"):  # which take an example
            hint += ", or neither: then every layer is checked alone"
    return f"{printable(options.model)}: the network does not run on {what}", f"give {hint}"


def _changes(before: nn.Module, after: nn.Module, layers: Container[str]) -> str:
    """The first parameter, or buffer of one of the ``layers``, that has other bits after a run, in
    one clause; empty if none has.
    """

    def tensors(network: nn.Module) -> dict[str, Tensor]:
        named = dict[str, Tensor]()
        for path, module in every_module(network):
            own = list[tuple[str, Tensor]](module.named_parameters(recurse=False))
            if path in layers:
                own += module.named_buffers()
            named |= {joined(path, name): t for name, t in own if not is_lazy(t)}
        return named

    now = tensors(after)
    for name, tensor in tensors(before).items():
        if name not in now or not same_bits(tensor, now[name]):
            alone = "without --input-size, layers are checked alone"
            return f"its run changes {printable(name)}, a parameter of its own ({alone})"
    return ""


def _float64_copy(model: nn.Module) -> nn.Module:
    """An exact copy of a network in float64."""
    size = sum(8 * t.numel() for t in (*model.parameters(), *model.buffers()))
    require(size, torch.device("cpu"), "a copy of the network in float64", who="")
    copied = substitute(model, {}).double()
    for _, module in every_module(copied):
        for name, value in vars(module).items():  # tensors that are not buffers
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(module, name, value.double())
    return copied
