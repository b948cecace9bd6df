"""The console of the commands: progress bars, the result on stdout, errors in one line and an exit
code.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from construct.errors import out_of_memory_error
from examples.learned.data import BadInput
from examples.learned.running.group import first_to_end

FROM_ZERO = ("seeds", "validation")
"""The options whose numbers may be 0."""
MOST = {"seeds": 2**32 - 1, "threads": 1024}
"""The largest values: of a seed of numpy's, and of cores that any machine has."""


class Diverged(RuntimeError):
    """A loss or a weight is no longer a number."""


def stepped(optimiser: torch.optim.Optimizer, message: str) -> None:
    """Take an optimizer step.

    Raises:
        Diverged: the step overflows the dtype of the weights.
    """
    try:
        optimiser.step()
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise Diverged(message) from None


def ended(work: Callable[[Console], str], stopped: str) -> int:
    """Run a command and print its result.

    Args:
        work: takes the console for progress and errors, returns the text for stdout.
        stopped: the message of an interrupted run.

    Returns:
        The exit code: 0, or 1 if a loss was not a number, 2 for bad input or a full disk, 130 if it
        was interrupted.
    """
    console = Console(stderr=True)
    try:
        text = work(console)
    except KeyboardInterrupt:
        if first_to_end():
            console.quiet = False  # it is quiet in all processes but one
            console.print(stopped)
        return 130
    except (BadInput, Diverged, OSError, RuntimeError) as error:
        reason = (
            error
            if isinstance(error, BadInput | Diverged | OSError)
            else out_of_memory_error(error)
        )
        if reason is None:  # a bug of this program, not an error of torch
            raise
        if first_to_end():
            console.quiet = False
            console.print(
                f"error: {' '.join(str(reason).split())}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        return 1 if isinstance(error, Diverged) else 2
    print(text, end="")
    return 0


def check_numbers(options: argparse.Namespace, most: Mapping[str, int] = MOST) -> None:
    """Refuse numbers out of their ranges: they are positive, or for seeds and validation from 0 on.

    Args:
        options: of a command line.
        most: the largest values by name.

    Raises:
        BadInput: one is out of range; the message names its option.
    """
    for name, value in vars(options).items():
        option, least = f"--{name.replace('_', '-')}", -1 if name in FROM_ZERO else 0
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if not least < number < inf:
                kind = "whole number from 0 on" if least else "positive number"
                raise BadInput(f"{option} is {number}, not a {kind}")
            if number > most.get(name, inf):
                raise BadInput(f"{option} is {number}, more than {most[name]}")


@contextmanager
def bars(console: Console, what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a progress bar for all runs together, and one for each run in progress.

    Args:
        console: for the bars.
        what: the label of the overall bar.
        total: the number of runs.

    Yields:
        A callback with the run, its steps taken, its total steps, a status, and whether it is done.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        overall = progress.add_task(what, total=total)
        tasks: dict[str, TaskID] = {}

        def tell(run: Any, done: int, steps: int, word: str, ended: bool = False) -> None:
            name = str(run)
            if name not in tasks:
                tasks[name] = progress.add_task("")
            progress.update(tasks[name], completed=done, total=steps, description=f"{name}: {word}")
            if ended:
                progress.remove_task(tasks.pop(name))
                progress.advance(overall)

        yield tell
