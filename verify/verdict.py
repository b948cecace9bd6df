"""``Verdict``: PROVED, CHECKED, REFUTED or UNDECIDED, with a sentence that explains it; and how
such sentences are printed.
"""

import math
from dataclasses import dataclass
from html import escape
from typing import Literal


def as_html(value: object) -> str:
    """For notebooks, as ``_repr_html_``: the first line of the text as a heading, the others "name:
    sentence" as a table.

    >>> as_html("PROVED: for all |x| < 1")
    '<b>PROVED: for all |x| &lt; 1</b>'
    """
    heading, *lines = map(escape, str(value).split("\n"))
    rows = (line.partition(": ") for line in lines)
    left = ' style="text-align: left"'  # notebooks align cells right
    table = "".join(
        f"<tr><th{left}>{name}</th><td{left}>{rest}</td></tr>"
        if rest
        else f'<tr><td colspan="2"{left}>{name}</td></tr>'
        for name, _, rest in rows
    )
    return f"<b>{heading}</b>" + (f"<table>{table}</table>" if table else "")


@dataclass(frozen=True)
class Verdict:
    """A judgement and the sentence that explains it.

    Attributes:
        name: PROVED (for all inputs), CHECKED (on samples, and the sentence says which), REFUTED
            (with the counterexample) or UNDECIDED (with the step that failed).
        sentence: why.

    >>> verdict = Verdict("CHECKED", "240 outputs agree within rounding on noise")
    >>> print(verdict, verdict.good)
    CHECKED: 240 outputs agree within rounding on noise True
    """

    name: Literal["PROVED", "CHECKED", "REFUTED", "UNDECIDED"]
    sentence: str

    def __post_init__(self) -> None:
        if self.name not in ("PROVED", "CHECKED", "REFUTED", "UNDECIDED"):
            raise ValueError(f"{self.name!r} must be a verdict")

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"

    _repr_html_ = as_html

    @property
    def good(self) -> bool:
        """PROVED or CHECKED."""
        return self.name in ("PROVED", "CHECKED")


def escaped(text: str) -> str:
    r"""The text with unprintable characters escaped, because names of layers and files may contain
    any character.

    >>> print(escaped("a\x1b[31m"))
    a\x1b[31m
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


# ---- numbers in sentences: a printed bound may be too large but never too small, a condition never too wide


def from_above(bound: float, digits: int = 3) -> str:
    """A bound rounded up to ``digits`` significant digits.

    >>> from_above(0.123401), from_above(0.123401, digits=2)
    ('0.124', '0.13')
    """
    text = f"{bound:.{digits}g}"
    if float(text) < bound:
        text = f"{bound + 10.0 ** (math.floor(math.log10(bound)) + 1 - digits):.{digits}g}"
    return text


def exactly(value: float) -> str:
    """A short decimal that reads back as exactly this number."""
    text = f"{value:g}"
    return text if float(text) == value else repr(float(value))
