"""Compare two checkouts of this project, which take turns in one run: forward, and forward with gradients.

    python -m benchmarks.compare OLD_TREE [--networks NAME ...] [--threads N] [--rounds N]

Each checkout has its own process (:mod:`benchmarks.worker`); they take turns call by call.  A network's time is the sum over its
convolutions, each in its faster memory layout; its ratio is new divided by old, the median over the rounds with its quartiles.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.rows import machine
from benchmarks.shapes import NETWORKS
from benchmarks.timing import quartiles

ROOT = Path(__file__).parents[1]
KINDS = {"forward": "forward", "both": "forward + backward"}
Rounds = list[list[float]]
"""Seconds, for each worker and each round."""


class Worker:
    """One process, with ``construct`` from that tree."""

    def __init__(self, tree: Path, threads: int):
        words = [sys.executable, str(ROOT / "benchmarks" / "worker.py")]
        environment = os.environ | {"PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree, env=environment
        )
        self.ask(threads=threads)

    def ask(self, **question: object) -> object:
        """Send one question, and return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended: exit code {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measured(workers: Sequence[Worker], network: str, rounds: int) -> dict[str, Rounds]:
    """For every kind of call, the seconds of all of a network's convolutions, each in its faster memory layout.

    Args:
        workers: the processes that take turns.
        network: a key of ``NETWORKS``.
        rounds: the rounds that count, after one for warm-up.
    """
    distinct: dict[str, tuple[int, int]] = {}
    for number, (module, size) in enumerate(NETWORKS[network]()):
        first, count = distinct.get(f"{module} {size}", (number, 0))
        distinct[f"{module} {size}"] = first, count + 1
    total = {kind: [[0.0] * rounds for _ in workers] for kind in KINDS}
    for number, count in distinct.values():
        for worker in workers:
            calls = worker.ask(layer=[network, number])
        assert isinstance(calls, list)
        times_of: dict[str, Rounds] = {call: [[] for _ in workers] for call in calls}
        for turn in range(rounds + 1):
            for call, times in times_of.items():
                for each, worker in sorted(enumerate(workers), reverse=bool(turn % 2)):
                    times[each].append(float(worker.ask(call=call)))  # type: ignore[arg-type]
        for kind, sums in total.items():
            for each in range(len(workers)):
                layouts = [times[each][1:] for call, times in times_of.items() if call.endswith(kind)]
                best = min(layouts, key=statistics.median)
                sums[each] = [a + count * b for a, b in zip(sums[each], best, strict=True)]
    return total


def ratio(before: Sequence[float], after: Sequence[float]) -> str:
    """The median of the ratios, round by round, and the quartiles."""
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    low, high = quartiles(ratios)
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the options that both commands share, and parse."""
    parser.add_argument("--networks", nargs="+", default=[*NETWORKS], metavar="NAME", help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    unknown = [name for name in options.networks if name not in NETWORKS]
    if unknown:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(NETWORKS)}")
    where, threads = machine(torch.device("cpu")), options.threads
    print(f"torch {torch.__version__}, {where}, {threads} thread{'s' * (threads > 1)}, {options.rounds} rounds")
    return options


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description="Two checkouts in turns.")
    parser.add_argument("old", type=Path, help="the other checkout of this project")
    options = options_of(parser)
    workers = [Worker(tree, options.threads) for tree in (options.old, ROOT)]
    for network in options.networks:
        for kind, (before, after) in measured(workers, network, options.rounds).items():
            times = " ".join(f"{1e3 * statistics.median(times):9.2f}" for times in (before, after))
            print(f"{network:22s} {KINDS[kind]:20s} {times} ms   {ratio(before, after)}", flush=True)
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
