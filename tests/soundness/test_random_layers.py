"""On random layers of every kind, sharpness and size (1e−40 to 1e30), no verdict is false and planted faults are found.

Every layer is judged as built and with a planted fault, as in ``python -m verify sweep --random``.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest

from verify.experiment.sweep import random_layers
from verify.experiment.sweep.random_layers import certify_seed, random_layer
from verify.verdict import Verdict


def swept(seeds: range) -> Counter[str]:
    """The number of layers with each verdict; a false verdict fails."""
    tally: Counter[str] = Counter()
    for row in chain.from_iterable(map(certify_seed, seeds)):
        assert not row.error, row
        tally[f"{'faulty' if row.fault else 'as built'}: {row.verdict}"] += 1
        tally[f"claim: {row.claim}"] += row.verdict == "PROVED"
    return tally


def test_thirty_layers():
    tally = swept(range(30))
    assert min(tally[word] for word in ("as built: PROVED", "claim: within", "claim: same sums")) > 5
    assert min(tally[word] for word in ("faulty: REFUTED", "faulty: UNDECIDED")) > 5
    assert not tally["as built: REFUTED"] + tally["faulty: PROVED"]


@pytest.mark.deep
@pytest.mark.parametrize("part", range(5))
def test_five_thousand_layers(part: int):
    tally = swept(range(1000 + 1000 * part, 1000 + 1000 * (part + 1)))
    print(dict(sorted(tally.items())))
    assert tally["as built: PROVED"] > 700
    assert not tally["as built: REFUTED"] + tally["faulty: PROVED"]


def test_a_layer_follows_from_its_seed():
    for seed in range(3):
        one, other = random_layer(seed), random_layer(seed)
        ours, theirs = ((str(layer.conv), layer.grid, layer.bound, layer.alpha) for layer in (one, other))
        assert ours == theirs
        assert all(bool((a == b).all()) for a, b in zip(one.layer.parameters(), other.layer.parameters(), strict=True))
        first, second = ([replace(row, seconds=None) for row in certify_seed(seed)] for _ in range(2))
        assert first == second


LIARS: dict[str, tuple[Callable[[Any], dict[str, Any]], int, tuple[str, ...]]] = {
    "proves anything": (lambda right: {"verdict": Verdict("PROVED", "trust me")}, 5, ("a false PROVED",)),
    "has a bound that is too small": (lambda right: {"bound": np.zeros_like(right.bound)}, 3, ("is over the bound",)),
    "refutes what is right": (
        lambda right: {"verdict": Verdict("REFUTED", "no")},
        5,
        ("as built, but REFUTED", "evidence that is none"),
    ),
}
"""Lying certifiers: what each changes in a certificate, the number that errors with the first word exceed, and other words."""


@pytest.mark.parametrize("liar", LIARS)
def test_a_wrong_certifier_is_found_out(liar: str, monkeypatch: pytest.MonkeyPatch):
    changes, most, (word, *others) = LIARS[liar]
    right = random_layers.certified

    def certified(*arguments: Any) -> Any:
        certificate = right(*arguments)
        return replace(certificate, **changes(certificate))

    monkeypatch.setattr(random_layers, "certified", certified)
    errors = [row.error for seed in range(10) for row in certify_seed(seed) if row.error]
    assert sum(word in error for error in errors) > most
    assert all(any(other in error for error in errors) for other in others)
