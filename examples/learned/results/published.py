"""``python -m examples.learned.results.published``: the answer and the tables of docs/learned.md and
docs/learned_details.md.

They are made from the results that are committed with them.  When runs have ended:

    python -m examples.learned.results.published collect RUNS learned_cifar    # into docs/results, in few digits
    python -m examples.learned.results.published figures RUNS --data DIR       # into docs/figures/learned_cifar.json
    python -m examples.learned.results.published write                         # both into the pages, quotations into claims
    python docs/figures.py --write

A table without results says so, and a test names numbers in the text around the tables that are in
none of them.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.learned.command import read
from examples.learned.data import BadInput
from examples.learned.results import figures, rows, sentences, table
from examples.learned.results.measurements import RULER
from examples.learned.results.stored import finished
from examples.learned.running.console import ended
from examples.learned.running.files import records, replaced
from examples.learned.training import CHECKPOINT, RESULT
from examples.learned.variants import VARIANTS

FOLDER = Path(__file__).parents[3] / "docs" / "results"
"""Where the committed results are."""
DOCS = FOLDER.parent
PAGES = (DOCS / "learned.md", DOCS / "learned_details.md")
CLAIMED = DOCS.parent / "verify" / "theory" / "measured.py"
"""What claims quote of the pages, a module that ``write`` writes."""
CLAIMS = DOCS / "claims.md"
DRAWN = DOCS / "figures" / "learned_cifar.json"
"""What :mod:`examples.learned.results.figures` wrote of the CIFAR-10 runs; docs/figures.py draws
it.
"""
FIGURES = 4
"""The significant digits that are kept of a measurement."""
UNUSED = ("settings",)
"""What a committed result leaves out: its command says it."""

PLANNED = (
    *(
        "quadratic",
        "local",
        "from-conv",
        "covariance",
        "relative",
        "relative-content",
        "frozen",
        "frozen-local",
        "frozen-centres",
    ),
    *(
        "local-scaled",
        "local-padded",
        "quadratic-16",
        "quadratic-cutmix",
        "conv3",
        "conv7",
        "conv9",
        "resnet18",
    ),
)
"""The variants to be trained on CIFAR-10."""
OTHERWISE = {
    "learned_cifar_sgd": ("the paper's SGD and schedule", 1),
    "learned_cifar_shuffled": ("train labels in a random order", rows.SHOWN),
}
"""Results of CIFAR-10 runs that are trained in another way: how, and the rate of where heads look."""
NONE = [
    "*Not run yet: there is no result on CIFAR-10 of runs in which centres can move, and so no answer for images.*"
]


def collected(folders: Sequence[Path], seeds: Sequence[int] | None) -> list[dict[str, Any]]:
    """The results of all finished runs below folders, in the order of variants and seeds, in few
    digits.

    Args:
        folders: searched with all folders in them.
        seeds: those that are taken; None for all.

    Raises:
        BadInput: there is none, one is damaged or measured by an older ruler, or a variant and seed
            occurs twice.
    """
    results = {}
    for path in [path for folder in folders for path in sorted(folder.rglob(f"seed-*/{RESULT}"))]:
        (result,) = records(path, (*table.KEYS, "variant"))
        if seeds is not None and result["seed"] not in seeds:
            continue
        if result.get("ruler") != RULER:
            raise BadInput(
                f"{path}: measured by an older ruler (give the command that trained it: it measures it anew)"
            )
        key = (list(VARIANTS).index(result["variant"]), result["seed"])
        if key in results:
            raise BadInput(
                f"{path}: a second run of {result['variant']}, seed {result['seed']} (give its folder alone)"
            )
        results[key] = _in_few_digits({k: v for k, v in result.items() if k not in UNUSED})
    if not results:
        raise BadInput(
            f"{', '.join(map(str, folders))}: no finished run (give the --out of python -m examples.learned)"
        )
    return [results[key] for key in sorted(results)]


def tuned(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The accuracy on held-out pictures of all finished runs below folders, measured or not, by
    variant, rate and seed.

    Raises:
        BadInput: there is none, or one is damaged.
    """
    results = {}
    for path in [path for folder in folders for path in sorted(folder.rglob(CHECKPOINT))]:
        run = finished(path.parent)
        if run is not None:
            results[run["variant"], run["rate"], run["seed"]] = _in_few_digits(run)
    if not results:
        raise BadInput(
            f"{', '.join(map(str, folders))}: no finished run (give the --out of python -m examples.learned)"
        )
    return [results[key] for key in sorted(results)]


