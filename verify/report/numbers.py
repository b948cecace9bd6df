"""The page's numbers, each from one certificate, check or run of the network, both exact and
rounded up to three digits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verify.argument.certificate import Certificate
from verify.layers.reading import interior, output_size
from verify.oracle import Geometry, Vector, times
from verify.report.layer import ReportLayer
from verify.verdict import exactly, from_above


@dataclass(frozen=True)
class Quantity:
    """One number on the page.

    Attributes:
        key: its name for programs.
        name: its name for people.
        text: three digits, rounded up.
        exact: all digits; empty if there is no such number.
    """

    key: str
    name: str
    text: str
    exact: str


Sentence = tuple[str | Quantity, ...]
"""The parts of a sentence, in order."""


def quantity(key: str, value: float | str, name: str = "") -> Quantity:
    """The number, rounded up to three digits and exact; non-finite numbers from a file are strings."""
    number = float(value)
    return Quantity(key, name, rounded_up(number), repr(number))


def rounded_up(value: float) -> str:
    """The number rounded up to three digits."""
    return "∞" if value == math.inf else from_above(value)


def claimed(certificate: Certificate) -> str:
    """The certificate's claim in one sentence."""
    most = float(certificate.bound.max(initial=0.0))
    largest = exactly(certificate.input_bound)
    return (
        f"For every input of at most {times(certificate.grid)} positions whose numbers are between −{largest} and {largest}, "
        f"the attention’s output differs from the convolution’s by at most {from_above(most)}, in every output channel."
    )


def numbers_of(layer: ReportLayer) -> list[Quantity]:
    """The rows of a layer's table: its certificate's numbers and the differences on samples."""
    if layer.certificate is None:
        return _sampled(layer)
    return _certified(layer.certificate) + _sampled(layer)


def summary(layer: ReportLayer, numbers: list[Quantity]) -> Sentence:
    """The observed difference and the allowed one.

    The allowed difference is the bound only if that is proved.  The bound of a layer that is
    another function includes the difference of the functions; then the claim allows only rounding,
    or the tolerance of ``within``.
    """
    certificate = layer.certificate
    verdict = layer.verdict
    if certificate is None or verdict is None:
        return ()
    known = {number.key: number for number in numbers}
    observed = known["observed"]
    if verdict.good:
        within = float(observed.exact) <= float(known["bound"].exact)  # false of NaN
        return (observed, " ≤ " if within else " > ", known["bound"])
    allowed = quantity("allowed", certificate.within or known["rounding"].exact)
    if allowed.text == "∞":
        return (observed, ", no bound")
    over = float(observed.exact) > float(allowed.exact)
    return (observed, " > " if over else ", allowed ", allowed)


def network_sentences(network: Mapping[str, Any]) -> tuple[Sentence, ...]:
    """Sentences about the network as a whole, from the figures in the certificate file: its calls,
    its outputs, and what follows by substitution.
    """
    calls = network["calls"]
    operators = network["convolution_calls"]
    lines = [f"calls: not compared on {network['inputs']}"]
    if not calls["same"]:
        lines = [f"calls: NOT the same on {network['inputs']}: {calls['difference']}"]
    elif calls["compared"]:
        equal = "all inputs and results are equal"
        if calls["unseen"]:
            equal = "what was compared is equal"
        lines = [
            f"calls: the same {calls['converted']} of converted layers in the same order, on {network['inputs']}",
            f"{equal} bit for bit while each returns its convolution's numbers",
        ]
    executed = operators["original"]
    left = operators["converted"]
    if left is not None:
        lines.append(
            f"convolution calls: {executed} in the original, {left} in the converted "
            f"({executed} executed, {executed - left} converted)"
        )
    lines += [f"calls: not compared: {part}" for part in calls["unseen"]]
    sentences: list[Sentence] = [(line,) for line in lines]
    sentences += _distances(network["numbers"], network["max_abs"])
    if network["same_expression"]:
        sentences += [
            (
                "every executed convolution became a layer PROVED the same function; all else is equal",
            ),
            (
                "so both evaluate the same expression on these inputs (unless rounding decides a branch)",
            ),
        ]
    return tuple(sentences)


def _distances(numbers: Mapping[str, Any] | None, max_abs: float | str | None) -> list[Sentence]:
    """How far the networks' outputs are from a float64 run, or from each other."""
    if numbers is None:
        return [("numbers: not compared, as the networks do not return tensors of the same sizes",)]
    if max_abs is None:
        return [(f"numbers: {numbers['sentence']}",)]
    distance: Sentence = (
        "numbers: original and converted differ by at most ",
        quantity("network-max-abs", max_abs),
    )
    if numbers["original"] is not None:
        distance = (
            "numbers: original ",
            quantity("network-original", numbers["original"]),
            ", converted ",
            quantity("network-converted", numbers["converted"]),
            " from float64",
        )
    outputs = quantity("network-largest", numbers["largest"])
    sentences: list[Sentence] = [(*distance, ", outputs up to ", outputs)]
    predictions = numbers["predictions"]
    if predictions["agree"] is not None:
        sentences.append((f"{predictions['agree']} of {predictions['of']} predictions agree",))
    if numbers["other"]:
        sentences.append((f"{numbers['other']} indices or truth values differ",))
    if numbers["verdict"] != "CHECKED":
        sentences.append((f"{numbers['verdict']}: {numbers['sentence']}",))
    return sentences


def _certified(certificate: Certificate) -> list[Quantity]:
    """The rows from the certificate."""
    parts = (
        ("bound", "bound, for all inputs (greatest of the channels)"),
        ("rounding", "part of it from rounding"),
        ("leakage", "part of it from attention that leaks"),
        ("taps", "part of it from taps that differ"),
        ("observed", "greatest difference on adversarial inputs"),
    )
    rows = [quantity(key, getattr(certificate, key).max(initial=0.0), name) for key, name in parts]
    b = float(certificate.input_bound)
    return [*rows, Quantity("input_bound", "for inputs |x| up to", exactly(b), repr(b))]


def _sampled(layer: ReportLayer) -> list[Quantity]:
    """The differences on samples; a dash if there is no output of that kind."""
    check = layer.check
    if check is None:
        return []
    inner, outer = _kinds(layer.conv, check.grid)
    rows = []
    for key, name, exists in (
        ("interior", "greatest difference on samples, where no padding is read", inner),
        ("border", "the same, where some is", outer),
    ):
        value = getattr(check, key)
        if value == 0 and not exists:
            rows.append(Quantity(key, name, "–", ""))
        else:
            rows.append(Quantity(key, name, rounded_up(value), repr(value)))
    return rows


def _kinds(conv: Any, grid: Vector) -> tuple[bool, bool]:
    """Whether some output on this grid reads no padding, and whether some output does."""
    try:
        g = Geometry.read(conv)
        inside = interior(g, grid, output_size(g, grid))
    except ValueError:
        return True, True
    return bool(inside.any()), not bool(inside.all())
