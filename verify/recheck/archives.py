"""A strict zip reader for torch.save archives: every byte belongs to exactly one part, or the file is refused.

Zip readers differ in where they look: at the end record or the zip64 record, at the directory or the records' own headers.  Here
the layout is fixed.  Records start at byte 0, each a header, its bytes and, unless empty, a descriptor.  The directory follows, an
entry per record in the same order; then the zip64 record with its locator, or neither; then the end record.  All must agree.
"""

import struct
import zlib
from typing import BinaryIO, NamedTuple

from verify.recheck.pickles import Rejected

RECORD, DESCRIPTOR, LONG_DESCRIPTOR = struct.Struct("<4s5H3L2H"), struct.Struct("<4s3L"), struct.Struct("<4sL2Q")
ENTRY = struct.Struct("<4s6H3L5H2L")
ZIP64, LOCATOR, END = struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL"), struct.Struct("<4s4H2LH")
MOST_RECORDS, SHORT, LONG = 2**20, 2**16 - 1, 2**32 - 1
NAMES = {b"data.pkl", b"version", b"byteorder", b".format_version", b".storage_alignment", b".data/serialization_id"}


class Record(NamedTuple):
    """The place of a record's bytes in the file."""

    start: int
    size: int
    padding: int  # alignment bytes; negative if there is no field for them
    described: bool  # whether a descriptor follows


class Archive(NamedTuple):
    """The records of a file, by name within its single folder."""

    file: BinaryIO
    records: dict[str, Record]

    def read(self, name: str) -> bytes:
        """The bytes of a record."""
        return _exactly(self.file, self.records[name].start, self.records[name].size)


def archive_in(file: BinaryIO) -> Archive:
    """Read the archive in a file; `Rejected` unless torch.save could have written every byte."""
    first, last, count = _directory(file)
    if count > MOST_RECORDS or last - first > 2**28:
        raise Rejected(f"the zip has {count} records, more than {MOST_RECORDS}, or too long a directory")
    directory, at, place, folder = _exactly(file, first, last - first), 0, 0, b""
    records: dict[str, Record] = {}
    for _ in range(count):
        sign, _, _, flags, method, _, _, crc, packed, size, *lengths = ENTRY.unpack_from(directory, at)
        names, extras, notes, disk, _, attributes, offset = lengths
        at += ENTRY.size
        name, extra = directory[at : at + names], directory[at + names : at + names + extras]
        at += names + extras
        if sign != b"PK\1\2" or notes or disk or attributes & 0xFFFF:
            raise Rejected("an entry of the zip's directory is damaged, or is of a folder, or has notes")
        if method or flags & ~0x808 or packed != size:
            raise Rejected("the zip is compressed or encrypted, which torch.save never does")
        # Numbers that exceed 32 bits are in the zip64 field, in this order.
        large = [number == LONG for number in (size, packed, offset)]
        field = struct.pack("<2H", 1, 8 * sum(large)) if any(large) else b""
        if len(extra) != len(field) + 8 * sum(large) or not extra.startswith(field):
            raise Rejected("an entry of the zip's directory has an extra field that torch.save does not write")
        numbers = list(struct.unpack_from(f"<{sum(large)}Q", extra, len(field)))
        size, packed, offset = [numbers.pop(0) if x else n for x, n in zip(large, (size, packed, offset), strict=True)]
        if packed != size or offset != place:
            raise Rejected("the zip's records do not stand one after another, in the order of its directory")
        record, place = _record(file, place, name, extra, flags, crc, size)
        start, slash, inside = name.partition(b"/")
        folder = folder or start
        if not (start and slash and start == folder and b"\0" not in start):
            raise Rejected("not what torch.save writes of a module or a state dict: its records are not in one folder")
        key = inside.removeprefix(b"data/")
        if not (inside in NAMES or (key != inside and key.isdigit())) or inside.decode() in records:
            raise Rejected(
                f"the zip holds the record {inside[:60]!r}, which torch.save does not write, or holds it twice"
            )
        records[inside.decode()] = record
    if at != len(directory) or place != first:
        raise Rejected("something lies between the zip's records and its directory, or behind that")
    archive = Archive(file, records)
    _check_format(archive)
    return archive


def _exactly(file: BinaryIO, at: int, count: int) -> bytes:
    file.seek(at)
    data = file.read(count) if at >= 0 else b""
    if len(data) != count:
        raise Rejected("a part of the zip reaches beyond its end")
    return data


