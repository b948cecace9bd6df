"""The figures of ``examples.learned``, drawn from a summary file alone."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.learned.variants import VARIANTS
from verify.plots import write_figure
from verify.plots.drawing import BLUE, FAINT, INK, ORANGE, colours, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Summary = dict[str, Any]
OUTSIDE = {2.0: "-", 10.0: ":"}
"""The lines that leave 1/2 and 1/10 of a head's attention outside, with their styles."""
SHARED = (
    ("follows", BLUE, "the middle query's, moved along"),
    ("stays", ORANGE, "the middle query's, where it is"),
)
"""What a moved query's profile is compared with."""
DEVIATION = math.e**0.5
"""What an ellipse of one deviation leaves outside of a Gaussian is 1/√e."""


def accuracy(summary: Summary) -> "Figure":
    """Accuracy by epoch on the held-out pictures: the mean over seeds, and a band from the least to
    the greatest.
    """
    with style():
        figure = new_figure(8.0, 3.8)
        ax, least, most = figure.subplots(), 100.0, 0.0
        palette = colours(len(summary["variants"]))
        for colour, (variant, results) in zip(palette, summary["variants"].items(), strict=True):
            shortest = min(map(len, results["accuracy"]))
            percent = 100 * np.array([run[:shortest] for run in results["accuracy"]])
            epochs = np.arange(1, shortest + 1)
            ax.plot(
                epochs, percent.mean(0), ".-", label=VARIANTS[variant].label, color=colour, lw=1.3
            )
            ax.fill_between(epochs, percent.min(0), percent.max(0), color=colour, alpha=0.12, lw=0)
            least, most = min(least, percent[:, shortest // 10 :].min()), max(most, percent.max())
        # The low accuracies of the first tenth of many epochs would take up most of the plot.
        ax.set(
            xlabel="epoch",
            ylabel=f"{summary['held']} accuracy, %",
            ylim=(5 * (least // 5), 5 * (most // 5) + 5.5),
        )
        ax.locator_params("x", integer=True)
        figure.legend(loc="outside right center")
        return figure


def seconds(summary: Summary) -> "Figure":
    """Training time by variant: a bar for the mean over seeds, a dot for each seed."""
    variants = summary["variants"]
    with style():
        figure = new_figure(8.0, 0.6 + 0.35 * len(variants))
        ax = figure.subplots()
        for place, one in enumerate(variants.values()):
            ax.barh(place, np.mean(one["seconds"]), color=FAINT, alpha=0.5)
            ax.plot(one["seconds"], [place] * len(one["seconds"]), ".", color=BLUE)
        ax.set_yticks(range(len(variants)), [VARIANTS[variant].label for variant in variants])
        ax.invert_yaxis()
        ax.set_xlabel("seconds of training")
        return figure


def centres(summary: Summary, variant: str) -> "Figure":
    """Where the heads of every layer look, as in Figure 4 of the paper.

    Heads that are Gaussians: τ, with circles, or ellipses, that hold 50 % and 90 % of the attention
    on an unbounded grid.  Other
    heads: the mean shift from the middle query, with an ellipse of one deviation.
    """
    looks = summary["variants"][variant]["looks"]
    layers = looks["layers"]
    places = np.concatenate([layer.get("tau", layer["mean"]) for layer in layers])
    reach = max(max(looks["grid"]) / 2, float(np.abs(places).max())) + 0.5
    with style():
        rows, columns = -(-len(layers) // 3), min(len(layers), 3)
        figure = new_figure(2.2 * columns, 2.2 * rows + 1.0)
        axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for number, (ax, layer) in enumerate(zip(axes, layers, strict=False), start=1):
            palette = colours(len(layer["mean"]))
            where = layer.get("tau", layer["mean"])
            if "alpha" in layer:
                _circles(ax, palette, layer["alpha"], where)
            elif "sigma" in layer:
                _ellipses(ax, palette, where, layer["sigma"], OUTSIDE)
            else:
                _ellipses(ax, palette, where, layer["covariance"], {DEVIATION: "-"})
            down, right = np.array(where).T
            ax.scatter(right, down, c=palette, s=7, linewidths=0)
            ax.plot(0, 0, "s", mfc="none", mec=INK, ms=9)
            ax.set(
                xlim=(-reach, reach), ylim=(reach, -reach), aspect="equal", title=f"layer {number}"
            )
        title = (
            f"{VARIANTS[variant].label}, seed {looks['seed']}"
            if "tau" in layers[0]
            else _title(summary, variant)
        )
        figure.suptitle(title, fontsize=9)
        for ax in axes[::columns]:
            ax.set_ylabel("along axis 0")
        for ax in axes[-columns:]:
            ax.set_xlabel("shift along axis 1")
        for ax in axes[len(layers) :]:
            ax.set_axis_off()
        heads = max(len(layer["mean"]) for layer in layers)
        dots = [axes[0].plot([], [], ".", color=colour)[0] for colour in colours(heads)]
        labels = [f"head {head}" for head in range(heads)]
        figure.legend(
            dots,
            labels,
            loc="outside lower center",
            ncols=min(heads, 5),
            fontsize=8,
            columnspacing=1,
        )
        return figure


def _circles(ax: Any, palette: Any, alpha: list[float], tau: list[list[float]]) -> None:
    """Circles of radius √(ln 2 / α) and √(ln 10 / α): outside is 1/2 and 1/10 of a Gaussian
    exp(−α‖δ − τ‖²) in the plane.
    """
    from matplotlib.patches import Circle

    for colour, sharpness, (down, right) in zip(palette, alpha, tau, strict=True):
        for outside, style_of_line in OUTSIDE.items():
            radius = float(np.sqrt(np.log(outside) / sharpness))
            ax.add_patch(
                Circle((right, down), radius, fill=False, ec=colour, lw=0.9, ls=style_of_line)
            )


def _ellipses(
    ax: Any,
    palette: Any,
    means: list[list[float]],
    covariances: list[list[list[float]]],
    outside: dict[float, str],
) -> None:
    """Ellipses (δ − τ)ᵀ Σ⁻¹ (δ − τ) = 2 ln n: outside is 1/n of a Gaussian in the plane."""
    from matplotlib.patches import Ellipse

    for colour, mean, covariance in zip(palette, means, covariances, strict=True):
        # Axis 0 runs down and axis 1 to the right: a plot has them the other way round.
        values, vectors = np.linalg.eigh(np.array(covariance)[::-1, ::-1])
        turn = float(np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1])))
        for share, style_of_line in outside.items():
            across, along = 2 * np.sqrt(2 * np.log(share) * values.clip(min=0))
            place = (mean[1], mean[0])
            ax.add_patch(
                Ellipse(
                    place,
                    along,
                    across,
                    angle=turn,
                    fill=False,
                    ec=colour,
                    lw=0.9,
                    ls=style_of_line,
                )
            )


def paths(summary: Summary, variant: str) -> "Figure":
    """The centres of one layer during training: the way of every τ from its ring to its dot, and α
    by step.
    """
    looks = summary["variants"][variant]["looks"]
    path = looks["path"]
    # (steps, heads, 2), (steps, heads)
    tau, alpha = (np.array(path["tau"]), np.exp(path["log_alpha"]))
    with style():
        figure = new_figure(8.0, 3.6)
        plane, sharpness = figure.subplots(1, 2)
        reach = np.ceil(np.abs(tau).max()) + 0.5
        lattice = np.arange(-int(reach), int(reach) + 1)
        plane.plot(*(n.ravel() for n in np.meshgrid(lattice, lattice)), "+", color=FAINT, ms=4)
        for head, colour in enumerate(colours(tau.shape[1])):
            plane.plot(tau[:, head, 1], tau[:, head, 0], color=colour, lw=0.9)
            plane.plot(*tau[0, head, ::-1], "o", mfc="none", mec=colour, ms=5)
            plane.plot(*tau[-1, head, ::-1], ".", color=colour, ms=7)
            sharpness.plot(path["steps"], alpha[:, head], color=colour, lw=0.9)
        plane.set(xlim=(-reach, reach), ylim=(reach, -reach), aspect="equal")
        plane.set(xlabel="along axis 1 (tokens)", ylabel="shift along axis 0 (tokens)")
        sharpness.set(xlabel="step", ylabel="α", yscale="log")
        title = f"{VARIANTS[variant].label}, seed {looks['seed']}, layer {path['layer']}: from ring to dot"
        figure.suptitle(title, fontsize=9)
        return figure


def maps(summary: Summary, variant: str, reach: int | None = None) -> "Figure":
    """Attention averaged over images, from the middle query: a row for each layer, a column for
    each head.

    Every map is scaled to its own maximum; a square marks the query.

    Args:
        summary: as of :func:`examples.learned.results.summary.summary_of`.
        variant: the one to draw.
        reach: the tokens to draw on every side of the query (the paper's Figure 5: 3; its Figure 6: all); by default
            the whole grid.
    """
    looks = summary["variants"][variant]["looks"]
    rows, columns = looks["grid"]
    # (layers, heads, rows, columns)
    weights = _scaled(np.array([layer["map"] for layer in looks["layers"]]))
    query = (rows // 2, columns // 2)
    if reach is not None:
        around = np.pad(
            weights, ((0, 0), (0, 0), (reach, reach), (reach, reach)), constant_values=np.nan
        )
        down, right = (slice(place, place + 2 * reach + 1) for place in query)
        weights = around[:, :, down, right]
        query = (reach, reach)
    labels = [f"layer {n}" for n in range(1, len(weights) + 1)]
    high = 0.75 * weights.shape[2] / weights.shape[3] * len(weights)
    with style():
        figure = new_figure(0.75 * weights.shape[1] + 0.9, high + 0.9)
        ax = figure.subplots()
        _tiles(ax, weights, [query] * len(weights), labels)
        ax.set_title(_title(summary, variant), fontsize=9)
        return figure


def moved(summary: Summary, variant: str) -> "Figure":
    """Whether profiles move with the query: a layer's maps for three queries, and what the profiles
    share, layer by layer.
    """
    looks = summary["variants"][variant]["looks"]
    layers, of_layer = looks["layers"], looks["moved"]
    weights = np.array(of_layer["maps"])  # (queries, heads, rows, columns)
    queries = [(row, column) for row, column in of_layer["queries"]]
    high = 0.75 * weights.shape[2] / weights.shape[3] * len(weights)
    with style():
        figure = new_figure(0.75 * weights.shape[1] + 0.9, high + 2.9)
        upper, lower = figure.subplots(2, 1, height_ratios=[high, 1.5])
        _tiles(upper, _scaled(weights), queries, [f"query {query}" for query in queries])
        upper.set_title(f"{_title(summary, variant)}: layer {of_layer['layer']}", fontsize=9)
        numbers = range(1, len(layers) + 1)
        for key, colour, label in SHARED:
            lower.plot(
                numbers,
                [layer[key] for layer in layers],
                "o-",
                color=colour,
                lw=1,
                ms=4,
                label=label,
            )
        lower.set(ylim=(0, 1.05), xticks=numbers, xlabel="layer", ylabel="shared weight")
        figure.legend(
            loc="outside lower center",
            ncols=2,
            title="what a query's profile shares with",
            title_fontsize=9,
        )
        return figure


def _scaled(weights: Any) -> Any:
    """Every map (…, rows, columns) as a share of its greatest weight."""
    return weights / weights.max((2, 3), keepdims=True).clip(min=1e-9)


def _tiles(ax: Any, weights: Any, queries: list[tuple[int, int]], labels: list[str]) -> None:
    """Maps side by side, (rows of the figure, heads, rows, columns); a square marks the query of
    each.
    """
    rows, columns = weights.shape[2:]
    # a gap after each
    tiles = np.pad(weights, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    wide = tiles.transpose(0, 2, 1, 3).reshape(len(weights) * (rows + 1), -1)[:-1, :-1]
    image = ax.imshow(wide, cmap="Blues", vmin=0, vmax=1, interpolation="none")
    across, down = (columns + 1) * np.arange(weights.shape[1]), (rows + 1) * np.arange(len(weights))
    places = np.array(
        [
            [(a + column, d + row) for a in across]
            for d, (row, column) in zip(down, queries, strict=True)
        ]
    )
    size = max(2.0, 30 / max(rows, columns))
    ax.plot(*places.reshape(-1, 2).T, "s", mfc="none", mec=ORANGE, ms=size, mew=0.9, clip_on=False)
    ax.set_xticks(across + (columns - 1) / 2, [f"head {n}" for n in range(weights.shape[1])])
    ax.set_yticks(down + (rows - 1) / 2, labels)
    ax.tick_params(length=0, labelsize=8)
    ax.spines[:].set_visible(False)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.03, pad=0.02)
    bar.set_label("share of the map's greatest", fontsize=8)


def _title(summary: Summary, variant: str) -> str:
    looks = summary["variants"][variant]["looks"]
    run = f"{VARIANTS[variant].label}, seed {looks['seed']}"
    return f"{run}, averaged over {looks['pictures']} test pictures"


def write(summary: Summary, folder: Path) -> None:
    """Draw all figures: those of all runs together, and those of each attention variant."""
    drawn = {"accuracy": accuracy(summary), "seconds": seconds(summary)}
    for variant, results in summary["variants"].items():
        if results["looks"] is not None:
            drawn |= {
                f"centres-{variant}": centres(summary, variant),
                f"maps-{variant}": maps(summary, variant),
            }
            if results["looks"]["path"] is not None:
                drawn[f"paths-{variant}"] = paths(summary, variant)
    for name, figure in drawn.items():
        write_figure(figure, folder / f"{name}.svg")
