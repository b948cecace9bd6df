"""Archives as torch.save writes them, of any records, and pickles written opcode by opcode."""

import io
import struct
import zipfile
from typing import Any

import torch

Records = dict[str, bytes] | list[tuple[str, bytes]]
"""By name; a list may hold a name twice."""


def archive_of(records: Records, folder: str = "archive/") -> bytes:
    """An archive of these records in the folder that torch.save gives them."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in records.items() if isinstance(records, dict) else records:
            archive.writestr(zipfile.ZipInfo(folder + name), data)
    return file.getvalue()


def records_in(archive: bytes) -> dict[str, bytes]:
    """The records of a torch.save archive, by their name inside its folder."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name.partition("/")[2]: opened.read(name) for name in opened.namelist()}


def saved(content: Any, **options: Any) -> bytes:
    """The bytes that torch.save writes."""
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def with_pickle(pickle: bytes, *storages: bytes) -> bytes:
    """A torch.save file with this pickle and these storages, named 0, 1, and so on."""
    records = {"data.pkl": pickle, "byteorder": b"little"}
    records |= {f"data/{number}": data for number, data in enumerate(storages)}
    return archive_of({**records, "version": b"3\n"})


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
