"""Reading model files without running them, and writing them whole or not at all."""

import errno
import hashlib
import io
import os
import pickle
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
from construct.command import demo
from construct.errors import BadModelFile
from construct.files.allow_list import allowed_classes
from construct.files.pickle_walk import Walker
from construct.files.reading import read
from construct.files.writing import check_destination, is_own_output, write


@pytest.fixture
def small() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 2, stride=2)).eval()


@pytest.fixture
def saved(small: nn.Module, tmp_path: Path) -> Path:
    torch.save(small, tmp_path / "small.pt")
    return tmp_path / "small.pt"


class Custom(nn.Module):
    """A class that no file may name."""


def ran(place: str) -> None:
    Path(place).write_text("this code ran")


class Payload:
    """Pickles to a call of ``ran``."""

    def __init__(self, place: Path):
        self.place = str(place)

    def __reduce__(self) -> tuple[Any, ...]:
        return ran, (self.place,)


def refused(path: Any) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(BadModelFile) as info:
        construct.load(path)
    message = str(info.value)
    assert message.isprintable()
    assert "weights_only" not in message  # no advice to load it unsafely
    return message


# ---- round trip --------------------------------------------------------------------------------------------------------


def test_what_is_saved_comes_back_bit_for_bit(small: nn.Module, tmp_path: Path) -> None:
    converted = construct.convert(small)
    construct.save(converted, tmp_path / "out.pt")
    again = construct.load(tmp_path / "out.pt")
    x = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(again(x), converted(x))
    assert again.state_dict().keys() == converted.state_dict().keys()
    pairs = zip(again.state_dict().values(), converted.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    flags = [p.requires_grad for p in converted.parameters()]
    assert [p.requires_grad for p in again.parameters()] == flags
    assert len(set(flags)) == 2
    assert not any(module.training for module in again.modules())


def test_a_network_of_torch_classes_can_be_loaded_and_saved(small: nn.Module, saved: Path, tmp_path: Path) -> None:
    construct.save(construct.load(saved), str(tmp_path / "again.pt"))
    x = torch.ones(1, 2, 4, 4)
    assert torch.equal(construct.load(tmp_path / "again.pt")(x), small(x))


def test_the_demo_can_be_read_and_has_its_digest() -> None:
    file = read(demo.PATH)
    assert isinstance(file.content, nn.Sequential)
    assert file.sha256 == hashlib.sha256(Path(demo.PATH).read_bytes()).hexdigest()


def test_content_decides_and_not_the_name(saved: Path, tmp_path: Path) -> None:
    for name in ("model.onnx", "model", "mo del.safetensors", "-o", "\u202ename.pt"):
        saved = saved.rename(tmp_path / name)
        assert isinstance(construct.load(saved), nn.Sequential)


def test_the_list_of_classes_is_exact() -> None:
    kinds = allowed_classes()
    assert {nn.Conv2d, nn.Sequential, nn.MultiheadAttention, construct.MHSA, construct.ConvGeometry} <= set(kinds)
    assert all(issubclass(kind, nn.Module) or kind is construct.ConvGeometry for kind in kinds)
    assert {kind.__module__.rpartition(".")[0] for kind in kinds} == {"torch.nn.modules", "construct"}


def test_what_a_program_had_allowed_itself_stays_allowed(saved: Path) -> None:
    with torch.serialization.safe_globals([nn.Conv2d, Custom]):
        before = set(torch.serialization.get_safe_globals())
        construct.load(saved)
        assert set(torch.serialization.get_safe_globals()) == before
    assert nn.Sequential not in torch.serialization.get_safe_globals()


# ---- what is refused ---------------------------------------------------------------------------------------------------


def test_no_file_or_no_ordinary_one(tmp_path: Path) -> None:
    assert "missing.pt: no such file" in refused(tmp_path / "missing.pt")
    assert "is a directory" in refused(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "loop: " in refused(tmp_path / "loop")
    assert refused("nul\0.pt").startswith("'nul\\x00.pt': ")


def test_a_pipe_or_a_device_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    messages: list[str] = []
    asking = threading.Thread(target=lambda: messages.append(refused(tmp_path / "pipe")), daemon=True)
    asking.start()
    asking.join(timeout=5)  # opening the pipe would wait for ever
    assert messages
    assert "not a regular file" in messages[0]
    assert "not a regular file" in refused("/dev/zero")


NO_MODEL = {
    "empty": (b"", "is empty"),
    "one byte": (b"P", "not a model file"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\n", "not a model file"),
    "png": (b"\x89PNG\r\n\x1a\n", "not a model file"),
    "four bytes": (b"PK\x03\x04", "truncated"),
    "two bytes of a pickle": (b"\x80\x02", "truncated"),
    "a pickled number": (b"\x80\x02K\x01.", "not a model"),
}


@pytest.mark.parametrize("name", NO_MODEL)
def test_files_that_are_no_model(name: str, tmp_path: Path) -> None:
    content, reason = NO_MODEL[name]
    (tmp_path / "model.pt").write_bytes(content)
    assert reason in refused(tmp_path / "model.pt")


def test_torn_files(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in (5, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:length])
        assert "truncated" in refused(saved)


def test_a_flipped_bit_is_noticed(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as archive:
        record = next(info for info in archive.infolist() if info.filename.endswith("data/0"))
        bytes_ = archive.read(record)
    content[bytes(content).index(bytes_) + 3] ^= 0x40
    saved.write_bytes(content)
    assert isinstance(torch.load(saved, weights_only=False), nn.Module)  # torch does not look
    assert "CRC mismatch in data/0" in refused(saved)


def test_another_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("notes.txt", "nothing")
    assert "not a model file" in refused(tmp_path / "a.pt")


def test_a_class_of_ones_own_is_named(tmp_path: Path) -> None:
    torch.save(nn.Sequential(Custom(), nn.Conv2d(1, 1, 1)), tmp_path / "a.pt")
    message = refused(tmp_path / "a.pt")
    assert f"holds classes that are not allowed: {Custom.__module__}.Custom (save its state dict" in message


DUMPS: dict[str, Callable[[Any, Path], Any]] = {
    "torch.save": lambda x, f: torch.save(x, f),
    "protocol 4": lambda x, f: torch.save(x, f, pickle_protocol=4),
    "old format": lambda x, f: torch.save(x, f, _use_new_zipfile_serialization=False),
    "pickle": lambda x, f: f.write_bytes(pickle.dumps(x)),
    "pickle 2": lambda x, f: f.write_bytes(pickle.dumps(x, protocol=2)),
    "torn": lambda x, f: f.write_bytes(pickle.dumps(x, protocol=2)[:-1]),
}


@pytest.mark.parametrize("dump", DUMPS)
@pytest.mark.parametrize("where", ["alone", "in a state dict", "in a module"])
def test_code_in_a_pickle_is_named_and_never_run(dump: str, where: str, tmp_path: Path) -> None:
    payload: Any = Payload(tmp_path / "trace")
    if where == "in a state dict":
        payload = {"weight": torch.ones(2), "extra": payload, "later": Payload(tmp_path / "trace")}
    elif where == "in a module":
        model = nn.Linear(2, 2)
        model.extra = payload
        payload = model
    DUMPS[dump](payload, tmp_path / "model.pt")
    message = refused(tmp_path / "model.pt")
    assert "not allowed: " in message
    assert f"{__name__}.ran" in message
    assert not is_own_output(tmp_path / "model.pt")
    assert not (tmp_path / "trace").exists()


def test_all_foreign_classes_are_named_at_once(tmp_path: Path) -> None:
    model = nn.Sequential(Custom())
    model.extra = Payload(tmp_path / "trace")  # type: ignore[assignment]
    torch.save(model, tmp_path / "a.pt")
    assert f"{__name__}.Custom, {__name__}.ran" in refused(tmp_path / "a.pt")


def test_old_state_dicts_can_be_read_and_old_modules_not(small: nn.Module, tmp_path: Path) -> None:
    torch.save(small.state_dict(), tmp_path / "state.pt", _use_new_zipfile_serialization=False)
    content = read(tmp_path / "state.pt").content
    assert isinstance(content, dict)
    assert content.keys() == small.state_dict().keys()
    torch.save(small, tmp_path / "module.pt", _use_new_zipfile_serialization=False)
    assert "not a model that can be read safely" in refused(tmp_path / "module.pt")


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_torchscript_is_named(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "script.pt")
    assert "TorchScript" in refused(tmp_path / "script.pt")


OTHER_OBJECTS: dict[str, tuple[Any, str]] = {
    "list": ([torch.ones(2)], "an object of class list"),
    "tensor": (torch.ones(2), "an object of class Tensor"),
    "empty dict": ({}, "an empty dict"),
    "checkpoint": ({"epoch": 3, "history": [1.0]}, "keys 'epoch', 'history'"),
    "control characters": ({"\x1b[31m": 3}, "keys '\\x1b[31m'"),
    "state dict": (
        {"w": torch.ones(2)},
        "a state dict without its network (give model=Net(), the network that it is of)",
    ),
}


@pytest.mark.parametrize("name", OTHER_OBJECTS)
def test_other_objects(name: str, tmp_path: Path) -> None:
    content, reason = OTHER_OBJECTS[name]
    torch.save(content, tmp_path / "a.pt")
    assert reason in refused(tmp_path / "a.pt")


def with_radix_of_other_types(layer: Any) -> None:
    layer.w_key_pos = nn.Parameter(layer.w_key_pos[..., :2].clone(), requires_grad=False)
    layer.radix = ("a", 1.5)


def integers(tensor: Any) -> nn.Parameter:
    return nn.Parameter(torch.ones(tensor.shape, dtype=torch.int64), requires_grad=False)


SPOILT: dict[str, Callable[[Any], Any]] = {
    "heads": lambda layer: setattr(layer, "heads", 7),
    "execution": lambda layer: setattr(layer, "_execution", "nonsense"),
    "shape": lambda layer: setattr(layer, "w_val", nn.Parameter(torch.ones(2, 2))),
    "geometry": lambda layer: object.__setattr__(layer.geometry, "stride", (0, "x")),
    "fields": lambda layer: layer.geometry.__dict__.clear(),
    "radix": lambda layer: setattr(layer, "radix", (1, 2)),
    "types in a radix": with_radix_of_other_types,
    "no geometry": lambda layer: setattr(layer, "geometry", 5),
    "a tensor missing": lambda layer: layer._parameters.pop("v"),
    "type of a tensor": lambda layer: setattr(layer, "v", integers(layer.v)),
    "children": lambda layer: layer._modules.update(child=5),
}


@pytest.mark.parametrize("name", SPOILT)
def test_an_attention_layer_that_contradicts_itself(name: str, small: nn.Module, tmp_path: Path) -> None:
    converted = construct.convert(small)
    SPOILT[name](converted[0])  # type: ignore[index]
    torch.save(converted, tmp_path / "a.pt")
    assert "its layers contradict themselves" in refused(tmp_path / "a.pt")


# ---- writing -----------------------------------------------------------------------------------------------------------


def test_saving_what_could_not_be_read_back(small: nn.Module, tmp_path: Path) -> None:
    construct.save(small, tmp_path / "a.pt")
    before = (tmp_path / "a.pt").read_bytes()
    with pytest.raises(BadModelFile, match=r"Custom \(save its state dict\)"):
        construct.save(nn.Sequential(Custom()), tmp_path / "a.pt")
    local = nn.Sequential()
    local.function = lambda: None  # type: ignore[assignment]
    with pytest.raises(BadModelFile, match="cannot be saved"):
        construct.save(local, tmp_path / "a.pt")
    with pytest.raises(TypeError, match=r"takes an nn\.Module"):
        construct.save(small.state_dict(), tmp_path / "a.pt")  # type: ignore[arg-type]
    assert (tmp_path / "a.pt").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["write", "fsync", "replace"])
def test_a_failure_on_the_way_leaves_what_was_there(
    failure: BaseException, place: str, small: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.pt"
    target.write_bytes(b"what was there")

    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell() > 1000:
                fail()
            return super().write(data)

    if place == "write":
        monkeypatch.setattr(os, "fdopen", lambda descriptor, mode: Full(descriptor, mode))
    elif place == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(type(failure)):
        construct.save(small, target)
    monkeypatch.undo()
    assert target.read_bytes() == b"what was there"
    assert [p.name for p in tmp_path.iterdir()] == ["out.pt"]


def test_a_full_disk(tmp_path: Path) -> None:
    """The real thing: the system refuses to let the file grow."""
    program = (
        "import resource, sys, torch, construct\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "try:\n    construct.save(torch.nn.Linear(100, 100), sys.argv[1])\n"
        "except OSError as error:\n    print('refused', error.errno)\n"
    )
    command = [sys.executable, "-c", program, tmp_path / "out.pt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path.cwd())
    assert done.stdout.strip() == f"refused {errno.EFBIG}", done.stderr
    assert not list(tmp_path.iterdir())


def test_a_link_stays_a_link_and_rights_stay(small: nn.Module, tmp_path: Path) -> None:
    construct.save(small, tmp_path / "real.pt")
    (tmp_path / "real.pt").chmod(0o600)
    (tmp_path / "link.pt").symlink_to("real.pt")
    construct.save(construct.convert(small), tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink()
    assert is_own_output(tmp_path / "real.pt")
    assert stat.S_IMODE((tmp_path / "real.pt").stat().st_mode) == 0o600


def test_two_at_once_leave_one_whole_file(small: nn.Module, tmp_path: Path) -> None:
    writers = [threading.Thread(target=construct.save, args=(small, tmp_path / "out.pt")) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    construct.load(tmp_path / "out.pt")
    assert [p.name for p in tmp_path.iterdir()] == ["out.pt"]


def test_own_output_is_recognised(small: nn.Module, saved: Path, tmp_path: Path) -> None:
    assert not is_own_output(saved)
    assert not is_own_output(tmp_path / "missing.pt")
    converted = construct.convert(small)
    write(converted, tmp_path / "module.pt")
    write(converted.state_dict(), tmp_path / "state.pt")
    write(construct.conv_to_mhsa(small[0]).state_dict(), tmp_path / "bare.pt")  # type: ignore[index]
    write(small.state_dict(), tmp_path / "foreign.pt")
    own = [name for name in ("module", "state", "bare", "foreign") if is_own_output(tmp_path / f"{name}.pt")]
    assert own == ["module", "state", "bare"]


def test_names_are_found_in_every_protocol() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        walker = Walker()
        walker.walk(io.BytesIO(pickle.dumps([Path, "some.text", Path, Payload(Path("x"))], protocol=protocol)))
        assert {"pathlib.Path", f"{__name__}.ran"} <= walker.names
        assert "some.text" in walker.texts


def test_destinations(small: nn.Module, saved: Path, tmp_path: Path) -> None:
    def why(path: Path, force: bool = False) -> str:
        with pytest.raises(BadModelFile) as info:
            check_destination(path, saved, force)
        return str(info.value)

    (tmp_path / "foreign.txt").write_text("precious")
    (tmp_path / "link.pt").symlink_to(saved)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = sorted(tmp_path.iterdir())
    assert "is the input itself" in why(saved, force=True)
    assert "is the input itself" in why(tmp_path / "link.pt", force=True)
    assert "not our own output" in why(tmp_path / "foreign.txt")
    assert "there is no folder" in why(tmp_path / "none" / "out.pt")
    assert "is not a file" in why(tmp_path, force=True)
    assert "is not a file" in why(tmp_path / "pipe", force=True)
    assert "loop: cannot be written" in why(tmp_path / "loop")
    inside_a_file = why(tmp_path / "foreign.txt" / "out.pt")
    assert "cannot be written" in inside_a_file or "no folder" in inside_a_file
    assert "cannot be written" in why(tmp_path / ("x" * 300 + ".pt"))
    assert check_destination(tmp_path / "foreign.txt", saved, force=True) == tmp_path / "foreign.txt"
    assert check_destination(tmp_path / "new.pt", saved, force=False) == tmp_path / "new.pt"
    assert sorted(tmp_path.iterdir()) == before  # nothing is made by asking


def test_a_folder_that_takes_no_file(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BadModelFile, match="cannot be written: Permission denied"):
        check_destination(tmp_path / "out.pt", saved, force=False)
