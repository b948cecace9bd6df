"""The report page in a real browser: what pointer, keys and slider do, and that the script's softmax is the layer's own.

Needs Chromium (``apt-get install chromium``) and playwright.  Where they are missing these tests are skipped, or fail where
the environment says BROWSER_TESTS=required, as the continuous integration does.
"""

import base64
import io
import os
import shutil
from collections.abc import Iterator
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
from report_layers import HOSTILE, SHOWN, drawn, network, own_attention, seeded

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


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
    """A page, and everything that it said or asked for; its layers are opened all at once, or when one is looked at."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, lazy: bool = False, **options: Any):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append("a dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        if not lazy:
            self.page.evaluate("document.querySelectorAll('details').forEach((layer) => { layer.open = true; })")
        self.settle()
        self.address = path.as_uri()

    def settle(self) -> None:
        """Let the page draw what changed."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def layer(self, index: int) -> Any:
        """Where a layer stands, open."""
        found = self.page.locator(f"#layer-{index}")
        if not found.evaluate("(layer) => layer.open"):
            found.locator("> summary").click()
            self.settle()
        return found

    def readout(self, index: int) -> str:
        """What the page says of the query and the chosen head."""
        self.settle()
        return self.layer(index).locator(".readout").inner_text()

    def close(self) -> None:
        """No error, no message, and nothing asked for but the page itself."""
        self.context.close()
        assert not self.said
        assert [url for url in self.requests if not url.startswith("data:")] == [self.address]


@pytest.fixture
def opened(browser: Any, zoo: Path) -> Iterator[Opened]:
    """The page of the zoo."""
    page = Opened(browser, zoo, lazy=True)
    yield page
    page.close()


def number_of(name: str) -> int:
    return list(SHOWN).index(name)


