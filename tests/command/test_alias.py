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
from conv_as_attention import main

SCRIPT = "import sys; from conv_as_attention import main; sys.exit(main())"
"""What pip writes into the script, but for its first line."""
NAMES = ("conv-as-attention", "python -m conv_as_attention")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    return tmp_path / "folder"


@pytest.fixture
def typed(folder, tmp_path):
    """A function that starts the command in the folder as one of NAMES does."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/conv-as-attention"
    script.write_text(SCRIPT)
    starts = dict(zip(NAMES, ([script], ["-m", "conv_as_attention"]), strict=True))

    def run(name, *words, **variables):
        return python(*starts[name], *words, cwd=folder, **variables)

    return run


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """A function that runs the command in this process, in the folder, and returns its exit code, stdout and stderr."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*words, name=NAMES[0]):
        monkeypatch.setattr(sys, "argv", ["", *words])
        monkeypatch.setattr(sys, "path", [*sys.path])
        capsys.readouterr()
        try:
            code = main(name)
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_it_converts_and_rechecks(run, folder):
    torch.save(nn.Conv1d(1, 2, 3), "m.pt")
    code, out, err = run("m.pt", "--report", "page.html")
    assert (code, err, "PROVED" in out) == (0, "", True)
    recheck = "verify check m.mhsa.json --conv m.pt --mhsa m.mhsa.pt"
    assert f"{NAMES[0]} {recheck}" in (folder / "page.html").read_text(encoding="utf-8")
    code, out, err = run(*recheck.split())
    assert (code, err, "PROVED" in out) == (0, "", True)


@pytest.mark.parametrize("name", NAMES)
def test_what_it_prints_names_what_was_typed(name, run):
    for words, usage in (
        ([], f"{name} [MODEL]"),
        (["verify"], f"{name} verify ["),
        (["verify", "coq"], f"{name} verify coq"),
    ):
        code, out, err = run(*words, "--help", name=name)
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: {usage}")
        examples = out.split("\n\n")[1].splitlines()
        assert len(examples) == 4
        assert all(line.startswith(f"  {name}") for line in examples[1:])
        assert "python -m construct" not in out
        assert "python -m verify" not in out
    for words in ([], ["verify"]):
        assert run(*words, "--version", name=name)[1] == f"{VERSION}\n"
        code, out, err = run(*words, "--wrong", name=name)
        assert (code, out, err.count("\n"), err[:7]) == (2, "", 1, "error: ")


class Mine(nn.Conv1d):
    """A class of the user's own."""


def test_remedies_name_what_was_typed(run, folder, monkeypatch):
    torch.save(Mine(1, 1, 1), "m.pt")
    code, _, err = run("m.pt")
    assert (code, f"{NAMES[0]} m.pt --allow test_alias)" in err) == (2, True)
    (folder / "c.json").write_text("{}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    code, _, err = run("verify", "check", "c.json", "--conv", "m.pt", "--mhsa", "m.pt", "--verified")
    assert (code, f"({NAMES[0]} verify coq build)" in err) == (2, True)


@pytest.mark.nasty(69)
@pytest.mark.parametrize("name", NAMES)
def test_ours_run_where_others_have_their_names(name, typed, folder):
    """Modules of the user's, which hide ours from ``python -m construct.from_conv``."""
    for hidden in ("construct", "verify"):
        (folder / f"{hidden}.py").write_text("raise SystemExit('theirs')")
    for words, usage in ((["--help"], f"{name} [MODEL]"), (["verify", "--help"], f"{name} verify [")):
        done = typed(name, *words, PYTHONPATH=f"{folder}:{ROOT}")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: {usage}")
    done = typed(name, "none.pt", PYTHONPATH=f"{folder}:{ROOT}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: none.pt: no such file")


@pytest.mark.parametrize("name", NAMES)
def test_the_user_s_own_code_comes_from_the_folder_first(name, typed, folder, tmp_path):
    """As with ``python -m construct.from_conv``; not from where our own files are.  Ours too have ``benchmarks``."""
    (folder / "m.pt").write_bytes(b"PK")
    for place, text in (("folder", "theirs"), ("elsewhere", "another")):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "benchmarks.py").write_text(f"NAME = '{text}'")
    (tmp_path / "elsewhere/torch.py").write_text("import benchmarks\nprint(benchmarks.NAME)\nraise ImportError")
    for safe, first in (("", "theirs\n"), ("1", "another\n")):
        done = typed(name, "m.pt", PYTHONPATH=f"{tmp_path / 'elsewhere'}:{ROOT}", PYTHONSAFEPATH=safe)
        assert (done.returncode, done.stdout) == (2, first), done.stderr


@pytest.mark.parametrize("verify", [False, True])
def test_ctrl_c_ends_it_in_one_line(verify, folder):
    """Also while torch is imported, which makes another error of it."""
    odd = "try: time.sleep(60)\nexcept BaseException: raise SystemError"
    (folder / "torch.py").write_text(f"import time, pathlib\npathlib.Path('running').touch()\n{odd}\n")
    torch.save({}, "m.pt")
    words = ["verify", "audit", "m.pt"] if verify else ["m.pt"]
    process = subprocess.Popen(
        [sys.executable, "-m", "conv_as_attention", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (folder / "running").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
