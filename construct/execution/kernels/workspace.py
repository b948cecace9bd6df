"""The workspace of the kernels: one buffer per thread, reused between calls."""

import threading

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from construct.execution.kernels import constants


class _Kept(threading.local):
    """One buffer per thread."""

    buffer: Tensor | None = None


_KEPT = _Kept()


class Workspace:
    """Flat, uninitialised buffers for a ``with`` block, of the type and device of ``like``, each at least as long as its count.

    The system provides new memory page by page, which takes longer than copying as many numbers.  Under a dispatch mode, memory
    is new all the same: the mode may wrap tensors, or record a graph, in which a kept buffer would be a constant.
    """

    def __init__(self, like: Tensor, *counts: int):
        self.like, self.counts = like, [-(-count // 16) * 16 for count in counts]  # aligned as torch aligns new memory
        self.kept: Tensor | None = None

    def __enter__(self) -> list[Tensor]:
        like, total = self.like, sum(self.counts)
        size = total * like.itemsize
        if not like.is_cpu or size > constants.KEPT_BYTES or type(like) is not Tensor or is_in_torch_dispatch_mode():
            flat = like.new_empty(total)
        else:
            kept, _KEPT.buffer = _KEPT.buffer, None  # nested requests get another one
            if kept is None or kept.shape[0] < size:
                with torch.inference_mode(False):  # an inference tensor could not be written elsewhere
                    kept = torch.empty(max(size, 2**20), dtype=torch.uint8, device="cpu")
            self.kept = kept
            flat = kept[:size].view(like.dtype)
        return list(torch.split_with_sizes(flat, self.counts)) if len(self.counts) > 1 else [flat]

    def __exit__(self, *raised: object) -> None:
        if self.kept is not None:
            _KEPT.buffer = self.kept


def bytes_of(dtype: torch.dtype, *counts: int) -> int:
    """Bytes of a :class:`Workspace` with these counts."""
    return sum(-(-count // 16) * 16 for count in counts) * dtype.itemsize
