"""``python -m construct.from_conv``: what it prints, what it writes, how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
from construct.command import demo
from construct.encoding.sharpness import alpha_for
from construct.files.writing import is_own_output
from construct.from_conv import main
from verify.__main__ import main as main_of_verify

ROOT = Path(__file__).parents[2]
NETWORKS = '''
import torch
from torch import nn
from torch.nn import functional as F

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

class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = nn.Conv2d(2, 2, 3)
        self.kernel = nn.Parameter(torch.ones(2, 2, 1, 1))

    def forward(self, x):
        return F.conv2d(self.module(x), self.kernel)

class Needy(nn.Module):
    def __init__(self, width):
        super().__init__()

class Failing(nn.Module):
    def __init__(self):
        raise KeyError("first line\\nsecond line")

def number():
    return 5

class Box:
    net = Net
'''


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in an empty folder: its exit code, its output, what it said on stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def command(*argv: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def model() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, (2, 3), stride=2, groups=2)
        )


@pytest.fixture
def saved(model: nn.Module, tmp_path: Path) -> Path:
    torch.save(model, tmp_path / "model.pt")
    return tmp_path / "model.pt"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state dict of ``Net``, and its architecture in ``net.py``."""
    (tmp_path / "net.py").write_text(NETWORKS)
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        exec(NETWORKS, names)
        torch.save(names["Net"]().state_dict(), tmp_path / "state.pt")
    return tmp_path / "state.pt"


