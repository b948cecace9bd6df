"""Kernels for one-hot heads are exact on integers: the maps against plain sums, and layers against the convolution."""

import copy
import itertools
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from construct import conv_to_mhsa
from construct.attention import smaller_blocks
from construct.execution import kernels
from construct.execution.head_matrices import is_identity
from construct.execution.kernels import constants, workspace
from construct.execution.kernels.batched_gemm import BatchedForward, BatchedWeightGradient
from construct.execution.kernels.problem import Problem, Task, layout_of
from construct.execution.kernels.windows import FIRST, LAST, OTHER, Shifts, clip, runs_of
from construct.execution.kernels.workspace import Workspace
from runs import KERNELS, channels_last, kernel_gradient, preferring

EXAMPLES = settings().max_examples


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


@settings(max_examples=3 * EXAMPLES)
@given(st.data())
def test_the_three_maps_are_what_their_formulas_say(data: st.DataObject):
    """On integers, against plain sums over queries, for every kernel, block size, image type and layout."""
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
    tokens, outputs = x.unflatten(1, (groups, channels)), y.unflatten(1, (groups, width))
    for o in np.ndindex(shifts.output):
        for head, offset in enumerate(shifts.offsets):
            t = tuple(s * n + e for s, n, e in zip(shifts.step, o, offset, strict=True))
            if all(0 <= p < n for p, n in zip(t, shifts.size, strict=True)):
                query, key = (slice(None), slice(None), *o), (slice(None), slice(None), *t)
                token, pulled = tokens[(..., *t)], outputs[(..., *o)]
                forward[query] += torch.einsum("bgc,gcd->bgd", token, w[head]).flatten(1)
                backward[key] += torch.einsum("bgd,gcd->bgc", pulled, w[head]).flatten(1)
                weights[head] += torch.einsum("bgc,bgd->gcd", token, pulled)
    layout, last = st.sampled_from([FIRST, LAST, OTHER]), data.draw(st.booleans())
    given = st.sampled_from([dtype, dtype, torch.float16])
    x, y = (in_layout(tensor.to(data.draw(given)), data.draw(layout)) for tensor in (x, y))
    stored = data.draw(st.sampled_from([dtype, torch.float64, torch.float16]))
    blocks, kernel = data.draw(st.sampled_from([1, 5, 30, 10**9])), data.draw(st.sampled_from(KERNELS))
    if data.draw(st.booleans()):  # transposed matrices in memory
        w = w.mT.contiguous().mT
    with preferring(kernel), smaller_blocks(blocks):
        output = kernels.prepare(kernels.FORWARD, x, w, shifts, stored, last)(x, bias)
        adjoint = kernels.prepare(kernels.ADJOINT, y, w, shifts, stored, last)(y, back)
        gradient = kernels.weights(x, y, shifts, groups, dtype)
    assert torch.equal(output, forward.to(stored))
    assert torch.equal(adjoint, backward.to(stored))
    assert torch.equal(gradient, weights)
    assert {layout_of(output, stored), layout_of(adjoint, stored)} <= {FIRST, LAST}


GRIDS = {
    "3 x 3": (((-1, 0, 1), (-1, 0, 1)), (11, 5), (), 3),
    "rows at odd places, columns before": (((-4, 0, 1), (2, -1)), (13, 4), (), 4),
    "the last axis alone": (((0,), (-5, 2, 3, 0)), (1, 30), (), 4),
    "a head twice": (((-1, 0, 1), (-1, 1)), (11, 5), ((0, 1),), 3),
    "1-D": (((-1, 0, 1),), (17,), (), 3),
    "3-D": (((0, 1), (-1, 0, 1), (0, 2)), (3, 4, 5), (), 4),
}
"""Offsets along each axis, the output, offsets of further heads, and how many products share all heads."""


