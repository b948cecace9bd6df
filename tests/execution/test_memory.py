"""Cost estimates of executions: memory is at least what is really used, multiplications are about right; and what is kept."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from construct import conv_to_mhsa, tokens
from construct.execution import axial, cache, plan
from construct.execution.shifts import maps, windows
from construct.tokens import TokenGrid
from runs import channels_last, peak_bytes

SHARP = {
    "wide outputs": (lambda: nn.Conv2d(64, 512, 3, padding=1), (9, 64, 14, 14)),
    "small images": (lambda: nn.Conv1d(4, 4, 3, stride=2), (70, 4, 9)),
    "large products": (lambda: nn.Conv2d(64, 64, 3, padding=1), (3, 64, 30, 31)),
    "more than is kept": (lambda: nn.Conv3d(256, 33, (3, 3, 2), stride=2, padding=1), (9, 256, 9, 9, 11)),
    "few outputs, many blocks": (lambda: nn.Conv2d(16, 8, 7, padding=3), (1, 16, 90, 90)),
    "few outputs, 1-D": (lambda: nn.Conv1d(64, 1, 9, padding=4), (2, 64, 3000)),
    "depthwise": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), (4, 32, 56, 56)),
    "groups, a long row": (lambda: nn.Conv1d(128, 256, 5, groups=2), (1, 128, 3000)),
    "1x1 of short rows": (lambda: nn.Conv2d(64, 64, 1), (40, 64, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(64, 512, 3, stride=2), (2, 64, 8, 8)),
    "copied padding": (lambda: nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect"), (2, 64, 28, 28)),
}
"""Layers and inputs that take most of their estimates, of every kind."""
SOFT = {
    "a head": (lambda: nn.Conv1d(1, 1, 1), (1, 1, 1500)),
    "too long an axis": (lambda: nn.Conv1d(1, 32, 5), (1, 1, 3000)),
    "many heads": (lambda: nn.Conv1d(2, 2, 31, padding=15), (1, 2, 200)),
    "stride": (lambda: nn.Conv1d(4, 4, 3, stride=2, padding=1), (2, 4, 1000)),
    "2-D": (lambda: nn.Conv2d(16, 2, 3), (4, 16, 30, 30)),
    "one axis much longer": (lambda: nn.Conv2d(1, 1, 3, padding=1), (1, 1, 4, 900)),
    "soft groups": (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4), (2, 64, 20, 20)),
}

SLOW = {"too long an axis"}


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.deep] if name in SLOW else []) for name in (*SHARP, *SOFT)]
)
def test_the_estimate_is_above_what_is_taken(
    name: str, dtype: torch.dtype, grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = (SHARP | SOFT)[name]
    conv = make().to(dtype)
    layer = conv_to_mhsa(conv, alpha=0.7) if name in SOFT else conv_to_mhsa(conv)
    grid = TokenGrid.of(layer.geometry, shape[2:])
    for x in (torch.randn(shape).to(dtype), channels_last(torch.randn(shape).to(dtype))):
        with torch.set_grad_enabled(grad):
            estimate = axial.memory(layer, len(x), grid)
            axial.run(layer, x, grid)  # fill the caches that persist between calls
            monkeypatch.setattr(windows, "KEPT_BYTES", 0)  # except the buffer, which a first call allocates
            real = peak_bytes(lambda x=x: axial.run(layer, x, grid))
        assert real <= estimate


@pytest.mark.parametrize("groups", [1, 2])
def test_the_weights_gradient_holds_no_matrix_for_each_image(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many images are multiplied at once, as on a GPU."""
    monkeypatch.setattr(tokens, "host_waits", lambda device: True)
    x, y = torch.ones(64, 64, 256), torch.ones(64, 512, 64)
    shifts = windows.Shifts(((-1,), (0,), (1,)), (4,), (256,), (64,))
    for_each = 64 * 3 * 64 * 512 // groups * x.itemsize
    assert peak_bytes(lambda: maps.weights(x, y, shifts, groups)) < for_each


@pytest.mark.parametrize("content", [False, True], ids=["positions", "content"])
@pytest.mark.parametrize("name", ["grouped, strided", "transposed"])
def test_multiplications_are_those_that_torch_counts(name: str, content: bool) -> None:
    """Except for a few that look up position scores."""
    conv, shape = {
        "grouped, strided": (nn.Conv2d(4, 6, 3, padding=1, groups=2, stride=2), (2, 4, 6, 5)),
        "transposed": (nn.ConvTranspose1d(3, 5, 4, stride=2), (3, 3, 7)),
    }[name]
    layer = conv_to_mhsa(conv, execution="dense").requires_grad_(False)
    if content:
        for tensor in (layer.w_qry, layer.w_key, layer.u):
            tensor.normal_()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.randn(shape))
    counted = counter.get_total_flops() / 2  # a multiplication and an addition
    assert 0.9 * counted <= layer.multiplications(shape, "dense") <= counted


def numpy_and_python_bytes(run: Callable[[], Any]) -> tuple[int, int]:
    """What Python and numpy, not torch, keep after a call, and the most that they hold during it."""
    gc.collect()
    tracemalloc.start()
    try:
        run()
        gc.collect()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "conv",
    [nn.Conv1d(1, 4, 3, padding=1), nn.Conv1d(1, 2, 5, stride=3), nn.ConvTranspose1d(1, 2, 4, stride=2)],
    ids=str,
)
def test_planning_a_first_call_takes_few_numbers_a_position(conv: Any) -> None:
    """So a first call takes about as long as a later one, however long the input, and however many heads."""
    layer, x = conv_to_mhsa(conv).requires_grad_(False), torch.randn(1, 1, 200_000)
    _, most = numpy_and_python_bytes(lambda: layer(x))
    positions = conv.stride[0] * 200_000 if layer.transposed else 200_000
    assert most < 24 * positions + 2**20


@pytest.mark.nasty(76)
def test_what_is_kept_of_ever_new_lengths_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many lengths; the results are the same after everything was forgotten."""
    monkeypatch.setattr(plan, "MOST_PLANS", 20)
    monkeypatch.setattr(cache, "MOST_CALLS", 7)
    plan.PLANS.clear()
    conv: Any = nn.Conv1d(1, 1, 64, padding=5, dtype=torch.float64)
    layer = conv_to_mhsa(conv).requires_grad_(False)
    for n in range(100, 160):
        x = torch.randn(1, 1, n, dtype=torch.float64)
        torch.testing.assert_close(layer(x), conv(x).detach())
        assert 0 < len(plan.PLANS) <= 20
        assert 0 < len(cache.ENTRIES[layer].calls) <= 7
