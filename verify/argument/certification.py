"""``certify``: builds the certificate for all inputs from the steps of the argument, the runs and a
counterexample search.

Steps 0 to 5 are in :mod:`verify.argument.steps`, step 6 (the runs) in :mod:`verify.argument.runs`.
A failed step alone is not REFUTED: that takes an input on which the two exact outputs differ
(:mod:`verify.argument.refutation`), or a run over the bound in which the attention differs from its
exact value.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import inf, isfinite, nan
from typing import Any

import numpy as np
import torch

from construct.attention import MHSA, MHSAWeights
from verify.argument.certificate import Certificate, Overrun
from verify.argument.refutation import Counterexample, counterexample_of
from verify.argument.runs import Probe, run_step
from verify.argument.steps import Argument, Problem, Step, argue
from verify.layers.fields import TENSORS, digests
from verify.layers.overrides import require_plain_attention
from verify.layers.patches import Judged, over_patches
from verify.layers.reparametrized import folded_convolution
from verify.layers.targets import named
from verify.layers.torch_faults import KNOWN
from verify.oracle import (
    Unreadable,
    Vector,
    flushes_to_zero,
    greatest,
    stated_geometry,
    whole_numbers,
    winograd_may_run,
)
from verify.verdict import Verdict, exactly, from_above


def certify(
    conv: Any,
    mhsa: Any,
    *,
    grid: Iterable[int],
    input_bound: float = 1.0,
    within: float | None = None,
) -> Certificate:
    """Judge, for all inputs, whether an attention layer computes a convolution.

    Args:
        conv: an nn.Conv1d, 2d, 3d or nn.ConvTranspose1d, 2d, 3d; if ``torch.nn.utils`` computes its
            tensors from others (weight_norm, spectral_norm, pruning, parametrizations), it is
            judged in eval mode, and an assumption says so.
        mhsa: the attention layer (its raw fields are read; its executions are run); of one over
            patches, its attention is judged against the convolution over patches.
        grid: the spatial size of the input, before padding; smaller inputs are covered too.
        input_bound: B; the claim is about inputs with ``|x| ≤ B``.
        within: None to claim the same function, which is UNDECIDED where heads leak (the sentence
            gives the bound, and the α from which they no longer do); a number T to claim a
            difference of at most T.

    Returns:
        The certificate, with any verdict.

    Raises:
        Unreadable: the two cannot be read as a convolution and an attention layer, or hold
            non-finite numbers, or may compute something other than their fields say
            (hooks, another forward), or change while they are run.
        GridRefused: torch's convolution has no output for this grid.
        TypeError: the grid is not a sequence of integers, or B or T is not a number.
        ValueError: B or T is not positive and finite, or the layers differ in type or device, or
            the bound overflows the type, or an axis of the grid has too many tokens to be
            enumerated, or subnormal numbers are flushed to zero (``torch.set_flush_denormal``), or
            torch may take NNPACK's Winograd (with mkldnn switched off).

    >>> import construct
    >>> conv = torch.nn.Conv2d(3, 8, kernel_size=3, padding=1)
    >>> layer = construct.conv_to_mhsa(conv)
    >>> certify(conv, layer, grid=(8, 8), input_bound=1.0).verdict.name
    'PROVED'
    >>> layer.w_val.data[0] *= 2  # the corner of the kernel, twice as large
    >>> certify(conv, layer, grid=(8, 8)).verdict.name
    'REFUTED'
    """
    return certified(conv, mhsa, grid, input_bound, within)


@np.errstate(all="ignore")  # the caller's numpy may raise where numbers round to zero
def certified(
    conv: Any,
    mhsa: Any,
    grid: Iterable[int],
    input_bound: float,
    within: float | None,
    leaking: bool = False,
) -> Certificate:
    """:func:`certify`; with ``leaking`` and no ``within``, it claims the derived bound where heads
    leak.
    """
    size = whole_numbers(grid)
    if size is None:
        raise TypeError(f"the grid {grid!r} must be a series of whole numbers")
    input_bound = _positive(input_bound, "the input bound")
    if within is not None:
        within = _positive(within, "within")
    judged = _judged(conv, mhsa, size)
    certificate = _certificate(judged, input_bound, within, leaking)
    for name, value in _identity(_judged(conv, mhsa, size)).items():
        if getattr(certificate, name) != value:
            raise Unreadable("a layer's numbers changed while it was read and run")
    if judged.attention is not mhsa and certificate.verdict.good:
        plain, _ = folded_convolution(conv)
        _run_once(plain, mhsa, size, input_bound, certificate.bound)
    return certificate


def _judged(conv: Any, layer: Any, size: Vector) -> Judged:
    """The two plain layers that a certificate is about; raises as :func:`certify`."""
    plain, folded = folded_convolution(conv)
    judged = over_patches(plain, layer, size)
    if isinstance(judged.attention, MHSA):  # no other class is run
        require_plain_attention(judged.attention, TENSORS)
    if folded:
        what = "the convolution's numbers are those of eval mode, worked out by"
        notes = (f"eval mode: {what} {', '.join(folded)}", *judged.notes)
        judged = judged._replace(notes=notes)
    return judged


def _identity(judged: Judged) -> dict[str, dict[str, Any]]:
    """What a certificate says of which layers it is about: their geometries, and the digests of
    their tensors.
    """
    return {
        "conv_geometry": stated_geometry(judged.conv),
        "mhsa_geometry": stated_geometry(judged.attention),
        "conv_sha256": digests(judged.conv, ("weight", "bias")),
        "mhsa_sha256": digests(judged.attention, TENSORS),
    }


def _certificate(
    judged: Judged, input_bound: float, within: float | None, leaking: bool
) -> Certificate:
    """The certificate of layers that have been read."""
    problem = Problem.read(judged.conv, judged.attention, judged.grid, input_bound)
    identity = _identity(judged)
    _require_comparable(problem)
    argument = argue(problem, may_leak=leaking or within is not None, may_differ=within is not None)
    if leaking and within is None:
        within = _derived(argument)
    counterexample = None
    if within is None:
        counterexample = counterexample_of(argument)
    positional = _by_position(judged, argument, within, leaking)
    *steps, last = argument.steps
    if positional is not None:
        alone = f"{named(~problem.attention.content)} alone, with b_out: {positional.verdict}"
        last = replace(last, sentence=f"{last.sentence}; {alone}")
    runs, probes = run_step(argument)
    steps = (*steps, last, runs)
    return Certificate(
        verdict=_verdict(argument, steps, within, counterexample, probes),
        grid=judged.grid,
        input_bound=input_bound,
        within=within,
        bound=argument.total,
        rounding=argument.rounding,
        leakage=argument.leakage,
        taps=argument.taps,
        steps=steps,
        assumptions=(*_assumptions(problem, probes), *judged.notes),
        dtype=problem.fmt.name,
        heads=len(problem.attention.v),
        **identity,
        torch_version=torch.__version__,
        observed=np.max([np.zeros_like(argument.total), *(p.observed for p in probes)], axis=0),
        probes=tuple(
            {
                "execution": p.execution,
                "inputs": p.inputs,
                "grid": list(p.grid),
                "ratio": p.worst,
                "note": p.note,
            }
            for p in probes
        ),
        counterexample=counterexample,
        overrun=_overrun(probes),
        positional=positional,
    )


def _derived(argument: Argument) -> float | None:
    """The difference that leaking heads explain, if some leak and the bound is finite."""
    if not (argument.leakage.any() and np.isfinite(argument.total).all()):
        return None
    derived = float(np.nextafter(argument.rounding + argument.leakage, np.inf).max())
    return min(float(from_above(derived)), float(np.finfo(np.float64).max))


def _run_once(conv: Any, layer: Any, size: Vector, input_bound: float, total: np.ndarray) -> None:
    """Run a layer over patches on an image, as cutting and joining are no part of the attention.

    Raises:
        Unreadable: it differs from the convolution by more than the certified bound.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, conv.in_channels, *size, generator=generator, dtype=torch.float64)
    x = ((2 * x - 1) * input_bound).to(conv.weight)
    with torch.no_grad():
        expected = conv(x).double()
        attended = layer(x, tokens=False).double()
    if attended.shape != expected.shape or not (attended - expected).abs().max() <= total.max():
        raise Unreadable("the layer does not cut and join images as its attention takes them")


