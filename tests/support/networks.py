"""Small networks of every common architecture, in plain torch.nn, whose kernels and normalisation affect the output."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """One network to convert: how to build it, an input for it, and how many convolutions one call executes."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    convolutions: int

    def ready(self, seed: int = 0) -> tuple[nn.Module, Tensor]:
        """The network in eval mode with randomised parameters, and an input; the same for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return randomised(self.build()).eval(), torch.randn(self.shape)


def randomised(model: nn.Module) -> nn.Module:
    """In place, set kernels that keep the signal's size, and statistics and affine parameters far from the identity."""
    for module in model.modules():
        if isinstance(module, nn.modules.conv._ConvNd):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            with torch.no_grad():
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.5, 2.0)
                module.weight.uniform_(0.5, 1.5).mul_(torch.where(torch.rand(len(module.weight)) < 0.2, -1.0, 1.0))
                module.bias.normal_(0, 0.3)
    return model


def conv_norm(d_in: int, d_out: int, kernel: int, stride: int = 1, dilation: int = 1, groups: int = 1) -> nn.Sequential:
    """Conv2d with odd kernel, batch normalisation, ReLU; only the stride reduces the size."""
    padding = dilation * (kernel - 1) // 2
    conv = nn.Conv2d(d_in, d_out, kernel, stride, padding, dilation, groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(d_out), nn.ReLU())


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)): a ResNet block whose shortcut is a strided 1×1 convolution where shapes change."""

    def __init__(self, body: nn.Module, d_in: int, d_out: int, stride: int = 1):
        super().__init__()
        self.body = body
        same = stride == 1 and d_in == d_out
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(d_in, d_out, 1, stride, bias=False), nn.BatchNorm2d(d_out))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def basic_block(d_in: int, d_out: int, stride: int) -> Residual:
    return Residual(
        nn.Sequential(conv_norm(d_in, d_out, 3, stride), conv_norm(d_out, d_out, 3)[:2]), d_in, d_out, stride
    )


def resnet18() -> nn.Module:
    """ResNet-18 as published: a 7×7 stem, 4 stages of 2 basic blocks, 20 convolutions, 1000 classes."""
    widths = [64, 64, 128, 256, 512]
    stages = [
        nn.Sequential(basic_block(d_in, d_out, 1 if stage == 0 else 2), basic_block(d_out, d_out, 1))
        for stage, (d_in, d_out) in enumerate(pairwise(widths))
    ]
    stem = nn.Sequential(*conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def mobilenet() -> nn.Module:
    """Depthwise-separable: inverted residuals, expand 1×1, depthwise 3×3, project 1×1."""

    def inverted(d_in: int, d_out: int, stride: int, expand: int = 3) -> nn.Module:
        wide = d_in * expand
        return nn.Sequential(
            conv_norm(d_in, wide, 1), conv_norm(wide, wide, 3, stride, groups=wide), conv_norm(wide, d_out, 1)[:2]
        )

    blocks = [inverted(8, 12, 2), inverted(12, 12, 1), inverted(12, 16, 2)]
    return nn.Sequential(
        conv_norm(3, 8, 3, 2), *blocks, conv_norm(16, 32, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    )


def resnext() -> nn.Module:
    """Grouped: bottlenecks of ResNeXt, 1×1, 3×3 in 4 groups, 1×1."""

    def bottleneck(d_in: int, width: int, d_out: int, stride: int) -> nn.Module:
        body = nn.Sequential(
            conv_norm(d_in, width, 1), conv_norm(width, width, 3, stride, groups=4), conv_norm(width, d_out, 1)[:2]
        )
        return Residual(body, d_in, d_out, stride)

    blocks = [bottleneck(8, 16, 32, 1), bottleneck(32, 16, 32, 1), bottleneck(32, 32, 64, 2)]
    return nn.Sequential(conv_norm(3, 8, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class DeepLab(nn.Module):
    """Dilated: a backbone that keeps its size, atrous pyramid pooling in a ModuleList, per-pixel logits."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            conv_norm(3, 8, 3, 2), conv_norm(8, 12, 3, dilation=2), conv_norm(12, 12, 3, dilation=4)
        )
        self.rates = nn.ModuleList([conv_norm(12, 6, 1), *(conv_norm(12, 6, 3, dilation=rate) for rate in (1, 3, 6))])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), *conv_norm(12, 6, 1))
        self.head = nn.Conv2d(30, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone(x)
        pooled = self.pooled(features).expand(-1, -1, *features.shape[2:])
        logits = self.head(torch.cat([*(rate(features) for rate in self.rates), pooled], dim=1))
        return nn.functional.interpolate(logits, size=x.shape[2:], mode="bilinear", align_corners=False)


class WaveNet(nn.Module):
    """1-D: causal even kernels with growing dilation, gated, residual and skip paths; one quarter reads circularly."""

    def __init__(self, width: int = 6, dilations: tuple[int, ...] = (1, 2, 4, 8)):
        super().__init__()
        self.start = nn.Conv1d(2, width, 5, padding="same", padding_mode="circular")
        self.dilations = dilations
        self.filters = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=dilation) for dilation in dilations)
        self.gates = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=dilation) for dilation in dilations)
        self.skips = nn.ModuleDict({f"after_{dilation}": nn.Conv1d(width, 4, 1) for dilation in dilations})

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.start(x), torch.zeros(())
        for dilation, filter, gate in zip(self.dilations, self.filters, self.gates, strict=True):
            past = nn.functional.pad(x, (dilation, 0))  # causal: no output may look ahead
            x = x + torch.tanh(filter(past)) * torch.sigmoid(gate(past))
            total = total + self.skips[f"after_{dilation}"](x)
        return total


