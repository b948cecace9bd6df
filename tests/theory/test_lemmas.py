"""Lemma 2 is proved for the code that runs: the proof holds as coded and fails when the code is broken."""

import math
import pickle
from typing import Any

import pytest
import sympy

from broken import WRONG_ENCODINGS, WRONG_FROM_TWO_AXES, as_coded, break_encoding
from construct.encoding import quadratic
from verify.theory.symbolic import proof, proof_algebra
from verify.theory.symbolic.lemmas import prove_lemma2
from verify.theory.symbolic.proof import How, Proof, ProofFailed, ProofStep
from verify.theory.symbolic.proofs_lemma2 import gap_steps, score_steps

right_r, right_v = quadratic.r, quadratic.v

PARTS = {"score": score_steps, "gap": gap_steps}


OTHER_GAPS = {
    "v twice as sharp": {"v": lambda tau, alpha: right_v(tau, 2 * alpha)},
    "v half as sharp": {"v": lambda tau, alpha: right_v(tau, alpha / 2)},
}
"""Also one-hot in the limit, but the gap is not α."""
EACH_WRONG_ONCE = [pytest.param(1, functions, id=name) for name, functions in (WRONG_ENCODINGS | OTHER_GAPS).items()]
EACH_WRONG_ONCE += [
    pytest.param(dims, functions, id=f"{name}, {dims}-D")
    for dims in (2, 3)
    for name, functions in WRONG_FROM_TWO_AXES.items()
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("dims", "functions"), EACH_WRONG_ONCE)
def test_a_wrong_encoding_fails_every_part_on_its_own(dims, functions, part, monkeypatch):
    # Without the other parts, this one would still notice: each part is effective.
    break_encoding(monkeypatch, functions)
    with pytest.raises(ProofFailed) as failure:
        PARTS[part](dims)
    assert failure.value.step in str(failure.value)


def test_a_constant_added_to_every_score_changes_the_identity_but_no_gap(monkeypatch):
    break_encoding(monkeypatch, {"r": lambda delta: (right_r(delta)[0] + 1, *delta)})
    assert gap_steps(1)
    with pytest.raises(ProofFailed):
        score_steps(1)


def test_the_failure_names_the_step_and_what_did_not_vanish(monkeypatch):
    break_encoding(monkeypatch, WRONG_ENCODINGS["v without the 2"])
    with pytest.raises(ProofFailed, match=r"‖δ − τ‖") as failure:
        prove_lemma2(1)
    alpha = sympy.Symbol("alpha", positive=True)
    delta, tau = (sympy.Symbol(f"{name}_1", integer=True) for name in ("delta", "tau"))
    assert failure.value.expression == -alpha * delta * tau
    assert str(pickle.loads(pickle.dumps(failure.value))) == str(failure.value)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_limits_shown_are_near_at_a_large_alpha(dims):
    for step in as_coded("prove_theorem", dims).steps:
        for expression in step.expressions if step.how is How.LIMIT else ():
            weight, alpha = expression.lhs.args[:2]
            point = {s: 200 if s == alpha else 12 for s in weight.free_symbols}  # apart from alpha, the number of keys
            assert abs(sympy.N(weight.subs(point) - expression.rhs, 200)) < 12 * math.exp(-200)


x, y = sympy.symbols("x y", nonnegative=True)
A, B = sympy.symbols("A B")
i, m = sympy.Symbol("i", integer=True), sympy.Symbol("m", integer=True, positive=True)
f: Any = sympy.IndexedBase("f")
g: Any = sympy.IndexedBase("g")


def total(term) -> Any:
    return sympy.Sum(term, (i, 1, m))


