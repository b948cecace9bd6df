"""Proofs as values: a step has a statement, the method that discharged it, and the expressions that were checked.

The functions below return a step only if sympy discharges it; otherwise they raise `ProofFailed`.  `argued` alone takes the
author's word, and a proof counts such steps apart.  No step is vacuous: empty lists, equations without symbols, contradictory
premises, limits in absent variables, substitutions of absent symbols, sums without a sum and empty matrices are refused.  Sums,
ranks and substitutions are in `verify.theory.symbolic.proof_algebra`.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sympy
from sympy.calculus.util import minimum
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean
from sympy.logic.inference import satisfiable

_SIGNS: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    sympy.Ge: ("nonnegative", lambda left, right: left - right),
    sympy.Gt: ("positive", lambda left, right: left - right),
    sympy.Le: ("nonnegative", lambda left, right: right - left),
    sympy.Lt: ("positive", lambda left, right: right - left),
}

_DIMENSION = re.compile(r"d = \d+")
_WIDTH = 100
"""Columns of a proof in brief."""

_LONGEST = 400  # printed characters of an expression; the step has all of it


class How(StrEnum):
    """The method that discharged a step; all but ARGUED are sympy's."""

    IDENTITY = "identity"
    ASSUMPTIONS = "from assumptions"
    CASES = "case split"
    INDUCTION = "induction"
    MINIMUM = "minimum"
    LIMIT = "limit"
    SUM = "sum"
    RANK = "rank"
    SUBSTITUTION = "substitution"
    ARGUED = "argued"


class ProofFailed(Exception):
    """A step of a proof does not hold, or sympy could not show that it does.

    Attributes:
        step: the statement of the step.
        expression: the remainder: the difference that did not vanish, the quantity of unknown sign, …
        reason: what it should have been.
    """

    def __init__(self, step: str, expression: Any, reason: str) -> None:
        super().__init__(step, expression, reason)
        self.step, self.expression, self.reason = step, expression, reason

    def __str__(self) -> str:
        return f"{self.step}: {self.reason}: {_shown(self.expression)}"


@dataclass(frozen=True)
class ProofStep:
    """One step of a proof: a statement, its method, and every expression that was checked."""

    statement: str
    how: How
    expressions: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.expressions:
            raise ValueError(f"a step must check something: {self.statement!r} has no expression")

    @property
    def expression(self) -> Any:
        """The expression shown: the first of those checked."""
        return self.expressions[0]

    def __str__(self) -> str:
        more = len(self.expressions) - 1
        return f"[{self.how}] {self.statement}\n    {_shown(self.expression)}" + (
            f"   (and {more} more)" if more else ""
        )


