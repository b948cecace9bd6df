"""The results of a benchmark: rows of a table, and one JSON of all of them."""

import json
import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Times, quartiles


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        name: what was computed.
        theirs, ours: median seconds of a call.
        quartiles: first and third quartile of the ratio, round by round.
        floor: a lower bound on the seconds of both; None where it was not computed.
        count: how often it occurs in its network.
    """

    name: str
    theirs: float
    ours: float
    quartiles: tuple[float, float]
    floor: float | None = None
    count: int = 1

    @classmethod
    def of(cls, name: str, theirs: Sequence[Times], ours: Sequence[Times], **more: Any) -> "Row":
        """Compare the fastest of their calls with the fastest of ours."""
        a, b = min(theirs, key=lambda t: t.median), min(ours, key=lambda t: t.median)
        ratios = [y / x for x, y in zip(a.rounds, b.rounds, strict=True)]
        return cls(name, a.median, b.median, quartiles(ratios), **more)

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


@dataclass
class Section:
    """What one section measured.

    Attributes:
        title: the section's title.
        rows: its comparisons.
        notes: sentences with other figures.
        figures: name → (measured, target: an upper limit, or a lower one where the name says so).
    """

    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, tuple[float, float | None]] = field(default_factory=dict)

    def judge(self, name: str, value: float, target: float | None) -> None:
        """Record a figure and its target."""
        self.figures[name] = value, target

    def by_time(self, name: str, target: float | None) -> None:
        """Record the ratio of the total times of a network's layers."""
        total = sum(row.ours * row.count for row in self.rows) / sum(row.theirs * row.count for row in self.rows)
        self.judge(name, total, target)

    def each(self, name: str, target: float, rows: Iterable[Row] | None = None) -> None:
        """Record the worst ratio, with a target for each."""
        self.judge(name, max(row.ratio for row in (self.rows if rows is None else rows)), target)

    def mean(self, name: str, target: float | None) -> None:
        """Record the geometric mean of the ratios."""
        self.judge(name, math.prod(row.ratio for row in self.rows) ** (1 / len(self.rows)), target)


def verdict(name: str, value: float, target: float | None) -> str:
    """A figure with its target."""
    if target is None:
        return f"{name}: {value:.3g}"
    met = value >= target if "at least" in name else value <= target
    return f"{name}: {value:.3g} (target {target:g}: {'met' if met else 'MISSED'})"


def show(section: Section) -> None:
    """Print a section."""
    print(f"\n{section.title}")
    for row in section.rows:
        floor = f"   floor {row.floor * 1e3:8.3f}" if row.floor is not None else ""
        low, high = row.quartiles
        times = f" ×{row.count}" if row.count > 1 else ""
        figures = f"convolution {row.theirs * 1e3:9.3f}   attention {row.ours * 1e3:9.3f} ms{floor}"
        print(f"  {row.name + times:44s} {figures}   {row.ratio:5.2f}  ({low:.2f} to {high:.2f})")
    for line in section.notes:
        print(f"  {line}")
    for name, (value, target) in section.figures.items():
        print(f"  {verdict(name, value, target)}")


def machine(device: torch.device) -> str:
    """The machine of the measurements."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.processor() or platform.machine()


def write(path: Path, heads: dict[str, Any], sections: Iterable[Section]) -> None:
    """Write all sections as JSON."""
    content = [
        {
            "title": section.title,
            "rows": [asdict(row) | {"ratio": row.ratio} for row in section.rows],
            "notes": section.notes,
            "figures": {name: {"value": value, "target": target} for name, (value, target) in section.figures.items()},
        }
        for section in sections
    ]
    path.write_text(json.dumps(heads | {"sections": content}, indent=1) + "\n")
