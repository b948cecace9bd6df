"""Comparison of two networks on the same inputs: their calls, and their outputs against a float64 run."""

import copy
import dataclasses
import random
import threading
import warnings
from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import construct
import verify
from construct.command import demo
from networks import NETWORKS
from verify.argument.verdicts import same_expression
from verify.samples import accuracy as accuracy_module
from verify.samples.accuracy import accuracy
from verify.samples.network import CallComparison, compare_calls, compare_numbers, in_float64, traces
from verify.samples.sampling import check_on_activations, evaluating
from verify.samples.trace import Activation, TracedLayer, trace, untraced

SCALE = torch.tensor([2.0])


class After(nn.Module):
    """A convolution followed by some operation."""

    def __init__(self, then: Callable[..., Any]):
        super().__init__()
        self.conv, self.then = nn.Conv1d(4, 4, 3, padding=1), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.conv(x))


class OneConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)


def pairs_of(model: nn.Module, net: nn.Module) -> dict[str, Any]:
    convs, layers = dict(model.named_modules()), dict(net.named_modules())
    return {path: (convs[path], layer) for path, layer in layers.items() if isinstance(layer, construct.MHSA)}


def runs(model: nn.Module, inputs: list[Any], net: nn.Module | None = None) -> tuple[list[Any], list[Any], list[Any]]:
    """Traces of the original, its conversion, and the original in float64."""
    net = construct.convert(model) if net is None else net
    exact = copy.deepcopy(model).double()
    pairs = pairs_of(model, net)
    twins = dict(exact.named_modules())
    with evaluating(model, net, exact):
        ours = traces(model, inputs, {conv: path for path, (conv, _) in pairs.items()})
        theirs = traces(net, inputs, {layer: path for path, (_, layer) in pairs.items()})
        reference = traces(exact, in_float64(inputs), {twins[path]: path for path in pairs})
    return ours, theirs, reference


def compared(model: nn.Module, *inputs: Any, net: nn.Module | None = None) -> CallComparison:
    return compare_calls(*runs(model, list(inputs), net)[:2])


def difference(model: nn.Module, *inputs: Any, net: nn.Module | None = None) -> str:
    """The first difference in the calls, or an empty string."""
    return compared(model, *inputs, net=net).difference or ""


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


# ---- the same calls --------------------------------------------------------------------------------------------------------


class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


