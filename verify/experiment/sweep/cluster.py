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
from itertools import count, islice
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
BATCH_SECONDS, MOST = 1.0, 256
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

    results, start = [], time.monotonic()
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
        _run(client, tasks, seconds, receive)
    except (CommClosedError, CancelledError, TimeoutError) as error:
        raise SchedulerLost("the scheduler has gone") from error


def _next_batch(
    waiting: list[Try], size: int, workers: int, own: object, others: set[object]
) -> tuple[list[SweepTask], int]:
    """Take tasks of the worker's ``own`` open group, else of none that a worker has open, else any;
    and the number of the try.
    """
    if not waiting:
        return [], 0
    first, tries = min(waiting, key=lambda entry: (entry[0].group != own, entry[0].group in others))
    alike = [
        n for n, (task, t) in enumerate(waiting) if task.group == first.group and t == tries == 1
    ]
    places = alike[: min(size, ceil(len(alike) / workers))] or [waiting.index((first, tries))]
    batch = [waiting[n][0] for n in places]
    waiting[:] = [entry for n, entry in enumerate(waiting) if n not in places]
    return batch, tries


def _again(
    batch: Sequence[SweepTask], tries: int, seconds: float, receive: Receive
) -> Iterator[Try]:
    """The tasks of a batch that did not return, for another try; after the last, their rows say so."""
    for task in batch:
        if tries < TRIES:
            yield task, tries + 1
        else:
            why = f"its worker died or took longer than {seconds:g} s, {TRIES} times"
            receive(task, task.failed(why), "")


def _run(client: Client, tasks: Iterable[SweepTask], seconds: float, receive: Receive) -> None:
    waiting, rest, numbers, done = list[Try](), iter(tasks), count(), as_completed()
    running: dict[Any, tuple[list[SweepTask], int, str]] = {}
    workers, looked = addresses_of(client), time.monotonic()
    opened: dict[str, object] = {}  # worker → group of its last batch
    size = 1

    while True:
        for worker in workers - {busy for _, _, busy in running.values()}:
            if len(waiting) < size:
                waiting.extend((task, 1) for task in islice(rest, size))
            batch, tries = _next_batch(
                waiting, size, len(workers), opened.get(worker), set(opened.values())
            )
            if not batch:
                break
            opened[worker] = batch[0].group
            options: dict[str, Any] = {
                "workers": [worker],
                "allow_other_workers": True,
                "pure": False,
            }
            future = client.submit(execute, batch, seconds, key=f"batch-{next(numbers)}", **options)
            running[future] = batch, tries, worker
            done.add(future)
        if running:
            future = next(done)
            batch, tries, _ = running.pop(future)
            died = future.status == "error"
            if future.status == "finished":
                results, name, spent = future.result()
                for task, of_task in zip(batch, results, strict=True):
                    waiting.extend((follower, 1) for follower in receive(task, of_task, name))
                size = max(
                    1, min(2 * len(batch), int(len(batch) * BATCH_SECONDS / max(spent, 1e-3)), MOST)
                )
            elif not died:
                raise SchedulerLost("the scheduler has gone")
            else:
                waiting += _again(batch, tries, seconds, receive)
            future.release()
        elif not waiting and workers:
            return  # nothing is left to run
        else:
            died = True
            time.sleep(0.2)  # until a worker is available again
        if died or time.monotonic() > looked + 5:  # workers may have joined or left
            workers, looked = addresses_of(client), time.monotonic()