def _in_few_digits(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{FIGURES}g}")
    if isinstance(value, list):
        return [_in_few_digits(part) for part in value]
    if isinstance(value, dict):
        return {key: _in_few_digits(part) for key, part in value.items()}
    return value


def committed(name: str) -> rows.Results:
    """The committed results of an experiment by variant; empty if there are none yet."""
    results: rows.Results = {}
    path = FOLDER / f"{name}.json"
    for result in json.loads(path.read_text(encoding="utf-8")) if path.exists() else []:
        results.setdefault(result["variant"], []).append(result)
    return results


def blocks() -> dict[str, list[str]]:
    """Every part of the pages that is made from results, as lines, by its name there."""
    on_digits = {rate: committed(f"learned_digits_{rate}") for rate in rows.RATES}
    digits = rows.rows(on_digits)
    cifar = committed("learned_cifar")
    trained, missing = rows.rows({rows.SHOWN: cifar}), []
    for name, (how, rate) in OTHERWISE.items():
        trained += rows.rows({rate: committed(name)}, f", {how}")
        missing += [] if committed(name) else [how]
    tuning = committed("learned_tuning")
    summary = json.loads(DRAWN.read_text(encoding="utf-8")) if DRAWN.exists() else None
    of_cifar = {
        "cifar": lambda: [*rows.by_layer(trained), *absent(cifar, PLANNED, missing)],
        "cifar-compared": lambda: rows.compared(trained),
        "cifar-lattice": lambda: rows.lattice(trained),
        "cifar-lattice-seeds": lambda: rows.lattice(rows.by_seed(trained)),
        "cifar-compared-seeds": lambda: rows.compared(rows.by_seed(trained)),
        "cifar-all": lambda: rows.over_all_outputs(trained),
        "cifar-moved": lambda: rows.moved(trained),
        "cifar-seeds": lambda: rows.by_layer(rows.by_seed(trained)),
        "cifar-accuracy": lambda: accuracy(trained),
        "cifar-sharpening": lambda: rows.sharpening(trained),
        "cifar-intervals": lambda: rows.intervals(cifar),
        "cifar-heads": lambda: rows.heads(trained),
        "cifar-looks": lambda: rows.looks(trained),
        "cifar-substitution": lambda: rows.substitution(trained, (3, 9)),
        "cifar-runs": lambda: table.stated([run for row in trained for run in row.runs]),
    }
    return {
        "answer": answer(cifar, on_digits),
        "figure": figures.figure(summary),
        "figures": figures.others(summary),
        "tuning": rows.tuning(tuning),
        "digits": rows.by_layer(digits),
        "compared": rows.compared(digits),
        "lattice": rows.lattice(digits),
        "sharpening": rows.sharpening(digits),
        "intervals": rows.intervals(committed(f"learned_digits_{rows.SHOWN}")),
        "heads": rows.heads(digits),
        "looks": rows.looks(digits),
        "substitution": rows.substitution(digits, (3,)),
        "digits-runs": table.stated([run for row in digits for run in row.runs]),
        **{name: lines() if trained else NONE for name, lines in of_cifar.items()},
    }


def answer(cifar: rows.Results, digits: dict[int, rows.Results]) -> list[str]:
    """The answer, once all that it speaks of has run.

    Raises:
        ValueError: a conclusion no longer holds.
    """
    sgd, shuffled = (committed(name) for name in OTHERWISE)
    if not (sgd and shuffled and cifar.keys() >= {*PLANNED}):
        return NONE
    return sentences.answer(sentences.starts_of(cifar, sgd, shuffled, digits))


def accuracy(all_rows: Sequence[rows.Row]) -> list[str]:
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
        by_epoch = ", ".join(f"{100 * sum(shares) / len(shares):.1f}" for shares in epochs)
        lines.append(
            f"| {label} | {runs[0]['parameters']:,} | {rows.seeds(runs)} | {seconds:.0f} | {test} | {by_epoch} |"
        )
    return lines


