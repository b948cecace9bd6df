"""Attention through torch's fused kernel: which kernel runs, how exact its scores are, and what is refused."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from construct import MHSA, MHSAWeights, conv_to_mhsa
from construct.attention import EXECUTIONS
from construct.execution import chunked, precision, sdpa
from construct.execution.precision import Coarse
from construct.tokens import TokenGrid
from runs import SMALL, Operators, aim_anywhere, normal, peak_bytes
from truths import random_layer
from verify.layers.fields import Attention, Geometry
from verify.layers.reading import shift_box
from verify.layers.targets import score_rounding, target
from verify.strategies import Case, cases

EXAMPLES = settings().max_examples
UNIT = 2.0**-53


def both(layer: MHSA, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By ``sdpa`` and by ``dense``."""
    layer.execution = "sdpa"
    fused = layer(x)
    layer.execution = "dense"
    return fused, layer(x)


def switch_content_on(layer: MHSA, size: float, seed: int = 0) -> MHSA:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (layer.w_qry, layer.w_key, layer.u):
            tensor.copy_(size * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    return layer


def allowed(layer: MHSA, x: torch.Tensor) -> float:
    """A bound on the difference of two float64 executions: scores that round by ρ each, and rounding in softmax and products."""
    grid = TokenGrid.of(layer.geometry, tuple(x.shape[2:]))
    largest = precision.largest_encoding(layer, grid)
    tokens, total = grid.gather(x)[:, None], 0.0
    query, key = tokens @ layer.w_qry, tokens @ layer.w_key
    given = precision.precision(layer.v, layer.w_key_pos, largest, (query, query + layer.u[:, None], key))
    # Projections of a float64 layer round too, in D_in operations whose sizes their sums do not show.
    absolute = [tokens.abs() @ w.abs() for w in (layer.w_qry, layer.w_key)]
    sizes = (absolute[0], absolute[0] + layer.u[:, None].abs(), absolute[1])
    projected = precision.precision(layer.v, layer.w_key_pos, largest, sizes)
    for head, ((rho, _), (sized, _)) in enumerate(zip(given, projected, strict=True)):
        rho += sized * 2 * (layer.in_channels + 2)
        operations = 2 * grid.token_count + 16 + 12 * layer.geometry.dims + layer.in_channels + layer.w_val.shape[3]
        through = (layer.w_val[head].abs() @ layer.w_out[head].abs()).sum(1).amax().item()
        total += 2 * (math.expm1(2 * rho) + operations * UNIT) * through
    heads = layer.heads * UNIT * (layer.b_out.abs().amax().item() + layer.w_val.abs().sum().item())
    return total * x.abs().amax().item() + heads * (1 + x.abs().amax().item())


# ---- which kernel ran --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("content", [False, True], ids=["positions", "content"])
@pytest.mark.parametrize("one_by_one", [False, True], ids=["heads together", "one by one"])
@pytest.mark.parametrize("name", list(SMALL))
def test_the_fused_kernel_ran_for_every_head_and_nothing_else(
    name: str, one_by_one: bool, content: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """Forward and backward, without any T × T map."""
    geometry, size = SMALL[name]
    if one_by_one:  # as for large layers
        monkeypatch.setattr(chunked, "HEADS_BYTES", 1)
    layer = random_layer(geometry, dtype=dtype)
    if not content:
        switch_content_on(layer, 0.0).requires_grad_(False)
    layer.execution = "sdpa"
    x = normal(2, geometry.in_channels, *size).to(dtype).requires_grad_()
    calls = layer.heads if one_by_one else 1
    with Operators() as forward:
        y = layer(x)
    assert forward.calls["aten::_scaled_dot_product_flash_attention_for_cpu"] == calls
    assert not [called for called in forward.calls if "softmax" in called or "_math" in called]
    with Operators() as backward:
        y.float().sum().backward()
    assert backward.calls["aten::_scaled_dot_product_flash_attention_for_cpu_backward"] == calls
    assert not [called for called in backward.calls if "softmax" in called or "_math" in called]


def test_where_the_fused_kernel_does_not_suit_torch_says_so_and_takes_no_map(monkeypatch: pytest.MonkeyPatch):
    """Differing head sizes would silently take the slow path."""
    layer = conv_to_mhsa(nn.Conv2d(8, 8, 3, padding=1), execution="sdpa")
    monkeypatch.setattr(sdpa, "pad", lambda tensor, amount: tensor)
    with pytest.warns(UserWarning, match="[Ff]lash|kernel"), pytest.raises(RuntimeError, match="No available kernel"):
        layer(torch.ones(1, 8, 5, 5))


def test_a_device_without_the_kernel_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch):
    assert sdpa.runs_on(torch.device("cpu"))
    assert not sdpa.runs_on(torch.device("cuda"))
    layer = conv_to_mhsa(nn.Conv1d(1, 1, 3), execution="sdpa")
    monkeypatch.setattr(sdpa, "runs_on", lambda device: False)
    reason = "^MHSA: sdpa needs torch's fused attention in float64, and cpu has none$"
    with pytest.raises(NotImplementedError, match=reason):
        layer(torch.ones(1, 1, 5))
    assert not sdpa.admits(layer, TokenGrid.of(layer.geometry, (5,)))


# ---- the same function ---------------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES // 5)
@given(cases(tokens=80, dtypes=[torch.float64]), st.integers(0, 2**20), st.sampled_from([0.0, 0.3, 3.0]))
def test_it_equals_dense_wherever_the_heads_look_and_whatever_they_see(case: Case, seed: int, content: float):
    """With sharp and soft heads together, off the lattice, off the grid, with negative α, with and without content."""
    rng = np.random.default_rng(seed)
    layer = conv_to_mhsa(case.conv).requires_grad_(False)
    switch_content_on(layer, content, seed)
    aim_anywhere(layer, rng)
    x = case.x if case.x.dim() == layer.geometry.dims + 2 else case.x[None]
    if not x.numel():
        return
    x = x / x.abs().amax().clamp(min=1)  # content of 10⁶ would be refused
    fused, expected = both(layer, x)
    assert (fused - expected).abs().amax() <= allowed(layer, x)


@pytest.mark.parametrize("alpha", [0.7, 104.0])
def test_soft_attention_of_a_float32_layer_is_near_that_of_float64(alpha: float):
    """Off the lattice, on a grid long enough for several of the kernel's blocks; the benchmark's target is 1e−5."""
    layer = conv_to_mhsa(nn.Conv2d(3, 4, 3, padding=1), alpha=alpha, execution="sdpa").requires_grad_(False)
    layer.v[:, 1:] *= 1.3
    x = normal(1, 3, 40, 33).float()
    weights = MHSAWeights(**{name: p.double() for name, p in layer.named_parameters()})
    double = MHSA(layer.geometry, weights, execution="dense")
    assert (layer(x) - double(x.double())).abs().amax() <= 1e-6
    fused, expected = both(double, x.double())
    assert (fused - expected).abs().amax() <= allowed(double, x.double()) <= 1e-6


def test_gradients_are_those_of_dense_over_several_blocks_of_the_kernel():
    """A softened converted layer that learns content, with 729 keys and 625 queries; all eight tensors and the input."""
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1, dtype=torch.float64), alpha=0.5).requires_grad_()
    switch_content_on(layer, 0.2)
    x = normal(1, 2, 25, 25).requires_grad_()
    wanted = {"input": x, **dict(layer.named_parameters())}
    gradients = []
    for y in both(layer, x):
        pull = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
        gradients.append(torch.autograd.grad((y * pull).sum(), list(wanted.values())))
    for name, ours, theirs in zip(wanted, *gradients, strict=True):
        assert theirs.abs().amax() > 1e-3, name
        assert (ours - theirs).abs().amax() <= 1e-10 * theirs.abs().amax(), name


