"""Converts one file: read, convert, check, certify, write; from options that hold and destinations that are free."""

from argparse import Namespace
from pathlib import Path

import torch
from torch import nn

from construct.attention import MHSA
from construct.command.bare_kernels import geometry_flags
from construct.command.checking import check_conversion
from construct.command.html_report import require_template, write_page
from construct.command.load_network import converted_layer, network_of, source_of, surveyed
from construct.command.output import OtherBits, not_rechecked, prepare, write_outputs
from construct.command.report import Report, with_meaning
from construct.command.terminal import isolated, phases
from construct.errors import BadModelFile, printable
from construct.files.writing import unlisted_names_in
from construct.modules.tied_weights import paths_of, share_tied, untied_parameters
from construct.modules.traversal import every_module
from construct.modules.wrappers import unwrapped
from construct.network import remarks_on, substitute


def convert_file(options: Namespace, output: Path, document: Path) -> Report:
    """Read, survey, convert, check, certify, write the output and its certificate, ``document``."""
    with isolated(), phases() as progress:
        require_template(options)
        source = source_of(options)
        model, assumed = network_of(source, options)
        model, wrappers = unwrapped(model)
        if options.format == "onnx" and any(p.dtype == torch.bfloat16 for p in model.parameters()):
            what = f"{printable(options.model)}: is bfloat16, which ONNX's exporter cannot store"
            raise BadModelFile(what, "--format pt2 can")
        survey = surveyed(model, source.path)
        progress.begin("converting", len(survey.convertible))
        replacements: dict[nn.Module, MHSA] = {}
        for path, conv in survey.convertible.items():
            replacements[conv] = converted_layer(conv, options)
            progress.advance(path)
        share_tied(replacements)
        remarks = [*remarks_on(model, wrappers), *survey.remarks(), *untied_parameters(model, replacements)]
        unchecked = [] if options.no_certify else not_rechecked(survey, source, options.format)
        remarks += unchecked
        converted = substitute(model, replacements)
        pairs = {path: (conv, replacements[conv]) for path, conv in survey.convertible.items()}
        layers, network = check_conversion(model, converted, pairs, options, progress)
        if options.within is None:
            layers = with_meaning(layers)
        equal = not any(row.verdict.name == "REFUTED" for row in layers) and (network is None or network.good)
        left = bool(survey.refused) or (network is not None and bool(network.calls.left))
        good = equal and all(row.verdict.good for row in layers) and (options.partial or not left)
        writable = (good or (equal and options.partial)) and (bool(layers) or options.copy)
        certified = bool(layers) and not options.no_certify
        notes: tuple[str, ...] = (*source.notes, *assumed)
        hindrance = ""
        if writable:
            progress.begin(f"writing {output.name}")
            # Bare kernels are written as modules: a state dict would lose their geometry again.
            of_code = options.arch or options.model_file
            whole = bool(geometry_flags(options)) or (isinstance(source.content, nn.Module) and not of_code)
            prepared = prepare(converted, whole, options)
            # A shared module is in the state dict once per name, and a recheck looks for it under each.
            certificates = [
                (name, row.certificate)
                for row in layers
                if row.certificate is not None
                for name in paths_of(model, row.path, pairs[row.path][0])
            ]
            notes += prepared.notes
            try:
                notes += write_outputs(
                    prepared, (model, converted), output, source, document, certificates if certified else None, network
                )
                if isinstance(prepared.content, nn.Module) and (names := unlisted_names_in(output)):
                    notes += (f"the output still names {printable(', '.join(names))}: --allow that to read it back",)
            except OtherBits as error:
                good, writable, hindrance = False, False, str(error)
        if writable and not layers:
            notes += ("no convolution is left to convert: the network is written as it is, without a certificate",)
        if not layers and options.report is not None:
            notes += ("there is no layer to show, so no report was written",)
        report = Report(
            options=options,
            source=source,
            layers=layers,
            network=network,
            refused=survey.refused,
            remarks=tuple(remarks),
            earlier=sum(isinstance(module, MHSA) for _, module in every_module(model)),
            notes=notes,
            hindrance=hindrance,
            output=output if writable else None,
            document=document if writable and certified else None,
            page=options.report if layers else None,
            exit_code=0 if good else 1,
        )
        if report.page is not None:
            progress.begin(f"writing {report.page.name}")
            with torch.no_grad():
                why = [f"{printable(path)}: {remark}" if path else remark for path, remark in unchecked]
                write_page(report, model, why)
    return report
