"""The kernel of 1 × 1 convolutions without a stride: one matrix product over the tokens, read in place.

For the gradient of the weights, oneDNN copies the tokens that it multiplies, so they are multiplied in blocks.
"""

from math import prod

from torch import Tensor

from construct.execution.kernels import constants
from construct.execution.kernels.blocks import pieces, queries_per_block
from construct.execution.kernels.gemm import add_product, product, products
from construct.execution.kernels.problem import ADJOINT, WEIGHTS, Problem, Task, at
from construct.execution.kernels.windows import FIRST, LAST
from construct.execution.kernels.workspace import bytes_of


def plan(problem: Problem) -> Task | None:
    """Plan 1 × 1 forwards and weight gradients on tokens in place, or in one small image; else None."""
    if problem.kind == ADJOINT or not problem.shifts.identity or problem.x_layout != problem.y_layout:
        return None
    if problem.groups * problem.channels == 1:
        return None
    if problem.x_layout == LAST:
        return Rows(problem)
    if problem.x_layout != FIRST:
        return None
    return None if prod(problem.shifts.size) < constants.FEW_QUERIES and problem.images > 1 else Images(problem)


class Rows:
    """Channels last: tokens are the rows of a matrix."""

    def __init__(self, problem: Problem):
        self.problem, groups = problem, problem.groups
        rows, channels, width = problem.images * prod(problem.shifts.size), problem.channels, problem.width
        self.x = (groups, rows, channels), (channels, groups * channels, 1), 0
        self.y = (groups, rows, width), (width, groups * width, 1), 0
        both = groups * channels * width
        result = both if problem.kind == WEIGHTS else rows * groups * width * (groups > 1)
        self.workspace = bytes_of(problem.dtype, result, rows * width, groups * rows * channels * (groups > 1))
        self.blocks = (slice(0, rows),)
        if problem.kind == WEIGHTS and groups == 1 and problem.onednn:
            self.blocks = pieces(rows, queries_per_block(problem.at_once // max(channels, width), problem.most))
            length = self.blocks[0].stop
            self.workspace = bytes_of(problem.dtype, 2 * both, length * (channels + width))

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """As :class:`~construct.execution.kernels.problem.Task`."""
        problem, groups, x = self.problem, self.problem.groups, at(first, self.x)
        if problem.kind == WEIGHTS:
            y, out = at(second, self.y), problem.new(second)
            for block in self.blocks:
                add_product(out[0], x[:, block].mT, y[:, block], block.start > 0, problem.onednn)
            return out
        matrix = second[problem.heads[0]]
        if groups == 1:
            return problem.as_images(product(x[0], matrix[0], bias, None, problem.onednn))
        out = problem.new(first)
        products(x, matrix, None if bias is None else bias.view(groups, -1), at(out, self.y), problem.onednn)
        return out


class Images:
    """Channels first: tokens are the columns of one matrix per image."""

    def __init__(self, problem: Problem):
        self.problem, groups = problem, problem.groups
        self.tokens = prod(problem.shifts.size)
        both = groups * problem.channels * problem.width
        # A small image, which is then a single one, is faster with its tokens as rows, transposed there and back.
        self.small = groups == 1 and self.tokens < constants.FEW_QUERIES and problem.kind != WEIGHTS
        large = self.tokens >= constants.MIN_QUERIES_TRANSPOSED and both * self.tokens >= constants.ONEDNN
        self.transposed_weight = groups == 1 and problem.onednn and large and problem.channels >= constants.MIN_TERMS
        result = both if problem.kind == WEIGHTS else groups * problem.width * self.tokens
        more = problem.channels * self.tokens + result if self.small else 0
        self.workspace = bytes_of(problem.dtype, result, more, both * (problem.kind != WEIGHTS))

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """As :class:`~construct.execution.kernels.problem.Task`."""
        problem, groups, width = self.problem, self.problem.groups, self.problem.width
        out, images = problem.new(first), problem.images
        x = first.view(images, groups, problem.channels, self.tokens)
        if problem.kind == WEIGHTS:
            y = second.view(images, groups, width, self.tokens)
            for number in range(images):
                add_product(out[0], x[number], y[number].mT, number > 0, problem.onednn)
            return out
        matrix, y = second[problem.heads[0]].mT, out.view(images, groups, width, self.tokens)
        if self.small:
            y[0, 0].copy_(product(x[0, 0].mT.contiguous(), matrix[0].mT, bias, None, problem.onednn).mT)
            return out
        if self.transposed_weight:
            matrix = matrix.contiguous()
        for tokens, result in zip(x, y, strict=True):
            products(matrix, tokens, None, result, onednn=self.transposed_weight)
            if bias is not None:
                result += bias.view(groups, -1, 1)
        return out
