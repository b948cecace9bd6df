"""Writes the converted network and its certificate, both or neither."""

import io
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from construct.command.report import Conversion, LayerRow, Report, network_dict
from construct.errors import BadModelFile, naming, one_line, printable
from construct.files.command_line.bare_kernels import geometry_flags
from construct.files.destination import not_written
from construct.files.export import to_onnx, to_pt2
from construct.files.layer_files import attention_in, to_safetensors
from construct.files.reading import ModelFile, read_inputs
from construct.files.writing import archived, staged, unlisted_names_in, write
from construct.modules.folding import plain_convolution
from construct.modules.tied_weights import paths_of
from construct.modules.traversal import joined, substitute
from construct.network import Survey
from construct.weights import NAMES
from verify.argument.certificate import Certificate
from verify.argument.documents import document as certificate_document
from verify.argument.documents import is_document
from verify.layers.fields import digests
from verify.oracle import stated_geometry
from verify.recheck.stored_layers import layers_in
from verify.samples.comparison import same_bits


class Prepared(NamedTuple):
    """What is about to be written.

    Attributes:
        content: of the file.
        tensors: those in it, by name.
        notes: remarks for the user.
    """

    content: bytes
    tensors: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def prepare(conversion: Conversion, options: Namespace) -> Prepared:
    """The output in the chosen format: in a .pt file a whole module, if the input was one, or bare
    kernels, as a state dict would lose their geometry again.

    It is made from a copy of the network, whose ``state_dict`` may be the user's and change
    numbers, as may its pickling.

    Raises:
        BadModelFile: the format does not support the network.
    """
    copied = substitute(conversion.converted, {})
    if options.format == "pt":
        own_code = options.arch or options.model_file
        module = isinstance(conversion.source.content, nn.Module) and not own_code
        whole = module or geometry_flags(options)
        content = archived(copied if whole else copied.state_dict(), conversion.source.allowed)
        # safe: made just now of what this process holds
        written = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
        notes = ()
        if names := unlisted_names_in(content):
            listed = printable(", ".join(names))
            notes = (f"the output still names {listed}: --allow that to read it back",)
        return Prepared(content, dict(tensors_of(written)) if whole else written, notes)
    if options.format == "safetensors":
        from safetensors.torch import load

        content = to_safetensors(copied)
        return Prepared(content, load(content))
    export = {"pt2": to_pt2, "onnx": to_onnx}[options.format]
    inputs = None
    if options.example_inputs is not None:
        inputs = read_inputs(options.example_inputs)
    try:
        program = export(copied, options.input_size, inputs)
    except ValueError as error:
        remedy = "--format safetensors takes any network"
        raise BadModelFile(one_line(error), remedy) from error
    return Prepared(program.content, program.tensors, tuple(program.notes()))


def other_bits(written: Mapping[str, Any], model: nn.Module, converted: nn.Module) -> str:
    """Which tensor would be written with other bits than those of the certified layers, or with
    others than those of the network that was read, or not at all; empty if none.
    """
    expected = {
        name: tensor
        for name, tensor in tensors_of(model)
        if name in written and not is_lazy(tensor)
    }
    for path, layer in attention_in(converted).items():
        # An earlier layer may be parametrized, and then registers other tensors.
        expected |= {joined(path, name): t for name, t in tensors_of(layer) if name in NAMES}
    for name, tensor in expected.items():
        value = written.get(name)
        if not (isinstance(value, Tensor) and same_bits(tensor, value)):
            what = "its state_dict or its pickling changes numbers"
            return f"as saved {printable(name)} has other bits than it was certified with ({what})"
    return ""


def tensors_of(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Every registered tensor, under all of its names."""
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def not_rechecked(survey: Survey, source: ModelFile, options: Namespace) -> list[tuple[str, str]]:
    """(path, remark) on what ``python -m verify check`` will refuse: it reads the model's file
    itself, without running code, and takes plain weights only.
    """
    if options.no_certify:
        return []
    if options.format in ("pt2", "onnx"):
        program = f"a program in .{options.format} is not rechecked"
        return [("", f"{program}; the same weights as .pt or .safetensors are")]
    try:
        certified = {
            path: (stated_geometry(plain), digests(plain, ("weight", "bias")))
            for path, conv in survey.convertible.items()
            for plain in [plain_convolution(conv)]  # to read a parametrized weight may change it
        }
        stored = layers_in(source.path, key=options.key).named(certified, [])
    except ValueError as error:
        return [("", f"not rechecked: {error}")]
    others = [
        path
        for path, facts in certified.items()
        if stored[path].kind == "unknown" or not stored[path].fits(*facts)
    ]
    lacks = "to recheck it takes a state dict of the plain weights, which the model's file lacks"
    return [(one_line(", ".join(others), 120), lacks)] * bool(others)


def write_outputs(report: Report) -> Report:
    """Write network and certificate to temporary files, then rename both, so that no network has
    another's certificate; without one, that of an earlier run is deleted.

    Returns:
        The report with remarks; or with the tensor that would have other bits, and nothing was
        changed.

    Raises:
        BadModelFile: they cannot be written; the message says what was changed, if anything.
    """
    conversion = report.conversion
    output = report.options.output
    with naming(output):
        prepared = prepare(conversion, report.options)
    notes = prepared.notes
    changed = other_bits(prepared.tensors, conversion.model, conversion.converted)
    if changed:
        return replace(report, writing=notes, other_bits=changed)
    name = printable(report.options.document)
    certificate = ""
    try:
        with staged(output, prepared.content) as written:
            certificate = _renew_certificate(report, written)
    except OSError as error:
        changed = f"{name} is {certificate}" if certificate else "nothing was changed"
        raise not_written(output, error, changed) from error
    if certificate == "deleted":
        notes += (f"{name} was deleted: the certificate of an earlier run",)
    return replace(report, writing=notes)


def _renew_certificate(report: Report, written: Path) -> str:
    """Write the certificate of a network, which is in a temporary file, or delete that of an earlier
    run; returns "written" or "deleted", or an empty text if there is none.

    Raises:
        BadModelFile: the file cannot be changed.
    """
    source = report.conversion.source
    output = report.options.output
    document = report.options.document
    try:
        if report.document is not None:
            record = certificate_document(
                _certificates(report.conversion.model, report.layers),
                source.path,
                written,
                report.network and network_dict(report.network),
                mhsa_name=output.name,
                conv_sha256=source.sha256,
            )
            write(record, document)
            return "written"
        if is_document(document):
            document.unlink()
            return "deleted"
    except OSError as error:
        raise not_written(document, error, "nothing was changed") from error
    return ""


def _certificates(model: nn.Module, layers: Sequence[LayerRow]) -> list[tuple[str, Certificate]]:
    """(path, certificate) of the layers, a shared one under each of its paths, where the state dict
    has it and a recheck looks for it.
    """
    return [
        (name, row.certificate)
        for row in layers
        if row.certificate is not None
        for name in paths_of(model, row.path, row.conv)
    ]
