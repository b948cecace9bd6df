"""What the command line says about a conversion: a table for people, one JSON document for programs."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from construct.errors import Refusal
from construct.geometry import ConvGeometry
from construct.plain_text import shown

_STYLES = {"REFUTED": "bold red", "UNDECIDED": "yellow"}


@dataclass(frozen=True)
class LayerRow:
    """One converted layer.

    Attributes:
        path: where it sits.
        geometry: of the convolution.
        heads: N_h.
        head_dim: D_h.
        alpha: the sharpness α.
        check: what the samples showed (a ``LayerCheck`` of ``verify.sampling``).
        certificate: for all inputs (a ``Certificate`` of ``verify.certificate``); None if there is none.
        verdict: the last word on the layer.
        sentence: of the verdict.
        folded: what its weight was worked out by (``"weight_norm of weight"``).
        exercised: whether the network called it; None if the network was not run.
    """

    path: str
    geometry: ConvGeometry
    heads: int
    head_dim: int
    alpha: float
    check: Any
    certificate: Any
    verdict: Any
    sentence: str
    folded: tuple[str, ...]
    exercised: bool | None


@dataclass(frozen=True)
class NetworkRow:
    """The network's own difference.

    Attributes:
        input_size: (C, S1, …, Sd) of the inputs; None for examples.
        inputs: what they are, in words.
        max_abs: the greatest |difference| of two outputs; None if the network returns no tensor.
        relative: the same, over the greatest |output|.
        calls_before: convolution operators that the original executed on one input.
        calls_after: the same of the converted network.
        bounds: on the difference, for the inputs that were run and for all inputs no larger (``NetworkBound`` of
            ``verify.propagation``); empty if none were asked for.
    """

    input_size: tuple[int, ...] | None
    inputs: str
    max_abs: float | None
    relative: float | None
    calls_before: int
    calls_after: int
    bounds: tuple[Any, ...]


@dataclass(frozen=True)
class Report:
    """Everything that is printed.

    Attributes:
        source: the file that was read.
        sha256: of its bytes.
        layers: the converted ones.
        network: None if it was not run.
        refused: what was left unconverted, and why.
        remarks: (path, what else the conversion did there).
        earlier: attention layers that were there already.
        samples: how many inputs.
        seed: of the inputs.
        notes: what was assumed or passed over in reading.
        output: the file that was written, or None.
        document: the certificate that was written, or None.
        exit_code: of the command.
        page: the report that was written, or None.
    """

    source: Path
    sha256: str
    layers: tuple[LayerRow, ...]
    network: NetworkRow | None
    refused: tuple[Refusal, ...]
    remarks: tuple[tuple[str, str], ...]
    earlier: int
    samples: int
    seed: int
    notes: tuple[str, ...]
    output: Path | None
    document: Path | None
    exit_code: int
    page: Path | None = None


def convolution_text(g: ConvGeometry) -> str:
    """A convolution in a few characters: ``Conv2d 16->24 2x2 s2``; what is as usual is left out."""
    words = [f"Conv{'Transpose' if g.transposed else ''}{g.dims}d", f"{g.in_channels}->{g.out_channels}"]
    words.append("x".join(map(str, g.kernel_size)))
    options: tuple[tuple[str, tuple[int, ...] | str, int], ...] = (
        ("s", g.stride, 1),
        ("p", g.padding, 0),
        ("d", g.dilation, 1),
        ("g", (g.groups,), 1),
        ("op", g.output_padding, 0),
    )
    for letter, value, usual in options:
        if isinstance(value, str):
            words.append(value)
        elif any(n != usual for n in value):
            words.append(letter + ("x".join(map(str, value)) if len(set(value)) > 1 else str(value[0])))
    if g.padding_mode != "zeros":
        words.append(g.padding_mode)
    return " ".join(words)


def print_table(report: Report, out: TextIO) -> None:
    """The table and the facts below it, for people.

    A terminal gets colours and its own width; a file or a pipe gets whole lines in characters that its encoding has.
    """
    terminal = out.isatty()
    encoding = getattr(out, "encoding", None) or "ascii"
    unicode = encoding.lower().replace("-", "").startswith("utf")
    console = Console(file=out, width=None if terminal else 10_000, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        if report.layers:
            console.print(_table(report, unicode), soft_wrap=not terminal)
        for line in _lines(report):
            console.print(Text(line), soft_wrap=True)
    text = capture.get()
    if not terminal:
        text = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def print_json(report: Report, out: TextIO) -> None:
    """The same facts as one JSON document; what is not finite is written as a text."""
    out.write(json.dumps(as_dict(report), indent=2, allow_nan=False) + "\n")
    out.flush()


def as_dict(report: Report) -> dict[str, Any]:
    """The report in the types of JSON."""
    network = report.network
    return {
        "input": str(report.source),
        "sha256": report.sha256,
        "layers": [_layer_dict(row) for row in report.layers],
        "network": None if network is None else network_dict(network),
        "already_converted": report.earlier,
        "left_unconverted": [{"path": row.path, "class": row.kind, "reason": row.reason} for row in report.refused],
        "remarks": [{"path": path, "remark": remark} for path, remark in report.remarks],
        "checked": checked_layers(report),
        "samples": report.samples,
        "seed": report.seed,
        "notes": list(report.notes),
        "output": None if report.output is None else str(report.output),
        "certificate": None if report.document is None else str(report.document),
        "report": None if report.page is None else str(report.page),
        "torch": torch.__version__,
        "exit_code": report.exit_code,
    }


def network_dict(network: NetworkRow) -> dict[str, Any]:
    """The network's own figures in the types of JSON."""
    names = ("given_inputs", "all_inputs")[: len(network.bounds)]
    return {
        "input_size": None if network.input_size is None else list(network.input_size),
        "inputs": network.inputs,
        "max_abs": _number(network.max_abs),
        "relative": _number(network.relative),
        "convolution_calls": {"original": network.calls_before, "converted": network.calls_after},
        "convolutions": {"executed": network.calls_before, "converted": network.calls_before - network.calls_after},
        "end_to_end": {
            name: {
                "verdict": bound.verdict.name,
                "sentence": bound.verdict.sentence,
                "bound": _number(bound.bound),
                "observed": _number(bound.observed),
                "assumptions": list(bound.assumptions),
            }
            for name, bound in zip(names, network.bounds, strict=True)
        },
    }


