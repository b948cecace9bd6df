"""The convolutions of well-known networks at 224 × 224, and some whole networks, written with
torch.nn.
"""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import nn

Layer = tuple[nn.Module, tuple[int, ...]]
"""A convolution, and the size of its input, (1, C, *n)."""


def square(conv: nn.Conv2d, side: int) -> Layer:
    """A convolution on a square image."""
    return conv, (1, conv.in_channels, side, side)


def mobilenet_v2_layers() -> Iterator[Layer]:
    """The 52 convolutions of MobileNetV2."""
    yield square(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), 224)
    side, channels = 112, 32
    plan = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    for expansion, width, blocks, stride in plan:
        for block in range(blocks):
            step, hidden = stride if block == 0 else 1, channels * expansion
            if expansion > 1:
                yield square(nn.Conv2d(channels, hidden, 1, bias=False), side)
            yield square(nn.Conv2d(hidden, hidden, 3, step, 1, groups=hidden, bias=False), side)
            side //= step
            yield square(nn.Conv2d(hidden, width, 1, bias=False), side)
            channels = width
    yield square(nn.Conv2d(320, 1280, 1, bias=False), 7)


def convnext_tiny_layers() -> Iterator[Layer]:
    """The 22 convolutions of ConvNeXt-T: patch embeddings, and 7 × 7 depthwise ones."""
    yield square(nn.Conv2d(3, 96, 4, stride=4), 224)
    side = 56
    for stage, (width, blocks) in enumerate([(96, 3), (192, 3), (384, 9), (768, 3)]):
        if stage:
            yield square(nn.Conv2d(width // 2, width, 2, stride=2), side)
            side //= 2
        for _ in range(blocks):
            yield square(nn.Conv2d(width, width, 7, padding=3, groups=width), side)


class Bottleneck(nn.Module):
    """A residual block of ResNet-50."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.reduce = nn.Conv2d(channels, width, 1, bias=False)
        self.spatial = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.expand = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norms = nn.ModuleList(
            [nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.BatchNorm2d(4 * width)]
        )
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
    """ResNet-50 with random weights."""
    parts: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    channels = 64
    for width, count in zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True):
        for number in range(count):
            parts.append(Bottleneck(channels, width, 2 if number == 0 and width > 64 else 1))
            channels = 4 * width
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)
    ).eval()


def pitch() -> nn.Sequential:
    """The sizes of CREPE's small pitch network: six 1-D convolutions, of 512 and 64 taps, on 1024
    samples.
    """
    layers, channels = list[nn.Module](), (1, 128, 16, 16, 16, 32, 64)
    for before, after in itertools.pairwise(channels):
        size, stride, pad = (512, 4, (254, 254)) if before == 1 else (64, 1, (31, 32))
        layers += [nn.ConstantPad1d(pad, 0), nn.Conv1d(before, after, size, stride)]
        layers += [nn.ReLU(), nn.BatchNorm1d(after), nn.MaxPool1d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 360))


def r3d_block() -> nn.Module:
    """The convolutions of a block of the first stage of r3d-18."""
    return nn.Sequential(*(nn.Conv3d(64, 64, 3, padding=1, bias=False) for _ in range(2))).eval()


def decoder() -> nn.Module:
    """Four 4 × 4 transposed convolutions that enlarge an image from 14 to 224, the last one with
    three channels.
    """
    widths = (256, 128, 64, 32, 3)
    layers = [
        nn.ConvTranspose2d(a, b, 4, stride=2, padding=1) for a, b in itertools.pairwise(widths)
    ]
    return nn.Sequential(*layers).eval()


def conv1d_stack() -> nn.Module:
    """Ten dilated convolutions of 64 channels, as used on audio."""
    layers = [
        layer
        for n in range(10)
        for layer in (nn.Conv1d(64, 64, 3, padding=2**n, dilation=2**n), nn.ReLU())
    ]
    return nn.Sequential(*layers).eval()


class Unet3d(nn.Module):
    """A 3-D U-Net of three resolutions, as used to segment volumes: 27 heads per layer, transposed
    layers on the way up.
    """

    def __init__(self, width: int = 32):
        super().__init__()
        widths = (1, width, 2 * width, 4 * width)
        self.down = nn.ModuleList(_two_3d(a, b) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(2 * a, a, 2, stride=2) for a in (2 * width, width)
        )
        self.after = nn.ModuleList(_two_3d(2 * a, a) for a in (2 * width, width))
        self.last = nn.Conv3d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 1, D, H, W) → (B, 2, D, H, W), with sides divisible by 4."""
        kept = []
        for down in self.down:
            x = down(nn.functional.max_pool3d(x, 2) if kept else x)
            kept.append(x)
        for up, after, beside in zip(self.up, self.after, kept[1::-1], strict=True):
            x = after(torch.cat([up(x), beside], 1))
        return self.last(x)


def unet3d() -> nn.Module:
    """The 3-D U-Net with random weights."""
    return Unet3d().eval()


def wavenet() -> nn.Module:
    """The WaveNet with random weights."""
    return Wavenet().eval()


def _two_3d(before: int, width: int) -> nn.Module:
    def block(c: int) -> tuple[nn.Module, ...]:
        return nn.Conv3d(c, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU()

    return nn.Sequential(*block(before), *block(width))


class Wavenet(nn.Module):
    """Gated dilated convolutions of two taps over audio, three stacks of ten, as in WaveNet."""

    def __init__(self, channels: int = 64):
        super().__init__()
        self.first = nn.Conv1d(1, channels, 1)
        self.gated = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=2**n) for _ in range(3) for n in range(10)
        )
        self.out = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in self.gated)
        self.skip = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 1) for _ in self.gated)
        self.last = nn.Conv1d(2 * channels, 256, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 1, T) → (B, 256, T − 3,069): each output sees the 3,070 samples up to its own."""
        x, total = self.first(x), None
        for gated, out, skip in zip(self.gated, self.out, self.skip, strict=True):
            value, gate = gated(x).chunk(2, 1)
            held = value.tanh() * gate.sigmoid()
            x = out(held) + x[..., -held.shape[-1] :]
            total = skip(held) if total is None else skip(held) + total[..., -held.shape[-1] :]
        assert total is not None
        return self.last(total.relu())


def convolutions(network: nn.Module, size: tuple[int, ...]) -> Iterator[Layer]:
    """Every convolution of a network, with the size of its input, in the order of its calls."""
    calls: list[Layer] = []
    hooks = [
        module.register_forward_pre_hook(
            lambda conv, given: calls.append((conv, tuple(given[0].shape)))
        )
        for module in network.modules()
        if isinstance(module, nn.modules.conv._ConvNd)
    ]
    with torch.no_grad():
        network(torch.zeros(size))
    for hook in hooks:
        hook.remove()
    return iter(calls)


SIDES = (16, 32, 56, 112, 224)

NETWORKS: dict[str, Callable[[], Iterator[Layer]]] = {
    "ResNet-50": lambda: convolutions(resnet50(), (1, 3, 224, 224)),
    "MobileNetV2": mobilenet_v2_layers,
    "ConvNeXt-T": convnext_tiny_layers,
    "3-D": lambda: convolutions(r3d_block(), (1, 64, 8, 56, 56)),
    "1-D": lambda: convolutions(conv1d_stack(), (1, 64, 4096)),
    "decoder": lambda: convolutions(decoder(), (1, 256, 14, 14)),
    **{
        f"64→64 at {side}": lambda side=side: iter([square(nn.Conv2d(64, 64, 3, padding=1), side)])
        for side in SIDES
    },
}
"""The convolutions of whole networks and, as networks of one layer, 64 → 64 channels at five sides.
"""
