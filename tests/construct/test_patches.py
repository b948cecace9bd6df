"""Patches as tokens: one layer, called with images or with patches, equals the convolution of pixels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import construct
import verify
from construct import UnsupportedLayer
from construct.attention import EXECUTIONS
from construct.modules import patches as product
from rechecked import Files
from runs import convolution_calls
from verified import Asked, pair_of, proved
from verify.argument import certification
from verify.argument.runs import run_step
from verify.layers.patches import over_patches
from verify.layers.reading import GridRefused
from verify.oracle import Unreadable
from verify.strategies import Case, convolutions, least_size, numbers


@st.composite
def cut_cases(draw: st.DrawFn) -> tuple[Case, tuple[int, ...]]:
    """A convolution in integers, a patch that its stride divides, and an image of whole patches."""
    conv = draw(
        convolutions(
            transposed=[False],
            padding_modes=("zeros", "circular"),
            dtypes=(torch.float32, torch.float64),
            integers=[True],
        )
    )
    patch = tuple(s * draw(st.integers(1, 3)) for s in conv.stride)
    # a circular image takes whole patches of padding
    least = [
        max(n, 4 * p if conv.padding_mode == "circular" else 1) for n, p in zip(least_size(conv), patch, strict=True)
    ]
    size = tuple(p * (-(-n // p) + draw(st.integers(0, 1))) for n, p in zip(least, patch, strict=True))
    x = numbers(
        (2, conv.in_channels, *size), conv.weight.dtype, True, torch.Generator().manual_seed(draw(st.integers(0, 99)))
    )
    return Case(conv, x, True, f"{conv}, patch {patch}, {size}"), patch


@settings(max_examples=4 * settings().max_examples)
@given(cut_cases())
def test_attention_over_patches_is_the_convolution(cut: tuple[Case, tuple[int, ...]]) -> None:
    case, patch = cut
    layer = construct.conv_to_mhsa(case.conv, patch=patch)
    expected = case.conv(case.x)
    y = layer(case.x, tokens=False)
    assert torch.equal(y, expected)
    assert y.is_contiguous()
    assert not convolution_calls(layer, case.x, tokens=False)
    assert torch.equal(layer(case.x[0], tokens=False), expected[0])


@settings(max_examples=2 * settings().max_examples)
@given(cut_cases())
def test_the_verifier_derives_the_same_convolution(cut: tuple[Case, tuple[int, ...]]) -> None:
    """By an own derivation, the definition of ``patch_weight`` in Coq; it is a convolution of torch's."""
    case, patch = cut
    layer = construct.conv_to_mhsa(case.conv, patch=patch)
    own, attention, grid, _ = over_patches(case.conv, layer, tuple(case.x.shape[2:]))
    pieces = layer.patching.cut(case.x)
    assert grid == tuple(pieces.shape[2:])
    assert torch.equal(own.weight, attention.weight)
    assert torch.equal(own(pieces), attention(pieces))


