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

RULER = 3
"""The version of what is measured: results of another one are measured anew from their checkpoints."""
OF_TRAINING = ("command", "machine", "ended", "test_accuracy")
"""What a result says of the training, and not of the measuring."""
CLASSIFIED = 2000
"""Test pictures that are classified after a layer was replaced."""
FITTED = 600
"""Pictures on which a convolution is fitted to a layer's real inputs and judged, half of them each."""


def is_measured(path: Path) -> bool:
    """Whether a result exists, measured by the ruler as it is now; a run's layers can be measured again at any time."""
    return path.exists() and json.loads(path.read_text()).get("ruler") == RULER


def of_training(path: Path) -> dict[str, Any]:
    """What a result, by whatever ruler, says of the training; nothing if there is none."""
    result = json.loads(path.read_text()) if path.exists() else {}
    return {key: result[key] for key in OF_TRAINING if key in result}


@torch.no_grad()
def measurements(run: Run) -> dict[str, Any]:
    """What is measured of the layers of a trained network, and of the same network before its first step."""
    network, before = run.network, run.untrained().to(run.device)
    if not isinstance(network, AttentionNet) or not isinstance(before, AttentionNet):
        return {"layers": [], "untrained": []}
    x = run.held[0].to(run.device)
    after = measured(network, before, x[:PICTURES])
    pictures, labels = (t[:CLASSIFIED].to(run.device) for t in (run.pictures.test, run.pictures.test_labels))
    variances = explained_variance(network, x[: 2 * (min(len(x), FITTED) // 2)])
    for row, variance, scores in zip(
        after, variances, accuracy_after(network, pictures, labels, x[:PICTURES]), strict=True
    ):
        row |= {"explained": variance, "substituted": scores}
    return {
        "layers": after,
        "untrained": measured(before, before, x[:PICTURES]),
        "accuracy_of_substitution": accuracy(network, pictures, labels),
    }
