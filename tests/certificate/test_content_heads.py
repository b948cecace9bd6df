"""Heads that attend by content: a layer is PROVED while they carry nothing, and once they do, only the others are."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import verify
from construct import conv_to_mhsa
from construct.attention import EXECUTIONS, smaller_blocks
from rechecked import Files
from runs import is_quick
from truths import exact, permuted, with_content_heads
from verified import pair_of
from verify import certify
from verify.argument.steps import Problem, content_step
from verify.checker import StepFails, parts_of
from verify.samples.sampling import check_call
from verify.strategies import cases

SILENT = {"w_out": 0.0, "w_out is -0": -0.0, "w_val": 0.0}


def small(dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Conv2d(4, 6, 3, padding=1, **options).to(dtype).requires_grad_(False)


@settings(max_examples=settings().max_examples // 2)
@given(cases(integers=[True], layouts=["contiguous"], batches=[1, 2], tokens=60), st.sampled_from([*SILENT]), st.data())
def test_heads_that_carry_nothing_may_attend_by_content(case: Any, silent: str, data: st.DataObject):
    """Any geometry, type and order of heads; both judges say PROVED, and every execution is the convolution, bit for bit."""
    conv, grid = case.conv, tuple(case.x.shape[2:])
    assume(is_quick(conv, grid))
    changed: dict[str, Any] = {silent.split()[0]: SILENT[silent]}
    if silent == "w_val":
        changed["w_out"] = 2.0
    changed |= data.draw(st.sampled_from([{}, {"v": 0}, {"u": 0}, {"w_key_pos": 0}, {"w_qry": 0}, {"w_key": 0}]))
    layer = with_content_heads(conv_to_mhsa(conv), 3, data.draw(st.integers(0, 99)), **changed)
    layer = permuted(layer, data.draw(st.permutations(range(layer.heads)))).requires_grad_(False)
    certificate = certify(conv, layer, grid=grid, input_bound=4.0)
    assume(case.x.dtype != torch.float16 or "may overflow" not in certificate.verdict.sentence)
    assert certificate.verdict.name == "PROVED", certificate
    assert parts_of(pair_of(conv, layer, grid))[1]
    with smaller_blocks(3):
        for layer.execution in EXECUTIONS:
            assert torch.equal(layer(case.x).double(), exact(conv, case.x)), layer.execution
    assert check_call(conv, layer, case.x, "x").verdict.name == "CHECKED"


def unproved(conv: Any, layer: Any, **claim: Any) -> Any:
    """The certificate, after asserting that neither judge lets the layer pass."""
    with pytest.raises(StepFails):
        parts_of(pair_of(conv, layer, (6, 6)))
    certificate = certify(conv, layer, grid=(6, 6), **claim)
    assert certificate.verdict.name == "UNDECIDED", certificate
    return certificate


ONE_ULP = torch.zeros(2, 1, 4, 6).index_fill_(3, torch.tensor(5), 2.0**-149)
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "w_out one ulp from zero": ({"w_out": ONE_ULP}, "attention by content in heads 9 to 10: "),
    "scores overflow": (
        {"w_qry": 1e20, "w_key": 1e20},
        "beside attention by content in heads 9 to 10, heads 9 to 10 may overflow, and 0·∞ is not 0",
    ),
    "positions overflow": ({"w_qry": 1e20, "w_key_pos": 1e20}, "may overflow"),
    "u overflows": ({"w_qry": 1e-30, "w_key": 1e20, "u": 1e20}, "may overflow"),
    "v overflows": ({"v": 1e20, "w_key_pos": 1e20}, "may overflow"),
    "values overflow once added up": ({"w_val": 1e36}, "may overflow"),
    "queries overflow": ({"w_qry": 3e38, "w_key": 0}, ""),
    "queries and u overflow": ({"u": 3e38, "w_key": 0}, ""),
    "values overflow": ({"w_val": 3e38}, ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_head_that_is_not_silent_or_not_finite_is_seen(name: str):
    conv, (changed, said) = small(), FAULTS[name]
    layer = with_content_heads(conv_to_mhsa(conv), **changed)
    if not said:
        with pytest.raises(ValueError, match="beyond the largest float32"):
            unproved(conv, layer)
        return
    sentence = unproved(conv, layer).verdict.sentence
    assert said in sentence
    assert "; heads 0 to 8 alone, with b_out: PROVED: the same function" in sentence


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 2e4), (torch.float32, 1e38)], ids=str)
@pytest.mark.parametrize("part", ["w_qry", "w_key", "u", "v"])
def test_the_checker_proves_all_that_the_certifier_proves(part: str, dtype: torch.dtype, most: float):
    """At the largest scores that the certifier lets pass, by bisection."""
    conv = small(dtype, stride=2)
    plain = with_content_heads(conv_to_mhsa(conv))
    least = 1.0

    def problem(scale: float) -> Problem:
        layer = copy.deepcopy(plain)
        getattr(layer, part).data[9:] *= scale
        return Problem.read(conv, layer, (9, 7), 1.0)

    assert not content_step(problem(most)).holds
    while most > 1.01 * least:
        middle = math.sqrt(least * most)
        if content_step(problem(middle)).holds:
            least = middle
        else:
            most = middle
    assert least > 1
    assert parts_of(pair_of(conv, problem(least).layer, (9, 7)))[1]


@pytest.mark.parametrize(("part", "value"), [("w_val", 1e36), ("v", -3e36)])
def test_what_only_positions_place_must_not_overflow_beside_content(part: str, value: float):
    """Without content the softmax divides first, in float64; with it, torch adds up values that exceed float32."""
    conv = small()
    plain = with_content_heads(conv_to_mhsa(conv), 1, w_qry=0, u=0, v=0, w_key_pos=1)
    getattr(plain, part).data[-1] = value
    assert certify(conv, plain, grid=(6, 6)).verdict.name == "PROVED"
    assert "head 9 may overflow" in unproved(conv, with_content_heads(plain)).verdict.sentence


def test_content_among_the_taps_is_seen_and_the_rest_is_refuted():
    """Without head 3 a tap is missing: the others alone are another function."""
    conv = small()
    layer = with_content_heads(conv_to_mhsa(conv))
    layer.w_qry.data[3, 0, 0] = 1e-3
    sentence = unproved(conv, layer).verdict.sentence
    assert "attention by content in head 3: " in sentence
    assert "; heads 0, 1, 2, 4, 5, 6, 7, 8 alone, with b_out: REFUTED: " in sentence


def test_there_is_no_bound_for_soft_heads_beside_content():
    """Their scores may be rounded to the layer's own type, which the bound does not cover."""
    conv = small()
    soft = conv_to_mhsa(conv, alpha=8.0)
    assert certify(conv, soft, grid=(6, 6), within=5.0).verdict.name == "PROVED"
    certificate = unproved(conv, with_content_heads(soft), within=5.0)
    assert (
        "no bound for heads that leak beside attention by content in heads 9 to 10 (take α from 104 on)"
        in certificate.verdict.sentence
    )


