"""Every claim has the verdict that it should have, and loses it when the code under it is broken."""

import ast
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import verify
from construct import attention
from construct.encoding import quadratic as encoding
from verify import oracle
from verify.theory.literature import (
    claim_table,
    claims_borders,
    claims_encoding,
    claims_heads,
    claims_sharpness,
    claims_symmetry,
    claims_theorem,
    claims_widths,
    equations,
    judgement,
    torch_layers,
)
from verify.theory.literature.claim_table import ALL, ClaimTable, claims
from verify.theory.literature.judgement import EXPERIMENT, PROVED, REFUTED, UNDECIDED, Check, corrected, proved, refuted
from verify.theory.symbolic import lemmas, proof_positions

DOC = Path(__file__).parents[2] / "docs" / "claims.md"

EXPECTED = {
    PROVED: """theorem-limit theorem-ieee lemma-1 lemma-2 any-dimension one-dimension centre-and-width exponential-decay
        three-sufficient relative-sufficient four-terms heads-sufficient heads-add-up channels-sufficient pad-and-crop stride
        dilation permutation-equivariance translation-equivariance convolution-equivariance convolution-associative""",
    REFUTED: """theorem-finite alpha-46 lemma-2-sum three-necessary relative-necessary key-width even-kernel heads-necessary
        translation-group channels-limit tap-rank width-loses-nothing same-borders shift-sign index-sign
        permutation-invariance convolution-commutative convolution-fourier""",
    EXPERIMENT: "width-best heads-learn-convolution local-first same-accuracy",
}
BY_ID = {one.id: one for one in ALL}


LONG_PROOFS = {name: cache(getattr(lemmas, name)) for name in ("prove_theorem", "prove_parabola", "prove_head_count")}


