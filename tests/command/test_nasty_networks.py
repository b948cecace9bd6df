"""What a second look at real files found: networks with a state of their own, odd attributes, lazy and meta factories."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
from construct.from_conv import main
from construct.stock.layer import to_torch_mha
from verify.__main__ import main as recheck
from verify.samples.sampling import check_on_activations

NETS = """
import torch
from torch import nn

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.seen = nn.Conv2d(3, 4, 3), 0
        self.register_buffer("last", torch.zeros(()))
    def forward(self, x):
        self.seen += 1
        self.last += x.mean().detach()
        return self.conv(x) * self.seen

class Plain(nn.Conv2d):
    "Inherits both forwards."

class Choosy(nn.Module):
    "Asks what its layers are."
    def __init__(self):
        super().__init__()
        self.conv, self.wide = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 4, 1)
    def forward(self, x):
        for layer in self.children():
            if isinstance(layer, nn.Conv2d):
                x = layer(x)
        return x

class Sized(nn.Module):
    "Asks, and returns less."
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
    def forward(self, x):
        return self.conv(x)[:, : 4 if isinstance(self.conv, nn.Conv2d) else 2]

class Counted(nn.Module):
    "Counts what it is made of."
    def __init__(self):
        super().__init__()
        self.conv, self.wide = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 4, 1)
    def forward(self, x):
        return self.wide(self.conv(x)) * sum(isinstance(m, nn.Conv2d) for m in self.modules())

class Inside(nn.Module):
    "Uses what lies inside a convolution."
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
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

def lazy():
    return nn.Sequential(nn.LazyConv2d(4, 3))

def meta():
    with torch.device("meta"):
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The user's own module, in the folder where the command runs."""
    (tmp_path / "own_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("own_nets")
    sys.modules.pop("own_nets")


def run(capsys: Any, *options: Any) -> tuple[int, str]:
    code = main([str(option) for option in options])
    told = capsys.readouterr()
    return code, told.out + told.err


def with_odd(**attributes: Any) -> nn.Module:
    conv = nn.Conv2d(3, 4, 3)
    for name, value in attributes.items():
        setattr(conv, name, value)
    return nn.Sequential(conv)


@pytest.mark.nasty(40)
def test_what_is_written_has_not_been_run(nets: Any, capsys: Any):
    torch.save(nets.Counting(), "m.pt")
    code, _ = run(capsys, "m.pt", "--input-size", 3, 8, 8, "--allow", "own_nets.Counting")
    assert code == 0
    x = torch.randn(2, 3, 8, 8)
    before: Any
    after: Any
    before, after = (construct.load(name, allow=["own_nets.Counting"]) for name in ("m.pt", "m.mhsa.pt"))
    assert (after.seen, float(after.last)) == (before.seen, float(before.last)) == (0, 0.0)
    assert torch.allclose(before(x), after(x), atol=1e-5)


@pytest.mark.nasty(65)
@pytest.mark.parametrize("options", [(), ("--no-certify",)])
@pytest.mark.parametrize(
    ("name", "difference"),
    [
        ("Choosy", "after 0 calls, the original alone goes on, with the layer conv"),
        ("Sized", "slice(None, 2, None) goes in"),
        ("Counted", "mul: 0 goes in, in the original 2"),
    ],
)
def test_a_network_that_makes_other_calls_when_converted_fails(
    name: str, difference: str, options: tuple[str, ...], nets: Any, capsys: Any
):
    torch.save(getattr(nets, name)().state_dict(), "m.pt")
    arguments = ("m.pt", "--arch", f"own_nets:{name}", "--input-size", 3, 8, 8, *options)
    code, out = run(capsys, *arguments)
    assert code == 1, out
    assert "network: calls: NOT the same" in out
    assert difference in out
    assert "written: nothing, because the converted network is not the original's equal" in out
    assert not Path("m.mhsa.pt").exists()
    facts = json.loads(run(capsys, *arguments, "--json")[1])
    assert facts["network"]["calls"]["same"] is False
    assert facts["network"]["same_expression"] is False


def test_a_network_that_does_not_run_converted_is_refused(nets: Any, capsys: Any):
    torch.save(nets.Inside().state_dict(), "m.pt")
    code, line = run(capsys, "m.pt", "--arch", "own_nets:Inside", "--input-size", 3, 8, 8)
    assert (code, line.count("\n")) == (2, 1), line
    assert "converted, the network does not run any more: AttributeError: 'MHSA' object has no attribute" in line


def test_a_network_that_mixes_precision_is_judged_in_the_format_of_its_layers(nets: Any, capsys: Any):
    """Autocast rounds by far more than a layer in its own format may."""
    net = nets.Mixed()
    torch.save(net.state_dict(), "m.pt")
    code, told = run(capsys, "m.pt", "--arch", "own_nets:Mixed", "--input-size", 3, 8, 8, "--json")
    assert code == 0, told
    found = json.loads(told)
    assert [layer["verdict"]["name"] for layer in found["layers"]] == ["PROVED", "PROVED"]
    layer = construct.conv_to_mhsa(net.conv)
    layer.w_val.data[0, 0, 0, 0] += 1e-3  # less than bfloat16 rounds
    (check,) = check_on_activations(net, {"conv": (net.conv, layer)}, [torch.ones(1, 3, 8, 8)], "ones").values()
    assert check.verdict.name == "REFUTED"
    assert "without the network's autocast" in check.verdict.sentence


@pytest.mark.nasty(22)
@pytest.mark.parametrize(
    "odd", [{"stride": 2}, {"padding": 1, "dilation": 1}, {"stride": [1, 2]}, {"stride": (2,), "padding": [1]}], ids=str
)
def test_one_number_for_all_axes_is_rechecked_too(odd: dict, nets: Any, capsys: Any):
    torch.save(with_odd(**odd), "m.pt")
    assert run(capsys, "m.pt")[0] == 0
    assert recheck(["check", "m.mhsa.json", "--conv", "m.pt", "--mhsa", "m.mhsa.pt"]) == 0


@pytest.mark.nasty(22)
@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"stride": (torch.tensor(2), 1)}, "0: Conv2d: stride is (tensor(2), 1), not 2 whole numbers"),
        ({"dilation": (True, True)}, "0: Conv2d: dilation is (True, True), not 2 whole numbers"),
        ({"in_channels": torch.ones(2)}, "0: Conv2d: its attributes contradict each other: RuntimeError: Boolean"),
        ({"output_padding": None}, "0: Conv2d: output_padding is None, not 2 whole numbers"),
        ({"_forward_hooks": None}, "0: Conv2d: its attributes contradict each other: AttributeError"),
    ],
)
def test_numbers_that_are_none_are_named(odd: dict, words: str, nets: Any, capsys: Any):
    torch.save(with_odd(**odd), "m.pt")
    code, told = run(capsys, "m.pt")
    assert (code, words in told) == (2, True), told


