"""Unusual modules: subclasses, hooks, parametrizations, sharing, wrappers, and what the check does not see.

The numbers are the rows of docs/nasty_inputs.md.
"""

import copy
import functools
import math
import threading
import types
import warnings
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import construct
import verify
from commands import Command
from construct import MHSA, UnsupportedLayer
from construct.command.arguments import parse
from construct.encoding import quadratic
from construct.modules.convolutions import FARTHEST
from construct.modules.wrappers import unwrapped
from runs import convolution_calls
from verify.experiment.sweep.models import Network


def image(batch: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, 9, 8, generator=torch.Generator().manual_seed(1))


convert: Any = construct.convert


def refusals(model: nn.Module) -> dict[str, tuple[str, str]]:
    """path → (class, reason) for each module that cannot be converted."""
    with pytest.raises(UnsupportedLayer) as caught:
        convert(model)
    return {row.path: (row.kind, row.reason) for row in caught.value.rows}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "construct.network"]


class OneConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_a_tap_beyond_the_precision_of_the_scores_is_refused(kind: Any) -> None:
    """Beyond it neighbours may score the same, and the attention on them is shared."""
    assert construct.conv_to_mhsa(kind(1, 1, 2, dilation=FARTHEST)).heads == 2
    (row,) = refusals(kind(1, 1, 3, dilation=FARTHEST + 1)).values()
    assert "looks 16,777,217 positions away" in row[1]
    for far, tied in ((FARTHEST, 0), (94_906_267, 2)):
        delta = torch.arange(far - 3, far + 1, dtype=torch.float64)
        (square, linear), v = quadratic.r((delta,)), quadratic.v((float(far),), 1024.0)
        scores = v[0] * square + v[1] * linear
        assert int((scores[:-1] >= scores[-1]).sum()) == tied


def test_row_23_hooks_elsewhere_in_the_network_are_kept_and_run() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())
    x = image()
    model[1].register_forward_hook(lambda module, args, output: 2 * output)
    net = convert(model)
    torch.testing.assert_close(net(x), model(x))
    assert bool((net(x) - 2 * net[0](x).relu()).abs().max() == 0)


class CondConv2d(nn.Module):
    """Mixes a kernel for each image from four, like timm's."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel_size, self.weight = (3, 3), nn.Parameter(torch.randn(4, 3 * 3 * 9) / 9)

    def forward(self, x: Tensor) -> Tensor:
        mix = torch.softmax(x.mean((2, 3)) @ torch.ones(3, 4), 1) @ self.weight
        return torch.cat([nn.functional.conv2d(i[None], k.view(3, 3, 3, 3)) for i, k in zip(x, mix, strict=True)])


class DeformConv2d(nn.Module):
    """Has its own kernel, and an inner convolution that computes where to look, like mmcv's."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel_size, self.weight = (3, 3), nn.Parameter(torch.randn(3, 3, 3, 3) / 9)
        self.conv_offset = nn.Conv2d(3, 1, 3)


class ConvBlock(OneConvolution):
    """Not a convolution, but contains one and copies an attribute or two of it."""

    kernel_size = (3, 3)

    @property
    def weight(self) -> Tensor:
        return self.conv.weight


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning", "ignore:.*torch.ao.quantization:DeprecationWarning")
def test_row_25_other_convolutions_are_left_and_listed(caplog: pytest.LogCaptureFixture) -> None:
    quantised = torch.ao.nn.quantized.Conv2d(3, 3, 3)
    modules = {"cond": CondConv2d(), "deform": DeformConv2d(), "quantised": quantised, "block": ConvBlock()}
    model = nn.ModuleDict(modules)
    refused = refusals(model)
    kinds = {path: kind for path, (kind, _) in refused.items()}
    assert kinds == {"cond": "CondConv2d", "deform": "DeformConv2d", "quantised": "Conv2d"}
    assert "quantised" in refused["quantised"][1]
    net = convert(model, strict=False)
    assert isinstance(net["deform"].conv_offset, MHSA)
    assert isinstance(net["block"].conv, MHSA)
    assert len(said(caplog)) == 3


