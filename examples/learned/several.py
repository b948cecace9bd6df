"""Runs beside each other, a process each: every one is its own seed on its own core, and computes what it would alone."""

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
"""Seconds from one word on how a run goes to the next."""

Tell = Callable[[int, int, str], None]
"""(steps taken, steps of the run, a word on how it goes)."""


class Word(NamedTuple):
    """What a process says: how far it is, or that a run is done, or what stopped it."""

    done: int
    steps: int
    word: str
    ended: bool = False
    error: BaseException | None = None


def cores() -> int:
    """So many CPU cores are ours."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def beside_each_other(
    todo: Iterable[Any], prepare: Callable[[], Callable[[Any, Tell], None]], jobs: int, tell: Callable[..., None]
) -> None:
    """Do everything that is to be done, in so many processes.  Whatever ends this ends the processes.

    Args:
        todo: what to do, one after the other as processes become free; pickled, like the rest.
        prepare: called once in each process; it returns what does one thing.
        jobs: processes.
        tell: gets the thing, and what ``Tell`` does, and whether it is done.

    Raises:
        Exception: the first that one of them raised.
        BadInput: a process died.
    """
    context = multiprocessing.get_context("spawn")
    left, busy, processes = iter(todo), dict[Connection, Any](), []
    try:
        for thing in left:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, prepare), daemon=True)
            with _deaf():
                process.start()
            theirs.close()  # so that its end is seen here
            processes.append(process)
            ours.send(thing)
            busy[ours] = thing
            if len(processes) == jobs:
                break
        while busy:
            for ours in wait([*busy]):
                assert isinstance(ours, Connection)
                try:
                    said: Word = ours.recv()
                except EOFError:
                    raise BadInput(f"{busy[ours]}: its process was killed (the same command goes on)") from None
                if said.error is not None:
                    raise said.error
                tell(busy[ours], said.done, said.steps, said.word, said.ended)
                if said.ended:
                    thing = next(left, None)
                    if thing is None:
                        del busy[ours]
                        ours.close()
                    else:
                        ours.send(thing)
                        busy[ours] = thing
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _work(theirs: Connection, prepare: Callable[[], Callable[[Any, Tell], None]]) -> None:
    """Of a process: one thing after the other, until nobody asks."""
    try:
        do = prepare()
        while (thing := _asked(theirs)) is not None:
            said = _Said(theirs)
            do(thing, said)
            _send(theirs, Word(said.done, said.steps, "", ended=True))
    except Exception as error:
        error.add_note(traceback.format_exc())
        _send(theirs, Word(0, 0, "", error=error))


class _Said:
    """``Tell`` of a process: not every word, and the last numbers."""

    def __init__(self, theirs: Connection):
        self.theirs, self.last, self.done, self.steps = theirs, -PAUSE, 0, 0

    def __call__(self, done: int, steps: int, word: str) -> None:
        self.done, self.steps = done, steps
        if time.monotonic() - self.last >= PAUSE:
            self.last = time.monotonic()
            _send(self.theirs, Word(done, steps, word))


def _asked(theirs: Connection) -> Any:
    try:
        return theirs.recv()
    except EOFError:
        return None


def _send(theirs: Connection, word: Word) -> None:
    try:
        theirs.send(word)
    except BrokenPipeError:  # nobody is left to tell: the first process was killed
        sys.exit(1)


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that are started now do not hear Ctrl-C, which reaches all of a terminal's: the first one ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
