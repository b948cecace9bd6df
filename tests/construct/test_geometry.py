"""The stages before attention, tested separately: geometry, shifts, tokens, sharpness, weights."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from construct import MHSA, ConvGeometry, MHSAWeights, conv_to_mhsa
from construct.heads import bijection, tap_shifts
from construct.modules.convolutions import geometry_of
from construct.tokens import TokenGrid, sources_along_axis
from truths import random_layer
from verify.strategies import convolutions

PLAIN = ConvGeometry(4, 6, (3, 2), (1, 1), (0, 0), "zeros", (1, 1), 2)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kernel_size": ()}, "kernel_size"),
        ({"kernel_size": (3, 0)}, "kernel_size is"),
        ({"kernel_size": (3, 2.0)}, "kernel_size is"),
        ({"kernel_size": [3, 2]}, "kernel_size is"),
        ({"stride": (1,)}, "stride is"),
        ({"stride": (1, 0)}, "stride is"),
        ({"stride": (True, 1)}, "stride is"),
        ({"dilation": (1, -1)}, "dilation is"),
        ({"padding": (0, -1)}, "padding is"),
        ({"padding": "full"}, "neither numbers nor"),
        ({"padding": "same", "stride": (2, 1)}, "does not go with a stride"),
        ({"padding_mode": "constant"}, "padding_mode is"),
        ({"groups": 4}, "do not divide"),
        ({"groups": 0}, "groups is"),
        ({"in_channels": 0}, "in_channels is"),
        ({"out_channels": -6}, "out_channels is"),
        ({"output_padding": (1, 0)}, "only with a transposed"),
        ({"transposed": True, "output_padding": (1, 0)}, "must be smaller"),
        ({"transposed": True, "padding": "same"}, "no meaning for a transposed"),
        ({"transposed": True, "padding_mode": "circular"}, "no padding_mode"),
    ],
    ids=str,
)
def test_what_is_no_geometry_is_refused(fields: dict[str, Any], reason: str):
    with pytest.raises(ValueError, match=reason):
        replace(PLAIN, **fields)


@given(convolutions(transposed=[True], dtypes=[torch.float32]), st.data())
def test_reaching_finds_the_output_padding(conv: nn.ConvTranspose2d, data: st.DataObject):
    """Exactly the sizes from least to least + stride − 1 are reachable."""
    geometry = geometry_of(conv)
    bare = replace(geometry, output_padding=(0,) * geometry.dims)
    size = tuple(data.draw(st.integers(1, 6)) for _ in range(geometry.dims))
    least, extra = bare.output_size(size), [data.draw(st.integers(0, s - 1)) for s in geometry.stride]
    wanted = tuple(n + more for n, more in zip(least, extra, strict=True))
    reached = geometry.reaching(wanted, size)
    assert reached.output_padding == tuple(extra)
    assert reached.output_size(size) == wanted
    for outside in (least[0] - 1, least[0] + geometry.stride[0]):
        with pytest.raises(ValueError, match="out of reach"):
            geometry.reaching((outside, *wanted[1:]), size)


@pytest.mark.parametrize("kernel", [(1,), (3,), (5, 3), (3, 3, 5)], ids=str)
def test_shifts_of_an_odd_kernel_are_those_of_the_paper(kernel: tuple[int, ...]):
    """They are Δ_K = {−⌊K/2⌋, …, ⌊K/2⌋}^d, in row-major order."""
    d = len(kernel)
    geometry = ConvGeometry(1, 1, kernel, (1,) * d, (0,) * d, "zeros", (1,) * d, 1)
    assert tap_shifts(geometry) == tuple(product(*(range(-(k // 2), k // 2 + 1) for k in kernel)))


def test_a_bijection_is_checked():
    shifts = tap_shifts(PLAIN)
    assert bijection(shifts, [5, 4, 3, 2, 1, 0]) == (5, 4, 3, 2, 1, 0)
    assert bijection(shifts) == (0, 1, 2, 3, 4, 5)
    backwards = conv_to_mhsa(nn.Conv2d(1, 1, (3, 2)), order=[5, 4, 3, 2, 1, 0])
    assert tuple(tuple(tau) for tau in backwards.centres()[1].tolist()) == shifts[::-1]
    for order in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 4], [0, 1, 2, 3, 4, 6], [-1, 0, 1, 2, 3, 4]):
        with pytest.raises(ValueError, match="not a permutation"):
            bijection(shifts, order)
    with pytest.raises(ValueError, match="not a permutation"):
        bijection(((0,), (1,)), (0, 0))
    with pytest.raises(ValueError, match="no bijection"):
        bijection(((1,), (1,)), (0, 1))


@given(
    st.integers(1, 8),
    st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_sources_are_what_torch_pads_with(n: int, mode: str, before: int, after: int):
    """The sources are the positions 1 … n padded by torch, 0 for a zero token; we refuse what torch refuses."""
    x = torch.arange(1.0, n + 1).view(1, 1, n)
    try:
        padded = F.pad(x, (before, after), mode="constant" if mode == "zeros" else mode)
    except RuntimeError:
        with pytest.raises(RuntimeError, match=r"MHSA: (circular|reflect) padding of"):
            sources_along_axis(n, 1, (before, after), mode)
    else:
        assert torch.equal(sources_along_axis(n, 1, (before, after), mode), padded[0, 0].long() - 1)


def test_an_unknown_padding_mode_is_refused():
    with pytest.raises(ValueError, match="unknown padding mode 'wrap'"):
        sources_along_axis(3, 1, (1, 1), "wrap")


def test_a_zero_token_is_zero_whatever_it_would_have_copied():
    """Multiplying by zero would turn ∞ into NaN."""
    grid = TokenGrid.of(ConvGeometry(1, 1, (3,), (1,), (1,), "zeros", (1,), 1), (2,))
    assert grid.gather(torch.full((1, 1, 2), math.inf)).flatten().tolist() == [0, math.inf, math.inf, 0]


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.inf, math.nan, 10**400], ids=lambda alpha: str(alpha)[:4])
def test_a_layer_of_senseless_sharpness_is_refused(alpha: float):
    with pytest.raises(ValueError, match="sharpness"):
        conv_to_mhsa(nn.Conv1d(1, 1, 3), alpha=alpha)


@pytest.mark.parametrize("name", ["w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out", "b_out"])
def test_weights_that_do_not_fit_together_are_refused(name: str):
    """Each tensor in turn has one entry too many on its last axis, or one axis too few."""
    layer = random_layer(ConvGeometry(2, 2, (3,), (1,), (1,), "zeros", (1,), 1))
    tensors = {key: tensor.detach() for key, tensor in layer.named_parameters()}
    assert MHSAWeights(**tensors).v.shape == layer.v.shape
    for wrong in (nn.functional.pad(tensors[name], (0, 1)), tensors[name][0]):
        with pytest.raises(ValueError, match=r"axes, not|where the others make it|do not fit|D_p is"):
            MHSA(layer.geometry, MHSAWeights(**(tensors | {name: wrong})))


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
def test_every_parameter_has_its_own_contiguous_storage(form: Any):
    """So state dicts can be saved tensor by tensor, and no edit affects another tensor."""
    conv: Any = nn.Conv2d(4, 4, 3, groups=2)
    layer = conv_to_mhsa(conv.to(memory_format=form))
    tensors = dict(layer.named_parameters())
    assert sorted(tensors) == ["b_out", "u", "v", "w_key", "w_key_pos", "w_out", "w_qry", "w_val"]
    assert all(tensor.is_contiguous() for tensor in tensors.values())
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors.values())
    assert len({tensor.data_ptr() for tensor in tensors.values()}) == 8
