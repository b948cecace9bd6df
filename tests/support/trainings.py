"""Shared by tests of the experiments in ``examples``: noise pictures, a small training, and how commands must end."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from examples.learned.data import Pictures
from examples.learned.settings import PRESETS, Settings
from examples.learned.variants import Shape

SMALL = Shape(layers=2, heads=4, width=8, intermediate=8, dropout=0.1, key_dim=0, alpha=2.0, resnet=2)
PICTURE = (1, 4, 6)
CHANGING = {"command", "machine", "started", "ended", "seconds"}
"""Fields of a record that differ between runs."""


def pictures(count: int = 60, size: tuple[int, ...] = PICTURE) -> Pictures:
    """Noise pictures with a few labels, seven of them for testing."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, *size, generator=generator)
    labels = torch.randint(0, 3, (count,), generator=generator)
    return Pictures("noise", x, labels, x[:7], labels[:7], 3, {})


def settings_of(variant: str = "covariance", **how: Any) -> Settings:
    """Settings for two epochs of a small network."""
    small = replace(PRESETS["digits"], shape=SMALL, epochs=2, batch=8)
    return Settings("digits", variant, 3, 1, "cpu", {}, replace(small, **how))


def quiet(done: int, word: str) -> None:
    """Ignore progress messages."""


def without_times(record: Any) -> Any:
    """A command's record without duration, machine and time."""
    if isinstance(record, dict):
        return {key: without_times(value) for key, value in record.items() if key not in CHANGING}
    return [without_times(value) for value in record] if isinstance(record, list) else record


def ends_in_one_line(command: Callable[[], int], code: int, start: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that a command ends with this exit code, nothing on stdout, and a single error line with this start."""
    assert command() == code
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert lines[0].startswith(start)
    assert "Traceback" not in err
