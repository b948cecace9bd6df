"""CHECKED: the error of a converted network against a float64 run of the original, compared with
the original's own error.

Two correct evaluations of one network differ by rounding in different summation orders, which depth
may amplify.  The original's own distance from its float64 run measures this effect, so it sets the
limit:

    REFUTED  unless  |converted − float64| ≤ FACTOR·|original − float64| + FLOOR·ε·|largest output|

in every tensor that the network returns, with ε the spacing of its type at 1.  The floor is for
originals that happen to be exact.  Of 5,500 random networks in float32 (1 to 20 layers, 1 to 3
dimensions), none needed more than 4 for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from verify.oracle import largest
from verify.verdict import Verdict, from_above

FACTOR = 16.0
FLOOR = 16.0
TINY = 2.0**-1074
"""Stands for a limit of zero, which only an exact output keeps."""


@dataclass(frozen=True)
class Accuracy:
    """The outputs of a network and its conversion compared with a float64 run.

    Attributes:
        verdict: CHECKED or REFUTED; UNDECIDED if no float64 run can judge, or there is no tensor to
            compare.
        agree: how many predictions (the largest score of a row) agree; None if no output looks like
            scores.
        predictions: the number of predictions compared.
        other: how many numbers of other types (indices, masks) differ.
        no_float64: why there is no float64 run to compare with; empty if there is one.
        difference: the largest |converted − original| in any tensor; None if no floating-point
            tensor is returned.
        largest: the largest |output| of the tensor where the conversion is nearest to its limit.
        original: the largest |original − float64| in that tensor; None without a float64 run.
        converted: the same for the conversion.
        limit: the largest value allowed for ``converted``.
    """

    verdict: Verdict
    agree: int | None
    predictions: int
    other: int
    no_float64: str
    difference: float | None = None
    largest: float | None = None
    original: float | None = None
    converted: float | None = None
    limit: float | None = None


def accuracy(
    original: Sequence[Tensor],
    converted: Sequence[Tensor],
    reference: Sequence[Tensor] | None,
    no_float64: str = "",
    leaking: bool = False,
) -> Accuracy:
    """Compare the tensors that a network returned, its conversion, and its float64 run, if there is
    one, or ``no_float64``.

    ``leaking`` says that heads leak attention by choice; then only non-finite numbers refute.
    """
    compared = list[_Distances]()
    apart = 0.0
    unlike = other = agree = predictions = 0
    truth = original if reference is None else reference
    for a, b, c in zip(original, converted, truth, strict=True):
        if not (a.is_floating_point() or a.is_complex()):
            other += int((a != b).sum())
            continue
        if a.numel():
            distances = _distances(a, b, c)
            compared.append(distances)
            apart = max(apart, distances.apart)
            unlike += distances.unlike
        if not a.is_complex() and a.dim() == 2 and a.shape[1] > 1:
            agree += int((a.argmax(1) == b.argmax(1)).sum())
            predictions += len(a)
    known = (agree if predictions else None, predictions, other, no_float64)
    if not compared:
        what = "the network returns no floating-point numbers to compare"
        return Accuracy(Verdict("UNDECIDED", what), *known)
    nearest = max(compared, key=lambda tensor: tensor.off / max(tensor.limit, TINY))
    measured = (nearest.own, nearest.off, nearest.limit)
    hindrance = "heads leak attention by choice, so that more than rounding differs" * leaking
    if reference is None:
        hindrance = f"there is no float64 run to compare with: {no_float64}"
        measured = ()
    verdict = _judged(nearest, unlike, hindrance)
    return Accuracy(verdict, *known, apart, nearest.size, *measured)


class _Distances(NamedTuple):
    """The largest distances between three tensors, where they are finite: an output of the
    original, of the converted network, and in float64.
    """

    own: float  # |original − float64|
    off: float  # |converted − float64|
    limit: float  # of ``off``
    apart: float  # |converted − original|
    size: float  # |float64|
    unlike: int  # how many are finite on one side only, or not finite in two ways


def _distances(a: Tensor, b: Tensor, c: Tensor) -> _Distances:
    x, y, z = map(_flat, (a, b, c))
    finite = x.isfinite() & y.isfinite()
    unlike = int((~finite & (x != y) & ~(x.isnan() & y.isnan())).sum())
    x, y, z = (tensor[finite & z.isfinite()] for tensor in (x, y, z))
    own = largest(x - z)
    size = largest(z)
    limit = FACTOR * own + FLOOR * torch.finfo(a.dtype).eps * size
    return _Distances(own, largest(y - z), limit, largest(y - x), size, unlike)


def _judged(nearest: _Distances, unlike: int, hindrance: str) -> Verdict:
    """The verdict by the tensor that is nearest to its limit; ``hindrance`` is why it judges nothing."""
    own = from_above(nearest.own)
    if unlike:
        what = f"{unlike} outputs are finite on one side only, or not finite in two ways"
        return Verdict("REFUTED", what)
    if hindrance:
        return Verdict("UNDECIDED", hindrance)
    if not nearest.off <= nearest.limit:
        off = f"the converted network is {from_above(nearest.off)} from float64"
        limit = f"{FACTOR:g} times the original's own {own} and {FLOOR:g} units in the last place"
        return Verdict("REFUTED", f"{off}, beyond {limit} of the largest output")
    if nearest.limit > nearest.size:
        far = f"the original itself is {own} from float64"
        return Verdict("UNDECIDED", f"{far}, so that any output would be near enough")
    near = "the converted network is as near to float64 as another order of summation"
    return Verdict("CHECKED", near)


def _flat(numbers: Tensor) -> Tensor:
    """All numbers in float64; a complex number gives both its parts."""
    numbers = numbers.detach().cpu().resolve_conj()
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers)
    return numbers.double().flatten()
