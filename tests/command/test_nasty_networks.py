"""Networks found in real files: with their own state, odd attributes, and lazy or meta factories."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune  # noqa: F401  of a text below

import construct
from commands import Command
from construct.stock.layer import to_torch_mha
from verify.samples.sampling import check_on_activations

NETS = """
import torch
from torch import nn

class One(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.wide = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 4, 1)

class Plain(nn.Conv2d):
    "Inherits both forwards."

class Choosy(Two):
    "Asks what its layers are."
    def forward(self, x):
        for layer in self.children():
            if isinstance(layer, nn.Conv2d):
                x = layer(x)
        return x

class Inside(One):
    "Uses what lies inside a convolution."
    def forward(self, x):
        return self.conv._conv_forward(x, self.conv.weight, None)

class Mixed(nn.Module):
    "Runs its convolution in bfloat16."
    def __init__(self):
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 2, 3, stride=2)
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.up(self.conv(input=x), output_size=(18, 18)).float()

class Extra(nn.Sequential):
    "Keeps more than tensors in its state dict."
    def get_extra_state(self):
        return {"epoch": 3}
    def set_extra_state(self, state):
        pass

class Unusual(One):
    "Is stored in a way of its own."
    def __getstate__(self):
        return {"conv": self.conv}
    def __setstate__(self, state):
        super().__init__()
        self.conv = state["conv"]

class Renaming(nn.Module):
    "Loads what earlier versions stored."
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 1, 3, bias=False)
        self.register_load_state_dict_pre_hook(lambda _, state, *more: state.update({"conv.weight": state.pop("old")}))

def lazy():
    return nn.Sequential(nn.LazyConv2d(4, 3))

def meta():
    with torch.device("meta"):
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
"""


@pytest.fixture
def nets(from_conv: Command) -> Any:
    """The user's module, in the folder where the command runs."""
    Path("own_nets.py").write_text(NETS)
    yield __import__("own_nets")
    sys.modules.pop("own_nets")


def of(name: str) -> tuple[object, ...]:
    """The command-line words for a state dict of a network from the module above, run on an input."""
    return ("m.pt", "--arch", f"own_nets:{name}", "--input-size", 3, 8, 8)


def with_odd(**attributes: Any) -> nn.Module:
    conv = nn.Conv2d(3, 4, 3)
    for name, value in attributes.items():
        setattr(conv, name, value)
    return nn.Sequential(conv)


@pytest.mark.nasty(65)
@pytest.mark.parametrize("options", [(), ("--no-certify",)])
def test_a_network_that_makes_other_calls_when_converted_fails(options: tuple[str, ...], nets: Any, from_conv: Command):
    torch.save(nets.Choosy().state_dict(), "m.pt")
    out = from_conv.prints(*of("Choosy"), *options, code=1)
    assert "network: calls: NOT the same" in out
    assert "returned value 0, in the original the input of the layer conv" in out
    assert "written: nothing, because the networks do not compare equal" in out
    assert not Path("m.mhsa.pt").exists()
    facts = from_conv.facts(*of("Choosy"), *options, code=1)
    assert facts["network"]["calls"]["same"] is False
    assert facts["network"]["same_expression"] is False


def test_a_network_that_does_not_run_converted_is_refused(nets: Any, from_conv: Command):
    torch.save(nets.Inside().state_dict(), "m.pt")
    line = from_conv.refuses(*of("Inside"))
    assert "converted, the network does not run any more: AttributeError: 'MHSA' object has no attribute" in line


def test_a_network_that_mixes_precision_is_judged_in_the_format_of_its_layers(nets: Any, from_conv: Command):
    """Autocast rounds far more than a layer in its own format may."""
    net = nets.Mixed()
    torch.save(net.state_dict(), "m.pt")
    layers = from_conv.facts(*of("Mixed"))["layers"]
    assert [layer["verdict"]["name"] for layer in layers] == ["PROVED", "PROVED"]
    layer = construct.conv_to_mhsa(net.conv)
    layer.w_val.data[0, 0, 0, 0] += 1e-3  # less than bfloat16's rounding
    (check,) = check_on_activations(net, {"conv": (net.conv, layer)}, [torch.ones(1, 3, 8, 8)], "ones").values()
    assert check.verdict.name == "REFUTED"
    assert "without the network's autocast" in check.verdict.sentence


