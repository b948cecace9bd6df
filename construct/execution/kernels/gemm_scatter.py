"""The kernel of few output channels: one GEMM with the matrices of all heads, then col2im.

    x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] w_hᵀ

Nothing is copied side by side, and the weights are read as they lie; what is made is as much as there are heads and channels of x.
So this is the quick way where x has few channels, for which a product with few columns would be slow, and where weights outnumber
tokens, for which turning the weights would be.  A forward without a stride is the same with x and y exchanged.  With a stride,
sums are made for each of its phases apart, where tokens that one head sees lie side by side, and then put where they belong.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from torch import Tensor

from construct.execution.kernels import constants
from construct.execution.kernels.blocks import Block, blocks
from construct.execution.kernels.gemm import product
from construct.execution.kernels.problem import ADJOINT, FORWARD, WEIGHTS, Problem, Task, stacked
from construct.execution.kernels.windows import FIRST, LAST, Box, Ints, Shifts, clip, phases
from construct.execution.kernels.workspace import Workspace, bytes_of


class GemmScatter:
    """The kernel for outputs of few channels, and for the adjoint of few tokens."""

    name = "gemm_scatter"

    def plan(self, problem: Problem) -> Task | None:
        """A task for one group of channels and at least two heads, if fewer numbers are moved here than by im2col."""
        shifts, kind, heads = problem.shifts, problem.kind, len(problem.shifts.offsets)
        if kind == WEIGHTS or problem.groups > 1 or heads < 2 or (kind == FORWARD and max(shifts.step) > 1):
            return None
        read, written = problem.width, problem.channels  # channels of what is read, and of what is written
        if kind == FORWARD:
            read, written = written, read
        if constants.PRODUCTS // (heads * written) < constants.SHORT:
            return None  # blocks of few queries, and an addition for each head of each of them
        # The product of a token with all heads has heads·written columns; few columns are slow by themselves.
        tokens = problem.images * prod(shifts.size if kind == FORWARD else shifts.output)
        scatter_time = heads * tokens * written * constants.SCATTER
        columns_time = heads * problem.images * prod(shifts.output) * read * (constants.COPY + constants.FEW / written)
        if kind == ADJOINT:
            columns_time += heads * written * read * constants.TRANSPOSE
        return Scattered(problem) if scatter_time < columns_time else None


@dataclass(frozen=True)
class Part:
    """What one head adds of a block: its number, the queries that see a token, and these tokens, a phase and which of it."""

    head: int
    queries: Box
    phase: Ints
    tokens: Box


class Scattered:
    """The sum above; of a forward, with x and y exchanged and offsets turned round."""

    def __init__(self, problem: Problem):
        self.problem = problem
        if problem.kind == FORWARD:
            self.shifts, self.channels, self.width = problem.shifts.flipped(), problem.width, problem.channels
            layouts = problem.x_layout, problem.y_layout
        else:
            self.shifts, self.channels, self.width = problem.shifts, problem.channels, problem.width
            layouts = problem.y_layout, problem.x_layout
        self.given, wanted = layouts
        self.rows = wanted == LAST and self.channels >= constants.ROWS  # products (queries, heads·C), else turned
        self.direct = max(self.shifts.step) == 1 and wanted == (LAST if self.rows else FIRST)
        self.phases = phases(self.shifts.step, self.shifts.size)
        heads = len(self.shifts.offsets)
        queries = problem.block(max(1, constants.PRODUCTS // (heads * self.channels)))
        self.blocks = _parted(self.shifts, queries)
        self.most = max(prod(block.shape) for block, _ in self.blocks)
        self.products = self.most * heads * self.channels
        self.image = 0 if self.direct else prod(self.shifts.size) * self.channels
        matrix = heads * self.channels * self.width
        new = self.products + 2 * self.most * self.width  # oneDNN's product, and tokens in another type or order
        self.workspace = bytes_of(problem.dtype, self.products, self.image, matrix, new)

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """As :class:`~construct.execution.kernels.problem.Task`."""
        out = self.problem.new(first) if out is None else out
        heads, channels = len(self.shifts.offsets), self.channels
        w = second.mT if self.problem.kind == FORWARD else second
        matrix = stacked(w, self.problem.heads)[0]  # (heads·C, D)
        with Workspace(second, self.products, self.image) as (buffer, image):
            planes = {} if self.direct else self._planes(image)
            every = () if self.rows else (slice(None),)
            for y, target in zip(first, out, strict=True):
                if self.rows:
                    target = target.movedim(0, -1)
                if self.direct:
                    ((phase, _),) = self.phases.items()
                    planes = {phase: target}
                for plane in planes.values():
                    if bias is None:
                        plane.zero_()
                    else:
                        plane.copy_(bias if self.rows else bias.view(-1, *(1,) * (plane.dim() - 1)))
                for block, parts in self.blocks:
                    rows = prod(block.shape)
                    tokens = self._tokens(y, block, second)  # (queries, D)
                    flat = buffer[: rows * heads * channels]
                    if self.rows:
                        product(tokens, matrix.mT, None, flat.view(rows, -1), self.problem.onednn)
                        products = flat.view(*block.shape, heads, channels).movedim(-2, 0)
                    else:
                        product(matrix, tokens.mT, None, flat.view(-1, rows), self.problem.onednn)
                        products = flat.view(heads, channels, *block.shape)
                    for part in parts:
                        planes[part.phase][every + part.tokens] += products[part.head][every + part.queries]
                if not self.direct:
                    for phase, (tokens, _) in self.phases.items():
                        target[every + tokens].copy_(planes[phase])
        return out

    def _planes(self, image: Tensor) -> dict[Ints, Tensor]:
        """The sums of one image in a buffer, a phase each: (*tokens, C), or turned."""
        planes, first = {}, 0
        for phase, (_, size) in self.phases.items():
            shape = (*size, self.channels) if self.rows else (self.channels, *size)
            planes[phase] = image[first : first + prod(shape)].view(shape)
            first += prod(shape)
        return planes

    def _tokens(self, y: Tensor, block: Block, like: Tensor) -> Tensor:
        """The queries of a block (queries, D), in the type to compute in: a view where they lie so, or turned."""
        if self.given == FIRST:
            return y.view(self.width, -1)[:, block.flat].mT
        if self.given == LAST:
            return y.movedim(0, -1).view(-1, self.width)[block.flat]
        return y.movedim(0, -1)[block.box].to(like.dtype).reshape(-1, self.width)


@lru_cache(maxsize=256)
def _parted(shifts: Shifts, queries: int) -> tuple[tuple[Block, tuple[Part, ...]], ...]:
    """The blocks of so many queries and their parts; the same for every layout of images, of which planning goes through nine."""
    return tuple((block, parts_of(shifts, block)) for block in blocks(shifts.output, queries))


def parts_of(shifts: Shifts, block: Block) -> tuple[Part, ...]:
    """What every head adds of a block; those that see nothing are left out."""
    parts = []
    for head, offset in enumerate(shifts.offsets):
        queries, tokens = [], []
        for e, step, box, size in zip(offset, shifts.step, block.box, shifts.size, strict=True):
            low, high = clip(step * box.start + e, step, box.stop - box.start, size)
            queries.append(slice(low, high))
            first = box.start + e // step  # of the tokens of this phase
            tokens.append(slice(first + low, first + high))
        if all(part.start < part.stop for part in queries):
            phase = tuple(e % step for e, step in zip(offset, shifts.step, strict=True))
            parts.append(Part(head, tuple(queries), phase, tuple(tokens)))
    return tuple(parts)
