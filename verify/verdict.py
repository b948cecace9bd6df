"""The four words that a judgement may use."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Verdict:
    """A judgement and the sentence that explains it.

    Attributes:
        name: PROVED (for all inputs), CHECKED (on samples, and the sentence says which), REFUTED (with the counterexample)
            or UNDECIDED (with the step that failed).
        sentence: why.
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
