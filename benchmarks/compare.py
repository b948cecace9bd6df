"""Compare two checkouts of this project, which take turns in one run: forward, and forward with
gradients.

    python -m benchmarks.compare OLD_TREE [--networks NAME ...] [--threads N] [--rounds N]

Each checkout has its own process (:mod:`benchmarks.worker`).  A network's time is the sum over its
convolutions, each in its faster memory layout; its ratio is new divided by old, the median over the
rounds with its quartiles.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from benchmarks.results import machine
from benchmarks.shapes import NETWORKS
from benchmarks.timing import CPU, quartiles

ROOT = Path(__file__).parents[1]
KINDS = {"forward": "forward", "both": "forward and backward", "graph": "forward as a CUDA graph"}
Rounds = list[list[float]]
"""Seconds, for each side and each round."""


class Side(Protocol):
    """What is compared: the calls of a network's layers, see ``benchmarks.timing.Layers``."""

    def prepare(self, network: str, number: int) -> list[str]:
        """Prepare the calls of one layer, and return their names."""
        ...

    def seconds(self, call: str) -> float:
        """Seconds of one call."""
        ...


class Worker:
    """A side in its own process, with ``construct`` from that tree."""

    def __init__(self, tree: Path, threads: int):
        words = [sys.executable, str(ROOT / "benchmarks" / "worker.py"), str(threads)]
        environment = os.environ | {
            "PYTHONPATH": str(tree.resolve()),
            "OMP_NUM_THREADS": str(threads),
        }
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env=environment,
        )

    def ask(self, *question: object) -> object:
        """Send one question, and return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended: exit code {self.process.wait()}")
        return json.loads(line)

    def prepare(self, network: str, number: int) -> list[str]:
        """Prepare the calls of one layer, and return their names."""
        return self.ask("prepare", network, number)  # type: ignore[return-value]

    def seconds(self, call: str) -> float:
        """Seconds of one call."""
        return self.ask("seconds", call)  # type: ignore[return-value]

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measured(sides: Sequence[Side], network: str, rounds: int) -> dict[str, Rounds]:
    """For every kind of call, the seconds of all of a network's convolutions, each in its faster
    memory layout.

    Args:
        sides: what is compared; they take turns call by call.
        network: a key of ``NETWORKS``.
        rounds: the rounds that count, after one for warm-up.
    """
    distinct: dict[str, tuple[int, int]] = {}
    for number, (module, size) in enumerate(NETWORKS[network]()):
        first, count = distinct.get(f"{module} {size}", (number, 0))
        distinct[f"{module} {size}"] = first, count + 1
    total: dict[str, Rounds] = {}
    for number, count in distinct.values():
        times_of = in_turns(sides, network, number, rounds)
        for kind in {call.split()[1] for call in times_of}:
            sums = total.setdefault(kind, [[0.0] * rounds for _ in sides])
            layouts = [times for call, times in times_of.items() if call.endswith(kind)]
            for each, so_far in enumerate(sums):
                best = min((times[each] for times in layouts), key=statistics.median)
                sums[each] = [a + count * b for a, b in zip(so_far, best, strict=True)]
    return {kind: total[kind] for kind in KINDS if kind in total}


def in_turns(sides: Sequence[Side], network: str, number: int, rounds: int) -> dict[str, Rounds]:
    """For every call of a convolution, the seconds of each side in the rounds that count."""
    calls = [side.prepare(network, number) for side in sides][-1]
    times_of: dict[str, Rounds] = {call: [[] for _ in sides] for call in calls}
    for call, times in times_of.items():
        for turn in range(rounds + 1):
            for each, side in sorted(enumerate(sides), reverse=bool(turn % 2)):
                times[each].append(side.seconds(call))
    return {call: [each[1:] for each in times] for call, times in times_of.items()}


def ratio(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """The median of the ratios, round by round, and the quartiles."""
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    return statistics.median(ratios), *quartiles(ratios)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description="Two checkouts in turns."
    )
    parser.add_argument("old", type=Path, help="the other checkout of this project")
    parser.add_argument(
        "--networks",
        nargs="+",
        default=[*NETWORKS],
        metavar="NAME",
        help=f"of {', '.join(NETWORKS)}",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    unknown = [name for name in options.networks if name not in NETWORKS]
    if unknown:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(NETWORKS)}")
    print(
        f"torch {torch.__version__}, {machine(CPU)}, threads: {options.threads}, rounds: {options.rounds}"
    )
    workers = [Worker(tree, options.threads) for tree in (options.old, ROOT)]
    for network in options.networks:
        for kind, (before, after) in measured(workers, network, options.rounds).items():
            times = " ".join(f"{1e3 * statistics.median(times):9.2f}" for times in (before, after))
            middle, low, high = ratio(before, after)
            print(
                f"{network:22s} {KINDS[kind]:20s} {times} ms   {middle:.3f} ({low:.3f} to {high:.3f})",
                flush=True,
            )
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
