"""The checker.  It shares no reasoning with ``construct``, and importing it imports nothing heavy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verify.comparison import Discrepancy, compare
    from verify.lemmas import prove_lemma2
    from verify.verdict import Verdict

_HOMES = {
    "Discrepancy": "verify.comparison",
    "Verdict": "verify.verdict",
    "compare": "verify.comparison",
    "prove_lemma2": "verify.lemmas",
}

__all__ = ["Discrepancy", "Verdict", "compare", "prove_lemma2"]


def __getattr__(name: str) -> Any:
    """Import a public name where it lives, when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'verify' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
