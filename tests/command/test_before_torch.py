"""What needs no torch comes before torch, which takes seconds to import."""

import json
from pathlib import Path

import pytest
import torch

from commands import ROOT, python
from construct.execution import NAMES
from construct.execution.call import EXECUTIONS

WITHOUT_TORCH = {
    "help": ("--help", 0, "usage: python -m construct.from_conv"),
    "a wrong flag": ("model.pt --wrong", 2, "unrecognized arguments: --wrong"),
    "a wrong number": ("model.pt --samples 0", 2, "0 is not positive"),
    "a wrong choice": ("model.pt --execution magic", 2, "invalid choice: 'magic'"),
    "no file": ("none.pt", 2, "none.pt: no such file"),
    "a folder": ("folder", 2, "folder: is a directory"),
    "no example": ("model.pt --example-inputs none.pt", 2, "none.pt: no such file"),
    "no code": ("model.pt --model-file none.py:Net", 2, "none.py: no such file"),
    "no name of a network": ("model.pt --model-file net.py", 2, "net.py: names no network"),
    "no folder": ("model.pt -o none/o.pt", 2, "there is no folder none"),
    "in the way": ("model.pt -o foreign.pt", 2, "foreign.pt: exists and is not our own output"),
    "a page in the way": ("model.pt --report foreign.pt", 2, "foreign.pt: exists and is not our own output"),
    "the input": ("model.pt -o model.pt", 2, "model.pt: is an input itself"),
    "nowhere to write": ("model.pt -o /proc/o.pt", 2, "/proc/o.pt: cannot be written"),
    "a loop": ("model.pt -o loop.pt", 2, "loop.pt: cannot be written"),
    "a file as a folder": ("model.pt -o foreign.pt/o.pt", 2, "there is no folder foreign.pt"),
    "a name too long": (f"model.pt -o {'x' * 300}.pt", 2, "xxx.pt: cannot be written"),
}


IN_TURN = """
import contextlib, io, json, sys
from construct.from_conv import main
for words in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(words.split())
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """How each of them ends: exit code, stdout and stderr, all in one process."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "elsewhere/torch").mkdir(parents=True)
    (folder / "elsewhere/torch/__init__.py").write_text("raise SystemError('torch is imported')")
    (folder / "folder").mkdir()
    for name in ("model.pt", "foreign.pt"):
        (folder / name).write_bytes(b"PK")
    (folder / "loop.pt").symlink_to("loop.pt")
    before = sorted(folder.iterdir())
    lines = [words for words, _, _ in WITHOUT_TORCH.values()]
    done = python("-c", IN_TURN, *lines, cwd=folder, PYTHONPATH=f"{folder / 'elsewhere'}:{ROOT}")
    assert (done.stderr, sorted(folder.iterdir())) == ("", before)  # asking creates nothing
    return dict(zip(WITHOUT_TORCH, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_it_is_said_without_torch(name: str, ended: dict[str, tuple[int, str, str]]) -> None:
    _, code, text = WITHOUT_TORCH[name]
    exit_code, out, err = ended[name]
    assert (exit_code, text in out + err) == (code, True), err
    assert err.count("\n") == (code == 2)


def test_an_old_torch_is_one_line(tmp_path: Path) -> None:
    Path(tmp_path, "torch.py").write_text("__version__ = '1.13'")
    Path(tmp_path, "model.pt").write_bytes(b"PK")
    done = python("-m", "construct.from_conv", "model.pt", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "construct needs torch 2.10 or newer, and this is 1.13 (pip install 'torch>=2.10')" in done.stderr


def test_the_executions_are_those_of_the_layer() -> None:
    assert NAMES == tuple(EXECUTIONS)


def test_the_network_s_own_code_has_the_whole_package(tmp_path: Path) -> None:
    """Its public names and modules, though the command has imported only what it needed before torch."""
    code = "import construct\nhomes = construct.attention, construct.stock.layer\ndef net():\n    return construct.MHSA()\n"
    Path(tmp_path, "net.py").write_text(code)
    torch.save({"weight": torch.ones(1, 1, 1, 1)}, tmp_path / "model.pt")
    done = python("-m", "construct.from_conv", "model.pt", "--model-file", "net.py:net", cwd=tmp_path)
    assert "net.py:net: TypeError: MHSA.__init__() missing 2 required" in done.stderr
