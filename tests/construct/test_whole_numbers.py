"""Whole numbers of any type with ``__index__`` are taken wherever the public functions take ints, and nothing else is."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import construct
import verify


class Indexable:
    """A whole number that is no int."""

    def __init__(self, number: int):
        self.number = number

    def __index__(self) -> int:
        return self.number


ONE: Any = np.int64(1)
CONV = nn.Conv2d(2 * ONE, 3, 3 * ONE, padding=ONE)
LAYER = construct.conv_to_mhsa(CONV)
GEOMETRY = LAYER.geometry


def audited(grid: Any, channels: Any, size: Any, sizes: Sequence[Any]) -> list[str]:
    """What two audits say."""
    options = {"in_channels": channels, "most_channels": channels, "seed": channels}
    audits = [verify.audit(LAYER, grid, kernel_size=kernel, **options) for kernel in (size, sizes)]
    return list(map(str, audits))


CALLS: dict[str, Callable[[Callable[[int], Any]], Any]] = {
    "order": lambda n: construct.conv_to_mhsa(CONV, order=[n(8 - i) for i in range(9)]).w_out,
    "head_dim": lambda n: construct.conv_to_mhsa(CONV, head_dim=n(1)).w_val,
    "heads_per_shift": lambda n: construct.conv_to_mhsa(CONV, head_dim=n(1), heads_per_shift=n(2)).w_val,
    "as many as needed": lambda n: construct.conv_to_mhsa(CONV, head_dim=n(1), heads_per_shift=None).w_val,
    "geometry": lambda n: str(
        construct.ConvGeometry(n(2), n(3), (n(3),) * 2, (n(1),) * 2, (n(1),) * 2, "zeros", (n(1),) * 2, n(1))
    ),
    "explain": lambda n: LAYER.explain((1, 2, n(5), n(6))),
    "output_size": lambda n: (
        construct.conv_to_mhsa(nn.ConvTranspose1d(1, 1, 3, stride=2))(torch.zeros(1, 1, 4), output_size=[n(10)]).shape
    ),
    "to_torch_mha": lambda n: construct.to_torch_mha(LAYER, (n(5), n(6))).grid,
    "from_torch_mha": lambda n: (
        construct.from_torch_mha(construct.to_torch_mha(LAYER, (5, 6)).attention, GEOMETRY, (n(5), n(6))).weight
    ),
    "certify": lambda n: verify.certify(CONV, LAYER, grid=[n(5), n(6)]).grid,
    "audit": lambda n: audited((n(5), n(5)), n(2), n(3), [n(3), n(3)]),
    "lemma 1": lambda n: str(verify.prove_lemma1(n(1))),
    "lemma 2": lambda n: str(verify.prove_lemma2(n(1))),
    "theorem": lambda n: str(verify.prove_theorem(n(1))),
}


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor, Indexable], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CALLS)
def test_a_whole_number_of_another_type_is_that_number(name: str, kind: Any) -> None:
    call = CALLS[name]
    output, expected = call(kind), call(int)
    if isinstance(expected, torch.Tensor):
        output, expected = output.tolist(), expected.tolist()
    elif name == "audit":  # its last line gives the time
        output, expected = ([text.splitlines()[:3] for text in texts] for texts in (output, expected))
    assert output == expected


@pytest.mark.parametrize("wrong", [1.0, True, "1", torch.tensor(1.5), torch.ones(2, dtype=torch.int64), np.float64(1)])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_whole_number_is_refused(name: str, wrong: Any) -> None:
    if name in ("explain", "output_size") and wrong is True:
        pytest.skip("torch takes a truth value as a size, and so does the layer")
    with pytest.raises((ValueError, TypeError)):
        CALLS[name](lambda n: wrong)
