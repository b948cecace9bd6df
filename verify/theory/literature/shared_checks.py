"""Checks that several claims share: heads against taps on every input, a layer against a
convolution, a certificate.
"""

import numpy as np
import torch
from numpy import ndarray

from verify.argument.certification import certify
from verify.theory.literature import equations
from verify.theory.literature.judgement import Check
from verify.theory.symbolic.proof_positions import Setting, Vector

PLANE = Setting((3, 3), (4, 5), (1, 1))


def reads_the_same(setting: Setting) -> Check:
    """Each tap's sharp head reads what the tap reads, so both layers agree for every input and
    kernel on this grid.
    """
    read = equations.read_by_heads(setting, equations.hard_heads(setting))
    expected = equations.read_by_taps(setting)
    same = read.shape == expected.shape and bool(np.equal(read, expected).all())
    finding = f"{len(read)} sharp heads read what the {len(expected)} taps read ({setting}; {expected.size} entries)"
    return Check(finding, same, f"exhaustive: {setting}")


def compares(
    setting: Setting,
    heads: list[ndarray],
    values: list[ndarray],
    weight: ndarray,
    what: str,
) -> Check:
    """Compare Eq. 3 with these heads to the oracle's convolution with ``weight``, on random
    integers without rounding.
    """
    x = equations.integers(11, weight.shape[1], *setting.size)
    expected = setting.convolution(weight)(x[None]).reshape(len(weight), -1).T
    output = equations.mix(heads, setting.tokens(x), values)
    same = output.shape == expected.shape
    differing = int(np.not_equal(output, expected).sum()) if same else expected.size
    return Check(
        f"{what}: {differing} of {expected.size} outputs differ from the convolution",
        differing == 0,
    )


def certified(conv: torch.nn.Module, layer: torch.nn.Module, grid: Vector, what: str) -> Check:
    """The certificate for all inputs says PROVED."""
    certificate = certify(conv, layer, grid=grid)
    bound = f"difference ≤ {float(certificate.bound.max()):.2g} for every |x| ≤ 1"
    finding = f"{what}: certificate {certificate.verdict.name}, {bound}"
    return Check(finding, certificate.verdict.name == "PROVED", "certificate of one kernel")
