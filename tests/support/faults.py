"""Faults to plant for ``test_planted_faults``, and the convolutions that they are faults of."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from construct import MHSA, ConvGeometry, heads, tokens
from construct import heads as shifts
from construct.encoding import quadratic as encoding
from verify.strategies import numbers

KINDS: dict[str, Callable[[], nn.Module]] = {
    "1-D": lambda: nn.Conv1d(3, 4, 5, padding=2),
    "2-D": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "3-D": lambda: nn.Conv3d(2, 3, 3, padding=1),
    "even": lambda: nn.Conv2d(2, 3, (2, 4), padding=1),
    "strided": lambda: nn.Conv2d(3, 2, 3, padding=1, stride=2),
    "dilated": lambda: nn.Conv2d(2, 3, 3, padding=2, dilation=2),
    "grouped": lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2),
    "depthwise": lambda: nn.Conv1d(4, 4, 3, padding=1, groups=4),
    "same": lambda: nn.Conv1d(3, 2, 4, padding="same"),
    "reflect": lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
    "replicate": lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"),
    "circular": lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
    "transposed": lambda: nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1),
    "transposed 1-D": lambda: nn.ConvTranspose1d(2, 3, 4, stride=3, dilation=2),
}
ALL = tuple(KINDS)
ZEROS = ("1-D", "2-D", "3-D", "even", "strided", "dilated", "grouped", "depthwise", "same")
TRANSPOSED = ("transposed", "transposed 1-D")


def problem(name: str, seed: int, integers: bool) -> tuple[Any, Tensor]:
    """A convolution of this kind without gradients, float32, and two inputs; small integers, or normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    conv: Any = KINDS[name]().requires_grad_(False)
    for tensor in conv.parameters():
        tensor.copy_(numbers(tensor.shape, tensor.dtype, integers, generator))
    x = numbers((2, conv.in_channels, *[7, 6, 5][: conv.weight.dim() - 2]), torch.float32, integers, generator)
    return conv, x


# ---- in the weights --------------------------------------------------------------------------------------------------------


def flip_kernel(layer: MHSA) -> None:
    """The head at each tap carries the tap opposite."""
    for tensor in (layer.w_val, layer.w_out):
        tensor.data = tensor.data.flip(0)


def _swap_values(layer: MHSA) -> None:
    for tensor in (layer.w_val, layer.w_out):
        tensor.data[[0, -1]] = tensor.data[[-1, 0]]


def _next_shift(layer: MHSA) -> None:
    layer.v.data[0] = layer.v.data[1]


def _drop_head(layer: MHSA) -> None:
    layer.w_val.data[layer.heads // 2] = 0


def _negate_shifts(layer: MHSA) -> None:
    layer.v.data[:, 1:] *= -1


def _soften(layer: MHSA) -> None:
    layer.v.data *= 2.0**-9


def _drop_bias(layer: MHSA) -> None:
    layer.b_out.data.zero_()


def _scale_tap(layer: MHSA) -> None:
    layer.w_val.data[-1] *= 1.25


def _swap_outputs(layer: MHSA) -> None:
    layer.w_out.data = layer.w_out.data.flip(3)


def _swap_groups(layer: MHSA) -> None:
    layer.w_val.data, layer.w_out.data = layer.w_val.data.flip(1), layer.w_out.data.flip(1)


WEIGHTS: dict[str, tuple[Callable[[MHSA], None], tuple[str, ...]]] = {
    "the kernel flipped": (flip_kernel, ALL),
    "the values of two heads swapped": (_swap_values, ALL),
    "two heads at one shift": (_next_shift, ALL),
    "a head dropped": (_drop_head, ALL),
    "shifts negated": (_negate_shifts, tuple(name for name in ALL if name not in ("even", "same", "transposed 1-D"))),
    "heads too soft": (_soften, ALL),
    "the bias dropped": (_drop_bias, ALL),
    "a tap scaled": (_scale_tap, ALL),
    "outputs swapped": (_swap_outputs, tuple(name for name in ALL if name != "depthwise")),
    "groups swapped": (_swap_groups, ("grouped", "depthwise")),
}


# ---- in the code -----------------------------------------------------------------------------------------------------------


def geometry(name: str, change: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A patch that changes one property of every geometry."""
    right = getattr(ConvGeometry, name).fget
    return lambda patch: patch.setattr(ConvGeometry, name, property(lambda g: change(right(g))))


def _replaced(module: Any, name: str, change: Callable[[Callable], Callable]) -> Callable[[pytest.MonkeyPatch], None]:
    right = getattr(module, name)
    return lambda patch: patch.setattr(module, name, change(right))


def _flipped(weight: Tensor) -> Tensor:
    return weight.flip(tuple(range(2, weight.dim())))


CODE: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "the order of taps reversed": (_replaced(heads, "tap_matrices", lambda f: lambda w, g: f(w, g).flip(0)), ALL),
    "kernels flipped": (_replaced(heads, "tap_matrices", lambda f: lambda w, g: f(_flipped(w), g)), ALL),
    "shifts one further": (
        _replaced(shifts, "tap_shifts", lambda f: lambda g: tuple((*tau[:-1], tau[-1] + 1) for tau in f(g))),
        ALL,
    ),
    "v of −τ": (
        _replaced(encoding, "v", lambda f: lambda tau, alpha: f([-x for x in tau], alpha)),
        tuple(name for name in ALL if name not in ("even", "same", "transposed 1-D")),
    ),
    "r without its square": (_replaced(encoding, "r", lambda f: lambda delta: (0 * delta[0], *delta)), ALL),
    "zeros padded by replicating": (
        _replaced(tokens, "sources_along_axis", lambda f: lambda n, s, pads, mode: f(n, s, pads, "replicate")),
        ZEROS,
    ),
    "the far pad in front": (
        geometry("pads", lambda pads: tuple((after, before) for before, after in pads)),
        ("same",),
    ),
    "zeros stuffed one late": (
        _replaced(tokens, "sources_along_axis", lambda f: lambda *a: f(*a).roll(1)),
        TRANSPOSED,
    ),
}
