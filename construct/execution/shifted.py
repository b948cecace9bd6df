"""Attention of heads that are pure shifts: y[o] = b + Σ_h x[s·o + e_h] W_h, with zeros outside x.

A head whose every softmax row is one-hot copies one token to each query.  Its attention matrix is then never needed: what is
left of Eq. 3 is one matrix product a head, over a shifted view of the tokens (:mod:`construct.execution.layout`).

The three maps below are linear in both arguments and are each other's derivatives:

    forward(x, w)    y[o]  = Σ_h x[s·o + e_h] w_h
    adjoint(y, w)    x[t]  = Σ_{h, o: s·o + e_h = t} y[o] w_hᵀ
    weights(x, y)    w_h   = Σ_o x[s·o + e_h]ᵀ y[o]
"""

from collections.abc import Callable
from itertools import product
from math import prod

import torch
from torch import Tensor

from construct.execution import beside, columns, gathered, lines, narrow, products, residues, simple, spread, stacked
from construct.execution.depthwise import depthwise
from construct.execution.layout import Ints, Layout, Shifts, Way, blocks, laid_out, room_for, run_length, through
from construct.execution.scratch import Scratch


def forward(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None = None) -> None:
    """y[o] = b + Σ_h x[s·o + e_h] w_h, into ``out``.

    Args:
        x: (B, *n, groups, C), any strides, any dtype.
        w: (heads, groups, C, D), in the dtype to compute in.
        shifts: where the heads look.
        out: (B, *o, groups, D), any strides, any dtype.
        bias: (groups, D).
    """
    way_for(x, w, shifts, out)(x, out, bias)


def way_for(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor) -> Way:
    """How to compute :func:`forward`, for inputs and outputs of the shapes, strides and types of these."""
    heads, groups, channels, _ = w.shape
    if not out.numel():
        return lambda x, out, bias: None
    if not heads:
        return _nothing_seen
    if groups == 1:
        alone = way_alone(x.squeeze(-2), w, shifts, out.squeeze(-2))
        return lambda x, out, bias: alone(x.squeeze(-2), out.squeeze(-2), bias)
    if channels == 1:
        return lambda x, out, bias: _channel_by_channel(x, w, shifts, out, bias)
    return _in_groups(w, shifts)


def _in_groups(w: Tensor, shifts: Shifts) -> Way:
    if simple.stands(shifts):
        return lambda x, out, bias: simple.pointwise(x, w[0], shifts, out, bias)
    return lambda x, out, bias: _products(x, w, shifts, out, bias)


def way_alone(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor) -> Way:
    """As :func:`way_for` for one group and at least one head, without the axis of the groups.

    Args:
        x: (B, *n, C), of these strides.
        w: (heads, 1, C, D).
        shifts: where the heads look.
        out: (B, *o, D), of these strides.

    Returns:
        For x (B, *n, C), out (B, *o, D) and bias (1, D).
    """
    channels, width = w.shape[2:]
    if w.dtype == out.dtype == x.dtype and simple.stands(shifts) and x.is_contiguous() and out.is_contiguous():
        matrix = w.reshape(channels, width)
        return lambda x, out, bias: simple.in_tokens(x, matrix, out, bias)
    if simple.lies_as_images(x, out, w, shifts):
        return lambda x, out, bias: _in_images(x, w, out, bias)
    some = _gathering(len(x), w, shifts)
    if some is None:
        if narrow.sees(shifts, channels, width):
            from_inputs = narrow.turned(shifts)
            return lambda x, out, bias: narrow.by_sums(x, w.squeeze(1).mT, from_inputs, out, bias)
        if lines.suits(shifts, channels, width):
            return lambda x, out, bias: lines.by_lines(x, w, shifts, out, bias)
        todo = columns.program(shifts, len(x), channels, width, x.stride(), out.stride(), out.dtype == w.dtype)
        if todo is not None:
            return lambda x, out, bias: columns.by_columns(x, w, todo, out, bias)
        some = gathered.few(shifts, len(x), channels)
    if some is not None:
        matrix = w.reshape(-1, width)
        return lambda x, out, bias: gathered.by_gathering(x, matrix, some, out, bias)
    rectangle = stacked.stack(shifts, channels, width)
    if rectangle is not None:
        return lambda x, out, bias: stacked.in_one(x, w, shifts, rectangle, out, bias)
    group = _in_groups(w, shifts)
    return lambda x, out, bias: group(x.unsqueeze(-2), out.unsqueeze(-2), bias)


def at_once(x: Tensor, w: Tensor, shifts: Shifts) -> Callable[[Tensor, Tensor | None], Tensor] | None:
    """As :func:`way_alone` for inputs that lie in order, if outputs come out as they are to lie: (B·queries, D), new."""
    plain = type(x) is Tensor  # else outputs are to be of its type, and not of that of a buffer
    some = _gathering(len(x), w, shifts) if plain and x.is_contiguous() and x.dtype == w.dtype else None
    return None if some is None else gathered.at_once(some, len(x), w.reshape(-1, w.shape[3]))


