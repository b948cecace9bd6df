"""One batched matrix product for each head: it reads the tokens where they lie, without copying them side by side.

Of R rows of M queries, a head sees R rows of M evenly spaced tokens.  With w_h they are a batch of R products, (M, C) by (C, D),
and BLAS adds those of all heads.  The window of tokens that a block sees is first copied with its zero padding, unless it lies
inside an input with channels last.

With few channels, heads at consecutive places along the axis of rows share a product.  The window is then stored with that axis
innermost, so that the tokens of these heads are adjacent: (M, heads·C).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import mul

import torch
from torch import Tensor

from construct.execution.kernels import constants
from construct.execution.kernels.blocks import Block, blocks, queries_per_block
from construct.execution.kernels.problem import ADJOINT, WEIGHTS, Problem, Task, at, read_window, stacked
from construct.execution.kernels.windows import FIRST, LAST, Ints, View, Window, strides_of
from construct.execution.kernels.workspace import Workspace, bytes_of


def plan(problem: Problem) -> Task | None:
    """Plan one group where BLAS multiplies on a CPU, if im2col's columns would not fit into the cache; else None.

    The gradient of the weights must have few channels, channels last, and long rows.
    """
    heads, queries, cached = len(problem.heads), prod(problem.shifts.output), problem.at_once // constants.CACHED_PARTS
    if problem.kind == ADJOINT or problem.groups > 1 or heads < prod(problem.shifts.step):
        return None
    if problem.onednn or problem.gpu:
        return None  # one large product is faster
    if problem.images > 1 and queries < constants.QUERIES:
        return None  # one product for several images
    if heads * problem.channels * queries <= cached:
        return None  # im2col's columns stay in the cache
    if problem.channels * problem.width > cached:
        return None  # every row of a batch reads its head's matrix again
    if problem.kind == WEIGHTS:
        gradient = BatchedWeightGradient(problem)
        last = problem.x_layout == problem.y_layout == LAST and problem.shifts.output[-1] >= constants.MIN_ROW
        return gradient if last and len(gradient.parts) < heads else None
    forward = BatchedForward(problem)
    return forward if heads * problem.channels >= constants.MIN_BATCHED_TERMS * len(forward.parts) else None


@dataclass(frozen=True)
class BatchedBlockPlan:
    """One block of queries of an image.

    Attributes:
        block: the queries.
        window: the tokens that they see.
        products: for each position on all axes but the last two: that position, and what each part of the heads sees in the
            window or, if none is copied, in the image, (R, M, heads·C).
    """

    block: Block
    window: Window
    products: tuple[tuple[Ints, tuple[View, ...]], ...]


class _Rows:
    """What both tasks share: rows of tokens.

    Attributes:
        parts: the heads of each product.
        axes: the order of the axes in the window.
        layout: how tokens are read, and y is read or written.
        in_place: whether the input is read without a window.
        direct: whether y has this layout; else a buffer has it, from which or to which y is copied.
    """

    def __init__(self, problem: Problem):
        self.problem, shifts = problem, problem.shifts
        self.axes = axes = tuple(range(len(shifts.step)))
        self.parts = tuple((head,) for head in range(len(shifts.offsets)))
        if problem.channels < constants.MIN_SINGLE_CHANNELS and len(axes) > 1:
            *others, row, column = axes
            parts = _neighbours(shifts.offsets, row)
            if len(parts) < len(self.parts):
                self.parts, self.axes = parts, (*others, column, row)
        flat = problem.x_layout == problem.y_layout == FIRST and shifts.step == (1,)
        self.layout = FIRST if flat else LAST
        self.in_place = problem.x_layout == self.layout and self.axes == axes and shifts.inside
        self.direct = problem.y_layout == self.layout
        self.image = strides_of(self.layout, problem.channels, shifts.size)[0]
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
        products = []
        for position in product(*map(range, queries[:-2])):
            views = []
            for part in self.parts:
                token = (
                    e - least + b for e, least, b in zip(shifts.offsets[part[0]], shifts.least, begin, strict=True)
                )
                first = sum(map(mul, position, along)) + sum(map(mul, token, strides[1:]))
                shape = (*(1, *queries)[-2:], len(part) * channels)
                views.append((shape, (*(0, *along)[-2:], strides[-1]), first))
            products.append((position, tuple(views)))
        return BatchedBlockPlan(block, window, tuple(products))

    def windows(self, x: Tensor, window: Tensor) -> Iterator[tuple[int, BatchedBlockPlan, Tensor, int]]:
        """Image by image and block by block: where to read the tokens of x (B, C, *n), the window or x, and the place in it."""
        zeros: object = None
        for number in range(self.problem.images):
            for plan in self.plans:
                if self.in_place:
                    yield number, plan, x, number * self.image
                else:
                    zeros = read_window(x[number : number + 1], plan.window, window, zeros)
                    yield number, plan, window, 0


class BatchedForward(_Rows):
    """y[o] = b + Σ_h x[s·o + e_h] w_h, of one group."""

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """As :class:`~construct.execution.kernels.problem.Task`."""
        out = self.problem.new(first) if out is None else out
        heads = [[self.problem.heads[head] for head in part] for part in self.parts]
        matrices = [second[part[0]] if len(part) == 1 else stacked(second, part) for part in heads]
        with Workspace(second, self.window, self.staging) as (window, staging):
            for number, plan, tokens, start in self.windows(first, window):
                target = out[number].movedim(0, -1)[plan.block.box]
                sums = target if self.direct else staging[: target.numel()].view(target.shape)
                for position, views in plan.products:
                    y = _rows_of(sums, position)
                    for view, matrix in zip(views, matrices, strict=True):
                        _add_products(y, at(tokens, view, start), matrix, accumulate=view is not views[0])
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
            for number, plan, tokens, start in self.windows(first, window):
                rows = second[number].movedim(0, -1)[plan.block.box]
                for position, views in plan.products:
                    y = _rows_of(rows, position)
                    for view, total in zip(views, totals, strict=True):
                        total.addbmm_(at(tokens, view, start).mT, y)  # summed over the batch
        for part, total in zip(self.parts, totals, strict=True):
            for head, matrix in zip(part, total.unflatten(0, (len(part), -1)), strict=True):
                out[head, 0] = matrix
        return out


def _add_products(y: Tensor, a: Tensor, b: Tensor, accumulate: bool) -> None:
    """y += a b for each row, or y = a b unless ``accumulate``: (R, M, D), (R, M, K), (1, K, D)."""
    if len(a) == 1:  # faster than a batch of one
        y[0].addmm_(a[0], b[0]) if accumulate else torch.mm(a[0], b[0], out=y[0])
        return
    b = b.expand(len(a), -1, -1)
    y.baddbmm_(a, b) if accumulate else torch.bmm(a, b, out=y)


def _rows_of(tokens: Tensor, position: Ints) -> Tensor:
    """The rows (R, M, D) at a position on all axes but the last two, of tokens (*axes, D)."""
    return tokens[position] if tokens.dim() > 2 else tokens[None]


def _neighbours(offsets: Sequence[Ints], axis: int) -> tuple[tuple[int, ...], ...]:
    """All heads, those at consecutive places along an axis together."""
    places = sorted(((*e[:axis], *e[axis + 1 :], e[axis]), head) for head, e in enumerate(offsets))
    parts: list[list[int]] = []
    for number, (place, head) in enumerate(places):
        (*others, last), _ = places[number - 1]
        if parts and place == (*others, last + 1):
            parts[-1].append(head)
        else:
            parts.append([head])
    return tuple(map(tuple, parts))
