"""Comparison of two networks on the same inputs: their layers' calls, and their outputs against a float64 run."""

import copy
import dataclasses
import itertools
import random
import threading
import warnings
from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import construct
import verify
from construct.command import demo
from construct.command.arguments import parse
from construct.command.report import NetworkRow, network_dict
from construct.command.runs import Runs, run_both
from construct.command.terminal import phases
from networks import NETWORKS
from verify.argument.verdicts import same_expression
from verify.report.numbers import network_sentences
from verify.samples import accuracy as accuracy_module
from verify.samples.accuracy import accuracy
from verify.samples.network import CallComparison, compare_numbers


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
    return {
        path: (convs[path], layer)
        for path, layer in layers.items()
        if isinstance(layer, construct.MHSA) and not isinstance(convs[path], construct.MHSA)
    }


def runs(model: nn.Module, *inputs: Any, net: nn.Module | None = None) -> Runs:
    net = construct.convert(model) if net is None else net
    options = parse(["m.pt", "--input-size", "1"])
    with phases() as progress:
        return run_both(model, net, pairs_of(model, net), list(inputs), "the inputs", options, progress)


def compared(model: nn.Module, *inputs: Any, net: nn.Module | None = None) -> CallComparison:
    return runs(model, *inputs, net=net).calls


def difference(model: nn.Module, *inputs: Any, net: nn.Module | None = None) -> str:
    """The first difference, or an empty string."""
    return compared(model, *inputs, net=net).difference or ""


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def branching(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return torch.sigmoid(x) * x
    return torch.tanh(x)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # people have such networks
    scripted, scripted_child = torch.jit.script(branching), torch.jit.script(nn.SiLU())


def without_functions(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return x.relu() + 1


def in_a_thread(x: Tensor) -> Tensor:
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.append(x * 2))
    thread.start()
    thread.join()
    return results[0] + 1


SAME: dict[str, Callable[..., Any]] = {
    "a branch": lambda x: x if x.sum() > 0 else -x,
    "a number read off": lambda x: x / x.abs().max().item(),
    "an index read off": lambda x: x[..., int(x.abs().sum((0, 1)).argmax())],
    "TorchScript": lambda x: scripted(x),
    "a scripted child": scripted_child,
    "functions of torch switched off": without_functions,
    "dropout that is always on": lambda x: F.dropout(x),
    "random numbers": lambda x: x + torch.rand(4, 1) + random.random() + float(np.random.rand()),  # noqa: NPY002
    "an exception": lambda x: raising(x),
    "inference mode": torch.inference_mode()(lambda x: F.relu(x) + 1),
    "a thread": in_a_thread,
    "numpy": lambda x: torch.from_numpy(x.numpy() * 2) + 1,
    "DLPack": lambda x: torch.from_dlpack(x) + x,
    "vmap": lambda x: torch.vmap(lambda row: row * 2 + row.sum())(x),
    "storage": lambda x: x + len(x.untyped_storage()),
    "not a number": lambda x: x * float("nan"),
    "complex": lambda x: torch.fft.rfft(x).conj(),
    "sparse": lambda x: (x.relu().to_sparse(), x),
    "integers": lambda x: (x > 0, x.argmax(-1), x),
}


def raising(x: Tensor) -> Tensor:
    try:
        if x.sum() > -1e9:
            raise ValueError
    except ValueError:
        return x * 3
    return x


@pytest.mark.parametrize("name", SAME)
def test_networks_that_nothing_distinguishes_are_seen_as_such(name: str) -> None:
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
def test_common_networks_differ_by_their_layers_alone(name: str) -> None:
    model, x = NETWORKS[name].ready()
    calls = compared(model, x[:1])
    assert (calls.difference, calls.untraced) == (None, ())
    assert calls.converted == calls.executed > 0 == calls.left


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
            "plain": lambda: (y, count),
            "shape": lambda: y[:, :2] if count else y,
        }
        return kinds[self.kind]()


