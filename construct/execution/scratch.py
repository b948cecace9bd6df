"""Buffers that blocks of queries share, so that a call allocates each once."""

from math import prod

from torch import Tensor


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
