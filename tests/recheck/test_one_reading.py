"""The checker refuses in one line whatever it could read differently from torch: it once did, with each of these files."""

import io
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.serialization import config

from archives import (
    EMPTY_ORDERED,
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
    with_pickle,
)
from readings import by_checker, by_torch, differences
from verify.recheck.archives import archive_in
from verify.recheck.weight_files import Rejected, layers_in, numbers

FOUR = struct.pack("<4f", 1, 2, 3, 4)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "m.pt"


def refused(data: bytes, reason: str) -> None:
    """The checker refuses it with one line that says why, and not that it is truncated."""
    with pytest.raises(Rejected, match=reason) as caught:
        by_checker(data)
    assert str(caught.value).isprintable()
    assert "truncated" not in str(caught.value)


def read_alike(data: bytes) -> None:
    assert differences(by_torch(data), by_checker(data)) == []


def state(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((1, 1, 2, 2), value)}


# ---- archives ----------------------------------------------------------------------------------------------------------


def directories(zip64_first: bool, offset: int) -> bytes:
    """Two models in one archive: the zip64 record points to one directory, the 32-bit end record to the other."""
    archives = [split(taken_apart(saved(state(value)))) for value in (1.0, 1001.0)]
    (a_records, a_entries, a_ends), (b_records, b_entries, b_ends) = archives if zip64_first else archives[::-1]
    shift = len(joined(b_records))
    for entry in a_entries:
        entry.fields["at"] += shift
    body = joined([*b_records, *a_records])
    a_ends[2].fields |= {"at": len(body), "size": len(joined(a_entries))}
    b_ends[0].fields |= {"at": len(body) + len(joined(a_entries)), "size": len(joined(b_entries))}
    a_ends[1].fields["at"] = offset
    return body + joined([*a_entries, *b_entries, b_ends[0], a_ends[1], a_ends[2]])


@pytest.mark.parametrize("zip64_first", [True, False])
@pytest.mark.parametrize("offset", [1, 0, 100])
def test_row_59_two_central_directories(zip64_first: bool, offset: int) -> None:
    """zipfile takes the zip64 record that precedes the locator; torch follows the locator."""
    data = directories(zip64_first, offset)
    assert by_torch(data)["weight"].flatten()[0] == (1.0 if zip64_first else 1001.0)
    refused(data, "zip64|directory")


def changed(kind: str, which: int = 0, content: Any = None, **fields: Any) -> bytes:
    """An ordinary file with only fields of one header changed."""
    pieces = taken_apart(saved(content or state(1.0)))
    [p for p in pieces if p.kind == kind][which].fields.update(fields)
    return joined(pieces)


FIELDS: dict[tuple[str, int], list[dict[str, Any]]] = {
    ("end", 0): [{"at": 7}, {"count": 3}, {"here": 3}, {"size": 99}, {"disk": 1, "first": 1}, {"notes": 4}],
    ("locator", 0): [{"at": 0}, {"disks": 2}, {"sig": b"PK\6\0"}],
    ("zip64", 0): [{"count": 3}, {"length": 45}, {"disk": 1, "first": 1}, {"sig": b"PK\6\0"}],
    ("central", 0): [{"at": 64}],
    ("central", 4): [
        *({"size": 15, "packed": 15}, {"method": 8}, {"flags": 0x809}, {"flags": 0x828}),
        {"outer": 0x10},  # a folder, so torch reads no bytes and returns uninitialised memory
        *({"disk": 1}, {"notes": 2}, {"crc": 5}),
    ],
    ("local", 4): [
        *({"flags": 0x800}, {"method": 8}, {"size": 16}, {"crc": 1}, {"names": 13}, {"extras": 30}),
        {"sig": b"PK\3\0"},
    ],
    ("descriptor", 4): [{"size": 15}, {"crc": 15}, {"sig": b"PK\7\0"}],
}
HEADERS = [(*header, fields) for header, changes in FIELDS.items() for fields in changes]


@pytest.mark.parametrize(("kind", "which", "fields"), HEADERS, ids=str)
def test_row_59_headers_that_contradict_each_other(kind: str, which: int, fields: dict[str, Any]) -> None:
    refused(changed(kind, which, **fields), "zip|CRC|record|archive")


