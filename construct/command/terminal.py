"""Progress bar of the command."""

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from construct.errors import printable


class Phases:
    """A progress bar of rich for consecutive phases; hidden without a terminal."""

    def __init__(self, bar: Progress):
        self._bar = bar
        self._task = bar.add_task("reading", total=None)

    def begin(self, what: str, total: int | None = None) -> None:
        """Start a phase of ``total`` steps; None for an unknown number."""
        self._bar.reset(self._task, total=total, description=escape(printable(what)))
        self._what = what

    def advance(self, path: str) -> None:
        """Count one finished step, for the layer ``path``."""
        self._bar.update(
            self._task, advance=1, description=escape(printable(f"{self._what} {path}"))
        )


@contextlib.contextmanager
def phases() -> Iterator[Phases]:
    """Show the progress bar within the block."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        yield Phases(bar)
