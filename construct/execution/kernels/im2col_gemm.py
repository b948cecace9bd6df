"""im2col and GEMM: copy the tokens of all heads side by side into a workspace, then multiply, one block of queries at a time.

With channels last the columns are (queries, heads·C), and the stacked W_h (heads·C, D); with channels first everything is
transposed, (heads·C, queries), so that the product already has the output's layout.  The window of tokens that a block sees is
first copied with its zero padding, unless it lies inside the input; a run of heads is then one strided view of it.
"""

from dataclasses import dataclass
from math import prod
from operator import mul

from torch import Tensor

from construct.execution.kernels import constants
from construct.execution.kernels.blocks import Block, blocks, pieces, queries_per_block
from construct.execution.kernels.gemm import add_product, products
from construct.execution.kernels.problem import ADJOINT, WEIGHTS, Problem, Task, at, read_window, stacked
from construct.execution.kernels.windows import FIRST, LAST, Ints, Run, View, Window, runs_of, strides_of
from construct.execution.kernels.workspace import Workspace, bytes_of


@dataclass(frozen=True)
class Im2colBlockPlan:
    """One block of queries, in some of the images.

    Attributes:
        block: the queries.
        rows: their number in all these images: rows of the product.
        window: the tokens that they see.
        copies: for each run, views of its columns and of its tokens, in the window or, if none is copied, in the input.
        columns: the columns, (groups, queries, heads·C).
        result: the product's view in an output without gaps, (groups, queries, D), or transposed.
    """

    block: Block
    rows: int
    window: Window
    copies: tuple[tuple[View, View], ...]
    columns: View
    result: View


def plan(problem: Problem) -> Task | None:
    """Plan any forward or weight gradient; None for adjoints, which ``select`` splits into phases of the stride."""
    if problem.kind == ADJOINT:
        return None
    return Im2colWeightGradient(problem) if problem.kind == WEIGHTS else Im2colForward(problem)


