"""Random layers of every kind, from the softest to the sharpest and from 1e−40 to 1e30: no verdict is false, and faults are found.

Every layer comes once as it was built, and once with a fault in it.
"""

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import exactly
import faults_weights  # noqa: F401  fills the table
from construct import MHSA, conv_to_mhsa
from construct.attention import EXECUTIONS
from faults import FAULTS, Inapplicable
from verify.argument.certificate import Certificate
from verify.argument.certification import certified, certify
from verify.argument.verdicts import combined
from verify.layers.fields import Geometry
from verify.layers.reading import GridRefused, output_size
from verify.samples.sampling import check_call
from verify.strategies import DTYPES

SOFT_NUMBERS = (1e-40, 1e-38, 1e-30, 1e-20, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e10, 1e30)
SHARPNESS: tuple[Callable[[random.Random], float], ...] = (
    lambda rng: 1024.0,
    lambda rng: 10 ** rng.uniform(-3, 3.3),
    lambda rng: rng.uniform(100, 115),
    lambda rng: rng.uniform(740, 760),
    lambda rng: rng.uniform(14, 20),
    lambda rng: rng.choice([0.5, 1.0, 46.0, 104.0, 746.0, 2000.0]),
)


@dataclass
class Drawn:
    """A layer and what is claimed of it."""

    conv: Any
    layer: MHSA
    grid: tuple[int, ...]
    bound: float
    rng: random.Random


