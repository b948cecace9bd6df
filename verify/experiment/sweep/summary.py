"""Summarises a sweep's results: verdicts by geometry, tightness and time, as Markdown tables and as
a figure.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from verify.experiment.sweep.results import VERDICTS, Results
from verify.plots.drawing import (
    BLUE,
    FAINT,
    GREEN,
    ORANGE,
    Figure,
    new_figure,
    require_writable,
    style,
    write_figure,
)

COLOURS = dict(zip((*VERDICTS, "failed"), (GREEN, BLUE, ORANGE, FAINT, "black"), strict=True))
"""The colour of every verdict; "failed" stands for none."""
WIDEST = 8
"""The largest order of magnitude drawn between a bound and an observed difference."""


def report(path: Path, figure: Path) -> str:
    """Draw the results in a file and return their summary.

    Raises:
        ValueError: the file holds no results, or the figure cannot be written.
        OSError: a file cannot be read or written.
    """
    results = Results(path, new=False)
    text = summary(results)
    try:
        target = require_writable(figure, force=False)
        write_figure(drawn(results), target)
    except ImportError as error:
        return f"{text}\n\nno figure: {error}"
    finally:
        results.close()
    return f"{text}\n\nwrote {target}"


def summary(results: Results) -> str:
    """The summary as Markdown tables."""
    parts = [_runs(results)]
    for column, name in (
        ("kind", "layers as built"),
        ("dtype", "layers as built, by number format"),
    ):
        parts.append(_verdicts(results, column, name, "fault = ''"))
    if results.select("SELECT 1 FROM certificates WHERE fault != '' LIMIT 1"):
        parts.append(_verdicts(results, "kind", "layers with a fault", "fault != ''"))
        parts.append(_verdicts(results, "fault", "the faults", "fault != ''"))
    parts += [_quantiles(results), _errors(results)]
    return "\n\n".join(parts)


def _runs(results: Results) -> str:
    runs = results.select(
        "SELECT started, command, versions, workers, seconds, certificates FROM runs ORDER BY started"
    )
    rows = [(*run[:4], f"{run[4]:.0f} s", run[5]) for run in runs]
    return _table(("ended", "command", "versions", "workers", "time", "certificates"), rows)


def _verdicts(results: Results, column: str, name: str, which: str) -> str:
    counts = Counter[tuple[str, str]]()
    query = f"SELECT {column}, verdict, count(*) FROM certificates WHERE {which} GROUP BY 1, 2"
    for value, verdict, count in results.select(query):
        counts[value or "(not built)", verdict or "failed"] += count
    verdicts = [verdict for verdict in COLOURS if any(key[1] == verdict for key in counts)]
    values = sorted({value for value, _ in counts})
    rows = [(value, *(counts[value, verdict] for verdict in verdicts)) for value in values]
    total = ("all", *(sum(counts[value, verdict] for value in values) for verdict in verdicts))
    return _table((name, *verdicts), [*rows, total])


def _quantiles(results: Results) -> str:
    """Quantiles of bound over observed difference, and of the time per certificate."""
    rows = []
    for claim in ("same sums", "within"):
        ratios = _tightness(results, claim)
        rows.append(
            (f"bound / observed, {claim}", len(ratios), *(f"{q:.3g}" for q in _deciles(ratios)))
        )
    times = [
        1000 * s
        for (s,) in results.select("SELECT seconds FROM certificates WHERE seconds IS NOT NULL")
    ]
    rows.append(("milliseconds a certificate", len(times), *(f"{q:.3g}" for q in _deciles(times))))
    return _table(("of PROVED layers, and of all", "number", "10 %", "median", "90 %"), rows)


def _tightness(results: Results, claim: str) -> list[float]:
    """Bound over observed difference for every layer PROVED as built with an observed difference."""
    query = (
        "SELECT bound / observed FROM certificates "
        "WHERE fault = '' AND verdict = 'PROVED' AND claim = ? AND observed > 0"
    )
    return [
        ratio
        for (ratio,) in results.select(query, claim)
        if ratio is not None and math.isfinite(ratio)
    ]


def _deciles(values: list[float]) -> list[float]:
    """The first, fifth and ninth decile."""
    return np.quantile(values or [math.nan], (0.1, 0.5, 0.9)).tolist()


def _errors(results: Results) -> str:
    wrong = results.select(
        "SELECT model, layer, fault, error FROM certificates WHERE error != '' LIMIT 20"
    )
    return (
        _table(("model", "layer", "fault", "what is wrong"), wrong)
        if wrong
        else "0 rows with an error"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines
    )


def drawn(results: Results) -> Figure:
    """Verdicts by convolution class, as built and with a fault, and the tightness of the bounds."""
    with style():
        figure = new_figure(8.0, 3.4)
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        rows = results.select(
            "SELECT kind || CASE fault WHEN '' THEN '' ELSE ', with a fault' END, "
            "CASE verdict WHEN '' THEN 'failed' ELSE verdict END, count(*) "
            "FROM certificates WHERE kind != '' GROUP BY 1, 2"
        )
        counts = {(name, verdict): count for name, verdict, count in rows}
        names = sorted({name for name, _ in counts}, reverse=True)
        starts = [0] * len(names)
        for verdict, colour in COLOURS.items():
            widths = [counts.get((name, verdict), 0) for name in names]
            if any(widths):
                left.barh(names, widths, left=starts, color=colour, label=verdict)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        left.set_xlabel("certificates")
        left.tick_params(axis="y", length=0)
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside upper left", ncols=len(COLOURS)
        )
        for claim, colour in (("same sums", BLUE), ("within", ORANGE)):
            ratios = [
                min(math.log10(ratio), WIDEST) for ratio in _tightness(results, claim) if ratio > 0
            ]
            right.hist(
                ratios,
                bins=4 * WIDEST,
                range=(0, WIDEST),
                histtype="step",
                color=colour,
                label=claim,
            )
        right.legend()
        right.set_xlabel(f"log₁₀ of bound / observed ({WIDEST}: or more)")
        right.set_ylabel("layers PROVED")
    return figure