def branching(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return torch.sigmoid(x) * x
    return torch.tanh(x)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # people have such networks
    scripted = torch.jit.script(branching)


def in_place(x: Tensor) -> Tensor:
    view = x[:, :1]
    view.mul_(2)
    out = torch.zeros(4, 9)
    out[1:3] = x[0, 1:3]
    out.add_(x[0])
    return out + x


def into_empty_memory(x: Tensor) -> Tensor:
    buffer = x.new_empty(2 * x.shape[0], *x.shape[1:])
    buffer[: x.shape[0]] = x
    buffer[x.shape[0] :] = SCALE
    torch.add(buffer, 1, out=buffer)
    return torch.mul(buffer, 2, out=torch.empty(0))


def steered_by_shapes(x: Tensor) -> Tensor:
    if x.shape[-1] > 3 and x.dim() == 3 and len(x) == x.size(0) and x.is_contiguous():
        x = F.adaptive_avg_pool1d(x, x.shape[-1] // 2)
    half, *_ = torch.stack([part * (i + 1) for i, part in enumerate(x.split(2, dim=1))]).unbind(0)
    return torch.cat([half, F.relu(-half[..., ::2])], dim=-1).view(x.shape[0], -1) + torch.ones(1)


def without_functions(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return x.relu() + 1


SAME: dict[str, Callable[..., Any]] = {
    "in place": in_place,
    "memory without numbers": into_empty_memory,
    "shapes": steered_by_shapes,
    "a branch": lambda x: x if x.sum() > 0 else -x,
    "a number read off": lambda x: x / x.abs().max().item(),
    "an index read off": lambda x: x[..., int(x.abs().sum((0, 1)).argmax())],
    "an own function": Sigmoid.apply,
    "TorchScript": lambda x: scripted(x),
    "functions of torch switched off": without_functions,
    "dropout that is always on": lambda x: F.dropout(x),
    "random numbers": lambda x: x + torch.rand(4, 1) + random.random() + float(np.random.rand()),  # noqa: NPY002
    "an old constant": lambda x: x * SCALE,
    "an exception": lambda x: raising(x),
    "inference mode": torch.inference_mode()(lambda x: F.relu(x) + 1),
}


def raising(x: Tensor) -> Tensor:
    try:
        if x.sum() > -1e9:
            raise ValueError
    except ValueError:
        return x * 3
    return x


@pytest.mark.parametrize("name", SAME)
def test_the_same_calls_are_seen_as_such(name: str) -> None:
    """And no hook is left behind and no number changed."""
    model = After(SAME[name])
    before = copy.deepcopy(model.state_dict())
    calls = compared(model, noise(2, 4, 9), noise(1, 4, 9))
    assert (calls.difference, calls.untraced) == (None, ())
    assert (calls.converted, calls.layers, calls.executed, calls.left) == (1, ("conv",), 1, 0)
    assert calls.compared >= 2
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("name", NETWORKS)
def test_common_networks_make_the_same_calls(name: str) -> None:
    model, x = NETWORKS[name].ready()
    calls = compared(model, x[:1])
    assert (calls.difference, calls.untraced) == (None, ())
    assert calls.converted == calls.executed > 0 == calls.left


def test_a_layer_is_one_call_whatever_is_in_it() -> None:
    """Padding, parametrizations and the attention's own products do not appear in the trace."""
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"))
    model = nn.Sequential(conv, nn.ReLU())
    ours, theirs, _ = runs(model, [noise(1, 2, 5, 5)])
    for (run,) in (ours, theirs):
        assert [call.name for call in run.calls] == ["the layer 0", "relu in 1"]
        assert run.calls[0].function == TracedLayer("0")


def test_a_layer_within_a_layer_is_part_of_its_call() -> None:
    class Outer(nn.Conv1d):
        def __init__(self) -> None:
            super().__init__(4, 4, 1)
            self.inner = nn.Conv1d(4, 4, 1)

        def forward(self, input: Tensor) -> Tensor:
            return super().forward(self.inner(2 * input))

    outer, x = Outer(), noise(1, 4, 3)
    model = nn.Sequential(nn.ReLU(), outer)
    record = trace(lambda net, x: net(x), model, x, {outer: "outer", outer.inner: "inner"})
    assert [call.name for call in record.calls] == ["relu in 0", "the layer outer"]
    assert record.calls[1].arguments == (Activation(1, 0),)


def test_attention_that_was_there_before_is_one_call_too() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), construct.conv_to_mhsa(nn.Conv2d(4, 2, 3)))
    net = construct.convert(model)
    calls = compare_calls(
        traces(model, [noise(1, 2, 6, 6)], {model[0]: "0"}),
        traces(net, [noise(1, 2, 6, 6)], {net[0]: "0"}),  # type: ignore[index]
    )
    assert (calls.difference, calls.untraced, calls.compared, calls.converted, calls.layers) == (None, (), 3, 1, ("0",))


# ---- other calls -----------------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Inspects its own modules."""

    def __init__(self, kind: str):
        super().__init__()
        self.conv, self.kind = nn.Conv2d(2, 3, 3), kind

    def forward(self, x: Tensor) -> Any:
        count = sum(isinstance(module, nn.Conv2d) for module in self.modules())
        y = self.conv(x)
        kinds: dict[str, Callable[[], Any]] = {
            "scale": lambda: y * count,
            "branch": lambda: F.relu(y) if count else F.silu(y),
            "constant": lambda: y + torch.full((1,), float(count)),
            "more calls": lambda: y if count else y + 1,
            "fewer calls": lambda: y + 1 if count else y,
            "plain": lambda: (y, count),
            "order": lambda: F.relu(y) + F.silu(y) if count else F.silu(y) + F.relu(y),
            "twice": lambda: self.conv(x) if count else y,
            "swapped": lambda: torch.sub(*(y, y + 1)[:: 1 if count else -1]),
            "shape": lambda: y[:, :2] if count else y,
        }
        return kinds[self.kind]()


COUNTING = {
    "scale": "call 2 of 2, mul: 0 goes in, in the original 1",
    "branch": "call 2 of 2, relu: the converted network calls silu",
    "constant": "call 2 of 2, add: a constant goes in that differs",
    "more calls": "after 1 calls, the converted network alone goes on, with add",
    "fewer calls": "after 1 calls, the original alone goes on, with add",
    "plain": "returned value 1: 0 goes in, in the original 1",
    "order": "call 2 of 4, relu: the converted network calls silu",
    "twice": "after 1 calls, the original alone goes on, with the layer conv",
    "swapped": "call 3 of 3, sub: the result of call 2 goes in, in the original the result of call 1",
    "shape": "after 1 calls, the original alone goes on, with __getitem__",
}


@pytest.mark.parametrize("kind", COUNTING)
def test_other_calls_are_named(kind: str) -> None:
    calls = compared(Counting(kind), noise(1, 2, 6, 6))
    assert (calls.difference or "").startswith(COUNTING[kind]), calls.difference
    assert not same_expression(calls, {}, {})


class Odd(nn.Module):
    """Python code that acts only if it finds a convolution."""

    def __init__(self, then: Callable[..., Any]):
        super().__init__()
        self.conv, self.then = nn.Conv2d(2, 3, 3), then
        self.weight = nn.Parameter(torch.ones(5000))

    def forward(self, x: Tensor) -> Any:
        return self.then(self, self.conv(x), sum(isinstance(module, nn.Conv2d) for module in self.modules()))


def from_a_list(net: Any, y: Tensor, count: int) -> Tensor:
    return y * (y.flatten()[:2] * 0 + torch.tensor([0.0, 1.0])).tolist()[count]


def zero_of_a_sign(net: Any, y: Tensor, count: int) -> Tensor:
    zero = (y.mean() * 0).abs().item()
    return y / (zero if count else -zero)


def changed_and_back(net: Any, y: Tensor, count: int) -> Tensor:
    net.weight.mul_(1 + count)
    z = y.mean() * net.weight
    net.weight.div_(1 + count)
    return z


def of_everyone(net: Any, y: Tensor, count: int) -> Tensor:
    return y.clamp(max=EVERYONES.fill_(20 + count))


def beside_the_weight(net: Any, y: Tensor, count: int) -> Tensor:
    return torch.add(y.mean(), net.conv.weight, alpha=1 + count)


EVERYONES = torch.zeros(1)
HIDDEN = [from_a_list, zero_of_a_sign, changed_and_back, of_everyone, beside_the_weight]


@pytest.mark.parametrize("then", HIDDEN)
def test_other_arguments_are_named_wherever_they_come_from(then: Callable[..., Any]) -> None:
    assert "goes in" in difference(Odd(then), noise(1, 2, 6, 6))


def test_arrays_of_numbers_are_compared() -> None:
    class Picks(nn.Module):
        def __init__(self, other: bool):
            super().__init__()
            self.conv, self.other, self.places = nn.Conv2d(2, 3, 3), other, np.array([0, 2])

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return y[:, self.places + (self.other and isinstance(self.conv, nn.Conv2d)) * np.array([1, 0])]

    calls = compared(Picks(False), noise(1, 2, 6, 6))
    assert (calls.difference, calls.untraced) == (None, ())
    assert difference(Picks(True), noise(1, 2, 6, 6))


def small() -> tuple[nn.Sequential, Any, Tensor]:
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.LeakyReLU(0.1), nn.Conv2d(3, 2, 2), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3)).eval()
    return model, construct.convert(model), noise(1, 2, 6, 5)