@pytest.mark.parametrize(
    ("kernel", "patch", "heads"), [(3, 1, 9), (3, 2, 9), (5, 2, 9), (11, 5, 9), (11, 8, 9), (7, 2, 25), (1, 4, 1)]
)
def test_an_odd_kernel_up_to_2p_plus_1_takes_nine_heads(kernel: int, patch: int, heads: int) -> None:
    conv = nn.Conv2d(1, 1, kernel, padding=kernel // 2)
    assert construct.conv_to_mhsa(conv, patch=patch).heads == heads
    dilated = nn.Conv2d(1, 1, 3, padding=8, dilation=8)
    assert construct.conv_to_mhsa(dilated, patch=8).heads == 9


def test_what_may_be_an_image_or_tokens_is_asked_for() -> None:
    conv = nn.Conv1d(2, 2, 3, padding=1)
    layer = construct.conv_to_mhsa(conv, patch=4)
    x = torch.randn(1, 2, 8)
    tokens = layer.patching.cut(x).flatten(2).transpose(1, 2)
    with pytest.raises(ValueError, match="say tokens=True or tokens=False"):
        layer(tokens)
    torch.testing.assert_close(layer(x, tokens=False), conv(x))
    torch.testing.assert_close(layer(tokens, tokens=True), layer.patching.cut(conv(x)).flatten(2).transpose(1, 2))


def test_autocast_is_that_of_the_attention() -> None:
    conv = nn.Conv2d(3, 8, 11, padding=5)
    layer = construct.conv_to_mhsa(conv, patch=8)
    x = torch.randn(1, 3, 16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for module in (layer, construct.to_torch_mha(layer, (16, 16))):
            torch.testing.assert_close(module(x.bfloat16()), conv(x.bfloat16()), atol=0.1, rtol=0.1)


def test_tokens_are_those_of_unfold() -> None:
    conv = nn.Conv2d(3, 5, 5, padding=2)
    layer = construct.conv_to_mhsa(conv, patch=4)
    x = torch.randn(2, 3, 16, 16)
    y = layer(F.unfold(x, 4, stride=4).transpose(1, 2))
    assert y.shape == (2, 16, 5 * 16)
    torch.testing.assert_close(F.fold(y.transpose(1, 2), (16, 16), 4, stride=4), conv(x))
    assert torch.equal(layer.patching.cut(x), F.pixel_unshuffle(x, 4))
    assert torch.equal(layer.patching.join(F.pixel_unshuffle(x, 4)), x)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_every_execution_and_gradient(execution: str) -> None:
    conv = nn.Conv2d(2, 3, 5, stride=2, padding=2, groups=1).double()
    layer = construct.conv_to_mhsa(conv, patch=4, execution=execution)
    x = torch.randn(2, 2, 8, 12, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    (mine,) = torch.autograd.grad((layer(x) * y).sum(), x)
    (theirs,) = torch.autograd.grad((conv(x) * y).sum(), x)
    torch.testing.assert_close(mine, theirs)
    layer.execution = "auto"
    assert layer.attention.execution == "auto"


def test_options_mode_and_frozen_tensors_are_those_of_the_convolution() -> None:
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 3, padding=1)).eval()
    conv.bias.requires_grad_(False)  # type: ignore[union-attr]
    layer = construct.conv_to_mhsa(conv, patch=2, order=range(8, -1, -1), head_dim=20, encoding="parabola")
    assert not layer.training
    assert not layer.attention.b_out.requires_grad
    assert layer.attention.w_val.shape[3] == 20
    x = torch.randn(1, 2, 6, 6)
    torch.testing.assert_close(layer(x), conv(x))
    layer = construct.conv_to_mhsa(conv, patch=2)
    certificate = verify.certify(conv, layer, grid=(6, 6))
    assert certificate.verdict.name == "PROVED"
    assert any("weight" in text and "eval" in text for text in certificate.assumptions)


@pytest.mark.parametrize("bias", [True, False])
def test_the_stock_form_is_one_attention_over_patches(bias: bool) -> None:
    conv = nn.Conv2d(2, 3, 11, padding=5)
    layer = construct.conv_to_mhsa(conv, patch=8)
    stock = construct.to_torch_mha(layer, (16, 24), bias=bias)
    assert sum(isinstance(module, nn.MultiheadAttention) for module in stock.modules()) == 1
    assert stock.attention.num_heads == 9
    assert len(stock.positions) == 4 * 5  # 2 × 3 patches, and one of padding around
    x = torch.randn(2, 2, 16, 24)
    torch.testing.assert_close(stock(x), conv(x), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(stock(x[0]), conv(x[0]), atol=1e-4, rtol=1e-4)
    with pytest.raises(UnsupportedLayer, match="its tokens are patches"):
        construct.from_torch_mha(stock)
    back = construct.from_torch_mha(stock.attention, geometry=stock.geometry, grid=stock.grid)
    torch.testing.assert_close(back.weight, layer.attention.weight)
    with pytest.raises(ValueError, match="do not divide"):
        construct.to_torch_mha(layer, (16, 23))


def test_what_patches_cannot_do_is_refused_in_one_line() -> None:
    for conv, reason in [
        (nn.ConvTranspose2d(1, 1, 2), "not transposed"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), "pad the image first"),
        (nn.Conv2d(1, 1, 3, stride=3), "give a multiple of 3"),
        (nn.Linear(2, 2), "not a convolution"),
    ]:
        with pytest.raises(UnsupportedLayer, match=rf"\A[^\n]*{reason}[^\n]*\Z"):
            construct.conv_to_mhsa(conv, patch=2)
    conv = nn.Conv2d(1, 1, 3)
    for patch in (0, -1, 1.5, True, "2", (2,), (2, 0)):
        with pytest.raises(ValueError, match="neither a positive whole number nor 2"):
            construct.conv_to_mhsa(conv, patch=patch)  # type: ignore[arg-type]
    padded = nn.ReflectionPad2d(1)(torch.randn(1, 1, 8, 8))
    bare = nn.Conv2d(1, 1, 3, padding_mode="reflect")
    torch.testing.assert_close(construct.conv_to_mhsa(bare, patch=5)(padded), bare(padded))


def test_inputs_that_do_not_fit_are_refused() -> None:
    layer = construct.conv_to_mhsa(nn.Conv2d(1, 1, 3, padding=1), patch=2)
    for shape, grid, error, reason in [
        ((1, 1, 4, 5), None, ValueError, "do not divide"),
        ((1, 16, 4), None, ValueError, "may be an image or tokens"),
        ((2, 15, 4), None, ValueError, "give grid"),
        ((2, 8, 4), (4, 4), ValueError, "give grid"),
        ((2, 8, 4), (4, 7), ValueError, "do not divide"),
        ((2, 8, 4), 8, ValueError, "not 2 whole numbers"),
        ((2, 8, 5), (4, 8), RuntimeError, "expected tokens"),
        ((2, 3, 4, 4), None, RuntimeError, "expected 1 channels"),
        ((), None, RuntimeError, "expected a 3-D"),
    ]:
        with pytest.raises(error, match=reason):
            layer(torch.zeros(shape), grid)
    assert layer(torch.zeros(2, 8, 4), (4, 8)).shape == (2, 8, 4)
    valid = construct.conv_to_mhsa(nn.Conv2d(1, 1, 2), patch=2)
    assert valid(torch.zeros(1, 1, 4, 4)).shape == (1, 1, 3, 3)
    with pytest.raises(ValueError, match="not whole patches"):
        valid(torch.zeros(2, 4, 4))
    circular = construct.conv_to_mhsa(nn.Conv1d(1, 1, 3, padding=3, padding_mode="circular"), patch=3)
    with pytest.raises(ValueError, match="too small for circular"):
        circular(torch.zeros(1, 1, 3), tokens=False)


def certified(conv: nn.Module, layer: Any, grid: tuple[int, ...]) -> str:
    return verify.certify(conv, layer, grid=grid).verdict.name


FAULTS = {
    "two pixels of a patch change places": lambda layer: layer.attention.w_val.data[4].copy_(
        layer.attention.w_val.data[4].roll(1, dims=1)
    ),
    "a head carries another tap": lambda layer: layer.attention.w_out.data[0].copy_(layer.attention.w_out.data[1]),
    "a tap is dropped": lambda layer: layer.attention.w_val.data[8].zero_(),
    "a head looks elsewhere": lambda layer: layer.attention.v.data[0].copy_(layer.attention.v.data[2]),
    "outputs of a patch change places": lambda layer: layer.attention.w_out.data.copy_(
        layer.attention.w_out.data.roll(1, dims=3)
    ),
    "the bias": lambda layer: layer.attention.b_out.data[0].add_(1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found_by_certificates_and_both_checkers(fault: str) -> None:
    conv = nn.Conv2d(2, 3, 5, padding=2)
    layer = construct.conv_to_mhsa(conv, patch=4)
    right, attention, patches, _ = over_patches(conv, layer, (8, 8))
    asked = Asked()
    pair = pair_of(right, attention, patches)
    assert proved(pair)
    assert asked.answer(pair).accepted
    FAULTS[fault](layer)
    assert certified(conv, layer, (8, 8)) == "REFUTED"
    faulty = replace(pair_of(right, attention, patches), stated=pair.stated)
    assert not proved(faulty)
    assert not asked.answer(faulty).accepted


def test_a_certificate_of_patches_is_rechecked_from_files(tmp_path: Path) -> None:
    """The files are those of the convolution and the attention over patches."""
    conv = nn.Conv2d(2, 3, 5, padding=2)
    layer = construct.conv_to_mhsa(conv, patch=4)
    right, attention, *_ = over_patches(conv, layer, (8, 8))
    certificate = verify.certify(conv, layer, grid=(8, 8))
    assert Files(tmp_path).rechecked(certificate, right, attention) == "PROVED"


@pytest.mark.parametrize(
    "edit",
    [
        lambda conv, layer: conv.weight.data[0].add_(1),
        lambda conv, layer: layer.attention.b_out.data.add_(1),
        lambda conv, layer: setattr(layer, "patch", (4, 1)),
        lambda conv, layer: layer.register_forward_hook(lambda *call: None),
    ],
    ids=["weight", "attention", "patch", "hook"],
)
def test_what_changes_while_it_is_certified_is_noticed(monkeypatch: pytest.MonkeyPatch, edit: Any) -> None:
    conv = nn.Conv2d(2, 3, 5, padding=2)
    layer = construct.conv_to_mhsa(conv, patch=4)

    def run(*step: Any) -> Any:
        edit(conv, layer)
        return run_step(*step)

    monkeypatch.setattr(certification, "run_step", run)
    with pytest.raises(Unreadable):
        certified(conv, layer, (8, 8))


@pytest.mark.parametrize("part", ["cut", "join"])
def test_a_layer_that_cuts_or_joins_otherwise_is_not_certified(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    conv = nn.Conv2d(2, 3, 5, padding=2)
    layer = construct.conv_to_mhsa(conv, patch=4)
    right = getattr(product.Patching, part)
    monkeypatch.setattr(product.Patching, part, lambda self, x: right(self, x).flip(1))
    with pytest.raises(Unreadable, match="does not cut and join"):
        certified(conv, layer, (8, 8))


def test_a_layer_that_is_not_over_these_patches_is_not_read() -> None:
    conv = nn.Conv2d(2, 3, 5, padding=2)
    layer = construct.conv_to_mhsa(conv, patch=4)
    with pytest.raises(Unreadable, match="do not divide the grid"):
        certified(conv, layer, (8, 9))
    for lie in ({"padding": (0, 0)}, {"stride": (2, 2)}, {"kernel_size": (3, 3)}, {"in_channels": 8}):
        other = construct.conv_to_mhsa(conv, patch=4)
        other.geometry = replace(other.geometry, **lie)
        with pytest.raises(Unreadable, match="the layer cuts images by"):
            certified(conv, other, (8, 8))
    other = construct.conv_to_mhsa(conv, patch=4)
    vars(other.geometry).update(output_size=lambda size: size)  # as it is, but on some smaller image
    with pytest.raises(Unreadable, match="the geometry of PatchAttention has a output_size of its own"):
        certified(conv, other, (8, 8))
    for short in (nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 3, 2)):
        other = construct.conv_to_mhsa(short, patch=2)
        other.attention.geometry = replace(other.attention.geometry, padding=(0, 0))
        with pytest.raises(Unreadable, match="leaves outputs out"):
            certified(short, other, (8, 8))
    small = nn.Conv1d(1, 1, 7)
    with pytest.raises(GridRefused):
        certified(small, construct.conv_to_mhsa(small, patch=4), (4,))
    layer.patch = (2, 8)
    assert certified(conv, layer, (8, 8)) == "REFUTED"
    layer.patch = (2, 2)
    with pytest.raises(Unreadable, match="channels, not"):
        certified(conv, layer, (8, 8))

    class Own(product.PatchAttention):
        def forward(self, input: torch.Tensor, grid: Any = None) -> torch.Tensor:
            return super().forward(input.flip(-1), grid)

    own = Own(construct.conv_to_mhsa(conv, patch=4).attention, layer.geometry, (4, 4))
    with pytest.raises(Unreadable, match="of its own"):
        certified(conv, own, (8, 8))
    wide = nn.Conv2d(2, 3, 7, padding=3)
    narrow = construct.conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1), patch=2).attention
    geometry = construct.conv_to_mhsa(wide).geometry
    with pytest.raises(Unreadable, match="reads beyond"):
        certified(wide, product.PatchAttention(narrow, geometry, (2, 2)), (8, 8))
