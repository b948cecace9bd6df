"""Where an activation lies in one network, and how far the other network's may be from it.

Every number below is a float64 bound that errs on the safe side: sums of non-negative terms are widened by far more than
float64 loses in them, and where two terms may cancel, by a multiple of their sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from verify.budget import WIDEN, Format
from verify.rounding import gamma

SPECK = 2.0**-1000
"""Added to a bound that is not 0: more than any product in float64 loses where it underflows."""


class NoBound(Exception):
    """An operation through which no bound can be pushed; the message says why."""


@dataclass(frozen=True)
class Ball:
    """For every element: ``low`` ≤ a ≤ ``high`` of the original network, and |b − a| ≤ ``error`` for the converted one.

    What is the same all along an axis may be held once: the tensors then have 1 there, and ``over`` is the activation's shape.

    Attributes:
        low, high: equal where the activation is known.
        error: not negative.
        over: the shape of the activation, to which the three broadcast; None where it is theirs.
    """

    low: Tensor
    high: Tensor
    error: Tensor
    over: tuple[int, ...] | None = None
    centred: ClassVar[bool] = False
    """Whether ``low`` and ``high`` are −size and size, as :meth:`around_zero` makes them."""

    @classmethod
    def exact(cls, value: Tensor) -> "Ball":
        """The same known numbers in both networks."""
        number = value.detach().cpu().to(torch.float64, copy=True)
        return cls(number, number, torch.zeros_like(number))

    @classmethod
    def known(cls, value: Tensor, size: Tensor, error: Tensor, greatest: tuple[float, float]) -> "Ball":
        """A known activation, float64, its absolute value, and how large that and the error are."""
        ball = cls(value, value, error)
        vars(ball).update(size=size, greatest=greatest)
        return ball

    @classmethod
    def around_zero(cls, size: Tensor, error: Tensor) -> "Ball":
        """|a| ≤ size, which is not negative."""
        ball = cls(-size, size, error)
        vars(ball).update(size=size, centred=True)
        return ball

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the activation."""
        return tuple(self.error.shape) if self.over is None else self.over

    @property
    def even(self) -> bool:
        """Whether some axis stands for more places than it holds."""
        return self.shape != tuple(self.error.shape)

    def whole(self) -> "Ball":
        """The same, place by place."""
        if not self.even:
            return self
        low, high, error = (part.expand(self.shape).contiguous() for part in (self.low, self.high, self.error))
        return Ball(low, high, error)

    @cached_property
    def size(self) -> Tensor:
        """|a| is at most this."""
        return self.low.abs() if self.low is self.high else torch.maximum(self.low.abs(), self.high.abs())

    @cached_property
    def reach(self) -> Tensor:
        """|a| and |b| are at most this."""
        return up(self.size + self.error)

    @cached_property
    def greatest(self) -> tuple[float, float]:
        """The greatest ``size`` and the greatest ``error``; a NaN is the greatest, and of no numbers 0."""
        size, error = (float(part.max()) if part.numel() else 0.0 for part in (self.size, self.error))
        return size, error

    @property
    def farthest(self) -> float:
        """All |a| and |b| are at most this."""
        return sum(self.greatest) * WIDEN


