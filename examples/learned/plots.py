"""The pictures of a set of runs: accuracy, training time, where heads look, and attention averaged over images."""

from pathlib import Path
from typing import Any

import numpy as np

from examples.learned.measuring import centres_of
from examples.learned.network import VARIANTS


def _figure(columns: int = 1, rows: int = 1, width: float = 8.0, height: float = 4.5) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path)
    pyplot.close(figure)
    return path


def accuracy(metrics: dict[str, list[list[dict[str, Any]]]], path: Path) -> Path:
    """Test accuracy by epoch: the mean over seeds, and a band from the least to the greatest.

    Args:
        metrics: of each variant, for each seed, a record an epoch.
        path: of the picture.
    """
    figure, ((ax,),) = _figure()
    for variant, runs in metrics.items():
        shortest = min(map(len, runs))
        seen = 100 * np.array([[line["test_accuracy"] for line in run[:shortest]] for run in runs])
        epochs = np.arange(1, shortest + 1)
        (line,) = ax.plot(epochs, seen.mean(0), label=VARIANTS[variant].told, lw=1.4)
        ax.fill_between(epochs, seen.min(0), seen.max(0), color=line.get_color(), alpha=0.15, lw=0)
    ax.set_xlabel("epoch")
    ax.set_ylabel("test accuracy (%)")
    ax.grid(color="#e4e4e4", lw=0.6)
    ax.legend(fontsize=8, loc="lower right")
    return _save(figure, path)


def seconds(results: dict[str, list[dict[str, Any]]], path: Path) -> Path:
    """Training time by variant: a bar for the mean of the seeds, a dot for each."""
    figure, ((ax,),) = _figure(height=3.5)
    for place, runs in enumerate(results.values()):
        times = [run["seconds"] for run in runs]
        ax.barh(place, np.mean(times), color="#9fb8d0")
        ax.plot(times, [place] * len(times), ".", color="#1d3557")
    ax.set_yticks(range(len(results)), [VARIANTS[variant].told for variant in results], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("seconds of training")
    return _save(figure, path)


def centres(attention: list[np.ndarray], title: str, path: Path) -> Path:
    """Where the heads of every layer look from the middle query: the mean shift, and an ellipse of one deviation.

    Args:
        attention: a layer each, (heads, queries, rows, columns).
        title: over the picture.
        path: of it.
    """
    from matplotlib.patches import Ellipse

    figure, axes = _figure(len(attention), width=2.4 * len(attention), height=3.0)
    for number, (ax, layer) in enumerate(zip(axes[0], attention, strict=True), start=1):
        means, covariances = centres_of(layer)
        reach = max(layer.shape[2:]) / 2 + 0.5
        for head, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
            # Axis 0 runs down and axis 1 to the right: a picture has them the other way round.
            values, vectors = np.linalg.eigh(covariance[::-1, ::-1])
            turn = float(np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1])))
            across, along = 2 * np.sqrt(values.clip(min=0))
            ax.add_patch(Ellipse(mean[::-1], along, across, angle=turn, fill=False, ec=f"C{head % 10}", lw=1))
            ax.plot(*mean[::-1], ".", color=f"C{head % 10}", ms=5)
        ax.plot(0, 0, "s", mfc="none", mec="black", ms=9)
        ax.set(xlim=(-reach, reach), ylim=(reach, -reach), aspect="equal", title=f"layer {number}")
        ax.grid(color="#e4e4e4", lw=0.6)
    figure.suptitle(title, fontsize=10)
    return _save(figure, path)


def maps(attention: list[np.ndarray], title: str, path: Path) -> Path:
    """Attention averaged over images, from the middle query: a row for each layer, a column for each head."""
    heads = len(attention[0])
    figure, axes = _figure(heads, len(attention), width=1.0 * heads + 0.6, height=1.05 * len(attention) + 0.6)
    for number, (row, layer) in enumerate(zip(axes, attention, strict=True), start=1):
        rows, columns = layer.shape[2:]
        for ax, head in zip(row, layer[:, (rows // 2) * columns + columns // 2], strict=True):
            ax.imshow(head, cmap="Blues", vmin=0, vmax=max(float(head.max()), 1e-9))
            ax.plot(columns // 2, rows // 2, "s", mfc="none", mec="#d62828", ms=6)
            ax.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"layer {number}", fontsize=8)
    figure.suptitle(title, fontsize=10)
    return _save(figure, path)