def _layer_dict(row: LayerRow) -> dict[str, Any]:
    check, certificate = row.check, row.certificate
    return {
        "name": row.path,
        "convolution": convolution_text(row.geometry),
        "heads": row.heads,
        "head_dim": row.head_dim,
        "alpha": _number(row.alpha),
        **{name: _number(getattr(check, name)) for name in ("interior", "border", "bound", "ratio")},
        "calls": check.calls,
        "exercised": row.exercised,
        "folded": list(row.folded),
        "checked": {"name": check.verdict.name, "sentence": check.verdict.sentence},
        "certificate": None if certificate is None else _certificate_dict(certificate),
        "verdict": {"name": row.verdict.name, "sentence": row.sentence},
    }


def _certificate_dict(certificate: Any) -> dict[str, Any]:
    return {
        "verdict": certificate.verdict.name,
        "grid": list(certificate.grid),
        "input_bound": certificate.input_bound,
        "within": certificate.within,
        **{
            name: _number(float(getattr(certificate, name).max(initial=0.0)))
            for name in ("bound", "rounding", "leakage", "taps", "observed")
        },
    }


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def _table(report: Report, unicode: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False) if unicode else Table(box=box.ASCII)
    table.add_column("layer", overflow="fold", min_width=8)
    table.add_column("convolution", overflow="fold", min_width=8)
    for name in ("heads", "D_h", "α" if unicode else "alpha", "interior", "border", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in report.layers:
        verdict = row.verdict.name
        figures = (f"{getattr(row.check, name):.2g}" for name in ("interior", "border", "bound"))
        cells = (convolution_text(row.geometry), str(row.heads), str(row.head_dim), f"{row.alpha:.4g}", *figures)
        table.add_row(
            Text(_place(row.path)), *(Text(cell) for cell in cells), Text(verdict, style=_STYLES.get(verdict, "green"))
        )
    return table


def _lines(report: Report) -> list[str]:
    """What stands below the table."""
    lines = []
    for row in report.layers:
        if row.verdict.name == "PROVED":
            lines.append(f"{_place(row.path)}: {proved_text(row)}")
        elif not row.verdict.good:
            lines.append(f"{_place(row.path)}: {row.verdict.name}: {row.sentence}")
        if row.exercised is False:
            lines.append(
                f"{_place(row.path)}: not exercised by the check (the network did not call it), so it does not count as "
                "checked; tried on generated inputs"
            )
    if report.layers:
        lines.append(
            f"on samples: {checked_layers(report)} of {len(report.layers)} layers CHECKED, equal within rounding"
        )
    network = report.network
    if network is not None:
        difference = "it returns no tensor to compare"
        if network.max_abs is not None:
            difference = (
                f"outputs differ by at most {_above(network.max_abs)}, {_above(network.relative)} of the largest output"
            )
        lines.append(f"network: {difference}, on {network.inputs}")
        lines += [f"network: {bound.verdict}" for bound in network.bounds]
        lines.append(
            f"convolution calls: {network.calls_before} in the original, {network.calls_after} in the converted "
            f"({network.calls_before} executed, {network.calls_before - network.calls_after} converted)"
        )
    elif report.layers:
        lines.append("network: not run; give --input-size C S1 ... Sd to check on its own activations")
    if network is not None and network.calls_after and not report.refused:
        lines.append("left unconverted: convolutions that the network calls as functions, outside of any module")
    lines += [f"left unconverted: {_place(row.path)}: {shown(row.kind)}: {shown(row.reason)}" for row in report.refused]
    lines += [f"{_place(path)}: {shown(remark)}" for path, remark in report.remarks]
    if report.earlier:
        lines.append(f"already converted: {report.earlier} attention layer{'s' if report.earlier != 1 else ''}")
    lines += [f"note: {shown(note)}" for note in report.notes]
    lines.append(f"seed: {report.seed}   torch: {torch.__version__}")
    lines.append(f"input: {shown(str(report.source))}   SHA-256: {report.sha256}")
    if report.output is not None:
        lines.append(f"written: {shown(str(report.output))}")
        if report.document is not None:
            lines.append(f"certificate: {shown(str(report.document))}")
    else:
        why = "no convolution could be converted" if report.refused else "there is no convolution left to convert"
        why = "a layer is REFUTED" if report.layers else why
        lines.append(f"written: nothing, because {why}")
    if report.page is not None:
        lines.append(f"report: {shown(str(report.page))}")
    return lines


def checked_layers(report: Report) -> int:
    """How many layers the samples checked; one that the network's run did not come by is none of them."""
    return sum(row.check.verdict.name == "CHECKED" and row.exercised is not False for row in report.layers)


def proved_text(row: LayerRow) -> str:
    """What a certificate claims beside what was seen: ``PROVED (|x| <= 4 at the layer, 8x8): 5e-07 <= 1e-05``."""
    certificate = row.certificate
    size = "x".join(map(str, certificate.grid))
    observed = max(row.check.discrepancy.max_abs, float(certificate.observed.max(initial=0.0)))
    bound = float(certificate.bound.max(initial=0.0))
    claim = "" if certificate.within is None else ", leaking"
    return f"PROVED (|x| <= {certificate.input_bound:g} at the layer, {size}{claim}): {_above(observed)} <= {_above(bound)}"


def _above(bound: float | None) -> str:
    """Two digits of a bound or of a greatest difference, rounded up."""
    if bound is None or not math.isfinite(bound):
        return str(bound)
    text = f"{bound:.2g}"
    return text if float(text) >= bound else f"{bound + 10.0 ** (math.floor(math.log10(bound)) - 1):.2g}"


def _place(path: str) -> str:
    """A path inside the network, for people; the network itself may be the convolution."""
    return shown(path) if path else "(the model)"
