"""A finished run as its folder holds it, read without writing: beside it a training may be going
on.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from examples.learned.data import BadInput, Pictures
from examples.learned.running import checkpoints
from examples.learned.running.files import records
from examples.learned.settings import Settings
from examples.learned.training import CHECKPOINT, METRICS, budget, network_of


@dataclass(frozen=True)
class Stored:
    """What is drawn of a run.

    Attributes:
        settings: what determined its numbers.
        network: the trained network, on the CPU.
        centres: the steps at which centres were recorded, and log α and τ of all layers then,
            (layers, heads, 3).
        accuracy: the fraction of the held-out pictures that was right after each epoch.
        steps: the steps of the run.
    """

    settings: Settings
    network: nn.Module
    centres: list[tuple[int, Tensor]]
    accuracy: list[float]
    steps: int


def finished(folder: Path) -> dict[str, Any] | None:
    """Of a run that is trained to the end, measured or not, what a choice is made by; None of
    another.

    Returns:
        ``variant``, ``seed``, ``rate`` of where heads look, ``budget``, ``epochs``, ``validation``,
        ``precision``, ``seconds``, ``started``, and ``accuracy`` on the held-out pictures after
        each epoch.

    Raises:
        BadInput: it is damaged.
    """
    state, settings = _read(folder / CHECKPOINT)
    how = settings.how
    if state["epoch"] != how.epochs:
        return None
    lines = records(folder / METRICS, ("accuracy",), lines=True)
    return {
        "variant": settings.variant,
        "seed": settings.seed,
        "rate": how.where,
        "budget": budget(settings, _steps(state, settings)),
        "epochs": how.epochs,
        "validation": how.validation,
        "precision": how.precision,
        "seconds": state["seconds"],
        "started": state["started"],
        "accuracy": [line["accuracy"] for line in lines],
    }


def _read(path: Path) -> tuple[dict[str, Any], Settings]:
    """A checkpoint and its settings."""
    state = checkpoints.read(path)
    if state is None:
        raise BadInput(f"{path}: no such file (give the folder of a run: VARIANT/seed-N)")
    try:
        return state, Settings.read(state["settings"])
    except (LookupError, TypeError) as error:
        raise BadInput(
            f"{path}: damaged: {' '.join(str(error).split())[:120]} (train this run anew)"
        ) from None


def _steps(state: dict[str, Any], settings: Settings) -> int:
    """The steps of a finished run."""
    return settings.how.epochs * -(-len(state["order"]) // settings.how.batch)


def stored(folder: Path, pictures: Pictures) -> Stored:
    """Read a finished run.

    Args:
        folder: of the run, VARIANT/seed-N.
        pictures: those on which it was trained.

    Raises:
        BadInput: there is no such run, it is not finished or damaged, or it was trained on other
            pictures.
    """
    path = folder / CHECKPOINT
    state, settings = _read(path)
    if settings.data != pictures.digests:
        raise BadInput(
            f"{path}: trained on other pictures than {pictures.name} (give their folder: --data)"
        )
    if state["epoch"] != settings.how.epochs:
        done = f"after {state['epoch']} of {settings.how.epochs} epochs"
        raise BadInput(f"{path}: {done} (let it be trained to the end first)")
    with torch.random.fork_rng(devices=[]):
        network = network_of(settings, pictures)
    try:
        network.load_state_dict(state["network"])
        accuracy = [
            line["accuracy"] for line in records(folder / METRICS, ("accuracy",), lines=True)
        ]
        return Stored(settings, network.eval(), state["centres"], accuracy, _steps(state, settings))
    except (LookupError, TypeError, RuntimeError, OSError) as error:
        raise BadInput(
            f"{path}: damaged: {' '.join(str(error).split())[:120]} (train this run anew)"
        ) from None
