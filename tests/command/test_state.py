"""Networks that change while they run: what is written is what was read and certified, or nothing, and the parameter is named."""

import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

import construct
from commands import Command, names

SIZE = ("--input-size", 3, 8, 8)


class One(nn.Module):
    """One convolution, and a layer that is not converted."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        return self.linear(self.conv(x))


class Changes(One):
    """Changes itself before a run's layers or after them."""

    def __init__(self, before: Any = lambda net: None, after: Any = lambda net: None) -> None:
        super().__init__()
        self.before, self.after, self.calls = before, after, 0

    def forward(self, x: Tensor) -> Any:
        self.before(self)
        y = super().forward(x)
        self.calls += 1
        self.after(self)
        return y


def add_one(net: Any) -> None:
    net.conv.bias.data.add_(1)


class Trains(One):
    def train(self, mode: bool = True) -> Any:
        self.conv.bias.data.zero_()  # type: ignore[union-attr]
        return super().train(mode)


class Buffered(One):
    """Its convolution's weight is a buffer."""

    conv: Any

    def __init__(self) -> None:
        super().__init__()
        weight = self.conv.weight.detach().clone()
        del self.conv.weight
        self.conv.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        if isinstance(self.conv, nn.Conv2d):
            self.conv.weight.mul_(2)
        return y


class Fuses(One):
    """In eval mode it gives its convolution up, as networks do that are trained with more branches than they need."""

    def train(self, mode: bool = True) -> Any:
        if not mode and hasattr(self, "conv"):
            weight, bias = self.conv.weight.detach().clone(), self.conv.bias
            self.fused = lambda x: nn.functional.conv2d(x, weight, bias, padding=1)
            del self.conv
        return super().train(mode)

    def forward(self, x: Tensor) -> Any:
        return self.linear(self.fused(x))


class RunsOnce(One):
    """Changes a parameter of another layer, and runs only with its convolution."""

    def forward(self, x: Tensor) -> Any:
        self.linear.weight.data.mul_(2)
        return super().forward(x) * self.conv.get_parameter("weight").sum()


CHANGING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "adds": (lambda: Changes(after=add_one), "conv.bias"),
    "halves": (lambda: Changes(lambda net: setattr(net.conv.weight, "data", net.conv.weight / 2)), "conv.weight"),
    "trains": (Trains, "conv.bias"),
    "every second": (lambda: Changes(lambda net: net.linear.weight.data.mul_(1 + net.calls % 2)), "linear.weight"),
    "replaces": (lambda: Changes(after=lambda net: setattr(net.linear, "bias", nn.Parameter(torch.ones(8)))), "linear.bias"),
    "converted": (
        lambda: Changes(after=lambda net: isinstance(net.conv, nn.Conv2d) or net.linear.bias.data.add_(1)),
        "linear.bias",
    ),
    "buffered": (Buffered, "conv.weight"),
    "fuses": (Fuses, "conv.weight"),
    "sets": (lambda: Changes(lambda net: setattr(net.conv, "weight", nn.Parameter(2 * net.conv.weight.detach()))), "conv.weight"),
    "drops": (lambda: Changes(lambda net: setattr(net.conv, "bias", None)), "conv.bias"),
    "runs once": (RunsOnce, "linear.weight"),
}  # fmt: skip


class Counts(One):
    """Has state that is no parameter: buffers, numbers, a list, statistics that a run updates."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.calls, self.seen = nn.BatchNorm2d(4), 0, list[Tensor]()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        self.total += x.sum()
        self.seen.append(x)
        self.norm.train()
        return self.norm(super().forward(x)) * self.calls + self.total


@pytest.fixture
def given(from_conv: Command) -> Iterator[Callable[[nn.Module], tuple[object, ...]]]:
    """Writes a network's state dict; returns the words of the command line for it and its architecture."""
    module: Any = types.ModuleType("stateful_nets")
    sys.modules["stateful_nets"] = module

    def write(model: nn.Module) -> tuple[object, ...]:
        torch.save(model.state_dict(), "m.pt")
        module.network = lambda: model
        return "m.pt", "--arch", "stateful_nets:network"

    yield write
    del sys.modules["stateful_nets"]


