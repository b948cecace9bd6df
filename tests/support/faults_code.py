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
from construct.attention import Scores
from construct.encoding import encodings, quadratic
from construct.tokens import TokenGrid
from fault_table import ALL, IN_LAYERS, SYMMETRIC, TRANSPOSED, ZEROS, Fault, fault
from verify.experiment.sweep.faults import with_heads


def code(plant: Callable[[pytest.MonkeyPatch], Any], **settings: Any) -> Fault:
    return fault(plant, True, settings)


def function(where: Any, what: str, change: Callable[..., Any], **settings: Any) -> Fault:
    """A fault in a function: ``change`` replaces it and receives the correct function before the arguments."""
    return code(lambda patch: patch.setattr(where, what, partial(change, getattr(where, what))), **settings)


def a_property(name: str, change: Callable[[ConvGeometry, Any], Any], **settings: Any) -> Fault:
    """A fault in a property of the geometry."""
    right = getattr(ConvGeometry, name).fget
    return code(lambda patch: patch.setattr(ConvGeometry, name, property(lambda g: change(g, right(g)))), **settings)


def turned(weight: Tensor) -> Tensor:
    return weight.flip(tuple(range(2, weight.dim())))


def without_dilation(g: ConvGeometry) -> ConvGeometry:
    return replace(g, dilation=(1,) * g.dims, padding=(0,) * g.dims)


shifts_of, taps_of = (partial(function, heads, name) for name in ("tap_shifts", "tap_matrices"))
MULTIPLE = ["grouped", "depthwise", "multiplier"]
BUILDER = {
    "shifts off by one": shifts_of(lambda right, g: tuple((tau[0] + 1, *tau[1:]) for tau in right(g)), shown_on=ALL),
    "shifts from the end of the kernel": shifts_of(lambda right, g: tuple(tuple(-t for t in tau) for tau in right(g))),
    "shifts without dilation": shifts_of(lambda right, g: right(without_dilation(g)), more=3),
    "the order of taps reversed": taps_of(lambda right, weight, g: right(weight, g).flip(0), shown_on=ALL),
    "taps column by column": taps_of(
        lambda right, weight, g: right(weight.transpose(2, 3).reshape(weight.shape), g), dims=[2, 3]
    ),
    "transposed kernels not flipped": taps_of(
        lambda right, weight, g: right(turned(weight) if g.transposed else weight, g), more=2, transposed=[True]
    ),
    "kernels flipped": taps_of(lambda right, weight, g: right(turned(weight), g), shown_on=ALL),
    "groups in reverse": taps_of(lambda right, weight, g: right(weight, g).flip(1), channels=MULTIPLE),
    "factors with an identity too many": function(
        heads, "factor", lambda right, taps, head_dim=None: (right(taps)[0] * 2, right(taps)[1])
    ),
    "the last tap left out": taps_of(
        lambda right, weight, g: torch.cat([right(weight, g)[:-1], right(weight, g)[-1:] * 0])
    ),
}