def drawn(seed: int) -> Drawn | None:
    """The layer of a seed; None if torch's convolution has no output on the grid that was drawn."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    d, transposed = rng.choice([1, 1, 2, 2, 3]), rng.random() < 0.3
    kernel = tuple(rng.randint(1, {1: 6, 2: 4, 3: 2}[d]) for _ in range(d))
    stride, dilation = (tuple(rng.randint(1, most) for _ in range(d)) for most in (3, 2))
    groups, dtype = rng.choice([1, 1, 1, 2, 3]), rng.choice(DTYPES)
    options: dict[str, Any] = {"padding": tuple(rng.randint(0, 3) for _ in range(d))}
    if transposed:
        options["output_padding"] = tuple(rng.randint(0, max(s, r) - 1) for s, r in zip(stride, dilation, strict=True))
    else:
        options["padding"] = rng.choice(["same", "valid", *[options["padding"]] * 3])
        options["padding_mode"] = rng.choice(["zeros", "zeros", "circular", "reflect", "replicate"])
        stride = (1,) * d if options["padding"] == "same" else stride
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{d}d")
    channels = groups * rng.randint(1, 3), groups * rng.randint(1, 3)
    options |= {"stride": stride, "dilation": dilation, "groups": groups, "bias": rng.random() < 0.5, "dtype": dtype}
    conv = nn.utils.skip_init(kind, *channels, kernel, **options)
    grid = tuple(rng.randint(1, 7 if d < 3 else 4) for _ in range(d))
    try:
        output_size(Geometry.read(conv), grid)
    except GridRefused:
        return None
    size, most = rng.choice([*SOFT_NUMBERS, 2.0 ** rng.uniform(-140, 100)]), torch.finfo(dtype).max
    with torch.no_grad():
        for tensor in conv.parameters():
            numbers = size * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.copy_(numbers.clamp(-most, most))
    alpha, encoding = rng.choice(SHARPNESS)(rng), rng.choice(["quadratic", "quadratic", "parabola"])
    bound = rng.choice([*SOFT_NUMBERS, 2.0 ** rng.uniform(-140, 100)])
    return Drawn(conv, conv_to_mhsa(conv, alpha=alpha, encoding=encoding), grid, bound, rng)


def sample(one: Drawn) -> torch.Tensor:
    """One input within the bound, with zeros and tiny numbers in it."""
    rng = np.random.default_rng(one.rng.randrange(2**32))
    shape = (1, one.conv.in_channels, *one.grid)
    x = rng.uniform(-1, 1, shape) * rng.choice([1.0, 1.0, 0.0, 1e-38], shape) * one.bound
    return torch.from_numpy(x).to(one.conv.weight.dtype).clamp(-one.bound, one.bound)


def certificate_of(one: Drawn) -> Certificate | None:
    """As the command certifies a layer of a chosen sharpness; None where something may overflow."""
    try:
        return certified(one.conv, one.layer, one.grid, one.bound, None, True)
    except ValueError as error:
        if "beyond the largest" in str(error):
            return None
        raise


def holds(one: Drawn, certificate: Certificate, x: torch.Tensor) -> bool:
    """Whether every execution is within the bound of the exact convolution on this input."""
    truth = exactly.convolution(one.conv, x[0].double().numpy())
    for one.layer.execution in EXECUTIONS:
        try:
            with torch.no_grad():
                found = one.layer(x)[0].double().numpy()
        except NotImplementedError:  # too coarse for the fused kernel
            continue
        for place in np.ndindex(truth.shape):
            if not abs(Fraction(float(found[place])) - truth[place]) <= Fraction(float(certificate.bound[place[0]])):
                return False
    one.layer.execution = "auto"
    return True


def refuted_rightly(one: Drawn, certificate: Certificate) -> bool:
    """By its own evidence, evaluated here by other means."""
    counter, over = certificate.counterexample, certificate.overrun
    if counter is not None:
        if counter.shapes is not None:
            return counter.shapes[0] != counter.shapes[1]
        x = counter.input(one.conv.in_channels, one.grid)
        theirs, ours = exactly.convolution(one.conv, x)[counter.output], exactly.attention(one.layer, x)[counter.output]
        return (theirs, ours) == (counter.convolution, counter.attention) and theirs != ours
    assert over is not None
    truth = exactly.convolution(one.conv, over.input)[over.output]
    return truth == over.convolution and (not math.isfinite(over.attention) or Fraction(over.attention) != truth)


# ---- faults ----------------------------------------------------------------------------------------------------------------


SWEPT = (
    "values of two heads swapped",
    "a tap one ulp off",
    "heads one anchor off",
    "kernel flipped on every axis",
    "a bias twice as large",
)
"""The faults that show on layers of any sharpness."""


def is_fault(one: Drawn) -> bool:
    """Whether the function is another, were the heads sharp: on large random integers, exactly."""
    x = np.random.default_rng(0).integers(-(2**45), 2**45, (one.conv.in_channels, *one.grid)).astype(object)
    try:
        return bool((exactly.convolution(one.conv, x) != exactly.attention(one.layer, x)).any())
    except exactly.NoValue:
        return True


def off_in_one_output(one: Drawn, certificate: Certificate) -> str:
    """An execution that is off by a little more than both sides may be, in the last output of the last input; its verdict."""
    name = one.rng.choice(["dense", "axial", "auto"])
    right, off = EXECUTIONS[name], 2.5 * float(certificate.bound[-1])

    def wrong(layer: MHSA, x: torch.Tensor, grid: Any) -> torch.Tensor:
        found = right.run(layer, x, grid).double().contiguous()
        found.view(-1)[-1] += off
        return found.to(x.dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXECUTIONS, name, replace(right, run=wrong))
        return certify(one.conv, one.layer, grid=one.grid, input_bound=one.bound, within=1e300).verdict.name


# ---- the sweep -------------------------------------------------------------------------------------------------------------


def swept(seeds: range) -> Counter[str]:
    """What was said of the layers of these seeds; a false verdict fails."""
    tally: Counter[str] = Counter()
    for seed in seeds:
        one = drawn(seed)
        if one is None:
            tally["no output"] += 1
            continue
        certificate = certificate_of(one)
        if certificate is None:
            tally["refused: overflow"] += 1
            continue
        x, verdict = sample(one), certificate.verdict
        tally[f"as built: {verdict.name}"] += 1
        if verdict.name == "PROVED":
            assert holds(one, certificate, x), (seed, verdict)
            tally[f"claim: {certificate.claim}"] += 1
        else:  # torch's own convolution is off, and nothing else can be
            assert verdict.name == "UNDECIDED", (seed, verdict)
            assert "torch's own convolution does not compute its definition" in verdict.sentence, (seed, verdict)
        check = check_call(one.conv, one.layer, x, "x")
        last = combined(certificate, check)
        assert last.name == verdict.name or "torch's own convolution" in last.sentence, (seed, last, check.verdict)
        if not certificate.leakage.any():
            assert check.verdict.name != "REFUTED", (seed, check.verdict)
        if verdict.name == "PROVED" and seed % 5 == 0:
            assert off_in_one_output(one, certificate) in ("REFUTED",), seed
            tally["an execution off: REFUTED"] += 1
        name = one.rng.choice(SWEPT)
        try:
            one.layer = FAULTS[name].plant(one.conv, one.layer, np.random.default_rng(seed))
        except Inapplicable:
            tally["no fault"] += 1
            continue
        if not is_fault(one):
            tally["no fault"] += 1
            continue
        certificate = certificate_of(one)
        if certificate is None:
            continue
        verdict = certificate.verdict
        assert verdict.name != "PROVED", (seed, name, certificate)
        assert verdict.name == "UNDECIDED" or refuted_rightly(one, certificate), (seed, name, certificate)
        tally[f"{name}: {verdict.name}"] += 1
    return tally


def test_ninety_layers():
    tally = swept(range(90))
    assert min(tally[word] for word in ("as built: PROVED", "claim: within", "claim: same sums")) > 10
    assert not tally["as built: REFUTED"]


@pytest.mark.deep
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_layers(part: int):
    tally = swept(range(1000 + 1500 * part, 1000 + 1500 * (part + 1)))
    print(dict(sorted(tally.items())))
    assert tally["as built: PROVED"] + tally["as built: UNDECIDED"] + tally["refused: overflow"] >= 1000
    assert not tally["as built: REFUTED"]
