"""The table: variants, parameters, accuracy over seeds, and the distance to a convolution layer by layer."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.learned.network import VARIANTS
from examples.learned.results.ruler import SIZES
from examples.learned.running.files import records
from examples.learned.training import RESULT

KEYS = ("seed", "seconds", "parameters", "test_accuracy", "layers", "untrained")
"""The keys of every result."""
MEASURED = (
    ("layers", "distance", "Distance of each layer to the nearest convolution (0 the same map, 1 nothing in common):"),
    ("untrained", "distance", "The same before training:"),
    ("layers", "interior", "After training, over the outputs whose window lies on the image:"),
    ("untrained", "interior", "Over the same outputs before training:"),
    (
        "layers",
        "content",
        "How far other inputs move the attention of the head that they move most (0 not at all, 1 wholly):",
    ),
    ("layers", "position", "Share of the variance of attention that positions explain (1: no content):"),
    ("layers", "equivariance", "How far what the network makes of moved pictures is from what it made of them, moved:"),
    ("untrained", "equivariance", "The same before training:"),
    ("layers", "reach", "How far from the middle query its heads look, in tokens, the mean of all heads:"),
    ("untrained", "reach", "The same before training:"),
    ("layers", "width", "How far about there, the root of the mean square, in tokens:"),
    ("untrained", "width", "The same before training:"),
    ("layers", "peak", "The weight of the key that a head looks at most, the mean of all heads:"),
    ("untrained", "peak", "The same before training:"),
)
"""The tables by layer: when it was measured, which figure, and the heading."""
BY_SIZE = (
    (
        "layers",
        "by_size",
        "Distance to the nearest convolution of so many taps along each axis, the mean of all layers:",
    ),
    ("untrained", "by_size", "The same before training:"),
    ("layers", "middle", "After training, over the outputs in the middle of the grid:"),
    ("untrained", "middle", "Over the same outputs before training:"),
    ("layers", "null", "After training, with the queries and the keys of every head in random orders:"),
)
"""The tables by kernel size, likewise."""
NOTE = (
    "± is the sample standard deviation over seeds; brackets are a 95 % interval of the mean, by 10,000 bootstrap draws of the "
    "seeds (of three seeds it can only reach from the least to the greatest)."
)


def results_in(folder: Path, variants: Sequence[str], seeds: Sequence[int]) -> dict[str, list[dict[str, Any]]]:
    """The results of finished runs by variant, in the order of the seeds."""
    results = {}
    for variant in variants:
        paths = [folder / variant / f"seed-{seed}" / RESULT for seed in seeds]
        results[variant] = [records(path, KEYS)[0] for path in paths if path.exists()]
    return {variant: runs for variant, runs in results.items() if runs}


def mean_and_deviation(numbers: Sequence[float], digits: int = 2, scale: float = 1.0) -> str:
    """Mean ± sample deviation; for one number, that number."""
    mean = scale * statistics.fmean(numbers)
    if len(numbers) < 2:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {scale * statistics.stdev(numbers):.{digits}f}"


def interval(numbers: Sequence[float]) -> str:
    """Mean [bootstrap interval over the numbers]; for one number, that number."""
    if len(numbers) < 2:
        return mean_and_deviation(numbers)
    means = np.random.default_rng(0).choice(numbers, (10_000, len(numbers))).mean(1)
    least, most = np.quantile(means, (0.025, 0.975))
    return f"{statistics.fmean(numbers):.2f} [{least:.2f}, {most:.2f}]"


def markdown(results: dict[str, list[dict[str, Any]]]) -> str:
    """The results as tables, followed by the command, seed and time of every run."""
    layers = max(len(run["layers"]) for runs in results.values() for run in runs)
    numbered = " | ".join(f"layer {n}" for n in range(1, layers + 1))
    rule = "|".join(["---", *["---:"] * layers])
    lines = ["| variant | parameters | test accuracy, % | seconds a run | seeds |", "|---|---:|---:|---:|---|"]
    for variant, runs in results.items():
        accuracy = mean_and_deviation([run["test_accuracy"] for run in runs], scale=100)
        seconds = statistics.fmean(run["seconds"] for run in runs)
        seeds = ", ".join(str(run["seed"]) for run in runs)
        lines.append(
            f"| {VARIANTS[variant].label} | {runs[0]['parameters']:,} | {accuracy} | {seconds:.0f} | {seeds} |"
        )
    for when, key, heading in MEASURED:
        lines += ["", heading, "", f"| variant | {numbered} |", f"|{rule}|"]
        for variant, runs in results.items():
            if not runs[0]["layers"]:
                continue
            cells = []
            for layer in range(layers):
                numbers = [run[when][layer].get(key) for run in runs]  # None: not measured
                cells.append("–" if any(n is None for n in numbers) else mean_and_deviation(numbers))
            lines.append(f"| {VARIANTS[variant].label} | {' | '.join(cells)} |")
    for when, key, heading in BY_SIZE:
        lines += ["", heading, "", f"| variant | {' | '.join(str(size or 'all') for size in SIZES)} |"]
        lines += [f"|---{'|---:' * len(SIZES)}|"]
        for variant, runs in results.items():
            if runs[0]["layers"]:
                means = [np.mean([layer[key] for layer in run[when]], axis=0) for run in runs]
                cells = [interval([float(mean[place]) for mean in means]) for place in range(len(SIZES))]
                lines.append(f"| {VARIANTS[variant].label} | {' | '.join(cells)} |")
    lines += ["", NOTE]
    every = [run for runs in results.values() for run in runs]
    lines += ["", "Runs:", ""]
    for stated in sorted({(run["command"], run["machine"]) for run in every}):
        alike = [run for run in every if (run["command"], run["machine"]) == stated]
        started, ended = min(run["started"] for run in alike), max(run["ended"] for run in alike)
        total, count = sum(run["seconds"] for run in alike), f"{len(alike)} run{'s' * (len(alike) > 1)}"
        lines.append(f"- `{stated[0]}`: {count}, {started} to {ended}, {total:.0f} s of training; {stated[1]}.")
    return "\n".join(lines) + "\n"
