"""Runs a sweep, or resumes one that was stopped: tasks, results, progress, exit code."""

import platform
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from verify.experiment.sweep.cluster import SchedulerLost, SweepTask, addresses_of, cluster
from verify.experiment.sweep.cluster import run as run_tasks
from verify.experiment.sweep.results import VERDICTS, Results, Row, key_of

if TYPE_CHECKING:
    from verify.experiment.sweep.models import Network

EVERY = 30.0
"""Seconds between progress lines without a terminal."""


@dataclass(frozen=True)
class SeededLayer:
    """A task that certifies the random layer of a seed; only the worker that runs it loads torch."""

    seed: int
    group: None = None

    def run(self) -> list[Row]:
        """The rows of this layer."""
        from verify.experiment.sweep.random_layers import certify_seed

        return certify_seed(self.seed)

    def failed(self, why: str) -> list[Row]:
        """The row of a task that crashed, which is also a result, or did not return."""
        return [Row(key_of("random", self.seed, ""), "random", f"seed {self.seed}", error=why)]


@dataclass
class Sweep:
    """A sweep over the random layers of these seeds and over networks; it adds its rows to those of
    an earlier run.

    Attributes:
        seeds: of the random layers.
        networks: whose layers are certified.
        results: the file.
        keys: of layers of networks.
        new: how many rows it has added.
    """

    seeds: range
    networks: "list[Network]"
    results: Results
    keys: set[str] = field(default_factory=set)
    new: int = 0

    def run(
        self, workers: int | None, scheduler: str | None, seconds: float, dashboard: bool
    ) -> tuple[str, int]:
        """Run what is left, on a local cluster of ``workers`` (by default one per core) or on the
        scheduler at an address.

        Returns:
            The conclusion, and the exit code: 0 if every layer of the networks is PROVED, or no
            verdict on random layers is false; else 1.

        Raises:
            SchedulerLost: there is no scheduler, or it has gone.
        """
        start = time.monotonic()
        places = 0
        done = self.results.keys()
        seeds = [seed for seed in self.seeds if key_of("random", seed, "") not in done]
        tasks: Iterable[SweepTask] = chain(map(SeededLayer, seeds), self.networks)
        try:
            with cluster(workers, scheduler, dashboard) as client, _progress(len(seeds)) as show:

                def receive(task: SweepTask, results: list[Any], worker: str) -> list[SweepTask]:
                    rows = [replace(one, worker=worker) for one in results if isinstance(one, Row)]
                    layers = [one for one in results if not isinstance(one, Row)]
                    self.results.add(rows)
                    self.new += len(rows)
                    self.keys.update(one.key for one in (*rows, *layers))
                    left = [layer for layer in layers if layer.key not in done]
                    show(
                        rows,
                        len({row.layer for row in rows}) if self.seeds else len(rows),
                        len(left),
                    )
                    return left

                places = len(addresses_of(client))
                run_tasks(client, tasks, seconds, receive)
        except (KeyboardInterrupt, SchedulerLost) as error:
            kept = f" ({self.new} new rows are kept, and the same command goes on)"
            raise type(error)(f"{error}{kept * bool(self.new)}".strip()) from error
        finally:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            command = shlex.join(["python", "-m", "verify", *sys.argv[1:]])
            self.results.add_run(
                now, command, _versions(), places, time.monotonic() - start, self.new
            )
        return self._conclusion()

    def _conclusion(self) -> tuple[str, int]:
        """The counts of verdicts and what is wrong, and the exit code."""
        rows = self._rows()
        built = Counter(verdict or "failed" for _, _, fault, verdict, _ in rows if not fault)
        faults = Counter(verdict or "failed" for _, _, fault, verdict, _ in rows if fault)
        lines = [f"{built.total()} layers: {_listed(built)}"]
        if faults:
            lines.append(f"{faults.total()} with a fault: {_listed(faults)}")
        wrong = [row for row in rows if row[-1]]
        for model, layer, fault, _, error in wrong[:20]:
            where = ": ".join(filter(None, (model, layer)))
            lines.append(f"{', '.join(filter(None, (where, fault)))}: {error}")
        if len(wrong) > 20:
            lines.append(f"and {len(wrong) - 20} more (sweep --report DB lists them)")
        return "\n".join(lines), int(bool(wrong))

    def _rows(self) -> list[tuple[str, ...]]:
        """Model, layer, fault, verdict and error of every row of this sweep."""
        random = {f"seed {seed}" for seed in self.seeds}
        query = "SELECT key, model, layer, fault, verdict, error FROM certificates"
        rows = []
        for key, model, layer, *rest in self.results.select(query):
            if key in self.keys or (model == "random" and layer in random):
                rows.append((model, layer, *rest))
        return rows


def _listed(counts: Counter[str]) -> str:
    """``2 PROVED, 1 refused``: verdicts in their order, those of faulty layers last."""
    names = sorted(
        counts, key=lambda name: (" " in name, [*VERDICTS, "failed"].index(name.rpartition(" ")[2]))
    )
    return ", ".join(f"{counts[name]} {name}" for name in names)


def _versions() -> str:
    packages = " ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "distributed"))
    return f"Python {platform.python_version()} {packages} {platform.machine()}"


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """Yield a function (new rows, steps done, further steps) that shows progress: a bar, or
    occasional lines.
    """
    console = Console(stderr=True)
    verdicts = Counter[str]()
    start = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    times = (
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    shown = start
    steps = 0
    with Progress(
        *columns, *times, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("sweep", total=total, rate="")

        def show(rows: list[Row], done: int, more: int) -> None:
            nonlocal total, shown, steps
            verdicts.update(
                ("faulty " if row.fault else "") + (row.verdict or "failed") for row in rows
            )
            total = total + more
            steps = steps + done
            now = time.monotonic()
            rate = f"{steps / max(now - start, 1e-9):.1f}/s"
            bar.update(
                task,
                completed=steps,
                total=max(total, steps),
                description=_listed(verdicts),
                rate=rate,
            )
            if not console.is_terminal and now > shown + EVERY:
                left = (total - steps) * (now - start) / max(steps, 1)
                line = f"{steps} of {total}, {rate}, {left:.0f} s left: {_listed(verdicts)}"
                console.out(line, highlight=False)
                shown = now

        yield show
