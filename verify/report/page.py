"""Renders the HTML page with jinja2: self-contained, with every name escaped as text."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch

from verify.oracle import Geometry, times
from verify.recheck.strict_input import Record
from verify.report.attention import picture
from verify.report.given_attention import MOST_GIVEN
from verify.report.images import strip
from verify.report.layer import NoPicture, ReportLayer
from verify.report.live import class_scores
from verify.report.numbers import Sentence, claimed, numbers_of, summary
from verify.report.seal import sealed
from verify.verdict import escaped

MOST_PICTURES = 600_000
"""The most characters of attention data; layers beyond that show only their numbers."""
MOST_IMAGES = 350_000
"""The most characters of drawn activations."""
MOST_ARGUMENTS = 60
"""The most layers whose argument is printed step by step; the certificate file has all."""

SCRIPTS = ("softmax.js", "drawing.js", "page.js", "try.js")
"""The parts of the page's script, in order."""
FULL = "the layers above fill the page"


@dataclass(frozen=True)
class Facts:
    """The content of a page apart from its layers.

    ``lede`` is the paragraph below the heading, if it is not the usual one, ``network`` the sentences about the network as a
    whole, ``input_caption`` a description of the drawn input, ``recheck`` the command that rechecks
    the certificates, ``typed`` the one that made the files, and ``hindered`` why there is none.
    ``run`` is the original network, the converted one, and the input that is drawn, or None.
    """

    title: str
    lede: str = ""
    network: tuple[Sentence, ...] = ()
    input_caption: str = ""
    recheck: str | None = None
    typed: str = ""
    hindered: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    run: tuple[Any, Any, Any] = (None, None, None)


def page(layers: Sequence[ReportLayer], facts: Facts) -> bytes:
    """One self-contained HTML document in UTF-8.

    Raises:
        ImportError: jinja2 is missing.
        ValueError: the given attention does not consist of probabilities.
    """
    jinja2 = require_jinja2()
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "geometry": Geometry.read,
        "times": times,
        "numbers_of": numbers_of,
        "summary": summary,
        "claimed": claimed,
    }
    views, pictures = _views(layers)
    factors = {
        layers[index].name: data["factors"]
        for index, data in pictures.items()
        if data.get("live") and not data["crop"]
    }
    scores = []
    if facts.run[2] is not None and len(factors) == len(layers):
        scores = class_scores(*facts.run, factors)
    style = _part("page.css")
    script = "\n".join(map(_part, SCRIPTS))
    text = environment.from_string(_part("page.html")).render(
        **vars(facts),
        layers=views,
        full=FULL,
        drawn=bool(pictures),
        scores=scores,
        most_arguments=MOST_ARGUMENTS,
        torch=torch.__version__,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=in_script(pictures),
    )
    return sealed(text.encode("utf-8", "backslashreplace"))


def require_jinja2() -> Any:
    """Import jinja2.

    Raises:
        ImportError: jinja2 is missing; one line says how to install it.
    """
    try:
        import jinja2
    except ImportError as error:
        hint = 'pip install ".[report]" in the project\'s folder'
        raise ImportError(f"the report needs jinja2, which is not installed ({hint})") from error
    return jinja2


def in_script(value: Any) -> str:
    """JSON escaped for a script element: it cannot end the element or a line of an old script."""
    return require_jinja2().utils.htmlsafe_json_dumps(value, separators=(",", ":"), allow_nan=False)


def plain(text: Any) -> Any:
    """Text with unprintable characters escaped; anything else unchanged."""
    return escaped(text) if type(text) is str else text


def _part(name: str) -> str:
    return (files("verify.report") / "web" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The digest by which the Content-Security-Policy allows an inline element."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _views(layers: Sequence[ReportLayer]) -> tuple[list[Record], dict[int, Any]]:
    """What is drawn of each layer, and the data of the pictures."""
    views: list[Record] = []
    pictures: dict[int, Any] = {}
    drawn = 0
    images = 0
    share = MOST_GIVEN // max(1, sum(layer.attention is not None for layer in layers))
    for index, layer in enumerate(layers):
        # Given attention is the page's purpose, so it is drawn at any size.
        given = layer.attention is not None
        data, why_not = _tried(given or drawn < MOST_PICTURES, picture, layer, share)
        shown = None
        no_strip = ""
        if data.get("live") is None or data["crop"]:  # else the page itself draws both outputs
            shown, no_strip = _tried(layer.x is None or images < MOST_IMAGES, strip, layer)
        if data:
            pictures[index] = data
        drawn += len(in_script(data)) * (not given)
        if shown:
            images += shown.size
        views.append(
            {"of": layer, "picture": data, "why_not": why_not, "strip": shown, "no_strip": no_strip}
        )
    return views, pictures


def _tried(room: bool, draw: Callable[..., Any], *given: Any) -> tuple[Any, str]:
    """What is drawn, or why it cannot be."""
    if not room:
        return {}, FULL
    try:
        return draw(*given), ""
    except NoPicture as reason:
        return {}, str(reason)
