"""``python -m construct.from_conv``: its output, its files, and its exit codes."""

import json
import re
import shlex
import signal
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import construct
import verify
from commands import ROOT, Command, names, process
from construct.command import demo
from construct.command.arguments import FORMATS
from construct.encoding.sharpness import alpha_for_tolerance
from construct.from_conv import main

NETWORKS = '''
import torch
from torch import nn

class Net(nn.Module):
    """One convolution is used twice, one never; it talks, and it draws random numbers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.again = nn.Conv2d(4, 4, 3, padding="same", padding_mode="circular")
        self.unused = nn.Conv2d(4, 9, 5)
        torch.rand(1)

    def forward(self, x):
        print("a word from the network")
        return {"sum": self.again(self.again(self.first(x))), "parts": [x, (x,)]}

def Other():
    return nn.Conv2d(2, 2, 3)

class Needy(nn.Module):
    def __init__(self, width):
        super().__init__()

class Failing(nn.Module):
    def __init__(self):
        raise KeyError("first line\\nsecond line")

def number():
    return 5

class Unusual(BaseException):
    pass

def cancelled():
    raise Unusual("no Exception")

class Box:
    net = Net
'''


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, (2, 3), stride=2, groups=2)
    )


@pytest.fixture
def saved(model: nn.Module, from_conv: Command) -> Path:
    torch.save(model, "model.pt")
    return Path("model.pt").resolve()


def built(name: str) -> nn.Module:
    """A network from the file above."""
    scope: dict[str, Any] = {}
    exec(NETWORKS, scope)
    return scope[name]()


@pytest.fixture
def state(from_conv: Command) -> Path:
    """The state dict of ``Net``, and its architecture in ``net.py``."""
    Path("net.py").write_text(NETWORKS)
    torch.save(built("Net").state_dict(), "state.pt")
    return Path("state.pt").resolve()


def test_the_demo_twice_in_a_row(from_conv: Command) -> None:
    for _ in range(2):
        running = process()
        out, err = running.communicate(timeout=60)
        assert (running.returncode, err) == (0, "")
        assert out.count("same sums  PROVED") == 6
        assert "on samples: 6 of 6 layers CHECKED, equal within rounding" in out
        assert "convolution calls: 6 in the original, 0 in the converted" in out
        assert "left unconverted" not in out
        assert names() == {"digits_cnn.mhsa.pt", "digits_cnn.mhsa.json"}


def test_the_converted_demo_reads_every_digit_alike(from_conv: Command) -> None:
    from_conv.prints()
    before, after = construct.load(demo.PATH).eval(), construct.load("digits_cnn.mhsa.pt").eval()
    pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
    x = pixels.float().view(-1, 1, 8, 8) / 16
    with torch.no_grad():
        expected = before(x).argmax(1)
        predicted = torch.cat([after(part).argmax(1) for part in x.split(300)])
    assert len(x) == 1797
    assert torch.equal(predicted, expected)
    assert (expected == labels).float().mean() > 0.95


