"""Structured mutants of model files: what an attacker or a broken program might make of files by torch.save and safetensors.

Every mutant is a whole file.  Its archive is taken apart, changed, and reassembled with lengths, checksums and offsets
corrected or unchanged; its pickle is changed opcode by opcode; its safetensors header as JSON or as text; bytes are changed
anywhere; or an odd model is saved in the ordinary way.
"""

import io
import json
import pickletools
import random
import struct
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

import construct
from archives import (
    EMPTY_ORDERED,
    FORMS,
    KINDS,
    Piece,
    archive_of,
    called,
    joined,
    named,
    number,
    packed,
    program,
    records_in,
    repaired,
    row,
    saved,
    split,
    storage,
    table,
    taken_apart,
    tensor,
    text,
)
from construct.files.layer_files import to_safetensors

Random = random.Random


@cache
def models() -> dict[str, Any]:
    """The contents of ordinary files."""
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 2, 3, padding=1)
    net = nn.Sequential(conv, nn.BatchNorm2d(2), nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(2, 3, 2, stride=2)), conv)
    state = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Conv1d(2, 2, 2).half(), nn.Conv2d(2, 1, 1).bfloat16()).state_dict()
    base = torch.randn(5, 2, 2, 2)
    views = {"a.weight": base[:2], "b.weight": base[2:4].permute(1, 0, 3, 2), "c.weight": base[4:].expand(3, 2, 2, 2)}
    return {
        "module": net,
        "attention": construct.convert(nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU())),
        "state": state,
        "views": views,
        "wrapped": {"epoch": 3, "state_dict": state, "optimizer": torch.optim.SGD(net.parameters(), 0.1).state_dict()},
        "bare": nn.Conv1d(1, 1, 2, bias=False),
    }


@cache
def files() -> dict[str, bytes]:
    state = {name: value.contiguous() for name, value in models()["views"].items()}
    return {name: saved(content) for name, content in models().items()} | {
        "safetensors": save(state, {"by": "a test"}),
        "geometry": to_safetensors(models()["attention"]),
        "legacy": saved(models()["state"], _use_new_zipfile_serialization=False),
        **programs(),
    }


