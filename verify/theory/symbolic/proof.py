"""Proofs as values: a step has a statement, the method that discharged it, and the expressions that
were checked.

The functions below return a step only if sympy discharges it; otherwise they raise `ProofFailed`.
Two kinds of steps are counted separately: `cited` rests on headline theorems of ``verify/coq``, and
only `argued` relies on the author.  No step is vacuous: empty lists, equations without symbols,
contradictory premises, limits in absent variables, substitutions of absent symbols, linearity
without a sum and empty matrices are refused.  Sums, ranks and substitutions are in
`verify.theory.symbolic.proof_algebra`.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from html import escape
from typing import Any

import sympy
from sympy.calculus.util import minimum
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from verify.coq import statements
from verify.theory.symbolic import latex

ge, gt, le = (partial(relation, evaluate=False) for relation in (sympy.Ge, sympy.Gt, sympy.Le))
"""Unevaluated inequalities, for facts to be shown: sympy would reduce some to True or False at
once.
"""

_DIMENSION = re.compile(r"d = \d+")
_WIDTH = 100
"""Width in columns of a proof in brief, with one line per step."""

_LONGEST = 400  # printed characters of an expression; the step keeps all of it


class How(StrEnum):
    """The method that discharged a step; all but CITED and ARGUED are by sympy."""

    IDENTITY = "identity"
    ASSUMPTIONS = "assumptions"
    MINIMUM = "minimum"
    LIMIT = "limit"
    SUM = "sum"
    RANK = "rank"
    SUBSTITUTION = "substitution"
    CITED = "Coq"
    ARGUED = "argued"


@dataclass(eq=False)
class ProofFailed(Exception):
    """A step of a proof does not hold, or sympy could not show that it does.

    Attributes:
        step: the statement of the step.
        expression: the offending remainder, such as a difference that did not vanish or a quantity
            of unknown sign.
        reason: what it should have been.
    """

    step: str
    expression: Any
    reason: str

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
        """The expression to show, the first of those checked."""
        return self.expressions[0]

    @property
    def reason(self) -> str:
        """The method, with the theorems that a cited step names."""
        return (
            f"Coq: {', '.join(map(str, self.expressions))}"
            if self.how is How.CITED
            else str(self.how)
        )

    @property
    def steps(self) -> "tuple[ProofStep]":
        """The step alone, as a tuple like those of a `Proof`."""
        return (self,)

    def __str__(self) -> str:
        more = len(self.expressions) - 1
        return f"[{self.how}] {self.statement}\n    {_shown(self.expression)}" + (
            f"   (and {more} more)" if more else ""
        )

    def full(self) -> str:
        """The statement and every expression in full, one per line."""
        return "\n    ".join((f"[{self.how}] {self.statement}", *map(_written, self.expressions)))

    def _repr_latex_(self) -> str:
        return f"{latex.text(self.statement)} [{latex.text(self.how)}]: $\\displaystyle {sympy.latex(self.expression)}$"


@dataclass(frozen=True)
class Proof:
    """A claim and its proof: steps, and subproofs with their own claims.

    Attributes:
        claim: the statement.
        parts: steps and subproofs, one line each in brief.
        name: the reason given by a line that rests on this proof; by default the methods of its
            steps.
    """

    claim: str
    parts: "tuple[ProofStep | Proof, ...]"
    name: str = ""

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError(f"a proof must have steps: {self.claim!r} has none")

    @property
    def steps(self) -> tuple[ProofStep, ...]:
        """Every step, including those of subproofs."""
        return tuple(step for part in self.parts for step in part.steps)

    @property
    def discharged(self) -> int:
        """The number of steps discharged by sympy."""
        return len(self.steps) - self.cited - self.argued

    @property
    def cited(self) -> int:
        """The number of steps that rest on headline theorems in Coq."""
        return sum(step.how is How.CITED for step in self.steps)

    @property
    def argued(self) -> int:
        """The number of steps that rest on an argument in words."""
        return sum(step.how is How.ARGUED for step in self.steps)

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The proof in brief, (statement, reason) of every part."""
        return [
            (part.claim if isinstance(part, Proof) else part.statement, part.reason)
            for part in self.parts
        ]

    @property
    def reason(self) -> str:
        """The name of this proof, or the reasons of its parts."""
        return self.name or ", ".join(dict.fromkeys(reason for _, reason in self.lines))

    def full(self) -> str:
        """The claim, and every step with all expressions checked."""
        lines = [self.claim]
        for number, part in enumerate(self.parts, 1):
            if isinstance(part, Proof):
                lines.append(f"{number:3}. {part.claim}")
                lines += (
                    _indented(f"{number:3}.{place} {step.full()}")
                    for place, step in enumerate(part.steps, 1)
                )
            else:
                lines.append(_indented(f"{number:3}. {part.full()}"))
        return "\n".join((*lines, self.counts))

    def brief(self) -> str:
        """The claim, and one line per part with its reason; ``full`` shows every step and its
        expressions.
        """
        lines = (
            f"{number:3}. {statement} [{reason}]"
            for number, (statement, reason) in enumerate(self.lines, 1)
        )
        return "\n".join(
            (textwrap.fill(self.claim, _WIDTH, break_on_hyphens=False), *lines, self.counts)
        )

    __str__ = brief

    def _repr_html_(self) -> str:
        items = "".join(
            f"<li>{escape(statement)} <i>[{escape(reason)}]</i></li>"
            for statement, reason in self.lines
        )
        return f"<b>{escape(self.claim)}</b><ol>{items}</ol>{self.counts}"

    def _repr_latex_(self) -> str:
        name, _, claim = self.claim.partition(":")
        items = (
            f"\\item {latex.text(statement)} [{latex.escaped(reason)}]"
            for statement, reason in self.lines
        )
        heading = (
            f"\\paragraph{{{latex.text(name)}.}} {latex.text(claim)}" if claim else latex.text(name)
        )
        return "\n".join((heading, "\\begin{enumerate}", *items, "\\end{enumerate}", self.counts))

    @property
    def counts(self) -> str:
        """How its steps were discharged, in one line."""
        return counts_of(self.steps)


