"""One pair of runs for two claims, and balls that hold once a channel what is the same at all its places."""

import itertools
import json
from argparse import Namespace
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import NETWORKS, randomised
from test_propagation import (
    FAULTS,
    HEADS,
    LAYERS,
    NAMES,
    ONE,
    SMALL,
    Trusting,
    UNetLike,
    activations,
    convert,
    small,
)
from torch import Tensor, nn
from torch.nn import functional as F

import construct
from construct.judging import Certificates
from verify import layers, linear_rules, pair_rule, pushing, rounding, rule_table
from verify.balls import Ball, Call
from verify.budget import FORMATS
from verify.certification import certify, certify_read
from verify.documents import indented
from verify.fields import digest, stated_geometry
from verify.linear_rules import spread
from verify.observed import Seen
from verify.oracle import Convolution
from verify.propagation import both_cases, propagate, worst_case
from verify.pushing import everywhere
from verify.sampling import check_call
from verify.strategies import Case, cases
from verify.taps import scaled_permutation_product

EXAMPLES = settings().max_examples
OPTIONS = Namespace(input_bound=None, tolerance=None)
CHECKERS: Any = Namespace(layers=layers)
SLACK = 1e-3
"""Relative: place by place, float32 layers are summed up in float32, and the sum widened by that."""


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs as small as those of tests are held once a channel too."""
    monkeypatch.setattr(pushing, "LARGE", 0)


def place_by_place(bound: float, shape: Any) -> Ball:
    return everywhere(bound, shape).whole()


def assert_above(even: Any, whole: Any) -> None:
    assert bool((np.asarray(even) >= np.asarray(whole) * (1 - SLACK)).all())


# ---- what is held once a channel -----------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES // 2)
@given(cases(integers=[False]), st.sampled_from([0.0, 1e-6, 1.0]), st.booleans())
def test_a_convolution_of_what_is_the_same_everywhere(case: Case, radius: float, wider: bool):
    """Over every geometry, padding mode and format: no place has a larger bound, and the run stays under it."""
    conv, layer = case.conv, construct.conv_to_mhsa(case.conv)
    if wider:  # heads of which |W_val||W_out| is more than |W|
        with torch.no_grad():
            layer.w_val.mul_(-1)
            layer.w_out.mul_(-1)
    if case.x.dim() != conv.weight.dim() or not case.x.numel():
        return
    a = case.x.clamp(-8, 8)
    noise = torch.randn(a.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).clamp(-1, 1)
    b = (a.double() + radius * noise).to(a.dtype)
    with torch.no_grad():
        here, there = conv(a), layer(b)
    most, error = float(a.abs().max()), float((b.double() - a.double()).abs().max())

    def pushed(fit: Any) -> Ball:
        size = everywhere(max(most, 1e-3), a.shape)
        ball = Ball(size.low, size.high, size.error + error, size.over)
        call = Call(conv, (fit(ball),), {}, here, fmt=FORMATS[NAMES[a.dtype]])
        return pair_rule.paired(call, "", conv, layer, Trusting())

    even, whole = pushed(lambda ball: ball), pushed(Ball.whole)
    assert whole.error.shape == here.shape
    assert_above(even.error.expand(here.shape), whole.error)
    assert_above(even.size.expand(here.shape), whole.size)
    assert bool(((there.double() - here.double()).abs() <= even.error).all())
    assert bool((here.double().abs() <= even.size).all())


@pytest.mark.parametrize(
    ("conv", "size"),
    [
        (nn.Conv2d(4, 6, 3, padding=1, groups=2), (7, 6)),
        (nn.Conv2d(2, 3, (3, 2), stride=2, dilation=(1, 2), padding=2, padding_mode="reflect"), (9, 9)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (6, 5)),
        (nn.ConvTranspose1d(2, 3, 4, stride=3, dilation=2), (9,)),
    ],
)
def test_nothing_is_lost_in_the_interior(conv, size):
    """The greatest bound of a channel is the one that stands for it."""
    layer = construct.conv_to_mhsa(conv)
    x = torch.zeros(1, conv.in_channels, *size)
    with torch.no_grad():
        output = conv(x)
    ball = everywhere(1.0, x.shape)
    ball = Ball(ball.low, ball.high, ball.error + 1e-3, ball.over)
    found = [
        pair_rule.paired(Call(conv, (b,), {}, output, fmt=FORMATS["float32"]), "", conv, layer, Trusting())
        for b in (ball, ball.whole())
    ]
    axes = tuple(range(2, output.dim()))
    np.testing.assert_allclose(found[0].error, found[1].error.amax(axes, keepdim=True), rtol=SLACK)
    np.testing.assert_allclose(found[0].size, found[1].size.amax(axes, keepdim=True), rtol=SLACK)


def test_too_few_taps_would_be_found(monkeypatch):
    """The comparison with every place is no rubber stamp."""
    right = linear_rules._spread_evenly
    monkeypatch.setattr(linear_rules, "_spread_evenly", lambda fields, x: right(fields, x) * 0.99)
    with pytest.raises(AssertionError):
        test_nothing_is_lost_in_the_interior(nn.Conv2d(2, 3, 3, padding=1), (7, 6))
    with pytest.raises(AssertionError):
        test_a_convolution_of_what_is_the_same_everywhere()


def even_calls() -> dict[str, Any]:
    """The cases of one activation, of which the rule takes what is the same all over a channel."""
    return {name: case for name, case in ONE.items() if case[0] in rule_table.EVEN}


@pytest.mark.parametrize("name", even_calls())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_other_rules_of_what_is_the_same_everywhere(name, dtype):
    function, args, kwargs = ONE[name]
    args = tuple(v.to(dtype) if isinstance(v, Tensor) else v for v in args)
    for seed, radius in itertools.product(range(3), (0.0, 0.25)):
        a, b = activations(seed, dtype, 1.0, radius)
        most, error = float(a.double().abs().max()), float((b.double() - a.double()).abs().max())
        ball = everywhere(most, a.shape)
        ball = Ball(ball.low, ball.high, ball.error + error, ball.over)
        here, there = function(a, *args, **kwargs), function(b, *args, **kwargs)
        assert pushing.takes_even(function, ball)
        even, whole = (
            rule_table.RULES[function](Call(function, (x, *args), kwargs, here, fmt=FORMATS[NAMES[dtype]]))
            for x in (ball, ball.whole())
        )
        assert pushing.fits(even, here, True)
        assert pushing.fits(whole, here, False)
        for part in ("high", "error"):
            assert_above(getattr(even, part).expand(here.shape), getattr(whole, part))
        assert_above(-even.low.expand(here.shape), -whole.low)
        assert Seen.of(here, there).within(pushing.spanning(even, tuple(here.shape)))


def test_windows_that_run_along_other_axes_take_every_place():
    ball = everywhere(1.0, (1, 3, 8))
    assert pushing.takes_even(torch.max_pool1d, ball)
    assert not pushing.takes_even(torch.max_pool2d, ball)  # (3, 8) is a picture here, without a batch
    assert not pushing.takes_even(nn.Conv2d(1, 1, 1), ball)
    assert not pushing.takes_even(torch.softmax, ball)
    assert not pushing.takes_even(torch.flatten, ball)
    assert ball.whole().error.shape == (1, 3, 8)
    partly = Ball(*(torch.ones(1, 3, 1, 5),) * 3, over=(1, 3, 4, 5))
    assert not pushing.takes_even(torch.max_pool2d, partly)
    assert pushing.takes_even(torch.relu, partly)


def test_one_place_outside_of_an_even_ball_is_seen():
    a = torch.zeros(1, 2, 3, 4)
    ball = Ball.around_zero(torch.ones(1, 2, 1, 1, dtype=torch.float64), torch.full((1, 2, 1, 1), 0.5).double())
    ball = pushing.spanning(ball, tuple(a.shape))
    assert Seen.of(a, a + 0.5).within(ball)
    for value, apart in ((1.5, 0.0), (-1.5, 0.0), (0.0, 0.75), (0.0, -0.75), (float("nan"), 0.0), (0.0, float("nan"))):
        here = a.clone()
        here[0, 1, 2, 1] = value
        there = here.clone()
        there[0, 1, 2, 1] += apart
        assert not Seen.of(here, there).within(ball)
        off_centre = Ball(ball.low, ball.high, ball.error, ball.over)
        assert not Seen.of(here, there).within(off_centre)


@settings(max_examples=EXAMPLES // 5)
@given(
    layers=st.lists(st.sampled_from(range(len(LAYERS))), min_size=1, max_size=4),
    head=st.sampled_from(range(len(HEADS))),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 10**6),
)
def test_random_networks_held_once_a_channel(layers, head, dtype, seed):
    """Residual sums, transposed, circular, dilated, pooled: nowhere below the bound place by place, nor below a run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(*(m for i in layers for m in LAYERS[i](2)), *HEADS[head](2))
        x = torch.randn(1, 2, 6, 5).clamp(-2, 2)
        model(x)
        randomised(model)
    model, x = model.eval().to(dtype), x.to(dtype)
    net = convert(model)
    along, even = both_cases(model, net, [x], 2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pushing, "everywhere", place_by_place)
        whole = worst_case(model, net, x.shape[1:], 2.0, certificates=along.certificates)
    assert {along.verdict.name, even.verdict.name, whole.verdict.name} == {"PROVED"}
    assert_above(even.per_output, whole.per_output)
    assert_above(even.per_output, along.per_output)
    assert along.observed <= along.bound
    assert [step.name for step in even.steps] == [step.name for step in whole.steps]
    for held, placed in zip(even.steps, whole.steps, strict=True):
        assert held.bound >= placed.bound * (1 - SLACK)