def _by_position(
    judged: Judged, argument: Argument, within: float | None, leaking: bool
) -> Certificate | None:
    """Where step 1 fails, the certificate of the layer without the heads that attend by content."""
    mhsa = judged.attention
    if argument.steps[-1].number != 1 or not isinstance(mhsa, MHSA):
        return None
    kept = torch.from_numpy(~argument.problem.attention.content)
    if not kept.any():
        return None
    tensors = {name: getattr(mhsa, name).detach()[kept] for name in TENSORS if name != "b_out"}
    weights = MHSAWeights(**tensors, b_out=mhsa.b_out.detach())
    others = judged._replace(attention=MHSA(mhsa.geometry, weights, radix=mhsa.radix))
    return _certificate(others, argument.problem.bound, within, leaking)


def _require_comparable(problem: Problem) -> None:
    """Refuse layers that cannot be compared, and torch settings under which the rounding model does
    not hold.
    """
    conv = problem.conv_module
    mhsa = problem.layer
    if flushes_to_zero(torch.zeros((), dtype=torch.float64, device="cpu")) or flushes_to_zero(
        mhsa.w_val
    ):
        raise ValueError(
            "subnormal numbers are flushed to zero here, in the layers or in the certifier's own arithmetic "
            "(switch it off with torch.set_flush_denormal(False))"
        )
    if winograd_may_run(conv):
        what = "torch may evaluate this convolution by NNPACK's Winograd or FFT here, which round by more than sums do"
        raise ValueError(f"{what} (switch it off with torch.backends.nnpack.set_flags(False))")
    for name in ("dims", "in_channels", "out_channels"):
        theirs = getattr(problem.geometry, name)
        ours = getattr(problem.attention.geometry, name)
        if theirs != ours:
            what = f"the convolution has {theirs} {name}, the attention layer {ours}"
            raise Unreadable(what.replace("_", " "))
    if conv.weight.dtype != mhsa.w_val.dtype:
        raise ValueError(
            f"the convolution is {conv.weight.dtype}, the attention layer {mhsa.w_val.dtype}"
        )
    if conv.weight.device != mhsa.w_val.device:
        raise ValueError(
            f"the convolution is on {conv.weight.device}, the attention layer on {mhsa.w_val.device}"
        )


