"""Compare executions of attention: soft heads, content, the published layers, fused attention; and memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import construct
from benchmarks.published import GatedAttention, GaussianAttention
from benchmarks.rows import Section
from benchmarks.timing import Floor, interleaved
from construct.execution import sdpa
from construct.tokens import TokenGrid

SIDES = (16, 32, 64)


def layer_64(device: torch.device, **options: Any) -> construct.MHSA:
    """A layer 64 → 64, 3 × 3, with nothing to learn."""
    layer = construct.conv_to_mhsa(nn.Conv2d(64, 64, 3, padding=1), **options)
    return layer.to(device).requires_grad_(False)


def in_double(layer: construct.MHSA, execution: str) -> construct.MHSA:
    """The same layer in float64."""
    weights = construct.MHSAWeights(**{name: p.detach().double() for name, p in layer.named_parameters()})
    return construct.MHSA(layer.geometry, weights, execution).requires_grad_(False)


def soft(floor: Floor) -> Section:
    """Compare ``axial`` with ``dense`` at α = 1, off the lattice."""
    section = Section("soft attention (α = 1, off the lattice), 64→64 3×3, against dense")
    for side, target in zip(SIDES, (5, 35, 200), strict=True):
        layer = layer_64(floor.device, alpha=1.0)
        layer.v[:, 1:] += 0.4 * torch.rand_like(layer.v[:, 1:])
        x = torch.randn(1, 64, side, side, device=floor.device)
        calls = [by(layer, name, x) for name in ("axial", "dense")]
        axial, dense = interleaved(floor.device, *calls, rounds=3 if side > 32 else 9)
        section.judge(f"side {side}: at least so many times faster", dense.median / axial.median, target)
        layer.execution = "axial"
        error = float((layer(x) - in_double(layer, "chunked")(x.double())).abs().max())
        section.judge(f"side {side}: error against float64", error, 1e-5)
    return section


def by(layer: construct.MHSA, execution: str, x: torch.Tensor) -> Callable[[], object]:
    """A call by this execution."""

    def call() -> object:
        layer.execution = execution
        return layer(x)

    return call


def content(floor: Floor) -> Section:
    """Content attention, which does not factorise: the time of each execution, and what ``auto`` picks."""
    section = Section("content switched on, 64→64 3×3")
    for side in (8, 16, 32, 48):
        layer = layer_64(floor.device)
        for projection in (layer.w_qry, layer.w_key, layer.u):
            projection.normal_(0, 0.1)
        x = torch.randn(1, 64, side, side, device=floor.device)
        explained = {line.split()[0]: line for line in layer.explain(x.shape).splitlines()}
        exact, row = in_double(layer, "chunked")(x.double()), []
        for name in ("dense", "chunked", "sdpa"):
            try:
                error = float((by(layer, name, x)() - exact).abs().max())  # type: ignore[operator]
            except NotImplementedError as refused:
                row.append(f"{name}: {refused}")
                continue
            (times,) = interleaved(floor.device, by(layer, name, x), rounds=3 if side > 16 else 9)
            row.append(f"{name} {times.median * 1e3:.1f} ms, {explained[name].split()[3]} MiB, error {error:.0e}")
        section.notes.append(f"side {side}: {'; '.join(row)}; auto picks {explained['auto'].split()[5]}")
    return section


def published(floor: Floor) -> Section:
    """Compare the dense formulation as published, with the weights of a convolution, with ours."""
    section = Section("published layers with a convolution's weights, 64→64 3×3 (time of torch's convolution = 1)")
    for side in (16, 32):
        conv = nn.Conv2d(64, 64, 3, padding=1).to(floor.device).requires_grad_(False)
        x = torch.randn(1, 64, side, side, device=floor.device)
        layers = {
            "Gaussian attention, as in the paper's code": GaussianAttention.of_convolution(conv, alpha=104.0),
            "gated positional attention, widened to 576": GatedAttention.of_convolution(
                conv, strength=104.0, gate=40.0, dim=576
            ),
            "ours, as the equations stand": construct.conv_to_mhsa(conv, execution="dense"),
            "ours, by default": construct.conv_to_mhsa(conv),
        }
        runs: list[Any] = [module.to(floor.device).requires_grad_(False) for module in layers.values()]
        times = interleaved(floor.device, *(partial(run, x) for run in (conv, *runs)), rounds=5)
        exact = conv(x)
        for name, run, taken in zip(layers, runs, times[1:], strict=True):
            apart = (run(x) - exact).abs()
            inside = float(apart[..., 1:-1, 1:-1].max())
            ratio = taken.median / times[0].median
            section.notes.append(
                f"side {side}: {name}: {ratio:.1f}; error inside {inside:.1e}, at the border {float(apart.max()):.1e}"
            )
    return section


def fused(floor: Floor) -> Section:
    """The same heads through torch's fused attention, in float32."""
    section = Section("torch's scaled_dot_product_attention, 64→64 3×3, float32 (time of torch's convolution = 1)")
    for side in (16, 32, 64, 128) if floor.device.type == "cuda" else (16, 32):
        conv = nn.Conv2d(64, 64, 3, padding=1).to(floor.device).requires_grad_(False)
        layer = construct.conv_to_mhsa(conv).requires_grad_(False)
        x = torch.randn(1, 64, side, side, device=floor.device)
        runs: list[Any] = [partial(run, x) for run in (conv, partial(by_fused_attention, layer), layer)]
        times = interleaved(floor.device, *runs, rounds=5)
        exact = conv.double()(x.double())
        for name, run, taken in zip(("fused attention", "ours, by default"), runs[1:], times[1:], strict=True):
            ratio, apart = taken.median / times[0].median, float((run() - exact).abs().max())
            section.notes.append(f"side {side}: {name}: {ratio:.1f}; error {apart:.1e}")
    return section


def by_fused_attention(layer: construct.MHSA, x: torch.Tensor) -> torch.Tensor:
    """One call of ``scaled_dot_product_attention`` with the scores of ``construct.execution.sdpa`` in the dtype of x."""
    grid = TokenGrid.of(layer.geometry, tuple(x.shape[2:]))
    tokens = grid.gather(x)
    q, k = sdpa.DotProducts(layer, tokens, grid, content=False)(slice(None))
    values = torch.einsum("bti,hie->bhte", tokens, layer.w_val[:, 0])
    size = max(q.shape[3], values.shape[3])  # equal for all, or torch builds a T × T map
    q, k = (nn.functional.pad(t, (0, size - t.shape[3])).expand(*values.shape[:2], -1, -1).to(x.dtype) for t in (q, k))
    attended = nn.functional.scaled_dot_product_attention(q, k, values, scale=1.0)
    y = torch.einsum("bhqe,heo->boq", attended, layer.w_out[:, 0]) + layer.b_out[:, None]
    return y.unflatten(2, grid.query_shape)


def memory(floor: Floor) -> Section:
    """Measure memory beyond input and output."""
    section = Section("memory, 64→64 3×3 at 224×224")
    layer = layer_64(torch.device("cpu"))
    x = torch.randn(1, 64, 224, 224).contiguous(memory_format=torch.channels_last)
    layer(x)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        y = layer(x)
    assert record.profiler is not None
    assert record.profiler.kineto_results is not None
    events: list[Any] = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    section.judge("MiB beyond input and output", (peak - 4 * y.numel()) / 2**20, 6)
    return section


SECTIONS: dict[str, Callable[[Floor], Section]] = {
    "soft": soft,
    "content": content,
    "published": published,
    "fused": fused,
    "memory": memory,
}
