"""A process pool for training runs; each run computes the same numbers as it would alone."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from examples.learned.data import BadInput

PAUSE = 0.2
"""Seconds between two progress reports of a run."""

Tell = Callable[[int, int, str], None]
"""Progress callback: (steps taken, steps of the run, status)."""


class Word(NamedTuple):
    """A progress report of a process: its progress, the end of a run, or the error that stopped it."""

    done: int
    steps: int
    word: str
    ended: bool = False
    error: BaseException | None = None


def cores() -> int:
    """The number of CPU cores of this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_processes(
    items: Iterable[Any],
    prepare: Callable[[], Callable[[Any, Tell], None]],
    jobs: int,
    tell: Callable[..., None],
) -> None:
    """Process all items in parallel processes, which end when this function ends, however it ends.

    Args:
        items: the work, handed out as processes become free; pickled, like the rest.
        prepare: called once in each process; returns the function that processes one item.
        jobs: the number of processes.
        tell: progress callback with the item, the arguments of ``Tell``, and whether the item is
            done.

    Raises:
        Exception: the first that a process raised.
        BadInput: a process died.
    """
    context = multiprocessing.get_context("spawn")
    pending, busy, processes = iter(items), dict[Connection, Any](), []
    try:
        for item in pending:
            parent, child = context.Pipe()
            process = context.Process(target=_work, args=(child, prepare), daemon=True)
            with _ignoring_sigint():
                process.start()
            child.close()  # so that recv fails when the process ends
            processes.append(process)
            parent.send(item)
            busy[parent] = item
            if len(processes) == jobs:
                break
        while busy:
            for parent in wait([*busy]):
                assert isinstance(parent, Connection)
                try:
                    report: Word = parent.recv()
                except EOFError:
                    raise BadInput(
                        f"{busy[parent]}: its process was killed (the same command goes on)"
                    ) from None
                if report.error is not None:
                    raise report.error
                tell(busy[parent], report.done, report.steps, report.word, report.ended)
                if report.ended:
                    item = next(pending, None)
                    if item is None:
                        del busy[parent]
                        parent.close()
                    else:
                        parent.send(item)
                        busy[parent] = item
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _work(child: Connection, prepare: Callable[[], Callable[[Any, Tell], None]]) -> None:
    """The loop of a process: one item after the other, until the pipe closes."""
    try:
        process = prepare()
        while (item := _next_item(child)) is not None:
            reporter = _Reporter(child)
            process(item, reporter)
            _send(child, Word(reporter.done, reporter.steps, "", ended=True))
    except Exception as error:
        error.add_note(traceback.format_exc())
        _send(child, Word(0, 0, "", error=error))


class _Reporter:
    """``Tell`` in a process: limits the rate of reports and keeps the last numbers."""

    def __init__(self, child: Connection):
        self.child, self.last, self.done, self.steps = child, -PAUSE, 0, 0

    def __call__(self, done: int, steps: int, word: str) -> None:
        self.done, self.steps = done, steps
        if time.monotonic() - self.last >= PAUSE:
            self.last = time.monotonic()
            _send(self.child, Word(done, steps, word))


def _next_item(child: Connection) -> Any:
    try:
        return child.recv()
    except EOFError:
        return None


def _send(child: Connection, word: Word) -> None:
    try:
        child.send(word)
    except BrokenPipeError:  # the main process was killed
        sys.exit(1)


@contextmanager
def _ignoring_sigint() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which a terminal sends to all; the main process ends
    them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
