"""Attention factorised over the axes is the paper's function, for any v and w_key_pos."""

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from construct import conv_to_mhsa
from construct.encoding.encodings import Quadratic
from construct.execution import head_matrices
from construct.execution.head_matrices import is_identity
from construct.execution.plan import _peak, _peak_of_parabola, plan_for
from construct.tokens import TokenGrid


@pytest.mark.parametrize(
    "conv", [nn.Conv1d(2, 3, 3), nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose3d(2, 2, 2)], ids=str
)
def test_soft_heads_of_no_images_have_the_shape_that_torch_gives(conv: Any):
    x = torch.zeros(0, conv.in_channels, *(5,) * (conv.weight.dim() - 2))
    assert conv_to_mhsa(conv, alpha=0.7).requires_grad_(False)(x).shape == conv(x).shape


def test_scores_of_distant_keys_make_no_shift_uncertain():
    """What rounds are the scores near the best key; those at the end of a long axis round more, but lie far below."""
    layer = conv_to_mhsa(nn.Conv1d(1, 1, 1), alpha=747.0)
    assert plan_for(layer, TokenGrid.of(layer.geometry, (2_000_000,))).sharp == (0,)
    c, far = np.array([[-1024.0, 2 * 1024.0 * 2**26]]), np.arange(2**26 - 3, 2**26 + 3, dtype=np.float64)
    scores, terms = (Quadratic().along(numbers, far, 0) for numbers in (c, np.abs(c)))
    assert _peak(far, scores, 0 * terms) == (far[3], True)
    # Here they are exact, but for other numbers the rounding exceeds the gap.
    assert _peak(far, scores, terms * 2.0**-51) == (far[3], False)


ODD = st.sampled_from([0.0, 746.0, 1e-300, 1e300, -1e300, math.inf, math.nan])
SHARPNESS, CENTRES = (st.one_of(ODD, st.integers(-n, n).map(float), st.floats(-n, n)) for n in (4096, 200))


@given(SHARPNESS, CENTRES, st.integers(-40, 40), st.lists(st.integers(1, 5), min_size=1, max_size=60))
def test_a_few_shifts_tell_the_peak_of_all(alpha: float, tau: float, least: int, gaps: list[int]):
    """For increasing integers: contiguous shifts, and the parabola's numbers."""
    numbers = np.cumsum([least, *gaps]).astype(float)
    c = np.array([[-alpha, 2 * alpha * tau]])
    with np.errstate(all="ignore"):
        terms = c[:, :1] * numbers**2, c[:, 1:] * numbers
        every = _peak(numbers, terms[0] + terms[1], (abs(terms[0]) + abs(terms[1])) * 2.0**-51)
        place, certain = _peak_of_parabola(c[:, 0], c[:, 1], numbers)
    assert certain == every[1]
    assert not certain or numbers[place] == every[0]


