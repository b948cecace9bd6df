"""im2col and GEMM: copy the tokens of all heads side by side into a workspace, then multiply, one block of queries at a time.

With channels last the columns are (queries, heads·C), and the stacked W_h (heads·C, D); with channels first everything is
transposed, (heads·C, queries), so that the product already has the output's layout.  The window of tokens that a block sees is
first copied with its zero padding, unless it lies inside the input; a run of heads is then one strided view of it.

BLAS can accumulate.  Where it multiplies, the axis that blocks are ranges of is not unrolled: the columns of the heads at its
first offset, copied for some more positions, also contain those of its other offsets, some rows later.  So a 3 × 3 kernel copies
every token three times instead of nine, and takes three products, one per *slab* of heads.  The gradient of the weights, layers
with groups, and products by oneDNN have one slab of all heads.
"""

from dataclasses import dataclass
from math import prod
from operator import mul

from torch import Tensor

from construct.execution.kernels import constants
from construct.execution.kernels.blocks import Block, blocks, pieces, queries_per_block
from construct.execution.kernels.gemm import add_product, products
from construct.execution.kernels.problem import ADJOINT, WEIGHTS, Problem, Task, at, stacked
from construct.execution.kernels.windows import FIRST, LAST, Box, Ints, Run, View, runs_of, strides_of
from construct.execution.kernels.workspace import Workspace, bytes_of


@dataclass(frozen=True)
class Im2colBlockPlan:
    """One block of queries, in some of the images.

    Attributes:
        block: the queries.
        rows: their number in all these images: rows of the product.
        column_rows: rows of the columns: the same number, or more if an axis is not unrolled.
        window: how many numbers their window of tokens has.
        inside: the part of the window that is input, not padding.
        source: where that part lies in the input.
        zeros: a key of the window's zero padding; None if it has none.
        copies: for each run, views of its columns and of its tokens, in the window or, if there is none, in the input.
        matrices: the columns of each slab, (groups, queries, heads·C).
        result: the product's view in an output without gaps, (groups, queries, D), or transposed.
    """

    block: Block
    rows: int
    column_rows: int
    window: int
    inside: View
    source: Box
    zeros: object
    copies: tuple[tuple[View, View], ...]
    matrices: tuple[View, ...]
    result: View


def plan(problem: Problem) -> Task | None:
    """Plan any forward or weight gradient; None for adjoints, which ``select`` splits into phases of the stride."""
    if problem.kind == ADJOINT:
        return None
    return Im2colWeightGradient(problem) if problem.kind == WEIGHTS else Im2colForward(problem)


