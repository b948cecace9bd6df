"""How commands of the examples have to end."""

from collections.abc import Callable

import pytest


def ends_in_one_line(command: Callable[[], int], code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With this exit code, nothing on stdout, and a single line of error that begins so."""
    assert command() == code
    seen = capsys.readouterr()
    assert seen.out == ""
    lines = [line for line in seen.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert lines[0].startswith(told)
    assert "Traceback" not in seen.err
