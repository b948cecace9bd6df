"""The report of a conversion, printed as a table or as one JSON document."""

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

from construct.errors import Refusal, printable
from construct.geometry import ConvGeometry
from verify.argument.certificate import Certificate
from verify.samples.accuracy import Accuracy
from verify.samples.network import Calls
from verify.samples.sampling import LayerCheck
from verify.verdict import Verdict

_STYLES = {"REFUTED": "bold red", "UNDECIDED": "yellow"}


@dataclass(frozen=True)
class LayerRow:
    """One converted layer.

    Attributes:
        path: in the network.
        geometry: of the convolution.
        heads: N_h.
        head_dim: D_h.
        alpha: the sharpness α.
        dtype: of the layer.
        check: on samples.
        certificate: for all inputs, if there is one.
        verdict: of the certificate, else of the check.
        folded: parametrizations of its weight (``"weight_norm of weight"``).
        exercised: whether the network called it; None if the network was not run.
    """

    path: str
    geometry: ConvGeometry
    heads: int
    head_dim: int
    alpha: float
    dtype: torch.dtype
    check: LayerCheck
    certificate: Certificate | None
    verdict: Verdict
    folded: tuple[str, ...]
    exercised: bool | None


@dataclass(frozen=True)
class NetworkRow:
    """The network as a whole, on the inputs that were run.

    Attributes:
        input_size: (C, S1, …, Sd) of the inputs; None for examples.
        inputs: their description.
        calls: comparison of the calls of both networks.
        accuracy: of their outputs; None if they differ in size.
        same_expression: whether every executed convolution is a layer PROVED the same function and all else agrees.
    """

    input_size: tuple[int, ...] | None
    inputs: str
    calls: Calls
    accuracy: Accuracy | None
    same_expression: bool

    @property
    def refuted(self) -> bool:
        """Whether the outputs differ by more than rounding explains."""
        return self.accuracy is not None and self.accuracy.verdict.name == "REFUTED"

    @property
    def good(self) -> bool:
        """Whether the networks make the same calls, and their outputs are not refuted."""
        return self.calls.difference is None and self.accuracy is not None and not self.refuted


