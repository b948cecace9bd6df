"""Edge cases of the layer found by experiment: absurd sizes, empty batches, tracing, short forms, and non-tensors."""

import contextlib
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import construct
import verify
from construct import conv_to_mhsa
from construct.attention import EXECUTIONS
from construct.errors import NotEnoughMemory
from verify.samples.sampling import check_call


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv1d(1, 1, 1, padding=10**12),
        nn.ConvTranspose2d(1, 1, 1, stride=10**7),
        nn.Conv3d(1, 1, 1, padding=2000),
        nn.Conv2d(1, 1, 1, padding=10**5, padding_mode="replicate"),
    ],
    ids=["1d", "transposed", "3d", "replicate"],
)
@pytest.mark.parametrize("execution", ["auto", "dense", "axial"])
def test_a_grid_that_cannot_fit_is_refused_before_it_is_laid_out(conv: Any, execution: str) -> None:
    layer = conv_to_mhsa(conv, execution=execution)
    with pytest.raises(NotEnoughMemory, match=r"MHSA: .* GiB"):
        layer(torch.zeros(1, 1, *[4] * layer.geometry.dims))


def test_a_call_under_fake_tensors_leaves_later_calls_alone() -> None:
    conv = nn.Conv2d(3, 4, 3, padding=2, padding_mode="circular")
    layer, x = conv_to_mhsa(conv), torch.randn(1, 3, 7, 6)
    with contextlib.suppress(Exception), FakeTensorMode():
        layer(x)
    with contextlib.suppress(Exception), torch.device("meta"):
        layer(x)
    assert check_call(conv, layer, x, "a call after").verdict.name == "CHECKED"


@pytest.mark.parametrize("given", [None, "x", np.zeros((1, 3, 5, 5))], ids=["None", "text", "array"])
def test_what_is_no_tensor(given: Any) -> None:
    with pytest.raises(TypeError, match="MHSA"):
        conv_to_mhsa(nn.Conv2d(3, 4, 3))(given)


EMPTY = {
    "one axis": (nn.ConvTranspose2d(1, 2, (1, 3), padding=(1, 0)), (3, 1, 2, 9), (3, 2, 0, 11)),
    "every axis": (nn.ConvTranspose2d(1, 2, 1, padding=1), (3, 1, 2, 2), (3, 2, 0, 0)),
    "stride": (nn.ConvTranspose2d(4, 2, (1, 3), padding=(2, 0), stride=(3, 1), groups=2), (3, 4, 2, 9), (3, 2, 0, 11)),
    "1-D": (nn.ConvTranspose1d(1, 2, 1, padding=1, bias=False), (3, 1, 2), (3, 2, 0)),
    "3-D": (nn.ConvTranspose3d(1, 2, 1, padding=(1, 0, 0)), (3, 1, 2, 3, 3), (3, 2, 0, 3, 3)),
    "no images": (nn.ConvTranspose2d(1, 2, (1, 3), padding=(1, 0)), (0, 1, 2, 9), (0, 2, 0, 11)),
}
"""Transposed layers, inputs, and their empty outputs.  Torch returns these or raises, by backend: type, batch and threads."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_output_of_a_transposed_layer(name: str, execution: str, dtype: torch.dtype) -> None:
    conv, shape, expected = EMPTY[name]
    layer = conv_to_mhsa(conv, execution=execution).to(dtype)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    with contextlib.suppress(RuntimeError):
        assert conv(x.detach().float()).shape == expected
    functional = partial(torch.func.functional_call, layer, dict(layer.named_parameters()))
    for call in (layer, functional, torch.compile(layer, backend="eager")):
        y = call(x)
        assert (y.shape, y.dtype) == (expected, dtype)
    if shape[0]:
        assert layer(x[0]).shape == expected[1:]
    layer(x).sum().backward()
    for tensor in (x, layer.w_val, layer.w_out):
        assert tensor.grad is not None
        assert not tensor.grad.any()


def test_other_empty_outputs_are_refused() -> None:
    """There is none of a convolution, nor a negative one; and attention has no map, and a certificate no grid, without queries."""
    conv = nn.ConvTranspose2d(1, 2, (1, 3), padding=(1, 0))
    layer, x = conv_to_mhsa(conv), torch.zeros(3, 1, 2, 9)
    with pytest.raises(RuntimeError, match=r"MHSA: an input of size .* has an empty output"):
        layer.attention_probabilities(x)
    with pytest.raises(ValueError, match="too small: the output would be"):
        verify.certify(conv, layer, grid=(2, 9))
    assert verify.compare(conv, layer, x[:0]).compared == 0
    for refused in (nn.ConvTranspose2d(1, 2, (1, 3), padding=(2, 0)), nn.Conv2d(1, 2, 3)):
        with pytest.raises(RuntimeError, match=r"MHSA: an input of size .* is too small"):
            conv_to_mhsa(refused)(x)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv2d(2, 4, 3, stride=2), nn.ConvTranspose2d(4, 2, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(x).relu(), output_size=x.shape[2:]) + x


@pytest.mark.parametrize("network", [nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()), Decoder()], ids=["blocks", "skip"])
def test_a_converted_network_is_traced_by_fx_with_a_node_for_each_layer(network: nn.Module) -> None:
    converted, x = construct.convert(network), torch.randn(2, 2, 8, 8)
    graph = fx.symbolic_trace(converted)
    assert torch.equal(graph(x), converted(x))
    nodes = [converted.get_submodule(node.target) for node in graph.graph.nodes if node.op == "call_module"]
    layers = [module for module in converted.modules() if isinstance(module, construct.MHSA)]
    assert [module for module in nodes if isinstance(module, construct.MHSA)] == layers


def test_a_layer_alone_is_not_traced_by_fx_and_the_way_out_works() -> None:
    layer, x = conv_to_mhsa(nn.Conv2d(2, 3, 3)), torch.randn(1, 2, 5, 5)
    with pytest.raises(TypeError, match=r"\AMHSA: .*nn.Sequential\(layer\)\Z"):
        fx.symbolic_trace(layer)
    assert torch.equal(fx.symbolic_trace(nn.Sequential(layer))(x), layer(x))


class ReadsItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) * self.conv.weight.sum()


def test_fx_says_that_it_cannot_read_a_weight() -> None:
    with pytest.raises(TypeError, match=r"\AMHSA: torch.fx cannot trace a network that reads layer.weight"):
        fx.symbolic_trace(construct.convert(ReadsItsWeight()))
