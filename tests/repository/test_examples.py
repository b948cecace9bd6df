"""Every example runs with warnings as errors, and ends in assertions of what it demonstrates."""

import ast
import os
import re
from importlib.util import find_spec

import jupytext
import nbformat
import numpy as np
import pytest
import torch
from PIL import Image

from commands import ROOT, python

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SCRIPT = "train_digits_cnn"
"""The only example that is a command rather than a notebook."""
SLOW = {"finetune", "face_detector", "pitch", SCRIPT}
"""Examples that take some seconds."""
LONGER = {SCRIPT: 130, "face_detector": 412, "pitch": 144}
"""The allowed length of examples with more than 80 lines."""
NEEDED = {"face_detector": ("facenet_pytorch", "skimage"), "pitch": ("torchcrepe",)}
"""Packages that only one example needs.  Without them it is skipped, or fails if the environment says DEMO_TESTS=required."""
ARGUMENTS = {SCRIPT: ["--write", "trained.pt"], "face_detector": ["--write", "face_detector.png"]}
"""The last argument is the file to write, in the test's own folder rather than over the one that ships."""

WRITERS = {"write_text", "write_bytes", "write_figure", "save", "savefig", "save_file"}
"""Functions that write a file."""


def name(path):
    return path.stem


def asserts_at_its_end(source):
    """Whether the script's last statement is an assertion or calls a function with one."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if isinstance(last, ast.If):  # if __name__ == "__main__": main()
        called = last.body[-1]
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if not (isinstance(called, ast.Expr) and isinstance(called.value, ast.Call)):
            return False
        assert isinstance(called.value.func, ast.Name)
        return any(isinstance(node, ast.Assert) for node in functions[called.value.func.id].body)
    return isinstance(last, ast.Assert)


def test_the_examples_are_there_and_in_their_list():
    listed = re.findall(r"\]\((\w+)\.py\)", (ROOT / "examples/README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [path.stem for path in EXAMPLES]


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem != SCRIPT], ids=name)
def test_an_example_opens_as_a_notebook(path):
    """Prose becomes Markdown cells, the docstring first; and there are at least two code cells, each complete."""
    source = path.read_text(encoding="utf-8")
    notebook = jupytext.reads(source, "py:percent")
    nbformat.validate(notebook)
    first, *others = notebook.cells
    assert first.cell_type == "markdown"
    docstring = ast.get_docstring(ast.parse(source)) or ""
    assert first.source.split() == docstring.split() != []
    codes = [cell.source for cell in others if cell.cell_type == "code"]
    assert len(codes) >= 2
    for code in codes:
        tree = ast.parse(code)
        assert tree.body, "a cell of comments alone"
        # Prose that introduces a cell has its own cell; a comment may follow the line that it explains.
        assert not code.startswith("#")
    for cell in others:
        if cell.cell_type == "markdown":
            assert not re.search(r'^#|"""', cell.source, re.MULTILINE)
            assert cell.source.count("$") % 2 == 0, "a formula has two ends"


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=name(p), marks=[pytest.mark.deep] * (p.stem in SLOW)) for p in EXAMPLES]
)
def test_an_example_runs_and_ends_in_an_assertion(path, tmp_path):
    source = path.read_text(encoding="utf-8")
    assert asserts_at_its_end(source)
    assert len(source.splitlines()) <= LONGER.get(path.stem, 90)
    if missing := [package for package in NEEDED.get(path.stem, ()) if find_spec(package) is None]:
        absent = pytest.fail if os.environ.get("DEMO_TESTS") == "required" else pytest.skip
        absent(f"there is no {', '.join(missing)} (its first lines say how to install it)")
    done = python(path, *ARGUMENTS.get(path.stem, []), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert [written.name for written in tmp_path.iterdir()] == ARGUMENTS.get(path.stem, [])[-1:]
    if path.stem == SCRIPT:
        check_trained(tmp_path / "trained.pt")
    for drawn in tmp_path.glob("*.png"):
        check_drawn(drawn, ROOT / "docs/figures" / drawn.name)


@pytest.mark.parametrize("path", [*EXAMPLES, *sorted((ROOT / "docs").glob("*.py"))], ids=name)
def test_what_ships_is_overwritten_with_write_alone(path):
    """A script that writes a file takes its path from ``--write``, whose only default is a constant."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    writes = [node for node in calls if getattr(node.func, "attr", getattr(node.func, "id", "")) in WRITERS]
    options = [node for node in calls if node.args and getattr(node.args[0], "value", None) == "--write"]
    assert len(options) == bool(writes), f"{path.name} writes {'without' if writes else 'nothing, but has'} --write"
    assert not any(keyword.arg == "default" for option in options for keyword in option.keywords)


def test_the_fine_tuned_networks_are_read_on_digits_that_the_cnn_was_not_trained_on(monkeypatch):
    """The split is the shipped CNN's; the last 300 of all digits, once the test images, were mostly in its training part."""
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.train_digits_cnn import digits

    source = (ROOT / "examples/finetune.py").read_text(encoding="utf-8")
    assert "pictures, upright, labels, test_labels = digits(seed=0)" in source
    assert "load_digits" not in source
    trained, read = ({picture.numpy().tobytes() for picture in part} for part in digits(0)[:2])
    assert not trained & read
    assert "(images[test])" not in source


def check_drawn(path, ships):
    """The photographs in the documentation's picture are what the example draws: each block of 6 × 6 pixels has the same grey.

    The numbers to the right and below come from rounding and differ between processors.
    """
    pictures = [Image.open(p) for p in (path, ships)]
    if len({picture.info["Software"] for picture in pictures}) > 1:
        pytest.skip(f"{ships.name} was drawn with {pictures[1].info['Software']}, which places things otherwise")
    fresh, shipped = (np.array(picture.convert("L").reduce(6), dtype=int) for picture in pictures)
    assert fresh.shape == shipped.shape
    height, width = fresh.shape
    differences = abs(fresh - shipped)[: int(0.8 * height), : int(0.59 * width)]
    assert differences.max() < 24, f"{ships.name} is not what the example draws (--write draws it)"


def check_trained(path):
    """The training writes the names and shapes of the file that ships.  (Its bits depend on the machine.)"""
    trained, ships = (torch.load(p, weights_only=False) for p in (path, ROOT / "construct/command/demo/digits_cnn.pt"))
    assert {k: t.shape for k, t in trained.state_dict().items()} == {k: t.shape for k, t in ships.state_dict().items()}


@pytest.mark.parametrize(
    "source", ["x = 1\nprint(x)", "def main():\n    pass\n\nif True:\n    main()", "f = 1\nf == 1"]
)
def test_a_script_without_an_assertion_is_seen(source):
    assert not asserts_at_its_end(source)
