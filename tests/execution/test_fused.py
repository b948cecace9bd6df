"""Attention with content in blocks of queries: the same function as ``dense``, in memory that grows as the tokens do."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

from construct import MHSA, conv_to_mhsa
from construct.attention import EXECUTIONS, smaller_blocks
from construct.tokens import TokenGrid
from runs import SMALL, Operators, aim_anywhere, axial_and_dense, normal, peak_bytes
from truths import layer_of, random_layer
from verify.strategies import Case, cases

FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"


def switch_content_on(layer: MHSA, size: float, seed: int = 0) -> MHSA:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (layer.w_qry, layer.w_key, layer.u):
            tensor.copy_(size * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    return layer


def allowed(layer: MHSA, x: torch.Tensor, unit: float) -> float:
    """A bound on the difference of two evaluations whose content and values round by ``unit``, and positions by 2⁻⁵³.

    Scores that are off by ρ change the ratio of two weights by a factor of at most e^{2ρ}.
    """
    grid = TokenGrid.of(layer.geometry, tuple(x.shape[2:]))
    tokens, key_dim = grid.gather(x).double(), layer.w_key_pos.shape[1]
    sizes = {name: tensor.detach().double().abs() for name, tensor in layer.named_parameters()}
    query, key = (tokens.abs()[:, None] @ sizes[name] for name in ("w_qry", "w_key"))  # (B, heads, T, D_k)
    r = layer.encoding.r(grid).abs().amax(1)
    positions = torch.einsum("hk,hkp,p->h", sizes["v"], sizes["w_key_pos"], r)
    content = torch.einsum("bhk,hkp,p->bh", query.amax(2), sizes["w_key_pos"], r)
    content += torch.einsum("bhk,bhk->bh", query.amax(2) + sizes["u"], key.amax(2))
    operations = 2 * (key_dim + layer.in_channels + len(r) + 4)
    rho = operations * (2.0**-53 * positions.amax() + unit * content.amax()) + unit * 750
    through = torch.einsum("hgie,hgeo->go", sizes["w_val"], sizes["w_out"]).amax()
    products = 2 * (grid.token_count + layer.in_channels + layer.w_val.shape[3] + layer.heads + 4) * unit
    size = float(through * tokens.abs().amax() * layer.in_channels + layer.b_out.detach().abs().amax())
    return float(2 * torch.expm1(2 * rho) + 2 * products) * size


@settings(max_examples=settings().max_examples // 2)
@given(
    cases(tokens=80, dtypes=[torch.float32, torch.float64]),
    st.integers(0, 2**20),
    st.sampled_from([0.0, 0.01, 0.3, 3.0]),
    st.sampled_from([1, 7, 10**9]),
)
def test_it_equals_dense_wherever_the_heads_look_and_whatever_they_see(
    case: Case, seed: int, content: float, queries: int
):
    """With sharp and soft heads together, off the lattice, off the grid, with negative α, and twice at one place."""
    layer = conv_to_mhsa(case.conv).requires_grad_(False)
    switch_content_on(layer, content, seed)
    aim_anywhere(layer, np.random.default_rng(seed))
    x = case.x if case.x.dim() == layer.geometry.dims + 2 else case.x[None]
    if not x.numel():
        return
    x = x / x.abs().amax().clamp(min=1)
    with smaller_blocks(queries):
        fused, expected = axial_and_dense(layer, x)
    assert (fused - expected).abs().amax() <= allowed(layer, x, torch.finfo(x.dtype).eps)


@pytest.mark.parametrize("kind", ["quadratic", "covariance", "relative", "taps"])
def test_content_that_asks_for_positions_is_that_of_dense_in_float32(kind: str):
    """All four terms of Eq. 6, in a layer of float32 beside the same layer in float64."""
    double = layer_of(kind, SMALL["2-D, stride, groups"][0], content=True, seed=1, heads=3).requires_grad_(False)
    x = normal(2, double.in_channels, 5, 6)
    single = layer_of(kind, SMALL["2-D, stride, groups"][0], content=True, seed=1, heads=3).requires_grad_(False)
    single.float().execution = "axial"
    double.execution = "dense"
    assert (single(x.float()) - double(x)).abs().amax() <= allowed(double, x, 2.0**-23)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", list(SMALL))
def test_torchs_fused_kernel_runs_once_a_block(name: str, dtype: torch.dtype):
    geometry, size = SMALL[name]
    layer = random_layer(geometry, dtype=dtype).requires_grad_(False)
    layer.execution = "axial"
    x = normal(2, geometry.in_channels, *size).to(dtype)
    with Operators() as whole:
        layer(x)
    with Operators() as blocks, smaller_blocks(1):
        layer(x)
    assert whole.calls[FUSED] == 1
    assert blocks.calls[FUSED] == TokenGrid.of(geometry, size).query_count
    assert not [called for called in whole.calls if "softmax" in called or "_math" in called]


@pytest.mark.parametrize("aside", [0.0, 8.0])
def test_two_keys_whose_scores_are_high_and_close_share_the_attention_as_in_dense(aside: float):
    """Keys 40 and 41 tokens away score 1.7e9, which float32 rounds to multiples of 128, and differ by 0 or 8."""
    layer = switch_content_on(conv_to_mhsa(nn.Conv1d(1, 1, 1)), 1e-3).requires_grad_(False)
    layer.v[0, :2] = torch.tensor([-(2.0**20), 81 * 2.0**20 + aside])
    fused, expected = axial_and_dense(layer, normal(1, 1, 90).float())
    torch.testing.assert_close(fused, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out", "offsets_1"])
@pytest.mark.parametrize("content", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_backward_pass_after_a_change_in_place_is_refused_or_right(name: str, content: bool, frozen: bool):
    """It computes the scores again, and may not take other numbers for them."""
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 2).double()

    def gradient(changed: bool) -> torch.Tensor:
        layer, x = conv_to_mhsa(conv, alpha=2.0, execution="axial"), normal(2, 2, 4, 4).requires_grad_()
        switch_content_on(layer, 0.5 if content else 0.0)
        if name == "offsets_1":
            layer = layer_of("relative", layer.geometry, content)
            layer.execution = "axial"
        y = layer.requires_grad_(not frozen)(x)
        if changed:
            with torch.no_grad():
                getattr(layer, name).mul_(1.5).add_(0.1)
        return torch.autograd.grad(y.square().sum(), x)[0]

    try:
        after = gradient(changed=True)
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
    else:
        torch.testing.assert_close(after, gradient(changed=False))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own
def test_torch_func_maps_and_differentiates_content():
    layer = switch_content_on(conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1, dtype=torch.float64), alpha=0.5), 0.2)
    parameters, x = {key: p.detach() for key, p in layer.named_parameters()}, normal(2, 2, 5, 4)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(layer, parameters, (x,)).square().sum()

    def results() -> object:
        each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
        along = jvp(partial(functional_call, layer, parameters), (x[:1],), (x[1:],))
        return each, along, vmap(layer)(x)

    layer.execution = "axial"
    ours = results()
    layer.execution = "dense"
    torch.testing.assert_close(ours, results(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("train", [False, True], ids=["forward", "forward and backward"])
def test_memory_grows_as_the_tokens_do(train: bool):
    """Where maps of all queries would take 20 and 330 MB, four times the tokens take about four times the memory."""
    layer = switch_content_on(conv_to_mhsa(nn.Conv2d(4, 4, 3, padding=1), execution="axial"), 0.1).requires_grad_(train)

    def peak(side: int) -> int:
        x = torch.ones(1, 4, side, side)

        def call() -> object:
            y = layer(x)
            return torch.autograd.grad(y.sum(), list(layer.parameters())) if train else y

        return peak_bytes(call)

    with smaller_blocks(20):
        small, large = peak(20), peak(40)
    assert large <= 7e6
    assert large <= 4.5 * small
    count = EXECUTIONS["axial"].memory
    near, far = (count(layer, 1, TokenGrid.of(layer.geometry, (side, side))) for side in (200, 400))
    assert far <= 4.1 * near
