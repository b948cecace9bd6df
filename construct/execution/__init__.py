"""How Eq. 3 is evaluated: one file per execution, loaded by its name on first use."""

NAMES = ("dense", "axial", "auto")
"""The names of the executions, whose table is :data:`construct.execution.call.EXECUTIONS`."""