def one_ulp(tensor: Tensor) -> None:
    with torch.no_grad():
        flat = tensor.view(-1)
        flat[1] = torch.nextafter(flat[1], torch.tensor(float("inf")))


FAULTS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a running mean": ("1", lambda m: one_ulp(m.running_mean), "batch_norm in 1: a constant goes in that differs"),
    "an epsilon": ("1", lambda m: setattr(m, "eps", 1e-3), "batch_norm in 1: 0.001 goes in"),
    "a slope": ("2", lambda m: setattr(m, "negative_slope", 0.11), "leaky_relu in 2: 0.11 goes in"),
    "another pooling": ("4", lambda m: setattr(m, "dilation", (1, 1)), "max_pool2d in 4: "),
    "a weight after it all": ("6", lambda m: one_ulp(m.weight), "linear in 6: a constant goes in that differs"),
    "a hook": ("2", lambda m: m.register_forward_hook(lambda m, x, y: y + 0), "the converted network calls add"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_between_the_layers_is_named(fault: str) -> None:
    model, net, x = small()
    where, spoil, named = FAULTS[fault]
    spoil(net.get_submodule(where))
    assert named in difference(model, x, net=net)


def test_large_constants_are_compared_to_the_last_place_but_for_the_sign_of_zero() -> None:
    """Only a digest of these is kept, no copy."""

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 4, 3, padding=1)
            table = torch.full((4, 2000), 1e-20)
            table[0, 0] = 0.0
            self.table = nn.Buffer(table)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) + self.table

    model, x = Adds(), noise(1, 4, 2000)
    net: Any = construct.convert(model)
    net.table[0, 0] = -0.0
    assert compared(model, x, net=net).difference is None
    one_ulp(net.table)
    assert "add: a constant goes in that differs" in difference(model, x, net=net)


