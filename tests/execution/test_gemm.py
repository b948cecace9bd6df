"""Large products use oneDNN or BLAS, whichever is faster, with the same numbers."""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from construct import conv_to_mhsa
from construct.execution import kernels
from construct.execution.kernels import constants, gemm
from construct.execution.kernels.batched_gemm import BatchedForward, BatchedWeightGradient
from construct.execution.kernels.blocks import smaller_blocks
from construct.execution.kernels.gemm_scatter import Scattered
from construct.execution.kernels.im2col_gemm import Im2colForward, Im2colWeightGradient
from construct.execution.kernels.problem import Problem, new_images
from construct.execution.kernels.windows import FIRST, LAST, Shifts
from runs import Operators, channels_last, kernel_gradient, peak_bytes

INNER = "mkldnn::_linear_pointwise"
LARGE = {
    "1x1": (nn.Conv2d(64, 64, 1), (3, 64, 28, 28)),
    "1x1 with a stride": (nn.Conv2d(128, 128, 1, stride=2), (1, 128, 48, 48)),
    "3x3": (nn.Conv2d(64, 64, 3, padding=1), (1, 64, 16, 16)),
    "3x3, several products": (nn.Conv2d(64, 64, 3, padding=1), (1, 64, 47, 45)),
    "3x3, a few images at a time": (nn.Conv2d(32, 32, 3, padding=1), (9, 32, 27, 27)),
    "3x3, dilated": (nn.Conv2d(64, 64, 3, padding=2, dilation=2), (1, 64, 20, 22)),
    "5x3 in steps": (nn.Conv2d(32, 64, (5, 3), stride=(2, 1), padding=2, dilation=(1, 2)), (2, 32, 21, 22)),
    "transposed": (nn.ConvTranspose2d(128, 64, 3, padding=1), (1, 128, 14, 14)),
    "3-D": (nn.Conv3d(32, 48, 3, padding=1), (1, 32, 6, 7, 8)),
}


def whole_numbers(name: str, seed: int = 0) -> tuple[Any, torch.Tensor]:
    """A layer and an input of small integers, so that sums of products are exact in float32."""
    conv, shape = LARGE[name]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in conv.parameters():
            p.copy_(torch.randint(-8, 9, p.shape, generator=generator))
    return conv, torch.randint(-8, 9, shape, generator=generator).float()


