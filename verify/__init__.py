"""Proofs, certificates and checks that attention layers equal convolutions; shares no code with the
builder in ``construct``.

Importing it imports nothing heavy: public names load their modules on first use.
"""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verify.argument.certificate import Certificate
    from verify.argument.certification import certify
    from verify.checker import check
    from verify.experiment.audit_record import Audit
    from verify.experiment.auditing import audit
    from verify.report.writing import write_report
    from verify.samples.comparison import Discrepancy, compare
    from verify.theory.head_count import HeadCount, heads_needed
    from verify.theory.literature.claim_table import claims
    from verify.theory.symbolic.lemmas import prove_lemma1, prove_lemma2, prove_theorem
    from verify.verdict import Verdict

_HOMES = {
    "Audit": "verify.experiment.audit_record",
    "Certificate": "verify.argument.certificate",
    "Discrepancy": "verify.samples.comparison",
    "HeadCount": "verify.theory.head_count",
    "Verdict": "verify.verdict",
    "audit": "verify.experiment.auditing",
    "certify": "verify.argument.certification",
    "check": "verify.checker",
    "claims": "verify.theory.literature.claim_table",
    "compare": "verify.samples.comparison",
    "heads_needed": "verify.theory.head_count",
    "prove_lemma1": "verify.theory.symbolic.lemmas",
    "prove_lemma2": "verify.theory.symbolic.lemmas",
    "prove_theorem": "verify.theory.symbolic.lemmas",
    "write_report": "verify.report.writing",
}

__all__ = [
    "Audit",
    "Certificate",
    "Discrepancy",
    "HeadCount",
    "Verdict",
    "audit",
    "certify",
    "check",
    "claims",
    "compare",
    "heads_needed",
    "prove_lemma1",
    "prove_lemma2",
    "prove_theorem",
    "write_report",
]


def _require_our_construct() -> None:
    """Refuse to run with another package ``construct``: a parsing library has overwritten ours, or
    a user's module hides it.

    The file is read rather than imported, because importing it would import torch.

    Raises:
        ImportError: that is so; ``python -m verify`` prints this line and exits.
    """
    spec = PathFinder.find_spec("construct")
    if spec is None:  # rechecking a certificate does not need it
        return
    origin = Path(spec.origin or __file__).resolve()  # none where __init__.py is missing
    if spec.origin is not None and b"conv_to_mhsa" in origin.read_bytes():
        return
    message = (
        "the package construct is not that of conv-as-attention: the distribution construct has overwritten it, or took it "
        "along when it was removed (pip uninstall construct, then pip install --force-reinstall --no-deps . in our folder)"
    )
    installed = {"site-packages", "dist-packages"} & {*origin.parts} or Path(
        __file__
    ).resolve().parents[1] in origin.parents
    if not installed:
        message = (
            f"{spec.origin!r} hides our package construct (rename it, or run from another folder)"
        )
    if sys.argv[:1] == ["-m"]:  # while Python locates the module to run
        sys.stderr.write(f"error: {message}\n")
        raise SystemExit(2)
    raise ImportError(message)


_require_our_construct()


def __dir__() -> list[str]:
    """List the lazily loaded public names too, for tab completion."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'verify' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
