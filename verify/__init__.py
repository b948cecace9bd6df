"""The checker.  It shares no reasoning with ``construct``, and importing it imports nothing heavy."""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verify.argument.certificate import Certificate
    from verify.argument.certification import certify
    from verify.checker import check
    from verify.experiment.audit_record import Audit
    from verify.experiment.auditing import audit
    from verify.report.writing import write_report
    from verify.samples.comparison import Discrepancy, compare
    from verify.theory.literature.claim_table import claims
    from verify.theory.symbolic.lemmas import prove_lemma1, prove_lemma2, prove_theorem
    from verify.verdict import Verdict

_HOMES = {
    "Audit": "verify.experiment.audit_record",
    "Certificate": "verify.argument.certificate",
    "Discrepancy": "verify.samples.comparison",
    "Verdict": "verify.verdict",
    "audit": "verify.experiment.auditing",
    "certify": "verify.argument.certification",
    "check": "verify.checker",
    "claims": "verify.theory.literature.claim_table",
    "compare": "verify.samples.comparison",
    "prove_lemma1": "verify.theory.symbolic.lemmas",
    "prove_lemma2": "verify.theory.symbolic.lemmas",
    "prove_theorem": "verify.theory.symbolic.lemmas",
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


def _require_our_construct() -> None:
    """Refuse to work beside another package that is called ``construct``, which a parsing library puts over ours.

    Looked at as a file, and not imported: that would import torch.

    Raises:
        ImportError: it is another one; ``python -m verify`` ends instead, with this one line.
    """
    spec = PathFinder.find_spec("construct")
    if spec is None:  # rechecking a certificate takes nothing of it
        return
    get_data = getattr(spec.loader, "get_data", None)  # none where __init__.py is missing
    if get_data is not None and spec.origin is not None and b"conv-as-attention" in get_data(spec.origin):
        return
    told = (
        "the package construct is not that of conv-as-attention: the distribution construct has overwritten it, or took it "
        "along when it was removed (pip uninstall construct, then pip install --force-reinstall --no-deps . in our folder)"
    )
    if sys.argv[:1] == ["-m"]:  # while Python looks for what it is to run
        sys.stderr.write(f"error: {told}\n")
        raise SystemExit(2)
    raise ImportError(told)


_require_our_construct()


def __getattr__(name: str) -> Any:
    """Import a public name where it lives, when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'verify' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
