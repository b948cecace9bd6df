"""What kind of file it is, told by its first bytes, and whether its container is whole.

Sizes are judged before anything is read.
"""

import json
import math
import zipfile
from typing import Any, BinaryIO

from construct.errors import BadModelFile
from construct.pickles import BROKEN, ZIP
from construct.plain_text import one_line, shown

LONGEST_HEADER = 100_000_000
"""Bytes of a safetensors header, as its library has it."""

LARGEST_PICKLE = 2**27
"""Bytes of the pickled structure of a model, without its numbers."""

_FOREIGN = {
    b"version https://git-lfs": "a git-lfs pointer, not the file itself (run git lfs pull)",
    b"\x1f\x8b": "gzip-compressed (unpack it with gunzip)",
    b"BZh": "bzip2-compressed (unpack it with bunzip2)",
    b"\xfd7zXZ\0": "xz-compressed (unpack it with unxz)",
    b"\x28\xb5\x2f\xfd": "zstd-compressed (unpack it with unzstd)",
    b"\x89PNG": "a PNG image (give the model's file)",
    b"\xff\xd8\xff": "a JPEG image (give the model's file)",
    b"GIF8": "a GIF image (give the model's file)",
    b"%PDF": "a PDF document (give the model's file)",
    b"\x7fELF": "a compiled program (give the model's file)",
    b"\x89HDF": "an HDF5 file, perhaps of Keras (only PyTorch models are read)",
    b"\x93NUMPY": "a numpy array (give the model's file)",
    b"GGUF": "a GGUF file (only PyTorch models are read)",
}
_WIDTHS = {f"{kind}{bits}": bits // 8 for kind in "IUF" for bits in (16, 32, 64)}
_WIDTHS |= {"BF16": 2, "C64": 8, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}


def kind_of(file: BinaryIO, size: int, name: str) -> str:
    """One of "zip", "pickle" and "safetensors"; the file's name decides nothing.

    Raises:
        BadModelFile: it is something else, which is named.
    """
    file.seek(0)
    start = file.read(512)
    file.seek(0)
    if not start:
        raise BadModelFile(f"{name}: the file is empty (save the model again)")
    if start[:4] == ZIP:
        return "zip"
    for magic, what in _FOREIGN.items():
        if start.startswith(magic):
            raise BadModelFile(f"{name}: not a model file but {what}")
    if start[257:262] == b"ustar":
        raise BadModelFile(f"{name}: not a model file but a tar archive (unpack it with tar)")
    if start[:1] == b"\x80" and start[1:2] <= b"\x05" and not start[2:9] == b"\0\0\0\0\0\0{":
        return "pickle"
    if start[8:9] == b"{" or name.rstrip("'").endswith(".safetensors"):
        return "safetensors"
    # A message of protocol buffers whose first field is a small version number, and whose second one is known to ONNX.
    if start[:1] == b"\x08" and start[1:2] < b"\x20" and start[2:3] in (b"\x12", b"\x1a", b"\x22", b"\x3a", b"\x42"):
        raise BadModelFile(
            f"{name}: an ONNX model, which is not read (give the PyTorch model that it was exported from)"
        )
    raise BadModelFile(f"{name}: not a model file{_as_text(start)} (give a file that torch.save or safetensors wrote)")


def _as_text(start: bytes) -> str:
    try:
        text = start.decode(errors="strict" if len(start) < 512 else "ignore")
    except ValueError:
        return ""
    if not all(c.isprintable() or c.isspace() for c in text):
        return ""
    page = text.lstrip().lower().startswith(("<!doctype", "<html", "<?xml", "<head"))
    what = "an HTML page, perhaps of a failed download" if page else "plain text"
    return f" but {what}, beginning with {one_line(text.strip()[:30])!r}"


def check_archive(file: BinaryIO, size: int, name: str) -> str:
    """Refuse an archive that is torn, packed, or changed on the way (torch does not look at its checksums).

    Returns:
        "pt2" for a program of torch.export, or "torch.save".
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries, members = archive.infolist(), archive.namelist()
            # Torch's reader takes names without regard to case, so which of two it would find is its own affair.
            if len({member.casefold() for member in members}) != len(members):
                raise BadModelFile(f"{name}: the archive holds two records of one name (save the model again)")
            # Zip readers begin at the end: what lies before or behind may be another archive to another reader.
            file.seek(max(0, size - 22))
            ends = file.read(4) == b"PK\x05\x06" and not archive.comment
            if not ends or min((entry.header_offset for entry in entries), default=0) > 0:
                raise BadModelFile(f"{name}: something lies before or behind the archive (save the model again)")
            if any(member.endswith("/constants.pkl") for member in members):
                raise BadModelFile(
                    f"{name}: a TorchScript archive (re-save as the nn.Module itself, or its state dict)"
                )
            if any(entry.flag_bits & 1 for entry in entries):
                raise BadModelFile(f"{name}: the archive is encrypted (save the model again with torch.save)")
            if any(entry.compress_type or entry.compress_size != entry.file_size for entry in entries):
                raise BadModelFile(
                    f"{name}: the archive is compressed, which torch.save never does (save the model again with it)"
                )
            if sum(entry.file_size for entry in entries) > size:  # records on top of each other
                raise BadModelFile(f"{name}: the archive claims more than the file holds (save the model again)")
            if len({member.split("/")[0] for member in members}) != 1:
                raise BadModelFile(f"{name}: a zip archive, but not a model file (give a file that torch.save wrote)")
            damaged = archive.testzip()
    except BROKEN as error:
        if isinstance(error, BadModelFile):
            raise
        raise BadModelFile(f"{name}: the file is truncated or damaged (copy or download it again)") from error
    finally:
        file.seek(0)
    if damaged is not None:
        raise BadModelFile(
            f"{name}: CRC mismatch in {shown(damaged.partition('/')[2])}: the file has changed since it was written "
            "(copy or download it again)"
        )
    if any(member.endswith(("/archive_format", "/serialized_exported_program.json")) for member in members):
        return "pt2"
    pickles = [member for member in members if member.endswith("/data.pkl")]
    if len(pickles) != 1 or pickles[0].count("/") != 1:
        raise BadModelFile(f"{name}: a zip archive, but not a model file (give a file that torch.save wrote)")
    if any(entry.file_size > LARGEST_PICKLE for entry in entries if entry.filename == pickles[0]):
        raise BadModelFile(f"{name}: its data.pkl is larger than {LARGEST_PICKLE} bytes (save its state dict)")
    return "torch.save"


def check_safetensors(file: BinaryIO, size: int, name: str) -> dict[str, str]:
    """Check the header of a safetensors file in full, before the library that reads its numbers sees it.

    Returns:
        Its metadata.
    """
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8 or length > LONGEST_HEADER or length < 2:
        raise BadModelFile(
            f"{name}: the file is truncated, or no safetensors: it says that its header has {length} bytes "
            "(copy or download it again)"
        )
    try:
        metadata, spans = _header(file.read(length))
        ends, there = sorted(spans), size - 8 - length
        if max((end for _, end in ends), default=0) > there:
            raise ValueError(f"its tensors take {ends[-1][1]} bytes, and {there} are there: the file is truncated")
        if [0, *(end for _, end in ends)] != [*(begin for begin, _ in ends), there]:
            raise ValueError("its tensors overlap, leave holes, or do not fill the file to its end")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        what = "nested too deep" if isinstance(error, RecursionError) else one_line(error)
        raise BadModelFile(f"{name}: its safetensors header is wrong: {what} (save it again)") from error
    file.seek(0)
    return metadata


def _header(text: bytes) -> tuple[dict[str, str], list[tuple[int, int]]]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:100]!r} stands twice, which is ambiguous")
            seen.add(key)
        return dict(pairs)

    header = json.loads(text.decode(), object_pairs_hook=unique)
    if not isinstance(header, dict):
        raise ValueError("it is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata are no texts")
    spans = []
    for key, entry in header.items():
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{key[:100]!r} is not described by dtype, shape and data_offsets")
        dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
        counts = isinstance(shape, list) and isinstance(span, list) and all(_is_count(n) for n in (*shape, *span))
        if not counts or len(span) != 2 or len(shape) > 32:
            raise ValueError(f"the shape or the data_offsets of {key[:100]!r} are no counts")
        if dtype not in _WIDTHS:
            raise ValueError(f"{key[:100]!r} has the unknown dtype {dtype!r:.40}")
        if span[1] - span[0] != math.prod(shape) * _WIDTHS[dtype]:
            raise ValueError(f"{key[:100]!r} has another number of bytes than its shape says")
        spans.append((span[0], span[1]))
    return metadata, spans


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**60
