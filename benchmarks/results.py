"""The results of a command: rows with goals, printed as they come and written as JSON for
:mod:`benchmarks.page`.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.timing import CPU

FOLDER = Path(__file__).parent / "results"
"""The committed results, one file for each command and machine."""


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        what: what was measured.
        values: the measured numbers; each is compared with the goal.
        goal: the most that they may be; None without a goal.
        unit: of the numbers; a ratio has none.
        quartiles: of each ratio, round by round.
        milliseconds: for each ratio, the medians of torch's convolution and of the attention.
    """

    what: str
    values: tuple[float, ...]
    goal: float | None = None
    unit: str = ""
    quartiles: tuple[tuple[float, float], ...] = ()
    milliseconds: tuple[tuple[float, float], ...] = ()

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """What, measured, goal and verdict."""
        unit = f" {self.unit}" if self.unit else ""
        measured = ", ".join(short(value) for value in self.values) + unit
        if self.goal is None:
            return self.what, measured, "", ""
        met = all(value <= self.goal for value in self.values)
        return self.what, measured, f"≤ {short(self.goal)}{unit}", "met" if met else "MISSED"


def short(value: float) -> str:
    """A number in three digits, or as a whole one."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def machine(device: torch.device) -> str:
    """The machine of the measurements."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    path = Path("/proc/cpuinfo")
    pairs = [line.partition(":") for line in path.read_text().splitlines()] if path.exists() else []
    info = {name.strip(): value.strip() for name, _, value in pairs}
    name = info.get("model name") or platform.processor() or platform.machine()
    kind = f" (family {info['cpu family']}, model {info['model']})" if "cpu family" in info else ""
    return f"{name}{kind}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"


def parsed(
    parser: argparse.ArgumentParser, known: Collection[str], words: Sequence[str] | None
) -> argparse.Namespace:
    """Parse names, ``--json`` and the options that a parser has already; all names if none is
    given.
    """
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all by default"
    )
    parser.add_argument("--json", type=Path, help="write all measurements")
    options = parser.parse_args(words)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    options.names = options.names or [*known]
    return options


def publish(
    command: str, rows: Iterable[Row], path: Path | None, device: torch.device = CPU
) -> None:
    """Print the rows as they are measured, and write them.

    Args:
        command: how they were measured.
        rows: what is measured while it is iterated.
        path: a file of JSON, or None.
        device: where.
    """
    head: dict[str, object] = {
        "command": command,
        "machine": machine(device),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    head["threads"] = torch.get_num_threads()  # unless a row names another number
    began, busy, own = time.perf_counter(), busy_seconds(), sum(os.times()[:4])
    done: list[Row] = []
    for row in rows:
        what, *cells = row.cells
        print(f"{what:72s}  {cells[0]:30s}  {cells[1]:9s}  {cells[2]}".rstrip(), flush=True)
        done.append(row)
        spent = time.perf_counter() - began
        others = max(0.0, busy_seconds() - busy - (sum(os.times()[:4]) - own)) / spent
        content = head | {
            "minutes": spent / 60,
            "cores used by others": others,
            "rows": [asdict(row) for row in done],
        }
        if path is not None:
            path.write_text(
                json.dumps(rounded(content), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )


def busy_seconds() -> float:
    """The processor time of all processes of this machine; 0 where the system does not say."""
    path = Path("/proc/stat")
    if not path.exists():
        return 0.0
    user, nice, system = map(int, path.read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def rounded(value: object) -> object:
    """The same with four significant digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return value
