"""The report page shows its input, names what it omits, and prints a command that works."""

import base64
import html
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import construct
import verify
from commands import ROOT, Command, python
from report_layers import seeded
from verify.report import writing
from verify.report.attention import picture
from verify.report.given_attention import given_picture
from verify.report.layer import NoPicture, ReportLayer
from verify.report.numbers import network_sentences, numbers_of, summary


def page_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def printed(text: str) -> list[str]:
    """The words after ``python`` in the command that the page prints."""
    *_, line = re.findall(r"<pre><code>(.*?)</code></pre>", text)
    first, *words = shlex.split(html.unescape(line))
    assert first == "python"
    return words


def test_the_commands_of_the_docs_page_work_as_printed_in_a_clone(tmp_path: Path) -> None:
    """The page comes without the files that it is about, so it says how they are made."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "construct").symlink_to(ROOT / "construct")
    for line in re.findall(r"<pre><code>python (.*?)</code></pre>", page_of(ROOT / "docs/demo.html")):
        done = python(*shlex.split(html.unescape(line)), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "verify check" in line
    assert "PROVED" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        "",
        "model.pt -o 'sub dir/out.pt'",
        "model.pt --format safetensors",
        "model.pt -o=-out.pt",
        "model.pt '--key=-b c'",
    ],
)
def test_the_printed_command_works_wherever_the_files_are(
    words: str, from_conv: Command, verify_command: Command
) -> None:
    """The first model is in the package, not in the current folder."""
    Path("sub dir").mkdir()
    content: Any = seeded(lambda: nn.Sequential(nn.Conv1d(1, 2, 3)))
    if "--key" in words:
        content = {"model": nn.Conv1d(1, 2, 3), "-b c": content}
    torch.save(content, "model.pt")
    from_conv.prints(*shlex.split(words), "--report", "page.html")
    module, name, *words_of_page = printed(page_of(Path("page.html")))
    assert (module, name) == ("-m", "verify")
    assert "PROVED" in verify_command.prints(*words_of_page)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--model-file", "net.py:net"], "is missing in model.pt, and no other names there fit its tensors"),
        pytest.param(
            ["--model-file", "net.py:net", "--input-size", 1, 8, "--format", "pt2"],
            "a program in .pt2 is not rechecked; the same weights as .pt or .safetensors are.",
            marks=pytest.mark.deep,
        ),
    ],
    ids=["normed", "pt2"],
)
def test_where_nothing_can_be_rechecked_it_says_why(options: list[Any], why: str, from_conv: Command) -> None:
    normed = "nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv1d(1, 2, 3)))"
    Path("net.py").write_text(f"from torch import nn\n\ndef net():\n    return {normed}\n")
    torch.save(eval(normed).state_dict(), "model.pt")
    assert from_conv("model.pt", *options, "--report", "page.html")[0] == 0
    text = page_of(Path("page.html"))
    assert "<pre>" not in text
    assert "These files are not rechecked" in text
    assert why in text


def test_distances_of_the_network_are_rounded_up_and_there_exactly() -> None:
    calls = {"same": True, "difference": None, "compared": 4, "converted": 1, "unseen": []}
    numbers = {"verdict": "CHECKED", "sentence": "", "original": 3.7253e-09, "converted": 1.2341e-07, "largest": 0.5}
    numbers |= {"predictions": {"agree": 3, "of": 4}, "other": 0}
    figures: Any = {
        **{"inputs": "2 random inputs", "calls": calls, "numbers": numbers, "max_abs": 1e-7, "same_expression": True},
        "convolution_calls": {"original": 1, "converted": 0},
    }
    sentences = network_sentences(figures)
    shown = [(n.text, n.exact) for sentence in sentences for n in sentence if not isinstance(n, str)]
    assert shown == [("3.73e-09", "3.7253e-09"), ("1.24e-07", "1.2341e-07"), ("0.5", "0.5")]
    assert "the same expression" in str(sentences[-1][0])
    unmeasured = {**numbers, "verdict": "REFUTED", "original": None, "other": 2, "sentence": "so"}
    other = {**calls, "same": False, "difference": "add goes on"}
    changed = figures | {"numbers": unmeasured, "calls": other, "max_abs": "inf", "same_expression": False}
    text = " ".join(str(part) for sentence in network_sentences(changed) for part in sentence)
    assert "calls: NOT the same on 2 random inputs: add goes on" in text
    assert "original and converted differ by at most " in text
    assert "3 of 4 predictions agree 2 indices or truth values differ REFUTED: so" in text
    assert network_sentences(figures | {"numbers": None})


def test_a_refuted_row_does_not_look_like_success(tmp_path: Path) -> None:
    conv = seeded(lambda: nn.Conv2d(3, 4, 3, padding=1))
    layer = construct.conv_to_mhsa(conv)
    with torch.no_grad():
        layer.v[4] = layer.v[0]
    verify.write_report(tmp_path / "page.html", conv, layer)
    text = page_of(tmp_path / "page.html")
    (row,) = re.findall(r'<span class="number difference">(.*?)</span>', text)
    assert "≤" not in row
    observed, allowed = re.findall(r'value="([^"]+)"', row)
    assert " &gt; " in row
    assert float(observed) > float(allowed)
    within = verify.certify(conv, layer, grid=(8, 8), within=1e-3)
    shown = ReportLayer("", conv, layer, None, within, within.verdict)
    parts = summary(shown, numbers_of(shown))
    assert [part if isinstance(part, str) else part.exact for part in parts][1:] == [" > ", "0.001"]
    assert "looks where the tap looks" not in text


def missing_strips(text: str) -> list[str]:
    return re.findall(r"<h4>Both layers at work</h4>\s*<p class=\"soft\">Not drawn: (.*?)</p>", text)


class Forgetful(nn.Module):
    """Has a layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Conv1d(1, 1, 3), nn.Conv1d(1, 1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_every_missing_strip_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    model = seeded(Forgetful)
    verify.write_report(path, model, construct.convert(model), torch.ones(1, 1, 8))
    assert missing_strips(page_of(path)) == ["the network did not call this layer."]
    conv = seeded(lambda: nn.Conv2d(3, 4, 3, padding=1))
    x = torch.ones(1, 3, 6, 6)
    x[0, 0, 2, 2] = float("inf")
    verify.write_report(path, conv, construct.conv_to_mhsa(conv), x)
    assert missing_strips(page_of(path)) == ["the input is not finite everywhere."]
    monkeypatch.setattr(writing, "MOST_DRAWN", 2)
    net = nn.Sequential(*(nn.Conv1d(1, 1, 3, padding=1) for _ in range(4)))
    verify.write_report(path, net, construct.convert(net), torch.ones(1, 1, 8))
    assert missing_strips(page_of(path)) == ["only the inputs of the first 2 layers are kept."] * 2


def attention(heads: int, *shape: int, layers: int = 1) -> dict[str, torch.Tensor]:
    keys = int(np.prod(shape))
    rows = seeded(lambda: torch.softmax(2 * torch.randn(layers, heads, keys, keys), -1))
    return {f"layer {k}": one.reshape(heads, *shape, *shape) for k, one in enumerate(rows)}


def numbers_in(shipped: dict[str, Any]) -> np.ndarray:
    raw = np.frombuffer(base64.b64decode(shipped["maps"]), "<u2" if shipped["bits"] == 16 else "u1")
    return raw / 65535 if shipped["bits"] == 16 else (raw / 255) ** 2


def test_a_shade_of_what_is_shipped_is_right() -> None:
    (maps,) = attention(3, 5, 5).values()
    exact = maps.numpy().astype(float)
    few = given_picture("a", exact, 10**9, 64)
    many = given_picture("a", exact, exact.size, 64)
    assert (few["bits"], many["bits"]) == (16, 8)
    assert np.abs(numbers_in(few) - exact.ravel()).max() <= 0.51 / 65535
    assert np.abs(np.sqrt(numbers_in(many)) - np.sqrt(exact.ravel())).max() <= 0.51 / 255
    assert "rounded to what a shade can show" in many["caption"]


def test_too_much_attention_asks_from_fewer_positions() -> None:
    (maps,) = attention(2, 6, 7).values()
    shipped = given_picture("a", maps.numpy(), 2 * 42 * 12, 64)
    assert shipped["queries"] == [[1, 3, 5], [1, 3, 5]]
    expected = maps.numpy()[:, 1::2, 1::2].ravel()
    assert np.abs(np.sqrt(numbers_in(shipped)) - np.sqrt(expected)).max() <= 0.51 / 255
    assert "from 3 × 3 of the 6 × 7 positions" in shipped["caption"]
    with pytest.raises(NoPicture, match="too many"):
        given_picture("a", maps.numpy(), 50, 64)


@pytest.mark.parametrize(
    ("conv", "shifts"),
    [(nn.Conv2d(2, 2, (2, 3), dilation=2), [[i, j] for i in (0, 2) for j in (-2, 0, 2)]),
     (nn.ConvTranspose1d(2, 2, 3, 2), [[1], [0], [-1]])], ids=["2-D", "T"]
)  # fmt: skip
def test_every_tap_is_found_by_its_shift(conv: Any, shifts: list[list[int]]) -> None:
    layer = construct.conv_to_mhsa(conv)
    with torch.no_grad():
        layer.w_qry.normal_()
    assert picture(ReportLayer("", conv, layer))["shifts"] == shifts
