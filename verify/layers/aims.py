"""The former names of :mod:`verify.layers.targets`, until the report uses the new ones."""

from verify.layers.targets import Target as Aim
from verify.layers.targets import target as aim

__all__ = ["Aim", "aim"]
