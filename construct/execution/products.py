"""Products of a matrix of tokens and a matrix of weights, by the quicker one of the two libraries that torch brings for the CPU.

oneDNN's inner product keeps its pace where matrices are larger than a core's cache, and puts what it makes into new memory; the
BLAS behind ``torch.mm`` takes less to begin.  Both add up the same terms, in orders of their own.
"""

from collections.abc import Callable

import torch
from torch import Tensor

HEAVY = 2**23
"""Products of fewer multiplications are begun sooner than they are done."""
SHORT = 64
"""Rows of the two factors of XᵀY where it makes more numbers than a cache holds out of few."""
INNER: Callable[..., Tensor] | None = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
)
"""oneDNN's inner product, which has no name of its own in torch but this one; None where torch was built without it."""


def quick(matrix: Tensor) -> bool:
    """Whether oneDNN multiplies by this matrix: float32, on a CPU, and not switched off."""
    return INNER is not None and matrix.dtype == torch.float32 and matrix.is_cpu and torch._C._get_mkldnn_enabled()


def heavy(rows: int, channels: int, width: int) -> bool:
    """Whether (rows, C)·(C, D) is worth it."""
    return rows * channels * width >= HEAVY


def times(rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """(T, C)·(C, D) + (1, D), as a new matrix."""
    if heavy(len(rows), *matrix.shape) and quick(matrix):
        return _inner(rows, matrix, bias)
    return torch.mm(rows, matrix) if bias is None else torch.addmm(bias, rows, matrix)


def times_into(rows: Tensor, matrix: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """As :func:`times`, into ``out``: by oneDNN where that is quick even with a copy of what it makes."""
    if worth_a_copy(rows, matrix):
        out.copy_(_inner(rows, matrix, bias))
    elif bias is None:
        torch.mm(rows, matrix, out=out)
    else:
        torch.addmm(bias, rows, matrix, out=out)


def worth_a_copy(rows: Tensor, matrix: Tensor) -> bool:
    """Whether :func:`times_into` leaves it to oneDNN."""
    channels, width = matrix.shape
    return width <= 2 * channels and heavy(len(rows), channels, width) and quick(matrix)


def turned(x: Tensor, y: Tensor) -> Tensor:
    """XᵀY of (T, C) and (T, D), as a new matrix."""
    if len(x) <= SHORT and heavy(len(x), x.shape[1], y.shape[1]) and quick(x) and quick(y):
        return _inner(x.mT.contiguous(), y, None)
    return torch.mm(x.mT, y)


def _inner(rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    assert INNER is not None
    weight = matrix.mT  # in a linear layer's order
    added = None if bias is None else bias.contiguous().view(-1)  # oneDNN reads on in memory, whatever the stride is
    return INNER(rows, weight, added, "none", [], "")
