"""What is refused, and how it is said: layers, files, and calls that do not fit into memory.  Imports nothing heavy."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# ---- text that is safe to show ---------------------------------------------------------------------------------------


def shown(name: str) -> str:
    """A name as it is if every character is printable, else its ``repr``."""
    return name if name.isprintable() else repr(name)


def one_line(text: object, limit: int = 600) -> str:
    """Any message on one line of printable characters, cut where it is very long."""
    line = " ".join(str(text).split())
    if len(line) > limit:
        line = line[: limit - 4] + " ..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)


def described(error: BaseException) -> str:
    """What an error says, on one line, with its class in front."""
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


# ---- refusals --------------------------------------------------------------------------------------------------------


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


# ---- memory, asked for before it is taken ----------------------------------------------------------------------------


def available_bytes(device: "torch.device") -> int | None:
    """Bytes that can still be allocated on ``device``, or None where the system does not tell."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    bounds = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(int(line.split()[1]) * 1024)
    except OSError:
        return None
    try:  # a container may allow less than the machine has
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            bounds.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no such control group: the machine's own figure stands
    return min(bounds) if bounds else None


SMALL = 2**26
"""Up to this much (64 MiB), nobody asks: the question itself takes longer than a small layer."""


def require(needed: int, device: "torch.device", what: str, who: str = "MHSA: ") -> None:
    """Refuse, before anything is allocated, what cannot fit.

    Args:
        needed: bytes.
        device: where they would lie.
        what: that needs them.
        who: stands before the message.

    Raises:
        NotEnoughMemory: ``needed`` bytes are more than there are; the message gives both figures.
    """
    available = available_bytes(device) if needed > SMALL else None
    if available is not None and needed > available:
        raise NotEnoughMemory(f"{who}{what} needs {gib(needed)}, and {gib(available)} are free on {device}")


def refused_by_torch(error: BaseException) -> NotEnoughMemory | None:
    """What torch says of memory that it did not get, in one clause with the figure; None if the error is another one."""
    if "DefaultCPUAllocator" not in str(error):
        return None
    asked = re.search(r"tried to allocate (\d+) bytes", str(error))
    return NotEnoughMemory(f"out of memory: {gib(int(asked[1]))} more were asked for" if asked else "out of memory")


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**27 else f"{count / 2**20:.1f} MiB"
