"""`leakage_figure`: the leakage of each dtype's softmax against the sharpness α, with the bound."""

import math

import numpy as np
import torch

from verify.plots.drawing import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PINK,
    Axes,
    Figure,
    new_figure,
    style,
)
from verify.rounding.leakage import leakage

LOOKS = {
    torch.float16: (GREEN, "^"),
    torch.bfloat16: (PINK, "s"),
    torch.float32: (ORANGE, "o"),
    torch.float64: (BLUE, "D"),
}
"""The colour and the marker of each dtype."""
SIDES = {1: 9, 2: 9, 3: 5, 4: 3}
"""The side of the measured grid, by dimension; the bound holds on any grid."""


def leaked(alpha: float, dtype: torch.dtype, dims: int) -> float:
    """The sum of all softmax weights but the largest, computed by torch in this dtype, of a query in
    the middle of the grid.
    """
    axis = torch.arange(SIDES[dims], dtype=torch.float64) - SIDES[dims] // 2
    squares = torch.cartesian_prod(*[axis.square()] * dims).reshape(-1, dims).sum(dim=1)
    scores = (-alpha * squares).clamp(min=torch.finfo(dtype).min / 2)  # float16 ends at −65504
    return float(torch.softmax(scores.to(dtype), dim=0).double().sort().values[:-1].sum())


def threshold(dtype: torch.dtype) -> float:
    """ln(2/η), with η the smallest positive number of the dtype: for larger α, e^−α < η/2 rounds to
    0.
    """
    info = torch.finfo(dtype)
    return math.log(2) - math.log(info.tiny) - math.log(info.eps)


def leakage_figure(dims: int = 2) -> Figure:
    """Draw the attention that leaks past a head's target key against the sharpness α.

    Args:
        dims: the number of dimensions, 1 to 4.

    Returns:
        A figure with two panels: up to float32's threshold for exactly one-hot attention, and up to
        float64's.

    Raises:
        ValueError: dims is not supported.

    >>> import verify.plots
    >>> len(verify.plots.leakage_figure(dims=1).axes)
    2
    """
    if dims not in SIDES:
        raise ValueError(f"leakage is drawn for 1 to {max(SIDES)} dimensions, not {dims}")
    with style():
        figure = new_figure(9.6, 4.4)
        near, far = figure.subplots(1, 2)
        _panel(near, dims, np.linspace(1.0, 121.0, 49), (-52, 1))
        _panel(far, dims, np.linspace(5.0, 805.0, 81), (-345, 8))
        at = 46.0
        y = math.log10(leaked(at, torch.float32, dims))
        near.annotate(
            "α = 46: float32 still\nleaks " + _power(y),
            (at, y),
            xytext=(21, -44),
            fontsize=9,
            color=INK,
            arrowprops={"arrowstyle": "->", "color": INK},
        )
        near.set_ylabel("attention beside the largest weight")
        near.set_title("to float32's threshold")
        far.set_title("to float64's threshold")
        handles, labels = near.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
        figure.suptitle(
            f"Leakage in {dims} dimension{'s' if dims > 1 else ''}, measured and bounded"
        )
    return figure


def _exponent_of_bound(alpha: float, dims: int) -> float:
    """The decimal exponent of the bound, or of its upper bound 2d·e^−α where a double cannot hold
    it.
    """
    bound = leakage(alpha, [0] * dims)
    return (
        math.log10(bound) if bound > 1e-300 else math.log10(2 * dims) - alpha * math.log10(math.e)
    )


def _panel(ax: Axes, dims: int, alphas: np.ndarray, limits: tuple[float, float]) -> None:
    bound = [_exponent_of_bound(float(a), dims) for a in alphas]
    ax.plot(
        alphas,
        bound,
        color=FAINT,
        lw=5,
        alpha=0.55,
        label=f"bound 1 − ϑ(α){_raised(-dims)}",
        solid_capstyle="butt",
    )
    for number, (dtype, (colour, marker)) in enumerate(LOOKS.items()):
        name = str(dtype).removeprefix("torch.")
        values = [leaked(float(a), dtype, dims) for a in alphas]
        ax.plot(
            alphas,
            [math.log10(v) if v > 0 else math.nan for v in values],
            color=colour,
            marker=marker,
            ms=5,
            lw=1.2,
            markevery=(number, len(LOOKS)),
            label=name,
            gid=name,
        )
        edge = threshold(dtype)
        if 0.13 * alphas[-1] < edge < alphas[-1]:
            # away from the curve
            height, side = (0.02, "bottom") if edge < 0.5 * alphas[-1] else (0.985, "top")
            ax.axvline(edge, color=colour, ls=":", lw=1.2)
            ax.text(
                edge,
                height,
                f"{name}: 0 from {math.ceil(10 * edge) / 10}",
                rotation=90,
                fontsize=8.5,
                color=colour,
                ha="right",
                va=side,
                transform=ax.get_xaxis_transform(),
            )
    ax.set_ylim(*limits)
    ax.set_xlim(0, float(alphas[-1]))
    ax.set_xlabel("sharpness α (score per squared token)")
    ax.yaxis.set_major_formatter(lambda value, _: _power(value))


def _power(value: float) -> str:
    whole = math.floor(value + 1e-9) if value != round(value) else round(value)
    if abs(value - whole) < 1e-9:
        return f"10{_raised(whole)}"
    return f"{10 ** (value - whole):.1f}·10{_raised(whole)}"


def _raised(number: int) -> str:
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
