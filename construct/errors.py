"""Exceptions and their messages, and the memory check before large allocations.  Imports nothing
heavy.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import torch

# ---- printable text ------------------------------------------------------------------------------


def printable(name: object) -> str:
    """A name or path itself if every character is printable, else its ``repr``."""
    text = str(name)
    return text if text.isprintable() else repr(text)


def one_line(text: object, limit: int = 600) -> str:
    """A message on one line of printable characters, truncated to ``limit``."""
    line = " ".join(str(text).split())
    if len(line) > limit:
        line = line[: limit - 4] + " ..."
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line
    )


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 layer``, ``2 layers``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"


def describe(error: BaseException) -> str:
    """The class and message of an error, on one line."""
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


# ---- refusals ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """One module that cannot be converted.

    Attributes:
        path: the module's path in the network (``"features.3"``); empty for a bare module.
        kind: the name of its class.
        reason: why, in one clause.
    """

    path: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.path, self.kind, self.reason)))


class UnsupportedLayer(ValueError):
    """Modules that cannot be converted; ``rows`` holds a :class:`~construct.errors.Refusal` for
    each.

    >>> import torch, construct
    >>> construct.conv_to_mhsa(torch.nn.Linear(2, 2))
    Traceback (most recent call last):
    construct.errors.UnsupportedLayer: Linear: not a convolution
    """

    def __init__(self, rows: Iterable[Refusal]):
        self.rows = tuple(rows)
        super().__init__(self.rows)

    def __str__(self) -> str:
        if len(self.rows) == 1:
            return str(self.rows[0])
        return f"{len(self.rows)} layers cannot be converted:\n" + "\n".join(
            f"  {row}" for row in self.rows
        )


def refuse(module: object, reason: str, path: str = "") -> NoReturn:
    """Raise :class:`UnsupportedLayer` for one module."""
    raise UnsupportedLayer([Refusal(path, type(module).__name__, reason)])


class NotEnoughMemory(MemoryError):
    """A call needs more memory than is free.  Raised before allocating; the message has both
    figures.
    """


class BadModelFile(ValueError):
    """A file that is not a readable model, or an option that does not fit it; the message is one
    line.

    Args:
        what: what is wrong.
        remedy: what to do in Python; appended in parentheses.
        option: what to do on the command line, if that differs.
    """

    def __init__(self, what: str, remedy: str = "", option: str = ""):
        super().__init__(f"{what} ({remedy})" if remedy else what)
        self.what = what
        self.remedy = remedy
        self.option = option
        self.on_command_line = f"{what} ({option})" if option else str(self)


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Prefix every :class:`BadModelFile` raised within the block with the name of a file."""
    try:
        yield
    except BadModelFile as error:
        raise BadModelFile(
            f"{printable(path)}: {error.what}", error.remedy, error.option
        ) from error


# ---- memory, checked before it is allocated ------------------------------------------------------


def available_bytes(device: "torch.device") -> int | None:
    """Bytes that can still be allocated on ``device``, or None if the system does not say."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    bounds = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    try:  # a container's limit may be lower than the machine's memory
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            bounds.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no such control group
    return min(bounds) if bounds else None


UNCHECKED_BYTES = 2**26
"""Allocations up to this size (64 MiB) are not checked: querying the system takes longer than a
small layer.
"""


def require(needed: int, device: "torch.device", what: str, who: str = "MHSA: ") -> None:
    """Check, before allocating, that ``needed`` bytes are free; ``who`` and ``what`` begin the
    message.

    Raises:
        NotEnoughMemory: fewer than ``needed`` bytes are free; the message has both figures.
    """
    available = available_bytes(device) if needed > UNCHECKED_BYTES else None
    if available is not None and needed > available:
        raise NotEnoughMemory(
            f"{who}{what} needs {format_bytes(needed)}, and {format_bytes(available)} are free on {device}"
        )


def out_of_memory_error(error: BaseException) -> NotEnoughMemory | None:
    """Turn torch's out-of-memory error into :class:`NotEnoughMemory`, with its figure; None for any
    other error.
    """
    if "DefaultCPUAllocator" not in str(error):
        return None
    size = re.search(r"tried to allocate (\d+) bytes", str(error))
    return NotEnoughMemory(
        f"out of memory: {format_bytes(int(size[1]))} more were asked for"
        if size
        else "out of memory"
    )


def format_bytes(count: int) -> str:
    """Bytes in MiB or GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**27 else f"{count / 2**20:.1f} MiB"