# ---- what is not seen -------------------------------------------------------------------------------------------------------


def in_a_thread(x: Tensor) -> Tensor:
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.append(x * 2))
    thread.start()
    thread.join()
    return results[0] + 1


UNTRACED: dict[str, tuple[Callable[..., Any], str]] = {
    "numpy": (lambda x: torch.from_numpy(x.numpy() * 2) + 1, "numpy hands out a ndarray"),
    "DLPack": (lambda x: torch.from_dlpack(x) + x, "a tensor of unknown origin goes into add"),
    "a thread": (in_a_thread, "a tensor of unknown origin is returned"),
    "vmap": (lambda x: torch.vmap(lambda row: row * 2 + row.sum())(x), "a tensor of unknown origin is returned"),
    "address": (lambda x: x + (x.data_ptr() == 0), "data_ptr in the network hands out an address"),
    "storage": (lambda x: x + len(x.untyped_storage()), "untyped_storage hands out a UntypedStorage"),
    "an object": (lambda x: Opaque(x), "Opaque, which is not looked into"),
    "nothing": (lambda x: None, "there is no tensor in it"),
}


class Opaque:
    """An object of a class that cannot be inspected."""

    def __init__(self, scores: Tensor):
        self.scores = scores


class Place:
    def __init__(self, place: int):
        self.place = place

    def __index__(self) -> int:
        return self.place


class Equal(float):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = float.__hash__


