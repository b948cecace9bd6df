"""The report page: its numbers are the certificate's, it loads nothing from elsewhere, and names never become markup."""

import base64
import copy
import hashlib
import io
import json
import re
import sys
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import construct
import verify
from commands import ROOT, Command, names
from construct.from_conv import main
from report_layers import SHOWN, drawn, network, own_attention, seeded
from verify.report import images
from verify.report import page as pages
from verify.report.attention import picture
from verify.report.layer import NoPicture, ReportLayer
from verify.report.live import crop
from verify.samples.sampling import generated_inputs
from verify.strategies import Case, cases


class Document(HTMLParser):
    """Parses a page: its elements with their attributes, and the text of some of them."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.inside: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag in ("script", "style", "title", "h1", "p", "li", "code"):
            self.inside.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.inside[-1]][-1] += data

    def values(self, name: str) -> list[float]:
        """The exact numbers of this name, in the order of the layers."""
        return [float(a["value"]) for tag, a in self.elements if tag == "data" and a["class"] == name]

    def data(self) -> dict[str, Any]:
        """The picture data, as the script reads it."""
        places = [a for tag, a in self.elements if tag == "script"]
        return json.loads(self.texts["script"][[a.get("id") for a in places].index("data")])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a network whose names try to be markup."""
    model = seeded(network)
    path = tmp_path_factory.mktemp("page") / "page.html"
    verify.write_report(path, model, construct.convert(model), torch.ones(1, 3, 6, 7))
    return path


