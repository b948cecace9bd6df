"""Soft heads in floats: the bounds of ``RoundingSoft.v`` against the code that runs and the exact layer, by mpmath."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from mpmath import mp
from torch import nn

from construct import conv_to_mhsa
from construct.encoding.encoding import Quadratic
from construct.execution import axial
from construct.execution.plan import plan_for
from construct.tokens import TokenGrid
from report_layers import seeded
from runs import is_quick
from verify.argument.steps import Problem, argue
from verify.oracle import Convolution
from verify.rounding.elements import convolution_bound
from verify.rounding.leakage import leakage
from verify.rounding.soft_heads import soft_heads_bound
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
        one = 1 + epsilon + n * tiny
        softmax = (u * (2 + u) * one + epsilon + theta + n * tiny) / (1 - theta) + n * half * (1 + (1 + u) * one)
        return softmax + self.u * (1 + softmax) + n * (self.half_eta + mp.mpf(2) ** -100)

    def axes_error(self, axes: tuple[int, ...], bound: Any) -> Any:
        """The error of an attended value, [axes_error]."""
        growth = mp.fprod((1 + self.factor_error(n)) * (1 + n * self.u) for n in axes)
        return growth * (bound + mp.fsum(self.dot(n, 0) for n in axes)) - bound


class Bounds(NamedTuple):
    """The theorems' bounds, by output channel."""

    layer: np.ndarray  # |fl(MHSA(X)) − MHSA(X)|
    rounding: np.ndarray  # of both layers
    leakage: np.ndarray


