"""Where a run is, written so that it can go on bit for bit: whole or not at all, and read without running anything."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.learned.data import BadInput
from examples.learned.replacing import replacing


def random_states() -> dict[str, Any]:
    """The states of all random number generators, in types that are read back safely."""
    kind, keys, position, gauss, cached = np.random.get_state()  # noqa: NPY002  whoever uses it, it has to go on
    version, numbers, spare = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [
            str(kind),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(gauss),
            float(cached),
        ],
        "python": [version, list(numbers), spare],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Go on from there."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, numbers, spare = states["python"]
    random.setstate((version, tuple(numbers), spare))


def write(state: dict[str, Any], path: Path) -> None:
    """A run that is killed has the old one or the new."""
    with replacing(path) as file:
        torch.save(state, file)


def read(path: Path) -> dict[str, Any] | None:
    """What was written; None if there is nothing.

    Raises:
        BadInput: it is damaged.
    """
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes of torch's reader
        told = str(error).strip().split("\n")[0][:120]
        raise BadInput(f"{path}: damaged, or no checkpoint: {told} (remove it to train this run anew)") from None
    if not isinstance(state, dict) or not isinstance(state.get("settings"), dict):
        raise BadInput(f"{path}: no checkpoint of a run (remove it to train this run anew)")
    return state