@pytest.fixture(scope="module")
def demo_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the network that ships with the project, next to its certificate."""
    folder = tmp_path_factory.mktemp("demo")
    assert main(["-o", str(folder / "demo.pt"), "--report", str(folder / "demo.html")]) == 0
    return folder / "demo.html"


@pytest.fixture
def kept_demo() -> Path:
    return ROOT / "docs/demo.html"


def read(path: Path) -> Document:
    return Document(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["demo_page", "kept_demo", "hostile"])
def test_the_page_loads_nothing(name: str, request: pytest.FixtureRequest) -> None:
    document = read(request.getfixturevalue(name))
    for tag, attributes in document.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "audio", "video")
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        for key in {"src", "href", "srcset", "action", "data", "poster"} & attributes.keys():
            assert attributes[key].startswith("data:image/png;base64,")
    assert not re.search(r"url\(|@import", document.texts["style"][0])
    (policy,) = (a["content"] for _, a in document.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    for text in (document.texts["style"][0], document.texts["script"][-1]):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    script = document.texts["script"][-1]
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|innerHTML|\beval\(|import\(", script)
    assert set(re.findall(r"https?://[^\"' ]+", script)) <= {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_numbers_are_those_of_the_certificate_file(demo_page: Path) -> None:
    document, record = read(demo_page), json.loads(demo_page.with_name("demo.json").read_text())
    for key in ("bound", "observed", "rounding", "leakage", "taps"):
        expected = [max(map(float.fromhex, layer[key])) for layer in record["layers"]]
        shown = document.values(key)
        # The bound and the observed difference appear in the summary and in the table, from one source.
        assert shown == (expected if key not in ("bound", "observed") else [x for x in expected for _ in range(2)])
    assert document.values("input_bound") == [float.fromhex(layer["input_bound"]) for layer in record["layers"]]
    verdicts = [a["class"].split()[1] for tag, a in document.elements if a.get("class", "").startswith("verdict ")]
    assert verdicts == [layer["verdict"] for layer in record["layers"]]
    assert {assumption for layer in record["layers"] for assumption in layer["assumptions"]} <= {*document.texts["li"]}


def test_the_demo_in_the_docs_is_what_its_command_makes(demo_page: Path, kept_demo: Path) -> None:
    """docs/demo.html is the output of python -m construct.from_conv --report docs/demo.html in the root of a clone."""
    text = kept_demo.read_text(encoding="utf-8")
    assert kept_demo.stat().st_size <= 300_000
    assert "a handwritten digit" in text
    assert str(Path.cwd()) not in text
    assert "--conv construct/command/demo/digits_cnn.pt" in text
    kept, drawn = read(kept_demo), read(demo_page)
    assert kept.texts["style"] == drawn.texts["style"]
    assert kept.texts["script"][-1] == drawn.texts["script"][-1]
    same_data(kept.data(), drawn.data())
    same_data(*(json.loads(a["data-scores"]) for page in (kept, drawn) for _, a in page.elements if "data-scores" in a))
    assert [tag for tag, _ in kept.elements] == [tag for tag, _ in drawn.elements]


def same_data(one: Any, other: Any) -> None:
    """Assert that the pictures agree up to the last digits, which depend on the machine."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            if key in ("values", "expected"):
                a, b = (np.frombuffer(base64.b64decode(data[key]), "<f8") for data in (one, other))
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)
            elif key != "bytes":  # a shade may round the other way
                same_data(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same_data(a, b)
    else:
        assert one == (pytest.approx(other, rel=1e-4, abs=1e-4) if isinstance(one, float) else other)


def test_given_certificates_are_shown_as_they_are(tmp_path: Path) -> None:
    conv = seeded(lambda: nn.Conv2d(1, 2, 3))
    layer = construct.conv_to_mhsa(conv)
    certificate = verify.certify(conv, layer, grid=(7, 9), input_bound=3.0)
    verify.write_report(tmp_path / "page.html", conv, layer, certificates=certificate, title="A <b>title</b>")
    document = read(tmp_path / "page.html")
    assert document.values("bound") == [float(certificate.bound.max())] * 2
    assert document.values("input_bound") == [3.0]
    assert document.texts["title"] == document.texts["h1"] == ["A <b>title</b>"]
    (name,) = {a["value"] for tag, a in document.elements if a.get("class") == "interior"}
    assert float(name) == verify.compare(conv, layer, generated_inputs(conv, 1, 0)).interior


def test_a_bound_is_rounded_up_for_the_eye(demo_page: Path) -> None:
    pattern = r'<data class="(?:bound|rounding|leakage)" value="([^"]+)">([^<]+)</data>'
    shown = re.findall(pattern, demo_page.read_text())
    assert len(shown) > 12
    assert all(float(text) >= float(exact) for exact, text in shown)


def test_names_stay_text(hostile: Path) -> None:
    text, document = hostile.read_text(encoding="utf-8"), read(hostile)
    assert [tag for tag, _ in document.elements].count("script") == 2
    assert not [tag for tag, _ in document.elements if tag == "svg"]
    assert all(a["src"].startswith("data:") for tag, a in document.elements if tag == "img")
    assert "{{ 7 * 7 }}" in text
    assert "\u2028" not in text
    assert "\u202e" not in text


def test_data_cannot_end_its_script() -> None:
    value = {"</script>": ["<!--", "]]>", "\u2028\u2029", "&lt;", "\ud800"]}
    text = pages.in_script(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert text.isascii()
    assert json.loads(text) == value
    with pytest.raises(ValueError, match="JSON"):
        pages.in_script([float("nan")])


def rows_from(shown: dict[str, Any], factor: float = 1.0) -> np.ndarray:
    """The script's computation repeated in numpy: softmax(c·r), (heads, queries, keys)."""
    keys = np.array([*product(*map(range, shown["shape"]))], dtype=float)
    queries = np.array([*product(*shown["queries"])], dtype=float)
    delta = keys[None] - queries[:, None]
    if shown["radix"] is not None:
        delta = (delta @ np.array(shown["radix"], dtype=float))[..., None]
    r = np.concatenate([(delta**2).sum(-1, keepdims=True), delta], axis=-1)
    scores = factor * np.einsum("hp,qkp->hqk", np.array(shown["c"]), r)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("name", SHOWN)
def test_the_data_give_the_layers_own_attention(name: str) -> None:
    layer, shown = drawn(name)
    np.testing.assert_allclose(rows_from(shown), own_attention(layer, shown), rtol=1e-12, atol=1e-300)
    assert len(shown["centres"]) == len(shown["taps"]) == layer.heads


@pytest.mark.parametrize("name", SHOWN)
def test_what_leaks_is_below_the_bound_at_every_stop(name: str) -> None:
    _, shown = drawn(name)
    queries = [*product(*shown["queries"])]
    judged = 0
    for stop, factor in enumerate(shown["factors"]):
        rows = rows_from(shown, factor)
        for head, centre in enumerate(shown["centres"]):
            if centre is None:
                assert shown["bound_of"][head] is None
                continue
            for q, query in enumerate(queries):
                key = tuple(x + t for x, t in zip(query, centre["shift"], strict=True))
                if all(0 <= x < n for x, n in zip(key, shown["shape"], strict=True)):
                    leaked = np.delete(rows[head, q], np.ravel_multi_index(key, shown["shape"])).sum()
                    assert leaked <= shown["bounds"][shown["bound_of"][head]][stop] * (1 + 1e-9)
                    judged += 1
    assert judged > 100
    assert shown["factors"][-1] == 1.0
    assert shown["factors"][0] * shown["alpha"] == 0.25
    assert shown["factors"][-2] * shown["alpha"] == 1024


def output_from(shown: dict[str, Any], factor: float = 1.0) -> np.ndarray:
    """The script's output repeated in numpy: b + Σ_h P_h z_h for every query, with z the shipped values of all tokens."""
    shipped = np.frombuffer(base64.b64decode(shown["live"]["values"]), "<f8").reshape(-1, *shown["input"])
    z = np.pad(shipped, [(0, 0), *((0, 1) for _ in shown["input"])])  # a token of zeros has the source −1
    z = z[(slice(None), *np.ix_(*shown["sources"]))].reshape(len(z), -1)
    return shown["live"]["bias"] + np.einsum("hqk,hk->q", rows_from(shown, factor), z)


@settings(max_examples=20)
@given(case=cases(), factor=st.sampled_from([1.0, 0.25, 8.0]))
def test_the_data_give_any_layers_own_attention_and_output(case: Case, factor: float) -> None:
    """At the layer's sharpness and, with the slider, at that of a layer built softer or sharper."""
    x = case.x if case.x.dim() == case.conv.weight.dim() else case.x[None]
    layer, other = (construct.conv_to_mhsa(case.conv, alpha=alpha) for alpha in (0.75, 0.75 * factor))
    shown = picture(ReportLayer("", case.conv, layer, x=x))
    own = own_attention(copy.deepcopy(layer).double(), shown, torch.float64)
    np.testing.assert_allclose(rows_from(shown), own, rtol=1e-12, atol=1e-300)
    assert sorted(shown["taps"]) == [*range(layer.heads)]
    if shown["live"] is None:
        assert "too many" in shown["live_why"] or not len(x)
        return
    part, where = crop(x, shown["input"])
    assert (where == "") == (part.shape[2:] == x.shape[2:])
    conv = copy.deepcopy(case.conv).double()
    with torch.no_grad():
        expected = other.double()(part.double())[0, shown["live"]["channel"]].numpy().ravel()
        before = conv(part.double())[0, shown["live"]["channel"]].numpy().ravel()
        largest = float(layer.w_val.abs().max() * layer.w_out.abs().max() * x.abs().max())
    # No sum of |x W_val W_out| is larger.
    terms = layer.w_val.numel() / layer.groups * largest + abs(shown["live"]["bias"])
    np.testing.assert_allclose(output_from(shown, factor), expected, rtol=0, atol=1e-12 * terms)
    shipped = np.frombuffer(base64.b64decode(shown["live"]["expected"]), "<f8")
    np.testing.assert_allclose(shipped, before, rtol=0, atol=1e-12 * terms)


def test_attention_to_content_is_shipped_as_it_is() -> None:
    conv = seeded(lambda: nn.Conv2d(2, 2, 3, padding=1))
    layer = construct.conv_to_mhsa(conv, alpha=0.5)
    with torch.no_grad():
        layer.w_qry.normal_()
        layer.w_key.normal_()
    x = torch.randn(1, 2, 9, 9)
    shown = picture(ReportLayer("", conv, layer, x=x))
    shape = [layer.heads, *(len(axis) for axis in shown["queries"]), *shown["shape"]]
    shipped = np.frombuffer(base64.b64decode(shown["maps"]), "<u2").reshape(shape) / 65535
    with torch.no_grad():
        own = layer.attention_probabilities(crop(x, shown["input"])[0])
    assert np.abs(shipped.ravel() - own.numpy().ravel()).max() <= 0.5 / 65535 + 1e-12
    assert "depends on the image" in shown["caption"]


def test_what_the_page_cannot_compute_is_said(tmp_path: Path) -> None:
    conv = seeded(lambda: nn.Conv2d(3, 2, 9, 9))  # a patch embedding: 81 heads
    layer = construct.conv_to_mhsa(conv)
    x = torch.rand(1, 3, 18, 18)
    shown = picture(ReportLayer("", conv, layer, x=x))
    assert shown["live"] is None
    assert shown["image"] is not None
    verify.write_report(tmp_path / "page.html", conv, layer, x)
    text = (tmp_path / "page.html").read_text()
    assert "The slider does not change these: only the first 64 of its heads are drawn." in text
    small = seeded(lambda: nn.Conv2d(3, 2, 3))
    attention = construct.conv_to_mhsa(small)
    with torch.no_grad():
        small.weight[0, 0, 0, 0] = float("inf")
    why = picture(ReportLayer("", small, attention, x=x[..., :8, :8]))["live_why"]
    assert why == "the output of this crop is not finite everywhere"
    x[0, 0, 9, 9] = float("nan")
    assert "not finite" in picture(ReportLayer("", conv, layer, x=x))["live_why"]


def test_a_crop_says_which() -> None:
    conv = seeded(lambda: nn.Conv2d(3, 2, 3, padding=1))
    shown = picture(ReportLayer("", conv, construct.conv_to_mhsa(conv), x=torch.rand(1, 3, 40, 12)))
    assert shown["input"] == [14, 12]
    assert shown["crop"] == "a crop, rows 13–26, columns 0–11 of 40 × 12, taken as the whole input"
    whole = picture(ReportLayer("", conv, construct.conv_to_mhsa(conv), x=torch.rand(1, 3, 16, 12)))
    assert (whole["input"], whole["crop"]) == ([16, 12], "")


def test_scores_are_those_of_the_layers_at_each_stop(tmp_path: Path) -> None:
    net = seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 3, 4), nn.Flatten()))
    x = seeded(lambda: torch.rand(2, 1, 4, 4))
    converted = construct.convert(net, alpha=0.75)
    before = copy.deepcopy(converted.state_dict())
    verify.write_report(tmp_path / "page.html", net, converted, x)
    assert all(torch.equal(value, before[name]) for name, value in converted.state_dict().items())
    (text,) = (a["data-scores"] for _, a in read(tmp_path / "page.html").elements if "data-scores" in a)
    with torch.no_grad():
        at_stops = [construct.convert(net, alpha=2 ** (k / 2 - 2))(x)[0] for k in range(25)]
        expected = torch.stack([net(x)[0], *at_stops, converted(x)[0]])
    np.testing.assert_allclose(json.loads(text), expected, rtol=0, atol=1e-5)
    stopped = converted.register_forward_hook(lambda *_: {}["stopped"])
    with pytest.raises(KeyError, match="stopped"):
        verify.write_report(tmp_path / "page.html", net, converted, x)
    stopped.remove()
    assert all(torch.equal(value, before[name]) for name, value in converted.state_dict().items())
    many = nn.Sequential(nn.Conv2d(1, 11, 4), nn.Flatten())
    verify.write_report(tmp_path / "page.html", many, construct.convert(many), x)
    assert "data-scores" not in (tmp_path / "page.html").read_text()


