"""A test of the tests: faults planted into the weights and into the builder's code must each be caught.

Every fault is first shown to be one, with small integers: the layer's output differs from the convolution evaluated in
exact integers.  (A flipped kernel is no fault where the kernel is symmetric.)  Then it is judged, as users' layers are, on
those integers and on random numbers.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from construct import MHSA, conv_to_mhsa
from construct.tokens import TokenGrid
from faults import ALL, CODE, WEIGHTS, flip_kernel, geometry, problem
from truths import exact, permuted
from verify.samples.sampling import check_call


def assert_caught(name: str, seed: int, plant: Callable[[Any], MHSA]) -> None:
    """The layer with the fault in it is not what the definition says, and the project's judgement is not CHECKED."""
    conv, x = problem(name, seed, integers=True)
    layer = plant(conv)
    assert layer(x).shape == conv(x).shape  # a wrong shape would be caught too easily
    assert not torch.equal(layer(x).double(), exact(conv, x)), "no fault: the function is the same"
    assert check_call(conv, layer, x, "integers").verdict.name in ("REFUTED", "UNDECIDED")
    conv, x = problem(name, seed, integers=False)
    assert check_call(conv, plant(conv), x, "noise").verdict.name in ("REFUTED", "UNDECIDED")


def each(faults: dict[str, tuple[Any, tuple[str, ...]]]) -> Any:
    """One test for each fault and each kind of convolution that it is a fault of."""
    pairs = [(fault, name) for fault, (_, names) in faults.items() for name in names]
    return pytest.mark.parametrize(("fault", "name"), pairs, ids=[f"{fault} - {name}" for fault, name in pairs])


@pytest.fixture(autouse=True)
def fresh_grids() -> Iterator[None]:
    """Token grids are remembered from call to call; none may outlive a patch, or come from before it."""
    TokenGrid.of.cache_clear()
    yield
    TokenGrid.of.cache_clear()


# ---- no fault ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ALL)
def test_without_a_fault_all_is_well(name: str, seed: int):
    """Else the tests below would pass for the wrong reason.  Permuting whole heads is no fault either."""
    conv, x = problem(name, seed, integers=True)
    assert torch.equal(conv_to_mhsa(conv)(x).double(), exact(conv, x))
    for integers in (True, False):
        conv, x = problem(name, seed, integers)
        layer = conv_to_mhsa(conv)
        assert check_call(conv, layer, x, "x").verdict.name == "CHECKED"
        order = torch.randperm(layer.heads, generator=torch.Generator().manual_seed(seed)).tolist()
        assert check_call(conv, permuted(layer, order), x, "x").verdict.name == "CHECKED"


def test_flipping_a_symmetric_kernel_is_no_fault():
    """Judged by what it computes, not by how it was made."""
    conv, x = problem("2-D", 0, integers=True)
    conv.weight.add_(conv.weight.flip(2, 3))
    layer = conv_to_mhsa(conv)
    flip_kernel(layer)
    assert torch.equal(layer(x).double(), exact(conv, x))
    assert check_call(conv, layer, x, "x").verdict.name == "CHECKED"


# ---- in the weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@each(WEIGHTS)
def test_a_fault_in_the_weights_is_caught(fault: str, name: str, seed: int):
    def plant(conv: Any) -> MHSA:
        layer = conv_to_mhsa(conv)
        WEIGHTS[fault][0](layer)
        return layer

    assert_caught(name, seed, plant)


# ---- in the code -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@each(CODE)
def test_a_fault_in_the_code_is_caught(fault: str, name: str, seed: int, monkeypatch: pytest.MonkeyPatch):
    CODE[fault][0](monkeypatch)
    assert_caught(name, seed, conv_to_mhsa)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ALL)
def test_an_anchor_other_than_the_builder_used_is_caught(name: str, seed: int, monkeypatch: pytest.MonkeyPatch):
    """Shifts were taken from one anchor, and queries are asked at another: every output is one position off."""

    def plant(conv: Any) -> MHSA:
        monkeypatch.undo()
        layer = conv_to_mhsa(conv)
        geometry("anchor", lambda anchor: (*anchor[:-1], anchor[-1] - 1))(monkeypatch)
        TokenGrid.of.cache_clear()
        return layer

    assert_caught(name, seed, plant)
