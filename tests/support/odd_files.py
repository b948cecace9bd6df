"""Structured mutants of model files: what an attacker or a broken program might make of files by torch.save and safetensors.

Every mutant is a whole file.  Records of its archive are exchanged, renamed or lost; its pickle is changed opcode by opcode; its
safetensors header as JSON or as text; bytes are changed anywhere; or an odd model is saved in the ordinary way.
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
    archive_of,
    called,
    named,
    number,
    records_in,
    row,
    saved,
    storage,
    table,
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
    model, x = nn.Sequential(nn.Conv2d(1, 2, 3)).eval(), torch.ones(2, 1, 5, 5)
    program, script = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.export.save(torch.export.export(model, (x,)), program)
        torch.jit.save(torch.jit.trace(model, x), script)
    return {"pt2": program.getvalue(), "TorchScript": script.getvalue()}


ZIPS = ("module", "attention", "state", "views", "wrapped", "bare")


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
    return archive_of(records, rng.choice(["archive/", "m/", "a.b/", "", "/"]))


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


def pickle_changed(steps: list[bytes], rng: Random) -> None:
    """Remove, duplicate, exchange or insert one opcode or a few, or change an argument."""

    def of(codes: bytes) -> list[int]:
        return [n for n, step in enumerate(steps) if step[:1] in codes]

    def any_text() -> str:
        return steps[rng.choice(texts)][5:].decode()

    at, other = rng.randrange(1, len(steps)), rng.randrange(1, len(steps))
    texts, numbers, names = map(of, (b"X", b"KMJ", b"c"))
    gets = [steps[n] for n in of(b"hj")]
    puts = [(b"h" if steps[n][:1] == b"q" else b"j") + steps[n][1:] for n in of(b"qr")]
    match rng.randrange(10):
        case 0:
            del steps[at : at + rng.choice((1, 1, 2, 5))]
        case 1:
            steps[at:at] = steps[at : at + rng.choice((1, 2, 5, 20))]
        case 2:
            steps[at], steps[other] = steps[other], steps[at]
        case 3 if texts:
            old = any_text()
            new = [any_text(), "", ".", "a.b", f"{old}.x", old.upper(), "0", "1", "weight", "_modules", "items"]
            steps[rng.choice(texts)] = text(rng.choice(new))
        case 4 if numbers:
            small, any_number = b"K" + bytes([rng.randrange(12)]), number(rng.choice((-1, 0, 1, 2, 4, 2**31 - 1)))
            steps[rng.choice(numbers)] = rng.choice([small, any_number])
        case 5 if names:
            old = rng.choice(names)
            coded = steps[old].replace(b"C", b"\\x43") if rng.random() < 0.3 else steps[rng.choice(names)]
            steps[old] = rng.choice([coded, rng.choice(GLOBALS)])
        case 6:
            steps.insert(at, rng.choice([*SIMPLE, *OPERATIONS, *GLOBALS, *(gets or [b"N"])]))
        case 7 if puts:
            value = rng.choice([b"K\0", b"G" + struct.pack(">d", 1000.0), rng.choice(puts), b"}"])
            data = table((text("data"), rng.choice(puts)))
            acts = [b"K\0" + value + b"s0", value + b"a0", value + b"b0", b"\x85R0", data + b"b0"]
            steps.insert(at, rng.choice(puts) + rng.choice([rng.choice(acts), rng.choice(acts)[:-1]]))
        case 8 if puts:
            steps[at] = rng.choice(puts)
        case _:
            steps.insert(at, value_made(rng, puts))


def value_made(rng: Random, puts: list[bytes]) -> bytes:
    """A value to insert: a tensor of some storage, or a call of a name that torch knows with earlier values."""
    thing = rng.choice(puts) if puts else b"N"
    same = row(thing, named("torch", "float32"), text("cpu"), b"\x89")
    key, kind, count = str(rng.randrange(4)), rng.choice("Float Half BFloat16 Int".split()), rng.choice((1, 4, 8, 36))
    values = [tensor(storage(key, kind, count))]
    values.append(called(rng.choice(GLOBALS), thing))
    values.append(called(rng.choice(GLOBALS), thing, b"\x89", EMPTY_ORDERED))
    data = table((text("data"), rng.choice(puts or [b"N"])))
    values.append(called(GLOBALS[13], GLOBALS[12], named("torch", "Tensor"), same, data))
    values.append(rng.choice(GLOBALS) + b")\x81" + table((text("weight"), thing)) + b"b")
    return rng.choice(values)


def odd_pickle(rng: Random) -> bytes:
    """A correct archive whose pickle was changed in one to three places."""
    records = records_in(files()[rng.choice(ZIPS)])
    steps = instructions(records["data.pkl"])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        pickle_changed(steps, rng)
    records["data.pkl"] = b"".join(steps)
    return archive_of(records)


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
    "records": (5, odd_records),
    "pickle": (18, odd_pickle),
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
