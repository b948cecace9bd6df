"""The data sets: scikit-learn's digits, or CIFAR-10 or Fashion-MNIST from their standard files."""

import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
"""The MD5 of cifar-10-binary.tar.gz, as its authors publish it.  They publish none for the six
files in it.
"""
ARCHIVE_BYTES = 170_052_171
FILES = (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin")
RECORDS = 10_000
"""Pictures in each file of CIFAR-10."""
SIDE = 32
RECORD_BYTES = 1 + 3 * SIDE * SIDE
"""One byte for the label, and a plane each of red, green and blue."""

IDX_FILES = tuple(
    f"{split}-{part}-ubyte"
    for split in ("train", "t10k")
    for part in ("images-idx3", "labels-idx1")
)
"""The files of Fashion-MNIST, as of MNIST: pictures and labels of the train set, then of the test
set.
"""
IDX_HEADERS = tuple(
    b"".join(number.to_bytes(4, "big") for number in numbers)
    for count in (60_000, 10_000)
    for numbers in ((0x803, count, 28, 28), (0x801, count))
)
"""How each file begins: a number for the type and the number of axes, and the length of each axis.
"""


class BadInput(ValueError):
    """Bad input; the message is one line that says what is wrong and what to do."""


@dataclass(frozen=True)
class Pictures:
    """Pictures and labels, to train on and to test on.

    Attributes:
        name: the name of the data set.
        train: float32 (N, C, rows, columns), each channel with mean 0 and deviation 1 over the
            train set.
        train_labels: int64 (N,).
        test: as ``train``, normalised by the same mean and deviation.
        test_labels: int64.
        classes: the number of classes.
        digests: SHA-256 of every file read, by name.
    """

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: int
    digests: dict[str, str]


def digits() -> Pictures:
    """Scikit-learn's 1797 digits of 8 × 8: 1437 to train and 360 to test, stratified, the same
    split for every seed.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data: Any = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)
    parts: Any = train_test_split(
        images, torch.tensor(data.target), test_size=0.2, stratify=data.target, random_state=0
    )
    return _scaled("digits", parts[0], parts[2], parts[1], parts[3], 10, {})


def cifar10(place: str | Path, records: int = RECORDS) -> Pictures:
    """CIFAR-10 from the archive ``cifar-10-binary.tar.gz`` or from a folder with its six files.

    Args:
        place: the path of either.  The archive must have the size and MD5 that its authors publish;
            files in a folder, for which none are published, the right size and labels.  Their
            SHA-256 is kept with the results.
        records: pictures per file; CIFAR-10 has 10,000.

    Raises:
        BadInput: a file is missing, damaged, or something else.
    """
    place = Path(place)
    if place.is_dir():
        contents = {name: _read(place / name) for name in FILES}
    else:
        contents = _unpacked(place)
    parts = {name: _records(content, name, records) for name, content in contents.items()}
    labels = {name: torch.from_numpy(part[:, 0].astype(np.int64)) for name, part in parts.items()}
    images = {
        name: torch.from_numpy(part[:, 1:].reshape(-1, 3, SIDE, SIDE).copy())
        for name, part in parts.items()
    }
    train = torch.cat([images[name] for name in FILES[:-1]])
    train_labels = torch.cat([labels[name] for name in FILES[:-1]])
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    if len(set(digests.values())) < len(digests):
        raise BadInput(
            f"{place}: two of its files are the same, byte for byte, so they are not those of CIFAR-10"
        )
    return _scaled(
        "CIFAR-10", train, train_labels, images[FILES[-1]], labels[FILES[-1]], 10, digests
    )


def fashion_mnist(place: str | Path, headers: Sequence[bytes] = IDX_HEADERS) -> Pictures:
    """Fashion-MNIST from a folder with its four files, not compressed.

    Args:
        place: the folder.
        headers: how each file begins, which determines its length.

    Raises:
        BadInput: a file is missing, damaged, or something else.
    """
    contents = {name: _read(Path(place) / name) for name in IDX_FILES}
    parts = []
    for (name, content), header in zip(contents.items(), headers, strict=True):
        shape = [int.from_bytes(header[at : at + 4], "big") for at in range(4, len(header), 4)]
        if not content.startswith(header) or len(content) != len(header) + prod(shape):
            size = " × ".join(map(str, shape))
            raise BadInput(
                f"{name}: {len(content)} bytes, not a header and {size}: damaged, or another file"
            )
        parts.append(
            torch.from_numpy(
                np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()
            )
        )
    train, train_labels, test, test_labels = parts
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    if max(train_labels.max(), test_labels.max()) > 9:
        raise BadInput(f"{place}: it has labels above 9: damaged")
    return _scaled(
        "Fashion-MNIST",
        train[:, None],
        train_labels.long(),
        test[:, None],
        test_labels.long(),
        10,
        digests,
    )


def _scaled(
    name: str,
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    classes: int,
    digests: dict[str, str],
) -> Pictures:
    mean = train.double().mean((0, 2, 3), keepdim=True)
    deviation = train.double().std((0, 2, 3), keepdim=True).clamp(min=1e-6)

    def scaled(images: Tensor) -> Tensor:
        return ((images.float() - mean.float()) / deviation.float()).contiguous()

    return Pictures(name, scaled(train), train_labels, scaled(test), test_labels, classes, digests)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{path}: {error.strerror} (give --data a folder with {', '.join(FILES)}, or the archive)"
        ) from None


def _unpacked(path: Path) -> dict[str, bytes]:
    """The six files of the archive, extracted in memory."""
    content = _read(path)
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if len(content) != ARCHIVE_BYTES or digest != ARCHIVE_MD5:
        reason = f"{len(content)} bytes, MD5 {digest}, where cifar-10-binary.tar.gz has {ARCHIVE_BYTES} and {ARCHIVE_MD5}"
        raise BadInput(f"{path}: {reason} (fetch it again)")
    files = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            extracted = archive.extractfile(member) if name in FILES and member.isfile() else None
            if extracted is not None:
                files[name] = extracted.read()
    return {name: files[name] for name in FILES}


def _records(content: bytes, name: str, records: int) -> np.ndarray:
    """The rows of one file, uint8 (records, 3073)."""
    if len(content) != records * RECORD_BYTES:
        reason = f"{len(content)} bytes, not {records} × {RECORD_BYTES} = {records * RECORD_BYTES}"
        raise BadInput(
            f"{name}: {reason}: truncated, or not CIFAR-10's binary version (unpack the archive again)"
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(records, RECORD_BYTES)
    wrong = np.flatnonzero(rows[:, 0] > 9)
    if len(wrong):
        raise BadInput(
            f"{name}: record {wrong[0]} has the label {rows[wrong[0], 0]}, not 0 to 9: damaged (unpack it again)"
        )
    return rows
