"""Where each head looks agrees with an exact search over every shift of a box; and the rounding bound of the scores holds."""

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from construct import MHSA, ConvGeometry, MHSAWeights, conv_to_mhsa
from construct.encoding.encodings import balanced_radix, shifts_are_distinct
from construct.tokens import TokenGrid
from verify import certify
from verify.layers.fields import Attention, Geometry
from verify.layers.reading import shift_box
from verify.layers.targets import (
    largest_encoding,
    largest_score,
    numbers_are_distinct,
    score_rounding,
    shift_of_number,
    target,
)

REACH = 3
MODEST = st.sampled_from([0.0, 1.0, -1.0, 0.5, -2.0, 3.0, -0.75, 2.0**-30, 1e-3, 0.3])


def layer_of(v: torch.Tensor, w_key_pos: torch.Tensor, dims: int, radix: Any = None) -> MHSA:
    """A one-channel layer of kernel 7 with these positional weights."""
    geometry = ConvGeometry(1, 1, (7,) * dims, (1,) * dims, (3,) * dims, "zeros", (1,) * dims, 1)
    heads, key_dim = v.shape
    nothing = torch.zeros(heads, 1, key_dim)
    one = torch.ones(heads, 1, 1, 1)
    weights = MHSAWeights(nothing, nothing, w_key_pos, torch.zeros(heads, key_dim), v, one, one, torch.zeros(1))
    return MHSA(geometry, weights, radix=radix)


def exact_score(layer: MHSA, delta: tuple[int, ...]) -> Fraction:
    """v·Ŵ_key r_δ of its only head."""
    if layer.radix is not None:
        delta = (sum(r * x for r, x in zip(layer.radix, delta, strict=True)),)
    r = (sum(x * x for x in delta), *delta)
    v, w = layer.v[0].tolist(), layer.w_key_pos[0].tolist()
    return sum(
        (Fraction(a) * Fraction(b) * c for a, row in zip(v, w, strict=True) for b, c in zip(row, r, strict=True)),
        Fraction(0),
    )


@st.composite
def aimed(draw: st.DrawFn) -> MHSA:
    """One head with random v and Ŵ_key, or at a random τ on or off the lattice, rounded to the format."""
    dims = draw(st.integers(1, 3))
    radix = tuple(7 ** (dims - 1 - i) for i in range(dims)) if draw(st.booleans()) else None
    d_p = dims + 1 if radix is None else 2
    if draw(st.booleans()):
        key_dim = draw(st.integers(1, 4))
        numbers = draw(st.lists(MODEST, min_size=key_dim * (d_p + 1), max_size=key_dim * (d_p + 1)))
        table = torch.tensor(numbers).view(1, key_dim, d_p + 1)
        return layer_of(table[..., 0], table[..., 1:], dims, radix)
    alpha = draw(st.sampled_from([1.0, 0.37, 1024.0, 1e-3, 1e30, -1.0]))
    tau = [
        draw(st.integers(-REACH, REACH)) + draw(st.sampled_from([0.0, 0.25, -0.375, 0.5, 0.4999, -0.1]))
        for _ in range(dims)
    ]
    if radix is not None:
        tau = [sum(r * x for r, x in zip(radix, tau, strict=True))]
    v = torch.tensor([[-alpha, *(2 * alpha * t for t in tau)]], dtype=torch.float64)
    return layer_of(v, torch.eye(d_p)[None], dims, radix)


@given(aimed())
def test_the_aim_is_the_one_best_shift_and_the_gap_is_no_larger_than_the_true_one(layer: MHSA):
    """Over a box as wide as the kernel or twice, the unique best shift is the target, and the next is at least the gap below."""
    attention = Attention.read(layer)
    goal = target(attention, 0)
    dims = len(layer.kernel_size)
    # With the parabola, the box that the radix can number; the first axis may extend further.
    side = REACH if layer.radix or dims == 3 else 2 * REACH
    sides = [range(-side, side + 1)] * dims
    scores = {delta: exact_score(layer, delta) for delta in product(*sides)}
    best, second = sorted(scores.values())[:-3:-1]
    if goal is None:
        v = [Fraction(float(x)) for x in layer.v[0]]
        c = [
            sum((Fraction(float(w)) * x for w, x in zip(column, v, strict=True)), Fraction(0))
            for column in layer.w_key_pos[0].T
        ]
        tied = [x / (2 * -c[0]) for x in c[1:]] if c[0] else []
        ties = any(x.denominator == 2 for x in tied)
        assert c[0] >= 0 or ties
        return
    assert goal.gap > 0
    if goal.shift not in scores:
        return  # it looks outside the box
    assert scores[goal.shift] == best
    assert best - second >= goal.gap
    if not any(goal.offset):
        assert goal.gap == goal.sharpness


