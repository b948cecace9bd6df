"""``conv-as-attention`` and ``python -m conv_as_attention``: both commands in one, under the name that was typed."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from commands import ROOT, python
from construct.command.startup import VERSION

SCRIPT = "import sys; from conv_as_attention import main; sys.exit(main())"
"""What pip writes into the script, but for its first line."""


BOTH = pytest.mark.parametrize("alias", ["conv-as-attention", "python -m conv_as_attention"], indirect=True)


@pytest.fixture
def alias(request, tmp_path):
    """A function that runs the command in a folder of its own, the name under which it was called, and the folder."""
    how = ["-m", "conv_as_attention"]
    name = getattr(request, "param", "conv-as-attention")
    if name == "conv-as-attention":
        (tmp_path / "bin").mkdir()
        how = [tmp_path / "bin/conv-as-attention"]
        how[0].write_text(SCRIPT)
    folder = tmp_path / "folder"
    folder.mkdir()

    def run(*words, **variables):
        return python(*how, *words, cwd=folder, **variables)

    return run, name, folder


def test_it_converts_and_rechecks(alias):
    run, name, folder = alias
    torch.save(nn.Conv1d(1, 2, 3), folder / "m.pt")
    done = run("m.pt", "--report", "page.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert "PROVED" in done.stdout
    page = (folder / "page.html").read_text(encoding="utf-8")
    recheck = "verify check m.mhsa.json --conv m.pt --mhsa m.mhsa.pt"
    assert f"{name} {recheck}" in page
    done = run(*recheck.split())
    assert (done.returncode, done.stderr, "PROVED" in done.stdout) == (0, "", True)


@BOTH
def test_what_it_prints_names_what_was_typed(alias):
    run, name, _ = alias
    for words, usage in (
        ([], f"{name} [MODEL]"),
        (["verify"], f"{name} verify ["),
        (["verify", "coq"], f"{name} verify coq"),
    ):
        done = run(*words, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: {usage}")
        examples = done.stdout.split("\n\n")[1].splitlines()
        assert len(examples) == 4
        assert all(line.startswith(f"  {name}") for line in examples[1:])
        assert "python -m construct" not in done.stdout
        assert "python -m verify" not in done.stdout
    for words in ([], ["verify"]):
        assert run(*words, "--version").stdout == f"{VERSION}\n"
        done = run(*words, "--wrong")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("error: ")


class Mine(nn.Conv1d):
    """A class of the user's own."""


def test_remedies_name_what_was_typed(alias):
    run, name, folder = alias
    torch.save(Mine(1, 1, 1), folder / "m.pt")
    done = run("m.pt")
    assert done.returncode == 2
    assert f"{name} m.pt --allow test_alias)" in done.stderr
    (folder / "c.json").write_text("{}")
    done = run(
        "verify", "check", "c.json", "--conv", "m.pt", "--mhsa", "m.pt", "--verified", XDG_CACHE_HOME=str(folder)
    )
    assert done.returncode == 2
    assert f"({name} verify coq build)" in done.stderr


@pytest.mark.nasty(69)
@BOTH
@pytest.mark.parametrize("hidden", ["construct", "verify"])
def test_ours_run_where_others_have_their_names(alias, hidden):
    """A module of the user's, which hides ours from ``python -m construct.from_conv``."""
    run, _, folder = alias
    (folder / f"{hidden}.py").write_text("raise SystemExit('theirs')")
    for words in (["--help"], ["verify", "--help"], ["none.pt"]):
        done = run(*words, PYTHONPATH=f"{folder}:{ROOT}")
        assert "theirs" not in done.stderr
        assert done.returncode == 2 * (words == ["none.pt"])


@BOTH
def test_the_user_s_own_code_comes_from_the_folder_first(alias):
    """As with ``python -m construct.from_conv``; not from where our own files are."""
    run, _, folder = alias
    (folder / "tests.py").write_text("def net():\n    raise ValueError('theirs')\n")
    torch.save({"weight": torch.ones(1, 1, 1)}, folder / "m.pt")
    assert "theirs" in run("m.pt", "--arch", "tests:net").stderr
    done = run("m.pt", "--arch", "tests:net", PYTHONSAFEPATH="1")
    assert (done.returncode, "theirs" in done.stderr) == (2, False)


@pytest.mark.parametrize("verify", [False, True])
def test_ctrl_c_ends_it_in_one_line(verify, tmp_path):
    """Also while torch is imported, which makes another error of it."""
    odd = "try: time.sleep(60)\nexcept BaseException: raise SystemError"
    (tmp_path / "torch.py").write_text(f"import time, pathlib\npathlib.Path('running').touch()\n{odd}\n")
    torch.save({}, tmp_path / "m.pt")
    words = ["verify", "audit", "m.pt"] if verify else ["m.pt"]
    process = subprocess.Popen(
        [sys.executable, "-m", "conv_as_attention", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "running").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
