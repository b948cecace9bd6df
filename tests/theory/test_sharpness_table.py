"""The table of docs/numerics.md matches the code."""

import runpy
from pathlib import Path

import pytest

DOC = Path(__file__).parents[2] / "docs" / "numerics.md"


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]


def test_the_document_shows_what_the_code_gives() -> None:
    text = DOC.read_text(encoding="utf-8")
    shown = cells(text.split("-->")[1].split("<!--")[0])
    computed = cells(runpy.run_path(str(DOC.with_name("leakage_table.py")))["markdown"]())
    assert shown[0] == computed[0]
    assert len(shown) == len(computed)
    for row, expected in zip(shown[2:], computed[2:], strict=True):
        assert [float(x) for x in row] == pytest.approx([float(x) for x in expected], rel=0.1, abs=1e-323)
