"""The tables of docs/learned.md and docs/learned_details.md, from results: a row for each variant
and rate.
"""

from collections.abc import Sequence
from math import exp, factorial, log
from typing import Any, NamedTuple

from examples.learned.results import table
from examples.learned.variants import VARIANTS

RATES = (1, 5, 25, 100)
"""The rates of where heads look, as multiples of the network's."""
SHOWN = 25
"""The rate at which heads and substitution are shown, and at which CIFAR-10 was trained."""
TUNED = ("quadratic", "local")
"""The variants of which the rate is chosen on validation pictures."""
LAYERS = range(1, 7)
ENDS = (1, 6)
"""The layers whose heads are shown."""

Results = dict[str, list[dict[str, Any]]]
"""Results by variant, one for each seed."""


class Row(NamedTuple):
    """A row of a table: a label, the rate of where heads look, the variant, and the runs over which
    it is a mean.
    """

    label: str
    rate: int
    variant: str
    runs: list[dict[str, Any]]


def rows(results: dict[int, Results], suffix: str = "") -> list[Row]:
    """The rows of results by rate, one variant after the other."""
    variants = [
        variant for variant in VARIANTS if any(variant in of_rate for of_rate in results.values())
    ]
    return [
        Row(VARIANTS[variant].label + suffix, rate, variant, of_rate[variant])
        for variant in variants
        for rate, of_rate in results.items()
        if variant in of_rate
    ]


def by_seed(all_rows: Sequence[Row]) -> list[Row]:
    """The same rows with one run each."""
    return [row._replace(runs=[run]) for row in all_rows for run in row.runs]


def by_layer(all_rows: Sequence[Row]) -> list[str]:
    """The distance to the nearest N_h taps anywhere, layer by layer: before → after (the null),
    means over seeds.
    """
    lines = [
        "| start | rate | Σ rate | moved: τ, log α | seeds | test, % | "
        + " | ".join(f"layer {n}" for n in LAYERS)
        + " |",
        "|---|---:|---:|---:|---|---:|" + "---:|" * len(LAYERS),
    ]
    for label, rate, variant, runs in all_rows:
        rates = "– | – | –"
        if _learns_where(variant, runs):
            rates = f"× {rate} | {runs[0]['budget']:.2g} | {_moved(runs)}"
        test = table.mean_and_deviation([run["test_accuracy"] for run in runs], scale=100)
        cells = ["–"] * len(LAYERS)  # a convolution is one
        if not VARIANTS[variant].kernel:
            cells = [_before_after(runs, layer) for layer in range(len(LAYERS))]
        lines.append(f"| {label} | {rates} | {seeds(runs)} | {test} | {' | '.join(cells)} |")
    return lines


def _learns_where(variant: str, runs: Sequence[dict[str, Any]]) -> bool:
    """Whether the layers of a variant learn where their heads look, or how sharply."""
    of = VARIANTS[variant]
    return bool(runs[0]["layers"]) and not of.kernel and of.frozen != "all"


def _has_null(runs: Sequence[dict[str, Any]]) -> bool:
    """Whether the heads of the runs have centres, which can be drawn anew."""
    layers = [layer for run in runs for layer in run["layers"]]
    return bool(layers) and all("anywhere_sharp" in layer for layer in layers)


def _null(runs: Sequence[dict[str, Any]], layer: int) -> str:
    """The null of a layer, ± the deviation of its draws; a dash where there is none."""
    if not _has_null(runs):
        return "–"
    mean, deviation = (
        table.cell(runs, "layers", layer, name, _mean)
        for name in ("anywhere_sharp", "anywhere_sharp_deviation")
    )
    return f"{mean} ± {deviation}"


def _before_after(runs: Sequence[dict[str, Any]], layer: int) -> str:
    if not runs[0]["layers"]:
        return "–"
    before, after = (
        table.cell(runs, when, layer, "anywhere", _mean) for when in ("untrained", "layers")
    )
    null = _null(runs, layer)
    return f"{before} → {after}" + ("" if null == "–" else f" ({null})")


def _moved(runs: Sequence[dict[str, Any]]) -> str:
    """The mean displacement of τ and of log α, over heads, layers and seeds."""
    layers = [layer for run in runs for layer in run["layers"]]
    if any("moved" not in layer for layer in layers):
        return "–"
    return ", ".join(
        _mean([layer[name] for layer in layers]) for name in ("moved", "log_alpha_moved")
    )


