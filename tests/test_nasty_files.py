"""Hostile and odd files, by their row in the list of inputs to survive."""

import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import construct
from construct import requirements
from construct.files import read
from construct.from_conv import main


class Own(nn.Conv2d):
    """A class that only --allow lets in."""


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
    torch.save(nn.Sequential(Own(1, 1, 1)), tmp_path / "m.pt")
    name = f"{__name__}.Own"
    line = error(tmp_path / "m.pt", capsys=capsys)
    assert name in line
    assert "--arch" in line
    assert "--allow" in line
    assert main([str(tmp_path / "m.pt"), "--allow", name]) in (0, 2)
    capsys.readouterr()
    assert isinstance(construct.load(tmp_path / "m.pt", allow=[name]), nn.Sequential)
    assert "cannot be allowed" in error(tmp_path / "m.pt", "--allow", "os.system", capsys=capsys)


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
    torch.save({"weight": torch.ones(1).expand(10**6, 9 * 10**6)}, path)
    assert "stored" in error(path, capsys=capsys)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", b"\0" * 10**7)
    assert "compressed" in error(path, capsys=capsys)
    torch.save(nn.Conv2d(1, 1, 3, padding=10**6), path)
    error(path, capsys=capsys)


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


def test_row_52_the_certificate_does_not_replace_the_output(tmp_path: Path, capsys: Any) -> None:
    torch.save(nn.Conv2d(1, 1, 1), tmp_path / "m.pt")
    assert "where the certificate goes" in error(tmp_path / "m.pt", "-o", str(tmp_path / "o.json"), capsys=capsys)


def test_row_57_an_old_torch_is_named() -> None:
    requirements.check("2.10.0")
    requirements.check("2.13.0+cpu")
    with pytest.raises(
        ImportError, match=r"needs torch 2.10 or newer, and this is 2.9.1 \(pip install 'torch>=2.10'\)"
    ):
        requirements.check("2.9.1")


def test_row_57_a_missing_package_is_named(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.pt"
    torch.save(nn.Conv1d(1, 1, 1), path)
    monkeypatch.setattr("construct.export.find_spec", lambda name: None)
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
