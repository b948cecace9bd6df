"""TokenGrid: the padded input as attention tokens, and which of them are queries.

Padding consists of real tokens.  A head whose target lies off the grid would not attend to nothing: softmax always picks
some key, the nearest one, which amounts to replicate padding.  So the grid is padded first, every head's target lies on it,
and only the queries of outputs are kept.

Two integer vectors per axis describe any padding mode, stride, dilation or transposed convolution, in any dimension:

    sources[t]   the input position that token t copies, or −1 for a token of zeros
    queries[o]   the token that is the query of output o, at s·o + a
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from math import prod

import numpy as np
import torch
from torch import Tensor, constant_pad_nd
from torch.utils._python_dispatch import _disable_current_modes

from construct.errors import require
from construct.geometry import ConvGeometry


def sources_along_axis(n: int, stuffing: int, pads: tuple[int, int], mode: str) -> Tensor:
    """The input position that each token of a padded axis copies, or −1 for zeros.

    Args:
        n: input positions on this axis.
        stuffing: distance between two inputs on the token axis (above 1 only for transposed convolutions).
        pads: tokens before and after; negative numbers crop.
        mode: the padding mode.

    Returns:
        int64, of length stuffing·(n − 1) + 1 + pads[0] + pads[1].

    Raises:
        RuntimeError: the mode cannot pad that far, as in torch.
    """
    before, after = pads
    widest = max(before, after)
    position = np.arange(-before, stuffing * (n - 1) + 1 + after)
    if mode == "zeros":
        real = (position >= 0) & (position <= stuffing * (n - 1)) & (position % stuffing == 0)
        position = np.where(real, position // stuffing, -1)
    elif mode == "replicate":
        position = position.clip(0, n - 1)
    elif mode == "circular":
        if widest > n:
            raise RuntimeError(f"MHSA: circular padding of {widest} wraps more than once around {n} positions")
        position = position % n
    elif mode == "reflect":
        if widest >= n:
            raise RuntimeError(f"MHSA: reflect padding of {widest} needs more than {n} positions")
        position = (n - 1) - np.abs((n - 1) - np.abs(position))
    else:
        raise ValueError(f"MHSA: unknown padding mode {mode!r}")
    return _to_tensor(position)


def output_size(geometry: ConvGeometry, size: tuple[int, ...]) -> tuple[int, ...]:
    """The spatial size of the output for an input of spatial size ``size``.

    Raises:
        RuntimeError: there is none; torch's convolution raises too.
    """
    if any(n < 1 for n in size):
        raise RuntimeError(f"MHSA: every spatial size must be positive, got {tuple(size)}")
    output = geometry.output_size(size)
    if any(o < 1 for o in output):
        raise RuntimeError(
            f"MHSA: an input of size {tuple(size)} is too small for kernel {geometry.kernel_size} with dilation "
            f"{geometry.dilation} and padding {geometry.padding}: the output would be {output}"
        )
    return output


LONG = 2**10
"""Grids of inputs up to this length are small, so many are cached: a network has many layers."""


@dataclass(frozen=True)
class TokenGrid:
    """The padded token grid of one call.

    Attributes:
        sources: per axis, int64 (n_i,): the input position that each token copies, −1 for zeros.
        queries: per axis, int64 (o_i,): the token position of each output's query.
    """

    sources: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]

    @classmethod
    def of(cls, geometry: ConvGeometry, size: tuple[int, ...]) -> "TokenGrid":
        """The grid for an input of spatial size ``size``; cached.

        Raises:
            RuntimeError: this size has no output, or the padding mode cannot pad it; torch's convolution raises too.
            NotEnoughMemory: even the token numbers along the axes do not fit.
        """
        return (_small if max(size) <= LONG else _large)(geometry, size)

    @classmethod
    def _of(cls, geometry: ConvGeometry, size: tuple[int, ...]) -> "TokenGrid":
        output = output_size(geometry, size)
        along = sum(max(0, n) for n in (*geometry.token_shape(size), *output))
        require(32 * along, torch.device("cpu"), f"numbering the padded grid of an input of size {size}")
        return cls(
            tuple(
                sources_along_axis(n, stuff, pads, geometry.padding_mode)
                for n, stuff, pads in zip(size, geometry.stuffing, geometry.pads, strict=True)
            ),
            tuple(
                _to_tensor(s * np.arange(o) + a)
                for o, s, a in zip(output, geometry.query_stride, geometry.anchor, strict=True)
            ),
        )

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Tokens along each axis."""
        return tuple(len(axis) for axis in self.sources)

    @cached_property
    def query_shape(self) -> tuple[int, ...]:
        """Queries along each axis: the spatial size of the output."""
        return tuple(len(axis) for axis in self.queries)

    @cached_property
    def token_count(self) -> int:
        """T, the number of tokens, which are the keys."""
        return prod(self.shape)

    @cached_property
    def query_count(self) -> int:
        """The number of queries."""
        return prod(self.query_shape)

    def gather(self, x: Tensor) -> Tensor:
        """The padded input as a sequence of tokens: (B, C, *size) → (B, T, C)."""
        return self.padded(x).flatten(2).transpose(1, 2)

    def padded(self, x: Tensor) -> Tensor:
        """The padded input: (B, C, *size) → (B, C, *shape)."""
        if self.affine is not None and all(step == 1 for _, step in self.affine):
            axes = zip(self.affine, x.shape[2:], self.shape, strict=True)
            sides = [(begin, length - begin - n) for (begin, _), n, length in axes]  # negative where padding crops
            pads = [n for pair in reversed(sides) for n in pair]
            return constant_pad_nd(x, pads) if any(pads) else x  # torch would copy even without padding
        for axis, source in enumerate(self.sources, start=2):
            places = array_of(source)
            if np.array_equal(places, np.arange(x.shape[axis])):
                continue  # nothing to pad on this axis
            absent = places < 0
            x = x.index_select(axis, torch.from_numpy(places.clip(min=0)).to(x.device))
            if absent.any():
                # Filled, not multiplied by 0: the copied number may be inf or NaN.
                mask = torch.from_numpy(absent).to(x.device).view(-1, *(1,) * (x.dim() - axis - 1))
                x = x.masked_fill(mask, 0)
        return x

    @cached_property
    def affine(self) -> tuple[tuple[int, int], ...] | None:
        """(b, σ) of each axis if input i is token b + σ·i and all other tokens are zeros; None if padding copies inputs."""
        maps = []
        for source in self.sources:
            places = array_of(source)
            real = np.flatnonzero(places >= 0)
            if not len(real):
                maps.append((len(places), 1))  # zeros only: every input lies beyond the grid
                continue
            first = int(real[0])
            # A single token fixes no σ: take one so large that every other input lies beyond the grid.
            step = int(real[1]) - first if len(real) > 1 else len(places)
            begin = first - step * int(places[first])
            if not np.array_equal(real, begin + step * places[real]):
                return None
            maps.append((begin, step))
        return tuple(maps)

    # ---- relative shifts -----------------------------------------------------------------------------------------
    # Position scores depend on δ = k − q alone: they are computed once for every δ of the box that occurs, and looked up.
    # In mixed radix the index of δ is a sum, code(δ) = key_codes[k] + query_codes[q].

    @cached_property
    def box(self) -> tuple[tuple[int, int], ...]:
        """The least and greatest δ along each axis."""
        return tuple((-last, n - 1 - first) for n, first, last in zip(self.shape, self.first, self.last, strict=True))

    @cached_property
    def first(self) -> tuple[int, ...]:
        """The token position of the first output's query, per axis."""
        return tuple(int(array_of(query)[0]) for query in self.queries)

    @cached_property
    def last(self) -> tuple[int, ...]:
        """The token position of the last output's query, per axis."""
        return tuple(int(array_of(query)[-1]) for query in self.queries)

    @cached_property
    def step(self) -> tuple[int, ...] | None:
        """The distance between neighbouring queries, per axis (1 for a single query); None if it varies."""
        steps = []
        for query in self.queries:
            gaps = np.diff(array_of(query))
            if len(gaps) and (gaps[0] < 1 or (gaps != gaps[0]).any()):
                return None
            steps.append(int(gaps[0]) if len(gaps) else 1)
        return tuple(steps)

    @cached_property
    def common_box(self) -> tuple[tuple[int, int], ...]:
        """The least and greatest δ along each axis for which *every* query has a key."""
        return tuple((-first, n - 1 - last) for n, first, last in zip(self.shape, self.first, self.last, strict=True))

    @property
    def box_size(self) -> int:
        """The number of shifts in the box."""
        return prod(most - least + 1 for least, most in self.box)

    def shifts(self) -> tuple[Tensor, ...]:
        """The components of every δ of the box: d vectors, float64 (box_size,), in the order of the codes."""
        axes = [torch.arange(least, most + 1, dtype=torch.float64, device="cpu") for least, most in self.box]
        return tuple(component.flatten() for component in torch.meshgrid(*axes, indexing="ij"))

    @cached_property
    def _radix(self) -> tuple[int, ...]:
        lengths = [most - least + 1 for least, most in self.box]
        return tuple(prod(lengths[axis + 1 :]) for axis in range(len(lengths)))

    @cached_property
    def key_codes(self) -> Tensor:
        """The key's part of code(δ), int64 (T,)."""
        return _grid_sum([weight * np.arange(n) for n, weight in zip(self.shape, self._radix, strict=True)])

    @cached_property
    def query_codes(self) -> Tensor:
        """The query's part of code(δ), int64 (queries,); never negative."""
        pairs = zip(self.queries, self.last, self._radix, strict=True)
        return _grid_sum([weight * (last - array_of(query)) for query, last, weight in pairs])

    @cached_property
    def query_tokens(self) -> Tensor:
        """The row-major token number of each query, int64 (queries,)."""
        strides = [prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        return _grid_sum([stride * array_of(query) for query, stride in zip(self.queries, strides, strict=True)])


_small = lru_cache(maxsize=512)(TokenGrid._of)
_large = lru_cache(maxsize=32)(TokenGrid._of)


def _grid_sum(parts: Sequence[np.ndarray]) -> Tensor:
    """Σ_i parts_i over the whole grid, flattened row-major: (n_1,), …, (n_d,) → int64 (n_1·…·n_d,)."""
    return _to_tensor(reduce(np.add.outer, parts).ravel())


def _to_tensor(array: np.ndarray) -> Tensor:
    """A plain tensor even under fake mode, ``torch.func`` or inference mode, since grids are cached."""
    with torch._C._DisableFuncTorch(), _disable_current_modes(), torch.inference_mode(False):
        return torch.from_numpy(array)


def array_of(tensor: Tensor) -> np.ndarray:
    """A grid's numbers as an array, even while ``torch.func`` wraps new tensors."""
    with torch._C._DisableFuncTorch():
        return tensor.numpy()