def seeds(runs: Sequence[dict[str, Any]]) -> str:
    """The seeds of runs, the least to the greatest where they are more than three."""
    every = [run["seed"] for run in runs]
    whole = len(every) > 3 and every == list(range(every[0], every[-1] + 1))
    return f"{every[0]} to {every[-1]}" if whole else ", ".join(map(str, every))


CERTAIN = 0.05
"""The probability below which a layer is said to be nearer than its null, or further: once in so
many of all starts none of whose six layers is.
"""


def compared(all_rows: Sequence[Row]) -> list[str]:
    """For each start whose heads have centres, and each layer, how often random centres would be at
    least as near, over its seeds together.
    """
    lines = _by_layer_of("start | rate | seeds")
    for label, rate, variant, runs in all_rows:
        if _has_null(runs) and not VARIANTS[variant].kernel:
            at = f"× {rate}" if _learns_where(variant, runs) else "–"
            cells = [_against_chance(runs, layer) for layer in range(len(LAYERS))]
            lines.append(f"| {label} | {at} | {seeds(runs)} | {' | '.join(cells)} |")
    return lines


def _by_layer_of(columns: str) -> list[str]:
    """The head of a table with a column for each layer."""
    heading = f"| {columns} | " + " | ".join(f"layer {n}" for n in LAYERS) + " |"
    return [heading, "|---" * (columns.count("|") + 1) + "|---:" * len(LAYERS) + "|"]


def _against_chance(runs: Sequence[dict[str, Any]], layer: int) -> str:
    near, far = (
        pooled([run["layers"][layer][f"anywhere_sharp_{side}"] for run in runs])
        for side in ("nearer", "further")
    )
    if len(LAYERS) * near <= CERTAIN:
        return f"**nearer** ({near:.2g})"
    return f"further ({far:.2g})" if len(LAYERS) * far <= CERTAIN else f"{near:.2g}"


def pooled(chances: Sequence[float]) -> float:
    """The probability that the product of as many uniform numbers is as small (Fisher's method).

    >>> pooled([0.3]), round(pooled([0.1, 0.1]), 3)
    (0.3, 0.056)
    """
    t = -sum(map(log, chances))
    return exp(-t) * sum(t**n / factorial(n) for n in range(len(chances)))


def lattice(all_rows: Sequence[Row]) -> list[str]:
    """How many heads are near an integer shift: of the sharp ones of all layers; and of all heads
    of each layer, before → after training, of how many; over all seeds.
    """
    lines = _by_layer_of("start | rate | seeds | sharp and near, of sharp")
    for label, rate, variant, runs in all_rows:
        if not (_has_null(runs) and _learns_where(variant, runs)):
            continue
        every = [layer for run in runs for layer in run["layers"]]
        sharp = f"{_total(every, 'sharp_near')} of {_total(every, 'sharp')}"
        cells = []
        for layer in range(len(LAYERS)):
            after = [run["layers"][layer] for run in runs]
            before = [run["untrained"][layer] for run in runs]
            cells.append(f"{_near(before)} → {_near(after)} of {_total(after, 'heads')}")
        lines.append(f"| {label} | × {rate} | {seeds(runs)} | {sharp} | {' | '.join(cells)} |")
    return lines


def _total(layers: Sequence[dict[str, Any]], name: str) -> int:
    return sum(layer[name] for layer in layers)


def _near(layers: Sequence[dict[str, Any]]) -> int:
    """The heads near an integer shift."""
    return sum(round(layer["near"] * layer["heads"]) for layer in layers)


def over_all_outputs(all_rows: Sequence[Row]) -> list[str]:
    """The distance to the nearest convolution of any size over the outputs in the middle, and over
    all; means over seeds.
    """
    lines = _by_layer_of("start | seeds")
    for label, _, _, runs in _with_attention(all_rows):
        cells = []
        for layer in range(len(LAYERS)):
            ends = [
                _mean([run["layers"][layer][name][-1] for run in runs])
                for name in ("middle", "by_size")
            ]
            cells.append(", ".join(ends))
        lines.append(f"| {label} | {seeds(runs)} | {' | '.join(cells)} |")
    return lines