class _Columns:
    """What both tasks share: the columns of a block.

    Attributes:
        axis: the axis that is not unrolled, or None.
        offsets: the slabs' offsets along it.
        slabs: the heads of each slab; one slab of all heads if every axis is unrolled.
        depth: columns of a slab in each group, heads·C.
        transposed: whether columns are (heads·C, queries), as x and y have channels first.
        window_is_columns: whether no columns are copied: one head per slab, and no stride.
    """

    def __init__(self, problem: Problem):
        self.problem, shifts = problem, problem.shifts
        groups, channels, output = problem.groups, problem.channels, shifts.output
        self.transposed = problem.x_layout == problem.y_layout == FIRST and prod(output) >= constants.FEW_QUERIES
        self.axis, parts = self._axis_and_blocks()
        along = self.axis or 0
        order = sorted(range(len(shifts.offsets)), key=lambda head: (shifts.offsets[head][along], shifts.offsets[head]))
        self.offsets = (0,) if self.axis is None else tuple(sorted({e[self.axis] for e in shifts.offsets}))
        size = len(order) // len(self.offsets)
        self.slabs = [tuple(problem.heads[head] for head in order[at : at + size]) for at in range(0, len(order), size)]
        self.depth = size * channels
        first = tuple(shifts.offsets[head] for head in order[:size])
        longest = max(max(run.counts) for run in runs_of(first, False))
        self.runs = runs_of(first, self.transposed or longest * groups * channels <= constants.RECTANGLE)
        ends = [s * (o - 1) + 1 for s, o in zip(shifts.step, output, strict=True)]
        self.in_place = problem.x_layout == (FIRST if self.transposed else LAST) and all(
            least >= 0 and least + reach + end <= size
            for least, reach, end, size in zip(shifts.least, shifts.reach, ends, shifts.size, strict=True)
        )
        self.window_is_columns = size == 1 and set(shifts.step) == {1} and not self.in_place
        self.x_strides = strides_of(problem.x_layout, groups * channels, shifts.size)
        self.y_strides = strides_of(problem.y_layout, groups * problem.width, output)
        images = 1 if self.transposed or len(parts) > 1 or self.axis is not None else self._queries(1) // prod(output)
        self.images = pieces(problem.images, max(1, images))
        counts = sorted({part.stop - part.start for part in self.images})
        self.plans = {count: [self._block_plan(block, count) for block in parts] for count in counts}
        every = [plan for plans in self.plans.values() for plan in plans]
        self.rows = max(plan.rows for plan in every)
        self.columns = 0 if self.window_is_columns else max(plan.column_rows for plan in every) * groups * self.depth
        self.window = 0 if self.in_place else max(plan.window for plan in every)
        self.single_block = len(every) == 1

    def _queries(self, slabs: int, more: int = 0) -> int:
        """Queries per block, if the columns hold one of ``slabs`` slabs, for ``more`` queries more."""
        depth = len(self.problem.heads) // slabs * self.problem.channels
        fitting = self.problem.at_once // (self.problem.groups * depth) - more
        return queries_per_block(max(constants.QUERIES, fitting), self.problem.most)

    def _axis_and_blocks(self) -> tuple[int | None, tuple[Block, ...]]:
        """The axis that is not unrolled, or None if that pays off for none, and the blocks, which are ranges of it.

        It needs one group, no stride along the axis, and heads that are all pairs of an offset along it and one along the
        others.  It pays off if a third of the columns is saved, and enough of them to make up for more calls, and if a product
        is large enough to read the outputs once more.
        """
        problem, shifts = self.problem, self.problem.shifts
        every = {*shifts.offsets}
        added = problem.kind != WEIGHTS and problem.groups == 1 and not problem.onednn
        for axis, step in enumerate(shifts.step if added else ()):
            slabs, others = len({e[axis] for e in every}), {e[:axis] + e[axis + 1 :] for e in every}
            if step > 1 or slabs == 1 or not slabs * len(others) == len(every) == len(problem.heads):
                continue
            line = prod(shifts.output[axis:])
            queries = self._queries(slabs, shifts.reach[axis] * prod(shifts.output[axis + 1 :]))
            parts = blocks(shifts.output, min(queries, max(constants.QUERIES, line)))
            length = parts[0].shape[axis]
            third = prod(parts[0].shape[:axis]) == 1 and 3 * (length + shifts.reach[axis]) <= 2 * slabs * length
            # Tokens that are not copied for each of the other offsets.
            tokens = prod(shifts.output) * (slabs - 1 - shifts.reach[axis] / shifts.output[axis])
            saved = third and tokens * len(others) * problem.channels >= constants.MIN_SAVED
            large = problem.images == 1 or prod(shifts.output) >= constants.QUERIES  # a block then holds one image only
            if saved and large and len(others) * problem.channels >= max(constants.MIN_SLAB_TERMS, problem.width // 2):
                return axis, parts
        return None, blocks(shifts.output, self._queries(1))

    def _block_plan(self, block: Block, images: int) -> Im2colBlockPlan:
        problem, shifts, channels = self.problem, self.problem.shifts, self.problem.channels
        every, queries, rows = problem.groups * channels, prod(block.shape), images * prod(block.shape)
        lines = tuple(n + shifts.reach[axis] * (axis == self.axis) for axis, n in enumerate(block.shape))
        column_rows = images * prod(lines)
        starts, lengths, clips = shifts.window(block.box)
        real = tuple(high - low for low, high in clips)
        own = strides_of(FIRST if self.transposed else LAST, every, lengths)
        inside: View = ((images, *real, every), own, sum(low * n for (low, _), n in zip(clips, own[1:], strict=False)))
        source = tuple(slice(at + low, at + high) for at, (low, high) in zip(starts, clips, strict=True))
        begin = starts if self.in_place else (0,) * len(starts)
        copies = [self._copy(run, lines, images, begin, own) for run in self.runs]
        depth, along = self.depth, every if self.window_is_columns else self.depth
        between = channels * own[-1] if self.window_is_columns else column_rows * depth  # between groups
        strides = (between, *((1, column_rows) if self.transposed else (along, 1)))
        later = 0 if self.axis is None else strides[1] * prod(lines[self.axis + 1 :])
        matrices: list[View] = [
            ((problem.groups, rows, depth), strides, (e - self.offsets[0]) * later) for e in self.offsets
        ]
        width, y = problem.width, self.y_strides
        result = (problem.groups, width, queries) if self.transposed else (problem.groups, rows, width)
        order = (y[-1], y[-2]) if self.transposed else (y[-2], y[-1])
        return Im2colBlockPlan(
            block,
            rows,
            column_rows,
            images * every * prod(lengths),
            inside,
            source,
            (lengths, clips) if real != lengths else None,
            () if self.window_is_columns else tuple(copies),
            tuple(matrices),
            (result, (width * y[-1], *order), block.first * y[-2]),
        )

    def _copy(self, run: Run, queries: Ints, images: int, begin: Ints, own: Ints) -> tuple[View, View]:
        """Views of a run's columns and of its tokens: (images, *queries, groups, *heads, C)."""
        shifts, channels, groups = self.problem.shifts, self.problem.channels, self.problem.groups
        image, *along, channel = self.x_strides if self.in_place else own
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
    ) -> list[Tensor]:
        """The columns of one block of x (B, groups·C, *n) for each slab: (groups, queries, heads·C).

        ``columns`` and ``window`` are buffers; ``before`` is the key of the zero padding that the previous block left.
        """
        x_offset = images.start * self.x_strides[0]
        if not self.in_place:
            if plan.zeros is not None and plan.zeros != before:
                window[: plan.window].zero_()
            at(window, plan.inside).copy_(x[images].movedim(1, -1)[(slice(None), *plan.source)])
            x, x_offset = window, 0
        for into, source in plan.copies:
            at(columns, into).copy_(at(x, source, x_offset))
        return [at(window if self.window_is_columns else columns, matrix) for matrix in plan.matrices]


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
        matrices = [stacked(second, heads, self.transposed and self.contiguous_weights) for heads in self.slabs]
        if self.transposed and not self.contiguous_weights:
            matrices = [matrix.mT for matrix in matrices]
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
                    zeros = plan.zeros
                    if single_product:
                        return problem.as_images(products(rows, matrices, bias, None, onednn))
                    assert out is not None
                    if self.transposed:
                        result = products(
                            matrices, [part.mT for part in rows], None, at(out, plan.result, y_offset), onednn
                        )
                        if bias is not None:
                            result += bias[..., None]
                    elif direct:
                        products(rows, matrices, bias, at(out, plan.result, y_offset), onednn)
                    else:
                        result = staging[: groups * plan.rows * width].view(groups, plan.rows, width)
                        products(rows, matrices, bias, result, onednn)
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
        (heads,), depth = self.slabs, self.depth
        ordered = groups == 1 and heads == tuple(range(len(heads)))
        total = out.view(1, depth, width) if ordered else out.new_empty(groups, depth, width)
        with Workspace(out, self.columns, self.window, self.y_block) as (columns, window, y_block):
            zeros, accumulate = None, False
            for images in self.images:
                y_offset = images.start * self.y_strides[0]
                for plan in self.plans[images.stop - images.start]:
                    (rows,) = self.laid_out(first, images, plan, columns, window, zeros)
                    zeros = plan.zeros
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
