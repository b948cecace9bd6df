"""Head dimensions by exact rank: found, not to be had, or not looked for; the log says which."""

import logging

import pytest
import torch
from torch import nn

from construct import MHSA, MHSAWeights, conv_to_mhsa
from construct.rank import LARGEST
from verify.certification import certify


def of_rank_one(side: int, dtype: torch.dtype = torch.float64) -> nn.Conv1d:
    generator = torch.Generator().manual_seed(0)
    conv = nn.Conv1d(side, side, 2, dtype=dtype, bias=False)
    for tap in range(2):
        column, row = (torch.randint(1, 5, (side,), generator=generator) for _ in range(2))
        conv.weight.data[..., tap] = column[:, None] * 2.0 ** row[None, :]
    return conv


def test_a_low_rank_is_found(caplog: pytest.LogCaptureFixture):
    conv = of_rank_one(6)
    layer = conv_to_mhsa(conv, head_dim="rank")
    assert layer.w_val.shape[-1] == 1
    assert certify(conv, layer, grid=(4,)).verdict.name == "PROVED"
    assert caplog.text == ""


def test_a_rank_that_was_not_looked_for_is_not_said_to_be_full(caplog: pytest.LogCaptureFixture):
    conv = of_rank_one(LARGEST + 1)
    with caplog.at_level(logging.WARNING):
        layer = conv_to_mhsa(conv, head_dim="rank")
    assert layer.w_val.shape[-1] == LARGEST + 1
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


@pytest.mark.parametrize("head_dim", [1, 2, 3, 4])
def test_several_narrow_heads_at_a_shift_are_as_good_as_a_wide_one(head_dim: int):
    """docs/head_width.md: ⌈rank/D_h⌉ heads a shift, the factors of one wide head cut up, are the same layer."""
    conv = nn.Conv1d(4, 5, 2)
    wide = conv_to_mhsa(conv)
    pieces = -(-4 // head_dim)
    tensors = {name: tensor.detach() for name, tensor in wide.named_parameters()}
    cut = {name: tensor.repeat_interleave(pieces, 0) for name, tensor in tensors.items() if name != "b_out"}
    more = head_dim * pieces - 4
    w_val, w_out = nn.functional.pad(tensors["w_val"], (0, more)), nn.functional.pad(tensors["w_out"], (0, 0, 0, more))
    cut["w_val"] = w_val.unflatten(3, (pieces, head_dim)).movedim(3, 1).flatten(0, 1)
    cut["w_out"] = w_out.unflatten(2, (pieces, head_dim)).movedim(2, 1).flatten(0, 1)
    narrow = MHSA(wide.geometry, MHSAWeights(**cut, b_out=tensors["b_out"]))
    assert (narrow.heads, narrow.w_val.shape[-1]) == (2 * pieces, head_dim)
    assert certify(conv, narrow, grid=(5,)).verdict.name == "PROVED"
    if pieces > 1:  # one head of a shift less, and the rank is too low
        less = {name: tensor[1:] for name, tensor in cut.items()}
        fewer = MHSA(wide.geometry, MHSAWeights(**less, b_out=tensors["b_out"]))
        assert certify(conv, fewer, grid=(5,)).verdict.name == "REFUTED"
