"""End-to-end bounds: each rule alone against random errors, whole networks, planted faults, and what is refused by name."""

import copy
from collections import OrderedDict, UserDict
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import NETWORKS, Residual, conv_norm, randomised
from torch import Tensor, nn
from torch.nn import functional as F
from truths import permuted

import construct
import construct.demo
from verify import elementwise_rules, linear_rules, pair_rule, pushing, rule_table
from verify.balls import Ball, Call, NoBound
from verify.budget import FORMATS
from verify.certification import certify
from verify.fields import Attention
from verify.oracle import Convolution
from verify.propagation import propagate, worst_case
from verify.rounding import carried_kernel
from verify.strategies import Case, cases, convolutions, sizes_for
from verify.wording import from_above

EXAMPLES = settings().max_examples
SMALL = [name for name in NETWORKS if name != "resnet18"]
NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}

# ---- each rule alone -----------------------------------------------------------------------------------------------------

G = torch.Generator().manual_seed(0)
WEIGHT, BIAS = torch.randn(5, 6, generator=G), torch.randn(5, generator=G)
KERNEL, BACK = torch.randn(4, 3, 3, 3, generator=G), torch.randn(3, 2, 2, 3, generator=G)
MEAN, VARIANCE = torch.randn(3, generator=G), torch.rand(3, generator=G) + 0.1
SCALE, SHIFT = torch.randn(3, generator=G), torch.randn(3, generator=G)
CONSTANT = torch.randn(2, 3, 4, 6, generator=G)


def norm(x: Tensor) -> Tensor:
    mean, variance, scale, shift = (t.to(x.dtype) for t in (MEAN, VARIANCE, SCALE, SHIFT))
    return F.batch_norm(x, mean, variance, scale, shift, eps=1e-3)


# name → (function of torch, further arguments); the activation is (2, 3, 4, 6).  Constant tensors are cast to its type.
ONE: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "relu": (F.relu, (), {}),
    "relu6": (F.relu6, (), {}),
    "hardtanh": (F.hardtanh, (-0.25, 0.75), {}),
    "clamp": (torch.clamp, (), {"min": -0.125}),
    "leaky_relu": (F.leaky_relu, (0.1,), {}),
    "steep leaky_relu": (F.leaky_relu, (-1.7,), {}),
    "elu": (F.elu, (1.3,), {}),
    "sigmoid": (torch.sigmoid, (), {}),
    "tanh": (torch.tanh, (), {}),
    "silu": (F.silu, (), {}),
    "gelu": (F.gelu, (), {}),
    "gelu of tanh": (F.gelu, (), {"approximate": "tanh"}),
    "mish": (F.mish, (), {}),
    "selu": (F.selu, (), {}),
    "hardswish": (F.hardswish, (), {}),
    "hardsigmoid": (F.hardsigmoid, (), {}),
    "softmax": (torch.softmax, (1,), {}),
    "log_softmax": (F.log_softmax, (), {"dim": -1}),
    "neg": (torch.neg, (), {}),
    "abs": (torch.abs, (), {}),
    "add a number": (Tensor.add, (0.1,), {}),
    "take from a number": (torch.rsub, (0.3,), {}),
    "take a multiple from a constant": (torch.rsub, (CONSTANT,), {"alpha": 10.0}),
    "add a constant": (torch.add, (CONSTANT,), {"alpha": -0.7}),
    "times a number": (Tensor.mul, (0.3,), {}),
    "times a constant": (torch.mul, (CONSTANT,), {}),
    "over a number": (Tensor.div, (0.3,), {}),
    "over a constant": (torch.true_divide, (CONSTANT,), {}),
    "max_pool2d": (F.max_pool2d, (3,), {"stride": 2, "padding": 1, "ceil_mode": True}),
    "adaptive_max_pool2d": (F.adaptive_max_pool2d, ((3, 4),), {}),
    "amax": (torch.amax, ((2, 3),), {}),
    "amin": (Tensor.amin, (1,), {}),
    "avg_pool2d": (F.avg_pool2d, ((2, 3),), {"stride": 1, "padding": 1}),
    "avg_pool2d, borders apart": (F.avg_pool2d, (2,), {"padding": 1, "count_include_pad": False, "ceil_mode": True}),
    "adaptive_avg_pool2d": (F.adaptive_avg_pool2d, ((3, 4),), {}),
    "mean": (torch.mean, ((2, 3),), {"keepdim": True}),
    "mean of all": (Tensor.mean, (), {}),
    "sum": (Tensor.sum, (1,), {}),
    "linear": (F.linear, (WEIGHT, BIAS), {}),
    "conv2d": (torch.conv2d, (KERNEL,), {"padding": (1, 0), "stride": 2}),
    "depthwise conv2d": (torch.conv2d, (KERNEL[:3, :1], SHIFT), {"groups": 3, "dilation": 2, "padding": "same"}),
    "conv_transpose2d": (F.conv_transpose2d, (BACK,), {"stride": 2, "padding": 1, "output_padding": (1, 0)}),
    "batch_norm": (F.batch_norm, (MEAN, VARIANCE, SCALE, SHIFT), {"eps": 1e-3}),
    "batch_norm without scale": (F.batch_norm, (MEAN, VARIANCE), {}),
    "pad": (F.pad, ((1, 2, 0, 1),), {"value": -0.25}),
    "pad by reflection": (F.pad, ((1, 2, 1, 1),), {"mode": "reflect"}),
    "flatten": (torch.flatten, (1,), {}),
    "permute": (Tensor.permute, (0, 3, 1, 2), {}),
    "slice": (Tensor.__getitem__, ((slice(None), 1, slice(None, None, 2)),), {}),
    "chunk": (Tensor.chunk, (2, 3), {}),
    "pixel_shuffle": (F.pixel_shuffle, (1,), {}),
    "nearest": (F.interpolate, ((7, 5),), {}),
    "nearest-exact": (F.interpolate, (), {"scale_factor": 1.7, "mode": "nearest-exact"}),
    "bilinear": (F.interpolate, ((9, 5),), {"mode": "bilinear"}),
    "bilinear with corners": (F.interpolate, ((9, 5),), {"mode": "bilinear", "align_corners": True}),
    "bilinear by a factor": (F.interpolate, (), {"scale_factor": 1.3, "mode": "bilinear"}),
    "dropout, off": (F.dropout, (), {"training": False}),
}
# Functions of two activations of one shape.
TWO: dict[str, tuple[Any, dict[str, Any]]] = {
    "add": (torch.add, {}),
    "sub": (Tensor.sub, {"alpha": 2.5}),
    "rsub": (torch.rsub, {"alpha": 0.1}),
    "mul": (torch.mul, {}),
    "maximum": (torch.maximum, {}),
    "minimum": (torch.minimum, {}),
    "cat": (lambda a, b: torch.cat([a, b], dim=1), {}),
}


def cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) else value


def activations(seed: int, dtype: torch.dtype, spread: float, radius: float) -> tuple[Tensor, Tensor]:
    """An activation a and its counterpart b, in the format; errors small and large, aligned, one-sided or absent."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.randn(2, 3, 4, 6, generator=generator, dtype=torch.float64)

    a = (spread * draw()).to(dtype)
    signs = [draw().sign(), torch.ones(()), -torch.ones(()), a.double().sign(), -a.double().sign()][seed % 5]
    size = radius * torch.where(draw() < 0.5, 1.0, draw().abs())
    return a, (a.double() + signs * size).to(dtype)


def balls_of(a: Tensor, b: Tensor, known: bool) -> Ball:
    """A ball that holds both: a itself, or all that is no larger anywhere."""
    exact = Ball.exact(a)
    error = (b.double() - a.double()).abs()
    if known:
        return Ball(exact.low, exact.high, error)
    return Ball.around_zero(torch.full_like(error, float(exact.size.max())), error)


def judge(
    function: Any, pairs: list[tuple[Tensor, Tensor]], args: Any, kwargs: Any, known: bool, rule: Any = None
) -> float:
    """How far the bound of a rule is from being broken: the greatest observed over allowed; at most 1 if the rule is right.

    Held against it are |f̃(b) − f̃(a)| in the format, and |f̃(b) − f(a)| with f evaluated in float64, which must have room too;
    and f̃(a) must lie where the rule says.
    """
    dtype = pairs[0][0].dtype
    args, kwargs = tuple(cast(v, dtype) for v in args), {k: cast(v, dtype) for k, v in kwargs.items()}
    wide = tuple(cast(v, torch.float64) for v in args), {k: cast(v, torch.float64) for k, v in kwargs.items()}
    here = function(*(a for a, _ in pairs), *args, **kwargs)
    there = function(*(b for _, b in pairs), *args, **kwargs)
    exact = function(*(a.double() for a, _ in pairs), *wide[0], **wide[1])
    balls = [balls_of(a, b, known) for a, b in pairs]
    if function is TWO["cat"][0]:
        call = Call(torch.cat, (balls,), {"dim": 1}, here, fmt=FORMATS[NAMES[dtype]])
    else:
        call = Call(function, (*balls, *args), kwargs, here, fmt=FORMATS[NAMES[dtype]])
    found = (rule or rule_table.RULES[call.function])(call)
    if isinstance(here, Tensor):
        here, there, exact, found = [here], [there], [exact], [found]
    assert len(found) == len(here)
    worst = 0.0
    for x, y, z, ball in zip(here, there, exact, found, strict=True):
        assert ball.error.shape == x.shape
        x, y = x.double(), y.double()
        assert bool((ball.low <= x).all())
        assert bool((x <= ball.high).all())
        excess = torch.maximum((y - x).abs(), (y - z).abs() if dtype != torch.float64 else (y - x).abs())
        ratio = torch.where(excess == 0, 0.0, excess / ball.error)
        worst = max(worst, float(ratio.max()))
    return worst


SITUATION = {
    "seed": st.integers(0, 10**6),
    "dtype": st.sampled_from([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    "spread": st.sampled_from([1.0, 4.0, 0.01]),
    "radius": st.sampled_from([0.0, 1e-6, 1e-3, 0.5, 3.0]),
    "known": st.booleans(),
}


@pytest.mark.parametrize("name", ONE)
@settings(max_examples=EXAMPLES // 6)
@given(**SITUATION)
def test_rule_of_one_activation_holds(name, seed, dtype, spread, radius, known):
    function, args, kwargs = ONE[name]
    assert judge(function, [activations(seed, dtype, spread, radius)], args, kwargs, known) <= 1


@pytest.mark.parametrize("name", TWO)
@settings(max_examples=EXAMPLES // 6)
@given(**SITUATION)
def test_rule_of_two_activations_holds(name, seed, dtype, spread, radius, known):
    function, kwargs = TWO[name]
    pairs = [activations(seed, dtype, spread, radius), activations(seed + 1, dtype, 1.0, radius / 2)]
    assert judge(function, pairs, (), kwargs, known) <= 1


@pytest.mark.parametrize(
    "name", ["add a constant", "times a number", "linear", "conv2d", "batch_norm", "mean", "silu", "softmax"]
)
def test_rounding_alone_has_room_for_both_evaluations(name):
    """With e = 0 the bound is two evaluations' rounding: one of them uses at most half."""
    function, args, kwargs = ONE[name]
    for seed in range(20):
        a, _ = activations(seed, torch.float32, 1.0, 0.0)
        call = Call(function, (Ball.exact(a), *args), kwargs, function(a, *args, **kwargs), fmt=FORMATS["float32"])
        wide = [cast(v, torch.float64) for v in args], {k: cast(v, torch.float64) for k, v in kwargs.items()}
        rounding = (call.output.double() - function(a.double(), *wide[0], **wide[1])).abs()
        bound = rule_table.RULES[function](call).error / 2
        assert bool((rounding <= bound).all())
        assert float(rounding.max()) > 0
        assert float(bound.max()) < 1e-4  # and is of the size of rounding


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("function", [torch.conv1d, torch.conv_transpose1d])
def test_a_convolution_may_be_stored_once_a_tap_and_twice_more(name: str, function: Any):
    """In half precision, by either network, as the budget of a certificate takes it."""
    fmt = FORMATS[name]
    x, weight = (torch.ones(1, 1, n, dtype=getattr(torch, name)) for n in (9, 5))
    call = Call(function, (Ball.exact(x), weight), {}, function(x, weight), fmt=fmt)
    error = float(rule_table.RULES[function](call).error.max())  # of an output that meets every tap
    least = 2 * 5 * (6 * fmt.u + (5 + 2) * fmt.stored_u)
    assert least <= error <= 1.1 * least


