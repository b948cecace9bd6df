"""The style of the figures, and writing them to SVG and PNG files."""

import colorsys
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verify.argument.documents import replace_file
from verify.recheck.strict_input import AnyPath
from verify.verdict import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # only annotations use it: matplotlib is imported when a figure is drawn
    Axes = Figure = Any

SUFFIXES = (".svg", ".png")
INK, FAINT = "#222222", "#8c8c8c"
BLUE, ORANGE, GREEN, PINK = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
COLOURS = (BLUE, ORANGE, GREEN, PINK, "#8a5a00", "#56b4e9", "#c9a400", "#6a4fc0", "#a3123f")
"""Okabe and Ito's palette for colour-blind readers, with darker yellows for a white background, and
two more.
"""
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "figure.titlesize": 11,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",  # text stays text: small, searchable files
    "svg.hashsalt": "conv-as-attention",  # the same figure gives the same bytes
}


def colours(count: int) -> tuple[Any, ...]:
    """``count`` distinct colours: the palette, then more from the colour wheel, alternately light
    and dark.

    >>> len(set(colours(64)))
    64
    """
    if count <= len(COLOURS):
        return COLOURS[:count]
    lights = (0.55, 0.85)
    return tuple(colorsys.hsv_to_rgb(n / count, 0.9, lights[n % 2]) for n in range(count))


def require_matplotlib() -> Any:
    """Import matplotlib.

    Raises:
        ImportError: matplotlib is missing; one line says how to install it.
    """
    try:
        return import_module("matplotlib")
    except ImportError as error:
        hint = 'pip install ".[viz]" in the project\'s folder'
        raise ImportError(f"plots need matplotlib, which is not installed ({hint})") from error


@contextmanager
def style() -> Iterator[None]:
    """Use this project's matplotlib style inside the block."""
    with require_matplotlib().rc_context(STYLE):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, not registered with pyplot."""
    return import_module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


MARK = "conv-as-attention"
"""The publisher in every figure's metadata, which marks it as ours."""


def require_writable(path: AnyPath, force: bool = True) -> Path:
    """Check that a figure can be written to a path, and return it.

    Raises:
        ValueError: the suffix is not a supported format, the folder is missing, or, without
            ``force``, a file is there that is not a figure of this project.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{target}: a figure's name ends in {' or '.join(SUFFIXES)}")
    if not target.parent.is_dir():
        raise ValueError(f"{target.parent}: no such folder")
    if target.exists() and not target.is_file():
        raise ValueError(f"{target}: is there, and is not a file (give another name)")
    if not force and target.exists():
        with target.open("rb") as file:
            if MARK.encode() not in file.read(4096):
                message = "exists and is not a figure of ours (give another name, or remove it)"
                raise ValueError(f"{target}: {message}")
    return target


def write_figure(figure: Figure, path: AnyPath) -> None:
    """Write a figure atomically: an earlier file is replaced entirely or not at all.

    Args:
        figure: the figure.
        path: ends in .svg or .png.

    Raises:
        ValueError: see :func:`require_writable`.
        OSError: the file cannot be written.

    >>> import tempfile, verify.plots
    >>> verify.plots.write_figure(verify.plots.leakage_figure(dims=1), tempfile.mkdtemp() + "/cost.svg")
    """
    target = require_writable(path)
    kind = target.suffix.lower().removeprefix(".")
    content = io.BytesIO()
    metadata = {"Date": None, "Publisher": MARK} if kind == "svg" else {"Source": MARK}
    with style(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph missing from the font is only drawn as a box
        figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    replace_file(target, content.getvalue())


def plain(text: str, most: int = 40) -> str:
    """A drawable name: unprintable characters are escaped and long names are cut in the middle."""
    shown = escaped(text)
    return shown if len(shown) <= most else f"{shown[: most // 2]}…{shown[-(most // 2 - 1) :]}"
