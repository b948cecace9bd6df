"""``python -m benchmarks.zoo`` on small networks of torch itself."""

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import construct
from benchmarks import zoo
from construct.attention import MHSA


class Conv2dStaticSamePadding(nn.Conv2d):
    """Imitates a third-party class by its name, with its own padding layer."""

    def __init__(self, inputs: int, outputs: int, kernel: int):
        super().__init__(inputs, outputs, kernel)
        self.static_padding = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(self.static_padding(input), self.weight, self.bias)


class Doubled(nn.Conv2d):
    """A class without a rule."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def fails() -> Any:
    raise RuntimeError("of another version")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str]]:
    """Run the command on one network of an installed package."""

    def run(make: Callable[[], Any], *words: str, package: str = "torch") -> tuple[int, str]:
        monkeypatch.setattr(zoo, "ZOO", {"net": (package, make)})
        monkeypatch.setattr(sys, "argv", ["zoo", *words])
        threads = torch.get_num_threads()
        try:
            return zoo.main(), capsys.readouterr().out
        finally:
            torch.set_num_threads(threads)
            logging.getLogger("construct").setLevel(logging.NOTSET)

    return run


def two(first: nn.Module) -> Callable[[], Any]:
    return lambda: (nn.Sequential(first, nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)), zoo.noise(1, 3, 9, 9))


def test_a_network_is_converted_and_compared(run):
    code, out = run(two(nn.Conv2d(3, 4, 3)), "--certify")
    assert code == 0
    assert "net: converted: 2; layers: 2 PROVED; calls: the same; from float64: " in out
    assert "1 of 1 networks: 2 convolutions converted, 0 left" in out


def test_what_is_not_converted_is_left_with_its_reason(run):
    code, out = run(two(Doubled(3, 4, 2)))
    assert code == 0
    assert "converted: 1, 1 left; layers: 1 CHECKED" in out
    assert "    left: 0: Doubled: its class has a forward of its own" in out
    _, out = run(two(Doubled(3, 4, 2)), "--markdown")
    assert "| net | 1, 1 left | 1 CHECKED | the same |" in out


def test_a_rule_lifts_a_refusal(run):
    code, out = run(two(Conv2dStaticSamePadding(3, 4, 2)))
    assert code == 0
    assert "converted: 2; layers: 2 CHECKED" in out


def test_what_is_not_there_or_does_not_run_is_skipped(run):
    code, out = run(two(nn.Identity()), package="no_such_package")
    assert code == 0
    assert out.startswith("net: skipped: no_such_package is not installed\n0 of 1 networks")
    assert "cannot be made: RuntimeError: of another version" in run(fails)[1]
    assert "skipped: it has no convolution" in run(lambda: (nn.ReLU(), zoo.noise(1)))[1]
    assert "does not run" in run(lambda: (nn.Conv2d(3, 4, 3), zoo.noise(1, 7, 9, 9)))[1]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda layer: layer.w_val.data.mul_(1.5), "REFUTED"),
        (lambda layer: layer.register_forward_pre_hook(lambda *args: fails()), "the converted network does not run"),
    ],
    ids=["wrong", "does not run"],
)
def test_a_conversion_that_is_broken_is_an_exit_code(run, spoil: Any, said: str, monkeypatch: pytest.MonkeyPatch):
    right = construct.convert

    def wrong(net: nn.Module, **options: Any) -> nn.Module:
        converted = right(net, **options)
        spoil(next(module for module in converted.modules() if isinstance(module, MHSA)))
        return converted

    monkeypatch.setattr(construct, "convert", wrong)
    code, out = run(two(nn.Conv2d(3, 4, 3)))
    assert code == 1
    assert said in out
    assert "skipped" not in out


def test_names_are_beginnings(run):
    with pytest.raises(SystemExit):
        run(two(nn.Identity()), "monai")
    assert len(zoo.ZOO) == 1


def test_a_network_of_which_nothing_is_converted_is_counted(run):
    code, out = run(lambda: (Doubled(3, 4, 2), zoo.noise(1, 3, 9, 9)))
    assert code == 0
    assert "net: converted: 0, 1 left\n    left: Doubled: its class has a forward of its own" in out
    assert "1 of 1 networks: 0 convolutions converted, 1 left" in out
    assert "| net | 0, 1 left |" in run(lambda: (Doubled(3, 4, 2), zoo.noise(1, 3, 9, 9)), "--markdown")[1]


class Large(nn.Module):
    """A network that also returns large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.conv(x), torch.full((1,), 1e9)


def test_a_distance_is_relative_to_its_own_tensor(run):
    code, out = run(lambda: (Large(), zoo.noise(1, 3, 9, 9)))
    assert code == 0
    own = float(out.partition("the original: ")[2].split(";")[0])
    assert 1e-9 < own < 1e-5


class Scaled(nn.Module):
    """A block like ConvNeXt's, with an initial scale so small that the convolution vanishes in the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(3, 3, 3, padding=1), nn.Parameter(1e-9 * torch.ones(3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.conv(x)


def test_every_convolution_counts_in_the_output():
    with torch.no_grad():
        net, x = Scaled(), zoo.noise(1, 3, 9, 9)
        zoo.lively(net)
        before = net(x)
        net.conv.weight.mul_(1.5)
        assert (net(x) - before).abs().max() > 0.01
