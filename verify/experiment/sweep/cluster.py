"""Runs tasks on a cluster of Dask, with a time limit, retries, and no result lost or counted twice.

A worker does one task at a time, and no second one waits at it, so that a worker that dies takes one task with it.
"""

import faulthandler
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import dask.config
from distributed import CancelledError, Client, LocalCluster, as_completed
from distributed.comm.core import CommClosedError

from verify.experiment.sweep.results import Row

TRIES = 3
"""Of a task, before its rows say that it failed."""

QUIET = {
    "distributed.scheduler.allowed-failures": 0,  # the tries are counted here
    "distributed.comm.timeouts.connect": "15s",
    "distributed.comm.retry.count": 0,
    "distributed.worker.daemon": True,
    "distributed.admin.tick.limit": "1h",
}
Receive = Callable[["Task", list[Any], str], Iterable["Task"]]
_one_at_a_time = threading.Lock()


class SchedulerLost(ValueError):
    """The scheduler of the cluster cannot be reached, or has gone."""


class Task(Protocol):
    """What a worker does."""

    @property
    def group(self) -> object:
        """Tasks of one group are done by one worker, where it can be: it has open what they need."""
        ...

    def run(self) -> Iterable["Row | Task"]:
        """Rows, and further tasks that follow from it."""
        ...

    def parts(self) -> "list[Any]":
        """The same work in the smallest tasks."""
        return [self]

    def failed(self, why: str) -> list[Row]:
        """The rows of the task if it does not come back."""
        ...


def dask_setup(worker: object) -> None:
    """Called by Dask in each process of a local cluster: Ctrl-C is for the command alone, which ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def execute(task: Task, seconds: float) -> tuple[list[Any], str]:
    """Run a task in a worker: its results, and the worker's name.

    A task that takes longer ends its process; a thread of C does that, so that no code can hold it up.
    """
    with _one_at_a_time, warnings.catch_warnings(), Path(os.devnull).open("w") as nowhere:
        warnings.simplefilter("ignore")
        faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
        try:
            results = list(task.run())
        except Exception as error:  # of this task alone
            results = task.failed(f"{type(error).__name__}: {' '.join(str(error).split())}"[:500])
        finally:
            faulthandler.cancel_dump_traceback_later()
    return results, f"{socket.gethostname()}:{os.getpid()}"


@contextmanager
def cluster(workers: int, scheduler: str | None = None, dashboard: bool = False) -> Iterator[Client]:
    """A client of a new local cluster of so many processes, on the loopback alone; or of the scheduler at an address.

    Raises:
        SchedulerLost: there is no scheduler at that address, or it has no worker.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with dask.config.set(QUIET), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if scheduler is not None:
            try:
                client = Client(scheduler, timeout=15)
            except (OSError, ValueError, TimeoutError) as error:
                raise SchedulerLost(f"{scheduler}: no scheduler answers there ({type(error).__name__})") from error
            with client:
                if not addresses_of(client):
                    raise SchedulerLost(f"{scheduler}: the scheduler has no worker (start one with dask worker)")
                yield client
            return
        with (
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:8787" if dashboard else "127.0.0.1:0",
                worker_dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": dashboard},
                silence_logs=logging.CRITICAL,
                preload=__name__,
            ) as local,
            Client(local) as client,
        ):
            yield client


def addresses_of(client: Any) -> set[str]:
    """The workers."""
    return set(client.nthreads())


def run(client: Client, tasks: Iterable[Task], seconds: float, receive: Receive) -> None:
    """Run tasks, and those that follow from them, and hand over the results of each as they come.

    A task whose worker dies, is killed for its memory or takes longer than ``seconds`` is tried again, in its smallest
    parts; after three tries its rows say so.  ``receive`` gets a task, its results and the worker's name, and returns
    further tasks.

    Raises:
        SchedulerLost: the scheduler has gone.
    """
    try:
        _run(client, tasks, seconds, receive)
    except (CommClosedError, CancelledError, TimeoutError) as error:
        raise SchedulerLost("the scheduler has gone") from error


def _run(client: Client, tasks: Iterable[Task], seconds: float, receive: Receive) -> None:
    waiting, rest, numbers, done = deque[tuple[Any, int]](), iter(tasks), count(), as_completed()
    running: dict[Any, tuple[Any, int, str]] = {}
    workers, looked = addresses_of(client), time.monotonic()
    before: dict[str, object] = {}  # worker → group of its last task

    def next_for(worker: str) -> tuple[Any, int]:
        """Of the group that the worker has open, else the first of another, else any that waits."""
        own = next((one for one in waiting if one[0].group == before.get(worker)), None)
        if own is None and (new := next(rest, None)) is not None:
            return new, 1
        own = own or (waiting[0] if waiting else None)
        if own is None:
            return None, 0
        waiting.remove(own)
        return own

    while True:
        for worker in workers - {busy for _, _, busy in running.values()}:
            task, tries = next_for(worker)
            if task is None:
                break
            before[worker] = task.group
            options: dict[str, Any] = {"workers": [worker], "allow_other_workers": True, "pure": False}
            future = client.submit(execute, task, seconds, key=f"task-{next(numbers)}", **options)
            running[future] = task, tries, worker
            done.add(future)
        if running:
            future = next(done)
            task, tries, _ = running.pop(future)
            if future.status == "finished":
                waiting.extend((follower, 1) for follower in receive(task, *future.result()))
            elif future.status != "error":
                raise SchedulerLost("the scheduler has gone")
            elif tries < TRIES:
                waiting.extend((part, tries + 1) for part in task.parts())
            else:
                receive(task, task.failed(f"its worker died or took longer than {seconds:g} s, {TRIES} times"), "")
            died = future.status == "error"
            future.release()
        elif not waiting and workers:
            return  # the loop above found nothing more
        else:
            died = True
            time.sleep(0.2)  # until a worker is there again
        if died or time.monotonic() > looked + 5:  # workers may have joined, or left
            workers, looked = addresses_of(client), time.monotonic()
