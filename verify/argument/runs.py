"""Step 6 of a certificate: every execution of the layer, on adversarial inputs, beside the convolution and under the bound."""

import math

import numpy as np

from construct.attention import MHSA
from verify.argument.certificate import Overrun, Step
from verify.argument.probe_inputs import HEAVY, adversarial_inputs, impulses, probe_grids, random_inputs
from verify.argument.probing import Probe, impulse_bound, run_executions
from verify.argument.steps import Argument
from verify.layers.reading import output_size


def run_all(argument: Argument, total: np.ndarray) -> list[Probe]:
    """Run every execution, and enter the step.

    Args:
        argument: after its steps.
        total: the bound, (D_out,).
    """
    layer = argument.layer
    if not isinstance(layer, MHSA):
        argument.steps.append(Step(6, "runs", False, "the attention layer has no executions to run"))
        return []
    module, conv, bound = argument.conv_module, argument.conv, argument.bound
    small, other = probe_grids(argument.geometry, argument.grid, argument.attention)
    if conv.weight.size < HEAVY:
        probes = run_executions(module, layer, adversarial_inputs(conv, small, bound), total)
        # On the other grid, where tokens come from: random signs and magnitudes show that.
        shape = (argument.geometry.in_channels, *other)
        inputs = np.stack(random_inputs(shape, bound, np.random.default_rng(0)))
    else:  # one size, with a stride that on which inputs may be left over
        other = other if any(s > 1 for s in conv.stride) else small
        probes, inputs = [], adversarial_inputs(conv, other, bound)
    alone = impulses(conv, other, bound)  # show what each head carries
    allowed = total
    if argument.aims is not None and argument.same_taps and argument.one_hot:
        shifts = [None if aimed is None else aimed.shift for aimed in argument.aims]
        local = impulse_bound(
            conv,
            argument.attention,
            shifts,
            alone,
            argument.fmt,
            argument.tokens,
            argument.as_stored,
            argument.remainders,
        )
        if local is not None:
            whole = total.reshape(-1, *(1,) * len(other))
            allowed = np.concatenate([np.broadcast_to(whole, (len(inputs), *local.shape[1:])), local])
    # There with several blocks, as on large inputs; of unequal lengths.
    queries = max(1, 2 * math.prod(output_size(argument.geometry, other)) // 5)
    probes += run_executions(module, layer, np.concatenate([inputs, alone]), allowed, queries=queries)
    ran = [f"{p.execution} {p.worst:.2g} on {p.inputs} of size {p.grid}" for p in probes if not p.note]
    told = f"observed over bound on adversarial inputs: {', '.join(ran) or 'nothing could be run'}"
    told += next((f"; {p.execution} raises {p.note}" for p in probes if p.broken), "")
    told += next((f"; {p.execution}: {p.over.sentence}" for p in probes if p.over), "")
    within = all(p.worst <= 1 for p in probes) and bool(ran) and not any(p.broken for p in probes)
    argument.steps.append(Step(6, "runs", within, told))
    return probes


def overrun(probes: list[Probe]) -> Overrun | None:
    """The first run in which the attention is off by more than the bound, beside the convolution's exact output there."""
    for probe in probes:
        if probe.refutes and probe.over is not None and probe.at is not None:
            one = probe.over
            return Overrun(probe.execution, probe.at, one.index[1:], one.exact, one.attention)
    return None
