"""Hostile and odd files, by their row in docs/nasty_inputs.md."""

import hashlib
import os
import pickle
import re
import struct
import sys
import time
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from torch import nn
from torch.torch_version import TorchVersion

import construct
from archives import EMPTY_ORDERED, archive_of, called, named, number, program, row, saved, storage, with_pickle
from commands import Command, names
from construct.errors import BadModelFile
from construct.files.reading import read
from verify.checker import check


class Own(nn.Conv2d):
    """A class that only --allow lets in."""


class Other(nn.ReLU):
    """Another class that only --allow lets in."""


def header(text: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text + data


ENTRY = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'


def test_row_03_a_program_of_torch_export_needs_trust(from_conv: Command) -> None:
    program = torch.export.export(nn.Conv2d(1, 1, 3).eval(), (torch.ones(1, 1, 5, 5),))
    torch.export.save(program, "a.pt2")
    assert "--trust" in from_conv.refuses("a.pt2")
    from_conv.prints("a.pt2", "--trust", "--stride", 1)


def test_row_04_a_pickle_under_another_name(from_conv: Command) -> None:
    for name in ("a.safetensors", "a.onnx"):
        Path(name).write_bytes(pickle.dumps({"w": 1}, protocol=2))
        assert "a pickle, though its name ends in" in from_conv.refuses(name)


FORMS = {
    "torch.save": lambda: saved(nn.Conv2d(1, 2, 3)),
    "state dict": lambda: saved(nn.Conv2d(1, 2, 3).state_dict()),
    "before 1.6": lambda: saved(nn.Conv2d(1, 2, 3).state_dict(), _use_new_zipfile_serialization=False),
    "safetensors": lambda: save(nn.Conv2d(1, 2, 3).state_dict()),
}


@pytest.mark.parametrize("form", FORMS)
def test_row_05_files_that_are_torn_at_any_place(form: str, from_conv: Command) -> None:
    whole = FORMS[form]()
    cuts = {0, 1, 2, 7, 8, 9, len(whole) // 4, len(whole) // 2, len(whole) - 100, len(whole) - 22, len(whole) - 1}
    for length in sorted(cuts):
        Path("m.pt").write_bytes(whole[:length])
        line = from_conv.refuses("m.pt", "--stride", "1")
        assert any(word in line for word in ("the file is empty", "truncated", "not a model file")), (length, line)
        assert "truncated" in line or form != "torch.save" or length not in (len(whole) // 2, len(whole) - 1)


def test_row_06_every_flipped_bit_of_a_weight_is_noticed(from_conv: Command) -> None:
    conv, path = nn.Conv2d(1, 2, 3), Path("m.pt")
    whole, numbers = saved(conv), conv.weight.detach().numpy().tobytes()
    place = whole.index(numbers)
    for bit in range(0, 8 * len(numbers), 37):
        content = bytearray(whole)
        content[place + bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        assert "CRC mismatch in data/0: the file has changed" in from_conv.refuses(path)
        assert isinstance(torch.load(path, weights_only=False), nn.Module)  # torch does not check
    path.write_bytes(whole)
    assert hashlib.sha256(whole).hexdigest() in from_conv.prints(path)


def test_row_07_what_is_no_regular_file_is_told_at_once(from_conv: Command) -> None:
    Path("folder.pt").mkdir()
    os.mkfifo("pipe.pt")
    Path("loop.pt").symlink_to("loop.pt")
    Path("zero.pt").symlink_to("/dev/zero")
    Path("dangling.pt").symlink_to("nowhere.pt")
    started = time.monotonic()
    for name, what in {
        "folder.pt": "is a directory",
        "pipe.pt": "is not a regular file",
        "loop.pt": "symbolic link",
        "zero.pt": "is not a regular file",
        "dangling.pt": "no such file",
        "missing.pt": "no such file (check the path)",
    }.items():
        assert what in from_conv.refuses(name)
        for option in (["--example-inputs", name], ["--model-file", f"{name}:net"]):
            torch.save(nn.Conv2d(1, 1, 1).state_dict() if "--model-file" in option else nn.Conv2d(1, 1, 1), "m.pt")
            assert what in from_conv.refuses("m.pt", *option)
    assert time.monotonic() - started < 10
    assert from_conv.refuses("nul\0.pt").startswith("error: 'nul\\x00.pt': ")


NO_MODEL_FILES = {
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid", "not a model file but a git-lfs pointer"),
    "HTML": (b"<!DOCTYPE html><html>", "not a model file but an HTML page"),
    "gzip": (b"\x1f\x8b\x08\0", "not a model file but gzip-compressed"),
    "PNG": (b"\x89PNG\r\n\x1a\n", "not a model file but a PNG"),
    "text": (b"some words\n", "not a model file but plain text, beginning with 'some words'"),
    "ONNX": (b"\x08\x08\x12\x07pytorch", "ONNX model, which is not read"),
    "another archive": (archive_of({"notes.txt": b"some words"}), "a zip archive, but not a model file"),
    "an empty archive": (b"PK\5\6" + b"\0" * 18, "not a model file"),
    "one byte": (b"P", "not a model file"),
    "four bytes of a zip": (b"PK\3\4", "truncated"),
    "two bytes of a pickle": (b"\x80\2", "truncated"),
    "a pickled number": (b"\x80\2K\1.", "not a model"),
}


@pytest.mark.parametrize("name", NO_MODEL_FILES)
def test_row_08_and_20_named_for_what_they_are(name: str, from_conv: Command) -> None:
    content, what = NO_MODEL_FILES[name]
    Path("m.pt").write_bytes(content)
    assert what in from_conv.refuses("m.pt")


def test_row_09_the_content_decides_and_a_lying_name_is_told(from_conv: Command) -> None:
    save_file({"weight": torch.ones(1, 1, 3, 3)}, "m.pt")
    file = read("m.pt")
    assert isinstance(file.content, dict)
    assert "the content is safetensors" in file.notes[0]
    torch.save(nn.Conv2d(1, 1, 1), "m.safetensors")
    assert "the content is torch.save" in read("m.safetensors").notes[0]


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_row_10_torchscript_is_named_with_what_to_do(from_conv: Command) -> None:
    torch.jit.save(torch.jit.trace(nn.Conv2d(1, 2, 3), torch.ones(1, 1, 5, 5)), "m.pt")
    for options in ((), ("--stride", "1"), ("--trust",)):
        reason = "a TorchScript archive (re-save as the nn.Module itself, or its state dict)"
        assert reason in from_conv.refuses("m.pt", *options)


def test_row_11_kernels_alone(from_conv: Command) -> None:
    path = "m.safetensors"
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    save_file({"stem.weight": conv.weight.data, "stem.bias": conv.bias.data, "fc": torch.ones(2)}, path)  # type: ignore[union-attr]
    assert "without its architecture" in from_conv.refuses(path)
    assert "without --stride" in from_conv.refuses(path, "--padding", "1")
    notes = from_conv.facts(path, "--stride", 2, "--padding", 1, "-o", "o.pt")["notes"]
    assert "stride 2, padding 1, dilation 1, groups 1" in notes[0]
    assert "fc" in notes[1]
    layer = construct.load("o.pt").get_submodule("stem")
    x = torch.randn(1, 2, 7, 7, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(layer(x), conv(x), atol=1e-5)
    norm = torch.ones(2, 4, 4)
    save_file({"stem.weight": conv.weight.data, "norm.weight": norm, "norm.bias": norm.clone()}, path)
    (left,) = from_conv.facts(path, "--stride", 2, "--partial")["left_unconverted"]
    assert left["path"] == "norm"


def test_row_13_classes_by_name(from_conv: Command) -> None:
    own, other = f"{__name__}.Own", f"{__name__}.Other"
    torch.save(nn.Sequential(Own(1, 2, 3), Other()), "m.pt")
    line = from_conv.refuses("m.pt")
    assert f"holds classes that are not allowed: {other}, {own} (" in line  # all at once
    assert "(give its network with --arch or --model-file, or save its state dict; or, if you trust these" in line
    assert line.endswith(f"python -m construct.from_conv m.pt --allow {__name__.partition('.')[0]})")
    line = from_conv.refuses("m.pt", "--allow", own)
    assert f"not allowed: {other} (" in line  # those that are still missing
    # The first way out ...
    out = from_conv.prints("m.pt", "--allow", own, "--allow", other)
    assert f"note: the output still names {other}: --allow that" in out
    assert f"not allowed: {other} (" in from_conv.refuses("m.mhsa.pt")
    net = construct.load("m.mhsa.pt", allow=[other])
    assert isinstance(net.get_submodule("0"), construct.MHSA)
    from_conv.prints("m.pt", "--trust")
    # ... and the second.
    torch.save(nn.Sequential(Own(1, 2, 3), Other()).state_dict(), "m.pt")
    Path("net.py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n"
        "    def __init__(self):\n        super().__init__(nn.Conv2d(1, 2, 3), nn.ReLU())\n"
    )
    from_conv.prints("m.pt", "--model-file", "net.py:Net", "--force")
    assert "cannot be allowed" in from_conv.refuses("m.pt", "--allow", "os.system")


@pytest.mark.parametrize("module", ["__main__", "a_package_that_is_not_here"])
def test_row_13_a_class_of_a_script_or_of_a_missing_package(module: str, from_conv: Command) -> None:
    kind = type("Net", (nn.Sequential,), {"__module__": module})
    place = types.ModuleType(module)
    place.Net = kind  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module, place)
        torch.save(kind(nn.Conv2d(1, 2, 3)), "m.pt")
    way_out = "(give its network with --arch or --model-file, or save its state dict"
    assert f"holds classes that are not allowed: {module}.Net {way_out}" in from_conv.refuses("m.pt")
    reason = "cannot be allowed" if module == "__main__" else "No module named 'a_package_that_is_not_here'"
    line = from_conv.refuses("m.pt", "--allow", f"{module}.Net")
    assert reason in line
    assert "PYTHONPATH" in line or "package.module.Class" in line


NO_MODELS = {
    "list": ([torch.ones(2)], "holds an object of class list, not a model"),
    "tensor": (torch.ones(1, 1, 3, 3), "holds an object of class Tensor, not a model"),
    "number": (5, "holds an object of class int, not a model"),
    "empty": ({}, "holds an object of class dict, not a model"),
    "no tensors": ({"epoch": 3, "history": [1.0]}, "keys 'epoch', 'history', but not a state dict (save"),
    "control characters": ({"\x1b[31m": 3}, "keys '\\x1b[31m'"),
    "module": (nn.Sequential(nn.Linear(2, 2)), "no convolution found (give a network that has one)"),
    "nothing in it": (nn.Sequential(), "no convolution found"),
    "state dict": (nn.Linear(2, 2).state_dict(), "0 convolutions found"),
}


@pytest.mark.parametrize("name", NO_MODELS)
def test_row_14_nothing_to_convert_is_never_verified(name: str, from_conv: Command) -> None:
    content, reason = NO_MODELS[name]
    torch.save(content, "m.pt")
    options = ("--stride", "1") if name == "state dict" else ()
    assert reason in from_conv.refuses("m.pt", *options)
    if name == "state dict":
        assert "give --arch" in from_conv.refuses("m.pt")


def nested(depth: int) -> Any:
    lists: Any = []
    for _ in range(depth):
        lists = [lists] * 10
    return lists


def repickled(path: str, data: bytes) -> None:
    Path(path).write_bytes(with_pickle(data, b"\0" * 4))


def test_row_15_bombs(from_conv: Command) -> None:
    path = "m.pt"
    torch.save(nested(40), path)
    assert "an object of class list, not a model" in from_conv.refuses(path)
    repickled(path, b"\x80\x02" + b"]" * 100_001 + b"a" * 100_000 + b".")
    assert "an object of class list, not a model" in from_conv.refuses(path)
    repickled(path, b"\x80\x02](" + b"K\1" * 9_000_000 + b"e.")
    assert "its pickle has 18000006 bytes" in from_conv.refuses(path)
    torch.save({"weight": torch.ones(1).expand(10**6, 9 * 10**6)}, path)
    assert "stored" in from_conv.refuses(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", b"\0" * 10**8)
    assert "compressed" in from_conv.refuses(path)
    torch.save(nn.Conv2d(1, 1, 3, padding=10**6), path)
    from_conv.refuses(path)
    torch.save(nested(40), "x.pt")
    assert "too deep or hold each other" in from_conv.refuses(path, "--example-inputs", "x.pt")


def test_row_15_modules_that_hold_each_other(from_conv: Command) -> None:
    """Forty of them have 2^40 names, all of which would appear in the state dict or in the module's printed form."""
    path, model = "m.pt", nn.Conv2d(1, 1, 1)
    bomb: nn.Module = model
    for _ in range(40):
        bomb = nn.Sequential(bomb, bomb)
    torch.save(bomb, path)
    assert "names" in from_conv.refuses(path)
    lying: Any = nn.Sequential(model)
    model.in_channels = lying.layers = [bomb]  # type: ignore[assignment]
    torch.save(lying, path)
    assert "names" in from_conv.refuses(path)
    model.in_channels = 1
    model.add_module("again", nn.Sequential(model))
    torch.save(model, path)
    assert "holds itself" in from_conv.refuses(path)


def test_row_16_a_kernel_of_too_many_taps(from_conv: Command) -> None:
    """The command refuses it with the numbers; in Python it converts, and runs in seconds."""
    path, conv = "m.pt", nn.Conv2d(1, 1, 201)
    torch.save(conv, path)
    assert "40401 heads" in from_conv.refuses(path)
    x = torch.randn(1, 1, 203, 202)
    with torch.no_grad():
        torch.testing.assert_close(construct.conv_to_mhsa(conv)(x), conv(x), rtol=1e-4, atol=1e-4)


def test_row_17_storages_that_are_too_short(from_conv: Command) -> None:
    path = "m.pt"
    rebuild = named("torch._utils", "_rebuild_tensor_v2")
    for count, offset, stride in ((9, 0, 1), (1, 5, 1), (1, 0, 3)):
        sizes = number(offset), row(number(2)), row(number(stride))
        repickled(path, program(called(rebuild, storage(count=count), *sizes, b"\x89", EMPTY_ORDERED)))
        assert any(word in from_conv.refuses(path) for word in ("storage", "record size (4 bytes) does not match"))


@pytest.mark.filterwarnings("ignore")  # torch's, of quantised tensors
@pytest.mark.parametrize("kind", ["quantised", "sparse"])
def test_tensors_that_are_not_read_are_named(kind: str, from_conv: Command) -> None:
    """And nothing is advised that would end in the next error."""
    x = torch.ones(1, 1, 3, 3)
    torch.save(
        {"weight": torch.quantize_per_tensor(x, 0.1, 0, torch.qint8) if kind[0] == "q" else x.to_sparse()}, "m.pt"
    )
    line = from_conv.refuses("m.pt")
    assert f"holds {kind} tensors, which are not read" in line
    assert "--allow" not in line
    assert ("before it is quantised" if kind[0] == "q" else "make plain ones of them") in line


@pytest.mark.parametrize(
    "content",
    [
        header(ENTRY, b"\0" * 8, 2**63),
        header(ENTRY, b"\0" * 8, 1000),
        header(ENTRY, b"\0" * 8, 0),
        header(b"{not json}"),
        header(b'{"\xff":1}'),
        header(ENTRY, b"\0" * 9),
        header(ENTRY, b"\0" * 7),
        header(ENTRY.replace(b"F32", b"Q99"), b"\0" * 8),
        header(ENTRY.replace(b"[2]", b"[9223372036854775807,9223372036854775807]"), b"\0" * 8),
        header(ENTRY.replace(b"[2]", b"[-2]"), b"\0" * 8),
        header(ENTRY[:-1] + b"," + ENTRY[1:], b"\0" * 8),
        header(b"{" + b'"a":[' * 5000 + b"}"),
    ],
)
def test_row_18_and_19_safetensors_headers(content: bytes, from_conv: Command) -> None:
    Path("m.safetensors").write_bytes(content)
    assert "safetensors" in from_conv.refuses("m.safetensors")


def test_row_19_names_in_a_file_cannot_play_with_the_terminal(from_conv: Command) -> None:
    layers = ["\x1b[2Jgone", "two\nlines", "\u202eturned", "bell\a", "\x9b31m", "[bold]plain"]
    path = Path("m\x1b[1m.safetensors")
    save_file({f"{name}.weight": torch.ones(1, 1, 1, 1) for name in layers}, path)
    out = from_conv.prints(path, "--stride", 1)
    assert all(repr(name) in out for name in layers[:-1])
    assert " [bold]plain " in out
    assert out.replace("\n", "").isprintable()
    assert {layer["name"] for layer in from_conv.facts(path, "--stride", 1)["layers"]} == {*layers}
    assert from_conv.refuses("b\x1b[1m.pt") == r"error: 'b\x1b[1m.pt': no such file (check the path)"
    path.write_bytes(header(b'{"\\u001b[2J":{"dtype":"\\u001b[2J","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4))
    assert "u001b" in from_conv.refuses(path, "--stride", 1).replace("x1b", "u001b")


ODD_NAMES = ["with spaces.pt", "-o", "--trust", "\u202etp.m", "größe, a'b\"c, %s, [bold].pt", "new\nline.pt"]


@pytest.mark.parametrize("name", [*ODD_NAMES, "m.pt.pt", ".pt", "x" * 200])
def test_row_21_odd_names_of_files_work(name: str, from_conv: Command) -> None:
    Path(name).write_bytes(saved(nn.Conv2d(1, 1, 1)))
    out = from_conv.prints(*(["--"] if name.startswith("-") else []), name)
    assert out.replace("\n", "").isprintable()
    written = names() - {name}
    assert len(written) == 2
    layers, certificate = sorted(written, key=lambda path: path.endswith(".json"))
    assert check(certificate, name, layers).verdict.name == "PROVED"
    # And as the name of the output.
    from_conv.prints(f"./{name}" if name.startswith("-") else name, "-o", f"./out {name}", "--seed", 1)
    assert isinstance(construct.load(f"out {name}"), construct.MHSA)


def test_row_52_outputs_of_other_endings_keep_their_certificates(from_conv: Command) -> None:
    torch.save(nn.Conv2d(1, 1, 1), "m.pt")
    outputs = ("m.mhsa.pt", "m.v1", "m.v2", "m.pth", "m.json", "m.SAFETENSORS")
    for name in outputs:
        from_conv.prints("m.pt", "-o", name)
    for name in outputs:
        assert check(f"{name.removesuffix('.pt')}.json", "m.pt", name).verdict.name == "PROVED"
    assert Path("m.SAFETENSORS").read_bytes()[8:9] == b"{"  # no pickle, however it is spelled
    construct.save(construct.load("m.SAFETENSORS"), "again.SAFETENSORS")
    assert Path("again.SAFETENSORS").read_bytes()[8:9] == b"{"


def test_row_57_an_old_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.10.0", "2.10.0a0+git", "2.13.0+cpu"):
        monkeypatch.setattr(torch, "__version__", TorchVersion(version))
        assert construct.__getattr__("MHSA") is construct.MHSA
    reason = "needs torch 2.10 or newer, and this is 2.9.1 (pip install 'torch>=2.10')"
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1"))
    with pytest.raises(ImportError, match=re.escape(reason)):
        construct.__getattr__("MHSA")


def test_row_57_a_missing_package_is_named(from_conv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(nn.Conv1d(1, 1, 1), "m.pt")
    monkeypatch.setattr("construct.files.export.find_spec", lambda name: None)
    assert "pip install onnx onnxscript" in from_conv.refuses("m.pt", "--input-size", 1, 4, "--format", "onnx")


def test_row_58_threads_flags_and_random_state_are_as_they_were(from_conv: Command) -> None:
    torch.save(nn.Conv1d(1, 1, 3), "m.pt")

    def state() -> tuple[Any, ...]:
        flags = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_grad_enabled(),
            torch.get_float32_matmul_precision(),
        )
        return (torch.get_num_threads(), torch.get_default_dtype(), *flags, torch.random.get_rng_state().tolist())

    before = state()
    out = from_conv.prints("m.pt", "--seed", 7)
    assert state() == before
    assert "seed: 7" in out


def test_a_file_cannot_say_where_heads_look_beside_v(tmp_path: Path) -> None:
    layer = construct.conv_to_mhsa(torch.nn.Conv2d(1, 2, 3))
    layer.__dict__["_frozen_heads"] = (((0, 0),) * 9, "w_val")
    torch.save(layer, tmp_path / "layer.pt")
    with pytest.raises(BadModelFile, match="cannot say where heads look"):
        construct.load(tmp_path / "layer.pt")


def test_a_radix_of_tensors_is_refused(tmp_path: Path) -> None:
    layer = construct.conv_to_mhsa(torch.nn.Conv2d(1, 2, 3), encoding="parabola")
    layer.__dict__["radix"] = tuple(map(torch.tensor, layer.radix or ()))
    torch.save(layer, tmp_path / "layer.pt")
    with pytest.raises(BadModelFile, match="not whole numbers"):
        construct.load(tmp_path / "layer.pt")
