"""The command ``convert``: train a CNN on CIFAR-10 or Fashion-MNIST, convert it, and compare the
predictions.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.learned.results.table import mean_and_deviation
from examples.taught.finetuning import accuracy, day_one
from examples.taught.networks import cnn_of, read_once, trained_on
from examples.taught.parts import Part


def options_of(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument(
        "--data", type=Path, required=True, help="folder that examples.learned.fetch wrote"
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], metavar="N", help="(default: 0)"
    )
    parser.add_argument(
        "--epochs", type=int, default=3, help="of the CNN's training (default: %(default)s)"
    )
    parser.add_argument(
        "--width", type=int, default=16, help="channels of its first layer (default: %(default)s)"
    )


def parts_of(options: argparse.Namespace) -> list[Part]:
    """One part for every seed.

    Raises:
        BadInput: the data cannot be used.
    """
    pictures = read_once(options.data)
    cnn_of(pictures, options.width)
    about = {
        "command": "convert",
        "epochs": options.epochs,
        "width": options.width,
        "files": pictures.digests,
    }
    about["data"] = str(options.data.resolve())
    return [
        Part(f"seed {seed}", 1, {**about, "seed": seed}) for seed in dict.fromkeys(options.seeds)
    ]


def done(part: Part, tell: Callable[[int, str], None]) -> dict[str, Any]:
    """Train the CNN of a seed, convert it, and compare the two.

    Args:
        part: a part from :func:`parts_of`.
        tell: progress callback with the parts done and a status.

    Returns:
        The accuracy of the CNN, its seconds of training, the number of test pictures, and the
        ladder of α.
    """
    about = part.about
    pictures = read_once(Path(about["data"]))
    tell(0, "the CNN's own training")
    start = time.monotonic()
    cnn = trained_on(pictures, about["seed"], about["epochs"], about["width"])
    seconds = time.monotonic() - start
    tell(0, "the converted network")
    ladder = day_one(cnn, pictures.test, pictures.test_labels)
    reads = accuracy(cnn, pictures.test, pictures.test_labels)
    return {
        "seed": about["seed"],
        "data": pictures.name,
        "seconds": seconds,
        "pictures": len(pictures.test),
        "accuracy": reads,
        "ladder": ladder,
    }


def gathered(results: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the metrics lines of all parts."""
    return {"runs": results}, results


def table(summary: dict[str, Any]) -> str:
    """A line for each CNN, and what lowering α does."""
    lines = [
        f"{run['data']}, seed {run['seed']}: the CNN reads {run['accuracy']:.2%} of {run['pictures']:,} test pictures after "
        f"{run['seconds']:.0f} s of training; converted, {run['pictures'] - run['ladder'][0]['predictions']:,} of "
        f"{run['pictures']:,} predictions are the same."
        for run in summary["runs"]
    ]
    return "\n".join([*lines, "", *ladder_table(summary["runs"])]) + "\n"


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
