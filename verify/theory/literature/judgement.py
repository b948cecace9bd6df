"""Verdicts on claims of the literature, computed from checks.

A check is a sentence with the numbers of this run, and whether it holds.  PROVED or REFUTED is the result if every check holds,
UNDECIDED if one fails; no verdict is written down by hand.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from verify.theory.symbolic.proof import How, Proof, ProofFailed, ProofStep

PROVED, REFUTED, UNDECIDED, EXPERIMENT = "PROVED", "REFUTED", "UNDECIDED", "an experiment"


@dataclass(frozen=True)
class Check:
    """One computed fact.

    Attributes:
        finding: the fact in words, with the numbers of this run.
        holds: whether it supports the verdict.
    """

    finding: str
    holds: bool

    def __str__(self) -> str:
        return self.finding if self.holds else f"FAILS: {self.finding}"


@dataclass(frozen=True)
class Correction:
    """The true statement in place of a refuted claim, with its own evidence.

    Attributes:
        statement: the corrected claim.
        verdict: PROVED, or UNDECIDED if a check fails.
        evidence: the findings of its checks.
    """

    statement: str
    verdict: str
    evidence: str


@dataclass(frozen=True)
class Judgement:
    """A verdict and its evidence.

    Attributes:
        verdict: PROVED, REFUTED, UNDECIDED (a check fails) or "an experiment".
        evidence: the findings of the checks.
        correction: the true statement, if the claim is refuted.
    """

    verdict: str
    evidence: str
    correction: Correction | None = None


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, the talk or the blog.

    Attributes:
        id: a short name.
        wording: the statement, in our own words.
        source: who makes it and where.
        judge: computes the verdict, again at each call.
    """

    id: str
    wording: str
    source: str
    judge: Callable[[], Judgement]


def claim(id: str, source: str, wording: str) -> Callable[[Callable[[], Judgement]], Claim]:
    """Decorator: turn the function that judges a claim into a `Claim`."""
    return lambda judge: Claim(id, " ".join(wording.split()), source, judge)


def proved(*checks: Check) -> Judgement:
    """The claim as printed follows from these checks: PROVED if all hold."""
    return Judgement(PROVED if _all_hold(checks) else UNDECIDED, evidence_of(checks))


def refuted(*checks: Check, instead: Correction | None = None) -> Judgement:
    """The claim as printed is contradicted by these checks: REFUTED if all hold."""
    return Judgement(REFUTED if _all_hold(checks) else UNDECIDED, evidence_of(checks), instead)


def corrected(statement: str, *checks: Check) -> Correction:
    """The correction of a refuted claim: PROVED if all checks hold."""
    return Correction(" ".join(statement.split()), PROVED if _all_hold(checks) else UNDECIDED, evidence_of(checks))


def experiment(reason: str) -> Judgement:
    """A claim about training or taste, which nothing here decides."""
    return Judgement(EXPERIMENT, " ".join(reason.split()))


def by_proof(run: Callable[[], Proof]) -> Check:
    """A symbolic proof as a check: it holds unless a step fails."""
    try:
        proof = run()
    except ProofFailed as failure:
        return Check(f"a symbolic proof breaks at the step: {failure.step}", False)
    name = proof.claim.split(":")[0]
    return Check(f"symbolic proof, {name}: {proof.discharged} steps by sympy, {proof.argued} argued", True)


def by_steps(what: str, run: Callable[[], Iterable[ProofStep]]) -> Check:
    """Some steps of a symbolic proof as a check.

    Args:
        what: what the steps show together.
        run: computes the steps.
    """
    try:
        steps = list(run())
    except ProofFailed as failure:
        return Check(f"a symbolic proof breaks at the step: {failure.step}", False)
    argued = sum(step.how is How.ARGUED for step in steps)
    by_sympy = f"{len(steps) - argued} step{'s' if len(steps) - argued != 1 else ''} by sympy"
    return Check(f"{what} ({by_sympy}{f', {argued} argued' if argued else ''})", bool(steps))


def evidence_of(checks: Iterable[Check]) -> str:
    """The findings of all checks in one line."""
    return "; ".join(map(str, checks))


def _all_hold(checks: tuple[Check, ...]) -> bool:
    return bool(checks) and all(check.holds for check in checks)
