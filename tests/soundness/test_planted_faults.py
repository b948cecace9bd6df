"""Tests the verifier itself: samples and certificates catch every planted fault.

- **Samples** must detect a coarse fault on every geometry that the table names.  Small integers first show that it is a fault:
  the layer's output differs from the convolution evaluated in exact integers.
- **Certificates** never say PROVED for a faulty layer.  A fault counts only if exact evaluation shows that it changed the function
  on the grid; the others are equivalents, which are counted separately and not judged.

The ordinary run judges every fault once by each; all combinations with geometries, and the search for convolutions, are deep.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from construct import MHSA, conv_to_mhsa, tokens
from construct.attention import EXECUTIONS, smaller_blocks
from fault_table import ALL, Fault, convolution_and_inputs
from faults_code import FAULTS
from truths import exact, permuted
from verify.argument.certification import certify
from verify.experiment.sweep import exact_layers
from verify.experiment.sweep.exact_layers import exactly_differ
from verify.experiment.sweep.faults import Inapplicable
from verify.samples.sampling import check_call
from verify.strategies import convolutions, least_size, sizes_for

EXAMPLES = 20
"""Layers in which each fault is planted, times the fault's factor ``more``."""
ENOUGH = 4
"""The least number of faulty layers of each kind that must count."""


@contextmanager
def planted(fault: Fault, conv: Any, rng: np.random.Generator) -> Iterator[MHSA]:
    """The layer of a convolution with the fault planted; a fault in the code is in force inside the block.

    Token grids are cached between calls; none may survive a patch or predate it.
    """
    if not fault.in_code:
        yield fault.plant(conv, conv_to_mhsa(conv), rng)
        return
    try:
        with pytest.MonkeyPatch.context() as patch:
            layer = conv_to_mhsa(conv) if fault.built else None
            tokens._grid.cache_clear()
            fault.plant(patch)
            yield conv_to_mhsa(conv) if layer is None else layer
    finally:
        tokens._grid.cache_clear()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", ALL)
def test_without_a_fault_all_is_well(name: str, seed: int):
    """Without a fault, the verdicts are good, so the tests below fail for the right reason; also after permuting whole heads."""
    conv, x = convolution_and_inputs(name, seed, integers=True)
    assert torch.equal(conv_to_mhsa(conv)(x).double(), exact(conv, x))
    for integers in (True, False):
        conv, x = convolution_and_inputs(name, seed, integers)
        layer = conv_to_mhsa(conv)
        assert check_call(conv, layer, x, "x").verdict.name == "CHECKED"
        order = torch.randperm(layer.heads, generator=torch.Generator().manual_seed(seed)).tolist()
        assert check_call(conv, permuted(layer, order), x, "x").verdict.name == "CHECKED"


@pytest.mark.deep
def test_no_fault_is_no_change():
    """The three ways to detect a change find none in a layer as built; otherwise every fault would count."""

    @given(convolutions(integers=[True]), st.data())
    def untouched(conv: Any, data: st.DataObject):
        grid, layer = data.draw(sizes_for(conv, tokens=40)), conv_to_mhsa(conv)
        assert not changed_in_the_code(conv, layer, grid)
        assert not exactly_differ(conv, layer, grid)
        assert not changed_when_run(conv, layer, grid)

    untouched()


def test_there_are_enough_kinds():
    kinds = Counter(fault.in_code for fault in FAULTS.values())
    assert kinds[False] >= 55
    assert kinds[True] >= 40
    assert sum(bool(fault.shown_on) for fault in FAULTS.values()) >= 19


def shown() -> list[Any]:
    """Fault, geometry and seed; the ordinary run has one geometry per fault, not always the same one."""
    cases = []
    coarse = [(name, fault.shown_on) for name, fault in FAULTS.items() if fault.shown_on]
    for turn, (name, geometries) in enumerate(coarse):
        for place, (geometry, seed) in enumerate(product(geometries, range(2))):
            marks = () if place == 2 * (turn % len(geometries)) else pytest.mark.deep
            cases.append(pytest.param(name, geometry, seed, marks=marks, id=f"{name} - {geometry} - {seed}"))
    return cases


@pytest.mark.parametrize(("name", "geometry", "seed"), shown())
def test_samples_show_a_fault(name: str, geometry: str, seed: int):
    """The faulty layer differs from the convolution's definition, and the verdict on samples is not CHECKED."""
    conv, x = convolution_and_inputs(geometry, seed, integers=True)
    with planted(FAULTS[name], conv, np.random.default_rng(seed)) as layer:
        assert layer(x).shape == conv(x).shape  # a wrong shape would be caught too easily
        assert not torch.equal(layer(x).double(), exact(conv, x)), "no fault: the function is the same"
        assert check_call(conv, layer, x, "integers").verdict.name in ("REFUTED", "UNDECIDED")
    conv, x = convolution_and_inputs(geometry, seed, integers=False)
    with planted(FAULTS[name], conv, np.random.default_rng(seed)) as layer:
        assert check_call(conv, layer, x, "noise").verdict.name in ("REFUTED", "UNDECIDED")


