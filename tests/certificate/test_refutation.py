"""REFUTED: for one number off by one ulp, the counterexample is confirmed here by independent means."""

import copy
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from construct import MHSA, conv_to_mhsa
from construct.attention import EXECUTIONS
from runs import is_quick
from verify.argument.certification import certify
from verify.experiment.sweep import exact_layers
from verify.experiment.sweep.exact_layers import exactly_differ
from verify.rounding.model import FORMATS
from verify.strategies import DTYPES, convolutions, sizes_for

EXAMPLES = 2 * settings().max_examples


def nudged(tensor: torch.Tensor, place: int, up: bool) -> torch.Tensor:
    """The tensor with one number moved to the next number of its format."""
    other = tensor.detach().clone()
    flat = other.view(-1)
    info = torch.finfo(other.dtype)
    integers = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}
    if flat[place] == 0:
        flat[place] = info.tiny * info.eps * (1 if up else -1)
    else:
        flat.view(integers.get(other.dtype, torch.int64))[place] += 1 if up else -1
    assert bool(torch.isfinite(other).all())
    assert int((other != tensor).sum()) == 1
    return other


def confirm(conv: Any, layer: MHSA, grid: tuple[int, ...], bound: float, certificate: Any) -> None:
    """The counterexample is an allowed input, its exact outputs are as stated and differ, and so do actual float64 runs."""
    counter = certificate.counterexample
    x = counter.input(conv.in_channels, grid)
    stored = torch.from_numpy(x).to(conv.weight.dtype)
    assert torch.equal(stored.double(), torch.from_numpy(x))
    assert np.abs(x).max() <= bound
    theirs, ours = exact_layers.convolution(conv, x), exact_layers.attention(layer, x)
    assert theirs[counter.output] == counter.convolution
    assert ours[counter.output] == counter.attention
    assert counter.convolution != counter.attention
    assert str(counter.convolution) in certificate.verdict.sentence
    doubled, double = copy.deepcopy(layer).double(), copy.deepcopy(conv).double()
    image = torch.from_numpy(x)[None]
    gap = abs(counter.convolution - counter.attention)
    size = abs(counter.convolution) + abs(counter.attention)
    size += 2 * abs(Fraction(0 if conv.bias is None else conv.bias[counter.output[0]].item()))
    if gap < size * Fraction(1, 2**49):
        return  # too small to show in float64 next to such a bias
    with torch.no_grad():
        expected = double(image)[0][counter.output]
        for doubled.execution in EXECUTIONS:
            assert doubled(image)[0][counter.output] != expected


