"""``python -m examples.learned.results.published``: the tables of docs/learned.md, from the results that are committed with it.

``collect FOLDER NAME`` adds the finished runs of a folder to them, in few digits.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.learned.results import table
from examples.learned.running.files import records, replaced
from examples.learned.training import RESULT
from examples.learned.variants import VARIANTS

FOLDER = Path(__file__).parents[3] / "docs" / "results"
"""Where the committed results are."""
FIGURES = 4
"""The significant digits that are kept of a measurement."""
UNUSED = ("settings",)
"""What a committed result leaves out but for the preset: the command says it."""

Results = dict[str, list[dict[str, Any]]]


def collected(folder: Path) -> list[dict[str, Any]]:
    """The results of all finished runs below a folder, in the order of variants and seeds, in few digits."""
    results = [records(path, table.KEYS)[0] for path in folder.rglob(RESULT)]
    results.sort(key=lambda result: (list(VARIANTS).index(result["variant"]), result["seed"]))
    return [_in_few_digits({k: v for k, v in result.items() if k not in UNUSED}) for result in results]


def _in_few_digits(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{FIGURES}g}")
    if isinstance(value, list):
        return [_in_few_digits(part) for part in value]
    if isinstance(value, dict):
        return {key: _in_few_digits(part) for key, part in value.items()}
    return value


def committed(name: str) -> Results:
    """The committed results of an experiment by variant."""
    results: Results = {}
    for result in json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")):
        results.setdefault(result["variant"], []).append(result)
    return results


def tables() -> dict[str, list[str]]:
    """Every table of docs/learned.md, as lines, by its name there."""
    cifar = committed("learned_cifar")
    digits = {where: committed(f"learned_digits_{where}") for where in (1, 5, 25, 100)}
    return {
        "accuracy": accuracy(cifar),
        "anywhere": table.by_layer(cifar, "anywhere", paired=True),
        "sharp": table.by_layer(cifar, "anywhere_sharp", paired=False),
        "heads": heads(cifar),
        "digits": by_rate(digits),
    }


def accuracy(results: Results) -> list[str]:
    """The test accuracy of every variant, and how far its heads could have moved."""
    lines = ["| variant | seeds | test, % | Σ rate | mean move of τ, first … last layer |", "|---|---|---:|---:|---|"]
    for variant, runs in results.items():
        seeds = ", ".join(str(run["seed"]) for run in runs)
        test = table.mean_and_deviation([run["test_accuracy"] for run in runs], scale=100)
        moved = [table.cell(runs, "layers", n, "moved", _mean) for n in range(len(runs[0]["layers"]))]
        budget = f"{runs[0]['budget']:.1f}" if set(moved) - {"–", "0.00"} else "–"
        lines.append(f"| {VARIANTS[variant].label} | {seeds} | {test} | {budget} | {' '.join(moved) or '–'} |")
    return lines


def heads(results: Results) -> list[str]:
    """Where the heads of each layer are, for heads with centres: the means over seeds, before → after."""
    count = max(len(run["layers"]) for runs in results.values() for run in runs)
    lines = [
        "| variant | | " + " | ".join(f"layer {n + 1}" for n in range(count)) + " |",
        "|---|---|" + "---:|" * count,
    ]
    rows = (
        ("distinct", "distinct shifts"),
        ("near", "near the lattice"),
        ("alpha", "median α"),
        ("peak", "largest weight"),
    )
    for variant, runs in results.items():
        if not runs[0]["layers"] or "distinct" not in runs[0]["layers"][0]:
            continue
        for name, label in rows:
            cells = [
                " → ".join(table.cell(runs, when, n, name, _mean) for when in ("untrained", "layers"))
                for n in range(count)
            ]
            lines.append(f"| {VARIANTS[variant].label} | {label} | {' | '.join(cells)} |")
    return lines


def by_rate(results: dict[int, Results]) -> list[str]:
    """The distance to N_h taps anywhere of each start, layer by layer, for each rate of where heads look."""
    lines = ["| start | rate of τ, log α | seeds | test, % | " + " | ".join(f"layer {n}" for n in range(1, 7)) + " |"]
    lines += ["|---|---:|---:|---:|" + "---:|" * 6]
    for variant in dict.fromkeys(variant for runs in results.values() for variant in runs):
        for where, of_rate in results.items():
            if runs := of_rate.get(variant):
                test = table.mean_and_deviation([run["test_accuracy"] for run in runs], scale=100)
                cells = [
                    " → ".join(table.cell(runs, when, n, "anywhere", _mean) for when in ("untrained", "layers"))
                    for n in range(6)
                ]
                rate = "–" if VARIANTS[variant].frozen or VARIANTS[variant].kernel else f"× {where}"
                lines.append(f"| {VARIANTS[variant].label} | {rate} | {len(runs)} | {test} | {' | '.join(cells)} |")
    return lines


def _mean(numbers: Sequence[float]) -> str:
    return f"{sum(numbers) / len(numbers):.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or add results; the exit code is 0."""
    parser = argparse.ArgumentParser(prog="python -m examples.learned.results.published", description=__doc__)
    actions = parser.add_subparsers(dest="action")
    collect = actions.add_parser("collect", help="commit the finished runs of a folder")
    collect.add_argument("folder", type=Path)
    collect.add_argument("name", help="of the file in docs/results")
    options = parser.parse_args(arguments)
    if options.action == "collect":
        FOLDER.mkdir(exist_ok=True)
        text = json.dumps(collected(options.folder), separators=(",", ":"), ensure_ascii=False)
        replaced(FOLDER / f"{options.name}.json", text.replace('{"command"', '\n{"command"') + "\n")
        return 0
    for name, lines in tables().items():
        print("\n".join([f"<!-- {name} -->", *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