class Scaled(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


OWN = torch.library.Library("conv_as_attention_tests", "DEF")
OWN.define("copied(Tensor x) -> Tensor")
OWN.impl("copied", lambda x: x.clone(), "CompositeExplicitAutograd")


def changed_in_a_thread(x: Tensor) -> Tensor:
    thread = threading.Thread(target=lambda: x[0].mul_(2))
    thread.start()
    thread.join()
    return x


def changed_outside_all_modes(x: Tensor) -> Tensor:
    with untraced():
        x.mul_(2)
    return x


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


UNTRACED |= {
    "changed in a thread": (changed_in_a_thread, "changed without a traced call"),
    "changed outside all modes": (changed_outside_all_modes, "changed without a traced call"),
    "a Python function": (lambda x: x.clone().apply_(lambda value: value + 1), "of class function goes into apply_"),
    "an index of its own": (lambda x: x[0][Place(0)], "of class Place goes into __getitem__"),
    "a number of its own": (lambda x: x * Equal(2), "of class Equal goes into mul"),
    "random numbers of its own": (lambda x: x.clone().uniform_(generator=seeded()), "of class Generator goes into"),
    "an own operator": (
        lambda x: torch.ops.conv_as_attention_tests.copied(x),
        "copied.default is an operator beyond torch's own",
    ),
    "a class of tensors": (lambda x: x * Scaled(torch.ones(1)), "mul is worked out by the class Scaled"),
}


@pytest.mark.parametrize("how", ["hook", "every module's hook", "forward"])
def test_what_a_layer_is_given_while_the_network_runs_is_said(how: str) -> None:
    class Giving(OneConvolution):
        def forward(self, x: Tensor) -> Tensor:
            if how == "forward":
                self.conv.forward = type(self.conv).forward.__get__(self.conv)  # type: ignore[method-assign]
                y = self.conv(x)
                del self.conv.forward
                return y
            every = nn.modules.module.register_module_forward_hook
            handle = (self.conv.register_forward_pre_hook if how == "hook" else every)(lambda *given: None)
            y = self.conv(x)
            handle.remove()
            return y

    calls = compared(Giving(), noise(1, 2, 5, 5))
    assert calls.untraced == ("conv gets a hook, or a forward, while the network runs",)


@pytest.mark.parametrize("name", UNTRACED)
def test_what_is_not_traced_is_said_and_no_difference(name: str) -> None:
    then, named = UNTRACED[name]
    calls = compared(After(then), noise(2, 4, 9))
    assert calls.difference is None
    assert named in " ".join(calls.untraced)
    assert not same_expression(calls, {}, {})


def test_the_address_of_a_weight_hides_nothing() -> None:
    """Networks ask for it to see which of their weights share memory."""
    weight = nn.Parameter(torch.ones(1))
    calls = compared(After(lambda x: x * weight if weight.data_ptr() else x), noise(2, 4, 9))
    assert calls.untraced == compared(After(lambda x: x * weight), noise(2, 4, 9)).untraced


def test_a_method_of_a_layer_held_elsewhere_is_said_to_hide_the_rest() -> None:
    class Held(OneConvolution):
        def __init__(self) -> None:
            super().__init__()
            self.step = self.conv.forward

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.step(x))

    calls = compared(Held(), noise(1, 2, 5, 5))
    assert calls.difference is None
    assert "without calling it" in " ".join(calls.untraced)
    assert calls.compared == 0


# ---- what a network returns, and its state ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Answer:
    """A network's output in a common dataclass form."""

    scores: Tensor
    name: str = "answer"


@pytest.mark.parametrize(
    "wrap", [Answer, lambda y: [Answer(y), None, 3], lambda y: UserDict(scores=y), lambda y: {"a": (y, y)}]
)
def test_what_a_network_returns_is_looked_into(wrap: Callable[..., Any]) -> None:
    ours, theirs, reference = runs(After(wrap), [noise(2, 4, 9)])
    assert compare_calls(ours, theirs).difference is None
    numbers = compare_numbers(ours, theirs, reference)
    assert numbers is not None
    assert numbers.verdict.name == "CHECKED"


