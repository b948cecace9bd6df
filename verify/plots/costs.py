"""`cost_figure`: time against the number of tokens, with a power law fitted by linear regression."""

import math
import statistics
import timeit
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from construct.attention import MHSA
from verify.layers.reading import token_count
from verify.oracle import Geometry
from verify.plots.drawing import BLUE, GREEN, INK, ORANGE, PINK, Figure, new_figure, plain, style
from verify.recheck.strict_input import AnyPath, strict_json

FORMAT = "conv-as-attention cost"
VERSION = 1
LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PINK, "D"), (INK, "v"))
LEAST = 3
"""The fewest points for a fit."""
SECONDS = 2.0
PAIRS = 2**26
"""Limits of a series: it stops before a call that would take longer, or have more
(head, query, key) triples.
"""


@dataclass(frozen=True)
class Series:
    """Measured times per call of one execution, by increasing number of tokens on the padded grid."""

    name: str
    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def fitted_from(self) -> int:
        """The first point of the larger half (at least ``LEAST`` points), because overhead
        dominates small calls.
        """
        return min(len(self.tokens) // 2, len(self.tokens) - LEAST)

    @property
    def fit(self) -> tuple[float, float]:
        """(p, c) of the logarithmic least squares fit seconds ≈ c·tokens^p to the points from
        ``fitted_from`` on.
        """
        logs = [
            [math.log(v) for v in values[self.fitted_from :]]
            for values in (self.tokens, self.seconds)
        ]
        line = statistics.linear_regression(*logs)
        return line.slope, math.exp(line.intercept)


def read_costs(path: AnyPath) -> tuple[list[Series], str]:
    """Read a file's series and description.

    Raises:
        ValueError: the file holds no times.
        OSError: it cannot be read.
    """
    document = strict_json(Path(path).read_bytes(), str(path))
    try:
        if (document["format"], document["version"]) != (FORMAT, VERSION):
            raise ValueError("python -m benchmarks.cost writes one")
        series = [
            Series(str(s["name"]), tuple(s["tokens"]), tuple(s["seconds"]))
            for s in document["series"]
        ]
        for s in series:
            increasing = sorted(set(s.tokens)) == [*s.tokens] and len(s.tokens) >= LEAST
            positive = all(type(v) in (int, float) and v > 0 for v in (*s.tokens, *s.seconds))
            if not (increasing and positive and len(s.tokens) == len(s.seconds)):
                raise ValueError(
                    f"{s.name!r} has not {LEAST} or more increasing numbers of tokens and as many positive times"
                )
        if not series:
            raise ValueError("it holds no series")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: must be a file of times: {error}") from None
    return series, str(document.get("what", ""))


def measured(
    layer: MHSA, executions: Sequence[str] = ("auto", "dense"), rounds: int = 5
) -> list[Series]:
    """Time a layer on growing inputs, as the minimum of several calls each, until a call takes too
    long.

    Raises:
        ValueError: too few sizes were fast enough for a fit.
    """
    g = Geometry.read(layer)
    series = []
    own = layer.execution
    try:
        for layer.execution in executions:
            series.append(_series(layer, g, rounds))
    finally:
        layer.execution = own
    return series


def _series(layer: MHSA, g: Geometry, rounds: int) -> Series:
    tokens: list[int] = []
    seconds: list[float] = []
    ratio = 2.0 ** (1 / g.dims)  # about twice the tokens
    least = [4 + max(span, *pads) for span, pads in zip(g.spans, g.pads, strict=True)]
    for step in range(1, 12):
        size = [math.ceil(n * ratio**step) for n in least]
        count = token_count(g, tuple(size))
        pairs = layer.heads * count**2
        grown = (count / tokens[-1]) ** 2 if tokens else 1.0
        if (layer.execution == "dense" and pairs > PAIRS) or (
            tokens and seconds[-1] * grown * rounds > SECONDS
        ):
            break
        x = layer.w_val.new_zeros(1, g.in_channels, *size)
        tokens.append(count)
        with torch.no_grad():
            layer(x)
            seconds.append(min(timeit.repeat(partial(layer, x), number=1, repeat=rounds)))
    if len(tokens) < LEAST:
        raise ValueError(
            f"the layer is too slow to be timed ({layer.execution}: {len(tokens)} sizes within seconds)"
        )
    return Series(f"attention, {layer.execution}", tuple(tokens), tuple(seconds))


def cost_figure(series: Sequence[Series], what: str = "") -> Figure:
    """Draw times against tokens on logarithmic axes, with the fitted power law of each series.

    Args:
        series: from :func:`read_costs` or :func:`measured`.
        what: what was measured and where, a line under the title.

    >>> import verify.plots
    >>> from verify.plots.costs import Series
    >>> quadratic = Series("dense", tokens=(10, 20, 40), seconds=(0.1, 0.4, 1.6))
    >>> round(quadratic.fit[0], 6)
    2.0
    >>> figure = verify.plots.cost_figure([quadratic])
    """
    with style():
        figure = new_figure(6.6, 4.6)
        ax = figure.subplots()
        ax.set_xscale("log")
        ax.set_yscale("log")
        for number, s in enumerate(series):
            colour, marker = LOOKS[number % len(LOOKS)]
            power, factor = s.fit
            label = f"{plain(s.name)}: tokens^{power:.2f}"
            milliseconds = [1e3 * t for t in s.seconds]
            ax.plot(
                s.tokens,
                milliseconds,
                marker=marker,
                ms=6,
                ls="none",
                color=colour,
                label=label,
                gid=s.name,
            )
            ends = (s.tokens[s.fitted_from], s.tokens[-1])
            ax.plot(
                ends,
                [1e3 * factor * t**power for t in ends],
                color=colour,
                lw=1.3,
                gid=f"fit {s.name}",
            )
        ax.set_xlabel("tokens of the padded grid")
        ax.set_ylabel("time of one call (ms)")
        ax.grid()
        legend = figure.legend(
            loc="outside lower center", ncols=2, title="fitted to the larger half of the points"
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
        ax.set_title(plain(what, 110), fontsize=8.5, parse_math=False)
        figure.suptitle("Cost against tokens")
    return figure