@pytest.mark.skipif(gemm.INNER is None, reason="torch was built without oneDNN")
@given(st.data())
def test_products_are_what_they_say(data: st.DataObject) -> None:
    """On integers, against numpy, for any large dimension and any memory layout."""
    tokens, channels, width = (data.draw(st.integers(1, 40)) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    rows, matrix, bias, other = (
        torch.from_numpy(rng.integers(-9, 10, shape)).float()
        for shape in ((tokens, channels), (channels, width), (width,), (tokens, width))
    )
    apart = torch.stack([bias, -bias], dim=-1)[..., 0]  # every other number in memory
    added = data.draw(st.sampled_from([None, bias, apart, bias[:1].expand(width)]))
    turned = [(lambda t: t.mT.contiguous().mT) if data.draw(st.booleans()) else (lambda t: t) for _ in range(3)]
    rows, matrix, other = (turn(t) for turn, t in zip(turned, (rows, matrix, other), strict=True))
    expected = rows.long() @ matrix.long() + (0 if added is None else added.long())
    out, total = torch.full((tokens, width), torch.nan), torch.full((1, channels, width), torch.nan)
    with pytest.MonkeyPatch.context() as patch:
        for name, numbers in {"ONEDNN": [1, 10**9], "FEW_COLUMNS": [1, 64], "MIN_TERMS": [1, 96]}.items():
            patch.setattr(constants, name, data.draw(st.sampled_from(numbers)))
        assert torch.equal(gemm.product(rows, matrix, added, None, True).long(), expected)
        gemm.product(rows, matrix, added, out, True)
        for accumulate in (False, True):
            gemm.add_product(total, rows.mT[None], other[None], accumulate, True)
    assert torch.equal(out.long(), expected)
    assert torch.equal(total[0].long(), 2 * (rows.long().mT @ other.long()))


@pytest.fixture(
    params=[
        pytest.param("oneDNN", marks=pytest.mark.skipif(gemm.INNER is None, reason="torch was built without oneDNN")),
        "BLAS",
    ]
)
def multiplies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As on a processor where oneDNN is faster, or where BLAS is."""
    monkeypatch.setattr(gemm, "ONEDNN_IS_FASTER", request.param == "oneDNN")
    return request.param


@pytest.mark.parametrize(
    ("processor", "capability", "onednn"),
    [
        ({"cpu_name": "AMD EPYC"}, "AVX512", True),
        ({"cpu_name": "AMD EPYC"}, "AVX2", False),
        ({"cpu_name": "Intel Xeon"}, "AVX512", False),
        ({}, "AVX512", True),
        (None, "AVX512", True),  # a torch that cannot tell
    ],
)
def test_onednn_multiplies_where_it_is_faster(
    processor: dict[str, str] | None, capability: str, onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: processor, raising=False)
    if processor is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert gemm._is_onednn_faster() == onednn


def shifts_of(k: tuple[int, ...], output: tuple[int, ...], step: int = 1) -> Shifts:
    """The shifts of a kernel, "same" padding."""
    offsets = tuple(itertools.product(*(range(-(n // 2), n - n // 2) for n in k)))
    return Shifts(offsets, (step,) * len(k), tuple(step * n for n in output), output)


def square(k: int, output: tuple[int, int], step: int = 1) -> Shifts:
    """The shifts of a kernel of k × k taps, "same" padding."""
    return shifts_of((k, k), output, step)


def chosen(shifts: Shifts, channels: int = 64, width: int = 64, **changes: Any) -> Any:
    """The task of a layer for one image with channels last, multiplied by BLAS, unless changed."""
    heads = tuple(range(len(shifts.offsets)))
    problem = Problem(kernels.FORWARD, shifts, heads, 1, 1, channels, width, torch.float32, LAST, LAST, False, None)
    return kernels.select(replace(problem, **changes))


def test_blas_reads_tokens_in_place_where_columns_would_not_fit_into_the_cache() -> None:
    large, small = square(3, (47, 45)), square(3, (15, 15))
    for shifts in (large, square(3, (23, 22), step=2), square(5, (16, 16))):
        assert isinstance(chosen(shifts), BatchedForward)
        assert isinstance(chosen(shifts, onednn=True), Im2colForward)
    assert isinstance(chosen(square(3, (300, 300)), gpu=True), Im2colForward)
    assert isinstance(chosen(small), Im2colForward)
    assert isinstance(chosen(small, 256, 256), BatchedForward)
    assert isinstance(chosen(small, 256, 256, images=3), Im2colForward)  # one product for all of them
    assert isinstance(chosen(square(3, (17, 29)), images=3), BatchedForward)
    assert isinstance(chosen(square(3, (40, 40)), 512, 513), Im2colForward)  # a head's matrix exceeds the cache
    assert isinstance(chosen(square(7, (112, 112), step=2), 3), Im2colForward)  # few terms in a sum
    assert isinstance(chosen(square(1, (112, 112), step=2)), Im2colForward)  # most tokens are not seen
    assert isinstance(chosen(large, 64, 64, groups=2), Im2colForward)
    assert isinstance(chosen(square(3, (500, 4))), Im2colForward)  # short rows
    assert isinstance(chosen(shifts_of((3, 3, 3), (40, 11, 11))), Im2colForward)  # many products with few queries each
    assert isinstance(chosen(shifts_of((3, 3, 3), (16, 12, 12))), BatchedForward)
    along = shifts_of((3, 1, 1), (8, 28, 28))
    assert isinstance(chosen(along), BatchedForward)
    few = chosen(along, x_layout=FIRST, y_layout=FIRST)
    assert isinstance(few, Im2colForward)  # few heads for two transposed copies
    assert isinstance(chosen(large, x_layout=FIRST, y_layout=FIRST), BatchedForward)
    flat = chosen(shifts_of((3,), (4096,)), x_layout=FIRST, y_layout=FIRST)
    assert isinstance(flat, BatchedForward)
    assert flat.direct  # nothing is transposed in 1-D
    assert len(chosen(large, 32, 32).parts) == 3
    assert len(chosen(large, 128, 128).parts) == 9


def test_few_queries_are_not_summed_head_by_head() -> None:
    """Each sum takes as long as some hundred queries, for every image."""
    assert isinstance(chosen(square(3, (4, 4)), 8, 8), Im2colForward)
    assert isinstance(chosen(square(3, (14, 14)), 64, 3, images=4), Im2colForward)
    assert isinstance(chosen(square(3, (28, 28)), 64, 3), Scattered)
    assert isinstance(chosen(square(3, (28, 28)), 64, 3, images=4), Scattered)


def test_gradients_of_weights_are_summed_by_rows_where_rows_are_long() -> None:
    large = square(3, (47, 45))
    assert isinstance(chosen(large, kind=kernels.WEIGHTS), BatchedWeightGradient)
    assert isinstance(chosen(large, kind=kernels.WEIGHTS, onednn=True), Im2colWeightGradient)
    assert isinstance(chosen(large, kind=kernels.WEIGHTS, x_layout=FIRST, y_layout=FIRST), Im2colWeightGradient)
    assert isinstance(chosen(large, kind=kernels.WEIGHTS, x_layout=FIRST), Im2colWeightGradient)
    assert isinstance(chosen(large, kind=kernels.WEIGHTS, y_layout=FIRST), Im2colWeightGradient)
    assert isinstance(chosen(square(3, (70, 31)), kind=kernels.WEIGHTS), Im2colWeightGradient)
    assert isinstance(chosen(large, 128, 128, kind=kernels.WEIGHTS), Im2colWeightGradient)


@pytest.mark.parametrize(("k", "output"), [(3, (64, 1300)), (5, (64, 700)), (7, (512, 512)), (9, (300, 300))])
def test_columns_take_no_more_than_their_share(k: int, output: tuple[int, int]) -> None:
    """Of the columns, or of the tokens that are read in place."""
    task = chosen(square(k, output), onednn=True)
    assert isinstance(task, Im2colForward)
    assert task.columns <= constants.AT_ONCE
    assert chosen(square(k, output)).workspace < constants.KEPT_BYTES


@pytest.mark.parametrize("shifts", [square(3, (47, 45)), square(3, (23, 22), step=2)], ids=["1", "2"])
@pytest.mark.parametrize("channels", [64, 160])
def test_batched_products_allocate_what_they_say(
    channels: int, shifts: Shifts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "KEPT_BYTES", 0)
    problem, w = chosen(shifts, channels).problem, torch.ones(9, 1, channels, 64)
    images = {layout: new_images(w, 1, channels, shifts.size, layout, w.dtype).zero_() for layout in (FIRST, LAST)}
    y = new_images(w, 1, 64, shifts.output, LAST, w.dtype).zero_()
    for (layout, x), of_y in itertools.product(images.items(), (FIRST, LAST)):
        forward = BatchedForward(replace(problem, x_layout=layout, y_layout=of_y))
        assert 0 <= peak_bytes(partial(forward.run, x, w, None, None)) - y.nbytes <= forward.workspace + 2**9
    gradient = BatchedWeightGradient(replace(problem, kind=kernels.WEIGHTS))
    assert 0 < peak_bytes(partial(gradient.run, images[LAST], y, None, None)) - w.nbytes <= gradient.workspace + 2**9


@pytest.mark.parametrize("lying", ["channels first", "channels last", "channels last, in a larger image"])
@pytest.mark.parametrize("name", LARGE)
def test_large_layers_are_the_convolution_and_go_by_what_multiplies(name: str, lying: str, multiplies: str) -> None:
    """Bit for bit, in cached calls, in calls with autograd, and with oneDNN off."""
    conv, x = whole_numbers(name)
    last = lying != "channels first"
    if last:
        x = channels_last(x)
    if "larger" in lying:
        x = nn.functional.pad(x, (0, 1) * (x.dim() - 2), value=torch.nan)[(..., *(slice(n) for n in x.shape[2:]))]
    layer = conv_to_mhsa(conv)
    expected = conv(x)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        for _ in range(2):
            with mode(), Operators() as operators:
                output = layer(x)
            assert torch.equal(output, expected)
            assert not [operator for operator in operators.calls if "conv" in operator]
            if lying == "channels last":
                assert bool(operators.calls[INNER]) == (multiplies == "oneDNN")
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.no_grad(), Operators() as operators:
            assert torch.equal(layer(x), expected)
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert not operators.calls[INNER]


@pytest.mark.parametrize("name", LARGE)
def test_gradients_of_large_layers_are_the_convolution_s(name: str, multiplies: str) -> None:
    conv, x = whole_numbers(name)
    layer = conv_to_mhsa(conv)
    pull = torch.arange(conv(x).numel()).remainder(5).sub(2).view_as(conv(x)).float()
    layouts = (x, pull), (channels_last(x), channels_last(pull))
    for (image, pulled), blocks in itertools.product(layouts, (nullcontext, partial(smaller_blocks, 700))):
        image.requires_grad_()
        expected = torch.autograd.grad(conv(image), [image, conv.bias, conv.weight], pulled)
        with blocks():
            learned = [image, layer.b_out, layer.w_val, layer.w_out]
            *gradients, of_w_val, of_w_out = torch.autograd.grad(layer(image), learned, pulled)
        gradients.append(kernel_gradient(layer, of_w_val, of_w_out))
        for one, other in zip(gradients, expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", LARGE)
def test_what_large_products_round_off_is_bounded(name: str, multiplies: str) -> None:
    """By γ_n Σ |x||w| with n the number of terms, for any order of summation."""
    conv, shape = LARGE[name]
    torch.manual_seed(1)
    conv.reset_parameters()
    x = torch.randn(shape)
    terms = conv.weight.numel() // conv.out_channels + 1
    with torch.no_grad():
        output = conv_to_mhsa(conv)(x).double()
        both = type(conv)(**{key: getattr(conv, key) for key in GIVEN}).double()
        both.load_state_dict(conv.state_dict())
        right = both(x.double())
        for p in both.parameters():
            p.abs_()
        sizes = both(x.double().abs())
    assert ((output - right).abs() <= terms * 2.0**-24 / (1 - terms * 2.0**-24) * sizes).all()


GIVEN = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")


class Marked(torch.Tensor):
    """A tensor subclass without changes."""


@pytest.mark.parametrize("name", LARGE)
def test_outputs_are_of_the_type_of_the_input(name: str) -> None:
    conv, x = whole_numbers(name)
    layer = conv_to_mhsa(conv).requires_grad_(False)
    for lying in (x, channels_last(x)):
        for _ in range(2):
            output = layer(lying.as_subclass(Marked))
            assert type(output) is Marked
            assert torch.equal(output.as_subclass(torch.Tensor), conv(x))


def test_what_is_traced_writes_into_no_buffer_that_calls_share() -> None:
    """A graph of operators would keep it as a constant, to which all calls of the graph then write."""
    conv, x = whole_numbers("3x3")
    layer = conv_to_mhsa(conv).requires_grad_(False)
    last = channels_last(x)
    layer(last)
    graph = make_fx(layer)(last)
    assert torch.uint8 not in {kept.dtype for kept in graph.buffers()}
    assert torch.equal(graph(-last), layer(-last))
