"""Attention factorised over the axes: the same function as the paper's, whatever v and w_key_pos say."""

import copy
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from construct import MHSA, ConvGeometry, conv_to_mhsa
from construct.attention import smaller_blocks
from construct.execution import (
    axial,
    columns,
    depthwise,
    gathered,
    layout,
    lines,
    merging,
    narrow,
    products,
    residues,
    shifted,
    stacked,
)
from construct.execution.layout import Shifts, through
from construct.execution.merging import is_identity
from construct.execution.plan import plan_for
from construct.tokens import TokenGrid
from truths import random_layer
from verify.samples.calls import convolution_calls
from verify.strategies import Case, cases

EXAMPLES = settings().max_examples


def without_content(layer: MHSA) -> MHSA:
    """The same layer, its attention depending on positions alone."""
    with torch.no_grad():
        for tensor in (layer.w_qry, layer.w_key, layer.u):
            tensor.zero_()
    return layer.requires_grad_(False)


def both(layer: MHSA, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By ``axial`` and by ``dense``."""
    found = []
    for layer.execution in ("axial", "dense"):
        found.append(layer(x))
    return found[0], found[1]


@settings(max_examples=EXAMPLES)
@given(cases(tokens=80, dtypes=[torch.float64]), st.integers(0, 2**20), st.sampled_from([None, 1, 7]))
def test_it_equals_dense_wherever_the_heads_look(case: Case, seed: int, queries: int | None):
    """Sharp and soft heads side by side, off the lattice, off the grid, with negative α, and twice at one place."""
    rng = np.random.default_rng(seed)
    layer = without_content(conv_to_mhsa(case.conv))
    with torch.no_grad():
        d, heads = layer.geometry.dims, layer.heads
        alpha = rng.choice([1024.0, 1024.0, 5.0, 0.3, -0.2, 0.0, 1e6], heads)
        tau = rng.integers(-4, 5, (heads, d)) + rng.choice([0, 0, 0, 0.5, 0.3], (heads, d))
        aimed = -alpha[:, None] * np.concatenate([np.ones((heads, 1)), -2 * tau], axis=1)
        keep = rng.random(heads) < 0.5
        layer.v.copy_(torch.where(torch.from_numpy(keep)[:, None], layer.v, torch.from_numpy(aimed)))
        x = case.x.double()
        if not x.numel():
            return
        with smaller_blocks(queries) if queries else smaller_blocks(10**9):
            found, expected = both(layer, x)
    size = (layer.w_val.abs().sum() * layer.w_out.abs().amax() * x.abs().amax()).item() + 1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * size)


def test_soft_heads_share_factors_and_are_right_on_long_grids():
    layer = without_content(conv_to_mhsa(nn.Conv2d(3, 4, 3, padding=1, dtype=torch.float64), alpha=0.7))
    x = torch.randn(1, 3, 40, 33, dtype=torch.float64)
    with torch.no_grad():
        found, expected = both(layer, x)
    assert not plan_for(layer, TokenGrid.of(layer.geometry, (40, 33))).sharp
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_shift_is_claimed_only_where_every_row_is_one_hot():
    """For α up to the limit, and a hair below it; at a border where the key that a head wants is missing."""
    layer = conv_to_mhsa(nn.Conv1d(1, 1, 3, padding=1))
    grid = TokenGrid.of(layer.geometry, (9,))
    assert plan_for(layer, grid).deltas == ((-1,), (0,), (1,))
    with torch.no_grad():
        layer.v.mul_(747 / 1024)
        assert plan_for(layer, grid).sharp == (0, 1, 2)
        layer.v.mul_(745 / 747)
        assert plan_for(layer, grid).soft == (0, 1, 2)
        layer.v.mul_(1024 / 745)
        layer.v[1, 1] = 2 * 1024.0 * 2  # two to the right: the last query would want a key beyond the padding
    assert plan_for(layer, grid).soft == (1,)
    with torch.no_grad():
        layer.v[1, 1] = 1024.0  # halfway between two keys
    assert plan_for(layer, grid).soft == (1,)
    with torch.no_grad():
        layer.v[1, 1] = torch.nan
    assert plan_for(layer, grid).soft == (1,)
    assert layer(torch.ones(1, 1, 9)).isnan().all()


@pytest.mark.parametrize("name", ["v", "w_key_pos", "w_val", "w_out", "b_out"])
def test_edits_that_leave_no_trace_are_seen(name: str):
    """Through ``.data`` and through numpy, between two calls with the same input."""
    conv = nn.Conv2d(3, 3, 3, padding=1)
    layer = conv_to_mhsa(conv).requires_grad_(False)
    x = torch.randn(1, 3, 6, 6)
    before = layer(x)
    tensor = getattr(layer, name)
    version = tensor._version
    tensor.data[-1] *= -2
    tensor.detach().numpy()[0] += 1
    assert tensor._version == version
    found, expected = both(layer, x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (before - found).abs().max() > 0.1


@pytest.mark.parametrize("name", ["2-D", "stride", "transposed", "depthwise", "reflect", "soft"])
def test_training_is_that_of_dense(name: str):
    """Gradients for values, outputs, bias, α and τ, and for the input; second derivatives too."""
    conv: Any = {
        "2-D": nn.Conv2d(2, 3, (2, 3), padding=1),
        "stride": nn.Conv2d(4, 2, 3, stride=2, padding=2, groups=2, dilation=2),
        "transposed": nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
        "depthwise": nn.Conv1d(3, 6, 3, padding=1, groups=3),
        "reflect": nn.Conv1d(2, 2, 3, padding=2, padding_mode="reflect"),
        "soft": nn.Conv2d(2, 2, 2, padding=1),
    }[name].double()
    layer = conv_to_mhsa(conv, alpha=1.5) if name == "soft" else conv_to_mhsa(conv)
    layer.v.requires_grad_()
    layer.w_key_pos.requires_grad_()
    x = torch.randn(2, conv.in_channels, *(4,) * (conv.weight.dim() - 2), dtype=torch.float64, requires_grad=True)
    names = ("w_val", "w_out", "b_out", "v", "w_key_pos")
    found, expected = both(layer, x)
    pull = torch.randn_like(found)
    wanted = [x, *(getattr(layer, n) for n in names)]
    ours = torch.autograd.grad((found * pull).sum(), wanted)
    theirs = torch.autograd.grad((expected * pull).sum(), wanted)
    for label, a, b in zip(("x", *names), ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda text, label=label: f"{label}: {text}")
    layer.execution = "axial"

    def call(x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(names, tensors, strict=True)), (x,))

    inputs = [t.detach().clone().requires_grad_() for t in wanted]
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def test_frozen_factors_are_left_alone_and_trained_ones_trained():
    layer = conv_to_mhsa(nn.Conv2d(4, 3, 3, padding=1))
    layer.w_out.requires_grad_(False)
    layer(torch.randn(1, 4, 5, 5)).sum().backward()
    assert layer.w_out.grad is None
    assert layer.v.grad is None
    assert layer.w_val.grad is not None


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("grad", [False, True])
def test_the_layout_of_the_output_is_that_of_the_input(layout: Any, grad: bool):
    conv = nn.Conv2d(8, 6, 3, stride=2, padding=1)
    x = torch.randn(2, 8, 9, 9).contiguous(memory_format=layout)
    with torch.set_grad_enabled(grad):
        y = conv_to_mhsa(conv)(x)
        assert y.is_contiguous(memory_format=layout)
        torch.testing.assert_close(y, conv(x), rtol=1e-5, atol=1e-5)


def test_it_needs_no_attention_map_and_no_convolution():
    """A picture of 600 × 600: dense attention would take about ten terabytes."""
    conv = nn.Conv2d(3, 4, 5, padding=2)
    layer, x = conv_to_mhsa(conv), torch.randn(1, 3, 600, 600)
    with torch.no_grad():
        assert not convolution_calls(lambda: layer(x))
        torch.testing.assert_close(layer(x), conv(x), rtol=1e-4, atol=1e-5)
        assert axial.memory(layer, 1, TokenGrid.of(layer.geometry, (600, 600))) < 2**25


@given(st.integers(1, 9), st.integers(0, 3), st.sampled_from(["identity", "one off", "tiny", "minus zero", "diagonal"]))
@settings(max_examples=EXAMPLES // 2)
def test_the_identity_is_known_bit_for_bit(n: int, seed: int, kind: str):
    blocks = torch.eye(n).repeat(3, 2, 1, 1)
    rng = np.random.default_rng(seed)
    h, g, i, j = (int(rng.integers(k)) for k in (3, 2, n, n))
    assert is_identity(blocks)
    off = i != j
    if kind == "one off":
        blocks[h, g, i, j] = 2.0
        off = True
    elif kind == "tiny":
        blocks[h, g, i, j] += 2.0**-149
    elif kind == "minus zero":
        off = False  # −0 is read as no zero here: the product below is taken, and is right
        blocks[h, g, i, j] *= 1
    elif kind == "diagonal":
        blocks[h, g, i, i] = 1 + 2.0**-23
        off = True
    else:
        off = False
    size = blocks[0, 0].nbytes
    # All at once, four and two, two at a time, by one period of each and by two.
    for at_once in (merging.AT_ONCE, 4 * size, 2 * size, 1, 8 * (n + 1)):
        with mock.patch.object(merging, "AT_ONCE", at_once):
            assert is_identity(blocks) == (not off)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("at_once", [1, 30, merging.AT_ONCE])
def test_the_identity_is_known_in_every_type(dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(merging, "AT_ONCE", at_once)
    blocks = torch.eye(5, dtype=dtype).repeat(3, 2, 1, 1)
    assert is_identity(blocks)
    for place in ((2, 1, 4, 4), (0, 0, 0, 0), (2, 1, 4, 3), (1, 0, 0, 4)):
        other = blocks.clone()
        other[place] = 0.5
        assert not is_identity(other)


def test_a_layer_can_still_be_copied_and_saved_after_it_ran(tmp_path):
    layer = conv_to_mhsa(nn.Conv2d(2, 2, 3))
    x = torch.randn(1, 2, 5, 5)
    expected = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), expected)
    torch.save(layer, tmp_path / "layer.pt")
    assert torch.equal(torch.load(tmp_path / "layer.pt", weights_only=False)(x), expected)


def test_random_layers_without_content_equal_dense_too():
    for seed in range(20):
        geometry = ConvGeometry(4, 6, (2, 3), (2, 1), (1, 2), "circular", (1, 2), 2)
        layer = without_content(random_layer(geometry, heads=3, head_dim=2, key_dim=5, seed=seed))
        x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
        with torch.no_grad():
            torch.testing.assert_close(*both(layer, x), rtol=1e-11, atol=1e-11)


def test_what_each_execution_takes_is_told_before_it_runs():
    layer = conv_to_mhsa(nn.Conv2d(64, 64, 3, padding=1))
    told = {line.split()[0]: line for line in layer.explain((1, 64, 224, 224)).splitlines()}
    assert {"dense", "chunked", "axial", "auto"} <= set(told)
    assert f"{64 * 64 * 9 * 224 * 224:.2g} products" in told["axial"]
    assert told["auto"].split()[1:5] == told["axial"].split()[1:5]
    assert float(told["dense"].split()[3]) > 2**18  # MiB: a quarter of a terabyte
    layer.w_qry.requires_grad_()
    told = {line.split()[0]: line for line in layer.explain((1, 64, 8, 8)).splitlines()}
    assert told["auto"].split()[1:5] == told["dense"].split()[1:5]


# ---- the three maps of shifted heads ---------------------------------------------------------------------------------------


def prefer(way: str | None, patch: pytest.MonkeyPatch) -> None:
    """Have inputs as small as those of tests take a way that is for large ones."""
    if way == "gathered":
        patch.setattr(gathered, "WIDE", (1, 1))
    else:
        patch.setattr(gathered, "FEW", 0)
    if way == "large products":
        patch.setattr(gathered, "HEAVY", (gathered.HEAVY[0], 1))
        patch.setattr(products, "HEAVY", 1)
        patch.setattr(products, "SHORT", 10)
    if way in ("columns", "in the output's order"):
        patch.setattr(columns, "FEWEST", 1)
        patch.setattr(columns, "FEW", 0)
        patch.setattr(columns, "OUTPUTS", 0 if way == "columns" else 10**9)
        patch.setattr(columns, "ROWS", 10**9 if way == "columns" else 2)
    elif way == "in one":
        patch.setattr(stacked, "SHORTEST", 1)
    elif way == "all residues at once":
        patch.setattr(residues, "LEAST", 1)
        patch.setattr(residues, "WASTE", 1e9)
        patch.setattr(residues, "NARROW", 2)
    elif way == "products first":
        patch.setattr(narrow, "FEW", ((100, 0),))
        patch.setattr(narrow, "LEAST", 0)
    elif way == "as it lies":
        patch.setattr(lines, "LEAST", 1)
        patch.setattr(depthwise, "MANY", 1)
    for kept in (depthwise.joined, depthwise._steps):
        kept.cache_clear()


WAYS = (
    *(
        None,
        "gathered",
        "large products",
        "columns",
        "in the output's order",
        "in one",
        "all residues at once",
        "products first",
    ),
    "as it lies",
)


@st.composite
def aims(draw: st.DrawFn, dims: int) -> tuple[tuple[int, ...], ...]:
    """Where heads look: anywhere, or at a rectangle, in any order."""

    def vector(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, most)) for _ in range(dims))

    if draw(st.booleans()):
        return tuple(vector(-4, 5) for _ in range(draw(st.integers(1, 4))))
    corner, sizes = vector(-3, 3), vector(1, 3)
    places = [tuple(c + n for c, n in zip(corner, place, strict=True)) for place in np.ndindex(sizes)]
    return tuple(draw(st.permutations(places)))


@settings(max_examples=2 * EXAMPLES)
@given(st.data())
def test_the_three_maps_are_what_their_formulas_say(data: st.DataObject):
    """In integers, against plain sums over queries; in blocks of any size."""
    d = data.draw(st.integers(1, 3))
    groups, channels, width, images = (data.draw(st.integers(1, n)) for n in (3, 3, 3, 3))

    def vector(least: int, most: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(least, most)) for _ in range(d))

    offsets = data.draw(aims(d))
    shifts, heads = Shifts(offsets, vector(1, 3), vector(1, 6), vector(1, 5)), len(offsets)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))

    def draw(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.integers(-4, 5, shape)).to(dtype)

    x, y = draw(images, *shifts.size, groups, channels), draw(images, *shifts.output, groups, width)
    w, bias, back = draw(heads, groups, channels, width), draw(groups, width), draw(groups, channels)
    forward, backward, weights = torch.zeros_like(y) + bias, torch.zeros_like(x) + back, torch.zeros_like(w)
    for o in np.ndindex(shifts.output):
        for head, offset in enumerate(shifts.offsets):
            t = tuple(s * n + e for s, n, e in zip(shifts.step, o, offset, strict=True))
            if all(0 <= p < n for p, n in zip(t, shifts.size, strict=True)):
                here, there = (slice(None), *o), (slice(None), *t)
                forward[here] += torch.einsum("bgc,gcd->bgd", x[there], w[head])
                backward[there] += torch.einsum("bgd,gcd->bgc", y[here], w[head])
                weights[head] += torch.einsum("bgc,bgd->gcd", x[there], y[here])
    found_y, found_x = torch.full_like(y, torch.nan), torch.full_like(x, torch.nan)
    with pytest.MonkeyPatch.context() as patch, smaller_blocks(data.draw(st.sampled_from([1, 5, 30, 10**9]))):
        prefer(data.draw(st.sampled_from(WAYS)), patch)
        patch.setattr(gathered, "NUMBERED", data.draw(st.sampled_from([gathered.NUMBERED, 20])))
        if data.draw(st.booleans()):  # channels first
            found_y = found_y.flatten(-2).movedim(-1, 1).contiguous().movedim(1, -1).unflatten(-1, (groups, width))
            found_x = found_x.flatten(-2).movedim(-1, 1).contiguous().movedim(1, -1).unflatten(-1, (groups, channels))
        shifted.forward(x, w, shifts, found_y, bias)
        shifted.adjoint(y, w, shifts, found_x, back)
        found_w = shifted.weights(x, y, shifts, dtype)
    assert torch.equal(found_y, forward)
    assert torch.equal(found_x, backward)
    assert torch.equal(found_w, weights)


@pytest.mark.parametrize(
    ("heads", "output", "suited"),
    [
        (1024, (10_000, 1), True),  # a step a head
        (1025, (10_000, 1), False),
        (4, (2, 2**20), True),  # numbers of a row of queries, if one channel comes out
        (5, (2, 2**20), False),
        (9, (2**20, 2), True),
    ],
)
def test_products_come_first_within_limits(heads: int, output: tuple[int, int], suited: bool):
    shifts = Shifts(tuple((h, 0) for h in range(heads)), (1, 1), output, output)
    assert narrow.suits(shifts, 1, 64) is suited


@settings(max_examples=3 * EXAMPLES)
@given(st.data())
def test_all_residues_at_once_are_the_adjoint(data: st.DataObject):
    """In integers: x[t] = b + Σ y[o] w_hᵀ over s·o + e_h = t; whichever residues have heads, and few of them or all."""
    d, images, channels, width = (data.draw(st.integers(1, n)) for n in (3, 3, 3, 3))

    def vector(least: int, most: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(least, most)) for _ in range(d))

    step = data.draw(st.sampled_from([step for step in product((1, 2, 3), repeat=d) if max(step) > 1]))
    shifts = Shifts(data.draw(aims(d)), step, vector(1, 6), vector(0, 5))
    todo = residues._windows(shifts)
    chosen = [through(shifts, r) for r in np.ndindex(shifts.step)]
    twice = any(len(set(there.offsets)) < len(there.offsets) and min(there.output) > 0 for _, there in chosen)
    seen = any(heads and min(there.output) > 0 for heads, there in chosen)
    several = sum(min(there.output) > 0 for _, there in chosen) > 1
    assert (todo is None) == (twice or not seen or not several or 0 in shifts.output)
    if todo is None:
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))

    def draw(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.integers(-4, 5, shape)).double()

    y, w, bias = draw(images, *shifts.output, width), draw(len(shifts.offsets), width, channels), draw(1, channels)
    expected = bias.expand(images, *shifts.size, channels).clone()
    for o in np.ndindex(shifts.output):
        for head, offset in enumerate(shifts.offsets):
            t = tuple(s * n + e for s, n, e in zip(shifts.step, o, offset, strict=True))
            if all(0 <= p < n for p, n in zip(t, shifts.size, strict=True)):
                expected[(slice(None), *t)] += y[(slice(None), *o)] @ w[head]
    found = torch.full_like(expected, torch.nan, dtype=data.draw(st.sampled_from([torch.float64, torch.float32])))
    if data.draw(st.booleans()):  # channels first
        found = found.movedim(-1, 1).contiguous().movedim(1, -1)
    given = bias if data.draw(st.booleans()) else None
    with pytest.MonkeyPatch.context() as patch, smaller_blocks(data.draw(st.sampled_from([1, 2, 10**9]))):
        patch.setattr(residues, "NARROW", data.draw(st.sampled_from([1, 16])))
        residues.by_residues(y, w, todo, shifts.step, found, given)
    assert torch.equal(found.double(), expected if given is not None else expected - bias)


def test_heads_far_from_each_other_are_not_brought_together():
    """All windows between would be laid out: one residue looks 10 000 tokens away from where the other does."""
    near = Shifts(((0,), (1,)), (2,), (400,), (200,))
    assert residues.windows(near, 1, 4, 4) is not None
    far = Shifts(((0,), (20_001,)), (2,), (400,), (200,))
    assert residues.windows(far, 1, 4, 4) is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("few", [0, 10**6], ids=["strided views", "side by side"])
@pytest.mark.parametrize("run", [1, 10**6], ids=["single heads", "runs"])
@pytest.mark.parametrize("queries", [6, 10**9])
def test_every_way_to_multiply_gives_the_same(
    few: int, run: int, queries: int, way: str | None, monkeypatch: pytest.MonkeyPatch
):
    prefer(way, monkeypatch)
    monkeypatch.setattr(layout, "FEW", few)
    monkeypatch.setattr(layout, "RUN", run)
    for kernel, padding, stride, groups in (
        ((3, 5), 2, 1, 1),
        ((3, 5), 2, 2, 1),
        ((3, 5), 2, 3, 2),
        (1, 0, 2, 1),
        (2, 0, 2, 1),
    ):
        conv = nn.Conv2d(4, 6, kernel, stride=stride, padding=padding, groups=groups)
        with torch.no_grad():
            conv.weight.copy_((8 * conv.weight).round())
            conv.bias.copy_((8 * conv.bias).round())  # type: ignore[union-attr]
            x = torch.randint(-5, 6, (2, 4, 9, 11)).float()
            for order in (None, torch.randperm(conv.weight[0, 0].numel()).tolist()):
                for given in (x, x.contiguous(memory_format=torch.channels_last)):
                    with smaller_blocks(queries):
                        assert torch.equal(conv_to_mhsa(conv, order=order)(given), conv(given))


def test_columns_of_queries_are_right_in_three_dimensions():
    """In integers; with rows of queries over several axes and images."""
    for conv in (
        nn.Conv3d(16, 8, 3, padding=1),
        nn.Conv3d(16, 8, (2, 3, 3), stride=(1, 2, 2), padding=(0, 1, 2)),
        nn.Conv3d(16, 8, 3, stride=(1, 3, 1)),
    ):
        with torch.no_grad():
            conv.weight.copy_((32 * conv.weight).round())
            conv.bias.copy_((8 * conv.bias).round())  # type: ignore[union-attr]
            x = torch.randint(-4, 5, (2, 16, 6, 9, 10)).float()
            for given in (x, x.contiguous(memory_format=torch.channels_last_3d)):
                assert torch.equal(conv_to_mhsa(conv)(given), conv(given))


@pytest.mark.parametrize("queries", [3, 10**9])
@pytest.mark.parametrize("conv", [
    nn.Conv1d(16, 24, 5, padding=3, dilation=2), nn.Conv1d(24, 16, 3, padding="same"), nn.Conv1d(16, 16, 4, bias=False),
    nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(2, 3, (2, 5), stride=(2, 3), padding=(1, 4)), nn.Conv2d(5, 2, (4, 1), padding=(3, 0)),
], ids=str)  # fmt: skip
def test_outputs_and_gradients_are_the_convolution_s_in_blocks_of_any_size(conv: nn.Module, queries: int):
    """In integers, where borders of several blocks fall on padding in different ways."""
    module: Any = conv.double()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_((8 * p).round())
    layer = conv_to_mhsa(module, order=torch.randperm(module.weight[0, 0].numel()).tolist())
    x = torch.randint(-4, 5, (2, module.in_channels, *(13, 11)[: module.weight.dim() - 2])).double().requires_grad_()
    found, expected = [], []
    for run, seen in ((layer, found), (module, expected)):
        with smaller_blocks(queries):
            for given in (x, x.movedim(1, -1).contiguous().movedim(-1, 1)):
                y = run(given)
                pulled = torch.arange(y.numel()).view_as(y).remainder(7).double()
                seen += [y, *torch.autograd.grad(y, [x], pulled)]
            weights = [layer.w_val, layer.w_out] if run is layer else [module.weight]
            y = run(x)
            seen.append(
                torch.autograd.grad(y, weights, torch.ones_like(y))[0] if run is module else kernel_gradient(layer, y)
            )
            with torch.no_grad():
                seen.append(run(x))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def kernel_gradient(layer: MHSA, y: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of y for the kernel, through the factor that carries it."""
    value, out = torch.autograd.grad(y, [layer.w_val, layer.w_out], torch.ones_like(y))
    whole = value if is_identity(layer.w_out) else out  # (heads, 1, C, D)
    moved = copy.deepcopy(layer)
    with torch.no_grad():
        (moved.w_val if whole is value else moved.w_out).copy_(whole)
    return moved.weight
