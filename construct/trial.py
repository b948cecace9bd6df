"""A network and its conversion run side by side on generated inputs: the figures of the network as a whole."""

import dataclasses
from argparse import Namespace
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from construct.errors import BadModelFile
from construct.plain_text import described, shown
from construct.table import NetworkRow


def seeded_inputs(model: nn.Module, options: Namespace) -> list[Tensor]:
    """Seeded normal inputs, one a call, in the number format of the network."""
    generator = torch.Generator().manual_seed(options.seed)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    shape = (1, *options.input_size)
    return [torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype) for _ in range(options.samples)]


def outputs_and_calls(
    model: nn.Module, inputs: list[Tensor], calls: ModuleType, options: Namespace
) -> tuple[list[Tensor], int]:
    """What a network returns on all inputs, and how many convolutions it executes on the first."""
    outputs: list[Any] = []
    try:
        counts = calls.convolution_calls(lambda: outputs.append(model(inputs[0])))
        outputs += [model(x) for x in inputs[1:]]
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # whatever a network makes of an input that does not suit it
        size = " ".join(map(str, options.input_size))
        raise BadModelFile(
            f"{shown(str(options.model))}: the network does not run on an input of size {size}: {described(error)} "
            "(give another --input-size, or none: then every layer is checked alone)"
        ) from error
    return list(_tensors(outputs)), sum(count for operator, count in counts.items() if "conv" in operator)


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
    size: tuple[int, ...],
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
    return NetworkRow(size, difference, relative, before[1], after[1], bounds)


def end_to_end(
    propagation: ModuleType,
    networks: tuple[nn.Module, nn.Module],
    inputs: list[Tensor],
    pairs: dict[str, tuple[nn.Module, Any]],
    certificates: dict[str, Any],
) -> tuple[Any, ...]:
    """Two bounds on the network's difference: for these very inputs, and for all inputs no larger."""
    largest = max(float(x.abs().max()) for x in inputs)
    given = propagation.propagate(*networks, inputs, pairs, certificates=certificates)
    worst = propagation.worst_case(
        *networks, tuple(inputs[0].shape[1:]), largest, pairs, certificates=certificates | given.certificates
    )
    return given, worst
