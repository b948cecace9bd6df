"""A search for false verdicts: random layers of every kind, certified as built and with a planted
fault.

Geometries, channels, number formats, encodings and grids are random; sharpness ranges from the
softest to the sharpest, weights and inputs from 1e−40 to 1e30.  A layer is determined by its seed.
Verdicts are compared with exact arithmetic on the layers' raw numbers
(:mod:`verify.experiment.sweep.exact_layers`).
"""

import math
import operator
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from construct.attention import EXECUTIONS, MHSA
from construct.builder import conv_to_mhsa
from verify.argument.certificate import Certificate
from verify.argument.certification import certified, certify
from verify.argument.verdicts import combined
from verify.experiment.sweep import exact_layers
from verify.experiment.sweep.faults import FAULTS, Inapplicable
from verify.experiment.sweep.results import Row, key_of
from verify.layers.fields import digest
from verify.layers.reading import GridRefused, output_size
from verify.oracle import Geometry, Vector, greatest
from verify.recheck.strict_input import Record
from verify.samples.sampling import check_call
from verify.strategies import DTYPES, PADDING_MODES, crashes_torch

SIZES = (1e-40, 1e-38, 1e-30, 1e-20, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e10, 1e30)
"""Sizes of weights and of inputs."""
SHARPNESS: tuple[Callable[[random.Random], float], ...] = (
    lambda rng: 1024.0,
    lambda rng: 10 ** rng.uniform(-3, 3.3),
    lambda rng: rng.uniform(100, 115),
    lambda rng: rng.uniform(740, 760),
    lambda rng: rng.uniform(14, 20),
    lambda rng: rng.choice([0.5, 1.0, 46.0, 104.0, 746.0, 2000.0]),
)
ON_ANY_SHARPNESS = (
    "values of two heads swapped",
    "a tap one ulp off",
    "heads one anchor off",
    "kernel flipped on every axis",
    "a bias twice as large",
)
"""Faults that also change the function of a layer with soft heads."""
OFF = "an execution off in one output"


@dataclass
class RandomLayer:
    """A convolution, its attention layer, and the domain of the claim, all determined by the seed.

    Attributes:
        alpha: the sharpness of all heads.
        encoding: the positional encoding.
        grid: the spatial size of inputs.
        bound: B; inputs have |x| ≤ B.
        rng: for further draws.
        layer: the attention layer, as built until a fault is planted in it.
    """

    seed: int
    conv: Any
    alpha: float
    encoding: str
    grid: Vector
    bound: float
    rng: random.Random
    layer: MHSA = field(init=False)

    def __post_init__(self) -> None:
        self.layer = self.built()

    def built(self) -> MHSA:
        """The layer without a fault."""
        return conv_to_mhsa(self.conv, alpha=self.alpha, encoding=self.encoding)


def random_layer(seed: int) -> RandomLayer:
    """The layer for a seed.

    >>> random_layer(2).conv
    ConvTranspose1d(1, 2, kernel_size=(3,), stride=(1,), padding=(1,), dilation=(2,), bias=False)
    """
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    conv, grid = _convolution_and_grid(rng)
    size = _size(rng)
    most = torch.finfo(conv.weight.dtype).max
    with torch.no_grad():
        for tensor in conv.parameters():
            values = size * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.copy_(values.clamp(-most, most))
    alpha = rng.choice(SHARPNESS)(rng)
    encoding = rng.choice(["quadratic", "quadratic", "parabola"])
    return RandomLayer(seed, conv, alpha, encoding, grid, _size(rng), rng)


def _size(rng: random.Random) -> float:
    return rng.choice([*SIZES, 2.0 ** rng.uniform(-140, 100)])


