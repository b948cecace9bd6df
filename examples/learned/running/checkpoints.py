"""Checkpoints that resume a run bit for bit, written atomically and read with ``weights_only``."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.learned.data import BadInput
from examples.learned.running.files import replacing


def random_states() -> dict[str, Any]:
    """The states of all random number generators, in types that ``weights_only`` loads."""
    kind, keys, position, gauss, cached = np.random.get_state()  # noqa: NPY002  restored for whoever uses it
    version, numbers, spare = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
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
    """Restore the states of all random number generators."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, numbers, spare = states["python"]
    random.setstate((version, tuple(numbers), spare))


def write(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint atomically."""
    with replacing(path) as file:
        torch.save(state, file)


def read(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint; None if there is none.

    Raises:
        BadInput: it is damaged.
    """
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch raises on a damaged file
        reason = str(error).strip().split("\n")[0][:120]
        raise BadInput(
            f"{path}: damaged, or no checkpoint: {reason} (remove it to train this run anew)"
        ) from None
    if not isinstance(state, dict) or not isinstance(state.get("settings"), dict):
        raise BadInput(f"{path}: no checkpoint of a run (remove it to train this run anew)")
    return state
