"""The kernel of depthwise convolutions: one multiply-add for each head over a block of outputs, y[o] = b + Σ_h x[s·o + e_h]·w_h.

There is no matrix to multiply by; the time goes into reading the tokens once per head.  So a block of queries is as large as a
core's cache holds, and every head adds its part to the whole block.  If enough numbers are contiguous to make a loop (channels,
or the tokens of a row), the input is read in place, and a head only adds to the queries that see a token.  Otherwise the tokens
of a block are copied with channels last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from construct.execution.kernels import constants
from construct.execution.kernels.blocks import Block, blocks, pieces, queries_per_block
from construct.execution.kernels.problem import ADJOINT, WEIGHTS, Problem, Task, at
from construct.execution.kernels.windows import FIRST, LAST, OTHER, Box, Ints, View, clip, strides_of
from construct.execution.kernels.workspace import Workspace, bytes_of


def plan(problem: Problem) -> Task | None:
    """Plan forwards and weight gradients for groups of one channel, maybe with several outputs; else None."""
    if problem.kind == ADJOINT or problem.channels > 1 or problem.groups == 1:
        return None
    return ByChannel(problem)


@dataclass(frozen=True)
class DepthwiseBlockPlan:
    """One block of queries, in some of the images.

    Attributes:
        block: the queries.
        shape: the shape of their tokens when copied: (images, *axes, C).
        inside: the part of these tokens that is input, not padding.
        source: where that part lies in the input.
        every: the block's outputs, (images, *queries, C).
        taps: for each head that sees any token: its number, and views of the queries that see one and of these tokens, in images
            without gaps, or in the block's outputs and the copied tokens.  A head that serves every query, if any, is first.
    """

    block: Block
    shape: Ints
    inside: Box
    source: Box
    every: View
    taps: tuple[tuple[int, View, View], ...]


class ByChannel:
    """The depthwise task: outputs, or the gradient of the weights."""

    def __init__(self, problem: Problem):
        self.problem, shifts, channels = problem, problem.shifts, problem.groups
        alike = problem.x_layout == problem.y_layout and problem.width == 1
        loop = {LAST: channels, FIRST: shifts.output[-1], OTHER: 0}[problem.x_layout]
        self.in_place = alike and loop >= constants.MIN_CONTIGUOUS
        queries = queries_per_block(problem.at_once // constants.CACHED_PARTS // channels, problem.most)
        parts = blocks(shifts.output, queries)
        self.images = pieces(problem.images, max(1, queries // prod(shifts.output)) if len(parts) == 1 else 1)
        self.image_strides = prod(shifts.size) * channels, prod(shifts.output) * channels
        counts = sorted({part.stop - part.start for part in self.images})
        self.plans = {count: [self._block_plan(block, count) for block in parts] for count in counts}
        every = [plan for plans in self.plans.values() for plan in plans]
        outputs = max(prod(plan.every[0]) for plan in every)
        self.window = 0 if self.in_place else max(prod(plan.shape) for plan in every)
        # A block's outputs before they are copied into place, or a head's products of tokens and y.
        self.staging = 0 if self.in_place and problem.kind != WEIGHTS else outputs
        self.y_block = outputs if problem.kind == WEIGHTS and not self.in_place else 0
        self.workspace = bytes_of(problem.dtype, self.window, self.staging, self.y_block, channels)

    def _block_plan(self, block: Block, images: int) -> DepthwiseBlockPlan:
        shifts, channels, layout = self.problem.shifts, self.problem.groups, self.problem.x_layout
        starts, lengths, clips = shifts.window(block.box)
        if self.in_place:
            x_strides, y_strides = (strides_of(layout, channels, size) for size in (shifts.size, shifts.output))
        else:
            x_strides, y_strides = (strides_of(LAST, channels, size) for size in (lengths, block.shape))
        first = block.first * y_strides[-2] if self.in_place else 0
        taps = []
        for head, offset in enumerate(shifts.offsets):
            queries, token, query = [], 0, first
            for axis, (e, step) in enumerate(zip(offset, shifts.step, strict=True)):
                begin, count = step * block.box[axis].start + e, block.shape[axis]
                low, high = clip(begin, step, count, shifts.size[axis]) if self.in_place else (0, count)
                queries.append(high - low)
                token += (begin + step * low - (0 if self.in_place else starts[axis])) * x_strides[axis + 1]
                query += low * y_strides[axis + 1]
            if all(queries):
                shape = (images, *queries, channels)
                strides = (s * n for s, n in zip(shifts.step, x_strides[1:], strict=False))
                taps.append((head, (shape, y_strides, query), (shape, (x_strides[0], *strides, x_strides[-1]), token)))
        every: View = ((images, *block.shape, channels), y_strides, first)
        taps.sort(key=lambda tap: tap[1][0] != every[0])
        return DepthwiseBlockPlan(
            block,
            (images, *lengths, channels),
            tuple(slice(low, high) for low, high in clips),
            tuple(slice(start + low, start + high) for start, (low, high) in zip(starts, clips, strict=True)),
            every,
            tuple(taps),
        )

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """As :class:`~construct.execution.kernels.problem.Task`."""
        problem, width, groups = self.problem, self.problem.width, self.problem.groups
        out = problem.new(first) if out is None else out
        if problem.kind == WEIGHTS:
            out.zero_()
        for column in range(width):
            if problem.kind == WEIGHTS:
                self._weights(first, second if width == 1 else second[:, column::width], out[:, :, 0, column])
            else:
                part = None if bias is None else bias.view(groups, width)[:, column]
                w = second.flatten(1) if width == 1 else second[:, :, 0, column]
                self._outputs(first, w, out if width == 1 else out[:, column::width], part)
        return out

    def _outputs(self, x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None) -> None:
        """Compute out (B, C, *o) from x (B, C, *n), w (heads, C) and bias (C,)."""
        factors = w.unbind()
        if len(self.problem.heads) < len(factors):
            factors = [factors[head] for head in self.problem.heads]
        if self.in_place:
            for images in self.images:
                for plan in self.plans[images.stop - images.start]:
                    x_offset, y_offset = (n * images.start for n in self.image_strides)
                    _add_up(plan, x, x_offset, out, y_offset, factors, bias)
            return
        with Workspace(w, self.window, self.staging) as (window, staging):
            for images in self.images:
                for plan in self.plans[images.stop - images.start]:
                    tokens = self._tokens(x[images], plan, window)
                    _add_up(plan, tokens, 0, staging, 0, factors, bias)
                    out[images].movedim(1, -1)[(slice(None), *plan.block.box)].copy_(at(staging, plan.every))

    def _weights(self, x: Tensor, y: Tensor, out: Tensor) -> None:
        """Add the gradient for x (B, C, *n) and y (B, C, *o) to out (heads, C)."""
        axes = tuple(range(x.dim() - 1))
        with Workspace(out, self.window, self.staging, self.y_block) as (window, staging, y_block):
            for images in self.images:
                for plan in self.plans[images.stop - images.start]:
                    if self.in_place:
                        tokens, given = x, y
                        x_offset, y_offset = (n * images.start for n in self.image_strides)
                    else:
                        tokens, given = self._tokens(x[images], plan, window), y_block
                        x_offset = y_offset = 0
                        at(y_block, plan.every).copy_(y[images].movedim(1, -1)[(slice(None), *plan.block.box)])
                    for head, query_view, token_view in plan.taps:
                        products = staging[: prod(query_view[0])].view(query_view[0])
                        torch.mul(at(tokens, token_view, x_offset), at(given, query_view, y_offset), out=products)
                        out[head] += products.sum(axes)

    def _tokens(self, x: Tensor, plan: DepthwiseBlockPlan, window: Tensor) -> Tensor:
        """Copy the tokens that a block sees: (images, *tokens, C)."""
        tokens = window[: prod(plan.shape)].view(plan.shape)
        if any(part.stop - part.start < n for part, n in zip(plan.inside, plan.shape[1:], strict=False)):
            tokens.zero_()
        tokens[(slice(None), *plan.inside)].copy_(x.movedim(1, -1)[(slice(None), *plan.source)])
        return tokens


def _add_up(
    plan: DepthwiseBlockPlan,
    x: Tensor,
    x_offset: int,
    out: Tensor,
    out_offset: int,
    factors: Sequence[Tensor],
    bias: Tensor | None,
) -> None:
    """Sum all heads over a block of outputs; the images begin at these offsets in x and out."""
    accumulate = not plan.taps or plan.taps[0][1][0] != plan.every[0]  # else the first head writes all outputs
    if accumulate:
        block = at(out, plan.every, out_offset)
        block.zero_() if bias is None else block.copy_(bias.expand_as(block))
    x_start, out_start = int(x.storage_offset()) + x_offset, int(out.storage_offset()) + out_offset
    for head, (shape, out_strides, query), (_, x_strides, token) in plan.taps:
        part = out.as_strided(shape, out_strides, out_start + query)
        tokens = x.as_strided(shape, x_strides, x_start + token)
        if accumulate:
            part.addcmul_(tokens, factors[head])
        elif bias is None:
            torch.mul(tokens, factors[head], out=part)
        else:
            torch.addcmul(bias, tokens, factors[head], out=part)
        accumulate = True
