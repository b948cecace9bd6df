"""The report page in a real browser: pointer, keys and slider work, and the script's softmax is the layer's own.

These tests need Chromium (``apt-get install chromium``) and playwright.  Without them they are skipped, or fail if the
environment says BROWSER_TESTS=required, as in continuous integration.
"""

import base64
import io
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import construct
import verify
from commands import ROOT
from construct.command.demo import PATH
from examples.learned.results.page import learned_layers
from report_layers import HOSTILE, SHOWN, drawn, network, own_attention, seeded
from verify.report.images import digit
from verify.report.live import crop
from verify.samples.sampling import generated_inputs

DEMO = ROOT / "docs/demo.html"
CHROMIUM = next((path for n in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(n))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    missing = "playwright (pip install playwright)" if sync_playwright is None else ""
    missing = missing or ("" if CHROMIUM else "chromium (apt-get install chromium)")
    if sync_playwright is None or missing:
        if os.environ.get("BROWSER_TESTS") == "required":
            pytest.fail(f"there is no {missing}, and BROWSER_TESTS=required")
        pytest.skip(f"there is no {missing}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a layer of every kind, in the order of ``SHOWN``, and learned attention."""
    before, after = nn.Module(), nn.Module()
    for name in SHOWN:
        conv, layer = seeded(SHOWN[name])
        before.add_module(name, conv)
        after.add_module(name, layer)
    path = tmp_path_factory.mktemp("zoo") / "zoo.html"
    maps = torch.softmax(seeded(lambda: torch.randn(2, 16, 16)), -1).reshape(2, 4, 4, 4, 4)
    verify.write_report(path, before, after, attention={"learned": maps})
    return path


class Opened:
    """A page, with all its messages and requests."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, height: int = 900, **options: Any):
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append("a dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.settle()
        self.address = path.as_uri()

    def settle(self) -> None:
        """Let the page redraw."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def layer(self, index: int) -> Any:
        return self.page.locator(f"#layer-{index}")

    def heads(self, index: int) -> Any:
        """The small pictures of a layer's heads."""
        return self.page.locator(f".block[data-layer='{index}'] .head")

    def readout(self) -> str:
        """The page's text about the query and the enlarged head."""
        self.settle()
        return self.page.locator("#readout").inner_text()

    def text(self, selector: str) -> str:
        self.settle()
        return self.page.locator(selector).first.inner_text()

    def to_middle(self, index: int) -> None:
        """Move a layer's query to the middle."""
        self.page.evaluate("(i) => moveTo(pictures[i], pictures[i].asked.map((n) => Math.floor(n / 2)))", index)
        self.settle()

    def point(self, canvas: Any, row: float, column: float, shape: list[int]) -> None:
        """Move the pointer to the middle of a token."""
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        x, y = box["x"] + (column + 0.5) * box["width"] / shape[-1], box["y"] + (row + 0.5) * box["height"] / shape[-2]
        self.page.mouse.move(x, y)
        self.settle()

    def close(self) -> None:
        """Assert no error, no message, and no request but the page itself."""
        self.context.close()
        assert not self.said
        assert [url for url in self.requests if not url.startswith("data:")] == [self.address]


@pytest.fixture
def visit(browser: Any, zoo: Path) -> Iterator[Callable[..., Opened]]:
    """Opens a page, that of the zoo by default, and closes it after the test."""
    pages = []

    def opened(path: Path = zoo, **options: Any) -> Opened:
        pages.append(Opened(browser, path, **options))
        return pages[-1]

    yield opened
    for page in pages:
        page.close()


@pytest.fixture
def opened(visit: Callable[..., Opened]) -> Opened:
    """The page of the zoo."""
    return visit()


def number_of(name: str) -> int:
    return list(SHOWN).index(name)


@pytest.mark.parametrize("name", SHOWN)
def test_the_scripts_softmax_is_the_layers(opened: Opened, name: str) -> None:
    layer, _ = drawn(name)
    script = """(index) => {
        const picture = pictures[index];
        const asked = picture.queries.map((axis) => axis.length);
        const queries = Array.from({ length: asked.reduce((a, b) => a * b, 1) }, (_, q) => placeOf(asked, q));
        return picture.centres.map((_, head) => queries.map((query) => Array.from(probabilities(picture, head, query))));
    }"""
    shown = opened.page.evaluate("(index) => pictures[index]", number_of(name))
    rows = np.array(opened.page.evaluate(script, number_of(name)))
    own = own_attention(layer, shown)
    np.testing.assert_allclose(rows, own, rtol=1e-12, atol=1e-300)
    middle = np.ravel_multi_index([n // 2 for n in map(len, shown["queries"])], [*map(len, shown["queries"])])
    opened.to_middle(number_of(name))
    labels = opened.heads(number_of(name)).evaluate_all("(all) => all.map((head) => head.ariaLabel)")
    assert [label.split(" on ")[1] for label in labels] == [
        opened.page.evaluate(f"describe(pictures[{number_of(name)}], {int(own[head, middle].argmax())})")
        for head in range(layer.heads)
    ]


@pytest.mark.parametrize("name", SHOWN)
def test_the_scripts_output_is_the_layers_in_float64(opened: Opened, name: str) -> None:
    """At the layer's own α, and at another α, compared with a layer built with it."""
    index = number_of(name)
    conv, layer = seeded(SHOWN[name])
    part, _ = crop(generated_inputs(conv, 1, 0), opened.page.evaluate("(i) => pictures[i].input", index))
    softer = construct.conv_to_mhsa(conv, alpha=0.25, encoding="parabola" if name == "parabola" else "quadratic")
    for mhsa, stop in ((layer, "OWN"), (softer, "0"))[: 1 if name == "edited" else 2]:
        output = opened.page.evaluate(f"(i) => Array.from(outputs(pictures[i], {stop}).output)", index)
        channel = opened.page.evaluate("(i) => pictures[i].live.channel", index)
        with torch.no_grad():
            expected = mhsa.double()(part.double())[0, channel].flatten().numpy()
        np.testing.assert_allclose(output, expected, rtol=0, atol=1e-12 * (1 + np.abs(expected).max()))
    with torch.no_grad():
        before = conv.double()(part.double())[0, channel].flatten().numpy()
    apart = opened.page.evaluate(f"(i) => outputs(pictures[i], {stop}).greatest", index)
    assert abs(apart - np.abs(expected - before).max()) < 1e-12


def shades(canvas: Any, shape: list[int]) -> np.ndarray:
    """How orange each token is: the colour of attention is (232, 80, 10), the image below is nearly grey."""
    image = canvas.evaluate("(canvas) => canvas.toDataURL()").partition(",")[2]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")).astype(int)
    rows, columns = shape
    height, width = len(pixels) // rows, pixels.shape[1] // columns
    middles = pixels[height // 4 :: height, width // 2 :: width]  # away from the strokes of padding tokens
    return (middles[..., 0] - middles[..., 2]).ravel()


@pytest.mark.parametrize("name", ["plain", "strided-dilated"])
def test_the_pixels_that_are_drawn_follow_the_attention(opened: Opened, name: str) -> None:
    layer, index = drawn(name)[0], number_of(name)
    shown = opened.page.evaluate("(index) => pictures[index]", index)
    own = own_attention(layer, shown)
    shape = [len(axis) for axis in shown["queries"]]
    middle = np.ravel_multi_index([n // 2 for n in shape], shape)
    query = np.ravel_multi_index([axis[len(axis) // 2] for axis in shown["queries"]], shown["shape"])
    for head in range(layer.heads):
        opened.heads(index).nth(head).click(position={"x": 1, "y": 1}, force=True)
        opened.to_middle(index)
        opacity = np.sqrt(own[head, middle])
        expected = (232 - 10) * opacity - 10 * (1 - opacity)  # the image below is a little blue
        far = np.delete(
            np.abs(shades(opened.page.locator("#large"), shown["shape"]) - expected), query
        )  # a ring marks it
        assert far.max() < 20


def test_one_query_moves_in_all_layers(opened: Opened) -> None:
    index, other = number_of("plain"), number_of("strided-dilated")
    shape = opened.page.evaluate(f"pictures[{index}].shape")
    opened.point(opened.heads(index).nth(4).locator("canvas"), 2, 3, shape)
    assert opened.readout().startswith("The query is output (1, 2).")
    for corner, at in (("first", 0), ("last", -1)):
        row, column = (1, 1) if at == 0 else (shape[0] - 2, shape[1] - 2)
        opened.point(opened.heads(index).nth(4).locator("canvas"), row, column, shape)
        for layer in range(len(SHOWN)):
            inside, query, queries = opened.page.evaluate(
                f"[pictures[{layer}].inside, queryOf(pictures[{layer}]), pictures[{layer}].queries]"
            )[0:3]
            for axis in range(-min(2, len(query)), 0):
                end = inside[axis][at]
                nearest = min(abs(token - end) for token in queries[axis])
                assert abs(queries[axis][query[axis]] - end) == nearest, (corner, layer)
    opened.heads(other).nth(0).click()
    assert f"{list(SHOWN)[other]}, head 0" in opened.text("#large-name")


def test_a_click_enlarges_a_head(opened: Opened) -> None:
    index = number_of("plain")
    opened.heads(index).nth(0).click()
    shape = opened.page.evaluate(f"pictures[{index}].shape")
    opened.point(opened.page.locator("#large"), 1, 1, shape)
    said = opened.readout()
    assert said.startswith("The query is output (0, 0). Head 0 puts")
    assert "on the padding of zeros, token (0, 0), and multiplies it by tap (0, 0)" in said
    assert opened.heads(index).nth(0).get_attribute("aria-pressed") == "true"
    assert opened.page.locator(".head.chosen").count() == 1
    large, small = (opened.page.locator(which).first.bounding_box() for which in ("#large", ".head canvas"))
    assert large["width"] > 4 * small["width"]
    note = opened.text("#large-note")
    assert "the whole input" in note or "a crop, rows" in note


def test_a_finger_moves_the_query(visit: Any) -> None:
    opened = visit(width=390, has_touch=True, is_mobile=True)
    canvas = opened.page.locator("#large")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    opened.page.touchscreen.tap(box["x"] + box["width"] - 2, box["y"] + 2)
    last = opened.page.evaluate("pictures[0].queries[1].length - 1")
    assert opened.readout().startswith(f"The query is output (0, {last}).")


@pytest.mark.parametrize("name", ["plain", "strided-dilated", "1-D", "3-D", "transposed"])
def test_keys_move_the_query(opened: Opened, name: str) -> None:
    index = number_of(name)
    sides = opened.page.evaluate(f"pictures[{index}].asked")
    opened.heads(index).nth(0).focus()
    opened.page.locator("#large").focus()
    query = [0] * len(sides)

    def press(key: str, expected: list[int]) -> None:
        opened.page.keyboard.press(key)
        assert opened.readout().startswith(f"The query is output ({', '.join(map(str, expected))})."), key

    press("Home", query)
    press("ArrowLeft", query)  # this is the leftmost position
    press("ArrowRight", [*query[:-1], 1])
    press("ArrowLeft", query)
    if len(sides) > 1:
        press("ArrowDown", [*query[:-2], 1, 0])
        press("ArrowUp", query)
    if len(sides) > 2:
        press("PageDown", [1, *query[1:]])
        press("PageUp", query)
    press("End", [side - 1 for side in sides])
    press("ArrowRight", [side - 1 for side in sides])


def test_every_control_can_be_reached_and_seen_by_keyboard(opened: Opened) -> None:
    names = []
    for _ in range(60):
        opened.page.keyboard.press("Tab")
        name, outline = opened.page.evaluate(
            "[document.activeElement.tagName + '#' + document.activeElement.id, "
            "getComputedStyle(document.activeElement).outlineStyle]"
        )
        if name == "BODY#":  # once round
            break
        assert outline != "none", name
        names.append(name)
    assert names[:5] == ["BUTTON#theme", "BUTTON#play", "INPUT#sharpness", "BUTTON#own", "CANVAS#large"]
    heads = ["BUTTON#"] * (len(SHOWN) + 1)  # a stop for each layer's heads
    typed = [*["INPUT#"] * 9, "BUTTON#clear", "BUTTON#seven", "BUTTON#", "CANVAS#large", "CANVAS#draw"]
    assert names[5 : 5 + len(heads) + len(typed) + 1] == [*heads, *typed, "SUMMARY#"]


@pytest.mark.parametrize("name", ["edited", "1-D", "3-D"])
def test_every_head_can_be_chosen_by_keys(opened: Opened, name: str) -> None:
    """Including heads that look at no tap of the kernel."""
    heads = opened.heads(number_of(name))
    count = heads.count()
    heads.nth(0).focus()
    numbers = []
    for _ in range(count + 1):  # the last key press has no effect
        numbers.append(int(opened.page.evaluate("document.activeElement.dataset.head")))
        assert f"Head {numbers[-1]} puts" in opened.readout()
        opened.page.keyboard.press("ArrowRight")
    assert numbers == [*range(count), count - 1]
    for key, head in (("Home", 0), ("End", count - 1)):
        opened.page.keyboard.press(key)
        assert f"Head {head} puts" in opened.readout()
    if name == "edited":
        opened.page.keyboard.press("ArrowUp")
        assert "Head 5 puts" in opened.readout()


@pytest.mark.deep
def test_the_slider_sharpens_every_head_and_every_output(opened: Opened) -> None:
    index = number_of("plain")
    layer, slider = opened.layer(index), opened.page.locator("#sharpness")
    assert opened.text("#alpha") == "each layer’s own α"
    assert "as it is stored" in opened.text("#softened")
    assert opened.text(f".block[data-layer='{index}'] .says").endswith("apart")
    slider.focus()
    opened.page.keyboard.press("Home")
    leaks, apart, tops = [], [], []
    for _ in range(25):
        opened.settle()
        measured, bound = (float(x.split()[1]) for x in layer.locator(".leak").get_attribute("title").split(", "))
        assert measured <= bound * (1 + 1e-9)
        assert ("exactly 0 in float32" in layer.locator(".leak").inner_text()) == (np.float32(measured) == 0)
        assert "torch’s pictures are of the stored layers" in opened.text("#softened")
        leaks.append(measured)
        apart.append(opened.page.evaluate(f"outputs(pictures[{index}], state.stop).greatest"))
        tops.append(opened.heads(index).nth(4).get_attribute("aria-label"))
        shown = layer.locator("canvas[aria-label^=difference]").get_attribute("aria-label")
        assert f"at most {opened.page.evaluate(f'short({apart[-1]})')};" in shown or apart[-1] == 0
        opened.page.keyboard.press("ArrowRight")
    assert sorted(leaks, reverse=True) == leaks
    assert leaks[0] > 0.9
    assert 0 < leaks[18] < 1e-50  # no floor
    assert leaks[-1] == 0
    assert apart[0] > 0.1
    assert apart[-1] < 1e-14
    assert "100 %" in tops[-1]
    assert "100 %" not in tops[0]
    assert opened.text("#alpha") == slider.get_attribute("aria-valuetext") == "α = 1024"
    opened.page.get_by_role("button", name="As stored").click()
    assert opened.text("#alpha") == "each layer’s own α"


def test_the_leakage_curve_ends_where_float32_has_nothing_left(opened: Opened) -> None:
    chart = opened.layer(number_of("plain")).locator(".chart")
    points = [tuple(map(float, p.split(","))) for p in chart.locator(".measured").get_attribute("points").split()]
    assert all(x < y for (x, _), (y, _) in pairwise(points))
    assert [y for _, y in points] == sorted(y for _, y in points)
    assert len({y for _, y in points[-6:]}) == 6  # it falls to its end
    assert float(chart.locator(".none").get_attribute("x")) == points[-1][0]
    assert "exactly 0 in float32" in " ".join(chart.locator("text").all_text_contents())


def test_the_slider_shows_what_the_network_answers(visit: Any) -> None:
    """At every stop, the scores of layers that are built with its α."""
    opened, model = visit(DEMO), torch.load(PATH, weights_only=False).eval()
    image = torch.tensor(digit())[None, None].float()
    for stop in range(25):
        alpha = 2 ** (stop / 2 - 2)
        with torch.no_grad():
            scores = construct.convert(model, alpha=alpha)(image)[0]
        opened.page.evaluate(f"setStop({stop})")
        opened.settle()
        shown = opened.page.locator("#scores li").all_inner_texts()
        assert [text.split()[1] for text in shown] == [*map(str, range(10))]
        numbers = [float(text.split()[0].replace("−", "-")) for text in shown]
        np.testing.assert_allclose(numbers, scores, rtol=0, atol=0.0502)
        said = opened.text("#answer")
        assert said.startswith(f"The network answers {int(scores.argmax())}")
        assert ("as with convolutions" in said) == (int(scores.argmax()) == int(model(image).argmax()))
    assert "with convolutions 0" not in said


def test_beside_the_slider_is_how_far_the_outputs_are_on_what_is_drawn(opened: Opened) -> None:
    for stop in (0, 24):
        opened.page.evaluate(f"setStop({stop})")
        worst = opened.page.evaluate("Math.max(...sharpened.map((p) => p.live ? outputs(p, state.stop).greatest : 0))")
        said = opened.text("#answer")
        assert said.startswith("On the inputs drawn attention’s outputs are at most ")
        assert f" {opened.page.evaluate(f'short({worst})')} from the convolutions’ (in layer " in said


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_play_sharpens_from_a_quarter_to_1024(visit: Any, motion: str) -> None:
    opened = visit(reduced_motion=motion)
    opened.page.evaluate(
        "window.setInterval = (step, pause) => { window.step = step; window.pause = pause; return 1; }"
    )
    play = opened.page.locator("#play")
    play.click()
    assert (opened.text("#alpha"), play.inner_text()) == ("α = 0.25", "Pause")
    steps = 0
    while play.inner_text() == "Pause":
        opened.page.evaluate("window.step()")
        steps += 1
        assert steps < 30
    assert opened.text("#alpha") == "α = 1024"
    assert (steps, opened.page.evaluate("window.pause >= 1000")) == ((24, False) if motion != "reduce" else (4, True))
    play.click()
    play.click()  # a pause keeps the current state
    assert (opened.text("#alpha"), play.inner_text()) == ("α = 0.25", "Play")


def test_what_a_token_is_in_words(opened: Opened) -> None:
    def described(name: str, key: int) -> str:
        return opened.page.evaluate(f"describe(pictures[{number_of(name)}], {key})")

    assert described("transposed", 0) == "the padding of zeros, token (0, 0)"
    columns = opened.page.evaluate(f"pictures[{number_of('transposed')}].shape[1]")
    assert described("transposed", columns + 1) == "input (0, 0)"
    assert described("transposed", columns + 2) == "a zero between two inputs, token (1, 2)"
    assert described("1-D", 0) == "the padding, a copy of input (3)"
    assert described("1-D", 3) == "input (0)"


def test_learned_attention_is_shown_without_a_slider(opened: Opened) -> None:
    index = len(SHOWN)
    assert "as they were given" in opened.layer(index).text_content()
    assert opened.layer(index).locator(".outputs").count() == 0
    assert opened.heads(index).count() == 2
    row = opened.page.evaluate(f"Array.from(probabilities(pictures[{index}], 1, [2, 3]))")
    expected = torch.softmax(seeded(lambda: torch.randn(2, 16, 16)), -1)[1, 11]
    np.testing.assert_allclose(row, expected, atol=1 / 65535)


@pytest.mark.parametrize(("width", "height"), [(390, 667), (1280, 720)])
def test_the_verdict_is_seen_first_in_words(visit: Any, zoo: Path, width: int, height: int) -> None:
    for path, words in (
        (DEMO, "PROVED: each of the 6 attention layers computes what its convolution computes."),
        (zoo, "REFUTED, 7 of 7 layers (plain, strided-dilated, 1-D, 3-D, …): some output differs"),
    ):
        opened = visit(path, width=width, height=height)
        assert opened.text("#verdict").startswith(words)
        box = opened.page.locator("#verdict").bounding_box()
        assert box["y"] + box["height"] <= height


def test_layers_are_folded_but_for_the_first(opened: Opened) -> None:
    count = opened.page.locator(".layer").count()
    opens = [opened.layer(index).get_attribute("open") is not None for index in range(count)]
    assert opens == [True] + [False] * (count - 1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_caption_names_the_colours_that_are_drawn(visit: Any, scheme: str) -> None:
    opened = visit(color_scheme=scheme)
    assert "The black square is the query; orange marks the keys it attends to." in opened.text("#stage")
    script = """() => {
        const picture = pictures[0], canvas = byId("large"), [row, column] = tokenOfQuery(picture, queryOf(picture));
        const pen = canvas.cloneNode().getContext("2d", { willReadFrequently: true }), cell = canvas.width / picture.shape[1];
        pen.drawImage(canvas, 0, 0);
        const [r, c] = placeOf(picture.shape, centreKey(picture, 0, queryOf(picture)));
        const spots = [[column + 0.1, row + 0.5], [c + 0.5, r + 0.5]];
        return spots.map(([x, y]) => [...pen.getImageData(x * cell, y * cell, 1, 1).data]);
    }"""
    opened.page.evaluate("setStop(24)")
    opened.settle()
    (*ring, _), (*key, _) = opened.page.evaluate(script)
    assert max(ring) < 60
    assert key[0] > 200 > 120 > key[1] > key[2]


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_nothing_sticks_out_at_any_width(visit: Any, width: int) -> None:
    opened = visit(width=width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_names_stay_text(visit: Any, tmp_path: Path) -> None:
    model = seeded(network)
    path = tmp_path / "page.html"
    verify.write_report(path, model, construct.convert(model), torch.ones(1, 3, 6, 7), title=HOSTILE[0])
    opened = visit(path)
    assert opened.page.evaluate("window.hurt") is None
    names = opened.page.locator("summary > .name").all_inner_texts()
    assert names[:-1] == [name.replace(".", "_") for name in HOSTILE[:-1]]
    assert names[-1] == r"line\u2028break\u202e&amp;"
    assert opened.page.title() == opened.page.locator("h1").inner_text() == HOSTILE[0]
    assert opened.page.locator("#overview .head").count() == 9 * len(HOSTILE)


def test_the_pages_of_the_command_line_work(visit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from construct.from_conv import main

    monkeypatch.chdir(tmp_path)
    assert main(["--report", "demo.html"]) == 0
    opened = visit(tmp_path / "demo.html")
    assert opened.page.locator("#overview .head").count() == 9 + 9 + 4 + 9 + 1 + 16
    assert opened.page.locator(".layer .outputs canvas").count() == 4 * 6
    assert opened.page.locator("img").count() == 0  # the slider would not change images
    assert opened.page.evaluate("Math.max(...Object.values(pictures).map((p) => outputs(p, OWN).greatest))") < 1e-14
    assert opened.page.evaluate("document.querySelector('#alpha').textContent") == "α = 1024"


LUMINANCE = """
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [a, b] = [luminance(one), luminance(other)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
"""
"""The contrast of two colours by WCAG, in scripts."""
CONTRASTS = """() => {
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return rgb(getComputedStyle(document.body).backgroundColor);
  };
  const low = [];
  for (const one of document.querySelectorAll("body *")) {
    if (!one.checkVisibility() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(one.tagName)) continue;
    if (![...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
    const style = getComputedStyle(one);
    const ratio = contrast(rgb(one.ownerSVGElement ? style.fill : style.color), behind(one));
    if (!(ratio >= 4.5)) low.push([one.className, one.textContent.trim().slice(0, 30), ratio]);
  }
  return low;
}"""
PICTURE_CONTRASTS = """() => {
  const { heat, dark, light } = colours();
  return [[heat, dark], [heat, light], [dark, light]].map(([a, b]) => contrast(rgb(a), rgb(b)));
}"""


@pytest.mark.parametrize("schemes", [("light", "dark", "light"), ("dark", "light", "dark")], ids=lambda s: s[0])
def test_every_word_can_be_read_in_both_themes(visit: Any, schemes: tuple[str, ...]) -> None:
    """In that of the reader's system first, then as the button changes it."""
    opened = visit(color_scheme=schemes[0])
    for scheme in schemes:
        paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        assert opened.page.locator("#theme").inner_text() == ("Dark" if scheme == "light" else "Light")
        opened.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        opened.settle()
        assert opened.page.evaluate(f"{{ {LUMINANCE} ({CONTRASTS})() }}") == []
        contrasts = opened.page.evaluate(f"{{ {LUMINANCE} ({PICTURE_CONTRASTS})() }}")
        assert min(contrasts[:2]) >= 3, "orange on the picture's darkest and lightest"
        assert contrasts[2] >= 7, "the picture itself"
        opened.page.locator("#theme").click()
        opened.settle()


def test_headings_go_down_one_step_at_a_time(opened: Opened) -> None:
    levels = opened.page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))
    assert opened.page.evaluate("[...document.querySelectorAll('h3')].every((h) => h.className === 'name')")


def test_without_scripts_no_heading_is_empty(browser: Any, zoo: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(zoo.as_uri())
    assert "Scripts are switched off, and these pictures" in page.locator("main").inner_text()
    assert not page.locator("#controls").is_visible()
    context.close()


def test_on_a_phone_the_slider_stays_beside_the_heads(visit: Any) -> None:
    opened = visit(width=390)
    for part in (opened.heads(3).last, opened.layer(0).locator("canvas").last):
        part.scroll_into_view_if_needed()
        opened.settle()
        for box in (opened.page.locator("#sharpness").bounding_box(), part.bounding_box()):
            assert 0 <= box["y"] < 900 - box["height"] / 2


def test_one_dimension_is_not_drawn_tall(visit: Any, tmp_path: Path) -> None:
    verify.write_report(tmp_path / "page.html", attention={"few": torch.ones(2, 4, 4) / 4})
    opened = visit(tmp_path / "page.html")
    for box in opened.page.locator("#large, .head canvas").all():
        assert box.bounding_box()["height"] <= 120


def test_a_large_layer_moves_fast_enough(visit: Any, tmp_path: Path) -> None:
    """A patch embedding: 256 heads, of which 64 are drawn, and large tokens."""
    conv = nn.Conv2d(3, 2, 16, 16)
    verify.write_report(tmp_path / "page.html", conv, construct.conv_to_mhsa(conv))
    opened = visit(tmp_path / "page.html")
    script = """() => {
        const from = performance.now();
        for (let k = 0; k < 8; k++) { state.at = [k % 2, (k >> 1) % 2, 0]; drawAll(); }
        return (performance.now() - from) / 8;
    }"""
    assert opened.page.evaluate(script) < 300


@pytest.mark.parametrize("head", [0, 4, 31, 47])
def test_a_tapped_head_is_shown_where_the_finger_is(visit: Any, head: int) -> None:
    """Below its own row, in view, and the head stays under the finger, however the page was scrolled."""
    opened = visit(DEMO, width=390, height=844, has_touch=True, is_mobile=True)
    card = opened.page.locator("#overview .head").nth(head)
    opened.page.locator("#overview .head").nth(12).tap()  # another panel is open before
    for place in (0.45, 0.95):
        card.evaluate("(card, at) => scrollBy(0, card.getBoundingClientRect().bottom - at * innerHeight)", place)
        before = card.bounding_box()
        opened.page.touchscreen.tap(before["x"] + 20, before["y"] + 20)
        opened.settle()
        box, panel = (one.bounding_box() for one in (card, opened.page.locator("#panel")))
        top = opened.page.locator("#controls").bounding_box()
        assert card.get_attribute("aria-pressed") == "true"
        assert f"head {card.get_attribute('data-head')}" in opened.text("#large-name")
        assert top["y"] + top["height"] <= panel["y"] + 1
        assert panel["y"] + panel["height"] <= 844 + 1
        assert 0 <= panel["y"] - (box["y"] + box["height"]) < 20
        assert place > 0.5 or abs(box["y"] - before["y"]) < 2
        assert panel["x"] + panel["width"] <= 390
        opened.page.locator("#overview .head").nth(12).tap()


def type_kernel(opened: Opened, kernel: Any) -> None:
    for field, tap in zip(opened.page.locator("#kernel input").all(), np.ravel(kernel), strict=True):
        field.fill(str(tap))


def numbers(opened: Opened, script: str) -> np.ndarray:
    return np.array(opened.page.evaluate(f"Array.from({script})"))


def pixels_drawn(opened: Opened) -> np.ndarray:
    """What is drawn: what the convolution with the identity gives."""
    type_kernel(opened, [0, 0, 0, 0, 1, 0, 0, 0, 0])
    return numbers(opened, "pictures.try.live.convolution").reshape(14, 14)


def test_a_typed_kernel_and_a_drawn_digit_are_convolved_and_attended(visit: Any) -> None:
    opened = visit(DEMO)
    opened.page.locator("#clear").click()
    box = opened.page.locator("#draw").bounding_box()
    at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in ((0.3, 0.2), (0.7, 0.2), (0.4, 0.9))]
    opened.page.mouse.move(*at[0])
    opened.page.mouse.down()
    for corner in at[1:]:
        opened.page.mouse.move(*corner, steps=3)
    opened.page.mouse.up()
    opened.page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2)  # no button is pressed
    pixels = pixels_drawn(opened)
    assert pixels[2, 5:9].min() == 1
    assert 15 < (pixels > 0.5).sum() < 60
    assert not pixels[5:9, :3].any()
    kernel = np.array([[0.5, -1, 2], [0, 3.25, -4], [1, 1e-3, -0.75]])
    type_kernel(opened, kernel)
    conv = nn.Conv2d(1, 1, 3, padding=1, bias=False).double()
    x = torch.tensor(pixels)[None, None]
    with torch.no_grad():
        conv.weight.copy_(torch.tensor(kernel))
        expected = conv(x).flatten().numpy()
    np.testing.assert_allclose(numbers(opened, "pictures.try.live.convolution"), expected, rtol=0, atol=1e-14)
    for stop, alpha in ((3, 2**-0.5), (12, 16.0)):
        layer = construct.conv_to_mhsa(conv, alpha=alpha).double()
        opened.page.evaluate(f"setStop({stop})")
        with torch.no_grad():
            attended, rows = layer(x).flatten().numpy(), layer.attention_probabilities(x)[0].numpy()
        output = numbers(opened, f"outputs(pictures.try, {stop}).output")
        np.testing.assert_allclose(output, attended, rtol=0, atol=1e-13)
        query = "probabilities(pictures.try, h, [5, 6], pictures.try.factors[state.stop])"
        shown = [numbers(opened, query.replace("h,", f"{head},")) for head in range(9)]
        np.testing.assert_allclose(shown, rows[:, 5 * 14 + 6], rtol=0, atol=1e-14)
        most = opened.page.evaluate(f"short({np.abs(output - expected).max()})")
        assert f"two separate computations, differ by at most {most}" in opened.text("#try-words")
    opened.page.evaluate("setStop(24)")
    said = opened.text("#try-words")
    assert "exactly the same numbers" in said or "which the rounding of nine products and sums explains" in said
    opened.page.locator("#kernel input").first.fill("")
    assert "A tap that is no number from −1000 to 1000 counts as 0." in opened.text("#try-words")


def test_a_digit_is_drawn_by_touch_and_by_keys(visit: Any) -> None:
    opened = visit(DEMO, width=390, has_touch=True, is_mobile=True)
    opened.page.locator("#clear").click()
    canvas = opened.page.locator("#draw")
    canvas.scroll_into_view_if_needed()
    box, scrolled = canvas.bounding_box(), opened.page.evaluate("scrollY")
    touch = opened.context.new_cdp_session(opened.page)
    for kind, share in (("Start", 0.75), ("Move", 0.6), ("Move", 0.5), ("End", None)):
        spots = [] if share is None else [{"x": box["x"] + box["width"] / 2, "y": box["y"] + share * box["height"]}]
        touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": spots})
    opened.settle()
    assert opened.page.evaluate("scrollY") == scrolled
    drawn_by_touch = pixels_drawn(opened)
    assert drawn_by_touch[7:10, 6:8].min() >= 0.5
    canvas.focus()
    for key in ("Home", "ArrowRight", " "):
        opened.page.keyboard.press(key)
    assert pixels_drawn(opened)[0, 1] == 1
    assert drawn_by_touch[0, 1] == 0


def test_trained_heads_are_shown_from_any_query(visit: Any) -> None:
    opened = visit(ROOT / "docs/learned.html")
    assert opened.page.locator("#overview .block").count() == 12
    for layer, (name, mhsa) in enumerate(learned_layers()):
        opened.heads(layer).nth(3).click()
        opened.page.locator("#large").focus()
        opened.page.keyboard.press("Home")
        assert opened.readout().startswith("The query is output (0, 0). Head 3 puts")
        assert opened.text("#large-name") == f"{name}, head 3"
        with torch.no_grad():
            row = mhsa.attention_probabilities(torch.zeros(1, 1, 16, 16))[0, 3, 0]
        shown = numbers(opened, f"probabilities(pictures[{layer}], 3, [0, 0])")
        np.testing.assert_allclose(shown, row, rtol=0, atol=1e-5)


def test_where_content_attention_looks_is_told_for_the_query(visit: Any, tmp_path: Path) -> None:
    conv = seeded(lambda: nn.Conv2d(2, 2, 3, padding=1))
    layer = construct.conv_to_mhsa(conv, alpha=4.0)
    with torch.no_grad():
        layer.w_qry.normal_(std=0.05)
        layer.w_key.normal_(std=0.05)
    verify.write_report(tmp_path / "page.html", conv, layer, seeded(lambda: torch.randn(1, 2, 9, 9)))
    opened = visit(tmp_path / "page.html")
    for head in (0, 8):
        opened.heads(0).nth(head).focus()
        said = opened.readout()
        assert f", which tap ({head // 3}, {head % 3}) reads from here. Where it looks depends on the image" in said
        assert "no tap of the kernel" not in said
    assert not opened.page.locator("#controls").is_visible()  # no head can be sharpened


def test_learned_attention_in_8_bits(visit: Any, tmp_path: Path) -> None:
    rows = seeded(lambda: torch.softmax(2 * torch.randn(2, 9, 256, 256), -1))
    maps = {f"layer {k}": one.reshape(9, 16, 16, 16, 16) for k, one in enumerate(rows)}
    verify.write_report(tmp_path / "page.html", attention=maps)
    opened = visit(tmp_path / "page.html")
    assert opened.page.locator(".head").count() == 18
    row = opened.page.evaluate("Array.from(probabilities(pictures[1], 4, [2, 3]))")
    np.testing.assert_allclose(np.sqrt(row), rows[1, 4, 2 * 16 + 3].sqrt(), atol=0.51 / 255)
    assert "about" in opened.readout()