def test_what_cannot_be_drawn_says_why() -> None:
    conv = nn.Conv2d(1, 1, 60, dilation=3)
    layer = construct.conv_to_mhsa(conv)
    with pytest.raises(NoPicture, match="too many to draw"):
        picture(ReportLayer("", conv, layer))
    with pytest.raises(NoPicture, match="must be an attention layer"):
        picture(ReportLayer("", conv, conv))


def test_many_layers_are_limited_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = nn.Conv2d(1, 1, 3)
    layer = construct.conv_to_mhsa(conv)
    monkeypatch.setattr(pages, "MOST_PICTURES", 5_000)
    monkeypatch.setattr(pages, "MOST_IMAGES", 5_000)
    layers = [ReportLayer(f"layer{k}", conv, layer, x=torch.randn(1, 1, 20, 20)) for k in range(300)]
    content = pages.page(layers, pages.Facts("Many"))
    document = Document(content.decode())
    assert len(content) < 2**20
    assert [tag for tag, _ in document.elements].count("details") == 300
    assert 1 <= len(document.data()) < 20
    assert "Left out to keep the page small: pictures of attention, of 2" in content.decode()
    opened = [a["id"] for tag, a in document.elements if tag == "details" and "open" in a]
    assert opened == ["layer-0"]


IN_WORDS = {
    "3 × 3 convolution, 4 → 4 channels, each channel on its own, in steps of 2 × 2, no padding": (
        nn.Conv2d(4, 4, 3, 2, groups=4)
    ),
    "1-D convolution of 3 taps, 4 → 2 channels, in 2 groups, taps 2 apart, padded by 1 with zeros": (
        nn.Conv1d(4, 2, 3, dilation=2, padding=1, groups=2)
    ),
    "1-D convolution of 2 taps, 1 → 1 channels, padded by 0+1 around the circle": (
        nn.Conv1d(1, 1, 2, padding="same", padding_mode="circular")
    ),
    "3 × 3 transposed convolution, 1 → 1 channels, inputs 2 × 2 apart, cropped by 1 × 1, 1 × 1 more at the far end": (
        nn.ConvTranspose2d(1, 1, 3, 2, 1, 1)
    ),
}


