"""The certificate for all inputs: the argument, the runs, and, where they fail, the search for a counterexample.

Steps 0 to 5 are in :mod:`verify.argument.steps`, step 6 (the runs) in :mod:`verify.argument.runs`.  Here:

7             REFUTED only with an input on which the two exact outputs differ, or a run over the bound in which the attention is
              off its exact value
"""

from collections.abc import Iterable
from math import inf, isfinite, nan
from operator import index
from typing import Any

import numpy as np
import torch

from construct.attention import MHSA
from verify.argument.assumptions import assumptions_of
from verify.argument.certificate import Certificate
from verify.argument.probing import Probe
from verify.argument.refutation import Counterexample
from verify.argument.runs import overrun, run_all
from verify.argument.search import counterexample_of
from verify.argument.steps import Argument
from verify.layers.bits import copied, unchanged
from verify.layers.fields import TENSORS, Unreadable, digest, stated_geometry
from verify.layers.own_code import require_own_attention
from verify.layers.reparametrized import settled
from verify.oracle import flushes_to_zero, winograd_may_run
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
        conv: an nn.Conv1d, 2d, 3d or nn.ConvTranspose1d, 2d, 3d; one whose tensors ``torch.nn.utils`` works out from others
            (weight_norm, spectral_norm, pruning, parametrizations) is judged as it is in eval mode, and an assumption says so.
        mhsa: the attention layer (its raw fields are read; its executions are run).
        grid: the spatial size of the input, before padding; smaller inputs are covered too.
        input_bound: B; the claim is about inputs with |x| ≤ B.
        within: None to claim the same function, which is UNDECIDED where heads leak (the sentence names the bound, and the α
            from which on they do not); a number T to claim a difference of at most T.

    Returns:
        The certificate, whatever the verdict.

    Raises:
        Unreadable: the two cannot be read as a convolution and an attention layer, or hold non-finite numbers, or may
            compute something else than their fields say (hooks, another forward), or change while they are run.
        GridRefused: torch's convolution has no output for this grid.
        TypeError: the grid is no series of whole numbers, or B or T no number.
        ValueError: B or T is not positive and finite, or the layers differ in type or device, or the bound overflows the type,
            or an axis of the grid has too many tokens to be gone through one by one, or subnormal numbers are flushed to
            zero (``torch.set_flush_denormal``), or torch may take NNPACK's Winograd (with mkldnn switched off).
    """
    return certified(conv, mhsa, grid, input_bound, within)


def certified(
    conv: Any,
    mhsa: Any,
    grid: Iterable[int],
    input_bound: float,
    within: float | None,
    leaking: bool = False,
) -> Certificate:
    """:func:`certify`; with ``leaking``, where heads leak and no ``within`` says otherwise, the derived bound is claimed."""
    grid = _sizes(grid)
    input_bound = _positive(input_bound, "the input bound")
    within = None if within is None else _positive(within, "within")
    if isinstance(mhsa, MHSA):  # else nothing of it is run
        require_own_attention(mhsa, TENSORS)
    given, (conv, worked_out) = conv, settled(conv)
    argument = Argument(conv, mhsa, grid, input_bound, within, leaking)
    digests, before = _digests(conv, mhsa), copied(conv, mhsa)
    if flushes_to_zero(torch.zeros((), dtype=torch.float64)) or flushes_to_zero(mhsa.w_val):
        raise ValueError(
            "subnormal numbers are flushed to zero here, in the layers or in the certifier's own arithmetic "
            "(switch it off with torch.set_flush_denormal(False))"
        )
    if winograd_may_run(conv):
        told = "torch may evaluate this convolution by NNPACK's Winograd or FFT here, which round by more than sums do"
        raise ValueError(f"{told} (switch it off with torch.backends.nnpack.set_flags(False))")
    theirs, ours = argument.geometry, argument.attention.geometry
    for name in ("dims", "in_channels", "out_channels"):
        if getattr(theirs, name) != getattr(ours, name):
            told = f"the convolution has {getattr(theirs, name)} {name}, the attention layer {getattr(ours, name)}"
            raise Unreadable(told.replace("_", " "))
    if conv.weight.dtype != mhsa.w_val.dtype:
        raise ValueError(f"the convolution is {conv.weight.dtype}, the attention layer {mhsa.w_val.dtype}")
    if conv.weight.device != mhsa.w_val.device:
        raise ValueError(f"the convolution is on {conv.weight.device}, the attention layer on {mhsa.w_val.device}")
    argument.run()
    total = _total(argument)
    if leaking and within is None and argument.leaked.any() and np.isfinite(total).all():
        derived = float(np.nextafter(argument.rounding + argument.leaked, np.inf).max())
        argument.within = min(float(from_above(derived)), float(np.finfo(np.float64).max))
    counter = counterexample_of(argument)
    probes = run_all(argument, total)
    if not unchanged(before, settled(given)[0], mhsa):
        raise Unreadable("a layer's numbers changed while it was read and run")
    observed = np.max([np.zeros(len(total)), *(probe.observed for probe in probes)], axis=0)
    return Certificate(
        verdict=_verdict(argument, total, counter, probes),
        grid=grid,
        input_bound=argument.bound,
        within=argument.within,
        bound=total,
        rounding=argument.rounding,
        leakage=argument.leaked,
        taps=argument.taps,
        steps=tuple(argument.steps),
        assumptions=assumptions_of(argument, probes, worked_out),
        dtype=argument.dtype,
        heads=len(argument.attention.v),
        conv_geometry=stated_geometry(conv),
        mhsa_geometry=stated_geometry(mhsa),
        conv_sha256=digests[0],
        mhsa_sha256=digests[1],
        torch_version=torch.__version__,
        observed=observed,
        tightness=_tightness(total, observed),
        probes=tuple(
            {"execution": p.execution, "inputs": p.inputs, "grid": list(p.grid), "ratio": p.worst, "note": p.note}
            for p in probes
        ),
        counterexample=counter,
        overrun=overrun(probes),
    )


def _total(argument: Argument) -> np.ndarray:
    """The bound, (D_out,): infinite where a part is."""
    with np.errstate(invalid="ignore"):
        total = argument.rounding + argument.leaked + argument.taps
    return np.where(np.isfinite(total), np.nextafter(total, np.inf), np.inf)


def _tightness(total: np.ndarray, observed: np.ndarray) -> float:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return float(np.where((observed > 0) & (total < np.inf), total / observed, np.inf).min(initial=np.inf))


def _digests(conv: Any, mhsa: Any) -> tuple[str, str]:
    return digest(conv, ("weight", "bias")), digest(mhsa, TENSORS)


def _sizes(grid: Iterable[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(grid)
    except TypeError:
        sizes = (None,)
    if isinstance(grid, str) or any(isinstance(n, bool) or not hasattr(n, "__index__") for n in sizes):
        raise TypeError(f"the grid {grid!r} is no series of whole numbers")
    return tuple(index(n) for n in sizes)  # type: ignore[arg-type]


def _positive(value: float, what: str) -> float:
    if value is None or isinstance(value, bool | str | bytes):
        raise TypeError(f"{what} is {value!r}, not a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = nan
    if not 0 < number < inf:
        told = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}…"
        raise ValueError(f"{what} is {told}, not a positive finite number")
    return number


# ---- the verdict --------------------------------------------------------------------------------------------------------


def _verdict(argument: Argument, total: np.ndarray, counter: Counterexample | None, probes: list[Probe]) -> Verdict:
    if counter is not None:
        return Verdict("REFUTED", counter.sentence)
    over = next((p for p in probes if p.refutes), None)
    if over is not None:
        told = over.note or f"a run differs from the convolution by {over.worst:.3g} times the bound"
        told += f": {over.over.sentence}" if over.over else ""
        return Verdict("REFUTED", f"{over.execution}, on inputs of size {over.grid}: {told}")
    largest = float(total.max(initial=0.0))
    failed = next((step for step in argument.steps if not step.holds), None)
    if failed is not None:
        odd = next((p for p in probes if p.over), None)
        told = (
            f"on inputs of size {odd.grid}, {odd.over.sentence}"
            if odd and odd.over and failed.number == 6
            else failed.sentence
        )
        told = f"step {failed.number} ({failed.name}): {told}"
        if failed.number == 3 and isfinite(largest):
            told += (
                f": the layers differ by at most {from_above(largest)} (claim that with within={from_above(largest)}"
            )
            told += f", or take α from {from_above(argument.sharp_from)} on)"
        return Verdict("UNDECIDED", told)
    if not isfinite(largest):
        return Verdict("UNDECIDED", "step 5 (rounding): the bound is not finite")
    domain = f"for all |x| ≤ {exactly(argument.bound)} up to {argument.grid}"
    if argument.within is None:
        return Verdict("PROVED", f"the same function {domain}: difference ≤ {from_above(largest)}")
    if not largest <= argument.within:
        told = f"the bound {from_above(largest)} exceeds the wanted {exactly(argument.within)}"
        return Verdict("UNDECIDED", f"{told} (claim that bound with within={from_above(largest)})")
    parts = {"leakage": argument.leaked, "taps": argument.taps, "rounding": argument.rounding}
    told = " + ".join(f"{name} {from_above(float(part.max()))}" for name, part in parts.items() if part.any())
    return Verdict(
        "PROVED", f"a difference of at most {exactly(argument.within)} {domain}: {told or 'nothing differs'}"
    )
