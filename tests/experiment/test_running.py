"""The commands of examples/learned and examples/taught: bad input, processes, and how they are stopped."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import ROOT, python
from examples.learned.command import main as learned
from examples.learned.data import BadInput
from examples.learned.running.processes import Tell, run_in_processes
from examples.taught.command import main as taught
from trainings import ends_in_one_line

BAD_INPUT = {
    "learned --epochs 0": (2, "--epochs is 0, not a positive number"),
    "learned --rate nan": (2, "--rate is nan, not a positive number"),
    "learned --validation -1": (2, "--validation is -1, not a whole number from 0 on"),
    "learned --seeds 0 -1": (2, "--seeds is -1, not a whole number from 0 on"),
    "learned --seeds 4294967296": (2, "--seeds is 4294967296, more than 4294967295"),
    "learned --threads 99999999999": (2, "--threads is 99999999999, more than 1024"),
    "learned --validation 1437": (2, "1437 pictures cannot be held back of 1437"),
    "learned --preset paper": (2, "--preset paper learns from CIFAR-10: give --data"),
    "learned --data nowhere": (2, "nowhere: No such file"),
    "learned --heads 8": (2, "8 heads are no kernel"),
    "learned --out taken --jobs 1": (2, "[Errno 20] Not a directory: 'taken/"),
    "learned --rate 1e30 --variants quadratic --jobs 1": (1, "quadratic, seed 0: the loss is nan at step"),
    "learned --rate 1e38 --epochs 1 --variants quadratic --jobs 1": (1, "quadratic, seed 0: a step is longer than"),
    "learned --rate 1e30 --variants quadratic --batch 5000 --jobs 1": (
        1,
        "quadratic, seed 0: outputs are no numbers",
    ),
    "teacher --alphas 1 inf": (2, "--alphas is inf, not a positive number"),
    "teacher --sharpen 1e38": (2, "--sharpen is 1e+38, more than 1048576"),
    "teacher --kernel 2": (2, "--kernel is 2, and Δ_K has a middle for odd K alone"),
    "teacher --kernel 7": (2, "--side is 7: a patch has to be larger than the kernel of 7"),
    "teacher --heads 5 --starts local": (2, "5 heads are no kernel"),
    "teacher --side 400 --data images": (2, "--side is 400, and a held-out part is"),
    "teacher --value-rate 1e30 --steps 9 --jobs 1": (1, "4 heads, paper start"),
    "teacher --rates 1e38 --steps 3 --seeds 0 --jobs 1": (1, "4 heads, paper start"),
    "cnn --train 1438": (2, "--train is 1438, and there are 1437 train pictures"),
    "cnn --out taken": (2, "--out taken: File exists"),
    "cnn --tasks apart": (2, "--tasks apart needs pictures of 3 × 24 × 24 or more, not 1 × 8 × 8"),
    "cnn --key-dim 3": (2, "--key-dim is 3, and positions have three numbers (try 4)"),
    "cnn --rates 1e38 --train 9 --seeds 0 --pretrained 1 --jobs 1": (1, "seed 0, same, cnn, rate 1e+38: a step"),
}


def called(line: str) -> int:
    """The exit code of a command."""
    name, *words = line.split()
    return learned(words) if name == "learned" else taught([name, *words])


@pytest.mark.parametrize("line", BAD_INPUT)
def test_bad_input_is_one_line(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    code, reason = BAD_INPUT[line]
    ends_in_one_line(lambda: called(line), code, f"error: {reason}", capsys)
    assert code == 1 or [path.name for path in tmp_path.iterdir()] == ["taken"]  # refused before anything starts


@pytest.mark.parametrize(
    ("line", "work", "said"),
    [
        ("learned", "examples.learned.training.Run.train", "the same command goes on from the last checkpoint"),
        ("teacher", "examples.taught.teacher.taught", "stopped; the same command does what is left"),
    ],
)
def test_a_stopped_command_says_how_to_go_on(
    line: str, work: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(work, stop)
    assert called(f"{line} --jobs 1 --out {tmp_path}") == 130
    assert said in capsys.readouterr().err


def squares() -> Callable[[int, Tell], None]:
    """The work of a process in the tests below."""

    def square(number: int, tell: Tell) -> None:
        if number == 13:
            raise BadInput("thirteen")
        if number == 14:
            os._exit(1)
        if number == 15:
            raise EOFError("fifteen")
        tell(number, number**2, "squared")

    return square


def test_every_thing_is_done_once_and_told():
    reports: list[tuple[int, int, int]] = []

    def tell(thing: int, done: int, steps: int, word: str, ended: bool) -> None:
        if ended:
            reports.append((thing, done, steps))

    run_in_processes(range(5), squares, 2, tell)
    assert sorted(reports) == [(n, n, n**2) for n in range(5)]


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [(13, BadInput, "thirteen"), (14, BadInput, "^14: its process was killed"), (15, EOFError, "fifteen")],
)
def test_what_stops_one_of_them_stops_all(number: int, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        run_in_processes([1, number, *range(2, 9)], squares, 2, lambda *_: None)
    assert not multiprocessing.active_children()


@pytest.mark.deep
def test_an_interrupted_command_ends_all_its_processes(tmp_path: Path):
    words = "--variants quadratic --epochs 1000 --checkpoint-every 1".split()
    command = [sys.executable, "-W", "error", "-m", "examples.learned", *words, "--jobs", "2", "--out", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    until = time.monotonic() + 120
    try:
        while len([*tmp_path.glob("*/*/checkpoint.pt")]) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # like a terminal: to the command and its processes
        _, printed = process.communicate(timeout=240)  # enough for a busy machine
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130, printed
    assert b"the same command goes on from the last checkpoint" in printed
    assert b"Traceback" not in printed
    written = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/*/checkpoint.pt"))]
    time.sleep(2)  # long enough for many checkpoints
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/*/checkpoint.pt"))] == written


@pytest.mark.parametrize(
    ("folder", "words", "option"),
    [("learned", [], "--checkpoint-every"), ("taught", ["teacher"], "--heads"), ("taught", ["cnn"], "--validate")],
)
def test_an_experiment_runs_as_a_module_and_as_a_folder(
    folder: str, words: list[str], option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    done = python("-m", f"examples.{folder}", *words, "--help")
    assert done.returncode == 0, done.stderr
    assert option in done.stdout
    monkeypatch.setattr(sys, "argv", [folder, *words, "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples" / folder), run_name="__main__")
    assert ended.value.code == 0
    assert option in capsys.readouterr().out