def test_state_between_calls_is_run_from_the_same_start() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.calls = nn.Conv2d(1, 1, 1), 0
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Tensor) -> Any:
            self.calls += 1
            self.count += 1
            return self.conv(x) * self.calls + self.count, self.calls

    model = Stateful()
    net: Any = construct.convert(model)
    x = [noise(1, 1, 2, 2)] * 3
    assert not difference(model, *x, net=copy.deepcopy(net))
    assert difference(model, *x, net=net)  # which has been run before


def test_inputs_of_any_form_and_a_shared_layer() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv1d(2, 2, 3, padding=1)
            self.again = self.first

        def forward(self, x: Tensor, y: Tensor, index: Tensor | None = None) -> Any:
            both = self.first(x) + self.again(y)
            return {"sum": both if index is None else both[..., index], "scaled": self.again(self.first(x)) * 3 - 1}

    arguments = noise(2, 9), noise(2, 9)
    named = {"x": noise(2, 9), "y": noise(2, 9), "index": torch.tensor([1, 4])}
    calls = compared(Twice(), arguments, named)
    assert (calls.difference, calls.untraced, calls.converted, calls.layers) == (None, (), 4, ("first",))


# ---- the same expression ------------------------------------------------------------------------------------------------------


def test_the_same_expression_takes_a_certificate_for_every_executed_layer() -> None:
    model, net, x = small()
    pairs = pairs_of(model, net)
    ours, theirs, _ = runs(model, [x], net)
    checks = check_on_activations(model, pairs, [x], "noise")
    certificates: dict[str, Any] = {
        path: verify.certify(*pairs[path], grid=check.grid, input_bound=check.largest_input)
        for path, check in checks.items()
    }
    calls = compare_calls(ours, theirs)
    assert same_expression(calls, certificates, checks)
    for path, certificate in certificates.items():
        worse = [
            None,
            dataclasses.replace(certificate, input_bound=certificate.input_bound * 0.999),
            dataclasses.replace(certificate, within=1.0),
            dataclasses.replace(certificate, grid=tuple(n - 1 for n in certificate.grid)),
            dataclasses.replace(certificate, verdict=verify.Verdict("UNDECIDED", "")),
        ]
        assert not any(same_expression(calls, certificates | {path: other}, checks) for other in worse)
    for other in ({"left": 1}, {"difference": "x"}, {"untraced": ("x",)}, {"layers": (*calls.layers, "9")}):
        assert not same_expression(dataclasses.replace(calls, **other), certificates, checks)


# ---- numbers against float64 -----------------------------------------------------------------------------------------------------


def numbers_of(model: nn.Module, *inputs: Any, net: nn.Module | None = None) -> Any:
    return compare_numbers(*runs(model, list(inputs), net))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["demo", "depthwise", "U-Net"])
def test_a_conversion_is_as_near_to_float64_as_the_original(name: str, dtype: torch.dtype) -> None:
    if name == "demo":
        model: nn.Module = construct.load(demo.PATH)
        x = noise(2, *demo.INPUT_SIZE)
    else:
        model, x = NETWORKS[name].ready()
    numbers = numbers_of(model.to(dtype), x.to(dtype))
    assert numbers.verdict.name == "CHECKED"
    assert 0 < numbers.converted <= numbers.limit
    assert numbers.largest > 0


