"""Takes torch.save archives apart and reassembles them, and writes pickles opcode by opcode.

torch.save writes records one after another, each with its header, its bytes and a descriptor; the directory, with an entry
for each record; the zip64 record with its locator; and the end record.
"""

import io
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

FORMS = {
    "local": (b"PK\3\4", "HHHHHLLLHH", "need flags method time date crc packed size names extras"),
    "descriptor": (b"PK\7\10", "LLL", "crc packed size"),
    "central": (
        *(b"PK\1\2", "HHHHHHLLLHHHHHLL"),
        "made need flags method time date crc packed size names extras notes disk inner outer at",
    ),
    "zip64": (b"PK\6\6", "QHHLLQQQQ", "length made need disk first here count size at"),
    "locator": (b"PK\6\7", "LQL", "disk at disks"),
    "end": (b"PK\5\6", "HHHHLLH", "disk first here count size at notes"),
}
"""For each header, its signature, the struct codes of its numbers, and their names."""
KINDS = {sign: kind for kind, (sign, _, _) in FORMS.items()}


@dataclass
class Piece:
    """A header with its fields by name, 0 if missing, and the bytes that follow; ``sig`` replaces its signature."""

    kind: str
    fields: dict[str, Any]
    name: bytes = b""
    extra: bytes = b""
    data: bytes = b""

    def __bytes__(self) -> bytes:
        sign, form, names = FORMS[self.kind]
        numbers = [self.fields.get(name, 0) for name in names.split()]
        return self.fields.get("sig", sign) + struct.pack(f"<{form}", *numbers) + self.name + self.extra + self.data

    def copy(self) -> "Piece":
        return Piece(self.kind, dict(self.fields), self.name, self.extra, self.data)


def taken_apart(archive: bytes) -> list[Piece]:
    """The pieces of a small archive that torch.save wrote."""
    pieces: list[Piece] = []
    at, sizes = 0, {}
    place = struct.unpack("<L", archive[-6:-2])[0]
    while place < len(archive) and archive[place : place + 4] == b"PK\1\2":  # record headers hold no sizes
        size, names, extras, notes = struct.unpack("<L3H", archive[place + 24 : place + 34])
        sizes[struct.unpack("<L", archive[place + 42 : place + 46])[0]] = size
        place += 46 + names + extras + notes
    while at < len(archive):
        kind = KINDS[archive[at : at + 4]]
        _, form, names = FORMS[kind]
        end = at + 4 + struct.calcsize(f"<{form}")
        fields = dict(zip(names.split(), struct.unpack(f"<{form}", archive[at + 4 : end]), strict=True))
        lengths = (fields.get("names", 0), fields.get("extras", 0), sizes.get(at, 0) if kind == "local" else 0)
        parts = []
        for length in lengths:
            parts.append(archive[end : end + length])
            end += length
        pieces.append(Piece(kind, fields, *parts))
        at = end
    return pieces


def joined(pieces: Iterable[Piece]) -> bytes:
    """The bytes of these pieces, unchanged."""
    return b"".join(map(bytes, pieces))


def repaired(pieces: list[Piece]) -> list[Piece]:
    """The pieces with correct lengths, checksums, sizes and offsets; the n-th entry belongs to the n-th record."""
    pieces = [piece.copy() for piece in pieces]
    at, records = 0, []
    for piece in pieces:
        if piece.kind in ("local", "central"):
            piece.fields |= {"names": len(piece.name), "extras": len(piece.extra)}
        if piece.kind == "local":
            records.append((at, zlib.crc32(piece.data), len(piece.data)))
        elif piece.kind == "descriptor" and records:
            piece.fields |= {"crc": records[-1][1], "packed": records[-1][2], "size": records[-1][2]}
        at += len(bytes(piece))
    entries = [piece for piece in pieces if piece.kind == "central"]
    for piece, (place, crc, size) in zip(entries, records, strict=False):
        piece.fields |= {"at": place, "crc": crc, "packed": size, "size": size}
    at, first = 0, None
    for piece in pieces:
        if piece.kind == "central" and first is None:
            first = at
        if piece.kind in ("zip64", "end"):
            length = sum(len(bytes(entry)) for entry in entries)
            counts = {"here": len(entries), "count": len(entries), "size": length, "at": first or 0}
            piece.fields |= counts
        if piece.kind == "locator":
            piece.fields["at"] = max(0, at - 56)
        at += len(bytes(piece))
    return pieces


