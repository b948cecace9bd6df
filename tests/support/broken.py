"""The theorem's encoding, or an execution of it, with a fault in it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from construct.attention import EXECUTIONS
from construct.encoding import quadratic


def break_encoding(patch: pytest.MonkeyPatch, functions: dict) -> None:
    """These functions, by name, in place of the encoding's own."""
    for name, function in functions.items():
        patch.setattr(quadratic, name, function)


def break_execution(patch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]) -> None:
    """From now on an execution runs ``wrong``, which is given the right run before its arguments (layer, x, grid)."""
    right = EXECUTIONS[name]
    patch.setitem(EXECUTIONS, name, replace(right, run=partial(wrong, right.run)))
