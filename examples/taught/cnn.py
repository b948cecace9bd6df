"""The command ``cnn``: fine-tune trained CNNs, as convolutions and as attention."""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from examples.learned.data import BadInput
from examples.learned.results.table import mean_and_deviation
from examples.taught.converted import WAYS
from examples.taught.finetuning import (
    TASKS,
    Course,
    continue_training,
    day_one,
    layers_of,
    shifted_test,
)
from examples.taught.networks import cnn_of, read_once, trained_cnn, trained_on
from examples.taught.parts import Part

LAYERS = ("stem", "context", "shrink", "depthwise", "mix", "head")
"""The layers of the demo network, in order."""
LARGE = ("stem", "shrink", "context", "shrink_again", "mix", "head")
"""The layers of the network for CIFAR-10 and Fashion-MNIST."""
DIGITS = 1437
"""Pictures to train on."""


def options_of(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument(
        "--data",
        type=Path,
        help="folder that examples.learned.fetch wrote (default: scikit-learn's digits)",
    )
    parser.add_argument(
        "--ways", nargs="+", choices=[*WAYS], default=["cnn", "cnn-longer", "positions", "content"]
    )
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS], default=[*TASKS])
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)"
    )
    parser.add_argument("--epochs", type=int, default=3, help="of going on (default: %(default)s)")
    parser.add_argument(
        "--train",
        type=int,
        default=1000,
        help="pictures to go on with, of digits 1437 at most (default: %(default)s)",
    )
    parser.add_argument(
        "--test", type=int, metavar="N", help="test pictures to measure on (default: all)"
    )
    parser.add_argument("--batch", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument(
        "--rate", type=float, default=1e-3, help="of taps, biases, norms (default: %(default)s)"
    )
    parser.add_argument(
        "--aim-rate", type=float, default=3e-3, help="of α, τ and content (default: %(default)s)"
    )
    parser.add_argument(
        "--alpha", type=float, default=4.0, help="the lowered α (default: %(default)s)"
    )
    parser.add_argument(
        "--key-dim", type=int, default=8, help="D_k of content (default: %(default)s)"
    )
    parser.add_argument(
        "--content-layers",
        nargs="+",
        choices=[*dict.fromkeys((*LAYERS, *LARGE))],
        help="which layers may learn content (default: those after the second; of larger pictures context, mix and head: "
        "pairs of all pixels take long)",
    )
    parser.add_argument(
        "--pretrained",
        type=int,
        help="epochs of the CNN's own training (default: 30, or 3 with --data)",
    )
    parser.add_argument(
        "--width", type=int, default=16, help="first channels of the CNN, with --data (default: 16)"
    )


def parts_of(options: argparse.Namespace) -> list[Part]:
    """For every seed, one part for its network before fine-tuning, and one for every task and way.

    Raises:
        BadInput: too many pictures, or the data or a layer's name cannot be used.
    """
    layers, content, most, pretrained, data = LAYERS, LAYERS[2:], DIGITS, 30, {}
    execution, audited = "dense", 8
    if options.data is not None:
        pictures = read_once(options.data)
        cnn_of(pictures, options.width)
        layers, content, most, pretrained = (
            LARGE,
            ("context", "mix", "head"),
            len(pictures.train),
            3,
        )
        execution, audited = "auto", 2  # many tokens, where positions factorise
        data = {
            "data": str(options.data.resolve()),
            "files": pictures.digests,
            "width": options.width,
        }
    if options.train > most:
        raise BadInput(f"--train is {options.train}, and there are {most} train pictures")
    content = tuple(options.content_layers or content)
    if strange := [name for name in content if name not in layers]:
        raise BadInput(f"--content-layers has {strange[0]}, and the layers are {', '.join(layers)}")
    parts = []
    for seed in dict.fromkeys(options.seeds):
        about = {
            "command": "cnn",
            "seed": seed,
            "pretrained": options.pretrained or pretrained,
            "test": options.test,
        }
        about |= data
        parts.append(Part(f"seed {seed}, before anything learns", 1, about))
        for task, way in product(dict.fromkeys(options.tasks), dict.fromkeys(options.ways)):
            course = Course(
                task,
                options.epochs,
                options.batch,
                options.rate,
                options.aim_rate,
                options.alpha,
                options.key_dim,
                content,
                execution,
                audited,
            )
            more = {
                "way": way,
                "train": options.train,
                "course": {**asdict(course), "content_layers": [*content]},
            }
            parts.append(
                Part(
                    f"seed {seed}, {task}, {way}",
                    options.epochs * WAYS[way].longer,
                    {**about, **more},
                )
            )
    return parts


@lru_cache(maxsize=1)
def _first(
    seed: int, epochs: int, data: str | None, width: int | None
) -> tuple[nn.Sequential, list[Tensor]]:
    """The CNN of a seed, with which several parts start and which none changes; its pictures and
    labels.
    """
    if data is None:
        return trained_cnn(seed, epochs)
    pictures = read_once(Path(data))
    parts = [pictures.train, pictures.test, pictures.train_labels, pictures.test_labels]
    return trained_on(pictures, seed, epochs, width or 0), parts


def done(part: Part, tell: Callable[[int, str], None]) -> dict[str, Any]:
    """Train the CNN of a seed, convert it, and continue training in one way.

    Args:
        part: a part from :func:`parts_of`.
        tell: progress callback with the epochs done and a status.

    Returns:
        ``first``: the measurements of a seed before fine-tuning; or ``run``: those after it.
    """
    about = part.about
    tell(0, "the CNN's own training")
    cnn, (x, test, labels, test_labels) = _first(
        about["seed"], about["pretrained"], about.get("data"), about.get("width")
    )
    test, test_labels = test[: about["test"]], test_labels[: about["test"]]
    if "way" not in about:
        return {"first": {"seed": about["seed"], "ladder": day_one(cnn, test, test_labels)}}
    course = Course(
        **{**about["course"], "content_layers": tuple(about["course"]["content_layers"])}
    )
    parts, way, seed = (
        [x[: about["train"]], test, labels[: about["train"]], test_labels],
        about["way"],
        about["seed"],
    )
    network, epochs = continue_training(cnn, parts, way, course, seed, tell)
    tell(part.steps, "audit")
    layers = layers_of(
        network, shifted_test(test) if course.task == "shifted" else test, course.audited
    )
    run = {"seed": seed, "task": course.task, "way": way, "epochs": epochs, "layers": layers}
    return {"run": {**run, "budget": course.budget(about["train"])}}


def gathered(results: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the metrics lines of all parts."""
    runs = [part["run"] for part in results if "run" in part]
    lines = [
        {**{key: run[key] for key in ("seed", "task", "way")}, **row}
        for run in runs
        for row in run["epochs"]
    ]
    return {"first": [part["first"] for part in results if "first" in part], "runs": runs}, lines


def ladder_table(firsts: list[dict[str, Any]]) -> list[str]:
    """The lines of the table on what lowering α does to converted networks before training."""
    lines = [
        "| α of all layers, nothing learned | greatest difference of a logit, relative | predictions that differ | accuracy, % |",
        "|---:|---|---:|---:|",
    ]
    for rows in zip(*(first["ladder"] for first in firsts), strict=True):
        apart = [row["apart"] for row in rows]
        differ = ", ".join(str(row["predictions"]) for row in rows)
        lines.append(
            f"| {rows[0]['alpha']:g} | {min(apart):.1g} to {max(apart):.1g} | {differ} | "
            f"{mean_and_deviation([row['accuracy'] for row in rows], scale=100)} |"
        )
    return lines


def table(summary: dict[str, Any]) -> str:
    """Three tables: what lowering α does, where accuracy goes, and how convolution-like the layers
    remain.
    """
    lines = ladder_table(summary["first"])
    lines += [
        "",
        "| task | way | before, % | after, % | train loss at last | seconds a run |",
        "|---|---|---:|---:|---:|---:|",
    ]
    kinds = dict.fromkeys((run["task"], run["way"]) for run in summary["runs"])
    grouped = {
        kind: [run for run in summary["runs"] if (run["task"], run["way"]) == kind]
        for kind in kinds
    }
    for (task, way), runs in grouped.items():
        before, after = ([run["epochs"][n]["accuracy"] for run in runs] for n in (0, -1))
        loss = statistics.fmean(run["epochs"][-1]["loss"] for run in runs)
        seconds = statistics.fmean(run["epochs"][-1]["seconds"] for run in runs)
        cells = (
            task,
            WAYS[way].label,
            mean_and_deviation(before, scale=100),
            mean_and_deviation(after, scale=100),
            f"{loss:.3f}",
            f"{seconds:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    keys = ("distance", "content", "swayed", "α", "moved, mean and most, in pixels", "Σ rate")
    lines += [
        "",
        f"| task | way | layer | {' | '.join(keys)} |",
        "|---|---|---|---:|---:|---:|---|---|---:|",
    ]
    for (task, way), runs in grouped.items():
        for rows in zip(*(run["layers"] for run in runs), strict=True):
            cells = []
            for key in keys[:3]:
                numbers = [row[key] for row in rows if row[key] is not None]
                cells.append(mean_and_deviation(numbers, digits=4) if numbers else "–")
            least, most = min(row["alpha"][0] for row in rows), max(row["alpha"][1] for row in rows)
            mean, furthest = (
                statistics.fmean(row["moved"][0] for row in rows),
                max(row["moved"][1] for row in rows),
            )
            cells += [
                f"{least:.2f} to {most:.2f}",
                f"{mean:.2f}, {furthest:.2f}",
                f"{runs[0]['budget']:.2f}",
            ]
            lines.append(f"| {task} | {way} | {rows[0]['layer']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
