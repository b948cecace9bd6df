"""Weight: how much there is to read.  A budget may be lowered; a change that raises one says what it adds."""

import ast
from pathlib import Path

import pytest

from code_tokens import lines_of, tokens_of_code

ROOT = Path(__file__).parents[2]

BUDGETS = {
    "construct": {
        "tokens": 76_246,
        "tokens a line": 9.22,
        "conditional expressions": 14.8,
        "branching functions": 0.0114,
    },
    "verify": {
        "tokens": 123_486,
        "tokens a line": 8.94,
        "conditional expressions": 15.3,
        "branching functions": 0.0208,
    },
    "conv_as_attention": {
        "tokens": 759,
        "tokens a line": 7.52,
        "conditional expressions": 9.91,
        "branching functions": 0.0,
    },
}
"""For each package: tokens of code without docstrings and comments; tokens a line of code; conditional expressions in 1,000 of
these lines; and the share of functions with more than ten branches."""
PACKINGS = {"construct": 2, "verify": 30, "conv_as_attention": 0}
"""How often ``a, b = c, d`` saves a line."""
TEST_LINES = 30_087
"""Lines of tests."""
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.BoolOp, ast.comprehension, ast.Assert)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def branches(function: ast.AST) -> int:
    """Branches of a function, without those of functions in it."""
    total, waiting = 0, list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        total += isinstance(node, BRANCHES)
        if not isinstance(node, (*FUNCTIONS, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))
    return total


def weight(package: str) -> dict[str, float]:
    """What BUDGETS bounds, of one package."""
    tokens = lines = conditional = functions = branching = packings = 0
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        read = tokens_of_code(text)
        tokens += len(read)
        lines += len(lines_of(read))
        nodes = list(ast.walk(ast.parse(text)))
        conditional += sum(isinstance(node, ast.IfExp) for node in nodes)
        packings += sum(ast.Tuple is type(n.value) is type(n.targets[0]) for n in nodes if isinstance(n, ast.Assign))
        defined = [branches(node) for node in nodes if isinstance(node, FUNCTIONS)]
        functions += len(defined)
        branching += sum(count > 10 for count in defined)
    return {
        "tokens": tokens,
        "tokens a line": tokens / lines,
        "conditional expressions": 1000 * conditional / lines,
        "branching functions": branching / functions,
        "packings": packings,
    }


@pytest.mark.parametrize("package", list(BUDGETS))
def test_no_package_weighs_more_than_its_budget(package: str):
    over = {
        name: n for name, n in weight(package).items() if n > (BUDGETS[package] | {"packings": PACKINGS[package]})[name]
    }
    assert not over, f"{package} is over {BUDGETS[package]}"


def test_there_are_no_more_lines_of_tests_than_their_budget():
    files = (ROOT / "tests").rglob("*.py")
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= TEST_LINES
