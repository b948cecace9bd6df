"""REFUTED needs an output that differs beyond rounding; heads that look between keys, nowhere, or softly do not suffice."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

import construct
import verify
from report_layers import seeded
from runs import is_quick
from verify.rounding.elements import convolution_bound
from verify.rounding.soft_heads import one_hot, soft_heads_bound
from verify.samples.sampling import check_call
from verify.strategies import convolutions


def halfway() -> tuple[nn.Conv1d, Any]:
    """Two equal taps, as one head that looks halfway between them with twice the matrix."""
    conv = nn.Conv1d(2, 2, 2, bias=False)
    layer = construct.conv_to_mhsa(conv)
    with torch.no_grad():
        conv.weight[:, :, 1] = conv.weight[:, :, 0]
        layer.w_val[0, 0], layer.w_out[0, 0] = torch.eye(2), 2 * conv.weight[:, :, 0].T
        layer.w_out[1].zero_()
        layer.v[0] = torch.tensor([-1024.0, 1024.0])
    return conv, layer


def cancelling() -> tuple[nn.Conv2d, Any]:
    """Two heads that average all tokens and whose matrices cancel."""
    conv = nn.Conv2d(3, 4, 3, padding=1)
    layer = construct.conv_to_mhsa(conv)
    with torch.no_grad():
        conv.weight[:, :, 1, 1:] = 0
        layer.v[4:6] = 0
        layer.w_val[5] = layer.w_val[4]
        layer.w_out[5] = -layer.w_out[4]
    return conv, layer


def softly_cancelling() -> tuple[nn.Conv1d, Any]:
    """The same with soft heads aimed at the tap, which read a mixture rather than its token."""
    layer = construct.conv_to_mhsa(nn.Conv1d(3, 2, 2), alpha=2**-6)
    conv = nn.Conv1d(3, 2, 2)
    with torch.no_grad():
        conv.weight.zero_()
        layer.b_out.copy_(conv.bias)  # type: ignore[arg-type]
        layer.v[1] = layer.v[0]
        layer.w_val[1] = layer.w_val[0]
        layer.w_out[1] = -layer.w_out[0]
    return conv, layer


@pytest.mark.parametrize("make", [halfway, cancelling, softly_cancelling])
def test_the_same_function_by_other_means_is_not_refuted(make: Callable[[], Any], tmp_path: Path) -> None:
    conv, layer = seeded(make)
    size = (1, conv.in_channels, *[12] * (conv.weight.dim() - 2))
    x = seeded(lambda: torch.randn(size))
    assert verify.compare(conv, layer, x).max_abs < 1e-6
    for scale in (1.0, 1e4):
        assert check_call(conv, layer, scale * x, "noise").verdict.name in ("UNDECIDED", "CHECKED")
    verify.write_report(tmp_path / "page.html", conv, layer, x)
    (verdict,) = re.findall(r'class="verdict (\w+)', (tmp_path / "page.html").read_text())
    assert verdict != "REFUTED"


@given(convolutions(), st.integers(0, 2**16), st.sampled_from([0.0, 0.5, 40.0, 1024.0]), st.booleans())
def test_the_bound_covers_what_rounding_does(conv: Any, seed: int, scale: float, content: bool) -> None:
    """For any v and content, the layer in its own type is within the bound of its float64 run."""
    x = verify.samples.sampling.generated_inputs(conv, 1, seed)
    assume(is_quick(conv, tuple(x.shape[2:])))
    layer = construct.conv_to_mhsa(conv)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.v.copy_(scale * torch.randn(layer.v.shape, generator=generator))
        if content:
            layer.w_qry.copy_(torch.randn(layer.w_qry.shape, generator=generator))
            layer.w_key.copy_(torch.randn(layer.w_key.shape, generator=generator))
        exact = copy.deepcopy(layer).double()
        error = (layer(x).double() - exact(x.double())).abs().numpy()
    bound = soft_heads_bound(layer, conv, x, error.shape[2:]) - convolution_bound(conv, x, error.shape[2:])
    assert (error <= np.nan_to_num(bound, nan=np.inf) * (1 + 1e-3) + 1e-12 * float(x.abs().max())).all()
    assert not (content and conv.weight.any() and one_hot(layer))
