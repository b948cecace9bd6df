"""Runs tasks on a Dask cluster, with a time limit, retries, and no result lost or counted twice.

Handing work over takes some 0.05 s of processor time, so a worker receives short tasks in batches,
one batch at a time, so that a worker that dies loses only one.
"""

import faulthandler
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Protocol

import dask.config
from distributed import CancelledError, Client, LocalCluster, as_completed
from distributed.comm.core import CommClosedError

from verify.experiment.sweep.results import Row

TRIES = 3
"""Attempts at a task before its rows report failure."""
BATCH_SECONDS = 1.0
MOST = 256
"""Approximate work in a batch, and the most tasks in it."""

QUIET = {
    "distributed.scheduler.allowed-failures": 0,  # tries are counted here
    "distributed.comm.timeouts.connect": "15s",
    "distributed.comm.retry.count": 0,
    "distributed.worker.daemon": True,
    "distributed.admin.tick.limit": "1h",
    # The system's default.  With Dask's 64 KiB every large tensor is new memory, a third of a large
    # layer's time.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
}
Receive = Callable[["SweepTask", list[Any], str], Iterable["SweepTask"]]
Try = tuple["SweepTask", int]
"""A task and the number of this attempt at it."""
_one_at_a_time = threading.Lock()


class SchedulerLost(ValueError):
    """The scheduler of the cluster cannot be reached, or has gone."""


class SweepTask(Protocol):
    """A task for a worker."""

    @property
    def group(self) -> object:
        """One worker runs the tasks of a group if possible, because it has already opened what they
        need.
        """
        ...

    def run(self) -> Iterable["Row | SweepTask"]:
        """The rows of the task, and further tasks that follow from it."""
        ...

    def failed(self, why: str) -> list[Row]:
        """The rows of the task if it does not return."""
        ...


