"""Every claim has its expected verdict, and loses it when the code under it is broken."""

import pickle
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import sympy
import torch

import verify
from broken import PROOFS, as_coded
from commands import ROOT, Command
from construct import attention
from construct.encoding import quadratic
from examples.learned.results import published, rows
from examples.learned.variants import VARIANTS
from verify import oracle
from verify.coq import statements
from verify.theory import measured as measurements
from verify.theory.literature import (
    claims_added,
    claims_added_heads,
    claims_experiments,
    claims_heads,
    claims_symmetry,
    claims_theorem,
    equations,
    judgement,
    torch_layers,
)
from verify.theory.literature.claim_table import ALL, ClaimTable, JudgedClaim, claims
from verify.theory.literature.judgement import (
    CHECKED,
    MEASURED,
    OPEN,
    PROVED,
    REFUTED,
    UNDECIDED,
    Check,
    checked,
    proved,
    refuted,
)
from verify.theory.literature.slips import SLIPS
from verify.theory.symbolic import lemmas, proof, proof_algebra, proof_positions, proofs_relative
from verify.theory.symbolic.proof import ProofFailed
from verify.theory.symbolic.proofs_scores import plus, symbols

DOC = Path(__file__).parents[2] / "docs" / "claims.md"

BY_ID = {one.id: one for one in ALL}

LONG_PROOFS = ("prove_theorem", "prove_parabola")
"""Proofs that rest on the encoding alone, so breaking anything else does not affect them."""


def remember(monkeypatch: pytest.MonkeyPatch, proofs: Iterable[str]) -> None:
    """Compute each of these proofs only once."""
    for name in proofs:
        monkeypatch.setattr(lemmas, name, partial(as_coded, name))


@pytest.fixture(scope="module")
def table() -> ClaimTable:
    with pytest.MonkeyPatch.context() as patch:
        remember(patch, PROOFS)
        return claims()


def test_nothing_is_undecided_and_every_refuted_claim_says_what_stands(table: ClaimTable) -> None:
    assert table.good
    assert len(table) == sum(table.counts.values()) == len(BY_ID) == len({one.wording for one in ALL})
    for row in table:
        assert "FAILS" not in row.evidence
        assert bool(row.stands) == (row.verdict == REFUTED)
        if row.correction is not None:
            assert row.correction.verdict == PROVED
            assert row.correction.statement != row.wording
            assert "FAILS" not in row.correction.evidence


def test_only_what_a_source_claims_is_refuted(table: ClaimTable) -> None:
    ours = [row for row in table if row.ours]
    assert {row.verdict for row in ours} == {PROVED, CHECKED}
    assert list(table)[-len(ours) :] == ours  # our additions come last


METHOD = re.compile(
    r"Coq: \w+(, \w+)*(; exact example)?|sympy(; \d+ steps? argued)?(; [\w ,=≤-]+)?|exhaustive: .+|exact (example|rank: .+)|counted"
)


def test_every_verdict_says_by_what(table: ClaimTable) -> None:
    for row in table:
        if row.verdict == PROVED:
            assert METHOD.fullmatch(row.by), row.by
        assert (row.by == "as printed") == (row.verdict == REFUTED)
        assert (row.by == "") == (row.verdict == OPEN)
        assert (row.by in claims_experiments.OUTCOMES) == (row.verdict == MEASURED)
        if row.verdict != OPEN:
            assert re.search(r"\d|Coq: ", row.evidence), row.id
        if row.correction is not None:
            assert METHOD.fullmatch(row.correction.by), row.correction.by


def test_every_claim_of_a_source_quotes_it() -> None:
    for one in ALL:
        assert 3 < len(one.quote.split()) <= 25 or (one.ours and not one.quote), one.id
        assert bool(one.quote) == bool(re.fullmatch(r"(abstract|talk|blog|slides|review)(, \S.*)?", one.source))


def test_one_head_more_than_taps_is_a_convolution_at_finite_scores() -> None:
    """The layer of relative-sufficient with a softmax in float64: scores 2 at the target and 0 elsewhere, and a uniform head."""
    plane, weight, x = claims_heads.PLANE, equations.integers(1, 3, 2, 3, 3), equations.integers(2, 2, 4, 5)
    hits, taps = equations.hard_heads(plane), equations.tap_matrices(weight)
    heads = [equations.softmax(2 * hit) for hit in (*hits, 0 * hits[0])]
    tokens, gain = heads[0].shape[1], np.exp(2) - 1
    values = [(gain + tokens) / gain * tap for tap in taps]
    output = equations.mix(heads, plane.tokens(x), [*values, -tokens / gain * sum(taps)])
    expected = plane.convolution(weight)(x[None]).reshape(3, -1).T
    assert np.abs(output - expected).max() < 1e-10 * np.abs(expected).max()


def measured(table: ClaimTable) -> list[tuple[JudgedClaim, list[tuple[str, str, str]]]]:
    """What is measured, and the page, the section and what is said from there to the next section."""
    named = r"docs/(learned\w*\.md), ([A-Z][\w -]*?) \((.*?)(?=docs/learned|$)"
    return [(row, re.findall(named, row.evidence)) for row in table if row.verdict == MEASURED]


def test_what_is_measured_is_in_the_section_that_it_names(table: ClaimTable) -> None:
    """Every quotation, and every number with decimals or thousands."""
    number = re.compile(r"(?<![\d.,])\d+(?:[.,]\d+)+")
    missing = []
    for row, parts in measured(table):
        assert parts, row.id
        for page, section, said in parts:
            text = (ROOT / "docs" / page).read_text(encoding="utf-8")
            shown = " ".join(text.partition(f"\n## {section}\n")[2].partition("\n## ")[0].split())
            quotes, numbers = re.findall("“(.*?)”", said), {*number.findall(said)}
            assert quotes or numbers, (row.id, section)
            missing += [(row.id, section, quote) for quote in quotes if quote not in shown]
            missing += [(row.id, section, one) for one in sorted(numbers - {*number.findall(shown)})]
    assert missing == []


def test_what_is_measured_has_the_seeds_and_the_controls_of_the_committed_results(table: ClaimTable) -> None:
    """What agrees in part rests on three seeds and a control; the rest is too short to tell."""
    assert not {"frozen", "frozen-local", "conv3"}.isdisjoint(published.committed("learned_cifar"))
    images, digits = measurements.CIFAR_RUNS, measurements.DIGITS_RUNS
    runs = {"On CIFAR-10": images, "Heads on CIFAR-10": images, "On digits": digits, "Heads on digits": digits}
    for row, parts in measured(table):
        stated = [(said.split(")")[0], runs[section]) for _, section, said in parts if section != "Earlier runs"]
        assert all(said in (so, "seed 0") for said, so in stated), row.id
        enough = [said for said, _ in stated if re.fullmatch(r"seeds \d( to \d|(, \d){2,})", said)]
        assert enough or row.by == claims_experiments.SHORT, row.id
    assert "7 MEASURED HERE (3 too short to tell)" in table.summary


def test_what_is_said_of_every_rate_on_digits_is_so() -> None:
    results = {rate: published.committed(f"learned_digits_{rate}") for rate in rows.RATES}
    lines = rows.compared(rows.rows(results))
    paper = [line for line in lines if line.startswith(f"| {VARIANTS['quadratic'].label} |")]
    assert len(paper) == len(rows.RATES)
    assert all("nearer" not in line for line in paper)


def test_slips_stand_apart_and_have_no_verdict(table: ClaimTable) -> None:
    shown = table.markdown().split("\n## Slips and fragments\n")[1]
    assert shown.count("\n| ") == 1 + len(SLIPS)
    assert not any(s.printed in one.quote for s in SLIPS for one in ALL if len(s.printed) > 30 and one.id != "lemma-1")
    assert not re.search("REFUTED|PROVED|CHECKED", shown)


def test_it_reads_as_a_table_of_two_lines_a_row(table: ClaimTable) -> None:
    lines = str(table).splitlines()
    assert len(lines) == 2 * len(table) + 2  # plus the heading of our additions and the counts
    assert max(map(len, lines)) <= 120
    assert lines[-1] == table.summary
    assert "what we add:" in lines
    for row in table:
        assert row.row.splitlines()[0].startswith(f"{row.number:3}  {row.verdict}")
        assert row.quote.split(" … ")[0][:40] in str(row).replace("\n       ", " ")
        assert max(map(len, str(row).splitlines())) <= 120
    assert [row.number for row in table] == list(range(1, len(table) + 1))


