"""Converts one file: read, convert, check, certify, write; from options that hold and destinations
that are free.
"""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from construct.attention import MHSA
from construct.command.checking import check_conversion
from construct.command.html_report import require_template, write_page
from construct.command.output import OtherBits, Prepared, not_rechecked, prepare, write_outputs
from construct.command.report import LayerRow, NetworkRow, Pairs, Report, judged, with_meaning
from construct.command.terminal import Phases, phases
from construct.errors import BadModelFile, printable
from construct.files.bare_kernels import geometry_flags
from construct.files.isolation import isolated
from construct.files.load_network import converted_layer, network_of, source_of, surveyed
from construct.files.reading import ModelFile
from construct.files.writing import unlisted_names_in
from construct.modules.tied_weights import paths_of, share_tied, untied_parameters
from construct.modules.traversal import every_module
from construct.modules.wrappers import unwrapped
from construct.network import Survey, remarks_on, substitute


@dataclass(frozen=True)
class Conversion:
    """A network that was read from a file, and its conversion.

    Attributes:
        model: the network, without wrappers.
        survey: its convolutions.
        pairs: path → the convolution in ``model``, and its attention layer in ``converted``.
        notes: what was assumed or ignored in reading.
        remarks: (path, remark) on the conversion.
        unchecked: (path, remark) on why the output will not be rechecked; they are among the
            remarks.
    """

    source: ModelFile
    model: nn.Module
    survey: Survey
    pairs: Pairs
    converted: nn.Module
    notes: tuple[str, ...]
    remarks: tuple[tuple[str, str], ...]
    unchecked: tuple[tuple[str, str], ...]


def convert_file(options: Namespace, output: Path, document: Path) -> Report:
    """Read, survey, convert, check, certify, write the output and its certificate, ``document``."""
    with isolated(), phases() as progress:
        require_template(options)
        conversion = _conversion(options, progress)
        layers, network = check_conversion(
            conversion.model, conversion.converted, conversion.pairs, options, progress
        )
        if options.within is None:
            layers = with_meaning(layers)
        good, writable = judged(layers, network, conversion.survey.refused, options)
        notes = conversion.notes
        hindrance = ""
        if writable:
            progress.begin(f"writing {output.name}")
            prepared = prepare(conversion.converted, _is_whole(conversion.source, options), options)
            notes += prepared.notes
            try:
                notes += _write(conversion, prepared, layers, network, output, document, options)
            except OtherBits as error:
                good = False
                writable = False
                hindrance = str(error)
        certified = writable and bool(layers) and not options.no_certify
        report = Report(
            options=options,
            source=conversion.source,
            layers=layers,
            network=network,
            refused=conversion.survey.refused,
            remarks=conversion.remarks,
            earlier=sum(isinstance(module, MHSA) for _, module in every_module(conversion.model)),
            notes=(*notes, *_notes_without_layers(layers, writable, options)),
            hindrance=hindrance,
            output=output if writable else None,
            document=document if certified else None,
            page=options.report if layers else None,
            exit_code=0 if good else 1,
        )
        if report.page is not None:
            progress.begin(f"writing {report.page.name}")
            with torch.no_grad():
                write_page(report, conversion.model, conversion.unchecked)
    return report


def _conversion(options: Namespace, progress: Phases) -> Conversion:
    """Read the network of the command line, and convert it."""
    source = source_of(options)
    model, assumed = network_of(source, options)
    model, wrappers = unwrapped(model)
    _require_storable(model, options)
    survey = surveyed(model, source.path)
    progress.begin("converting", len(survey.convertible))
    pairs = dict[str, tuple[nn.Module, MHSA]]()
    for path, conv in survey.convertible.items():
        pairs[path] = conv, converted_layer(conv, options)
        progress.advance(path)
    replacements = dict(pairs.values())
    share_tied(replacements)
    unchecked = tuple(not_rechecked(survey, source, options))
    remarks = (
        *remarks_on(model, wrappers),
        *survey.remarks(),
        *untied_parameters(model, replacements),
        *unchecked,
    )
    converted = substitute(model, replacements)
    notes = (*source.notes, *assumed)
    return Conversion(source, model, survey, pairs, converted, notes, remarks, unchecked)


def _require_storable(model: nn.Module, options: Namespace) -> None:
    """Refuse, before the long work, a network that its format cannot store."""
    if options.format == "onnx" and any(p.dtype == torch.bfloat16 for p in model.parameters()):
        what = f"{printable(options.model)}: is bfloat16, which ONNX's exporter cannot store"
        raise BadModelFile(what, "--format pt2 can")


def _is_whole(source: ModelFile, options: Namespace) -> bool:
    """Whether the output is a whole module: bare kernels, too, as a state dict would lose their
    geometry again.
    """
    if geometry_flags(options):
        return True
    own_code = options.arch or options.model_file
    return isinstance(source.content, nn.Module) and not own_code


def _write(
    conversion: Conversion,
    prepared: Prepared,
    layers: tuple[LayerRow, ...],
    network: NetworkRow | None,
    output: Path,
    document: Path,
    options: Namespace,
) -> tuple[str, ...]:
    """Write the network and its certificate; returns notes.

    Raises:
        OtherBits: other numbers would be written than those that were certified.
    """
    model = conversion.model
    certificates = None
    if layers and not options.no_certify:
        # A shared module is in the state dict once per name, and a recheck looks for it under each.
        certificates = [
            (name, row.certificate)
            for row in layers
            if row.certificate is not None
            for name in paths_of(model, row.path, row.conv)
        ]
    networks = (model, conversion.converted)
    source = conversion.source
    notes = write_outputs(prepared, networks, output, source, document, certificates, network)
    if isinstance(prepared.content, nn.Module) and (names := unlisted_names_in(output)):
        notes += (
            f"the output still names {printable(', '.join(names))}: --allow that to read it back",
        )
    return notes


def _notes_without_layers(
    layers: tuple[LayerRow, ...], written: bool, options: Namespace
) -> list[str]:
    """Notes on a network in which nothing was converted."""
    notes = list[str]()
    if not layers and written:
        notes.append(
            "no convolution is left to convert: the network is written as it is, without a certificate"
        )
    if not layers and options.report is not None:
        notes.append("there is no layer to show, so no report was written")
    return notes
