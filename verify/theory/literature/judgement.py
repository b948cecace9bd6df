"""How a claim of the literature is judged: as it is printed, by checks that the run computes.

A judgement is made of checks, each a sentence with the numbers of this run and whether it holds.  PROVED and REFUTED are
never written down: they are what comes out if every check holds, and UNDECIDED is what comes out if one does not.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from verify.theory.symbolic.proof import How, Proof, ProofFailed, ProofStep

PROVED, REFUTED, UNDECIDED, EXPERIMENT = "PROVED", "REFUTED", "UNDECIDED", "an experiment"


@dataclass(frozen=True)
class Check:
    """Something that was looked at.

    Attributes:
        finding: what the check computed, with the numbers of this run.
        holds: whether it is as it should be.
    """

    finding: str
    holds: bool

    def __str__(self) -> str:
        return self.finding if self.holds else f"FAILS: {self.finding}"


@dataclass(frozen=True)
class Correction:
    """What is true in place of a claim that is refuted as printed, with its own evidence.

    Attributes:
        statement: the corrected claim.
        verdict: PROVED, or UNDECIDED if a check fails.
        evidence: what its checks found.
    """

    statement: str
    verdict: str
    evidence: str


@dataclass(frozen=True)
class Judgement:
    """A verdict and what it rests on.

    Attributes:
        verdict: PROVED, REFUTED, UNDECIDED (a check fails) or "an experiment".
        evidence: what the checks found.
        correction: what is true instead, where the claim is not, as printed.
    """

    verdict: str
    evidence: str
    correction: Correction | None = None


@dataclass(frozen=True)
class Claim:
    """A statement that somebody printed.

    Attributes:
        id: a short name.
        wording: the statement, in our own words.
        source: who makes it and where.
        judge: judges it, anew at each call.
    """

    id: str
    wording: str
    source: str
    judge: Callable[[], Judgement]


def claim(id: str, source: str, wording: str) -> Callable[[Callable[[], Judgement]], Claim]:
    """Make a claim of the function that judges it."""
    return lambda judge: Claim(id, " ".join(wording.split()), source, judge)


def proved(*checks: Check) -> Judgement:
    """The claim as printed follows from these checks: PROVED if all hold."""
    return Judgement(PROVED if _all_hold(checks) else UNDECIDED, evidence_of(checks))


def refuted(*checks: Check, instead: Correction | None = None) -> Judgement:
    """The claim as printed is contradicted by these checks: REFUTED if all hold."""
    return Judgement(REFUTED if _all_hold(checks) else UNDECIDED, evidence_of(checks), instead)


def corrected(statement: str, *checks: Check) -> Correction:
    """What is true instead: PROVED if all checks hold."""
    return Correction(" ".join(statement.split()), PROVED if _all_hold(checks) else UNDECIDED, evidence_of(checks))


def experiment(reason: str) -> Judgement:
    """The claim is about what training finds, or about taste: nothing here decides it."""
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
        run: makes the steps.
    """
    try:
        steps = list(run())
    except ProofFailed as failure:
        return Check(f"a symbolic proof breaks at the step: {failure.step}", False)
    argued = sum(step.how is How.ARGUED for step in steps)
    by_sympy = f"{len(steps) - argued} step{'s' if len(steps) - argued != 1 else ''} by sympy"
    return Check(f"{what} ({by_sympy}{f', {argued} argued' if argued else ''})", bool(steps))


def evidence_of(checks: Iterable[Check]) -> str:
    """All that the checks found, in one line."""
    return "; ".join(map(str, checks))


def _all_hold(checks: tuple[Check, ...]) -> bool:
    return bool(checks) and all(check.holds for check in checks)
