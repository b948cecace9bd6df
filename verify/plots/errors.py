"""`errors_figure`: observed differences and certified bounds by layer, from a certificate file."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from verify.plots.drawing import BLUE, FAINT, INK, ORANGE, Figure, new_figure, plain, style
from verify.recheck.certificate_file import read_document
from verify.recheck.strict_input import strict_json


@dataclass(frozen=True)
class LayerErrors:
    """One layer of a certificate file, with the largest value of each number over the channels.

    ``observed`` may be infinite or NaN, and ``bound`` infinite; ``rounding`` is the part of the bound that is due to
    rounding.
    """

    name: str
    verdict: str
    observed: float
    bound: float
    rounding: float


def rows_of(path: str | os.PathLike[str]) -> list[LayerErrors]:
    """The layers of a certificate file, in file order.

    Raises:
        ValueError: it is not a certificate, was edited, or holds no layer.
        OSError: it cannot be read.
    """
    certificates, _ = read_document(path)
    records = strict_json(Path(path).read_bytes(), str(path))["layers"]
    if not certificates:
        raise ValueError(f"{path}: the certificate of no layer")
    rows = []
    for stated, record in zip(certificates, records, strict=True):
        differences = [float.fromhex(x) for x in record["observed"]]
        observed = math.nan if any(map(math.isnan, differences)) else max(differences, default=0.0)
        bound, rounding = (float(stated.parts[part].max(initial=0.0)) for part in ("bound", "rounding"))
        rows.append(LayerErrors(stated.name or "(the layer)", stated.verdict, observed, bound, rounding))
    return rows


def errors_figure(path: str | os.PathLike[str]) -> Figure:
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
            edge = 1.8 if marker == "|" else 0.5
            ax.plot(x, y, marker=marker, ms=size, mew=edge, color=colour, ls="none", label=label, gid=gid)
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


def _drawable(value: float) -> bool:
    return 0 < value < math.inf
