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


def doubled() -> Any:
    return Doubled(3, 4, 2), zoo.noise(1, 3, 9, 9)


@pytest.mark.parametrize(
    ("make", "words", "said"),
    [
        (two(nn.Conv2d(3, 4, 3)), "--certify", "net: converted: 2; layers: 2 PROVED; calls: the same; from float64: "),
        (two(nn.Conv2d(3, 4, 3)), "", "1 of 1 networks: 2 convolutions converted, 0 left"),
        (two(Doubled(3, 4, 2)), "", "converted: 1, 1 left; layers: 1 CHECKED"),
        (two(Doubled(3, 4, 2)), "", "    left: 0: Doubled: its class has a forward of its own"),
        (two(Doubled(3, 4, 2)), "--markdown", "| net | 1, 1 left | 1 CHECKED | the same |"),
        (doubled, "", "net: converted: 0, 1 left\n    left: Doubled: its class has a forward of its own"),
        (doubled, "", "1 of 1 networks: 0 convolutions converted, 1 left"),
        (doubled, "--markdown", "| net | 0, 1 left |"),
        (two(Conv2dStaticSamePadding(3, 4, 2)), "", "converted: 2; layers: 2 CHECKED"),  # by a rule
        (fails, "", "skipped: it cannot be made: RuntimeError: of another version"),
        (lambda: (nn.ReLU(), zoo.noise(1)), "", "skipped: it has no convolution"),
        (lambda: (nn.Conv2d(3, 4, 3), zoo.noise(1, 7, 9, 9)), "", "skipped: it does not run: RuntimeError: "),
    ],
)
def test_a_row_says_what_became_of_a_network(run, make: Callable[[], Any], words: str, said: str):
    code, out = run(make, *words.split())
    assert code == 0
    assert said in out


def test_a_network_of_another_package_is_skipped(run):
    code, out = run(fails, package="no_such_package")
    assert (code, out.splitlines()[0]) == (0, "net: skipped: no_such_package is not installed")
    assert out.splitlines()[1].startswith("0 of 1 networks")


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