def _directory(file: BinaryIO) -> tuple[int, int, int]:
    """Start, end and entry count of the directory, on which all end records must agree."""
    size = file.seek(0, 2)
    tail = _exactly(file, max(0, size - 2**17), min(size, 2**17))
    if tail[-END.size :][:4] != b"PK\5\6":
        place = tail.rfind(b"PK\5\6")
        complete = place >= 0 and len(tail) - place > END.size
        raise Rejected(
            "something follows behind the end of the zip" if complete else "truncated: the zip has no end record"
        )
    end = END.unpack_from(tail, len(tail) - END.size)
    last = size - END.size
    count, length, first = end[4:7]
    if size >= END.size + LOCATOR.size + ZIP64.size and tail[-END.size - LOCATOR.size :][:4] == b"PK\6\7":
        last -= LOCATOR.size + ZIP64.size
        record = ZIP64.unpack_from(tail, len(tail) - size + last)
        count, length, first = record[7:]
        locator = LOCATOR.unpack_from(tail, len(tail) - END.size - LOCATOR.size)
        if (
            locator != (b"PK\6\7", 0, last, 1)
            or record[:2] != (b"PK\6\6", 44)
            or record[4:] != (0, 0, count, count, length, first)
        ):
            raise Rejected("the zip64 record, its locator and the place where it lies contradict each other")
    elif LONG in (length, first) or count == SHORT:
        raise Rejected("the zip64 record is missing")
    if end != (b"PK\5\6", 0, 0, min(count, SHORT), min(count, SHORT), min(length, LONG), min(first, LONG), 0):
        raise Rejected("the end record of the zip contradicts its zip64 record, is of several disks, or has notes")
    if first + length != last:
        raise Rejected("the directory of the zip is not where its end record says")
    return first, last, count


def _record(file: BinaryIO, at: int, name: bytes, extra: bytes, flags: int, crc: int, size: int) -> tuple[Record, int]:
    """A record whose header agrees with its entry, and the start of the next one."""
    sign, _, own_flags, method, _, _, *sums, names, extras = RECORD.unpack(_exactly(file, at, RECORD.size))
    rest = _exactly(file, at + RECORD.size, names + extras)
    start, described = at + RECORD.size + names + extras, bool(flags & 8)
    stated = [0, 0, 0] if described else [crc, size, size]
    if (sign, own_flags, method, rest[:names], sums) != (b"PK\3\4", flags, 0, name, stated):
        raise Rejected(f"the header of the record {name[:60]!r} in the zip is not what the directory says of it")
    if size >= LONG:  # torch writes the header before it knows the size
        extra = extra[:12] + bytes(8) + extra[20:]
    padding = rest[names:].removeprefix(extra)
    aligned = b"FB" + struct.pack("<H", max(0, len(padding) - 4)) + b"Z" * (len(padding) - 4)
    if not rest[names:].startswith(extra) or padding not in (b"", aligned):
        raise Rejected(f"the record {name[:60]!r} in the zip has an extra field that is not alignment")
    total, end = 0, start + size
    file.seek(start)
    while start < end:
        block = file.read(min(2**20, end - start))
        if not block:
            raise Rejected(f"the record {name[:60]!r} reaches beyond the end of the zip")
        total, start = zlib.crc32(block, total), start + len(block)
    if total != crc:
        reason = "the file has changed since it was written" if crc else "it was written without checksums"
        raise Rejected(f"CRC mismatch in {name[:60]!r}: {reason}")
    if described:
        form = LONG_DESCRIPTOR if extra else DESCRIPTOR
        if form.unpack(_exactly(file, end, form.size)) != (b"PK\7\10", crc, size, size):
            raise Rejected(
                f"the descriptor of the record {name[:60]!r} in the zip is not what the directory says of it"
            )
    return Record(end - size, size, len(padding) - 4, described), end + (form.size if described else 0)


def _check_format(archive: Archive) -> None:
    """Check the records that say how to read the others."""
    records = archive.records
    if "data.pkl" not in records:
        raise Rejected("not what torch.save writes of a module or a state dict: it has no data.pkl")
    known = {
        "version": [b"%d\n" % n for n in range(1, 11)],
        "byteorder": [None, b"little"],
        ".format_version": [None, b"1"],
    }
    for name, values in known.items():
        value = archive.read(name) if name in records and records[name].size < 20 else None
        if value not in values or (value is None and name in records):
            raise Rejected(f"not what torch.save writes: its {name} is {value!r}")
    if ".data/serialization_id" in records and not archive.read(".data/serialization_id").isdigit():
        raise Rejected("not what torch.save writes: its serialization_id is no number")
    text = archive.read(".storage_alignment")[:20] if ".storage_alignment" in records else b"64"
    align = int(text) if text.isdigit() else 0
    if not 0 < align < 2**16:
        raise Rejected(f"not what torch.save writes: its storage_alignment is {text!r}")
    if ".format_version" not in records:
        return
    # In such files torch may also compute each storage's position.
    order = "".join("s" if name.startswith("data/") else " " for name in records)
    if " s" in order.strip() or any(
        start % align or not 0 <= padding < align or described != bool(size)
        for start, size, padding, described in records.values()
    ):
        raise Rejected("its storages do not lie where torch works out that they are")
