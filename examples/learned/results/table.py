"""The table: variants, parameters, accuracy over seeds, and the distance to a convolution layer by
layer.
"""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.learned.results.ruler import SIZES
from examples.learned.running.files import records
from examples.learned.training import RESULT
from examples.learned.variants import VARIANTS

KEYS = ("seed", "seconds", "parameters", "test_accuracy", "layers", "untrained")
"""The keys of every result."""
PAIRED = (
    (
        "anywhere",
        "Distance to the nearest convolution of N_h taps anywhere, over the outputs in the middle of the grid:",
    ),
    ("middle 3", "Distance to the nearest 3 × 3 convolution, over the same outputs:"),
    ("middle 5", "Distance to the nearest 5 × 5 convolution, over the same outputs:"),
    ("middle 9", "Distance to the nearest 9 × 9 convolution, over the same outputs:"),
    ("by_size 3", "Distance to the nearest 3 × 3 convolution, over all outputs:"),
    ("distinct", "Distinct nearest integer shifts of the heads:"),
    ("near", "Share of heads within 0.25 of an integer shift along each axis (chance: 0.25):"),
    ("alpha", "The median α of the heads:"),
    ("reach", "How far from the middle query its heads look, in tokens, the mean of all heads:"),
    ("width", "How far about there, the root of the mean square, in tokens:"),
    ("peak", "The weight of the key that a head looks at most, the mean of all heads:"),
    ("position", "Share of the variance of attention that positions explain (1: no content):"),
    (
        "equivariance",
        "How far what the network makes of moved pictures is from what it made of them, moved:",
    ),
)
"""Tables by layer, before → after training: the measurement, with a kernel size where it has one,
and the heading.
"""
AFTER = (
    (
        "anywhere_sharp",
        "Null: N_h taps anywhere, for heads as sharp as after training at random centres:",
    ),
    (
        "anywhere_orders",
        "Null: N_h taps anywhere, for heads after training with queries and keys in random orders:",
    ),
    ("null 3", "Null: 3 × 3, with queries and keys in random orders, over all outputs:"),
    ("moved", "Mean displacement of τ, in tokens:"),
    ("moved_most", "Greatest displacement of τ, in tokens:"),
    ("log_alpha_moved", "Mean displacement of log α:"),
    (
        "explained 3",
        "R² of a 3 × 3 convolution fitted to the layer's real inputs, on other pictures:",
    ),
    ("explained 9", "R² of a 9 × 9 convolution, likewise:"),
    *(
        (
            f"lost {size}",
            f"Test accuracy lost with the nearest {size} × {size} convolution in the layer's place, in points:",
        )
        for size in (1, 3, 5, 7, 9)
    ),
)
"""Tables by layer, after training alone."""
NOTE = (
    "± is the sample standard deviation over seeds; brackets are a 95 % interval of the mean, by 10,000 bootstrap draws of the "
    "seeds (of three seeds it can only reach from the least to the greatest)."
)


def results_in(
    folder: Path, variants: Sequence[str], seeds: Sequence[int]
) -> dict[str, list[dict[str, Any]]]:
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


def in_two_digits(number: float) -> str:
    """A number as 0.28, 6.3 or 140.

    >>> in_two_digits(0.281), in_two_digits(135.1)
    ('0.28', '140')
    """
    return f"{float(f'{number:.2g}'):g}"


def interval(numbers: Sequence[float]) -> str:
    """Mean [bootstrap interval over the numbers]; for one number, that number."""
    if len(numbers) < 2:
        return mean_and_deviation(numbers)
    means = np.random.default_rng(0).choice(numbers, (10_000, len(numbers))).mean(1)
    least, most = np.quantile(means, (0.025, 0.975))
    return f"{statistics.fmean(numbers):.2f} [{least:.2f}, {most:.2f}]"