def bounds(conv: Any, layer: Any, grid: TokenGrid, bound: Any) -> Bounds:
    """Those of [soft_rounding], if all heads are soft, and of [soft_within], for |X| ≤ bound."""
    fmt, (w_val, w_out, b_out) = Rounded.of(layer.w_val.dtype), magnitudes(layer)
    moved = e_2rho(abs_scores(layer, grid), 2)
    size = (w_val[..., None] * w_out[:, :, None]).sum(axis=3)  # (h, g, i, o)
    entry = fmt.dot(w_val.shape[3], size)
    soft = exact(1.0 * np.isin(range(len(size)), plan_for(layer, grid).soft)).reshape(moved.shape)
    error = soft * fmt.axes_error(grid.shape, bound)
    last = fmt.dot(1 + size.shape[0] * size.shape[2], b_out + over((size + entry) * (bound + error)))
    figure = over(entry * (bound + error) + size * error) + last
    weight = exact(Convolution.read(conv).sizes)
    theirs = fmt.dot(1 + conv.weight.numel() // conv.out_channels, b_out + weight * bound)
    missing = [leakage(float(alpha), [0] * len(grid.shape)) for alpha in -layer.position_vector()[:, 0]]
    leaked = 2 * bound * over(soft * size * (1 + moved) * exact(missing).reshape(moved.shape))
    return Bounds(figure + over(size * moved) * bound, theirs + figure, leaked)


def row_bounds(layer: Any, grid: TokenGrid, bound: Any) -> np.ndarray:
    """That of [rows_rounding] for values formed first, by output channel."""
    fmt, (w_val, w_out, b_out) = Rounded.of(layer.w_val.dtype), magnitudes(layer)
    whole = np.sum([s.max(axis=(1, 2), keepdims=True) for s in abs_scores(layer, grid)], axis=0)
    moved = e_2rho([whole], len(grid.shape) + 1)
    n, size = grid.token_count, w_val.sum(axis=2)[..., None] * bound  # (h, g, e, 1)
    growth = (1 + fmt.factor_error(n)) * (1 + n * fmt.u)
    error = growth * (size + fmt.dot(w_val.shape[2], size)) + fmt.dot(n, 0) - size
    last = fmt.dot(1 + size.shape[0] * size.shape[2], b_out + over(w_out * (size + error)))
    return over(w_out * (error + moved * size)) + last


def magnitudes(layer: Any) -> list[np.ndarray]:
    """|W_val|, |W_out| and |b_out|; b_out is the convolution's bias, too."""
    return [exact(abs(t.detach().double().numpy())) for t in (layer.w_val, layer.w_out, layer.b_out)]


def e_2rho(scores: list[np.ndarray], terms: int) -> np.ndarray:
    """e^2ρ − 1 of each head, or more, (heads, 1, 1, 1), from the sizes of the scores of each softmax and their terms."""
    wide = Rounded.of(torch.float64)
    size = np.max([s.max(axis=(1, 2)) for s in scores], axis=0)
    sigma = wide.dot(terms, size)
    rho = len(scores) * (sigma + wide.u * 2 * (size + sigma))
    assert (2 * rho <= 1).all()
    return (2 * rho + 4 * rho**2)[:, None, None, None]


def over(terms: np.ndarray) -> np.ndarray:
    """The sum over heads and input channels, (D_out,)."""
    return terms.sum(axis=(0, 2)).ravel()


def abs_scores(layer: Any, grid: TokenGrid) -> list[np.ndarray]:
    """|c_0|δ² + |c_i||δ| on each axis, (heads, queries, keys)."""
    c = exact(layer.position_vector().detach().numpy())
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
    """The computed layer's largest error relative to the bound."""
    with mp.workdps(DIGITS), torch.no_grad():
        grid = TokenGrid.of(layer.geometry, tuple(x.shape[2:]))
        bound = mp.mpf(float(x.abs().max()))
        dense = layer.execution == "dense"
        most = row_bounds(layer, grid, bound) if dense else bounds(conv, layer, grid, bound).layer
        error = abs(exact(layer(x).double().numpy()) - attended(layer, grid, x))
        return float((error / most.reshape(-1, *(1,) * len(grid.shape))).max())


def softened(conv: Any, alpha: float, fraction: float = 0.0) -> Any:
    """The layer at this sharpness, every head looking so far off its key along the first axis."""
    layer = conv_to_mhsa(conv, alpha=alpha)
    layer.v.data[:, 1] -= 2 * layer.v.data[:, 0] * fraction
    return layer


def drawn_input(conv: Any, data: st.DataObject) -> torch.Tensor:
    """An input of few tokens, for a small kernel."""
    size = data.draw(sizes_for(conv, tokens=24))
    assume(is_quick(conv, size) and conv.weight.numel() < 400)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, conv.in_channels, *size, generator=generator, dtype=conv.weight.dtype)


SOFT = {"alpha": st.sampled_from([0.01, 0.3, 1.0, 3.7, 12.0, 40.0]), "fraction": st.sampled_from([0.0, 0.25, -0.4])}


@given(convolutions(dtypes=[*FORMATS], integers=[False]), st.data())
def test_the_code_that_runs_is_within_the_bound_of_the_exact_layer(conv: Any, data: st.DataObject) -> None:
    x = drawn_input(conv, data)
    layer = softened(conv, *(data.draw(SOFT[name]) for name in ("alpha", "fraction")))
    layer.execution = data.draw(st.sampled_from(["auto", "dense"]))
    assert excess(conv, layer, x) <= 1


@given(convolutions(dtypes=[*FORMATS], integers=[False]), st.data())
def test_soft_heads_beside_sharp_ones_are_within_the_bound_of_the_convolution(conv: Any, data: st.DataObject) -> None:
    x = drawn_input(conv, data)
    size = tuple(x.shape[2:])
    layer = softened(conv, data.draw(SOFT["alpha"]))
    heads = st.integers(0, len(layer.v) - 1)
    sharp, grid = data.draw(st.sets(heads, min_size=1)), TokenGrid.of(layer.geometry, size)
    with mp.workdps(DIGITS), torch.no_grad():
        layer.v[sorted(sharp)] *= 2.0**20
        assert sharp <= {*plan_for(layer, grid).sharp}
        proved = bounds(conv, layer, grid, mp.mpf(float(x.abs().max())))
        most = (proved.rounding + proved.leakage).reshape(-1, *(1,) * len(size))
        assert (abs(exact(layer(x).double().numpy()) - exact(conv(x).double().numpy())) <= most).all()


