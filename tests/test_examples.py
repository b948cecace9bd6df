"""Every example runs, with warnings as errors, and ends in an assertion."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
REQUIRED = {"by_hand", "conv3d", "network", "alpha_too_small", "lemma2_symbolic", "train_digits_cnn"}
ARGUMENTS = {"train_digits_cnn": ["trained.pt"]}  # written into the test's own folder, not over the one that ships


def name(path):
    return path.stem


def run(path, folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(path), *ARGUMENTS.get(path.stem, [])]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)


def asserts_at_its_end(source):
    """Whether the script's last statement is an assertion, or else the body of the function that it calls has one."""
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


def test_the_examples_are_there():
    assert {path.stem for path in EXAMPLES} >= REQUIRED


@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_an_example_runs_and_ends_in_an_assertion(path, tmp_path):
    source = path.read_text(encoding="utf-8")
    assert asserts_at_its_end(source)
    assert len(source.splitlines()) <= (60 if path.stem != "train_digits_cnn" else 100)
    done = run(path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert [written.name for written in tmp_path.iterdir()] == ARGUMENTS.get(path.stem, [])
    if path.stem == "train_digits_cnn":
        check_trained(tmp_path / "trained.pt")


def check_trained(path):
    """What the training writes is what ships: the same names and shapes.  (Its bits depend on the machine.)"""
    trained, ships = (torch.load(p, weights_only=False) for p in (path, ROOT / "construct/demo/digits_cnn.pt"))
    assert {k: t.shape for k, t in trained.state_dict().items()} == {k: t.shape for k, t in ships.state_dict().items()}


@pytest.mark.parametrize(
    "source", ["x = 1\nprint(x)", "def main():\n    pass\n\nif True:\n    main()", "f = 1\nf == 1"]
)
def test_a_script_without_an_assertion_is_seen(source):
    assert not asserts_at_its_end(source)


def test_a_failing_example_is_seen(tmp_path):
    source = (ROOT / "examples/conv3d.py").read_text(encoding="utf-8")
    broken = source.replace("seen = verify.compare(", "layer.b_out.data += 1e-3\nseen = verify.compare(")
    assert broken != source
    script = tmp_path / "broken.py"
    script.write_text(broken, encoding="utf-8")
    done = run(script, tmp_path)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr
