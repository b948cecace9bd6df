"""Each symbolic proof holds as coded, fails when the code under it is broken, and its expressions hold for numbers."""

import inspect
from collections import Counter
from typing import Any

import numpy as np
import pytest
import sympy

from broken import WRONG_ENCODINGS, as_coded, break_encoding
from construct.encoding import quadratic
from construct.geometry import ConvGeometry
from construct.heads import tap_shifts
from verify.theory.symbolic import lemmas, proof, proofs_lemma1, proofs_theorem
from verify.theory.symbolic.proof import How, Proof, ProofFailed, argued
from verify.theory.symbolic.proofs_encodings import parabola_steps
from verify.theory.symbolic.proofs_lemma1 import lemma1_steps
from verify.theory.symbolic.proofs_theorem import theorem_steps

right_r, right_v, right_number = quadratic.r, quadratic.v, quadratic.number
right_key, right_query = quadratic.absolute_key, quadratic.absolute_query

# The number of steps that sympy does not discharge, for each proof.
ARGUED = {
    "prove_lemma1": 0,
    "prove_lemma2": 0,
    "prove_theorem": 0,
    "prove_leakage_on_lattice": 1,  # terms no greater add up to no more
    "prove_leakage_off_lattice": 1,
    "prove_relative_from_absolute": 0,
    "prove_absolute_encoding": 0,
    "prove_parabola": 0,
}
PROOFS = [
    pytest.param(name, arguments, id="-".join((name, *map(str, arguments))))
    for name in ARGUED
    for arguments in ([(d,) for d in (1, 2, 3)] if inspect.signature(getattr(lemmas, name)).parameters else [()])
]


@pytest.mark.parametrize(("name", "arguments"), PROOFS)
def test_it_holds_as_coded(name, arguments):
    shown = as_coded(name, *arguments)
    assert shown.argued == ARGUED[name]
    assert shown.discharged + shown.cited + shown.argued == len(shown.steps)
    text = shown.full()
    assert text.startswith(shown.claim)
    assert text.endswith(f"{shown.argued} argued")
    assert f"{shown.discharged} steps by sympy" in text
    assert all(step.statement in text for step in shown.steps)
    lines = shown.brief().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    checked = Counter(how for step in shown.steps for how in _true_of_numbers(step))
    assert checked[How.IDENTITY] >= 1


NUMBERS = [3, -2, 5, 7, -4, 1, 2, -6, 11, 4, -3, 8, 9, -5, 6, 10]


def _true_of_numbers(step):
    """Check every identity, sum and inequality of a step at numbers; yield the method of each."""
    if step.how not in (How.IDENTITY, How.SUBSTITUTION, How.SUM, How.ASSUMPTIONS):
        return
    for expression in step.expressions:
        if not isinstance(expression, sympy.Eq | sympy.Ge | sympy.Gt | sympy.Le | sympy.Lt):
            continue
        sides = (expression.lhs, expression.rhs)
        left, right = (_summed(side) for side in sides)
        if left.has(sympy.Indexed):
            assert sympy.expand(left - right) == 0
        else:
            point = _point(left.free_symbols | right.free_symbols)
            left, right = (sympy.N(_summed(side.xreplace(point)), 40) for side in (left, right))
            close = abs(left - right) <= 1e-25 * (1 + abs(left))
            assert close if isinstance(expression, sympy.Eq) else close or expression.func(left, right), expression
        yield step.how


def _summed(expression) -> Any:
    return expression.doit() if expression.has(sympy.Sum, sympy.Subs) else expression


def _point(symbols):
    """Numbers that satisfy the symbols' assumptions, all integers, so that integer expressions stay integers."""
    point, places = {}, iter(NUMBERS * 50)
    for symbol in sorted(symbols, key=str):
        number = next(places)
        if symbol.name.startswith("a_") and symbol.is_integer:
            number = -2  # the ends of a box of keys are negative
        elif symbol.name.startswith("b_") and symbol.is_integer:
            number = 3
        elif symbol.is_nonnegative:
            number = abs(number)
        elif symbol.is_real and not symbol.is_integer:
            number = sympy.Rational(number, 7)
        point[symbol] = sympy.Rational(number, 11) if symbol.name == "alpha" else sympy.sympify(number)
    return point


WRONG = {
    "v twice as sharp": {"v": lambda tau, alpha: right_v(tau, 2 * alpha)},
    "r negated": {"r": lambda delta: tuple(-x for x in right_r(delta))},
} | {
    name: WRONG_ENCODINGS[name]
    for name in (
        *("v negated", "v without the 2", "v with +2 tau", "v with the norm negated"),
        *("r without the square", "r with key and query exchanged", "r with a component missing"),
    )
}
ON_R_AND_V = {
    "theorem 1": lambda: lemmas.prove_theorem(1),
    "leakage on the lattice": lemmas.prove_leakage_on_lattice,
    "leakage off the lattice": lemmas.prove_leakage_off_lattice,
    "relative from absolute": lemmas.prove_relative_from_absolute,
    "absolute encoding": lambda: lemmas.prove_absolute_encoding(2),
    "parabola": lambda: lemmas.prove_parabola(2),
}