@pytest.mark.parametrize(
    ("variance", "held"), [(0.0, True), (2.0**-40, True), (-(2.0**-40), False), (float("nan"), False)]
)
def test_a_negative_variance_has_no_bound(variance: float, held: bool):
    """Though with ε it is a number whose root is real: what the sum rounds away may be all of it."""
    x = torch.ones(1, 2, 3)
    mean, spread = torch.zeros(2), torch.tensor([1.0, variance])
    output = F.batch_norm(x, mean, spread, eps=1.0)
    call = Call(F.batch_norm, (Ball.exact(x), mean, spread), {"eps": 1.0}, output, fmt=FORMATS["float32"])
    if held:
        assert bool((linear_rules.batch_norm(call).size >= output).all())
        return
    with pytest.raises(NoBound, match="a running variance is"):
        linear_rules.batch_norm(call)


@pytest.mark.parametrize("name", ["mean", "mean of all", "avg_pool2d", "adaptive_avg_pool2d"])
@pytest.mark.parametrize("held", [True, False])
def test_the_sum_of_a_mean_may_overflow(name: str, held: bool):
    """Though the mean itself is far from it."""
    function, args, kwargs = ONE[name]
    x = torch.full((2, 3, 4, 6), 1.0 if held else FORMATS["float32"].largest / 8)
    output = function(x, *args, **kwargs)
    call = Call(function, (Ball.exact(x), *args), kwargs, output, fmt=FORMATS["float32"])
    if held:
        assert bool((rule_table.RULES[function](call).size >= output).all())
        return
    with pytest.raises(NoBound, match="an intermediate may reach"):
        rule_table.RULES[function](call)


SUBNORMAL = {  # name → function of torch, further arguments
    "times a number": (Tensor.mul, (1e-42,), {}),
    "times a constant": (torch.mul, (CONSTANT * 2.0**-140,), {}),
    "take a multiple": (torch.rsub, (CONSTANT * 2.0**-60,), {"alpha": 1e-42}),
    "leaky_relu": (F.leaky_relu, (1e-42,), {}),
}


@pytest.mark.parametrize("name", SUBNORMAL)
def test_a_factor_that_is_subnormal_loses_as_much_as_what_it_meets_is_large(name: str):
    """A Python number is rounded first: what that loses is multiplied by the activation."""
    function, args, kwargs = SUBNORMAL[name]
    for seed, spread in product(range(4), (2.0**60, 2.0**110)):
        assert judge(function, [activations(seed, torch.float32, spread, 0.0)], args, kwargs, True) <= 1


@pytest.mark.parametrize("divisor", [1e-42, 1e-45, 0.0])
def test_division_by_what_is_subnormal_or_nothing_has_no_bound(divisor: float):
    x = torch.ones(1)
    call = Call(Tensor.div, (Ball.exact(x), divisor), {}, x / divisor, fmt=FORMATS["float32"])
    with pytest.raises(NoBound, match="it divides by"):
        elementwise_rules.divided(call)


# What these functions work out on the way may overflow where they do not.
OVERFLOW = ["hardswish", "silu", "selu", "softmax", "log_softmax", "add a number", "batch_norm", "bilinear", "sum"]


@pytest.mark.parametrize("name", OVERFLOW)
@pytest.mark.parametrize("part", ["value", "error"])
def test_what_is_near_the_largest_number_has_no_bound(name: str, part: str):
    """In either network."""
    function, args, kwargs = ONE[name]
    x = torch.ones(2, 3, 4, 6)
    call = Call(function, (Ball.exact(x), *args), kwargs, function(x, *args, **kwargs), fmt=FORMATS["float32"])
    rule, most = rule_table.RULES[function], 0.9 * FORMATS["float32"].largest * torch.ones_like(x, dtype=torch.float64)
    assert bool(rule(call).error.isfinite().all())
    ball = Ball.around_zero(most, 0 * most) if part == "value" else Ball.around_zero(0 * most, most)
    with pytest.raises(NoBound, match="an intermediate may reach"):
        rule(replace(call, args=(ball, *args)))


def with_curve(*numbers: float) -> Any:
    return lambda call: elementwise_rules.curved(call, elementwise_rules.Curve(*numbers))


def with_call(rule: Any, **changes: Any) -> Any:
    return lambda call: rule(replace(call, **{name: change(call) for name, change in changes.items()}))


def half_the_error(rule: Any) -> Any:
    return lambda call: replace(rule(call), error=rule(call).error / 2)


class Trusting(pair_rule.Certifier):
    """Takes every pair for proved, to test the rule alone."""

    asked = 0.0
    """For inputs up to this."""

    def certificate(self, path: str, pair: pair_rule.Pair, grid: tuple[int, ...], bound: float) -> Any:
        self.asked = bound
        return SimpleNamespace(within=None)