def _convolution_and_grid(rng: random.Random) -> tuple[Any, Vector]:
    """A convolution with its weights not yet drawn, and a grid on which it has an output."""
    while True:
        d = rng.choice([1, 1, 2, 2, 3])
        transposed = rng.random() < 0.3
        kernel = tuple(rng.randint(1, {1: 6, 2: 4, 3: 2}[d]) for _ in range(d))
        stride, dilation = (tuple(rng.randint(1, most) for _ in range(d)) for most in (3, 2))
        groups = rng.choice([1, 1, 1, 2, 3])
        options: Record = {"padding": tuple(rng.randint(0, 3) for _ in range(d))}
        if transposed:
            steps = zip(stride, dilation, strict=True)
            options["output_padding"] = tuple(rng.randint(0, max(step) - 1) for step in steps)
        else:
            options["padding"] = rng.choice(["same", "valid", *[options["padding"]] * 3])
            options["padding_mode"] = rng.choice(["zeros", *PADDING_MODES])
            stride = (1,) * d if options["padding"] == "same" else stride
        options |= {
            "stride": stride,
            "dilation": dilation,
            "groups": groups,
            "bias": rng.random() < 0.5,
        }
        kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{d}d")
        channels = groups * rng.randint(1, 3), groups * rng.randint(1, 3)
        conv = nn.utils.skip_init(kind, *channels, kernel, dtype=rng.choice(DTYPES), **options)
        grid = tuple(rng.randint(1, 7 if d < 3 else 4) for _ in range(d))
        try:
            output_size(Geometry.read(conv), grid)
        except GridRefused:
            continue
        if not crashes_torch(conv, grid):
            return conv, grid


def certify_seed(seed: int) -> list[Row]:
    """Certify the layer of a seed as built, then with a fault; rows with an error report false
    verdicts.

    There is no second row if no drawn fault changes the function, or if its bound overflows.
    """
    case = random_layer(seed)
    row, certificate = _certified(case, leaking=True)
    if certificate is None:
        return [row]
    rows = [replace(row, error=_error_of(case, certificate))]
    sharp = not certificate.leakage.any()
    if certificate.verdict.name == "PROVED" and case.rng.random() < 0.1:
        return [*rows, _off_in_one_output(case, row, certificate)]
    name = _plant(case, tuple(FAULTS) if sharp else ON_ANY_SHARPNESS)
    if name is None:
        return rows
    row, certificate = _certified(case, leaking=not sharp, fault=name)
    error = ""
    if certificate is None:
        return rows
    if certificate.verdict.name == "PROVED":
        error = f"a false PROVED: {certificate.verdict.sentence}"
    elif certificate.verdict.name == "REFUTED" and not _refuted_rightly(case, certificate):
        error = f"REFUTED by evidence that is none: {certificate.verdict.sentence}"
    return [*rows, replace(row, error=error)]


def _certified(case: RandomLayer, leaking: bool, fault: str = "") -> tuple[Row, Certificate | None]:
    """The row of a layer, with the error not yet set, and its certificate; None if refused because
    numbers may overflow.
    """
    row = Row(
        key=key_of("random", case.seed, fault),
        model="random",
        layer=f"seed {case.seed}",
        fault=fault,
        alpha=case.alpha,
        **described(case.conv, case.grid),
    )
    start = time.perf_counter()
    try:
        certificate = certified(case.conv, case.layer, case.grid, case.bound, None, leaking)
    except ValueError as error:
        if not fault and "beyond the largest" not in str(error):
            raise
        return replace(row, verdict="refused", claim=str(error)), None
    return replace(row, **facts_of(certificate), seconds=time.perf_counter() - start), certificate


def described(conv: Any, grid: Vector) -> Record:
    """The fields of a row that describe a convolution."""
    return {
        "kind": type(conv).__name__,
        "geometry": f"{conv} on {'x'.join(map(str, grid))}",
        "dtype": str(conv.weight.dtype).removeprefix("torch."),
        "digest": digest(conv, ("weight", "bias")),
    }


def facts_of(certificate: Certificate) -> Record:
    """The fields of a row that describe a certificate."""
    return {
        "verdict": certificate.verdict.name,
        "claim": certificate.claim,
        "bound": greatest(certificate.bound),
        "observed": greatest(certificate.observed),
    }


# ---- whether a verdict is true -------------------------------------------------------------------


def _error_of(case: RandomLayer, certificate: Certificate) -> str:
    """What is wrong with the certificate of a layer as built; "" if nothing is."""
    verdict = certificate.verdict
    x = _sample(case)
    if verdict.name == "PROVED" and not _holds(case, certificate, x):
        return f"a false PROVED: an execution is over the bound on an input: {verdict.sentence}"
    # torch's own convolution may be at fault, but nothing else
    own = "torch's own convolution"
    if verdict.name != "PROVED" and not (verdict.name == "UNDECIDED" and own in verdict.sentence):
        return f"as built, but {verdict}"
    check = check_call(case.conv, case.layer, x, "x")
    both = combined(certificate, check)
    if both.name != verdict.name and own not in both.sentence:
        return f"PROVED, but a sample says {both}"
    if check.verdict.name == "REFUTED" and not certificate.leakage.any():
        return f"as built, but a sample says {check.verdict}"
    return ""