class _Columns:
    """What both tasks share: the columns of a block.

    Attributes:
        heads: all heads, in the order of their offsets.
        depth: columns in each group, heads·C.
        transposed: whether columns are (heads·C, queries), as x and y have channels first.
        window_is_columns: whether no columns are copied: a single head, and no stride.
    """

    def __init__(self, problem: Problem):
        self.problem, shifts = problem, problem.shifts
        groups, channels, output = problem.groups, problem.channels, shifts.output
        self.transposed = problem.x_layout == problem.y_layout == FIRST and prod(output) >= constants.FEW_QUERIES
        order = sorted(range(len(shifts.offsets)), key=shifts.offsets.__getitem__)
        self.heads = tuple(problem.heads[head] for head in order)
        self.depth = len(order) * channels
        longest = max(max(run.counts) for run in runs_of(shifts.offsets, False))
        self.runs = runs_of(shifts.offsets, self.transposed or longest * groups * channels <= constants.RECTANGLE)
        self.in_place = problem.x_layout == (FIRST if self.transposed else LAST) and shifts.inside
        self.window_is_columns = len(order) == 1 and set(shifts.step) == {1} and not self.in_place
        self.x_strides = strides_of(problem.x_layout, groups * channels, shifts.size)
        self.y_strides = strides_of(problem.y_layout, groups * problem.width, output)
        fitting = problem.at_once // (groups * self.depth)
        queries = queries_per_block(max(constants.QUERIES, fitting), problem.most)
        parts = blocks(output, queries)
        images = 1 if self.transposed or len(parts) > 1 else queries // prod(output)
        self.images = pieces(problem.images, max(1, images))
        counts = sorted({part.stop - part.start for part in self.images})
        self.plans = {count: [self._block_plan(block, count) for block in parts] for count in counts}
        every = [plan for plans in self.plans.values() for plan in plans]
        self.rows = max(plan.rows for plan in every)
        self.columns = 0 if self.window_is_columns else self.rows * groups * self.depth
        self.window = 0 if self.in_place else max(plan.window.numbers for plan in every)
        self.single_block = len(every) == 1

    def _block_plan(self, block: Block, images: int) -> Im2colBlockPlan:
        problem, shifts, channels, depth = self.problem, self.problem.shifts, self.problem.channels, self.depth
        queries, rows = prod(block.shape), images * prod(block.shape)
        every = problem.groups * channels
        window = Window.of(shifts, block.box, images, every, FIRST if self.transposed else LAST)
        copies = (
            () if self.window_is_columns else tuple(self._copy(run, block.shape, images, window) for run in self.runs)
        )
        along = every if self.window_is_columns else depth  # from query to query
        between = channels * window.strides[-1] if self.window_is_columns else rows * depth  # between groups
        columns: View = (
            (problem.groups, rows, depth),
            (between, *((1, rows) if self.transposed else (along, 1))),
            0,
        )
        width, y = problem.width, self.y_strides
        result = (problem.groups, width, queries) if self.transposed else (problem.groups, rows, width)
        order = (y[-1], y[-2]) if self.transposed else (y[-2], y[-1])
        return Im2colBlockPlan(
            block, rows, window, copies, columns, (result, (width * y[-1], *order), block.first * y[-2])
        )

    def _copy(self, run: Run, queries: Ints, images: int, window: Window) -> tuple[View, View]:
        """Views of a run's columns and of its tokens: (images, *queries, groups, *heads, C)."""
        shifts, channels, groups = self.problem.shifts, self.problem.channels, self.problem.groups
        image, *along, channel = self.x_strides if self.in_place else window.strides
        begin = window.start if self.in_place else (0,) * len(along)
        shape = (images, *queries, groups, *run.counts, channels)
        start = [e - least + b for e, least, b in zip(run.offset, shifts.least, begin, strict=True)]
        tokens: View = (
            shape,
            (image, *map(mul, shifts.step, along), channels * channel, *map(mul, run.steps, along), channel),
            sum(map(mul, start, along)),
        )
        rows = images * prod(queries)
        between = [prod(queries[axis:]) for axis in range(len(queries) + 1)]  # images, queries
        heads = [prod(run.counts[axis + 1 :]) * channels for axis in range(len(run.counts))]
        row, column = (1, rows) if self.transposed else (self.depth, 1)
        columns: View = (
            shape,
            (*(n * row for n in between), rows * self.depth, *(n * column for n in heads), column),
            run.head * channels * column,
        )
        return columns, tokens

    def laid_out(
        self, x: Tensor, images: slice, plan: Im2colBlockPlan, columns: Tensor, window: Tensor, before: object
    ) -> Tensor:
        """The columns of one block of x (B, groups·C, *n): (groups, queries, heads·C).

        ``columns`` and ``window`` are buffers; ``before`` is the key of the zero padding that the previous block left.
        """
        x_offset = images.start * self.x_strides[0]
        if not self.in_place:
            read_window(x[images], plan.window, window, before)
            x, x_offset = window, 0
        for into, source in plan.copies:
            at(columns, into).copy_(at(x, source, x_offset))
        return at(window if self.window_is_columns else columns, plan.columns)


