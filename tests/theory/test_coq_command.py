"""``python -m verify coq build`` and ``check --verified``: missing tools, interruptions, and output."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
from commands import ROOT, Command, python
from rechecked import Files
from verified import built
from verify.argument.certification import certify
from verify.coq import building
from verify.experiment.sweep.faults import with_heads
from verify.recheck.certificate_file import record_digest

AXIOMS = (building.SOURCES / "axioms.txt").read_text().split()
STATED = "\n".join(["Axioms:", *(f"{name} : forall P : Prop, P" for name in AXIOMS)])
TOOLS = {  # what the build asks of each, without Coq
    "coqc": f"""case "$1" in
        --print-version) echo 8.16.1 4.13.1;; -where) echo "$TOOLS";; *) printf '%s' '{STATED}'; echo "$EXTRA";; esac""",
    "coq_makefile": "touch Makefile",
    "make": """echo COQC theory/Sums.v; echo $$ >"$TOOLS/make.pid"; [ -z "$SLOW" ] || sleep 60""",
    "ocamlfind": """[ "$1" = list ] && echo zarith || { echo '#!/bin/sh' >checker; chmod +x checker; }""",
}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with stand-ins for Coq and OCaml, which with the shell's tools is all of the path."""
    folder = tmp_path / "tools"
    for library in ("Coquelicot", "Flocq"):
        (folder / "user-contrib" / library).mkdir(parents=True)
    for name, script in TOOLS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    for name in ("sh", "sleep", "touch", "chmod", "env"):
        (folder / name).symlink_to(Path("/bin") / name if (Path("/bin") / name).exists() else Path("/usr/bin") / name)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("TOOLS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_a_build_shows_progress_and_is_made_once(tools: Path, verify_command: Command):
    code, out, err = verify_command("coq", "build")
    assert code == 0, err
    assert "1 of " in err
    assert out == f"the verified checker is {building.build_folder() / 'checker'}\n"
    assert building.program().stat().st_mode & stat.S_IXUSR
    for tool in TOOLS:
        (tools / tool).unlink()
    assert verify_command.prints("coq", "build") == out


@pytest.mark.parametrize("gone", ["coqc", "make", "ocamlfind", "user-contrib/Flocq"])
def test_what_is_missing_is_said_in_one_line(gone: str, tools: Path, verify_command: Command):
    path = tools / gone
    path.rmdir() if path.is_dir() else path.unlink()
    line = verify_command.refuses("coq", "build")
    assert f"missing: {path.name} (on Debian: apt-get install coq" in line


def test_another_version_is_refused(tools: Path, verify_command: Command):
    (tools / "coqc").write_text("#!/bin/sh\necho 8.20.0 4.14.1\n")
    line = verify_command.refuses("coq", "build")
    assert line == "error: Coq 8.20.0 is installed, and the proofs are written for 8.16"


@pytest.mark.parametrize(
    "axiom",
    [
        "Attention.Sums.easy : False",
        "Uint63.add : int",
        "easy' : False",
        "ε : False",
        "loop is assumed to be guarded.",
        "Universe relies on an unsafe hierarchy.",
    ],
)
def test_one_axiom_more_is_refused(axiom: str, tools: Path, monkeypatch: pytest.MonkeyPatch, verify_command: Command):
    monkeypatch.setenv("EXTRA", f"\n{axiom}")
    code, _, err = verify_command("coq", "build")
    assert code == 2
    assert f"other axioms than axioms.txt lists: {axiom.split()[0]}" in err
    with pytest.raises(building.NotBuilt):
        building.program()


def test_a_step_that_fails_is_named_and_leaves_nothing(tools: Path, verify_command: Command):
    (tools / "make").write_text("#!/bin/sh\necho COQC theory/Sums.v\necho 'File x: Error: no.' >&2\nexit 2\n")
    code, _, err = verify_command("coq", "build")
    assert (code, err.count("error: ")) == (2, 1)
    assert "make failed: " in err
    assert "Error: no." in err
    assert not list(building.build_folder().parent.iterdir())


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_build_leaves_no_program_and_the_next_is_whole(by: Any, tools: Path, verify_command: Command):
    command = [sys.executable, "-m", "verify", "coq", "build"]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"SLOW": "1"}, stderr=subprocess.DEVNULL)
    while not (tools / "make.pid").exists() or not (tools / "make.pid").read_text().strip():
        time.sleep(0.01)
    process.send_signal(by)
    assert process.wait(10) == (-signal.SIGKILL if by == signal.SIGKILL else 130)
    with pytest.raises(building.NotBuilt):
        building.program()
    pid = int((tools / "make.pid").read_text())
    if by != signal.SIGKILL:
        assert not list(building.build_folder().parent.iterdir())
        assert not running(pid)
    elif running(pid):
        os.killpg(pid, signal.SIGKILL)  # the child continues when its parent is killed
    for left in building.build_folder().parent.iterdir():
        os.utime(left, (0, 0))
    assert verify_command("coq", "build")[0] == 0
    assert [path.name for path in building.build_folder().parent.iterdir()] == [building.build_folder().name]


def running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_two_builds_at_once_are_both_whole(tools: Path):
    command = [sys.executable, "-m", "verify", "coq", "build"]
    builds = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    assert [process.wait(60) for process in builds] == [0, 0, 0]
    assert [path.name for path in building.build_folder().parent.iterdir()] == [building.build_folder().name]
    for process in builds:
        process.communicate()


