"""Attention of heads that are pure shifts: y[o] = b + Σ_h x[s·o + e_h] W_h, with zeros outside x.

A head whose every softmax row is one-hot copies one token to each query.  Its attention matrix is then never needed: what is
left of Eq. 3 is one matrix product a head, over a shifted view of the tokens (:mod:`construct.execution.layout`).

The three maps below are linear in both arguments and are each other's derivatives:

    forward(x, w)    y[o]  = Σ_h x[s·o + e_h] w_h
    adjoint(y, w)    x[t]  = Σ_{h, o: s·o + e_h = t} y[o] w_hᵀ
    weights(x, y)    w_h   = Σ_o x[s·o + e_h]ᵀ y[o]
"""

from itertools import product
from math import ceil, prod

import torch
from torch import Tensor

from construct.execution.layout import (
    TILE,
    Ints,
    Layout,
    Scratch,
    Shifts,
    blocks,
    laid_out,
    pieces,
    room_for,
    run_length,
    through,
)


def forward(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None = None) -> None:
    """y[o] = b + Σ_h x[s·o + e_h] w_h, into ``out``.

    Args:
        x: (B, *n, groups, C), any strides, any dtype.
        w: (heads, groups, C, D), in the dtype to compute in.
        shifts: where the heads look.
        out: (B, *o, groups, D), any strides, any dtype.
        bias: (groups, D).
    """
    heads, groups, channels, width = w.shape
    if not out.numel():
        return
    if not heads:
        out.copy_(bias.expand_as(out)) if bias is not None else out.zero_()
    elif channels == 1 and groups > 1:
        for column in range(width):
            part = None if bias is None else bias[:, column]
            _depthwise(x[..., 0], w[:, :, 0, column], shifts, out[..., column], part)
    elif _stands(shifts):
        _pointwise(x, w[0], shifts, out, bias)
    else:
        _products(x, w, shifts, out, bias)