@pytest.mark.parametrize("layout", [FIRST, LAST])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("name", GRIDS)
def test_heads_at_consecutive_places_share_a_product(name: str, step: int, layout: str):
    """Along the last axis but one, if there are few channels; with padding, or inside a larger input."""
    axes, output, more, products = GRIDS[name]
    offsets, d = (*itertools.product(*axes), *more), len(output)
    rng = np.random.default_rng(1)
    for margin in (0, 6):
        offsets = tuple(tuple(e + margin for e in offset) for offset in offsets)
        size = tuple(step * n + 2 * margin for n in output)
        shifts, heads = Shifts(offsets, (step,) * d, size, output), tuple(range(len(offsets)))
        x, w, y = (
            torch.from_numpy(rng.integers(-4, 5, n)).double()
            for n in ((2, 3, *size), (len(offsets), 1, 3, 4), (2, 4, *output))
        )
        padded, expected, gradient = nn.functional.pad(x, (30,) * (2 * d)), torch.zeros_like(y), torch.zeros_like(w)
        for head, offset in enumerate(offsets):
            seen = padded[(..., *(slice(30 + e, 30 + e + step * n, step) for e, n in zip(offset, output, strict=True)))]
            expected += torch.einsum("bc...,cd->bd...", seen, w[head, 0])
            gradient[head, 0] = torch.einsum("bc...,bd...->cd", seen, y)
        problem = Problem(kernels.FORWARD, shifts, heads, 2, 1, 3, 4, x.dtype, layout, layout, False, None)
        with preferring("batched_gemm"):
            for channels, parts in ((4, products), (3, len(offsets))):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(constants, "MIN_SINGLE_CHANNELS", channels)
                    forward = BatchedForward(problem)
                    assert len(forward.parts) == parts
                    assert torch.equal(forward.run(in_layout(x, layout), w, None, None), expected)
                    weights = BatchedWeightGradient(
                        replace(problem, kind=kernels.WEIGHTS, x_layout=LAST, y_layout=LAST)
                    )
                    assert torch.equal(weights.run(in_layout(x, LAST), in_layout(y, LAST), None, None), gradient)


def test_batched_products_of_some_heads_over_several_blocks_and_images():
    """With padding before the first row alone, an input in half precision, and outputs of another type."""
    rng = np.random.default_rng(2)
    x, w = (torch.from_numpy(rng.integers(-4, 5, n)).double() for n in ((2, 3, 8, 4), (4, 1, 3, 4)))
    expected = torch.einsum("bcij,cd->bdij", nn.functional.pad(x, (0, 0, 1, 0))[:, :, :8], w[3, 0])
    expected += torch.einsum("bcij,cd->bdij", x, w[1, 0])
    shifts = Shifts(((-1, 0), (0, 0)), (1, 1), (8, 4), (8, 4))
    problem = Problem(kernels.FORWARD, shifts, (3, 1), 2, 1, 3, 4, x.dtype, OTHER, OTHER, False, None)
    with preferring("batched_gemm"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "AT_ONCE", 4)
        patch.setattr(constants, "MIN_SINGLE_CHANNELS", 4)
        task = BatchedForward(problem)
        assert len(task.parts) == 1
        assert len(task.plans) == 8
        for dtype in (torch.float64, torch.float32):
            assert torch.equal(task.run(x.half(), w, None, torch.empty(2, 4, 8, 4, dtype=dtype)), expected.to(dtype))
        apart = replace(problem, shifts=replace(shifts, offsets=((0, 0), (1, 1))))
        assert len(BatchedForward(apart).parts) == 2  # neighbours on a diagonal are none


def whole_numbers(conv: Any) -> Any:
    with torch.no_grad():
        for p in conv.parameters():
            p.copy_((8 * p).round())
    return conv


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


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("make", CONVS, ids=lambda make: str(make()))
def test_outputs_and_gradients_are_the_convolution_s(make: Any, kernel: str | None, monkeypatch: pytest.MonkeyPatch):
    """For every kernel, with no image and with three in small blocks, for any layout and order of the heads.

    No uninitialised memory is read, whether new or a buffer: all of it holds NaN here.
    """
    for name in ("new_empty", "new_empty_strided"):
        new = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda *a, new=new, **o: new(*a, **o).fill_(torch.nan))
    monkeypatch.setattr(constants, "KEPT_BYTES", 0)
    conv = whole_numbers(make())
    layer = conv_to_mhsa(conv, order=torch.randperm(conv.weight[0, 0].numel()).tolist())
    for images, queries in ((0, 10**9), (1, 10**9), (3, 13)):
        x = torch.randint(-4, 5, (images, conv.in_channels, *(9, 8, 5)[: conv.weight.dim() - 2])).float()
        for layout in (FIRST, LAST, OTHER):
            given = in_layout(x, layout).requires_grad_()
            expected = conv(given)
            pull = in_layout(torch.arange(expected.numel()).view_as(expected).remainder(7).float() - 3, layout)
            with preferring(kernel), smaller_blocks(queries):
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
            output.mul_(torch.ones(output.shape, requires_grad=True)).sum().backward()


