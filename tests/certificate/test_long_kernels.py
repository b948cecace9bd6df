"""Kernels of thousands of taps over tens of thousands of samples are certified without a table of all pairs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from construct import conv_to_mhsa
from rechecked import Files
from verify.argument.certification import certify
from verify.experiment.sweep import exact_layers
from verify.layers import reading
from verify.layers.reading import exact_output, input_at, mismatched_tap, output_size, tap_place, taps_at, tokens_along
from verify.oracle import Convolution, Geometry, stated_geometry
from verify.recheck import grids
from verify.strategies import convolutions, sizes_for

LONG = 2**31


@pytest.mark.nasty(68)
@pytest.mark.parametrize(
    ("conv", "grid"),
    [
        (lambda: nn.Conv1d(1, 2, 220), (60_000,)),
        (lambda: nn.Conv1d(1, 2, 256, stride=64, padding=128, padding_mode="reflect"), (60_000,)),
        pytest.param(lambda: nn.Conv1d(1, 2, 220), (310_000,), marks=pytest.mark.deep),  # places squared exceed 2³²
        (lambda: nn.ConvTranspose1d(2, 1, 60, stride=15), (2000,)),
        (lambda: nn.Conv2d(1, 1, 11), (64, 64)),
        (lambda: nn.Conv3d(4, 4, 3, padding=1), (32, 32, 32)),
    ],
    ids=["220 taps", "a spectrogram", "a long sound", "transposed", "121 heads", "27 heads"],
)
def test_long_layers_get_a_verdict(conv: Any, grid: tuple[int, ...], tmp_path: Path):
    """From the certifier and the checker; a single head off by an ulp is found."""
    conv = conv()
    layer = conv_to_mhsa(conv)
    certificate = certify(conv, layer, grid=grid)
    assert certificate.verdict.name == "PROVED"
    assert any(probe["inputs"] for probe in certificate.probes)
    assert Files(tmp_path).rechecked(certificate, conv, layer) == "PROVED"
    with torch.no_grad():
        layer.w_val[layer.heads // 3] *= 1 + 2.0**-23
        layer.w_out[layer.heads // 3] *= 1 + 2.0**-23
    certificate = certify(conv, layer, grid=grid)
    assert certificate.verdict.name == "REFUTED"
    assert certificate.counterexample is not None
    assert Files(tmp_path).rechecked(certificate, conv, layer) == "REFUTED"


@given(convolutions(dtypes=[torch.float32], channels=["one"]), st.data())
def test_each_tap_reads_what_torch_reads(conv: Any, data: st.DataObject):
    """An impulse at every input confirms the certifier's and the checker's receptive fields."""
    grid = data.draw(sizes_for(conv, tokens=30))
    g, other = Geometry.read(conv), grids.geometry_of(stated_geometry(conv))
    outputs = output_size(g, grid)
    axes = [grids.axis_of(other, axis, n) for axis, n in enumerate(grid)]
    with torch.no_grad():
        conv.weight.copy_(torch.arange(1, conv.weight.numel() + 1).view(conv.weight.shape))
        if conv.bias is not None:
            conv.bias.zero_()
    weight = conv.weight.detach().view(-1).tolist()
    impulses = torch.eye(int(np.prod(grid))).view(-1, 1, *grid)
    with torch.no_grad():
        responses = conv(impulses)[:, 0].numpy()  # (inputs, *outputs)
    for place in np.ndindex(*outputs):
        expected = np.zeros(grid)
        for tap, read in taps_at(g, grid, place):
            expected[read] += weight[int(np.ravel_multi_index(tap, g.kernel_size))]
        np.testing.assert_array_equal(responses[(slice(None), *place)].reshape(grid), expected)
        theirs = np.zeros(grid)
        for tap, read in enumerate(grids.read_by_taps(other, axes, list(place))):
            if -1 not in read:
                theirs[read] += weight[tap]
        np.testing.assert_array_equal(theirs, expected)
    for axis, (n, o) in enumerate(zip(grid, outputs, strict=True)):
        assert mismatched_tap(g, axis, n, o) is None


@given(convolutions(dtypes=[torch.float32], channels=["one"]), st.data())
def test_a_token_or_a_shift_that_is_wrong_is_seen(conv: Any, data: st.DataObject):
    """Exactly if some tap and its head then read different inputs."""
    grid = data.draw(sizes_for(conv, tokens=30))
    g = Geometry.read(conv)
    axis = data.draw(st.integers(0, g.dims - 1))
    n, outputs = grid[axis], output_size(g, grid)[axis]
    fault = data.draw(st.sampled_from(["tokens", "shift", "query"]))
    right = {name: getattr(reading, name) for name in ("tokens_along", "shift_of_tap", "query_places")}
    at = data.draw(st.integers(0, len(tokens_along(g, axis, n)) - 1))
    wrong_tap = data.draw(st.integers(0, g.kernel_size[axis] - 1))

    def tokens(*args: Any) -> np.ndarray:
        row = right["tokens_along"](*args).copy()
        row[at] = row[at - 1] if row[at] != row[at - 1] else n + 7
        return row

    faults = {
        "tokens": ("tokens_along", tokens),
        "shift": ("shift_of_tap", lambda g, axis, tap: right["shift_of_tap"](g, axis, tap) + (tap == wrong_tap)),
        "query": ("query_places", lambda *args: right["query_places"](*args) + 1),
    }
    name, wrong = faults[fault]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, name, wrong)
        mismatch = mismatched_tap(g, axis, n, outputs)
        row, queries = reading.tokens_along(g, axis, n), reading.query_places(g, axis, outputs)
        odd = None
        for tap in range(g.kernel_size[axis]):
            keys = queries + reading.shift_of_tap(g, axis, tap)
            reads = input_at(g, axis, n, tap_place(g, axis, tap, np.arange(outputs)))
            if keys.min() < 0 or keys.max() >= len(row) or (row[keys] != reads).any():
                odd = tap if odd is None else odd
    if fault == "tokens":
        assert mismatch == odd
    else:  # replicated tokens may be equal; then nothing is claimed
        assert mismatch is not None or odd is None


@given(convolutions(), st.data())
def test_an_exact_output_is_exact(conv: Any, data: st.DataObject):
    grid = data.draw(sizes_for(conv, tokens=30))
    x = np.random.default_rng(0).normal(size=(conv.in_channels, *grid))
    truth = exact_layers.convolution(conv, x)
    place = tuple(data.draw(st.integers(0, n - 1)) for n in truth.shape)
    assert exact_output(Convolution.read(conv), x, place) == truth[place]


@pytest.mark.parametrize("n", [2**26, LONG])
def test_what_is_too_long_to_go_through_is_refused_at_once(n: int):
    conv = nn.Conv1d(1, 1, 2, padding=1)
    with pytest.raises(ValueError, match="too many to go through one by one"):
        certify(conv, conv_to_mhsa(conv), grid=(n,))
    with pytest.raises(grids.Rejected, match="too long for this checker"):
        grids.axis_of(grids.geometry_of(stated_geometry(conv)), 0, n)
