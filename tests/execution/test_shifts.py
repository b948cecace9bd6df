"""The maps of one-hot heads are exact on integers, against plain sums, and layers against the convolution."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from construct import conv_to_mhsa, tokens
from construct.attention import smaller_blocks
from construct.execution.head_matrices import is_identity
from construct.execution.shifts import maps
from construct.execution.shifts.windows import _KEPT, Shifts, workspace
from runs import FORCED, channels_last, forced, kernel_gradient
from verify.strategies import Case, cases

FIRST, LAST, OTHER = "channels first", "channels last", "other"
"""Memory layouts."""


@st.composite
def aims(draw: st.DrawFn, dims: int) -> tuple[tuple[int, ...], ...]:
    """Targets of heads: anywhere, or a rectangle in any order."""

    def vector(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, most)) for _ in range(dims))

    if draw(st.booleans()):
        return tuple(vector(-4, 5) for _ in range(draw(st.integers(1, 4))))
    corner, sizes = vector(-3, 3), vector(1, 3)
    places = [tuple(c + n for c, n in zip(corner, place, strict=True)) for place in np.ndindex(sizes)]
    return tuple(draw(st.permutations(places)))


def in_layout(images: torch.Tensor, layout: str) -> torch.Tensor:
    """The same images in another memory layout."""
    if layout == LAST:
        return channels_last(images)
    return images.repeat_interleave(2, -1)[..., ::2] if layout == OTHER else images.contiguous()


@settings(max_examples=3 * settings().max_examples)
@given(st.data())
def test_the_three_maps_are_what_their_formulas_say(data: st.DataObject):
    """On integers, against plain sums over queries, for every block size and layout, also as on a GPU."""
    d = data.draw(st.integers(1, 4))
    groups, channels, width, images = (data.draw(st.integers(1, n)) for n in (3, 3, 3, 3))

    def vector(least: int, most: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(least, most)) for _ in range(d))

    offsets = data.draw(aims(d))
    shifts, heads = Shifts(offsets, vector(1, 3), vector(1, 6), vector(1, 5 if d < 4 else 3)), len(offsets)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))

    def draw(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.integers(-4, 5, shape)).to(dtype)

    x, y = draw(images, groups * channels, *shifts.size), draw(images, groups * width, *shifts.output)
    w, bias, back = draw(heads, groups, channels, width), draw(groups * width), draw(groups * channels)
    ones = (1,) * d
    forward, backward = torch.zeros_like(y) + bias.view(-1, *ones), torch.zeros_like(x) + back.view(-1, *ones)
    weights = torch.zeros_like(w)
    seen, outputs = x.unflatten(1, (groups, channels)), y.unflatten(1, (groups, width))
    for o in np.ndindex(shifts.output):
        for head, offset in enumerate(shifts.offsets):
            t = tuple(s * n + e for s, n, e in zip(shifts.step, o, offset, strict=True))
            if all(0 <= p < n for p, n in zip(t, shifts.size, strict=True)):
                query, key = (slice(None), slice(None), *o), (slice(None), slice(None), *t)
                token, pulled = seen[(..., *t)], outputs[(..., *o)]
                forward[query] += torch.einsum("bgc,gcd->bgd", token, w[head]).flatten(1)
                backward[key] += torch.einsum("bgd,gcd->bgc", pulled, w[head]).flatten(1)
                weights[head] += torch.einsum("bgc,bgd->gcd", token, pulled)
    x, y = (in_layout(tensor, data.draw(st.sampled_from([FIRST, LAST, OTHER]))) for tensor in (x, y))
    blocks, constants = data.draw(st.sampled_from([1, 5, 30, 10**9])), data.draw(st.sampled_from(sorted(FORCED)))
    if data.draw(st.booleans()):  # transposed matrices in memory
        w = w.mT.contiguous().mT
    for elsewhere in (False, True):
        with forced(constants), smaller_blocks(blocks), pytest.MonkeyPatch.context() as patch:
            patch.setattr(tokens, "host_waits", lambda device, waits=elsewhere: waits)
            for last in (False, True):
                assert torch.equal(maps.forward(x, w, bias, shifts, last), forward)
                assert torch.equal(maps.adjoint(y, w, back, shifts, last), backward)
            assert torch.equal(maps.weights(x, y, shifts, groups), weights)


SINGLE = {"dtypes": [torch.float32], "tokens": 60}


@settings(max_examples=4 * settings().max_examples)
@given(
    cases(integers=[True], **SINGLE),
    st.sampled_from([FIRST, LAST, OTHER]),
    st.sampled_from(sorted(FORCED)),
    st.sampled_from([1, 7, 10**9]),
    st.booleans(),
)
def test_outputs_and_gradients_are_the_convolution_s(
    case: Case, layout: str, constants: str, queries: int, shuffled: bool
):
    """In blocks, for any layout and order of the heads.

    No uninitialised memory is read, whether new or a buffer: all of it holds NaN here.
    """
    conv, given = case.conv, case.x.requires_grad_()
    order = torch.randperm(conv.weight[0, 0].numel()).tolist() if shuffled else None
    layer, expected, new = conv_to_mhsa(conv, order=order), conv(given), torch.Tensor.new_empty
    pull = torch.arange(expected.numel()).view_as(expected).remainder(7).float() - 3
    pull = pull if expected.dim() <= layer.geometry.dims + 1 else in_layout(pull, layout)
    theirs = torch.autograd.grad(expected, [given, conv.weight], pull)
    with forced(constants), smaller_blocks(queries), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", lambda *a, **o: new(*a, **o).fill_(torch.nan))
        patch.setattr("construct.execution.shifts.windows.KEPT_BYTES", 0)
        output = layer(given)
        ours = torch.autograd.grad(output, [given, layer.w_val, layer.w_out], pull)
        with torch.no_grad():
            assert torch.equal(layer(given), expected)
    assert torch.equal(output, expected)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(kernel_gradient(layer, *ours[1:]), theirs[1])


@pytest.mark.parametrize("queries", [100, 10_000])
@pytest.mark.parametrize("layout", [FIRST, LAST])
@pytest.mark.parametrize(
    "make", [lambda: nn.Conv2d(64, 64, 1), lambda: nn.Conv2d(64, 64, 3, padding=1)], ids=["1x1", "3x3"]
)
def test_outputs_may_be_changed_in_place(make: Any, layout: str, queries: int):
    """As a convolution's, by ``ReLU(inplace=True)`` say; torch forbids that for views that an autograd function returns."""
    layer = conv_to_mhsa(make())
    for shape in ((1, 64, 4, 4), (1, 64, 9, 9), (2, 64, 9, 9), (1, 64, 24, 24)):
        x = in_layout(torch.ones(shape), layout)
        with smaller_blocks(queries):
            layer(x).relu_().sum().backward()
        with torch.no_grad(), smaller_blocks(queries):
            outputs = [layer(x), layer(x)]
        for output in outputs:
            assert output.stride() == x.stride()
            output.mul_(torch.ones(output.shape, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("make", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("layout", [FIRST, LAST])
def test_an_output_of_one_channel_has_the_strides_of_a_convolutions(make: Any, layout: str):
    """Torch's next layer chooses its memory format by them."""
    conv, x = make(3, 1, 2, stride=2), in_layout(torch.ones(2, 3, 6, 6), layout)
    with torch.no_grad():
        assert conv_to_mhsa(conv)(x).stride() == conv(x).stride()


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_a_buffer_of_one_mode_is_good_in_every_other(first: Any):
    ones, role = torch.ones(9, dtype=torch.float64), f"first in {first.__name__}"
    for mode in (first, torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            assert torch.equal(torch.add(ones, 1, out=workspace(role, ones, 9)), 2 * ones)
    vars(_KEPT)[role].zero_()  # which torch forbids for an inference tensor


def marked(case: Case, spot: float, value: float) -> tuple[torch.Tensor, torch.Tensor]:
    """An image with this value at a spot of its first channel, and one of zeros with a 1 there, which tells what sees it."""
    x, ones = (t.reshape(-1, *case.x.shape[-case.conv.weight.dim() + 1 :])[:1] for t in (case.x, 0 * case.x.double()))
    place = (0, 0, *(int(spot * n) for n in x.shape[2:]))
    x[place], ones[place] = value, 1.0
    return x, ones


spots = st.tuples(st.sampled_from([0.0, 0.5, 0.999]), st.sampled_from([torch.nan, torch.inf]))


@given(cases(batches=[1, 2], layouts=["contiguous", "channels_last"], **SINGLE), spots, st.sampled_from(sorted(FORCED)))
def test_what_is_no_number_spreads_to_those_that_see_it(case: Case, spot: tuple[float, float], constants: str):
    """And no farther, in all layers including transposed ones."""
    conv = case.conv.requires_grad_(False)
    conv.weight.abs_().add_(0.1)
    layer, (x, ones) = conv_to_mhsa(conv).requires_grad_(False), marked(case, *spot)
    counted = copy.deepcopy(conv).double()
    counted.bias = None
    with forced(constants):
        assert torch.equal(~layer(x).isfinite(), counted(ones) > 0)


@given(cases(batches=[1, 2], layouts=["contiguous", "channels_last"], **SINGLE), spots, st.sampled_from(sorted(FORCED)))
def test_what_is_no_number_reaches_the_gradients_of_those_taps_that_multiply_it(
    case: Case, spot: tuple[float, float], constants: str
):
    """And no others, except in a transposed layer those that torch's own gradient loses too: zeros around it are multiplied."""
    conv, (x, ones) = case.conv, marked(case, *spot)
    layer, counted = conv_to_mhsa(conv), copy.deepcopy(conv).double()
    name, other = ("w_val", "w_out") if is_identity(layer.w_out) else ("w_out", "w_val")
    getattr(layer, other).requires_grad_(False)
    counted(ones).sum().backward()
    reached = counted.weight.grad != 0
    torch._C._set_mkldnn_enabled(False)  # whose kernels skip zeros
    try:
        (theirs,) = torch.autograd.grad(conv(x).sum(), conv.weight)
    finally:
        torch._C._set_mkldnn_enabled(True)
    with forced(constants):
        (gradient,) = torch.autograd.grad(layer(x).sum(), getattr(layer, name))
    layer.requires_grad_(False)
    getattr(layer, name).copy_(gradient.isfinite())
    lost = layer.weight == 0
    assert (lost | ~reached).all()
    assert (~lost | reached | (~theirs.isfinite() & layer.transposed)).all()
