"""docs/paper.md, the index of the paper, names only what there is; that its links lead somewhere is a test of every page."""

import argparse
import ast
import contextlib
import importlib
import re
import shlex
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from commands import ROOT
from verify.coq.statements import SOURCES, headlines
from verify.theory.symbolic.lemmas import all_proofs
from verify.theory.symbolic.proof import in_brief

DOCS = ROOT / "docs"
PAGE = (DOCS / "paper.md").read_text(encoding="utf-8")
FIGURE_6 = DOCS / "figures/learned_cifar_maps_content.svg"


@cache
def lemmas() -> str:
    return " ".join(in_brief(all_proofs((2,))).split())


@cache
def names_in(path: Path) -> set[str]:
    """Python: functions, classes with their methods, constants.  Coq: headline theorems, and definitions."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".v":
        proved = {one.name for one in headlines() if SOURCES / one.file == path}
        return proved | set(re.findall(r"^Definition (\w+)", text, re.MULTILINE))
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return names


def parses(line: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the command of ``python -m MODULE …`` accepts the words."""
    module, *words = shlex.split(line)[2:]
    imported = importlib.import_module(module)
    if hasattr(imported, "__path__"):
        imported = importlib.import_module(f"{module}.__main__")

    accepted = []

    def parse(self: argparse.ArgumentParser, *arguments: list[str] | None) -> NoReturn:
        accepted.append(read(self, *arguments))
        raise SystemExit  # what was read is not run

    read = argparse.ArgumentParser.parse_args
    with monkeypatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        imported.main(words)
    return bool(accepted)


def wrong(page: str, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the page names that there is not."""
    named = re.findall(r"\[`([\w.]+)`\]\(([^)#]+)\)", page)
    printed = re.findall("“([^” ][^”]*)”", page)
    commands = re.findall(r"`(python -m [^`]+)`", page)
    assert min(len(named), 4 * len(printed), 6 * len(commands)) > 40
    return [
        *((name, file) for name, file in named if name not in names_in((DOCS / file).resolve())),
        *(words for words in printed if " ".join(words.split()) not in lemmas()),
        *(line for line in commands if not parses(line, monkeypatch)),
    ]


def test_whatever_the_index_of_the_paper_names_is_there(monkeypatch):
    assert wrong(PAGE, monkeypatch) == []
    rows = [line for line in PAGE.splitlines() if re.match(r"\| [^|-]", line)]
    assert [row for row in rows if "](" not in row and "not known" not in row] == []
    glossary = (DOCS / "theory.md").read_text(encoding="utf-8").split("## Glossary\n")[1]
    assert [n for n in re.findall(r"\bEq\. (\d+)", glossary) if f"\n| **Eq. {n}** |" not in PAGE] == []
    assert ("not drawn yet" in PAGE) == (not FIGURE_6.exists())


@pytest.mark.parametrize(("old", "new"), [
    ("`kernel_to_mhsa`", "`kernel_to_attention`"), ("`MHSA.centres`", "`MHSA.centers`"), ("`theorem1_limit`", "`theorem_limit`"),
    ("theory/Lemma2.v", "theory/Softmax.v"), ("so for all grids", "so for some grids"), ("--preset paper", "--preset article"),
    ("--report", "--repot"), ("coq statements", "coq statement"), ("results.figures RUNS", "results.figures"),
])  # fmt: skip
def test_that_check_sees(old, new, monkeypatch):
    assert wrong(PAGE.replace(old, new), monkeypatch)
