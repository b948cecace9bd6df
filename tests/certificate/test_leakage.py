"""Both leakage bounds hold against the exact leakage of finite grids and are tight, as is the sharpness derived from them."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp

from construct.encoding.sharpness import ALPHA, alpha_for
from verify.rounding import leakage as leakages
from verify.rounding.leakage import leakage, leakage_on_lattice

DIGITS = 200
"""1 − ϑ^{−d} at α = 300 loses 130 of them."""
ALPHAS = st.floats(-3, 2.3).map(lambda exponent: float(10**exponent))
"""From 0.001 to 200, with every order of magnitude equally likely."""
OFFSETS = st.fractions(Fraction(-31, 64), Fraction(31, 64), max_denominator=64)
BOXES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3)
"""The numbers of keys before and after the attended one, on each axis."""


@pytest.fixture(autouse=True)
def _precisely():
    with mp.workdps(DIGITS):
        yield


def exact(value: Any) -> Any:
    """A float or fraction in high precision, without rounding."""
    value = Fraction(value)
    return mp.mpf(value.numerator) / value.denominator


def leaked(alpha: Any, offsets: Sequence[Any], box: Sequence[tuple[int, int]]) -> Any:
    """1 − softmax at δ = round(τ), summed over every key of the box, without products over axes or formulas."""
    a, fs = exact(alpha), [exact(f) for f in offsets]

    def weight(delta: Sequence[int]) -> Any:
        return mp.exp(-a * sum((n - f) ** 2 for n, f in zip(delta, fs, strict=True)))

    other = mp.fsum(weight(d) for d in product(*(range(-lo, hi + 1) for lo, hi in box)) if any(d))
    return other / (other + weight([0] * len(fs)))


def wide(alpha: float) -> int:
    """A number of keys on either side beyond which the rest is negligible in double precision."""
    return math.isqrt(int(80 / alpha)) + 2


@given(ALPHAS, BOXES, st.data())
def test_bound_off_the_lattice_holds_on_every_finite_grid(alpha: float, box: list[tuple[int, int]], data):
    """For any real τ, the leakage past the nearest key is within the bound."""
    half = st.sampled_from([Fraction(-1, 2), Fraction(1, 2)])
    offsets = data.draw(st.lists(OFFSETS | half, min_size=len(box), max_size=len(box)))
    assert leaked(alpha, offsets, box) <= leakage(alpha, offsets)


@example(0.0101, 1)
@given(st.floats(0.05, 300), st.integers(1, 3))
def test_bound_on_the_lattice_is_one_minus_theta(alpha: float, dims: int):
    """The bound equals 1 − ϑ(α)^{−d} with Jacobi's ϑ from mpmath, within a few ulps and from above."""
    theta = mp.jtheta(3, 0, mp.exp(-exact(alpha)))
    truth = 1 - theta**-dims
    assert truth <= leakage_on_lattice(alpha, dims) <= truth * (1 + 2**-45)


@given(st.floats(0.05, 300), st.lists(OFFSETS, min_size=1, max_size=3))
def test_bound_off_the_lattice_is_reached_on_a_large_grid(alpha: float, offsets: list[Fraction]):
    """The weights multiply over the axes, so each axis is summed separately, as far as weights are not negligible."""
    reach = wide(alpha)
    odds = [leaked(alpha, [f], [(reach, reach)]) for f in offsets]
    truth = 1 - mp.fprod(1 - part for part in odds)
    assert truth * (1 - mp.mpf(2) ** -200) <= leakage(alpha, offsets) <= truth * (1 + 2**-40)


