"""How commands of the examples have to end."""

from collections.abc import Callable

import pytest


def ends_in_one_line(command: Callable[[], int], code: int, start: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With this exit code, nothing on stdout, and a single line of error that begins so."""
    assert command() == code
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert lines[0].startswith(start)
    assert "Traceback" not in err
