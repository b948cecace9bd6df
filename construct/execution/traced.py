"""One-hot heads in plain tensor operations that ``torch.compile`` and ``torch.export`` can trace.

A trace sees tensors without values, so where the heads look must be known beforehand: a trace freezes it.  It records the
shift itself, for any spatial size: pad, take each head's tokens, multiply by its matrix.  Channels stay first or last, as in
the input, so that nothing is transposed on the way in or out.
"""

import logging
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from construct.encoding.encodings import CLASSICAL
from construct.execution.autograd import channels_last, shifted
from construct.execution.head_matrices import is_identity
from construct.execution.kernels.windows import Shifts
from construct.execution.plan import plan_for
from construct.execution.protocol import Layer, memory_format, tensors_of, working_dtype
from construct.execution.transforms import abstract, eagerly, jit_traced
from construct.geometry import ConvGeometry
from construct.tokens import TokenGrid, output_size

log = logging.getLogger(__name__)

FROZEN = "_frozen_heads"
"""The submodule that holds the :class:`FrozenHeads` of a layer copied for export; no other layer has it."""
FEW = ((12, 2), (32, 10))
"""Pairs (n, m): the output channels are few if they are fewer than n, and the input has at least m times as many."""
MANY = 9
"""With more heads, tokens are gathered, not sliced head by head: 7×7 compiles in a tenth of the time and runs 1.1 to 1.2
times as long.  If the compiler does not know the sizes (``dynamic=True``), they are gathered for any number of heads."""
EXAMPLE = 64
"""Without a given size, shifts are read off on a grid this many steps longer than the kernel reaches."""


Starts = tuple[tuple[int, ...], ...]
"""For each head, the token that output 0 sees, as one position per axis."""


class FrozenHeads(nn.Module):
    """What an exported program must know about a layer beforehand.

    Attributes:
        start_1, …: per axis, the token that output 0 sees, (heads, 1, …); not in the state dict, which has the eight tensors.
        whole: as returned by :func:`freeze`.

    Raises:
        ValueError: as for :func:`freeze`.
    """

    def __init__(self, layer: Layer):
        super().__init__()
        starts, self.whole = freeze(layer)
        for axis, start in enumerate(_by_axis(starts, layer.v.device), start=1):
            self.register_buffer(f"start_{axis}", start, persistent=False)


def freeze(layer: Layer) -> tuple[Starts, str]:
    """Read off where every head looks, and which factor is a head's whole matrix.

    Returns:
        The starts; and "w_val" or "w_out", because the other one is the identity, or "".

    Raises:
        ValueError: some head is not a shift that stays on the grid for every input size.
    """
    geometry = layer.geometry
    if type(layer.encoding) not in CLASSICAL:
        raise ValueError(
            f"MHSA: the {layer.encoding.name} encoding cannot be traced: a shift on one grid may be none on another"
        )
    if layer.has_content():
        raise ValueError("MHSA: attention to content cannot be traced (its dense execution can only be run)")
    size = tuple(span + EXAMPLE * s for span, s in zip(geometry.span, geometry.stride, strict=True))
    if geometry.transposed:
        size = (EXAMPLE,) * geometry.dims
    plan = plan_for(layer, TokenGrid.of(geometry, size))
    starts = tuple(tuple(a + n for a, n in zip(geometry.anchor, delta, strict=True)) for delta in plan.deltas)
    inside = all(0 <= t <= span for start in starts for t, span in zip(start, geometry.span, strict=True))
    if plan.soft or not inside:
        raise ValueError("MHSA: a head that is no shift within the kernel's reach cannot be traced for every size")
    whole = "w_val" if is_identity(layer.w_out) else "w_out" if is_identity(layer.w_val) else ""
    return starts, whole


def frozen_now(layer: Layer) -> tuple[Starts, str] | None:
    """As :func:`freeze`, called while ``torch.compile`` traces; None if the heads cannot be frozen."""
    try:
        with eagerly():  # within a transform of torch.func, which the compiler follows, these tensors would be wrapped
            frozen = freeze(layer)
    except ValueError as error:
        log.warning("not compiled, run as it is: %s", error)
        return None
    _say_once(
        "compiled layers keep looking where their heads look now: after editing v or w_key_pos, or W_val and W_out that are "
        "frozen, call torch.compiler.reset() and compile again"
    )
    return frozen