def video() -> nn.Module:
    """3-D: a 3×5×5 stem strided in space only, a full 3×3×3 layer, then (2+1)-D: space and time factored."""

    def norm(conv: nn.Conv3d) -> list[nn.Module]:
        return [conv, nn.BatchNorm3d(conv.out_channels), nn.ReLU()]

    return nn.Sequential(
        *norm(nn.Conv3d(3, 6, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2), bias=False)),
        *norm(nn.Conv3d(6, 8, 3, stride=2, padding=1)),
        *norm(nn.Conv3d(8, 10, (1, 3, 3), padding=(0, 1, 1))),
        *norm(nn.Conv3d(10, 8, (3, 1, 1), padding=(1, 0, 0), padding_mode="replicate")),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


class UNet(nn.Module):
    """Strided down, transposed convolutions up with ``output_size``, so that odd sides match their skips."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([conv_norm(2, 6, 3), conv_norm(6, 8, 3, 2), conv_norm(8, 12, 3, 2)])
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(12, 8, 3, 2, padding=1), nn.ConvTranspose2d(8, 6, (3, 4), 2, padding=1, bias=False)]
        )
        self.merge = nn.ModuleList(
            [
                nn.Conv2d(16, 8, 3, padding=1, padding_mode="reflect"),
                nn.Conv2d(12, 6, 3, padding=1, padding_mode="reflect"),
            ]
        )
        self.head = nn.ConvTranspose2d(6, 3, 2, 2, output_padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            skip = skips.pop()
            x = torch.relu(merge(torch.cat([up(x, output_size=list(skip.shape[2:])), skip], dim=1)))
        return self.head(x)


NETWORKS = {
    "resnet18": Network(resnet18, (1, 3, 64, 64), 20),
    "depthwise": Network(mobilenet, (2, 3, 24, 20), 11),
    "grouped": Network(resnext, (2, 3, 16, 14), 12),
    "dilated": Network(DeepLab, (2, 3, 21, 18), 9),
    "1-D": Network(WaveNet, (2, 2, 40), 13),
    "3-D": Network(video, (2, 3, 6, 14, 12), 4),
    "U-Net": Network(UNet, (2, 2, 17, 14), 8),
}
