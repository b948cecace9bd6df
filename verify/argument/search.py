"""Where a step failed that an input can show, such an input: step 7 of a certificate."""

from collections.abc import Iterable
from itertools import islice, product

from verify.argument.refutation import Counterexample, Refuter
from verify.argument.steps import Argument, Shift
from verify.layers.aims import Aim, aim
from verify.layers.reading import output_size, tap_of_shift
from verify.layers.taps import TapDifference


def counterexample_of(argument: Argument) -> Counterexample | None:
    """An input on which the exact outputs differ, where a step failed that such an input can show."""
    if argument.within is not None:
        return None
    if argument.aims is not None:
        return _tap_counterexample(argument, argument.aims) if argument.one_hot else None
    failed = next(step for step in argument.steps if not step.holds)
    if failed.number == 1:
        return None
    theirs, ours = argument.geometry, argument.attention.geometry
    if ours.groups != theirs.groups:
        return None
    try:
        size = output_size(ours, argument.grid)
    except ValueError as error:
        told = f"on this grid the convolution has an output of size {argument.outputs}, and the attention none: {error}"
        return Counterexample({}, (), None, None, told, (argument.outputs, None))
    if size != argument.outputs:
        told = f"on this grid the convolution's output has size {argument.outputs}, the attention's {size}"
        return Counterexample({}, (), None, None, told, (argument.outputs, size))
    return _reading_counterexample(argument)


def _tap_counterexample(argument: Argument, aims: list[Aim | None]) -> Counterexample | None:
    """For taps that differ, an impulse where the difference is read."""
    if not argument.differences and not argument.bias_differs:
        return None
    refuter = _refuter(argument, [None if aimed is None else aimed.shift for aimed in aims])
    found = refuter.bias()

    def weight(difference: TapDifference) -> float:
        return -float(difference.size.max(initial=0.0))

    for difference in sorted(argument.differences, key=weight)[:16]:
        if found is not None:
            break
        live = (place for place in _places(argument.outputs) if _live(argument, refuter, difference.shift, place))
        found = refuter.search(islice(live, 8), [difference.entry])
    return found


def _live(argument: Argument, refuter: Refuter, shift: Shift, place: Shift) -> bool:
    """Whether the tap or the head at this shift reads a real input for this output."""
    tap = tap_of_shift(argument.geometry, shift)
    read_by_tap = tap is not None and refuter.conv_read(tap, place) is not None
    return read_by_tap or refuter.head_read(shift, place) is not None


def _reading_counterexample(argument: Argument) -> Counterexample | None:
    """Where tokens or aims are wrong but the outputs have one shape: impulses at what either side reads."""
    attention = argument.attention
    if attention.radix is not None or _attends_by_content(argument):
        return None
    shifts: list[Shift | None] = []
    for head, carries in enumerate(attention.carrying):
        aimed = aim(attention, head) if carries else None
        if carries and (aimed is None or not aimed.gap > argument.fmt.one_hot_gap):
            return None
        shifts.append(None if aimed is None else aimed.shift)
    refuter = _refuter(argument, shifts)
    return refuter.bias() or refuter.search(islice(_places(argument.outputs), 64))


def _attends_by_content(argument: Argument) -> bool:
    attention = argument.attention
    return bool(attention.w_qry.any() or (attention.u.any() and attention.w_key.any()))


def _refuter(argument: Argument, shifts: list[Shift | None]) -> Refuter:
    return Refuter(
        argument.conv,
        argument.geometry,
        argument.attention,
        shifts,
        argument.grid,
        argument.outputs,
        argument.fmt.below(argument.bound),  # an input of the layers' type
    )


def _places(outputs: tuple[int, ...]) -> Iterable[Shift]:
    """Output positions: corners, edges and middles first, then more."""
    few = [sorted({0, 1 % o, o // 2, max(o - 2, 0), o - 1}) for o in outputs]
    first = list(islice(product(*few), 200))
    yield from first
    seen = set(first)
    yield from (place for place in islice(product(*map(range, outputs)), 2000) if place not in seen)