def test_the_document_shows_what_the_code_gives(table: ClaimTable) -> None:
    shown = DOC.read_text(encoding="utf-8").split("<!-- made by code -->\n")[1].split("\n<!-- end -->")[0]
    built = table.markdown()
    number = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
    assert number.sub("#", shown) == number.sub("#", built)
    for one, other in zip(number.findall(shown), number.findall(built), strict=True):
        # Rounding residues, which differ between machines, are far below 1e-9.
        assert float(one) == pytest.approx(float(other), rel=0.1, abs=1e-9)


def test_the_public_name_and_single_claims() -> None:
    few = verify.claims(only=["channels-limit", "convolution-commutative"])
    assert [row.id for row in few] == ["channels-limit", "convolution-commutative"]
    assert few[0].number == 1 + [one.id for one in ALL].index("channels-limit")
    assert verify.claims([few[0].number])[0] == few[0]
    assert verify.claims(["channels-limit"]).summary == "1 of the sources: 1 REFUTED"
    assert pickle.loads(pickle.dumps(few)) == few


def test_an_unknown_claim_is_refused() -> None:
    reason = r"^no claim 0, nonsense \(use a number from 1 to \d+ or a name: theorem-limit, "
    with pytest.raises(ValueError, match=reason):
        claims(only=["channels-limit", "nonsense", 0])


def test_the_command_says_why(verify_command: Command) -> None:
    number = 1 + [one.id for one in ALL].index("channels-limit")
    assert verify_command.prints("claims", "--why", number) == f"{claims([number])[0]}\n"
    verify_command.refuses("claims", "--why", 999)


def test_one_failing_check_leaves_a_claim_undecided() -> None:
    good, bad = Check("good", True, "sympy"), Check("bad", False)
    assert (proved(good).verdict, proved(good).by) == (PROVED, "sympy")
    assert refuted(good, stands="most of it").verdict == REFUTED
    assert checked("3 samples", good).verdict == CHECKED
    for judged in (proved(good, bad), refuted(bad, good, stands="nothing"), checked("3 samples", good, bad)):
        assert (judged.verdict, judged.by) == (UNDECIDED, "")
        assert "FAILS: bad" in judged.evidence
    broken = refuted(good, stands="x", statement="y", instead=proved(good, bad)).correction
    assert broken is not None
    assert broken.verdict == UNDECIDED


def test_samples_a_broken_proof_and_no_check_at_all_are_no_proof() -> None:
    for samples in ((), (Check("20 samples agree", True), Check("a proof of something else", True, "sympy"))):
        with pytest.raises(ValueError, match=r"^only samples, no proof: .*use checked"):
            proved(*samples)
    assert checked("no samples").verdict == refuted(stands="x").verdict == UNDECIDED
    broken = Mock(side_effect=ProofFailed("a step", 1, "should be 0"))
    for check in (judgement.by_proof(broken), judgement.by_steps("what", broken), judgement.by_steps("nothing", list)):
        assert not check.holds
    assert judgement.by_coq().holds is False


def test_a_theorem_of_coq_must_be_a_headline() -> None:
    assert judgement.by_coq("theorem1").holds
    for no_headline in ("theorem2", "heads_limit", "theorem1_limi"):  # unknown, an auxiliary lemma, a truncated name
        check = judgement.by_coq("theorem1", no_headline)
        assert not check.holds
        assert f"{no_headline} (no headline theorem)" in check.finding


right_r, right_v, right_query = quadratic.r, quadratic.v, quadratic.absolute_query
right_call, right_mix = oracle.Convolution.__call__, equations.mix
right_content = claims_symmetry.content_scores
right_linear, right_differences = proof_algebra.linear, proof_positions.differences
right_window = claims_added_heads.window


def flipped(self, x):
    """A convolution that reads the reversed input."""
    reverse = (slice(None), slice(None), *(slice(None, None, -1) for _ in self.geometry.kernel_size))
    return right_call(replace(self, weight=self.weight[reverse]), x)


def padding(**instead):
    def call(self, x):
        mode = self.geometry.padding_mode
        other = replace(self.geometry, padding_mode=instead.get(mode, mode))
        return right_call(replace(self, geometry=other), x)

    return oracle.Convolution, "__call__", call