@pytest.mark.deep
@pytest.mark.parametrize("part", ["taps", "bias"])
def test_one_ulp_of_a_tap_or_a_bias_is_refuted_wherever_it_can_be_seen(part: str):
    """In every format; if a tap reads only padding, no input can show it and the verdict is UNDECIDED."""
    verdicts = Counter[str]()

    @settings(max_examples=2 * EXAMPLES if part == "taps" else EXAMPLES // 2)
    @given(data=st.data(), bound=st.sampled_from([1.0, 0.1, 3.0, 1e-3]))
    def is_seen(dtype: torch.dtype, data: st.DataObject, bound: float):
        conv = data.draw(convolutions(dtypes=[dtype]))
        grid = data.draw(sizes_for(conv, tokens=40))
        layer = conv_to_mhsa(conv, encoding=data.draw(st.sampled_from(["quadratic", "parabola"])))
        d_in, d_out = layer.w_val.shape[2], layer.w_out.shape[3]
        name = "b_out" if part == "bias" else "w_val" if d_out <= d_in else "w_out"  # the taps, not the identity
        tensor = getattr(layer, name)
        place = data.draw(st.integers(0, tensor.numel() - 1))
        setattr(layer, name, nn.Parameter(nudged(tensor, place, data.draw(st.booleans()))))
        certificate = certify(conv, layer, grid=grid, input_bound=bound)
        verdict = certificate.verdict.name
        if exactly_differ(conv, layer, grid):
            assert verdict == "REFUTED", certificate
            confirm(conv, layer, grid, bound, certificate)
        else:
            assert verdict == "UNDECIDED"
            assert part == "taps"
        verdicts[f"{dtype} {verdict}"] += 1

    for dtype in DTYPES:
        is_seen(dtype)
    print(verdicts)
    assert all(verdicts[f"{dtype} REFUTED"] >= 5 for dtype in DTYPES)
    assert part == "bias" or sum(verdicts[f"{dtype} UNDECIDED"] for dtype in DTYPES) > 0


@settings(max_examples=EXAMPLES // 2)
@given(convolutions(), st.data())
def test_swapped_values_are_refuted_exactly_where_the_function_changed(conv: Any, data: st.DataObject):
    """Circular and replicate padding alias taps on small grids; the functions are then equal, and REFUTED would be false."""
    layer = conv_to_mhsa(conv)
    grid = data.draw(sizes_for(conv, tokens=20))
    assume(is_quick(conv, grid))
    first, second = (data.draw(st.integers(0, layer.heads - 1)) for _ in range(2))
    with torch.no_grad():
        for tensor in (layer.w_val, layer.w_out):
            tensor[[first, second]] = tensor[[second, first]]
    certificate = certify(conv, layer, grid=grid)
    if exactly_differ(conv, layer, grid):
        assert certificate.verdict.name == "REFUTED"
        confirm(conv, layer, grid, 1.0, certificate)
    else:
        assert certificate.verdict.name in ("PROVED", "UNDECIDED")


@settings(max_examples=EXAMPLES // 4)
@given(st.floats(1, 2), st.sampled_from([3.0, 0.1, 1.0, 2.0**40]), st.sampled_from([0, -530]))
def test_a_weight_that_is_the_rounded_product_of_two_is_another_function(x: float, scale: float, exponent: int):
    """Also if the product is subnormal, where evaluating the factors in the layer's type would show nothing."""
    a, b = math.ldexp(scale, exponent), math.ldexp(x, exponent)
    conv = nn.Conv1d(1, 1, 1, bias=False, dtype=torch.float64)
    conv.weight.data.fill_(a * b)
    same = Fraction(a) * Fraction(b) == Fraction(a * b)
    for first, second in ((a, b), (b, a)):
        layer = conv_to_mhsa(conv)
        layer.w_val.data.fill_(first)
        layer.w_out.data.fill_(second)
        assert certify(conv, layer, grid=(2,)).verdict.name == ("PROVED" if same else "REFUTED")


@pytest.mark.parametrize("bound", [1e-50, 1e-46])
def test_what_no_input_of_the_format_can_show_is_not_refuted(bound: float):
    """Below the smallest float32 only the zero input is allowed."""
    conv = nn.Conv1d(1, 1, 1)
    layer = conv_to_mhsa(conv)
    with torch.no_grad():
        layer.w_val *= 2
    assert certify(conv, layer, grid=(3,), input_bound=bound).verdict.name == "UNDECIDED"
    assert certify(conv, layer, grid=(3,), input_bound=1e-44).verdict.name == "REFUTED"
    with torch.no_grad():
        layer.b_out += 1
    assert certify(conv, layer, grid=(3,), input_bound=bound).verdict.name == "REFUTED"


@given(st.sampled_from(DTYPES), st.floats(1e-60, 1e60))
def test_the_amplitude_is_the_largest_number_that_is_allowed(dtype: torch.dtype, bound: float):
    """``Format.below`` returns a number of the format that is at most the bound, and the next number exceeds it."""
    info = torch.finfo(dtype)
    below = FORMATS[str(dtype).removeprefix("torch.")].below(bound)
    assert torch.tensor(below, dtype=torch.float64).to(dtype).item() == below
    assert 0 <= below <= min(bound, info.max)
    if below < info.max:
        assert below + max(below * info.eps, info.tiny * info.eps) > bound