@pytest.mark.parametrize("words", IN_WORDS)
def test_geometry_in_words(words: str) -> None:
    conv = IN_WORDS[words]
    text = pages.page([ReportLayer("", conv, construct.conv_to_mhsa(conv))], pages.Facts("")).decode()
    (shown,) = re.findall(r'<span class="words">(.*?)</span>', text, re.S)
    assert shown.strip() == words


def pixels(image: images.Image) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(image.uri.partition(",")[2]))))


def test_the_strip_shows_both_outputs_on_one_scale() -> None:
    conv = seeded(lambda: nn.Conv2d(3, 2, 3, padding=1))
    wrong = construct.conv_to_mhsa(conv)
    with torch.no_grad():
        wrong.b_out[0] += 0.5
    x = torch.rand(1, 3, 12, 11)
    shown = images.strip(ReportLayer("", conv, wrong, x=x))
    assert shown is not None
    assert [image.title for image in shown.images] == ["Input", "Convolution", "Attention", "Difference"]
    assert "±0.5" in shown.images[3].scale
    assert "own scale" in shown.images[3].scale
    assert [pixels(image).shape for image in shown.images] == [(12, 11, 3)] * 4
    low, high = float(x.min()), float(x.max())
    expected = np.rint(255 * (x[0].permute(1, 2, 0).double().numpy() - low) / (high - low))
    assert np.array_equal(pixels(shown.images[0]), expected)
    conv.weight.data.fill_(float("nan"))
    with pytest.raises(NoPicture, match="the convolution's output is not finite"):
        images.strip(ReportLayer("", conv, wrong, x=x))


