"""How much memory there is, asked before it is taken."""

from pathlib import Path

import torch

from construct.attention import MHSA
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


def require(needed: int, device: torch.device, what: str) -> None:
    """Refuse, before anything is allocated, what cannot fit.

    Raises:
        NotEnoughMemory: ``needed`` bytes are more than there are; the message gives both figures.
    """
    available = available_bytes(device)
    if available is not None and needed > available:
        raise NotEnoughMemory(f"MHSA: {what} needs {gib(needed)}, and {gib(available)} are free on {device}")


def operands(layer: MHSA, batch: int, rows: int, keys: int, heads: int) -> int:
    """Bytes of what batched products make of their operands: tokens and weights, cast and laid out anew, and projections.

    Args:
        layer: whose weights.
        batch: images.
        rows: queries of one block.
        keys: T.
        heads: evaluated at once.
    """
    size = torch.promote_types(layer.w_val.dtype, torch.float32).itemsize
    tokens = batch * keys * layer.in_channels
    weights = 2 * heads * (layer.w_val[0].numel() + layer.w_out[0].numel())
    if not layer.has_content():
        return size * (tokens + weights)
    key_dim = layer.w_key_pos.shape[1]
    queries, projected = batch * rows * layer.in_channels, batch * heads * (rows + keys) * key_dim
    weights += 2 * heads * (layer.w_qry[0].numel() + layer.w_key[0].numel())
    # Projected queries and keys, each once more for the product of the two, and queries once more in float64.
    return size * (tokens + weights + queries + 2 * projected) + 8 * batch * heads * rows * key_dim


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**27 else f"{count / 2**20:.1f} MiB"
