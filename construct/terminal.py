"""What surrounds the work of a command: the progress bar, the signals, the outputs."""

import contextlib
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from construct.plain_text import shown

Advance = Callable[[str], None]
"""Told the path of a layer whenever a piece of work on it is done."""


@contextlib.contextmanager
def progress(total: int) -> Iterator[Advance]:
    """A bar on the terminal, and nothing where there is none."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda path: bar.update(task, advance=1, description=escape(shown(path)))


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
