"""``--allow`` admits exact classes, or every class that a package itself defines; the others are refused and named."""

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
from archives import called, named, program, with_pickle
from commands import Command
from construct.errors import BadModelFile
from construct.files.allowed import import_allowed

NETS = """
import dataclasses, enum, os, subprocess
from torch import nn

class Kind(enum.Enum):
    A = 1

    def __reduce_ex__(self, protocol):  # as most versions of Python do; 3.11.0 to 3.11.3 wrote a call of getattr
        return Kind, (self.value,)

@dataclasses.dataclass
class Config:
    width: int = 3

class Plain:
    def __init__(self):
        self.x = 1

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.kind, self.config, self.plain = nn.Conv2d(1, 2, 3), Kind.A, Config(), Plain()

    def forward(self, x):
        return self.conv(x)

class Borrowed(nn.ReLU):
    pass

Borrowed.__module__ = "elsewhere"

def act(x):
    return x

os.environ["NETS_IMPORTED"] = "yes"
"""


@pytest.fixture
def nets(from_conv: Command) -> Any:
    """A user package that contains a module."""
    Path("mypkg").mkdir()
    Path("mypkg/__init__.py").write_text("")
    Path("mypkg/__main__.py").write_text("raise SystemExit('this ran')")
    Path("mypkg/nets.py").write_text(NETS)
    Path("mypkgs.py").write_text("from torch import nn\nclass Net(nn.ReLU): pass\n")
    from mypkg import nets  # type: ignore[import-not-found]

    yield nets
    for name in ("mypkg", "mypkg.nets", "mypkgs"):
        sys.modules.pop(name, None)


@pytest.fixture
def refusal(from_conv: Command) -> Callable[..., str]:
    """The line with which the command refuses this object saved by torch.save."""

    def refuse(content: Any, *options: str) -> str:
        torch.save(content, "m.pt")
        return from_conv.refuses("m.pt", *options)

    return refuse


def test_row_13_a_package_is_allowed_as_a_whole(nets: Any, refusal: Any, from_conv: Command) -> None:
    line = refusal(nets.Block())
    command = line.partition("whose code then may run: python -m construct.from_conv ")[2].rstrip(")").split()
    assert command == ["m.pt", "--allow", "mypkg"]
    assert "PROVED" in from_conv.prints(*command)
    for allow in (["mypkg"], ["mypkg.nets"], [f"mypkg.nets.{kind}" for kind in ("Block", "Kind", "Config", "Plain")]):
        net: Any = construct.load("m.pt", allow=allow)
        assert type(net) is nets.Block
        assert (net.kind, net.config, net.plain.x) == (nets.Kind.A, nets.Config(), 1)


def test_row_13_a_command_with_what_was_allowed_already(nets: Any, refusal: Any) -> None:
    line = refusal(nn.Sequential(nets.Block(), nets.Block().double()), "--allow", "mypkg.nets.Block")
    assert "not allowed: mypkg.nets.Config, mypkg.nets.Kind, mypkg.nets.Plain (" in line
    assert line.endswith("m.pt --allow mypkg.nets.Block --allow mypkg)")


def test_row_13_of_a_package_its_own_classes_alone_are_allowed(nets: Any, refusal: Any) -> None:
    """No function, no module, and nothing that it imports, under any name."""
    for name in ("act", "os", "nn", "subprocess", "dataclasses", "Borrowed", "nothing"):
        Path("m.pt").write_bytes(with_pickle(program(called(named("mypkg.nets", name)))))
        with pytest.raises(BadModelFile, match=f"not allowed: mypkg.nets.{name}[ ,]"):
            construct.load("m.pt", allow=["mypkg"])
    holding: Any = nn.ReLU()
    holding.thing = nets.act
    line = refusal(nn.Sequential(nn.Conv2d(1, 1, 3), holding), "--allow", "mypkg")
    assert line.endswith("m.pt --allow mypkg --allow mypkg.nets.act)")


def test_row_13_a_class_that_an_allowed_package_does_not_have(nets: Any, refusal: Any) -> None:
    net = nets.Block()
    torch.save(net, "m.pt")
    del nets.Kind
    with pytest.raises(
        BadModelFile, match=r"allowed: mypkg.nets.Kind, which mypkg does not define as a class \(give its network"
    ):
        construct.load("m.pt", allow=["mypkg"])


