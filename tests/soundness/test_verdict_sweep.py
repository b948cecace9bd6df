"""Random layers of every kind, from the softest to the sharpest and from 1e−40 to 1e30: no verdict is false, and faults are found.

Every layer comes once as it was built, and once with a fault in it, as in ``python -m verify sweep --random``.
"""

from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest

from verify.experiment.sweep import random_layers
from verify.experiment.sweep.random_layers import judged, random_layer
from verify.verdict import Verdict


def swept(seeds: range) -> Counter[str]:
    """How many layers have which verdict; a false one fails."""
    tally: Counter[str] = Counter()
    for row in chain.from_iterable(map(judged, seeds)):
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
    for seed in range(5):
        one, other = random_layer(seed), random_layer(seed)
        assert (str(one.conv), one.grid, one.bound, one.alpha) == (
            str(other.conv),
            other.grid,
            other.bound,
            other.alpha,
        )
        assert all(bool((a == b).all()) for a, b in zip(one.layer.parameters(), other.layer.parameters(), strict=True))
        first, second = ([replace(row, seconds=None) for row in judged(seed)] for _ in range(2))
        assert first == second


def errors_with(monkeypatch: pytest.MonkeyPatch, certifier: Any, seeds: range = range(15)) -> list[str]:
    """What the search says of another certifier."""
    monkeypatch.setattr(random_layers, "certified", certifier)
    return [row.error for seed in seeds for row in judged(seed) if row.error]


def test_a_certifier_that_proves_anything_is_found_out(monkeypatch: pytest.MonkeyPatch):
    right = random_layers.certified

    def certified(*arguments: Any) -> Any:
        return replace(right(*arguments), verdict=Verdict("PROVED", "trust me"))

    errors = errors_with(monkeypatch, certified)
    assert sum("a false PROVED" in error for error in errors) > 5


def test_a_bound_that_is_too_small_is_found_out(monkeypatch: pytest.MonkeyPatch):
    right = random_layers.certified

    def certified(*arguments: Any) -> Any:
        certificate = right(*arguments)
        return replace(certificate, bound=np.zeros_like(certificate.bound))

    assert sum("is over the bound" in error for error in errors_with(monkeypatch, certified)) > 3


def test_a_certifier_that_refutes_what_is_right_is_found_out(monkeypatch: pytest.MonkeyPatch):
    right = random_layers.certified

    def certified(*arguments: Any) -> Any:
        return replace(right(*arguments), verdict=Verdict("REFUTED", "no"))

    errors = errors_with(monkeypatch, certified)
    assert sum("as built, but REFUTED" in error for error in errors) > 5
    assert any("evidence that is none" in error for error in errors)
