"""The summary behind the figures: accuracy and time of all runs, and the attention centres of each variant."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from examples.learned.network import AttentionNet
from examples.learned.results.measuring import PICTURES, attention_of, centres_of
from examples.learned.training import Run

DIGITS = 4
"""The digits of every number that is drawn."""


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
        ``grid``, ``pictures``, and for every layer the ``mean`` shift of each head, its ``covariance``, and the ``map``.
    """
    rows, columns = network.grid
    layers = []
    for attention in attention_of(network, x):
        mean, covariance = centres_of(attention)
        middle = attention[:, (rows // 2) * columns + columns // 2]
        parts = {"mean": mean, "covariance": covariance, "map": middle}
        layers.append({name: numbers.astype(float).round(DIGITS).tolist() for name, numbers in parts.items()})
    return {"grid": [rows, columns], "pictures": len(x), "layers": layers}


def folder_of(out: Path, variant: str, seed: int) -> Path:
    """The folder for the files of one run."""
    return out / variant / f"seed-{seed}"