def test_json_agrees_with_the_table(from_conv: Command, saved: Path) -> None:
    options = (saved, "--input-size", 2, 8, 9, "--samples", 3, "--seed", 5)
    table, facts = from_conv.prints(*options), from_conv.facts(*options)
    rows = [line.split() for line in table.splitlines()]
    for layer in facts["layers"]:
        row = next(row for row in rows if row[:1] == [layer["name"]])
        words = [layer["name"], *layer["convolution"].split(), str(layer["heads"]), str(layer["head_dim"])]
        figures = [f"{layer[name]:.2g}" for name in ("interior", "border")]
        claim = [f"{layer['certificate']['input_bound']:g}", "on", "x".join(map(str, layer["certificate"]["grid"]))]
        assert [*row[: len(words) + 3], *row[len(words) + 4 :]] == [
            *words, f"{layer['alpha']:g}", *figures, *claim, "same", "sums", layer["verdict"]["name"]
        ]  # fmt: skip
        bound = layer["certificate"]["bound"]
        assert bound <= float(row[len(words) + 3]) <= 1.1 * bound  # rounded up
        assert layer["checked"]["sentence"].endswith("(seed 5)")
        assert layer["verdict"]["name"] == layer["certificate"]["verdict"] == "PROVED"
        assert max(layer["interior"], layer["border"], layer["certificate"]["observed"]) <= bound
        assert 0 <= layer["ratio"] <= 1
        assert (layer["calls"], layer["exercised"]) == (3, True)
    network = facts["network"]
    (printed,) = re.findall(r"numbers: original (\S+), converted (\S+) from float64, outputs up to (\S+)", table)
    for text, name in zip(printed, ("original", "converted", "largest"), strict=True):
        assert float(text) == pytest.approx(network["numbers"][name], rel=0.1)
    assert network["numbers"]["verdict"] == "CHECKED"
    assert network["numbers"]["converted"] <= network["numbers"]["limit"]
    assert network["calls"] == {"same": True, "difference": None, "compared": 3, "converted": 2, "unseen": []}
    assert network["same_expression"] is True
    assert network["convolution_calls"] == {"original": 2, "converted": 0}
    assert network["input_size"] == [2, 8, 9]
    assert (facts["samples"], facts["seed"], facts["exit_code"]) == (3, 5, 0)
    assert (facts["left_unconverted"], facts["torch"]) == ([], torch.__version__)
    assert (facts["input"], facts["output"]) == (str(saved), str(saved.parent / "model.mhsa.pt"))
    assert [layer["name"] for layer in facts["layers"]] == ["0", "3"]


def test_without_an_input_size_every_layer_is_judged_alone(from_conv: Command, saved: Path) -> None:
    assert "network: not run; give --input-size" in from_conv.prints(saved)
    facts = from_conv.facts(saved)
    assert facts["network"] is None
    assert [layer["exercised"] for layer in facts["layers"]] == [None, None]
    assert all("generated inputs" in layer["checked"]["sentence"] for layer in facts["layers"])


def test_the_seed_repeats_a_run_and_matters(from_conv: Command, saved: Path) -> None:
    first, again, other = (from_conv.facts(saved, "--input-size", 2, 8, 8, "--seed", seed) for seed in (3, 3, 4))
    assert first == again
    assert first["layers"][1]["bound"] != other["layers"][1]["bound"]


def test_a_bare_convolution_and_every_execution(from_conv: Command) -> None:
    torch.save(nn.ConvTranspose1d(2, 3, 4, 3, padding=1, output_padding=2, dtype=torch.float64), "conv.pth")
    for execution in ("auto", "dense", "axial"):
        out = from_conv.prints("conv.pth", "--input-size", 2, 7, "--execution", execution)
        assert "ConvTranspose1d 2->3 4 s3 p1 op2" in out
        assert "(the model)" in out
        layer = construct.load("conv.mhsa.pt")
        assert isinstance(layer, construct.MHSA)
        assert layer.execution == execution
        assert layer.w_val.dtype == torch.float64


def test_the_converted_network_is_written_as_it_was(from_conv: Command, model: nn.Sequential) -> None:
    model[0].weight.requires_grad_(False)
    model[1].eval()
    torch.save(model, "model.pt")
    from_conv.prints("model.pt", "-o", "out.pt")
    converted = construct.load("out.pt")
    assert isinstance(converted, nn.Sequential)
    assert [module.training for module in converted] == [True, False, True, True]
    assert [converted[i].w_val.requires_grad for i in (0, 3)] == [False, True]
    x = torch.randn(2, 2, 6, 6)
    assert torch.allclose(converted.eval()(x), model.eval()(x), atol=1e-5)
    assert names() == {"model.pt", "out.pt", "out.json"}


