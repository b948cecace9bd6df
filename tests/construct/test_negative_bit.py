"""Tensors whose sign torch stores separately (``torch.Tensor.is_neg``) work as inputs, weights and gradients everywhere."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from construct import conv_to_mhsa
from construct.attention import EXECUTIONS
from construct.weights import NAMES
from verify.argument.certification import certify
from verify.layers.fields import digests
from verify.oracle import Convolution
from verify.samples.sampling import check_call
from verify.strategies import DTYPES, cases, convolutions, sizes_for

EXAMPLES = settings().max_examples


def negative(tensor: Tensor) -> Tensor:
    """The same numbers stored with the other sign, like the imaginary part of a conjugate."""
    view = torch.ops.aten._neg_view((-tensor).clone(memory_format=torch.preserve_format))
    assert view.is_neg()
    assert torch.equal(view.double(), tensor.double())
    return view


@pytest.mark.nasty(66)
@settings(max_examples=2 * EXAMPLES)
@given(cases(integers=[True]))
def test_every_execution_sees_the_sign_of_its_input(case: Any):
    """Bit for bit on small integers, in every type and layout, batched or not.

    ``float32.copy_`` of float16 would drop the sign if both are contiguous.
    """
    layer = conv_to_mhsa(case.conv)
    with torch.no_grad():
        expected = case.conv(case.x)
        for layer.execution in EXECUTIONS:
            for _ in range(2):  # a repeated call may use the cache
                assert torch.equal(layer(negative(case.x)), expected)
    if case.x.dim() == case.conv.weight.dim():
        assert torch.equal(layer.attention_probabilities(negative(case.x)), layer.attention_probabilities(case.x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EXECUTIONS)
def test_gradients_that_come_back_with_it(name: str, dtype: torch.dtype):
    conv = nn.Conv2d(3, 5, 3, stride=2, padding=1, dtype=dtype)
    layer = conv_to_mhsa(conv)
    layer.execution = name
    gradients = []
    for kept in (negative, torch.clone):
        layer.zero_grad()
        x = torch.randn(2, 3, 7, 8, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
        y = layer(x)
        y.backward(kept(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype)))
        gradients.append([x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)])
    assert len(gradients[0]) > 1
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@settings(max_examples=EXAMPLES // 3)
@given(convolutions(), st.data())
def test_weights_are_read_with_their_sign(conv: Any, data: st.DataObject):
    grid = data.draw(sizes_for(conv, tokens=30))
    plain = conv_to_mhsa(conv)
    fields, hashed = Convolution.read(conv), digests(conv, ("weight", "bias"))
    for name, tensor in [*conv.named_parameters()]:
        setattr(conv, name, nn.Parameter(negative(tensor.detach()), requires_grad=False))
    layer = conv_to_mhsa(conv)
    for name in NAMES:
        assert torch.equal(getattr(layer, name), getattr(plain, name))
        assert not getattr(layer, name).is_neg()
    again = Convolution.read(conv)
    assert (again.weight == fields.weight).all()
    assert again.bias is None or (again.bias == fields.bias).all()
    assert digests(conv, ("weight", "bias")) == hashed
    certificate = certify(conv, layer, grid=grid)
    assert certificate.verdict.name == "PROVED"
    assert certificate.conv_sha256 == hashed
    x = negative(torch.randn(1, conv.in_channels, *grid, dtype=torch.float64).to(conv.weight.dtype))
    assert check_call(conv, layer, x, "x").verdict.name == "CHECKED"


def test_a_weight_that_gets_it_after_a_call_is_seen():
    """Its memory holds what it held when the call was prepared."""
    layer, x = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1, bias=False)), torch.randn(1, 2, 5, 4)
    with torch.no_grad():
        before = [layer(x) for _ in range(2)][-1]
        for sign in (-1, 1):  # and of one that had it, no call is prepared
            layer.w_out.data = torch.ops.aten._neg_view(layer.w_out.data)
            for _ in range(3):
                assert torch.allclose(layer(x), sign * before, atol=1e-5)
