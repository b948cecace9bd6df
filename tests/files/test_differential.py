"""The project's reader refuses every mutant of a model file or reads it bit for bit as torch.load(weights_only=True) does."""

import pickle
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from archives import program, saved, storage, table, tensor, text, with_pickle
from commands import bounded, names
from construct.errors import BadModelFile
from construct.files import reading as reading_of_files
from construct.files.checkpoints import unwrap
from odd_files import FAMILIES, PAYLOAD, files, mutant
from readings import alike, bits, by_command, by_torch, unwrapped
from verify.recheck.stored_layers import layers_in
from verify.recheck.strict_input import Rejected


def reading(read: Callable[[], Any]) -> Any:
    """What a reader returns, or raises."""
    try:
        return read()
    except Exception as error:
        return error


def wrong_in_command(content: Any, data: bytes, place: Path) -> list[str] | None:
    """Where the command reads a file differently from torch; None if it refuses the file."""
    try:
        own = by_command(data, place)
    except BadModelFile as error:
        return None if str(error).isprintable() else [f"the command says {error!r}"]
    same = not isinstance(content, Exception) and alike(own, unwrapped(content))
    return [] if same else [f"the command read it, torch {content!r:.300}"]


def wrong_in_checker(content: Any, place: Path) -> list[str] | None:
    """Where the checker has other tensors than torch; None if it refuses the file, or stands something in for an unknown class."""
    try:
        layers = layers_in(place).layers
    except Rejected as error:
        return None if str(error).isprintable() else [f"the checker says {error!r}"]
    if isinstance(content, Exception):
        return None if "was not an allowed global" in str(content) else [f"the checker read it, torch {content!r:.300}"]
    content = unwrapped(content)
    state = content.state_dict() if isinstance(content, torch.nn.Module) else content
    wrong = []
    for path, layer in layers.items():
        for name, stored in layer.tensors.items():
            key = f"{path}.{name}".removeprefix(".")
            if key not in state:  # a module in a list, for instance, which the checker names all the same
                continue
            dtype, shape, data = bits(state[key])
            if (stored.dtype, stored.shape, bytes(stored.data)) != (dtype, shape, data):
                wrong.append(f"the checker has another {path}.{name}")
    return wrong


def test_the_payload_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its absence below would prove nothing."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(b"\x80\x02" + PAYLOAD + b"N.")
    assert names() == {"trace"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.deep)])
def test_a_mutant_is_refused_or_read_as_torch_reads_it(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
                "checker": wrong_in_checker(content, Path("mutant.bin")),
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


TWICE = table((text("a"), tensor(storage(kind="Float"))), (text("b"), tensor(storage(kind="Int"))))
"""A state dict whose two tensors give one storage two types."""


@pytest.mark.nasty(59, 60)
@pytest.mark.filterwarnings("ignore")
def test_what_could_be_read_in_two_ways_is_refused_or_read_as_torch_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, other = saved({"weight": torch.ones(1, 1, 2)}), saved({"weight": torch.zeros(1, 1, 2)})
    with pytest.raises(BadModelFile, match="its records are not where its directory says"):
        by_command(whole + whole, Path("m.pt"))  # torch looks into the directory of the first, zipfile into the other
    for data in (whole + other, whole[:99] + other, whole[:-22] + other[-22:], with_pickle(program(TWICE), bytes(16))):
        content = reading(lambda data=data: by_torch(data))
        assert wrong_in_command(content, data, Path("m.pt")) in (None, [])


@pytest.mark.filterwarnings("ignore")
def test_a_reader_that_changes_one_number_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def changed(content: Any, key: str | None) -> Any:
        content, *rest = unwrap(content, key)
        tensors = content.values() if isinstance(content, dict) else content.parameters()
        with torch.no_grad():
            next(iter(tensors)).view(-1)[0] += 1
        return content, *rest

    for name in ("module", "attention", "state", "bare"):
        data = files()[name]
        assert wrong_in_command(by_torch(data), data, Path("mutant.bin")) == []
        monkeypatch.setattr(reading_of_files, "unwrap", changed)
        assert wrong_in_command(by_torch(data), data, Path("mutant.bin"))
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
