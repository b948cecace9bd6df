"""Figures show the numbers of the layer, the certificate or the file, and refuse what cannot be drawn."""

import json
import math
import os
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import construct
from benchmarks.cost import write_costs
from commands import Command, python
from report_layers import HOSTILE, SHOWN, seeded
from verify.__main__ import main
from verify.argument import documents
from verify.argument.certification import certify
from verify.plots import attention_figure, centres_figure, cost_figure, errors_figure, leakage_figure, write_figure
from verify.plots.centres import SHARES, centres_of
from verify.plots.costs import Series, measured, read_costs
from verify.plots.errors import rows_of
from verify.plots.leakage import LOOKS, leaked
from verify.plots.probabilities import attention_of
from verify.rounding.leakage import leakage_on_lattice

TIMES = [Series("quadratic", (10, 20, 40, 80), (1e-3, 4e-3, 16e-3, 64e-3)), Series("flat", (10, 20, 40), (2.0,) * 3)]


def conv_and_layer(alpha: float = 1.0, **options: Any) -> tuple[nn.Conv2d, Any]:
    conv = seeded(lambda: nn.Conv2d(2, 3, 3, padding=1))
    return conv, construct.conv_to_mhsa(conv, alpha=alpha, **options)


def drawn(figure: Any) -> list[Any]:
    """Without a type: its artists have none to check."""
    return figure.axes


def panels(figure: Any) -> list[Any]:
    return [ax for ax in figure.axes if ax.images]


def images_of(figure: Any) -> list[np.ndarray]:
    return [np.asarray(ax.images[0].get_array()) for ax in panels(figure)]


