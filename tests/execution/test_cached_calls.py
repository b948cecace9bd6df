"""Cached calls are exact on integers, for every geometry and every memory layout of the input."""

import copy
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from construct import MHSA, MHSAWeights, conv_to_mhsa
from construct.encoding.encodings import Parabola, Relative
from construct.execution import cache
from construct.execution.call import EXECUTIONS
from construct.modules.learning import gate_content
from runs import FORCED, forced, whole_numbers
from truths import exact
from verify.strategies import LAYOUTS, Case, _laid_out, cases


def some_of_its_channels(x: Tensor) -> Tensor:
    """Channels last, with other channels between those of neighbouring tokens."""
    larger = x.new_full((len(x), *x.shape[2:], 2 * x.shape[1]), torch.nan)
    inside = larger[..., : x.shape[1]].movedim(-1, 1)
    return inside.copy_(x)


def further_on(x: Tensor) -> Tensor:
    """A view that starts at the sixth number of its storage."""
    return torch.cat([x.new_full((5,), torch.nan), x.flatten()])[5:].view(x.shape)


LYING: tuple[Callable[[Tensor], Tensor], ...] = (
    some_of_its_channels,
    further_on,
    lambda x: further_on(x.movedim(1, -1)).movedim(-1, 1),
    lambda x: x[:, :1].expand(x.shape),  # strides of zero
    *(partial(_laid_out, layout=layout) for layout in LAYOUTS),
)
BATCHED = (1, 2, 3, 5, 17, 33, 70)


def edited(layer: MHSA) -> None:
    """Negate all outputs of the same layer, by an edit that torch does not notice."""
    known = cache.ENTRIES.get(layer)
    whole = getattr(layer, known.whole if known else "w_out")
    for tensor in (whole, layer.b_out):
        tensor.data.neg_()


@pytest.mark.nasty(36)
@given(
    cases(tokens=80, integers=[True], batches=[1, 2]),
    st.sampled_from(BATCHED),
    st.lists(st.sampled_from(LYING), min_size=1, max_size=4),
    st.sampled_from(sorted(FORCED)),
)
def test_a_prepared_call_is_the_convolution(
    case: Case, batch: int, layouts: list[Callable[[Tensor], Tensor]], constants: str
) -> None:
    """For inputs of one shape in different layouts, before and after editing all numbers of the factor and the bias."""
    if not case.x.numel():
        return
    layer, sign = conv_to_mhsa(case.conv).requires_grad_(False), 1
    with forced(constants), torch.no_grad():
        for lie in layouts:
            x = lie(case.x[torch.arange(batch) % len(case.x)])
            expected = exact(case.conv, x.contiguous())
            for _ in range(2):
                assert torch.equal(layer(x).double(), sign * expected)
            edited(layer)
            sign = -sign
            for _ in range(2):
                assert torch.equal(layer(x).double(), sign * expected)


