"""Writes the converted network and its certificate, both or neither."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from construct.command.report import NetworkRow, network_dict
from construct.errors import BadModelFile, one_line, printable
from construct.files.export import to_onnx, to_pt2
from construct.files.layer_files import to_safetensors
from construct.files.reading import ModelFile, read_inputs
from construct.files.writing import staged
from construct.modules.convolutions import BASES
from construct.network import Survey
from verify.argument.documents import document as certificate_document
from verify.argument.documents import is_document

Content = nn.Module | dict[str, Tensor] | bytes
"""The content of a file: a module or state dict for torch.save, or bytes."""

UNCHECKED_KINDS = {
    "pickle": "a file of torch.save before 1.6 is not rechecked; saved again with torch.save it is",
    "pt2": "a program of torch.export is not rechecked; the same weights as .pt or .safetensors are",
}
"""Remarks on formats of model files that ``python -m verify check`` does not read."""


def content_of(converted: nn.Module, whole: bool, options: Namespace) -> tuple[Content, tuple[str, ...]]:
    """The content of the output file in the chosen format, and notes on it; with ``whole``, a .pt file holds the whole module.

    Raises:
        BadModelFile: the format does not support the network.
    """
    if options.format == "pt":
        return converted if whole else converted.state_dict(), ()
    if options.format == "safetensors":
        return to_safetensors(converted), ()
    inputs = None if options.example_inputs is None else read_inputs(options.example_inputs)
    try:
        program = (to_pt2 if options.format == "pt2" else to_onnx)(converted, options.input_size or (), inputs)
    except ValueError as error:
        what = f"{printable(options.output)}: {one_line(error)}"
        raise BadModelFile(what, "--format safetensors takes any network") from error
    return program.content, tuple(program.notes())


def not_rechecked(survey: Survey, source: ModelFile, form: str) -> list[tuple[str, str]]:
    """(path, remark) for layers that ``python -m verify check`` will refuse, as it reads only tensors and torch's classes."""
    folded = "the certificate speaks of the folded weights; to recheck it takes a file that holds these"
    remarks = [("", folded)] if survey.remarks() else []
    if source.kind in UNCHECKED_KINDS:
        remarks.append(("", UNCHECKED_KINDS[source.kind]))
    if form in ("pt2", "onnx"):
        return [*remarks, ("", f"a program in .{form} is not rechecked; the same weights as .pt or .safetensors are")]
    if not isinstance(source.content, nn.Module):
        return remarks
    subclasses = {path: type(conv).__name__ for path, conv in survey.convertible.items() if type(conv) not in BASES}
    remedy = "to recheck it takes a state dict in place of the module"
    return [*remarks, *((path, f"of class {kind}: {remedy}") for path, kind in subclasses.items())]


def write_outputs(
    content: Content,
    output: Path,
    source: ModelFile,
    document: Path,
    certificates: list[Any] | None,
    network: NetworkRow | None,
) -> tuple[str, ...]:
    """Write network and certificate to temporary files, then rename both, so that no network has another's certificate.

    ``certificates`` are (path, certificate) of the layers; None writes none, and deletes that of an earlier run.  Returns notes.

    Raises:
        BadModelFile: they cannot be written; the message says what was changed, if anything.
    """
    earlier = certificates is None and document != output and document.is_file() and is_document(document)
    place, state = output, "nothing was changed"
    try:
        with staged(output, content, source.allowed) as written:
            if certificates is not None:
                place, figures = document, None if network is None else network_dict(network)
                record = certificate_document(
                    certificates, source.path, written, figures, mhsa_name=output.name, conv_sha256=source.sha256
                )
                with staged(document, record):
                    place = output
                state = f"{printable(document)} is written"
            elif earlier:
                place = document
                document.unlink()
                place, state = output, f"{printable(document)} is deleted"
    except OSError as error:
        what = one_line(error.strerror or error)
        raise BadModelFile(f"{printable(place)}: cannot be written: {what} ({state})") from error
    return (f"{printable(document)} was deleted: the certificate of an earlier run",) if earlier else ()
