"""What a run puts on the disk: the converted network, and beside it the certificate that speaks of it, or none."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from construct.command.table import NetworkRow, network_dict
from construct.errors import BadModelFile, one_line, shown
from construct.files.export import to_onnx, to_pt2
from construct.files.layer_files import to_safetensors
from construct.files.reading import ModelFile
from construct.files.writing import staged
from construct.modules.convolutions import BASES
from construct.network import Survey
from verify.argument.documents import document as certificate_document
from verify.argument.documents import is_document

Content = nn.Module | dict[str, Tensor] | bytes
"""What a file is made of: a module or state dict for torch.save, or bytes as they are."""


def content_of(converted: nn.Module, whole: bool, options: Namespace) -> tuple[Content, tuple[str, ...]]:
    """What is to be written, in the format that was asked for, and what there is to say of it.

    Args:
        converted: the network.
        whole: whether a ``.pt`` file is to hold the network itself, else its state dict.
        options: of the command.

    Raises:
        BadModelFile: the network cannot be had in that format.
    """
    if options.format == "pt":
        return converted if whole else converted.state_dict(), ()
    if options.format == "safetensors":
        return to_safetensors(converted), ()
    try:
        program = (to_pt2 if options.format == "pt2" else to_onnx)(converted, options.input_size)
    except ValueError as error:
        raise BadModelFile(
            f"{shown(str(options.output))}: {one_line(error)} (--format safetensors takes any network)"
        ) from error
    return program.content, tuple(program.notes())


def not_rechecked(found: Survey, source: ModelFile, form: str) -> list[tuple[str, str]]:
    """(path, remark) where ``python -m verify check`` will have to refuse: it reads tensors, and torch's own classes by name."""
    folded = "the certificate speaks of the folded weights; to recheck it takes a file that holds these"
    why = [("", folded)] if found.remarks() else []
    if form in ("pt2", "onnx"):
        return [*why, ("", f"a program in .{form} is not rechecked; the same weights as .pt or .safetensors are")]
    if not isinstance(source.content, nn.Module):
        return why
    own = {path: type(conv).__name__ for path, conv in found.convertible.items() if type(conv) not in BASES}
    told = "to recheck it takes a state dict in place of the module"
    return [*why, *((path, f"of class {kind}: {told}") for path, kind in own.items())]


def put(
    content: Content,
    output: Path,
    source: ModelFile,
    document: Path,
    certificates: list[Any] | None,
    network: NetworkRow | None,
) -> tuple[str, ...]:
    """Both files whole beside their places first, and only then into place: layers never stand beside another's certificate.

    Args:
        content: of the output.
        output: where the network goes.
        source: where it came from.
        document: where its certificate goes.
        certificates: (path, certificate) of the layers; None to write none, and to take that of an earlier run away.
        network: what is known of the network as a whole.

    Returns:
        What there is to say of it.

    Raises:
        BadModelFile: it cannot be written; what stood there is as it was.
    """
    earlier = certificates is None and document != output and document.is_file() and is_document(document)
    place = output
    try:
        with staged(output, content, source.beyond) as written:
            if certificates is not None:
                place, figures = document, None if network is None else network_dict(network)
                record = certificate_document(
                    certificates, source.path, written, figures, mhsa_name=output.name, conv_sha256=source.sha256
                )
                with staged(document, record):
                    place = output
            elif earlier:
                place = document
                document.unlink()
                place = output
    except OSError as error:
        what = one_line(error.strerror or error)
        raise BadModelFile(f"{shown(str(place))}: cannot be written: {what} (nothing was changed)") from error
    return (f"{shown(str(document))}, of an earlier run, was taken away: it spoke of other layers",) if earlier else ()
