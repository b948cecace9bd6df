"""Observed differences (compare), rounding bounds, and the judgement of one by the other."""

import copy
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import verify
from construct import conv_to_mhsa
from construct.execution.shifts import operator
from runs import convolution_calls
from truths import excess, permuted, sharp_bound
from verify.layers.fields import Attention
from verify.layers.reading import interior
from verify.layers.taps import scaled_permutation_product
from verify.oracle import Convolution, Geometry
from verify.rounding.elements import OffTheKernel, absolute_kernel, convolution_bound, difference_bound
from verify.samples.sampling import check_call, check_outputs, generated_inputs
from verify.strategies import DTYPES, Case, cases, convolutions
from verify.verdict import Verdict


def changed(conv: nn.Module, places: dict[tuple[int, ...], float]) -> Any:
    """The convolution with numbers added at given places of its output."""

    def call(x: torch.Tensor) -> torch.Tensor:
        y = conv(x).clone()
        for place, amount in places.items():
            y[place] += amount
        return y

    return call


@pytest.fixture
def conv() -> nn.Conv2d:
    """A zero 3×3 convolution with padding 1, so that on 5×6 the outer ring reads padding."""
    conv = nn.Conv2d(2, 3, 3, padding=1).requires_grad_(False)
    for tensor in conv.parameters():
        tensor.zero_()
    return conv


def test_compare_finds_the_worst_place_and_tells_interior_from_border(conv: nn.Conv2d):
    result = verify.compare(conv, changed(conv, {(1, 2, 0, 3): -0.5, (0, 1, 2, 2): 0.25}), torch.ones(2, 2, 5, 6))
    assert (result.max_abs, result.border, result.interior) == (0.5, 0.5, 0.25)
    assert result.worst == (1, 2, 0, 3)
    assert (result.expected, result.actual, result.compared) == (0.0, -0.5, 2 * 3 * 5 * 6)
    other = verify.compare(conv, changed(conv, {(2, 1, 1): 2.0}), torch.ones(2, 5, 6))  # unbatched
    assert (other.worst, other.interior, other.border, other.max_abs) == ((0, 2, 1, 1), 2.0, 0.0, 2.0)


def test_compare_of_equals_and_of_nothing(conv: nn.Conv2d):
    same = verify.compare(conv, conv, torch.ones(2, 2, 5, 6))
    assert (same.max_abs, same.max_ulp, same.interior, same.border, same.compared) == (0, 0, 0, 0, 180)
    none = verify.compare(conv, conv, torch.ones(0, 2, 5, 6))
    assert (none.max_abs, none.max_ulp, none.compared, none.worst) == (0, 0, 0, ())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "-inf"])
def test_compare_never_hides_what_is_not_finite(conv: nn.Conv2d, value: float):
    """One non-finite output among many shows, wherever the largest finite difference is; equal infinities are equal."""
    layer = changed(conv, {(0, 0, 2, 2): value, (0, 1, 0, 0): 1.0})
    result = verify.compare(conv, layer, torch.ones(1, 2, 5, 6))
    assert result.worst == (0, 0, 2, 2)
    np.testing.assert_equal((result.max_abs, result.interior, result.border), (abs(value), abs(value), 1.0))


