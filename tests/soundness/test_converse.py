"""The converse of a certificate: searches find no input over the bound, and the bound is not far above the worst found."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st
from torch import nn

from construct import conv_to_mhsa
from construct.attention import EXECUTIONS
from runs import is_quick
from truths import permuted
from verify.argument.certification import certify
from verify.argument.runs import sign_pattern
from verify.oracle import Convolution
from verify.strategies import DTYPES, convolutions, least_size, sizes_for

EXAMPLES = settings().max_examples
NAMES = [name for name in EXECUTIONS if name != "auto"]


def difference(conv: Any, layer: Any, x: torch.Tensor) -> np.ndarray:
    """|layer − conv| by input and channel, the largest over all executions and positions: (N, D_out)."""
    worst = np.zeros((len(x), conv.out_channels))
    with torch.no_grad():
        expected = conv(x).double()
        for layer.execution in NAMES:
            differences = (layer(x).double() - expected).abs().flatten(2).amax(2).numpy()
            assert np.isfinite(differences).all()
            worst = np.maximum(worst, differences)
    return worst


def climb(
    conv: Any, layer: Any, size: tuple[int, ...], bound: float, rng: Any, restarts: int, steps: int, tries: int = 16
) -> np.ndarray:
    """The largest difference by channel found by hill-climbing over patterns of ±B, ``tries`` per step: (D_out,)."""
    shape, dtype = (conv.in_channels, *size), conv.weight.dtype
    fields = Convolution.read(conv)
    worst = np.zeros(conv.out_channels)
    for restart in range(restarts):
        signs = rng.choice([-1.0, 1.0], shape)
        if restart % 2:
            signs = sign_pattern(fields, int(rng.integers(conv.out_channels)), size)
        best = 0.0
        for _ in range(steps):
            flips = rng.random((tries, *shape)) < rng.choice([0.5, 0.1, 2 / signs.size])
            flips[0] = False
            tried = np.where(flips, -signs, signs)
            # Full mantissas round but powers of two may not, so use the same signs at B and slightly below it.
            sizes = bound * (1 - rng.random((tries, *shape)) * rng.choice([0, 2.0**-3, 2.0**-10]))
            differences = difference(conv, layer, torch.from_numpy(tried * sizes).to(dtype))
            worst = np.maximum(worst, differences.max(axis=0))
            if differences.max() >= best:
                best, signs = differences.max(), tried[int(np.argmax(differences.max(axis=1)))]
    return worst


def search(examples: int, restarts: int, steps: int, tries: int = 16, part: int | None = None) -> list[float]:
    """The ratio of bound to worst difference found, for many random layers; each ``part`` has its own."""
    tightness: list[float] = []

    @settings(max_examples=examples)
    @given(convolutions(), st.data(), st.sampled_from([1.0, 0.3, 8.0]), st.integers(0, 2**16))
    def stays_under(conv: Any, data: st.DataObject, bound: float, start: int):
        grid = data.draw(sizes_for(conv, tokens=60))
        assume(is_quick(conv, grid))
        smaller = data.draw(st.tuples(*map(st.integers, least_size(conv), grid)))
        layer = conv_to_mhsa(conv, alpha=data.draw(st.sampled_from([1024.0, 800.0])))
        certificate = certify(conv, layer, grid=grid, input_bound=bound)
        assert certificate.verdict.name == "PROVED"
        rng = np.random.default_rng(start)
        for size in {grid, smaller}:
            worst = climb(conv, layer, size, bound, rng, restarts, steps, tries)
            assert (worst <= certificate.bound).all(), (size, worst, certificate.bound)
            worst = np.maximum(worst, certificate.observed)
            if worst.any():
                tightness.append(float((certificate.bound / np.where(worst > 0, worst, np.nan))[worst > 0].min()))

    (stays_under if part is None else seed(part)(stays_under))()
    return tightness


@pytest.mark.hypothesis
def test_no_adversarial_input_goes_over_the_bound():
    """At the grid's size and at smaller ones, in every execution and format."""
    search(EXAMPLES // 2, restarts=2, steps=4)


@pytest.mark.deep
@pytest.mark.parametrize("part", range(4))  # apart, so that workers share them
def test_no_adversarial_input_goes_over_the_bound_in_a_long_search(part: int):
    """And the bound is not vacuous; in many short searches both layers agree bit for bit, which tells nothing of it."""
    tightness = search(50, restarts=8, steps=9, tries=48, part=part)
    print(f"bound over worst found: {sorted(tightness)}")
    assert 1 <= min(tightness) < 6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tightness_of_a_typical_layer(dtype: torch.dtype):
    """A long search on one 3×3 layer, 8 → 8 channels.  The bound assumes the worst case for every rounding."""
    conv = nn.Conv2d(8, 8, 3, padding=1, dtype=dtype)
    layer = conv_to_mhsa(conv)
    certificate = certify(conv, layer, grid=(6, 6))
    worst = climb(conv, layer, (6, 6), 1.0, np.random.default_rng(0), restarts=4, steps=10)
    assert (worst <= certificate.bound).all()
    ratio = float((certificate.bound[worst > 0] / worst[worst > 0]).min(initial=np.inf))
    print(f"{dtype}: bound {certificate.bound.max():.3g}, worst found {worst.max():.3g}, tightness {ratio:.3g}")
    assert ratio < 100 or dtype in (torch.float16, torch.bfloat16)  # both mostly round to the same number


@settings(max_examples=EXAMPLES // 4)
@given(convolutions(dims=[1, 2], transposed=[False], dtypes=[torch.float32, torch.float64]), st.data())
def test_no_order_of_summation_goes_over_the_bound(conv: Any, data: st.DataObject):
    """Both functions are summed term by term in the layer's own format, in random orders that no library uses."""
    bound = data.draw(st.sampled_from([1.0, 0.3, 100.0]))
    layer = conv_to_mhsa(conv, head_dim=data.draw(st.sampled_from([None, "rank"])))
    grid = least_size(conv)
    certificate = certify(conv, layer, grid=grid, input_bound=bound)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    number = np.float32 if conv.weight.dtype == torch.float32 else np.float64
    weight, w_val, w_out = (t.detach().numpy() for t in (conv.weight, layer.w_val, layer.w_out))
    bias = np.zeros(conv.out_channels, number) if conv.bias is None else conv.bias.detach().numpy()
    d_in, d_out = w_val.shape[2], w_out.shape[3]
    taps = weight.reshape(*weight.shape[:2], -1)  # (out, in/g, heads)

    def summed(terms: np.ndarray) -> Any:
        total = number(0)
        for term in rng.permutation(terms):
            total = number(total + term)
        return total

    for channel in range(conv.out_channels):
        g, o = divmod(channel, d_out)
        x = number(
            bound * (1 - rng.random((w_val.shape[0], d_in)) * 2.0**-3) * rng.choice([-1, 1])
        )  # the inputs of the heads
        x = np.where(taps[channel].T * rng.choice([-1.0, 1.0], size=(1, 1)) < 0, -x, x).astype(number)
        theirs = summed(np.append((taps[channel].T * x).ravel(), bias[channel]))
        values = np.array([[summed(x[h] * w_val[h, g, :, e]) for e in range(w_val.shape[3])] for h in range(len(x))])
        ours = summed(np.append((values * w_out[:, g, :, o]).ravel(), bias[channel]))
        assert abs(float(theirs) - float(ours)) <= certificate.bound[channel]


def test_a_weight_beyond_the_bound_would_be_seen():
    """The search above is effective: without the attention's γ it would exceed the bound."""
    torch.manual_seed(1)
    conv = nn.Conv1d(1, 1, 1, bias=False)
    layer = conv_to_mhsa(conv)
    certificate = certify(conv, layer, grid=(4,))
    with torch.no_grad():
        layer.w_val *= 1 + 2.0**-20
    assert (climb(conv, layer, (4,), 1.0, np.random.default_rng(0), 1, 2) > certificate.bound).all()


def test_values_that_underflow_between_keys_are_in_the_bound():
    """In soft heads, T products P·(X W_val) are each rounded to a multiple of η, and W_out magnifies the errors."""
    n, scale = 1000, 2.0**120
    conv = nn.Conv1d(1, 1, 1, bias=False)
    layer = conv_to_mhsa(conv, alpha=1e-9)
    tiny = float(np.float32(0.6 * n)) * 2.0**-149
    with torch.no_grad():
        layer.w_val.fill_(tiny)
        layer.w_out.fill_(scale)
        conv.weight.fill_(tiny * scale)
    certificate = certify(conv, layer, grid=(n,), within=1e9)
    assert certificate.verdict.name == "PROVED"
    x = torch.ones(1, 1, n)
    x[..., n // 2] = -1
    over = difference(conv, layer, x).max() / (2 * tiny * scale)  # at most 1 if nothing were lost
    assert over > 1.2
    assert difference(conv, layer, x).max() <= certificate.bound.max()


def test_factors_whose_product_underflows_are_in_the_bound():
    """Two cancelling heads with weights so small that W_val W_out is 0 in float64, on inputs large enough to show it."""
    conv = nn.Conv1d(1, 1, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        conv.weight.zero_()
    layer = permuted(conv_to_mhsa(conv), [0, 0])
    small = 2.0**-660
    layer.w_val.data[:, 0, 0, 0] = torch.tensor([3 * small, -15 * small], dtype=torch.float64)
    layer.w_out.data[:, 0, 0, 0] = torch.tensor([5 * small, small], dtype=torch.float64)
    certificate = certify(conv, layer, grid=(64,), input_bound=2.0**1000)
    assert certificate.verdict.name == "PROVED"
    x = torch.rand(1, 1, 64, dtype=torch.float64) * 2.0**1000
    largest = difference(conv, layer, x).max()
    assert 1e-200 < largest <= certificate.bound.max()