def test_a_state_dict_with_its_architecture(from_conv: Command, state: Path) -> None:
    sys.modules.pop("net", None)
    before = torch.random.get_rng_state()
    for option in ("--arch net:Net", "--model-file net.py:Box.net", "--model-file net.py:Net"):
        options = (state, *option.split(), "--input-size", 2, 6, 6)
        code, out, err = from_conv(*options, "--json")
        assert code == 0
        assert torch.equal(torch.random.get_rng_state(), before)
        assert set(err.splitlines()) == {"a word from the network"}  # stdout is one JSON document
        layers = {layer["name"]: layer for layer in json.loads(out)["layers"]}
        assert {name: (layer["exercised"], layer["calls"]) for name, layer in layers.items()} == {
            "first": (True, 2),
            "again": (True, 4),
            "unused": (False, 1),
        }
        assert "not exercised by the network" in layers["unused"]["checked"]["sentence"]
        assert json.loads(out)["network"]["convolution_calls"] == {"original": 3, "converted": 0}
    assert "unused: not exercised by the check" in from_conv(*options)[1]
    # The output is a state dict of the converted network.
    content = torch.load("state.mhsa.pt", weights_only=True)
    assert {key.partition(".")[0] for key in content} == {"first", "again", "unused"}
    assert content["first.v"].shape == (9, 3)
    # It is recognised as ours, with and without its architecture.
    out = from_conv.prints("state.mhsa.pt", "--arch", "net:Net")
    assert "already converted: 3 attention layers" in out
    assert "written: nothing, because there is no convolution left to convert (--format or -o writes it" in out
    assert "it holds 3 attention layers of an earlier conversion" in from_conv.refuses("state.mhsa.pt")


def test_a_partly_converted_state_dict(from_conv: Command, state: Path) -> None:
    content = torch.load(state, weights_only=True)
    conv = nn.Conv2d(2, 4, 3, padding=1)
    conv.load_state_dict({"weight": content.pop("first.weight"), "bias": content.pop("first.bias")})
    layer = construct.conv_to_mhsa(conv, alpha=512.0)
    torch.save(content | {f"first.{key}": value for key, value in layer.state_dict().items()}, "partly.pt")
    from_conv.prints("partly.pt", "--model-file", "net.py:Net", "-o", "partly.out.pt")
    from_conv.prints(state, "--model-file", "net.py:Net", "-o", "whole.pt")
    partly, whole = (torch.load(name, weights_only=True) for name in ("partly.out.pt", "whole.pt"))
    assert partly.keys() == whole.keys()
    assert torch.equal(partly["first.v"], whole["first.v"] / 2)
    assert torch.equal(partly["again.w_val"], whole["again.w_val"])


def test_a_state_dict_keeps_its_number_format(from_conv: Command, state: Path) -> None:
    content = {key: value.half() for key, value in torch.load(state, weights_only=True).items()}
    torch.save(content, "half.pt")
    assert from_conv("half.pt", "--model-file", "net.py:Net", "--input-size", 2, 6, 6)[0] == 0
    assert torch.load("half.mhsa.pt", weights_only=True)["first.w_val"].dtype == torch.float16


NO_ARCHITECTURE = {
    "none": ("", "a state dict without its architecture: give --arch pkg.module:factory or"),
    "no name": ("--arch net", "net: names no network (write pkg.module:factory)"),
    "no module": ("--arch no.such.module:Net", "no.such.module:Net: ModuleNotFoundError"),
    "no attribute": ("--arch net:Nothing", "AttributeError"),
    "no attribute of a file": ("--model-file net.py:Nothing", "module 'net.py' has no attribute 'Nothing'"),
    "arguments": ("--arch net:Needy", "missing 1 required positional argument: 'width'"),
    "fails": ("--model-file net.py:Failing", "KeyError: 'first line\\nsecond line'"),
    "fails unusually": ("--model-file net.py:cancelled", "state.pt: Unusual: no Exception"),
    "number": ("--model-file net.py:number", "makes an object of class int, not an nn.Module"),
    "other": ("--model-file net.py:Other", "does not fit net.py:Other: "),
    "no file": ("--model-file none.py:Net", "none.py: no such file"),
    "no Python": ("--model-file state.pt:Net", "state.pt must be a Python file"),
    "both": ("--arch a:B --model-file c.py:D", "not allowed with argument --arch"),
}


