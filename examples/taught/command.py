"""The command line: settings by options, metrics as lines of JSON, a summary, a table and pictures."""

import argparse
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from examples.learned.command import machine
from examples.learned.data import BadInput
from examples.learned.outcome import ended
from examples.taught import cnn, plots, teacher

METRICS, SUMMARY, TABLE = "metrics.jsonl", "summary.json", "table.md"
COMMANDS = {"teacher": teacher, "cnn": cnn}


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m examples.taught",
        description="Does gradient descent find the theorem (teacher), and where does a converted network go (cnn)?",
    )
    commands = found.add_subparsers(dest="command", required=True)
    about = {
        "teacher": "random convolutions teach attention layers on patches of photographs",
        "cnn": "a trained CNN goes on learning, as itself and as attention",
    }
    for name, module in COMMANDS.items():
        one = commands.add_parser(name, help=about[name], description=f"{about[name][0].upper()}{about[name][1:]}.")
        module.options_of(one)
        one.add_argument(
            "--out", type=Path, default=Path(f"taught-{name}"), help="folder of all output (default: %(default)s)"
        )
        one.add_argument("--threads", type=int, default=1, help="of torch (default: %(default)s)")
        one.add_argument("--no-plots", action="store_true", help="write numbers alone")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 1 if a loss was no number, 2 for bad input, 130 if it was stopped."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(given)
    stopped = "stopped; what was measured until then is in the folder"
    return ended(lambda console: everything(options, given, console), stopped)


def checked(options: argparse.Namespace) -> None:
    """Make sure that numbers are what they have to be.

    Raises:
        BadInput: one is not; the message names its option.
    """
    for name, value in vars(options).items():
        option = f"--{name.replace('_', '-')}"
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if name == "seeds":
                if not 0 <= number < 2**31:
                    raise BadInput(f"{option} has {number}, not a whole number from 0 on")
            elif not (0 < number < math.inf):
                raise BadInput(f"{option} is {number}, not a positive number")


def everything(options: argparse.Namespace, given: Sequence[str], console: Console) -> str:
    """Run, and write metrics, summary, table and pictures.

    Returns:
        The table.

    Raises:
        BadInput: the options cannot be used, or the folder cannot be written.
        Diverged: a loss is no number any more.
    """
    checked(options)
    module = COMMANDS[options.command]
    total = module.steps_of(options)
    torch.set_num_threads(options.threads)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        metrics = (options.out / METRICS).open("w", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--out {options.out}: {error.strerror}") from None
    stated = {
        "command": shlex.join(["python", "-m", "examples.taught", *given]),
        "machine": machine("cpu", options.threads),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    start = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with metrics, Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total)

        def line(record: dict[str, Any]) -> None:
            metrics.write(json.dumps(record, allow_nan=False) + "\n")
            metrics.flush()

        def tell(done: int, word: str) -> None:
            progress.update(task, completed=done, description=word)

        if options.command == "teacher":
            found: dict[str, Any] = {"groups": teacher.groups_of(options, line, tell)}
            text = teacher.table(found["groups"])
        else:
            found = cnn.runs_of(options, line, tell)
            text = cnn.table(found)
    stated["seconds"] = str(round(time.monotonic() - start))
    text += f"\n`{stated['command']}`: begun {stated['started']}, {stated['seconds']} s; {stated['machine']}.\n"
    _replace(
        options.out / SUMMARY,
        json.dumps({**stated, "seeds": options.seeds, **found}, allow_nan=False, separators=(",", ":")) + "\n",
    )
    _replace(options.out / TABLE, text)
    if not options.no_plots:
        plots.write(plots.FIGURES[options.command], options.out / SUMMARY, options.out)
    return text


def _replace(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)  # noqa: PTH105