def fresh(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build()


CASES = [*((name, "random") for name in CHANGING), ("adds", "one example"), ("runs once", "one example")]
NOT_CONVERTED = ("sets", "drops", "runs once")
"""Their converted networks do not run."""


@pytest.mark.nasty(70)
@pytest.mark.parametrize(("name", "inputs"), CASES)
def test_a_parameter_that_a_run_changes_is_named_and_nothing_is_written(
    name: str, inputs: str, given: Any, from_conv: Command, verify_command: Command
) -> None:
    build, changed = CHANGING[name]
    words = given(fresh(build))
    torch.save(torch.randn(1, 3, 8, 8), "x.pt")
    out = from_conv.prints(*words, *(SIZE if inputs == "random" else ("--example-inputs", "x.pt")), code=1)
    assert f": its run changes {changed}, a parameter of its own (" in out
    assert "same sums  PROVED" in out, "the row says what is so of the layer"
    assert "written: nothing" in out
    assert ("; converted, it does not run: " in out) == (name in NOT_CONVERTED)
    assert ("in the converted (" in out) == (name not in NOT_CONVERTED), "only runs are counted"
    assert not Path("m.mhsa.pt").exists()
    # The way out that the message names:
    from_conv.prints(*words)
    verify_command.prints("check", "m.mhsa.json", "--conv", "m.pt", "--mhsa", "m.mhsa.pt")


@pytest.mark.nasty(40)
def test_state_that_is_no_parameter_is_written_as_it_was_read(given: Any, from_conv: Command) -> None:
    model = fresh(Counts)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    out = from_conv.prints(*given(model), *SIZE)
    assert "network: calls: the same 1 of converted layers" in out
    written: Any = construct.load("m.mhsa.pt", model=fresh(Counts))
    assert all(torch.equal(value, before[name]) for name, value in written.state_dict().items() if name in before)
    assert (written.calls, written.seen) == (0, [])


class Saves(One):
    """Saves something else than its own state dict."""

    def __init__(self, saved: Callable[[Any, dict[str, Tensor]], Any]) -> None:
        super().__init__()
        self.saved = saved

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.saved(self, super().state_dict(*args, **kwargs))


def with_hook(register: str, hook: Callable[..., Any]) -> nn.Module:
    net = One()
    getattr(net, register)(hook)
    return net


class Doubles(One):
    """Changes as it is copied and read."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.linear.bias.data.mul_(2)


class Exports(One):
    """Changes where it is to be exported."""

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        self.linear.bias.data.mul_(2)
        return super().requires_grad_(requires_grad)


SAVING: dict[str, Callable[[], nn.Module]] = {
    "rounds": lambda: with_hook(
        "register_state_dict_post_hook",
        lambda module, state, *_: state.update({name: value.half().float() for name, value in state.items()}),
    ),
    "averages": lambda: Saves(lambda net, state: {name: value * 0.5 for name, value in state.items()}),
    "quantises": lambda: with_hook(
        "register_state_dict_pre_hook", lambda module, *_: [p.data.round_() for p in module.parameters()]
    ),
    "adds": lambda: Saves(lambda net, state: (add_one(net), state)[1]),
    "halves": lambda: Saves(lambda net, state: state | {"linear.bias": state["linear.bias"] / 2}),  # no attention
    "nests": lambda: Saves(lambda net, state: {"model": state}),
    "doubles": Doubles,
    "exports": Exports,
}
SAVED = [(name, form) for name in [*SAVING][:-1] for form in ("pt", "safetensors")] + [("exports", "pt2")]


@pytest.mark.nasty(70)
@pytest.mark.parametrize(("name", "form"), SAVED)
def test_other_numbers_in_what_is_saved_are_named_and_nothing_is_written(
    name: str, form: str, given: Any, from_conv: Command
) -> None:
    words = given(fresh(One))
    module: Any = sys.modules["stateful_nets"]
    module.network = lambda: fresh(SAVING[name])
    before = names()
    out = from_conv.prints(*words, "--format", form, *(SIZE if form == "pt2" else ()), code=1)
    assert re.search(r"written: nothing, because as saved (conv|linear)\.\w+ has other bits than it was certified", out)
    assert "same sums  PROVED" in out, "the row says what is so of the layer"
    assert ("note: the program, run from its file" in out) == (form == "pt2")
    assert names() == before


@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_attention_that_learns_already_is_written_as_it_is(form: str, given: Any, from_conv: Command) -> None:
    learning = construct.conv_to_mhsa(nn.Conv2d(3, 3, 3, padding=1))
    register_parametrization(learning, "v", nn.Identity())
    from_conv.prints(*given(nn.Sequential(learning, nn.Conv2d(3, 4, 3, bias=False))), "--format", form)
    assert Path(f"m.mhsa.{form}").exists()


@pytest.mark.parametrize("name", ["averages", "adds"])
def test_programs_hold_the_numbers_of_the_network_whatever_its_state_dict_says(
    name: str, given: Any, from_conv: Command
) -> None:
    words, read = given(fresh(One)), torch.load("m.pt")
    module: Any = sys.modules["stateful_nets"]
    module.network = lambda: fresh(SAVING[name])
    from_conv.prints(*words, "--format", "pt2", *SIZE)
    written: Any = torch.export.load("m.mhsa.pt2").state_dict
    assert torch.equal(written["linear.weight"], read["linear.weight"])
    assert torch.equal(written["conv.b_out"], read["conv.bias"])


def test_other_numbers_in_a_pickled_module_are_named(from_conv: Command) -> None:
    torch.save(fresh(Doubles), "m.pt")
    before = names()
    out = from_conv.prints("m.pt", "--trust", code=1)
    assert "written: nothing, because as saved linear.bias has other bits than" in out
    assert names() == before