@settings(max_examples=EXAMPLES // 2)
@given(cases(integers=[False]), st.integers(0, 10**6), st.sampled_from([0.0, 1e-6, 1e-2, 1.0]), st.booleans())
def test_rule_of_a_convolution_and_its_attention_holds(case: Case, seed: int, radius: float, known: bool):
    """Over every geometry and format: |MHSA(b) − Conv(a)| ≤ bound; and heads are found at the taps that they carry."""
    conv, layer = case.conv, construct.conv_to_mhsa(case.conv)
    noise = torch.randn(case.x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a, b = case.x, (case.x.double() + radius * noise).to(case.x.dtype)
    with torch.no_grad():
        here, there = conv(a), layer(b)
    ball = balls_of(a, b, known) if a.numel() else Ball.exact(a)
    call = Call(conv, (ball,), {}, here, fmt=FORMATS[NAMES[a.dtype]])
    certifier = Trusting()
    found = pair_rule.paired(call, "", conv, layer, certifier)
    assert all(certifier.asked >= float(x.abs().max()) for x in (a, b) if x.numel())
    assert found.error.shape == here.shape
    assert bool(((there.double() - here.double()).abs() <= found.error).all())
    assert bool((here.double().abs() <= found.size).all())
    kernel = pair_rule._absolute_kernel(Attention.read(layer), Convolution.read(conv))
    assert np.allclose(kernel, carried_kernel(layer, absolute=True), rtol=1e-12, atol=0)


@settings(max_examples=EXAMPLES // 4)
@given(convolutions(transposed=[False], dtypes=[torch.float32, torch.float64]), st.data())
def test_of_one_input_both_budgets_are_one(conv: Any, data: st.DataObject):
    """What rounding does to inputs up to B: as the certificate says, and as the rule says, which works it out by itself."""
    layer = construct.conv_to_mhsa(conv, head_dim=data.draw(st.sampled_from([None, 40])))
    if data.draw(st.booleans()):  # two heads that cancel: |W_val||W_out| is more than |W|
        layer = permuted(layer, [*range(layer.heads), 0, 0])
        layer.w_val.data[-1] *= -1
    grid, bound = data.draw(sizes_for(conv, tokens=60)), data.draw(st.sampled_from([1.0, 2.0**-20, 100.0]))
    certificate = certify(conv, layer, grid=grid, input_bound=bound)
    output = conv(torch.zeros(1, conv.in_channels, *grid, dtype=conv.weight.dtype))
    size = torch.full((1, conv.in_channels, *[1] * len(grid)), bound, dtype=torch.float64)  # the same at all places
    even = Ball(-size, size, 0 * size, (1, conv.in_channels, *grid))
    call = Call(conv, (even,), {}, output, fmt=FORMATS[NAMES[conv.weight.dtype]])
    found = pair_rule.paired(call, "", conv, layer, Trusting()).error.flatten().numpy()
    assert (found >= certificate.rounding * (1 - 1e-6)).all()
    assert (found <= certificate.rounding * (1 + 1e-3) + 1e-300).all()


def test_heads_between_the_taps_that_cancel_have_no_bound():
    """Together they are nothing, as is proved; but what they round is not known at any tap."""
    model = nn.Sequential(nn.Conv1d(2, 3, 3, dilation=2), nn.ReLU())
    net: Any = convert(model)
    net[0] = permuted(net[0], [0, 1, 2, 1, 1])
    net[0].v.data[3:, 1] = -2 * net[0].v.data[3:, 0]
    net[0].w_out.data[4] *= -1
    assert certify(model[0], net[0], grid=(8,)).verdict.name == "PROVED"
    verdict = propagate(model, net, torch.rand(1, 2, 8)).verdict
    assert verdict.name == "UNDECIDED"
    assert "looks at no tap" in verdict.sentence


WRONG = {  # fault → (which of ONE, the rule with the fault)
    "half of the error": ("relu", half_the_error(rule_table.NAMED["relu"])),
    "silu taken for 1-Lipschitz": ("silu", with_curve(1.0, 0.5)),
    "gelu taken for 1-Lipschitz": ("gelu", with_curve(1.0, 0.5)),
    "mish flat below zero": ("mish", with_curve(1.0885, 0.5)),
    "selu without its slope below": ("selu", with_curve(1.0508, 1.0)),
    "elu's alpha forgotten": ("elu", with_curve(1.0, 1.0)),
    "the least error of a minimum": (
        "amin",
        lambda call: Ball(*(call.on(attrgetter(n)) for n in ("low", "high", "error"))),
    ),
    "alpha taken to scale the other operand": ("take a multiple from a constant", elementwise_rules.added),
    "a product taken for a sum": ("times a constant", elementwise_rules.added),
    "a quotient taken for a product": ("over a number", elementwise_rules.multiplied),
    "a slope forgotten": ("steep leaky_relu", lambda call: elementwise_rules.leaky(call, 1.0)),
    "a quarter of softmax": ("softmax", half_the_error(elementwise_rules.softmax)),
    "a bias' size in place of the weights'": (
        "linear",
        with_call(linear_rules.dense, args=lambda c: (c.args[0], c.args[1] / 2)),
    ),
    "a scale left out": ("batch_norm", with_call(linear_rules.batch_norm, args=lambda c: c.args[:3])),
    "another stride's taps": (
        "conv2d",
        with_call(linear_rules.convolved(2, False), args=lambda c: (c.args[0], c.args[1] * 0.9)),
    ),
    "another format's rounding": (
        "conv2d",
        with_call(linear_rules.convolved(2, False), fmt=lambda c: FORMATS["float64"]),
    ),
    "rounding of a mean forgotten": ("mean", with_call(linear_rules.mean, fmt=lambda c: FORMATS["float64"])),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_rule_would_be_found(fault):
    """The judge is no rubber stamp: each planted fault is found within a few inputs."""
    case, rule = WRONG[fault]
    function, args, kwargs = ONE[case]

    def ratio(seed: int, radius: float) -> float:
        try:
            return judge(function, [activations(seed, torch.float32, 1.0, radius)], args, kwargs, True, rule)
        except AssertionError:  # the value itself lies outside
            return float("inf")

    assert any(ratio(seed, radius) > 1 for seed in range(40) for radius in (0.5, 3.0, 0.01, 0.0))


@pytest.mark.parametrize("name", elementwise_rules.CURVES)
def test_curves_are_what_they_say(name):
    """Slope, slope below zero, start and cap, on a fine grid; and none is loose by more than two per cent."""
    curve = elementwise_rules.CURVES[name]
    function = {"gelu of tanh": lambda x: F.gelu(x, approximate="tanh"), "tanh": torch.tanh}.get(name) or getattr(
        F, name
    )
    x = torch.linspace(-30, 30, 600_001, dtype=torch.float64, requires_grad=True)
    y = function(x)
    (slopes,) = torch.autograd.grad(y.sum(), x)
    steepest, below = float(slopes.abs().max()), float(slopes[x <= 0].abs().max())
    assert steepest <= curve.slope <= 1.02 * steepest
    assert below <= curve.slope_below <= 1.02 * below
    assert float(function(torch.zeros(1))) == curve.start
    assert float(y.detach().abs().max()) <= curve.cap


# ---- whole networks ------------------------------------------------------------------------------------------------------


def demo() -> nn.Module:
    """The network that ships with the project."""
    with torch.serialization.safe_globals([nn.Sequential, nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Flatten, OrderedDict]):
        return torch.load(construct.demo.PATH, weights_only=True).eval()


def convert(model: nn.Module, **options: Any) -> Any:
    return construct.convert(model, **options)


def inputs_like(x: Tensor, bound: float = 1.0) -> list[Tensor]:
    """Inputs on which rounding errors align, cancel or vanish."""
    generator = torch.Generator().manual_seed(1)
    signs = torch.randint(0, 2, x.shape, generator=generator) * 2.0 - 1
    powers = 2.0 ** -torch.randint(0, 30, x.shape, generator=generator)
    cases = [
        bound * signs,
        bound * signs * powers,
        torch.full_like(x, bound),
        torch.zeros_like(x),
        bound * (1 - powers),
    ]
    return [case.to(x.dtype) for case in cases]


def assert_sound(model: nn.Module, x: Any, result: Any) -> None:
    """The bound covers what was observed, at every step, and the original in float64, which is one more evaluation."""
    assert result.verdict.name == "PROVED", str(result.verdict)
    with torch.no_grad():
        expected, exact = model(x).double(), copy.deepcopy(model).double()(x.double())
    bound = torch.from_numpy(result.per_output).reshape(expected.shape)
    assert bool(((exact - expected).abs() <= bound).all())
    assert result.observed <= result.bound == result.per_output.max()
    for step in result.steps:
        assert step.observed <= step.bound, step


@pytest.mark.parametrize("name", SMALL)
def test_every_common_network(name):
    """Proved for given inputs, kind and unkind, and for all of them; the worst case is worse."""
    model, x = NETWORKS[name].ready()
    net = convert(model)
    everywhere = worst_case(model, net, tuple(x.shape[1:]), 4.0)
    assert everywhere.verdict.name == "PROVED", str(everywhere.verdict)
    for given_input in [x[:1].clamp(-4, 4), *inputs_like(x[:1], 4.0)[:1]]:
        along = propagate(model, net, given_input, certificates=everywhere.certificates)
        assert_sound(model, given_input, along)
        assert bool((along.per_output <= everywhere.per_output).all())


def test_demo_is_bounded_usefully():
    """For the shipped network and its kind of input the bound is small against the logits, and says so."""
    model = demo()
    net = convert(model)
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    result = propagate(model, net, [x[:1], x[1:]])
    assert "these 3 inputs alone" in result.verdict.sentence
    assert result.per_output.shape == (3, 10)
    assert result.per_input.shape == (3,)
    assert result.bound < 0.1
    assert result.bound / result.observed < 1e6
    assert_sound(model, x, propagate(model, net, x))
    for unkind in inputs_like(x[:1]):
        assert_sound(model, unkind, propagate(model, net, unkind, certificates=result.certificates))
    everywhere = worst_case(model, net, construct.demo.INPUT_SIZE, 1.0)
    assert everywhere.verdict.name == "PROVED"
    assert "for all finite |x| ≤ 1 of size 1x8x8" in everywhere.verdict.sentence
    assert result.bound < everywhere.bound < 100


class UNetLike(nn.Module):
    """Down, up by a transposed convolution told its size, concatenation, a residual sum, all in place where that goes."""

    def __init__(self, inplace: bool = False):
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 4, 3, 2, 1), nn.ConvTranspose2d(4, 2, 3, 2, 1)
        self.norm, self.act, self.head = nn.BatchNorm2d(4), nn.ReLU(inplace=inplace), nn.Conv2d(4, 2, 1)
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm(self.down(x)))
        y = self.head(torch.cat([self.up(y, output_size=list(x.shape[2:])), x], dim=1))
        if self.inplace:
            y += x
            y.mul_(0.5)
            return y
        return (y + x) * 0.5


def test_in_place_operations_change_nothing():
    torch.manual_seed(0)
    model = randomised(UNetLike()).eval()
    other = UNetLike(inplace=True).eval()
    other.load_state_dict(model.state_dict())
    x = torch.randn(1, 2, 8, 7)
    before = x.clone()
    results = [propagate(m, convert(m), x) for m in (model, other)]
    for m, result in zip((model, other), results, strict=True):
        assert_sound(m, x, result)
    assert results[0].per_output.tolist() == results[1].per_output.tolist()
    assert torch.equal(x, before)


class Twice(nn.Module):
    """One convolution in two places, two inputs, two outputs, one of them a dict entry; unbatched."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 2, 3, padding=1)
        self.again = self.first

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return {"sum": sum([self.first(x), self.again(y)]), "scaled": self.again(self.first(x)) * 3 - 1}


def test_shared_modules_several_inputs_and_outputs():
    torch.manual_seed(0)
    model = Twice()
    net = convert(model)
    arguments = torch.randn(2, 9), torch.randn(2, 9)
    result = propagate(model, net, [arguments], pairs={"first": (model.first, net.first)})
    assert result.verdict.name == "PROVED", str(result.verdict)
    assert 0 < result.observed <= result.bound < 1e-4
    assert result.per_output.size == 36
    assert [step.name for step in result.steps][:2] == ["first (Conv1d)", "first (Conv1d)"]


LAYERS = [
    lambda c: [nn.Conv2d(c, c, 3, padding=1), nn.ReLU()],
    lambda c: [nn.Conv2d(c, c, 3, padding=2, dilation=2, groups=c), nn.SiLU()],
    lambda c: [nn.Conv2d(c, c, 2, padding="same", padding_mode="circular"), nn.GELU()],
    lambda c: [nn.Conv2d(c, 2 * c, 1), nn.PixelShuffle(1), nn.Conv2d(2 * c, c, 1, bias=False), nn.Hardtanh()],
    lambda c: [nn.ConvTranspose2d(c, c, 2, 2), nn.AvgPool2d(2), nn.LeakyReLU(0.2)],
    lambda c: [nn.BatchNorm2d(c), nn.Conv2d(c, c, (1, 3), padding=(0, 1)), nn.ReLU6()],
    lambda c: [nn.MaxPool2d(3, 1, 1), nn.Dropout(0.5), nn.Identity()],
    lambda c: [Residual(conv_norm(c, c, 3), c, c), nn.Hardswish()],
    lambda c: [nn.Upsample(scale_factor=2), nn.Conv2d(c, c, 3, stride=2, padding=1), nn.ELU(), nn.Softmax(1)],
    lambda c: [nn.Upsample(size=(6, 7), mode="bilinear"), nn.ZeroPad2d((1, 0, 1, 0)), nn.Sigmoid()],
]
HEADS = [
    lambda c: [nn.Flatten(1), nn.LazyLinear(3), nn.Tanh()],
    lambda c: [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * c, 4), nn.LogSoftmax(1)],
    lambda c: [nn.AdaptiveMaxPool2d((1, 2)), nn.Conv2d(c, 2, 1)],
]


@settings(max_examples=EXAMPLES // 5)
@given(
    layers=st.lists(st.sampled_from(range(len(LAYERS))), min_size=1, max_size=4),
    head=st.sampled_from(range(len(HEADS))),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    execution=st.sampled_from(["dense", "chunked"]),
    spread=st.sampled_from([1.0, 100.0, 1e-3]),
    seed=st.integers(0, 10**6),
)
def test_random_networks_stay_under_their_bound(layers, head, dtype, execution, spread, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(*(m for i in layers for m in LAYERS[i](2)), *HEADS[head](2))
        x = spread * torch.randn(2, 2, 6, 5)
        model(x)
        randomised(model)
    model, x = model.eval().to(dtype), x.to(dtype)
    net = convert(model, execution=execution)
    result = propagate(model, net, x)
    assert_sound(model, x, result)
    with torch.no_grad():
        assert result.observed == float((net(x).double() - model(x).double()).abs().max())
    everywhere = worst_case(model, net, x.shape[1:], float(x.abs().max()), certificates=result.certificates)
    if everywhere.verdict.name == "PROVED":
        assert result.bound <= everywhere.bound * (1 + 1e-6)
    else:
        assert dtype == torch.float16  # which holds little
        assert "6.55e+04" in everywhere.verdict.sentence


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_the_sentence_never_rounds_a_bound_down(bound):
    assert bound <= float(from_above(bound)) <= 1.02 * bound


# ---- planted faults ------------------------------------------------------------------------------------------------------


def small() -> tuple[nn.Sequential, Any, Tensor]:
    """A network with all that a fault can sit in, its conversion, an input."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.LeakyReLU(0.1), nn.Conv2d(3, 2, 2), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3)).eval()
    randomised(model)
    return model, convert(model), torch.randn(1, 2, 6, 5)


def one_ulp(tensor: Tensor) -> None:
    with torch.no_grad():
        flat = tensor.view(-1)
        flat[1] = torch.nextafter(flat[1], torch.tensor(float("inf")))


FAULTS = {  # where in the network, what is done there, what the verdict must name
    "a value of one head": ("0", lambda m: one_ulp(m.w_val), "0 (Conv2d)"),
    "an output weight": ("3", lambda m: one_ulp(m.w_out), "3 (Conv2d)"),
    "a bias": ("3", lambda m: one_ulp(m.b_out), "3 (Conv2d)"),
    "an aim": ("0", lambda m: m.v.data[0].neg_(), "0 (Conv2d)"),
    "less sharp": ("0", lambda m: m.v.data.mul_(2.0**-10), "0 (Conv2d)"),
    "content attention": ("0", lambda m: (m.u.data.fill_(1), m.w_key.data.fill_(1)), "0 (Conv2d)"),
    "a running mean": ("1", lambda m: one_ulp(m.running_mean), "1 (batch_norm)"),
    "an epsilon": ("1", lambda m: setattr(m, "eps", 1e-3), "1 (batch_norm)"),
    "a slope": ("2", lambda m: setattr(m, "negative_slope", 0.11), "2 (leaky_relu)"),
    "another pooling": ("4", lambda m: setattr(m, "ceil_mode", True), "4 (max_pool2d)"),
    "a weight after it all": ("6", lambda m: one_ulp(m.weight), "6 (linear)"),
    "a hook": ("3", lambda m: m.register_forward_hook(lambda m, x, y: y * 1.001), "hooks"),
    "a forward": ("3", lambda m: setattr(m, "forward", lambda x: type(m).forward(m, x) * 1.001), "forward"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_converted_network_is_not_proved(fault):
    model, net, x = small()
    where, spoil, named = FAULTS[fault]
    spoil(net.get_submodule(where))
    if fault != "another pooling":  # that one changes shapes
        for result in (propagate(model, net, x), worst_case(model, net, (2, 6, 5), 1.0)):
            assert result.verdict.name == "UNDECIDED"
            assert named in result.verdict.sentence
            assert result.bound == float("inf")
    else:
        with pytest.raises((RuntimeError, ValueError)):
            propagate(model, net, x)


@pytest.mark.parametrize("wrong", ["bound", "value"])
def test_a_run_over_the_bound_is_refuted(wrong, monkeypatch):
    """If a rule promises too much, the run tells, by the name of the call."""
    model, net, x = small()
    right = rule_table.RULES[F.batch_norm]
    spoilt = {
        "bound": lambda call: replace(right(call), error=right(call).error * 0 - 1),  # both may round alike
        "value": lambda call: replace(right(call), high=right(call).low),
    }
    monkeypatch.setattr(pushing, "RULES", {**rule_table.RULES, F.batch_norm: spoilt[wrong]})
    result = propagate(model, net, x)
    assert result.verdict.name == "REFUTED"
    assert result.verdict.sentence.startswith("1 (batch_norm)")


def test_networks_that_differ_are_not_compared():
    model, net, x = small()
    shorter = net[:-1]
    more = nn.Sequential(*net, nn.ReLU())
    for other in (more, nn.Sequential(net[1], *net)):
        with torch.no_grad():
            verdict = propagate(model, other, x).verdict if other is more else None
        assert verdict is None or verdict.name == "UNDECIDED"
    with pytest.raises(ValueError, match="the networks return"):
        propagate(model, shorter, x)
    pair = {"0": (model[0], copy.deepcopy(net[0]))}
    assert propagate(model, net, x, pairs=pair).verdict.sentence.startswith("0 is not where")
    unconverted = propagate(
        model, copy.deepcopy(model), x
    )  # the very same network is as far from itself as rounding allows
    assert unconverted.verdict.name == "PROVED"
    assert 0 == unconverted.observed < unconverted.bound


# ---- what cannot be bounded is named ----------------------------------------------------------------------------------------


class After(nn.Module):
    """A convolution, and then something."""

    def __init__(self, then: Any):
        super().__init__()
        self.conv, self.then = nn.Conv1d(4, 4, 3, padding=1), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.conv(x))


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.cumsum(1)


class Recurrent(nn.GRU):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x)[0]


def branching(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def read_out(x: Tensor) -> Tensor:
    return x * float(x.max())


def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2)


def behind_its_back(x: Tensor) -> Tensor:
    view = x[:, :1]
    view.mul_(2)
    return x + 1


def into_a_constant(x: Tensor) -> Tensor:
    return torch.zeros(4, 9).add_(x[0])


def random_noise(x: Tensor) -> Tensor:
    return x + torch.rand(4, 1)


REFUSED = {
    "MultiheadAttention": (lambda: SelfAttention(9, 1), "then (multi_head_attention_forward)"),
    "GRU": (lambda: Recurrent(9, 4), "then ("),
    "LayerNorm": (lambda: nn.LayerNorm(9), "then (layer_norm)"),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), "then (group_norm)"),
    "InstanceNorm, training": (lambda: nn.InstanceNorm1d(4).train(), "then (InstanceNorm1d) is in training mode"),
    "InstanceNorm": (lambda: nn.InstanceNorm1d(4).eval(), "then (instance_norm)"),
    "BatchNorm, training": (lambda: nn.BatchNorm1d(4).train(), "then (BatchNorm1d) is in training mode"),
    "BatchNorm of the batch": (lambda: nn.BatchNorm1d(4, track_running_stats=False).eval(), "then (batch_norm)"),
    "Dropout, training": (lambda: nn.Dropout().train(), "then (Dropout) is in training mode"),
    "functional dropout": (lambda: lambda x: F.dropout(x), "dropout: it draws at random"),
    "a branch": (lambda: branching, "gt: there is no rule"),
    "a number": (lambda: read_out, "max: there is no rule"),
    "numpy": (lambda: through_numpy, "numpy: there is no rule"),
    "an own function": (lambda: OwnFunction.apply, "cumsum: there is no rule"),
    "in place through a view": (lambda: behind_its_back, "changed in place"),
    "into a constant": (lambda: into_a_constant, "add_: it changes a constant in place"),
    "another format": (lambda: lambda x: x.double() + 1, "double: there is no rule"),
    "a mean in another format": (lambda: lambda x: x.mean(1, dtype=torch.float64), "mixes the formats"),
    "a quotient of activations": (lambda: lambda x: x / (x + 3), "div: only division by a constant"),
    "indices": (lambda: lambda x: F.max_pool1d(x, 2, return_indices=True)[0], "no rule"),
    "noise": (lambda: random_noise, "add: the converted network makes another call here"),
    "a bicubic": (lambda: lambda x: F.interpolate(x[None], size=3, mode="bicubic"), "bicubic is not covered"),
    "an old constant": (lambda: lambda x: x * MEAN[:1], "unknown origin"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_bounded_is_undecided_by_name(name):
    torch.manual_seed(0)
    build, named = REFUSED[name]
    model = After(build())
    net = convert(model)
    state = copy.deepcopy(model.state_dict())
    result = propagate(model, net, torch.randn(2, 4, 9))
    assert result.verdict.name == "UNDECIDED"
    assert named in result.verdict.sentence
    assert result.bound == float("inf")
    assert not result.per_output.size or result.per_output.min() == float("inf")
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[key])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in [*model.modules(), *net.modules()])


