"""Certificates: PROVED for built layers and their symmetries, refusals, and the record."""

import copy
import json
import math
from collections import Counter
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from construct import MHSA, conv_to_mhsa
from construct.encoding.sharpness import alpha_for
from runs import is_quick
from traits import traits
from truths import permuted
from verify.argument.certification import certify
from verify.layers.fields import TENSORS, digest
from verify.layers.fields import digests as tensor_digests
from verify.layers.reading import GridRefused, output_size
from verify.oracle import Geometry
from verify.strategies import DTYPES, PADDING_MODES, Case, convolutions, least_size, sizes_for
from verify.verdict import from_above

EXAMPLES = settings().max_examples
TOKENS = 60


def proved(conv: Any, layer: MHSA, grid: Any, bound: float = 1.0) -> Any:
    """The certificate, after asserting that it is PROVED and complete."""
    certificate = certify(conv, layer, grid=grid, input_bound=bound)
    assert certificate.verdict.name == "PROVED", certificate
    assert [step.number for step in certificate.steps if step.holds] == [0, 1, 2, 3, 4, 5, 6]
    assert np.isfinite(certificate.bound).all()
    assert (certificate.bound > 0).all()
    assert not certificate.leakage.any()
    assert not certificate.taps.any()
    assert (certificate.observed <= certificate.bound).all()
    assert certificate.counterexample is None
    return certificate


def altered(layer: MHSA, **tensors: torch.Tensor) -> MHSA:
    """A copy of the layer with other numbers."""
    other = copy.deepcopy(layer)
    for name, tensor in tensors.items():
        setattr(other, name, nn.Parameter(tensor.detach().clone(), requires_grad=False))
    return other


