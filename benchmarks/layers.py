"""Compare single layers with the convolution that they equal: forward, compiled, and with gradients."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import construct
from benchmarks.rows import Row, Section
from benchmarks.shapes import NETWORKS, Layer, square
from benchmarks.timing import Call, Floor, interleaved

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def calls(module: nn.Module, x: Tensor, train: bool) -> list[Call]:
    """One call per memory layout: contiguous, and channels last where torch has that format."""
    done = []
    for form in (torch.contiguous_format, FORMATS.get(x.dim())):
        if form is None:
            continue
        here, given = module, x.contiguous(memory_format=form)
        if not isinstance(module, construct.MHSA):
            here = copy.deepcopy(module)
            here.to(memory_format=form)  # type: ignore[call-overload]
        done.append(call(here, here, given, train))
    return done


def call(run: Any, module: nn.Module, x: Any, train: bool) -> Call:
    """One forward, or one forward and backward."""
    learned = [p for p in module.parameters() if p.requires_grad]

    def forward() -> object:
        with torch.no_grad():
            return run(x)

    def both() -> object:
        y = run(x)
        return torch.autograd.grad(y, [x, *learned], torch.ones_like(y))

    if train:
        x.requires_grad_()
    return both if train else forward


def work(conv: nn.Module, x: Tensor, y: Tensor) -> tuple[int, int]:
    """The multiplications of a convolution, and how many numbers it must read and write."""
    weight: Any = conv.weight
    places = x[0, 0].numel() if conv.transposed else y[0, 0].numel()  # type: ignore[truthy-function]
    return len(x) * places * weight.numel(), x.numel() + y.numel() + weight.numel()


def compared(conv: nn.Module, x: Tensor, floor: Floor, train: bool = False) -> Row:
    """Compare one layer, each in its faster layout."""
    device = floor.device
    conv, x = copy.deepcopy(conv).to(device), x.to(device)
    layer = construct.conv_to_mhsa(conv)
    if train:
        one_factor(layer)
    theirs, ours = calls(conv, x, train), calls(layer, x, train)
    times = interleaved(device, *theirs, *ours)
    with torch.no_grad():
        least = floor(*work(conv, x, conv(x)))
    return Row.of(named(conv, x), times[: len(theirs)], times[len(theirs) :], floor=(3 if train else 1) * least)


def one_factor(layer: construct.MHSA) -> None:
    """Train what a convolution trains, one kernel: freeze the factor that is the identity."""
    wide = layer.out_channels > layer.in_channels
    (layer.w_val if wide else layer.w_out).requires_grad_(False)


def named(conv: Any, x: Tensor) -> str:
    """A convolution in a few characters."""
    kernel, stride = ("×".join(map(str, size)) for size in (conv.kernel_size, conv.stride))
    parts = [f"{conv.in_channels}→{conv.out_channels} {kernel}"]
    parts += [f"stride {stride}"] if set(conv.stride) != {1} else []
    parts += ["depthwise"] if conv.groups == conv.in_channels > 1 else [f"{conv.groups} groups"] * (conv.groups > 1)
    parts += ["transposed"] if conv.transposed else []
    return f"{' '.join(parts)} at {'×'.join(map(str, x.shape[2:]))}"


def each_once(title: str, layers: Iterable[Layer], floor: Floor, **options: bool) -> Section:
    """Measure every distinct shape once, and count how often it occurs."""
    rows: dict[str, Row] = {}
    for conv, size in layers:
        x = torch.randn(size)
        name = named(conv, x)
        row = rows.get(name)
        rows[name] = replace(row, count=row.count + 1) if row else compared(conv, x, floor, **options)
    return Section(title, [*rows.values()])


def single(floor: Floor) -> Section:
    """64 → 64, 3 × 3."""
    sides = (16, 32, 56, 112, 224)
    layers = (square(nn.Conv2d(64, 64, 3, padding=1), side) for side in sides)
    section = each_once("64→64 3×3, forward", layers, floor)
    section.each("the worst ratio", 1.25)
    section.mean("geometric mean", 1.25)
    return section


def resnet50(floor: Floor) -> Section:
    """All convolutions of ResNet-50."""
    section = each_once("ResNet-50's convolutions", NETWORKS["ResNet-50"](), floor)
    section.by_time("all layers by time", 1.0)
    section.each(
        "the worst 1×1", 1.05, [row for row in section.rows if " 1×1" in row.name and "stride" not in row.name]
    )
    section.each("the worst 3×3 with 512 channels", 1.0, [row for row in section.rows if "512→512 3×3" in row.name])
    return section


def eager(floor: Floor, name: str, target: float) -> Section:
    """A network's convolutions, compared by total time."""
    section = each_once(f"{name}'s convolutions", NETWORKS[name](), floor)
    section.by_time("all layers by time", target)
    return section


