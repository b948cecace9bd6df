"""Reads the headline theorems from the Coq sources; Headlines.v lists them by group, each after the
paper's equation.

A statement is printed verbatim, with the comment above it and with the variables, hypotheses and
local definitions of its enclosing sections, which are part of it.  The committed statements.txt
pins what every headline states and every file defines.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parent
_HEADLINE = re.compile(
    r"^\(\*\* (?P<group>.*?) \*\)$|^\(\* (?P<equation>.*?) \*\)$|^Print Assumptions (?P<name>[\w.]+)\.$",
    re.M | re.S,
)
_TOKEN = re.compile(r'\(\*|\*\)|"[^"]*"|(?P<end>\.(?=\s|$))|[^\s(*".]+|\S', re.S)
_STATED = re.compile(r"(?:Theorem|Lemma|Corollary)\s+(\w+)")
_CONTEXT = re.compile(r"(?:Variables?|Hypothes[ie]s|Context|Notation)\b|Let\b(?=.*:=)", re.S)
_SHOWN = re.compile(r"(?:Theorem|Lemma|Corollary|Example)\b")


class Headline(NamedTuple):
    """A headline theorem.

    Attributes:
        group: its topic.
        equation: the paper's equation or claim to which it belongs, or its origin.
        name: the theorem's name, without its module.
        file: relative to the Coq sources.
        comment: the comment above it in the source; may be empty.
        context: the variables, hypotheses and local definitions of its enclosing sections,
            verbatim.
        statement: the statement, verbatim.
    """

    group: str
    equation: str
    name: str
    file: str
    comment: str
    context: tuple[str, ...]
    statement: str

    def __str__(self) -> str:
        parts = [
            f"{self.name}  [{self.file}]",
            f"  {self.equation}",
            self.comment,
            *self.context,
            self.statement,
        ]
        return "\n".join(part for part in parts if part) + "\n"


def headlines(names: Sequence[str] = ()) -> list[Headline]:
    """The headline theorems in the order of Headlines.v.

    Args:
        names: only these.

    Raises:
        ValueError: there is no such theorem.

    >>> [theorem] = headlines(["lemma2"])
    >>> print(theorem.statement.splitlines()[0])
    Theorem lemma2 d α δ τ : length δ = d -> length τ = d ->
    """
    stated: dict[str, list[Headline]] = {}
    for path in sorted(SOURCES.glob("*/*.v")):
        for headline in _statements(path):
            stated.setdefault(headline.name, []).append(headline)
    listed = []
    group = ""
    equation = ""
    for match in _HEADLINE.finditer((SOURCES / "Headlines.v").read_text(encoding="utf-8")):
        if match["name"] is None:
            group = match["group"] or group
            equation = " ".join((match["equation"] or equation).split())
            continue
        module, _, name = match["name"].rpartition(".")
        (headline,) = [one for one in stated[name] if module in ("", Path(one.file).stem)]
        listed.append(headline._replace(group=group, equation=equation))
        equation = ""
    if missing := [name for name in names if name not in {headline.name for headline in listed}]:
        raise ValueError(
            f"no headline theorem is called {missing[0]} (python -m verify coq statements lists them)"
        )
    return [headline for headline in listed if not names or headline.name in names]


def pinned() -> str:
    """The content of statements.txt: a digest of each headline theorem's statement, and of each
    file but its theorems and proofs.

    >>> pinned().splitlines()[0].split()[0]
    'lemma2'
    """
    lines = [
        f"{theorem.name} {_digest([*theorem.context, theorem.statement])}"
        for theorem in headlines()
    ]
    for path in sorted(SOURCES.glob("*/*.v")):
        lines.append(f"{path.relative_to(SOURCES).as_posix()} {_digest(_defined(path))}")
    return "\n".join(lines) + "\n"


def _defined(path: Path) -> list[str]:
    """Every sentence of a file that may change what a statement means: all but theorems, and proofs
    that end with Qed.
    """
    kept: list[str] = []
    proof: list[str] | None = None
    for _, code in _sentences(path.read_text(encoding="utf-8")):
        if proof is not None:
            proof.append(code)
            if code in ("Qed.", "Defined."):
                kept += [] if code == "Qed." else proof
                proof = None
        elif re.match(r"Proof\b", code):
            proof = [code]
        elif not _SHOWN.match(code):
            kept.append(code)
    return kept + (proof or [])


def _digest(sentences: Sequence[str]) -> str:
    """The digest of sentences, independent of line breaks."""
    return hashlib.sha256(
        "\n".join(" ".join(code.split()) for code in sentences).encode()
    ).hexdigest()[:16]


@cache
def _sentences(text: str) -> list[tuple[str, str]]:
    """Every Coq sentence (it ends with a period) with the comment before it; comments nest."""
    depth = 0
    comment = (0, 0)
    began = 0
    start = -1
    sentences = []
    for token in _TOKEN.finditer(text):
        if token[0] == "(*":
            began = token.start() if depth == 0 else began
            depth = depth + 1
        elif token[0] == "*)":
            depth -= 1
            comment = (began, token.end()) if depth == 0 and start < 0 else comment
        elif depth == 0:
            start = token.start() if start < 0 else start
            if token["end"]:
                sentences.append((text[slice(*comment)], text[start : token.end()]))
                comment = (0, 0)
                start = -1
    return sentences


def _statements(path: Path) -> Iterator[Headline]:
    """The theorems of a file."""
    sections: list[tuple[str, list[str]]] = []
    file = path.relative_to(SOURCES).as_posix()
    for comment, code in _sentences(path.read_text(encoding="utf-8")):
        if opened := re.fullmatch(r"Section (\w+)\.", code):
            sections.append((opened[1], []))
        elif sections and code == f"End {sections[-1][0]}.":
            sections.pop()
        elif sections and _CONTEXT.match(code):
            sections[-1][1].append(code)
        elif theorem := _STATED.match(code):
            context = tuple(line for _, lines in sections for line in lines)
            yield Headline("", "", theorem[1], file, comment, context, code)
