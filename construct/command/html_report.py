"""``--report``: writes the HTML page."""

import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from construct.command.report import IDLE, Report, network_dict
from construct.command.runs import inputs_for
from construct.errors import BadModelFile, one_line, printable
from construct.files.writing import write
from construct.modules.parametrizations import plain_convolution
from construct.modules.traversal import every_module
from construct.network import substitute
from verify.report.layer import ReportLayer
from verify.report.numbers import network_sentences
from verify.report.page import Facts, page, require_jinja2
from verify.report.writing import LEDE, pictured, why_no_input


def require_template(options: Namespace) -> None:
    """Check, before the long work, that jinja2 is there for a page.

    Raises:
        BadModelFile: it is not.
    """
    if options.report is not None:
        try:
            require_jinja2()
        except ImportError as error:
            raise BadModelFile(f"--report: {one_line(error)}") from error


def write_page(report: Report, model: nn.Module, not_rechecked: Sequence[str]) -> None:
    """Write the page on a network's conversion atomically; ``not_rechecked`` lists why the output cannot be rechecked.

    Raises:
        BadModelFile: it cannot be written.
    """
    options = report.options
    inputs = inputs_for(model, options)
    copied = substitute(model, {})  # a run may change the network
    modules = dict(every_module(copied))
    convolutions = {row.path: modules[row.path] for row in report.layers}
    x = None if inputs is None else inputs[0][0]
    drawn, input_caption = pictured(copied, convolutions, x, options.input_size)
    missing = why_no_input(convolutions, drawn)
    layers = [
        ReportLayer(
            row.path,
            plain_convolution(row.conv),
            row.layer,
            row.check,
            row.certificate,
            row.verdict,
            x=drawn.get(row.path),
            no_input=missing.get(row.path, ""),
        )
        for row in report.layers
    ]
    remarks = [*((row.path, IDLE) for row in report.layers if row.exercised is False), *report.remarks]
    notes = [f"Left unconverted: {row.path or '(the model)'}, a {row.kind}: {row.reason}" for row in report.refused]
    notes += [f"{path}: {remark}" if path else remark for path, remark in remarks]
    recheck = None
    if report.output is not None and report.document is not None and not not_rechecked:
        files = [shlex.quote(_plainly(path)) for path in (report.document, report.source.path, report.output)]
        recheck = "python -m verify check {} --conv {} --mhsa {}".format(*files)
    facts = Facts(
        title=f"{report.source.path.name} as attention",
        lede=LEDE,
        network=() if report.network is None else network_sentences(network_dict(report.network)),
        input_caption=input_caption,
        recheck=recheck,
        hindered=() if report.document is None else tuple(not_rechecked),
        notes=(*notes, *report.notes),
    )
    try:
        write(page(layers, facts), options.report)
    except OSError as error:
        what = one_line(error.strerror or error)
        raise BadModelFile(f"{printable(options.report)}: cannot be written: {what} (nothing was changed)") from error


def _plainly(path: Path) -> str:
    """The path as an argument that no program mistakes for an option; relative if inside the current folder."""
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"./{path}" if str(path).startswith("-") else str(path)
