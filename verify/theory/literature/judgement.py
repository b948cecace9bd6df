"""Verdicts on claims of the literature, computed from checks.

A check has a sentence with this run's numbers, a result, and, if it is a proof, the method of
proof.  The first check of a claim states it, and its method appears with the verdict; the others
support it.  If any check fails, the claim is UNDECIDED.  Only MEASURED HERE and OPEN are written by
hand: the first with the numbers of a page, the second with a reason.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from verify.coq import statements
from verify.theory.symbolic.proof import How, Proof, ProofFailed, ProofStep, counts_of

PROVED = "PROVED"
CHECKED = "CHECKED"
REFUTED = "REFUTED"
UNDECIDED = "UNDECIDED"
OPEN = "OPEN"
MEASURED = "MEASURED HERE"


@dataclass(frozen=True)
class Check:
    """One computed fact.

    Attributes:
        finding: the fact in words, with this run's numbers.
        holds: whether it supports the verdict.
        by: the method that proves it for all cases that it names; empty if it only samples.
    """

    finding: str
    holds: bool
    by: str = ""

    def __str__(self) -> str:
        return self.finding if self.holds else f"FAILS: {self.finding}"


@dataclass(frozen=True)
class Judgement:
    """A verdict and its evidence.

    Attributes:
        verdict: PROVED, CHECKED (on samples), REFUTED, UNDECIDED (a check fails), MEASURED HERE
            (runs of our own bear on it) or OPEN (nothing here decides it).
        by: the method of the proof, the samples, "as printed", or whether our measurement agrees.
        evidence: the findings of the checks.
        stands: the part of a refuted claim that is true.
        correction: the true statement in place of a refuted claim.
    """

    verdict: str
    by: str
    evidence: str
    stands: str = ""
    correction: "Correction | None" = None


@dataclass(frozen=True, kw_only=True)
class Correction(Judgement):
    """The true statement in place of a refuted claim, with its own judgement."""

    statement: str


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A statement from one of the sources, or our own statement next to a sentence of theirs.

    Attributes:
        id: a short name.
        wording: the statement, in our own words.
        quote: the source's sentence, verbatim; empty for a statement of ours that stands beside
            none.
        source: the source and, where known, the place in it.
        ours: whether the statement is ours and the quotation only gives its context.
    """

    id: str
    wording: str
    quote: str
    source: str
    ours: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim(Statement):
    """A statement and the function that computes its verdict, anew at each call."""

    judge: Callable[[], Judgement]


def claim(
    id: str, wording: str, quote: str = "", source: str = "", *, ours: bool = False
) -> Callable[[Callable[[], Judgement]], Claim]:
    """Decorator that turns the function that judges a claim into a `Claim`."""
    return lambda judge: Claim(
        id=id, wording=wording, quote=quote, source=source, judge=judge, ours=ours
    )


added = partial(claim, ours=True)
""":func:`claim` for a statement of our own, next to a source's sentence if one says something of
it.
"""


def proved(*checks: Check) -> Judgement:
    """The claim follows from the first check, and the others support it: PROVED if all hold.

    Raises:
        ValueError: the first check is not a proof.
    """
    if not checks or not checks[0].by:
        raise ValueError(f"only samples, no proof: {evidence_of(checks)!r} (use checked)")
    return Judgement(*_verdict(PROVED, checks[0].by, checks))


def checked(samples: str, *checks: Check) -> Judgement:
    """Nothing contradicts the claim on these samples: CHECKED if all checks hold."""
    return Judgement(*_verdict(CHECKED, samples, checks))


def refuted(
    *checks: Check, stands: str, instead: Judgement | None = None, statement: str = ""
) -> Judgement:
    """The claim as printed is contradicted by these checks: REFUTED if all hold.

    ``stands`` is the part of it that is true; ``statement`` the true statement, and ``instead`` the
    judgement of that.
    """
    correction = instead and Correction(**vars(instead), statement=statement)
    return Judgement(*_verdict(REFUTED, "as printed", checks), stands, correction)


def open_claim(id: str, wording: str, quote: str, source: str, reason: str) -> Claim:
    """A claim about training, cost or taste, which nothing here decides: OPEN for this reason."""
    return claim(id, wording, quote, source)(lambda: Judgement(OPEN, "", reason))


def measured_claim(
    id: str, wording: str, quote: str, source: str, outcome: str, runs: str
) -> Claim:
    """A claim about training on which runs of our own bear: the outcome in a few words, and the
    runs with what they gave.
    """
    return claim(id, wording, quote, source)(lambda: Judgement(MEASURED, outcome, runs))


def by_coq(*names: str) -> Check:
    """Headline theorems of ``verify/coq`` that state the fact; the check is only that they are
    among the headlines.
    """
    files = {theorem.name: theorem.file for theorem in statements.headlines()}
    cited = ", ".join(f"{name} ({files.get(name, 'no headline theorem')})" for name in names)
    return Check(
        f"Coq: {cited}",
        bool(names) and all(name in files for name in names),
        f"Coq: {', '.join(names)}",
    )


def by_proof(run: Callable[[], Proof]) -> Check:
    """A symbolic proof as a check: it holds unless a step fails."""
    try:
        proof = run()
    except ProofFailed as failure:
        return _broken(failure)
    name = proof.claim.split(":")[0]
    return Check(f"symbolic proof, {name}: {proof.counts}", True, _method(proof.steps, ""))


def by_steps(what: str, run: Callable[[], Iterable[ProofStep | Proof]], within: str = "") -> Check:
    """Steps of a symbolic proof as a check: ``what`` is what they show together, for the sizes
    ``within`` (empty for all).
    """
    try:
        steps = [step for part in run() for step in part.steps]
    except ProofFailed as failure:
        return _broken(failure)
    return Check(f"{what} ({counts_of(steps)})", bool(steps), _method(steps, within))


def evidence_of(checks: Iterable[Check]) -> str:
    """The findings of all checks in one line."""
    return "; ".join(map(str, checks))


def _verdict(verdict: str, by: str, checks: tuple[Check, ...]) -> tuple[str, str, str]:
    if checks and all(check.holds for check in checks):
        return verdict, by, evidence_of(checks)
    return UNDECIDED, "", evidence_of(checks)


def _broken(failure: ProofFailed) -> Check:
    return Check(f"a symbolic proof breaks at the step: {failure.step}", False, "sympy")


def _method(steps: Iterable[ProofStep], within: str) -> str:
    argued = sum(step.how is How.ARGUED for step in steps)
    parts = ["sympy", f"{argued} step{'s' * (argued > 1)} argued" * (argued > 0), within]
    return "; ".join(filter(None, parts))