@dataclass(frozen=True)
class Report:
    """Everything that is printed.

    Attributes:
        source: the file that was read.
        sha256: of its bytes.
        layers: the converted layers.
        network: None if it was not run.
        refused: unconverted convolutions, with reasons.
        remarks: (path, remark) on the conversion.
        earlier: attention layers that the input already had.
        samples: how many inputs.
        seed: of the inputs.
        notes: what was assumed or ignored in reading.
        output: the file that was written, or None.
        document: the certificate that was written, or None.
        exit_code: of the command.
        page: the report that was written, or None.
        explain: whether every certificate is printed with its steps and assumptions.
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
    explain: bool = False


def convolution_text(g: ConvGeometry) -> str:
    """A convolution in a few characters, without defaults: ``Conv2d 16->24 2x2 s2``."""
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
    """Print the table and the lines below it.

    A terminal gets colours and its own width; a file or pipe gets unwrapped lines in its encoding.
    """
    terminal = out.isatty()
    encoding = getattr(out, "encoding", None) or "ascii"
    unicode = encoding.lower().replace("-", "").startswith("utf")
    console = Console(file=out, width=None if terminal else 10_000, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        if report.layers:
            console.print(_table(report, unicode, narrow=console.width < 110), soft_wrap=not terminal)
        for line in _lines(report):
            console.print(Text(line), soft_wrap=True)
    text = capture.get()
    if not terminal:
        text = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def print_json(report: Report, out: TextIO) -> None:
    """Print the report as one JSON document; non-finite numbers become strings."""
    out.write(json.dumps(as_dict(report), indent=2, allow_nan=False) + "\n")
    out.flush()


def as_dict(report: Report) -> dict[str, Any]:
    """The report as JSON data."""
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
    """The network row as JSON data."""
    calls, numbers = network.calls, network.accuracy
    return {
        "input_size": None if network.input_size is None else list(network.input_size),
        "inputs": network.inputs,
        "calls": {
            "same": calls.difference is None,
            "difference": calls.difference,
            "compared": calls.compared,
            "converted": calls.converted,
            "unseen": list(calls.unseen),
        },
        "convolution_calls": {"original": calls.executed, "converted": calls.left},
        "convolutions": {"executed": calls.executed, "converted": calls.executed - calls.left},
        "max_abs": None if numbers is None else _number(numbers.difference),
        "numbers": None
        if numbers is None
        else {
            "verdict": numbers.verdict.name,
            "sentence": numbers.verdict.sentence,
            **{name: _number(getattr(numbers, name)) for name in ("original", "converted", "limit", "largest")},
            "predictions": {"agree": numbers.agree, "of": numbers.predictions},
            "no_float64": numbers.no_float64,
        },
        "same_expression": network.same_expression,
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
        "verdict": {"name": row.verdict.name, "sentence": row.verdict.sentence},
    }


def _certificate_dict(certificate: Certificate) -> dict[str, Any]:
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


def _table(report: Report, unicode: bool, narrow: bool) -> Table:
    padding = (0, 0 if narrow else 1, 0, 0)
    table = Table(box=box.SIMPLE_HEAD, padding=padding, pad_edge=False) if unicode else Table(box=box.ASCII)
    table.add_column("layer", overflow="fold", min_width=8)
    table.add_column("convolution", overflow="fold", min_width=8)
    for name in ("heads", "D_h", "α" if unicode else "alpha", "interior", "border", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("|x| <=", justify="right", min_width=6)
    table.add_column("claim", min_width=6)
    table.add_column("verdict", no_wrap=True)
    for row in report.layers:
        verdict = row.verdict.name
        cells = (convolution_text(row.geometry), str(row.heads), str(row.head_dim), f"{row.alpha:.4g}", *_figures(row))
        table.add_row(
            Text(_label(row.path)), *(Text(cell) for cell in cells), Text(verdict, style=_STYLES.get(verdict, "green"))
        )
    return table


def _figures(row: LayerRow) -> tuple[str, ...]:
    """The cells for differences on samples, bound, inputs and claim."""
    differences, certificate = (f"{row.check.interior:.2g}", f"{row.check.border:.2g}"), row.certificate
    if certificate is None:
        return (*differences, f"{row.check.bound:.2g}", "samples", "same sums")
    bound = _rounded_up(float(certificate.bound.max(initial=0.0)))
    inputs = f"{certificate.input_bound:.4g} on {'x'.join(map(str, certificate.grid))}"
    return (*differences, bound, inputs, "same sums" if certificate.within is None else "within")


def _lines(report: Report) -> list[str]:
    """The lines below the table."""
    lines = []
    for row in report.layers:
        if not row.verdict.good:
            lines.append(f"{_label(row.path)}: {row.verdict.name}: {row.verdict.sentence}")
        if row.exercised is False:
            lines.append(
                f"{_label(row.path)}: not exercised by the check (the network did not call it), so it does not count as "
                "checked; tried on generated inputs"
            )
    if any(row.certificate is not None for row in report.layers):
        lines.append(
            "interior, border: the largest difference seen where no padding is read, and where some is; bound: of the certificate, "
            "for all finite inputs up to |x| and the size beside it"
        )
    if assumed := _assumed(report):
        lines.append(f"certificates assume: {'; '.join(assumed)} (--explain prints all)")
    if report.layers:
        lines.append(
            f"on samples: {checked_layers(report)} of {len(report.layers)} layers CHECKED, equal within rounding"
        )
    network = report.network
    if network is not None:
        lines += network_lines(network)
    elif report.layers:
        lines.append("network: not run; give --input-size C S1 ... Sd to check on its own activations")
    if network is not None and network.calls.left and not report.refused:
        lines.append("left unconverted: convolutions that the network calls as functions, outside of any module")
    lines += [
        f"left unconverted: {_label(row.path)}: {printable(row.kind)}: {printable(row.reason)}"
        for row in report.refused
    ]
    lines += [f"{_label(path)}: {printable(remark)}" for path, remark in report.remarks]
    if report.earlier:
        lines.append(f"already converted: {report.earlier} attention layer{'s' if report.earlier != 1 else ''}")
    lines += [f"note: {printable(note)}" for note in report.notes]
    lines.append(f"seed: {report.seed}   torch: {torch.__version__}")
    lines.append(f"input: {printable(str(report.source))}   SHA-256: {report.sha256}")
    if report.output is not None:
        lines.append(f"written: {printable(str(report.output))}")
        if report.document is not None:
            lines.append(f"certificate: {printable(str(report.document))}")
    else:
        why = "no convolution could be converted" if report.refused else "there is no convolution left to convert"
        if report.layers:
            refuted = any(row.verdict.name == "REFUTED" for row in report.layers)
            why = "a layer is REFUTED" if refuted else "the converted network is not the original's equal"
        lines.append(f"written: nothing, because {why}")
    if report.page is not None:
        lines.append(f"report: {printable(str(report.page))}")
    for row in report.layers if report.explain else ():
        if row.certificate is not None:
            lines += ["", *(f"{_label(row.path)}: {line}" for line in str(row.certificate).splitlines())]
    return lines


def _assumed(report: Report) -> list[str]:
    """The names of the certificates' assumptions."""
    certificates = [row.certificate for row in report.layers if row.certificate is not None]
    return list(dict.fromkeys(text.partition(":")[0] for c in certificates for text in c.assumptions))