@given(st.floats(1e-4, 0.01) | st.floats(0.3, 0.5), OFFSETS)
def test_poisson_and_the_sum_itself_agree(alpha: float, offset: Fraction):
    """The enclosures of s(α, f) by the two methods, on either side of ``SOFT``, overlap; above it, e^{−π²/α} is visible."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leakages, "SOFT", 0)
        summed = leakages.tail(alpha, offset)
        patch.setattr(leakages, "SOFT", 1)
        transformed = leakages.tail(alpha, offset)
    assert summed.a <= transformed.b
    more = 12 * mp.exp(-(mp.pi**2) / alpha)  # 5 of 1 + s are less than 12 of s
    assert transformed.b <= summed.b * (1 + 2**-30 + more)


@pytest.mark.parametrize(
    ("alpha", "offsets"),
    [(0, [0]), (-1, [0]), (math.nan, [0]), (1, [0.51]), (1, [0, Fraction(-2, 3)]), (1, [math.nan])],
    ids=str,
)
def test_no_bound_for_what_is_no_head(alpha: float, offsets: list):
    with pytest.raises(ValueError, match=r"α is|exceeds one half"):
        leakage(alpha, offsets)


def test_no_bound_without_a_dimension():
    with pytest.raises(ValueError, match="dims is 0"):
        leakage_on_lattice(1, 0)


@example(0.5, 4)
@given(st.floats(-12, -0.01).map(lambda exponent: float(10**exponent)), st.integers(1, 4))
def test_alpha_for_a_tolerance_leaks_at_most_that_and_not_much_less(tolerance: float, dims: int):
    """The exact leakage on an infinite grid is at most the tolerance and at least a third of it, so α is not wasteful."""
    alpha = alpha_for(tolerance=tolerance, dims=dims)
    truth = 1 - mp.jtheta(3, 0, mp.exp(-exact(alpha))) ** -dims
    assert truth <= exact(tolerance)
    assert leakage_on_lattice(alpha, dims) <= tolerance
    assert alpha == pytest.approx(math.log(2)) or truth >= exact(tolerance) / 3


@pytest.mark.nasty(29)
@pytest.mark.parametrize(
    ("dtype", "documented"),
    [(torch.float16, 17.4), (torch.bfloat16, 92.9), (torch.float32, 104), (torch.float64, 746)],
    ids=str,
)
def test_alpha_for_a_format_is_where_torch_gives_exact_zeros(dtype: torch.dtype, documented: float):
    """From α on, torch's softmax of [0, −α] rounds to [1, 0] in the format; slightly below, it does not."""
    alpha = alpha_for(dtype)
    assert documented - 0.9 < alpha <= documented
    assert alpha < ALPHA
    assert math.frexp(ALPHA)[0] == 0.5
    for more in (1, 1 + 2**-30, 1.01, 2, ALPHA / alpha):
        assert _softmax(alpha * more, dtype) == [1, 0]
    assert _softmax(alpha * 0.99, dtype)[1] > 0
    for largest in (documented, ALPHA):
        assert _softmax(largest, dtype, scores=dtype) == [1, 0]
    eta = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    assert 0 <= exact(eta) / 2 - mp.exp(-exact(alpha)) <= exact(eta) * mp.mpf(2) ** -29


def _softmax(alpha: float, dtype: torch.dtype, scores: torch.dtype = torch.float64) -> list[float]:
    return torch.softmax(torch.tensor([0, -alpha], dtype=scores), dim=0).to(dtype).tolist()


@pytest.mark.parametrize(
    ("arguments", "error", "complaint"),
    [
        ({}, ValueError, "give either"),
        ({"dtype": torch.float32, "tolerance": 0.1}, ValueError, "give either"),
        ({"dtype": torch.int32}, ValueError, "not a floating-point format"),
        ({"tolerance": 0.0}, ValueError, "between 0 and 1"),
        ({"tolerance": 1.0}, ValueError, "between 0 and 1"),
        ({"tolerance": math.nan}, ValueError, "between 0 and 1"),
        ({"tolerance": 0.1, "dims": 0}, ValueError, "below 1"),
        ({"tolerance": "0.1"}, TypeError, "a tolerance is a number, not '0.1'"),
        ({"dtype": "float32"}, TypeError, "must be a torch.dtype, not 'float32'"),
    ],
    ids=str,
)
def test_alpha_for_nonsense(arguments: dict, error: type[Exception], complaint: str):
    with pytest.raises(error, match=complaint):
        alpha_for(**arguments)


@given(st.floats(-2, 2.3).map(lambda exponent: float(10**exponent)), OFFSETS)
def test_what_lies_beyond_the_last_term_is_counted(alpha: float, offset: Fraction):
    """The remainder is negligible in double precision but visible with 500 bits."""
    a, f = exact(alpha), exact(offset)
    truth = mp.fsum(mp.exp(-a * (n * n + sign * 2 * n * f)) for n in range(1, 4 * wide(alpha)) for sign in (1, -1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leakages.iv, "prec", 500)
        bound = mp.mpf(leakages.tail(alpha, offset).b)
    assert truth <= bound <= truth * (1 + mp.mpf(10) ** -20)