def _overrun(probes: list[Probe]) -> Overrun | None:
    """The first run over the bound in which the attention is at fault, with the convolution's exact
    output there.
    """
    for probe in probes:
        if probe.refutes and (over := probe.over) is not None:
            return Overrun(probe.execution, over.input, over.index[1:], over.exact, over.attention)
    return None


def _positive(value: float, what: str) -> float:
    if value is None or isinstance(value, bool | str | bytes):
        raise TypeError(f"{what} is {value!r}, not a number")
    try:
        number = float(value)
    except (
        TypeError,
        ValueError,
        OverflowError,
        RuntimeError,
    ):  # the last of a tensor without numbers
        number = nan
    if not 0 < number < inf:
        shown = repr(value)
        if len(shown) > 40:
            shown = f"{shown[:40]}…"
        raise ValueError(f"{what} is {shown}, not a positive finite number")
    return number


# ---- the verdict ---------------------------------------------------------------------------------


def _verdict(
    argument: Argument,
    steps: tuple[Step, ...],
    within: float | None,
    counterexample: Counterexample | None,
    probes: list[Probe],
) -> Verdict:
    if counterexample is not None:
        return Verdict("REFUTED", counterexample.sentence)
    over = next((p for p in probes if p.refutes), None)
    if over is not None:
        return Verdict(
            "REFUTED", f"{over.execution}, on inputs of size {over.grid}: {over.sentence}"
        )
    largest = greatest(argument.total)
    failed = next((step for step in steps if not step.holds), None)
    if failed is not None:
        why = _why_undecided(argument, failed, probes)
        return Verdict("UNDECIDED", f"step {failed.number} ({failed.name}): {why}")
    if not isfinite(largest):
        return Verdict("UNDECIDED", "step 5 (rounding): the bound is not finite")
    most = from_above(largest)
    domain = f"for all |x| ≤ {exactly(argument.problem.bound)} up to {argument.problem.grid}"
    if within is None:
        return Verdict("PROVED", f"the same function {domain}: difference ≤ {most}")
    if not largest <= within:
        exceeds = f"the bound {most} exceeds the wanted {exactly(within)} (claim that bound with within={most})"
        return Verdict("UNDECIDED", exceeds)
    parts = {"leakage": argument.leakage, "taps": argument.taps, "rounding": argument.rounding}
    sums = " + ".join(
        f"{name} {from_above(float(part.max()))}" for name, part in parts.items() if part.any()
    )
    return Verdict(
        "PROVED", f"a difference of at most {exactly(within)} {domain}: {sums or 'nothing differs'}"
    )


