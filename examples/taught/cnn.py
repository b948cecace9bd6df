"""The command ``cnn``: a trained CNN goes on learning, as itself and as attention."""

import argparse
import copy
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from torch import nn

from examples.learned.data import BadInput, Pictures
from examples.learned.results.table import mean_and_deviation
from examples.taught.finetuning import Course, accuracies, continue_training, layers_of
from examples.taught.networks import (
    WAYS,
    Heads,
    as_attention,
    cnn_of,
    enlarged,
    parameters_of,
    read_once,
    trained_on,
)
from examples.taught.parts import Part
from examples.taught.tasks import TASKS, task_of, validation_of

RATE = 1e-3
"""The rate where none has been chosen on validation."""
RATES = {
    ("digits", "shifted"): {
        "cnn": 3e-3,
        "cnn-longer": 1e-3,
        "cnn-wider": 1e-3,
        "cnn-hidden": 3e-3,
        "cnn-hidden-longer": 1e-3,
        "heads": 3e-3,
        "moving": 1e-3,
    },
    ("CIFAR-10", "same"): {
        "cnn": 1e-3,
        "cnn-longer": 3e-4,
        "cnn-wider": 3e-4,
        "cnn-hidden": 3e-4,
        "heads": 3e-4,
    },
    ("CIFAR-10", "apart"): {
        "cnn": 1e-3,
        "cnn-longer": 3e-3,
        "cnn-wider": 1e-3,
        "cnn-hidden": 1e-3,
        "cnn-hidden-longer": 3e-3,
        "heads": 1e-3,
    },
}
"""For pictures and task, the rate of each way that was best on validation (``--validate``)."""
LEAST = 24
"""The least side of pictures on which two squares of 8 × 8 pixels can be apart."""


def options_of(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument(
        "--data",
        type=Path,
        help="folder that examples.learned.fetch wrote (default: scikit-learn's digits)",
    )
    parser.add_argument("--ways", nargs="+", choices=[*WAYS], default=[*WAYS])
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS], default=["same", "shifted"])
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)"
    )
    parser.add_argument("--epochs", type=int, default=3, help="of going on (default: %(default)s)")
    parser.add_argument(
        "--longer",
        type=int,
        default=20,
        help="times as many epochs where a way is longer (default: %(default)s)",
    )
    parser.add_argument(
        "--train", type=int, default=1000, help="pictures of an epoch (default: %(default)s)"
    )
    parser.add_argument(
        "--test", type=int, metavar="N", help="test pictures to measure on (default: all)"
    )
    parser.add_argument("--batch", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        help="learning rates, a run for each (default: for every way the one that validation chose)",
    )
    parser.add_argument(
        "--validate",
        action="store_true",
        help="measure on a tenth of the train pictures, which are left out of all training",
    )
    parser.add_argument(
        "--heads", type=int, default=4, help="added to each layer (default: %(default)s)"
    )
    parser.add_argument(
        "--key-dim", type=int, default=32, help="D_k of all heads (default: %(default)s)"
    )
    parser.add_argument(
        "--alpha",
        type=float,
        default=4.0,
        help="of the kernel's heads where they move (default: %(default)s)",
    )
    parser.add_argument(
        "--pretrained",
        type=int,
        help="epochs of the CNN's own training (default: 30, or 3 with --data)",
    )
    parser.add_argument(
        "--width", type=int, default=16, help="first channels of the CNN (default: %(default)s)"
    )


def parts_of(options: argparse.Namespace) -> list[Part]:
    """One part for every seed, task, way and rate.

    Raises:
        BadInput: too many pictures, or the data cannot be used.
    """
    pictures = read_once(options.data)
    cnn_of(pictures, options.width)
    check_sizes(options, pictures)
    large = options.data is not None
    about = {
        "command": "cnn",
        "pretrained": options.pretrained or (3 if large else 30),
        "width": options.width,
        "test": options.test,
        "data": str(options.data.resolve()) if large else None,
        "files": pictures.digests,
    }
    parts = []
    for seed in dict.fromkeys(options.seeds):
        start = {**about, "seed": seed}
        for task, way in product(dict.fromkeys(options.tasks), dict.fromkeys(options.ways)):
            known = RATES.get((pictures.name, task), {}).get(way, RATE)
            epochs = options.epochs * (options.longer if WAYS[way].longer else 1)
            for rate in options.rates or [known]:
                course = Course(epochs, options.batch, rate, 2 if large else 8)
                more = {
                    "task": task,
                    "way": way,
                    "train": options.train,
                    "validate": options.validate,
                    "course": asdict(course),
                    "heads": asdict(Heads(options.heads, options.key_dim, options.alpha)),
                }
                label = f"seed {seed}, {task}, {way}, rate {rate:g}"
                parts.append(Part(label, epochs, {**start, **more}))
    return parts


def check_sizes(options: argparse.Namespace, pictures: Pictures) -> None:
    """Refuse options that do not suit the pictures.

    Raises:
        BadInput: one does not.
    """
    most = len(pictures.train)
    if options.train > most:
        raise BadInput(f"--train is {options.train}, and there are {most} train pictures")
    channels, *size = pictures.train.shape[1:]
    if "apart" in options.tasks and (channels != 3 or min(size) < LEAST):
        shape = " × ".join(map(str, (channels, *size)))
        raise BadInput(
            f"--tasks apart needs pictures of 3 × {LEAST} × {LEAST} or more, not {shape}"
        )
    if options.key_dim < 4:
        raise BadInput(f"--key-dim is {options.key_dim}, and positions have three numbers (try 4)")


