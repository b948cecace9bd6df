"""Mutated files of every readable format, in a bounded process: one line of refusal or a module, never anything else."""

import os
import pickle
import random
import resource
import subprocess
import sys
import warnings
import zipfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import nn

import construct
from archives import packed
from construct.errors import BadModelFile
from construct.files.reading import read
from verify.recheck.arrays import Rejected, layers_in

ROOT = Path(__file__).parents[2]
PAYLOAD = b"cposix\nsystem\n(X\x0b\0\0\0touch tracetR0"
"""Pickled instructions that would make a file, and leave nothing on the stack."""


def seeds() -> dict[str, bytes]:
    """A well-behaved file of every format."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2))
    found = {}
    for name, content in (
        ("module", model),
        ("state", model.state_dict()),
        ("wrapped", {"state_dict": model.state_dict()}),
    ):
        file = BytesIO()
        torch.save(content, file)
        found[name] = file.getvalue()
    file = BytesIO()
    torch.save(model.state_dict(), file, _use_new_zipfile_serialization=False)
    found |= {"legacy": file.getvalue(), "safetensors": save(model.state_dict())}
    program, script = BytesIO(), BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.export.save(torch.export.export(model.eval(), (torch.ones(2, 1, 5, 5),)), program)
        torch.jit.save(torch.jit.trace(model.eval(), torch.ones(2, 1, 5, 5)), script)
    found |= {"pt2": program.getvalue(), "TorchScript": script.getvalue()}
    file = BytesIO()
    torch.save(construct.convert(model), file)
    return found | {"attention": file.getvalue()}


def changed(data: bytes, rng: random.Random) -> bytes:
    """Some bytes flipped, cut, repeated, swapped for telling ones, or a payload put in."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, kind = rng.randrange(max(1, len(out))), rng.randrange(6)
        if kind == 0:
            out[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            out[at : at + rng.randrange(1, 20)] = b""
        elif kind == 2:
            out[at:at] = out[at : at + rng.randrange(1, 40)]
        elif kind == 3:
            out[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f"))
        elif kind == 4:
            out[at:at] = PAYLOAD
        else:
            out[at : at + 1] = rng.choice([b"R", b"b", b"\x81", b"(", b"t", b"0", b"N", b")", b"]", b"}", b"\x93"])
    return bytes(out)


def mutated(name: str, data: bytes, rng: random.Random, repaired: bool) -> bytes:
    """A mutation; repaired, it still passes the container's own check."""
    if not repaired:
        return changed(data, rng)
    if name == "safetensors":
        length = int.from_bytes(data[:8], "little")
        header = changed(data[8 : 8 + length], rng)
        return len(header).to_bytes(8, "little") + header + data[8 + length :]
    if name == "legacy":
        cut = rng.randrange(len(data) // 2)
        return data[:cut] + changed(data[cut:], rng)
    records = []
    with zipfile.ZipFile(BytesIO(data)) as archive:
        entries = archive.infolist()
        pickled = [entry for entry in entries if entry.filename.endswith((".pkl", ".json", ".pt"))]
        target = rng.choice([entry for entry in pickled if entry.filename.endswith("data.pkl")] or pickled)
        # Of a program, one of its records may also go, or take the name that makes a file of torch.save.
        fate = rng.randrange(4) if name in ("pt2", "TorchScript") else 0
        for entry in entries:
            content, place = archive.read(entry), entry.filename
            if fate == 1 and entry is target:
                continue
            if fate == 2 and place.endswith(("/archive_format", "/constants.pkl")):
                continue
            if fate == 3 and entry is target:
                place = place.rpartition("/")[0] + "/data.pkl"
            records.append((place, changed(content, rng) if entry is target else content))
    return packed(records)


def fuzz(count: int, seed: int, folder: Path) -> None:
    """Read that many mutated files, in this process, with little memory and little time."""
    torch.set_num_threads(1)
    originals, rng = seeds(), random.Random(seed)
    os.chdir(folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
    place, read_whole, tried = Path("mutated.bin"), 0, Counter[str]()
    for number in range(count):
        name = list(originals)[number // 2 % len(originals)]  # each as often, plain and repaired
        tried[name] += 1
        place.write_bytes(mutated(name, originals[name], rng, repaired=number % 2 == 1))
        try:
            read(place)
            read_whole += 1
        except BadModelFile as error:
            if not str(error).isprintable():
                raise AssertionError(repr(error)) from error
        try:
            with place.open("rb") as file:
                for layer in layers_in(file, "mutated.bin").values():
                    for tensor in layer.tensors.values():
                        tensor.read()
        except Rejected as error:  # by the checker's own reader
            if "\n" in str(error):
                raise AssertionError(repr(error)) from error
    place.unlink()
    assert not list(Path.cwd().iterdir()), "a payload ran"
    formats = ", ".join(f"{name} {times}" for name, times in tried.items())
    sys.stdout.write(f"{count} files, {read_whole} still models; {formats}\n")


def test_the_payload_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its absence below would say nothing."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(b"\x80\x02" + PAYLOAD + b"N.")
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize("count", [60, pytest.param(21_600, marks=pytest.mark.deep)])
def test_mutated_files_are_refused_in_one_line(count: int, tmp_path: Path) -> None:
    folders = [str(Path(__file__).parent), str(ROOT / "tests/support")]
    code = f"import sys; sys.path += {folders}; from test_fuzz import Path, fuzz; fuzz({count}, {count}, Path({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30 + count / 20, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    assert done.stdout.startswith(f"{count} files, ")
    assert all(f" {name} " in done.stdout for name in ("module", "legacy", "safetensors", "pt2", "TorchScript"))