def dask_setup(worker: object) -> None:
    """Hook that Dask calls in each process of a local cluster: only the command handles Ctrl-C, and
    ends the processes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def execute(tasks: Sequence[SweepTask], seconds: float) -> tuple[list[list[Any]], str, float]:
    """Run a batch in a worker; return the results of each task, the worker's name, and the seconds
    it took.

    A task that takes longer than ``seconds`` ends its process; a C thread does this, so no Python
    code can delay it.
    """
    with suppress(ModuleNotFoundError):  # the task reports it
        import torch  # noqa: F401  slow, so outside a task's time limit

    results = []
    start = time.monotonic()
    with _one_at_a_time, warnings.catch_warnings(), Path(os.devnull).open("w") as nowhere:
        warnings.simplefilter("ignore")
        for task in tasks:
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
            try:
                results.append(list(task.run()))
            except Exception as error:  # fails only this task
                results.append(
                    task.failed(f"{type(error).__name__}: {' '.join(str(error).split())}"[:500])
                )
            finally:
                faulthandler.cancel_dump_traceback_later()
    return results, f"{socket.gethostname()}:{os.getpid()}", time.monotonic() - start


@contextmanager
def cluster(workers: int | None, scheduler: str | None, dashboard: bool) -> Iterator[Client]:
    """A client of the scheduler at an address, or of a new local cluster on the loopback, by
    default one process per core.

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
                raise SchedulerLost(
                    f"{scheduler}: no scheduler answers there ({type(error).__name__})"
                ) from error
            with client:
                if not addresses_of(client):
                    raise SchedulerLost(
                        f"{scheduler}: the scheduler has no worker (start one with dask worker)"
                    )
                yield client
            return
        with (
            _starting(
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


def _starting(**options: Any) -> LocalCluster:
    """A local cluster; Ctrl-C waits until it has started, as half of one cannot be closed.

    The processes inherit that, so that none is interrupted before :func:`dask_setup`.
    """
    resource_tracker.ensure_running()  # which would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return LocalCluster(**options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def addresses_of(client: Any) -> set[str]:
    """The addresses of the cluster's workers."""
    return set(client.nthreads())


def run(client: Client, tasks: Iterable[SweepTask], seconds: float, receive: Receive) -> None:
    """Run tasks, and those that follow from them, and pass on the results of each as they arrive.

    A task is retried, in its own batch, if its worker dies or is killed for its memory, or if it
    takes longer than ``seconds``; after three tries its rows say so.  ``receive`` gets a task, its
    results and the worker's name, and returns further tasks.

    Raises:
        SchedulerLost: the scheduler has gone.
    """
    try:
        _Run(client, iter(tasks), seconds, receive).until_done()
    except (CommClosedError, CancelledError, TimeoutError) as error:
        raise SchedulerLost("the scheduler has gone") from error


@dataclass
class _Run:
    """The tasks that wait, and the batches that run.

    Attributes:
        rest: tasks that have not been taken yet.
        waiting: tasks to run, each with the number of its try.
        running: future → its batch, the number of the try, the worker.
        opened: worker → the group of its last batch.
        size: tasks in the next batch.
    """

    client: Client
    rest: Iterator[SweepTask]
    seconds: float
    receive: Receive
    waiting: list[Try] = field(default_factory=list)
    running: dict[Any, tuple[list[SweepTask], int, str]] = field(default_factory=dict)
    opened: dict[str, object] = field(default_factory=dict)
    ended: Any = field(default_factory=as_completed)
    size: int = 1

    def until_done(self) -> None:
        """Hand out batches and collect them, until nothing is left to run."""
        workers = addresses_of(self.client)
        looked = time.monotonic()
        while True:
            self._hand_out(workers)
            if workers and not self.running and not self.waiting:
                return
            died = self._collect()
            if died or time.monotonic() > looked + 5:  # workers may have joined or left
                workers = addresses_of(self.client)
                looked = time.monotonic()

    def _hand_out(self, workers: set[str]) -> None:
        """Submit a batch to every idle worker, as long as there are tasks."""
        for worker in workers - {busy for _, _, busy in self.running.values()}:
            if len(self.waiting) < self.size:
                self.waiting.extend((task, 1) for task in islice(self.rest, self.size))
            if not self.waiting:
                return
            batch, tries = self._next_batch(worker, len(workers))
            self.opened[worker] = batch[0].group
            future = self.client.submit(
                execute,
                batch,
                self.seconds,
                workers=[worker],
                allow_other_workers=True,
                pure=False,
            )
            self.running[future] = batch, tries, worker
            self.ended.add(future)

    def _next_batch(self, worker: str, workers: int) -> tuple[list[SweepTask], int]:
        """Take tasks of the group that this worker has open, else of none that a worker has open,
        else any; and the number of the try.
        """
        own = self.opened.get(worker)
        opened = set(self.opened.values())
        first, tries = min(
            self.waiting, key=lambda entry: (entry[0].group != own, entry[0].group in opened)
        )
        alike = [
            (task, t) for task, t in self.waiting if task.group == first.group and t == tries == 1
        ]
        batch = alike[: min(self.size, ceil(len(alike) / workers))] or [(first, tries)]
        for entry in batch:
            self.waiting.remove(entry)
        return [task for task, _ in batch], tries

    def _collect(self) -> bool:
        """Wait for a batch to end, and take its results; whether its worker died, or there is none."""
        if not self.running:
            time.sleep(0.2)  # until a worker is available again
            return True
        future = next(self.ended)
        batch, tries, _ = self.running.pop(future)
        status = future.status
        if status == "finished":
            self._take(batch, *future.result())
        elif status == "error":
            self._retry(batch, tries)
        else:
            raise SchedulerLost("the scheduler has gone")
        future.release()
        return status == "error"

    def _take(
        self, batch: list[SweepTask], results: list[list[Any]], name: str, spent: float
    ) -> None:
        """Pass on the results of a batch, and set the size of the next by the seconds that it took."""
        for task, of_task in zip(batch, results, strict=True):
            self.waiting.extend((follower, 1) for follower in self.receive(task, of_task, name))
        enough = int(len(batch) * BATCH_SECONDS / max(spent, 1e-3))
        self.size = max(1, min(2 * len(batch), enough, MOST))

    def _retry(self, batch: list[SweepTask], tries: int) -> None:
        """Let the tasks of a batch that did not return wait again; after the last try, their rows
        say so.
        """
        for task in batch:
            if tries < TRIES:
                self.waiting.append((task, tries + 1))
            else:
                why = f"its worker died or took longer than {self.seconds:g} s, {TRIES} times"
                self.receive(task, task.failed(why), "")