def test_row_59_every_byte_is_accounted_for() -> None:
    """Only what torch.save writes may be between, before or behind the records."""
    pieces = taken_apart(saved(state(1.0)))
    for at in range(len(pieces) + 1):
        for filling in (b"\0", b"PK\3\4", bytes(pieces[0])):
            data = joined(pieces[:at]) + filling + joined(pieces[at:])
            with pytest.raises(Rejected):
                by_checker(data)
    for at, piece in enumerate(pieces):
        if piece.kind in ("local", "central"):
            extra = [*pieces[:at], piece.copy(), *pieces[at + 1 :]]
            extra[at].extra = b"XX\2\0hi" + piece.extra
            refused(joined(repaired(extra)), "extra|alignment")
            extra[at].extra = b"FB\2\0hi"
            refused(joined(repaired(extra)), "extra|alignment")


def test_row_59_records_in_another_order_than_their_entries() -> None:
    records, entries, ends = split(taken_apart(saved(state(1.0))))
    data = joined([*records, *entries[::-1], *ends])
    assert torch.equal(by_torch(data)["weight"], state(1.0)["weight"])
    refused(data, "one after another")
    data = joined(repaired([*records, *entries[:-1], *ends]))
    refused(data, "one after another|directory|zip")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, FOUR) for name in ("DATA/0", "Data/0", "DATA.pkl", "constants.pkl", "data/0 ", "data/0\0")),
        *(("data/", b""), ("Version", b"3\n"), ("code/more.py", b"pass"), (".data/version", b"3\n")),
    ],
)
def test_row_59_a_record_that_torch_save_does_not_write(name: str, content: bytes) -> None:
    held = records_in(saved(state(1.0)))
    refused(archive_of({**held, name: content}), "which torch.save does not write|.data/version")


def test_row_59_a_record_twice_or_in_another_folder(place: Path) -> None:
    records = [(f"archive/{name}", data) for name, data in records_in(saved(state(1.0))).items()]
    other = [("archive/data/0", b"\0" * 16), ("ARCHIVE/data/0", b"\0" * 16), ("b/data/0", b"\0" * 16), ("data/0", FOUR)]
    for more in other:
        refused(packed([*records, more]), "record|folder")
        refused(packed([more, *records]), "record|folder")
    in_none = packed([(name.replace("archive", ""), data) for name, data in records])
    refused(in_none, "folder")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("version", content) for content in (None, b"3 or 4", b"99\n")),
        *(("byteorder", b"big"), ("byteorder", b"middle"), (".storage_alignment", b"6_4")),
        *((".format_version", b"2"), (".data/serialization_id", b"\xff")),
    ],
)
def test_row_59_what_says_how_to_read(name: str, content: bytes | None) -> None:
    records = records_in(saved(state(1.0)))
    kept = {n: d if n != name else content for n, d in records.items()}
    data = archive_of({n: d for n, d in kept.items() if d is not None})
    refused(data, name.rpartition("/")[2].strip(".") + "|little")