def command(*argv: object, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """The command as a process of its own, with every warning an error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("environment", {})}
    arguments = [sys.executable, "-W", "error", "-m", "construct.from_conv", *map(str, argv)]
    return subprocess.Popen(
        arguments, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def one_line(err: str) -> str:
    """What stands on stderr, which must be one clear line."""
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    return err[:-1]


# ---- what a user sees ----------------------------------------------------------------------------------------------------


def test_the_demo_twice_in_a_row(tmp_path: Path) -> None:
    for _ in range(2):
        process = command(cwd=tmp_path)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert out.count("same sums  PROVED") == 6
        assert "on samples: 6 of 6 layers CHECKED, equal within rounding" in out
        assert "convolution calls: 6 in the original, 0 in the converted" in out
        assert "left unconverted" not in out
        assert files(tmp_path) == {"digits_cnn.mhsa.pt", "digits_cnn.mhsa.json"}


def test_the_converted_demo_reads_every_digit_alike(run: Run, tmp_path: Path) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    assert run()[0] == 0
    before, after = construct.load(demo.PATH).eval(), construct.load(tmp_path / "digits_cnn.mhsa.pt").eval()
    digits = datasets.load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    with torch.no_grad():
        expected = before(x).argmax(1)
        found = torch.cat([after(part).argmax(1) for part in x.split(300)])
    assert len(x) == 1797
    assert torch.equal(found, expected)
    assert (expected == torch.tensor(digits.target)).float().mean() > 0.95


def test_the_table(run: Run, saved: Path, tmp_path: Path) -> None:
    code, out, err = run(saved, "--input-size", 2, 8, 9)
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert [*rows[0][:4], *rows[0][5:]] == [
        "layer",
        "convolution",
        "heads",
        "D_h",
        "interior",
        "border",
        "bound",
        "|x|",
        "<=",
        "claim",
        "verdict",
    ]
    assert next(row for row in rows if row[:1] == ["0"])[:8] == ["0", "Conv2d", "2->4", "3x3", "p1", "9", "2", "1024"]
    assert next(row for row in rows if row[:1] == ["3"])[:8] == ["3", "Conv2d", "4->2", "2x3", "s2", "g2", "6", "1"]
    assert all(line == line.rstrip() for line in out.splitlines())
    assert "on 2 random inputs of 2x8x9" in out
    assert "convolution calls: 2 in the original, 0 in the converted" in out
    assert "seed: 0 " in out
    digest = json.loads(run(saved, "--json")[1])["sha256"]
    assert f"SHA-256: {digest}" in out
    assert f"written: {tmp_path / 'model.mhsa.pt'}" in out


def test_json_agrees_with_the_table(run: Run, saved: Path, tmp_path: Path) -> None:
    options = (saved, "--input-size", 2, 8, 9, "--samples", 3, "--seed", 5)
    _, table, _ = run(*options)
    code, out, err = run(*options, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
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
        assert (
            max(layer["interior"], layer["border"], layer["certificate"]["observed"]) <= layer["certificate"]["bound"]
        )
        assert 0 <= layer["ratio"] <= 1
        assert (layer["calls"], layer["exercised"]) == (3, True)
    network = facts["network"]
    (told,) = re.findall(r"numbers: original (\S+), converted (\S+) from float64 .*, outputs up to (\S+)", table)
    for text, name in zip(told, ("original", "converted", "largest"), strict=True):
        assert float(text) == pytest.approx(network["numbers"][name], rel=0.1)
    assert network["numbers"]["verdict"] == "CHECKED"
    assert network["numbers"]["converted"] <= network["numbers"]["limit"]
    assert network["calls"] == {"same": True, "difference": None, "compared": 4, "converted": 2, "unseen": []}
    assert network["same_expression"] is True
    assert network["convolution_calls"] == {"original": 2, "converted": 0}
    assert network["input_size"] == [2, 8, 9]
    assert (facts["samples"], facts["seed"], facts["exit_code"]) == (3, 5, 0)
    assert (facts["left_unconverted"], facts["torch"]) == ([], torch.__version__)
    assert (facts["input"], facts["output"]) == (str(saved), str(tmp_path / "model.mhsa.pt"))
    assert [layer["name"] for layer in facts["layers"]] == ["0", "3"]


def test_without_an_input_size_every_layer_is_judged_alone(run: Run, saved: Path) -> None:
    code, out, _ = run(saved)
    assert code == 0
    assert "network: not run; give --input-size" in out
    facts = json.loads(run(saved, "--json")[1])
    assert facts["network"] is None
    assert [layer["exercised"] for layer in facts["layers"]] == [None, None]
    assert all("generated inputs" in layer["checked"]["sentence"] for layer in facts["layers"])


def test_the_seed_repeats_a_run_and_matters(run: Run, saved: Path) -> None:
    options = (saved, "--input-size", 2, 8, 8, "--json", "--seed")
    assert run(*options, 3)[1] == run(*options, 3)[1]
    first, second = (json.loads(run(*options, seed)[1])["layers"][1]["bound"] for seed in (3, 4))
    assert first != second


def test_a_bare_convolution_and_every_execution(run: Run, tmp_path: Path) -> None:
    conv = nn.ConvTranspose1d(2, 3, 4, stride=3, padding=1, output_padding=2, dtype=torch.float64)
    torch.save(conv, tmp_path / "conv.pth")
    for execution in ("auto", "dense", "chunked"):
        code, out, _ = run("conv.pth", "--input-size", 2, 7, "--execution", execution)
        assert code == 0
        assert "ConvTranspose1d 2->3 4 s3 p1 op2" in out
        assert "(the model)" in out
        layer = construct.load("conv.mhsa.pt")
        assert isinstance(layer, construct.MHSA)
        assert layer.execution == execution
        assert layer.w_val.dtype == torch.float64


def test_the_converted_network_is_written_as_it_was(run: Run, model: nn.Sequential, tmp_path: Path) -> None:
    model[0].weight.requires_grad_(False)
    model[1].eval()
    torch.save(model, tmp_path / "model.pt")
    assert run("model.pt", "-o", "out.pt")[0] == 0
    converted = construct.load("out.pt")
    assert isinstance(converted, nn.Sequential)
    assert [module.training for module in converted] == [True, False, True, True]
    assert [converted[i].w_val.requires_grad for i in (0, 3)] == [False, True]
    x = torch.randn(2, 2, 6, 6)
    assert torch.allclose(converted.eval()(x), model.eval()(x), atol=1e-5)
    assert files(tmp_path) == {"model.pt", "out.pt", "out.json"}


# ---- state dicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option", [("--arch", "net:Net"), ("--model-file", "net.py:Net"), ("--model-file", "net.py:Box.net")]
)
def test_a_state_dict_with_its_architecture(option: tuple[str, str], run: Run, state: Path, tmp_path: Path) -> None:
    sys.modules.pop("net", None)
    before = torch.random.get_rng_state()
    code, out, err = run(state, *option, "--input-size", 2, 6, 6, "--json")
    assert code == 0
    assert torch.equal(torch.random.get_rng_state(), before)
    assert set(err.splitlines()) == {"a word from the network"}  # and stdout is one JSON document
    layers = {layer["name"]: layer for layer in json.loads(out)["layers"]}
    assert {name: (layer["exercised"], layer["calls"]) for name, layer in layers.items()} == {
        "first": (True, 2),
        "again": (True, 4),
        "unused": (False, 1),
    }
    assert "not exercised by the network" in layers["unused"]["checked"]["sentence"]
    assert json.loads(out)["network"]["convolution_calls"] == {"original": 3, "converted": 0}
    assert "unused: not exercised by the check" in run(state, *option, "--input-size", 2, 6, 6)[1]
    # A state dict comes out, and what it holds is the converted network.
    content = torch.load(tmp_path / "state.mhsa.pt", weights_only=True)
    assert {key.partition(".")[0] for key in content} == {"first", "again", "unused"}
    assert content["first.v"].shape == (9, 3)
    # It is recognised as our own, with its architecture and without.
    code, out, err = run("state.mhsa.pt", *option)
    assert (code, err) == (0, "")
    assert "already converted: 3 attention layers" in out
    assert "written: nothing, because there is no convolution left to convert" in out
    code, _, err = run("state.mhsa.pt")
    assert code == 2
    assert "it holds 3 attention layers of an earlier conversion" in one_line(err)


def test_a_partly_converted_state_dict(run: Run, state: Path) -> None:
    content = torch.load(state, weights_only=True)
    conv = nn.Conv2d(2, 4, 3, padding=1)
    conv.load_state_dict({"weight": content.pop("first.weight"), "bias": content.pop("first.bias")})
    layer = construct.conv_to_mhsa(conv, alpha=512.0)
    torch.save(content | {f"first.{key}": value for key, value in layer.state_dict().items()}, "partly.pt")
    assert run("partly.pt", "--model-file", "net.py:Net", "-o", "partly.out.pt")[0] == 0
    assert run(state, "--model-file", "net.py:Net", "-o", "whole.pt")[0] == 0
    partly, whole = (torch.load(name, weights_only=True) for name in ("partly.out.pt", "whole.pt"))
    assert partly.keys() == whole.keys()
    assert torch.equal(partly["first.v"], whole["first.v"] / 2)
    assert torch.equal(partly["again.w_val"], whole["again.w_val"])


def test_a_state_dict_keeps_its_number_format(run: Run, state: Path) -> None:
    content = {key: value.half() for key, value in torch.load(state, weights_only=True).items()}
    torch.save(content, "half.pt")
    assert run("half.pt", "--model-file", "net.py:Net", "--input-size", 2, 6, 6)[0] == 0
    assert torch.load("half.mhsa.pt", weights_only=True)["first.w_val"].dtype == torch.float16


@pytest.mark.parametrize(
    ("options", "what"),
    [
        pytest.param([], "a state dict without its architecture: give --arch pkg.module:factory or", id="none"),
        pytest.param(["--arch", "net"], "net: names no network (write pkg.module:factory)", id="no name"),
        pytest.param(["--arch", "no.such.module:Net"], "no.such.module:Net: ModuleNotFoundError", id="no module"),
        pytest.param(["--arch", "net:Nothing"], "AttributeError", id="no attribute"),
        pytest.param(["--arch", "net:Needy"], "missing 1 required positional argument: 'width'", id="arguments"),
        pytest.param(["--model-file", "net.py:Failing"], "KeyError: 'first line\\nsecond line'", id="fails"),
        pytest.param(["--model-file", "net.py:number"], "makes an object of class int, not an nn.Module", id="number"),
        pytest.param(
            ["--model-file", "net.py:Functional"],
            "does not fit net.py:Functional: ",
            id="other",
        ),
        pytest.param(["--model-file", "none.py:Net"], "none.py: no such file", id="no file"),
        pytest.param(["--model-file", "state.pt:Net"], "state.pt is no Python file", id="no Python"),
        pytest.param(["--arch", "a:B", "--model-file", "c.py:D"], "not allowed with argument --arch", id="both"),
    ],
)
def test_architectures_that_do_not_fit(options: list[str], what: str, run: Run, state: Path) -> None:
    before = files(state.parent)
    code, out, err = run(state, *options)
    assert (code, out) == (2, "")
    assert what in one_line(err)
    assert err.startswith("error: ")
    assert files(state.parent) - {"__pycache__"} == before


def test_a_whole_module_needs_no_architecture(run: Run, saved: Path) -> None:
    assert "leave out net:Net" in one_line(run(saved, "--arch", "net:Net")[2])
    assert "go with a MODEL" in one_line(run("--arch", "net:Net")[2])


# ---- what is left over ---------------------------------------------------------------------------------------------------


def test_functional_convolutions_are_counted_and_reported(run: Run, state: Path) -> None:
    names: dict[str, Any] = {}
    exec(NETWORKS, names)
    torch.save(names["Functional"]().state_dict(), state)
    options = (state, "--model-file", "net.py:Functional", "--input-size", 2, 6, 6)
    code, out, _ = run(*options)
    assert code == 1
    assert "convolution calls: 2 in the original, 1 in the converted (2 executed, 1 converted)" in out
    assert "left unconverted: convolutions that the network calls as functions" in out
    assert run(*options, "--partial")[0] == 0


def test_what_cannot_be_converted_is_listed(run: Run, model: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = float("nan")
    torch.save(model, tmp_path / "model.pt")
    code, out, err = run("model.pt", "--partial")
    assert (code, err) == (0, "")
    assert "left unconverted: 0: Conv2d: its weight has entries that are not finite" in out
    code, out, _ = run("model.pt", "--json")
    assert code == 1
    facts = json.loads(out)
    assert facts["left_unconverted"] == [
        {"path": "0", "class": "Conv2d", "reason": "its weight has entries that are not finite"}
    ]
    assert facts["exit_code"] == 1
    assert [layer["name"] for layer in facts["layers"]] == ["3"]
    # The rest of a partly converted network is converted later.
    partly: Any = construct.load("model.mhsa.pt")
    with torch.no_grad():
        partly[0].weight[0, 0, 0, 0] = 1.0
    construct.save(partly, "partly.pt")
    assert run("partly.pt", "--input-size", 2, 6, 6)[0] == 0
    for options in ((), ("--input-size", 2, 6, 6)):
        code, out, err = run("partly.mhsa.pt", *options)
        assert (code, err) == (0, "")
        assert "already converted: 2 attention layers" in out
    assert not Path("partly.mhsa.mhsa.pt").exists()


def test_nothing_can_be_converted(run: Run, model: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
        model[3].bias.fill_(float("inf"))
    torch.save(model, tmp_path / "model.pt")
    code, out, err = run("model.pt")
    assert (code, out) == (2, "")
    said = "error: model.pt: no convolution could be converted: 0: Conv2d: its weight has entries that are not finite"
    assert one_line(err) == said + "; and 1 more"
    assert run("model.pt", "--partial")[:2] == (2, "")
    assert files(tmp_path) == {"model.pt"}


def test_no_convolution_at_all(run: Run, tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "linear.pt")
    assert run("linear.pt") == (2, "", "error: linear.pt: no convolution found (give a network that has one)\n")


# ---- sharpness -----------------------------------------------------------------------------------------------------------


def test_heads_that_leak_are_refuted_by_samples_alone(run: Run, saved: Path) -> None:
    """Without a certificate nothing says how much they may leak."""
    code, out, err = run(saved, "--input-size", 2, 6, 6, "--alpha", 3, "--no-certify")
    assert (code, err) == (1, "")
    assert out.count(": REFUTED: at ") == 2
    assert "the heads leak attention to other keys" in out
    assert "written: nothing, because a layer is REFUTED" in out
    assert files(saved.parent) == {"model.pt"}
    facts = json.loads(run(saved, "--alpha", 3, "--json", "--no-certify")[1])
    assert facts["output"] is None
    assert {layer["verdict"]["name"] for layer in facts["layers"]} == {"REFUTED"}
    assert [layer["alpha"] for layer in facts["layers"]] == [3.0, 3.0]


@pytest.mark.parametrize("alpha", [0.05, 1, 16, 46, 60, 104, 1024])
def test_any_sharpness_is_judged_alike(alpha: float, run: Run, saved: Path) -> None:
    """What leaks is part of the claim, whoever chose the sharpness, and however little it is."""
    code, out, err = run(saved, "--input-size", 2, 6, 6, "--alpha", alpha)
    assert (code, err) == (0, "")
    claim = "within" if alpha < 104 else "same sums"
    assert len(re.findall(rf"{claim} +PROVED", out)) == 2
    assert ("the same expression" in out) == (alpha >= 104)
    assert ("heads leak attention by choice" in out) == (alpha < 104)
    facts = json.loads((saved.parent / "model.mhsa.json").read_text())
    assert [layer["verdict"] for layer in facts["layers"]] == ["PROVED"] * 2
    assert main_of_verify(["check", "model.mhsa.json", "--conv", "model.pt", "--mhsa", "model.mhsa.pt"]) == 0


def test_a_difference_can_be_claimed(run: Run, saved: Path) -> None:
    code, out, _ = run(saved, "--within", "0.5", "--json")
    assert code == 0
    assert [layer["certificate"]["within"] for layer in json.loads(out)["layers"]] == [0.5, 0.5]
    code, out, _ = run(saved, "--within", "1e-12")
    assert code == 1
    assert out.count(": UNDECIDED: the bound ") == 2


def test_a_tolerance_is_proved_within_its_leakage(run: Run, saved: Path) -> None:
    code, out, err = run(saved, "--input-size", 2, 6, 6, "--tolerance", "0.001", "--json")
    assert (code, err) == (0, "")
    for layer in json.loads(out)["layers"]:
        assert layer["alpha"] == pytest.approx(alpha_for(tolerance=0.001, dims=2), rel=1e-6)
        certificate = layer["certificate"]
        assert layer["verdict"]["name"] == certificate["verdict"] == "PROVED"
        assert 0 < certificate["leakage"] < certificate["bound"] <= certificate["within"]
        assert 0 < max(layer["interior"], layer["border"]) <= certificate["bound"]
    network = json.loads(out)["network"]
    assert (network["calls"]["same"], network["same_expression"], network["numbers"]["verdict"]) == (
        True,
        False,
        "UNDECIDED",
    )
    assert network["numbers"]["original"] < network["numbers"]["limit"] < network["numbers"]["converted"]
    # Without a certificate only rounding is allowed for, and that much leakage is more.
    assert run(saved, "--input-size", 2, 6, 6, "--tolerance", "0.001", "--no-certify")[0] == 1


def test_a_tolerance_below_every_format_is_sharp(run: Run, saved: Path) -> None:
    code, out, _ = run(saved, "--tolerance", "1e-60", "--json")
    assert code == 0
    alphas = [layer["alpha"] for layer in json.loads(out)["layers"]]
    assert alphas == pytest.approx([alpha_for(tolerance=1e-60, dims=2)] * 2, rel=1e-6)
    assert run(saved, "--alpha", "auto")[0] == 0
    assert run(saved, "--alpha", "1e39")[0] == 0
    code, _, err = run(saved, "--alpha", "1e308")
    assert code == 2
    assert "1e+308 is too large" in one_line(err)


# ---- bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "what"),
    [
        pytest.param(["missing.pt"], "missing.pt: no such file (check the path)", id="missing"),
        pytest.param(["."], "is no name of a file", id="here"),
        pytest.param([".."], "..: is a directory", id="directory"),
        pytest.param(["/"], "is no name of a file", id="root"),
        pytest.param([""], "is no name of a file", id="empty name"),
        pytest.param(["text.txt"], "text.txt: not a model file", id="text"),
        pytest.param(["model.pt", "-o", "model.pt"], "is the input itself", id="onto itself"),
        pytest.param(["model.pt", "-o", "text.txt"], "text.txt: exists and is not our own output", id="foreign"),
        pytest.param(["model.pt", "-o", "none/out.pt"], "there is no folder none", id="no folder"),
        pytest.param(["model.pt", "--wrong"], "unrecognized arguments: --wrong", id="flag"),
        pytest.param(["model.pt", "--sampl", "3"], "unrecognized arguments", id="abbreviation"),
        pytest.param(["model.pt", "extra.pt"], "unrecognized arguments: extra.pt", id="two models"),
        pytest.param(["--input-size", "2", "8", "model.pt"], "MODEL goes before the options", id="order"),
        pytest.param(["model.pt", "--input-size", "2", "0", "8"], "0 is not positive", id="size 0"),
        pytest.param(["model.pt", "--input-size", "2"], "does not run on an input of size 2", id="too short"),
        pytest.param(
            ["model.pt", "--input-size", "3", "8", "8"], "does not run on an input of size 3 8 8", id="channels"
        ),
        pytest.param(
            ["model.pt", "--input-size", "2", "1", "1"], "does not run on an input of size 2 1 1", id="too small"
        ),
        pytest.param(["model.pt", "--samples", "0"], "0 is not positive", id="samples"),
        pytest.param(["model.pt", "--seed", "-1"], "-1 is not between", id="seed"),
        pytest.param(["model.pt", "--seed", "1.5"], "'1.5' is not a whole number", id="seed 1.5"),
        pytest.param(["model.pt", "--alpha", "0"], "0 is not a positive number", id="alpha 0"),
        pytest.param(["model.pt", "--alpha", "nan"], "nan is not a positive number", id="alpha nan"),
        pytest.param(["model.pt", "--alpha", "inf"], "inf is not a positive number", id="alpha inf"),
        pytest.param(["model.pt", "--alpha", "high"], "'high' is not a number", id="alpha text"),
        pytest.param(["model.pt", "--tolerance", "1"], "1 does not lie between 0 and 1", id="tolerance"),
        pytest.param(["model.pt", "--tolerance", "0.1", "--alpha", "5"], "not allowed with", id="both"),
        pytest.param(["model.pt", "--execution", "magic"], "invalid choice: 'magic'", id="execution"),
    ],
)
def test_bad_input_is_one_line(options: list[str], what: str, run: Run, saved: Path) -> None:
    (saved.parent / "text.txt").write_text("just\nsome text")
    before = files(saved.parent)
    code, out, err = run(*options)
    assert (code, out) == (2, "")
    assert what in one_line(err)
    assert err.startswith("error: ")
    assert files(saved.parent) == before


def test_a_foreign_class_is_named(run: Run, tmp_path: Path) -> None:
    class Net(nn.Module):
        pass

    Net.__qualname__, Net.__module__ = "Net", __name__
    globals()["Net"] = Net
    try:
        torch.save(Net(), tmp_path / "net.pt")
    finally:
        del globals()["Net"]
    line = one_line(run("net.pt")[2])
    assert line.startswith(f"error: net.pt: holds classes that are not allowed: {__name__}.Net (save a state dict")


def test_layers_that_contradict_themselves(run: Run, model: nn.Sequential, tmp_path: Path) -> None:
    del model[0].stride
    torch.save(model, tmp_path / "model.pt")
    code, out, _ = run("model.pt")
    assert code == 1
    assert "left unconverted: 0: Conv2d: its attributes contradict each other" in out
    assert "no attribute 'stride'" in out
    assert run("model.pt", "--partial")[0] == 0


def test_too_little_memory_is_said_with_figures(run: Run, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("construct.errors.available_bytes", lambda device: 10_000)
    code, out, err = run(saved, "--input-size", 2, 30, 30, "--execution", "dense")
    assert (code, out) == (2, "")
    assert "0.0 MiB are free on cpu" in one_line(err)
    assert files(saved.parent) == {"model.pt"}


def test_debug_shows_where(run: Run) -> None:
    code, _, err = run("missing.pt", "--debug")
    assert code == 2
    assert err.startswith("Traceback")
    assert err.splitlines()[-1] == "error: missing.pt: no such file (check the path)"


def test_help(run: Run) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert "exit codes:" in out


# ---- outputs -------------------------------------------------------------------------------------------------------------


def test_own_output_is_replaced_and_foreign_files_need_force(run: Run, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "out.pt").write_text("precious")
    assert run(saved, "-o", "out.pt")[0] == 2
    assert (tmp_path / "out.pt").read_text() == "precious"
    assert run(saved, "-o", "out.pt", "--force")[0] == 0
    assert is_own_output(tmp_path / "out.pt")
    first = (tmp_path / "out.pt").read_bytes()
    assert run(saved, "-o", "out.pt", "--alpha", "256")[0] == 0
    assert (tmp_path / "out.pt").read_bytes() != first
    assert files(tmp_path) == {"model.pt", "out.pt", "out.json"}


@pytest.mark.parametrize(
    ("place", "failure", "expected", "said"),
    [
        ("construct.command.opening.conv_to_mhsa", KeyboardInterrupt(), 130, "interrupted"),
        ("construct.command.output.staged", KeyboardInterrupt(), 130, "interrupted"),
        ("pathlib.Path.replace", KeyboardInterrupt(), 130, "interrupted"),
        ("os.fsync", OSError(28, "No space left on device"), 2, "out.pt: cannot be written: No space left on device"),
        ("construct.command.main.substitute", MemoryError(), 2, "out of memory"),
        (
            "construct.command.main.substitute",
            ZeroDivisionError("a bug"),
            2,
            "ZeroDivisionError: a bug (--debug shows where)",
        ),
    ],
)
def test_a_failure_leaves_the_earlier_output(
    *,
    place: str,
    failure: BaseException,
    expected: int,
    said: str,
    run: Run,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run(saved, "-o", "out.pt")[0] == 0
    before = Path("out.pt").read_bytes()

    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(place, fail)
        code, out, err = run(saved, "-o", "out.pt", "--alpha", "256")
    assert (code, out) == (expected, "")
    assert said in one_line(err)
    assert Path("out.pt").read_bytes() == before
    assert files(saved.parent) == {"model.pt", "out.pt", "out.json"}


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_the_middle(kind: signal.Signals, state: Path, tmp_path: Path) -> None:
    waiting = (
        "\nimport time, pathlib\n"
        "class Slow(Net):\n    def forward(self, x):\n        pathlib.Path('running').touch()\n        time.sleep(60)\n"
    )
    with (tmp_path / "net.py").open("a") as file:
        file.write(waiting)
    process = command(state, "--model-file", "net.py:Slow", "--input-size", 2, 6, 6, cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "running").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(kind)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert files(tmp_path) - {"__pycache__"} == {"net.py", "state.pt", "running"}


def test_a_reader_who_has_seen_enough(saved: Path, tmp_path: Path) -> None:
    with command(saved, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 0
    assert files(tmp_path) == {"model.pt", "model.mhsa.pt", "model.mhsa.json"}


def test_a_terminal_of_few_characters(saved: Path, tmp_path: Path) -> None:
    process = command(saved, cwd=tmp_path, environment={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.isascii()
    assert "| alpha |" in out


def test_names_from_the_file_cannot_play_with_the_terminal(run: Run, tmp_path: Path) -> None:
    names = ("\x1b[31mred", "[bold]plain", "two\nlines", "\u202eturned")
    torch.save(nn.Sequential(OrderedDict((name, nn.Conv2d(1, 1, 1)) for name in names)), tmp_path / "a\x1b[1m.pt")
    code, out, err = run("a\x1b[1m.pt", "--input-size", 1, 3, 3)
    assert (code, err) == (0, "")
    assert out.replace("\n", "").isprintable()
    assert all(shown in out for shown in (r"'\x1b[31mred'", " [bold]plain ", r"'two\nlines'", r"'\u202eturned'"))
    assert [layer["name"] for layer in json.loads(run("a\x1b[1m.pt", "--json")[1])["layers"]] == list(names)
    assert one_line(run("b\x1b[1m.pt")[2]) == r"error: 'b\x1b[1m.pt': no such file (check the path)"


def test_values_that_are_not_finite_are_still_json(run: Run, tmp_path: Path) -> None:
    conv = nn.Conv2d(1, 1, 3)
    nn.init.constant_(conv.weight, 3e38)
    torch.save(conv, tmp_path / "huge.pt")
    code, out, _ = run("huge.pt", "--json", "--input-size", 1, 5, 5)
    assert code == 1
    facts = json.loads(out, parse_constant=pytest.fail)
    assert facts["layers"][0]["verdict"]["name"] == "UNDECIDED"


def test_the_command_works_outside_the_main_thread(saved: Path, tmp_path: Path) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main([str(saved)])))
    thread.start()
    thread.join()
    assert codes == [0]


def test_signals_are_as_they_were(run: Run, saved: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    run(saved)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_terminal_gets_its_own_width(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main([str(saved)]) == 0
    table = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).partition("interior, border:")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    assert table.count("PROVED") == 2


def test_the_first_command_fits_a_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 30 lines of 100 columns; no line is broken within a word."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main([]) == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert len(lines) <= 30
    assert all(len(line) <= 100 for line in lines if not line.startswith("input: "))
