"""The table of docs/numerics.md matches the code, and every measured leakage is within its bound."""

from pathlib import Path

import pytest
import torch

from construct.encoding.sharpness import alpha_for
from verify.theory.literature.sharpness_table import DTYPES, markdown, rows

DOC = Path(__file__).parents[2] / "docs" / "numerics.md"


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]


def test_the_document_shows_what_the_code_gives() -> None:
    text = DOC.read_text(encoding="utf-8")
    shown = cells(text.split("-->")[1].split("<!--")[0])
    computed = cells(markdown())
    assert shown[0] == computed[0]
    assert len(shown) == len(computed)
    for row, expected in zip(shown[2:], computed[2:], strict=True):
        assert [float(x) for x in row] == pytest.approx([float(x) for x in expected], rel=0.1, abs=1e-323)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_no_measured_leakage_exceeds_its_bound(dims: int) -> None:
    for row in rows(dims):
        for dtype in DTYPES:
            info = torch.finfo(dtype)
            # Each of the 9^d weights has a few rounding errors, and may be rounded up to the smallest number.
            slack = 9**dims * (4 * info.eps * row.bound + info.tiny * info.eps)
            assert row.leaked[dtype] <= row.bound + slack, (row.alpha, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_zeros_begin_at_the_derived_sharpness(dtype: torch.dtype) -> None:
    threshold = alpha_for(dtype)
    weights = {row.alpha: row.neighbour[dtype] for row in rows(2)}
    assert all(weight == 0 for alpha, weight in weights.items() if alpha >= threshold)
    assert all(weight > 0 for alpha, weight in weights.items() if alpha < 0.98 * threshold)
