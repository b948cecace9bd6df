"""The page itself: every number from one certificate, every name as text, nothing from elsewhere."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from verify.argument.certificate import Certificate
from verify.layers.fields import Geometry
from verify.report.attention import picture
from verify.report.given import MOST_GIVEN
from verify.report.images import Strip, strip
from verify.report.layer import Layer, NoPicture, in_words
from verify.report.numbers import Sentence, claimed, numbers_of, summary
from verify.verdict import exactly

MARK = '<meta name="generator" content="conv-as-attention report">'
"""What every page of ours has near its beginning."""
MOST_PICTURES = 400_000
"""Characters of attention data; the layers after that are listed with their numbers alone."""
MOST_IMAGES = 350_000
"""Characters of drawn activations."""
MOST_ARGUMENTS = 60
"""Layers whose argument is printed step by step; the certificate file has them all."""

FULL = "the layers above fill the page"

MEANINGS = {
    "PROVED": "PROVED: for every finite input within the stated size, the two layers differ by no more than the bound.",
    "CHECKED": "CHECKED: on the samples named, they differ by no more than rounding can explain.",
    "REFUTED": "REFUTED: some output differs by more, and the sentence says where.",
    "UNDECIDED": "UNDECIDED: a step of the argument could not be made, and the sentence says which.",
}


@dataclass(frozen=True)
class Facts:
    """What a page says besides its layers.

    Attributes:
        title: its heading.
        lede: the sentence below.
        network: sentences on the network as a whole.
        input_told: what the drawn input is.
        recheck: the command that rechecks the certificates.
        hindered: why there is none.
        notes: anything else.
    """

    title: str
    lede: str = ""
    network: tuple[Sentence, ...] = ()
    input_told: str = ""
    recheck: str | None = None
    hindered: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def page(layers: Sequence[Layer], facts: Facts) -> bytes:
    """One self-contained HTML document in UTF-8.

    Args:
        layers: in the order in which they are to stand.
        facts: the rest.

    Raises:
        ImportError: jinja2 is not there.
        ValueError: attention that was given is not made of probabilities.
    """
    template = _template()
    views, pictures, limits = _views(layers)
    certificates = [layer.certificate for layer in layers if layer.certificate is not None]
    common = _common(certificates)
    for view, layer in zip(views, layers, strict=True):
        own = layer.certificate.assumptions if layer.certificate else ()
        view["assumptions"] = [assumption for assumption in own if assumption not in common]
    names = Counter(layer.verdict.name for layer in layers if layer.verdict is not None)
    style, script = _part("page.css"), _part("page.js")
    text = template.render(
        title=facts.title,
        lede=facts.lede,
        network=facts.network,
        input_told=facts.input_told,
        recheck=facts.recheck,
        hindered=facts.hindered,
        notes=facts.notes,
        layers=views,
        limits=limits,
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
    return text.encode("utf-8", "backslashreplace")


def is_page(path: Path) -> bool:
    """Whether a file is an earlier page of ours, so that it may be replaced."""
    with path.open("rb") as file:
        return MARK.encode() in file.read(1000)


def require_jinja2() -> Any:
    """The module, or one line that says what to do.

    Raises:
        ImportError: it is not there.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "the report takes jinja2, which is not there (pip install 'conv-as-attention[report]')"
        ) from error
    return jinja2


def in_script(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element, or a line of an old script."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)  # U+2028 and U+2029 escaped too
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def plain(text: Any) -> Any:
    """Text with everything that does not print as itself written out: names of layers and files may be anything."""
    if type(text) is not str or text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _template() -> Any:
    jinja2 = require_jinja2()
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=plain, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_part("page.html"))


def _part(name: str) -> str:
    return (files("verify.report") / name).read_text(encoding="utf-8")


def _safe(text: str) -> Any:
    """Our own text, not escaped again."""
    return require_jinja2().utils.markupsafe.Markup(text)


def _hash(text: str) -> str:
    """What a Content-Security-Policy names an inline element by: no other script of this page is run."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _views(layers: Sequence[Layer]) -> tuple[list[dict[str, Any]], dict[int, Any], list[str]]:
    """What the template needs of every layer, the data of the pictures, and what was left out."""
    views, pictures = [], {}
    drawn, images, left = 0, 0, Counter()
    share = MOST_GIVEN // max(1, sum(layer.attention is not None for layer in layers))
    for index, layer in enumerate(layers):
        why_not, shown, no_strip = "", None, ""
        # Attention that somebody gave is what the page was made for, however large.
        if drawn >= MOST_PICTURES and layer.attention is None:
            why_not = FULL
            left["pictures of attention"] += 1
        else:
            try:
                found = picture(layer, share)
                drawn += len(in_script(found)) if layer.attention is None else 0
                pictures[index] = found
            except NoPicture as reason:
                why_not = str(reason)
        if images < MOST_IMAGES or layer.x is None:
            try:
                shown = strip(layer)
                images += 0 if shown is None else shown.size
            except NoPicture as reason:
                no_strip = str(reason)
        else:
            no_strip = FULL
            left["outputs side by side"] += 1
        if index >= MOST_ARGUMENTS and layer.certificate is not None:
            left["the argument step by step"] += 1
        views.append(_view(index, layer, shown) | {"why_not": why_not, "no_strip": no_strip})
    limits = [f"Left out to keep the page small: {what}, of {count} layers." for what, count in left.items()]
    if len(layers) > 1:
        limits.insert(0, "Open a layer to see its heads.")
    return views, pictures, limits


def _view(index: int, layer: Layer, shown: Strip | None) -> dict[str, Any]:
    certificate, conv, verdict = layer.certificate, layer.conv, layer.verdict
    heads, alpha = "", None
    if layer.mhsa is not None:
        heads = layer.mhsa.heads
        if layer.mhsa.encoding.name != "relative":  # which has no sharpness of its own
            alpha = _alpha(float(layer.mhsa.centres()[0].min()))
    elif layer.attention is not None:
        heads = len(layer.attention)
    numbers = numbers_of(layer)
    proved = certificate is not None and certificate.verdict.name == "PROVED" and verdict is not None and verdict.good
    return {
        "index": index,
        "name": layer.name or "(the model)",
        "words": in_words(Geometry.read(conv)) if conv is not None else "attention as given",
        "heads": heads,
        "alpha": alpha,
        "verdict": verdict.name if verdict else "",
        "sentence": verdict.sentence.rstrip(".") if verdict else "",
        "claim": claimed(certificate) if certificate is not None and proved else "",
        "numbers": numbers,
        "summary": summary(layer, numbers),
        "strip": shown,
        "flat": layer.x is not None and layer.x.dim() == 3,
        "steps": certificate.steps if certificate and index < MOST_ARGUMENTS else (),
        "digests": (certificate.conv_sha256, certificate.mhsa_sha256) if certificate else None,
    }


def _alpha(value: float) -> str | None:
    """The sharpness of the softest head; a head whose score has no maximum has none."""
    if not value > 0:
        return None
    text = exactly(value)
    return text if len(text) <= 7 else f"{value:.4g}"


def _common(certificates: Iterable[Certificate]) -> list[str]:
    """The assumptions that all certificates make, in the order of the first."""
    found = [certificate.assumptions for certificate in certificates]
    return [a for a in found[0] if all(a in other for other in found)] if found else []