def test_heads_that_content_makes_sharp_are_exact_too():
    """With only uᵀ W_keyᵀ X_kᵀ, an integer for every key, each head takes the brightest token bit for bit."""
    layer = conv_to_mhsa(nn.Conv2d(1, 2, 3), execution="sdpa").requires_grad_(False)
    layer.v.zero_()
    layer.u.fill_(0)
    layer.u[:, 0] = 1024.0
    layer.w_key.fill_(1.0)
    layer.w_val.copy_((8 * layer.w_val).round())
    layer.w_out.copy_((8 * layer.w_out).round())
    layer.b_out.zero_()
    x = torch.randperm(99 * 2, generator=torch.Generator().manual_seed(0))[:, None].view(2, 1, 9, 11).float()
    expected = torch.einsum("b,hgie,hgeo->bo", x.amax((1, 2, 3)), layer.w_val, layer.w_out)
    y = layer(x)
    assert torch.equal(y, expected[:, :, None, None].expand_as(y))


@pytest.mark.parametrize("content", [False, True], ids=["positions", "content"])
def test_numbers_that_are_none_spread_as_they_do_in_dense(content: bool):
    for place in ("x", "v"):
        layer = conv_to_mhsa(nn.Conv2d(2, 2, 3, padding=1)).requires_grad_(False)
        switch_content_on(layer, float(content))
        x = torch.ones(1, 2, 5, 5)
        (x[0, 0] if place == "x" else layer.v)[1, 1] = torch.nan
        fused, expected = both(layer, x)
        assert torch.equal(fused.isnan(), expected.isnan())
        assert fused.isnan().all()


