"""What the builder refuses, said once and in full.  Imports nothing."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """One module that cannot be converted.

    Attributes:
        path: where it sits in the network (``"features.3"``); empty for a module given alone.
        kind: its class, by name.
        reason: why, in one clause.
    """

    path: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.kind}: {self.reason}" if self.path else f"{self.kind}: {self.reason}"


class UnsupportedLayer(ValueError):
    """Some modules cannot be converted; ``rows`` lists every one of them as (path, class, reason)."""

    def __init__(self, rows: Iterable[Refusal]):
        self.rows = tuple(rows)
        super().__init__(self.rows)

    def __str__(self) -> str:
        if len(self.rows) == 1:
            return str(self.rows[0])
        return f"{len(self.rows)} layers cannot be converted:\n" + "\n".join(f"  {row}" for row in self.rows)


class NotEnoughMemory(MemoryError):
    """The call would need more memory than there is; the message gives both figures.  Raised before allocating."""


class BadModelFile(ValueError):
    """A file that cannot be read as a model, or an option that does not fit it; the message is one line.

    Args:
        what: the message, or, where a remedy follows, its beginning.
        remedy: what to do, as one does it in Python.
        option: what to do on the command line, where that is something else.
    """

    def __init__(self, what: str, remedy: str = "", option: str = ""):
        super().__init__(f"{what} ({remedy})" if remedy else what)
        self.on_command_line = f"{what} ({option})" if option else str(self)
