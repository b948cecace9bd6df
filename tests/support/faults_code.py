"""Planted faults in the code that builds a layer, lays out its tokens, works out its scores and runs it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from construct import MHSA, ConvGeometry, heads, tokens
from construct import heads as shifts
from construct.attention import EXECUTIONS, Scores
from construct.encoding import quadratic as encoding
from construct.execution import chunked
from construct.tokens import TokenGrid
from verify.experiment.sweep.faults import ALL, SYMMETRIC, TRANSPOSED, ZEROS, code, with_heads

# ---- faults in the code: the builder ---------------------------------------------------------------------------------------


def _patched_property(patch: pytest.MonkeyPatch, name: str, change: Callable[[ConvGeometry, Any], Any]) -> None:
    right = getattr(ConvGeometry, name).fget
    patch.setattr(ConvGeometry, name, property(lambda g: change(g, right(g))))


@code("builder: shifts off by one", shown_on=ALL)
def _(patch):
    right = shifts.tap_shifts
    patch.setattr(shifts, "tap_shifts", lambda g: tuple((tau[0] + 1, *tau[1:]) for tau in right(g)))


@code("builder: shifts from the end of the kernel")
def _(patch):
    right = shifts.tap_shifts
    patch.setattr(shifts, "tap_shifts", lambda g: tuple(tuple(-t for t in tau) for tau in right(g)))


@code("builder: shifts without dilation", more=3)
def _(patch):
    right = shifts.tap_shifts
    patch.setattr(shifts, "tap_shifts", lambda g: right(replace(g, dilation=(1,) * g.dims, padding=(0,) * g.dims)))


@code("builder: the order of taps reversed", shown_on=ALL)
def _(patch):
    right = heads.tap_matrices
    patch.setattr(heads, "tap_matrices", lambda weight, g: right(weight, g).flip(0))


@code("builder: taps column by column", dims=[2, 3])
def _(patch):
    right = heads.tap_matrices
    patch.setattr(heads, "tap_matrices", lambda weight, g: right(weight.transpose(2, 3).reshape(weight.shape), g))


@code("builder: transposed kernels not flipped", more=2, transposed=[True])
def _(patch):
    right = heads.tap_matrices
    flipped = lambda weight: weight.flip(tuple(range(2, weight.dim())))  # noqa: E731
    patch.setattr(heads, "tap_matrices", lambda weight, g: right(flipped(weight) if g.transposed else weight, g))


@code("builder: kernels flipped", shown_on=ALL)
def _(patch):
    right = heads.tap_matrices
    flipped = lambda weight: weight.flip(tuple(range(2, weight.dim())))  # noqa: E731
    patch.setattr(heads, "tap_matrices", lambda weight, g: right(flipped(weight), g))


@code("builder: groups in reverse", channels=["grouped", "depthwise", "multiplier"])
def _(patch):
    right = heads.tap_matrices
    patch.setattr(heads, "tap_matrices", lambda weight, g: right(weight, g).flip(1))


@code("builder: factors with an identity too many")
def _(patch):
    right = heads.factor
    patch.setattr(heads, "factor", lambda taps, head_dim=None: (right(taps)[0] * 2, right(taps)[1]))


@code("builder: the last tap left out")
def _(patch):
    right = heads.tap_matrices
    patch.setattr(
        heads, "tap_matrices", lambda weight, g: torch.cat([right(weight, g)[:-1], right(weight, g)[-1:] * 0])
    )


# ---- the encoding ------------------------------------------------------------------------------------------------------------


@code("encoding: v of −τ", shown_on=SYMMETRIC)
def _(patch):
    patch.setattr(encoding, "v", lambda tau, alpha: tuple(-alpha * c for c in (1, *(2 * x for x in tau))))


@code("encoding: v without its factor 2")
def _(patch):
    patch.setattr(encoding, "v", lambda tau, alpha: tuple(-alpha * c for c in (1, *(-x for x in tau))))


@code("encoding: v looks away")
def _(patch):
    patch.setattr(encoding, "v", lambda tau, alpha: tuple(alpha * c for c in (1, *(-2 * x for x in tau))))


@code("encoding: r of q − k")
def _(patch):
    patch.setattr(encoding, "r", lambda delta: (sum(x * x for x in delta), *(-x for x in delta)))


@code("encoding: r without its square", shown_on=ALL)
def _(patch):
    right = encoding.r
    patch.setattr(encoding, "r", lambda delta: (0 * delta[0], *right(delta)[1:]))


@code("encoding: r without the square of the last axis")
def _(patch):
    patch.setattr(encoding, "r", lambda delta: (sum(x * x for x in delta[:-1]) + 0 * delta[0], *delta))


@code("encoding: r of the absolute shift")
def _(patch):
    patch.setattr(encoding, "r", lambda delta: (sum(x * x for x in delta), *(abs(x) for x in delta)))


# ---- the token grid ------------------------------------------------------------------------------------------------------------


def _patched_sources(
    patch: pytest.MonkeyPatch, change: Callable[[Tensor, int, int, tuple[int, int], str], Tensor]
) -> None:
    right = tokens.sources_along_axis
    patch.setattr(
        tokens,
        "sources_along_axis",
        lambda n, stuff, pads, mode: change(right(n, stuff, pads, mode), n, stuff, pads, mode),
    )


@code(
    "tokens: zeros padded by replicating",
    shown_on=ZEROS,
    paddings=["numbers", "same"],
    padding_modes=["zeros"],
    transposed=[False],
)
def _(patch):
    right = tokens.sources_along_axis
    patch.setattr(tokens, "sources_along_axis", lambda n, stuff, pads, mode: right(n, stuff, pads, "replicate"))


@code("tokens: reflect repeats the edge", paddings=["numbers", "same"], padding_modes=["reflect"], transposed=[False])
def _(patch):
    def symmetric(row, n, stuff, pads, mode):
        place = torch.arange(-pads[0], n + pads[1])
        return torch.where(place < 0, -1 - place, torch.where(place >= n, 2 * n - 1 - place, place)).clamp(0, n - 1)

    _patched_sources(patch, symmetric)


@code(
    "tokens: circular is off by one at the end",
    paddings=["numbers", "same"],
    padding_modes=["circular"],
    transposed=[False],
)
def _(patch):
    def off(row, n, stuff, pads, mode):
        place = torch.arange(-pads[0], n + pads[1])
        return torch.where(place >= n, (place + 1) % n, row)

    _patched_sources(patch, off)


@code("tokens: the far pad in front", shown_on=("same",), more=2, paddings=["same"], transposed=[False])
def _(patch):
    _patched_property(patch, "pads", lambda g, pads: tuple((after, before) for before, after in pads))


@code("tokens: zeros stuffed with a phase", shown_on=TRANSPOSED, transposed=[True])
def _(patch):
    def late(row, n, stuff, pads, mode):
        return row.roll(1) if stuff > 1 else row

    _patched_sources(patch, late)


@code("tokens: output padding in front", more=2, transposed=[True])
def _(patch):
    def front(g, pads):
        if not g.transposed:
            return pads
        return tuple((b + extra, a - extra) for (b, a), extra in zip(pads, g.output_padding, strict=True))

    _patched_property(patch, "pads", front)


@code("tokens: absent ones not masked", paddings=["numbers", "same"], padding_modes=["zeros"])
def _(patch):
    def unmasked(grid, x):
        for axis, source in enumerate(grid.sources, start=2):
            x = x.index_select(axis, source.clamp(min=0))
        return x.flatten(2).transpose(1, 2)

    patch.setattr(TokenGrid, "gather", unmasked)


@code("tokens: queries at the first tap", more=2)
def _(patch):
    right = TokenGrid.of.__func__  # type: ignore[attr-defined]

    def shifted(cls, g, size):
        grid = right(cls, g, size)
        return cls(grid.sources, tuple((q - a).clamp(min=0) for q, a in zip(grid.queries, g.anchor, strict=True)))

    patch.setattr(TokenGrid, "of", classmethod(shifted))


@code("tokens: queries at another anchor than the builder's", built=True, shown_on=ALL)
def _(patch):
    _patched_property(patch, "anchor", lambda g, anchor: (*anchor[:-1], anchor[-1] - 1))


@code("tokens: queries without stride", more=2, transposed=[False], paddings=["none", "numbers", "valid"])
def _(patch):
    right = TokenGrid.of.__func__  # type: ignore[attr-defined]

    def dense(cls, g, size):
        grid = right(cls, g, size)
        return cls(grid.sources, tuple(torch.arange(len(q)) + q[0] for q in grid.queries))

    patch.setattr(TokenGrid, "of", classmethod(dense))


@code("tokens: the last output twice")
def _(patch):
    right = TokenGrid.of.__func__  # type: ignore[attr-defined]

    def twice(cls, g, size):
        grid = right(cls, g, size)
        return cls(grid.sources, tuple(torch.cat([q[:-1], q[-2:-1] if len(q) > 1 else q[-1:]]) for q in grid.queries))

    patch.setattr(TokenGrid, "of", classmethod(twice))


@code(
    "geometry: one output more where inputs are left over",
    more=2,
    transposed=[False],
    paddings=["none", "numbers", "valid"],
)
def _(patch):
    right = ConvGeometry.output_size

    def generous(g, size):
        left = [
            (stuff * (n - 1) + b + a - span) % s
            for n, stuff, (b, a), span, s in zip(size, g.stuffing, g.pads, g.span, g.query_stride, strict=True)
        ]
        return tuple(o + bool(rest) for o, rest in zip(right(g, size), left, strict=True))

    patch.setattr(ConvGeometry, "output_size", generous)


# ---- scores and executions -------------------------------------------------------------------------------------------------------


def _patched_run(
    patch: pytest.MonkeyPatch, name: str, change: Callable[[Any, Tensor, TokenGrid, Callable], Tensor]
) -> None:
    right = EXECUTIONS[name]
    patch.setitem(EXECUTIONS, name, replace(right, run=lambda layer, x, grid: change(layer, x, grid, right.run)))


for _name in ("dense", "chunked"):

    @code(f"{_name}: without the last head")
    def _(patch, name=_name):
        def dropped(layer, x, grid, run):
            fewer = with_heads(layer, list(range(max(1, layer.heads - 1))))
            return run(fewer.to(x.dtype), x, grid)

        _patched_run(patch, name, dropped)

    @code(f"{_name}: the last output is the one before")
    def _(patch, name=_name):
        def copied(layer, x, grid, run):
            y = run(layer, x, grid).clone()
            y[:, -1] = y[:, max(0, y.shape[1] - 2)]
            return y

        _patched_run(patch, name, copied)

    @code(f"{_name}: without the bias", bias=[True])
    def _(patch, name=_name):
        _patched_run(patch, name, lambda layer, x, grid, run: run(layer, x, grid) - layer.b_out.to(x.dtype))

    @code(f"{_name}: the first token is always zero")
    def _(patch, name=_name):
        _patched_run(patch, name, lambda layer, x, grid, run: run(layer, torch.cat([x[:, :1] * 0, x[:, 1:]], 1), grid))

    @code(f"{_name}: outputs in reverse")
    def _(patch, name=_name):
        _patched_run(patch, name, lambda layer, x, grid, run: run(layer, x, grid).flip(1))

    @code(f"{_name}: scores too coarse to tell neighbours apart")
    def _(patch, name=_name):
        def blurred(layer, x, grid, run):
            right = Scores.__call__
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(Scores, "__call__", lambda self, *a: (right(self, *a) / 2048).round() * 2048)
                return run(layer, x, grid)

        _patched_run(patch, name, blurred)


@code("chunked: blocks overlap by one query")
def _(patch):
    right = chunked.some_heads

    def late(w_val, w_out, scores, heads, queries, values):
        start = max(0, queries.start - 1)
        return right(w_val, w_out, scores, heads, slice(start, start + queries.stop - queries.start), values)

    patch.setattr(chunked, "some_heads", late)


@code("scores: keys numbered from the end")
def _(patch):
    right = Scores.__call__
    patch.setattr(Scores, "__call__", lambda self, *a: right(self, *a).flip(-1))


@code("the output reshaped axes last to first", dims=[2, 3])
def _(patch):
    right = MHSA.forward

    def turned(layer, input, output_size=None):
        y = right(layer, input, output_size)
        return y.reshape(*y.shape[:2], *y.shape[:1:-1]).permute(0, 1, *range(y.dim() - 1, 1, -1))

    patch.setattr(MHSA, "forward", turned)
