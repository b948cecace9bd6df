"""Heads that share taps: what they compute at any sharpness, wrong factors, and who takes such layers."""

import copy
import dataclasses
from math import exp, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import construct
import verify
from construct.encoding.encodings import Taps
from construct.errors import UnsupportedLayer
from low_rank import low_rank
from runs import normal
from verify.oracle import Unreadable
from verify.strategies import least_size


def fewest(conv, **options):
    count = verify.heads_needed(conv)
    return count, construct.mixed_heads(conv, count.attention, count.mixture, **options)


def integers_for(conv, seed):
    """One input of small integers, some pixels larger than the least."""
    size = [n + seed % 3 for n in least_size(conv)]
    x = np.random.default_rng(seed).integers(-4, 5, (1, conv.in_channels, *size))
    return torch.tensor(x, dtype=conv.weight.dtype)


def allowed(conv, count, x, tokens, alpha):
    """For each output channel, what attention may leak, and what rounding may add: (D_out,).

    On integers torch's float64 convolution is exact.  Each number of the layer takes at most ``steps`` roundings of its
    working type, W_h and the output one more of the layer's own, each relative to Σ|mixture||W||x| + |b|.  A score's
    error is one of its softmax; both are twice what first-order terms make.
    """
    heads, taps = count.attention.shape
    shares, mixture = count.attention.astype(float), count.mixture.astype(float)
    weight = conv.weight.detach().double().flatten(2)
    if conv.transposed:
        weight = weight.unflatten(0, (conv.groups, -1)).transpose(1, 2).flatten(0, 1)
    kernel = weight.numpy()  # (out, in/groups, taps)
    matrices = np.abs(np.einsum("ht,oit->hoi", mixture, kernel)).sum(axis=2)
    terms = np.einsum("ht,oit->o", np.abs(mixture), np.abs(kernel))
    largest = float(x.abs().max())
    others = tokens - np.count_nonzero(shares, axis=1)
    leak = others * exp(-alpha) / (1 + others * exp(-alpha))
    least = min((p for p in shares.flat if p), default=1.0)
    steps = 2 * tokens + 3 * taps + 3 * sum(kernel.shape[:2]) + 2 * heads + 5 * max(alpha, -log(least)) + 20
    info, working = torch.finfo(x.dtype), torch.finfo(max((x.dtype, torch.float32), key=lambda t: t.itemsize))
    size = terms * largest + (0 if conv.bias is None else conv.bias.detach().double().abs().numpy())
    rounding = (steps * working.eps + 2 * info.eps) * size + heads * kernel.shape[1] * info.tiny * info.eps * (
        largest + 1
    )
    return 2 * largest * (leak @ matrices) + rounding


@settings(deadline=None)
@given(low_rank(integers=[True]), st.sampled_from([1.0, 4.0, 16.0, 1024.0]), st.integers(0, 2**32 - 1))
def test_the_fewest_heads_compute_it_up_to_what_they_leak(conv, alpha, seed):
    count, layer = fewest(conv, alpha=alpha)
    assert layer.heads == count.heads
    assert (layer.bias is None) == (conv.bias is None)
    x = integers_for(conv, seed)
    with torch.no_grad():
        exact = copy.deepcopy(conv).double()(x.double())
        tokens = layer.attention_probabilities(x).shape[-1]
        for layer.execution in ("dense", "auto"):
            y = layer(x)
            assert (y.dtype, y.shape) == (x.dtype, exact.shape)
            error = (y.double() - exact).abs().movedim(1, 0).flatten(1).amax(1)
            assert (error.numpy() <= allowed(conv, count, x, tokens, alpha)).all()