def test_row_13_a_package_is_no_beginning_of_a_name(nets: Any, refusal: Any) -> None:
    import mypkgs  # type: ignore[import-not-found]

    assert "not allowed: mypkgs.Net (" in refusal(nn.Sequential(nn.Conv2d(1, 1, 1), mypkgs.Net()), "--allow", "mypkg")


def test_row_13_nothing_of_a_package_that_is_not_allowed_is_imported(
    nets: Any, from_conv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(nets.Block(), "m.pt")
    for name in ("mypkg.nets", "mypkg"):
        sys.modules.pop(name)
    monkeypatch.delenv("NETS_IMPORTED")
    from_conv.refuses("m.pt")
    from_conv.refuses("m.pt", "--allow", "mypkgs")
    assert not {"mypkg", "mypkg.nets"} & sys.modules.keys()
    # Nor may an allowed package run code.
    with Path("m.pt").open("rb") as file:
        assert b"mypkg.nets" in file.read()
    from_conv.prints("m.pt", "--allow", "mypkg")


PACKAGES = "os builtins sys subprocess pickle torch torch.nn torch.serialization collections importlib".split()
CALLABLES = "torch.serialization.load torch.load torch.hub.load os.system builtins.eval operator.setitem".split()
CALLABLES += ["torch.serialization.os.system", "torch.os.system"]


@pytest.mark.parametrize(
    "name", [*PACKAGES, *CALLABLES, "a..b", "", "construct", "verify", "__main__", "functools.reduce"]
)
def test_row_02_what_is_never_allowed(name: str, nets: Any, refusal: Any) -> None:
    line = refusal(nn.Conv2d(1, 1, 1), "--allow", name)
    assert line.startswith(f"error: {name!r}")
    assert any(reason in line for reason in ("cannot be allowed", "must be a class", "No module named 'torch.os'"))


def test_row_02_a_package_with_a_main_of_its_own_is_not_run(nets: Any, from_conv: Command) -> None:
    Path("m.pt").write_bytes(with_pickle(program(called(named("mypkg.__main__", "Net")))))
    line = from_conv.refuses("m.pt", "--allow", "mypkg")
    assert "not allowed: mypkg.__main__.Net, which mypkg does not define" in line


def test_row_64_a_checkpoint_says_where_its_model_is(nets: Any, refusal: Any) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3))
    adam = torch.optim.Adam(net.parameters())
    line = refusal({"epoch": 3, "model": net, "optimizer": adam, "args": Namespace(lr=1)})
    assert "the model is not at its top: its entry ['model'] holds a module of class Sequential; the file holds" in line
    assert "argparse.Namespace" in line
    assert "torch.optim.adam.Adam (give its network with --arch or --model-file, or save that alone" in line
    line = refusal({"nets": {"g": net.state_dict()}, "args": Namespace(lr=1)})
    assert "its entry ['nets']['g'] holds a state dict" in line
    assert line.endswith("python -m construct.from_conv m.pt --allow argparse.Namespace)")
    net(torch.ones(1, 1, 3, 3)).sum().backward()
    adam.step()
    line = refusal({"net": net.state_dict(), "optimizer": adam.state_dict(), "args": Namespace(lr=1)})
    assert "its entry ['net'] holds a state dict; the file holds classes" in line  # without the optimizer's moments
    line = refusal({"epoch": 3, "gen": net, "disc": net})
    assert "its entry ['gen'] holds a module of class Sequential; its entry ['disc'] holds a" in line
    line = refusal([net, {"lr": 1}])
    reason = "an object of class list, not a model; its entry [0] holds a module of class Sequential (save that alone)"
    assert reason in line
    assert "its entry" not in refusal([torch.ones(2)])


def test_row_64_missing_keys_and_what_the_file_does_hold(nets: Any, refusal: Any) -> None:
    Path("net.py").write_text("from torch.nn import *\ndef net(): return Sequential(Conv2d(1, 2, 3), BatchNorm2d(2))\n")
    state = {"features.weight": torch.ones(2, 1, 3, 3), "0.bias": torch.ones(2), "scale": torch.ones(())}
    line = refusal(state, "--model-file", "net.py:net")
    assert 'Missing key(s) in state_dict: "0.weight", "1.weight", "1.bias"' in line
    assert 'Unexpected key(s) in state_dict: "features.weight", "scale"' in line
    whole = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)).state_dict()
    assert "size mismatch" in refusal(whole, "--model-file", "net.py:net")


def test_a_package_that_is_refused_whole_is_not_imported_first():
    with pytest.raises(BadModelFile, match="cannot be allowed"):
        import_allowed(["this"])
    assert "this" not in sys.modules
