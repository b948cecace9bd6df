"""The command line of ``examples.taught``: writes metrics as lines of JSON, a summary, a table and
figures.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console

from examples.learned.command import machine
from examples.learned.data import BadInput
from examples.learned.running.console import MOST, bars, check_numbers, ended
from examples.learned.running.files import replaced
from examples.learned.running.processes import cores
from examples.taught import cnn, convert, plots, teacher
from examples.taught.parts import run_all

METRICS, SUMMARY, TABLE = "metrics.jsonl", "summary.json", "table.md"
COMMANDS = {"teacher": teacher, "cnn": cnn, "convert": convert}
SHARPEST = dict.fromkeys(("alpha", "alphas", "sharpen"), 2**20)
"""The largest values of α: attention is one-hot long before."""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    arguments = argparse.ArgumentParser(
        prog="python -m examples.taught",
        description="Does gradient descent find the theorem (teacher), and where does a converted network go (cnn)?  "
        "A command that was stopped does what is left when it is given again.",
    )
    commands = arguments.add_subparsers(dest="command", required=True)
    about = {
        "teacher": "random convolutions teach attention layers on patches of photographs",
        "cnn": "a trained CNN goes on learning, as itself and as attention",
        "convert": "a CNN trained on CIFAR-10 or Fashion-MNIST, and its predictions once it is attention",
    }
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=about[name], description=f"{about[name][0].upper()}{about[name][1:]}."
        )
        module.options_of(command)
        command.add_argument(
            "--out",
            type=Path,
            default=Path(f"taught-{name}"),
            help="folder of all output (default: %(default)s)",
        )
        command.add_argument(
            "--threads",
            type=int,
            default=1,
            help="of torch, for each process (default: %(default)s)",
        )
        command.add_argument(
            "--jobs",
            type=int,
            metavar="N",
            help="processes at once (default: one for each CPU core)",
        )
        command.add_argument("--no-plots", action="store_true", help="write numbers alone")
    return arguments


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 1 if a loss was not a number, 2 for bad input, 130 if
    it was interrupted.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(given)
    stopped = "stopped; the same command does what is left"
    return ended(lambda console: everything(options, given, console), stopped)


def everything(options: argparse.Namespace, given: Sequence[str], console: Console) -> str:
    """Run, and write metrics, summary, table and pictures.

    Returns:
        The table.

    Raises:
        BadInput: the options cannot be used, or the folder cannot be written.
        Diverged: a loss is no longer a number.
    """
    check_numbers(options, MOST | SHARPEST)
    module = COMMANDS[options.command]
    where = {"threads": options.threads, "torch": torch.__version__}
    parts = [replace(part, about={**part.about, **where}) for part in module.parts_of(options)]
    torch.set_num_threads(options.threads)
    jobs = min(len(parts), options.jobs or max(1, cores() // options.threads))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {options.out}: {error.strerror}") from None
    before = sum(part.stored(options.out) is not None for part in parts)
    stated = {
        "command": shlex.join(["python", "-m", "examples.taught", *given]),
        "machine": machine("cpu", options.threads) + (f", {jobs} at once" if jobs > 1 else ""),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    start = time.monotonic()
    with bars(console, options.command, len(parts)) as tell:
        done = run_all(parts, module.done, options.out, jobs, options.threads, tell)
    results, lines = module.gathered(done)
    stated["seconds"] = str(round(time.monotonic() - start))
    earlier = f" ({before} of {len(parts)} parts are of an earlier run)" if before else ""
    text = module.table(results)
    text += f"\n`{stated['command']}`: begun {stated['started']}, {stated['seconds']} s{earlier}; {stated['machine']}.\n"
    replaced(
        options.out / METRICS, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    )
    summary = json.dumps(
        {**stated, "seeds": options.seeds, **results}, allow_nan=False, separators=(",", ":")
    )
    replaced(options.out / SUMMARY, summary + "\n")
    replaced(options.out / TABLE, text)
    if not options.no_plots:
        plots.write(plots.FIGURES[options.command], options.out / SUMMARY, options.out)
    return text
