"""``python -m examples.learned.results.figures FOLDER``: the paper's figures, from the finished
runs of a folder.

A figure whose run is not there is left out, in a line that says which run it needs.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from examples.learned.command import read
from examples.learned.data import BadInput, Pictures
from examples.learned.results import plots, rows
from examples.learned.results.plots import Summary
from examples.learned.results.stored import finished, stored
from examples.learned.results.summary import folder_of, summary_of
from examples.learned.running.console import ended
from examples.learned.running.files import replaced
from examples.learned.training import CHECKPOINT
from examples.learned.variants import VARIANTS
from verify.plots import write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUMMARY = "figures.json"
"""What is drawn, so that it can be drawn again without the runs."""
REACH = 3
"""The tokens on every side of the query in the paper's Figure 5, which shows 7 × 7."""


class Drawing(NamedTuple):
    """A figure: its name, the variant whose run it needs, what it shows, and the function that
    draws it from a summary.
    """

    name: str
    variant: str
    caption: str
    draw: Callable[[Summary], "Figure"]


def _of(
    name: str, variant: str, caption: str, draw: Callable[..., "Figure"], **options: int
) -> Drawing:
    return Drawing(name, variant, caption, partial(draw, variant=variant, **options))


COMPARED = (
    "quadratic",
    "local",
    "covariance",
    "relative",
    "relative-content",
    "frozen",
    "conv3",
    "conv9",
    "resnet18",
)
"""The variants whose accuracy is drawn, as many as there are colours that are told apart."""


def accuracy(summary: Summary) -> "Figure":
    """Accuracy by epoch of the variants that are compared."""
    return plots.accuracy(
        summary | {"variants": {k: v for k, v in summary["variants"].items() if k in COMPARED}}
    )


LINES = "τ, with lines that hold 50 % and 90 % of the attention, cut at the edge of the panel; the square is the query"
DRAWINGS = (
    Drawing("accuracy", "", "Accuracy by epoch: means over seeds, and from the least to the greatest", accuracy),
    _of("centres", "quadratic", f"The paper's Figure 4, after training from its start: {LINES}", plots.centres),
    _of("centres_local", "local", f"The same, from the local start: {LINES}", plots.centres),
    _of("paths", "quadratic", "The centres of layer 4 every 50 steps of training, and α, from the paper's start", plots.paths),
    _of("paths_local", "local", "The centres of layer 4 every 50 steps of training, and α, from the local start", plots.paths),
    _of("centres_16", "quadratic-16", f"The paper's Figure 14, 16 heads: {LINES}", plots.centres),
    _of("centres_covariance", "covariance", f"The paper's Figure 12, Σ in place of α: {LINES}", plots.centres),
    _of("maps_relative", "relative", "The paper's Figure 5, learned relative: 7 × 7 around the query", plots.maps, reach=REACH),
    _of("maps_content", "relative-content", "The paper's Figure 6, with content: averaged over images", plots.maps),
    _of("moved_paper", "quadratic", "The query moved, from the paper's start: only the border differs", plots.moved),
    _of("moved", "relative", "The query moved, learned relative: whether the profiles move", plots.moved),
    _of("moved_content", "relative-content", "The query moved, with content: whether the profiles move", plots.moved),
)  # fmt: skip


def summary_in(folder: Path, pictures: Pictures) -> Summary:
    """The summary of the finished runs in a folder, measured or not.

    Raises:
        BadInput: there is none, or one is damaged or was trained on other pictures.
    """
    results: dict[str, list[dict[str, Any]]] = {}
    for variant in VARIANTS:
        paths = [path.parent for path in folder.glob(f"{variant}/seed-*/{CHECKPOINT}")]
        runs = [run for run in map(finished, paths) if run is not None]
        if runs:
            results[variant] = sorted(runs, key=lambda run: run["seed"])
    if not results:
        raise BadInput(f"{folder}: no finished run (give the --out of python -m examples.learned)")
    return summary_of(
        results,
        lambda variant, seed: stored(folder_of(folder, variant, seed), pictures),
        pictures.test,
    )


def drawn(summary: Summary) -> tuple[list[Drawing], list[str]]:
    """The figures whose runs are in a summary, and a line for each of the others."""
    have = summary["variants"]
    ready = [drawing for drawing in DRAWINGS if not drawing.variant or drawing.variant in have]
    left_out = [
        f"{one.name}: not drawn, no finished run of {one.variant}"
        for one in DRAWINGS
        if one not in ready
    ]
    missing = [name for name in COMPARED if name not in have]
    if missing:
        left_out.append(
            f"accuracy: drawn without {', '.join(missing)}, of which there is no finished run"
        )
    return ready, left_out


