"""What an encoding is, to a layer; and the theorem's own, r_δ = (‖δ‖², δ).

Every position score is c_h·r_δ with c_h = Ŵ_keyᵀ v_h.  If it is a sum over the axes, its
exponential is a product and the softmax factorises over the axes (``along``).  The formulae are
those of :mod:`construct.encoding.quadratic`, and the other encodings are in
:mod:`construct.encoding.encodings`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from construct.encoding import quadratic
from construct.geometry import ConvGeometry
from construct.tokens import TokenGrid


class Encoding(ABC):
    """One relative positional encoding.  A subclass of your own is evaluated, but not factorised.

    Attributes:
        name: in files and messages; the qualified name of a class of your own.
        factorises: whether the score is a sum over the axes for every c; ``along`` is then one
            axis's summand.
        taps_of: the geometry whose taps r_δ tells apart; None if r_δ is for every kernel.
    """

    name: ClassVar[str]
    factorises: ClassVar[bool] = False
    taps_of: ConvGeometry | None = None

    def __init_subclass__(cls) -> None:
        if cls.__module__.rpartition(".")[0] != __package__:
            cls.name = f"{cls.__module__}.{cls.__qualname__}"
            # What it may inherit from one of ours speaks of another r_δ.
            cls.factorises = False
            cls.attributes = lambda self: {"_encoding": self.name, "own_encoding": self}
            cls.record = Encoding.record

    @abstractmethod
    def pos_dim(self, dims: int) -> int:
        """D_p in d dimensions.

        Raises:
            ValueError: the encoding is one of another number of dimensions.
        """

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors, beside c, that scores are computed from; none, if r_δ is fixed."""
        return ()

    def require_covered(self, grid: TokenGrid) -> None:  # noqa: B027  most cover every grid
        """Check that there is an r_δ for every shift of the grid.

        Raises:
            ValueError: there is none for some.
        """

    @abstractmethod
    def r(self, grid: TokenGrid) -> Tensor:
        """r_δ for every shift of the grid's box: float64 (D_p, shifts), in the order of
        :meth:`~construct.tokens.TokenGrid.shifts`.

        Raises:
            ValueError: the encoding does not cover all shifts of the grid.
        """

    @abstractmethod
    def centres(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """Sharpness and centre of heads: c, float64 (heads, D_p) → α (heads,) and τ (heads, d),
        float64.

        Raises:
            ValueError: this encoding has no centres.
        """

    def head_vector(self, tau: Sequence[int], alpha: float) -> tuple[float, ...]:
        """The c of a head with the sharpness α that looks at the integer shift τ.

        Raises:
            ValueError: this encoding has no centres.
        """
        raise ValueError(f"MHSA: the {self.name} encoding has no head vector for a shift")

    def attributes(self) -> dict[str, Any]:
        """What a layer stores to know its encoding, by name: nothing for that of the theorem, and
        itself if its class is not one of ours.
        """
        return {"_encoding": self.name}

    def record(self) -> dict[str, Any]:
        """What a file says of the encoding, from which ``recorded_encoding`` makes it again; nothing
        for that of the theorem.
        """
        return {"encoding": self.name}

    def along(self, c: Any, delta: Any, axis: int) -> Any:
        """One axis's summand of the scores c·r_δ: c (…, D_p) and δ_i (…, n), broadcast against each
        other → (…, n); tensors or numpy arrays.

        Raises:
            ValueError: the score is not a sum over the axes.
        """
        raise ValueError(f"MHSA: scores of the {self.name} encoding are not a sum over the axes")


@dataclass(frozen=True)
class Quadratic(Encoding):
    """r_δ = (‖δ‖², δ)."""

    name = "quadratic"
    factorises = True

    def pos_dim(self, dims: int) -> int:
        """Returns d + 1."""
        return dims + 1

    def r(self, grid: TokenGrid) -> Tensor:
        """(‖δ‖², δ_1, …, δ_d)."""
        return torch.stack(quadratic.r(grid.shifts()))

    def centres(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """Solve c = −α(1, −2τ), where c may be rounded; τ is an integer if an integer reproduces
        exactly these numbers.
        """
        alpha = -c[:, :1]
        linear = c[:, 1:]
        tau = linear / (2 * alpha)
        return alpha[:, 0], torch.where(2 * alpha * tau.round() == linear, tau.round(), tau)

    def head_vector(self, tau: Sequence[int], alpha: float) -> tuple[float, ...]:
        """v = −α(1, −2τ)."""
        return quadratic.v(tau, alpha)

    def record(self) -> dict[str, Any]:
        """Nothing: layers have this encoding unless they say otherwise."""
        return {}

    attributes = record

    def along(self, c: Any, delta: Any, axis: int) -> Any:
        """The one-dimensional score: c·r_δ is the sum of these over the axes, as ‖δ‖² is a sum over
        the axes.
        """
        square, linear = quadratic.r((delta,))
        return c[..., 0, None] * square + c[..., axis + 1, None] * linear
