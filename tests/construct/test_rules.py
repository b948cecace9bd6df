"""Rules, which replace a user's class by torch layers: samples judge them, and refuted rules are refused."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

import construct
from construct import MHSA, UnsupportedLayer
from construct.modules.convolutions import geometry_of
from construct.modules.rules import sizes
from runs import convolution_calls
from verify.strategies import Case, cases

convert: Any = construct.convert


def reasons(model: nn.Module, rules: Any, **options: Any) -> dict[str, str]:
    """path → the reason why it is not converted."""
    with pytest.raises(UnsupportedLayer) as caught:
        construct.convert(model, rules=rules, **options)
    assert not any("\n" in row.reason or "--" in row.reason for row in caught.value.rows)
    return {row.path: row.reason for row in caught.value.rows}


def plain_conv(module: Any, **changes: Any) -> Any:
    """torch's own convolution with the numbers of a subclass."""
    kind = [nn.Conv1d, nn.Conv2d, nn.Conv3d][module.weight.dim() - 3]
    options = {name: getattr(module, name) for name in ("kernel_size", "stride", "padding", "dilation", "groups")}
    conv: Any = kind(module.in_channels, module.out_channels, bias=module.bias is not None, **options | changes)
    conv.weight, conv.bias = module.weight, module.bias
    return conv