def test_a_parabola_is_taken_too_and_its_limits_are_those_of_dense():
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1), encoding="parabola").requires_grad_(False)
    fused, expected = both(layer, torch.arange(-49.0, 49).view(1, 2, 7, 7))
    torch.testing.assert_close(fused, expected, rtol=1e-6, atol=1e-5)
    layer.v.div_(1024.0)  # soft: it no longer factorises, and auto selects sdpa or dense
    fused, expected = both(layer.double(), normal(1, 2, 7, 7))
    torch.testing.assert_close(fused, expected, rtol=1e-9, atol=1e-9)
    layer.radix = (3, 1)
    for layer.execution in ("sdpa", "dense"):
        with pytest.raises(ValueError, match=r"^MHSA: the parabola of radix \(3, 1\) cannot number the shifts"):
            layer(normal(1, 2, 7, 7))


# ---- how exact the scores are --------------------------------------------------------------------------------------------


def scores_of(layer: MHSA, grid: TokenGrid, tokens: torch.Tensor | None) -> list[np.ndarray]:
    """The kernel's scores, multiplied out in float64 by torch: (queries, T) for each head."""
    nothing = torch.zeros(1, grid.token_count, layer.in_channels, dtype=torch.float64)
    products = sdpa.DotProducts(layer, nothing if tokens is None else tokens, grid, tokens is not None)
    with pytest.MonkeyPatch.context() as patch:  # the bound also holds for refused inputs
        patch.setattr(sdpa, "check_precision", lambda *_: None)
        q, k = products(slice(None))
    return [scores.numpy() for scores in (q @ k.mT)[0]]


def whole(tensor: torch.Tensor) -> Any:
    """The exact numbers, in an array of the same shape."""
    return np.vectorize(Fraction, otypes=[object])(tensor.double().numpy())


