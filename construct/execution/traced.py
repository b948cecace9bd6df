"""Layers as ``torch.compile`` and ``torch.export`` trace them.

A trace sees tensors without values: it freezes which heads are shifts, and where these look.  It
records the shift itself, for any spatial size, and heads with content as attention over all keys.
"""

import logging
from contextlib import nullcontext
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from construct.encoding.encodings import CLASSICAL
from construct.execution.dense import added_up, working_dtype
from construct.execution.fused import averages_of, query_places
from construct.execution.head_matrices import heads_of, merged, whole_factor
from construct.execution.plan import plan_for, shifts_of
from construct.execution.shifts.operator import gathered, product, shifted_sum, sliced
from construct.execution.shifts.windows import Shifts
from construct.execution.transforms import abstract, eagerly, is_channels_last, transformed
from construct.geometry import ConvGeometry
from construct.tokens import TokenGrid, output_size
from construct.weights import NAMES

log = logging.getLogger(__name__)
_say_once = lru_cache(log.warning)

FROZEN = "_frozen_heads"
"""The attribute of layers copied for export, and no others: what :func:`freeze` returned."""
EXAMPLE = 64
"""Shifts are read off on a grid this many steps longer than the kernel reaches."""

Starts = tuple[tuple[int, ...], ...]
"""For each head, the token that output 0 sees, as one position per axis."""


class Frozen(NamedTuple):
    """What a trace takes for constant of a layer.

    Attributes:
        sharp: heads that are shifts.
        starts: where these look.
        whole: their factor that is the whole matrix, because the other one is the identity, or "".
        others: heads with content.
        operators: whether operators without rules for transforms may be called.
    """

    sharp: tuple[int, ...]
    starts: Starts
    whole: str
    others: tuple[int, ...]
    operators: bool = False


def freeze(layer: Any) -> Frozen:
    """Read off which heads are shifts, and where these look.

    Raises:
        ValueError: a head without content is no shift that stays on the grid for every input size.
    """
    geometry = layer.geometry
    if type(layer.encoding) not in CLASSICAL:
        raise ValueError(
            f"MHSA: the {layer.encoding.name} encoding cannot be traced: a shift on one grid may be none on another"
        )
    size = tuple(span + EXAMPLE * s for span, s in zip(geometry.span, geometry.stride, strict=True))
    if geometry.transposed:
        size = (EXAMPLE,) * geometry.dims
    plan = plan_for(layer, TokenGrid.of(geometry, size))
    content = layer.content_heads()
    inside = all(
        0 <= t <= span
        for start in plan.starts
        for t, span in zip(start, geometry.span, strict=True)
    )
    if len(plan.sharp) + sum(content) < layer.heads or not inside:
        raise ValueError(
            "MHSA: a head without content that is not a shift within the kernel's reach cannot be traced for every size"
        )
    if plan.others and not layer.encoding.factorises:
        raise ValueError(
            f"MHSA: content beside the {layer.encoding.name} encoding cannot be traced"
        )
    return Frozen(plan.sharp, plan.starts, whole_factor(layer, plan.sharp), plan.others)


def frozen_now(layer: Any) -> Frozen | None:
    """As :func:`freeze`, while ``torch.compile`` traces; None if heads cannot be frozen."""
    try:
        # within a transform of torch.func, which the compiler follows, these tensors would be
        # wrapped.  What learns may be zero only now, and compilers guard on no number: it is
        # content, also where no gradients are recorded.
        with eagerly(), torch.enable_grad():
            frozen = freeze(layer)
    except ValueError as error:
        log.warning("not compiled, run as it is: %s", error)
        return None
    _say_once(
        "compiled layers keep looking where their heads look now: after editing w_qry, w_key, w_key_pos, u, v, W_val or W_out "
        "that are frozen, call torch.compiler.reset() and compile again"
    )
    plainly_called = not transformed() and not torch.compiler.is_exporting()
    return frozen._replace(operators=layer.v.is_cpu and plainly_called)


def run_traced(layer: Any, x: Tensor, geometry: ConvGeometry) -> Tensor | None:
    """Eq. 3 in the type of x, (B, D_in, *n) → (B, D_out, *o); None if a head cannot be traced.

    Raises:
        NotImplementedError: torch.export traces tensors without values, which do not tell where
            heads look.
    """
    copied: Frozen | None = getattr(layer, FROZEN, None)
    frozen = copied or _frozen_while_traced(layer)
    if frozen is None:
        return None
    tokens = _of(working_dtype(x.dtype), x)
    bias = _of(tokens.dtype, layer.b_out)
    y = bias.view(-1, *(1,) * len(geometry.kernel_size))
    padded = _padded(tokens, geometry)
    output = _outputs(padded.shape[2:], geometry)
    if frozen.sharp:
        w = _matrices(layer, frozen, tokens.dtype)
        shifts = Shifts(
            frozen.starts, geometry.query_stride, tuple(padded.shape[2:]), tuple(output)
        )
        if copied is not None and max(len(frozen.sharp), *geometry.query_stride) > 1:
            y = gathered(padded, w, bias, shifts)
        elif frozen.operators and torch.compiler.is_dynamo_compiling() and prod(w.shape[2:]) > 1:
            y = _as_operator(tokens, padded, w, frozen.starts, bias, geometry)
        else:
            y = sliced(padded, w, bias, shifts)
    if frozen.others:
        places = query_places(geometry.anchor, geometry.query_stride, output, x.device)
        averages = averages_of(layer, padded, places, frozen.others)(slice(None))
        attended = added_up(averages, heads_of(layer.w_out, frozen.others))
        y = y + attended.mT.unflatten(2, output)
    return _of(x.dtype, y)


def _frozen_while_traced(layer: Any) -> Frozen | None:
    if not torch.compiler.is_dynamo_compiling() and (
        torch.compiler.is_compiling() or abstract(layer.v)
    ):
        if type(layer.encoding) not in CLASSICAL:
            raise NotImplementedError(
                f"MHSA: the {layer.encoding.name} encoding cannot be exported, only run"
            )
        raise NotImplementedError(
            "MHSA: torch.export hides from a layer where its heads look (give it strict=True, or "
            "construct.files.export.frozen_copy(network))"
        )
    with nullcontext() if torch.compiler.is_compiling() else eagerly():
        id(layer)  # makes the compiler guard on this very layer: the constant holds for no other
        return layer.frozen_now()


def _matrices(layer: Any, frozen: Frozen, dtype: torch.dtype) -> Tensor:
    """W_h of the shifts, (heads, g, C, D): a factor, or the product of what may change, as compilers
    guard on no number.
    """
    identity = layer.w_out if frozen.whole == "w_val" else layer.w_val
    constant = isinstance(identity, nn.Parameter) or hasattr(layer, FROZEN)
    whole = frozen.whole if constant and not identity.requires_grad else ""
    return merged(layer, dtype, frozen.sharp, whole)


def _outputs(tokens: Any, geometry: ConvGeometry) -> list[Any]:
    """The outputs along each axis of a padded grid, in as few divisions as possible."""
    axes = zip(tokens, geometry.span, geometry.query_stride, strict=True)
    return [(n - span - 1) // step + 1 if step > 1 else n - span for n, span, step in axes]


def _as_operator(
    x: Tensor, padded: Tensor, w: Tensor, starts: Starts, bias: Tensor, geometry: ConvGeometry
) -> Tensor:
    """The outputs by one operator, of the input, or of padded tokens that copy inputs."""
    g = geometry
    size = tuple(x.shape[2:])
    grid = TokenGrid(
        size, g.stuffing, g.pads, g.padding_mode, g.anchor, g.query_stride, g.output_size(size)
    )
    shifts = shifts_of(grid, starts)
    images = padded if grid.affine is None else x
    matrices = w.mT if grid.stuffed else w
    return shifted_sum(images, matrices, bias, shifts.numbers, grid.stuffed, is_channels_last(x))


def tensors_of(layer: Any) -> tuple[Tensor, ...]:
    """Every tensor that a call of the layer may differentiate with respect to."""
    return tuple(getattr(layer, name) for name in (*NAMES, *layer.offsets))


def run_abstract(layer: Any, x: Tensor, geometry: ConvGeometry) -> Tensor:
    """Call a layer on tensors with shapes but no values: (B, D_in, *n) → (B, D_out, *o).

    Raises:
        RuntimeError: this size has no output.
    """
    output = output_size(geometry, tuple(x.shape[2:]))
    columns = (0 * x.sum()).expand(len(x), x.shape[1], layer.heads, *output)
    y = product(columns, layer.w_val @ layer.w_out, layer.b_out)
    for tensor in tensors_of(layer):
        if tensor.requires_grad and tensor is not layer.b_out:
            y = y + 0 * tensor.sum().to(y.dtype)
    return y


def recorded_by_fx(layer: Any, input: Any, output_size: list[int] | None) -> Any:
    """A call of a layer in a network that ``torch.fx`` traces: one node of its graph.

    Raises:
        TypeError: the input is not a symbol of ``torch.fx``, nor a tensor; or no network is
            around the layer.
    """
    if not isinstance(input, torch.fx.Proxy):
        raise TypeError(f"MHSA: the input must be a tensor, not {type(input).__name__}")
    tracer: Any = input.tracer
    if layer is tracer.root:
        raise TypeError(
            "MHSA: torch.fx sees one node in this layer; trace the network around it, or nn.Sequential(layer)"
        )
    options = {} if output_size is None else {"output_size": output_size}
    return tracer.create_proxy("call_module", tracer.path_of_module(layer), (input,), options)


def _of(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """Cast only if the dtype differs; a trace records every ``.to``."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _padded(x: Tensor, geometry: ConvGeometry) -> Tensor:
    """The padded grid in traceable operations: (B, C, *n) → (B, C, *tokens)."""
    for axis, stuff in enumerate(geometry.stuffing, start=2):
        if stuff > 1:  # zeros after every input; those after the last are removed
            zeros = (0, 0) * (x.dim() - axis - 1) + (0, stuff - 1)
            x = nn.functional.pad(x.unsqueeze(axis + 1), zeros).flatten(axis, axis + 1)
            x = x.narrow(axis, 0, x.shape[axis] - (stuff - 1))
    pads = [n for pair in reversed(geometry.pads) for n in pair]
    if not any(pads):
        return x
    return nn.functional.pad(
        x, pads, mode="constant" if geometry.padding_mode == "zeros" else geometry.padding_mode
    )
