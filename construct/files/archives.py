"""Archives of torch.save before they are read: what they unpack to, whether their checksums are
right, where their pickle is.
"""

import io
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

import torch

from construct.errors import BadModelFile, one_line
from construct.files.isolation import refusing

AGAIN = "copy or download it again"
ALONE = "save the state dict alone, with torch.save"
RESAVE = "save the model again with torch.save"
ZIP = b"PK\x03\x04"
"""The first bytes of a zip archive, as torch.save writes it."""
LARGEST_PICKLE = 2**24
"""The most bytes of a model's pickled structure, without its numbers: those of 50,000 tensors with
Adam's, or 2 million losses.

torch reads them in 2 to 10 s, and the worst in a minute and 4 GB.
"""
LARGEST_RATIO = 20
SLACK = 2**22
"""An archive may unpack to so many times its own size, and a little more."""
_LONGEST_HEADER = 2**18
"""Bytes from where a record begins to its content: a header, its name and its padding have at most
2^16 each.
"""
_FOLDER = 0x10
"""The flag of a folder: of such a record torch returns memory that it has not filled."""


@refusing("the file is truncated, or its archive is malformed: ", AGAIN)
def check_archive(file: BinaryIO) -> tuple[str, tuple[str, ...]]:
    """Check what a zip archive unpacks to, and its checksums; returns "torch.save" or "pt2", and
    notes.

    Raises:
        BadModelFile: it is truncated, damaged, a bomb, or no model file.
    """
    size = file.seek(0, io.SEEK_END)
    archive = zipfile.ZipFile(file)
    entries = archive.infolist()
    headers = {entry.filename.partition("/")[2]: entry.header_offset for entry in entries}
    if "constants.pkl" in headers:
        raise BadModelFile(
            "a TorchScript archive", "re-save as the nn.Module itself, or its state dict"
        )
    _check_unpacked(size, [entry.file_size for entry in entries])
    if {"archive_format", "serialized_exported_program.json"} & headers.keys():
        return "pt2", ()
    if any(entry.external_attr & _FOLDER and entry.file_size for entry in entries):
        raise BadModelFile(
            "a malformed archive: a record is said to be a folder, and torch would not read it",
            RESAVE,
        )
    names = [name.lower().replace("\\", "/") for name in archive.namelist()]
    pickles = sum(name.endswith("/data.pkl") for name in names)
    if pickles != 1:
        raise BadModelFile(
            f"a zip archive, but not a model file, which has one pickle, and this {pickles}",
            "give a file that torch.save wrote",
        )
    notes = _check_sums(archive)
    _check_records(file, size, headers)
    return "torch.save", notes


def _check_records(file: BinaryIO, size: int, headers: Mapping[str, int]) -> None:
    """Check that torch's reader sees the records that zipfile sees; ``headers`` has where zipfile
    finds each.
    """
    file.seek(0)
    reader: Any = torch._C.PyTorchFileReader(file)
    records = reader.get_all_records()
    _check_unpacked(size, [reader.get_record_size(name) for name in records])
    # An archive behind another one: zipfile finds its records, and torch those of the first.
    gaps = [reader.get_record_offset(name) - headers.get(name, 0) for name in records]
    if not all(0 < gap < _LONGEST_HEADER for gap in gaps):
        raise BadModelFile(
            "a malformed archive: its records are not where its directory says", RESAVE
        )
    pickled = reader.get_record_size("data.pkl")
    if pickled > LARGEST_PICKLE:
        raise too_large(pickled)


def _check_unpacked(size: int, sizes: Iterable[int]) -> None:
    unpacked = sum(sizes)
    if unpacked > LARGEST_RATIO * size + SLACK:
        raise BadModelFile(
            f"a compressed archive of {size} bytes that unpacks to {unpacked}", RESAVE
        )


def _check_sums(archive: zipfile.ZipFile) -> tuple[str, ...]:
    if not any(entry.CRC for entry in archive.infolist()):
        return ("it was written without checksums, so nobody can tell whether it is whole",)
    damaged = archive.testzip()
    if damaged is not None:
        record = one_line(damaged.partition("/")[2], 60)
        raise BadModelFile(
            f"CRC mismatch in {record}: the file has changed since it was written", AGAIN
        )
    return ()


def too_large(length: int) -> BadModelFile:
    """The error for a pickle beyond LARGEST_PICKLE."""
    what = f"its pickle has {length} bytes or more, and at most {LARGEST_PICKLE} are read"
    return BadModelFile(what, ALONE)
