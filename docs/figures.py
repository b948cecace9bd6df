"""Make the figures of docs/figures again:  python docs/figures.py --write [FOLDER]

All are drawn from what the code gives, but for some, whose numbers depend on the machine or take minutes and are therefore kept
beside them: ``cost.json`` (from ``python -m benchmarks.cost``), ``digits_cnn.json`` (the certificate of ``python -m
construct.from_conv --input-size 1 8 8``), ``learned.json`` (of the summary of ``python -m examples.learned`` what is
drawn), ``learned_cifar.json`` once it is there (the ``figures.json`` of ``python -m examples.learned.results.figures``),
``taught_teacher.json``, and in ``docs/results`` ``taught_shifted.json``, ``taught_same.json`` and ``taught_apart.json`` (summaries
of ``python -m examples.taught``).  Each summary names its command.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import construct
from verify.plots import (
    attention_figure,
    centres_figure,
    cost_figure,
    errors_figure,
    leakage_figure,
    write_figure,
)
from verify.plots.costs import read_costs

sys.path.append(str(Path(__file__).parents[1]))  # the examples are no installed package
from examples.learned.results import figures as trained_on_cifar
from examples.learned.results import plots as trained
from examples.taught import plots as taught

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "figures"


def soft(alpha: float) -> construct.MHSA:
    """The attention of a 3 × 3 convolution, soft enough to be seen."""
    return construct.conv_to_mhsa(nn.Conv2d(1, 1, 3, padding=1), alpha=alpha)


def learned() -> construct.MHSA:
    """As of a layer that has been trained a little: heads that have moved, between pixels, and are more and less sharp."""
    layer = soft(1.0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        alpha = 0.3 + 1.5 * torch.rand(9, 1, generator=generator)
        tau = layer.centres()[1] + 0.8 * torch.randn(9, 2, generator=generator)
        layer.v.copy_(torch.cat([-alpha, 2 * alpha * tau], dim=1))
    return layer


def summary(name: str) -> dict[str, Any]:
    """The summary of a command of ``examples``."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def taught_runs() -> dict[str, Any]:
    """The runs of all tasks of ``python -m examples.taught cnn``."""
    paths = [FOLDER.parent / "results" / f"taught_{task}.json" for task in ("shifted", "same", "apart")]
    return {"runs": [run for path in paths for run in json.loads(path.read_text(encoding="utf-8"))["runs"]]}


def of_heads(summary: dict[str, Any], heads: int) -> dict[str, Any]:
    """The groups of this many heads."""
    return {**summary, "groups": [group for group in summary["groups"] if group["heads"] == heads]}


FIGURES: dict[str, "Callable[[], Figure]"] = {
    "attention": lambda: attention_figure(soft(1.0)),
    "attention_sharp": lambda: attention_figure(soft(1024.0)),
    "centres": lambda: centres_figure(soft(1.0)),
    "centres_learned": lambda: centres_figure(learned()),
    "leakage": leakage_figure,
    "errors": lambda: errors_figure(FOLDER / "digits_cnn.json"),
    "cost": lambda: cost_figure(*read_costs(FOLDER / "cost.json")),
    "learned_centres": lambda: trained.centres(summary("learned"), "quadratic"),
    "learned_centres_local": lambda: trained.centres(summary("learned"), "local"),
    "taught_centres": lambda: taught.centres(of_heads(summary("taught_teacher"), 9)),
    "taught_alpha": lambda: taught.alpha(summary("taught_teacher")),
    "taught_error": lambda: taught.error(summary("taught_teacher")),
    "taught_accuracy": lambda: taught.accuracy(taught_runs()),
}
"""By the name of the file."""
if (FOLDER / "learned_cifar.json").exists():
    for drawing in trained_on_cifar.drawn(summary("learned_cifar"))[0]:
        FIGURES[f"learned_cifar_{drawing.name}"] = partial(drawing.draw, summary("learned_cifar"))


def smaller(path: Path) -> None:
    """Write an SVG again without indentation, and with two decimals of every coordinate: a hundredth of a point is not seen."""
    text = re.sub(r"\n\s+", "\n", path.read_text(encoding="utf-8"))

    def rounded(line: re.Match[str]) -> str:
        return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), line[0])

    path.write_text(re.sub(r' d="[^"]*"', rounded, text), encoding="utf-8")


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description="Draw the figures of the documentation.")
    parser.add_argument(
        "--write", type=Path, nargs="?", const=FOLDER, required=True, metavar="FOLDER", help="(%(const)s)"
    )
    folder = parser.parse_args().write
    for name, make in FIGURES.items():
        write_figure(make(), folder / f"{name}.svg")
        smaller(folder / f"{name}.svg")
        print(f"wrote {folder / name}.svg")


if __name__ == "__main__":
    main()