@pytest.mark.hypothesis
def test_whatever_the_builder_makes_is_proved_and_every_option_occurs():
    occurred: Counter[str] = Counter()

    def is_proved(conv: Any, data: st.DataObject):
        grid = data.draw(sizes_for(conv, tokens=TOKENS))
        assume(is_quick(conv, grid))
        proved(conv, conv_to_mhsa(conv), grid, data.draw(st.sampled_from([1.0, 0.1, 16.0, 2.0**-10])))
        case = Case(conv, torch.empty(1, conv.in_channels, *grid, dtype=conv.weight.dtype), False, "")
        occurred.update({name: int(present) for name, present in traits(case).items()})

    for d, mode in product((1, 2, 3), (*PADDING_MODES, "transposed")):
        options: dict[str, Any] = {"transposed": [True]} if mode == "transposed" else {"padding_modes": [mode]}
        options = {"dims": [d], "transposed": [False], **options}
        settings(max_examples=EXAMPLES // 4)(given(convolutions(**options), st.data())(is_proved))()
    others = ("input ", "unbatched", "empty batch", "batch of several", "heads > 9, channels", "sides > 8")
    assert [name for name, times in occurred.items() if not times and not name.startswith(others)] == []


@settings(max_examples=EXAMPLES // 8)
@given(convolutions(), st.data())
def test_symmetries_stay_proved(conv: Any, data: st.DataObject):
    """Other parametrisations of the same function are recognised."""
    grid = data.draw(sizes_for(conv, tokens=TOKENS))
    assume(is_quick(conv, grid))
    plain = conv_to_mhsa(conv)
    order = data.draw(st.permutations(range(plain.heads)))
    least = plain.w_val.shape[3]
    proved(conv, conv_to_mhsa(conv, order=order), grid)
    proved(conv, permuted(plain, list(order)), grid)
    proved(conv, conv_to_mhsa(conv, alpha=data.draw(st.sampled_from([1025.5, 2048.0, 1e5]))), grid)
    proved(conv, altered(plain, v=plain.v * torch.tensor([[1 + h % 3] for h in range(plain.heads)])), grid)
    proved(conv, conv_to_mhsa(conv, head_dim=least + data.draw(st.integers(1, 3))), grid)
    proved(conv, conv_to_mhsa(conv, head_dim="rank"), grid)
    proved(conv, conv_to_mhsa(conv, encoding="parabola"), grid)
    # Scale by powers of two, per head and component, without under- or overflow.
    powers = torch.tensor(data.draw(st.lists(st.integers(-3, 3), min_size=least, max_size=least)))
    factors = (2.0**powers).to(plain.w_val.dtype)
    scaled = altered(plain, w_val=plain.w_val * factors, w_out=plain.w_out / factors[:, None])
    assert torch.equal(scaled.w_val / factors, plain.w_val)
    proved(conv, scaled, grid)
    # Split a head in two, and add two cancelling heads.
    first = [*range(plain.heads), 0, 0]
    share = torch.ones(len(first), 1, 1, 1, dtype=plain.w_val.dtype)
    share[0], share[-2], share[-1] = 0.5, 0.25, 0.25
    proved(conv, altered(permuted(plain, first), w_val=plain.w_val[first] * share), grid)
    share[0], share[-2], share[-1] = 1, 1, -1
    proved(conv, altered(permuted(plain, first), w_val=plain.w_val[first] * share), grid)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_derived_sharpness_is_proved_and_a_little_less_is_undecided(dtype: torch.dtype):
    """For α from ``alpha_for``: half precision computes in single, and score rounding reduces every gap."""
    conv = nn.Conv2d(2, 2, 3, padding=1, dtype=dtype)
    alpha = alpha_for(torch.promote_types(dtype, torch.float32))
    proved(conv, conv_to_mhsa(conv, alpha=alpha * (1 + 1e-6)), (5, 6))
    certificate = certify(conv, conv_to_mhsa(conv, alpha=alpha * 0.9999), grid=(5, 6))
    assert certificate.verdict.name == "UNDECIDED"
    assert "leak" in certificate.verdict.sentence


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_may_reach_half_of_the_largest_number(dtype: torch.dtype):
    """The other half is room for the rounding of intermediates."""
    conv = nn.Conv1d(2, 1, 1, dtype=dtype, bias=False)
    conv.weight.data.fill_(1)
    most = torch.finfo(dtype).max / 4  # of each of two channels
    assert certify(conv, conv_to_mhsa(conv), grid=(3,), input_bound=most * (1 - 2.0**-10)).verdict.name == "PROVED"
    with pytest.raises(ValueError, match="beyond the largest"):
        certify(conv, conv_to_mhsa(conv), grid=(3,), input_bound=most)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_where_the_gap_is_just_enough_the_rounding_of_the_scores_counts(dtype: torch.dtype):
    """On a long image the large scores round by more than the remaining gap; on a short one they do not."""
    conv = nn.Conv1d(1, 1, 3, padding=1, dtype=dtype)
    layer = conv_to_mhsa(conv, alpha=alpha_for(torch.promote_types(dtype, torch.float32)) * (1 + 1e-6))
    proved(conv, layer, (9,))
    certificate = certify(conv, layer, grid=(2**16,))
    assert certificate.verdict.name == "UNDECIDED"
    assert "leak" in certificate.verdict.sentence
    proved(conv, conv_to_mhsa(conv), (2**16,))


@settings(max_examples=6 * EXAMPLES)
@given(convolutions(dtypes=[torch.float32]), st.data())
def test_a_grid_is_refused_exactly_where_torch_raises_or_returns_nothing(conv: Any, data: st.DataObject):
    most = [n + 1 for n in least_size(conv)]
    grid = tuple(data.draw(st.integers(0, min(n, 6))) for n in most)
    try:
        expected = tuple(conv(torch.zeros(1, conv.in_channels, *grid)).shape[2:])
    except RuntimeError:
        expected = ()
    if expected and min(expected) > 0:
        assert output_size(Geometry.read(conv), grid) == expected
        return
    with pytest.raises(GridRefused):
        certify(conv, conv_to_mhsa(conv), grid=grid)


def test_an_execution_that_would_take_minutes_is_not_run_and_noted():
    conv = nn.Conv1d(2, 2, 3, padding=10**5)
    certificate = certify(conv, conv_to_mhsa(conv), grid=(8,))
    assert certificate.verdict.name == "PROVED"
    notes = {probe["execution"]: probe["note"] for probe in certificate.probes}
    assert notes["axial"] == notes["auto"] == ""
    assert "multiplications are too many to run" in notes["dense"]
    assert not any("dense checked" in line for line in certificate.assumptions)


def test_a_layer_that_looks_far_in_three_dimensions_is_run_by_what_forms_no_pairs():
    conv = nn.Conv3d(64, 64, 3, padding=4, dilation=4, bias=False)  # 1000 outputs of 5832 tokens on the smallest grid
    certificate = certify(conv, conv_to_mhsa(conv), grid=(10, 10, 10))
    assert certificate.verdict.name == "PROVED"
    ran = {probe["execution"] for probe in certificate.probes if not probe["note"] and probe["grid"][2] > 1}
    assert ran == {"axial", "auto"}


def _poisoned(module: Any, name: str, value: float) -> Any:
    other = copy.deepcopy(module)
    getattr(other, name).data.view(-1)[-1] = value
    return other


CONV = nn.Conv2d(2, 4, 3, padding=1)
LAYER = conv_to_mhsa(CONV)


@pytest.mark.parametrize(
    ("conv", "layer", "call", "complaint"),
    [
        (CONV, conv_to_mhsa(nn.Conv2d(3, 4, 3)), {}, "the convolution has 2 in channels, the attention layer 3"),
        (CONV, conv_to_mhsa(nn.Conv2d(2, 5, 3)), {}, "4 out channels, the attention layer 5"),
        (CONV, conv_to_mhsa(nn.Conv1d(2, 4, 3)), {}, "2 dims, the attention layer 1"),
        (CONV, copy.deepcopy(LAYER).double(), {}, "float32, the attention layer torch.float64"),
        (CONV, copy.deepcopy(LAYER).half(), {}, "float32, the attention layer torch.float16"),
        (_poisoned(CONV, "weight", math.nan), LAYER, {}, "weight of the convolution has numbers that are not finite"),
        (_poisoned(CONV, "bias", math.inf), LAYER, {}, "bias of the convolution has numbers that are not finite"),
        *[(CONV, _poisoned(LAYER, name, math.nan), {}, f"{name} of the attention layer has") for name in TENSORS],
        (CONV, LAYER, {"input_bound": 1e38}, "beyond the largest float32"),
        (copy.deepcopy(CONV).half(), copy.deepcopy(LAYER).half(), {"input_bound": 1e5}, "beyond the largest float16"),
        (CONV, LAYER, {"input_bound": 1.7e308}, "beyond the largest float32"),
        (CONV, LAYER, {"input_bound": 10**400}, r"the input bound is 10{39}…, not a positive finite number"),
        (CONV, LAYER, {"input_bound": math.nan}, "the input bound is nan"),
        (CONV, LAYER, {"input_bound": 0}, "the input bound is 0"),
        (CONV, LAYER, {"within": -1.0}, "within is -1.0"),
        (CONV, LAYER, {"within": math.inf}, "within is inf"),
        (CONV, LAYER, {"grid": (5,)}, "is not 2 positive sizes"),
        (CONV, LAYER, {"grid": (5, 0)}, "is not 2 positive sizes"),
        (CONV, LAYER, {"grid": (5, 10**9)}, "axis 1 of the grid .* tokens, too many to go through"),
        (LAYER, LAYER, {}, "MHSA is none of torch's convolutions"),
        (CONV, CONV, {}, "no tensor w_qry"),
        (nn.Linear(2, 4), LAYER, {}, "Linear is none of torch's convolutions"),
        (nn.LazyConv2d(4, 3), LAYER, {}, "LazyConv2d has hooks"),
        (copy.deepcopy(CONV).to("meta"), LAYER, {}, "not a dense tensor"),
    ],
)
def test_wrong_input_is_refused_in_one_clear_line(conv: Any, layer: Any, call: dict, complaint: str):
    with pytest.raises(ValueError, match=complaint) as caught:
        certify(conv, layer, **{"grid": (5, 5), **call})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        *[({"grid": grid}, "must be a series of whole numbers") for grid in ((5.5, 5), 5, "55", (True, 5), (5, None))],
        *[({"input_bound": bound}, "the input bound is") for bound in ("1", True, None, b"1")],
        ({"within": "1"}, "within is '1'"),
        ({"within": True}, "within is True"),
    ],
)
def test_what_is_no_number_is_a_type_error_in_one_line(call: dict, complaint: str):
    with pytest.raises(TypeError, match=complaint) as caught:
        certify(CONV, LAYER, **{"grid": (5, 5), **call})
    assert "\n" not in str(caught.value)


