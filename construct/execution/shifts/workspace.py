"""Memory that a thread keeps between calls: the system provides new memory page by page, which
takes longer than a copy.
"""

import threading
from math import prod

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

KEPT_BYTES = 2**23
"""The largest buffer that a thread keeps for a role, for every thread of torch (8 MiB)."""


_KEPT = threading.local()
"""Buffers by role, as attributes."""


def workspace(role: str, like: Tensor, *shape: int) -> Tensor:
    """An uninitialised tensor of the type and device of ``like``, whose numbers last until the next
    request for this role.

    Under a dispatch mode, memory is new all the same: the mode may wrap tensors, or record a graph,
    in which a kept buffer would be a constant.
    """
    size = prod(shape) * like.itemsize
    too_large = size > KEPT_BYTES * torch.get_num_threads()
    if (
        not like.is_cpu
        or too_large
        or type(like) not in (Tensor, Parameter)
        or is_in_torch_dispatch_mode()
    ):
        return like.new_empty(shape)
    buffer = vars(_KEPT).get(role)
    if buffer is None or len(buffer) < size:
        with torch.inference_mode(False):  # an inference tensor could not be written elsewhere
            buffer = vars(_KEPT)[role] = torch.empty(
                max(size, 2**20), dtype=torch.uint8, device="cpu"
            )
    return buffer[:size].view(like.dtype).view(shape)
