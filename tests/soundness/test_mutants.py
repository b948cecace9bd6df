"""The verifier's own test: planted faults.  Each that changes the function is REFUTED or UNDECIDED, none is PROVED.

A mutant counts only if exact evaluation shows that the function changed on the grid; the others are equivalents, counted
apart, and of them nothing is asked.
"""

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import exactly
import mutations_code
import mutations_weights
from construct import MHSA, conv_to_mhsa
from construct.attention import EXECUTIONS, smaller_blocks
from construct.tokens import TokenGrid
from mutations import CODE, WEIGHTS, Inapplicable
from truths import exact
from verify.argument.certification import certify
from verify.strategies import convolutions, least_size, sizes_for

EXAMPLES = settings().max_examples // 8
ENOUGH = 4
"""So many mutants of each kind must count."""


def changed_exactly(conv: Any, layer: MHSA, grid: tuple[int, ...]) -> bool:
    """One-hot layers: both functions are affine, and one input of large random integers tells them apart."""
    x = np.random.default_rng(0).integers(-(2**45), 2**45, (conv.in_channels, *grid)).astype(object)
    expected = exactly.convolution(conv, x)
    try:
        found = exactly.attention(layer, x)
    except exactly.NoValue:
        return True
    return found.shape != expected.shape or bool((found != expected).any())


def changed_when_run(conv: Any, layer: MHSA, grid: tuple[int, ...]) -> bool:
    """Soft layers: run in float64 on integers, against the exact convolution, by far more than float64 can be off."""
    rng = np.random.default_rng(0)
    double = layer.double()
    for _ in range(3):
        x = rng.integers(-8, 9, (conv.in_channels, *grid))
        expected = exactly.convolution(conv, x).astype(float)
        try:
            with torch.no_grad():
                found = double(torch.from_numpy(x).double()[None])[0].numpy()
        except (RuntimeError, ValueError):
            return True
        if found.shape != expected.shape or not np.abs(found - expected).max() <= 1e-7 * (1 + np.abs(expected).max()):
            return True
    return False


def changed_in_the_code(conv: Any, layer: MHSA, grid: tuple[int, ...]) -> bool:
    """Whatever runs: small integers, on which every partial sum is exact, against the convolution in integers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (3, conv.in_channels, *grid), generator=generator).to(conv.weight.dtype)
    expected = exact(conv, x)
    for layer.execution, queries in product(EXECUTIONS, (10**9, 1)):
        try:
            with torch.no_grad(), smaller_blocks(queries):
                found = layer(x)
        except (RuntimeError, ValueError, IndexError):
            return True
        if found.shape != expected.shape or not torch.equal(found.double(), expected):
            return True
    return False


def roomy(conv: Any, rng: np.random.Generator) -> tuple[int, ...]:
    """A grid a little larger than the least, so that most taps read something somewhere."""
    least = least_size(conv)
    return tuple(n + int(rng.integers(1, {1: 8, 2: 4, 3: 2}[len(least)])) for n in least)


def verdict_of(conv: Any, layer: MHSA, grid: tuple[int, ...]) -> str:
    try:
        return certify(conv, layer, grid=grid).verdict.name
    except ValueError:
        return "refused"


def report(kind: str, counts: Counter[str]) -> None:
    """One line, and the claim."""
    counted = {name: counts[name] for name in ("REFUTED", "UNDECIDED", "refused", "PROVED")}
    apart = {name: count for name, count in counts.items() if name.startswith("equivalent") or name == "inapplicable"}
    print(f"MUTANTS {kind}: {sum(counted.values())} counted {counted}, apart {apart}")
    assert counted["PROVED"] == 0
    assert sum(counted.values()) >= ENOUGH, counts


@pytest.mark.deep
@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_fault_in_the_weights_is_never_proved(kind: str):
    fault = WEIGHTS[kind]
    counts: Counter[str] = Counter()

    @settings(max_examples=fault.more * EXAMPLES, phases=[Phase.generate])
    @given(convolutions(**fault.options), st.integers(0, 2**16))
    def planted(conv: Any, seed: int):
        rng = np.random.default_rng(seed)
        grid = roomy(conv, rng)
        try:
            layer = fault.plant(conv, conv_to_mhsa(conv), rng)
        except Inapplicable:
            counts["inapplicable"] += 1
            return
        verdict = verdict_of(conv, layer, grid)
        changed = (changed_when_run if fault.soft else changed_exactly)(conv, layer, grid)
        counts[verdict if changed else f"equivalent {verdict}"] += 1
        assert not (changed and verdict == "PROVED"), (kind, conv, grid)

    planted()
    report(kind, counts)


@pytest.mark.deep
@pytest.mark.parametrize("kind", CODE)
def test_a_fault_in_the_code_is_never_proved(kind: str, monkeypatch: pytest.MonkeyPatch):
    fault = CODE[kind]
    counts: Counter[str] = Counter()

    @settings(max_examples=fault.more * EXAMPLES, phases=[Phase.generate])
    @given(convolutions(**{"integers": [True], **fault.options}), st.integers(0, 2**16))
    def planted(conv: Any, seed: int):
        grid = roomy(conv, np.random.default_rng(seed))
        TokenGrid.of.cache_clear()
        try:
            with monkeypatch.context() as patch:
                fault.plant(patch)
                try:
                    layer = conv_to_mhsa(conv)
                except ValueError:
                    counts["refused"] += 1
                    return
                verdict, changed = verdict_of(conv, layer, grid), changed_in_the_code(conv, layer, grid)
        finally:
            TokenGrid.of.cache_clear()
        counts[verdict if changed else f"equivalent {verdict}"] += 1
        assert not (changed and verdict == "PROVED"), (kind, conv, grid)

    planted()
    report(kind, counts)


@pytest.mark.deep
def test_no_fault_no_mutant():
    """The three ways to see a change see none in what the builder makes; else every mutant would count."""

    @given(convolutions(integers=[True]), st.data())
    def untouched(conv: Any, data: st.DataObject):
        grid, layer = data.draw(sizes_for(conv, tokens=40)), conv_to_mhsa(conv)
        assert not changed_in_the_code(conv, layer, grid)
        assert not changed_exactly(conv, layer, grid)
        assert not changed_when_run(conv, layer, grid)

    untouched()


def test_there_are_enough_kinds():
    assert len(WEIGHTS) >= 20, mutations_weights
    assert len(CODE) >= 20, mutations_code
