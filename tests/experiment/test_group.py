"""Training on two ``torchrun`` processes: results as with one, checkpoints for any number, and one-line errors."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from commands import ROOT
from examples.learned.data import BadInput
from examples.learned.running import checkpoints
from examples.learned.training import CHECKPOINT, METRICS, Run
from trainings import pictures, quiet, settings_of

VARIANTS = ("quadratic", "relative-content", "resnet18")
WORKER = """
import sys, torch
from pathlib import Path
from examples.learned.running import group
from test_group import VARIANTS, run_of, stopped
torch.set_default_dtype(torch.float64)
with group.joined("cpu"):
    assert group.size() == 2
    for variant in VARIANTS:
        for name in ("both", "one first"):
            run_of(variant, Path(sys.argv[1]) / name).train(lambda *_: None)
        stopped(variant, Path(sys.argv[1]) / "both first")
"""


class Stop(Exception):
    """Raised to stop a run after some steps."""


def run_of(variant: str, folder: Path) -> Run:
    """A run of two epochs of eight steps, the last with half a batch, with dropout, shifts and mirrored pictures."""
    settings = settings_of(variant, optimiser="sgd", augment=True, rate=0.02, validation=0)
    return Run(settings, pictures(), folder / variant, every=3)


def stopped(variant: str, folder: Path) -> None:
    """Run until after the fifth step, with a checkpoint at the third."""

    def stop(done: int, word: str) -> None:
        if done == 5:
            raise Stop

    with pytest.raises(Stop):
        run_of(variant, folder).train(stop)


def torchrun(*words: str) -> subprocess.Popen[str]:
    """Start two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    path = os.pathsep.join(map(str, (ROOT, Path(__file__).parent, ROOT / "tests/support")))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.deep
def test_two_processes_have_the_numbers_of_one_and_go_on_for_each_other(tmp_path: Path, float64: None):
    """In float64, because in float32 a few steps of batch normalisation over eight numbers amplify rounding errors."""
    for variant in VARIANTS:
        run_of(variant, tmp_path / "one").train(quiet)
        stopped(variant, tmp_path / "one first")
    (tmp_path / "worker.py").write_text(WORKER)
    process = torchrun(str(tmp_path / "worker.py"), str(tmp_path))
    log, _ = process.communicate(timeout=240)
    assert process.returncode == 0, log
    for variant in VARIANTS:
        run_of(variant, tmp_path / "both first").train(quiet)
        one = checkpoints.read(tmp_path / "one" / variant / CHECKPOINT)
        assert one is not None
        for name in ("both", "one first", "both first"):
            both = checkpoints.read(tmp_path / name / variant / CHECKPOINT)
            assert both is not None
            torch.testing.assert_close(both["network"], one["network"], rtol=0, atol=1e-8, msg=f"{variant}, {name}")
            assert both["random"]["torch"].equal(one["random"]["torch"])
            assert (tmp_path / name / variant / METRICS).read_text(encoding="utf-8").count("\n") == 2


def rank_of(pid: int) -> int:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(int(line.removeprefix(b"RANK=")) for line in variables if line.startswith(b"RANK="))


@pytest.mark.deep
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_all_in_one_line_and_leaves_a_checkpoint(killed: int, tmp_path: Path):
    words = "--variants quadratic --seeds 0 --layers 1 --heads 4 --width 8 --batch 500 --no-plots".split()
    words += ["--out", str(tmp_path), "--checkpoint-every", "1", "--epochs"]
    process = torchrun("-m", "examples.learned", *words, "5000")
    file, until = tmp_path / "quadratic/seed-0" / CHECKPOINT, time.monotonic() + 120
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.1)
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    workers = {rank_of(int(number)): int(number) for number in listed.split()}
    assert sorted(workers) == [0, 1]
    os.kill(workers[killed], signal.SIGKILL)
    log, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    errors = re.findall("^error: .*", log, re.MULTILINE)
    assert [line.partition(" (")[0] for line in errors] == ["error: a process of this run was killed or stopped"], log
    assert not any(Path(f"/proc/{number}").exists() for number in workers.values())
    state = checkpoints.read(file)
    assert state is not None
    assert state["epoch"] or state["position"]


def test_a_batch_with_fewer_pictures_than_processes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("examples.learned.running.group.size", lambda: 5)
    with pytest.raises(BadInput, match="5 processes cannot share a batch of 4 pictures"):
        run_of("quadratic", tmp_path)
