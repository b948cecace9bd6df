"""Whether anybody's layer keeps the contract of a convolution, one property at a time:
``python -m verify conformance``.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import torch
from hypothesis import Phase, errors, find, settings
from torch import Tensor

from verify.samples.comparison import same_bits
from verify.strategies import Case, cases
from verify.verdict import Verdict

Layer = Callable[[Tensor], Tensor]

PLAIN: dict[str, Any] = {
    "transposed": [False],
    "dtypes": [torch.float32],
    "padding_modes": ["zeros"],
    "paddings": ["none"],
    "channels": ["one", "dense"],
    "bias": [False],
    "most_stride": 1,
    "most_dilation": 1,
    "batches": [1, 2],
    "layouts": ["contiguous"],
}
"""Options of `cases` for a convolution with nothing but a kernel."""

ROWS: dict[str, dict[str, Any]] = {
    "kernel": PLAIN,
    "bias": PLAIN | {"bias": [True]},
    "stride": PLAIN | {"most_stride": 3},
    "dilation": PLAIN | {"most_dilation": 3},
    "groups": PLAIN | {"channels": ["grouped", "depthwise", "multiplier"]},
    "padding": PLAIN | {"paddings": ["numbers", "same", "valid"]},
    "padding_mode": PLAIN
    | {"paddings": ["numbers"], "padding_modes": ["circular", "reflect", "replicate"]},
    "transposed": PLAIN | {"transposed": [True], "most_stride": 3, "paddings": ["numbers"]},
    "dtype": PLAIN | {"dtypes": [torch.float64, torch.float16, torch.bfloat16]},
    "batch": PLAIN | {"batches": [1, None, 0]},
    "layout": PLAIN | {"layouts": ["channels_last", "strided", "reversed", "expanded"]},
    "gradient": PLAIN,
    "together": {},
}
"""The rows of the contract: what each varies, as options of `cases`; the last one everything."""


def conformance(
    make_layer: Callable[[Any], Layer],
    row: str,
    dims: Sequence[int] = (1, 2, 3),
    examples: int = 100,
) -> Verdict:
    """Try a layer on generated convolutions of one row.

    Numbers are small integers, which every order of summation sums exactly.  The layer holds if its
    output equals the convolution's in shape, type and numbers, and the input is as it was; in the
    row ``gradient``, if the input's gradient does, for the signs of the output as its gradient.

    Args:
        make_layer: makes, from an ``nn.ConvNd`` or ``nn.ConvTransposeNd`` that it may keep, a layer
            that is called like it.
        row: a name in `ROWS`.
        dims: numbers of spatial dimensions.
        examples: how many calls, each of a generated convolution, which may repeat.

    Returns:
        CHECKED, or REFUTED with the simplest convolution that shows it.

    Raises:
        ValueError: there is no such row or dimension.

    >>> verdict = conformance(lambda conv: torch.nn.Identity(), "kernel")
    >>> verdict.name, verdict.sentence.partition(", kernel")[0]
    ('REFUTED', 'Conv1d(1, 1')
    """
    if row not in ROWS:
        raise ValueError(f"no row is called {row!r}; there are {', '.join(ROWS)}")
    fault: Any = partial(_fault, make_layer, row == "gradient")
    phases = Phase.generate, Phase.shrink  # to explain what was found takes most of the time
    options = settings(max_examples=examples, database=None, deadline=None, phases=phases)
    strategy = cases(integers=[True], dims=dims, **ROWS[row])
    try:
        case = find(strategy, fault, settings=options, random=Random(0))
    except errors.NoSuchExample:
        return Verdict("CHECKED", f"equal bit for bit in {examples} calls")
    return Verdict("REFUTED", f"{case}: {fault(case)}")


def _fault(make_layer: Any, gradient: bool, case: Case) -> str:
    """What the layer does otherwise than the convolution; "" for nothing."""
    x = copy.deepcopy(case.x)
    expected = _value(case.conv, case.x, gradient)
    try:
        actual = _value(make_layer(copy.deepcopy(case.conv)), x, gradient)
    except Exception as raised:  # anybody's layer may raise anything
        return f"{type(raised).__name__}: {raised}"
    if not torch.equal(x, case.x):
        return "the input is changed"
    if same_bits(actual, expected):
        return ""
    return f"{actual} instead of {expected}"


def _value(layer: Layer, x: Tensor, gradient: bool) -> Tensor:
    """The output, or the gradient of the input for one of the output of −1, 0 and 1."""
    x = x.detach().requires_grad_(gradient)
    y = layer(x)
    if gradient:
        (y,) = torch.autograd.grad(y, x, y.sign())
    return y.detach() + 0  # −0 is 0
