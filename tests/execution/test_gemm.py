"""Large products use oneDNN or BLAS, whichever is faster, with the same numbers."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from construct import conv_to_mhsa
from construct.execution.shifts import gemm
from runs import Operators, channels_last

INNER = "mkldnn::_linear_pointwise"
LARGE = {
    "1x1": (nn.Conv2d(64, 64, 1), (3, 64, 28, 28)),
    "1x1 with a stride": (nn.Conv2d(128, 128, 1, stride=2), (1, 128, 48, 48)),
    "3x3": (nn.Conv2d(64, 64, 3, padding=1), (1, 64, 16, 16)),
    "3x3, more channels than pixels": (nn.Conv2d(128, 64, 3, padding=1), (1, 128, 6, 6)),
    "3x3, several products": (nn.Conv2d(64, 64, 3, padding=1), (1, 64, 47, 45)),
    "3x3, a few images at a time": (nn.Conv2d(32, 32, 3, padding=1), (9, 32, 27, 27)),
    "3x3, dilated": (nn.Conv2d(64, 64, 3, padding=2, dilation=2), (1, 64, 20, 22)),
    "5x3 in steps": (nn.Conv2d(32, 64, (5, 3), stride=(2, 1), padding=2, dilation=(1, 2)), (2, 32, 21, 22)),
    "transposed": (nn.ConvTranspose2d(128, 64, 3, padding=1), (1, 128, 14, 14)),
    "3-D": (nn.Conv3d(32, 48, 3, padding=1), (1, 32, 6, 7, 8)),
}


def whole_numbers(name: str) -> tuple[Any, torch.Tensor]:
    """A layer and an input of integers whose sums of products are exact in float32, and the input in nothing narrower."""
    conv, shape = LARGE[name]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in conv.parameters():
            p.copy_(torch.randint(-3, 4, p.shape, generator=generator))
    return conv, torch.randint(-4095, 4096, shape, generator=generator).float()


@pytest.mark.skipif(gemm.INNER is None, reason="torch was built without oneDNN")
@settings(max_examples=5 * settings().max_examples)
@given(st.data())
def test_products_are_what_they_say(data: st.DataObject) -> None:
    """On integers, against numpy, for any large dimension and any memory layout."""
    tokens, channels, width = (data.draw(st.integers(0, 40)) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    rows, matrix, bias = (
        torch.from_numpy(rng.integers(-9, 10, shape)).float()
        for shape in ((tokens, channels), (channels, width), (width,))
    )
    apart = torch.stack([bias, -bias], dim=-1)[..., 0]  # every other number in memory
    added = data.draw(st.sampled_from([None, bias, apart]))
    layouts = (lambda t: t, lambda t: t.mT.contiguous().mT, lambda t: torch.stack([t, -t], dim=-1)[..., 0])
    rows, matrix = (data.draw(st.sampled_from(layouts))(t) for t in (rows, matrix))
    expected = rows.long() @ matrix.long() + (0 if added is None else added.long())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm, "ONEDNN_IS_FASTER", data.draw(st.booleans()))
        patch.setattr(gemm, "MIN_ONEDNN", 1)
        assert torch.equal(gemm.product(rows, matrix, added).long(), expected)


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


@pytest.mark.parametrize("lying", ["channels first", "channels last", "channels last, in a larger image"])
@pytest.mark.parametrize("name", LARGE)
def test_large_layers_are_the_convolution_and_go_by_what_multiplies(name: str, lying: str, multiplies: str) -> None:
    """Bit for bit and in layout, in cached calls, in calls with autograd, and with oneDNN off."""
    conv, x = whole_numbers(name)
    last = lying != "channels first"
    if last:
        x = channels_last(x)
    if "larger" in lying:
        x = nn.functional.pad(x, (0, 1) * (x.dim() - 2), value=torch.nan)[(..., *(slice(n) for n in x.shape[2:]))]
    layer = conv_to_mhsa(conv)
    expected = conv(x)
    strides = layer(x).stride()
    assert last or strides == expected.stride()  # networks take views of it
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        for _ in range(2):
            with mode(), Operators() as operators:
                output = layer(x)
            assert torch.equal(output, expected)
            assert output.stride() == strides
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


def test_what_is_traced_writes_into_no_buffer_that_calls_share() -> None:
    """A graph of operators would keep it as a constant, to which all calls of the graph then write."""
    conv, x = whole_numbers("3x3")
    layer = conv_to_mhsa(conv).requires_grad_(False)
    last = channels_last(x)
    layer(last)
    graph = make_fx(layer)(last)
    assert torch.uint8 not in {kept.dtype for kept in graph.buffers()}
    assert torch.equal(graph(-last), layer(-last))
