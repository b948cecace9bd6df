"""The theorem as properties: on random convolutions and inputs, the attention layer equals the convolution."""

import copy
import dataclasses
import inspect
from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import example, find, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from construct import ConvGeometry, conv_to_mhsa
from construct.builder import kernel_to_mhsa
from traits import traits
from truths import any_dimension, batched, exact, excess, permuted
from verify.rounding.elements import difference_bound
from verify.strategies import (
    PADDING_MODES,
    Case,
    cases,
    convolutions,
    crashes_torch,
    inputs_for,
    least_size,
)

EXAMPLES = max(40, settings().max_examples)  # fewer do not show every option


@pytest.mark.hypothesis
@pytest.mark.nasty(31, 32, 33, 37)
def test_layer_equals_convolution_within_rounding_and_every_option_occurs():
    """|MHSA − Conv| stays within a bound derived from shapes and numbers, at every element; and no option was left out."""
    occurred: Counter[str] = Counter()

    def same_function(case: Case) -> None:
        layer = conv_to_mhsa(case.conv)
        with torch.no_grad():
            expected, output = case.conv(case.x), layer(case.x)
        assert output.shape == expected.shape
        assert output.dtype == expected.dtype
        x, expected, output = batched(case.conv, case.x, expected, output)
        bound = torch.from_numpy(difference_bound(case.conv, layer, x))
        assert bool(((output.double() - expected.double()).abs() <= bound).all())
        occurred.update({name: int(present) for name, present in traits(case).items()})

    for d, transposed in product((1, 2, 3), (False, True)):
        enough = max(32, settings().max_examples)
        often = settings(max_examples=enough if transposed else 2 * enough)  # plain convolutions have more options
        often(given(cases(dims=[d], transposed=[transposed], integers=[False]))(same_function))()
    assert len(occurred) > 50
    assert not [name for name, times in occurred.items() if times == 0]


@settings(max_examples=4 * EXAMPLES)
@given(cases())
def test_layer_equals_the_definition_within_its_own_rounding(case: Case):
    """Against the oracle, without torch's convolution, only the attention's own rounding is allowed.

    On small integers there is no tolerance: the layer equals torch's convolution, a second reference, bit for bit.  D_p = K + 1
    suffices for K-dimensional convolutions.
    """
    layer = conv_to_mhsa(case.conv)
    d = len(layer.kernel_size)
    assert layer.v.shape == (layer.heads, d + 1)
    assert layer.w_key_pos.shape == (layer.heads, d + 1, d + 1)
    with torch.no_grad():
        output, expected = layer(case.x), case.conv(case.x)
    if case.integers:
        assert torch.equal(output, expected)
        assert torch.equal(output.double(), exact(case.conv, case.x))
    else:
        assert excess(case.conv, layer, case.x, output) <= 1


@settings(max_examples=4 * EXAMPLES)
@given(convolutions(), st.data())
def test_torch_may_crash_where_outputs_read_padding_alone_or_a_stride_leaves_one(conv: Any, data: st.DataObject):
    """If they read padding alone, a kernel of ones gives zeros on an input of ones; no strategy generates such a size.

    In float32 that concerns the width alone, and a single output is wrong only for one input channel.
    """
    size = [data.draw(st.integers(1, 4)) for _ in conv.weight.shape[2:]]
    ones = copy.deepcopy(conv).double()
    with torch.no_grad():
        for name, parameter in ones.named_parameters():
            parameter.fill_(name == "weight")
        try:
            output = ones(torch.ones(1, conv.in_channels, *size, dtype=torch.float64))
        except RuntimeError:  # torch refuses this size
            return
    axes = zip(output.shape[2:], conv.stride, conv.kernel_size, strict=True)
    single = [not conv.transposed and length == 1 < min(stride, k) for length, stride, k in axes]
    if conv.weight.dtype == torch.float32 and not conv.transposed:
        padding = conv.padding if isinstance(conv.padding, str) else conv.padding[-1]
        kernel = torch.ones(1, 1, conv.kernel_size[-1], dtype=torch.float64)
        row = torch.ones(1, 1, size[-1], dtype=torch.float64)
        along = functional.conv1d(row, kernel, None, conv.stride[-1], padding, conv.dilation[-1])
        alone = conv.padding_mode == "zeros" and not along.any()
        expected = alone or (single[-1] and conv.in_channels == 1 and conv.stride[:-1][-1:] in ((), (1,)))
    else:
        half = conv.weight.dtype in (torch.float16, torch.bfloat16)
        expected = half and (any(single) or not output.any())
    assert crashes_torch(conv, size) == expected
    assert not crashes_torch(conv, least_size(conv))