def test_large_pictures_keep_the_greatest_difference() -> None:
    planes = np.zeros((200, 300))
    planes[150, 7] = -5.0
    small = images._small(planes, greatest=True)
    assert max(small.shape) <= images.LARGEST
    assert small.min() == -5.0
    assert images._small(planes).min() > -1.0


def test_three_channels_get_a_photograph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conv = seeded(lambda: nn.Conv2d(3, 2, 3))
    layer = construct.conv_to_mhsa(conv)
    verify.write_report(tmp_path / "photo.html", conv, layer)
    assert "a photograph of scikit-learn" in (tmp_path / "photo.html").read_text()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    verify.write_report(tmp_path / "plain.html", conv, layer)
    text = (tmp_path / "plain.html").read_text()
    assert "The input is random. Install scikit-learn for a real picture." in text


@pytest.fixture
def saved(from_conv: Command) -> None:
    torch.save(seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 2))), "model.pt")


@pytest.mark.usefixtures("saved")
def test_the_command_writes_the_page_and_says_so(from_conv: Command) -> None:
    for _ in range(2):  # its own earlier page is replaced
        assert "\nreport: page.html\n" in from_conv.prints("model.pt", "--report", "page.html")
    assert from_conv.facts("model.pt", "--report", "page.html")["report"] == "page.html"
    assert names() == {"model.pt", "model.mhsa.pt", "model.mhsa.json", "page.html"}


