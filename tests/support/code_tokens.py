"""Code without docstrings and comments."""

import ast
import io
import tokenize
from collections.abc import Iterable

COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)


def docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of strings that stand alone: docstrings of modules, classes, functions and attributes."""
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    strings = (node for node in alone if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def tokens_of_code(text: str) -> list[tokenize.TokenInfo]:
    """The names, operators, numbers and strings of a file, but for docstrings."""
    docstrings = docstring_lines(ast.parse(text))
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type in COUNTED]
    return [t for t in tokens if t.start[0] not in docstrings]


def lines_of(tokens: Iterable[tokenize.TokenInfo]) -> set[int]:
    return {line for t in tokens for line in range(t.start[0], t.end[0] + 1)}