@lru_cache(maxsize=1)
def _pictures(data: str | None, train: int, validate: bool) -> tuple[Pictures, int]:
    """The pictures, and how many of the first train pictures an epoch has."""
    pictures = read_once(None if data is None else Path(data))
    return validation_of(pictures, train) if validate else (pictures, train)


@lru_cache(maxsize=4)
def _first(seed: int, epochs: int, width: int, hidden: int, *which: Any) -> nn.Sequential:
    """The CNN of a seed, with which several parts start and which none changes."""
    return trained_on(_pictures(*which)[0], seed, epochs, width, hidden)


def done(part: Part, tell: Callable[[int, str], None]) -> dict[str, Any]:
    """Train the CNN of a seed, and go on in one way.

    Args:
        part: a part from :func:`parts_of`.
        tell: progress callback with the epochs done and a status.

    Returns:
        Its measurements.
    """
    about = part.about
    tell(0, "the CNN's own training")
    which = (about["data"], about["train"], about["validate"])
    (pictures, train), seed = _pictures(*which), about["seed"]
    way, heads, course = WAYS[about["way"]], Heads(**about["heads"]), Course(**about["course"])
    size = {"width": about["width"], "hidden": 0}
    if way.more:
        size = enlarged(pictures, about["width"], way.more, heads)
    network: nn.Module = _first(seed, about["pretrained"], size["width"], size["hidden"], *which)
    task = task_of(about["task"], pictures, train, about["test"], int(about["validate"]))
    if way.attention:
        network = as_attention(network, way, heads, seed, pictures.train)
    else:
        network = copy.deepcopy(network)
    before = accuracies(network, task)
    epochs = continue_training(network, task, course, seed, part.label, tell)
    tell(part.steps, "measured")
    layers = []
    if not about["validate"]:
        own = next(iter(task.tests.values()))[0]
        layers = layers_of(network, own, heads.heads, course.audited)
    return {
        "seed": seed,
        "task": about["task"],
        "way": about["way"],
        "rate": course.rate,
        "validate": about["validate"],
        "parameters": parameters_of(network),
        "before": before,
        "after": accuracies(network, task),
        "epochs": epochs,
        "layers": layers,
    }


def gathered(results: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the metrics lines of all parts."""
    keys = ("seed", "task", "way", "rate")
    lines = [{**{key: run[key] for key in keys}, **row} for run in results for row in run["epochs"]]
    return {"runs": results}, lines


Runs = list[dict[str, Any]]
"""Runs that differ in their seed alone."""


def table(summary: dict[str, Any]) -> str:
    """For each task, where accuracy goes, and how convolution-like the layers remain."""
    lines: list[str] = []
    for task in dict.fromkeys(run["task"] for run in summary["runs"]):
        kinds: dict[tuple[str, float], Runs] = {}
        for run in summary["runs"]:
            if run["task"] == task:
                kinds.setdefault((run["way"], run["rate"]), []).append(run)
        lines += ["", *_accuracy_table(task, kinds.values())]
        layered = [runs for runs in kinds.values() if runs[0]["layers"]]
        if layered:
            lines += ["", *_layer_table(task, layered)]
    return "\n".join(lines).lstrip() + "\n"


def _accuracy_table(task: str, kinds: Iterable[Runs]) -> list[str]:
    """The lines of a task's table: test accuracy before and after, loss, and CPU seconds."""
    kinds = list(kinds)
    tests = [*kinds[0][0]["after"]]
    held = "validation" if kinds[0][0]["validate"] else "test"
    columns = [f"{tests[0]}, {held}, before, %", *(f"{name}, after, %" for name in tests)]
    head = ["task", "way", "rate", "parameters", *columns, "loss at last", "CPU seconds"]
    lines = [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * (len(head) - 2)]
    for runs in kinds:
        cells = [task, WAYS[runs[0]["way"]].label, f"{runs[0]['rate']:g}"]
        cells.append(f"{runs[0]['parameters']:,}")
        for when, names in (("before", tests[:1]), ("after", tests)):
            for name in names:
                cells.append(mean_and_deviation([run[when][name] for run in runs], scale=100))
        for key, digits in (("loss", 3), ("seconds", 0)):
            mean = statistics.fmean(run["epochs"][-1][key] for run in runs)
            cells.append(f"{mean:.{digits}f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _layer_table(task: str, kinds: list[Runs]) -> list[str]:
    """The lines of a task's table of layers that learned."""
    keys = ("distance", "share", "swayed", "α", "moved, mean and most, in pixels")
    lines = [f"| task | way | layer | {' | '.join(keys)} |", "|---|---|---|---:|---:|---:|---|---|"]
    for runs in kinds:
        for rows in zip(*(run["layers"] for run in runs), strict=True):
            cells = [task, WAYS[runs[0]["way"]].label, rows[0]["layer"]]
            cells += [mean_and_deviation([row[key] for row in rows], digits=4) for key in keys[:3]]
            least, most = min(row["alpha"][0] for row in rows), max(row["alpha"][1] for row in rows)
            mean = statistics.fmean(row["moved"][0] for row in rows)
            furthest = max(row["moved"][1] for row in rows)
            cells += [f"{least:.2f} to {most:.2f}", f"{mean:.2f}, {furthest:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines
