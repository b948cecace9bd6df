"""A call of a layer: the table of executions, and what a convolution does around its sum.

To add an execution, add a file, a line in ``EXECUTIONS`` and its name in
``construct.execution.NAMES``; the contract test then runs it on every geometry.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from construct.execution import axial, dense
from construct.execution.cache import cached
from construct.execution.dense import Execution
from construct.execution.plan import plan_for
from construct.execution.traced import recorded_by_fx, run_abstract, run_traced
from construct.execution.transforms import (
    abstract,
    faked,
    is_batched,
    is_channels_last,
    sizes_as_numbers,
    traced,
)
from construct.geometry import ConvGeometry
from construct.tokens import TokenGrid
from construct.tokens import output_size as output_size_of

# ---- the executions ------------------------------------------------------------------------------

EXECUTIONS: dict[str, Execution] = {
    "dense": dense.EXECUTION,
    "axial": axial.EXECUTION,
    "auto": axial.EXECUTION,
}
"""The executions by name."""


def explained(layer: Any, batch: int, grid: TokenGrid) -> str:
    """One line per execution: multiplications, memory beyond the input, and a description; at last,
    how many heads it evaluates in which way.
    """
    rows = []
    for name, execution in EXECUTIONS.items():
        cost, memory = (count(layer, batch, grid) for count in (execution.cost, execution.memory))
        rows.append(
            f"{name:8s} {cost:10.2g} multiplications  {memory / 2**20:10.4g} MiB  {execution.meaning}"
        )
    plan = plan_for(layer, grid)
    kinds = ((plan.sharp, "as shifts"), (plan.soft, "by factors"), (plan.others, "over all keys"))
    here = ", ".join(f"{len(heads)} {how}" for heads, how in kinds if heads)
    rows[-1] += f"; heads here: {here}"
    return "\n".join(rows)


# ---- a call --------------------------------------------------------------------------------------


def call(layer: Any, input: Tensor, output_size: list[int] | None) -> Tensor:
    """What :meth:`construct.attention.MHSA.forward` returns, and raises."""
    if not isinstance(input, Tensor):
        return recorded_by_fx(layer, input, output_size)
    kind = input.device.type
    run = EXECUTIONS[layer.execution].run
    if not traced() and output_size is None and (prepared := cached(layer, run, input)) is not None:
        return prepared(input)
    if not input.is_meta and torch.is_autocast_enabled(kind) and input.dtype != torch.float64:
        with torch.autocast(kind, enabled=False):  # only the output is rounded, as torch's is
            y = call(layer, input.to(layer.w_val.dtype), output_size)
        return y.to(torch.get_autocast_dtype(kind))
    if torch.compiler.is_dynamo_compiling() or input.is_neg():
        input = input.resolve_neg()  # float32.copy_ of float16 would ignore its negative bit
    with sizes_as_numbers():
        batched = has_batch_axis(layer.geometry, layer.w_val, input)
        size = tuple(input.shape[-layer.geometry.dims :])
    x = input if batched else input[None]
    y = _evaluated(layer, run, x, geometry_for(layer.geometry, output_size, size, batched), size)
    y = _in_format_of(x, y)
    return y if batched else y[0]


def has_batch_axis(geometry: ConvGeometry, w: Tensor, x: Tensor) -> bool:
    """Check an input as torch's convolution with the weight w does, and say whether it has a batch
    axis.

    Raises:
        RuntimeError: its rank, channels, dtype or device do not fit.
    """
    dims = geometry.dims
    if x.dim() not in (dims + 1, dims + 2):
        raise RuntimeError(
            f"MHSA: expected a {dims + 1}-D (unbatched) or {dims + 2}-D (batched) input, got {tuple(x.shape)}"
        )
    channels = x.shape[-dims - 1]
    if channels != geometry.in_channels:
        raise RuntimeError(
            f"MHSA: expected {geometry.in_channels} channels, got {channels} in {tuple(x.shape)}"
        )
    if x.dtype != w.dtype:
        raise RuntimeError(f"MHSA: input is {x.dtype}, the layer {w.dtype}; they must be the same")
    if x.device != w.device:
        raise RuntimeError(f"MHSA: input is on {x.device}, the layer on {w.device}")
    return x.dim() == dims + 2


def _in_format_of(x: Tensor, y: Tensor) -> Tensor:
    """The output y, contiguous or with channels last in memory as the input x."""
    # Under vmap, torch has no such format for a single member, and a compiler does not say whether
    # it maps.
    if is_batched(y) or not is_channels_last(x):
        return y.contiguous()
    moved = y.movedim(1, -1)
    if torch.compiler.is_compiling() or not moved.is_contiguous():
        return moved.contiguous().movedim(-1, 1)
    return y


def geometry_for(
    geometry: ConvGeometry, output_size: Sequence[int] | None, size: tuple[int, ...], batched: bool
) -> ConvGeometry:
    """The geometry, with the output padding that reaches a requested output size."""
    if output_size is None:
        return geometry
    leading = 1 + batched  # torch accepts the spatial size or the whole shape
    whole = len(output_size) == geometry.dims + leading
    return geometry.reaching(output_size[leading:] if whole else output_size, size)


def _evaluated(
    layer: Any, run: Callable[..., Tensor], x: Tensor, geometry: ConvGeometry, size: tuple[int, ...]
) -> Tensor:
    """Eq. 3 by what can evaluate it: x (B, D_in, *size) → (B, D_out, *o), in its type."""
    y = run_traced(layer, x, geometry) if traced() and layer.heads else None
    if y is not None:
        return y
    if not layer.heads or faked() or abstract(x, layer.w_val):
        return run_abstract(layer, x, geometry)
    evaluate: Any = _run
    if torch.compiler.is_dynamo_compiling():  # which would trace every function called from here
        evaluate = torch.compiler.disable(
            evaluate, reason="MHSA: only layers whose heads are sharp are compiled"
        )
    return evaluate(layer, run, x, geometry, size)


def _run(
    layer: Any, run: Callable[..., Tensor], x: Tensor, geometry: ConvGeometry, size: tuple[int, ...]
) -> Tensor:
    """Eq. 3 by an execution's ``run``, in the type of x."""
    if 0 in output_size_of(geometry, size):
        return run_abstract(layer, x, geometry)
    return run(layer, x, TokenGrid.of(geometry, size)).to(x.dtype)
