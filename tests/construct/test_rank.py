"""Head dimensions by exact rank: found, unattainable, or not searched for, as the log says."""

import logging
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from construct import conv_to_mhsa
from construct.heads.rank import LARGEST_ELIMINATED
from verify.argument.certification import certify
from verify.strategies import Case, cases, convolutions, sizes_for


def of_rank_one(side: int, dtype: torch.dtype = torch.float64) -> nn.Conv1d:
    generator = torch.Generator().manual_seed(0)
    conv = nn.Conv1d(side, side, 2, dtype=dtype, bias=False)
    for tap in range(2):
        column, row = (torch.randint(1, 5, (side,), generator=generator) for _ in range(2))
        conv.weight.data[..., tap] = column[:, None] * 2.0 ** row[None, :]
    return conv


def test_a_rank_that_was_not_looked_for_is_not_said_to_be_full(caplog: pytest.LogCaptureFixture):
    conv = of_rank_one(LARGEST_ELIMINATED + 1)
    with caplog.at_level(logging.WARNING):
        layer = conv_to_mhsa(conv, head_dim="rank")
    assert layer.w_val.shape[-1] == LARGEST_ELIMINATED + 1
    assert "were not looked for" in caplog.text
    assert "49x49 is beyond 48x48" in caplog.text
    assert "no exact factors" not in caplog.text


def test_factors_that_cannot_be_stored_are_said_so(caplog: pytest.LogCaptureFixture):
    conv = nn.Conv1d(2, 2, 1, bias=False)
    conv.weight.data[..., 0] = torch.tensor([[3.0, 9.0], [7.0, 21.0]])  # columns 1 : 3, rows 3 : 7
    assert conv_to_mhsa(conv, head_dim="rank").w_val.shape[-1] == 1
    conv.weight.data[..., 0] = torch.tensor([[3.0, 5.0], [9.0, 15.0]]) * torch.tensor([[7.0], [11.0]])
    with caplog.at_level(logging.WARNING):
        assert conv_to_mhsa(conv, head_dim="rank").w_val.shape[-1] == 2
    assert "that torch.float32 can store" in caplog.text


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        (torch.float64, [[1e-300, 2e-300], [1e300, 2e300]]),  # a factor from columns would be 1e300 / 1e-300
        (torch.float16, [[6e-8] * 3, [60000.0] * 3, [1.0] * 3]),  # 60000 / 6e-8, which float16 stores as infinity
    ],
    ids=str,
)
def test_factors_beyond_every_number_are_made_of_the_rows_instead(dtype: torch.dtype, rows: list[list[float]]):
    conv = nn.Conv1d(len(rows), len(rows), 1, bias=False, dtype=dtype)
    conv.weight.data[..., 0] = torch.tensor(rows, dtype=torch.float64).to(dtype)
    layer = conv_to_mhsa(conv, head_dim="rank")
    assert layer.w_val.shape[-1] == 1
    assert torch.equal(layer.weight, conv.weight)


@given(cases(integers=[True]), st.integers(1, 4), st.sampled_from(["dense", "axial", "auto"]))
def test_several_narrow_heads_at_a_shift_carry_any_kernel(case: Case, head_dim: int, execution: str):
    """For general D_h < D_out, Σ_h over ⌈min(D_in, D_out)/D_h⌉ heads per shift is exact on integers."""
    layer = conv_to_mhsa(case.conv, head_dim=head_dim, heads_per_shift=None, execution=execution)
    taps, least = layer.geometry.taps, min(layer.in_channels, layer.out_channels) // layer.geometry.groups
    assert (layer.heads, layer.w_val.shape[-1]) == (taps * math.ceil(least / head_dim), head_dim)
    with torch.no_grad():
        assert torch.equal(layer(case.x), case.conv(case.x))


@settings(max_examples=settings().max_examples // 2)
@given(convolutions(), st.integers(1, 3), st.data())
def test_several_narrow_heads_at_a_shift_are_proved(conv: Any, head_dim: int, data: st.DataObject):
    layer = conv_to_mhsa(conv, head_dim=head_dim, heads_per_shift=None)
    assert certify(conv, layer, grid=data.draw(sizes_for(conv))).verdict.name == "PROVED"


def test_too_few_heads_at_a_shift_are_refuted_and_fit_a_difference():
    conv = nn.Conv2d(4, 5, 2)
    fewer = conv_to_mhsa(conv, head_dim=1, heads_per_shift=3)
    assert fewer.heads == 12
    assert certify(conv, fewer, grid=(5, 5)).verdict.name == "REFUTED"
    assert certify(conv, fewer, grid=(5, 5), within=16.0).verdict.name == "PROVED"
    exact = conv_to_mhsa(conv, head_dim=1, heads_per_shift=4)
    assert certify(conv, exact, grid=(5, 5)).verdict.name == "PROVED"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"heads_per_shift": None}, "take a head_dim that is a positive number, not None"),
        ({"heads_per_shift": 2, "head_dim": "rank"}, "not 'rank'"),
        ({"heads_per_shift": 0, "head_dim": 1}, "heads_per_shift is 0"),
        ({"heads_per_shift": 2, "head_dim": True}, "not True"),
        ({"heads_per_shift": 1.5, "head_dim": 2}, "heads_per_shift is 1.5"),
    ],
)
def test_heads_a_shift_that_are_no_number_are_refused(options: dict, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        conv_to_mhsa(nn.Conv1d(4, 5, 2), **options)
