"""Every code block of docs/*.md runs and prints the output shown below it; every figure is what its script draws."""

import contextlib
import io
import re
import shlex
import xml.etree.ElementTree as ET
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import ROOT, python

DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "examples/README.md", ROOT / "CONTRIBUTING.md"])
WALK = DOCS / "figures/walk.svg"
FIGURES = sorted({*(DOCS / "figures").glob("*.svg")} - {WALK})
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return path.stem


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


def executed(code: str, where: str, names: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, where, "exec"), names)
    return printed.getvalue()


def shell(lines: str) -> str:
    """Run Python commands, one per line, in the current folder."""
    printed = ""
    for line in lines.splitlines():
        first, *words = shlex.split(line)
        assert first == "python"
        words = [str(ROOT / word) if word.startswith("examples/") else word for word in words]
        done = python(*words, cwd=None)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        printed += done.stdout
    return printed


SLOW = {"formats", "numerics", "finetune"}
"""Pages whose blocks take a quarter of a minute or more; continuous integration runs them too."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=name(p), marks=[pytest.mark.deep] * (p.stem in SLOW)) for p in PAGES if blocks(p)],
)
def test_every_block_runs_and_prints_what_stands_there(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": f"docs_{page.stem}"}
    printed = None
    with torch.random.fork_rng(devices=[]):
        for number, (language, code) in enumerate(blocks(page), start=1):
            where = f"{page.name}, block {number}"
            if language == "python":
                printed = executed(code, where, names)
            elif language == "sh":
                printed = shell(code)
            else:
                assert language == "text", f"{where}: a block of {language!r} is run by nobody"
                if page.name == "README.md":  # a command of another project
                    continue
                assert printed is not None, f"{where} stands under no code"
                assert printed == code, where
                printed = None


def test_every_python_block_of_the_readme_runs_by_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = [code for language, code in blocks(README) if language == "python"]
    assert codes, "the README shows no Python"
    for number, code in enumerate(codes, start=1):
        exec(compile(code, f"README.md, python block {number}", "exec"), {"__name__": f"readme_{number}"})


@pytest.mark.parametrize("page", [README, *PAGES], ids=name)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert links or page.name != "README.md"
    assert not [link for link in links if not (page.parent / link).exists()]


def test_equations_have_the_numbers_that_the_glossary_explains():
    """Eq. 5 was once the talk's score and, elsewhere, the paper's convolution."""
    number = re.compile(r"\bEq\. (\d+)")
    explained = (DOCS / "theory.md").read_text(encoding="utf-8").split("## Glossary\n")[1]
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in ("construct", "verify", "docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".v", ".md", ".html"}
    }
    used = {int(match) for text in texts.values() for match in number.findall(text)}
    assert used <= {5, *map(int, number.findall(explained))}  # “Eq. 4 and 5”
    for name, text in texts.items():
        convolution = re.search(r"[Cc]onvolution \(Eq\. (?!8)|Eq\. [^8] has no borders", text)
        assert convolution is None, f"{name}: {convolution}"


def test_the_picture_of_the_readme_is_what_its_script_draws(tmp_path):
    done = python(DOCS / "walk.py", "--write", tmp_path / "walk.svg")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "walk.svg").read_bytes() == WALK.read_bytes()


def test_every_figure_is_shown():
    image = re.compile(r"!\[[^]]*\]\(figures/(\w+)\.svg\)")
    shown = {link for page in PAGES for link in image.findall(page.read_text(encoding="utf-8"))}
    assert shown == {path.stem for path in FIGURES}
    assert sum(path.stat().st_size for path in (DOCS / "figures").iterdir()) < 2_200_000


def test_every_figure_is_what_the_script_draws(tmp_path):
    done = python(DOCS / "figures.py", "--write", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FIGURES}
    drawn_with = {re.search(r"Matplotlib v([\w.]+)", path.read_text(encoding="utf-8"))[1] for path in FIGURES}  # type: ignore[index]
    assert len(drawn_with) == 1
    if drawn_with != {version("matplotlib")}:
        pytest.skip(f"the figures were drawn with matplotlib {drawn_with}, which places things otherwise")
    for path in FIGURES:
        words, numbers = content(path)
        words_again, numbers_again = content(tmp_path / path.name)
        assert words == words_again, path.name
        np.testing.assert_allclose(numbers, numbers_again, atol=0.1, err_msg=path.name)


def content(path: Path) -> tuple[list[str], np.ndarray]:
    """The text of a figure and the coordinates of its lines, without the ids of its parts and the encoding of rasters."""
    root = ET.fromstring(path.read_bytes())
    words = [text for element in root.iter() if (text := "".join(element.itertext()).strip()) and "text" in element.tag]
    lines = [element.get("d", "") for element in root.iter() if element.tag.endswith("path")]
    return words, np.array([float(x) for line in lines for x in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", line)])