def test_shapes_may_steer():
    """Branches on shapes, constants of the network's own, indexing, functional calls: all of these are followed."""

    def then(x: Tensor) -> Tensor:
        if x.shape[-1] > 3 and x.dim() == 3 and len(x) == x.size(0):
            x = F.adaptive_avg_pool1d(x, x.shape[-1] // 2)
        parts = [part * (i + 1) for i, part in enumerate(x.split(2, dim=1))]
        half, *_ = torch.stack(parts).unbind(0)
        return torch.cat([half, F.relu(-half[..., ::2])], dim=-1).view(x.shape[0], -1) + torch.ones(1)

    torch.manual_seed(0)
    model = After(then)
    result = propagate(model, convert(model), torch.randn(2, 4, 9))
    assert result.verdict.name == "PROVED", str(result.verdict)
    assert_sound(model, torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(0)), result)


def test_overflow_is_undecided_by_name():
    """Where the worst case leaves the format there is no bound; for a given input there may be one."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU(), nn.Linear(7, 7), nn.Conv1d(4, 4, 3))
    with torch.no_grad():
        model[2].weight.mul_(1e20)
        model[3].weight.mul_(1e18)
    net = convert(model)
    x = 1e-3 * torch.randn(2, 4, 9)
    assert propagate(model, net, x).verdict.name == "PROVED"
    result = worst_case(model, net, (4, 9), 1e3)
    assert (result.verdict.name, result.bound) == ("UNDECIDED", float("inf"))
    assert result.verdict.sentence.startswith("3 (Conv1d): ")
    assert "float32" in result.verdict.sentence
    with pytest.raises(ValueError, match="not a positive finite number"):
        worst_case(model, net, (4, 9), float("inf"))
    with pytest.raises(ValueError, match="not finite"):
        propagate(model, net, x / 0)


# ---- certificates ------------------------------------------------------------------------------------------------------------


def test_certificates_are_used_where_they_fit(monkeypatch):
    model, net, x = small()
    made: list[Any] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args[0])
        return certify(*args, **kwargs)

    monkeypatch.setattr(pair_rule, "certify", counted)
    first = propagate(model, net, [x, 0.5 * x])
    assert len(made) == 2  # one a layer, for both inputs
    assert set(first.certificates) == {"0", "3"}
    made.clear()
    again = propagate(model, net, x, certificates=first.certificates)
    assert not made
    assert again.per_output.tolist() == first.per_output[:1].tolist()
    larger = propagate(model, net, 1e3 * x, certificates=first.certificates)
    assert not made  # it is still one function: only the rounding is worked out again
    for path, known in larger.certificates.items():
        afresh = certify(model[int(path)], net[int(path)], grid=known.grid, input_bound=known.input_bound)
        assert known.input_bound > first.certificates[path].input_bound
        assert known.verdict == afresh.verdict
        for part in ("bound", "rounding", "leakage", "taps"):
            assert getattr(known, part).tolist() == getattr(afresh, part).tolist()
        assert [step.sentence for step in known.steps[:6]] == [step.sentence for step in afresh.steps[:6]]
        assert known.steps[6].sentence.endswith(f"with |x| ≤ {first.certificates[path].input_bound:g}")
    swapped = {"0": first.certificates["3"], "3": first.certificates["0"]}
    assert propagate(model, net, x, certificates=swapped).verdict.name == "PROVED"
    assert len(made) == 2
    one_ulp(net[0].w_val)
    verdict = propagate(model, net, x, certificates=first.certificates).verdict
    assert verdict.name == "UNDECIDED"
    assert verdict.sentence.startswith("0 (Conv2d): its certificate says REFUTED")


def test_a_certificate_of_a_smaller_image_is_not_used():
    """That of a larger one is."""
    model = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.ReLU())
    net = convert(model)
    first = propagate(model, net, torch.rand(1, 2, 8)).certificates
    for size in (7, 8, 9):
        found = propagate(model, net, torch.rand(1, 2, size), certificates=first)
        assert found.verdict.name == "PROVED"
        assert found.certificates["0"].grid == (max(size, 8),)


def test_a_certified_difference_is_pushed_too():
    """Soft attention is not the same function; certified within a tolerance, its leakage is part of the bound."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.ReLU(), nn.Linear(8, 2))
    net = convert(model, alpha=12.0)
    x = torch.rand(1, 2, 8)
    assert propagate(model, net, x).verdict.name == "UNDECIDED"
    soft = {"0": certify(model[0], net[0], grid=(8,), input_bound=1.0, within=0.1)}
    result = propagate(model, net, x, certificates=soft)
    assert_sound(model, x, result)
    assert float(soft["0"].leakage.max()) < result.bound
    # Inputs beyond the certificate's: another is worked out, of a difference too, as that is what was asked for.
    further = propagate(model, net, 4 * x, certificates=soft)
    assert_sound(model, 4 * x, further)
    assert further.certificates["0"].within is not None
    assert further.certificates["0"].input_bound >= 4 * float(x.max())
    assert result.observed > 1e-7


