"""The tables of docs/learned.md and docs/learned_details.md, from results: a row for each variant
and rate.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from examples.learned.results import nulls, table
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
LEFT = ("rate", "seeds", "moved: τ, log α")
"""Columns of words, which begin at the left."""

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


def _table(
    all_rows: Sequence[Row],
    columns: dict[str, Callable[[Row], str]],
    cell: Callable[[Row, int], str],
) -> list[str]:
    """A table with the label of each row, these columns, and one for each layer (by its number from
    0).
    """
    heads = ["start", *columns, *(f"layer {n}" for n in LAYERS)]
    left = 1 + sum(name in LEFT for name in columns)
    lines = [f"| {' | '.join(heads)} |", "|---" * left + "|---:" * (len(heads) - left) + "|"]
    for row in all_rows:
        cells = [of(row) for of in columns.values()]
        cells += [cell(row, layer) for layer in range(len(LAYERS))]
        lines.append(f"| {row.label} | {' | '.join(cells)} |")
    return lines


def _rate(row: Row) -> str:
    return f"× {row.rate}" if _learns_where(row) else "–"


def _budget(row: Row) -> str:
    return table.in_two_digits(row.runs[0]["budget"]) if _learns_where(row) else "–"


def _moved(row: Row) -> str:
    """The mean displacement of τ and of log α, over heads, layers and seeds."""
    layers = [layer for run in row.runs for layer in run["layers"]]
    if not _learns_where(row) or any("moved" not in layer for layer in layers):
        return "–"
    names = ("moved", "log_alpha_moved")
    return ", ".join(_mean([layer[name] for layer in layers]) for name in names)


def _seeds(row: Row) -> str:
    return seeds(row.runs)


def by_layer(all_rows: Sequence[Row]) -> list[str]:
    """The distance to the nearest N_h taps anywhere, layer by layer: before → after (the null),
    means over seeds.
    """
    columns = {
        "rate": _rate,
        "Σ rate": _budget,
        "moved: τ, log α": _moved,
        "seeds": _seeds,
        "test, %": lambda row: table.mean_and_deviation(
            [run["test_accuracy"] for run in row.runs], scale=100
        ),
    }
    return _table(all_rows, columns, _before_after)


def _learns_where(row: Row) -> bool:
    """Whether the layers of a row learn where their heads look, or how sharply."""
    of = VARIANTS[row.variant]
    return bool(row.runs[0]["layers"]) and not of.kernel and of.frozen != "all"


def _has_null(row: Row) -> bool:
    """Whether the heads of a row have centres, which can be drawn anew."""
    layers = [layer for run in row.runs for layer in run["layers"]]
    return bool(layers) and all("anywhere_sharp" in layer for layer in layers)


def _null(row: Row, layer: int) -> str:
    """The null of a layer, ± the deviation of its draws; a dash where there is none."""
    if not _has_null(row):
        return "–"
    names = ("anywhere_sharp", "anywhere_sharp_deviation")
    mean, deviation = (table.cell(row.runs, "layers", layer, name, _mean) for name in names)
    return f"{mean} ± {deviation}"


def _before_after(row: Row, layer: int) -> str:
    if not row.runs[0]["layers"] or VARIANTS[row.variant].kernel:  # which is a convolution
        return "–"
    before, after = (
        table.cell(row.runs, when, layer, "anywhere", _mean) for when in ("untrained", "layers")
    )
    null = _null(row, layer)
    return f"{before} → {after}" + ("" if null == "–" else f" ({null})")


def seeds(runs: Sequence[dict[str, Any]]) -> str:
    """The seeds of runs, the least to the greatest where they are more than three."""
    every = [run["seed"] for run in runs]
    whole = len(every) > 3 and every == list(range(every[0], every[-1] + 1))
    return f"{every[0]} to {every[-1]}" if whole else ", ".join(map(str, every))


def compared(all_rows: Sequence[Row]) -> list[str]:
    """For each start whose heads have centres, and each layer, the chance that random centres are as
    near, or if it is called further, as far; over its seeds together.
    """
    return _table([*filter(_has_null, all_rows)], {"rate": _rate, "seeds": _seeds}, _against_chance)


def _against_chance(row: Row, layer: int) -> str:
    word, chance = nulls.verdict(row.runs, layer)
    return {"nearer": "**nearer** ({})", "further": "further ({})", "": "{}"}[word].format(
        f"{chance:.2g}"
    )


def lattice(all_rows: Sequence[Row]) -> list[str]:
    """How many heads are near an integer shift: of the sharp ones of all layers; and of all heads
    of each layer, before → after training, of how many; over all seeds.
    """
    columns = {"rate": _rate, "seeds": _seeds, "sharp and near, of sharp": _sharp_and_near}
    return _table([*filter(_moves, all_rows)], columns, _near_before_after)


def _moves(row: Row) -> bool:
    """Whether heads with centres learn where they look, or how sharply."""
    return _has_null(row) and _learns_where(row)


def _sharp_and_near(row: Row) -> str:
    layers = [layer for run in row.runs for layer in run["layers"]]
    near, sharp = (sum(layer[name] for layer in layers) for name in ("sharp_near", "sharp"))
    return f"{near} of {sharp}"


def _near_before_after(row: Row, layer: int) -> str:
    before, after = (
        sum(round(run[when][layer]["near"] * run[when][layer]["heads"]) for run in row.runs)
        for when in ("untrained", "layers")
    )
    return f"{before} → {after} of {sum(run['layers'][layer]['heads'] for run in row.runs)}"


def over_all_outputs(all_rows: Sequence[Row]) -> list[str]:
    """The distance to the nearest convolution of any size over the outputs in the middle, and over
    all; means over seeds.
    """
    return _table(_with_attention(all_rows), {"seeds": _seeds}, _of_any_size)


def _of_any_size(row: Row, layer: int) -> str:
    names = ("middle", "by_size")
    return ", ".join(_mean([run["layers"][layer][name][-1] for run in row.runs]) for name in names)


def moved(all_rows: Sequence[Row]) -> list[str]:
    """How far τ (in tokens) and log α moved in each layer, means over heads and seeds."""
    return _table([*filter(_moves, all_rows)], {"rate": _rate, "seeds": _seeds}, _moved_in)


def _moved_in(row: Row, layer: int) -> str:
    names = ("moved", "log_alpha_moved")
    return ", ".join(table.cell(row.runs, "layers", layer, name, _mean) for name in names)


def heads(all_rows: Sequence[Row]) -> list[str]:
    """The heads of the first and of the last layer after training (before → after), and the nulls;
    means over seeds.
    """
    lines = [
        "| start | layer | taps anywhere | sharp null | orders null | distinct shifts | near | median α | moved, mean and most |",
        "|---|---:|" + "---:|" * 7,
    ]
    for row in _with_attention(all_rows):
        runs = row.runs
        for layer in ENDS:
            nulls = ("anywhere", "anywhere_sharp", "anywhere_orders")
            cells = [table.cell(runs, "layers", layer - 1, name, _mean) for name in nulls]
            cells[1] = _null(row, layer - 1)
            cells += [paired(runs, layer - 1, name) for name in ("distinct", "near", "alpha")]
            moved = [
                table.cell(runs, "layers", layer - 1, name, _mean)
                for name in ("moved", "moved_most")
            ]
            lines.append(
                f"| {row.label} | {layer} | {' | '.join(cells)} | {', '.join(dict.fromkeys(moved))} |"
            )
    return lines


def sharpening(all_rows: Sequence[Row]) -> list[str]:
    """The distance before, with the trained α and W_h at the first centres, and after; means over
    seeds.
    """
    return _table([*filter(_moves, all_rows)], {"rate": _rate}, _sharpened)


def _sharpened(row: Row, layer: int) -> str:
    after = ("anywhere_first_centres", "anywhere")
    cells = [table.cell(row.runs, "untrained", layer, "anywhere", _mean)]
    cells += [table.cell(row.runs, "layers", layer, name, _mean) for name in after]
    return " → ".join(cells)


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
    shown = [row for row in _with_attention(all_rows) if _learns_where(row)]
    return _table(shown, {"seeds": _seeds}, _looking)


def _looking(row: Row, layer: int) -> str:
    return ", ".join(paired(row.runs, layer, name) for name in ("reach", "width", "peak"))


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
    return _table(_with_attention(all_rows), {}, partial(_substituted, sizes))


def _substituted(sizes: Sequence[int], row: Row, layer: int) -> str:
    lost = [table.cell(row.runs, "layers", layer, f"lost {size}", _tenths) for size in sizes]
    explained = [
        table.cell(row.runs, "layers", layer, f"explained {size}", _mean) for size in sizes
    ]
    return f"{' / '.join(lost)}, {' / '.join(explained)}"


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


def _mean(numbers: Sequence[float]) -> str:
    return f"{sum(numbers) / len(numbers):.2f}"


def _tenths(numbers: Sequence[float]) -> str:
    return f"{sum(numbers) / len(numbers):.1f}"
