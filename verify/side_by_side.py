"""An original and a converted network run side by side: the same calls, each with a bound on how far the two are apart.

Let a be an activation of the original and b its counterpart.  Each rule turns bounds |b − a| ≤ e on what goes into a call
into one on what comes out; with f̃ for f as evaluated,

    f̃(b) − f̃(a) = (f(b) − f(a)) + (f̃(b) − f(b)) − (f̃(a) − f(a)),

a Lipschitz-type bound of the exact f, and the rounding of *both* evaluations.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from verify.balls import Ball, Call, NoBound
from verify.budget import FORMATS
from verify.pair_rule import Certifier, paired
from verify.recording import Activation, Event, Recorder
from verify.rule_table import RULES

Pairs = Mapping[str, tuple[nn.Module, nn.Module]]


@dataclass(frozen=True)
class Push:
    """One call on the way.

    Attributes:
        name: where, and what was called.
        observed: the greatest |b − a| of the run.
        bound: the greatest e.
        magnitude: the greatest |a| that the bound allows for.
    """

    name: str
    observed: float
    bound: float
    magnitude: float


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
    input_bound: float | None,
    replaced: Pairs,
    certifier: Certifier,
) -> Outcome:
    """One call of both networks.

    Args:
        model: the original.
        converted: the same with attention layers in place of convolutions.
        inputs: the arguments of the call.
        input_bound: None to bound the difference for these inputs; B to bound it for all of their shape with |x| ≤ B.
        replaced: path → (convolution, attention layer).
        certifier: for the layers' certificates.
    """
    events: list[Event] = []

    def remember(event: Event) -> None:
        outputs = tuple(value.detach().clone() for value in event.outputs)  # before anything changes them in place
        events.append(Event(event.path, event.function, event.args, event.kwargs, outputs))

    theirs = Recorder(converted, {layer: path for path, (_, layer) in replaced.items()}, remember)
    found = theirs.run(inputs)
    failed = theirs.failure
    pushing = Pushing(replaced, events, theirs.returned(found), inputs, input_bound, certifier)
    ours = Recorder(model, {conv: path for path, (conv, _) in replaced.items()}, pushing)
    expected = ours.run(inputs)
    observed = _by_input([_difference(a, b) for a, b in _matching(expected, found)], inputs)
    failure = failed or ours.failure or theirs.failure
    errors: list[Tensor] = []
    if failure is None:
        try:
            errors = pushing.errors(ours.returned(expected), expected, found)
        except NoBound as error:
            failure = f"the output: {error}"
    bound = np.full(observed.shape, np.inf) if failure else _by_input(errors, inputs)
    contradiction = pushing.contradiction
    if contradiction is None and failure is None and not bool((observed <= bound).all()):  # a NaN fails
        contradiction = "the output"
    return Outcome(observed, bound, tuple(pushing.steps), failure, contradiction)


class Pushing:
    """Listens to a run of the original, holds each call against the converted network's, and pushes the balls.

    Args:
        replaced: path → (convolution, attention layer).
        events: the calls of the converted network.
        returned: which activations it returned.
        inputs: of both.
        input_bound: None, or B.
        certifier: for the layers' certificates.
    """

    def __init__(
        self,
        replaced: Pairs,
        events: list[Event],
        returned: list[Activation | None],
        inputs: tuple[Any, ...],
        input_bound: float | None,
        certifier: Certifier,
    ):
        self.replaced, self.events, self.returned = replaced, events, returned
        self.known, self.certifier = input_bound is None, certifier
        self.steps: list[Push] = []
        self.contradiction: str | None = None
        self.count = 0
        self.balls: dict[Activation, tuple[Ball, torch.dtype]] = {}
        for part, value in enumerate(_tensors(inputs)):
            if value.is_floating_point():
                ball = Ball.exact(value)
                if input_bound is not None:
                    ball = Ball.around_zero(torch.full_like(ball.error, input_bound), ball.error)
                self.balls[Activation(0, part)] = ball, value.dtype
        self.last_use = {leaf: number for number, event in enumerate(events) for leaf in _activations(event)}

    def __call__(self, event: Event) -> None:
        """One call of the original.

        Raises:
            NoBound: the other network does something else, or there is no rule, or the rule has no bound here.
        """
        number = self.count
        if number >= len(self.events) or not self._same_call(event, self.events[number]):
            raise NoBound("the converted network makes another call here")
        self.count += 1
        others = self.events[number].outputs
        for part, (ball, a, b) in enumerate(zip(self._balls(event), event.outputs, others, strict=True)):
            self.balls[Activation(number + 1, part)] = self._settled(event.name, ball, a, b), a.dtype
        for leaf in _activations(event):
            if self.last_use[leaf] == number and leaf not in self.returned:
                self.balls.pop(leaf, None)

    def errors(self, returned: list[Activation | None], expected: Any, found: Any) -> list[Tensor]:
        """The error of every tensor that the networks return.

        Raises:
            NoBound: they return different things.
        """
        if self.count != len(self.events) or returned != self.returned:
            raise NoBound("the networks make different calls or return different things")
        errors = []
        for key, (a, b) in zip(returned, _matching(expected, found), strict=True):
            if key is None and not _alike(a, b):
                raise NoBound("the networks return different constants")
            errors.append(torch.zeros(a.shape, dtype=torch.float64) if key is None else self.balls[key][0].error)
        return errors

    def _same_call(self, event: Event, other: Event) -> bool:
        if isinstance(event.function, nn.Module):
            pair = self.replaced.get(event.path)
            same = pair is not None and event.function is pair[0] and other.function is pair[1]
        else:
            same = event.function == other.function
        shapes = [[(t.shape, t.dtype) for t in outputs] for outputs in (event.outputs, other.outputs)]
        return (
            same
            and event.path == other.path
            and shapes[0] == shapes[1]
            and _alike((event.args, event.kwargs), (other.args, other.kwargs))
        )

    def _balls(self, event: Event) -> list[Ball]:
        """What the rule makes of a call: a ball for every tensor that it returns.

        Raises:
            NoBound: there is no rule, or it has no bound.
        """
        rule = RULES.get(event.function)
        if rule is None and not isinstance(event.function, nn.Module):
            raise NoBound("there is no rule for it")
        dtypes = {t.dtype for t in event.outputs} | {self.balls[leaf][1] for leaf in _activations(event)}
        names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
        if len(names) != 1 or names[0] not in FORMATS:
            raise NoBound(f"it mixes the formats {', '.join(names)}")

        def named(value: Any) -> Any:
            return self.balls[value][0] if isinstance(value, Activation) else value

        args, kwargs = tree_map(named, (event.args, event.kwargs))
        call = Call(event.function, args, kwargs, event.result, fmt=FORMATS[names[0]])
        try:
            if isinstance(event.function, nn.Module):
                results = [paired(call, event.path, *self.replaced[event.path], self.certifier)]
            else:
                assert rule is not None
                results = tree_leaves(rule(call), is_leaf=lambda value: isinstance(value, Ball))
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise NoBound(f"its rule does not fit this call: {type(error).__name__}: {error}") from error
        if [r.error.shape for r in results] != [t.shape for t in event.outputs]:
            raise NoBound("its rule does not fit this call: the shapes differ")
        for result in results:
            call.must_not_overflow(result.reach)
        return results

    def _settled(self, name: str, ball: Ball, a: Tensor, b: Tensor) -> Ball:
        """The ball of an output, held against the run, and, for given inputs, around what the run showed.

        Raises:
            NoBound: the run gave numbers that are not finite.
        """
        here, there = Ball.exact(a), b.detach().cpu().double()
        if not all(_finite(t) for t in (here.low, there, ball.low, ball.high, ball.error)):
            raise NoBound("it gives numbers that are not finite")
        observed = (there - here.low).abs()
        inside = (observed <= ball.error) & (ball.low <= here.low) & (here.low <= ball.high)
        if not bool(inside.all()):
            self.contradiction = self.contradiction or name
        if self.known:
            ball = Ball(here.low, here.high, ball.error)
        self.steps.append(Push(name, _greatest(observed), _greatest(ball.error), _greatest(ball.size)))
        return ball


# ---- what belongs together -------------------------------------------------------------------------------------------------


def _alike(a: Any, b: Any) -> bool:
    """Whether two arguments say the same: the same activations, equal constants, equal values."""
    ours, theirs = tree_flatten(a), tree_flatten(b)
    return ours[1] == theirs[1] and all(_equal(x, y) for x, y in zip(ours[0], theirs[0], strict=True))


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        both = isinstance(x, Tensor) and isinstance(y, Tensor)
        return both and x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y)
    return type(x) is type(y) and bool(x == y)


def _matching(expected: Any, found: Any) -> list[tuple[Tensor, Tensor]]:
    """The tensors that two networks return, in pairs.

    Raises:
        ValueError: there are more of one than of the other, or they differ in shape.
    """
    ours, theirs = _tensors(expected), _tensors(found)
    if [t.shape for t in ours] != [t.shape for t in theirs]:
        raise ValueError(f"the networks return {[tuple(t.shape) for t in ours]} and {[tuple(t.shape) for t in theirs]}")
    return list(zip(ours, theirs, strict=True))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _activations(event: Event) -> Iterator[Activation]:
    return (leaf for leaf in tree_leaves((event.args, event.kwargs)) if isinstance(leaf, Activation))


def _difference(a: Tensor, b: Tensor) -> Tensor:
    first, second = a.detach().cpu().double(), b.detach().cpu().double()
    return torch.where(first == second, 0.0, (first - second).abs())


def _by_input(parts: list[Tensor], inputs: tuple[Any, ...]) -> np.ndarray:
    """What belongs to each input of a batch in one row; all in one row where the outputs have no such axis."""
    sizes = {part.shape[0] if part.dim() else 0 for part in [*parts, *_tensors(inputs)]}
    rows = sizes.pop() if len(sizes) == 1 else 1
    flat = [part.double().reshape(rows, -1) if rows else part.double().flatten(1) for part in parts]
    return torch.cat([torch.zeros(rows, 0), *flat], dim=1).numpy()


def _finite(values: Tensor) -> bool:
    """Whether all numbers are; a NaN is both the least and the greatest."""
    return not values.numel() or all(math.isfinite(end) for end in values.aminmax())


def _greatest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
