"""What a certificate takes for granted, in short sentences, each after the few words by which a summary names it."""

import torch

from verify.argument.probing import Probe
from verify.argument.steps import Argument
from verify.verdict import exactly


def assumptions_of(argument: Argument, probes: list[Probe], worked_out: tuple[str, ...]) -> tuple[str, ...]:
    """All of them, as ``"name: sentence"``.

    Args:
        argument: after its steps.
        probes: the runs.
        worked_out: by what torch works out tensors of the convolution.
    """
    counts: dict[str, int] = {}
    for probe in probes:
        counts[probe.execution] = counts.get(probe.execution, 0) + probe.inputs
    ran = ", ".join(f"{name} checked on {count} inputs" for name, count in counts.items() if count)
    device = argument.layer.w_val.device
    told = [
        f"finite inputs: inputs are finite, |x| ≤ {exactly(argument.bound)}, of spatial size {argument.grid} or smaller",
        "float64 scores: positions and scores are computed in float64, the softmax subtracts each row's maximum, and its "
        "exponential is right to a few units in the last place",
        "IEEE sums: every product and sum rounds as IEEE 754 says, in any order, fused or not; by no Winograd, FFT or TF32 "
        "algorithm, under no autocast, with reduced precision switched off, and nothing is flushed to zero",
        "torch's definition: its convolution computes what its documentation says, but for rounding, in any memory layout",
        f"Eq. 3: the layer's execution computes it: {ran or 'not run'}",
        f"torch {torch.__version__} on {device}",
    ]
    if argument.fmt.stored_u:
        name = argument.dtype
        flushed = ", and what bfloat16 instructions flush to zero, below 2^−126, does not matter" * (name == "bfloat16")
        told.append(
            f"float32 accumulation: {name} layers add up in float32, and the convolution rounds to {name} at most once a "
            f"tap{flushed}"
        )
    if worked_out:
        told.append(
            f"eval mode: the convolution's numbers are those of eval mode, worked out by {', '.join(worked_out)}"
        )
    return tuple(told)
