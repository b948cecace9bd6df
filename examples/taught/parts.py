"""A command's work in parts, each stored as soon as it is done and read back by the same command
later.

An interrupted command loses only the unfinished parts.  Parts may run in parallel processes: each
has its own seeds, so its numbers are the same.
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
from examples.learned.running.files import records, replaced
from examples.learned.running.processes import Tell, run_in_processes

FOLDER = "parts"
"""The folder of the parts, in the output folder."""

Do = Callable[["Part", Callable[[int, str], None]], dict[str, Any]]
"""Runs a part with a progress callback (steps taken, status); returns its result in JSON's types.
"""


@dataclass(frozen=True)
class Part:
    """One unit of work.

    Attributes:
        label: its name in the progress bar.
        steps: how many it takes.
        about: everything that determines its numbers, in JSON's types.
    """

    label: str
    steps: int
    about: dict[str, Any]

    def __str__(self) -> str:
        return self.label

    def path(self, folder: Path) -> Path:
        """The file of its result, named by a digest of what determines its numbers."""
        digest = hashlib.sha256(json.dumps(self.about, sort_keys=True).encode()).hexdigest()
        return folder / FOLDER / f"{digest[:24]}.json"

    def stored(self, folder: Path) -> dict[str, Any] | None:
        """The stored result; None if there is none.

        Raises:
            BadInput: the file is damaged, or belongs to another part.
        """
        path = self.path(folder)
        if not path.exists():
            return None
        record = records(path, ("about", "result"))[0]
        if record["about"] != self.about or not isinstance(record["result"], dict):
            raise BadInput(f"{path}: of another part than its name says (remove it)")
        return record["result"]


def run_all(
    parts: list[Part], do: Do, folder: Path, jobs: int, threads: int, tell: Callable[..., None]
) -> list[dict[str, Any]]:
    """Run the parts without a stored result.

    Args:
        parts: all of them.
        do: runs one part; a function of a module, as other processes import it.
        folder: the folder of all output.
        jobs: the number of parallel processes.
        threads: torch's threads in each of them.
        tell: progress callback with a part, its steps taken, its total steps, a status, and whether
            it is done.

    Returns:
        The stored results, in the order of the parts.

    Raises:
        BadInput: a file or an option cannot be used, or a process died.
        Diverged: a loss is no longer a number.
    """
    pending = []
    for part in parts:
        if part.stored(folder) is None:
            pending.append(part)
        else:
            tell(part, part.steps, part.steps, "done before", ended=True)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    prepare = partial(_prepared, do, folder, threads)
    if min(jobs, len(pending)) > 1:
        run_in_processes(pending, prepare, min(jobs, len(pending)), tell)
    else:
        work = prepare()
        for part in pending:
            work(part, partial(tell, part))
            tell(part, part.steps, part.steps, "", ended=True)
    results = [part.stored(folder) for part in parts]
    assert None not in results
    return results  # type: ignore[return-value]


def _prepared(do: Do, folder: Path, threads: int) -> Callable[[Part, Tell], None]:
    """Set up a process, and return its work function."""
    torch.set_num_threads(threads)
    return partial(_done, do=do, folder=folder)


def _done(part: Part, tell: Tell, *, do: Do, folder: Path) -> None:
    """Run one part and store its result atomically."""
    tell(0, part.steps, "")
    result = do(part, lambda steps, word: tell(steps, part.steps, word))
    replaced(
        part.path(folder),
        json.dumps({"about": part.about, "result": result}, allow_nan=False) + "\n",
    )
