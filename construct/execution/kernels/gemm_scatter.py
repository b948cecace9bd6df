"""The kernel for few output channels: one GEMM with the matrices of all heads, then col2im.

    x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] w_hᵀ

No tokens are copied side by side, and the weights are read in place; the products take one number per query, head and channel of
x.  So this is fast if x has few channels, where a product with few columns would be slow, or if weights outnumber tokens, where
transposing the weights would be.  A forward without a stride is the same with x and y exchanged.  With a stride, each of its
phases is summed separately, so that the tokens of a head are adjacent, and then copied into place.
"""

from collections.abc import Iterator
from math import prod
from operator import mul

from torch import Tensor

from construct.execution.kernels import constants
from construct.execution.kernels.blocks import Block, blocks, queries_per_block
from construct.execution.kernels.byte_cache import bounded_cache
from construct.execution.kernels.gemm import product
from construct.execution.kernels.problem import ADJOINT, FORWARD, WEIGHTS, Problem, Task, at, stacked
from construct.execution.kernels.windows import FIRST, LAST, Box, Ints, Shifts, View, clip, phases, strides_of
from construct.execution.kernels.workspace import Workspace, bytes_of


def plan(problem: Problem) -> Task | None:
    """Plan one group of channels and at least two heads, if estimated to be faster than im2col; else None."""
    shifts, kind, heads = problem.shifts, problem.kind, len(problem.shifts.offsets)
    if kind == WEIGHTS or problem.groups > 1 or heads < 2 or (kind == FORWARD and max(shifts.step) > 1):
        return None
    read, written = problem.width, problem.channels  # channels read and channels written
    if kind == FORWARD:
        read, written = written, read
    if problem.at_once // (heads * written) < constants.FEW_QUERIES:
        return None  # blocks of few queries, each with an addition per head
    # The product of a token with all heads has heads·written columns; few columns are slow by themselves.
    tokens = prod(shifts.size if kind == FORWARD else shifts.output)
    scatter_time = heads * problem.images * max(tokens * written * constants.SCATTER_NS, constants.SUM_NS)
    column_ns = constants.COPY_NS + constants.NARROW_PRODUCT_NS / written
    columns_time = heads * problem.images * prod(shifts.output) * read * column_ns
    if kind == ADJOINT:
        columns_time += heads * written * read * constants.TRANSPOSE_NS
    return Scattered(problem) if scatter_time < columns_time else None


Sum = tuple[View, View]
"""One head's sum: views of its products for the queries that see a token, and of these tokens, (*axes, C)."""


class Scattered:
    """The sum in the module's docstring; for a forward, with x and y exchanged and offsets negated."""

    def __init__(self, problem: Problem):
        self.problem = problem
        if problem.kind == FORWARD:
            self.shifts, self.channels, self.width = problem.shifts.flipped(), problem.width, problem.channels
            self.given, wanted = problem.x_layout, problem.y_layout
        else:
            self.shifts, self.channels, self.width = problem.shifts, problem.channels, problem.width
            self.given, wanted = problem.y_layout, problem.x_layout
        shifts, channels, heads = self.shifts, self.channels, len(self.shifts.offsets)
        layout = LAST if wanted == LAST and channels >= constants.MIN_CHANNELS_LAST else FIRST
        self.rows = layout == LAST  # products (queries, heads·C), else transposed
        self.direct = max(shifts.step) == 1 and wanted == layout
        self.between = prod(shifts.size) * channels  # stride between images
        self.planes = _planes(shifts, layout, channels)
        queries = queries_per_block(problem.at_once // (heads * channels), problem.most)
        self.blocks = _blocks(shifts, layout, channels, queries)
        most = max(prod(block.shape) for block, _ in self.blocks)
        self.products = most * heads * channels
        self.image = 0 if self.direct else self.between
        matrix = heads * channels * self.width
        new = self.products + 2 * most * self.width  # oneDNN's product, and tokens in another type or order
        self.workspace = bytes_of(problem.dtype, self.products, self.image, matrix, new)

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """As :class:`~construct.execution.kernels.problem.Task`."""
        out = self.problem.new(first) if out is None else out
        w = second.mT if self.problem.kind == FORWARD else second
        matrix = stacked(w, self.problem.heads)[0]  # (heads·C, D)
        with Workspace(second, self.products, self.image) as (buffer, image):
            for number, (y, target) in enumerate(zip(first, out, strict=True)):
                sums, start = (out, number * self.between) if self.direct else (image, 0)
                for _, plane in self.planes.values():
                    whole = at(sums, plane, start)
                    whole.zero_() if bias is None else whole.copy_(bias)
                for block, parts in self.blocks:
                    rows = prod(block.shape)
                    tokens, products = self._tokens(y, block, second), buffer[: rows * len(matrix)]
                    if self.rows:
                        product(tokens, matrix.mT, None, products.view(rows, -1), self.problem.onednn)
                    else:
                        product(matrix, tokens.mT, None, products.view(-1, rows), self.problem.onednn)
                    for query_view, token_view in parts:
                        at(sums, token_view, start).add_(at(products, query_view))
                if not self.direct:
                    for places, plane in self.planes.values():
                        target.movedim(0, -1)[places].copy_(at(image, plane))
        return out

    def _tokens(self, y: Tensor, block: Block, like: Tensor) -> Tensor:
        """A block's queries (queries, D) in the type to compute in; a view, maybe transposed, if the layout allows it."""
        if self.given == FIRST:
            return y.view(self.width, -1)[:, block.flat].mT
        if self.given == LAST:
            return y.movedim(0, -1).view(-1, self.width)[block.flat]
        return y.movedim(0, -1)[block.box].to(like.dtype).reshape(-1, self.width)


@bounded_cache
def _planes(shifts: Shifts, layout: str, channels: int) -> dict[Ints, tuple[Box, View]]:
    """For each phase of the stride: its tokens, and their view in a buffer of all phases, (*axes, C)."""
    planes, first = {}, 0
    for phase, (places, size) in phases(shifts.step, shifts.size).items():
        planes[phase] = places, ((*size, channels), strides_of(layout, channels, size)[1:], first)
        first += prod(size) * channels
    return planes


@bounded_cache
def _blocks(shifts: Shifts, layout: str, channels: int, queries: int) -> tuple[tuple[Block, tuple[Sum, ...]], ...]:
    """The blocks of at most ``queries`` queries, each with its heads' sums; heads that see nothing are left out."""
    return tuple((block, tuple(_sums(shifts, layout, channels, block))) for block in blocks(shifts.output, queries))


def _sums(shifts: Shifts, layout: str, channels: int, block: Block) -> Iterator[Sum]:
    planes, heads = _planes(shifts, layout, channels), len(shifts.offsets)
    rows = strides_of(layout, heads * channels, block.shape)[1:]  # strides of the products, (*queries, heads·C)
    for head, offset in enumerate(shifts.offsets):
        lows, counts, tokens = [], [], []
        for e, step, box, size in zip(offset, shifts.step, block.box, shifts.size, strict=True):
            low, high = clip(step * box.start + e, step, box.stop - box.start, size)
            lows.append(low)
            counts.append(high - low)
            tokens.append(box.start + low + e // step)  # the first token's number in its phase
        if all(counts):
            shape = (*counts, channels)
            _, (_, strides, first) = planes[tuple(e % step for e, step in zip(offset, shifts.step, strict=True))]
            queries: View = shape, rows, sum(map(mul, (*lows, head * channels), rows))
            yield queries, (shape, strides, first + sum(map(mul, tokens, strides)))
