"""The audit identifies convolutions by experiment, from layers that it treats as black boxes."""

import dataclasses
import json
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

import construct
import verify
from verify.oracle import Geometry
from verify.strategies import convolutions, least_size

SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
audit: Any = verify.audit
"""Typed as Any, because some fields may be None."""


def convolution(*channels, kernel: int | tuple[int, ...] = 3, seed=0, dtype=torch.float64, dims=2, **options):
    conv = getattr(nn, f"Conv{dims}d")(*(channels or (2, 3)), kernel, dtype=dtype, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return conv


def dense_kernel(conv):
    """The kernel with its groups written out, (D, C, *K)."""
    weight = conv.weight.detach().double()
    per_group, full = weight.shape[1], torch.zeros(len(weight), conv.in_channels, *weight.shape[2:]).double()
    for group, block in enumerate(weight.chunk(conv.groups)):
        full[group * len(block) :][: len(block), group * per_group :][:, :per_group] = block
    return full.numpy()


def noise(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def hidden(layer):
    """The layer as a plain function without attributes."""
    return lambda x: layer(x)


@st.composite
def roomy(draw, **options):
    """A convolution, and a grid on which three outputs per axis read only real positions."""
    conv = draw(convolutions(transposed=[False], dtypes=[torch.float64], integers=[False], **options))
    size = []
    for axis, least in enumerate(least_size(conv)):
        span, s = conv.dilation[axis] * (conv.kernel_size[axis] - 1), conv.stride[axis]
        size.append(max(least, span + 1 + 3 * s + draw(st.integers(0, 2))))
    assume(prod(size) ** 2 * conv.in_channels * conv.out_channels / prod(conv.stride) < 2e6)
    return conv, tuple(size)


@SLOW
@given(roomy())
def test_a_convolution_hidden_in_a_function_is_found_with_all_its_options(case):
    conv, size = case
    result = audit(hidden(conv), size, in_channels=conv.in_channels)
    assert result.is_convolution, str(result)
    assert result.affine
    assert result.kernel_size == conv.kernel_size
    assert np.abs(result.kernel - dense_kernel(conv)).max() <= result.rounding * np.abs(result.kernel).max()
    assert result.stride == conv.stride
    assert all(k == 1 or a == b for a, b, k in zip(result.dilation, conv.dilation, conv.kernel_size, strict=True))
    pads = Geometry.read(conv).pads
    assert [before for before, _ in result.padding] == [before for before, _ in pads]
    assert all(after <= p for (_, after), (_, p) in zip(result.padding, pads, strict=True))
    reads = any(before > 0 or after > 0 for before, after in result.padding)
    assert (conv.padding_mode in result.padding_modes) if reads else (result.padding_mode == "none")
    bias = np.zeros(conv.out_channels) if conv.bias is None else conv.bias.detach().numpy()
    assert np.array_equal(result.bias, bias)
    assert result.groups % conv.groups == 0
    assert not result.attention_available
    assert "shows no attention" in str(result)


@SLOW
@given(convolutions(transposed=[False], dtypes=[torch.float64], integers=[False], dims=[1, 2]), st.integers(0, 3))
def test_on_grids_without_an_interior_what_is_called_a_convolution_is_the_same_function(conv, more):
    size = tuple(n + more for n in least_size(conv))
    assume(prod(size) ** 2 * conv.in_channels * conv.out_channels < 1e6)
    result = audit(hidden(conv), size, in_channels=conv.in_channels)
    if result.is_convolution:
        assert result.distance <= result.rounding * 100


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("options", [
    {"stride": 2, "padding": 1}, {"padding": 2, "dilation": 2, "padding_mode": "reflect"},
    {"padding": 1, "groups": 2}, {"padding": "same", "padding_mode": "replicate"}, {},
    {"kernel": (3, 2), "padding": (1, 2), "dilation": (1, 2), "padding_mode": "circular"},
], ids=str)  # fmt: skip
def test_a_converted_layer_gives_back_its_kernel_bit_for_bit_and_a_shift_for_each_head(options, dtype):
    conv = convolution(2, 4, dtype=dtype, **options)
    result = audit(construct.conv_to_mhsa(conv), (8, 9))
    assert result.is_convolution
    assert np.array_equal(result.kernel, dense_kernel(conv))
    assert np.array_equal(result.bias, conv.bias.detach().double().numpy())
    assert result.distance <= result.rounding
    assert (result.interior, result.content, result.equivariant) == (0, 0, True)
    assert result.groups == conv.groups
    before = Geometry.read(conv).pads
    lattice = {
        tuple(dil * j - b for j, dil, (b, _) in zip(tap, conv.dilation, before, strict=True))
        for tap in product(*map(range, conv.kernel_size))
    }
    assert {head.shifts[0][0] for head in result.heads} == lattice
    assert all(head.peak == 1 and head.spread == 0 and len(head.shifts) == 1 for head in result.heads)
    assert not result.collapsed
    assert not result.unplaced


def converted(**options):
    return construct.conv_to_mhsa(convolution(2, 3, padding=1, **options))


def test_content_that_is_switched_on_is_found():
    layer = converted()
    alpha = 2.0
    with torch.no_grad():
        layer.v.copy_(layer.v / layer.v[0, 0].abs() * alpha)
        layer.w_qry.normal_(0, 0.3, generator=torch.Generator().manual_seed(1))
        layer.w_key.normal_(0, 0.3, generator=torch.Generator().manual_seed(2))
    result = audit(layer, (6, 6), kernel_size=3)
    assert (result.affine, result.is_convolution) == (False, False)
    assert result.content > 0.5
    assert 0.01 < result.interior < 1
    assert "no input moves" not in str(result)


def test_one_head_that_moved_is_found():
    layer, usual = converted(), dense_kernel(convolution(2, 3, padding=1))
    with torch.no_grad():
        layer.v[0].copy_(layer.v[4])
    result = audit(layer, (6, 6))
    assert result.affine
    assert result.collapsed == (((0, 0), (0, 4)),)
    assert "COLLAPSED: heads 0, 4 all look at (0, 0)" in str(result)
    assert not result.kernel[:, :, 0, 0].any()
    assert np.allclose(result.kernel[:, :, 1, 1], usual[:, :, 0, 0] + usual[:, :, 1, 1], rtol=1e-12)


def test_a_head_that_moved_off_the_kernel_is_found():
    layer = converted()
    with torch.no_grad():
        layer.v[0].copy_(layer.v[8] * torch.tensor([1.0, 2.0, 1.0]))  # to (2, 1), beyond the padding of the last row
    result = audit(layer, (6, 6))
    assert result.kernel_size == (4, 3)  # another convolution fits: zeros further off the grid are equivalent
    assert result.is_convolution
    assert result.heads[0].shifts[0][0] == (2, 1)
    around = converted(padding_mode="circular")
    with torch.no_grad():
        around.v[0].copy_(around.v[8] * torch.tensor([1.0, 2.0, 1.0]))
    broken = audit(around, (6, 6))
    assert broken.padding_mode is None  # it stops where circular padding would continue
    assert not broken.is_convolution


@pytest.mark.parametrize("modes", [*product(["zeros", "replicate", "circular", "reflect"], repeat=2)], ids=" × ".join)
def test_each_axis_may_have_a_padding_of_its_own(modes):
    conv = convolution(2, 3)

    def padded(x):
        """Rows first, then columns."""
        for mode, pads in zip(modes, ((0, 0, 1, 1), (1, 1, 0, 0)), strict=True):
            x = nn.functional.pad(x, pads, mode="constant" if mode == "zeros" else mode)
        return conv(x)

    result = audit(padded, (6, 7), in_channels=2)
    assert result.is_convolution
    if modes[0] == modes[1]:
        assert result.padding_modes == modes[:1]
        assert all((left <= result.rounding) == (name == modes[0]) for name, left in result.border_by_mode.items())
    else:
        assert result.padding_mode == " × ".join(modes)
    assert np.array_equal(result.kernel, dense_kernel(conv))
    assert result.padding == ((1, 1), (1, 1))
    assert result.border <= result.rounding


def test_a_kernel_wider_than_the_grid_gets_its_turn():
    """Of many receptive fields the one with the most taps came last, and was never tried."""
    result = audit(convolution(1, 1, kernel=7, padding=3), (4, 4))
    assert result.is_convolution
    assert (result.kernel_size, result.padding_mode) == ((7, 7), "zeros")


def halved(conv):
    """A border of half the nearest pixel."""

    def layer(x):
        padded = nn.functional.pad(x, (1, 1, 1, 1), mode="replicate") / 2
        padded[..., 1:-1, 1:-1] = x
        return nn.functional.conv2d(padded, conv.weight, conv.bias)

    return layer


NEARLY = {
    "another padding": (halved, {"padding_mode": None, "interior": 0, "border": (0.1, 1), "affine": True}),
    "another bias": (
        lambda conv: lambda x: conv(x) + 0.01 * noise(3, 6, 6),
        {"affine": True, "equivariant": False, "distance": 0, "bias_variation": (0.005, 0.1)},
    ),
    "other weights": (
        lambda conv: lambda x: conv(x) * (1 + 0.1 * noise(6, 6).sigmoid()),
        {"affine": True, "equivariant": False, "interior": (0.005, 0.1)},
    ),
    "a little nonlinearity": (
        lambda conv: lambda x: conv(x) + 1e-6 * torch.tanh(x.sum()),
        {"affine": False, "superposition": (1e-9, 1e-4)},
    ),
    "clamped": (lambda conv: lambda x: conv(x).clamp(-50, 50), {"affine": False}),
    "a threshold": (lambda conv: lambda x: conv(x) + torch.relu(x.sum(1, keepdim=True) - 100), {"affine": False}),
    "a threshold far away": (
        lambda conv: lambda x: conv(x) + torch.relu(x.sum(1, keepdim=True) - 1e40),
        {"affine": False},
    ),
    "a small channel": (
        lambda conv: lambda x: torch.cat([conv(x)[:, :1], 1e-9 * torch.relu(conv(x)[:, 1:])], 1),
        {"affine": False},
    ),
}
"""What is a convolution but for something: of the position, or of inputs that are large; and the figures that show it."""


@pytest.mark.parametrize("name", NEARLY)
def test_what_is_nearly_a_convolution_is_none(name):
    layer, shown = NEARLY[name]
    conv = convolution(2, 3, padding=1)
    result = audit(layer(conv), (6, 6), in_channels=2, kernel_size=3)
    assert not result.is_convolution
    for attribute, expected in shown.items():
        value = getattr(result, attribute)
        assert expected[0] < value < expected[1] if isinstance(expected, tuple) else value == expected, attribute
    assert ("padding: none of them" in str(result)) == (name == "another padding")
    assert not result.affine or name == "other weights" or np.array_equal(result.kernel, dense_kernel(conv))


def test_a_transposed_convolution_is_one_without_a_stride_and_else_not_looked_for():
    conv = nn.ConvTranspose2d(2, 3, 3, dtype=torch.float64)
    result = audit(construct.conv_to_mhsa(conv), (6, 6))
    assert result.is_convolution
    assert np.array_equal(result.kernel, conv.weight.detach().numpy().swapaxes(0, 1)[:, :, ::-1, ::-1])
    wide = audit(construct.conv_to_mhsa(nn.ConvTranspose2d(1, 1, 3, stride=2)), (4, 4))
    assert not wide.is_convolution
    assert "transposed convolutions with a stride are not looked for" in str(wide)


def test_of_a_wide_layer_some_channels_are_read():
    conv = convolution(40, 30, padding=1)
    layer = construct.conv_to_mhsa(conv)
    result = audit(layer, (8, 8), most_channels=3, budget=2**22)
    assert len(result.inputs) == len(result.outputs) == 3
    assert result.is_convolution
    assert np.array_equal(result.kernel, dense_kernel(conv)[np.ix_(result.outputs, result.inputs)])
    assert np.array_equal(result.bias, conv.bias.detach().numpy()[list(result.outputs)])
    assert result.groups is None
    assert "only these channels were read, of 40 → 30" in str(result)
    assert json.loads(result.to_json())["channels"] == [40, 30]
    everything = audit(layer, (4, 4), most_channels=100)
    assert everything.inputs == tuple(range(40))
    assert everything.groups == 1


@pytest.mark.parametrize("power", [-1000, -600, -300, 300, 600, 950])
@pytest.mark.parametrize("mode", ["zeros", "replicate"])
def test_the_size_of_the_weights_makes_no_difference(power, mode):
    """Even where squares would overflow; a bias as large as the rest is not lost where impulses cannot be larger."""
    conv = convolution(2, 3, padding=1, padding_mode=mode)
    usual = audit(hidden(conv), (5, 6), in_channels=2)
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.mul_(2.0**power)
    result = audit(hidden(conv), (5, 6), in_channels=2)
    assert result.is_convolution
    assert (result.kernel_size, result.padding_modes) == (usual.kernel_size, usual.padding_modes)
    np.testing.assert_allclose(result.kernel / 2.0**power, usual.kernel, rtol=0, atol=usual.rounding)
    np.testing.assert_array_equal(result.bias, usual.bias * 2.0**power)
    assert result.border_by_mode.keys() == usual.border_by_mode.keys()
    assert json.loads(result.to_json())["is_convolution"] is True


@pytest.mark.parametrize(
    ("function", "grid"),
    [
        (lambda x: x.flip(-1), (8,)),
        (lambda x: x.flip(-1), (6, 6)),
        (lambda x: x.flip(-2, -1), (5, 6)),
        (lambda x: x.transpose(-1, -2), (6, 6)),
        (lambda x: x[..., :1].expand_as(x), (6,)),
        (lambda x: x[..., :1, :1].expand_as(x), (6, 6)),
        (lambda x: x * torch.linspace(1, 2, 6, dtype=x.dtype), (6, 6)),
        (lambda x: (x.flatten(1) @ noise(72, 72)).view_as(x), (6, 6)),
    ],
    ids=["mirrored 1-D", "mirrored", "turned", "transposed", "first 1-D", "first", "ramp", "any map"],
)
def test_no_padding_makes_a_convolution_of_what_does_not_repeat_itself(function, grid):
    result = audit(function, grid, in_channels=2)
    assert (result.affine, result.is_convolution) == (True, False)
    assert result.equivariant is False
    assert result.distance > 0.1
    assert not result.padding_modes or result.padding_mode == "none"


def test_uniform_attention_looks_at_the_image_and_not_beside_it():
    attention = nn.MultiheadAttention(2, 1)
    with torch.no_grad():
        attention.in_proj_weight[:4] = 0
    result = audit(attention, (5, 5))
    assert result.is_convolution
    assert (result.stride, result.padding_mode) == ((1, 1), "circular")
    assert result.padding == ((2, 2), (2, 2))
    assert result.heads[0].centre == pytest.approx((0, 0), abs=1e-12)


def test_ranks_of_taps():
    conv = convolution(4, 4, kernel=1)
    with torch.no_grad():
        conv.weight[:, :, 0, 0] = torch.diag(torch.tensor([1.0, 1.0, 0.0, 0.0]))
    result = audit(hidden(conv), (3, 3), in_channels=4)
    assert result.tap_ranks.tolist() == [[2]]
    assert result.tap_effective_ranks == pytest.approx(2.0)
    assert "rank 2 of 4" in str(result)


class Published(nn.Module):
    """Attention over unpadded pixels, as in ConViT: (1 − σ(gate)) softmax(Q^h K^hᵀ) + σ(gate) softmax(−strength ‖δ − Δ_h‖²)."""

    def __init__(self, conv: Any, strength: float, gate: float):
        super().__init__()
        self.taps = conv.weight.detach().flatten(2).permute(2, 0, 1)  # (heads, D, C)
        self.bias, self.in_channels, self.open = conv.bias, conv.in_channels, 1 / (1 + np.exp(-gate))
        self.strength, self.shifts = strength, torch.tensor([*product((-1.0, 0.0, 1.0), repeat=2)]).double()
        self.queries, self.keys = noise(2, len(self.taps), 4, conv.in_channels)

    def attention_probabilities(self, x):
        places = torch.cartesian_prod(*(torch.arange(float(n)) for n in x.shape[2:]))
        away = places[None] - places[:, None] - self.shifts[:, None, None]  # (heads, T, T, 2)
        position = torch.softmax(-self.strength * away.square().sum(-1), dim=-1)
        query, key = (w @ x.flatten(2)[:, None] for w in (self.queries, self.keys))  # (B, heads, 4, T)
        content = torch.softmax(query.transpose(2, 3) @ key, dim=-1)
        return (1 - self.open) * content + self.open * position

    def forward(self, x):
        y = torch.einsum("hdc,bhqk,bck->bdq", self.taps, self.attention_probabilities(x), x.flatten(2))
        return (y + self.bias[:, None]).unflatten(2, x.shape[2:])


def test_sharp_published_attention_pads_by_repeating():
    """With an open gate, as in the paper's own code."""
    conv = convolution(4, 5, padding=1)
    result = audit(Published(conv, 104, gate=1000.0), (7, 8))
    assert result.padding_modes == ("replicate",)
    assert result.border_by_mode["zeros"] > 0.3
    assert result.interior <= result.rounding
    assert np.abs(result.kernel - dense_kernel(conv)).max() < 1e-13
    assert result.content == 0


def test_the_default_gate_lets_27_percent_of_content_in():
    result = audit(Published(convolution(2, 3, padding=1), 104, gate=1.0), (6, 6), kernel_size=3)
    assert not result.affine
    assert result.content == pytest.approx(1 / (1 + np.e), rel=1e-6)  # 26.9 %
    assert "up to 26.9 %" in str(result)


def test_the_record_is_json_and_the_word_for_certainty_does_not_occur():
    result = audit(converted(), (5, 5))
    record = json.loads(result.to_json())
    assert record["is_convolution"] is True
    assert record["kernel_size"] == [3, 3]
    assert np.array_equal(np.array(record["kernel"]), result.kernel)
    assert len(record["heads"]) == 9
    assert "by experiment" in str(result)
    assert "PROVED" not in str(result) + result.to_json()
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.distance = 0.0  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"attention": 3}, "a layer or a function"),
        ({"grid": (0, 3)}, "whole numbers"),
        ({"grid": 5}, "whole numbers"),
        ({"in_channels": None}, "how many channels"),
        ({"in_channels": 3}, "cannot be run"),
        ({"kernel_size": 0}, "kernel_size"),
        ({"most_channels": 0}, "most_channels"),
        ({"kernel_size": (3,)}, "kernel_size"),
        ({"dtype": torch.float16}, "float64 or float32"),
        ({"budget": 1000}, r"over the budget.*smaller grid"),
        ({"attention": lambda x: x * float("nan")}, "no output of the layer is finite"),
        ({"attention": lambda x: x.sum()}, r"makes \(\)"),
        ({"attention": lambda x: x[:1]}, r"makes \(1, 2, 4, 4\) of .*as of the first input"),
        ({"kernel_size": np.float64(3)}, "kernel_size is a whole number"),
        (
            {"attention": lambda x: None},
            r"cannot be run.*gives a NoneType, and not a tensor \(batch, channels, \*output\)$",
        ),
        ({"attention": lambda x: (x, None)}, "cannot be run.*gives a tuple, and not a tensor"),
        ({"attention": lambda x: x @ torch.ones(4, 4)}, r"cannot be run.*a function of float32 tensors takes dtype="),
        ({"probabilities": lambda x: x}, "attention has shape"),
        ({"attention": lambda x: torch.complex(x, x)}, "complex"),
        ({"attention": nn.Conv2d(2, 3, 3, padding=1, dtype=torch.complex128)}, "complex"),
        ({"grid": (10**6, 10**6)}, "over the budget"),  # before anything runs
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_audited_is_refused_in_one_line(arguments, reason):
    usual = {"attention": hidden(convolution(2, 3, padding=1)), "grid": (4, 4), "in_channels": 2}
    with pytest.raises(ValueError, match=reason) as refused:
        audit(**usual | arguments)
    assert "\n" not in str(refused.value)