FALSE_OR_EMPTY = {
    "unequal": lambda: proof.identity("", (x**2, x)),
    "unequal fractions": lambda: proof.identity("", (1 / (1 + x), 1 / (2 + x))),
    "second of two unequal": lambda: proof.identity("", (x + x, 2 * x), (x, y)),
    "not a number": lambda: proof.identity("", (x * sympy.nan, x)),
    "constants": lambda: proof.identity("", (sympy.Integer(1), 1)),
    "negative": lambda: proof.from_assumptions("", proof.ge(x, 1 + x)),
    "unknown sign": lambda: proof.from_assumptions("", proof.ge(x, y)),
    "strict at equality": lambda: proof.from_assumptions("", proof.gt(x, 0)),
    "upper bound": lambda: proof.from_assumptions("", proof.le(x + 1, 1)),
    "another minimum": lambda: proof.least_value("", 1 - sympy.exp(-x), x, sympy.Interval(0, sympy.oo), 1),
    "wider domain": lambda: proof.least_value("", 1 - sympy.exp(-x), x, sympy.Interval(-1, sympy.oo), 0),
    "another limit": lambda: proof.limits("", [(1 / (1 + x), 0), (sympy.exp(-x), 1)], x),
    "limit of a constant": lambda: proof.limits("", [(y, y)], x),
    "oscillation": lambda: proof.limits("", [(sympy.sin(x), 0)], x),
    "unequal sums": lambda: proof_algebra.linear("", (total(f[i]), total(2 * f[i]))),
    "other range": lambda: proof_algebra.linear("", (total(f[i]), sympy.Sum(f[i], (i, 1, m + 1)))),
    "rest beside the sums": lambda: proof_algebra.linear("", (total(f[i]) + x, total(f[i]))),
    "product of sums": lambda: proof_algebra.linear("", (total(f[i]) * total(g[i]), total(f[i] * g[i]))),
    "index outside": lambda: proof_algebra.linear("", (f[i] * total(g[i]), total(f[i] * g[i]))),
    "second of two": lambda: proof_algebra.linear("", (total(f[i]), total(f[i])), (total(f[i]), x)),
    "no sum": lambda: proof_algebra.linear("", (x + y, y + x)),
    "another value": lambda: proof_algebra.sum_value("", (total(i), m * (m + 1))),
    "not a sum": lambda: proof_algebra.sum_value("", (x, x)),
    "divergent": lambda: proof_algebra.sum_value("", (sympy.Sum(1, (i, 1, sympy.oo)), x)),
    "another rank": lambda: proof_algebra.ranks("", (sympy.eye(2), 2), (sympy.Matrix([[x, y], [2 * x, 2 * y]]), 2)),
    "no matrix": lambda: proof_algebra.ranks("", (sympy.zeros(0, 3), 0)),
    "another result": lambda: proof_algebra.substitution("", x + y, [(x, 2)], 3 + y),
    "an absent symbol": lambda: proof_algebra.substitution("", x, [(y, 2)], x),
    "no replacement": lambda: proof_algebra.substitution("", x, [], x),
}


@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in FALSE_OR_EMPTY.items()])
def test_a_false_or_empty_step_fails(check):
    with pytest.raises(ProofFailed):
        check()


@pytest.mark.parametrize(
    "empty",
    [
        lambda: proof.identity(""),
        lambda: proof.from_assumptions(""),
        lambda: proof.limits("", [], x),
        lambda: proof_algebra.linear(""),
        lambda: proof_algebra.sum_value(""),
        lambda: proof_algebra.ranks(""),
        lambda: proof.cited(""),
        lambda: ProofStep("", How.IDENTITY, ()),
        lambda: Proof("", ()),
    ],
)
def test_nothing_shows_nothing(empty):
    with pytest.raises(ValueError, match="must"):
        empty()


def test_cited_steps_are_counted_apart_and_must_be_headlines():
    cited = proof.cited("the gap", "lemma2", "score_gap")
    mixed = Proof("Claim", (proof.identity("one", (x + x, 2 * x)), cited))
    assert (mixed.discharged, mixed.cited, mixed.argued) == (1, 1, 0)
    assert mixed.lines[1] == ("the gap", "Coq: lemma2, score_gap")
    assert mixed.counts == "1 steps by sympy, 1 by Coq, 0 argued"
    assert mixed.full().endswith(mixed.counts)
    with pytest.raises(ProofFailed, match="headline theorem"):
        proof.cited("no such theorem", "lemma2", "lemma3")


def test_what_holds_is_shown():
    step = proof_algebra.linear("", (total(f[i] + x * g[i]), total(f[i]) + x * total(g[i])))
    assert step.how is How.SUM
    assert proof_algebra.sum_value("", (total(i), m * (m + 1) / 2)).how is How.SUM
    assert (
        str(proof_algebra.ranks("r", (sympy.Matrix([[x, y], [2 * x, 2 * y]]), 1)))
        == "[rank] r\n    rank([[x, y], [2*x, 2*y]]) = 1"
    )
    assert proof_algebra.substitution("", x * y, [(x, y), (y, x)], x * y).how is How.SUBSTITUTION
