"""One-hot heads in plain operations of any device, for compilers, exports, transforms of
``torch.func`` and forward mode.

All start from the padded tokens.  Where derivatives may be taken, each head's tokens are a slice;
in exports one index gathers the tokens of all heads, so that a program is as long for one head as
for a thousand.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from construct.execution.shifts.windows import Ints
from construct.execution.transforms import sizes_as_numbers


def sliced(
    tokens: Tensor,
    w: Tensor,
    bias: Tensor,
    starts: Sequence[Ints],
    step: Ints,
    output: Sequence[Any],
) -> Tensor:
    """b + Σ_h X_h W_h: tokens (B, g·C, *tokens), w (heads, g, C, D), bias (g·D,) → (B, g·D, *output).

    ``starts`` holds, for each head, the token that output 0 sees, as one position per axis; from
    output to output it is ``step`` tokens further.
    """
    views = [_head_view(tokens, start, step, output) for start in starts]
    with sizes_as_numbers():
        channels, width = w.shape[2:]
    if channels == width == 1:  # which a compiler fuses into one loop
        ones = (1,) * len(step)
        products = (
            view * matrix.reshape(-1, *ones) for view, matrix in zip(views, w.unbind(), strict=True)
        )
        return sum(products, start=bias.view(-1, *ones))
    return product(torch.stack(views, 2), w, bias)


def gathered(
    tokens: Tensor,
    w: Tensor,
    bias: Tensor,
    starts: Sequence[Ints],
    step: Ints,
    output: Sequence[Any],
) -> Tensor:
    """As :func:`sliced`."""
    if not any(map(any, starts)) and len(starts) == 1 and [*output] == [*tokens.shape[2:]]:
        return product(tokens.unsqueeze(2), w, bias)
    numbers = []
    dims = len(step)
    for axis, (stride, count) in enumerate(zip(step, output, strict=True)):
        first = torch.tensor([start[axis] for start in starts], device=tokens.device)
        queries = stride * torch.arange(count, device=tokens.device)
        ones = (1,) * (dims - 1 - axis)
        numbers.append(first.view(-1, *(1,) * dims) + queries.view(-1, *ones))
    return product(tokens[(..., *numbers)], w, bias)


def product(columns: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """b + Σ_h X_h W_h, from the tokens of all heads side by side, (B, g·C, heads, *o), w
    (heads, g, C, D) → (B, g·D, *o).
    """
    with sizes_as_numbers():
        groups = w.shape[1]
    rows = columns.flatten(1, 2).flatten(2).unflatten(1, (groups, -1))  # (B, g, C·heads, queries)
    y = torch.matmul(w.permute(1, 3, 2, 0).flatten(2), rows).flatten(1, 2)
    return (y + bias[:, None]).unflatten(2, columns.shape[3:])


def _head_view(tokens: Tensor, start: Ints, step: Ints, output: Sequence[Any]) -> Tensor:
    """The tokens start, start + step, … of a head: (B, C, *tokens) → (B, C, *output)."""
    for axis, (first, stride, count) in enumerate(zip(start, step, output, strict=True), start=2):
        tokens = tokens.narrow(axis, first, stride * (count - 1) + 1)
        if stride > 1:
            tokens = tokens[
                (..., slice(None, None, stride), *(slice(None),) * (tokens.dim() - axis - 1))
            ]
    return tokens
