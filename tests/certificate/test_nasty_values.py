"""Extreme numbers: non-finite, huge, subnormal, zero, all equal, and images so large that positions are large."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import verify
from construct import conv_to_mhsa
from verify.samples.sampling import check_call


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def pair(fill: float | None = None) -> tuple[Any, Any]:
    """A convolution, with all weights equal to ``fill`` if given, and its attention layer."""
    torch.manual_seed(3)
    conv = nn.Conv2d(2, 3, 3, padding=1)
    if fill is not None:
        nn.init.constant_(conv.weight, fill)
    return conv, conv_to_mhsa(conv)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_row_44_inputs_that_are_not_finite_are_outside_of_the_claim(value: float) -> None:
    conv, layer = pair()
    x = noise(1, 2, 6, 7)
    certificate = verify.certify(conv, layer, grid=(6, 7), input_bound=4.0)
    assert any("inputs are finite" in line for line in certificate.assumptions)
    x[0, 1, 2, 3] = value
    check = check_call(conv, layer, x, "noise")
    assert check.verdict.name == "UNDECIDED"
    assert "not finite" in check.verdict.sentence
    with pytest.raises(ValueError, match=r"bound"):
        verify.certify(conv, layer, grid=(6, 7), input_bound=math.inf)


@pytest.mark.parametrize("pixel", [1e30, -1e38])
def test_row_45_one_huge_pixel_is_held_against_a_bound_that_scales(pixel: float) -> None:
    conv, layer = pair()
    x = noise(1, 2, 6, 7)
    x[0, 1, 2, 3] = pixel
    check = check_call(conv, layer, x, "noise")
    assert check.verdict.name == "CHECKED"
    assert 0 < check.ratio <= 1
    with torch.no_grad():
        layer.w_out[[0, 1]] = layer.w_out[[1, 0]]  # and the bound does not excuse a wrong layer
    assert check_call(conv, layer, x, "noise").verdict.name == "REFUTED"


@pytest.mark.parametrize("scales", [(1e-42, 1.0), (1.0, 1e-41), (1e-20, 1e-22)], ids=["weights", "inputs", "products"])
def test_row_46_subnormal_numbers(scales: tuple[float, float]) -> None:
    conv, _ = pair()
    with torch.no_grad():
        conv.weight.mul_(scales[0])
        conv.bias.zero_()
    layer = conv_to_mhsa(conv)
    x = noise(1, 2, 6, 7) * scales[1]
    check = check_call(conv, layer, x, "noise")
    assert check.verdict.name == "CHECKED"
    assert float(conv(x).detach().abs().max()) > 0
    assert verify.certify(conv, layer, grid=(6, 7), input_bound=scales[1] * 8).verdict.name == "PROVED"


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_row_47_zeros_of_either_sign_are_equal_as_numbers(zero: float) -> None:
    conv, layer = pair(zero)
    nn.init.constant_(conv.bias, -0.0)
    layer = conv_to_mhsa(conv)
    check = check_call(conv, layer, noise(2, 2, 6, 7), "noise")
    assert (check.verdict.name, check.discrepancy.max_abs) == ("CHECKED", 0.0)
    assert verify.certify(conv, layer, grid=(6, 7), input_bound=1.0).verdict.name == "PROVED"


def test_row_48_heads_of_one_kernel_are_told_apart_by_where_they_look() -> None:
    conv, layer = pair(0.5)
    assert verify.certify(conv, layer, grid=(6, 7), input_bound=1.0).verdict.name == "PROVED"
    assert len({tuple(tau) for tau in layer.centres()[1].tolist()}) == 9
    with torch.no_grad():
        layer.v[:2] = layer.v[[1, 0]]  # exchanging equal kernels makes no difference
    assert verify.certify(conv, layer, grid=(6, 7), input_bound=1.0).verdict.name == "PROVED"
    with torch.no_grad():
        layer.v[0] = layer.v[1]  # two heads at one place give another function
    assert verify.certify(conv, layer, grid=(6, 7), input_bound=1.0).verdict.name == "REFUTED"


def test_row_48_heads_of_rank_0() -> None:
    conv, _ = pair()
    with torch.no_grad():
        conv.weight[..., 1, :] = 0
    layer = conv_to_mhsa(conv, head_dim="rank")
    assert torch.equal(layer.weight, conv.weight)
    assert verify.certify(conv, layer, grid=(6, 7), input_bound=1.0).verdict.name == "PROVED"


@pytest.mark.nasty(38)
def test_row_49_a_certificate_names_its_largest_grid_and_stops_where_scores_round() -> None:
    conv, layer = pair()
    certificate = verify.certify(conv, layer, grid=(1024, 1024), input_bound=1.0)
    assert certificate.verdict.name == "PROVED"
    assert "up to (1024, 1024)" in str(certificate)
    line = nn.Conv1d(1, 1, 2)
    too_large = verify.certify(line, conv_to_mhsa(line), grid=(3 * 10**7,), input_bound=1.0)
    assert too_large.verdict.name == "UNDECIDED"
    assert "does not beat the rounding of the scores" in too_large.verdict.sentence


@pytest.mark.parametrize("execution", ["dense", "axial"])
def test_row_49_every_head_finds_its_pixel_across_a_long_image(execution: str) -> None:
    """At n = 4096 the logits reach α·n² = 1.7e10, where float32 could not distinguish neighbours."""
    conv = nn.Conv1d(1, 1, 3, padding=1)
    layer = conv_to_mhsa(conv, execution=execution)
    assert check_call(conv, layer, noise(1, 1, 4096), "noise").verdict.name == "CHECKED"
