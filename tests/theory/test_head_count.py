"""The least number of heads: its certificates hold and are checked, and no fewer do."""

from dataclasses import replace
from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import construct
import verify
from low_rank import low_rank
from verify.theory.literature.equations import rank


def taps_of(conv):
    """A, (taps, channels)."""
    return conv.weight.detach().double().flatten(2).flatten(0, 1).T


@settings(deadline=None)
@given(low_rank())
def test_as_many_heads_as_the_rank_or_one_more_with_a_certificate_in_fractions(conv):
    count = verify.heads_needed(conv)
    taps = taps_of(conv).int().tolist()
    exact = np.array([[Fraction(x) for x in row] for row in taps])
    assert len(count.basis) == rank(taps)
    assert count.heads == len(count.basis) + (count.relation is not None)
    # enough: P M = A with P >= 0
    assert count.attention.shape == (count.heads, len(taps))
    assert (count.attention >= 0).all()
    assert (count.attention.sum(axis=1) == 1).all()
    assert (count.attention.T @ (count.mixture @ exact) == exact).all()
    # and needed
    if count.relation is not None:
        assert (count.relation >= 0).all()
        assert not (count.relation @ exact).any()
        assert any(weight > 0 and any(row) for weight, row in zip(count.relation, taps, strict=True))
    count.check(conv)


def test_taps_that_point_both_ways_take_one_head_more():
    """(1, 0), (−1, 0) and (0, 1) lie in a closed half-space, in no open one; with (−1, ε) they lie in one, for every ε > 0.

    So the number is of heads whose values stay: two come as near as one likes to the first kernel, with values that grow.
    """
    largest, conv = [], torch.nn.Conv1d(1, 2, 3, dtype=torch.float64)
    for epsilon in (0.0, 1.0, 2.0**-10, 2.0**-20):
        conv.weight.data = torch.tensor([[1, -1, 0], [epsilon, epsilon, 1]], dtype=torch.float64)[:, None]
        count = verify.heads_needed(conv)
        lie = "those that are not zero lie in an open" if epsilon else "they lie in no open"
        assert str(count) == f"heads: {2 if epsilon else 3}; the rank of the 3 taps is 2, and {lie} half-space"
        assert (count.relation is None) == bool(epsilon)
        assert count.relation is None or count.relation.tolist() == [1, 1, 0]
        largest.append(float(np.abs(count.mixture).max()))
    assert largest[1] < 10 < largest[2] / 10 < largest[3] / 1000


def test_a_certificate_of_another_kernel_or_of_fewer_heads_is_refused():
    conv = torch.nn.Conv1d(2, 2, 4)
    factors = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [1, 1]]), torch.tensor([[1.0, 2, 0, 1], [0, 1, 1, 3]])
    conv.weight.data = (factors[0] @ factors[1]).T.reshape(2, 2, 4)
    count = verify.heads_needed(conv)
    assert count.heads == 3
    assert count.relation is not None
    other = torch.nn.Conv1d(2, 2, 4)
    half = Fraction(1, 2)
    wrong = [
        replace(count, heads=2),
        replace(count, heads=2, relation=None),
        replace(count, heads=4),
        replace(count, basis=(0,)),
        replace(count, basis=(0, 1)),
        replace(count, relation=0 * count.relation),
        replace(count, relation=-count.relation),
        replace(count, relation=np.array([Fraction(n) for n in (0, 1, -1, 1)])),  # vanishes, too
        replace(count, relation=None),
        replace(count, relation=count.relation + half),
        replace(count, attention=count.attention * half),
        replace(count, attention=-count.attention, mixture=-count.mixture),
        replace(count, mixture=count.mixture * half),
    ]
    for one, layer in [(count, other), *((one, conv) for one in wrong)]:
        with pytest.raises(ValueError, match="not one for this kernel"):
            one.check(layer)
    count.check(conv)


@pytest.mark.parametrize("layer", [torch.nn.Linear(2, 2), None, construct.conv_to_mhsa(torch.nn.Conv1d(1, 1, 3))])
def test_what_is_no_convolution_is_refused(layer):
    with pytest.raises(ValueError, match="none of torch's convolutions"):
        verify.heads_needed(layer)


def test_an_infinite_weight_is_refused():
    conv = torch.nn.Conv1d(1, 1, 3)
    conv.weight.data[0, 0, 1] = torch.inf
    with pytest.raises(ValueError, match="not finite"):
        verify.heads_needed(conv)