def absent(results: rows.Results, planned: Sequence[str], more: Sequence[str]) -> list[str]:
    """A sentence about the planned variants without results, and what more there is none of;
    nothing if there is all.
    """
    missing = [VARIANTS[variant].label for variant in planned if variant not in results]
    missing += more
    return ["", f"*Not run yet: {'; '.join(missing)}.*"] if missing else []


def quoted_by_claims() -> str:
    """The text of the module that claims quote."""
    cifar, shuffled = (committed(f"learned_cifar{how}") for how in ("", "_shuffled"))
    return sentences.module(cifar, shuffled, committed(f"learned_digits_{rows.SHOWN}"))


def with_blocks(page: str) -> str:
    """A page with its blocks as they are now, each between a comment with its name and one that
    ends it.
    """
    for name, lines in blocks().items():
        start, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, found, rest = page.partition(start)
        if found:
            page = before + start + "\n" + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2]
    return page


def merged(name: str, results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results beside the committed ones of other variants and seeds, in the order of both.

    Raises:
        BadInput: those were measured by an older ruler.
    """
    kept = [run for runs in committed(name).values() for run in runs]
    if any(run["ruler"] != RULER for run in kept):
        raise BadInput(
            f"{FOLDER / name}.json: measured by an older ruler (move it away, and give all runs)"
        )
    every = {(list(VARIANTS).index(run["variant"]), run["seed"]): run for run in (*kept, *results)}
    return [every[key] for key in sorted(every)]


def commit(name: str, results: Sequence[dict[str, Any]]) -> None:
    """Write results into docs/results, one on a line."""
    FOLDER.mkdir(exist_ok=True)
    lines = [json.dumps(result, separators=(",", ":"), ensure_ascii=False) for result in results]
    replaced(FOLDER / f"{name}.json", "[\n" + ",\n".join(lines) + "]\n")


def done(options: argparse.Namespace) -> str:
    """Do what the command asks, and return what it prints.

    Raises:
        BadInput: there is nothing to collect, or it does not fit together.
    """
    if options.action == "collect":
        commit(options.name, merged(options.name, collected(options.folders, options.seeds)))
        return ""
    if options.action == "tuning":
        commit("learned_tuning", tuned(options.folders))
        return ""
    if options.action == "write":
        for page in PAGES:
            replaced(page, with_blocks(page.read_text(encoding="utf-8")))
        replaced(CLAIMED, quoted_by_claims())
        replaced(CLAIMS, sentences.with_claims(CLAIMS.read_text(encoding="utf-8")))
        return ""
    if options.action == "figures":
        summary = figures.needed(figures.summary_in(options.folder, read(options.data)))
        if DRAWN.exists():
            summary = figures.beside(json.loads(DRAWN.read_text(encoding="utf-8")), summary)
        replaced(DRAWN, json.dumps(summary, separators=(",", ":")) + "\n")
        return ""
    return "\n".join(
        "\n".join([f"<!-- {name} -->", *lines, ""]) for name, lines in blocks().items()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, add results, or write the pages; the exit code is 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.learned.results.published", description=__doc__
    )
    actions = parser.add_subparsers(dest="action")
    collect = actions.add_parser(
        "collect", help="commit the finished runs of folders, beside those that are committed"
    )
    collect.add_argument("folders", type=Path, nargs="+", metavar="folder")
    collect.add_argument("name", help="of the file in docs/results")
    collect.add_argument("--seeds", nargs="+", type=int, metavar="N", help="(default: all)")
    tuning = actions.add_parser(
        "tuning", help="commit the held-out accuracy of the runs by which the rate is chosen"
    )
    tuning.add_argument("folders", type=Path, nargs="+", metavar="folder")
    drawn = actions.add_parser(
        "figures",
        help="commit what is drawn of the finished CIFAR-10 runs of a folder, in place of the same variants",
    )
    drawn.add_argument("folder", type=Path)
    drawn.add_argument("--data", type=Path, help="as python -m examples.learned had it")
    actions.add_parser(
        "write", help="put the tables into the pages, and into what claims quote of them"
    )
    options = parser.parse_args(arguments)
    return ended(lambda _console: done(options), "stopped")


if __name__ == "__main__":
    sys.exit(main())
