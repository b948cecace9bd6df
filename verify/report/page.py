"""Renders the HTML page with jinja2: self-contained, with every name escaped as text."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch

from verify.argument.certificate import Certificate
from verify.oracle import Geometry
from verify.recheck.strict_input import Record
from verify.report.attention import picture
from verify.report.given_attention import MOST_GIVEN
from verify.report.images import Strip, strip
from verify.report.layer import NoPicture, ReportLayer, in_words
from verify.report.numbers import Sentence, claimed, numbers_of, summary
from verify.report.seal import sealed
from verify.verdict import Verdict, escaped, exactly

MOST_PICTURES = 600_000
"""The most characters of attention data; layers beyond that show only their numbers."""
MOST_IMAGES = 350_000
"""The most characters of drawn activations."""
MOST_ARGUMENTS = 60
"""The most layers whose argument is printed step by step; the certificate file has all."""

SCRIPTS = ("softmax.js", "drawing.js", "page.js")
"""The parts of the page's script, in order."""
FULL = "the layers above fill the page"

MEANINGS = {
    "PROVED": "PROVED: for all inputs of the stated sizes and magnitudes, "
    "the two layers differ by no more than the bound, if the assumptions hold.",
    "CHECKED": "CHECKED: on the samples named, they differ by no more than rounding can explain.",
    "REFUTED": "REFUTED: some output differs by more, and the sentence says where.",
    "UNDECIDED": "UNDECIDED: a step of the argument could not be made, or the bound says little; the sentence says which.",
}