def memory(
    shifts: Shifts, images: int, groups: int, channels: int, width: int, cast: bool, backwards: bool = False
) -> int:
    """Numbers that :func:`forward` (or, ``backwards``, :func:`adjoint`) holds at once beyond its arguments.

    Args:
        shifts: where the heads look.
        images: B.
        groups: of channels.
        channels: C.
        width: D.
        cast: whether the tokens are of another type than that to compute in.
        backwards: for :func:`adjoint`; C and D are then those of what it reads and what it writes.
    """
    if not images:
        return 0
    if backwards:
        most = 0
        for residue in product(*map(range, shifts.step)):
            there, seen = through(shifts, residue)
            if there and min(seen.output) > 0:
                part = memory(seen, images, groups, channels, width, cast) + len(there) * groups * channels * width
                most = max(most, part)
        return most
    alone = channels == 1 and groups > 1
    if _stands(shifts) and not alone:
        return images * prod(shifts.output) * groups * (width + channels * cast)
    most = 0
    for image, rows in blocks(shifts, images, room_for(shifts, groups, channels, width, alone)):
        longest = 1 if alone else run_length(channels)
        plan = laid_out(shifts, image.stop - image.start, rows.stop - rows.start, alone, longest)
        repeat = max(1, TILE // groups) if alone else 0
        here = groups * (plan.tokens + repeat) * channels + groups * (plan.computed + repeat) * (1 if alone else width)
        beside = 0 if alone else groups * plan.wanted * (len(shifts.offsets) * channels + width)
        most = max(most, here + (beside if plan.few(channels) else 0))
    return most + len(shifts.offsets) * groups * (TILE // groups + 1) * alone


def _stands(shifts: Shifts) -> bool:
    """Whether a single head sees the input as it stands: no shift, no stride."""
    return shifts.offsets == ((0,) * len(shifts.step),) and set(shifts.step) == {1} and shifts.output == shifts.size


def _pointwise(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None) -> None:
    """One product over all tokens: channels last as they lie, else with the channels as rows."""
    groups, channels, width = w.shape
    x = x.to(w.dtype)
    flat, result = _flat(x), _flat(out)
    if groups == 1 and flat is not None and result is not None and out.dtype == w.dtype:
        for part in pieces(len(flat), room_for(shifts, 1, channels, width, alone=False)):
            torch.mm(flat[part], w[0], out=result[part])
            if bias is not None:
                result[part] += bias
        return
    rows = x.movedim((-2, -1), (1, 2)).reshape(len(x), groups, channels, -1)
    y = torch.matmul(w.mT, rows)  # (B, groups, D, T)
    if bias is not None:
        y += bias[..., None]
    out.copy_(y.view(len(x), groups, width, *out.shape[1:-2]).movedim((1, 2), (-2, -1)))


def _flat(x: Tensor) -> Tensor | None:
    """(B, *n, 1, C) as a matrix of tokens, if it lies so in memory."""
    dense = x.stride(-1) == 1 and all(
        n == 1 or stride == prod(x.shape[axis + 1 :])
        for axis, (n, stride) in enumerate(zip(x.shape[:-2], x.stride()[:-2], strict=True))
    )
    return x.as_strided((x.numel() // x.shape[-1], x.shape[-1]), (x.shape[-1], 1)) if dense else None


def _products(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None) -> None:
    """By matrix products, a block of queries at a time."""
    heads, groups, channels, width = w.shape
    longest = run_length(channels)
    room = room_for(shifts, groups, channels, width, alone=False)
    scratch = Scratch(w)
    stacked: dict[Ints, Tensor] = {}
    for images, rows in blocks(shifts, len(x), room):
        plan = laid_out(shifts, images.stop - images.start, rows.stop - rows.start, False, longest)
        tokens = plan.fill(scratch, x[images], rows.start)
        target = out[images, rows]
        if plan.few(channels):
            beside = scratch("beside", groups, prod((plan.images, *plan.queries)), heads * channels)
            _side_by_side(plan, tokens, beside)
            order = tuple(head for run in plan.runs for head in run.heads)
            if order not in stacked:
                stacked[order] = _stack(w, order)
            found = torch.matmul(beside, stacked[order])
            found = found.view(groups, plan.images, *plan.queries, width).movedim(0, -2)
        else:
            there = _flat(target) if plan.in_order(groups) and target.dtype == w.dtype else None
            flat = scratch("outputs", groups, plan.computed, width) if there is None else there[None]
            first = flat.storage_offset()
            for run, seen, (shape, strides, offset) in plan.products(groups, channels, width):
                if run.heads not in stacked:
                    stacked[run.heads] = _stack(w, run.heads)
                into = flat.as_strided(shape, strides, first + offset)
                _accumulate(into, tokens.as_strided(*seen), stacked[run.heads], run is not plan.runs[0])
            if there is not None:
                if bias is not None:
                    there += bias
                continue
            found = plan.outputs(flat)
        _finish(found, bias, target)


def _finish(found: Tensor, bias: Tensor | None, target: Tensor) -> None:
    """Add the bias (groups, D) on the way to the outputs (images, *queries, groups, D)."""
    if bias is None:
        target.copy_(found)
        return
    bias = bias.expand(found.shape[-3:]).contiguous()  # a row of queries, for long inner loops
    if target.dtype == found.dtype:
        torch.add(found, bias, out=target)
    else:
        target.copy_(found + bias)


def _accumulate(into: Tensor, a: Tensor, b: Tensor, add: bool) -> None:
    """into = a b, or into += a b; for each group."""
    if add:
        (into.addmm_ if into.dim() == 2 else into.baddbmm_)(a, b)
    elif into.dim() == 2:
        torch.mm(a, b, out=into)
    else:
        into.copy_(torch.bmm(a, b))


def _stack(w: Tensor, heads: Ints) -> Tensor:
    """W_h of a run below each other: (groups, R·C, D); a view where the heads follow each other in w."""
    first = heads[0]
    chosen = w[first : first + len(heads)] if heads == tuple(range(first, first + len(heads))) else w[list(heads)]
    stacked = chosen.transpose(0, 1).reshape(w.shape[1], -1, w.shape[3])
    return stacked[0] if len(stacked) == 1 else stacked


def _side_by_side(plan: Layout, tokens: Tensor, beside: Tensor) -> None:
    """Copy what all heads see into one matrix: (groups, wanted queries, heads·C), runs in their order."""
    groups, all_tokens, channels = tokens.shape
    rows = beside.view(groups, plan.images, *plan.queries, -1)
    column = 0
    for run in plan.runs:
        width = len(run.heads) * channels
        seen = tokens.as_strided(
            (groups, plan.images, *plan.queries, width),
            (all_tokens * channels, *(n * plan.ahead * channels for n in plan.strides), 1),
            (run.plane * plan.plane_tokens + run.token) * channels,
        )
        rows[..., column : column + width] = seen
        column += width


def _depthwise(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None) -> None:
    """One channel a group: y[o] = b + Σ_h x[s·o + e_h]·w_h, x (B, *n, C), w (heads, C), out (B, *o, C)."""
    channels = w.shape[1]
    room = room_for(shifts, channels, 1, 1, alone=True)
    scratch = Scratch(w)
    repeat = max(1, TILE // channels)
    tiles = w.repeat(1, repeat)
    for images, rows in blocks(shifts, len(x), room):
        plan = laid_out(shifts, images.stop - images.start, rows.stop - rows.start, True, 1)
        lines = ceil(plan.wanted / repeat)
        tokens = plan.fill(scratch, x[images].unsqueeze(-2), rows.start, more=repeat)
        flat = scratch("outputs", lines, repeat * channels)
        for number, run in enumerate(plan.runs):
            seen = tokens.as_strided(
                flat.shape, (repeat * channels, 1), (run.plane * plan.plane_tokens + run.token) * channels
            )
            if number:
                flat.addcmul_(seen, tiles[run.heads[0]])
            else:
                torch.mul(seen, tiles[run.heads[0]], out=flat)
        found = plan.outputs(flat.view(1, -1, channels))
        _finish(found, None if bias is None else bias[None], out[images, rows].unsqueeze(-2))


def adjoint(y: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None = None) -> None:
    """x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] w_hᵀ, into ``out``; also what a transposed convolution computes.

    Tokens of each residue modulo the stride are seen by some heads only, and for those it is ``forward`` with stride 1.

    Args:
        y: (B, *o, groups, D).
        w: (heads, groups, C, D).
        shifts: where the heads look.
        out: (B, *n, groups, C).
        bias: (groups, C).
    """
    transposed = w.transpose(2, 3)
    for residue in product(*map(range, shifts.step)):
        part = out[(slice(None), *(slice(r, None, s) for r, s in zip(residue, shifts.step, strict=True)))]
        if not part.numel():
            continue
        there, seen = through(shifts, residue)
        if not there:
            part.copy_(bias.expand_as(part)) if bias is not None else part.zero_()
            continue
        forward(y, transposed[there].contiguous(), seen, part, bias)


def weights(x: Tensor, y: Tensor, shifts: Shifts, dtype: torch.dtype) -> Tensor:
    """w_h = Σ_o x[s·o + e_h]ᵀ y[o].

    Args:
        x: (B, *n, groups, C).
        y: (B, *o, groups, D).
        shifts: where the heads look.
        dtype: to compute in.

    Returns:
        (heads, groups, C, D).
    """
    groups, channels, width = x.shape[-2], x.shape[-1], y.shape[-1]
    total = x.new_zeros(len(shifts.offsets), groups, channels, width, dtype=dtype)
    if not x.numel() or not y.numel():
        return total
    alone = channels == 1 and groups > 1
    room = room_for(shifts, groups, channels, width, alone)
    scratch = Scratch(total)
    for images, rows in blocks(shifts, len(x), room):
        plan = laid_out(
            shifts, images.stop - images.start, rows.stop - rows.start, alone, 1 if alone else run_length(channels)
        )
        part = x[images].transpose(-1, -2) if alone else x[images]  # a channel a group is as good as one group of them
        tokens = plan.fill(scratch, part, rows.start)
        flat = scratch("outputs", groups, plan.computed, width).zero_()
        plan.outputs(flat)[...] = y[images, rows]
        for run, seen, into in plan.products(tokens.shape[0], tokens.shape[2], width):
            given, pulled = tokens.as_strided(*seen), flat.as_strided(*into)
            if alone:
                total[run.heads[0], :, 0] += (given.T[..., None] * flat).sum(1)
                continue
            found = torch.matmul(given.mT, pulled).view(groups, len(run.heads), channels, width)
            for place, head in enumerate(run.heads):
                total[head] += found[:, place]
    return total
