"""``--report``: writes the HTML page."""

import shlex
from pathlib import Path

from construct.command.report import Report, network_dict
from construct.command.table import label, remark_lines
from construct.files.command_line.load_network import inputs_for
from construct.files.destination import not_written
from construct.files.writing import write
from construct.modules.folding import plain_convolution
from construct.modules.traversal import every_module, substitute
from verify.report.layer import ReportLayer
from verify.report.numbers import network_sentences
from verify.report.page import Facts, page
from verify.report.writing import pictured, why_no_input
from verify.samples.sampling import evaluating


def write_page(report: Report) -> None:
    """Write the page on a network's conversion atomically.

    Raises:
        BadModelFile: it cannot be written.
    """
    options = report.options
    conversion = report.conversion
    inputs = inputs_for(conversion.model, options)
    copied = substitute(conversion.model, {})  # a run may change the network
    modules = dict(every_module(copied))
    convolutions = {row.path: modules[row.path] for row in report.layers}
    with evaluating(copied):  # in training, to read a parametrized weight may change it
        drawn, input_caption, first = pictured(
            copied, convolutions, inputs and inputs[0][0], options.input_size
        )
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
    network = hindered = ()
    if report.network is not None:
        network = network_sentences(network_dict(report.network))
    if report.document:
        hindered = tuple(f"{label(path)}: {why}" for path, why in conversion.unchecked)
    facts = Facts(
        title=f"{conversion.source.path.name} as attention",
        network=network,
        input_caption=input_caption,
        recheck=None if conversion.unchecked else _recheck(report),
        typed=options.typed,
        hindered=hindered,
        notes=(*remark_lines(report), *report.notes),
        run=(copied, conversion.converted, first),
    )
    try:
        write(page(layers, facts), options.report)
    except OSError as error:
        raise not_written(options.report, error, "nothing was changed") from error


def _recheck(report: Report) -> str | None:
    """The command that rechecks the certificate; None without one."""
    if report.document is None:
        return None
    files = (report.document, report.conversion.source.path, report.options.output)
    document, conv, mhsa = map(_as_argument, files)
    command = f"{report.options.verify} check {document} --conv {conv} --mhsa {mhsa}"
    if report.options.key is not None:
        command += f" {shlex.quote(f'--key={report.options.key}')}"
    return command


def _as_argument(path: Path) -> str:
    """The path as an argument that no program mistakes for an option; relative if inside the
    current folder.
    """
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    text = str(path)
    if text.startswith("-"):
        text = f"./{text}"
    return shlex.quote(text)
