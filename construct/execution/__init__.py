"""How Eq. 3 is evaluated: one file per execution, loaded by its name on first use."""

from importlib import import_module
from typing import Any

NAMES = ("dense", "axial", "auto")
"""The names of the executions, whose table is :data:`construct.execution.call.EXECUTIONS`."""


def __getattr__(name: str) -> Any:
    """``construct.execution.call``, loaded the first time that it is read: an import in every call
    takes microseconds.
    """
    if name != "call":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("construct.execution.call")