def constant_layer(positions):
    layer = torch_layers.pointwise_layer(positions)
    with torch.no_grad():
        layer.w_val.zero_()
    return layer


def two_halves(statement, *equations):
    """A sum that is twice the correct value."""
    return right_linear(statement, *((2 * left, right) for left, right in equations))


def v(change):
    return quadratic, "v", change


FLIPPED = (oracle.Convolution, "__call__", flipped)
NEGATED = v(lambda tau, alpha: tuple(-x for x in right_v(tau, alpha)))
HALVED = v(lambda tau, alpha: (-alpha, *(alpha * x for x in tau)))
SOFTER = v(lambda tau, alpha: right_v(tau, alpha / 2))
MIRRORED = (quadratic, "r", lambda delta: right_r([-x for x in delta]))
LAST_HEAD_LEFT_OUT = (*(equations, "mix"), lambda heads, x, weights: right_mix(list(heads)[:-1], x, list(weights)[:-1]))

NO_COQ = (statements, "headlines", list)
DOUBLED_QUERIES = (proof_positions, "differences", lambda queries, keys: right_differences(2 * queries, keys))
NO_PRODUCT = (sympy, "block_collapse", lambda product: 2 * product)
# More than twice, by its bias.
AFFINE = (claims_symmetry, "read_by_content", lambda pixel: sympy.Integer(3 * pixel - 2))
NO_LIMIT = (sympy, "limit", lambda expression, symbol, to: expression)
UNROLLED = (np, "roll", lambda x, shift, axis=None: x)
NO_CERTIFICATE = (claims_added, "certified", lambda *_: Check("no certificate", False))

CITED = """lemma-2 sparse as-expressive any-layer hard-in-floats heads-sufficient multiple-heads
    channels-sufficient finite-never-exact patches null-token encodings-in-use sparsemax finite-error
    soft-in-floats borders-replicate head-count fewer-heads least-heads head-width axis-factorisation"""
"""Claims that headline theorems of Coq state: what they rest on is that these are headlines."""

# Each claim with breakages, applied singly, under which it must lose its verdict: (where, name, replacement).
BREAKAGES = {
    **{name: [NO_COQ] for name in CITED.split()},
    "theorem-limit": [NEGATED, MIRRORED, NO_COQ],
    "lemma-1": [NO_PRODUCT, NO_COQ],
    "any-dimension": [
        FLIPPED,
        (quadratic, "r", lambda delta: (sum((x * x for x in delta[:-1]), 0 * delta[-1]), *delta)),
    ],
    "flipped-kernel": [(claims_theorem, "linear", two_halves)],
    "alpha-46": [v(lambda tau, alpha: right_v(tau, 4 * alpha))],
    "centre-and-width": [SOFTER],
    "three-sufficient": [HALVED, (proof_positions, "code_length", lambda dims: 4)],
    "relative-sufficient": [NEGATED, DOUBLED_QUERIES, FLIPPED],
    "last-term": [
        (quadratic, "absolute_query", lambda q, tau, alpha: right_query(q, [-x for x in tau], alpha)),
        (quadratic, "absolute_key", lambda k: (sum(k), *k)),
    ],
    "scores-and-shift": [(proofs_relative, "eq_6", lambda q, k, token: token(q) + token(k))],
    "channels-limit": [FLIPPED, NEGATED, (equations, "rank", lambda rows: 1)],
    "factoring": [NO_PRODUCT],
    "translates": [
        LAST_HEAD_LEFT_OUT,
        (equations, "softmax", lambda scores: np.full(scores.shape, 1 / 6)),
        (claims_heads, "linear", two_halves),
    ],
    "mixture": [(claims_heads, "linear", two_halves)],
    "gaussians": [(claims_heads, "linear", two_halves)],
    "permutation-equivariance": [
        (claims_symmetry, "content_scores", lambda x, d_k: right_content(x + sympy.OneMatrix(*x.shape), d_k)),
        (claims_symmetry, "pointwise_layer", lambda positions: torch_layers.pointwise_layer(True)),
    ],
    "permutation-invariance": [(claims_symmetry, "pointwise_layer", constant_layer)],
    "translation-equivariance": [
        (proofs_relative, "minus", lambda a, b: plus(a, b)),
        (claims_symmetry, "pointwise_layer", lambda positions: torch_layers.pointwise_layer(False)),
    ],
    "convolution-equivariance": [(claims_symmetry, "linear", two_halves)],
    "convolution-associative": [(claims_symmetry, "linear", two_halves), UNROLLED],
    "convolution-commutative": [
        UNROLLED,
        (claims_symmetry, "linear", two_halves),
        (claims_symmetry, "symbols", lambda name, n: symbols("f", n)),
    ],
    "convolution-fourier": [
        padding(zeros="circular"),
        padding(circular="zeros"),
        (claims_symmetry, "linear", two_halves),
    ],
    "receptive-field": [(claims_symmetry, "gt", proof.le)],
    "generalisation": [(claims_symmetry, "read_by_content", lambda pixel: sympy.Integer(pixel) / 2), AFFINE],
    "content": [(claims_symmetry, "read_by_content", lambda pixel: sympy.Integer(pixel) / 2)],
    "quadratic-cost": [(attention.MHSA, "attention_probabilities", lambda self, x: x[:, None, :1])],
    "rounding-alone": [HALVED, NO_COQ, NO_CERTIFICATE],
    "torch-exponential": [(torch.Tensor, "exp", lambda self: self.double().mul(1e-6).expm1().add(1).to(self.dtype))],
    "torch-fields": [HALVED, NO_CERTIFICATE, NO_COQ],
    "two-components": [(quadratic, "number", lambda delta, radix: sum(delta)), NO_CERTIFICATE],
    "one-component-spread": [(equations, "rank", lambda rows: 8), NO_LIMIT],
    "key-width": [HALVED, NEGATED, NO_CERTIFICATE],
    "narrow-spread": [(claims_added_heads, "symbols", lambda name, n: symbols("f", n))],
    "blurred-windows": [(claims_added_heads, "window", lambda tau, radius, reach: right_window(tau, 0, reach))],
}

