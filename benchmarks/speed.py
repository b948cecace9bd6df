"""The constructed attention against the convolution that it equals: time and memory, as ratios.

    python -m benchmarks.speed [single] [resnet50] [network] [mobilenet] [convnext] [training] [memory] [growth] [soft] [content]

One thread (``--threads``) and its processor time, ``--device cpu`` or ``cuda``.  Each pair is timed alternately in one process;
a ratio is that of the medians, against the faster of torch's two memory layouts.  Nothing here is asserted: targets are printed
beside what was seen.
"""

import argparse
import copy
import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import construct
from benchmarks.shapes import convnext_tiny_layers, mobilenet_v2_layers, resnet50, resnet50_layers

Call = Callable[[], object]
ROUNDS = 9
CHANNELS_LAST = torch.channels_last


def medians(device: torch.device, *calls: Call, rounds: int = ROUNDS) -> list[float]:
    """Seconds of each call, the median of several rounds, all calls in turn in each round."""
    clock = time.process_time if torch.get_num_threads() == 1 and device.type == "cpu" else time.perf_counter
    times: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + 2):
        for call, seen in zip(calls, times, strict=True):
            repeat = 1 if not seen else max(1, min(20, int(2e-3 / max(seen[-1], 1e-6))))
            wait(device)
            started = clock()
            for _ in range(repeat):
                call()
            wait(device)
            seen.append((clock() - started) / repeat)
            if number == 1:
                del seen[:]  # warmed up
    return [statistics.median(seen) for seen in times]


