"""Going on from a trained CNN, in several ways on the same pictures in the same order."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import construct
import verify
from construct.heads import tap_shifts
from examples.learned.running.console import Diverged, stepped
from examples.taught.networks import attentions, inputs_of, softened
from examples.taught.tasks import Task

LADDER = (1024.0, 16.0, 8.0, 4.0, 2.0)
"""The α at which the converted network is measured before training."""
LOOKED = 60
"""The number of test pictures over which attention is compared."""
FASTER = 25
"""The rate of α and τ over that of everything else: at the network's own rate heads could not move."""


@dataclass(frozen=True)
class Course:
    """The hyperparameters of going on.

    Attributes:
        epochs: passes over the pictures.
        batch: pictures per step.
        rate: the learning rate at first; it falls by a cosine.
        audited: the number of channels on which an audit reads the map of a layer.
    """

    epochs: int
    batch: int
    rate: float
    audited: int = 8


@torch.no_grad()
def logits_of(network: nn.Module, x: Tensor) -> Tensor:
    """Compute the logits (B, classes) in batches."""
    return torch.cat([network(batch) for batch in x.split(120)])


def accuracy(network: nn.Module, x: Tensor, labels: Tensor) -> float:
    """The share of pictures whose largest logit is that of the right class."""
    return float((logits_of(network, x).argmax(1) == labels).double().mean())


def accuracies(network: nn.Module, task: Task) -> dict[str, float]:
    """The accuracy on all of a task's test pictures."""
    return {name: accuracy(network, *batch) for name, batch in task.tests.items() if len(batch[0])}


def day_one(cnn: nn.Sequential, x: Tensor, labels: Tensor) -> list[dict[str, Any]]:
    """Compare the converted network before training with the CNN, at every α of the ladder.

    Returns:
        For each α: the greatest difference of a logit, over the greatest logit; how many
        predictions differ; the accuracy.
    """
    expected, sharp = logits_of(cnn, x), construct.convert(cnn)
    rows = []
    for alpha in LADDER:
        logits = logits_of(softened(sharp, alpha), x)
        rows.append(
            {
                "alpha": alpha,
                "apart": float((logits - expected).abs().max() / expected.abs().max()),
                "predictions": int((logits.argmax(1) != expected.argmax(1)).sum()),
                "accuracy": float((logits.argmax(1) == labels).double().mean()),
            }
        )
    return rows


def groups_of(network: nn.Module, rate: float) -> list[dict[str, Any]]:
    """The parameters that learn, for an optimiser: log α and τ of heads that move have a faster
    rate.
    """
    learned = {name: p for name, p in network.named_parameters() if p.requires_grad}
    moving = [name for name in learned if name.endswith((".original0", ".original1"))]
    groups = [{"params": [p for name, p in learned.items() if name not in moving], "lr": rate}]
    if moving:
        groups.append({"params": [learned[name] for name in moving], "lr": FASTER * rate})
    return groups


def continue_training(
    network: nn.Module,
    task: Task,
    course: Course,
    seed: int,
    name: str,
    tell: Callable[[int, str], None],
) -> list[dict[str, Any]]:
    """Train a network further, in place and in eval mode: batch normalisation by batches would
    itself change the function.

    Args:
        network: the network.
        task: its pictures.
        course: the hyperparameters.
        seed: the seed of the order of pictures and of what the task draws.
        name: of the run, for messages.
        tell: progress callback with the epochs done and a status.

    Returns:
        A record for every epoch: its loss, the accuracy on the task's own test pictures, and the
        seconds of CPU time since the first step, without tests; the first, 0, is before that step.

    Raises:
        Diverged: the loss is no longer a number.
    """
    optimiser = torch.optim.Adam(groups_of(network, course.rate))
    steps = course.epochs * math.ceil(task.size / course.batch)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=max(1, steps))
    order = torch.Generator().manual_seed(seed)
    own = next(iter(task.tests.values()))
    rows: list[dict[str, Any]] = [
        {"epoch": 0, "loss": None, "accuracy": accuracy(network, *own), "seconds": 0.0}
    ]
    done, spent = 0, 0.0
    for epoch in range(1, course.epochs + 1):
        start, total = time.process_time(), 0.0
        for chosen in torch.randperm(task.size, generator=order).split(course.batch):
            pictures, labels = task.draw(chosen, order)
            loss = nn.functional.cross_entropy(network(pictures), labels)
            value = float(loss.detach())
            if not math.isfinite(value):
                reason = f"{name}: the loss is {value} at step {done + 1}"
                raise Diverged(f"{reason} (try a smaller --rates)")
            optimiser.zero_grad()
            loss.backward()
            long = f"{name}: a step is longer than float32 can say (try a smaller --rates)"
            stepped(optimiser, long)
            falling.step()
            total, done = total + value * len(chosen), done + 1
            tell(epoch - 1, f"loss {value:.3f}")
        spent += time.process_time() - start
        row = {"epoch": epoch, "loss": total / task.size, "accuracy": accuracy(network, *own)}
        rows.append(row | {"seconds": round(spent, 3)})
    return rows


@torch.no_grad()
def layers_of(network: nn.Module, x: Tensor, added: int, audited: int = 8) -> list[dict[str, Any]]:
    """How convolution-like each attention layer is that learned.

    Args:
        network: the network; a CNN has no rows.
        x: pictures, for the layers' real inputs.
        added: how many heads were added to each layer.
        audited: the number of channels on which an audit reads the map of a layer.

    Returns:
        For each layer: by black-box audit, on white noise, the distance to the nearest convolution;
        the share of W_out's norm that is the added heads'; how far pictures move the attention of
        the added heads, as the mean distance to the average attention (``swayed``); the least and
        the greatest α of the kernel's heads; and how far their centres moved from the CNN's taps,
        the mean and the most, in pixels.
    """
    rows = []
    for name, given in inputs_of(network, x[:LOOKED]).items():
        layer = attentions(network)[name]
        taps = torch.tensor(tap_shifts(layer.geometry))
        if layer.heads == len(taps):
            continue
        # The kernel is no larger than the CNN's, pixels between its taps included: leakage beyond
        # it counts as distance.
        kernel_size = [span + 1 for span in layer.geometry.span]
        shape = tuple(given.shape[2:])
        audit = verify.audit(
            copy.deepcopy(layer), shape, kernel_size=kernel_size, most_channels=audited
        )
        p = layer.attention_probabilities(given)[:, -added:]
        alpha, tau = (part[:-added] for part in layer.centres())
        # heads start in the order of the taps
        moved = (tau - taps.to(tau)).norm(dim=1)
        rows.append(
            {
                "layer": name.removesuffix(".conv"),
                "distance": audit.distance,
                "share": float(layer.w_out[-added:].norm() / layer.w_out.norm()),
                "swayed": float((p - p.mean(0)).abs().sum(-1).mean() / 2),
                "alpha": [float(alpha.min()), float(alpha.max())],
                "moved": [float(moved.mean()), float(moved.max())],
            }
        )
    return rows