class Im2colForward(_Columns):
    """y[o] = b + Σ_h x[s·o + e_h] w_h."""

    def __init__(self, problem: Problem):
        super().__init__(problem)
        groups = problem.groups
        # Products are written directly into the output if it is a matrix.
        self.direct = problem.groups == 1 and (self.transposed or problem.y_layout == LAST)
        self.staging = 0 if self.direct else self.rows * problem.groups * problem.width
        large = self.rows * self.depth * problem.width >= constants.ONEDNN
        self.contiguous_weights = groups > 1 or (problem.onednn and large)
        weights = len(problem.heads) * problem.groups * problem.channels * problem.width  # a reordered copy
        new = self.rows * problem.width * problem.groups  # oneDNN's products, or those of groups
        self.workspace = bytes_of(problem.dtype, self.columns, self.window, self.staging, weights, new)

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """As :class:`~construct.execution.kernels.problem.Task`."""
        problem, onednn, direct = self.problem, self.problem.onednn, self.direct
        groups, width = problem.groups, problem.width
        # Transposed weights are copied for oneDNN and for groups; small products read them in place.
        matrix = stacked(second, self.heads, self.transposed and self.contiguous_weights)
        if self.transposed and not self.contiguous_weights:
            matrix = matrix.mT
        plain = type(first) is Tensor  # else outputs must have its type
        single_product = (
            plain and out is None and direct and self.single_block and not self.transposed and len(self.images) == 1
        )
        if out is None and not single_product:
            out = problem.new(first)
        if bias is not None:
            bias = bias.view(groups, width)
        with Workspace(second, self.columns, self.window, self.staging) as (columns, window, staging):
            zeros: object = None
            for images in self.images:
                y_offset = images.start * self.y_strides[0]
                for plan in self.plans[images.stop - images.start]:
                    rows = self.laid_out(first, images, plan, columns, window, zeros)
                    zeros = plan.window.zeros
                    if single_product:
                        return problem.as_images(products(rows, matrix, bias, None, onednn))
                    assert out is not None
                    if self.transposed:
                        result = products(matrix, rows.mT, None, at(out, plan.result, y_offset), onednn)
                        if bias is not None:
                            result += bias[..., None]
                    elif direct:
                        products(rows, matrix, bias, at(out, plan.result, y_offset), onednn)
                    else:
                        result = staging[: groups * plan.rows * width].view(groups, plan.rows, width)
                        products(rows, matrix, bias, result, onednn)
                        tokens = out[images].movedim(1, -1)[(slice(None), *plan.block.box)]
                        result = result.view(groups, -1, *plan.block.shape, width).movedim(0, -2)
                        tokens.unflatten(-1, (groups, width)).copy_(result)
        assert out is not None
        return out


class Im2colWeightGradient(_Columns):
    """w_h = Σ_o x[s·o + e_h]ᵀ y[o]."""

    def __init__(self, problem: Problem):
        super().__init__(problem)
        self.y_block = 0 if self.transposed or (problem.groups == 1 and problem.y_layout == LAST) else 1
        self.y_block *= self.rows * problem.groups * problem.width
        total = problem.groups * self.depth * problem.width
        turned = self.rows * (self.depth + problem.width) * problem.onednn  # oneDNN's reordered operands
        self.workspace = bytes_of(problem.dtype, self.columns, self.window, self.y_block, 2 * total, turned)

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """As :class:`~construct.execution.kernels.problem.Task`."""
        problem, groups, width = self.problem, self.problem.groups, self.problem.width
        out = problem.new(first)
        heads, depth = self.heads, self.depth
        ordered = groups == 1 and heads == tuple(range(len(heads)))
        total = out.view(1, depth, width) if ordered else out.new_empty(groups, depth, width)
        with Workspace(out, self.columns, self.window, self.y_block) as (columns, window, y_block):
            zeros, accumulate = None, False
            for images in self.images:
                y_offset = images.start * self.y_strides[0]
                for plan in self.plans[images.stop - images.start]:
                    rows = self.laid_out(first, images, plan, columns, window, zeros)
                    zeros = plan.window.zeros
                    if self.y_block:
                        y = y_block[: groups * plan.rows * width].view(groups, plan.rows, width)
                        tokens = second[images].movedim(1, -1)[(slice(None), *plan.block.box)]
                        tokens = tokens.unflatten(-1, (groups, width)).movedim(-2, 0)
                        y.view(groups, -1, *plan.block.shape, width).copy_(tokens)
                    else:
                        y = at(second, plan.result, y_offset)
                        y = y.mT if self.transposed else y
                    add_product(total, rows.mT, y, accumulate, problem.onednn)
                    accumulate = True
        if not ordered:
            matrices = total.view(groups, len(heads), problem.channels, width)
            for place, head in enumerate(heads):
                out[head].copy_(matrices[:, place])
        return out