def normed() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = nn.utils.weight_norm(nn.Conv2d(3, 4, 3))
    new = parametrizations.spectral_norm(nn.Conv2d(4, 4, 1))
    return nn.Sequential(old, nn.BatchNorm2d(4), new, nn.Conv2d(4, 2, 1))


@pytest.fixture
def state(from_conv: Command, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the state dict of a network of this file; returns the words of the command line for it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def write(build: Any) -> tuple[object, ...]:
        name = build.__name__
        Path("nets.py").write_text(f"from {Path(__file__).stem} import {name}\n")
        torch.save(build().state_dict(), f"{name}.pt")
        return f"{name}.pt", "--model-file", f"nets.py:{name}"

    return write


SIZE = ("--input-size", 3, 8, 8)


old_weight_norm = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")


@old_weight_norm
def test_row_26_an_older_weight_norm_elsewhere_does_not_stop_the_copy() -> None:
    """After a call it stores an autograd result as ``weight``, which ``copy.deepcopy`` refuses."""
    normed = nn.utils.weight_norm(nn.Linear(4, 2))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), normed)
    model(image()).sum().backward()
    net = convert(model)
    torch.testing.assert_close(net(image()), model(image()))
    assert net[3].weight_g is not model[3].weight_g


class Counting(nn.Module):
    """Counts its calls in training, as spectral_norm turns its vectors in each."""

    calls = 0

    def forward(self, kernel: Tensor) -> Tensor:
        Counting.calls += self.training
        return 2 * kernel


def counting() -> nn.Module:
    convs, calls = (nn.Conv1d(1, 2, 3), nn.ConvTranspose1d(2, 2, 3)), Counting.calls
    net = nn.Sequential(*(parametrize.register_parametrization(conv, "weight", Counting()) for conv in convs))
    Counting.calls = calls
    return net


def test_row_26_no_weight_is_read_in_training(state: Any, from_conv: Command) -> None:
    words = state(counting)
    from_conv.prints(*words)
    from_conv.prints(*words, "--input-size", 1, 9, "--report", "page.html")
    assert Counting.calls == 0
    layers: Any = Network(words, parse(words)).run()
    for layer in layers:
        assert [row.verdict for row in layer.run()] == ["PROVED"]
    net: Any = counting()
    converted = convert(net)
    verify.write_report(
        "page.html", net, converted, certificates={"0": verify.certify(net[0], converted[0], grid=(9,))}
    )
    assert (Counting.calls, net.training, converted.training) == (0, True, True)


class Failing(nn.Module):
    def forward(self, kernel: Tensor) -> Tensor:
        raise KeyError("no such\nkey")


def test_row_26_a_parametrization_that_fails_is_refused_in_one_line() -> None:
    conv = nn.Conv2d(3, 3, 1)
    parametrize.register_parametrization(conv, "weight", Failing(), unsafe=True)
    assert "cannot be worked out" in refusals(nn.Sequential(conv))["0"][1]


def test_row_26_the_command_says_so_and_proves_it(state: Any, from_conv: Command) -> None:
    options = (*state(normed), *SIZE)
    out = from_conv.prints(*options)
    assert "0: parametrization folded into its eval-mode weight: WeightNorm of weight" in out
    assert "(the model): not rechecked: layer '2' is missing in" in out
    assert "2: parametrization folded into its eval-mode weight: SpectralNorm of weight" in out
    assert "compared in eval mode; batch normalisation and dropout are as they were" in out
    facts = from_conv.facts(*options)
    folded = [["WeightNorm of weight"], ["SpectralNorm of weight"], []]
    assert [layer["folded"] for layer in facts["layers"]] == folded
    assert [layer["verdict"]["name"] for layer in facts["layers"]] == ["PROVED"] * 3
    assert facts["network"]["same_expression"] is True


