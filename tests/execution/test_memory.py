"""Cost estimates of executions: memory is at least what is really used, multiplications are about right; and what is kept."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from construct import conv_to_mhsa
from construct.execution import axial, cache, plan
from construct.execution.shifts import windows
from construct.tokens import TokenGrid
from runs import channels_last, peak_bytes

SHARP = {
    "gathered, wide outputs": (lambda: nn.Conv2d(64, 512, 3, padding=1), (9, 64, 14, 14)),
    "gathered, few tokens": (lambda: nn.Conv2d(8, 8, 3, padding=1), (2, 8, 5, 5)),
    "gathered, small images": (lambda: nn.Conv1d(4, 4, 3, stride=2), (70, 4, 9)),
    "gathered, a single product": (lambda: nn.Conv2d(64, 256, 3, padding=1), (1, 64, 14, 14)),
    "gathered, large products": (lambda: nn.Conv2d(64, 64, 3, padding=1), (3, 64, 30, 31)),
    "gathered, a large product": (lambda: nn.Conv2d(64, 64, 3, padding=1), (1, 64, 30, 31)),
    "gathered, more than is kept": (lambda: nn.Conv3d(256, 33, (3, 3, 2), stride=2, padding=1), (9, 256, 9, 9, 11)),
    "gathered, a few images at a time": (lambda: nn.Conv2d(128, 33, (1, 2), stride=(1, 3)), (9, 128, 28, 31)),
    "gathered, 1x1 with a stride": (lambda: nn.Conv2d(256, 256, 1, stride=2), (2, 256, 28, 28)),
    "1x1": (lambda: nn.Conv2d(128, 128, 1), (2, 128, 28, 28)),
    "few outputs": (lambda: nn.Conv2d(32, 3, 3, padding=1), (2, 32, 100, 100)),
    "few outputs, many blocks": (lambda: nn.Conv2d(16, 8, 7, padding=3), (1, 16, 90, 90)),
    "few outputs, transposed": (lambda: nn.ConvTranspose2d(64, 3, 4, stride=2, padding=1), (2, 64, 40, 40)),
    "products first, for few are in vain": (lambda: nn.ConvTranspose2d(64, 48, 3, stride=2), (2, 64, 28, 28)),
    "few outputs, 1-D": (lambda: nn.Conv1d(64, 1, 9, padding=4), (2, 64, 3000)),
    "depthwise": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), (4, 32, 56, 56)),
    "depthwise, few channels": (lambda: nn.Conv2d(3, 3, 3, padding=1, groups=3), (4, 3, 100, 100)),
    "depthwise, a stride": (lambda: nn.Conv2d(32, 32, 5, stride=2, padding=2, groups=32), (4, 32, 56, 56)),
    "groups": (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4), (2, 64, 28, 28)),
    "groups, a long row": (lambda: nn.Conv1d(128, 256, 5, groups=2), (1, 128, 3000)),
    "groups, a last block of few": (
        lambda: nn.Conv3d(256, 96, (4, 1, 1), padding=(2, 0, 0), groups=4),
        (9, 256, 4, 10, 10),
    ),
    "groups, few beside each other": (lambda: nn.Conv2d(32, 512, (5, 1), padding=(2, 0), groups=2), (2, 32, 14, 56)),
    "groups, no shift": (lambda: nn.Conv2d(16, 256, 1, groups=2), (1, 16, 40, 30)),
    "columns, or runs of a few heads": (lambda: nn.Conv2d(32, 16, (2, 1), dilation=(2, 1)), (3, 32, 31, 56)),
    "columns, or a rectangle of heads": (lambda: nn.Conv2d(33, 32, (3, 1), padding=(1, 0)), (3, 33, 14, 56)),
    "1x1 of short rows": (lambda: nn.Conv2d(64, 64, 1), (40, 64, 5, 5)),
    "lines": (lambda: nn.Conv1d(64, 64, 3, padding=1), (4, 64, 3000)),
    "transposed": (lambda: nn.ConvTranspose2d(64, 512, 3, stride=2), (2, 64, 8, 8)),
    "transposed, all residues at once": (lambda: nn.ConvTranspose2d(16, 32, 4, stride=2), (2, 16, 28, 28)),
    "transposed, zeros between heads": (lambda: nn.ConvTranspose2d(32, 2, 3, stride=2), (2, 32, 60, 60)),
    "copied padding": (lambda: nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect"), (2, 64, 28, 28)),
}
SOFT = {
    "a head": (lambda: nn.Conv1d(1, 1, 1), (1, 1, 1500)),
    "a long axis": (lambda: nn.Conv1d(2, 2, 9, padding=4), (1, 2, 1000)),
    "too long an axis": (lambda: nn.Conv1d(1, 32, 5), (1, 1, 3000)),
    "many heads": (lambda: nn.Conv1d(2, 2, 31, padding=15), (1, 2, 200)),
    "very many heads": (lambda: nn.Conv1d(1, 1, 256, padding=150), (1, 1, 100)),
    "stride": (lambda: nn.Conv1d(4, 4, 3, stride=2, padding=1), (2, 4, 1000)),
    "2-D": (lambda: nn.Conv2d(16, 2, 3), (4, 16, 30, 30)),
    "wide 2-D": (lambda: nn.Conv2d(2, 48, 3), (2, 2, 30, 30)),
    "one axis much longer": (lambda: nn.Conv2d(1, 1, 3, padding=1), (1, 1, 4, 900)),
    "3-D": (lambda: nn.Conv3d(2, 2, 3, padding=1), (1, 2, 9, 9, 9)),
    "wide 3-D": (lambda: nn.Conv3d(1, 24, 2), (1, 1, 12, 12, 12)),
    "soft depthwise": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), (2, 16, 20, 20)),
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


LINES = {
    "zeros": lambda: nn.Conv1d(1, 4, 3, padding=1),
    "stride": lambda: nn.Conv1d(1, 2, 5, stride=3),
    "circular": lambda: nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular"),
    "depthwise": lambda: nn.Conv1d(2, 2, 3, padding=1, groups=2),
    "transposed": lambda: nn.ConvTranspose1d(1, 2, 4, stride=2),
}


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


@pytest.mark.parametrize("name", ["zeros", "stride", "transposed"])
def test_planning_a_first_call_takes_few_numbers_a_position(name: str) -> None:
    """So a first call takes about as long as a later one, however long the input, and however many heads."""
    conv: Any = LINES[name]()
    layer, x = conv_to_mhsa(conv).requires_grad_(False), torch.randn(1, 1, 200_000)
    _, most = numpy_and_python_bytes(lambda: layer(x))
    positions = conv.stride[0] * 200_000 if name == "transposed" else 200_000
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
