"""The summary behind the figures: accuracy and time of all runs, and the attention centres of each
variant.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from construct import MHSA
from construct.encoding.encodings import Covariance, Quadratic
from examples.learned.network import AttentionNet
from examples.learned.results.maps import (
    PICTURES,
    attention_of,
    centres_of,
    followed,
    moved_queries,
)
from examples.learned.results.stored import Stored

DIGITS = 4
"""The decimals of every number that is drawn."""
FOURTH = 4
"""The layer whose centres the paper's figure follows."""


def summary_of(
    results_of: dict[str, list[dict[str, Any]]], run_of: Callable[[str, int], Stored], test: Tensor
) -> dict[str, Any]:
    """The summary, in JSON's types.

    Args:
        results_of: the results of each variant, one per seed.
        run_of: returns the run of a variant and a seed; called one at a time, as networks may be
            large.
        test: the test pictures, (B, C, rows, columns).

    Returns:
        ``commands`` that made the runs, where results say it; ``held``, "validation" or "test", the
        pictures of ``accuracy``; by variant ``seeds``, ``seconds`` and ``accuracy``
        (by seed and epoch), and ``looks``: the result of :func:`looks_of` for the first seed on the
        first ``PICTURES`` test pictures, None for a network without attention.
    """
    variants, held = {}, "test"
    for variant, runs in results_of.items():
        accuracy, looks = [], None
        for place, seed in enumerate(result["seed"] for result in runs):
            run = run_of(variant, seed)
            held = "validation" if run.settings.how.validation else "test"
            accuracy.append([round(share, DIGITS) for share in run.accuracy])
            if place == 0 and isinstance(run.network, AttentionNet):
                looks = {
                    "seed": seed,
                    **looks_of(run.network, test[:PICTURES]),
                    "path": path_of(run),
                }
        variants[variant] = {
            "seeds": [result["seed"] for result in runs],
            "seconds": [result["seconds"] for result in runs],
            "accuracy": accuracy,
            "looks": looks,
        }
    commands = sorted(
        {
            result["command"]
            for runs in results_of.values()
            for result in runs
            if "command" in result
        }
    )
    return {"commands": commands, "held": held, "variants": variants}


def looks_of(network: AttentionNet, x: Tensor) -> dict[str, Any]:
    """Where the heads look, averaged over pictures.

    Args:
        network: the network, in any mode.
        x: pictures, (B, C, rows, columns).

    Returns:
        ``grid``, ``pictures``; for every layer, from the middle query, the ``mean`` shift of each
        head, its ``covariance``, and the ``map``, and how far its profile ``follows`` the query and
        ``stays``; of heads that are Gaussians also ``tau``, and ``alpha`` or ``sigma``.  ``moved``:
        the maps of one ``layer`` for some ``queries``, (queries, heads, rows, columns).
    """
    rows, columns = network.grid
    queries, fourth = moved_queries(network.grid), min(FOURTH, len(network.blocks))
    layers, moved = [], {}
    for number, (attention, layer) in enumerate(
        zip(attention_of(network, x), network.attentions(), strict=True), 1
    ):
        mean, covariance = centres_of(attention)
        middle = attention[:, (rows // 2) * columns + columns // 2]
        follows, stays = followed(attention)
        parts = {"mean": mean, "covariance": covariance, "map": middle, **gaussians(layer)}
        looks = {
            name: numbers.astype(float).round(DIGITS).tolist() for name, numbers in parts.items()
        }
        layers.append(looks | {"follows": round(follows, DIGITS), "stays": round(stays, DIGITS)})
        if number == fourth:
            maps = np.stack([attention[:, row * columns + column] for row, column in queries])
            moved = {
                "layer": number,
                "queries": queries,
                "maps": maps.astype(float).round(DIGITS).tolist(),
            }
    return {"grid": [rows, columns], "pictures": len(x), "layers": layers, "moved": moved}


def gaussians(layer: MHSA) -> dict[str, np.ndarray]:
    """τ of every head and its α or its Σ in tokens; empty if heads are no Gaussians."""
    if layer.encoding.name == Quadratic.name:
        alpha, tau = layer.centres()
        return {"alpha": alpha.numpy(), "tau": tau.numpy()}
    if layer.encoding.name == Covariance.name:
        # of the score δᵀAδ + b·δ: A is −Σ⁻¹/2
        form, _ = Covariance.form(layer.position_vector().detach())
        return {"sigma": torch.linalg.inv(-2 * form).numpy(), "tau": layer.centres()[1].numpy()}
    return {}


def path_of(run: Stored) -> dict[str, Any] | None:
    """The centres of one layer during training, the fourth where there are four; None for heads
    without centres.

    Returns:
        ``layer``, from 1; ``steps``, the last one after training; and for each of them
        ``log_alpha`` and ``tau`` of every head.
    """
    if not run.centres or not isinstance(run.network, AttentionNet):
        return None
    layer = min(FOURTH, run.settings.how.shape.layers)
    alpha, tau = run.network.attentions()[layer - 1].centres()
    at_last = torch.column_stack((alpha.log(), tau)).double()
    of_layer = torch.stack([*(centres[layer - 1].double() for _, centres in run.centres), at_last])
    return {
        "layer": layer,
        "steps": [*(step for step, _ in run.centres), run.steps],
        "log_alpha": [[round(x, DIGITS) for x in row] for row in of_layer[..., 0].tolist()],
        "tau": [
            [[round(x, DIGITS) for x in head] for head in row] for row in of_layer[..., 1:].tolist()
        ],
    }


def folder_of(out: Path, variant: str, seed: int) -> Path:
    """The folder for the files of one run."""
    return out / variant / f"seed-{seed}"
