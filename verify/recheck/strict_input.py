"""Files that the checker reads, and how it refuses them in one line."""

import hashlib
import json
import math
import os
from io import BufferedReader
from pathlib import Path
from typing import Any

from verify.verdict import escaped

AnyPath = str | os.PathLike[str]
"""A path, as Python's own functions take it."""
Record = dict[str, Any]
"""A JSON object, or what becomes one."""
Vector = tuple[int, ...]
"""A size, a shift or a position: one integer for each axis."""


class Rejected(ValueError):
    """A file is malformed, or a certificate states something false; the one-line message says what.

    Unprintable characters of the file are escaped.
    """

    def __init__(self, message: str):
        super().__init__(escaped(message))


class NotConfirmed(Rejected):
    """The files are intact, but what the certificate states about them is false."""


def opened(path: AnyPath) -> BufferedReader:
    """A file to read.

    Raises:
        Rejected: a pipe or a device, which may have no end.
        OSError: it cannot be read.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise Rejected(f"{path}: is not a regular file")
    return path.open("rb")


def sha256_of(path: AnyPath) -> str:
    """SHA-256 of a file's bytes; raises as `opened` does."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def strict_json(text: bytes, what: str) -> Any:
    """Parse JSON that has no repeated keys and only finite numbers; raise `Rejected` otherwise."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError(f"a key stands twice among {', '.join(key for key, _ in pairs)}"[:200])
        return dict(pairs)

    def finite(number: str) -> float:
        if math.isfinite(float(number)):
            return float(number)
        raise ValueError(f"{number[:20]} must be a finite number")

    try:
        return json.loads(
            text.decode(), object_pairs_hook=unique, parse_constant=finite, parse_float=finite
        )
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{what} must be strict JSON: {error}") from None
