"""The relative positional encodings of an attention layer: D_p, and r_δ for every shift δ of a token grid.

    Quadratic     r_δ = (‖δ‖², δ), D_p = d + 1: Lemma 2, the encoding of the theorem
    Parabola      r_δ = (n², n) with n the shift's number in mixed radix, D_p = 2
    Covariance    r_δ = (δ_i δ_j for i ≤ j, δ), D_p = d(d + 3)/2: a Gaussian of any covariance
    Relative      r_δ = a learned row for each component of δ, concatenated

The formulae are those of :mod:`construct.encoding.quadratic`.  Every position score is c_h·r_δ with c_h = Ŵ_keyᵀ v_h.
If it is a sum over the axes, its exponential is a product and the softmax factorises over the axes (``along``).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from construct.encoding import quadratic
from construct.heads import require_distinct, shift_of_number
from construct.tokens import TokenGrid


class Encoding(ABC):
    """One relative positional encoding.  A subclass of your own is evaluated, but not factorised.

    Attributes:
        name: in files and messages; the qualified name of a class outside this module.
        factorises: whether the score is a sum over the axes for every c; ``along`` is then one axis's summand.
    """

    name: ClassVar[str]
    factorises: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if cls.__module__ != __name__:
            cls.name = f"{cls.__module__}.{cls.__qualname__}"

    @abstractmethod
    def pos_dim(self, dims: int) -> int:
        """D_p in d dimensions."""

    @abstractmethod
    def r(self, grid: TokenGrid) -> Tensor:
        """r_δ for every shift of the grid's box: float64 (D_p, box_size), in the order of :meth:`TokenGrid.shifts`.

        Raises:
            ValueError: the encoding does not cover all shifts of the grid.
        """

    @abstractmethod
    def centres(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """Sharpness and centre of heads: c, float64 (heads, D_p) → α (heads,) and τ (heads, d), float64.

        Raises:
            ValueError: this encoding has no centres.
        """

    def along(self, c: Any, delta: Any, axis: int) -> Any:
        """One axis's summand of the scores: c (heads, D_p), δ_i (…, n) → (heads, …, n); tensors or numpy arrays.

        Raises:
            ValueError: the score is not a sum over the axes.
        """
        raise ValueError(f"MHSA: scores of the {self.name} encoding are no sum over the axes")

    def components(self, axis: int) -> list[int]:
        """The components of c that an axis's summand depends on."""
        raise ValueError(f"MHSA: scores of the {self.name} encoding are no sum over the axes")


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
        """Solve c = −α(1, −2τ), where c may be rounded; τ is an integer if an integer reproduces exactly these numbers."""
        alpha, linear = -c[:, :1], c[:, 1:]
        tau = linear / (2 * alpha)
        return alpha[:, 0], torch.where(2 * alpha * tau.round() == linear, tau.round(), tau)

    def along(self, c: Any, delta: Any, axis: int) -> Any:
        """The one-dimensional score: c·r_δ is the sum of these over the axes, as ‖δ‖² is a sum over the axes."""
        square, linear = quadratic.r((delta,))
        shape = (-1, *(1,) * delta.ndim)
        return c[:, 0].reshape(shape) * square + c[:, axis + 1].reshape(shape) * linear

    def components(self, axis: int) -> list[int]:
        """The components of ‖δ‖² and of the axis."""
        return [0, axis + 1]