class Twice(OneConvolution):
    """Calls its layer twice where ``isinstance`` says so, and other layers where rounding says so."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.other = how, nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.how == "class":
            return self.conv(x) if isinstance(self.conv, nn.Conv2d) else y
        if self.how == "order":
            return (self.other(y) if isinstance(self.conv, nn.Conv2d) else self.conv(x)) + y
        if self.how == "input":
            return self.other(y if isinstance(self.conv, nn.Conv2d) else 2 * y)
        odd = int(y.view(torch.int32).sum()) % 2  # nothing but rounding decides
        return self.other(y) if odd else y


TWICE = {
    "class": "returned value 0, in the original the input of the layer conv (",
    "order": "the input of the layer conv, in the original the input of the layer other (",
    "input": "the input of the layer other: other numbers than in the original (",
}


@pytest.mark.parametrize("how", TWICE)
def test_other_calls_of_layers_are_named(how: str) -> None:
    assert difference(Twice(how), noise(1, 2, 5, 5)).startswith(TWICE[how])


def test_a_branch_on_rounding_is_named() -> None:
    inputs = [noise(1, 2, 5, 5) * (n + 1) for n in range(8)]
    assert difference(Twice("rounding"), *inputs) == "on its own numbers it calls other layers"


def small() -> tuple[nn.Sequential, Any, Tensor]:
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.LeakyReLU(0.1), nn.Conv2d(3, 2, 2), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3)).eval()
    return model, construct.convert(model), noise(1, 2, 6, 5)


def one_ulp(tensor: Tensor) -> None:
    with torch.no_grad():
        flat = tensor.view(-1)
        flat[1] = torch.nextafter(flat[1], torch.tensor(float("inf")))


FAULTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a running mean": ("1", lambda m: m.running_mean.add_(1e-6)),
    "an epsilon": ("1", lambda m: setattr(m, "eps", 1e-3)),
    "a slope": ("2", lambda m: setattr(m, "negative_slope", 0.11)),
    "a weight after it all": ("6", lambda m: one_ulp(m.weight)),
    "a hook": ("2", lambda m: m.register_forward_hook(lambda m, x, y: y + 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_between_the_layers_is_named(fault: str) -> None:
    """The written network itself is compared, to the last bit."""
    model, net, x = small()
    where, spoil = FAULTS[fault]
    spoil(net.get_submodule(where))
    assert ": other numbers than in the original (while" in difference(model, x, net=net)


def test_a_run_that_reaches_the_network_that_was_read_is_named() -> None:
    """A function holds the tensor itself, which no copy replaces."""
    model: Any = After(lambda y: y)
    bias = model.conv.bias
    model.then = lambda y: (bias.data.add_(1), y)[1]
    assert difference(model, noise(1, 4, 9)).startswith("its run changes conv.bias, a parameter of its own")


class Opaque:
    """An object of a class that cannot be inspected."""

    def __init__(self, scores: Tensor):
        self.scores = scores


class Within(OneConvolution):
    """Its convolution is called where hooks do not see it, or not its numbers."""

    def __init__(self, how: str):
        super().__init__()
        self.how, self.step = how, self.conv.forward

    def forward(self, x: Tensor) -> Any:
        if self.how == "vmap":
            return torch.func.vmap(lambda row: F.relu(self.conv(row)))(x)
        if self.how == "jvp":
            return torch.func.jvp(lambda row: F.relu(self.conv(row)), (x,), (torch.ones_like(x),))
        if self.how == "grad":
            with torch.enable_grad():
                return torch.func.grad(lambda row: F.relu(self.conv(row)).sum())(x)
        return F.relu(self.step(x))


WITHIN = ["vmap", "jvp", "grad", "a stored method"]
JVP = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""torch itself scripts functions for it."""


