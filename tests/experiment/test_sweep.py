"""``python -m verify sweep``: its files, its tasks, and a real cluster whose workers die, hang and lose their scheduler."""

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import construct
from commands import Command, python
from construct.command.arguments import parse
from verify.__main__ import main
from verify.experiment.sweep import cluster, sweeping
from verify.experiment.sweep.models import Network
from verify.experiment.sweep.results import COLUMNS, Results, Row, key_of
from verify.experiment.sweep.summary import drawn


def rows(path: Path, where: str = "1") -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(path)) as file:
        lines = file.execute(f"SELECT {', '.join(COLUMNS)} FROM certificates WHERE {where}").fetchall()
    return [dict(zip(COLUMNS, line, strict=True)) for line in lines]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Command:
    """The command in an empty folder from which it may import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Command(lambda words: main(["sweep", *words]), capsys)


OUTPUT = ("--output", "r.db")


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A file with a network of three convolutions, one of which runs at half the size."""
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.Flatten(2), nn.Conv1d(4, 2, 2)
    torch.save(nn.Sequential(*layers), tmp_path / "net.pt")
    return tmp_path / "net.pt"


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tasks in this process, one after the other."""

    @contextlib.contextmanager
    def no_cluster(*_: Any) -> Iterator[None]:
        yield None

    def run(client: Any, tasks: Any, seconds: float, receive: Any) -> None:
        waiting = list(tasks)
        while waiting:
            task = waiting.pop(0)
            (results,), name, _ = cluster.execute([task], seconds)
            waiting += receive(task, results, name)

    monkeypatch.setattr(sweeping, "cluster", no_cluster)
    monkeypatch.setattr(sweeping, "addresses_of", lambda client: {"here"})
    monkeypatch.setattr(sweeping, "run_tasks", run)


def test_what_is_written_once_is_read_back(tmp_path: Path):
    results = Results(tmp_path / "r.sqlite")
    results.add([Row("a", "m", "l", verdict="PROVED", bound=1.5), Row("b", "m", "k")])
    results.add([Row("a", "m", "l", verdict="REFUTED")])
    results.close()
    again = Results(tmp_path / "r.sqlite", new=False)
    assert again.keys() == {"a", "b"}
    assert again.select("SELECT verdict, bound FROM certificates WHERE key = 'a'") == [("PROVED", 1.5)]
    again.close()


def test_a_file_of_something_else_is_left_alone(sweep: Command):
    Path("notes.txt").write_text("notes" * 1000)
    with contextlib.closing(sqlite3.connect("other.db")) as file:
        file.execute("CREATE TABLE t (a)")
    for name in ("notes.txt", "other.db"):
        sweep.refuses("--random", "1", "--output", name)
        sweep.refuses("--report", name)
    sweep.refuses("--report", "none.db")
    Path("empty.db").touch()
    sweep.refuses("--report", "empty.db")


def test_a_damaged_file_is_told_in_a_line(sweep: Command):
    """The first page is whole, so it is opened like any other."""
    results = Results(Path("r.db"))
    results.add(Row(key_of("random", seed, ""), "random", f"seed {seed}") for seed in range(500))
    results.close()
    content = bytearray(Path("r.db").read_bytes())
    content[4096:] = bytes(255 for _ in content[4096:])
    Path("r.db").write_bytes(content)
    assert "r.db: cannot be used (" in sweep.refuses("--report", "r.db")
    assert "r.db: cannot be used (" in sweep.refuses("--random", "1", "--output", "r.db")


EDITS = {
    "kind": ("UPDATE certificates SET kind = 5", "certificate"),
    "geometry": ("UPDATE certificates SET geometry = x'ff00'", "certificate"),
    "no error": ("UPDATE certificates SET error = NULL", "certificate"),
    "verdict": ("UPDATE certificates SET verdict = 'SURE'", "certificate"),
    "failed": ("UPDATE certificates SET verdict = 'failed'", "certificate"),
    "seconds": ("UPDATE certificates SET seconds = 'long'", "certificate"),
    "bound": ("UPDATE certificates SET bound = x'00'", "certificate"),
    "no time": ("UPDATE runs SET seconds = NULL", "run"),
    "time": ("UPDATE runs SET seconds = 'long'", "run"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_row_that_no_sweep_writes_is_told_in_a_line(edit: str, sweep: Command):
    query, what = EDITS[edit]
    results = Results(Path("r.db"))
    kinds = ("Conv1d", "Conv2d")
    results.add(Row(kind, "m", "l", kind=kind, verdict="PROVED", seconds=1.0) for kind in kinds)
    results.add_run("2026", "command", "versions", 1, 1.5, 2)
    results.close()
    with contextlib.closing(sqlite3.connect("r.db")) as file, file:
        file.execute(f"{query} WHERE rowid = 1" if what == "run" else f"{query} WHERE key = 'Conv1d'")
    for words in (("--report", "r.db"), ("--random", "1", *OUTPUT)):
        assert f"r.db: a {what} in it is none that a sweep writes (" in sweep.refuses(*words)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("layer", "key"), [("seed 0", key_of("random", 0, "")), ("seed x", "a")])
def test_a_false_verdict_is_an_exit_code_if_the_sweep_asks_for_the_layer(layer: str, key: str, sweep: Command):
    results = Results(Path("r.db"))
    results.add([Row(key, "random", layer, kind="Conv1d", verdict="PROVED", error="a false PROVED: x")])
    results.close()
    code, out, _ = sweep("--random", 1, *OUTPUT)
    assert (code, "random: seed 0: a false PROVED: x" in out) == ((1, True) if layer == "seed 0" else (0, False))
    assert out.splitlines()[0].startswith("1 layers: 1 PROVED")


WRONG = {
    "--random 5": "give --output",
    "--output r.db": "give networks, or --random",
    "a.pt --random 5 --output r.db": "give networks, or --random",
    "--random 0 --output r.db": "from 1",
    "--random 1 --workers 0 --output r.db": "--workers takes",
    "--random 1 --workers 2 --scheduler tcp://127.0.0.1:1 --output r.db": "--scheduler",
    "--random 1 --timeout 0 --output r.db": "--timeout takes",
    "--random 1 --input-size 3 8 --output r.db": "--input-size goes",
    "--random 1 --output r.db --report r.db": "--report runs no sweep",
    "net.pt --report r.db": "--report runs no sweep",
    "--random 1 --output r.db --figure r.svg": "--figure goes with --report",
    "none/*.pt --output r.db": "no such file",
    "pipe.txt --output r.db": "pipe.txt: is not a regular file",
    "net.pt --output pipe.txt": "pipe.txt: is there, and is not a file",
    "--report none.db": "none.db: no such file",
    "net.pt --input-size 3 x --output r.db": "not a whole number",
    "none.txt --output r.db": "none.txt: names no network",
    "lines.txt --output r.db": "lines.txt: net.pt --alfa 3: unrecognized arguments: --alfa 3",
    "quoted.txt --output r.db": "quoted.txt: 'net.pt: No closing quotation",
    "bytes.txt --output r.db": "bytes.txt: \ufffd: no such file",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_arguments_get_one_line(words: str, sweep: Command):
    Path("net.pt").touch()
    Path("lines.txt").write_text("net.pt --alfa 3\n")
    Path("quoted.txt").write_text("'net.pt")
    Path("bytes.txt").write_bytes(b"\xff")
    Path("none.txt").write_text("# net.pt\n\n")
    os.mkfifo("pipe.txt")
    assert WRONG[words] in sweep.refuses(*words.split())


def test_without_dask_one_line_says_what_to_install(tmp_path: Path):
    code = "import sys; sys.modules['distributed'] = None; from verify.__main__ import main; "
    code += "sys.exit(main(['sweep', '--random', '1', '--output', 'r.db']))"
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: a sweep runs on Dask (pip install")


def test_the_command_of_random_layers_does_not_load_torch(tmp_path: Path):
    code = f"""
