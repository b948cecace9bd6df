"""Fine-tuning of a trained CNN, in several ways on the same pictures in the same order."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import verify
from construct.heads import tap_shifts
from examples.learned.running.console import Diverged, stepped
from examples.taught.converted import (
    WAYS,
    as_attention,
    attentions,
    inputs_of,
    network_for,
    softened,
    trainable,
)

TASKS = {
    "same": "the pictures that the CNN learned from",
    "shifted": "pictures shifted by up to 2 pixels",
}
LADDER = (1024.0, 16.0, 8.0, 4.0, 2.0)
"""The α at which the converted network is measured before training."""
LOOKED = 60
"""The number of test pictures over which attention is compared."""
REACH = 2
"""The most pixels by which digits are shifted along each axis."""


@dataclass(frozen=True)
class Course:
    """The hyperparameters of fine-tuning.

    Attributes:
        task: a key of ``TASKS``.
        epochs: passes over the train pictures.
        batch: pictures per step.
        rate: the learning rate of taps, biases and norms, for the CNN and for attention.
        aim_rate: the learning rate of the parameters that determine where heads look.
        alpha: the initial sharpness, where it is lowered.
        key_dim: D_k of content attention.
        content_layers: the layers that may learn content, by the first part of their names.
        execution: of the attention layers that learn where to look.
        audited: the number of channels on which an audit reads the map of a layer.
    """

    task: str
    epochs: int
    batch: int
    rate: float
    aim_rate: float
    alpha: float
    key_dim: int
    content_layers: tuple[str, ...]
    execution: str = "dense"
    audited: int = 8

    def budget(self, pictures: int) -> float:
        """The sum of the rates of where heads look over the schedule: about as far as Adam can move
        a centre, in pixels.
        """
        steps = self.epochs * math.ceil(pictures / self.batch)
        return self.aim_rate * sum(
            (1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)
        )


def shifted(x: Tensor, generator: torch.Generator) -> Tensor:
    """Pictures shifted by up to ``REACH`` pixels along each axis, with zeros coming in:
    (B, C, n, m) → the same shape.
    """
    rows, columns = x.shape[2:]
    padded = nn.functional.pad(x, (REACH,) * 4)
    places = torch.randint(0, 2 * REACH + 1, (len(x), 2), generator=generator).tolist()
    return torch.stack(
        [one[:, r : r + rows, c : c + columns] for one, (r, c) in zip(padded, places, strict=True)]
    )


def shifted_test(test: Tensor) -> Tensor:
    """The test pictures, shifted in the same way for all runs."""
    return shifted(test, torch.Generator().manual_seed(0))


@torch.no_grad()
def logits_of(network: nn.Module, x: Tensor) -> Tensor:
    """Compute the logits (B, 10) in batches."""
    return torch.cat([network(batch) for batch in x.split(120)])


def accuracy(network: nn.Module, x: Tensor, labels: Tensor) -> float:
    """The share of pictures whose largest logit is that of the right class."""
    return float((logits_of(network, x).argmax(1) == labels).double().mean())


def day_one(cnn: nn.Sequential, x: Tensor, labels: Tensor) -> list[dict[str, Any]]:
    """Compare the converted network before training with the CNN, at every α of the ladder.

    Returns:
        For each α: the greatest difference of a logit, over the greatest logit; how many
        predictions differ; the accuracy.
    """
    expected, sharp = logits_of(cnn, x), as_attention(cnn)
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


def continue_training(
    cnn: nn.Sequential,
    parts: list[Tensor],
    way: str,
    course: Course,
    seed: int,
    tell: Callable[[int, str], None],
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Fine-tune a trained CNN.

    Args:
        cnn: the CNN to start from; not changed.
        parts: train and test pictures, train and test labels.
        way: a key of ``WAYS``.
        course: the hyperparameters.
        seed: the seed of the order of pictures, of shifts, and of W_qry and W_key.
        tell: progress callback with the epochs done and a status.

    Returns:
        The network, and a record for every epoch; the first, 0, is before the first step.

    Raises:
        Diverged: the loss is no longer a number.
    """
    x, test, labels, test_labels = parts
    if course.task == "shifted":
        test = shifted_test(test)
    network = network_for(
        cnn, WAYS[way], course.alpha, course.key_dim, seed, course.content_layers, course.execution
    )
    values, positional = trainable(network)
    groups = [
        {"params": parameters, "lr": lr}
        for parameters, lr in ((values, course.rate), (positional, course.aim_rate))
        if parameters
    ]
    optimiser = torch.optim.Adam(groups)
    epochs = course.epochs * WAYS[way].longer
    steps = epochs * math.ceil(len(x) / course.batch)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=max(1, steps))
    order = torch.Generator().manual_seed(seed)
    start, done = time.monotonic(), 0
    rows = [
        {"epoch": 0, "loss": None, "accuracy": accuracy(network, test, test_labels), "seconds": 0.0}
    ]
    for epoch in range(1, epochs + 1):
        total = 0.0
        for chosen in torch.randperm(len(x), generator=order).split(course.batch):
            pictures = shifted(x[chosen], order) if course.task == "shifted" else x[chosen]
            loss = nn.functional.cross_entropy(network(pictures), labels[chosen])
            value = float(loss.detach())
            if not math.isfinite(value):
                reason = (
                    f"{way}, {course.task}, seed {seed}: the loss is {value} at step {done + 1}"
                )
                raise Diverged(f"{reason} (try a smaller --rate or --aim-rate)")
            optimiser.zero_grad()
            loss.backward()
            stepped(
                optimiser,
                f"{way}, {course.task}, seed {seed}: a step is longer than float32 can say (try a smaller --rate)",
            )
            falling.step()
            total, done = total + value * len(chosen), done + 1
            tell(epoch - 1, f"loss {value:.3f}")
        rows.append(
            {
                "epoch": epoch,
                "loss": total / len(x),
                "accuracy": accuracy(network, test, test_labels),
                "seconds": round(time.monotonic() - start, 3),
            }
        )
    return network, rows


