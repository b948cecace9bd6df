"""A single head that sees its own token: one matrix product."""

from math import prod

import torch
from torch import Tensor

from construct.execution import products
from construct.execution.layout import BLOCK, Ints, Shifts, pieces

AT_ONCE = 2**13
"""Where tokens of a single head have to be copied, this many numbers at a time, or a row."""
BETWEEN = 2**18
"""Where outputs come between others, as those of a transposed layer do, they are computed apart: this many numbers at a time."""

SHORT, TOKENS = 64, 512
"""An image of fewer tokens than the first number is a matrix of short rows; about so many tokens as the second are copied at a
time."""


def stands(shifts: Shifts) -> bool:
    """Whether a single head sees the input as it stands: no shift, no stride."""
    return shifts.offsets == ((0,) * len(shifts.step),) and set(shifts.step) == {1} and shifts.output == shifts.size


def lies_as_images(x: Tensor, out: Tensor, w: Tensor, shifts: Shifts) -> bool:
    """Whether a single head sees the input as it stands, and tokens (B, *n, C) and outputs lie as :func:`in_images` wants."""
    if not (stands(shifts) and x.dtype == out.dtype == w.dtype):
        return False
    return x.movedim(-1, 1).is_contiguous() and out.movedim(-1, 1).is_contiguous()


def weights(x: Tensor, y: Tensor) -> Tensor:
    """Xᵀ Y, the gradient of the matrix, image by image as they lie: x (B, *n, C), y (B, *n, D) → (C, D)."""
    if x.is_contiguous() and y.is_contiguous():
        return products.turned(x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1]))
    total = x.new_empty(x.shape[-1], y.shape[-1])
    for number, (seen, pulled) in enumerate(zip(x, y, strict=True)):
        rows, columns = seen.flatten(0, -2), pulled.flatten(0, -2)
        if number:
            total.addmm_(rows.mT, columns)
        else:
            torch.mm(rows.mT, columns, out=total)
    return total


