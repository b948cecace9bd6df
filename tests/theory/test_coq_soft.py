"""The verified checker's bound for soft heads in floats: accepted as certified, never below what runs, nor for faults."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mp
from test_soft_floats import DIGITS, FORMATS, SOFT, bounds, softened
from torch import nn

from construct import MHSA, conv_to_mhsa
from construct.execution.plan import plan_for
from construct.tokens import TokenGrid
from fault_table import ALL, convolution_and_inputs
from report_layers import seeded
from runs import is_quick
from verified import Asked, pair_of, proved
from verify.argument.runs import adversarial_inputs
from verify.checker import parts_of
from verify.coq.verified import export
from verify.oracle import Convolution
from verify.recheck.layer_pair import LayerPair
from verify.strategies import convolutions, sizes_for


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


def part(pair: LayerPair, name: str = "bound") -> float:
    """A part of our checker's bound, of the output channel that has most of it."""
    return float(parts_of(pair)[0][name].max())


def soft(asked: Asked, pair: LayerPair, most: float, grid: tuple[int, ...] = (), bound: float = 1.0) -> bool:
    question = export.soft(*FORMATS[getattr(torch, pair.stated.dtype)], bound, most, grid or pair.stated.grid)
    return asked.answer(pair, question).accepted


@given(convolutions(dtypes=[torch.float32, torch.float64], integers=[False]), st.data())
@settings(max_examples=60)
def test_the_certified_bound_is_accepted_and_no_bound_below_what_runs(conv: Any, data: st.DataObject) -> None:
    asked, size = Asked(), data.draw(sizes_for(conv, tokens=60))
    assume(is_quick(conv, size) and conv.weight.numel() < 2000)
    layer = softened(conv, *(data.draw(SOFT[name]) for name in ("alpha", "fraction")))
    sharp = data.draw(st.sets(st.integers(0, len(layer.v) - 1), max_size=3))
    layer.v.data[sorted(sharp)] *= 2.0**20
    pair = pair_of(conv, layer, size, within=1e9)
    assert soft(asked, pair, part(pair))
    x = torch.from_numpy(adversarial_inputs(Convolution.read(conv), size, 1.0)).to(conv.weight)
    with torch.no_grad():
        differs = float((layer(x) - conv(x)).abs().max())
    assert not differs or not soft(asked, pair, float(np.nextafter(differs, 0)))


@pytest.mark.parametrize("fraction", [0.0, 0.25, -0.375])
@pytest.mark.parametrize("alpha", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("make", [lambda: nn.Conv2d(3, 4, 3, padding=1), lambda: nn.ConvTranspose1d(2, 3, 4, 3)])
def test_a_bound_a_hair_below_the_leakage_is_rejected(make: Any, alpha: float, fraction: float, asked: Asked) -> None:
    """On so large an input that keys beyond it weigh nothing; certificates count 2^−20 more."""
    conv = seeded(make).double()
    size = (60,) * (conv.weight.ndim - 2)
    pair = pair_of(conv, softened(conv, alpha, fraction), size, within=1e9)
    assert soft(asked, pair, part(pair))
    assert not soft(asked, pair, part(pair, "leakage") * (1 - 2.0**-19))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("alpha", "fraction"), [(1000.0, 0.0), (2000.0, 0.25), (2.0**30, 0.0)])
def test_heads_as_sharp_as_is_assumed_run_as_shifts(name: str, alpha: float, fraction: float) -> None:
    conv, x = convolution_and_inputs(name, 0, integers=True)
    grid = TokenGrid.of(conv_to_mhsa(conv).geometry, tuple(x.shape[2:]))
    assert plan_for(softened(conv, alpha, fraction), grid).sharp == tuple(range(conv.weight[0, 0].numel()))


