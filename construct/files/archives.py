"""Zip archives as torch writes them, read by one rule: every byte of the file belongs to one record, or the file is refused.

Zip readers begin at the end and follow offsets, each in its own way, so one file can hold two models for two readers.  Here the
headers that the directory implies are compared with those that are there, from byte 0 to the last, with nothing between.
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


class Odd(ValueError):
    """The file holds what torch does not write; one clause says what."""


class Truncated(Odd):
    """The end of the file is missing."""


class Changed(Odd):
    """The content of a record is not what it was."""


@dataclass(frozen=True)
class Entry:
    """A record as the directory describes it.

    Attributes:
        name: its whole name.
        flags: of which torch sets two: a descriptor follows; the name is UTF-8.
        method: 0 if it is stored as it is.
        crc: its checksum.
        size: of its content, and ``packed`` as it is stored.
        at: where its header begins.
        large: the zip64 field, which both of its headers have where a number needs more than 32 bits.
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
    """The bytes of a record: where they begin, how many they are, and how they were laid out.

    Attributes:
        start: of its content.
        size: of its content.
        aligned: bytes put in to align it, -1 if there is no place for them.
        described: whether a descriptor follows.
    """

    start: int
    size: int
    aligned: int
    described: bool


def directory(file: BinaryIO, size: int) -> tuple[list[Entry], int]:
    """The entries of an archive, and where the directory begins, which is where the records have to end.

    Raises:
        Truncated: there is no end record.
        Odd: the records at the end contradict each other.
    """
    first, last, count = _ends(file, size)
    if count > MOST_RECORDS or last - first > LONGEST_DIRECTORY:
        raise Odd(f"its directory has {count} entries in {last - first} bytes")
    data, entries = _read(file, first, last - first), []
    at = 0
    while at < len(data):
        if len(data) - at < _ENTRY.size or data[at : at + 4] != b"PK\1\2":
            raise Odd("its directory is damaged")
        _, _, _, flags, method, _, _, crc, packed, whole, n, extra, notes, disk, _, outer, place = _ENTRY.unpack_from(
            data, at
        )
        at += _ENTRY.size + n + extra + notes
        name, large = data[at - notes - extra - n : at - notes - extra], data[at - notes - extra : at - notes]
        if at > len(data) or notes or disk or outer & _MAX16:
            raise Odd("its directory is damaged, or has a folder or notes in it")
        entries.append(_unfolded(Entry(name, flags, method, crc, whole, packed, place, large)))
    if len(entries) != count:
        raise Odd(f"its directory has {len(entries)} entries, and its end says {count}")
    return entries, first


