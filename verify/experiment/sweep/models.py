"""Certifies the layers of networks: one task opens a network and lists its layers, and one task
certifies each.

Networks are passed by name: every worker reads the file itself.
"""

import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from construct.errors import BadModelFile, one_line, printable
from construct.files.command_line.architecture import named_module
from construct.files.command_line.load_network import (
    converted_layer,
    inputs_for,
    network_of,
    source_of,
    surveyed,
)
from construct.files.isolation import isolated
from construct.modules.wrappers import unwrapped
from construct.network import Survey
from verify.argument.verdicts import certify_layer, power_of_two_above
from verify.experiment.sweep.random_layers import described, facts_of
from verify.experiment.sweep.results import Row, key_of
from verify.layers.fields import digest
from verify.oracle import Vector, largest
from verify.recheck.strict_input import Record, Rejected, sha256_of
from verify.samples.sampling import (
    called,
    check_call,
    evaluating,
    generated_inputs,
    generated_shape,
    watching,
)

Given = tuple[Vector, float]
"""The largest grid that a layer received, and the power of two above its inputs."""


@dataclass(frozen=True)
class Network:
    """A network to certify: a task that lists its layers.

    Attributes:
        words: a command line of ``construct.from_conv``; for a factory, the first word names it as
            ``--arch`` does.
        options: the words, parsed.
        factory: whether the network comes from a factory alone, with the weights it creates after
            ``torch.manual_seed``.
    """

    words: tuple[str, ...]
    options: Namespace = field(compare=False)
    factory: bool = False

    @property
    def name(self) -> str:
        """The name of the file or factory."""
        return self.words[0]

    @property
    def group(self) -> "Network":
        """The group of its layers."""
        return self

    def run(self) -> Iterator["Row | NetworkLayer"]:
        """A task for each layer, and a row for each convolution that is refused."""
        try:
            with isolated():
                survey, given = _opened(self, self.state())
        except BadModelFile as error:
            yield from self.failed(
                one_line(error.on_command_line.removeprefix(f"{printable(self.name)}: "))
            )
            return
        if not (given or survey.refused):  # nothing certified is not a success
            yield from self.failed("its convolutions are attention layers already")
        for refusal in survey.refused:
            yield self._row(
                refusal.path, verdict="refused", error=one_line(f"{refusal.kind}: {refusal.reason}")
            )
        for path, (grid, bound) in given.items():
            content = digest(survey.convertible[path], ("weight", "bias"))
            yield NetworkLayer(self, path, grid, bound, content)

    def failed(self, why: str) -> list[Row]:
        """The row of a network that could not be opened."""
        return [self._row("", error=why)]

    def state(self) -> Vector:
        """Size and modification time of the file, by which a worker notices changes."""
        if self.factory:
            return ()
        stat = Path(self.name).stat()
        return stat.st_size, stat.st_mtime_ns

    def _row(self, path: str, **facts: Any) -> Row:
        content = ""
        if not self.factory:
            with suppress(OSError, Rejected):
                content = sha256_of(self.name)
        return Row(key_of(*self.words, content, path), self.name, path, digest=content, **facts)


@dataclass(frozen=True)
class NetworkLayer:
    """A task that certifies a layer of a network, on the largest grid that it receives there, for
    inputs up to a bound.

    ``bound`` is the power of two above its inputs, ``digest`` the convolution's.
    """

    network: Network
    path: str
    grid: Vector
    bound: float
    digest: str

    @property
    def group(self) -> Network:
        """The group of all layers of its network."""
        return self.network

    @property
    def key(self) -> str:
        """The primary key of the layer's row."""
        return key_of(*self.network.words, self.path, self.grid, self.bound, self.digest)

    def run(self) -> Iterator[Row]:
        """The row of the layer."""
        with isolated():
            survey, _ = _opened(self.network, self.network.state())
            conv = survey.convertible[self.path]
            if digest(conv, ("weight", "bias")) != self.digest:
                raise ValueError(
                    "the network has changed since its layers were listed (run the sweep again)"
                )
            yield self._judged(conv, self.network.options)

    def _judged(self, conv: Any, options: Namespace) -> Row:
        layer = converted_layer(conv, options)
        start = time.perf_counter()
        x = generated_inputs(conv, options.samples, options.seed, self.grid)
        with evaluating(conv, layer), torch.no_grad():
            check = check_call(conv, layer, x, "generated inputs")
            chosen = options.alpha is not None or options.tolerance is not None
            bound = options.input_bound or max(self.bound, power_of_two_above(check.largest_input))
            certificate, verdict = certify_layer(
                conv, layer, check, bound, within=options.within, leaking=chosen
            )
        facts: Record = {"verdict": verdict.name}
        if certificate is not None:
            facts = facts_of(certificate) | facts
        return Row(
            key=self.key,
            model=self.network.name,
            layer=self.path,
            alpha=float(layer.centres()[0].min()),
            seconds=time.perf_counter() - start,
            error="" if verdict.name == "PROVED" else one_line(verdict.sentence),
            **described(conv, check.grid),
            **facts,
        )

    def failed(self, why: str) -> list[Row]:
        """The row of a layer whose task did not return."""
        return [Row(self.key, self.network.name, self.path, error=why)]


@lru_cache(maxsize=1)
def _opened(network: Network, state: Vector) -> tuple[Survey, dict[str, Given]]:
    """The convolutions of a network in this state, and the inputs (``Given``) of those that can be
    converted.

    Raises:
        BadModelFile: it cannot be read, has no convolution, or does not run on the named inputs.
    """
    options = network.options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        if network.factory:
            model = named_module(network.name)
        else:
            model = network_of(source_of(options), options)
    model, _ = unwrapped(model)
    for module in model.modules():  # in training, to read a parametrized weight may change it
        module.training = False
    survey = surveyed(model, network.name)
    return survey, _given(model, survey, options)


def _given(model: nn.Module, survey: Survey, options: Namespace) -> dict[str, Given]:
    """The inputs of the layers in a run of the network; generated ones for layers not called, or
    for all without inputs.
    """
    given: dict[str, Given] = {}
    inputs = inputs_for(model, options)
    if inputs is not None:

        def note(path: str, x: torch.Tensor) -> None:
            dims = survey.convertible[path].weight.dim() - 2  # type: ignore[operator]
            grid, bound = given.get(path, ((0,) * dims, 0.0))
            given[path] = (
                tuple(map(max, grid, x.shape[-dims:])),
                max(bound, power_of_two_above(largest(x))),
            )

        try:
            with evaluating(model), torch.no_grad(), watching(survey.convertible, note):
                for x in inputs[0]:
                    called(model, x)
        except Exception as error:  # a network may raise anything on an unsuitable input
            raise BadModelFile(
                f"the network does not run on {inputs[1]}: {type(error).__name__}: {error}"
            ) from error
    return {
        path: given.get(path, (generated_shape(conv, 1)[2:], 0.0))
        for path, conv in survey.convertible.items()
    }
