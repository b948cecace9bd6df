"""What ``python -m benchmarks`` measures: layers beside the convolution that they equal, each row
with its goal.
"""

import statistics
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import construct
from benchmarks.compare import KINDS, measured, ratio
from benchmarks.results import Row, machine
from benchmarks.shapes import NETWORKS, SIDES, Layer, square
from benchmarks.timing import (
    CPU,
    FORMATS,
    Call,
    Layers,
    both,
    forward,
    medians,
    one_kernel,
    timed_once,
)

GOALS: dict[str, dict[str, float]] = {
    "ResNet-50": {"forward": 1.15, "both": 1.15},
    "MobileNetV2": {"forward": 1.2, "both": 1.4},
    "ConvNeXt-T": {"forward": 2.8, "both": 1.35},
    "3-D": {"forward": 1.65, "both": 1.65},
    "1-D": {"forward": 1.45, "both": 1.45},
    "decoder": {},
}
"""For each network, the most that its attention may take: times torch's convolutions."""
RESNET_50_ON_EPYC = {"forward": 0.95, "both": 0.95}
"""The goals of ResNet-50 on an EPYC with AVX-512."""
SINGLE_GOALS = {1: 1.55, 2: 1.8}
"""The goal of 64 → 64, 3 × 3, at every side, for each number of threads."""
ON_A_GPU = {"forward": 3.0, "both": 3.0, "graph": 1.5}
"""The goals of ResNet-50, times cuDNN at equal precision."""
SINGLE_ON_A_GPU = {"forward": 2.0, "both": 2.0}
"""The goals of 64 → 64, 3 × 3, from side 56 on."""
MOST_MIB, MOST_FIRST = 10, 2
"""The goals of memory beyond input and output, and of the first call at a new size: times a later
one.
"""
MOST_LEARNING, MOST_BESIDE_TORCHS = 40, 1.3
"""The goals of a layer with added heads: times its convolution, and times torch's attention."""
SINGLE = [f"64→64 at {side}" for side in SIDES]


def ratios(
    what: str, names: list[str], goals: dict[str, float], rounds: int, device: torch.device = CPU
) -> list[Row]:
    """For each kind of call, a row with the ratio of each of these networks."""
    sides = [Layers(NETWORKS, convert, device) for convert in (False, True)]
    rows: dict[str, Row] = {}
    for name in names:
        for kind, (theirs, ours) in measured(sides, name, rounds).items():
            middle, *around = ratio(theirs, ours)
            times = tuple(1e3 * statistics.median(each) for each in (theirs, ours))
            row = rows.get(kind, Row(f"{what}, {KINDS[kind]}", (), goals.get(kind)))
            rows[kind] = replace(
                row,
                values=(*row.values, middle),
                quartiles=(*row.quartiles, tuple(around)),
                milliseconds=(*row.milliseconds, times),
            )
    return [*rows.values()]


def networks(rounds: int) -> Iterator[Row]:
    """The convolutions of whole networks, one thread."""
    where = machine(CPU)
    for name, goals in GOALS.items():
        if name == "ResNet-50" and "EPYC" in where and "AVX512" in where:
            goals = RESNET_50_ON_EPYC
        yield from ratios(name, [name], goals, rounds)


def single(rounds: int, threads: int = 1) -> Iterator[Row]:
    """64 → 64, 3 × 3."""
    torch.set_num_threads(threads)
    goal = SINGLE_GOALS[threads]
    yield from ratios(
        f"{single_at(SIDES)}, threads: {threads}", SINGLE, {"forward": goal, "both": goal}, rounds
    )
    torch.set_num_threads(1)


def single_at(sides: tuple[int, ...]) -> str:
    """The name of a row."""
    return f"64→64, 3×3, at {', '.join(map(str, sides))}"


def memory(rounds: int) -> Iterator[Row]:
    """The layer that needs the most memory beyond input and output, and with gradients beyond
    these, too.
    """
    with profile(profile_memory=True):  # it expects to be first used in this thread
        pass
    most: dict[str, dict[str, float]] = {"forward": {}, "both": {}}
    for name, conv, size in every_layer():
        layer = construct.conv_to_mhsa(conv)
        one_kernel(layer)
        for form in (torch.contiguous_format, FORMATS.get(len(size), torch.contiguous_format)):
            x = torch.randn(size).contiguous(memory_format=form)
            for kind, make in (("forward", forward), ("both", both)):
                mib = beyond(make(layer, x), layer(x).nbytes)
                most[kind][name] = max(most[kind].get(name, 0.0), mib)
    for kind, mib in most.items():
        yield worst(
            f"MiB beyond input and output, {KINDS[kind]}, most of {len(mib)} layers", mib, MOST_MIB
        )


def beyond(call: Call, output: int) -> float:
    """MiB that a call allocates beyond its output and its gradients, with the buffers that a thread
    keeps.
    """
    result: Any = call()
    given = output if isinstance(result, Tensor) else 2 * output + sum(t.nbytes for t in result)
    peaks: list[int] = []

    def recorded() -> None:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            call()
        results: Any = record.profiler
        held = peak = 0
        for event in sorted(results.kineto_results.events(), key=lambda event: event.start_ns()):
            if event.name() == "[memory]":
                held += event.nbytes()
                peak = max(peak, held)
        peaks.append(peak)

    thread = threading.Thread(target=recorded)  # a new thread keeps no buffers yet
    thread.start()
    thread.join()
    return (peaks[0] - given) / 2**20


