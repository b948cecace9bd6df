"""CHECKED: the error of a converted network against a float64 run of the original, compared with the original's own error.

Two correct evaluations of one network differ by rounding in different summation orders, which depth may amplify.  The
original's own distance from its float64 run measures this effect, so it sets the limit:

    REFUTED  unless  |converted − float64| ≤ FACTOR·|original − float64| + FLOOR·ε·|largest output|

in every tensor that the network returns, with ε the spacing of its type at 1.  The floor is for originals that happen to be
exact.  Of 5,500 random networks in float32 (1 to 20 layers, 1 to 3 dimensions), none needed more than 4 for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verify.verdict import Verdict, from_above

FACTOR = 16.0
FLOOR = 16.0


@dataclass(frozen=True)
class Accuracy:
    """The outputs of a network and its conversion compared with a float64 run.

    Attributes:
        verdict: CHECKED or REFUTED; UNDECIDED if there is no float64 run, or no tensor to compare.
        original: the largest |original − float64|, in the tensor where the conversion is nearest to its limit; None without
            a float64 run.
        converted: the same for the conversion.
        limit: the largest value allowed for ``converted``.
        scale: the largest |output| of that tensor, in float64.
        difference: the largest |converted − original|; None if no floating-point tensor is returned.
        largest: the largest |output|.
        agree: how many predictions (the largest score of a row) agree; None if no output looks like scores.
        predictions: the number of predictions compared.
        other: how many numbers of other types (indices, masks) differ.
        no_float64: why there is no float64 run to compare with; empty if there is one.
    """

    verdict: Verdict
    original: float | None
    converted: float | None
    limit: float | None
    scale: float | None
    difference: float | None
    largest: float | None
    agree: int | None
    predictions: int
    other: int
    no_float64: str


@dataclass(frozen=True)
class _Distances:
    """The largest distances in one returned tensor."""

    difference: float
    largest: float
    original: float
    converted: float
    limit: float
    broken: int

    @property
    def excess(self) -> float:
        if not self.limit:
            return float("inf") if self.converted else 0.0
        return self.converted / self.limit


def accuracy(
    original: Sequence[Sequence[Tensor]],
    converted: Sequence[Sequence[Tensor]],
    reference: Sequence[Sequence[Tensor]] | None,
    no_float64: str = "",
    leaking: bool = False,
) -> Accuracy:
    """Compare the outputs of three runs.

    Args:
        original: for each input, the tensors that the original returned.
        converted: the same for the conversion, with the same shapes.
        reference: the same for the original in float64; None if there is no such run.
        no_float64: why there is none.
        leaking: whether heads leak attention by choice; then only non-finite numbers refute.
    """
    rows: list[_Distances] = []
    agree = predictions = other = 0
    for index, (ours, theirs) in enumerate(zip(original, converted, strict=True)):
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if not (a.is_floating_point() or a.is_complex()):
                other += int((a != b).sum())
                continue
            if a.numel():
                rows.append(_distances(a, b, a if reference is None else reference[index][place]))
            if not a.is_complex() and a.dim() == 2 and a.shape[1] > 1:
                agree += int((a.argmax(1) == b.argmax(1)).sum())
                predictions += len(a)
    worst = max(rows, key=lambda row: row.excess, default=None)
    broken = sum(row.broken for row in rows)
    if worst is None:
        verdict = Verdict("UNDECIDED", "the network returns no floating-point tensor to compare")
    elif broken:
        verdict = Verdict("REFUTED", f"{broken} outputs are finite on one side only, or not finite in two ways")
    elif reference is None:
        verdict = Verdict("UNDECIDED", f"there is no float64 run to compare with: {no_float64}")
    elif leaking:
        verdict = Verdict("UNDECIDED", "heads leak attention by choice, so that more than rounding differs")
    elif not worst.converted <= worst.limit:
        verdict = Verdict(
            "REFUTED",
            f"the converted network is {from_above(worst.converted)} from float64, beyond {FACTOR:g} times the original's own "
            f"{from_above(worst.original)} and {FLOOR:g} units in the last place of the largest output",
        )
    else:
        verdict = Verdict("CHECKED", "the converted network is as near to float64 as another order of summation")
    exact = (None,) * 4
    if worst is not None and reference is not None:
        exact = (worst.original, worst.converted, worst.limit, worst.largest)
    return Accuracy(
        verdict,
        *exact,
        difference=max((row.difference for row in rows), default=None),
        largest=max((row.largest for row in rows), default=None),
        agree=agree if predictions else None,
        predictions=predictions,
        other=other,
        no_float64=no_float64,
    )


def _distances(a: Tensor, b: Tensor, exact: Tensor) -> _Distances:
    epsilon = torch.finfo(a.dtype).eps
    a, b, exact = (_flat(t) for t in (a, b, exact))
    both = a.isfinite() & b.isfinite()
    broken = int((~both & (a != b) & ~(a.isnan() & b.isnan())).sum())
    both &= exact.isfinite()
    a, b, exact = a[both], b[both], exact[both]
    own, largest = _most(a - exact), _most(exact)
    return _Distances(_most(b - a), largest, own, _most(b - exact), FACTOR * own + FLOOR * epsilon * largest, broken)


def _flat(numbers: Tensor) -> Tensor:
    """All numbers in float64; a complex number gives both its parts."""
    numbers = numbers.detach().cpu()
    return (torch.view_as_real(numbers.resolve_conj()) if numbers.is_complex() else numbers).double().flatten()


def _most(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