def test_compare_refuses_outputs_of_different_shape(conv: nn.Conv2d):
    with pytest.raises(ValueError, match=r"shapes \(1, 3, 5, 6\) and \(1, 3, 5, 5\)"):
        verify.compare(conv, lambda x: conv(x)[..., :-1], torch.ones(1, 2, 5, 6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [0.0, 1.0, 1.5, -3.0, 1024.0, 1e-4], ids=str)
def test_one_step_to_the_next_number_is_one_ulp(dtype: torch.dtype, value: float):
    """In every type, away from zero, and from zero to the smallest number."""
    conv = nn.Conv1d(1, 1, 1, bias=False).to(dtype)
    nn.init.ones_(conv.weight)
    here = torch.full((1, 1, 3), value, dtype=dtype)
    away = torch.tensor(-math.inf if value < 0 else math.inf, dtype=dtype)
    result = verify.compare(conv, lambda x: torch.nextafter(x, away), here)
    assert result.max_ulp == 1
    assert result.max_abs == (torch.nextafter(here, away).double() - here.double()).abs().max()


def one_output(weight: torch.Tensor, bias: float) -> nn.Conv1d:
    """A one-channel convolution with a kernel as long as its input."""
    conv = nn.Conv1d(1, 1, len(weight), dtype=weight.dtype).requires_grad_(False)
    conv.weight.copy_(weight.view(1, 1, -1))
    conv.bias.copy_(torch.tensor([bias]))  # type: ignore[union-attr]
    return conv


def test_products_that_underflow_are_in_the_bound_of_the_convolution():
    conv, x = one_output(torch.full((3,), 2.0**-80), 0.0), torch.full((1, 1, 3), 2.0**-75)
    error = 3 * 2.0**-155 - conv(x).item()
    assert error > 0  # torch's result is too small by more than any relative error explains
    assert error <= convolution_bound(conv, x).item() < 1e-43


def test_an_underflow_that_the_second_factor_magnifies_is_in_the_bound_of_the_attention():
    """X W_val underflows to 0, though W_out would have made it visible."""
    conv, x = one_output(torch.tensor([2.0**-10]), 0.0), torch.full((1, 1, 1), 2.0**-80)
    layer = conv_to_mhsa(conv, execution="dense").requires_grad_(False)
    layer.w_val.fill_(2.0**-80)
    layer.w_out.fill_(2.0**70)
    assert torch.equal(layer.weight, conv.weight)
    assert layer(x).item() == 0.0
    assert 2.0**-90 <= sharp_bound(layer, conv, x).item() < 2.0**-78
    assert excess(conv, layer, x, layer(x)) <= 1


@given(cases(integers=[False], dtypes=[torch.float32], batches=[1, 2]))
def test_bounds_are_small(case: Case):
    """The bounds are far below Σ|W||x|, so that a wrong tap cannot pass."""
    layer = conv_to_mhsa(case.conv)
    fields = Convolution.read(case.conv)
    sizes = copy.deepcopy(case.conv).double()
    with torch.no_grad():
        for p in sizes.parameters():
            p.abs_()
        size = sizes(case.x.double().abs()).numpy()
    terms = fields.weight.size / case.conv.out_channels + 2
    assert bool((difference_bound(case.conv, layer, case.x) <= (4 * terms + 8) * 2.0**-24 * size + 1e-40).all())


@given(convolutions(), st.data())
def test_the_absolute_kernel_has_the_size_of_the_kernel(conv: Any, data: st.DataObject):
    """It is read from the eight tensors alone, for any order of the heads."""
    layer = conv_to_mhsa(conv)
    layer = permuted(layer, data.draw(st.permutations(range(layer.heads))))
    np.testing.assert_array_equal(absolute_kernel(Attention.read(layer)), np.abs(Convolution.read(conv).weight))


@pytest.mark.parametrize(
    "v", [[-8.0, 8.0], [-8.0, 48.0], [8.0, 0.0], [0.0, 16.0]], ids=["between", "beyond", "α < 0", "α = 0"]
)
def test_a_head_off_the_kernel_has_no_bound(v: list[float]):
    conv = nn.Conv1d(1, 1, 3)
    layer = conv_to_mhsa(conv).requires_grad_(False)
    layer.v[1] = torch.tensor(v)
    with pytest.raises(OffTheKernel, match=r"head 1 (looks at|has no single best shift)"):
        difference_bound(conv, layer, torch.ones(1, 1, 5))


def test_check_call_says_checked_refuted_or_undecided():
    """CHECKED within rounding; REFUTED, with the place, beyond it; UNDECIDED if neither can be shown."""
    conv, x = nn.Conv2d(3, 4, 3, padding=1).requires_grad_(False), torch.randn(2, 3, 5, 6)
    layer = conv_to_mhsa(conv, execution="dense")  # it sums in another order than torch
    good = check_call(conv, layer, x, "noise")
    assert good.verdict.name == "CHECKED"
    assert "240 outputs agree within rounding on noise" in good.verdict.sentence
    assert 0 < good.ratio <= 1
    assert good.discrepancy.max_abs <= good.bound
    layer.w_val[0] *= 1 + 2**-14
    bad = check_call(conv, layer, x, "noise")
    assert bad.verdict.name == "REFUTED"
    assert re.match(r"at \(\d, \d, \d, \d\) the convolution gives .* where rounding explains", bad.verdict.sentence)
    assert bad.ratio > 1
    x[0, 0, 2, 2] = math.inf
    assert check_call(conv, conv_to_mhsa(conv), x, "infinity").verdict.name == "UNDECIDED"
    x[0, 0, 2, 2] = math.nan
    assert check_call(conv, conv_to_mhsa(conv), x, "nan").verdict.name == "UNDECIDED"
    merged = good.merged(bad)
    assert (merged.verdict.name, merged.calls, merged.ratio) == ("REFUTED", 2, bad.ratio)
    assert bad.merged(good).verdict.name == "REFUTED"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_a_number_in_one_call_is_not_forgotten(number: float):
    """Wherever it comes: a certificate is held against the greatest difference of all calls, and their greatest input."""
    conv, x = nn.Conv1d(1, 1, 1), torch.ones(1, 1, 4)
    expected = conv(x).detach()
    good = check_outputs(conv, conv_to_mhsa(conv), x, expected, expected, "good")
    bad = check_outputs(conv, conv_to_mhsa(conv), x * number, expected, expected * number, "bad")
    for merged in (good.merged(bad), bad.merged(good)):
        figures = (merged.discrepancy.max_abs, merged.interior, merged.ratio, merged.largest_input)
        assert np.allclose(figures, [bad.discrepancy.max_abs, bad.interior, bad.ratio, number], equal_nan=True)


@given(convolutions(), st.integers(0, 2**16))
def test_generated_inputs_fit_and_have_an_interior(conv: Any, seed: int):
    """For every geometry the inputs are accepted, repeatable, and give some interior output."""
    x = generated_inputs(conv, 2, seed)
    assert torch.equal(x, generated_inputs(conv, 2, seed))
    assert not torch.equal(x, generated_inputs(conv, 2, seed + 1))
    assert x.dtype == conv.weight.dtype
    y = conv(x)
    assert y.shape[0] == 2
    assert interior(Geometry.read(conv), x.shape[2:], y.shape[2:]).any()


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_products_with_an_identity_are_the_other_factor(groups, rows, columns, seed):
    rng = np.random.default_rng(seed)
    a = rng.choice([-1.5, 0.0, 1.0, 2.0], (groups, rows, columns))
    for first, second in ((a, np.stack([np.eye(columns)] * groups)), (np.stack([np.eye(rows)] * groups), a)):
        second = second.copy()
        np.testing.assert_array_equal(scaled_permutation_product(first, second), a)
        place = tuple(rng.integers(0, n) for n in second.shape)
        second[place] = 0.5 if second[place] != 0.5 else 1.0  # no longer the identity
        product = scaled_permutation_product(first, second)
        assert product is None or np.array_equal(product, np.matmul(first, second))


def test_verdicts_are_four_words():
    assert str(Verdict("CHECKED", "so it is")) == "CHECKED: so it is"
    good = [Verdict(name, "").good for name in ("PROVED", "CHECKED", "REFUTED", "UNDECIDED")]
    assert good == [True, True, False, False]
    with pytest.raises(ValueError, match="must be a verdict"):
        Verdict("VERIFIED", "")  # type: ignore[arg-type]


def test_calls_are_counted_wherever_they_come_from():
    """Functional, transposed and Fourier calls are counted; a type conversion is not, despite its name."""
    x, w = torch.ones(1, 1, 4), torch.ones(1, 1, 2)
    assert convolution_calls(nn.functional.conv1d, x, w).total() >= 1
    assert convolution_calls(nn.functional.conv_transpose1d, x, w).total() >= 1
    assert convolution_calls(torch.fft.rfft, x).total() >= 1
    assert not convolution_calls(lambda: (x @ x.mT, x.double(), x.to(torch.float16)))


def test_convolutions_within_an_operator_of_python_code_are_counted_too() -> None:
    """Where gradients are recorded, one-hot heads are such an operator."""

    @torch.library.custom_op("tests::hidden", mutates_args=())
    def hidden(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv1d(x, w)

    x, w = torch.ones(1, 2, 8), torch.ones(3, 2, 3)
    assert convolution_calls(hidden, x, w).total() >= 1
    layer = conv_to_mhsa(nn.Conv1d(2, 3, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator.maps, "forward", lambda x, w, *_: nn.functional.conv1d(x, layer.weight))
        assert convolution_calls(layer, x.requires_grad_()).total() >= 1
    assert not convolution_calls(lambda: layer(x).sum().backward())


def test_an_operator_with_code_for_a_device_is_counted_and_computed_by_that_code() -> None:
    @torch.library.custom_op("tests::by_device", mutates_args=(), device_types="cuda")
    def by_device(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        raise AssertionError("for a GPU")

    @by_device.register_kernel("cpu")
    def _(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv1d(x, w)

    assert convolution_calls(by_device, torch.ones(1, 2, 8), torch.ones(3, 2, 3)).total() >= 1


def test_complex_outputs_are_not_compared():
    conv = nn.Conv2d(2, 3, 3, dtype=torch.complex64)
    with pytest.raises(ValueError, match="complex"):
        verify.compare(conv, lambda x: conv(x).conj(), torch.randn(1, 2, 6, 6, dtype=torch.complex64))