@lru_cache
def _say_once(message: str) -> None:
    log.warning(message)


def run_traced(layer: Layer, x: Tensor, geometry: ConvGeometry) -> Tensor | None:
    """Eq. 3 if all heads are known to be shifts: x (B, D_in, *n) → (B, D_out, *o), in the layer's type; else None.

    Raises:
        NotImplementedError: torch.export traces tensors without values, which do not tell where heads look.
    """
    frozen, starts = getattr(layer, FROZEN, None), ()
    if frozen is not None:
        whole = frozen.whole
    else:
        if not torch.compiler.is_dynamo_compiling() and (torch.compiler.is_compiling() or abstract(layer.v)):
            if type(layer.encoding) not in CLASSICAL:
                raise NotImplementedError(f"MHSA: the {layer.encoding.name} encoding cannot be exported, only run")
            raise NotImplementedError(
                "MHSA: torch.export hides from a layer where its heads look (give it strict=True, or "
                "construct.files.export.frozen_copy(network))"
            )
        with nullcontext() if torch.compiler.is_compiling() else eagerly():
            id(layer)  # makes the compiler guard on this very layer: the constant holds for no other
            now = layer.frozen_now()
        if now is None:
            return None
        starts, whole = now
    dtype = working_dtype(x.dtype)
    identity = "w_out" if whole == "w_val" else "w_val"
    # A compiler guards on requires_grad, and on no number: what learns between calls without gradients is multiplied in these too,
    # and so is what functional_call puts in a parameter's place.
    beside = getattr(layer, identity)
    learns = beside.requires_grad if frozen is None else beside.requires_grad and torch.is_grad_enabled()
    if whole and not learns and (frozen is not None or isinstance(beside, nn.Parameter)):
        w = _of(dtype, getattr(layer, whole))
    else:
        w = _of(dtype, layer.w_val) @ _of(dtype, layer.w_out)  # (heads, g, C, D)
    with eagerly() if jit_traced() else nullcontext():
        heads, groups, channels, width = w.shape
        few = heads > 1 and any(0 < width < most and times * width <= channels for most, times in FEW)
    tokens = padded(_of(dtype, x), geometry)
    bias = _of(dtype, layer.b_out)
    first = memory_format(x) == torch.contiguous_format
    if frozen is not None:  # the number of operations is independent of the heads
        y = _gathered(tokens, w, list(frozen.buffers()), bias, geometry)
    elif channels == width == 1:
        y = _by_channel(tokens, w, starts, geometry, bias)
    elif groups == 1 and set(geometry.query_stride) == {1} and few:
        y = _products_first(tokens, w, starts, geometry, bias)
    elif (
        first
        and heads > (MANY if _is_static(x) else 0)
        and groups == 1
        and not (torch.is_grad_enabled() and tokens.requires_grad)
    ):
        y = _gathered(tokens, w, _by_axis(starts, x.device), bias, geometry)
    elif first:
        y = _channels_as_rows(tokens, w, starts, geometry, bias)
    else:
        y = _tokens_as_rows(tokens, w, starts, geometry, bias)
    return _of(x.dtype, y)


def _is_static(x: Tensor) -> bool:
    """Whether a compiler knows the sizes; each slice by an unknown size costs it far more."""
    if not torch.compiler.is_dynamo_compiling():
        return True
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return all(has_static_value(n) for n in x.shape)


def run_abstract(layer: Layer, x: Tensor, geometry: ConvGeometry) -> Tensor:
    """Call a layer on fake or meta tensors, which have shapes but no values: (B, D_in, *n) → (B, D_out, *o), likewise.

    Raises:
        RuntimeError: this size has no output.
    """
    size = tuple(x.shape[2:])
    heads = ((0,) * geometry.dims,) * layer.heads
    shifts = Shifts(heads, (1,) * geometry.dims, size, output_size(geometry, size))
    y = shifted(x, layer.w_val @ layer.w_out, layer.b_out, shifts, False, x.dtype, channels_last(x))
    for tensor in tensors_of(layer):
        if tensor.requires_grad and tensor is not layer.b_out:
            y = y + 0 * tensor.sum().to(y.dtype)
    return y


