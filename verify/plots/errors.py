"""`errors_figure`: observed differences and certified bounds by layer, from a certificate file."""

import math
from dataclasses import dataclass

import numpy as np

from verify.plots.drawing import BLUE, FAINT, INK, ORANGE, Axes, Figure, new_figure, plain, style
from verify.recheck.certificate_file import read_document
from verify.recheck.strict_input import AnyPath


@dataclass(frozen=True)
class LayerErrors:
    """One layer of a certificate file, with the largest value of each number over the channels.

    ``observed`` may be infinite or NaN, and ``bound`` infinite; ``rounding`` is the part of the
    bound that is due to rounding.
    """

    name: str
    verdict: str
    observed: float
    bound: float
    rounding: float


def rows_of(path: AnyPath) -> list[LayerErrors]:
    """The layers of a certificate file, in file order.

    Raises:
        ValueError: it is not a certificate, was edited, or holds no layer.
        OSError: it cannot be read.
    """
    certificates, _ = read_document(path)
    if not certificates:
        raise ValueError(f"{path}: the certificate of no layer")
    rows = []
    for one in certificates:
        numbers = (
            float(part.max(initial=0.0))  # NaN, if one is
            for part in (one.observed, one.parts["bound"], one.parts["rounding"])
        )
        rows.append(LayerErrors(one.name or "(the layer)", one.verdict, *numbers))
    return rows


def errors_figure(path: AnyPath) -> Figure:
    """Draw the largest observed difference and the largest bound of every layer.

    Args:
        path: of a certificate file, ``model.mhsa.json``.

    Returns:
        A figure with one row per layer and a logarithmic x axis; 0, ∞ and NaN appear as text.

    Raises:
        ValueError: see :func:`rows_of`.
        OSError: the file cannot be read.

    >>> import construct, tempfile, torch, verify, verify.plots
    >>> from verify.argument.documents import write_document
    >>> conv = torch.nn.Conv1d(1, 1, kernel_size=3)
    >>> certificate = verify.certify(conv, construct.conv_to_mhsa(conv), grid=(8,))
    >>> path = tempfile.mkdtemp() + "/model.mhsa.json"
    >>> write_document(path, [("conv", certificate)])
    >>> figure = verify.plots.errors_figure(path)
    """
    rows = rows_of(path)
    low, high = _limits(rows)
    with style():
        figure = new_figure(8.4, min(60.0, 1.7 + 0.3 * len(rows)))
        ax = figure.subplots()
        ax.set_xscale("log")
        for y, row in enumerate(rows):
            if _drawable(row.observed) and _drawable(row.bound):
                ax.plot([row.observed, row.bound], [y, y], color="#cfcfcf", lw=1.5, zorder=1)
            for name, value in (("observed", row.observed), ("bound", row.bound)):
                if value == 0:
                    _write(ax, f"{name} 0", (low, y), 3, "left")
                elif not _drawable(value):
                    what = "∞" if value == math.inf else "is not a number"
                    _write(ax, f"{name} {what}", (high, y), -3, "right")
        for name, marker, colour, size, edge, label in _SERIES:
            points = [(getattr(row, name), y) for y, row in enumerate(rows)]
            x, y = np.array([point for point in points if _drawable(point[0])]).reshape(-1, 2).T
            ax.plot(
                x,
                y,
                marker=marker,
                ms=size,
                mew=edge,
                color=colour,
                ls="none",
                label=label,
                gid=name,
            )
        ax.set_xlim(low, high)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_yticks(range(len(rows)), [plain(row.name) for row in rows], parse_math=False)
        right = ax.secondary_yaxis("right")
        right.set_yticks(range(len(rows)), [row.verdict for row in rows], fontsize=8)
        right.tick_params(length=0)
        right.spines["right"].set_visible(False)
        ax.set_xlabel("difference between attention and convolution (units of the layer’s output)")
        ax.grid(axis="x")
        handles, labels = ax.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=3)
        figure.suptitle("Observed and bounded, layer by layer")
    return figure


_SERIES = (
    ("rounding", "|", FAINT, 11, 1.8, "of it, rounding"),
    ("bound", "<", BLUE, 8, 0.5, "bound, for all inputs"),
    ("observed", "o", ORANGE, 6, 0.5, "greatest difference observed, on adversarial inputs"),
)
"""Name, marker, colour, size, edge and label of what is drawn for each layer."""


def _limits(rows: list[LayerErrors]) -> tuple[float, float]:
    """The ends of the x axis."""
    drawn = [
        v for row in rows for v in (row.observed, row.bound, row.rounding) if _drawable(v)
    ] or [1e-8, 1.0]
    return 10.0 ** (math.floor(math.log10(min(drawn))) - 0.7), 10.0 ** (
        math.ceil(math.log10(max(drawn))) + 0.2
    )


def _write(ax: Axes, text: str, place: tuple[float, float], offset: int, side: str) -> None:
    look = {"ha": side, "va": "center", "fontsize": 8, "color": INK}
    ax.annotate(text, place, xytext=(offset, 0), textcoords="offset points", **look)


def _drawable(value: float) -> bool:
    return 0 < value < math.inf
