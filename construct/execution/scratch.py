"""Buffers that blocks of queries share, so that a call allocates each once; and one that calls share."""

import threading
from math import prod

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

KEPT = 2**22
"""Bytes that are kept from call to call, at most, for each thread (4 MiB)."""


class Scratch:
    """Buffers that blocks use one after the other, by name; allocated once, as large as the first and largest block."""

    def __init__(self, like: Tensor):
        self.like, self.kept, self.filled = like, dict[str, Tensor](), object()

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A buffer of this shape; what it holds is left over from before."""
        numbers = prod(shape)
        if name not in self.kept or len(self.kept[name]) < numbers:
            self.kept[name] = self.like.new_empty(numbers)
        return self.kept[name][:numbers].view(shape)

    def zeroed(self, filled: object, *shape: int) -> Tensor:
        """The buffer for tokens, zeros but where tokens come: cleared only if others were there than will be now."""
        buffer = self("tokens", *shape)
        if filled != self.filled:
            buffer.zero_()
            self.filled = filled
        return buffer


class _Kept(threading.local):
    """Of each thread its own."""

    def __init__(self) -> None:
        self.buffer: Tensor | None = None


_KEPT = _Kept()


class Workspace:
    """A buffer of this shape, for a ``with``, which later calls of this thread use again; it holds what was left over.

    New memory has to be handed over by the system page by page, which takes longer than to copy so many numbers.  Where operators
    are watched it is new nevertheless: a mode may make tensors of its own, or a graph, of which what is kept would be a constant.
    """

    def __init__(self, like: Tensor, *shape: int):
        self.like, self.shape = like, shape
        self.kept: Tensor | None = None

    def __enter__(self) -> Tensor:
        like, size = self.like, prod(self.shape) * self.like.itemsize
        if not like.is_cpu or size > KEPT or type(like) is not Tensor or is_in_torch_dispatch_mode():
            return like.new_empty(self.shape)
        kept, _KEPT.buffer = _KEPT.buffer, None  # whoever asks while it is in use gets another one
        if kept is None or len(kept) < size:
            kept = torch.empty(size, dtype=torch.uint8, device="cpu")
        self.kept = kept
        return kept[:size].view(like.dtype).view(self.shape)

    def __exit__(self, *raised: object) -> None:
        if self.kept is not None:
            _KEPT.buffer = self.kept
