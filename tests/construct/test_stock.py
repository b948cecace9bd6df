"""The same function inside a stock nn.MultiheadAttention, and the kernel read back out of one."""

import copy
import io
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import construct
from construct import MHSA, ConvGeometry, MHSAWeights, UnsupportedLayer, conv_to_mhsa
from construct import errors as room
from construct.errors import NotEnoughMemory
from construct.stock import layer as stock
from construct.stock.dot_products import HeadCentre
from construct.stock.layout import TokenLayout
from construct.tokens import TokenGrid
from runs import convolution_calls, peak_bytes
from truths import exact, excess, paper, random_layer
from verify.strategies import Case, cases

FULL = (torch.float32, torch.float64)


def size_of(conv: Any, x: torch.Tensor) -> tuple[int, ...]:
    return tuple(x.shape[x.dim() - conv.weight.dim() + 2 :])


def refused(reason: str) -> Any:
    return pytest.raises(UnsupportedLayer, match=rf"\A[^\n]*{reason}[^\n]*\Z")  # in one line


def small(dims: int = 2, **options: Any) -> tuple[Any, MHSA]:
    """A small convolution with normal samples, and its layer; four taps in two dimensions, so an even number of heads."""
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    conv = kind(2, 3, 2, padding=1, **options)
    return conv, conv_to_mhsa(conv)


def small_stock(grid: tuple[int, ...] = (4, 4), **options: Any) -> tuple[Any, MHSA, stock.StockAttention]:
    """:func:`small`, and its layer inside a stock attention."""
    conv, layer = small(**options)
    return conv, layer, construct.to_torch_mha(layer, grid)


def is_no_kernel(attention: Any, reason: str, *where: Any) -> None:
    """Assert that no kernel can be read out of it, for this reason."""
    with refused(reason):
        construct.from_torch_mha(attention, *where)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def scores_of(module: stock.StockAttention, x: torch.Tensor) -> torch.Tensor:
    """The attention weights (B, heads, T, T) that torch itself returns."""
    tokens = module.tokens(x)
    return module.attention(tokens, tokens, tokens, need_weights=True, average_attn_weights=False)[1]


@settings(max_examples=2 * settings().max_examples)
@given(cases(dtypes=FULL, tokens=80), st.booleans(), st.sampled_from(["quadratic", "parabola"]))
def test_it_computes_the_convolution_and_gives_the_kernel_back(case: Case, bias: bool, encoding: str):
    """On every geometry, bit for bit on small integers, else within the attention's rounding."""
    layer = conv_to_mhsa(case.conv, encoding=encoding)
    module = construct.to_torch_mha(layer, size_of(case.conv, case.x), bias=bias)
    assert [type(m) for m in module.modules()].count(nn.MultiheadAttention) == 1
    with torch.no_grad():
        y = module(case.x)
    if case.integers:
        assert torch.equal(y.double(), exact(case.conv, case.x))
    else:
        assert excess(case.conv, layer, case.x, y) <= 1
    back = construct.from_torch_mha(module)
    assert torch.equal(back.weight, case.conv.weight)
    assert torch.equal(back.b_out, torch.zeros_like(back.b_out) if case.conv.bias is None else case.conv.bias)
    assert back.bias is not None or not back.b_out.any()
    assert back.geometry == layer.geometry


@settings(max_examples=2 * settings().max_examples)
@given(cases(dtypes=FULL, tokens=80, transposed=[False], padding_modes=["zeros"], most_stride=2), st.booleans())
def test_a_null_token_stands_for_all_padding(case: Case, bias: bool):
    """Bit for bit on small integers, with the image's own tokens alone; refused where a query is none of these."""
    layer = conv_to_mhsa(case.conv)
    size = size_of(case.conv, case.x)
    grid = TokenGrid.of(layer.geometry, size)
    axes = zip(grid.first, grid.step, grid.query_shape, grid.pads, size, strict=True)
    if any(a < before or a + s * (o - 1) >= before + n for a, s, o, (before, _), n in axes):
        with refused("the query of some output is a padding token"):
            construct.to_torch_mha(layer, size, null_token=True)
        return
    bias = bias or bool(layer.b_out.any())
    module = construct.to_torch_mha(layer, size, bias=bias, null_token=True)
    assert len(module.sources) == prod(size)
    with torch.no_grad():
        y = module(case.x)
        weights = scores_of(module, torch.zeros(1, case.conv.in_channels, *size, dtype=y.dtype))
    assert set(weights.unique().tolist()) <= {0, 1}
    assert weights.shape[3] == prod(size) + 1
    if case.integers:
        assert torch.equal(y.double(), exact(case.conv, case.x))
    else:
        assert excess(case.conv, layer, case.x, y) <= 1
    assert torch.equal(construct.from_torch_mha(module).weight, case.conv.weight)