# ---- two claims from one pair of runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_two_claims_of_one_run_are_those_of_two(name):
    model, x = NETWORKS[name].ready()
    net, x = convert(model), x[:1].clamp(-4, 4)
    given_input, everywhere_else = both_cases(model, net, [x, x / 2], 4.0)
    alone = propagate(model, net, [x, x / 2])
    worst = worst_case(model, net, tuple(x.shape[1:]), 4.0)
    for shared, separate in ((given_input, alone), (everywhere_else, worst)):
        assert shared.verdict.name == separate.verdict.name == "PROVED"
        assert shared.per_output.tolist() == separate.per_output.tolist()
        assert [(s.name, s.bound, s.magnitude) for s in shared.steps] == [
            (s.name, s.bound, s.magnitude) for s in separate.steps
        ]
    assert given_input.verdict == alone.verdict
    assert given_input.observed == alone.observed
    assert "for all finite |x| ≤ 4 of size" in everywhere_else.verdict.sentence


def test_a_unet_is_pushed_both_ways():
    torch.manual_seed(0)
    model = randomised(UNetLike(inplace=True)).eval()
    x = torch.rand(1, 2, 8, 7)
    net = convert(model)
    given_input, worst = both_cases(model, net, [x], 1.0)
    assert (given_input.verdict.name, worst.verdict.name) == ("PROVED", "PROVED")
    assert_above(worst.per_output, given_input.per_output)
    assert worst.per_output.tolist() == worst_case(model, net, (2, 8, 7), 1.0).per_output.tolist()


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "another pooling"])
def test_a_fault_is_proved_by_neither(fault):
    model, net, x = small()
    known = both_cases(model, net, [x], 8.0)[1].certificates  # of the layers before the fault
    where, spoil, named = FAULTS[fault]
    spoil(net.get_submodule(where))
    for certificates in (None, known):
        for result in both_cases(model, net, [x], 8.0, certificates=certificates):
            assert result.verdict.name == "UNDECIDED"
            assert named in result.verdict.sentence
            assert result.bound == float("inf")