def moved(all_rows: Sequence[Row]) -> list[str]:
    """How far τ (in tokens) and log α moved in each layer, means over heads and seeds."""
    lines = _by_layer_of("start | rate | seeds")
    for label, rate, variant, runs in all_rows:
        if _has_null(runs) and _learns_where(variant, runs):
            cells = [
                ", ".join(
                    table.cell(runs, "layers", layer, name, _mean)
                    for name in ("moved", "log_alpha_moved")
                )
                for layer in range(len(LAYERS))
            ]
            lines.append(f"| {label} | × {rate} | {seeds(runs)} | {' | '.join(cells)} |")
    return lines


def heads(all_rows: Sequence[Row]) -> list[str]:
    """The heads of the first and of the last layer after training (before → after), and the nulls;
    means over seeds.
    """
    lines = [
        "| start | layer | taps anywhere | sharp null | orders null | distinct shifts | near | median α | moved, mean and most |",
        "|---|---:|" + "---:|" * 7,
    ]
    for label, _, _, runs in _with_attention(all_rows):
        for layer in ENDS:
            nulls = ("anywhere", "anywhere_sharp", "anywhere_orders")
            cells = [table.cell(runs, "layers", layer - 1, name, _mean) for name in nulls]
            cells[1] = _null(runs, layer - 1)
            cells += [paired(runs, layer - 1, name) for name in ("distinct", "near", "alpha")]
            moved = [
                table.cell(runs, "layers", layer - 1, name, _mean)
                for name in ("moved", "moved_most")
            ]
            lines.append(
                f"| {label} | {layer} | {' | '.join(cells)} | {', '.join(dict.fromkeys(moved))} |"
            )
    return lines


def sharpening(all_rows: Sequence[Row]) -> list[str]:
    """The distance before, with the trained α and W_h at the first centres, and after; means over
    seeds.
    """
    lines = [
        "| start | rate | " + " | ".join(f"layer {n}" for n in LAYERS) + " |",
        "|---|---:|" + "---:|" * len(LAYERS),
    ]
    for label, rate, variant, runs in all_rows:
        if _has_null(runs) and _learns_where(variant, runs):
            names = (
                ("untrained", "anywhere"),
                ("layers", "anywhere_first_centres"),
                ("layers", "anywhere"),
            )
            cells = [
                " → ".join(table.cell(runs, when, layer, name, _mean) for when, name in names)
                for layer in range(len(LAYERS))
            ]
            lines.append(f"| {label} | × {rate} | {' | '.join(cells)} |")
    return lines


def intervals(results: Results) -> list[str]:
    """Test accuracy, and layer by layer distance and equivariance, with bootstrap intervals over
    the seeds.
    """
    scores = ["| variant | seeds | test, % |", "|---|---|---:|"]
    for variant, runs in results.items():
        percent = table.interval([100 * run["test_accuracy"] for run in runs])
        scores.append(f"| {VARIANTS[variant].label} | {seeds(runs)} | {percent} |")
    lines = [f"{table.NOTE} Test accuracy:", "", *scores]
    for name, heading in (
        ("anywhere", "Distance to N_h taps anywhere"),
        ("equivariance", "Equivariance"),
    ):
        lines += [
            "",
            f"{heading}, before → after:",
            "",
            *table.by_layer(results, name, paired=True),
        ]
    return lines


def looks(all_rows: Sequence[Row]) -> list[str]:
    """How far, how widely and how sharply the heads of every layer look, before → after; means over
    heads and seeds.
    """
    lines = [
        "| start | seeds | " + " | ".join(f"layer {n}" for n in LAYERS) + " |",
        "|---|---|" + "---:|" * len(LAYERS),
    ]
    for label, _, variant, runs in _with_attention(all_rows):
        if _learns_where(variant, runs):
            cells = [
                ", ".join(paired(runs, layer, name) for name in ("reach", "width", "peak"))
                for layer in range(len(LAYERS))
            ]
            lines.append(f"| {label} | {seeds(runs)} | {' | '.join(cells)} |")
    return lines