PLANTED: dict[str, Callable[[Any], Any]] = {
    "swapped taps": lambda layer: layer.v.data.copy_(layer.v.data.flip(0)),
    "a tap off by a thousandth": lambda layer: layer.w_out.data[0].mul_(1.001),
    "a bias": lambda layer: layer.b_out.data.add_(1e-3),
    "softened heads": lambda layer: layer.v.data.mul_(2.0**-9),
    "no number": lambda layer: layer.b_out.data[0].fill_(float("nan")),
    "infinite": lambda layer: layer.b_out.data[0].fill_(float("inf")),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_network_beyond_rounding_is_refuted(fault: str) -> None:
    model, net, x = small()
    PLANTED[fault](net[0])
    verdict = numbers_of(model, x, net=net).verdict
    assert verdict.name == "REFUTED"
    finite = fault not in ("no number", "infinite")
    assert ("times the original's own" if finite else "finite on one side only") in verdict.sentence


NO_FLOAT64: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "float32 at the end": (lambda: After(lambda x: x.float()), "float makes float32 of float64"),
    "half inside": (lambda: After(lambda x: x.bfloat16().to(x.dtype) + 1), "bfloat16 makes bfloat16"),
    "float64 itself": (lambda: After(lambda x: x + 1).double(), "computes in float64 itself"),
    "another branch": (lambda: After(lambda x: x.relu() if x.dtype == torch.float32 else x.tanh()), "other calls"),
    "other sizes": (lambda: After(lambda x: x[: 1 if x.element_size() == 4 else 2]), "other sizes"),
}


@pytest.mark.parametrize("name", NO_FLOAT64)
def test_a_missing_yardstick_is_said(name: str) -> None:
    build, why = NO_FLOAT64[name]
    model = build()
    numbers = numbers_of(model, noise(2, 4, 9).to(next(model.parameters()).dtype))
    assert numbers.verdict.name == "UNDECIDED"
    assert why in numbers.no_float64
    assert numbers.original is None
    assert 0 <= numbers.difference < 1e-2


def test_networks_that_return_other_sizes_have_no_numbers_to_compare() -> None:
    assert numbers_of(Counting("shape"), noise(1, 2, 6, 6)) is None


def rows(*values: Any) -> list[list[Tensor]]:
    return [[torch.tensor(value) for value in values]]


def test_the_rule_is_what_it_says() -> None:
    """The rule applies to the tensor nearest to the limit, with a floor from the largest output."""
    exact = [[torch.tensor([1.0, 100.0], dtype=torch.float64), torch.tensor([2.0**-10], dtype=torch.float64)]]
    ours = rows([1.0, 100.001], [2.0**-10])
    for off, name in ((0.0159, "CHECKED"), (0.0165, "REFUTED")):
        assert accuracy(ours, rows([1.0, 100 + off], [2.0**-10]), exact).verdict.name == name
    epsilon = 2.0**-23 * 2.0**-10
    for ulps, name in ((14, "CHECKED"), (18, "REFUTED")):
        theirs = rows([1.0, 100.001], [2.0**-10 + ulps * epsilon])
        numbers = accuracy(ours, theirs, exact)
        assert numbers.verdict.name == name
        assert numbers.largest == pytest.approx(100)


def test_predictions_and_indices_are_counted() -> None:
    ours = [[torch.tensor([[0.1, 0.9], [0.6, 0.4]]), torch.tensor([1, 0]), torch.ones(2, 3, 3)]]
    theirs = [[torch.tensor([[0.1, 0.9], [0.4, 0.6]]), torch.tensor([1, 1]), torch.ones(2, 3, 3)]]
    numbers = accuracy(ours, theirs, None, "no run")
    assert (numbers.agree, numbers.predictions, numbers.other) == (1, 2, 1)
    assert accuracy([[torch.ones(2, 1)]], [[torch.ones(2, 1)]], None).agree is None
    assert accuracy([[torch.tensor([3])]], [[torch.tensor([3])]], None).difference is None


def test_a_float64_run_that_is_not_finite_is_no_yardstick() -> None:
    model = After(lambda x: x * (float("nan") if x.dtype == torch.float64 else 1.0))
    numbers = numbers_of(model, noise(1, 4, 9))
    assert (numbers.verdict.name, numbers.original) == ("UNDECIDED", None)


