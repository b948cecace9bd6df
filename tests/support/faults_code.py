"""Planted faults in the code that builds a layer, lays out its tokens, computes its scores and runs it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from broken import break_execution
from construct import MHSA, ConvGeometry, builder, heads, tokens
from construct import heads as shifts
from construct.attention import Scores
from construct.encoding import encodings, quadratic
from construct.tokens import TokenGrid
from fault_table import ALL, SYMMETRIC, TRANSPOSED, ZEROS, code_fault
from verify.experiment.sweep.faults import with_heads


def function(name: str, where: Any, what: str, change: Callable[..., Any], **options: Any) -> None:
    """A fault in a function: ``change`` replaces it and receives the correct function before the arguments."""

    @code_fault(name, **options)
    def _(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(where, what, partial(change, getattr(where, what)))


# ---- faults in the code: the builder ---------------------------------------------------------------------------------------


def shifts_of(name: str, change: Callable[[Any, ConvGeometry], Any], **options: Any) -> None:
    function(f"builder: {name}", shifts, "tap_shifts", change, **options)


def taps_of(name: str, change: Callable[[Any, Tensor, ConvGeometry], Any], **options: Any) -> None:
    function(f"builder: {name}", heads, "tap_matrices", change, **options)


def turned(weight: Tensor) -> Tensor:
    return weight.flip(tuple(range(2, weight.dim())))


def without_dilation(g: ConvGeometry) -> ConvGeometry:
    return replace(g, dilation=(1,) * g.dims, padding=(0,) * g.dims)


shifts_of("shifts off by one", lambda right, g: tuple((tau[0] + 1, *tau[1:]) for tau in right(g)), shown_on=ALL)
shifts_of("shifts from the end of the kernel", lambda right, g: tuple(tuple(-t for t in tau) for tau in right(g)))
shifts_of("shifts without dilation", lambda right, g: right(without_dilation(g)), more=3)
taps_of("the order of taps reversed", lambda right, weight, g: right(weight, g).flip(0), shown_on=ALL)
taps_of(
    "taps column by column",
    lambda right, weight, g: right(weight.transpose(2, 3).reshape(weight.shape), g),
    dims=[2, 3],
)
taps_of(
    "transposed kernels not flipped",
    lambda right, weight, g: right(turned(weight) if g.transposed else weight, g),
    more=2,
    transposed=[True],
)
taps_of("kernels flipped", lambda right, weight, g: right(turned(weight), g), shown_on=ALL)
taps_of(
    "groups in reverse",
    lambda right, weight, g: right(weight, g).flip(1),
    channels=["grouped", "depthwise", "multiplier"],
)
function(
    "builder: factors with an identity too many",
    *(heads, "factor"),
    lambda right, taps, head_dim=None: (right(taps)[0] * 2, right(taps)[1]),
)
taps_of("the last tap left out", lambda right, weight, g: torch.cat([right(weight, g)[:-1], right(weight, g)[-1:] * 0]))


@code_fault(
    "builder: a radix that aliases", shown_on=("2-D", "3-D", "dilated", "reflect", "transposed"), more=2, dims=[2, 3]
)
def _(patch):
    """The parabola numbers too few shifts, and the code that runs it does not refuse shifts with equal numbers."""

    def too_small(g, alpha):
        side = max(1, max(g.kernel_size) * max(g.dilation) // 2 * 2 - 1)
        return tuple(side ** (g.dims - 1 - axis) for axis in range(g.dims))

    right = builder.kernel_to_mhsa
    patch.setattr(
        builder, "kernel_to_mhsa", lambda *args, **options: right(*args, **options | {"encoding": "parabola"})
    )
    patch.setattr(encodings, "balanced_radix", too_small)
    patch.setattr(encodings, "require_distinct", lambda radix, box: None)


# ---- the encoding ------------------------------------------------------------------------------------------------------------


def v(name: str, change: Callable[..., Any], **options: Any) -> None:
    function(f"encoding: v {name}", quadratic, "v", change, **options)


def r(name: str, change: Callable[..., Any], **options: Any) -> None:
    function(f"encoding: r {name}", quadratic, "r", change, **options)


v("of −τ", lambda right, tau, alpha: tuple(-alpha * c for c in (1, *(2 * x for x in tau))), shown_on=SYMMETRIC)
v("without its factor 2", lambda right, tau, alpha: tuple(-alpha * c for c in (1, *(-x for x in tau))))
v("looks away", lambda right, tau, alpha: tuple(alpha * c for c in (1, *(-2 * x for x in tau))))
r("of q − k", lambda right, delta: (sum(x * x for x in delta), *(-x for x in delta)))
r("without its square", lambda right, delta: (0 * delta[0], *right(delta)[1:]), shown_on=ALL)
r(
    "without the square of the last axis",
    lambda right, delta: (sum(x * x for x in delta[:-1]) + 0 * delta[0], *delta),
)
r("of the absolute shift", lambda right, delta: (sum(x * x for x in delta), *(abs(x) for x in delta)))


# ---- the token grid ------------------------------------------------------------------------------------------------------------


def grids(name: str, change: Callable[[TokenGrid], Any], **options: Any) -> None:
    """A fault in the padded grid: ``change`` gives the fields that are wrong."""

    @code_fault(f"tokens: {name}", **options)
    def _(patch: pytest.MonkeyPatch) -> None:
        right = tokens._grid

        def changed(g: ConvGeometry, size: Any) -> TokenGrid:
            grid = right(g, size)
            return replace(grid, **change(grid))

        changed.cache_clear = right.cache_clear  # type: ignore[attr-defined]
        patch.setattr(tokens, "_grid", changed)


def symmetric(right: Any, n: int, stuff: int, pads: tuple[int, int], mode: str) -> Tensor:
    place = torch.arange(-pads[0], n + pads[1])
    return torch.where(place < 0, -1 - place, torch.where(place >= n, 2 * n - 1 - place, place)).clamp(0, n - 1)


def off_at_the_end(right: Any, n: int, stuff: int, pads: tuple[int, int], mode: str) -> Tensor:
    place = torch.arange(-pads[0], n + pads[1])
    return torch.where(place >= n, (place + 1) % n, right(n, stuff, pads, mode))


PADDED: dict[str, Any] = {"paddings": ["numbers", "same"], "transposed": [False]}
grids(
    "zeros padded by replicating", lambda grid: {"mode": "replicate"}, shown_on=ZEROS, padding_modes=["zeros"], **PADDED
)
for _name, _change, _mode in (
    ("reflect repeats the edge", symmetric, "reflect"),
    ("circular is off by one at the end", off_at_the_end, "circular"),
):
    function(f"tokens: {_name}", tokens, "sources_along_axis", _change, padding_modes=[_mode], **PADDED)


def _patched_property(patch: pytest.MonkeyPatch, name: str, change: Callable[[ConvGeometry, Any], Any]) -> None:
    right = getattr(ConvGeometry, name).fget
    patch.setattr(ConvGeometry, name, property(lambda g: change(g, right(g))))


@code_fault("tokens: the far pad in front", shown_on=("same",), more=2, paddings=["same"], transposed=[False])
def _(patch):
    _patched_property(patch, "pads", lambda g, pads: tuple((after, before) for before, after in pads))


grids(
    "zeros stuffed with a phase",
    lambda grid: {
        "pads": tuple((b + (s > 1), a - (s > 1)) for s, (b, a) in zip(grid.stuffing, grid.pads, strict=True))
    },
    shown_on=TRANSPOSED,
    transposed=[True],
)


@code_fault("tokens: output padding in front", more=2, transposed=[True])
def _(patch):
    def front(g, pads):
        if not g.transposed:
            return pads
        return tuple((b + extra, a - extra) for (b, a), extra in zip(pads, g.output_padding, strict=True))

    _patched_property(patch, "pads", front)


@code_fault("tokens: absent ones not masked", paddings=["numbers", "same"], padding_modes=["zeros"])
def _(patch):
    def unmasked(grid, x):
        for axis, source in enumerate(grid.sources, start=2):
            x = x.index_select(axis, source.clamp(min=0))
        return x.flatten(2).transpose(1, 2)

    patch.setattr(TokenGrid, "gather", unmasked)


grids("queries at the first tap", lambda grid: {"first": (0,) * len(grid.first)}, more=2)
grids(
    "queries without stride",
    lambda grid: {"step": (1,) * len(grid.step)},
    more=2,
    transposed=[False],
    paddings=["none", "numbers", "valid"],
)
grids("queries one place early", lambda grid: {"first": tuple(max(0, n - 1) for n in grid.first)}, more=2)


@code_fault("tokens: queries at another anchor than the builder's", built=True, shown_on=ALL)
def _(patch):
    _patched_property(patch, "anchor", lambda g, anchor: (*anchor[:-1], anchor[-1] - 1))


@code_fault(
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


def without_the_last_head(run: Any, layer: MHSA, x: Tensor, grid: TokenGrid) -> Tensor:
    return run(with_heads(layer, list(range(max(1, layer.heads - 1)))).to(x.dtype), x, grid)


def last_output_twice(run: Any, *args: Any) -> Tensor:
    y = run(*args).clone()
    y[:, -1] = y[:, max(0, y.shape[1] - 2)]
    return y


def with_coarse_scores(run: Any, *args: Any) -> Tensor:
    right = Scores.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scores, "__call__", lambda self, *a: (right(self, *a) / 2048).round() * 2048)
        return run(*args)


RUNS: dict[str, tuple[Callable[..., Tensor], dict]] = {
    "without the last head": (without_the_last_head, {}),
    "the last output is the one before": (last_output_twice, {}),
    "without the bias": (lambda run, layer, x, grid: run(layer, x, grid) - layer.b_out.to(x.dtype), {"bias": [True]}),
    "the first token is always zero": (
        lambda run, layer, x, grid: run(layer, torch.cat([x[:, :1] * 0, x[:, 1:]], 1), grid),
        {},
    ),
    "outputs in reverse": (lambda run, *args: run(*args).flip(1), {}),
    "scores too coarse to tell neighbours apart": (with_coarse_scores, {}),
}
for _name, (_fault, (_wrong, _options)) in product(("dense", "axial"), RUNS.items()):
    if _name == "axial" and _wrong is with_coarse_scores:  # one-hot heads form no score for each pair
        continue

    @code_fault(f"{_name}: {_fault}", **_options)
    def _(patch, name=_name, wrong=_wrong):
        break_execution(patch, name, wrong)


@code_fault("scores: keys numbered from the end")
def _(patch):
    right = Scores.__call__
    patch.setattr(Scores, "__call__", lambda self, *a: right(self, *a).flip(-1))


@code_fault("the output reshaped axes last to first", dims=[2, 3])
def _(patch):
    right = MHSA.forward

    def turned(layer, input, output_size=None):
        y = right(layer, input, output_size)
        return y.reshape(*y.shape[:2], *y.shape[:1:-1]).permute(0, 1, *range(y.dim() - 1, 1, -1))

    patch.setattr(MHSA, "forward", turned)
