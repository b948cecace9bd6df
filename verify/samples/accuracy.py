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
from typing import Any

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
        original: the largest |original − float64|, in the tensor where the conversion is nearest to
            its limit; None without a float64 run.
        converted: the same for the conversion.
        limit: the largest value allowed for ``converted``.
        difference: the largest |converted − original| in any tensor; None if no floating-point
            tensor is returned.
        largest: the largest |output| of that tensor nearest to its limit.
        agree: how many predictions (the largest score of a row) agree; None if no output looks like
            scores.
        predictions: the number of predictions compared.
        other: how many numbers of other types (indices, masks) differ.
        no_float64: why there is no float64 run to compare with; empty if there is one.
    """

    verdict: Verdict
    original: float | None
    converted: float | None
    limit: float | None
    difference: float | None
    largest: float | None
    agree: int | None
    predictions: int
    other: int
    no_float64: str


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
    rows: list[tuple[float, ...]] = []
    difference = 0.0
    broken = other = agree = predictions = 0
    truth = original if reference is None else reference
    for a, b, c in zip(original, converted, truth, strict=True):
        if not (a.is_floating_point() or a.is_complex()):
            other += int((a != b).sum())
            continue
        if a.numel():
            row, apart, unlike = _distances(a, b, c)
            rows.append(row)
            difference = max(difference, apart)
            broken += unlike
        if not a.is_complex() and a.dim() == 2 and a.shape[1] > 1:
            agree += int((a.argmax(1) == b.argmax(1)).sum())
            predictions += len(a)
    counted = (agree if predictions else None, predictions, other)
    if not rows:
        verdict = Verdict("UNDECIDED", "the network returns no floating-point tensor to compare")
        return Accuracy(verdict, None, None, None, None, None, *counted, no_float64)
    _, own, off, limit, size = max(rows)
    beyond = f"the converted network is {from_above(off)} from float64, beyond {FACTOR:g} times the original's own "
    beyond += f"{from_above(own)} and {FLOOR:g} units in the last place of the largest output"
    far = f"the original itself is {from_above(own)} from float64, so that any output would be near enough"
    judged: tuple[tuple[bool, Any, str], ...] = (
        (
            broken > 0,
            "REFUTED",
            f"{broken} outputs are finite on one side only, or not finite in two ways",
        ),
        (reference is None, "UNDECIDED", f"there is no float64 run to compare with: {no_float64}"),
        (
            leaking,
            "UNDECIDED",
            "heads leak attention by choice, so that more than rounding differs",
        ),
        (not off <= limit, "REFUTED", beyond),
        (limit > size, "UNDECIDED", far),
        (
            True,
            "CHECKED",
            "the converted network is as near to float64 as another order of summation",
        ),
    )
    verdict = next(Verdict(name, sentence) for holds, name, sentence in judged if holds)
    distances = (None, None, None) if reference is None else (own, off, limit)
    return Accuracy(verdict, *distances, difference, size, *counted, no_float64)


def _distances(a: Tensor, b: Tensor, c: Tensor) -> tuple[tuple[float, ...], float, int]:
    """How far two tensors a and b are from a third and from each other, and how many numbers are
    not finite in two ways.

    Of the first: the excess over the limit, both distances, the limit, and the largest number.
    """
    x, y, z = map(_flat, (a, b, c))
    finite = x.isfinite() & y.isfinite()
    unlike = int((~finite & (x != y) & ~(x.isnan() & y.isnan())).sum())
    x, y, z = (tensor[finite & z.isfinite()] for tensor in (x, y, z))
    own = largest(x - z)
    off = largest(y - z)
    size = largest(z)
    limit = FACTOR * own + FLOOR * torch.finfo(a.dtype).eps * size
    return (off / max(limit, TINY), own, off, limit, size), largest(y - x), unlike


def _flat(numbers: Tensor) -> Tensor:
    """All numbers in float64; a complex number gives both its parts."""
    numbers = numbers.detach().cpu()
    return (
        (torch.view_as_real(numbers.resolve_conj()) if numbers.is_complex() else numbers)
        .double()
        .flatten()
    )