@pytest.mark.parametrize("name", NO_ARCHITECTURE)
def test_architectures_that_do_not_fit(name: str, from_conv: Command, state: Path) -> None:
    options, reason = NO_ARCHITECTURE[name]
    line = from_conv.refuses(state, *options.split())
    assert reason in line
    assert ("(name something" in line) == (name in ("no attribute", "arguments", "fails", "no attribute of a file"))


@pytest.mark.parametrize("option", ["--arch argued:Net", "--model-file argued.py:Net"])
def test_the_network_s_own_code_reads_no_arguments_of_ours(
    option: str, from_conv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ``parse_args()``, on import or in a run, meets the program's name alone."""
    code = """
import argparse, sys
from torch import nn
options = argparse.ArgumentParser().parse_args()

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(2, 2, 3))

    def forward(self, x):
        assert sys.argv == ["prog"]
        return super().forward(x)
"""
    Path("argued.py").write_text(code)
    sys.modules.pop("argued", None)
    torch.save({"0.weight": torch.ones(2, 2, 3, 3), "0.bias": torch.ones(2)}, "model.pt")
    arguments = ["prog", "model.pt", *option.split(), "--input-size", "2", "5", "5"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 0
    assert sys.argv is arguments


def test_what_cannot_be_converted_is_listed(from_conv: Command, model: Any) -> None:
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = float("nan")
    torch.save(model, "model.pt")
    reason = "its weight has entries that are not finite"
    assert f"left unconverted: 0: Conv2d: {reason}" in from_conv.prints("model.pt", "--partial")
    Path("model.mhsa.pt").rename("kept.pt")
    Path("model.mhsa.json").unlink()
    facts = from_conv.facts("model.pt", code=1)
    assert (facts["output"], facts["certificate"], names()) == (None, None, {"model.pt", "kept.pt"})
    assert "because a convolution is left unconverted (--partial allows that)" in from_conv.prints("model.pt", code=1)
    assert facts["left_unconverted"] == [{"path": "0", "class": "Conv2d", "reason": reason}]
    assert facts["exit_code"] == 1
    assert [layer["name"] for layer in facts["layers"]] == ["3"]
    # The rest of a partly converted network can be converted later.
    partly: Any = construct.load("kept.pt")
    with torch.no_grad():
        partly[0].weight[0, 0, 0, 0] = 1.0
    construct.save(partly, "partly.pt")
    from_conv.prints("partly.pt", "--input-size", 2, 6, 6)
    for options in ((), ("--input-size", 2, 6, 6)):
        assert "already converted: 2 attention layers" in from_conv.prints("partly.mhsa.pt", *options)
    assert not Path("partly.mhsa.mhsa.pt").exists()


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "onnx"])
def test_what_is_converted_already_is_written_in_another_format(
    form: str, from_conv: Command, model: nn.Module, state: Path
) -> None:
    """With ``--format`` or ``-o``; there is nothing to certify, and the attention is the same."""
    torch.save(construct.convert(model), "model.pt")
    example = ("--input-size", 2, 6, 6)
    out = from_conv.prints("model.pt", *example, "--format", form)
    assert "no convolution is left to convert: the network is written as it is, without a certificate" in out
    assert f"written: model.mhsa.{form}" in out
    assert "PROVED" not in out
    expected = construct.load("model.pt").eval()
    x = torch.randn(2, 2, 6, 6)
    if form == "pt2":
        output = torch.export.load("model.mhsa.pt2").module()(x)
    else:
        written = construct.load(f"model.mhsa.{form}", model=model)
        output = written.eval()(x)
        assert written.state_dict().keys() == expected.state_dict().keys()
    torch.testing.assert_close(output, expected(x))
    from_conv.prints(state, "--model-file", "net.py:Net")
    options = ("state.mhsa.pt", "--model-file", "net.py:Net", "-o", f"again.{form}", *example)
    if form != "pt2":  # it prints while it is traced
        assert from_conv(*options)[0] == 0
        assert construct.load(f"again.{form}", layers=True).keys() == {"first", "again", "unused"}
    assert not [name for name in names() if name.endswith("json") and name != "state.mhsa.json"]


