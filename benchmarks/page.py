"""Prints docs/speed.md, made from the committed results; ``--write`` writes it.

python -m benchmarks.page [--write]
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER, Row

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
COMMANDS = tuple(f"benchmarks{name}" for name in ("", ".convert", ".export", ".certify"))
INTRODUCTION = """# Speed

Times of the attention divided by those of torch's own convolutions, and other figures, each with its goal. A ratio is the median
over the rounds of one run, in which both take turns. A network's time is the sum over its convolutions, each in the faster of two
memory layouts (contiguous, channels last). All times are processor time on one thread, unless a row names two: then by the clock.

Each command writes its figures with `--json FILE`; those in [benchmarks/results](../benchmarks/results) are shown here, and
`python -m benchmarks.page --write` renews this page. `python -m benchmarks --device cuda` measures a GPU.
`python -m benchmarks.compare OLD_TREE` compares two checkouts.

Two machines were measured since one-hot heads are evaluated as [kernels.md](kernels.md) describes. The evaluation before took
1.09 times as long as ResNet-50's convolutions on an Intel Xeon (AVX-512), and 18.8 times as long as cuDNN's in TF32 on a GPU
(an H200).
"""


def stored(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The committed results, in the order of commands and machines."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return sorted(
        results, key=lambda r: (COMMANDS.index(r["command"].split()[2]), r["machine"], r["command"])
    )


def table(result: dict[str, Any]) -> str:
    """The rows of one command on one machine, as Markdown."""
    lines = ["| | measured | goal | |", "|---|---:|---:|---|"]
    for row in result["rows"]:
        cells = Row(**row).cells
        lines.append(f"| {' | '.join(cells)} |")
    where = f"{result['machine']}; torch {result['torch']}; {result['date']}; {result['minutes']:.2g} minutes"
    others = f"other processes used {result['cores used by others']:.2g} cores"
    return "\n".join([f"## `{result['command']}`", "", f"{where}; {others}.", "", *lines, ""])


def page(folder: Path = FOLDER) -> str:
    """The page."""
    return "\n".join([INTRODUCTION, *map(table, stored(folder))])


def rows_on(machine: str, folder: Path = FOLDER) -> dict[str, Row]:
    """All rows of a machine, by what they are."""
    results = [result for result in stored(folder) if result["machine"].startswith(machine)]
    return {row["what"]: Row(**row) for result in results for row in result["rows"]}


def main(words: Sequence[str] | None = None) -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page", description="docs/speed.md from the results."
    )
    parser.add_argument("--write", action="store_true", help="write docs/speed.md")
    if parser.parse_args(words).write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
