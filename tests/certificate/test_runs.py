"""The runs of a certificate: their inputs, the bound for each output, and that a run can fail."""

import copy
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from broken import break_execution
from construct import MHSA, conv_to_mhsa
from construct.attention import EXECUTIONS
from truths import permuted
from verify.argument.certification import certify
from verify.argument.runs import HEAVY, impulses, narrow_grid, over_bound, run_executions, sign_pattern
from verify.experiment.sweep import exact_layers
from verify.layers.fields import Attention
from verify.layers.reading import GridRefused, output_size, token_count
from verify.oracle import Convolution, Geometry
from verify.rounding.elements import difference_bound, impulse_bound
from verify.rounding.model import Format
from verify.strategies import convolutions, sizes_for


@given(convolutions(padding_modes=["zeros"], dtypes=[torch.float64]), st.data())
def test_signs_add_up_in_the_middle(conv: Any, data: st.DataObject):
    """With any stride, transposed or not, the middle output is Σ|W| over all taps that read an input."""
    fields, grid = Convolution.read(conv), data.draw(sizes_for(conv, tokens=60))
    channel = data.draw(st.integers(0, conv.out_channels - 1))
    signs = sign_pattern(fields, channel, grid)
    assert set(np.unique(signs)) <= {-1.0, 1.0}
    output = replace(fields, bias=None)(signs[None])[0, channel]
    most = replace(fields.absolute(), bias=None)(np.ones_like(signs)[None])[0, channel]
    middle = tuple(n // 2 for n in output.shape)
    np.testing.assert_allclose(output[middle], most[middle], rtol=1e-12)


@given(convolutions(), st.data())
def test_impulses_are_alone_and_of_full_size(conv: Any, data: st.DataObject):
    """The first input is zero; each other has ±B in all channels of one place."""
    grid, bound = data.draw(sizes_for(conv)), data.draw(st.sampled_from([1.0, 0.1, 2.0**20]))
    zero, *others = impulses(Convolution.read(conv), grid, bound)
    assert not zero.any()
    assert others
    for x in others:
        assert x.shape == (conv.in_channels, *grid)
        assert sorted({*np.abs(x).flat} - {0.0}) == [bound]
        assert (np.count_nonzero(x.reshape(len(x), -1), axis=1) == 1).all()
        assert np.count_nonzero(x.any(axis=0)) == 1


def allowed(conv: Any, layer: Any, inputs: np.ndarray) -> np.ndarray | None:
    """The difference that a certificate allows on these inputs."""
    attention = Attention.read(layer)
    tokens = token_count(Geometry.read(layer), inputs.shape[2:])
    fmt = Format.of(conv.weight.dtype)
    return impulse_bound(Convolution.read(conv), attention, inputs, fmt, tokens)


@given(convolutions(dtypes=[torch.float32, torch.float64], padding_modes=["zeros"]), st.data())
def test_an_impulse_is_allowed_the_rounding_of_what_it_meets(conv: Any, data: st.DataObject):
    """At least the separately computed bound for that input, and little more."""
    layer = conv_to_mhsa(conv)
    if data.draw(st.booleans()):  # |W_val||W_out| is more than |W|
        layer = permuted(layer, [*range(layer.heads), 0, 0])
        layer.w_val.data[-1] *= -1
    inputs = impulses(Convolution.read(conv), data.draw(sizes_for(conv, tokens=60)), 1.0)
    bounds = allowed(conv, layer, inputs)
    wanted = difference_bound(conv, layer, torch.from_numpy(inputs).to(conv.weight.dtype))
    assert bounds is not None
    assert bounds.shape == wanted.shape
    assert (bounds >= wanted * (1 - 1e-5) - 1e-38).all()
    assert (bounds <= wanted * (1 + 1e-3) + 1e-38).all()


@pytest.mark.parametrize("carries", [True, False])
def test_of_a_head_between_the_taps_no_impulse_is_judged_by_channel(carries: bool):
    """If it carries nothing, impulses are judged."""
    conv = nn.Conv1d(1, 1, 3, dilation=2)
    layer = permuted(conv_to_mhsa(conv), [0, 1, 2, 1])
    layer.v.data[3, 1] = -2 * layer.v.data[3, 0]
    if not carries:
        layer.w_out.data[3] = 0
    bounds = allowed(conv, layer, impulses(Convolution.read(conv), (7,), 1.0))
    assert (bounds is None) == carries


# Difference, bound, and whether the run exceeds it.
JUDGED = [
    ([1.0, 1.0], [1.0, 2.0], False),
    ([2.0, 1.0], [1.0, 2.0], True),
    ([2.0, 1.0], [1.0, 0.0], True),
    ([2.0, 1.0], [1.0, inf], True),
    ([0.0, 1.0], [0.0, 1.0], False),
    ([5e-324, 1.0], [0.0, 1.0], True),
    ([1e300, nan], [inf, inf], False),
    ([0.0, nan], [1.0, 1.0], True),
    ([0.0, nan], [inf, 1.0], True),
    ([nan, 0.0], [0.0, 1.0], True),
    ([inf, 0.0], [1.0, 1.0], True),
    ([0.0, 0.0], [nan, 1.0], False),
    ([1.0, 0.0], [nan, 1.0], True),
]


@pytest.mark.parametrize(("difference", "bound", "over"), JUDGED)
def test_what_is_over_a_bound(difference: list[float], bound: list[float], over: bool):
    """NaN exceeds the bound."""
    worst = over_bound(np.array(difference), np.array(bound)).max()
    assert (not worst <= 1) == over


@pytest.mark.parametrize("name", EXECUTIONS)
@pytest.mark.parametrize("value", [nan, 1.0])
def test_every_execution_is_run_and_may_fail(name: str, value: float, monkeypatch: pytest.MonkeyPatch):
    """The wrong execution is named, with the input and its output."""
    conv = nn.Conv2d(2, 2, 3, padding=1)
    layer = conv_to_mhsa(conv)
    inputs, bound = np.ones((1, 2, 4, 4)), np.full(2, 1e-3)
    probes = run_executions(conv, layer, inputs, bound)
    assert [probe.execution for probe in probes] == list(EXECUTIONS)
    assert all(probe.over is None for probe in probes)
    break_execution(monkeypatch, name, lambda run, *args: run(*args) + value)
    by_name = {probe.execution: probe for probe in run_executions(conv, layer, inputs, bound)}
    assert by_name[name].refutes
    assert not by_name[name].worst <= 1
    over = by_name[name].over
    assert over is not None
    np.testing.assert_array_equal(over.input, inputs[0])
    image, *output = over.index
    assert (image, over.exact) == (0, exact_layers.convolution(conv, over.input)[tuple(output)])
    np.testing.assert_allclose(over.attention, over.convolution + value, rtol=1e-6, atol=1e-6)
    certificate = certify(conv, layer, grid=(4, 4))
    assert certificate.verdict.name == "REFUTED"


def without_head(number: int) -> Callable[..., Any]:
    """Leave out one head's values."""

    def wrong(right: Any, layer: MHSA, x: torch.Tensor, grid: Any) -> torch.Tensor:
        less = copy.deepcopy(layer)
        with torch.no_grad():
            less.w_out[number] = 0
        return right(less, x, grid)

    return wrong


def next_output(right: Any, layer: MHSA, x: torch.Tensor, grid: Any) -> torch.Tensor:
    """Give the last position the output of the one before."""
    output = right(layer, x, grid).clone()
    output[..., -1, -1] = output[..., -1, -2]
    return output


FAULTS = {
    "a corner head": without_head(0),
    "the middle head": without_head(4),
    "the last head": without_head(8),
    "the last output": next_output,
    "channels": lambda right, layer, x, grid: right(layer, x, grid)[:, [1, 0, *range(2, layer.out_channels)]],
    "bfloat16": lambda right, layer, x, grid: right(layer, x.bfloat16().to(x.dtype), grid),
    "TF32": lambda right, layer, x, grid: right(layer, (x.view(torch.int32) & -(2**13)).view(torch.float32), grid),
    "images": lambda right, layer, x, grid: right(layer, x[:1].expand_as(x), grid),
}


@pytest.mark.parametrize("name", EXECUTIONS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stride", [1, 2])
def test_a_fault_shows_in_heavy_layers_too(name: str, fault: str, stride: int, monkeypatch: pytest.MonkeyPatch):
    """In exactly the execution that has it."""
    conv = nn.Conv2d(116, 64, 3, padding=1, stride=stride)
    assert conv.weight.numel() >= HEAVY
    layer = conv_to_mhsa(conv)
    break_execution(monkeypatch, name, FAULTS[fault])
    certificate = certify(conv, layer, grid=(20, 20))
    assert certificate.verdict.name == "REFUTED"
    over = {probe["execution"] for probe in certificate.probes if not probe["ratio"] <= 1}
    assert over == {name}


@given(convolutions(), st.data())
def test_one_grid_leaves_outputs_one_wide(conv: Any, data: st.DataObject):
    """It is legal and the widest such, and there is none only where no narrower grid has such outputs."""
    g, grid = Geometry.read(conv), data.draw(sizes_for(conv))
    narrow = narrow_grid(g, grid)

    def is_one_wide(n: int) -> bool:
        try:
            return output_size(g, (*grid[:-1], n))[-1] == 1
        except GridRefused:
            return False

    widths = [n for n in range(1, grid[-1] + 1) if is_one_wide(n)]
    assert narrow == ((*grid[:-1], widths[-1]) if widths else None)


NARROW: Any = nn.Conv2d(1, 6, (3, 5), stride=(1, 2))
CRASHES: Any = nn.Conv2d(2, 6, (2, 1), stride=(3, 2), padding=1, dilation=2)
CRASHES.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("grid", [(5, 6), (20, 20)])
def test_a_convolution_that_is_wrong_where_outputs_are_one_wide_proves_nothing(
    grid: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    """Nor does it refute anything: torch's own convolution is named, and where."""
    right = nn.functional.conv2d

    def wrong(*args: Any) -> torch.Tensor:
        output = right(*args)
        return output + 1 if output.shape[-1] == 1 else output

    certificate = certify(NARROW, conv_to_mhsa(NARROW), grid=grid)
    assert certificate.verdict.name == "PROVED"
    assert f"on contiguous inputs of size {(4, min(7, grid[1]))}, {grid}" in certificate.assumptions[4]
    assert any(probe["grid"][1] == 6 for probe in certificate.probes)
    monkeypatch.setattr(nn.functional, "conv2d", wrong)
    certificate = certify(NARROW, conv_to_mhsa(NARROW), grid=grid)
    assert certificate.verdict.name == "UNDECIDED"
    assert "does not compute its definition, and the attention does" in certificate.verdict.sentence
    assert certificate.overrun is None


@pytest.mark.nasty(77)
def test_a_convolution_that_may_crash_the_process_is_not_run(monkeypatch: pytest.MonkeyPatch):
    """Where torch 2.13 reads past its memory; on larger inputs it does not."""
    for name in ("conv2d", "conv1d"):
        monkeypatch.setattr(nn.functional, name, lambda *_: pytest.fail("torch's convolution was run"))
    certificate = certify(CRASHES, conv_to_mhsa(CRASHES), grid=(6, 1))
    assert certificate.verdict.name == "UNDECIDED"
    assert certificate.verdict.sentence.startswith("step 6 (runs): on inputs of size (6, 1) nothing was run: torch")
    assert "the layer's execution computes it: not run" in str(certificate)
    monkeypatch.undo()
    assert certify(CRASHES, conv_to_mhsa(CRASHES), grid=(6, 4)).verdict.name == "PROVED"
    contiguous = copy.deepcopy(CRASHES).to(memory_format=torch.contiguous_format)
    assert certify(contiguous, conv_to_mhsa(contiguous), grid=(6, 1)).verdict.name == "PROVED"


@pytest.mark.parametrize(("newest", "runs"), [("", False), ("AVX512_CORE_BF16", True)])
def test_in_16_bit_a_stride_leaves_one_output_without_amx(newest: str, runs: bool, monkeypatch: pytest.MonkeyPatch):
    """The row of that grid says why it was not run."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", newest)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": True})
    conv = nn.Conv2d(2, 3, 3, stride=2, dtype=torch.bfloat16)
    certificate = certify(conv, conv_to_mhsa(conv), grid=(9, 9))
    assert certificate.verdict.name == "PROVED"
    (note,) = {probe["note"] for probe in certificate.probes if probe["grid"][1] == 4}
    assert note == ("" if runs else "torch's own convolution may crash the process there (docs/numerics.md)")
    one = certify(conv, conv_to_mhsa(conv), grid=(9, 4))
    assert one.verdict.name == ("PROVED" if runs else "UNDECIDED")
