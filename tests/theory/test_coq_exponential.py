"""The only machine assumption of the theorems on floats: torch's exp and softmax are exactly 0 far below the maximum.

`softmax_one_hot` requires an exponential that is nonzero at 0, and 0 at every float ≤ −g, where g = 104, 746, 18, 93 is the
threshold of float32, float64, float16 and bfloat16.  Faithful rounding does not suffice.  The deep run tries all floats of three.
"""

from collections.abc import Iterator

import pytest
import torch

THRESHOLDS = {torch.float16: 18.0, torch.bfloat16: 93.0, torch.float32: 104.0, torch.float64: 746.0}
BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}
AT_ONCE = 1 << 22


def ends(dtype: torch.dtype) -> tuple[int, int]:
    """The bits of −threshold and of the least finite float; the integers between enumerate the floats between, downwards."""
    first, last = torch.tensor([-THRESHOLDS[dtype], torch.finfo(dtype).min], dtype=dtype).view(BITS[dtype]).tolist()
    return first, last


def below(dtype: torch.dtype, step: int = 1) -> Iterator[torch.Tensor]:
    """Every ``step``-th finite float ≤ −threshold, largest first, in blocks."""
    first, last = ends(dtype)
    for start in range(first, last + 1, AT_ONCE * step):
        yield (
            torch.arange(start, min(start + AT_ONCE * step, last + 1), step, dtype=torch.int64)
            .to(BITS[dtype])
            .view(dtype)
        )


def assert_nothing_is_left(x: torch.Tensor) -> None:
    assert not torch.exp(x).any()
    row = torch.cat([x.new_zeros(1), x])  # contiguous along and across the row, for two torch kernels
    for scores, dim in ((row[None], 1), (row[:, None].expand(-1, 2).contiguous(), 0)):
        weights = torch.softmax(scores, dim=dim).movedim(dim, 0)
        assert (weights[0] == 1).all()
        assert not weights[1:].any()


@pytest.mark.parametrize(
    ("dtype", "step"),
    [
        (torch.float16, 1),
        (torch.bfloat16, 1),
        (torch.float32, 997),
        (torch.float64, 2**42 - 1),  # too many to try all
        pytest.param(torch.float32, 1, marks=pytest.mark.deep),
    ],
    ids=str,
)
def test_nothing_is_left_of_floats_below_the_threshold(dtype: torch.dtype, step: int):
    """Of every float, or of those next to the threshold and every so many over all exponents."""
    first, last = ends(dtype)
    assert_nothing_is_left(next(below(dtype))[:100_000])
    count = 0
    for x in below(dtype, step):
        assert torch.isfinite(x).all()
        assert_nothing_is_left(x)
        count += len(x)
    assert count == len(range(first, last + 1, step)) > 10_000
    assert torch.exp(torch.zeros(8, dtype=dtype)).eq(1).all()


@pytest.mark.parametrize("dtype", list(THRESHOLDS), ids=str)
def test_the_thresholds_are_needed(dtype: torch.dtype):
    """One integer above the threshold, e^x is the smallest subnormal, both correctly rounded and in torch."""
    x = torch.full((64,), 1 - THRESHOLDS[dtype], dtype=dtype)
    assert (torch.exp(x) > 0).all()