def test_the_bound_of_what_leaks_is_met():
    """One head spread over two of three taps, for a token of the other sign at each other place: nothing is lost but rounding."""
    conv = nn.Conv1d(1, 1, 3, bias=False, dtype=torch.float64)
    conv.weight.data = torch.tensor([[[1.0, 3.0, 0.0]]]).double()
    layer = construct.mixed_heads(conv, [[1, 3, 0]], [[1, 0, 0]], alpha=2.0)
    x = torch.tensor([[[1.0, 1.0, -1.0]]]).double()
    leak = exp(-2) / (1 + exp(-2))
    assert float((conv(x) - layer(x)).detach()) == pytest.approx(2 * leak * 4, rel=1e-14)


@settings(deadline=None)
@given(low_rank(dtypes=[torch.float64]), st.data())
def test_a_wrong_mixture_or_attention_is_refused(conv, data):
    """Between integers a quarter is more than rounding explains."""
    count = verify.heads_needed(conv)
    kernel = conv.weight.detach().flatten(2).abs().sum(dim=(0, 1))
    wrong = [(head, tap) for head, tap in np.ndindex(*count.attention.shape) if kernel[tap]]
    if not wrong:
        return
    at = data.draw(st.sampled_from(wrong))
    mixture = count.mixture.astype(float)
    mixture[at] += 0.25
    with pytest.raises(ValueError, match=r"make another kernel: the tap at shift .* is off by up to") as refused:
        construct.mixed_heads(conv, count.attention, mixture)
    off, explained = str(refused.value).split("off by up to ")[1].split(", and rounding explains ")
    assert float(off) > float(explained)
    attention = count.attention.astype(float)
    attention[:, at[1]] = 0
    attention[:, at[1] - 1] += 1e-9  # so that no row is zero
    with pytest.raises(ValueError, match="make another kernel"):
        construct.mixed_heads(conv, attention, count.mixture)


@pytest.mark.parametrize(("attention", "mixture", "words"), [
    (np.eye(3), np.eye(2), r"must be \(heads, 3\), not \(3, 3\) and \(2, 2\)"),
    (np.eye(2), np.eye(2), r"must be \(heads, 3\)"),
    (-np.eye(3), -np.eye(3), "at least 0, and not all 0 for a head"),
    (0 * np.eye(3), np.eye(3), "not all 0 for a head"),
    (np.inf * np.ones((1, 3)), np.ones((1, 3)), "must be finite"),
    ([["a", "b", "c"]], np.ones((1, 3)), "must be numbers"),
    (np.ones((1, 3)), [[10**400, 0, 0]], "must be numbers"),
    (np.eye(3), np.eye(3) + 1j * np.eye(3), "must be numbers: some are complex"),
    (torch.eye(3) * 1j, np.eye(3), "must be numbers: some are complex"),
    (1e200 * np.eye(3), 1e200 * np.eye(3), "mixture times kernel is not finite in torch.float16"),
    (np.eye(3), np.nan * np.eye(3), "mixture times kernel is not finite in torch.float16"),
    (np.eye(3), 1e30 * np.eye(3), "mixture times kernel is not finite in torch.float16"),
    (np.ones((0, 3)), np.ones((0, 3)), r"the tap at shift \(-?\d,\) is off by up to"),
])  # fmt: skip
def test_what_are_no_factors_is_refused_in_one_line(attention, mixture, words):
    conv = nn.Conv1d(2, 2, 3).half()
    assert construct.mixed_heads(conv, np.eye(3), np.eye(3)).heads == 3
    with pytest.raises(ValueError, match=words) as refused:
        construct.mixed_heads(conv, attention, mixture)
    assert "\n" not in str(refused.value)
    for alpha in (0.0, np.nan, np.inf, 10**400):
        with pytest.raises(ValueError, match="must be positive and finite"):
            construct.mixed_heads(conv, np.eye(3), np.eye(3), alpha=alpha)
    with pytest.raises(UnsupportedLayer):
        construct.mixed_heads(nn.Linear(3, 3), np.eye(3), np.eye(3))