@JVP
@pytest.mark.nasty(73)
@pytest.mark.parametrize("how", WITHIN)
def test_convolutions_in_transforms_and_by_stored_methods_run_and_it_is_said(how: str) -> None:
    ran = runs(Within(how), noise(2, 2, 5, 5))
    assert ran.calls.difference is None
    said = " ".join(ran.calls.untraced)
    assert ("within a transform of torch.func" in said) != ("1 of 1 convolutions that became attention, in no" in said)
    assert not ran.checks
    assert not same_expression(ran.calls, {}, {})
    assert numbers_from(ran).verdict.name == "CHECKED"
    said = str(network_sentences(network_dict(NetworkRow(None, "the inputs", ran.calls, None, False))))
    assert "all inputs and results" not in said
    assert "what was compared is equal bit for bit" in said


class InThread(OneConvolution):
    """Calls its layer in another thread, and once more here, ``stored`` as a method."""

    def __init__(self, stored: bool):
        super().__init__()
        self.step = self.conv.forward if stored else self.conv

    def forward(self, x: Tensor) -> Any:
        results: list[Tensor] = []
        thread = threading.Thread(target=lambda: results.append(self.conv(x).detach()))
        thread.start()
        thread.join()
        return results[0] + self.step(x)


@pytest.mark.parametrize("stored", [False, True])
def test_convolutions_in_a_thread_are_counted_and_hide_no_others(stored: bool) -> None:
    calls = compared(InThread(stored), noise(2, 2, 5, 5))
    assert (calls.difference, calls.executed, calls.left, calls.converted) == (None, 2, 0, 2 - stored)
    unseen = "1 of 2 convolutions that became attention, in no call of a layer that was seen: "
    assert [text[: len(unseen)] for text in calls.untraced[:-1]] == [unseen] * stored
    assert calls.untraced[-1].startswith("other threads call layers: ")


TICKS = itertools.count()
"""A clock that never shows the same number twice, also in float32."""
NOT_COMPARED: dict[str, tuple[Callable[..., Any], str]] = {
    "an object": (lambda x: Opaque(x), "holds an object of class Opaque, which is not looked into"),
    "nothing": (lambda x: None, "the output has no tensor in it"),
    "the time": (lambda x: x + next(TICKS), "does not repeat itself: returned value 0: other numbers"),
    "an address": (lambda x: (x, next(TICKS)), "does not repeat itself: returned value 1: "),
}


@pytest.mark.parametrize("name", NOT_COMPARED)
def test_what_is_not_compared_is_said_and_no_difference(name: str) -> None:
    then, named = NOT_COMPARED[name]
    calls = compared(After(then), noise(2, 4, 9))
    assert calls.difference is None
    assert named in " ".join(calls.untraced)
    assert calls.compared == 0 or "repeat" not in named
    assert not same_expression(calls, {}, {})


@dataclasses.dataclass
class Answer:
    """A network's output in a common dataclass form."""

    scores: Tensor
    name: str = "answer"


@pytest.mark.parametrize(
    "wrap", [Answer, lambda y: [Answer(y), None, 3], lambda y: UserDict(scores=y), lambda y: {"a": (y, y)}]
)
def test_what_a_network_returns_is_looked_into(wrap: Callable[..., Any]) -> None:
    ran = runs(After(wrap), noise(2, 4, 9))
    assert (ran.calls.difference, ran.calls.untraced) == (None, ())
    numbers = numbers_from(ran)
    assert numbers is not None
    assert numbers.verdict.name == "CHECKED"
    count = iter(range(100))
    changing = runs(After(lambda y: wrap(y + (next(count) > 0))), noise(2, 4, 9))
    assert "does not repeat itself: returned value" in changing.calls.untraced[0]


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
    assert not difference(model, *x, net=net)
    assert (model.calls, net.calls, float(net.count)) == (0, 0, 0.0)  # copies ran
    net(x[0])
    assert difference(model, *x, net=net)


def test_inputs_of_any_form_and_a_shared_layer() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv1d(2, 2, 3, padding=1)
            self.again = self.first

        def forward(self, x: Tensor, y: Tensor, index: Tensor | None = None) -> Any:
            both = self.first(x) + self.again(y)
            return {"sum": both if index is None else both[..., index], "scaled": self.again(self.first(x)) * 3 - 1}

    arguments = noise(2, 9), noise(2, 9)
    named = {"x": noise(2, 9), "y": noise(2, 9), "index": torch.tensor([1, 4])}
    calls = compared(Shared(), arguments, named)
    assert (calls.difference, calls.untraced, calls.converted, calls.layers) == (None, (), 4, ("first",))


