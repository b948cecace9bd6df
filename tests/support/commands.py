"""The command lines, called in the tests' process or as separate processes; their limits, and the files they leave."""

import faulthandler
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STDERR = 2
"""Where a fatal traceback goes; pytest captures descriptor 2 itself while a test runs."""


def names() -> set[str]:
    """The files in the current folder, except Python's caches."""
    return {path.name for path in Path.cwd().iterdir()} - {"__pycache__"}


def contents() -> dict[str, bytes]:
    """The files in the current folder, with their bytes."""
    return {path.name: path.read_bytes() for path in Path.cwd().iterdir() if path.is_file()}


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    """Limit a resource of this process (``resource.RLIMIT_FSIZE`` or another) inside the block."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Allow this process one more GiB of memory inside the block, and end it with a traceback after ``seconds``."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)
    try:
        with limited(resource.RLIMIT_AS, used + 2**30):
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Command:
    """A command line called in this process, with words of any type."""

    def __init__(self, main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]):
        self.main, self.capsys = main, capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        self.capsys.readouterr()
        code = self.main([str(word) for word in words])
        out, err = self.capsys.readouterr()
        return code, out, err

    def prints(self, *words: object, code: int = 0) -> str:
        """The stdout of a run with this exit code and nothing on stderr."""
        ended, out, err = self(*words)
        assert (ended, err) == (code, ""), out + err
        return out

    def facts(self, *words: object, code: int = 0) -> Any:
        """The JSON document on stdout, as in :meth:`prints`."""
        return json.loads(self.prints(*words, "--json", code=code))

    def refuses(self, *words: object, code: int = 2) -> str:
        """The one-line error of a run that prints nothing on stdout and leaves the files in the current folder unchanged."""
        before = names(), contents()
        ended, out, err = self(*words)
        assert (ended, out) == (code, ""), out + err
        assert err.startswith("error: " if code == 2 else "interrupted")
        assert err.endswith("\n")
        assert err[:-1].isprintable()
        assert "weights_only" not in err  # no advice to load a file unsafely
        assert (names(), contents()) == before
        return err[:-1]


def process(*words: object, before: str = "", **options: Any) -> subprocess.Popen[Any]:
    """``construct.from_conv`` as a separate process with warnings as errors; it first runs the code ``before``."""
    code = f"{before}\nimport sys\nfrom construct.from_conv import main\nsys.exit(main())"
    how = ["-c", code] if before else ["-m", "construct.from_conv"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("environment", {})}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([sys.executable, "-W", "error", *how, *map(str, words)], env=environment, **options)


def python(*words: object, cwd: Path | None = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """A separate Python process that finds the project, with warnings as errors, in the project's root or another folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    command = [sys.executable, "-W", "error", *map(str, words)]
    options: Any = {"env": environment, "capture_output": True, "encoding": "utf-8", "check": False, "timeout": 600}
    return subprocess.run(command, cwd=cwd, **options)


def interrupted(running: subprocess.Popen[Any], kind: signal.Signals) -> None:
    """Send a signal once the process has written the file ``running``, and assert that it ends properly."""
    deadline = time.monotonic() + 60
    while not Path("running").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(kind)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, "", "interrupted\n")
    Path("running").unlink()