def wait(device: torch.device) -> None:
    """Until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def pair(
    conv: nn.Conv2d, side: int, device: torch.device, train: bool = False, compiled: bool = False
) -> tuple[float, float]:
    """Seconds of the convolution, in its faster layout, and of the layer, in its own faster layout."""
    conv = copy.deepcopy(conv)
    conv.to(device=device)
    layer = construct.conv_to_mhsa(conv)
    x = torch.randn(1, conv.in_channels, side, side, device=device)
    last = x.contiguous(memory_format=CHANNELS_LAST)
    conv_last = copy.deepcopy(conv)
    conv_last.to(memory_format=CHANNELS_LAST)  # type: ignore[call-overload]
    run: Any = torch.compile(layer) if compiled else layer

    def call(module: Any, given: torch.Tensor) -> Call:
        def forward() -> object:
            with torch.no_grad():
                return module(given)

        def both() -> object:
            given.requires_grad_()
            y = module(given)
            return torch.autograd.grad(
                y, [given, *(p for p in module.parameters() if p.requires_grad)], torch.ones_like(y)
            )

        return both if train else forward

    if train:
        layer.w_out.requires_grad_(False)  # what a convolution trains is one kernel: the identity stays as it is
        if conv.out_channels > conv.in_channels:
            layer.w_out.requires_grad_()
            layer.w_val.requires_grad_(False)
    a, b, c, d = medians(device, call(conv, x), call(conv_last, last), call(run, x), call(run, last))
    return min(a, b), min(c, d)


def table(title: str, rows: Iterable[tuple[str, nn.Conv2d, int]], device: torch.device, **options: bool) -> float:
    """Print a row a layer (each shape once) and the ratio of the sums; returns that."""
    print(f"\n{title}")
    seen: dict[str, tuple[float, float]] = {}
    total = [0.0, 0.0]
    worst = ("", 0.0)
    for _, conv, side in rows:
        shape = f"{conv.in_channels}->{conv.out_channels} {conv.kernel_size[0]}x{conv.kernel_size[1]} s{conv.stride[0]}"
        shape += f" g{conv.groups} at {side}"
        if shape not in seen:
            seen[shape] = pair(conv, side, device, **options)
            ours, theirs = seen[shape][1], seen[shape][0]
            print(
                f"  {shape:34s} convolution {theirs * 1e3:8.3f} ms   attention {ours * 1e3:8.3f} ms   {ours / theirs:5.2f}"
            )
            if ours / theirs > worst[1]:
                worst = (shape, ours / theirs)
        total = [total[0] + seen[shape][0], total[1] + seen[shape][1]]
    print(f"  by time: {total[1] / total[0]:.2f}; worst layer {worst[1]:.2f} ({worst[0]})")
    return total[1] / total[0]


def single(device: torch.device) -> None:
    """64 → 64, 3 × 3."""
    sides = (16, 32, 56, 112, 224)
    rows = [("", nn.Conv2d(64, 64, 3, padding=1), side) for side in sides]
    table("64->64 3x3, forward (target: at most 1.35 each)", rows, device)
    ratios = [ours / theirs for theirs, ours in (pair(conv, side, device) for _, conv, side in rows)]
    print(f"  geometric mean of another run: {math.prod(ratios) ** (1 / len(ratios)):.2f} (target 1.25)")


def network(device: torch.device) -> None:
    """ResNet-50 as a whole."""
    net = resnet50()
    net.to(device=device)
    converted = construct.convert(net)
    x = torch.randn(1, 3, 224, 224, device=device)
    last = x.contiguous(memory_format=CHANNELS_LAST)
    net_last = copy.deepcopy(net)
    net_last.to(memory_format=CHANNELS_LAST)  # type: ignore[call-overload]
    with torch.no_grad():
        difference = (net(x) - converted(x)).abs().max().item() / net(x).abs().max().item()
        a, b, c, d = medians(
            device, lambda: net(x), lambda: net_last(last), lambda: converted(x), lambda: converted(last)
        )
    print("\nResNet-50, whole forward at 224 (target: at most 1.0)")
    print(
        f"  convolutions {a * 1e3:.0f} ms, channels last {b * 1e3:.0f} ms; attention {c * 1e3:.0f} ms, {d * 1e3:.0f} ms;",
        end="",
    )
    print(f" ratio {min(c, d) / min(a, b):.2f}; relative difference {difference:.1e}")


def memory(device: torch.device) -> None:
    """Beyond input and output."""
    conv = nn.Conv2d(64, 64, 3, padding=1)
    layer = construct.conv_to_mhsa(conv)
    x = torch.randn(1, 64, 224, 224).contiguous(memory_format=CHANNELS_LAST)
    with torch.no_grad():
        layer(x)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            y = layer(x)
    assert record.profiler is not None
    assert record.profiler.kineto_results is not None
    events: list[Any] = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    print(f"\nmemory beyond input and output, 64->64 3x3 at 224: {(peak - 4 * y.numel()) / 2**20:.1f} MiB (target 6)")


def growth(device: torch.device) -> None:
    """Exponent of time in the number of tokens."""
    sides = (28, 56, 112, 224)
    times = [pair(nn.Conv2d(64, 64, 3, padding=1), side, device)[1] for side in sides]
    logs = [2 * math.log(side) for side in sides]
    slope = statistics.linear_regression(logs, [math.log(t) for t in times]).slope
    print(f"\ntime grows with tokens to the power {slope:.2f} (target 1.05)")


def soft(device: torch.device) -> None:
    """Attention at α = 1, off the lattice, against ``dense``."""
    print("\nsoft attention (alpha = 1, off the lattice), 64->64 3x3, against dense")
    for side, target in ((16, 12), (32, 45), (64, 200)):
        layer = construct.conv_to_mhsa(nn.Conv2d(64, 64, 3, padding=1), alpha=1.0).to(device).requires_grad_(False)
        layer.v[:, 1:] += 0.4 * torch.rand_like(layer.v[:, 1:])
        x = torch.randn(1, 64, side, side, device=device)
        seconds = []
        for layer.execution in ("axial", "dense"):
            seconds += medians(device, lambda layer=layer, x=x: layer(x), rounds=3 if side > 32 else ROUNDS)
        layer.execution = "axial"
        found = layer(x)
        exact = construct.MHSA(layer.geometry, _double(layer), execution="dense").to(device)(x.double())
        error = (found - exact).abs().max().item()
        print(
            f"  side {side}: {seconds[1] / seconds[0]:.0f} times faster (target {target}), error {error:.1e} (target 1e-5)"
        )


def content(device: torch.device) -> None:
    """Attention with content switched on, which does not factorise: ``dense``, ``chunked`` and ``sdpa``."""
    print("\ncontent switched on, 64->64 3x3: time and memory of each execution, and what auto picks")
    for side in (8, 16, 32, 48):
        layer = construct.conv_to_mhsa(nn.Conv2d(64, 64, 3, padding=1)).to(device).requires_grad_(False)
        for projection in (layer.w_qry, layer.w_key, layer.u):
            projection.normal_(0, 0.1)
        x = torch.randn(1, 64, side, side, device=device)
        told = {line.split()[0]: line for line in layer.explain(x.shape).splitlines()}
        exact = construct.MHSA(layer.geometry, _double(layer), execution="chunked").to(device)(x.double())
        row = []
        for layer.execution in ("dense", "chunked", "sdpa"):
            try:
                error = (layer(x) - exact).abs().max().item()
            except NotImplementedError as refused:
                row.append(f"{layer.execution}: {refused}")
                continue
            (seconds,) = medians(device, lambda layer=layer, x=x: layer(x), rounds=3 if side > 16 else ROUNDS)
            mebibytes = told[layer.execution].split()[3]
            row.append(f"{layer.execution} {seconds * 1e3:.1f} ms, {mebibytes} MiB, error {error:.0e}")
        print(f"  side {side}: {'; '.join(row)}; auto picks {told['auto'].split()[5]}")


def _double(layer: construct.MHSA) -> construct.MHSAWeights:
    return construct.MHSAWeights(**{name: p.detach().double() for name, p in layer.named_parameters()})


def training(device: torch.device) -> None:
    """Forward and backward."""
    rows = [("", nn.Conv2d(64, 64, 3, padding=1), side) for side in (16, 32, 56, 112)]
    table("64->64 3x3, forward and backward (target: at most 1.35 each)", rows, device, train=True)
    table("ResNet-50's layers, forward and backward (target: at most 1.35 each)", resnet50_layers(), device, train=True)


def main() -> None:
    """Run what was asked for."""
    sections: dict[str, Callable[[torch.device], object]] = {
        "single": single,
        "resnet50": lambda device: table("ResNet-50, by time (target 1.0)", resnet50_layers(), device),
        "network": network,
        "mobilenet": lambda device: table("MobileNetV2, by time (target 1.6)", mobilenet_v2_layers(), device),
        "convnext": lambda device: table("ConvNeXt-T's convolutions (target 3.3)", convnext_tiny_layers(), device),
        "training": training,
        "memory": memory,
        "growth": growth,
        "soft": soft,
        "content": content,
    }
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(sections)}; all by default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {name}, {options.threads} thread(s)")
    for section in options.sections or sections:
        sections[section](device)


if __name__ == "__main__":
    main()
