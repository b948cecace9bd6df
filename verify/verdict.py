"""``Verdict``: PROVED, CHECKED, REFUTED or UNDECIDED, with a sentence; and how numbers are printed in such sentences."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Verdict:
    """A judgement and the sentence that explains it.

    Attributes:
        name: PROVED (for all inputs), CHECKED (on samples, and the sentence says which), REFUTED (with the counterexample)
            or UNDECIDED (with the step that failed).
        sentence: why.

    >>> verdict = Verdict("CHECKED", "240 outputs agree within rounding on noise")
    >>> print(verdict, verdict.good)
    CHECKED: 240 outputs agree within rounding on noise True
    """

    name: Literal["PROVED", "CHECKED", "REFUTED", "UNDECIDED"]
    sentence: str

    def __post_init__(self) -> None:
        if self.name not in ("PROVED", "CHECKED", "REFUTED", "UNDECIDED"):
            raise ValueError(f"{self.name!r} is no verdict")

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"

    @property
    def good(self) -> bool:
        """PROVED or CHECKED."""
        return self.name in ("PROVED", "CHECKED")


# ---- numbers in sentences: a bound may be said too large but not too small, and a condition not too wide -------------


def from_above(bound: float) -> str:
    """Three digits of a bound, rounded up.

    >>> from_above(0.123401)
    '0.124'
    """
    text = f"{bound:.3g}"
    if float(text) < bound:
        text = f"{bound + 10.0 ** (math.floor(math.log10(bound)) - 2):.3g}"
    return text


def exactly(value: float) -> str:
    """A number in as few digits as say it exactly."""
    text = f"{value:g}"
    return text if float(text) == value else repr(float(value))
