"""Layers for the report page's tests: of every kind, edited ones, and a network whose names try to be markup."""

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import nn

import construct
from verify.report.attention import picture
from verify.report.layer import ReportLayer

HOSTILE = (
    "</script><img src=x onerror=window.hurt=1>",
    "</details><script>window.hurt=2</script>",
    '"><svg onload=window.hurt=3>',
    "{{ 7 * 7 }}",
    "line\u2028break\u202e&amp;",
)


def edited_layer() -> tuple[nn.Conv2d, Any]:
    """A layer with an edited v: one head moved, one softened, one between two pixels, one without a maximum."""
    conv = nn.Conv2d(2, 3, 3, padding=1)
    layer = construct.conv_to_mhsa(conv)
    with torch.no_grad():
        layer.v[0] = torch.tensor([-2.0, 4.0, 8.0])  # τ = (1, 2)
        layer.v[3] *= 2**-10
        layer.v[4] = torch.tensor([-1.0, 1.0, 0.0])  # τ = (½, 0)
        layer.v[5] = torch.tensor([0.25, 0.0, 0.0])
    return conv, layer


def soft(conv: nn.Module, **options: Any) -> Any:
    return construct.conv_to_mhsa(conv, alpha=0.75, **options)


def seeded(make: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


SHOWN = {
    "plain": lambda: (conv := nn.Conv2d(3, 4, 3, padding=1), soft(conv)),
    "strided-dilated": lambda: (
        conv := nn.Conv2d(1, 2, (2, 3), stride=(2, 1), dilation=2, padding=2, padding_mode="circular"),
        soft(conv),
    ),
    "1-D": lambda: (conv := nn.Conv1d(2, 2, 5, stride=2, padding=3, padding_mode="reflect"), soft(conv)),
    "3-D": lambda: (conv := nn.Conv3d(2, 2, (2, 3, 1), padding=(1, 1, 0)), soft(conv)),
    "transposed": lambda: (conv := nn.ConvTranspose2d(2, 3, 3, 2, padding=1, output_padding=1), soft(conv)),
    "parabola": lambda: (conv := nn.Conv2d(2, 2, 3, padding=1), soft(conv, encoding="parabola")),
    "edited": edited_layer,
}
"""Layers of every kind, soft enough for their attention to be visible."""


def drawn(name: str) -> tuple[Any, dict[str, Any]]:
    conv, layer = seeded(SHOWN[name])
    return layer, picture(ReportLayer(name, conv, layer))


def own_attention(layer: Any, shown: dict[str, Any], dtype: torch.dtype = torch.float32) -> np.ndarray:
    """The layer's own attention on the picture's grid, (heads, queries, keys)."""
    with torch.no_grad():
        return layer.attention_probabilities(torch.zeros(1, layer.in_channels, *shown["input"], dtype=dtype))[0].numpy()


def network() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            (name.replace(".", "_"), nn.Conv2d(3, 3, 3, padding=1, padding_mode="replicate" if k % 2 else "zeros"))
            for k, name in enumerate(HOSTILE)
        )
    )