def test_row_59_storages_that_torch_would_look_for_elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On request, torch computes the positions of storages from their order in the pickle, without looking."""
    content = {"a.weight": state(1.0)["weight"], "b.weight": state(2.0)["weight"]}
    records = records_in(saved(content))
    order = ("data.pkl", ".format_version", ".storage_alignment", "byteorder", "data/1", "data/0")
    data = archive_of({name: records[name] for name in (*order, *records)})
    place.write_bytes(data)
    with config.patch("load.calculate_storage_offsets", True):  # type: ignore[attr-defined]
        other = torch.load(place, mmap=True, weights_only=True)
    assert not torch.equal(other["b.weight"], by_torch(data)["b.weight"])
    refused(data, "where torch works out")
    del records[".format_version"]  # as older versions of torch wrote, in any order
    read_alike(archive_of({**records, **dict(sorted(records.items()))}))


@pytest.mark.parametrize("align", [1, 8, 64, 4096])
def test_whatever_torch_writes_is_read(align: int, place: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 1).half())
    with config.patch("save.storage_alignment", align):  # type: ignore[attr-defined]
        for content in (net, net.state_dict(), {"weight": torch.ones(0, 1, 3, 3)}):
            read_alike(saved(content))
            torch.save(content, place)  # in a folder named after the file
            read_alike(place.read_bytes())


@pytest.mark.parametrize("leave", [(), ("byteorder",), (".data/serialization_id", "byteorder")])
def test_what_earlier_versions_of_torch_wrote_is_read(leave: tuple[str, ...]) -> None:
    """Files without records that came later, with storages in string order of their names, or with other format versions."""
    state_dict = nn.Sequential(*(nn.Conv1d(1, 1, 1) for _ in range(6))).state_dict()
    records = records_in(saved(state_dict))
    early = [name for name in records if not name.startswith(".") or name == ".data/serialization_id"]
    order = [name for name in sorted(early) if name not in leave]
    assert order.index("data/10") < order.index("data/2")
    for version in (b"1\n", b"2\n", b"3\n"):
        read_alike(packed((f"net/{n}", version if n == "version" else records[n]) for n in order))


def test_a_file_without_checksums_is_told_as_such() -> None:
    torch.serialization.set_crc32_options(False)
    try:
        refused(saved(state(1.0)), "without checksums")
    finally:
        torch.serialization.set_crc32_options(True)


class Sparse:
    """A file that torch writes to, which stores zeros in no space."""

    def __init__(self, path: Path):
        self.file = path.open("wb")

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), 2**24):
            block = bytes(view[start : start + 2**24])
            if any(block[:: len(block) // 64 + 1]) or any(block):
                self.file.write(block)
            else:
                self.file.seek(len(block), 1)
        return len(view)

    def flush(self) -> None:
        self.file.flush()


@pytest.mark.deep
@pytest.mark.parametrize("sizes", [(3, 2**30 + 5, 7), (2**30 - 1, 5, 7)])
def test_archives_of_more_than_4_gib_are_read(sizes: tuple[int, ...], place: Path) -> None:
    """With zip64 fields for large records, for records beyond 4 GiB, and at that limit."""
    stream: Any = Sparse(place)
    tensors = {f"{n}.weight": torch.zeros(1, 1, size) for n, size in enumerate(sizes)}
    tensors["0.weight"][..., 0], tensors["2.weight"][..., :] = 5.0, torch.arange(7.0)
    torch.save(tensors, stream)
    stream.flush()
    stream.file.close()
    assert place.stat().st_blocks * 512 < 2**26 < 2**32 <= place.stat().st_size
    with place.open("rb") as file:
        layers = layers_in(file, "f")
        assert numbers(layers["2"].tensors["weight"].read(), "float32").flatten().tolist() == [*range(7)]
        if sizes[0] == 3:
            assert numbers(layers["0"].tensors["weight"].read(), "float32").flatten().tolist() == [5, 0, 0]


@pytest.mark.deep
def test_archives_of_more_than_65535_records_are_read(place: Path) -> None:
    writer = torch._C.PyTorchFileWriter(str(place))
    writer.write_record("data.pkl", b"\x80\2}.", 4)
    for n in range(66_000):
        writer.write_record(f"data/{n}", b"1234", 4)
    writer.write_end_of_file()
    with place.open("rb") as file:
        assert len(archive_in(file).records) > 66_000


# ---- pickles -----------------------------------------------------------------------------------------------------------


def test_row_60_one_storage_with_two_types_or_sizes() -> None:
    """torch keeps the first and ignores the second."""
    two = [(text("a.weight"), tensor(storage(kind="Half"))), (text("b.weight"), tensor(storage(kind="BFloat16")))]
    data = with_pickle(program(table(*two)), FOUR[:8])
    assert by_torch(data)["b.weight"].dtype == torch.float16
    refused(data, "storage '?0'? .*two")
    two = [(text("a.weight"), tensor(storage(count=4))), (text("b.weight"), tensor(storage(count=8)))]
    refused(with_pickle(program(table(*two)), FOUR), "storage '?0'? .*two|bytes")


def test_row_60_the_storages_are_those_of_the_tensors() -> None:
    one = program(table((text("weight"), tensor(storage()))))
    read_alike(with_pickle(one, FOUR))
    refused(with_pickle(one, FOUR, FOUR), "data/1")
    refused(with_pickle(one), "storage '0' .* there is no such record")
    refused(with_pickle(one, FOUR + b"\0"), "storage '?0'?.*")
    for key in ("00", "x", "", "0 ", "../0", "0\n"):
        refused(with_pickle(program(table((text("weight"), tensor(storage(key))))), FOUR), "storage")


def test_a_storage_to_which_torch_gives_no_numbers() -> None:
    data = with_pickle(program(table((text("weight"), tensor(storage(location="meta"))))), FOUR)
    assert torch.load(io.BytesIO(data), weights_only=True)["weight"].is_meta
    refused(data, "on the device meta")


def with_child(name: str) -> nn.Module:
    """Two convolutions under one path."""
    model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 1, 2, bias=False)))
    model[0]._modules[name] = nn.Conv2d(1, 1, 2, bias=False)  # type: ignore[index]
    return model


def test_row_61_two_layers_under_one_path() -> None:
    dotted = nn.Sequential(nn.Sequential(nn.Conv2d(1, 1, 2)))
    dotted._modules["0.0"] = nn.Conv2d(1, 1, 2)
    for model in (dotted, with_child(""), with_child("."), with_child("a."), with_child("a.b")):
        refused(saved(model), "named")
    root = nn.Sequential(nn.Conv2d(1, 1, 2))
    root._modules[""] = nn.Conv2d(1, 1, 2)
    assert len([path for path, module in root.named_modules() if path == ""]) == 2
    refused(saved(root), "named")


@pytest.mark.parametrize("part", ["_parameters", "_buffers"])
@pytest.mark.parametrize("name", ["", "0.weight", "a."])
def test_row_61_a_tensor_that_takes_the_name_of_anothers(part: str, name: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 2))
    getattr(model, part)[name] = nn.Parameter(torch.zeros(1, 1, 2, 2))
    refused(saved(model), "named")


def test_row_61_one_name_for_two_things() -> None:
    for part in ("_parameters", "_buffers"):
        model = nn.Sequential(nn.Conv2d(1, 1, 2))
        getattr(model, part)["0"] = nn.Parameter(torch.zeros(1))
        refused(saved(model), "two things|twice")
    model = nn.Sequential(nn.Conv2d(1, 1, 2), nn.Conv2d(1, 1, 2))
    vars(model)["0"] = model[1]  # what self.0 would be
    refused(saved(model), "two things|twice")


@pytest.mark.parametrize("other", [".weight", "a..weight", ".a.weight", "", "a.", "."])
def test_row_61_names_in_a_state_dict(other: str) -> None:
    """One of "weight" and ".weight" hid the other."""
    refused(saved({"a.weight": state(1.0)["weight"], other: state(2.0)["weight"]}), "name")


def test_row_61_a_name_that_a_dict_is_given_twice() -> None:
    """In a checkpoint, it once hid a whole network."""
    twice = b"}(" + text("weight") + tensor(storage()) + b"u(" + text("weight") + tensor(storage()) + b"u"
    refused(with_pickle(program(twice), FOUR), "one key twice")
    checkpoint = table((text("state_dict"), twice), (text("epoch"), b"K\1"))
    refused(with_pickle(program(checkpoint), FOUR), "one key twice")


def test_row_61_a_convolution_with_children() -> None:
    conv = nn.Conv2d(1, 1, 2)
    conv.add_module("more", nn.Conv2d(1, 1, 2))
    with pytest.raises(Rejected, match="modules of its own"):
        by_checker(saved(nn.Sequential(conv)))


ZERO = struct.pack("<4f", 0, 0, 0, 0)
ITEM = number(0) + b"G" + struct.pack(">d", 1000.0) + b"s"
ACTS = {
    "an item": (b"h\0" + ITEM, "item|into"),
    "items": (b"h\0(" + ITEM[:-1] + b"u", "item|into"),
    "state of its class": (named("torch.nn.modules.conv", "Conv2d") + table((text("_modules"), b"}")) + b"b", "state"),
    "state": (b"h\0" + table((text("dtype"), number(1))) + b"b", "state"),
    "an element": (b"h\0" + number(1) + b"a", "item"),
    "elements": (b"h\0(" + number(1) + b"e", "item"),
    "a call": (called(named("torch", "Tensor"), b"h\0"), "call|tensor|Tensor"),
    "a call of it": (b"h\0" + row(number(1)) + b"R", "call"),
}


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("what", ["storage", "tensor"])
def test_row_62_nothing_is_done_to_a_storage_or_tensor(name: str, what: str) -> None:
    act, reason = ACTS[name]
    value = tensor(storage() + b"q\0") if what == "storage" else tensor(storage()) + b"q\0"
    pickle = program(table((text("weight"), value), (text("epoch"), act)))
    refused(with_pickle(pickle, FOUR), reason)


SWAP = named("torch._utils", "_rebuild_device_tensor_from_cpu_tensor")


def test_row_62_a_tensor_is_given_other_numbers() -> None:
    """torch's own functions for tensor subclasses can set the data of an existing tensor elsewhere."""
    weight, other = tensor(storage()) + b"q\0", tensor(storage("1")) + b"q\1"
    same = row(b"h\0", named("torch", "float32"), text("cpu"), b"\x89")
    data = table((text("data"), b"h\1"))
    act = called(named("torch._tensor", "_rebuild_from_type_v2"), SWAP, named("torch", "Tensor"), same, data)
    model = table((text("weight"), weight))
    whole = table((text("model"), model), (text("other"), other), (text("act"), act))
    data = with_pickle(program(whole), ZERO, FOUR)
    assert by_torch(data)["model"]["weight"].sum() == 10
    refused(data, "_rebuild_from_type_v2")


