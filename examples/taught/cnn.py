"""The command ``cnn``: trained CNNs that go on learning, as themselves and as attention."""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

from examples.learned.data import BadInput
from examples.learned.table import spread
from examples.taught.converted import WAYS
from examples.taught.finetuning import TASKS, Course, day_one, gone_on, layers_of, shifted_test, trained_cnn

LAYERS = ("stem", "context", "shrink", "depthwise", "mix", "head")
"""Of the demo network, in order."""


def options_of(found: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    found.add_argument("--ways", nargs="+", choices=[*WAYS], default=["cnn", "cnn-longer", "positions", "content"])
    found.add_argument("--tasks", nargs="+", choices=[*TASKS], default=[*TASKS])
    found.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    found.add_argument("--epochs", type=int, default=3, help="of going on (default: %(default)s)")
    found.add_argument(
        "--train", type=int, default=1000, help="pictures to go on with, 1437 at most (default: %(default)s)"
    )
    found.add_argument("--batch", type=int, default=32, help="(default: %(default)s)")
    found.add_argument("--rate", type=float, default=1e-3, help="of taps, biases, norms (default: %(default)s)")
    found.add_argument("--aim-rate", type=float, default=3e-3, help="of α, τ and content (default: %(default)s)")
    found.add_argument("--alpha", type=float, default=4.0, help="the lowered α (default: %(default)s)")
    found.add_argument("--key-dim", type=int, default=8, help="D_k of content (default: %(default)s)")
    found.add_argument(
        "--content-layers",
        nargs="+",
        choices=LAYERS,
        default=[*LAYERS[2:]],
        help="which layers may learn content (default: the last four: pairs of all 8 × 8 pixels take long)",
    )
    found.add_argument("--pretrained", type=int, default=30, help="epochs of the CNN's own training (default: 30)")


def steps_of(options: argparse.Namespace) -> int:
    """Epochs of all runs together."""
    longer = sum(WAYS[way].longer for way in set(options.ways))
    return len(set(options.seeds)) * len(set(options.tasks)) * longer * options.epochs


def runs_of(
    options: argparse.Namespace, line: Callable[[dict[str, Any]], None], tell: Callable[[int, str], None]
) -> dict[str, Any]:
    """Train the CNN of every seed, convert it, and go on in every way.

    Args:
        options: of the command.
        line: writes a record of the metrics.
        tell: gets the epochs done, of all runs together, and a word.

    Returns:
        ``first``: every seed's network before anything learns; ``runs``: what became of it.
    """
    if options.train > 1437:
        raise BadInput(f"--train is {options.train}, and there are 1437 train pictures")
    firsts, runs, done = [], [], 0
    for seed in dict.fromkeys(options.seeds):
        tell(done, f"seed {seed}: the CNN's own training")
        cnn, (x, test, labels, test_labels) = trained_cnn(seed, options.pretrained)
        firsts.append({"seed": seed, "ladder": day_one(cnn, test, test_labels)})
        for task in dict.fromkeys(options.tasks):
            course = Course(
                task,
                options.epochs,
                options.batch,
                options.rate,
                options.aim_rate,
                options.alpha,
                options.key_dim,
                tuple(options.content_layers),
            )
            parts = [x[: options.train], test, labels[: options.train], test_labels]
            for way in dict.fromkeys(options.ways):
                about = {"seed": seed, "task": task, "way": way}

                def told(epoch: int, word: str, done: int = done, about: dict[str, Any] = about) -> None:
                    tell(done + epoch, f"seed {about['seed']}, {about['task']}, {about['way']}: {word}")

                network, epochs = gone_on(cnn, parts, way, course, seed, told)
                done += options.epochs * WAYS[way].longer
                for row in epochs:
                    line({**about, **row})
                given = shifted_test(test) if task == "shifted" else test
                runs.append({**about, "epochs": epochs, "layers": layers_of(network, given)})
    return {"first": firsts, "runs": runs}


def table(found: dict[str, Any]) -> str:
    """Three tables: what lowering α does, where accuracy goes, and how convolution-like the layers remain."""
    lines = [
        "| α of all layers, nothing learned | greatest difference of a logit, relative | predictions that differ | accuracy, % |",
        "|---:|---|---:|---:|",
    ]
    for rows in zip(*(first["ladder"] for first in found["first"]), strict=True):
        apart = [row["apart"] for row in rows]
        differ = ", ".join(str(row["predictions"]) for row in rows)
        lines.append(
            f"| {rows[0]['alpha']:g} | {min(apart):.1g} to {max(apart):.1g} | {differ} | "
            f"{spread([row['accuracy'] for row in rows], scale=100)} |"
        )
    lines += [
        "",
        "| task | way | before, % | after, % | train loss at last | seconds a run |",
        "|---|---|---:|---:|---:|---:|",
    ]
    kinds = dict.fromkeys((run["task"], run["way"]) for run in found["runs"])
    grouped = {kind: [run for run in found["runs"] if (run["task"], run["way"]) == kind] for kind in kinds}
    for (task, way), runs in grouped.items():
        before, after = ([run["epochs"][n]["accuracy"] for run in runs] for n in (0, -1))
        loss = statistics.fmean(run["epochs"][-1]["loss"] for run in runs)
        seconds = statistics.fmean(run["epochs"][-1]["seconds"] for run in runs)
        lines.append(
            f"| {task} | {WAYS[way].told} | {spread(before, scale=100)} | {spread(after, scale=100)} | {loss:.3f} | {seconds:.0f} |"
        )
    keys = ("distance", "content", "swayed", "α", "off the lattice")
    lines += ["", f"| task | way | layer | {' | '.join(keys)} |", "|---|---|---|---:|---:|---:|---|---:|"]
    for (task, way), runs in grouped.items():
        for rows in zip(*(run["layers"] for run in runs), strict=True):
            cells = []
            for key in keys[:3]:
                numbers = [row[key] for row in rows if row[key] is not None]
                cells.append(spread(numbers, digits=4) if numbers else "–")
            least, most = min(row["alpha"][0] for row in rows), max(row["alpha"][1] for row in rows)
            cells += [f"{least:.2f} to {most:.2f}", f"{max(row['between'] for row in rows):.2f}"]
            lines.append(f"| {task} | {way} | {rows[0]['layer']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
