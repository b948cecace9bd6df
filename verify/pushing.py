"""The way of a bound through two networks: from call to call, for each claim that the runs are to serve.

A claim is about the inputs of the run alone; then each activation is known, and so are the numbers around which an error is
bounded.  Or it is about all inputs of their shape with |x| ≤ B; then no place of an image differs from another, and balls are
held once a channel for as long as the calls on the way allow it.  A padded border only adds up less, so that nothing is lost
but there.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from verify.balls import Ball, Call, NoBound
from verify.budget import FORMATS
from verify.observed import Seen
from verify.pair_rule import Certifier, paired
from verify.recording import Activation, Event
from verify.rule_table import EVEN, RULES

LARGE = 2**14
"""From so many numbers on, an input of a claim about all inputs is held once a channel: its places differ by the borders alone.
Of smaller ones the borders are a good part, and to hold every place costs little."""

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


class Claim:
    """One claim on the way: its balls, what was pushed, and where it ends.

    Args:
        inputs: of both networks.
        input_bound: None for these inputs alone, or B.
        certifier: for the layers' certificates.
        replaced: path → (convolution, attention layer).
    """

    def __init__(self, inputs: tuple[Any, ...], input_bound: float | None, certifier: Certifier, replaced: Pairs):
        self.known, self.certifier, self.replaced = input_bound is None, certifier, replaced
        self.steps: list[Push] = []
        self.failure: str | None = None
        self.contradiction: str | None = None
        self.balls: dict[Activation, tuple[Ball, torch.dtype]] = {}
        for part, value in enumerate(tensors(inputs)):
            if value.is_floating_point():
                ball = Ball.exact(value) if input_bound is None else everywhere(input_bound, value.shape)
                self.balls[Activation(0, part)] = ball, value.dtype

    def push(self, event: Event, number: int, seen: Sequence[Seen]) -> None:
        """One call of the original, and what the runs gave.

        Raises:
            NoBound: there is no rule, or the rule has no bound here.
        """
        for part, (ball, there, a) in enumerate(zip(self._balls(event), seen, event.outputs, strict=True)):
            self.balls[Activation(number + 1, part)] = self._settled(event.name, ball, there), a.dtype

    def _balls(self, event: Event) -> list[Ball]:
        """What the rule makes of a call: a ball for every tensor that it returns.

        Raises:
            NoBound: there is no rule, or it has no bound.
        """
        rule = RULES.get(event.function)
        if rule is None and not isinstance(event.function, nn.Module):
            raise NoBound("there is no rule for it")
        dtypes = {t.dtype for t in event.outputs} | {self.balls[leaf][1] for leaf in activations(event)}
        names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
        if len(names) != 1 or names[0] not in FORMATS:
            raise NoBound(f"it mixes the formats {', '.join(names)}")
        even = False

        def named(value: Any) -> Any:
            nonlocal even
            if not isinstance(value, Activation):
                return value
            ball = self.balls[value][0]
            ball = ball if takes_even(event.function, ball) else ball.whole()
            even = even or ball.even
            return ball

        args, kwargs = tree_map(named, (event.args, event.kwargs))
        call = Call(event.function, args, kwargs, event.result, fmt=FORMATS[names[0]])
        try:
            if isinstance(event.function, nn.Module):
                results = [paired(call, event.path, *self.replaced[event.path], self.certifier, event.fields)]
            else:
                assert rule is not None
                results = tree_leaves(rule(call), is_leaf=lambda value: isinstance(value, Ball))
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise NoBound(f"its rule does not fit this call: {type(error).__name__}: {error}") from error
        if len(results) != len(event.outputs) or not all(
            fits(*pair, even) for pair in zip(results, event.outputs, strict=True)
        ):
            raise NoBound("its rule does not fit this call: the shapes differ")
        for result in results:
            if not 2 * sum(result.greatest) < call.fmt.largest:  # the two need not stand in one place
                call.must_not_overflow(result.size, result.error)
        return [spanning(ball, tuple(t.shape)) for ball, t in zip(results, event.outputs, strict=True)]

    def _settled(self, name: str, ball: Ball, seen: Seen) -> Ball:
        """The ball of an output, held against the run, and, for given inputs, around what the run showed.

        Raises:
            NoBound: the run gave numbers that are not finite.
        """
        if not all(map(math.isfinite, (seen.most, *ball.greatest))):
            raise NoBound("it gives numbers that are not finite")
        if not seen.within(ball):
            self.contradiction = self.contradiction or name
        if self.known:
            ball = Ball.known(seen.here, seen.size, ball.error, (seen.largest, ball.greatest[1]))
        self.steps.append(Push(name, seen.most, *ball.greatest[::-1]))
        return ball


class Pushing:
    """Listens to a run of the original, holds each call against the converted network's, and pushes the balls.

    Args:
        replaced: path → (convolution, attention layer).
        events: the calls of the converted network.
        returned: which activations it returned.
        claims: what to push.
    """

    def __init__(
        self,
        replaced: Pairs,
        events: list[Event],
        returned: list[Activation | None],
        claims: Sequence[Claim],
    ):
        self.replaced, self.events, self.returned, self.claims = replaced, events, returned, claims
        self.count = 0
        self.last_use = {leaf: number for number, event in enumerate(events) for leaf in activations(event)}

    def __call__(self, event: Event) -> None:
        """One call of the original.

        Raises:
            NoBound: the other network does something else, or no claim is left that could be pushed.
        """
        number = self.count
        if number >= len(self.events) or not self._same_call(event, self.events[number]):
            raise NoBound("the converted network makes another call here")
        self.count += 1
        seen = list(map(Seen.of, event.outputs, self.events[number].outputs))
        failed: NoBound | None = None
        for claim in self.claims:
            if claim.failure is None:
                try:
                    claim.push(event, number, seen)
                except NoBound as error:
                    claim.failure, failed = f"{event.name}: {error}", error
        if failed is not None and all(claim.failure for claim in self.claims):
            raise failed
        for leaf in activations(event):
            if self.last_use[leaf] == number and leaf not in self.returned:
                for claim in self.claims:
                    claim.balls.pop(leaf, None)

    def errors(self, claim: Claim, returned: list[Activation | None], expected: Any, found: Any) -> list[Tensor]:
        """The error of every tensor that the networks return, by a claim.

        Raises:
            NoBound: they return different things.
        """
        if self.count != len(self.events) or returned != self.returned:
            raise NoBound("the networks make different calls or return different things")
        plain = [[value for value in values if not isinstance(value, Tensor)] for values in (expected, found)]
        if not _alike(*plain):
            raise NoBound("the networks return different constants")
        errors = []
        for key, (a, b) in zip(returned, matching(expected, found), strict=True):
            if key is None and not _alike(a, b):
                raise NoBound("the networks return different constants")
            errors.append(
                torch.zeros(a.shape, dtype=torch.float64) if key is None else claim.balls[key][0].whole().error
            )
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


# ---- what belongs together -------------------------------------------------------------------------------------------------


def everywhere(bound: float, shape: Sequence[int]) -> Ball:
    """All activations of a shape with |a| ≤ B, the same in both networks: of large ones, one number a channel."""
    if math.prod(shape) < LARGE:
        size = torch.full(tuple(shape), bound, dtype=torch.float64)
        return Ball.around_zero(size, torch.zeros_like(size))
    held = torch.full([n if axis < 2 else min(n, 1) for axis, n in enumerate(shape)], bound, dtype=torch.float64)
    return replace(Ball.around_zero(held, torch.zeros_like(held)), over=tuple(shape))


def spanning(ball: Ball, shape: tuple[int, ...]) -> Ball:
    """A ball, of an activation of this shape."""
    if ball.shape == shape:
        return ball
    held = replace(ball, over=shape)
    vars(held).update({**vars(ball), "over": shape})  # and what was worked out of the very same numbers
    return held


def takes_even(function: Any, ball: Ball) -> bool:
    """Whether the rule of a call takes a ball that holds once what is the same along an axis."""
    dims = len(function.kernel_size) if isinstance(function, nn.Module) else EVEN.get(function, -1)  # type: ignore[arg-type]
    return dims == 0 or (len(ball.shape) == dims + 2 and set(ball.error.shape[2:]) == {1})


def fits(ball: Ball, output: Tensor, even: bool) -> bool:
    """Whether a rule's result has the shape of the output; from balls that hold some things once, but for those axes."""
    shapes = [tuple(part.shape) for part in (ball.low, ball.high, ball.error)]
    if not even or any(len(shape) != output.dim() for shape in shapes):
        return all(shape == tuple(output.shape) for shape in shapes)
    return all(n in (1, m) for shape in shapes for n, m in zip(shape, output.shape, strict=True))


def _alike(a: Any, b: Any) -> bool:
    """Whether two arguments say the same: the same activations, equal constants, equal values."""
    ours, theirs = tree_flatten(a), tree_flatten(b)
    return ours[1] == theirs[1] and all(_equal(x, y) for x, y in zip(ours[0], theirs[0], strict=True))


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        both = isinstance(x, Tensor) and isinstance(y, Tensor)
        return both and x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y)
    return type(x) is type(y) and bool(x == y)


def matching(expected: Any, found: Any) -> list[tuple[Tensor, Tensor]]:
    """The tensors that two networks return, in pairs.

    Raises:
        ValueError: there are more of one than of the other, or they differ in shape.
    """
    ours, theirs = tensors(expected), tensors(found)
    if [t.shape for t in ours] != [t.shape for t in theirs]:
        raise ValueError(f"the networks return {[tuple(t.shape) for t in ours]} and {[tuple(t.shape) for t in theirs]}")
    return list(zip(ours, theirs, strict=True))


def tensors(tree: Any) -> list[Tensor]:
    """All tensors, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def activations(event: Event) -> Iterator[Activation]:
    """All activations that go into a call."""
    return (leaf for leaf in tree_leaves((event.args, event.kwargs)) if isinstance(leaf, Activation))
