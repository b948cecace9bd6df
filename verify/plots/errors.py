"""The difference that runs showed beside the bound that holds for all inputs, layer by layer, from a certificate file."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verify.plots.drawing import BLUE, FAINT, INK, ORANGE, new_figure, plain, style
from verify.recheck.arrays import strict_json
from verify.recheck.statements import read_document

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Row:
    """One layer of a certificate file.

    Attributes:
        name: its path.
        verdict: what the certificate says.
        observed: the greatest difference that runs showed, of all channels; perhaps infinite or no number.
        bound: the greatest bound of all channels; perhaps infinite.
        rounding: the part of it that is rounding.
    """

    name: str
    verdict: str
    observed: float
    bound: float
    rounding: float


def rows_of(path: str | os.PathLike[str]) -> list[Row]:
    """The layers of a certificate file, in its order.

    Raises:
        ValueError: it is no certificate, it has been edited, or it holds no layer.
        OSError: it cannot be read.
    """
    claims = read_document(path).claims
    records = strict_json(Path(path).read_bytes(), str(path))["layers"]
    if not claims:
        raise ValueError(f"{path}: the certificate of no layer")
    found = []
    for claim, record in zip(claims, records, strict=True):
        seen = [float.fromhex(x) for x in record["observed"]]
        observed = math.nan if any(map(math.isnan, seen)) else max(seen, default=0.0)
        bound, rounding = (float(claim.parts[part].max(initial=0.0)) for part in ("bound", "rounding"))
        found.append(Row(claim.name or "(the layer)", claim.verdict, observed, bound, rounding))
    return found


def errors_figure(path: str | os.PathLike[str]) -> "Figure":
    """Draw, for every layer, the greatest difference observed and the bounds, the greatest of all output channels.

    Args:
        path: of a certificate file, ``model.mhsa.json``.

    Returns:
        A figure with one row a layer, the x axis logarithmic; what has no place on it (0, ∞, no number) is written.

    Raises:
        ValueError: see :func:`rows_of`.
        OSError: the file cannot be read.
    """
    rows = rows_of(path)
    drawn = [v for row in rows for v in (row.observed, row.bound, row.rounding) if _drawable(v)]
    low, high = (min(drawn), max(drawn)) if drawn else (1e-8, 1.0)
    low, high = 10.0 ** (math.floor(math.log10(low)) - 0.7), 10.0 ** (math.ceil(math.log10(high)) + 0.2)
    with style():
        figure = new_figure(8.4, min(60.0, 1.7 + 0.3 * len(rows)))
        ax = figure.subplots()
        ax.set_xscale("log")
        for y, row in enumerate(rows):
            if _drawable(row.observed) and _drawable(row.bound):
                ax.plot([row.observed, row.bound], [y, y], color="#cfcfcf", lw=1.5, zorder=1)
            for name, value in (("observed", row.observed), ("bound", row.bound)):
                if not _drawable(value):
                    left = value == 0
                    ax.annotate(
                        f"{name} {'0' if left else '∞' if value == math.inf else 'is no number'}",
                        (low if left else high, y), xytext=(3 if left else -3, 0), textcoords="offset points",
                        ha="left" if left else "right", va="center", fontsize=8, color=INK,
                    )  # fmt: skip
        for gid, marker, colour, size, label in (
            ("rounding", "|", FAINT, 11, "of it, rounding"),
            ("bound", "<", BLUE, 8, "bound, for all inputs"),
            ("observed", "o", ORANGE, 6, "greatest difference observed, on adversarial inputs"),
        ):
            points = [(getattr(row, gid), y) for y, row in enumerate(rows) if _drawable(getattr(row, gid))]
            x, y = zip(*points, strict=True) if points else ((), ())
            ax.plot(
                x,
                y,
                marker=marker,
                ms=size,
                mew=1.8 if marker == "|" else 0.5,
                color=colour,
                ls="none",
                label=label,
                gid=gid,
            )
        ax.set_xlim(low, high)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_yticks(range(len(rows)), [plain(row.name) for row in rows], parse_math=False)
        right = ax.secondary_yaxis("right")
        right.set_yticks(range(len(rows)), [row.verdict for row in rows], fontsize=8)
        right.tick_params(length=0)
        right.spines["right"].set_visible(False)
        ax.set_xlabel("difference between attention and convolution (units of the layer’s output)")
        ax.grid(axis="x", color="#e4e4e4", lw=0.6)
        ax.set_axisbelow(True)
        handles, labels = ax.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=3)
        figure.suptitle("Observed and bounded, layer by layer", fontsize=11)
    return figure


def _drawable(value: float) -> bool:
    return 0 < value < math.inf
