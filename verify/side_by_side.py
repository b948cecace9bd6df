"""An original and a converted network run side by side: the same calls, each with a bound on how far the two are apart.

Let a be an activation of the original and b its counterpart.  Each rule turns bounds |b − a| ≤ e on what goes into a call
into one on what comes out; with f̃ for f as evaluated,

    f̃(b) − f̃(a) = (f(b) − f(a)) + (f̃(b) − f(b)) − (f̃(a) − f(a)),

a Lipschitz-type bound of the exact f, and the rounding of *both* evaluations.

One pair of runs may serve several claims (:mod:`verify.pushing`): about the inputs given, and about all inputs of their shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from verify.balls import NoBound
from verify.pair_rule import Certifier
from verify.pushing import Claim, Pairs, Push, Pushing, matching, tensors
from verify.recording import Event, Recorder
from verify.returned import laid_out


@dataclass
class Outcome:
    """What came of one call of both networks.

    Attributes:
        observed: |converted − original| of every output, float64 (N, M): a row for each input of the batch.
        bound: of every output, (N, M); infinite where there is none.
        steps: the way.
        failure: why no bound could be pushed to the end, naming the call.
        contradiction: the first call at which the run is over the bound, or outside of what the rules allow.
    """

    observed: np.ndarray
    bound: np.ndarray
    steps: tuple[Push, ...]
    failure: str | None
    contradiction: str | None


def run_both(
    model: nn.Module,
    converted: nn.Module,
    inputs: tuple[Any, ...],
    claims: Sequence[tuple[float | None, Certifier]],
    replaced: Pairs,
) -> list[Outcome]:
    """One call of both networks.

    Args:
        model: the original.
        converted: the same with attention layers in place of convolutions.
        inputs: the arguments of the call.
        claims: for each, None to bound the difference for these inputs, or B to bound it for all of their shape with |x| ≤ B,
            these among them; and what to ask for the layers' certificates.
        replaced: path → (convolution, attention layer).

    Returns:
        What came of each claim.
    """
    events: list[Event] = []

    def remember(event: Event) -> None:
        outputs = tuple(value.detach().clone() for value in event.outputs)  # before anything changes them in place
        events.append(Event(event.path, event.function, event.args, event.kwargs, outputs))

    theirs = Recorder(converted, {layer: path for path, (_, layer) in replaced.items()}, remember)
    found, odd = laid_out(theirs.run(inputs))
    failed = theirs.failure or odd
    pushed = [Claim(inputs, bound, certifier, replaced) for bound, certifier in claims]
    pushing = Pushing(replaced, events, theirs.returned(found), pushed)
    ours = Recorder(model, {conv: path for path, (conv, _) in replaced.items()}, pushing)
    expected, odd = laid_out(ours.run(inputs))
    failed = failed or odd
    observed = _by_input([_difference(a, b) for a, b in matching(expected, found)], inputs)
    returned = ours.returned(expected)
    outcomes = []
    for claim in pushed:
        failure = failed or claim.failure or ours.failure or theirs.failure
        errors: list[Tensor] = []
        if failure is None:
            try:
                errors = pushing.errors(claim, returned, expected, found)
            except NoBound as error:
                failure = f"the output: {error}"
        bound = np.full(observed.shape, np.inf) if failure else _by_input(errors, inputs)
        contradiction = claim.contradiction
        if contradiction is None and failure is None and not bool((observed <= bound).all()):  # a NaN fails
            contradiction = "the output"
        outcomes.append(Outcome(observed, bound, tuple(claim.steps), failure, contradiction))
    return outcomes


def _difference(a: Tensor, b: Tensor) -> Tensor:
    first, second = a.detach().cpu().double(), b.detach().cpu().double()
    return torch.where(first == second, 0.0, (first - second).abs())


def _by_input(parts: list[Tensor], inputs: tuple[Any, ...]) -> np.ndarray:
    """What belongs to each input of a batch in one row; all in one row where the outputs have no such axis."""
    sizes = {part.shape[0] if part.dim() else 0 for part in [*parts, *tensors(inputs)]}
    rows = sizes.pop() if len(sizes) == 1 else 1
    flat = [part.double().reshape(rows, -1) if rows else part.double().flatten(1) for part in parts]
    return torch.cat([torch.zeros(rows, 0), *flat], dim=1).numpy()