def test_the_layer_itself_is_left_as_it_was():
    layer = converted(dtype=torch.float32).train()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    audit(layer, (5, 5))
    assert layer.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
    stock = construct.to_torch_mha(layer, grid=(5, 5))
    audit(stock, (5, 5), in_channels=2)
    assert stock.attention.forward.__func__ is nn.MultiheadAttention.forward  # only a copy was hooked


def test_the_command_audits_our_layers_and_stock_ones(tmp_path, verify_command):
    layer = converted()
    ours, stock, bare = (tmp_path / name for name in ("ours.mhsa.pt", "stock.pt", "bare.pt"))
    construct.save(layer, ours)
    torch.save(construct.to_torch_mha(layer.float(), grid=(5, 6)), stock)
    torch.save(nn.MultiheadAttention(4, 2), bare)
    for file in (ours, stock):
        out = verify_command.prints("audit", file, "--grid", 5, 6)
        assert "padding: zeros" in out
        assert "head 8: looks at shift (1, 1)" in out
    verify_command.prints("audit", ours)  # the grid follows from the kernel size that the file states
    assert "on inputs of 5 × 6" in verify_command.prints("audit", stock)  # which takes no other
    facts = verify_command.facts("audit", bare, "--grid", 5, 6, "--kernel", 3, code=1)
    assert facts["affine"] is facts["is_convolution"] is False
    assert facts["content"] > 0.9


