"""A finished run as its folder holds it, read without writing: beside it a training may be going on."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from examples.learned.data import BadInput, Pictures
from examples.learned.running import checkpoints
from examples.learned.running.files import records
from examples.learned.settings import Settings
from examples.learned.training import CHECKPOINT, METRICS, network_of


@dataclass(frozen=True)
class Stored:
    """What is drawn of a run.

    Attributes:
        settings: what determined its numbers.
        network: the trained network, on the CPU.
        centres: the steps at which centres were recorded, and log α and τ of all layers then, (layers, heads, 3).
        accuracy: the fraction of the held-out pictures that was right after each epoch.
        steps: the steps of the run.
    """

    settings: Settings
    network: nn.Module
    centres: list[tuple[int, Tensor]]
    accuracy: list[float]
    steps: int


def stored(folder: Path, pictures: Pictures) -> Stored:
    """Read a finished run.

    Args:
        folder: of the run, VARIANT/seed-N.
        pictures: those on which it was trained.

    Raises:
        BadInput: there is no such run, it is not finished or damaged, or it was trained on other pictures.
    """
    path = folder / CHECKPOINT
    state = checkpoints.read(path)
    if state is None:
        raise BadInput(f"{path}: no such file (give the folder of a run: VARIANT/seed-N)")
    try:
        settings = Settings.read(state["settings"])
        epoch, epochs = state["epoch"], settings.how.epochs
        if settings.data != pictures.digests:
            raise BadInput(f"{path}: trained on other pictures than {pictures.name} (give their folder: --data)")
        if epoch != epochs:
            raise BadInput(f"{path}: after {epoch} of {epochs} epochs (let it be trained to the end first)")
        with torch.random.fork_rng(devices=[]):
            network = network_of(settings, pictures)
        network.load_state_dict(state["network"])
        batches = -(-len(state["order"]) // settings.how.batch)
        lines = records(folder / METRICS, ("accuracy",), lines=True)
        return Stored(
            settings, network.eval(), state["centres"], [line["accuracy"] for line in lines], epochs * batches
        )
    except (LookupError, TypeError, RuntimeError, OSError) as error:
        raise BadInput(f"{path}: damaged: {' '.join(str(error).split())[:120]} (train this run anew)") from None
