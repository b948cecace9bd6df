"""The files of a run: written atomically, and JSON records checked when they are read."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from examples.learned.data import BadInput


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file atomically: a killed process leaves the old file or the new one.

    Args:
        path: the file to write, in an existing folder.

    Yields:
        A temporary file next to it, renamed at the end.
    """
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def replaced(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as file:
        file.write(text.encode())


def records(path: Path, keys: Iterable[str], lines: bool = False) -> list[dict[str, Any]]:
    """Read JSON objects with these keys, one per line or a single one.

    Raises:
        BadInput: the file is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
        rows = [json.loads(line) for line in (text.splitlines() if lines else [text])]
    except ValueError as error:
        raise BadInput(
            f"{path}: damaged: {error} (remove its folder to train this run anew)"
        ) from None
    wanted = set(keys)
    if not all(isinstance(record, dict) and wanted <= record.keys() for record in rows):
        raise BadInput(f"{path}: not what a run writes (remove its folder to train this run anew)")
    return rows