@pytest.mark.usefixtures("saved")
def test_a_refuted_layer_is_shown_too(from_conv: Command) -> None:
    from_conv.prints("model.pt", "--report", "page.html", "--alpha", "0.5", "--no-certify", code=1)
    assert names() == {"model.pt", "page.html"}
    text = Path("page.html").read_text()
    assert "REFUTED" in text
    assert "verify check" not in text  # there are no files to recheck


@pytest.mark.usefixtures("saved")
def test_where_the_page_may_not_go(from_conv: Command) -> None:
    Path("foreign.html").write_text("<!doctype html><p>mine")
    torch.save(torch.zeros(1, 1, 5, 5), "x.pt")
    Path("net.py").write_text("")
    Path("folder").mkdir()
    Path("link.html").symlink_to("model.pt")
    for name, why in {
        "model.pt": "is an input itself",
        "./model.pt": "is an input itself",
        "link.html": "is an input itself",
        "model.mhsa.pt": "is where other output goes",
        "model.mhsa.json": "is where other output goes",
        "x.pt": "is an input itself",
        "foreign.html": "it is not the page of a report, or was changed (give another name with --report, or --force)",
        "nowhere/page.html": "there is no folder",
        "folder": "is there, and is not a file (give another name with --report)",
        "/dev/full": "is there, and is not a file (give another name with --report)",
    }.items():
        assert why in from_conv.refuses("model.pt", "--example-inputs", "x.pt", "--report", name), name
    # Where no certificate is written, the name is still the next one's.
    line = from_conv.refuses("model.pt", "--no-certify", "--report", "model.mhsa.json")
    assert "is where other output goes" in line
    from_conv.prints("model.pt", "--report", "foreign.html", "--force")


@pytest.mark.usefixtures("saved")
def test_without_jinja2(from_conv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    hint = 'pip install ".[report]" in the project\'s folder'
    line = from_conv.refuses("model.pt", "--report", "page.html")
    assert line == f"error: --report: the report needs jinja2, which is not installed ({hint})"
    with pytest.raises(ImportError, match="jinja2"):
        verify.write_report("page.html", nn.Conv1d(1, 1, 1), construct.conv_to_mhsa(nn.Conv1d(1, 1, 1)))