def test_as_many_bytes_are_laid_out_in_every_dtype_and_more_on_a_gpu():
    shifts = Shifts(((0, 0), (0, 1)), (1, 1), (9, 9), (9, 8))
    single, double, half = (
        Problem(kernels.FORWARD, shifts, (0, 1), 1, 1, 16, 32, dtype, LAST, LAST, False, None)
        for dtype in (torch.float32, torch.float64, torch.float16)
    )
    most = constants.AT_ONCE
    assert (single.at_once, double.at_once, half.at_once) == (most, most // 2, 2 * most)
    assert replace(single, gpu=True).at_once == constants.AT_ONCE_ON_GPU > most


def test_one_place_chooses_and_the_estimate_reads_the_task_s_workspace():
    shifts = Shifts(((0, 0), (0, 1)), (1, 1), (9, 9), (9, 8))
    problem = Problem(kernels.FORWARD, shifts, (0, 1), 1, 1, 16, 32, torch.float32, LAST, LAST, True, None)
    task = kernels.select(problem)
    device = torch.device("cpu")
    size = kernels.workspace_of(kernels.FORWARD, shifts, (2, 1, 16, 32), 1, torch.float32, torch.float32, device, None)
    assert size >= task.workspace > 0
    assert list(kernels.KERNELS) == ["pointwise", "depthwise", "gemm_scatter", "batched_gemm", "im2col_gemm"]


def test_a_new_kernel_is_one_line_in_the_table(monkeypatch: pytest.MonkeyPatch):
    """Forward, adjoint and weight gradient all use it."""
    asked = []

    def noting(problem: Problem) -> Task | None:
        asked.append(problem.kind)
        return None

    with preferring(None):
        monkeypatch.setattr(kernels, "KERNELS", {"noting": noting} | kernels.KERNELS)
        layer, x = conv_to_mhsa(nn.Conv2d(2, 3, 3, stride=2)), torch.ones(1, 2, 7, 11, requires_grad=True)
        layer(x).sum().backward()
    assert set(asked) == {kernels.FORWARD, kernels.ADJOINT, kernels.WEIGHTS}


@given(st.integers(-9, 9), st.integers(1, 4), st.integers(0, 7), st.integers(0, 9))
def test_clip_keeps_what_lies_inside(start: int, step: int, count: int, size: int):
    inside = [n for n in range(count) if 0 <= start + step * n < size]
    low, high = clip(start, step, count, size)
    assert list(range(low, high)) == inside


@given(st.data(), st.booleans())
def test_runs_are_all_heads_in_order(data: st.DataObject, whole: bool):
    offsets = data.draw(aims(data.draw(st.integers(1, 3))))
    covered = []
    for run in runs_of(offsets, whole):
        places = [
            tuple(o + n * s for o, n, s in zip(run.offset, at, run.steps, strict=True)) for at in np.ndindex(run.counts)
        ]
        assert run.head == len(covered)
        covered += places
    assert covered == sorted(offsets)


def test_a_buffer_in_use_is_lent_to_nobody_else():
    like = torch.zeros(1)
    with Workspace(like, 5, 7) as first:
        for part in first:
            part.fill_(1)
        with Workspace(like, 3) as (second,):
            second.fill_(2)
        assert all(part.eq(1).all() for part in first)
        with pytest.raises(KeyError), Workspace(like, 3):
            raise KeyError
    with Workspace(like, 2, 4) as third:
        assert third[0].data_ptr() == first[0].data_ptr()
        addresses: list[int] = []

        def elsewhere() -> None:
            with Workspace(like, 2, 4) as other:
                addresses.append(other[0].data_ptr())

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert addresses != [third[0].data_ptr()]


def test_a_buffer_of_one_mode_is_good_in_every_other():
    workspace._KEPT.buffer = None
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode(), Workspace(torch.zeros(1, dtype=torch.float64), 9) as (buffer,):
            assert buffer.dtype == torch.float64
            torch.add(torch.ones(len(buffer), dtype=torch.float64), 1, out=buffer)


def test_what_is_too_large_is_not_kept():
    workspace._KEPT.buffer = None
    with Workspace(torch.zeros(1), constants.KEPT_BYTES // 4 + 16) as (buffer,):
        assert len(buffer) == constants.KEPT_BYTES // 4 + 16
    assert workspace._KEPT.buffer is None
    with Workspace(torch.zeros(1), constants.KEPT_BYTES // 4):
        pass
    assert len(workspace._KEPT.buffer) == constants.KEPT_BYTES  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("make", CONVS, ids=lambda make: str(make()))
def test_what_is_no_number_spreads_to_those_that_see_it(make: Any, value: float):
    """And no farther, in all layers including transposed ones, with every kernel."""
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
        for kernel in KERNELS:
            fresh = copy.deepcopy(layer)  # without calls cached by another kernel
            with preferring(kernel):
                for given in (x, in_layout(x, LAST)):
                    assert torch.equal(~fresh(given).isfinite(), reached)
