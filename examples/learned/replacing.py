"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write into a new file beside it, to the disk, and then in one step into place: who is killed leaves the old one or the new.

    Args:
        path: where the file belongs; its folder is there.

    Yields:
        The new file.
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
    """Write a text."""
    with replacing(path) as file:
        file.write(text.encode())
