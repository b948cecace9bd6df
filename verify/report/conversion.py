"""The report page of ``python -m construct.from_conv``, with the rows, verdicts and files of its run."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from verify.report.layer import ReportLayer
from verify.report.numbers import Sentence, quantity
from verify.report.page import Facts, page
from verify.report.writing import LEDE, pictured, why_no_input


def conversion_page(
    layers: Iterable[tuple[str, Any, Any, Any, Any, Any]],
    *,
    model: nn.Module,
    convolutions: Mapping[str, nn.Module],
    x: Any,
    size: tuple[int, ...] | None,
    network: Mapping[str, Any] | None,
    left_out: Sequence[tuple[str, str, str]],
    remarks: Sequence[tuple[str, str]],
    source: Path,
    output: Path | None,
    document: Path | None,
    hindered: Sequence[str] = (),
) -> bytes:
    """The page of one conversion as HTML bytes.

    Args:
        layers: (path, plain convolution, attention layer, check, certificate, verdict), in the order of the table.
        model: the original network.
        convolutions: its convolution modules by path.
        x: an input of the network; None if the network was not run.
        size: (C, S1, …, Sd) if the network takes any tensor of that size.
        network: the figures of the network as a whole.
        left_out: (path, class, reason) of each convolution that was not converted.
        remarks: (path, remark) of the conversion.
        source: the file that was read.
        output: the file with the attention layers, if one was written.
        document: the certificate file, if one was written.
        hindered: the reasons why the checker would refuse these files.

    Raises:
        ImportError: jinja2 is missing.
    """
    inputs, input_caption = pictured(model, convolutions, x, size)
    missing = why_no_input(convolutions, inputs)
    shown = [
        ReportLayer(path, conv, mhsa, check, certificate, verdict, inputs.get(path), no_input=missing.get(path, ""))
        for path, conv, mhsa, check, certificate, verdict in layers
    ]
    recheck = None
    if output is not None and document is not None and not hindered:
        names = [shlex.quote(_plainly(path)) for path in (document, source, output)]
        recheck = "python -m verify check {} --conv {} --mhsa {}".format(*names)
    notes = [f"Left unconverted: {path or '(the model)'}, a {kind}: {reason}" for path, kind, reason in left_out]
    notes += [f"{path}: {remark}" if path else remark for path, remark in remarks]
    return page(
        shown,
        Facts(
            title=f"{source.name} as attention",
            lede=LEDE,
            network=network_sentences(network),
            input_caption=input_caption,
            recheck=recheck,
            hindered=tuple(hindered) if document is not None else (),
            notes=tuple(notes),
        ),
    )


def _plainly(path: Path) -> str:
    """The path as a command line argument that no program takes for an option; within the folder at hand, from there."""
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"./{path}" if str(path).startswith("-") else str(path)


def network_sentences(network: Mapping[str, Any] | None) -> tuple[Sentence, ...]:
    """Sentences on the network as a whole, from the figures of the certificate file."""
    if network is None:
        return ()
    calls, numbers, operators = network["calls"], network["numbers"], network["convolution_calls"]
    if calls["same"]:
        calls_sentence = (
            f"On {network['inputs']}, both networks made the same {calls['compared']} calls in the same order with the same "
            f"arguments, but for {calls['converted']} convolutions that became attention."
        )
    else:
        calls_sentence = f"On {network['inputs']}, the networks did not make the same calls: {calls['difference']}."
    counts = f"{operators['original']} convolutions, of the converted {operators['converted']}"
    unseen = (f"Not seen by this comparison: {what}." for what in calls["unseen"])
    sentences: list[Sentence] = [
        (text,) for text in (calls_sentence, *unseen, f"A run of the original executes {counts}.")
    ]
    if numbers is None:
        sentences.append(("The networks return different sizes, so that their numbers cannot be compared.",))
    elif numbers["original"] is not None:
        sentences.append(
            (
                "A run of the original in float64 shows how far rounding moves each: the original is at most ",
                quantity("network-original", numbers["original"]),
                " from it, the converted network ",
                quantity("network-converted", numbers["converted"]),
                ", with outputs up to ",
                quantity("network-largest", numbers["largest"]),
                ".",
            )
        )
    elif network["max_abs"] is not None:
        sentences.append(
            (
                "The outputs of both networks differ by at most ",
                quantity("network-max-abs", network["max_abs"]),
                ", with outputs up to ",
                quantity("network-largest", numbers["largest"]),
                f"; there is no float64 run to hold them against: {numbers['no_float64']}.",
            )
        )
    if numbers is not None and numbers["verdict"] != "CHECKED":
        sentences.append((f"{numbers['verdict']}: {numbers['sentence']}.",))
    if network["same_expression"]:
        sentences.append(
            (
                "Every executed convolution became a layer PROVED the same function, and all other calls agree: on these inputs "
                "the converted network evaluates the same expression, its sums in another order.",
            )
        )
    return tuple(sentences)
