"""The kernel of large layers where BLAS multiplies: one batched matrix product per head, which reads the tokens where they lie.

Of R rows of M queries, a head sees R rows of M evenly spaced tokens.  With w_h they are a batch of R products, (M, C) by (C, D),
and BLAS adds those of all heads.  The window of tokens that a block sees is first copied with its zero padding, unless it lies
inside an input with channels last.

With few channels, heads at consecutive places along the last axis but one share a product.  The window then stores that axis
innermost, so that the tokens of these heads are adjacent: (M, heads·C).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import mul

from torch import Tensor

from construct.execution.kernels import constants
from construct.execution.kernels.blocks import Block, blocks, queries_per_block
from construct.execution.kernels.gemm import add_product
from construct.execution.kernels.problem import ADJOINT, WEIGHTS, Problem, Task, at, read_window, stacked
from construct.execution.kernels.windows import FIRST, LAST, Ints, View, Window, strides_of
from construct.execution.kernels.workspace import Workspace, bytes_of


def plan(problem: Problem) -> Task | None:
    """Plan one group where BLAS multiplies on a CPU, if im2col's columns would not fit into the cache; else None.

    A head's matrix must fit, a sum have enough terms, and a product enough queries.  The gradient of the weights must also have
    few channels, channels last, and long rows.
    """
    shifts, heads, channels = problem.shifts, len(problem.heads), problem.channels
    queries, row, plane = prod(shifts.output), shifts.output[-1], prod(shifts.output[-2:])
    cached = problem.at_once // constants.CACHED_PARTS
    if problem.kind == ADJOINT or problem.groups > 1 or problem.onednn or problem.gpu:
        return None
    if heads < prod(shifts.step):
        return None  # most tokens of the window would not be seen
    if row < constants.MIN_ROW or plane < constants.MIN_PLANE or (problem.images > 1 and queries < constants.QUERIES):
        return None  # one product for more queries, or for several images, is faster
    if heads * channels * queries <= cached or channels * problem.width > cached:
        return None
    first = problem.x_layout == problem.y_layout == FIRST and len(shifts.step) > 1
    if first and heads < constants.MIN_TRANSPOSED_HEADS:
        return None  # im2col transposes neither input nor output
    parts = len(_parts(problem))
    if heads * channels < constants.MIN_BATCHED_TERMS * parts:
        return None
    if problem.kind != WEIGHTS:
        return BatchedForward(problem)
    summed = row >= constants.MIN_SUMMED_ROW and parts < heads and problem.x_layout == problem.y_layout == LAST
    return BatchedWeightGradient(problem) if summed else None


@dataclass(frozen=True)
class BatchedBlockPlan:
    """One block of queries of an image.

    Attributes:
        block: the queries.
        window: the tokens that they see.
        views: for each position on all axes but the last two: that position, and what each part of the heads sees in the window
            or, if none is copied, in the image, (R, M, heads·C).
    """

    block: Block
    window: Window
    views: tuple[tuple[Ints, tuple[View, ...]], ...]


class _Rows:
    """What both tasks share: rows of tokens.

    Attributes:
        parts: the heads of each product.
        axes: the order of the axes in the window.
        layout: how tokens are read, and products are written.
        in_place: whether the input is read without a window.
        direct: whether y has this layout; else products are added up in a buffer, of which y is a copy.
    """

    def __init__(self, problem: Problem):
        self.problem, shifts = problem, problem.shifts
        self.parts, self.axes = _parts(problem), tuple(range(len(shifts.step)))
        joined = len(self.parts) < len(shifts.offsets)
        if joined:
            *others, row, column = self.axes
            self.axes = (*others, column, row)
        # 1-D with channels first is read in that order; not with a stride, as BLAS needs adjacent tokens or adjacent channels.
        flat = problem.x_layout == problem.y_layout == FIRST and shifts.step == (1,)
        self.layout = FIRST if flat else LAST
        self.in_place = problem.x_layout == self.layout and not joined and shifts.inside
        self.direct = problem.y_layout == self.layout
        fitting = problem.at_once // constants.CACHED_PARTS // problem.channels
        queries = queries_per_block(max(constants.QUERIES, fitting), problem.most)
        self.plans = [self._block_plan(block) for block in blocks(shifts.output, queries)]
        self.window = 0 if self.in_place else max(plan.window.numbers for plan in self.plans)
        self.staging = 0 if self.direct else max(prod(plan.block.shape) for plan in self.plans) * problem.width
        weights = len(shifts.offsets) * problem.channels * problem.width  # in another order
        self.workspace = bytes_of(problem.dtype, self.window, self.staging, weights)

    def _block_plan(self, block: Block) -> BatchedBlockPlan:
        shifts, channels, queries = self.problem.shifts, self.problem.channels, block.shape
        window = Window.of(shifts, block.box, 1, channels, self.layout, self.axes)
        strides = strides_of(self.layout, channels, shifts.size) if self.in_place else window.strides
        begin = window.start if self.in_place else (0,) * len(queries)
        along = tuple(map(mul, shifts.step, strides[1:]))  # from query to query
        every = []
        for position in product(*map(range, queries[:-2])):
            views = []
            for part in self.parts:
                token = (
                    e - least + b for e, least, b in zip(shifts.offsets[part[0]], shifts.least, begin, strict=True)
                )
                first = sum(map(mul, position, along)) + sum(map(mul, token, strides[1:]))
                shape = (*(1, *queries)[-2:], len(part) * channels)
                views.append((shape, (*(0, *along)[-2:], strides[-1]), first))
            every.append((position, tuple(views)))
        return BatchedBlockPlan(block, window, tuple(every))

    def windows(self, x: Tensor, window: Tensor) -> Iterator[tuple[int, BatchedBlockPlan, Tensor]]:
        """Image by image and block by block of x (B, C, *n): where to read the tokens, in the window or in the image."""
        zeros: object = None
        for number in range(self.problem.images):
            for plan in self.plans:
                if not self.in_place:
                    read_window(x[number : number + 1], plan.window, window, zeros)
                    zeros = plan.window.zeros
                yield number, plan, x[number] if self.in_place else window


class BatchedForward(_Rows):
    """y[o] = b + Σ_h x[s·o + e_h] w_h, of one group."""

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """As :class:`~construct.execution.kernels.problem.Task`."""
        out = self.problem.new(first) if out is None else out
        heads = [[self.problem.heads[head] for head in part] for part in self.parts]
        matrices = [second[part[0]] if len(part) == 1 else stacked(second, part) for part in heads]
        with Workspace(second, self.window, self.staging) as (window, staging):
            for number, plan, tokens in self.windows(first, window):
                target = out[number].movedim(0, -1)[plan.block.box]
                sums = target if self.direct else staging[: target.numel()].view(target.shape)
                for position, views in plan.views:
                    y = _rows_of(sums, position)
                    for part, (view, matrix) in enumerate(zip(views, matrices, strict=True)):
                        add_product(y, at(tokens, view), matrix.expand(len(y), -1, -1), part > 0, onednn=False)
                if bias is not None:
                    sums += bias
                if not self.direct:
                    target.copy_(sums)
        return out


class BatchedWeightGradient(_Rows):
    """w_h = Σ_o x[s·o + e_h]ᵀ y[o], of one group; x and y have channels last."""

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """As :class:`~construct.execution.kernels.problem.Task`."""
        out = self.problem.new(first)
        totals = [out.new_zeros(len(part) * self.problem.channels, self.problem.width) for part in self.parts]
        with Workspace(out, self.window) as (window,):
            for number, plan, tokens in self.windows(first, window):
                rows = second[number].movedim(0, -1)[plan.block.box]
                for position, views in plan.views:
                    y = _rows_of(rows, position)
                    for view, total in zip(views, totals, strict=True):
                        total.addbmm_(at(tokens, view).mT, y)  # summed over the batch
        for part, total in zip(self.parts, totals, strict=True):
            for head, matrix in zip(part, total.unflatten(0, (len(part), -1)), strict=True):
                out[head, 0] = matrix
        return out


def _rows_of(tokens: Tensor, position: Ints) -> Tensor:
    """The rows (R, M, D) at a position on all axes but the last two, of tokens (*axes, D)."""
    return tokens[position] if tokens.dim() > 2 else tokens[None]


def _parts(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """The heads of each product: those at consecutive places along the last axis but one, or one if there are many channels."""
    offsets, axis = problem.shifts.offsets, len(problem.shifts.step) - 2
    if axis < 0 or problem.channels >= constants.MIN_SINGLE_CHANNELS:
        return tuple((head,) for head in range(len(offsets)))
    places = sorted(((*e[:axis], *e[axis + 1 :], e[axis]), head) for head, e in enumerate(offsets))
    parts: list[list[int]] = []
    for number, (place, head) in enumerate(places):
        (*others, last), _ = places[number - 1]
        if place == (*others, last + 1):
            parts[-1].append(head)
        else:
            parts.append([head])
    return tuple(map(tuple, parts))
