"""What each kernel, and the cache of prepared calls, gains on every network: the time without it divided by the time with it.

    python -m benchmarks.ablation [--networks NAME ...] [--threads N] [--rounds N]

Each variant has its own process (:mod:`benchmarks.worker`); they take turns call by call.  Layers of a disabled kernel fall to
the next one that accepts them.  A kernel whose removal costs no network more than ``LEAST`` can go.
"""

import argparse
import statistics

from benchmarks.compare import KINDS, ROOT, Worker, measured, options_of
from construct.execution.kernels import KERNELS

VARIANTS = ("", *[*KERNELS][:-1], "cache")
"""What is disabled: first, nothing.  The last kernel, ``im2col_gemm``, takes all other layers and cannot be disabled."""
LEAST = 1.03


def main() -> None:
    """Print a row for each network and kind of call: the medians of the losses, as quartiles would not fit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description="What each kernel earns.")
    options = options_of(parser)
    workers = [Worker(ROOT, options.threads, without) for without in VARIANTS]
    worst: dict[str, tuple[float, str]] = dict.fromkeys(VARIANTS[1:], (1.0, "no network"))
    print(f"{'':42s} {'as it is':>10s}  " + " ".join(f"{name:>14s}" for name in VARIANTS[1:]))
    for network in options.networks:
        for kind, times in measured(workers, network, options.rounds).items():
            usual, *others = times
            losses = [statistics.median(b / a for a, b in zip(usual, other, strict=True)) for other in others]
            row = " ".join(f"{loss:14.2f}" for loss in losses)
            print(f"{network:22s} {KINDS[kind]:19s} {1e3 * statistics.median(usual):8.2f} ms  {row}", flush=True)
            for name, loss in zip(VARIANTS[1:], losses, strict=True):
                worst[name] = max(worst[name], (loss, f"{network}, {KINDS[kind]}"))
    for worker in workers:
        worker.close()
    for name, (loss, where) in worst.items():
        print(f"{name}: {'stays' if loss > LEAST else 'can go'} ({loss:.2f} on {where})")


if __name__ == "__main__":
    main()