import sys
from verify.__main__ import main
from verify.experiment.sweep.sweeping import Sweep
Sweep.run = lambda *given: (str("torch" in sys.modules), 0)
main(["sweep", "--random", "3", "--output", {str(tmp_path / "r.sqlite")!r}])
"""
    assert python("-c", code).stdout.strip() == "False"


def network_of(*words: str) -> Network:
    return Network(words, parse(words))


def test_a_network_is_a_task_for_each_layer(network: Path):
    tasks: list[Any] = list(network_of(str(network), "--input-size", "3", "9", "8").run())
    first, second, third = tasks
    assert [task.path for task in (first, second, third)] == ["0", "2", "4"]
    assert [task.grid for task in (first, second, third)] == [(9, 8), (9, 8), (12,)]
    (row,) = second.run()
    assert (row.verdict, row.kind, row.key) == ("PROVED", "Conv2d", second.key)
    assert "stride=(2, 2)" in row.geometry
    assert 0 <= row.observed <= row.bound


@pytest.mark.usefixtures("in_this_process")
def test_networks_come_from_files_globs_lines_and_factories(network: Path, sweep: Command):
    Path("copy.pt").write_bytes(network.read_bytes())
    Path("made.py").write_text("from torch import nn\ndef net(): return nn.Sequential(nn.Conv1d(2, 3, 3, padding=1))\n")
    Path("more.txt").write_text("# our own\nnet.pt --input-size 3 7 7 --alpha 30\n\n")
    words = ["*.pt", "more.txt", "--arch", "made:net", *OUTPUT]
    assert "10 layers: 10 PROVED" in sweep(*words)[1]
    written = rows(Path("r.db"))
    assert sorted({row["model"] for row in written}) == ["copy.pt", "made:net", "net.pt"]
    assert {row["alpha"] for row in written} == {1024.0, 30.0}
    assert {row["claim"] for row in written if row["alpha"] == 30} == {"within"}
    assert all(row["worker"] and row["seconds"] > 0 and not row["error"] for row in written)
    assert "10 layers: 10 PROVED" in sweep(*words)[1]  # nothing is left, and the results are reported again
    assert rows(Path("r.db")) == written


@pytest.mark.usefixtures("in_this_process")
def test_a_network_that_cannot_be_read_costs_a_row(network: Path, sweep: Command):
    Path("bad.pt").write_bytes(network.read_bytes()[:700])
    os.mkfifo("pipe.pt")
    code, out, _ = sweep("bad.pt", "pipe.pt", network, *OUTPUT)
    assert code == 1
    assert "5 layers: 3 PROVED, 2 failed" in out
    assert "\nbad.pt: " in out
    assert "\npipe.pt: is not a regular file (" in out
    Path("bad.pt").write_bytes(network.read_bytes())  # the same command after the file is repaired
    code, out, _ = sweep("bad.pt", network, *OUTPUT)
    assert (code, "6 layers: 6 PROVED" in out) == (0, True)


@pytest.mark.usefixtures("in_this_process")
def test_other_weights_are_other_rows(network: Path, sweep: Command):
    assert sweep(network, *OUTPUT)[0] == 0
    model: Any = torch.load(network, weights_only=False)
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] += 1
    torch.save(model, network)
    assert sweep(network, *OUTPUT)[0] == 0
    assert len(rows(Path("r.db"))) == 4


@pytest.mark.usefixtures("in_this_process")
def test_a_layer_that_is_not_converted_is_said(sweep: Command):
    torch.save(nn.ModuleList([nn.Conv1d(1, 1, 3), nn.Conv1d(1, 1, 3, dtype=torch.complex64)]), "two.pt")
    code, out, _ = sweep("two.pt", *OUTPUT)
    assert (code, "2 layers: 1 PROVED, 1 refused" in out) == (1, True)


@pytest.mark.usefixtures("in_this_process")
def test_nothing_certified_is_no_success(sweep: Command):
    torch.save(construct.convert(nn.Sequential(nn.Conv1d(1, 1, 3))), "done.pt")
    code, out, _ = sweep("done.pt", *OUTPUT)
    assert (code, "its convolutions are attention layers already" in out) == (1, True)
    Path("help.txt").write_text("done.pt --help")
    assert sweep("help.txt", *OUTPUT)[::2] == (2, "error: help.txt: done.pt --help: certifies nothing\n")


def test_a_network_that_changes_meanwhile_is_not_certified(network: Path):
    first: Any = next(iter(network_of(str(network)).run()))
    model: Any = torch.load(network, weights_only=False)
    torch.save(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *model[1:]), network)
    with pytest.raises(ValueError, match="has changed since"):
        list(first.run())


@pytest.mark.usefixtures("in_this_process")
def test_the_report_counts_and_draws(sweep: Command):
    assert sweep("--random", 6, "--seed", 40, *OUTPUT)[0] == 0
    out = sweep.prints("--report", "r.db", "--figure", "f.png")
    assert "0 rows with an error" in out
    assert "wrote f.png" in out
    assert Path("f.png").read_bytes()[:4] == b"\x89PNG"
    built = rows(Path("r.db"), "fault = ''")
    assert [f"seed {seed}" for seed in range(40, 46)] == sorted(row["layer"] for row in built)
    proved = sum(row["verdict"] == "PROVED" for row in built)
    assert f"| all | {proved} |" in out


def test_the_figure_tells_faults_and_failures_apart(tmp_path: Path):
    results = Results(tmp_path / "r.db")
    kept = [("", "PROVED"), ("a bias", "REFUTED"), ("a bias", ""), ("a bias", "")]
    results.add(Row(str(n), "random", "", fault, "Conv1d", verdict=verdict) for n, (fault, verdict) in enumerate(kept))
    axes = drawn(results).axes[0]
    counts = {bars.get_label(): [int(bar.get_width()) for bar in bars] for bars in axes.containers}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Conv1d, with a fault", "Conv1d"]
    assert counts == {"PROVED": [0, 1], "REFUTED": [1, 0], "failed": [2, 0]}


@contextlib.contextmanager
def running(folder: Path, *words: str) -> Iterator[Any]:
    """The command in its own process."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-m", "verify", "sweep", *words, "--output", "r.db"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process: Any = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            pipe.close()


