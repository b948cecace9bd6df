"""A strict reader of the zip archives that torch.save writes: every byte must belong to one record.

Zip readers start at the end and follow offsets, each in its own way, so one file can hold two models for two readers.  Here
the headers that the directory implies are compared with those in the file, from the first byte to the last.
"""

import zlib
from dataclasses import dataclass
from struct import Struct
from typing import BinaryIO

MOST_RECORDS = 2**20
LONGEST_DIRECTORY = 2**28

_LOCAL, _ENTRY = Struct("<4s5H3L2H"), Struct("<4s6H3L5H2L")
_RECORD64, _LOCATOR, _END = Struct("<4sQ2H2L4Q"), Struct("<4sLQL"), Struct("<4s4H2LH")
_DESCRIBED, _UTF8, _MAX16, _MAX32 = 0x8, 0x800, 0xFFFF, 0xFFFFFFFF


class Malformed(ValueError):
    """The file has something that torch does not write; the message is one clause."""


class Truncated(Malformed):
    """The end of the file is missing."""


class Corrupted(Malformed):
    """A record does not match its checksum."""


@dataclass(frozen=True)
class Entry:
    """A record as the central directory describes it.

    Attributes:
        flags: torch sets two: a descriptor follows; the name is UTF-8.
        method: the compression method; 0 for none.
        size: the size of its content; ``packed`` is the stored size.
        at: the offset of its local header.
        large: the zip64 extra field, which both headers have if a number needs more than 32 bits.
    """

    name: bytes
    flags: int
    method: int
    crc: int
    size: int
    packed: int
    at: int
    large: bytes


@dataclass(frozen=True)
class Record:
    """The location of a record's content in the file.

    Attributes:
        aligned: bytes of padding that align it; -1 if it has no padding field.
        described: whether a data descriptor follows.
    """

    start: int
    size: int
    aligned: int
    described: bool


def directory(file: BinaryIO, size: int) -> tuple[list[Entry], int]:
    """The entries of an archive, and the offset of its directory, where the records must end.

    Raises:
        Truncated: the end record is missing.
        Malformed: the end records contradict each other.
    """
    first, last, count = _ends(file, size)
    if count > MOST_RECORDS or last - first > LONGEST_DIRECTORY:
        raise Malformed(f"its directory has {count} entries in {last - first} bytes")
    data, entries = _read(file, first, last - first), []
    at = 0
    while at < len(data):
        if len(data) - at < _ENTRY.size or data[at : at + 4] != b"PK\1\2":
            raise Malformed("its directory is damaged")
        _, _, _, flags, method, _, _, crc, packed, whole, n, extra, notes, disk, _, outer, place = _ENTRY.unpack_from(
            data, at
        )
        at += _ENTRY.size + n + extra + notes
        name, large = data[at - notes - extra - n : at - notes - extra], data[at - notes - extra : at - notes]
        if at > len(data) or notes or disk or outer & _MAX16:
            raise Malformed("its directory is damaged, or has a folder or notes in it")
        entries.append(_with_zip64(Entry(name, flags, method, crc, whole, packed, place, large)))
    if len(entries) != count:
        raise Malformed(f"its directory has {len(entries)} entries, and its end says {count}")
    return entries, first


def records(file: BinaryIO, entries: list[Entry], first: int, sums: bool = True) -> dict[bytes, Record]:
    """The records of an archive, by name; ``entries`` and ``first`` are from :func:`directory`.

    ``sums`` says whether to compare checksums, which reads the whole file.

    Raises:
        Malformed: the records have gaps or overlap, or differ from the directory.
        Corrupted: a checksum differs.
    """
    by_name: dict[bytes, Record] = {}
    at = 0
    for entry in entries:
        label = entry.name.partition(b"/")[2].decode(errors="backslashreplace")[:60]
        if entry.flags & ~(_DESCRIBED | _UTF8):
            raise Malformed("it is encrypted, or of a kind that torch does not write")
        if entry.method or entry.packed != entry.size:
            raise Malformed("it is compressed, which torch.save never does")
        if entry.at != at:
            raise Malformed("its records do not stand one after another, in the order of its directory")
        header = _read(file, at, _LOCAL.size)
        sign, _, flags, method, _, _, crc, packed, size, n, extra = _LOCAL.unpack(header)
        described = bool(entry.flags & _DESCRIBED)
        stated = (0, 0, 0) if described else (entry.crc, entry.size, entry.size)
        rest = _read(file, at + _LOCAL.size, n + extra)
        if (sign, flags, method, rest[:n], crc, packed, size) != (b"PK\3\4", entry.flags, 0, entry.name, *stated):
            raise Malformed(f"its record {label} has two headers, which contradict each other")
        large = entry.large
        if entry.size >= _MAX32:  # torch writes the local header before it knows the packed size
            large = large[:12] + bytes(8) + large[20:]
        filling = rest[n:].removeprefix(large)
        more = len(filling) - 4
        ideal = b"FB" + more.to_bytes(2, "little") + b"Z" * more if more >= 0 else b""
        if not rest[n:].startswith(large) or filling != ideal:
            raise Malformed(f"its record {label} has an extra field that is no alignment")
        start = at + _LOCAL.size + n + extra
        at = start + entry.size
        if sums and _crc(file, start, entry.size) != entry.crc:
            if not entry.crc:
                raise Malformed("it was written without checksums, so nobody can tell whether it is whole")
            raise Corrupted(f"CRC mismatch in {label}: the file has changed since it was written")
        if described:
            width = 8 if entry.large else 4
            descriptor = b"PK\7\10" + entry.crc.to_bytes(4, "little") + 2 * entry.size.to_bytes(width, "little")
            if _read(file, at, len(descriptor)) != descriptor:
                raise Malformed(f"what follows its record {label} is not what its directory says")
            at += len(descriptor)
        if entry.name in by_name:
            raise Malformed(f"it holds two records of one name, {label}")
        by_name[entry.name] = Record(start, entry.size, len(filling) - 4 if filling else -1, described)
    if at != first:
        raise Malformed("something lies between its records and its directory")
    return by_name


