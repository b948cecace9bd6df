"""How far a converted network may be from the original, end to end: for given inputs, and for all inputs up to a bound.

Both networks are run side by side (:mod:`verify.side_by_side`), and a bound on the difference is pushed from call to call.

- For given inputs, along the activations that the run showed: a theorem about these inputs alone.
- For all |x| ≤ B, through the absolute coefficients of every layer; the run only shows the shapes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from construct.attention import MHSA
from verify.balls import NoBound
from verify.certificate import Certificate
from verify.fields import TENSORS, Unreadable, read_convolution
from verify.own_code import require_own_attention
from verify.pair_rule import Certifier, Making
from verify.pushing import Pairs, Push
from verify.side_by_side import Outcome, run_both
from verify.verdict import Verdict
from verify.wording import exactly, from_above

ASSUMPTIONS = (
    "inputs are finite, and a network's calls depend on shapes and modes alone, as the recorded ones do",
    "sums may be taken in any order, with or without fused multiply-add, but by no Winograd, FFT or TF32 algorithm, "
    "and nothing is flushed to zero",
    "exp, tanh, erf and the activation functions made of them are evaluated to within 16 units of rounding of the largest "
    "number on the way; square roots and quotients are rounded correctly",
    "half precision accumulates in float32, and rounds a result at most twice, a convolution's at most once a tap",
    "each attention layer's execution computes Eq. 3, as its certificate says",
)


@dataclass(frozen=True)
class NetworkBound:
    """How far the converted network may be from the original.

    Attributes:
        verdict: PROVED, UNDECIDED (naming the module) or REFUTED (a run over the bound), with its sentence.
        bound: the greatest over all outputs; infinite where there is none.
        observed: the greatest |converted − original| of the runs; not a number if there was none.
        per_output: float64 (N, M): a row for each input, a bound for each of its outputs, flattened.
        steps: the way of one run (the first that is not PROVED, else the last).
        assumptions: what is taken for granted.
        certificates: path → the layer's certificate that was used.
    """

    verdict: Verdict
    bound: float
    observed: float
    per_output: np.ndarray
    steps: tuple[Push, ...]
    assumptions: tuple[str, ...]
    certificates: dict[str, Certificate]

    @property
    def per_input(self) -> np.ndarray:
        """The greatest bound of each input: float64 (N,)."""
        return self.per_output.max(axis=1, initial=0.0)


def propagate(
    model: nn.Module,
    converted: nn.Module,
    x: Tensor | Sequence[Any],
    pairs: Pairs | None = None,
    *,
    certificates: Mapping[str, Certificate] | None = None,
    making: Making | None = None,
) -> NetworkBound:
    """Bound |converted(x) − model(x)| for each given input, along the activations that it causes.

    Args:
        model: the original network, in eval mode.
        converted: the same network with attention layers in place of convolutions.
        x: a batch; or a sequence of inputs, one call each (a tuple among them: the arguments of one call).
        pairs: path → (convolution, attention layer), where the caller knows them; they must be what the networks hold.
        certificates: path → certificate of a layer; those that fit are used, others are worked out.
        making: how a certificate is made of a layer that has none yet; for the inputs that it meets, by default.

    Returns:
        The bound, PROVED for these inputs and no others.

    Raises:
        ValueError: an input is not finite, there is none, or their outputs differ in number.
    """
    certifier = Certifier(certificates, making=making)
    outcomes = [_outcomes(model, converted, call, [(None, certifier)], pairs)[0] for call in _calls(x)]
    return _of_these(outcomes, certifier)


def both_cases(
    model: nn.Module,
    converted: nn.Module,
    x: Sequence[Tensor],
    input_bound: float,
    pairs: Pairs | None = None,
    *,
    certificates: Mapping[str, Certificate] | None = None,
    making: Making | None = None,
) -> tuple[NetworkBound, NetworkBound]:
    """What :func:`propagate` and :func:`worst_case` bound, from one pair of runs for each input.

    Args:
        model: as in :func:`propagate`, like the rest.
        converted: the other network.
        x: inputs, one call each; of those like the first the second bound speaks, which is a batch of one.
        input_bound: B, of the second; no |x| is larger.
        pairs: of layers.
        certificates: of layers.
        making: as in :func:`propagate`.

    Raises:
        ValueError: as either, or an input is larger than B, or the first no batch of one.
    """
    calls = _calls(x)
    largest = max(float(t.abs().max()) for (t,) in calls)
    if not largest <= _positive(input_bound) or len(calls[0][0]) != 1:
        raise ValueError(f"the inputs are no batches of one with |x| ≤ {exactly(input_bound)}")
    # All inputs first: a certificate for their larger activations speaks of those of the given inputs too.
    everywhere = Certifier(certificates, making=making)
    here = Certifier(first=everywhere, making=making)
    worst, given = _outcomes(model, converted, calls[0], [(float(input_bound), everywhere), (None, here)], pairs)
    others = [_outcomes(model, converted, call, [(None, here)], pairs)[0] for call in calls[1:]]
    return _of_these([given, *others], here), _of_all(worst, input_bound, calls[0][0].shape[1:], everywhere)


def worst_case(
    model: nn.Module,
    converted: nn.Module,
    input_size: Sequence[int],
    input_bound: float,
    pairs: Pairs | None = None,
    *,
    certificates: Mapping[str, Certificate] | None = None,
) -> NetworkBound:
    """Bound |converted(x) − model(x)| for all finite x of one size with |x| ≤ B.

    Args:
        model: the original network, in eval mode.
        converted: the same network with attention layers in place of convolutions.
        input_size: (D_in, *size), of one input.
        input_bound: B.
        pairs: as in :func:`propagate`.
        certificates: as in :func:`propagate`.

    Returns:
        The bound, often uselessly large; UNDECIDED, naming the module, where a number may overflow.

    Raises:
        ValueError: B is not positive and finite.
    """
    first = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((1, *input_size), generator=generator, dtype=torch.float64) * 2 - 1
    # Rounded, it is still within the bound.
    x = (0.99 * _positive(input_bound) * x).to(first.device, first.dtype)
    certifier = Certifier(certificates)
    (outcome,) = _outcomes(model, converted, (x,), [(float(input_bound), certifier)], pairs)
    return _of_all(outcome, input_bound, input_size, certifier)


def _calls(x: Tensor | Sequence[Any]) -> list[tuple[Any, ...]]:
    """The arguments of each call.

    Raises:
        ValueError: there is none, or one is not finite.
    """
    inputs = [x] if isinstance(x, Tensor) else list(x)
    calls = [call if isinstance(call, tuple) else (call,) for call in inputs]
    if not calls or not all(bool(t.isfinite().all()) for call in calls for t in call if isinstance(t, Tensor)):
        raise ValueError("there is no input" if not calls else "an input has numbers that are not finite")
    return calls


def _positive(input_bound: float) -> float:
    if not 0 < input_bound < math.inf:
        raise ValueError(f"the input bound is {input_bound}, not a positive finite number")
    return input_bound


def _of_these(outcomes: list[Outcome], certifier: Certifier) -> NetworkBound:
    """The verdict for given inputs."""
    if len({outcome.bound.shape[1] for outcome in outcomes}) > 1:
        raise ValueError("the inputs' outputs differ in number; give these inputs one by one")
    rows = sum(len(outcome.bound) for outcome in outcomes)
    which = "this input alone" if rows == 1 else f"these {rows} inputs alone"
    return _judged(outcomes, f"for {which}", "", certifier)


def _of_all(outcome: Outcome, input_bound: float, input_size: Sequence[int], certifier: Certifier) -> NetworkBound:
    """The verdict for all inputs."""
    size = "x".join(map(str, input_size))
    claim = f"for all finite |x| ≤ {exactly(input_bound)} of size {size}"
    return _judged([outcome], claim, " on one of them", certifier)


def _outcomes(
    model: nn.Module,
    converted: nn.Module,
    inputs: tuple[Any, ...],
    claims: Sequence[tuple[float | None, Certifier]],
    pairs: Pairs | None,
) -> list[Outcome]:
    try:
        replaced = _replaced(model, converted, pairs)
    except NoBound as error:  # nothing is run: a network in training mode would change
        return [Outcome(np.full((1, 1), np.nan), np.full((1, 1), np.inf), (), str(error), None) for _ in claims]
    return run_both(model, converted, inputs, claims, replaced)


def _replaced(model: nn.Module, converted: nn.Module, pairs: Pairs | None) -> Pairs:
    """The convolutions of the original for which the other network has attention layers, each by its first path.

    Raises:
        NoBound: a module is in training mode, or is called otherwise than its class says, or ``pairs`` says otherwise.
    """
    random = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU)
    for network in (model, converted):
        for path, module in network.named_modules():
            if isinstance(module, random) and module.training:
                raise NoBound(f"{path or 'the network'} ({type(module).__name__}) is in training mode")
    layers = dict(converted.named_modules(remove_duplicate=False))
    replaced = {
        path: (conv, layers[path])
        for path, conv in model.named_modules()
        if path in layers and hasattr(layers[path], "w_key_pos") and not hasattr(conv, "w_key_pos")
    }
    for path, (conv, layer) in replaced.items():
        try:
            read_convolution(conv)
            if not isinstance(layer, MHSA):
                raise Unreadable(f"{type(layer).__name__} is no MHSA")
            require_own_attention(layer, TENSORS)
        except Unreadable as error:
            raise NoBound(f"{path or 'the network'}: {error}") from error
    for path, pair in (pairs or {}).items():
        if path not in replaced or any(a is not b for a, b in zip(pair, replaced[path], strict=True)):
            raise NoBound(f"{path} is not where the networks hold this pair of layers")
    return replaced


def _judged(outcomes: list[Outcome], claim: str, seen: str, certifier: Certifier) -> NetworkBound:
    """One verdict of all runs."""
    chosen = next((o for o in outcomes if o.contradiction), None) or next(
        (o for o in outcomes if o.failure), outcomes[-1]
    )
    per_output = np.concatenate([outcome.bound for outcome in outcomes])
    observed = max((float(outcome.observed.max(initial=0.0)) for outcome in outcomes), key=lambda x: (math.isnan(x), x))
    largest = float(per_output.max(initial=0.0))
    if chosen.contradiction:
        told = f"{chosen.contradiction}: a run is over the bound that the rules give, so an assumption does not hold"
        verdict = Verdict("REFUTED", told)
    elif chosen.failure:
        verdict = Verdict("UNDECIDED", f"{chosen.failure} ({claim})")
    else:
        told = f"{claim}: |converted − original| ≤ {from_above(largest)} at every output, observed {observed:.3g}{seen}"
        verdict = Verdict("PROVED", told)
    return NetworkBound(verdict, largest, observed, per_output, chosen.steps, ASSUMPTIONS, dict(certifier.used))
