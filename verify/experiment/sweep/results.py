"""The results of a sweep: one row a certificate, in a SQLite file that is written as they come."""

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

FORMAT = 0x636F6E76
"""SQLite's application id of these files."""


@dataclass(frozen=True)
class Row:
    """One certificate, or the reason why there is none.

    Attributes:
        key: primary key: a digest of all that the certificate depends on, so that the same layer under the same options has it.
        model: the file or factory; "random" for random layers.
        layer: its path in the network; "seed N" for random layers.
        fault: the fault that was planted in it; "" for none.
        kind: of the convolution: its class in ``torch.nn``.
        geometry: the convolution as torch prints it, and the grid.
        dtype: of the weights.
        alpha: the least sharpness of the heads.
        digest: of the convolution's weights.
        verdict: PROVED, UNDECIDED or REFUTED; "refused" where no certificate can be; "" where ``error`` says why.
        claim: of the certificate.
        bound: on the difference.
        observed: the greatest difference in the runs of the certificate.
        seconds: that the certificate took.
        error: what went wrong; on random layers also why the verdict is false.
        worker: that made it.
    """

    key: str
    model: str
    layer: str
    fault: str = ""
    kind: str = ""
    geometry: str = ""
    dtype: str = ""
    alpha: float | None = None
    digest: str = ""
    verdict: str = ""
    claim: str = ""
    bound: float | None = None
    observed: float | None = None
    seconds: float | None = None
    error: str = ""
    worker: str = ""


COLUMNS = tuple(field.name for field in fields(Row))


def key_of(*content: Any) -> str:
    """The key of what a certificate depends on.

    >>> key_of("random", 17, "")[:8]
    '26bdfd00'
    """
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class Results:
    """The SQLite file of a sweep; where there is none it is made, if ``new`` allows.

    Raises:
        ValueError: the file is something else, or there is none.
    """

    def __init__(self, path: Path, new: bool = True):
        if not new and not path.is_file():
            raise ValueError(f"{path}: no such file (a sweep writes one with --output)")
        try:
            self._file = sqlite3.connect(path)
            (kind,), (tables,) = (
                self._file.execute(query).fetchone()
                for query in ("PRAGMA application_id", "SELECT count(*) FROM sqlite_master")
            )
            if tables and kind != FORMAT:
                raise ValueError(f"{path}: is not the results of a sweep (give another name)")
            with self._file:
                self._file.execute(f"PRAGMA application_id = {FORMAT}")
                self._file.execute(
                    f"CREATE TABLE IF NOT EXISTS certificates ({', '.join(COLUMNS)}, PRIMARY KEY (key)) WITHOUT ROWID"
                )
                self._file.execute(
                    "CREATE TABLE IF NOT EXISTS runs (started, command, versions, workers, seconds, certificates)"
                )
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path}: cannot be used ({error}; give another name)") from error

    def add(self, rows: Iterable[Row]) -> None:
        """Write rows; they are on the disk when this returns."""
        marks = ", ".join("?" * len(COLUMNS))
        with self._file:
            self._file.executemany(f"INSERT OR IGNORE INTO certificates VALUES ({marks})", map(astuple, rows))

    def add_run(self, *record: Any) -> None:
        """Record a run: when it started, its command, versions, how many workers, seconds, certificates."""
        with self._file:
            self._file.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", record)

    def keys(self) -> set[str]:
        """The keys of all rows."""
        return {key for (key,) in self.select("SELECT key FROM certificates")}

    def select(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._file.execute(query, values).fetchall()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