class TiedAcross(nn.Module):
    """A convolution tied to a transposed one, as in autoencoders; another with groups; and a use outside convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 6, 3, bias=False)
        self.again = nn.Conv2d(3, 6, 3, stride=2, bias=False)
        self.up = nn.ConvTranspose2d(6, 3, 3, bias=False)
        self.grouped = nn.Conv2d(6, 6, 3, groups=2, bias=False)
        self.again.weight = self.up.weight = self.grouped.weight = self.down.weight
        self.scale = nn.Conv2d(3, 3, 1)
        self.shift = self.scale.bias

    def forward(self, x: Tensor) -> Tensor:
        assert self.shift is not None
        return self.scale(self.up(self.grouped(nn.functional.pad(self.down(x), (1, 1, 1, 1))))) + self.shift.mean()


def test_row_27_ties_that_come_undone_are_told(caplog: pytest.LogCaptureFixture) -> None:
    model = TiedAcross()
    net = convert(model)
    assert net.down.w_val is net.again.w_val
    assert net.up.w_val is not net.down.w_val
    assert sorted(said(caplog)) == [
        "down: weight was shared with up.weight and 1 more, and is no longer: both start from its value",
        "shift was shared with scale.bias, and is no longer: both start from its value",
    ]
    torch.testing.assert_close(net(image()), model(image()))


class Labelled(nn.Parameter):
    """A parameter subclass without changes."""


def test_a_parameter_that_takes_no_operation_over_is_converted() -> None:
    conv = nn.Conv2d(3, 3, 1)
    conv.weight = Labelled(torch.rand(3, 3, 1, 1))
    x = torch.randn(1, 3, 4, 4)
    torch.testing.assert_close(construct.conv_to_mhsa(conv)(x), conv(x))


def block() -> Any:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def with_compiled_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward, backend="eager")
    return model


@pytest.mark.parametrize(
    ("wrap", "removed"),
    [
        (nn.DataParallel, True),
        (compiled, True),
        (lambda model: compiled(nn.DataParallel(model)), True),
        (compiled_in_place, False),
        (with_compiled_forward, False),
    ],
    ids=["parallel", "compiled", "both", "in place", "forward"],
)
def test_row_39_a_wrapper_around_the_network_is_taken_off(wrap: Any, removed: bool, caplog: pytest.LogCaptureFixture):
    model, x, seen = block(), image(), []
    net = convert(wrap(model), filter_fn=lambda module, _: seen.append(module) is None)
    assert model[0] in seen  # a filter may compare modules with the network's own
    assert type(net) is nn.Sequential
    assert isinstance(net[0], MHSA)
    assert any("removed; wrap the converted network again" in line for line in said(caplog)) == removed
    torch.testing.assert_close(net(x), model(x))
    with torch.compiler.set_stance("force_eager"):  # a compiled forward cannot be looked into
        assert not convolution_calls(net, x)
    nn.init.constant_(net.get_parameter("0.b_out"), 9.0)
    assert bool((net(x) > model(x)).all())


@pytest.mark.parametrize("wrap", [nn.DataParallel, compiled], ids=["parallel", "compiled"])
def test_row_39_a_wrapper_inside_the_network_is_taken_off(wrap: Any) -> None:
    inner = block()
    wrapped = wrap(inner)
    model = nn.ModuleDict({"backbone": wrapped, "again": nn.ModuleList([wrapped, inner]), "head": nn.Conv2d(4, 1, 1)})
    net: Any = convert(model)
    assert type(net["backbone"]) is nn.Sequential
    assert net["backbone"] is net["again"][0] is net["again"][1]
    assert isinstance(net["backbone"][0], MHSA)
    assert model["backbone"] is wrapped
    torch.testing.assert_close(net["backbone"](image()), inner(image()))
    assert unwrapped(inner) == (inner, [])


def test_row_39_sharded_weights_are_refused() -> None:
    class FullyShardedDataParallel(OneConvolution):
        pass

    assert "sharded" in refusals(nn.Sequential(FullyShardedDataParallel()))["0"][1]


def test_row_39_torchscript_is_refused_by_name() -> None:
    class Script(torch.jit.ScriptModule):
        """Stand-in for torch.jit.script of a convolution, for which torch 2.13 warns."""

        original_name = "Conv2d"  # type: ignore[assignment]

    assert "TorchScript" in refusals(nn.Sequential(Script()))["0"][1]


class TwoInputs(OneConvolution):
    def forward(self, x: Tensor, mask: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.conv(x * mask) * scale


def test_row_40_several_inputs_need_examples_and_the_layers_need_none(state: Any, from_conv: Command) -> None:
    options = state(TwoInputs)
    line = from_conv.refuses(*options, *SIZE)
    assert "mask" in line
    assert "every layer is checked alone" in line
    assert "same sums  PROVED" in from_conv.prints(*options)


@pytest.mark.parametrize("form", [tuple, list, dict])
def test_row_40_the_command_takes_example_inputs(form: Any, state: Any, from_conv: Command) -> None:
    options, inputs = (*state(TwoInputs), "--example-inputs", "inputs.pt"), (image(), torch.ones(9, 8))
    torch.save(dict(zip(("x", "mask"), inputs, strict=True)) if form is dict else form(inputs), "inputs.pt")
    out = from_conv.prints(*options)
    assert "on the example inputs in inputs.pt" in out
    assert "the same expression" in out
    facts = from_conv.facts(*options)
    assert [(layer["exercised"], layer["calls"]) for layer in facts["layers"]] == [(True, 1)]
    assert facts["network"]["input_size"] is None


def test_row_40_example_inputs_that_do_not_fit(state: Any, from_conv: Command) -> None:
    options = (*state(TwoInputs), "--example-inputs", "inputs.pt")
    for wrong, reason in (
        (image(), "does not run on the example inputs: TypeError"),
        ("a text", "a str, not the inputs of a network"),
        (nn.Linear(1, 1), "a Linear, not the inputs of a network"),
        ((image() * math.nan, torch.ones(9, 8)), "not finite"),
    ):
        torch.save(wrong, "inputs.pt")
        assert reason in from_conv.refuses(*options)
    assert "no such file" in from_conv.refuses(*options[:-1], "none.pt")
    assert "not allowed with argument" in from_conv.refuses(*options, *SIZE)


class InPlace(OneConvolution):
    """Changes its input, like a first layer with ``inplace=True``."""

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.mul_(3))


def test_row_40_a_network_that_changes_its_input_is_given_its_own_copy(state: Any, from_conv: Command) -> None:
    network = from_conv.facts(*state(InPlace), *SIZE)["network"]
    assert network["max_abs"] < 1e-4
    assert network["same_expression"] is True


class Auxiliary(OneConvolution):
    """Has a head for training only, like Inception."""

    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return (y, self.aux(y)) if self.training else y


class PartlyFunctional(OneConvolution):
    """Has a weight without a module, and a convolution called without its module."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.rand(4, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(self.conv(x), self.kernel)


