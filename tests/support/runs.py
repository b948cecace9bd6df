"""Shared by tests of executions: small geometries, inputs, layers and their gradients, and the memory of a call."""

import copy
import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch._library.custom_ops import OPDEFS
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from construct import MHSA, ConvGeometry
from construct.execution.head_matrices import is_identity
from verify.layers.reading import output_size, token_count
from verify.oracle import Geometry

SMALL = {
    "1-D": (ConvGeometry(2, 3, (2,), (1,), (1,), "zeros", (2,), 1), (5,)),
    "2-D, stride, groups": (ConvGeometry(4, 2, (2, 3), (2, 1), (1, 2), "reflect", (1, 1), 2), (3, 3)),
    "3-D": (ConvGeometry(2, 2, (1, 2, 2), (1, 1, 1), (0, 0, 0), "zeros", (1, 1, 1), 1), (2, 2, 3)),
    "transposed": (ConvGeometry(2, 4, (3, 2), (2, 1), (1, 0), "zeros", (1, 2), 2, True, (1, 0)), (2, 3)),
}
"""Geometries and input sizes for slow references: loops and finite differences."""


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """The same numbers with channels last in memory, in any number of dimensions."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def whole_numbers(conv: Any, size: int = 8) -> Any:
    """The convolution with its parameters multiplied by ``size`` and rounded, so that sums of products are exact."""
    with torch.no_grad():
        for p in conv.parameters():
            p.copy_((size * p).round())
    return conv


def by_dense(layer: MHSA, x: torch.Tensor) -> torch.Tensor:
    """The output by the paper's equations, from a layer that was never called."""
    fresh = copy.deepcopy(layer)
    fresh.execution = "dense"
    return fresh(x)


def axial_and_dense(layer: MHSA, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By ``axial``, which evaluates content in blocks, and by ``dense``."""
    layer.execution = "axial"
    output = layer(x)
    layer.execution = "dense"
    return output, layer(x)


def aim_anywhere(layer: MHSA, rng: np.random.Generator) -> None:
    """Aim about half of the heads sharply or softly, off the lattice, off the grid, with negative α, or twice at one place."""
    d, heads = layer.geometry.dims, layer.heads
    alpha = rng.choice([1024.0, 1024.0, 5.0, 0.3, -0.2, 0.0, 1e6], heads)
    tau = rng.integers(-4, 5, (heads, d)) + rng.choice([0, 0, 0, 0.5, 0.3], (heads, d))
    v = torch.from_numpy(-alpha[:, None] * np.concatenate([np.ones((heads, 1)), -2 * tau], axis=1))
    with torch.no_grad():
        layer.v.copy_(torch.where(torch.from_numpy(rng.random(heads) < 0.5)[:, None], layer.v, v))


def kernel_gradient(layer: MHSA, w_val: torch.Tensor, w_out: torch.Tensor) -> torch.Tensor:
    """The kernel's gradient: that of the factor that carries it."""
    holder = copy.deepcopy(layer)
    with torch.no_grad():
        holder.w_val.copy_(w_val) if is_identity(layer.w_out) else holder.w_out.copy_(w_out)
    return holder.weight


ORDINARY = settings().max_examples <= 24
"""Whether the profile is for ordinary runs; inside a property, ``settings()`` are the property's own."""


def is_quick(conv: Any, grid: tuple[int, ...]) -> bool:
    """Whether an ordinary run tests this: dense attention has few scores, heads × queries × keys.  Other profiles test all."""
    g = Geometry.read(conv)
    scores = prod(g.kernel_size) * prod(output_size(g, grid)) * token_count(g, grid)
    return scores <= 2e5 or not ORDINARY


class Operators(TorchDispatchMode):
    """Counts the operators that torch executes, by name."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func._schema.name] += 1
        defined = OPDEFS.get(func._schema.name)
        if defined is None:
            return func(*args, **(kwargs or {}))
        kernels = defined._backend_fns
        device = next((a.device.type for a in args if isinstance(a, torch.Tensor)), None)
        with self:  # an operator that Python code defines: what it executes counts too
            return kernels.get(device, kernels.get(None, defined._init_fn))(*args, **(kwargs or {}))


def convolution_calls(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Counter[str]:
    """The convolution and FFT operators that torch executes in a call, whatever calls them."""
    with Operators() as operators:
        function(*args, **kwargs)
    return Counter({name: n for name, n in operators.calls.items() if re.search(r"conv(?!ert)|fft", name)})


def peak_bytes(function: Any) -> int:
    """The peak allocation while ``function`` ran, including its result, according to torch's allocator."""
    gc.disable()  # garbage of earlier tests, collected meanwhile, would count as memory given back
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            kept = function()
    finally:
        gc.enable()
    assert kept is not None
    assert record.profiler is not None
    assert record.profiler.kineto_results is not None
    events: list[Any] = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events
    return int(np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]).max())


FORCED: dict[str, dict[str, int]] = {
    "as they are": {},
    "rows": {"maps.MIN_FLIPPED": 0, "maps.MOST_WIDER": 2**9, "maps.MIN_ROW": 1},
    "columns": {"maps.MIN_QUERIES": 1, "maps.AT_ONCE": 2**9, "maps.MOST_WIDER": 0},
    "oneDNN": {"gemm.ONEDNN_IS_FASTER": True, "gemm.MIN_ONEDNN": 1},
    "BLAS": {"gemm.ONEDNN_IS_FASTER": False, "maps.AT_ONCE": 2**9},
}
"""Values of the constants of one-hot heads with which small inputs too are computed as large ones may be."""


@contextmanager
def forced(name: str) -> Iterator[None]:
    """These constants inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        for constant, number in FORCED[name].items():
            patch.setattr(f"construct.execution.shifts.{constant}", number)
        yield
