"""The summary behind the figures: accuracy and time of all runs, and the attention centres of each variant."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from construct.encoding.encodings import Quadratic
from examples.learned.network import AttentionNet
from examples.learned.results.maps import PICTURES, attention_of, centres_of
from examples.learned.training import Run

DIGITS = 4
"""The digits of every number that is drawn."""
FOURTH = 4
"""The layer whose centres the paper's figure follows."""


def summary_of(results_of: dict[str, list[dict[str, Any]]], run_of: Callable[[str, int], Run]) -> dict[str, Any]:
    """The summary, in JSON's types.

    Args:
        results_of: the results of each variant, one per seed.
        run_of: returns the run of a variant and a seed; called one at a time, as networks may be large.

    Returns:
        ``commands`` that made the runs; ``held``, "validation" or "test", the pictures for all that follows; by variant
        ``seeds``, ``seconds`` and ``accuracy`` (by seed and epoch), and ``looks``: the result of :func:`looks_of` for the
        first seed, None for a network without attention.
    """
    variants, held = {}, "test"
    for variant, runs in results_of.items():
        accuracy, looks = [], None
        for place, seed in enumerate(result["seed"] for result in runs):
            run = run_of(variant, seed)
            held = "validation" if run.settings.how.validation else "test"
            accuracy.append([round(line["accuracy"], DIGITS) for line in run.metrics()])
            if place == 0 and isinstance(run.network, AttentionNet):
                looks = {"seed": seed, **looks_of(run.network, run.held[0][:PICTURES].to(run.device))}
                looks["path"] = path_of(run)
        variants[variant] = {
            "seeds": [result["seed"] for result in runs],
            "seconds": [result["seconds"] for result in runs],
            "accuracy": accuracy,
            "looks": looks,
        }
    commands = sorted({result["command"] for runs in results_of.values() for result in runs})
    return {"commands": commands, "held": held, "variants": variants}


def looks_of(network: AttentionNet, x: Tensor) -> dict[str, Any]:
    """Where the heads look from the middle query, averaged over pictures.

    Args:
        network: the network, in any mode.
        x: pictures, (B, C, rows, columns).

    Returns:
        ``grid``, ``pictures``, and for every layer the ``mean`` shift of each head, its ``covariance``, and the ``map``; of heads
        with centres also ``alpha`` and ``tau``.
    """
    rows, columns = network.grid
    layers = []
    for attention in attention_of(network, x):
        mean, covariance = centres_of(attention)
        middle = attention[:, (rows // 2) * columns + columns // 2]
        parts = {"mean": mean, "covariance": covariance, "map": middle}
        layers.append({name: numbers.astype(float).round(DIGITS).tolist() for name, numbers in parts.items()})
    for looks, layer in zip(layers, network.attentions(), strict=True):
        if layer.encoding.name == Quadratic.name:
            alpha, tau = layer.centres()
            looks |= {"alpha": alpha.tolist(), "tau": tau.tolist()}
    return {"grid": [rows, columns], "pictures": len(x), "layers": layers}


def path_of(run: Run) -> dict[str, Any] | None:
    """The centres of one layer during training, the fourth where there are four; None for heads without centres.

    Returns:
        ``layer``, from 1; ``steps``; and for each of them ``log_alpha`` and ``tau`` of every head.
    """
    if not run.centres:
        return None
    layer = min(FOURTH, run.settings.how.shape.layers)
    of_layer = torch.stack([centres[layer - 1] for _, centres in run.centres]).double()
    return {
        "layer": layer,
        "steps": [step for step, _ in run.centres],
        "log_alpha": [[round(x, DIGITS) for x in row] for row in of_layer[..., 0].tolist()],
        "tau": [[[round(x, DIGITS) for x in head] for head in row] for row in of_layer[..., 1:].tolist()],
    }


def folder_of(out: Path, variant: str, seed: int) -> Path:
    """The folder for the files of one run."""
    return out / variant / f"seed-{seed}"
