"""How much the ways to copy tokens hold besides their arguments: worked out from shapes and shifts."""

from itertools import product
from math import ceil, prod

from construct.execution import columns, depthwise, gathered, lines, narrow, residues, stacked
from construct.execution.layout import Shifts, blocks, laid_out, room_for, run_length, through
from construct.execution.simple import SHORT, images_at_once, rows_at_once, stands


def memory(
    shifts: Shifts,
    images: int,
    groups: int,
    channels: int,
    width: int,
    cast: bool,
    backwards: bool = False,
    between: bool = False,
    single: bool = True,
) -> int:
    """Numbers that :func:`~construct.execution.shifted.forward` (``backwards``: ``adjoint``) holds beyond its arguments.

    Args:
        shifts: where the heads look.
        images: B.
        groups: of channels.
        channels: C.
        width: D.
        cast: whether the tokens are of another type than that to compute in.
        backwards: for ``adjoint``; C and D are then those of what it reads and what it writes.
        between: whether outputs come between others.
        single: whether it computes in float32, and :mod:`construct.execution.products` may take large products.
    """
    if not images:
        return 0
    if backwards and groups == 1 and narrow.suits(shifts, width, channels):
        return narrow.memory(shifts, width, channels)
    if backwards:
        return _backwards(shifts, images, groups, channels, width, cast, single)
    if channels == 1 and groups > 1:
        return depthwise.memory(shifts, images, groups, cast, last=False)
    if stands(shifts):
        between = between or groups > 1  # so they do if channels are last
        rows, few = rows_at_once(shifts, groups, channels, width, cast, between), prod(shifts.output)
        tokens = min(rows, shifts.output[0]) * prod(shifts.output[1:])
        if few < SHORT:
            tokens = max(tokens, min(images, images_at_once(few)) * few)
        return tokens * groups * (width + channels)
    if groups == 1 and narrow.sees(shifts, channels, width):
        return narrow.memory(narrow.turned(shifts), width, channels)
    if groups == 1 and lines.suits(shifts, channels, width):
        return lines.memory(shifts, channels, width)
    some = gathered.wide(shifts, images, channels, width) if groups == 1 else None
    if some is not None:
        return gathered.memory(shifts, images, some, channels, width)
    some = gathered.heavy(shifts, images, channels, width) if groups == 1 and single else None
    if some is not None:
        return gathered.memory(shifts, images, some, channels, width)
    most = 0
    if groups == 1:
        strides = (0,) * (len(shifts.step) + 2)
        in_order = (*(prod(shifts.output[axis:]) * width for axis in range(len(shifts.step) + 1)), 1)
        programs = [
            columns.program(shifts, images, channels, width, strides, into, not cast) for into in (strides, in_order)
        ]
        most = max(todo.tokens + todo.outputs + shifts.output[-1] * width if todo else 0 for todo in programs)
        if all(programs):  # however outputs lie
            return most
        some = gathered.few(shifts, images, channels)
        if some is not None:
            return max(most, gathered.memory(shifts, images, some, channels, width))
        few = stacked.stack(shifts, channels, width)
        if few is not None:
            return max(most, stacked.memory(shifts, few, channels, width))
    return max(most, _in_blocks(shifts, images, groups, channels, width))


def _backwards(shifts: Shifts, images: int, groups: int, channels: int, width: int, cast: bool, single: bool) -> int:
    """Of ``adjoint``, where products do not come first: all residues modulo the stride at once, or the one that takes most."""
    some = residues.windows(shifts, images, width, channels) if groups == 1 else None
    if some is not None:
        return residues.memory(some, shifts.output, images, width, channels)
    most = 0
    for residue in product(*map(range, shifts.step)):
        there, seen = through(shifts, residue)
        if there and min(seen.output) > 0:
            held = memory(seen, images, groups, channels, width, cast, between=True, single=single)
            most = max(most, held + len(there) * groups * channels * width)
    return most


def _in_blocks(shifts: Shifts, images: int, groups: int, channels: int, width: int) -> int:
    """Of blocks of queries, which share buffers: each is as large as the block that needs most of it."""
    held = dict.fromkeys(("tokens", "outputs", "beside", "apart"), 0)
    alone = len(shifts.offsets) == 1
    for image, rows in blocks(shifts, images, room_for(shifts, groups, channels, width, alone=False)):
        plan = laid_out(shifts, image.stop - image.start, rows.stop - rows.start, alone, run_length(channels))
        needed = {"tokens": plan.tokens * channels, "apart": plan.queries[-1] * width}  # the bias, for a row of queries
        if plan.few(channels):
            needed["beside"] = plan.wanted * len(shifts.offsets) * channels
            needed["apart"] += plan.wanted * width
        else:
            needed["outputs"] = plan.computed * width
            needed["apart"] += ceil(plan.computed / plan.every) * width if groups > 1 else 0  # a batch of products
        held = {name: max(before, groups * needed.get(name, 0)) for name, before in held.items()}
    return sum(held.values())
