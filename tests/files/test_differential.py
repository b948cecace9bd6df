"""The command and the checker refuse every mutant of a model file or read it bit for bit as torch.load does."""

import contextlib
import pickle
import random
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from commands import bounded, names
from construct.errors import BadModelFile
from odd_files import (
    FAMILIES,
    NAMES_CHANGED,
    PAYLOAD,
    THINGS_DONE,
    files,
    mutant,
    odd_archive,
    odd_model,
    odd_pickle,
    odd_program,
    odd_records,
    odd_state,
)
from readings import alike, by_checker, by_command, by_pickle, by_torch, differences, unwrapped
from verify.recheck import archives, pickles, weight_files
from verify.recheck.archives import Archive, Record
from verify.recheck.pickles import Pickled, Walk
from verify.recheck.weight_files import Rejected


def reading(read: Callable[[], Any]) -> Any:
    """What a reader returns, or raises."""
    try:
        return read()
    except Exception as error:
        return error


def wrong_in_checker(content: Any, data: bytes) -> list[str] | None:
    """Where the checker reads a file differently from torch; None if it refuses the file."""
    try:
        layers = by_checker(data)
    except Rejected as error:
        return None if str(error).isprintable() else [f"the checker says {error!r}"]
    content = content() if callable(content) and not isinstance(content, torch.nn.Module) else content
    if isinstance(content, Exception) and data[:2] == b"PK":
        content = reading(lambda: by_pickle(data))  # with any classes
    if isinstance(content, Exception):
        return [f"the checker read it, torch {content!r:.300}"]
    try:
        return differences(content, layers)
    except BadModelFile as error:  # no model that the command recognises
        return [f"the checker has {[*layers]}, the command none: {error}"] if layers else []
    except Exception as error:
        return [f"the checker read it, and what torch made of it cannot be gone through: {error!r:.200}"]


def wrong_in_command(content: Any, data: bytes, place: Path) -> list[str] | None:
    """Where the command reads a file differently from torch; None if it refuses the file."""
    try:
        own = by_command(data, place)
    except BadModelFile as error:
        return None if str(error).isprintable() else [f"the command says {error!r}"]
    same = not isinstance(content, Exception) and alike(own, unwrapped(content))
    return [] if same else [f"the command read it, torch {content!r:.300}"]


def test_the_payload_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its absence below would prove nothing."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(b"\x80\x02" + PAYLOAD + b"N.")
    assert names() == {"trace"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.deep)])
def test_a_mutant_is_refused_or_read_as_torch_reads_it(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within little memory, and no code in it runs."""
    monkeypatch.chdir(tmp_path)
    files()
    rng, wrong = random.Random(1), []
    families = {family: Counter[str]() for family in FAMILIES}
    with bounded(60 + count / 20):
        for index in range(count):
            family, data = mutant(rng)
            content = reading(lambda data=data: by_torch(data))
            results = {
                "command": wrong_in_command(content, data, Path("mutant.bin")),
                "checker": wrong_in_checker(content, data),
                "torch": None if isinstance(content, Exception) else [],
            }
            families[family].update(["mutants", *(reader for reader, odd in results.items() if odd is not None)])
            wrong += [f"{index} ({family}): {odd[0]}" for odd in results.values() if odd]
    print(families)
    assert not wrong
    assert names() == {"mutant.bin"}, "a payload ran"
    assert all(tally["mutants"] for tally in families.values())
    # The comparison needs files that are read.
    assert sum(tally["command"] > 0 for tally in families.values()) > len(FAMILIES) - (3 if count < 10_000 else 1)


# ---- the search finds planted bugs -----------------------------------------------------------------------------------------


def found_by_zipfile(file: Any) -> Archive:
    """The records as Python's zipfile finds them, as the checker once did."""
    with contextlib.suppress(zipfile.BadZipFile, NotImplementedError):
        archive = zipfile.ZipFile(file)
        records = {}
        for entry in archive.infolist():
            with archive.open(entry) as stream:
                start = getattr(stream, "_orig_compress_start")  # noqa: B009  where zipfile goes on reading
            records[entry.filename.partition("/")[2]] = Record(start, entry.file_size, 0, True)
        if "data.pkl" in records:
            return Archive(file, {name: record for name, record in records.items() if name != ".format_version"})
    raise Rejected("no zip")


def any_storage(walk: Walk, described: Any) -> Pickled:
    _, kind, key, _, count = described
    walk.storages.setdefault(key, (kind.args, count))
    return Pickled("storage", described)


def any_state(_: Walk, target: Any, state: Any) -> None:
    target.state = state


def name_with_escapes(walk: Walk) -> str:
    end = walk._pickle.index(b"\n", walk._at)
    return walk._take(end + 1 - walk._at)[:-1].decode("unicode_escape")


def split(name: str) -> tuple[str, str]:
    path, _, last = name.rpartition(".")
    return path, last


def second_directory(rng: random.Random) -> bytes:
    return odd_archive(rng, "a second directory")


def names_changed(rng: random.Random) -> bytes:
    return odd_pickle(rng, NAMES_CHANGED)


def things_done(rng: random.Random) -> bytes:
    return odd_pickle(rng, THINGS_DONE)


PLANTED: dict[str, tuple[Any, str, Any, Callable[[random.Random], bytes]]] = {
    "the directory that zipfile finds": (weight_files, "archive_in", found_by_zipfile, second_directory),
    "whatever says how to read": (archives, "_check_format", lambda archive: None, odd_records),
    "the last type of a storage": (Walk, "_storage", any_storage, odd_program),
    "what is done to storages and tensors": (Walk, "_give", lambda *_: None, things_done),
    "attributes of a dict": (Walk, "_fill", any_state, odd_program),
    "arguments of values": (pickles, "_makes_a_value", lambda *_: True, odd_pickle),
    "arguments of tensors": (Walk, "_rebuilds", lambda *_: True, odd_pickle),
    "escapes in names": (Walk, "_line", name_with_escapes, names_changed),
    "any name of a child": (weight_files, "_check_names", lambda *_: None, odd_model),
    "any name of a tensor": (weight_files, "_path_of", split, odd_state),
}
"""The check that is bypassed, where and how, and the mutants that reveal it."""


def differing(make: Callable[[random.Random], bytes], count: int) -> Iterator[str]:
    rng = random.Random(1)
    for _ in range(count):
        data = make(rng)
        yield from wrong_in_checker(lambda data=data: reading(lambda: by_torch(data)), data) or ()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", PLANTED)
def test_a_reader_that_passes_something_over_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, instead, make = PLANTED[fault]
    assert not list(differing(make, 40))
    monkeypatch.setattr(place, name, instead)
    assert next(differing(make, 2000), None) is not None