@dataclass(frozen=True)
class Proof:
    """A claim and the steps that prove it."""

    claim: str
    steps: tuple[ProofStep, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError(f"a proof must have steps: {self.claim!r} has none")

    @property
    def discharged(self) -> int:
        """The number of steps discharged by sympy."""
        return len(self.steps) - self.argued

    @property
    def argued(self) -> int:
        """The number of steps that rest on an argument in words."""
        return sum(step.how is How.ARGUED for step in self.steps)

    def __str__(self) -> str:
        numbered = (f"{number:3}. {step}".replace("\n", "\n     ") for number, step in enumerate(self.steps, 1))
        checks = sum(len(step.expressions) for step in self.steps if step.how is not How.ARGUED)
        counts = f"{self.discharged} steps discharged by sympy ({checks} expressions), {self.argued} argued."
        return "\n".join((self.claim, *numbered, counts))

    def brief(self) -> str:
        """The claim, and every step with how it was discharged; ``str`` shows the expressions too."""
        parts = [_wrapped(self.claim, "")]
        for number, step in enumerate(self.steps, 1):
            parts.append(_wrapped(f"{number:3}. {step.statement} [{step.how}]", " " * 5))
        return "\n".join((*parts, f"{self.discharged} steps discharged by sympy, {self.argued} argued."))


def in_brief(proofs: Iterable[Proof]) -> str:
    """Proofs in brief; of those that differ in the dimension alone one is shown, with d = 2 if there is one, and others counted."""
    groups: dict[str, list[Proof]] = {}
    for proof in proofs:
        groups.setdefault(_DIMENSION.sub("", proof.claim, count=1), []).append(proof)
    texts = []
    for group in groups.values():
        shown = next((proof for proof in group if "d = 2" in proof.claim), group[0])
        others = [proof for proof in group if proof is not shown]
        text = shown.brief()
        for proof in others:
            dimension = _DIMENSION.findall(proof.claim)[0]
            text += f"\nThe same for {dimension}, by itself: {proof.discharged} steps discharged by sympy, {proof.argued} argued."
        texts.append(text)
    return "\n\n".join(texts)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def identity(statement: str, *equations: tuple[Any, Any]) -> ProofStep:
    """Both sides of each (left, right) are the same expression: their difference expands to zero."""
    for left, right in equations:
        if not (sympy.sympify(left).free_symbols | sympy.sympify(right).free_symbols):
            raise ProofFailed(statement, equation(left, right), "an identity between constants shows nothing")
        rest = sympy.expand(left - right)
        if rest != 0:  # fractions cancel only over a common denominator
            rest = sympy.expand(sympy.numer(sympy.together(rest)))
        if rest != 0:
            raise ProofFailed(statement, rest, "both sides should be equal, but their difference is")
    return ProofStep(statement, How.IDENTITY, tuple(equation(*sides) for sides in equations))


def from_assumptions(statement: str, *facts: Any) -> ProofStep:
    """Each fact follows from the assumptions on its symbols.

    A fact is an unevaluated relation (``sympy.Ge(a, b, evaluate=False)``) or a predicate (``sympy.Q.integer(a)``).
    """
    for fact in facts:
        _require(statement, fact)
    return ProofStep(statement, How.ASSUMPTIONS, facts)


def case_split(statement: str, premises: Sequence[Boolean], cases: Sequence[tuple[Boolean, Any]]) -> ProofStep:
    """The fact of each case (condition, fact) holds, and the premises leave no possibility outside the conditions."""
    possible = sympy.And(*premises)
    uncovered = sympy.And(possible, sympy.Not(sympy.Or(*(condition for condition, _ in cases))))
    if satisfiable(possible) is False:
        raise ProofFailed(statement, possible, "anything follows from premises that contradict each other")
    if satisfiable(uncovered) is not False:
        raise ProofFailed(statement, uncovered, "the cases should cover everything, but leave")
    for _, fact in cases:
        _require(statement, fact)
    return ProofStep(statement, How.CASES, (*(fact for _, fact in cases), sympy.Not(uncovered)))


def sum_at_most(statement: str, term: Any, bound: Any, count: sympy.Symbol) -> ProofStep:
    """A sum of ``count`` terms like ``term`` is at most ``bound``, a function of ``count``: by induction on it."""
    no_terms = sympy.Ge(bound.subs(count, 0), 0, evaluate=False)
    one_more = sympy.Ge(bound.subs(count, count + 1) - bound, term, evaluate=False)
    for fact in (one_more, no_terms):
        _require(statement, fact)
    return ProofStep(statement, How.INDUCTION, (one_more, no_terms))


def least_value(statement: str, function: Any, variable: sympy.Symbol, domain: sympy.Set, value: Any) -> ProofStep:
    """The least value (infimum) of a function over a real interval is ``value``, found by calculus."""
    real = sympy.Symbol(variable.name, real=True)  # a sign assumption would hide part of the domain
    try:
        infimum = minimum(function.subs(variable, real), real, domain)
    except (NotImplementedError, ValueError) as error:
        raise ProofFailed(statement, function, f"sympy finds no minimum ({error}) of") from error
    if infimum != value:
        raise ProofFailed(statement, infimum, f"the minimum should be {value}, but is")
    return ProofStep(statement, How.MINIMUM, (equation(sympy.Function("minimum")(function, domain), value),))


def limits(statement: str, expected: Iterable[tuple[Any, Any]], variable: sympy.Symbol) -> ProofStep:
    """Each expression of (expression, value) tends to its value as the variable grows without bound."""
    shown: dict[tuple[Any, Any], Any] = {}
    for expression, value in expected:
        if (expression, value) in shown:
            continue
        if variable not in sympy.sympify(expression).free_symbols:
            raise ProofFailed(statement, expression, f"no limit to take, {variable} does not occur in")
        try:
            limit = sympy.limit(expression, variable, sympy.oo)
        except NotImplementedError as error:
            raise ProofFailed(statement, expression, f"sympy cannot take the limit ({error}) of") from error
        if limit != value:
            raise ProofFailed(statement, expression, f"the limit should be {value}, but is {limit}, of")
        shown[expression, value] = equation(sympy.Limit(expression, variable, sympy.oo, "-"), value)
    return ProofStep(statement, How.LIMIT, tuple(shown.values()))


def argued(statement: str, expression: Any) -> ProofStep:
    """A step that sympy does not discharge; its statement is the argument, and it is counted apart."""
    return ProofStep(statement, How.ARGUED, (expression,))


def equation(left: Any, right: Any) -> Any:
    """The unevaluated equation left = right, which sympy would otherwise reduce to True."""
    return sympy.Eq(left, right, evaluate=False)


def _require(statement: str, fact: Any) -> None:
    """Raise `ProofFailed` unless sympy answers True from the assumptions; None, its "don't know", is a failure."""
    if isinstance(fact, sympy.AppliedPredicate):
        name, quantity = _predicate(fact), fact.arg
    elif type(fact) in _SIGNS:
        name, difference = _SIGNS[type(fact)]
        quantity = difference(fact.lhs, fact.rhs)
    else:
        raise TypeError(f"a fact is an inequality or an applied predicate, not {fact!r}")
    forms = (sympy.expand(quantity), sympy.factor(sympy.together(quantity)))
    if not any(getattr(form, f"is_{name}") is True for form in forms):
        raise ProofFailed(statement, forms[0], f"this should be {name}")


def _predicate(fact: Any) -> str:
    return str(fact.function.name)


def _shown(expression: Any) -> str:
    whole = _written(expression)
    return whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST]} …"


def _written(expression: Any) -> str:
    if isinstance(expression, sympy.AppliedPredicate):
        return f"{expression.arg} is {_predicate(expression)}"
    if isinstance(expression, sympy.Limit):
        return f"lim {expression.args[0]} for {expression.args[1]} -> {expression.args[2]}"
    if isinstance(expression, Relational):
        sign = "=" if isinstance(expression, sympy.Eq) else getattr(expression, "rel_op", "?")
        return f"{_written(expression.lhs)} {sign} {_written(expression.rhs)}"
    if isinstance(expression, sympy.MatrixBase):
        return str(expression.tolist())
    if isinstance(expression, AppliedUndef):
        return f"{expression.func.__name__}({', '.join(map(_written, expression.args))})"
    return str(expression)