def paired(runs: Sequence[dict[str, Any]], layer: int, name: str) -> str:
    """A measurement of a layer, from 0, before → after training; one number if it is the same.
    Means over seeds.
    """
    before, after = (table.cell(runs, when, layer, name, _mean) for when in ("untrained", "layers"))
    return after if before == after else f"{before} → {after}"


def substitution(all_rows: Sequence[Row], sizes: Sequence[int]) -> list[str]:
    """Accuracy lost with the nearest convolutions of these sizes in a layer's place, and R² of
    fitted ones; means over seeds.
    """
    lines = [
        "| start | " + " | ".join(f"layer {n}" for n in LAYERS) + " |",
        "|---|" + "---:|" * len(LAYERS),
    ]
    for label, _, _, runs in _with_attention(all_rows):
        cells = []
        for layer in range(len(LAYERS)):
            lost = [table.cell(runs, "layers", layer, f"lost {size}", _tenths) for size in sizes]
            explained = [
                table.cell(runs, "layers", layer, f"explained {size}", _mean) for size in sizes
            ]
            cells.append(f"{' / '.join(lost)}, {' / '.join(explained)}")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def _with_attention(all_rows: Sequence[Row]) -> list[Row]:
    """The rows of attention; of a variant at several rates, the row at ``SHOWN`` alone."""
    shown = {row.variant for row in all_rows if row.rate == SHOWN}
    attention = [
        row for row in all_rows if row.runs[0]["layers"] and not VARIANTS[row.variant].kernel
    ]
    return [row for row in attention if row.rate == SHOWN or row.variant not in shown]


def tuning(results: Results) -> list[str]:
    """The accuracy on held-out pictures for each rate of where heads look, and the rate of the
    highest, of the first seed.
    """
    labels = " | ".join(VARIANTS[variant].label for variant in TUNED)
    lines = [f"| rate | Σ rate | {labels} |", "|---:|---:|" + "---:|" * len(TUNED)]
    scores = {
        variant: {run["rate"]: run["accuracy"][-1] for run in results.get(variant, [])}
        for variant in TUNED
    }
    budgets = {run["rate"]: run["budget"] for runs in results.values() for run in runs}
    for rate in RATES:
        cells = [
            f"{100 * scores[variant][rate]:.2f}" if rate in scores[variant] else "not run yet"
            for variant in TUNED
        ]
        budget = f"{budgets[rate]:.2g}" if rate in budgets else "–"
        lines.append(f"| × {rate} | {budget} | {' | '.join(cells)} |")
    if any(scores[variant].keys() < {*RATES} for variant in TUNED):
        return lines
    best = [
        f"× {max(by_rate, key=by_rate.__getitem__):g} ({VARIANTS[variant].label})"
        for variant, by_rate in scores.items()
    ]
    return [*lines, "", f"Highest at {' and '.join(best)}; the runs below have × {SHOWN}."]


def accuracy(all_rows: Sequence[Row]) -> list[str]:
    """Parameters, time, test accuracy, and accuracy on the held-out pictures after each epoch;
    means over seeds.
    """
    lines = [
        "| variant | parameters | seeds | seconds a run | test, % | after each epoch, % |",
        "|---|---:|---|---:|---:|---|",
    ]
    for label, _, _, runs in all_rows:
        seconds = sum(run["seconds"] for run in runs) / len(runs)
        test = table.mean_and_deviation([run["test_accuracy"] for run in runs], scale=100)
        epochs = zip(*(run["accuracy"] for run in runs), strict=True)
        by_epoch = ", ".join(_tenths([100 * share for share in shares]) for shares in epochs)
        lines.append(
            f"| {label} | {runs[0]['parameters']:,} | {seeds(runs)} | {seconds:.0f} | {test} | {by_epoch} |"
        )
    return lines


def absent(results: Results, planned: Sequence[str], more: Sequence[str]) -> list[str]:
    """A sentence about the planned variants without results, and what more there is none of;
    nothing if there is all.
    """
    missing = [VARIANTS[variant].label for variant in planned if variant not in results]
    missing += more
    return ["", f"*Not run yet: {'; '.join(missing)}.*"] if missing else []


def _mean(numbers: Sequence[float]) -> str:
    return f"{sum(numbers) / len(numbers):.2f}"


def _tenths(numbers: Sequence[float]) -> str:
    return f"{sum(numbers) / len(numbers):.1f}"