class Certified(Files):
    """A layer's certificate and its two weight files."""

    def __init__(self, folder: Path, conv: Any, layer: Any, **claimed: Any):
        super().__init__(folder)
        self.write([("", certify(conv, layer, grid=(7,), **claimed))], conv, layer)

        self.words = ("check", self.certificate, "--conv", self.conv, "--mhsa", self.mhsa)


@pytest.fixture
def conv() -> Any:
    return nn.Conv1d(2, 3, 3, padding=1).requires_grad_(False)


def test_both_prove_a_layer(conv: Any, tmp_path: Path):
    """In its own process, which has imported nothing before."""
    built()
    words = Certified(tmp_path, conv, construct.conv_to_mhsa(conv)).words
    done = python("-m", "verify", *words, "--verified", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, head, answer = done.stdout.splitlines()
    assert first.startswith("PROVED: 1 of 1 layers")
    assert head == "verified checker (theorem check_text_sound, if no float overflows): 1 of 1 layers accepted"
    assert answer.startswith(
        "the layer: ACCEPTED: the same function in the limit α → ∞; every head one-hot in float32; in float32 a"
    )


def test_a_parabola_is_judged_up_to_the_certified_size(conv: Any, tmp_path: Path, verify_command: Command):
    built()
    words = Certified(tmp_path, conv, construct.conv_to_mhsa(conv, encoding="parabola")).words
    answer = verify_command.prints(*words, "--verified").splitlines()[-1]
    assert answer.startswith(
        "the layer: ACCEPTED: the same function in the limit α → ∞ on inputs up to (7,); every head one-hot in float32 on in"
    )
    assert "for |x| ≤ 1 on inputs up to (7,), with W_val W_out first, as by default" in answer


def test_a_difference_within_a_bound_is_one_of_floats(conv: Any, tmp_path: Path, verify_command: Command):
    built()
    words = Certified(tmp_path, conv, construct.conv_to_mhsa(conv, alpha=5.0), within=1.0).words
    shown = "in float32 a difference of at most 1 for |x| ≤ 1 on inputs up to (7,), as run by default, if "
    assert f"the layer: ACCEPTED: {shown}" in verify_command.prints(*words, "--verified")


def test_what_one_does_not_prove_is_no_success(conv: Any, tmp_path: Path, verify_command: Command):
    built()
    dilated = nn.Conv1d(2, 3, 3, padding=2, dilation=2).requires_grad_(False)
    layer = with_heads(construct.conv_to_mhsa(dilated), [0, 1, 2, 0, 0]).requires_grad_(False)
    layer.v[3:] = torch.tensor([-1024.0, 2048.0])  # between two taps, where these two cancel
    layer.w_val[4] *= -1
    out = verify_command.prints(*Certified(tmp_path, dilated, layer).words, "--verified", code=1)
    assert out.startswith("PROVED")
    assert "not accepted: not shown: the same function in the limit α → ∞; every head one-hot in float32; in " in out
    layer = construct.conv_to_mhsa(conv)
    layer.w_out[0, 0, 0, 0] += 1
    out = verify_command.prints(*Certified(tmp_path, conv, layer).words, "--verified", code=1)
    assert out.startswith("REFUTED")
    assert "0 of 1 layers accepted\nthe layer: REFUTED: not the same function in the limit α → ∞: output (" in out


def test_a_false_certificate_is_an_error_and_the_verified_checker_says_what_it_finds(
    conv: Any, tmp_path: Path, verify_command: Command
):
    """The line and exit code are the same with and without ``--verified``, for false and for damaged certificates."""
    built()
    files = Certified(tmp_path, conv, construct.conv_to_mhsa(conv))
    document = json.loads(files.certificate.read_text())
    for bounds in ([(2.0**-60).hex()] * 3, ["small"] * 3):
        document["layers"][0]["bound"] = bounds
        document["record_sha256"] = record_digest(document)
        files.certificate.write_text(json.dumps(document))
        line = verify_command.refuses(*files.words)
        code, out, err = verify_command(*files.words, "--verified")
        assert (code, err) == (2, f"{line}\n")
        assert ("not accepted: not shown: in float32 a difference" in out) == (bounds[0] != "small")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo accepted 1 2", "the program gave no answer (exit code 0): accepted 1 2"),
        ("echo rejected true false true; exit 1", "not shown: every head one-hot in float32"),
        ("echo rejected false; exit 1", "the program gave no answer (exit code 1)"),
        ("echo unreadable; exit 2", "the program gave no answer (exit code 2): unreadable"),
        ("kill -SEGV $$", "the program gave no answer (exit code -11)"),
    ],
)
def test_no_other_answer_counts(
    script: str, said: str, conv: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify_command: Command
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    building.build_folder().mkdir(parents=True)
    (building.build_folder() / "checker").write_text(f"#!/bin/sh\n{script}\n")
    (building.build_folder() / "checker").chmod(0o755)
    words = Certified(tmp_path, conv, construct.conv_to_mhsa(conv)).words
    assert f"not accepted: {said}" in verify_command.prints(*words, "--verified", code=1)


def test_without_the_program_one_line_says_how_to_build_it(
    conv: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify_command: Command
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    line = verify_command.refuses(*Certified(tmp_path, conv, construct.conv_to_mhsa(conv)).words, "--verified")
    assert line == "error: the verified checker is not built (python -m verify coq build)"
