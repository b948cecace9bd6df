"""The maps of one-hot heads are exact on integers, against plain sums, and layers against the convolution."""

import copy
import itertools
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
from runs import FORCED, channels_last, forced, kernel_gradient, whole_numbers

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


CONVS = [
    lambda: nn.Conv1d(16, 24, 5, padding=3, dilation=2),
    lambda: nn.Conv1d(16, 16, 4, bias=False),
    lambda: nn.Conv2d(3, 4, 3, padding=1),
    lambda: nn.Conv2d(2, 3, (2, 5), stride=(2, 3), padding=(1, 4)),
    lambda: nn.Conv2d(4, 6, (3, 5), padding=2, stride=3, groups=2),
    lambda: nn.Conv2d(20, 20, 3, padding=1, groups=20),
    lambda: nn.Conv2d(4, 4, (3, 5), padding=2, stride=2, groups=4),
    lambda: nn.Conv2d(5, 10, (4, 1), padding=(3, 0), groups=5),
    lambda: nn.Conv2d(18, 7, 1),
    lambda: nn.Conv2d(6, 6, 1, groups=3),
    lambda: nn.Conv2d(4, 6, 1, stride=2),
    lambda: nn.Conv2d(40, 3, 3, padding=1, padding_mode="reflect"),
    lambda: nn.ConvTranspose2d(24, 3, 5, stride=(3, 2), padding=1),
    lambda: nn.ConvTranspose2d(6, 8, 3, stride=2, groups=2, output_padding=1),
    lambda: nn.ConvTranspose1d(4, 4, 2, stride=3, groups=4),
    lambda: nn.Conv3d(8, 8, (2, 3, 3), stride=(1, 2, 2), padding=(0, 1, 2)),
    lambda: nn.ConvTranspose3d(3, 2, 2, stride=2),
]


@pytest.mark.parametrize("constants", FORCED)
@pytest.mark.parametrize("make", CONVS, ids=lambda make: str(make()))
def test_outputs_and_gradients_are_the_convolution_s(make: Any, constants: str, monkeypatch: pytest.MonkeyPatch):
    """With no image and with three in small blocks, for any layout and order of the heads.

    No uninitialised memory is read, whether new or a buffer: all of it holds NaN here.
    """
    new = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **o: new(*a, **o).fill_(torch.nan))
    monkeypatch.setattr("construct.execution.shifts.windows.KEPT_BYTES", 0)
    conv = whole_numbers(make())
    order = torch.randperm(conv.weight[0, 0].numel()).tolist()
    sizes = ((3, 13), (0, 10**9), (1, 10**9))
    for layer, tried in ((conv_to_mhsa(conv), sizes), (conv_to_mhsa(conv, order=order), sizes[:1])):
        for images, queries in tried:
            x = torch.randint(-4, 5, (images, conv.in_channels, *(9, 8, 5)[: conv.weight.dim() - 2])).float()
            for layout in (FIRST, LAST, OTHER):
                given = in_layout(x, layout).requires_grad_()
                expected = conv(given)
                pull = in_layout(torch.arange(expected.numel()).view_as(expected).remainder(7).float() - 3, layout)
                with forced(constants), smaller_blocks(queries):
                    output = layer(given)
                    ours = torch.autograd.grad(output, [given, layer.w_val, layer.w_out], pull)
                    with torch.no_grad():
                        assert torch.equal(layer(given), expected)
                theirs = torch.autograd.grad(expected, [given, conv.weight], pull)
                assert torch.equal(output, expected)
                assert torch.equal(ours[0], theirs[0])
                assert torch.equal(kernel_gradient(layer, *ours[1:]), theirs[1])


@pytest.mark.parametrize("layout", [FIRST, LAST])
@pytest.mark.parametrize(
    "make", [lambda: nn.Conv2d(64, 64, 1), lambda: nn.Conv2d(64, 64, 3, padding=1)], ids=["1x1", "3x3"]
)
def test_outputs_may_be_changed_in_place(make: Any, layout: str):
    """As a convolution's, by ``ReLU(inplace=True)`` say; torch forbids that for views that an autograd function returns."""
    layer = conv_to_mhsa(make())
    for shape in ((1, 64, 4, 4), (1, 64, 9, 9), (2, 64, 9, 9), (1, 64, 24, 24)):
        x = in_layout(torch.ones(shape), layout)
        layer(x).relu_().sum().backward()
        with torch.no_grad():
            outputs = [layer(x), layer(x)]
        for output in outputs:
            assert output.stride() == x.stride()
            output.mul_(torch.ones(output.shape, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_a_buffer_of_one_mode_is_good_in_every_other(first: Any):
    ones, role = torch.ones(9, dtype=torch.float64), f"first in {first.__name__}"
    for mode in (first, torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            assert torch.equal(torch.add(ones, 1, out=workspace(role, ones, 9)), 2 * ones)
    vars(_KEPT)[role].zero_()  # which torch forbids for an inference tensor


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("make", CONVS, ids=lambda make: str(make()))
def test_what_is_no_number_spreads_to_those_that_see_it(make: Any, value: float):
    """And no farther, in all layers including transposed ones."""
    conv = make()
    layer = conv_to_mhsa(conv).requires_grad_(False)
    x = torch.randn(1, conv.in_channels, *(9, 8, 5)[: conv.weight.dim() - 2])
    marked = torch.zeros_like(x, dtype=torch.float64)
    spot = (0, 0, *(3,) * (x.dim() - 2))
    x[spot], marked[spot] = value, 1.0
    with torch.no_grad():
        conv.weight.abs_().add_(0.1)
        for factor in (layer.w_val, layer.w_out):
            if not is_identity(factor):
                factor.abs_().add_(0.1)
        counted = copy.deepcopy(conv).double()
        counted.bias = None
        reached = counted(marked) > 0
        for constants in FORCED:
            for given in (x, in_layout(x, LAST)):
                with forced(constants):
                    assert torch.equal(~layer(given).isfinite(), reached)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("make", CONVS, ids=lambda make: str(make()))
def test_what_is_no_number_reaches_the_gradients_of_those_taps_that_multiply_it(make: Any, value: float):
    """And no others, except in a transposed layer those that torch's own gradient loses too: zeros around it are multiplied."""
    conv = make()
    layer = conv_to_mhsa(conv)
    name, other = ("w_val", "w_out") if is_identity(layer.w_out) else ("w_out", "w_val")
    getattr(layer, other).requires_grad_(False)
    x = torch.randn(1, conv.in_channels, *(9, 8, 5)[: conv.weight.dim() - 2])
    for place in (-1, 3):
        spot = (0, 0, *(place,) * (x.dim() - 2))
        given, marked, counted = x.clone(), torch.zeros_like(x, dtype=torch.float64), copy.deepcopy(conv).double()
        given[spot], marked[spot] = value, 1.0
        counted(marked).sum().backward()
        reached = counted.weight.grad != 0
        torch._C._set_mkldnn_enabled(False)  # whose kernels skip zeros
        try:
            (theirs,) = torch.autograd.grad(conv(given).sum(), conv.weight)
        finally:
            torch._C._set_mkldnn_enabled(True)
        for constants, image in itertools.product(FORCED, (given, in_layout(given, LAST))):
            with forced(constants):
                (gradient,) = torch.autograd.grad(layer(image).sum(), getattr(layer, name))
            holder = copy.deepcopy(layer).requires_grad_(False)
            getattr(holder, name).copy_(gradient.isfinite())
            lost = holder.weight == 0
            assert (lost | ~reached).all()
            assert (~lost | reached | (~theirs.isfinite() & layer.transposed)).all()
