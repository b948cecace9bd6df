"""The optimizer, with a rate of its own for where heads look, and the schedule of the rate."""

import math
from typing import Any

import torch
from torch import nn

from examples.learned.settings import Settings
from examples.learned.variants import positions_of


def optimiser_of(network: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer of all trainable parameters: where heads look at a rate of its own; no weight
    decay there and on vectors.
    """
    where = [p for module in network.modules() for p in positions_of(module)]
    apart = {id(p) for p in where}
    others = [p for p in network.parameters() if p.requires_grad and id(p) not in apart]
    groups: list[dict[str, Any]] = [
        {
            "params": [p for p in others if p.dim() >= 2],
            "weight_decay": settings.how.decay,
            "multiple": 1.0,
        },
        {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0, "multiple": 1.0},
    ]
    if where:
        groups.append({"params": where, "weight_decay": 0.0, "multiple": settings.how.where})
    if settings.how.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=settings.how.rate, momentum=0.9)
    return torch.optim.AdamW(groups, lr=settings.how.rate)


def rate_at(step: int, steps: int, settings: Settings) -> float:
    """The learning rate of a step: the whole schedule, so that a checkpoint need only keep the
    step.
    """
    rise = max(1, round(settings.how.warmup * steps))
    if step < rise:
        return settings.how.rate * (step + 1) / rise
    return settings.how.rate * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise))) / 2
