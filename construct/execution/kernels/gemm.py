"""GEMM: matrix products by BLAS or by oneDNN, whichever is faster for the shapes.

With AVX-512, oneDNN's inner product is faster if matrices exceed a core's cache (97 against 77 GFLOP/s on Zen 4, 200 against
100 on Zen 5) or have few columns (18 against 5 for three), but allocates its result.  The BLAS behind ``torch.mm`` has less
overhead and can accumulate.  Without AVX-512 it is as fast (both at 70 GFLOP/s), and so it is where Intel's library runs on
Intel's processor.  Both sum the same terms, in different orders.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from construct.execution.kernels import constants

INNER: Callable[..., Tensor] | None = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
)
"""oneDNN's inner product, which torch exposes under this name alone; None if torch was built without it."""


def _processor() -> str:
    """The processor's name, as "Intel Xeon"; empty if torch cannot tell."""
    try:
        return str(torch.cpu.get_capabilities().get("cpu_name", ""))
    except (AttributeError, RuntimeError):  # an older torch, or a system that does not say
        return ""


def _is_onednn_faster() -> bool:
    """With AVX-512, but not where BLAS is Intel's library on Intel's processor."""
    intels_own = torch.backends.mkl.is_available() and "Intel" in _processor()
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and not intels_own


ONEDNN_IS_FASTER = _is_onednn_faster()
"""Whether oneDNN is faster for large products on this processor."""


def uses_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN multiplies unless it is disabled: float32, on a CPU where it is faster."""
    return INNER is not None and dtype == torch.float32 and device.type == "cpu" and ONEDNN_IS_FASTER


def product(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor | None, onednn: bool) -> Tensor:
    """a b + bias, into ``out`` or a new matrix: (M, K), (K, N), (N,) → (M, N); ``onednn`` says whether oneDNN may be used."""
    if onednn and a.shape[0] * b.numel() >= constants.ONEDNN and (out is None or b.shape[0] >= constants.MIN_TERMS):
        if torch._C._get_mkldnn_enabled() and _whole(a) and _whole(b):
            assert INNER is not None
            result = INNER(a, b.mT, None if bias is None else bias.contiguous(), "none", [], "")
            return result if out is None else out.copy_(result)
    result = torch.mm(a, b) if out is None else torch.mm(a, b, out=out)
    return result if bias is None else result.add_(bias)  # torch.addmm would first fill the result with the bias


def products(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor | None, onednn: bool) -> Tensor:
    """a b + bias for each group: (groups, M, K), (groups, K, N), bias (groups, N) → (groups, M, N), into ``out``.

    Without ``out``, which requires a single group, into a new matrix.
    """
    if a.shape[0] == 1:
        first = None if bias is None else bias[0]
        return product(a[0], b[0], first, None if out is None else out[0], onednn)[None]
    assert out is not None
    both = torch.bmm(a, b)
    return out.copy_(both) if bias is None else torch.add(both, bias[:, None], out=out)


def add_product(total: Tensor, a: Tensor, b: Tensor, accumulate: bool, onednn: bool) -> None:
    """total += a b for each group or row, or total = a b unless ``accumulate``: (groups, M, N), (groups, M, K), (groups, K, N)."""
    if a.shape[0] > 1:
        total.baddbmm_(a, b, beta=1 if accumulate else 0)  # 0: the old content is not read
        return
    one, other = a[0], b[0]
    large = one.numel() * other.shape[1] >= constants.ONEDNN
    if onednn and large and torch._C._get_mkldnn_enabled() and _whole(one) and _whole(other):
        assert INNER is not None
        if not one.is_contiguous() and other.shape[1] <= constants.FEW_COLUMNS:
            result = INNER(other.mT.contiguous(), one, None, "none", [], "").mT
        else:
            result = INNER(one, other.mT, None, "none", [], "")
        total[0].add_(result) if accumulate else total[0].copy_(result)
        return
    total[0].addmm_(one, other, beta=1 if accumulate else 0)


def _whole(matrix: Tensor) -> bool:
    """Whether a matrix is contiguous by rows or by columns; oneDNN's product takes a thousand times as long for any other."""
    return matrix.is_contiguous() or matrix.mT.is_contiguous()
