"""Proof steps about sums, matrix ranks and substitutions, discharged by sympy."""

from collections.abc import Sequence
from typing import Any

import sympy

from verify.theory.symbolic.proof import How, ProofFailed, ProofStep, equation


def linear(statement: str, *equations: tuple[Any, Any]) -> ProofStep:
    """Show each (left, right) equal by linearity of sums: constant factors stand before a sum, and
    equal sums cancel.
    """
    for left, right in equations:
        rest: Any = sympy.expand(sympy.factor_terms(sympy.expand(left - right)))
        if rest != 0:
            raise ProofFailed(
                statement, rest, "both sides should be equal, but their difference leaves"
            )
        if not any(sympy.sympify(side).has(sympy.Sum) for side in (left, right)):
            raise ProofFailed(statement, equation(left, right), "no sum to be linear in")
    return ProofStep(statement, How.SUM, tuple(equation(*sides) for sides in equations))


def sum_value(statement: str, *equations: tuple[Any, Any]) -> ProofStep:
    """Show that each sum of (sum, value) has this value by sympy; an infinite sum therefore
    converges.
    """
    for series, value in equations:
        if not isinstance(series, sympy.Sum):
            raise ProofFailed(statement, series, "this should be a sum")
        total = series.doit()
        if sympy.expand(sympy.numer(sympy.together(total - value))) != 0:
            raise ProofFailed(statement, total, f"the sum should be {value}, but is")
    return ProofStep(statement, How.SUM, tuple(equation(*sides) for sides in equations))


def ranks(statement: str, *expected: tuple[sympy.MatrixBase, int]) -> ProofStep:
    """Show that each matrix of (matrix, rank) has exactly this rank; with symbols, for all but
    special values.
    """
    for matrix, value in expected:
        if 0 in matrix.shape:
            raise ProofFailed(statement, matrix, "no rank to find, there is nothing in")
        computed = matrix.rank(simplify=True)
        if computed != value:
            raise ProofFailed(
                statement,
                sympy.ImmutableMatrix(matrix),
                f"the rank should be {value}, but is {computed}, of",
            )
    shown = tuple(
        equation(sympy.Function("rank")(sympy.ImmutableMatrix(matrix)), value)
        for matrix, value in expected
    )
    return ProofStep(statement, How.RANK, shown)


def substitution(
    statement: str, expression: Any, replacements: Sequence[tuple[Any, Any]], result: Any
) -> ProofStep:
    """Show that substituting symbols of an expression gives ``result``, a different object."""
    for old, _ in replacements:
        if old not in expression.free_symbols:
            raise ProofFailed(
                statement, expression, f"no substitution to make, {old} does not occur in"
            )
    if not replacements:
        raise ProofFailed(statement, expression, "nothing is substituted in")
    rest = sympy.expand(expression.subs(replacements, simultaneous=True) - result)
    if rest != 0:
        raise ProofFailed(
            statement, rest, "the substitution should give something else; the difference is"
        )
    return ProofStep(
        statement,
        How.SUBSTITUTION,
        (equation(sympy.Subs(expression, *zip(*replacements, strict=True)), result),),
    )
