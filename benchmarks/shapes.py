"""The convolutions of three well-known networks at 224 × 224, and two of the networks whole, written with torch.nn."""

from collections.abc import Iterator

import torch
from torch import nn


def resnet50_layers() -> Iterator[tuple[str, nn.Conv2d, int]]:
    """The 53 convolutions of ResNet-50."""
    yield "stem", nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), 224
    side, channels = 56, 64
    for stage, (width, blocks, stride) in enumerate([(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]):
        for block in range(blocks):
            step = stride if block == 0 else 1
            name = f"stage{stage}.{block}"
            yield f"{name}.reduce", nn.Conv2d(channels, width, 1, bias=False), side
            yield f"{name}.spatial", nn.Conv2d(width, width, 3, stride=step, padding=1, bias=False), side
            yield f"{name}.expand", nn.Conv2d(width, 4 * width, 1, bias=False), side // step
            if block == 0:
                yield f"{name}.shortcut", nn.Conv2d(channels, 4 * width, 1, stride=step, bias=False), side
            channels, side = 4 * width, side // step


def mobilenet_v2_layers() -> Iterator[tuple[str, nn.Conv2d, int]]:
    """The 52 convolutions of MobileNetV2."""
    yield "stem", nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), 224
    side, channels = 112, 32
    plan = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for stage, (expansion, width, blocks, stride) in enumerate(plan):
        for block in range(blocks):
            step, hidden, name = stride if block == 0 else 1, channels * expansion, f"stage{stage}.{block}"
            if expansion > 1:
                yield f"{name}.expand", nn.Conv2d(channels, hidden, 1, bias=False), side
            yield f"{name}.depthwise", nn.Conv2d(hidden, hidden, 3, step, 1, groups=hidden, bias=False), side
            side //= step
            yield f"{name}.project", nn.Conv2d(hidden, width, 1, bias=False), side
            channels = width
    yield "last", nn.Conv2d(320, 1280, 1, bias=False), 7


def convnext_tiny_layers() -> Iterator[tuple[str, nn.Conv2d, int]]:
    """The 22 convolutions of ConvNeXt-T: patches, and depthwise ones of 7 × 7."""
    yield "stem", nn.Conv2d(3, 96, 4, stride=4), 224
    side = 56
    for stage, (width, blocks) in enumerate([(96, 3), (192, 3), (384, 9), (768, 3)]):
        if stage:
            yield f"stage{stage}.down", nn.Conv2d(width // 2, width, 2, stride=2), side
            side //= 2
        for block in range(blocks):
            yield f"stage{stage}.{block}", nn.Conv2d(width, width, 7, padding=3, groups=width), side


class Bottleneck(nn.Module):
    """A residual block of ResNet-50."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.reduce = nn.Conv2d(channels, width, 1, bias=False)
        self.spatial = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.expand = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.BatchNorm2d(4 * width)])
        self.shortcut: nn.Module = nn.Identity()
        if channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, channels, H, W) → (B, 4·width, H/stride, W/stride)."""
        y = self.norms[0](self.reduce(x)).relu()
        y = self.norms[1](self.spatial(y)).relu()
        return (self.norms[2](self.expand(y)) + self.shortcut(x)).relu()


def resnet50() -> nn.Module:
    """The network, with random weights."""
    parts: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    channels = 64
    for width, blocks, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for block in range(blocks):
            parts.append(Bottleneck(channels, width, stride if block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)).eval()
