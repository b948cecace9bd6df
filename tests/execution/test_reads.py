"""On a GPU a call reads no values that it has read before, starts few operations, and never uses numbers that have changed.

The same code runs here, on a CPU that counts as such a device.
"""

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode

from construct import MHSA, conv_to_mhsa, tokens
from construct.attention import EXECUTIONS, smaller_blocks
from construct.execution import cache, reads
from construct.execution.shifts import maps
from runs import by_dense, channels_last
from truths import exact
from verify.strategies import Case, cases

CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1x1": (lambda: nn.Conv2d(3, 5, 1), (2, 3, 4, 5)),
    "1x1, stride": (lambda: nn.Conv2d(3, 5, 1, stride=2), (2, 3, 4, 5)),
    "3x3": (lambda: nn.Conv2d(4, 3, 3, padding=1), (2, 4, 6, 5)),
    "3x3, stride, groups": (lambda: nn.Conv2d(4, 6, 3, 2, 1, groups=2), (2, 4, 6, 5)),
    "depthwise 7x7": (lambda: nn.Conv2d(3, 3, 7, padding=3, groups=3), (2, 3, 9, 8)),
    "1-D": (lambda: nn.Conv1d(2, 4, 64, bias=False), (2, 2, 99)),
    "3-D": (lambda: nn.Conv3d(2, 3, 3, 2, 1), (2, 2, 5, 5, 5)),
    "reflected": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (2, 2, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 2, 4, 4)),
    "transposed 3-D": (lambda: nn.ConvTranspose3d(3, 2, 3, stride=2, padding=1), (2, 3, 3, 3, 3)),
}
POSITIONAL = ("w_qry", "w_key", "w_key_pos", "u", "v")


