"""Every row of docs/nasty_inputs.md has a test in the ordinary suite, and tests name no other rows.

A test names the rows that it covers in its name, ``test_row_13_...`` or ``test_row_18_and_19_...``, or by a mark,
``@pytest.mark.nasty(31, 32)``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/nasty_inputs.md"
NAMED = re.compile(r"test_row_(\d+)((?:_and_\d+)*)_")


def ordinary_tests(path: Path) -> Iterator[ast.FunctionDef]:
    """The test functions of a file that the ordinary suite runs and does not skip."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = {ast.unparse(mark).removeprefix("pytest.mark.").partition("(")[0] for mark in node.decorator_list}
            if not marks & {"deep", "skip", "skipif", "xfail"}:
                yield node


def rows_of(test: ast.FunctionDef) -> set[int]:
    rows = set()
    if named := NAMED.match(test.name):
        rows |= {int(number) for number in re.findall(r"\d+", "".join(named.groups()))}
    for mark in test.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.nasty":
            rows |= {ast.literal_eval(number) for number in mark.args}
    return rows


def listed(page: str) -> list[int]:
    """The row numbers of all tables of the page, in order."""
    return [int(number) for number in re.findall(r"^\| (\d+) \| ", page, re.MULTILINE)]


def test_the_rows_are_numbered_from_one() -> None:
    rows = listed(PAGE.read_text(encoding="utf-8"))
    assert rows == [*range(1, len(rows) + 1)]


def test_every_row_has_a_test() -> None:
    shown: dict[int, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test in ordinary_tests(path):
            assert NAMED.match(test.name) or not test.name.startswith("test_row"), f"{test.name} has no number"
            for row in rows_of(test):
                shown.setdefault(row, []).append(f"{path.name}::{test.name}")
    rows = set(listed(PAGE.read_text(encoding="utf-8")))
    assert len(rows) > 60
    assert not rows - shown.keys(), "rows without a test"
    assert not shown.keys() - rows, "there are no such rows"
