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
from graphlib import TopologicalSorter
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
_DEFINES = re.compile(r"(?:Definition|Fixpoint|Record|Inductive|Notation)\s+\"?([\w']+)")
_PARTS = re.compile(r"(?:[{;]|\||:=)\s*([\w']+)")


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


def page(names: Sequence[str] = ()) -> str:
    """One page, in Markdown: theorems beside the paper's equations, all definitions that they rest on,
    and nothing else.

    Args:
        names: these theorems; by default those of the paper itself, over the reals.

    >>> page(["lemma2"]).splitlines()[0]
    '# The theorems'
    """
    theorems = headlines(names)
    if not names:
        theorems = [
            theorem
            for theorem in theorems
            if theorem.file.startswith(("theory/", "geometry/"))
            and not theorem.equation.startswith("Beyond")
        ]
    lines = ["# The theorems"]
    group = ""
    for theorem in theorems:
        if theorem.group != group:
            group = theorem.group
            lines += ["", f"## {group}"]
        lines += ["", f"**{theorem.name}** ({theorem.file}). {theorem.equation}", "", "```coq"]
        lines += [*theorem.context, theorem.statement, "```"]
    lines += ["", "# What their words mean"]
    for file, sentences in _definitions_of(theorems).items():
        lines += ["", f"## {file}", "", "```coq", *sentences, "```"]
    axioms = (SOURCES / "axioms.txt").read_text(encoding="utf-8").split()
    lines += ["", "# The axioms that they rest on", "", *(f"- `{name}`" for name in axioms)]
    return "\n".join(lines) + "\n"


def _definitions_of(theorems: Sequence[Headline]) -> dict[str, list[str]]:
    """Every definition that these statements use, directly or through others, by file, in order."""
    used: dict[Path, dict[str, None]] = {}
    waiting = []
    for theorem in theorems:
        _, _, stated = theorem.statement.split(maxsplit=2)
        path = SOURCES / theorem.file
        waiting += [(path, text) for text in (*theorem.context, stated)]
    while waiting:
        path, text = waiting.pop()
        known = _names_in_sight(path)
        for name in re.findall(r"[\w']+", text):
            home, code = known.get(name, (path, ""))
            if code and code not in used.setdefault(home, {}):
                used[home][code] = None
                waiting.append((home, code))
    ordered = {}
    for path in TopologicalSorter({path: _imported_by(path) for path in used}).static_order():
        if path not in used:
            continue
        sentences = [code for _, code in _sentences(path.read_text(encoding="utf-8"))]
        code = [code for code in sentences if _subject(path, code) in used[path]]
        if code:
            ordered[path.relative_to(SOURCES).as_posix()] = code
    return ordered


def _subject(path: Path, code: str) -> str:
    """The definition that a sentence is, or of which it declares the arguments."""
    if declares := re.match(r"Arguments ([\w']+)", code):
        return _names_defined_in(path).get(declares[1], (path, code))[1]
    return code


@cache
def _names_in_sight(path: Path) -> dict[str, tuple[Path, str]]:
    """The names that a file's text may mean, and where each is defined: its own, and those of the
    files that it imports, of which the later ones come first.
    """
    names: dict[str, tuple[Path, str]] = {}
    for other in (*_imported_by(path), path):
        names |= _names_defined_in(other)
    return names


def _imported_by(path: Path) -> list[Path]:
    files = {other.stem: other for other in SOURCES.glob("*/*.v")}
    text = path.read_text(encoding="utf-8")
    listed = re.findall(r"^From Attention Require Import\s+([\w\s]+)\.", text, re.MULTILINE)
    return [files[module] for modules in listed for module in modules.split()]


@cache
def _names_defined_in(path: Path) -> dict[str, tuple[Path, str]]:
    names = {theorem.name: (path, theorem.statement) for theorem in _statements(path)}
    for code in _defined(path):
        if defines := _DEFINES.match(code):
            names[defines[1]] = (path, code)
            if code.startswith(("Record", "Inductive")):
                names |= dict.fromkeys(_PARTS.findall(code), (path, code))
    return names


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
