"""A layer as a black box of float64 arrays, and its linear map by impulse response.

An impulse e of channel c at position i gives one column of an affine layer f:

    A[o, i, :, c] = (f(a·e) − f(−a·e)) / 2a,        a a large power of two.

With so large an amplitude the bias is rounded away but the weights are not: where f multiplies by
one weight, that weight is recovered bit for bit.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from math import frexp, prod
from operator import index
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from verify.oracle import Vector, float64, greatest, whole_numbers

BUDGET = 2**30
"""Default budget in bytes for a layer's linear map."""

INPUT_SIZES = (1.0, 2.0**10, 2.0**20)
"""Sizes of the random inputs on which a layer is measured; content, or a threshold, may matter only
for large ones.
"""
FAR = 300
"""Outputs above 2^FAR or below 2^−FAR are rescaled to keep their squares in float64's range."""
_AMPLITUDE = {torch.float64: 2.0**200, torch.float32: 2.0**40}
_BATCH_BYTES = 2**24


def _copied(layer: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of the layer to run on the CPU, in eval mode."""
    if any(tensor.is_complex() for tensor in layer.parameters()):
        raise ValueError("the layer has complex weights; an audit is of real ones")
    try:
        return copy.deepcopy(layer).cpu().to(dtype).eval()
    except Exception as error:  # an unknown layer may raise anything
        raise ValueError(f"the layer cannot be copied into {dtype}: {_line(error)}") from error


def _channels_of(attention: Any, given: Any) -> int:
    """The number of input channels, by default the layer's own."""
    if given is None:
        name = "embed_dim" if isinstance(attention, nn.MultiheadAttention) else "in_channels"
        given = getattr(attention, name, None)
    channels = whole_numbers([given], 1)
    if channels is None:
        raise ValueError(
            f"how many channels does the layer take? Give in_channels=, a number and not {given!r}"
        )
    return channels[0]


class BlackBox:
    """The layer under audit as a function of float64 arrays.

    Args:
        attention: a module, or any callable (B, C, *grid) → (B, D, *output); a bare
            ``nn.MultiheadAttention`` gets the pixels as tokens, row by row, and its output is
            reshaped to the grid.
        grid: the spatial size of the inputs.
        in_channels: C; by default the layer's own attribute.
        dtype: float64 or float32, for running the layer.
        budget: bytes that an input may take.
        seed: of the random inputs.

    Attributes:
        random: the generator of all random numbers.
        inputs, outputs: the indices of the channels fed and read; initially all.  The others are
            fed zeros.
        exponent: outputs are in units of 2^exponent; initially 0.

    Raises:
        ValueError: grid, channels or dtype are invalid, or the layer cannot be copied or called.
    """

    def __init__(
        self,
        attention: Any,
        grid: Vector,
        in_channels: int | None,
        dtype: torch.dtype,
        budget: int,
        seed: int,
    ):
        if not callable(attention):
            raise ValueError(
                f"an audit needs a layer or a function, not {type(attention).__name__}"
            )
        sizes = whole_numbers(grid, 1)
        if not sizes:
            raise ValueError(
                f"the grid is the input's spatial size, a tuple of whole numbers, and not {grid!r}"
            )
        if dtype not in _AMPLITUDE:
            raise ValueError(f"a layer is audited in float64 or float32, not {dtype}")
        self.grid = sizes
        self.random = np.random.default_rng(index(seed))
        self.dtype = dtype
        self.function: Any = attention
        if isinstance(attention, nn.Module):
            self.function = _copied(attention, dtype)
        self.stock = isinstance(attention, nn.MultiheadAttention)
        if self.stock:
            self.function.batch_first = (
                True  # set on the copy; the weights do not depend on the axis order
            )
            if not getattr(self.function, "_qkv_same_embed_dim", False):
                what = "a bare nn.MultiheadAttention with kdim or vdim"
                raise ValueError(f"{what} does not take the same tokens three times")
        self.channels = in_channels = _channels_of(attention, in_channels)
        if (needed := 8 * in_channels * prod(self.grid)) > budget:
            raise ValueError(
                f"an input of {in_channels} channels on this grid would take {needed / 2**30:.3g} GiB, over the budget of "
                f"{budget / 2**30:.3g} GiB; audit a smaller grid"
            )
        self.inputs = np.arange(in_channels)
        first = self._run(np.zeros((1, in_channels, *self.grid)))
        if first.ndim != len(self.grid) + 2 or len(first) != 1 or first.size == 0:
            raise ValueError(
                f"the layer makes {first.shape} of {(1, in_channels, *self.grid)}, and not (1, channels, "
                f"{len(self.grid)} spatial axes)"
            )
        self.out_channels = first.shape[1]
        self.output = first.shape[2:]
        self.outputs = np.arange(self.out_channels)
        self.exponent = 0

    def noise(self, count: int) -> ndarray:
        """Random inputs of size 1: (count, channels fed, *grid)."""
        return self.random.standard_normal((count, len(self.inputs), *self.grid))

    def narrow(self, most: int) -> None:
        """Feed at most ``most`` channels, drawn at random, and read at most as many, first those
        that they reach.

        In a grouped layer, independently drawn channels may share no group; their map is zero and
        says nothing about the layer.
        """
        fed = self.random.choice(self.channels, min(self.channels, most), replace=False)
        self.inputs = np.sort(fed)
        x = self.noise(1)
        reached = (self._run(x) != self._run(0 * x)).reshape(self.out_channels, -1).any(axis=1)
        order = np.concatenate(
            [self.random.permutation(np.flatnonzero(part)) for part in (reached, ~reached)]
        )
        self.outputs = np.sort(order[:most])

    def rescale(self) -> None:
        """Rescale subsequent outputs if their squares would leave float64's range."""
        y = self(np.random.default_rng(0).standard_normal((1, len(self.inputs), *self.grid)))
        size = greatest(np.abs(y[np.isfinite(y)]))
        exponent = frexp(size)[1]
        self.exponent = exponent * (abs(exponent) > FAR)

    def __call__(self, x: ndarray) -> ndarray:
        """Run the layer: (B, channels fed, *grid) → (B, output positions, channels read), float64."""
        y = self._run(x)
        if y.shape != (shape := (len(x), self.out_channels, *self.output)):
            raise ValueError(
                f"the layer makes {y.shape} of {x.shape}, and not {shape} as of the first input"
            )
        y = y.reshape(*shape[:2], prod(self.output))
        return np.ldexp(y[:, self.outputs].transpose(0, 2, 1), -self.exponent)

    def _input(self, x: ndarray) -> Tensor:
        full = torch.zeros(len(x), self.channels, *self.grid, dtype=self.dtype, device="cpu")
        full[:, torch.from_numpy(self.inputs)] = torch.from_numpy(np.ascontiguousarray(x)).to(
            self.dtype
        )
        return full

    def _run(self, x: ndarray) -> ndarray:
        tensor = self._input(x)
        try:
            with torch.no_grad(), torch.device("cpu"):  # where the copy is, whatever the default
                if self.stock:
                    tokens = tensor.flatten(2).transpose(1, 2)
                    y = self.function(tokens, tokens, tokens, need_weights=False)[0]
                    y = y.transpose(1, 2).unflatten(2, self.grid)
                else:
                    y = self.function(tensor)
            if not isinstance(y, Tensor):
                raise TypeError(
                    f"it gives a {type(y).__name__}, and not a tensor (batch, channels, *output)"
                )
            if y.is_complex():
                raise TypeError("it gives complex numbers, and an audit is of real ones")
            return float64(y)
        except Exception as error:  # an unknown layer may raise anything
            plain = isinstance(error, RuntimeError) and not isinstance(self.function, nn.Module)
            hint = " (a function of float32 tensors takes dtype=torch.float32)" * (
                plain and self.dtype == torch.float64
            )
            raise ValueError(
                f"the layer cannot be run on {self.dtype} inputs of shape {tuple(x.shape)}: {_line(error)}{hint}"
            ) from error

    def probabilities(
        self, x: ndarray, own: Callable[[Tensor], Tensor | None] | None
    ) -> ndarray | None:
        """The attention of every head, (B, heads, outputs, keys); None if the layer does not expose
        it.

        Args:
            x: (B, channels fed, *grid).
            own: computes it for an input; by default the layer's method
                ``attention_probabilities``, or the weights returned by its only
                ``nn.MultiheadAttention``.
        """
        own = own or getattr(self.function, "attention_probabilities", None)
        try:
            with torch.no_grad(), torch.device("cpu"):  # where the copy is, whatever the default
                p = own(self._input(x)) if own else self._hooked(x)
            if p is None:
                return None
            maps = float64(p)
        except Exception as error:  # an unknown layer may raise anything
            raise ValueError(
                f"the layer's attention cannot be looked at: {_line(error)}"
            ) from error
        if maps.ndim != 4 or len(maps) not in (1, len(x)) or maps.shape[2] != prod(self.output):
            raise ValueError(
                f"the attention has shape {maps.shape}, and not (batch, heads, {prod(self.output)} outputs, keys)"
            )
        return np.broadcast_to(maps, (len(x), *maps.shape[1:]))

    def _hooked(self, x: ndarray) -> Tensor | None:
        """The weights of the only ``nn.MultiheadAttention`` in the layer's copy during a run:
        (B, heads, outputs, keys).
        """
        if not isinstance(self.function, nn.Module):
            return None
        inside = [
            module
            for module in self.function.modules()
            if isinstance(module, nn.MultiheadAttention)
        ]
        if len(inside) != 1:
            return None
        inner = inside[0]
        recorded = []
        forward = inner.forward

        def hooked(*args: Any, **options: Any) -> tuple[Tensor, None]:
            y, weights = forward(
                *args, **{**options, "need_weights": True, "average_attn_weights": False}
            )
            recorded.append(weights)
            return y, None

        inner.forward = hooked  # only on the copy
        try:
            self._run(x)
        finally:
            del inner.forward
        if len(recorded) == 1:
            return recorded[0]
        return None


@dataclass(frozen=True)
class LinearMap:
    """A layer's linear map by impulse response, and the layer's deviation from linearity.

    Attributes:
        superposition: the largest |g(ax + by) − a·g(x) − b·g(y)| on random inputs of several sizes,
            g = f − f(0), relative to the size of the channel's outputs.
        products: n = T·C + 8, the most products in an output.
        rounding: n·ε, the relative error that rounding alone can cause.
        constant: f(0), (O, D).
        matrix: A, (O, T, D, C); for a non-affine layer, its response to impulses of size 1.
        finite: bool (O,), which outputs were finite in every run.
        grid, output: the spatial sizes of input and output.
    """

    superposition: float
    products: int
    rounding: float
    constant: ndarray
    matrix: ndarray
    finite: ndarray
    grid: Vector
    output: Vector

    @property
    def affine(self) -> bool:
        """Whether superposition holds within rounding."""
        return self.superposition <= 8 * self.rounding


def impulse_response(black_box: BlackBox, budget: int) -> LinearMap:
    """Test superposition, then measure the map column by column with impulses.

    Raises:
        ValueError: the map would exceed the budget.
    """
    places = prod(black_box.grid)
    channels = len(black_box.inputs)
    outputs = prod(black_box.output)
    width = len(black_box.outputs)
    needed = 3 * 8 * outputs * places * width * channels  # the map, and two copies during the fit
    if needed > budget:
        raise ValueError(
            f"the map from {places} × {channels} inputs to {outputs} × {width} outputs would take "
            f"{needed / 2**30:.3g} GiB, over the budget of {budget / 2**30:.3g} GiB; "
            "audit it on a smaller grid, or fewer channels (most_channels)"
        )
    finite = np.ones(outputs, dtype=bool)

    def run(x: ndarray) -> ndarray:
        y = black_box(x)
        finite[:] &= np.isfinite(y).all(axis=(0, 2))
        return np.where(np.isfinite(y), y, 0.0)

    constant = run(np.zeros((1, channels, *black_box.grid)))[0]
    products = places * channels + 8
    rounding = products * float(torch.finfo(black_box.dtype).eps)
    off, finite[:] = _superposition(black_box, INPUT_SIZES[0], constant, finite, products)
    large = _AMPLITUDE[black_box.dtype]
    for size in (*INPUT_SIZES[1:], large):
        wrong, judged = _superposition(black_box, size, constant, finite, products)
        off = max(off, wrong)
    amplitude = large
    if (judged < finite).any() or off > 8 * rounding:
        amplitude = 1.0
    matrix = np.empty((outputs, places, width, channels))
    step = max(1, min(256, _BATCH_BYTES // (8 * max(places * channels, outputs * width))))
    for first in range(0, places * channels, step):
        chosen = np.arange(first, min(first + step, places * channels))
        pulses = np.zeros((len(chosen), channels * places))
        pulses[np.arange(len(chosen)), chosen] = amplitude
        pulses = pulses.reshape(len(chosen), channels, *black_box.grid)
        answer = (run(pulses) - run(-pulses)) / (2 * amplitude)
        matrix[:, chosen % places, :, chosen // places] = answer
    sizes = (black_box.grid, black_box.output)
    return LinearMap(off, products, rounding, constant, matrix, finite, *sizes)


def _superposition(
    black_box: BlackBox,
    size: float,
    constant: ndarray,
    finite: ndarray,
    products: int,
) -> tuple[float, ndarray]:
    """The deviation from superposition on inputs of a size, as in :class:`LinearMap`, and the
    outputs judged, bool (O,).

    An output is judged until a run makes it infinite or NaN.
    """
    off = 0.0
    judged = finite.copy()
    for _ in range(3):
        x, y = size * black_box.noise(2)[:, None]
        a, b = black_box.random.uniform(0.5, 2.0, 2)
        values = np.stack([constant, *(black_box(z)[0] for z in (x, y, a * x + b * y))])
        judged &= np.isfinite(values).all(axis=(0, 2))
        f0, fx, fy, both = values = values[:, judged]
        wrong = np.abs((both - f0) - a * (fx - f0) - b * (fy - f0))
        off = max(off, greatest(wrong / sizes_by_channel(values, products)))
    return off, judged


def sizes_by_channel(values: ndarray, products: int) -> ndarray:
    """The largest |value| of each channel (the last axis), but at least the overall largest divided
    by ``products``.

    Rounding scales with a channel's own size if its numbers are sums of its own terms, and with the
    others' if they are mixed.
    """
    sizes = np.abs(values).max(axis=tuple(range(values.ndim - 1)), initial=0.0)
    sizes = np.maximum(sizes, sizes.max(initial=0.0) / products)
    return np.where(sizes > 0, sizes, 1.0)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
