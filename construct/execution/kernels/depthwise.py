"""The kernel of depthwise convolutions: one multiply-add for each head over a block of outputs, y[o] = b + Σ_h x[s·o + e_h]·w_h.

There is no matrix to multiply by; what costs time is reading the tokens once a head.  So a block of queries is as large as a core's
cache holds, and every head adds its part to the whole block.  The input is read where it lies, and a head only adds to the queries
that see a token, if enough numbers follow each other in memory to make a loop: channels, or the tokens of a row.  Else the
tokens of a block are laid out with channels last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from construct.execution.kernels import constants
from construct.execution.kernels.blocks import Block, blocks, pieces
from construct.execution.kernels.problem import ADJOINT, WEIGHTS, Problem, Task, at
from construct.execution.kernels.windows import FIRST, LAST, OTHER, Box, Ints, View, clip, strides_of
from construct.execution.kernels.workspace import Workspace, bytes_of


class Depthwise:
    """The kernel of groups of one channel; each may have several outputs."""

    name = "depthwise"

    def plan(self, problem: Problem) -> Task | None:
        """A task, but not for an adjoint with several outputs a group."""
        if problem.kind == ADJOINT or problem.channels > 1 or problem.groups == 1:
            return None
        return ByChannel(problem)


@dataclass(frozen=True)
class Step:
    """One block of queries of some images.

    Attributes:
        block: which queries.
        shape: of the tokens that they see, laid out: (images, *axes, C).
        inside: of these, what is input.
        source: of the input, what that is.
        every: the block's outputs, (images, *queries, C).
        taps: of the heads that see any token, one that every query sees one by first: its number, the queries that do, and these
            tokens; in images of no gaps, or in the block's outputs and the tokens as they are laid out.
        whole: whether there is such a one.
    """

    block: Block
    shape: Ints
    inside: Box
    source: Box
    every: View
    taps: tuple[tuple[int, View, View], ...]
    whole: bool


class ByChannel:
    """Outputs, or the gradient of the weights."""

    def __init__(self, problem: Problem):
        self.problem, shifts, channels = problem, problem.shifts, problem.groups
        alike = problem.x_layout == problem.y_layout and problem.width == 1
        loop = {LAST: channels, FIRST: shifts.output[-1], OTHER: 0}[problem.x_layout]
        self.in_place = alike and loop >= constants.MIN_CONTIGUOUS
        queries = problem.block(max(1, constants.DEPTHWISE // channels))
        parts = blocks(shifts.output, queries)
        self.images = pieces(problem.images, max(1, queries // prod(shifts.output)) if len(parts) == 1 else 1)
        self.ahead = prod(shifts.size) * channels, prod(shifts.output) * channels  # from image to image
        counts = sorted({part.stop - part.start for part in self.images})
        self.steps = {count: [self._step(block, count) for block in parts] for count in counts}
        every = [step for steps in self.steps.values() for step in steps]
        outputs = max(prod(step.every[0]) for step in every)
        self.window = 0 if self.in_place else max(prod(step.shape) for step in every)
        self.apart = 0 if self.in_place and problem.kind != WEIGHTS else outputs
        self.pulled = outputs if problem.kind == WEIGHTS and not self.in_place else 0
        self.workspace = bytes_of(problem.dtype, self.window, self.apart, self.pulled, channels)

    def _step(self, block: Block, images: int) -> Step:
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
                paces = (s * n for s, n in zip(shifts.step, x_strides[1:], strict=False))
                taps.append((head, (shape, y_strides, query), (shape, (x_strides[0], *paces, x_strides[-1]), token)))
        every: View = ((images, *block.shape, channels), y_strides, first)
        taps.sort(key=lambda tap: tap[1][0] != every[0])
        return Step(
            block,
            (images, *lengths, channels),
            tuple(slice(low, high) for low, high in clips),
            tuple(slice(start + low, start + high) for start, (low, high) in zip(starts, clips, strict=True)),
            every,
            tuple(taps),
            bool(taps) and taps[0][1][0] == every[0],
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
        """X (B, C, *n), w (heads, C), bias (C,), into (B, C, *o)."""
        factors = w.unbind()
        if len(self.problem.heads) < len(factors):
            factors = [factors[head] for head in self.problem.heads]
        if self.in_place:
            behind, ahead = int(x.storage_offset()), int(out.storage_offset())
            for images in self.images:
                for step in self.steps[images.stop - images.start]:
                    first, second = (n * images.start for n in self.ahead)
                    _add_up(step, x, behind + first, out, ahead + second, factors, bias)
            return
        with Workspace(w, self.window, self.apart) as (window, apart):
            ahead = int(apart.storage_offset())
            for images in self.images:
                for step in self.steps[images.stop - images.start]:
                    tokens = self._tokens(x[images], step, window)
                    _add_up(step, tokens, int(tokens.storage_offset()), apart, ahead, factors, bias)
                    out[images].movedim(1, -1)[(slice(None), *step.block.box)].copy_(at(apart, step.every))

    def _weights(self, x: Tensor, y: Tensor, out: Tensor) -> None:
        """X (B, C, *n) and y (B, C, *o), added to (heads, C)."""
        axes = tuple(range(x.dim() - 1))
        with Workspace(out, self.window, self.apart, self.pulled) as (window, apart, pulled):
            for images in self.images:
                for step in self.steps[images.stop - images.start]:
                    if self.in_place:
                        tokens, given = x, y
                        behind, ahead = (n * images.start for n in self.ahead)
                    else:
                        tokens, given = self._tokens(x[images], step, window), pulled
                        behind = ahead = 0
                        at(pulled, step.every).copy_(y[images].movedim(1, -1)[(slice(None), *step.block.box)])
                    for head, queries, seen in step.taps:
                        products = apart[: prod(queries[0])].view(queries[0])
                        torch.mul(at(tokens, seen, behind), at(given, queries, ahead), out=products)
                        out[head] += products.sum(axes)

    def _tokens(self, x: Tensor, step: Step, window: Tensor) -> Tensor:
        """What a block sees, laid out: (images, *tokens, C)."""
        tokens = window[: prod(step.shape)].view(step.shape)
        if any(part.stop - part.start < n for part, n in zip(step.inside, step.shape[1:], strict=False)):
            tokens.zero_()
        tokens[(slice(None), *step.inside)].copy_(x.movedim(1, -1)[(slice(None), *step.source)])
        return tokens


def _add_up(
    step: Step, x: Tensor, behind: int, out: Tensor, ahead: int, factors: Sequence[Tensor], bias: Tensor | None
) -> None:
    """What all heads add to a block of outputs; x and out are read and written from these places in memory on."""
    begun = not step.whole
    if begun:
        block = at(out, step.every, ahead - int(out.storage_offset()))
        block.zero_() if bias is None else block.copy_(bias.expand_as(block))
    for head, (shape, strides, query), (_, paces, token) in step.taps:
        part = out.as_strided(shape, strides, ahead + query)
        tokens = x.as_strided(shape, paces, behind + token)
        if begun:
            part.addcmul_(tokens, factors[head])
        elif bias is None:
            torch.mul(tokens, factors[head], out=part)
        else:
            torch.addcmul(bias, tokens, factors[head], out=part)
        begun = True