@given(convolutions(dtypes=[*FORMATS], integers=[False]), st.data())
def test_certificates_and_samples_count_no_less_than_the_theorems(conv: Any, data: st.DataObject) -> None:
    size = data.draw(sizes_for(conv, tokens=60))
    assume(is_quick(conv, size) and conv.weight.numel() < 2000)
    layer = softened(conv, data.draw(SOFT["alpha"]))
    bound = data.draw(st.sampled_from([1.0, 0.3, 100.0]))
    counted = argue(Problem.read(conv, layer, size, bound), may_leak=True, may_differ=True)
    with mp.workdps(DIGITS):
        proved = bounds(conv, layer, TokenGrid.of(layer.geometry, size), mp.mpf(bound))
        assert (exact(counted.rounding) >= proved.rounding).all()
        assert (exact(counted.leakage) >= proved.leakage).all()
        x = torch.full((1, conv.in_channels, *size), bound, dtype=conv.weight.dtype)
        sampled = exact(soft_heads_bound(layer, conv, x)) - exact(convolution_bound(conv, x))
        rows = row_bounds(layer, TokenGrid.of(layer.geometry, size), mp.mpf(float(x.max())))
        assert (sampled >= np.maximum(proved.layer, rows).reshape(-1, *(1,) * len(size))).all()


def test_the_exponential_is_as_accurate_as_is_assumed() -> None:
    x = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 3 * -746
    u, half = Rounded.of(torch.float64)
    with mp.workdps(DIGITS):
        e = exp(exact(x.numpy()))
        assert (abs(exact(torch.exp(x).numpy()) - e) <= EXP * u * e + 4 * half).all()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("keys", [2, 9, 33])
def test_torch_divides_by_the_sum_or_multiplies_by_its_reciprocal(dim: int, keys: int) -> None:
    s = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * -12
    scores = torch.full((len(s), keys), -2000.0, dtype=torch.float64)  # the others add 0
    scores[:, 0], scores[:, -1] = 0, s
    found = torch.softmax(scores if dim else scores.T.contiguous(), dim)
    found = (found if dim else found.T)[:, [0, -1]]
    e = (s.exp().view(torch.int64) + torch.arange(-2, 3)[:, None]).view(torch.float64)  # two units in the last place
    e = torch.stack([torch.ones_like(e), e], 2)
    total = e.sum(2, keepdim=True)
    models = e / total, e * (1 / total)
    assert any((model == found).all(2).any(0).all() for model in models)


CHANGES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda p: p * torch.where(torch.arange(p.shape[2]) % 2 == 0, 1, 1 + 2.0**-12),
    lambda p: p.masked_fill(p < 2.0**-8, 0),
]


@pytest.mark.parametrize("change", [None, *CHANGES, "scores in float32"], ids=["none", "moved", "dropped", "float32"])
def test_disturbed_weights_exceed_it(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    conv = seeded(lambda: nn.Conv1d(1, 1, 3, padding=40, dilation=40, stride=17))
    layer = softened(conv, 3.7, 0.25)
    x = torch.where(torch.arange(86) % 2 == 0, 1.0, -1.0).expand(1, 1, -1)
    factors, along = axial._factors, Quadratic.along
    if callable(change):
        monkeypatch.setattr(axial, "_factors", lambda *args: change(factors(*args)))
    elif change:
        monkeypatch.setattr(Quadratic, "along", lambda self, c, d, i: along(self, c.float(), d.float(), i))
    assert (excess(conv, layer, x) > 1) == (change is not None)
