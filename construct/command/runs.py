"""Runs copies of a network, its conversion and a float64 copy on the same inputs."""

import contextlib
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from construct.attention import MHSA
from construct.command.report import Pairs
from construct.command.terminal import Phases
from construct.errors import BadModelFile, describe, out_of_memory_error, printable, require
from construct.modules.traversal import deep_copy, every_module
from construct.network import substitute
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
    copied = deep_copy(layer)
    vars(copied)["forward"] = deep_copy(conv).eval().__call__
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
    if not all(bool(t.isfinite().all()) for t in tree_leaves(inputs) if isinstance(t, Tensor)):
        raise BadModelFile(f"{description}: have numbers that are not finite (give others)")
    runner = _Runner(pairs, inputs, options)
    with evaluating(*(module for pair in pairs.values() for module in pair)):
        progress.begin("checking", len(pairs) * len(inputs))
        copied = substitute(model, {})
        original, checks = runner.checked(copied, description, progress)
        changed = changed_parameter(model, copied, pairs)
        progress.begin("running the converted network")
        conversion = list[Run]()
        standing_in = list[Run]()
        failure = ""
        try:
            copied = substitute(
                converted, {layer: stand_in(layer, conv) for conv, layer in pairs.values()}
            )
            standing_in = runner.run(copied, is_converted=True)
            copied = substitute(converted, {})
            conversion = runner.run(copied, is_converted=True)
            changed = changed or changed_parameter(converted, copied, pairs)
        except BadModelFile as error:
            if not changed:
                raise
            failure = f"; converted, it does not run: {describe(error.__cause__ or error)}"
        calls = compare_calls(
            original, standing_in, conversion, lambda: runner.run(substitute(model, {}))
        )
        if changed:
            what = f"its run changes {printable(changed)}, a parameter of its own (without --input-size, layers are checked alone)"
            calls = replace(calls, difference=what + failure)
        progress.begin("running in float64")
        reference, no_float64 = runner.in_float64(model)
    return Runs(checks, calls, original, conversion, reference, no_float64, description)


@dataclass(frozen=True)
class _Runner:
    """Runs networks in eval mode on the same inputs; they differ in what is told of a network that
    does not run.
    """

    pairs: Pairs
    inputs: list[Any]
    options: Namespace

    def _layers(self, network: nn.Module) -> dict[str, nn.Module]:
        return {path: module for path, module in every_module(network) if path in self.pairs}

    def _run(self, network: nn.Module, inputs: list[Any]) -> list[Run]:
        return runs(network.eval(), inputs, self._layers(network), self.options.seed)

    def checked(
        self, network: nn.Module, description: str, progress: Phases
    ) -> tuple[list[Run], dict[str, LayerCheck]]:
        """Run a copy of the original network, and compare each of its convolutions with its
        attention layer.
        """
        where = f"the network's activations on {description}"
        if self.options.input_size:
            where += f" (seed {self.options.seed})"
        convolutions = self._layers(network)
        limits = {path: (conv, self.pairs[path][1]) for path, conv in convolutions.items()}
        with (
            self._explained(),
            refusing_large_outputs(limits),
            comparing(convolutions, self.pairs, where, progress.advance) as checks,
        ):
            return self._run(network, self.inputs), checks

    def run(self, network: nn.Module, is_converted: bool = False) -> list[Run]:
        """Run a copy of one of the networks."""
        with self._explained(is_converted):
            return self._run(network, self.inputs)

    def in_float64(self, network: nn.Module) -> tuple[list[Run] | None, str]:
        """Run a float64 copy of a network; without runs if that fails, and why."""
        try:
            return self._run(_float64_copy(network), in_float64(self.inputs)), ""
        except (Exception, SystemExit) as error:
            return (
                None,
                f"the network does not run in float64: {out_of_memory_error(error) or describe(error)}",
            )

    @contextlib.contextmanager
    def _explained(self, is_converted: bool = False) -> Iterator[None]:
        """Explain why a network does not run; it may raise anything on an input that it does not
        accept.
        """
        try:
            yield
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            memory = out_of_memory_error(error)
            raise memory or _does_not_run(error, is_converted, self.options) from error


def changed_parameter(before: nn.Module, after: nn.Module, layers: Iterable[str]) -> str:
    """The path of the first parameter, or buffer of one of the ``layers``, that has other bits
    after a run; empty if none has.
    """

    def tensors(network: nn.Module) -> dict[str, Tensor]:
        modules = dict(every_module(network))
        named = [(path, module.named_parameters(recurse=False)) for path, module in modules.items()]
        named += [(path, modules[path].named_buffers()) for path in layers if path in modules]
        return {
            f"{path}.{name}".lstrip("."): t
            for path, own in named
            for name, t in own
            if not is_lazy(t)
        }

    now = tensors(after)
    return next(
        (
            name
            for name, t in tensors(before).items()
            if name not in now or not same_bits(t, now[name])
        ),
        "",
    )


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


def _does_not_run(error: BaseException, is_converted: bool, options: Namespace) -> BadModelFile:
    name = printable(options.model)
    if is_converted:
        what = f"{name}: converted, the network does not run any more: {describe(error)}"
        return BadModelFile(
            what, "its forward may use more of a convolution than a call of it: change that"
        )
    what = "the example inputs"
    hint = "a tensor, a tuple of arguments, or a dict of keyword arguments"
    if options.example_inputs is None:
        what = f"an input of size {' '.join(map(str, options.input_size))}"
        hint = "another --input-size, or --example-inputs"
        if options.format not in ("pt2", "onnx"):  # which take an example
            hint += ", or neither: then every layer is checked alone"
    return BadModelFile(
        f"{name}: the network does not run on {what}: {describe(error)}", f"give {hint}"
    )
