"""What torch.load reads is read as it reads it, and what is beside a model does not matter."""

import argparse
import collections
import dataclasses
import datetime
import enum
import functools
import pathlib
import re
import time
import warnings
import zipfile
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_nasty_payloads import PACKED
from torch import Tensor, nn
from torch.nn.utils import weight_norm as old_weight_norm
from torch.nn.utils.parametrizations import weight_norm

import construct
from archives import (
    EMPTY_ORDERED,
    archive_of,
    called,
    legacy,
    named,
    number,
    program,
    records_in,
    row,
    saved,
    storage,
    table,
    tensor,
    text,
    with_pickle,
)
from commands import Command, bounded
from construct.errors import BadModelFile
from construct.files.reading import read
from readings import alike, by_torch, refusal, same, written


class Net(nn.Sequential):
    """A network of a class of its own."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


class Kind(enum.Enum):
    A = 1


@dataclasses.dataclass
class Config:
    kind: Kind = Kind.A
    when: Any = None


class Table(dict):  # type: ignore[type-arg]
    """A dict of a class of its own."""


class Row(list):  # type: ignore[type-arg]
    """A list of a class of its own."""


class Easy(dict):  # type: ignore[type-arg]
    """A dict whose items are its attributes, too."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self[name] = value


class OwnTensor(Tensor):
    """A tensor of a class of its own."""


def easy() -> Easy:
    config = Easy()
    config.width = 3
    return config


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "m.pt"


ZONED = datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Paris"))
BESIDE: dict[str, Callable[[], Any]] = {
    "an object in an object": lambda: argparse.Namespace(data=pathlib.PurePosixPath("/x"), more=argparse.Namespace()),
    "a dataclass with an enum": lambda: Config(when=ZONED),
    "a zoned datetime": lambda: ZONED,
    "a datetime in UTC": lambda: datetime.datetime.now(datetime.UTC),
    "an enum as a key": lambda: {Kind.A: [Kind.A]},
    "numpy": lambda: [np.float64(3), np.float32(1), np.ones(3), np.random.default_rng(0)],
    "containers": lambda: [
        collections.deque([1], maxlen=2),
        collections.defaultdict(list, {1: [2]}),
        {1, 2},
        frozenset([1]),
    ],
    "classes with items": lambda: [Table(a=Row([1, Table()])), Row()],
    "items that are attributes": easy,
    "a tensor": lambda: torch.ones(2).as_subclass(OwnTensor),
    "functions": lambda: [functools.partial(print, 1), time.time, Config],
    "a module": lambda: argparse.Namespace(teacher=nn.Linear(2, 2)),
    "lists of 10^40 leaves": lambda: functools.reduce(lambda inner, _: [inner] * 10, range(40), []),
}


@pytest.mark.parametrize("thing", BESIDE)
def test_row_74_what_is_beside_the_model_does_not_matter(thing: str, place: Path) -> None:
    net = Net()
    for model in (net.state_dict(), net):
        written({"state_dict": model, "beside": BESIDE[thing]()}, place)
        assert same(construct.load(place, model=Net()), net)


@pytest.mark.parametrize("beside", [pathlib.PurePosixPath("/x"), Config()])
def test_row_74_the_command_reads_what_load_reads(beside: Any, from_conv: Command) -> None:
    Path("net.py").write_text("from test_torch_files import Net\n")
    torch.save({"state_dict": Net().state_dict(), "beside": beside}, "m.pt")
    assert "not allowed" in from_conv.refuses("m.pt")
    assert "its key 'state_dict' was used" in from_conv.prints("m.pt", "--model-file", "net.py:Net")
    torch.save(Net(), "whole.pt")
    from_conv.prints("whole.pt", "--model-file", "net.py:Net")


