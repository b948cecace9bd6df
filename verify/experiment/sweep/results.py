"""The results of a sweep: one row per certificate, written to a SQLite file as they arrive."""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

FORMAT = 0x636F6E76
"""SQLite's application id of these files."""


@dataclass(frozen=True)
class Row:
    """One certificate, or the reason for its absence.

    Attributes:
        key: primary key, a digest of all that the certificate depends on; equal for the same layer
            under the same options.
        model: the file or factory; "random" for random layers.
        layer: its path in the network; "seed N" for random layers.
        fault: the fault planted in it; "" for none.
        kind: the convolution's class in ``torch.nn``.
        geometry: the convolution as torch prints it, and the grid.
        dtype: the weights' dtype.
        alpha: the least sharpness of the heads.
        digest: the digest of the convolution's weights.
        verdict: PROVED, UNDECIDED or REFUTED; "refused" if no certificate is possible; "" if
            ``error`` says why.
        claim: the certificate's claim.
        bound: the bound on the difference.
        observed: the largest difference in the certificate's runs.
        seconds: the time that the certificate took.
        error: what went wrong; on random layers also why the verdict is false.
        worker: the worker that made it.
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
VERDICTS = ("PROVED", "UNDECIDED", "REFUTED", "refused")
"""Every verdict of a row; a row without one says why in ``error``."""


def key_of(*content: Any) -> str:
    """The key for all that a certificate depends on.

    >>> key_of("random", 17, "")[:8]
    '26bdfd00'
    """
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class Results:
    """The SQLite file of a sweep; created if missing and ``new`` allows it.

    Raises:
        ValueError: the file is something else, or there is none; from its methods too: it cannot be
            read or written.
    """

    def __init__(self, path: Path, new: bool = True):
        if path.exists() and not path.is_file():
            raise ValueError(f"{path}: is there, and is not a file (give another name)")
        if not new and not path.exists():
            raise ValueError(f"{path}: no such file (a sweep writes one with --output)")
        self._path = path
        with self._used():
            self._file = sqlite3.connect(path)
            kind, tables = self._file.execute(
                "SELECT *, (SELECT count(*) FROM sqlite_master) FROM pragma_application_id"
            ).fetchone()
            if kind != FORMAT and (tables or not new):
                raise ValueError(f"{path}: is not the results of a sweep (give another name)")
            if new:  # to read results changes nothing
                self._create(kind)
        self._check_rows()

    def _create(self, kind: int) -> None:
        with self._file:
            if kind != FORMAT:
                self._file.execute(f"PRAGMA application_id = {FORMAT}")
            self._file.execute(
                f"CREATE TABLE IF NOT EXISTS certificates ({', '.join(COLUMNS)}, PRIMARY KEY (key)) WITHOUT ROWID"
            )
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS runs (started, command, versions, workers, seconds, certificates)"
            )

    def _check_rows(self) -> None:
        """Refuse a file with a row that no sweep writes, as after an edit by hand."""
        unlike = [
            f"typeof({field.name}) NOT IN ('real', 'integer', 'null')"
            if field.default is None
            else f"typeof({field.name}) != 'text'"
            for field in fields(Row)
        ]
        unlike.append(f"verdict NOT IN {(*VERDICTS, '')}")
        for what, condition in (
            ("certificate", f"certificates WHERE {' OR '.join(unlike)}"),
            ("run", "runs WHERE typeof(seconds) NOT IN ('real', 'integer')"),
        ):
            if self.select(f"SELECT 1 FROM {condition} LIMIT 1"):
                raise ValueError(
                    f"{self._path}: a {what} in it is none that a sweep writes (give another name)"
                )

    @contextmanager
    def _used(self) -> Iterator[None]:
        """One line for a file that is damaged, locked, or on a full disk; damage may show only in a
        later query.
        """
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise ValueError(
                f"{self._path}: cannot be used ({error}; give another name)"
            ) from error

    def add(self, rows: Iterable[Row]) -> None:
        """Write rows; they are on disk when this returns."""
        marks = ", ".join("?" * len(COLUMNS))
        with self._used(), self._file:
            self._file.executemany(
                f"INSERT OR IGNORE INTO certificates VALUES ({marks})", map(astuple, rows)
            )

    def add_run(self, *record: Any) -> None:
        """Record a run: its start, command, versions, number of workers, seconds and certificates."""
        with self._used(), self._file:
            self._file.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", record)

    def keys(self) -> set[str]:
        """The keys of all rows."""
        return {key for (key,) in self.select("SELECT key FROM certificates")}

    def select(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self._used():
            return self._file.execute(query, values).fetchall()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