def _why_undecided(argument: Argument, failed: Step, probes: list[Probe]) -> str:
    """Why a step fails, and, where heads leak, which claims would hold."""
    if failed.number == 6:
        return next(
            (f"on inputs of size {p.grid}, {p.over.sentence}" for p in probes if p.over),
            failed.sentence,
        )
    if failed.number == 3 and argument.leaks is not None and np.isfinite(argument.total).all():
        most = from_above(greatest(argument.total))
        remedy = f"claim that with within={most}, or take α from {from_above(argument.leaks.sharp_from)} on"
        return f"{failed.sentence}: the layers differ by at most {most} ({remedy})"
    return failed.sentence


# ---- the assumptions -----------------------------------------------------------------------------


def _assumptions(problem: Problem, probes: list[Probe]) -> list[str]:
    """What the certificate assumes of any layers, each as ``"name: sentence"``."""
    counts = Counter[str]()
    for probe in probes:
        counts[probe.execution] += probe.inputs
    ran = ", ".join(f"{name} checked on {count} inputs" for name, count in counts.items() if count)
    if ran:
        sizes = dict.fromkeys(probe.grid for probe in probes if probe.inputs)
        ran += f", against torch's convolution, on contiguous inputs of size {', '.join(map(str, sizes))}"
    beside = (
        ", and beside attention by content rounded to the working type, less their row's maximum"
    )
    beside *= bool(problem.attention.content.any())
    assumptions = [
        f"finite inputs: inputs are finite, |x| ≤ {exactly(problem.bound)}, of spatial size {problem.grid} or smaller",
        f"float64 scores: positions and scores are computed in float64{beside}, the softmax subtracts each row's maximum, "
        "and its exponential is right to a few units in the last place",
        "IEEE sums: every product and sum rounds as IEEE 754 says, in any order, fused or not; by no Winograd, FFT or TF32 "
        "algorithm, under no autocast, with reduced precision switched off, and nothing is flushed to zero",
        "torch's definition: its convolution computes what its documentation says, but for rounding, on inputs of every such "
        f"size and in any memory layout; exceptions known: {KNOWN}",
        f"Eq. 3: the layer's execution computes it: {ran or 'not run'}",
        f"torch {torch.__version__} on {problem.layer.w_val.device}",
    ]
    if problem.fmt.stored_u:
        name = problem.fmt.name
        flushed = (
            ", and what bfloat16 instructions flush to zero, below 2^−126, does not matter"
            * (name == "bfloat16")
        )
        assumptions.append(
            f"float32 accumulation: {name} layers add up in float32, and the convolution rounds to {name} at most once a "
            f"tap{flushed}"
        )
    return assumptions
