"""The headline theorems, read from Coq's sources: Headlines.v lists them, by groups, with the paper's equation before each.

A statement is printed as it stands in its file, with the comment above it, and with the variables and hypotheses of the sections
that it stands in, which are part of it.  statements.txt, committed, pins what every headline states and every file defines.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parent
_HEADLINE = re.compile(
    r"^\(\*\* (?P<group>.*?) \*\)$|^\(\* (?P<equation>.*?) \*\)$|^Print Assumptions (?P<name>[\w.]+)\.$", re.M | re.S
)
_TOKEN = re.compile(r'\(\*|\*\)|"[^"]*"|(?P<end>\.(?=\s|$))|[^\s(*".]+|\S', re.S)
_STATED = re.compile(r"(?:Theorem|Lemma|Corollary)\s+(\w+)")
_CONTEXT = re.compile(r"(?:Variables?|Hypothes[ie]s|Context|Notation)\b")
_DEFINED = re.compile(
    rf"(?:Local )?({_CONTEXT.pattern}|(?:Definition|Fixpoint|Record|Inductive|Let|Open Scope|Section|End|Extract)\b)"
)


class Headline(NamedTuple):
    """A theorem.

    Attributes:
        group: what it is about.
        equation: the paper's equation or claim that it is beside, or whose it is.
        name: of the theorem, without its module.
        file: relative to Coq's sources.
        comment: the words above it in the source; may be empty.
        context: the variables and hypotheses of the sections that it stands in, as they stand there.
        statement: as it stands in the source.
    """

    group: str
    equation: str
    name: str
    file: str
    comment: str
    context: tuple[str, ...]
    statement: str

    def __str__(self) -> str:
        parts = [f"{self.name}  [{self.file}]", f"  {self.equation}", self.comment, *self.context, self.statement]
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
    listed, group, equation = [], "", ""
    for match in _HEADLINE.finditer((SOURCES / "Headlines.v").read_text(encoding="utf-8")):
        if match["name"] is None:
            group, equation = match["group"] or group, " ".join((match["equation"] or equation).split())
            continue
        module, _, name = match["name"].rpartition(".")
        (headline,) = [one for one in stated[name] if module in ("", Path(one.file).stem)]
        listed.append(headline._replace(group=group, equation=equation))
        equation = ""
    if missing := [name for name in names if name not in {headline.name for headline in listed}]:
        raise ValueError(f"no headline theorem is called {missing[0]} (python -m verify coq statements lists them)")
    return [headline for headline in listed if not names or headline.name in names]


def pinned() -> str:
    """A line with a digest for what every headline theorem states, and for all that every file defines: statements.txt.

    >>> pinned().splitlines()[0].split()[0]
    'lemma2'
    """
    lines = [f"{theorem.name} {_digest([*theorem.context, theorem.statement])}" for theorem in headlines()]
    for path in sorted(SOURCES.glob("*/*.v")):
        defined = [code for _, code in _sentences(path.read_text(encoding="utf-8")) if _DEFINED.match(code)]
        lines.append(f"{path.relative_to(SOURCES).as_posix()} {_digest(defined)}")
    return "\n".join(lines) + "\n"


def _digest(sentences: Sequence[str]) -> str:
    """The digest of sentences, however they are broken into lines."""
    return hashlib.sha256("\n".join(" ".join(code.split()) for code in sentences).encode()).hexdigest()[:16]


@cache
def _sentences(text: str) -> list[tuple[str, str]]:
    """Every sentence of Coq, which ends with a period, and the comment before it; comments nest."""
    depth, comment, began, start, sentences = 0, (0, 0), 0, -1, []
    for token in _TOKEN.finditer(text):
        if token[0] == "(*":
            began, depth = (token.start() if depth == 0 else began), depth + 1
        elif token[0] == "*)":
            depth -= 1
            comment = (began, token.end()) if depth == 0 and start < 0 else comment
        elif depth == 0:
            start = token.start() if start < 0 else start
            if token["end"]:
                sentences.append((text[slice(*comment)], text[start : token.end()]))
                comment, start = (0, 0), -1
    return sentences


def _statements(path: Path) -> Iterator[Headline]:
    """Every theorem of a file."""
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