@pytest.mark.nasty(36)
@pytest.mark.parametrize("learned", [["x"], ["kernel"], ["bias"], ["x", "kernel", "bias"]], ids=" ".join)
@given(cases(tokens=80, integers=[True], batches=[1, 2]), st.sampled_from(LYING))
def test_a_prepared_call_has_the_derivatives_of_the_convolution(
    learned: list[str], case: Case, lie: Callable[[Tensor], Tensor]
) -> None:
    """Of its input, of the one kernel that learns, of the bias, or of all of these; once more after a change."""
    if not case.x.numel():
        return
    layer = conv_to_mhsa(case.conv).requires_grad_(False)
    x, run = lie(case.x).detach(), EXECUTIONS["auto"].run
    with torch.no_grad():
        layer(x)
    known = cache.ENTRIES.get(layer)
    if known is None:
        return

    def parts_of(of: MHSA) -> list[Tensor]:
        parts: dict[str, Tensor] = {"x": x, "kernel": getattr(of, known.whole), "bias": of.b_out}
        return [parts[name].requires_grad_() for name in learned]

    parts, conv = parts_of(layer), case.conv.double()
    for _ in range(2):
        prepared, again = layer(x), copy.deepcopy(layer)
        assert cache.cached(layer, run, x) is not None
        y = again(x)
        assert torch.equal(prepared, y)
        ones = torch.ones_like(y)
        gradients = torch.autograd.grad(prepared, parts, ones)
        for ours, theirs in zip(gradients, torch.autograd.grad(y, parts_of(again), ones), strict=True):
            assert torch.equal(ours, theirs)
        copied = x.detach().double().contiguous().requires_grad_()
        (expected,) = torch.autograd.grad(conv(copied).sum(), copied)
        true = {"x": expected, "bias": ones.double().sum((0, *range(2, ones.dim())))}
        for name, ours in zip(learned, gradients, strict=True):
            assert name == "kernel" or torch.equal(ours.double(), true[name])
        getattr(layer, known.whole).data.neg_()
        conv.weight.data.neg_()


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("conv", [nn.Conv2d(3, 2, 3), nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(3, 2, 1)], ids=str)
def test_calls_of_every_mode_follow_each_other(conv: nn.Conv2d, first: Callable) -> None:
    layer, x = conv_to_mhsa(conv), torch.randn(2, 3, 5, 6)
    with first():
        layer(x)
        layer(x)
    for mode in (torch.enable_grad, torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            for _ in range(2):
                output = layer(x)
                assert output.requires_grad == torch.is_grad_enabled()
                assert output.is_inference() == torch.is_inference_mode_enabled()
                torch.testing.assert_close(output, conv(x))
    layer(x).sum().backward()
    assert layer.w_val.grad is not None


@pytest.mark.parametrize("execution", ["auto", "dense", "axial"])
def test_content_learns_after_a_call_in_inference_mode(execution: str) -> None:
    """A grid's cached data serve every later call, also of other layers."""
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1), alpha=1.0, execution=execution)
    with torch.no_grad():
        layer.w_qry.normal_()
        layer.w_key.normal_()
    x = torch.randn(1, 2, 6, 9 + len(execution))  # a grid that no other test uses
    with torch.inference_mode():
        layer(x)
    x.requires_grad_()
    layer(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("conv", [nn.Conv2d(3, 2, 3), nn.Conv2d(3, 3, 3, groups=3), nn.Conv1d(16, 16, 3)], ids=str)
def test_threads_can_call_one_layer_at_once(conv: nn.Conv2d) -> None:
    """With inputs of many shapes, so that cache entries come and go."""
    whole_numbers(conv)
    layer, axes = conv_to_mhsa(conv).requires_grad_(False), conv.weight.dim() - 2
    inputs = [torch.randint(-4, 5, (1 + n % 5, conv.in_channels, *(5 + n % 17,) * axes)).float() for n in range(85)]
    with torch.no_grad():
        expected = [conv(x) for x in inputs]
    wrong: list[object] = []

    def call(thread: int) -> None:
        try:
            for n in range(170):
                number = (n * (thread + 3)) % len(inputs)
                if not torch.equal(layer(inputs[number]), expected[number]):
                    wrong.append(number)
        except Exception as error:  # otherwise it would be lost with the thread
            wrong.append(error)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _own_encoding(layer: Any) -> None:
    layer.own_encoding = Parabola((15, 1))


def _parameter(layer: Any) -> None:
    layer.v.data.copy_(layer.v.data.roll(1, 0))


@pytest.mark.parametrize("edit", [_own_encoding, _parameter])
def test_what_a_call_takes_before_what_was_prepared_counts(edit: Callable[[Any], None]) -> None:
    """An encoding of one's own comes before a radix, and a parameter before a buffer of its name."""
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3), encoding="parabola").requires_grad_(False)
    layer._buffers["v"] = layer.v.clone()
    inputs = [torch.rand(1, 2, n, n) for n in (5, 6, 7)]
    for x in inputs:
        layer(x)
    edit(layer)
    got = [layer(x) for x in inputs]
    layer.execution = "dense"
    for x, y in zip(inputs, got, strict=True):
        torch.testing.assert_close(y, layer(x))


def test_a_layer_of_eight_other_tensors_is_not_prepared() -> None:
    """Of one axis, a table in the place of one that is worked out."""
    table = 4096 * torch.eye(9)
    conv = conv_to_mhsa(nn.Conv1d(2, 3, 1))
    zeros, rows = torch.zeros(1, 2, 9), torch.eye(9)[None]
    positions = {"w_qry": zeros, "w_key": zeros, "w_key_pos": rows, "u": zeros[:, 0], "v": rows[:, 4]}
    weights = MHSAWeights(**positions, w_val=conv.w_val.data, w_out=conv.w_out.data, b_out=conv.b_out.data)
    layer = MHSA(conv.geometry, weights, encoding=Relative((table,))).requires_grad_(False)
    x = torch.rand(1, 2, 5)
    before = layer(x)
    gate_content(layer).requires_grad_(False)
    assert torch.equal(layer(x), before)