def test_one_claim_may_end_before_the_other():
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU(), nn.Linear(7, 7), nn.Conv1d(4, 4, 3))
    with torch.no_grad():
        model[2].weight.mul_(1e20)
        model[3].weight.mul_(1e18)
    net, x = convert(model), 1e-3 * torch.randn(1, 4, 9)
    along, worst = both_cases(model, net, [x], 1e3)
    assert along.verdict == propagate(model, net, x).verdict
    assert along.verdict.name == "PROVED"
    assert (worst.verdict.name, worst.bound) == ("UNDECIDED", float("inf"))
    assert worst.verdict.sentence.startswith("3 (Conv1d): ")


@pytest.mark.parametrize("failing", [False, True])
def test_layers_are_certified_when_they_are_met(failing: bool):
    """Once, whatever is claimed, and also where the claim that asks first has ended."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU(), nn.Linear(7, 7), nn.Conv1d(4, 4, 3))
    if failing:
        with torch.no_grad():
            model[2].weight.mul_(1e20)
            model[3].weight.mul_(1e18)
    net, x = convert(model), 1e-3 * torch.randn(1, 4, 9)
    made: dict[str, Any] = {}

    def making(path: str, pair: pair_rule.Pair) -> Any:
        assert path not in made
        made[path] = certify_read(pair.conv, pair.layer, pair.attention, (9,), 1e-2, None)
        return made[path]

    along, worst = both_cases(model, net, [x], 1e3, making=making)
    assert sorted(made) == ["0", "3"]
    assert (along.verdict.name, worst.verdict.name) == ("PROVED", "UNDECIDED" if failing else "PROVED")
    without = both_cases(model, net, [x], 1e3)
    for found, anew in zip((along, worst), without, strict=True):
        assert found.per_output.tolist() == anew.per_output.tolist()
    assert along.certificates["0"].conv_sha256 == made["0"].conv_sha256


def test_a_layer_that_has_changed_is_certified_anew():
    """Its certificate was made when it was met, and of other numbers it is none."""
    conv = nn.Conv1d(2, 2, 3)
    layer = construct.conv_to_mhsa(conv)
    made: list[Any] = []

    def making(path: str, pair: pair_rule.Pair) -> Any:
        made.append(certify(pair.conv, pair.layer, grid=(9,), input_bound=2.0))
        return made[-1]

    certifier = pair_rule.Certifier(making=making)
    for factor in (1.0, 4.0):
        with torch.no_grad():
            conv.weight.data.mul_(factor)
            layer.w_out.data.mul_(factor)
        found = certifier.certificate("", pair_rule.Pair(conv, layer, Convolution.read(conv)), (9,), 2.0 * factor)
        assert found.conv_sha256 == digest(conv, ("weight", "bias"))
    assert len(made) == 1
    assert found.bound.max() > made[0].bound.max()


def test_a_layer_met_with_another_output_size_is_certified_with_its_own():
    """The certificate that is written beside the layer speaks of the layer, not of one call."""
    conv = nn.ConvTranspose1d(2, 2, 3, stride=2)
    layer = construct.conv_to_mhsa(conv)
    made = Certificates(
        {"": (conv, layer)}, {"": check_call(conv, layer, torch.randn(1, 2, 5), "x")}, OPTIONS, CHECKERS
    )
    for extra in ((1,), (0,)):
        pair = pair_rule.Pair(*pair_rule._bare(conv, layer, extra), Convolution.read(conv))
        assert (made.met("", pair) is None) == (extra == (1,))
    certificate, verdict = made.of("")
    assert verdict.name == "PROVED"
    assert certificate.conv_geometry == stated_geometry(conv)


def test_a_run_over_either_bound_is_refuted(monkeypatch):
    model, net, x = small()
    right = rule_table.RULES[F.batch_norm]

    def spoilt(call: Call) -> Ball:
        ball = right(call)
        return Ball(ball.low, ball.high, ball.error * 0 - 1, ball.over)  # both may round alike

    monkeypatch.setattr(pushing, "RULES", {**rule_table.RULES, F.batch_norm: spoilt})
    for result in both_cases(model, net, [x], 8.0):
        assert result.verdict.name == "REFUTED"
        assert result.verdict.sentence.startswith("1 (batch_norm)")


def test_what_is_no_claim_is_refused():
    model, net, x = small()
    with pytest.raises(ValueError, match="no batches of one"):
        both_cases(model, net, [x], float(x.abs().max()) / 2)
    with pytest.raises(ValueError, match="no batches of one"):
        both_cases(model, net, [torch.cat([x, x])], 8.0)
    with pytest.raises(ValueError, match="not a positive finite number"):
        both_cases(model, net, [x * 0], 0.0)
    with pytest.raises(ValueError, match="not finite"):
        both_cases(model, net, [x / 0], 8.0)


def exact(values: np.ndarray) -> np.ndarray:
    """|values|, as fractions."""
    return np.array([Fraction(abs(float(v))) for v in values.flat], dtype=object).reshape(values.shape)


# ---- sums in float32 -------------------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES // 2)
@given(cases(integers=[False]), st.integers(-140, 100), st.integers(-140, 120), st.integers(0, 10**6))
def test_sums_in_float32_are_not_below_the_exact_ones(case: Case, small_weights: int, small_inputs: int, seed: int):
    """Subnormal numbers, underflow and overflow among them."""
    conv, x = case.conv.float(), case.x.float()
    if x.dim() != conv.weight.dim() or not x.numel():
        return
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        conv.weight.mul_(torch.randn(conv.weight.shape, generator=rng) * 2.0**small_weights)
    x = x * torch.randn(x.shape, generator=rng) * 2.0**small_inputs
    if not (bool(x.isfinite().all()) and bool(conv.weight.isfinite().all())):
        return
    fields = rounding._fields(conv, x, None)
    found = rounding.single_sum(fields, x.abs().numpy())

    truth = replace(fields, weight=exact(fields.weight), bias=None)(exact(x.numpy()))
    if found is None:
        assert max(truth.flat) > 2.0**126
        return
    assert found.shape == truth.shape
    for above, below in zip(found.flat, truth.flat, strict=True):
        assert below <= Fraction(float(above)) <= below * Fraction(1001, 1000) + Fraction(2) ** -130


@settings(max_examples=EXAMPLES // 2)
@given(
    cases(integers=[False]),
    st.sampled_from([(0, 0), (0, -24), (-140, 0), (100, -155), (100, -200), (60, -170), (100, 100), (-60, -90)]),
    st.integers(0, 10**6),
)
def test_bounds_of_float32_layers_are_not_below_the_exact_ones(case: Case, powers: tuple[int, int], seed: int):
    """Bounds are float64, below what float32 has a number for among them; batched or not, transposed or not."""
    weights, bounds = powers
    conv, rng = case.conv.float(), torch.Generator().manual_seed(seed)
    if not case.x.numel():
        return
    with torch.no_grad():
        conv.weight.mul_(torch.randn(conv.weight.shape, generator=rng) * 2.0**weights)
    x = torch.randn(case.x.shape, generator=rng, dtype=torch.float64).abs() * 2.0**bounds
    x[..., ::2] *= 2.0**-30
    fields = Convolution.read(conv)
    found, twice = spread(fields, (x, 2 * x))
    batched = x if x.dim() == conv.weight.dim() else x[None]
    truth = replace(fields, weight=np.abs(exact(fields.weight)), bias=None)(exact(batched.numpy()))
    assert found.numel() == truth.size
    lost = Fraction(2) ** -130 * (1 + Fraction(float(fields.sizes.max(initial=0.0))))
    for once, double, below in zip(found.flatten(), twice.flatten(), truth.flat, strict=True):
        for above, wanted in ((Fraction(float(once)), below), (Fraction(float(double)), 2 * below)):
            assert wanted <= above * (1 + Fraction(1, 2**40))  # what is widened later
            assert above <= wanted * Fraction(1001, 1000) + lost


# ---- parts -----------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_products_with_an_identity_are_the_other_factor(groups, rows, columns, seed):
    rng = np.random.default_rng(seed)
    a = rng.choice([-1.5, 0.0, 1.0, 2.0], (groups, rows, columns))
    for first, second in ((a, np.stack([np.eye(columns)] * groups)), (np.stack([np.eye(rows)] * groups), a)):
        second = second.copy()
        np.testing.assert_array_equal(scaled_permutation_product(first, second), a)
        place = tuple(rng.integers(0, n) for n in second.shape)
        second[place] = 0.5 if second[place] != 0.5 else 1.0  # no identity any more
        found = scaled_permutation_product(first, second)
        assert found is None or np.array_equal(found, np.matmul(first, second))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.lists(st.text()) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_documents_are_written_as_json_writes_them(value):
    assert indented(value) == json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)


def test_documents_hold_no_infinity():
    with pytest.raises(ValueError, match="JSON"):
        indented({"a": [float("inf")]})


def test_small_inputs_are_held_place_by_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert not everywhere(2.0, (1, 3, 8, 8)).even
    assert everywhere(2.0, (1, 3, 224, 224)).even
    assert everywhere(2.0, (1, 3, 8, 8)).shape == (1, 3, 8, 8)