def of_tokens(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """The product as tokens lie, channels last: x (B, *n, C), contiguous, matrix (C, D), bias (1, D) → (B, *n, D)."""
    flat = x.view(-1, len(matrix))
    if bias is None or (products.heavy(len(flat), *matrix.shape) and products.quick(matrix)):
        return products.times(flat, matrix, bias).view(*x.shape[:-1], -1)
    out = x.new_empty(*x.shape[:-1], matrix.shape[1])
    in_tokens(x, matrix, out, bias)
    return out


def in_tokens(x: Tensor, matrix: Tensor, out: Tensor, bias: Tensor | None) -> None:
    """As :func:`of_tokens`, into ``out``, contiguous.  A bias is added to some rows at a time, while a core's cache holds them."""
    flat, result = x.view(-1, len(matrix)), out.view(-1, matrix.shape[1])
    if bias is None or products.worth_a_copy(flat, matrix):
        products.times_into(flat, matrix, bias, result)
        return
    for part in pieces(len(flat), max(1, BLOCK // sum(matrix.shape))):
        torch.mm(flat[part], matrix, out=result[part])
        result[part] += bias


def of_image(x: Tensor, matrix: Tensor, image: Ints, bias: Tensor | None) -> Tensor:
    """As :func:`in_images` for a single image, in as few steps as there can be: x (1, C, *n) → ``image``, (1, D, *n)."""
    seen = x.view(len(matrix), -1)
    if seen.shape[1] < SHORT:
        tokens = seen.mT.contiguous()
        found = torch.mm(tokens, matrix) if bias is None else torch.addmm(bias, tokens, matrix)
        return found.mT.contiguous().view(image)
    found = torch.mm(matrix.mT, seen) if bias is None else torch.addmm(bias.mT, matrix.mT, seen)
    return found.view(image)


def in_images(x: Tensor, matrix: Tensor, out: Tensor, bias: Tensor | None) -> Tensor:
    """The product as images lie, channels as rows: x (B, C, *n), matrix (C, D), out (B, D, *n), all contiguous; bias (1, D).

    Of a few tokens an image, tokens as rows are quicker, those of several images below each other, there and back.

    Returns:
        ``out``.
    """
    if not out.numel():
        return out
    channels, width = matrix.shape
    flat, result = x.view(len(x), channels, -1), out.view(len(x), width, -1)
    tokens = flat.shape[2]
    if tokens < SHORT:
        for part in pieces(len(x), images_at_once(tokens)):
            _short(flat[part], matrix, result[part], bias)
        return out
    turned = matrix.mT
    for seen, found in zip(flat.unbind(), result.unbind(), strict=True):
        if bias is None:
            torch.mm(turned, seen, out=found)
        else:
            torch.addmm(bias.mT, turned, seen, out=found)
    return out


def _short(flat: Tensor, matrix: Tensor, result: Tensor, bias: Tensor | None) -> None:
    """Some images; what this takes beside its arguments is gone when the next begin."""
    seen = flat.mT.reshape(-1, len(matrix))
    found = torch.mm(seen, matrix) if bias is None else torch.addmm(bias, seen, matrix)
    result.copy_(found.view(len(flat), -1, matrix.shape[1]).mT)


def images_at_once(tokens: int) -> int:
    """Images of so few tokens that are copied at a time."""
    return max(1, TOKENS // max(1, tokens))


def pointwise(x: Tensor, w: Tensor, shifts: Shifts, out: Tensor, bias: Tensor | None) -> None:
    """One product over the tokens of an image, channels as rows; if they do not lie so, of a few rows of the image."""
    groups, channels, width = w.shape
    for seen, image in zip(x, out.movedim((-2, -1), (1, 2)), strict=True):
        if direct(seen.movedim((-2, -1), (0, 1)), image, w.dtype):
            parts = [slice(None)]
        else:
            between = not image.is_contiguous()
            parts = pieces(len(seen), rows_at_once(shifts, groups, channels, width, seen.dtype != w.dtype, between))
        for part in parts:
            _product(seen[part], w, image[:, :, part], bias)


def _product(seen: Tensor, w: Tensor, here: Tensor, bias: Tensor | None) -> None:
    """A block of rows; what it takes beside its arguments is gone when the next begins."""
    groups, channels, width = w.shape
    rows = seen.to(w.dtype).movedim((-2, -1), (0, 1)).reshape(groups, channels, -1)
    there = here.is_contiguous() and here.dtype == w.dtype
    y = here.view(groups, width, -1) if there else w.new_empty(groups, width, rows.shape[2])
    if groups == 1:
        torch.mm(w[0].mT, rows[0], out=y[0])
    else:
        torch.bmm(w.mT, rows, out=y)
    if bias is not None:
        y += bias[..., None]
    if not there:
        here.copy_(y.view(here.shape))


def direct(seen: Tensor, image: Tensor, dtype: torch.dtype) -> bool:
    """Whether nothing needs a copy."""
    return seen.is_contiguous() and image.is_contiguous() and seen.dtype == image.dtype == dtype


def rows_at_once(shifts: Shifts, groups: int, channels: int, width: int, cast: bool, between: bool) -> int:
    """Rows along the first axis that are copied at a time, where that is needed."""
    if cast:
        return shifts.output[0]
    return max(1, (BETWEEN if between else AT_ONCE) // (prod(shifts.output[1:]) * groups * (channels + width)))


def finish(found: Tensor, bias: Tensor | None, target: Tensor) -> None:
    """Add the bias (groups, D) on the way to the outputs (images, *queries, groups, D); ``found`` is not needed any more."""
    if bias is None:
        target.copy_(found)
        return
    bias = bias.expand(found.shape[-3:]).contiguous()  # a row of queries, for long inner loops
    if target.dtype == found.dtype:
        torch.add(found, bias, out=target)
    else:
        target.copy_(found.add_(bias))
