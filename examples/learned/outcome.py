"""How the commands end: a text on stdout, or one line that says what is wrong."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from construct.errors import out_of_memory_error
from examples.learned.data import BadInput


class Diverged(RuntimeError):
    """A loss, or a weight, is no number any more."""


def stepped(optimiser: torch.optim.Optimizer, told: str) -> None:
    """Take a step.

    Raises:
        Diverged: it is too long for the type of the weights.
    """
    try:
        optimiser.step()
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise Diverged(told) from None


def ended(work: Callable[[Console], str], stopped: str) -> int:
    """Do the work of a command, and print what comes of it.

    Args:
        work: from the console for progress and errors to the text for stdout.
        stopped: what to say if it is interrupted.

    Returns:
        The exit code: 0, or 1 if a loss was no number, 2 for bad input or want of room, 130 if it was stopped.
    """
    console = Console(stderr=True)
    try:
        text = work(console)
    except KeyboardInterrupt:
        console.print(stopped)
        return 130
    except (BadInput, Diverged, OSError, RuntimeError) as error:
        told = error if isinstance(error, BadInput | Diverged | OSError) else out_of_memory_error(error)
        if told is None:  # a fault of ours, and no line of theirs
            raise
        console.print(f"error: {' '.join(str(told).split())}", markup=False, highlight=False, soft_wrap=True)
        return 1 if isinstance(error, Diverged) else 2
    print(text, end="")
    return 0


def records(path: Path, keys: Iterable[str], lines: bool = False) -> list[dict[str, Any]]:
    """What a run wrote down: JSON objects with these keys, one a line or one alone.

    Raises:
        BadInput: it is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found = [json.loads(line) for line in (text.splitlines() if lines else [text])]
    except ValueError as error:
        raise BadInput(f"{path}: damaged: {error} (remove its folder to train this run anew)") from None
    wanted = set(keys)
    if not all(isinstance(record, dict) and wanted <= record.keys() for record in found):
        raise BadInput(f"{path}: not what a run writes (remove its folder to train this run anew)")
    return found
