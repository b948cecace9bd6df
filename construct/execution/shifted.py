"""Attention of heads that are pure shifts: y[o] = b + Σ_h x[s·o + e_h] W_h, with zeros outside x.

A head whose every softmax row is one-hot copies one token to each query.  Its attention matrix is then never needed: what is
left of Eq. 3 is one matrix product a head, over a shifted view of the tokens (:mod:`construct.execution.layout`).

The three maps below are linear in both arguments and are each other's derivatives:

    forward(x, w)    y[o]  = Σ_h x[s·o + e_h] w_h
    adjoint(y, w)    x[t]  = Σ_{h, o: s·o + e_h = t} y[o] w_hᵀ
    weights(x, y)    w_h   = Σ_o x[s·o + e_h]ᵀ y[o]
"""

from itertools import product
from math import prod

import torch
from torch import Tensor

from construct.execution import beside, columns, lines, simple, stacked
from construct.execution.depthwise import depthwise
from construct.execution.layout import Ints, Layout, Shifts, blocks, laid_out, pieces, room_for, run_length, through
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
    heads, groups, channels, width = w.shape
    if not out.numel():
        return
    if not heads:
        out.copy_(bias.expand_as(out)) if bias is not None else out.zero_()
    elif channels == 1 and groups > 1:
        for column in range(width):
            part = None if bias is None else bias[:, column]
            depthwise(x[..., 0], w[:, :, 0, column], shifts, out[..., column], part)
    elif groups > 1 or not alone(x.squeeze(-2), w, shifts, out.squeeze(-2), bias):
        if simple.stands(shifts):
            simple.pointwise(x, w[0], shifts, out, bias)
        else:
            _products(x, w, shifts, out, bias)


def alone(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None) -> bool:
    """As :func:`forward` for one group, in few steps, where that is possible; returns whether it was.

    Args:
        x: (B, *n, C).
        w: (heads, 1, C, D).
        shifts: where the heads look.
        out: (B, *o, D).
        bias: (1, D).
    """
    if w.dtype == out.dtype == x.dtype and simple.stands(shifts) and x.is_contiguous() and out.is_contiguous():
        channels, width = w.shape[2:]
        flat, result, matrix = x.view(-1, channels), out.view(-1, width), w.view(channels, width)
        if bias is None:
            torch.mm(flat, matrix, out=result)
            return True
        for part in pieces(len(flat), room_for(shifts, 1, channels, width, alone=False)):
            torch.mm(flat[part], matrix, out=result[part])
            result[part] += bias
        return True
    if lines.suits(shifts, *w.shape[2:]):
        lines.by_lines(x, w, shifts, out, bias)
        return True
    todo = columns.program(shifts, len(x), x.shape[-1], out.shape[-1], x.stride(), out.stride(), out.dtype == w.dtype)
    if todo is not None:
        by_columns(x, w, todo, out, bias)
        return True
    few = stacked.stack(shifts, x.shape[-1], out.shape[-1])
    if few is not None:
        in_one(x, w, shifts, few, out, bias)
    return few is not None


def by_columns(x: Tensor, w: Tensor, todo: columns.Program, out: Tensor, bias: Tensor | None) -> None:
    """y[o] = b + Σ_h x[s·o + e_h] w_h: x (B, *n, C), w (heads, 1, C, D), out (B, *o, D), bias (1, D)."""
    w = w.contiguous() if todo.order is None else w[todo.order]
    tokens, outputs = w.new_empty(todo.tokens), w.new_empty(todo.outputs)
    from_x, from_w, from_out = x.storage_offset(), w.storage_offset(), out.storage_offset()
    for step in todo.steps:
        for zeros in step.zeros:
            tokens.as_strided(*zeros).zero_()
        shape, strides, offset = step.source
        tokens.as_strided(*step.into).copy_(x.as_strided(shape, strides, from_x + offset))
        shape, strides, offset = step.target
        flat = target = out.as_strided(shape, strides, from_out + offset)
        if step.found is not None:
            flat = outputs.as_strided(step.computed, (prod(step.computed[1:]), step.computed[2], 1))
        first = True
        for seen, (shape, strides, offset) in step.products:
            matrix = w.as_strided(shape, strides, from_w + offset)
            if first:
                torch.bmm(tokens.as_strided(*seen), matrix, out=flat)
            else:
                flat.baddbmm_(tokens.as_strided(*seen), matrix)
            first = False
        if step.found is None:
            if bias is not None:
                flat += bias
            continue
        found = outputs.as_strided(*step.found)
        if bias is None:
            target.copy_(found)
        elif target.dtype == found.dtype:
            torch.add(found, bias.expand(found.shape[-2:]).contiguous(), out=target)
        else:
            target.copy_(found.add_(bias))


def in_one(x: Tensor, w: Tensor, shifts: Shifts, todo: stacked.Stack, out: Tensor, bias: Tensor | None) -> None:
    """y[o] = b + Σ_h x[s·o + e_h] w_h: x (B, *n, C), w (heads, 1, C, D), out (B, *o, D), bias (1, D)."""
    channels, width = w.shape[2:]
    matrix = w[todo.order].view(-1, width)  # (down·along·C, D)
    slots, length, step = len(todo.along) * channels, shifts.output[1], shifts.step[0]
    most = min(todo.rows, shifts.output[0])
    tokens = w.new_empty((step * (most - 1) + todo.down[1]) * slots * length)
    outputs = w.new_empty(most * length * width)
    last = out.stride(3) == 1 and width > 1
    for image, rows in stacked.blocks(len(x), shifts.output[0], todo.rows):
        count = rows.stop - rows.start
        lines = step * (count - 1) + todo.down[1]
        buffer = tokens[: lines * slots * length].view(lines, len(todo.along), channels, length)
        stacked.fill(buffer, x[image], shifts, todo, step * rows.start + todo.down[0])
        seen = buffer.as_strided((count, len(matrix), length), (step * slots * length, length, 1), 0)
        target = out[image, rows]  # (rows, queries, D)
        if last:
            flat = outputs[: count * length * width].view(count, length, width)
            direct = target.is_contiguous() and target.dtype == w.dtype
            found = torch.bmm(seen.mT, matrix.expand(count, -1, -1), out=target if direct else flat)
            if direct:
                if bias is not None:
                    target += bias
                continue
        else:
            flat = outputs[: count * length * width].view(count, width, length)
            found = torch.bmm(matrix.mT.expand(count, -1, -1), seen, out=flat).mT
        if bias is not None and target.dtype == found.dtype:
            torch.add(found, bias, out=target)
        else:
            target.copy_(found if bias is None else found.add_(bias))


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
            beside = scratch("beside", groups, prod((plan.images, *plan.queries)), heads * channels)
            _side_by_side(plan, tokens, beside)
            order = tuple(head for run in plan.runs for head in run.heads)
            if order not in below:
                below[order] = _stack(w, order)
            found = torch.matmul(beside, below[order])
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
    transposed = w.transpose(2, 3)
    for residue in product(*map(range, shifts.step)):
        part = out[(slice(None), *(slice(r, None, s) for r, s in zip(residue, shifts.step, strict=True)))]
        if not part.numel():
            continue
        there, seen = through(shifts, residue)
        if not there:
            part.copy_(bias.expand_as(part)) if bias is not None else part.zero_()
            continue
        chosen = transposed.index_select(0, torch.tensor(there, device=w.device))
        forward(y, chosen.contiguous(), seen, part, bias)


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
    if groups == 1 and x.numel() and y.numel():
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
