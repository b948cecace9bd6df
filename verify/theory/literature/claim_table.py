"""``verify.claims``: the table of all claims of the paper, the talk and the blog, judged as printed.

The evidence is in ``claims_*.py``, the rules of a verdict in :mod:`verify.theory.literature.judgement`.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from verify.theory.literature import (
    claims_borders,
    claims_encoding,
    claims_heads,
    claims_sharpness,
    claims_symmetry,
    claims_theorem,
    claims_training,
    claims_widths,
)
from verify.theory.literature.judgement import EXPERIMENT, PROVED, REFUTED, UNDECIDED, Claim, Correction

ALL: tuple[Claim, ...] = (
    *claims_theorem.CLAIMS,
    *claims_sharpness.CLAIMS,
    *claims_encoding.CLAIMS,
    *claims_heads.CLAIMS,
    *claims_widths.CLAIMS,
    *claims_borders.CLAIMS,
    *claims_symmetry.CLAIMS,
    *claims_training.CLAIMS,
)
"""Every claim, in the order of the table."""


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with the verdict of this run.

    Attributes:
        number: its row in the table, from 1.
        id: a short name.
        wording: the statement, in our own words.
        source: who makes it and where.
        verdict: PROVED, REFUTED, "an experiment" (nothing here decides it), or UNDECIDED if a check fails.
        evidence: the findings of the checks, with the numbers of this run.
        correction: of a claim that is refuted as printed, the true statement with its own verdict and evidence.
    """

    number: int
    id: str
    wording: str
    source: str
    verdict: str
    evidence: str
    correction: Correction | None

    def __str__(self) -> str:
        lines = [f"{self.number:3}  {self.verdict:<13}  {self.id}  ({self.source})"]
        paragraphs = [("", self.wording), ("evidence: ", self.evidence)]
        if self.correction is not None:
            paragraphs.append((f"instead, {self.correction.verdict}: ", self.correction.statement))
            paragraphs.append(("evidence: ", self.correction.evidence))
        for head, text in paragraphs:
            lines.append(textwrap.fill(head + text, 120, initial_indent=" " * 5, subsequent_indent=" " * 7))
        return "\n".join(lines)


@dataclass(frozen=True)
class ClaimTable(Sequence[JudgedClaim]):
    """The judged claims: a sequence, readable as a table.

    Attributes:
        rows: the claims in order.
    """

    rows: tuple[JudgedClaim, ...]

    @overload
    def __getitem__(self, index: int) -> JudgedClaim: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[JudgedClaim, ...]: ...
    def __getitem__(self, index: int | slice) -> JudgedClaim | tuple[JudgedClaim, ...]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def counts(self) -> dict[str, int]:
        """The number of claims with each verdict."""
        counter = Counter(row.verdict for row in self.rows)
        return {verdict: counter[verdict] for verdict in (PROVED, REFUTED, EXPERIMENT, UNDECIDED)}

    @property
    def good(self) -> bool:
        """Whether nothing is UNDECIDED, corrections included."""
        corrections = (row.correction for row in self.rows if row.correction is not None)
        return not self.counts[UNDECIDED] and all(correction.verdict == PROVED for correction in corrections)

    @property
    def summary(self) -> str:
        """The counts in one line."""
        return f"{len(self)} claims, as printed: " + ", ".join(
            f"{n} {verdict}" for verdict, n in self.counts.items() if n
        )

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.rows), self.summary])

    def markdown(self) -> str:
        """The table in Markdown, as in docs/claims.md."""
        lines = ["| | claim | source | as printed | evidence |", "|---|---|---|---|---|"]
        for row in self.rows:
            evidence = row.evidence
            if row.correction is not None:
                correction = row.correction
                evidence += f"<br>**Instead, {correction.verdict}:** {correction.statement}.<br>{correction.evidence}"
            cells = (str(row.number), row.wording, row.source, row.verdict, evidence)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join([*lines, "", self.summary + "."])


def claims(only: Iterable[str] | None = None) -> ClaimTable:
    """Judge the claims of the paper, the talk and the blog, as printed.

    Args:
        only: the ids of the claims to judge; all by default.

    Returns:
        The table.  This call computes every verdict; the row of a refuted claim also has the corrected statement.

    Raises:
        ValueError: there is no claim with that id.

    >>> import verify
    >>> [(row.id, row.verdict) for row in verify.claims(only=["even-kernel"])]
    [('even-kernel', 'REFUTED')]
    """
    wanted = None if only is None else set(only)
    unknown = (wanted or set()) - {claim.id for claim in ALL}
    if unknown:
        raise ValueError(f"no claim {', '.join(sorted(unknown))}; there are {', '.join(claim.id for claim in ALL)}")
    rows = []
    for number, claim in enumerate(ALL, 1):
        if wanted is None or claim.id in wanted:
            judgement = claim.judge()
            rows.append(
                JudgedClaim(
                    number,
                    claim.id,
                    claim.wording,
                    claim.source,
                    judgement.verdict,
                    judgement.evidence,
                    judgement.correction,
                )
            )
    return ClaimTable(tuple(rows))