def test_row_12_a_key_chooses(from_conv: Command) -> None:
    Path("net.py").write_text("from test_torch_files import Net\n")
    plain, averaged = Net(), Net()
    torch.save({"params": plain.state_dict(), "params_ema": averaged.state_dict(), "epoch": 3}, "m.pt")
    assert same(construct.load("m.pt", model=Net()), plain)
    assert same(construct.load("m.pt", model=Net(), key="params_ema"), averaged)
    words = ["m.pt", "--model-file", "net.py:Net", "--no-certify", "--force"]
    taken = "its key 'params' was used; it has 'params', 'params_ema', 'epoch' (the option key chooses)"
    assert taken in from_conv.prints(*words)
    assert "its key 'params_ema' was used; it has 'params', " in from_conv.prints(*words, "--key", "params_ema")
    assert "no key 'ema'; it has 'params', 'params_ema', 'epoch'" in from_conv.refuses(*words, "--key", "ema")
    torch.save({"nets": {"g": plain, "d": averaged}}, "m.pt")
    assert "(choose one with --key)" in from_conv.refuses(*words)
    assert same(construct.load("m.pt", model=Net(), key="nets/d"), averaged)


class Renaming(nn.Module):
    """Renames keys while it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self._register_load_state_dict_pre_hook(self.rename)

    def rename(self, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
        for name in [name for name in state if name.startswith(f"{prefix}net.body.")]:
            state[f"{prefix}conv.{name.removeprefix(f'{prefix}net.body.')}"] = state.pop(name)


def old_normed() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(old_weight_norm(nn.Conv2d(1, 2, 3)))


BODY = {"net.body.weight": torch.rand(2, 1, 3, 3), "net.body.bias": torch.rand(2)}
STATES: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, Tensor]]]] = {
    "no num_batches_tracked": (Net, lambda: {k: v for k, v in Net().state_dict().items() if "num_batches" not in k}),
    "weight_g and weight_v": (
        lambda: nn.Sequential(weight_norm(nn.Conv2d(1, 2, 3))),
        lambda: dict(old_normed().state_dict()),
    ),
    "a hook that renames": (Renaming, lambda: dict(BODY)),
    "a hook inside": (lambda: nn.Sequential(Renaming()), lambda: {f"0.{k}": v for k, v in BODY.items()}),
    "a hook and a wrapper": (Renaming, lambda: {f"module.{k}": v for k, v in BODY.items()}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["pt", "safetensors"])
@pytest.mark.parametrize("name", STATES)
def test_row_74_what_load_state_dict_reads(name: str, form: str, dtype: torch.dtype, tmp_path: Path) -> None:
    build, make = STATES[name]
    state = {key: value.to(dtype) if value.is_floating_point() else value for key, value in make().items()}
    wanted = build().to(dtype)
    wanted.load_state_dict({key.removeprefix("module."): value for key, value in state.items()}, strict=True)
    path = tmp_path / f"m.{form}"
    save_file(state, path) if form == "safetensors" else torch.save(state, path)
    assert same(construct.load(path, model=build()), wanted)


class WithState(nn.Module):
    """Has an extra state, and a number in its state dict."""

    def __init__(self, version: int = 1, count: int = 0) -> None:
        super().__init__()
        self.conv, self.version, self.count = nn.Conv2d(1, 2, 3), {"version": [version]}, count

    def get_extra_state(self) -> Any:
        return self.version

    def set_extra_state(self, state: Any) -> None:
        self.version = state

    def _save_to_state_dict(self, state: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(state, prefix, keep_vars)
        state[f"{prefix}count"] = self.count

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        self.count = state.pop(f"{prefix}count")
        super()._load_from_state_dict(state, prefix, *others)


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {f"module.{k}": v for k, v in state.items()}])
@pytest.mark.parametrize("beside", [None, Config()])
def test_row_74_a_state_dict_that_holds_more_than_tensors(wrap: Any, beside: Any, place: Path) -> None:
    saved_net = nn.Sequential(WithState(2, 7))
    written({"state_dict": wrap(saved_net.state_dict()), "beside": beside}, place)
    net: Any = construct.load(place, model=nn.Sequential(WithState()))
    assert (net[0].version, net[0].count) == ({"version": [2]}, 7)
    assert torch.equal(net[0].conv.weight, saved_net[0].conv.weight)  # type: ignore[arg-type]
    # What stands in for an object is not given to the network.
    saved_net[0].version = Config()  # type: ignore[assignment]
    assert "does not fit" in refusal(written(saved_net.state_dict(), place), model=nn.Sequential(WithState()))


def test_row_74_lazy_buffers(place: Path) -> None:
    net = Net()
    lazy = nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d())
    assert same(construct.load(written(net.state_dict(), place), model=lazy), net)


def allowed_by(line: str) -> list[str]:
    """What a refusal says to allow."""
    found = re.search(r"allow=(\[[^]]*\])", line)
    assert found, line
    return re.findall(r"'([^']+)'", found[1])


REMEDIED: dict[str, Callable[[], Any]] = {
    "numpy": lambda: [np.float64(3), np.float32(1), np.ones(3), np.int64(2)],
    "deque": lambda: collections.deque([1, 2], maxlen=3),
    "object": lambda: argparse.Namespace(data=pathlib.PurePosixPath("/x")),
    "dict": lambda: Table(a=1),
    "list": lambda: Row([1]),
    "datetime": lambda: datetime.datetime.now(datetime.UTC),
    "defaultdict": lambda: collections.defaultdict(list, {1: [2]}),
    "classes of builtins": lambda: [frozenset([1]), range(3), slice(1, 2), int, str],
    "a dict with attributes": easy,
}


@pytest.mark.parametrize("name", REMEDIED)
def test_row_75_what_a_refusal_says_to_allow_is_read_then(name: str, place: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3))
    allow = allowed_by(refusal(written({"model": net, "beside": REMEDIED[name]()}, place)))
    assert alike(construct.load(place, allow=allow), net)
    net.beside = REMEDIED[name]() if name != "numpy" else np.float64(3)  # type: ignore[assignment]
    again: Any = construct.load(written(net, place), allow=allow)
    assert (type(again.beside), again.beside) == (type(net.beside), net.beside)
    if name == "a dict with attributes":
        assert again.beside.width == 3
    if name == "deque":
        assert again.beside.maxlen == 3


def test_row_75_what_an_allowed_function_makes(place: Path) -> None:
    """Its class is not named in the file, so only torch's refusal tells it."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3))
    written({"model": net, "beside": np.random.RandomState(0)}, place)
    allow = allowed_by(refusal(place))
    assert alike(construct.load(place, allow=allow), net)


