"""ResNet-18 for small pictures, the baseline: a 3 × 3 stem and no pooling before the first stage."""

from torch import Tensor, nn

from examples.learned.running.group import BatchNorm


def _conv(channels: int, width: int, side: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, width, side, stride, padding=side // 2, bias=False)
    return nn.Sequential(conv, BatchNorm(width))


class Residual(nn.Module):
    """Two 3 × 3 convolutions with a shortcut.

    Args:
        channels: C.
        width: D.
        stride: the stride of the first.
    """

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.first, self.second = _conv(channels, width, 3, stride), _conv(width, width, 3, 1)
        same = stride == 1 and channels == width
        self.shortcut = nn.Identity() if same else _conv(channels, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, rows, columns) → (B, D, rows/stride, columns/stride)."""
        y = self.second(nn.functional.relu(self.first(x)))
        return nn.functional.relu(y + self.shortcut(x))


def resnet18(channels: int, classes: int, width: int = 64) -> nn.Sequential:
    """The untrained network, (B, C, rows, columns) → (B, classes).

    Args:
        channels: C of the pictures.
        classes: the number of classes.
        width: channels of the first of four stages; each has twice as many as the one before.
    """
    stages: list[nn.Module] = []
    channels_in = width
    for stage in range(4):
        channels_out = width * 2**stage
        stages += [
            Residual(channels_in, channels_out, 1 if stage == 0 else 2),
            Residual(channels_out, channels_out, 1),
        ]
        channels_in = channels_out
    stem = [_conv(channels, width, 3, 1), nn.ReLU()]
    return nn.Sequential(
        *stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, classes)
    )
