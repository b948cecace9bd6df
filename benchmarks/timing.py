"""Times calls that take turns, so that a slowdown of the machine affects all of them alike.

``benchmarks/worker.py`` reads this file with the ``construct`` of another tree: it imports nothing
else of this folder.
"""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

import construct

Call = Callable[[], object]
CPU = torch.device("cpu")
AT_LEAST = 1e-3
"""The least seconds of a measurement: shorter calls are repeated."""
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def timed(call: Call, device: torch.device = CPU) -> float:
    """Seconds of one call: processor time if one thread of a processor does the work, else
    wall-clock time.
    """
    repeat = 1
    while True:
        spent = timed_once(call, device, repeat)
        if spent >= AT_LEAST or repeat >= 1000:
            return spent / repeat
        repeat = min(1000, max(2 * repeat, int(2 * AT_LEAST * repeat / max(spent, 1e-7))))


def timed_once(call: Call, device: torch.device = CPU, repeat: int = 1) -> float:
    """Seconds of as many calls, which are not repeated further."""
    clock = (
        time.process_time if device == CPU and torch.get_num_threads() == 1 else time.perf_counter
    )
    wait(device)
    started = clock()
    for _ in range(repeat):
        call()
    wait(device)
    return clock() - started


def wait(device: torch.device) -> None:
    """Wait until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def medians(*calls: Call, rounds: int = 9) -> list[float]:
    """Median seconds of calls that take turns; a first round is not counted."""
    turns = [[timed(call) for call in calls] for _ in range(rounds + 1)]
    return [statistics.median(times) for times in zip(*turns[1:], strict=True)]


def quartiles(numbers: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile."""
    first, _, third = (
        statistics.quantiles(numbers, n=4, method="inclusive")
        if len(numbers) > 1
        else (*numbers,) * 3
    )
    return first, third


class Layers:
    """The convolutions of networks, or the attention that they become, timed by name.

    Args:
        networks: by name, the convolutions and the sizes of their inputs.
        convert: whether they become attention.
        device: where they run.
    """

    def __init__(
        self,
        networks: Mapping[str, Callable[[], Iterator[tuple[Any, tuple[int, ...]]]]],
        convert: bool,
        device: torch.device = CPU,
    ):
        self.layers_of = lru_cache(lambda name: [*networks[name]()])
        self.convert, self.device = convert, device
        self.calls: dict[str, Call] = {}

    def prepare(self, network: str, number: int) -> list[str]:
        """Prepare the calls of one layer, and return their names: a memory layout, and what is
        done.
        """
        conv, size = self.layers_of(network)[number]
        module = copy.deepcopy(conv).to(self.device)
        if self.convert:
            module = construct.conv_to_mhsa(module)
            one_kernel(module)
        torch.manual_seed(0)
        x = torch.randn(size, device=self.device)
        self.calls = {}
        for name, form in (("first", torch.contiguous_format), ("last", FORMATS.get(x.dim()))):
            if form is None:
                continue
            if not self.convert:
                module = copy.deepcopy(module).to(memory_format=form)  # type: ignore[call-overload]
            given = x.contiguous(memory_format=form)
            self.calls[f"{name} forward"] = forward(module, given)
            self.calls[f"{name} both"] = both(
                module, given.clone(memory_format=torch.preserve_format)
            )
            if self.device.type == "cuda":
                self.calls[f"{name} graph"] = captured(forward(module, given))
        return [*self.calls]

    def seconds(self, call: str) -> float:
        """Seconds of one of the prepared calls."""
        return timed(self.calls[call], self.device)


def one_kernel(layer: construct.MHSA) -> None:
    """Train what a convolution trains, one kernel: freeze the factor that is the identity."""
    wide = layer.out_channels > layer.in_channels
    (layer.w_val if wide else layer.w_out).requires_grad_(False)


def forward(module: nn.Module, x: Tensor) -> Call:
    """A forward without gradients."""

    def call() -> object:
        with torch.no_grad():
            return module(x)

    return call


def both(module: nn.Module, x: Tensor) -> Call:
    """Forward and backward."""
    learned = [x.requires_grad_(), *(p for p in module.parameters() if p.requires_grad)]

    def call() -> object:
        y = module(x)
        return torch.autograd.grad(y, learned, torch.ones_like(y))

    return call


def captured(call: Call) -> Call:
    """The replay of a call as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # libraries initialise themselves in their first calls, which cannot be captured
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