class Together(nn.Module):
    """Independent layers in one graph, so that the overhead of a compiled call is paid once."""

    def __init__(self, layers: Iterable[nn.Module]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        return [layer(x) for layer, x in zip(self.layers, inputs, strict=True)]


def compiled(floor: Floor, name: str, target: float) -> Section:
    """All of a network's convolutions, converted, in one compiled graph, against the originals, eager and compiled."""
    convs, sizes = zip(*NETWORKS[name](), strict=True)
    inputs = [torch.randn(size, device=floor.device) for size in sizes]
    theirs = Together(convs).to(floor.device).requires_grad_(False)
    ours = Together(map(construct.conv_to_mhsa, convs)).requires_grad_(False)
    layouts = []
    for form in (torch.contiguous_format, torch.channels_last):
        given = [x.contiguous(memory_format=form) for x in inputs]
        same = copy.deepcopy(theirs)
        same.to(memory_format=form)  # type: ignore[call-overload]
        runs: list[Any] = [same, *(torch.compile(net, dynamic=False, fullgraph=True) for net in (same, ours))]
        layouts.append([call(run, same, given, False) for run in runs])
    (a, b, c), (d, e, f) = layouts
    times = interleaved(floor.device, a, b, d, e, c, f, rounds=5)
    row = Row.of(f"all {len(convs)} layers in one graph", times[:4], times[4:])
    section = Section(f"{name}'s convolutions, compiled", [row])
    section.by_time("all layers by time", target)
    return section


def training(floor: Floor) -> Section:
    """Forward and backward."""
    layers = (square(nn.Conv2d(64, 64, 3, padding=1), side) for side in (16, 32, 56, 112))
    section = each_once("64→64 3×3, forward and backward", layers, floor, train=True)
    section.each("the worst ratio", 1.5)
    return section


def training_resnet50(floor: Floor) -> Section:
    """Forward and backward of a network's convolutions."""
    title, layers = "ResNet-50's convolutions, forward and backward", NETWORKS["ResNet-50"]()
    section = each_once(title, layers, floor, train=True)
    section.each("the worst ratio", 1.35)
    section.by_time("all layers by time", 1.1)
    return section


def others(floor: Floor) -> Section:
    """Transposed layers, and other dimensions."""
    layers: tuple[tuple[Any, tuple[int, ...]], ...] = (
        (nn.ConvTranspose2d(64, 64, 4, 2, 1), (28, 28)),
        (nn.ConvTranspose2d(64, 32, 3, 2, 1, output_padding=1), (28, 28)),
        (nn.ConvTranspose2d(128, 64, 2, 2), (28, 28)),
        (nn.ConvTranspose1d(64, 32, 16, 8, 4), (256,)),
        (nn.Conv1d(64, 64, 3, padding=4, dilation=4), (4096,)),
        (nn.Conv1d(256, 256, 5, padding=2), (512,)),
        (nn.Conv3d(64, 64, 3, padding=1), (8, 28, 28)),
        (nn.Conv3d(64, 64, (1, 3, 3), padding=(0, 1, 1)), (8, 28, 28)),
    )
    sized = ((conv, (1, conv.in_channels, *size)) for conv, size in layers)
    section = each_once("transposed layers, 1-D and 3-D", sized, floor)
    section.mean("geometric mean", None)
    return section


SECTIONS: dict[str, Callable[[Floor], Section]] = {
    "single": single,
    "resnet50": resnet50,
    "mobilenet": partial(eager, name="MobileNetV2", target=1.2),
    "mobilenet-compiled": partial(compiled, name="MobileNetV2", target=0.9),
    "convnext": partial(eager, name="ConvNeXt-T", target=2.5),
    "convnext-compiled": partial(compiled, name="ConvNeXt-T", target=1.2),
    "training": training,
    "training-resnet50": training_resnet50,
    "others": others,
}