class StaticSame(nn.Conv2d):
    """Pads like TensorFlow, for the one image size for which it was built."""

    def __init__(self, d_in: int, d_out: int, kernel: int, image_size: int, **options: Any):
        super().__init__(d_in, d_out, kernel, **options)
        pads = [max((-(-image_size // s) - 1) * s + (k - 1) * d + 1 - image_size, 0)
                for k, s, d in zip(self.kernel_size, self.stride, self.dilation, strict=True)]  # fmt: skip
        self.static_padding = nn.ZeroPad2d((pads[1] // 2, -(-pads[1] // 2), pads[0] // 2, -(-pads[0] // 2)))

    def forward(self, input: Tensor) -> Tensor:
        x = self.static_padding(input)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def static_same(module: StaticSame) -> nn.Module:
    return nn.Sequential(module.static_padding, plain_conv(module))


class DynamicSame(nn.Conv2d):
    """Pads like TensorFlow, by the size of each input."""

    def forward(self, input: Tensor) -> Tensor:
        pads = []
        for n, k, s, d in zip(input.shape[2:], self.kernel_size, self.stride, self.dilation, strict=True):
            pad = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            pads = [pad // 2, pad - pad // 2, *pads]
        return F.conv2d(F.pad(input, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def fixed_same(residue: int) -> Callable[[Any], nn.Module]:
    """The rule for DynamicSame on inputs whose size has this residue modulo the stride."""

    def rule(module: Any) -> nn.Module:
        pads: Any = []
        for k, s, d in zip(module.kernel_size, module.stride, module.dilation, strict=True):
            n = 10 * s + residue
            pad = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            pads = [pad // 2, pad - pad // 2, *pads]
        return nn.Sequential(nn.ZeroPad2d(tuple(pads)), plain_conv(module, padding=0))

    return rule


class CausalCrop(nn.Conv1d):
    """Pads on both sides and crops the outputs that look ahead."""

    def __init__(self, d_in: int, d_out: int, kernel: int, dilation: int = 1, **options: Any):
        super().__init__(d_in, d_out, kernel, padding=(kernel - 1) * dilation, dilation=dilation, **options)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)[..., : input.shape[-1]]


def causal(module: Any) -> nn.Sequential:
    (kernel,), (dilation,) = module.kernel_size, module.dilation
    return nn.Sequential(nn.ConstantPad1d(((kernel - 1) * dilation, 0), 0.0), plain_conv(module, padding=0))


class CausalBlock(nn.Module):
    """Contains a convolution but is not one itself."""

    def __init__(self, d_in: int, d_out: int, kernel: int):
        super().__init__()
        self.left = kernel - 1
        self.conv = nn.Conv1d(d_in, d_out, kernel)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (self.left, 0)))


def opened(module: Any) -> nn.Sequential:
    return nn.Sequential(nn.ZeroPad1d((module.left, 0)), module.conv)


def standard(weight: Tensor, gain: Tensor, eps: float) -> Tensor:
    var, mean = torch.var_mean(weight, dim=[1, 2, 3], keepdim=True, correction=0)
    return gain * (weight - mean) / torch.sqrt(var + eps)


class Standardised(nn.Conv2d):
    """Standardises each filter, (w − mean)/std, and multiplies it by a gain."""

    def __init__(self, *args: Any, eps: float = 1e-6, **options: Any):
        super().__init__(*args, **options)
        self.gain, self.eps = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5), eps

    def kernel(self, eps: float | None = None) -> Tensor:
        return standard(self.weight, self.gain, self.eps if eps is None else eps)

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, self.kernel(), self.bias, self.stride, self.padding, self.dilation, self.groups)


def standardised(module: Standardised) -> nn.Module:
    conv = nn.Conv2d(module.in_channels, module.out_channels, module.kernel_size, module.stride, module.padding)  # type: ignore[arg-type]
    conv.to(module.weight.dtype)
    conv.weight.copy_(module.kernel())
    conv.bias.copy_(module.bias)  # type: ignore[union-attr]
    return conv


def made_anew(module: Standardised) -> nn.Module:
    """A new module in the default format, which for a float64 copy is float64."""
    conv = nn.Conv2d(module.in_channels, module.out_channels, 3)
    conv.load_state_dict({"weight": module.kernel(), "bias": module.bias})
    return conv


class Kernel(nn.Module):
    """The same as a parametrization, which remains until conversion."""

    def __init__(self, module: Standardised):
        super().__init__()
        self.gain, self.eps = module.gain, module.eps

    def forward(self, weight: Tensor) -> Tensor:
        return standard(weight, self.gain, self.eps)


def parametrized(module: Standardised) -> nn.Module:
    conv = plain_conv(module)
    parametrize.register_parametrization(conv, "weight", Kernel(module))
    return conv


GOOD: dict[str, tuple[Callable[[], nn.Module], Any, tuple[int, ...]]] = {
    "static": (lambda: StaticSame(2, 4, 3, 15, stride=2), static_same, (2, 15, 15)),
    "static, even": (lambda: StaticSame(4, 4, 5, 16, stride=2, groups=2), static_same, (4, 16, 16)),
    "dynamic, stride 1": (lambda: DynamicSame(2, 3, 3, dilation=2), fixed_same(0), (2, 7, 8)),
    "dynamic, even kernel": (lambda: DynamicSame(2, 3, (2, 4)), fixed_same(0), (2, 7, 8)),
    "dynamic, no overlap": (lambda: DynamicSame(2, 3, 1), fixed_same(0), (2, 7, 8)),
    "cropped": (lambda: CausalCrop(2, 3, 3, dilation=2), causal, (2, 11)),
    "holding one": (lambda: CausalBlock(2, 3, 4), opened, (2, 9)),
    "standardised": (lambda: Standardised(3, 4, 3, padding=1), standardised, (3, 6, 6)),
    "standardised, made anew": (lambda: Standardised(3, 4, 3), made_anew, (3, 6, 6)),
    "around itself": (lambda: CausalBlock(2, 3, 4), lambda m: nn.Sequential(m), (2, 9)),
    "standardised in float16": (lambda: Standardised(3, 4, 3, padding=1).half(), standardised, (3, 6, 6)),
    "standardised in float64": (lambda: Standardised(3, 4, 3).double(), standardised, (3, 6, 6)),
    "standardised, parametrized": (lambda: Standardised(3, 4, 3, padding=1), parametrized, (3, 6, 6)),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.nasty(67)
def test_a_rule_that_holds(name: str) -> None:
    make, rule, shape = GOOD[name]
    module = make()
    dtype = next(module.parameters()).dtype
    random, default = torch.random.get_rng_state(), torch.get_default_dtype()
    net = convert(nn.Sequential(module, nn.ReLU()), rules={type(module): rule})
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.get_default_dtype() is default
    assert any(isinstance(part, MHSA) for part in net[0].modules())
    x = torch.randn(2, *shape).to(dtype)
    with torch.no_grad():
        assert not convolution_calls(lambda: net(x))
        torch.testing.assert_close(net(x), module(x).relu())


@given(cases())
def test_no_rule_that_holds_is_refused_for_rounding(case: Case) -> None:
    """For every geometry, format and magnitude of torch's own convolutions."""
    base: Any = type(case.conv)
    own = type("Own", (base,), {"forward": lambda self, *args, **options: base.forward(self, *args, **options)})
    module: Any = copy.deepcopy(case.conv)
    module.__class__ = own

    def rule(module: Any) -> nn.Module:
        conv = copy.copy(module)
        conv.__class__ = base
        return conv

    layer = convert(module, rules={own: rule})
    assert torch.equal(layer(case.x), convert(case.conv)(case.x))


def test_without_a_rule_the_reason_names_the_way_out() -> None:
    way_out = (
        "in Python, construct.convert(model, rules={StaticSame: function}) takes the torch layers that compute the same"
    )
    refused = reasons(nn.Sequential(StaticSame(1, 1, 3, 8)), {})
    assert refused == {"0": f"its class has a forward of its own; {way_out}"}
    assert isinstance(convert(nn.Sequential(CausalBlock(1, 1, 2)))[0].conv, MHSA)  # the inner convolution is torch's


def test_what_is_inside_is_the_rules_affair() -> None:
    block = CausalBlock(2, 3, 4)
    net = convert(nn.ModuleDict({"a": block, "b": block, "c": nn.Conv1d(3, 1, 1)}), rules={CausalBlock: opened})
    assert type(net["a"]) is nn.Sequential
    assert net["a"] is net["b"]
    assert isinstance(net["a"][1], MHSA)
    assert isinstance(net["c"], MHSA)
    assert type(block.conv) is nn.Conv1d

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = StaticSame(1, 1, 3, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    asked: list[str] = []
    rules: dict[Any, Any] = {
        Outer: lambda module: asked.append("outer") or static_same(module.inner),
        StaticSame: lambda module: asked.append("inner") or static_same(module),
    }
    convert(nn.Sequential(Outer()), rules=rules)
    assert set(asked) == {"outer"}
    asked.clear()
    chosen = convert(nn.Sequential(Outer()), rules=rules, filter_fn=lambda module, _: not isinstance(module, Outer))
    assert set(asked) == {"inner"}
    assert isinstance(chosen[0].inner[1], MHSA)


def test_the_nearest_class_decides() -> None:
    class Nearer(CausalCrop):
        pass

    def never(module: Any) -> nn.Module:
        raise AssertionError

    assert isinstance(convert(Nearer(1, 2, 3), rules={nn.Conv1d: never, CausalCrop: causal})[1], MHSA)
    assert isinstance(convert(CausalCrop(1, 2, 3), rules={Nearer: never, CausalCrop: causal})[1], MHSA)
    refused = reasons(Nearer(1, 2, 3), {Nearer: never, CausalCrop: causal})
    assert refused == {"": "its rule fails on a copy of it: AssertionError"}


def test_methods_that_are_held_follow() -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = CausalCrop(1, 2, 3)
            self.step = self.conv.forward

        def forward(self, x: Tensor) -> Tensor:
            return self.step(x)

    model, x = Held(), torch.randn(1, 1, 6)
    net = convert(model, rules={CausalCrop: causal})
    with torch.no_grad():
        assert not convolution_calls(lambda: net(x))
        torch.testing.assert_close(net(x), model(x))
    model.step = model.conv.extra_repr  # type: ignore[assignment]
    rule = {CausalCrop: lambda m: causal(m)[1]}
    assert convert(CausalCrop(1, 2, 1), rules=rule)
    model.step = model.conv.fan_out = model.conv._conv_forward  # type: ignore[assignment]
    assert "step is its method _conv_forward, which the layers" in reasons(model, {CausalCrop: causal})["conv"]


def wrong_weight(module: Any) -> nn.Module:
    conv: Any = causal(module)
    conv[1].weight = nn.Parameter(module.weight.clone())
    conv[1].weight[0, 0, 0] *= 1 + 1e-6  # type: ignore[index]
    return conv


def nudged(module: Any) -> nn.Module:
    """A rule that is right in float64 but wrong in the module's own format."""
    conv: Any = causal(module)
    if module.weight.dtype != torch.float64:
        conv[1].weight = nn.Parameter(module.weight * (1 + 1e-3))
    return conv


def other_eps(module: Standardised) -> nn.Module:
    conv = plain_conv(module)
    conv.weight = nn.Parameter(module.kernel(eps=2e-6))
    return conv


REFUTED: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    **{
        f"dynamic, stride {s}, residue {r}": (lambda s=s: DynamicSame(2, 3, 3, stride=s), fixed_same(r), "")
        for s, r in ((2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (20, 7))
    },
    "dynamic, one axis strided": (lambda: DynamicSame(2, 3, 3, stride=(1, 2)), fixed_same(0), ""),
    "kernel below the stride": (lambda: DynamicSame(2, 3, 2, stride=3), fixed_same(0), ""),
    "one weight by 1e-6": (lambda: CausalCrop(2, 3, 3), wrong_weight, "outputs differ by"),
    "another in float32": (lambda: CausalCrop(2, 3, 3), nudged, "outputs differ by"),
    "another epsilon": (lambda: Standardised(3, 4, 3), other_eps, "outputs differ by"),
    "not causal": (lambda: CausalCrop(2, 3, 3), lambda m: plain_conv(m, padding=1), "outputs differ by"),
    "other sizes": (lambda: CausalCrop(2, 3, 3), plain_conv, r"its output is \(2, 3, \d+\) and that of"),
    "not a number": (lambda: CausalCrop(1, 1, 2), lambda m: nn.Sequential(causal(m), nn.Threshold(9.0, float("nan"))), "nan"),
    "fails": (lambda: CausalCrop(2, 3, 3), lambda m: nn.Sequential(causal(m), nn.Linear(7, 7)), "layers of the rule fail"),
    "returns two": (lambda: CausalCrop(2, 3, 3), lambda m: nn.LSTM(1, 1) and Pair(causal(m)), "a Tensor and .* a tuple"),
}  # fmt: skip


class Pair(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x), x


@pytest.mark.parametrize("name", REFUTED)
@pytest.mark.nasty(67)
def test_a_rule_that_samples_refute(name: str) -> None:
    make, rule, words = REFUTED[name]
    module = make()
    (row,) = reasons(nn.ModuleDict({"stem": module}), {type(module): rule}).values()
    assert row.startswith("its rule gives another function: on an input of size ")
    with pytest.raises(AssertionError, match=words or "its output is|outputs differ|layers of the rule fail"):
        raise AssertionError(row)


def test_what_is_refuted_is_left_in_place_where_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(CausalBlock(1, 2, 3), nn.Conv1d(2, 1, 1))
    with caplog.at_level(logging.WARNING, logger="construct.network"):
        net = convert(model, rules={CausalBlock: lambda m: m.conv}, strict=False)
    assert type(net[0]) is CausalBlock
    assert type(net[0].conv) is nn.Conv1d  # no other rule converts a module that the user's rule covers
    assert isinstance(net[1], MHSA)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("left unconverted: 0: CausalBlock: its rule gives another function: on an input of size ")


class Ordered(nn.Module):
    """Expects channels last, so no input in the layers' format fits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] != 1000:
            raise ValueError("channels last")
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


OWN = "its class has a forward of its own; in Python"
UNJUDGED: dict[str, tuple[Any, Any, str]] = {
    "runs nowhere": (Ordered(), lambda m: m.conv, "for it runs on no inputs like 2 x 10: ValueError: channels last"),
    "no module": (CausalCrop(1, 1, 2), lambda m: 5, "its rule gives a int, not an nn.Module"),
    "another format": (
        *(CausalCrop(1, 1, 2).double(), lambda m: nn.Conv1d(1, 1, 2)),
        "weights that are torch.float32 on cpu, and the module has none",
    ),
    "fails": (CausalCrop(1, 1, 2), lambda m: {}["x"], "its rule fails on a copy of it: KeyError: 'x'"),
    "no convolution": (CausalCrop(1, 1, 2), lambda m: nn.Identity(), "the layers of its rule hold no convolution"),
    "itself": (CausalCrop(1, 1, 2), lambda m: m, OWN),
    "around itself": (CausalCrop(1, 1, 2), lambda m: nn.Sequential(nn.Identity(), m), OWN),
}


@pytest.mark.parametrize("name", UNJUDGED)
def test_what_cannot_be_judged_is_refused(name: str) -> None:
    module, rule, reason = UNJUDGED[name]
    ((path, row),) = reasons(nn.Sequential(module), {type(module): rule}).items()
    assert reason in row
    assert path == ("0.1" if name == "around itself" else "0")
    assert name != "runs nowhere" or "cannot be judged, " in row


def test_a_rule_that_knows_the_module_alone_is_told_so() -> None:
    module = CausalCrop(1, 1, 2)
    table = {module: causal(module)}
    row = reasons(module, {CausalCrop: lambda m: table[m]})[""]
    assert row.startswith("its rule fails on a copy of it: KeyError")


@pytest.mark.parametrize(
    "change",
    [lambda m: m.weight.clamp_(min=0), nn.Module.double, lambda m: setattr(m, "bias", None)],
    ids=["numbers", "type", "no bias any more"],
)
def test_a_rule_that_changes_the_module_is_refused_and_the_network_is_as_it_was(change: Any) -> None:
    module = CausalCrop(2, 3, 3)
    before = copy.deepcopy(module)

    def changing(module: Any) -> nn.Module:
        change(module)  # after which the layers of the rule agree with it
        return causal(module)

    refused = reasons(nn.Sequential(module), {CausalCrop: changing})
    assert refused == {"0": "its rule changes the module that it is given: let it change a copy"}
    torch.testing.assert_close(module.weight, before.weight, rtol=0, atol=0)


def test_what_a_rule_returns_is_named_by_the_path_of_its_module() -> None:
    assert [*reasons(nn.Sequential(CausalCrop(1, 1, 2, device="meta")), {CausalCrop: plain_conv})] == ["0"]


def test_rules_of_another_kind_are_an_error() -> None:
    for rules in ({"CausalCrop": causal}, {CausalCrop: 5}):
        with pytest.raises(TypeError, match="rules go from classes to functions"):
            construct.convert(nn.ReLU(), rules=rules)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=3))
def test_sizes_have_every_residue_modulo_the_stride(axes: Any) -> None:
    kernel, stride, dilation = (tuple(row) for row in zip(*axes, strict=True))
    kind = [nn.Conv1d, nn.Conv2d, nn.Conv3d][len(axes) - 1]
    judged = sizes([geometry_of(kind(1, 1, kernel, stride, dilation=dilation))])
    for axis, (k, s, d) in enumerate(axes):
        fitting = [size[axis] for size in judged if size[axis] >= d * (k - 1) + 1]
        assert {n % s for n in fitting} == set(range(s))
        assert max(fitting) > d * (k - 1) + s
        assert min(size[axis] for size in judged) <= d * (k - 1) + 1 + axis
    assert all(len(set(size)) > 1 for size in judged) or len(axes) == 1 or len(set(axes)) > 1
