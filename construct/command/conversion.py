"""Converts one file: read, convert, check, certify, write; from options that hold and destinations
that are free.
"""

from argparse import Namespace

import torch
from torch import nn

from construct.attention import MHSA
from construct.command.checking import check_conversion
from construct.command.html_report import write_page
from construct.command.output import not_rechecked, write_outputs
from construct.command.report import Conversion, Report
from construct.command.terminal import Phases, phases
from construct.errors import BadModelFile, printable
from construct.files.command_line.load_network import (
    converted_layer,
    network_of,
    source_of,
    surveyed,
)
from construct.files.isolation import isolated
from construct.modules.wrappers import unwrapped
from construct.network import remarks_on, replaced
from verify.report.page import require_jinja2


def convert_file(options: Namespace) -> Report:
    """Read, survey, convert, check, certify, write the output and its certificate."""
    with isolated(), phases() as progress:
        if options.report is not None:
            require_jinja2()  # before the long work
        conversion = _conversion(options, progress)
        checked = check_conversion(conversion, options, progress)
        report = Report(options, conversion, *checked)
        if report.output is not None:
            progress.begin(f"writing {report.output.name}")
            report = write_outputs(report)
        if report.page is not None:
            progress.begin(f"writing {report.page.name}")
            with torch.no_grad():
                write_page(report)
    return report


def _conversion(options: Namespace, progress: Phases) -> Conversion:
    """Read the network of the command line, and convert it."""
    source = source_of(options)
    model, wrappers = unwrapped(network_of(source, options))
    if options.format == "onnx" and any(p.dtype == torch.bfloat16 for p in model.parameters()):
        what = f"{printable(options.model)}: is bfloat16, which ONNX's exporter cannot store"
        raise BadModelFile(what, "--format pt2 can")  # before the long work
    survey = surveyed(model, source.path)
    progress.begin("converting", len(survey.convertible))
    pairs = dict[str, tuple[nn.Module, MHSA]]()
    for path, conv in survey.convertible.items():
        pairs[path] = conv, converted_layer(conv, options)
        progress.advance(path)
    converted, changes = replaced(model, survey, dict(pairs.values()))
    unchecked = tuple(not_rechecked(survey, source, options))
    remarks = (*wrappers, *remarks_on(model), *changes, *unchecked)
    return Conversion(source, model, survey, pairs, converted, remarks, unchecked)