def test_row_75_nothing_that_cannot_be_allowed_is_offered(place: Path) -> None:
    for thing in (re.compile("a"), time.time):
        assert "allow=" not in refusal(written({"model": Net(), "beside": thing}, place))


@pytest.mark.parametrize("options", [{"model": Net()}, {"layers": True}], ids=["model", "layers"])
def test_row_75_a_module_with_tensors_of_a_foreign_class(options: dict[str, Any], place: Path) -> None:
    net = Net()
    net[1].running_mean = net[1].running_mean.as_subclass(OwnTensor)  # type: ignore[union-attr]
    assert "of a class of their own, OwnTensor (allow it" in refusal(written(net, place), **options)
    assert alike(construct.load(place, allow=allowed_by(refusal(place))), net)


def test_row_75_a_list_with_attributes(place: Path) -> None:
    """torch adds items to plain lists alone, and these have no attributes."""
    row = Row([1])
    row.name = "x"  # type: ignore[attr-defined]
    line = refusal(written({"state_dict": Net().state_dict(), "beside": row}, place), model=Net())
    assert "a list of a class of its own has attributes, too (save the state dict alone" in line


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_row_75_protocols_of_pickle(protocol: int, old: bool, place: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3))
    options = {"pickle_protocol": protocol, "_use_new_zipfile_serialization": not old}
    written(saved(net.state_dict(), **options), place)
    if protocol == 0:  # torch reads nothing of it, trusted or not
        assert "trust" not in refusal(place, model=net)
    else:
        assert same(construct.load(place, model=net, trust=True), net)
    if protocol in (2, 3):
        assert same(construct.load(place, model=net), net)
        return
    line = refusal(place, model=net)
    assert f"protocol {protocol if protocol > 1 else '0 or 1'}, and without running code torch reads only" in line
    assert "save it with torch.save and without pickle_protocol" in line
    line = refusal(written(saved(net, **options), place))
    assert "without running code torch reads only" in line
    assert protocol < 2 or "not allowed" not in line  # all of its classes are torch's


