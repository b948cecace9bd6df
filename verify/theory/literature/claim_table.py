"""``verify.claims``: the claims of the talk, abstract, slides, blog and a review, and what we add,
each with its verdict.

The evidence is in ``claims_*.py``, the rules for verdicts in
:mod:`verify.theory.literature.judgement`.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

from verify.theory.literature import (
    claims_added,
    claims_added_heads,
    claims_encoding,
    claims_experiments,
    claims_heads,
    claims_sharpness,
    claims_symmetry,
    claims_theorem,
)
from verify.theory.literature.judgement import (
    CHECKED,
    MEASURED,
    OPEN,
    PROVED,
    REFUTED,
    UNDECIDED,
    Claim,
    Judgement,
    Statement,
)
from verify.theory.literature.slips import SLIPS


def _claims_in(module: ModuleType) -> list[Claim]:
    """The claims that a module defines, in the module's order."""
    return [value for value in vars(module).values() if isinstance(value, Claim)]


ALL: tuple[Claim, ...] = (
    *_claims_in(claims_theorem),
    *_claims_in(claims_sharpness),
    *_claims_in(claims_encoding),
    *_claims_in(claims_heads),
    *_claims_in(claims_symmetry),
    *claims_experiments.CLAIMS,
    *_claims_in(claims_added),
    *_claims_in(claims_added_heads),
)
"""Every claim, in the order of the table; our additions come last."""

_WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class JudgedClaim(Statement, Judgement):
    """A statement with this run's verdict and its row number in the table, from 1."""

    number: int

    @property
    def quotation(self) -> str:
        """The source's sentence and where it stands; empty for a statement of ours that stands
        beside none.
        """
        return f"“{self.quote}” ({self.source})" if self.quote else ""

    @property
    def row(self) -> str:
        """Two lines, number, verdict and name, then the statement."""
        return f"{self.number:3}  {_with_method(self.verdict, self.by)}  {self.id}\n     {self.wording}"

    def __str__(self) -> str:
        paragraphs = [("beside: " if self.ours else "", self.quotation)] if self.quote else []
        if self.stands:
            paragraphs.append(("what stands: ", self.stands))
        paragraphs.append(("evidence: ", self.evidence))
        if self.correction is not None:
            verdict = _with_method(self.correction.verdict, self.correction.by)
            paragraphs.append((f"instead, {verdict}: ", self.correction.statement))
            paragraphs.append(("evidence: ", self.correction.evidence))
        lines = [
            textwrap.fill(head + text, _WIDTH, initial_indent=" " * 5, subsequent_indent=" " * 7)
            for head, text in paragraphs
        ]
        return "\n".join([self.row, *lines])


class ClaimTable(tuple[JudgedClaim, ...]):
    """The judged claims in order, printed as a table with two lines per row; printing one row shows
    its evidence.
    """

    @property
    def rows(self) -> tuple[JudgedClaim, ...]:
        """The judged claims as a plain tuple."""
        return tuple(self)

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows with each verdict."""
        return _counts(self)

    @property
    def good(self) -> bool:
        """Whether nothing is UNDECIDED, including corrections."""
        corrections = (row.correction for row in self if row.correction is not None)
        return UNDECIDED not in {judged.verdict for judged in (*self, *corrections)}

    @property
    def summary(self) -> str:
        """The counts in one line."""
        parts = []
        for name, rows in (("of the sources", self._of(False)), ("ours", self._of(True))):
            counted = ", ".join(f"{n} {verdict}" for verdict, n in _counts(rows).items() if n)
            short = sum(row.by == claims_experiments.SHORT for row in rows)
            counted = counted.replace(MEASURED, f"{MEASURED} ({short} {claims_experiments.SHORT})")
            parts += [f"{len(rows)} {name}: {counted}"] if rows else []
        return "; ".join(parts)

    def __str__(self) -> str:
        ours = self._of(True)
        parts = [row.row for row in self._of(False)]
        parts += ["what we add:", *(row.row for row in ours)] if ours else []
        return "\n".join([*parts, self.summary])

    def markdown(self) -> str:
        """Both tables in Markdown, and the slips and fragments, as in docs/claims.md."""
        head = "| | claim | source | verdict | evidence |\n|---|---|---|---|---|"
        parts = [
            f"## The claims\n\n{head}",
            *map(_markdown, self._of(False)),
            "\n## What we add\n\n" + head.replace("source", "stands beside"),
            *map(_markdown, self._of(True)),
            f"\n{self.summary}.\n\n## Slips and fragments\n\n| printed | where | meant |\n|---|---|---|",
            *(_cells(_in_markdown(slip.printed), slip.place, slip.meant) for slip in SLIPS),
        ]
        return "\n".join(parts)

    def _of(self, ours: bool) -> list[JudgedClaim]:
        return [row for row in self if row.ours is ours]


def claims(only: Iterable[str | int] | None = None) -> ClaimTable:
    """Judge the claims of the talk, the abstract, the slides, the blog and a review, and what we
    add to them.

    Args:
        only: the ids or the numbers of the claims to judge; all by default.

    Returns:
        The table.  Each call recomputes every verdict; the row of a refuted claim says which part
        of it is true.

    Raises:
        ValueError: there is no claim with that id or number.

    >>> import verify
    >>> [(row.id, row.verdict, row.by) for row in verify.claims(only=["channels-limit", "theorem-limit"])]
    [('theorem-limit', 'PROVED', 'Coq: theorem1_paper, theorem1_limit'), ('channels-limit', 'REFUTED', 'as printed')]
    """
    chosen = None if only is None else {str(name) for name in only}
    known = {name for number, claim in enumerate(ALL, 1) for name in (str(number), claim.id)}
    unknown = (chosen or set()) - known
    if unknown:
        names = ", ".join(claim.id for claim in ALL)
        raise ValueError(
            f"no claim {', '.join(sorted(unknown))} (use a number from 1 to {len(ALL)} or a name: {names})"
        )
    rows = []
    for number, claim in enumerate(ALL, 1):
        if chosen is None or chosen & {str(number), claim.id}:
            stated = {name: value for name, value in vars(claim).items() if name != "judge"}
            rows.append(JudgedClaim(number=number, **stated, **vars(claim.judge())))
    return ClaimTable(rows)


def _with_method(verdict: str, by: str) -> str:
    return f"{verdict} ({by})" if by else verdict


def _counts(rows: Iterable[JudgedClaim]) -> dict[str, int]:
    counter = Counter(row.verdict for row in rows)
    return {
        verdict: counter[verdict]
        for verdict in (PROVED, CHECKED, REFUTED, MEASURED, OPEN, UNDECIDED)
    }


def _markdown(row: JudgedClaim) -> str:
    evidence = f"**What stands:** {row.stands}.<br>" * bool(row.stands) + row.evidence
    if row.correction is not None:
        one = row.correction
        evidence += f"<br>**Instead, {_with_method(one.verdict, one.by)}:** {one.statement}.<br>{one.evidence}"
    source = f"“{_in_markdown(row.quote)}” ({row.source})" if row.quote else ""
    return _cells(str(row.number), row.wording, source, _with_method(row.verdict, row.by), evidence)


def _in_markdown(quote: str) -> str:
    # LaTeX without dollar signs
    return quote if "$" in quote or "\\" not in quote else f"`{quote}`"


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
