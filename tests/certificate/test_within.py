"""``within=T``: claims about heads of finite sharpness and about truncated factors."""

import copy
import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from construct import MHSA, conv_to_mhsa
from runs import is_quick
from verify.argument.certification import certify
from verify.experiment.sweep import exact_layers
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
    parts = [[exact_layers.as_integers(w.detach().double().numpy()) for w in (a.w_val, a.w_out)] for a in (full, layer)]
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