@dataclass(frozen=True)
class Facts:
    """The content of a page apart from its layers.

    ``lede`` is the paragraph below the heading, ``network`` the sentences about the network as a
    whole, ``input_caption`` a description of the drawn input, ``recheck`` the command that rechecks
    the certificates, and ``hindered`` why there is none.
    """

    title: str
    lede: str = ""
    network: tuple[Sentence, ...] = ()
    input_caption: str = ""
    recheck: str | None = None
    hindered: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def page(layers: Sequence[ReportLayer], facts: Facts) -> bytes:
    """One self-contained HTML document in UTF-8.

    Raises:
        ImportError: jinja2 is missing.
        ValueError: the given attention does not consist of probabilities.
    """
    template = _template()
    views, pictures, limits = _views(layers)
    certificates = [layer.certificate for layer in layers if layer.certificate is not None]
    common = _common(certificates)
    for view, layer in zip(views, layers, strict=True):
        view["assumptions"] = []
        if layer.certificate:
            view["assumptions"] = [
                one for one in layer.certificate.assumptions if one not in common
            ]
    names = Counter(layer.verdict.name for layer in layers if layer.verdict is not None)
    style = _part("page.css")
    script = "\n".join(map(_part, SCRIPTS))
    text = template.render(
        **vars(facts),
        layers=views,
        limits=limits,
        drawn=bool(pictures),
        tally=[(name, names[name]) for name in MEANINGS if name in names],
        judged=sum(names.values()),
        meanings=[MEANINGS[name] for name in MEANINGS if name in names],
        certified=bool(certificates),
        common=common,
        footer=f"Made by conv-as-attention with torch {torch.__version__}. This page is one file and loads nothing.",
        style=_safe(style),
        script=_safe(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=_safe(in_script(pictures)),
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
    # U+2028 and U+2029 escaped too
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def plain(text: Any) -> Any:
    """Text with unprintable characters escaped; anything else unchanged."""
    return escaped(text) if type(text) is str else text


def _template() -> Any:
    jinja2 = require_jinja2()
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.from_string(_part("page.html"))


def _part(name: str) -> str:
    return (files("verify.report") / "web" / name).read_text(encoding="utf-8")


def _safe(text: str) -> Any:
    """Mark trusted text, so that jinja2 does not escape it."""
    return require_jinja2().utils.markupsafe.Markup(text)


def _hash(text: str) -> str:
    """The digest by which the Content-Security-Policy allows an inline element."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _views(layers: Sequence[ReportLayer]) -> tuple[list[Record], dict[int, Any], list[str]]:
    """The template's data for each layer, the data of the pictures, and remarks on omissions."""
    views: list[Record] = []
    pictures: dict[int, Any] = {}
    omitted = Counter[str]()
    drawn = 0
    images = 0
    share = MOST_GIVEN // max(1, sum(layer.attention is not None for layer in layers))
    for index, layer in enumerate(layers):
        data, why_not = _picture_of(layer, share, drawn < MOST_PICTURES)
        shown, no_strip = _strip_of(layer, data, images < MOST_IMAGES)
        if data:
            pictures[index] = data
        if layer.attention is None:
            drawn += len(in_script(data))
        if shown:
            images += shown.size
        omitted["pictures of attention"] += why_not == FULL
        omitted["outputs side by side"] += no_strip == FULL
        argued = layer.certificate is not None and index >= MOST_ARGUMENTS
        omitted["the argument step by step"] += argued
        pictured = {key: data.get(key, "") for key in ("live_why", "crop", "caption")}
        pictured |= {
            "live": data.get("live") is not None,
            "leaks": "factors" in data,
            "why_not": why_not,
            "no_strip": no_strip,
        }
        views.append(_view(index, layer, shown or None) | pictured)
    limits = [
        f"Left out to keep the page small: {what}, of {count} layers."
        for what, count in omitted.items()
        if count
    ]
    return views, pictures, limits


def _picture_of(layer: ReportLayer, share: int, room: bool) -> tuple[Record, str]:
    """The data of a layer's picture, or why there is none."""
    # Given attention is the page's purpose, so it is drawn at any size.
    if layer.attention is None and not room:
        return {}, FULL
    return _tried(picture, layer, share)


def _strip_of(layer: ReportLayer, data: Record, room: bool) -> tuple[Any, str]:
    """A layer's images, or why there are none; "" where the page itself draws both outputs."""
    if data.get("live") is not None and not data["crop"]:
        return None, ""
    if layer.x is not None and not room:
        return None, FULL
    return _tried(strip, layer)


def _tried(draw: Callable[..., Any], *given: Any) -> tuple[Any, str]:
    """What is drawn, or why it cannot be."""
    try:
        return draw(*given), ""
    except NoPicture as reason:
        return {}, str(reason)


def _view(index: int, layer: ReportLayer, shown: Strip | None) -> Record:
    conv = layer.conv
    numbers = numbers_of(layer)
    view = {
        "index": index,
        "name": layer.name or "(the model)",
        "words": "attention as given",
        "numbers": numbers,
        "summary": summary(layer, numbers),
        "strip": shown,
        "flat": layer.x is not None and layer.x.dim() == 3,
        "heads": "",
        "alpha": None,
        "verdict": "",
        "sentence": "",
        "claim": "",
        "steps": (),
        "digests": [],
    }
    if conv is not None:
        view["words"] = in_words(Geometry.read(conv))
    if layer.mhsa is not None:
        view["heads"] = layer.mhsa.heads
        if layer.mhsa.encoding.name != "relative":  # that encoding has no sharpness
            view["alpha"] = _alpha(float(layer.mhsa.centres()[0].min()))
    elif layer.attention is not None:
        view["heads"] = len(layer.attention)
    if layer.verdict is not None:
        view |= {"verdict": layer.verdict.name, "sentence": layer.verdict.sentence.rstrip(".")}
    if layer.certificate is not None:
        view |= _of_certificate(layer.certificate, layer.verdict, index)
    return view


def _of_certificate(certificate: Certificate, verdict: Verdict | None, index: int) -> Record:
    """What a layer's certificate adds to its data."""
    own: Record = {"digests": [*certificate.conv_sha256.items(), *certificate.mhsa_sha256.items()]}
    if index < MOST_ARGUMENTS:
        own["steps"] = certificate.steps
    if certificate.verdict.name == "PROVED" and verdict is not None and verdict.good:
        own["claim"] = claimed(certificate)
    return own


def _alpha(value: float) -> str | None:
    """The sharpness of the softest head as text; None for a score without a maximum."""
    if not value > 0:
        return None
    text = exactly(value)
    if len(text) > 7:
        return f"{value:.4g}"
    return text


def _common(certificates: Iterable[Certificate]) -> list[str]:
    """The assumptions that all certificates share, in the order of the first."""
    assumptions = [certificate.assumptions for certificate in certificates] or [()]
    return [a for a in assumptions[0] if all(a in other for other in assumptions)]
