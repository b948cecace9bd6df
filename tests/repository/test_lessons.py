"""The lessons in docs/teaching/: notebooks run, right answers to exercises pass, and mistakes do not."""

import ast
import re
import runpy
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import matplotlib
import nbformat
import pytest
import torch

from commands import ROOT, python

LESSONS = {name: ROOT / f"docs/teaching/{name}.py" for name in ("one_head", "one_kernel", "one_network")}
QUICK = "one_kernel"
EACH = [pytest.param(name, marks=[pytest.mark.deep] * (name != QUICK)) for name in LESSONS]


ANSWERS: dict[str, dict[str, tuple[str, list[str]]]] = runpy.run_path(str(ROOT / "docs/teaching/answers.py"))["ANSWERS"]


def cells(name: str) -> list[Any]:
    notebook = jupytext.reads(LESSONS[name].read_text(encoding="utf-8"), "py:percent")
    nbformat.validate(notebook)
    return notebook.cells


def exercises(name: str) -> dict[str, str]:
    """The name that each exercise assigns → the code cell that checks it."""
    codes = [cell for cell in cells(name) if cell.cell_type == "code"]
    tagged = [number for number, cell in enumerate(codes) if "exercise" in cell.metadata.get("tags", [])]
    checks = {}
    for number in tagged:
        assigned, check = re.match(r"(\w+) = None\b", codes[number].source), codes[number + 1].source
        assert assigned, codes[number].source
        assert re.search(rf"^check\(\s*{assigned[1]},", check, re.MULTILINE)
        checks[assigned[1]] = check
    return checks


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "lesson", "exec"), names)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_a_notebook_with_formulas_figures_and_exercises(name: str):
    first, *others = cells(name)
    source = LESSONS[name].read_text(encoding="utf-8")
    assert first.cell_type == "markdown"
    assert first.source.split() == (ast.get_docstring(ast.parse(source)) or "").split() != []
    texts = [cell.source for cell in others if cell.cell_type == "markdown"]
    codes = [cell.source for cell in others if cell.cell_type == "code"]
    assert all(text.count("$") % 2 == 0 for text in texts)
    assert sum("$" in text for text in texts) >= 3
    assert sum("plt.subplots(" in code for code in codes) >= 2
    assert exercises(name).keys() == ANSWERS[name].keys()
    assert sum(len(re.findall(r"\*\*Exercise \d\.\*\*", text)) for text in texts) == len(ANSWERS[name])
    imported = re.findall(r"^\s*(?:from|import) (construct|verify)\.", source, re.MULTILINE)
    assert not imported, "a lesson uses the public names"


@pytest.mark.parametrize("name", EACH)
def test_right_answers_pass_and_mistakes_do_not(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": name}
    with torch.random.fork_rng(devices=[]):
        for cell in cells(name):
            if cell.cell_type == "code":
                assigned = re.match(r"(\w+) = None\b", cell.source)
                answered = assigned and "exercise" in cell.metadata.get("tags", [])
                run(f"{assigned[1]} = {ANSWERS[name][assigned[1]][0]}" if answered else cell.source, names)  # type: ignore[index]
        for assigned, check in exercises(name).items():
            run(check, names)
            for mistake in ANSWERS[name][assigned][1]:
                with pytest.raises(AssertionError):
                    run(f"{assigned} = {mistake}\n{check}", names)
        names["plt"].close("all")


@pytest.mark.deep
@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_without_answers_runs(name: str, tmp_path: Path):
    done = python(LESSONS[name], cwd=tmp_path, MPLBACKEND="agg", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no answer yet") == len(ANSWERS[name])
    assert "right\n" not in done.stdout