@example([1024.0] * 3, [-1.0, 0.0, 3.0], [9, 1, 40, 2], 1)  # from one query, the last head looks at the border
@example([1024.0] * 3, [-1.0, 0.0, 2.0], [8, 10, 8], 3)  # of 10, the last query has no key for the last head
@example([1e304] * 3, [-1.0, 0.0, 1.0], [3, 120, 3], 1)  # scores overflow among more shifts
@given(
    st.lists(SHARPNESS, min_size=3, max_size=3),
    st.lists(st.integers(-5, 5).map(float), min_size=3, max_size=3),
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_a_plan_of_another_size_serves_where_every_head_is_a_shift_here_too(
    alpha: list[float], tau: list[float], sizes: list[int], stride: int
):
    layer = conv_to_mhsa(nn.Conv1d(1, 1, 3, stride, padding=1, dtype=torch.float64)).requires_grad_(False)
    layer.v.copy_(torch.tensor([(-a, 2 * a * t) for a, t in zip(alpha, tau, strict=True)], dtype=torch.float64))
    c = layer.position_vector().numpy()
    for n in sizes:
        grid = TokenGrid.of(layer.geometry, (n,))
        ((least, most),), ((low, high),) = grid.box, grid.common_box
        shifts = np.arange(least, most + 1.0)
        with np.errstate(all="ignore"):
            terms = c[:, :1] * shifts**2, c[:, 1:] * shifts
            places, certain = _peak(shifts, terms[0] + terms[1], (abs(terms[0]) + abs(terms[1])) * 2.0**-51)
        sharp = np.flatnonzero(certain & (low <= places) & (places <= high))
        found = plan_for(layer, grid)
        assert (found.sharp, found.deltas) == (tuple(sharp), tuple((place,) for place in places[sharp]))


def test_a_shift_is_claimed_only_where_every_row_is_one_hot():
    """For α at the limit and slightly below; and at a border where the key that a head wants is missing."""
    layer = conv_to_mhsa(nn.Conv1d(1, 1, 3, padding=1))
    grid = TokenGrid.of(layer.geometry, (9,))
    assert plan_for(layer, grid).deltas == ((-1,), (0,), (1,))
    with torch.no_grad():
        layer.v.mul_(747 / 1024)
        assert plan_for(layer, grid).sharp == (0, 1, 2)
        layer.v.mul_(745 / 747)
        assert plan_for(layer, grid).soft == (0, 1, 2)
        layer.v.mul_(1024 / 745)
        layer.v[1, 1] = 2 * 1024.0 * 2  # two to the right: the last query would want a key beyond the padding
    assert plan_for(layer, grid).soft == (1,)
    with torch.no_grad():
        layer.v[1, 1] = 1024.0  # halfway between two keys
    assert plan_for(layer, grid).soft == (1,)
    with torch.no_grad():
        layer.v[1, 1] = torch.nan
    assert plan_for(layer, grid).soft == (1,)
    assert layer(torch.ones(1, 1, 9)).isnan().all()


def test_learned_heads_that_are_sharper_than_float32_can_sum_are_right():
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1), alpha=1e38)
    x = torch.linspace(-1, 1, 32).view(1, 2, 4, 4)
    frozen = layer(x)
    layer.v.requires_grad_()
    torch.testing.assert_close(layer(x), frozen)


@given(
    st.integers(1, 9),
    st.data(),
    st.sampled_from([0.0, -0.0, torch.nan, 0.5, 1.0, 2.0, 2.0**-149, 1 + 2.0**-23]),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
@settings(max_examples=2 * settings().max_examples)
def test_the_identity_is_known_number_by_number(n: int, data: st.DataObject, number: float, dtype: torch.dtype):
    """With one number overwritten, possibly by itself."""
    blocks = torch.eye(n, dtype=dtype).repeat(3, 2, 1, 1)
    identity = blocks.clone()
    blocks[data.draw(st.tuples(*(st.integers(0, k - 1) for k in blocks.shape)))] = number
    assert is_identity(identity)
    negative = dtype != torch.bfloat16 and bool(blocks.signbit().any())  # -0: the product is computed
    assert is_identity(blocks) == (torch.equal(blocks, identity) and not negative)
    with mock.patch.object(head_matrices, "AT_ONCE", data.draw(st.integers(1, 4 * identity[0, 0].nbytes))):
        assert is_identity(identity)
        assert is_identity(blocks) == (torch.equal(blocks, identity) and not negative)


def test_what_each_execution_takes_is_told_before_it_runs():
    layer = conv_to_mhsa(nn.Conv2d(64, 64, 3, padding=1))
    lines = {line.split()[0]: line for line in layer.explain((1, 64, 224, 224)).splitlines()}
    assert {*lines} == {"dense", "axial", "auto"}
    assert f"{64 * 64 * 9 * 224 * 224:.2g} multiplications" in lines["axial"]
    assert lines["auto"].split()[1:5] == lines["axial"].split()[1:5]
    assert float(lines["dense"].split()[3]) > 2**18  # MiB: a quarter of a terabyte
    layer.w_qry.requires_grad_()
    lines = {line.split()[0]: line for line in layer.explain((1, 64, 8, 8)).splitlines()}
    assert lines["auto"].split()[1] == lines["dense"].split()[1]