@dataclass(frozen=True)
class Call:
    """One operation of the original network.

    Attributes:
        function: what was called.
        args, kwargs: its arguments, every activation replaced by its ball; other tensors are constants.
        output: what the original network got.
        fmt: the number format of activations and output.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    fmt: Format = field(kw_only=True)

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """One argument, wherever it stands."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    @property
    def ball(self) -> Ball:
        """The first argument.

        Raises:
            NoBound: it is no activation, or some other argument is one too.
        """
        first = self.get(0, "input")
        others = [*self.args[1:], *(value for key, value in self.kwargs.items() if key != "input")]
        if not isinstance(first, Ball) or any(isinstance(value, Ball) for value in others):
            raise NoBound("an activation stands where a constant is expected")
        return first

    def on(self, pick: Callable[[Ball], Tensor]) -> Any:
        """The same operation on other numbers: ``pick`` of every activation, and of every constant as a ball."""

        def swapped(value: Any) -> Any:
            if isinstance(value, Tensor):
                value = Ball.exact(value) if value.is_floating_point() else value.cpu()
            return pick(value).clone() if isinstance(value, Ball) else value

        args, kwargs = tree_map(swapped, (self.args, self.kwargs), is_leaf=_is_ball)
        return self.function(*args, **kwargs)

    def ends(self, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """A function of ``low`` and of ``high`` of the first argument; one tensor where they are one."""
        low = function(self.ball.low)
        return low, low if self.ball.low is self.ball.high else function(self.ball.high)

    def on_ends(self) -> tuple[Any, Any]:
        """The same operation on every ``low``, and on every ``high``; worked out once where they are one."""
        balls = [leaf for leaf in tree_leaves((self.args, self.kwargs), is_leaf=_is_ball) if isinstance(leaf, Ball)]
        low = self.on(lambda ball: ball.low)
        return low, low if all(ball.low is ball.high for ball in balls) else self.on(lambda ball: ball.high)

    def rounding(self, size: Tensor, operations: int, underflow: Any = None, stores: int = 1) -> Tensor:
        """How far an evaluation may be from the exact result: γ_n·size + n·η, and what storing in half precision adds.

        Args:
            size: the sum of |terms|.
            operations: n, how many roundings one term passes at most.
            underflow: how many η; n by default.
            stores: how often a result is rounded to the stored format, where that is shorter than the working format.
        """
        slope, rest = self.line(operations, underflow, stores)
        return up(slope * size + rest)

    def line(self, operations: int, underflow: Any = None, stores: int = 1) -> tuple[float, Any]:
        """The rounding of an evaluation as slope·size + rest, before it is widened; arguments as of :meth:`rounding`."""
        fmt = self.fmt
        slope, rest = gamma(operations, fmt.u), (operations if underflow is None else underflow) * fmt.eta
        if fmt.stored_u:  # the result and its error grow by (1 + u) with every store
            grown = (1 + fmt.stored_u) ** stores
            slope, rest = grown * slope + (grown - 1), grown * (rest + stores * fmt.stored_eta)
        return slope, rest

    def affine(self, moved: Tensor, size: Tensor, operations: int, underflow: Any = None, stores: int = 2) -> Ball:
        """Both networks evaluate one function that is linear but for a constant.

        |f̃(b) − f̃(a)| ≤ |f|(e) + rounding(|f|(|a|)) + rounding(|f|(|a| + e)), where |f| has the absolute coefficients.

        Args:
            moved: |f|(e), the constant left out.
            size: |f|(|a|), the constant's size included.
            operations: n, as in :meth:`rounding`.
            underflow: as in :meth:`rounding`.
            stores: as in :meth:`rounding`.
        """
        line = self.line(operations, underflow, stores)
        return self.evaluated(moved, size, line, line)

    def evaluated(self, moved: Tensor, size: Tensor, here: tuple[float, Any], there: tuple[float, Any]) -> Ball:
        """As :meth:`affine`, with the rounding of either network's evaluation as a :meth:`line`.

        Args:
            moved: as in :meth:`affine`.
            size: as in :meth:`affine`.
            here: of the original, at ``size``.
            there: of the converted, at ``size + moved``.
        """
        # All of these are sums and products of numbers that are not negative: widened once, in the end, and no exact 0
        # among them, so that the speck may go to all.  The error is moved + here(size) + there(size + moved).
        grown = (size * (WIDEN * (1 + here[0]))).add_(WIDEN * here[1] + SPECK)
        error = (moved * (WIDEN * (1 + there[0]))).add_(size, alpha=WIDEN * (here[0] + there[0]))
        ball = Ball.around_zero(grown, error.add_(WIDEN * (here[1] + there[1]) + SPECK))
        if not 2 * sum(ball.greatest) < self.fmt.largest:  # no less than size and moved, and asked for again
            self.must_not_overflow(size, moved)
        return ball

    def must_not_overflow(self, *sizes: Tensor) -> None:
        """Refuse where an intermediate as large as the sum of these, and rounding on the way, may leave the format.

        Raises:
            NoBound: it may.
        """
        largest = sum(float(size.max()) if size.numel() else 0.0 for size in sizes)
        if not 2 * largest < self.fmt.largest and len(sizes) > 1:  # the greatest of each need not stand in one place
            total = sum(sizes[1:], sizes[0])
            largest = float(total.max()) if total.numel() else 0.0
        if not 2 * largest < self.fmt.largest:  # a NaN fails
            raise NoBound(
                f"an intermediate may reach {largest:.3g}, and the largest {self.fmt.name} is {self.fmt.largest:.3g}"
            )


def _is_ball(value: Any) -> bool:
    return isinstance(value, Ball)


def up(bound: Tensor) -> Tensor:
    """A non-negative bound, widened by more than float64 lost in working it out."""
    # Among the smallest numbers the product may not have grown; an exact 0 stays one.
    return (bound * WIDEN).add_(bound.sign(), alpha=SPECK)


def above(value: Tensor, error: Tensor, constant: float = 0.0) -> Tensor:
    """a + e + c from above, where the terms may cancel: the sum, and a multiple of their sizes."""
    small = 2.0**-48
    total = torch.add(value, error).add_(value.abs(), alpha=small).add_(error, alpha=small)
    return total.add_(constant + small * abs(constant)) if constant else total