@torch.no_grad()
def layers_of(network: nn.Module, x: Tensor, audited: int = 8) -> list[dict[str, Any]]:
    """How convolution-like each attention layer is.

    Args:
        network: a network with attention layers; a CNN has no rows.
        x: pictures, for the layers' real inputs.
        audited: the number of channels on which an audit reads the map of a layer.

    Returns:
        For each layer: by black-box audit, on white noise, the distance to the nearest convolution
        and how far other inputs move the attention of the heads, on average; the same (``swayed``)
        for the layer's inputs from the pictures, as the mean distance to the average attention; the
        least and the greatest α; the largest distance of a centre from the nearest integer shift;
        and how far centres moved from the CNN's taps, the mean and the most, in pixels.
    """
    rows = []
    for name, given in inputs_of(network, x[:LOOKED]).items():
        layer = attentions(network)[name]
        # The kernel is no larger than the CNN's, pixels between its taps included: leakage beyond
        # it counts as distance.
        kernel_size = [span + 1 for span in layer.geometry.span]
        audit = verify.audit(
            copy.deepcopy(layer),
            tuple(given.shape[2:]),
            kernel_size=kernel_size,
            most_channels=audited,
        )
        p = layer.attention_probabilities(given)
        alpha, tau = layer.centres()
        # heads start in the order of the taps
        moved = (tau - torch.tensor(tap_shifts(layer.geometry)).to(tau)).norm(dim=1)
        rows.append(
            {
                "layer": name.removesuffix(".conv"),
                "distance": audit.distance,
                "content": None
                if audit.heads is None
                else sum(h.content for h in audit.heads) / len(audit.heads),
                "swayed": float((p - p.mean(0)).abs().sum(-1).mean() / 2) if len(p) > 1 else 0.0,
                "alpha": [float(alpha.min()), float(alpha.max())],
                "between": float((tau - tau.round()).abs().max()),
                "moved": [float(moved.mean()), float(moved.max())],
            }
        )
    return rows