def test_nothing_can_be_converted(from_conv: Command, model: Any) -> None:
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
        model[3].bias.fill_(float("inf"))
    torch.save(model, "model.pt")
    line = "error: model.pt: no convolution could be converted: 0: Conv2d: its weight has entries that are not finite"
    assert from_conv.refuses("model.pt") == line + "; and 1 more"
    from_conv.refuses("model.pt", "--partial")
    assert names() == {"model.pt"}


def test_heads_that_leak_are_refuted_by_samples_alone(from_conv: Command, saved: Path) -> None:
    """Without a certificate nothing states how much they may leak."""
    out = from_conv.prints(saved, "--input-size", 2, 6, 6, "--alpha", 3, "--no-certify", code=1)
    assert len(re.findall(r": REFUTED: at \(\d, \d, \d, \d\) the convolution gives", out)) == 2
    assert "the heads leak attention to other keys" in out
    assert "written: nothing, because a layer is REFUTED" in out
    assert names() == {"model.pt"}
    facts = from_conv.facts(saved, "--alpha", 3, "--no-certify", code=1)
    assert facts["output"] is None
    assert {layer["verdict"]["name"] for layer in facts["layers"]} == {"REFUTED"}
    assert [layer["alpha"] for layer in facts["layers"]] == [3.0, 3.0]


@pytest.mark.parametrize(
    "alpha", [0.05, 60, 104, *(pytest.param(alpha, marks=pytest.mark.deep) for alpha in (1, 16, 46, 1024))]
)
def test_any_sharpness_is_judged_alike(alpha: float, from_conv: Command, verify_command: Command, saved: Path) -> None:
    """Leakage is part of the claim, whoever chose the sharpness and however small it is."""
    accepted = ("--within", 1e3) if alpha < 104 else ()
    out = from_conv.prints(saved, "--input-size", 2, 6, 6, "--alpha", alpha, *accepted)
    claim = "within" if alpha < 104 else "same sums"
    assert len(re.findall(rf"{claim} +PROVED", out)) == 2
    assert ("the same expression" in out) == (alpha >= 104)
    assert ("heads leak attention by choice" in out) == (alpha < 104)
    facts = json.loads(Path("model.mhsa.json").read_text())
    assert [layer["verdict"] for layer in facts["layers"]] == ["PROVED"] * 2
    verify_command.prints("check", "model.mhsa.json", "--conv", "model.pt", "--mhsa", "model.mhsa.pt")


def test_a_difference_can_be_claimed(from_conv: Command, saved: Path) -> None:
    layers = from_conv.facts(saved, "--within", "0.5")["layers"]
    assert [layer["certificate"]["within"] for layer in layers] == [0.5, 0.5]
    assert from_conv.prints(saved, "--within", "1e-12", code=1).count(": UNDECIDED: the bound ") == 2


@pytest.mark.parametrize("options", [("--alpha", 0.05), ("--alpha", 4), ("--tolerance", 0.001)], ids=str)
def test_a_bound_that_says_little_is_no_proof(options: tuple[Any, ...], from_conv: Command, saved: Path) -> None:
    """Above one percent of a layer's largest output somebody has to ask for it; the line says how."""
    options = (saved, "--input-size", 2, 6, 6, *options)
    facts = from_conv.facts(*options, code=1)
    assert names() == {"model.pt"}
    assert {layer["verdict"]["name"] for layer in facts["layers"]} == {"UNDECIDED"}
    assert all(layer["certificate"]["verdict"] == "UNDECIDED" for layer in facts["layers"])
    assert all(layer["share_of_output"] > 0.01 for layer in facts["layers"])
    out = from_conv.prints(*options, code=1)
    assert "written: nothing, because a layer is UNDECIDED (--partial writes it nevertheless)" in out
    largest = max(layer["share_of_output"] for layer in facts["layers"])
    (shown,) = re.findall(r"within: the bound is at most (\S+) % of the largest output of its layer", out)
    assert 100 * largest <= float(shown) <= 101 * largest
    remedies = set(re.findall(r": UNDECIDED: the bound is \S+ % of its largest .* \(--within (\S+) accepts it", out))
    assert len(remedies) == 1
    assert from_conv.prints(*options, "--partial", code=1).splitlines()[-2:] == [
        f"written: {saved.parent / 'model.mhsa.pt'}",
        f"certificate: {saved.parent / 'model.mhsa.json'}",
    ]
    rechecked = verify.check(saved.parent / "model.mhsa.json", saved, saved.parent / "model.mhsa.pt")
    assert rechecked.verdict.name == "UNDECIDED"  # as the table says
    assert from_conv.prints(*options, "--within", *remedies).count("within  PROVED") == 2