def needed(summary: Summary) -> Summary:
    """The part of a summary from which its figures are drawn."""
    mapped, moved = (
        {one.variant for one in DRAWINGS if one.name.startswith(name)} for name in ("maps", "moved")
    )
    drawn_heads = {one.variant for one in DRAWINGS}
    variants = {}
    for name, variant in summary["variants"].items():
        looks = variant["looks"] if name in drawn_heads else None
        if looks is not None and name not in moved:
            looks = {key: value for key, value in looks.items() if key != "moved"}
        if looks is not None and name not in mapped:
            layers = [{k: v for k, v in layer.items() if k != "map"} for layer in looks["layers"]]
            looks = looks | {"layers": layers}
        variants[name] = variant | {"looks": looks}
    return summary | {"variants": variants}


def beside(before: Summary, summary: Summary) -> Summary:
    """What is drawn of runs, beside what is drawn already of other variants.

    Raises:
        BadInput: the accuracy of both is not that on the same pictures.
    """
    if before["held"] != summary["held"]:
        raise BadInput(
            f"what is drawn already shows accuracy on the {before['held']} pictures, not the {summary['held']} ones "
            "(move it away, and give all runs)"
        )
    variants = before["variants"] | summary["variants"]
    return summary | {
        "commands": sorted({*before["commands"], *summary["commands"]}),
        "variants": {name: variants[name] for name in VARIANTS if name in variants},
    }


def figure(summary: Summary | None) -> list[str]:
    """The figure of docs/learned.md: the centres on CIFAR-10, or on digits until those are drawn."""
    if has_centres(summary):
        return centres("learned_cifar_centres", "CIFAR-10")
    return centres("learned_centres", "digits (those of CIFAR-10 are not drawn yet)")


def has_centres(summary: Summary | None) -> bool:
    """Whether both starts are among the figures of CIFAR-10."""
    return summary is not None and summary["variants"].keys() >= {*rows.TUNED}


def centres(file: str, data: str) -> list[str]:
    """The paper's Figure 4 for both starts."""
    return [
        f"![Centres of the paper's start by layer, on {data}](figures/{file}.svg)",
        "",
        f"![Centres of the local start by layer, on {data}](figures/{file}_local.svg)",
        "",
        f"*Where each head looks after training at × {rows.SHOWN} on {data}, seed 0, drawn as in the paper's Figure 4: τ, with",
        "circles that hold 50 % and 90 % of the attention, cut at the edge of a panel; the black square is the query. Above the",
        "paper's start, below the local one.*",
    ]


def others(summary: Summary | None) -> list[str]:
    """The other figures, and which are not drawn for lack of a run."""
    ready, lines = drawn(summary)[0] if summary else [], []
    for drawing in ready:
        if drawing.name not in ("centres", "centres_local") or not has_centres(summary):
            lines += [
                f"![{drawing.caption}](figures/learned_cifar_{drawing.name}.svg)",
                "",
                f"*{drawing.caption}.*",
                "",
            ]
    if has_centres(summary):
        lines += [*centres("learned_centres", "digits"), ""]
    missing = [one.variant for one in DRAWINGS if one not in ready and one.variant]
    if missing:
        missing = ", ".join(dict.fromkeys(missing))
        lines.append(
            f"*Figures of CIFAR-10 that are not drawn yet, for lack of finished runs: those of {missing}.*"
        )
    return lines


def everything(options: argparse.Namespace) -> str:
    """Draw all figures of a folder's runs, and say in lines which files were written, and which
    figures have no run.

    Raises:
        BadInput: there is no finished run, or one is damaged or was trained on other pictures.
    """
    summary = summary_in(options.folder, read(options.data))
    options.out.mkdir(parents=True, exist_ok=True)
    replaced(options.out / SUMMARY, json.dumps(needed(summary), separators=(",", ":")) + "\n")
    ready, lines = drawn(summary)
    for drawing in ready:
        write_figure(drawing.draw(summary), options.out / f"{drawing.name}.png")
    return "\n".join([*(f"wrote {options.out / one.name}.png" for one in ready), *lines]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.learned.results.figures", description=__doc__
    )
    parser.add_argument(
        "folder", type=Path, help="of the runs: --out of python -m examples.learned"
    )
    parser.add_argument(
        "--data", type=Path, help="as python -m examples.learned had it (default: the digits)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("learned-figures"), help="(default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    return ended(lambda _console: everything(options), "stopped; nothing is lost")


if __name__ == "__main__":
    sys.exit(main())