NO_NULL: dict[str, tuple[Callable[[], MHSA], dict[str, Any], str]] = {
    "reflect": (lambda: conv_to_mhsa(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")), {}, "nothing else"),
    "transposed": (lambda: conv_to_mhsa(nn.ConvTranspose2d(1, 1, 3, stride=2)), {}, "nothing else"),
    "cropped": (lambda: conv_to_mhsa(nn.ConvTranspose2d(1, 1, 1, padding=1)), {}, "nothing else"),
    "soft": (lambda: conv_to_mhsa(nn.Conv2d(1, 1, 3, padding=1), alpha=2.0), {}, "only one-hot heads"),
    "no biases": (lambda: conv_to_mhsa(nn.Conv2d(1, 1, 3, padding=1)), {"bias": False}, "take bias=True"),
    "off the grid": (lambda: edited(lambda layer: layer.v[:, 1].fill_(2**13)), {}, r"head 0 looks at \(4, 0\), off"),
}


@pytest.mark.parametrize("name", NO_NULL)
def test_where_a_null_token_is_not_the_padding_it_is_refused(name: str):
    build, options, reason = NO_NULL[name]
    with refused(reason):
        construct.to_torch_mha(build(), (4, 4), null_token=True, **options)


@pytest.mark.parametrize("name", ["in_proj_weight", "in_proj_bias"])
def test_a_fault_beside_a_null_token_is_found(name: str):
    """Each number of queries and keys, changed, is seen, but for those that no score takes part of."""
    conv = nn.Conv1d(1, 1, 3, padding=1)
    module = construct.to_torch_mha(conv_to_mhsa(conv), (4,), null_token=True)
    numbers = getattr(module.attention, name).detach()
    width = module.attention.embed_dim
    for place in numbers[: 2 * width].nonzero().tolist():
        kept = numbers[tuple(place)].clone()
        numbers[tuple(place)] = kept * 3
        is_no_kernel(module.attention, "fixed shift|looks at", module.geometry, (4,))
        numbers[tuple(place)] = kept
    assert torch.equal(construct.from_torch_mha(module).weight, conv.weight)
    numbers[2 * width] += 1  # a value's constant: lost where the null token is read
    is_no_kernel(module.attention, "hold a constant" if name.endswith("bias") else "", module.geometry, (4,))


@pytest.mark.parametrize("alpha", [1.0, 0.25, 3.0, 60.0])
@pytest.mark.parametrize("dtype", FULL, ids=str)
def test_soft_heads_are_the_same_soft_heads(alpha: float, dtype: torch.dtype):
    """Also off the lattice, where the head size is a power of 16 and scores are exact."""
    geometry = ConvGeometry(2, 3, (2, 2), (2, 1), (1, 2), "reflect", (1, 1), 1)
    layer = random_layer(geometry, heads=3, key_dim=3, seed=1, dtype=dtype)
    with torch.no_grad():
        for tensor in (layer.w_qry, layer.w_key, layer.u):
            tensor.zero_()
        layer.w_key_pos.copy_(torch.eye(3).expand(3, 3, 3))
        layer.v.copy_(-alpha * torch.tensor([[1, -2, 0], [1, -0.5, 1.5], [1, -14, 6.0]]))
        module = construct.to_torch_mha(layer, (5, 4))
        assert module.attention.head_dim == 16
        x = normal(1, 2, 5, 4, dtype=dtype)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(
            scores_of(module, x)[:, :, module.query_tokens].double(),
            layer.attention_probabilities(x),
            rtol=2000 * eps,  # e^−s errs by s roundings of s, and no relevant s exceeds a thousand
            atol=2 * torch.finfo(dtype).tiny,
        )
        torch.testing.assert_close(module(x).double().numpy(), paper(layer, x), rtol=1e3 * eps, atol=1e2 * eps)
    is_no_kernel(module, "not surely one-hot|between positions|no tap")


def test_it_executes_no_convolution():
    for conv in (nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ConvTranspose1d(2, 2, 2, stride=2)):
        x = torch.ones(2, conv.in_channels, *(4,) * (conv.weight.dim() - 2), requires_grad=True)
        module = construct.to_torch_mha(conv_to_mhsa(conv), size_of(conv, x))
        assert not convolution_calls(lambda module=module, x=x: module(x).sum().backward())


@pytest.mark.parametrize("grid", [(28,), (28, 28), (200,), (600,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_do_not_feel_the_size_of_scores(grid: tuple[int, ...], dtype: torch.dtype):
    """Scores are large and rounded; a fused backward pass would take exp of their errors."""
    conv = (nn.Conv1d if len(grid) == 1 else nn.Conv2d)(2, 3, 3, padding=1, dtype=dtype)
    x = torch.randint(-8, 9, (1, 2, *grid)).to(dtype)
    ways = torch.randint(-8, 9, (1, 3, *grid)).to(dtype)
    with torch.no_grad():
        conv.weight.copy_(torch.randint_like(conv.weight, -8, 9))
        stock = construct.to_torch_mha(construct.conv_to_mhsa(conv), grid=grid)
    gradients = []
    for module in (conv, stock):
        given = x.clone().requires_grad_()
        (module(given) * ways).sum().backward()
        gradients.append(given.grad)
    assert torch.equal(*gradients)
    out_bias = stock.attention.out_proj.bias.grad
    assert out_bias is not None
    assert torch.equal(out_bias[:3], ways.sum(tuple(range(2, ways.dim())))[0])
    weights = stock.attention.in_proj_weight.grad
    assert weights is not None
    assert not weights[: 2 * stock.attention.embed_dim].any()  # of queries and keys


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch calls it for forward derivatives
@pytest.mark.parametrize("frozen", [True, False])
def test_transforms_of_functions_take_it(frozen: bool):
    conv, _, module = small_stock()
    module.requires_grad_(not frozen)
    x, along = normal(2, 2, 4, 4), normal(2, 2, 4, 4)
    for transform in (torch.vmap, torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(module)(x), transform(conv)(x), rtol=1e-5, atol=1e-5)
    derivatives = [torch.func.jvp(f, (x,), (along,))[1] for f in (module, conv)]
    torch.testing.assert_close(*derivatives, rtol=1e-5, atol=1e-5)


def line(length: int, dtype: torch.dtype = torch.float32) -> tuple[Any, MHSA, torch.Tensor]:
    """A 1-D layer on a long input with few queries."""
    conv = nn.Conv1d(1, 1, 3, stride=max(1, length // 40), dtype=dtype)
    return conv, conv_to_mhsa(conv), normal(1, 1, length, dtype=dtype)


@pytest.mark.parametrize(("length", "head_dim"), [(1190, 2), (1210, 16), (4725, 16), (960, 3)])
def test_up_to_the_limit_it_is_one_hot_on_every_path(length: int, head_dim: int):
    conv, layer, x = line(length)
    module = construct.to_torch_mha(layer, (length,), null_token=length == 960).eval()
    assert module.attention.head_dim == head_dim
    tokens = module.tokens(x)
    with torch.no_grad():
        assert excess(conv, layer, x, module(x)) <= 1
        y, weights = module.attention(tokens[:, module.query_tokens], tokens, tokens, average_attn_weights=False)
        assert set(weights.unique().tolist()) == {0, 1}
        assert torch.equal(weights[..., :length].double(), layer.attention_probabilities(x))
        assert excess(conv, layer, x, y[..., :1].transpose(1, 2)) <= 1
        with sdpa_kernel(SDPBackend.MATH):
            assert excess(conv, layer, x, module(x)) <= 1
    assert torch.equal(construct.from_torch_mha(module).weight, conv.weight)


def test_beyond_the_limit_it_is_refused_and_would_be_wrong(monkeypatch: pytest.MonkeyPatch):
    conv, layer, x = line(20000)
    with refused(r"float32 cannot hold the scores: on a padded grid of \(20000,\) head 0's reach 3e\+08·α"):
        construct.to_torch_mha(layer, (20000,))
    with refused("float32 cannot hold the scores"):
        construct.to_torch_mha(line(1000)[1], (1000,), null_token=True)
    conv64, layer64, x64 = line(20000, torch.float64)
    double = construct.to_torch_mha(layer64, (20000,))
    with torch.no_grad():
        assert excess(conv64, layer64, x64, double(x64)) <= 1
        with refused("float32 cannot hold"):
            double.float()
        assert {t.dtype for t in double.parameters()} == {torch.float64}  # nothing was changed
        monkeypatch.setattr(stock, "head_size", lambda centres, layout, least, _: least)
        wrong = construct.to_torch_mha(layer, (20000,))
        assert excess(conv, layer, x, wrong(x)) > 1
    is_no_kernel(wrong.attention, "not surely one-hot", layer.geometry, (20000,))


def layout_of(shape: Sequence[int], dtype: torch.dtype, null: bool = False) -> TokenLayout:
    """The tokens of a convolution without padding."""
    ones = (1,) * len(shape)
    geometry = ConvGeometry(1, 1, ones, ones, "valid", "zeros", ones, 1)
    return TokenLayout(geometry, TokenGrid.of(geometry, tuple(shape)), dtype, True, null)


@given(
    st.integers(1, 3).flatmap(lambda d: st.lists(st.integers(1, 60), min_size=d, max_size=d)),
    st.sampled_from([1, 2, 3, 4, 16, 48, 64, 300]),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
def test_the_bounds_hold_in_exact_arithmetic(shape: list[int], head_dim: int, dtype: torch.dtype, null: bool):
    """Scores as torch evaluates them are within the allowed error, in float32 where the bound is largest."""
    tau = [(-1) ** i * (i + 1) for i in range(len(shape))]
    aim = HeadCentre(Fraction(1024), tuple(map(Fraction, tau)))
    axes = [sorted({-(n // 2), 0, (n - 1) // 2, -(n // 3)}) for n in shape]
    points = torch.cartesian_prod(*(torch.tensor(a) for a in axes)).reshape(-1, len(shape))
    beta = float(aim.factor(head_dim))
    key = torch.cat([(points**2).sum(1, keepdim=True), points], 1).to(dtype)
    query = torch.cat([-torch.ones(len(points), 1), 2 * (points + torch.tensor(tau))], 1).to(dtype) * beta
    if null:
        key = torch.cat([key, torch.ones(len(points), 1, dtype=dtype)], 1)
        rest = 0.5 - (points + torch.tensor(tau)).double().square().sum(1, keepdim=True)
        query = torch.cat([query, rest.to(dtype) * beta], 1)
    alpha = beta / head_dim**0.5
    assert 1024 * (1 - 1e-15) <= alpha < 2048
    allowed = (len(shape) + 6 + null) * torch.finfo(dtype).eps / 2 * alpha * aim.size(layout_of(shape, dtype, null))
    truth = (query.double() @ key.double().T) / head_dim**0.5  # integers times β: exact until the division
    for scores in (
        (query * head_dim**-0.5) @ key.T,
        (query * head_dim**-0.25) @ (key * head_dim**-0.25).T,
        (query @ key.T) * head_dim**-0.5,
    ):
        error = (scores.double() - truth).abs() - 4 * torch.finfo(torch.float64).eps * truth.abs()
        assert bool((error <= allowed + torch.finfo(dtype).eps * truth.abs()).all())  # the scale's own is common to all


def test_scores_that_would_overflow_are_not_exact():
    half = (Fraction(1, 2),)
    double, single = (layout_of([2**9], dtype) for dtype in (torch.float64, torch.float32))
    assert HeadCentre(Fraction(2**110), half).is_exact(double, 16)
    assert not HeadCentre(Fraction(2**110), half).is_exact(single, 16)
    assert HeadCentre(Fraction(2**90), half).is_exact(single, 16)
    assert not HeadCentre(Fraction(2**90, 3), half).is_exact(single, 16)


def edited(edit: Callable[[Any], Any]) -> MHSA:
    layer = small()[1]
    with torch.no_grad():
        edit(layer)
    return layer


NO_FORM: dict[str, tuple[Callable[[], Any], str]] = {
    "a convolution": (lambda: small()[0], "Conv2d: not an attention layer"),
    "content": (lambda: edited(lambda layer: layer.w_qry.fill_(0.1)), "depend on the content"),
    "float16": (lambda: small(dtype=torch.float16)[1], "torch.float16 cannot hold"),
    "bfloat16": (lambda: small(dtype=torch.bfloat16)[1], "torch.bfloat16 cannot hold"),
    "soft": (
        lambda: conv_to_mhsa(small()[0], alpha=0.7),
        r"head 0 is not one-hot \(α = 0.7\), and its scores are not exact",
    ),
    "a soft parabola": (lambda: conv_to_mhsa(small()[0], alpha=1.0, encoding="parabola"), "parabola is not one-hot"),
    "meta": (lambda: small()[1].to("meta"), "meta device"),
    # 1/√D times that would underflow
    "all but flat": (lambda: conv_to_mhsa(small()[0], alpha=2.0**-140), "head 0 is not one-hot .* not exact"),
    "flat": (lambda: edited(lambda layer: layer.v[1].zero_()), "head 1 has no centre"),
    "no number": (lambda: edited(lambda layer: (layer.v[1].zero_(), layer.w_val.fill_(torch.nan))), "not finite"),
}


@pytest.mark.parametrize("name", NO_FORM)
def test_what_has_no_such_form_is_refused(name: str):
    build, reason = NO_FORM[name]
    with refused(reason):
        construct.to_torch_mha(build(), (4, 4))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_a_parabola_that_looks_off_the_grid_is_refused(order: list[int]):
    """Off the grid, the nearest key by number may not be the nearest by distance."""
    parabola = conv_to_mhsa(nn.Conv1d(2, 3, 3, padding=1), encoding="parabola", order=order)
    weights = MHSAWeights(**{name: tensor.detach() for name, tensor in parabola.named_parameters()})
    bare = MHSA(ConvGeometry(2, 3, (1,), (1,), (0,), "zeros", (1,), 1), weights, radix=parabola.radix)
    with refused(r"head 0 looks at \(-?1\), off the padded grid"):
        construct.to_torch_mha(bare, (4,))


def test_a_parabola_that_cannot_number_the_grid_is_refused():
    layer = conv_to_mhsa(nn.Conv3d(1, 1, 1), encoding="parabola")
    assert construct.to_torch_mha(layer, (1, 1, 50))
    with refused("cannot number the shifts"):
        construct.to_torch_mha(layer, (1, 1, 100))


@pytest.mark.parametrize("grid", [(4,), (4, 4, 4), [4, 4], 4, (4, 0), (4.0, 4), (True, 4), None])
def test_a_grid_that_is_none_is_refused(grid: Any):
    with pytest.raises(ValueError, match=r"\AMHSA: [^\n]*\Z"):
        construct.to_torch_mha(small()[1], grid)


def test_what_does_not_fit_is_refused_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch):
    layer = conv_to_mhsa(nn.Conv2d(128, 128, 5))
    monkeypatch.setattr(room, "available_bytes", lambda device: 2**20)
    with pytest.raises(NotEnoughMemory, match=r"a stock attention of 25 heads of size 128 needs 0.2 GiB"):
        construct.to_torch_mha(layer, (8, 8))
    with pytest.raises(NotEnoughMemory, match="numbering the padded grid"):
        construct.to_torch_mha(conv_to_mhsa(nn.Conv2d(1, 1, 1)), (2**40, 2**40))
    monkeypatch.undo()
    module = construct.to_torch_mha(conv_to_mhsa(nn.Conv1d(1, 1, 3)), (1000,))
    monkeypatch.setattr(room, "available_bytes", lambda device: 2**20)
    with pytest.raises(NotEnoughMemory, match="over 998 queries and 1000 keys"):
        module(torch.zeros(2**12, 1, 1000))


@pytest.mark.parametrize("grad", [False, True])
def test_its_memory_is_bounded_by_the_estimate(grad: bool, monkeypatch: pytest.MonkeyPatch):
    conv = nn.Conv2d(8, 8, 3, padding=1, stride=2)
    module = construct.to_torch_mha(conv_to_mhsa(conv), (24, 24))
    x = torch.ones(4, 8, 24, 24)
    asked: list[int] = []
    monkeypatch.setattr(stock, "require", lambda needed, device, what: asked.append(needed))
    with torch.set_grad_enabled(grad):
        module(x)
        real = peak_bytes(lambda: module(x))
    assert real <= asked[0] <= 4 * real


@pytest.mark.parametrize(
    "x",
    [torch.ones(1, 3, 4, 4), torch.ones(4, 4), torch.ones(1, 2, 4, 5), torch.ones(1, 2, 4, 4).double()],
    ids=["channels", "rank", "size", "dtype"],
)
def test_inputs_that_do_not_fit_are_refused(x: torch.Tensor):
    with pytest.raises(RuntimeError, match=r"\AMHSA: [^\n]*\Z"):
        construct.to_torch_mha(small()[1], (4, 4))(x)


def test_it_is_a_module_like_any_other():
    conv, layer = small()
    state = torch.get_rng_state()
    module = construct.to_torch_mha(layer.eval(), (4, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert not module.training
    names = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    assert list(module.state_dict()) == [f"attention.{name}" for name in names]
    x = normal(2, 4, 4)
    expected = module(x)
    assert expected.shape == conv(x).shape
    assert torch.equal(module.train()(x), expected)
    kept = io.BytesIO()
    torch.save(module, kept)
    kept.seek(0)
    for same in (copy.deepcopy(module), torch.load(kept, weights_only=False), module.double().float()):
        assert torch.equal(same(x), expected)
        assert torch.equal(construct.from_torch_mha(same).weight, conv.weight)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for cast in (module.half, module.bfloat16):
        with refused("cannot hold coordinates"):
            cast()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(x), expected.bfloat16())
    assert "grid=(4, 4)" in repr(module)


def test_what_was_frozen_stays_frozen():
    conv, _ = small()
    conv.weight.requires_grad_(False)
    module = construct.to_torch_mha(conv_to_mhsa(conv), (4, 4))
    assert [name for name, p in module.named_parameters() if p.requires_grad] == ["attention.out_proj.bias"]
    _, _, module = small_stock()
    assert [name for name, p in module.named_parameters() if not p.requires_grad] == ["attention.in_proj_bias"]


def test_the_tensors_load_into_a_plain_transformer():
    """And the kernel is read out of that transformer's attention."""
    conv, layer, module = small_stock()
    a = module.attention
    encoder = nn.TransformerEncoderLayer(a.embed_dim, a.num_heads, batch_first=True).eval()
    plain: Any = encoder.self_attn
    plain.load_state_dict(a.state_dict())
    tokens = module.tokens(normal(2, 2, 4, 4))
    assert torch.equal(plain(tokens, tokens, tokens)[0], a(tokens, tokens, tokens)[0])
    back = construct.from_torch_mha(plain, layer.geometry, (4, 4))
    assert torch.equal(back.weight, conv.weight)
    assert back.bias is not None
    assert torch.equal(back.bias, conv.bias)
    assert back.geometry == layer.geometry
    plain.train()
    is_no_kernel(plain, "drops 0.1 of its attention", layer.geometry, (4, 4))


def test_projections_apart_and_other_bases_are_read_too():
    """Keys and values with their own widths; heads in another basis; values scaled by a power of two."""
    conv, layer, module = small_stock()
    a, g = module.attention, layer.geometry
    apart: Any = nn.MultiheadAttention(a.embed_dim, 4, kdim=5, vdim=7, batch_first=True)
    q, k, v = a.in_proj_weight.detach().chunk(3)
    with torch.no_grad():
        apart.q_proj_weight.copy_(q)
        apart.k_proj_weight.copy_(k[:, :5])
        apart.v_proj_weight.copy_(4 * v[:, :7])
        apart.out_proj.weight.copy_(a.out_proj.weight / 4)
        apart.in_proj_bias.copy_(a.in_proj_bias)
        apart.out_proj.bias.copy_(a.out_proj.bias)
        turn = torch.tensor([[1.0, 0, 0], [0, 1, 1], [0, -1, 1]])  # its own inverse up to a factor ½
        back_turn = turn * torch.tensor([[1], [0.5], [0.5]])
        for tensor, by in ((apart.q_proj_weight, turn), (apart.k_proj_weight, back_turn)):
            rows = tensor.view(4, -1, tensor.shape[1])
            rows[:, :3] = by @ rows[:, :3]
        rows = apart.in_proj_bias[: a.embed_dim].view(4, -1)
        rows[:, :3] = rows[:, :3] @ turn.T
    back = construct.from_torch_mha(apart, g, (4, 4))
    assert torch.equal(back.weight, conv.weight)
    assert back.bias is not None
    assert torch.equal(back.bias, conv.bias)


def test_a_random_attention_is_none():
    _, layer = small()
    attention = nn.MultiheadAttention(16, 4)
    is_no_kernel(attention, "no kernel can be read: ", layer.geometry, (4, 4))
    with pytest.raises(ValueError, match="needs geometry"):
        construct.from_torch_mha(attention)
    with pytest.raises(ValueError, match="has its own"):
        construct.from_torch_mha(construct.to_torch_mha(layer, (4, 4)), grid=(4, 4))
    is_no_kernel(nn.Linear(2, 2), "Linear: neither")
    is_no_kernel(nn.MultiheadAttention(4, 4), "make tokens of 5", layer.geometry, (4, 4))


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"dtype": torch.float16}], ids=str)
def test_other_kinds_of_attention_are_none(options: dict[str, Any]):
    reason = "no kernel can be read: (it adds a key|its tensors are not all|the query of some output)"
    is_no_kernel(nn.MultiheadAttention(16, 4, **options), reason, small()[1].geometry, (4, 4))


class Other(nn.MultiheadAttention):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class Odd(stock.StockAttention):
    """Torch's attention, but a class of its own around it."""


def test_what_computes_something_else_is_refused():
    conv, layer = small()
    fresh = lambda: construct.to_torch_mha(layer, (4, 4))  # noqa: E731
    a = fresh().attention
    other = Other(a.embed_dim, a.num_heads, batch_first=True)
    other.load_state_dict(a.state_dict())
    is_no_kernel(other, "its forward is not torch's", layer.geometry, (4, 4))
    apart = fresh()
    apart.attention._qkv_same_embed_dim = False  # a call takes these, and not the three in one
    for name, rows in zip("qkv", a.in_proj_weight.chunk(3), strict=True):
        apart.attention.register_parameter(f"{name}_proj_weight", nn.Parameter(rows.flip(0).detach()))
    is_no_kernel(apart, "head 0 ")
    a.register_forward_hook(lambda module, args, out: None)
    is_no_kernel(a, "hooks", layer.geometry, (4, 4))
    doubled = fresh()
    doubled.register_forward_hook(lambda *_: torch.zeros(()))
    shadowed = [fresh() for _ in range(4)]
    for module, method in zip(shadowed, ("forward", "tokens", "_attended", "_call_impl"), strict=True):
        setattr(module, method, lambda x, *_: x)
    for module in (doubled, *shadowed):
        is_no_kernel(module, "it has hooks, or a forward of its own")
    for name in ("positions", "sources", "query_tokens"):
        moved = fresh()
        getattr(moved, name)[0] += 1
        is_no_kernel(moved, "its tokens are not those of its grid")
    across = construct.to_torch_mha(construct.conv_to_mhsa(nn.Conv2d(2, 3, 1)), (4, 4))  # as many queries as keys
    stranger = nn.MultiheadAttention(across.attention.embed_dim, across.attention.num_heads)
    stranger.load_state_dict(across.attention.state_dict())
    across.attention = stranger
    is_no_kernel(across, "not batch_first")
    is_no_kernel(fresh().to("meta"), "meta device")
    odd = fresh()
    odd.__class__ = Odd
    is_no_kernel(odd, "its class is not the one")
    assert torch.equal(construct.from_torch_mha(fresh()).weight, conv.weight)


FAULTS = {
    "a query's slope": ("in_proj_weight", lambda a: (1, 2), "one fixed shift"),
    "a query hears content": ("in_proj_weight", lambda a: (0, 0), "one fixed shift"),
    "a key hears content": ("in_proj_weight", lambda a: (a.embed_dim, 1), "one fixed shift"),
    "a key's square": ("in_proj_weight", lambda a: (a.embed_dim, 4), "one fixed shift"),
    "a query's own square": ("in_proj_weight", lambda a: (1, 4), "one fixed shift"),
    "a value hears positions": ("in_proj_weight", lambda a: (2 * a.embed_dim, 3), "let positions through"),
    "a shift": ("in_proj_bias", lambda a: (1,), "between positions|no tap"),
    "a sharpness": ("in_proj_bias", lambda a: (0,), "one fixed shift"),
}


@pytest.mark.parametrize("by", [1.0, "an ulp", float("nan")])
@pytest.mark.parametrize("name", list(FAULTS))
def test_a_planted_fault_is_found(name: str, by: Any):
    _, _, module = small_stock()
    tensor, where, reason = FAULTS[name]
    with torch.no_grad():
        entry = getattr(module.attention, tensor)[where(module.attention)]
        entry.copy_(torch.nextafter(entry, torch.tensor(torch.inf)) if by == "an ulp" else entry + by)
    is_no_kernel(module, "not finite" if by != by else reason)


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("name", ["a large key", "rows that cancel", "overflow", "overflow of a silent head"])
def test_scores_that_floating_point_cannot_hold_are_found(name: str, null: bool):
    """In exact arithmetic they are those of the kernel, or differ from them by the same for every key."""
    conv = nn.Conv2d(6, 2, 3, padding=1)
    with torch.no_grad():
        conv.weight[:, :, 0, 0] = 0  # so that head 0 is silent
    module = construct.to_torch_mha(conv_to_mhsa(conv), (9, 9), null_token=null)
    assert torch.equal(construct.from_torch_mha(module).weight, conv.weight)
    a = module.attention
    with torch.no_grad():
        w, b = (t.view(3, a.num_heads, a.head_dim, -1) for t in (a.in_proj_weight, a.in_proj_bias))
        if name == "a large key":
            b[1, 1, 0] = 2.0**24
        elif name == "rows that cancel":
            w[1, :, 1] += 2.0**22 * w[1, :, 2]
            w[0, :, 2] -= 2.0**22 * w[0, :, 1]
            b[0, :, 2] -= 2.0**22 * b[0, :, 1]
        else:
            heads = slice(0, 1 if "silent" in name else None)
            w[0, heads] *= 2.0**113
            b[0, heads] *= 2.0**113
    is_no_kernel(module, "may overflow" if "overflow" in name else "head 1 (is not surely one-hot|does not look)")


def test_groups_that_mix_are_found():
    module = construct.to_torch_mha(conv_to_mhsa(nn.Conv1d(4, 4, 1, groups=2)), (4,))
    with torch.no_grad():
        module.attention.out_proj.weight[3, 0] = 1e-30
    is_no_kernel(module, "group 1 of 2 hears channels of another")


@given(st.data())
def test_whatever_is_read_is_what_the_module_computes(data: st.DataObject):
    """After changing any one entry of any tensor, reading refuses or gives the kernel and bias now computed."""
    case = data.draw(cases(dtypes=FULL, tokens=40, channels=("one", "dense", "grouped")))
    layer = conv_to_mhsa(case.conv)
    module = construct.to_torch_mha(layer, size_of(case.conv, case.x), bias=data.draw(st.booleans()))
    tensor = data.draw(st.sampled_from(list(module.attention.parameters())))
    place = data.draw(st.integers(0, tensor.numel() - 1))
    with torch.no_grad():
        entry = tensor.view(-1)[place]
        entry.fill_(data.draw(st.sampled_from([0.0, 1.0, -2.0, float(entry) * 2, float(entry) + 0.5])))
    try:
        back = construct.from_torch_mha(module)
    except UnsupportedLayer:
        return
    conv = type(case.conv)(
        case.conv.in_channels,
        case.conv.out_channels,
        case.conv.kernel_size,
        **{name: getattr(case.conv, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")},
        **({"output_padding": case.conv.output_padding} if case.conv.transposed else {}),
        dtype=case.conv.weight.dtype,
    )
    with torch.no_grad():
        conv.weight.copy_(back.weight)
        assert conv.bias is not None
        conv.bias.copy_(back.b_out)
        y = module(case.x)
    bound = 4 * (torch.finfo(y.dtype).eps * y.abs().max() if y.numel() else 0)
    assert excess(conv, back, case.x, y) <= 1 or bool((y - back(case.x)).abs().max() <= bound)
