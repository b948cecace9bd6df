"""How much memory there is, asked before it is taken."""

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


def require(needed: int, device: torch.device, what: str) -> None:
    """Refuse, before anything is allocated, what cannot fit.

    Raises:
        NotEnoughMemory: ``needed`` bytes are more than there are; the message gives both figures.
    """
    available = available_bytes(device) if needed > SMALL else None
    if available is not None and needed > available:
        raise NotEnoughMemory(f"MHSA: {what} needs {gib(needed)}, and {gib(available)} are free on {device}")


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**27 else f"{count / 2**20:.1f} MiB"
