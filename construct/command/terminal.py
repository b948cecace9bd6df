"""What surrounds the work of a command: the progress bar, the signals, the outputs."""

import contextlib
import signal
import sys
import threading
import warnings
from collections.abc import Iterator

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from construct.errors import shown


class Phases:
    """The progress bar of a command, one phase of the work after another; nothing where there is no terminal.

    Args:
        bar: that draws it.
    """

    def __init__(self, bar: Progress):
        self._bar, self._task = bar, bar.add_task("reading", total=None)

    def begin(self, what: str, total: int | None = None) -> None:
        """Start a phase of ``total`` pieces; without a number the bar only shows that work goes on."""
        self._bar.reset(self._task, total=total, description=escape(shown(what)))
        self._what = what

    def advance(self, path: str) -> None:
        """A piece of the phase is done, of the layer ``path``."""
        self._bar.update(self._task, advance=1, description=escape(shown(f"{self._what} {path}")))


@contextlib.contextmanager
def phases() -> Iterator[Phases]:
    """A bar on the terminal while the work goes on."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Phases(bar)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Run a user's network without letting it, or the caller's surroundings, into ours.

    What it prints goes to stderr, for stdout is our own; torch's remarks on it are not shown; NNPACK's Winograd, of which no
    certificate speaks, is off; torch's random numbers are as they were afterwards; and SIGTERM ends the work as Ctrl-C does, so
    that no half-written file stays behind.
    """
    with (
        _terminated_as_interrupted(),
        contextlib.redirect_stdout(sys.stderr),
        torch.random.fork_rng(devices=[]),
        torch.backends.nnpack.flags(enabled=False),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)
        yield


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