def network_lines(network: NetworkRow) -> list[str]:
    """The lines on the whole network: its calls, its outputs, and what follows by substitution."""
    calls, numbers = network.calls, network.accuracy
    if calls.difference is not None:
        lines = [f"network: calls: NOT the same on {network.inputs}: {calls.difference}"]
    else:
        lines = [
            f"network: calls: the same {calls.compared} in the same order with the same arguments, but for {calls.converted} "
            f"convolutions that became attention, on {network.inputs}"
        ]
    lines[0] += f"; convolution calls: {calls.executed} in the original, {calls.left} in the converted"
    lines[0] += f" ({calls.executed} executed, {calls.executed - calls.left} converted)"
    lines += [f"network: calls: not seen: {what}" for what in calls.unseen]
    lines.append(f"network: numbers: {numbers_text(numbers)}")
    if network.same_expression:
        lines.append(
            "network: every executed convolution became a layer PROVED the same function, and all other calls agree: on these "
            "inputs the converted network evaluates the same expression, its sums in another order"
        )
    return lines


def numbers_text(numbers: Accuracy | None) -> str:
    """The distance of both networks from a float64 run, in one line."""
    if numbers is None:
        return "not compared, as the networks return different sizes"
    if numbers.difference is None:
        return numbers.verdict.sentence
    if numbers.original is None or numbers.converted is None:
        text = f"original and converted differ by at most {_rounded_up(numbers.difference)}"
    else:
        ratio = numbers.converted / numbers.original if numbers.original else math.nan
        times = f" ({ratio:.2g} times)" if math.isfinite(ratio) else ""
        text = f"original {numbers.original:.2g}, converted {numbers.converted:.2g} from float64{times}"
    text += f", outputs up to {numbers.largest:.2g}"
    if numbers.agree is not None:
        text += f"; {numbers.agree} of {numbers.predictions} predictions agree"
    if numbers.other:
        text += f"; {numbers.other} indices or truth values differ"
    if numbers.verdict.name != "CHECKED":
        text += f"; {'REFUTED: ' if numbers.verdict.name == 'REFUTED' else 'not judged: '}{numbers.verdict.sentence}"
    return text


def checked_layers(report: Report) -> int:
    """How many layers are CHECKED on samples; a layer that the network did not call does not count."""
    return sum(row.check.verdict.name == "CHECKED" and row.exercised is not False for row in report.layers)


def _rounded_up(bound: float | None) -> str:
    """A bound or greatest difference to two digits, rounded up."""
    if bound is None or not math.isfinite(bound):
        return str(bound)
    text = f"{bound:.2g}"
    return text if float(text) >= bound else f"{bound + 10.0 ** (math.floor(math.log10(bound)) - 1):.2g}"


def _label(path: str) -> str:
    """A path in the network, for people; empty for a bare convolution."""
    return printable(path) if path else "(the model)"
