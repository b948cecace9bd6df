"""``--report``: checks the destination of the HTML page, and writes it."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from construct.command.report import Report, network_dict
from construct.command.runs import inputs_for
from construct.errors import BadModelFile, one_line, printable
from construct.files.writing import check_destination, write
from construct.modules.parametrizations import plain_convolution
from verify.report.conversion import conversion_page
from verify.report.page import is_page, require_jinja2


def check_page(options: Namespace, outputs: Sequence[Path]) -> None:
    """Check, before the long work, that the page can be written and replaces no file of the user's.

    Raises:
        BadModelFile: it cannot, or it would.
    """
    path = options.report
    if path is None:
        return
    try:
        require_jinja2()
    except ImportError as error:
        raise BadModelFile(f"--report: {one_line(error)}") from error
    architecture = options.model_file.rpartition(":")[0] if options.model_file else None
    try:
        inputs = [Path(other) for other in (options.model, options.example_inputs, architecture) if other is not None]
        what = ""
        if path.exists() and any(other.exists() and path.samefile(other) for other in inputs):
            what = "is an input itself"
        elif any(path.resolve() == other.resolve() for other in outputs):
            what = "is where other output goes"
    except (OSError, ValueError, RuntimeError) as error:
        what = f"cannot be written: {one_line(error)}"
    if what:
        raise BadModelFile(f"{printable(path)}: {what}", "give another name with --report")
    check_destination(path, options.model, options.force, is_page, flag="--report")


def write_page(report: Report, model: nn.Module, not_rechecked: Sequence[str]) -> None:
    """Write the page of a conversion of a network, atomically; ``not_rechecked`` says why the output cannot be, if so.

    Raises:
        BadModelFile: it cannot be written.
    """
    options = report.options
    inputs = inputs_for(model, options)
    layers = [
        (row.path, plain_convolution(row.conv), row.layer, row.check, row.certificate, row.verdict)
        for row in report.layers
    ]
    idle = [
        (row.path, "not exercised by the check: the network did not call it")
        for row in report.layers
        if row.exercised is False
    ]
    content = conversion_page(
        layers,
        model=model,
        convolutions={row.path: row.conv for row in report.layers},
        x=None if inputs is None else inputs[0][0],
        size=options.input_size,
        network=None if report.network is None else network_dict(report.network),
        left_out=[(row.path, row.kind, row.reason) for row in report.refused],
        remarks=[*idle, *report.remarks, *(("", note) for note in report.notes)],
        source=report.source.path,
        output=report.output,
        document=report.document,
        hindered=not_rechecked,
    )
    try:
        write(content, options.report)
    except OSError as error:
        what = one_line(error.strerror or error)
        raise BadModelFile(f"{printable(options.report)}: cannot be written: {what} (nothing was changed)") from error