@settings(max_examples=EXAMPLES)
@given(
    st.sampled_from(list(SMALL)),
    st.integers(0, 2**20),
    st.sampled_from([1.0, 1024.0, 1e9]),
    st.integers(2, 5),
    st.sampled_from(["positions", "content", "parabola"]),
)
def test_scores_are_off_by_no_more_than_their_rounding(name: str, seed: int, size: float, longer: int, kind: str):
    """The difference of any two scores of a query against its exact value, for the layer's own numbers."""
    geometry, least = SMALL[name]
    sides = tuple(n + longer for n in least)
    grid = TokenGrid.of(geometry, sides)
    layer = random_layer(geometry, heads=1, seed=seed).requires_grad_(False)
    if kind == "parabola":
        w = {key: tensor.detach() for key, tensor in layer.named_parameters()}
        w["w_key_pos"] = w["w_key_pos"][:, :, :2].contiguous()
        radix = tuple((2 * 15 + 1) ** axis for axis in reversed(range(geometry.dims)))
        layer = MHSA(geometry, MHSAWeights(**w), radix=radix).requires_grad_(False)
    layer.v.mul_(size)
    tokens = normal(1, grid.token_count, layer.in_channels, seed=seed) if kind == "content" else None
    (scores,) = scores_of(layer, grid, tokens)
    v, w_key_pos = whole(layer.v[0]), whole(layer.w_key_pos[0])
    content = None
    if tokens is not None:
        query, key = (tokens[:, None, grid.query_tokens] @ layer.w_qry, tokens[:, None] @ layer.w_key)  # one head
        content = (query, query + layer.u[0], key)
    largest = precision.largest_encoding(layer, grid)
    ((rounding, _),) = precision.precision(layer.v, layer.w_key_pos, largest, content)
    if kind != "content":  # at most what a certificate allows
        aimed = target(Attention.read(layer), 0)
        box = shift_box(Geometry.read(layer), sides)
        assert box == grid.box
        if aimed is not None:
            same = float(score_rounding(Attention.read(layer), aimed, box))
            assert rounding == pytest.approx(same, rel=1e-9)

    def exact(q: int, k: int) -> Fraction:
        at, to = np.unravel_index(int(grid.query_tokens[q]), grid.shape), np.unravel_index(k, grid.shape)
        delta = [int(b) - int(a) for a, b in zip(at, to, strict=True)]
        if layer.radix is not None:
            delta = [sum(r * n for r, n in zip(layer.radix, delta, strict=True))]
        r = np.array([Fraction(n) for n in (sum(n * n for n in delta), *delta)])
        if content is None:
            return v @ w_key_pos @ r
        query, key = whole(content[0][0, 0, q]), whole(content[2][0, 0, k])
        return (query + v) @ w_key_pos @ r + (query + whole(layer.u[0])) @ key

    rng = np.random.default_rng(seed)
    for _ in range(4):
        q, one, other = int(rng.integers(grid.query_count)), *map(int, rng.integers(0, grid.token_count, 2))
        ours = Fraction(float(scores[q, one])) - Fraction(float(scores[q, other]))
        assert abs(ours - (exact(q, one) - exact(q, other))) <= Fraction(2 * rounding)


def test_rounding_is_not_far_above_what_happens():
    """On a wide grid, off the lattice, the bound is within a factor of 100."""
    layer = random_layer(SMALL["2-D, stride, groups"][0], heads=1, seed=3).requires_grad_(False)
    switch_content_on(layer, 0.0)
    grid = TokenGrid.of(layer.geometry, (60, 61))
    (scores,) = scores_of(layer, grid, None)
    largest = precision.largest_encoding(layer, grid)
    ((rounding, _),) = precision.precision(layer.v, layer.w_key_pos, largest)
    v, w_key_pos, worst = whole(layer.v[0]), whole(layer.w_key_pos[0]), 0.0
    at = [int(n) for n in np.unravel_index(int(grid.query_tokens[0]), grid.shape)]
    zero = Fraction(float(scores[0, int(grid.query_tokens[0])]))
    for k in range(0, grid.token_count, 37):
        delta = [int(b) - a for a, b in zip(at, np.unravel_index(k, grid.shape), strict=True)]
        truth = v @ w_key_pos @ np.array([Fraction(n) for n in (sum(n * n for n in delta), *delta)])
        worst = max(worst, float(abs(Fraction(float(scores[0, k])) - zero - truth)) / (2 * rounding))
    assert 0.01 < worst <= 1


# ---- what is refused -----------------------------------------------------------------------------------------------------


