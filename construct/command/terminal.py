"""Progress bar, signal handling and output redirection for the command."""

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

from construct.errors import printable


class Phases:
    """A progress bar of rich for consecutive phases; hidden without a terminal."""

    def __init__(self, bar: Progress):
        self._bar = bar
        self._task = bar.add_task("reading", total=None)

    def begin(self, what: str, total: int | None = None) -> None:
        """Start a phase of ``total`` steps; None for an unknown number."""
        self._bar.reset(self._task, total=total, description=escape(printable(what)))
        self._what = what

    def advance(self, path: str) -> None:
        """Count one finished step, for the layer ``path``."""
        self._bar.update(
            self._task, advance=1, description=escape(printable(f"{self._what} {path}"))
        )


@contextlib.contextmanager
def phases() -> Iterator[Phases]:
    """Show the progress bar within the block."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield Phases(bar)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Isolate the process from a user's network within the block.

    Its prints go to stderr, ``sys.argv`` has no arguments of ours, torch's warnings are silenced,
    torch's random state is restored, and SIGTERM raises KeyboardInterrupt, so that temporary files
    are removed.  NNPACK's Winograd kernels are off, because certificates do not cover them.
    """
    with (
        _sigterm_as_sigint(),
        _without_arguments(),
        contextlib.redirect_stdout(sys.stderr),
        torch.random.fork_rng(devices=[]),
        torch.backends.nnpack.flags(enabled=False),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)
        yield


@contextlib.contextmanager
def _without_arguments() -> Iterator[None]:
    before = sys.argv
    sys.argv = before[:1]
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _sigterm_as_sigint() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signal handlers belong to the main thread
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