@pytest.mark.parametrize("name", [name for name in SHOWN if name != "3-D"])
def test_maps_hold_the_layers_own_softmax(name):
    _, layer = seeded(SHOWN[name])
    grid = (6,) * layer.geometry.dims
    figure = attention_figure(layer, grid=grid)
    own = layer.attention_probabilities(torch.zeros(1, layer.in_channels, *grid))[0].detach().numpy()
    with torch.no_grad():
        outputs = layer(torch.zeros(1, layer.in_channels, *grid)).shape[2:]
    middle = int(np.ravel_multi_index([o // 2 for o in outputs], outputs))
    shown = [image.ravel() for image in images_of(figure)]
    assert len(shown) == 2 * layer.heads
    for head in range(layer.heads):
        np.testing.assert_array_equal(shown[head], own[head, 0])
        np.testing.assert_array_equal(shown[layer.heads + head], own[head, middle])
    assert panels(figure)[0].images[0].get_clim()[1] == max(row.max() for row in shown)


def test_of_three_dimensions_the_plane_with_most_attention_is_shown():
    _, layer = seeded(SHOWN["3-D"])
    own = layer.attention_probabilities(torch.zeros(1, 2, 4, 4, 4))[0].detach().numpy()
    figure = attention_figure(layer, grid=(4, 4, 4), queries=[(1, 1, 1)])
    outputs = attention_of(layer, grid=(4, 4, 4)).outputs
    for head, ax in enumerate(panels(figure)):
        whole = own[head, np.ravel_multi_index((1, 1, 1), outputs)].reshape(attention_of(layer, grid=(4, 4, 4)).tokens)
        np.testing.assert_array_equal(ax.images[0].get_array(), max(whole, key=lambda plane: plane.sum()))


def test_another_sharpness_is_that_of_a_layer_built_with_it():
    conv, layer = conv_and_layer(alpha=1024.0)
    softened = attention_of(layer, grid=(5, 5), alpha=0.75).probabilities
    soft = construct.conv_to_mhsa(conv, alpha=0.75).attention_probabilities(torch.zeros(1, 2, 5, 5))[0]
    np.testing.assert_array_equal(softened, soft.detach().numpy())
    assert layer.centres()[0].unique().tolist() == [1024.0], "the layer itself is as it was"


def test_attention_is_that_on_an_input():
    _, layer = conv_and_layer()
    with torch.no_grad():
        layer.w_qry.normal_()
        layer.w_key.normal_()
    x = torch.randn(1, 2, 4, 6)
    attention = attention_of(layer, x)
    np.testing.assert_array_equal(attention.probabilities, layer.attention_probabilities(x)[0].detach())
    assert attention.outputs == tuple(layer(x).shape[2:])
    assert attention_of(layer, larger=2).tokens == (14, 14)
    assert len(images_of(attention_figure(layer, x))) == len(images_of(attention_figure(layer, grid=(4, 6))))


def test_many_heads_are_drawn_in_rows_and_the_rest_is_said():
    layer = construct.conv_to_mhsa(nn.Conv2d(1, 1, 9, padding=4))
    figure = attention_figure(layer, queries=[(0, 0)])
    assert len(panels(figure)) == 64
    assert "the first 64 of 81 heads" in figure.get_suptitle()


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1024.0])
def test_centres_and_circles_are_mean_and_spread_of_the_softmax(alpha):
    _, layer = conv_and_layer(alpha=alpha)
    ax = drawn(centres_figure(layer, grid=(9, 9)))[0]
    own = layer.attention_probabilities(torch.zeros(1, 2, 9, 9))[0, :, 40].detach().double().reshape(9, 11, 11)
    steps = torch.arange(11.0).double() - 5
    points = {line.get_gid(): line for line in ax.lines if line.get_gid()}
    circles = {patch.get_gid(): patch for patch in ax.patches}
    for head in range(9):
        y, x = float((own[head].sum(1) * steps).sum()), float((own[head].sum(0) * steps).sum())
        point = points[f"centre {head}"]
        assert (point.get_ydata()[0], point.get_xdata()[0]) == pytest.approx((y, x))
        square = (steps[:, None] - y) ** 2 + (steps[None, :] - x) ** 2
        sigma = math.sqrt(float((own[head] * square).sum()) / 2)
        for share in SHARES:
            expected = sigma * math.sqrt(-2 * math.log(1 - share))
            assert circles[f"{head} {share}"].radius == pytest.approx(expected, abs=1e-12)
    if alpha == 1024.0:
        assert all(circle.radius == 0 for circle in circles.values())


def test_centres_in_one_dimension_and_in_three():
    _, layer = seeded(SHOWN["1-D"])
    ax = drawn(centres_figure(layer, grid=(15,)))[0]
    points = [line for line in ax.lines if line.get_gid()]
    attention = attention_of(layer, grid=(15,))
    mean = centres_of(attention, attention.middle())[0][:, 0]
    np.testing.assert_array_equal([line.get_xdata()[0] for line in points], mean)
    np.testing.assert_allclose(mean, [-2, -1, 0, 1, 2], atol=1e-3)
    _, layer = seeded(SHOWN["3-D"])
    figure = centres_figure(layer)
    assert [ax.get_title() for ax in figure.axes] == ["centred on the query's plane", "centred on plane +1"]
    assert [sum(1 for line in ax.lines if line.get_gid()) for ax in figure.axes] == [3, 3]


@pytest.mark.parametrize("dims", [1, 2])
def test_leakage_is_measured_and_beside_its_bound(dims):
    figure = leakage_figure(dims)
    for ax in drawn(figure):
        (bound,) = [line for line in ax.lines if line.get_label().startswith("bound")]
        for alpha, y in list(zip(*bound.get_data(), strict=True))[::7]:
            value = leakage_on_lattice(float(alpha), dims)
            if value > 1e-300:
                assert y == math.log10(value)
            else:  # a double holds no such number; its upper bound 2d·e^−α does not fail
                assert y == pytest.approx(math.log10(2 * dims) - alpha / math.log(10))
        for dtype in LOOKS:
            (line,) = [line for line in ax.lines if line.get_gid() == str(dtype).removeprefix("torch.")]
            for alpha, y in list(zip(*line.get_data(), strict=True))[::7]:
                value = leaked(float(alpha), dtype, dims)
                assert (y == math.log10(value)) if value else math.isnan(y)
    texts = " ".join(text.get_text() for ax in figure.axes for text in ax.texts)
    for dtype, threshold in {"float16": 17.4, "bfloat16": 92.9, "float32": 104.0, "float64": 745.2}.items():
        assert f" {dtype}: 0 from {threshold}" in f" {texts}"
    assert "α = 46: float32 still" in texts


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate of three layers: one proved, one that leaks, and one with markup for a name and difference 0."""
    path = tmp_path_factory.mktemp("document") / "m.mhsa.json"
    conv, layer = conv_and_layer(alpha=1024.0)
    _, soft = conv_and_layer(alpha=6.0)
    one = nn.Conv1d(1, 1, 1, bias=False)
    nn.init.ones_(one.weight)
    certificates = [
        ("a.conv", certify(conv, layer, grid=(6, 6))),
        ("b", certify(conv, soft, grid=(6, 6))),
        (f"$\\frac{{{HOSTILE[0]}\u202e日本", certify(one, construct.conv_to_mhsa(one), grid=(4,))),
    ]
    documents.write_document(path, certificates)
    return path


def test_errors_are_those_of_the_certificate(document):
    ax = drawn(errors_figure(document))[0]
    records = json.loads(document.read_text())["layers"]
    lines = [line for line in ax.lines if line.get_gid()]
    shown = {line.get_gid(): dict(zip(line.get_ydata(), line.get_xdata(), strict=True)) for line in lines}
    for y, record in enumerate(records):
        for part in ("observed", "bound", "rounding"):
            value = max(map(float.fromhex, record[part]))
            assert shown[part].get(y, 0.0) == (value if value < math.inf else 0.0)
    assert [label.get_text() for label in ax.get_yticklabels()][:2] == ["a.conv", "b"]
    assert [row.verdict for row in rows_of(document)] == [record["verdict"] for record in records]
    assert "observed 0" in {text.get_text() for text in ax.texts}


def test_costs_are_those_of_the_file(tmp_path):
    write_costs(tmp_path / "c.json", TIMES, "two made up")
    series, what = read_costs(tmp_path / "c.json")
    assert (series, what) == (TIMES, "two made up")
    ax = drawn(cost_figure(series, what))[0]
    for s in TIMES:
        (points,) = [line for line in ax.lines if line.get_gid() == s.name]
        np.testing.assert_array_equal(points.get_xdata(), s.tokens)
        np.testing.assert_array_equal(points.get_ydata(), [1e3 * t for t in s.seconds])
    assert [round(s.fit[0], 9) for s in TIMES] == [2.0, 0.0]
    assert [line.get_label() for line in ax.lines[::2]] == ["quadratic: tokens^2.00", "flat: tokens^0.00"]


def test_costs_of_a_layer_are_measured():
    _, layer = conv_and_layer()
    (series,) = measured(layer, executions=("dense",), rounds=1)
    assert series.name == "attention, dense"
    assert len(series.tokens) >= 3
    assert layer.execution == "auto"


@pytest.fixture(scope="module")
def of_each_kind(document: Path) -> Path:
    folder = document.parent
    conv, layer = conv_and_layer(alpha=1024.0)
    construct.save(layer, folder / "one.mhsa.pt")
    construct.save(construct.convert(nn.Sequential(conv, nn.ReLU(), nn.Conv2d(3, 1, 1))), folder / "two.mhsa.pt")
    torch.save(dict(layer.state_dict()), folder / "state.pt")  # as files were before they said what geometry they have
    torch.save(conv, folder / "conv.pt")
    write_costs(folder / "c.json", TIMES, "two made up")
    (folder / "broken.json").write_text("{")
    (folder / "other.json").write_text('{"format": "another"}')
    edited = json.loads(document.read_text())
    edited["layers"][0]["heads"] = 4
    (folder / "edited.json").write_text(json.dumps(edited))
    documents.write_document(folder / "none.json", [])
    return folder


@pytest.fixture
def plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, of_each_kind: Path) -> Command:
    """The plot command, in a folder with one file of each kind."""
    shutil.copytree(of_each_kind, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Command(lambda words: main(["plot", *words]), capsys)


@pytest.mark.parametrize("suffix", ["svg", "png"])
@pytest.mark.parametrize(
    "words",
    [
        ("attention", "one.mhsa.pt", "--alpha", "1"),
        ("attention", "two.mhsa.pt", "--layer", "0", "--grid", "5", "6", "--queries", "0,0", "4,5"),
        ("centres", "one.mhsa.pt"),
        ("centres", "one.mhsa.pt", "--queries", "0,0", "--alpha", "0.5"),
        ("errors", "m.mhsa.json"),
        ("cost", "c.json"),
    ],
    ids=" ".join,
)
def test_every_plot_is_written_in_both_formats(words, suffix, plot):
    out = Path(f"out.{suffix}")
    out.write_text("what stood there, a figure of conv-as-attention")
    assert plot.prints(*words, "-o", out) == f"wrote {out}\n"
    content = out.read_bytes()
    if suffix == "svg":
        ET.fromstring(content)  # well-formed, whatever the layers are called
        assert b"<text" in content
    else:
        assert content.startswith(b"\x89PNG")
    assert not list(Path.cwd().glob(".*")), "no temporary file is left"
    plot(*words, "-o", out)
    assert out.read_bytes() == content, "the same figure is the same bytes"


REFUSED = {
    "atention one.mhsa.pt -o a.svg": "no plot 'atention'; there are attention, centres, leakage",
    "attention -o a.svg": "plot attention takes a file",
    "leakage one.mhsa.pt -o a.svg": "plot leakage takes no file",
    "leakage -o a.jpg": "a.jpg: a figure's name ends in .svg or .png",
    "leakage -o svg": "svg: a figure's name ends in .svg or .png",
    "leakage -o no/a.svg": "no: no such folder",
    "leakage -o pipe.svg": "pipe.svg: is there, and is not a file",
    "cost pipe.svg -o a.svg": "pipe.svg: is not a regular file",
    "attention /dev/zero -o a.svg": "/dev/zero: is not a regular file",
    "leakage -o a.svg --dims 7": "1 to 4 dimensions, not 7",
    "leakage": "required: -o",
    "leakage -o a.svg --alpha 3": "plot leakage takes no --alpha",
    "errors m.mhsa.json -o a.svg --dims 1": "plot errors takes no --dims",
    "attention gone.pt -o a.svg": "gone.pt: No such file or directory",
    "errors gone.json -o a.svg": "gone.json: No such file or directory",
    "attention two.mhsa.pt -o a.svg": "several layers; give --layer, one of 0, 2",
    "attention two.mhsa.pt --layer 1 -o a.svg": "it holds no layer '1', but '0', '2'",
    "attention conv.pt -o a.svg": "it holds no attention layer",
    "attention state.pt -o a.svg": "nothing is said of the geometry",
    "attention broken.json -o a.svg": "broken.json: not a model file but plain text",
    "attention one.mhsa.pt --grid 5 -o a.svg": "the grid (5,) is not 2 positive sizes",
    "attention one.mhsa.pt --grid 900 900 -o a.svg": "too many to draw",
    "attention one.mhsa.pt --queries 99,0 -o a.svg": "(99, 0) must be a position of an output",
    "attention one.mhsa.pt --queries a -o a.svg": "queries are whole numbers",
    "attention one.mhsa.pt --alpha -1 -o a.svg": "cannot be made -1",
    "attention one.mhsa.pt --alpha nan -o a.svg": "cannot be made nan",
    "centres one.mhsa.pt --queries 0,0 1,1 -o a.svg": "takes one query",
    "errors one.mhsa.pt -o a.svg": "one.mhsa.pt must be strict JSON",
    "errors broken.json -o a.svg": "broken.json must be strict JSON",
    "errors other.json -o a.svg": "other.json: no certificate",
    "errors edited.json -o a.svg": "the certificate has been edited",
    "errors none.json -o a.svg": "none.json: the certificate of no layer",
    "cost c.json --layer 0 -o a.svg": "takes no --layer with a file of times",
    "cost m.mhsa.json -o a.svg": "must be a file of times: python -m benchmarks.cost writes one",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_drawn_is_refused_in_one_line(words, plot):
    """And an existing figure is left unchanged."""
    Path("a.svg").write_text("what stood there, a figure of conv-as-attention")
    os.mkfifo("pipe.svg")
    assert REFUSED[words] in plot.refuses(*words.split())


@pytest.mark.parametrize(
    "change",
    [
        {"series": []}, {"series": [{}]}, {"series": 3}, {"version": 2},
        {"series": [{"name": "a", "tokens": [1, 2, 3], "seconds": [1, 2]}]},
        {"series": [{"name": "a", "tokens": [1, 2, 3], "seconds": [1, 2, 0]}]},
        {"series": [{"name": "a", "tokens": [1, 2, 2], "seconds": [1, 2, 3]}]},
        {"series": [{"name": "a", "tokens": [1, "2", 3], "seconds": [1, 2, 3]}]},
        {"series": [{"name": "a", "tokens": [1, 2], "seconds": [1, 2]}]},
    ],
)  # fmt: skip
def test_a_file_that_holds_no_times_is_refused(change, tmp_path):
    write_costs(tmp_path / "c.json", TIMES, "")
    document = json.loads((tmp_path / "c.json").read_text()) | change
    (tmp_path / "c.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="must be a file of times"):
        read_costs(tmp_path / "c.json")


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_foreign_file_is_replaced_only_by_force(suffix, plot):
    out = Path(f"mine{suffix}")
    out.write_bytes(b"mine")
    line = plot.refuses("leakage", "-o", out)
    assert "exists and is not a figure of ours (give another name, or remove it)" in line
    plot.prints("leakage", "-o", out, "--force")
    plot.prints("leakage", "-o", out)  # its own earlier output


def test_a_failure_leaves_what_stood_there(tmp_path, monkeypatch):
    (tmp_path / "a.svg").write_text("what stood there")
    figure = leakage_figure(1)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_figure(figure, tmp_path / "a.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]
    assert (tmp_path / "a.svg").read_text() == "what stood there"


def test_without_matplotlib_one_line_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None; from verify.__main__ import main; sys.exit(main())"
    done = python("-c", code, "plot", "leakage", "-o", tmp_path / "a.svg")
    assert (done.returncode, done.stdout) == (2, "")
    hint = 'pip install ".[viz]" in the project\'s folder'
    assert done.stderr == f"error: plots need matplotlib, which is not installed ({hint})\n"


def test_no_figure_is_kept_by_pyplot_and_no_style_is_changed(tmp_path):
    code = (
        "import sys, matplotlib\n"
        "def style(): return {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'}  # which loads pyplot\n"
        "before = style()\n"
        "from verify.plots import *\n"
        f"write_figure(leakage_figure(1), {str(tmp_path / 'a.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert style() == before\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_what_is_no_attention_layer_is_refused():
    with pytest.raises(TypeError, match="must be an attention layer of this project, not a Conv1d"):
        attention_figure(nn.Conv1d(1, 1, 1))  # type: ignore[arg-type]