def test_once_they_carry_the_convolution_is_still_told_apart(tmp_path: Any):
    conv = small()
    layer = with_content_heads(conv_to_mhsa(conv), w_out=0.1)
    certificate = unproved(conv, layer)
    assert certificate.positional.verdict.name == "PROVED"
    assert certificate.positional.heads == 9
    assert str(certificate.positional.verdict) in certificate.steps[1].sentence
    result = Files(tmp_path).write([("", certificate)], conv, layer).check()
    assert result.verdict.name == "UNDECIDED"
    assert "head 9 attends by content; the heads of position alone, with b_out, are the same function" in str(result)
    assert certify(conv, with_content_heads(permuted(conv_to_mhsa(conv), [0]), w_out=0.1), grid=(6, 6)).positional
    everywhere = copy.deepcopy(layer)
    everywhere.w_qry.data[:] = 1.0
    assert unproved(conv, everywhere).positional is None


@pytest.mark.parametrize("w_out", [0.0, 0.1])
def test_the_page_tells_which_heads_depend_on_the_image(w_out: float, tmp_path: Any):
    conv = small()
    layer = with_content_heads(conv_to_mhsa(conv), w_out=w_out)
    verify.write_report(tmp_path / "page.html", conv, layer, torch.ones(1, 4, 8, 8))
    page = (tmp_path / "page.html").read_text()
    assert "attention of heads 9 to 10 depends on the image" in page
    assert ("heads 0 to 8 alone, with b_out: PROVED" in page) == bool(w_out)