def programs() -> dict[str, bytes]:
    """Files of torch.export and TorchScript, which are refused."""
    model, x, program, script = (
        nn.Sequential(nn.Conv2d(1, 2, 3)).eval(),
        torch.ones(2, 1, 5, 5),
        io.BytesIO(),
        io.BytesIO(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.export.save(torch.export.export(model, (x,)), program)
        torch.jit.save(torch.jit.trace(model, x), script)
    return {"pt2": program.getvalue(), "TorchScript": script.getvalue()}


ZIPS = ("module", "attention", "state", "views", "wrapped", "bare")


# ---- the archive -------------------------------------------------------------------------------------------------------


def field_changed(pieces: list[Piece], rng: Random) -> None:
    """Change a number in a header."""
    piece = rng.choice(pieces)
    name = rng.choice([name for name in piece.fields if name != "sig"])
    old = piece.fields[name]
    _, letters, names = FORMS[piece.kind]
    top = 256 ** struct.calcsize(f"<{letters[names.split().index(name)]}") - 1
    others = [p.fields[name] for p in pieces if name in p.fields]
    flipped = old ^ (1 << rng.randrange(16))
    new = rng.choice([0, 1, old + 1, old - 1, flipped, top, top - 1, rng.choice(others), rng.randrange(99)])
    piece.fields[name] = max(0, min(top, new))


def sign_changed(pieces: list[Piece], rng: Random) -> None:
    """Change a header's signature."""
    rng.choice(pieces).fields["sig"] = rng.choice([*KINDS, b"\0\0\0\0"])


def piece_gone(pieces: list[Piece], rng: Random) -> None:
    """Remove a header, or a record with its descriptor and its entry."""
    del pieces[rng.randrange(len(pieces))]


def piece_twice(pieces: list[Piece], rng: Random) -> None:
    """Duplicate a header, here or elsewhere."""
    at = rng.randrange(len(pieces))
    pieces.insert(rng.choice([at, rng.randrange(len(pieces) + 1)]), pieces[at].copy())


def pieces_swapped(pieces: list[Piece], rng: Random) -> None:
    """Swap two headers."""
    a, b = rng.randrange(len(pieces)), rng.randrange(len(pieces))
    pieces[a], pieces[b] = pieces[b], pieces[a]


def something_between(pieces: list[Piece], rng: Random) -> None:
    """Insert bytes that belong to nothing behind a piece."""
    filling = [b"\0", b"PK\3\4", b"Z" * 64, b"PK\5\6" + b"\0" * 18, bytes(rng.choice(pieces)), b"PK\6\7" + b"\0" * 16]
    rng.choice(pieces).data += rng.choice(filling)


def name_changed(pieces: list[Piece], rng: Random) -> None:
    """Change the name of a record, in one header or in both."""
    chosen = rng.choice([piece for piece in pieces if piece.name])
    old = chosen.name
    others = [piece.name for piece in pieces if piece.name]
    replaced = ((b"archive/", b""), (b"archive", b"ARCHIVE"), (b"/", b"\\"), (b"data/", b"data/0"), (b"data", b"Data"))
    known = [b"version", b"byteorder", b".data/version", b"constants.pkl", b"data.pkl", b".format_version"]
    changes = [
        *(old.upper(), old + b" ", old + b"\0"),
        *(old.replace(*pair) for pair in replaced),
        b"archive/data/" + str(rng.randrange(12)).encode(),
        b"archive/" + rng.choice(known),
        rng.choice(others),
    ]
    new = rng.choice(changes)
    both = rng.random() < 0.7
    for piece in pieces:
        if piece is chosen or (both and piece.name == old):
            piece.name = new
            piece.fields["names"] = len(new)


def extra_changed(pieces: list[Piece], rng: Random) -> None:
    piece = rng.choice([piece for piece in pieces if piece.kind in ("local", "central")])
    sizes = struct.pack("<Q", rng.choice([0, 4, 8, 2**32, piece.fields["size"], len(piece.data)]))
    fields = [b"", b"FB\0\0", b"FB\4\0ZZZZ", b"FB\2\0hi", b"XX\0\0", b"Z"]
    fields += [b"\1\0\10\0" + sizes, b"\1\0\20\0" + sizes * 2]
    piece.extra = rng.choice([piece.extra + rng.choice(fields), rng.choice(fields) + piece.extra, rng.choice(fields)])
    piece.fields["extras"] = len(piece.extra)
    if rng.random() < 0.3:
        piece.fields |= {rng.choice(["size", "packed", "at"]): 2**32 - 1} if piece.kind == "central" else {}


def content_changed(pieces: list[Piece], rng: Random) -> None:
    """Change the bytes of a record, or exchange those of two."""
    records = [piece for piece in pieces if piece.kind == "local"]
    piece, other = rng.choice(records), rng.choice(records)
    kind = rng.randrange(4)
    if kind == 0:
        piece.data, other.data = other.data, piece.data
    elif kind == 1:
        piece.data = piece.data[:-1]
    elif kind == 2:
        piece.data += bytes([rng.randrange(256)])
    elif piece.data:
        at = rng.randrange(len(piece.data))
        piece.data = piece.data[:at] + bytes([piece.data[at] ^ 1 << rng.randrange(8)]) + piece.data[at + 1 :]


def record_moved(pieces: list[Piece], rng: Random) -> None:
    """Move a record, with all that belongs to it, to another place."""
    records = [n for n, piece in enumerate(pieces) if piece.kind == "local"]
    entries = [n for n, piece in enumerate(pieces) if piece.kind == "central"]
    if len(records) != len(entries):
        return
    a, b = rng.randrange(len(records)), rng.randrange(len(records))
    for part in (records, entries) if rng.random() < 0.8 else (rng.choice([records, entries]),):
        pieces[part[a]], pieces[part[b]] = pieces[part[b]], pieces[part[a]]


def other_directory(pieces: list[Piece], rng: Random) -> None:
    """Add a second directory, of other records, to which some of the end records point."""
    other = saved({"weight": torch.full((1, 1, 2, 2), 1000.0)} if rng.random() < 0.5 else models()["bare"])
    archives = [split(pieces), split(taken_apart(other))]
    rng.shuffle(archives)
    (records, entries, _), (more_records, more_entries, _) = archives
    for entry in more_entries:
        entry.fields["at"] += len(joined(records))
    start = len(joined([*records, *more_records]))
    directories = [(start, entries), (start + len(joined(entries)), more_entries)]
    body = [*records, *more_records, *entries, *more_entries]
    ends = rng.choice(archives)[2]
    for end in ends:
        if end.kind == "locator":
            end.fields["at"] = rng.choice([len(joined(body)), 0, 1, start, len(joined(body)) + 56])
        else:
            at, held = rng.choice(directories)
            end.fields |= {"here": len(held), "count": len(held), "size": len(joined(held)), "at": at}
    if rng.random() < 0.3:
        del ends[rng.randrange(len(ends))]
    pieces[:] = [*body, *ends]


ARCHIVE_ACTS: dict[str, Callable[[list[Piece], Random], None]] = {
    "a field": field_changed,
    "a sign": sign_changed,
    "a piece gone": piece_gone,
    "a piece twice": piece_twice,
    "pieces swapped": pieces_swapped,
    "something between": something_between,
    "a name": name_changed,
    "an extra field": extra_changed,
    "content": content_changed,
    "a record moved": record_moved,
    "a second directory": other_directory,
}


def odd_archive(rng: Random, act: str | None = None) -> bytes:
    """An archive changed in one to three ways, with the rest corrected or left."""
    pieces = taken_apart(files()[rng.choice(ZIPS)])
    act = act or rng.choice(list(ARCHIVE_ACTS))
    ARCHIVE_ACTS[act](pieces, rng)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        ARCHIVE_ACTS[rng.choice(list(ARCHIVE_ACTS)[:-1])](pieces, rng)
    right = rng.random() < 0.5 and act not in ("a field", "a second directory")
    return joined(repaired(pieces) if right else pieces)


def odd_records(rng: Random) -> bytes:
    """A correct archive with records added, removed, renamed or reordered."""
    records = list(records_in(files()[rng.choice(ZIPS)]).items())
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(records))
        kind = rng.randrange(6)
        if kind == 0:
            del records[at]
        elif kind == 1:
            place = rng.randrange(len(records))
            records[at], records[place] = records[place], records[at]
        elif kind == 2:
            names = ["version", "byteorder", ".format_version", ".storage_alignment"]
            names += ["data/9", "DATA/0", "constants.pkl", "x"]
            content = [b"3\n", b"little", b"big", b"1", b"64", b"32", b"0", b"11\n", b"2\n", b""]
            records.insert(at, (rng.choice(names), rng.choice([*content, records[at][1]])))
        elif kind == 3:
            other = rng.choice([b"3", b"1\n", b"10\n", b"1", b"128", b"little\n", b"LITTLE", b"64 "])
            records[at] = (records[at][0], other)
        elif kind == 4:
            records[at] = (records[at][0].swapcase(), records[at][1])
        else:
            storages = [n for n, (name, _) in enumerate(records) if name.startswith("data/")]
            if storages:
                a, b = rng.choice(storages), rng.choice(storages)
                records[a], records[b] = (records[a][0], records[b][1]), (records[b][0], records[a][1])
    folder = rng.choice(["archive/", "m/", "a.b/", "", "/"])
    return packed(((folder + name, data) for name, data in records), align=rng.random() < 0.8)


# ---- the pickle --------------------------------------------------------------------------------------------------------

GLOBALS = [
    *(named("torch", f"{kind}Storage") for kind in ("Float", "Double", "Half", "BFloat16", "Int", "Long", "Byte")),
    named("torch.storage", "UntypedStorage"),
    *(named("torch._utils", f"_rebuild_{kind}") for kind in ("tensor", "tensor_v2", "tensor_v3", "parameter")),
    named("torch._utils", "_rebuild_parameter_with_state"),
    named("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"),
    named("torch._tensor", "_rebuild_from_type_v2"),
    *(named("torch.nn.modules.conv", kind) for kind in ("Conv1d", "Conv2d", "ConvTranspose2d")),
    named("torch.nn.modules.container", "Sequential"),
    named("torch.nn.parameter", "Parameter"),
    *(named("torch", kind) for kind in ("Tensor", "Size", "device", "float32", "float16")),
    *(named("collections", kind) for kind in ("OrderedDict", "Counter", "defaultdict")),
    *(named("__builtin__", kind) for kind in ("set", "complex", "bytearray", "list")),
    named("construct.attention", "MHSA"),
    named("construct.geometry", "ConvGeometry"),
    named("torch.nn.functional", "relu"),
    named("_codecs", "encode"),
    named("tests.somewhere", "Own"),
]
SIMPLE = [*(b"N", b"\x88", b"\x89", b")", b"]", b"}", b"K\0", b"K\1", b"K\2"), *map(text, ("", "a.b", "weight", "0"))]
OPERATIONS = [*(bytes([code]) for code in b"(tuesabR\x81\x85\x86\x87Q02"), b"\x80\2"]


def instructions(pickle: bytes) -> list[bytes]:
    """The opcodes of a pickle, each with its argument."""
    places = [at for _, _, at in pickletools.genops(pickle)]
    return [pickle[a:b] for a, b in zip(places, [*places[1:], len(pickle)], strict=True)]


def pickle_changed(steps: list[bytes], rng: Random, kind: int | None = None) -> None:
    """Remove, duplicate, exchange or insert one opcode or a few, or change an argument."""
    at, kind = rng.randrange(1, len(steps)), rng.randrange(10) if kind is None else kind
    texts = [n for n, step in enumerate(steps) if step[:1] == b"X"]
    numbers = [n for n, step in enumerate(steps) if step[:1] in b"KMJ"]
    names = [n for n, step in enumerate(steps) if step[:1] == b"c"]
    gets = [step for step in steps if step[:1] in b"hj"]
    puts = [step.replace(step[:1], b"h" if step[:1] == b"q" else b"j", 1) for step in steps if step[:1] in b"qr"]
    if kind == 0:
        del steps[at : at + rng.choice((1, 1, 2, 5))]
    elif kind == 1:
        steps[at:at] = steps[at : at + rng.choice((1, 2, 5, 20))]
    elif kind == 2:
        other = rng.randrange(1, len(steps))
        steps[at], steps[other] = steps[other], steps[at]
    elif kind == 3 and texts:
        old = steps[rng.choice(texts)][5:].decode()
        other = steps[rng.choice(texts)][5:].decode()
        new = rng.choice([other, "", ".", "a.b", f"{old}.x", old.upper(), "0", "1", "weight", "_modules", "items"])
        steps[rng.choice(texts)] = text(new)
    elif kind == 4 and numbers:
        small, any_number = b"K" + bytes([rng.randrange(12)]), number(rng.choice((-1, 0, 1, 2, 4, 2**31 - 1)))
        steps[rng.choice(numbers)] = rng.choice([small, any_number])
    elif kind == 5 and names:
        old = rng.choice(names)
        coded = steps[old].replace(b"C", b"\\x43") if rng.random() < 0.3 else steps[rng.choice(names)]
        steps[old] = rng.choice([coded, rng.choice(GLOBALS)])
    elif kind == 6:
        steps.insert(at, rng.choice([*SIMPLE, *OPERATIONS, *GLOBALS, *(gets or [b"N"])]))
    elif kind == 7 and puts:
        value = rng.choice([b"K\0", b"G" + struct.pack(">d", 1000.0), rng.choice(puts), b"}"])
        data = table((text("data"), rng.choice(puts)))
        acts = [b"K\0" + value + b"s0", value + b"a0", value + b"b0", b"\x85R0", data + b"b0"]
        steps.insert(at, rng.choice(puts) + rng.choice([rng.choice(acts), rng.choice(acts)[:-1]]))
    elif kind == 8 and puts:
        steps[at] = rng.choice(puts)
    else:
        steps.insert(at, value_made(rng, puts))


def value_made(rng: Random, puts: list[bytes]) -> bytes:
    """A value to insert: a tensor of some storage, or a call of a name that torch knows with earlier values."""
    thing = rng.choice(puts) if puts else b"N"
    same = row(thing, named("torch", "float32"), text("cpu"), b"\x89")
    key, kind, count = (
        str(rng.randrange(4)),
        rng.choice(["Float", "Half", "BFloat16", "Int"]),
        rng.choice((1, 4, 8, 36)),
    )
    values = [tensor(storage(key, kind, count))]
    values.append(called(rng.choice(GLOBALS), thing))
    values.append(called(rng.choice(GLOBALS), thing, b"\x89", EMPTY_ORDERED))
    data = table((text("data"), rng.choice(puts or [b"N"])))
    values.append(called(GLOBALS[13], GLOBALS[12], named("torch", "Tensor"), same, data))
    values.append(rng.choice(GLOBALS) + b")\x81" + table((text("weight"), thing)) + b"b")
    return rng.choice(values)


NAMES_CHANGED, THINGS_DONE = 5, 7


def odd_pickle(rng: Random, kind: int | None = None) -> bytes:
    """A correct archive whose pickle was changed in one to three places, in ways of this kind if one is given."""
    records = records_in(files()[rng.choice(ZIPS)])
    steps = instructions(records["data.pkl"])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        pickle_changed(steps, rng, kind)
    records["data.pkl"] = b"".join(steps)
    return archive_of(records)


def odd_program(rng: Random) -> bytes:
    """A handwritten state dict with one or two oddities."""
    kinds = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Int": 4}
    chosen = [rng.choice(list(kinds)) for _ in range(2)]
    counts = [rng.choice((4, 4, 4, 8)) for _ in range(2)]
    keys = [rng.choice(["0", "0", "1", "00"]) for _ in range(2)]
    odd = ["a.weight", "b.weight", "weight", ".weight", "a..weight", "", "a.b.weight", "items"]
    names = [rng.choice(odd) for _ in range(2)]
    act = [b"", *[b"h\0" + x + b"0" for x in (b"K\0K\1s", b"}b", b"K\1a", b"\x85R", b"(K\0K\1u")]]
    stored = [storage(*said) for said in zip(keys, chosen, counts, strict=True)]
    values = [tensor(stored[0] + b"q\0", offset=rng.choice((0, 0, 1))), tensor(stored[1], offset=rng.choice((0, 0, 1)))]
    start = rng.choice([b"}", b"}", EMPTY_ORDERED])
    attribute = rng.choice([EMPTY_ORDERED, named("collections", "OrderedDict")])
    build = rng.choice([b"", b"", table((text(rng.choice(["_metadata", "items", "keys"])), attribute)) + b"b"])
    items = b"(" + text(names[0]) + values[0] + rng.choice(act * 1 + [b""] * 4) + text(names[1]) + values[1] + b"u"
    data = {"data.pkl": program(start, items, build if start == EMPTY_ORDERED else b""), "byteorder": b"little"}
    for key, kind, count in zip(keys, chosen, counts, strict=True):
        data.setdefault(f"data/{key}", rng.randbytes(count * kinds[kind]) if rng.random() < 0.9 else rng.randbytes(16))
    return archive_of({**data, "version": b"3\n"})


def odd_model(rng: Random) -> bytes:
    """A model with odd names, saved by torch.save in the ordinary way."""
    model = nn.Sequential(nn.Conv2d(1, 1, 2), nn.Sequential(nn.Conv2d(1, 2, 2, bias=False), nn.ReLU()))
    places: list[Any] = [model, model[1], model[0], model[1][0]]  # type: ignore[index]
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.choice(places)
        part = rng.choice(["_modules", "_modules", "_parameters", "_buffers", "__dict__"])
        odd = ["", ".", "0.0", "1.0", "1.", "0", "1"]
        name = rng.choice([*odd, "weight", "bias", "a", "a.b", "named_modules", "forward", "stride"])
        conv = nn.Conv2d(1, 1, 1)
        values: dict[str, Any] = {
            "_modules": rng.choice([nn.Conv2d(1, 1, 2), *places, None, nn.Sequential(nn.Conv2d(1, 1, 1))]),
            "_parameters": nn.Parameter(torch.randn(1, 1, 2, 2)),
            "_buffers": torch.randn(1, 1, 2, 2),
            "__dict__": rng.choice([5, "text", conv, torch.ones(1), nn.functional.relu, nn.ReLU, None, [conv]]),
        }
        getattr(place, part)[name] = values[part]
    return saved(model if rng.random() < 0.8 else {"model": model, "epoch": 1})


def odd_state(rng: Random) -> bytes:
    state: dict[Any, Any] = dict(models()["state"])
    for _ in range(rng.choice((1, 1, 2))):
        odd = ["", ".", ".weight", "weight", "0..weight", "0.weight.", "module.0.weight", "0.Weight", 5, "_metadata"]
        name = rng.choice(odd)
        weight, parameter = torch.randn(1, 1, 2, 2), nn.Parameter(torch.ones(1, 1, 1))
        state[name] = rng.choice([weight, parameter, 3, "x", {"a.weight": torch.randn(1, 1, 1)}, [1]])
    return saved(rng.choice([state, {"state_dict": state}, {"model": state, "ema": dict(state)}, [state], (state,)]))


# ---- safetensors -------------------------------------------------------------------------------------------------------


def odd_safetensors(rng: Random) -> bytes:
    """A safetensors file whose header was changed, in its entries or its text, with the numbers behind it."""
    data = files()[rng.choice(["safetensors", "geometry"])]
    length = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + length].decode().rstrip(), data[8 + length :]
    kind = rng.randrange(8)
    if kind < 4:
        entries = list(json.loads(header).items())
        at = rng.randrange(len(entries))
        name, entry = entries[at]
        value = rng.choice([-1, 0, 1, 2, 4, 2**59, 2**63, 2**64, 1.0, "1", None, True, [1], -0.0])
        if kind == 0 and "shape" in entry:
            part = rng.choice(["shape", "data_offsets"])
            entry[part] = rng.choice([[*entry[part][:-1], value], [value, *entry[part]], entry[part][::-1], [], value])
        elif kind == 1:
            odd = ["", ".", ".weight", "a.weight", "__metadata__", "\ud800", "a\0", name.upper()]
            entries[at] = (rng.choice(odd), entry)
        elif kind == 2:
            other = rng.choice(["F32", "F16", "BF16", "I8", "F8", "C16", "f32", value])
            entry[rng.choice(["dtype", "shape", "more", "data_offsets"])] = other
        else:
            entries.insert(rng.randrange(len(entries)), entries[at])
        header = "{" + ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in entries) + "}"
    elif kind == 4:
        at = rng.randrange(len(header))
        new = rng.choice([*' ,0-"[{}\\\té', "\\u0000", "1e0", "//"])
        header = header[:at] + new + header[at + rng.randrange(2) :]
    elif kind == 5:
        around = [(" ", ""), ("", "  "), ("", "\n"), ("", "x"), ("", "\0"), ("", header), ("\ufeff", "")]
        header = header.join(rng.choice(around))
    elif kind == 6:
        body = rng.choice([body[:-1], body + b"\0", b"", body * 2])
    else:
        old = rng.choice(["[0,", "F32", '"shape"', "weight", ":"])
        new = rng.choice(["[-0,", "[00,", "F64", '"dtype"', "bias", "w\\u0065ight", ": ", "[0.0,"])
        header = header.replace(old, new, 1)
    coded = header.encode("utf-8", "surrogatepass")
    said = len(coded) + rng.choice((0, 0, 0, 0, 0, 1, -1, 2**32))
    return max(0, said).to_bytes(8, "little") + coded + body