def test_the_same_expression_takes_a_certificate_for_every_executed_layer() -> None:
    model, net, x = small()
    pairs, ran = pairs_of(model, net), runs(model, x, net=net)
    certificates: dict[str, Any] = {
        path: verify.certify(*pairs[path], grid=check.grid, input_bound=check.largest_input)
        for path, check in ran.checks.items()
    }
    calls, checks = ran.calls, ran.checks
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


def numbers_of(model: nn.Module, *inputs: Any, net: nn.Module | None = None) -> Any:
    return numbers_from(runs(model, *inputs, net=net))


def numbers_from(ran: Runs) -> Any:
    return compare_numbers(ran.original, ran.converted, ran.reference, ran.no_float64)


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
    "float32 at the end": (lambda: After(lambda x: x.float()), "aten._to_copy.default makes float32 of float64"),
    "half inside": (lambda: After(lambda x: x.bfloat16().to(x.dtype) + 1), "makes bfloat16 of float64"),
    "float64 itself": (lambda: After(lambda x: x + 1).double(), "computes in float64 itself"),
    "other sizes": (lambda: After(lambda x: x[: 1 if x.element_size() == 4 else 2]), "returns other sizes"),
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


def rows(*values: Any) -> list[Tensor]:
    return [torch.tensor(value) for value in values]


def test_predictions_and_indices_are_counted() -> None:
    ours = [torch.tensor([[0.1, 0.9], [0.6, 0.4]]), torch.tensor([1, 0]), torch.ones(2, 3, 3)]
    theirs = [torch.tensor([[0.1, 0.9], [0.4, 0.6]]), torch.tensor([1, 1]), torch.ones(2, 3, 3)]
    numbers = accuracy(ours, theirs, None, "no run")
    assert (numbers.agree, numbers.predictions, numbers.other) == (1, 2, 1)
    assert accuracy([torch.ones(2, 1)], [torch.ones(2, 1)], None).agree is None
    assert accuracy([torch.tensor([3])], [torch.tensor([3])], None).difference is None


def test_a_float64_run_that_is_not_finite_is_no_yardstick() -> None:
    model = After(lambda x: x * (float("nan") if x.dtype == torch.float64 else 1.0))
    numbers = numbers_of(model, noise(1, 4, 9))
    assert (numbers.verdict.name, numbers.original) == ("UNDECIDED", None)


@pytest.mark.parametrize("leaking", [False, True])
def test_what_is_finite_on_one_side_only_refutes(leaking: bool) -> None:
    exact = [torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)]
    for value in map(float, ("inf", "-inf", "nan")):
        for a, b in (([1.0, value, 3.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [1.0, value, 3.0])):
            assert accuracy(rows(a), rows(b), exact, leaking=leaking).verdict.name == "REFUTED"
            assert accuracy(rows(a), rows(b), None).verdict.name == "REFUTED"
        both = accuracy(rows([1.0, value, 3.0]), rows([1.0, value, 3.0]), exact, leaking=leaking)
        assert both.verdict.name == ("UNDECIDED" if leaking else "CHECKED")
    for truth, name in ((exact[0], "REFUTED"), (9 * exact[0], "UNDECIDED")):  # so far off that anything is near enough
        apart = accuracy(rows([1.0, 2.0, 3.0]), rows([1.0, 2.5, 3.0]), [truth], leaking=leaking)
        assert apart.verdict.name == ("UNDECIDED" if leaking else name)


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


@pytest.mark.parametrize("count", [8, pytest.param(300, marks=pytest.mark.deep)])
def test_random_networks_are_not_refuted(count: int) -> None:
    worst = worst_excess(range(count))
    print(f"{count} random networks: {worst:.3g} of the original's own distance and the floor's unit at most")
    assert worst < min(accuracy_module.FACTOR, accuracy_module.FLOOR) / 2
