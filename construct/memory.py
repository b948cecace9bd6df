"""How much memory there is, asked before it is taken."""

import re
from pathlib import Path

import torch

from construct.errors import NotEnoughMemory


def available_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on ``device``, or None where the system does not tell."""
    if device.type == "cuda":
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


def require(needed: int, device: torch.device, what: str, who: str = "MHSA: ") -> None:
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