def test_a_head_whose_best_key_rounding_would_choose_is_refused_with_both_figures():
    layer = conv_to_mhsa(nn.Conv2d(1, 1, 3, padding=1)).requires_grad_(False)
    grid, x = TokenGrid.of(layer.geometry, (16, 16)), torch.ones(1, 1, 16, 16)
    for height in (1.0, 2.0**20, 2.0**60):  # fully sharp, on the lattice: never refused
        layer.v.mul_(height)
        assert sdpa.admits(layer, grid)
        layer.v.div_(height)
    layer.v[4, 1] = 1024.0  # halfway between two keys, each of which has half of the attention
    fused, expected = both(layer.double(), x.double())
    torch.testing.assert_close(fused, expected, rtol=1e-12, atol=1e-12)
    layer.v[4] *= 2.0**32
    assert not sdpa.admits(layer, grid)
    layer.execution = "sdpa"
    reason = r"^MHSA: sdpa would round the scores of head 4 by [\d.]+, and its best shift leads by 0$"
    with pytest.raises(NotImplementedError, match=reason):
        layer(x.double())


def test_the_default_sharpness_is_exact_enough_on_any_grid_that_fits():
    layer = conv_to_mhsa(nn.Conv2d(1, 1, 3, padding=1))
    assert sdpa.admits(layer, TokenGrid.of(layer.geometry, (20_000, 20_000)))
    line = conv_to_mhsa(nn.Conv1d(1, 1, 3))
    assert sdpa.admits(line, TokenGrid.of(line.geometry, (10**6,)))


def test_content_that_makes_scores_too_coarse_is_refused_and_auto_takes_another_way():
    """No plan can foresee this, because it depends on the input."""
    layer = conv_to_mhsa(nn.Conv1d(2, 2, 3, padding=1, dtype=torch.float64)).requires_grad_(False)
    switch_content_on(layer, 1.0)
    x = normal(1, 2, 2000)
    grid = TokenGrid.of(layer.geometry, (2000,))
    assert sdpa.admits(layer, grid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("construct.execution.SMALL_BYTES", 0)
        patch.setattr("construct.execution.DENSE_BYTES", 0)
        layer.execution = "auto"
        assert " sdpa here: " in layer.explain(x.shape).splitlines()[-1]
        near = layer(x)
        with pytest.MonkeyPatch.context() as without:
            without.setattr(sdpa, "admits", lambda layer, grid: False)
            torch.testing.assert_close(near, layer(x), rtol=1e-6, atol=1e-6)
        layer.execution = "sdpa"
        with pytest.raises(Coarse, match="would round the scores of head 0"):
            layer(1e8 * x)
        layer.execution = "auto"
        far = layer(1e8 * x)
        layer.execution = "chunked"
        assert torch.equal(far, layer(1e8 * x))


# ---- memory and certificates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("train", [False, True], ids=["forward", "forward and backward"])
def test_memory_grows_as_the_tokens_do(train: bool):
    """Measured: 1600 tokens would take 20 MB per map, and four times the tokens take about four times the memory."""
    layer = switch_content_on(conv_to_mhsa(nn.Conv2d(4, 4, 3, padding=1), execution="sdpa"), 0.1).requires_grad_(train)

    def peak(side: int) -> int:
        x = torch.ones(1, 4, side, side)

        def call() -> object:
            y = layer(x)
            return torch.autograd.grad(y.sum(), list(layer.parameters())) if train else y

        return peak_bytes(call)

    small, large = peak(20), peak(40)
    assert large <= 5e6
    assert large <= 4.5 * small
    count = EXECUTIONS["sdpa"].memory
    near, far = (count(layer, 1, TokenGrid.of(layer.geometry, (side, side))) for side in (200, 400))
    assert far <= 4.1 * near


def test_it_is_differentiated_once_and_a_second_time_is_refused():
    layer = conv_to_mhsa(nn.Conv1d(1, 1, 3, dtype=torch.float64), execution="sdpa")
    x = normal(1, 1, 5).requires_grad_()
    (slope,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative"):
        slope.sum().backward()