def changed_when_run(conv: Any, layer: MHSA, grid: tuple[int, ...]) -> bool:
    """For soft layers: a float64 run on integers differs from the exact convolution by far more than rounding."""
    rng = np.random.default_rng(0)
    double = layer.double()
    for _ in range(3):
        x = rng.integers(-8, 9, (conv.in_channels, *grid))
        expected = exact_layers.convolution(conv, x).astype(float)
        try:
            with torch.no_grad():
                attended = double(torch.from_numpy(x).double()[None])[0].numpy()
        except (RuntimeError, ValueError):
            return True
        if attended.shape != expected.shape:
            return True
        if not np.abs(attended - expected).max() <= 1e-7 * (1 + np.abs(expected).max()):
            return True
    return False


def changed_in_the_code(conv: Any, layer: MHSA, grid: tuple[int, ...]) -> bool:
    """For any layer: its run on small integers, where every partial sum is exact, differs from the integer convolution."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (3, conv.in_channels, *grid), generator=generator).to(conv.weight.dtype)
    expected = exact(conv, x)
    for layer.execution, queries in product(EXECUTIONS, (10**9, 1)):
        try:
            with torch.no_grad(), smaller_blocks(queries):
                attended = layer(x)
        except (RuntimeError, ValueError, IndexError):
            return True
        if attended.shape != expected.shape or not torch.equal(attended.double(), expected):
            return True
    return False


def change_of(fault: Fault) -> Callable[[Any, MHSA, tuple[int, ...]], bool]:
    """The evaluation that decides whether such a fault changed the function."""
    return changed_in_the_code if fault.in_code else changed_when_run if fault.soft else exactly_differ


def verdict_of(conv: Any, layer: MHSA, grid: tuple[int, ...]) -> str:
    try:
        return certify(conv, layer, grid=grid).verdict.name
    except ValueError:
        return "refused"


def judged(fault: Fault, conv: Any, grid: tuple[int, ...], rng: np.random.Generator) -> str:
    """The certificate's verdict on a faulty layer; "equivalent …" if the layer still computes the convolution."""
    try:
        with planted(fault, conv, rng) as layer:
            verdict = verdict_of(conv, layer, grid)
            changed = change_of(fault)(conv, layer, grid)
    except Inapplicable:
        return "inapplicable"
    except ValueError:  # raised by the builder
        if not fault.in_code:
            raise
        return "refused"
    assert not (changed and verdict == "PROVED"), (conv, grid)
    return verdict if changed else f"equivalent {verdict}"


def counts_as_caught(outcome: str) -> bool:
    return outcome in ("REFUTED", "UNDECIDED", "refused")


@pytest.mark.parametrize("turn", range(len(FAULTS)), ids=list(FAULTS))
def test_a_certificate_catches_a_fault(turn: int):
    """On the first geometry where the fault changes the function, not always the same one."""
    fault, outcomes = list(FAULTS.values())[turn], []
    every = fault.shown_on or ALL
    for place in range(len(every)):
        conv, x = convolution_and_inputs(every[(turn + place) % len(every)], 0, integers=fault.in_code)
        grid = (4, 3, 4) if x.dim() == 5 else tuple(x.shape[2:])
        outcomes.append(judged(fault, conv, grid, np.random.default_rng(turn)))
        if counts_as_caught(outcomes[-1]):
            return
    pytest.fail(f"no geometry has this fault: {outcomes}")


def roomy(conv: Any, rng: np.random.Generator) -> tuple[int, ...]:
    """A grid slightly larger than the smallest, so that most taps read an input somewhere."""
    least = least_size(conv)
    return tuple(n + int(rng.integers(1, {1: 8, 2: 4, 3: 2}[len(least)])) for n in least)


@pytest.mark.deep
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_never_proved(name: str):
    fault = FAULTS[name]
    counts: Counter[str] = Counter()
    options = {"integers": [True], **fault.options} if fault.in_code else fault.options

    @settings(max_examples=fault.more * EXAMPLES, phases=[Phase.generate])
    @given(convolutions(**options), st.integers(0, 2**16))
    def search(conv: Any, seed: int):
        rng = np.random.default_rng(seed)
        counts[judged(fault, conv, roomy(conv, rng), rng)] += 1

    search()
    caught = {outcome: count for outcome, count in counts.items() if counts_as_caught(outcome)}
    print(f"FAULT {name}: {sum(caught.values())} caught {caught}, apart {counts - Counter(caught)}")
    assert sum(caught.values()) >= ENOUGH, counts
