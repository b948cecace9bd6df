"""Step 7: both layers evaluated exactly on the counterexample of a refutation."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from verify.recheck.exact import leak
from verify.recheck.grids import Axis, axes_of, read_by_taps, sizes_of
from verify.recheck.heads import FORMATS, centre_at
from verify.recheck.layer_pair import LayerPair
from verify.recheck.strict_input import NotConfirmed, Record, Vector
from verify.verdict import Verdict

Inputs = Mapping[Vector, list[tuple[int, Fraction]]]
"""The nonzero inputs of one group by position: (channel of the group, value)."""


def refuted(pair: LayerPair, counter: Record) -> Verdict:
    """Evaluate both layers; each head reads its key, or the nearest on the grid.

    Raises:
        NotConfirmed: the claim does not speak of this input, or the outputs are others, or differ
            by no more than it allows.
    """
    prefix = f"layer {pair.stated.name!r}: the counterexample "
    if "shapes" in counter:
        return _other_size(pair, counter["shapes"], prefix)
    channel, *place = counter["output"]
    conv_axes, mhsa_axes = _axes(pair, place, prefix)
    group, o = divmod(channel, pair.kernel.shape[3])
    inputs = _inputs(pair, counter["input"], group, prefix)
    expected = Fraction(float(pair.bias[channel]))
    for tap, position in zip(pair.kernel, read_by_taps(pair.conv, conv_axes, place), strict=True):
        for source, value in inputs.get(position, ()):
            expected += value * Fraction(float(tap[group, source, o]))
    attended = Fraction(float(pair.a["b_out"][channel]))
    if inputs:  # where all are zeros, it does not matter where heads look
        for head, position in _reads(pair, mhsa_axes, place, prefix):
            for source, value in inputs.get(position, ()):
                row = pair.a["w_val"][head, group, source]
                column = pair.a["w_out"][head, group, :, o]
                attended += value * _dot(row, column)
    if [expected, attended] != [
        counter["convolution"],
        counter["attention"],
    ] or expected == attended:
        raise NotConfirmed(prefix + "gives other outputs than it says, or equal ones")
    if pair.stated.within is not None and abs(expected - attended) <= Fraction(pair.stated.within):
        raise NotConfirmed(
            prefix + "gives outputs that differ by no more than what the claim allows"
        )
    difference = f"the convolution is exactly {expected}, the attention {attended}"
    return Verdict("REFUTED", f"at output {counter['output']} {difference}")


def _other_size(pair: LayerPair, stated: tuple[Any, Any], prefix: str) -> Verdict:
    """A refutation by outputs of two sizes."""
    expected = sizes_of(pair.conv, pair.stated.grid)
    attended = sizes_of(pair.mhsa, pair.stated.grid)
    if (expected, attended) != stated or expected is None or expected == attended:
        raise NotConfirmed(
            f"{prefix}names other sizes than the outputs', {expected} and {attended}, or equal ones"
        )
    return Verdict(
        "REFUTED",
        f"the convolution's output has size {expected}, the attention's {attended or 'none'}",
    )


def _axes(pair: LayerPair, place: list[int], prefix: str) -> tuple[list[Axis], list[Axis]]:
    """The axes of both layers, which have outputs of one size, with this place in them, and read no
    content.
    """
    conv_axes = axes_of(pair.conv, pair.stated.grid)
    mhsa_axes = axes_of(pair.mhsa, pair.stated.grid)
    sizes = [len(axis.queries) for axis in conv_axes]
    same = (
        sizes == [len(axis.queries) for axis in mhsa_axes]
        and pair.conv.channels == pair.mhsa.channels
    )
    if (
        (pair.content & pair.carrying).any()
        or not same
        or any(at >= size for at, size in zip(place, sizes, strict=True))
    ):
        raise NotConfirmed(prefix + "cannot be evaluated")
    return conv_axes, mhsa_axes


def _inputs(pair: LayerPair, entries: Mapping[Vector, Fraction], group: int, prefix: str) -> Inputs:
    """The entries of one group, after all of them are inputs that the claim speaks of."""
    d_in = pair.kernel.shape[2]
    inputs: dict[Vector, list[tuple[int, Fraction]]] = {}
    for (source, *position), value in entries.items():
        inside = all(x < n for x, n in zip(position, pair.stated.grid, strict=True))
        if not inside or source >= pair.conv.d_in or abs(value) > Fraction(pair.stated.input_bound):
            raise NotConfirmed(prefix + "must be an input that the claim is about")
        if source // d_in == group:
            inputs.setdefault(tuple(position), []).append((source % d_in, value))
    return inputs


def _reads(
    pair: LayerPair, axes: list[Axis], place: list[int], prefix: str
) -> Iterator[tuple[int, Vector]]:
    """Each head that carries something, with the input position that it reads for the output at
    ``place``; −1 for a zero.
    """
    for head in map(int, np.flatnonzero(pair.carrying)):
        centre = centre_at(pair, head, axes)
        assert centre is not None
        keys = [
            int(axis.queries[at]) + n for axis, at, n in zip(axes, place, centre.shift, strict=True)
        ]
        nearest = [
            min(max(key, 0), len(axis.tokens) - 1) for key, axis in zip(keys, axes, strict=True)
        ]
        if leak(centre, FORMATS[pair.stated.dtype].log_eta) or (
            pair.radix is not None and keys != nearest
        ):
            raise NotConfirmed(f"{prefix}rests on head {head}, which is not one-hot")
        yield head, tuple(int(axis.tokens[key]) for axis, key in zip(axes, nearest, strict=True))


def _dot(row: np.ndarray, column: np.ndarray) -> Fraction:
    terms = (Fraction(float(x)) * Fraction(float(y)) for x, y in zip(row, column, strict=True))
    return sum(terms, Fraction(0))
