"""Whole networks: original and converted."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import construct
from benchmarks.layers import calls
from benchmarks.rows import Row, Section
from benchmarks.shapes import conv1d_stack, r3d_block, resnet18, resnet50
from benchmarks.timing import Floor, interleaved


def compared(name: str, net: nn.Module, x: Tensor, device: torch.device) -> tuple[Row, float]:
    """Compare the whole forward, each in its faster layout; and the difference of outputs relative to the greatest."""
    net, x = net.to(device).eval(), x.to(device)
    converted = construct.convert(net)
    theirs, ours = (calls(network, x, train=False) for network in (net, converted))
    with torch.no_grad():
        y = net(x)
        apart = float((converted(x) - y).abs().max() / y.abs().max())
    times = interleaved(device, *theirs, *ours)
    return Row.of(name, times[: len(theirs)], times[len(theirs) :]), apart


def networks(floor: Floor) -> Section:
    """Whole forwards."""
    section = Section("whole networks, forward")
    rows: list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = [
        ("ResNet-18 at 224×224", resnet18, (1, 3, 224, 224)),
        ("ResNet-50 at 224×224", resnet50, (1, 3, 224, 224)),
        ("10 Conv1d of 64 channels, dilated, at 4096", conv1d_stack, (1, 64, 4096)),
        ("a block of r3d-18 at 8×56×56", r3d_block, (1, 64, 8, 56, 56)),
    ]
    for name, make, shape in rows:
        row, apart = compared(name, make(), torch.randn(shape), floor.device)
        section.rows.append(row)
        section.notes.append(f"{name}: the outputs differ by {apart:.1e} of the greatest")
        if name.startswith("ResNet-50"):
            section.judge("ResNet-50 as a whole", row.ratio, 1.0)
    return section


SECTIONS: dict[str, Callable[[Floor], Section]] = {"networks": networks}