def remember_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the long proofs once: they rest on the encoding alone, so breaking anything else leaves them as they are."""
    for name, proof in LONG_PROOFS.items():
        monkeypatch.setattr(lemmas, name, proof)


@pytest.fixture(scope="module")
def table() -> ClaimTable:
    with pytest.MonkeyPatch.context() as patch:
        remember_proofs(patch)
        return claims()


# ---- the table ----------------------------------------------------------------------------------------------------------


def test_every_verdict_is_as_expected(table: ClaimTable) -> None:
    found = {verdict: {row.id for row in table if row.verdict == verdict} for verdict in EXPECTED}
    assert found == {verdict: set(ids.split()) for verdict, ids in EXPECTED.items()}
    assert len(table) == sum(table.counts.values()) == len(ALL)
    assert len(table) >= 20


def test_nothing_is_undecided_and_every_refuted_claim_is_corrected(table: ClaimTable) -> None:
    assert table.good
    for row in table:
        assert "FAILS" not in row.evidence
        assert (row.correction is not None) == (row.verdict == REFUTED)
        if row.correction is not None:
            assert row.correction.verdict == PROVED
            assert row.correction.statement != row.wording
            assert "FAILS" not in row.correction.evidence


def test_evidence_has_numbers_of_the_run(table: ClaimTable) -> None:
    for row in table:
        if row.verdict != EXPERIMENT:
            assert re.search(r"\d", row.evidence), row.id
        assert row.source.split(",")[0].split(";")[0] in ("paper", "talk", "blog")


def test_the_known_figures_are_in_it(table: ClaimTable) -> None:
    evidence = {row.id: row.evidence + (row.correction.evidence if row.correction else "") for row in table}
    assert "1.05e-20" in evidence["alpha-46"]
    assert "1.05e+10" in evidence["alpha-46"]
    assert "103.972" in evidence["alpha-46"]
    assert "9 for K = 2" in evidence["even-kernel"]
    assert "error 0 in the interior" in evidence["same-borders"]


def test_it_reads_as_a_table(table: ClaimTable) -> None:
    text = str(table)
    assert text.endswith(table.summary)
    for row in table:
        assert row.id in text
        assert f"{row.number:3}  {row.verdict}" in text
    assert max(map(len, text.splitlines())) <= 120
    assert [row.number for row in table] == list(range(1, len(table) + 1))
    assert table[0].id == ALL[0].id
    assert [row.id for row in table[-2:]] == [one.id for one in ALL[-2:]]


def test_ids_and_wordings_are_unique() -> None:
    assert len(BY_ID) == len(ALL) == len({one.wording for one in ALL})


def test_the_document_shows_what_the_code_gives(table: ClaimTable) -> None:
    shown = DOC.read_text(encoding="utf-8").split("<!-- made by code -->\n")[1].split("\n<!-- end -->")[0]
    made = table.markdown()
    number = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
    assert number.sub("#", shown) == number.sub("#", made)
    for one, other in zip(number.findall(shown), number.findall(made), strict=True):
        # What is left of rounding, and so differs from machine to machine, is far below 1e-9.
        assert float(one) == pytest.approx(float(other), rel=0.1, abs=1e-9)


def test_the_public_name_and_single_claims() -> None:
    few = verify.claims(only=["even-kernel", "convolution-commutative"])
    assert [row.id for row in few] == ["even-kernel", "convolution-commutative"]
    assert few[0].number == 1 + [one.id for one in ALL].index("even-kernel")
    assert verify.claims(["even-kernel"]).summary == "1 claims, as printed: 1 REFUTED"


def test_an_unknown_claim_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no claim nonsense; there are theorem-limit, "):
        claims(only=["even-kernel", "nonsense"])


# ---- how a verdict comes out --------------------------------------------------------------------------------------------


def test_one_failing_check_leaves_a_claim_undecided() -> None:
    good, bad = Check("good", True), Check("bad", False)
    assert proved(good).verdict == PROVED
    assert refuted(good).verdict == REFUTED
    assert corrected("so", good).verdict == PROVED
    for judged in (proved(good, bad), refuted(bad, good), corrected("so", good, bad)):
        assert judged.verdict == UNDECIDED
        assert "FAILS: bad" in judged.evidence


def test_no_check_is_no_evidence() -> None:
    assert proved().verdict == refuted().verdict == corrected("so").verdict == UNDECIDED
    assert judgement.by_steps("nothing", list).holds is False


# ---- breaking the code under each claim -----------------------------------------------------------------------------------

right_r, right_v, right_number = encoding.r, encoding.v, encoding.number
right_query, right_call, right_mix = encoding.absolute_query, oracle.Convolution.__call__, equations.mix


def v_negated(tau, alpha):
    return tuple(-x for x in right_v(tau, alpha))


def v_without_the_2(tau, alpha):
    return (-alpha, *(alpha * x for x in tau))


def v_sharper(tau, alpha):
    return right_v(tau, 4 * alpha)


def v_much_sharper(tau, alpha):
    return right_v(tau, 100 * alpha)


def v_softer(tau, alpha):
    return right_v(tau, alpha / 2)


def r_mirrored(delta):
    return right_r([-x for x in delta])


def r_without_an_axis(delta):
    return (sum(x * x for x in delta[:-1]), *delta)


def query_with_a_wrong_sign(q, tau, alpha):
    return right_query(q, [-x for x in tau], alpha)


def flipped(self, x):
    """A convolution that reads the other way round."""
    reverse = (slice(None), slice(None), *(slice(None, None, -1) for _ in self.kernel_size))
    return right_call(replace(self, weight=self.weight[reverse]), x)


def without_the_last_head(heads, x, weights, bias=0):
    return right_mix(list(heads)[:-1], x, list(weights)[:-1], bias)


def without_the_bias(heads, x, weights, bias=0):
    return right_mix(heads, x, weights)


def hard_intervals(scores):
    return [equations.iv.mpf(int(score == scores.max())) for score in scores]


def colder(scores):
    scores = 2 * np.asarray(scores, dtype=np.float64)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def padding(**instead):
    """The oracle, one padding mode taken for another."""

    def call(self, x):
        return right_call(replace(self, padding_mode=instead.get(self.padding_mode, self.padding_mode)), x)

    return oracle.Convolution, "__call__", call


def differences_of_doubled_queries(queries, keys):
    return [keys[None, :, axis] - 2 * queries[:, None, axis] for axis in range(keys.shape[1])]


def constant_layer(positions):
    layer = torch_layers.random_layer(width=1)
    with torch.no_grad():
        layer.w_val.zero_()
    return layer


def positional_attention(x):
    places = np.arange(len(x))[:, None]
    return right_content(x + places)


right_content = claims_symmetry.content_attention
right_composed = claims_symmetry.composed
right_heads = equations.hard_heads


def correlated(second, first):
    return right_composed(second[:, :, ::-1], first)


def symmetrised(a, b):
    return right_composed(a, b) + right_composed(b, a)


FLIPPED = (oracle.Convolution, "__call__", flipped)
NEGATED = (encoding, "v", v_negated)
HALVED = (encoding, "v", v_without_the_2)

# Each claim with breakages, one at a time, under which it cannot keep its verdict: (where, name, what instead).
BREAKAGES = {
    "theorem-limit": [NEGATED, (encoding, "r", r_mirrored)],
    "theorem-finite": [
        (equations, "enclosed_softmax", hard_intervals),
        (oracle.Convolution, "__call__", lambda self, x: 1 + right_call(self, x)),
    ],
    "theorem-ieee": [HALVED, (attention.MHSA, "position_vector", lambda self: 1e-3 * self.v.double())],
    "lemma-1": [FLIPPED, (equations, "mix", without_the_last_head), (equations, "mix", without_the_bias)],
    "lemma-2": [NEGATED, HALVED, (equations, "sharp", lambda scores: equations.softmax(scores.astype(float)))],
    "any-dimension": [FLIPPED, (encoding, "r", r_without_an_axis)],
    "one-dimension": [HALVED, FLIPPED],
    "centre-and-width": [(equations, "softmax", colder), (encoding, "v", v_softer)],
    "exponential-decay": [(encoding, "v", v_softer), (equations, "enclosed_softmax", hard_intervals)],
    "alpha-46": [(encoding, "v", v_sharper)],
    "lemma-2-sum": [(encoding, "v", v_much_sharper), (claims_sharpness, "_window", lambda: np.ones(81, dtype=bool))],
    "three-sufficient": [HALVED, FLIPPED, (proof_positions, "code_length", lambda dims: 4)],
    "three-necessary": [(encoding, "number", lambda delta, radix: sum(delta)), FLIPPED],
    "relative-sufficient": [NEGATED, (proof_positions, "differences", differences_of_doubled_queries)],
    "relative-necessary": [(encoding, "absolute_query", query_with_a_wrong_sign), FLIPPED],
    "key-width": [HALVED, NEGATED],
    "even-kernel": [
        (claims_encoding, "printed_shifts", lambda k, d: set(equations.Setting((k,) * d, (k,) * d).shifts))
    ],
    "four-terms": [
        (attention.MHSA, "position_vector", lambda self: self.v[:, :2].double()),
        (encoding, "r", r_mirrored),
    ],
    "heads-sufficient": [FLIPPED, NEGATED, (equations, "hard_heads", lambda setting: right_heads(setting)[::-1])],
    "heads-necessary": [
        FLIPPED,
        (claims_heads, "spread_attention", lambda setting, shares: equations.hard_heads(setting)[4]),
    ],
    "heads-add-up": [(equations, "mix", without_the_last_head)],
    "translation-group": [(claims_heads, "window", lambda tau, radius, reach: right_window(tau, 0, reach))],
    "channels-sufficient": [FLIPPED, HALVED],
    "channels-limit": [FLIPPED, NEGATED],
    "tap-rank": [
        (claims_widths, "spread_attention", lambda setting, shares: claims_heads.spread_attention(setting, [1, 1])),
        FLIPPED,
    ],
    "width-loses-nothing": [(claims_widths, "complex_taps", lambda: np.array([[[1, 1], [0, 0]], [[0, 0], [1, 2]]]))],
    "same-borders": [padding(zeros="replicate"), NEGATED, FLIPPED],
    "pad-and-crop": [padding(zeros="replicate"), HALVED],
    "stride": [HALVED, FLIPPED],
    "dilation": [HALVED, FLIPPED],
    "shift-sign": [(encoding, "r", r_mirrored)],
    "index-sign": [(claims_borders, "sum_over_shifts", lambda x, weight, sign: right_sum(x, weight, 1))],
    "permutation-equivariance": [
        (claims_symmetry, "content_attention", positional_attention),
        (claims_symmetry, "pointwise_layer", lambda positions: torch_layers.pointwise_layer(True)),
    ],
    "permutation-invariance": [(claims_symmetry, "pointwise_layer", constant_layer)],
    "translation-equivariance": [
        (proof_positions, "wrapped_scores", lambda q, n, tau: equations.Setting((1, 1), n).keys @ q),
        (proof_positions, "differences", differences_of_doubled_queries),
    ],
    "convolution-equivariance": [padding(circular="zeros")],
    "convolution-associative": [(claims_symmetry, "composed", correlated)],
    "convolution-commutative": [(claims_symmetry, "composed", symmetrised)],
    "convolution-fourier": [padding(zeros="circular")],
}
right_window, right_sum = claims_heads.window, claims_borders.sum_over_shifts

# And each correction.
CORRECTION_BREAKAGES = {
    "theorem-finite": [(claims_theorem, "leakage_on_lattice", lambda alpha, dims: 0.5 * np.exp(-alpha)), NEGATED],
    "alpha-46": [(encoding, "v", v_softer)],
    "lemma-2-sum": [(claims_sharpness, "leakage_on_lattice", lambda alpha, dims: 0.0)],
    "three-necessary": [
        (equations, "mix", without_the_last_head),
        (encoding, "number", lambda delta, radix: sum(delta)),
    ],
    "relative-necessary": [(encoding, "absolute_key", lambda k: (sum(k), *k))],
    "key-width": [(claims_encoding, "certified", lambda *_: Check("no certificate", False)), HALVED],
    "even-kernel": [FLIPPED],
    "heads-necessary": [(equations, "rank", lambda rows: 9), (equations, "rank", lambda rows: 1)],
    "translation-group": [NEGATED, FLIPPED],
    "channels-limit": [(equations, "rank", lambda rows: 2), FLIPPED],
    "tap-rank": [(encoding, "v", lambda tau, alpha: right_v((0,), alpha))],
    "width-loses-nothing": [FLIPPED, (equations, "mix", without_the_last_head)],
    "same-borders": [padding(replicate="zeros")],
    "shift-sign": [(encoding, "r", r_mirrored)],
    "index-sign": [(claims_borders, "sum_over_shifts", lambda x, weight, sign: right_sum(x, weight, -sign)), FLIPPED],
    "permutation-invariance": [
        (claims_symmetry, "pointwise_layer", lambda positions: torch_layers.pointwise_layer(True))
    ],
    "convolution-commutative": [(claims_symmetry, "composed", lambda a, b: 2 * a[:, :, :1] + b[:, :, :1])],
    "convolution-fourier": [padding(circular="zeros")],
}


def cases(breakages: dict) -> list:
    """One case for each breakage of each claim."""
    return [
        pytest.param(name, *breakage, id=f"{name}-{breakage[1]}-{number}")
        for name, several in breakages.items()
        for number, breakage in enumerate(several)
    ]


def test_every_judged_claim_and_every_correction_is_broken_somehow() -> None:
    judged, refuted_ones = (
        {i for v in verdicts for i in EXPECTED[v].split()} for verdicts in ((PROVED, REFUTED), (REFUTED,))
    )
    assert set(BREAKAGES) == judged
    assert set(CORRECTION_BREAKAGES) == refuted_ones


@pytest.mark.deep
@pytest.mark.parametrize(("name", "where", "what", "instead"), cases(BREAKAGES))
def test_a_verdict_changes_when_the_code_under_it_is_broken(monkeypatch, table, name, where, what, instead) -> None:
    before = next(row for row in table if row.id == name)
    monkeypatch.setattr(where, what, instead)
    if where is not encoding:
        remember_proofs(monkeypatch)
    (after,) = claims(only=[name])
    assert after.verdict == UNDECIDED != before.verdict
    assert "FAILS: " in after.evidence


@pytest.mark.deep
@pytest.mark.parametrize(("name", "where", "what", "instead"), cases(CORRECTION_BREAKAGES))
def test_a_correction_changes_when_the_code_under_it_is_broken(monkeypatch, table, name, where, what, instead) -> None:
    before = next(row for row in table if row.id == name)
    monkeypatch.setattr(where, what, instead)
    if where is not encoding:
        remember_proofs(monkeypatch)
    (after,) = claims(only=[name])
    assert before.correction is not None
    assert after.correction is not None
    assert after.correction.verdict == UNDECIDED != before.correction.verdict
    assert "FAILS: " in after.correction.evidence


# ---- what the evidence may use ----------------------------------------------------------------------------------------------


def test_the_evidence_is_built_without_the_builder() -> None:
    folder = Path(str(claim_table.__file__)).parent
    for path in [*folder.glob("*.py"), Path(str(proof_positions.__file__))]:
        allowed = ["construct.attention"] + ["construct.encoding.quadratic"] * path.name.startswith("proof")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported: set[str] = set()
            if isinstance(node, ast.Import):
                imported = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported = {f"{node.module}.{alias.name}" for alias in node.names}
            ours = {name for name in imported if name.split(".")[0] == "construct"}
            assert all(f"{name}.".startswith(tuple(f"{module}." for module in allowed)) for name in ours), path.name


def test_the_elimination_is_exact() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 4, 6):
        thin, wide = rng.integers(-5, 6, (size, 2)), rng.integers(-5, 6, (2, size))
        assert equations.rank(thin @ wide) == np.linalg.matrix_rank(thin @ wide)
    matrix, right = equations.integers(1, 4, 4), equations.integers(2, 4, 3)
    assert np.equal(matrix @ equations.solve(matrix, right), right).all()
    with pytest.raises(ValueError, match=r"^the matrix of 2 rows has not full rank$"):
        equations.solve(np.array([[1, 2], [2, 4]], dtype=object), np.array([[1], [1]], dtype=object))


def test_the_sharp_limit_shares_ties() -> None:
    scores = np.array([[1, 3, 3], [2, 0, 1]], dtype=object)
    assert equations.sharp(scores).astype(float).tolist() == [[0, 0.5, 0.5], [1, 0, 0]]
    soft = equations.softmax(1000 * scores)
    assert np.abs(soft - equations.sharp(scores).astype(float)).max() == 0