@pytest.mark.nasty(22)
def test_a_missing_bias_is_named(nets: Any, capsys: Any):
    model = with_odd()
    del model[0]._parameters["bias"]  # type: ignore[operator]
    torch.save(model, "m.pt")
    code, told = run(capsys, "m.pt")
    assert (code, "0: Conv2d: it has no bias, not even None" in told) == (2, True), told


@pytest.mark.nasty(24)
def test_lazy_layers_are_told_to_run(nets: Any, capsys: Any):
    torch.save(nets.lazy(), "m.pt")
    code, told = run(capsys, "m.pt")
    assert (code, "run one batch through the network" in told) == (2, True), told
    torch.save(nn.Sequential(nn.Conv2d(3, 4, 3)).state_dict(), "s.pt")
    code, told = run(capsys, "s.pt", "--arch", "own_nets:lazy")
    assert (code, "run one batch through the network first" in told) == (2, True), told


@pytest.mark.nasty(24)
def test_shapes_alone_take_the_weights_of_the_file(nets: Any, capsys: Any):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    torch.save(model.state_dict(), "m.pt")
    assert run(capsys, "m.pt", "--arch", "own_nets:meta", "--input-size", 3, 8, 8)[0] == 0
    found = construct.convert(model)
    found.load_state_dict(torch.load("m.mhsa.pt", weights_only=True))
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(found(x), model(x), atol=1e-5)


def test_extra_state_is_no_tensor(nets: Any, capsys: Any):
    model = nets.Extra(nn.Conv2d(3, 4, 3))
    torch.save(model, "m.pt")
    code, told = run(capsys, "m.pt", "--allow", "own_nets.Extra", "--format", "safetensors")
    assert code == 0, told
    assert isinstance(construct.load("m.mhsa.safetensors").get_submodule("0"), construct.MHSA)
    torch.save(nn.Sequential(nn.Conv2d(3, 4, 3)).state_dict(), "n.pt")
    nets.made = lambda: model
    code, told = run(capsys, "n.pt", "--arch", "own_nets:made")
    assert (code, "_extra_state" in told) == (2, True), told


@pytest.mark.nasty(9)
def test_another_format_under_the_name_of_onnx_is_said(nets: Any, capsys: Any):
    torch.save(nn.Conv2d(3, 4, 3).state_dict(), "m.onnx")
    code, told = run(capsys, "m.onnx", "--stride", 1)
    assert code == 0
    assert "the name ends in .onnx, but the content is" in told


@pytest.mark.nasty(35)
def test_an_empty_batch_is_no_error(nets: Any, capsys: Any):
    torch.save(torch.zeros(0, 3, 8, 8), "x.pt")
    torch.save(with_odd(), "m.pt")
    code, told = run(capsys, "m.pt", "--example-inputs", "x.pt")
    assert code == 0, told


def test_what_cannot_be_rechecked_is_said(nets: Any, capsys: Any):
    torch.save(nn.Sequential(nets.Plain(3, 4, 3)), "m.pt")
    code, told = run(capsys, "m.pt", "--allow", "own_nets.Plain")
    assert code == 0
    assert "0: of class Plain: to recheck it takes a state dict" in told
    torch.save(with_odd(), "n.pt")
    assert "recheck" not in run(capsys, "n.pt")[1]


@pytest.mark.nasty(28)
def test_bfloat16_is_refused_for_onnx_before_the_work(nets: Any, capsys: Any):
    torch.save(with_odd().bfloat16(), "m.pt")
    code, told = run(capsys, "m.pt", "--input-size", 3, 8, 8, "--format", "onnx", "-o", "m.onnx")
    assert (code, "is bfloat16, which ONNX's exporter cannot store" in told) == (2, True), told


def test_a_stock_attention_takes_the_output_size_that_it_has():
    conv = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1)
    stock = to_torch_mha(construct.conv_to_mhsa(conv), (4, 5))
    x = torch.randn(2, 3, 4, 5)
    for size in ([7, 9], [2, 4, 7, 9]):
        assert torch.allclose(stock(x, output_size=size), conv(x, output_size=size), atol=1e-5)
    with pytest.raises(ValueError, match=r"outputs of size \(7, 9\), not \(8, 10\)"):
        stock(x, output_size=[8, 10])
    with pytest.raises(TypeError, match="for transposed layers only"):
        to_torch_mha(construct.conv_to_mhsa(nn.Conv1d(1, 1, 1)), (4,))(torch.zeros(1, 4), output_size=[4])
