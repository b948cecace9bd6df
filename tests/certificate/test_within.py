"""``within=T``: claims about heads of finite sharpness and about truncated factors."""

import copy
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from construct import MHSA, conv_to_mhsa
from runs import is_quick
from verify.argument.certification import certify
from verify.experiment.sweep import exact_layers
from verify.rounding.leakage import leakage_on_lattice
from verify.strategies import convolutions, sizes_for

EXAMPLES = settings().max_examples
DOUBLE = [torch.float64]


def worst_input(layer: MHSA, grid: tuple[int, ...], bound: float) -> tuple[np.ndarray, torch.Tensor]:
    """The supremum of the difference between a layer with soft heads and the same layer with sharp ones, and inputs that attain it.

    Both layers are linear in X, so the signs of the difference's coefficients give the worst X.

    Returns:
        The supremum by output channel (D_out,), and for each channel an input that attains it, (D_out, D_in, *grid).
    """
    _, attended = exact_layers.attended_positions(layer, grid)  # (heads, queries): 0 a zero, else 1 + input position
    places = math.prod(grid)
    with torch.no_grad():
        blank = torch.zeros(1, layer.in_channels, *grid, dtype=torch.float64)
        soft = layer.attention_probabilities(blank)[0].numpy()  # (heads, queries, tokens)
    moved = np.zeros((*soft.shape[:2], places + 1))
    for token, position in enumerate(exact_layers.token_sources(layer, grid)):
        moved[..., position] += soft[..., token]
    np.put_along_axis(moved, attended[..., None], np.take_along_axis(moved, attended[..., None], 2) - 1, 2)
    products = (layer.w_val @ layer.w_out).detach().numpy()  # (heads, g, i, o)
    coefficients = np.einsum("hqp,hgio->goqip", moved[..., 1:], products)
    g, o, q, i, p = coefficients.shape
    coefficients = coefficients.reshape(g * o, q, i, p)
    sizes = bound * np.abs(coefficients).sum(axis=(2, 3))
    inputs = np.zeros((g * o, g, i, p))
    for channel, query in enumerate(sizes.argmax(axis=1)):
        inputs[channel, channel // o] = np.where(coefficients[channel, query] < 0, -bound, bound)
    return sizes.max(axis=1), torch.from_numpy(inputs.reshape(g * o, layer.in_channels, *grid))


def off(layer: MHSA, fraction: float) -> MHSA:
    """The same layer with every head aimed slightly off its key, along the first axis."""
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.v[:, 1] -= 2 * other.v[:, 0] * fraction
    return other


# ---- finite sharpness ----------------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES // 2)
@given(convolutions(dtypes=DOUBLE, integers=[False]), st.data())
def test_the_bound_covers_the_worst_input_there_is(conv: Any, data: st.DataObject):
    """For every α and τ, the supremum over all inputs, computed from the attention itself, is below the bound."""
    grid = data.draw(sizes_for(conv, tokens=40))
    assume(is_quick(conv, grid))
    layer = conv_to_mhsa(conv, alpha=data.draw(st.sampled_from([0.01, 0.3, 1.0, 2.5, 5.0, 12.0, 25.0])))
    layer = off(layer, data.draw(st.sampled_from([0, 0, 0.25, -0.375, 0.49])))
    bound = data.draw(st.sampled_from([1.0, 0.3, 100.0]))
    certificate = certify(conv, layer, grid=grid, input_bound=bound, within=1e18)
    assert certificate.verdict.name == "PROVED", certificate
    assert not certificate.taps.any()
    supremum, inputs = worst_input(layer, grid, bound)
    assert (supremum <= certificate.leakage * (1 + 1e-9) + certificate.rounding).all()
    with torch.no_grad():
        differences = (layer(inputs) - conv(inputs)).abs().flatten(2).amax(2).diagonal().numpy()
    assert (differences >= supremum * (1 - 1e-9) - certificate.rounding).all()  # the worst input attains the supremum
    assert (differences <= certificate.bound).all()


@pytest.mark.parametrize("alpha", [0.5, 2, 8, 20])
@pytest.mark.parametrize("dims", [1, 2])
def test_the_leakage_is_reached_on_a_large_grid(alpha: float, dims: int):
    """For one head in the middle of a large grid, the leakage bound equals the supremum up to rounding."""
    conv = [nn.Conv1d, nn.Conv2d][dims - 1](1, 1, 1, bias=False, dtype=torch.float64)
    grid = (25,) * dims
    certificate = certify(conv, conv_to_mhsa(conv, alpha=alpha), grid=grid, within=1e18)
    supremum, _ = worst_input(conv_to_mhsa(conv, alpha=alpha), grid, 1.0)
    assert supremum[0] == pytest.approx(2 * leakage_on_lattice(alpha, dims) * conv.weight.abs().item(), rel=1e-4)
    assert 1 <= certificate.leakage[0] / supremum[0] * (1 + 1e-6) < 1.0001


def test_exactly_the_bound_is_proved_and_the_next_number_below_is_not():
    conv = nn.Conv2d(2, 3, 3, padding=1)
    layer = conv_to_mhsa(conv, alpha=3.0)
    bound = float(certify(conv, layer, grid=(5, 5), within=1e18).bound.max())
    assert certify(conv, layer, grid=(5, 5), within=bound).verdict.name == "PROVED"
    less = certify(conv, layer, grid=(5, 5), within=math.nextafter(bound, 0))
    assert less.verdict.name == "UNDECIDED"
    assert "exceeds the wanted" in less.verdict.sentence
    sharp = certify(conv, conv_to_mhsa(conv), grid=(5, 5), within=1e-12)  # rounding counts too
    assert sharp.verdict.name == "UNDECIDED"


# ---- truncated factors -----------------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES // 4)
@given(convolutions(channels=["dense", "grouped"]), st.data())
def test_the_part_of_the_taps_is_exact(conv: Any, data: st.DataObject):
    """B·Σ|W_j − W_val W_out| by channel agrees with fractions; T at the bound is PROVED, and without T it is REFUTED."""
    grid = data.draw(sizes_for(conv, tokens=40))
    assume(is_quick(conv, grid))
    full = conv_to_mhsa(conv)
    rank = data.draw(st.integers(1, full.w_val.shape[3]))
    layer = conv_to_mhsa(conv, head_dim=rank)
    bound = data.draw(st.sampled_from([1.0, 0.3, 8.0]))
    certificate = certify(conv, layer, grid=grid, input_bound=bound, within=1e18)
    assert certificate.verdict.name == "PROVED"
    expected = _tap_error(full, layer, Fraction(bound))
    for part, truth in zip(certificate.taps, expected, strict=True):
        assert truth <= Fraction(float(part)) <= truth * (1 + Fraction(1, 2**18))
    if not any(expected):
        return
    largest = float(certificate.bound.max())
    assert certify(conv, layer, grid=grid, input_bound=bound, within=largest).verdict.name == "PROVED"
    less = certify(conv, layer, grid=grid, input_bound=bound, within=math.nextafter(largest, 0))
    assert less.verdict.name == "UNDECIDED"
    assert certify(conv, layer, grid=grid, input_bound=bound).verdict.name in ("REFUTED", "UNDECIDED")
    x = (torch.rand(8, conv.in_channels, *grid, generator=torch.Generator().manual_seed(0)) * 2 - 1) * bound
    with torch.no_grad():
        x = x.to(conv.weight.dtype)
        differences = (layer(x).double() - conv(x).double()).abs().flatten(2).amax(2).amax(0).numpy()
    assert (differences <= certificate.bound).all()


def _tap_error(full: MHSA, layer: MHSA, bound: Fraction) -> list[Fraction]:
    """B·Σ|ΔW| by channel, from the factors of the exact and of the truncated layer, head by head."""
    parts = [
        [exact_layers.as_integers(w.detach().double().numpy()) for w in (one.w_val, one.w_out)] for one in (full, layer)
    ]
    products = [np.matmul(a, b) * Fraction(1, p * q) for (a, p), (b, q) in parts]
    error = np.abs(products[0] - products[1]).sum(axis=(0, 2))  # (g, o)
    return [bound * x for x in error.ravel()]


def test_a_difference_that_underflows_is_no_less_than_it_is():
    """B·|ΔW| below half the smallest number is not rounded to 0."""
    conv = nn.Conv1d(1, 2, 1, bias=False, dtype=torch.float64)
    conv.weight.data.fill_(0)
    layer = conv_to_mhsa(conv)
    layer.w_val.data.fill_(1)
    layer.w_out.data[..., 0], layer.w_out.data[..., 1] = 2.0**-1074, 0
    certificate = certify(conv, layer, grid=(3,), input_bound=0.25, within=1.0)
    assert certificate.taps[0] > 0 == certificate.taps[1]


def test_all_parts_together():
    """For a soft, off-lattice, truncated layer with another bias, each part is positive and the sum covers what is observed."""
    conv = nn.Conv2d(4, 4, 3, padding=1, dtype=torch.float64)
    layer = off(conv_to_mhsa(conv, alpha=6.0, head_dim=2), 0.125)
    with torch.no_grad():
        layer.b_out[1] += 0.5
    certificate = certify(conv, layer, grid=(5, 5), within=1e18)
    assert certificate.verdict.name == "PROVED"
    assert (np.minimum(certificate.leakage, certificate.taps) > 1e-3).all()
    assert (certificate.rounding > 0).all()
    assert certificate.taps[1] >= 0.5
    parts = certificate.rounding + certificate.leakage + certificate.taps
    assert certificate.bound == pytest.approx(parts, rel=1e-15)
    assert (certificate.bound >= parts).all()
    assert 0.2 < certificate.observed[1] <= certificate.bound[1]
