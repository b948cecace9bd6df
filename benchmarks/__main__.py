"""The constructed attention against the convolution that it equals: time and memory, as ratios, in one run.

    python -m benchmarks [SECTION ...] [--threads N ...] [--device cpu|cuda] [--json FILE]

A ratio is that of two medians, each for the faster of two memory layouts; after it come the quartiles of the ratios, round by
round, and before it a lower bound on the time of both: arithmetic at the rate of a large product, memory at that of a copy, both
measured in the same run.  Nothing is asserted; targets are printed next to the measurements.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import layers, networks, rows
from benchmarks.timing import Floor, clock_of

SECTIONS: dict[str, Callable[[Floor], rows.Section]] = layers.SECTIONS | networks.SECTIONS
WITH_MORE_THREADS = ("single", "networks")
"""Sections that are repeated for every further number of threads, unless sections are named."""


def main() -> None:
    """Run the requested sections."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="The constructed attention against the convolution that it equals."
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write all measurements")
    options = parser.parse_args()
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    device = torch.device(options.device)
    where = f"torch {torch.__version__}, {rows.machine(device)}"
    done: list[rows.Section] = []
    started = time.strftime("%Y-%m-%d %H:%M")
    for number, threads in enumerate(options.threads):
        torch.set_num_threads(threads)
        floor = Floor(device)
        print(
            f"{where}, {threads} thread{'s' * (threads > 1)}, {clock_of(device)[1]}; large products {floor.rate / 1e9:.0f} GFLOP/s"
        )
        for name in options.sections or (SECTIONS if number == 0 else WITH_MORE_THREADS):
            torch.manual_seed(0)
            section = SECTIONS[name](floor)
            section.title += f" ({threads} thread{'s' * (threads > 1)})"
            rows.show(section)
            done.append(section)
    figures = [
        rows.verdict(f"{section.title}: {name}", *pair) for section in done for name, pair in section.figures.items()
    ]
    print("\n" + "\n".join(figures))
    if options.json is not None:
        rows.write(options.json, {"where": where, "started": started, "device": str(device)}, done)


if __name__ == "__main__":
    main()