def test_row_75_a_network_with_classes_of_its_own_is_saved(place: Path) -> None:
    net = Net()
    with pytest.raises(BadModelFile, match="could not be read back safely") as caught:
        construct.save(net, place)
    allow = allowed_by(str(caught.value))
    construct.save(net, place, allow=allow)
    assert same(construct.load(place, allow=allow), net)
    stock = construct.to_torch_mha(construct.conv_to_mhsa(nn.Conv2d(1, 2, 3)), grid=(4, 4))
    allow = allowed_by(refusal(written(stock, place)))
    construct.save(stock, place, allow=allow)
    x = torch.rand(1, 1, 4, 4)
    assert torch.equal(construct.load(place, allow=allow)(x), stock(x))


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_row_75_shards_are_made_one_file_as_the_line_says(form: str, from_conv: Command) -> None:
    state = Net().state_dict()
    store: Any = save_file if form == "safetensors" else torch.save
    for n, part in enumerate((list(state)[:3], list(state)[3:]), start=1):
        store({key: state[key] for key in part}, f"model-0000{n}-of-00002.{form}")
    Path(f"model.{form}.index.json").write_text('{"metadata": {}, "weight_map": {}}')
    for name in (f"model.{form}.index.json", f"model-00002-of-00002.{form}"):
        command = re.search(r'the index of its shards \(make one file .* -c "(.*)"\)$', from_conv.refuses(name))
        assert command
        exec(command[1], {})
        path = Path("model.safetensors" if form == "safetensors" else "model.pt")
        assert {*construct.load(path, model=Net()).state_dict()} == {*state}
        path.unlink()
        store({"earlier": torch.ones(1)}, f"model-00003-of-00003.{form}")  # of a model in more shards
    Path("__0_0.distcp").write_bytes(b"\0")
    assert "format_utils dcp_to_torch" in from_conv.refuses("__0_0.distcp")


def test_files_of_earlier_versions_of_ours(place: Path) -> None:
    layer = records_in(saved(construct.convert(nn.Sequential(nn.Conv1d(1, 2, 3), nn.Linear(1, 1)))))
    moved = layer["data.pkl"].replace(b"torch.nn.modules.linear\nLinear\n", b"construct.learnable\nGate\n")
    path = written(archive_of({**layer, "data.pkl": moved}), place)
    line = refusal(path)
    assert "construct.learnable.Gate, of another version of this project (model=Net(), its network" in line
    assert list(construct.load(path, layers=True)) == ["0"]


def test_a_compressed_archive_and_one_without_checksums(place: Path) -> None:
    net = Net()
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in records_in(saved(net.state_dict())).items():
            archive.writestr(f"m/{name}", data)
    assert same(construct.load(place, model=Net()), net)
    torch.serialization.set_crc32_options(False)
    try:
        written(net.state_dict(), place)
    finally:
        torch.serialization.set_crc32_options(True)
    assert same(construct.load(place, model=Net()), net)
    assert "without checksums" in read(place).notes[0]


LINEAR = named("torch.nn.modules.linear", "Linear")
HUGE = b"\x8a\5\0\0\0\0\x10"  # 2^36
CALLS = {
    "a class": called(LINEAR, number(10**6), number(10**6)),
    "a class made with arguments": LINEAR + row(number(10**6)) + b"\x81",
    "ours": called(named("construct.attention", "MHSA"), number(1)),
    "a function": called(named("torch.nn.functional", "relu"), number(1)),
    "bytes": called(named("builtins", "bytearray"), HUGE),
    "bytes of Python 2": called(named("__builtin__", "bytearray"), HUGE),
    "a tensor": called(named("torch", "Tensor"), HUGE),
    "a storage": called(named("torch.storage", "UntypedStorage"), HUGE),
    "tensors of 4 GiB": called(named("torch", "FloatTensor"), number(1), number(1), number(2**15), number(2**15)),
    "a storage beyond the file": tensor(storage(count=2**31 - 1), shape=(1, 1, 1, 1)),
}