@dataclass(frozen=True)
class Parabola(Encoding):
    """r_δ = (n², n), n the number of δ in mixed radix, with one weight per axis."""

    radix: tuple[int, ...]
    name = "parabola"

    def pos_dim(self, dims: int) -> int:
        """2, in every dimension."""
        return 2

    def r(self, grid: TokenGrid) -> Tensor:
        """(n², n)."""
        require_distinct(self.radix, grid.box)
        return torch.stack(quadratic.r((quadratic.number(grid.shifts(), self.radix),)))

    def centres(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """α, and as τ the shift with the nearest number."""
        alpha, number = -c[:, 0], -c[:, 1] / (2 * c[:, 0])
        shifts = [shift_of_number(int(n), self.radix) for n in number.round()]
        return alpha, torch.tensor(shifts, dtype=torch.float64, device=c.device)


@dataclass(frozen=True)
class Covariance(Encoding):
    """r_δ = (δ_i δ_j for i ≤ j, δ)."""

    name = "covariance"

    def pos_dim(self, dims: int) -> int:
        """Returns d(d + 1)/2 + d."""
        return dims * (dims + 3) // 2

    def r(self, grid: TokenGrid) -> Tensor:
        """The products δ_i δ_j, then the components of δ."""
        return torch.stack(quadratic.r_covariance(grid.shifts()))

    def centres(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """τ = −½A⁻¹b of the score δᵀAδ + b·δ; α is its least curvature, so that scores fall by at least α‖δ − τ‖².

        If A = −α·1, this is the α of the quadratic encoding.  Without a maximum (α ≤ 0), τ is the stationary point, or NaN if
        there is none.
        """
        form, linear = self.form(c)
        stationary, failed = torch.linalg.solve_ex(form, linear.unsqueeze(2))
        tau = -0.5 * stationary.squeeze(2)
        return -torch.linalg.eigvalsh(form)[:, -1], torch.where(failed[:, None] == 0, tau, torch.nan)

    @staticmethod
    def form(c: Tensor) -> tuple[Tensor, Tensor]:
        """The symmetric A (heads, d, d) and b (heads, d) of the score δᵀAδ + b·δ."""
        dims = next(d for d in range(1, c.shape[1] + 1) if d * (d + 3) // 2 == c.shape[1])
        row, column = torch.triu_indices(dims, dims, device=c.device)
        upper = c.new_zeros(len(c), dims, dims)
        upper[:, row, column] = c[:, : len(row)]
        return (upper + upper.mT) / 2, c[:, len(row) :]


@dataclass(frozen=True, eq=False)
class Relative(Encoding):
    """r_δ = (e_1[δ_1], …, e_d[δ_d]): learned rows for offsets up to a given size.

    Args:
        tables: e_i, (2·reach_i + 1, D_p,i): row j belongs to the offset j − reach_i.
    """

    tables: tuple[Tensor, ...]
    name = "relative"
    factorises = True

    def __post_init__(self) -> None:
        for axis, table in enumerate(self.tables, start=1):
            if table.dim() != 2 or table.shape[0] % 2 == 0 or not table.is_floating_point():
                raise ValueError(
                    f"MHSA: the offsets of axis {axis} are {table.dtype} {tuple(table.shape)}, not (2·reach + 1, width) numbers"
                )

    def pos_dim(self, dims: int) -> int:
        """The sum of the tables' widths."""
        if dims != len(self.tables):
            raise ValueError(f"MHSA: {len(self.tables)} tables of offsets for {dims} dimensions")
        return sum(table.shape[1] for table in self.tables)

    def r(self, grid: TokenGrid) -> Tensor:
        """The rows of all axes, concatenated; each shift needs a row of the tables."""
        for axis, (table, (least, most)) in enumerate(zip(self.tables, grid.box, strict=True), start=1):
            reach = len(table) // 2
            if max(-least, most) > reach:
                raise ValueError(
                    f"MHSA: the learned offsets of axis {axis} go from {-reach} to {reach}, and this input has shifts "
                    f"from {least} to {most}"
                )
        rows = [self.rows(delta, axis) for axis, delta in enumerate(grid.shifts())]
        return torch.cat([table[row].double().T for table, row in zip(self.tables, rows, strict=True)])

    def rows(self, delta: Tensor, axis: int) -> Tensor:
        """The row of each offset in its table, int64."""
        return delta.long().to(self.tables[axis].device) + len(self.tables[axis]) // 2

    def centres(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """Always raise ValueError: learned rows have no centre."""
        raise ValueError(
            "MHSA: a learned relative embedding has no centres; attention_probabilities shows where it looks"
        )

    def along(self, c: Any, delta: Any, axis: int) -> Any:
        """The product with one axis's rows: each axis has its own components, so c·r_δ is a sum over the axes."""
        return (c[:, self.components(axis)] @ self.tables[axis].double().T)[:, self.rows(delta, axis)]

    def components(self, axis: int) -> list[int]:
        """The components of c that belong to the axis's table."""
        first = sum(table.shape[1] for table in self.tables[:axis])
        return list(range(first, first + self.tables[axis].shape[1]))


CLASSICAL = (Quadratic, Parabola)
"""The theorem's encodings, the only ones that certificates, stock layers and exported programs support."""
LEARNED = (Covariance, Relative)
"""The other encodings of which files tell the layer."""
