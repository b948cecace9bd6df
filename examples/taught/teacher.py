"""The command ``teacher``: train and measure all groups of students."""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from typing import Any

from examples.learned.data import BadInput
from examples.taught.parts import Part
from examples.taught.patches import DATA, patches
from examples.taught.students import Setting, Students
from examples.taught.teaching import measured, taught


def options_of(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument(
        "--heads", nargs="+", type=int, default=[4, 9, 16], metavar="N", help="(default: 4 9 16)"
    )
    parser.add_argument(
        "--kernel",
        type=int,
        default=3,
        metavar="K",
        help="of the teacher, odd (default: %(default)s)",
    )
    parser.add_argument(
        "--starts", nargs="+", choices=["paper", "local"], default=["paper", "local"]
    )
    parser.add_argument(
        "--data", nargs="+", choices=DATA, default=[*DATA], help="patches (default: images noise)"
    )
    parser.add_argument(
        "--alphas",
        nargs="+",
        type=float,
        default=[1.0],
        metavar="A",
        help="α at first (default: 1)",
    )
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        default=[0.05],
        metavar="R",
        help="of τ and log α (default: 0.05)",
    )
    parser.add_argument(
        "--value-rate", type=float, default=0.02, help="of W_out and b_out (default: %(default)s)"
    )
    parser.add_argument(
        "--sharpen",
        type=float,
        metavar="A",
        help="drive every α up to A in the second half (default: leave it alone)",
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[*range(10)], metavar="N", help="(default: 0 to 9)"
    )
    parser.add_argument("--steps", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument(
        "--batch", type=int, default=16, help="patches a step (default: %(default)s)"
    )
    parser.add_argument(
        "--side", type=int, default=7, help="pixels along a patch (default: %(default)s)"
    )
    parser.add_argument(
        "--out-channels", type=int, default=4, help="of the teacher (default: %(default)s)"
    )


def settings_of(options: argparse.Namespace) -> list[Setting]:
    """Every requested combination, the slowest last.

    Raises:
        BadInput: an option is invalid.
    """
    if options.kernel % 2 == 0:
        raise BadInput(f"--kernel is {options.kernel}, and Δ_K has a middle for odd K alone")
    if options.side < options.kernel + 1:
        raise BadInput(
            f"--side is {options.side}: a patch has to be larger than the kernel of {options.kernel}"
        )
    every = product(options.data, options.heads, options.starts, options.alphas, options.rates)
    return [
        Setting(
            heads,
            options.kernel,
            start,
            alpha,
            rate,
            data,
            options.side,
            options.out_channels,
            options.steps,
            options.batch,
            options.value_rate,
            options.sharpen,
        )
        for data, heads, start, alpha, rate in dict.fromkeys(every)
    ]


def parts_of(options: argparse.Namespace) -> list[Part]:
    """A part for every group of students.

    Raises:
        BadInput: an option is invalid.
    """
    seeds, parts = [*dict.fromkeys(options.seeds)], []
    for setting in settings_of(options):
        # refuses heads that do not suit the start, before any long work
        Students(setting, seeds[:1])
        patches(setting.data, setting.side)
        about = {"command": "teacher", "setting": asdict(setting), "seeds": seeds}
        parts.append(Part(setting.label, setting.steps, about))
    return parts


def done(part: Part, tell: Callable[[int, str], None]) -> dict[str, Any]:
    """Teach and measure a group.

    Args:
        part: a part from :func:`parts_of`.
        tell: progress callback with the steps taken and a status.

    Returns:
        ``group``: a record that includes the data of the figures; ``lines``: the metrics lines.
    """
    setting = Setting(**part.about["setting"])
    students, looks = taught(
        setting, part.about["seeds"], patches(setting.data, setting.side), tell
    )
    tell(setting.steps, "audit")
    group = {
        **asdict(setting),
        "label": setting.label,
        "seconds": looks[-1]["seconds"],
        "students": [rounded(row) for row in measured(students, looks)],
        "series": series_of(looks),
    }
    return {"group": group, "lines": [{**asdict(setting), **look} for look in looks]}


def gathered(results: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the metrics lines of all parts."""
    lines = [
        {"group": number, **line} for number, part in enumerate(results) for line in part["lines"]
    ]
    return {"groups": [part["group"] for part in results]}, lines


def series_of(looks: list[dict[str, Any]]) -> dict[str, Any]:
    """The data of the figures: error and median α of every student, and at every other look the
    first student's centres.
    """
    return {
        "step": [look["step"] for look in looks],
        "error": [[_short(e) for e in look["error"]] for look in looks],
        "alpha": [[_short(statistics.median(alpha)) for alpha in look["alpha"]] for look in looks],
        "tau": [[[round(t, 2) for t in head] for head in look["tau"][0]] for look in looks[::2]],
    }


def rounded(record: Any) -> Any:
    """The same record with every number rounded to three digits: no more are meaningful."""
    if isinstance(record, dict):
        return {key: rounded(value) for key, value in record.items()}
    if isinstance(record, list):
        return [rounded(value) for value in record]
    return _short(record) if isinstance(record, float) else record


def _short(value: float) -> float:
    return float(f"{value:.3g}")


LEARNED = 0.01
"""A student whose nearest convolution's kernel is this close to the teacher's has learned the
convolution.
"""


def table(summary: dict[str, Any]) -> str:
    """The groups as a table: medians over seeds, with the least and the greatest in brackets."""
    groups = summary["groups"]
    lines = [
        "| patches | heads | start | asked of centres | found | by nearest shifts | kernel within 1 % | shared, between, outside | "
        "error held out | kernel's distance | on Δ_K | α at last |",
        "|---|---:|---|---|---:|---:|---:|---|---|---|---:|---|",
    ]
    shared = ("alpha", "rate", "floor")
    varied = [name for name in shared if len({group[name] for group in groups}) > 1]
    lines += [f"| {' | '.join(_cells(group, varied))} |" for group in groups]
    return "\n".join(lines) + "\n"


def _cells(group: dict[str, Any], varied: list[str]) -> list[str]:
    """The cells of a group; its start with the options that are not the same for all groups."""
    rows = group["students"]
    many = len(rows)
    apart = [row["kernel_apart"] for row in rows if row["kernel_apart"] is not None]
    counts = [row["count"] for row in rows]
    kinds = [statistics.fmean(n[kind] for n in counts) for kind in ("shared", "between", "outside")]
    return [
        group["data"],
        str(group["heads"]),
        ", ".join([group["start"], *(f"{name} {group[name]:g}" for name in varied)]),
        counts[0]["asked"],
        *(f"{sum(row[key]['found'] for row in rows)} of {many}" for key in ("count", "nearest")),
        f"{sum(distance < LEARNED for distance in apart)} of {many}",
        ", ".join(f"{mean:.1f}" for mean in kinds),
        _over([row["error"] for row in rows]),
        _over(apart),
        f"{statistics.median(row['inside'] for row in rows):.3f}",
        _over([statistics.median(row["alpha"]) for row in rows]),
    ]


def _over(numbers: list[float]) -> str:
    if not numbers:
        return "–"
    least, middle, most = (
        f"{n:.2g}" for n in (min(numbers), statistics.median(numbers), max(numbers))
    )
    return f"{middle} ({least} to {most})"