def first(rounds: int) -> Iterator[Row]:
    """How much longer the first call at a new size takes than later ones."""
    times = {}
    theirs = []
    for name, conv, size in every_layer():
        times[name] = first_call(construct.conv_to_mhsa(conv).requires_grad_(False), size)
        theirs.append(first_call(conv, size))
    yield worst(
        f"first call at a new size / a later one, most of {len(times)} layers", times, MOST_FIRST
    )
    yield Row("the same, median of the layers", (statistics.median(times.values()),), MOST_FIRST)
    yield Row("the same of torch's convolutions", (statistics.median(theirs),))
    yield Row(
        "layers whose first call takes longer", (sum(time > MOST_FIRST for time in times.values()),)
    )


def first_call(layer: nn.Module, size: tuple[int, ...]) -> float:
    """The time of the first call relative to later ones, the median over five new sizes."""
    times = []
    forward(layer, torch.randn(size))()
    for more in range(1, 6):
        call = forward(layer, torch.randn(*size[:2], *(n + more for n in size[2:])))
        initial, *later = [timed_once(call) for _ in range(6)]
        times.append(initial / statistics.median(later))
    return statistics.median(times)


def dense(rounds: int) -> Iterator[Row]:
    """64 → 64, 3 × 3, evaluated as Eq. 3 stands, and with heads that are not one-hot."""
    conv, size = square(nn.Conv2d(64, 64, 3, padding=1), 32)
    soft = construct.conv_to_mhsa(conv, alpha=1.0).requires_grad_(False)
    soft.v[:, 1:] += 0.4 * torch.rand_like(soft.v[:, 1:])
    x = torch.randn(size)
    layers = [conv, construct.conv_to_mhsa(conv, execution="dense"), soft]
    theirs, *ours = medians(*(forward(layer, x) for layer in layers), rounds=rounds)
    for what, time in zip(
        ("evaluated densely, as in Eq. 3", "soft heads (α = 1)"), ours, strict=True
    ):
        yield Row(
            f"64→64, 3×3, at 32, {what}",
            (time / theirs,),
            milliseconds=((1e3 * theirs, 1e3 * time),),
        )


def every_layer() -> Iterator[tuple[str, nn.Module, tuple[int, ...]]]:
    """Every distinct convolution of all networks, with its name and the size of its input."""
    layers: dict[str, Layer] = {}
    for make in NETWORKS.values():
        layers |= {named(conv, size): (conv, size) for conv, size in make()}
    for name, (conv, size) in layers.items():
        yield name, conv, size


class SelfAttention(nn.Module):
    """torch's own attention of four heads, of which each has this width, from the same queries over
    the same keys: those of a 3 × 3 layer, with the padding tokens.
    """

    def __init__(self, width: int):
        super().__init__()
        self.ask = nn.Linear(64, 4 * width, bias=False)
        self.attention = nn.MultiheadAttention(4 * width, 4, kdim=64, vdim=64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, 64, H, W) → (B, H · W, 4 · width)."""
        keys = nn.functional.pad(x, (1, 1, 1, 1)).flatten(2).mT
        asked = self.ask(x.flatten(2).mT)
        return self.attention(asked, keys, keys, need_weights=False)[0]


def learning(rounds: int) -> Iterator[Row]:
    """64 → 64, 3 × 3, with four added heads that learn (``construct.learn``), beside the
    convolution and beside torch's attention.
    """
    conv, x = nn.Conv2d(64, 64, 3, padding=1), torch.randn(2, 64, 28, 28)
    learned = construct.conv_to_mhsa(conv)
    construct.learn(learned)
    modules = conv, SelfAttention(16), SelfAttention(64), learned
    *others, ours = medians(*(both(module, x) for module in modules), rounds=rounds)
    what = "64→64, 3×3, at 28, four added heads, forward and backward"
    yield Row(f"{what}, times the convolution", (ours / others[0],), MOST_LEARNING)
    for width, time in zip((16, 64), others[1:], strict=True):
        beside = f"nn.MultiheadAttention, 4 heads of {width}"
        yield Row(f"{what}, times {beside}", (ours / time,), MOST_BESIDE_TORCHS)


def named(conv: Any, size: tuple[int, ...]) -> str:
    """A convolution in a few characters."""
    kernel, stride = ("×".join(map(str, numbers)) for numbers in (conv.kernel_size, conv.stride))
    parts = [f"{conv.in_channels}→{conv.out_channels} {kernel}"]
    parts += [f"stride {stride}"] if set(conv.stride) != {1} else []
    parts += [f"dilation {conv.dilation[0]}"] if set(conv.dilation) != {1} else []
    parts += ["depthwise"] if conv.groups == conv.in_channels > 1 else []
    parts += ["transposed"] if conv.transposed else []
    return f"{' '.join(parts)} at {'×'.join(map(str, size[2:]))}"


def worst(what: str, values: dict[str, float], goal: float) -> Row:
    """The largest value, with the name of its layer."""
    name = max(values, key=values.__getitem__)
    return Row(f"{what} ({name})", (values[name],), goal)


PARTS: dict[str, Callable[[int], Iterator[Row]]] = {
    "networks": networks,
    "single": single,
    "two-threads": partial(single, threads=2),
    "memory": memory,
    "first": first,
    "learning": learning,
    "dense": dense,
}
"""What is measured on a CPU."""


def on_a_gpu(rounds: int, device: torch.device) -> Iterator[Row]:
    """All networks and single layers beside cuDNN, at equal precision; goals are for IEEE float32."""
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        precision = "TF32 allowed" if tf32 else "IEEE float32"
        for name in GOALS:
            goals = ON_A_GPU if name == "ResNet-50" and not tf32 else {}
            yield from ratios(f"{name}, {precision}", [name], goals, rounds, device)
        for names, goals in ((SIDES[:2], {}), (SIDES[2:], {} if tf32 else SINGLE_ON_A_GPU)):
            chosen = [f"64→64 at {side}" for side in names]
            yield from ratios(f"{single_at(names)}, {precision}", chosen, goals, rounds, device)
