"""The figures of ``examples.taught``, drawn from a summary file alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from examples.taught.networks import WAYS
from verify.plots import write_figure
from verify.plots.drawing import COLOURS, FAINT, INK, Figure, colours, new_figure, style

Summary = dict[str, Any]
MOST = 12
"""The most groups whose centres are drawn."""


def centres(summary: Summary) -> Figure:
    """The paths of the centres of the first seed's student, over Δ_K: a line from the ring to the
    dot, one colour per head.
    """
    groups = summary["groups"][:MOST]
    columns = min(len(groups), 2)
    rows = -(-len(groups) // columns)
    with style():
        figure = new_figure(2.5 * columns, 2.7 * rows)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax in axes[len(groups) :]:
            ax.set_axis_off()
        for ax, group in zip(axes, groups, strict=False):
            reach = group["kernel"] // 2
            lattice = np.mgrid[-reach : reach + 1, -reach : reach + 1].reshape(2, -1)
            paths = np.array(group["series"]["tau"])  # (looks, heads, 2)
            limit = max(reach + 2.5, abs(paths).max() + 0.5)
            ax.plot(lattice[1], lattice[0], "s", mfc="none", mec=FAINT, ms=45 / limit, zorder=1)
            for head, colour in enumerate(colours(paths.shape[1])):
                # Axis 0 runs down and axis 1 to the right.
                ax.plot(paths[:, head, 1], paths[:, head, 0], "-", color=colour, lw=0.9)
                ax.plot(*paths[0, head, ::-1], "o", mfc="none", mec=colour, ms=3.5)
                ax.plot(*paths[-1, head, ::-1], "o", color=colour, ms=4)
            ax.set(xlim=(-limit, limit), ylim=(limit, -limit), aspect="equal")
            ax.set_title(
                f"{group['data']}, {group['heads']} heads, {group['start']} start", fontsize=9
            )
        figure.supxlabel("shift from the query along axis 1 (tokens)", fontsize=9)
        figure.supylabel("along axis 0 (tokens)", fontsize=9)
        return figure


def _over_time(summary: Summary, key: str, label: str) -> Figure:
    datas = [*dict.fromkeys(group["data"] for group in summary["groups"])]
    with style():
        figure = new_figure(3.2 * len(datas) + 0.6, 3.8)
        axes = figure.subplots(1, len(datas), squeeze=False, sharey=True)[0]
        for ax, data in zip(axes, datas, strict=True):
            groups = [group for group in summary["groups"] if group["data"] == data]
            for place, group in enumerate(groups):
                values = np.array(group["series"][key])  # (looks, seeds)
                x, colour = group["series"]["step"], COLOURS[place % len(COLOURS)]
                name = f"{group['heads']} heads, {group['start']} start"
                if len({(g["alpha"], g["rate"]) for g in groups}) > 1:
                    name += f", α {group['alpha']:g}, rate {group['rate']:g}"
                ax.plot(x, np.median(values, axis=1), color=colour, lw=1.3, label=name)
                ax.fill_between(x, values.min(1), values.max(1), color=colour, alpha=0.12, lw=0)
            ax.set(yscale="log", xlabel="step", title=data)
        axes[0].set_ylabel(label)
        figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return figure


def alpha(summary: Summary) -> Figure:
    """The median α of a student's heads by step: the median over seeds, and a band from the least
    to the greatest.
    """
    return _over_time(summary, "alpha", "α, median of the heads")


def error(summary: Summary) -> Figure:
    """The held-out error by step, likewise."""
    return _over_time(summary, "error", "relative squared error, held out")


def accuracy(summary: Summary) -> Figure:
    """Test accuracy by epoch, and by seconds of CPU time: the mean over seeds, and a band from the
    least to the greatest.
    """
    kinds: dict[tuple[str, str, float], list[list[dict[str, float]]]] = {}
    for run in summary["runs"]:
        kinds.setdefault((run["task"], run["way"], run["rate"]), []).append(run["epochs"])
    tasks = [*dict.fromkeys(task for task, *_ in kinds)]
    ways = [*dict.fromkeys(way for _, way, _ in kinds)]
    with style():
        figure = new_figure(3.0 * len(tasks) + 0.6, 6.4)
        axes = figure.subplots(2, len(tasks), squeeze=False, sharey="col")
        for (task, way, rate), runs in kinds.items():
            several = sum(key[:2] == (task, way) for key in kinds) > 1
            label = f"{WAYS[way].label}, rate {rate:g}" if several else WAYS[way].label
            look = {"color": COLOURS[ways.index(way)], "ms": 4, "lw": 1.3, "label": label}
            _course(axes[:, tasks.index(task)], runs, look, by_epoch=not way.endswith("longer"))
        for place, task in enumerate(tasks):
            axes[0, place].set(title=f'the task "{task}"', xlabel="epoch")
            axes[0, place].locator_params("x", integer=True)
            axes[1, place].set(xlabel="seconds of CPU time", xscale="log")
        for ax in axes[:, 0]:
            ax.set_ylabel("test accuracy, %")
        lines = {line.get_label(): line for ax in axes[1] for line in ax.get_lines()}
        figure.legend(
            lines.values(), lines.keys(), loc="outside lower center", labelcolor=INK, ncols=3
        )
        return figure


def _course(axes: Any, runs: list[Any], look: dict[str, Any], *, by_epoch: bool) -> None:
    """The accuracy of runs by epoch and by seconds, with the least and the greatest of all seeds."""
    percent = 100 * np.array([[row["accuracy"] for row in run] for run in runs])
    seconds = np.array([[row["seconds"] for row in run] for run in runs]).mean(0)
    if by_epoch:
        axes[0].plot(range(len(seconds)), percent.mean(0), ".-", **look)
    # the first moment, 0 s, has no place on a logarithmic axis
    axes[1].plot(seconds[1:], percent.mean(0)[1:], ".-", **look)
    band = {"color": look["color"], "alpha": 0.12, "lw": 0}
    axes[1].fill_between(seconds[1:], percent.min(0)[1:], percent.max(0)[1:], **band)


FIGURES: dict[str, dict[str, Callable[[Summary], Figure]]] = {
    "teacher": {"centres": centres, "alpha": alpha, "error": error},
    "cnn": {"accuracy": accuracy},
    "convert": {},
}
"""The figures by command and name."""


def write(figures: dict[str, Callable[[Summary], Figure]], summary: Path, folder: Path) -> None:
    """Draw all figures from a summary file."""
    read = json.loads(summary.read_text(encoding="utf-8"))
    for name, draw in figures.items():
        write_figure(draw(read), folder / f"{name}.svg")