@pytest.mark.parametrize("packed", PACKED[1:])
@pytest.mark.parametrize("name", CALLS)
def test_row_15_what_a_pickle_calls_allocates_nothing(name: str, packed: Any, place: Path) -> None:
    written(packed(program(table((text("weight"), CALLS[name])))), place)
    with bounded(20):
        assert refusal(place, model=nn.Linear(1, 1))


NAME = b"cevil\nEvil\n"
SLOW = {
    "an index of 2^29 in a broken pickle": b"}r\0\0\0\x20" + text("a") + NAME + b")Rs\x8c",
    "many names": b"(" + b"".join(b"cevil\nE%d\n" % n for n in range(100_000)) + b"t",
    "names and objects": b"(" + b"".join(b"cevil\nE%d\n" % n for n in range(2000)) + NAME + b")R" + b"}b" * 500_000,
    "many objects": NAME + b"q\0(" + b"h\0)R" * 250_000 + b"t",
    "too long": b"]" + b"Na" * 2**24,
}


@pytest.mark.parametrize("packed", PACKED[1:])
@pytest.mark.parametrize("name", SLOW)
def test_row_15_a_pickle_of_much_work(name: str, packed: Any, place: Path) -> None:
    written(packed(b"\x80\2" + SLOW[name] + b"."), place)
    with bounded(60):
        assert refusal(place, model=nn.Linear(1, 1))