def content(file: BinaryIO, record: Record) -> bytes:
    """The bytes of a record."""
    return _read(file, record.start, record.size)


def _ends(file: BinaryIO, size: int) -> tuple[int, int, int]:
    """The start and end of the directory, and its number of entries, on which all end records must agree."""
    if size < _END.size or _read(file, size - _END.size, 4) != b"PK\5\6":
        tail = _read(file, max(0, size - 2**17), min(size, 2**17))
        end = tail.rfind(b"PK\5\6")
        if end < 0 or len(tail) - end < _END.size:
            raise Truncated("the end of the archive is missing")
        raise Malformed("something follows after the end of the archive")
    last = size - _END.size
    end = _END.unpack(_read(file, last, _END.size))
    count, length, first = end[4:7]
    place = last - _LOCATOR.size - _RECORD64.size
    if place >= 0 and _read(file, last - _LOCATOR.size, 4) == b"PK\6\7":
        record, locator = _read(file, place, _RECORD64.size), _read(file, last - _LOCATOR.size, _LOCATOR.size)
        count, length, first = _RECORD64.unpack(record)[7:]
        version_made, version_needed = _RECORD64.unpack(record)[2:4]
        if record != _RECORD64.pack(b"PK\6\6", 44, version_made, version_needed, 0, 0, count, count, length, first):
            raise Malformed("its zip64 record is not one that torch writes")
        if locator != _LOCATOR.pack(b"PK\6\7", 0, place, 1):
            raise Malformed("its zip64 record is not where its locator says")
        last = place
    elif count == _MAX16 or _MAX32 in (length, first):
        raise Malformed("its zip64 record is missing")
    short = min(count, _MAX16)
    if end != (b"PK\5\6", 0, 0, short, short, min(length, _MAX32), min(first, _MAX32), 0):
        raise Malformed("the records at the end of the archive contradict each other")
    if first + length != last:
        raise Malformed("its directory is not where the end of the archive says: two readers may find two")
    return first, last, count


def _with_zip64(entry: Entry) -> Entry:
    """The entry with the numbers from its zip64 field, which holds exactly those that do not fit 32 bits."""
    numbers = {name: getattr(entry, name) for name in ("size", "packed", "at")}
    large = [name for name, number in numbers.items() if number == _MAX32]
    if not large and not entry.large:
        return entry
    length = 8 * len(large)
    if not large or entry.large[:4] != b"\1\0" + length.to_bytes(2, "little") or len(entry.large) != 4 + length:
        raise Malformed("an entry of its directory has an extra field that torch does not write")
    for number, name in enumerate(large):
        numbers[name] = int.from_bytes(entry.large[4 + 8 * number : 12 + 8 * number], "little")
    return Entry(entry.name, entry.flags, entry.method, entry.crc, **numbers, large=entry.large)


def _crc(file: BinaryIO, start: int, size: int) -> int:
    file.seek(start)
    crc = 0
    while size > 0:
        block = file.read(min(size, 2**20))
        if not block:
            break
        crc, size = zlib.crc32(block, crc), size - len(block)
    return crc


def _read(file: BinaryIO, at: int, count: int) -> bytes:
    file.seek(at)
    data = file.read(count)
    if len(data) != count:
        raise Malformed("a part of it lies beyond its end")
    return data
