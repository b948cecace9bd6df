"""Bars for what is going on: one for all runs together, and one for each that is under way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


@contextmanager
def bars(console: Console, what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show them while something is done.

    Args:
        console: to show them on.
        what: there is more than one of.
        total: how many there are.

    Yields:
        A function of the thing, its steps taken, its steps in all, a word on how it goes, and whether it is done.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        overall = progress.add_task(what, total=total)
        tasks: dict[str, TaskID] = {}

        def tell(thing: Any, done: int, steps: int, word: str, ended: bool = False) -> None:
            name = str(thing)
            if name not in tasks:
                tasks[name] = progress.add_task("")
            progress.update(tasks[name], completed=done, total=steps, description=f"{name}: {word}")
            if ended:
                progress.remove_task(tasks.pop(name))
                progress.advance(overall)

        yield tell
