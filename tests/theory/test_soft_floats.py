"""Soft heads in floats: the bounds of ``RoundingSoft.v`` against the code that runs and the exact layer, by mpmath."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mp
from torch import nn

from construct import conv_to_mhsa
from construct.encoding.encoding import Quadratic
from construct.execution import soft_heads
from construct.tokens import TokenGrid
from report_layers import seeded
from runs import is_quick
from verify.argument.steps import Problem, argue
from verify.oracle import Convolution
from verify.rounding.leakage import leakage
from verify.strategies import convolutions, sizes_for

DIGITS = 60
FORMATS = {torch.float32: (-149, 24), torch.float64: (-1074, 53)}
EXP = 4  # unit roundoffs: the error that is assumed of float64's exponential, two units in the last place
exact = np.vectorize(mp.mpf, otypes=[object])
exp = np.vectorize(mp.exp, otypes=[object])


class Rounded(NamedTuple):
    """u and η/2 of a format, and [dot_bound]."""

    u: Any
    half_eta: Any

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Rounded":
        emin, precision = FORMATS[dtype]
        return cls(mp.mpf(2) ** -precision, mp.mpf(2) ** (emin - 1))

    def dot(self, n: Any, size: Any) -> Any:
        return n * self.u * size + n * self.half_eta * (1 + n * self.u)

    def factor_error(self, n: int) -> Any:
        """η of one axis of n keys, [factor_error]."""
        u, half = Rounded.of(torch.float64)
        epsilon, tiny = EXP * u, 4 * half
        theta = epsilon + n * tiny + n * u * (1 + epsilon + n * tiny) + n * half * (1 + n * u)
        softmax = (u * (1 + epsilon + n * tiny) + epsilon + theta + n * tiny) / (1 - theta) + n * half
        return softmax + self.u * (1 + softmax) + n * (self.half_eta + mp.mpf(2) ** -100)

    def axes_error(self, axes: tuple[int, ...], bound: Any) -> Any:
        """The error of an attended value, [axes_error]."""
        growth = mp.fprod((1 + self.factor_error(n)) * (1 + n * self.u) for n in axes)
        return growth * (bound + mp.fsum(self.dot(n, 0) for n in axes)) - bound


class Bounds(NamedTuple):
    """The summands of [soft_within] and [soft_rounding], by output channel."""

    layer: np.ndarray  # |fl(MHSA(X)) − MHSA(X)|
    rounding: np.ndarray  # of both layers
    leakage: np.ndarray


def bounds(conv: Any, layer: Any, grid: TokenGrid, bound: Any) -> Bounds:
    """The theorems' bounds for |X| ≤ bound."""
    fmt, wide = Rounded.of(layer.w_val.dtype), Rounded.of(torch.float64)
    c = exact(layer.position_vector().detach().numpy())
    scores = abs_scores(c, grid)
    sigma = np.max([wide.dot(2, s).max(axis=(1, 2)) for s in scores], axis=0)
    spread = np.max([2 * s.max(axis=(1, 2)) for s in scores], axis=0) + 2 * sigma
    rho = len(scores) * (sigma + wide.u * spread)
    moved = 2 * rho + 4 * rho**2  # e^2ρ − 1 is less, for 2ρ ≤ 1
    assert (2 * rho <= 1).all()
    w_val, w_out = (exact(np.abs(w.detach().double().numpy())) for w in (layer.w_val, layer.w_out))
    size = np.array(
        [[a @ b for a, b in zip(*ab, strict=True)] for ab in zip(w_val, w_out, strict=True)]
    )  # (h, g, i, o)
    entry = fmt.dot(w_val.shape[3], size)
    error = fmt.axes_error(grid.shape, bound)
    b_out = exact(np.abs(layer.b_out.detach().double().numpy()))  # the convolution's bias
    last = fmt.dot(1 + size.shape[0] * size.shape[2], b_out + over(size + entry) * (bound + error))
    figure = over(entry) * (bound + error) + over(size) * error + last
    weight = exact(Convolution.read(conv).sizes)
    theirs = fmt.dot(1 + conv.weight.numel() // conv.out_channels, b_out + weight * bound)
    missing = np.array([leakage(float(-a), [0] * len(scores)) for a in c[:, 0]])
    leaked = 2 * bound * over(size * ((1 + moved) * missing)[:, None, None, None])
    return Bounds(figure + over(size * moved[:, None, None, None]) * bound, theirs + figure, leaked)


def over(terms: np.ndarray) -> np.ndarray:
    """The sum over heads and input channels, (D_out,)."""
    return terms.sum(axis=(0, 2)).ravel()


def abs_scores(c: np.ndarray, grid: TokenGrid) -> list[np.ndarray]:
    """|c_0|δ² + |c_i||δ| on each axis, (heads, queries, keys)."""
    return [abs(c[:, 0, None, None]) * d * d + abs(c[:, i, None, None]) * abs(d) for i, d in enumerate(deltas(grid), 1)]


def deltas(grid: TokenGrid) -> list[np.ndarray]:
    """k − q on each axis, (queries, keys)."""
    sides = zip(grid.queries, grid.shape, strict=True)
    return [exact(np.arange(n)[None] - queries.numpy()[:, None]) for queries, n in sides]


def attended(layer: Any, grid: TokenGrid, x: torch.Tensor) -> np.ndarray:
    """Eq. 3 and Eq. 6, exact but for DIGITS: (B, D_out, *o)."""
    c = exact(layer.position_vector().detach().numpy())
    tokens = exact(grid.padded(x).double().numpy())
    _, g, i, _ = layer.w_val.shape
    y: Any = exact(layer.b_out.detach().double().numpy()).reshape(-1, *(1,) * len(grid.shape))
    w_val, w_out = (exact(w.detach().double().numpy()) for w in (layer.w_val, layer.w_out))
    for vector, into, out in zip(c, w_val, w_out, strict=True):
        read = tokens
        for axis, d in enumerate(deltas(grid)):
            weights = exp(vector[0] * d * d + vector[axis + 1] * d)
            weights = weights / weights.sum(axis=1, keepdims=True)
            read = np.moveaxis(np.tensordot(read, weights, axes=(axis + 2, 1)), -1, axis + 2)
        parts = [np.tensordot(read[:, s * i : (s + 1) * i], into[s] @ out[s], axes=(1, 0)) for s in range(g)]
        y = y + np.concatenate([np.moveaxis(part, -1, 1) for part in parts], axis=1)
    return y


def excess(conv: Any, layer: Any, x: torch.Tensor) -> float:
    """The computed layer's largest error relative to [soft_rounding]'s bound."""
    with mp.workdps(DIGITS), torch.no_grad():
        grid = TokenGrid.of(layer.geometry, tuple(x.shape[2:]))
        most = bounds(conv, layer, grid, mp.mpf(float(x.abs().max()))).layer
        error = abs(exact(layer(x).double().numpy()) - attended(layer, grid, x))
        return float((error / most.reshape(-1, *(1,) * len(grid.shape))).max())


def softened(conv: Any, alpha: float, fraction: float) -> Any:
    """The layer at this sharpness, every head looking so far off its key along the first axis."""
    layer = conv_to_mhsa(conv, alpha=alpha)
    with torch.no_grad():
        layer.v[:, 1] -= 2 * layer.v[:, 0] * fraction
    return layer


SOFT = {"alpha": st.sampled_from([0.01, 0.3, 1.0, 3.7, 12.0, 40.0]), "fraction": st.sampled_from([0.0, 0.25, -0.4])}


@given(convolutions(dtypes=[*FORMATS], integers=[False]), st.data())
@settings(max_examples=40)
def test_the_code_that_runs_is_within_the_bound_of_the_exact_layer(conv: Any, data: st.DataObject) -> None:
    size = data.draw(sizes_for(conv, tokens=24))
    assume(is_quick(conv, size) and conv.weight.numel() < 400)
    x = torch.randn(1, conv.in_channels, *size, generator=torch.Generator().manual_seed(0), dtype=conv.weight.dtype)
    layer = softened(conv, *(data.draw(SOFT[name]) for name in ("alpha", "fraction")))
    assert excess(conv, layer, x) <= 1


@given(convolutions(dtypes=[*FORMATS], integers=[False]), st.data())
@settings(max_examples=60)
def test_a_certificate_counts_no_less_than_the_theorem(conv: Any, data: st.DataObject) -> None:
    size = data.draw(sizes_for(conv, tokens=60))
    assume(is_quick(conv, size) and conv.weight.numel() < 2000)
    layer = softened(conv, data.draw(SOFT["alpha"]), 0.0)
    bound = data.draw(st.sampled_from([1.0, 0.3, 100.0]))
    counted = argue(Problem.read(conv, layer, size, bound), may_leak=True, may_differ=True)
    with mp.workdps(DIGITS):
        proved = bounds(conv, layer, TokenGrid.of(layer.geometry, size), mp.mpf(bound))
        assert (exact(counted.rounding) >= proved.rounding).all()
        assert (exact(counted.leakage) >= proved.leakage).all()


def moved(p: torch.Tensor) -> torch.Tensor:
    return p * torch.where(torch.arange(p.shape[2]) % 2 == 0, 1, 1 + 2.0**-12)


def dropped(p: torch.Tensor) -> torch.Tensor:
    return p.masked_fill(p < 2.0**-8, 0)


@pytest.mark.parametrize("change", [None, moved, dropped, "scores in float32"])
def test_disturbed_weights_exceed_it(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    conv = seeded(lambda: nn.Conv1d(1, 1, 3, padding=40, dilation=40))
    layer = softened(conv, 3.7, 0.25)
    x = torch.where(torch.arange(86) % 2 == 0, 1.0, -1.0).expand(1, 1, -1)
    factors, along = soft_heads._factors, Quadratic.along
    if callable(change):
        monkeypatch.setattr(soft_heads, "_factors", lambda *args: change(factors(*args)))
    elif change:
        monkeypatch.setattr(Quadratic, "along", lambda self, c, d, i: along(self, c.float(), d.float(), i))
    assert (excess(conv, layer, x) > 1) == (change is not None)