def packed(records: Iterable[tuple[str | bytes, bytes]], align: bool = True) -> bytes:
    """An archive of these records, in torch.save's layout."""
    pieces: list[Piece] = []
    entries: list[Piece] = []
    at = 0
    for name, data in records:
        name = name.encode() if isinstance(name, str) else name
        flags = {"flags": 0x808 if data else 0x800}
        padding = -(at + 30 + len(name) + 4) % 64 if align else 0
        extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
        pieces.append(Piece("local", {**flags}, name, extra, data))
        if data:
            pieces.append(Piece("descriptor", {}))
        entries.append(Piece("central", {**flags}, name))
        at = len(joined(pieces))
    ends = [
        Piece("zip64", {"length": 44, "made": 798, "need": 45}),
        Piece("locator", {"disks": 1}),
        Piece("end", {}),
    ]
    return joined(repaired([*pieces, *entries, *ends]))


def archive_of(records: dict[str, bytes]) -> bytes:
    """An archive of these records in the folder that torch.save gives them."""
    return packed((f"archive/{name}", data) for name, data in records.items())


def records_in(archive: bytes) -> dict[str, bytes]:
    """The records of a torch.save archive, by their name inside its folder."""
    return {p.name.decode().partition("/")[2]: p.data for p in taken_apart(archive) if p.kind == "local"}


def saved(content: Any, **options: Any) -> bytes:
    """The bytes that torch.save writes."""
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def with_pickle(pickle: bytes, *storages: bytes, **more: bytes) -> bytes:
    """A torch.save file with this pickle and these storages, named 0, 1, and so on."""
    records = {"data.pkl": pickle, "byteorder": b"little"}
    records |= {f"data/{number}": data for number, data in enumerate(storages)}
    records |= {"version": b"3\n", **{name.replace("__", "/"): data for name, data in more.items()}}
    return archive_of(records)


# ---- pickles -----------------------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    """Push a string."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    """Push an integer."""
    return b"J" + struct.pack("<i", value)


def named(module: str, name: str) -> bytes:
    """Push a global."""
    return f"c{module}\n{name}\n".encode()


def row(*items: bytes) -> bytes:
    """Push a tuple."""
    return b"(" + b"".join(items) + b"t"


def called(function: bytes, *arguments: bytes) -> bytes:
    return function + row(*arguments) + b"R"


def table(*pairs: tuple[bytes, bytes]) -> bytes:
    """Push a dict."""
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u"


EMPTY_ORDERED = named("collections", "OrderedDict") + b")R"


def storage(key: str = "0", kind: str = "Float", count: int = 4, location: str = "cpu") -> bytes:
    return row(text("storage"), named("torch", f"{kind}Storage"), text(key), text(location), number(count)) + b"Q"


def tensor(of: bytes, shape: tuple[int, ...] = (1, 1, 2, 2), offset: int = 0) -> bytes:
    """Push a tensor, row-major."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= n
    rebuild = named("torch._utils", "_rebuild_tensor_v2")
    sizes, steps = (row(*map(number, numbers)) for numbers in (shape, strides))
    return called(rebuild, of, number(offset), sizes, steps, b"\x89", EMPTY_ORDERED)


def program(*instructions: bytes) -> bytes:
    """A pickle of protocol 2."""
    return b"\x80\2" + b"".join(instructions) + b"."


def legacy(pickle: bytes, *storages: tuple[str, int, bytes], end: bytes = b"") -> bytes:
    """A file in the format of torch.save before 1.6; each storage is given by key, count and bytes."""
    head = b"\x80\2\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\2M\xe9\3."
    system = program(table((text("protocol_version"), number(1001)), (text("little_endian"), b"\x88")))
    keys = program(b"](" + b"".join(text(key) for key, _, _ in storages) + b"e")
    numbers = b"".join(struct.pack("<q", count) + data for _, count, data in storages)
    return head + system + pickle + keys + numbers + end
