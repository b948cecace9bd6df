"""A counterexample: an input on which the two exact outputs differ, found and then evaluated in rational arithmetic.

Only for attention that is one-hot and depends on position alone: then an output is b + Σ_h Σ_i X[read_h, i] (W_val W_out)_i, a
rational number, and so is the convolution's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from verify.layers.exact_output import Index, tap_matrix, taps_at
from verify.layers.fields import Attention, Geometry
from verify.layers.reading import ZERO, input_at, query_places, tap_place, tokens_along
from verify.oracle import Convolution

Readers = dict[Index, tuple[list[Index], list[int]]]
"""By input position: the taps and the heads that read it."""


@dataclass(frozen=True)
class Counterexample:
    """An input and one output on which the two layers differ, exactly.

    Attributes:
        entries: (channel, *position) → value; every other entry of the input is 0.
        output: (channel, *position) of the output looked at.
        convolution: the convolution's output there, exactly.
        attention: the attention's output there, exactly.
        sentence: for people.
        shapes: where the two outputs differ in shape (the attention's is None if there is no output): then the spatial size
            of both, and nothing else but the sentence.
    """

    entries: dict[Index, Fraction]
    output: Index
    convolution: Fraction | None
    attention: Fraction | None
    sentence: str
    shapes: tuple[Index, Index | None] | None = None

    def input(self, channels: int, grid: tuple[int, ...]) -> np.ndarray:
        """The input as an array (channels, *grid), float64."""
        x = np.zeros((channels, *grid))
        for index, value in self.entries.items():
            x[index] = float(value)
        return x


class Refuter:
    """Looks for a counterexample on one grid.

    Args:
        conv: the convolution's fields.
        g_conv: its geometry.
        attention: the attention layer's fields.
        shifts: the shift of every head; None for one that carries nothing.
        grid: the input's spatial size.
        outputs: the output's spatial size, the same for both layers.
        bound: B, the amplitude of the input.
    """

    def __init__(
        self,
        conv: Convolution,
        g_conv: Geometry,
        attention: Attention,
        shifts: Sequence[Index | None],
        grid: tuple[int, ...],
        outputs: tuple[int, ...],
        bound: float,
    ):
        self.conv, self.g_conv, self.attention, self.shifts = conv, g_conv, attention, shifts
        self.grid, self.outputs, self.bound = grid, outputs, bound
        axes, g = range(len(grid)), attention.geometry
        self.tokens = [tokens_along(g, axis, grid[axis]) for axis in axes]
        self.queries = [query_places(g, axis, outputs[axis]) for axis in axes]

    def bias(self) -> Counterexample | None:
        """The zero input, if the biases differ."""
        ours = self.attention.b_out
        theirs = np.zeros_like(ours) if self.conv.bias is None else self.conv.bias
        for channel in np.flatnonzero(ours != theirs):
            return self._confirmed({}, (int(channel), *(0 for _ in self.grid)), {})
        return None

    def search(self, places: Iterable[Index], wanted: Sequence[tuple[int, int, int]] = ()) -> Counterexample | None:
        """Try impulses at what the outputs at ``places`` read.

        Args:
            places: output positions to look at.
            wanted: entries (group, i, o) of the tap matrices to try first.
        """
        for place in places:
            readers = self._readers(place)
            for position in sorted(readers):
                difference = self._coefficients(*readers[position])
                entries = [*wanted, np.unravel_index(int(np.argmax(difference)), difference.shape)]
                for g, i, o in entries:
                    d_in, d_out = difference.shape[1:]
                    impulse = {(int(g * d_in + i), *position): Fraction(self.bound)}
                    found = self._confirmed(impulse, (int(g * d_out + o), *place), readers)
                    if found is not None:
                        return found
        return None

    def _readers(self, place: Index) -> Readers:
        """By input position, the taps and the heads that read it for the output at ``place``."""
        readers: Readers = {}
        for tap, position in taps_at(self.g_conv, self.grid, place):
            readers.setdefault(position, ([], []))[0].append(tap)
        for head, shift in enumerate(self.shifts):
            position = self.head_read(shift, place)
            if position is not None:
                readers.setdefault(position, ([], []))[1].append(head)
        return readers

    def conv_read(self, tap: Index, place: Index) -> Index | None:
        """The input position that a tap meets at an output, or None for a zero."""
        read = []
        for axis, (j, o) in enumerate(zip(tap, place, strict=True)):
            met = np.array([tap_place(self.g_conv, axis, j, o)])
            read.append(int(input_at(self.g_conv, axis, self.grid[axis], met)[0]))
        return None if ZERO in read else tuple(read)

    def head_read(self, shift: Index | None, place: Index) -> Index | None:
        """The input position that a one-hot head meets: the key at the shift, else the nearest key there is."""
        if shift is None:
            return None
        read = []
        for axis, (tau, o) in enumerate(zip(shift, place, strict=True)):
            row = self.tokens[axis]
            read.append(int(row[min(max(int(self.queries[axis][o]) + tau, 0), len(row) - 1)]))
        return None if ZERO in read else tuple(read)

    def _coefficients(self, taps: list[Index], heads: list[int]) -> np.ndarray:
        """About |coefficient of an input position in an output|, attention minus convolution, (g, i, o), by who reads it."""
        total = np.zeros_like(tap_matrix(self.conv, (0,) * len(self.grid)))
        for tap in taps:
            total -= tap_matrix(self.conv, tap)
        for head in heads:
            total += np.matmul(self.attention.w_val[head], self.attention.w_out[head])
        return np.abs(total)

    def _confirmed(self, entries: dict[Index, Fraction], output: Index, readers: Readers) -> Counterexample | None:
        """Evaluate both layers exactly; a counterexample only if they differ."""
        channel = output[0]
        theirs = Fraction(0) if self.conv.bias is None else Fraction(float(self.conv.bias[channel]))
        ours = Fraction(float(self.attention.b_out[channel]))
        d_in, d_out = self.attention.w_val.shape[2], self.attention.w_out.shape[3]
        g, o = divmod(channel, d_out)
        for (source, *position), value in entries.items():
            if source // d_in != g:
                continue
            i = source % d_in
            taps, heads = readers.get(tuple(position), ([], []))
            for tap in taps:
                theirs += value * Fraction(float(tap_matrix(self.conv, tap)[g, i, o]))
            for head in heads:
                row, column = self.attention.w_val[head, g, i], self.attention.w_out[head, g, :, o]
                for a, b in zip(row, column, strict=True):
                    ours += value * Fraction(float(a)) * Fraction(float(b))
        if ours == theirs:
            return None
        what = (
            "the zero input"
            if not entries
            else f"the input that is {float(self.bound)!r} at {next(iter(entries))}, else 0"
        )
        return Counterexample(
            entries,
            output,
            theirs,
            ours,
            f"on {what}, output {output} of the convolution is exactly {theirs}, and of the attention exactly {ours}",
        )