@contextmanager
def elsewhere() -> Iterator[None]:
    """The CPU counts as a device where reading makes the host wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "host_waits", lambda device: True)
        yield


@pytest.fixture
def gpu() -> Iterator[None]:
    with elsewhere():
        yield


def called(
    name: str, dtype: torch.dtype = torch.float64, layout: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[MHSA, Tensor]:
    """A layer, frozen and called, whose kernel is in one factor."""
    make, size = CONVOLUTIONS[name]
    torch.manual_seed(1)
    layer = conv_to_mhsa(make().to(dtype)).requires_grad_(False)
    x = layout(torch.randn(size, dtype=dtype))
    layer(x)
    return layer, x


class Launches(TorchDispatchMode):
    """Records the operators that compute something, by name; none reads a value."""

    FORBIDDEN = ("item", "_local_scalar_dense", "equal", "is_nonzero", "nonzero", "lift_fresh", "unique")
    ATOMIC = ("index_add", "scatter", "index_put", "put", "embedding", "bincount", "histc")

    def __init__(self) -> None:
        super().__init__()
        self.names = list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        assert name not in self.FORBIDDEN, f"{name} makes the host wait"
        assert not name.strip("_").startswith(self.ATOMIC), f"{name} adds in no fixed order"
        defined = OPDEFS.get(func._schema.name)
        if defined is not None:  # by Python code, which executes other operators
            with self:
                return defined._init_fn(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if not func.is_view and name not in ("new_empty", "empty", "_unsafe_view", "empty_strided"):
            self.names += [name] * (2 if name == "constant_pad_nd" else 1)  # which fills and copies
        return result


@contextmanager
def without_reads() -> Iterator[Launches]:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a value was read")

    with pytest.MonkeyPatch.context() as patch:
        for reading in ("cpu", "numpy", "tolist", "item", "__dlpack__", "__bool__", "__int__", "__float__"):
            patch.setattr(Tensor, reading, refused)
        patch.setattr(torch, "from_numpy", refused)
        patch.setattr(np, "from_dlpack", refused)
        with Launches() as launches:
            yield launches


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("layout", [lambda x: x, channels_last], ids=["first", "last"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_second_call_reads_nothing_and_starts_few_operations(
    name: str, dtype: torch.dtype, layout: Callable[[Tensor], Tensor]
) -> None:
    layer, x = called(name, dtype, layout)
    first = layer(x)
    with without_reads() as launches:
        again = layer(x)
    assert torch.equal(again, first)
    assert len(launches.names) <= 10 + 4 * (dtype == torch.float16)  # which casts its tensors in every call
    if dtype != torch.float16:
        assert cache.cached(layer, cache.ENTRIES[layer].calls.copy().popitem()[0][0], x) is not None
    torch.testing.assert_close(
        first, by_dense(layer, x), check_stride=True, rtol=1e-2 if dtype == torch.float16 else 1e-4, atol=1e-4
    )


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if name != "reflected"])
def test_a_second_step_of_training_reads_nothing(name: str) -> None:
    layer, x = called(name)
    kernel = layer.w_val if layer.out_channels <= layer.in_channels else layer.w_out
    learned = [kernel.requires_grad_(), x.requires_grad_()]
    optimizer = torch.optim.Adam([*layer.parameters()], fused=True)
    for _ in range(2):
        loss = layer(x).square().sum()
        loss.backward()
        optimizer.step()
    with without_reads():
        torch.autograd.grad(layer(x).square().sum(), learned)


def outcomes(layer: MHSA, x: Tensor) -> list[Tensor | None]:
    """The output, and gradients of both orders; the sums of both need gradients of every map."""
    learned = [x.requires_grad_(), layer.w_val, layer.w_out, layer.b_out.requires_grad_()]
    y = layer(x)
    gradients = torch.autograd.grad(y.square().sum(), learned, create_graph=True, allow_unused=True)
    again = torch.autograd.grad(sum(g.sum() for g in gradients if g is not None), learned, allow_unused=True)  # type: ignore[union-attr]
    return [y, *gradients, *again]


@given(cases(tokens=60, integers=[True], batches=[1, 3]), st.sampled_from([1, 40, 400, 2**28]), st.booleans())
def test_blocks_are_the_convolution_bit_for_bit(case: Case, numbers: int, last: bool) -> None:
    """However few tokens fit, forward and in all gradients of both orders, and without atomic additions."""
    if not case.x.numel():
        return
    conv, x = copy.deepcopy(case.conv).double(), case.x.double() % 7
    x = channels_last(x) if last else x
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.remainder_(5)
    layer = conv_to_mhsa(conv)
    layer(x)
    wanted = outcomes(layer, x)
    columns, copied = maps._columns, list[Tensor]()
    with elsewhere(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "AT_ONCE_ELSEWHERE", numbers)
        patch.setattr(maps, "MIN_QUERIES", 1)
        patch.setattr(maps, "_columns", lambda *args: copied.append(columns(*args)) or copied[-1])
        with Launches() if layer.padding_mode == "zeros" else nullcontext():
            actual = outcomes(layer, x)
    most = max(numbers, max(layer.in_channels, layer.out_channels) * layer.heads)
    assert layer.heads == 1 or max((tokens.numel() for tokens in copied), default=0) <= most
    assert torch.equal(actual[0], exact(conv, x.detach()))  # type: ignore[arg-type]
    for ours, theirs in zip(actual, wanted, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)  # type: ignore[arg-type]


def other(tensor: Tensor) -> Tensor:
    """Numbers by which heads look elsewhere; a scaled v would not do."""
    return tensor.detach().flip(0) * 0.5 + 0.25


def by_a_fused_step(layer: MHSA, part: str, x: Tensor) -> None:
    """Which torch does not count, for a tensor that is learned for a moment."""
    tensor = getattr(layer, part).requires_grad_()
    tensor.grad = torch.linspace(-1, 1, tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
    torch.optim.AdamW([tensor], lr=1e4, fused=True).step()
    tensor.grad = None
    tensor.requires_grad_(False)


def in_place(layer: MHSA, part: str, x: Tensor) -> None:
    with torch.no_grad():
        getattr(layer, part).mul_(0.5).add_(0.25)


def through_data_while_learned(layer: MHSA, part: str, x: Tensor) -> None:
    """As a training loop without an optimizer; the tensor stays learned."""
    getattr(layer, part).requires_grad_()
    with torch.no_grad():
        layer(x)
    getattr(layer, part).data.copy_(other(getattr(layer, part)))


def through_data_and_frozen_again(layer: MHSA, part: str, x: Tensor) -> None:
    """As training for a while does; calls in which it is learned use no prepared call."""
    with torch.enable_grad():
        getattr(layer, part).requires_grad_()
        layer(x)
    tensor = getattr(layer, part)
    tensor.data.copy_(other(tensor))
    tensor.requires_grad_(False)


def replaced(layer: MHSA, part: str, x: Tensor) -> None:
    """By a parameter in the same memory, whose changes are counted from 0 again."""
    tensor = getattr(layer, part)
    in_place(layer, part, x)
    setattr(layer, part, nn.Parameter(tensor.data, requires_grad=False))


def other_memory(layer: MHSA, part: str, x: Tensor) -> None:
    """Freed and allocated again, perhaps at the same address."""
    tensor = getattr(layer, part)
    kept = other(tensor)
    tensor.data = torch.empty(0, dtype=tensor.dtype)
    tensor.data = kept.clone()


def moved(layer: MHSA, part: str, x: Tensor) -> None:
    layer.to(torch.float32)
    getattr(layer, part).data.copy_(other(getattr(layer, part)))
    layer.to(torch.float64)


def called_functionally(layer: MHSA, part: str, x: Tensor) -> None:
    values = other(getattr(layer, part))
    for tensor in (nn.Parameter(values, requires_grad=False), values):
        for _ in range(2):
            output = torch.func.functional_call(layer, {part: tensor}, (x,))
            changed = copy.deepcopy(layer)
            getattr(changed, part).data.copy_(tensor)
            torch.testing.assert_close(output, by_dense(changed, x), rtol=1e-4, atol=1e-4)


def through_the_kernel(layer: MHSA, part: str, x: Tensor) -> None:
    try:
        weight = layer.weight
    except ValueError:  # heads look at no kernel any more
        return
    with torch.no_grad():
        weight[0] += 1


def other_geometry(layer: MHSA, part: str, x: Tensor) -> None:
    if not layer.transposed:
        vars(layer.geometry)["padding_mode"] = "replicate" if layer.geometry.padding_mode == "zeros" else "zeros"


Edit = Callable[[MHSA, str, Tensor], object]
EDITS: dict[str, Edit] = {
    "of one head": lambda layer, part, x: getattr(layer, part)[-1:].mul_(1e-3),
    "loaded": lambda layer, part, x: layer.load_state_dict(
        {name: other(tensor) if name == part else tensor for name, tensor in layer.state_dict().items()}
    ),
    "swapped": lambda layer, part, x: torch.utils.swap_tensors(
        getattr(layer, part), nn.Parameter(other(getattr(layer, part)), requires_grad=False)
    ),
    **{edit.__name__: edit for edit in (in_place, by_a_fused_step, replaced, other_memory, moved, called_functionally)},
    **{edit.__name__: edit for edit in (through_data_while_learned, through_data_and_frozen_again)},
    **{edit.__name__: edit for edit in (other_geometry, through_the_kernel)},
}
WITHOUT_TRACE: dict[str, Edit] = {
    "through numpy": lambda layer, part, x: getattr(layer, part).detach().numpy().__imul__(0.5),
    "through data": lambda layer, part, x: getattr(layer, part).data.copy_(other(getattr(layer, part))),
    "ones": lambda layer, part, x: getattr(layer, part).data.fill_(1.0),
    "one number": lambda layer, part, x: getattr(layer, part).data.view(-1)[-1:].add_(0.25),
}
"""Edits that torch does not count, which a CPU sees by comparing numbers."""
PARTS = (*POSITIONAL, "w_val", "w_out", "b_out")


@pytest.mark.parametrize("device", [nullcontext, elsewhere], ids=["CPU", "GPU"])
@example("3x3", "auto", [("by_a_fused_step", part) for part in PARTS])
@example("3x3", "auto", [("other_geometry", "v"), ("through_data_and_frozen_again", "v")])
@example("3x3", "auto", [("of one head", "v"), ("of one head", "w_out")])  # of sharp heads alone all are identities
@given(
    st.sampled_from(["1x1", "3x3", "depthwise 7x7", "1-D", "reflected", "transposed"]),
    st.sampled_from(["auto", "axial"]),
    st.lists(st.tuples(st.sampled_from([*EDITS, *WITHOUT_TRACE]), st.sampled_from(PARTS)), min_size=1, max_size=4),
)
def test_every_edit_counts(device: Any, name: str, execution: str, edits: list[tuple[str, str]]) -> None:
    """Those without a trace where numbers are compared."""
    known = EDITS | (WITHOUT_TRACE if device is nullcontext else {})
    with device(), torch.no_grad():
        layer, x = called(name)
        layer.execution = execution
        layer(x)
        for edit, part in edits:
            if edit not in known:
                continue
            tensor, version = getattr(layer, part), getattr(layer, part)._version
            known[edit](layer, part, x)
            assert edit not in WITHOUT_TRACE or tensor._version == version
            for _ in range(2):  # the second uses the cache again, if possible
                torch.testing.assert_close(layer(x), by_dense(layer, x), rtol=1e-9, atol=1e-9)
            twin = copy.deepcopy(layer)
            in_place(twin, part, x)
            for one in (twin, layer):
                torch.testing.assert_close(one(x), by_dense(one, x), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("part", PARTS)
def test_a_write_that_leaves_no_trace_is_seen_after_one_call(part: str) -> None:
    """At once in what is multiplied.  docs/limits.md names the call; this fails if the limit is none any more."""
    layer, x = called("3x3")
    with torch.no_grad():
        for name in ("w_key", "w_key_pos"):  # so that every tensor counts
            getattr(layer, name).add_(0.01)
    before = layer(x)
    multiplied = part in (cache.ENTRIES[layer].whole, "b_out")
    getattr(layer, part).data.add_(0.5)
    if not multiplied:
        assert torch.equal(layer(x), before)
        layer.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), by_dense(layer, x))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("moves", [[], [torch.float64, torch.float32]], ids=["inside", "moved"])
def test_tensors_that_count_no_changes_are_read_in_every_call(moves: list[torch.dtype]) -> None:
    conv, x = nn.Conv2d(2, 3, 3), torch.randn(1, 2, 5, 5)
    with torch.inference_mode():
        layer = conv_to_mhsa(conv)
        for dtype in moves:
            layer = copy.deepcopy(layer).to(dtype)
        for factor in (1, 0.5, 0.5):
            for part in (layer.v, layer.w_key_pos, layer.w_val):
                part.data.mul_(factor)
                for _ in range(2):
                    torch.testing.assert_close(layer(x), by_dense(layer, x))


@pytest.mark.usefixtures("gpu")
def test_a_layer_leaves_nothing_behind_and_another_is_not_taken_for_it() -> None:
    """Objects that were freed give their addresses to others."""
    gc.collect()
    before = len(reads._RESULTS), len(cache.ENTRIES)
    for seed in range(20):
        torch.manual_seed(seed)
        conv = nn.Conv2d(2, 3, 3, padding=seed % 3, dilation=1 + seed % 2)
        layer, x = conv_to_mhsa(conv).requires_grad_(False), torch.randn(1, 2, 6, 6)
        for _ in range(2):
            torch.testing.assert_close(layer(x), conv(x).detach())
        del layer
    gc.collect()
    assert (len(reads._RESULTS), len(cache.ENTRIES)) == before


@pytest.mark.usefixtures("gpu")
def test_other_networks_may_be_trained_meanwhile() -> None:
    """Only a step that may have changed a layer's frozen tensors makes it read them again."""
    layer, x = called("3x3")
    other = nn.Linear(2, 2)
    optimizer = torch.optim.Adam([*other.parameters(), *layer.parameters()])
    other(torch.randn(1, 2)).sum().backward()
    for _ in range(2):  # once, a parameter may have the id of a tensor that no longer exists
        layer(x)
        optimizer.step()
    with without_reads():
        layer(x)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_short_call_is_the_same_call(name: str) -> None:
    """Bit for bit and in layout, for every memory layout of an input; also for a layer saved after it was called."""
    layer, x = called(name)
    for way in (x, x.flip(-1), x[..., :-1], torch.cat([x, x]), channels_last(x), x[:0]):
        first = copy.deepcopy(layer)(way)
        assert torch.equal(pickle.loads(pickle.dumps(layer))(way), first)
        for _ in range(3):
            again = layer(way)
            assert torch.equal(again, first)
            assert again.stride() == first.stride()


def test_smaller_blocks_count_also_after_a_call_that_is_called() -> None:
    """A certificate's runs request them, possibly after an input of the same shape."""
    layer, x = called("3x3", torch.float32)
    assert cache.cached(layer, EXECUTIONS["auto"].run, x) is not None
    with smaller_blocks(4):
        assert cache.cached(layer, EXECUTIONS["auto"].run, x) is None
        torch.testing.assert_close(layer(x), by_dense(layer, x))


@pytest.mark.parametrize("name", ["w_val", "w_out", "b_out"])
def test_factors_of_different_types_count_as_they_are_now(name: str) -> None:
    """A factor converted in every call is a copy, which would be stale after an edit."""
    layer, x = called("3x3", torch.float32)
    setattr(layer, name, nn.Parameter(getattr(layer, name).double(), requires_grad=False))
    x = x.to(layer.w_val.dtype)
    for edit in ("", "through data", "through numpy", "ones"):
        if edit:
            WITHOUT_TRACE[edit](layer, name, x)
        for _ in range(2):
            torch.testing.assert_close(layer(x), by_dense(layer, x))
    with pytest.raises(RuntimeError, match="must be the same"):
        layer(x.double() if x.dtype == torch.float32 else x.float())