def test_what_takes_minutes_is_refused_and_the_remedies_work():
    conv = torch.nn.Conv2d(1, 40, 11)  # 121 taps of rank 40
    with pytest.raises(ValueError, match="the fractions for 121 taps of rank 40 take minutes"):
        verify.heads_needed(conv)
    fewer = torch.nn.Conv2d(1, 4, 11)
    fewer.weight.data = conv.weight.data[:4]
    assert verify.heads_needed(fewer).heads == 5
    coarse = torch.nn.Conv2d(1, 6, 11)
    coarse.weight.data = conv.weight.data[:6].sign()
    assert verify.heads_needed(coarse).heads == 7


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 3.0, 30.0]), st.integers(1, 3))
def test_fewer_heads_err_by_the_next_singular_value_even_with_content(seed, content, heads):
    """``heads_needed_error``, for random layers with a little content, with much and with none."""
    generator = torch.Generator().manual_seed(seed)
    conv = torch.nn.Conv2d(2, 4, (2, 3), dtype=torch.float64)
    conv.weight.data = torch.randn(conv.weight.shape, dtype=torch.float64, generator=generator)
    of_one_channel = taps_of(conv).reshape(6, 4, 2)[:, :, 0].numpy()
    values = np.linalg.svd(of_one_channel, compute_uv=False)
    layer = construct.conv_to_mhsa(conv)
    geometry = layer.geometry
    weights = {name: tensor.detach()[:heads] for name, tensor in layer.named_parameters() if name != "b_out"}
    for name in ("w_qry", "w_key", "u", "v", "w_val", "w_out"):
        weights[name] = torch.randn(weights[name].shape, dtype=torch.float64, generator=generator)
    for name in ("w_qry", "w_key", "u"):
        weights[name] *= content
    layer = construct.MHSA(geometry, construct.MHSAWeights(**weights, b_out=layer.b_out.detach()))
    images = torch.zeros(7, 2, 2, 3, dtype=torch.float64)
    images[torch.arange(1, 7), 0, torch.arange(6) // 3, torch.arange(6) % 3] = 1  # no token, then one
    with torch.no_grad():
        error = (layer(images) - conv(images)).abs().max()
    assert float(error) >= values[heads] / (2 * sqrt(6 * 4)) * (1 - 1e-9)


def test_one_head_more_reaches_the_tail_of_singular_values():
    """Without content N_h heads err by at least Σ_{n > N_h} σ_n² in the mean square over white noise (Eckart and Young)."""
    signs = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    sizes = np.array([4, 3, 2, 1])  # A = signs · diag(sizes) · signsᵀ, so σ_n = 4 sizes_n

    def convolution(unfolded):
        conv = torch.nn.Conv1d(2, 2, 4, bias=False, dtype=torch.float64)
        conv.weight.data = torch.tensor(unfolded.T.reshape(2, 2, 4), dtype=torch.float64)
        return conv

    whole = convolution(signs * sizes @ signs.T)
    images = torch.eye(8, dtype=torch.float64).reshape(8, 2, 4)
    for kept in (1, 2, 3):
        nearest = convolution(signs[:, :kept] * sizes[:kept] @ signs[:, :kept].T)
        count = verify.heads_needed(nearest)
        assert count.heads <= kept + 1
        layer = construct.mixed_heads(nearest, count.attention, count.mixture)
        with torch.no_grad():
            square = float(
                (layer(images) - whole(images)).square().sum()
            )  # over unit images: the mean over white noise
        assert square == pytest.approx(float((16 * sizes[kept:] ** 2).sum()), rel=1e-9)


def test_independent_taps_that_vanish_modulo_a_prime_are_independent() -> None:
    """One tap's squares sum to 2^61 − 1."""
    conv = torch.nn.Conv1d(1, 5, 2).double()
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[:4, 0, 0] = torch.tensor([69705451.0, 75648841.0, 1318000615.0, 747084862.0], dtype=torch.float64)
        conv.weight[4, 0, 1] = 1
    count = verify.heads_needed(conv)
    assert count.heads == 2
    count.check(conv)


@pytest.mark.parametrize("seed", [1, 3, 21])
def test_taps_are_combinations_with_small_coefficients(seed: int) -> None:
    """Independent taps are far from one another's span: two nearly parallel ones cost a layer in half precision all digits."""
    torch.manual_seed(seed)
    conv = torch.nn.Conv2d(2, 1, 5, padding=2).bfloat16()
    count = verify.heads_needed(conv)
    carried = np.abs(count.mixture.astype(float) @ taps_of(conv).numpy())
    assert (count.attention.astype(float).T @ carried).max() < 4 * float(conv.weight.detach().abs().max())
    layer, x = construct.mixed_heads(conv, count.attention, count.mixture), torch.randn(1, 2, 8, 8).bfloat16()
    torch.testing.assert_close(layer(x), conv(x), rtol=0, atol=0.04)