def _gathering(images: int, w: Tensor, shifts: Shifts) -> gathered.Gathering | None:
    """What to gather if that is quick, whatever else may be: for w (heads, 1, C, D)."""
    channels, width = w.shape[2:]
    if narrow.sees(shifts, channels, width) or lines.suits(shifts, channels, width):
        return None
    some = gathered.wide(shifts, images, channels, width)
    if some is None and products.quick(w):
        some = gathered.heavy(shifts, images, channels, width)
    return some


def _in_images(x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None) -> None:
    simple.in_images(x.movedim(-1, 1), w[0, 0], out.movedim(-1, 1), bias)


def _nothing_seen(x: Tensor, out: Tensor, bias: Tensor | None) -> None:
    out.copy_(bias.expand_as(out)) if bias is not None else out.zero_()


def _channel_by_channel(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None) -> None:
    """Groups of one channel, any number of outputs each."""
    for column in range(w.shape[3]):
        part = None if bias is None else bias[:, column]
        depthwise(x[..., 0], w[:, :, 0, column], shifts, out[..., column], part)


def _products(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None) -> None:
    """By matrix products, a block of queries at a time."""
    heads, groups, channels, width = w.shape
    longest = run_length(channels)
    room = room_for(shifts, groups, channels, width, alone=False)
    scratch = Scratch(w)
    below: dict[Ints, Tensor] = {}
    for images, rows in blocks(shifts, len(x), room):
        plan = laid_out(shifts, images.stop - images.start, rows.stop - rows.start, heads == 1, longest)
        tokens = plan.fill(scratch, x[images], rows.start)
        target = out[images, rows]
        if plan.few(channels):
            count = prod((plan.images, *plan.queries))
            beside = scratch("beside", groups, count, heads * channels)
            _side_by_side(plan, tokens, beside)
            order = tuple(head for run in plan.runs for head in run.heads)
            if order not in below:
                below[order] = _stack(w, order)
            found = torch.matmul(beside, below[order], out=scratch("found", groups, count, width))
            found = found.view(groups, plan.images, *plan.queries, width).movedim(0, -2)
        else:
            there = _flat(target) if plan.in_order(groups) and target.dtype == w.dtype else None
            flat = scratch("outputs", groups, plan.computed, width) if there is None else there[None]
            first = flat.storage_offset()
            for run, seen, (shape, strides, offset) in plan.products(groups, channels, width):
                if run.heads not in below:
                    below[run.heads] = _stack(w, run.heads)
                into = flat.as_strided(shape, strides, first + offset)
                _accumulate(into, tokens.as_strided(*seen), below[run.heads], run is not plan.runs[0])
            if there is not None:
                if bias is not None:
                    there += bias
                continue
            found = plan.outputs(flat)
        simple.finish(found, bias, target)


def _flat(x: Tensor) -> Tensor | None:
    """(B, *n, 1, C) as a matrix of tokens, if it lies so in memory."""
    return x.view(-1, x.shape[-1]) if x.is_contiguous() else None


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
    heads, groups, channels, width = w.shape
    if groups == 1 and narrow.suits(shifts, channels, width):
        narrow.by_sums(y.squeeze(-2), w.squeeze(1), shifts, out.squeeze(-2), bias)
        return
    if groups == 1 and spread.suits(shifts, len(y), w):
        spread.by_spreading(y.squeeze(-2), w.squeeze(1), shifts, out.squeeze(-2), bias)
        return
    transposed = w.transpose(2, 3)
    todo = residues.windows(shifts, len(y), channels, width) if groups == 1 and heads and len(y) else None
    if todo is not None:
        residues.by_residues(y.squeeze(-2), transposed.squeeze(1), todo, shifts.step, out.squeeze(-2), bias)
        return
    for residue in product(*map(range, shifts.step)):
        part = out[(slice(None), *(slice(r, None, s) for r, s in zip(residue, shifts.step, strict=True)))]
        if not part.numel():
            continue
        there, seen = through(shifts, residue)
        if not there:
            part.copy_(bias.expand_as(part)) if bias is not None else part.zero_()
            continue
        forward(y, _chosen(transposed, there), seen, part, bias)


def _chosen(w: Tensor, heads: Ints) -> Tensor:
    """The matrices of some heads in this order; w itself, which may lie otherwise in memory, if these are all as they come."""
    return w if heads == tuple(range(len(w))) else w.index_select(0, torch.tensor(heads, device=w.device))


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
    if groups == 1 and width < channels and max(shifts.step) == 1 < len(shifts.offsets):
        # What is laid out for all heads are then the fewer channels, and products have no few columns.
        return weights(y, x, narrow.turned(shifts), dtype).mT.contiguous()
    if groups == 1 and x.numel() and y.numel():
        if simple.stands(shifts) and x.dtype == y.dtype == dtype:
            return simple.weights(x.squeeze(-2), y.squeeze(-2)).view(1, 1, channels, width)
        some = gathered.for_weights(shifts, len(x), channels, width)
        if some is not None:
            return gathered.weights(x.squeeze(-2), y.squeeze(-2), some, dtype).unsqueeze(1)
        todo = beside.rectangle(shifts, channels, width)
        if todo is not None:
            return beside.weights(x.squeeze(-2), y.squeeze(-2), shifts, todo, dtype).unsqueeze(1)
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
