"""Steps 0 to 5 of a certificate: the argument that holds for all inputs, each step exact or rounded outwards.

0 tokens      both layers have the same geometry; worked out afresh, every tap and its head read the same input position
1 content     the scores depend on δ only
2 aim         each head's score has one maximum, at an integer shift, with a gap that beats the scores' own rounding
3 leakage     at that gap the softmax gives exactly 0 elsewhere (or, within a tolerance, leaks at most so much)
4 taps        the heads at each shift sum to exactly the kernel's tap there, and b_out is the bias
5 rounding    how far two evaluations of one exact function may be apart, and that nothing overflows
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from verify.argument.certificate import Step
from verify.layers.aims import (
    Aim,
    aim,
    box_of,
    exact_integer_scores,
    largest_score,
    numbers_are_distinct,
    score_rounding,
)
from verify.layers.exact_output import tap_matrix
from verify.layers.fields import Attention, Geometry, read_convolution
from verify.layers.reading import (
    output_size,
    query_places,
    require_readable,
    shift_of_tap,
    tap_of_shift,
    tap_read_otherwise,
    token_count,
    token_length,
)
from verify.layers.taps import TapDifference, compare_taps
from verify.rounding import budget, leakage
from verify.verdict import from_above

Shift = tuple[int, ...]


@dataclass
class Argument:
    """The argument for one convolution, one attention layer, one grid and one bound on the input.

    The claim: the same function; with ``within``, a difference of at most that, whatever makes it; with ``leaking``, the same
    function but for what heads leak.

    After :meth:`run`: ``steps``, the three parts of the bound (infinite where a step before them failed), ``aims``
    (None if step 0, 1 or 2 failed; of a head that carries nothing, None), ``differences`` of taps, ``one_hot``, ``as_stored``
    (whether each tap is one head's, whose factors put the tap's numbers together by no addition, so that |W_val||W_out| = |W|),
    ``remainders`` (what a softmax in float64 leaves to other keys, by head), and ``sharp_from``: the α from which on no head leaks.

    Raises:
        Unreadable: the two cannot be read as a convolution and an attention layer, or hold non-finite numbers.
        GridRefused: torch's convolution has no output for this grid.
        ValueError: an axis is too long to be gone through.
    """

    conv_module: Any
    layer: Any
    grid: tuple[int, ...]
    bound: float
    within: float | None
    leaking: bool = False
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.conv, self.geometry = read_convolution(self.conv_module)
        self.attention = Attention.read(self.layer)
        self.outputs = output_size(self.geometry, self.grid)
        require_readable(self.geometry, self.grid)
        self.dtype = str(self.layer.w_val.dtype).removeprefix("torch.")
        self.fmt = budget.FORMATS[self.dtype]
        self.tokens = token_count(self.geometry, self.grid)
        unknown = np.full(self.geometry.out_channels, np.inf)
        self.rounding = self.leaked = self.taps = unknown
        self.aims: list[Aim | None] | None = None
        self.differences: list[TapDifference] = []
        self.bias_differs = self.same_taps = self.as_stored = False
        self.one_hot = False
        self.remainders = np.zeros(len(self.attention.v))
        self.sharp_from = 0.0

    def run(self) -> "Argument":
        """Go through the steps; one that fails ends it where the next would have nothing to stand on.

        Raises:
            ValueError: an intermediate may overflow the layers' type.
        """
        self._nothing_overflows()
        if not (self._same_geometry() and self._no_content()):
            return self
        self.aims = self._aims()
        if self.aims is None:
            return self
        leaks = self._leaks(self.aims)
        self.one_hot = not leaks.any()
        self.leaked = budget.leakage_part(self.attention, self.bound, leaks)
        self.differences = self._tap_differences(self.aims)
        self.taps = self._tap_part(self.differences)
        self._round()
        return self

    def _round(self) -> None:
        """Step 5."""
        self.rounding = budget.rounding_part(
            self.conv, self.attention, self.bound, self.fmt, self.tokens, soft=not self.one_hot
        )
        self._step(
            5, "rounding", True, f"at most {from_above(float(self.rounding.max(initial=0.0)))}, and nothing overflows"
        )

    def _step(self, number: int, name: str, holds: bool, sentence: str) -> bool:
        self.steps.append(Step(number, name, holds, sentence))
        return holds

    def _same_geometry(self) -> bool:
        """Step 0: field by field, which covers every size; and token by token on this grid, worked out afresh."""
        g, ours = self.geometry, self.attention.geometry
        for name in Geometry.__dataclass_fields__:
            if getattr(g, name) != getattr(ours, name):
                told = f"the convolution's {name} is {getattr(g, name)}, the attention's {getattr(ours, name)}"
                return self._step(0, "tokens", False, told)
        for axis, (n, outputs) in enumerate(zip(self.grid, self.outputs, strict=True)):
            tap = tap_read_otherwise(g, axis, n, outputs)
            if tap is not None:
                told = f"tap {tap} of axis {axis} and the token at shift {shift_of_tap(g, axis, tap)} are not the same input"
                return self._step(0, "tokens", False, told)
        return self._step(0, "tokens", True, f"one geometry; every tap meets the same input, {self.tokens} tokens")

    def _no_content(self) -> bool:
        """Step 1: X_q W_qry W_keyᵀ X_kᵀ + X_q W_qry Ŵ_key r_δ + uᵀ W_keyᵀ X_kᵀ is zero for every X."""
        a = self.attention
        silent = [
            not (a.w_qry[h].any() and (a.w_key[h].any() or a.w_key_pos[h].any()))
            and not (a.u[h].any() and a.w_key[h].any())
            for h in range(len(a.v))
        ]
        if all(silent):
            return self._step(1, "content", True, "the content terms are exactly zero: scores depend on δ only")
        loud = silent.index(False)
        return self._step(1, "content", False, f"head {loud} attends by content: w_qry, w_key or u is not zero")

    def _aims(self) -> list[Aim | None] | None:
        """Step 2.  A head that carries nothing may look anywhere: finite scores make weights in [0, 1], and those times 0 are 0."""
        a, g = self.attention, self.geometry
        lengths = [token_length(g, axis, n) for axis, n in enumerate(self.grid)]
        places = [query_places(g, axis, o) for axis, o in enumerate(self.outputs)]
        ends = [(int(row[0]), int(row[-1])) for row in places]
        box = box_of(ends, lengths)
        if a.radix is not None and not numbers_are_distinct(a.radix, box):
            self._step(2, "aim", False, f"the radix {a.radix} does not number the shifts {box} one by one")
            return None
        if not exact_integer_scores(a.radix, box):
            self._step(2, "aim", False, f"shifts up to {box} are not exact in float64")
            return None
        aims: list[Aim | None] = []
        for h, carries in enumerate(a.carrying):
            if not carries:
                aims.append(None)
                continue
            aimed = aim(a, h)
            if aimed is None:
                self._step(2, "aim", False, f"head {h} has no unique best shift")
                return None
            within_kernel = all(
                0 <= tau + dil * ((k - 1) // 2) <= dil * (k - 1)
                for tau, k, dil in zip(aimed.shift, g.kernel_size, g.dilation, strict=True)
            )
            if not within_kernel:
                # On some size its target is off the grid; softmax then takes the nearest key there is.
                told = f"head {h} looks at {aimed.shift}, off the padded grid for some query of some size"
                self._step(2, "aim", False, told)
                return None
            aims.append(aimed)
        self._box = box
        if any(largest_score(a, h, box) >= 2**1023 for h in range(len(aims))):
            self._step(2, "aim", False, "the scores may overflow float64")
            return None
        carrying = [aimed for aimed in aims if aimed is not None]
        if not carrying:
            self._step(2, "aim", True, "no head carries anything, and all scores are finite")
            return aims
        rounding = max(score_rounding(a, aimed, box) for aimed in carrying)
        gap = min(aimed.gap for aimed in carrying)
        if not gap > 2 * rounding:
            told = f"the gap {float(gap):.3g} does not beat the rounding of the scores, {float(rounding):.3g}"
            self._step(2, "aim", False, told)
            return None
        idle = f", but {len(aims) - len(carrying)} that carry nothing," if len(carrying) < len(aims) else ""
        told = f"every head{idle} has one best shift, with a gap of at least {float(gap):.6g}; "
        told += f"scores round by {float(rounding):.2g}"
        self._step(2, "aim", True, told)
        return aims

    def _leaks(self, aims: list[Aim | None]) -> np.ndarray:
        """Step 3: ε of every head, rounded up; exactly 0 where every other weight rounds to zero in the working type."""
        leaks = np.zeros(len(aims))
        for h, aimed in enumerate(aims):
            if aimed is None:
                continue
            slack = 2 * score_rounding(self.attention, aimed, self._box)
            gap = aimed.gap - slack
            if gap > budget.FORMATS["float64"].one_hot_gap:
                continue
            ideal = leakage.leakage_nearly(aimed.sharpness, aimed.offset)
            # Scores that are off by ±slack/2 change the odds by at most exp(slack).
            leak = min(1.0, ideal * (1 + 2 * float(slack)) if slack < Fraction(1, 2) else 1.0)
            self.remainders[h] = math.nextafter(leak, math.inf)
            if not gap > self.fmt.one_hot_gap:
                leaks[h] = self.remainders[h]
                # The gap and the rounding of the scores grow with α alike.
                needed = float(self.fmt.one_hot_gap * aimed.sharpness / gap) if gap > 0 else math.inf
                self.sharp_from = max(self.sharp_from, needed)
        if not leaks.any():
            told = f"every other weight is below half of {self.fmt.eta:.3g}, the smallest number: exactly one-hot"
            self._step(3, "leakage", True, told)
        else:
            told = f"heads leak up to {leaks.max():.6g} of their attention (unit roundoff {self.fmt.u:.2g})"
            self._step(3, "leakage", self.leaking or self.within is not None, told)
        return leaks

    def _tap_differences(self, aims: list[Aim | None]) -> list[TapDifference]:
        """Step 4."""
        heads: dict[Shift, list[int]] = {}
        for h, aimed in enumerate(aims):
            if aimed is not None:
                heads.setdefault(aimed.shift, []).append(h)
        g = self.geometry
        zero = np.zeros((g.groups, g.in_channels // g.groups, g.out_channels // g.groups))

        def tap_at(shift: Shift) -> np.ndarray:
            tap = tap_of_shift(g, shift)
            return zero if tap is None else tap_matrix(self.conv, tap)

        kernel = list(product(*([shift_of_tap(g, i, j) for j in range(k)] for i, k in enumerate(g.kernel_size))))
        shifts = sorted({*kernel, *heads})
        a = self.attention
        slower: list[str] = []
        differences = compare_taps(heads, a.w_val, a.w_out, tap_at, shifts, slower.append)
        self.as_stored = not differences and not slower
        bias = np.zeros(g.out_channels) if self.conv.bias is None else self.conv.bias
        self._bias_difference = np.abs(a.b_out - bias)
        self.bias_differs = bool(self._bias_difference.any())
        self.same_taps = not differences and not self.bias_differs
        if self.same_taps:
            told = f"the heads sum to each of {len(kernel)} taps exactly, b_out is the bias"
            self._step(4, "taps", True, "; ".join([told, *slower]))
        else:
            first = (
                f"; first at shift {differences[0].shift}, by {float(differences[0].exact):.6g}" if differences else ""
            )
            told = f"{len(differences)} taps and {np.count_nonzero(self._bias_difference)} biases differ{first}"
            self._step(4, "taps", self.within is not None, "; ".join([told, *slower]))
        return differences

    def _tap_part(self, differences: list[TapDifference]) -> np.ndarray:
        total = self._bias_difference.copy()
        for difference in differences:
            size = difference.size.sum(axis=1).reshape(-1)
            total = total + np.where(size > 0, self.bound * size + budget.TINY, 0.0)  # the product may underflow
        return np.where(total > 0, np.nextafter(total * budget.WIDEN, np.inf), total)

    def _nothing_overflows(self) -> None:
        largest = budget.largest_intermediate(self.conv, self.attention, self.bound)
        if not largest < self.fmt.largest:
            told = f"an intermediate may reach {largest:.3g}, beyond the largest {self.dtype}, {self.fmt.largest:.3g}"
            raise ValueError(told + "; lower the input bound")
