"""Detects a model file's format from its first bytes, and checks its container: a zip archive or a safetensors header.

Sizes are checked before anything is read.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from construct.errors import BadModelFile, one_line
from construct.files.allow_list import ZIP
from construct.files.archives import Corrupted, Malformed, Record, Truncated, content, directory, records
from construct.files.pickle_records import Storage
from construct.files.pickle_walk import LARGEST_PICKLE

LONGEST_HEADER = 100_000_000
"""The most bytes of a safetensors header; the library's own limit."""

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

_LARGEST_NOTE = 64
"""The most bytes of a small record such as ``byteorder``."""
_WRITTEN = frozenset(
    {"data.pkl", "version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id"}
)


def kind_of(file: BinaryIO, path: Path) -> str:
    """The format of an open file by its content: "zip", "pickle" or "safetensors".

    Raises:
        BadModelFile: another format, which is named.
    """
    file.seek(0)
    start = file.read(512)
    file.seek(0)
    if not start:
        raise BadModelFile("the file is empty", "save the model again")
    if start[:4] == ZIP:
        return "zip"
    for magic, what in _FOREIGN.items():
        if start.startswith(magic):
            raise BadModelFile(f"not a model file but {what}")
    if start[257:262] == b"ustar":
        raise BadModelFile("not a model file but a tar archive", "unpack it with tar")
    # A safetensors file begins with the length of its header, which may look like a pickle's first opcode.
    length = len(start) > 2 and not start[2:8].strip(b"\0") and start[8:9] in (b"{", b"")
    if start[:1] == b"\x80" and start[1:2] <= b"\x05" and not length:
        return "pickle"
    if start[8:9] == b"{" or path.name.endswith(".safetensors"):
        return "safetensors"
    # A protobuf message whose first field is a small version number, and whose second one is known to ONNX.
    if start[:1] == b"\x08" and start[1:2] < b"\x20" and start[2:3] in (b"\x12", b"\x1a", b"\x22", b"\x3a", b"\x42"):
        raise BadModelFile("an ONNX model, which is not read", "give the PyTorch model that it was exported from")
    raise BadModelFile(f"not a model file{_as_text(start)}", "give a file that torch.save or safetensors wrote")


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


@dataclass(frozen=True)
class Archive:
    """A zip archive that torch.save wrote, checked to the last byte.

    Attributes:
        file: the open file.
        kind: "pt2" for a program of torch.export, or "torch.save".
        records: its records by their names inside its top folder, in order.
    """

    file: BinaryIO
    kind: str
    records: Mapping[str, Record]

    def read(self, name: str) -> bytes:
        """The content of a record."""
        return content(self.file, self.records[name])

    def fit(self, storages: Mapping[str, Storage]) -> None:
        """Check that the storages of the pickle and the data records agree, one to one and in size.

        Raises:
            Malformed: they do not.
        """
        stored = {name[5:]: record for name, record in self.records.items() if name.startswith("data/")}
        for key, storage in storages.items():
            if key not in stored or stored[key].size != storage.bytes:
                size = stored[key].size if key in stored else "none"
                raise Malformed(f"storage {key} needs {storage.bytes} bytes, and {size} are there")
        if more := [key for key in stored if key not in storages]:
            raise Malformed(f"no tensor is in its record data/{more[0]}")
        if ".format_version" in self.records:
            # With this record torch computes the offsets of storages instead of reading them from the directory.
            align = int(self.read(".storage_alignment")) if ".storage_alignment" in self.records else 64
            laid = all(
                record.start % align == 0 and 0 <= record.aligned < align and record.described == (record.size > 0)
                for record in self.records.values()
            )
            places = [place for place, name in enumerate(self.records) if name.startswith("data/")]
            together = not places or places == list(range(places[0], places[-1] + 1))
            if not (laid and together and list(stored) == list(storages) == [str(n) for n in range(len(stored))]):
                raise Malformed("its storages are not where torch works out that they are")


def check_archive(file: BinaryIO) -> Archive:
    """Check that a zip archive is complete, uncompressed and unambiguous, with correct checksums (torch ignores them).

    Raises:
        BadModelFile: it is not.
    """
    try:
        return _archive(file)
    except Truncated as error:
        raise BadModelFile(f"the file is truncated: {error}", "copy or download it again") from error
    except Corrupted as error:
        raise BadModelFile(one_line(error), "copy or download it again") from error
    except Malformed as error:
        what = f"the archive is malformed: {one_line(error)}"
        raise BadModelFile(what, "save the model again with torch.save") from error