def records(file: BinaryIO, entries: list[Entry], first: int, sums: bool = True) -> dict[bytes, Record]:
    """The records of an archive, by name.

    Args:
        file: the archive.
        entries: of its directory.
        first: where the directory begins.
        sums: whether to compare checksums, which takes reading the whole file.

    Raises:
        Odd: they are not one after another with nothing between, or are not what the directory says.
    """
    by_name: dict[bytes, Record] = {}
    at = 0
    for entry in entries:
        shown = entry.name.partition(b"/")[2].decode(errors="backslashreplace")[:60]
        if entry.flags & ~(_DESCRIBED | _UTF8):
            raise Odd("it is encrypted, or of a kind that torch does not write")
        if entry.method or entry.packed != entry.size:
            raise Odd("it is compressed, which torch.save never does")
        if entry.at != at:
            raise Odd("its records do not stand one after another, in the order of its directory")
        header = _read(file, at, _LOCAL.size)
        sign, _, flags, method, _, _, crc, packed, size, n, extra = _LOCAL.unpack(header)
        described = bool(entry.flags & _DESCRIBED)
        stated = (0, 0, 0) if described else (entry.crc, entry.size, entry.size)
        rest = _read(file, at + _LOCAL.size, n + extra)
        if (sign, flags, method, rest[:n], crc, packed, size) != (b"PK\3\4", entry.flags, 0, entry.name, *stated):
            raise Odd(f"its record {shown} has two headers, which contradict each other")
        large = entry.large
        if entry.size >= _MAX32:  # how much it packs torch does not know yet
            large = large[:12] + bytes(8) + large[20:]
        filling = rest[n:].removeprefix(large)
        ideal = (
            b"FB" + (len(filling) - 4).to_bytes(2, "little") + b"Z" * (len(filling) - 4) if len(filling) > 3 else b""
        )
        if not rest[n:].startswith(large) or filling != ideal:
            raise Odd(f"its record {shown} has an extra field that is no alignment")
        start = at + _LOCAL.size + n + extra
        at = start + entry.size
        if sums and _crc(file, start, entry.size) != entry.crc:
            if not entry.crc:
                raise Odd("it was written without checksums, so nobody can tell whether it is whole")
            raise Changed(f"CRC mismatch in {shown}: the file has changed since it was written")
        if described:
            width = 8 if entry.large else 4
            descriptor = b"PK\7\10" + entry.crc.to_bytes(4, "little") + 2 * entry.size.to_bytes(width, "little")
            if _read(file, at, len(descriptor)) != descriptor:
                raise Odd(f"what follows its record {shown} is not what its directory says")
            at += len(descriptor)
        if entry.name in by_name:
            raise Odd(f"it holds two records of one name, {shown}")
        by_name[entry.name] = Record(start, entry.size, len(filling) - 4 if filling else -1, described)
    if at != first:
        raise Odd("something lies between its records and its directory")
    return by_name


def content(file: BinaryIO, record: Record) -> bytes:
    """The bytes of a record."""
    return _read(file, record.start, record.size)


def _ends(file: BinaryIO, size: int) -> tuple[int, int, int]:
    """Where the directory begins and ends, and the count of its entries, as every record behind it says."""
    if size < _END.size or _read(file, size - _END.size, 4) != b"PK\5\6":
        tail = _read(file, max(0, size - 2**17), min(size, 2**17))
        end = tail.rfind(b"PK\5\6")
        if end < 0 or len(tail) - end < _END.size:
            raise Truncated("the end of the archive is missing")
        raise Odd("something follows after the end of the archive")
    last = size - _END.size
    end = _END.unpack(_read(file, last, _END.size))
    count, length, first = end[4:7]
    place = last - _LOCATOR.size - _RECORD64.size
    if place >= 0 and _read(file, last - _LOCATOR.size, 4) == b"PK\6\7":
        record, locator = _read(file, place, _RECORD64.size), _read(file, last - _LOCATOR.size, _LOCATOR.size)
        count, length, first = _RECORD64.unpack(record)[7:]
        made, needed = _RECORD64.unpack(record)[2:4]
        if record != _RECORD64.pack(b"PK\6\6", 44, made, needed, 0, 0, count, count, length, first):
            raise Odd("its zip64 record is not one that torch writes")
        if locator != _LOCATOR.pack(b"PK\6\7", 0, place, 1):
            raise Odd("its zip64 record is not where its locator says")
        last = place
    elif count == _MAX16 or _MAX32 in (length, first):
        raise Odd("its zip64 record is missing")
    short = min(count, _MAX16)
    if end != (b"PK\5\6", 0, 0, short, short, min(length, _MAX32), min(first, _MAX32), 0):
        raise Odd("the records at the end of the archive contradict each other")
    if first + length != last:
        raise Odd("its directory is not where the end of the archive says: two readers may find two")
    return first, last, count


def _unfolded(entry: Entry) -> Entry:
    """The entry with the numbers of its zip64 field, which holds those that have no room in 32 bits and no others."""
    numbers = {name: getattr(entry, name) for name in ("size", "packed", "at")}
    large = [name for name, number in numbers.items() if number == _MAX32]
    if not large and not entry.large:
        return entry
    length = 8 * len(large)
    if not large or entry.large[:4] != b"\1\0" + length.to_bytes(2, "little") or len(entry.large) != 4 + length:
        raise Odd("an entry of its directory has an extra field that torch does not write")
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
        raise Odd("a part of it lies beyond its end")
    return data