@pytest.mark.parametrize("certify", [(), ("--no-certify",)], ids=["certified", "sampled"])
def test_row_41_what_was_not_exercised_is_converted_said_and_not_counted(certify: Any, state: Any, from_conv: Command):
    options = (*state(Auxiliary), *SIZE, *certify)
    out = from_conv.prints(*options)
    assert "aux: not exercised by the check" in out
    assert "on samples: 1 of 2 layers CHECKED" in out
    facts = from_conv.facts(*options, "--force")
    assert facts["checked"] == 1
    assert [layer["exercised"] for layer in facts["layers"]] == [True, False]
    assert "aux.w_val" in torch.load("Auxiliary.mhsa.pt", weights_only=True)


def test_row_42_functional_convolutions_are_counted_and_fail(state: Any, from_conv: Command) -> None:
    options = (*state(PartlyFunctional), *SIZE)
    out = from_conv.prints(*options, code=1)
    assert "convolution calls: 2 in the original, 1 in the converted (2 executed, 1 converted)" in out
    assert "left unconverted: convolutions that the network calls as functions" in out
    from_conv.prints(*options, "--partial")
    facts = from_conv.facts(*options, code=1)
    assert facts["network"]["convolutions"] == {"executed": 2, "converted": 1}


class Held(nn.Module):
    """Calls the convolution by every reference except its own name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.step = self.conv.forward
        self.calls = {"a": [self.conv.__call__], "b": functools.partial(self.conv.forward)}
        self.options = SimpleNamespace(hidden=nn.Conv2d(3, 3, 1))
        self.other = nn.Conv2d(3, 3, 1).forward  # not reachable otherwise
        self.queue, self.identity, hooked = deque([nn.Conv2d(3, 3, 1)]), nn.Identity(), nn.Conv2d(3, 3, 1)
        self.identity.register_forward_hook(lambda module, args, x: hooked(x))

    def forward(self, x: Tensor) -> Tensor:
        for call in (self.step, self.calls["a"][0], self.calls["b"], self.options.hidden, self.other, self.queue[0]):
            x = torch.tanh(call(x))
        return self.identity(x)


class Slotted:
    __slots__ = ("conv",)


class Boxed(nn.Module):
    """Calls a convolution that an object holds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.box = nn.Conv2d(3, 3, 1), Slotted()
        self.box.conv = nn.Conv2d(3, 3, 1, bias=False)
        nn.init.ones_(self.box.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.box.conv(self.conv(x))


def test_row_23_what_an_object_holds_is_left_if_that_is_allowed(state: Any, from_conv: Command) -> None:
    options = (*state(Boxed), *SIZE)
    assert "left unconverted: box: Conv2d: held by an object" in from_conv.prints(*options, "--partial")
    facts = from_conv.facts(*options, code=1)
    assert [row["class"] for row in facts["left_unconverted"]] == ["Conv2d"]
    network, x = Boxed(), image()
    with torch.no_grad():
        expected = convert(network, strict=False)(x)
        torch.save(convert(network, strict=False).state_dict(), "net.pt")
        assert torch.equal(construct.load("net.pt", model=Boxed())(x), expected)


class Locked(OneConvolution):
    """Holds a lock, which no deep copy takes."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return self.conv(x)


class MadeAnew(Locked):
    """Follows the advice of the message."""

    def __getstate__(self) -> Any:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.lock = threading.Lock()


class CopiesToItself(OneConvolution):
    def __deepcopy__(self, memo: Any) -> Any:
        return self


def test_a_module_that_copies_to_itself_is_named(state: Any, from_conv: Command) -> None:
    reason = "it cannot be copied: a copy of it is the module itself (change its __deepcopy__ or __reduce__)"
    inner = CopiesToItself()
    assert refusals(nn.Sequential(nn.ReLU(), inner)) == {"1": ("CopiesToItself", reason)}
    assert type(inner.conv) is nn.Conv2d
    assert f"CopiesToItself: {reason}" in from_conv.refuses(*state(CopiesToItself), *SIZE)


@pytest.mark.nasty(73)
@pytest.mark.parametrize("hold", [threading.Lock, lambda: (n for n in range(3)), Path(__file__).open])
def test_what_cannot_be_copied_is_named_with_its_path(hold: Any) -> None:
    held = hold()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(OneConvolution()))
    model[1][0].things = {"held": [held]}  # type: ignore[index, union-attr]
    ((path, (kind, reason)),) = refusals(model).items()
    assert (path, kind) == ("1.0.things", "dict")
    assert reason.startswith("it cannot be copied (TypeError: cannot pickle '")
    assert len(reason.splitlines()) == 1
    getattr(held, "close", lambda: None)()


def test_the_command_names_what_cannot_be_copied_and_its_advice_works(state: Any, from_conv: Command) -> None:
    line = from_conv.refuses(*state(Locked), *SIZE)
    assert line.startswith("error: Locked.pt: lock: lock: it cannot be copied (TypeError: cannot pickle '_thread.lock'")
    from_conv.prints(*state(MadeAnew), *SIZE)
    torch.testing.assert_close(convert(MadeAnew())(image()).shape, (2, 4, 7, 6))


def test_networks_may_be_nested_deep() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 3))
    for _ in range(250):
        model = nn.Sequential(model)
    net: Any = convert(model)
    for _ in range(250):
        model, net = model[0], net[0]
    torch.testing.assert_close(net(image()), model(image()))


class InClosures(nn.Module):
    """Functions with modules in their closures, some of them not reachable otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        hidden, series = nn.Conv2d(3, 3, 1), [nn.Conv2d(3, 3, 1)]
        self.first = lambda x: self.conv(x)
        self.second = [lambda x, conv=self.conv: conv(hidden(x))]

        def third(x: Tensor, *, scale: float = 2.0, last: nn.Module = series[0]) -> Tensor:
            return scale * last(self.first(x)) + series[0](x) if scale else third(x)

        self.third = third
        self.plain = lambda x: x + offset
        offset = torch.ones(1)
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(self.third(self.second[0](self.first(x))))


@pytest.mark.parametrize(("make", "calls"), [(Held, 7), (InClosures, 6)])
def test_row_23_methods_and_functions_that_hold_modules_follow_the_conversion(make: Any, calls: int) -> None:
    model, x = make(), image()
    net = convert(model)
    with torch.no_grad():
        assert sum(convolution_calls(model, x).values()) == calls
        assert not convolution_calls(net, x)
        expected = model(x)
        torch.testing.assert_close(net(x), expected)
        net.conv.b_out.fill_(7.0)
        assert not torch.allclose(net(x), expected)
        assert torch.equal(model(x), expected)
    if make is Held:
        assert net.step.__self__ is net.conv
    else:
        assert net.first is not model.first
        assert net.plain is model.plain


def test_row_23_functions_inside_a_wrapper_follow_too() -> None:
    net: Any = convert(nn.Sequential(nn.DataParallel(InClosures())))
    before = net(image())
    nn.init.constant_(net[0].conv.b_out, 7.0)
    assert (net(image()) - before).abs().max() > 1


def test_row_23_held_in_a_way_that_cannot_follow_is_refused() -> None:
    first, second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
    model: Any = nn.Sequential(first, second)
    model.inner = second._conv_forward
    assert refusals(model) == {"1": ("Conv2d", "inner is its method _conv_forward, which attention layers lack")}
    assert isinstance(convert(model, strict=False)[0], MHSA)
    model.inner = types.MethodType(functools.partial(print), second)  # has no name
    assert refusals(model) == {"1": ("Conv2d", "inner is its method partial, which attention layers lack")}
    model.inner = types.MethodType(functools.partial(print), model)  # of the network, which stays
    assert isinstance(convert(model)[1], MHSA)


PRUNED: dict[str, tuple[Any, int, str]] = {
    "in_channels": (nn.Conv2d(8, 4, 3, padding=1), 1, "in_channels"),
    "out_channels": (nn.Conv1d(8, 6, 3, bias=False), 0, "out_channels"),
    "transposed in_channels": (nn.ConvTranspose2d(8, 4, 3, stride=2), 0, "in_channels"),
}
"""A convolution, the axis of its weight that pruning shortens, and the attribute that then says what was."""


@pytest.mark.parametrize("name", PRUNED)
def test_row_22_channels_pruned_away_are_refused_and_the_way_out_works(name: str) -> None:
    """Torch reads only the weight.  The certificate, which reads the attributes, says the same."""
    conv, axis, attribute = PRUNED[name]
    conv = copy.deepcopy(conv)
    conv.weight = nn.Parameter(conv.weight.detach().narrow(axis, 0, 4))
    x = torch.randn(2, 4 if "in" in name else 8, *(6,) * (conv.weight.dim() - 2))
    expected = conv(x)
    with pytest.raises(construct.UnsupportedLayer, match=rf"set its {attribute} to 4\Z") as refusal:
        construct.convert(nn.Sequential(conv))
    assert "\n" not in str(refusal.value)
    setattr(conv, attribute, 4)
    layer = construct.conv_to_mhsa(conv)
    torch.testing.assert_close(layer(x), expected)
    grid = tuple(x.shape[2:])
    assert verify.certify(conv, layer, grid=grid).verdict.name == "PROVED"
