"""What all figures share: how they look, and how they are written."""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verify.argument.documents import _replace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
INK, FAINT = "#222222", "#8c8c8c"
BLUE, ORANGE, GREEN, PINK, SKY, BROWN, YELLOW = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8a5a00", "#c9a400",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PINK, BROWN, SKY, YELLOW)
"""Okabe and Ito's, which people who see fewer colours tell apart too; the yellows are darker, to be seen on white."""
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
    "legend.fontsize": 9,
    "legend.frameon": False,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",  # text stays text: small files, and found by a search
    "svg.hashsalt": "conv-as-attention",  # the same figure is written as the same bytes
}


def require_matplotlib() -> Any:
    """The module, or one line that says what to do.

    Raises:
        ImportError: it is not there.
    """
    try:
        return import_module("matplotlib")
    except ImportError as error:
        raise ImportError("plots take matplotlib, which is not there (pip install 'conv-as-attention[viz]')") from error


@contextmanager
def style() -> Iterator[None]:
    """Within, matplotlib draws in the style of this project; outside, in whatever style the user has chosen."""
    with require_matplotlib().rc_context(STYLE):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches, known to nobody but the caller."""
    return import_module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def require_writable(path: str | os.PathLike[str]) -> Path:
    """The path of a figure, if one can be written there.

    Raises:
        ValueError: its suffix names no format that is written, or its folder is not there.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{target}: a figure's name ends in {' or '.join(SUFFIXES)}")
    if not target.parent.is_dir():
        raise ValueError(f"{target.parent}: no such folder")
    if target.is_dir():
        raise ValueError(f"{target}: is a folder")
    return target


MARK = "conv-as-attention"
"""Stands in every figure that is written, as what published it."""


def is_figure(path: Path) -> bool:
    """Whether a file is an earlier figure of ours, so that it may be replaced."""
    with path.open("rb") as file:
        return MARK.encode() in file.read(4096)


def write_figure(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write a figure in one step: whatever stood there is replaced whole or not touched.

    Args:
        figure: of any function of this package.
        path: ends in .svg or .png.

    Raises:
        ValueError: see :func:`require_writable`.
        OSError: the file cannot be written.
    """
    target = require_writable(path)
    kind = target.suffix.lower().removeprefix(".")
    content = io.BytesIO()
    metadata = {"Date": None, "Publisher": MARK} if kind == "svg" else {"Source": MARK}
    with style(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a font without some letter of a layer's name draws a box, and that is all
        figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    _replace(target, content.getvalue())


def plain(text: str, most: int = 40) -> str:
    """A name as it can be drawn: what does not print is written out, and the middle of a long name left out."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return shown if len(shown) <= most else f"{shown[: most // 2]}…{shown[-(most // 2 - 1) :]}"