# ---- bytes -------------------------------------------------------------------------------------------------------------

PAYLOAD = called(named("posix", "system"), text("touch trace")) + b"0"
"""A pickle fragment that creates a file and leaves nothing on the stack."""


def bytes_changed(data: bytes, rng: Random) -> bytes:
    """Flip, cut, repeat or replace some bytes by special ones, insert a payload, or truncate or extend the end."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, kind = rng.randrange(max(1, len(out))), rng.randrange(8)
        if kind == 0:
            out[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del out[at : at + rng.randrange(1, 20)]
        elif kind == 2:
            out[at:at] = out[at : at + rng.randrange(1, 40)]
        elif kind == 3:
            out[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f"))
        elif kind == 4:
            out[at:at] = PAYLOAD
        elif kind == 5:
            del out[at:]
        elif kind == 6:
            out += rng.choice([b"\0", b".", data])
        else:
            out[at : at + 1] = rng.choice([b"N", b")", b"]", b"}", b"\x93", *OPERATIONS])
    return bytes(out)


def odd_bytes(rng: Random) -> bytes:
    """A file of any format with bytes changed anywhere, or in one record of an archive that is then correct."""
    data = files()[rng.choice(list(files()))]
    if data[:2] != b"PK" or rng.random() < 0.5:
        return bytes_changed(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    pickled = [name for name in records if name.endswith((".pkl", ".json", ".pt"))]
    target = "data.pkl" if "data.pkl" in pickled else rng.choice(pickled)
    changed = bytes_changed(records[target], rng)
    # A program may also lose a record, or get the name that marks a torch.save file.
    fate = rng.randrange(4) if "constants.pkl" in records or "archive_format" in records else 0
    if fate in (1, 3):
        del records[target]
    if fate == 2:
        records = {n: d for n, d in records.items() if n not in ("archive_format", "constants.pkl")}
    if fate != 1:
        records["data.pkl" if fate == 3 else target] = changed
    return archive_of(records)


FAMILIES: dict[str, tuple[int, Callable[[Random], bytes]]] = {
    "archive": (8, odd_archive),
    "records": (3, odd_records),
    "pickle": (8, odd_pickle),
    "program": (4, odd_program),
    "model": (3, odd_model),
    "state dict": (2, odd_state),
    "safetensors": (4, odd_safetensors),
    "bytes": (18, odd_bytes),
}
"""The families of mutants, with the number of each per 50."""


def mutant(rng: Random) -> tuple[str, bytes]:
    names = list(FAMILIES)
    family = rng.choices(names, [FAMILIES[name][0] for name in names])[0]
    return family, FAMILIES[family][1](rng)