@given(cases(tokens=80), st.sampled_from(["quadratic", "parabola"]), st.sampled_from(["rank", 1, 7]))
def test_every_encoding_and_head_dimension_gives_the_same_function(case: Case, encoding: str, head_dim: int | str):
    """D_p is d + 1 or 2, and D_h minimal, padded, or the exact rank; a smaller D_h would be an approximation."""
    if isinstance(head_dim, int):
        head_dim = max(head_dim, min(case.conv.in_channels, case.conv.out_channels) // case.conv.groups)
    layer = conv_to_mhsa(case.conv, encoding=encoding, head_dim=head_dim)
    assert layer.v.shape[1] == (len(layer.kernel_size) + 1 if encoding == "quadratic" else 2)
    with torch.no_grad():
        output = layer(case.x)
    if case.integers and head_dim != "rank":
        assert torch.equal(output.double(), exact(case.conv, case.x))
    assert excess(case.conv, layer, case.x, output) <= 1
    assert head_dim == "rank" or torch.equal(layer.weight, case.conv.weight)


@given(st.integers(1, 40), st.integers(1, 9), st.floats(1e-3, 1e5), st.sampled_from(["quadratic", "parabola"]))
@example(7, 2, 0.7, "quadratic")
def test_the_kernel_can_be_read_at_every_sharpness(taps: int, dilation: int, alpha: float, encoding: str):
    """Also if α is not a power of two, so that −α(1, −2τ) rounds."""
    conv = nn.Conv2d(1, 2, (taps, 2), dilation=dilation).requires_grad_(False)
    layer = conv_to_mhsa(conv, alpha=alpha, encoding=encoding)
    assert torch.equal(layer.weight, conv.weight)
    assert torch.equal(layer.centres()[1], conv_to_mhsa(conv).centres()[1])


@given(cases(), st.data())
def test_any_permutation_of_heads_gives_the_same_function(case: Case, data: st.DataObject):
    """Permuting the seven per-head tensors, or building with another ``order``, changes only the rounding."""
    layer = conv_to_mhsa(case.conv)
    order = data.draw(st.permutations(range(layer.heads)))
    built = conv_to_mhsa(case.conv, order=order)
    assert torch.equal(built.v, layer.v[list(order)])
    for other in (permuted(layer, list(order)), built):
        with torch.no_grad():
            output = other(case.x)
        if case.integers:
            assert torch.equal(output.double(), exact(case.conv, case.x))
        assert excess(case.conv, other, case.x, output) <= 1
        assert layer.weight.dtype == case.conv.weight.dtype
        assert torch.equal(other.weight, case.conv.weight)  # assembled from where the heads look
        bias = case.conv.bias
        assert torch.equal(other.b_out, torch.zeros_like(other.b_out) if bias is None else bias)


@settings(max_examples=EXAMPLES // 2)
@given(any_dimension(4, 5, modes=PADDING_MODES))
def test_d_p_is_one_more_than_the_dimensions_that_torch_lacks_too(problem):
    """All dimensions share one code path; the fourth and fifth equal the oracle bit for bit."""
    truth, x = problem
    stated, names = truth.geometry, [field.name for field in dataclasses.fields(ConvGeometry)]
    fields: dict[str, Any] = {name: getattr(stated, name) for name in names if hasattr(stated, name)}
    geometry = ConvGeometry(**fields, padding=tuple(before for before, _ in stated.pads))
    bias = None if truth.bias is None else torch.from_numpy(truth.bias).double()
    layer = kernel_to_mhsa(torch.from_numpy(truth.weight).double(), bias, geometry)
    assert layer.v.shape[1] == len(truth.geometry.kernel_size) + 1
    assert torch.equal(layer(torch.from_numpy(x).double()).detach(), torch.from_numpy(truth(x)).double())


@pytest.mark.parametrize(
    ("wanted", "simplest"),
    [
        (lambda case: True, "Conv1d(1, 1, kernel_size=(1,), stride=(1,), bias=False) in torch.float32 on (1, 1, 1)"),
        (lambda case: case.conv.transposed, "ConvTranspose1d(1, 1, kernel_size=(1,), stride=(1,), bias=False)"),
        (lambda case: case.x.dim() == 4, "Conv2d(1, 1, kernel_size=(1, 1), stride=(1, 1), bias=False)"),
        (lambda case: case.conv.weight[0, 0].numel() > 2, "Conv1d(1, 1, kernel_size=(3,), stride=(1,), bias=False)"),
        (lambda case: case.conv.groups > 1, "Conv1d(2, 2, kernel_size=(1,), stride=(1,), groups=2, bias=False)"),
    ],
    ids=["anything", "transposed", "two dimensions", "three heads", "groups"],
)
def test_cases_shrink_to_the_simplest(wanted, simplest: str):
    """A failing property is reported on the simplest convolution that fails it."""
    assert find(cases(), wanted, settings=settings(max_examples=100)).description.startswith(simplest)


def test_every_argument_of_cases_is_that_of_the_half_that_it_goes_to():
    """By name alone; those of convolutions are handed on."""
    halves = {**inspect.signature(inputs_for).parameters, **inspect.signature(convolutions).parameters}
    *own, options = inspect.signature(cases).parameters.values()
    for parameter in own:
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default == halves[parameter.name].default
    assert options.kind is inspect.Parameter.VAR_KEYWORD


@pytest.mark.parametrize("options", [{"dims": [4]}, {"channels": ["many"]}, {"paddings": ["some"]}], ids=str)
def test_what_no_convolution_has_is_refused(options: dict[str, Any]):
    with pytest.raises(ValueError, match=str(*options.values())[1:-1]):
        find(cases(**options), lambda case: True)


@settings(max_examples=3)
@given(
    cases(
        dims=[2], transposed=[False], dtypes=[torch.float64], padding_modes=["reflect"], paddings=["same"], bias=[True],
        channels=["depthwise"], integers=[True], batches=[2], layouts=["expanded"], tokens=30,
    )
)  # fmt: skip
def test_cases_hand_every_argument_on(case: Case):
    conv = case.conv
    assert isinstance(conv, torch.nn.Conv2d)
    assert (conv.padding_mode, conv.padding, conv.weight.dtype) == ("reflect", "same", torch.float64)
    assert conv.groups == conv.in_channels == conv.out_channels > 1
    assert conv.bias is not None
    assert case.integers
    assert len(case.x) == 2
    assert case.x.stride(0) == 0
    assert case.x[0, 0].numel() < 150