@pytest.mark.nasty(22)
@pytest.mark.parametrize(
    "odd", [{"stride": 2}, {"padding": 1, "dilation": 1}, {"stride": [1, 2]}, {"stride": (2,), "padding": [1]}], ids=str
)
def test_one_number_for_all_axes_is_rechecked_too(odd: dict, from_conv: Command, verify_command: Command):
    torch.save(with_odd(**odd), "m.pt")
    from_conv.prints("m.pt")
    verify_command.prints("check", "m.mhsa.json", "--conv", "m.pt", "--mhsa", "m.mhsa.pt")


@pytest.mark.nasty(22)
@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"stride": (torch.tensor(2), 1)}, "stride is (tensor(2), 1), not 2 whole numbers"),
        ({"dilation": (True, True)}, "dilation is (True, True), not 2 whole numbers"),
        ({"in_channels": torch.ones(2)}, "its attributes contradict each other: RuntimeError: Boolean"),
        ({"output_padding": None}, "output_padding is None, not 2 whole numbers"),
        ({"_forward_hooks": None}, "its attributes contradict each other: AttributeError"),
        ({"_parameters": {"weight": nn.Parameter(torch.ones(4, 3, 3, 3))}}, "its weight or bias cannot be worked out"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_attributes_that_are_wrong_or_missing_are_named(odd: dict, words: str, from_conv: Command):
    torch.save(with_odd(**odd), "m.pt")
    assert f"0: Conv2d: {words}" in from_conv.refuses("m.pt")


@pytest.mark.nasty(24)
def test_lazy_layers_have_to_run_first(nets: Any, from_conv: Command):
    torch.save(nets.lazy(), "m.pt")
    assert "run one batch through the network" in from_conv.refuses("m.pt")
    torch.save(nn.Sequential(nn.Conv2d(3, 4, 3)).state_dict(), "s.pt")
    assert "run one batch through the network first" in from_conv.refuses("s.pt", "--arch", "own_nets:lazy")


@pytest.mark.nasty(24)
def test_shapes_alone_take_the_weights_of_the_file(nets: Any, from_conv: Command):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    torch.save(model.state_dict(), "m.pt")
    from_conv.prints(*of("meta"))
    converted = construct.convert(model)
    converted.load_state_dict(torch.load("m.mhsa.pt", weights_only=True))
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(converted(x), model(x), atol=1e-5)


def test_extra_state_is_no_tensor(nets: Any, from_conv: Command):
    model = nets.Extra(nn.Conv2d(3, 4, 3))
    torch.save(model, "m.pt")
    from_conv.prints("m.pt", "--allow", "own_nets.Extra", "--format", "safetensors")
    assert isinstance(construct.load("m.mhsa.safetensors").get_submodule("0"), construct.MHSA)
    torch.save(nn.Sequential(nn.Conv2d(3, 4, 3)).state_dict(), "n.pt")
    nets.extra = lambda: model
    assert "_extra_state" in from_conv.refuses("n.pt", "--arch", "own_nets:extra")


@pytest.mark.nasty(9)
def test_another_format_under_the_name_of_onnx_is_said(from_conv: Command):
    torch.save(nn.Conv2d(3, 4, 3).state_dict(), "m.onnx")
    assert "the name ends in .onnx, but the content is" in from_conv.prints("m.onnx", "--stride", 1)


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_examples_that_are_not_finite_are_refused(number: float, from_conv: Command):
    torch.save([torch.full((1, 3, 8, 8), number)], "x.pt")
    torch.save(with_odd(), "m.pt")
    assert "x.pt: has numbers that are not finite (give others)" in from_conv.refuses(
        "m.pt", "--example-inputs", "x.pt"
    )


@pytest.mark.parametrize("kind", [{"device": "meta"}, {"dtype": torch.float8_e4m3fn}], ids=str)
def test_examples_without_numbers_are_refused_by_name(kind: dict[str, Any], from_conv: Command):
    torch.save(torch.empty(1, 3, 8, 8, **kind), "x.pt")
    torch.save(with_odd(), "m.pt")
    assert "x.pt: has no numbers that can be read: " in from_conv.refuses("m.pt", "--example-inputs", "x.pt")


@pytest.mark.nasty(35, 41)
def test_a_run_on_an_empty_batch_checks_nothing(from_conv: Command):
    torch.save(torch.ones(0, 3, 8, 8), "x.pt")
    torch.save(with_odd(), "m.pt")
    out = from_conv.prints("m.pt", "--example-inputs", "x.pt")
    assert "on samples: 0 of 1 layers CHECKED" in out
    assert "0: not exercised by the check (the network did not call it, or only on an empty batch" in out


@pytest.mark.nasty(75)
@pytest.mark.parametrize(
    ("network", "options", "reason"),
    [
        ("with_odd()", "", ""),
        ("with_odd().state_dict()", "--stride 1", ""),
        ("with_odd()", "--trust", "of protocol 4"),
        ("nn.Sequential(nets.Plain(3, 4, 3))", "--allow own_nets.Plain", "0: to recheck it takes a state dict"),
        ("prune.identity(nn.Conv2d(3, 4, 3), 'weight')", "--allow torch.nn.utils.prune.Identity", "(the model): to recheck it"),
        ("nets.Unusual()", "--allow own_nets", "holds an object of class Unusual"),
        ("{'old': torch.ones(1, 3, 3)}", "--arch own_nets:Renaming", "layer 'conv' is missing in m.pt"),
        ("torch.export.export(nn.Conv1d(2, 3, 3), (torch.ones(1, 2, 8),))", "--trust --stride 1", "a program of torch.export"),
    ],
)  # fmt: skip
def test_what_cannot_be_rechecked_is_said_and_nothing_else(
    network: str, options: str, reason: str, nets: Any, from_conv: Command, verify_command: Command
):
    content = eval(network, globals() | {"nets": nets})
    if "export" in network:
        torch.export.save(content, "m.pt")
    else:
        older, protocol = "state_dict" in network, 2 + 2 * (options == "--trust")
        torch.save(content, "m.pt", _use_new_zipfile_serialization=not older, pickle_protocol=protocol)
    out = from_conv.prints("m.pt", *options.split())
    assert ("recheck" in out, reason in out) == (bool(reason), True)
    code = verify_command("check", "m.mhsa.json", "--conv", "m.pt", "--mhsa", "m.mhsa.pt")[0]
    assert code == 2 * bool(reason)


@pytest.mark.nasty(28)
def test_bfloat16_is_written_as_onnx_where_its_runtime_knows_it(from_conv: Command):
    torch.save(with_odd().bfloat16(), "m.pt")
    out = from_conv.prints("m.pt", "--input-size", 3, 8, 8, "--format", "onnx", "-o", "m.onnx")
    assert "the program, run from its file, differs by at most" in out


def test_a_stock_attention_takes_the_output_size_that_it_has():
    conv = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1)
    stock = to_torch_mha(construct.conv_to_mhsa(conv), (4, 5))
    x = torch.randn(2, 3, 4, 5)
    for size in ([7, 9], [2, 4, 7, 9]):
        assert torch.allclose(stock(x, output_size=size), conv(x, output_size=size), atol=1e-5)
    with pytest.raises(ValueError, match=r"outputs of size \(7, 9\), not \(8, 10\)"):
        stock(x, output_size=[8, 10])
    with pytest.raises(TypeError, match="only with a transposed layer"):
        to_torch_mha(construct.conv_to_mhsa(nn.Conv1d(1, 1, 1)), (4,))(torch.zeros(1, 4), output_size=[4])
