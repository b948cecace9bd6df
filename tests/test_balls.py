"""What every rule rests on: the sums of a bound against exact arithmetic, and what may overflow on the way."""

from fractions import Fraction
from math import inf, ldexp, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from verify.balls import SPECK, Ball, Call, NoBound, above, up
from verify.budget import FORMATS

SIZES = st.just(0.0) | st.builds(ldexp, st.floats(0.5, 1), st.integers(-1060, 100))
"""Not negative: of every order of magnitude, down to the smallest numbers."""
SIGNED = st.builds(lambda size, sign: sign * size, SIZES, st.sampled_from([1, -1]))
LINES = st.tuples(st.builds(ldexp, st.floats(0.5, 1), st.integers(-1060, 1)), SIZES)
"""Slope and rest of a rounding."""


def one(number: float) -> Tensor:
    return torch.tensor([number], dtype=torch.float64)


def call_in(name: str) -> Call:
    return Call(F.relu, (), fmt=FORMATS[name])


@given(SIZES, SIZES, LINES, LINES)
def test_a_bound_is_no_less_than_its_terms(
    moved: float, size: float, here: tuple[float, float], there: tuple[float, float]
):
    """|f|(e), the rounding of the original at |a|, and of the converted at |a| + e; however small any of them is."""
    found = call_in("float64").evaluated(one(moved), one(size), here, there)
    e, m, s, r, t, q = map(Fraction, (moved, size, *here, *there))
    for bound, wanted in ((found.error, e + s * m + r + t * (m + e) + q), (found.size, m + s * m + r)):
        assert wanted <= Fraction(float(bound)) <= wanted * (1 + Fraction(1, 2**19)) + 2 * Fraction(SPECK)


@given(SIGNED, SIZES, SIZES)
def test_a_ball_reaches_what_lies_in_it(low: float, width: float, error: float):
    """Of either sign, at one place and at all of them."""
    ball = Ball(one(low), one(low + width), one(error))
    most = max(abs(Fraction(low)), abs(Fraction(low + width)))
    assert Fraction(float(ball.size)) == most
    for found in (float(ball.reach), ball.farthest):
        assert (
            most + Fraction(error)
            <= Fraction(found)
            <= (most + Fraction(error)) * (1 + Fraction(1, 2**19)) + 2 * Fraction(SPECK)
        )


@given(SIZES)
def test_what_is_widened_grows_unless_it_is_nothing(size: float):
    """By more than float64 loses in a sum, and by more than what underflows in a product."""
    found = Fraction(float(up(one(size))))
    grown = Fraction(size) * (1 + Fraction(1, 2**21)) + Fraction(SPECK) / 2
    assert found >= grown if size else found == 0


@given(SIGNED, SIZES, SIGNED)
def test_a_sum_that_cancels_is_bounded_from_above(value: float, error: float, constant: float):
    found = Fraction(float(above(one(value), one(error), constant)))
    terms = [Fraction(value), Fraction(error), Fraction(constant)]
    assert 0 <= found - sum(terms) <= sum(map(abs, terms)) / 2**46 + Fraction(SPECK)


@given(st.sampled_from(list(FORMATS)), st.integers(1, 400), st.integers(0, 400), SIZES)
def test_a_rounding_covers_the_worst_there_is(name: str, operations: int, stores: int, size: float):
    """Every operation rounds up as far as it can and loses what may underflow, and so does every store."""
    fmt = FORMATS[name]
    u, eta, v, stored = map(Fraction, (fmt.u, fmt.eta, fmt.stored_u, fmt.stored_eta))
    worst = Fraction(size)
    for _ in range(operations):
        worst = worst * (1 + u) + eta / 2
    for _ in range(stores if v else 0):
        worst = worst * (1 + v) + stored / 2
    found = Fraction(float(call_in(name).rounding(one(size), operations, stores=stores)))
    assert found >= worst - Fraction(size)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("shares", "held"),
    [
        ([[0.49]], True),
        ([[0.5]], False),
        ([[0.2, 0.1], [0.1, 0.2]], True),
        ([[0.4, 0.0], [0.0, 0.4]], True),  # the greatest of each, but nowhere together
        ([[0.4, 0.0], [0.4, 0.0]], False),
        ([[0.0, inf]], False),
        ([[0.0, nan]], False),
        ([[0.0, nan], [0.0, 0.0]], False),
        ([[0.0, 0.0], [nan, 0.0]], False),
        ([[]], True),
        ([[], []], True),
    ],
)
def test_what_may_reach_half_of_the_largest_number_is_refused(name: str, shares: list[list[float]], held: bool):
    """And what is not a number, wherever it stands."""
    call = call_in(name)
    sizes = [call.fmt.largest * torch.tensor(share, dtype=torch.float64) for share in shares]
    if held:
        call.must_not_overflow(*sizes)
        return
    with pytest.raises(NoBound, match="an intermediate may reach"):
        call.must_not_overflow(*sizes)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("moved", "size"), [(0.5, 0.0), (0.0, 0.5), (0.3, 0.3), (nan, 0.0), (0.0, inf)])
def test_an_evaluation_that_may_overflow_has_no_bound(name: str, moved: float, size: float):
    call = call_in(name)
    with pytest.raises(NoBound, match="an intermediate may reach"):
        call.evaluated(call.fmt.largest * one(moved), call.fmt.largest * one(size), (0.0, 0.0), (0.0, 0.0))