def counts_of(steps: Sequence[ProofStep]) -> str:
    """How many steps sympy discharged, how many are cited from Coq and how many are argued, in
    words.
    """
    count = Counter(step.how for step in steps)
    cited = count[How.CITED]
    argued = count[How.ARGUED]
    words = f"{len(steps) - cited - argued} steps by sympy, "
    if cited:
        words += f"{cited} by Coq, "
    return f"{words}{argued} argued"


def in_brief(proofs: Iterable[Proof]) -> str:
    """Proofs in brief; of those that differ only in the dimension, one is shown, with the step
    counts of the others.
    """
    return "\n\n".join(
        shown.brief() + _also(shown, others) for shown, others in one_dimension_each(proofs)
    )


def in_latex(proofs: Iterable[Proof]) -> str:
    """Proofs in brief as a LaTeX document that uses amsmath and amssymb."""
    parts = [
        r"\documentclass{article}",
        r"\usepackage[a4paper,margin=25mm]{geometry}",
        r"\usepackage{amsmath,amssymb}",
    ]
    parts += [
        r"\setlength{\parindent}{0pt}",
        r"\begin{document}",
        r"\section*{Proofs by sympy; the encoding is the code that runs}",
    ]
    parts += (
        shown._repr_latex_() + latex.text(_also(shown, others))
        for shown, others in one_dimension_each(proofs)
    )
    return "\n".join((*parts, r"\end{document}"))


def one_dimension_each(proofs: Iterable[Proof]) -> list[tuple[Proof, list[Proof]]]:
    """Group proofs that differ only in the dimension: one of each group, with d = 2 if possible,
    and the others.
    """
    groups: dict[str, list[Proof]] = {}
    for proof in proofs:
        groups.setdefault(_DIMENSION.sub("", proof.claim, count=1), []).append(proof)
    chosen = []
    for group in groups.values():
        shown = next((proof for proof in group if "d = 2" in proof.claim), group[0])
        chosen.append((shown, [proof for proof in group if proof is not shown]))
    return chosen


def _also(shown: Proof, others: Iterable[Proof]) -> str:
    also = "".join(f"; {_DIMENSION.findall(proof.claim)[0]}: {proof.counts}" for proof in others)
    return also.replace(f": {shown.counts}", " the same")


def _indented(text: str) -> str:
    return text.replace("\n", "\n     ")