def test_a_tolerance_is_proved_within_its_leakage(from_conv: Command, saved: Path) -> None:
    options = (saved, "--input-size", 2, 6, 6, "--tolerance", "0.0001")
    facts = from_conv.facts(*options)
    for layer in facts["layers"]:
        assert layer["alpha"] == pytest.approx(alpha_for_tolerance(0.0001, dims=2), rel=1e-6)
        assert layer["share_of_output"] < 0.01
        certificate = layer["certificate"]
        assert layer["verdict"]["name"] == certificate["verdict"] == "PROVED"
        assert 0 < certificate["leakage"] < certificate["bound"] <= certificate["within"]
        assert 0 < max(layer["interior"], layer["border"]) <= certificate["bound"]
    network = facts["network"]
    verdict = network["numbers"]["verdict"]
    assert (network["calls"]["same"], network["same_expression"], verdict) == (True, False, "UNDECIDED")
    assert network["numbers"]["original"] < network["numbers"]["limit"] < network["numbers"]["converted"]
    # Without a certificate only rounding is allowed, and this leakage exceeds it.
    from_conv.prints(*options, "--no-certify", code=1)


def test_a_tolerance_below_every_format_is_sharp(from_conv: Command, saved: Path) -> None:
    alphas = [layer["alpha"] for layer in from_conv.facts(saved, "--tolerance", "1e-60")["layers"]]
    assert alphas == pytest.approx([alpha_for_tolerance(1e-60, dims=2)] * 2, rel=1e-6)
    from_conv.prints(saved, "--alpha", "auto")
    from_conv.prints(saved, "--alpha", "1e39")
    assert "1e+308 is too large" in from_conv.refuses(saved, "--alpha", "1e308")