# The same for each correction of a refuted claim.
CORRECTION_BREAKAGES = {
    "lemma-2": [NEGATED, HALVED],
    "alpha-46": [SOFTER],
    "scores-and-shift": [(proofs_relative, "minus", lambda a, b: plus(a, b))],
    "channels-limit": [NO_COQ],
}


def cases(of: str, breakages: dict) -> list:
    """One case for each breakage of each claim, or of its correction."""
    return [
        pytest.param(of, name, *breakage, id=f"{of}-{name}-{breakage[1]}-{number}")
        for name, several in breakages.items()
        for number, breakage in enumerate(several)
    ]


def test_every_judged_claim_and_every_correction_is_broken_somehow(table: ClaimTable) -> None:
    assert set(BREAKAGES) == {row.id for row in table if row.verdict in (PROVED, CHECKED, REFUTED)}
    assert set(CORRECTION_BREAKAGES) == {row.id for row in table if row.correction is not None}


def break_it(monkeypatch: pytest.MonkeyPatch, name: str, where, what: str, instead):
    monkeypatch.setattr(where, what, instead)
    if where is not quadratic:
        remember(monkeypatch, LONG_PROOFS)
    (row,) = claims(only=[name])
    return row


@pytest.mark.deep
@pytest.mark.parametrize(
    ("of", "name", "where", "what", "instead"), cases("verdict", BREAKAGES) + cases("correction", CORRECTION_BREAKAGES)
)
def test_a_verdict_changes_when_the_code_under_it_is_broken(monkeypatch, table, of, name, where, what, instead) -> None:
    before: Any = next(row for row in table if row.id == name)
    after: Any = break_it(monkeypatch, name, where, what, instead)
    if of == "correction":
        before, after = before.correction, after.correction
    assert after.verdict == UNDECIDED != before.verdict
    assert "FAILS: " in after.evidence


@pytest.mark.parametrize(
    "name", ["lemma-2", "translates", "borders-replicate", "convolution-associative", "alpha-46", "content"]
)
def test_some_of_them_in_every_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert break_it(monkeypatch, name, *BREAKAGES[name][0]).verdict == UNDECIDED


def test_the_elimination_is_exact() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 4, 6):
        thin, wide = rng.integers(-5, 6, (size, 2)), rng.integers(-5, 6, (2, size))
        assert equations.rank(thin @ wide) == np.linalg.matrix_rank(thin @ wide)
