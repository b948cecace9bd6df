"""Hostile and odd files, by their row in the list of inputs to survive."""

import hashlib
import io
import json
import os
import pickle
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

import construct
from construct.command.startup import check_torch
from construct.files.reading import read
from construct.from_conv import main
from verify.checker import check


class Own(nn.Conv2d):
    """A class that only --allow lets in."""


class Other(nn.ReLU):
    """Another."""


def error(path: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which the command refuses a file; nothing is written."""
    before = set(path.parent.iterdir())
    assert main([str(path), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err[:-1].isprintable()
    assert set(path.parent.iterdir()) == before
    return captured.err


def header(text: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text + data


ENTRY = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'


def test_row_03_a_program_of_torch_export_needs_trust(tmp_path: Path, capsys: Any) -> None:
    program = torch.export.export(nn.Conv2d(1, 1, 3).eval(), (torch.ones(1, 1, 5, 5),))
    torch.export.save(program, tmp_path / "a.pt2")
    assert "--trust" in error(tmp_path / "a.pt2", capsys=capsys)
    assert main([str(tmp_path / "a.pt2"), "--trust", "--stride", "1"]) == 0


def test_row_04_a_pickle_under_another_name(tmp_path: Path, capsys: Any) -> None:
    for name in ("a.safetensors", "a.onnx"):
        (tmp_path / name).write_bytes(pickle.dumps({"w": 1}, protocol=2))
        assert "a pickle, though its name ends in" in error(tmp_path / name, capsys=capsys)


def saved(content: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


FORMS = {
    "torch.save": lambda: saved(nn.Conv2d(1, 2, 3)),
    "state dict": lambda: saved(nn.Conv2d(1, 2, 3).state_dict()),
    "before 1.6": lambda: saved(nn.Conv2d(1, 2, 3).state_dict(), _use_new_zipfile_serialization=False),
    "safetensors": lambda: save(nn.Conv2d(1, 2, 3).state_dict()),
}


@pytest.mark.parametrize("form", FORMS)
def test_row_05_files_that_are_torn_at_any_place(form: str, tmp_path: Path, capsys: Any) -> None:
    whole = FORMS[form]()
    cuts = {0, 1, 2, 7, 8, 9, len(whole) // 4, len(whole) // 2, len(whole) - 100, len(whole) - 22, len(whole) - 1}
    for length in sorted(cuts):
        (tmp_path / "m.pt").write_bytes(whole[:length])
        line = error(tmp_path / "m.pt", "--stride", "1", capsys=capsys)
        assert any(word in line for word in ("the file is empty", "truncated", "not a model file")), (length, line)


def test_row_06_every_flipped_bit_of_a_weight_is_noticed(tmp_path: Path, capsys: Any) -> None:
    conv, path = nn.Conv2d(1, 2, 3), tmp_path / "m.pt"
    whole, numbers = saved(conv), conv.weight.detach().numpy().tobytes()
    place = whole.index(numbers)
    for bit in range(0, 8 * len(numbers), 37):
        content = bytearray(whole)
        content[place + bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        assert "CRC mismatch in data/0: the file has changed" in error(path, capsys=capsys)
    path.write_bytes(whole)
    assert main([str(path)]) == 0
    assert hashlib.sha256(whole).hexdigest() in capsys.readouterr().out


def test_row_07_what_is_no_regular_file_is_told_at_once(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
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
        "missing.pt": "no such file",
    }.items():
        assert what in error(tmp_path / name, capsys=capsys)
        for option in (["--example-inputs", name], ["--model-file", f"{name}:net"]):
            torch.save(nn.Conv2d(1, 1, 1).state_dict() if "--model-file" in option else nn.Conv2d(1, 1, 1), "m.pt")
            assert what in error(tmp_path / "m.pt", *option, capsys=capsys)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid", "git-lfs pointer"),
        (b"<!DOCTYPE html><html>", "HTML page"),
        (b"\x1f\x8b\x08\0", "gzip"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"some words\n", "plain text"),
        (b"\x08\x08\x12\x07pytorch", "ONNX model, which is not read"),
    ],
)
def test_row_08_and_20_named_for_what_they_are(content: bytes, what: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "m.pt").write_bytes(content)
    assert what in error(tmp_path / "m.pt", capsys=capsys)


def test_row_09_the_content_decides_and_a_lying_name_is_told(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(1, 1, 3, 3)}, tmp_path / "m.pt")
    found = read(tmp_path / "m.pt")
    assert isinstance(found.content, dict)
    assert "the content is safetensors" in found.notes[0]
    torch.save(nn.Conv2d(1, 1, 1), tmp_path / "m.safetensors")
    assert "of torch.save" in read(tmp_path / "m.safetensors").notes[0]


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_row_10_torchscript_is_named_with_what_to_do(tmp_path: Path, capsys: Any) -> None:
    torch.jit.save(torch.jit.trace(nn.Conv2d(1, 2, 3), torch.ones(1, 1, 5, 5)), tmp_path / "m.pt")
    for options in ((), ("--stride", "1"), ("--trust",)):
        told = "a TorchScript archive (re-save as the nn.Module itself, or its state dict)"
        assert told in error(tmp_path / "m.pt", *options, capsys=capsys)


def test_row_11_kernels_alone(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "m.safetensors"
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    save_file({"stem.weight": conv.weight.data, "stem.bias": conv.bias.data, "fc": torch.ones(2)}, path)  # type: ignore[union-attr]
    assert "without its architecture" in error(path, capsys=capsys)
    assert "without --stride" in error(path, "--padding", "1", capsys=capsys)
    assert main([str(path), "--stride", "2", "--padding", "1", "-o", str(tmp_path / "o.pt"), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert "stride 2, padding 1, dilation 1, groups 1" in notes[0]
    assert "fc" in notes[1]
    layer = construct.load(tmp_path / "o.pt").get_submodule("stem")
    x = torch.randn(1, 2, 7, 7, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(layer(x), conv(x), atol=1e-5)


def test_row_11_geometry_that_has_no_meaning_is_not_passed_over(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "m.pt"
    torch.save(nn.Conv2d(2, 3, 3).state_dict(), path)
    told = error(path, "--stride", "2", "--output-padding", "1", capsys=capsys)
    assert "--output-padding is for transposed" in told
    told = error(path, "--stride", "1", "--transposed", "--padding", "same", capsys=capsys)
    assert "--padding same is for plain" in told


def test_row_12_wrapped_checkpoints(tmp_path: Path, capsys: Any) -> None:
    model = nn.Conv2d(1, 2, 3)
    state = {f"module._orig_mod.{key}": value for key, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters()).state_dict()
    torch.save({"epoch": 3, "state_dict": state, "optimizer": optimizer}, tmp_path / "c.pt")
    (tmp_path / "net.py").write_text("import torch\ndef net():\n    return torch.nn.Conv2d(1, 2, 3)\n")
    assert main([str(tmp_path / "c.pt"), "--model-file", f"{tmp_path / 'net.py'}:net"]) == 0
    out = capsys.readouterr().out
    assert "its key 'state_dict' was used; passed over: 'epoch', 'optimizer'" in out
    assert "the prefix 'module._orig_mod.' was taken off" in out


def test_row_13_classes_by_name(tmp_path: Path, capsys: Any) -> None:
    path, name = tmp_path / "m.pt", f"{__name__}.Own"
    torch.save(nn.Sequential(Own(1, 2, 3), Other()), path)
    line = error(path, capsys=capsys)
    assert f"holds classes that are not allowed: {__name__}.Other, {name} (" in line  # all at once
    assert "(save a state dict and give --arch or --model-file; or, if you trust these packages" in line
    assert line.endswith(f"python -m construct.from_conv {path} --allow {__name__.partition('.')[0]})\n")
    line = error(path, "--allow", name, capsys=capsys)
    assert f"not allowed: {__name__}.Other (" in line  # those that are still missing
    # The first way out ...
    allow = ("--allow", name, "--allow", f"{__name__}.Other")
    assert main([str(path), *allow]) == 0
    assert f"note: the output still names {__name__}.Other: --allow that" in capsys.readouterr().out
    assert f"not allowed: {__name__}.Other (" in error(tmp_path / "m.mhsa.pt", capsys=capsys)
    net = construct.load(tmp_path / "m.mhsa.pt", allow=[f"{__name__}.Other"])
    assert isinstance(net.get_submodule("0"), construct.MHSA)
    assert main([str(path), "--trust"]) == 0
    capsys.readouterr()
    # ... and the second.
    torch.save(nn.Sequential(Own(1, 2, 3), Other()).state_dict(), path)
    (tmp_path / "net.py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n"
        "    def __init__(self):\n        super().__init__(nn.Conv2d(1, 2, 3), nn.ReLU())\n"
    )
    assert main([str(path), "--model-file", f"{tmp_path / 'net.py'}:Net", "--force"]) == 0
    capsys.readouterr()
    assert "cannot be allowed" in error(path, "--allow", "os.system", capsys=capsys)


@pytest.mark.parametrize("module", ["__main__", "a_package_that_is_not_here"])
def test_row_13_a_class_of_a_script_or_of_a_missing_package(module: str, tmp_path: Path, capsys: Any) -> None:
    kind = type("Net", (nn.Sequential,), {"__module__": module})
    place = types.ModuleType(module)
    place.Net = kind  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module, place)
        torch.save(kind(nn.Conv2d(1, 2, 3)), tmp_path / "m.pt")
    line = error(tmp_path / "m.pt", capsys=capsys)
    assert (
        f"holds classes that are not allowed: {module}.Net (save a state dict and give --arch or --model-file" in line
    )
    told = "cannot be allowed" if module == "__main__" else "No module named 'a_package_that_is_not_here'"
    line = error(tmp_path / "m.pt", "--allow", f"{module}.Net", capsys=capsys)
    assert told in line
    assert "PYTHONPATH" in line or "package.module.Class" in line


NO_MODELS = {
    "list": ([torch.ones(2)], "holds an object of class list, not a model"),
    "tensor": (torch.ones(1, 1, 3, 3), "holds an object of class Tensor, not a model"),
    "number": (5, "holds an object of class int, not a model"),
    "empty": ({}, "holds an empty dict, not a model"),
    "no tensors": ({"epoch": 3}, "not a state dict (save the state dict)"),
    "module": (nn.Sequential(nn.Linear(2, 2)), "no convolution found"),
    "nothing in it": (nn.Sequential(), "no convolution found"),
    "state dict": (nn.Linear(2, 2).state_dict(), "0 convolutions found"),
}


@pytest.mark.parametrize("name", NO_MODELS)
def test_row_14_nothing_to_convert_is_never_verified(name: str, tmp_path: Path, capsys: Any) -> None:
    content, told = NO_MODELS[name]
    torch.save(content, tmp_path / "m.pt")
    options = ("--stride", "1") if name == "state dict" else ()
    assert told in error(tmp_path / "m.pt", *options, capsys=capsys)
    if name == "state dict":
        assert "give --arch" in error(tmp_path / "m.pt", capsys=capsys)


def nested(depth: int) -> Any:
    found: Any = []
    for _ in range(depth):
        found = [found] * 10
    return found


def repickled(path: Path, data: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", data)
        archive.writestr("m/version", "3\n")
        archive.writestr("m/data/0", b"\0" * 4)


def test_row_15_bombs(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "m.pt"
    torch.save(nested(40), path)
    assert "entries" in error(path, capsys=capsys)
    repickled(path, b"\x80\x02" + b"]" * 100_001 + b"a" * 100_000 + b".")
    assert "nested" in error(path, capsys=capsys)
    repickled(path, b"\x80\x02](" + b"K\1" * 1_000_000 + b"e.")
    assert "instructions" in error(path, capsys=capsys)
    torch.save({"weight": torch.ones(1).expand(10**6, 9 * 10**6)}, path)
    assert "stored" in error(path, capsys=capsys)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", b"\0" * 10**7)
    assert "compressed" in error(path, capsys=capsys)
    torch.save(nn.Conv2d(1, 1, 3, padding=10**6), path)
    error(path, capsys=capsys)


def test_row_15_modules_that_hold_each_other(tmp_path: Path, capsys: Any) -> None:
    """Forty of them have 2^40 names, each of which would stand in the state dict, or in a line that shows the module."""
    path, model = tmp_path / "m.pt", nn.Conv2d(1, 1, 1)
    bomb: nn.Module = model
    for _ in range(40):
        bomb = nn.Sequential(bomb, bomb)
    torch.save(bomb, path)
    assert "names" in error(path, capsys=capsys)
    lying: Any = nn.Sequential(model)
    model.in_channels = lying.layers = [bomb]  # type: ignore[assignment]
    torch.save(lying, path)
    assert "names" in error(path, capsys=capsys)
    model.in_channels = 1
    model.add_module("again", nn.Sequential(model))
    torch.save(model, path)
    assert "holds itself" in error(path, capsys=capsys)


def test_row_16_a_kernel_of_too_many_taps(tmp_path: Path, capsys: Any) -> None:
    """Refused with the numbers; in Python it converts, and runs in seconds."""
    path, conv = tmp_path / "m.pt", nn.Conv2d(1, 1, 201)
    torch.save(conv, path)
    assert "40401 heads" in error(path, capsys=capsys)
    x = torch.randn(1, 1, 203, 202)
    with torch.no_grad():
        torch.testing.assert_close(construct.conv_to_mhsa(conv)(x), conv(x), rtol=1e-4, atol=1e-4)


def test_row_17_storages_that_are_too_short(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "m.pt"
    body = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu"
    for count, offset, stride in ((9, 0, 1), (1, 5, 1), (1, 0, 3)):
        tail = b"K%ctQK%c(K\x02t(K%ct\x89ccollections\nOrderedDict\n)RtR." % (count, offset, stride)
        repickled(path, b"\x80\x02" + body + tail)
        assert "stor" in error(path, capsys=capsys)


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
def test_row_18_and_19_safetensors_headers(content: bytes, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    assert "safetensors" in error(tmp_path / "m.safetensors", capsys=capsys)


def test_row_19_names_in_a_file_cannot_play_with_the_terminal(tmp_path: Path, capsys: Any) -> None:
    names = ["\x1b[2Jgone", "two\nlines", "\u202eturned", "bell\a", "\x9b31m"]
    path = tmp_path / "m.safetensors"
    save_file({f"{name}.weight": torch.ones(1, 1, 1, 1) for name in names}, path)
    assert main([str(path), "--stride", "1"]) == 0
    out = capsys.readouterr().out
    assert all(repr(name) in out for name in names)
    assert out.replace("\n", "").isprintable()
    path.write_bytes(header(b'{"\\u001b[2J":{"dtype":"\\u001b[2J","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4))
    assert "u001b" in error(path, "--stride", "1", capsys=capsys).replace("x1b", "u001b")


@pytest.mark.parametrize(
    "name",
    [
        "with spaces.pt",
        "-o",
        "--trust",
        "\u202etp.m",
        "größe.pt",
        "a'b\"c.pt",
        "new\nline.pt",
        "%s.pt",
        "[bold].pt",
        "m.pt.pt",
        ".pt",
        "x" * 200,
    ],
)
def test_row_21_odd_names_of_files_work(name: str, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(saved(nn.Conv2d(1, 1, 1)))
    assert main(["--", name] if name.startswith("-") else [name]) == 0
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    written = {path.name for path in tmp_path.iterdir()} - {name}
    assert len(written) == 2
    layers, certificate = sorted(written, key=lambda found: found.endswith(".json"))
    assert check(tmp_path / certificate, tmp_path / name, tmp_path / layers).verdict.name == "PROVED"
    # And as the name of the output.
    assert main([name if not name.startswith("-") else f"./{name}", "-o", f"./out {name}", "--seed", "1"]) == 0
    assert isinstance(construct.load(tmp_path / f"out {name}"), construct.MHSA)


def test_row_21_a_name_as_long_as_names_may_be(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """In bytes: sixty of these letters have 240, and the output's ending adds eight."""
    monkeypatch.chdir(tmp_path)
    torch.save(nn.Conv2d(1, 1, 1), "\N{WATER WAVE}" * 60 + ".pt")
    assert main(["\N{WATER WAVE}" * 60 + ".pt"]) == 0
    assert Path("\N{WATER WAVE}" * 60 + ".mhsa.json").is_file()
    assert len(list(tmp_path.iterdir())) == 3


def test_row_52_the_certificate_does_not_replace_the_output(tmp_path: Path, capsys: Any) -> None:
    torch.save(nn.Conv2d(1, 1, 1), tmp_path / "m.pt")
    assert "where the certificate goes" in error(tmp_path / "m.pt", "-o", str(tmp_path / "o.json"), capsys=capsys)


def test_row_57_an_old_torch_is_named() -> None:
    check_torch("2.10.0")
    check_torch("2.13.0+cpu")
    with pytest.raises(
        ImportError, match=r"needs torch 2.10 or newer, and this is 2.9.1 \(pip install 'torch>=2.10'\)"
    ):
        check_torch("2.9.1")


def test_row_57_a_missing_package_is_named(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.pt"
    torch.save(nn.Conv1d(1, 1, 1), path)
    monkeypatch.setattr("construct.files.export.find_spec", lambda name: None)
    told = error(path, "--input-size", "1", "4", "--format", "onnx", capsys=capsys)
    assert "pip install onnx onnxscript" in told


def test_row_58_threads_flags_and_random_state_are_as_they_were(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "m.pt"
    torch.save(nn.Conv1d(1, 1, 3), path)

    def state() -> tuple[Any, ...]:
        flags = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_grad_enabled(),
            torch.get_float32_matmul_precision(),
        )
        return (torch.get_num_threads(), torch.get_default_dtype(), *flags, torch.random.get_rng_state().tolist())

    before = state()
    assert main([str(path), "--seed", "7"]) == 0
    assert state() == before
    assert "seed: 7" in capsys.readouterr().out