BAD_INPUT = {
    "here": (".", "must be the name of a file"),
    "root": ("/", "must be the name of a file"),
    "empty name": ("''", "must be the name of a file"),
    "folder": ("model.pt -o out/", "'out/' must be the name of a file"),
    "abbreviation": ("model.pt --sampl 3", "unrecognized arguments"),
    "no model": ("--arch net:Net", "go with a MODEL"),
    "two models": ("model.pt extra.pt", "unrecognized arguments: extra.pt"),
    "order": ("--input-size 2 8 model.pt", "MODEL goes before the options"),
    "size 0": ("model.pt --input-size 2 0 8", "0 is not positive"),
    "too short": ("model.pt --input-size 2", "does not run on an input of size 2"),
    "channels": ("model.pt --input-size 3 8 8", "does not run on an input of size 3 8 8"),
    "too small": ("model.pt --input-size 2 1 1", "does not run on an input of size 2 1 1"),
    "a claim uncertified": ("model.pt --no-certify --within 1e-3", "--within is for certificates"),
    "a bound uncertified": ("model.pt --no-certify --input-bound 4", "--input-bound is for certificates"),
    "seed": ("model.pt --seed -1", "-1 is not between"),
    "seed 1.5": ("model.pt --seed 1.5", "'1.5' is not a whole number"),
    "alpha 0": ("model.pt --alpha 0", "0 is not a positive number"),
    "alpha nan": ("model.pt --alpha nan", "nan is not a positive number"),
    "alpha inf": ("model.pt --alpha inf", "inf is not a positive number"),
    "alpha text": ("model.pt --alpha high", "'high' is not a number"),
    "tolerance": ("model.pt --tolerance 1", "1 does not lie between 0 and 1"),
    "both": ("model.pt --tolerance 0.1 --alpha 5", "not allowed with"),
    "a program": ("model.pt --format pt2", "takes the size of an input"),
    "format": ("model.pt -o x.onnx --format pt", "make them agree"),
    "no format": ("model.pt --format hdf5", "invalid choice"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_line(name: str, from_conv: Command, saved: Path) -> None:
    words, reason = BAD_INPUT[name]
    assert reason in from_conv.refuses(*shlex.split(words))


def test_debug_shows_where(from_conv: Command) -> None:
    code, _, err = from_conv("missing.pt", "--debug")
    assert code == 2
    assert err.startswith("Traceback")
    assert err.splitlines()[-1] == "error: missing.pt: no such file (check the path)"


def test_help_and_version(from_conv: Command, verify_command: Command) -> None:
    assert "exit codes:" in from_conv.prints("--help")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for command in (from_conv, verify_command):
        assert command.prints("--version") == f"{project['name']} {project['version']}\n"
    assert verify_command.prints(code=2) == verify_command.prints("--help")


BUG = ZeroDivisionError("a bug")


@pytest.mark.parametrize(
    ("place", "failure", "code", "message"),
    [
        ("construct.files.command_line.load_network.conv_to_mhsa", KeyboardInterrupt(), 130, "interrupted"),
        ("construct.command.output.staged", KeyboardInterrupt(), 130, "interrupted"),
        ("pathlib.Path.replace", KeyboardInterrupt(), 130, "interrupted"),
        ("construct.command.conversion.replaced", MemoryError(), 2, "out of memory"),
        ("construct.command.conversion.replaced", BUG, 2, "ZeroDivisionError: a bug (--debug shows where)"),
    ],
)
def test_a_failure_leaves_the_earlier_output(
    place: str, failure: BaseException, code: int, message: str, from_conv: Command, saved: Path
) -> None:
    from_conv.prints(saved, "-o", "out.pt")

    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, fail)
        assert message in from_conv.refuses(saved, "-o", "out.pt", "--alpha", "256", code=code)
    assert names() == {"model.pt", "out.pt", "out.json"}


def test_values_that_are_not_finite_are_still_json(from_conv: Command) -> None:
    conv = nn.Conv2d(1, 1, 3)
    nn.init.constant_(conv.weight, 3e38)
    torch.save(conv, "huge.pt")
    out = from_conv.prints("huge.pt", "--json", "--input-size", 1, 5, 5, code=1)
    facts = json.loads(out, parse_constant=pytest.fail)
    assert facts["layers"][0]["verdict"]["name"] == "UNDECIDED"


def test_the_command_works_outside_the_main_thread(saved: Path) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main([str(saved)])))
    thread.start()
    thread.join()
    assert codes == [0]


def test_signals_are_as_they_were(from_conv: Command, saved: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    from_conv(saved)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def on_a_terminal(columns: int, from_conv: Command, *words: object, code: int = 0) -> str:
    """The output on a terminal of this width, without colours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "xterm")
        patch.setattr(sys.stdout, "isatty", lambda: True)
        return re.sub(r"\x1b\[[0-9;]*m", "", from_conv.prints(*words, code=code))


def test_the_first_command_fits_a_screen(from_conv: Command) -> None:
    """A screen of 30 lines with 100 columns; no line breaks within a word."""
    lines = on_a_terminal(100, from_conv).splitlines()
    assert len(lines) <= 30
    assert all(len(line) <= 100 for line in lines if not line.startswith("input: "))


@pytest.mark.parametrize("columns", [20, 40, 60, 80])
def test_a_narrow_terminal_loses_no_name_and_no_verdict(columns: int, from_conv: Command, saved: Path) -> None:
    out = on_a_terminal(columns, from_conv, saved, "--within", 1e-30, "--partial", code=1)
    table = out.partition("0: UNDECIDED")[0]
    assert "verdict" in table
    assert table.count("UNDECIDED") == 2
    assert [line.split()[0] for line in table.splitlines() if line.endswith("UNDECIDED")] == ["0", "3"]
    assert max(map(len, table.splitlines())) <= 80
