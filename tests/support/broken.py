"""The theorem's encoding with a fault in it."""

import pytest

from construct.encoding import quadratic


def break_encoding(patch: pytest.MonkeyPatch, functions: dict) -> None:
    """These functions, by name, in place of the encoding's own."""
    for name, function in functions.items():
        patch.setattr(quadratic, name, function)