def _archive(file: BinaryIO) -> Archive:
    entries, first = directory(file, file.seek(0, os.SEEK_END))
    if any(entry.name.endswith(b"/constants.pkl") for entry in entries):
        raise BadModelFile("a TorchScript archive", "re-save as the nn.Module itself, or its state dict")
    by_name = records(file, entries, first)
    folder = next(iter(by_name), b"").partition(b"/")[0] + b"/"
    if folder == b"/" or b"\0" in folder or not all(name.startswith(folder) for name in by_name):
        raise BadModelFile("a zip archive, but not a model file", "give a file that torch.save wrote")
    if any(name.endswith((b"/archive_format", b"/serialized_exported_program.json")) for name in by_name):
        return Archive(file, "pt2", {})
    by_path = {name[len(folder) :].decode(errors="backslashreplace"): record for name, record in by_name.items()}
    if "data.pkl" not in by_path:
        raise BadModelFile("a zip archive, but not a model file", "give a file that torch.save wrote")
    for name in by_path:
        key = name.removeprefix("data/")
        if name not in _WRITTEN and not (key != name and key.isascii() and key.isdigit()):
            raise Malformed(f"it holds a record {name[:60]!r}, which torch.save does not write")
    if by_path["data.pkl"].size > LARGEST_PICKLE:
        raise Malformed(f"its data.pkl is larger than {LARGEST_PICKLE} bytes")
    notes = {
        name: content(file, by_path[name]) if by_path[name].size < _LARGEST_NOTE else b""
        for name in by_path.keys() & _WRITTEN - {"data.pkl"}
    }
    if notes.get("byteorder", b"little") != b"little":
        raise Malformed(f"its numbers are not little-endian: its byteorder is {notes['byteorder']!r}")
    if notes.get("version") not in _VERSIONS:
        raise Malformed(f"its version is {notes.get('version')!r}, which torch does not read")
    if not notes.get(".data/serialization_id", b"0").isdigit():
        raise Malformed("its serialization_id is no number")
    align = notes.get(".storage_alignment", b"64")
    if notes.get(".format_version", b"1") != b"1" or not (align.isdigit() and 0 < int(align) < 2**16):
        raise Malformed("its format_version or storage_alignment is not one that torch writes")
    return Archive(file, "torch.save", by_path)


_VERSIONS = [f"{number}\n".encode() for number in range(1, 11)]


def check_safetensors(file: BinaryIO) -> dict[str, str]:
    """Check the header of a safetensors file before the safetensors library reads it; returns its metadata.

    Raises:
        BadModelFile: truncated, or no valid header.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or size - 8 < length <= LONGEST_HEADER:
        what = "the file is truncated, if it is safetensors: the end of its header is missing"
        raise BadModelFile(what, "copy or download it again")
    if length < 2 or length > LONGEST_HEADER or file.read(1) != b"{":
        what = f"its header would have {length} bytes" if length < 2 or length > LONGEST_HEADER else "it has no header"
        raise BadModelFile(f"not safetensors, as its name says: {what}", "give a model file")
    file.seek(8)
    try:
        metadata, spans = _header(file.read(length))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        what = "nested too deep" if isinstance(error, RecursionError) else one_line(error)
        raise BadModelFile(f"its safetensors header is wrong: {what}", "save it again") from error
    spans, available = sorted(spans), size - 8 - length
    if (needed := max((end for _, end in spans), default=0)) > available:
        what = f"the file is truncated: its tensors take {needed} bytes, and {available} are there"
        raise BadModelFile(what, "copy or download it again")
    if [0, *(end for _, end in spans)] != [*(begin for begin, _ in spans), available]:
        what = "its tensors overlap, leave holes, or do not fill the file to its end"
        raise BadModelFile(f"its safetensors header is wrong: {what}", "save it again")
    return metadata


def strict_json(text: str) -> Any:
    """Parse JSON, refusing duplicate keys.

    Raises:
        ValueError: it is not such JSON.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if duplicates := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
            raise ValueError(f"the key {duplicates[0][:100]!r} stands twice, which is ambiguous")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique)


def _header(text: bytes) -> tuple[dict[str, str], list[tuple[int, int]]]:
    header = strict_json(text.decode())
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
        if math.prod(n or 1 for n in shape) >= 2**60 or span[1] - span[0] != math.prod(shape) * _WIDTHS[dtype]:
            raise ValueError(f"{key[:100]!r} has another number of bytes than its shape says")
        spans.append((span[0], span[1]))
    return metadata, spans


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**60