@pytest.mark.parametrize(("dtype", "size"), [
    (torch.bfloat16, 2.0**7),
    (torch.float32, 2.0**23),
    (torch.float64, 2.0**54),
])  # fmt: skip
def test_factors_that_cancel_too_much_are_refused_right_or_wrong(dtype, size):
    """Their rounding is larger than the kernel, and would hide another kernel."""
    conv, total = nn.Conv1d(1, 1, 3, bias=False, dtype=dtype), "another kernel" if size < 2**53 else "may move"
    nn.init.ones_(conv.weight)
    for last, words in ((1, "may move the kernel by .* weight, more than .* or a wider dtype"), (2, total)):
        with pytest.raises(ValueError, match=words):
            construct.mixed_heads(conv, np.ones((3, 3)), [[size, 0, 0], [-size, 0, 0], [last, 0, 0]])
    with pytest.raises(ValueError, match="may move the kernel by"):  # within one head
        construct.mixed_heads(conv, np.ones((1, 3)), [[2.0**60, -(2.0**60), 2]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_half_the_digits_stay(dtype):
    """However much the factors cancel, an accepted layer's kernel is off by at most √ε times its largest weight."""
    conv, unit = nn.Conv1d(1, 1, 3, bias=False, dtype=dtype), torch.finfo(dtype).eps / 2
    nn.init.ones_(conv.weight)
    one = torch.ones(1, 1, 1, dtype=dtype)
    built = 0
    for size in 1.1 * 2.0 ** np.arange(60):
        mixture = [[1 + size, 0, 0], [-size, 0, 0]]
        try:
            layer = construct.mixed_heads(conv, np.ones((2, 3)), mixture)
        except ValueError:
            break
        built += 1
        kernel = (layer.w_val @ layer.w_out).double().sum() / 3
        assert abs(kernel.item() - 1) <= unit**0.5
        torch.testing.assert_close(layer(one.expand(1, 1, 3)), 3 * one, rtol=unit**0.5 + 2 * unit, atol=0)
    assert 2.0 ** (built + 5) >= unit**-0.5


def test_a_kernel_that_underflows_is_refused():
    """A third of the least number is stored as 0."""
    conv = nn.Conv1d(1, 1, 3, bias=False).half()
    nn.init.constant_(conv.weight, 2.0**-24)
    with pytest.raises(ValueError, match="may move the kernel by"):
        construct.mixed_heads(conv, np.ones((9, 3)), [[1 / 9, 0, 0]] * 9)


def test_rounded_factors_of_right_kernels_are_taken():
    """Noise beside the zeros of W, factors of the kernel before it was rounded, and numbers of any kind."""
    conv = nn.Conv1d(2, 1, 2, bias=False).bfloat16()
    conv.weight.data = torch.eye(2)[None].bfloat16()
    exact = construct.mixed_heads(conv, np.eye(2), np.eye(2))
    assert construct.mixed_heads(conv, np.eye(2), [[1, 1e-17], [0, 1]]).heads == 2
    one = torch.eye(2)
    for kind in (one.bfloat16(), nn.Parameter(one), one.to(torch.complex64), np.eye(2, dtype=bool)):
        layer = construct.mixed_heads(conv, kind, kind)
        assert all(map(torch.equal, layer.parameters(), exact.parameters()))
    rng = np.random.default_rng(0)
    attention, carried = rng.random((2, 9)), rng.standard_normal((2, 12))
    mixture = carried @ np.linalg.pinv(attention.T @ carried)
    kernel = nn.Conv2d(4, 3, 3, bias=False)
    kernel.weight.data = torch.tensor(carried.T @ attention).float().reshape(3, 4, 3, 3)
    x = normal(1, 4, 5, 5).float()
    torch.testing.assert_close(construct.mixed_heads(kernel, attention, mixture)(x), kernel(x), rtol=1e-5, atol=1e-5)


def test_a_geometry_of_other_taps_than_the_table_is_refused_in_one_line(tmp_path):
    layer = construct.mixed_heads(nn.Conv1d(1, 1, 3), np.eye(3), np.eye(3))
    layer.geometry = dataclasses.replace(layer.geometry, kernel_size=(5,))
    for use in (layer, layer.attention_probabilities, lambda _: construct.save(layer, tmp_path / "layer.pt")):
        with pytest.raises(ValueError, match="a table of 4 scores is none of ConvGeometry"):
            use(torch.zeros(1, 1, 9))
    assert not any(tmp_path.iterdir())


def test_no_heads_compute_a_kernel_of_zeros():
    conv, x = nn.Conv2d(2, 3, 3, stride=2), normal(2, 2, 7, 5).float()
    nn.init.zeros_(conv.weight)
    _, layer = fewest(conv)
    assert layer.heads == 0
    for layer.execution in ("dense", "auto"):
        assert torch.equal(layer(x), conv(x))
        assert torch.equal(layer(x[0]), conv(x[0]))
        assert torch.equal(torch.func.vmap(layer)(x), conv(x))


def test_one_head_for_each_tap_is_the_theorems_layer_and_as_cheap():
    conv, x = nn.Conv2d(2, 3, 3, padding=1).eval(), normal(2, 2, 6, 6).float()
    conv.get_parameter("bias").requires_grad_(False)
    layer = construct.mixed_heads(conv, torch.eye(9), torch.eye(9))
    assert torch.equal(layer(x), construct.conv_to_mhsa(conv)(x))
    assert layer.explain(x.shape).endswith("heads here: 9 as shifts")
    assert not layer.training
    assert not layer.b_out.requires_grad
    assert layer.w_val.requires_grad


def test_plans_of_kernels_with_the_same_span_are_kept_apart():
    """3 × 5 taps two rows apart and 5 × 3 two columns apart: the same numbers, grid and anchor, but other shifts."""
    x = normal(1, 1, 6, 6)
    for shape, dilation in (((3, 5), (2, 1)), ((5, 3), (1, 2))):
        conv = nn.Conv2d(1, 1, shape, dilation=dilation, dtype=torch.float64)
        layer = construct.mixed_heads(conv, np.eye(15), np.eye(15))
        torch.testing.assert_close(layer(x), conv(x))
    other = construct.conv_to_mhsa(nn.Conv2d(1, 1, (3, 5))).geometry
    weights = construct.MHSAWeights(**{name: p.detach() for name, p in layer.named_parameters()})
    with pytest.raises(ValueError, match="is of the taps of ConvGeometry"):
        construct.MHSA(other, weights, encoding=Taps(layer.geometry))


def test_such_layers_are_kept_in_files_learn_and_are_refused_in_one_line_elsewhere(tmp_path):
    conv, x = nn.Conv2d(1, 1, 5, padding=2), normal(2, 1, 8, 8).float()
    _, layer = fewest(conv)
    layer.requires_grad_(False)
    net = nn.Sequential(layer, nn.ReLU())
    for suffix in (".pt", ".safetensors"):
        construct.save(net, tmp_path / f"net{suffix}")
        (again,) = construct.load(tmp_path / f"net{suffix}", layers=True).values()
        assert torch.equal(again.requires_grad_(False)(x), layer(x))
    torch.save(net.state_dict(), tmp_path / "state.pt")
    (again,) = construct.load(tmp_path / "state.pt", layers=True).values()
    assert torch.equal(again.requires_grad_(False)(x), layer(x))
    again = construct.load(tmp_path / "state.pt", model=nn.Sequential(conv, nn.ReLU()))
    assert torch.equal(again(x), net(x))
    for within in (None, 1e9):
        with pytest.raises(Unreadable, match=r"^its encoding is taps, and only the quadratic one and the parabola"):
            verify.certify(conv, layer, grid=(8, 8), within=within)
    with pytest.raises(ValueError, match="a table of scores has no centres"):
        layer.weight  # noqa: B018
    before = layer(x)
    for position, key_dim in (("none", 4), ("free", 27)):
        learning = copy.deepcopy(layer)
        construct.learn(learning, heads=2, position=position, key_dim=key_dim)
        torch.testing.assert_close(learning(x), before)
