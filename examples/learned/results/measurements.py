"""All that is measured of a run when it is trained; it can be measured again at any time."""

import json
from pathlib import Path
from typing import Any

import torch

from examples.learned.network import AttentionNet
from examples.learned.results.maps import PICTURES
from examples.learned.results.ruler import measured
from examples.learned.results.substitution import accuracy, accuracy_after, explained_variance
from examples.learned.training import Run

RULER = 4
"""The version of what is measured: results of another one are measured anew from their checkpoints.
"""
SUBSTITUTION = 2
"""The first version since which convolutions are put in a layer's place as now: what later results
say of that is kept.
"""
OF_TRAINING = ("command", "machine", "ended", "test_accuracy")
"""What a result says of the training, and not of the measuring."""
CLASSIFIED = 2000
"""Test pictures that are classified after a layer was replaced."""
FITTED = 600
"""Pictures on which a convolution is fitted to a layer's real inputs and judged, half of them each.
"""


def is_measured(path: Path) -> bool:
    """Whether a result exists, measured by the ruler as it is now."""
    return path.exists() and json.loads(path.read_text()).get("ruler") == RULER


def earlier_of(path: Path) -> dict[str, Any]:
    """A result by whatever ruler; empty if there is none."""
    return json.loads(path.read_text()) if path.exists() else {}


@torch.no_grad()
def measurements(run: Run, earlier: dict[str, Any]) -> dict[str, Any]:
    """What is measured of the layers of a trained network, and of the same network before its first
    step.

    Args:
        run: trained to the end.
        earlier: its result by an older ruler, empty if there is none.
    """
    network, before = run.network, run.untrained().to(run.device)
    if not isinstance(network, AttentionNet) or not isinstance(before, AttentionNet):
        return {"layers": [], "untrained": []}
    x, name = run.held[0].to(run.device)[:PICTURES], (run.settings.variant, run.settings.seed)
    layers, score = (
        _substituted(run, network) if earlier.get("ruler", 0) < SUBSTITUTION else _kept(earlier)
    )
    return {
        "layers": [
            row | layer
            for row, layer in zip(measured(network, before, x, name), layers, strict=True)
        ],
        "untrained": measured(before, before, x, name),
        "accuracy_of_substitution": score,
    }


def _kept(earlier: dict[str, Any]) -> tuple[list[dict[str, Any]], float]:
    """What an earlier result says of convolutions in the layers' place."""
    rows = [
        {key: layer[key] for key in ("explained", "substituted")} for layer in earlier["layers"]
    ]
    return rows, earlier["accuracy_of_substitution"]


def _substituted(run: Run, network: AttentionNet) -> tuple[list[dict[str, Any]], float]:
    """What convolutions do in the layers' place, and the accuracy of the network as it is on the
    same pictures.
    """
    x = run.held[0].to(run.device)
    pictures, labels = (
        t[:CLASSIFIED].to(run.device) for t in (run.pictures.test, run.pictures.test_labels)
    )
    variances = explained_variance(network, x[: 2 * (min(len(x), FITTED) // 2)])
    scores = accuracy_after(network, pictures, labels, x[:PICTURES])
    rows = [
        {"explained": r2, "substituted": row} for r2, row in zip(variances, scores, strict=True)
    ]
    return rows, accuracy(network, pictures, labels)