def recorded_by_fx(layer: Any, input: Any, output_size: list[int] | None) -> Any:
    """A call of a layer in a network that ``torch.fx`` traces: one node of its graph, as for torch's own layers.

    Raises:
        TypeError: the input is no symbol of ``torch.fx``, and no tensor either; or no network is around the layer.
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


def _by_axis(starts: Starts, device: torch.device) -> list[Tensor]:
    """Per axis, the token that output 0 sees, (heads, 1, …)."""
    dims = len(starts[0])
    return [torch.tensor(along, device=device).view(-1, *(1,) * dims) for along in zip(*starts, strict=True)]


def _gathered(tokens: Tensor, w: Tensor, starts: list[Tensor], bias: Tensor, geometry: ConvGeometry) -> Tensor:
    """Channels first in memory: gather the tokens of all heads, by position on each axis, then one product.

    A program stores and evaluates an expression for every tensor size.  So there are few tensors, and sizes have the form
    (n − span − 1)//step + 1, in which a stride of a stride is one division, not two, and is known to be at least 1.
    """
    if len(starts[0]) == 1 and not any(geometry.span) and set(geometry.query_stride) == {1}:
        gathered, rows = tokens, tokens.flatten(2)
    else:
        places = []
        for axis, (span, step) in enumerate(zip(geometry.span, geometry.query_stride, strict=True)):
            count = tokens.shape[axis + 2] - span
            queries = torch.arange((count - 1) // step + 1 if step > 1 else count, device=tokens.device)
            if step > 1:
                queries = step * queries
            if later := geometry.dims - 1 - axis:
                queries = queries.view(-1, *(1,) * later)
            places.append(starts[axis] + queries)  # (heads, …, o, …)
        gathered = tokens[(..., *places)]  # (B, g·C, heads, *o)
        rows = gathered.flatten(1, 2).flatten(2)
    groups = w.shape[1]
    if groups > 1:
        matrix = w.permute(1, 3, 2, 0).flatten(2)  # (g, D, C·heads)
        y = torch.matmul(matrix, rows.unflatten(1, (groups, -1))).flatten(1, 2)
    else:
        y = torch.matmul(w.permute(3, 2, 0, 1).flatten(1), rows)
    return (y + bias[:, None]).unflatten(2, gathered.shape[-geometry.dims :])


def _of(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """Cast only if the dtype differs; a trace records every ``.to``."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _by_channel(tokens: Tensor, w: Tensor, starts: Starts, geometry: ConvGeometry, bias: Tensor) -> Tensor:
    """One channel per group: a product and a sum per head, which a compiler fuses into one loop."""
    views = (_head_view(tokens, start, geometry) for start in starts)
    start, *factors = (matrix.view(-1, *(1,) * geometry.dims) for matrix in (bias, *w.unbind()))
    return sum((part * factor for part, factor in zip(views, factors, strict=True)), start=start)


def _products_first(tokens: Tensor, w: Tensor, starts: Starts, geometry: ConvGeometry, bias: Tensor) -> Tensor:
    """Few output channels: one product per token, then sums over the heads, which a compiler fuses into one loop."""
    heads, _, channels, width = w.shape
    matrix = w.transpose(2, 3).reshape(heads * width, channels)
    if memory_format(tokens) == torch.contiguous_format:
        token_products = torch.matmul(matrix, tokens.flatten(2)).unflatten(2, tokens.shape[2:])
    else:
        token_products = torch.matmul(tokens.movedim(1, -1), matrix.mT).movedim(-1, 1)
    parts = token_products.unflatten(1, (heads, width)).unbind(1)  # (B, D, *tokens) each
    views = (_head_view(part, start, geometry) for part, start in zip(parts, starts, strict=True))
    return sum(views, start=bias.view(-1, *(1,) * geometry.dims))