def test_infinities_of_both_signs_and_complex_numbers_refute() -> None:
    infinity, ones = torch.full((1, 3), float("inf")), torch.ones(1, 3, dtype=torch.complex64)
    assert accuracy([[infinity]], [[-infinity]], [[infinity.double()]]).verdict.name == "REFUTED"
    assert accuracy([[infinity]], [[infinity]], [[infinity.double()]]).verdict.name == "CHECKED"
    assert accuracy([[ones]], [[ones * 1.01j]], [[ones.to(torch.complex128)]]).verdict.name == "REFUTED"
    assert accuracy([[ones]], [[ones]], [[ones.to(torch.complex128)]]).verdict.name == "CHECKED"


@pytest.mark.parametrize("leaking", [False, True])
def test_what_is_finite_on_one_side_only_refutes(leaking: bool) -> None:
    inf, nan = float("inf"), float("nan")
    exact = [[torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)]]
    for value in (inf, -inf, nan):
        for a, b in (([1.0, value, 3.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [1.0, value, 3.0])):
            assert accuracy(rows(a), rows(b), exact, leaking=leaking).verdict.name == "REFUTED"
            assert accuracy(rows(a), rows(b), None).verdict.name == "REFUTED"
        both = accuracy(rows([1.0, value, 3.0]), rows([1.0, value, 3.0]), exact, leaking=leaking)
        assert both.verdict.name == ("UNDECIDED" if leaking else "CHECKED")
    apart = accuracy(rows([1.0, 2.0, 3.0]), rows([1.0, 2.5, 3.0]), exact, leaking=leaking)
    assert apart.verdict.name == ("UNDECIDED" if leaking else "REFUTED")


@given(st.floats(0, 1e-3), st.floats(0, 1e-1), st.integers(-60, 60))
def test_the_rule_scales(own: float, theirs: float, power: int) -> None:
    """Powers of two scale all distances equally and change no verdict."""
    exact = torch.tensor([1.0, -2.0], dtype=torch.float64)
    ours, other = exact.float() * (1 + own), exact.float() * (1 + theirs)
    verdicts = {accuracy([[ours * s]], [[other * s]], [[exact * s]]).verdict.name for s in (1.0, 2.0**power)}
    assert len(verdicts) == 1


def random_network(rng: random.Random) -> tuple[nn.Module, Tensor]:
    layers: list[nn.Module] = []
    channels, width, dims = rng.choice([1, 3]), rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 3])
    kinds = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))[dims - 1]
    size = (channels, *(9, 7, 5)[:dims])
    for _ in range(rng.choice([1, 2, 5, 12])):
        layers += [kinds[0](channels, width, rng.choice([1, 2, 3]), padding=1), kinds[1](width)][: rng.choice([1, 2])]
        layers.append(rng.choice([nn.ReLU(), nn.SiLU(), nn.Identity()]))
        channels = width
    head = [nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, rng.choice([1, 10]))]
    return nn.Sequential(*layers, *(head if rng.random() < 0.7 else [])), torch.randn(1, *size)


def worst_excess(seeds: range) -> float:
    """The largest converted/(original + ε·largest) over random networks, which the two constants must cover."""
    worst = 0.0
    for seed in seeds:
        torch.manual_seed(seed)
        model, x = random_network(random.Random(seed))
        with torch.no_grad():
            numbers = numbers_of(model, x, torch.randn(x.shape))
        assert numbers.verdict.name == "CHECKED", seed
        scale = numbers.original + torch.finfo(x.dtype).eps * numbers.largest
        worst = max(worst, numbers.converted / scale if scale else 0.0)
    return worst


def test_random_networks_are_not_refuted() -> None:
    assert worst_excess(range(8)) < min(accuracy_module.FACTOR, accuracy_module.FLOOR) / 2


@pytest.mark.deep
def test_many_random_networks_are_not_refuted() -> None:
    worst = worst_excess(range(1000, 3000))
    print(f"2000 random networks: {worst:.3g} of the original's own distance and the floor's unit at most")
    assert worst < min(accuracy_module.FACTOR, accuracy_module.FLOOR) / 2