@pytest.mark.parametrize("prove", ON_R_AND_V.values(), ids=ON_R_AND_V)
@pytest.mark.parametrize("functions", WRONG.values(), ids=WRONG)
def test_a_wrong_encoding_fails_every_proof_that_rests_on_it(prove, functions, monkeypatch):
    break_encoding(monkeypatch, functions)
    with pytest.raises(ProofFailed) as failure:
        prove()
    assert failure.value.step in str(failure.value)


WRONG_PART = {
    "without the radix": {"number": lambda delta, radix: sum(delta)},
    "radix reversed": {"number": lambda delta, radix: right_number(delta, radix[::-1])},
    "an axis negated": {"number": lambda delta, radix: right_number((-delta[0], *delta[1:]), radix)},
    "an axis left out": {"number": lambda delta, radix: right_number(delta[1:], radix[1:])},
    "off by one": {"number": lambda delta, radix: right_number(delta, radix) + 1},
    "key without the square": {"absolute_key": lambda k: (sum(k), *k)},
    "key negated": {"absolute_key": lambda k: tuple(-x for x in right_key(k))},
    "key with the norm last": {"absolute_key": lambda k: (*k, sum(x * x for x in k))},
    "key with a feature missing": {"absolute_key": lambda k: right_key(k)[:-1]},
    "query with the norm's sign": {"absolute_query": lambda q, tau, alpha: (alpha, *right_query(q, tau, alpha)[1:])},
    "query without the 2": {
        "absolute_query": lambda q, tau, alpha: (-alpha, *(alpha * (x + t) for x, t in zip(q, tau, strict=True)))
    },
    "query at q - tau": {"absolute_query": lambda q, tau, alpha: right_query(q, [-t for t in tau], alpha)},
    "query without alpha": {"absolute_query": lambda q, tau, alpha: right_query(q, tau, 1)},
}
"""Of the parabola, its number, and of the absolute encoding, a key or a query."""


@pytest.mark.parametrize("functions", WRONG_PART.values(), ids=WRONG_PART)
def test_a_wrong_number_or_feature_fails_the_proof_about_it(functions, monkeypatch):
    break_encoding(monkeypatch, functions)
    with pytest.raises(ProofFailed):
        parabola_steps(2) if "number" in functions else lemmas.prove_absolute_encoding(2)


def test_what_takes_attention_as_given_rests_on_no_encoding(monkeypatch):
    break_encoding(monkeypatch, WRONG["v negated"] | WRONG["r negated"])
    assert lemma1_steps(1)


@pytest.mark.parametrize("module", [proofs_lemma1, proofs_theorem])
def test_heads_that_look_the_other_way_are_no_convolution(module, monkeypatch):
    right = proofs_lemma1.one_hot
    monkeypatch.setattr(module, "one_hot", lambda case, shift: right(case, tuple(-t for t in shift)))
    with pytest.raises(ProofFailed):
        (lemma1_steps if module is proofs_lemma1 else theorem_steps)(1)


def test_a_flipped_kernel_is_another_convolution(monkeypatch):
    definition = proofs_lemma1.convolution
    monkeypatch.setattr(proofs_lemma1, "convolution", lambda case, kernel: definition(case, kernel[::-1]))
    with pytest.raises(ProofFailed):
        lemma1_steps(1)


@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_the_cases_look_where_the_builder_looks(dims):
    for case in proofs_lemma1.cases(dims):
        geometry = ConvGeometry(2, 2, case.kernel, case.s, (0,) * dims, "zeros", case.dil, 1)
        assert tuple(case.shifts) == tap_shifts(geometry)
        assert case.geometry.anchor == geometry.anchor
        assert case.outputs == geometry.output_size(case.size)
        assert min(case.outputs + case.size + case.kernel) >= 1


def test_the_written_out_convolution_is_the_convolution():
    (case, _), rng = proofs_lemma1.cases(2), np.random.default_rng(0)
    x, b = rng.integers(-9, 9, (*case.size, 2)), rng.integers(-9, 9, 2)
    w = rng.integers(-9, 9, (*case.kernel, 2, 2))
    numbers = dict(zip([*case.x.flat(), *case.b.flat()], [*x.ravel().tolist(), *b.tolist()], strict=True))
    kernel = [sympy.Matrix(w[j].tolist()) for j in case.taps]
    outputs = np.array(proofs_lemma1.convolution(case, kernel).subs(numbers)).astype(int)
    for (i, j), y in zip(np.ndindex(case.outputs), outputs, strict=True):
        field = x[i : i + case.kernel[0], j : j + case.kernel[1]]
        assert (y == b + np.einsum("klc,klcd->d", field, w)).all()


