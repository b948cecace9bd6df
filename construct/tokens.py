"""TokenGrid: the padded input as attention tokens, and which of them are queries.

Padding consists of real tokens.  A head whose target lies off the grid would not attend to nothing:
softmax always picks some key, the nearest one, which amounts to replicate padding.  So the grid is
padded first, every head's target lies on it, and only the queries of outputs are kept.

Two integer vectors per axis describe any padding mode, stride, dilation or transposed convolution,
in any dimension:

    sources[t]   the input position that token t copies, or −1 for a token of zeros
    queries[o]   the token that is the query of output o, at s·o + a
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor, constant_pad_nd
from torch.utils._python_dispatch import _disable_current_modes

from construct.geometry import ConvGeometry


def host_waits(device: torch.device) -> bool:
    """Whether the host waits for copies to and from a device; then what does not change is copied
    once.
    """
    return device.type != "cpu"


def sources_along_axis(n: int, stuffing: int, pads: tuple[int, int], mode: str) -> Tensor:
    """The input position that each token of a padded axis copies, or −1 for zeros.

    Args:
        n: input positions on this axis.
        stuffing: distance between two inputs on the token axis (above 1 only for transposed
            convolutions).
        pads: tokens before and after; negative numbers crop.
        mode: the padding mode.

    Returns:
        int64, of length stuffing·(n − 1) + 1 + pads[0] + pads[1].

    Raises:
        RuntimeError: the mode cannot pad that far, as in torch.
    """
    before, after = pads
    check_reach(n, pads, mode)
    position = np.arange(-before, stuffing * (n - 1) + 1 + after)
    if mode == "zeros":
        real = (position >= 0) & (position <= stuffing * (n - 1)) & (position % stuffing == 0)
        position = np.where(real, position // stuffing, -1)
    elif mode == "replicate":
        position = position.clip(0, n - 1)
    elif mode == "circular":
        position = position % n
    elif mode == "reflect":
        position = (n - 1) - np.abs((n - 1) - np.abs(position))
    else:
        raise ValueError(f"MHSA: unknown padding mode {mode!r}")
    return _to_tensor(position)


def check_reach(n: int, pads: tuple[int, int], mode: str) -> None:
    """Check that a padding mode can pad n positions that far.

    Raises:
        RuntimeError: it cannot, as in torch.
    """
    widest = max(pads)
    if mode == "circular" and widest > n:
        raise RuntimeError(
            f"MHSA: circular padding of {widest} wraps more than once around {n} positions"
        )
    if mode == "reflect" and widest >= n:
        raise RuntimeError(f"MHSA: reflect padding of {widest} needs more than {n} positions")


def output_size(geometry: ConvGeometry, size: tuple[int, ...]) -> tuple[int, ...]:
    """The spatial size of the output for an input of spatial size ``size``; of a transposed layer,
    it may be empty.

    Raises:
        RuntimeError: there is none; torch's convolution raises too.
    """
    if any(n < 1 for n in size):
        raise RuntimeError(f"MHSA: every spatial size must be positive, got {tuple(size)}")
    output = geometry.output_size(size)
    if any(o < (0 if geometry.transposed else 1) for o in output):
        raise RuntimeError(
            f"MHSA: an input of size {tuple(size)} is too small for kernel {geometry.kernel_size} with dilation "
            f"{geometry.dilation} and padding {geometry.padding}: the output would be {output}"
        )
    return output


@dataclass(frozen=True)
class TokenGrid:
    """The padded token grid of one call, as a few numbers per axis; the vectors are worked out
    where they are needed.

    Attributes:
        size: n, the spatial size of the input.
        stuffing: the distance between two inputs on the token axis.
        pads: tokens before and after each axis; negative numbers crop.
        mode: the padding mode.
        first: the token position of the first output's query.
        step: the distance between neighbouring queries.
        query_shape: queries along each axis, the spatial size of the output.
    """

    size: tuple[int, ...]
    stuffing: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    mode: str
    first: tuple[int, ...]
    step: tuple[int, ...]
    query_shape: tuple[int, ...]

    @classmethod
    def of(cls, geometry: ConvGeometry, size: tuple[int, ...]) -> "TokenGrid":
        """The grid for an input of spatial size ``size``; cached.

        Raises:
            RuntimeError: this size has no output or an empty one, or the padding mode cannot pad
                it.
        """
        return _grid(geometry, size)

    @property
    def shape(self) -> tuple[int, ...]:
        """Tokens along each axis."""
        axes = zip(self.size, self.stuffing, self.pads, strict=True)
        return tuple(stuff * (n - 1) + 1 + before + after for n, stuff, (before, after) in axes)

    @cached_property
    def token_count(self) -> int:
        """T, the number of tokens, which are the keys."""
        return prod(self.shape)

    @cached_property
    def query_count(self) -> int:
        """The number of queries."""
        return prod(self.query_shape)

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """Per axis, int64 (n_i,), the input position that each token copies, −1 for zeros."""
        axes = zip(self.size, self.stuffing, self.pads, strict=True)
        return tuple(sources_along_axis(n, stuff, pads, self.mode) for n, stuff, pads in axes)

    @property
    def queries(self) -> tuple[Tensor, ...]:
        """Per axis, int64 (o_i,), the token position of each output's query."""
        return tuple(map(_to_tensor, self._query_places))

    def gather(self, x: Tensor) -> Tensor:
        """The padded input as a sequence of tokens: ``(B, C, *size)`` → (B, T, C)."""
        return self.padded(x).flatten(2).transpose(1, 2)

    def padded(self, x: Tensor) -> Tensor:
        """The padded input: ``(B, C, *size)`` → ``(B, C, *shape)``."""
        if self.affine is not None and set(self.stuffing) == {1}:
            pads = [n for pair in reversed(self.pads) for n in pair]
            # torch would copy even without padding
            return constant_pad_nd(x, pads) if any(pads) else x
        for axis, (n, stuff, pads) in enumerate(
            zip(self.size, self.stuffing, self.pads, strict=True), start=2
        ):
            if (stuff, *pads) == (1, 0, 0):
                continue  # nothing to pad on this axis
            placed = _placed if host_waits(x.device) else _placed.__wrapped__
            places, absent = placed(n, stuff, pads, self.mode, x.device)
            x = x.index_select(axis, places)
            if absent is not None:
                # Filled, not multiplied by 0: the copied number may be inf or NaN.
                x = x.masked_fill(absent.view(-1, *(1,) * (x.dim() - axis - 1)), 0)
        return x

    @property
    def stuffed(self) -> bool:
        """Whether zeros lie between inputs, as in a transposed layer, which has no other steps."""
        return max(self.stuffing) > 1

    @property
    def affine(self) -> tuple[tuple[int, int], ...] | None:
        """(b, σ) of each axis if input i is token b + σ·i and all other tokens are zeros; None if
        padding copies inputs.
        """
        if self.mode != "zeros" and any(map(any, self.pads)):
            return None
        return tuple(
            (before, stuff) for (before, _), stuff in zip(self.pads, self.stuffing, strict=True)
        )

    # ---- relative shifts
    # -----------------------------------------------------------------------------------------
    # Position scores depend on δ = k − q alone: they are computed once for every δ of the box that
    # occurs, and looked up. In mixed radix the index of δ is a sum of a key's and a query's.

    @cached_property
    def last(self) -> tuple[int, ...]:
        """The token position of the last output's query, per axis."""
        axes = zip(self.first, self.step, self.query_shape, strict=True)
        return tuple(first + step * (count - 1) for first, step, count in axes)

    @cached_property
    def box(self) -> tuple[tuple[int, int], ...]:
        """The least and greatest δ along each axis."""
        return tuple(
            (-last, n - 1 - first)
            for n, first, last in zip(self.shape, self.first, self.last, strict=True)
        )

    @cached_property
    def common_box(self) -> tuple[tuple[int, int], ...]:
        """The least and greatest δ along each axis for which *every* query has a key."""
        return tuple(
            (-first, n - 1 - last)
            for n, first, last in zip(self.shape, self.first, self.last, strict=True)
        )

    @property
    def box_shape(self) -> tuple[int, ...]:
        """The number of shifts in the box along each axis."""
        return tuple(most - least + 1 for least, most in self.box)

    def shifts(self) -> tuple[Tensor, ...]:
        """The components of every δ of the box: d vectors, float64, in the order of the codes."""
        axes = [
            torch.arange(least, most + 1, dtype=torch.float64, device="cpu")
            for least, most in self.box
        ]
        return tuple(component.flatten() for component in torch.meshgrid(*axes, indexing="ij"))

    def codes(self, queries: slice) -> Tensor:
        """The place in the box of δ = k − q for a block of queries and all keys, int64
        (queries, T).
        """
        keys = _numbers([np.arange(n) for n in self.shape], self.box_shape)
        axes = zip(self.step, self.query_shape, strict=True)
        places = [step * np.arange(count)[::-1] for step, count in axes]
        return _numbers(places, self.box_shape)[queries, None] + keys

    @property
    def query_tokens(self) -> Tensor:
        """The row-major token number of each query, int64 (queries,)."""
        return _numbers(self._query_places, self.shape)

    @property
    def _query_places(self) -> list[np.ndarray]:
        axes = zip(self.first, self.step, self.query_shape, strict=True)
        return [first + step * np.arange(count) for first, step, count in axes]


