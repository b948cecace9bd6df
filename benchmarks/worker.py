"""A process that times, on request, the layers of a network with the ``construct`` that it imports.

:mod:`benchmarks.compare` runs it as a file and not as a module: then ``construct`` comes from the
tree on PYTHONPATH, and the layers and the clock from this file's folder.  Each way, it exchanges one JSON object per line.
"""

import copy
import json
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from shapes import NETWORKS  # from this file's folder
from torch import Tensor, nn

import construct

AT_LEAST = 2e-3
"""The least seconds of a measurement: shorter calls are repeated."""
FORMS = {4: torch.channels_last, 5: torch.channels_last_3d}


def calls_of(conv: nn.Module, size: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    """By name, a call for each memory layout, forward alone and with gradients, as in training a convolution."""
    torch.manual_seed(0)
    network = construct.convert(conv) if isinstance(conv, nn.Sequential) else construct.conv_to_mhsa(conv)
    for layer in network.modules():
        if isinstance(layer, construct.MHSA):  # one kernel is trained, not the identity
            (layer.w_val if layer.out_channels > layer.in_channels else layer.w_out).requires_grad_(False)
    x, calls = torch.randn(size), {}
    for name, form in (("first", torch.contiguous_format), ("last", FORMS.get(x.dim()))):
        if form is not None:
            given = x.contiguous(memory_format=form)
            calls[f"{name} forward"] = forward(network, given)
            calls[f"{name} both"] = both(network, given.clone(memory_format=torch.preserve_format))
    return calls


def forward(network: nn.Module, x: Tensor) -> Callable[[], object]:
    """A forward without gradients."""

    def call() -> object:
        with torch.no_grad():
            return network(x)

    return call


def both(network: nn.Module, x: Tensor) -> Callable[[], object]:
    """Forward and backward."""
    learned = [x.requires_grad_(), *(p for p in network.parameters() if p.requires_grad)]

    def call() -> object:
        y = network(x)
        return torch.autograd.grad(y, learned, torch.ones_like(y))

    return call


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call: processor time if one thread does the work."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    repeat, spent = 1, 0.0
    while True:
        started = clock()
        for _ in range(repeat):
            call()
        spent = clock() - started
        if spent >= AT_LEAST / 2 or repeat >= 1000:
            return spent / repeat
        repeat = max(2 * repeat, min(1000, int(AT_LEAST / max(spent / repeat, 1e-7))))


def main() -> None:
    """Answer until there are no more questions."""
    calls: dict[str, Callable[[], object]] = {}
    layers_of = lru_cache(lambda name: [*NETWORKS[name]()])
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        answer: object = None
        if "threads" in asked:
            torch.set_num_threads(asked["threads"])
        if "layer" in asked:
            network, number = asked["layer"]
            conv, size = layers_of(network)[number]
            calls = calls_of(copy.deepcopy(conv), size)
            answer = [*calls]
        if "call" in asked:
            answer = timed(calls[asked["call"]])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