def test_sharper_reordered_or_otherwise_executed_layers():
    model, net, x = small()
    turned = copy.deepcopy(net)
    turned[0], turned[3] = (permuted(turned[i], list(range(turned[i].heads))[::-1]) for i in (0, 3))
    for other in (convert(model, alpha=4096.0), convert(model, execution="chunked"), turned):
        assert_sound(model, x, propagate(model, other, x))


def test_parabola_is_bounded_too():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU())
    net = copy.deepcopy(model)
    net[0] = construct.conv_to_mhsa(model[0], encoding="parabola")
    x = torch.randn(1, 2, 6, 5)
    assert_sound(model, x, propagate(model, net, x))


@dataclass
class Answer:
    """A network's output, as people like to have it."""

    scores: Tensor
    name: str = "answer"


class Opaque:
    """Another, which nobody can look into."""

    def __init__(self, scores: Tensor):
        self.scores = scores


@pytest.mark.parametrize(
    ("wrap", "verdict"),
    [
        (Answer, "PROVED"),
        (lambda y: [Answer(y), None, 3], "PROVED"),
        (lambda y: UserDict(scores=y), "PROVED"),
        (Opaque, "UNDECIDED"),
        (lambda y: (y, Opaque(y)), "UNDECIDED"),
        (lambda y: {y}, "UNDECIDED"),
        (lambda y: None, "UNDECIDED"),
        (lambda y: [], "UNDECIDED"),
    ],
)
def test_what_a_network_returns_is_looked_into_or_nothing_is_claimed(wrap: Any, verdict: str) -> None:
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Any:
            return wrap(self.conv(x))

    torch.manual_seed(0)
    model = Network()
    converted = construct.convert(model)
    x = torch.randn(1, 2, 6, 6)
    for bound in (propagate(model, converted, [x]), worst_case(model, converted, (2, 6, 6), 3.0)):
        assert bound.verdict.name == verdict, bound.verdict
        if verdict == "PROVED":
            assert bound.per_output.size == 3 * 6 * 6
            assert bound.bound > 0


def test_plain_values_that_differ_are_told() -> None:
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.calls = nn.Conv2d(1, 1, 1), [0]

        def forward(self, x: Tensor) -> Any:
            self.calls[0] += 1
            return self.conv(x), self.calls[0]

    model = Network()
    converted = construct.convert(model)
    model.calls[0] = 5
    verdict = propagate(model, converted, [torch.ones(1, 1, 2, 2)]).verdict
    assert verdict.name == "UNDECIDED"
    assert "different constants" in verdict.sentence


def test_a_run_in_inference_mode_is_undecided() -> None:
    class Network(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            with torch.inference_mode():
                return super().forward(input)

    model = Network(nn.Conv2d(1, 1, 3), nn.ReLU())
    verdict = propagate(model, construct.convert(model), [torch.ones(1, 1, 4, 4)]).verdict
    assert verdict.name == "UNDECIDED"
    assert "inference mode" in verdict.sentence