def test_row_15_layers_that_are_counted_but_not_there(place: Path) -> None:
    """torch names the weights of each layer."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LSTM(2, 2, num_layers=2))
    assert alike(construct.load(written(net, place)), net)
    vars(net[1]).update(num_layers=2**40, _all_weights=[[1]])
    with bounded(20):
        assert "recurrent layers without their weights" in refusal(written(net, place))


def shared(kind: type) -> Any:
    """Forty levels of ten times the same."""
    return functools.reduce(lambda inner, _: kind([inner] * 10), range(40), kind())


@pytest.mark.parametrize("kind", [list, tuple])
def test_row_15_ten_to_the_forty_leaves_anywhere(kind: type, place: Path) -> None:
    with bounded(20):
        for spoil in ("kernel_size", "padding", "anything"):
            for inside in (True, False):
                net: Any = nn.Sequential(nn.Conv2d(1, 2, 3))
                vars(net[0] if inside else net)[spoil] = shared(kind)
                assert "hold each other, and have 1.11e+40 values" in refusal(written(net, place))
        net = construct.convert(nn.Sequential(nn.Conv2d(1, 2, 3)))
        for entry in ("stride", "radix", "kind"):
            state = net.state_dict()
            state._metadata["0"]["geometry"][entry] = shared(kind)
            written(state, place)
            for options in ({"layers": True}, {"model": nn.Sequential(nn.Conv2d(1, 2, 3))}):
                assert "hold each other, and have 1.11e+40 values" in refusal(place, **options)
        vars(net[0].geometry)["stride"] = shared(kind)
        assert "hold each other" in refusal(written(net, place))


@pytest.mark.parametrize("name", ["a\0b", "", "'>", "\N{SNOWMAN}", "__class__", "a b", "x" * 10_000])
def test_row_19_names_of_any_kind(name: str, place: Path) -> None:
    payload = f"cmodule\n{name}\n".encode() + b")R"
    line = refusal(written(with_pickle(program(table((text("weight"), payload)))), place))
    assert "not allowed" in line
    assert "holds no attention layer" in refusal(place, layers=True) or "not a state dict" in refusal(
        place, layers=True
    )


@pytest.mark.parametrize("other", [".weight", "a..weight", ".a.weight", "", "a.", "."])
def test_row_61_names_in_a_state_dict(other: str, place: Path) -> None:
    """One of "weight" and ".weight" hid the other."""
    assert "which no path is" in refusal(written({"a.weight": torch.ones(1), other: torch.ones(1)}, place))


@pytest.mark.parametrize("part", ["_parameters", "_buffers", "_modules"])
@pytest.mark.parametrize("name", ["", "0.weight", "a."])
def test_row_61_names_in_a_module(part: str, name: str, place: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 2))
    getattr(model, part)[name] = nn.ReLU() if part == "_modules" else nn.Parameter(torch.zeros(1))
    assert "as no part of a path is" in refusal(written(model, place))


@pytest.mark.parametrize("name", ["bias", "0.bias", "0.w_out"])
def test_what_is_no_tensor_in_the_place_of_one(name: str, place: Path) -> None:
    """If it were ignored, the layer would be read without its bias."""
    assert "must be a tensor" in refusal(written({"0.weight": torch.ones(1, 1, 2, 2), name: 3.0}, place))


@pytest.mark.parametrize("name", ["named_modules", "forward", "eval"])
def test_a_value_in_the_place_of_a_method(name: str, place: Path) -> None:
    """The module read could not be traversed, run, or put in eval mode."""
    layer = nn.Sequential(nn.Conv2d(1, 1, 2))
    layer[0].__dict__[name] = None
    assert "hides a method" in refusal(written(layer, place))


def test_row_62_attributes_of_a_dict_do_not_hide_its_items(place: Path) -> None:
    state = EMPTY_ORDERED + b"(" + text("weight") + tensor(storage()) + b"u"
    state += table((text("items"), named("collections", "OrderedDict"))) + b"b"
    written(with_pickle(program(state), b"\0\0\x80?" * 4), place)
    assert list(by_torch(place.read_bytes()).items()) == []
    content = read(place).content
    assert isinstance(content, dict)
    assert alike(content, by_torch(place.read_bytes()))


def python_2(values: dict[str, Tensor]) -> bytes:
    """A state dict as Python 2 wrote it: byte strings, and an OrderedDict called with a list of pairs."""

    def short(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    pairs, storages = b"", []
    for key, value in values.items():
        name = str(9000 + len(storages))
        parts = (short("storage"), named("torch", "FloatStorage"), short(name), short("cuda:0"), number(value.numel()))
        pairs += b"](" + short(key) + tensor(row(*parts, b"N") + b"Q", tuple(value.shape)) + b"e"
        storages.append((name, value.numel(), value.numpy().tobytes()))
    content = program(named("collections", "OrderedDict"), b"](", pairs, b"e\x85R")
    return legacy(content, *storages[::-1])


def test_row_63_a_state_dict_of_python_2(place: Path) -> None:
    values = {"lin0.weight": torch.rand(1, 6, 1, 1), "lin0.bias": torch.rand(1), "lin1.weight": torch.rand(1, 3, 1, 1)}
    content = read(written(python_2(values), place)).content
    assert isinstance(content, dict)
    assert alike(content, values)
    assert alike(content, by_torch(place.read_bytes()))


def test_row_63_truncated_is_what_lacks_its_end(place: Path) -> None:
    values = {"weight": torch.rand(1, 1, 2, 2)}
    for data in (saved(values), saved(nn.Conv2d(1, 1, 2)), python_2(values)):
        for length in (*range(40, len(data) - 1, 97), len(data) - 1):
            assert "truncated" in refusal(written(data[:length], place), model=nn.Conv2d(1, 1, 2))


def test_a_record_that_is_said_to_be_a_folder(place: Path) -> None:
    """torch returns memory for it that it has not filled."""
    with zipfile.ZipFile(place, "w") as archive:
        for name, data in records_in(saved({"weight": torch.ones(1, 1, 2, 2)})).items():
            entry = zipfile.ZipInfo(f"m/{name}")
            entry.external_attr = 0x10 * (name == "data/0")
            archive.writestr(entry, data)
    assert "is said to be a folder" in refusal(place, layers=True)
