"""The console of the commands: progress bars, the result on stdout, errors in one line and an exit
code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
