"""Every mutant of a model file is refused, or read bit for bit as torch.load reads it: by the command and by the checker."""

import os
import random
import resource
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from construct.errors import BadModelFile
from tests.odd_files import FAMILIES, files, mutant, odd_archive
from tests.readings import alike, by_checker, by_command, by_pickle, by_torch, differences, unwrapped
from verify import archives, arrays, opcodes
from verify.arrays import Rejected

ROOT = Path(__file__).parents[1]


def judged(data: bytes, place: Path | None) -> tuple[str, list[str]]:
    """How a file was read ("torch", "command", "checker", each that read it), and in what a reading differs from torch's."""
    read, wrong = [], []
    try:
        content: Any = by_torch(data)
        read.append("torch")
    except Exception as error:
        content = error
    if place is not None:
        try:
            own = by_command(data, place)
            read.append("command")
            if isinstance(content, Exception) or not alike(own, unwrapped(content)):
                wrong.append(f"the command read it, torch {content!r:.60}")
        except BadModelFile as error:
            assert str(error).isprintable(), error
    try:
        layers = by_checker(data)
    except Rejected as error:
        assert str(error).isprintable(), error
        return " ".join(read), wrong
    read.append("checker")
    if isinstance(content, Exception) and data[:2] == b"PK":
        try:
            content = by_pickle(data)  # with classes that no list has
        except Exception as error:
            content = error
    if isinstance(content, Exception):
        wrong.append(f"the checker read it, torch {content!r:.300}")
        return " ".join(read), wrong
    try:
        wrong += differences(content, layers)
    except BadModelFile as error:  # no model that the command would know
        wrong += [f"the checker has {[*layers]}, the command none: {error}"] if layers else []
    except Exception as error:
        wrong.append(f"the checker read it, and what torch made of it cannot be gone through: {error!r:.200}")
    return " ".join(read), wrong


def search(count: int, seed: int, folder: Path) -> None:
    """Judge that many mutants, in this process, with little memory."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.chdir(folder)
    files()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
    rng, tally, wrong = random.Random(seed), Counter[str](), []
    for index in range(count):
        family, data = mutant(rng)
        read, odd = judged(data, Path("mutant.bin"))
        tally[f"{family} of {read or 'none'}"] += 1
        tally.update(["mutants", *read.split()])
        if odd:
            wrong.append(f"{index} ({family}): {odd[0]}")
            Path(f"/tmp/readers/wrong/{seed}_{index}.bin").write_bytes(data)
    told = {reader: f"{tally['mutants'] - tally[reader]} refused, {tally[reader]} read" for reader in ("torch", "command", "checker")}
    print(f"{count} mutants, {len(wrong)} read differently from torch; {told}")
    print(*sorted(f"{name}: {n}" for name, n in tally.items() if " of " in name), sep="\n")
    print(*wrong[:40], sep="\n")


if __name__ == "__main__":
    search(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