CHANGES: dict[str, Callable[[MHSA], Any]] = {
    "weight": lambda layer: layer.w_val[1].mul_(1 + 2.0**-8),
    "bias": lambda layer: layer.b_out.add_(2.0**-8),
    "a softer head": lambda layer: layer.v[4].mul_(0.75),
    "a head moved": lambda layer: layer.v[4].copy_(layer.v[3]),
    "a head moved a little": lambda layer: layer.v[4, 1].add_(layer.v[4, 0] / 4),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_changed_takes_a_larger_bound(change: str, dtype: torch.dtype, asked: Asked) -> None:
    conv = seeded(lambda: nn.Conv2d(2, 3, 3, padding=1)).to(dtype)
    layer = softened(conv, 8.0).requires_grad_(False)
    most = part(pair_of(conv, layer, (5, 6), within=1e9))
    CHANGES[change](layer)
    pair = pair_of(conv, layer, (5, 6), within=1e9)
    assert not soft(asked, pair, most)
    assert soft(asked, pair, part(pair))


@pytest.mark.parametrize("vector", [[-8.0, 16.0, 0.0], [-8.0, 320.0, 0.0], [8.0, 0.0, 0.0]])
def test_heads_that_look_at_no_tap_are_judged_over_the_reals(vector: list[float], asked: Asked) -> None:
    conv = seeded(lambda: nn.Conv2d(2, 3, 3, padding=2, dilation=2)).double()
    layer = softened(conv, 8.0).requires_grad_(False)
    layer.v[4] = torch.tensor(vector)
    pair = pair_of(conv, layer, (6, 6), within=100.0)
    assert not soft(asked, pair, 1e30)
    answer = asked.answer(pair)
    assert answer.accepted
    assert answer.sentence.startswith("over the reals")


@pytest.mark.parametrize("alpha", [2.0**46, 2.0**100, 2.0**1000])
def test_no_bound_where_scores_round_by_much(alpha: float, asked: Asked) -> None:
    conv = seeded(lambda: nn.Conv1d(2, 3, 3)).double()
    assert not soft(asked, pair_of(conv, softened(conv, alpha), (8,), within=1e9), 1e300)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_rounding_is_counted_and_no_more(dtype: torch.dtype, asked: Asked) -> None:
    """As by RoundingSoft.v, for heads that leak far less than they round."""
    conv = seeded(lambda: nn.Conv2d(3, 4, 3, padding=1)).to(dtype)
    layer = softened(conv, 90.0)
    with mp.workdps(DIGITS):
        proved = bounds(conv, layer, TokenGrid.of(layer.geometry, (5, 6)), mp.mpf(1))
        most = float(max(proved.rounding + proved.leakage))
    pair = pair_of(conv, layer, (5, 6), within=1e9)
    assert soft(asked, pair, most * (1 + 2.0**-20))
    assert not soft(asked, pair, most * (1 - 2.0**-20))


def test_the_sizes_count(asked: Asked) -> None:
    """Rounding grows with them; sizes that no input has are refused, though no input exceeds the bound."""
    conv = seeded(lambda: nn.Conv1d(2, 3, 3, padding=1))
    pair = pair_of(conv, softened(conv, 60.0), (5,), within=1e9)
    most = part(pair)
    assert [soft(asked, pair, most, (n,)) for n in (1, 5, 5000)] == [True, True, False]
    assert not any(soft(asked, pair, 1e9, wrong) for wrong in ((5, 5), (0,), (-5,)))
    assert [soft(asked, pair, most, bound=bound) for bound in (0.5, 1.0, 4.0, -1.0)] == [True, True, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_difference_within_a_bound_is_asked_of_the_floats(dtype: torch.dtype, asked: Asked) -> None:
    conv = seeded(lambda: nn.Conv2d(2, 3, 3, padding=1)).to(dtype)
    layer = softened(conv, 2.0, 0.25)
    pair = pair_of(conv, layer, (5, 5), within=part(pair_of(conv, layer, (5, 5), within=1e9)))
    assert proved(pair)
    answer = asked.answer(pair)
    assert answer.accepted
    assert f"in {'float64' if dtype == torch.float64 else 'float32'} a difference of at most" in answer.sentence
    assert (
        "for |x| ≤ 1 on inputs up to (5, 5), as run by default, if nothing overflows and float64's exponential"
        in answer.sentence
    )
