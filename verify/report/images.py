"""Draws a layer's input, both layers' outputs and their difference as PNG data URIs.

The standard library writes the PNG, so that the page stays one file.
"""

import base64
import struct
import zlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from verify.oracle import Vector
from verify.report.layer import NoPicture, ReportLayer, most_varied, require_finite, shades
from verify.samples.sampling import called, evaluating, watching

LARGEST = 96
"""The most pixels per side; larger images are drawn in blocks."""

# A sequential colour map, light at the smallest value, and a diverging one, light at zero.
INK = ((247, 248, 250), (158, 190, 220), (52, 108, 168), (12, 40, 84))
BOTH = ((140, 70, 20), (224, 150, 80), (247, 248, 250), (110, 150, 205), (20, 60, 120))


@dataclass(frozen=True)
class Image:
    """One image: heading, PNG data URI, and the values of the lightest and darkest shade."""

    title: str
    uri: str
    scale: str


@dataclass(frozen=True)
class Strip:
    """Four images side by side and their caption."""

    images: tuple[Image, ...]
    caption: str

    @property
    def size(self) -> int:
        """The number of characters that it adds to the page."""
        return sum(len(image.uri) for image in self.images)


def strip(layer: ReportLayer) -> Strip | None:
    """Run both layers on ``layer.x`` and draw inputs and outputs; None without two layers.

    Raises:
        NoPicture: they cannot be drawn; the message says why.
    """
    if layer.conv is None or layer.mhsa is None:
        return None
    if layer.x is None:
        raise NoPicture(layer.no_input or "there is no input of this layer")
    with evaluating(layer.conv, layer.mhsa), torch.no_grad():
        x = layer.x[:1]
        before = layer.conv(x)
        after = layer.mhsa(x)
    if before.shape != after.shape:
        raise NoPicture(f"the outputs have shapes {tuple(before.shape)} and {tuple(after.shape)}")
    x, before, after = (t[0].detach().double().cpu().numpy() for t in (x, before, after))
    for what, values in (
        ("input", x),
        ("convolution's output", before),
        ("attention's output", after),
    ):
        if not values.size:
            raise NoPicture(f"the {what} is empty")
        require_finite(what, values)
    difference = after - before
    most = float(np.abs(difference).max())
    of = of_worst = "all channels, one a row"
    planes = before, after, difference
    if before.ndim > 2:
        channel = most_varied(before)
        worst = int(np.abs(difference).reshape(len(before), -1).max(axis=1).argmax())
        planes = before[channel], after[channel], difference[worst]
        of = f"channel {channel} of {len(before)}"
        of_worst = f"channel {worst}, where it is greatest"
    images = [
        _input_image(x),
        _image("Convolution", planes[0], of),
        _image("Attention", planes[1], f"{of}, on the same scale", scaled_as=planes[0]),
        _difference(planes[2], most, f"the attention's output minus the convolution's, {of_worst}"),
    ]
    remarks = []
    if before.ndim == 4:
        remarks.append("Of each volume, the middle slice.")
    if max(*x.shape[-2:], *before.shape[-2:]) > LARGEST:
        remarks.append(
            "Large pictures are drawn in blocks: the mean of each, and of the difference the greatest."
        )
    return Strip(tuple(images), " ".join(remarks))


def _input_image(x: ndarray) -> Image:
    if x.ndim == 3 and len(x) == 3:
        low = float(x.min())
        high = float(x.max())
        shade = shades(_small(x), low, high)
        scale = f"{_number(low)} … {_number(high)}; three channels as colours"
        return Image("Input", png(np.moveaxis(shade, 0, -1)), scale)
    if x.ndim == 2:
        return _image("Input", x, "all channels, one a row")
    channel = most_varied(x)
    return _image("Input", x[channel], f"channel {channel} of {len(x)}")


def _image(title: str, values: ndarray, of: str, scaled_as: ndarray | None = None) -> Image:
    """An image whose lightest and darkest shades are the extremes of ``scaled_as``, by default its
    own.
    """
    if scaled_as is None:
        scaled_as = values
    low = float(scaled_as.min())
    high = float(scaled_as.max())
    shade = (_small(_flat(values)) - low) / ((high - low) or 1.0)
    return Image(
        title,
        png(_coloured(shade, INK)),
        f"{_number(low)} … {_number(high)}; {of}",
    )


