"""The command ``convert``: train a CNN on CIFAR-10 or Fashion-MNIST, convert it, and compare the predictions."""

import argparse
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.learned.command import read
from examples.learned.data import BadInput, Pictures
from examples.taught.cnn import ladder_table
from examples.taught.finetuning import accuracy, day_one
from examples.taught.parts import Part


def options_of(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument("--data", type=Path, required=True, help="folder that examples.learned.fetch wrote")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N", help="(default: 0)")
    parser.add_argument("--epochs", type=int, default=3, help="of the CNN's training (default: %(default)s)")
    parser.add_argument("--width", type=int, default=16, help="channels of its first layer (default: %(default)s)")


def cnn_for(channels: int, size: tuple[int, int], classes: int, width: int) -> nn.Sequential:
    """The untrained CNN, (B, C, rows, columns) → (B, classes): kernels of 3 × 3, even ones with a stride, one of a head's size.

    Raises:
        BadInput: pictures whose sides four does not divide.
    """
    from examples.train_digits_cnn import block

    if any(n % 4 for n in size):
        raise BadInput(f"pictures of {size[0]} × {size[1]} cannot be halved twice")
    rows, columns = (n // 4 for n in size)
    layers = {
        "stem": block(nn.Conv2d(channels, width, 3, padding=1, bias=False)),
        "shrink": block(nn.Conv2d(width, 2 * width, 2, stride=2, bias=False)),
        "context": block(nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False)),
        "shrink_again": block(nn.Conv2d(2 * width, 4 * width, 2, stride=2, bias=False)),
        "mix": block(nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4, bias=False)),
        "head": nn.Conv2d(4 * width, classes, (rows, columns)),
        "flatten": nn.Flatten(),
    }
    return nn.Sequential(OrderedDict(layers))


def parts_of(options: argparse.Namespace) -> list[Part]:
    """One for every seed.

    Raises:
        BadInput: the data cannot be used.
    """
    pictures = _read(options.data)
    cnn_for(*_shape(pictures), options.width)
    about = {"command": "convert", "epochs": options.epochs, "width": options.width, "files": pictures.digests}
    about["data"] = str(options.data.resolve())
    return [Part(f"seed {seed}", 1, {**about, "seed": seed}) for seed in dict.fromkeys(options.seeds)]


_read = lru_cache(maxsize=1)(read)
"""The pictures of a folder, which all seeds learn from."""


def _shape(pictures: Pictures) -> tuple[int, tuple[int, int], int]:
    channels, rows, columns = pictures.train.shape[1:]
    return channels, (rows, columns), pictures.classes


def done(part: Part, tell: Callable[[int, str], None]) -> dict[str, Any]:
    """Train the CNN of a seed, convert it, and compare the two.

    Args:
        part: one of those that :func:`parts_of` makes.
        tell: gets the parts done, and a word.

    Returns:
        The accuracy of the CNN, its seconds of training, the number of test pictures, and the ladder of α.
    """
    from examples import train_digits_cnn

    about = part.about
    pictures = _read(Path(about["data"]))
    torch.manual_seed(about["seed"])
    cnn = cnn_for(*_shape(pictures), about["width"])
    tell(0, "the CNN's own training")
    start = time.monotonic()
    train_digits_cnn.train(cnn, pictures.train, pictures.train_labels, about["epochs"])
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
    """The summary, and the lines of the metrics, of all parts."""
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
