"""The checker.  It shares no reasoning with ``construct``, and importing it imports nothing heavy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verify.audit_record import Audit
    from verify.auditing import audit
    from verify.certificate import Certificate
    from verify.certification import certify
    from verify.checker import check
    from verify.claim_table import claims
    from verify.comparison import Discrepancy, compare
    from verify.lemmas import prove_lemma1, prove_lemma2, prove_theorem
    from verify.report.writing import write_report
    from verify.verdict import Verdict

_HOMES = {
    "Audit": "verify.audit_record",
    "Certificate": "verify.certificate",
    "Discrepancy": "verify.comparison",
    "Verdict": "verify.verdict",
    "audit": "verify.auditing",
    "certify": "verify.certification",
    "check": "verify.checker",
    "claims": "verify.claim_table",
    "compare": "verify.comparison",
    "prove_lemma1": "verify.lemmas",
    "prove_lemma2": "verify.lemmas",
    "prove_theorem": "verify.lemmas",
    "write_report": "verify.report.writing",
}

__all__ = [
    "Audit",
    "Certificate",
    "Discrepancy",
    "Verdict",
    "audit",
    "certify",
    "check",
    "claims",
    "compare",
    "prove_lemma1",
    "prove_lemma2",
    "prove_theorem",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import a public name where it lives, when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'verify' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