def test_row_62_a_parameter_whose_attributes_are_its_numbers() -> None:
    """Setting ``real`` of a tensor sets its storage's numbers, which other tensors share."""
    weight = tensor(storage()) + b"q\0"
    real = table((text("real"), b"G" + struct.pack(">d", 1000.0)))
    act = called(named("torch._utils", "_rebuild_parameter_with_state"), b"h\0", b"\x89", EMPTY_ORDERED, real)
    whole = table((text("model"), table((text("weight"), weight))), (text("act"), act))
    data = with_pickle(program(whole), FOUR)
    assert by_torch(data)["model"]["weight"].sum() == 4000
    refused(data, "_rebuild_parameter_with_state")


@pytest.mark.parametrize("name", ["items", "keys", "__class__"])
def test_row_62_a_dict_whose_own_attributes_hide_its_items(name: str) -> None:
    shadow = EMPTY_ORDERED + b"q\0" + b"(" + text("weight") + tensor(storage()) + b"u"
    shadow += table((text(name), named("collections", "OrderedDict"))) + b"b"
    data = with_pickle(program(shadow), FOUR)
    refused(data, "_metadata|attribute")
    if name == "items":
        assert list(by_torch(data).items()) == []


def test_row_62_a_layer_that_is_made_with_arguments(place: Path) -> None:
    """Calling its class creates parameters that the state need not name."""
    records = records_in(saved(nn.Conv2d(1, 1, 2)))
    new = b"ctorch.nn.modules.conv\nConv2d\nq\0)\x81"
    assert new in records["data.pkl"]
    for other in (row(number(1), number(1), number(2)) + b"R", row(number(1)) + b"\x81", b")R"):
        pickle = records["data.pkl"].replace(new, new[:-2] + other)
        refused(archive_of({**records, "data.pkl": pickle}), "Conv2d")


def test_a_name_is_read_letter_by_letter(place: Path) -> None:
    """pickletools would take ``\\x43onv2d`` for Conv2d."""
    records = records_in(saved(nn.Conv2d(1, 1, 2)))
    data = archive_of({**records, "data.pkl": records["data.pkl"].replace(b"\nConv2d\n", b"\n\\x43onv2d\n")})
    with pytest.raises(pickle.UnpicklingError):
        by_torch(data)
    assert [layer.kind for layer in by_checker(data).values()] != ["Conv2d"]


PICKLES = [program(b"K\1", b"K\2"), b"\x80\2K\1.K\2.", b"\x80\4" + program(b"}")[2:], program(b"\x80\2", b"}"), b"}."]


@pytest.mark.parametrize("content", [*PICKLES, program(b"}", b"0", b"}"), program(b"}(K\1.")])
def test_a_pickle_is_the_kind_of_program_that_torch_save_writes(content: bytes) -> None:
    refused(with_pickle(content), "pickle")
