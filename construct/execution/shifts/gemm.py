"""GEMM: matrix products by BLAS, or by oneDNN where that is faster.

With AVX-512, oneDNN's inner product takes half the time of the BLAS behind ``torch.mm``.  Without
AVX-512 both are as fast, and so they are where Intel's library runs on Intel's processor.  Both sum
the same terms, in different orders.
"""

from collections.abc import Callable

import torch
from torch import Tensor

INNER: Callable[..., Tensor] | None = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if torch.backends.mkldnn.is_available()
    else None
)
"""oneDNN's inner product, which torch exposes under this name alone; None if it is not built in."""


def _is_onednn_faster() -> bool:
    """With AVX-512, but not where BLAS is Intel's library on Intel's processor."""
    try:
        processor = str(torch.cpu.get_capabilities().get("cpu_name", ""))
    except (AttributeError, RuntimeError):  # an older torch, or a system that does not say
        processor = ""
    intels_own = torch.backends.mkl.is_available() and "Intel" in processor
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and not intels_own


ONEDNN_IS_FASTER = _is_onednn_faster()
"""Whether oneDNN is faster on this processor."""

MIN_ONEDNN = 2**21
"""Multiplications from which that is so."""


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a b + bias: (M, K), (K, N), (N,) → (M, N)."""
    usable = (
        INNER is not None
        and a.dtype == torch.float32
        and a.is_cpu
        and a.numel() * b.shape[1] >= MIN_ONEDNN
    )
    if not (usable and ONEDNN_IS_FASTER and torch._C._get_mkldnn_enabled()):
        # addmm would first copy the bias
        return torch.mm(a, b) if bias is None else torch.mm(a, b).add_(bias)
    assert INNER is not None
    a = _whole(a)
    b = _whole(b)
    # which oneDNN would transpose
    if bias is None and not a.is_contiguous() and a.numel() > b.numel():
        return INNER(b.mT, a, None, "none", [], "").mT
    return INNER(a, b.mT, None if bias is None else bias.contiguous(), "none", [], "")


def _whole(matrix: Tensor) -> Tensor:
    """The matrix, contiguous by rows or columns: oneDNN takes a thousand times as long for others."""
    if matrix.is_contiguous() or matrix.mT.is_contiguous():
        return matrix
    return matrix.contiguous()