def _sample(case: RandomLayer) -> Tensor:
    """One input within the bound that contains zeros and tiny numbers."""
    rng = np.random.default_rng(case.rng.randrange(2**32))
    shape = (1, case.conv.in_channels, *case.grid)
    x = rng.uniform(-1, 1, shape) * rng.choice([1.0, 1.0, 0.0, 1e-38], shape) * case.bound
    return torch.from_numpy(x).to(case.conv.weight.dtype).clamp(-case.bound, case.bound)


def _holds(case: RandomLayer, certificate: Certificate, x: Tensor) -> bool:
    """Whether every execution is within the bound from the exact convolution on this input."""
    truth = exact_layers.convolution(case.conv, x[0].double().numpy())
    limits = [Fraction(float(limit)) for limit in certificate.bound]
    try:
        for case.layer.execution in EXECUTIONS:
            try:
                with torch.no_grad():
                    attended = case.layer(x)[0].double().numpy()
            except NotImplementedError:  # too coarse for the fused kernel
                continue
            for place in np.ndindex(truth.shape):
                if not abs(Fraction(float(attended[place])) - truth[place]) <= limits[place[0]]:
                    return False
    finally:
        case.layer.execution = "auto"
    return True


def _refuted_rightly(case: RandomLayer, certificate: Certificate) -> bool:
    """Whether exact arithmetic confirms the evidence for REFUTED."""
    counter = certificate.counterexample
    over = certificate.overrun
    if counter is not None:
        if counter.shapes is not None:
            return counter.shapes[0] != counter.shapes[1]
        x = counter.input(case.conv.in_channels, case.grid)
        place = counter.output
        theirs = exact_layers.convolution(case.conv, x)[place]
        ours = exact_layers.attention(case.layer, x)[place]
        return (theirs, ours) == (counter.convolution, counter.attention) and theirs != ours
    if over is None:  # then a run on a smaller grid gave outputs of another size
        grids = [
            tuple(probe["grid"])
            for probe in certificate.probes
            if probe["note"] == "outputs differ in shape"
        ]
        g = Geometry.read(case.conv)
        attended = (exact_layers.attended_positions(case.layer, grid)[0] for grid in grids)
        return any(map(operator.ne, attended, map(g.outputs, grids)))
    truth = exact_layers.convolution(case.conv, over.input)[over.output]
    return truth == over.convolution and (
        not math.isfinite(over.attention) or Fraction(over.attention) != truth
    )


# ---- faults --------------------------------------------------------------------------------------


def _plant(case: RandomLayer, names: tuple[str, ...]) -> str | None:
    """Plant one of these faults in the layer and return its name; None if none of a few changes the
    function of sharp heads.
    """
    for name in case.rng.sample(names, min(5, len(names))):
        try:
            layer = case.built()
            case.layer = FAULTS[name](case.conv, layer, np.random.default_rng(case.seed)) or layer
        except (Inapplicable, ValueError):
            continue
        finite = all(tensor.isfinite().all() for tensor in case.layer.state_dict().values())
        if finite and exact_layers.exactly_differ(case.conv, case.layer, case.grid):
            return name
    return None


def _off_in_one_output(case: RandomLayer, row: Row, certificate: Certificate) -> Row:
    """The row of an execution with an error slightly above the allowed one, in the last output of
    the last input.
    """
    name = case.rng.choice(["dense", "axial", "auto"])
    right = EXECUTIONS[name]
    off = 2.5 * float(certificate.bound[-1])
    start = time.perf_counter()

    def wrong(layer: MHSA, x: Tensor, grid: Any) -> Tensor:
        y = right.run(layer, x, grid).double().contiguous()
        y.view(-1)[-1] += off
        return y.to(x.dtype)

    with patch.dict(EXECUTIONS, {name: replace(right, run=wrong)}):
        faulty = certify(
            case.conv, case.layer, grid=case.grid, input_bound=case.bound, within=1e300
        )
    error = "" if faulty.verdict.name == "REFUTED" else f"not REFUTED: {faulty.verdict}"
    seconds = time.perf_counter() - start
    return replace(
        row,
        key=key_of("random", case.seed, OFF),
        fault=OFF,
        **facts_of(faulty),
        seconds=seconds,
        error=error,
    )
