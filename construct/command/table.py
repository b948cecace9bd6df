"""The report of a conversion, printed as a table and the lines below it."""

from collections.abc import Iterator
from textwrap import fill
from typing import TextIO

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from construct.command.report import (
    IDLE,
    LayerRow,
    Report,
    checked_layers,
    convolution_text,
    network_dict,
    percent,
)
from construct.errors import counted, printable
from verify.report.numbers import network_sentences
from verify.verdict import from_above

_STYLES = {"REFUTED": "bold red", "UNDECIDED": "yellow"}


NARROWEST = 80
"""Columns of the narrowest table; a narrower terminal breaks its lines."""


def print_table(report: Report, out: TextIO) -> None:
    """Print the table and the lines below it.

    A terminal gets colours and its own width, broken between words; a file or pipe gets unwrapped
    lines in its encoding.
    """
    terminal = out.isatty()
    console = Console(file=out, markup=False, highlight=False, emoji=False)
    if not terminal:
        console.width = 10_000
    width = console.width
    with console.capture() as capture:
        if report.layers:
            # Narrower, rich would leave out names and verdicts; and it cuts what does not fit,
            # unless the terminal may wrap it.
            console.width = max(width, NARROWEST)
            unicode = not console.options.ascii_only
            console.print(_table(report, unicode, narrow=width < 110), soft_wrap=True)
        for line in _lines(report):
            # a word longer than a line, such as a path, stays whole so that it can be copied
            if terminal:
                line = fill(line, width, break_long_words=False, break_on_hyphens=False)
            console.print(Text(line), soft_wrap=True)
    text = "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n") + "\n"
    out.write(text.encode(console.encoding, "backslashreplace").decode(console.encoding))
    out.flush()


def _table(report: Report, unicode: bool, narrow: bool) -> Table:
    table = Table(box=box.ASCII)
    alpha = "alpha"
    if unicode:
        gap = int(not narrow)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False)
        alpha = "α"
    table.add_column("layer", overflow="fold", min_width=7)
    table.add_column("convolution", overflow="fold", min_width=7)
    for name in ("heads", "D_h", alpha, "interior", "border", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("|x| <=", justify="right", min_width=6)
    table.add_column("claim", min_width=6)
    table.add_column("verdict", no_wrap=True)
    for row in report.layers:
        verdict = row.verdict.name
        cells = (
            label(row.path),
            convolution_text(row.layer.geometry),
            str(row.layer.heads),
            str(row.layer.w_val.shape[3]),
            f"{row.alpha:.4g}",
            *_figures(row),
        )
        table.add_row(*map(Text, cells), Text(verdict, style=_STYLES.get(verdict, "green")))
    return table


def _figures(row: LayerRow) -> tuple[str, ...]:
    """The cells for differences on samples, bound, inputs and claim."""
    differences = (f"{row.check.interior:.2g}", f"{row.check.border:.2g}")
    certificate = row.certificate
    if certificate is None:
        return (*differences, f"{row.check.bound:.2g}", "samples", "same sums")
    bound = from_above(row.largest_bound, digits=2)
    inputs = f"{certificate.input_bound:.4g} on {'x'.join(map(str, certificate.grid))}"
    claim = "within"
    if certificate.within is None:
        claim = "same sums"
    return (*differences, bound, inputs, claim)


def _lines(report: Report) -> Iterator[str]:
    """The lines below the table, from the layers that are not good to the files."""
    source = report.conversion.source
    for row in report.layers:
        if not row.verdict.good:
            yield f"{label(row.path)}: {row.verdict.name}: {row.verdict.sentence}"
    yield from _claim_lines(report)
    yield from _run_lines(report)
    yield from remark_lines(report)
    if report.conversion.survey.earlier:
        yield f"already converted: {counted(report.conversion.survey.earlier, 'attention layer')}"
    for note in report.notes:
        yield f"note: {printable(note)}"
    yield f"seed: {report.options.seed}   torch: {torch.__version__}"
    yield f"input: {printable(source.path)}   SHA-256: {source.sha256}"
    yield from _written_lines(report)
    for row in report.layers:
        if report.options.explain and row.certificate is not None:
            yield ""
            for line in str(row.certificate).splitlines():
                yield f"{label(row.path)}: {line}"


def _claim_lines(report: Report) -> Iterator[str]:
    """What the columns of the table mean, and what the certificates assume."""
    certificates = [row.certificate for row in report.layers if row.certificate is not None]
    if certificates:
        first = certificates[0]
        size = "x".join(map(str, first.grid))
        yield "interior, border: largest difference seen, without and with padding"
        yield f"bound: for all |x| <= {first.input_bound:.4g} on inputs up to {size}, if it says {first.input_bound:.4g} on {size}"
    shares = [row.share for row in report.layers if row.share is not None]
    if shares:
        yield f"within: the bound is at most {percent(max(shares))} of the largest output of its layer in the check"
    assumptions = {text.partition(":")[0]: None for c in certificates for text in c.assumptions}
    if assumptions:
        yield f"certificates assume: {'; '.join(assumptions)} (--explain prints all)"


def _run_lines(report: Report) -> Iterator[str]:
    """The layers on samples, and the network as a whole."""
    layers = len(report.layers)
    if layers:
        yield f"on samples: {checked_layers(report)} of {layers} layers CHECKED, equal within rounding"
    if report.network is not None:
        for sentence in network_sentences(network_dict(report.network)):
            yield f"network: {''.join(str(getattr(part, 'text', part)) for part in sentence)}"
    elif layers:
        yield "network: not run; give --input-size C S1 ... Sd or --example-inputs FILE to check on its own activations"


def remark_lines(report: Report) -> Iterator[str]:
    """What else there is to know of single modules, for the table and the page."""
    refused = report.conversion.survey.refused
    if report.network is not None and report.network.calls.left and not refused:
        yield "left unconverted: convolutions that the network calls as functions, outside of any module"
    for row in refused:
        yield f"left unconverted: {label(row.path)}: {printable(row.kind)}: {printable(row.reason)}"
    for row in report.layers:
        if row.exercised is False:
            yield f"{label(row.path)}: {IDLE}, so it does not count as checked; tried on generated inputs"
    for path, remark in report.conversion.remarks:
        yield f"{label(path)}: {printable(remark)}"


def _written_lines(report: Report) -> Iterator[str]:
    """The files that were written."""
    if report.output is None:
        yield f"written: nothing, because {report.hindrance}"
    else:
        yield f"written: {printable(report.output)}"
    if report.document is not None:
        yield f"certificate: {printable(report.document)}"
    if report.page is not None:
        yield f"report: {printable(report.page)}"


def label(path: str) -> str:
    """The label of a path in the network; empty for a bare convolution."""
    return printable(path) or "(the model)"