def identity(statement: str, *equations: tuple[Any, Any]) -> ProofStep:
    """Show that both sides of each (left, right) are equal: their difference expands to zero."""
    for left, right in equations:
        if not (sympy.sympify(left).free_symbols | sympy.sympify(right).free_symbols):
            raise ProofFailed(
                statement, equation(left, right), "an identity between constants shows nothing"
            )
        rest = sympy.expand(left - right)
        if rest != 0:  # fractions cancel only over a common denominator
            rest = sympy.expand(sympy.numer(sympy.together(rest)))
        if rest != 0:
            raise ProofFailed(
                statement, rest, "both sides should be equal, but their difference is"
            )
    return ProofStep(statement, How.IDENTITY, tuple(equation(*sides) for sides in equations))


def from_assumptions(statement: str, *facts: Any) -> ProofStep:
    """Show that each fact, an unevaluated relation (``ge(a, b)``), follows from the assumptions on
    its symbols; if sympy does not know, the step fails.
    """
    for fact in facts:
        sign = "positive" if fact.func in (sympy.Gt, sympy.Lt) else "nonnegative"
        quantity = fact.gts - fact.lts
        expanded = sympy.expand(quantity)
        if getattr(expanded, f"is_{sign}") is True:
            continue
        factored = sympy.factor(sympy.together(quantity))  # slow in many symbols
        if getattr(factored, f"is_{sign}") is not True:
            raise ProofFailed(statement, expanded, f"this should be {sign}")
    return ProofStep(statement, How.ASSUMPTIONS, facts)


def least_value(
    statement: str, function: Any, variable: sympy.Symbol, domain: sympy.Set, value: Any
) -> ProofStep:
    """Show by calculus that the infimum of a function over a real interval is ``value``."""
    real = sympy.Symbol(variable.name, real=True)  # a sign assumption would hide part of the domain
    try:
        infimum = minimum(function.subs(variable, real), real, domain)
    except (NotImplementedError, ValueError) as error:
        raise ProofFailed(statement, function, f"sympy finds no minimum ({error}) of") from error
    if infimum != value:
        raise ProofFailed(statement, infimum, f"the minimum should be {value}, but is")
    return ProofStep(
        statement, How.MINIMUM, (equation(sympy.Function("minimum")(function, domain), value),)
    )


def limits(
    statement: str, expected: Iterable[tuple[Any, Any]], variable: sympy.Symbol
) -> ProofStep:
    """Show that each expression of (expression, value) tends to its value as the variable grows
    without bound.
    """
    shown: dict[tuple[Any, Any], Any] = {}
    for expression, value in expected:
        if (expression, value) in shown:
            continue
        if variable not in sympy.sympify(expression).free_symbols:
            raise ProofFailed(
                statement, expression, f"no limit to take, {variable} does not occur in"
            )
        try:
            limit = _limit(expression, variable, sympy.oo)
        except NotImplementedError as error:
            raise ProofFailed(
                statement, expression, f"sympy cannot take the limit ({error}) of"
            ) from error
        if limit != value:
            raise ProofFailed(
                statement, expression, f"the limit should be {value}, but is {limit}, of"
            )
        shown[expression, value] = equation(sympy.Limit(expression, variable, sympy.oo, "-"), value)
    return ProofStep(statement, How.LIMIT, tuple(shown.values()))


# the slowest sympy operation, and several proofs share limits
_limit = lru_cache(maxsize=4096)(sympy.limit)


def cited(statement: str, *names: str) -> ProofStep:
    """A step that headline theorems of ``verify/coq`` state; it shows no more than that they are
    among the headlines.
    """
    headlines = {theorem.name for theorem in statements.headlines()}
    for name in names:
        if name not in headlines:
            raise ProofFailed(
                statement, sympy.Symbol(name), "this should be a headline theorem in Coq"
            )
    return ProofStep(statement, How.CITED, tuple(map(sympy.Symbol, names)))


def argued(statement: str, expression: Any) -> ProofStep:
    """A step that sympy does not discharge; its statement is the argument, and it is counted
    separately.
    """
    return ProofStep(statement, How.ARGUED, (expression,))


def equation(left: Any, right: Any) -> Any:
    """The unevaluated equation left = right, which sympy would otherwise reduce to True."""
    return sympy.Eq(left, right, evaluate=False)


def _shown(expression: Any) -> str:
    whole = _written(expression)
    return whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST]} …"


def _written(expression: Any) -> str:
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