@given(aimed(), st.integers(4, 9), st.sampled_from([0, 0, 520, 537]))
def test_scores_are_off_by_no_more_than_their_rounding(layer: MHSA, n: int, small: int):
    """The layer's float64 scores minus their maximum against the exact difference; products may underflow."""
    layer = layer.double()
    for part in (layer.v, layer.w_key_pos):
        part.data *= 2.0**-small
    attention = Attention.read(layer)
    goal = target(attention, 0)
    assume(goal is not None)
    assert goal is not None
    grid = TokenGrid.of(layer.geometry, (n,) * len(layer.kernel_size))
    assume(layer.radix is None or all(max(-lo, hi) <= REACH for lo, hi in grid.box[1:]))
    box = shift_box(Geometry.read(layer), (n,) * len(layer.kernel_size))
    assert box == grid.box
    table = (layer.position_vector() @ layer.encoding.r(grid))[0]
    deltas = list(product(*(range(lo, hi + 1) for lo, hi in box)))
    assert Fraction(float(table.abs().max())) <= largest_score(attention, 0, box)
    top = int(np.argmax(table.detach().numpy()))
    allowed = 2 * score_rounding(attention, goal, box)
    relative = (table - table[top]).tolist()
    for i in {0, len(deltas) - 1, *range(top % 7, len(deltas), 1 + len(deltas) // 60)}:
        truth = exact_score(layer, deltas[i]) - exact_score(layer, deltas[top])
        assert abs(Fraction(relative[i]) - truth) <= allowed


@given(st.lists(st.tuples(st.integers(-4, 0), st.integers(0, 4)), min_size=1, max_size=3))
def test_the_largest_encoding_is_that_of_the_farthest_shift(box: list[tuple[int, int]]):
    """For both encodings, per component, against every shift of the box."""
    deltas = list(product(*(range(lo, hi + 1) for lo, hi in box)))
    radix = tuple(9 ** (len(box) - 1 - axis) for axis in range(len(box)))
    numbers = [sum(r * x for r, x in zip(radix, delta, strict=True)) for delta in deltas]
    for of, encoded in (
        (None, [(sum(x * x for x in delta), *delta) for delta in deltas]),
        (radix, [(number * number, number) for number in numbers]),
    ):
        farthest = [max(map(abs, component)) for component in zip(*encoded, strict=True)]
        largest = largest_encoding(of, tuple(box))
        assert all(f >= t for f, t in zip(largest, farthest, strict=True))
        assert of is not None or list(largest) == farthest


@given(aimed(), st.integers(0, 3))
def test_no_number_on_the_way_to_a_score_is_larger(layer: MHSA, side: int):
    """If there is only one key, its encoding is 0, but its factor may have overflowed."""
    attention = Attention.read(layer)
    most = largest_score(attention, 0, ((-side, side),) * len(layer.kernel_size))
    for column in layer.w_key_pos[0].T.tolist():
        terms = [Fraction(w) * Fraction(x) for w, x in zip(column, layer.v[0].tolist(), strict=True)]
        assert most >= 2 * sum(map(abs, terms))


@given(st.integers(1, 3), st.sampled_from([1.0, 1024.0, 1e6, 1e9]), st.data())
def test_every_shift_has_its_number_and_every_number_its_shift(dims: int, alpha: float, data: st.DataObject):
    """The certifier's radix, derived independently of the builder's, accepts and reads back what the builder makes."""
    geometry = ConvGeometry(1, 1, (3,) * dims, (1,) * dims, (0,) * dims, "zeros", (1,) * dims, 1)
    radix = balanced_radix(geometry, alpha)
    most = radix[-2] // 2 if dims > 1 else 5
    delta = tuple(data.draw(st.integers(-min(most, 10**6), min(most, 10**6))) for _ in range(dims))
    number = sum(r * x for r, x in zip(radix, delta, strict=True))
    assert shift_of_number(number, radix) == delta
    assert numbers_are_distinct(radix, ((-most, most),) * dims)
    if dims > 1:
        assert not numbers_are_distinct(radix, ((-1, 1), *((-most - 1, most),) * (dims - 1)))


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=3), st.integers(0, 3))
def test_a_radix_that_aliases_is_never_accepted(radix: list[int], side: int):
    """If the certifier or the layer accepts a radix of any integers, no two shifts of the box share a number."""
    box = ((-side, side),) * len(radix)
    numbers = [sum(r * x for r, x in zip(radix, d, strict=True)) for d in product(*(range(a, b + 1) for a, b in box))]
    accepted = shifts_are_distinct(tuple(radix), box)
    assert accepted or not (numbers_are_distinct(tuple(radix), box) and min(radix) > 0)
    if accepted or numbers_are_distinct(tuple(radix), box):
        assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("bits", [51, 63, 64, 1024])
def test_numbers_that_float64_cannot_hold_are_refused_in_one_line(bits: int):
    conv = torch.nn.Conv2d(2, 2, 3, padding=1)
    layer = conv_to_mhsa(conv, encoding="parabola")
    layer.radix = (2**bits + 1, 1)
    assert certify(conv, layer, grid=(4, 4)).verdict.name == "UNDECIDED"
    with pytest.raises(ValueError, match="cannot number the shifts"):
        layer(torch.ones(1, 2, 4, 4))
