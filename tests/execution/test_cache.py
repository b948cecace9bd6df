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
from construct.execution import cache, head_matrices
from construct.execution.head_matrices import is_identity
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


def test_parameters_that_are_exchanged_count() -> None:
    layer, x = called("3x3")
    other, _ = called("3x3")
    swapped = torch.func.functional_call(layer, {"w_val": other.w_val * 2}, (x,))
    torch.testing.assert_close(swapped - layer.b_out.view(-1, 1, 1), 2 * (layer(x) - layer.b_out.view(-1, 1, 1)))
    layer.v = nn.Parameter(layer.v.roll(1, 0), requires_grad=False)
    torch.testing.assert_close(layer(x), by_dense(layer, x))
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer(x), other(x))


def test_what_is_to_be_learned_is_recorded() -> None:
    layer, x = called("3x3")
    assert not layer(x).requires_grad
    layer.w_val.requires_grad_()
    assert layer(x).requires_grad
    with torch.no_grad():
        assert not layer(x).requires_grad
    layer.w_val.requires_grad_(False)
    assert layer(x.clone().requires_grad_()).requires_grad
    layer.w_key.requires_grad_()  # content is now learned
    assert layer(x).requires_grad


def test_a_geometry_that_is_changed_in_place_counts() -> None:
    """It is frozen, but not to ``vars``; and it is the same object, which equals itself."""
    conv = nn.Conv2d(2, 3, 3, padding=1)
    other = nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate")
    other.load_state_dict(conv.state_dict())
    layer, x = conv_to_mhsa(conv), torch.randn(1, 2, 5, 4)
    with torch.no_grad():
        for _ in range(2):
            layer(x)
        vars(layer.geometry)["padding_mode"] = "replicate"
        assert torch.allclose(layer(x), other(x), atol=1e-5)


def test_other_types_and_places_are_refused_as_ever() -> None:
    layer, x = called("3x3")
    with pytest.raises(RuntimeError, match="must be the same"):
        layer(x.float())
    with pytest.raises(RuntimeError, match="channels"):
        layer(x[:, 1:])
    with pytest.raises(TypeError, match="must be a tensor"):
        layer(x.numpy())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.float()(x.float()).dtype == torch.bfloat16
    assert layer(x.float()).dtype == torch.float32
    assert layer.half()(x.half()).dtype == torch.float16


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, the first time
@pytest.mark.parametrize("name", ["w_val", "w_out", "b_out", "w_qry", "v"])
def test_a_derivative_that_is_carried_along_is_not_lost(name: str) -> None:
    """In forward mode, the derivative of an identity factor, for example, would be lost with the skipped product."""
    layer, x = called("3x3")
    held = {key: p.detach() for key, p in layer.named_parameters()}
    derivatives = []
    for layer.execution in ("auto", "dense"):

        def run(tensor: Tensor) -> Tensor:
            return torch.func.functional_call(layer, held | {name: tensor}, (x,))

        derivatives.append(torch.func.jvp(run, (held[name],), (torch.ones_like(held[name]),)))
    for ours, theirs in zip(*derivatives, strict=True):
        torch.testing.assert_close(ours, theirs)
    layer.execution = "auto"
    assert kept(layer, x) is not None


def test_another_execution_is_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = called("3x3")
    layer.execution = "dense"
    assert kept(layer, x) is None
    layer.execution = "axial"  # which auto is
    assert kept(layer, x) is not None
    monkeypatch.setattr("construct.encoding.quadratic.r", lambda delta: (sum(n * n for n in delta), *delta))
    assert kept(layer, x) is None


def test_a_large_factor_is_looked_at_too() -> None:
    torch.manual_seed(1)
    layer, x = conv_to_mhsa(nn.Conv2d(260, 260, 1)).requires_grad_(False), torch.randn(1, 260, 2, 3)
    factor = layer.w_out if is_identity(layer.w_out) else layer.w_val
    assert is_identity(factor)
    before = layer(x)
    for place in ((0, 0, 3, 200), (0, 0, 5, 5)):
        factor.data[place] += 0.5
        assert not torch.equal(layer(x), before)
        torch.testing.assert_close(layer(x), by_dense(layer, x))
        factor.data[place] -= 0.5
        assert torch.equal(layer(x), before)


@pytest.mark.parametrize("name", ["auto", "axial"])
def test_other_code_by_the_name_of_an_execution_is_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every time, before and after the layer was called."""
    layer, x = called("3x3")
    layer.execution = name
    before, right = layer(x), EXECUTIONS[name]
    monkeypatch.setitem(EXECUTIONS, name, replace(right, run=lambda *args: right.run(*args) + 1))
    for _ in range(3):
        assert torch.equal(layer(x), before + 1)


def test_no_layer_is_kept_alive() -> None:
    layer, _ = called("1x1")
    count = len(cache.ENTRIES)
    assert count
    del layer
    assert len(cache.ENTRIES) < count


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


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_layer_that_was_called_can_exchange_its_tensors(name: str) -> None:
    """Torch refuses this while anything is a view of a parameter."""
    layer, x = called(name)
    for tensor in TENSORS:
        before = getattr(layer, tensor)
        torch.utils.swap_tensors(before, nn.Parameter(before * 2, requires_grad=False))
        torch.testing.assert_close(layer(x), by_dense(layer, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_memory_of_a_layer_that_was_called_can_be_freed_and_filled_again(name: str, dtype: torch.dtype) -> None:
    """As FSDP does to parameters between calls; ``Tensor.numpy`` would forbid it."""
    layer, x = called(name)
    layer, x = layer.to(dtype), x.to(dtype)
    layer(x)
    layer.requires_grad_()(x).sum().backward()
    wanted = layer.requires_grad_(False)(x)
    for parameter in layer.parameters():
        before, storage = parameter.clone(), parameter.untyped_storage()
        size = storage.nbytes()
        storage.resize_(0)
        storage.resize_(size)
        parameter.copy_(before)
    assert torch.equal(layer(x), wanted)


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


def test_what_was_known_is_let_go_when_a_layer_is_converted() -> None:
    """Otherwise its former numbers would be kept as long as the layer; calls in half precision are not cached."""
    layer, x = called("3x3")
    assert layer in cache.ENTRIES
    layer.half()(x.half())
    assert layer not in cache.ENTRIES
    assert kept(layer.double(), x) is None
    layer(x)
    assert kept(layer, x) is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x)
    assert kept(layer, x) is not None


def test_layers_are_called_on_the_processor_whatever_the_default_device() -> None:
    head_matrices._identities.cache_clear()
    for channels in (4, 260):
        layer, x = conv_to_mhsa(nn.Conv2d(channels, channels, 1)).requires_grad_(False), torch.randn(1, channels, 2, 3)
        with torch.device("meta"):
            output = layer(x)
        assert torch.equal(output, copy.deepcopy(layer)(x))
