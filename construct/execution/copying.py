"""A layer whose heads are all shifts, with nothing to be recorded: what a call does, worked out once for inputs that lie alike.

Outputs are written as they are to lie in memory, as the input does: channels last or first.
"""

from collections.abc import Callable

from torch import Tensor

from construct.execution import shifted, simple
from construct.execution.depthwise import way_by_channel
from construct.execution.layout import Shifts
from construct.execution.plan import Plan, Sight, tokens_of
from construct.execution.recall import Work
from construct.tokens import TokenGrid

Bias = Callable[[], Tensor | None]
"""Asked in every call."""


def work_for(x: Tensor, grid: TokenGrid, plan: Plan, w: Tensor, b_out: Tensor) -> Work:
    """What is to be done.

    Args:
        x: (B, D_in, *n).
        grid: of the call.
        plan: no head of it is soft.
        w: W_h of its heads, (heads, groups, C, D), in the dtype to compute in.
        b_out: (D_out,).

    Returns:
        x → (B, D_out, *o) in the layer's type, laid out as the input is, for inputs of this shape, strides and type.  Of
        contiguous weights it holds views and no copies: it goes by what they are when it is called.
    """
    _, groups, _, width = w.shape
    w, b_out = w.detach(), b_out.detach()  # views of these are none of the parameters, which can then be exchanged
    bias = unless_zero(b_out.to(w.dtype).view(groups, width))
    sight, tokens = Sight.of(grid, plan, x.shape[2:]), (len(x), *grid.query_shape, groups * width)
    if not (sight.padded or sight.stuffed) and len(w) and 0 not in tokens:
        if groups == 1:
            return _of_images(x, w, sight.shifts, tokens, bias)
        if w.shape[2] == width == 1:
            return _by_channel(x, w, sight.shifts, tokens, bias)
    new = _outputs(x, tokens)

    def work(x: Tensor) -> Tensor:
        image = new(x)
        seen, out = sight.tokens(x, grid, groups), tokens_of(image, groups)
        if sight.stuffed:
            shifted.adjoint(seen, w.mT, sight.shifts, out, bias())
        else:
            shifted.forward(seen, w, sight.shifts, out, bias())
        return image

    return work


def _of_images(x: Tensor, w: Tensor, shifts: Shifts, tokens: tuple[int, ...], bias: Bias) -> Work:
    """One group, which sees the input as it lies."""
    new, to_tokens, to_image = _outputs(x, tokens), (0, *range(2, x.dim()), 1), _to_image(x.dim())
    if simple.stands(shifts) and x.dtype == w.dtype:
        matrix = w.reshape(w.shape[2:])
        if not _last(x) and x.is_contiguous():
            if len(x) == 1:
                image = tuple(tokens[axis] for axis in to_image)
                return lambda x: simple.of_image(x, matrix, image, bias())
            return lambda x: simple.in_images(x, matrix, new(x), bias())
        if x.permute(to_tokens).is_contiguous():
            return lambda x: simple.of_tokens(x.permute(to_tokens), matrix, bias()).permute(to_image)
    if _last(x) and (at_once := shifted.at_once(x.permute(to_tokens), w, shifts)) is not None:
        return lambda x: at_once(x.permute(to_tokens), bias()).view(tokens).permute(to_image)
    way = shifted.way_alone(x.permute(to_tokens), w, shifts, new(x).permute(to_tokens))

    def work(x: Tensor) -> Tensor:
        image = new(x)
        way(x.permute(to_tokens), image.permute(to_tokens), bias())
        return image

    return work


def _by_channel(x: Tensor, w: Tensor, shifts: Shifts, tokens: tuple[int, ...], bias: Bias) -> Work:
    """As many groups as channels, an output each."""
    new, to_tokens = _outputs(x, tokens), (0, *range(2, x.dim()), 1)
    way = way_by_channel(x.permute(to_tokens), w.flatten(1), shifts, new(x).permute(to_tokens))

    def work(x: Tensor) -> Tensor:
        image, added = new(x), bias()
        way(x.permute(to_tokens), image.permute(to_tokens), None if added is None else added.view(-1))
        return image

    return work


def _last(x: Tensor) -> bool:
    """Whether channels are last in memory."""
    return x.stride(1) == 1 and x.shape[1] > 1


def _outputs(x: Tensor, tokens: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Room for the outputs (B, D_out, *o), whose tokens are (B, *o, D_out), laid out as the input is."""
    to_image = _to_image(len(tokens))
    image = tuple(tokens[axis] for axis in to_image)
    if _last(x):
        return lambda x: x.new_empty(tokens).permute(to_image)
    return lambda x: x.new_empty(image)


def _to_image(axes: int) -> tuple[int, ...]:
    """From (B, *o, D) to (B, D, *o)."""
    return (0, axes - 1, *range(1, axes - 1))


def unless_zero(bias: Tensor) -> Bias:
    """The bias, or None while it is zeros; where to look takes long, the bias."""
    bias = bias.contiguous()  # a copy only of what is not remembered
    if bias.device.type != "cpu":
        return lambda: bias
    numbers = bias.numpy()
    zeros = bytearray(numbers.nbytes)
    return lambda: None if zeros == numbers else bias