def test_the_record_is_json_is_stable_and_reads_back_exactly():
    first, second = (certify(CONV, LAYER, grid=(4, 5), input_bound=0.1) for _ in range(2))
    assert first.to_json() == second.to_json()
    record = json.loads(first.to_json(), parse_constant=pytest.fail)
    assert record["verdict"] == "PROVED"
    assert [float.fromhex(x) for x in record["bound"]] == first.bound.tolist()
    assert float.fromhex(record["input_bound"]) == 0.1
    assert record["grid"] == [4, 5]
    assert {step["number"] for step in record["steps"]} == set(range(7))
    assert set(record) >= {f.name for f in fields(first)} - {"verdict", "positional"}
    refuted = certify(CONV, altered(LAYER, b_out=LAYER.b_out * 2), grid=(4, 5))
    counterexample = json.loads(refuted.to_json(), parse_constant=pytest.fail)["counterexample"]
    assert counterexample["convolution"] != counterexample["attention"]
    assert counterexample["output"] == [0, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_a_certificate_rests_on_is_named_in_a_line_and_told_in_full(dtype: torch.dtype):
    conv = nn.Conv2d(2, 3, 3, padding=1, dtype=dtype)
    certificate = certify(conv, conv_to_mhsa(conv), grid=(4, 5), input_bound=0.1)
    names = [assumption.split(":")[0] for assumption in certificate.assumptions]
    expected = [
        "finite inputs",
        "float64 scores",
        "IEEE sums",
        "torch's definition",
        "Eq. 3",
        f"torch {torch.__version__} on cpu",
    ]
    half = ["float32 accumulation"] * (dtype in (torch.float16, torch.bfloat16))
    assert names == expected + half
    assert all(f"assuming {assumption}" in str(certificate) for assumption in certificate.assumptions)
    assert json.loads(certificate.to_json())["assumptions"] == [*certificate.assumptions]
    assert "|x| ≤ 0.1, of spatial size (4, 5) or smaller" in certificate.assumptions[0]
    assert all(said in certificate.assumptions[2] for said in ("TF32", "nothing is flushed to zero"))
    counts = Counter[str]()
    for probe in certificate.probes:
        counts[probe["execution"]] += probe["inputs"]
    assert all(f"{name} checked on {count} inputs" in certificate.assumptions[4] for name, count in counts.items())
    assert ("below 2^−126" in str(certificate)) == (dtype == torch.bfloat16)


def test_what_was_observed_is_said_of_every_verdict():
    """Where no bound is finite, tightness is unknown, but a difference was seen; where nothing was run, nothing was."""
    layer = altered(LAYER, v=torch.zeros_like(LAYER.v))  # no head has a best shift, so that there is no bound
    certificate = certify(CONV, layer, grid=(4, 5))
    assert certificate.verdict.name == "UNDECIDED"
    assert certificate.observed.max() > 0.1
    (line,) = [line for line in str(certificate).splitlines() if line.startswith("observed: ")]
    assert line.startswith(f"observed: {from_above(certificate.observed.max())} at most, on adversarial inputs; ")
    assert "no bound to hold it against" in line
    assert "observed: nothing, as no execution was run" in str(replace(certificate, probes=()))
    nowhere = replace(certify(CONV, LAYER, grid=(4, 5)), observed=np.zeros(3))
    assert "observed: no difference, so that" in str(nowhere)


def test_digests_change_with_every_bit_and_every_attribute():
    """In either layer: any number's lowest bit, the sign of a zero, the shape, the type and each geometry attribute."""
    layers, convs = [LAYER], [_poisoned(CONV, name, 1e-30) for name in ("weight", "bias")]
    for name in TENSORS:
        tensor = getattr(LAYER, name).detach()
        for place in (0, -1):
            flipped = tensor.clone()
            flipped.view(-1)[place] = torch.nextafter(flipped.view(-1)[place], torch.tensor(9e9))
            layers.append(altered(LAYER, **{name: flipped}))
        layers += [altered(LAYER, **{name: other}) for other in (tensor.double(), tensor[..., :-1])]
    layers.append(_poisoned(LAYER, "u", -0.0))
    fields: dict[str, Any] = {"kernel_size": (9, 1), "stride": (1, 2), "padding": "same", "padding_mode": "reflect"}
    fields |= {"dilation": (2, 1), "in_channels": 4, "out_channels": 6, "groups": 2}
    changes = [{name: value} for name, value in fields.items()]
    transposed = {"transposed": True}, {"transposed": True, "stride": (2, 2), "output_padding": (0, 1)}
    for change in (*changes, *transposed):
        layers.append(copy.deepcopy(LAYER))
        layers[-1].geometry = replace(LAYER.geometry, **change)
    for change in changes:
        convs.append(copy.deepcopy(CONV))
        vars(convs[-1]).update(change)
    for more in (0, 2):
        layers.append(conv_to_mhsa(CONV, encoding="parabola"))
        layers[-1].radix = (layers[-1].radix[0] + more, 1)  # type: ignore[index]
    digests = [digest(layer, TENSORS) for layer in layers] + [digest(conv, ("weight", "bias")) for conv in convs]
    assert len(set(digests)) == len(digests) > 50
    certificate = certify(CONV, LAYER, grid=(4, 4))
    assert certificate.mhsa_sha256 == tensor_digests(LAYER, TENSORS)
    assert certificate.conv_sha256 == tensor_digests(CONV, ("weight", "bias"))