x, y = sympy.symbols("x y")


def test_a_new_parametrisation_is_not_called_an_identity():
    (step,) = [s for s in as_coded("prove_relative_from_absolute").steps if s.how is How.SUBSTITUTION]
    assert "not an identity" in step.statement


def test_long_expressions_are_cut_in_print_only():
    long = sympy.Add(*sympy.symbols("x_:200"))
    step = argued("long", long)
    assert str(step).endswith(" …")
    assert len(str(step)) < 500
    assert step.expression == long
    assert str(long) in step.full()


def test_in_full_every_expression_of_every_step_is_printed():
    shown = as_coded("prove_absolute_encoding", 2)
    lines = [line.strip() for line in shown.full().splitlines()]
    assert len(lines) == 2 + len(shown.parts) + sum(len(s.expressions) + (s not in shown.parts) for s in shown.steps)
    assert all(step.statement in " ".join(lines) for step in shown.steps)


def test_all_proofs_leaves_none_out(monkeypatch):
    public = {name for name in vars(lemmas) if name.startswith("prove_")}
    assert public == {*ARGUED}
    calls = Counter()

    def stand_in(name):
        def make(*dims):
            calls[name] += 1
            return Proof(f"{name}{dims}", (argued(name, x),))

        return make

    per_dims = {name for name in public if inspect.signature(getattr(lemmas, name)).parameters}
    for name in public:
        monkeypatch.setattr(lemmas, name, stand_in(name))
    claims = [shown.claim for shown in lemmas.all_proofs((1, 3))]
    assert len(set(claims)) == len(claims)
    assert calls == {name: 2 if name in per_dims else 1 for name in public}


@pytest.mark.parametrize("dims", [(), (0,), (1, "2"), (True,), (1, 63), (99,)])
def test_all_proofs_refuses_bad_dims_before_it_starts(dims):
    with pytest.raises(ValueError, match=r"^dims must"):
        lemmas.all_proofs(dims)


@pytest.mark.parametrize("name", [name for name in ARGUED if inspect.signature(getattr(lemmas, name)).parameters])
def test_bad_dims_are_refused_in_one_line(name):
    for dims in (0, -1, 1.0, "2", None, True):
        with pytest.raises(ValueError, match=r"^dims must be an integer of at least 1, got .+$"):
            getattr(lemmas, name)(dims)
    for dims in (63, 99, 10**9):
        with pytest.raises(ValueError, match=rf"^dims must be at most 62, .+, got {dims}$"):
            getattr(lemmas, name)(dims)


def test_many_symbols_take_no_long_factorisation():
    """Expanding decides every gap; to factor them takes minutes from about d = 20 on."""
    shown = lemmas.prove_parabola(24)
    assert shown.argued == 0
    assert shown.discharged == lemmas.prove_parabola(4).discharged


def test_in_brief_a_step_is_a_line_and_no_line_is_cut():
    proofs = [as_coded("prove_absolute_encoding", d) for d in (1, 2)] + [as_coded("prove_relative_from_absolute")]
    lines = proof.in_brief(proofs).splitlines()
    for shown in (proofs[1], proofs[2]):
        for number, (statement, reason) in enumerate(shown.lines, 1):
            assert f"{number:3}. {statement} [{reason}]" in lines
    assert max(map(len, lines)) <= 100
    assert "4 steps by sympy, 1 by Coq, 0 argued; d = 1 the same" in lines


def test_theorem_1_cites_the_lemmas_and_repeats_neither():
    theorem, lemma1, lemma2 = lemmas.prove_theorem(1), lemmas.prove_lemma1(1), lemmas.prove_lemma2(1)
    assert [reason for _, reason in theorem.lines][:2] == ["Lemma 2", "Lemma 1"]
    repeated = {statement for lemma in (lemma1, lemma2) for statement, _ in lemma.lines}
    assert not repeated & {statement for statement, _ in theorem.lines}
    assert set(lemma2.steps) <= set(theorem.steps)  # the cited steps are discharged again and shown by str


def test_a_line_in_brief_carries_every_step_under_it():
    steps = (proof.identity("one", (x + x, 2 * x)), argued("two", x), proof.identity("three", (y + y, 2 * y)))
    part = Proof("both", steps[:2])
    whole = Proof("Claim", (part, steps[2]))
    assert (whole.steps, whole.discharged, whole.argued) == (steps, 2, 1)
    assert whole.lines == [("both", "identity, argued"), ("three", "identity")]
    assert Proof("more", (whole,), name="Lemma 0").reason == "Lemma 0"
    assert "  1. both\n  1.1 [identity] one\n" in whole.full()