class Payload:
    def __reduce__(self):
        return (print, ("ran",))


@pytest.mark.parametrize(
    ("content", "options", "reason"),
    [
        (None, "", "No such file"),
        (b"", "", "error"),
        (b"PK\x03\x04 and nothing more", "", "error"),
        (nn.Linear(2, 2), "", "no attention layer"),
        (
            nn.Sequential(nn.MultiheadAttention(2, 1)),
            "",
            "a stock nn.MultiheadAttention is read if it was saved by itself",
        ),
        ({"attention": Payload()}, "", "not a state dict"),
        ("layer", "--kernel 3 3 3", "kernel_size"),
        ("layer", "--seed -1", "seed"),
        ("layer", "--layer else", "holds no layer"),
        ("layer", "--grid 0 4", "whole numbers"),
        ("layer", "--grid 300 300", "over the budget"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_command_refuses_in_one_line(content, options, reason, tmp_path, verify_command):
    """A file that would run code is refused without running it."""
    file = tmp_path / "file.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content == "layer":
        construct.save(converted(), file)
    elif content is not None:
        torch.save(content, file)
    assert reason in verify_command.refuses("audit", file, "--grid", 4, 4, *options.split())


@pytest.mark.parametrize("most", [None, 3, 99])
def test_a_channel_that_no_input_reaches_is_read_too(most):
    """Its constant depends on the position, unlike a convolution's."""
    conv = convolution(2, 2, padding=1)
    result = audit(
        lambda x: torch.cat([conv(x), torch.arange(6.0).double().expand(len(x), 1, 6, 6)], 1),
        (6, 6), in_channels=2, most_channels=most,
    )  # fmt: skip
    assert result.outputs == (0, 1, 2)
    assert not result.is_convolution


@pytest.mark.parametrize("change", [torch.relu, lambda y: y * torch.linspace(0.5, 1, 10)], ids=["kinked", "moving"])
def test_a_small_channel_is_judged_by_its_own_size(change):
    """In float32, where rounding alone may reach a thousandth of the largest output."""
    conv = nn.Conv2d(16, 2, kernel_size=3, padding=1)

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = conv(x)
        return torch.stack([y[:, 0], 1e-3 * change(y[:, 1])], 1)

    assert not audit(layer, (10, 10), in_channels=16, dtype=torch.float32, kernel_size=3).is_convolution


@pytest.mark.parametrize("bound", [1.5, 1e3])
def test_an_output_that_is_not_finite_hides_no_other(bound: float):
    conv = convolution(2, 3, padding=1).double()

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(conv(x))
        y[:, :, 0, 0] = torch.where(x[:, 0, 0, 0] > bound, float("nan"), y[:, 0, 0, 0])[:, None]
        return y

    for seed in range(12):
        assert not audit(layer, (5, 5), in_channels=2, seed=seed).affine