def number_of(run: dict[str, Any], when: str, layer: int, name: str) -> float | None:
    """One measurement of a layer; None if this run has none.

    Args:
        run: a result.
        when: "layers", after training, or "untrained".
        layer: its number, from 0.
        name: the measurement, followed by a kernel size where it has one for each.
    """
    key, _, size = name.partition(" ")
    if key == "lost":
        after = number_of(run, when, layer, f"substituted {size}")
        return None if after is None else 100 * (run["accuracy_of_substitution"] - after)
    numbers = run[when][layer].get(key)
    if not size or numbers is None:
        return numbers
    return numbers[SIZES.index(int(size))]


def cell(
    runs: Sequence[dict[str, Any]], when: str, layer: int, name: str, show: Callable[..., str]
) -> str:
    """The measurement of all runs as ``show`` has it; a dash where a run has none."""
    numbers = [number_of(run, when, layer, name) for run in runs]
    known = [number for number in numbers if number is not None]
    return show(known) if len(known) == len(numbers) else "–"


def by_layer(results: dict[str, list[dict[str, Any]]], name: str, *, paired: bool) -> list[str]:
    """A table of one measurement: a row for each variant with attention, a column for each layer."""
    layers = max((len(run["layers"]) for runs in results.values() for run in runs), default=0)
    lines = [
        "| variant | " + " | ".join(f"layer {n}" for n in range(1, layers + 1)) + " |",
        "|---" + "|---:" * layers + "|",
    ]
    for variant, runs in results.items():
        if not runs[0]["layers"]:
            continue
        cells = []
        for layer in range(layers):
            before = cell(runs, "untrained", layer, name, mean_and_deviation)
            after = cell(runs, "layers", layer, name, interval)
            cells.append(
                f"{before.partition(' ')[0]} → {after}"
                if paired and before != after != "–"
                else after
            )
        if set(cells) != {"–"}:
            lines.append(f"| {VARIANTS[variant].label} | {' | '.join(cells)} |")
    return lines


def markdown(results: dict[str, list[dict[str, Any]]]) -> str:
    """The results as tables, followed by the command, seed and time of every run."""
    lines = [
        "| variant | parameters | test accuracy, % | Σ rate of where heads look | seconds a run | seeds |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for variant, runs in results.items():
        accuracy = mean_and_deviation([run["test_accuracy"] for run in runs], scale=100)
        seconds = statistics.fmean(run["seconds"] for run in runs)
        seeds = ", ".join(str(run["seed"]) for run in runs)
        moves = VARIANTS[variant].frozen != "all" and runs[0]["layers"]
        budget = f"{runs[0]['budget']:.2f}" if moves else "–"
        lines.append(
            f"| {VARIANTS[variant].label} | {runs[0]['parameters']:,} | {accuracy} | {budget} | {seconds:.0f} | {seeds} |"
        )
    for kind, more, paired in ((PAIRED, " before → after", True), (AFTER, "", False)):
        for name, heading in kind:
            table = by_layer(results, name, paired=paired)
            if len(table) > 2:
                lines += ["", heading + more, "", *table]
    lines += ["", NOTE]
    lines += ["", "Runs:", "", *stated([run for runs in results.values() for run in runs])]
    return "\n".join(lines) + "\n"


def stated(every: Sequence[dict[str, Any]]) -> list[str]:
    """The command of the runs, when they were made, and on what, as a list in Markdown."""
    lines = []
    for command, machine in sorted({(run["command"], run["machine"]) for run in every}):
        alike = [run for run in every if (run["command"], run["machine"]) == (command, machine)]
        started, ended = min(run["started"] for run in alike), max(run["ended"] for run in alike)
        total, count = (
            sum(run["seconds"] for run in alike),
            f"{len(alike)} run{'s' * (len(alike) > 1)}",
        )
        lines.append(
            f"- `{command}`: {count}, {started} to {ended}, {total:.0f} s of training; {machine}."
        )
    return lines