def _channels_as_rows(tokens: Tensor, w: Tensor, starts: Starts, geometry: ConvGeometry, bias: Tensor) -> Tensor:
    """Channels first in memory: one product for all heads, from the left, gives channels first."""
    _, groups, channels, _ = w.shape
    views = [_head_view(tokens, start, geometry) for start in starts]
    parts = [part.unflatten(1, (groups, channels)).flatten(3) for part in views]
    rows = torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]  # (B, g, heads·C, T)
    matrix = w.transpose(0, 1).flatten(1, 2).mT  # (g, D, heads·C)
    return (torch.matmul(matrix, rows).flatten(1, 2) + bias[:, None]).unflatten(2, views[0].shape[2:])


def _tokens_as_rows(tokens: Tensor, w: Tensor, starts: Starts, geometry: ConvGeometry, bias: Tensor) -> Tensor:
    """Channels last in memory: one product for all heads, from the right, gives channels last."""
    _, groups, channels, width = w.shape
    learning = torch.is_grad_enabled() and tokens.requires_grad
    # Gradients of slices are summed head by head; those of indexing, number by number in no fixed order.
    gathered = (_sliced if learning or len(starts) == 1 else _looked_up)(tokens, starts, geometry)
    rows = gathered.unflatten(-1, (groups, channels)).movedim(-2, 0)  # (g, B, *o, heads, C)
    matrix = w.transpose(0, 1).flatten(1, 2)  # (g, heads·C, D)
    y = torch.bmm(rows.flatten(-2).flatten(1, -2), matrix)  # (g, B·T, D)
    return (y.movedim(0, 1).reshape(*gathered.shape[:-2], groups * width) + bias).movedim(-1, 1)


def _sliced(tokens: Tensor, starts: Starts, geometry: ConvGeometry) -> Tensor:
    """The tokens of all heads, one slice per head: (B, C, *tokens) → (B, *o, heads, C).  A compiler makes a loop for each."""
    return torch.stack([_head_view(tokens, start, geometry).movedim(1, -1) for start in starts], dim=-2)


def _looked_up(tokens: Tensor, starts: Starts, geometry: ConvGeometry) -> Tensor:
    """As :func:`_sliced`, by indexing.  A compiler makes a single loop, which writes memory once, in order."""
    places = []
    for axis, (span, step) in enumerate(zip(geometry.span, geometry.query_stride, strict=True)):
        queries = torch.arange(0, tokens.shape[axis + 2] - span, step, device=tokens.device)
        offsets = torch.tensor([start[axis] for start in starts], device=tokens.device)
        places.append(queries.view(-1, *(1,) * (geometry.dims - axis)) + offsets)  # (o, 1, …, heads)
    return tokens.movedim(1, -1)[(slice(None), *places)]


def padded(x: Tensor, geometry: ConvGeometry) -> Tensor:
    """The padded grid in traceable operations: (B, C, *n) → (B, C, *tokens)."""
    for axis, stuff in enumerate(geometry.stuffing, start=2):
        if stuff > 1:  # zeros after every input; those after the last are removed
            x = nn.functional.pad(x.unsqueeze(axis + 1), (0, 0) * (x.dim() - axis - 1) + (0, stuff - 1)).flatten(
                axis, axis + 1
            )
            x = x.narrow(axis, 0, x.shape[axis] - (stuff - 1))
    pads = [n for pair in reversed(geometry.pads) for n in pair]
    if not any(pads):
        return x
    return nn.functional.pad(x, pads, mode="constant" if geometry.padding_mode == "zeros" else geometry.padding_mode)


def _head_view(tokens: Tensor, start: tuple[int, ...], geometry: ConvGeometry) -> Tensor:
    """The tokens of one head, as a strided slice."""
    for axis, (t, span, step) in enumerate(zip(start, geometry.span, geometry.query_stride, strict=True), start=2):
        if span:
            tokens = tokens.narrow(axis, t, tokens.shape[axis] - span)  # as many positions as the whole kernel fits
        if step > 1:
            tokens = tokens[(..., slice(None, None, step), *(slice(None),) * (tokens.dim() - axis - 1))]
    return tokens