# ---- the picture is the layer's own softmax ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHOWN)
def test_the_scripts_softmax_is_the_layers(opened: Opened, name: str) -> None:
    layer, _ = drawn(name)
    script = """(index) => {
        const picture = pictures[index];
        const asked = picture.queries.map((axis) => axis.length);
        const queries = Array.from({ length: asked.reduce((a, b) => a * b, 1) }, (_, q) => placeOf(asked, q));
        return picture.centres.map((_, head) => queries.map((query) => Array.from(probabilities(picture, head, query))));
    }"""
    found = opened.page.evaluate("(index) => pictures[index]", number_of(name))
    rows = np.array(opened.page.evaluate(script, number_of(name)))
    own = own_attention(layer, found)
    np.testing.assert_allclose(rows, own, rtol=1e-12, atol=1e-300)
    # And the canvas shows it: in every head's picture the deepest token is where the layer looks.
    middle = np.ravel_multi_index(
        [len(axis) // 2 for axis in found["queries"]], [len(axis) for axis in found["queries"]]
    )
    assert [said.split(" on ")[1] for said in labels(opened, number_of(name))] == [
        opened.page.evaluate(f"describe(pictures[{number_of(name)}], {int(own[head, middle].argmax())})")
        for head in range(layer.heads)
    ]


def labels(opened: Opened, index: int) -> list[str]:
    """What the heads' pictures say of themselves."""
    return opened.layer(index).locator(".head canvas[role=img]").evaluate_all("(all) => all.map((c) => c.ariaLabel)")


def shades(canvas: Any, shape: list[int]) -> np.ndarray:
    """How blue each token is drawn: the accent is (31, 102, 179), everything else is grey."""
    image = canvas.evaluate("(canvas) => canvas.toDataURL()").partition(",")[2]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")).astype(int)
    rows, columns = shape
    height, width = len(pixels) // rows, pixels.shape[1] // columns
    seen = pixels[height // 5 :: height, width // 2 :: width]  # away from the strokes of padding tokens
    return (seen[..., 2] - seen[..., 0]).ravel()


@pytest.mark.parametrize("name", ["edited", "strided-dilated"])
def test_the_pixels_that_are_drawn_follow_the_attention(opened: Opened, name: str) -> None:
    layer, _ = drawn(name)
    found = opened.page.evaluate("(index) => pictures[index]", number_of(name))
    own = own_attention(layer, found)
    shape = [len(axis) for axis in found["queries"]]
    middle = np.ravel_multi_index([n // 2 for n in shape], shape)
    query = np.ravel_multi_index([axis[len(axis) // 2] for axis in found["queries"]], found["shape"])
    for head in range(layer.heads):
        canvas = opened.layer(number_of(name)).locator(f".head[data-head='{head}'] canvas[role=img]")
        expected = (179 - 31) * np.sqrt(own[head, middle])
        for _ in range(50):  # a slow machine may lay the page out, and draw it, once more
            far = np.delete(np.abs(shades(canvas, found["shape"]) - expected), query)  # on the query a ring is drawn
            if far.max() < 16:
                break
            opened.page.wait_for_timeout(100)
        assert far.max() < 16
    main = opened.layer(number_of(name)).locator("canvas.query")
    expected = (179 - 31) * np.sqrt(own[:, middle].max(axis=0))  # all heads together
    far = np.delete(np.abs(shades(main, found["shape"]) - expected), [query])
    assert np.quantile(far, 0.7) < 16  # some tokens have a dot in their middle
    assert (shades(main, found["shape"]) > 60).sum() >= (expected > 80).sum() - 1


# ---- pointer, keys, slider -----------------------------------------------------------------------------------------------


def test_pointing_moves_the_query(opened: Opened) -> None:
    index = number_of("plain")
    canvas = opened.layer(index).locator("canvas.query")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    columns = opened.page.evaluate(f"pictures[{index}].shape[1]")
    side = box["width"] / columns
    opened.page.mouse.move(box["x"] + 3.5 * side, box["y"] + 2.5 * side)
    assert opened.readout(index).startswith("Output (1, 2) asks at token (2, 3).")
    opened.page.mouse.move(box["x"] + 1.5 * side, box["y"] + 1.5 * side)
    said = opened.readout(index)
    assert said.startswith("Output (0, 0) asks at token (1, 1). Head 0 gives")
    assert "to token (0, 0), a padding token of zeros, and multiplies it by tap (0, 0)" in said
    # A head's own picture takes the pointer too, and becomes the chosen one; padding asks for nothing.
    head = opened.layer(index).locator(".head[data-head='5'] canvas[role=img]")
    head.scroll_into_view_if_needed()
    box = head.bounding_box()
    opened.page.mouse.move(box["x"] + 1, box["y"] + box["height"] - 1)
    last = opened.page.evaluate(f"pictures[{index}].queries[0].length - 1")
    assert opened.readout(index).startswith(f"Output ({last}, 0) asks at token ({last + 1}, 1). Head 5 gives")


def test_a_finger_moves_the_query(browser: Any, zoo: Path) -> None:
    opened = Opened(browser, zoo, width=390, has_touch=True, is_mobile=True)
    canvas = opened.layer(0).locator("canvas.query")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    opened.page.touchscreen.tap(box["x"] + box["width"] - 2, box["y"] + 2)
    last = opened.page.evaluate("pictures[0].queries[1].length - 1")
    assert opened.readout(0).startswith(f"Output (0, {last}) asks")
    opened.close()


@pytest.mark.parametrize("name", ["plain", "strided-dilated", "1-D", "3-D", "transposed"])
def test_keys_move_the_query(opened: Opened, name: str) -> None:
    index = number_of(name)
    sides = opened.page.evaluate(f"pictures[{index}].queries.map((axis) => axis.length)")
    opened.layer(index).locator("canvas.query").focus()
    query = [0] * len(sides)

    def press(key: str, expected: list[int]) -> None:
        opened.page.keyboard.press(key)
        assert opened.readout(index).startswith(f"Output ({', '.join(map(str, expected))}) asks"), key

    press("Home", query)
    press("ArrowLeft", query)  # there is nothing further left
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
    seen = set()
    for _ in range(40):
        opened.page.keyboard.press("Tab")
        name, outline = opened.page.evaluate(
            "[document.activeElement.tagName + '.' + document.activeElement.className, "
            "getComputedStyle(document.activeElement).outlineStyle]"
        )
        if name == "BODY.":  # once round
            break
        assert outline != "none", name
        seen.add(name)
    assert {"BUTTON.", "SUMMARY.", "CANVAS.query", "INPUT."} <= seen


def test_the_slider_sharpens_every_head(opened: Opened) -> None:
    index = number_of("plain")
    layer = opened.layer(index)
    slider = layer.locator("input[type=range]")
    assert layer.locator(".sharpness output").inner_text() == "α = 0.75"
    slider.focus()
    leaks, tops = [], []
    stops = opened.page.evaluate(f"pictures[{index}].factors.length")
    opened.page.keyboard.press("Home")
    for _ in range(stops):
        opened.settle()
        figures = layer.locator(".leak").get_attribute("title")
        measured, bound = (float(part.split()[1]) for part in figures.split(", "))
        assert measured <= bound * (1 + 1e-9)
        leaks.append((measured, bound))
        tops.append(labels(opened, index)[4])
        opened.page.keyboard.press("ArrowRight")
    assert sorted(leaks, reverse=True) == leaks
    assert leaks[0][0] > 0.8
    assert leaks[-1][0] == 0
    assert "100 %" in tops[-1]
    assert "100 %" not in tops[0]
    assert layer.locator(".sharpness output").inner_text() == slider.get_attribute("aria-valuetext") == "α = 1024"
    layer.get_by_role("button", name="The layer’s own").click()
    opened.settle()
    assert layer.locator(".sharpness output").inner_text() == "α = 0.75"


def test_a_tap_picks_its_head(opened: Opened) -> None:
    layer = opened.layer(number_of("transposed"))
    layer.locator(".kernel button").nth(2).click()
    assert "multiplies it by tap (0, 2)" in opened.readout(number_of("transposed"))
    assert layer.locator(".head.chosen").get_attribute("data-head") == "6"  # the kernel lies flipped
    assert layer.locator(".kernel button.chosen").count() == 1


def test_what_a_token_is_in_words(opened: Opened) -> None:
    def described(name: str, key: int) -> str:
        return opened.page.evaluate(f"describe(pictures[{number_of(name)}], {key})")

    assert described("transposed", 0) == "token (0, 0), a padding token of zeros"
    columns = opened.page.evaluate(f"pictures[{number_of('transposed')}].shape[1]")
    assert described("transposed", columns + 1) == "token (1, 1), input (0, 0)"
    assert described("transposed", columns + 2) == "token (1, 2), a token of zeros between two inputs"
    assert described("1-D", 0) == "token (0), padding, a copy of input (3)"
    assert described("1-D", 3) == "token (3), input (0)"


def test_slices_of_three_dimensions(opened: Opened) -> None:
    layer = opened.layer(number_of("3-D"))
    selector = layer.locator("select")
    selector.select_option("0")
    opened.settle()
    assert {text.rpartition(" ")[2] for text in layer.locator(".head .under").all_inner_texts()} == {"0"}
    selector.select_option("")
    opened.settle()
    assert len({text.rpartition(" ")[2] for text in layer.locator(".head .under").all_inner_texts()}) == 2


def test_learned_attention_is_shown_without_a_slider(opened: Opened) -> None:
    layer = opened.layer(len(SHOWN))
    assert "as they were given" in layer.inner_text()
    assert layer.locator("input[type=range]").count() == 0
    assert layer.locator(".head").count() == 2
    row = opened.page.evaluate(f"Array.from(probabilities(pictures[{len(SHOWN)}], 1, [2, 3]))")
    expected = torch.softmax(seeded(lambda: torch.randn(2, 16, 16)), -1)[1, 11]
    np.testing.assert_allclose(row, expected, atol=1 / 65535)


# ---- the whole page --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_nothing_sticks_out_at_any_width(browser: Any, zoo: Path, width: int) -> None:
    opened = Opened(browser, zoo, width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes(browser: Any, zoo: Path, scheme: str) -> None:
    opened = Opened(browser, zoo, color_scheme=scheme)
    paper = "getComputedStyle(document.body).backgroundColor"
    first = opened.page.evaluate(paper)
    assert (first == "rgb(255, 255, 255)") == (scheme == "light")
    button = opened.page.locator("#theme")
    assert button.inner_text() == ("Dark" if scheme == "light" else "Light")
    button.click()
    second = opened.page.evaluate(paper)
    button.click()
    assert [opened.page.evaluate(paper), second == first] == [first, False]
    opened.close()


def test_hostile_names_stay_text(browser: Any, tmp_path: Path) -> None:
    model = seeded(network)
    path = tmp_path / "page.html"
    verify.write_report(path, model, construct.convert(model), torch.ones(1, 3, 6, 7), title=HOSTILE[0])
    opened = Opened(browser, path)
    assert opened.page.evaluate("window.hurt") is None
    names = opened.page.locator("summary > .name").all_inner_texts()
    assert names[:-1] == [name.replace(".", "_") for name in HOSTILE[:-1]]
    assert names[-1] == r"line\u2028break\u202e&amp;"
    assert opened.page.title() == opened.page.locator("h1").inner_text() == HOSTILE[0]
    assert opened.page.locator(".head").count() == 9 * len(HOSTILE)
    opened.close()


def test_the_pages_of_the_command_line_work(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from construct.from_conv import main

    monkeypatch.chdir(tmp_path)
    assert main(["--report", "demo.html"]) == 0
    opened = Opened(browser, tmp_path / "demo.html")
    assert opened.page.locator(".head").count() == 9 + 9 + 4 + 9 + 1 + 16
    assert opened.page.locator(".strip img").count() == 4 * 6
    assert opened.page.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
    opened.close()


# ---- keys ----------------------------------------------------------------------------------------------------------------


def chosen(opened: Opened, index: int) -> str | None:
    opened.settle()
    return opened.layer(index).locator(".head.chosen").get_attribute("data-head")


@pytest.mark.parametrize("name", ["edited", "1-D", "3-D"])
def test_every_head_can_be_chosen_by_keys(opened: Opened, name: str) -> None:
    """Also those that look at no tap of the kernel."""
    index = number_of(name)
    heads = opened.layer(index).locator(".head").count()
    opened.layer(index).locator(".head.chosen").focus()
    opened.page.keyboard.press("Home")
    seen = []
    for _ in range(heads):
        seen.append(chosen(opened, index))
        assert f"Head {seen[-1]} gives" in opened.readout(index)
        assert opened.page.evaluate("document.activeElement.dataset.head") == seen[-1]
        opened.page.keyboard.press("ArrowRight")
    assert seen == [str(head) for head in range(heads)]
    opened.page.keyboard.press("End")
    assert chosen(opened, index) == str(heads - 1)
    opened.page.keyboard.press("ArrowRight")  # there is nothing further
    assert chosen(opened, index) == str(heads - 1)
    assert opened.layer(index).locator(".head[aria-checked=true]").count() == 1


def test_arrows_go_up_and_down_among_heads_and_taps(opened: Opened) -> None:
    index = number_of("plain")
    opened.layer(index).locator(".head.chosen").focus()
    for key, head in (("ArrowDown", "3"), ("ArrowRight", "4"), ("ArrowUp", "1"), ("ArrowUp", "1")):
        opened.page.keyboard.press(key)
        assert chosen(opened, index) == head
    opened.layer(index).locator(".kernel button[tabindex='0']").focus()
    for key, head in (("ArrowDown", "4"), ("ArrowDown", "7"), ("ArrowRight", "8"), ("Home", "0")):
        opened.page.keyboard.press(key)
        assert chosen(opened, index) == head


def test_heads_and_kernel_are_one_stop_each(opened: Opened) -> None:
    index = number_of("plain")
    opened.layer(index).locator("> summary").focus()
    stops = []
    for _ in range(8):
        opened.page.keyboard.press("Tab")
        stops.append(opened.page.evaluate("document.activeElement.closest('.kernel, .head, .panel')?.className"))
    inside = [stop for stop in stops if stop]
    assert inside == ["panel", "panel", "panel", "head chosen", "kernel"]


def test_several_heads_at_one_tap_are_all_named(opened: Opened) -> None:
    """Three heads are moved to one tap."""
    index = number_of("plain")
    opened.layer(index)
    script = """(index) => {
        pictures[index].taps = [4, 1, 2, 3, 4, 5, 6, 7, 4];
        shown.get(document.querySelector(`#layer-${index} .picture`)).redraw();
    }"""
    opened.page.evaluate(script, index)
    opened.settle()
    tap = opened.layer(index).locator(".kernel button").nth(4)
    assert tap.inner_text() == "0 +2"
    assert tap.get_attribute("aria-label").endswith("heads 0, 4, 8")
    found = []
    for _ in range(3):
        tap.click()
        found.append(chosen(opened, index))
    assert sorted(found) == ["0", "4", "8"]


# ---- for everyone --------------------------------------------------------------------------------------------------------

CONTRASTS = """() => {
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
    const [a, b] = [luminance(rgb(one.ownerSVGElement ? style.fill : style.color)), luminance(behind(one))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (!(contrast >= 4.5)) low.push([one.className, one.textContent.trim().slice(0, 30), contrast]);
  }
  return [low, document.querySelectorAll(".kernel button").length];
}"""


@pytest.fixture(scope="module")
def shaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel with taps of every shade."""
    conv = nn.Conv2d(1, 1, 11, padding=5)
    with torch.no_grad():
        conv.weight.copy_(torch.linspace(0, 1, 121).reshape(1, 1, 11, 11))
    path = tmp_path_factory.mktemp("shaded") / "page.html"
    verify.write_report(path, conv, construct.conv_to_mhsa(conv))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read(browser: Any, shaded: Path, zoo: Path, scheme: str) -> None:
    for path in (shaded, zoo):
        opened = Opened(browser, path, color_scheme=scheme)
        for _ in range(2):  # and when the theme is changed by hand
            low, taps = opened.page.evaluate(CONTRASTS)
            assert taps > 100 or path == zoo
            assert low == []
            opened.page.locator("#theme").click()
            opened.settle()
        assert "strongest colour" in opened.page.locator(".tap-map figcaption").first.inner_text()
        opened.close()


def test_headings_go_down_one_step_at_a_time(browser: Any, zoo: Path) -> None:
    opened = Opened(browser, zoo)
    levels = opened.page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))
    assert opened.page.evaluate("[...document.querySelectorAll('h3')].every((h) => h.className === 'name')")
    opened.close()


def test_without_scripts_no_heading_is_empty(browser: Any, zoo: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(zoo.as_uri())
    assert "Scripts are switched off, and this picture" in page.locator("#layer-0 .body").inner_text()
    context.close()


def test_on_a_phone_the_slider_stays_beside_the_heads(browser: Any, zoo: Path) -> None:
    opened = Opened(browser, zoo, width=390)
    opened.layer(0).locator(".head").last.scroll_into_view_if_needed()
    opened.settle()
    slider = opened.layer(0).locator("input[type=range]").bounding_box()
    head = opened.layer(0).locator(".head").last.bounding_box()
    for box in (slider, head):
        assert 0 <= box["y"] < 900 - box["height"] / 2
    opened.close()


def test_one_dimension_is_not_drawn_tall(browser: Any, tmp_path: Path) -> None:
    verify.write_report(tmp_path / "page.html", attention={"few": torch.ones(2, 4, 4) / 4})
    opened = Opened(browser, tmp_path / "page.html")
    for box in opened.page.locator("canvas.query, .head > canvas").all():
        assert box.bounding_box()["height"] <= 120
    opened.close()


def test_a_large_layer_moves_fast_enough(browser: Any, tmp_path: Path) -> None:
    """A patch embedding: 256 heads, of which 64 are drawn, and large tokens."""
    conv = nn.Conv2d(3, 2, 16, 16)
    verify.write_report(tmp_path / "page.html", conv, construct.conv_to_mhsa(conv))
    opened = Opened(browser, tmp_path / "page.html")
    script = """() => {
        const [drawn] = shown.values();
        const from = performance.now();
        for (let k = 0; k < 8; k++) { drawn.query = [k % 2, (k >> 1) % 2]; drawn.draw(); }
        return (performance.now() - from) / 8;
    }"""
    assert opened.page.evaluate(script) < 150  # it took 536 ms
    sides = opened.page.evaluate("[...shown.values()][0].cardsOf.map(({ canvas }) => canvas.width)")
    assert min(sides) >= 32 * 3
    opened.close()


# ---- content -------------------------------------------------------------------------------------------------------------


def test_where_content_attention_looks_is_told_for_the_query(browser: Any, tmp_path: Path) -> None:
    conv = seeded(lambda: nn.Conv2d(2, 2, 3, padding=1))
    layer = construct.conv_to_mhsa(conv, alpha=4.0)
    with torch.no_grad():
        layer.w_qry.normal_(std=0.05)
        layer.w_key.normal_(std=0.05)
    verify.write_report(tmp_path / "page.html", conv, layer, seeded(lambda: torch.randn(1, 2, 9, 9)))
    opened = Opened(browser, tmp_path / "page.html")
    for head in (0, 8):
        opened.layer(0).locator(f".head[data-head='{head}']").focus()
        said = opened.readout(0)
        assert f", which tap ({head // 3}, {head % 3}) reads from here. Where it looks depends on the image" in said
        assert "no tap of the kernel" not in said
    assert opened.layer(0).locator(".kernel button").all_inner_texts() == [str(head) for head in range(9)]
    opened.close()


def test_learned_attention_in_8_bits(browser: Any, tmp_path: Path) -> None:
    rows = seeded(lambda: torch.softmax(2 * torch.randn(2, 9, 256, 256), -1))
    maps = {f"layer {k}": one.reshape(9, 16, 16, 16, 16) for k, one in enumerate(rows)}
    verify.write_report(tmp_path / "page.html", attention=maps)
    opened = Opened(browser, tmp_path / "page.html")
    assert opened.page.locator(".head").count() == 18
    row = opened.page.evaluate("Array.from(probabilities(pictures[1], 4, [2, 3]))")
    np.testing.assert_allclose(np.sqrt(row), rows[1, 4, 2 * 16 + 3].sqrt(), atol=0.51 / 255)
    assert "about" in opened.readout(1)
    opened.close()
