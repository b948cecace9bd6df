"""The numbers of a page: each from one certificate or one check, rounded up for the eye, and all of it for whoever compares."""

import math
from dataclasses import dataclass
from typing import Any

from verify.argument.certificate import Certificate
from verify.layers.fields import Geometry, Unreadable
from verify.layers.reading import output_size
from verify.oracle import Convolution
from verify.report.layer import Layer, times
from verify.verdict import exactly, from_above


@dataclass(frozen=True)
class Number:
    """One number.

    Attributes:
        key: what it is, for programs.
        name: the same for people.
        text: three digits, never below the number.
        exact: all of it; empty where there is no such number.
    """

    key: str
    name: str
    text: str
    exact: str


Sentence = tuple[str | Number, ...]
"""Its parts, in order."""


def rounded_up(value: float) -> str:
    """Three digits, never below the number."""
    return "∞" if value == math.inf else from_above(value)


def claimed(certificate: Certificate) -> str:
    """The certificate's claim in one sentence."""
    most = float(certificate.bound.max(initial=0.0))
    return (
        f"For every input of at most {times(certificate.grid)} positions whose numbers are finite and no larger than "
        f"{exactly(certificate.input_bound)}, the attention’s output differs from the convolution’s by at most "
        f"{from_above(most)}, in every output channel."
    )


def numbers_of(layer: Layer) -> list[Number]:
    """The table of a layer: its certificate's numbers, and what samples showed."""
    return [*(_certified(layer.certificate) if layer.certificate is not None else ()), *_sampled(layer)]


def summary(layer: Layer, numbers: list[Number]) -> Sentence:
    """What was observed beside what was allowed.

    A bound is what was allowed only where it is proved.  Of a layer that is not the same function, its bound counts the
    difference too; then rounding is what the claim allows, or what the certificate was to stay within.
    """
    certificate, verdict = layer.certificate, layer.verdict
    if certificate is None or verdict is None:
        return ()
    known = {number.key: number for number in numbers}
    observed, bound = known["observed"], known["bound"]
    if verdict.good:
        return (observed, " ≤ " if float(observed.exact) <= float(bound.exact) else " > ", bound)
    if certificate.within is not None:
        wanted = float(certificate.within)
        allowed = Number("allowed", "", rounded_up(wanted), repr(wanted))
    else:
        allowed = Number("allowed", "", known["rounding"].text, known["rounding"].exact)
    if allowed.text == "∞":
        return (observed, ", no bound")
    return (observed, " > " if float(observed.exact) > float(allowed.exact) else ", allowed ", allowed)


def _certified(certificate: Certificate) -> list[Number]:
    """From the certificate and nowhere else."""
    parts = (
        ("bound", "bound, for all inputs (greatest of the channels)"),
        ("rounding", "of it, rounding"),
        ("leakage", "of it, leaked attention"),
        ("taps", "of it, taps that differ"),
        ("observed", "greatest difference on adversarial inputs"),
    )
    rows = []
    for key, name in parts:
        value = float(getattr(certificate, key).max(initial=0.0))
        rows.append(Number(key, name, rounded_up(value), repr(value)))
    b = float(certificate.input_bound)
    return [*rows, Number("input_bound", "for inputs |x| up to", exactly(b), repr(b))]


def _sampled(layer: Layer) -> list[Number]:
    """What samples showed; a dash where no output was of that kind."""
    check = layer.check
    if check is None:
        return []
    there = _kinds(layer.conv, check.grid)
    rows = (
        ("interior", "greatest difference on samples, where no padding is read", there[0]),
        ("border", "the same, where some is", there[1]),
    )
    found = []
    for key, name, any_there in rows:
        value = getattr(check, key)
        missing = value == 0 and not any_there
        found.append(Number(key, name, "–" if missing else rounded_up(value), "" if missing else repr(value)))
    return found


def _kinds(conv: Any, grid: tuple[int, ...]) -> tuple[bool, bool]:
    """Whether on this grid there are outputs that read no padding, and some that read some."""
    try:
        inside = Convolution.read(conv).interior(grid, output_size(Geometry.read(conv), grid))
    except (Unreadable, ValueError):
        return True, True
    return bool(inside.any()), not bool(inside.all())
