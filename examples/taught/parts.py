"""What a command does falls into parts.  Each is written down as soon as it is done, and the same command reads it again later.

So a command that was stopped loses the parts under way and no other, and parts may be done beside each other, a process each: every
one has seeds of its own, and its numbers are those that it has alone.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from examples.learned.data import BadInput
from examples.learned.outcome import records
from examples.learned.replacing import replaced
from examples.learned.several import Tell, beside_each_other

FOLDER = "parts"
"""In the folder of all output."""

Do = Callable[["Part", Callable[[int, str], None]], dict[str, Any]]
"""Does a part: from it and a listener (steps taken, a word) to what was found, in JSON's types."""


@dataclass(frozen=True)
class Part:
    """One thing to do.

    Attributes:
        told: for people.
        steps: how many it takes.
        about: all that decides its numbers, in JSON's types.
    """

    told: str
    steps: int
    about: dict[str, Any]

    def __str__(self) -> str:
        return self.told

    def path(self, folder: Path) -> Path:
        """Where it is written down: a name for what decides its numbers, so that other settings are other files."""
        digest = hashlib.sha256(json.dumps(self.about, sort_keys=True).encode()).hexdigest()
        return folder / FOLDER / f"{digest[:24]}.json"

    def found(self, folder: Path) -> dict[str, Any] | None:
        """What was written down of it; None if nothing was.

        Raises:
            BadInput: the file is damaged, or of something else.
        """
        path = self.path(folder)
        if not path.exists():
            return None
        held = records(path, ("about", "found"))[0]
        if held["about"] != self.about or not isinstance(held["found"], dict):
            raise BadInput(f"{path}: of another part than its name says (remove it)")
        return held["found"]


def all_done(
    parts: list[Part], do: Do, folder: Path, jobs: int, threads: int, tell: Callable[..., None]
) -> list[dict[str, Any]]:
    """Do what is not done yet.

    Args:
        parts: all of them.
        do: one of them; a function of a module, for other processes import it.
        folder: of all output.
        jobs: processes at once.
        threads: of torch, for each of them.
        tell: gets a part, its steps taken and in all, a word, and whether it is done.

    Returns:
        What was found of each, in the order of the parts, read from its file, whoever wrote it and when.

    Raises:
        BadInput: a file or an option cannot be used, or a process died.
        Diverged: a loss is no number any more.
    """
    left = []
    for part in parts:
        if part.found(folder) is None:
            left.append(part)
        else:
            tell(part, part.steps, part.steps, "done before", ended=True)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    prepare = partial(_prepared, do, folder, threads)
    if min(jobs, len(left)) > 1:
        beside_each_other(left, prepare, min(jobs, len(left)), tell)
    else:
        work = prepare()
        for part in left:
            work(part, partial(tell, part))
            tell(part, part.steps, part.steps, "", ended=True)
    found = [part.found(folder) for part in parts]
    assert None not in found
    return found  # type: ignore[return-value]


def _prepared(do: Do, folder: Path, threads: int) -> Callable[[Part, Tell], None]:
    """In the process that does them."""
    torch.set_num_threads(threads)
    return partial(_done, do=do, folder=folder)


def _done(part: Part, tell: Tell, *, do: Do, folder: Path) -> None:
    """Do one and write it down, whole or not at all."""
    tell(0, part.steps, "")
    found = do(part, lambda steps, word: tell(steps, part.steps, word))
    replaced(part.path(folder), json.dumps({"about": part.about, "found": found}, allow_nan=False) + "\n")
