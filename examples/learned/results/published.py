"""``python -m examples.learned.results.published``: the tables of docs/learned.md, from the results that are committed with it.

``collect FOLDER NAME`` makes the finished runs of a folder a file of them, in few digits; ``write`` puts the tables into the page.
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
PAGE = FOLDER.parent / "learned.md"
FIGURES = 4
"""The significant digits that are kept of a measurement."""
UNUSED = ("settings",)
"""What a committed result leaves out: its command says it."""

RATES = (1, 5, 25, 100)
"""The rates of where heads look, as multiples of the network's."""
SHOWN = 25
"""The rate at which heads and substitution are shown."""
LAYERS = range(1, 7)

Results = dict[str, list[dict[str, Any]]]


def collected(folder: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The results of all finished runs of these seeds below a folder, in the order of variants and seeds, in few digits."""
    results = [records(path, table.KEYS)[0] for seed in seeds for path in folder.rglob(f"seed-{seed}/{RESULT}")]
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
    digits = {where: committed(f"learned_digits_{where}") for where in RATES}
    return {"digits": by_rate(digits, "anywhere"), "heads": heads(digits), "substitution": substitution(digits)}


def by_rate(results: dict[int, Results], name: str) -> list[str]:
    """A measurement of each start, layer by layer, for each rate of where heads look; before → after, means over seeds."""
    lines = ["| start | rate of τ, log α | Σ rate | test, % | " + " | ".join(f"layer {n}" for n in LAYERS) + " |"]
    lines += ["|---|---:|---:|---:|" + "---:|" * len(LAYERS)]
    for variant, where, runs in _rows(results):
        test = table.mean_and_deviation([run["test_accuracy"] for run in runs], scale=100)
        cells = [
            " → ".join(table.cell(runs, when, n - 1, name, _mean) for when in ("untrained", "layers")) for n in LAYERS
        ]
        learns = not (VARIANTS[variant].frozen or VARIANTS[variant].kernel)
        rate = f"× {where} | {runs[0]['budget']:.2g}" if learns else "– | –"
        lines.append(f"| {VARIANTS[variant].label} | {rate} | {test} | {' | '.join(cells)} |")
    return lines


def heads(results: dict[int, Results]) -> list[str]:
    """Where the heads of the first and of the last layer are after training at ``SHOWN``, and the nulls; means over seeds."""
    lines = [
        "| start | layer | taps anywhere | sharp null | orders null | distinct shifts | near | median α | moved, mean and most |",
        "|---|---:|" + "---:|" * 7,
    ]
    names = ("anywhere", "anywhere_sharp", "anywhere_orders", "distinct", "near", "alpha")
    for variant, where, runs in _rows(results):
        if where != SHOWN or VARIANTS[variant].kernel:
            continue
        for layer in (1, 6):
            cells = [table.cell(runs, "layers", layer - 1, name, _mean) for name in names]
            moved = ", ".join(table.cell(runs, "layers", layer - 1, name, _mean) for name in ("moved", "moved_most"))
            lines.append(f"| {VARIANTS[variant].label} | {layer} | {' | '.join(cells)} | {moved} |")
    return lines


def substitution(results: dict[int, Results]) -> list[str]:
    """Accuracy lost with the nearest 3 × 3 convolution in a layer's place, and R² of one on real inputs; means over seeds."""
    lines = ["| start | " + " | ".join(f"layer {n}" for n in LAYERS) + " |", "|---|" + "---:|" * len(LAYERS)]
    for variant, where, runs in _rows(results):
        if where != SHOWN or VARIANTS[variant].kernel:
            continue
        cells = []
        for layer in range(len(LAYERS)):
            lost = table.cell(runs, "layers", layer, "lost 3", lambda numbers: f"{sum(numbers) / len(numbers):.1f}")
            cells.append(f"{lost}, {table.cell(runs, 'layers', layer, 'explained 3', _mean)}")
        lines.append(f"| {VARIANTS[variant].label} | {' | '.join(cells)} |")
    return lines


def _rows(results: dict[int, Results]) -> list[tuple[str, int, list[dict[str, Any]]]]:
    """(Variant, rate, runs), one variant after the other."""
    variants = [variant for variant in VARIANTS if any(variant in of_rate for of_rate in results.values())]
    return [(variant, where, of[variant]) for variant in variants for where, of in results.items() if variant in of]


def _mean(numbers: Sequence[float]) -> str:
    return f"{sum(numbers) / len(numbers):.2f}"


def with_tables(page: str) -> str:
    """The page with its tables as they are now, each between a comment with its name and one that ends it."""
    for name, lines in tables().items():
        start, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, _, rest = page.partition(start)
        page = before + start + "\n" + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2]
    return page


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or add results; the exit code is 0."""
    parser = argparse.ArgumentParser(prog="python -m examples.learned.results.published", description=__doc__)
    actions = parser.add_subparsers(dest="action")
    collect = actions.add_parser("collect", help="commit the finished runs of a folder")
    collect.add_argument("folder", type=Path)
    collect.add_argument("name", help="of the file in docs/results")
    collect.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    actions.add_parser("write", help="put the tables into docs/learned.md")
    options = parser.parse_args(arguments)
    if options.action == "collect":
        FOLDER.mkdir(exist_ok=True)
        text = json.dumps(collected(options.folder, options.seeds), separators=(",", ":"), ensure_ascii=False)
        replaced(FOLDER / f"{options.name}.json", text.replace('{"command"', '\n{"command"') + "\n")
        return 0
    if options.action == "write":
        replaced(PAGE, with_tables(PAGE.read_text(encoding="utf-8")))
        return 0
    for name, lines in tables().items():
        print("\n".join([f"<!-- {name} -->", *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