def until(happened: Callable[[], Any], seconds: float = 90.0) -> Any:
    """Wait until ``happened`` returns something true, and return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(sqlite3.OperationalError):
            if outcome := happened():
                return outcome
        time.sleep(0.1)
    raise TimeoutError


def rows_so_far(folder: Path) -> list[dict[str, Any]]:
    return rows(folder / "r.db") if (folder / "r.db").exists() else []


@pytest.mark.deep
def test_a_worker_that_is_killed_costs_nothing(tmp_path: Path):
    with running(tmp_path, "--random", "150", "--workers", "2") as process:
        victim = int(until(lambda: rows_so_far(tmp_path))[0]["worker"].rpartition(":")[2])
        assert "MALLOC_TRIM_THRESHOLD_" not in psutil.Process(victim).environ()  # Dask's, by which memory is not reused
        processes = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        connections = [connection for one in processes for connection in one.net_connections()]
        listening = [connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN]
        os.kill(victim, signal.SIGKILL)
        out, err = process.communicate(timeout=240)
    assert set(listening) == {"127.0.0.1"}
    assert process.returncode == 0, err
    built = rows(tmp_path / "r.db", "fault = ''")
    assert sorted(int(row["layer"][5:]) for row in built) == list(range(150))
    assert not any(row["error"] for row in built)
    assert "150 layers: " in out


@pytest.mark.deep
def test_a_task_that_hangs_is_given_up(tmp_path: Path, network: Path):
    (tmp_path / "hanging.py").write_text("import time\ndef net(): time.sleep(3600)\n")
    words = "--arch", "hanging:net", str(network), "--timeout", "12", "--workers", "2"
    with running(tmp_path, *words) as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 1, err
    assert "4 layers: 3 PROVED, 1 failed" in out
    assert "hanging:net: its worker died or took longer than 12 s, 3 times" in out


@pytest.mark.deep
@pytest.mark.parametrize("by", ["Ctrl-C", "SIGTERM"])
def test_an_interrupt_keeps_what_is_done_and_the_same_command_goes_on(by: str, tmp_path: Path):
    words = "--random", "120", "--workers", "2"
    with running(tmp_path, *words) as process:
        until(lambda: rows_so_far(tmp_path))
        if by == "Ctrl-C":  # a terminal sends it to the workers too
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.terminate()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    *progress, last = err.splitlines()  # a line now and then, on a machine that is busy
    assert all(re.match(r"\d+ of 120, ", line) for line in progress)
    assert last.startswith("interrupted (")
    kept = rows(tmp_path / "r.db")
    assert 0 < len({row["layer"] for row in kept}) < 120
    with running(tmp_path, *words) as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert {row["key"] for row in kept} < {row["key"] for row in rows(tmp_path / "r.db")}
    assert len(rows(tmp_path / "r.db", "fault = ''")) == 120


@pytest.mark.deep
@pytest.mark.parametrize("seconds", [0.5, 0.8, 1.1, 1.5, 2.0])
def test_an_interrupt_while_workers_start_ends_in_one_line(seconds: float, tmp_path: Path):
    with running(tmp_path, "--random", "120", "--workers", "2") as process:
        until(lambda: (tmp_path / "r.db").exists())
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.startswith("interrupted")
    assert err.count("\n") == 1


@pytest.mark.deep
def test_a_scheduler_that_goes_ends_the_sweep_in_one_line(tmp_path: Path):
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
            process = subprocess.Popen([sys.executable, "-m", "dask", *words], env=environment, **quiet)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        host = "--host", "127.0.0.1"
        dashboard = "--dashboard-address", "127.0.0.1:0"
        scheduler = start("scheduler", *host, *dashboard, "--port", "0", "--scheduler-file", "s.json")
        address = until(lambda: (tmp_path / "s.json").exists() and (tmp_path / "s.json").read_text())
        address = address.split('"address": "')[1].split('"')[0]
        start("worker", address, *host, *dashboard, "--nthreads", "1", "--nworkers", "2")
        time.sleep(5)
        with running(tmp_path, "--random", "2000", "--scheduler", address) as process:
            until(lambda: rows_so_far(tmp_path), 240)  # the workers import torch first
            scheduler.kill()
            _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith("error: the scheduler has gone (")
    assert rows(tmp_path / "r.db")
    with running(tmp_path, "--random", "5", "--scheduler", address) as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "no scheduler answers there" in err