def _difference(values: ndarray, most: float, caption: str) -> Image:
    shade = 0.5 + 0.5 * _small(_flat(values), greatest=True) / (most or 1.0)
    scale = f"its own scale: ±{most:.3g}; {caption}" if most else "exactly 0 everywhere"
    return Image("Difference", png(_coloured(shade, BOTH)), scale)


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _flat(values: ndarray) -> ndarray:
    """A plane unchanged, or the middle slice of a volume."""
    if values.ndim == 3:
        return values[len(values) // 2]
    return values


def _small(planes: ndarray, greatest: bool = False) -> ndarray:
    """Downsample to at most ``LARGEST`` pixels per side, by each block's mean or its value of
    largest magnitude.
    """
    size: Any = [-(-n // -(-n // LARGEST)) for n in planes.shape[-2:]]
    whole = torch.from_numpy(planes).reshape(-1, *planes.shape[-2:])
    if greatest:
        most = nn.functional.adaptive_max_pool2d(whole, size)
        least = -nn.functional.adaptive_max_pool2d(-whole, size)
        small = torch.where(-least > most, least, most)
    else:
        small = nn.functional.adaptive_avg_pool2d(whole, size)
    return small.reshape(*planes.shape[:-2], *size).numpy()


def _coloured(shade: ndarray, stops: tuple[tuple[int, int, int], ...]) -> ndarray:
    """Map numbers from 0 to 1 to colours, (height, width, 3) bytes."""
    at = np.linspace(0, 1, len(stops))
    parts = [np.interp(shade.clip(0, 1), at, [stop[c] for stop in stops]) for c in range(3)]
    return np.rint(np.stack(parts, axis=-1)).astype(np.uint8)


def png(pixels: ndarray) -> str:
    """Encode (height, width, 3) bytes as a PNG data URI."""
    height, width, _ = pixels.shape
    # 0: no filter
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in parts:
        content += (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )
    return "data:image/png;base64," + base64.b64encode(content).decode()


def has_photograph(shape: Vector | None) -> bool:
    """Whether scikit-learn has a photograph for inputs of (channels, height, width)."""
    return shape is not None and len(shape) == 3 and shape[0] == 3 and min(shape[1:]) >= 8


def digit() -> ndarray:
    """The bundled handwritten digit, (8, 8) from 0 to 1, an input of the network that ships with
    the project.
    """
    with (files("verify.report") / "digit.txt").open() as file:
        return np.loadtxt(file) / 16


def photograph(shape: Vector, dtype: torch.dtype) -> tuple[Tensor, str] | None:
    """A real image of shape (channels, height, width) and its description, or None.

    One channel of 8 × 8 pixels gets a handwritten digit; three channels get scikit-learn's sample
    photograph of a flower, if scikit-learn is installed.
    """
    if shape == (1, 8, 8):
        image = torch.tensor(digit(), device="cpu")[None, None].to(dtype)
        return image, "a handwritten digit of scikit-learn's, pixels from 0 to 1"
    if not has_photograph(shape):
        return None
    try:
        from sklearn.datasets import load_sample_image

        image = torch.tensor(load_sample_image("flower.jpg").copy(), device="cpu")
    except (ImportError, OSError):  # reading it needs pillow
        return None
    # 427 × 427, the flower in the middle
    square = image.permute(2, 0, 1)[None, :, :, 106:533].double() / 255
    small = nn.functional.interpolate(square, size=shape[1:], mode="area")
    return (2 * small - 1).to(dtype), "a photograph of scikit-learn's, pixels from −1 to 1"


def activations(model: nn.Module, x: Any, convolutions: dict[str, Any]) -> dict[str, Tensor]:
    """Run a network once and record the first input of each convolution by a forward pre-hook."""
    kept: dict[str, Tensor] = {}

    def keep(path: str, given: Tensor) -> None:
        batched = given.dim() == convolutions[path].weight.dim()
        kept.setdefault(path, (given if batched else given[None]).detach()[:1].clone())

    with evaluating(model), torch.no_grad(), watching(convolutions, keep):
        called(model, x)
    return kept
