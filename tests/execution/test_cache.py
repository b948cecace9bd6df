"""A cached call is never used after a number was edited, in any way."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from construct import MHSA, conv_to_mhsa
from construct.attention import EXECUTIONS, smaller_blocks
from construct.execution import cache
from runs import by_dense, channels_last

SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1x1": (lambda: nn.Conv2d(3, 5, 1), (1, 3, 4, 5)),
    "3x3": (lambda: nn.Conv2d(4, 3, 3, padding=1), (2, 4, 6, 5)),
    "depthwise": (lambda: nn.Conv2d(3, 3, 3, padding=1, groups=3), (1, 3, 5, 4)),
    "strided 1-D": (lambda: nn.Conv1d(2, 4, 3, stride=2, bias=False), (2, 2, 9)),
    "reflected": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (1, 2, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (1, 2, 4, 4)),
}


def kept(layer: MHSA, x: Tensor) -> cache.Call | None:
    """The cache's entry for this call."""
    return cache.cached(layer, EXECUTIONS[layer.execution].run, x)


def called(name: str, execution: str = "auto") -> tuple[MHSA, Tensor]:
    """A layer that has been called, so that its next call uses the cache."""
    make, shape = SHAPES[name]
    torch.manual_seed(1)
    layer = conv_to_mhsa(make().double(), execution=execution).requires_grad_(False)
    x = torch.randn(shape, dtype=torch.float64)
    layer(x)
    assert kept(layer, x) is not None
    return layer, x


def through_numpy(t: Tensor) -> None:
    t.detach().numpy()[...] *= 0.5


def through_data(t: Tensor) -> None:
    t.data.mul_(0.5)


def other_storage(t: Tensor) -> None:
    t.data = t.data * 0.5


def in_place(t: Tensor) -> None:
    with torch.no_grad():
        t.mul_(0.5)


def one_number(t: Tensor) -> None:
    t.detach().view(-1)[-1:] += 0.25


def ones(t: Tensor) -> None:
    t.data.fill_(1.0)


WITHOUT_TRACE = (through_numpy, through_data, ones)
EDITS = (*WITHOUT_TRACE, other_storage, in_place, one_number)
TENSORS = ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out", "b_out")


@given(
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(["auto", "axial"]),
    st.lists(st.tuples(st.sampled_from(EDITS), st.sampled_from(TENSORS)), min_size=1, max_size=4),
)
def test_every_edit_counts(name: str, execution: str, edits: list[tuple[Callable[[Tensor], None], str]]) -> None:
    layer, x = called(name, execution)
    for edit, part in edits:
        tensor = getattr(layer, part)
        version = tensor._version
        edit(tensor)
        assert edit not in WITHOUT_TRACE or tensor._version == version
        for _ in range(2):  # the second uses the cache again, if possible
            torch.testing.assert_close(layer(x), by_dense(layer, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SHAPES)
def test_the_short_call_is_the_same_call(name: str) -> None:
    """Bit for bit and in layout, for every memory layout of an input; also for a layer saved after it was called."""
    layer, x = called(name)
    ways = [x, x.flip(-1), x[..., :-1], torch.cat([x, x]), channels_last(x), x[:0]]
    for way in ways:
        first = copy.deepcopy(layer)(way)
        assert torch.equal(pickle.loads(pickle.dumps(layer))(way), first)
        for _ in range(3):
            again = layer(way)
            assert torch.equal(again, first)
            assert again.stride() == first.stride()


@pytest.mark.parametrize("name", ["auto", "axial"])
def test_other_code_by_the_name_of_an_execution_is_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every time, before and after the layer was called."""
    layer, x = called("3x3")
    layer.execution = name
    before, right = layer(x), EXECUTIONS[name]
    monkeypatch.setitem(EXECUTIONS, name, replace(right, run=lambda *args: right.run(*args) + 1))
    for _ in range(3):
        assert torch.equal(layer(x), before + 1)


def test_smaller_blocks_count_also_after_a_call_that_is_called() -> None:
    """A certificate's runs request them, possibly after an input of the same shape."""
    conv = torch.nn.Conv2d(3, 5, 3, padding=1)
    layer, x = conv_to_mhsa(conv).requires_grad_(False), torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        layer(x)
        assert kept(layer, x) is not None
        with smaller_blocks(4):
            assert kept(layer, x) is None
            torch.testing.assert_close(layer(x), conv(x))


@pytest.mark.parametrize("name", ["w_val", "w_out", "b_out"])
def test_factors_of_different_types_count_as_they_are_now(name: str) -> None:
    """A factor converted in every call is a copy, which would be stale after an edit."""
    torch.manual_seed(1)
    layer, x = conv_to_mhsa(nn.Conv2d(4, 3, 3, padding=1)).requires_grad_(False), torch.randn(2, 4, 6, 5)
    setattr(layer, name, nn.Parameter(getattr(layer, name).double(), requires_grad=False))
    x = x.to(layer.w_val.dtype)
    for edit in (lambda t: None, through_data, through_numpy, ones):
        edit(getattr(layer, name))
        for _ in range(2):
            torch.testing.assert_close(layer(x), by_dense(layer, x))
    with pytest.raises(RuntimeError, match="must be the same"):
        layer(x.double() if x.dtype == torch.float32 else x.float())