@lru_cache(maxsize=512)
def _grid(geometry: ConvGeometry, size: tuple[int, ...]) -> TokenGrid:
    output = output_size(geometry, size)
    if 0 in output:
        raise RuntimeError(
            f"MHSA: an input of size {size} has an empty output, {output}: there is no query"
        )
    for n, pads in zip(size, geometry.pads, strict=True):
        check_reach(n, pads, geometry.padding_mode)
    return TokenGrid(
        size=size,
        stuffing=geometry.stuffing,
        pads=geometry.pads,
        mode=geometry.padding_mode,
        first=geometry.anchor,
        step=geometry.query_stride,
        query_shape=output,
    )


def _numbers(axes: Sequence[np.ndarray], shape: Sequence[int]) -> Tensor:
    """The row-major numbers in an array of this shape of all points with these coordinates, (n_1,),
    …, (n_d,) → (n_1·…·n_d,).
    """
    return _to_tensor(np.ravel_multi_index(np.ix_(*axes), tuple(shape)).ravel())


@lru_cache(maxsize=32)
def _placed(
    n: int, stuffing: int, pads: tuple[int, int], mode: str, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """The input position that each token of an axis copies, 0 for zeros; and which are zeros, None
    if none is.
    """
    with torch._C._DisableFuncTorch():
        places = sources_along_axis(n, stuffing, pads, mode).numpy()
    absent = places < 0
    mask = _to_tensor(absent).to(device) if absent.any() else None
    return _to_tensor(places.clip(min=0)).to(device), mask


def _to_tensor(array: np.ndarray) -> Tensor:
    """A plain tensor even under fake mode, ``torch.func`` or inference mode."""
    with torch._C._DisableFuncTorch(), _disable_current_modes(), torch.inference_mode(False):
        return torch.from_numpy(array)
