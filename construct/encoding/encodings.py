"""The other relative positional encodings of an attention layer: D_p, and r_δ for every shift δ of
a token grid.

    Quadratic     r_δ = (‖δ‖², δ), D_p = d + 1: Lemma 2, the encoding of the theorem
    Parabola      r_δ = (n², n) with n the shift's number in mixed radix, D_p = 2
    Covariance    r_δ = (δ_i δ_j for i ≤ j, δ), D_p = d(d + 3)/2: a Gaussian of any covariance
    Relative      r_δ = a learned row for each component of δ, concatenated
    Taps          r_δ = a unit vector for each tap, and one for all other shifts: any table of scores

Subclass :class:`~construct.encoding.encoding.Encoding` for one of your own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from construct.encoding import quadratic
from construct.encoding.encoding import Encoding, Quadratic
from construct.geometry import ConvGeometry, whole_numbers
from construct.heads import Shift, tap_shifts
from construct.tokens import TokenGrid

# ---- the parabola: shifts of a bounded box as single numbers -------------------------------------


def balanced_radix(geometry: ConvGeometry, alpha: float) -> tuple[int, ...]:
    """The mixed radix of the parabola encoding: it numbers the largest box of shifts whose scores
    are exact in float64.

    Every axis takes −N … N, so radix_i = (2N + 1)^{d−1−i}.  Intermediate scores are at most 3αn² in
    size, with n at most ((2N + 1)^d − 1)/2; so N is the largest with 3αn² ≤ 2^53.  In one dimension
    the number is the shift itself.

    Raises:
        ValueError: the kernel's own shifts do not fit into that box.
    """
    widest = math.isqrt(int(2**53 / (3 * alpha)))  # the largest number n
    side = int((2 * widest + 1) ** (1 / geometry.dims)) + 2
    while side % 2 == 0 or side**geometry.dims > 2 * widest + 1:
        side -= 1
    most = side // 2
    if any(abs(t) > most for shift in tap_shifts(geometry) for t in shift):
        raise ValueError(
            f"at α = {alpha} the parabola numbers shifts up to {most}, and this kernel reaches farther"
        )
    return tuple(side ** (geometry.dims - 1 - axis) for axis in range(geometry.dims))


def shift_of_number(number: int, radix: Shift) -> Shift:
    """The shift with this number; all components but the first lie in the balanced range of their
    axis.
    """
    shift = []
    for weight, outer in pairwise(reversed(radix)):
        base = outer // weight
        digit = (number // weight + base // 2) % base - base // 2
        shift.append(digit)
        number -= digit * weight
    return (number // radix[0], *reversed(shift))


def shifts_are_distinct(radix: Shift, box: Sequence[tuple[int, int]]) -> bool:
    """Whether all shifts of the box have different numbers, exact in float64, from which the shifts
    can be read back.
    """
    widest = [max(-least, most, 0) for least, most in box]
    if (
        radix[-1] != 1
        or min(radix) < 1
        or sum(weight * n for weight, n in zip(radix, widest, strict=True)) > 2**53
    ):
        return False
    return all(
        outer % weight == 0 and n <= (outer // weight - 1) // 2
        for (outer, weight), n in zip(pairwise(radix), widest[1:], strict=True)
    )


def require_distinct(radix: Shift, box: Sequence[tuple[int, int]]) -> None:
    """Check that a radix numbers all shifts of a box differently.

    Raises:
        ValueError: two shifts would share a number.
    """
    if not shifts_are_distinct(radix, box):
        raise ValueError(
            f"MHSA: the parabola of radix {radix} cannot number the shifts {box} of this input"
        )


# ---- the encodings -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parabola(Encoding):
    """r_δ = (n², n), n the number of δ in mixed radix, with one weight per axis."""

    radix: tuple[int, ...]
    name = "parabola"

    def __post_init__(self) -> None:
        radix = whole_numbers(self.radix)
        if radix is None or not isinstance(self.radix, tuple):
            raise ValueError(f"the radix must be a tuple of whole numbers, not {self.radix!r}")
        object.__setattr__(self, "radix", radix)

    def pos_dim(self, dims: int) -> int:
        """2, in every dimension."""
        if dims != len(self.radix):
            raise ValueError(f"the radix {self.radix} has {len(self.radix)} weights, not {dims}")
        return 2

    def head_vector(self, tau: Sequence[int], alpha: float) -> tuple[float, ...]:
        """That of one dimension, for the number of τ."""
        return quadratic.v((quadratic.number(tau, self.radix),), alpha)

    def record(self) -> dict[str, Any]:
        """The radix."""
        return {"radix": self.radix}

    attributes = record

    def r(self, grid: TokenGrid) -> Tensor:
        """(n², n)."""
        require_distinct(self.radix, grid.box)
        return torch.stack(quadratic.r((quadratic.number(grid.shifts(), self.radix),)))

    def centres(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """α, and as τ the shift with the nearest number; NaN for a head without one."""
        alpha = -c[:, 0]
        number = -c[:, 1] / (2 * c[:, 0])
        tau = c.new_full((len(c), len(self.radix)), math.nan)
        for head, n in enumerate(number.tolist()):
            if math.isfinite(n):
                tau[head] = c.new_tensor(shift_of_number(round(n), self.radix))
        return alpha, tau


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
        """τ = −½A⁻¹b of the score δᵀAδ + b·δ; α is its least curvature, so that scores fall by at
        least α‖δ − τ‖².

        If A = −α·1, this is the α of the quadratic encoding.  Without a maximum (α ≤ 0), τ is the
        stationary point, or NaN if there is none.
        """
        form, linear = self.form(c)
        stationary, failed = torch.linalg.solve_ex(form, linear.unsqueeze(2))
        tau = -0.5 * stationary.squeeze(2)
        return -torch.linalg.eigvalsh(form)[:, -1], torch.where(
            failed[:, None] == 0, tau, torch.nan
        )

    @staticmethod
    def form(c: Tensor) -> tuple[Tensor, Tensor]:
        """The symmetric A (heads, d, d) and b (heads, d) of the score δᵀAδ + b·δ."""
        dims = (math.isqrt(9 + 8 * c.shape[1]) - 3) // 2  # D_p = d(d + 3)/2
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

    def attributes(self) -> dict[str, Any]:
        """The name, and copies of the tables as parameters, frozen at first."""
        stored: dict[str, Any] = {"_encoding": self.name}
        for axis, table in enumerate(self.tables, start=1):
            stored[f"offsets_{axis}"] = nn.Parameter(table.detach().clone(), requires_grad=False)
        return stored

    def tensors(self) -> tuple[Tensor, ...]:
        """The tables."""
        return self.tables

    def pos_dim(self, dims: int) -> int:
        """The sum of the tables' widths."""
        if dims != len(self.tables):
            raise ValueError(f"MHSA: {len(self.tables)} tables of offsets for {dims} dimensions")
        return sum(table.shape[1] for table in self.tables)

    def require_covered(self, grid: TokenGrid) -> None:
        """Each shift needs a row of the tables."""
        for axis, (table, (least, most)) in enumerate(
            zip(self.tables, grid.box, strict=True), start=1
        ):
            reach = len(table) // 2
            if max(-least, most) > reach:
                raise ValueError(
                    f"MHSA: the learned offsets of axis {axis} go from {-reach} to {reach}, and this input has shifts "
                    f"from {least} to {most}"
                )

    def r(self, grid: TokenGrid) -> Tensor:
        """The rows of all axes, concatenated."""
        self.require_covered(grid)
        components = []
        for axis, delta in enumerate(grid.shifts()):
            components.append(self.tables[axis][self.rows(delta, axis)].double().T)
        return torch.cat(components)

    def rows(self, delta: Tensor, axis: int) -> Tensor:
        """The row of each offset in its table, int64."""
        return delta.long().to(self.tables[axis].device) + len(self.tables[axis]) // 2

    def centres(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """Always raise ValueError: learned rows have no centre."""
        raise ValueError(
            "MHSA: a learned relative embedding has no centres; attention_probabilities shows where it looks"
        )

    def along(self, c: Any, delta: Any, axis: int) -> Any:
        """The product with one axis's rows: each axis has its own components, so c·r_δ is a sum
        over the axes.  D_p may be in the hundreds, but each axis has few rows.
        """
        own = c.split([table.shape[1] for table in self.tables], dim=-1)[axis]
        products = own @ self.tables[axis].double().T  # (…, rows)
        rows = self.rows(delta, axis)
        leading = torch.broadcast_shapes(products.shape[:-1], rows.shape[:-1])
        return products.expand(*leading, -1).gather(-1, rows.expand(*leading, -1))


@dataclass(frozen=True)
class Taps(Encoding):
    """r_δ = the unit vector of the tap whose head would look at δ, or the last one if there is none:
    c is a table of a score for each tap, in row-major order of the shifts, and one for all other
    shifts.  No sum over the axes could be any table.

    Args:
        taps_of: the geometry of the kernel.
    """

    taps_of: ConvGeometry = field()  # required: the base class's None is no default
    name = "taps"

    def pos_dim(self, dims: int) -> int:
        """One more than there are taps."""
        return self.taps_of.taps + 1

    def r(self, grid: TokenGrid) -> Tensor:
        """Exactly one component is 1 at each shift."""
        taps = torch.tensor(tap_shifts(self.taps_of), device="cpu")  # (taps, d)
        at_tap = (taps[:, :, None] == torch.stack(grid.shifts())).all(dim=1)
        return torch.cat([at_tap, ~at_tap.any(dim=0, keepdim=True)]).double()

    def centres(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """Always raise ValueError: a table has no centre."""
        raise ValueError(
            "MHSA: a table of scores has no centres; attention_probabilities shows where it looks"
        )


CLASSICAL = (Quadratic, Parabola)
"""The theorem's encodings, the only ones that certificates, stock layers and exported programs
support.
"""
NAMED = (Covariance, Relative, Taps)
"""The other encodings of which files tell the layer."""


def encoding_of(layer: Any) -> Encoding:
    """The encoding of a layer, from the attributes that it stores; a learned relative one has the
    current tables.

    Raises:
        ValueError: no encoding has the name that it stores.
    """
    if hasattr(layer, "own_encoding"):
        return layer.own_encoding
    return stated_encoding(layer)


def stated_encoding(layer: Any) -> Encoding:
    """The encoding of ours whose radix or name a layer stores; raises as :func:`encoding_of`, and if
    its geometry has been replaced by one of another number of taps than its table.
    """
    tensor = partial(getattr, layer)
    encoding = recorded_encoding(layer.radix, layer._encoding, layer.geometry, tensor)
    scores = layer.w_key_pos.shape[2]
    if encoding.taps_of and encoding.pos_dim(layer.geometry.dims) != scores:
        raise ValueError(f"MHSA: a table of {scores} scores is none of {layer.geometry}")
    return encoding


def recorded_encoding(
    radix: Any, name: object, geometry: ConvGeometry, tensor: Callable[[str], Any]
) -> Encoding:
    """The encoding with this radix or this name for a geometry, or the theorem's own with neither;
    ``tensor`` looks up a relative encoding's table by name.

    Raises:
        ValueError: no encoding has this name or this radix, or there are both.
    """
    if name is None and radix is None:
        return Quadratic()
    if name is None:
        return Parabola(radix)
    if radix is not None:
        raise ValueError("give a radix or an encoding; the radix is that of the parabola")
    if name == Covariance.name:
        return Covariance()
    if name == Taps.name:
        return Taps(geometry)
    if name != Relative.name:
        raise ValueError(f"no encoding {name!r}")
    axes = range(1, geometry.dims + 1)
    return Relative(tuple(tensor(f"offsets_{axis}") for axis in axes))