def aliasing_radix(patch: pytest.MonkeyPatch) -> None:
    """The parabola numbers too few shifts, and the code that runs it does not refuse shifts with equal numbers."""

    def too_small(g, alpha):
        side = max(1, max(g.kernel_size) * max(g.dilation) // 2 * 2 - 1)
        return tuple(side ** (g.dims - 1 - axis) for axis in range(g.dims))

    right = builder.kernel_to_mhsa
    patch.setattr(builder, "kernel_to_mhsa", lambda *args, **more: right(*args, **more | {"encoding": "parabola"}))
    patch.setattr(encodings, "balanced_radix", too_small)
    patch.setattr(encodings, "require_distinct", lambda radix, box: None)


BUILDER["a radix that aliases"] = code(
    aliasing_radix, shown_on=("2-D", "3-D", "dilated", "reflect", "transposed"), more=2, dims=[2, 3]
)

v, r = (partial(function, quadratic, name) for name in ("v", "r"))
ENCODING = {
    "v of −τ": v(lambda right, tau, alpha: tuple(-alpha * c for c in (1, *(2 * x for x in tau))), shown_on=SYMMETRIC),
    "v without its factor 2": v(lambda right, tau, alpha: tuple(-alpha * c for c in (1, *(-x for x in tau)))),
    "v looks away": v(lambda right, tau, alpha: tuple(alpha * c for c in (1, *(-2 * x for x in tau)))),
    "r of q − k": r(lambda right, delta: (sum(x * x for x in delta), *(-x for x in delta))),
    "r without its square": r(lambda right, delta: (0 * delta[0], *right(delta)[1:]), shown_on=ALL),
    "r without the square of the last axis": r(
        lambda right, delta: (sum(x * x for x in delta[:-1]) + 0 * delta[0], *delta)
    ),
    "r of the absolute shift": r(lambda right, delta: (sum(x * x for x in delta), *(abs(x) for x in delta))),
}


def grids(change: Callable[[TokenGrid], Any], **settings: Any) -> Fault:
    """A fault in the padded grid: ``change`` gives the fields that are wrong."""
    right = tokens._grid

    def changed(g: ConvGeometry, size: Any) -> TokenGrid:
        grid = right(g, size)
        return replace(grid, **change(grid))

    changed.cache_clear = right.cache_clear  # type: ignore[attr-defined]
    return code(lambda patch: patch.setattr(tokens, "_grid", changed), **settings)


def symmetric(right: Any, n: int, stuff: int, pads: tuple[int, int], mode: str) -> Tensor:
    place = torch.arange(-pads[0], n + pads[1])
    return torch.where(place < 0, -1 - place, torch.where(place >= n, 2 * n - 1 - place, place)).clamp(0, n - 1)


def off_at_the_end(right: Any, n: int, stuff: int, pads: tuple[int, int], mode: str) -> Tensor:
    place = torch.arange(-pads[0], n + pads[1])
    return torch.where(place >= n, (place + 1) % n, right(n, stuff, pads, mode))


def with_a_phase(grid: TokenGrid) -> dict[str, Any]:
    return {"pads": tuple((b + (s > 1), a - (s > 1)) for s, (b, a) in zip(grid.stuffing, grid.pads, strict=True))}


def output_padding_in_front(g: ConvGeometry, pads: Any) -> Any:
    if not g.transposed:
        return pads
    return tuple((b + extra, a - extra) for (b, a), extra in zip(pads, g.output_padding, strict=True))


def unmasked(right: Any, grid: TokenGrid, x: Tensor) -> Tensor:
    for axis, source in enumerate(grid.sources, start=2):
        x = x.index_select(axis, source.clamp(min=0))
    return x.flatten(2).transpose(1, 2)


def generous(right: Any, g: ConvGeometry, size: Any) -> Any:
    left = [
        (stuff * (n - 1) + b + a - span) % s
        for n, stuff, (b, a), span, s in zip(size, g.stuffing, g.pads, g.span, g.query_stride, strict=True)
    ]
    return tuple(o + bool(rest) for o, rest in zip(right(g, size), left, strict=True))


def method(kind: Any, what: str, change: Callable[..., Any], **settings: Any) -> Fault:
    """A fault in a method: as `function`, with the instance first of the arguments."""
    right = getattr(kind, what)
    return code(lambda patch: patch.setattr(kind, what, lambda *args, **k: change(right, *args, **k)), **settings)


PADDED: dict[str, Any] = {"paddings": ["numbers", "same"], "transposed": [False]}
LEFT_OVER: dict[str, Any] = {"more": 2, "transposed": [False], "paddings": ["none", "numbers", "valid"]}
TOKENS = {
    "zeros padded by replicating": grids(
        lambda grid: {"mode": "replicate"}, shown_on=ZEROS, padding_modes=["zeros"], **PADDED
    ),
    "reflect repeats the edge": function(tokens, "sources_along_axis", symmetric, padding_modes=["reflect"], **PADDED),
    "circular is off by one at the end": function(
        tokens, "sources_along_axis", off_at_the_end, padding_modes=["circular"], **PADDED
    ),
    "the far pad in front": a_property(
        "pads",
        lambda g, pads: tuple((after, before) for before, after in pads),
        **{"shown_on": ("same",), "more": 2, "paddings": ["same"], "transposed": [False]},
    ),
    "zeros stuffed with a phase": grids(with_a_phase, shown_on=TRANSPOSED, transposed=[True]),
    "output padding in front": a_property("pads", output_padding_in_front, more=2, transposed=[True]),
    "absent ones not masked": method(
        TokenGrid, "gather", unmasked, paddings=["numbers", "same"], padding_modes=["zeros"]
    ),
    "queries at the first tap": grids(lambda grid: {"first": (0,) * len(grid.first)}, more=2),
    "queries without stride": grids(lambda grid: {"step": (1,) * len(grid.step)}, **LEFT_OVER),
    "queries one place early": grids(lambda grid: {"first": tuple(max(0, n - 1) for n in grid.first)}, more=2),
    "queries at another anchor than the builder's": a_property(
        "anchor", lambda g, anchor: (*anchor[:-1], anchor[-1] - 1), built=True, shown_on=ALL
    ),
}


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


def execution(name: str, wrong: Callable[..., Tensor], settings: dict[str, Any]) -> Fault:
    return code(lambda patch: break_execution(patch, name, wrong), **settings)


def axes_last_to_first(right: Any, layer: MHSA, input: Tensor, output_size: Any = None) -> Tensor:
    y = right(layer, input, output_size)
    return y.reshape(*y.shape[:2], *y.shape[:1:-1]).permute(0, 1, *range(y.dim() - 1, 1, -1))


IN_CODE = {
    **{f"builder: {name}": wrong for name, wrong in BUILDER.items()},
    **{f"encoding: {name}": wrong for name, wrong in ENCODING.items()},
    **{f"tokens: {name}": wrong for name, wrong in TOKENS.items()},
    "geometry: one output more where inputs are left over": method(ConvGeometry, "output_size", generous, **LEFT_OVER),
    **{
        f"{name}: {what}": execution(name, wrong, settings)
        for name, (what, (wrong, settings)) in product(("dense", "axial"), RUNS.items())
        if name == "dense" or wrong is not with_coarse_scores  # one-hot heads form no score for each pair
    },
    "scores: keys numbered from the end": method(Scores, "__call__", lambda right, *args: right(*args).flip(-1)),
    "the output reshaped axes last to first": method(MHSA, "forward", axes_last_to_first, dims=[2, 3]),
}
FAULTS = IN_LAYERS | IN_CODE
