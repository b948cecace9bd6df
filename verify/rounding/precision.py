"""The switches of torch that make arithmetic less precise than its format."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


def flushes_to_zero(like: torch.Tensor) -> bool:
    """Whether arithmetic with tensors of this type and device loses subnormal numbers: see ``torch.set_flush_denormal``."""
    if not like.dtype.is_floating_point or like.is_meta:
        return False
    info = torch.finfo(like.dtype)
    smallest = torch.full((16,), info.tiny * info.eps, dtype=like.dtype, device=like.device)
    return not bool((smallest * 1).view(torch.uint8).any())  # its bits: compared as a number, it might be flushed again


def winograd_may_run(conv: Any) -> bool:
    """Whether torch may hand this convolution to NNPACK for large batches, whose Winograd and FFT round by more than sums do."""
    weight, backends = conv.weight, torch.backends
    taken = weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.dim() == 4
    instead = backends.mkldnn.is_available() and backends.mkldnn.enabled
    return taken and not instead and backends.nnpack.is_available() and torch._C._get_nnpack_enabled()


def reduced_precision() -> list[tuple[Any, str, Any]]:
    """The switches of torch that are set so that products may be less precise than their format: (where, name, full)."""
    backends: Any = torch.backends
    found = []
    for where in (
        backends,
        *(
            backends.cuda.matmul,
            backends.cudnn,
            getattr(backends.cudnn, "conv", None),
            getattr(backends.cudnn, "rnn", None),
        ),
        *(backends.mkldnn, getattr(backends.mkldnn, "matmul", None), getattr(backends.mkldnn, "conv", None)),
    ):
        if getattr(where, "fp32_precision", "ieee") not in ("ieee", "none"):
            found.append((where, "fp32_precision", "ieee"))
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        if getattr(backends.cuda.matmul, name, False) not in (False, (False, False)):
            found.append((backends.cuda.matmul, name, False))
    return found


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch TF32 and its like off, and back on afterwards."""
    with ExitStack() as stack:
        for where, name, full in reduced_precision():
            stack.callback(setattr, where, name, getattr(where, name))
            setattr(where, name, full)
        yield
