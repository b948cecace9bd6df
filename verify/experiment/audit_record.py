"""The record of an audit: the fitted convolution, its residuals, and both as text and JSON."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from verify.argument.documents import json_data
from verify.experiment.head_maps import Head
from verify.oracle import Sides, Vector, greatest, times
from verify.verdict import as_html

LEAST_PRINTED = 1e-3
"""Shifts with smaller weights appear in the record but not in the text."""


@dataclass(frozen=True, eq=False)
class Audit:
    """The convolution nearest to an attention layer, measured on one grid, without claims about
    other inputs or grids.

    A distance is the relative residual √(Σ error² / Σ output²) for white noise, without constant
    parts: 0 for equal maps, 1 for maps with nothing in common.

    Attributes:
        grid: the input's spatial size.
        output: the spatial size of the output.
        channels: C and D of the layer.
        inputs, outputs: the indices of the channels fed and read.
        dtype: the dtype in which the layer was run.
        rounding: n·ε with n products per output, the relative error that rounding alone can cause.
        superposition: the largest relative error of g(ax + by) = a·g(x) + b·g(y), g = f − f(0).
        equivariance: the relative error of shifted outputs for shifted inputs, in the interior;
            None without two neighbouring interior outputs.
        kernel: of the nearest convolution, float64 ``(D, C, *K)`` for the channels read, zero
            between groups.
        stride, dilation: one number per axis.
        padding: how far the kernel reads before and after the grid on each axis; negative where it
            stops inside.
        padding_modes: the modes that match the border, among zeros, replicate, circular, reflect,
            or one per axis as in "zeros × circular"; ("none",) if no output reads padding; empty if
            no mode fits.
        bias: (D,).
        bias_variation: the largest deviation of f(0) from it at any output.
        groups: the largest number of channel blocks that the kernel splits into; None if not all
            channels were read.
        interior: the distance over outputs that read no padding; None if there are none.
        border: the distance over the other outputs, with the best padding mode; None if there are
            none.
        border_by_mode: the same for every padding mode.
        distance: over all outputs.
        exact: whether interior, border and bias all agree within rounding.
        interior_outputs: the number of interior outputs.
        not_finite: the number of outputs that were not finite for some finite input; all other
            figures exclude them.
        tap_ranks: the rank of every tap's D × C matrix, ``(*K)``.
        tap_effective_ranks: exp of the entropy of its normalised singular values, ``(*K)``: from 1
            to min(D, C).
        attention_available: whether the layer exposes its attention.
        heads: statistics of each head; None without attention, or if the keys do not lie on the
            grid.

    >>> import torch, verify
    >>> audit = verify.audit(torch.nn.Conv1d(1, 2, kernel_size=3), grid=(6,))
    >>> audit.channels, audit.kernel.shape, audit.output, audit.heads
    ((1, 2), (2, 1, 3), (4,), None)
    """

    grid: Vector
    output: Vector
    channels: tuple[int, int]
    inputs: Vector
    outputs: Vector
    dtype: str
    rounding: float
    superposition: float
    equivariance: float | None
    kernel: ndarray
    stride: Vector
    dilation: Vector
    padding: Sides
    padding_modes: tuple[str, ...]
    bias: ndarray
    bias_variation: float
    groups: int | None
    interior: float | None
    border: float | None
    border_by_mode: dict[str, float]
    distance: float
    exact: bool
    interior_outputs: int
    not_finite: int
    tap_ranks: ndarray
    tap_effective_ranks: ndarray
    attention_available: bool
    heads: tuple[Head, ...] | None

    @property
    def kernel_size(self) -> Vector:
        """The kernel size K, one number per axis."""
        return self.kernel.shape[2:]

    @property
    def padding_mode(self) -> str | None:
        """The first padding mode that fits; None if none does."""
        return next(iter(self.padding_modes), None)

    @property
    def affine(self) -> bool:
        """Whether superposition holds within rounding."""
        return self.superposition <= 8 * self.rounding

    @property
    def equivariant(self) -> bool | None:
        """Whether shifted inputs give shifted outputs within rounding, in the interior; None if
        this could not be tested.
        """
        if self.equivariance is None:
            return None
        return self.equivariance <= 8 * self.rounding

    @property
    def content(self) -> float | None:
        """The largest change of attention between inputs, over heads and queries; None without
        attention.
        """
        if self.heads is None:
            return None
        return max((head.content_most for head in self.heads), default=0.0)

    @property
    def collapsed(self) -> tuple[tuple[Vector, Vector], ...]:
        """(shift, heads) for every shift that receives more than half of the attention of several
        heads.
        """
        by_shift: dict[Vector, list[int]] = {}
        for number, head in enumerate(self.heads or ()):
            for shift, weight in head.shifts[:1]:
                if weight > 0.5:
                    by_shift.setdefault(shift, []).append(number)
        return tuple(
            (shift, tuple(numbers)) for shift, numbers in by_shift.items() if len(numbers) > 1
        )

    @property
    def unplaced(self) -> Vector:
        """The heads that give no key more than half of their attention."""
        return tuple(number for number, head in enumerate(self.heads or ()) if not head.peak > 0.5)

    @property
    def is_convolution(self) -> bool:
        """Whether the layer equals the convolution described here, on this grid, within rounding."""
        return self.exact and self.affine and bool(self.padding_modes) and not self.not_finite

    def record(self) -> dict[str, Any]:
        """The audit as JSON types."""
        derived = ("is_convolution", "affine", "equivariant", "kernel_size", "content", "unplaced")
        named = {name: getattr(self, name) for name in (*vars(self), *derived)}
        named["heads"] = self.heads and [head.record() for head in self.heads]
        named["collapsed"] = [{"shift": shift, "heads": heads} for shift, heads in self.collapsed]
        return json_data(named)

    def to_json(self) -> str:
        """The record as JSON text."""
        return json.dumps(self.record(), indent=1, allow_nan=False) + "\n"

    _repr_html_ = as_html

    def __str__(self) -> str:
        outputs = int(np.prod(self.output))
        verdict = "it is not a convolution"
        if self.is_convolution:
            verdict = "nothing tells it from a convolution here"
        not_finite = f"NOT FINITE: {self.not_finite} of {outputs} outputs, on finite inputs; they are left out below."
        lines = [
            f"Audit by experiment in {self.dtype}, on inputs of {times(self.grid)}: {verdict}.",
            "(Measured on this grid; an audit says nothing of other inputs and sizes.)",
            *[not_finite] * bool(self.not_finite),
            *self._size_sentence(),
            self._affine_sentence(),
            self._equivariance_sentence(),
            self._kernel_sentence(),
            self._distance_sentence(outputs),
            self._padding_sentence(),
            f"bias: up to {greatest(np.abs(self.bias)):.3g} in size, and {self.bias_variation:.1e} apart between outputs",
            f"taps: rank {_span(self.tap_ranks, 'd')} of {min(self.kernel.shape[:2])}, "
            f"effective rank {_span(self.tap_effective_ranks, '.2f')}",
            *self._head_sentences(),
        ]
        return "\n".join(lines)

    def _size_sentence(self) -> list[str]:
        if self.is_convolution or all(m <= n for m, n in zip(self.output, self.grid, strict=True)):
            return []
        return [
            f"LARGER: the output is {times(self.output)}; transposed convolutions with a stride are not looked for, "
            "so it may be one of these"
        ]

    def _affine_sentence(self) -> str:
        if self.affine:
            return f"affine: yes, superposition holds to {self.superposition:.1e} (rounding {self.rounding:.1e})"
        return f"affine: no, superposition is off by {self.superposition:.1e} of the output's size"

    def _equivariance_sentence(self) -> str:
        if self.equivariance is None:
            return "translation: could not be tried, no two interior outputs lie side by side on this grid"
        give = "give" if self.equivariant else "do not give"
        return f"translation: shifted inputs {give} shifted outputs, to {self.equivariance:.1e} in the interior"

    def _kernel_sentence(self) -> str:
        (d, c), (all_in, all_out) = self.kernel.shape[:2], self.channels
        sentence = f"nearest convolution: {c} → {d} channels, kernel {times(self.kernel_size)}, stride {times(self.stride)}"
        sentence += f", dilation {times(self.dilation)}"
        if self.groups is None:
            return f"{sentence} (only these channels were read, of {all_in} → {all_out})"
        return f"{sentence}, {self.groups} group{'s' * (self.groups > 1)}"

    def _distance_sentence(self, outputs: int) -> str:
        parts = []
        if self.interior is not None:
            parts.append(f"{self.interior:.2e} at {self.interior_outputs} interior outputs")
        if self.border is not None:
            parts.append(
                f"{self.border:.2e} at {outputs - self.not_finite - self.interior_outputs} border outputs"
            )
        return f"distance: {self.distance:.2e}, where 0 is the same map and 1 nothing in common ({', '.join(parts)})"

    def _padding_sentence(self) -> str:
        around = ", ".join(f"{before} before and {after} after" for before, after in self.padding)
        if self.padding_modes == ("none",):
            return "padding: none, every output reads real positions only"
        border = ", ".join(f"{mode} {left:.1e}" for mode, left in self.border_by_mode.items())
        named = " or ".join(self.padding_modes) or "none of them"
        return f"padding: {named} (reads {around} the grid; distance of the border from each: {border})"

    def _head_sentences(self) -> list[str]:
        if not self.attention_available:
            return ["heads: the layer shows no attention, so nothing is said of heads"]
        if self.heads is None:
            return [
                "heads: the keys of its attention lie on no grid that could be made out, so nothing is said of heads"
            ]
        content = "none, no input moves the attention"
        if self.content:
            content = f"other inputs move up to {100 * self.content:.1f} % of a query's attention"
        lines = [f"content: {content}"]
        lines += [
            f"head {number}: {_head_sentence(head)}" for number, head in enumerate(self.heads)
        ]
        lines += [
            f"COLLAPSED: heads {', '.join(map(str, heads))} all look at {_place(shift)}"
            for shift, heads in self.collapsed
        ]
        if self.unplaced:
            most = max(self.heads[number].peak for number in self.unplaced)
            lines.append(
                f"UNPLACED: {len(self.unplaced)} of {len(self.heads)} heads look at no single position, "
                f"at most {100 * most:.3g} % of their attention"
            )
        return lines


def _head_sentence(head: Head) -> str:
    printed = [(_place(shift), weight) for shift, weight in head.shifts if weight >= LEAST_PRINTED]
    if len(printed) == 1 and 1 - printed[0][1] < LEAST_PRINTED:
        return f"looks at shift {printed[0][0]}"
    shifts = ", ".join(f"{place} {100 * weight:.3g} %" for place, weight in printed)
    centre = _place(tuple(round(x, 3) + 0.0 for x in head.centre))
    peak = f"at most {100 * head.peak:.3g} % on one key"
    return f"centre {centre}, spread {head.spread:.3g} pixels, {peak}; most on shifts {shifts}"


def _place(numbers: tuple[float, ...]) -> str:
    return f"({', '.join(f'{x:g}' for x in numbers)})"


def _span(numbers: ndarray, form: str) -> str:
    """The least and the greatest of these numbers, or one if they read the same."""
    return " to ".join(dict.fromkeys(f"{x:{form}}" for x in (numbers.min(), numbers.max())))
