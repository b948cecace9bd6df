"""Small convolutions with the attention's token grid, and exact scores on it from the code's own
encoding.

The scores are the numeric counterpart of :mod:`verify.theory.symbolic.proofs_scores`.  The
functions of ``construct.encoding.quadratic`` are looked up at call time, so replacements of them
are judged too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray

from construct.encoding import quadratic
from verify.layers.reading import taps_by_shift
from verify.oracle import Convolution, Geometry, Vector, places


def sides(lengths: Sequence[int]) -> str:
    """``3×5``."""
    return "×".join(map(str, lengths))


def positions(shape: Sequence[int]) -> ndarray:
    """Every position of a grid in row-major order, as Python integers, (T, d)."""
    return places(map(range, shape)).astype(object)


@dataclass(frozen=True)
class Setting:
    """A convolution's geometry on an input of fixed size, with the attention's token grid.

    ``padding`` counts zeros before and after each axis; ``stride`` and ``dilation`` have one number
    per axis; None means 0 or 1.
    """

    kernel: Vector
    size: Vector
    padding: Vector | None = None
    stride: Vector | None = None
    dilation: Vector | None = None

    @property
    def dims(self) -> int:
        """d."""
        return len(self.kernel)

    @property
    def s(self) -> Vector:
        """The stride of each axis."""
        return self.stride or (1,) * self.dims

    @property
    def dil(self) -> Vector:
        """The dilation of each axis."""
        return self.dilation or (1,) * self.dims

    @property
    def geometry(self) -> Geometry:
        """The certifier's geometry, of one channel."""
        pads = tuple((p, p) for p in self.padding or (0,) * self.dims)
        return Geometry(
            1, 1, self.kernel, self.s, pads, "zeros", self.dil, 1, False, (0,) * self.dims
        )

    @property
    def keys(self) -> ndarray:
        """The position of every token, (T, d)."""
        return positions(self.geometry.padded(self.size))

    @property
    def outputs(self) -> Vector:
        """The side lengths of the output."""
        return self.geometry.outputs(self.size)

    @property
    def queries(self) -> ndarray:
        """s·o + a for every output o, (Q, d)."""
        return positions(self.outputs) * np.array(self.s, dtype=object) + np.array(
            self.geometry.anchor, dtype=object
        )

    @property
    def taps(self) -> list[Vector]:
        """The kernel positions j in row-major order."""
        return list(product(*map(range, self.kernel)))

    @property
    def shifts(self) -> list[Vector]:
        """τ_j = dil·j − a."""
        return list(taps_by_shift(self.geometry))

    def one_hot(self, tau: Vector) -> ndarray:
        """The attention of a head on the one key at query + τ, (Q, T)."""
        targets = self.queries + np.array(tau, dtype=object)
        return (targets[:, None] == self.keys).all(axis=2).astype(int)

    def tokens(self, x: ndarray) -> ndarray:
        """The input (D_in, *size), padded with zeros and laid out as tokens: (T, D_in)."""
        widths: Any = [(0, 0), *self.geometry.pads]
        return np.pad(x, widths).reshape(len(x), -1).T

    def convolution(self, weight: ndarray, mode: str = "zeros") -> Convolution:
        """The oracle convolution with this geometry; weight (D_out, D_in, *kernel)."""
        return Convolution(weight, None, replace(self.geometry, padding_mode=mode))

    def __str__(self) -> str:
        parts = [sides(self.kernel), "on", sides(self.size)]
        named = (("padding", self.padding), ("stride", self.stride), ("dilation", self.dilation))
        parts += [f"{name} {sides(value)}" for name, value in named if value is not None]
        return " ".join(parts)


def differences(queries: ndarray, keys: ndarray) -> list[ndarray]:
    """δ = k − q for every query and key, one (Q, T) array per component."""
    return [keys[None, :, axis] - queries[:, None, axis] for axis in range(keys.shape[1])]


def quadratic_scores(
    queries: ndarray, keys: ndarray, tau: Sequence[Any], alpha: Any = 1
) -> ndarray:
    """v·r_δ with the quadratic encoding, (Q, T)."""
    pairs = zip(quadratic.v(tau, alpha), quadratic.r(differences(queries, keys)), strict=True)
    return np.sum([v * r for v, r in pairs], axis=0)


def radix_for(sides: Sequence[int]) -> Vector:
    """The mixed radix that numbers all shifts between positions of a grid: side m has 2m − 1 of
    them, −(m − 1) to m − 1.
    """
    return tuple(prod(2 * m - 1 for m in sides[axis + 1 :]) for axis in range(len(sides)))


def head_vector(
    tau: Sequence[Any], alpha: float, radix: Sequence[int] | None = None
) -> list[float]:
    """v of a head that looks at τ, for the quadratic encoding, or the parabola if ``radix`` is
    given.
    """
    centre = tuple(tau) if radix is None else (quadratic.number(tau, radix),)
    return [float(component) for component in quadratic.v(centre, alpha)]


def code_length(dims: int) -> int:
    """D_p of the quadratic encoding: the number of components of r_δ in d dimensions."""
    return len(quadratic.r((1,) * dims))
